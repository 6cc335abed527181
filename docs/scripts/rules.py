"""Layrub and the comparators on every instance of six suites: a checked schedule, or the policy's reason.

``python docs/scripts/rules.py --data docs/data/rules.csv`` runs what the file does not have yet;
``--write FILE`` puts the table into docs/comparators.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pebbler.benchmark.comparison.plan import planned
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.methods import Transform, find_method
from pebbler.instances.errors import BudgetError, PebblerError
from pebbler.instances.files import write_atomically
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, list_suites, members
from pebbler.solver.bounds import Bound, compute_bound
from pebbler.solver.solve import solve

SUITES = tuple(suite for suite in list_suites() if not find_suite(suite).frozen)
"""Those that are built on demand; what is known of frozen ones has a page of its own."""

METHODS = (
    "layrub-intra",
    "layrub-inter",
    "layrub-hybrid",
    "layrub-program",
    "caffe-rule",
    "tensorflow-rule",
    "mxnet-rule",
    "geeps-rule",
    "save-on-cpu-rule",
    "memonger-rule",
    "superneurons-rule",
    "knapsack-rule",
)
REASONS = {
    "no place for": "memory",
    r"the \d+ regions take": "regions",
    "the inputs and two buffers": "buffers",
    "nothing can be computed again": "nothing to recompute",
    "keeping only what crosses": "segments",
    "cannot be (offloaded|prefetched)": "copy",
    "is under the minimum": "minimum",
}
"""What a refusal says, and the word for it in the table."""

BEGIN, END = "<!-- begin rules -->\n", "<!-- end rules -->\n"

_log = logging.getLogger(__name__)


class Line(NamedTuple):
    """A line of the file: the time of a round in nanoseconds, or why there is none."""

    suite: str
    instance: str
    tasks: str
    method: str
    outcome: str


def outcomes(instance: Instance, methods: Sequence[str] = METHODS) -> dict[str, str]:
    """Return, per method, the time of a round by a checked schedule, or why there is none.

    Raises
    ------
    AssertionError
        For an invalid schedule, or a refusal without a word: defects.
    """
    made: dict[Transform | None, tuple[Instance, Bound]] = {}
    found: dict[str, str] = {}
    for name in methods:
        info = find_method(name)
        if info.transform not in made:
            (changed,) = planned(info, (instance,))
            made[info.transform] = changed, compute_bound(changed)
        changed, bound = made[info.transform]
        try:
            result = solve(changed, name, bound=bound)
        except BudgetError as error:
            found[name] = word(str(error))
        else:
            found[name] = word(result.stopped_by) if result.makespan_ns is None else str(result.makespan_ns)
    return found


def word(reason: str) -> str:
    """Return the word for a refusal."""
    found = [name for pattern, name in REASONS.items() if re.search(pattern, reason)]
    if not found:
        raise AssertionError(f"no word for the refusal '{reason}'")
    return found[0]


def sweep(suites: Iterable[str], done: Iterable[Line], most_tasks: int) -> Iterator[list[Line]]:
    """Yield the lines of each instance that are not done, instance by instance."""
    have = {(line.suite, line.instance, line.method) for line in done}
    for suite in suites:
        for member in members(find_suite(suite)):
            missing = [name for name in METHODS if (suite, member.name, name) not in have]
            if not missing:
                continue
            instance = member.build()
            if len(instance.tasks) <= most_tasks:
                told, count = outcomes(instance, missing), str(len(instance.tasks))
                yield [Line(suite, member.name, count, name, told[name]) for name in missing]


def read(path: Path) -> list[Line]:
    """Read the file; none yet is an empty one.

    Raises
    ------
    PebblerError
        For a line that has not all its cells.
    """
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    for number, cells in enumerate(rows, start=1):
        if len(cells) != len(Line._fields):
            raise PebblerError(
                f"{path}: line {number} has {len(cells)} cells, not {len(Line._fields)}; remove it"
            )
    return [Line(*cells) for cells in rows[1:]]


def write(lines: Iterable[Line], path: Path) -> None:
    """Write the file, in the order of suites, sizes and methods."""
    order = {method: i for i, method in enumerate(METHODS)}
    ordered = sorted(lines, key=lambda x: (x.suite, int(x.tasks), x.instance, order[x.method]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Line._fields)
    writer.writerows(ordered)
    write_atomically(path, text.getvalue().encode())


def table(lines: Sequence[Line]) -> str:
    """Schedules by method and suite, and the reasons for the rest, as Markdown."""
    suites = [suite for suite in SUITES if any(line.suite == suite for line in lines)]
    sizes = {suite: len({line.instance for line in lines if line.suite == suite}) for suite in suites}
    rows = []
    for method in METHODS:
        own = [line for line in lines if line.method == method]
        solved = Counter(line.suite for line in own if line.outcome.isdigit())
        refused = Counter(line.outcome for line in own if not line.outcome.isdigit())
        told = ", ".join(f"{reason} {count}" for reason, count in refused.most_common())
        rows.append((f"`{method}`", *(str(solved[suite]) for suite in suites), told))
    header = ("method", *(f"{suite} ({sizes[suite]})" for suite in suites), "refusals")
    return markdown(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, and put the table into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/rules.py", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="the results, taken up again"
    )
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--most-tasks", type=int, default=10**6, metavar="N", help="leave larger ones out")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    lines = read(options.data)
    for found in sweep(options.suite or SUITES, tuple(lines), options.most_tasks):
        lines += found
        write(lines, options.data)
        solved = sum(line.outcome.isdigit() for line in found)
        _log.info("%s %s: %s of %s", found[0].suite, found[0].instance, solved, len(found))
    publish(table(lines), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
