"""Recomputation: blocks that are dropped after the forward pass and computed again when they are needed.

A policy says which blocks are dropped and which are copied to the host; the others are kept. A block that is
needed and absent is copied back or computed again, together with the blocks that it is made from. It is then
kept until its last use.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

from ...instances.instance import Instance
from ...instances.memory import live_bytes
from ...instances.units import LARGEST
from ...validate.schedule import Schedule
from ..choices import fastest_within
from ..clock import OutOfTime
from ..methods import Limits, Refusal
from ..papers.layrub import CAFFE_WORKSPACE
from ..program.builder import ProgramBuilder
from ..program.placement import Issue, build_program

NOTHING_AGAIN = (
    "nothing can be computed again: no forward task may run twice (--recompute), or it works in place"
)
"""Refusal of rules that compute data again."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The treatment of the blocks of the forward pass: dropped, copied to the host, or kept.

    Attributes
    ----------
    dropped
        Blocks to compute again; all of them are `restorable`.
    hosted
        Blocks that are copied to the host after their last use in the forward pass.
    saved
        Blocks that are kept although the backward pass reads them only to compute others again.
    ahead
        Per task, the blocks to prefetch when it starts, where there is room.
    once
        Whether what is computed again stays until nothing needs it, so that nothing runs a third time, as in
        a backward pass that is compiled; else it is made anew for each task that the backward pass does not
        read it in.
    """

    dropped: Set[int] = frozenset()
    hosted: Set[int] = frozenset()
    saved: Set[int] = frozenset()
    ahead: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    once: bool = False


def turn(instance: Instance) -> int:
    """Return the first task of the backward pass.

    If the layers have no names, this is the task after the one with the greatest sum of live bytes.
    """
    forward = [k for layer in instance.named_layers for k in layer.forward]
    if forward:
        return 1 + max(forward)
    live = live_bytes(instance)
    return 1 + live.index(max(live))


def restorable(instance: Instance) -> set[int]:
    """Return the blocks of the forward pass that can be computed again in the backward pass.

    This needs three things: the producer may run again and overwrites nothing; nothing that it reads is
    changed after it while the backward pass still uses what the forward pass has made, as weights are that an
    optimizer updates; and nothing that it makes is changed.
    """
    end, uses, writers = turn(instance), instance.uses, instance.writers
    last = max((uses[d][-1] for task in instance.tasks[:end] for d in task.outputs), default=0)
    found: set[int] = set()
    for k, task in enumerate(instance.tasks[:end]):
        unchanged = all(not any(k <= writer <= last for writer in writers[d]) for d in task.inputs)
        once = all(len(writers[d]) == 1 and instance.blocks[d].finally_ == "anywhere" for d in task.outputs)
        if task.recomputable and not task.updates and unchanged and once:
            found.update(task.outputs)
    return found


def used_later(instance: Instance, blocks: Iterable[int]) -> set[int]:
    """Return the given blocks of the forward pass that the backward pass reads and does not change."""
    end, uses, writers = turn(instance), instance.uses, instance.writers
    return {
        d
        for d in blocks
        if uses[d] and uses[d][0] < end <= uses[d][-1] and (not writers[d] or writers[d][-1] < end)
    }


def fastest_with_room(builder: ProgramBuilder, task: int, most: int = LARGEST) -> int:
    """Return the fastest algorithm whose workspace has room beside the blocks, counting bytes only.

    The workspace has at most `most` bytes. If no algorithm has room, the leanest one is chosen.
    """
    instance = builder.instance
    placed = sum(instance.blocks[d].bytes for d in instance.tasks[task].outputs if not builder.is_resident(d))
    return fastest_within(instance.tasks[task], min(builder.free_bytes - placed, most))


def issued(
    instance: Instance,
    limits: Limits,
    name: str,
    make: Callable[[ProgramBuilder, int], Recomputation],
    *,
    one_copy_queue: bool = False,
) -> Schedule:
    """Return the program with the fastest algorithms that have room, else with small or no workspaces.

    Parameters
    ----------
    instance, limits, name
        The instance, the limits of the method, and its name.
    make
        Makes the iteration from a builder and the greatest workspace in bytes.
    one_copy_queue
        As for `build_program`.

    Raises
    ------
    Refusal
        When there is no room even without workspaces.
    """
    reason = ""
    largest = max(
        (a.workspace_bytes for task in instance.tasks for a in task.algorithms if a.on == "device"), default=0
    )
    for most in (LARGEST, *(most for most in (CAFFE_WORKSPACE, 0) if most < largest)):
        issue: Issue = partial(_issue, make, most)
        try:
            return build_program(instance, limits.memory, issue, one_copy_queue=one_copy_queue).finish(name)
        except OutOfTime:
            raise
        except Refusal as refusal:
            reason = str(refusal)
    raise Refusal(reason)


def recomputed(instance: Instance, limits: Limits, policy: Policy, name: str) -> Schedule:
    """Return the program of a policy, as `issued` does."""
    return issued(instance, limits, name, lambda builder, most: Recomputation(builder, policy, most))


def _issue(make: Callable[[ProgramBuilder, int], Recomputation], most: int, builder: ProgramBuilder) -> None:
    make(builder, most).all()


class Recomputation:
    """An iteration under a policy of recomputation, task by task.

    Parameters
    ----------
    builder
        The program under construction.
    policy
        Which blocks are dropped and which are copied to the host. Blocks that no backward task uses are
        dropped, too, if they can be computed again and are not saved.
    most_workspace
        Greatest workspace in bytes. Every run takes the fastest algorithm that has room.
    """

    def __init__(self, builder: ProgramBuilder, policy: Policy, most_workspace: int) -> None:
        self.builder = builder
        self.instance = builder.instance
        self.policy = policy
        self.most_workspace = most_workspace
        self.end = turn(self.instance)
        forward_only = {
            d for d in restorable(self.instance) if (self.instance.uses[d] or (0,))[-1] < self.end
        }
        self.runs_again = policy.dropped | (forward_only - policy.saved)
        self.comes_back = self.runs_again | policy.hosted
        self.last_forward: dict[int, list[int]] = defaultdict(list)
        leaving = policy.dropped | policy.hosted | (self.runs_again if policy.once else set())
        for d in leaving:
            self.last_forward[max(k for k in self.instance.uses[d] if k < self.end)].append(d)
        self.expires: dict[int, list[int]] = defaultdict(list)
        until = self._needed_by_second_runs() if policy.once else self._needed_until()
        for d, last in enumerate(until):
            self.expires[last].append(d)
        self.needed_until = (
            until if policy.once else [uses[-1] + 1 if uses else 0 for uses in self.instance.uses]
        )

    def all(self) -> None:
        """Issue the whole iteration."""
        for k, task in enumerate(self.instance.tasks):
            self._prefetch(k)
            self._bring((*task.inputs, *task.updates), k)
            self._run(k)
            self._leave(k)
            for d in self.expires.get(k, ()):
                if self.builder.is_resident(d):
                    self.builder.retire(d)

    def _run(self, k: int) -> None:
        self.builder.run(k, fastest_with_room(self.builder, k, self.most_workspace))

    def _leave(self, k: int) -> None:
        """Let blocks leave the device that task k is the last to use in the forward pass."""
        for d in self.last_forward.get(k, ()):
            if d in self.policy.hosted and not self.builder.on_host(d):
                self.builder.offload(d)
            self.builder.release(d)

    def _fetch(self, d: int) -> None:
        """Copy a block back that a task needs."""
        self.builder.prefetch(d)

    def _early(self, d: int) -> None:
        """Copy a block back that a later task needs."""
        self.builder.prefetch(d)

    def _needed_until(self) -> list[int]:
        """Return, per block, the task after which it is not needed, not even to compute another block again.

        A block that comes back when it is needed is not kept for this.
        """
        uses = self.instance.uses
        until = [uses[d][-1] if uses[d] else -1 for d in range(len(uses))]
        for task in reversed(self.instance.tasks[: self.end]):
            again = max((until[d] for d in task.outputs if d in self.runs_again), default=-1)
            if again >= self.end:
                for d in task.inputs:
                    until[d] = max(until[d], again)
        return [uses[d][-1] if uses[d] and d in self.comes_back else until[d] for d in range(len(uses))]

    def _needed_by_second_runs(self) -> list[int]:
        """Return the same where each task runs again once, when the first of what it makes is needed."""
        uses = self.instance.uses
        until = [uses[d][-1] if uses[d] else -1 for d in range(len(uses))]
        never = len(self.instance.tasks)
        needed = [next((k for k in uses[d] if k >= self.end), never) for d in range(len(uses))]
        for task in reversed(self.instance.tasks[: self.end]):
            again = min((needed[d] for d in task.outputs if d in self.runs_again), default=never)
            if again < never:
                for d in task.inputs:
                    until[d] = max(until[d], again)
                    needed[d] = min(needed[d], again)
        return until

    def _prefetch(self, k: int) -> None:
        """Prefetch blocks that the policy wants early, if the task that runs meanwhile has room."""
        task = self.instance.tasks[k]
        for d in self.policy.ahead.get(k, ()):
            if self.builder.is_resident(d) or not self.builder.on_host(d):
                continue
            outputs = sum(self.instance.blocks[x].bytes for x in task.outputs)
            if self.builder.free_bytes >= self.instance.blocks[d].bytes + outputs:
                self._early(d)

    def _bring(self, wanted: tuple[int, ...], k: int) -> None:
        """Bring the blocks that task k needs to the device: from the host, or by computing them again."""
        runs: set[int] = set()
        copies: list[int] = []
        left: Counter[int] = Counter()
        seen: set[int] = set()
        stack = list(wanted)
        while stack:
            d = stack.pop()
            if d in seen or self.builder.is_resident(d):
                continue
            seen.add(d)
            if self.builder.on_host(d):
                copies.append(d)
                continue
            producer = self.instance.writers[d][0]
            if producer not in runs:
                runs.add(producer)
                left.update(self.instance.tasks[producer].inputs)
                stack.extend(self.instance.tasks[producer].inputs)
        for d in sorted(copies, key=lambda d: (self.instance.uses[d][0], d)):
            self._fetch(d)
        for producer in sorted(runs):
            self._run(producer)
            task = self.instance.tasks[producer]
            left.subtract(task.inputs)
            for d in (*task.inputs, *task.outputs):
                if d in self.comes_back and not left[d] and d not in wanted and self.needed_until[d] <= k:
                    self.builder.release(d)
