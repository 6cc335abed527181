"""Give committed results and best-known values the checksums that files of today's instances have.

Earlier versions wrote `origin`, `layers` and `transforms` under `meta`: the same instance had another file,
and with it another checksum. For every checksum the script builds the instance from what the record tells of
it, and writes it as earlier versions did. Where the checksum of that is the recorded one, today's takes its
place. What is not found so is listed and left alone. Checksums of schedules stay: they are of files as they
were.

Run it from the root of the checkout: ``python paper/scripts/rekey.py``. A second run changes nothing.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from pebbler.benchmark.sweeps.best_known import Record, Registry
from pebbler.benchmark.sweeps.problems import Problem, SuiteProblem, WorkloadProblem, is_free, own_sha256
from pebbler.benchmark.sweeps.results import Results, Run
from pebbler.heuristics.methods import find_method
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import checksum, encode, read_document, write_document
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, list_suites, members
from pebbler.instances.transforms import LINKS
from pebbler.instances.workload import Workload
from variants import (
    CASES,
    DECISIONS,
    LINK_CASES,
    LINKED,
    REWORKED,
    freedoms,
    limited,
    linked,
    problem,
)

REGISTRIES = Path("instances/suites/best_known")
RESULTS = (Path("docs/data"), Path("paper/data"))

LABELS = (
    *("generator", "shape", "knobs"),
    *("network", "batch", "sub_batch", "device", "graph", "cost_model", "weights_as_blocks", "source"),
    *("layers", "measured", "mapping", "notes", "experiment", "one_gpu_ideal_ns", "transforms"),
)
"""The keys of `meta` in the order in which earlier versions wrote them."""

UNKNOWN = {"cost_model_version", "cudnn"}
"""Keys of `origin` that earlier versions did not write."""

Renamed = dict[str, str]
"""Today's checksum by the one that an earlier version gave to the same."""


def earlier(instance: Instance, *, words: bool) -> str:
    """Return the checksum that an earlier version gave to an instance.

    `words` says which: the last one had the key `transforms` already, those before wrote words.
    """
    labels: dict[str, Any] = dict(instance.meta)
    if instance.origin is not UNSET:
        origin = msgspec.to_builtins(instance.origin)
        labels |= {"weights_as_blocks": False}
        labels |= {key: value for key, value in origin.items() if key not in UNKNOWN}
    if instance.layers is not UNSET:
        labels["layers"] = msgspec.to_builtins(instance.layers)
    transforms = instance.transforms
    if words and transforms is not UNSET:
        labels["transforms"] = [transform.word for transform in transforms]
        transforms = UNSET
    old = msgspec.structs.replace(instance)
    for key, value in (
        ("meta", {key: labels[key] for key in sorted(labels, key=LABELS.index)}),
        ("transforms", transforms),
        ("origin", UNSET),
        ("layers", UNSET),
    ):
        msgspec.structs.force_setattr(old, key, value)
    return sha256(encode(old)).hexdigest()


def renamed(instances: Sequence[Instance], *, free: bool = False) -> Renamed:
    """Return what becomes of the checksums of an iteration and of its instances."""
    found: Renamed = {}
    today = [checksum(instance) for instance in instances]
    for words in (False, True):
        old = [earlier(instance, words=words) for instance in instances]
        found |= zip(old, today, strict=True)
        if free:
            found[own_sha256([*old, "auto"])] = own_sha256([*today, "auto"])
        else:
            found[own_sha256(old)] = own_sha256(today)
    return found


# --- what is recorded of an instance ------------------------------------------------------------------


@cache
def variants() -> dict[str, Instance]:
    """The instances of the study that no sweep can name, by the problems' names."""
    found = {
        problem(DECISIONS, case, freedom.word): limited(case, freedom)
        for case in CASES
        for freedom in freedoms(case.batch)
    }
    for case in LINK_CASES:
        for link in LINKS:
            found[problem(LINKED, case, link)] = linked(case, link)
            found[problem(REWORKED, case, link)] = linked(case, link, recompute=True)
    return {name: instance for name, instance in found.items() if instance is not None}


def named(name: str) -> Problem:
    """Return the problem of a name, as problems name themselves.

    Raises
    ------
    PebblerError
        When the name is of no suite and of no workload.
    """
    first, *rest = name.split("/")
    if first in list_suites():
        return SuiteProblem(first, "/".join(rest))
    if len(rest) < 3 or not rest[0].isdecimal():
        raise PebblerError(f"'{name}' does not tell how the instance was made")
    batch, device, budget, *words = rest
    sizes = [word.removeprefix("sub-batch ") for word in words if word.startswith("sub-batch ")]
    workload = Workload(
        first,
        int(batch),
        device,
        "paper" if "paper" in words else "executable",
        "single" if "single" in words else "duplex",
    )
    if sizes == ["auto"]:
        return WorkloadProblem(workload, budget, "auto")
    return WorkloadProblem(workload, budget, int(sizes[0]) if sizes else None)


@cache
def built(name: str) -> tuple[tuple[Instance, ...], Workload | None, bool]:
    """Return a problem's instances, its workload, and whether a method chooses the sub-batch."""
    if name in variants():
        return (variants()[name],), None, False
    made = named(name)
    return made.instances(), made.workload if isinstance(made, WorkloadProblem) else None, is_free(made)


@cache
def of_problem(name: str) -> Renamed:
    """Return what becomes of the checksums of a problem."""
    instances, _, free = built(name)
    return renamed(instances, free=free)


@cache
def of_solved(name: str, method: str, sub_batch: int | None) -> Renamed:
    """Return what becomes of the checksums of what a method may have solved: its own of a problem."""
    instances, workload, _ = built(name)
    iterations = [instances]
    if workload is not None and sub_batch is not None:
        budget = instances[0].budget_bytes
        iterations.append(
            tuple(
                workload.instance(budget, size, rounds=rounds, check_budget=False)
                for size, rounds in workload.rounds(sub_batch)
            )
        )
    transform = find_method(method).transform
    if transform is not None:
        iterations += [tuple(map(transform, iteration)) for iteration in iterations]
    return dict(chain.from_iterable(renamed(iteration).items() for iteration in iterations))


# --- files --------------------------------------------------------------------------------------------


class Tally:
    """What has become of the checksums of a file."""

    def __init__(self) -> None:
        self.changed = self.kept = 0
        self.unknown: list[str] = []

    def of(self, old: str, found: Renamed, what: str) -> str:
        """Return today's checksum for a recorded one, or that itself."""
        if old in found:
            self.changed += 1
            return found[old]
        if old in found.values():
            self.kept += 1
        else:
            self.unknown.append(f"{what}: {old[:12]}")
        return old

    def __str__(self) -> str:
        lines = [f"{self.changed} checksums changed, {self.kept} are today's, {len(self.unknown)} not found"]
        return "\n  ".join([*lines, *dict.fromkeys(self.unknown)])


def fingerprint(run: Run, problem_sha256: str) -> str:
    """Return the fingerprint of a run, were its problem of that checksum; `Job` says how."""
    parts = (problem_sha256, run.setting, run.seed, sorted(run.origin.packages.items()))
    return sha256(msgspec.json.encode(parts)).hexdigest()


def rekey_results(path: Path) -> Tally:
    """Replace the checksums of problems and instances in a results file, all of them or none."""
    tally = Tally()
    with Results(path) as results:
        runs = results.runs()
    rows = []
    for run in runs:
        name, found = run.about.problem, run.found
        what = f"{name}, {run.setting.method}"
        try:
            solved = of_problem(name) | of_solved(name, run.setting.method, found.sub_batch)
        except PebblerError as error:
            tally.unknown.append(f"{what}: {error}")
            continue
        key = tally.of(run.about.problem_sha256, of_problem(name), what)
        sums = [tally.of(old, solved, f"{what}: instance") for old in found.instances]
        if run.fingerprint in (fingerprint(run, run.about.problem_sha256), fingerprint(run, key)):
            own = fingerprint(run, key)
        else:
            own = run.fingerprint
            tally.unknown.append(f"{what}: fingerprint {own[:12]}")
        if (own, key, sums) != (run.fingerprint, run.about.problem_sha256, list(found.instances)):
            rows.append((own, key, msgspec.json.encode(sums).decode(), run.fingerprint))
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "UPDATE runs SET fingerprint = ?, problem_sha256 = ?, instances = ? WHERE fingerprint = ?",
            rows,
        )
    return tally


def rekey_registry(path: Path) -> Tally:
    """Replace the checksums in the best-known values of a suite."""
    tally = Tally()
    registry = read_document(path, Registry, "a registry")
    built = {member.name: member for member in members(find_suite(registry.suite))}
    records: list[Record] = []
    for record in registry.records:
        found = renamed((built[record.instance].build(),)) if record.instance in built else {}
        schedule = record.schedule
        if schedule is not None and isinstance(schedule.instance_sha256, str):
            own = tally.of(schedule.instance_sha256, found, f"{record.instance}: schedule")
            schedule = msgspec.structs.replace(schedule, instance_sha256=own)
        key = tally.of(record.instance_sha256, found, record.instance)
        records.append(msgspec.structs.replace(record, instance_sha256=key, schedule=schedule))
    write_document(msgspec.structs.replace(registry, records=tuple(records)), path)
    return tally


def files() -> Iterator[tuple[Path, Tally]]:
    """Go through all files that hold checksums of instances."""
    for path in sorted(REGISTRIES.glob("*.json")):
        if not find_suite(path.stem).frozen:  # its instances never change
            yield path, rekey_registry(path)
    for folder in RESULTS:
        for path in sorted(folder.glob("*.sqlite")):
            yield path, rekey_results(path)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python paper/scripts/rekey.py", description=__doc__).parse_args()
    for file, told in files():
        print(f"{file}: {told}", flush=True)
