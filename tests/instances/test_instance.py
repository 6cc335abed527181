"""The rules of the instance format, each broken once, with near-misses that hold."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.instances.errors import FormatError
from pebbler.instances.instance import Algorithm, Block, Instance, Task


def block(name: str, **keys: object) -> Block:
    return Block(**{"name": name, "bytes": 1024, "offload_ns": 1, "prefetch_ns": 1, **keys})


def task(name: str, **keys: object) -> Task:
    algorithm = Algorithm(name="a", duration_ns=1, workspace_bytes=0)
    return Task(**{"name": name, "inputs": (), "outputs": (), "algorithms": (algorithm,), **keys})


def instance(blocks: list[Block], tasks: list[Task], **keys: object) -> Instance:
    return Instance(
        **{
            "name": "hand",
            "engines": "duplex",
            "budget_bytes": 2**20,
            "resident_bytes": 0,
            "blocks": tuple(blocks),
            "tasks": tuple(tasks),
            **keys,
        }
    )


X = block("x", initially="device")
Y = block("y")


def test_defaults_are_those_of_the_contract() -> None:
    made = instance([Y], [task("t", outputs=(0,))])
    assert (made.alignment_bytes, made.rounds, made.meta) == (512, 1, {})
    assert (Y.initially, Y.finally_, Y.move_ns, Y.tensor, Y.begin) == ("absent", "anywhere", None, None, None)
    assert made.tasks[0].updates == ()
    assert made.tasks[0].recomputable is False


def test_meta_of_two_instances_is_not_shared() -> None:
    first, second = (instance([], [task("t")]) for _ in range(2))
    first.meta["network"] = "n"
    assert second.meta == {}


def test_an_instance_does_not_change() -> None:
    made = instance([Y], [task("t", outputs=(0,))])
    with pytest.raises(AttributeError):
        made.budget_bytes = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.blocks[0].bytes = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("blocks", "tasks", "message"),
    [
        ([X], [], "tasks: there is none"),
        ([X], [task("t", algorithms=())], r"tasks\[0\] \('t'\): it has no algorithm"),
        ([X], [task("t", inputs=(1,))], r"tasks\[0\] \('t'\): block index 1 is out of range 0\.\.0"),
        ([X], [task("t", outputs=(7,))], "block index 7 is out of range"),
        ([X], [task("t", updates=(7,))], "block index 7 is out of range"),
        ([X], [task("t", inputs=(0, 0))], r"tasks\[0\] \('t'\): a block is listed twice"),
        ([X], [task("t", inputs=(0,), updates=(0,))], "a block is listed twice"),
        ([Y], [task("t", outputs=(0,), updates=(0,))], "a block is listed twice"),
        ([Y], [task("t", inputs=(0,), outputs=(0,))], "a block is listed twice"),
        ([Y], [task("t", inputs=(0,))], r"tasks\[0\] \('t'\): it reads 'y' before it exists"),
        ([Y], [task("t", updates=(0,))], "it reads 'y' before it exists"),
        (
            [Y, block("z")],
            [task("s", inputs=(0,), outputs=(1,)), task("t", outputs=(0,))],
            r"tasks\[0\] \('s'\): it reads 'y' before it exists",
        ),
        ([X], [task("t", outputs=(0,))], "outputs 'x', which already exists; a later write is an update"),
        (
            [block("h", initially="host")],
            [task("t", outputs=(0,))],
            "outputs 'h', which already exists",
        ),
        (
            [Y],
            [task("s", outputs=(0,)), task("t", outputs=(0,))],
            r"tasks\[1\] \('t'\): it outputs 'y', which already exists",
        ),
        (
            [block("y", finally_="host")],
            [task("t")],
            r"blocks\[0\] \('y'\): it has a place finally but is never",
        ),
        ([block("x", initially="device", tensor="t")], [task("t")], "'tensor' and 'begin' come together"),
        ([block("x", initially="device", begin=0)], [task("t")], "'tensor' and 'begin' come together"),
        (
            [block("x", initially="device", tensor="t", begin=100)],
            [task("t")],
            r"'begin' is 100, not a multiple of alignment_bytes \(512\)",
        ),
        (
            [block("p", tensor="t", begin=0, bytes=1025), block("q", tensor="t", begin=1024)],
            [task("t", outputs=(0, 1))],
            "tensor 't': its parts 'p' and 'q' overlap",
        ),
        (
            [block("p", tensor="t", begin=1024), block("q", tensor="t", begin=0, bytes=1025)],
            [task("t", outputs=(0, 1))],
            "tensor 't': its parts 'q' and 'p' overlap",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_place(blocks: list[Block], tasks: list[Task], message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        instance(blocks, tasks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "tasks"),
    [
        ([], [task("t")]),
        ([X], [task("t")]),
        ([X], [task("t", updates=(0,)), task("u", updates=(0,))]),
        ([Y], [task("s", outputs=(0,)), task("t", updates=(0,)), task("u", inputs=(0,))]),
        ([block("h", initially="host", finally_="device")], [task("t")]),
        ([block("y", finally_="host")], [task("t", outputs=(0,))]),
        (
            [block("p", tensor="t", begin=0, bytes=1024), block("q", tensor="t", begin=1024)],
            [task("t", outputs=(0, 1))],
        ),
        (
            [block("p", tensor="t", begin=0), block("q", tensor="u", begin=0)],
            [task("t", outputs=(0, 1))],
        ),
        ([block("p", tensor="t", begin=4096)], [task("t", outputs=(0,))]),
        ([block("y", offload_ns=None, prefetch_ns=None, move_ns=None)], [task("t", outputs=(0,))]),
        ([block("y", offload_ns=0, prefetch_ns=0, move_ns=0)], [task("t", outputs=(0,))]),
    ],
)
def test_near_misses_hold(blocks: list[Block], tasks: list[Task]) -> None:
    assert len(instance(blocks, tasks).tasks) == len(tasks)


def test_begin_follows_the_instance_s_alignment() -> None:
    part = block("p", tensor="t", begin=100)
    assert instance([part], [task("t", outputs=(0,))], alignment_bytes=4).blocks == (part,)


def test_a_budget_under_the_resident_bytes_is_well_formed() -> None:
    assert instance([], [task("t")], budget_bytes=5, resident_bytes=8).pool_bytes == -3


def test_uses_and_writers_are_in_the_order_of_the_tasks() -> None:
    made = instance(
        [X, Y, block("unused", initially="host")],
        [
            task("a", inputs=(0,), outputs=(1,)),
            task("b", updates=(1,)),
            task("c", inputs=(1,), updates=(0,)),
        ],
    )
    assert made.uses == ((0, 2), (0, 1, 2), ())
    assert made.writers == ((2,), (0, 1), ())


def test_a_changed_instance_does_not_keep_what_was_derived() -> None:
    made = instance([X], [task("a", inputs=(0,))])
    assert made.uses == ((0,),)
    assert made.writers == ((),)
    changed = msgspec.structs.replace(made, tasks=(task("a"), task("b", updates=(0,))))
    assert changed.uses == ((1,),)
    assert changed.writers == ((1,),)


def test_a_changed_instance_is_checked_again() -> None:
    made = instance([X], [task("a", inputs=(0,))])
    with pytest.raises(FormatError, match="before it exists"):
        msgspec.structs.replace(made, blocks=(Y,))


def test_blocks_of_a_task() -> None:
    assert task("t", inputs=(3,), outputs=(1,), updates=(2,)).blocks == (3, 1, 2)


def test_tasks_that_take_longer_than_a_file_can_say_are_refused_where_they_enter() -> None:
    """Each time is a figure that files hold; so is their sum, or there is no schedule to write."""

    def of(*durations: int) -> Instance:
        slow = Algorithm(name="slow", duration_ns=2**53, workspace_bytes=0)
        tasks = tuple(
            Task(
                name=f"task {k}",
                inputs=(),
                outputs=(),
                algorithms=(slow, Algorithm(name="fast", duration_ns=duration, workspace_bytes=0)),
            )
            for k, duration in enumerate(durations)
        )
        return Instance(
            name="long", engines="duplex", budget_bytes=1, resident_bytes=0, blocks=(), tasks=tasks
        )

    assert len(of(2**52, 2**52).tasks) == 2
    told = r"tasks: their fastest algorithms take 9007199254740993 ns in all, more than 9007199254740992, "
    with pytest.raises(FormatError, match=told):
        of(2**52, 2**52 + 1)
