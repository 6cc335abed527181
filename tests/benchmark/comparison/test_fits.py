"""Does it fit: yes only by a checked schedule, no only by a proof, else unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pebbler.benchmark.comparison.fits import WAYS, Fits, Row, fits, optimizer_bytes
from pebbler.benchmark.pictures.sizing import batch_picture
from pebbler.heuristics.methods import Answer, Limits, Method, Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

Toys = Callable[..., None]
ALEXNET = Workload("alexnet", 64, "k40")
STATE = 2 * 4 * 61_100_840
"""What Adam keeps for AlexNet."""
ROOM = 640 * 2**20 + STATE
"""Of a round, all in memory takes 656 MiB, and a single task 583 MiB."""
NAMES = {name.replace("-", "_"): name for way in WAYS for name in way.methods}


@pytest.fixture
def simple(toys: Toys, keep: Method, swap: Method) -> None:
    """Every method offloads what it can, and keeps all where nothing can be copied."""

    def either(instance: Instance, limits: Limits) -> Answer:
        copies = any(block.offload_ns is not None for block in instance.blocks)
        try:
            return swap(instance, limits) if copies else keep(instance, limits)
        except OutOfMemoryError as error:
            raise Refusal(str(error)) from None

    toys(**dict.fromkeys(NAMES.values(), either))


def by_way(found: Fits) -> dict[str, Row]:
    return {row.way: row for row in found.rows}


@pytest.mark.usefixtures("simple")
def test_yes_is_a_checked_schedule_and_no_is_proven() -> None:
    kept: list[tuple[Instance, Schedule]] = []
    found = fits(ALEXNET, ROOM, on_found=lambda *both: kept.append(both))
    rows = by_way(found)
    assert (found.answer, found.stopped_by) == ("yes", "done")
    assert {way: row.answer for way, row in rows.items()} == {
        "in memory": "no",
        "recomputation": "unknown",
        "copies": "yes",
        "both": "yes",
    }
    assert "have to stay" in (rows["in memory"].why or "")
    assert "no place for" in (rows["recomputation"].why or "")
    for row in found.rows:
        largest, excluded = row.batches.largest_batch, row.batches.excluded_from
        assert (row.answer == "yes") == (row.makespan_ns is not None)
        assert (largest or 0) < (excluded or 0)
        assert (row.answer == "no") == ((excluded or 0) <= 64)
    assert {instance.made_from.batch for instance, _ in kept} >= {64, rows["copies"].batches.largest_batch}
    for instance, schedule in kept:
        assert instance.budget_bytes == ROOM
        assert check(instance, schedule).valid
    assert batch_picture({row.way: row.batches for row in found.rows}, 64).startswith(b"\x89PNG")


def test_a_way_takes_over_schedules_of_ways_that_may_do_less(toys: Toys, swap: Method) -> None:
    def copying_alone(instance: Instance, limits: Limits) -> Answer:
        copies = any(block.offload_ns is not None for block in instance.blocks)
        if not copies or any(task.recomputable for task in instance.tasks):
            raise Refusal("no copies, or tasks that run again")
        try:
            return swap(instance, limits)
        except OutOfMemoryError as error:
            raise Refusal(str(error)) from None

    toys(**dict.fromkeys(NAMES.values(), copying_alone))
    rows = by_way(fits(ALEXNET, ROOM))
    assert rows["both"].answer == rows["copies"].answer == "yes"
    assert rows["both"].makespan_ns == rows["copies"].makespan_ns
    assert rows["both"].batches.largest_batch == rows["copies"].batches.largest_batch
    assert rows["recomputation"].answer == "unknown"


@pytest.mark.usefixtures("simple")
def test_the_text_has_the_answer_the_memory_and_what_limits() -> None:
    told = str(fits(ALEXNET, ROOM, reserve_bytes=2**20))
    assert told.startswith("yes: there is a checked schedule\n")
    assert "less a reserve of 1.00 MiB" in told
    assert "of optimizer state" in told
    assert "limits:  copies: at a batch of" in told


@pytest.mark.usefixtures("simple")
def test_where_one_image_is_too_large_every_way_is_impossible() -> None:
    found = fits(ALEXNET, STATE)
    assert found.answer == "no"
    assert {row.answer for row in found.rows} == {"no"}
    assert {row.batches.largest_batch for row in found.rows} == {None}


def test_what_nobody_knows_is_unknown(toys: Toys) -> None:
    def refuses(*_: object) -> Answer:
        raise Refusal("not today")

    toys(**dict.fromkeys(NAMES.values(), refuses))
    found = fits(ALEXNET, ROOM)
    assert found.answer == "unknown"
    assert by_way(found)["copies"].why == "not today"
    assert by_way(found)["in memory"].answer == "no"


@pytest.mark.usefixtures("simple")
def test_a_steady_state_carries_what_would_be_resident() -> None:
    steady = replace(ALEXNET, steady=True, optimizer="momentum")
    found, resident = fits(steady, ROOM, time_limit=0), fits(ALEXNET, ROOM, time_limit=0)
    assert (found.optimizer, found.resident_bytes, resident.carried_bytes) == ("momentum", 0, 0)
    assert found.optimizer_bytes == STATE // 2 == found.carried_bytes // 2
    assert found.ideal_ns > resident.ideal_ns
    told = " ".join(str(found).split())
    assert "for momentum" in told
    assert "are carried from one iteration to the next" in told
    with pytest.raises(PebblerError, match="which 'momentum' updates; leave 'optimizer' out"):
        fits(steady, ROOM, optimizer="adam")


def test_the_optimizer_is_resident() -> None:
    without, adam = (fits(ALEXNET, ROOM, optimizer=name, time_limit=0) for name in ("sgd", "adam"))
    assert adam.optimizer_bytes == adam.resident_bytes - without.resident_bytes == STATE
    assert [optimizer_bytes(ALEXNET, name) for name in ("none", "momentum")] == [0, STATE // 2]
    half = replace(ALEXNET, precision="bf16")  # which keeps the weights in single precision, too
    assert [optimizer_bytes(half, name) for name in ("none", "adam")] == [0, 3 * STATE // 2]
    with pytest.raises(PebblerError, match="no optimizer 'lion'; there are none, sgd, momentum, adam"):
        fits(ALEXNET, ROOM, optimizer="lion")


@pytest.mark.usefixtures("simple")
def test_a_round_is_made_once_for_all_ways() -> None:
    """A torch model is recorded for it."""
    made: list[int] = []

    class Counted(Workload):
        def round(self, sub_batch: int, rounds: int) -> Instance:
            made.append(sub_batch)
            return super().round(sub_batch, rounds)

    fits(Counted("alexnet", 64, "k40"), ROOM, optimizer="none")
    assert 64 in made
    assert len(made) == len(set(made)) > 5


@pytest.mark.usefixtures("simple")
def test_without_time_there_are_proofs_alone() -> None:
    found = fits(ALEXNET, ROOM, time_limit=0)
    assert found.stopped_by == "time limit"
    assert {row.answer for row in found.rows} == {"no", "unknown"}


def test_ctrl_c_keeps_what_is_known(toys: Toys, swap: Method) -> None:
    calls: list[str] = []

    def cut(instance: Instance, limits: Limits) -> Answer:
        calls.append(instance.name)
        if len(calls) == 12:
            raise KeyboardInterrupt
        if not any(block.offload_ns is not None for block in instance.blocks):
            raise Refusal("no copies")
        return swap(instance, limits)

    toys(**dict.fromkeys(NAMES.values(), cut))
    found = fits(ALEXNET, ROOM)
    assert found.stopped_by == "interrupted"
    assert found.answer == "yes"
    assert len(calls) == 12


@pytest.mark.parametrize("network", ["resnet50", "gpt2", "vit_l16"])
def test_what_a_round_needs_only_grows_with_the_batch(network: str) -> None:
    """So a schedule's places do for every smaller batch, and a proof holds for every larger one."""
    small, large = (Workload(network, batch, "v100").instance(0, check_budget=False) for batch in (7, 8))
    for less, more in zip(small.blocks, large.blocks, strict=True):
        assert less.bytes <= more.bytes
    for less, more in zip(small.tasks, large.tasks, strict=True):
        assert less.blocks == more.blocks
        room = {algorithm.name: algorithm.workspace_bytes for algorithm in more.algorithms}
        assert all(a.workspace_bytes <= room[a.name] for a in less.algorithms)
