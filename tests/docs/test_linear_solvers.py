"""The table of linear solvers: a row a model, and solvers that agree."""

from __future__ import annotations

import pytest

from linear_solvers import KINDS, measure, table
from pebbler.instances.workload import Workload
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_model


def test_solvers_agree_and_the_table_has_a_row_a_model() -> None:
    instance = Workload("alexnet", 128, "k40").instance("80%")
    for _, integrality in KINDS:
        model = flow_model(instance, hot_checkpoints(instance, 8), integrality).linear
        first, second = (point.result for point in measure(model, ("highs", "scip"), 20.0))
        assert (first.status, second.status) == ("optimal", "optimal")
        assert first.objective == pytest.approx(second.objective, rel=1e-6)
    head, _, *rows = table(instance, (4, 8), ("highs", "nosuch"), 20.0).splitlines()
    assert head == "| checkpoints | model | columns | rows | highs |"
    assert [row.split(" | ")[1] for row in rows] == ["LP", "MILP"] * 2
    assert all(row.endswith(" s |") for row in rows)
