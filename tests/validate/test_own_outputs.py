"""The checker and the replay where a run's algorithm says which outputs it makes."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule
from pebbler.validate.traces.programs import trace_of

from ..adversary.instances import (
    Shape,
    adversarial,
    with_carried,
    with_host_budget,
    with_own_inputs,
    with_own_outputs,
    with_takeovers,
)
from ..reading import masked
from ..samples import counts
from .mutation_study import survive
from .random_programs import leaves_out


def again() -> Instance:
    """The ReLU may run again."""
    tasks = tuple(replace(task, recomputable=k == 1) for k, task in enumerate(masked().tasks))
    return masked(tasks=tasks)


def program(instance: Instance, *relus: int, back: int) -> Schedule:
    """The program that runs the ReLU with these algorithms, and leaves x and the mask where they are."""
    builder = ProgramBuilder(instance, memory="contiguous")
    builder.run(0, 0)
    for algorithm in relus:
        builder.run(1, algorithm)
    builder.release(1)
    if back:
        builder.release(0)
    builder.run(2, 0)
    builder.run(3, back)
    return builder.finish("by hand")


def with_algorithm(schedule: Schedule, n: int, algorithm: int) -> Schedule:
    """The schedule in which an operation has another algorithm."""
    operations = list(schedule.operations)
    operations[n] = replace(operations[n], algorithm=algorithm)
    return replace(schedule, operations=tuple(operations))


def test_with_the_mask_x_need_not_stay() -> None:
    schedule = program(masked(), 0, back=1)
    assert (schedule.makespan_ns, schedule.peak_bytes) == (5, 9)
    assert check(masked(), schedule).reasons == ()
    assert survive(masked(), schedule, Random(1)) == []


def test_a_run_that_leaves_the_mask_out_takes_no_memory_for_it() -> None:
    roomy = masked(budget_bytes=12)
    schedule = program(roomy, 1, back=0)
    assert (schedule.makespan_ns, schedule.peak_bytes) == (4, 12)
    assert [r.block for r in schedule.residences] == [0, 1, 3]
    assert check(roomy, schedule).reasons == ()
    assert survive(roomy, schedule, Random(1)) == []


def test_a_mask_that_no_run_has_made_is_not_read() -> None:
    """Neither the residence of the mask nor what it would hold is there."""
    valid = program(masked(), 0, back=1)
    wrong = with_algorithm(valid, 1, 1)
    reasons = check(masked(), wrong).reasons
    assert "'mask' is acquired by operation 1 (run relu), which does not bring it there" in reasons
    assert any("needs version 1 of 'mask', and version None is there" in reason for reason in reasons)
    assert survive(masked(), wrong, Random(1)) != []
    builder = ProgramBuilder(masked(), memory="contiguous")
    builder.run(0, 0)
    builder.run(1, 1)
    with pytest.raises(PebblerError, match="block 'mask' is not on the device where back needs it"):
        builder.run(3, 1)


def test_a_run_that_makes_the_mask_needs_a_place_for_it() -> None:
    roomy = masked(budget_bytes=13)
    wrong = with_algorithm(program(roomy, 1, back=0), 1, 0)
    reasons = check(roomy, wrong).reasons
    assert any("needs 'mask', which is not on the device" in reason for reason in reasons)
    assert survive(roomy, wrong, Random(1)) != []


@pytest.mark.parametrize("relus", [(0, 1), (1, 0), (0, 0)])
def test_a_second_run_makes_the_mask_or_leaves_the_one_that_is_there(relus: tuple[int, int]) -> None:
    schedule = program(again(), *relus, back=1)
    assert check(again(), schedule).reasons == ()
    assert survive(again(), schedule, Random(1)) == []
    neither = with_algorithm(with_algorithm(schedule, 1, 1), 2, 1)
    assert any("version None is there" in reason for reason in check(again(), neither).reasons)
    assert survive(again(), neither, Random(1)) != []


def test_a_trace_says_what_each_run_writes() -> None:
    roomy = masked(budget_bytes=17)
    traces = [trace_of(roomy, program(roomy, relu, back=0)) for relu in (0, 1)]
    written = [len(next(o for o in trace.operations if o.name == "relu").writes) for trace in traces]
    assert written == [2, 1]


@pytest.mark.parametrize("memory", ["contiguous", "divisible"])
def test_the_mask_pays_where_memory_is_short_and_nowhere_else(memory) -> None:
    short, roomy = brute_force(masked(), memory), brute_force(masked(budget_bytes=12), memory)
    assert short is not None
    assert roomy is not None
    assert (short.makespan_ns, roomy.makespan_ns) == (5, 4)
    assert [o.algorithm for o in short.operations] == [0, 0, 0, 1]
    assert [o.algorithm for o in roomy.operations] == [0, 1, 0, 0]
    assert not any(leaves_out(masked(), o) for o in short.operations)
    tight = brute_force(masked(budget_bytes=8), memory)  # the mask has no place beside x and y
    assert tight is not None
    assert tight.makespan_ns == 23


@pytest.mark.parametrize("count", counts(50, 500))
def test_checker_and_replay_accept_what_exhaustive_search_finds(count: int) -> None:
    lean = reading = 0
    for seed in range(count):
        rng = Random(seed)
        shape = Shape(tasks=4, blocks=3, digits=0, reruns=seed % 2 == 0, moves=seed % 3 == 0)
        instance = adversarial(rng, shape)
        for often, give in ((3, with_own_inputs), (5, with_carried), (7, with_host_budget)):
            instance = give(rng, instance) if seed % often == 1 else instance
        instance = with_own_outputs(rng, instance)
        instance = with_takeovers(rng, instance) if seed % 4 == 1 else instance
        try:
            schedule = brute_force(instance, ("contiguous", "divisible")[seed % 2], most_states=800)
        except (TimeoutError, Refusal):
            continue
        if schedule is None:
            continue
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []
        lean += any(leaves_out(instance, o) for o in schedule.operations)
        runs = [(o.task, o.algorithm) for o in schedule.operations if o.kind == "run"]
        reading += any(instance.optional.intersection(instance.tasks[k].reads(a)) for k, a in runs)
    assert lean >= count / 5
    assert reading >= count / 25
