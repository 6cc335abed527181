"""What exactness costs: bounds of FLOW's linear programs, as a solver says and as certificates prove them.

``python docs/scripts/certificates.py`` prints the table of docs/certificates.md; ``--write FILE`` puts
it into the page, and ``--most CHECKPOINTS`` leaves finer models out.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.sweeps.problems import WorkloadProblem
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import in_pages, with_recomputation
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound, best_bound
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import FlowModel, flow_model, proven
from pebbler.solver.flow.recompute import RecomputeModel, proven_with_reruns, recompute_model
from pebbler.solver.linear.facade import solve_linear
from pebbler.validate.bounds.certificate import Certificate, check_certificate

CELLS = (
    WorkloadProblem(Workload("vgg16", 256, "K40"), "1.05xMmin"),
    WorkloadProblem(Workload("vgg16", 64, "V100"), "1.05xMmin"),
    WorkloadProblem(Workload("resnet152", 64, "V100"), "1.05xMmin"),
    WorkloadProblem(Workload("vgg416", 32, "V100"), "1.05xMmin"),
    WorkloadProblem(Workload("resnet1517", 32, "V100"), "1.05xMmin"),
)
VARIANTS = (
    ("tasks may run again", with_recomputation, CELLS[0]),
    ("tasks may run again", with_recomputation, CELLS[1]),
    ("in whole pages", in_pages, CELLS[-1]),
)
"""Variants of cells, for paged memory or with second runs: what they are, and how they are made."""

CHECKPOINTS = (16, 64, 256)
BEGIN, END = "<!-- begin certificates -->\n", "<!-- end certificates -->\n"
LIMIT = 300.0
"""Seconds for a linear program."""


@dataclass(frozen=True, slots=True)
class Point:
    """One linear program.

    Attributes
    ----------
    checkpoints
        Their number.
    word_ns
        What the solver says, in floating point, before any safety margin.
    certificate
        What its dual values prove.
    solve_seconds, certify_seconds, check_seconds
        Wall times: to build and solve the model; to turn its duals into a bound with its certificate; and to
        prove that anew.
    """

    checkpoints: int
    word_ns: float
    certificate: Certificate
    solve_seconds: float
    certify_seconds: float
    check_seconds: float

    @property
    def loss(self) -> float:
        """What exactness takes from the solver's word, relative to it; negative where it adds something."""
        return 1 - self.certificate.lower_bound_ns / self.word_ns


def measure(instance: Instance, count: int) -> Point | None:
    """Solve a linear program and certify its bound; None where the solver did not end in time.

    Raises
    ------
    AssertionError
        When the certificate does not hold.
    """
    began = time.perf_counter()
    checkpoints = hot_checkpoints(instance, count)
    again = any(task.recomputable for task in instance.tasks)
    model: FlowModel | RecomputeModel = (
        recompute_model(instance, checkpoints, "none") if again else flow_model(instance, checkpoints, "none")
    )
    result = solve_linear(model.linear, time_limit=LIMIT)
    solved = time.perf_counter()
    bound: Bound | None = (
        proven(instance, result, model, "flow-lp-highs")
        if isinstance(model, FlowModel)
        else proven_with_reruns(instance, result, model, "none", "highs")
    )
    certified = time.perf_counter()
    if result.status != "optimal" or bound is None or bound.certificate is None:
        return None
    report = check_certificate(instance, bound.certificate)
    if not report.valid:
        raise AssertionError(f"{instance.name}: {report.reasons[0]}")
    return Point(
        checkpoints=len(model.checkpoints),
        word_ns=result.bound * model.nanoseconds,
        certificate=bound.certificate,
        solve_seconds=solved - began,
        certify_seconds=certified - solved,
        check_seconds=time.perf_counter() - certified,
    )


def instances() -> Iterator[tuple[str, Instance]]:
    """Yield what is measured, by name."""
    for cell in CELLS:
        (instance,) = cell.instances()
        yield cell.name, instance
    for told, variant, cell in VARIANTS:
        (instance,) = cell.instances()
        yield f"{cell.name}, {told}", variant(instance)


def table(named: Iterable[tuple[str, Instance]], counts: Sequence[int]) -> str:
    """The measurements as Markdown."""
    rows: list[tuple[str, ...]] = []
    for told, instance in named:
        exact = best_bound(instance)
        name = f"{told}, {len(instance.tasks)} tasks"
        rows.append((name, exact.bound_by, "", format_time(exact.lower_bound_ns), *[""] * 5))
        for count in sorted({min(count, len(instance.tasks)) for count in counts}):
            point = measure(instance, count)
            rows.append(
                ("", f"LP, {count} checkpoints", f"none in {LIMIT:.0f} s") if point is None else _cells(point)
            )
    header = ("instance", "argument", "solver's word", "certified", "loss")
    return markdown((*header, "solve", "certify", "check", "certificate"), rows)


def _cells(point: Point) -> tuple[str, ...]:
    return (
        "",
        f"LP, {point.checkpoints} checkpoints",
        format_time(round(point.word_ns)),
        format_time(point.certificate.lower_bound_ns),
        f"{1e6 * point.loss:.4f}",
        f"{point.solve_seconds:.2f} s",
        f"{point.certify_seconds:.2f} s",
        f"{point.check_seconds:.2f} s",
        format_size(len(encode(point.certificate))),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page")
    parser.add_argument("--most", type=int, default=max(CHECKPOINTS), metavar="CHECKPOINTS")
    options = parser.parse_args(arguments)
    counts = [count for count in CHECKPOINTS if count <= options.most]
    versions = ", ".join(f"{name} {version(name)}" for name in ("ortools", "numpy"))
    note = f"Python {platform.python_version()}, {versions}; two cores that other work was sharing.\n\n"
    publish(note + table(instances(), counts), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
