"""FLOW on tensors in parts: its bound, the decoding of its solutions, and the method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pebbler.benchmark.comparison.compare import compare
from pebbler.cli.main import main
from pebbler.heuristics.gaps import Guide, gaps_of
from pebbler.heuristics.methods import Limits, Refusal
from pebbler.heuristics.parts import tensors_of, with_parts
from pebbler.heuristics.search.search import LocalSearch
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.suites.tiny import tiny_instance
from pebbler.instances.transforms import split_parts, with_engines, with_inputs_on_clock
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.decode import guide_of
from pebbler.solver.flow.method import flow_parts
from pebbler.solver.flow.model import FlowModel, flow_bound, flow_model
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.result import Status
from pebbler.solver.solve import solve
from pebbler.validate.bounds.certificate import check_certificate
from pebbler.validate.check import check

from ...samples import crossed

WORKLOAD = Workload("alexnet", 512, "v100")
WHOLE = WORKLOAD.instance("1.05xMmin")
PARTS = with_parts(WHOLE)


def lower(instance: Instance, checkpoints: list[int], integrality: str) -> int:
    bound = flow_bound(instance, checkpoints, integrality=integrality)  # type: ignore[arg-type]
    assert bound is not None
    return bound.lower_bound_ns


def test_parts_and_whole_tensors_have_one_bound_where_evictions_are_not_whole() -> None:
    some = hot_checkpoints(WHOLE, 12)
    for integrality in ("none", "algorithms"):
        whole, parts = (lower(instance, some, integrality) for instance in (WHOLE, PARTS))
        assert parts == pytest.approx(whole, rel=1e-4)
    assert lower(PARTS, some, "algorithms") < 0.97 * lower(WHOLE, some, "all")


def decoded(instance: Instance, model: FlowModel, share: float) -> Guide:
    """Decode a solution that only says that this share of every set of gaps is absent at its middle."""
    values = np.zeros(len(model.linear.cost))
    for columns in model.gaps.values():
        values[columns.absent[len(columns.absent) // 2]] = share
    return guide_of(instance, model, values)


def test_so_many_parts_leave_as_are_absent_and_the_last_ones_first() -> None:
    model = flow_model(PARTS, list(range(len(PARTS.tasks))), "algorithms")
    tensors = {d: parts for parts in tensors_of(PARTS) for d in parts}
    assert set(decoded(PARTS, model, 1.0).returning) <= set(gaps_of(PARTS))
    assert decoded(PARTS, model, 0.0).returning == []
    half = decoded(PARTS, model, 0.5)
    for gaps in model.gaps:
        if len(gaps) < 2:
            continue
        evicted = [gap for gap in gaps if gap in half.returning]
        assert list(gaps)[-len(evicted) :] == evicted
        sizes = {gap: PARTS.blocks[gap[0]].bytes for gap in gaps}
        excess = sum(sizes[gap] for gap in evicted) - sum(sizes.values()) / 2
        assert -0.05 * max(sizes.values()) <= excess <= max(sizes.values())
    assert any(len(parts) > 3 for parts in tensors.values())
    assert half.algorithms == decoded(PARTS, model, 0.0).algorithms


def test_a_solution_leads_to_a_schedule() -> None:
    some = hot_checkpoints(PARTS, 16)
    model = flow_model(PARTS, some, "algorithms")
    result = solve_linear(model.linear, time_limit=20)
    assert result.values is not None
    search = LocalSearch(PARTS, "paged")
    before = search.makespan_ns
    search.offer(guide_of(PARTS, model, result.values))
    schedule = search.schedule("decoded")
    assert schedule is not None
    assert check(PARTS, schedule).reasons == ()
    assert before is None or schedule.makespan_ns <= before
    assert schedule.makespan_ns < 1.3 * lower(PARTS, some, "none")


@pytest.mark.parametrize("memory", ["paged", "contiguous"])
def test_schedule_bound_and_certificate_belong_together(memory: str) -> None:
    result = solve(PARTS, "flow-parts", memory=memory, time_limit=0.2)  # type: ignore[arg-type]
    assert result.schedule is not None
    assert result.schedule.method == "flow-parts"
    assert result.makespan_ns is not None
    assert result.certified_lower_bound_ns <= result.lower_bound_ns <= result.makespan_ns
    assert result.certificate is not None
    assert check_certificate(PARTS, result.certificate).reasons == ()
    rule = solve(PARTS, "modnn-parts", memory=memory).makespan_ns  # type: ignore[arg-type]
    assert rule is None or result.makespan_ns <= rule


@pytest.mark.parametrize("seeds", [range(1, 22, 20), pytest.param(range(30), marks=pytest.mark.slow)])
def test_tiny_instances_in_parts_between_bound_and_brute_force(seeds: range) -> None:
    solved = 0
    for seed in seeds:
        instance = tiny_instance(seed)
        if not any(block.tensor for block in instance.blocks) or any(t.recomputable for t in instance.tasks):
            continue
        try:
            answer = flow_parts(instance, Limits(time_limit=0.1))
        except Refusal:
            continue
        try:
            best = brute_force(instance, most_states=10_000)
        except TimeoutError:
            continue
        assert answer.lower_bound_ns is not None
        if answer.schedule is not None:
            assert best is not None
            assert check(instance, answer.schedule).reasons == ()
            assert answer.lower_bound_ns <= best.makespan_ns <= answer.schedule.makespan_ns
            solved += 1
    assert solved >= 0.1 * len(seeds)


VARIANTS = {
    "one engine": with_engines(PARTS, "single"),
    "inputs on the clock": with_inputs_on_clock(PARTS),
    "weights as blocks": with_parts(replace(WORKLOAD, weights_as_blocks=True).instance("1.05xMmin")),
}


@pytest.mark.parametrize(("name", "memory"), crossed(tuple(VARIANTS), ("paged", "contiguous"), of=2))
def test_every_variant_has_a_checked_schedule_above_its_bound(name: str, memory: str) -> None:
    instance = VARIANTS[name]
    result = solve(instance, "flow-parts", memory=memory, time_limit=0.2)  # type: ignore[arg-type]
    assert result.schedule is not None
    assert check(instance, result.schedule).reasons == ()
    assert result.optimality_gap is not None
    assert result.optimality_gap >= 0
    streams = {operation.stream for operation in result.schedule.operations}
    assert ("copy" in streams) == (name == "one engine")
    moved = {operation.block for operation in result.schedule.operations if operation.kind == "prefetch"}
    first = {"inputs on the clock": "X(", "weights as blocks": "W("}.get(name, "Y(")
    assert any(instance.blocks[d or 0].name.startswith(first) for d in moved)


def test_one_engine_costs_no_less_and_inputs_on_the_clock_cost_their_load() -> None:
    some = hot_checkpoints(PARTS, 12)
    plain, single, inputs = (
        lower(instance, some, "none")
        for instance in (PARTS, VARIANTS["one engine"], VARIANTS["inputs on the clock"])
    )
    assert single >= plain
    load = max(block.prefetch_ns or 0 for block in PARTS.blocks if block.initially == "device")
    assert inputs > plain + load // 2


def test_whole_tensors_are_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PebblerError, match=r"its tensors are whole, .* --parts auto, or take flow"):
        flow_parts(WHOLE, Limits())
    path = tmp_path / "whole.json"
    write_instance(WHOLE, path)
    assert main(["solve", str(path), "--method", "flow-parts", "-o", str(tmp_path / "out.json")]) == 2
    assert "--parts" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_a_comparison_sets_parts_beside_their_own_bound() -> None:
    found = compare(WHOLE, ["flow-parts", "modnn"], time_limit=0.2, memory="paged")
    parts, whole = found.as_dict()["results"]
    assert (parts["variant"], whole["variant"]) == ("parts", "whole")
    assert parts["lower_bound_ns"] <= parts["makespan_ns"] < whole["makespan_ns"]
    assert parts["lower_bound_ns"] < whole["lower_bound_ns"] == found.bound.lower_bound_ns
    assert "flow-parts on alexnet-b512-parts, lower bound" in str(found)


def test_a_budget_of_a_byte_and_of_a_terabyte() -> None:
    with pytest.raises(PebblerError, match="under the minimum"):
        solve(with_budget(PARTS, 1), "flow-parts")
    wide = solve(with_budget(PARTS, 10**12), "flow-parts", time_limit=5)
    assert wide.status is Status.OPTIMAL
    assert "optimal (done; proven in exact arithmetic)" in str(wide)


def test_parts_that_are_not_alike_are_bounded_but_not_placed() -> None:
    instance = split_parts(WHOLE, 40 * 2**20)
    d = tensors_of(instance)[0][1]
    block = msgspec.structs.replace(instance.blocks[d], prefetch_ns=None)
    other = msgspec.structs.replace(instance, blocks=(*instance.blocks[:d], block, *instance.blocks[d + 1 :]))
    answer = flow_parts(other, Limits(time_limit=0.3))
    assert answer.lower_bound_ns is not None
    assert answer.schedule is None or check(other, answer.schedule).reasons == ()


def test_the_command_line_solves_a_file_in_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "parts.json", tmp_path / "out.json"
    write_instance(PARTS, path)
    solve_it = ["solve", str(path), "--method", "flow-parts", "--memory", "paged", "--time-limit", "0.2s"]
    assert main([*solve_it, "--json", "-o", str(out)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "flow-parts"
    assert main(["check", str(path), str(out)]) == 0
