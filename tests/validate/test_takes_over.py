"""Outputs that take over the place of an input: the format, the checker, the replay, builder and judges."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, why_infeasible
from pebbler.instances.transforms import split_parts
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.check import check
from pebbler.validate.measures import average_bytes
from pebbler.validate.schedule import MemoryModel, Residence, Schedule

from ..adversary.instances import (
    Shape,
    adversarial,
    with_carried,
    with_host_budget,
    with_own_inputs,
    with_takeovers,
)
from ..reading import algorithm, block, in_place
from ..samples import counts
from .mutation_study import survive


def program(instance: Instance, memory: MemoryModel = "contiguous") -> Schedule:
    builder = ProgramBuilder(instance, memory=memory)
    builder.run(0, 0)
    builder.run(1, 1, over={1: 0})
    assert not builder.is_resident(0)
    builder.run(2, 0)
    builder.release(1)
    return builder.finish("by hand")


def with_algorithm(**keys: object) -> Instance:
    """The instance whose second task has such an algorithm, too."""
    made = in_place(blocks=(*in_place().blocks, block("z", 3, initially="device")))
    task = made.tasks[1]
    changed = replace(task, algorithms=(*task.algorithms, algorithm("more", **keys)))
    return replace(made, tasks=(made.tasks[0], changed, made.tasks[2]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"takes_over": ((0, 0),)}, r"'takes_over' of algorithm 2 \('more'\) begins its pairs with \[0\]"),
        ({"takes_over": ((1, 2),)}, r"ends its pairs with \[2\]; name different blocks that it reads"),
        ({"takes_over": ((1, 0), (1, 0))}, r"begins its pairs with \[1, 1\]; name different outputs"),
        ({"takes_over": ((1, 2),), "inputs": (2,)}, "'y' does not fit the place of 'z'"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(keys: dict[str, object], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        with_algorithm(**keys)


def test_what_is_no_pair_is_refused() -> None:
    with pytest.raises(FormatError):
        algorithm(takes_over=((1,),))
    with pytest.raises(FormatError):
        algorithm(takes_over=((1, -1),))
    assert algorithm(takes_over=[[1, 0]]).takes_over == ((1, 0),)


def test_parts_take_over_no_place() -> None:
    large = tuple(replace(one, bytes=2**22) for one in in_place().blocks)
    with pytest.raises(PebblerError, match="tensors in parts take over no place"):
        split_parts(in_place(blocks=large, budget_bytes=2**23, alignment_bytes=512), 2**21)


def test_one_place_is_enough_for_both() -> None:
    assert least_budget(in_place()) == 2
    assert why_infeasible(in_place()) is None
    assert best_bound(in_place()).lower_bound_ns == 3
    beside = replace(in_place().tasks[1], algorithms=in_place().tasks[1].algorithms[:1])
    assert least_budget(in_place(tasks=(in_place().tasks[0], beside, in_place().tasks[2]))) == 4


@pytest.mark.parametrize("memory", ["contiguous", "paged", "divisible"])
def test_an_output_takes_over_the_place_of_an_input(memory: MemoryModel) -> None:
    scale = 2**20 if memory == "paged" else 1
    blocks = tuple(replace(one, bytes=one.bytes * scale) for one in in_place().blocks)
    instance = in_place(blocks=blocks, budget_bytes=2 * scale)
    schedule = program(instance, memory)
    assert (schedule.makespan_ns, schedule.peak_bytes) == (3, 2 * scale)
    assert check(instance, schedule).reasons == ()
    assert survive(instance, schedule, Random(1)) == []
    assert average_bytes(instance, schedule) == 2 * scale


def changed(r: int, **keys: object) -> Schedule:
    residences: list[Residence] = list(program(in_place()).residences)
    residences[r] = replace(residences[r], **keys)
    return replace(program(in_place()), residences=tuple(residences))


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (
            changed(1, takes_over=False),
            "'y', acquired by operation 1 (run make y), overlaps 'x', which need not",
        ),
        (changed(0, released_after=(2,)), "takes over the place of 'x', which does not end with operation 1"),
        (
            changed(0, released_after=(0, 2)),
            "takes over the place of 'x', which does not end with operation 1",
        ),
        (
            changed(0, takes_over=True),
            "'x', acquired by operation 0 (run make x), takes over a place and may not",
        ),
        (changed(1, offset=1), "takes over the place of 'x' in operation 1 (run make y) and lies elsewhere"),
    ],
)
def test_what_is_not_taken_over_is_a_reason(schedule: Schedule, reason: str) -> None:
    instance = in_place(budget_bytes=3)
    reasons = check(instance, schedule).reasons
    assert any(reason in one for one in reasons), reasons
    assert survive(instance, schedule, Random(1)) != []


def test_an_algorithm_that_does_not_say_so_takes_over_nothing() -> None:
    *others, last = program(in_place()).operations
    beside = replace(others[1], algorithm=0)
    wrong = replace(program(in_place()), operations=(others[0], beside, last))
    assert any("takes over a place and may not" in reason for reason in check(in_place(), wrong).reasons)
    assert survive(in_place(), wrong, Random(1)) != []
    builder = ProgramBuilder(in_place(), memory="contiguous")
    builder.run(0, 0)
    with pytest.raises(PebblerError, match="'y' may not take over the place of 'x' in make y"):
        builder.run(1, 0, over={1: 0})


def test_a_copy_of_the_input_ends_before() -> None:
    """x goes out from 1 to 11 ns; only then may y be written over it."""
    builder = ProgramBuilder(in_place(), memory="contiguous")
    builder.run(0, 0)
    builder.offload(0)
    builder.run(1, 1, over={1: 0})
    builder.run(2, 0)
    schedule = builder.finish("by hand")
    assert schedule.operations[2].start_ns == 11
    assert check(in_place(), schedule).reasons == ()
    early = tuple(replace(o, after=()) if o.id == 2 else o for o in schedule.operations)
    assert not check(in_place(), replace(schedule, operations=early)).valid


def damages(schedule: Schedule, rng: Random) -> list[Schedule]:
    """Schedules with other marks, places and ends."""
    n = next(k for k, residence in enumerate(schedule.residences) if residence.takes_over)
    taken, found = schedule.residences[n], []
    some = rng.randrange(len(schedule.residences))
    changes = [(n, {"takes_over": False}), (some, {"takes_over": not schedule.residences[some].takes_over})]
    if taken.offset is not None:
        changes.append((n, {"offset": taken.offset + 1}))
    for k, residence in enumerate(schedule.residences):
        if residence.block is not None and taken.acquired_by in residence.released_after and k != n:
            left = tuple(i for i in residence.released_after if i != taken.acquired_by)
            changes.append((k, {"released_after": left}))
    for k, keys in changes:
        residences = list(schedule.residences)
        residences[k] = replace(residences[k], **keys)
        found.append(replace(schedule, residences=tuple(residences)))
    return found


@pytest.mark.parametrize("count", counts(60, 600))
def test_checker_and_replay_agree_on_what_exhaustive_search_takes_over(count: int) -> None:
    taken = rejected = 0
    for seed in range(count):
        rng = Random(seed)
        shape = Shape(tasks=4, blocks=4, digits=0, reruns=seed % 2 == 0, moves=seed % 3 == 0)
        instance = adversarial(rng, shape)
        for often, give in ((3, with_own_inputs), (5, with_carried), (7, with_host_budget)):
            instance = give(rng, instance) if seed % often == 1 else instance
        instance = with_takeovers(rng, instance)
        try:
            schedule = brute_force(instance, ("contiguous", "divisible")[seed % 2], most_states=1500)
        except (TimeoutError, Refusal):
            continue
        if schedule is None:
            continue
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []
        if not any(residence.takes_over for residence in schedule.residences):
            continue
        taken += 1
        for damaged in damages(schedule, rng):
            valid = check(instance, damaged).valid
            faults = survive(instance, damaged, rng) or survive(instance, damaged, rng)
            assert valid == (not faults), (instance, damaged)
            rejected += not valid
    assert taken >= count / 20
    assert rejected >= count / 10
