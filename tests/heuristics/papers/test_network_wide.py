from __future__ import annotations

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.network_wide import network_wide
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import ideal_ns, unlimited_peak, with_budget
from pebbler.validate.check import check
from pebbler.validate.schedule import Schedule

X, Y1, Y2, D1, D0 = range(5)


def block(name: str, size: int = 8, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": 3, "prefetch_ns": 4, **keys})


@pytest.fixture
def instance() -> Instance:
    """Two layers; nobody reads Y2 again, so that it is dead after the forward pass."""
    lean = Algorithm(name="lean", duration_ns=9, workspace_bytes=0)
    middling = Algorithm(name="middling", duration_ns=5, workspace_bytes=4)
    fast = Algorithm(name="fast", duration_ns=2, workspace_bytes=12)

    def task(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Task:
        return Task(name=name, inputs=inputs, outputs=outputs, algorithms=(lean, fast, middling))

    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=10_000,
        resident_bytes=100,
        alignment_bytes=4,
        blocks=(block("x", initially="device"), block("y1"), block("y2"), block("d1"), block("d0")),
        tasks=(
            task("FP(1)", (X,), (Y1,)),
            task("FP(2)", (Y1,), (Y2,)),
            task("BP(2)", (Y1,), (D1,)),
            task("BP(1)", (X, D1), (D0,)),
        ),
        meta={
            "layers": [
                {"name": "1", "kind": "conv", "forward": [0], "backward": [3]},
                {"name": "2", "kind": "conv", "forward": [1], "backward": [2]},
            ]
        },
    )


def schedule_of(instance: Instance, pool: int = 10_000) -> Schedule:
    tried = with_budget(instance, instance.resident_bytes + pool)
    schedule = network_wide(tried, Limits()).schedule
    assert schedule is not None
    assert check(tried, schedule).reasons == ()
    return schedule


def algorithms(schedule: Schedule) -> list[int | None]:
    return [o.algorithm for o in schedule.operations if o.kind == "run"]


def test_it_is_registered_by_its_name() -> None:
    assert find_method("network-wide").call is network_wide


def test_with_all_the_memory_it_takes_the_ideal_time(instance: Instance) -> None:
    schedule = schedule_of(instance)
    assert schedule.makespan_ns == ideal_ns(instance) == 8
    assert {o.kind for o in schedule.operations} == {"run"}


def test_feature_maps_stay_and_gradients_are_reused(instance: Instance) -> None:
    schedule = schedule_of(instance)
    kept = {r.block for r in schedule.residences if r.block is not None and not r.released_after}
    assert kept == {X, Y1, Y2}
    assert schedule.peak_bytes > unlimited_peak(instance)


@pytest.mark.parametrize(
    ("pool", "chosen"),
    [
        (40 + 12, [1, 1, 1, 1]),
        (40 + 11, [1, 1, 1, 2]),
        (40 + 4, [1, 1, 1, 2]),
        (40 + 3, [1, 1, 2, 0]),
        (40, [1, 1, 2, 0]),
    ],
)
def test_each_task_takes_the_fastest_that_has_room(instance: Instance, pool: int, chosen: list[int]) -> None:
    assert algorithms(schedule_of(instance, pool)) == chosen


def test_a_refusal_names_the_task(instance: Instance) -> None:
    with pytest.raises(Refusal, match=r"no place for block 'd0' \(8 B\).* at task BP\(1\)"):
        schedule_of(instance, 39)
    with pytest.raises(Refusal, match=r"no place for block 'y2' .* at task FP\(2\)"):
        schedule_of(instance, 20)


def test_a_refusal_at_the_end_names_a_task_too(instance: Instance) -> None:
    weights = block("w", 500, initially="host", finally_="device")
    more = msgspec.structs.replace(instance, budget_bytes=140, blocks=(*instance.blocks, weights))
    with pytest.raises(Refusal, match="no place for block 'w'"):
        network_wide(more, Limits())


def test_what_starts_on_the_host_is_fetched_when_it_is_needed(instance: Instance) -> None:
    blocks = (block("x", initially="host"), *instance.blocks[1:])
    schedule = schedule_of(msgspec.structs.replace(instance, blocks=blocks))
    assert [o.kind for o in schedule.operations] == ["prefetch", "run", "run", "run", "run"]
    assert schedule.makespan_ns == 4 + 8


def test_pages(instance: Instance) -> None:
    pages = with_budget(instance, 100 + 6 * 2**21)
    schedule = network_wide(pages, Limits(memory="paged")).schedule
    assert schedule is not None
    assert schedule.memory_model == "paged"
    assert check(pages, schedule).reasons == ()
