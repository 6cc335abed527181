"""The checker against the symbolic replay, on random valid programs and on damaged ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.instance import Instance
from pebbler.validate.check import CheckReport, check
from pebbler.validate.schedule import Schedule

from ..samples import counts, crossed
from . import mutation_study
from .hostile import hostile_instance
from .machine_programs import coupled_case, host_work_case, retimed, uncoupled
from .mutants import InstanceMutation, Mutation
from .mutation_study import (
    FORMAL,
    OF_CARRIED,
    OF_MACHINE,
    ON_HOST,
    ORDINARY,
    Study,
    Tally,
    conduct,
    survive,
    wander,
    wander_on_host,
)
from .random_programs import random_case, random_schedule


@pytest.fixture(scope="module", params=counts(1, 45))
def per_kind(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def study(per_kind: int) -> Study:
    return conduct(seed=5, per_kind=per_kind)


def test_random_programs_use_everything() -> None:
    rng = Random(5)
    cases = [random_case(rng) for _ in range(60)]
    assert {schedule.memory_model for _, schedule in cases} == {"contiguous", "paged", "divisible"}
    assert {instance.engines for instance, _ in cases} == {"duplex", "single"}
    assert {operation.kind for _, schedule in cases for operation in schedule.operations} == {
        "run",
        "offload",
        "prefetch",
        "move",
    }
    runs = [
        [operation.task for operation in schedule.operations if operation.kind == "run"]
        for _, schedule in cases
    ]
    assert any(len(tasks) > len(set(tasks)) for tasks in runs)
    assert any(block.tensor for instance, _ in cases for block in instance.blocks)


def test_random_programs_use_host_memory_that_ends_in_every_way() -> None:
    rng = Random(5)
    cases = [random_case(rng, host=True) for _ in range(60)]
    assert {schedule.memory_model for _, schedule in cases} == {"contiguous", "paged", "divisible"}
    copies = [(copy, instance.blocks[copy.block]) for instance, s in cases for copy in s.host_copies]
    starts = {(block.initially, copy.acquired_by is None) for copy, block in copies}
    assert starts >= {("device", True), ("device", False), ("host", True), ("absent", False)}
    assert {bool(copy.released_after) for copy, _ in copies} == {True, False}
    assert any(block.tensor for _, block in copies)
    for _, schedule in cases:
        if len({copy.block for copy in schedule.host_copies}) < len(schedule.host_copies):
            break
    else:
        pytest.fail("no copy is dropped and made again")
    assert any(
        a.offset == b.offset is not None and a.block != b.block
        for _, schedule in cases
        for a in schedule.host_copies
        for b in schedule.host_copies
    )


@pytest.mark.parametrize("count", counts(80, 120))
def test_random_rounds_carry_blocks_in_every_way(count: int) -> None:
    rng = Random(5)
    cases = [random_case(rng, host=n % 2 == 1, carried=True) for n in range(count)]
    seen = {
        (schedule.memory_model, state.device, state.host, bool(instance.writers[state.block]))
        for instance, schedule in cases
        for state in schedule.states
    }
    assert len(seen) == 3 * 3 * 2
    stays = [
        [residence for residence in schedule.residences if residence.block == state.block]
        for _, schedule in cases
        for state in schedule.states
        if state.device and schedule.memory_model != "divisible"
    ]
    assert sum(len({(stay.offset, stay.extents) for stay in mine}) > 1 for mine in stays) >= 5
    assert any(mine[0].extents != mine[-1].extents for mine in stays)
    copies = [
        [copy for copy in schedule.host_copies if copy.block == state.block]
        for _, schedule in cases
        for state in schedule.states
        if state.host
    ]
    assert any(len(mine) > 1 for mine in copies)


@pytest.mark.parametrize("count", counts(20, 32))
def test_random_programs_use_the_machine_in_every_way(count: int) -> None:
    rng = Random(5)
    coupled = [coupled_case(rng) for _ in range(count)]
    assert {schedule.memory_model for _, schedule in coupled} == {"contiguous", "paged", "divisible"}
    kinds = {(i.link is not UNSET, any(t.slowdown_ppm is not UNSET for t in i.tasks)) for i, _ in coupled}
    assert kinds == {(True, False), (False, True), (True, True)}
    longer = [
        schedule.makespan_ns > retimed(uncoupled(instance), schedule).makespan_ns
        for instance, schedule in coupled
    ]
    assert sum(longer) >= count / 4
    hosted = [host_work_case(rng) for _ in range(count)]
    assert {schedule.memory_model for _, schedule in hosted} == {"contiguous", "divisible"}
    assert {(bool(i.carried), i.has_host_budget, i.is_coupled) for i, _ in hosted} >= {
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    }
    on_host = [(i, o) for i, s in hosted for o in s.operations if o.stream == "host" and o.task is not None]
    assert any(i.tasks[o.task].updates for i, o in on_host)
    assert any(i.tasks[o.task].outputs for i, o in on_host)
    copies = [copy for _, schedule in hosted for copy in schedule.host_copies]
    assert any(copy.workspace_of is not None for copy in copies)


@pytest.mark.parametrize("case", [coupled_case, host_work_case])
@pytest.mark.parametrize("count", counts(6, 30))
def test_valid_programs_of_the_machine_are_accepted_and_survive(
    case: Callable[[Random], tuple[Instance, Schedule]], count: int
) -> None:
    rng = Random(2)
    for _ in range(count):
        instance, schedule = case(rng)
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []


@pytest.mark.parametrize("starts", counts(2, 8))
def test_no_contradiction_far_from_programs_with_work_on_the_host(starts: int) -> None:
    walk = wander_on_host(seed=3, starts=starts, steps=40)
    assert walk.total().accepted >= 5 * starts / 2
    assert walk.contradictions == []


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("host", [False, True])
@pytest.mark.parametrize("count", counts(5, 60))
def test_valid_programs_are_accepted_and_survive(host: bool, carried: bool, count: int) -> None:
    rng = Random(2)
    for _ in range(count):
        instance, schedule = random_case(rng, host=host, carried=carried)
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []


@pytest.mark.parametrize(("host", "carried"), crossed((False, True), (False, True), of=2))
@pytest.mark.parametrize("count", counts(15, 120))
def test_valid_programs_whose_algorithms_read_different_blocks_survive(
    host: bool, carried: bool, count: int
) -> None:
    rng, otherwise = Random(6), 0
    for _ in range(count):
        instance, schedule = random_case(rng, host=host, carried=carried, own_inputs=True)
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []
        # as if all algorithms read the task's inputs: then the replay says what the checker says
        plain = replace(
            instance,
            tasks=tuple(
                replace(task, algorithms=tuple(replace(a, inputs=UNSET) for a in task.algorithms))
                for task in instance.tasks
            ),
        )
        valid = check(plain, schedule).valid
        assert valid == (not survive(plain, schedule, rng))
        otherwise += not valid
    assert otherwise >= count / 4


@pytest.mark.parametrize(("host", "carried"), crossed((False, True), (False, True), of=2))
@pytest.mark.parametrize("count", counts(12, 120))
def test_valid_programs_whose_algorithms_leave_out_outputs_survive(
    host: bool, carried: bool, count: int
) -> None:
    rng, otherwise = Random(7), 0
    for _ in range(count):
        instance, schedule = random_case(
            rng, host=host, carried=carried, own_inputs=rng.random() < 0.3, own_outputs=True
        )
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []
        # as if all algorithms made all outputs, for which such a run has no place
        whole = replace(
            instance,
            tasks=tuple(
                replace(task, algorithms=tuple(replace(a, outputs=UNSET) for a in task.algorithms))
                for task in instance.tasks
            ),
        )
        valid = check(whole, schedule).valid
        assert valid == (not survive(whole, schedule, rng))
        otherwise += not valid
    assert otherwise >= count / 2


@pytest.mark.parametrize("own", ["own_inputs", "own_outputs"])
@pytest.mark.parametrize("starts", counts(2, 12))
def test_no_contradiction_where_algorithms_read_or_make_different_blocks(starts: int, own: str) -> None:
    walk = wander(seed=4, starts=starts, steps=60, **{own: True})
    assert walk.total().accepted >= 3 * starts
    assert walk.contradictions == []


@pytest.mark.parametrize("count", counts(50, 250))
def test_valid_programs_of_hostile_instances_with_host_memory_that_ends_survive(count: int) -> None:
    rng = Random(3)
    budgets = []
    for _ in range(count):
        instance = hostile_instance(rng, recomputable=rng.random() < 0.5, host=True)
        schedule = random_schedule(instance, rng.choice(("contiguous", "divisible")), rng)
        if schedule is None:
            continue
        assert check(instance, schedule).reasons == ()
        assert survive(instance, schedule, rng) == []
        if schedule.host_copies:
            budgets.append(instance.host_budget_bytes == schedule.host_peak_bytes)
    assert len(budgets) >= count / 5
    assert set(budgets) == {True, False}


def test_study_is_large_and_of_every_outcome(study: Study, per_kind: int) -> None:
    """Of 45 mutants of each kind there are more than three thousand, a quarter of them of host memory."""
    total = study.total()
    assert len(study.tallies) == len((*ORDINARY, *ON_HOST, *OF_CARRIED, *OF_MACHINE)) >= 3000 / 45
    on_host = _of(study, ON_HOST)
    assert on_host.mutants >= total.mutants / 5
    assert min(on_host.malformed, on_host.accepted, on_host.damaged, on_host.misreported) > 0
    of_machine = _of(study, OF_MACHINE)
    assert of_machine.mutants >= total.mutants / 8
    assert min(of_machine.accepted, of_machine.damaged, of_machine.misreported, of_machine.ruled) > 0
    of_carried = _of(study, OF_CARRIED)
    assert of_carried.mutants >= total.mutants / 6
    assert min(of_carried.malformed, of_carried.accepted, of_carried.damaged, of_carried.ruled) > 0
    assert total.mutants >= len(study.tallies) * per_kind
    assert min(total.malformed, total.accepted, total.damaged, total.misreported) > 0


def test_checker_and_replay_never_contradict_each_other(study: Study) -> None:
    assert study.contradictions == []


def test_rejected_mutants_do_damage(study: Study) -> None:
    assert _of(study, [*ORDINARY, *ON_HOST], *FORMAL).confirmed >= 0.9
    assert _of(study, ON_HOST, *FORMAL).confirmed >= 0.75
    assert _of(study, OF_CARRIED, *FORMAL).confirmed >= 0.75
    assert _of(study, OF_MACHINE, *FORMAL).confirmed >= 0.75


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_checker_that_accepts_everything_is_contradicted(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind of mutation, or of some."""
    for kinds in ("ORDINARY", "ON_HOST", "OF_CARRIED", "OF_MACHINE"):
        monkeypatch.setattr(mutation_study, kinds, getattr(mutation_study, kinds)[::step])
    rejected = 0

    def accept(instance: Instance, schedule: Schedule) -> CheckReport:
        nonlocal rejected
        rejected += not check(instance, schedule).valid
        return CheckReport(valid=True, reasons=())

    monkeypatch.setattr(mutation_study, "check", accept)
    lax = conduct(seed=4, per_kind=1)
    assert len(lax.contradictions) >= 0.95 * rejected > 0


def _of(
    study: Study,
    kinds: Sequence[Mutation | InstanceMutation],
    *but: Mutation | InstanceMutation,
) -> Tally:
    """Sum of the tallies of some kinds, but for others."""
    names = {mutation.__name__ for mutation in kinds} - {mutation.__name__ for mutation in but}
    return study.total(*(name for name in study.tallies if name not in names))


@pytest.mark.parametrize(("host", "carried"), crossed((False, True), (False, True), of=2))
@pytest.mark.parametrize("starts", counts(1, 12))
def test_no_contradiction_far_from_what_a_builder_writes(host: bool, carried: bool, starts: int) -> None:
    walk = wander(seed=3, starts=starts, steps=60, host=host, carried=carried)
    assert walk.total().accepted >= 3 * starts
    assert walk.contradictions == []
