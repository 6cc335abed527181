"""Tensors in parts: which are split, how suffixes of them leave in a search, and where parts come back."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
import pytest

from pebbler.heuristics.gaps import Guide, gaps_of
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.heuristics.papers.modnn import modnn, modnn_parts
from pebbler.heuristics.parts import require_parts_alike, tensors_of, with_parts
from pebbler.heuristics.search.decisions import decisions_of, gap_keys
from pebbler.heuristics.search.kernel import ANY, HIGH, IMPOSSIBLE, LOW, arrange, simulate, state_for
from pebbler.heuristics.search.method import furthest_parts
from pebbler.heuristics.search.problem import linked, problem_of
from pebbler.heuristics.search.program import program_of
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import unlimited_peak, with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import in_parts, split_parts, with_engines, with_inputs_on_clock
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel, Schedule

from ..samples import counts, crossed

VGG = Workload("vgg16", 256, "v100").instance("1.05xMmin")


@pytest.mark.parametrize("budget", [VGG.budget_bytes, 2**40], ids=["tight", "ample"])
def test_what_can_be_away_is_split_the_largest_tensors_into_the_most_parts(budget: int) -> None:
    parts = with_parts(with_budget(VGG, budget))
    away = {VGG.blocks[d].name for d, _ in gaps_of(VGG)}
    split = {block.tensor for block in parts.blocks if block.tensor is not None}
    assert split <= away
    count = {name: sum(block.tensor == name for block in parts.blocks) for name in split}
    sizes = {block.name: block.bytes for block in VGG.blocks}
    assert sum(block.bytes for block in parts.blocks) == sum(sizes.values())
    largest = max(split, key=lambda name: sizes[name])
    assert count[largest] >= max(10, max(count.values()) - 1)


def test_parts_are_not_split_again_and_small_tensors_not_at_all() -> None:
    parts = with_parts(VGG)
    assert with_parts(parts) is parts
    small = with_parts(Workload("lenet", 2, "k40").instance("1GiB"))
    assert all(block.tensor is None for block in small.blocks)
    assert in_parts(small)


def test_without_pressure_parts_are_even_whatever_the_budget() -> None:
    peak = unlimited_peak(VGG)
    parts = with_parts(with_budget(VGG, peak))
    assert with_parts(with_budget(VGG, 2 * peak)) == with_budget(parts, 2 * peak)
    pieces = {block.bytes for block in parts.blocks if block.tensor is not None}
    assert max(pieces) <= max(b.bytes for b in parts.blocks if b.tensor == "Y(conv1_1)") + 2 * PAGE_BYTES


def test_parts_fill_what_the_tasks_that_press_leave() -> None:
    deep = Workload("vgg416", 32, "v100").instance("1.05xMmin")
    total = next(block.bytes for block in deep.blocks if block.name == "Y(conv1_40)")
    beside = deep.pool_bytes - 2 * total  # its neighbours read and write a tensor of its size

    def part(instance: Instance) -> int:
        return max(block.bytes for block in instance.blocks if block.tensor == "Y(conv1_40)")

    fitting, even = part(with_parts(deep)), part(with_parts(with_budget(deep, 2**40)))
    assert beside % even > beside // 10
    assert beside % fitting < beside // 50
    assert 2 * fitting > even > fitting  # up to twice as many


def test_chains_have_the_elements_of_all_keys_by_rank() -> None:
    keys = np.array([5, 7, 5, 7, 5]), np.array([1, 0, 1, 2, 1])
    first, following, before = linked(keys, np.array([3, 0, 1, 0, 2]))
    assert first.tolist() == [2, 1, 2, 3, 2]
    assert following.tolist() == [-1, -1, 4, -1, 0]
    assert before.tolist() == [4, -1, -1, -1, 2]


def test_parts_take_their_places_in_an_order_in_turn() -> None:
    order = np.array([4, 3, 0, 1, 2])
    first, following = np.array([2, 1, 2, 3, 2]), np.array([-1, -1, 4, -1, 0])
    arrange(order, first, following, np.empty_like(order))
    assert order.tolist() == [2, 3, 4, 1, 0]


def test_parts_that_differ_are_refused_where_they_must_lie_together() -> None:
    instance = split_parts(VGG, 800 * 2**20)
    tensor = tensors_of(instance)[0]
    require_parts_alike(instance)
    blocks = list(instance.blocks)
    blocks[tensor[1]] = msgspec.structs.replace(blocks[tensor[1]], offload_ns=None)
    other = msgspec.structs.replace(instance, blocks=tuple(blocks))
    with pytest.raises(Refusal, match="differ in their uses or copies"):
        LocalSearch(other, "contiguous")
    LocalSearch(other, "paged")


def suffixes_only(instance: Instance, schedule: Schedule) -> bool:
    """Whether what is there of every tensor is always its first parts."""
    position = {d: i for parts in tensors_of(instance) for i, d in enumerate(parts)}
    there: dict[str, set[int]] = defaultdict(set)
    for operation in schedule.operations:
        if operation.kind != "prefetch":
            continue
        block = instance.blocks[operation.block or 0]
        if block.tensor is not None:
            there[block.tensor].add(position[operation.block or 0])
    counts = {instance.blocks[parts[0]].tensor or "": len(parts) for parts in tensors_of(instance)}
    return all(max(found) == counts[tensor] - 1 for tensor, found in there.items())


WIDE = Workload("vgg16", 256, "v100").instance("60%")
INPUTS = {d for d, block in enumerate(WIDE.blocks) if block.initially == "device"}
CASES = {
    "vgg16": split_parts(WIDE, 400 * 2**20),
    "resnet34": with_parts(Workload("resnet34", 256, "k40").instance("50%")),
    "single": with_engines(split_parts(WIDE, 800 * 2**20), "single"),
    "inputs": with_inputs_on_clock(split_parts(WIDE, dict.fromkeys(INPUTS, 20 * 2**20))),
}


@pytest.mark.parametrize(
    ("case", "memory"), crossed(tuple(CASES), ("paged", "contiguous", "divisible"), of=2)
)
@pytest.mark.parametrize("count", counts(8, 25))
def test_random_suffixes_run_as_simulated(case: str, memory: MemoryModel, count: int) -> None:
    instance = CASES[case]
    problem = problem_of(instance, memory)
    rng = np.random.default_rng(5)
    state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
    keys = gap_keys(problem)
    stays = dict.fromkeys((instance.blocks[d].tensor, a) for d, a in keys)
    ran = moved = 0
    for _ in range(count):
        share = {key: rng.choice((0.0, 0.5, 1.0, 1.0)) for key in stays}
        evicted = [(d, a) for d, a in keys if rng.random() < share[instance.blocks[d].tensor, a]]
        algorithms = [int(rng.integers(len(task.algorithms))) for task in instance.tasks]
        decisions = decisions_of(problem, Guide(evicted, [], algorithms))
        makespan, steps = simulate(problem, decisions, state, stalls, ANY)
        if makespan >= IMPOSSIBLE:
            continue
        schedule = program_of(instance, problem, memory, state.log[:steps]).finish("random")
        assert check(instance, schedule).reasons == ()
        assert schedule.makespan_ns <= makespan
        assert suffixes_only(instance, schedule)
        ran += 1
        moved += sum(operation.kind == "move" for operation in schedule.operations)
        for most in (makespan, makespan - 1, makespan * 3 // 4):
            least, _ = simulate(problem, decisions, state, stalls, most)
            assert least == makespan if most >= makespan else most < least <= makespan
    assert ran >= count // 8
    assert moved == 0 or memory == "contiguous"


def test_what_is_in_the_way_of_a_part_that_comes_back_is_moved() -> None:
    """T leaves half of its bytes free; Z comes to lie there, and lies in T's way when T is whole again."""

    def block(name: str, size: int, **more: object) -> Block:
        return Block(name=name, bytes=size, **{"offload_ns": None, "prefetch_ns": None, "move_ns": 1, **more})  # type: ignore[arg-type]

    def part(name: str, begin: int) -> Block:
        return block(name, 4, offload_ns=4, prefetch_ns=4, tensor="T", begin=begin)

    def task(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Task:
        plain = Algorithm(name="plain", duration_ns=10, workspace_bytes=0)
        return Task(name=name, inputs=inputs, outputs=outputs, algorithms=(plain,))

    instance = Instance(
        name="in-the-way",
        engines="duplex",
        budget_bytes=12,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=(part("T[0]", 0), part("T[1]", 4), block("Y", 4), block("Z", 4)),
        tasks=(
            task("makes T", (), (0, 1)),
            task("makes Y", (), (2,)),
            task("makes Z from Y", (2,), (3,)),
            task("reads Z", (3,), ()),
            task("reads T", (0, 1, 3), ()),
        ),
    )
    problem = problem_of(instance, "contiguous")
    guide = Guide([(1, 0)], [(1, 0)], [0] * 5)
    decisions = decisions_of(problem, guide)
    decisions.side[:] = LOW
    decisions.side[2] = HIGH  # Y, so that Z takes what T left
    state, stalls = state_for(problem), np.zeros(problem.length, dtype=np.int64)
    makespan, steps = simulate(problem, decisions, state, stalls, ANY)
    assert makespan < IMPOSSIBLE
    schedule = program_of(instance, problem, "contiguous", state.log[:steps]).finish("by hand")
    assert check(instance, schedule).reasons == ()
    moves = [operation.block for operation in schedule.operations if operation.kind == "move"]
    assert moves == [3]


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_parts_beat_whole_tensors(memory: MemoryModel) -> None:
    found = {}
    for name, instance in (("whole", VGG), ("parts", with_parts(VGG))):
        search = LocalSearch(instance, memory)
        start = find_method("modnn").call(instance, Limits(memory=memory)).schedule  # type: ignore[arg-type]
        assert start is not None
        search.offer(start)
        search.run(work=100_000)
        schedule = search.schedule("local-search")
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
        found[name] = schedule.makespan_ns
    assert found["parts"] < 0.95 * found["whole"]


def test_greedy_rules_on_parts_are_checked_and_belady_s_gains_by_them() -> None:
    parts = with_parts(VGG)
    limits = Limits(memory="paged")
    makespans = {}
    for method in (modnn, modnn_parts, furthest_parts):
        instance = VGG if method is modnn else parts
        schedule = method(instance, limits).schedule
        assert schedule is not None
        assert check(instance, schedule).reasons == ()
        makespans[schedule.method] = schedule.makespan_ns
    assert makespans["furthest-parts"] < 0.8 * makespans["modnn"]
    assert makespans["furthest-parts"] < 0.8 * makespans["modnn-parts"]


def test_tiny_tensors_in_two_parts_lie_together() -> None:
    tried = 0
    for seed in range(60):
        instance = tiny_instance(seed)
        if not any(block.tensor for block in instance.blocks) or any(t.recomputable for t in instance.tasks):
            continue
        try:
            search = LocalSearch(instance, "contiguous")
        except Refusal:
            continue
        search.run(work=5000)
        schedule = search.schedule("local-search")
        if schedule is not None:
            assert check(instance, schedule).reasons == ()
            tried += 1
    assert tried >= 5
