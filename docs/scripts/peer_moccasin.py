#!/usr/bin/env python3
"""MOCCASIN's own program (Bartan et al., ICML 2023), as a program that pebbler calls: `peers` says how.

The environment variable MOCCASIN names a copy of haoming-codes/moccasin, which is run as its ``main.py`` runs
it: a constraint program in two phases on CP-SAT, with at most two stays of what a node makes, lengths that
grow by steps, and 16 threads. Three things are changed, as it was written for an older OR-Tools: lists are
lists, an objective is cleared by the new name, and the two phases have one time limit together. What it
imports and does not use for this need not be there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import networkx as nx
from ortools.sat.python import cp_model

from pebbler.heuristics.methods import Limits
from pebbler.instances.instance import Instance
from peers import run

STAYS = 2
"""How many stays their program allows of what a node makes."""


def graph_of(instance: Instance) -> nx.DiGraph[int]:
    """Return the graph as they have it: nodes are tasks, known by their numbers."""
    graph: nx.DiGraph[int] = nx.DiGraph(name="graph")
    for k, task in enumerate(instance.tasks):
        size = sum(instance.blocks[d].bytes for d in task.outputs)
        graph.add_node(k, cost_cpu=task.algorithms[0].duration_ns, cost_ram=size)
        graph.add_edges_from((instance.writers[d][0], k) for d in task.inputs)
    return graph


def theirs(folder: Path, ends: float) -> Any:
    """Return their module, as today's OR-Tools needs it; all solving is over at a time."""
    for name in ("rockmate", "rockmate.def_op"):
        sys.modules[name] = ModuleType(name)
    for name in ("RunOp", "DelOp", "OpSchedule"):
        setattr(sys.modules["rockmate.def_op"], name, object)
    sys.path.insert(0, str(folder / "src"))
    cp: Any = import_module("moccasin.cp")

    class Solver(cp_model.CpSolver):
        def solve(self, model: cp_model.CpModel, solution_callback: Any = None) -> Any:
            self.parameters.log_search_progress = False
            self.parameters.max_time_in_seconds = max(ends - time.monotonic(), 0.01)
            return super().solve(model, solution_callback)

        Solve = solve
        SolveWithSolutionCallback = solve

    flatten = cp.flatten
    cp.flatten = lambda nested: list(flatten(nested))
    cp.cp_model.CpSolver = Solver
    cp.cp_model.CpModel.Proto = lambda model: SimpleNamespace(ClearField=lambda _: model.clear_objective())
    return cp


def find(instance: Instance, limits: Limits) -> Sequence[int] | None:
    """Return the order that their program finds."""
    assert limits.time_limit is not None
    cp = theirs(Path(os.environ["MOCCASIN"]).absolute(), time.monotonic() + limits.time_limit)
    os.chdir(tempfile.mkdtemp())  # it leaves logs where it is
    with redirect_stdout(sys.stderr):
        found = cp.remat(
            G=graph_of(instance),
            B=instance.pool_bytes,
            C=STAYS,
            topo_order=list(range(len(instance.tasks))),
            timeout=limits.time_limit,
        )
    order: Sequence[int] | None = found.get("schedule")
    return order


if __name__ == "__main__":
    run("moccasin", find)
