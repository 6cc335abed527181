"""The page of the suite pebbler-2026: what is known of its instances, what is open, and how they were chosen.

``python docs/scripts/suite_2026.py --write`` reads the best-known values in docs/data/best-known, which
``pebbler best-known pebbler-2026 -o docs/data/best-known`` fills. It puts the tables into docs/suite-2026.md,
draws the pictures, writes the CSV file, and copies the values to where they are shipped from.
"""

from __future__ import annotations

import argparse
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from msgspec import UNSET

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.best_known import Record, Registry, read_registry
from pebbler.instances.files import write_atomically
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, least_budget, unlimited_peak
from pebbler.instances.suites.suite import find_suite, members
from pebbler.instances.units import format_time

SUITE = "pebbler-2026"
FOLDER = Path("docs/data/best-known")
SHIPPED = Path("instances/suites/best_known") / f"{SUITE}.json"
PAGE = Path("docs/suite-2026.md")
GAPS, SPACE = Path("docs/images/suite-2026-gaps.png"), Path("docs/images/suite-2026-space.png")

CLOSED = 0.001
"""Greatest gap of a closed instance."""
EASY_SECONDS = 60.0
"""Most seconds of all runs that improved an easy instance."""
CLASSES = ("easy", "hard", "open", "not tried")

MARKS = {
    name: (f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n") for name in ("kinds", "classes", "instances")
}

COLOURS = dict(
    zip(
        (
            "papers",
            "tight",
            "transformers",
            "torch",
            "parts",
            "recompute",
            "host",
            "steady",
            "link",
            "scaling",
            "pack",
            "random",
        ),
        (
            "#1f77b4",
            "#d62728",
            "#2ca02c",
            "#ff7f0e",
            "#9467bd",
            "#8c564b",
            "#e377c2",
            "#17becf",
            "#bcbd22",
            "#000000",
            "#7f7f7f",
            "#aec7e8",
        ),
        strict=True,
    )
)
MARKERS = {"easy": "o", "hard": "s", "open": "^", "not tried": "x"}
SHADES = {"easy": "#2ca02c", "hard": "#1f77b4", "open": "#d62728", "not tried": "#7f7f7f"}


@dataclass(frozen=True, slots=True)
class Known:
    """An instance of a suite, its kind and memory model, and what is known of it; None: nothing."""

    name: str
    kind: str
    memory: str
    record: Record | None

    @property
    def gap(self) -> float | None:
        """(makespan - lower bound) / lower bound; None without a schedule."""
        if self.record is None or self.record.makespan_ns is None:
            return None
        return self.record.bound.gap(self.record.makespan_ns)

    @property
    def seconds(self) -> float:
        """Seconds that all runs took which improved what is known."""
        steps = () if self.record is None or self.record.history is UNSET else self.record.history
        return sum(step.seconds for step in steps if step.seconds is not UNSET)

    @property
    def difficulty(self) -> str:
        """One of `CLASSES`, by what was measured."""
        if self.record is None:
            return "not tried"
        if self.gap is None or self.gap > CLOSED:
            return "open"
        return "easy" if self.seconds <= EASY_SECONDS else "hard"


def known(registry: Registry) -> list[Known]:
    """Return every instance of the suite with what is known of it, in the suite's order."""
    records = {record.instance: record for record in registry.records}
    return [
        Known(member.name, member.frozen.kind, member.frozen.memory, records.get(member.name))
        for member in members(find_suite(SUITE))
        if member.frozen is not None
    ]


@dataclass(frozen=True, slots=True)
class Features:
    """Where an instance lies among others.

    Attributes
    ----------
    tasks, blocks
        How many there are.
    room
        Where the budget lies between the least possible (0) and the peak without a limit (1).
    copies
        Time of copying every block to the host once, over the time without a memory limit.
    """

    tasks: int
    blocks: int
    room: float
    copies: float


def features(instance: Instance) -> Features:
    """Return the features of an instance."""
    least, peak = least_budget(instance), unlimited_peak(instance)
    offload = sum(block.offload_ns or 0 for block in instance.blocks)
    return Features(
        len(instance.tasks),
        len(instance.blocks),
        (instance.budget_bytes - least) / max(peak - least, 1),
        offload / max(ideal_ns(instance), 1),
    )


def all_features() -> dict[str, Features]:
    """Return the features of every instance of the suite, by name."""
    return {member.name: features(member.build()) for member in members(find_suite(SUITE))}


def kinds_table(found: dict[str, Features]) -> str:
    """Return what each kind is for, as Markdown."""
    purposes: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    memory: dict[str, Counter[str]] = {}
    for member in members(find_suite(SUITE)):
        if (part := member.frozen) is not None:
            purposes[part.kind] = part.purpose
            names.setdefault(part.kind, []).append(member.name)
            memory.setdefault(part.kind, Counter())[part.memory] += 1
    rows = []
    for kind, purpose in purposes.items():
        tasks = sorted(found[name].tasks for name in names[kind])
        told = ", ".join(f"{count} {model}" for model, count in sorted(memory[kind].items()))
        rows.append((f"`{kind}`", str(len(names[kind])), told, f"{tasks[0]} to {tasks[-1]}", purpose))
    return markdown(("kind", "instances", "memory", "tasks", "what it is for"), rows)


def classes_table(all_known: Sequence[Known]) -> str:
    """Return how many instances of each kind are in each class, as Markdown."""
    counts: dict[str, Counter[str]] = {}
    for one in all_known:
        counts.setdefault(one.kind, Counter())[one.difficulty] += 1
    rows = []
    for kind, count in counts.items():
        gaps = [one.gap for one in all_known if one.kind == kind and one.difficulty == "open"]
        worst = max((gap for gap in gaps if gap is not None), default=None)
        cells = [str(count[word] or "") for word in CLASSES]
        rows.append((f"`{kind}`", *cells, "" if worst is None else percent(worst)))
    total = Counter(one.difficulty for one in all_known)
    rows.append(("all", *(str(total[word] or "") for word in CLASSES), ""))
    return markdown(("kind", *CLASSES, "greatest gap"), rows)


def instances_table(all_known: Sequence[Known]) -> str:
    """Return what is known of each instance, as Markdown."""
    rows = []
    for one in all_known:
        record = one.record
        makespan = None if record is None else record.makespan_ns
        rows.append(
            (
                f"`{one.name}`",
                one.memory,
                "" if makespan is None else format_time(makespan),
                "" if record is None else format_time(record.lower_bound_ns),
                "" if one.gap is None else percent(one.gap),
                one.difficulty,
                "" if record is None else record.method or "",
            )
        )
    return markdown(("instance", "memory", "best time", "lower bound", "gap", "class", "method"), rows)


def as_csv(all_known: Sequence[Known], found: dict[str, Features]) -> str:
    """Return all of it as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ("instance", "kind", "memory_model", "tasks", "blocks", "room", "copies")
    writer.writerow([*header, *RECORDED])
    for one in all_known:
        at = found[one.name]
        about = (one.name, one.kind, one.memory, at.tasks, at.blocks, f"{at.room:.4f}", f"{at.copies:.4f}")
        writer.writerow([*about, *recorded(one)])
    return text.getvalue()


RECORDED = (
    *("makespan_ns", "lower_bound_ns", "bound_by", "certified"),
    *("class", "method", "seconds", "who", "date", "pebbler", "machine"),
)
"""Columns of what is known."""


def recorded(one: Known) -> list[object]:
    """Return the cells of these columns."""
    record = one.record
    if record is None:
        return ["", "", "", "", one.difficulty, "", "", "", "", "", ""]
    steps = () if record.history is UNSET else record.history
    last = steps[-1] if steps else None
    row: list[object] = [record.makespan_ns, record.lower_bound_ns, record.bound_by, record.certified]
    row += [one.difficulty, record.method, f"{one.seconds:.1f}"]
    return row + (["", "", "", ""] if last is None else [last.who, last.date, last.pebbler, last.machine])


def gaps_picture(all_known: Sequence[Known]) -> Figure:
    """Draw the gap of each instance by kind: what is open lies above the line."""
    kinds = list(dict.fromkeys(one.kind for one in all_known))
    with style.context("default"):
        figure = Figure(figsize=(9.0, 4.6), dpi=150, layout="constrained")
        axes = figure.subplots()
        least, most = CLOSED / 100, 100 * CLOSED
        points: dict[str, list[tuple[float, float]]] = {word: [] for word in CLASSES}
        for x, kind in enumerate(kinds):
            own = [one for one in all_known if one.kind == kind]
            for index, one in enumerate(own):
                place = x + 0.7 * ((index + 0.5) / len(own) - 0.5)
                if one.gap is not None:
                    gap = min(max(one.gap, least), most)
                else:
                    gap = least / 2 if one.record is None else most
                points[one.difficulty].append((place, 100 * gap))
        for word, places in points.items():
            if places:
                axes.plot(*zip(*places, strict=True), MARKERS[word], color=SHADES[word], markersize=5)
        axes.axhline(100 * CLOSED, color="#444444", linewidth=0.8, linestyle="--")
        axes.set_yscale("log")
        axes.set_ylim(100 * least / 3, 200 * most)
        axes.set_yticks(
            [0.001, 0.01, 0.1, 1, 10], ["at most\n0.001", "0.01", "0.1", "1", "10, or\nno schedule"]
        )
        axes.minorticks_off()
        axes.set_xticks(range(len(kinds)), kinds, rotation=30, ha="right")
        axes.set_xlim(-0.6, len(kinds) - 0.4)
        axes.set_ylabel("gap (%)")
        axes.spines[["top", "right"]].set_visible(False)
        counts = Counter(one.difficulty for one in all_known)
        handles = [
            Line2D(
                [],
                [],
                marker=MARKERS[word],
                color=SHADES[word],
                linestyle="",
                label=f"{word}: {counts[word]}",
            )
            for word in CLASSES
            if counts[word]
        ]
        axes.legend(
            handles=handles, frameon=False, ncols=len(handles), loc="lower left", bbox_to_anchor=(0, 1)
        )
    return figure


def space_picture(all_known: Sequence[Known], found: dict[str, Features]) -> Figure:
    """Draw where instances lie by room and copies: by kind on the left, by class on the right."""
    with style.context("default"):
        figure = Figure(figsize=(11.0, 5.2), dpi=150, layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, colours, words in (
            (left, COLOURS, [one.kind for one in all_known]),
            (right, SHADES, [one.difficulty for one in all_known]),
        ):
            for word, colour in colours.items():
                pairs = zip(all_known, words, strict=True)
                chosen = [found[one.name] for one, own in pairs if own == word]
                axes.scatter(
                    [max(at.copies, 0.03) for at in chosen],
                    [min(max(at.room, 0.0), 1.2) for at in chosen],
                    s=[12 + 0.05 * at.tasks for at in chosen],
                    color=colour,
                    marker=MARKERS.get(word, "o"),
                    alpha=0.75,
                    linewidths=0.8,
                )
        label(left, [(COLOURS[kind], "o", kind) for kind in dict.fromkeys(x.kind for x in all_known)])
        words = [word for word in CLASSES if any(one.difficulty == word for one in all_known)]
        label(right, [(SHADES[word], MARKERS[word], word) for word in words])
        left.set_ylabel("room: budget between the least (0) and the peak (1)")
    return figure


def label(axes: Axes, entries: Sequence[tuple[str, str, str]]) -> None:
    """Give a picture of instances its axis of copies, and a legend of colours, markers and words."""
    axes.set_xscale("log")
    axes.set_xlabel("copies: all blocks once, over the time without a limit")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Line2D([], [], marker=m, color=c, linestyle="", label=told) for c, m, told in entries]
    axes.legend(handles=handles, frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or write all that follows from what is known."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/suite_2026.py", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write page, pictures, CSV and what is shipped")
    options = parser.parse_args(arguments)
    values = FOLDER / f"{SUITE}.json"
    all_known, found = known(read_registry(values, SUITE)), all_features()
    page = PAGE if options.write else None
    publish(kinds_table(found), page, *MARKS["kinds"])
    publish(classes_table(all_known), page, *MARKS["classes"])
    publish(instances_table(all_known), page, *MARKS["instances"])
    if options.write:
        write_atomically(values.with_suffix(".csv"), as_csv(all_known, found).encode())
        write_atomically(SHIPPED, values.read_bytes())
        write_atomically(GAPS, png(gaps_picture(all_known)))
        write_atomically(SPACE, png(space_picture(all_known, found)))


if __name__ == "__main__":
    main()
