"""vDNN as moDNN's authors describe it: what leaves, when nothing does, and how fast the tasks are."""

from __future__ import annotations

from typing import Literal

import pytest

from pebbler.heuristics.methods import Answer, Limits, Refusal, find_method
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest, with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.check import check

from ...samples import counts
from .test_vdnn_dyn import FAST, chosen, instances, network, program_of

METHODS = ("vdnn-all-tpds", "vdnn-conv-tpds")


def solve(instance: Instance, method: str, memory: Literal["contiguous", "paged"] = "contiguous") -> Answer:
    answer = find_method(method).call(instance, Limits(memory=memory))
    assert answer.schedule is not None
    assert check(instance, answer.schedule).reasons == ()
    return answer


def offloaded(instance: Instance, method: str) -> set[str]:
    schedule = solve(instance, method).schedule
    assert schedule is not None
    copies = (o.block for o in schedule.operations if o.kind == "offload")
    return {instance.blocks[d].name for d in copies if d is not None}


# --- what leaves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("vdnn-conv-m", {"X1", "X3", "X5"}),
        ("vdnn-conv-tpds", {"X2", "X4"}),
        ("vdnn-all-m", {"X1", "X2", "X3", "X4", "X5"}),
        ("vdnn-all-tpds", {"X1", "X2", "X3", "X4", "X5"}),
    ],
)
def test_outputs_of_convolutions_are_not_their_inputs(method: str, expected: set[str]) -> None:
    """Layer i reads Xi and makes Xi+1; odd layers are convolutions, and B6 reads X6 right after F6."""
    assert offloaded(network("cpcpcp", pool=7 * 8), method) == expected


def test_the_input_stays_and_what_the_classifier_reads_and_makes_leaves() -> None:
    alexnet = Workload("alexnet", 128, "K40", graph="paper").instance("800MiB")
    described, managed = offloaded(alexnet, "vdnn-all-tpds"), offloaded(alexnet, "vdnn-all-m")
    assert described - managed == {"Y(pool5)", "Y(fc6)", "Y(fc7)"}
    assert managed <= described  # neither copies the input to the host, which has it


@pytest.mark.parametrize("method", METHODS)
def test_where_the_budget_holds_all_data_nothing_leaves(method: str) -> None:
    instance = network("cpcpcp", pool=100 * 8)
    assert program_of(solve(instance, method)) == program_of(solve(instance, "network-wide"))
    assert offloaded(instance, method) == set()


# --- how fast the tasks are -------------------------------------------------------------------------------


def test_tasks_have_the_fastest_algorithm_for_which_there_is_room() -> None:
    """Four blocks and 8 bytes: fast algorithms early in the forward pass, slower ones later."""
    tight, wide = network("cccccc", pool=5 * 8), network("cccccc", pool=7 * 8)
    with pytest.raises(Refusal):
        solve(tight, "vdnn-all-p")
    algorithms = chosen(solve(tight, "vdnn-all-tpds"))
    assert FAST in algorithms[1:]
    assert min(a for a in algorithms[1:] if a is not None) < FAST
    assert chosen(solve(wide, "vdnn-all-tpds")) == chosen(solve(wide, "vdnn-all-p"))


@pytest.mark.parametrize("method", METHODS)
def test_what_does_not_fit_without_workspaces_is_refused(method: str) -> None:
    with pytest.raises(Refusal, match="no place for"):
        solve(network("cccccc", pool=3 * 8), method)


# --- on everything ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", counts(35, 100))
def test_all_outputs_fit_wherever_all_inputs_do_and_are_no_slower_than_the_leanest(count: int) -> None:
    solved = 0
    for seed in range(count):
        instance = instances(seed)
        try:
            lean = solve(instance, "vdnn-all-m").schedule
        except Refusal:
            continue
        described = solve(instance, "vdnn-all-tpds").schedule
        assert lean is not None
        assert described is not None
        assert described.makespan_ns <= lean.makespan_ns, seed
        solved += 1
    assert solved > count / 2


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize("method", METHODS)
def test_valid_on_networks(method: str, memory: Literal["contiguous", "paged"]) -> None:
    workload = Workload("resnet18", 32, "K40")
    least = workload.minimum_budget()
    times = []
    for percent in (250, 400, 2000):
        instance = with_budget(workload.instance(least), least * percent // 100)
        schedule = solve(instance, method, memory).schedule
        assert schedule is not None
        assert schedule.memory_model == memory
        times.append(schedule.makespan_ns)
    assert times == sorted(times, reverse=True)
    assert times[-1] == sum(algorithm.duration_ns for algorithm in fastest(instance))
