"""The checker for several GPUs: each GPU's program is valid, gradients are whole, times fit the bus.

As for one GPU, the proof rests on the order that the program forces, not on the predicted times. By the
vector clocks of all streams, each GPU's part is a program of its own, with the waits that the other GPUs
impose. The checker for one GPU proves that this program is valid. In addition, each gradient of each GPU must
be sent after it is complete, and added on the host after it is there. The weights must return after all
gradients are added, and after the GPU's last read of the old weights. The times are checked last: a copy must
be on its bus for exactly as long as it takes with its fair share.

This module imports no solver, no heuristic and not the simulator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from itertools import pairwise

from msgspec import UNSET
from msgspec.structs import replace

from ...instances.gpus.cluster import SECOND
from ...instances.instance import Instance
from ..check import CheckReport, check_apart, origin_reasons
from ..check import check as check_one_gpu
from ..schedule import Kind, Operation, Schedule, Stream, as_from_files
from .program import (
    Bus,
    Clocks,
    Track,
    alone_ns,
    bus_load,
    bus_of,
    clocks,
    cluster_of,
    gpu_programs,
    one_gpu,
    track_of,
)


def check(instance: Instance, schedule: Schedule, *, instance_sha256: str | None = None) -> CheckReport:
    """Prove that a schedule for one GPU or for several is valid, or say why not.

    Parameters
    ----------
    instance, schedule
        The schedule to check, and the instance that it is for.
    instance_sha256
        SHA-256 checksum of the instance's file, to compare with the checksum in the schedule.

    Returns
    -------
    CheckReport
        Whether the schedule is valid, and every reason if it is not.

    Raises
    ------
    FormatError
        When a file cannot hold the instance or the schedule, or the schedule names a task, an algorithm or a
        block that the instance does not have.
    """
    prove = check_one_gpu if getattr(instance, "cluster", UNSET) is UNSET else check_cluster
    return prove(instance, schedule, instance_sha256=instance_sha256)


def check_cluster(
    instance: Instance, schedule: Schedule, *, instance_sha256: str | None = None
) -> CheckReport:
    """Prove that a schedule is valid for an instance with a cluster; parameters and errors as for `check`."""
    instance, schedule = as_from_files(instance, schedule)
    if instance.cluster is UNSET:
        return check_one_gpu(instance, schedule, instance_sha256=instance_sha256)
    reasons = origin_reasons(instance, schedule, instance_sha256)
    if schedule.host_peak_bytes is not UNSET:
        reasons.append("the schedule has host_residences, and host memory of several GPUs has no budget")
    schedule = _with_own_stays(instance, schedule, reasons)
    known = clocks(cluster_of(instance), schedule.operations)
    peak = 0
    for gpu, program in enumerate(gpu_programs(instance, schedule, known)):
        found, own_peak = check_apart(one_gpu(instance), program)
        reasons += (f"GPU {gpu}: {reason}" for reason in found)
        peak = max(peak, own_peak)
    if schedule.peak_bytes != peak:
        reasons.append(f"peak_bytes is {schedule.peak_bytes}, it is {peak}")
    reasons += _Gradients(instance, schedule, known).reasons
    reasons += _time_reasons(instance, schedule)
    return CheckReport(not reasons, tuple(reasons))


def _with_own_stays(instance: Instance, schedule: Schedule, reasons: list[str]) -> Schedule:
    """Report residences that begin or end with another GPU's or a gradient's operation, and leave that out.

    Only a GPU's own runs and copies acquire and release its memory. The rest is checked as usual: a residence
    without a foreign release lasts longer, and a residence that a foreign operation acquires is absent.
    """
    own = {
        operation.id: operation.gpu if operation.gradient is None else None
        for operation in schedule.operations
    }
    stays = []
    for stay in schedule.residences:
        what = (
            f"'{instance.blocks[stay.block].name}'"
            if stay.block is not None
            else f"the workspace of operation {stay.workspace_of}"
        )
        for word, named in (("acquired", (stay.acquired_by,)), ("released", stay.released_after)):
            reasons += (
                f"GPU {stay.gpu}: {what} is {word} by operation {other}, no run and no copy of that GPU"
                for other in named
                if other is not None and own[other] != stay.gpu
            )
        if stay.workspace_of is not None and own[stay.workspace_of] != stay.gpu:
            reasons.append(f"GPU {stay.gpu}: it has {what}, no run and no copy of that GPU")
        if all(i is None or own[i] == stay.gpu for i in (stay.workspace_of, stay.acquired_by)):
            released = tuple(i for i in stay.released_after if own[i] == stay.gpu)
            stays.append(replace(stay, released_after=released))
    return replace(schedule, residences=tuple(stays))


class _Gradients:
    """The proof that gradients are added up whole, and weights are replaced when no operation reads them."""

    def __init__(self, instance: Instance, schedule: Schedule, known: Clocks) -> None:
        self.cluster = cluster_of(instance)
        self.instance = instance
        self.operations = schedule.operations
        self.known = known
        self.reasons: list[str] = []
        self.runs: dict[tuple[int, int], list[int]] = defaultdict(list)  # by GPU and task
        self.found: dict[tuple[Kind, int, int], list[int]] = defaultdict(list)  # by kind, gradient and GPU
        for p, operation in enumerate(self.operations):
            if operation.task is not None:
                self.runs[operation.gpu, operation.task].append(p)
            if operation.gradient is not None:
                self.found[operation.kind, operation.gradient, operation.gpu].append(p)
        self.streams()
        for g in range(len(self.cluster.gradients)):
            self.gradient(g)

    def name(self, p: int) -> str:
        """Return operation at position `p` in words."""
        operation = self.operations[p]
        assert operation.gradient is not None
        return (
            f"operation {operation.id} ({operation.kind} of "
            f"'{self.cluster.gradients[operation.gradient].name}', GPU {operation.gpu})"
        )

    def streams(self) -> None:
        """Check that every operation on a gradient is on the stream of its kind."""
        single = self.instance.engines == "single"
        proper: Mapping[str, Stream] = {
            "send": "copy" if single else "d2h",
            "return": "copy" if single else "h2d",
            "accumulate": "cpu",
            "exchange": "network",
            "reduce": "nvlink",
        }
        for p, operation in enumerate(self.operations):
            if operation.gradient is not None and operation.stream != proper[operation.kind]:
                self.reasons.append(
                    f"{self.name(p)} is on stream {operation.stream}, not on {proper[operation.kind]}"
                )

    def gradient(self, g: int) -> None:
        """Check one gradient, from the runs that complete it to the return of the weights."""
        cluster, gradient = self.cluster, self.cluster.gradients[g]
        gpus = range(cluster.gpus) if cluster.gpus > 1 else range(0)
        on_host = cluster.joins_on_host
        together = range(1) if len(gpus) else gpus
        wanted: dict[Kind, Iterable[int]] = {
            "send": gpus if on_host else (),
            "accumulate": gpus if on_host else (),
            "exchange": together if cluster.nodes > 1 else (),
            "return": gpus if on_host else (),
            "reduce": () if on_host else together,
        }
        for kind, places in wanted.items():
            for gpu in range(cluster.gpus):
                count = len(self.found[kind, g, gpu])
                if count != (gpu in places):
                    self.reasons.append(
                        f"'{gradient.name}' of GPU {gpu} has {count} operations '{kind}', "
                        f"not {int(gpu in places)}"
                    )
        complete = {gpu: self.runs[gpu, gradient.produced_by] for gpu in gpus}
        for gpu, runs in complete.items():
            if len(runs) > 1:
                self.reasons.append(f"GPU {gpu} computes '{gradient.name}' again, which would count twice")
        read = {gpu: [p for k in gradient.used_by for p in self.runs[gpu, k]] for gpu in gpus}

        def of(kind: Kind, which: Iterable[int]) -> list[int]:
            return [p for gpu in which for p in self.found[kind, g, gpu]]

        for gpu in gpus:
            node = range(gpu - gpu % cluster.node_gpus, gpu - gpu % cluster.node_gpus + cluster.node_gpus)
            self.ordered(complete[gpu], of("send", [gpu]), "it is complete")
            self.ordered(of("send", [gpu]), of("accumulate", [gpu]), "it is on the host")
            added = of("exchange", [0]) if cluster.nodes > 1 else of("accumulate", node)
            self.ordered(added, of("return", [gpu]), "all of them are added up")
            self.ordered(read[gpu], of("return", [gpu]), "the last task that reads the weights has ended")
            self.ordered(complete[gpu], of("reduce", [0]), f"it is complete on GPU {gpu}")
            self.ordered(
                read[gpu], of("reduce", [0]), f"the last task on GPU {gpu} that reads the weights has ended"
            )
        self.ordered(of("accumulate", gpus), of("exchange", [0]), "each node has added its own")

    def ordered(self, before: list[int], after: list[int], what: str) -> None:
        """Check that every operation of one kind ends before each of the other starts, in every execution."""
        for q in after:
            for p in before:
                track = track_of(self.cluster, self.operations[p])
                if p == q or self.known.at(q, track) < p:
                    self.reasons.append(f"{self.name(q)} may start before {what}")
                    break


def _time_reasons(instance: Instance, schedule: Schedule) -> list[str]:
    """Compare the reported times with those that follow from the program and the shares of the buses."""
    reasons = []
    ends: dict[int, int] = {}
    free: dict[Track, int] = {}
    flights: dict[Bus, list[Operation]] = defaultdict(list)
    for operation in schedule.operations:
        track = track_of(cluster_of(instance), operation)
        start = max([free.get(track, 0), *(ends[i] for i in operation.after)])
        if operation.start_ns != start:
            reasons.append(f"operation {operation.id} is reported from {operation.start_ns} ns, not {start}")
        ends[operation.id] = free[track] = operation.end_ns
        alone = alone_ns(instance, operation)
        bus = bus_of(instance, operation)
        if bus is not None and alone and operation.end_ns > start:
            flights[bus].append(operation)
        elif operation.end_ns - operation.start_ns != alone:
            reasons.append(
                f"operation {operation.id} is reported to take {operation.end_ns - operation.start_ns} ns, "
                f"not {alone}"
            )
    for copies in flights.values():
        reasons += _flight_reasons(instance, copies)
    makespan = max(ends.values(), default=0)
    if schedule.makespan_ns != makespan:
        reasons.append(f"makespan_ns is {schedule.makespan_ns}, the last operation ends at {makespan}")
    return reasons


def _flight_reasons(instance: Instance, copies: list[Operation]) -> list[str]:
    """Check, by its share of the bus over its reported time, that a copy ends when all its bytes have passed.

    The end is the first whole nanosecond by which all bytes have passed the bus.
    """
    rate = Fraction(cluster_of(instance).bus_bytes_per_second, SECOND)
    size = {copy.id: bus_load(instance, copy) for copy in copies}
    own = {copy.id: size[copy.id] / alone_ns(instance, copy) for copy in copies}
    moved = dict.fromkeys(own, Fraction(0))
    last = dict.fromkeys(own, Fraction(0))
    instants = sorted({instant for copy in copies for instant in (copy.start_ns, copy.end_ns)})
    starting, ending = _by_instant(copies, lambda c: c.start_ns), _by_instant(copies, lambda c: c.end_ns)
    flying: set[int] = set()
    for now, then in pairwise(instants):
        flying = (flying - {copy.id for copy in ending[now]}) | {copy.id for copy in starting[now]}
        shares = _fair(rate, {i: own[i] for i in flying})
        for i, share in shares.items():
            moved[i] += share * (then - now)
            last[i] = share
    return [
        f"operation {copy.id} is reported to end at {copy.end_ns} ns, after {float(moved[copy.id]):.3f} "
        f"of its {float(size[copy.id]):.0f} bytes have passed the bus"
        for copy in copies
        if not size[copy.id] <= moved[copy.id] < size[copy.id] + last[copy.id]
    ]


def _by_instant(copies: Iterable[Operation], key: Callable[[Operation], int]) -> dict[int, list[Operation]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for copy in copies:
        found[key(copy)].append(copy)
    return found


def _fair(rate: Fraction, own: Mapping[int, Fraction]) -> dict[int, Fraction]:
    """Return the max-min fair shares of a bus: an equal share for all, except for slower links."""
    content: dict[int, Fraction] = {}
    while len(content) < len(own):
        level = (rate - sum(content.values())) / (len(own) - len(content))
        more = {i: link for i, link in own.items() if i not in content and link <= level}
        if not more:
            return {i: content.get(i, level) for i in own}
        content |= more
    return content
