"""Carried blocks: what the checker asks of both ends of a round, on programs with one such block."""

from typing import Any

import pytest
from msgspec.structs import replace

from pebbler.instances.errors import FormatError
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import stuck_bytes, unlimited_peak
from pebbler.validate.check import check
from pebbler.validate.schedule import Carried, HostResidence, Operation, Residence, Schedule

KIB = 1024
"""Size of each block."""


def _task(name: str, **blocks: tuple[int, ...]) -> Task:
    run = Algorithm(name="a", duration_ns=100, workspace_bytes=0)
    return Task(
        name=name,
        inputs=blocks.get("inputs", ()),
        outputs=blocks.get("outputs", ()),
        updates=blocks.get("updates", ()),
        algorithms=(run,),
    )


def _instance(**changed: Any) -> Instance:
    """`W` is read, leaves for `x` if it may, and is updated."""
    made = Instance(
        name="one",
        engines="duplex",
        budget_bytes=2 * KIB,
        resident_bytes=0,
        blocks=(
            Block(name="W", bytes=KIB, offload_ns=10, prefetch_ns=10, initially="carried"),
            Block(name="x", bytes=KIB, offload_ns=10, prefetch_ns=10),
        ),
        tasks=(_task("read", inputs=(0,)), _task("other", outputs=(1,)), _task("update", updates=(0,))),
    )
    return replace(made, **changed)


def _run(i: int, k: int, start: int, after: tuple[int, ...] = ()) -> Operation:
    return Operation(
        id=i,
        kind="run",
        stream="compute",
        task=k,
        algorithm=0,
        after=after,
        start_ns=start,
        end_ns=start + 100,
    )


def _copy(i: int, kind: Any, start: int, after: tuple[int, ...]) -> Operation:
    stream: Any = "d2h" if kind == "offload" else "h2d"
    return Operation(id=i, kind=kind, stream=stream, block=0, after=after, start_ns=start, end_ns=start + 10)


def _schedule(**changed: Any) -> Schedule:
    """Return the program that keeps W from the beginning to the end."""
    made = Schedule(
        format="pebbler/schedule/1",
        instance="one",
        method="by-hand",
        memory_model="contiguous",
        operations=(_run(0, 0, 0), _run(1, 1, 100), _run(2, 2, 200)),
        residences=(
            Residence(block=0, offset=0, bytes=KIB),
            Residence(block=1, offset=KIB, bytes=KIB, acquired_by=1, released_after=(1,)),
        ),
        makespan_ns=300,
        peak_bytes=2 * KIB,
        carried=(Carried(block=0, device=True, host=False),),
    )
    return replace(made, **changed)


def _back(offset: int = 0, **changed: Any) -> Schedule:
    """Return the program in which W leaves and comes back, to some offset."""
    return _schedule(
        operations=(
            _run(0, 0, 0),
            _copy(3, "offload", 100, (0,)),
            _run(1, 1, 100, (3,) if offset else ()),
            _copy(4, "prefetch", 110, (3,)),
            _run(2, 2, 200, (4,)),
        ),
        residences=(
            Residence(block=0, offset=0, bytes=KIB, released_after=(3,)),
            Residence(block=1, offset=KIB - offset, bytes=KIB, acquired_by=1, released_after=(1,)),
            Residence(block=0, offset=offset, bytes=KIB, acquired_by=4),
        ),
        **changed,
    )


def _from_host(*, saved: bool = True, kept: bool = False, **changed: Any) -> Schedule:
    """Return the program in which W begins on the host, and is saved there or not, and kept or not."""
    last = (5,) if saved else (2,)
    return _schedule(
        operations=(
            _copy(3, "prefetch", 0, ()),
            replace(_run(0, 0, 10), after=(3,)),
            _run(1, 1, 110),
            _run(2, 2, 210),
            *((_copy(5, "offload", 310, (2,)),) if saved else ()),
        ),
        residences=(
            Residence(block=0, offset=0, bytes=KIB, acquired_by=3, released_after=() if kept else last),
            Residence(block=1, offset=KIB, bytes=KIB, acquired_by=1, released_after=(1,)),
        ),
        makespan_ns=320 if saved else 310,
        carried=(Carried(block=0, device=False, host=True),),
        **changed,
    )


def _says(schedule: Schedule, words: str, instance: Instance | None = None) -> None:
    reasons = check(_instance() if instance is None else instance, schedule).reasons
    assert any(words in reason for reason in reasons), reasons


def test_a_block_is_kept_or_comes_back_to_its_place_or_lives_on_the_host() -> None:
    for schedule in (_schedule(), _back(), _from_host()):
        assert check(_instance(), schedule).reasons == ()


def test_a_round_leaves_what_it_finds() -> None:
    _says(_schedule(carried=(Carried(block=0, device=True, host=True),)), "has no valid copy at the end")
    _says(_schedule(carried=(Carried(block=0, device=False, host=True),)), "is not carried on the device")
    _says(_schedule(residences=_schedule().residences[1:]), "where it is not from time 0")
    _says(_back(offset=KIB), "is carried at offset 0 and ends at 1024")
    _says(_from_host(saved=False), "which has no valid copy at the end")
    _says(_from_host(kept=True), "is not carried on the device, where it is kept")
    gone = _schedule(
        residences=(replace(_schedule().residences[0], released_after=(2,)), _schedule().residences[1])
    )
    _says(gone, "where it is not kept in its latest version")


def test_a_copy_on_the_host_is_there_at_first_only_if_the_schedule_says_so() -> None:
    early = replace(_from_host(), carried=(Carried(block=0, device=True, host=False),))
    _says(early, "reads a host copy of 'W' that is missing or stale")


def test_every_carried_block_is_named_and_no_other() -> None:
    _says(_schedule(carried=()), "'carried' names blocks [], the instance carries [0]")
    both = (Carried(block=0, device=True, host=False), Carried(block=1, device=False, host=True))
    _says(_schedule(carried=both), "'carried' names blocks [0, 1]")
    plain = _instance(blocks=(replace(_instance().blocks[0], initially="device"), _instance().blocks[1]))
    _says(_schedule(), "the instance carries []", plain)
    _says(_schedule(carried=()), "the instance carries no block", plain)


def test_in_pages_a_block_may_end_on_other_pages() -> None:
    page = 2 << 20
    blocks = tuple(replace(block, bytes=page) for block in _instance().blocks)
    instance = _instance(blocks=blocks, budget_bytes=2 * page)
    paged = _back(offset=KIB)
    residences = tuple(
        replace(r, bytes=page, offset=None, extents=(((r.offset or 0) // KIB * page, page),))
        for r in paged.residences
    )
    paged = replace(paged, memory_model="paged", page_bytes=page, residences=residences, peak_bytes=2 * page)
    operations = tuple(
        replace(operation, start_ns=start, end_ns=start + operation.end_ns - operation.start_ns)
        for operation, start in zip(paged.operations, (0, 100, 110, 110, 210), strict=True)
    )
    assert check(instance, replace(paged, operations=operations, makespan_ns=310)).reasons == ()


def test_host_memory_holds_carried_copies_at_both_ends_in_one_place() -> None:
    instance = _instance(host_budget_bytes=2 * KIB)
    first, last = (
        HostResidence(block=0, offset=0, bytes=KIB, released_after=(2,)),
        HostResidence(block=0, offset=0, bytes=KIB, acquired_by=5),
    )
    good = replace(_from_host(), host_residences=(first, last), host_peak_bytes=KIB)
    assert check(instance, good).reasons == ()
    moved = replace(good, host_residences=(first, replace(last, offset=KIB)), host_peak_bytes=2 * KIB)
    _says(moved, "the host copy of 'W' is carried at 0 and ends at 1024", instance)
    dropped = replace(good, host_residences=(first, replace(last, released_after=(5,))))
    _says(dropped, "lasts to the end where it is carried", instance)
    passing = HostResidence(block=0, offset=0, bytes=KIB, acquired_by=3, released_after=(4,))
    assert check(instance, replace(_back(), host_residences=(passing,), host_peak_bytes=KIB)).reasons == ()
    left = replace(passing, released_after=())
    _says(replace(_back(), host_residences=(left,), host_peak_bytes=KIB), "lasts to the end", instance)


def test_the_format_names_what_is_wrong() -> None:
    with pytest.raises(FormatError, match="it is carried, so it ends where it begins"):
        _instance(blocks=(replace(_instance().blocks[0], finally_="device"), _instance().blocks[1]))
    with pytest.raises(FormatError, match="several GPUs carry no blocks yet"):
        _instance(
            cluster=Cluster(
                gpus=2, bus_bytes_per_second=10**9, core_bytes_per_second=1, host_bytes_per_second=1
            )
        )
    with pytest.raises(FormatError, match="the block is nowhere"):
        _schedule(carried=(Carried(block=0, device=False, host=False),))
    with pytest.raises(FormatError, match="name each once, in order"):
        _schedule(carried=(Carried(block=0, device=True, host=False),) * 2)


def test_memory_that_carried_blocks_take() -> None:
    assert unlimited_peak(_instance()) == 2 * KIB
    assert stuck_bytes(_instance()) == [0, 0, 0]
    fixed = replace(_instance().blocks[0], offload_ns=None)
    assert stuck_bytes(_instance(blocks=(fixed, _instance().blocks[1]))) == [0, KIB, 0]
