"""moDNN's Algorithm 1 on reconstructions of the papers' figures, with sizes and times of our own."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget, with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.units import PAGE_BYTES, ceil_to
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel, Operation, Schedule

from ...samples import counts
from ...validate.random_programs import random_instance

Step = tuple[str, str, str, list[tuple[int, int]]]
"""Name, inputs, outputs, and (duration, workspace) of the algorithms; a letter a block."""


def made_of(pool: int, sizes: dict[str, int], steps: list[Step], **keys: object) -> Instance:
    """Tasks on blocks that copy a byte a nanosecond; `device` and `host` name those that exist at first."""
    names = list(sizes)
    copies = keys.pop("copies", {})
    places = dict.fromkeys(str(keys.pop("device", "")), "device")
    places |= dict.fromkeys(str(keys.pop("host", "")), "host")
    assert isinstance(copies, dict)
    return Instance(
        name="figure",
        engines="duplex",
        budget_bytes=pool,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(
            Block(
                name=name,
                bytes=size,
                offload_ns=copies.get(name, size),
                prefetch_ns=copies.get(name, size),
                initially=places.get(name, "absent"),  # type: ignore[arg-type]
            )
            for name, size in sizes.items()
        ),
        tasks=tuple(
            Task(
                name=name,
                inputs=tuple(map(names.index, reads)),
                outputs=tuple(map(names.index, writes)),
                algorithms=tuple(
                    Algorithm(name=f"a{i}", duration_ns=time, workspace_bytes=size)
                    for i, (time, size) in enumerate(algorithms)
                ),
            )
            for name, reads, writes, algorithms in steps
        ),
    )


def solve(instance: Instance, method: str = "modnn", memory: MemoryModel = "contiguous") -> Schedule:
    schedule = find_method(method).call(instance, Limits(memory=memory)).schedule  # type: ignore[arg-type]
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def runs(instance: Instance, schedule: Schedule) -> dict[str, Operation]:
    return {instance.tasks[o.task].name: o for o in schedule.operations if o.task is not None}


def copies(instance: Instance, schedule: Schedule, kind: str) -> list[tuple[str, int]]:
    """Names and starts of the copies of a kind."""
    return [
        (instance.blocks[o.block].name, o.start_ns)
        for o in schedule.operations
        if o.kind == kind and o.block is not None
    ]


# --- offloading (section 5.2.1) ---------------------------------------------------------------------------


@pytest.mark.parametrize(("between", "delay"), [(1, 3), (3, 1), (4, 0), (9, 0)])
def test_figure_3_an_offload_delays_a_task_unless_others_run_meanwhile(between: int, delay: int) -> None:
    """A, made by t, leaves from the end of t on; s needs its place."""
    instance = made_of(
        8,
        {"A": 4, "B": 2, "C": 4},
        [
            ("t", "", "A", [(5, 0)]),
            ("between", "A", "B", [(between, 0)]),
            ("s", "B", "C", [(20, 0)]),
            ("end", "AC", "", [(1, 0)]),
        ],
    )
    schedule = solve(instance)
    assert copies(instance, schedule, "offload") == [("A", 5)]
    assert runs(instance, schedule)["s"].start_ns == 5 + between + delay
    assert schedule.meta == {"defragmentations": 0}


def test_figure_5_what_has_not_been_used_since_it_was_made_stays() -> None:
    """K is needed later than A, but only A has been used."""
    instance = made_of(
        6,
        {"A": 2, "K": 2, "B": 2, "C": 2},
        [
            ("1", "", "AK", [(9, 0)]),
            ("2", "A", "B", [(9, 0)]),
            ("3", "B", "C", [(9, 0)]),
            ("4", "AC", "", [(9, 0)]),
            ("5", "K", "", [(9, 0)]),
        ],
    )
    assert [name for name, _ in copies(instance, solve(instance), "offload")] == ["A"]


@pytest.mark.parametrize(
    ("network", "batch", "budget"),
    [
        ("alexnet", 128, "1.1xMmin"),
        ("resnet18", 32, "75%"),
        ("vgg19", 64, "1.3xMmin"),
        ("googlenet", 128, "50%"),
    ],
)
def test_without_defragmentation_nothing_leaves_before_it_is_used_or_is_copied_out_twice(
    network: str, batch: int, budget: str
) -> None:
    instance = Workload(network, batch, "K40").instance(budget)
    schedule = solve(instance)
    assert schedule.meta == {"defragmentations": 0}
    offloads = Counter(o.block for o in schedule.operations if o.kind == "offload")
    prefetches = Counter(o.block for o in schedule.operations if o.kind == "prefetch")
    assert prefetches
    for d, block in enumerate(instance.blocks):
        assert offloads[d] <= len(instance.writers[d])
        assert block.initially == "absent" or not offloads[d]
    touched: dict[int, int] = {}
    for operation in schedule.operations:
        if operation.task is not None:
            task = instance.tasks[operation.task]
            touched.update(dict.fromkeys((*task.inputs, *task.updates), 1))
            touched.update(dict.fromkeys(task.outputs, 0))
        elif operation.kind == "prefetch" and operation.block is not None:
            assert touched.get(operation.block, 1), "it had come, and left before it was used"
            touched[operation.block] = 0


def test_what_the_host_has_is_freed_instead_of_offloaded_again() -> None:
    """A leaves for C and again for E; the second time its copy is still good."""
    instance = made_of(
        4,
        {"A": 2, "B": 1, "C": 2, "D": 1, "E": 2},
        [
            ("1", "", "A", [(9, 0)]),
            ("2", "A", "B", [(9, 0)]),
            ("3", "B", "C", [(9, 0)]),
            ("4", "A", "D", [(9, 0)]),
            ("5", "D", "E", [(9, 0)]),
            ("6", "A", "", [(9, 0)]),
        ],
    )
    schedule = solve(instance)
    assert [name for name, _ in copies(instance, schedule, "offload")] == ["A"]
    assert [name for name, _ in copies(instance, schedule, "prefetch")] == ["A", "A"]


@pytest.mark.parametrize(("size", "offset"), [(2, 4), (3, 0), (1, 0)])
def test_a_hole_of_exactly_the_size_is_taken_before_the_first_that_is_large_enough(
    size: int, offset: int
) -> None:
    """Section 3.3; holes are A's at 0 to 3, C's at 4 to 6, and the rest from 7 on."""
    instance = made_of(
        12,
        {"A": 3, "B": 1, "C": 2, "D": 1, "E": size},
        [
            *((name, "", name, [(1, 0)]) for name in "ABCD"),
            ("use", "AC", "", [(1, 0)]),
            ("make", "", "E", [(1, 0)]),
            ("end", "BDE", "", [(1, 0)]),
        ],
    )
    (place,) = [r.offset for r in solve(instance).residences if r.block == 4]
    assert place == offset


def fragmented(pool: int, *, used: bool = False) -> Instance:
    """D needs 8 bytes; K lies in the middle and may not leave unless it has been used."""
    return made_of(
        pool,
        {"A": 4, "K": 2, "D": 8},
        [
            ("1", "", "A", [(9, 0)]),
            ("2", "A", "K", [(9, 0)]),
            ("3", "K" if used else "", "", [(9, 0)]),
            ("4", "", "D", [(9, 0)]),
            ("5", "KD", "", [(9, 0)]),
        ],
    )


def test_defragmentation_goes_through_the_host() -> None:
    instance = fragmented(10)
    schedule = solve(instance)
    assert schedule.meta == {"defragmentations": 1}
    assert [name for name, _ in copies(instance, schedule, "offload")] == ["K"]
    assert [name for name, _ in copies(instance, schedule, "prefetch")] == ["K"]


@pytest.mark.parametrize("instance", [fragmented(14), fragmented(10, used=True)])
def test_defragmentation_is_the_last_resort(instance: Instance) -> None:
    assert solve(instance).meta == {"defragmentations": 0}


# --- prefetching (section 5.2.2) --------------------------------------------------------------------------


def late(copy: int) -> Instance:
    """B, on the host, is needed after four tasks of 3 ns."""
    steps: list[Step] = [(f"{i}", "", "", [(3, 0)]) for i in range(4)]
    return made_of(8, {"B": 4}, [*steps, ("s", "B", "", [(3, 0)])], host="B", copies={"B": copy})


@pytest.mark.parametrize(
    ("copy", "start", "stall"),
    [(1, 9, 0), (3, 9, 0), (4, 6, 0), (6, 6, 0), (7, 3, 0), (12, 0, 0), (14, 0, 2)],
)
def test_figure_7_a_prefetch_starts_as_late_as_causes_no_delay(copy: int, start: int, stall: int) -> None:
    """Eq. 9; starts are at ends of tasks, and one task later there would be a delay."""
    instance = late(copy)
    schedule = solve(instance)
    assert copies(instance, schedule, "prefetch") == [("B", start)]
    assert runs(instance, schedule)["s"].start_ns == 12 + stall
    assert start + 3 + copy > 12


@pytest.mark.parametrize(("pool", "starts"), [(10, [11]), (12, [0])])
def test_a_prefetch_that_a_defragmentation_would_undo_does_not_start(pool: int, starts: list[int]) -> None:
    """K, made and not used, leaves no room for B and D in 10 bytes; it goes first, in 2 ns."""
    instance = made_of(
        pool,
        {"K": 2, "B": 2, "D": 8},
        [("1", "", "K", [(9, 0)]), ("2", "B", "D", [(9, 0)]), ("3", "KD", "", [(9, 0)])],
        host="B",
    )
    schedule = solve(instance)
    assert [t for name, t in copies(instance, schedule, "prefetch") if name == "B"] == starts
    assert schedule.meta == {"defragmentations": int(pool == 10)}


# --- algorithms (section 5.2.3) ---------------------------------------------------------------------------


def with_offload(fast: int) -> Instance:
    """Task 3 has 10 ns, or fewer with a workspace for which A must leave, 3 ns too late."""
    return made_of(
        8,
        {"A": 4, "B": 2, "C": 1},
        [
            ("1", "", "A", [(5, 0)]),
            ("2", "A", "B", [(1, 0)]),
            ("3", "B", "C", [(10, 0), (fast, 4)]),
            ("4", "AC", "", [(1, 0)]),
        ],
    )


def with_prefetch(fast: int) -> Instance:
    """The workspace of task 2 takes the room for B, whose prefetch of 4 ns is due."""
    return made_of(
        6,
        {"A": 2, "B": 4},
        [("1", "", "A", [(2, 0)]), ("2", "", "", [(10, 0), (fast, 4)]), ("3", "AB", "", [(1, 0)])],
        host="B",
        copies={"B": 4},
    )


@pytest.mark.parametrize(
    ("instance", "task", "chosen"),
    [
        (with_offload(8), "3", 0),
        (with_offload(6), "3", 1),
        (with_prefetch(7), "2", 0),
        (with_prefetch(5), "2", 1),
    ],
)
def test_an_algorithm_is_taken_if_it_gains_more_than_it_delays(
    instance: Instance, task: str, chosen: int
) -> None:
    """Eq. 10: a gain of 2 against a delay of 3, 4 against 3; 3 against a prefetch of 4, 5 against 4."""
    assert runs(instance, solve(instance))[task].algorithm == chosen


def test_of_algorithms_with_room_the_fastest_is_taken() -> None:
    assert runs(instance := with_offload(8), solve(with_budget(instance, 11)))["3"].algorithm == 1


# --- techniques on their own (section 7.3) ----------------------------------------------------------------


def test_without_selection_the_fastest_algorithm_is_taken_whatever_it_delays() -> None:
    instance = with_offload(8)
    assert runs(instance, solve(instance, "modnn-transfers"))["3"].algorithm == 1


def test_without_transfers_the_workspace_must_have_room() -> None:
    instance = with_offload(8)
    for method in ("modnn-algorithms", "modnn-sub-batch"):
        schedule = solve(instance, method)
        assert {o.kind for o in schedule.operations} == {"run"}
        assert runs(instance, schedule)["3"].algorithm == 0
        assert runs(instance, solve(with_budget(instance, 11), method))["3"].algorithm == 1


@pytest.mark.parametrize("method", ["modnn-algorithms", "modnn-sub-batch"])
def test_without_transfers_too_little_memory_is_refused(method: str) -> None:
    with pytest.raises(Refusal, match=r"no place for block 'D' .* at task 4"):
        find_method(method).call(fragmented(10), Limits())


# --- no refusal that memory does not force (section 5.2.1) ------------------------------------------------


def transferable(instance: Instance) -> Instance:
    """Let every block be offloaded and prefetched."""

    def block(one: Block) -> Block:
        times = {"offload_ns": one.offload_ns or 0, "prefetch_ns": one.prefetch_ns or 0}
        return msgspec.structs.replace(one, **times)

    return msgspec.structs.replace(instance, blocks=tuple(map(block, instance.blocks)))


def least_pool(instance: Instance, memory: MemoryModel) -> int:
    """Pool that a task, or what ends on the device, needs: whole pages, or whole tensors with their gaps."""
    unit = PAGE_BYTES if memory == "paged" else instance.alignment_bytes
    spans: Counter[str | None] = Counter()
    for block in instance.blocks:
        end = (block.begin or 0) + ceil_to(block.bytes, unit)
        spans[block.tensor] = max(spans[block.tensor], end)

    def room(blocks: list[int]) -> int:
        whole = {instance.blocks[d].tensor for d in blocks} - {None}
        if memory == "paged":
            whole = set()
        alone = [d for d in blocks if instance.blocks[d].tensor not in whole]
        return sum(spans[name] for name in whole) + sum(
            ceil_to(instance.blocks[d].bytes, unit) for d in alone
        )

    last = [d for d, block in enumerate(instance.blocks) if block.finally_ == "device"]
    return max(
        room(last),
        *(
            room(list(task.blocks)) + ceil_to(min(a.workspace_bytes for a in task.algorithms), unit)
            for task in instance.tasks
        ),
    )


def refuses(instance: Instance, memory: MemoryModel) -> bool:
    try:
        solve(instance, memory=memory)
    except Refusal:
        return True
    return False


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize("count", counts(30, 300))
def test_random_instances_are_refused_only_where_something_does_not_fit(
    count: int, memory: MemoryModel
) -> None:
    fitting = 0
    for seed in range(count):
        tiny = memory == "contiguous" and seed % 2
        instance = transferable(tiny_instance(seed) if tiny else random_instance(Random(seed), memory))
        for share in (100, 110):
            tight = with_budget(instance, least_budget(instance) * share // 100)
            unit = PAGE_BYTES if memory == "paged" else 1
            fits = least_pool(tight, memory) <= tight.pool_bytes // unit * unit
            assert not (fits and refuses(tight, memory)), (seed, share)
            fitting += fits
    assert fitting >= 2 * count / 3


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
@pytest.mark.parametrize(
    ("network", "batches"),
    [
        ("lenet", (1, 64)),
        ("cifar10_quick", (1, 100)),
        ("alexnet", (1, 128)),
        ("overfeat", (3,)),
        ("googlenet", (1,)),
        pytest.param("googlenet", (7,), marks=pytest.mark.slow),
        ("vgg16", (1, 64)),
        pytest.param("vgg101b", (2,), marks=pytest.mark.slow),
        ("fcn", (16,)),
        ("resnet18", (1,)),
        pytest.param("resnet18", (32,), marks=pytest.mark.slow),
        pytest.param("resnet50", (8,), marks=pytest.mark.slow),
        pytest.param("resnet101", (32,), marks=pytest.mark.slow),
    ],
)
def test_networks_are_not_refused_at_a_tenth_over_the_least_budget(
    network: str, batches: tuple[int, ...], memory: MemoryModel
) -> None:
    """Contiguous memory, even at the least budget itself; pages, unless the budget has too few."""
    for batch in batches:
        for weights_as_blocks in (False, True):
            instance = Workload(network, batch, "K40", weights_as_blocks=weights_as_blocks).instance("1xMmin")
            for share in (100, 110):
                tight = with_budget(instance, least_budget(instance) * share // 100)
                unit = PAGE_BYTES if memory == "paged" else 1
                fits = least_pool(tight, memory) <= tight.pool_bytes // unit * unit
                assert fits or memory == "paged"
                assert not (fits and refuses(tight, memory))


def test_what_must_end_on_the_device_comes_back_even_through_the_host() -> None:
    """At the end K, made last and not used, lies where A does not fit beside it without moving."""
    instance = made_of(
        8,
        {"A": 4, "B": 3, "K": 2, "C": 3},
        [
            ("1", "", "AB", [(9, 0)]),
            ("2", "AB", "C", [(9, 0)]),
            ("3", "C", "K", [(9, 0)]),
        ],
    )
    blocks = tuple(
        msgspec.structs.replace(block, finally_="device" if block.name in "AK" else "anywhere")
        for block in instance.blocks
    )
    solve(msgspec.structs.replace(instance, blocks=blocks, budget_bytes=10))
    all_of_them = tuple(msgspec.structs.replace(block, finally_="device") for block in instance.blocks)
    too_much = msgspec.structs.replace(instance, blocks=all_of_them, budget_bytes=10)
    with pytest.raises(Refusal, match="after the last task"):
        find_method("modnn").call(too_much, Limits())


def test_a_workspace_that_does_not_fit_where_there_is_no_block() -> None:
    instance = made_of(1, {}, [("a", "", "", [(1, 2), (5, 0)])])
    assert solve(instance).makespan_ns == 5
