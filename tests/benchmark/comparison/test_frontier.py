"""Frontiers: monotone both ways, proven point by point, and taken up again where they were left."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from chain import chain_instance
from pebbler.benchmark.comparison.frontier import Frontier, Sweep
from pebbler.benchmark.output.machine import made_here
from pebbler.heuristics.methods import Answer, Limits, Method, Refusal
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import read_instance, sha256_of, write_document
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, unlimited_peak, with_budget
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.validate.bounds.certificate import check_certificate, read_certificate
from pebbler.validate.check import check
from pebbler.validate.schedule import read_schedule

from ...samples import counts

Toys = Callable[..., None]


@pytest.fixture(scope="module")
def vgg() -> Instance:
    return Workload("vgg16", 64, "v100").instance("1.05xMmin")


def monotone(frontier: Frontier) -> bool:
    times = [point.makespan_ns for point in frontier.points if point.makespan_ns is not None]
    bounds = [point.lower_bound_ns for point in frontier.points]
    proven = [point.certified_lower_bound_ns for point in frontier.points]
    budgets = [point.budget_bytes for point in frontier.points]
    return budgets == sorted(set(budgets)) and all(
        values == sorted(values, reverse=True) for values in (times, bounds, proven)
    )


@pytest.mark.parametrize("spacing", ["adaptive", pytest.param("even", marks=pytest.mark.slow)])
def test_a_frontier_is_monotone_and_every_point_is_proven(
    spacing: str, vgg: Instance, tmp_path: Path
) -> None:
    sweep = Sweep(vgg, "modnn", tmp_path)
    found = sweep.run(6, spacing)  # type: ignore[arg-type]
    assert monotone(found)
    assert len(found.points) == 6
    assert found.points[0].budget_bytes == least_budget(vgg)
    assert found.points[-1].budget_bytes == unlimited_peak(vgg)
    assert found.points[0].makespan_ns > found.points[-1].makespan_ns  # type: ignore[operator]
    for point in found.points:
        file = sweep.path("instance.json", point.budget_bytes)
        instance = read_instance(file)
        assert instance == with_budget(vgg, point.budget_bytes)
        assert point.solved_at_bytes is not None
        served_by = read_schedule(sweep.path("schedule.json", point.solved_at_bytes), instance)
        assert served_by.makespan_ns == point.makespan_ns
        assert check(instance, served_by).valid
        certificate = read_certificate(sweep.path("certificate.json", point.budget_bytes))
        assert check_certificate(instance, certificate, instance_sha256=sha256_of(file)).valid
    table = list(csv.DictReader(io.StringIO(sweep.path("csv").read_text())))
    assert [int(row["makespan_ns"]) for row in table] == [point.makespan_ns for point in found.points]
    assert format_time(found.points[0].makespan_ns or 0) in str(found)


def test_a_schedule_for_less_serves_more_and_a_bound_for_more_holds_for_less(
    tight: Instance, toys: Toys, swap: Method, tmp_path: Path
) -> None:
    """The method has no schedule where there is most memory, and a good bound there only."""

    def worse(instance: Instance, limits: Limits) -> Answer:
        if instance.budget_bytes < unlimited_peak(instance):
            return swap(instance, limits)
        return Answer(None, "lost", 8_000_000, "a proof")

    toys(worse=worse)
    found = Sweep(tight, "worse", tmp_path).run(4, "even")
    assert monotone(found)
    *others, last = found.points
    assert (last.own_makespan_ns, last.stopped_by) == (None, "lost")
    assert last.makespan_ns == min(point.own_makespan_ns or 0 for point in others)
    assert last.solved_at_bytes in [point.budget_bytes for point in others]
    assert all((point.lower_bound_ns, point.bound_by) == (8_000_000, "a proof") for point in found.points)
    assert all(point.own_lower_bound_ns < 8_000_000 for point in others)


@pytest.mark.parametrize("few", counts(2, 8))
def test_no_point_contradicts_exhaustive_search(few: int, tmp_path: Path) -> None:
    plain = [i for i in map(chain_instance, range(40)) if not any(t.recomputable for t in i.tasks)]
    for instance in plain[:few]:
        found = Sweep(instance, "modnn", tmp_path / instance.name, time_limit=0.02).run(3)
        assert monotone(found)
        for point in found.points:
            schedule = brute_force(with_budget(instance, point.budget_bytes), "divisible")
            if schedule is not None:
                assert point.certified_lower_bound_ns <= point.lower_bound_ns <= schedule.makespan_ns
                assert point.makespan_ns is None or schedule.makespan_ns <= point.makespan_ns


def test_what_is_there_is_not_solved_again(tight: Instance, toys: Toys, swap: Method, tmp_path: Path) -> None:
    seen: list[int] = []

    def counted(instance: Instance, limits: Limits) -> Answer:
        seen.append(instance.budget_bytes)
        return swap(instance, limits)

    toys(counted=counted)
    once = Sweep(tight, "counted", tmp_path).run(3, "even")
    assert len(seen) == 3
    assert Sweep(tight, "counted", tmp_path).run(3, "even") == once
    assert len(seen) == 3
    more = Sweep(tight, "counted", tmp_path).run(5, "even")
    assert len(more.points) == 5
    assert len(seen) == 5
    with pytest.raises(PebblerError, match="is of something else or was asked otherwise"):
        Sweep(tight, "counted", tmp_path, seed=1)


def test_ctrl_c_keeps_what_is_done(tight: Instance, toys: Toys, swap: Method, tmp_path: Path) -> None:
    budgets: list[int] = []

    def cut(instance: Instance, limits: Limits) -> Answer:
        budgets.append(instance.budget_bytes)
        if len(budgets) == 2:
            raise KeyboardInterrupt
        return swap(instance, limits)

    toys(cut=cut)
    with pytest.raises(KeyboardInterrupt):
        Sweep(tight, "cut", tmp_path).run(3, "even")
    found = Sweep(tight, "cut", tmp_path).run(3, "even")
    assert len(found.points) == 3
    assert len(budgets) == 4  # the one that was cut is solved again, and the first is not


def test_the_interrupted_answer_of_a_method_is_kept_and_improved_later(
    tight: Instance, toys: Toys, swap: Method, tmp_path: Path
) -> None:
    def told(instance: Instance, limits: Limits) -> Answer:
        return replace(swap(instance, limits), stopped_by="interrupted")

    toys(told=told)
    with pytest.raises(KeyboardInterrupt):
        Sweep(tight, "told", tmp_path).run(3, "even")
    sweep = Sweep(tight, "told", tmp_path)
    assert sweep.path("schedule.json", least_budget(tight)).exists()
    toys(told=swap)
    assert len(sweep.run(3, "even").points) == 3


def test_where_nothing_is_left_to_learn_it_ends(
    tight: Instance, toys: Toys, swap: Method, tmp_path: Path
) -> None:
    toys(swap=swap)
    found = Sweep(tight, "swap", tmp_path).run(9)
    assert {point.makespan_ns for point in found.points} == {found.points[0].makespan_ns}
    assert len(found.points) == 2


def test_a_frontier_tells_of_every_machine_that_solved_its_points(vgg: Instance, tmp_path: Path) -> None:
    sweep = Sweep(vgg, "modnn", tmp_path)
    elsewhere = msgspec.structs.replace(sweep.run(2), made=("2026-01-02: a machine",))
    write_document(elsewhere, sweep.path("frontier.json"))
    assert Sweep(vgg, "modnn", tmp_path).run(2).made == elsewhere.made
    assert Sweep(vgg, "modnn", tmp_path).run(3).made == (*elsewhere.made, made_here())


def test_the_same_bytes_twice(vgg: Instance, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        Sweep(vgg, "modnn", tmp_path / folder).run(3)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert len(names) == 11
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_word_above_a_schedule_for_less_bounds_nothing(
    tight: Instance, toys: Toys, swap: Method, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With most memory a method claims more than it needs with least: known first, or afterwards."""

    def boasts(instance: Instance, limits: Limits) -> Answer:
        if instance.budget_bytes < unlimited_peak(instance):
            return swap(instance, limits)
        return Answer(None, "lost", 10**15, "a wrong proof")

    toys(boasts=boasts)
    for spacing in ("even", "adaptive"):  # from the least on, and from the peak on
        folder = tmp_path / spacing
        found = Sweep(tight, "boasts", folder).run(3, spacing)  # type: ignore[arg-type]
        assert monotone(found)
        assert all(point.lower_bound_ns < 10**15 for point in found.points)
        assert found.points[-1].stopped_by.startswith("error: ")
        assert found.points[-1].makespan_ns is not None
        assert "is under the a wrong proof bound 1000000000000000" in caplog.text
        caplog.clear()
        assert Sweep(tight, "boasts", folder).run(2, "even").points == found.points


def test_a_failure_costs_its_point_only(tight: Instance, toys: Toys, swap: Method, tmp_path: Path) -> None:
    def fails(instance: Instance, limits: Limits) -> Answer:
        if instance.budget_bytes == least_budget(instance):
            raise RuntimeError("too tight for me")
        return swap(instance, limits)

    toys(fails=fails)
    first, *others = Sweep(tight, "fails", tmp_path).run(3, "even").points
    assert (first.makespan_ns, first.stopped_by) == (None, "error: RuntimeError: too tight for me")
    assert all(point.makespan_ns is not None for point in others)


def test_where_a_method_refuses_the_reason_is_said(tight: Instance, toys: Toys, tmp_path: Path) -> None:
    def refuses(*_: object) -> Answer:
        raise Refusal("not today")

    toys(refuses=refuses)
    found = Sweep(tight, "refuses", tmp_path).run(3)
    greatest = format_size(found.points[-1].budget_bytes)
    assert f"no schedule up to {greatest}: not today" in " ".join(str(found).split())
