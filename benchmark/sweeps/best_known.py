"""The best known schedules and lower bounds of a suite's instances, which only ever improve.

A schedule is added only if the checker accepts it, and a bound only with the name of its argument.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from ...heuristics.production.given import policy_sha256
from ...heuristics.programs import program_sha256
from ...instances.errors import FormatError, PebblerError
from ...instances.figures import Natural, Text
from ...instances.files import decode, encode, read_bytes, read_document, reread
from ...instances.instance import Instance
from ...instances.suites.suite import Member, find_suite, members
from ...instances.units import format_time
from ...solver.answers import Answers, Memory
from ...solver.bounds import Bound, certified_bound
from ...solver.result import Result
from ...solver.solve import attempt, log_defect
from ...validate.bounds.certificate import Certificate, check_certificate, misses
from ...validate.check import check
from ...validate.schedule import MemoryModel, Schedule
from .history import Entrant, Step

_log = logging.getLogger(__name__)

WHO = "the Pebbler authors"
"""Who enters what has no other name."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The best known schedule and bound of an instance in a memory model.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance and checksum of its file.
    memory_model
        Memory model of the schedule.
    makespan_ns, lower_bound_ns
        Makespan of the best schedule (None without one), and the proven bound, in nanoseconds.
    bound_by, certified
        Argument of the bound, and whether it is proven in exact arithmetic.
    schedule
        The best schedule, which the checker has accepted.
    certificate
        Proof of the bound, where it was entered with one.
    schedule_sha256, certificate_sha256
        Checksums of the files of these two, where they lie apart.
    history
        The improvements, in order.
    tried
        Runs of methods that are not repeated: they ended, and left the record open.
    """

    instance: Text
    instance_sha256: Text
    memory_model: Memory
    makespan_ns: Natural | None
    lower_bound_ns: Natural
    bound_by: Text
    certified: bool
    schedule: Schedule | None
    certificate: Certificate | UnsetType = UNSET
    schedule_sha256: Text | UnsetType = UNSET
    certificate_sha256: Text | UnsetType = UNSET
    history: tuple[Step, ...] | UnsetType = UNSET
    tried: tuple[Text, ...] | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.schedule is None and self.schedule_sha256 is not UNSET:
            return
        reached = None if self.schedule is None else self.schedule.makespan_ns
        if self.makespan_ns != reached:
            raise FormatError(
                f"the makespan {self.makespan_ns} of {self.instance} is not that of its schedule, {reached}"
            )

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets the bound."""
        return self.makespan_ns == self.lower_bound_ns

    @property
    def bound(self) -> Bound:
        """The proven bound."""
        return Bound(self.lower_bound_ns, self.bound_by, self.certified)

    @property
    def method(self) -> str | None:
        """The method that made the schedule; None where there is none."""
        if self.schedule is not None:
            return self.schedule.method
        steps = () if self.history is UNSET else self.history
        return next((step.method for step in reversed(steps) if step.makespan_ns is not UNSET), None)

    def is_closed(self, gap: float) -> bool:
        """Return whether the schedule is at most that much longer than the bound, as a share of the bound."""
        return self.makespan_ns is not None and self.bound.gap(self.makespan_ns) <= gap

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, with the method of the schedule in place of the documents."""
        left_out = ("schedule", "certificate", "history", "tried")
        figures = {name: getattr(self, name) for name in self.__struct_fields__ if name not in left_out}
        shown = {name: value for name, value in figures.items() if value is not UNSET}
        return {**shown, "optimal": self.optimal, "method": self.method}


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The records of a suite, by name and memory model."""

    format: Literal["pebbler/best-known/1"] = "pebbler/best-known/1"
    suite: Text
    records: tuple[Record, ...] = ()


def best_known(suite: str) -> Registry:
    """Return the records that are shipped for a suite.

    Raises
    ------
    PebblerError
        When there is no such suite.
    """
    find_suite(suite)
    file = resources.files("pebbler.instances.suites").joinpath("best_known", f"{suite}.json")
    if not file.is_file():
        return Registry(suite=suite)
    return decode(file.read_bytes(), Registry, "a registry", file.name)


def read_registry(path: str | Path, suite: str) -> Registry:
    """Read the records of a suite from a file.

    Raises
    ------
    PebblerError
        When the file cannot be read, breaks a rule of the format, or is of another suite.
    """
    registry = read_document(path, Registry, "a registry")
    if registry.suite != suite:
        raise FormatError(f"{path} is of suite '{registry.suite}', not of '{suite}'; give another folder")
    return registry


def admit(
    registry: Registry,
    instance: Instance,
    *,
    memory: Memory = "contiguous",
    schedule: Schedule | None = None,
    bound: Bound | None = None,
    certificate: Certificate | None = None,
    entrant: Entrant | None = None,
) -> Registry:
    """Return the registry with a schedule, a bound or a proof of one, if they are better than the known ones.

    With an entrant, an improvement becomes a step of the record's history. A record keeps the proof of its
    bound if it was entered with one. If a schedule is shorter than a bound that rests on a solver's word, the
    bound is rejected with a warning. Its certified part remains.

    Raises
    ------
    PebblerError
        When a checker rejects the schedule, the certificate, or the known schedule.
    ContradictionError
        When the schedule is shorter than a certified bound.
    """
    found = {(record.instance, record.memory_model): record for record in registry.records}
    checksum = sha256(encode(instance)).hexdigest()
    record = found.get((instance.name, memory))
    if record is None or record.instance_sha256 != checksum:
        record = Record(
            instance=instance.name,
            instance_sha256=checksum,
            memory_model=memory,
            makespan_ns=None,
            lower_bound_ns=0,
            bound_by="none",
            certified=True,
            schedule=None,
        )
    before = record
    if record.schedule is not None:
        _require_valid(instance, record.schedule, memory)
    if schedule is not None:
        schedule = reread(schedule)
        _require_valid(instance, schedule, memory)
        if record.makespan_ns is None or schedule.makespan_ns < record.makespan_ns:
            record = msgspec.structs.replace(
                record, makespan_ns=schedule.makespan_ns, schedule=schedule, schedule_sha256=UNSET
            )
    answers = Answers(instance, memory)
    answers.claim(record.bound)
    if bound is not None:
        answers.claim(bound)
    if certificate is not None:
        _require_proof(instance, certificate, memory)
        answers.claim(certified_bound(certificate))
    if record.schedule is not None:
        answers.admit(record.schedule)
    best = answers.bound()
    if (
        record.schedule is None
        and record.makespan_ns is not None
        and best.lower_bound_ns > record.makespan_ns
    ):
        raise PebblerError(
            f"{instance.name}: the {best.bound_by} bound of {best.lower_bound_ns} ns is above the known "
            f"makespan of {record.makespan_ns} ns; enter it where the known schedule lies"
        )
    if answers.refuted or (best.lower_bound_ns, best.certified) > (record.lower_bound_ns, record.certified):
        record = msgspec.structs.replace(
            record,
            lower_bound_ns=best.lower_bound_ns,
            bound_by=best.bound_by,
            certified=best.certified,
            certificate=UNSET if certificate is None or best.certificate != certificate else certificate,
            certificate_sha256=UNSET,
        )
    if entrant is not None:
        record = _with_step(record, before, entrant)
    found[instance.name, memory] = record
    return msgspec.structs.replace(registry, records=tuple(found[key] for key in sorted(found)))


def _with_step(record: Record, before: Record, entrant: Entrant) -> Record:
    """Return a record with what has become better as the last step of its history."""
    shorter = None if record.makespan_ns == before.makespan_ns else record.makespan_ns
    higher = None if record.bound == before.bound else record.lower_bound_ns
    if shorter is None and higher is None:
        return record
    gap = None if record.makespan_ns is None else record.bound.gap(record.makespan_ns)
    step = entrant.step(makespan_ns=shorter, lower_bound_ns=higher, gap=gap)
    earlier = () if record.history is UNSET else record.history
    return msgspec.structs.replace(record, history=(*earlier, step))


def _require_valid(instance: Instance, schedule: Schedule, memory: Memory) -> None:
    try:
        report = check(instance, schedule, instance_sha256=sha256(encode(instance)).hexdigest())
        reasons = list(report.reasons)
    except FormatError as error:
        reasons = [str(error)]
    if schedule.memory_model != memory:
        reasons.append(f"its memory model is {schedule.memory_model}, not {memory}")
    if reasons:
        raise PebblerError(
            f"{instance.name}: the schedule by {schedule.method} is not valid: {reasons[0]}; leave it out"
        )


def _require_proof(instance: Instance, certificate: Certificate, memory: Memory) -> None:
    of = sha256(encode(instance)).hexdigest()
    reasons = list(check_certificate(instance, certificate, instance_sha256=of).reasons)
    if (missed := misses(instance, certificate, memory)) is not None:
        reasons.append(missed)
    if reasons:
        raise PebblerError(f"{instance.name}: the certificate is not valid: {reasons[0]}; leave it out")


def admit_file(
    registry: Registry, path: str | Path, memory: Memory = "contiguous", *, who: str | None = None
) -> Registry:
    """Return the registry with what is better in a file: a schedule, a certificate or a submission.

    Parameters
    ----------
    registry, path
        The registry, and the file. A submission is a registry, too, of which schedules and certificates
        enter; a bound without a certificate does not.
    memory
        The memory model that the bound of a certificate enters in; a frozen instance has its own.
    who
        Who made it, for the history; None: the history stays as it is.

    Raises
    ------
    PebblerError
        When what the file has is of no instance of the suite or in another memory model, or a checker rejects
        it.
    ContradictionError
        When a schedule is shorter than a certified bound.
    """
    found = {member.name: member for member in members(find_suite(registry.suite))}
    for document, model in _documents(path, registry.suite, memory):
        if document.instance not in found:
            raise PebblerError(
                f"{path} is for '{document.instance}', which is not in suite '{registry.suite}'"
            )
        if model == "divisible":
            raise PebblerError(f"{path}: a divisible schedule is a relaxation and never enters")
        member = found[document.instance]
        instance, own = member.build(), _memory_of(member, model)
        if isinstance(document, Schedule):
            if model != own:
                raise PebblerError(
                    f"{path}: suite '{registry.suite}' has {member.name} in {own} memory, and the schedule "
                    f"is for {model}; leave it out"
                )
            by = None if who is None else Entrant(who, document.method)
            registry = admit(registry, instance, memory=own, schedule=document, entrant=by)
        else:
            by = None if who is None else Entrant(who, document.bound_by)
            registry = admit(registry, instance, memory=own, certificate=document, entrant=by)
    return registry


def _memory_of(member: Member, memory: Memory) -> Memory:
    """Return the memory model of an instance: its own, or the given one."""
    return memory if member.frozen is None else member.frozen.memory


class _Document(msgspec.Struct):
    format: str


def _documents(
    path: str | Path, suite: str, memory: Memory
) -> Iterator[tuple[Schedule | Certificate, MemoryModel]]:
    """Yield what a file has to enter, each with its memory model."""
    data = read_bytes(path)
    kind = decode(data, _Document, "a schedule, a certificate or a submission", path).format
    if kind == "pebbler/best-known/1":
        for record in read_registry(path, suite).records:
            if record.schedule is not None:
                yield record.schedule, record.schedule.memory_model
            if record.certificate is not UNSET:
                yield record.certificate, record.memory_model
    elif kind == "pebbler/certificate/1":
        certificate = decode(data, Certificate, "a certificate", path)
        yield certificate, memory if certificate.page_bytes is UNSET else "paged"
    else:
        schedule = decode(data, Schedule, "a schedule", path)
        yield schedule, schedule.memory_model


def submission(suite: str, paths: Sequence[str | Path], memory: Memory = "contiguous") -> Registry:
    """Return a registry of what is better in files than what is shipped for a suite, and of nothing else.

    Parameters
    ----------
    suite
        Name of the suite.
    paths, memory
        As for `admit_file`.

    Raises
    ------
    PebblerError
        When a file has nothing that holds and is better; the message says why.
    ContradictionError
        When a schedule is shorter than a certified bound.
    """
    known, sent = best_known(suite), Registry(suite=suite)
    for path in paths:
        better = admit_file(known, path, memory)
        if better == known:
            raise PebblerError(
                f"{path} is no better than what is known; pebbler best-known {suite} shows what is"
            )
        known, sent = better, admit_file(sent, path, memory)
    return sent


def verify(registry: Registry) -> Iterator[str]:
    """Check every record of a registry anew, and yield each reason why one does not hold.

    Schedules and certificates are checked. A bound without a certificate is taken as it is recorded.

    Raises
    ------
    PebblerError
        When there is no such suite.
    """
    found = {member.name: member for member in members(find_suite(registry.suite))}
    seen: set[tuple[str, Memory]] = set()
    for record in registry.records:
        where = f"{registry.suite}: {record.instance} in {record.memory_model} memory"
        if (record.instance, record.memory_model) in seen:
            yield f"{where}: there are two records"
        seen.add((record.instance, record.memory_model))
        if record.instance not in found:
            yield f"{where}: the suite has no such instance"
            continue
        frozen = found[record.instance].frozen
        if frozen is not None and record.memory_model != frozen.memory:
            yield f"{where}: the suite has it in {frozen.memory} memory"
        is_value = record.schedule is None and record.certificate is UNSET
        if frozen is not None and is_value:  # a value alone
            checksum = frozen.instances[record.instance]
        else:
            instance = found[record.instance].build()
            checksum = sha256(encode(instance)).hexdigest()
        if record.instance_sha256 != checksum:
            yield f"{where}: the checksum is of another instance"
            continue
        if record.makespan_ns is not None and record.makespan_ns < record.lower_bound_ns:
            yield f"{where}: the makespan {record.makespan_ns} is under the bound {record.lower_bound_ns}"
        try:
            if record.schedule is not None:
                _require_valid(instance, record.schedule, record.memory_model)
            if record.certificate is not UNSET:
                _require_proof(instance, record.certificate, record.memory_model)
                if record.certificate.lower_bound_ns != record.lower_bound_ns:
                    yield f"{where}: the certificate is for a bound of {record.certificate.lower_bound_ns} ns"
        except PebblerError as error:
            yield f"{where}: {error}"


def improve(
    registry: Registry,
    methods: Sequence[str],
    *,
    time_limit: float | None = None,
    seed: int = 0,
    workers: int = 1,
    memory: Memory = "contiguous",
    gap: float = 0.0,
    select: Sequence[str] = ("*",),
    who: str = WHO,
) -> Iterator[tuple[Registry, Result]]:
    """Solve those instances of a suite that are open, with one method after the other.

    What a run was that ended without closing an instance is noted, and the same run is not made again.

    Parameters
    ----------
    registry
        The best known schedules and bounds.
    methods
        Names of methods in order; an instance is done once it is closed.
    time_limit
        Time limit in seconds of each method and instance; None means until the method is done.
    seed, workers, memory
        As for `solve`; a frozen instance has its own memory model.
    gap
        An instance is closed, and left as it is, when its schedule is at most that much above its bound, as a
        share of the bound.
    select
        Patterns, of which an instance's name matches one.
    who
        Who makes the runs, for the history.

    Yields
    ------
    tuple of Registry and Result
        After each method, the registry and the result of the method.

    Raises
    ------
    PebblerError
        For an unknown method or suite, patterns that match no instance, or a known schedule that the checker
        rejects.
    ContradictionError
        When a certified bound is above a checked schedule.
    KeyboardInterrupt
        When the user ends it; the result of an interrupted method is yielded before.
    """
    everything = members(find_suite(registry.suite))
    planned = [member for member in everything if any(fnmatchcase(member.name, one) for one in select)]
    if not planned:
        raise PebblerError(f"no instance of suite '{registry.suite}' matches {', '.join(select)}")
    for count, member in enumerate(planned, start=1):
        own = _memory_of(member, memory)
        runs = {method: _run(method, time_limit, seed, workers) for method in methods}
        record = _find(registry, member.name, own)
        done = record is not None and (record.is_closed(gap) or {*runs.values()} <= _tried(record))
        if done and member.frozen is not None:
            continue  # what never changes need not be read to see that nothing is to be done
        instance = member.build()
        registry = admit(registry, instance, memory=own)
        for method, run in runs.items():
            record = _find(registry, member.name, own)
            if record is None or record.is_closed(gap):
                break
            if run in _tried(record):
                continue
            answers = Answers(instance, own)
            result = attempt(answers, method, time_limit=time_limit, seed=seed, workers=workers)
            registry = admit(
                registry,
                instance,
                memory=own,
                schedule=result.schedule,
                bound=result.bound,
                certificate=result.certificate if result.certified else None,
                entrant=Entrant(who, method, result.solve_seconds),
            )
            if result.stopped_by != "interrupted":
                registry = _noted(registry, member.name, own, run, gap)
            if result.failure is not None:
                log_defect(method, member.name, result.failure)
            told = result.stopped_by if result.makespan_ns is None else format_time(result.makespan_ns)
            bound = format_time(result.lower_bound_ns)
            _log.info("%d of %d: %s: %s: %s, bound %s", count, len(planned), member.name, method, told, bound)
            yield registry, result
            if result.stopped_by == "interrupted":
                raise KeyboardInterrupt


def _run(method: str, time_limit: float | None, seed: int, workers: int) -> str:
    """Return what a run is, in words; a program, or a policy in a file, is known by its checksum, too."""
    if (file := program_sha256(method) or policy_sha256(method)) is not None:
        method += f" {file[:8]}"
    limit = "no limit" if time_limit is None else f"{time_limit:g} s"
    return f"{method}, {limit}, seed {seed}, {workers} workers, pebbler {metadata.version('pebbler')}"


def _tried(record: Record) -> set[str]:
    return set() if record.tried is UNSET else {*record.tried}


def _noted(registry: Registry, name: str, memory: Memory, run: str, gap: float) -> Registry:
    """Return the registry with a run that ended, where it left its instance open."""

    def noted(record: Record) -> Record:
        if (record.instance, record.memory_model) != (name, memory):
            return record
        tried = UNSET if record.is_closed(gap) else tuple(sorted({*_tried(record), run}))
        return msgspec.structs.replace(record, tried=tried)

    return msgspec.structs.replace(registry, records=tuple(map(noted, registry.records)))


def _find(registry: Registry, name: str, memory: Memory) -> Record | None:
    """Return the record of an instance in a memory model; None where nothing is known."""
    found = (r for r in registry.records if (r.instance, r.memory_model) == (name, memory))
    return next(found, None)
