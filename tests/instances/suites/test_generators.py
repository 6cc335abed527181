from __future__ import annotations

from hashlib import sha256

import msgspec
import numpy as np
import pytest

from pebbler.heuristics.papers.layers import layer_steps
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import (
    Chain,
    Dense,
    Inception,
    Layered,
    Recurrent,
    Residual,
    Shape,
    UShaped,
)
from pebbler.instances.units import LARGEST
from pebbler.solver.result import Status
from pebbler.solver.solve import solve

FAMILIES: dict[str, Shape] = {
    "chain": Chain(layers=12),
    "residual": Residual(blocks=4, depth=2),
    "inception": Inception(modules=2, branches=3),
    "dense": Dense(blocks=2, layers=4),
    "u-shaped": UShaped(levels=3, width=1),
    "recurrent": Recurrent(layers=2, steps=5),
    "layered": Layered(size=20, width=3),
}
CHECKSUMS = {
    "chain": "b4e62ee57cfc356eef49015fdef22699a86562f291a1d501184e6f90a45b69e1",
    "residual": "66d5ff8a0ffb722a066c94f02f39a24ffe94a028bf8d6921cb776e08024b4ca7",
    "inception": "88d7a6f65d664f2d0cd70784b3ace0b544e6fe5ecd09cb99fb4808d96364bf1b",
    "dense": "7e1d50b534638dc3b6233445f3fe2f8500cd3f4b8be1223fe793a5cc24033a6c",
    "u-shaped": "2df8a6abd49b74b006c002d4d3063f4fa119ec0f8d757e8f445de41793aec06b",
    "recurrent": "40d53059d6bd31d64942ec49d83126939a2bbb511d04f3f7cff0e64090ab7c0e",
    "layered": "921456f1c1d30a9f5670c5e607572de16294989779378a7b846b7e7e6f8ab1d8",
}


def draw(shape: Shape, seed: int = 0, **knobs: object) -> Instance:
    return generate("x", shape, Knobs(**knobs), np.random.default_rng(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_file_anywhere(family: str) -> None:
    data = encode(draw(FAMILIES[family], seed=42))
    assert sha256(data).hexdigest() == CHECKSUMS[family], "raise generators.VERSION when this is meant"


@pytest.mark.parametrize("family", FAMILIES)
def test_another_seed_gives_another_instance(family: str) -> None:
    assert encode(draw(FAMILIES[family], 1)) == encode(draw(FAMILIES[family], 1))
    assert encode(draw(FAMILIES[family], 1)) != encode(draw(FAMILIES[family], 2))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"recomputable_percent": 50, "host_input": True, "engines": "single", "moves": False},
        {"backward": False, "transfer_percent": 0, "recomputable_percent": 100},
        {"octaves": 0, "time_octaves": 0, "slack_percent": 0, "fast_percent": 100},
    ],
    ids=str,
)
def test_what_is_drawn_is_valid_and_read_again(
    family: str, knobs: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reader checks every rule of the format, and that figures are within a file's range."""
    path = tmp_path_factory.mktemp("drawn") / "x.instance.json"
    instance = draw(FAMILIES[family], **knobs)
    write_instance(instance, path)
    assert read_instance(path) == instance
    assert instance.meta["knobs"] == msgspec.to_builtins(Knobs(**knobs))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_backward_runs_in_reverse_and_every_gradient_is_made_and_read(family: str) -> None:
    instance = draw(FAMILIES[family])
    nodes = sum(task.name.startswith("F") for task in instance.tasks)
    names = [task.name for task in instance.tasks]
    forward, backward = [f"F{k}" for k in range(nodes)], [f"B{k}" for k in reversed(range(nodes))]
    assert names == [*forward, "loss", *backward]
    for d, block in enumerate(instance.blocks):
        if block.name.startswith("d"):
            assert len(instance.writers[d]) >= 1
            assert names[instance.uses[d][-1]] == "B" + block.name.removeprefix("dY")
            source = next(b for b in instance.blocks if b.name == block.name.removeprefix("d"))
            assert source.bytes == block.bytes


def test_gradients_that_meet_are_accumulated_in_place() -> None:
    instance = draw(Residual(blocks=1, depth=1))
    updates = {task.name: [instance.blocks[d].name for d in task.updates] for task in instance.tasks}
    assert updates == {"F0": [], "F1": [], "F2": [], "loss": [], "B2": [], "B1": ["dY0"], "B0": []}


@pytest.mark.parametrize("percent", [0, 10, 50, 100, 150])
def test_slack_places_the_budget_between_the_least_and_the_peak(percent: int) -> None:
    instance = draw(Chain(layers=20), slack_percent=percent)
    least, peak = least_budget(instance), unlimited_peak(instance)
    assert least < peak
    exact = least + percent * (peak - least) / 100
    assert exact <= instance.budget_bytes < exact + 1


@pytest.mark.parametrize("percent", [10, 100, 700])
def test_copies_take_their_share_of_the_computing_time(percent: int) -> None:
    instance = draw(Chain(layers=20), transfer_percent=percent)
    copies = [block.offload_ns or 0 for block in instance.blocks]
    assert sum(copies) == pytest.approx(percent / 100 * ideal_ns(instance), rel=1e-4)
    assert copies == [block.prefetch_ns for block in instance.blocks]
    rates = [copy / block.bytes for copy, block in zip(copies, instance.blocks, strict=True)]
    assert max(rates) == pytest.approx(min(rates), rel=1e-3)
    assert all(12 * (block.move_ns or 0) >= (block.offload_ns or 0) for block in instance.blocks)


def test_without_transfers_nothing_moves() -> None:
    instance = draw(Chain(layers=3), transfer_percent=0)
    assert {(b.offload_ns, b.prefetch_ns, b.move_ns) for b in instance.blocks} == {(None, None, None)}
    assert {b.move_ns for b in draw(Chain(layers=3), moves=False).blocks} == {None}


def test_octaves_skew_the_sizes() -> None:
    def spread(octaves: int) -> tuple[int, int]:
        sizes = [block.bytes for block in draw(Chain(layers=200), octaves=octaves, unit_bytes=1024).blocks]
        return min(sizes), max(sizes)

    assert spread(0) == (1024, 1024)
    least, most = spread(1)
    assert (least >= 1024, 2048 < most <= 4096) == (True, True)
    least, most = spread(6)
    assert (least < 2048, most > 65536 * 0.8) == (True, True)


def test_sizes_are_on_the_grid() -> None:
    for grid in (4, 512, 3000):
        instance = draw(Inception(modules=3, branches=3), grid_bytes=grid, unit_bytes=1000)
        assert {block.bytes % grid for block in instance.blocks} == {0}
        assert {a.workspace_bytes % grid for task in instance.tasks for a in task.algorithms} == {0}


def test_workspaces_buy_time() -> None:
    tasks = draw(Chain(layers=100), fast_percent=25, gain_percent=40, workspace_percent=50).tasks
    fast = [task for task in tasks if len(task.algorithms) == 2]
    assert 30 < len(fast) < 70
    for task in fast:
        plain, quick = task.algorithms
        assert quick.duration_ns == plain.duration_ns * 60 // 100
        assert quick.workspace_bytes > plain.workspace_bytes == 0


def test_shares_of_recomputable_tasks_inputs_and_engines() -> None:
    instance = draw(Chain(layers=200), recomputable_percent=30, host_input=True, engines="single")
    recomputable = [task.name for task in instance.tasks if task.recomputable]
    assert 40 < len(recomputable) < 80
    assert all(name.startswith("F") for name in recomputable)
    assert instance.blocks[0].initially == "host"
    assert instance.engines == "single"


def test_only_half_of_a_u_s_bytes_are_left_a_level_below() -> None:
    instance = draw(UShaped(levels=2, width=1), octaves=0, unit_bytes=4096)
    assert [b.bytes for b in instance.blocks if b.name.startswith("Y")] == [4096, 2048, 1024, 2048, 4096]


def test_the_largest_knobs_stay_within_a_file_s_range() -> None:
    instance = draw(Chain(layers=4), unit_bytes=2**30, octaves=12, unit_ns=2**30, time_octaves=12)
    assert max(block.bytes for block in instance.blocks) <= LARGEST
    assert max(task.algorithms[0].duration_ns for task in instance.tasks) <= LARGEST


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_told_apart_by_pass(family: str) -> None:
    instance = draw(FAMILIES[family])
    found = layer_steps(instance)
    assert [unit.tasks for unit in found] == [(k,) for k in range(len(instance.tasks))]
    for unit, task in zip(found, instance.tasks, strict=True):
        assert unit.direction == ("backward" if task.name.startswith("B") else "forward")
        assert task.name[1:] == unit.layer[1:]
    assert {unit.direction for unit in layer_steps(draw(FAMILIES[family], backward=False))} == {"forward"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["modnn", "vdnn-all-m"])
def test_methods_solve_what_is_drawn(family: str, method: str) -> None:
    result = solve(draw(FAMILIES[family], slack_percent=80), method)
    assert result.status in (Status.OPTIMAL, Status.FEASIBLE)


def test_another_bit_generator_is_refused() -> None:
    with pytest.raises(PebblerError, match="PCG64"):
        generate("x", Chain(layers=2), Knobs(), np.random.Generator(np.random.Philox(0)))
