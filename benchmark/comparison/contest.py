"""Scores of a contest: every entrant's schedules are checked, and compared with the shortest of all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import median_low

from ...instances.errors import PebblerError
from ...instances.files import read_bytes, read_summed_instance
from ...instances.instance import Instance
from ...solver.bounds import Bound, best_bound
from ...validate.check import check
from ...validate.schedule import read_schedule

_INSTANCE, _SCHEDULE = ".instance.json", ".schedule.json"
"""Endings of the files of instances and of schedules."""

_SUMS = "SHA256SUMS"
"""Name of the list of checksums."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judged:
    """A schedule of an entrant.

    Attributes
    ----------
    makespan_ns
        Its makespan in nanoseconds; None if it does not count.
    reason
        Why it does not count: it is missing, or the first reason of a checker or reader; None if it counts.
    """

    makespan_ns: int | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The result of an entrant.

    Attributes
    ----------
    rank, entrant
        The rank, which is the same for the same points, and the name of the folder.
    points
        The mean over all instances of 100 times the shortest makespan of all entrants over the entrant's own;
        what does not count gives none.
    shortest, valid, invalid, missing
        Numbers of instances: on which the entrant's schedule is as short as the shortest, on which it counts,
        on which it is refused, and on which there is none.
    median_gap
        Median of the gaps from the lower bounds, over the schedules that count; None without one.
    judged
        The schedules by instance.
    """

    rank: int
    entrant: str
    points: Fraction
    shortest: int
    valid: int
    invalid: int
    missing: int
    median_gap: float | None
    judged: dict[str, Judged]


def score_contest(instances: Path, entries: Path) -> tuple[Score, ...]:
    """Return the scores of a contest, the best first; the same files give the same scores.

    Parameters
    ----------
    instances
        Folder of the instances, as ``NAME.instance.json``.
    entries
        Folder with one folder for each entrant, which has ``NAME.schedule.json``.

    Raises
    ------
    PebblerError
        When there are no instances or entrants, an instance cannot be read, or the instances are not those
        that ``SHA256SUMS`` beside them lists.
    """
    files = sorted(instances.glob(f"*{_INSTANCE}"))
    entrants = sorted(folder for folder in entries.glob("*") if folder.is_dir())
    if not files or not entrants:
        place, what = (instances, f"files NAME{_INSTANCE}") if not files else (entries, "folders of entrants")
        raise PebblerError(f"{place} has no {what}")
    sums = _listed(instances / _SUMS)
    if sums is not None and (lacking := sorted(sums.keys() - {file.name for file in files})):
        raise PebblerError(f"{instances} has no {lacking[0]}, which {_SUMS} lists; draw the instances again")
    bounds: dict[str, Bound] = {}
    judged: dict[str, dict[str, Judged]] = {folder.name: {} for folder in entrants}
    for count, file in enumerate(files, start=1):
        name = file.name.removesuffix(_INSTANCE)
        instance, checksum = read_summed_instance(file)
        if sums is not None and sums.get(file.name) != checksum:
            raise PebblerError(f"{file} is not what {_SUMS} lists; draw the instances again")
        bounds[name] = best_bound(instance)
        for folder in entrants:
            judged[folder.name][name] = _judge(instance, checksum, folder / f"{name}{_SCHEDULE}")
        _log.info("%d of %d: %s", count, len(files), name)
    return _ranked(judged, bounds)


def _listed(file: Path) -> dict[str, str] | None:
    """Return the checksums of files by name, as `sha256sum` lists them; None where there is no list."""
    if not file.exists():
        return None
    lines = (line.split(maxsplit=1) for line in read_bytes(file).decode(errors="replace").splitlines())
    return {line[1]: line[0] for line in lines if len(line) == 2}


def _judge(instance: Instance, checksum: str, file: Path) -> Judged:
    """Check a schedule, which is whatever an entrant has sent."""
    if not file.exists():
        return Judged(None, "missing")
    if file.is_symlink() or not file.is_file():
        return Judged(None, f"{file} is a link, a folder, a pipe or a device; only a file of its own counts")
    try:
        schedule = read_schedule(file, instance)
        if schedule.memory_model != "contiguous":
            return Judged(None, f"its memory model is {schedule.memory_model}, and not contiguous")
        report = check(instance, schedule, instance_sha256=checksum)
    except PebblerError as error:
        return Judged(None, str(error))
    return Judged(schedule.makespan_ns) if report.valid else Judged(None, report.reasons[0])


def _ranked(judged: dict[str, dict[str, Judged]], bounds: dict[str, Bound]) -> tuple[Score, ...]:
    found: dict[str, list[int]] = {name: [] for name in bounds}
    for own in judged.values():
        for name, one in own.items():
            if one.makespan_ns is not None:
                found[name].append(one.makespan_ns)
    shortest = {name: min(some) for name, some in found.items() if some}
    points = {
        entrant: sum((_points(one.makespan_ns, shortest.get(name)) for name, one in own.items()), Fraction(0))
        / len(bounds)
        for entrant, own in judged.items()
    }
    ordered = sorted(judged, key=lambda entrant: (-points[entrant], entrant))
    ranks = {entrant: 1 + sum(other > points[entrant] for other in points.values()) for entrant in ordered}
    return tuple(
        _score(ranks[entrant], entrant, points[entrant], judged[entrant], shortest, bounds)
        for entrant in ordered
    )


def _points(makespan_ns: int | None, shortest_ns: int | None) -> Fraction:
    """Return the points of a schedule: 100 for the shortest; an instance of no time gives them to all."""
    if makespan_ns is None or shortest_ns is None:
        return Fraction(0)
    return Fraction(100 * shortest_ns, makespan_ns) if makespan_ns else Fraction(100)


def _score(
    rank: int,
    entrant: str,
    points: Fraction,
    own: dict[str, Judged],
    shortest: dict[str, int],
    bounds: dict[str, Bound],
) -> Score:
    counted = {name: one.makespan_ns for name, one in own.items() if one.makespan_ns is not None}
    missing = sum(one.reason == "missing" for one in own.values())
    gaps: Sequence[float] = [bounds[name].gap(ns) for name, ns in counted.items()]
    return Score(
        rank=rank,
        entrant=entrant,
        points=points,
        shortest=sum(ns == shortest[name] for name, ns in counted.items()),
        valid=len(counted),
        invalid=len(own) - len(counted) - missing,
        missing=missing,
        median_gap=median_low(gaps) if gaps else None,
        judged=own,
    )
