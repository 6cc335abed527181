"""Recomputation alone, against exhaustive search and against dynamic programming on chains."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest

from checkpointing import chain_optimum, random_chain, training_chain
from pebbler.benchmark.comparison.compare import compare
from pebbler.heuristics.recomputation.reruns import stages_of, staying
from pebbler.instances.foreign.read import read_foreign
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.instances.suites.tiny import scaled, tiny_instance, without_copies
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.recomputation.stage_model import Stages
from pebbler.solver.result import Status
from pebbler.solver.solve import solve

from ...samples import chunks, counts


@pytest.mark.parametrize("first", chunks(range(0, 45, 15)))
def test_tiny_instances_at_every_budget(first: int) -> None:
    """Bound <= exhaustive search <= schedule, and mostly all three are equal."""
    solved = equal = again = 0
    for instance in map(without_copies, map(tiny_instance, range(first, first + 15))):
        for budget in range(least_budget(instance), unlimited_peak(instance) + 1, 4):
            limited = with_budget(instance, budget)
            optimum = brute_force(limited, "divisible")
            result = solve(limited, "checkmate")
            if optimum is None:
                assert result.schedule is None
                continue
            solved += 1
            assert result.lower_bound_ns <= optimum.makespan_ns
            if result.schedule is not None:
                assert result.schedule.makespan_ns >= optimum.makespan_ns
                equal += result.makespan_ns == optimum.makespan_ns
                again += len(result.schedule.operations) > len(instance.tasks)
    assert solved >= 15
    assert equal >= 0.9 * solved
    assert again >= 1


@pytest.mark.parametrize(("activation", "gradient"), [(1, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("count", [2, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_chains_match_the_dynamic_programme(count: int, activation: int, gradient: int) -> None:
    """In divisible memory at every budget, and then with addresses wherever there are some."""
    forward, backward = random_chain(count, seed=count)
    chain = training_chain(forward, backward, activation, gradient)
    finite = 0
    for budget in range(least_budget(chain), unlimited_peak(chain) + 1):
        limited = with_budget(chain, budget)
        optimum = chain_optimum(forward, backward, activation, gradient, budget)
        model = Stages(limited, stages_of(limited), "contiguous").build()
        result = solve_linear(model.linear)
        if optimum == math.inf:
            assert result.status == "infeasible"
            continue
        finite += 1
        assert result.objective is not None
        assert round(result.objective * model.nanoseconds, 3) == optimum
        found = solve(limited, "checkmate")
        assert found.lower_bound_ns <= optimum
        if activation == gradient or found.makespan_ns is not None:
            assert found.makespan_ns == optimum
    assert finite >= count - 1


def test_pages_count_whole() -> None:
    forward, backward = random_chain(4, seed=4)
    chain = scaled(training_chain(forward, backward, 1, 1), size=PAGE_BYTES - 7)
    for pages in (4, 5, 6):
        limited = with_budget(chain, pages * PAGE_BYTES + 3)
        result = solve(limited, "checkmate", memory="paged")
        assert result.makespan_ns == chain_optimum(forward, backward, 1, 1, pages)


def test_a_task_runs_again_in_as_many_stages_as_it_takes() -> None:
    """With the least memory, the first layer of a chain runs once for each layer after it."""
    chain = training_chain([1] * 6, [1] * 6, 1, 1)
    result = solve(with_budget(chain, 4), "checkmate")
    assert result.schedule is not None
    runs = [operation.task for operation in result.schedule.operations]
    assert runs.count(0) == 6 - 1
    assert result.makespan_ns == chain_optimum([1] * 6, [1] * 6, 1, 1, 4)
    assert result.status is Status.OPTIMAL


def test_the_algorithm_is_chosen_by_run() -> None:
    """A workspace that fits the first run and not the second: that one takes the slow algorithm."""
    slow = Algorithm(name="slow", duration_ns=10, workspace_bytes=0)
    fast = Algorithm(name="fast", duration_ns=1, workspace_bytes=5)
    only = Algorithm(name="only", duration_ns=1, workspace_bytes=0)

    def block(name: str, size: int) -> Block:
        return Block(name=name, bytes=size, offload_ns=None, prefetch_ns=None)

    instance = Instance(
        name="two-ways",
        engines="duplex",
        budget_bytes=7,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(block("a", 2), block("b", 4), block("c", 3)),
        tasks=(
            Task(name="a", inputs=(), outputs=(0,), algorithms=(slow, fast), recomputable=True),
            Task(name="b", inputs=(), outputs=(1,), algorithms=(only,)),
            Task(name="c", inputs=(1,), outputs=(2,), algorithms=(only,)),
            Task(name="end", inputs=(0, 2), outputs=(), algorithms=(only,)),
        ),
    )
    result = solve(instance, "checkmate")
    assert result.makespan_ns == 1 + 1 + 1 + 10 + 1
    optimum = brute_force(instance)
    assert optimum is not None
    assert optimum.makespan_ns <= result.makespan_ns


def test_what_is_in_use_later_decides_whether_versions_may_be_made_again() -> None:
    instance = next(i for i in map(tiny_instance, range(200)) if any(task.updates for task in i.tasks))
    changed = without_copies(instance)
    update = next(k for k, task in enumerate(changed.tasks) if task.updates)
    stages = stages_of(changed)
    (writer,) = {k for k in changed.writers[changed.tasks[update].updates[0]] if k < update}
    assert all(writer not in steps for t, steps in enumerate(stages) if t > update)
    assert all(update not in steps for t, steps in enumerate(stages) if t != update)


def test_a_network_with_copies_gets_a_schedule_and_no_bound_of_its_own() -> None:
    instance = with_recomputation(Workload("alexnet", 64, "k40").instance("97%"))
    result = solve(instance, "checkmate", time_limit=20)
    assert result.schedule is not None
    assert {operation.kind for operation in result.schedule.operations} == {"run"}
    assert len(result.schedule.operations) > len(instance.tasks)
    assert result.bound_by == "compute"


def test_what_only_a_copy_can_bring_is_refused() -> None:
    instance = without_copies(tiny_instance(0))
    first = msgspec.structs.replace(instance.blocks[0], initially="host")
    changed = msgspec.structs.replace(instance, blocks=(first, *instance.blocks[1:]))
    result = solve(with_budget(changed, 10**6), "checkmate")
    assert (result.status, result.schedule) == (Status.UNKNOWN, None)
    assert "must be copied from the host" in result.stopped_by


def test_flow_proves_a_bound_before_its_search_has_ended_a_round() -> None:
    """FLOW comes before the search has had its time; where there are no copies, none are left out."""
    instance = staying(with_recomputation(Workload("vgg16", 64, "v100").instance("1.2xMmin")))
    small = staying(with_recomputation(Workload("lenet", 4, "k40").instance("1.2xMmin")))
    solve(small, "flow-recompute", time_limit=1.0)  # so that the process has loaded what both use
    result = solve(instance, "flow-recompute", time_limit=2.0, without=("transfers",))
    assert result.bound_by is not None
    assert result.bound_by.startswith("flow-recompute")
    assert result.schedule is not None


@pytest.mark.parametrize("count", counts(6, 8))
def test_with_a_limit_flow_leads(count: int) -> None:
    """Bound <= exhaustive search <= schedule where FLOW comes first, and programs after it."""
    by_flow = 0
    for instance in map(without_copies, map(tiny_instance, range(count))):
        limited = with_budget(instance, (least_budget(instance) + unlimited_peak(instance)) // 2)
        optimum = brute_force(limited, "divisible")
        result = solve(limited, "checkmate", time_limit=2.0, without=("states",))
        if optimum is None:
            assert result.schedule is None
            continue
        assert result.lower_bound_ns <= optimum.makespan_ns
        by_flow += (result.bound_by or "").startswith("flow-recompute")
        if result.schedule is not None:
            assert result.schedule.makespan_ns >= optimum.makespan_ns
    assert by_flow >= 1


def test_a_solver_without_whole_columns_is_refused() -> None:
    chain = with_budget(training_chain([1, 1], [1, 1], 1, 1), 9)
    result = solve(chain, "checkmate", solver="glop")
    assert "takes no whole variables" in result.stopped_by


def test_no_time_is_no_error() -> None:
    forward, backward = random_chain(19, seed=19)
    result = solve(with_budget(training_chain(forward, backward, 1, 1), 6), "checkmate", time_limit=0.0)
    assert result.status in (Status.UNKNOWN, Status.FEASIBLE)


def test_a_graph_of_another_project(tmp_path: Path) -> None:
    """A diamond in node-link JSON, with room for three of its four outputs at a time."""
    nodes = [{"id": i, "cost_cpu": time, "cost_ram": 1} for i, time in enumerate((1, 2, 3, 4, 5))]
    links = [{"source": a, "target": b} for a, b in ((0, 1), (1, 2), (2, 3), (0, 4), (3, 4))]
    (tmp_path / "diamond.json").write_text(
        json.dumps({"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "links": links})
    )
    instance = read_foreign(tmp_path / "diamond.json")
    for budget in (3, 4):
        limited = with_budget(instance, budget)
        optimum = brute_force(limited)
        result = solve(limited, "checkmate")
        assert optimum is not None
        assert (result.status, result.makespan_ns) == (Status.OPTIMAL, optimum.makespan_ns)


@pytest.mark.parametrize(
    ("length", "budget"),
    [pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 4), (4, 4), (6, 5))],
)
def test_the_integer_program_alone_meets_the_search_over_states(length: int, budget: int) -> None:
    """Each rule can be left out; the answer is the same where there is time."""
    forward, backward = random_chain(length, seed=length)
    limited = with_budget(training_chain(forward, backward, 1, 1), budget)
    results = [
        solve(limited, "checkmate", without=rules) for rules in ((), ("states",), ("states", "local-search"))
    ]
    assert {result.makespan_ns for result in results} == {chain_optimum(forward, backward, 1, 1, budget)}
    assert [result.bound_by for result in results] == ["pebbling", "checkmate-highs", "checkmate-highs"]


def test_a_comparison_lets_forward_tasks_run_again() -> None:
    instance = Workload("alexnet", 64, "v100").instance("80%")
    (row,) = compare(instance, ["checkmate"], time_limit=0.3).rows
    assert row.variant == "recompute"
    assert row.figures is None or row.figures.offloaded_bytes == 0
