"""Layrub's program on small networks in the manner of Caffe, whose sizes and times are our own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import pytest

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.layrub import planned
from pebbler.heuristics.papers.layrub_program import buffer_bytes
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.origin import LayerTasks
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import Operation, Schedule

from ...samples import crossed

COMPUTE, COPY = 10, 4

Row = tuple[str, str, str, str, str]
"""A task: its layer, the pass (F or B), and the names of the blocks that it reads, makes and changes.

A task of the backward pass that makes nothing has the weights' gradient, and is called W.
"""


def instance_of(rows: Sequence[Row], sizes: dict[str, int], kinds: dict[str, str] | None = None) -> Instance:
    """Build an instance from its tasks; blocks have 8 bytes unless said otherwise, X is the input."""
    names = list(dict.fromkeys(["X", *(name for row in rows for name in " ".join(row[2:]).split())]))
    index = {name: d for d, name in enumerate(names)}
    layers: dict[str, tuple[list[int], list[int]]] = {}
    for k, (layer, which, *_) in enumerate(rows):
        layers.setdefault(layer, ([], []))[which == "B"].append(k)
    return Instance(
        name="hand-made",
        engines="duplex",
        budget_bytes=10**6,
        resident_bytes=0,
        alignment_bytes=8,
        blocks=tuple(
            Block(
                name=name,
                bytes=sizes.get(name, 8),
                offload_ns=COPY,
                prefetch_ns=COPY,
                initially="device" if name == "X" else "absent",
            )
            for name in names
        ),
        tasks=tuple(
            Task(
                name=f"{which if which == 'F' or makes or changes else 'W'}({layer})",
                inputs=tuple(index[name] for name in reads.split()),
                outputs=tuple(index[name] for name in makes.split()),
                updates=tuple(index[name] for name in changes.split()),
                algorithms=(Algorithm(name="only", duration_ns=COMPUTE, workspace_bytes=0),),
            )
            for layer, which, reads, makes, changes in rows
        ),
        layers=tuple(
            LayerTasks(name=name, kind=(kinds or {}).get(name, "conv"), forward=tuple(f), backward=tuple(b))
            for name, (f, b) in layers.items()
        ),
    )


def chain(depth: int, sizes: dict[str, int] | None = None, *, read_late: str = "") -> Instance:
    """Layers 1 to `depth` and a loss; those in `read_late` read their input as they write its gradient."""
    data = ["X", *(f"Y{i}" for i in range(1, depth + 1))]
    rows: list[Row] = [(str(i), "F", data[i - 1], data[i], "") for i in range(1, depth + 1)]
    rows += [("loss", "F", data[-1], "P", ""), ("loss", "B", "P", f"d{data[-1]}", "")]
    for i in range(depth, 0, -1):
        rows.append((str(i), "B", f"{data[i - 1]} d{data[i]}", "", ""))
        if i > 1:
            late = data[i - 1] if str(i) in read_late.split() else ""
            rows.append((str(i), "B", f"d{data[i]} {late}", f"d{data[i - 1]}", ""))
    return instance_of(rows, sizes or {})


def residual(blocks: int) -> Instance:
    """Blocks of a layer and a sum with what went into them, as Caffe has them, with a split for each fork."""
    rows: list[Row] = [("first", "F", "X", "Y0", "")]
    back: list[Row] = []
    for i in range(blocks):
        rows += [
            (f"split{i}", "F", f"Y{i}", "", ""),
            (f"conv{i}", "F", f"Y{i}", f"C{i}", ""),
            (f"add{i}", "F", f"C{i} Y{i}", f"Y{i + 1}", ""),
        ]
        back[:0] = [
            (f"add{i}", "B", f"dY{i + 1}", f"dC{i} S{i}", ""),
            (f"conv{i}", "B", f"Y{i} dC{i}", "", ""),
            (f"conv{i}", "B", f"dC{i}", f"R{i}", ""),
            (f"split{i}", "B", f"R{i} S{i}", f"dY{i}", ""),
        ]
    rows += [("fc", "F", f"Y{blocks}", "Z", ""), ("loss", "F", "Z", "P", ""), ("loss", "B", "P", "dZ", "")]
    rows += [("fc", "B", f"Y{blocks} dZ", "", ""), ("fc", "B", "dZ", f"dY{blocks}", ""), *back]
    rows.append(("first", "B", "X dY0", "", ""))
    kinds = {f"split{i}": "split" for i in range(blocks)} | {f"add{i}": "add" for i in range(blocks)}
    return instance_of(rows, {}, kinds)


def solve(instance: Instance, memory: Literal["contiguous", "paged"] = "contiguous") -> Schedule:
    schedule = find_method("layrub-program").call(instance, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    return schedule


def offsets(instance: Instance, schedule: Schedule) -> dict[str, list[int | None]]:
    found: dict[str, list[int | None]] = {}
    for residence in schedule.residences:
        if residence.block is not None:
            found.setdefault(instance.blocks[residence.block].name, []).append(residence.offset)
    return found


def copies(instance: Instance, schedule: Schedule, kind: str) -> dict[str, Operation]:
    """The copies of one kind by block, each of which is copied once."""
    found = [o for o in schedule.operations if o.kind == kind]
    by_name = {instance.blocks[o.block or 0].name: o for o in found}
    assert len(by_name) == len(found)
    return by_name


def runs(instance: Instance, schedule: Schedule) -> list[tuple[str, Operation]]:
    return [(instance.tasks[o.task].name, o) for o in schedule.operations if o.task is not None]


# --- data: the first free block that grows --------------------------------------------------------------


def test_a_block_is_free_two_layers_later_so_a_chain_has_three() -> None:
    """Y1 is dead after layer 2, and its block is taken by Y4, not by Y3; whatever the depth."""
    for depth in (6, 12, 40):
        instance = chain(depth)
        where = offsets(instance, solve(instance))
        firsts = [where["X" if i == 0 else f"Y{i}"][0] for i in range(depth + 1)]
        assert len(set(firsts[:3])) == 3
        assert all(a == b for a, b in zip(firsts, firsts[3:], strict=False))
        assert buffer_bytes(instance) == {"data": 3 * 8}


def test_a_block_grows_to_the_largest_that_it_ever_holds() -> None:
    """The rule looks at no sizes: Y3 and Y6 (64 bytes) lie where X (8) did, and Y5 (48) where Y2 (16)."""
    sizes = {"Y1": 24, "Y2": 16, "Y3": 64, "Y5": 48, "Y6": 64}
    assert buffer_bytes(chain(6, sizes)) == {"data": 64 + 24 + 48}
    assert buffer_bytes(chain(6)) == {"data": 3 * 8}


def test_data_returns_to_its_block() -> None:
    instance = chain(9)
    where = offsets(instance, solve(instance))
    returned = [name for name, at in where.items() if len(at) == 2]
    assert returned == ["X", "Y1", "Y2", "Y3", "Y4", "Y5", "Y6"]
    assert all(where[name][0] == where[name][1] for name in returned)


# --- gradients ------------------------------------------------------------------------------------------


def test_gradients_lie_over_their_data() -> None:
    instance = chain(9)
    where = offsets(instance, solve(instance))
    assert all(where[f"dY{i}"][0] == where[f"Y{i}"][-1] for i in range(1, 10))


def test_a_gradient_whose_data_is_read_as_it_is_written_is_allocated_behind_the_blocks() -> None:
    instance = chain(9, read_late="5")
    where = offsets(instance, solve(instance))
    apart = [i for i in range(1, 10) if where[f"dY{i}"][0] != where[f"Y{i}"][-1]]
    assert apart == [4]
    assert where["dY4"][0] >= sum(buffer_bytes(instance).values())


# --- copies ---------------------------------------------------------------------------------------------


def test_inputs_leave_beside_the_last_layer_that_reads_them_but_for_the_last_three_layers() -> None:
    """The last three layers are 8, 9 and the loss: Y7, Y8 and Y9 stay."""
    instance = chain(9)
    schedule = solve(instance)
    gone = copies(instance, schedule, "offload")
    assert list(gone) == ["Y1", "Y2", "Y3", "Y4", "Y5", "Y6"]  # the host has X
    began = {name: o.start_ns for name, o in runs(instance, schedule)}
    assert all(gone[f"Y{i}"].start_ns == began[f"F({i + 1})"] for i in range(1, 7))


def test_inputs_come_back_beside_the_layer_before() -> None:
    instance = chain(9)
    schedule = solve(instance)
    loaded = copies(instance, schedule, "prefetch")
    began = {name: o.start_ns for name, o in runs(instance, schedule)}
    assert list(loaded) == ["Y6", "Y5", "Y4", "Y3", "Y2", "Y1", "X"]
    assert all(loaded[f"Y{i}"].start_ns == began[f"W({i + 2})"] for i in range(1, 7))


def test_nothing_is_loaded_beside_a_layer_that_frees_a_gradient() -> None:
    """dY4 has memory of its own, which is freed after layer 4, for whose successor Y2 is loaded."""
    plain, late = chain(9), chain(9, read_late="5")
    ends = {name: o.end_ns for name, o in runs(late, solve(late))}
    assert copies(late, solve(late), "prefetch")["Y2"].start_ns == ends["B(4)"]
    assert solve(late).makespan_ns == solve(plain).makespan_ns + COPY


def test_streams_meet_after_every_layer() -> None:
    """With copies that take three times as long as a task, a layer waits for those of the layer before."""
    instance = chain(9)
    slow = msgspec.structs.replace(
        instance,
        blocks=tuple(msgspec.structs.replace(b, offload_ns=30, prefetch_ns=30) for b in instance.blocks),
    )
    schedule = solve(slow)
    ordered = sorted(schedule.operations, key=lambda o: (o.start_ns, o.end_ns))
    of_copies = [o for o in ordered if o.kind != "run"]
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(of_copies))
    began = {name: o.start_ns for name, o in runs(slow, schedule)}
    gone = copies(slow, schedule, "offload")
    assert all(began[f"F({i + 2})"] == gone[f"Y{i}"].end_ns for i in range(1, 7))


# --- forks, splits and what layers keep -----------------------------------------------------------------


def test_forks_lie_in_two_buffers_in_turn_and_the_readers_gradients_in_two_more() -> None:
    instance = residual(6)
    where = offsets(instance, solve(instance))
    forks = [where[f"Y{i}"][0] for i in range(6)]
    assert len(set(forks)) == 2
    assert all(a != b for a, b in pairwise(forks))
    for readers in ("R", "S"):
        assert len({where[f"{readers}{i}"][0] for i in range(6)}) == 1
    assert where["R0"] != where["S0"]


def test_buffers_of_a_residual_network_do_not_depend_on_its_depth() -> None:
    """The blocks that forks would have taken are reserved, so data has more than three."""
    for blocks in (4, 9, 30):
        assert buffer_bytes(residual(blocks)) == {"data": 32, "fork": 16, "split 0": 8, "split 1": 8}


def test_inputs_that_no_backward_task_reads_are_copied_both_ways() -> None:
    """C is read by the sum alone, whose backward pass reads no data; its gradient lies over it."""
    instance = residual(6)
    schedule = solve(instance)
    gone, loaded = copies(instance, schedule, "offload"), copies(instance, schedule, "prefetch")
    where = offsets(instance, schedule)
    for i in range(5):
        assert f"C{i}" in gone
        assert f"C{i}" in loaded
        assert where[f"dC{i}"][0] == where[f"C{i}"][-1]


def test_what_a_layer_keeps_leaves_when_it_has_ended_and_has_one_buffer_for_its_kind() -> None:
    rows: list[Row] = []
    back: list[Row] = []
    data = ["X", *(f"Y{i}" for i in range(1, 7))]
    for i in range(1, 7):
        rows += [(f"conv{i}", "F", data[i - 1], data[i], ""), (f"relu{i}", "F", "", f"M{i}", data[i])]
        gradient = f"d{data[i]}"
        back[:0] = [
            (f"relu{i}", "B", f"M{i}", "", gradient),
            (f"conv{i}", "B", f"{data[i - 1]} {gradient}", "", ""),
        ]
        if i > 1:
            back.insert(2, (f"conv{i}", "B", gradient, f"d{data[i - 1]}", ""))
    rows += [("loss", "F", data[-1], "P", ""), ("loss", "B", "P", f"d{data[-1]}", ""), *back]
    kinds = {f"relu{i}": "relu" for i in range(1, 7)}
    instance = instance_of(rows, {f"M{i}": 2 for i in range(1, 7)}, kinds)
    schedule = solve(instance)
    where = offsets(instance, schedule)
    gone = copies(instance, schedule, "offload")
    ends = {name: o.end_ns for name, o in runs(instance, schedule) if name.startswith("F")}
    for i in range(1, 5):
        assert gone[f"M{i}"].start_ns == ends[f"F(relu{i})"]
        assert set(where[f"M{i}"]) == set(where["M1"])
    assert buffer_bytes(instance)["relu 0"] == 8  # an alignment's worth


# --- everything else ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory", "engines", "graph"),
    crossed(
        *(("googlenet_bvlc", "resnet34"), ("contiguous", "paged")),
        *(("duplex", "single"), ("paper", "executable")),
        of=3,
    ),
)
def test_networks_with_forks_joins_and_norms(
    name: str, memory: Literal["contiguous", "paged"], engines: str, graph: Literal["paper", "executable"]
) -> None:
    plain = Workload(name, 8, "K40", graph).instance("12GiB")
    instance = planned(msgspec.structs.replace(plain, engines=engines))
    assert solve(instance, memory) == solve(instance, memory)


def test_data_that_must_end_on_the_host_does() -> None:
    """C2 is dead after the sum, and leaves anyway; Z stays for the last layers, and leaves at its end."""
    instance = residual(6)
    names = [block.name for block in instance.blocks]
    blocks = tuple(
        msgspec.structs.replace(b, finally_="host") if b.name in ("C2", "Z") else b for b in instance.blocks
    )
    schedule = solve(msgspec.structs.replace(instance, blocks=blocks))
    gone = {names[o.block or 0] for o in schedule.operations if o.kind == "offload"}
    assert {"C2", "Z"} <= gone


def test_the_blocks_can_take_more_than_is_ever_in_use() -> None:
    """Y3 and Y7 (64 bytes) are never there together, but make two blocks large."""
    instance = chain(12, {"Y3": 64, "Y7": 64, "dY3": 64, "dY7": 64})
    enough = solve(instance).peak_bytes
    assert solve(with_budget(instance, enough)).peak_bytes == enough
    with pytest.raises(Refusal, match="the 3 regions take 136 B, of a pool of 120 B"):
        find_method("layrub-program").call(with_budget(instance, 120), Limits())


def test_what_is_allocated_behind_the_blocks_can_be_too_large() -> None:
    instance = chain(9, {"P": 80})
    with pytest.raises(Refusal, match="no place for"):
        find_method("layrub-program").call(with_budget(instance, 48), Limits())


def test_what_a_layer_changes_leaves_after_it_although_the_host_has_it() -> None:
    """The host's copy of the input is the old one once the first layer has changed it."""
    places = ("device", "device", "device", "absent")
    blocks = tuple(
        Block(name=f"b{d}", bytes=size, offload_ns=0, prefetch_ns=0, initially=place)  # type: ignore[arg-type]
        for d, (size, place) in enumerate(zip((3, 1, 2, 1), places, strict=True))
    )
    only = (Algorithm(name="only", duration_ns=0, workspace_bytes=0),)
    instance = Instance(
        name="changed",
        engines="duplex",
        budget_bytes=2,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=blocks,
        tasks=(
            Task(name="k0", inputs=(), outputs=(3,), updates=(1,), algorithms=only),
            Task(name="k1", inputs=(), outputs=(), algorithms=only),
            Task(name="k2", inputs=(1,), outputs=(), algorithms=only),
        ),
    )
    schedule = find_method("layrub-program").call(instance, Limits()).schedule
    assert schedule is not None
    assert check(instance, schedule).reasons == ()
    assert any(operation.kind == "offload" and operation.block == 1 for operation in schedule.operations)
