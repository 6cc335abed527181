"""How long linear solvers take on FLOW; ``python docs/scripts/linear_solvers.py`` prints a table."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pebbler.benchmark.output.markdown import row
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import Integrality, flow_model
from pebbler.solver.linear.available import list_linear_solvers
from pebbler.solver.linear.model import LinearModel, LinearResult
from pebbler.solver.linear.worker import LinearWorker

SOLVERS = ("highs", "scip", "cbc")
CHECKPOINTS = (16, 32, 64, 128)
LIMIT = 60.0

KINDS: tuple[tuple[str, Integrality], ...] = (("LP", "none"), ("MILP", "all"))


@dataclass(frozen=True, slots=True)
class Point:
    """What a solver did with a model, and the wall time that it took, in a process that had begun before."""

    solver: str
    seconds: float
    result: LinearResult


def measure(model: LinearModel, solvers: Sequence[str], limit: float) -> Iterator[Point]:
    """Solve a model with each solver twice; the second time counts."""
    for solver in solvers:
        with LinearWorker(solver) as worker:
            for _ in range(2):
                began = time.perf_counter()
                worker.start(model, time_limit=limit)
                result = worker.result()
                seconds = time.perf_counter() - began
        yield Point(solver, seconds, result)


def table(instance: Instance, counts: Sequence[int], solvers: Sequence[str], limit: float) -> str:
    """The measurements as Markdown: seconds, and the status where it is not optimal."""
    known = [solver for solver in solvers if solver in list_linear_solvers()]
    lines = [row(("checkpoints", "model", "columns", "rows", *known)), row(["---"] * (4 + len(known)))]
    for count in counts:
        checkpoints = hot_checkpoints(instance, count)
        for kind, integrality in KINDS:
            model = flow_model(instance, checkpoints, integrality).linear
            cells = [_cell(point) for point in measure(model, known, limit)]
            sizes = str(len(model.cost)), str(len(model.row_lower))
            lines.append(row((str(len(checkpoints)), kind, *sizes, *cells)))
    return "\n".join(lines)


def _cell(point: Point) -> str:
    status = point.result.status
    return f"{point.seconds:.2f} s" + ("" if status == "optimal" else f" ({status})")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python docs/scripts/linear_solvers.py", description=__doc__).parse_args()
    print(table(Workload("vgg16", 256, "k40").instance("1.05xMmin"), CHECKPOINTS, SOLVERS, LIMIT))
