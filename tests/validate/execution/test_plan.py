from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from pebbler import solve
from pebbler.instances import transforms
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.validate.execution.plan import Place, Plan, plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule


@pytest.fixture
def instance() -> Instance:
    return Workload("cifar10_quick", 2, "K40").instance("1.5xMmin")


def settled(instance: Instance, memory: str = "contiguous") -> tuple[Schedule, Plan]:
    schedule = solve(instance, "vdnn-all-m", memory=memory).schedule  # type: ignore[arg-type]
    assert schedule is not None
    return schedule, plan(instance, schedule, rebuild(instance))


def test_a_stream_waits_for_exactly_what_the_program_names_on_other_streams(instance: Instance) -> None:
    schedule, found = settled(instance)
    stream = {operation.id: operation.stream for operation in schedule.operations}
    place = {operation.id: i for i, operation in enumerate(schedule.operations)}
    for step, operation in zip(found.steps, schedule.operations, strict=True):
        assert step.operation == operation
        assert set(step.waits) == {place[i] for i in operation.after if stream[i] != operation.stream}
    assert any(step.waits for step in found.steps)


def test_operands_lie_where_the_schedule_puts_them(instance: Instance) -> None:
    schedule, found = settled(instance)
    offsets: dict[str, set[int]] = {}
    for residence in schedule.residences:
        if residence.block is not None and residence.offset is not None:
            offsets.setdefault(instance.blocks[residence.block].name, set()).add(residence.offset)
    for step in found.steps:
        if step.kernel is None:
            assert {step.source.area, step.target.area} == {"pool", "host"}  # type: ignore[union-attr]
            continue
        for word, place in step.operands.items():
            name = step.kernel.operands.get(word, word)
            if place.area == "pool" and word != "workspace":
                assert place.offset in offsets[name]
            elif word != "workspace":
                assert (place, found.outside[name][0]) == (found.outside[name][0], place)
    assert found.areas["pool"] == instance.pool_bytes


def test_buffers_outside_the_pool_do_not_overlap(instance: Instance) -> None:
    _, found = settled(instance)
    spans = sorted((place.offset, place.offset + size) for place, size in found.outside.values())
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert spans[-1][1] <= found.areas["resident"]


def test_pages_are_mapped_again_only_after_the_last_users() -> None:
    tight = Workload("vgg:groups=1-1-1-1-1,size=32,dense=64", 16, "K40").instance(0, check_budget=False)
    tight = with_budget(tight, tight.resident_bytes + 12 * PAGE_BYTES)
    schedule, found = settled(tight, "paged")
    assert found.pages == 12
    users: dict[Place, set[int]] = {}
    remapped = 0
    for i, step in enumerate(found.steps):
        for mapped in step.maps:
            before = users.pop(mapped.place, set())
            remapped += bool(before)
            for p in before:
                same = [q for q in mapped.after if on(schedule, q) == on(schedule, p)]
                assert same
                assert p <= same[0]
        for place in (*step.operands.values(), step.source, step.target):
            if place is not None and place.area not in ("resident", "host"):
                users.setdefault(place, set()).add(i)
    assert remapped > 3


def on(schedule: Schedule, position: int) -> str:
    return schedule.operations[position].stream


def test_divisible_memory_has_no_addresses(instance: Instance) -> None:
    schedule, _ = settled(instance)
    residences = tuple(msgspec.structs.replace(one, offset=None) for one in schedule.residences)
    relaxed = msgspec.structs.replace(schedule, memory_model="divisible", residences=residences)
    with pytest.raises(PebblerError, match="divisible memory has no addresses"):
        plan(instance, relaxed, rebuild(instance))


def test_without_a_budget_no_two_blocks_share_a_byte() -> None:
    whole = Workload("cifar10_quick", 24, "K40").instance("64MiB")
    instance = transforms.split_parts(whole, PAGE_BYTES)
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    roomy, program = unlimited(instance, schedule)
    spans = sorted(
        (residence.offset, residence.offset + residence.bytes)
        for residence in program.residences
        if residence.offset is not None and residence.block is not None
    )
    assert len(spans) == len(instance.blocks)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert spans[-1][1] <= roomy.pool_bytes
    runs = [one for one in schedule.operations if one.kind == "run"]
    assert [(one.task, one.algorithm) for one in program.operations] == [
        (one.task, one.algorithm) for one in runs
    ]


# --- what an instance was made from -------------------------------------------------------------------


def changed(instance: Instance, **changes: Any) -> Instance:
    return msgspec.structs.replace(instance, **changes)


def without(instance: Instance, key: str) -> Instance:
    return with_origin(instance, **{key: None})


def with_origin(instance: Instance, **entries: Any) -> Instance:
    return changed(instance, origin=msgspec.structs.replace(instance.made_from, **entries))


def earlier(instance: Instance, **entries: Any) -> Instance:
    """The instance as earlier versions wrote it, with labels of one's own."""
    labels = msgspec.to_builtins(instance.made_from) | entries
    return changed(instance, origin=msgspec.UNSET, layers=msgspec.UNSET, meta=labels)


def first_block(instance: Instance, **changes: Any) -> Instance:
    block = msgspec.structs.replace(instance.blocks[1], **changes)
    return changed(instance, blocks=(instance.blocks[0], block, *instance.blocks[2:]))


def first_task(instance: Instance, **changes: Any) -> Instance:
    task = msgspec.structs.replace(instance.tasks[0], **changes)
    return changed(instance, tasks=(task, *instance.tasks[1:]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i: without(i, "network"), "its origin has no 'network'"),
        (lambda i: without(i, "graph"), "its origin has no 'graph'"),
        (lambda i: with_origin(i, graph="paper"), "papers' accounting, which cannot be run"),
        (lambda i: with_origin(i, precision="bf16"), "its data is in bf16, and kernels are of single"),
        (lambda i: with_origin(i, network="nonsense"), "there is no network 'nonsense'"),
        (lambda i: with_origin(i, network="lenet"), "the network has no block"),
        (lambda i: earlier(i, network=["lenet"]), "its origin has no 'network'"),
        (lambda i: earlier(i, batch="two"), "its origin has no 'batch'"),
        (lambda i: earlier(i, sub_batch=0), "its origin has no 'sub_batch'"),
        (lambda i: with_origin(i, sub_batch=3), "bytes, and should have"),
        (lambda i: first_block(i, name="strange"), "no block 'strange'"),
        (lambda i: first_block(i, bytes=16), "has 16 bytes"),
        (lambda i: first_block(i, finally_="host"), "another place at the end"),
        (lambda i: changed(i, resident_bytes=4), "4 bytes are resident"),
        (
            lambda i: changed(i, tasks=i.tasks[:-1], layers=msgspec.UNSET),
            "there are 24 tasks, and should be 25",
        ),
        (lambda i: first_task(i, name="FP(other)"), "task 'FP(other)' is where 'FP(conv1)' should be"),
        (lambda i: first_task(i, inputs=()), "the inputs of task 'FP(conv1)' are"),
    ],
)
def test_an_instance_of_something_else_is_refused(instance: Instance, change: Any, words: str) -> None:
    with pytest.raises(PebblerError) as caught:
        rebuild(change(instance))
    assert words in str(caught.value)


def test_an_instance_with_other_costs_is_the_same_network(instance: Instance) -> None:
    other = Workload("cifar10_quick", 2, "V100").instance("1.5xMmin")
    assert rebuild(other).tensors == rebuild(instance).tensors
