"""What is proven about bounds, each with its assumptions, and an attack on it.

A theorem is a function: its docstring is the statement, with all that it assumes; its body draws what the
statement leaves open (checkpoints, prices, stretches of tasks), and yields claims, which a judge has decided
by exhaustive search. A claim says whether the rows that the theorem is about were in the model, so that an
attack that never reaches them fails.

All instances are rounds on one GPU unless a theorem says otherwise, with whole numbers of bytes and
nanoseconds from zero on (a block has a byte at least). A schedule of divisible memory is as in
`Enumeration`: no more than the pool is in use at any instant, also in between operations that take no time;
copies are not interrupted. Every contiguous and every paged schedule that the checker accepts is one. Host
memory may have a budget, except with several GPUs. That only leaves out schedules: what is at most the
makespan of every schedule remains so. Blocks may be carried, except with several GPUs: every schedule is then
one of the instance whose carried blocks begin on the device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import msgspec

from pebbler.heuristics.methods import Limits, Refusal, list_methods
from pebbler.heuristics.parts import with_parts
from pebbler.instances.instance import Algorithm, Instance, Task
from pebbler.instances.memory import least_budget, with_budget
from pebbler.instances.suites.tiny import without_copies
from pebbler.instances.transforms import in_pages, in_parts
from pebbler.instances.units import ceil_to
from pebbler.solver.bounds import best_bound, compute_bound, critical_path_bound, single_peak_bound
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.exhaustive.gpus import cluster_brute_force
from pebbler.solver.flow.families import Window
from pebbler.solver.flow.gpus import cluster_flow_bound
from pebbler.solver.flow.model import Integrality, bound_name, flow_model, proven
from pebbler.solver.flow.recompute import proven_with_reruns, recompute_bound, recompute_model
from pebbler.solver.flow.stages import Thresholds, refine_bound
from pebbler.solver.flow.windows import Windows
from pebbler.solver.gradient_bounds import gradient_bound_ns
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import LinearModel, LinearResult
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.bounds.arguments import Prices, least_times
from pebbler.validate.bounds.certificate import certify, check_certificate
from pebbler.validate.bounds.reads import with_least_reads
from pebbler.validate.bounds.reruns import rerun_intervals
from pebbler.validate.bounds.single_peak import SinglePeak
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel

from ..validate.hostile import drawn_survival
from .enumeration import Enumeration, TooManyError
from .instances import KEYS, Shape, adversarial, adversarial_cluster, chance, with_carried

_STATES = 1500
"""Of a search; an instance that needs more is no case."""

_PLAIN_STATES = 3000
"""Of the plain enumeration, which judges windows."""


class TooLargeError(Exception):
    """No search ends within its states."""


class Claim(NamedTuple):
    """A bound, and what the judge has found to be possible.

    Attributes
    ----------
    what
        The bound, in words.
    bound, possible
        Nanoseconds; infinite: there is no schedule.
    has_row
        Whether what the theorem is about was in the model.
    """

    what: str
    bound: float
    possible: float
    has_row: bool = True


@dataclass(slots=True)
class Case:
    """An instance to attack, and the draws of the attack."""

    instance: Instance
    rng: Random
    _optima: dict[MemoryModel, float] = field(default_factory=dict)

    @property
    def optimum(self) -> float:
        """Least time in divisible memory, by exhaustive search."""
        return self.least("divisible")

    def least(self, memory: MemoryModel) -> float:
        """Least time in a memory model; infinite where there is no schedule."""
        if memory not in self._optima:
            self._optima[memory] = optimum(self.instance, memory)
        return self._optima[memory]

    def checkpoints(self) -> tuple[int, ...]:
        """All tasks that the host cannot compute, or any of them."""
        every = tuple(k for k, task in enumerate(self.instance.tasks) if not task.may_run_on_host)
        if not chance(self.rng, 50):
            return every
        return tuple(k for k in every if not chance(self.rng, 50)) or every[:1]


def optimum(instance: Instance, memory: MemoryModel) -> float:
    """Least time of an instance; infinite where there is no schedule."""
    try:
        found = brute_force(instance, memory, most_states=_STATES)
    except TimeoutError:
        raise TooLargeError from None
    except Refusal:  # there are too many places in host memory, which has none in divisible memory
        if memory == "divisible":
            raise
        raise TooLargeError from None
    return math.inf if found is None else found.makespan_ns


Attack = Callable[[Case], Iterator[Claim]]


@dataclass(frozen=True, slots=True)
class Theorem:
    """A statement, where it is documented, the instances that it is about, and the attack.

    `shape` is None where the instances are others than `adversarial` ones; `is_slow` says that an attack
    takes a tenth of a second and more, `without` which of `KEYS` they may not have.
    """

    name: str
    page: str
    shape: Shape | None
    draw: Callable[[Random], Instance]
    attack: Attack
    is_slow: bool
    without: frozenset[str]

    @property
    def statement(self) -> str:
        """In words."""
        return self.attack.__doc__ or ""

    def takes(self, keys: Collection[str]) -> bool:
        """Whether it is about instances with all of these keys, and there are any."""
        together = "host_work" in keys and not {*UNKNOWN_GAPS}.isdisjoint(keys)
        return self.without.isdisjoint(keys) and not together

    def case(self, rng: Random, keys: Collection[str] = ()) -> Case:
        """Draw a case that has these of `KEYS`."""
        instance = self.draw(rng)
        for key, give in KEYS.items():
            if key in keys:
                instance = give(rng, instance)
        return Case(instance, rng)


THEOREMS: dict[str, Theorem] = {}

UNKNOWN_GAPS = ("own_inputs", "own_outputs", "takes_over")
"""Keys with which it is not known between which uses a block may be away."""

MACHINE = ("link", "slowdown", "host_work")
"""Keys of the machine: what copies take from each other and from compute, and what the host computes."""

PLAIN = Shape(tasks=6, blocks=5)
SMALL = Shape(tasks=4, blocks=4)


def theorem(
    page: str,
    shape: Shape | Callable[[Random], Instance],
    *,
    slow: bool = False,
    without: Collection[str] = (),
) -> Callable[[Attack], Attack]:
    """Register an attack."""

    def draw(rng: Random) -> Instance:
        return adversarial(rng, shape) if isinstance(shape, Shape) else shape(rng)

    def put(attack: Attack) -> Attack:
        name = attack.__name__.replace("_", " ")
        own = shape if isinstance(shape, Shape) else None
        THEOREMS[name] = Theorem(name, page, own, draw, attack, slow, frozenset(without))
        return attack

    return put


def solved(model: LinearModel, seconds: float) -> LinearResult:
    """Solve a model in this process."""
    return solve_linear(model, time_limit=seconds)


def _flow(
    case: Case,
    integrality: Integrality,
    windows: Sequence[Window] = (),
    *,
    unbroken: bool = False,
    long: float = 1 / 3,
) -> Iterator[Claim]:
    """Solve FLOW on some checkpoints; a certificate that comes with it is proven anew."""
    instance, checkpoints = case.instance, case.checkpoints()
    if not checkpoints:
        return
    possible = case.optimum
    model = flow_model(instance, checkpoints, integrality, windows, unbroken=unbroken, long=long)
    result = solve_linear(model.linear)
    bound = proven(instance, result, model, bound_name(integrality, "highs"))
    what = "+".join((bound_name(integrality, "highs"), *model.beyond))
    has_row = bool(model.gaps)
    if windows:
        has_row = "windows" in model.beyond
    elif unbroken:
        has_row = "unbroken" in model.beyond and any(
            len(gap.absent) and model.linear.integer[gap.absent].any() for gap in model.gaps.values()
        )
    if bound is None:
        yield Claim(f"{what}: {result.detail}", 0, possible, has_row=False)
        return
    yield Claim(f"{what} at {checkpoints}", bound.lower_bound_ns, possible, has_row)
    if bound.certificate is not None:
        reasons = check_certificate(instance, bound.certificate).reasons
        assert not reasons, reasons
        yield Claim(f"certified {what}", bound.certificate.lower_bound_ns, possible, has_row)


# --- the judge ------------------------------------------------------------------------------------------


def _same(case: Case, memory: MemoryModel, plain: Instance) -> Iterator[Claim]:
    """Exhaustive search in a memory model is the plain enumeration of an instance, both ways."""
    pruned = case.least(memory)
    try:
        found = Enumeration(plain, _PLAIN_STATES).shortest()
    except TooManyError:
        raise TooLargeError from None
    least = math.inf if found is None else found
    copies = pruned > _without_machine(case)
    yield Claim("exhaustive search", pruned, least, copies)
    yield Claim("plain enumeration", least, pruned, copies)


def _without_machine(case: Case) -> float:
    """Return the time in which all runs may be done, or, with a link and slowed tasks, without these."""
    if not case.instance.is_coupled:
        return sum(least_times(case.instance))
    tasks = tuple(msgspec.structs.replace(t, slowdown_ppm=msgspec.UNSET) for t in case.instance.tasks)
    return optimum(msgspec.structs.replace(case.instance, link=msgspec.UNSET, tasks=tasks), "divisible")


@theorem("docs/chain.md", Shape(tasks=4, blocks=3, reruns=True))
def exhaustive_search(case: Case) -> Iterator[Claim]:
    """`brute_force` in divisible memory, which estimates what is left and leaves out what is not worth doing,
    finds the time that the plain enumeration of everything finds, or that there is no schedule. Tasks may run
    again. It is the judge of all other theorems."""
    yield from _same(case, "divisible", case.instance)


@theorem(
    "docs/chain.md", Shape(tasks=3, blocks=3, digits=3, parts=False, pages=True), without=("host_budget",)
)
def exhaustive_search_in_pages(case: Case) -> Iterator[Claim]:
    """`brute_force` in paged memory finds the time that the plain enumeration finds on the instance with its
    blocks and workspaces in whole pages: any pages do, so that only their number counts. (Where host memory
    has a budget, offsets of copies count: test_enumeration compares the two with those.)"""
    yield from _same(case, "paged", in_pages(case.instance))


def _ordinary(instance: Instance, places: Sequence[tuple[bool, bool]]) -> Instance:
    """Return the instance with each carried block on the device or not, and on the host or not, at both ends.

    What the host has not is written by a first task. What is on the device is there for that and a last task.
    """
    blocks, chosen = list(instance.blocks), dict(zip(instance.carried, places, strict=True))
    for d, (on_device, on_host) in chosen.items():
        blocks[d] = msgspec.structs.replace(
            blocks[d],
            initially="absent" if not on_host else "device" if on_device else "host",
            finally_="host" if on_host else "device",
        )
    at_once = (Algorithm(name="at once", duration_ns=0, workspace_bytes=0),)
    kept = tuple(d for d, (on_device, _) in chosen.items() if on_device)
    made = tuple(d for d in kept if not chosen[d][1])
    read = tuple(d for d in kept if chosen[d][1])
    begin = Task(name="begin", inputs=read, outputs=made, algorithms=at_once)
    end = Task(name="end", inputs=kept, outputs=(), algorithms=at_once)
    return msgspec.structs.replace(instance, blocks=tuple(blocks), tasks=(begin, *instance.tasks, end))


def _carrying(rng: Random) -> Instance:
    """Draw an instance with carried blocks and few places, for a block has three bytes at most."""
    shape = Shape(tasks=4, blocks=4, digits=0, parts=False, reruns=chance(rng, 30), moves=chance(rng, 30))
    instance = with_carried(rng, adversarial(rng, shape))
    blocks = tuple(msgspec.structs.replace(b, bytes=1 + b.bytes % 3) for b in instance.blocks)
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(
                msgspec.structs.replace(a, workspace_bytes=a.workspace_bytes % 3) for a in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    small = msgspec.structs.replace(
        instance, blocks=blocks, tasks=tasks, resident_bytes=0, alignment_bytes=1, budget_bytes=2**40
    )
    return with_budget(small, least_budget(small) + rng.randint(0, 2))


@theorem("docs/formats.md", _carrying, slow=True, without=("carried", *MACHINE))
def places_of_carried_blocks(case: Case) -> Iterator[Claim]:
    """`brute_force` in divisible memory finds the least time over ordinary instances, one for each choice of
    where carried blocks are at both ends: a first task without time writes or reads what is on the device,
    and a last one reads it; the host has what must end there. In contiguous memory it finds no less, because
    there a block also ends at the offset at which it began."""
    ways = itertools.product(((True, False), (False, True), (True, True)), repeat=len(case.instance.carried))
    ordinary = [_ordinary(case.instance, places) for places in ways]
    least = min(optimum(instance, "divisible") for instance in ordinary)
    yield Claim("carried", case.optimum, least)
    yield Claim("ordinary", least, case.optimum)
    if not case.instance.has_host_budget:  # copies of a few bytes would take 512 each
        yield Claim("divisible", case.optimum, case.least("contiguous"))
        least = min(optimum(instance, "contiguous") for instance in ordinary)
        yield Claim("ordinary, contiguous", least, case.least("contiguous"))


# --- without a solver -----------------------------------------------------------------------------------


@theorem("docs/certificates.md", Shape(tasks=5, blocks=4, reruns=True))
def compute(case: Case) -> Iterator[Claim]:
    """No schedule takes less than the least times of all tasks, over the algorithms that fit beside a task's
    blocks. Tasks may run again."""
    bound = compute_bound(case.instance)
    assert bound.certificate is not None
    assert not check_certificate(case.instance, bound.certificate).reasons
    yield Claim("compute", bound.lower_bound_ns, case.optimum)


@theorem("docs/certificates.md", Shape(tasks=5, blocks=4, reruns=True))
def critical_path(case: Case) -> Iterator[Claim]:
    """First runs of each side follow each other in the order of the tasks. What a task on the host reads of
    the device's data has gone out, and what a task on the device uses of the host's has come back; what
    begins on the host is loaded before its first use on the device, and what must end on the other side is
    copied at the end. A carried block that the host alone writes last comes back at the end, or is loaded
    before its first use. Tasks that may run on either side are left out. Tasks may run again."""
    bound = critical_path_bound(case.instance)
    assert bound.certificate is not None
    assert not check_certificate(case.instance, bound.certificate).reasons
    has_copy = bound.lower_bound_ns > compute_bound(case.instance).lower_bound_ns
    yield Claim("critical path", bound.lower_bound_ns, case.optimum, has_copy)


@theorem("docs/certificates.md", PLAIN)
def single_peak(case: Case) -> Iterator[Claim]:
    """Let no task run again. What is live across task k and has no room beside k's blocks and workspace has
    left before k starts and comes back after k ends; the bound at k is the least over the algorithms of k
    that fit. It holds at every k. A block is live across k only if it was on the device before k by its own
    marks (a use, or being there at first) and has one after k (a use, or the end that must find it on the
    device)."""
    peaks = SinglePeak(case.instance)
    bounds = {k: peaks.at(k) for k in range(len(case.instance.tasks))}
    best = max(bounds, key=lambda k: bounds[k])
    is_peak = bounds[best] > peaks.before[-1]
    for k, bound in bounds.items():
        yield Claim(f"single peak at {k}", bound, case.optimum, is_peak)
    found = single_peak_bound(case.instance)
    yield Claim("the best single peak found", found.lower_bound_ns, case.optimum, is_peak)
    certificate = certify(case.instance, "single-peak", "single-peak", position=best)
    assert not check_certificate(case.instance, certificate).reasons
    yield Claim("certificate of a single peak", certificate.lower_bound_ns, case.optimum, is_peak)


def _drawn_prices(case: Case, checkpoints: Sequence[int]) -> Prices:
    """Any prices that a certificate may have: of memories, of engines at most one together."""
    rng, count = case.rng, len(checkpoints)
    one = rng.choice((1, 2, 60))
    dear = max([t or 0 for b in case.instance.blocks for t in (b.offload_ns, b.prefetch_ns)], default=0)
    least = min((b.bytes for b in case.instance.blocks), default=1)
    top = rng.choice((0, 1, max(2 * one * dear // least, 1)))
    memory = [rng.choice((0, 0, rng.randint(0, top))) for _ in range(2 * count)]
    if case.instance.engines == "single":
        engines = [[rng.randint(0, one) for _ in range(2 * count + 1)]]
    else:
        out = [rng.randint(0, one) for _ in range(2 * count + 1)]
        engines = [out, [rng.randint(0, one - price) for price in out]]
    reruns = {}
    least = with_least_reads(case.instance)
    for k, intervals in rerun_intervals(least, checkpoints).items():
        task = case.instance.tasks[k]
        for j in intervals:
            for d in (*task.must_read, *task.outputs):
                if chance(rng, 40):
                    reruns[k, j, d] = rng.randint(1, max(top, 1))
    for i, k in enumerate(checkpoints):
        task = case.instance.tasks[k]
        own = set(task.may_read).difference(task.must_hold) | set(task.outputs).difference(task.must_make)
        for d in () if case.instance.has_host_work else sorted(own):
            for t in (2 * i, 2 * i + 1):
                if chance(rng, 60):
                    reruns[k, t, d] = rng.randint(1, max(top, 1))
    host = []
    if case.instance.has_host_budget:
        host = [rng.choice((0, 0, rng.randint(0, top))) for _ in range(2 * count)]
    link, stream = list[list[int]](), list[int]()
    left = [one - sum(paid) for paid in zip(*engines, strict=True)]
    if case.instance.link is not msgspec.UNSET:
        for _ in range(rng.choice((1, 3))):
            link.append([rng.randint(0, some) for some in left])
            left = [some - price for some, price in zip(left, link[-1], strict=True)]
    if case.instance.has_host_work:
        stream = [rng.randint(0, some) for some in left]
    ends = list[int]()
    if case.instance.carried and chance(rng, 60):
        ends = [rng.choice((0, rng.randint(0, top))) for _ in range(1 + case.instance.has_host_budget)]
    survival = {}
    if not case.instance.has_host_work:
        percent = rng.choice((0, 20, 60))
        survival = drawn_survival(case.instance, checkpoints, rng, percent, max(top, 2 * one))
    return Prices(one, memory, engines, reruns, host, ends, link=link, stream=stream, survival=survival)


def _priced(case: Case) -> Iterator[Claim]:
    checkpoints = case.checkpoints()
    if not checkpoints:
        return
    for _ in range(4):
        prices = _drawn_prices(case, checkpoints)
        certificate = certify(case.instance, "prices", "drawn", checkpoints=checkpoints, prices=prices)
        if certificate.lower_bound_ns:
            assert not check_certificate(case.instance, certificate).reasons
        paid = (prices.memory, prices.host, prices.ends, prices.stream, *prices.link, *prices.engines)
        is_priced = any(map(any, paid))
        yield Claim(f"prices at {checkpoints}", certificate.lower_bound_ns, case.optimum, is_priced)


@theorem("docs/certificates.md", PLAIN)
def prices(case: Case) -> Iterator[Claim]:
    """Let no task run again. Take any tasks as checkpoints, any prices from zero on of a byte at each instant
    (of the device, of the host if that has a budget, and of what does not survive it and is needed later),
    where blocks are carried of one at both ends, and of a nanosecond of each engine in each interval, the
    latter at most one together. The Lagrangian bound of FLOW at these prices, rounded up, is at most the
    makespan of every schedule. It does not matter whether copies are interrupted, or blocks leave in part:
    the bound holds for that as well."""
    yield from _priced(case)


@theorem("docs/certificates.md", Shape(tasks=4, blocks=4, reruns=True), without=("host_work",))
def prices_with_second_runs(case: Case) -> Iterator[Claim]:
    """Tasks may run again where the instance says so. To the prices above come any prices from zero on of
    second runs, by task, interval and block: only of tasks that update nothing, in intervals between
    checkpoints in which all that the run reads is in the version that it read first and nothing that it
    writes has been updated, and after the last task only where some block must end on the device. What does
    not survive an instant and is needed later is made again after it, by a run whose inputs survive it or are
    made again after it: prices of survival may pass from a block to those that its producer reads. The bound
    at these prices, rounded up, is at most the makespan of every schedule.

    That such intervals are enough: what runs again after the last task for the sake of a copy to the host
    could be copied when it was first written, while all else waits. With whole copies that need not take less
    time in a schedule, for a copy that waits may hold up its engine; in the relaxation, where copies may be
    interrupted and intervals are as long as what moves in them, it takes no longer."""
    again = any(rerun_intervals(case.instance, range(len(case.instance.tasks))).values())
    for claim in _priced(case):
        yield claim._replace(has_row=claim.has_row and again)


# --- FLOW -----------------------------------------------------------------------------------------------


@theorem("docs/flow.md", PLAIN, without=UNKNOWN_GAPS)
def flow_lp(case: Case) -> Iterator[Claim]:
    """Let no task run again. FLOW on any tasks as checkpoints, with nothing whole, has an optimum of at most
    the makespan of every schedule; versions that the checkpoints cannot tell apart may be added up at the
    fastest rate among them. What a solver says of it, lowered by its tolerance, is at most that; and so is,
    exactly, what its dual values prove."""
    yield from _flow(case, "none")


@theorem("docs/flow.md", PLAIN, without=UNKNOWN_GAPS)
def flow_partial(case: Case) -> Iterator[Claim]:
    """As for the LP, with the choice of algorithms whole."""
    yield from _flow(case, "algorithms")


@theorem("docs/flow.md", PLAIN, without=UNKNOWN_GAPS)
def flow_milp(case: Case) -> Iterator[Claim]:
    """As for the LP, with the choice of algorithms whole, and evictions: a block is absent at an instant as a
    whole or not at all. It holds for schedules that evict whole blocks, which all are; a part is a block."""
    yield from _flow(case, "all")


@theorem("docs/flow.md", PLAIN, without=UNKNOWN_GAPS)
def unbroken_copies(case: Case) -> Iterator[Claim]:
    """As for the MILP, with these rows for the copies that take more than any share of the longest: at an
    instant, at most one of an engine has begun and is not done; one that has begun at the first instant of an
    interval and is not done at its last has the interval to itself; a block is absent only where its offload
    is done and its prefetch has not begun. They hold since a schedule has one copy at a time on an engine,
    and goes on with it until it is done."""
    long = case.rng.choice((0.0, 1 / 3, 0.9))
    yield from _flow(case, "all", unbroken=True, long=long)


# --- windows --------------------------------------------------------------------------------------------


def _windows(case: Case, whole: Integrality) -> list[Window]:
    """What is proven of windows of some length, and of those at both ends."""
    windows = Windows(case.instance, whole)
    total = len(case.instance.tasks)
    for length in {case.rng.randint(1, total), case.rng.randint(1, total)}:
        windows.prove(length, 60.0, solved, ends=chance(case.rng, 30))
    return windows.known


def _least_of(case: Case, window: Window) -> float:
    """Least time of a stretch, by plain enumeration of all schedules."""
    search = Enumeration(case.instance, _PLAIN_STATES)
    try:
        least = search.idle(window.first) if window.idle else search.window(window.first, window.until)
    except TooManyError:
        raise TooLargeError from None
    return math.inf if least is None else least


@theorem("docs/flow.md", SMALL, without=("host_work", *UNKNOWN_GAPS))
def windows(case: Case) -> Iterator[Claim]:
    """Let no task run again. The optimum of FLOW on a stretch, whose every task and the one before are
    checkpoints, and in which only the time between its ends counts, is at most the time between these two in
    every schedule. It begins with the end of the task before, or with the program; it ends with its last
    task, or, if that is the last of all, with the program, copies behind the last task included. It holds
    with anything whole that holds in FLOW, and with any blocks left out that can leave and come back."""
    for window in _windows(case, case.rng.choice(("all", "none"))):
        if not window.idle:
            kind = "head" if window.first == 0 else "tail" if window.until == len(case.instance.tasks) else ""
            yield Claim(f"{kind} {window}", window.least_ns, _least_of(case, window))


@theorem("docs/flow.md", SMALL, without=("host_work", *UNKNOWN_GAPS))
def idle_windows(case: Case) -> Iterator[Claim]:
    """Let no task run again. From the end of the task before the last so many tasks to the end of the
    schedule, the engine of prefetches is without a copy that FLOW knows for at least the optimum of the idle
    window. FLOW knows one prefetch in each stay in which the block is absent when a task that is a checkpoint
    begins or ends, and the first offload of a version that has such a stay or must end on the host; the
    checkpoints are the last tasks and the one before them. What a copy takes longer on a shared link than
    alone is time without it."""
    for window in _windows(case, case.rng.choice(("all", "none"))):
        if window.idle:
            yield Claim(f"idle {window}", window.least_ns, _least_of(case, window))


@theorem("docs/flow.md", PLAIN, without=("host_work", *UNKNOWN_GAPS))
def flow_with_windows(case: Case) -> Iterator[Claim]:
    """FLOW on any checkpoints, with a row for each of any windows and idle windows that are proven, has an
    optimum of at most the makespan of every schedule: windows may overlap, and are of any lengths."""
    whole: Integrality = case.rng.choice(("all", "none", "algorithms"))
    known = _windows(case, "all" if whole == "all" else "algorithms")
    if known:
        yield from _flow(case, whole, known, unbroken=whole == "all" and chance(case.rng, 30))


# --- other problems -------------------------------------------------------------------------------------


@theorem("docs/flow.md", Shape(tasks=4, blocks=5, digits=3, parts=False, pages=True), without=UNKNOWN_GAPS)
def pages(case: Case) -> Iterator[Claim]:
    """Whatever bounds the instance with blocks and workspaces in whole pages, the pool rounded down to pages,
    and copies that take what they took, bounds its paged schedules; and only these."""
    instance, paged = in_pages(case.instance), case.least("paged")
    whole = Case(instance, case.rng, {"divisible": paged})
    changed = instance.blocks != case.instance.blocks or instance.pool_bytes != case.instance.pool_bytes
    yield Claim("best bound", best_bound(case.instance, memory="paged").lower_bound_ns, paged, changed)
    for claim in _flow(whole, case.rng.choice(("none", "all"))):
        yield claim._replace(has_row=claim.has_row and changed)


@theorem("docs/parts.md", Shape(tasks=4, blocks=3, parts=False), without=("link", *UNKNOWN_GAPS))
def parts(case: Case) -> Iterator[Claim]:
    """FLOW with only the choice of algorithms whole, on an instance whose tensors are whole, is at most the
    makespan of every schedule of the same tensors in parts of any size, if a part's copy takes exactly its
    share of the tensor's. (Where times of parts or their loads on a link are rounded, the bound is that of
    the instance in parts.)"""
    cut, count = case.rng.randint(2, 3), len(case.instance.blocks)
    if not count:
        return
    d = case.rng.randrange(count)
    whole = _longer(case.instance, d, cut)
    pieces = Case(_cut(whole, d, cut), case.rng)
    possible = min(pieces.optimum, optimum(whole, "divisible"))
    yield from _flow(Case(whole, case.rng, {"divisible": possible}), "algorithms")
    yield from _flow(pieces, "algorithms")


def _longer(instance: Instance, d: int, factor: int) -> Instance:
    """Return the instance with a block whose size and times can be divided."""
    block = instance.blocks[d]
    longer = msgspec.structs.replace(
        block,
        bytes=block.bytes * factor,
        offload_ns=None if block.offload_ns is None else block.offload_ns * factor,
        prefetch_ns=None if block.prefetch_ns is None else block.prefetch_ns * factor,
    )
    return msgspec.structs.replace(
        instance,
        blocks=(*instance.blocks[:d], longer, *instance.blocks[d + 1 :]),
        budget_bytes=instance.budget_bytes + block.bytes * (factor - 1),
    )


def _cut(instance: Instance, d: int, count: int) -> Instance:
    """Return the instance with a block in so many equal ones."""
    block, first = instance.blocks[d], len(instance.blocks)
    piece = msgspec.structs.replace(
        block,
        bytes=block.bytes // count,
        offload_ns=None if block.offload_ns is None else block.offload_ns // count,
        prefetch_ns=None if block.prefetch_ns is None else block.prefetch_ns // count,
    )
    more = tuple(msgspec.structs.replace(piece, name=f"{block.name}.{i}") for i in range(1, count))
    added = tuple(range(first, first + count - 1))

    def with_more(touched: tuple[int, ...]) -> tuple[int, ...]:
        return (*touched, *(added if d in touched else ()))

    tasks = tuple(
        msgspec.structs.replace(
            task,
            inputs=with_more(task.inputs),
            outputs=with_more(task.outputs),
            updates=with_more(task.updates),
            algorithms=tuple(
                one
                if one.inputs is msgspec.UNSET
                else msgspec.structs.replace(one, inputs=with_more(one.inputs))
                for one in task.algorithms
            ),
        )
        for task in instance.tasks
    )
    blocks = (*instance.blocks[:d], piece, *instance.blocks[d + 1 :], *more)
    return msgspec.structs.replace(instance, blocks=blocks, tasks=tasks)


@theorem("docs/recomputation.md", Shape(tasks=4, blocks=4, reruns=True), without=("host_work",))
def flow_with_second_runs(case: Case) -> Iterator[Claim]:
    """Tasks may run again where the instance says so. FLOW with second runs in the intervals between first
    runs, on any tasks as checkpoints, with anything whole or nothing, has an optimum of at most the makespan
    of every schedule. Intervals in which a task may run again are as for prices with second runs."""
    integrality: Integrality = case.rng.choice(("none", "algorithms", "all"))
    checkpoints, possible = case.checkpoints(), case.optimum
    if not checkpoints:
        return
    again = any(rerun_intervals(case.instance, checkpoints).values())
    bound = recompute_bound(case.instance, checkpoints, integrality=integrality)
    if bound is None:
        return
    yield Claim(f"{bound.bound_by} at {checkpoints}", bound.lower_bound_ns, possible, again)
    if bound.certificate is not None:
        assert not check_certificate(case.instance, bound.certificate).reasons
        yield Claim("certified", bound.certificate.lower_bound_ns, possible, again)


@theorem(
    "docs/flow.md",
    Shape(tasks=4, blocks=3, parts=False, reruns=True),
    without=("host_work", "link", "own_outputs", "takes_over"),
)
def equal_parts(case: Case) -> Iterator[Claim]:
    """As for FLOW with second runs, with evictions in shares and equal parts of a tensor as one block. Parts
    are equal if they have the same size, tasks and both ends treat them alike, and their copies take the same
    time but for a nanosecond, of which the least counts. What prices of the block become for its parts
    proves the same of the instance as it is."""
    count, rng = len(case.instance.blocks), case.rng
    if not count:
        return
    d, cut = rng.randrange(count), rng.randint(2, 3)
    pieces = _as_tensor(_cut(_longer(case.instance, d, cut), d, cut), d, cut - 1, int(chance(rng, 50)))
    alone = Case(pieces, rng)
    checkpoints, possible = alone.checkpoints(), alone.optimum
    if not checkpoints:
        return
    integrality: Integrality = rng.choice(("none", "algorithms"))
    model = recompute_model(pieces, checkpoints, integrality)
    bound = proven_with_reruns(pieces, solve_linear(model.linear), model, integrality, "highs")
    if bound is None:
        return
    together = any(len(parts) > 1 for parts in model.parts)
    yield Claim(f"{bound.bound_by} at {checkpoints}", bound.lower_bound_ns, possible, together)
    if bound.certificate is not None:
        assert not check_certificate(pieces, bound.certificate).reasons
        yield Claim("certified", bound.certificate.lower_bound_ns, possible, together)


def _as_tensor(instance: Instance, d: int, more: int, longer_ns: int) -> Instance:
    """Return the instance with a block and so many of the last ones as parts of a tensor.

    Copies of the block take so many nanoseconds longer.
    """
    blocks = list(instance.blocks)
    step = ceil_to(blocks[d].bytes, instance.alignment_bytes)
    for i, part in enumerate((d, *range(len(blocks) - more, len(blocks)))):
        later = 0 if i else longer_ns
        offload_ns, prefetch_ns = blocks[part].offload_ns, blocks[part].prefetch_ns
        blocks[part] = msgspec.structs.replace(
            blocks[part],
            tensor="parts",
            begin=i * step,
            offload_ns=None if offload_ns is None else offload_ns + later,
            prefetch_ns=None if prefetch_ns is None else prefetch_ns + later,
        )
    return msgspec.structs.replace(instance, blocks=tuple(blocks))


def _staying(rng: Random) -> Instance:
    """Return an instance in which nothing can be copied, nor has to be."""
    instance = without_copies(adversarial(rng, Shape(tasks=6, blocks=5, reruns=True)))
    blocks = tuple(
        msgspec.structs.replace(block, finally_="anywhere") if block.finally_ == "host" else block
        for block in instance.blocks
    )
    return msgspec.structs.replace(instance, blocks=blocks)


@theorem("docs/flow.md", _staying, without=("host_work",))
def room_between_checkpoints(case: Case) -> Iterator[Claim]:
    """Nothing returns from the host, and tasks may run again where the instance says so. FLOW with second
    runs and whole columns, in which each run between two checkpoints fits beside what is kept there, has an
    optimum of at most the makespan of every schedule."""
    checkpoints, possible = case.checkpoints(), case.optimum
    if len(checkpoints) < 2 or not case.instance.nothing_returns:
        return
    model = recompute_model(case.instance, checkpoints, "all", between=True)
    bound = proven_with_reruns(case.instance, solve_linear(model.linear), model, "all", "highs")
    if bound is not None:
        kept = "beside" in model.rows
        yield Claim(f"{bound.bound_by} at {checkpoints}", bound.lower_bound_ns, possible, kept)


@theorem(
    "docs/several-gpus.md",
    lambda rng: adversarial_cluster(rng, searchable=True),
    slow=True,
    without=KEYS,
)
def cluster_rows(case: Case) -> Iterator[Claim]:
    """GPUs of one kind run the same tasks, under the budget each, and none runs again. What gradients take on
    engines, cores and network from where they are complete, is at most the iteration. FLOW of one GPU with
    the gradients on its engines and the bus of a node bounds it as well: a linear program has rows of the
    bus, and a model with whole columns has prices of these rows. The bus is looked at before and after an
    instant, by positions: a gradient whose task ends at or before the instant may have passed before it. The
    judge searches two GPUs of one node that add up gradients on the host."""
    instance = case.instance
    try:
        found = cluster_brute_force(instance, most_states=_STATES)
    except TimeoutError:
        raise TooLargeError from None
    possible = math.inf if found is None else found.makespan_ns
    gradients = instance.cluster is not msgspec.UNSET and bool(instance.cluster.gradients)
    yield Claim("gradients", gradient_bound_ns(instance), possible, gradients)
    yield Claim("critical path", critical_path_bound(instance).lower_bound_ns, possible)
    integrality: Integrality = case.rng.choice(("none", "none", "all"))
    bound = cluster_flow_bound(instance, case.checkpoints(), integrality=integrality)
    if bound is not None:
        yield Claim(bound.bound_by, bound.lower_bound_ns, possible)


@theorem(
    "docs/several-gpus.md",
    lambda rng: adversarial_cluster(rng, searchable=False),
    slow=True,
    without=KEYS,
)
def cluster_rows_against_schedules(case: Case) -> Iterator[Claim]:
    """The same for several nodes, for rings of NVLink and for up to eight GPUs, where no search ends: the
    judges are the schedules that methods find, each of which has passed the checker."""
    instance = with_least_budget(case.instance)
    found = [solve(instance, name, time_limit=10.0) for name in ("modnn", "vdnn-all-m", "save-on-cpu-rule")]
    possible = min((r.makespan_ns for r in found if r.makespan_ns is not None), default=math.inf)
    assert instance.cluster is not msgspec.UNSET
    gradients = bool(instance.cluster.gradients) and instance.gpus > 1
    yield Claim("gradients", gradient_bound_ns(instance), possible, gradients)
    integrality: Integrality = case.rng.choice(("none", "none", "all"))
    bound = cluster_flow_bound(instance, case.checkpoints(), integrality=integrality)
    if bound is not None:
        yield Claim(bound.bound_by, bound.lower_bound_ns, possible, gradients)


def with_least_budget(instance: Instance) -> Instance:
    """Return the instance with a budget that every command takes."""
    return with_budget(instance, max(instance.budget_bytes, least_budget(instance)))


@theorem("docs/cp-sat.md", PLAIN, without=("host_work", *UNKNOWN_GAPS))
def ticks_of_cp_sat(case: Case) -> Iterator[Claim]:
    """Let no task run again. CP-SAT's bound on the interval model, with sizes in units and times in ticks,
    both rounded down, is at most the makespan of every schedule. Where neither was rounded, host memory has
    no budget and no block is carried, its optimum is that of divisible memory, and what it calls infeasible
    has no schedule. (Carried blocks may begin on the device there, and end anywhere.)"""
    possible = case.optimum
    found = solve_divisible(case.instance, Limits(time_limit=2.0))  # what it has until then is a bound, too
    if found.status == "INFEASIBLE":
        yield Claim("infeasible by CP-SAT", math.inf, possible)
        return
    assert found.lower_bound_ns is not None
    yield Claim(f"CP-SAT, exact: {found.exact}", found.lower_bound_ns, possible, not found.exact)
    is_relaxed = case.instance.has_host_budget or bool(case.instance.carried) or case.instance.is_coupled
    if found.exact and found.status == "OPTIMAL" and not is_relaxed:
        yield Claim("what CP-SAT cannot beat", possible, found.lower_bound_ns, has_row=False)


TINY = Thresholds(first=2, large=3, huge=5, window=1, ends=(1, 2), finding=(1, 2), choosing=2, long=0.0)
"""Thresholds under which tiny instances count as of few tasks, of many and of thousands."""


@theorem("docs/flow.md", Shape(tasks=7, blocks=5), slow=True)
def refined(case: Case) -> Iterator[Claim]:
    """The best of all bounds in the order in which `pebbler bound --time-limit` tries them, with every kind
    of model on few tasks, is at most the makespan of every schedule."""
    possible = case.optimum
    bound = refine_bound(case.instance, 20.0, thresholds=TINY)
    yield Claim(bound.bound_by, bound.lower_bound_ns, possible, not bound.certified)
    if bound.certificate is not None:
        assert not check_certificate(case.instance, bound.certificate).reasons
        yield Claim("certified", bound.certificate.lower_bound_ns, possible)


def _end_to_end(rng: Random) -> Instance:
    shape = Shape(
        tasks=5, blocks=4, digits=rng.choice((0, 11)), reruns=chance(rng, 30), moves=chance(rng, 30)
    )
    return with_least_budget(adversarial(rng, shape))


_BOUNDS = ("compute", "critical-path", "single-peak", "flow", "cp-sat")
"""How the names of bounds begin that hold in divisible memory."""


@theorem("docs/chain.md", _end_to_end, slow=True)
def methods(case: Case) -> Iterator[Claim]:
    """Every schedule of every method passes the checker; it takes no less than exhaustive search in divisible
    memory finds, and no less than any method has proven; what a method calls infeasible, no method solves.
    Bounds other than those of searches for contiguous memory are at most the optimum in divisible memory, so
    that what is called optimal with them is."""
    instance, possible = case.instance, case.optimum
    cut = in_parts(instance)
    names = [method.name for method in list_methods() if cut or method.transform is not with_parts]
    results = [solve(instance, name, time_limit=5.0) for name in case.rng.sample(names, 4)]
    best = min((r.makespan_ns for r in results if r.makespan_ns is not None), default=math.inf)
    for r in results:
        if r.schedule is not None:
            reasons = check(instance, r.schedule).reasons
            assert not reasons, (r.method, reasons, instance)
            yield Claim(f"exhaustive search, before {r.method}", possible, r.schedule.makespan_ns)
        proven_ns = math.inf if r.status is Status.INFEASIBLE else r.lower_bound_ns
        yield Claim(f"{r.status} by {r.method}, {r.bound_by}", proven_ns, best, has_row=False)
        if r.certified or r.bound_by.startswith(_BOUNDS):
            yield Claim(f"{r.bound_by} of {r.method}", r.lower_bound_ns, possible, has_row=False)
