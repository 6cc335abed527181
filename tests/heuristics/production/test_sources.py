"""The rules on the examples of their sources: what the frameworks' own tests ask of them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pebbler.heuristics.production.partition import Partition
from pebbler.heuristics.recomputation.rules import fill
from pebbler.instances.instance import Instance
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.validate.schedule import Schedule

from .steps import MIB, copies, names_of, on_device, runs, solved, traced, transformer

# --- PyTorch: test/functorch/test_ac.py and test_ac_knapsack.py ------------------------------------------


def even_chain() -> Instance:
    """x.cos(), then five times a product of 1 unit and a cosine: each tensor has 1 MiB."""
    forward = [("cos0", "other", "x", "c0")]
    for i in range(5):
        forward += [(f"mm{i}", "linear", f"c{i}", f"m{i}"), (f"cos{i + 1}", "other", f"m{i}", f"c{i + 1}")]
    backward = [("sum", "")]
    for i in reversed(range(5)):
        backward += [(f"cos{i + 1}", f"m{i}"), (f"mm{i}", f"c{i}")]
    ns = {f"mm{i}": 1000 for i in range(5)}
    return traced([*forward, ("sum", "other", "c5", "s")], [*backward, ("cos0", "x")], ns=ns)


def products(shapes: list[tuple[int, int]]) -> Instance:
    """Products beside each other of inner size a and outer size b, each with a cosine behind it.

    A product makes a x b MiB, which the cosine saves, and takes a x a x b units.
    """
    forward, backward, mib, ns = [], [("sum", "")], {}, {}
    for i, (a, b) in enumerate(shapes):
        forward += [(f"mm{i}", "linear", "x", f"m{i}"), (f"cos{i}", "other", f"m{i}", f"c{i}")]
        backward += [(f"cos{i}", f"m{i}"), (f"mm{i}", "x")]
        mib |= {f"m{i}": a * b, f"c{i}": a * b}
        ns[f"mm{i}"] = 1000 * a * a * b
    read = " ".join(f"c{i}" for i in range(len(shapes)))
    return traced([*forward, ("sum", "other", read, "s")], backward, mib=mib, ns=ns)


def kept_and_again(instance: Instance, share: float) -> tuple[float, float]:
    """MiB that are saved within a share, and units of products and attention that run again."""
    partition = Partition(instance)
    saved = partition.within(share)
    again = [
        k
        for k in partition.expensive
        if partition.read.intersection(instance.tasks[k].outputs).difference(saved)
    ]
    time = sum(instance.tasks[k].algorithms[0].duration_ns for k in again)
    return partition.bytes_of(saved) / MIB, time / 1000


def test_what_is_cheap_is_made_again_without_a_budget() -> None:
    """Its ``test_rematerializes_cheap``: of a cosine before a product, nothing is saved but the input."""
    forward = [("cos", "other", "x", "c"), ("mm", "linear", "c", "m"), ("sum", "other", "m", "s")]
    instance = traced(forward, [("sum", ""), ("mm", "c"), ("cos", "x")])
    assert kept_and_again(instance, 1) == (0, 0)


@pytest.mark.parametrize("budget", range(11))
def test_an_even_chain_saves_a_product_for_each_unit_of_the_budget(budget: int) -> None:
    """Its ``test_matmul_even_chain``: of 10 MiB, cosines are half, and come first."""
    mib, again = kept_and_again(even_chain(), min(budget / 5, 1))
    assert (mib, again) == (min(budget, 5), 5 - min(budget, 5))


@pytest.mark.parametrize(
    ("shapes", "achieved"),
    [
        ((11, 3, 4, 2), (18, 17, 16, 15, 14, 13, 11, 7, 6, 5)),
        ((3, 5, 11, 17, 14), (42, 30, 19, 8, 3)),
    ],
)
def test_an_uneven_chain_fills_its_budget_where_a_sum_does(
    shapes: tuple[int, ...], achieved: tuple[int, ...]
) -> None:
    """Its ``test_matmul_uneven_chain``: a product is worth as much as it takes, so sums must be found."""
    instance = products([(1, shape) for shape in shapes])
    for mib in achieved:
        assert kept_and_again(instance, mib / sum(shapes))[0] == mib


def test_the_cheaper_product_runs_again() -> None:
    """Its ``test_prioritize_cheaper_matmul`` and ``test_prioritize_cheaper_matmul2``."""
    assert kept_and_again(products([(1, 4), (2, 2)]), 0.5) == (4, 4)
    three = products([(4, 4), (6, 2), (2, 6)])
    assert kept_and_again(three, 1) == (40, 0)
    assert kept_and_again(three, 28 / 40) == (28, 2 * 2 * 6)
    assert kept_and_again(three, 16 / 40) == (12, 2 * 2 * 6 + 4 * 4 * 4)


@pytest.mark.parametrize(
    ("length", "width", "again"),
    [(1, 1, "mm"), (1, 3, "attn"), (2, 2, "mm"), (2, 1, "mm"), (2, 5, "attn"), (4, 7, "mm"), (4, 9, "attn")],
)
def test_attention_runs_again_where_it_is_cheaper_than_the_product(
    length: int, width: int, again: str
) -> None:
    """Its ``test_attention_vs_linear``, with six tenths of what is saved without a budget."""
    forward = [
        ("attn", "attention", "x", "a"),
        ("mm", "linear", "a", "m"),
        ("cos", "other", "m", "c"),
        ("sum", "other", "c", "s"),
    ]
    ns = {"mm": 1000 * length * width * width, "attn": 1000 * 2 * length * length * width}
    size = length * width
    backward = [("sum", ""), ("cos", "m"), ("mm", "a"), ("attn", "x a")]
    instance = traced(forward, backward, mib=dict.fromkeys("amc", size), ns=ns)
    assert kept_and_again(instance, 0.6) == (size, ns[again] / 1000)


@pytest.mark.parametrize(
    ("sizes", "times", "capacity", "worth"),
    [
        ([2, 3, 2, 4, 1], [1, 2, 1, 3, 2], 5, 5),
        ([1, 1, 1], [1, 2, 3], 3, 6),
        ([10, 20, 30], [1, 2, 3], 5, 0),
        ([1, 2, 3], [10, 20, 30], 1, 10),
        ([1, 1, 1], [2, 2, 2], 2, 4),
        ([0, 2, 3], [5, 2, 3], 5, 10),
        ([1, 2, 3], [0, 2, 3], 3, 3),
        ([100, 200, 300], [1000, 2000, 3000], 500, 5000),
        ([1, 3, 4], [2, 4, 6], 4, 6),
        ([], [], 10, 0),
        ([1, 2, 3], [1, 2, 3], 0, 0),
        ([0, 0, 0], [1, 2, 3], 0, 6),
        ([1, 2, 3], [0, 0, 0], 6, 0),
    ],
)
def test_the_knapsack_is_worth_what_torch_finds(
    sizes: list[int], times: list[int], capacity: int, worth: int
) -> None:
    """Its ``TestActivationCheckpointingKnapsack``, where its last sizes are twice as large, and whole."""
    kept = fill(times, [size * MIB for size in sizes], capacity * MIB)
    assert sum(time for time, keeps in zip(times, kept, strict=True) if keeps) == worth
    assert sum(size for size, keeps in zip(sizes, kept, strict=True) if keeps) <= capacity


def test_nothing_that_is_saved_is_on_the_device_after_the_forward_pass() -> None:
    """Its ``test_graph_save_on_cpu``: of (x + 1) squared, as much is held as where nothing is saved."""
    rest = [("square", "other", "a", "y"), ("sum", "other", "y", "s")]
    backward = [("sum", ""), ("square", "a"), ("plus", "")]
    instance = traced([("plus", "other", "x", "a"), *rest], backward)
    schedule = solved("save-on-cpu-rule", instance)
    assert names_of(instance, schedule, "offload") == names_of(instance, schedule, "prefetch") == ["a"]
    keeping = solved(
        "trl-offload", traced([("plus", "other", "x", "a"), *rest], backward, mib={"a": 1000 / MIB})
    )
    assert on_device(instance, schedule, "BP(sum)") == on_device(instance, keeping, "BP(sum)") - 1000


# --- torchtitan: tests/unit_tests/test_activation_checkpoint.py, graph_trainer/tests/test_cpu_offload.py ---


def toy() -> Instance:
    """Two blocks of a gate and a query of 1 unit each and an output of 2, which is twice as large."""
    forward, backward, mib, ns = [], [("sum", "")], {}, {}
    read = "x"
    for i in range(2):
        for name, makes in (("gate", f"g{i}"), ("wq", f"q{i}"), ("output", f"o{i}")):
            forward.append((f"layers.{i}.{name}", "linear", read, makes))
            backward.insert(1, (f"layers.{i}.{name}", read))
            ns[f"layers.{i}.{name}"] = 1000 * (1 + (name == "output"))
            read = makes
        mib[f"o{i}"] = 2.0
    return traced([*forward, ("sum", "other", read, "s")], backward, mib=mib, ns=ns)


def test_selective_checkpoints_run_the_second_product_again_and_full_ones_all() -> None:
    """Its ``test_flops``: 1 unit a block more than 8, and 2 where it stops early (4 where it does not)."""
    instance = toy()
    plain = sum(task.algorithms[0].duration_ns for task in instance.tasks)
    selective, full = (solved(name, instance) for name in ("torchtitan-selective", "checkpoint-layers"))
    assert selective.makespan_ns - plain == 2 * 1000
    assert full.makespan_ns - plain == 2 * 2000
    assert set(names_of(instance, selective, "run")) == {"FP(layers.0.wq)", "FP(layers.1.wq)"}


def test_what_leaves_comes_back_but_for_the_last_layer_and_what_is_small() -> None:
    """Its ``test_offload_reload_ops_inserted``, ``..._activations_basic`` and ``..._tensors_not_tagged``."""
    forward, backward = [], [("sum", "")]
    read = "x"
    for i in range(3):
        for name, makes in (("mm", f"m{i}"), ("relu", f"r{i}")):
            forward.append((f"layers.{i}.{name}", "linear" if name == "mm" else "relu", read, makes))
            backward.insert(1, (f"layers.{i}.{name}", makes))
            read = makes
    forward.append(("sum", "other", read, "s"))
    instance = traced(forward, backward)
    schedule = solved("torchtitan-offload", instance)
    left = names_of(instance, schedule, "offload")
    assert left
    assert sorted(left) == sorted(names_of(instance, schedule, "prefetch"))
    assert not {"m2", "r2"}.intersection(left)
    small = traced(forward, backward, mib=dict.fromkeys(["m0", "m1", "r0", "r1"], 16 / MIB))
    assert not copies(solved("torchtitan-offload", small), "offload")


# --- Hugging Face: transformers, pull request 48444; axolotl's test_checkpoint_activation_offload.py -------


@pytest.mark.parametrize("name", ["transformers-offload", "hidden-states-offload"])
def test_a_hidden_state_of_each_layer_is_freed_and_nothing_else_is_copied(name: str) -> None:
    """What is held after the forward pass is less by layers x hidden states, exactly.

    Each input of a checkpoint is offloaded once and restored once, and other saved tensors pass. On a side
    stream, the last layer's may be on its way back already.
    """
    instance = transformer(6, copy=5)
    plain = on_device(instance, solved("checkpoint-layers", instance), "BP(head)")
    schedule = solved(name, instance)
    assert plain - on_device(instance, schedule, "BP(head)") == 6 * 10 * MIB
    assert sorted(names_of(instance, schedule, "offload")) == [f"x{i}" for i in range(6)]
    assert sorted(names_of(instance, schedule, "prefetch")) == [f"x{i}" for i in range(6)]


# --- TRL: tests/test_activation_offloading.py ------------------------------------------------------------


def test_small_tensors_and_parameters_stay() -> None:
    """Its ``test_min_offload_size`` and ``test_parameter_filtering``."""
    forward = [
        ("small", "linear", "x w", "a"),
        ("large", "linear", "a v", "b"),
        ("more", "linear", "b u", "c"),
        ("head", "linear", "c t", "s"),
    ]
    backward = [("head", "c t"), ("more", "b u"), ("large", "a v"), ("small", "x w")]
    instance = traced(forward, backward, mib={"a": 1000 / MIB})
    schedule = solved("trl-offload", instance)
    assert names_of(instance, schedule, "offload") == ["b"]


def test_a_storage_that_several_save_leaves_once() -> None:
    """Its ``test_tensor_deduplication``: two views of what a linear layer makes are one storage."""
    forward = [
        ("linear", "linear", "x", "a"),
        ("view1", "other", "a", "s1"),
        ("view2", "other", "a", "s2"),
        ("sum", "other", "s1 s2", "t"),
        ("more", "other", "t", "u"),
        ("head", "linear", "u", "s"),
    ]
    backward = [("head", ""), ("more", ""), ("sum", ""), ("view2", "a"), ("view1", "a"), ("linear", "x")]
    instance = traced(forward, backward)
    assert names_of(instance, solved("trl-offload", instance), "offload") == ["a"]


# --- Megatron-LM: tests/unit_tests/pipeline_parallel/test_fine_grained_activation_offloading.py ----------


def test_the_peak_is_lower_by_about_what_is_offloaded() -> None:
    """Its test has 8 layers and lets the saving differ from the bytes by 30 %."""
    instance = transformer(8, copy=5, budget=1 << 32)
    schedule = solved("megatron-offload", instance)
    expected = sum(instance.blocks[o.block or 0].bytes for o in copies(schedule, "offload"))
    saved = unlimited_peak(instance) - schedule.peak_bytes
    assert expected >= 7 * 40 * MIB
    assert abs(saved - expected) <= 0.30 * expected


# --- DeepSpeed: tests/unit/v1/compile/test_offload_activation.py -----------------------------------------


def compiled(*, budget: int = 1 << 40, bytes_of_one: float = 32) -> Instance:
    """Two activations of 32 MiB, read behind six tasks of the backward pass of 1 ms each; 10 GB/s."""
    forward = [
        ("act0", "relu", "x", "act_0"),
        ("act1", "relu", "act_0", "act_1"),
        ("out", "other", "act_1", "out"),
        ("loss", "other", "out", "loss"),
    ]
    backward = [
        *((f"bwd{i}", "") for i in range(6)),
        ("use1", "act_1"),
        ("use0", "act_0"),
    ]
    mib = {"act_0": bytes_of_one, "act_1": bytes_of_one, **dict.fromkeys(["x", "out", "loss"], 16 / MIB)}
    mib |= {f"'{name}": 16 / MIB for name, _ in backward}
    ns = {f"B({name})": 1_000_000 for name, _ in backward}
    copy = round(bytes_of_one * MIB / 10)  # ns at 10 GB/s
    return traced(forward, backward, mib=mib, ns=ns, copy=copy, budget=budget)


def ahead(instance: Instance, schedule: Schedule, block: str, task: str) -> int:
    """Return how many runs are issued between a block's copy back and the first run of a task."""
    (back,) = [o.id for o in copies(schedule, "prefetch") if instance.blocks[o.block or 0].name == block]
    (reads,) = [o.id for o in runs(schedule) if instance.tasks[o.task or 0].name == task]
    return sum(back < o.id < reads for o in runs(schedule))


def test_a_copy_starts_behind_the_last_use_and_is_waited_for_at_once() -> None:
    """Its ``test_fwd_offloads_saved_activations``."""
    instance = compiled(budget=65 * MIB)
    schedule = solved("deepcompile-offload", instance)
    assert names_of(instance, schedule, "offload") == ["act_0", "act_1"]
    order = sorted(
        (o for o in schedule.operations if o.kind in ("run", "offload")), key=lambda o: (o.start_ns, o.id)
    )
    told = [
        instance.tasks[o.task].name if o.task is not None else instance.blocks[o.block or 0].name
        for o in order
    ]
    assert told[:6] == ["FP(act0)", "FP(act1)", "act_0", "FP(out)", "act_1", "FP(loss)"]
    assert all(first.end_ns <= then.start_ns for first, then in pairwise(order[:6]))


def test_nothing_leaves_that_fits_or_is_small_and_one_stays_that_has_room() -> None:
    """Its ``..._no_op_when_memory_fits``, ``..._skips_small_tensors``, and 40 MiB of room for one of two."""
    assert not copies(solved("deepcompile-offload", compiled()), "offload")
    assert not copies(solved("deepcompile-offload", compiled(bytes_of_one=4 / 1024)), "offload")
    least = compiled(budget=65 * MIB)
    floor = solved("deepcompile-offload", least).peak_bytes
    room = with_budget(least, floor + 40 * MIB)
    assert len(copies(solved("deepcompile-offload", room), "offload")) == 1


def test_small_tensors_leave_too_where_large_ones_are_not_enough() -> None:
    """Its least size is ignored where memory ran out even with all larger tensors on the host."""
    instance = compiled(bytes_of_one=4, budget=9 * MIB)
    assert names_of(instance, solved("deepcompile-offload", instance), "offload") == []
    forward = [(f"act{i}", "relu", f"act_{i}", f"act_{i + 1}") for i in range(4)]
    backward = [("loss", ""), *((f"act{i}", f"act_{i + 1}") for i in reversed(range(4)))]
    small = traced(forward, backward, mib=dict.fromkeys([f"act_{i}" for i in range(5)], 4), budget=14 * MIB)
    assert copies(solved("deepcompile-offload", small), "offload")


@pytest.mark.parametrize(("gradient", "expected"), [(16 / MIB, 4), (40, 0)])
def test_a_copy_back_is_issued_as_early_as_hides_it_and_late_where_memory_is_tight(
    gradient: float, expected: int
) -> None:
    """Its ``test_bwd_starts_the_copy_early_enough_to_hide_it`` and ``..._late_when_memory_is_tight``.

    3.4 ms are four tasks of 1 ms. What makes both activations leave is 100 MiB in the forward pass.
    """
    forward = [
        ("act0", "relu", "x", "act_0"),
        ("act1", "relu", "act_0", "act_1"),
        ("wide", "other", "act_1", "w"),
        ("out", "other", "w", "out"),
    ]
    names = [f"bwd{i}" for i in range(6)]
    backward = [*((name, "") for name in names), ("use1", "act_1"), ("use0", "act_0")]
    mib = {"act_0": 32, "act_1": 32, "w": 100, "x": 16 / MIB, "out": 16 / MIB}
    mib |= {"'use1": 16 / MIB, "'use0": 16 / MIB, **{f"'{name}": gradient for name in names}}
    ns = {f"B({name})": 1_000_000 for name, _ in backward}
    instance = traced(forward, backward, mib=mib, ns=ns, copy=3_355_443, budget=140 * MIB)
    schedule = solved("deepcompile-offload", instance)
    assert names_of(instance, schedule, "offload") == ["act_0", "act_1"]
    assert ahead(instance, schedule, "act_1", "BP(use1)") == expected
