"""Rules of frameworks: each does what its source says, on a small transformer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations, pairwise

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.production.modules import modules
from pebbler.heuristics.production.partition import Partition
from pebbler.heuristics.production.saved import Operators, layer_groups, saved_by
from pebbler.heuristics.recomputation.rules import fill, planned
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.instances.origin import LayerTasks
from pebbler.instances.workload import Workload
from pebbler.validate.check import check

from ...samples import crossed
from .steps import MIB, OPERATORS, Memory, copies, names_of, runs, solved, transformer

NAMES = (
    "torch-compile",
    "torch-memory-budget",
    "checkpoint-layers",
    "torchtitan-selective",
    "transformers-offload",
    "hidden-states-offload",
    "torchtitan-offload",
    "trl-offload",
    "megatron-offload",
    "deepcompile-offload",
    "torchtitan-budget",
    "torchtitan-budget-ilp",
)


def test_layers_are_grouped_by_the_number_in_their_names() -> None:
    instance = transformer()
    groups = layer_groups(instance)
    assert [group.name for group in groups] == ["h0", "h1", "h2"]
    named = [[instance.blocks[d].name for d in group.inputs] for group in groups]
    assert named == [["x0"], ["x1"], ["x2"]]
    assert [instance.blocks[d].name for d in groups[1].inside] == ["n1", "a1", "c1"]
    assert {
        instance.blocks[d].name: [layer.name for _, layer in by] for d, by in saved_by(instance).items()
    } == {
        **{f"x{i}": [f"h{i}_norm"] for i in range(3)},
        **{f"{saved}{i}": [f"h{i}_{name}"] for i in range(3) for name, _, saved, _ in OPERATORS[1:]},
        "x3": ["head"],
        "y": ["head"],
    }


@pytest.mark.parametrize(
    ("network", "batch", "name", "inputs", "linear"),
    [("gpt2", 2, "h3", ["Y(h2_add2)"], 4), ("llama32_1b", 1, "layer5", ["Y(layer4_add2)"], 7)],
)
def test_transformers_of_the_zoo_have_layers(
    network: str, batch: int, name: str, inputs: list[str], linear: int
) -> None:
    instance = Workload(network, batch, "a100").instance("90%")
    (group,) = [group for group in layer_groups(instance) if group.name == name]
    assert [instance.blocks[d].name for d in group.inputs] == inputs
    assert sum(Operators(instance).is_linear(k) for k in group.forward) == linear
    assert sum(Operators(instance).is_attention(k) for k in group.forward) == 1


def test_checkpointed_layers_run_again_from_their_inputs() -> None:
    instance = transformer()
    schedule = solved("checkpoint-layers", instance)
    again = names_of(instance, schedule, "run")
    assert again == [f"FP(h{i}_{name})" for i in (2, 1, 0) for name in ("norm", "first", "attn")]
    assert not copies(schedule, "offload")
    assert schedule.makespan_ns == 10 * 17 + 20 * 13 + 10 * 9


def test_the_first_and_third_linear_operator_are_kept_where_only_second_runs_read_them() -> None:
    """Llama's queries are rotated from what their product has made, which need not run again."""
    instance = planned(Workload("llama32_1b:layers=3,vocabulary=1024", 1, "a100").instance("95%"))
    again = names_of(instance, solved("torchtitan-selective", instance, "paged"), "run")
    operators, names = Operators(instance), [task.name for task in instance.tasks]
    linear = {name for name in again if operators.is_linear(names.index(name)) and "layer1" in name}
    assert linear == {"FP(layer1_k)", "FP(layer1_o)", "FP(layer1_up)"}
    assert "FP(layer1_q_rotated)" in again


def test_what_is_cheap_is_computed_again_from_what_torch_compile_saves() -> None:
    """A norm is made again; products and attention are not, so that the blocks that they make are saved."""
    instance = transformer()
    saved = {instance.blocks[d].name for d in Partition(instance).saved()}
    assert saved == {"x3", "y", *(f"{name}{i}" for name in "xac" for i in range(3))}
    schedule = solved("torch-compile", instance)
    assert names_of(instance, schedule, "run") == [f"FP(h{i}_norm)" for i in (2, 1, 0)]
    assert not copies(schedule, "offload")


@pytest.mark.parametrize("again", [False, True])
def test_no_other_blocks_that_suffice_cost_less_than_the_cut(again: bool) -> None:
    instance = transformer(layers=2)
    sizes = iter((3, 1, 2, 9, 4, 1, 7, 2, 5, 3, 6, 2, 8, 1, 4, 2, 3))
    makers = {writers[0]: d for d, writers in enumerate(instance.writers)}
    made = {
        makers[k]: next(sizes) * MIB for k, task in enumerate(instance.tasks) if task.name.startswith("F")
    }
    instance = replace(
        instance,
        blocks=tuple(replace(b, bytes=made.get(d, b.bytes)) for d, b in enumerate(instance.blocks)),
    )
    partition = Partition(instance)
    may = [] if again else list(partition.expensive)

    def suffices(saved: set[int]) -> bool:
        there = set(saved)
        for d in made:
            k = instance.writers[d][0]
            if k not in may and set(instance.tasks[k].inputs) <= there:
                there.add(d)
        return partition.read <= there

    def cost(saved: Iterable[int]) -> int:
        return sum(partition.weights[d] for d in saved)

    chosen = partition.saved(partition.expensive if again else ())
    assert suffices(chosen)
    sets = chain.from_iterable(combinations(made, count) for count in range(len(made) + 1))
    assert cost(chosen) == min(cost(some) for some in sets if suffices(set(some)))


def test_a_memory_budget_keeps_what_a_knapsack_chooses() -> None:
    instance = transformer()
    partition = Partition(instance)
    most = partition.bytes_of(partition.saved())
    assert partition.within(1) == partition.saved()
    assert partition.within(0) == set()
    kept = [
        {d for d in partition.within(share) if instance.writers[d][0] in partition.expensive}
        for share in (0.0, 0.3, 0.6, 0.8, 1.0)
    ]
    for share, some in zip((0.0, 0.3, 0.6, 0.8), kept, strict=False):
        assert partition.bytes_of(some) <= share * most
    assert [len(some) for some in kept] == sorted(len(some) for some in kept)
    assert len(kept[0]) < len(kept[2]) < len(kept[-1])


def test_a_knapsack_takes_what_weighs_nothing_and_is_worth_something() -> None:
    """An attack found that it failed there: tasks need not make a block."""
    assert fill([3, 0, 5, 4], [0, 0, 10, 10], 15) == [True, False, True, False]


@pytest.mark.parametrize(
    "budgets", [("60%", "90%"), pytest.param(("60%", "75%", "90%"), marks=pytest.mark.slow)], ids=len
)
def test_the_greatest_memory_budget_that_fits_is_taken(budgets: tuple[str, ...]) -> None:
    times = []
    for budget in budgets:
        instance = planned(Workload("gpt2", 8, "a100").instance(budget))
        times.append(solved("torch-memory-budget", instance, "paged").makespan_ns)
        if budget == "60%":
            with pytest.raises(Refusal):
                find_method("torch-compile").call(instance, Limits(memory="paged"))
    assert times[-1] == solved("torch-compile", instance, "paged").makespan_ns
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_selective_checkpoints_keep_attention_and_every_second_linear_operator() -> None:
    """Of the two linear operators of a layer the first is kept, as torchtitan counts them from one."""
    instance = transformer()
    schedule = solved("torchtitan-selective", instance)
    assert names_of(instance, schedule, "run") == [f"FP(h{i}_norm)" for i in (2, 1, 0)]
    assert schedule.makespan_ns == 10 * 17 + 20 * 13 + 10 * 3


def test_inputs_on_the_host_are_copied_on_the_stream_of_the_computation() -> None:
    instance = transformer()
    schedule = solved("transformers-offload", instance)
    assert names_of(instance, schedule, "offload") == ["x0", "x1", "x2"]
    assert names_of(instance, schedule, "prefetch") == ["x2", "x1", "x0"]
    busy = sorted((o.start_ns, o.end_ns) for o in schedule.operations)
    assert all(end <= start for (_, end), (start, _) in pairwise(busy))  # one at a time
    assert schedule.makespan_ns == 10 * 17 + 20 * 13 + 10 * 9 + 6 * 40
    before = {
        copy.block: max(o.task for o in runs(schedule) if o.end_ns <= copy.start_ns)
        for copy in copies(schedule, "offload")
    }  # type: ignore[type-var]
    assert [instance.tasks[k].name for k in before.values() if k is not None] == [
        "FP(embed)",
        "FP(h0_add)",
        "FP(h1_add)",
    ]


def test_hidden_states_come_back_while_the_layer_after_them_runs() -> None:
    instance = transformer(layers=4)
    schedule = solved("hidden-states-offload", instance)
    assert names_of(instance, schedule, "offload") == ["x0", "x1", "x2", "x3"]
    back = copies(schedule, "prefetch")
    assert names_of(instance, schedule, "prefetch") == ["x3", "x2", "x1", "x0"]
    begins = {instance.tasks[o.task].name: o.start_ns for o in runs(schedule) if o.task is not None}
    first = {name: begins[name] for name in (f"BP(h{i}_second)" for i in range(4))}
    for i, copy in zip((2, 1, 0), back[1:], strict=True):
        assert copy.start_ns <= first[f"BP(h{i + 1}_second)"]
        assert copy.end_ns <= first[f"BP(h{i}_second)"]
    # only the first copy back, and what is copied out last, are waited for
    alone = 10 * 22 + 20 * 17 + 10 * 12
    assert alone < schedule.makespan_ns < solved("transformers-offload", instance).makespan_ns


def test_what_selective_checkpoints_keep_leaves_and_comes_back_a_layer_early() -> None:
    """Norms are made again, what the other operators save is on the host, and so is a layer's output.

    The last layer's stays. Compute waits for a copy out at the end of the layer after the tensor's own.
    """
    instance = transformer(layers=4, copy=15)
    schedule = solved("torchtitan-offload", instance)
    left = [f"{saved}{i}" for i in range(3) for saved in ("a", "c")]
    sums = [f"x{i + 1}" for i in range(3)]
    assert sorted(names_of(instance, schedule, "offload")) == sorted([*left, *sums])
    assert names_of(instance, schedule, "offload") == [
        f"{one}{i + (one == 'x')}" for i in range(3) for one in "acx"
    ]
    assert names_of(instance, schedule, "prefetch") == [
        name for i in (2, 1, 0) for name in (f"x{i + 1}", f"c{i}", f"a{i}")
    ]
    assert names_of(instance, schedule, "run") == [f"FP(h{i}_norm)" for i in (3, 2, 1, 0)]
    begins, ends = {}, {}
    for o in runs(schedule):
        assert o.task is not None
        begins.setdefault(instance.tasks[o.task].name, o.start_ns)
        ends.setdefault(instance.tasks[o.task].name, o.end_ns)
    for copy in copies(schedule, "prefetch"):
        name = instance.blocks[copy.block or 0].name
        layer = int(name[1:]) - (name[0] == "x")
        assert copy.start_ns >= begins[f"BP(h{layer + 1}_second)"]
    for copy in copies(schedule, "offload"):
        maker = instance.writers[copy.block or 0][0]
        assert copy.start_ns >= ends[instance.tasks[maker].name]
    busy = sorted((o.start_ns, o.end_ns) for o in schedule.operations if o.kind in ("offload", "prefetch"))
    assert all(end <= start for (_, end), (start, _) in pairwise(busy))


def test_compute_waits_for_what_leaves_at_the_end_of_the_next_layer() -> None:
    instance = transformer(layers=4, copy=100)
    schedule = solved("torchtitan-offload", instance)
    out = {instance.blocks[o.block or 0].name: o for o in copies(schedule, "offload")}
    begins = {instance.tasks[o.task or 0].name: o.start_ns for o in reversed(runs(schedule))}
    assert begins["FP(h1_norm)"] < out["a0"].end_ns + 100 <= out["x1"].end_ns <= begins["FP(h2_norm)"]
    assert begins["FP(h2_add)"] < out["x2"].end_ns <= begins["FP(h3_norm)"]


def test_the_largest_leave_that_the_host_has_room_for() -> None:
    large = {"x1": 40, "c0": 30, "a2": 20}
    instance = transformer(layers=4)
    blocks = tuple(replace(block, bytes=large.get(block.name, 10) * MIB) for block in instance.blocks)
    for room, expected in ((100, {"x1", "c0", "a2", "a0"}), (75, {"x1", "c0"}), (25, {"a2"}), (5, set())):
        limited = replace(instance, blocks=blocks, host_budget_bytes=room * MIB)
        assert set(names_of(limited, solved("torchtitan-offload", limited), "offload")) == expected


def test_all_saved_tensors_leave_but_those_of_the_head() -> None:
    instance = transformer()
    schedule = solved("trl-offload", instance)
    out = names_of(instance, schedule, "offload")
    assert out == [f"{saved}{i}" for i in range(3) for _, _, saved, _ in OPERATORS]
    back = names_of(instance, schedule, "prefetch")
    last = out[-1]
    assert back == [name for name in reversed(out) if name != last]  # the first node reads it from the stash
    # one stream for both directions
    busy = sorted((o.start_ns, o.end_ns) for o in schedule.operations if o.kind in ("offload", "prefetch"))
    assert all(end <= start for (_, end), (start, _) in pairwise(busy))


def test_a_stash_of_five_makes_compute_wait_for_the_tensor_before() -> None:
    """When the sixth tensor is packed, compute waits for the copy of the first; and so on."""
    instance = transformer(layers=4, copy=100)
    schedule = solved("trl-offload", instance)
    out, done = copies(schedule, "offload"), runs(schedule)
    assert len(out) == 16
    for i in range(5, len(out)):
        after = [o for o in done if o.id > out[i].id]
        assert min(o.start_ns for o in after) >= out[i - 5].end_ns
    assert any(o.start_ns < out[1].end_ns for o in done if o.id > out[4].id)


def test_a_tensor_comes_back_once_the_node_before_the_last_has_ended() -> None:
    instance = transformer(layers=4, copy=5)
    schedule = solved("trl-offload", instance)
    back = copies(schedule, "prefetch")
    turn = next(k for k, task in enumerate(instance.tasks) if task.name.startswith("BP"))
    nodes = [o for o in runs(schedule) if o.task is not None and o.task > turn]  # the head's has none
    assert len(back) == len(nodes) - 1
    for i, copy in enumerate(back[2:], start=2):
        assert copy.start_ns >= nodes[i - 1].end_ns
        assert copy.start_ns < nodes[i + 1].start_ns


def test_what_several_layers_save_stays_for_the_others() -> None:
    """The second and the third layer of three that read a tensor keep it; the first reads the host's copy."""
    run = Algorithm(name="a", duration_ns=10, workspace_bytes=0)
    names = ("x", "q", "k", "v", "p", "r", "s", "gp", "gs", "gr", "gv", "gk", "gq")
    blocks = tuple(Block(name=name, bytes=MIB, offload_ns=10, prefetch_ns=10) for name in names)
    at = {name: d for d, name in enumerate(names)}

    def task(name: str, reads: str, makes: str) -> Task:
        return Task(
            name=name,
            inputs=tuple(at[one] for one in reads.split()),
            outputs=(at[makes],),
            algorithms=(run,),
        )

    tasks = (
        task("FP(norm)", "", "x"),
        task("FP(q)", "x", "q"),
        task("FP(k)", "x", "k"),
        task("FP(v)", "x", "v"),
        task("FP(mix)", "q k v", "p"),
        task("FP(more)", "p", "r"),
        task("FP(head)", "r", "s"),
        task("BP(head)", "s", "gs"),
        task("BP(more)", "gs", "gp"),
        task("BP(v)", "x gp", "gv"),
        task("BP(k)", "x gv", "gk"),
        task("BP(q)", "x gk", "gq"),
    )
    instance = Instance(
        name="three-readers",
        engines="duplex",
        budget_bytes=64 * MIB,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=blocks,
        tasks=tasks,
        layers=tuple(
            LayerTasks(
                name=name,
                kind="linear" if name in ("q", "k", "v", "head") else "other",
                forward=(f,),
                backward=b,
            )
            for name, f, b in (
                ("norm", 0, ()),
                ("q", 1, (11,)),
                ("k", 2, (10,)),
                ("v", 3, (9,)),
                ("mix", 4, ()),
                ("more", 5, (8,)),
                ("head", 6, (7,)),
            )
        ),
    )
    schedule = solved("trl-offload", instance)
    assert names_of(instance, schedule, "offload") == ["x"]
    assert names_of(instance, schedule, "prefetch") == ["x"]
    (back,) = copies(schedule, "prefetch")
    ended = next(o for o in schedule.operations if o.task == 10)
    assert back.start_ns >= ended.end_ns  # until then it is on the device


def test_modules_offload_what_they_save_but_for_the_last_of_each_kind() -> None:
    """What a module has saved comes back once the backward pass of one a layer later has ended."""
    instance = transformer(layers=4, copy=15)
    assert [part.kind for part in modules(instance)][:5] == [
        *("norm 0", "qkv_linear", "core_attn", "attn_proj"),
        "norm 0",
    ]
    schedule = solved("megatron-offload", instance, "paged")
    left = [f"{saved}{i}" for i in range(3) for _, _, saved, _ in OPERATORS]
    assert names_of(instance, schedule, "offload") == left
    assert names_of(instance, schedule, "prefetch") == left[::-1]
    ended = [o for o in runs(schedule) if instance.tasks[o.task or 0].name.startswith("BP(h3_")]
    for module, copy in zip(ended, copies(schedule, "prefetch"), strict=False):
        assert module.end_ns <= copy.start_ns < module.end_ns + 20
    made = {instance.blocks[o.block or 0].name: o.start_ns for o in copies(schedule, "offload")}
    after = {instance.tasks[o.task or 0].name: o.end_ns for o in runs(schedule)}
    assert all(made[f"n{i}"] >= after[f"FP(h{i}_first)"] for i in range(3))
    assert schedule.makespan_ns == 10 * 22 + 20 * 17  # all copies are hidden


def test_what_a_perceptron_saves_stays_as_do_small_tensors() -> None:
    """The second norm's output is saved by a linear layer of the perceptron, which is no module."""
    instance = Workload("gpt2", 2, "a100").instance("90%")
    parts = [part for part in modules(instance) if part.last_forward < 20]
    names = [(part.kind, *(instance.blocks[d].name for d in part.saved)) for part in parts]
    assert names[:5] == [
        ("norm 0", "Y(embedded)"),
        ("qkv_linear", "Y(h0_ln1)"),
        ("core_attn", "Y(h0_qkv)"),
        ("attn_proj", "Y(h0_attn)"),
        ("norm 1", "Y(h0_add1)"),
    ]
    small = replace(instance, blocks=tuple(replace(block, bytes=1024) for block in instance.blocks))
    assert not any(part.saved for part in modules(small))


def test_all_leave_and_the_largest_that_fit_stay() -> None:
    """Without a budget nothing leaves; with less, the tensors that are largest stay as far as they fit."""
    instance = transformer()
    assert not copies(solved("deepcompile-offload", instance), "offload")
    large = {"x1": 40, "c0": 30, "a2": 20}
    blocks = tuple(replace(block, bytes=large.get(block.name, 10) * MIB) for block in instance.blocks)
    instance = replace(instance, blocks=blocks)
    stays = []
    for budget in range(60, 160, 10):  # in 60 MiB, all is on the host that can be
        schedule = solved("deepcompile-offload", with_budget(instance, budget * MIB), "paged")
        stays.append(set(large) - set(names_of(instance, schedule, "offload")))
    assert stays[:6] == [set(), set(), {"a2"}, {"c0"}, {"x1"}, {"x1"}]
    assert stays[6:] == [{"x1", "a2"}, {"x1", "c0"}, {"x1", "c0"}, {"x1", "c0", "a2"}]


def test_compute_waits_for_each_copy_out() -> None:
    instance = with_budget(transformer(), 60 * MIB)
    schedule = solved("deepcompile-offload", instance)
    out = copies(schedule, "offload")
    assert len(out) >= 3
    for copy in out:
        later = [o for o in runs(schedule) if o.id > copy.id]
        earlier = [o for o in runs(schedule) if o.id < copy.id]
        assert min(o.start_ns for o in later) >= copy.end_ns
        assert copy.start_ns >= max(o.end_ns for o in earlier)


@pytest.mark.parametrize("name", NAMES)
def test_refusals_are_sentences(name: str) -> None:
    instance = with_budget(transformer(), 12 * MIB)
    with pytest.raises(Refusal, match=r"^\S.*[^.]$"):
        find_method(name).call(instance, Limits())


@pytest.mark.parametrize("name", [*NAMES[2:7], "megatron-offload", *NAMES[-2:]])
def test_without_repeated_layers_there_is_nothing_to_checkpoint(name: str) -> None:
    instance = Workload("alexnet", 16, "k40").instance("100%")
    with pytest.raises(Refusal, match="no layers repeat"):
        find_method(name).call(instance, Limits())


@pytest.mark.parametrize("name", [*NAMES[2:7], *NAMES[-2:]])
def test_tasks_that_run_once_cannot_be_computed_again(name: str) -> None:
    with pytest.raises(Refusal, match="nothing can be computed again"):
        find_method(name).call(transformer(again=False), Limits())


@pytest.mark.parametrize(("name", "memory"), crossed(NAMES, ("contiguous", "paged"), of=2))
def test_schedules_of_gpt2_are_valid(name: str, memory: Memory) -> None:
    info = find_method(name)
    instance = Workload("gpt2", 4, "a100").instance("90%")
    instance = info.transform(instance) if info.transform else instance
    schedule = info.call(instance, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).valid
