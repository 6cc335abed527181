"""Does a training iteration fit a device? Yes by a checked schedule, no by a proof, else nobody knows yet.

Four ways of training are asked: all in memory, with tasks that run again, with copies to the host, and with
both. For each the batch that is asked for, the largest batch, what limits it, and the time that it costs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
from msgspec import UNSET

from ...heuristics.clock import OutOfTime, left, until
from ...heuristics.methods import Limits
from ...heuristics.recomputation.reruns import staying
from ...instances.arguments import require_whole
from ...instances.errors import PebblerError
from ...instances.instance import Instance
from ...instances.memory import ideal_ns
from ...instances.networks.optimizers import kept, require_optimizer
from ...instances.networks.taskgraph import FLOAT_BYTES
from ...instances.origin import VALUE_BYTES
from ...instances.transforms import with_recomputation
from ...instances.units import format_size, format_time
from ...instances.workload import Workload, require_workload
from ...validate.schedule import Schedule
from ..output.table import format_table, line_width, wrapped
from .largest_batch import BatchSearch, LargestBatch, rounds

Answer = Literal["yes", "no", "unknown"]

RESERVE = 3 * 2**29
"""Bytes of device memory that are not ours where nobody says otherwise: 1.5 GiB.

An assumption: the context, the kernels and the libraries' workspaces take from 0.3 to 1.3 GB on current GPUs
(Hugging Face, "Model training anatomy", measures 1343 MB for a process whose tensors take next to nothing),
and what is left of it is for fragments of the framework's allocator.
"""

SECONDS = 45.0
"""Time of the command where none is given: with what comes before and after it, it takes a minute."""

_SEARCH_SHARE = 0.5
"""Of the time, what the searches for the largest batches may take; the rest betters what is shown."""

_A_TRY = 3.0
"""Seconds that a search for a schedule may take at a batch that the rules do not manage."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Way:
    """A way of training: whether blocks go to the host, and whether tasks run again.

    Attributes
    ----------
    name
        How it is shown, and what its instances' names end in.
    copies, reruns
        What it may do.
    methods
        Rules that have a schedule quickly, the best first; the last is a search, which proves bounds as well.
    """

    name: str
    copies: bool
    reruns: bool
    methods: tuple[str, ...]

    def instance(self, instance: Instance) -> Instance:
        """Return what is scheduled of a round."""
        name = f"{instance.name}-{self.name.replace(' ', '-')}"
        if self.reruns:
            instance = with_recomputation(instance)
        if not self.copies:
            instance = staying(instance)
        return msgspec.structs.replace(instance, name=name)


WAYS = (
    Way("in memory", copies=False, reruns=False, methods=("network-wide", "tensorflow-rule", "flow")),
    Way(
        "recomputation",
        copies=False,
        reruns=True,
        methods=("knapsack-rule", "superneurons-rule", "memonger-rule", "flow-recompute"),
    ),
    Way("copies", copies=True, reruns=False, methods=("modnn", "vdnn-dyn", "flow")),
    Way(
        "both",
        copies=True,
        reruns=True,
        methods=("superneurons-rule", "knapsack-rule", "modnn", "memonger-rule", "flow-recompute"),
    ),
)
"""The ways that are asked."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a way.

    Attributes
    ----------
    way
        Its name.
    answer
        At the batch that was asked for.
    makespan_ns, overhead, method
        Of the shortest schedule, and whose it is; None without one.
    least_overhead
        What is proven of any schedule's; None where there is none.
    why
        What excludes the batch, or why no schedule was found; None with one.
    batches
        The search for the largest batch.
    """

    way: str
    answer: Answer
    makespan_ns: int | None
    overhead: float | None
    method: str | None
    least_overhead: float | None
    why: str | None
    batches: LargestBatch


class Fits(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a training iteration fits a device.

    Attributes
    ----------
    network, device, batch, optimizer, memory_model
        What was asked.
    memory_bytes, reserve_bytes, budget_bytes
        Of the device, what is not ours, and what is.
    resident_bytes, optimizer_bytes
        Weights, gradients and optimizer state; and the last of it alone. In a steady state they are blocks,
        and nothing is resident.
    ideal_ns
        Time of the iteration without a memory limit.
    rows
        A way each.
    stopped_by
        ``done``, ``time limit`` or ``interrupted``.
    host_bytes
        Host memory for copies; None: it never ends.
    carried_bytes
        Of a steady state, weights and optimizer state, on the device or the host; else 0.
    """

    network: str
    device: str
    batch: int
    optimizer: str
    memory_model: Literal["contiguous", "paged"]
    memory_bytes: int
    reserve_bytes: int
    budget_bytes: int
    resident_bytes: int
    optimizer_bytes: int
    ideal_ns: int
    rows: tuple[Row, ...]
    stopped_by: str
    host_bytes: int | None = None
    carried_bytes: int = 0

    @property
    def answer(self) -> Answer:
        """Yes where some way fits, no where none can."""
        answers = {row.answer for row in self.rows}
        return "yes" if "yes" in answers else "no" if answers == {"no"} else "unknown"

    def __str__(self) -> str:
        header = (
            "way",
            "fits",
            "time",
            "overhead",
            "at least",
            "method",
            "largest",
            "its overhead",
            "no from",
        )
        table = format_table(header, [_cells(row) for row in self.rows], "llrrrlrrr")
        width = line_width()
        asked = (
            f"{self.network} on {self.device}, a batch of {self.batch}; ideal {format_time(self.ideal_ns)}; "
            f"{self.memory_model} memory; stopped by: {self.stopped_by}"
        )
        if self.carried_bytes:
            kept = (
                f"; {format_size(self.carried_bytes)} of weights and, for {self.optimizer}, "
                f"{format_size(self.optimizer_bytes)} of optimizer state among them, are carried from one "
                "iteration to the next, on the device or the host"
            )
        else:
            kept = (
                f", of which {format_size(self.resident_bytes)} are weights, gradients and, for "
                f"{self.optimizer}, {format_size(self.optimizer_bytes)} of optimizer state"
            )
        memory = (
            f"{format_size(self.memory_bytes)} less a reserve of {format_size(self.reserve_bytes)} are "
            f"{format_size(self.budget_bytes)}{kept}"
            + ("" if self.host_bytes is None else f"; the host has {format_size(self.host_bytes)} for copies")
        )
        lines = [
            f"{self.answer}: {_VERDICTS[self.answer]}",
            "",
            table,
            "",
            wrapped(asked, width),
            wrapped(memory, width, first="memory:  ", indent=9),
        ]
        for row in self.rows:
            why = row.batches.limited_by if row.answer == "yes" else row.why
            if why is not None:
                lines.append(wrapped(f"{row.way}: {why}", width, first="limits:  ", indent=9))
        return "\n".join(lines)


_VERDICTS: dict[Answer, str] = {
    "yes": "there is a checked schedule",
    "no": "every way is proven impossible at this batch",
    "unknown": "no schedule was found at this batch, and not every way is proven impossible",
}


def fits(
    workload: Workload,
    budget_bytes: int,
    *,
    optimizer: str | None = None,
    reserve_bytes: int = 0,
    time_limit: float | None = SECONDS,
    seed: int = 0,
    workers: int = 1,
    memory: Literal["contiguous", "paged"] = "contiguous",
    on_found: Callable[[Instance, Schedule], None] | None = None,
) -> Fits:
    """Ask whether an iteration fits, in one round of its whole batch, in each of `WAYS`.

    Parameters
    ----------
    workload
        The network, its batch and the device.
    budget_bytes
        Memory for all of it: weights, gradients, optimizer state and what a round needs.
    optimizer
        One of `STATES`, by default ``adam``; what it keeps is resident, and the time of its step is left out.
        A steady state has its own, whose step is in the iteration: leave it out there.
    reserve_bytes
        What of the device's memory is not in the budget, to be shown.
    time_limit
        Seconds for all; None means until each search is done.
    seed, workers, memory
        As for `solve`.
    on_found
        Called in the end with the schedules at the workload's batch and at the largest ones.

    Raises
    ------
    PebblerError
        For an unknown optimizer, or a wrong argument.
    """
    require_workload(workload)
    require_whole("budget_bytes", budget_bytes, 0)
    require_whole("reserve_bytes", reserve_bytes, 0)
    Limits(time_limit, seed, workers, memory)
    if workload.updated_by is not None and optimizer is not None:
        raise PebblerError(
            f"the workload is a steady state, which '{workload.updated_by}' updates; leave 'optimizer' out"
        )
    optimizer = workload.updated_by or optimizer or "adam"
    state = optimizer_bytes(workload, optimizer)
    whole = rounds(workload, budget_bytes)
    searches = [
        BatchSearch(
            workload,
            budget_bytes,
            way.methods,
            _variants(whole, way, 0 if workload.steady else state),
            time_limit=_A_TRY,
            seed=seed,
            workers=workers,
            memory=memory,
        )
        for way in WAYS
    ]
    batch, stopped_by = workload.batch, "done"
    try:
        with until(math.inf if time_limit is None else time.monotonic() + time_limit):
            _search(searches, batch)
    except OutOfTime:
        stopped_by = "time limit"
    except KeyboardInterrupt:
        stopped_by = "interrupted"
    rows = tuple(_row(way, search, batch, stopped_by) for way, search in zip(WAYS, searches, strict=True))
    if on_found is not None:
        for search, row in zip(searches, rows, strict=True):
            for size in dict.fromkeys((batch, row.batches.largest_batch or batch)):
                if size in search.schedules:
                    on_found(search.instance(size), search.schedules[size])
    asked = searches[0].instance(batch)
    return Fits(
        network=workload.name,
        device=workload.device,
        batch=batch,
        optimizer=optimizer,
        memory_model=memory,
        memory_bytes=budget_bytes + reserve_bytes,
        reserve_bytes=reserve_bytes,
        budget_bytes=budget_bytes,
        resident_bytes=asked.resident_bytes,
        optimizer_bytes=state,
        ideal_ns=ideal_ns(asked),
        rows=rows,
        stopped_by=stopped_by,
        host_bytes=None if asked.host_budget_bytes is UNSET else asked.host_budget_bytes,
        carried_bytes=sum(asked.blocks[d].bytes for d in asked.carried),
    )


def optimizer_bytes(workload: Workload, optimizer: str) -> int:
    """Return what an optimizer keeps for the parameters of a workload, in single precision.

    Raises
    ------
    PebblerError
        For an unknown optimizer.
    """
    require_optimizer(optimizer)
    numbers = len(kept(optimizer, workload.precision))
    if not numbers:
        return 0
    return numbers * workload.parameter_bytes() * FLOAT_BYTES // VALUE_BYTES[workload.precision]


def _variants(whole: Callable[[int], Instance], way: Way, state: int) -> Callable[[int], Instance]:
    """Return what makes of a batch the instance of a way, with optimizer state resident, each once."""

    @cache
    def vary(batch: int) -> Instance:
        instance = whole(batch)
        resident = instance.resident_bytes + state
        meta = {**instance.meta, "optimizer_bytes": state}
        return way.instance(msgspec.structs.replace(instance, resident_bytes=resident, meta=meta))

    return vary


def _search(searches: Sequence[BatchSearch], batch: int) -> None:
    """Settle the batch by proofs and rules, look for the largest batches, and better what is shown.

    Raises
    ------
    KeyboardInterrupt, OutOfTime
        When the user ends it, or the deadline has passed; what is known stays.
    """
    asked = [search for search in searches if search.possible(batch)]
    for search in asked:
        for rule in search.methods[:-1]:
            if search.improved(batch, rule):
                break
    _share(searches, batch)
    for search in searches:
        search.limit()
    ends = time.monotonic() + _SEARCH_SHARE * left()
    for i, search in enumerate(searches):
        now = time.monotonic()
        with suppress(OutOfTime), until(now + (ends - now) / (len(searches) - i)):
            search.run()
    _share(searches)
    wanted = [(search, batch) for search in asked]
    for search in searches:
        largest = search.largest
        if largest is not None and largest != batch:
            wanted.append((search, largest))
    for i, (search, size) in enumerate(wanted):
        point = search.points[size]
        if point.makespan_ns != point.lower_bound_ns:
            _log.info("a batch of %d: %s", size, search.methods[-1])
            search.improved(size, search.methods[-1], left() / (len(wanted) - i))
            _share(searches, size)


def _share(searches: Sequence[BatchSearch], size: int | None = None) -> None:
    """Let each way take over the schedules of the ways that may do less; at one batch, or at all."""
    for i, (way, search) in enumerate(zip(WAYS, searches, strict=True)):
        for less, other in zip(WAYS[:i], searches[:i], strict=True):
            if less.copies <= way.copies and less.reruns <= way.reruns:
                for batch, schedule in other.schedules.items():
                    if size in (None, batch):
                        search.adopt(batch, schedule)


def _row(way: Way, search: BatchSearch, batch: int, stopped_by: str) -> Row:
    point = search.points.get(batch)
    why, answer = search.why_not(batch), "unknown"
    if why is not None:
        answer = "no"
    elif point is not None and point.within:
        answer = "yes"
    else:
        why = "no method was tried" if point is None else point.stopped_by
    return Row(
        way=way.name,
        answer=answer,  # type: ignore[arg-type]
        makespan_ns=None if point is None else point.makespan_ns,
        overhead=None if point is None else point.overhead,
        method=None if point is None else point.method,
        least_overhead=None if point is None or answer == "no" else point.least_overhead,
        why=why,
        batches=search.found(stopped_by),
    )


def _cells(row: Row) -> tuple[str, ...]:
    found = row.batches
    largest = next((point for point in found.points if point.batch == found.largest_batch), None)
    return (
        row.way,
        row.answer,
        "" if row.makespan_ns is None else format_time(row.makespan_ns),
        "" if row.overhead is None else f"{row.overhead:.1%}",
        "" if row.least_overhead is None else f"{row.least_overhead:.1%}",
        row.method or "",
        "none" if largest is None else str(largest.batch),
        "" if largest is None or largest.overhead is None else f"{largest.overhead:.1%}",
        "" if found.excluded_from is None else str(found.excluded_from),
    )
