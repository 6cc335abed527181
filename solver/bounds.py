"""Lower bounds on the makespan of a round that need no solver, derived in exact arithmetic.

The arguments are those of `validate.bounds.arguments`. This module finds the position for the single-peak
bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import get_args

from ..heuristics.clock import OutOfTime, look
from ..instances.arguments import require_instance, require_one_of
from ..instances.instance import Instance
from ..instances.memory import why_host_is_short, why_infeasible
from ..instances.transforms import in_pages
from ..instances.units import PAGE_BYTES, format_size, format_time
from ..validate.bounds.certificate import Certificate, certify, name_of_bound
from ..validate.bounds.single_peak import EvictableStay, SinglePeak
from ..validate.schedule import MemoryModel
from .gradient_bounds import gradient_bound_ns

_EXACT = 8
"""Number of the most promising positions at which the single-peak bound is derived in exact arithmetic."""


_CLOSE = 1e-5
"""Relative distance between an optimal schedule and its bound that floating point can leave.

It covers the solver's gap tolerance, the safety margin of a bound, and small terms that a model leaves out.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on the makespan.

    Attributes
    ----------
    lower_bound_ns
        The bound in nanoseconds: no schedule of the instance is shorter. If `bound_by` ends in ``+pages``,
        this holds for paged schedules only.
    bound_by
        The argument, such as ``compute`` or ``single-peak``, or a solver's name.
    certified
        Whether the bound was derived or checked in exact arithmetic. If not, it rests on a solver's word.
    certificate
        The best certificate there is. If the bound is not certified, the certificate proves less than the
        bound.
    certified_sum_ns
        The part that is proven without a single certificate: the sum of the proven bounds of an iteration's
        rounds.
    """

    lower_bound_ns: int
    bound_by: str
    certified: bool
    certificate: Certificate | None = field(default=None, compare=False, repr=False)
    certified_sum_ns: int = field(default=0, compare=False, repr=False)

    @property
    def certified_ns(self) -> int:
        """The part of the bound that is proven in exact arithmetic, in nanoseconds; 0 if nothing is."""
        if self.certified:
            return self.lower_bound_ns
        return self.certified_sum_ns if self.certificate is None else self.certificate.lower_bound_ns

    def gap(self, makespan_ns: int) -> float:
        """Return the optimality gap of a makespan: (makespan - bound) / bound."""
        return (makespan_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)

    def meets(self, makespan_ns: int) -> bool:
        """Return whether the bound is as close to a makespan as a bound in floating point can be."""
        return makespan_ns * (1 - _CLOSE) <= self.lower_bound_ns

    def raised(self, other: Bound) -> Bound:
        """Return the better of two bounds, with the better of their certificates.

        Of equal bounds, the certified one is better.
        """
        better = (other.lower_bound_ns, other.certified) > (self.lower_bound_ns, self.certified)
        best = other if better else self
        certified = other if other.certified_ns > self.certified_ns else self
        return replace(best, certificate=certified.certificate, certified_sum_ns=certified.certified_ns)

    def __str__(self) -> str:
        word = "in exact arithmetic" if self.certified else "the solver's word"
        told = f"{format_time(self.lower_bound_ns)} ({self.bound_by}, {word})"
        return told if self.certified else f"{told}; {format_time(self.certified_ns)} in exact arithmetic"

    def as_dict(self) -> dict[str, object]:
        """Return the fields that commands print, by name."""
        return {
            "lower_bound_ns": self.lower_bound_ns,
            "bound_by": self.bound_by,
            "certified": self.certified,
            "certified_lower_bound_ns": self.certified_ns,
        }


def certified_bound(certificate: Certificate) -> Bound:
    """Return the bound of a certificate."""
    return Bound(certificate.lower_bound_ns, certificate.bound_by, certified=True, certificate=certificate)


def best_bound(
    instance: Instance, without: Collection[str] = (), memory: MemoryModel = "contiguous"
) -> Bound:
    """Return the best lower bound that needs no solver.

    It is the best of the compute bound, that of the critical path, the bound of gradients (on several GPUs)
    and, if no task may run again, the single-peak bound. For paged memory, the arguments are also tried on
    the instance with sizes in whole pages. After a deadline (`heuristics.clock`), the single-peak bound is
    not derived.

    Parameters
    ----------
    instance
        Any instance.
    without
        Rules that are left out: ``critical-path`` and ``single-peak`` leave these bounds out, and other names
        have no effect.
    memory
        Memory model of the schedules: ``contiguous``, ``paged`` or ``divisible``.

    Returns
    -------
    Bound
        A certified bound. `Bound.lower_bound_ns` has its nanoseconds.

    Raises
    ------
    PebblerError
        For what is no instance, or another memory model.
    """
    require_instance(instance)
    require_one_of("memory", memory, get_args(MemoryModel))
    bounds = [compute_bound(instance)]
    if "critical-path" not in without:
        bounds.append(critical_path_bound(instance))
    if instance.gpus > 1:
        name = name_of_bound(instance, "gradients")
        bounds.append(Bound(gradient_bound_ns(instance), name, certified=True))
    if "single-peak" not in without and not any(task.recomputable for task in instance.tasks):
        with suppress(OutOfTime):
            bounds.append(single_peak_bound(instance))
    if memory == "paged":
        bounds.append(best_bound(in_pages(instance), without))
    return max(bounds, key=lambda bound: bound.lower_bound_ns)


def why_impossible(instance: Instance, memory: MemoryModel) -> str | None:
    """Return which task proves that there is no schedule in a memory model; None if no single task does."""
    reason = why_infeasible(instance)
    if reason is None and memory == "paged":
        in_whole_pages = why_host_is_short(instance, PAGE_BYTES) or why_infeasible(in_pages(instance))
        if in_whole_pages is not None:
            reason = f"in pages of {format_size(PAGE_BYTES)}, {in_whole_pages}"
    return reason


def compute_bound(instance: Instance) -> Bound:
    """Return the sum of the tasks' least times, over algorithms that fit beside the task's blocks."""
    return certified_bound(certify(instance, "compute", "compute"))


def critical_path_bound(instance: Instance) -> Bound:
    """Return the length of the longest path of runs and copies that follow each other in every schedule."""
    return certified_bound(certify(instance, "critical-path", "critical-path"))


def single_peak_bound(instance: Instance) -> Bound:
    """Return the bound from the copies that one task forces before and after it (`SinglePeak`).

    The position with the largest bound is found in floating point, and the bound at it is exact. If no
    position proves more than the compute time, the bound is the compute time.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, for which the argument does not hold.
    """
    look()
    peaks = SinglePeak(instance)
    bounds = {k: peaks.at(k) for k in _promising(peaks)}
    position = max(bounds, key=lambda k: bounds[k], default=None)
    if position is None or bounds[position] <= peaks.before[-1]:
        least = compute_bound(instance)
        return replace(least, bound_by=name_of_bound(instance, "single-peak"))
    return certified_bound(certify(instance, "single-peak", "single-peak", position=position))


def _promising(peaks: SinglePeak) -> list[int]:
    """Return the positions whose bounds are greatest and above compute, with one rate for all copies.

    These are the candidates for the bound in exact arithmetic.
    """
    before, stays = peaks.before, peaks.stays
    total = before[-1]
    excessive = {}
    for k, least in enumerate(end - begin for begin, end in pairwise(before)):
        look()
        choices = peaks.choices(k)
        if peaks.instance.tasks[k].may_run_on_host:
            continue
        if not any(time == least and excess <= 0 for time, excess in choices):
            excessive[k] = choices
    if not excessive:
        return []
    out = CopyQueue(stays, [stay.ready for stay in stays], [stay.out_ns for stay in stays])
    back = CopyQueue(stays, [total - before[stay.until] for stay in stays], [stay.back_ns for stay in stays])
    begin, end = defaultdict(list), defaultdict(list)
    for i, stay in enumerate(stays):
        begin[stay.after + 1].append(i)
        end[stay.until].append(i)
    estimates = {}
    for k in range(len(before) - 1):
        look()
        for queue in (out, back):
            for i in end[k]:
                queue.remove(i)
            for i in begin[k]:
                queue.add(i)
        if k in excessive:
            head, tail = before[k], total - before[k + 1]
            estimates[k] = min(
                (
                    max(head, out.copied_by(excess)) + max(tail, back.copied_by(excess)) + time
                    for time, excess in excessive[k]
                ),
                default=math.inf,
            )
    lowest = -math.inf if peaks.instance.is_slowed else total  # what tasks lose by copies comes on top
    ranked = sorted((k for k in estimates if estimates[k] > lowest), key=lambda k: -estimates[k])
    return ranked[:_EXACT]


class CopyQueue:
    """Stays of blocks across a task, in the order in which an engine copies them at one rate.

    The stays are the leaves of a binary tree: node i is above the nodes 2i and 2i + 1. A node stores the
    bytes below it. It also stores the greatest delay of a stay below it: the time by which the stay becomes
    available later than the stays before it are copied.
    """

    def __init__(
        self, stays: Sequence[EvictableStay], available: Sequence[int | None], times: Sequence[int]
    ) -> None:
        order = sorted(range(len(stays)), key=lambda i: -1 if available[i] is None else available[i] or 0)
        self._rank = {i: rank for rank, i in enumerate(order)}
        self._sizes = [stay.bytes for stay in stays]
        self._available = available
        self._rate = sum(times) / max(sum(self._sizes), 1)
        self._leaves = 1 << (len(stays) - 1).bit_length()
        self._bytes = [0] * (2 * self._leaves)
        self._later = [-math.inf] * (2 * self._leaves)
        self._free = 0

    def add(self, i: int) -> None:
        """Add a stay that is not in the queue; free stays need no copy."""
        available = self._available[i]
        if available is None:
            self._free += self._sizes[i]
        else:
            self._set(i, self._sizes[i], available)

    def remove(self, i: int) -> None:
        """Remove a stay that is in the queue."""
        if self._available[i] is None:
            self._free -= self._sizes[i]
        else:
            self._set(i, 0, -math.inf)

    def _set(self, i: int, size: int, available: float) -> None:
        sizes, later, rate = self._bytes, self._later, self._rate
        node = self._leaves + self._rank[i]
        sizes[node], later[node] = size, available
        while node > 1:
            node >>= 1
            first = 2 * node
            sizes[node] = sizes[first] + sizes[first + 1]
            early, late = later[first], later[first + 1] - rate * sizes[first]
            later[node] = early if early > late else late  # without the call of max: this is the inner loop

    def copied_by(self, excess: int) -> float:
        """Return the earliest time by which so many bytes are copied; infinity if there are fewer."""
        wanted = excess - self._free
        if wanted <= 0:
            return 0.0
        if wanted > self._bytes[1]:
            return math.inf
        node, latest = 1, 0.0
        while node < self._leaves:
            node *= 2
            if self._bytes[node] < wanted:
                latest = max(latest, self._later[node] + self._rate * wanted)
                wanted -= self._bytes[node]
                node += 1
        return max(latest, self._later[node] + self._rate * wanted)
