"""CP-SAT's model as docs/cp-sat.md has it, number by number, against the one that the library builds."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from ortools.sat.python import cp_model

from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import plain, twisted
from pebbler.solver.cp_sat.model import DivisibleModel

from ...samples import chunks
from ...validate.hostile import hostile_instance


def built(instance: Instance, tick: int, scale: int, unit: int, horizon: int) -> cp_model.CpModel:
    """The model of the page; ticks are of `tick` nanoseconds and have `scale` units, sizes `unit` bytes."""
    model, n = cp_model.CpModel(), len(instance.tasks)
    names = iter(range(10**6))
    capacity = max(instance.pool_bytes // unit, 0)
    size = [min(block.bytes // unit, capacity + 1) for block in instance.blocks]
    memory: list[tuple[cp_model.IntervalVar, int]] = []
    engines: dict[str, list[cp_model.IntervalVar]] = defaultdict(list)

    def units(nanoseconds: int | None) -> int:
        return scale * ((nanoseconds or 0) // tick) or 1

    def at() -> cp_model.IntVar:
        return model.new_int_var(0, horizon, f"t{next(names)}")

    def flag() -> cp_model.IntVar:
        return model.new_bool_var(f"b{next(names)}")

    def takes(
        start: cp_model.LinearExprT, end: cp_model.LinearExprT, bytes_: int, when: cp_model.LiteralT
    ) -> None:
        length = model.new_int_var(1, horizon + 1, f"l{next(names)}")  # (3)
        memory.append((model.new_optional_interval_var(start, length, end, when, f"m{next(names)}"), bytes_))

    def copies(engine: str, length: int) -> tuple[cp_model.IntVar, cp_model.IntVar]:
        happens, start = flag(), at()
        model.add(start + length <= end_of_all).only_enforce_if(happens)  # (2)
        name = "one" if instance.engines == "single" else engine
        copy = model.new_optional_fixed_size_interval_var(start, length, happens, f"c{next(names)}")
        engines[name].append(copy)
        return happens, start

    end_of_all = at()
    starts, ends = [at() for _ in range(n)], [at() for _ in range(n)]
    chosen: list[dict[int, cp_model.IntVar]] = []
    for k, task in enumerate(instance.tasks):  # (1)
        room = instance.pool_bytes - sum(instance.blocks[b].bytes for b in task.blocks)
        chosen.append({a: flag() for a, run in enumerate(task.algorithms) if run.workspace_bytes <= room})
        model.add_exactly_one(chosen[k].values())
        for a, literal in chosen[k].items():
            run = task.algorithms[a]
            model.add(ends[k] == starts[k] + units(run.duration_ns)).only_enforce_if(literal)
            takes(starts[k], ends[k], run.workspace_bytes // unit, literal)
        if k:
            model.add(ends[k - 1] <= starts[k])
    model.add(ends[-1] <= end_of_all)

    across: list[tuple[int, int, int, cp_model.IntVar | int]] = []
    for b, block in enumerate(instance.blocks):
        uses = [k for k, task in enumerate(instance.tasks) if b in task.blocks]
        writers = [k for k, task in enumerate(instance.tasks) if b in (*task.outputs, *task.updates)]
        out: dict[int, tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        to_host = block.finally_ == "host" and bool(writers)
        for v, writer in enumerate(writers, 1) if block.offload_ns is not None else ():  # (4)
            out[v] = happens, start = copies("out", units(block.offload_ns))
            model.add(start >= ends[writer]).only_enforce_if(happens)
            if v < len(writers):
                model.add(start + units(block.offload_ns) <= starts[writers[v]]).only_enforce_if(happens)
            elif to_host:
                model.add(happens == 1)
        if to_host and not out:
            model.add_bool_or([])
        evictions: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        marks = [-1, *uses] if block.initially != "absent" else [*uses]
        marks += [n] if block.finally_ == "device" else []
        for u, until in pairwise(marks):  # (5)
            v = sum(writer <= u for writer in writers)
            since = starts[u] if u >= 0 else -1
            before = starts[until] if until < n else end_of_all
            must_leave = u == -1 and block.initially == "host"
            if block.prefetch_ns is None or (v > 0 and v not in out):
                across.append((u, until, b, 0))
                takes(since, before, size[b], True)
                if must_leave:
                    model.add_bool_or([])
                continue
            evicted, back = copies("back", units(block.prefetch_ns))
            across.append((u, until, b, evicted))
            evictions[v].append(evicted)
            model.add(back + units(block.prefetch_ns) <= before).only_enforce_if(evicted)
            takes(back, before, size[b], evicted)
            takes(since, before, size[b], ~evicted)
            if must_leave:
                model.add(evicted == 1)
            if u >= 0:
                left = at()
                model.add(left >= ends[u])
                if v:
                    model.add_implication(evicted, out[v][0])
                    model.add(left >= out[v][1] + units(block.offload_ns)).only_enforce_if(evicted)
                else:
                    model.add(left == ends[u])
                takes(since, left, size[b], evicted)
                model.add(back >= left).only_enforce_if(evicted)
            ends_there = instance.host_budget_bytes is not UNSET and block.bytes > instance.host_budget_bytes
            if ends_there and block.prefetch_ns:  # (12)
                model.add(evicted == 0)
        for v, (happens, _) in out.items():  # (6)
            if not (to_host and v == len(writers)):
                model.add(sum(evictions[v]) >= happens)
        if uses and block.finally_ != "device":  # (7)
            gone = at()
            model.add(gone >= ends[uses[-1]])
            if to_host and out:
                model.add(gone >= out[len(writers)][1] + units(block.offload_ns))
            takes(starts[uses[-1]], gone, size[b], True)
    for engine in engines.values():  # (8)
        model.add_no_overlap(engine)
    model.add_cumulative([one for one, _ in memory], [bytes_ for _, bytes_ in memory], capacity)  # (9)
    for k, task in enumerate(instance.tasks):  # (10)
        own = sum(size[b] for b in task.blocks)
        runs = sum(y * (own + task.algorithms[a].workspace_bytes // unit) for a, y in chosen[k].items())
        kept = sum(size[b] * (1 - evicted) for u, until, b, evicted in across if u < k < until)
        model.add(runs + kept <= capacity)
    makespan = model.new_int_var(0, horizon // scale, "makespan")
    model.add(end_of_all <= scale * makespan + scale - 1)  # (11)
    model.minimize(makespan)
    return model


def optimum(model: cp_model.CpModel) -> tuple[str, float | None]:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    return solver.status_name(status), solver.objective_value if status == cp_model.OPTIMAL else None


def with_host(instance: Instance, seed: int) -> Instance:
    """Return an instance, and two times in three with host memory of up to one and a half blocks."""
    most = max((block.bytes for block in instance.blocks), default=0)
    return replace(instance, host_budget_bytes=seed % 4 * most // 2) if seed % 3 else instance


@pytest.mark.parametrize("first", chunks(range(0, 60, 10)))
def test_the_model_of_the_page_has_the_same_optimum(first: int) -> None:
    found = set()
    for seed in range(first, first + 10):
        hostile = hostile_instance(Random(seed), most_tasks=3)
        for instance in (plain(seed), twisted(seed), hostile):
            if any(task.recomputable for task in instance.tasks):
                continue
            model = DivisibleModel(with_host(instance, seed))
            clock = model.clock
            page = built(with_host(instance, seed), clock.tick, clock.scale, model.unit, model.horizon)
            found.add(said := optimum(page))
            assert said == optimum(model.cp), (seed, instance.name)
    assert len(found) > 10
    assert ("INFEASIBLE", None) in found


def test_constraints_are_known_by_their_rule() -> None:
    model = DivisibleModel(plain(3))
    ranges = list(model.rows.values())
    assert [rows.start for rows in ranges[1:]] == [rows.stop for rows in ranges[:-1]]
    assert (ranges[0].start, ranges[-1].stop) == (0, len(model.cp.proto.constraints))
    assert len(model.rows["memory_is_limited"]) == 1
    assert len(model.rows["memory_is_limited_while_a_task_runs"]) == len(plain(3).tasks)
