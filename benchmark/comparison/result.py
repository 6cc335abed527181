"""The result of a comparison: its rows, its table and its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from msgspec import UNSET

from ...instances.instance import Instance
from ...instances.memory import least_host_bytes
from ...instances.transforms import in_parts
from ...instances.units import PAGE_BYTES, format_size, format_time
from ...solver.bounds import Bound
from ...solver.result import Status
from ...validate.measures import carried_bytes
from ...validate.schedule import Schedule
from ..output.captions import limits_of
from ..output.table import format_html, format_table, line_width, wrapped
from .gpus import cluster_figures, cluster_notes


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of an iteration: all rounds of all instances.

    Attributes
    ----------
    iteration_ns, stall_ns
        Time of the iteration, and idle time of the compute stream in it, in nanoseconds.
    overhead
        (iteration time - ideal) / ideal.
    optimality_gap
        (iteration time - lower bound) / lower bound.
    makespan_ns
        Time of a round of the first instance.
    peak_bytes, average_bytes, pinned_bytes
        Greatest peak, time average, and most host memory of a round.
    offloaded_bytes, prefetched_bytes
        Totals of the iteration.
    """

    iteration_ns: int
    stall_ns: int
    overhead: float
    optimality_gap: float
    makespan_ns: int
    peak_bytes: int
    average_bytes: int
    offloaded_bytes: int
    prefetched_bytes: int
    pinned_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one method in a comparison: a row of its table.

    Attributes
    ----------
    method, status, stopped_by
        Name and status of the method, and why it ended: without a schedule, the reason.
    solve_seconds
        Wall time in seconds of the method on all instances, or of the search for its sub-batch.
    figures
        Figures of the schedules; None without a schedule.
    instances
        The instances that it solved: one, or a second one for a smaller last round.
    schedules
        One schedule for each instance; fewer if one is missing.
    bound
        The best known lower bound for these instances: that of the comparison, unless the method planned on
        other instances.
    planned
        Whether these are other instances than those of the comparison.
    """

    method: str
    status: Status
    stopped_by: str
    solve_seconds: float
    figures: Figures | None
    instances: tuple[Instance, ...]
    schedules: tuple[Schedule, ...]
    bound: Bound
    planned: bool = False

    @property
    def variant(self) -> str:
        """Kind of the instance that the method has scheduled."""
        return _variant(self.instances[0])

    @property
    def sub_batch(self) -> int | None:
        """Images of a round, if the instance has this number."""
        return self.instances[0].made_from.sub_batch

    @property
    def rounds(self) -> int:
        """Number of rounds of the iteration."""
        return sum(instance.rounds for instance in self.instances)

    @property
    def carried_bytes(self) -> int | None:
        """Most bytes of carried blocks on the device at both ends of a round; None without a schedule."""
        return max(map(carried_bytes, self.schedules)) if self.figures is not None else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of several methods on one iteration; prints as a table, and shows as one in a notebook.

    Attributes
    ----------
    instances
        The iteration: one instance, or a second one for a smaller last round. With `auto`, the whole batch in
        one round, and each row has its own instances.
    rows
        One row for each method, in the order in which they ran.
    ideal_ns
        Time of the iteration without a memory limit in nanoseconds: the sum of the fastest algorithms.
    bound
        The best known lower bound on the iteration time; with `auto`, the least over all sub-batches.
    auto
        Whether each method has its own sub-batch.
    least_budget
        M_min of all instances in bytes; with `auto`, M_floor, that of a single image.
    memory, seed
        Memory model of the schedules, and seed of random decisions.
    interrupted
        Whether the user ended the comparison before all methods had run.
    refuted
        Claimed bounds that checked schedules refute; no figure uses them.
    """

    instances: tuple[Instance, ...]
    rows: tuple[Row, ...]
    ideal_ns: int
    bound: Bound
    least_budget: int
    memory: str
    seed: int
    interrupted: bool
    auto: bool = False
    refuted: tuple[str, ...] = ()

    @property
    def instance(self) -> Instance:
        """The first instance, which names the comparison."""
        return self.instances[0]

    @property
    def variant(self) -> str:
        """Kind of the instance: ``whole``, ``parts``, ``mask`` or ``recompute``."""
        return _variant(self.instance)

    def as_dict(self) -> dict[str, Any]:
        """Return the output of ``compare --json``."""
        instance = self.instance
        bound = self.bound.as_dict()
        origin = instance.made_from
        rounds = sum(part.rounds for part in self.instances)
        shared = {"memory_model": self.memory, "seed": self.seed}
        missing = dict.fromkeys(f.name for f in fields(Figures))
        return {
            "instance": {
                "name": instance.name,
                "network": origin.network,
                "batch": origin.batch,
                "sub_batch": origin.sub_batch,
                "device": origin.device,
                "cudnn": origin.cudnn,
                "cost_model_version": origin.cost_model_version,
                "graph": origin.graph,
                "engines": instance.engines,
                "budget_bytes": instance.budget_bytes,
                "least_budget_bytes": self.least_budget,
                "resident_bytes": instance.resident_bytes,
                "rounds": rounds,
                "gpus": instance.gpus,
                "tasks": len(instance.tasks),
                "blocks": len(instance.blocks),
            },
            "ideal_ns": self.ideal_ns,
            **bound,
            "interrupted": self.interrupted,
            "refuted": list(self.refuted),
            **cluster_figures(self.instances),
            "results": [
                {
                    "method": row.method,
                    "status": row.status,
                    "stopped_by": row.stopped_by,
                    **(asdict(row.figures) if row.figures else missing),
                    **row.bound.as_dict(),
                    **shared,
                    **({"carried_bytes": row.carried_bytes} if row.instances[0].carried else {}),
                    "variant": row.variant,
                    "sub_batch": row.sub_batch,
                    "rounds": row.rounds,
                    "solve_seconds": row.solve_seconds,
                }
                for row in self.rows
            ],
        }

    @property
    def best(self) -> Row | None:
        """The row with the shortest iteration, of equal ones the first; None where there is no schedule."""
        solved = [row for row in self.rows if row.figures is not None]
        return min(solved, key=lambda row: row.figures.iteration_ns if row.figures else 0, default=None)

    def __str__(self) -> str:
        told = ("instance", "lower bound", "planned", "warning", "interrupted")
        return self._text([note for note in self._notes() if note[0] in told], "")

    def summary(self) -> str:
        """The table with all that it rests on, as ``pebbler compare`` prints it."""
        return self._text(self._notes(), _LEGEND)

    def _repr_html_(self) -> str:
        columns = _columns([row for row in self.rows if row.figures is not None])
        rows: list[tuple[str, ...]] = [*zip(*columns.values(), strict=True)]
        rows += [(methods, f"{words}: {reason}") for words, methods, reason in self._failures()]
        plans = (f"planned: {plan}" for plan in self._plans())
        caption = "; ".join((_describe(self.instances), f"lower bound {self._told_bound()}", *plans))
        return format_html(tuple(columns) or ("method", "status"), rows, caption)

    def _text(self, notes: list[tuple[str, str]], legend: str) -> str:
        width = line_width()
        solved = [row for row in self.rows if row.figures is not None]
        parts = []
        if solved:
            columns = _columns(solved)
            table = format_table(
                tuple(columns),
                [*zip(*columns.values(), strict=True)],
                "ll".ljust(len(columns), "r"),
                width,
            )
            parts = [table, *([wrapped(legend, width)] if legend else [])]
        failures = [(words, f"{methods}: {reason}") for words, methods, reason in self._failures()]
        for facts in filter(None, (failures, notes)):
            lines = (wrapped(text, width, first=f"{name + ':':<13} ", indent=14) for name, text in facts)
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def _told_bound(self) -> str:
        return f"{self.bound}" + (", the least over all sub-batches" if self.auto else "")

    def _failures(self) -> list[tuple[str, str, str]]:
        """Return the methods without a schedule and what became of them, grouped by the reason."""
        methods: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.figures is None:
                methods.setdefault((row.status.words, row.stopped_by), []).append(row.method)
        return [(words, ", ".join(names), reason) for (words, reason), names in methods.items()]

    def _notes(self) -> list[tuple[str, str]]:
        instance = self.instance
        least = least_host_bytes(instance, PAGE_BYTES if self.memory == "paged" else 1)
        notes = [
            ("instance", _describe(self.instances)),
            (
                "budget",
                f"{instance.budget_bytes} bytes ({format_size(instance.budget_bytes)}), of which "
                f"{format_size(instance.resident_bytes)} are resident; "
                f"the least possible is {format_size(self.least_budget)}",
            ),
            *([("carried", _told_carried(instance))] if instance.carried else []),
            *(
                []
                if instance.host_budget_bytes is UNSET
                else [
                    (
                        "host memory",
                        f"{format_size(instance.host_budget_bytes)} for copies"
                        + (f"; nothing works with less than {format_size(least)}" if least else ""),
                    )
                ]
            ),
            ("ideal", f"{format_time(self.ideal_ns)} ({_told_ideal(instance)})"),
            ("lower bound", self._told_bound()),
            (
                "model",
                f"{_GRAPHS[instance.made_from.graph]}, {_told_copies(instance)}, "
                f"{self.memory} memory, tensors {self.variant}",
            ),
            *(("planned", told) for told in self._plans()),
            *cluster_notes(
                self.instances,
                {row.method: row.figures.iteration_ns for row in self.rows if row.figures is not None},
            ),
            ("limits", str(limits_of(instance))),
        ]
        warnings = {row.instances[0].made_from.notes for row in self.rows}
        told = sorted(filter(None, warnings))
        notes += [("warning", warning) for warning in (*told, *self.refuted)]
        if self.interrupted:
            notes.append(("interrupted", "methods that had not ended are missing, and bounds may be far off"))
        return notes

    def _plans(self) -> list[str]:
        """Return the methods that worked on other instances, whose bounds differ."""
        methods: dict[str, list[str]] = {}
        for row in self.rows:
            if row.planned:
                told = f"{format_time(row.bound.lower_bound_ns)} ({row.bound.bound_by})"
                methods.setdefault(f"{row.instances[0].name}, lower bound {told}", []).append(row.method)
        return [f"{', '.join(names)} on {which}" for which, names in methods.items()]


def _told_ideal(instance: Instance) -> str:
    told = "fastest algorithms, no memory limit"
    return f"{told}, nothing for what may run on the host" if instance.has_host_work else told


def _told_copies(instance: Instance) -> str:
    copies = _COPIES[instance.engines]
    if instance.link is UNSET:
        return copies
    return f"{copies} over a link of {instance.link.both_bytes_per_second / 1e9:g} GB/s for both"


def _told_carried(instance: Instance) -> str:
    size = format_size(sum(instance.blocks[d].bytes for d in instance.carried))
    return (
        f"{size} of {len(instance.carried)} blocks, which a round finds where the one before has left them; "
        "the column says how much of it is on the device at both ends, the rest is on the host"
    )


_LEGEND = (
    "overhead: over the ideal. gap: over the lower bound; optimal: there is none. stalls: share of the time "
    "without compute. moved: copied out and back. solve time: of the method alone."
)
"""Text that explains the columns of the table."""


_GRAPHS = {
    "executable": "tasks as they can be executed (graph executable)",
    "paper": "tasks as papers count them (graph paper)",
    None: "tasks of the file",
}
"""Texts for the kinds of graphs."""


_COPIES = {"duplex": "copies out and back at once (duplex)", "single": "one copy at a time (single)"}
"""Texts for the kinds of copy engines."""


def _columns(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the columns of the table of methods with a schedule, by their titles.

    There is a column with the gap to the certified bound if this is less than the bound, one with what is
    carried on the device where blocks are carried, and one with rounds if there are several.
    """
    columns: dict[str, list[str]] = {}
    exactly = any(not row.bound.certified for row in rows)
    in_rounds = any(row.rounds > 1 for row in rows)
    carries = any(row.instances[0].carried for row in rows)
    for row in rows:
        figures = row.figures
        assert figures is not None
        proven = row.bound.certified_ns
        cells = {
            "method": row.method,
            "status": row.status.words,
            "iteration": format_time(figures.iteration_ns),
            "overhead": f"{figures.overhead:.2%}",
            "gap": f"{figures.optimality_gap:.2%}",
            "certified gap": f"{(figures.iteration_ns - proven) / max(proven, 1):.2%}" if exactly else None,
            "stalls": f"{figures.stall_ns / max(figures.iteration_ns, 1):.1%}",
            "peak memory": format_size(figures.peak_bytes),
            "carried": format_size(row.carried_bytes or 0) if carries else None,
            "moved": f"{(figures.offloaded_bytes + figures.prefetched_bytes) / 1e9:.2f} GB",
            "rounds": _rounds(row.instances) if in_rounds else None,
            "solve time": f"{row.solve_seconds:.2f} s",
        }
        for title, cell in cells.items():
            if cell is not None:
                columns.setdefault(title, []).append(cell)
    return columns


def _rounds(instances: Sequence[Instance]) -> str:
    """Return the number of rounds, and the number of their images if the instances have it."""
    sizes = [instance.made_from.sub_batch for instance in instances]
    if None in sizes:
        return " and ".join(str(instance.rounds) for instance in instances)
    words = (f"{instance.rounds} of {size}" for instance, size in zip(instances, sizes, strict=True))
    return f"{' and '.join(words)} images"


def _variant(instance: Instance) -> str:
    """Return which of ``mask``, ``recompute`` and ``parts`` the instance has been through, or ``whole``."""
    kinds = {transform.kind for transform in instance.applied}
    words = [kind for kind in ("mask", "recompute") if kind in kinds]
    return "+".join([*words, *(["parts"] if in_parts(instance) else [])]) or "whole"


def _describe(instances: Sequence[Instance]) -> str:
    """Return network, device and rounds of an iteration in words."""
    origin = instances[0].made_from
    library = f" with cuDNN {origin.cudnn}" if origin.cudnn else ""
    words = [origin.network or "", f"on {origin.device}{library}" if origin.device else ""]
    asked = " ".join(filter(None, words))
    batch = f"a batch of {origin.batch}" if origin.batch else ""
    rounds = [
        f"{instance.rounds} round{'s' * (instance.rounds > 1)} of {instance.name} "
        f"({len(instance.tasks)} tasks, {len(instance.blocks)} blocks)"
        for instance in instances
    ]
    return ", ".join(filter(None, (asked, batch, " and ".join(rounds))))
