"""What is known of the suites that are built on demand, and what is open.

``python docs/scripts/known_values.py --write`` reads the best-known values in docs/data/best-known, which
``pebbler best-known SUITE -o docs/data/best-known`` fills. It puts the tables into docs/suites.md, draws the
picture, writes the CSV file, and copies the values to where they are shipped from. `tiny` is shipped with its
schedules, and needs no copy.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.best_known import Registry, best_known, read_registry
from pebbler.instances.files import write_atomically
from pebbler.instances.suites.suite import find_suite, members
from pebbler.instances.units import format_time
from suite_2026 import FOLDER, RECORDED, Known, classes_table, gaps_picture, recorded

SUITES = ("papers", "random", "tight", "tiny", "transformers")
"""Suites with values and no page of their own; `scaling` has instances that no method is meant to close."""
SHIPPED = Path("instances/suites/best_known")
PAGE = Path("docs/suites.md")
PICTURE = Path("docs/images/known-gaps.png")
CSV = FOLDER / "suites.csv"

MARKS = {name: (f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n") for name in ("classes", "open")}


def registry(suite: str) -> Registry:
    """Return the values of a suite: those in the folder, or what is shipped."""
    file = FOLDER / f"{suite}.json"
    return read_registry(file, suite) if file.exists() else best_known(suite)


def known(suites: Sequence[str] = SUITES) -> list[Known]:
    """Return every instance of the suites with what is known of it, all in contiguous memory."""
    found = []
    for suite in suites:
        records = {record.instance: record for record in registry(suite).records}
        names = [member.name for member in members(find_suite(suite))]
        found += [Known(name, suite, "contiguous", records.get(name)) for name in names]
    return found


def open_table(all_known: Sequence[Known]) -> str:
    """Return the instances that are open, the widest gap of each suite first, as Markdown."""
    rows = []
    for suite in dict.fromkeys(one.kind for one in all_known):
        wide = [one for one in all_known if one.kind == suite and one.difficulty == "open"]
        for one in sorted(wide, key=lambda one: (-math.inf if one.gap is None else -one.gap, one.name)):
            record = one.record
            if record is None:
                continue
            reached = "none" if record.makespan_ns is None else format_time(record.makespan_ns)
            gap = "" if one.gap is None else percent(one.gap)
            bound = format_time(record.lower_bound_ns)
            rows.append((f"`{suite}`", f"`{one.name}`", reached, bound, gap, record.method or ""))
    return markdown(("suite", "instance", "best time", "lower bound", "gap", "method"), rows)


def as_csv(all_known: Sequence[Known]) -> str:
    """Return all values as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["suite", "instance", "memory_model", *RECORDED])
    writer.writerows([one.kind, one.name, one.memory, *recorded(one)] for one in all_known)
    return text.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write all that follows from what is known."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/known_values.py", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write page, picture, CSV and what is shipped")
    options = parser.parse_args(arguments)
    all_known = known()
    page = PAGE if options.write else None
    publish(classes_table(all_known), page, *MARKS["classes"])
    publish(open_table(all_known), page, *MARKS["open"])
    if options.write:
        write_atomically(CSV, as_csv(all_known).encode())
        write_atomically(PICTURE, png(gaps_picture(all_known)))
        for suite in SUITES:
            if (values := FOLDER / f"{suite}.json").exists():
                write_atomically(SHIPPED / values.name, values.read_bytes())


if __name__ == "__main__":
    main()
