"""Recomputation and paging in one program over stages, against exhaustive search and by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from chain import page_sized
from pebbler.heuristics.recomputation.reruns import stages_of
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.suites.tiny import recomputing, tiny_instance, without_copies
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.recomputation.poet import PagedStages
from pebbler.solver.recomputation.stage_model import Stages
from pebbler.solver.result import Status
from pebbler.solver.solve import solve

from ...samples import counts
from ...validate.bounds.test_arguments import one_gap


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("count", counts(5, 24))
def test_tiny_instances(count: int, parts: bool) -> None:
    """Never shorter than exhaustive search; with copies, and with second runs."""
    solved = equal = 0
    kinds: Counter[str] = Counter()
    for seed in range(count):
        instance = recomputing(seed, parts=parts)
        try:
            best = brute_force(instance, "divisible", most_states=5_000)
        except TimeoutError:
            continue
        result = solve(page_sized(instance), "poet", memory="paged")
        if best is None:
            assert result.schedule is None
            continue
        if result.schedule is None:
            continue
        assert result.schedule.makespan_ns >= best.makespan_ns
        solved += 1
        equal += result.makespan_ns == best.makespan_ns
        kinds.update(operation.kind for operation in result.schedule.operations)
        kinds["again"] += len(result.schedule.operations) > len(instance.tasks)
    assert solved >= count / 2
    assert equal >= 0.5 * solved
    assert min(kinds["offload"], kinds["prefetch"], kinds["again"]) >= count / 8


def test_without_copies_it_is_the_program_without_pages() -> None:
    compared = 0
    for seed in range(20):
        instance = without_copies(tiny_instance(seed))
        stages = stages_of(instance)
        alone = solve_linear(Stages(instance, stages, "contiguous").build().linear)
        paged = solve_linear(PagedStages(instance, stages, "contiguous").build().linear)
        assert alone.status == paged.status
        if alone.objective is not None:
            assert paged.objective == pytest.approx(alone.objective)
            compared += 1
    assert compared >= 8


def one_gap_with(again: bool) -> Instance:
    """The gap of the exact bounds' tests, with tasks that may run again or not."""
    instance = one_gap()
    return replace(instance, tasks=tuple(replace(task, recomputable=again) for task in instance.tasks))


@pytest.mark.parametrize(("again", "time"), [(False, 5 + 12 + 7 + 6 + 3), (True, 5 + 7 + 5 + 3)])
def test_a_gap_is_bridged_by_copies_or_by_a_second_run_worked_out_by_hand(again: bool, time: int) -> None:
    instance = one_gap_with(again)
    model = PagedStages(instance, stages_of(instance), "contiguous").build()
    objective = solve_linear(model.linear).objective
    assert objective is not None
    assert objective * model.nanoseconds == pytest.approx(time)
    result = solve(instance, "poet")
    assert result.makespan_ns == time
    assert result.status is Status.FEASIBLE  # the program is optimal, which proves nothing of the instance


def test_what_it_cannot_do_is_one_sentence() -> None:
    instance = one_gap_with(again=True)
    assert "takes no whole variables" in solve(instance, "poet", solver="glop").stopped_by
    large = with_recomputation(Workload("resnet152", 64, "v100").instance("75%"))
    assert "the instance is too large" in solve(large, "poet").stopped_by
    told = [
        solve(one, "poet").stopped_by
        for one in map(recomputing, range(30))
        if any(
            None in (b.offload_ns, b.prefetch_ns) and "host" in (b.initially, b.finally_) for b in one.blocks
        )
    ]
    assert any("must end on the host, and its offload_ns is null" in reason for reason in told)
    assert any("is on the host only, and its prefetch_ns is null" in reason for reason in told)


def test_blocks_that_no_task_uses_make_room() -> None:
    """Found by the study of bounds: two blocks that nothing reads, and one byte for the only output."""
    unused = tuple(
        Block(name=f"b{i}", bytes=1, offload_ns=0, prefetch_ns=0, initially="device") for i in range(2)
    )
    out = Block(name="out", bytes=1, offload_ns=0, prefetch_ns=0)
    algorithm = Algorithm(name="a", duration_ns=3, workspace_bytes=0)
    task = Task(name="k", inputs=(), outputs=(2,), algorithms=(algorithm,))
    instance = Instance(
        name="unused",
        engines="duplex",
        budget_bytes=1,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(*unused, out),
        tasks=(task,),
    )
    assert solve(instance, "poet").makespan_ns == 3
    none = replace(instance, blocks=tuple(replace(b, finally_="device") for b in instance.blocks))
    result = solve(none, "poet")
    assert result.schedule is None
    assert result.status is not Status.ERROR
