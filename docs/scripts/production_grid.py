"""Rules of frameworks on many networks, devices and budgets, beside what is proven to be possible.

``python docs/scripts/production_grid.py --rules --ours`` makes the runs that the data file lacks. Ours come
in passes over all cells, each with more time than the one before, and leave out what an earlier one has
brought close enough to its bound. Then short ones bound the problems of rules that do less.
``--write FILE`` and ``--picture FILE`` put the tables into the page and draw the picture. It can be stopped
at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise, product
from pathlib import Path
from statistics import median, quantiles

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from msgspec.structs import replace

from pebbler.benchmark.output.captions import caption
from pebbler.benchmark.output.drawing import footnote, png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.output.series import COLOURS, GREY, MARKERS
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.jobs import GRACE, Job, Setting
from pebbler.benchmark.sweeps.problems import FileProblem, WorkloadProblem, about
from pebbler.benchmark.sweeps.results import Run, origins, read_latest
from pebbler.benchmark.sweeps.runner import make_in_turn
from pebbler.heuristics.recomputation.rules import planned
from pebbler.instances.files import encode, write_atomically
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload

DATA = Path("docs/data/production-grid.sqlite")
BEGIN, END = "<!-- begin grid -->\n", "<!-- end grid -->\n"

COPIES = ("save-on-cpu-rule", "trl-offload", "megatron-offload", "deepcompile-offload")
"""Rules that copy and compute nothing again."""

AGAIN = ("torch-compile", "torch-memory-budget", "checkpoint-layers", "torchtitan-selective", "knapsack-rule")
"""Rules that compute again and copy nothing."""

BOTH = (
    "transformers-offload",
    "hidden-states-offload",
    "torchtitan-offload",
    "torchtitan-budget",
    "torchtitan-budget-ilp",
)
"""Rules that do both."""

RULES = (*AGAIN, *BOTH, *COPIES)
OURS = "flow-recompute"
OURS_COPIES = "flow"
RULE_SECONDS = 60.0
"""Time limit of a rule, which takes a few seconds: a slow machine must not make it look bad."""
OUR_SECONDS = (60.0, 600.0)
"""Time limits of our passes over the grid."""
OWN_SECONDS = 15.0
"""Time limit of a run for the bound of copies alone, or of second runs alone: a few seconds prove it."""
CLOSE = 0.02
"""A gap of ours that needs no further pass."""
KINDS = ("all", "copies", "again")
"""What our runs decide on: everything, copies alone, second runs alone."""
NO_COPIES = ", no copies"
"""End of the name of a cell whose blocks stay on the device."""

FAR = 0.10
"""A rule that takes so much longer than is possible has something to learn."""

_LARGE = "gpt2:layers=36,width=1280,heads=20"
_3B = "llama32_1b:layers=8,width=3072,heads=24,groups=8,hidden=8192"
_8B = "llama32_1b:layers=4,width=4096,heads=32,groups=8,hidden=14336"
_MIXTRAL = "mixtral_8x7b:layers=4"
_LONG = "llama32_1b:layers=4,tokens={},vocabulary=1024"

GRAPHS: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...] = (
    ("gpt2", 16, ("RTX4090", "A100"), ("52%", "63%", "77%", "92%")),
    ("gpt2_medium", 8, ("RTX4090", "A100"), ("42%", "56%", "73%", "90%")),
    (_LARGE, 4, ("A100", "H100"), ("48%", "60%", "76%", "91%")),
    ("gpt2_xl", 2, ("A100", "H100"), ("63%", "72%", "83%", "94%")),
    ("llama32_1b", 1, ("RTX4090", "A100", "H100", "GH200"), ("71%", "78%", "87%", "95%")),
    (_3B, 1, ("A100", "H100", "GH200"), ("80%", "85%", "91%", "97%")),
    (_8B, 1, ("H100", "GH200"), ("85%", "89%", "93%", "97%")),
    (_MIXTRAL, 4, ("H100", "GH200"), ("78%", "83%", "90%", "96%")),
    ("vit_b16", 128, ("RTX4090", "A100"), ("24%", "42%", "64%", "87%")),
    ("vit_l16", 64, ("A100", "H100"), ("26%", "44%", "65%", "87%")),
    ("unet", 4, ("RTX4090", "A100"), ("45%", "58%", "74%", "90%")),
    ("sd15_unet", 4, ("RTX4090", "H100"), ("58%", "68%", "80%", "93%")),
    (_LONG.format(8192), 1, ("H100", "GH200"), ("48%", "60%", "75%", "91%")),
    (_LONG.format(32768), 1, ("H100", "GH200"), ("37%", "52%", "70%", "89%")),
    (_LONG.format(65536), 1, ("H100", "GH200"), ("35%", "50%", "69%", "88%")),
    (_LONG.format(131072), 1, ("H100", "GH200"), ("33%", "49%", "69%", "88%")),
)
"""Networks in bfloat16, batches, devices, and budgets as shares of the peak without one.

Budgets are what the least possible leaves below the peak: 15, 35, 60 and 85 % of it.
"""

DEVICES = ("RTX4090", "A100", "H100", "GH200")
BUDGETS = ("tightest budget", "tight", "loose", "loosest")
"""Names on the page, as those of the graphs."""
_NAMES = {
    _LARGE: "gpt2_large",
    _3B: "llama32_3b, 8 layers",
    _8B: "llama31_8b, 4 layers",
    _MIXTRAL: "mixtral_8x7b, 4 layers",
    **{
        _LONG.format(tokens): f"llama32_1b, 4 layers, {tokens // 1024}k tokens"
        for tokens in (8192, 32768, 65536, 131072)
    },
}
"""Names on the page."""

_FIRST = (1, 2, 0, 3)
"""Places of budgets in the order in which they are run: those in the middle say most."""


def cells() -> list[WorkloadProblem]:
    """Return all cells: one budget of every network on every device, then the next."""
    return [
        WorkloadProblem(Workload(network, batch, device, precision="bf16"), budgets[at])
        for at in _FIRST
        for network, batch, devices, budgets in GRAPHS
        for device in devices
    ]


def without_copies(cell: WorkloadProblem) -> FileProblem:
    """Return a cell whose tasks may run again and whose blocks cannot be copied."""
    instance = planned(cell.instances()[0])
    blocks = tuple(replace(block, offload_ns=None, prefetch_ns=None) for block in instance.blocks)
    return FileProblem(f"{cell.name}{NO_COPIES}", encode(replace(instance, blocks=blocks)))


def rule_jobs(chosen: Iterable[WorkloadProblem], seconds: float) -> Iterator[Job]:
    """Yield the runs of all rules, cell by cell."""
    for cell in chosen:
        told = about(cell, cell.instances())
        yield from (Job(cell, told, _setting(rule, seconds)) for rule in RULES)


def our_job(cell: WorkloadProblem, kind: str, seconds: float, known: Sequence[Run]) -> Job | None:
    """Return the run that bounds a cell in one way, or None if an earlier run was good enough.

    If all is decided, this is one that came close to its bound. Of the others, the bound alone counts, and
    any will do.

    Parameters
    ----------
    cell
        The cell.
    kind
        One of `KINDS`: all decisions, copies alone, or second runs alone.
    seconds
        Time limit.
    known
        Earlier runs.
    """
    name = f"{cell.name}{NO_COPIES}" if kind == "again" else cell.name
    method = OURS_COPIES if kind == "copies" else OURS
    earlier = [run for run in known if run.about.problem == name and run.setting.method == method]
    if any(kind != "all" or run.found.gap <= CLOSE for run in earlier):
        return None
    problem = without_copies(cell) if kind == "again" else cell
    return Job(problem, about(problem, problem.instances()), _setting(method, seconds, 2))


def _setting(method: str, seconds: float, workers: int = 1) -> Setting:
    return Setting(
        method=method,
        memory_model="paged",
        time_limit=seconds,
        wall_limit=seconds + GRACE,
        workers=workers,
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """The runs of a cell.

    Attributes
    ----------
    problem
        The cell.
    rules
        The runs of rules by name.
    ours
        Our run with the shortest schedule, if there is one.
    bound, own_copies, own_again
        Proven bounds in nanoseconds: of everything, of copies alone, and of second runs alone.
    is_proven
        Whether a method has proven the first; else it is the time without a limit of memory.
    """

    problem: WorkloadProblem
    rules: dict[str, Run]
    ours: Run | None
    bound: int
    own_copies: int
    own_again: int
    is_proven: bool

    @property
    def graph(self) -> str:
        """Name of network, batch and device."""
        work = self.problem.workload
        return f"{_NAMES.get(work.name, work.name)} x {work.batch}, {work.device}"

    @property
    def gap(self) -> float | None:
        """How much longer than the bound our schedule takes, infinite without one; None without our run."""
        if self.ours is None:
            return None
        reached = self.ours.found.iteration_ns
        return math.inf if reached is None else reached / self.bound - 1

    def over(self, rule: str) -> float | None:
        """Return how much longer than the bound a rule takes; None without a schedule."""
        return self._over(rule, self.bound)

    def over_own(self, rule: str) -> float | None:
        """Return how much longer than the bound of its own problem a rule takes."""
        own = self.own_copies if rule in COPIES else self.own_again if rule in AGAIN else self.bound
        return self._over(rule, own)

    def best(self) -> str | None:
        """Return the fastest rule, the first of those that are equally fast."""
        found = {rule: over for rule in RULES if (over := self.over(rule)) is not None}
        return min(found, key=lambda rule: found[rule]) if found else None

    def _over(self, rule: str, bound: int) -> float | None:
        run = self.rules.get(rule)
        reached = None if run is None else run.found.iteration_ns
        return None if reached is None else reached / bound - 1


def read_cells(runs: Sequence[Run]) -> list[Cell]:
    """Return the cells that rules have run on, in the order of the page."""
    by_problem: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        by_problem.setdefault(run.about.problem, {}).setdefault(run.setting.method, []).append(run)
    order = [
        WorkloadProblem(Workload(network, batch, device, precision="bf16"), budget)
        for network, batch, devices, budgets in GRAPHS
        for device, budget in product(devices, budgets)
    ]
    found = []
    for problem in order:
        own = by_problem.get(problem.name, {})
        rules = {rule: own[rule][-1] for rule in RULES if rule in own}
        if not rules:
            continue
        ours, copies = own.get(OURS, []), own.get(OURS_COPIES, [])
        again = by_problem.get(f"{problem.name}{NO_COPIES}", {}).get(OURS, [])
        ideal = max(run.found.ideal_ns or 1 for run in rules.values())
        bound = _bound(ours, ideal)
        best = min(ours, key=lambda run: run.found.iteration_ns or math.inf, default=None)
        proven = _bound(copies, bound), _bound(again, bound)
        found.append(Cell(problem, rules, best, bound, *proven, is_proven=best is not None))
    return found


def _bound(runs: Iterable[Run], known: int) -> int:
    """Return the highest bound in nanoseconds that runs have proven, or the known one if that is higher."""
    return max([known, *(run.found.lower_bound_ns or 0 for run in runs)])


def violations(found: Sequence[Cell], method: str) -> tuple[int, int]:
    """Return how often a method takes longer with more memory, and in how many pairs of budgets it could.

    A pair are neighbours among the budgets of a graph for which the method has a schedule.
    """
    times: dict[str, list[int]] = {}
    for cell in found:
        run = cell.ours if method == OURS else cell.rules.get(method)
        if run is not None and run.found.iteration_ns is not None:
            times.setdefault(cell.graph, []).append(run.found.iteration_ns)
    pairs = [pair for mine in times.values() for pair in pairwise(mine)]
    return sum(loose > tight for tight, loose in pairs), len(pairs)


def report(runs: Sequence[Run]) -> str:
    """Return what is known of the grid: how far it has come, the rules, the graphs, and what rules miss."""
    found = read_cells(runs)
    proven = sum(cell.is_proven for cell in found)
    facts = [
        f"{len(found)} of {len(cells())} cells have runs of rules, and {proven} of them ours.",
        *([_targets(found)] if proven else []),
    ]
    tables = [
        _rules_table(found),
        _devices_table(found),
        _budgets_table(found),
        _graphs_table(found),
        _far_table(found),
    ]
    return (
        "\n\n".join(["\n".join(f"- {fact}" for fact in facts), *filter(None, tables), _origin(runs)]) + "\n"
    )


def _targets(found: Sequence[Cell]) -> str:
    gaps = [gap for cell in found if (gap := cell.gap) is not None]
    return (
        f"Ours is within 2 % of its bound in {sum(gap <= CLOSE for gap in gaps)} of {len(gaps)} cells; "
        f"the median is {percent(median(gaps))}. It takes longer with more memory in "
        "{} of {} pairs of budgets.".format(*violations(found, OURS))
    )


def _origin(runs: Sequence[Run]) -> str:
    return f"{'; '.join(origins(runs, most=3))}."


def _rules_table(found: Sequence[Cell]) -> str:
    """Return a line for each rule: where it has a schedule, how far from the bounds, where it is best."""
    wins = Counter(cell.best() for cell in found)
    rows = []
    for rule in RULES:
        ran = [cell for cell in found if rule in cell.rules]
        over = [one for cell in ran if (one := cell.over(rule)) is not None]
        own = [one for cell in ran if (one := cell.over_own(rule)) is not None and cell.is_proven]
        rows.append(
            (
                f"`{rule}`",
                f"{len(over)} of {len(ran)}",
                percent(median(over)) if over else "",
                percent(_ninth(over)) if over else "",
                percent(max(over)) if over else "",
                percent(median(own)) if own else "",
                str(wins[rule]),
                "{} of {}".format(*violations(found, rule)),
            )
        )
    header = (
        *("rule", "schedules", "median", "nine of ten", "worst", "median, own problem", "fastest in"),
        "longer with more memory",
    )
    return markdown(header, rows)


def _devices_table(found: Sequence[Cell]) -> str:
    """Return a line for each rule: how far from the bounds in the median, by device."""
    devices = [name for name in DEVICES if any(cell.problem.workload.device == name for cell in found)]
    rows = []
    for rule in RULES:
        own = {name: [cell for cell in found if cell.problem.workload.device == name] for name in devices}
        over = [[one for cell in own[name] if (one := cell.over(rule)) is not None] for name in devices]
        rows.append((f"`{rule}`", *(percent(median(ones)) if ones else "" for ones in over)))
    return markdown(("median over the bound", *devices), rows)


def _budgets_table(found: Sequence[Cell]) -> str:
    """Return a line for each of the four budgets: how far the fastest rule is, and which rules that are."""
    rows = []
    for place, name in enumerate(BUDGETS):
        mine = [cell for cell in found if _budgets(cell.problem)[place] == cell.problem.budget]
        best = Counter(rule for cell in mine if (rule := cell.best()) is not None)
        over = [one for cell in mine if (rule := cell.best()) and (one := cell.over(rule)) is not None]
        if over:
            told = ", ".join(f"`{rule}` {count}" for rule, count in best.most_common())
            rows.append((name, str(len(mine)), percent(median(over)), percent(max(over)), told))
    return markdown(("budget", "cells", "fastest rule, median", "worst", "fastest in"), rows)


def _budgets(problem: WorkloadProblem) -> tuple[str, ...]:
    """Return the budgets of a cell's graph, the tightest first."""
    work = problem.workload
    return next(
        budgets
        for network, batch, devices, budgets in GRAPHS
        if (network, batch) == (work.name, work.batch) and work.device in devices
    )


def _ninth(values: Sequence[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


def _graphs_table(found: Sequence[Cell]) -> str:
    """Return a line for each graph: the fastest rule at each budget, and how far it is from the bound."""
    graphs: dict[str, list[Cell]] = {}
    for cell in found:
        graphs.setdefault(cell.graph, []).append(cell)
    rows = []
    for graph, mine in graphs.items():
        told = {cell.problem.budget: _told(cell) for cell in mine}
        rows.append((graph, *(told.get(budget, "") for budget in _budgets(mine[0].problem))))
    return markdown(("graph", *BUDGETS), rows)


def _told(cell: Cell) -> str:
    best = cell.best()
    over = None if best is None else cell.over(best)
    if best is None or over is None:
        return f"{cell.problem.budget}: none"
    return f"{cell.problem.budget}: `{best}`, {percent(over)}{'' if cell.is_proven else ' at most'}"


def _far_table(found: Sequence[Cell]) -> str:
    """Return the cells in which the fastest rule takes a tenth longer than our schedule, and why."""
    rows = []
    for cell in found:
        best, ours = cell.best(), cell.ours
        if ours is None or ours.found.iteration_ns is None:
            continue
        if best is None:
            row = (cell.problem.name, "none", "", format_time(ours.found.iteration_ns), "no rule fits")
            rows.append(row)
            continue
        run = cell.rules[best]
        reached = run.found.iteration_ns or 0
        if reached >= (1 + FAR) * ours.found.iteration_ns:
            more = percent(reached / ours.found.iteration_ns - 1)
            row = (
                cell.problem.name,
                f"`{best}`",
                more,
                format_time(ours.found.iteration_ns),
                decision(run, ours),
            )
            rows.append(row)
    if not rows:
        return ""
    return markdown(("cell", "fastest rule", "longer than ours by", "ours", "what it does otherwise"), rows)


def decision(rule: Run, ours: Run) -> str:
    """Say by what a rule loses time to our schedule: waits, or what it computes again and more slowly."""
    waits = (rule.found.stall_ns or 0) - (ours.found.stall_ns or 0)
    total = (rule.found.iteration_ns or 0) - (ours.found.iteration_ns or 0)
    again = total - waits
    copied, mine = rule.found.offloaded_bytes or 0, ours.found.offloaded_bytes or 0
    amount = "more" if copied > mine else "less" if copied < mine else "as much"
    share = percent(max(waits, again) / total)
    if waits > again:
        return f"{share} of it are waits; it copies {amount}"
    return f"{share} of it are second runs and slower algorithms; it copies {amount}"


def picture(runs: Sequence[Run]) -> bytes:
    """Draw how much longer than the bound each rule takes, a dot a cell, and where it has no schedule."""
    found = read_cells(runs)
    rules = {
        rule: [one for cell in found if (one := cell.over(rule)) is not None]
        for rule in RULES
        if any(rule in cell.rules for cell in found)
    }
    order = sorted(rules, key=lambda rule: -(median(rules[rule]) if rules[rule] else math.inf))
    devices = DEVICES
    with style.context("default"):
        figure = Figure(figsize=(11, 6.2), dpi=130, layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
        for row, rule in enumerate(order):
            for at, device in enumerate(devices):
                over = [
                    max(one, _LEAST)
                    for cell in found
                    if cell.problem.workload.device == device and (one := cell.over(rule)) is not None
                ]
                height = row + (at - (len(devices) - 1) / 2) * 0.18
                left.plot(
                    over,
                    [height] * len(over),
                    linestyle="",
                    marker=MARKERS[at],
                    color=COLOURS[at],
                    markersize=5,
                    alpha=0.7,
                )
            if rules[rule]:
                middle = max(median(rules[rule]), _LEAST)
                left.plot([middle] * 2, [row - 0.42, row + 0.42], color="black", linewidth=2)
            ran = sum(rule in cell.rules for cell in found)
            right.barh(row, (ran - len(rules[rule])) / max(ran, 1), color=GREY, height=0.6)
        left.set_xscale("log")
        left.set_yticks(range(len(order)), order)
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1%}".replace(".0%", "%")))
        left.set_xlabel("longer than the bound (a line: the median)")
        right.set_xlabel("no schedule")
        right.set_xlim(0, 1)
        right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="x", alpha=0.3)
        figure.legend(
            [
                Line2D([], [], linestyle="", marker=MARKERS[at], color=COLOURS[at])
                for at in range(len(devices))
            ],
            devices,
            loc="outside upper center",
            ncols=len(devices),
            frameon=False,
        )
        proven = sum(cell.is_proven for cell in found)
        what = f"{len(found)} of {len(cells())} cells; in {len(found) - proven} the bound is the ideal time"
        footnote(figure, caption(what, origins(runs, most=2)))
        return png(figure)


_LEAST = 1e-4
"""The least value that the logarithmic axis shows."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and put tables and picture where they belong, or print the tables."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/production_grid.py", description=__doc__)
    parser.add_argument("--rules", action="store_true", help="make the runs of rules that are missing")
    parser.add_argument("--ours", action="store_true", help="make our runs that are missing")
    parser.add_argument(
        "--rule-seconds", type=float, default=RULE_SECONDS, metavar="S", help="default: 60, for each rule"
    )
    parser.add_argument(
        "--our-seconds",
        type=float,
        nargs="+",
        default=OUR_SECONDS,
        metavar="S",
        help="of each pass; default: 60 600",
    )
    parser.add_argument(
        "--cells", default="*", metavar="PATTERN", help="names NETWORK/BATCH/DEVICE/BUDGET/bf16; default: all"
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="the picture to draw")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    chosen = [cell for cell in cells() if fnmatchcase(cell.name, options.cells)]
    if not chosen:
        parser.error(f"no cell matches '{options.cells}'")
    for cell in chosen if options.rules else ():
        make_in_turn(list(rule_jobs([cell], options.rule_seconds)), options.data, here=True)
    passes = [("all", seconds) for seconds in options.our_seconds]
    passes += [(kind, OWN_SECONDS) for kind in KINDS if kind != "all"]
    for (kind, seconds), cell in product(passes if options.ours else (), chosen):
        known = read_latest(options.data) if options.data.exists() else []
        if (job := our_job(cell, kind, seconds, known)) is not None:
            make_in_turn([job], options.data)
    runs = read_latest(options.data)
    publish(report(runs), options.write, BEGIN, END)
    if options.picture:
        write_atomically(options.picture, picture(runs))


if __name__ == "__main__":
    main()
