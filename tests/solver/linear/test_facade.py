"""Linear models: every solver against enumeration, and the check that no wrong answer passes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest

from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_instance
from pebbler.instances.suites.tiny import plain
from pebbler.instances.workload import Workload
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_model
from pebbler.solver.flow.stages import refine_bound
from pebbler.solver.linear.available import list_linear_solvers, require_linear_solver
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import LinearModel, LinearResult, ModelBuilder
from pebbler.solver.linear.verify import verified
from pebbler.solver.linear.worker import LinearWorker

from ...samples import counts


@pytest.fixture(params=["highs", "scip", "cbc"])
def solver(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name not in list_linear_solvers():
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def cbc() -> str:
    if "cbc" not in list_linear_solvers():
        pytest.skip("cbc is not installed")
    return "cbc"


def knapsack(seed: int, count: int, rows: int, unit: float = 1.0) -> LinearModel:
    """Binary columns of random worth, to be maximised in a few knapsacks that hold half of their sizes."""
    rng = np.random.default_rng(seed)
    builder = ModelBuilder()
    chosen = builder.columns(count, upper=1.0, cost=-rng.integers(900, 1100, count) * unit, integer=True)
    sizes = rng.integers(900, 1100, (rows, count)).astype(float)
    for size, row in zip(sizes, builder.rows(rows, upper=sizes.sum(axis=1) / 2), strict=True):
        builder.entries(row, chosen, size)
    return builder.build()


def optimum(model: LinearModel) -> float:
    """The least objective over all points of a model whose columns are binary, by enumeration."""
    table = np.zeros((len(model.row_lower), len(model.cost)))
    table[model.rows, model.columns] = model.values
    points = np.array(list(product((0.0, 1.0), repeat=len(model.cost))))
    fits = (points @ table.T <= model.row_upper + 1e-9).all(axis=1)
    return float((points[fits] @ model.cost).min())


# --- solvers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", counts(1, 4))
def test_every_solver_finds_the_optimum_and_bounds_it(solver: str, count: int) -> None:
    with LinearWorker(solver) as worker:
        for seed, unit in product(range(count), (1e-6, 1e-2, 1.0, 1e5)):
            model = knapsack(seed, 10, 3, unit)
            worker.start(model)
            result, best = worker.result(60), optimum(model)
            assert result.status == "optimal", result.detail
            assert result.objective == pytest.approx(best, rel=1e-6)
            assert best - 3e-6 * max(abs(best), 1.0) <= result.bound <= best + 1e-9 * abs(best)


def test_every_kind_of_row_and_column(solver: str) -> None:
    """Free and unused columns, ranges, equations, open rows and rows without entries."""
    builder = ModelBuilder()
    x = builder.columns(1, lower=-np.inf, cost=1.0)
    y = builder.columns(1, lower=-5.0, upper=9.0, cost=-1.0, integer=True)
    builder.columns(1, lower=2.0, upper=3.0)
    equal, between, under, opened, _ = builder.rows(
        5, lower=[1.0, -2.5, -np.inf, -np.inf, -1.0], upper=[1.0, 7.5, 30.5, np.inf, 1.0]
    )
    builder.entries(equal, [x[0], y[0]], [1.0, -2.0])
    builder.entries(between, y, 1.0)
    builder.entries(under, [x[0], y[0]], 1.0)
    builder.entries(opened, x, 1.0)
    result = solve_linear(builder.build(), solver=solver)
    assert result.status == "optimal", result.detail
    assert result.objective == pytest.approx(-1.0)
    assert result.values is not None
    assert result.values[:2] == pytest.approx([-3.0, -2.0])
    assert 2.0 <= result.values[2] <= 3.0


@pytest.mark.parametrize("by_an_empty_row", [False, True])
def test_infeasible_is_said(solver: str, by_an_empty_row: bool) -> None:
    builder = ModelBuilder()
    x = builder.columns(2, upper=1.0, integer=True)
    row = builder.rows(1, lower=0.5 if by_an_empty_row else 2.5)
    builder.entries(builder.rows(1, upper=9.0), x, 1.0)
    if not by_an_empty_row:
        builder.entries(row, x, 1.0)
    result = solve_linear(builder.build(), solver=solver)
    assert (result.status, result.objective, result.values) == ("infeasible", None, None)


def test_a_time_limit_is_no_proof(solver: str) -> None:
    """PuLP calls what CBC found within a time limit optimal."""
    model = knapsack(1, 200, 40)
    result = solve_linear(model, solver=solver, time_limit=0.4)
    assert result.status == "feasible", result.detail
    assert result.objective is not None
    relaxed = solve_linear(dataclasses.replace(model, integer=np.zeros(200, dtype=bool)), solver="glop")
    assert relaxed.objective is not None
    assert relaxed.objective - 1e-6 < result.objective
    assert result.bound == -math.inf if solver == "cbc" else relaxed.objective - 1 < result.bound


@pytest.fixture(scope="module")
def sought() -> LinearResult:
    """What HiGHS finds of a large knapsack in a second."""
    return solve_linear(knapsack(2, 200, 40), solver="highs", time_limit=1.0)


def test_a_hint_is_where_a_solver_starts(solver: str, sought: LinearResult) -> None:
    """With no time to do better, it returns the hint, or better; also where only some columns are known."""
    model, best = knapsack(2, 200, 40), sought
    assert best.objective is not None
    assert best.values is not None
    alone = solve_linear(model, solver=solver, time_limit=0.05)
    assert alone.objective is None or alone.objective > best.objective + 1
    hint = np.round(best.values)
    hint[np.flatnonzero(hint == 0)[:5]] = np.nan
    helped = solve_linear(model, solver=solver, time_limit=0.05, hint=hint)
    assert helped.objective is not None
    assert helped.objective <= best.objective + 1e-6


def test_logs_go_to_standard_error(solver: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = knapsack(0, 12, 3)
    solve_linear(model, solver=solver)
    assert capfd.readouterr() == ("", "")
    solve_linear(model, solver=solver, log=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) > 10


THREADS = """
import pulp
from pebbler.solver.linear import pulp as pulp_adapter
from pebbler.solver.linear.model import ModelBuilder
builder = ModelBuilder()
builder.columns(1, upper=3.0, cost=-1.0, integer=True)
builder.entries(builder.rows(1, upper=2.5), 0, 1)
asked, found = [], pulp.getSolver
def noted(name, **options):
    asked.append(options.get("threads"))
    return found(name, **options)
pulp_adapter.pulp.getSolver = noted
for workers in (1, 2):
    assert pulp_adapter.solve_by_pulp(builder.build(), "cbc", workers=workers).objective == -2.0
    print(asked[-1])
"""


def test_cbc_is_not_asked_for_one_thread_beside_its_own(cbc: str) -> None:
    """With "threads 1" one solve in a hundred waits for ten seconds."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "2"], cbc


def test_cbc_agrees_with_highs_on_flow(cbc: str) -> None:
    instance = Workload("vgg16", 256, "k40").instance("1.05xMmin")
    for integrality in ("none", "all"):
        model = flow_model(instance, hot_checkpoints(instance, 16), integrality).linear  # type: ignore[arg-type]
        ours, other = solve_linear(model), solve_linear(model, solver=cbc)
        assert (ours.status, other.status) == ("optimal", "optimal")
        assert ours.objective is not None
        assert other.objective == pytest.approx(ours.objective, rel=1e-6)
        assert ours.objective * (1 - 3e-6) <= other.bound <= ours.objective


# --- which there are ----------------------------------------------------------------------------------


def test_a_solver_that_is_not_here_is_refused_with_those_that_are() -> None:
    known = list_linear_solvers()
    assert known[:4] == ("highs", "scip", "glop", "pdlp")
    assert len(known) == len(set(known))
    for name in known:
        require_linear_solver(name)
    for attempt in (
        require_linear_solver,
        LinearWorker,
        lambda name: solve_linear(knapsack(0, 3, 1), solver=name),
    ):
        with pytest.raises(
            PebblerError, match=f"'nosuch' is not available here; there are {', '.join(known)}"
        ):
            attempt("nosuch")


@pytest.mark.landing
def test_the_command_line_chooses_and_the_bound_says_who(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.instance.json"
    write_instance(plain(7), path)  # of which only a linear model says enough
    assert main(["bound", str(path), "--time-limit", "60s", "--solver", "scip", "--log", "--json"]) == 0
    out, err = capfd.readouterr()
    assert "-scip" in json.loads(out)["bound_by"]
    assert "presolving" in err
    options = ["--time-limit", "60s", "--solver", "scip", "--log", "--json"]
    assert main(["solve", str(path), "--method", "flow", *options, "-o", str(tmp_path / "o.json")]) == 0
    out, err = capfd.readouterr()
    assert "-scip" in json.loads(out)["bound_by"]
    assert "presolving" in err
    for command in (["bound", str(path), "--time-limit", "1s"], ["solve", str(path), "--method", "modnn"]):
        rest = ["-o", str(tmp_path / "o.json")] if command[0] == "solve" else []
        assert main([*command, *rest, "--solver", "nosuch"]) == 2
        assert "'nosuch' is not available here; there are highs, scip" in capfd.readouterr().err


def test_a_solver_of_linear_models_refines_linearly() -> None:
    instance = Workload("vgg16", 64, "v100").instance("1.05xMmin")
    assert refine_bound(instance, 2.0, solver="glop").bound_by == "flow-lp-glop"


# --- the check ----------------------------------------------------------------------------------------


def answered() -> tuple[LinearModel, LinearResult]:
    model = knapsack(5, 10, 3)
    return model, solve_linear(model)


def test_what_holds_passes_as_it_is() -> None:
    model, result = answered()
    assert verified(model, result) is result
    nothing = LinearResult("unknown", None, None, 3.0, "nothing")
    assert verified(model, nothing) is nothing


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (lambda v: v[:-1], "wrong length"),
        (lambda v: np.where(np.arange(len(v)) == 3, np.nan, v), "not finite"),
        (lambda v: np.where(np.arange(len(v)) == 3, 2.0, v), "column 3 leaves its bounds by 1"),
        (lambda v: np.where(np.arange(len(v)) == 3, -0.01, v), "column 3 leaves its bounds by 0.01"),
        (lambda v: np.where(np.arange(len(v)) == 3, 0.999, v), "column 3 is 0.001 from a whole number"),
        (lambda v: np.ones(len(v)), "row . is broken by"),
    ],
)
def test_a_wrong_point_is_an_error(values: object, says: str) -> None:
    model, result = answered()
    assert result.values is not None
    assert callable(values)
    changed = values(result.values)
    objective = float(model.cost[: len(changed)] @ changed)
    wrong = verified(model, dataclasses.replace(result, values=changed, objective=objective))
    assert (wrong.status, wrong.objective, wrong.values, wrong.bound) == ("error", None, None, -math.inf)
    assert wrong.detail.startswith("highs: optimal, but ")
    assert re.search(says, wrong.detail)


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_are_checked_on_both_sides(sign: int) -> None:
    builder = ModelBuilder()
    x = builder.columns(1, lower=-9.0, upper=9.0)
    builder.entries(builder.rows(1, lower=-2.0, upper=2.0), x, 1.0)
    model = builder.build()
    for value, status in ((2.0, "feasible"), (2.00001, "feasible"), (2.0001, "error")):
        point = LinearResult("feasible", 0.0, np.array([sign * value]), -math.inf, "")
        assert verified(model, point).status == status


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_an_objective_that_is_not_that_of_the_point_is_an_error(unit: float) -> None:
    model = knapsack(5, 10, 3, unit)
    result = solve_linear(model)
    assert result.objective is not None
    for factor, status in ((1 + 1e-8, "optimal"), (1 + 1e-4, "error"), (1 - 1e-4, "error")):
        told = dataclasses.replace(result, objective=result.objective * factor)
        assert verified(model, told).status == status


def test_a_solution_better_than_its_bound_is_an_error() -> None:
    model, result = answered()
    assert result.objective is not None
    above = dataclasses.replace(result, bound=result.objective + 1e-3 * abs(result.objective))
    assert "under its bound" in verified(model, above).detail


def test_random_points_pass_only_where_they_hold() -> None:
    """The check against the definition, on points near enough to pass sometimes."""
    rng, passed = Random(1), 0
    for _ in range(300):
        model = knapsack(rng.randrange(9), 4, 2)
        point = np.array([rng.choice((0.0, 0.0, 0.0, 1.0, 1.0, 0.5)) for _ in range(4)])
        table = np.zeros((2, 4))
        table[model.rows, model.columns] = model.values
        holds = (table @ point <= model.row_upper).all() and (point == np.round(point)).all()
        told = LinearResult("feasible", float(model.cost @ point), point, -math.inf, "")
        assert (verified(model, told).status == "feasible") == holds
        passed += bool(holds)
    assert 50 < passed < 250


def test_shares_in_hundredths_change_nothing_of_the_answer() -> None:
    """A share in every row, with a cost, beside a whole column and with a hint; the bound is the same."""
    builder = ModelBuilder()
    whole = builder.columns(2, upper=1.0, integer=True, cost=3.0)
    share = builder.columns(2, upper=1.0, cost=[1.0, 2.0])
    row = builder.rows(2, lower=[1.25, 0.5])
    builder.entries(row[0], [*whole, *share], 1.0)
    builder.entries(row[1], share, [1.0, -1.0])
    result = solve_linear(builder.build(), hint=np.array([0.0, np.nan, 1.0, 0.25]))
    assert result.status == "optimal"
    assert result.objective == pytest.approx(1.5)
    assert result.bound == pytest.approx(1.5)
    assert result.values is not None
    assert result.values.tolist() == pytest.approx([0.0, 0.0, 1.0, 0.25])
