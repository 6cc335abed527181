"""torchtitan's plan for a budget: shares of every layer by a linear program, then tensors within each layer.

After ``auto_perf_maxing`` of its graph trainer (pull requests 3881, 3943, 3975 and 4636). For each repeated
layer, the outer program says which shares of what it saves are kept, computed again and copied to the host.
An inner choice then gives each operator one of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...instances.instance import Instance
from ...instances.memory import live_bytes, live_ranges
from ...instances.units import format_size
from ...validate.schedule import Schedule
from ..clock import OutOfTime, left, limited, look
from ..loading import loads
from ..methods import Answer, Limits, Refusal, register
from ..recomputation.plan import NOTHING_AGAIN, Policy, issued, recomputed, restorable, turn
from ..recomputation.rules import planned
from .layer_copies import LEAST_OFFLOADED, Deferred, layer_copies, within
from .saved import LayerGroup, activations, layer_groups

Inner = Literal["greedy", "program"]
"""How operators within a layer are chosen: one by one, or by an integer program."""

Choice = Literal["keep", "offload", "recompute"]
"""What becomes of what an operator makes until the backward pass reads it."""

_LEAST_IN_PROGRAM = 1 << 20
"""Bytes below which the inner integer program leaves what an operator makes on the device."""

_STEPS = 20
"""Number of steps in which budgets are tried, from what the instance has to nothing."""

_OVER = 0.05
"""Share by which the inner integer program may copy more than the outer one asks for."""

_SLACK = 1e-6
"""Share by which the inner integer program may keep more, for rounding."""

_NEARLY = 0.95
"""Share of the bytes that are still kept too much with which an operator closes the gap."""

_ROUNDING = 0.5
"""Bytes by which shares may be off, as numbers that are rounded."""

_PRICE = 1e-6
"""Cost of copying all, as a share of computing a layer again: of equal plans, the one that copies less."""


def load_scipy(_: Limits) -> None:
    """Import what solves linear programs: it takes a few tenths of a second."""
    import scipy.optimize  # noqa: F401 - used below


@register(
    "torchtitan-budget",
    "per layer, shares to keep, copy and compute again by a linear program; then operators one by one",
    "torchtitan, graph_trainer: memory_policy auto_perf_maxing (pull request 4636)",
    shown="named",
    transform=planned,
)
@loads(load_scipy)
@limited
def torchtitan_budget(instance: Instance, limits: Limits) -> Answer:
    """Plan for the greatest budget whose program fits: what is read behind, operator by operator, in layers.

    Raises
    ------
    Refusal
        When no layers repeat, nothing can be computed again, no shares of layers fit, or there is no room.
    """
    return _budgeted(instance, limits, "torchtitan-budget", "greedy")


@register(
    "torchtitan-budget-ilp",
    "as torchtitan-budget, with an integer program within each layer",
    "torchtitan, graph_trainer: memory_policy auto_perf_maxing with the solver 'ilp' (pull request 3975)",
    shown="named",
    transform=planned,
)
@loads(load_scipy)
@limited
def torchtitan_budget_ilp(instance: Instance, limits: Limits) -> Answer:
    """Plan as `torchtitan_budget`, with the least time to compute again within each layer.

    Raises
    ------
    Refusal
        As `torchtitan_budget`.
    """
    return _budgeted(instance, limits, "torchtitan-budget-ilp", "program")


def _budgeted(instance: Instance, limits: Limits, name: str, inner: Inner) -> Answer:
    """Try budgets of 100 %, 95 %, ... of the pool, and take the first whose program has room."""
    groups = layer_groups(instance)
    again = restorable(instance)
    if not any(d in again for group in groups for d in group.inside):
        raise Refusal(NOTHING_AGAIN)
    layers = Layers(instance, groups)
    tried = list[dict[int, Choice]]()
    reason = ""
    for step in range(_STEPS, 0, -1):
        look()
        budget = instance.pool_bytes * step // _STEPS
        chosen: dict[int, Choice] = {}
        if layers.peak > budget:
            shares = layers.shares(budget)
            if shares is None:
                break
            chosen = layers.choose(shares, inner)
        if chosen in tried:
            continue
        tried.append(chosen)
        try:
            return Answer(_program(layers, limits, name, chosen))
        except OutOfTime:
            raise
        except Refusal as refusal:
            reason = str(refusal)
    raise Refusal(reason or f"no shares of layers fit {format_size(instance.pool_bytes)}")


def _program(layers: Layers, limits: Limits, name: str, chosen: Mapping[int, Choice]) -> Schedule:
    """Return the program of a plan; without one, everything is kept.

    What is made before the first layer is computed again, too.
    """
    instance, again = layers.instance, restorable(layers.instance)
    if not chosen:
        return recomputed(instance, limits, Policy(), name)
    of = {d: chosen[one.task] for layer in layers.operators for one in layer for d in one.saved}
    first = layers.groups[0].forward[0]
    before = {d for d in activations(instance) if instance.writers[d][0] < first and d in again}
    dropped = before | {d for d, choice in of.items() if choice == "recompute"}
    hosted = within(instance, [d for d, choice in of.items() if choice == "offload"])
    copies = layer_copies(instance, layers.groups, hosted)
    kept = {d for d, choice in of.items() if choice == "keep"}
    policy = Policy(dropped, set(hosted), kept, copies.ahead)
    return issued(
        instance,
        limits,
        name,
        lambda builder, most: Deferred(builder, policy, most, copies),
        one_copy_queue=True,
    )


@dataclass(frozen=True, slots=True)
class Operator:
    """A task of the forward pass whose results the backward pass reads.

    Attributes
    ----------
    task, saved
        The task, and the blocks that it saves.
    bytes, time_ns
        Their size, and the time of the task.
    stays
        Whether it is neither computed again nor copied: a later layer reads it, or it cannot be made again.
    """

    task: int
    saved: tuple[int, ...]
    bytes: int
    time_ns: int
    stays: bool


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of what a layer saves that are kept and copied; the rest is computed again."""

    keep: float
    offload: float


class Layers:
    """What the two levels know of an instance.

    Attributes
    ----------
    operators
        For each layer, the operators that the inner choice decides on.
    saved
        Bytes that each layer saves.
    transient
        Most bytes that the backward pass has made and still needs while it is in each layer.
    outside
        Most bytes that tasks outside layers have made and that are needed at once.
    forward_ns, backward_ns
        Mean times of a layer in both passes.
    resident
        Bytes of data that nothing makes, such as inputs.
    peak
        Most bytes that are needed at once if everything is kept.
    """

    def __init__(self, instance: Instance, groups: Sequence[LayerGroup]) -> None:
        self.instance, self.groups = instance, groups
        end, layer_of = turn(instance), {k: i for i, group in enumerate(groups) for k in group.forward}
        read = set(activations(instance))
        again = restorable(instance)
        times = [min(a.duration_ns for a in task.algorithms) for task in instance.tasks]
        self.operators: list[list[Operator]] = [[] for _ in groups]
        for k in sorted(layer_of):
            saved = tuple(d for d in instance.tasks[k].outputs if d in read)
            if not saved:
                continue
            later = any(
                layer_of.get(use, -1) > layer_of[k] for d in saved for use in instance.uses[d] if use < end
            )
            stays = later or not again.issuperset(saved)
            size = sum(instance.blocks[d].bytes for d in saved)
            self.operators[layer_of[k]].append(Operator(k, saved, size, times[k], stays))
        self.saved = [sum(one.bytes for one in layer) for layer in self.operators]
        in_layer = set(layer_of) | {k for group in groups for k in group.backward}
        behind = (d for d, writers in enumerate(instance.writers) if writers and writers[0] >= end)
        outside = (d for d, writers in enumerate(instance.writers) if writers and writers[0] not in in_layer)
        held = _held(instance, behind)
        self.transient = [max((held[k] for k in group.backward), default=0) for group in groups]
        self.outside = max(_held(instance, outside))
        self.forward_ns = sum(times[k] for group in groups for k in group.forward) / len(groups)
        self.backward_ns = sum(times[k] for group in groups for k in group.backward) / len(groups)
        self.resident = sum(b.bytes for b in instance.blocks if b.initially != "absent")
        self.peak = max(live_bytes(instance))

    def shares(self, budget: int) -> list[Share] | None:
        """Return what the outer linear program says of each layer, or None if no shares fit.

        It computes as little as it can again; all layers cost the same. Memory is limited in every layer of
        both passes, where the last layer's copies are not yet over, and behind the last layer. A layer's
        copies take no longer than a layer, in each direction, and all copies together have room on the host.

        Parameters
        ----------
        budget
            Bytes of the pool.
        """
        from scipy.optimize import linprog

        n = len(self.groups)
        room = max(budget, 1)
        size = np.array(self.saved) / room
        rows: list[np.ndarray] = []
        most: list[float] = []

        def limit(keep: Iterable[int], offload: Iterable[int], right: float) -> None:
            row = np.zeros(2 * n)
            for i in keep:
                row[i] += size[i]
            for i in offload:
                row[n + i] += size[i]
            rows.append(row)
            most.append(right)

        free = 1 - self.resident / room
        for i in range(n):
            before = range(i - 1, i) if i else ()
            limit(range(i), before, free - size[i])
            limit(range(i), before, free - size[i] - self.transient[i] / room)
            for bandwidth, window in zip(
                self._bandwidths(), (self.forward_ns, self.backward_ns), strict=True
            ):
                limit((), (i,), bandwidth * window / room)
            both = np.zeros(2 * n)
            both[[i, n + i]] = 1.0
            rows.append(both)
            most.append(1.0)
        limit(range(n), (), free - self.outside / room)
        limit((), range(n), self._host_room() / room)
        stay = [
            min(1.0, sum(one.bytes for one in layer if one.stays) / max(saved, 1))
            for layer, saved in zip(self.operators, self.saved, strict=True)
        ]
        bounds = [*((least, 1.0) for least in stay), *((0.0, 1.0) for _ in range(n - 1)), (0.0, 0.0)]
        total = max(float(size.sum()), 1e-12)
        cost = np.concatenate([-np.ones(n), -1.0 + _PRICE * size / total])
        found = linprog(cost, A_ub=np.array(rows), b_ub=np.array(most), bounds=bounds, method="highs")
        if found.x is None:
            return None
        shares = np.clip(found.x, 0.0, 1.0)
        return [Share(float(shares[i]), float(shares[n + i])) for i in range(n)]

    def choose(self, shares: Sequence[Share], inner: Inner) -> dict[int, Choice]:
        """Return what becomes of what each operator of the layers makes, by its task.

        Layers whose operators and shares are the same are decided once.

        Raises
        ------
        Refusal
            When the inner integer program has no solution.
        """
        chosen: dict[int, Choice] = {}
        known: dict[tuple[object, ...], list[Choice]] = {}
        room = self._host_room()
        for layer, share in zip(self.operators, shares, strict=True):
            alike = tuple((one.bytes, one.time_ns, one.stays) for one in layer)
            like = (alike, round(share.keep, 9), round(share.offload, 9))
            if like not in known:
                if inner == "greedy":
                    known[like] = greedy(layer, share)
                else:
                    known[like] = program(layer, share, room, self._bandwidths()[0])
            chosen |= {one.task: choice for one, choice in zip(layer, known[like], strict=True)}
            room -= sum(
                one.bytes for one, choice in zip(layer, known[like], strict=True) if choice == "offload"
            )
        return chosen

    def _host_room(self) -> float:
        """Return how many bytes the host has room for beside data that is there before."""
        most = self.instance.host_budget_bytes
        return float(most) - self.resident if isinstance(most, int) else float(max(sum(self.saved), 1))

    def _bandwidths(self) -> tuple[float, float]:
        """Return how many bytes a nanosecond takes out and back: those of the largest block that is saved."""
        blocks = [self.instance.blocks[d] for layer in self.operators for one in layer for d in one.saved]
        largest = max(blocks, key=lambda block: block.bytes, default=None)
        if largest is None or largest.offload_ns is None or largest.prefetch_ns is None:
            return 0.0, 0.0
        return largest.bytes / max(largest.offload_ns, 1), largest.bytes / max(largest.prefetch_ns, 1)


def greedy(layer: Sequence[Operator], share: Share) -> list[Choice]:
    """Return what becomes of each operator of a layer, by the time that a byte of it takes to make again.

    The dearest are copied and the cheapest are computed again, each as far as the share goes; what does not
    fit is left out. If more is kept than its share, further operators are computed again, and at last one
    that closes the gap.
    """
    saved = sum(one.bytes for one in layer)
    decided: dict[int, Choice] = {i: "keep" for i, one in enumerate(layer) if one.stays}
    ranked = [i for i, one in enumerate(layer) if one.bytes]
    ranked.sort(key=lambda i: (-layer[i].time_ns / layer[i].bytes, layer[i].task))

    def fill(gap: float, order: Iterable[int], choice: Choice, *, closes: bool = False) -> float:
        placed = 0.0
        order = [i for i in order if i not in decided]
        for i in order:
            if layer[i].bytes <= gap - placed + _ROUNDING:
                decided[i] = choice
                placed += layer[i].bytes
        left = gap - placed
        over = [i for i in order if i not in decided and layer[i].bytes >= _NEARLY * left]
        if closes and left > _ROUNDING and over:
            last = min(over, key=lambda i: (layer[i].bytes, layer[i].task))
            decided[last] = choice
            placed += layer[last].bytes
        return placed

    large = [i for i in ranked if layer[i].bytes >= LEAST_OFFLOADED]
    copied = fill(share.offload * saved, large, "offload")
    again = fill((1 - share.offload - share.keep) * saved, reversed(ranked), "recompute")
    too_much = saved - copied - again - share.keep * saved
    fill(too_much, reversed(ranked), "recompute", closes=True)
    return [decided.get(i, "keep") for i in range(len(layer))]


def program(layer: Sequence[Operator], share: Share, room: float, bandwidth: float) -> list[Choice]:
    """Return what becomes of each operator of a layer: as little time as possible to compute again.

    No more is kept than the share. No more is copied than the share and the room on the host, but for a
    twentieth, which costs the time of its copy. Operators of the same size and time are counted, not chosen
    one by one: a layer with many of them took the solver hours. The first of them are kept, the next are
    copied.

    Raises
    ------
    Refusal
        When there is no such choice, or the time limit passes.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not layer:
        return []
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for i, one in enumerate(layer):
        alike.setdefault((one.bytes, one.time_ns, one.stays), []).append(i)
    n, saved = len(alike), sum(one.bytes for one in layer)
    unit = max(saved, 1)
    most = np.array([len(members) for members in alike.values()], dtype=float)
    size = np.array([size / unit for size, _, _ in alike])
    longest = max(1, *(one.time_ns for one in layer))
    keep, offload = share.keep, min(share.offload, max(room, 0.0) / unit)
    over_cost = unit / (bandwidth * longest) if bandwidth else 0.0
    worth = [-time_ns / longest for _, time_ns, _ in alike]
    cost = np.array([*worth, *worth, over_cost])  # what is kept or copied is not computed again
    leaves = [size >= _LEAST_IN_PROGRAM and not stays for size, _, stays in alike]
    lower = np.concatenate([most * [stays for _, _, stays in alike], np.zeros(n + 1)])
    upper = np.concatenate([most, most * leaves, [offload * _OVER]])
    once = np.hstack([np.eye(n), np.eye(n), np.zeros((n, 1))])
    kept = np.concatenate([size, np.zeros(n + 1)])
    copied = np.concatenate([np.zeros(n), size, [-1.0]])
    found = milp(
        cost,
        integrality=np.concatenate([np.ones(2 * n), [0.0]]),
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(
            np.vstack([once, kept, copied]), -np.inf, [*most, keep * (1 + _SLACK), offload]
        ),
        options={"time_limit": left()},
    )
    look()
    if found.x is None:
        raise Refusal("the inner program has no solution: what must stay is more than the layer's share")
    choices: list[Choice] = ["recompute"] * len(layer)
    for at, members in enumerate(alike.values()):
        stay, leave = round(found.x[at]), round(found.x[n + at])
        for i in members[:stay]:
            choices[i] = "keep"
        for i in members[stay : stay + leave]:
            choices[i] = "offload"
    return choices


def _held(instance: Instance, blocks: Iterable[int]) -> list[int]:
    """Return, per task, the bytes of some blocks that are live while it runs."""
    live = live_ranges(instance)
    change = [0] * (len(instance.tasks) + 1)
    for d in blocks:
        change[live[d].start] += instance.blocks[d].bytes
        change[live[d].stop] -= instance.blocks[d].bytes
    return list(np.cumsum(change[:-1], dtype=np.int64).tolist())
