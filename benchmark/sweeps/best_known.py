"""The best that is known of a suite's instances: schedules and lower bounds that only ever improve.

``python -m pebbler.benchmark.sweeps.best_known tiny --methods brute-force --folder
instances/suites/best_known`` solves the instances of a suite that are still open and enters what is better;
``--admit FILE`` enters a schedule from elsewhere. A schedule enters only when the checker passes it, and a
bound only with the name of its argument.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from ...instances.errors import PebblerError
from ...instances.files import decode, encode, read_document, reread, write_document
from ...instances.instance import Instance, Natural
from ...instances.suites.suite import find_suite, members
from ...instances.units import format_time, parse_time
from ...solver.answers import Answers
from ...solver.bounds import Bound
from ...solver.solve import attempt
from ...validate.check import check
from ...validate.schedule import Schedule
from ..comparison.contradiction import keeping

Memory = Literal["contiguous", "paged"]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The best that is known of an instance in a memory model.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance and checksum of its file.
    memory_model
        Of the schedule.
    makespan_ns, lower_bound_ns
        What is reached (None: nothing yet) and what is proven.
    bound_by, certified
        The argument of the bound, and whether it is in exact arithmetic.
    schedule
        The schedule that reaches it, as the checker passed it.
    """

    instance: str
    instance_sha256: str
    memory_model: Memory
    makespan_ns: Natural | None
    lower_bound_ns: Natural
    bound_by: str
    certified: bool
    schedule: Schedule | None

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets the bound."""
        return self.makespan_ns == self.lower_bound_ns


class Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The records of a suite, by name and memory model."""

    format: Literal["pebbler/best-known/1"] = "pebbler/best-known/1"
    suite: str
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


def admit(
    registry: Registry,
    instance: Instance,
    *,
    memory: Memory = "contiguous",
    schedule: Schedule | None = None,
    bound: Bound | None = None,
) -> Registry:
    """Return the registry with a schedule, a bound or both where they are better than what is known.

    A bound that is a solver's word falls where a schedule is shorter, with a warning; what is certified
    stays.

    Raises
    ------
    PebblerError
        When the checker refuses the schedule.
    ContradictionError
        When it is shorter than a certified bound.
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
    if schedule is not None:
        schedule = reread(schedule)
        _require_valid(instance, schedule, memory)
        if record.makespan_ns is None or schedule.makespan_ns < record.makespan_ns:
            record = msgspec.structs.replace(record, makespan_ns=schedule.makespan_ns, schedule=schedule)
    answers = Answers(instance, memory)
    answers.claim(Bound(record.lower_bound_ns, record.bound_by, record.certified))
    if bound is not None:
        answers.claim(bound)
    if record.schedule is not None:
        answers.admit(record.schedule)
    best = answers.bound()
    if answers.refuted or best.lower_bound_ns > record.lower_bound_ns:
        record = msgspec.structs.replace(
            record,
            lower_bound_ns=best.lower_bound_ns,
            bound_by=best.bound_by,
            certified=best.certified,
        )
    found[instance.name, memory] = record
    return msgspec.structs.replace(registry, records=tuple(found[key] for key in sorted(found)))


def _require_valid(instance: Instance, schedule: Schedule, memory: Memory) -> None:
    reasons = list(check(instance, schedule, instance_sha256=sha256(encode(instance)).hexdigest()).reasons)
    if schedule.memory_model != memory:
        reasons.append(f"its memory model is {schedule.memory_model}, not {memory}")
    if reasons:
        raise PebblerError(f"{instance.name}: the schedule is not valid: {reasons[0]}")


def _improve(
    registry: Registry, methods: Sequence[str], time_limit: float | None, memory: Memory
) -> Iterator[Registry]:
    """Solve the instances that are open, and yield the registry after each."""
    for member in members(find_suite(registry.suite)):
        instance = member.build()
        for method in methods:
            registry = admit(registry, instance, memory=memory)
            if next(
                r for r in registry.records if r.instance == member.name and r.memory_model == memory
            ).optimal:
                break
            result = attempt(Answers(instance, memory), method, time_limit=time_limit)
            bound = result.bound
            registry = admit(registry, instance, memory=memory, schedule=result.schedule, bound=bound)
            told = result.stopped_by if result.makespan_ns is None else format_time(result.makespan_ns)
            print(
                f"{member.name}: {method}: {told}, bound {format_time(result.lower_bound_ns)}",
                file=sys.stderr,
            )
            yield registry


def _admit_file(registry: Registry, path: Path) -> Registry:
    schedule = read_document(path, Schedule, "a schedule")
    for member in members(find_suite(registry.suite)):
        if member.name == schedule.instance:
            if schedule.memory_model == "divisible":
                raise PebblerError(f"{path}: a divisible schedule is a relaxation and never enters")
            return admit(registry, member.build(), memory=schedule.memory_model, schedule=schedule)
    raise PebblerError(f"{path} is for '{schedule.instance}', which is not in suite '{registry.suite}'")


def main(arguments: Sequence[str] | None = None) -> None:
    """Improve the records of a suite, in the file of a folder; what has been entered stays."""
    parser = argparse.ArgumentParser(
        prog="python -m pebbler.benchmark.sweeps.best_known", description=__doc__
    )
    parser.add_argument("suite")
    parser.add_argument("--folder", type=Path, required=True, help="where the suite's file is or will be")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=[], metavar="A,B,...")
    parser.add_argument("--time-limit", type=parse_time, metavar="T", help="for each method and instance")
    parser.add_argument("--memory", choices=("contiguous", "paged"), default="contiguous")
    parser.add_argument(
        "--admit", type=Path, nargs="*", default=[], metavar="FILE", help="schedules to enter"
    )
    options = parser.parse_args(arguments)
    file: Path = options.folder / f"{options.suite}.json"
    exists = file.exists()
    registry = read_document(file, Registry, "a registry") if exists else Registry(suite=options.suite)
    with keeping(options.folder):
        for path in options.admit:
            registry = _admit_file(registry, path)
            write_document(registry, file)
        for better in _improve(registry, options.methods, options.time_limit, options.memory):
            write_document(better, file)


if __name__ == "__main__":
    main()
