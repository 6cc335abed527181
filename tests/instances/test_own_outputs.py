"""Algorithms with outputs of their own: the rules of the format, memory needs, and transforms."""

from __future__ import annotations

import json

import msgspec
import pytest

from pebbler.instances.arguments import why_reads_vary
from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.files import encode, read_instance
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.instance import Instance, Task
from pebbler.instances.memory import least_budget, needs, unlimited_peak, why_infeasible
from pebbler.instances.transforms import split_parts
from pebbler.instances.units import PAGE_BYTES

from ..reading import algorithm, block, masked, with_last, with_relu


def test_a_run_makes_what_its_algorithm_makes() -> None:
    made, relu = masked(), masked().tasks[1]
    assert (relu.makes(0), relu.makes(1)) == ((1, 2), (1,))
    assert (relu.touches(0), relu.touches(1)) == ((0, 1, 2), (0, 1))
    assert (relu.must_make, relu.blocks) == ((1,), (0, 1, 2))
    assert relu.reads_vary
    assert made.optional == {2}
    assert made.writers[2] == (1,)
    assert made.tasks[0].must_make == made.tasks[0].makes(0) == (0,)
    assert with_last(with_relu(made, algorithm()), algorithm()).optional == frozenset()


def test_a_file_has_outputs_of_an_algorithm_where_they_are_its_own(tmp_path) -> None:
    file = tmp_path / "masked.instance.json"
    file.write_bytes(encode(masked()))
    first, second = json.loads(file.read_text())["tasks"][1]["algorithms"]
    assert "outputs" not in first
    assert second["outputs"] == [1]
    assert read_instance(file) == masked()


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        (
            [algorithm(), algorithm("b", outputs=(0,))],
            r"'outputs' of algorithm 1 \('b'\) are \[0\]; name diff",
        ),
        ([algorithm(), algorithm("b", outputs=(1, 1))], r"are \[1, 1\]; name different outputs of the task"),
        ([algorithm(), algorithm("b", outputs=(2, 1))], r"'outputs' of algorithm 1 \('b'\) are those of the"),
        (
            [algorithm("b", outputs=(1,))],
            r"tasks\[1\] \('relu'\): no algorithm reads its inputs and makes",
        ),
        (
            [algorithm("b", outputs=(1,)), algorithm("c", inputs=())],
            "give it one with neither 'inputs' nor 'outputs'",
        ),
        ([algorithm(), algorithm("b", outputs=(1,), takes_over=((2, 0),))], "name different outputs that it"),
        ([algorithm(on="host"), algorithm("b", outputs=(1,))], "some may run on the host"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(algorithms: list, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        with_relu(masked(), *algorithms)
    with pytest.raises(FormatError, match="outputs"):
        algorithm(outputs=(-1,))


def with_mask_as(**keys: object) -> Instance:
    made = masked()
    blocks = (*made.blocks[:2], block("mask", 1, **keys), made.blocks[3])
    return masked(blocks=blocks)


@pytest.mark.parametrize("keys", [{"finally_": "host"}, {"tensor": "t", "begin": 0}])
def test_what_has_a_place_at_the_end_or_is_a_part_is_always_made(keys: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=r"'relu'\): an algorithm leaves out 'mask', which has a place fin"):
        with_mask_as(**keys)


def test_what_is_updated_or_read_in_any_case_is_always_made() -> None:
    with pytest.raises(FormatError, match="or is updated later; name it in its 'outputs'"):
        with_last(masked(), algorithm(), algorithm("b", inputs=()), updates=(2,))
    with pytest.raises(FormatError, match="leaves out 'mask', and every algorithm of 'back' reads it; give"):
        with_last(masked(), algorithm("a", inputs=(0, 2)), algorithm("b"), inputs=(2,))
    longer = (*masked().tasks, Task(name="again", inputs=(2,), outputs=(), algorithms=(algorithm(),)))
    with pytest.raises(FormatError, match="every algorithm of 'again' reads it"):
        masked(tasks=longer)


def test_several_gpus_and_parts_make_all() -> None:
    cluster = Cluster(
        gpus=2, bus_bytes_per_second=10**9, core_bytes_per_second=10**9, host_bytes_per_second=10**9
    )
    with pytest.raises(FormatError, match="on several GPUs all algorithms read and make the same"):
        masked(cluster=cluster)
    with pytest.raises(PebblerError, match="algorithms make all parts of tensors; leave out 'outputs'"):
        split_parts(masked(alignment_bytes=512), PAGE_BYTES)


def test_what_does_not_choose_refuses_in_a_sentence() -> None:
    fixed = with_last(masked(), algorithm())
    reason = why_reads_vary(fixed, "this")
    assert reason is not None
    assert "task 'relu' reads, makes or overwrites depends on its algorithm, which is not modelled" in reason
    assert why_reads_vary(fixed, "this", [0, 2, 3]) is None


def test_a_task_needs_what_its_leanest_algorithm_makes() -> None:
    assert needs(masked()) == [4, 8, 8, 1]
    assert least_budget(masked()) == 8
    lean = with_relu(masked(), algorithm(), algorithm("without", outputs=(1,), workspace_bytes=3))
    assert needs(lean)[1] == 9
    assert unlimited_peak(masked()) == 12  # x, y, no mask, then x and z


def test_what_may_be_left_out_is_never_stuck() -> None:
    made = msgspec.structs.replace(with_mask_as(offload_ns=None, prefetch_ns=None), budget_bytes=8)
    assert why_infeasible(made) is None
