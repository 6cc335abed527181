"""Tensors in parts on the core grid: schedules, bounds, and what they gain over whole tensors.

``python docs/scripts/parts.py`` makes the runs that the data file lacks; ``--write FILE`` puts its table
into the page. It can be stopped at any time, and goes on where it was. Runs with whole tensors are those of
the core grid's file.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import core_grid
from core_grid import LONG, TARGETS, by_seconds, hardest
from frontiers_plot import frontiers_picture
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import Found
from pebbler.benchmark.sweeps.results import Run, origins, read_latest
from pebbler.instances.files import write_atomically
from pebbler.instances.units import format_time

METHOD = "flow-parts"
DATA = Path("docs/data/parts.sqlite")
BEGIN, END = "<!-- begin parts -->\n", "<!-- end parts -->\n"

WORST = 0.03
WORST_LONG = 0.015
"""Targets of the paged gaps to the bound of parts: of all cells, and of the hardest with ten minutes."""


def report(runs: Sequence[Run], whole: Sequence[Run]) -> str:
    """Return the tables as Markdown: for each time limit a sentence and the cells.

    Parameters
    ----------
    runs
        With tensors in parts.
    whole
        With whole tensors, where there are some.
    """
    text = "".join(f"- {origin}.\n" for origin in origins(runs))
    limits, beside = by_seconds(runs), by_seconds(whole)
    short = [run for seconds, some in limits.items() if seconds < LONG for run in some]
    for seconds, some in limits.items():
        text += f"\n## {seconds:g} s a cell\n\n{_summary(some, long=seconds >= LONG)}"
        if seconds >= LONG:
            text += _left_out(some, short)
        text += "\n" + _table(some, beside.get(seconds, []))
    return text


def _paged(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.setting.memory_model == "paged"]


def _summary(runs: Sequence[Run], *, long: bool) -> str:
    paged = _paged(runs)
    if not paged:
        return ""
    gaps = [run.found.gap for run in paged]
    limit = WORST_LONG if long else WORST
    verdict = "met" if max(gaps) <= limit else "missed"
    text = (
        f"Paged memory, {len(gaps)} cells: gaps of {percent(median(gaps))} in the median and "
        f"{percent(max(gaps))} at worst ({verdict}: {percent(limit)}); "
        f"{sum(gap <= limit for gap in gaps)} are within that.\n"
    )
    if not long:
        text += f"The hardest, the worst first: {', '.join(hardest(paged))}.\n"
    return text


def _left_out(long: Sequence[Run], short: Sequence[Run]) -> str:
    """Which of the hardest cells got no long run, and how far the short one came."""
    ran = {run.about.problem for run in long}
    gaps = {run.about.problem: run.found.gap for run in _paged(short)}
    left = [f"{cell} ({percent(gaps[cell])})" for cell in hardest(_paged(short)) if cell not in ran]
    if not left:
        return ""
    return f"Of the hardest, without such a run, and with these gaps in less time: {', '.join(left)}.\n"


def _table(runs: Sequence[Run], whole: Sequence[Run]) -> str:
    rows = []
    for cell in dict.fromkeys(run.about.problem for run in runs):
        parts, other = _found(runs, cell), _found(whole, cell)
        bound, bound_by = max(
            (
                (found.lower_bound_ns, found.bound_by)
                for found in parts.values()
                if found.lower_bound_ns and not found.bounds_paged_only
            ),
            default=(None, None),
        )
        known = [
            found.lower_bound_ns
            for found in other.values()
            if found.lower_bound_ns is not None and not found.bounds_paged_only
        ]
        best = max(known, default=None)
        rows.append(
            (
                cell,
                "" if bound is None else f"{format_time(bound)} ({bound_by})",
                *(_time_and_gap(parts.get(memory)) for memory in TARGETS),
                "" if best is None else format_time(best),
                *(_time_and_gap(other.get(memory)) for memory in TARGETS),
                *(_beside(parts.get(memory), best) for memory in TARGETS),
            )
        )
    header = (
        *("cell", "bound of parts", *TARGETS),
        *("bound of whole tensors", *(f"whole, {memory}" for memory in TARGETS)),
        *(f"parts, {memory}, against the bound of whole tensors" for memory in TARGETS),
    )
    return markdown(header, rows)


def _found(runs: Sequence[Run], cell: str) -> Mapping[str, Found]:
    """What runs of a cell have found, by memory model."""
    return {run.setting.memory_model: run.found for run in runs if run.about.problem == cell}


def _time_and_gap(found: Found | None) -> str:
    if found is None:
        return ""
    if found.iteration_ns is None:
        return "no schedule"
    return f"{format_time(found.iteration_ns)} ({percent(found.gap)})"


def _beside(found: Found | None, bound: int | None) -> str:
    """How far a schedule in parts is from the bound of whole tensors; below it where negative."""
    if found is None or found.iteration_ns is None or bound is None:
        return ""
    return f"{(found.iteration_ns - bound) / bound:+.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/parts.py", description=__doc__)
    parser.add_argument(
        "--whole", type=Path, default=core_grid.DATA, metavar="FILE", help=f"default: {core_grid.DATA}"
    )
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw the frontiers in paged memory, as PNG"
    )
    options = core_grid.make_chosen(parser, list(TARGETS), METHOD, DATA, arguments)
    runs, whole = read_latest(options.data), read_latest(options.whole)
    publish(report(runs, whole), options.write, BEGIN, END)
    if options.picture is not None:
        drawn = {"whole tensors": whole, "tensors in parts": runs}
        picture = frontiers_picture(
            {word: _comparable(some, options.seconds) for word, some in drawn.items()}
        )
        write_atomically(options.picture, picture)


def _comparable(runs: Sequence[Run], seconds: float) -> list[Run]:
    """The runs that the picture shows: in paged memory, with that time limit."""
    return [run for run in runs if (run.setting.memory_model, run.setting.time_limit) == ("paged", seconds)]


if __name__ == "__main__":
    main()
