"""Host memory with a budget: what the checker asks of copies' places, on programs of two blocks."""

import msgspec
import pytest
from msgspec.structs import replace

from pebbler.instances.errors import FormatError
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.validate.check import check
from pebbler.validate.schedule import HostResidence, Operation, Residence, Schedule

KIB = 1024
"""Size of each block, so that host memory of 1 KiB has room for one copy."""


def _task(k: int, *, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> Task:
    return Task(
        name=f"t{k}",
        inputs=inputs,
        outputs=outputs,
        algorithms=(Algorithm(name="a", duration_ns=100, workspace_bytes=0),),
    )


def _instance(host: int = KIB, finally_: str = "anywhere") -> Instance:
    """`x` and `y` are written, leave in turn and are read again; the pool has room for one of them."""
    x = Block(name="x", bytes=KIB, offload_ns=10, prefetch_ns=10)
    y = Block(name="y", bytes=KIB, offload_ns=10, prefetch_ns=10, finally_=finally_)  # type: ignore[arg-type]
    return Instance(
        name="two",
        engines="duplex",
        budget_bytes=KIB,
        resident_bytes=0,
        blocks=(x, y),
        tasks=(_task(0, outputs=(0,)), _task(1), _task(2, outputs=(1,)), _task(3), _task(4, inputs=(0,))),
        host_budget_bytes=host,
    )


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


def _copy(i: int, kind: str, block: int, start: int, after: tuple[int, ...]) -> Operation:
    stream = "d2h" if kind == "offload" else "h2d"
    return Operation(
        id=i, kind=kind, stream=stream, block=block, after=after, start_ns=start, end_ns=start + 10
    )  # type: ignore[arg-type]


def _schedule(*copies: HostResidence, peak: int = KIB) -> Schedule:
    """Return the program: x leaves for y, and y for x."""
    return Schedule(
        format="pebbler/schedule/1",
        instance="two",
        method="by-hand",
        memory_model="contiguous",
        operations=(
            _run(0, 0, 0),
            _copy(1, "offload", 0, 100, (0,)),
            _run(2, 1, 100),
            _run(3, 2, 200, (1,)),
            _run(4, 3, 300),
            _copy(5, "prefetch", 0, 300, (1, 3)),
            _run(6, 4, 400, (5,)),
        ),
        residences=(
            Residence(block=0, offset=0, bytes=KIB, acquired_by=0, released_after=(1,)),
            Residence(block=1, offset=0, bytes=KIB, acquired_by=3, released_after=(3,)),
            Residence(block=0, offset=0, bytes=KIB, acquired_by=5, released_after=(6,)),
        ),
        makespan_ns=500,
        peak_bytes=KIB,
        host_residences=copies,
        host_peak_bytes=peak,
    )


KEPT = HostResidence(block=0, offset=0, bytes=KIB, acquired_by=1, released_after=(5,))


def _reasons(schedule: Schedule, instance: Instance | None = None) -> tuple[str, ...]:
    return check(instance or _instance(), schedule).reasons


def test_a_copy_that_is_there_while_it_is_read_is_valid() -> None:
    assert not _reasons(_schedule(KEPT))
    assert not _reasons(_schedule(replace(KEPT, released_after=())))


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (replace(KEPT, released_after=(4,)), "may have been released by then"),
        (replace(KEPT, released_after=(1,)), "may have been released by then"),
        (replace(KEPT, bytes=KIB - 1), "1023 bytes, the block 1024"),
        (replace(KEPT, offset=512), "ends at byte 1536 of 1024"),
        (replace(KEPT, offset=100), "not a multiple of 512"),
        (replace(KEPT, acquired_by=0), "acquired by operation 0 (run t0), which does not write it"),
        (replace(KEPT, acquired_by=None), "there from time 0, when the block does not exist"),
        (replace(KEPT, acquired_by=5), "does not write it"),
        (replace(KEPT, block=1), "does not write it"),
        (replace(KEPT, released_after=(0,)), "not after it is acquired"),
    ],
)
def test_a_wrong_residence_is_named(copy: HostResidence, words: str) -> None:
    assert any(words in reason for reason in _reasons(_schedule(copy))), _reasons(_schedule(copy))


def test_every_offload_has_its_copy() -> None:
    assert "must acquire exactly one host residence" in _reasons(_schedule(peak=0))[0]
    twice = _reasons(_schedule(KEPT, replace(KEPT, offset=KIB), peak=2 * KIB), _instance(2 * KIB))
    assert any("must acquire exactly one" in reason for reason in twice)


def test_the_peak_is_the_highest_byte() -> None:
    high = replace(KEPT, offset=KIB)
    assert not _reasons(_schedule(high, peak=2 * KIB), _instance(2 * KIB))
    assert "host_peak_bytes is 1024, it is 2048" in _reasons(_schedule(high), _instance(2 * KIB))[0]


def test_the_keys_belong_to_a_budget() -> None:
    unlimited = replace(_instance(), host_budget_bytes=msgspec.UNSET)
    assert "host memory has no budget" in _reasons(_schedule(KEPT), unlimited)[0]
    bare = replace(_schedule(KEPT), host_residences=msgspec.UNSET, host_peak_bytes=msgspec.UNSET)
    assert not check(unlimited, bare).reasons
    assert "no host_residences" in _reasons(bare)[0]
    with pytest.raises(FormatError, match="come together"):
        replace(_schedule(KEPT), host_peak_bytes=msgspec.UNSET)
    with pytest.raises(FormatError, match="names operation 99"):
        _schedule(replace(KEPT, acquired_by=99))


def _twice(second: HostResidence) -> tuple[Instance, Schedule]:
    """Return a program in which y leaves after x, and must end on the host: only one of them fits there."""
    instance = _instance(KIB, "host")
    first = _schedule()
    leaves = _copy(7, "offload", 1, 300, (3,))
    operations = list(first.operations)
    operations[5:6] = [leaves, replace(operations[5], after=(1, 3, 7), start_ns=310, end_ns=320)]
    residences = list(first.residences)
    residences[1] = replace(residences[1], released_after=(7,))
    schedule = replace(
        first,
        operations=tuple(operations),
        residences=tuple(residences),
        host_residences=(KEPT, second),
        host_peak_bytes=second.offset + KIB if second.offset is not None else KIB,
    )
    return instance, schedule


def test_copies_that_share_bytes_follow_each_other() -> None:
    instance, schedule = _twice(HostResidence(block=1, offset=0, bytes=KIB, acquired_by=7))
    assert any("overlaps the host copy of 'x'" in reason for reason in check(instance, schedule).reasons)
    instance, schedule = _twice(HostResidence(block=1, offset=KIB, bytes=KIB, acquired_by=7))
    assert "of 1024 bytes of host memory" in check(instance, schedule).reasons[0]
    assert not check(replace(instance, host_budget_bytes=2 * KIB), schedule).reasons


def test_what_must_end_on_the_host_is_kept() -> None:
    dropped = HostResidence(block=1, offset=KIB, bytes=KIB, acquired_by=7, released_after=(7,))
    instance, schedule = _twice(dropped)
    reasons = check(replace(instance, host_budget_bytes=2 * KIB), schedule).reasons
    assert "must be there at the end, and is released" in reasons[0]


def test_what_begins_on_the_host_has_a_copy_where_the_schedule_says_so() -> None:
    block = Block(name="x", bytes=KIB, offload_ns=10, prefetch_ns=10, initially="host")
    instance = Instance(
        name="one",
        engines="duplex",
        budget_bytes=KIB,
        resident_bytes=0,
        blocks=(block,),
        tasks=(_task(0, inputs=(0,)),),
        host_budget_bytes=KIB,
    )
    copy = HostResidence(block=0, offset=0, bytes=KIB, released_after=(0,))
    schedule = Schedule(
        format="pebbler/schedule/1",
        instance="one",
        method="by-hand",
        memory_model="contiguous",
        operations=(_copy(0, "prefetch", 0, 0, ()), _run(1, 0, 10, (0,))),
        residences=(Residence(block=0, offset=0, bytes=KIB, acquired_by=0, released_after=(1,)),),
        makespan_ns=110,
        peak_bytes=KIB,
        host_residences=(copy,),
        host_peak_bytes=KIB,
    )
    assert check(instance, schedule).valid
    without = replace(schedule, host_residences=(), host_peak_bytes=0)
    assert "missing or stale" in check(instance, without).reasons[0]
    both = replace(schedule, host_residences=(copy, replace(copy, offset=KIB)), host_peak_bytes=2 * KIB)
    reasons = check(replace(instance, host_budget_bytes=2 * KIB), both).reasons
    assert "twice from time 0" in reasons[0]


def test_divisible_host_memory_counts_bytes_at_the_simulated_times() -> None:
    instance, schedule = _twice(HostResidence(block=1, offset=0, bytes=KIB, acquired_by=7))
    flat = replace(
        schedule,
        memory_model="divisible",
        residences=tuple(replace(residence, offset=None) for residence in schedule.residences),
        host_residences=tuple(replace(copy, offset=None) for copy in schedule.host_copies),
        host_peak_bytes=2 * KIB,
    )
    assert "2048 bytes are in 1024 bytes of host memory" in check(instance, flat).reasons[0]
    assert check(replace(instance, host_budget_bytes=2 * KIB), flat).valid


def test_several_gpus_have_no_budget_of_host_memory() -> None:
    cluster = Cluster(
        gpus=2, bus_bytes_per_second=10**9, core_bytes_per_second=10**9, host_bytes_per_second=10**9
    )
    with pytest.raises(FormatError, match="host memory of several GPUs has no budget yet"):
        replace(_instance(), cluster=cluster)
