"""Bounds of linear programs are worked out from dual values, and entries that solvers drop are relaxed."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from pebbler.instances.suites.tiny import twisted
from pebbler.solver.flow.model import flow_model
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.in_process import without_small_entries
from pebbler.solver.linear.model import SMALL, LinearModel, ModelBuilder
from pebbler.solver.linear.verify import verified
from pebbler.solver.scaling import RANGE, proven_ns, time_unit


def programs() -> list[LinearModel]:
    instances = map(twisted, range(12))
    return [flow_model(instance, range(len(instance.tasks)), "none").linear for instance in instances]


def test_dual_values_prove_the_bound_and_no_others_prove_more() -> None:
    rng = Random(1)
    for model in programs():
        result = solve_linear(model)
        assert result.duals is not None
        assert result.objective is not None
        assert result.bound == pytest.approx(result.objective, rel=1e-9, abs=1e-6)
        for _ in range(20):
            noise = np.array([rng.choice((0.0, 1.0)) * rng.gauss(0.0, 0.1) for _ in result.duals])
            other = verified(model, replace(result, duals=result.duals + noise))
            assert other.status == "optimal"
            assert other.bound <= result.objective + 1e-6


def test_a_bound_above_what_dual_values_prove_is_lowered_or_refused() -> None:
    model = programs()[0]
    result = solve_linear(model)
    assert result.duals is not None
    assert result.objective is not None
    nothing = replace(result, values=None, objective=None, status="unknown", bound=1.1 * result.bound)
    assert verified(model, nothing).bound == pytest.approx(result.bound, rel=1e-9)
    assert verified(model, replace(nothing, duals=np.zeros(len(result.duals)))).bound < result.bound
    assert verified(model, replace(nothing, duals=None)).bound == -math.inf
    assert verified(model, replace(result, bound=1.1 * result.bound, duals=None)).status == "error"
    worse = replace(model, cost=model.cost * 2)  # of a dearer problem, whose dual values prove more
    dear = solve_linear(worse)
    assert dear.duals is not None
    assert verified(worse, replace(dear, values=result.values, objective=result.objective)).status == "error"


def test_entries_that_solvers_drop_are_left_out_on_the_side_that_relaxes() -> None:
    builder = ModelBuilder()
    x = builder.columns(3, upper=[1.0, 2.0, np.inf])
    rows = builder.rows(3, lower=[-np.inf, 1.0, 0.0], upper=[1.0, np.inf, 0.0])
    for row in rows:
        builder.entries(row, x, [1.0, SMALL / 2, 1.0])
    builder.entries(rows[2], x[1:2], -SMALL)
    model = without_small_entries(builder.build())
    assert (np.abs(model.values) > SMALL).all()
    assert model.row_upper.tolist() == [1.0, np.inf, SMALL]
    assert model.row_lower.tolist() == [-np.inf, 1.0 - SMALL, 0.0]


def test_noise_makes_no_nanosecond_and_a_nanosecond_is_kept() -> None:
    for compute in (1, 7, 1000, 500_000):
        unit = time_unit(compute, 0)
        for units in (0.0, RANGE, 0.5 * RANGE):
            true = math.ceil(round(units * unit, 6))
            for noise in (-1e-3, 0.0, 1e-6, 1e-3):
                assert proven_ns(units + noise, 100, unit) == true
    assert proven_ns(-1.0, 0, 1.0) == 0


def test_no_time_is_above_what_solvers_tell_apart() -> None:
    assert time_unit(0, 0) * RANGE == 1
    assert time_unit(10**9, 10**11) == 10**9 / RANGE
    assert 6 * 10**9 / time_unit(0, 6 * 10**9) == pytest.approx(1e7)
