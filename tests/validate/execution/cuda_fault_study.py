"""The fault study on the fake CUDA driver: schedules that lack one wait, executed until numbers are wrong.

``python -m tests.validate.execution.cuda_fault_study --page docs/gpu.md``, from the root of the repository,
puts the table into the page; without ``--page`` it prints it.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from pebbler import Workload, solve
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.instance import Instance
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.faults import essential_waits, executions_until_damage
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule

from ...fakecuda.fixtures import FakeCuda, load_fake_cuda, repeatable

PROGRAMS = (
    ("lenet", 8, "1.02xMmin", "vdnn-all-m", "contiguous"),
    ("lenet", 8, "1.0xMmin", "modnn", "contiguous"),
    ("cifar10_quick", 4, "1.2xMmin", "vdnn-all-m", "contiguous"),
    ("cifar10_quick", 4, "1.0xMmin", "modnn", "contiguous"),
    ("resnet56:depth=8", 2, "1.2xMmin", "modnn", "contiguous"),
    ("resnet56:depth=8", 2, "1.6xMmin", "vdnn-all-m", "contiguous"),
    ("cifar10_quick", 64, "1.2xMmin", "vdnn-all-m", "paged"),
)
"""Network, batch, budget, method and memory model."""
EXECUTIONS = 3
"""Executions of a case, each with other delays."""
LONGEST_DELAY_US = 2000


@dataclass(slots=True)
class Tally:
    """Cases of a program: without how many waits it could be drawn, and what became of those that were."""

    waits: int = 0
    cases: int = 0
    at_once: int = 0
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A schedule, and the waits that it cannot do without."""

    instance: Instance
    schedule: Schedule
    waits: list[tuple[int, int]]


def program(network: str, batch: int, budget: str, method: str, memory: str) -> Program:
    instance = repeatable(Workload(network, batch=batch, device="k40").instance(budget))
    schedule = solve(instance, method=method, memory=memory).schedule  # type: ignore[arg-type]
    assert schedule is not None
    return Program(instance, schedule, essential_waits(instance, schedule))


def opened(fake: FakeCuda, seed: int) -> CudaBackend:
    fake.configure(delay_us=LONGEST_DELAY_US, seed=seed)
    return CudaBackend()


def study(fake: FakeCuda, cases: int, seed: int) -> dict[tuple[str, int, str, str, str], Tally]:
    """Draw programs, waits and delays at random."""
    rng = Random(seed)
    programs = {key: program(*key) for key in PROGRAMS}
    data, right = {}, {}
    for key, drawn in programs.items():
        rebuilt = rebuild(drawn.instance)
        data[key] = initial(rebuilt.graph.network, rebuilt.batch)
        with Executor(
            CudaBackend(), plan(*unlimited(drawn.instance, drawn.schedule), rebuilt), 1
        ) as executor:
            executor.load(data[key])
            right[key] = executor.run()
    tallies: dict[tuple[str, int, str, str, str], Tally] = defaultdict(Tally)
    for _ in range(cases):
        key = rng.choice(PROGRAMS)
        drawn, tally = programs[key], tallies[key]
        seeds = [rng.randrange(2**31) for _ in range(EXECUTIONS)]
        backends = [partial(opened, fake, one) for one in seeds]
        wait = rng.choice(drawn.waits)
        count = executions_until_damage(drawn.instance, drawn.schedule, wait, backends, data[key], right[key])
        tally.waits = len(drawn.waits)
        tally.cases += 1
        tally.at_once += count == 1
        tally.damaged += count is not None
    return tallies


def table(tallies: dict[tuple[str, int, str, str, str], Tally]) -> str:
    header = ["program", "waits", "cases", "damaged at once", f"damaged within {EXECUTIONS} executions"]
    rows = []
    for key in PROGRAMS:
        network, batch, budget, method, memory = key
        name = f"{network}, batch {batch}, {budget}, {method}, {memory}"
        tally = tallies[key]
        rows.append([name, str(tally.waits), *(str(n) for n in (tally.cases, tally.at_once, tally.damaged))])
    cases, at_once, damaged = (
        sum(getattr(tally, word) for tally in tallies.values()) for word in ("cases", "at_once", "damaged")
    )
    shares = [f"{n} ({n / cases:.0%})" for n in (at_once, damaged)]
    return markdown(header, [*rows, ["all", "", str(cases), *shares]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=520, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/fakecuda"), metavar="DIR")
    arguments = parser.parse_args()
    fake = load_fake_cuda(arguments.cache.resolve())
    fake.configure()
    os.environ.update(fake.variables)
    content = "\n" + table(study(fake, arguments.cases, arguments.seed))
    publish(content, arguments.page, "<!-- begin faults -->\n", "<!-- end of faults -->")


if __name__ == "__main__":
    main()
