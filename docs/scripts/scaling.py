"""How the time that a method takes grows with the depth of the network.

``python docs/scripts/scaling.py`` prints the tables of docs/scaling.md; ``--write FILE`` puts them into
the page, and ``--largest TASKS`` leaves deeper networks out.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pebbler.benchmark.output.markdown import publish, row
from pebbler.heuristics.methods import Limits, Method, Refusal, find_method
from pebbler.instances.instance import Instance
from pebbler.instances.memory import parse_budget, with_budget
from pebbler.instances.workload import Workload

METHODS = ("vdnn-all-m", "vdnn-all-p", "vdnn-dyn", "modnn")
BUDGETS = ("1.5xMmin", "50%")
"""The first stays the same however deep the network is; the second grows with it."""

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
FAMILIES = ("resnet", "vgg")
BEGIN, END = "<!-- begin scaling -->\n", "<!-- end scaling -->\n"

_BATCH = 32


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement.

    Attributes
    ----------
    tasks
        Of the instance.
    seconds
        Processor time of the method; None where it has no schedule.
    baseline
        Processor time of building the instance, in the same run.
    """

    tasks: int
    seconds: float | None
    baseline: float


def network(family: str, tasks: int) -> str:
    """Specification of a network of a family with about so many tasks, at least a few hundred."""
    if family == "resnet":
        blocks = max((tasks - 250) // 19, 2)
        return f"resnet:blocks=3-{blocks // 6 + 1}-{blocks - blocks // 6}-3"
    return "vgg:groups=" + "-".join([str(max(tasks // 20, 2))] * 5)


def measure(family: str, sizes: Sequence[int]) -> Iterator[tuple[str, str, Point]]:
    """Yield budgets, methods and measurements, the smaller networks first."""
    for size in sizes:
        started = time.process_time()
        instance = Workload(network(family, size), _BATCH, "K40").instance(0, check_budget=False)
        baseline = time.process_time() - started
        for budget in BUDGETS:
            tight = with_budget(instance, parse_budget(budget, instance))
            for name in METHODS:
                seconds = _seconds(find_method(name).call, tight)
                yield budget, name, Point(len(instance.tasks), seconds, baseline)


def exponent(points: Sequence[Point]) -> float | None:
    """Exponent of growth: the slope of a straight line through logarithms; None for less than two points."""
    solved = [(point.tasks, point.seconds) for point in points if point.seconds is not None]
    if len(solved) < 2:
        return None
    tasks, seconds = np.log(np.array(solved)).T
    return float(np.polyfit(tasks, seconds, 1)[0])


def _seconds(method: Method, instance: Instance) -> float | None:
    started = time.process_time()
    try:
        method(instance, Limits())
    except Refusal:
        return None
    return time.process_time() - started


def table(sizes: Sequence[int]) -> str:
    """The measurements as Markdown: multiples of the baseline, and exponents."""
    lines = [
        f"Python {platform.python_version()}, numpy {np.__version__}, msgspec {msgspec.__version__}.",
        "",
    ]
    for family in FAMILIES:
        found: dict[tuple[str, str], list[Point]] = {}
        for budget, name, point in measure(family, sizes):
            found.setdefault((budget, name), []).append(point)
        first = next(iter(found.values()))
        lines += [
            row((family, "budget", *(f"{point.tasks} tasks" for point in first), "exponent")),
            row(["---"] * (len(first) + 3)),
            row(("building the instance", "", *(f"{point.baseline:.2f} s" for point in first), "")),
        ]
        for (budget, name), points in found.items():
            slope = exponent(points)
            lines.append(row((name, budget, *map(_cell, points), "" if slope is None else f"{slope:.2f}")))
        lines.append("")
    return "\n".join(lines)


def _cell(point: Point) -> str:
    return "no schedule" if point.seconds is None else f"{point.seconds / point.baseline:.2f} x"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/scaling.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument(
        "--largest", type=int, metavar="TASKS", default=max(SIZES), help="leave larger ones out"
    )
    options = parser.parse_args(arguments)
    tables = table([size for size in SIZES if size <= options.largest])
    publish(tables, options.write, BEGIN, END)


if __name__ == "__main__":
    main()
