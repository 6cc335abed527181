from itertools import pairwise

import msgspec
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak
from pebbler.instances.transforms import (
    LINKS,
    PAGE_BYTES,
    split_parts,
    with_engines,
    with_inputs_on_clock,
    with_link,
    with_mask,
    with_recomputation,
)
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.check import check

MIB = 2**20


@pytest.fixture
def vgg16() -> Instance:
    return Workload("vgg16", 16, "K40").instance("4GiB")


def names(instance: Instance, blocks: tuple[int, ...]) -> list[str]:
    return [instance.blocks[d].name for d in blocks]


@pytest.mark.parametrize(
    "transform",
    [
        lambda instance: with_engines(instance, "single"),
        with_inputs_on_clock,
        lambda instance: with_link(instance, "pcie4"),
        with_recomputation,
        with_mask,
        lambda instance: split_parts(instance, 64 * MIB),
    ],
)
def test_a_transform_is_pure_and_says_what_it_did(vgg16, transform):
    before = encode(vgg16)
    changed = transform(vgg16)
    assert encode(vgg16) == before
    assert encode(transform(vgg16)) == encode(changed) != before
    assert len(changed.transforms) == 1
    assert changed.layers == vgg16.layers
    assert [task.name for task in changed.tasks] == [task.name for task in vgg16.tasks]
    assert ideal_ns(changed) == ideal_ns(vgg16)


def test_transforms_add_up(vgg16):
    changed = split_parts(with_link(with_mask(vgg16), "25GB"), 100 * MIB)
    words = [transform.word for transform in changed.transforms]
    assert words == ["mask", "link=25GB", "parts=100.00MiB"]
    assert changed.name == "vgg16-b16-mask-parts"


def test_engines(vgg16):
    assert with_engines(vgg16, "single").engines == "single"


# --- inputs and links ----------------------------------------------------------------------------------


def test_inputs_on_the_clock_are_on_the_host_at_first(vgg16):
    changed = with_inputs_on_clock(vgg16)
    moved = [
        (old.name, new.initially) for old, new in zip(vgg16.blocks, changed.blocks, strict=True) if old != new
    ]
    assert moved == [("X(input)", "host")]


def test_an_input_that_cannot_be_prefetched_stays_off_the_clock(vgg16):
    blocks = (msgspec.structs.replace(vgg16.blocks[0], prefetch_ns=None), *vgg16.blocks[1:])
    with pytest.raises(PebblerError, match=r"'X\(input\)' cannot be prefetched"):
        with_inputs_on_clock(msgspec.structs.replace(vgg16, blocks=blocks))


def test_a_link_takes_bytes_over_its_bandwidth(vgg16):
    blocks = (msgspec.structs.replace(vgg16.blocks[0], offload_ns=None), *vgg16.blocks[1:])
    some = msgspec.structs.replace(vgg16, blocks=blocks)
    changed = with_link(some, "PCIe5")
    assert changed.blocks[0].offload_ns is None
    for old, new in zip(some.blocks[1:], changed.blocks[1:], strict=True):
        assert new.offload_ns == new.prefetch_ns == max(1, round(old.bytes / 51.2))
        assert new.move_ns == old.move_ns
    assert with_link(vgg16, "51.2GB").blocks == with_link(vgg16, "pcie5").blocks


def test_a_link_has_a_rate_for_each_direction(vgg16):
    both = with_link(vgg16, "12GB/s, 6GB/s").blocks
    assert [block.offload_ns for block in both] == [
        block.offload_ns for block in with_link(vgg16, "12GB").blocks
    ]
    assert [block.prefetch_ns for block in both] == [
        block.prefetch_ns for block in with_link(vgg16, "6GB").blocks
    ]


def test_presets_are_ever_faster():
    assert list(LINKS) == ["pcie3", "pcie4", "pcie5", "nvlink"]
    assert all(slow < fast for slow, fast in pairwise(LINKS.values()))


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("pcie9", "'pcie9' is not a link; write pcie3"),
        ("0GB", "copies nothing"),
        ("1GB,", "'1GB,' is not a link"),
        ("1GB,2GB,3GB", "'1GB,2GB,3GB' is not a link"),
    ],
)
def test_wrong_links_are_refused(vgg16, link, message):
    with pytest.raises(PebblerError, match=message):
        with_link(vgg16, link)


# --- recomputation and mask ----------------------------------------------------------------------------


def test_forward_tasks_may_run_again_unless_they_overwrite(vgg16):
    changed = with_recomputation(Workload("caffenet", 2, "K40").instance("4GiB"))
    again = {task.name for task in changed.tasks if task.recomputable}
    assert {"FP(conv1)", "FP(norm1)", "FP(fc6)"} <= again
    assert not any(name.startswith("BP") or name == "FP(drop6)" for name in again)
    bare = msgspec.structs.replace(vgg16, layers=msgspec.UNSET)
    marks = [(task.recomputable, bool(task.updates)) for task in with_recomputation(bare).tasks]
    assert {recomputable != updates for recomputable, updates in marks} == {True}


def test_the_mask_is_a_quarter_and_stands_in_for_y(vgg16):
    changed = with_mask(vgg16)
    assert changed.name == "vgg16-b16-mask"
    tasks = {task.name: task for task in changed.tasks}
    assert names(changed, tasks["FP(conv1_1)"].outputs) == ["Y(conv1_1)", "M(conv1_1)"]
    assert names(changed, tasks["BP(relu conv1_1)"].inputs) == ["M(conv1_1)"]
    blocks = {block.name: block for block in changed.blocks}
    feature, mask = blocks["Y(conv1_1)"], blocks["M(conv1_1)"]
    assert 4 * mask.bytes == feature.bytes
    assert mask.offload_ns == feature.offload_ns // 4
    assert mask.move_ns == feature.move_ns // 4
    relus = sum(task.name.startswith("BP(relu") for task in vgg16.tasks)
    assert len(changed.blocks) == len(vgg16.blocks) + relus


def test_the_mask_has_a_byte_for_each_value_in_bfloat16_too():
    changed = with_mask(Workload("vgg16", 16, "a100", precision="bf16").instance("8GiB"))
    blocks = {block.name: block for block in changed.blocks}
    assert 2 * blocks["M(conv1_1)"].bytes == blocks["Y(conv1_1)"].bytes


def test_the_mask_makes_the_backward_task_of_a_relu_smaller():
    whole = Workload("resnet18", 16, "K40").instance("12GiB")
    relu = {task.name: sum(whole.blocks[d].bytes for d in task.blocks) for task in whole.tasks}
    masked = with_mask(whole)
    less = {task.name: sum(masked.blocks[d].bytes for d in task.blocks) for task in masked.tasks}
    assert less["BP(relu conv1_bn)"] == relu["BP(relu conv1_bn)"] * 5 // 8


def test_a_graph_without_relu_tasks_has_no_mask():
    with pytest.raises(PebblerError, match="no ReLU has a task of its own"):
        with_mask(Workload("vgg16", 2, "K40", graph="paper").instance("2GiB"))


# --- parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2 * MIB, 3 * MIB, 50 * MIB, 100_000_001])
def test_parts_make_up_their_tensors(vgg16, size):
    changed = split_parts(vgg16, size)
    assert changed.name == "vgg16-b16-parts"
    assert {block.name for block in changed.blocks if block.tensor is None} == {
        block.name for block in vgg16.blocks if block.bytes <= size // PAGE_BYTES * PAGE_BYTES
    }
    parts: dict[str, list] = {}
    for block in changed.blocks:
        if block.tensor is not None:
            parts.setdefault(block.tensor, []).append(block)
    for whole in vgg16.blocks:
        pieces = parts.pop(whole.name, None)
        if pieces is None:
            continue
        assert len(pieces) > 1
        end = 0
        for piece in pieces:
            assert piece.begin == end
            assert piece.begin % PAGE_BYTES == 0
            assert piece.bytes <= size
            assert (piece.initially, piece.finally_) == (whole.initially, whole.finally_)
            end += piece.bytes
        assert end == whole.bytes
        for key in ("offload_ns", "prefetch_ns", "move_ns"):
            assert sum(getattr(piece, key) for piece in pieces) == getattr(whole, key)
        assert len({piece.bytes for piece in pieces[:-1]}) == 1
    assert not parts
    assert unlimited_peak(changed) == unlimited_peak(vgg16)
    assert least_budget(changed) == least_budget(vgg16)


def test_tasks_list_all_parts_of_what_they_touch(vgg16):
    changed = split_parts(vgg16, 30 * MIB)
    for old, new in zip(vgg16.tasks, changed.tasks, strict=True):
        for key in ("inputs", "outputs", "updates"):
            tensors = [changed.blocks[d].tensor or changed.blocks[d].name for d in getattr(new, key)]
            assert list(dict.fromkeys(tensors)) == names(vgg16, getattr(old, key))
        assert sum(changed.blocks[d].bytes for d in new.blocks) == sum(
            vgg16.blocks[d].bytes for d in old.blocks
        )


def test_impossible_copies_stay_impossible(vgg16):
    blocks = tuple(msgspec.structs.replace(block, offload_ns=None) for block in vgg16.blocks)
    changed = split_parts(msgspec.structs.replace(vgg16, blocks=blocks), 30 * MIB)
    assert {block.offload_ns for block in changed.blocks} == {None}


def test_wrong_parts_are_refused(vgg16):
    with pytest.raises(PebblerError, match="parts of 2097151 bytes are smaller than a page"):
        split_parts(vgg16, 2 * MIB - 1)
    with pytest.raises(PebblerError, match="in parts already"):
        split_parts(split_parts(vgg16, 30 * MIB), 30 * MIB)
    with pytest.raises(PebblerError, match="in parts already"):
        with_mask(split_parts(vgg16, 30 * MIB))
    with pytest.raises(PebblerError, match="alignment of 768 does not divide"):
        split_parts(msgspec.structs.replace(vgg16, alignment_bytes=768), 30 * MIB)


@pytest.mark.parametrize("transform", [with_mask, with_inputs_on_clock, with_recomputation])
def test_methods_schedule_what_transforms_make(transform):
    changed = transform(Workload("vgg16", 32, "K40").instance("100%"))
    result = solve(changed, "modnn")
    assert result.schedule is not None
    assert check(changed, result.schedule).valid
