"""Bounds that rise with the time that they are given."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from pebbler.cli.main import main
from pebbler.heuristics.methods import Limits, find_method
from pebbler.heuristics.parts import with_parts
from pebbler.heuristics.recomputation.reruns import staying
from pebbler.instances.files import write_instance
from pebbler.instances.suites.tiny import plain, scaled, tiny_instance
from pebbler.instances.transforms import in_parts, with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound, best_bound, compute_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow import method as flow_method
from pebbler.solver.flow import stages as flow_stages
from pebbler.solver.flow.recompute_method import RecomputeRun
from pebbler.solver.flow.stages import (
    Stage,
    Thresholds,
    Tiling,
    finest_integrality,
    refine_bound,
    stages,
    thresholds_for,
    tightens,
)
from pebbler.solver.linear.model import LinearModel, LinearResult
from pebbler.validate.bounds.certificate import check_certificate

from ...samples import mostly_slow, sampled


def test_bounds_only_rise_and_stay_under_schedules() -> None:
    instance = Workload("cifar10_quick", 256, "p100").instance("1.02xMmin")
    seen: list[Bound] = []
    best = refine_bound(instance, 60.0, on_better=seen.append)  # takes a second
    values = [bound.lower_bound_ns for bound in seen]
    assert values == sorted(set(values))
    assert best == seen[-1]
    assert seen[0] == best_bound(instance)
    assert best.bound_by == "flow-milp-highs+unbroken+windows"
    assert not best.certified
    assert best.certificate is not None
    assert best.certificate.bound_by == "flow-lp-highs"
    assert seen[0].lower_bound_ns < best.certified_ns < best.lower_bound_ns
    assert best.lower_bound_ns > 1.01 * seen[0].lower_bound_ns
    schedule = find_method("modnn").call(instance, Limits()).schedule
    assert schedule is not None
    assert best.lower_bound_ns <= schedule.makespan_ns


def test_a_bound_that_meets_a_schedule_is_refined_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    seen: list[Bound] = []
    least = best_bound(instance).lower_bound_ns
    monkeypatch.setattr(
        flow_stages, "solve_linear", lambda *_, **__: pytest.fail("there is nothing to solve")
    )
    best = refine_bound(instance, 60.0, shortest_ns=least + 1, on_better=seen.append)
    assert len(seen) == 1
    assert best.lower_bound_ns == least


@pytest.mark.parametrize("seed", mostly_slow(range(25), range(0, 25, 5)))
def test_refined_bounds_of_tiny_instances(seed: int) -> None:
    instance = tiny_instance(seed)
    schedule = brute_force(instance, "divisible")
    refined = refine_bound(instance, 5.0)
    assert refined.lower_bound_ns >= best_bound(instance).lower_bound_ns
    if schedule is not None:
        assert refined.lower_bound_ns <= schedule.makespan_ns
    assert compute_bound(instance).lower_bound_ns <= refined.certified_ns <= refined.lower_bound_ns


@pytest.mark.parametrize("seeds", sampled(range(6), range(0, 60, 60)))
def test_in_paged_memory_bounds_count_whole_pages(seeds: range) -> None:
    """Blocks of 7/10 of a page and its multiples: pages make the optimum longer, and the bound follows."""
    higher = tight = certified = 0
    for seed in seeds:
        tiny = tiny_instance(seed)
        if in_parts(tiny):
            continue
        instance = scaled(tiny, size=7 * PAGE_BYTES // (10 * tiny.alignment_bytes))
        bound = refine_bound(instance, 5.0, memory="paged")
        plain = refine_bound(instance, 5.0)
        assert bound.lower_bound_ns >= best_bound(instance, memory="paged").lower_bound_ns
        assert bound.certificate is not None
        assert check_certificate(instance, bound.certificate).valid
        if bound.certificate.page_bytes is UNSET:
            assert not bound.bound_by.endswith("+pages") or not bound.certified
        else:
            assert bound.certificate.bound_by.endswith("+pages")
            certified += 1
        schedule = brute_force(instance, "paged")
        if schedule is None:
            continue
        assert bound.lower_bound_ns <= schedule.makespan_ns, seed
        higher += bound.lower_bound_ns > plain.lower_bound_ns
        tight += bound.lower_bound_ns == schedule.makespan_ns
    assert min(higher, tight, certified) >= len(seeds) / 6


def test_no_time_leaves_the_exact_bounds() -> None:
    instance = Workload("resnet34", 64, "k40").instance("50%")
    assert refine_bound(instance, 0.0) == best_bound(instance)


def test_after_the_time_limit_no_model_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver may take longer than it is given: then its model is the last one."""
    solved: list[float] = []

    def late(_model: LinearModel, *, time_limit: float, **_options: Any) -> LinearResult:
        solved.append(time_limit)
        time.sleep(1.2)
        return LinearResult("unknown", None, None, -math.inf, "late")

    monkeypatch.setattr(flow_stages, "solve_linear", late)
    refine_bound(Workload("resnet34", 64, "k40").instance("50%"), 1.0)
    assert len(solved) == 1


def test_a_coarse_model_proves_most_of_it_in_little_time() -> None:
    """Of a step of GPT-2 medium that may run tasks again, 6 checkpoints take longer than the time limit."""
    step = {"steady": True, "optimizer": "adamw", "precision": "bf16"}
    instance = with_recomputation(Workload("gpt2_medium", 2, "a100", **step).instance("Mmin+10%"))
    bound = refine_bound(instance, 5.0)
    assert bound.lower_bound_ns > 4 * best_bound(instance).lower_bound_ns


def test_the_command_line_says_who_proved_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cifar10.instance.json"
    write_instance(Workload("cifar10_quick", 256, "p100").instance("1.02xMmin"), path)
    assert main(["bound", str(path), "--time-limit", "60s", "--json"]) == 0
    refined = json.loads(capsys.readouterr().out)
    assert main(["bound", str(path), "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert refined["lower_bound_ns"] > exact["lower_bound_ns"]
    assert (refined["certified"], exact["certified"]) == (False, True)
    assert refined["bound_by"].startswith("flow-")
    assert exact["lower_bound_ns"] < refined["certified_lower_bound_ns"] < refined["lower_bound_ns"]


def named(stage: Stage | Tiling) -> tuple[int, str]:
    if isinstance(stage, Tiling):
        return stage.length, "ends" if stage.ends else "windows"
    return stage.count, f"{stage.integrality}+windows" if stage.windowed else stage.integrality


def test_stages_go_from_coarse_to_fine_and_end_in_time() -> None:
    whole = list(islice(stages(300, time.monotonic() + 1000), 40))
    assert list(map(named, whole)) == [
        (12, "none"),
        (12, "windows"),
        (24, "windows"),
        *((count, "none") for count in (32, 32, 32, 32, 48, 48, 48, 48)),
        (36, "algorithms+windows"),
        (96, "ends"),
        (144, "ends"),
        (36, "algorithms+windows"),
        *((count, "all+windows") for count in (16, 22, 30, 40, 54, 72, 96, 128, 171, 228)),
        (48, "windows"),
        *((count, "none") for count in (72, 108, 162, 243, 300)),
        (300, "none+windows"),
        (48, "algorithms+windows"),
        (300, "all+windows"),
    ]
    assert isinstance(whole[0], Stage)
    assert 590 < whole[0].time_limit <= 600  # if it is not solved, no other is
    leading = [stage.count for stage in whole if isinstance(stage, Stage) and stage.leads]
    assert leading == [32, 32, 32, 32, 48, 48, 48, 48]
    assert all(0 < stage.time_limit <= 1000 for stage in whole)
    assert whole[-1].time_limit > 900
    assert list(map(named, stages(40, time.monotonic() + 1000))) == [
        (12, "windows"),
        *((count, how) for count in (16, 19, 23, 27, 32, 38, 40) for how in ("none", "all+windows")),
    ]
    assert list(map(named, stages(10, time.monotonic() + 1000))) == [(10, "none"), (10, "all+windows")]
    linear = list(stages(40, time.monotonic() + 1000, "none"))
    assert list(map(named, linear)) == [(count, "none") for count in (*[16] * 4, *[24] * 4, *[36] * 4, 40)]
    once = list(stages(40, time.monotonic() + 1000, "none", rounds=1))
    assert list(map(named, once)) == [(16, "none"), (24, "none"), (36, "none"), (40, "none")]
    assert not any(stage.unbroken for stage in (*whole, *linear) if isinstance(stage, Stage))
    few = [stage for stage in stages(40, time.monotonic() + 1000) if isinstance(stage, Stage)]
    assert all(stage.unbroken == (stage.integrality == "all") for stage in few)
    assert all(stage.leads == (stage.integrality == "all") for stage in few)
    assert list(stages(300, time.monotonic())) == []
    shorter = map(named, stages(200, time.monotonic() + 1000))
    assert [length for length, what in shorter if what == "ends"] == [96]
    in_parts = islice(stages(300, time.monotonic() + 1000, "algorithms"), 40)
    assert not any(what == "ends" for _, what in map(named, in_parts))


def test_a_search_between_linear_programs_does_not_count_as_their_time() -> None:
    def counts(**options: Callable[[], float]) -> list[int]:
        found = []
        for stage in stages(40, time.monotonic() + 2.0, "none", rounds=1, **options):
            assert isinstance(stage, Stage)
            found.append(stage.count)
            time.sleep(0.1)
        return found

    assert counts() == [16]
    assert counts(clock=lambda: 0.0) == [16, 24, 36, 40]


def test_a_method_with_a_search_tells_stages_of_its_models_time_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took: list[tuple[float, float]] = []

    def timed(*arguments: Any, priced: bool) -> Iterator[Stage]:
        assert not priced
        clock: Callable[[], float] = arguments[-1]
        began, since = time.monotonic(), clock()
        yield Stage(4, "none", 1.0)
        took.append((time.monotonic() - began, clock() - since))

    class Linear(RecomputeRun):
        thresholds = Thresholds(large=3)

    monkeypatch.setattr(flow_method, "stages", timed)
    instance = with_recomputation(Workload("siamese", 64, "v100").instance("1.1xMmin"))
    Linear(instance, Limits(3.0)).answer()
    [(wall, models)] = took
    assert 0 < models < 0.6 * wall  # the search takes its turn, a good part of a second


def test_what_is_whole_depends_on_parts_and_on_second_runs_of_many_tasks() -> None:
    few, many = (Workload(*net, "v100").instance("85%") for net in (("alexnet", 64), ("resnet50", 8)))
    assert [finest_integrality(one, "highs") for one in (few, many)] == ["all", "all"]
    assert finest_integrality(with_parts(few), "highs") == "algorithms"
    again = [finest_integrality(with_recomputation(one), "highs") for one in (few, many)]
    assert again == ["all", "none"]
    assert finest_integrality(few, "glop") == "none"
    alone = staying(with_recomputation(few))
    assert finest_integrality(alone, "highs") == "none"  # whole models are on few checkpoints
    assert [tightens(one, "highs") for one in (few, with_recomputation(few), alone)] == [False, False, True]
    assert not tightens(alone, "glop")


def test_whole_models_on_checkpoints_with_a_price_follow_each_lp() -> None:
    """They may take half as much time again as their LP; after the finest, three tenths are theirs."""

    def asked(seconds: int, most: int | None) -> list[tuple[int, str, int]]:
        clock = count(0, seconds)  # what each LP takes
        until = time.monotonic() + 100.0
        found = stages(400, until, "none", 1, Thresholds(worth=4), lambda: next(clock), priced=True)
        return [
            (stage.count, stage.integrality, round(stage.time_limit))
            for stage in islice(found, most)
            if isinstance(stage, Stage) and stage.priced == (stage.integrality == "all")
            if stage.last == (stage.priced and most is None)
        ]

    assert asked(10, 4) == [(16, "none", 60), (16, "all", 15), (24, "none", 30), (24, "all", 15)]
    assert asked(30, None) == [(16, "none", 60), (16, "all", 30)]


def test_many_tasks_some_of_which_may_run_on_the_host_have_small_lps() -> None:
    step = {"steady": True, "optimizer": "adamw"}
    for network, small in (("gpt2:layers=8", True), ("lenet", False)):
        alone, either = (
            Workload(network, 1, "a100", **step, optimizer_on=side).instance("8GiB")
            for side in ("device", "choose")
        )
        assert thresholds_for(alone) == thresholds_for(alone, Thresholds()) == Thresholds()
        found = thresholds_for(either)
        assert (found != Thresholds()) == small
        assert finest_integrality(either, "highs", found) == ("none" if small else "all")
        assert finest_integrality(alone, "highs", thresholds_for(alone)) == "all"
    begun = islice(stages(200, time.monotonic() + 1000, "none", thresholds=replace(found, huge=100)), 4)
    assert [name for name, _ in map(named, begun)] == [found.coarse, *3 * [found.first_linear]]


def test_without_copies_finer_lps_may_take_more_of_the_time() -> None:
    copying = with_recomputation(Workload("resnet50", 8, "v100").instance("85%"))
    found = [thresholds_for(instance) for instance in (copying, staying(copying))]
    assert found[0] == replace(Thresholds(), first=6, coarse=1, worth=Thresholds().worth_again)
    assert found[1] == replace(found[0], worth=Thresholds().worth_alone)
    begun = time.monotonic()
    for thresholds, more in zip(found, (False, True), strict=True):
        clock = count(0, 15)  # each LP takes a seventh of the time
        asked = stages(400, begun + 100.0, "none", 1, thresholds, lambda clock=clock: next(clock))
        assert [stage for stage, _ in map(named, islice(asked, 4))] == [1, *([6, 9, 13] if more else [6])]


def test_models_of_parts_grow_faster_for_they_take_less_time() -> None:
    assert list(map(named, stages(40, time.monotonic() + 1000, "algorithms"))) == [
        (12, "windows"),
        *((count, how) for count in (16, 32, 40) for how in ("none", "algorithms+windows")),
    ]


@pytest.mark.parametrize("seeds", sampled(range(6, 7), range(0, 42, 7)))
def test_every_model_of_large_programs_on_tiny_ones_is_a_bound(seeds: range) -> None:
    """Windows of one task and more, those of the ends, merged versions, whole algorithms, all copies long."""
    tiny = Thresholds(first=2, large=3, window=1, ends=(2, 3), finding=(2, 3), choosing=2, long=0.0)
    told: set[str] = set()
    for seed in seeds:
        instance = plain(seed)
        schedule = brute_force(instance, "divisible")
        if schedule is None:
            continue
        for thresholds in (tiny, replace(tiny, large=100), replace(tiny, huge=3, first_linear=2)):
            bounds: list[Bound] = []
            refine_bound(instance, 5.0, thresholds=thresholds, on_better=bounds.append)
            assert bounds[-1].lower_bound_ns <= schedule.makespan_ns, (seed, thresholds)
            told |= {bound.bound_by for bound in bounds}
    assert {"flow-milp-highs+unbroken+windows", "flow-partial-highs+windows"} <= told
