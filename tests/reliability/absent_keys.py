"""Where an instance has none of the newer keys, all is what it was: digests by two revisions, compared.

``python -m tests.reliability.absent_keys`` makes instances without ``link``, ``slowdown_ppm`` and work on the
host, and works out their files, bounds, optima, schedules and which damaged schedules the checker refuses,
once with the package of the working folder and once with that of the revision before these keys. It tells
where they differ, and with ``--write`` puts the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from io import BytesIO
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from msgspec import UNSET, Struct
from msgspec.structs import replace

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.suites.suite import find_suite, members
from pebbler.instances.suites.tiny import plain, scaled, tiny_cluster, tiny_instance, twisted
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.solve import solve
from pebbler.validate.gpus.check import check
from pebbler.validate.schedule import MemoryModel, Schedule

ROOT = Path(__file__).parents[2]
BEFORE = "a6cdb4002630"
"""The last revision without the keys."""

SEEDS = 500
"""How many seeds of each kind of tiny instance."""

FIGURES = ("file", "bounds", "FLOW", "optimum", "schedules", "verdicts")

_FEW = 20
"""Tasks from which FLOW is not asked for a bound."""
_STATES = 3000
"""States after which an exhaustive search gives up."""
_DAMAGED = 8
"""Operations of a schedule whose waits are left out, one by one, to see what the checker says."""

Digests = dict[str, dict[str, dict[str, str]]]
"""By kind, instance and figure."""


class Case(NamedTuple):
    """An instance, the memory model of its schedules, and the methods that plan it."""

    instance: Instance
    memory: MemoryModel
    methods: tuple[str, ...]


def rules() -> tuple[str, ...]:
    """Return methods that follow a rule and take no time."""
    return ("modnn", "vdnn-dyn", "tensorflow-rule", "layrub-hybrid")


def kinds(seeds: int) -> dict[str, Iterable[Case]]:
    """Return the instances by kind; `seeds` says how many tiny ones there are of each."""

    def tiny(make: Callable[[int], Instance]) -> Iterator[Case]:
        for seed in range(seeds):
            instance = make(seed)
            search = ("local-search",) if seed % 5 == 0 else ()
            if seed % 2:
                unit = PAGE_BYTES // instance.alignment_bytes
                instance = scaled(instance, size=unit)
            yield Case(instance, "paged" if seed % 2 else "contiguous", (*rules(), *search))

    def mixed(seed: int) -> Instance:
        return (tiny_instance, plain, twisted)[seed % 3](seed)

    return {
        "tiny": tiny(mixed),
        "tiny, carried blocks": tiny(lambda seed: tiny_instance(seed, carried=True)),
        "tiny, host memory that ends": tiny(lambda seed: tiny_instance(seed, host_budget=True)),
        "tiny, both": tiny(lambda seed: tiny_instance(seed, carried=True, host_budget=True)),
        "several GPUs": (Case(tiny_cluster(s), "contiguous", ("modnn",)) for s in range(seeds // 3)),
        "random suite": (
            Case(one.build(), "contiguous", rules())
            for one in islice(members(find_suite("random")), max(seeds // 10, 1))
        ),
        "networks": networks(seeds // 20),
    }


def networks(count: int) -> Iterator[Case]:
    """Yield some networks under two budgets, each also in a steady state."""
    names = (("vgg16", 64), ("resnet50", 32), ("googlenet", 64), ("gpt2:layers=2", 4), ("alexnet", 128))
    made = 0
    for steady in (False, True):
        for (name, batch), device in zip(names, ("k40", "v100", "a100", "a100", "v100"), strict=True):
            workload = Workload(name, batch, device, steady=steady, optimizer="adam" if steady else None)
            for budget in ("1.1xMmin", "1.5xMmin"):
                if made < count:
                    yield Case(workload.instance(budget), "paged" if made % 2 else "contiguous", rules())
                made += 1


def figures(case: Case, *, searched: bool) -> dict[str, str]:
    """Return the digest of each figure of an instance; `searched` says whether its optimum is one."""
    instance, memory, methods = case
    found: dict[str, list[object]] = {"file": [instance]}
    best = best_bound(instance, ["critical-path"], memory)  # which is younger than the keys
    found["bounds"] = [best.lower_bound_ns, best.bound_by, best.certificate]
    again = any(task.recomputable for task in instance.tasks)
    if len(instance.tasks) < _FEW and instance.cluster is UNSET and not again:
        bound = flow_bound(instance, range(len(instance.tasks)))
        found["FLOW"] = [] if bound is None else [bound.lower_bound_ns, bound.certificate]
    if searched:
        found["optimum"] = [_optimum(instance, memory)]
    schedules = [_solved(instance, method, memory) for method in methods]
    found["schedules"] = list(schedules)
    found["verdicts"] = [
        check(instance, damaged).valid
        for schedule in schedules
        if isinstance(schedule, Schedule)
        for damaged in (schedule, *_damaged(schedule))
    ]
    return {name: digest(some) for name, some in found.items()}


def digest(figures_: Iterable[object]) -> str:
    """Return a digest of documents and of what prints."""
    told = sha256()
    for figure in figures_:
        told.update(encode(figure) if isinstance(figure, Struct) else f"{figure}\n".encode())
    return told.hexdigest()[:16]


def _optimum(instance: Instance, memory: MemoryModel) -> object:
    try:
        return brute_force(instance, "divisible" if memory == "contiguous" else memory, most_states=_STATES)
    except (PebblerError, TimeoutError) as error:
        return str(error)


def _solved(instance: Instance, method: str, memory: MemoryModel) -> object:
    """Return the schedule of a method, or the sentence that says why there is none."""
    try:
        result = solve(instance, method, memory=memory)  # type: ignore[arg-type]
    except PebblerError as error:
        return str(error)
    return result.stopped_by if result.schedule is None else result.schedule


def _damaged(schedule: Schedule) -> Iterator[Schedule]:
    """Yield a schedule without the waits of an operation, and without a residence."""
    waiting = [p for p, operation in enumerate(schedule.operations) if operation.after]
    for p in waiting[:_DAMAGED]:
        operations = list(schedule.operations)
        operations[p] = replace(operations[p], after=())
        yield replace(schedule, operations=tuple(operations))
    if schedule.residences:
        yield replace(schedule, residences=schedule.residences[1:])


def digests(seeds: int) -> Digests:
    """Return the digests of all figures, by the package that is imported."""
    found: Digests = {}
    for kind, cases in kinds(seeds).items():
        mine = found[kind] = {}
        for i, case in enumerate(cases):
            searched = kind.startswith("tiny") and i % 4 < 2
            mine[f"{i} {case.instance.name}"] = figures(case, searched=searched)
    return found


def digests_of(folder: Path, seeds: int) -> Digests:
    """Return the digests by the package in a folder, which a process of its own imports."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    command = [sys.executable, __file__, "--digests", "--seeds", str(seeds)]
    told = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True).stdout
    found: Digests = json.loads(told)
    return found


def exported(revision: str, folder: Path) -> None:
    """Put the files of a revision into a folder."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="tar")


def compared(now: Digests, before: Digests) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return a row for each kind, with how many figures there are, and the names of those that differ."""
    rows, differing = [], []
    for kind, mine in now.items():
        theirs = before.get(kind, {})
        names = sorted({*mine, *theirs})
        counts: Mapping[str, list[int]] = {figure: [0, 0] for figure in FIGURES}
        for name in names:
            ours, other = mine.get(name, {}), theirs.get(name, {})
            for figure in FIGURES:
                if figure in ours or figure in other:
                    same = ours.get(figure) == other.get(figure)
                    counts[figure][0] += 1
                    counts[figure][1] += not same
                    if not same:
                        differing.append(f"{kind}: {name}: {figure}")
        told = [f"{n:,}" + (f", {d} differ" if d else "") for n, d in counts.values()]
        rows.append((kind, f"{len(names):,}", *told))
    return rows, differing


def main() -> None:
    """Compare two revisions, and exit with 1 where a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of tiny instances; default: {SEEDS}")
    parser.add_argument("--before", default=BEFORE, metavar="REVISION", help=f"default: {BEFORE}")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    parser.add_argument("--digests", action="store_true", help="print the digests of the imported package")
    options = parser.parse_args()
    if options.digests:
        json.dump(digests(options.seeds), sys.stdout)
        return
    from .pages import write_section

    with TemporaryDirectory() as folder, ThreadPoolExecutor(2) as both:
        exported(options.before, Path(folder))
        before, now = both.map(digests_of, (Path(folder), ROOT), (options.seeds, options.seeds))
    rows, differing = compared(now, before)
    runs = [{"before": options.before, "seeds": options.seeds, "differing": differing, "rows": rows}]
    write_section("absent", ("instances", "number", *FIGURES), rows, runs, write=options.write)
    for name in differing[:20]:
        print(f"differs: {name}", file=sys.stderr)
    if differing:
        sys.exit(1)


if __name__ == "__main__":
    main()
