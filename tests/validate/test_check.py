"""The checker on programs made by hand: each feature once, each rule broken once, and near-misses that hold.

Unless a test is about reported figures, they are filled in from the simulation, so that a refusal has the
reason that the test is about and no other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pebbler.instances.errors import FormatError
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check
from pebbler.validate.measures import highest_byte, memory_curve
from pebbler.validate.schedule import Operation, Residence, Schedule
from pebbler.validate.simulate import simulate

PAGE = PAGE_BYTES

# --- to write programs down ------------------------------------------------------------------------------


def block(name: str, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": 8, "offload_ns": 3, "prefetch_ns": 4, "move_ns": 1, **keys})


def task(name: str, *, workspace: int = 0, duration: int = 5, **keys: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=duration, workspace_bytes=workspace)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})


def problem(blocks: tuple[Block, ...], tasks: tuple[Task, ...], **keys: object) -> Instance:
    return Instance(
        **{
            "name": "hand",
            "engines": "duplex",
            "budget_bytes": 132,
            "resident_bytes": 100,
            "alignment_bytes": 4,
            "blocks": blocks,
            "tasks": tasks,
            **keys,
        }
    )


def run(i: int, k: int, *after: int, algorithm: int = 0) -> Operation:
    return Operation(
        id=i, stream="compute", kind="run", task=k, algorithm=algorithm, after=after, start_ns=0, end_ns=0
    )


def offload(i: int, d: int, *after: int, stream: str = "d2h") -> Operation:
    return Operation(id=i, stream=stream, kind="offload", block=d, after=after, start_ns=0, end_ns=0)  # type: ignore[arg-type]


def prefetch(i: int, d: int, *after: int, stream: str = "h2d") -> Operation:
    return Operation(id=i, stream=stream, kind="prefetch", block=d, after=after, start_ns=0, end_ns=0)  # type: ignore[arg-type]


def move(i: int, d: int, *after: int) -> Operation:
    return Operation(id=i, stream="compute", kind="move", block=d, after=after, start_ns=0, end_ns=0)


def stay(d: int, offset: int | None, acquired_by: int | None, *released: int, size: int = 8) -> Residence:
    return Residence(block=d, offset=offset, bytes=size, acquired_by=acquired_by, released_after=released)


def scratch(i: int, offset: int | None, size: int = 4) -> Residence:
    return Residence(workspace_of=i, offset=offset, bytes=size, acquired_by=i, released_after=(i,))


def timed(instance: Instance, schedule: Schedule) -> Schedule:
    """The schedule with the times, makespan and peak of its simulation."""
    starts, ends = simulate(instance, schedule)
    operations = tuple(
        msgspec.structs.replace(operation, start_ns=start, end_ns=end)
        for operation, start, end in zip(schedule.operations, starts, ends, strict=True)
    )
    made = msgspec.structs.replace(schedule, operations=operations, makespan_ns=max(ends))
    if schedule.memory_model == "divisible":
        peak = max(memory_curve(instance, made)[1])
    else:
        peak = instance.resident_bytes + highest_byte(made)
    return msgspec.structs.replace(made, peak_bytes=peak)


def program(
    instance: Instance, operations: list[Operation], residences: list[Residence], **keys: object
) -> Schedule:
    made = Schedule(
        **{
            "format": "pebbler/schedule/1",
            "instance": instance.name,
            "method": "hand",
            "memory_model": "contiguous",
            "operations": tuple(operations),
            "residences": tuple(residences),
            "makespan_ns": 0,
            "peak_bytes": 0,
            **keys,
        }
    )
    return timed(instance, made)


def reasons(
    instance: Instance, operations: list[Operation], residences: list[Residence], **keys: object
) -> tuple[str, ...]:
    report = check(instance, program(instance, operations, residences, **keys))
    assert report.valid == (not report.reasons)
    return report.reasons


def require_reason(found: tuple[str, ...], *words: str) -> None:
    """There are reasons, and they are those with the given words, one each, in any order."""
    assert len(found) == len(words), found
    for word in words:
        assert any(word in reason for reason in found), (word, found)


# --- a chain whose middle goes to the host and comes back -----------------------------------------------

X, A, B = 0, 1, 2
FIRST, OUT, SECOND, BACK, THIRD = range(5)


@pytest.fixture
def chain() -> Instance:
    """X gives A; A gives B; A and B are read at last. The pool holds 32 bytes: four blocks."""
    return problem(
        (block("x", initially="device"), block("a"), block("b")),
        (
            task("first", inputs=(X,), outputs=(A,)),
            task("second", inputs=(A,), outputs=(B,), workspace=4),
            task("third", inputs=(A, B)),
        ),
    )


def operations() -> list[Operation]:
    return [
        run(FIRST, 0),
        offload(OUT, A, FIRST),
        run(SECOND, 1),
        prefetch(BACK, A, OUT, SECOND),
        run(THIRD, 2, BACK),
    ]


def residences() -> list[Residence]:
    """A comes back to the place where X was."""
    return [
        stay(X, 0, None, FIRST),
        stay(A, 8, FIRST, OUT, SECOND),
        stay(B, 16, SECOND, THIRD),
        scratch(SECOND, 24),
        stay(A, 0, BACK),
    ]


def test_offload_and_prefetch(chain: Instance) -> None:
    schedule = program(chain, operations(), residences())
    assert check(chain, schedule).reasons == ()
    assert [(o.start_ns, o.end_ns) for o in schedule.operations] == [
        (0, 5),
        (5, 8),
        (5, 10),
        (10, 14),
        (14, 19),
    ]
    assert (schedule.makespan_ns, schedule.peak_bytes) == (19, 128)


Change = Callable[[list[Operation], list[Residence]], object]


def replace_operation(i: int, **keys: object) -> Change:
    def change(ops: list[Operation], _: list[Residence]) -> None:
        ops[i] = msgspec.structs.replace(ops[i], **keys)

    return change


def replace_residence(r: int, **keys: object) -> Change:
    def change(_: list[Operation], stays: list[Residence]) -> None:
        stays[r] = msgspec.structs.replace(stays[r], **keys)

    return change


def both(*changes: Change) -> Change:
    def change(ops: list[Operation], stays: list[Residence]) -> None:
        for one in changes:
            one(ops, stays)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # streams
        (replace_operation(OUT, stream="h2d"), ["(offload a) is on stream h2d, not on d2h"]),
        (replace_operation(OUT, stream="copy"), ["(offload a) is on stream copy, not on d2h"]),
        (replace_operation(BACK, stream="d2h"), ["(prefetch a) is on stream d2h, not on h2d"]),
        (replace_operation(OUT, stream="compute"), ["(offload a) is on stream compute, not on d2h"]),
        # who acquires what, and how large
        (replace_residence(2, acquired_by=None), ["'b' is resident from time 0 but is not"]),
        (replace_residence(2, bytes=7), ["a residence of 'b' has 7 bytes, the block 8"]),
        (replace_residence(2, bytes=12, offset=12), ["residence of 'b' has 12 bytes", "overlaps 'a'"]),
        (replace_residence(2, released_after=(FIRST, THIRD)), ["'b' is released by operation 0 (run first)"]),
        (
            replace_residence(2, acquired_by=FIRST),
            ["'b' is acquired by operation 0 (run first), which does not bring it there"],
        ),
        # workspaces
        (lambda _, stays: stays.pop(3), ["(run second) has 0 workspaces, not 1"]),
        (
            lambda _, stays: stays.append(scratch(SECOND, 28)),
            ["(run second) has 2 workspaces, not 1"],
        ),
        (
            lambda _, stays: stays.append(scratch(FIRST, 28)),
            [
                "the workspace of operation 0 (run first) has 4 bytes, the algorithm needs 0",
                "1 workspaces, not 0",
            ],
        ),
        (
            lambda _, stays: stays.append(scratch(OUT, 28)),
            ["only a run has a workspace"],
        ),
        (replace_residence(3, bytes=3), ["has 3 bytes, the algorithm needs 4"]),
        (replace_residence(3, bytes=8), ["has 8 bytes, the algorithm needs 4"]),
        (replace_residence(3, released_after=()), ["is not acquired and released by that run alone"]),
        (replace_residence(3, released_after=(THIRD,)), ["is not acquired and released by that run alone"]),
        (
            replace_residence(3, released_after=(SECOND, THIRD)),
            ["is not acquired and released by that run alone"],
        ),
        (
            replace_residence(3, acquired_by=FIRST),
            [
                "is not acquired and released by that run alone",
                "(run second) has 0 workspaces, not 1",
            ],
        ),
        (
            replace_residence(3, acquired_by=None),
            [
                "is not acquired and released by that run alone",
                "(run second) has 0 workspaces, not 1",
            ],
        ),
        # places
        (replace_residence(3, offset=26), ["lies at 26, not a multiple of 4"]),
        (replace_residence(3, offset=32), ["ends at byte 36 of a pool of 32"]),
        (replace_residence(3, offset=20), ["overlaps 'b'"]),
        (replace_residence(3, offset=12), ["overlaps 'a'"]),
        (replace_residence(4, offset=16), ["'a', acquired by operation 3 (prefetch a), overlaps 'b'"]),
        # order of what overlaps in address
        (
            replace_residence(0, released_after=()),
            ["overlaps 'x', which need not have been released by then"],
        ),
        (
            both(replace_residence(0, released_after=(SECOND,)), replace_operation(BACK, after=(OUT,))),
            ["overlaps 'x', which need not", "acquires 'a', whose earlier residence may still be live"],
        ),
        # one residence of a block at a time
        (
            replace_operation(BACK, after=(SECOND,)),
            [
                "(prefetch a) acquires 'a', whose earlier residence may still be live",
                "(prefetch a) reads the host copy of 'a' while an offload may be writing it",
            ],
        ),
        (
            replace_operation(BACK, after=(OUT,)),
            ["(prefetch a) acquires 'a', whose earlier residence may still be live"],
        ),
        (
            both(replace_residence(1, released_after=()), replace_residence(4, offset=24)),
            ["(prefetch a) acquires 'a', whose earlier residence may still be live"],
        ),
        # data that is there
        (
            replace_operation(OUT, after=()),
            [
                "'a' is released by operation 1",
                "(offload a) uses 'a', which need not have arrived",
                "copies 'a' while a run",
            ],
        ),
        (replace_operation(THIRD, after=()), ["(run third) uses 'a', which need not have arrived by then"]),
        (
            replace_residence(1, released_after=(OUT,)),
            ["(run second) uses 'a', which may have been released"],
        ),
        (
            replace_residence(1, released_after=(SECOND,)),
            ["(offload a) uses 'a', which may have been released by then"],
        ),
        (
            replace_residence(2, released_after=(SECOND,)),
            ["(run third) uses 'b', which may have been released"],
        ),
        (
            lambda _, stays: stays.pop(0),
            ["(run first) needs 'x', which is not on the device", "(run first) needs version 0 of 'x'"],
        ),
        (
            lambda _, stays: stays.pop(2),
            ["(run second) needs 'b', which is not on the device", "(run third) needs 'b', which is not"],
        ),
        (
            lambda _, stays: stays.pop(4),
            [
                "(prefetch a) must acquire exactly one residence of 'a'",
                "(run third) uses 'a', which may have been released",
            ],
        ),
        (
            lambda _, stays: stays.append(stay(A, 24, BACK)),
            [
                "(prefetch a) must acquire exactly one residence of 'a'",
                "acquires 'a', whose earlier residence",
            ],
        ),
        (
            lambda _, stays: stays.append(stay(X, 24, None, FIRST)),
            ["'x' is resident twice from time 0"] * 2,
        ),
    ],
)
def test_a_broken_rule_has_its_reason(chain: Instance, change: Change, words: list[str]) -> None:
    ops, stays = operations(), residences()
    change(ops, stays)
    require_reason(reasons(chain, ops, stays), *words)


@pytest.mark.parametrize(
    "change",
    [
        replace_residence(1, released_after=(SECOND, OUT)),
        replace_residence(1, released_after=(FIRST, SECOND, OUT)),
        replace_residence(1, released_after=(OUT, SECOND, SECOND)),
        replace_residence(2, released_after=()),
        replace_residence(4, released_after=(THIRD,)),
        replace_residence(4, released_after=(BACK, THIRD)),
        replace_residence(4, offset=8),
        replace_residence(3, offset=28),
        replace_operation(BACK, after=(FIRST, OUT, SECOND)),
        replace_operation(BACK, after=(OUT, OUT, SECOND)),
        replace_operation(THIRD, after=(SECOND, BACK)),
        lambda _, stays: stays.reverse(),
    ],
)
def test_near_misses_hold(chain: Instance, change: Change) -> None:
    ops, stays = operations(), residences()
    change(ops, stays)
    assert reasons(chain, ops, stays) == ()


def test_ids_mean_nothing_but_names(chain: Instance) -> None:
    other = dict(enumerate((40, 7, 99, 0, 13)))
    ops = [
        msgspec.structs.replace(o, id=other[o.id], after=tuple(other[i] for i in o.after))
        for o in operations()
    ]
    stays = [
        msgspec.structs.replace(
            r,
            workspace_of=None if r.workspace_of is None else other[r.workspace_of],
            acquired_by=None if r.acquired_by is None else other[r.acquired_by],
            released_after=tuple(other[i] for i in r.released_after),
        )
        for r in residences()
    ]
    assert reasons(chain, ops, stays) == ()


# --- order and count of runs ----------------------------------------------------------------------------


def trio(recomputable: bool = False) -> Instance:
    return problem(
        (block("x", initially="device"),),
        tuple(task(name, inputs=(0,), recomputable=recomputable) for name in ("s", "t", "u")),
    )


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([0, 1], ["task 'u' never runs"]),
        ([0], ["task 't' never runs", "task 'u' never runs"]),
        ([0, 2], ["task 't' never runs"]),
        ([0, 2, 1], ["(run u) runs before 't' has run"]),
        ([1, 0, 2], ["(run t) runs before 's' has run"]),
        ([0, 0, 1, 2], ["operation 1 (run s) runs again, but its task is not recomputable"]),
        ([0, 1, 2, 1], ["operation 3 (run t) runs again"]),
    ],
)
def test_every_task_runs_once_in_order(tasks: list[int], words: list[str]) -> None:
    ops = [run(i, k) for i, k in enumerate(tasks)]
    require_reason(reasons(trio(), ops, [stay(0, 0, None)]), *words)


def test_recomputable_tasks_run_as_often_as_they_like_once_they_have_run() -> None:
    ops = [run(i, k) for i, k in enumerate((0, 0, 1, 0, 1, 2, 2, 0))]
    assert reasons(trio(recomputable=True), ops, [stay(0, 0, None)]) == ()
    early = [run(i, k) for i, k in enumerate((0, 2, 1, 2))]
    require_reason(reasons(trio(recomputable=True), early, [stay(0, 0, None)]), "(run u) runs before 't'")


def test_the_order_of_runs_is_that_of_their_stream_not_of_their_ids() -> None:
    ops = [run(9, 0), run(5, 1), run(1, 2)]
    assert reasons(trio(), ops, [stay(0, 0, None)]) == ()


# --- null times -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "kind"), [("offload_ns", "offload"), ("prefetch_ns", "prefetch")])
def test_a_null_time_forbids_a_copy(chain: Instance, key: str, kind: str) -> None:
    blocks = (chain.blocks[X], block("a", **{key: None}), chain.blocks[B])
    found = reasons(msgspec.structs.replace(chain, blocks=blocks), operations(), residences())
    require_reason(found, f"({kind} a): the instance's null time forbids it")


def test_a_time_of_zero_forbids_nothing(chain: Instance) -> None:
    blocks = tuple(msgspec.structs.replace(b, offload_ns=0, prefetch_ns=0) for b in chain.blocks)
    still = tuple(
        task(
            t.name, inputs=t.inputs, outputs=t.outputs, duration=0, workspace=t.algorithms[0].workspace_bytes
        )
        for t in chain.tasks
    )
    instance = msgspec.structs.replace(chain, blocks=blocks, tasks=still)
    assert reasons(instance, operations(), residences()) == ()
    assert program(instance, operations(), residences()).makespan_ns == 0


def test_order_does_not_come_from_durations(chain: Instance) -> None:
    """At no duration at all nothing overlaps in time, yet the program does not say so."""
    blocks = tuple(msgspec.structs.replace(b, offload_ns=0, prefetch_ns=0) for b in chain.blocks)
    instance = msgspec.structs.replace(chain, blocks=blocks)
    ops = operations()
    ops[BACK] = prefetch(BACK, A, OUT)
    require_reason(
        reasons(instance, ops, residences()), "acquires 'a', whose earlier residence may still be live"
    )


# --- the pool -------------------------------------------------------------------------------------------


def test_the_last_byte_of_the_pool_is_good_and_no_further_one(chain: Instance) -> None:
    assert reasons(msgspec.structs.replace(chain, budget_bytes=128), operations(), residences()) == ()
    found = reasons(msgspec.structs.replace(chain, budget_bytes=127), operations(), residences())
    require_reason(found, "the workspace of operation 2 (run second) ends at byte 28 of a pool of 27")


def test_alignment_is_for_offsets_and_not_for_sizes() -> None:
    instance = problem(
        (block("p", bytes=5, initially="device"), block("q", bytes=3, initially="device")),
        (task("t", inputs=(0, 1)),),
        budget_bytes=111,
    )
    assert reasons(instance, [run(0, 0)], [stay(0, 0, None, size=5), stay(1, 8, None, size=3)]) == ()
    assert (
        program(instance, [run(0, 0)], [stay(0, 0, None, size=5), stay(1, 8, None, size=3)]).peak_bytes == 111
    )
    inside = [stay(0, 0, None, size=5), stay(1, 4, None, size=3)]
    require_reason(reasons(instance, [run(0, 0)], inside), "'q', acquired at time 0, overlaps 'p'")


def test_a_budget_under_the_resident_bytes_has_no_room_at_all() -> None:
    instance = problem((block("p", initially="device"),), (task("t", inputs=(0,)),), budget_bytes=99)
    require_reason(reasons(instance, [run(0, 0)], [stay(0, 0, None)]), "ends at byte 8 of a pool of -1")
    empty = problem((), (task("t"),), budget_bytes=99)
    require_reason(reasons(empty, [run(0, 0)], []), "100 bytes are resident, more than the budget of 99")
    paged = reasons(empty, [run(0, 0)], [], memory_model="paged", page_bytes=PAGE)
    require_reason(paged, "100 bytes are resident, more than the budget of 99")
    divisible = reasons(empty, [run(0, 0)], [], memory_model="divisible")
    require_reason(divisible, "0 bytes are live in a pool of -1")


def test_memory_is_reused_after_waits_through_a_third_stream() -> None:
    """P goes to the host, Q follows it there, and R is fetched when Q is out: P is out then too."""
    instance = problem(
        (block("p", initially="device"), block("q", initially="device"), block("r", initially="host")),
        (task("first", inputs=(0, 1)), task("second", inputs=(2,))),
        budget_bytes=116,
    )
    ops = [run(0, 0), offload(1, 0, 0), offload(2, 1), prefetch(3, 2, 2), run(4, 1, 3)]
    stays = [stay(0, 0, None, 0, 1), stay(1, 8, None, 0, 2), stay(2, 0, 3)]
    assert reasons(instance, ops, stays) == ()
    ops[3] = prefetch(3, 2, 1)
    assert reasons(instance, ops, stays) == ()
    ops[3] = prefetch(3, 2, 0)
    require_reason(reasons(instance, ops, stays), "'r', acquired by operation 3 (prefetch r), overlaps 'p'")


def test_order_is_carried_over_a_run_of_another_task() -> None:
    """The fetched R overwrites P, whose last copy is known to be over only because a run waited for it."""
    instance = problem(
        (block("p", initially="device"), block("r", initially="host")),
        (task("a", inputs=(0,)), task("b"), task("c", inputs=(1,))),
    )
    ops = [run(0, 0), offload(1, 0), run(2, 1, 1), prefetch(3, 1, 2), run(4, 2, 3)]
    stays = [stay(0, 0, None, 0, 1), stay(1, 4, 3)]
    assert reasons(instance, ops, stays) == ()
    ops[2] = run(2, 1)
    require_reason(reasons(instance, ops, stays), "overlaps 'p', which need not have been released by then")


def test_all_releases_count_and_not_the_latest_alone(chain: Instance) -> None:
    ops, stays = operations(), residences()
    stays[4] = stay(A, 8, BACK)
    ops[BACK] = prefetch(BACK, A, SECOND)
    found = reasons(chain, ops, stays)
    assert any("'a', acquired by operation 3 (prefetch a), overlaps 'a'" in reason for reason in found)


def test_only_the_last_holder_of_a_byte_matters_if_all_before_it_are_ordered() -> None:
    """Three stays in one place, each after the one before; the third waits for the second only."""
    instance = problem(
        (block("p"), block("q"), block("r")),
        tuple(task(name, outputs=(d,)) for d, name in enumerate("stu")),
        budget_bytes=108,
    )
    ops = [run(0, 0), run(1, 1), run(2, 2)]
    assert reasons(instance, ops, [stay(0, 0, 0, 0), stay(1, 0, 1, 1), stay(2, 0, 2, 2)]) == ()
    late = [stay(0, 0, 0, 2), stay(1, 0, 1, 1), stay(2, 0, 2, 2)]
    assert reasons(instance, ops, late) != ()


def test_a_release_after_two_operations_of_two_streams_ends_with_the_later() -> None:
    """The offload and a second reader both hold P; what overwrites it must wait for both."""
    instance = problem(
        (block("p", initially="device"), block("q")),
        (task("read", inputs=(0,)), task("write", outputs=(1,))),
        budget_bytes=108,
    )
    stays = [stay(0, 0, None, 0, 1), stay(1, 0, 2)]
    assert reasons(instance, [offload(1, 0), run(0, 0), run(2, 1, 1)], stays) == ()
    require_reason(
        reasons(instance, [offload(1, 0), run(0, 0), run(2, 1)], stays),
        "'q', acquired by operation 2 (run write), overlaps 'p'",
    )


# --- copies and updates ---------------------------------------------------------------------------------


@pytest.fixture
def updating() -> Instance:
    """A block is written, updated in place and read."""
    return problem(
        (block("a"), block("pad", initially="host")),
        (task("write", outputs=(0,)), task("update", updates=(0,)), task("read", inputs=(0,))),
    )


def test_update_then_offload_then_prefetch(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), offload(2, 0, 1), prefetch(3, 0, 2), run(4, 2, 3)]
    assert reasons(updating, ops, [stay(0, 0, 0, 2), stay(0, 8, 3)]) == ()


def test_offload_then_update_then_offload_again(updating: Instance) -> None:
    ops = [run(0, 0), offload(1, 0, 0), run(2, 1, 1), offload(3, 0, 2), prefetch(4, 0, 3), run(5, 2, 4)]
    assert reasons(updating, ops, [stay(0, 0, 0, 3), stay(0, 8, 4)]) == ()


def test_an_update_of_what_came_back(updating: Instance) -> None:
    ops = [run(0, 0), offload(1, 0, 0), prefetch(2, 0, 1), run(3, 1, 2), run(4, 2)]
    assert reasons(updating, ops, [stay(0, 0, 0, 1), stay(0, 0, 2)]) == ()


def test_an_update_makes_the_host_copy_stale(updating: Instance) -> None:
    ops = [run(0, 0), offload(1, 0, 0), run(2, 1, 1), prefetch(3, 0, 2), run(4, 2, 3)]
    require_reason(
        reasons(updating, ops, [stay(0, 0, 0, 2), stay(0, 8, 3)]),
        "(prefetch a) reads a host copy of 'a' that is missing or stale",
        "(run read) needs version 2 of 'a', and version 1 is there",
    )


def test_an_update_waits_for_the_offload_of_what_it_overwrites(updating: Instance) -> None:
    ops = [run(0, 0), offload(1, 0, 0), run(2, 1), run(3, 2)]
    require_reason(
        reasons(updating, ops, [stay(0, 0, 0)]), "(run update) writes 'a' while an offload may be copying it"
    )
    ops[2] = run(2, 1, 1)
    assert reasons(updating, ops, [stay(0, 0, 0)]) == ()


def test_an_offload_waits_for_the_update_that_it_copies(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), offload(2, 0, 0), run(3, 2)]
    require_reason(
        reasons(updating, ops, [stay(0, 0, 0)]), "(offload a) copies 'a' while a run may be writing it"
    )
    ops[2] = offload(2, 0, 1)
    assert reasons(updating, ops, [stay(0, 0, 0)]) == ()


def test_an_offload_may_run_beside_a_reader(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), offload(2, 0, 1), run(3, 2)]
    schedule = program(updating, ops, [stay(0, 0, 0, 2, 3)])
    assert check(updating, schedule).reasons == ()
    assert schedule.operations[2].start_ns == schedule.operations[3].start_ns


def test_an_update_needs_the_data_and_not_just_the_place(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 2)]
    found = reasons(updating, ops, [stay(0, 0, 0, 0)])
    require_reason(
        found,
        "(run update) uses 'a', which may have been released by then",
        "(run read) uses 'a', which may have been released by then",
    )


def test_a_prefetch_needs_a_copy_on_the_host(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), prefetch(3, 0, 1), run(4, 2, 3)]
    require_reason(
        reasons(updating, ops, [stay(0, 0, 0, 1), stay(0, 8, 3)]),
        "(prefetch a) reads a host copy of 'a' that is missing or stale",
        "(run read) needs version 2 of 'a', and version None is there",
    )


def test_a_block_may_be_evicted_again_without_another_offload() -> None:
    instance = problem(
        (block("a"),), (task("s", outputs=(0,)), task("t", inputs=(0,)), task("u", inputs=(0,)))
    )
    ops = [run(0, 0), offload(1, 0, 0), prefetch(2, 0, 1), run(3, 1, 2), prefetch(4, 0, 3), run(5, 2, 4)]
    assert reasons(instance, ops, [stay(0, 0, 0, 1), stay(0, 0, 2, 3), stay(0, 0, 4)]) == ()


def test_two_prefetches_need_two_stays() -> None:
    instance = problem((block("h", initially="host"),), (task("t", inputs=(0,)),))
    ops = [prefetch(0, 0), prefetch(1, 0), run(2, 0, 1)]
    require_reason(
        reasons(instance, ops, [stay(0, 0, 0), stay(0, 8, 1)]),
        "operation 1 (prefetch h) acquires 'h', whose earlier residence may still be live",
    )
    assert reasons(instance, ops, [stay(0, 0, 0, 0), stay(0, 8, 1)]) == ()


# --- where blocks begin and end -------------------------------------------------------------------------


def alone(**keys: object) -> Instance:
    return problem((block("w", **keys),), (task("t", inputs=(0,)),))


def test_initially_on_the_device() -> None:
    assert reasons(alone(initially="device"), [run(0, 0)], [stay(0, 0, None)]) == ()


def test_initially_on_the_device_means_on_the_host_too() -> None:
    instance = alone(initially="device")
    ops = [prefetch(0, 0), run(1, 0, 0)]
    assert reasons(instance, ops, [stay(0, 0, 0)]) == ()
    require_reason(
        reasons(instance, ops, [stay(0, 8, None), stay(0, 0, 0)]),
        "(prefetch w) acquires 'w', whose earlier residence may still be live",
    )


def test_initially_on_the_device_may_leave_without_an_offload_and_come_back() -> None:
    instance = problem(
        (block("w", initially="device"), block("y")),
        (task("s", inputs=(0,)), task("t", outputs=(1,)), task("u", inputs=(0,))),
        budget_bytes=108,
    )
    ops = [run(0, 0), run(1, 1), prefetch(2, 0, 1), run(3, 2, 2)]
    assert reasons(instance, ops, [stay(0, 0, None, 0), stay(1, 0, 1, 1), stay(0, 0, 2)]) == ()


def test_initially_on_the_host() -> None:
    instance = alone(initially="host")
    assert reasons(instance, [prefetch(0, 0), run(1, 0, 0)], [stay(0, 0, 0)]) == ()
    require_reason(
        reasons(instance, [run(1, 0)], [stay(0, 0, None)]),
        "'w' is resident from time 0 but is not initially on the device",
    )


def test_finally_on_the_device(updating: Instance) -> None:
    blocks = (block("a", finally_="device"), updating.blocks[1])
    instance = msgspec.structs.replace(updating, blocks=blocks)
    ops = [run(0, 0), run(1, 1), run(2, 2)]
    assert reasons(instance, ops, [stay(0, 0, 0)]) == ()
    words = "'a' must end on the device, where it is not kept"
    require_reason(reasons(instance, ops, [stay(0, 0, 0, 2)]), words)
    moved = [*ops, offload(3, 0, 1)]
    require_reason(reasons(instance, moved, [stay(0, 0, 0, 2, 3)]), words)
    back = [*moved, prefetch(4, 0, 3, 2)]
    assert reasons(instance, back, [stay(0, 0, 0, 2, 3), stay(0, 0, 4)]) == ()


def test_finally_on_the_host_is_the_latest_version(updating: Instance) -> None:
    blocks = (block("a", finally_="host"), updating.blocks[1])
    instance = msgspec.structs.replace(updating, blocks=blocks)
    words = "'a' must end on the host, which has no valid copy"
    ops = [run(0, 0), run(1, 1), run(2, 2)]
    require_reason(reasons(instance, ops, [stay(0, 0, 0)]), words)
    early = [run(0, 0), offload(1, 0, 0), run(2, 1, 1), run(3, 2)]
    require_reason(reasons(instance, early, [stay(0, 0, 0)]), words)
    late = [run(0, 0), run(1, 1), run(2, 2), offload(3, 0, 1)]
    assert reasons(instance, late, [stay(0, 0, 0)]) == ()
    assert program(instance, late, [stay(0, 0, 0)]).makespan_ns == 15
    short = [*late[:2], offload(3, 0, 1), run(2, 2)]
    assert program(instance, short, [stay(0, 0, 0)]).makespan_ns == 15


def test_the_round_ends_with_its_last_copy() -> None:
    instance = alone(initially="device", finally_="host", offload_ns=50)
    schedule = program(instance, [run(0, 0), offload(1, 0, 0)], [stay(0, 0, None)])
    assert check(instance, schedule).reasons == ()
    assert schedule.makespan_ns == 55


def test_finally_anywhere_asks_for_nothing(updating: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 2)]
    assert reasons(updating, ops, [stay(0, 0, 0, 2)]) == ()


# --- moves ----------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Instance:
    return problem((block("a"),), (task("s", outputs=(0,)), task("t", inputs=(0,))))


MOVED = [run(0, 0), move(1, 0), run(2, 1)]


def test_a_move(pair: Instance) -> None:
    schedule = program(pair, MOVED, [stay(0, 0, 0, 1), stay(0, 8, 1)])
    assert check(pair, schedule).reasons == ()
    assert schedule.makespan_ns == 11


@pytest.mark.parametrize(
    ("stays", "words"),
    [
        ([stay(0, 0, 0, 1), stay(0, 4, 1)], "overlaps 'a', which need not have been released"),
        ([stay(0, 0, 0, 1), stay(0, 0, 1)], "overlaps 'a', which need not have been released"),
        ([stay(0, 0, 0), stay(0, 8, 1)], "acquires 'a', whose earlier residence may still be live"),
        ([stay(0, 0, 0, 2), stay(0, 8, 1)], "acquires 'a', whose earlier residence may still be live"),
        ([stay(0, 0, 0, 1, 2), stay(0, 8, 1)], "acquires 'a', whose earlier residence may still be live"),
        ([stay(0, 0, 0, 1)], "(move a) must acquire exactly one residence of 'a'"),
    ],
)
def test_a_move_holds_the_old_and_the_new_place_and_they_are_disjoint(
    pair: Instance, stays: list[Residence], words: str
) -> None:
    assert any(words in reason for reason in reasons(pair, MOVED, stays))


def test_a_move_of_what_is_not_there(pair: Instance) -> None:
    ops = [move(1, 0), run(0, 0), run(2, 1)]
    found = reasons(pair, ops, [stay(0, 8, 1, 1), stay(0, 0, 0)])
    assert any("(move a) needs 'a', which is not on the device" in reason for reason in found)


def test_a_move_is_on_compute_and_may_be_forbidden(pair: Instance) -> None:
    forbidden = msgspec.structs.replace(pair, blocks=(block("a", move_ns=None),))
    stays = [stay(0, 0, 0, 1), stay(0, 8, 1)]
    require_reason(reasons(forbidden, MOVED, stays), "(move a): the instance's null time forbids it")
    elsewhere = [run(0, 0), msgspec.structs.replace(move(1, 0, 0), stream="d2h"), run(2, 1, 1)]
    require_reason(reasons(pair, elsewhere, stays), "(move a) is on stream d2h, not on compute")


def test_a_move_and_an_offload_of_one_block_do_not_overlap(pair: Instance) -> None:
    ops = [run(0, 0), offload(3, 0, 0), move(1, 0, 3), run(2, 1)]
    assert reasons(pair, ops, [stay(0, 0, 0, 1, 3), stay(0, 8, 1)]) == ()
    ops[2] = move(1, 0)
    assert reasons(pair, ops, [stay(0, 0, 0, 1, 3), stay(0, 8, 1)]) != ()
    assert reasons(pair, ops, [stay(0, 0, 0, 1), stay(0, 8, 1)]) != ()


def test_an_offload_after_a_move_copies_from_the_new_place(pair: Instance) -> None:
    ops = [run(0, 0), move(1, 0), offload(3, 0, 1), run(2, 1)]
    assert reasons(pair, ops, [stay(0, 0, 0, 1), stay(0, 8, 1, 2, 3)]) == ()
    ops[2] = offload(3, 0, 0)
    found = reasons(pair, ops, [stay(0, 0, 0, 1), stay(0, 8, 1, 2, 3)])
    assert any("(offload a) uses 'a', which need not have arrived by then" in reason for reason in found)


def test_a_moved_block_has_the_same_version(updating: Instance) -> None:
    ops = [run(0, 0), offload(1, 0, 0), move(2, 0, 1), run(3, 1), run(4, 2)]
    assert reasons(updating, ops, [stay(0, 0, 0, 2), stay(0, 8, 2)]) == ()


# --- recomputation --------------------------------------------------------------------------------------


@pytest.fixture
def again() -> Instance:
    """X gives A and C in one task that may run again; then A and C are read far apart."""
    return problem(
        (block("x", initially="device"), block("a"), block("c")),
        (
            task("make", inputs=(0,), outputs=(1, 2), recomputable=True),
            task("read a", inputs=(1,)),
            task("read c", inputs=(2,)),
        ),
    )


def test_a_re_run_allocates_what_is_gone_and_rewrites_what_is_there(again: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 0), run(3, 2)]
    all_again = [stay(0, 0, None), stay(1, 8, 0, 1), stay(2, 16, 0, 0), stay(1, 8, 2), stay(2, 16, 2)]
    assert reasons(again, ops, all_again) == ()
    a_stayed = [stay(0, 0, None), stay(1, 8, 0), stay(2, 16, 0, 0), stay(2, 16, 2)]
    assert reasons(again, ops, a_stayed) == ()
    none = [stay(0, 0, None), stay(1, 8, 0), stay(2, 16, 0)]
    assert reasons(again, ops, none) == ()


def test_a_re_run_allocates_all_its_outputs(again: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 0), run(3, 2)]
    found = reasons(again, ops, [stay(0, 0, None), stay(1, 8, 0, 1), stay(2, 16, 0, 0), stay(2, 16, 2)])
    require_reason(found, "operation 2 (run make) uses 'a', which may have been released by then")


def test_a_re_run_needs_its_inputs(again: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 0), run(3, 2)]
    found = reasons(again, ops, [stay(0, 0, None, 1), stay(1, 8, 0), stay(2, 16, 0, 0), stay(2, 16, 2)])
    require_reason(found, "operation 2 (run make) uses 'x', which may have been released by then")


def test_a_re_run_does_not_rewrite_a_block_while_a_copy_reads_it(again: Instance) -> None:
    ops = [run(0, 0), offload(5, 1, 0), run(1, 1), run(2, 0), run(3, 2)]
    stays = [stay(0, 0, None), stay(1, 8, 0), stay(2, 16, 0)]
    require_reason(
        reasons(again, ops, stays), "operation 2 (run make) writes 'a' while an offload may be copying it"
    )
    ops[3] = run(2, 0, 5)
    assert reasons(again, ops, stays) == ()


def test_a_re_run_does_not_rewrite_a_block_while_a_prefetch_brings_it(again: Instance) -> None:
    ops = [run(0, 0), offload(5, 1, 0), run(1, 1), prefetch(6, 1, 5, 1), run(2, 0), run(3, 2)]
    stays = [stay(0, 0, None), stay(1, 8, 0, 1, 5), stay(2, 16, 0), stay(1, 8, 6)]
    require_reason(reasons(again, ops, stays), "operation 2 (run make) uses 'a', which need not have arrived")
    ops[4] = run(2, 0, 6)
    assert reasons(again, ops, stays) == ()


def test_an_offload_waits_for_the_re_run_that_rewrites_its_block(again: Instance) -> None:
    ops = [run(0, 0), run(1, 1), run(2, 0), offload(5, 1, 0), run(3, 2)]
    stays = [stay(0, 0, None), stay(1, 8, 0), stay(2, 16, 0)]
    require_reason(reasons(again, ops, stays), "(offload a) copies 'a' while a run may be writing it")
    ops[3] = offload(5, 1, 2)
    assert reasons(again, ops, stays) == ()


def test_the_host_copy_of_a_re_run_block_stays_valid(again: Instance) -> None:
    ops = [run(0, 0), offload(5, 1, 0), run(2, 0, 5), prefetch(6, 1, 2), run(1, 1, 6), run(3, 2)]
    stays = [stay(0, 0, None), stay(1, 8, 0, 2), stay(2, 16, 0), stay(1, 24, 6)]
    assert reasons(again, ops, stays) == ()


def test_no_re_run_after_an_update_of_its_output() -> None:
    instance = problem(
        (block("a"),), (task("make", outputs=(0,), recomputable=True), task("update", updates=(0,)))
    )
    assert reasons(instance, [run(0, 0), run(1, 0), run(2, 1)], [stay(0, 0, 0)]) == ()
    for stays in ([stay(0, 0, 0)], [stay(0, 0, 0, 1), stay(0, 0, 2)]):
        found = reasons(instance, [run(0, 0), run(1, 1), run(2, 0)], stays)
        require_reason(found, "operation 2 (run make) writes 'a' again after a later update of it")


def test_no_re_run_on_an_input_that_has_been_updated() -> None:
    instance = problem(
        (block("x", initially="device"), block("a")),
        (
            task("make", inputs=(0,), outputs=(1,), recomputable=True),
            task("update", updates=(0,)),
            task("read", inputs=(1,)),
        ),
    )
    ops = [run(0, 0), run(1, 1), run(2, 0), run(3, 2)]
    found = reasons(instance, ops, [stay(0, 0, None), stay(1, 8, 0, 0), stay(1, 8, 2)])
    require_reason(found, "operation 2 (run make) needs version 0 of 'x', and version 1 is there")


def test_an_update_is_not_repeated() -> None:
    instance = problem(
        (block("a"),), (task("make", outputs=(0,)), task("add", updates=(0,), recomputable=True))
    )
    found = reasons(instance, [run(0, 0), run(1, 1), run(2, 1)], [stay(0, 0, 0)])
    require_reason(found, "operation 2 (run add) needs version 1 of 'a', and version 2 is there")


def test_a_re_run_has_a_workspace_of_its_own() -> None:
    instance = problem((block("a"),), (task("make", outputs=(0,), workspace=4, recomputable=True),))
    ops = [run(0, 0), run(1, 0)]
    assert reasons(instance, ops, [stay(0, 0, 0), scratch(0, 8), scratch(1, 8)]) == ()
    require_reason(
        reasons(instance, ops, [stay(0, 0, 0), scratch(0, 8)]), "operation 1 (run make) has 0 workspaces"
    )


def test_workspaces_go_with_the_algorithm() -> None:
    both_ways = (
        Algorithm(name="lean", duration_ns=9, workspace_bytes=0),
        Algorithm(name="fast", duration_ns=2, workspace_bytes=16),
    )
    instance = problem((block("a"),), (task("make", outputs=(0,), algorithms=both_ways),))
    assert reasons(instance, [run(0, 0)], [stay(0, 0, 0)]) == ()
    assert reasons(instance, [run(0, 0, algorithm=1)], [stay(0, 0, 0), scratch(0, 8, 16)]) == ()
    require_reason(reasons(instance, [run(0, 0, algorithm=1)], [stay(0, 0, 0)]), "has 0 workspaces, not 1")


# --- parts ----------------------------------------------------------------------------------------------


@pytest.fixture
def parts() -> Instance:
    """Two parts of one tensor, with a gap between them, written apart and read together."""
    return problem(
        (block("p", tensor="t", begin=0), block("q", tensor="t", begin=12)),
        (task("make p", outputs=(0,)), task("make q", outputs=(1,)), task("read", inputs=(0, 1))),
    )


RUNS = [run(0, 0), run(1, 1), run(2, 2)]


@pytest.mark.parametrize("base", [0, 4, 12])
def test_parts_lie_at_one_base(parts: Instance, base: int) -> None:
    assert reasons(parts, RUNS, [stay(0, base, 0), stay(1, base + 12, 1)]) == ()


@pytest.mark.parametrize(("p", "q"), [(0, 8), (0, 16), (12, 0)])
def test_parts_of_one_run_at_two_bases(parts: Instance, p: int, q: int) -> None:
    words = "(run read) touches parts of 't' that do not lie at one base"
    require_reason(reasons(parts, RUNS, [stay(0, p, 0), stay(1, q, 1)]), words)


def test_a_base_may_lie_under_the_pool_if_no_part_does() -> None:
    instance = problem(
        (block("p", tensor="t", begin=12), block("q", tensor="t", begin=20)), (task("make", outputs=(0, 1)),)
    )
    assert reasons(instance, [run(0, 0)], [stay(0, 0, 0), stay(1, 8, 0)]) == ()


def test_parts_that_no_run_touches_together_lie_anywhere(parts: Instance) -> None:
    apart = msgspec.structs.replace(
        parts, tasks=(*parts.tasks[:2], task("read p", inputs=(0,)), task("read q", inputs=(1,)))
    )
    ops = [run(0, 0), run(1, 1), run(2, 2), run(3, 3)]
    assert reasons(apart, ops, [stay(0, 12, 0), stay(1, 0, 1)]) == ()


def test_a_tensor_may_come_back_at_another_base(parts: Instance) -> None:
    ops = [
        run(0, 0),
        offload(3, 0, 0),
        run(1, 1),
        offload(4, 1, 1),
        prefetch(5, 0, 3),
        prefetch(6, 1, 4),
        run(2, 2, 6),
    ]
    there = [stay(0, 0, 0, 3), stay(1, 12, 1, 4)]
    assert reasons(parts, ops, [*there, stay(0, 8, 5), stay(1, 20, 6)]) != ()
    ops[4] = prefetch(5, 0, 3, 4)
    assert reasons(parts, ops, [*there, stay(0, 8, 5), stay(1, 20, 6)]) == ()
    found = reasons(parts, ops, [*there, stay(0, 8, 5), stay(1, 16, 6)])
    require_reason(found, "(run read) touches parts of 't' that do not lie at one base")


# --- one copy engine ------------------------------------------------------------------------------------


def single(ops: list[Operation]) -> list[Operation]:
    return [
        msgspec.structs.replace(o, stream="copy") if o.kind in ("offload", "prefetch") else o for o in ops
    ]


def test_with_a_single_engine_all_copies_are_on_one_stream(chain: Instance) -> None:
    one = msgspec.structs.replace(chain, engines="single")
    assert reasons(one, single(operations()), residences()) == ()
    require_reason(
        reasons(one, operations(), residences()),
        "(offload a) is on stream d2h, not on copy",
        "(prefetch a) is on stream h2d, not on copy",
    )


def test_the_one_stream_orders_copies(chain: Instance) -> None:
    """The prefetch need not name the offload: it comes after it on the stream."""
    one = msgspec.structs.replace(chain, engines="single")
    ops = single(operations())
    ops[BACK] = prefetch(BACK, A, SECOND, stream="copy")
    assert reasons(one, ops, residences()) == ()


# --- paged ----------------------------------------------------------------------------------------------


def pages(d: int, extents: list[tuple[int, int]], by: int | None, *released: int, size: int = 8) -> Residence:
    """A block in extents of whole pages, counted in pages."""
    places = tuple((start * PAGE, count * PAGE) for start, count in extents)
    return Residence(block=d, extents=places, bytes=size, acquired_by=by, released_after=released)


@pytest.fixture
def book() -> Instance:
    """P of one page and a byte and Q of one page, in a pool of three pages."""
    return problem(
        (block("p", bytes=PAGE + 1), block("q", bytes=PAGE)),
        (task("s", outputs=(0,)), task("t", inputs=(0,), outputs=(1,))),
        budget_bytes=100 + 3 * PAGE,
    )


def paged(book: Instance, *stays: Residence) -> tuple[str, ...]:
    ops = [run(0, 0), run(1, 1)]
    return reasons(book, ops, list(stays), memory_model="paged", page_bytes=PAGE)


P, Q = PAGE + 1, PAGE


@pytest.mark.parametrize("extents", [[(0, 2)], [(0, 1), (1, 1)], [(1, 1), (0, 1)]])
def test_pages_in_any_order(book: Instance, extents: list[tuple[int, int]]) -> None:
    assert paged(book, pages(0, extents, 0, size=P), pages(1, [(2, 1)], 1, size=Q)) == ()


def test_pages_around_others(book: Instance) -> None:
    stays = [pages(0, [(2, 1), (0, 1)], 0, size=P), pages(1, [(1, 1)], 1, size=Q)]
    assert paged(book, *stays) == ()
    made = program(book, [run(0, 0), run(1, 1)], stays, memory_model="paged", page_bytes=PAGE)
    assert made.peak_bytes == 100 + 3 * PAGE


@pytest.mark.parametrize(
    ("extents", "words"),
    [
        ([(0, 1)], [f"'p' has {PAGE} bytes in its extents, not its {P} in whole pages"]),
        ([], ["'p' has 0 bytes in its extents"]),
        (
            [(0, 2), (3, 1)],
            [f"'p' has {3 * PAGE} bytes in its extents", f"ends at byte {4 * PAGE} of a pool of {3 * PAGE}"],
        ),
        ([(1, 2)], ["'q', acquired by operation 1 (run t), overlaps 'p'"]),
        ([(0, 1), (0, 1)], ["'p' has the same page twice"]),
        ([(0, 1), (3, 1)], [f"'p' ends at byte {4 * PAGE} of a pool of {3 * PAGE}"]),
    ],
)
def test_broken_pages(book: Instance, extents: list[tuple[int, int]], words: list[str]) -> None:
    require_reason(paged(book, pages(0, extents, 0, size=P), pages(1, [(2, 1)], 1, size=Q)), *words)


@pytest.mark.parametrize(
    ("extents", "words"),
    [
        (((0, P),), [f"'p' has {P} bytes in its extents"]),
        (
            ((0, PAGE), (PAGE, 100), (PAGE + 100, PAGE - 100)),
            [f"lies at {PAGE + 100}, not a multiple", f"'p' has {2 * PAGE} bytes"],
        ),
        (((4, PAGE), (4 + PAGE, PAGE)), ["lies at 4, not", f"lies at {4 + PAGE}, not"]),
    ],
)
def test_pages_are_whole(book: Instance, extents: tuple[tuple[int, int], ...], words: list[str]) -> None:
    one = msgspec.structs.replace(book, tasks=(book.tasks[0],))
    residence = Residence(block=0, extents=extents, bytes=P, acquired_by=0)
    found = reasons(one, [run(0, 0)], [residence], memory_model="paged", page_bytes=PAGE)
    require_reason(found, *words)


def test_a_page_beyond_a_pool_that_is_not_whole_pages(book: Instance) -> None:
    short = msgspec.structs.replace(book, budget_bytes=100 + 3 * PAGE - 1)
    found = paged(short, pages(0, [(0, 2)], 0, size=P), pages(1, [(2, 1)], 1, size=Q))
    require_reason(found, f"'q' ends at byte {3 * PAGE} of a pool of {3 * PAGE - 1}")


def test_paged_parts_begin_at_pages_and_need_no_one_base(parts: Instance) -> None:
    ops, keys = RUNS, {"memory_model": "paged", "page_bytes": PAGE}
    stays = [pages(0, [(1, 1)], 0), pages(1, [(0, 1)], 1)]
    wide = msgspec.structs.replace(parts, budget_bytes=100 + 2 * PAGE)
    require_reason(reasons(wide, ops, stays, **keys), "part 'q' begins inside a page")
    blocks = (parts.blocks[0], block("q", tensor="t", begin=PAGE))
    assert reasons(msgspec.structs.replace(wide, blocks=blocks), ops, stays, **keys) == ()


# --- divisible ------------------------------------------------------------------------------------------


def divisible(instance: Instance, ops: list[Operation], stays: list[Residence]) -> tuple[str, ...]:
    return reasons(instance, ops, stays, memory_model="divisible")


def bare(stays: list[Residence]) -> list[Residence]:
    return [msgspec.structs.replace(r, offset=None) for r in stays]


def test_divisible_memory_has_a_capacity_at_the_simulated_times(chain: Instance) -> None:
    exact = msgspec.structs.replace(chain, budget_bytes=120)
    assert divisible(exact, operations(), bare(residences())) == ()
    tight = msgspec.structs.replace(chain, budget_bytes=119)
    require_reason(
        divisible(tight, operations(), bare(residences())),
        "at its simulated times 20 bytes are live in a pool of 19",
    )


def test_what_ends_at_an_instant_is_gone_for_what_starts_at_it() -> None:
    instance = problem(
        (block("p"), block("q")), (task("s", outputs=(0,)), task("t", outputs=(1,))), budget_bytes=108
    )
    ops = [run(0, 0), run(1, 1)]
    assert divisible(instance, ops, [stay(0, None, 0, 0), stay(1, None, 1, 1)]) == ()
    found = divisible(instance, ops, [stay(0, None, 0, 1), stay(1, None, 1, 1)])
    require_reason(found, "at its simulated times 16 bytes are live in a pool of 8")


def test_divisible_memory_holds_what_runs_without_time_need() -> None:
    """A block stays while a run that takes no time has a workspace, or has left."""
    tasks = (
        task("write", outputs=(0,)),
        task("at once", workspace=4, duration=0),
        task("read", inputs=(0,)),
    )
    exact = problem((block("a"),), tasks, budget_bytes=112)
    ops, stays = [run(0, 0), run(1, 1), run(2, 2)], [stay(0, None, 0, 2), scratch(1, None)]
    assert divisible(exact, ops, stays) == ()
    tight = msgspec.structs.replace(exact, budget_bytes=111)
    require_reason(divisible(tight, ops, stays), "12 bytes are live in a pool of 11")
    leaves = [run(0, 0), offload(3, 0, 0), run(1, 1, 3), prefetch(4, 0, 1), run(2, 2, 4)]
    assert divisible(tight, leaves, [stay(0, None, 0, 3), scratch(1, None), stay(0, None, 4, 2)]) == ()


def test_runs_without_time_come_in_the_order_of_the_list() -> None:
    """Each has a workspace of its own at the same instant, one after the other."""
    tasks = (task("first", workspace=8, duration=0), task("second", workspace=8, duration=0))
    exact = problem((), tasks, budget_bytes=108)
    assert divisible(exact, [run(0, 0), run(1, 1)], [scratch(0, None, 8), scratch(1, None, 8)]) == ()


def test_divisible_memory_keeps_the_rules_of_data(chain: Instance) -> None:
    ops = operations()
    ops[THIRD] = run(THIRD, 2)
    found = divisible(chain, ops, bare(residences()))
    require_reason(found, "(run third) uses 'a', which need not have arrived by then")


# --- reported figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"makespan_ns": 20}, ["makespan_ns is 20, simulated 19"]),
        ({"makespan_ns": 18}, ["makespan_ns is 18, simulated 19"]),
        ({"peak_bytes": 129}, ["peak_bytes is 129, it is 128"]),
        ({"peak_bytes": 28}, ["peak_bytes is 28, it is 128"]),
        ({"instance": "other"}, ["the schedule is for instance 'other', not for 'hand'"]),
    ],
)
def test_figures_are_those_of_the_simulation(
    chain: Instance, keys: dict[str, object], words: list[str]
) -> None:
    schedule = msgspec.structs.replace(program(chain, operations(), residences()), **keys)
    require_reason(check(chain, schedule).reasons, *words)


@pytest.mark.parametrize(
    ("start", "end"),
    [(6, 9), (5, 9), (4, 8), (6, 8)],
)
def test_reported_times_are_exact(chain: Instance, start: int, end: int) -> None:
    schedule = program(chain, operations(), residences())
    ops = list(schedule.operations)
    ops[OUT] = msgspec.structs.replace(ops[OUT], start_ns=start, end_ns=end)
    found = check(chain, msgspec.structs.replace(schedule, operations=tuple(ops))).reasons
    require_reason(found, f"(offload a) is reported from {start} to {end} ns, simulated from 5 to 8")


def test_a_late_start_is_not_reported_as_a_plan(chain: Instance) -> None:
    """Times that are all feasible, but later than the program's own, are not the simulation."""
    schedule = program(chain, operations(), residences())
    ops = tuple(
        msgspec.structs.replace(o, start_ns=o.start_ns + 1, end_ns=o.end_ns + 1) for o in schedule.operations
    )
    late = msgspec.structs.replace(schedule, operations=ops, makespan_ns=schedule.makespan_ns + 1)
    assert len(check(chain, late).reasons) == 6


@pytest.mark.parametrize(
    ("named", "given", "valid"),
    [(None, None, True), (None, "a", True), ("a", None, True), ("a", "a", True), ("a", "b", False)],
)
def test_the_checksum_ties_schedule_and_instance(
    chain: Instance, named: str | None, given: str | None, valid: bool
) -> None:
    schedule = program(chain, operations(), residences(), instance_sha256=named)
    report = check(chain, schedule, instance_sha256=given)
    assert report.valid == valid
    assert valid or report.reasons == ("instance_sha256 is not the checksum of the instance's file",)


def test_every_reason_is_given(chain: Instance) -> None:
    ops, stays = operations(), residences()
    ops[OUT] = offload(OUT, A, FIRST, stream="copy")
    stays[3] = scratch(SECOND, 26)
    schedule = msgspec.structs.replace(program(chain, ops, stays), makespan_ns=1)
    require_reason(
        check(chain, schedule).reasons, "is on stream copy", "not a multiple of 4", "makespan_ns is 1"
    )


def test_what_the_instance_does_not_have_is_an_error_and_no_reason(chain: Instance) -> None:
    schedule = program(chain, operations(), residences())
    less = msgspec.structs.replace(chain, tasks=chain.tasks[:2])
    with pytest.raises(FormatError, match="task 2 is out of range"):
        check(less, schedule)
