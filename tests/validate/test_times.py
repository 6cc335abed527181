"""Times where copies share a link or slow runs down: by hand, by the tick, and by the checker."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown, Task
from pebbler.validate.order import Order
from pebbler.validate.schedule import Kind, Operation, Schedule, Stream
from pebbler.validate.simulate import simulate
from pebbler.validate.times import time_reasons

from ..samples import chunks

GB = 10**9


def instance(
    *tasks: tuple[int, Slowdown | msgspec.UnsetType],
    copies: tuple[tuple[int, int, int], ...] = ((80, 8, 8),),
    link: int | None = None,
    single: bool = False,
) -> Instance:
    """An instance with these tasks, by duration and slowdown, and blocks, by bytes and times of copies."""
    return Instance(
        name="hand",
        engines="single" if single else "duplex",
        budget_bytes=0,
        resident_bytes=0,
        blocks=tuple(
            Block(name=f"b{d}", bytes=size, offload_ns=out, prefetch_ns=back)
            for d, (size, out, back) in enumerate(copies)
        ),
        tasks=tuple(
            Task(
                name=f"t{k}",
                inputs=(),
                outputs=(),
                algorithms=(Algorithm(name="a", duration_ns=duration, workspace_bytes=0),),
                slowdown_ppm=slowdown,
            )
            for k, (duration, slowdown) in enumerate(tasks or ((0, UNSET),))
        ),
        link=UNSET if link is None else Link(both_bytes_per_second=link),
    )


def run(i: int, task: int = 0, after: tuple[int, ...] = ()) -> Operation:
    return Operation(
        id=i, stream="compute", kind="run", task=task, algorithm=0, after=after, start_ns=0, end_ns=0
    )


def copy(
    i: int, kind: Kind, block: int = 0, after: tuple[int, ...] = (), *, single: bool = False
) -> Operation:
    stream: Stream = "copy" if single else "d2h" if kind == "offload" else "h2d"
    return Operation(id=i, stream=stream, kind=kind, block=block, after=after, start_ns=0, end_ns=0)


def program(*operations: Operation) -> Schedule:
    return Schedule(
        format="pebbler/schedule/1",
        instance="hand",
        method="hand",
        memory_model="divisible",
        operations=operations,
        residences=(),
        makespan_ns=0,
        peak_bytes=0,
    )


def timed(schedule: Schedule, starts: list[int], ends: list[int]) -> Schedule:
    return replace(
        schedule,
        operations=tuple(
            replace(operation, start_ns=start, end_ns=end)
            for operation, start, end in zip(schedule.operations, starts, ends, strict=True)
        ),
        makespan_ns=max(ends, default=0),
    )


def by_the_tick(given: Instance, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Simulate nanosecond by nanosecond, with the words of the formats page."""
    operations = schedule.operations
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    done: dict[int, Fraction] = {}
    wanted: dict[int, Fraction] = {}
    own: dict[int, Fraction] = {}
    now = 0
    while len(ends) < len(operations):
        changed = True
        while changed:
            changed = False
            for i, operation in enumerate(operations):
                first = all(
                    ends.get(j, now + 1) <= now for j in range(i) if operations[j].stream == operation.stream
                )
                if i in starts or not first or any(ends.get(j, now + 1) > now for j in operation.after):
                    continue
                starts[i], done[i], changed = now, Fraction(0), True
                if operation.task is not None:
                    wanted[i] = Fraction(given.tasks[operation.task].algorithms[0].duration_ns)
                else:
                    block = given.blocks[operation.block or 0]
                    own_ns = block.offload_ns if operation.kind == "offload" else block.prefetch_ns
                    wanted[i], own[i] = Fraction(own_ns or 0), Fraction(1)
                    if given.link is not UNSET and own_ns:
                        rate = Fraction(given.link.both_bytes_per_second, GB)
                        saved = block.bytes - rate * own_ns
                        wanted[i] = rate * own_ns if 0 < saved <= rate else Fraction(block.bytes)
                        own[i] = wanted[i] / own_ns
                if not wanted[i]:
                    ends[i] = now
        flying = [i for i in starts if i not in ends and i in own]
        kinds = {operations[i].kind for i in flying}
        room = None if given.link is UNSET else Fraction(given.link.both_bytes_per_second, GB)
        for i in starts:
            if i in ends:
                continue
            if i in own:
                others = [own[j] for j in flying if j != i]
                speed = own[i]
                if room is not None:
                    speed = min(own[i], room) if not others else min(own[i], max(room - others[0], room / 2))
                done[i] += speed
            else:
                slowdown = given.tasks[operations[i].task or 0].slowdown_ppm
                taken = 0 if slowdown is UNSET else sum(getattr(slowdown, kind) for kind in kinds)
                done[i] += 1 - Fraction(taken, 10**6)
        now += 1
        for i in starts:
            if i not in ends and done[i] >= wanted[i]:
                ends[i] = now
    return [starts[i] for i in range(len(operations))], [ends[i] for i in range(len(operations))]


def test_two_copies_each_get_half_of_a_link_that_is_too_slow_for_both() -> None:
    given = instance(copies=((80, 8, 8), (40, 4, 4)), link=10 * GB)
    both = program(copy(0, "offload"), copy(1, "prefetch", 1))
    assert simulate(given, both) == ([0, 0], [12, 8])
    # 40 bytes each in 8 ns at 5 bytes a nanosecond; the other 40 alone in 4


def test_the_slower_one_gets_all_that_it_wants() -> None:
    given = instance(copies=((80, 8, 8), (16, 8, 8)), link=10 * GB)
    assert simulate(given, program(copy(0, "offload"), copy(1, "prefetch", 1))) == ([0, 0], [10, 8])


def test_a_link_is_slower_than_a_copy_alone() -> None:
    given = instance(copies=((80, 8, 8),), link=3 * GB)
    assert simulate(given, program(copy(0, "offload"), copy(1, "prefetch", after=(0,)))) == (
        [0, 27],
        [27, 54],
    )
    given = instance(copies=((80, 8, 8),), link=3 * GB, single=True)
    one = program(copy(0, "offload", single=True), copy(1, "prefetch", single=True))
    assert simulate(given, one) == ([0, 27], [27, 54])


def test_a_copy_that_takes_no_time_loads_nothing() -> None:
    given = instance(copies=((80, 8, 0),), link=10 * GB)
    assert simulate(given, program(copy(0, "offload"), copy(1, "prefetch"))) == ([0, 0], [8, 0])


def test_time_that_is_rounded_down_is_no_load() -> None:
    given = instance(copies=((85, 8, 9),), link=10 * GB)  # 85 bytes would take 8.5 ns
    assert simulate(given, program(copy(0, "offload"))) == ([0], [8])
    assert simulate(given, program(copy(0, "prefetch"))) == ([0], [9])


@pytest.mark.parametrize("link", [20, 25, 1000])
def test_a_link_as_fast_as_both_together_changes_nothing(link: int) -> None:
    rng = Random(link)
    for _ in range(20):
        given, schedule = drawn(rng)
        plain = replace(given, link=UNSET)
        rate = sum(
            max(
                (block.bytes * GB // ns + 1 for block in given.blocks for ns in [getattr(block, way)] if ns),
                default=1,
            )
            for way in ("offload_ns", "prefetch_ns")
        )
        shared = replace(given, link=Link(both_bytes_per_second=rate * link // 20))
        assert simulate(shared, schedule) == simulate(plain, schedule)


def test_copies_slow_a_run_down_while_they_are_under_way() -> None:
    slow = Slowdown(offload=250_000, prefetch=500_000)
    given = instance((20, slow), (20, UNSET))
    together = program(
        run(0), copy(1, "offload"), copy(2, "prefetch"), run(3, 1), copy(4, "offload", after=(0,))
    )
    # 8 ns at a quarter, 18 at full speed
    assert simulate(given, together) == ([0, 0, 0, 26, 26], [26, 8, 8, 46, 34])


def test_a_run_ends_at_the_first_nanosecond_by_which_it_is_done() -> None:
    given = instance((5, Slowdown(offload=300_000)))
    assert simulate(given, program(run(0), copy(1, "offload"))) == ([0, 0], [8, 8])  # 5 / 0.7 is 7.14
    assert simulate(given, program(run(0), copy(1, "offload")), [7, 8]) == ([0, 0], [10, 8])  # 9.4


def test_a_run_that_loses_all_of_its_speed_stands_still() -> None:
    given = instance((5, Slowdown(prefetch=1_000_000)), (0, Slowdown(prefetch=1_000_000)))
    assert simulate(given, program(run(0), copy(1, "prefetch"), run(2, 1))) == ([0, 0, 13], [13, 8, 13])
    assert simulate(given, program(copy(1, "prefetch"), run(2, 1))) == ([0, 0], [8, 0])


def test_a_run_is_slowed_longer_where_copies_share_a_link() -> None:
    given = instance((10, Slowdown(offload=500_000)), link=10 * GB)
    # the offload takes 16 ns beside the prefetch, in which the run does 8
    assert simulate(given, program(run(0), copy(1, "offload"), copy(2, "prefetch"))) == (
        [0] * 3,
        [18, 16, 16],
    )


def test_a_block_in_whole_pages_loads_its_own_bytes() -> None:
    given = instance(copies=((80, 8, 8), (80, 8, 8)), link=10 * GB)
    pages = replace(given, blocks=tuple(replace(block, bytes=100, load_bytes=80) for block in given.blocks))
    both = program(copy(0, "offload"), copy(1, "prefetch", 1))
    assert simulate(pages, both) == simulate(given, both) == ([0, 0], [16, 16])
    right = timed(both, [0, 0], [16, 16])
    assert time_reasons(pages, right, Order(right)) == ([], [16, 16])


def test_two_gpus_in_step_meet_one_whose_host_has_half() -> None:
    """Two GPUs with single engines in step on a bus of 2 R are one GPU on a link of R, if times divide."""
    one = instance((7, UNSET), copies=((80, 8, 8), (30, 5, 3)), link=6 * GB, single=True)
    cluster = Cluster(
        gpus=2,
        bus_bytes_per_second=12 * GB,
        core_bytes_per_second=GB,
        host_bytes_per_second=GB,
        gradients=(),
    )
    two = replace(one, link=UNSET, cluster=cluster)
    operations = (
        copy(0, "offload", single=True),
        run(1),
        copy(2, "prefetch", 1, single=True),
        copy(3, "offload", 1, (1,), single=True),
    )
    count = len(operations)
    twice = program(
        *operations,
        *(
            replace(
                operation, id=operation.id + count, gpu=1, after=tuple(i + count for i in operation.after)
            )
            for operation in operations
        ),
    )
    starts, ends = simulate(one, program(*operations))
    assert simulate(two, twice) == (starts * 2, ends * 2)


def test_gradients_that_two_gpus_add_up_on_the_host_meet_work_of_a_host_with_half_the_rate() -> None:
    """Gradients go out, are added up one after the other, and weights return, in step on a bus of 2 R."""
    one = instance((7, UNSET), (9, UNSET), copies=((80, 8, 8),), link=6 * GB)
    update = Algorithm(name="a", duration_ns=16, workspace_bytes=0, on="host")
    one = replace(one, tasks=(one.tasks[0], replace(one.tasks[1], algorithms=(update,))))
    on_host = replace(run(2, 1, (1,)), stream="host")
    alone = program(run(0), copy(1, "offload", after=(0,)), on_host, copy(3, "prefetch", after=(2,)))
    gradient = Gradient(name="g", bytes=80, offload_ns=8, prefetch_ns=8, produced_by=0, used_by=())
    cluster = Cluster(
        gpus=2,
        bus_bytes_per_second=12 * GB,
        core_bytes_per_second=10 * GB,
        host_bytes_per_second=10 * GB,
        gradients=(gradient,),
    )
    two = replace(one, link=UNSET, cluster=cluster, tasks=one.tasks[:1])
    runs = [replace(run(gpu), gpu=gpu) for gpu in range(2)]

    def step(i: int, kind: Kind, stream: Stream, gpu: int, *after: int) -> Operation:
        return Operation(
            id=i, kind=kind, stream=stream, gpu=gpu, gradient=0, after=after, start_ns=0, end_ns=0
        )

    together = program(
        *runs,
        *(step(2 + gpu, "send", "d2h", gpu, gpu) for gpu in range(2)),
        *(step(4 + gpu, "accumulate", "cpu", gpu, 2 + gpu) for gpu in range(2)),
        *(step(6 + gpu, "return", "h2d", gpu, 4, 5) for gpu in range(2)),
    )
    _, ends = simulate(one, alone)
    _, both = simulate(two, together)
    assert (both[0], both[2], both[5], both[6]) == tuple(ends) == (7, 21, 37, 51)
    assert (both[1], both[3], both[7]) == (ends[0], ends[1], ends[3])


def drawn(rng: Random) -> tuple[Instance, Schedule]:
    """An instance with a link, slowdown or both, and operations with random waits, valid or not."""
    single = rng.random() < 0.25
    keys = rng.choice(("link", "slowdown", "both"))

    def slowdown() -> Slowdown | msgspec.UnsetType:
        if keys == "link" or rng.random() < 0.2:
            return UNSET
        out = rng.choice((0, 250_000, 333_333, 1_000_000, rng.randint(0, 10**6)))
        back = 10**6 - out if rng.random() < 0.2 else rng.randint(0, 10**6 - out)
        return Slowdown(offload=out, prefetch=back)

    given = instance(
        *((rng.choice((0, 1, 9, rng.randint(0, 20))), slowdown()) for _ in range(3)),
        copies=tuple(
            (
                rng.randint(1, 100),
                rng.choice((0, 1, rng.randint(0, 15))),
                rng.choice((0, 1, rng.randint(0, 15))),
            )
            for _ in range(4)
        ),
        link=None
        if keys == "slowdown"
        else rng.choice((1, 2, 7, 10, 30)) * GB + rng.randint(0, 1) * rng.randrange(GB),
        single=single,
    )
    operations = []
    for i in range(rng.randint(1, 10)):
        after = tuple(j for j in range(i) if rng.random() < 0.15)
        if rng.random() < 0.4:
            operations.append(run(i, rng.randrange(3), after))
        else:
            kind: Kind = rng.choice(("offload", "prefetch"))
            operations.append(copy(i, kind, rng.randrange(4), after, single=single))
    return given, program(*operations)


@pytest.mark.parametrize("seed", chunks(range(4)))
def test_simulation_by_events_is_simulation_by_the_tick_and_the_checker_accepts_nothing_else(
    seed: int,
) -> None:
    rng = Random(seed)
    for _ in range(100):
        given, schedule = drawn(rng)
        starts, ends = simulate(given, schedule)
        assert (starts, ends) == by_the_tick(given, schedule)
        right = timed(schedule, starts, ends)
        assert time_reasons(given, right, Order(right)) == ([], ends)
        for _ in range(5):
            i, by = rng.randrange(len(ends)), rng.choice((-1, 1, rng.randint(-9, 9) or 2))
            moved = max(ends[i] + by, 0)
            if moved == ends[i]:
                continue
            others = [*ends[:i], moved, *ends[i + 1 :]]
            wrong = timed(schedule, starts, others)
            assert time_reasons(given, wrong, Order(wrong))[0]
            following = _followed(schedule, starts, others, given)
            if following != right:
                assert time_reasons(given, following, Order(following))[0]


def _followed(schedule: Schedule, starts: list[int], ends: list[int], given: Instance) -> Schedule:
    """Operations that take as long as these times say, and start when what they wait for ends."""
    durations = [max(end - start, 0) for start, end in zip(starts, ends, strict=True)]
    tasks = tuple(replace(task, slowdown_ppm=UNSET) for task in given.tasks)
    plain = replace(given, link=UNSET, tasks=tasks)
    return timed(schedule, *simulate(plain, schedule, durations))
