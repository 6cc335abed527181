"""The runs of a results file, held against the instances, schedules and certificates that lie beside it.

Nothing of a row is believed that these files can tell: the checker proves each schedule, its figures follow
from it, and a bound is derived again. What no file can tell is taken as it stands: times on the clock above
all (`docs/contest.md`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from ...instances.errors import PebblerError
from ...instances.files import decode, read_bytes, read_document, read_json
from ...instances.instance import Instance
from ...instances.memory import ideal_ns
from ...instances.suites.suite import find_suite, list_suites, members
from ...solver.bounds import Bound, best_bound, certified_bound
from ...solver.sub_batch_search import iteration_bound
from ...validate.bounds.certificate import Certificate, check_certificate, misses
from ...validate.gpus.check import check
from ...validate.schedule import MemoryModel, Schedule
from ..comparison.compare import figures_of
from ..sweeps.evaluation import name_settings
from ..sweeps.problems import About, FileProblem, SuiteProblem, about, own_sha256
from ..sweeps.results import Results, Run
from .ruled import Ruling

_log = logging.getLogger(__name__)

FIGURES = (
    "iteration_ns",
    "stall_ns",
    "peak_bytes",
    "average_bytes",
    "offloaded_bytes",
    "prefetched_bytes",
    "pinned_bytes",
)
"""Figures of a row that follow from its schedules."""

_SOLVED = ("feasible", "optimal")
"""Statuses of runs with a schedule: over the bound of the row, or equal to it."""

_INSTANCES = "its instances say"
_CHANGED = "the row was changed"
_CHANGED_OR_OLD = f"{_CHANGED}, or is of another version of pebbler"
"""Parts of what is said of a row that differs."""

_NONE = Bound(0, "none", certified=True)
"""What is proven of a run whose instances are not known."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What has been checked of a results file.

    Attributes
    ----------
    runs
        The runs, with the bounds that count. Without a protocol these are those of the rows, and only those
        that are proven here are certified. By a protocol, a bound that is not proven is replaced by what is.
    schedules
        Number of runs whose schedules were proven, and whose figures are those of their rows.
    proven, unproven
        Numbers of runs whose bounds were proven here, and whose bounds were not.
    """

    runs: tuple[Run, ...]
    schedules: int
    proven: int
    unproven: int

    def __str__(self) -> str:
        bounds = self.proven + self.unproven
        return f"schedules of {self.schedules} runs checked, {self.proven} of {bounds} bounds proven"


def check_runs(results: Results) -> Checked:
    """Check the runs of a results file against the files beside it.

    Each schedule is proven valid, and the figures, the memory model, and the instance that a row claims are
    compared with the files. A bound is proven if the arguments that need no solver, or the certificates in
    the folder, give at least as much. Runs in divisible memory have no schedule, and pass unseen.

    Raises
    ------
    PebblerError
        With the first run of which a file is missing or broken, a schedule is not valid, or a figure differs;
        or when the file's rules are not those of its protocol.
    """
    runs = results.runs()
    ruling = Ruling(results)
    names = name_settings(dict.fromkeys(run.setting for run in runs)) if runs else {}
    checker = _Checker(results, ruling)
    checked = list(runs)
    schedules = proven = unproven = done = 0
    ordered = sorted(range(len(runs)), key=lambda i: _group(runs[i]))
    for _, group in groupby(ordered, key=lambda i: _group(runs[i])):
        files = _Files(results)
        for i in group:
            run, done = runs[i], done + 1
            told = f"{run.about.problem}, {names[run.setting]}, seed {run.seed}"
            _log.info("%d of %d: %s", done, len(runs), told)
            if run.setting.memory_model == "divisible":
                continue
            try:
                schedules += checker.prove(run, files)
                bound = checker.bound(run, files)
            except PebblerError as error:
                raise PebblerError(f"{told}: {error}") from None
            if bound is not None:
                holds = cast(int, run.found.lower_bound_ns) <= bound.lower_bound_ns
                proven, unproven = proven + holds, unproven + (not holds)
                if not holds:
                    _log.info("%s: its bound by %s is not proven here", told, run.found.bound_by)
                checked[i] = _with_bound(run, bound, holds=holds, ruled=ruling.is_there)
    return Checked(tuple(checked), schedules, proven, unproven)


def _group(run: Run) -> tuple[str, tuple[str, ...]]:
    """Return what runs share whose files are read together."""
    return run.about.problem, run.found.instances


def _with_bound(run: Run, bound: Bound, *, holds: bool, ruled: bool) -> Run:
    """Return a run with the bound that counts, given what is proven."""
    if holds or not ruled:
        return replace(run, found=replace(run.found, certified=holds))
    found = replace(run.found, lower_bound_ns=bound.lower_bound_ns, bound_by=bound.bound_by, certified=True)
    if found.status in _SOLVED:
        found = replace(found, status=_SOLVED[found.iteration_ns == found.lower_bound_ns])
    return replace(run, found=found)


class _Of(msgspec.Struct):
    """Which instance a certificate is for."""

    instance_sha256: str | None = None


class _Files:
    """The files of the runs of one problem, each read once, and what was derived from them."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._instances: dict[str, Instance] = {}
        self._proven: dict[tuple[str, str], Schedule] = {}
        self._bounds: dict[tuple[str, MemoryModel], Bound] = {}

    def instance(self, name: str) -> Instance:
        """Return the instance with a checksum."""
        if name not in self._instances:
            place = self._results.instance_file(name)
            self._instances[name] = decode(_read(place, name), Instance, "an instance", place)
        return self._instances[name]

    def schedule(self, of: str, name: str) -> Schedule:
        """Return the schedule with a checksum, which the checker has accepted for an instance."""
        if (of, name) not in self._proven:
            place = self._results.schedule_file(name)
            schedule = decode(_read(place, name), Schedule, "a schedule", place)
            report = check(self.instance(of), schedule, instance_sha256=of)
            if not report.valid:
                raise PebblerError(f"its schedule is not valid: {report.reasons[0]}; leave the run out")
            self._proven[of, name] = schedule
        return self._proven[of, name]

    def bound(self, of: str, memory: MemoryModel, certificates: Iterable[Path]) -> Bound:
        """Return the best bound of an instance that is proven without a solver."""
        if (of, memory) not in self._bounds:
            instance = self.instance(of)
            best = best_bound(instance, memory=memory)
            for place in certificates:
                certificate = read_document(place, Certificate, "a certificate")
                report = check_certificate(instance, certificate, instance_sha256=of)
                if not report.valid:
                    raise PebblerError(f"{place} proves nothing: {report.reasons[0]}; leave it out")
                if misses(instance, certificate, memory) is None:
                    best = best.raised(certified_bound(certificate))
            self._bounds[of, memory] = best
        return self._bounds[of, memory]


class _Checker:
    """Checks runs one by one."""

    def __init__(self, results: Results, ruling: Ruling) -> None:
        self._ruling = ruling
        self._suites: dict[str, frozenset[str]] = {}
        self._about: dict[str, About] = {}
        self._certificates: dict[str, list[Path]] = {}
        places = results.certificate_file("").parent.glob("*.certificate.json")
        for place in sorted(filter(Path.is_file, places)):
            of = read_json(place, _Of, "a certificate").instance_sha256
            self._certificates.setdefault(of or "", []).append(place)

    def prove(self, run: Run, files: _Files) -> bool:
        """Check what a run says of its problem and of its schedules; return whether it has any.

        Raises
        ------
        PebblerError
            With what differs.
        """
        found, claims = run.found, run.found.iteration_ns is not None
        if (why := self._ruling.why_not(run)) is not None:
            raise PebblerError(f"{why}; leave the run out")
        instances = [files.instance(name) for name in found.instances]
        self._require_problem(run, instances)
        if not claims:
            for name in FIGURES:
                _require(name, getattr(found, name), None, "without iteration_ns it should have")
            if found.status in _SOLVED:
                raise PebblerError(f"its row has status {found.status}, and no iteration_ns; {_CHANGED}")
            return False
        if not instances or len(found.schedules) != len(instances):
            raise PebblerError(
                f"it claims {found.iteration_ns} ns, and names {len(found.schedules)} schedules for "
                f"{len(instances)} instances; the row was changed"
            )
        schedules = [
            files.schedule(of, name) for of, name in zip(found.instances, found.schedules, strict=True)
        ]
        for schedule in schedules:
            _require("memory_model", run.setting.memory_model, schedule.memory_model, "its schedule says")
        figures = figures_of(instances, schedules, 1, _NONE)
        for name in FIGURES:
            _require(name, getattr(found, name), getattr(figures, name), "its schedules say")
        met = found.iteration_ns == found.lower_bound_ns
        _require("status", found.status, _SOLVED[met], "by its iteration and its bound it is")
        if any(ns is not None and ns < figures.iteration_ns for _, ns, _ in found.trace):
            raise PebblerError(f"its trace has a shorter time than its schedules; {_CHANGED}")
        first = instances[0].made_from.sub_batch
        _require("rounds", found.rounds, sum(one.rounds for one in instances), _INSTANCES)
        _require("sub_batch", found.sub_batch, first, _INSTANCES)
        if _is_whole(run):
            ideal = sum(one.rounds * ideal_ns(one) for one in instances)
            _require("ideal_ns", found.ideal_ns, ideal, _INSTANCES)
        return True

    def _require_problem(self, run: Run, instances: Sequence[Instance]) -> None:
        """Require that a row describes the problem of its suite, or that of its instance's file."""
        told, name = run.about, run.about.problem
        if self._is_of_suite(name):
            if name not in self._about:
                suite, _, member = name.partition("/")
                problem = SuiteProblem(suite, member)
                self._about[name] = about(problem, problem.instances())
            _require_same(told, self._about[name], "the suite has", _CHANGED_OR_OLD)
        if not instances:
            return
        if _is_whole(run):
            _require_same(told, about(FileProblem(name, b""), instances), _INSTANCES)
            return
        if self._ruling.is_there and told.rounds_of != "auto":
            raise PebblerError(
                "its schedules are for another instance than its problem, and a protocol has no such runs; "
                "leave the run out"
            )
        for one in instances:
            _require("budget_bytes", told.budget_bytes, one.budget_bytes, _INSTANCES)
            _require("engines", told.engines, one.engines, _INSTANCES)

    def _is_of_suite(self, name: str) -> bool:
        """Return whether a problem has the name of an instance of a suite."""
        suite, _, member = name.partition("/")
        if suite not in self._suites:
            known = members(find_suite(suite)) if suite in list_suites() else ()
            self._suites[suite] = frozenset(one.name for one in known)
        return member in self._suites[suite]

    def bound(self, run: Run, files: _Files) -> Bound | None:
        """Return what is proven of the iteration of a run; None if its row has no bound."""
        found = run.found
        if found.lower_bound_ns is None:
            return None
        if run.about.rounds_of == "auto" or not found.instances:  # a bound over all sub-batches
            return _NONE
        parts = [
            files.bound(of, run.setting.memory_model, self._certificates.get(of, ()))
            for of in found.instances
        ]
        return iteration_bound([files.instance(of).rounds for of in found.instances], parts)


def _is_whole(run: Run) -> bool:
    """Return whether a run has solved the instances of its problem, and not others that its method made."""
    return bool(run.found.instances) and own_sha256(run.found.instances) == run.about.problem_sha256


def _require_same(told: About, found: About, says: str, advice: str = _CHANGED) -> None:
    for field in fields(About):
        _require(field.name, getattr(told, field.name), getattr(found, field.name), says, advice)


def _require(name: str, told: object, found: object, says: str, advice: str = _CHANGED) -> None:
    if told != found:
        raise PebblerError(f"its row has {name} {_shown(told)}, and {says} {_shown(found)}; {advice}")


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _read(place: Path, name: str) -> bytes:
    """Read a file whose name is its checksum."""
    if re.fullmatch(r"[0-9a-f]{64}", name) is None:
        raise PebblerError(f"'{name}' is no checksum, and names no file; the row was changed")
    try:
        if place.exists() and not place.is_file():  # a pipe would be waited for
            raise PebblerError(f"{place} is no file")
        data = read_bytes(place)
    except (PebblerError, OSError) as error:
        raise PebblerError(f"{error}; --check needs what bench wrote into {place.parent.parent}") from None
    if sha256(data).hexdigest() != name:
        raise PebblerError(f"{place} has another checksum than its name; the file was changed")
    return data
