"""The method of one model: what it finds and proves by itself, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler.instances.instance import Instance
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import Chain
from pebbler.solver.solve import solve
from pebbler.validate.check import check

from ...samples import mostly_slow


@pytest.mark.parametrize("solver", mostly_slow(["highs", "scip"], ["highs"]))
def test_it_solves_what_exhaustive_search_solves(solver: str, tight: Instance) -> None:
    best = solve(tight, "brute-force")
    found = solve(tight, "milp", solver=solver)
    assert found.schedule is not None
    assert check(tight, found.schedule).valid
    assert (found.makespan_ns, found.stopped_by) == (best.makespan_ns, "done")
    assert found.schedule.method == "milp"


def test_it_refuses_what_one_model_cannot_hold(tight: Instance) -> None:
    again = replace(tight, tasks=tuple(replace(task, recomputable=True) for task in tight.tasks))
    large = generate("large", Chain(layers=501), Knobs(), np.random.default_rng(0))
    assert "take flow-recompute" in solve(again, "milp").stopped_by
    assert solve(large, "milp").stopped_by == "milp: 1003 tasks are too many for one model; take flow"
    assert solve(tight, "milp", solver="glop").stopped_by == "milp: solver 'glop' takes no whole variables"


def test_a_model_that_is_not_solved_in_time_has_no_schedule(tight: Instance) -> None:
    found = solve(tight, "milp", time_limit=0.0)
    assert (found.schedule, found.stopped_by) == (None, "time limit")
