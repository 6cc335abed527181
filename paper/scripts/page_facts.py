"""Numbers that the text takes from pages of the documentation: cells, and counts and medians of tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from pages import Pages
from pebbler.benchmark.report.exhibits import percent


@dataclass(frozen=True, slots=True)
class Fact:
    """Where the text finds a number on a page: a cell of a table, or what a regular expression matches."""

    page: str
    row: str = ""
    column: str = ""
    mark: str | None = None
    pattern: str = ""

    def read(self, pages: Pages) -> str:
        """Return it; of a cell that goes on with a verdict, what stands before that."""
        if self.pattern:
            return pages.line(self.page, self.pattern)
        return pages.cell(self.page, self.row, self.column, self.mark).split(",")[0]


FACTS = {
    **{
        f"gpus/{budget}": Fact(
            "several-gpus",
            f"moDNN, {budget} GB a GPU, 1 core, over the 1-GPU ideal",
            "the paper's way",
            "four",
        )
        for budget in (12, 6, 3)
    },
    "chain/instances": Fact("chain", pattern=r"(\d+) instances:"),
    "chain/compute-flow": Fact("chain", "compute <= flow-lp", "mean ratio", "chain"),
    "chain/met": Fact("chain", "flow-milp <= cp-sat", "equal", "chain"),
    "chain/both": Fact("chain", "flow-milp <= cp-sat", "both", "chain"),
    "chain/cp-sat": Fact("chain", "cp-sat <= divisible", "equal", "chain"),
    "checker/mutants": Fact("checker", "**all**", "mutants"),
    "checker/rejected": Fact("checker", "**all**", "rejected"),
    "checker/silent": Fact("checker", "**all**", "silent"),
    "faults/shown": Fact("execution", "all", "in one of 5", "faults"),
    "execution/schedules": Fact("execution", pattern=r"median iteration, (\d+) schedules"),
    "execution/median": Fact("execution", pattern=r"median iteration, \d+ schedules: median ([\d.]+%)"),
    "execution/worst": Fact("execution", pattern=r"median iteration, .*worst ([\d.]+%)\."),
    "execution/least": Fact("execution", pattern=r"from the least times: median ([\d.]+%)"),
    "execution/least-worst": Fact("execution", pattern=r"from the least times: .*worst ([\d.]+%)\."),
    **{
        f"gpu/{network}/{time}": Fact("gpu", f"{network}, batch 128 | 1.25xMmin | flow", time)
        for network in ("alexnet", "vgg16", "resnet50")
        for time in ("predicted", "measured")
    },
    **{
        f"gpu/step/{name}": Fact("gpu", "gpt2, batch 8 | 50% | flow", column)
        for name, column in {
            "predicted": "predicted",
            "operations": "operations",
            "whole": "without restore",
            "allocated": "allocated",
        }.items()
    },
    "gpu/eager": Fact("gpu", pattern=r"\| gpt2, batch 8 \| none \| [^|]*\|  \|  \| ([\d.]+ ms)"),
    "gpu/eager-peak": Fact("gpu", pattern=r"\| gpt2, batch 8 \| none \| .*\| ([\d.]+ GiB) \|"),
    **{
        f"gpu/model/{network}": Fact("costs", f"{network}, batch 128 | all", "measured / model")
        for network in ("alexnet", "vgg16", "resnet50")
    },
    "execution/copy": Fact("execution", pattern=r"time of a copy, .*median error ([\d.]+%)\."),
    **{
        f"sub-batch/{name}": Fact(
            "sub-batches", f"1.5GiB (1.50 GiB) | {row}", "above the bound", "sub-batches"
        )
        for name, row in {
            "rule": "modnn | eq. 8 (TPDS)",
            "search": "modnn | search",
            "flow": "flow | search",
        }.items()
    },
    "modnn/single-image": Fact("papers-modnn", "mean", "time: sub-batch 1", "breakdown"),
    "modnn/static": Fact("papers-modnn", "5.1 | paper | vdnn-all-p", "moDNN faster by, mean", "speedups"),
    "modnn/dynamic": Fact("papers-modnn", "5.1 | paper | vdnn-plus", "moDNN faster by, mean", "speedups"),
    "modnn/saving": Fact("papers-modnn", "59 x, TPDS", "mean", "ratios"),
    "modnn/fewer": Fact("papers-modnn", "378 x, TPDS", "mean", "ratios"),
    "modnn/fewer-otherwise": Fact("papers-modnn", "378 x, TPDS", "mean with vgg101", "ratios"),
    "layrub/hybrid": Fact("papers-layrub", "mean", "`layrub-hybrid`", "time"),
    "layrub/at-speed": Fact("papers-layrub", "mean", "at the printed speed", "time"),
    "recomputation/met": Fact("recomputation", "39", "equal to the programme", "checkpointing"),
    "recomputation/number": Fact("recomputation", "39", "number", "checkpointing"),
    "ablations/nothing": Fact("ablations", "nothing", "median gap", "ablations"),
    "ablations/local-search": Fact("ablations", "local-search", "median gap", "ablations"),
    "ablations/moves": Fact("ablations", "moves", "median gap", "ablations"),
    "ablations/places": Fact("ablations", "places", "median gap", "ablations"),
    "ablations/relaxed-start": Fact("ablations", "relaxed-start", "median gap", "ablations"),
    "ablations/refinement": Fact("ablations", "refinement", "median gap", "ablations"),
    "ablations/hot-checkpoints": Fact("ablations", "hot-checkpoints", "median gap", "ablations"),
    "ablations/single-peak": Fact("ablations", "single-peak", "median gap", "ablations"),
    "g10/steps": Fact("g10", pattern=r"(\d+) steps, \d+ of them with a schedule"),
    "g10/solved": Fact("g10", pattern=r"\d+ steps, (\d+) of them with a schedule"),
    "g10/median": Fact("g10", pattern=r"G10 over its bound median \+([\d.]+%)"),
    "g10/worst": Fact("g10", pattern=r"G10 over its bound median .*?worst \+([\d.]+%)"),
    "g10/gap": Fact("g10", pattern=r"schedules over theirs median \+([\d.]+%)"),
    "g10/gap-worst": Fact("g10", pattern=r"schedules over theirs median .*?worst \+([\d.]+%)"),
    "g10/longer": Fact("g10", pattern=r"G10 over the schedules median .*?worst \+([\d.]+%)"),
    "host-memory/cells": Fact("host-memory", pattern=r"(\d+) cells: median"),
    "host-memory/median": Fact("host-memory", pattern=r"cells: median ([\d.]+%)"),
    "host-memory/worst": Fact("host-memory", pattern=r"cells: median .*?worst ([\d.]+%)"),
    "machine/cells": Fact("machine", pattern=r"(\d+) of \d+ cells: median"),
    "machine/median": Fact("machine", pattern=r"cells: median ([\d.]+%)"),
    "machine/worst": Fact("machine", pattern=r"cells: median .*?worst ([\d.]+%)"),
    "sides/points": Fact("link-and-optimizer", pattern=r"(\d+) points\. on the device"),
    "sides/device": Fact("link-and-optimizer", pattern=r"proven better than on the host: (\d+)"),
    "sides/host": Fact("link-and-optimizer", pattern=r"proven better than on the device: (\d+)"),
    "sides/both": Fact("link-and-optimizer", pattern=r"proven better than either: (\d+)"),
    "adversary/instances": Fact("reliability", pattern=r"begin adversary[\s\S]*?\*\*all\*\* \| ([\d,]+)"),
    "adversary/contradictions": Fact("reliability", "**all**", "contradictions", "adversary"),
    "torch/waits": Fact("torch", "all", "left out"),
    "torch/refused-waits": Fact("torch", "all", "refused"),
    "torch/eager": Fact("torch", "`gpt2_in_full`", "eager step", "costs"),
    "torch/planned": Fact("torch", "`gpt2_in_full`", "with all beside it", "costs"),
    "torch/per-operator": Fact("torch", "`gpt2_in_full`", "per operator", "costs"),
    "costs/V100/forward": Fact("costs", "V100", "forward", "validation"),
    "costs/V100/within": Fact("costs", "V100", "within 30 %", "validation"),
    "costs/K40/networks": Fact("costs", "K40", "networks", "validation"),
    "costs/GTX1080Ti/networks": Fact("costs", "GTX1080Ti", "networks", "validation"),
}
"""What the text takes from pages."""


def read_facts(pages: Pages) -> dict[str, str]:
    """Return every number that the text takes from pages, by name."""
    return {
        **{name: fact.read(pages) for name, fact in FACTS.items()},
        **_suite(pages),
        **_production(pages),
        **_link(pages),
        **_steady(pages),
        **_several_gpus(pages),
        **_torch(pages),
    }


def _suite(pages: Pages) -> dict[str, str]:
    """How many instances of the suite are closed in a minute, how many are open, and the worst gap."""
    header, *rows = pages.rows("suite-2026", "classes")
    *kinds, total = rows
    easy, hard, unproven = (int(total[header.index(word)] or 0) for word in ("easy", "hard", "open"))
    gaps = filter(math.isfinite, _column(header, kinds, "greatest gap"))
    return {
        "suite/kinds": str(len(kinds)),
        "suite/instances": str(easy + hard + unproven),
        "suite/easy": str(easy),
        "suite/open": str(unproven),
        "suite/worst": percent(max(gaps)),
    }


OURS = ("modnn", "flow", "flow-recompute")
"""Columns of the page on frameworks that are no framework's rule."""


def _production(pages: Pages) -> dict[str, str]:
    """How far rules of frameworks are from the bound of copies and second runs together."""
    header, *rows = pages.rows("production", "rules")
    over = {
        name.strip("`"): [_share(row[header.index(name)]) for row in rows] for name in header if "`" in name
    }
    facts = {
        "production/problems": str(len(rows)),
        "production/rules": str(len(over.keys() - {*OURS})),
        "production/copies-alone": percent(max(_column(header, rows, "bound of copies alone"))),
    }
    for name, values in over.items():
        facts[f"production/{name}/solved"] = str(sum(map(math.isfinite, values)))
        facts[f"production/{name}/median"] = percent(median(values))
        facts[f"production/{name}/worst"] = percent(max(filter(math.isfinite, values), default=math.inf))
    best = min(over.keys() - {*OURS}, key=lambda name: (median(over[name]), name))
    return facts | {"production/best-rule": best, "production/best-rule/median": percent(median(over[best]))}


def _link(pages: Pages) -> dict[str, str]:
    """In how many steps a shared link is proven to cost something, and how much at least and at most."""
    header, *rows = pages.rows("link-and-optimizer", "proofs")
    least = _column(header, rows, "costs at least")
    return {
        "link/problems": str(len(rows)),
        "link/proven": str(sum(value > 0 for value in least)),
        "link/least": percent(max(least)),
        "link/most": percent(max(_column(header, rows, "at most"))),
    }


def _steady(pages: Pages) -> dict[str, str]:
    """In how many steps the steady state is proven to be longer than the first iteration, and by how much."""
    header, *rows = pages.rows("steady-state", "iterations")
    proven = [value for value in _column(header, rows, "proven longer by") if math.isfinite(value)]
    return {
        "steady/problems": str(len(rows)),
        "steady/proven": str(len(proven)),
        "steady/most": percent(max(proven)),
    }


def _several_gpus(pages: Pages) -> dict[str, str]:
    """How far schedules for several GPUs are from their bounds."""
    header, *rows = pages.rows("several-gpus", "bounds")
    gaps = _column(header, rows, "gap")
    return {
        "gpus/problems": str(len(rows)),
        "gpus/gap": percent(median(gaps)),
        "gpus/worst": percent(max(gaps)),
    }


def _torch(pages: Pages) -> dict[str, str]:
    """How many kinds of planned training steps have the bits of eager torch, and which are refused."""
    header, *rows = pages.rows("torch", "steps")
    newest = [row for row in rows if row[header.index("torch 2.13.0")]]
    refused = sum("needs more" in row[header.index("torch 2.13.0")] for row in newest)
    return {
        "torch/networks": str(len({row[0] for row in rows})),
        "torch/kinds": str(len(newest)),
        "torch/same": str(len(newest) - refused),
        "torch/refused": str(refused),
    }


def _column(header: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> list[float]:
    return [_share(row[header.index(name)]) for row in rows]


def _share(cell: str) -> float:
    """A percentage as a number; infinite where the cell has none."""
    found = re.fullmatch(r"[+]?(-?[\d.]+) ?%", cell)
    return math.inf if found is None else float(found[1]) / 100
