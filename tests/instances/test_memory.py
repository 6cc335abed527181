"""Memory figures, worked out by hand on one small instance."""

from __future__ import annotations

import re
from itertools import product
from random import Random

import msgspec
import pytest

from chain import chain_instance
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import (
    fastest,
    footprint,
    greatest_need,
    ideal_ns,
    least_budget,
    least_host_bytes,
    live_bytes,
    live_ranges,
    needs,
    parse_budget,
    require_budget,
    stuck_bytes,
    unlimited_peak,
    why_host_is_short,
    why_infeasible,
    with_budget,
)
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force


def block(name: str, size: int, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": 1, "prefetch_ns": 1, **keys})


def algorithm(duration: int, workspace: int) -> Algorithm:
    return Algorithm(name=f"{duration}/{workspace}", duration_ns=duration, workspace_bytes=workspace)


@pytest.fixture
def instance() -> Instance:
    """Alignment 10: x 5 (device), y 21, z 10 (kept on the device), h 7 (host), unused 100 (device)."""
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=1000,
        resident_bytes=3,
        alignment_bytes=10,
        blocks=(
            block("x", 5, initially="device"),
            block("y", 21),
            block("z", 10, finally_="device"),
            block("h", 7, initially="host"),
            block("unused", 100, initially="host"),
        ),
        tasks=(
            Task(
                name="first",
                inputs=(0,),
                outputs=(1,),
                algorithms=(algorithm(9, 0), algorithm(4, 11), algorithm(4, 2)),
            ),
            Task(name="second", inputs=(1,), outputs=(2,), algorithms=(algorithm(6, 31), algorithm(8, 12))),
            Task(name="third", inputs=(3,), outputs=(), updates=(1,), algorithms=(algorithm(5, 0),)),
            Task(name="fourth", inputs=(), outputs=(), algorithms=(algorithm(1, 0),)),
        ),
    )


def test_footprints_are_exact(instance: Instance) -> None:
    assert [footprint(instance, k) for k in range(4)] == [26, 31, 28, 0]


def test_needs_round_every_size_up(instance: Instance) -> None:
    assert needs(instance) == [3 + 10 + 30 + 0, 3 + 30 + 10 + 20, 3 + 10 + 30, 3]
    assert least_budget(instance) == 63


def test_a_budget_is_refused_from_one_byte_under_the_minimum_on(instance: Instance) -> None:
    require_budget(with_budget(instance, 63))
    with pytest.raises(BudgetError, match=r"62 bytes .* under the minimum of 63 bytes .* task 'second'"):
        require_budget(with_budget(instance, 62))


def test_fastest_prefers_the_lean_of_equals(instance: Instance) -> None:
    assert [a.name for a in fastest(instance)] == ["4/2", "6/31", "5/0", "1/0"]
    assert ideal_ns(instance) == 4 + 6 + 5 + 1


def test_live_sums_from_first_to_last_use(instance: Instance) -> None:
    assert live_bytes(instance) == [5 + 21, 21 + 10, 21 + 10 + 7, 10]


def test_peak_without_a_limit_counts_the_fast_workspaces(instance: Instance) -> None:
    assert unlimited_peak(instance) == 3 + 31 + 31


def test_a_block_waits_on_the_device_before_its_first_and_after_its_last_use(instance: Instance) -> None:
    late = block("late", 50, initially="device")
    kept = block("kept", 70, initially="device", finally_="device")
    fourth = msgspec.structs.replace(instance.tasks[3], inputs=(0,))
    blocks = (late, *instance.blocks[1:4], kept)
    first = msgspec.structs.replace(instance.tasks[0], inputs=())
    changed = msgspec.structs.replace(instance, blocks=blocks, tasks=(first, *instance.tasks[1:3], fourth))
    assert live_bytes(changed) == [120 + 21, 120 + 31, 120 + 38, 120 + 10]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("100%", 65),
        ("50%", 33),  # 32.5
        ("33.3%", 22),  # 21.645
        ("0%", 0),
        ("1xMmin", 63),
        ("1.05xMmin", 67),  # 66.15
        ("2 x Mmin", 126),
        ("Mmin+0%", 63),
        ("Mmin + 25%", 64),  # 63.5
        ("Mmin+100%", 65),
        ("12GiB", 12 * 2**30),
        ("64", 64),
    ],
)
def test_budgets_round_up_to_a_byte(text: str, budget: int, instance: Instance) -> None:
    assert parse_budget(text, instance) == budget


def test_a_share_of_a_huge_peak_is_exact() -> None:
    size = 2**53
    huge = Instance(
        name="huge",
        engines="duplex",
        budget_bytes=0,
        resident_bytes=1,
        blocks=(block("x", size),),
        tasks=(Task(name="t", inputs=(), outputs=(0,), algorithms=(algorithm(1, 0),)),),
    )
    assert parse_budget("100%", huge) == size + 1


@pytest.mark.parametrize(
    "text", ["", "%", "-5%", "half", "1.05Mmin", "1.05xmmin", "x Mmin", "Mmin", "Mmin+5", "1e3%"]
)
def test_what_is_no_budget(text: str, instance: Instance) -> None:
    with pytest.raises(PebblerError, match=r"is not a budget; write it as 12GiB, 50% or 1\.05xMmin"):
        parse_budget(text, instance)


def test_another_budget_changes_nothing_else(instance: Instance) -> None:
    changed = with_budget(instance, 64)
    assert changed.budget_bytes == 64
    assert with_budget(changed, 1000) == instance


# --- why there is no schedule ---------------------------------------------------------------------------


def test_a_budget_that_is_too_small_says_what_is_missing_and_for_what(instance: Instance) -> None:
    with pytest.raises(BudgetError) as refused:
        require_budget(with_budget(instance, 50))
    assert str(refused.value) == (
        "hand: a budget of 50 bytes (50 B) is under the minimum of 63 bytes (63 B), 13 bytes (13 B) are "
        "missing: task 'second' needs 40 B of blocks and 20 B of workspace at once, beside 3 B that are "
        "resident; give a larger budget or a smaller sub-batch"
    )


def waiting(first: bool = False, **keys: object) -> Instance:
    """A of 6 bytes is made, waits while B of 8 is used, and is read again; `first` may run again."""
    only = (algorithm(1, 0),)
    return Instance(
        name="waiting",
        engines="duplex",
        budget_bytes=13,
        resident_bytes=2,
        alignment_bytes=4,
        blocks=(block("a", 6, **keys), block("b", 8)),
        tasks=(
            Task(name="make", inputs=(), outputs=(0,), algorithms=only, recomputable=first),
            Task(name="use", inputs=(), outputs=(1,), algorithms=only),
            Task(name="read", inputs=(0,), outputs=(), algorithms=only),
        ),
    )


@pytest.mark.parametrize("missing", ["offload_ns", "prefetch_ns"])
def test_a_block_that_can_neither_leave_nor_be_made_again_is_stuck(missing: str) -> None:
    instance = waiting(**{missing: None})
    assert stuck_bytes(instance) == [0, 6, 0]
    assert why_infeasible(instance) == (
        "task 'use' needs 8 B of blocks and 0 B of workspace, while 6 B of other blocks can neither be "
        "copied to the host and back nor be computed again and 2 B are resident: 16 bytes (16 B) together, "
        "3 bytes (3 B) more than the budget"
    )
    assert why_infeasible(with_budget(instance, 16)) is None
    assert brute_force(with_budget(instance, 16), "divisible") is not None
    assert brute_force(with_budget(instance, 15), "divisible") is None


def test_a_block_that_can_leave_or_be_made_again_is_not_stuck() -> None:
    assert stuck_bytes(waiting()) == [0, 0, 0]
    again = waiting(first=True, offload_ns=None, prefetch_ns=None)
    assert stuck_bytes(again) == [0, 0, 0]
    assert why_infeasible(again) is None
    assert brute_force(again, "divisible") is not None


def test_an_update_cannot_be_made_again() -> None:
    instance = waiting(first=True, offload_ns=None)
    make, use, read = instance.tasks
    updated = msgspec.structs.replace(use, updates=(0,))
    tasks = (make, updated, msgspec.structs.replace(use, name="again", outputs=()), read)
    assert stuck_bytes(msgspec.structs.replace(instance, tasks=tasks)) == [0, 0, 6, 0]


def test_what_is_carried_is_named_where_it_is_stuck() -> None:
    instance = Workload("lenet", 4, "K40", steady=True).instance("1MiB", check_budget=False)
    still = tuple(
        msgspec.structs.replace(block, offload_ns=None, prefetch_ns=None) for block in instance.blocks
    )
    reason = str(why_infeasible(msgspec.structs.replace(instance, blocks=still)))
    assert re.search(r"of other blocks \(\S+ \S+ of them carried\) can neither be copied to the host", reason)
    only = {d: block.bytes for d, block in enumerate(instance.blocks) if d in instance.carried}
    need = greatest_need(msgspec.structs.replace(instance, blocks=still))
    (task,) = (task for task in instance.tasks if task.name == need.task)
    assert need.carried == sum(size for d, size in only.items() if d not in task.blocks) > 0


def test_what_must_stay_or_was_there_is_stuck_without_a_way_back() -> None:
    _, use, read = waiting().tasks
    there = block("a", 6, prefetch_ns=None, initially="device", finally_="device")
    idle = msgspec.structs.replace(use, name="idle", outputs=())
    blocks, tasks = (there, block("b", 8)), (use, read, idle)
    assert stuck_bytes(msgspec.structs.replace(waiting(), blocks=blocks, tasks=tasks)) == [6, 0, 6]


def test_no_schedule_where_one_is_found_is_called_impossible() -> None:
    """On tiny instances with null times, places at the end and recomputation, against exhaustive search."""
    proven = 0
    for instance in map(chain_instance, range(240)):
        if why_infeasible(instance) is not None:
            proven += 1
            assert brute_force(instance, "divisible") is None
    assert proven >= 10


def test_what_only_the_end_needs_is_live_during_the_last_task() -> None:
    """From the host it comes for the end; from the device it has been there all the time."""
    run = Algorithm(name="run", duration_ns=1, workspace_bytes=0)
    tasks = tuple(Task(name=name, inputs=(), outputs=(), algorithms=(run,)) for name in "abc")
    late = Block(name="w", bytes=5, offload_ns=1, prefetch_ns=1, initially="host", finally_="device")
    kept = msgspec.structs.replace(late, name="v", initially="device")
    idle = msgspec.structs.replace(late, name="u", finally_="anywhere")
    instance = Instance(
        name="end",
        engines="duplex",
        budget_bytes=10,
        resident_bytes=0,
        blocks=(late, kept, idle),
        tasks=tasks,
    )
    assert live_ranges(instance) == [range(2, 3), range(3), range(0)]
    assert live_bytes(instance) == [5, 5, 10]
    assert unlimited_peak(instance) == 10


def test_no_choice_of_pages_leaves_less_to_the_host() -> None:
    """Copies on the host have exact bytes, and blocks on the device whole pages, against all choices."""
    draw, short = Random(0), 0
    only = (algorithm(1, 0),)
    for _ in range(200):
        sizes = [draw.randint(1, 40) for _ in range(6)]
        wanted = [block(f"b{d}", size, initially="device") for d, size in enumerate(sizes)]
        instance = Instance(
            name="pages",
            engines="duplex",
            budget_bytes=draw.randint(20, 150),
            resident_bytes=3,
            alignment_bytes=1,
            blocks=(*wanted, block("x", 9)),
            tasks=(
                Task(name="work", inputs=(), outputs=(6,), algorithms=only),
                Task(name="read", inputs=tuple(range(6)), outputs=(), algorithms=only),
            ),
        )
        pages, room = [-(-size // 10) for size in sizes], instance.pool_bytes // 10 - 1
        left = min(
            sum(size for size, stays in zip(sizes, choice, strict=True) if not stays)
            for choice in product((False, True), repeat=6)
            if sum(page for page, stays in zip(pages, choice, strict=True) if stays) <= room
        )
        bytes_alone, in_pages = least_host_bytes(instance), least_host_bytes(instance, 10)
        assert bytes_alone <= in_pages <= left
        short += in_pages > bytes_alone
        assert why_host_is_short(msgspec.structs.replace(instance, host_budget_bytes=left), 10) is None
        if in_pages:
            lacking = msgspec.structs.replace(instance, host_budget_bytes=in_pages - 1)
            assert "more than device and host memory" in (why_host_is_short(lacking, 10) or "")
    assert short > 50
