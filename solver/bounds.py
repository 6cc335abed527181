"""Lower bounds on the makespan of a round that need no solver, worked out in exact arithmetic.

The arguments are those of `validate.exact_bounds`; here is what finds the position for the second.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..instances.instance import Instance
from ..instances.transforms import in_pages
from ..validate.certificate import Certificate, certify, name_of_bound
from ..validate.exact_bounds import EvictableStay, SinglePeak, least_times
from ..validate.schedule import MemoryModel
from .gradient_bounds import gradient_bound_ns

_EXACT = 8
"""At how many of the most promising positions the single-peak bound is worked out exactly."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound.

    Attributes
    ----------
    lower_bound_ns
        No schedule of the instance is shorter; no paged one, where `bound_by` ends in ``+pages``.
    bound_by
        The argument: ``compute``, ``single-peak``, or a solver's name.
    certified
        Whether it was derived or checked in exact arithmetic; else it is a solver's word.
    certificate
        The best that there is; where the bound is not certified, it proves less than that.
    certified_sum_ns
        What is proven where there is no one certificate: those of an iteration's rounds, added up.
    """

    lower_bound_ns: int
    bound_by: str
    certified: bool
    certificate: Certificate | None = field(default=None, compare=False, repr=False)
    certified_sum_ns: int = field(default=0, compare=False, repr=False)

    @property
    def certified_ns(self) -> int:
        """What is proven in exact arithmetic; 0 where nothing is known of it."""
        if self.certified:
            return self.lower_bound_ns
        return self.certified_sum_ns if self.certificate is None else self.certificate.lower_bound_ns

    def gap(self, makespan_ns: int) -> float:
        """Optimality gap of a makespan: (makespan - bound) / bound."""
        return (makespan_ns - self.lower_bound_ns) / max(self.lower_bound_ns, 1)

    def raised(self, other: Bound) -> Bound:
        """The better of two bounds (of equal ones the certified), with the better of their certificates."""
        better = (other.lower_bound_ns, other.certified) > (self.lower_bound_ns, self.certified)
        best = other if better else self
        certified = other if other.certified_ns > self.certified_ns else self
        return replace(best, certificate=certified.certificate, certified_sum_ns=certified.certified_ns)

    def as_dict(self) -> dict[str, object]:
        """What commands print of it, by name."""
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
    """Return the best of the compute bound, that of gradients and, if no task may run again, of a peak.

    The last is left out where `without`, rules that a method leaves out, has ``single-peak``. For paged
    memory, the arguments are also tried on the instance in whole pages.
    """
    bounds = [compute_bound(instance)]
    if instance.gpus > 1:
        name = name_of_bound(instance, "gradients")
        bounds.append(Bound(gradient_bound_ns(instance), name, certified=True))
    if "single-peak" not in without and not any(task.recomputable for task in instance.tasks):
        bounds.append(single_peak_bound(instance))
    if memory == "paged":
        bounds.append(best_bound(in_pages(instance), without))
    return max(bounds, key=lambda bound: bound.lower_bound_ns)


def compute_bound(instance: Instance) -> Bound:
    """Sum of the least times of all tasks, over the algorithms that fit the pool beside the task's blocks."""
    return certified_bound(certify(instance, "compute", "compute"))


def single_peak_bound(instance: Instance) -> Bound:
    """Bound by what one task forces out of memory before it and back in after it (`SinglePeak`).

    The position with the largest bound is sought in floating point, and the bound at it is exact. Where no
    position proves more than the compute time, the bound is that.

    Raises
    ------
    ValueError
        For an instance with recomputable tasks, for which the argument does not hold.
    """
    peaks = SinglePeak(instance)
    bounds = {k: peaks.at(k) for k in _promising(peaks)}
    position = max(bounds, key=lambda k: bounds[k], default=None)
    if position is None or bounds[position] <= peaks.before[-1]:
        least = compute_bound(instance)
        return replace(least, bound_by=name_of_bound(instance, "single-peak"))
    return certified_bound(certify(instance, "single-peak", "single-peak", position=position))


def _promising(peaks: SinglePeak) -> list[int]:
    """Positions at which the bound is greatest and above that of compute, if all copies had one rate."""
    instance, before, stays = peaks.instance, peaks.before, peaks.stays
    out = _Queue(stays, [stay.ready for stay in stays], [stay.out_ns for stay in stays])
    back = _Queue(
        stays, [before[-1] - before[stay.until] for stay in stays], [stay.back_ns for stay in stays]
    )
    estimates = {}
    for k, least in enumerate(least_times(instance)):
        choices = peaks.choices(k)
        if any(time == least and excess <= 0 for time, excess in choices):
            continue
        head, tail = before[k], before[-1] - before[k + 1]
        excesses = np.array([excess for _, excess in choices], dtype=float)
        ends = np.maximum(head, out.copied_by(k, excesses))
        starts = np.maximum(tail, back.copied_by(k, excesses))
        lengths = ends + starts + np.array([time for time, _ in choices], dtype=float)
        estimates[k] = float(lengths.min(initial=np.inf))
    ranked = sorted((k for k in estimates if estimates[k] > before[-1]), key=lambda k: -estimates[k])
    return ranked[:_EXACT]


class _Queue:
    """Stays in the order in which an engine copies them at one rate, as arrays."""

    def __init__(self, stays: list[EvictableStay], available: list[int | None], times: list[int]) -> None:
        order = sorted(range(len(stays)), key=lambda i: -1 if available[i] is None else available[i] or 0)
        self._after = np.array([stays[i].after for i in order])
        self._until = np.array([stays[i].until for i in order])
        self._bytes = np.array([stays[i].bytes for i in order], dtype=float)
        self._free = np.array([available[i] is None for i in order], dtype=bool)
        self._available = np.array([float(available[i] or 0) for i in order])
        self._rate = sum(times) / max(float(self._bytes.sum()), 1.0)

    def copied_by(self, k: int, excesses: NDArray[np.float64]) -> NDArray[np.float64]:
        """Earliest times at which each excess has been copied; infinite where there is too little."""
        across = (self._after < k) & (self._until > k)
        free = float(self._bytes[across & self._free].sum())
        across &= ~self._free
        sizes, available = self._bytes[across], self._available[across]
        earlier = np.cumsum(sizes) - sizes
        wanted = excesses - free
        ends = np.where(
            earlier[None, :] < wanted[:, None],
            available[None, :] + self._rate * (wanted[:, None] - earlier[None, :]),
            0.0,
        ).max(axis=1, initial=0.0)
        return np.asarray(np.where(wanted > sizes.sum(), np.inf, ends))
