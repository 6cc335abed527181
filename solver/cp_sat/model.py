"""CP-SAT: the joint problem in divisible memory as optional intervals, by constraint programming.

The model shares only the instance with other exact methods, so that each can find the other's mistakes.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import UNSET

from ...heuristics.loading import loads
from ...heuristics.methods import Answer, Limits, Refusal, register
from ...instances.arguments import require_fixed_reads
from ...instances.instance import Instance
from ...instances.memory import footprint
from ...validate.bounds.machine import on_link_alone
from .decode import Clock, Gap, Plan, decode, encode, gaps_of
from .interrupts import load_cp_sat, solve_interruptibly

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_LOADING = 0.2
"""Upper bound on the time in which CP-SAT loads a model, as a share of the time to build it.

CP-SAT looks at the clock only after loading. The share was at most 0.15 on networks of 1,700 to 9,600 tasks.
"""

_LONGEST = 2**30
"""Greatest number of units of time that all operations together may take."""

_SAFE = 2**31
"""Coefficient above which OR-Tools 9.15 may call a wrong answer optimal (google/or-tools #5293)."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The answer of CP-SAT for an instance in divisible memory.

    Attributes
    ----------
    status
        The solver's status: ``OPTIMAL``, ``FEASIBLE``, ``INFEASIBLE`` or ``UNKNOWN``.
    lower_bound_ns
        A lower bound in nanoseconds in every memory model; None when there is no schedule.
    plan
        The best plan found; None without one.
    exact
        Whether no time and no size was rounded, host memory never ends, and no copy delays what runs beside
        it, so that an optimal plan is an optimal divisible schedule. If not, the plan solves a relaxed
        problem, and its length is only a bound.
    interrupted
        Whether Ctrl-C ended the search. If not, the search was done, or its time was over.
    """

    status: str
    lower_bound_ns: int | None
    plan: Plan | None
    exact: bool
    interrupted: bool


@register("cp-sat", "interval model in divisible memory, for small instances", "this project", shown="named")
@loads(load_cp_sat)
def _method(instance: Instance, limits: Limits) -> Answer:
    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    found = solve_divisible(instance, limits)
    stopped_by = _why(found, instance)
    schedule = None
    if found.plan is not None:
        try:
            schedule = decode(instance, found.plan, limits.memory, "cp-sat", deadline=deadline)
        except Refusal as refusal:
            stopped_by = stopped_by if found.interrupted else str(refusal)
    return Answer(
        schedule,
        stopped_by,
        found.lower_bound_ns,
        None if found.lower_bound_ns is None else "cp-sat",
        infeasible=found.status == "INFEASIBLE",
    )


def _why(found: Relaxation, instance: Instance) -> str:
    """Return why the search ended: the proof that it found, or the limit that it reached."""
    if found.status == "INFEASIBLE":
        return "infeasible in divisible memory"  # a problem that asks for less has no schedule, either
    if found.status == "OPTIMAL":
        if instance.has_host_budget:
            return "optimal where each copy has host memory for itself"
        if instance.is_coupled:
            return "optimal where no copy delays what runs beside it"
        return "optimal in divisible memory" if found.exact else "optimal for times or sizes rounded down"
    return "interrupted" if found.interrupted else "time limit"


def solve_divisible(instance: Instance, limits: Limits) -> Relaxation:
    """Solve an instance in divisible memory: algorithms, evictions and the times of all operations.

    One worker with a given seed and no time limit is deterministic. An interrupt (Ctrl-C) ends the search
    with the best plan so far. The time limit covers building the model, trying the warm start, and the
    search.

    Parameters
    ----------
    instance
        An instance without recomputable tasks.
    limits
        The warm start may be any schedule of the instance that moves nothing inside the device.

    Raises
    ------
    Refusal
        When there are recomputable tasks or tasks that may run on the host, when the time is over before the
        model is built, or when CP-SAT refuses the model.
    """
    if any(task.recomputable for task in instance.tasks):
        raise Refusal("cp-sat: recomputation is not modelled yet")
    if any(algorithm.on == "host" for task in instance.tasks for algorithm in task.algorithms):
        raise Refusal("cp-sat: work on the host is not modelled yet; take flow or local-search")
    require_fixed_reads(instance, "the interval model")  # its intervals lie between uses that are known
    from ortools.sat.python import cp_model

    deadline = math.inf if limits.time_limit is None else time.monotonic() + limits.time_limit
    model = DivisibleModel(instance, deadline)
    interrupted = limits.warm_start is not None and model.hint(
        encode(instance, limits.warm_start, model.clock), limits
    )
    solver = _solver(limits, 0.0 if interrupted else deadline - time.monotonic())
    status, stopped = solve_interruptibly(solver, model.cp)
    if status == cp_model.MODEL_INVALID:
        raise Refusal(f"cp-sat: OR-Tools refuses the model: {model.cp.validate().splitlines()[0]}")
    solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Relaxation(
        status=solver.status_name(status),
        lower_bound_ns=None if status == cp_model.INFEASIBLE else model.bound_ns(solver),
        plan=model.plan(solver) if solved else None,
        exact=model.is_exact,
        interrupted=interrupted or stopped,
    )


def _solver(limits: Limits, seconds: float) -> cp_model.CpSolver:
    """Return a solver with a time limit in seconds; infinity means no limit."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = limits.seed
    if math.isfinite(seconds):
        solver.parameters.max_time_in_seconds = max(seconds, 0.0)
    return solver


class DivisibleModel:
    """The model: one method for each family of rules, with the family's number in docs/cp-sat.md.

    `rows` maps each family to its constraints.

    Times are in units of `clock`, and sizes in `unit` bytes. Both are rounded down, and so is the pool. The
    sum of floors is at most the floor of the sum, so that every schedule satisfies the model (docs/cp-sat.md
    has the proof). Copies take their time with a shared link to themselves, and slow nothing down. If nothing
    is rounded (`is_exact`), the model's optimum is that of divisible memory.
    Memory is used by

    - a workspace, while its task runs;
    - a block that is kept from the start of one use to the start of the next;
    - a block that leaves: from the start of a use until that use and its offload have ended;
    - a block that returns: from the start of its prefetch to the start of its use.

    Each of these takes some time, since every operation takes at least one unit.
    """

    def __init__(self, instance: Instance, deadline: float = math.inf) -> None:
        from ortools.sat.python import cp_model

        began = time.monotonic()
        self.instance = instance = on_link_alone(instance)
        self.deadline = deadline
        self.cp = cp_model.CpModel()
        self.gaps = gaps_of(instance)
        self.clock = _clock(instance, self.gaps)
        self.horizon = _horizon(*_durations(instance, self.gaps), self.clock)
        scratch = [a.workspace_bytes for task in instance.tasks for a in task.algorithms]
        exact = math.gcd(*(block.bytes for block in instance.blocks), *scratch) or 1
        self.unit = exact
        while instance.pool_bytes // self.unit >= _SAFE:
            self.unit *= 2
        self.capacity = max(instance.pool_bytes // self.unit, 0)
        self.is_exact = self.unit == exact and not self.clock.rounds
        self.is_exact = self.is_exact and not (instance.has_host_budget or instance.is_coupled)
        # of what never fits, no more is taken than says so
        self.sizes = [min(block.bytes // self.unit, self.capacity + 1) for block in instance.blocks]
        # no size is above the capacity by more than one, what a task needs is within it, and no time is
        # above the horizon by more than one
        assert max(self.horizon + 1, self.capacity + 1) < _SAFE
        self.end = self.time("end")
        self.stays: list[tuple[cp_model.IntervalVar, int]] = []
        self.copies: dict[str, list[cp_model.IntervalVar]] = defaultdict(list)
        self.chosen: list[dict[int, cp_model.IntVar]] = []
        self.starts: list[cp_model.IntVar] = []
        self.ends: list[cp_model.IntVar] = []
        self.offloaded: dict[tuple[int, int], tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        self.evicted: dict[Gap, tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        self.rows: dict[str, range] = {}
        for rule in (
            self.tasks_run_in_order,
            self.a_version_is_offloaded_at_most_once,
            self.blocks_leave_and_return_between_uses,
            self.an_offload_serves_an_eviction_or_the_end,
            self.blocks_go_after_their_last_use,
            self.engines_copy_one_block_at_a_time,
            self.memory_is_limited,
            self.memory_is_limited_while_a_task_runs,
            self.host_memory_is_limited,
            self.minimise_the_makespan,
        ):
            first = len(self.cp.proto.constraints)
            rule()
            self.rows[rule.__name__] = range(first, len(self.cp.proto.constraints))
        self.loading = _LOADING * (time.monotonic() - began)
        self.require_time(self.loading)

    # --- variables --------------------------------------------------------------------------------

    def time(self, name: str) -> cp_model.IntVar:
        """Return a variable for an instant, after checking the time limit."""
        self.require_time()
        return self.cp.new_int_var(0, self.horizon, name)

    def require_time(self, seconds: float = 0.0) -> None:
        """Refuse if less than `seconds` is left, because nothing has been searched yet."""
        if time.monotonic() + seconds > self.deadline:
            raise Refusal("time limit: it was over before the model of cp-sat was built and loaded")

    def stay(
        self,
        name: str,
        start: cp_model.IntVar | int,
        end: cp_model.IntVar,
        when: cp_model.LiteralT,
        size: int,
    ) -> None:
        """(3): Memory is in use from a start to a later end if the literal holds."""
        self.require_time()
        length = self.cp.new_int_var(1, self.horizon + 1, f"length of {name}")
        self.stays.append((self.cp.new_optional_interval_var(start, length, end, when, name), size))

    def copy(self, name: str, engine: str, nanoseconds: int) -> tuple[cp_model.IntVar, cp_model.IntVar, int]:
        """(2): A copy that happens ends before the end of all.

        Returns whether the copy happens, when it starts, and how long it takes.
        """
        happens, start = self.cp.new_bool_var(name), self.time(f"start of {name}")
        length = self.clock.duration(nanoseconds)
        engine = "copy" if self.instance.engines == "single" else engine
        self.copies[engine].append(self.cp.new_optional_fixed_size_interval_var(start, length, happens, name))
        self.cp.add(start + length <= self.end).only_enforce_if(happens)
        return happens, start, length

    # --- rules ------------------------------------------------------------------------------------

    def tasks_run_in_order(self) -> None:
        """(1): Each task runs with one of the algorithms that fit, after the task before it."""
        for k, task in enumerate(self.instance.tasks):
            start, end = self.time(f"start of task {k}"), self.time(f"end of task {k}")
            chosen = {}
            for a, algorithm in enumerate(task.algorithms):
                if footprint(self.instance, k) + algorithm.workspace_bytes > self.instance.pool_bytes:
                    continue
                chosen[a] = self.cp.new_bool_var(f"task {k} runs with algorithm {a}")
                run = self.cp.new_optional_interval_var(
                    start, self.clock.duration(algorithm.duration_ns), end, chosen[a], f"task {k} by {a}"
                )
                if algorithm.workspace_bytes:
                    self.stays.append((run, algorithm.workspace_bytes // self.unit))
            self.cp.add_exactly_one(list(chosen.values()))
            if k:
                self.cp.add(self.ends[-1] <= start)
            self.starts.append(start)
            self.ends.append(end)
            self.chosen.append(chosen)
        self.cp.add(self.ends[-1] <= self.end)

    def a_version_is_offloaded_at_most_once(self) -> None:
        """(4): An offload starts once its version is written; what must end on the host is offloaded."""
        for d, (block, writers) in enumerate(zip(self.instance.blocks, self.instance.writers, strict=True)):
            if block.offload_ns is not None:
                for version, writer in enumerate(writers, 1):
                    name = f"offload of block {d}, version {version}"
                    happens, start, length = self.copy(name, "d2h", block.offload_ns)
                    self.cp.add(start >= self.ends[writer]).only_enforce_if(happens)
                    if version < len(writers):
                        following = self.starts[writers[version]]
                        self.cp.add(start + length <= following).only_enforce_if(happens)
                    self.offloaded[d, version] = happens, start
            if block.finally_ == "host" and writers:
                last = self.offloaded.get((d, len(writers)))
                self.cp.add_bool_or([False if last is None else last[0]])

    def blocks_leave_and_return_between_uses(self) -> None:
        """(5): In a gap, a block is kept, or leaves once the host has it and comes back before its use."""
        for gap in self.gaps:
            block = self.instance.blocks[gap.block]
            name = f"gap of block {gap.block} before task {gap.until}"
            size = self.sizes[gap.block]
            until = self.starts[gap.until] if gap.until < len(self.starts) else self.end
            since: cp_model.IntVar | int = self.starts[gap.after] if gap.after >= 0 else -1
            stored = self.offloaded.get((gap.block, gap.version))
            may_stay = gap.after >= 0 or block.initially != "host"
            if block.prefetch_ns is None or (gap.version and stored is None):
                self.stay(name, since, until, True, size)
                self.cp.add_bool_or([may_stay])
                continue
            evicted, back, length = self.copy(f"prefetch in {name}", "h2d", block.prefetch_ns)
            self.evicted[gap] = evicted, back
            self.cp.add(back + length <= until).only_enforce_if(evicted)
            self.stay(f"return in {name}", back, until, evicted, size)
            if may_stay:
                self.stay(name, since, until, ~evicted, size)
            else:
                self.cp.add(evicted == 1)
            if gap.after < 0:
                continue
            away = self.ends[gap.after]
            if stored is not None:
                away = self.time(f"departure in {name}")
                self.cp.add(away >= self.ends[gap.after])
                self.cp.add_implication(evicted, stored[0])
                self.cp.add(away >= stored[1] + self.clock.duration(block.offload_ns or 0)).only_enforce_if(
                    evicted
                )
            self.cp.add(back >= away).only_enforce_if(evicted)
            self.stay(f"departure in {name}", since, away, evicted, size)

    def an_offload_serves_an_eviction_or_the_end(self) -> None:
        """(6): An offloaded version is evicted in one of its gaps, unless it must end on the host."""
        served: dict[tuple[int, int], list[cp_model.IntVar]] = defaultdict(list)
        for gap, (evicted, _) in self.evicted.items():
            served[gap.block, gap.version].append(evicted)
        for (d, version), (happens, _) in self.offloaded.items():
            last = version == len(self.instance.writers[d])
            if not (last and self.instance.blocks[d].finally_ == "host"):
                self.cp.add_bool_or([*served[d, version], ~happens])

    def blocks_go_after_their_last_use(self) -> None:
        """(7): A block that need not end on the device leaves after its last use and last offload."""
        for d, (block, uses) in enumerate(zip(self.instance.blocks, self.instance.uses, strict=True)):
            if not uses or block.finally_ == "device":
                continue
            gone = self.ends[uses[-1]]
            stored = self.offloaded.get((d, len(self.instance.writers[d])))
            if block.finally_ == "host" and stored is not None:
                gone = self.time(f"end of block {d}")
                self.cp.add(gone >= self.ends[uses[-1]])
                self.cp.add(gone >= stored[1] + self.clock.duration(block.offload_ns or 0))
            self.stay(f"end of block {d}", self.starts[uses[-1]], gone, True, self.sizes[d])

    def engines_copy_one_block_at_a_time(self) -> None:
        """(8): Copies on one engine do not overlap and are not interrupted."""
        for intervals in self.copies.values():
            self.cp.add_no_overlap(intervals)

    def memory_is_limited(self) -> None:
        """(9): At every instant, the data in memory fits the pool."""
        intervals = [interval for interval, _ in self.stays]
        self.cp.add_cumulative(intervals, [size for _, size in self.stays], self.capacity)

    def memory_is_limited_while_a_task_runs(self) -> None:
        """(10): Blocks kept across a task fit beside it; this is implied, but linear in the decisions."""
        from ortools.sat.python import cp_model

        begins: dict[int, list[Gap]] = defaultdict(list)
        for gap in self.gaps:
            begins[gap.after + 1].append(gap)
        across: list[Gap] = []
        for k, task in enumerate(self.instance.tasks):
            self.require_time()
            across = [gap for gap in (*across, *begins[k]) if k < gap.until]
            blocks = sum(self.sizes[d] for d in task.blocks)
            literals, sizes = [], []
            for a, chosen in self.chosen[k].items():
                literals.append(chosen)
                sizes.append(blocks + task.algorithms[a].workspace_bytes // self.unit)
            kept = 0
            for gap in across:
                kept += self.sizes[gap.block]
                if gap in self.evicted:
                    literals.append(self.evicted[gap][0])
                    sizes.append(-self.sizes[gap.block])
            self.cp.add(cp_model.LinearExpr.weighted_sum(literals, sizes) <= self.capacity - kept)

    def host_memory_is_limited(self) -> None:
        """(12): What is larger than host memory does not come back, unless that takes no time."""
        if self.instance.host_budget_bytes is not UNSET:
            for gap, (evicted, _) in self.evicted.items():
                block = self.instance.blocks[gap.block]
                if block.prefetch_ns and block.bytes > self.instance.host_budget_bytes:
                    self.cp.add(evicted == 0)

    def minimise_the_makespan(self) -> None:
        """(11): The makespan is the end rounded down to ticks."""
        self.ticks = self.cp.new_int_var(0, self.horizon // self.clock.scale, "makespan")
        self.cp.add(self.end <= self.ticks * self.clock.scale + (self.clock.scale - 1))
        self.cp.minimize(self.ticks)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, solver: cp_model.CpSolver) -> Plan:
        """Return the solver's decisions."""
        blocks, length = self.instance.blocks, self.clock.duration
        offloads, prefetches = {}, {}
        for (d, version), (happens, start) in self.offloaded.items():
            if solver.boolean_value(happens):
                begin = solver.value(start)
                offloads[d, version] = begin, begin + length(blocks[d].offload_ns or 0)
        for gap, (evicted, back) in self.evicted.items():
            if solver.boolean_value(evicted):
                begin = solver.value(back)
                prefetches[gap] = begin, begin + length(blocks[gap.block].prefetch_ns or 0)
        return Plan(
            tuple(
                next(a for a, literal in chosen.items() if solver.boolean_value(literal))
                for chosen in self.chosen
            ),
            tuple(
                (solver.value(start), solver.value(end))
                for start, end in zip(self.starts, self.ends, strict=True)
            ),
            offloads,
            prefetches,
        )

    def hint(self, plan: Plan | None, limits: Limits) -> bool:
        """Start from a plan: fix its decisions, let the solver work out the rest, and hint all of it.

        CP-SAT keeps a hint only if the hint is complete and satisfies every rule. This step takes at most
        half of the remaining time, and is left out if that is too little. Returns whether it was interrupted.
        """
        from ortools.sat.python import cp_model

        seconds = (self.deadline - time.monotonic()) / 2
        if plan is None or seconds < self.loading:
            return False
        values: dict[cp_model.IntVar, int] = {}
        for k, (begin, end) in enumerate(plan.runs):
            values |= {self.starts[k]: begin, self.ends[k]: end}
            values |= {literal: int(a == plan.algorithms[k]) for a, literal in self.chosen[k].items()}
        for key, (happens, start) in self.offloaded.items():
            values |= {happens: int(key in plan.offloads), start: plan.offloads.get(key, (0, 0))[0]}
        for gap, (evicted, back) in self.evicted.items():
            values |= {evicted: int(gap in plan.prefetches), back: plan.prefetches.get(gap, (0, 0))[0]}
        trial = self.cp.clone()
        for variable, value in values.items():
            trial.add_hint(trial.get_int_var_from_proto_index(variable.index), value)
        solver = _solver(limits, seconds)
        solver.parameters.fix_variables_to_their_hinted_value = True
        status, interrupted = solve_interruptibly(solver, trial)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            for i, value in enumerate(solver.response_proto.solution):
                self.cp.add_hint(self.cp.get_int_var_from_proto_index(i), value)
        return interrupted

    def bound_ns(self, solver: cp_model.CpSolver) -> int:
        """Return the solver's bound in nanoseconds: whole ticks, each of which a double holds exactly."""
        ticks = solver.best_objective_bound
        return self.clock.tick * max(math.ceil(ticks - 1e-6), 0) if math.isfinite(ticks) else 0


def _clock(instance: Instance, gaps: tuple[Gap, ...]) -> Clock:
    """Return the finest clock for which the horizon is far below the largest number of CP-SAT."""
    runs, copies = _durations(instance, gaps)
    tick = exact = math.gcd(*chain.from_iterable(runs), *copies) or 1
    while True:
        small = sum(min(times) < tick for times in runs) + sum(ns < tick for ns in copies)
        clock = Clock(tick, small + 1, rounds=tick > exact)
        if _horizon(runs, copies, clock) < _LONGEST:
            return clock
        tick *= 2


def _horizon(runs: list[list[int]], copies: list[int], clock: Clock) -> int:
    """Return the time of all possible operations in a row: no plan without needless waits is longer."""
    return sum(max(map(clock.duration, times)) for times in runs) + sum(map(clock.duration, copies))


def _durations(instance: Instance, gaps: tuple[Gap, ...]) -> tuple[list[list[int]], list[int]]:
    """Return, per task, the durations of its algorithms, and the durations of all possible copies."""
    runs = [[algorithm.duration_ns for algorithm in task.algorithms] for task in instance.tasks]
    copies = [instance.blocks[gap.block].prefetch_ns or 0 for gap in gaps]
    for block, writers in zip(instance.blocks, instance.writers, strict=True):
        copies += [block.offload_ns or 0] * len(writers)
    return runs, copies
