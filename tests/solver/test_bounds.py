"""Bounds worked out by hand, and what must hold of them on random tiny instances."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, inf
from random import Random

import msgspec
import pytest

from pebbler.heuristics.clock import until
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak, with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import in_pages
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import (
    Bound,
    CopyQueue,
    best_bound,
    compute_bound,
    critical_path_bound,
    single_peak_bound,
)
from pebbler.validate.bounds.single_peak import EvictableStay

from ..samples import mostly_slow


def block(name: str, size: int, out: int | None = None, back: int | None = None, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": size, "offload_ns": out, "prefetch_ns": back, **keys})


def task(name: str, duration: int, workspace: int = 0, **keys: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=duration, workspace_bytes=workspace)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})


def problem(blocks: list[Block], tasks: list[Task], pool: int, **keys: object) -> Instance:
    return Instance(
        **{
            "name": "hand",
            "engines": "duplex",
            "budget_bytes": 100 + pool,
            "resident_bytes": 100,
            "alignment_bytes": 1,
            "blocks": tuple(blocks),
            "tasks": tuple(tasks),
            **keys,
        }
    )


# --- compute --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "bound"), [(18, 2), (17, 5), (14, 5), (13, 9), (8, 9), (7, 2)])
def test_compute_counts_the_algorithms_that_fit_beside_the_blocks(pool: int, bound: int) -> None:
    """Blocks of 8; 9 ns without workspace, 5 with 6 bytes, 2 with 10; where nothing fits, all count."""
    algorithms = tuple(
        Algorithm(name=str(t), duration_ns=t, workspace_bytes=w) for t, w in ((9, 0), (5, 6), (2, 10))
    )
    instance = problem([block("a", 8)], [task("t", 0, outputs=(0,), algorithms=algorithms)], pool)
    assert compute_bound(instance) == Bound(bound, "compute", certified=True)


def test_compute_is_the_sum_over_tasks() -> None:
    instance = problem([], [task("s", 3), task("t", 0), task("u", 4)], 0)
    assert compute_bound(instance).lower_bound_ns == 7


# --- a single peak --------------------------------------------------------------------------------------


def one_gap(excess: int, out: int = 12, back: int = 6, **keys: object) -> Instance:
    """A of 6 bytes is made (5 ns), waits while B of 8 is used (7 ns), and is read (3 ns)."""
    return problem(
        [block("a", 6, out, back, **keys), block("b", 8)],
        [task("make", 5, outputs=(0,)), task("peak", 7, outputs=(1,)), task("read", 3, inputs=(0,))],
        14 - excess,
    )


@pytest.mark.parametrize("excess", range(7))
def test_bytes_in_excess_go_out_before_the_peak_and_come_back_after_it(excess: int) -> None:
    """Out at 2 ns a byte, back at 1: 5 + 2e + 7 + e + 3."""
    assert single_peak_bound(one_gap(excess)) == Bound(15 + 3 * excess, "single-peak", certified=True)


@pytest.mark.parametrize("excess", [-1, -100])
def test_without_excess_it_is_the_compute_bound(excess: int) -> None:
    assert single_peak_bound(one_gap(excess)).lower_bound_ns == 15


@pytest.mark.parametrize("excess", range(7))
def test_fractions_of_a_nanosecond_round_up_once(excess: int) -> None:
    bound = single_peak_bound(one_gap(excess, out=13, back=7)).lower_bound_ns
    assert bound == ceil(15 + Fraction(13, 6) * excess + Fraction(7, 6) * excess)


def test_a_byte_too_many_for_anything_to_give_proves_no_more_than_compute() -> None:
    assert single_peak_bound(one_gap(7)).lower_bound_ns == 15


def test_resident_bytes_are_not_in_the_pool() -> None:
    instance = msgspec.structs.replace(one_gap(4), resident_bytes=102)
    assert single_peak_bound(instance).lower_bound_ns == 5 + 12 + 7 + 6 + 3


def test_one_engine_for_both_ways_has_the_same_bound() -> None:
    assert single_peak_bound(msgspec.structs.replace(one_gap(4), engines="single")).lower_bound_ns == 27


def test_a_block_that_the_host_has_need_not_go_out() -> None:
    """A is there from time 0 and read last: only the way back counts after the peak."""
    instance = problem(
        [block("a", 6, 12, 6, initially="device"), block("b", 8)],
        [task("peak", 7, outputs=(1,)), task("read", 3, inputs=(0,))],
        10,
    )
    assert single_peak_bound(instance).lower_bound_ns == 7 + 4 + 3


def test_a_block_that_comes_from_the_host_needs_no_room_before_its_first_use() -> None:
    instance = problem(
        [block("a", 6, 12, 6, initially="host"), block("b", 8)],
        [task("peak", 7, outputs=(1,)), task("read", 3, inputs=(0,))],
        8,
    )
    assert single_peak_bound(instance).lower_bound_ns == 10


def test_an_update_makes_the_copy_on_the_host_worthless() -> None:
    """As if A had been made by the update: it goes out from 5 on."""
    instance = problem(
        [block("a", 6, 12, 6, initially="device"), block("b", 8)],
        [task("update", 5, updates=(0,)), task("peak", 7, outputs=(1,)), task("read", 3, inputs=(0,))],
        10,
    )
    assert single_peak_bound(instance).lower_bound_ns == 27


def test_a_reader_between_does_not_delay_the_offload() -> None:
    """A goes out from the end of its write on, 8 ns that hide behind the 20 ns of its reader."""
    instance = problem(
        [block("a", 6, 12, 6), block("b", 8)],
        [
            task("make", 5, outputs=(0,)),
            task("use", 20, inputs=(0,)),
            task("peak", 7, outputs=(1,)),
            task("read", 3, inputs=(0,)),
        ],
        10,
    )
    assert single_peak_bound(instance).lower_bound_ns == 5 + 20 + 7 + 4 + 3


def test_the_earliest_written_go_out_first_and_the_latest_needed_come_back_first() -> None:
    """A at 10 and B at 20 ns, then the peak, then B read and A read, 100 ns each; 6 bytes too many.

    Out, 3 ns a byte: 4 bytes of A from 10 to 22, 2 of B to 28. Back, 2 ns a byte, seen from the end: A needs
    100 ns after it, B 200, so that 4 bytes of A take 100..108 and 2 of B 200..204 from the end.
    """
    instance = problem(
        [block("a", 4, 12, 8), block("b", 4, 12, 8), block("c", 10)],
        [
            task("a", 10, outputs=(0,)),
            task("b", 10, outputs=(1,)),
            task("peak", 50, outputs=(2,)),
            task("read b", 100, inputs=(1,)),
            task("read a", 100, inputs=(0,)),
        ],
        12,
    )
    assert single_peak_bound(instance).lower_bound_ns == 28 + 50 + 204


@pytest.mark.parametrize(("excess", "out", "back"), [(4, 2, 2), (6, 3, 3), (8, 7, 5), (12, 15, 9)])
def test_every_block_copies_at_its_own_rate_and_the_quickest_go_first(
    excess: int, out: int, back: int
) -> None:
    """A takes 2 ns a byte out and 1 back, C half a nanosecond; a quick block elsewhere is no help."""
    instance = problem(
        [block("a", 6, 12, 6), block("b", 8), block("c", 6, 3, 3), block("q", 10, 1, 1, initially="device")],
        [task("make", 5, outputs=(0, 2)), task("peak", 7, outputs=(1,)), task("read", 3, inputs=(0, 2))],
        20 - excess,
    )
    assert single_peak_bound(instance).lower_bound_ns == 5 + out + 7 + back + 3


def test_tiny_blocks_that_take_whole_pages_do_not_weaken_the_bound() -> None:
    """Their pages leave in next to no time, and no other block's do."""
    instance = Workload("vgg:groups=2-24-64-4-4", 128, "v100").instance("30%")
    bound = single_peak_bound(instance).lower_bound_ns
    assert single_peak_bound(in_pages(instance)).lower_bound_ns >= bound
    assert bound > 1.1 * compute_bound(instance).lower_bound_ns


@pytest.mark.parametrize(("out", "back"), [(None, 6), (12, None), (None, None)])
def test_a_block_that_cannot_go_and_come_back_gives_no_room(out: int | None, back: int | None) -> None:
    fixed = one_gap(4)
    blocks = (block("a", 6, out, back), fixed.blocks[1])
    assert single_peak_bound(msgspec.structs.replace(fixed, blocks=blocks)).lower_bound_ns == 15


def test_copies_that_take_no_time_cost_none() -> None:
    assert single_peak_bound(one_gap(6, out=0, back=0)).lower_bound_ns == 15


def test_what_must_end_on_the_device_comes_back_at_the_end() -> None:
    """A is not read again: 4 bytes at 1 ns follow the last task."""
    instance = problem(
        [block("a", 6, 12, 6, finally_="device"), block("b", 8)],
        [task("make", 5, outputs=(0,)), task("peak", 7, outputs=(1,))],
        10,
    )
    assert single_peak_bound(instance).lower_bound_ns == 5 + 8 + 7 + 4


def test_a_slower_algorithm_may_be_the_better_one_at_the_peak() -> None:
    """Fast: 4 ns and 4 bytes more in excess, at 3 ns a byte 12; lean: 7 ns."""
    instance = one_gap(2)
    lean = Algorithm(name="lean", duration_ns=7, workspace_bytes=0)
    peaks = {}
    for duration in (0, 4):
        fast = Algorithm(name="fast", duration_ns=duration, workspace_bytes=1)
        tasks = (
            instance.tasks[0],
            msgspec.structs.replace(instance.tasks[1], algorithms=(lean, fast)),
            instance.tasks[2],
        )
        peaks[duration] = single_peak_bound(msgspec.structs.replace(instance, tasks=tasks)).lower_bound_ns
    assert peaks == {4: 5 + 4 + 7 + 2 + 3, 0: 5 + 6 + 0 + 3 + 3}


def test_figures_beyond_doubles_are_exact() -> None:
    """At 2^53 a double has no odd neighbour; 1 byte of 3 in excess takes a third of the copy."""
    big = 2**53
    instance = problem(
        [block("a", 3, big, big - 1), block("b", 4)],
        [
            task("make", big // 2, outputs=(0,)),
            task("peak", 1, outputs=(1,)),
            task("read", big // 2 - 1, inputs=(0,)),
        ],
        6,
    )
    exact = big // 2 + Fraction(big, 3) + 1 + Fraction(big - 1, 3) + big // 2 - 1
    assert exact != float(exact)
    assert single_peak_bound(instance).lower_bound_ns == ceil(exact)


def test_recomputation_breaks_the_argument() -> None:
    instance = one_gap(4)
    first = msgspec.structs.replace(instance.tasks[0], recomputable=True)
    again = msgspec.structs.replace(instance, tasks=(first, *instance.tasks[1:]))
    with pytest.raises(ValueError, match="does not hold for recomputable tasks"):
        single_peak_bound(again)
    assert best_bound(again) == Bound(15, "compute", certified=True)


# --- any instance ---------------------------------------------------------------------------------------


def test_the_best_bound_says_whose_it_is() -> None:
    assert best_bound(one_gap(4)) == Bound(27, "single-peak", certified=True)
    assert best_bound(one_gap(0)) == Bound(15, "compute", certified=True)
    assert best_bound(one_gap(4), ["single-peak"]) == Bound(15, "compute", certified=True)


def test_gap() -> None:
    assert Bound(100, "compute", certified=True).gap(125) == 0.25
    assert Bound(0, "compute", certified=True).gap(0) == 0.0


@pytest.mark.parametrize("seed", mostly_slow(range(60), range(0, 60, 3)))
def test_bounds_fall_with_the_budget_down_to_the_ideal(seed: int) -> None:
    """Or to the critical path, where copies at the ends of the round take time beside the tasks."""
    instance = tiny_instance(seed)
    peak = instance.resident_bytes + sum(block.bytes for block in instance.blocks) + 64
    previous: int | None = None
    for budget in range(least_budget(instance), peak + 1):
        tried = with_budget(instance, budget)
        best, compute = best_bound(tried), compute_bound(tried)
        assert best.lower_bound_ns >= compute.lower_bound_ns >= ideal_ns(instance)
        assert isinstance(best.lower_bound_ns, int)
        assert best.certified
        assert previous is None or best.lower_bound_ns <= previous
        previous = best.lower_bound_ns
        if budget >= unlimited_peak(instance):
            break
    assert previous == max(ideal_ns(instance), critical_path_bound(instance).lower_bound_ns)


@pytest.mark.parametrize("seed", range(20))
def test_a_bound_of_scaled_times_is_the_scaled_bound_but_for_the_rounding(seed: int) -> None:
    instance = tiny_instance(seed)
    if any(task.recomputable for task in instance.tasks):
        instance = msgspec.structs.replace(
            instance, tasks=tuple(msgspec.structs.replace(t, recomputable=False) for t in instance.tasks)
        )
    bound = single_peak_bound(instance).lower_bound_ns
    scaled = single_peak_bound(_scaled(instance, 1000)).lower_bound_ns
    assert 1000 * (bound - 1) < scaled <= 1000 * bound


def _scaled(instance: Instance, factor: int) -> Instance:
    def times(value: int | None) -> int | None:
        return None if value is None else factor * value

    replace = msgspec.structs.replace
    return replace(
        instance,
        blocks=tuple(
            replace(
                b, offload_ns=times(b.offload_ns), prefetch_ns=times(b.prefetch_ns), move_ns=times(b.move_ns)
            )
            for b in instance.blocks
        ),
        tasks=tuple(
            replace(t, algorithms=tuple(replace(a, duration_ns=factor * a.duration_ns) for a in t.algorithms))
            for t in instance.tasks
        ),
    )


# --- the queue of an engine -----------------------------------------------------------------------------


def test_past_a_deadline_there_is_the_compute_bound() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    assert best_bound(instance).bound_by == "single-peak"
    with until(0.0):
        assert best_bound(instance) == compute_bound(instance)


def test_a_queue_of_copies_is_the_worst_instant_of_those_at_hand() -> None:
    """Against its definition, as stays come and go: what is available late leaves late."""
    waits = 0
    for seed in range(60):
        rng = Random(seed)
        count = rng.randint(0, 20)
        stays = [EvictableStay(rng.randint(1, 9), 0, 2, -1, None, 0, 0) for _ in range(count)]
        available = [rng.choice((None, *range(6))) for _ in stays]
        times = [rng.randint(0, 30) for _ in stays]
        queue, there = CopyQueue(stays, available, times), set()
        rate = sum(times) / max(sum(stay.bytes for stay in stays), 1)
        for _ in range(60):
            i = rng.choice(range(count)) if count else None
            if i in there:
                there.remove(i)
                queue.remove(i)
            elif i is not None:
                there.add(i)
                queue.add(i)
            known = [(available[j], stays[j].bytes) for j in there]
            wanted = rng.randint(-5, 60)
            rest = wanted - sum(size for time, size in known if time is None)
            sizes = [(time, size) for time, size in known if time is not None]
            after = {t: rest - sum(size for time, size in sizes if time < t) for t, _ in sizes}
            ends = [t + rate * later for t, later in after.items() if later > 0]
            expected = inf if rest > sum(size for _, size in sizes) else max(ends, default=0.0)
            found = queue.copied_by(wanted)
            assert found == pytest.approx(expected if rest > 0 else 0.0)
            waits += 0 < found < inf
    assert waits >= 200
