"""What the study's sweeps say: exhibits, and facts for the text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import median

import plots
from pebbler.benchmark.output.series import MOST
from pebbler.benchmark.report.exhibits import Exhibit, Table, percent
from pebbler.benchmark.sweeps.evaluation import Evaluation, evaluate, solved
from pebbler.benchmark.sweeps.jobs import Found, Setting
from pebbler.benchmark.sweeps.results import Run
from pebbler.instances.errors import PebblerError
from pebbler.instances.transforms import LINKS
from variants import DECISIONS, LEAST_SHARE, LINKED, REWORKED, Case, Freedom, freedoms, problem

SEARCHES = ("local-search", "flow", "flow-recompute")
"""Methods of this project that search, beside the rules of others."""

DRAWN = (
    "vdnn-dyn",
    "layrub-hybrid",
    "modnn",
    "local-search",
    "flow",
    "torch-memory-budget",
    "superneurons-rule",
)
"""The first six of these that have a median are in the picture of gaps by budget; the table has all."""

_UNLIKE = "Columns have different problems. "
"""In the caption in the text, where budgets do not have the same workloads."""

KINDS = {"step": ("/steady",), "transformer": ("gpt", "vit", "llama"), "cnn": ("",)}
"""Kinds of problems, by what is in their names; the first that fits."""

WIDTH = 6.4
"""Width of a picture in inches: that of the text's lines, so that its type is as large as the text's."""

PLANNERS = (
    "planned on an instance of its own, with Layrub's mask or with tasks that may run again, and held "
    "against a bound for that."
)
"""Said of methods that do not schedule what the others do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An exhibit, what it rests on, and the facts that the text takes from it.

    Attributes
    ----------
    exhibit, runs
        The picture with its numbers, and the runs that they come from.
    short
        The caption in the text, of two lines at most; the pages have the exhibit's.
    facts
        Numbers as texts, by name.
    """

    exhibit: Exhibit
    runs: Sequence[Run]
    short: str
    facts: dict[str, str]


# --- how far from optimal ---------------------------------------------------------------------------------


def with_bounds(runs: Sequence[Run], others: Sequence[Run]) -> Evaluation:
    """Set runs side by side, with the best bounds that these or other runs have proven of their problems.

    Raises
    ------
    PebblerError
        When an iteration is shorter than a proven bound.
    """
    own = evaluate(runs)
    return replace(own, bounds=evaluate([*runs, *others]).bounds)


def gaps_by_budget(evaluation: Evaluation) -> Finding:
    """Gap of every method at each budget: how far from optimal, and where it matters.

    A column has the problems of its budget, and says how many if not all have the same networks, batches and
    devices. A line joins columns only where they have.
    """
    budgets: dict[str, list[str]] = {}
    for key, about in evaluation.problems.items():
        budgets.setdefault(_budget(about.problem), []).append(key)
    order = sorted(budgets, key=_tightness)
    alike = len({frozenset(map(partial(_workload, evaluation), keys)) for keys in budgets.values()}) == 1
    gaps = {name: evaluation.gaps(setting) for setting, name in evaluation.settings.items()}
    planners = {
        evaluation.settings[run.setting] for run in evaluation.runs if solved(run) != run.about.problem_sha256
    }
    shown = {name: f"{name} *" if name in planners else name for name in gaps}
    medians = {
        name: {
            budget: median(values)
            for budget in order
            if (values := [found[key] for key in budgets[budget] if key in found])
        }
        for name, found in gaps.items()
    }
    overall = {name: median(found.values()) for name, found in gaps.items()}
    rows = []
    kinds: dict[str, list[str]] = {}
    for key, about in evaluation.problems.items():
        kinds.setdefault(_kind(about.problem), []).append(key)
    facts = _facts_of(evaluation, [len(keys) for keys in budgets.values()])
    facts |= {f"{kind}/problems": str(len(kinds.get(kind, ()))) for kind in KINDS}
    seconds = {name: _seconds(evaluation, setting) for setting, name in evaluation.settings.items()}
    for name, found in gaps.items():
        values = sorted(found.values())
        ended = sum(map(math.isfinite, values))
        rows.append(
            (
                shown[name],
                *(percent(medians[name].get(budget)) for budget in order),
                percent(overall[name]),
                percent(max([value for value in values if math.isfinite(value)], default=math.inf)),
                f"{ended} of {len(values)}",
                seconds[name],
            )
        )
        facts |= {
            f"{name}/median": percent(overall[name]),
            f"{name}/worst": rows[-1][-3],
            f"{name}/seconds": seconds[name],
            f"{name}/solved": str(ended),
            f"{name}/tightest": percent(medians[name].get(order[-1])),
            f"{name}/loosest": percent(medians[name].get(order[0])),
            f"{name}/loosest-worst": percent(max(found.get(key, math.inf) for key in budgets[order[0]])),
            **{
                f"{name}/{kind}": percent(median(values))
                for kind, keys in kinds.items()
                if (values := [found[key] for key in keys if key in found])
            },
        }
    rules = [name for name in gaps if name not in SEARCHES and name not in planners]
    for word, names in (("best", list(gaps)), ("best-rule", rules)):
        if names:
            least = min(names, key=lambda name: overall[name])
            facts |= {word: least, f"{word}/median": percent(overall[least])}
    facts |= _head_to_head(evaluation) | _proofs(evaluation)
    columns = [budget if alike else f"{budget} (n={len(budgets[budget])})" for budget in order]
    n = f"(n={len(budgets[order[0]])} for each budget)" if alike else "(n for each budget)"
    header = ("method", *columns, "all", "worst", "with a schedule", "time")
    some = [name for name, found in medians.items() if any(map(math.isfinite, found.values()))]
    drawn = ([name for name in DRAWN if name in some] or list(gaps))[:MOST]
    exhibit = Exhibit(
        name="gaps",
        title="How far from optimal, by budget",
        caption="Median gap, (iteration - bound) / bound, from the best bound that any run of the problem "
        f"proved, here or in the core grid, for {len(evaluation.problems)} problems, by budget: a share of "
        "the peak without a limit, a multiple of the least budget M_min, or M_min and a share of what the "
        f"peak is above it {n}. No schedule: half of its problems or more have none. Time: of the method, "
        "in the median."
        f"{'' if alike else ' Columns have different networks, so that no line joins them.'}"
        f"{f' *: {PLANNERS}' if planners else ''}",
        table=Table(header, tuple(rows)),
        data=Table(
            ("method", "budget", "median gap"),
            tuple((name, budget, gap) for name, found in medians.items() for budget, gap in found.items()),
        ),
        size=(WIDTH, 3.6),
        draw=lambda figure: plots.draw_gaps_by_budget(
            figure, order, columns, {shown[name]: medians[name] for name in drawn}, joined=alike
        ),
    )
    short = (
        f"Median gap from the best bound {n}{'; *: of an instance of its own' if planners else ''}. "
        f"{'' if alike else _UNLIKE}"
        "Nothing is drawn where half of the problems have no schedule."
    )
    return Finding(exhibit, evaluation.runs, short, facts)


def _facts_of(evaluation: Evaluation, columns: Sequence[int]) -> dict[str, str]:
    """What problems there are; `columns` has the number of problems of each budget."""
    problems = evaluation.problems.values()
    tasks = [about.tasks for about in problems]
    return {
        "problems": str(len(problems)),
        "networks": str(len({about.network for about in problems})),
        "devices": str(len({about.device for about in problems})),
        "budgets": str(len(columns)),
        "least-n": str(min(columns)),
        "most-n": str(max(columns)),
        "least-tasks": str(min(tasks)),
        "most-tasks": str(max(tasks)),
    }


def _seconds(evaluation: Evaluation, setting: Setting) -> str:
    """How long a method takes, in the median of its runs; nothing if no run says so."""
    took = [run.found.solve_seconds for run in evaluation.of(setting) if run.found.solve_seconds is not None]
    return f"{median(took):.2g} s" if took else ""


def _head_to_head(evaluation: Evaluation) -> dict[str, str]:
    """On how many problems a search is shorter than FLOW, longer, or as long, and by how much in the median.

    Local search alone has only copies, as FLOW has; the other one may run tasks again.
    """
    times = {name: evaluation.times(setting) for setting, name in evaluation.settings.items()}
    facts: dict[str, str] = {}
    for name in ("local-search", "flow-recompute"):
        if {name, "flow"} <= times.keys():
            one, other = times[name], times["flow"]
            both = one.keys() & other.keys()
            ratios = [one[key] / other[key] for key in both if math.isfinite(max(one[key], other[key]))]
            facts |= {
                f"{name}/shorter": str(sum(one[key] < other[key] for key in both)),
                f"{name}/longer": str(sum(one[key] > other[key] for key in both)),
                f"{name}/equal": str(sum(one[key] == other[key] for key in both)),
                f"{name}/saved": percent(1 - median(ratios)) if ratios else "",
                f"{name}/lost": percent(max(ratios) - 1) if ratios else "",
            }
            rules = [found for rule, found in times.items() if rule not in SEARCHES]
            least = {key: min((found.get(key, math.inf) for found in rules), default=math.inf) for key in one}
            behind = [one[key] / least[key] - 1 for key in one if least[key] < one[key]]
            facts |= {
                f"{name}/behind-rules": str(len(behind)),
                f"{name}/behind-rules/most": percent(max(behind, default=0)),
            }
    return facts


def _proofs(evaluation: Evaluation) -> dict[str, str]:
    """What proves the best bounds of copies alone, and of second runs too: on how many problems, by kind.

    A FLOW model proves what neither the times of tasks nor a single peak do; the word is a solver's.
    """
    facts: dict[str, str] = {}
    for setting, name in evaluation.settings.items():
        if name not in {"flow", "flow-recompute"}:
            continue
        bounds = [(_kind(run.about.problem), evaluation.bound(run)) for run in evaluation.of(setting)]
        proven = [(kind, bound) for kind, bound in bounds if bound is not None]
        for by in ("compute", "single-peak", "flow"):
            kinds = [kind for kind, bound in proven if bound.bound_by.startswith(by)]
            facts |= {f"{name}/by-{by}": str(len(kinds))}
            facts |= {f"{name}/by-{by}/{kind}": str(kinds.count(kind)) for kind in KINDS}
        facts[f"{name}/by-word"] = str(sum(not bound.certified for _, bound in proven))
    return facts


def _kind(name: str) -> str:
    return next(kind for kind, words in KINDS.items() if any(word in name for word in words))


def _workload(evaluation: Evaluation, key: str) -> str:
    """A problem's name without its budget: its network, batch and device, and what else it says."""
    name = evaluation.problems[key].problem
    return name.replace(_budget(name), "", 1)


_BUDGET = re.compile(r"(?:Mmin\+)?[0-9.]+%|[0-9.]+xMmin|[0-9.]+[KMGT]i?B")
"""What a budget looks like in a problem's name."""


def _budget(name: str) -> str:
    """The budget in a problem's name, which comes after network, batch and device."""
    words = name.split("/")
    return next((word for word in words if _BUDGET.fullmatch(word)), words[-1])


def _tightness(budget: str) -> tuple[bool, float]:
    """Order budgets from loose to tight; multiples of the least possible come last."""
    share = budget.removeprefix("Mmin+")
    return not share.endswith("%"), -float(share.rstrip("%").split("x")[0])


# --- which decision carries the gain ----------------------------------------------------------------------

_DECISIONS = ("sub-batch", "algorithms", "copies")


def decisions(runs: Sequence[Run], cases: Sequence[Case]) -> Finding:
    """Overhead over the ideal where only some of the three decisions may be taken."""
    found = {run.about.problem: run.found for run in runs}
    overheads: dict[str, dict[str, float]] = {}
    columns: list[list[str]] = []
    facts: dict[str, str] = {}
    for case in cases:
        ideal = _ideal_of(case, cases, found)
        mine: dict[str, float] = {}
        cells: list[str] = []
        for chosen in product((False, True), repeat=len(_DECISIONS)):
            by_word = dict(zip(_DECISIONS, chosen, strict=True))
            some = [
                found[name]
                for freedom in freedoms(case.batch)
                if freedom.transfers == by_word["copies"]
                and freedom.algorithms == by_word["algorithms"]
                and (by_word["sub-batch"] or freedom.sub_batch == case.batch)
                and (name := problem(DECISIONS, case, freedom.word)) in found
            ]
            time = min((one.iteration_ns for one in some if one.iteration_ns is not None), default=None)
            bound = min((one.lower_bound_ns or 0 for one in some if one.status != "infeasible"), default=None)
            label = " + ".join(word for word, free in by_word.items() if free) or "nothing"
            mine[label] = math.inf if time is None else time / ideal - 1
            gap = "" if time is None or not bound else f" ({percent((time - bound) / bound)})"
            cells.append(f"{percent(mine[label])}{gap}" if time is not None else "no schedule")
            facts[f"{case.name}/{label}"] = percent(mine[label])
        overheads[str(case)] = mine
        columns.append(cells)
    rows = zip(next(iter(overheads.values())), *columns, strict=True)
    exhibit = Exhibit(
        name="decisions",
        title="Which decision carries the gain",
        caption="How much longer than the ideal (fastest algorithms, whole batch, no memory limit) an "
        "iteration is where only the named decisions may be taken; in brackets, in the table, the gap from "
        "the bound of that restricted problem. Without a choice of algorithms every task has the one with "
        "the least workspace; without copies nothing leaves the device; without sub-batches the batch is one "
        f"round, with them the best of the batch and its halves down to a {LEAST_SHARE}th. Method: flow. "
        "Decisions with which no case has a schedule are not drawn.",
        table=Table(("decisions", *overheads), tuple(rows)),
        data=Table(
            ("case", "decisions", "overhead"),
            tuple((case, word, value) for case, mine in overheads.items() for word, value in mine.items()),
        ),
        size=(WIDTH, 2.9),
        draw=lambda figure: plots.draw_decisions(figure, overheads),
    )
    short = (
        "How much longer than the ideal an iteration is where only the named decisions may be taken "
        f"(n={len(overheads)}). Sets of decisions with which no case has a schedule are left out."
    )
    return Finding(exhibit, runs, short, facts)


def _ideal_of(case: Case, cases: Sequence[Case], found: Mapping[str, Found]) -> int:
    """Return the ideal of a case's iteration, as its runs have it: of the whole batch with all algorithms.

    It is that of every budget, so that a case of the same workload may have it.

    Raises
    ------
    PebblerError
        When no run has it.
    """
    for other in cases:
        if other.workload == case.workload:
            for copies in (True, False):
                one = found.get(problem(DECISIONS, other, Freedom(other.batch, copies, True).word))
                if one is not None and one.ideal_ns is not None:
                    return one.ideal_ns
    raise PebblerError(f"{case}: no run has the ideal of the whole batch; let the study make them")


# --- at which links, and when to compute again ------------------------------------------------------------


def links(runs: Sequence[Run], cases: Sequence[Case]) -> Finding:
    """Time over the ideal for each link, by offloading and by recomputation."""
    offloading = _by_method(runs, LINKED)
    reworked = _by_method(runs, REWORKED)
    panels: dict[str, dict[str, list[float]]] = {}
    rows: list[tuple[str, ...]] = []
    facts: dict[str, str] = {}
    by_word = 0
    for case in cases:
        curves: dict[str, list[float]] = {}
        for link in LINKS:
            mine = {method: found[case.name, link] for method, found in offloading.items()}
            again = {method: found[case.name, link] for method, found in reworked.items()}
            ideal = next(run.found.ideal_ns or 1 for run in mine.values())
            best = max(mine.values(), key=lambda run: run.found.lower_bound_ns or 0).found
            bound = best.lower_bound_ns or 0
            times = {method: _time(run) for method, run in (*mine.items(), *again.items())}
            for method, time in (*times.items(), ("lower bound", bound)):
                curves.setdefault(method, []).append(time / ideal)
            by_copies = min(times[method] for method in mine)
            by_rule = min(times[method] for method in again)
            verdict = _verdict(by_copies, by_rule, bound)
            by_word += verdict.endswith("(proven)") and not best.certified
            rows.append(
                (
                    str(case),
                    link,
                    *(_over(time / ideal) for time in times.values()),
                    _over(bound / ideal),
                    verdict,
                )
            )
            facts[f"{case.name}/{link}"] = verdict
            facts[f"{case.name}/{link}/overhead"] = percent(by_copies / ideal - 1)
        panels[str(case)] = curves
    methods = (*offloading, *reworked)
    exhibit = Exhibit(
        name="links",
        title="Links, and recomputation in place of copies",
        caption="Iteration time over the ideal by link, with a copy engine for each direction: PCIe 3.0, 4.0 "
        "and 5.0 at 12.8, 25.6 and 51.2 GB/s, NVLink at 150 GB/s. memonger-rule and knapsack-rule compute "
        "again and copy nothing; the others copy and compute nothing again; the bound is for those.",
        table=Table(("case", "link", *methods, "bound of copying", "shorter"), tuple(rows)),
        data=Table(("case", "link", *methods, "bound of copying", "shorter"), tuple(rows)),
        size=(WIDTH, 5.2),
        draw=lambda figure: plots.draw_links(figure, list(LINKS), panels),
    )
    short = (
        f"Iteration time over the ideal, by link (n={len(panels)}). memonger-rule and knapsack-rule copy "
        "nothing; the others compute nothing again, and the bound is theirs."
    )
    return Finding(exhibit, runs, short, facts | _count(rows) | {"by-word": str(by_word)})


# --- copying and computing again together -----------------------------------------------------------------


def together(runs: Sequence[Run]) -> Finding:
    """Overhead over the ideal of every setting on every problem, where each plans on instances of its own.

    Their bounds are of different instances, so that none stands here. The first setting is what the others
    are held against.
    """
    overheads: dict[str, dict[str, float]] = {}
    for run in runs:
        overheads.setdefault(run.about.problem, {})[_label(run)] = _over_ideal(run)
    labels = list(dict.fromkeys(label for found in overheads.values() for label in found))
    facts = {"problems": str(len(overheads))}
    for label in labels[1:]:
        gains = [
            1 - (1 + found[label]) / (1 + found[labels[0]])
            for found in overheads.values()
            if math.isfinite(found.get(label, math.inf)) and math.isfinite(found.get(labels[0], math.inf))
        ]
        if gains:
            facts[f"{label}/gain"] = percent(median(gains))
            facts[f"{label}/most"] = percent(max(gains))
        facts[f"{label}/shorter"] = str(sum(gain > 0 for gain in gains))
    values = [[found.get(label) for label in labels] for found in overheads.values()]
    exhibit = Exhibit(
        name="together",
        title="Recomputation together with offloading",
        caption="How much longer than the ideal an iteration is.",
        table=Table(
            ("problem", *labels),
            tuple((key, *map(percent, row)) for key, row in zip(overheads, values, strict=True)),
        ),
        data=Table(("problem", *labels), tuple((k, *row) for k, row in zip(overheads, values, strict=True))),
        size=(WIDTH, 1.1 + 0.27 * len(overheads)),
        draw=lambda figure: plots.draw_dots(figure, overheads),
    )
    short = (
        f"How much longer than the ideal an iteration is (n={len(overheads)}): copies alone (flow), second "
        "runs alone (flow-recompute without transfers), and both (flow-recompute)."
    )
    return Finding(exhibit, runs, short, facts)


# --- what parts buy ---------------------------------------------------------------------------------------

_WHOLE, _PARTS = "flow", "flow-parts"


def parts(evaluation: Evaluation) -> Finding:
    """Whole tensors and tensors in parts under the same budgets, each over a bound of its own.

    Raises
    ------
    PebblerError
        When no problem was solved both ways.
    """
    runs: dict[str, dict[str, Run]] = {}
    for run in evaluation.runs:
        runs.setdefault(run.about.problem, {})[run.setting.method] = run
    found = {name: mine for name, mine in runs.items() if {_WHOLE, _PARTS} <= mine.keys()}
    if not found:
        raise PebblerError(f"no problem has runs of both {_WHOLE} and {_PARTS}; let the study make them")
    spans: dict[str, dict[str, tuple[float, float]]] = {}
    rows: list[tuple[str, ...]] = []
    facts: dict[str, str] = {}
    shorter: list[float] = []
    gaps: list[float] = []
    below = by_word = 0
    for name, mine in found.items():
        whole, cut = mine[_WHOLE], mine[_PARTS]
        spans[name] = {
            word: (_bound(evaluation, run) / (run.found.ideal_ns or 1) - 1, _over_ideal(run))
            for word, run in (("whole tensors", whole), ("in parts", cut))
        }
        saved = 1 - _time(cut) / _time(whole) if math.isfinite(_time(whole)) else math.inf
        under = _time(cut) / max(_bound(evaluation, whole), 1) - 1
        shorter.append(saved)
        gaps.append(evaluation.gap(cut))
        below += under < 0
        by_word += under < 0 and (bound := evaluation.bound(whole)) is not None and not bound.certified
        rows.append(
            (
                name,
                *(_with_gap(_over_ideal(run), evaluation.gap(run)) for run in (whole, cut)),
                percent(saved),
                f"{under:+.2%}" if math.isfinite(under) else percent(under),
            )
        )
        key = name.replace("%", "pc")
        facts |= {
            f"{key}/gap": percent(gaps[-1]),
            f"{key}/saved": percent(saved),
            f"{key}/below": percent(-under),
        }
    facts |= {
        "problems": str(len(found)),
        "below": str(below),
        "by-word": str(by_word),
        "saved": percent(median(shorter)),
        "gap": percent(median(gaps)),
        "worst": percent(max(gaps)),
    }
    exhibit = Exhibit(
        name="parts",
        title="Whole tensors and tensors in parts",
        caption="How much longer than the ideal an iteration is with whole tensors (flow) and in parts "
        "(flow-parts), in paged memory; in brackets, in the table, the gap from the best bound of the "
        "same kind that any run proved, here or in the core grid. Lines across the bars are these bounds: "
        "a bar in parts that ends before the line of whole tensors is shorter than any schedule of those.",
        table=Table(
            ("problem", "whole tensors", "in parts", "shorter by", "over the bound of whole tensors"),
            tuple(rows),
        ),
        data=Table(
            ("problem", "tensors", "bound", "time"),
            tuple((name, word, *span) for name, mine in spans.items() for word, span in mine.items()),
        ),
        size=(WIDTH, 1.1 + 0.5 * len(spans)),
        draw=lambda figure: plots.draw_spans(figure, spans),
    )
    short = (
        f"How much longer than the ideal an iteration is (n={len(spans)}); lines are bounds. A bar in parts "
        "that ends before the line of whole tensors beats all schedules of those."
    )
    return Finding(exhibit, evaluation.runs, short, facts)


def _with_gap(overhead: float, gap: float) -> str:
    return f"{percent(overhead)} ({percent(gap)})" if math.isfinite(overhead) else percent(overhead)


def _bound(evaluation: Evaluation, run: Run) -> int:
    bound = evaluation.bound(run)
    return 0 if bound is None else bound.lower_bound_ns


def _over_ideal(run: Run) -> float:
    ideal = run.found.ideal_ns
    return math.inf if ideal is None else _time(run) / ideal - 1


def _label(run: Run) -> str:
    without = run.setting.without
    return f"{run.setting.method} without {', '.join(without)}" if without else run.setting.method


def _verdict(by_copies: float, by_rule: float, bound: int) -> str:
    """Say which of the two is shorter; recomputation is so for certain when no copying can be as short."""
    if by_rule < bound:
        return "recomputation (proven)"
    if by_rule < by_copies:
        return "recomputation"
    return "copying" if math.isfinite(by_copies) else "neither"


def _count(rows: Iterable[Sequence[str]]) -> dict[str, str]:
    words = [row[-1] for row in rows]
    return {
        "cells": str(len(words)),
        "copying": str(words.count("copying")),
        "recomputation": str(sum(word.startswith("recomputation") for word in words)),
        "proven": str(words.count("recomputation (proven)")),
    }


def _by_method(runs: Iterable[Run], folder: str) -> dict[str, dict[tuple[str, str], Run]]:
    """Return the runs of a folder's instances by method, then by case and link."""
    found: dict[str, dict[tuple[str, str], Run]] = {}
    for run in runs:
        _, where, name = run.about.problem.split("/")
        if where == folder:
            case, link = name.rsplit(".", 1)
            found.setdefault(run.setting.method, {})[case, link] = run
    return found


def _time(run: Run) -> float:
    return math.inf if run.found.iteration_ns is None else run.found.iteration_ns


def _over(ratio: float) -> str:
    return f"{ratio:.3f}" if math.isfinite(ratio) else "no schedule"
