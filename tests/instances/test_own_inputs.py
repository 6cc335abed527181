"""Algorithms with inputs of their own: the rules of the format, memory needs, and transforms."""

from __future__ import annotations

import json

import msgspec
import pytest

from pebbler.instances.arguments import require_fixed_reads, why_reads_vary
from pebbler.instances.errors import BudgetError, FormatError, PebblerError
from pebbler.instances.files import encode, read_instance
from pebbler.instances.gpus.cluster import Cluster
from pebbler.instances.memory import (
    greatest_need,
    least_budget,
    live_bytes,
    require_budget,
    unlimited_peak,
    why_infeasible,
    with_budget,
)
from pebbler.instances.transforms import in_pages, split_parts, with_mask
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload

from ..reading import algorithm, either, with_last


def test_a_run_reads_what_its_algorithm_reads() -> None:
    plain, last = either().tasks[1], either().tasks[3]
    assert (last.reads(0), last.reads(1)) == ((1,), (0,))
    assert (last.touches(0), last.touches(1)) == ((1,), (0,))
    assert (last.may_read, last.must_read, last.blocks) == ((1, 0), (), (1, 0))
    assert last.reads_vary
    assert (plain.reads(0), plain.may_read, plain.must_read) == ((0,), (0,), (0,))
    assert not plain.reads_vary
    assert either().reads_vary
    assert either().uses == ((0, 1, 3), (1, 3), (2,))


def test_a_file_has_inputs_of_an_algorithm_where_they_are_its_own(tmp_path) -> None:
    file = tmp_path / "either.instance.json"
    file.write_bytes(encode(either()))
    first, second = json.loads(file.read_text())["tasks"][3]["algorithms"]
    assert "inputs" not in first
    assert second["inputs"] == [0]
    assert read_instance(file) == either()
    nothing = with_last(either(), algorithm("from y"), algorithm("from nothing", inputs=()))
    file.write_bytes(encode(nothing))
    assert read_instance(file).tasks[3].reads(1) == ()


@pytest.mark.parametrize(
    ("algorithms", "message"),
    [
        (
            [algorithm("a", inputs=(7,)), algorithm()],
            r"tasks\[3\] \('either'\): block index 7 is out of range",
        ),
        ([algorithm("a", inputs=(0, 0)), algorithm()], r"'inputs' of algorithm 0 \('a'\) list a block twice"),
        (
            [algorithm(), algorithm("b", inputs=(1,))],
            r"'inputs' of algorithm 1 \('b'\) are those of the task",
        ),
        ([algorithm("a", inputs=(0,))], "no algorithm reads its inputs"),
        ([algorithm(on="host"), algorithm("b", inputs=(0,))], "some may run on the host"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(algorithms: list, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        with_last(either(), *algorithms)


@pytest.mark.parametrize("touched", ["outputs", "updates"])
def test_an_algorithm_does_not_read_what_the_task_writes(touched: str) -> None:
    made = either()
    blocks = (*made.blocks, msgspec.structs.replace(made.blocks[0], name="w", initially="device"))
    if touched == "outputs":
        blocks = (*made.blocks, msgspec.structs.replace(made.blocks[0], name="w"))
    wider = msgspec.structs.replace(made, blocks=blocks)
    with pytest.raises(FormatError, match="a block is listed twice in its inputs, outputs and updates"):
        with_last(wider, algorithm(), algorithm("b", inputs=(3,)), **{touched: (3,)})


def test_what_an_algorithm_reads_exists_before() -> None:
    tasks = list(either().tasks)
    tasks[0] = msgspec.structs.replace(tasks[0], algorithms=(algorithm(), algorithm("b", inputs=(1,))))
    with pytest.raises(FormatError, match=r"tasks\[0\] \('make x'\): it reads 'y' before it exists"):
        either(tasks=tuple(tasks))


def test_several_gpus_do_not_choose_what_they_read() -> None:
    cluster = Cluster(
        gpus=2, bus_bytes_per_second=10**9, core_bytes_per_second=10**9, host_bytes_per_second=10**9
    )
    with pytest.raises(FormatError, match="on several GPUs all algorithms read and make the same"):
        either(cluster=cluster)


def test_what_does_not_choose_refuses_in_a_sentence() -> None:
    assert why_reads_vary(either(), "this", [0, 1, 2]) is None
    reason = why_reads_vary(either(), "this")
    assert reason is not None
    assert (
        "'either' reads, makes or overwrites depends on its algorithm, which is not modelled by this"
        in reason
    )
    with pytest.raises(PebblerError, match="is not modelled by this"):
        require_fixed_reads(either(), "this")


def test_a_task_needs_what_its_leanest_algorithm_touches() -> None:
    lean = with_last(either(), algorithm("from y", workspace_bytes=5), algorithm("a", inputs=(0, 1)))
    assert least_budget(lean) == 2
    leaner = with_last(either(), algorithm("from y", workspace_bytes=5), algorithm("a", inputs=(2,)))
    assert least_budget(leaner) == 2
    wide = with_last(either(), algorithm("from y", workspace_bytes=5), algorithm("a", inputs=(0, 1, 2)))
    assert least_budget(wide) == 4
    with pytest.raises(BudgetError, match="needs 4 B of blocks and 0 B of workspace"):
        require_budget(with_budget(wide, 3))


def test_only_what_every_algorithm_reads_counts_as_needed_in_any_case() -> None:
    """y cannot be copied: it need not stay, as the last task can do without."""
    made = either()
    stuck = msgspec.structs.replace(made.blocks[1], prefetch_ns=None)
    choosing = either(blocks=(made.blocks[0], stuck, made.blocks[2]))
    assert why_infeasible(choosing) is None
    fixed = with_last(choosing, algorithm("from y"))
    assert "can neither be copied to the host and back" in str(why_infeasible(fixed))
    assert greatest_need(choosing).bytes == 2


def test_the_peak_without_a_limit_is_of_what_the_fastest_algorithms_read() -> None:
    quick = with_last(either(), algorithm("from y", 2), algorithm("from x", 1, inputs=(0,)))
    assert live_bytes(quick) == [1, 2, 3, 1]  # x alone lives until the end
    both = with_last(either(), algorithm("from y", 2), algorithm("both", 1, inputs=(0, 1)))
    assert live_bytes(both) == [1, 2, 4, 2]
    assert unlimited_peak(both) == 4


def test_parts_are_all_of_what_an_algorithm_reads() -> None:
    made = either(alignment_bytes=512)
    blocks = tuple(msgspec.structs.replace(b, bytes=b.bytes * 3 * PAGE_BYTES) for b in made.blocks)
    cut = split_parts(msgspec.structs.replace(made, blocks=blocks, budget_bytes=2**40), PAGE_BYTES)
    last = cut.tasks[3]
    assert [cut.blocks[d].tensor for d in last.reads(0)] == ["y"] * 3
    assert [cut.blocks[d].tensor for d in last.reads(1)] == ["x"] * 3
    assert in_pages(cut).tasks[3].reads(1) == last.reads(1)


def test_the_mask_stands_in_for_one_block_alone() -> None:
    made = Workload("lenet", batch=2, device="k40").instance("200%")
    (k,) = next(layer for layer in made.named_layers if layer.kind == "relu").backward
    task = made.tasks[k]
    other = msgspec.structs.replace(task.algorithms[0], name="other", inputs=(0,))
    (writer,) = made.writers[task.inputs[0]]
    lean = msgspec.structs.replace(made.tasks[writer].algorithms[0], name="lean", inputs=())
    for i, one in ((k, other), (writer, lean)):
        tasks = list(made.tasks)
        tasks[i] = msgspec.structs.replace(tasks[i], algorithms=(*tasks[i].algorithms, one))
        with pytest.raises(PebblerError, match="which is not modelled by the mask"):
            with_mask(msgspec.structs.replace(made, tasks=tuple(tasks)))
