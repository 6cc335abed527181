"""Predicted against measured on the CPU backend, each network with its own profile, and the host's time.

``python docs/scripts/execution.py`` prints the table of docs/execution.md; ``--write FILE`` puts it into
the page, ``--picture FILE`` draws the least disturbed execution of a schedule with copies, and ``--repeat N``
sets how often everything is executed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.trial import picture
from pebbler.instances.files import write_atomically
from pebbler.instances.profile import Profile
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.trial import Trial, attempt

NETWORKS = (("lenet", 64), ("cifar10_quick", 32), ("resnet56:depth=8", 16))
BUDGETS = ("1.05xMmin", "5xMmin")
METHODS = ("modnn", "vdnn-all-m", "local-search")
_KINDS = ("run", "copy")
SECONDS = 1.0
"""Time limit of a method."""
BEGIN, END = "<!-- begin execution -->\n", "<!-- end execution -->\n"


@dataclass(frozen=True, slots=True)
class Case:
    """A schedule and what came of it."""

    network: str
    batch: int
    budget: str
    method: str
    memory: str
    trial: Trial

    @property
    def least_ns(self) -> list[int]:
        """The least time of every operation over all executions."""
        return [
            min(one.rounds[0][i].end_ns - one.rounds[0][i].start_ns for one in self.trial.executions)
            for i in range(len(self.trial.schedule.operations))
        ]

    @property
    def undisturbed_ns(self) -> int:
        """The program simulated with these times: an iteration in which nothing else happens."""
        mappings = [
            min(one.rounds[0][i].mapping_ns for one in self.trial.executions)
            for i in range(len(self.trial.schedule.operations))
        ]
        return self.trial.simulated(self.least_ns, mappings)

    @property
    def error(self) -> float:
        """How far that is from the predicted iteration, as a share of it."""
        return self.undisturbed_ns / self.trial.predicted_ns - 1

    @property
    def disturbance(self) -> float:
        """How many times as long the fastest iteration took."""
        return self.trial.executions[0].measured_ns / self.undisturbed_ns

    @property
    def has_copies(self) -> bool:
        """Whether anything is copied between device and host."""
        return any(one.kind in ("offload", "prefetch") for one in self.trial.schedule.operations)

    def ratios(self, *, copies: bool) -> list[float]:
        """Measured over predicted time of every copy, or of every run: the least over all executions."""
        return [
            least / nominal
            for least, nominal, one in zip(
                self.least_ns, self.trial.nominal_ns, self.trial.schedule.operations, strict=True
            )
            if (one.kind != "run") == copies
        ]

    def host_ns(self) -> list[int]:
        """Time of the host to issue every operation."""
        return [one.host_ns for row in self.trial.median.rounds for one in row]


def cases(repeat: int) -> Iterator[Case]:
    """Profile every network, then execute what the methods find."""
    for network, batch in NETWORKS:
        measured = profile(network, batch, CpuBackend, repeat=repeat)
        workload = Workload(network, batch, measured.machine.device, profile=measured)
        for budget in BUDGETS:
            for memory in ("contiguous", "paged"):
                yield from _executed(workload, measured, budget, memory, repeat)


def _executed(workload: Workload, measured: Profile, budget: str, memory: str, repeat: int) -> Iterator[Case]:
    instance = workload.instance(budget)
    seen: set[tuple[object, ...]] = set()
    for method in METHODS:
        schedule = solve(instance, method, time_limit=SECONDS, memory=memory).schedule  # type: ignore[arg-type]
        if schedule is None or (schedule.operations, schedule.residences) in seen:
            continue
        seen.add((schedule.operations, schedule.residences))
        trial = attempt(instance, schedule, CpuBackend, repeat=repeat)
        yield Case(measured.network, workload.batch, budget, method, memory, trial)


def table(found: Sequence[Case]) -> str:
    """Return a row for each case, and the distributions, as Markdown."""
    rows = [
        (
            f"{case.network} ({case.batch})",
            case.budget,
            case.method,
            case.memory,
            str(len(case.trial.schedule.operations)),
            format_time(case.trial.scheduled_ns),
            format_time(case.trial.predicted_ns),
            format_time(case.undisturbed_ns),
            f"{case.error:+.1%}",
            format_time(case.trial.executions[0].measured_ns),
            format_time(case.trial.measured_ns),
            " / ".join(f"{value:.2f}" for value in statistics.quantiles(case.ratios(copies=False), n=4)),
            format_time(round(statistics.median(case.host_ns()))),
            "yes" if case.trial.identical else "NO",
        )
        for case in found
    ]
    header = (
        "network (batch)",
        "budget",
        "method",
        "memory",
        "operations",
        "schedule",
        "predicted",
        "from the least times of operations",
        "error",
        "fastest iteration",
        "median",
        "least / predicted of runs, quartiles",
        "host, an operation",
        "same bits",
    )
    return markdown(header, rows) + "\n" + summary(found)


def summary(found: Sequence[Case]) -> str:
    """Return the distributions over all cases, in words."""
    errors = sorted(abs(case.error) for case in found)
    measured = sorted(abs(case.trial.measured_ns / case.trial.predicted_ns - 1) for case in found)
    hosts = sorted(ns for case in found for ns in case.host_ns())
    paged = [case.trial for case in found if case.memory == "paged"]
    mappings = [
        (one.mapping_ns, predicted)
        for trial in paged
        for one, predicted in zip(trial.median.rounds[0], trial.mappings_ns, strict=True)
        if predicted
    ]

    lines = [
        f"Error of the median iteration, {len(found)} schedules: median {at(measured, 0.5):.1%}, "
        f"90 % of them within {at(measured, 0.9):.1%}, worst {measured[-1]:.1%}.",
        f"Error of the iteration from the least times: median {at(errors, 0.5):.1%}, "
        f"90 % of them within {at(errors, 0.9):.1%}, worst {errors[-1]:.1%}.",
        *(
            _spread(word, [r for case in found for r in case.ratios(copies=word == "copy")])
            for word in _KINDS
        ),
        f"Host time of an operation, {len(hosts)} of them: median {format_time(int(at(hosts, 0.5)))}, "
        f"10 % above {format_time(int(at(hosts, 0.9)))}.",
    ]
    if mappings:
        taken, predicted = (round(statistics.median(column)) for column in zip(*mappings, strict=True))
        lines.append(
            f"Mapping pages, {len(mappings)} operations: median {format_time(taken)}, "
            f"predicted {format_time(predicted)}."
        )
        of_all = statistics.median(abs(one.measured_ns / one.predicted_ns - 1) for one in paged)
        of_schedules = statistics.median(abs(one.measured_ns / one.scheduled_ns - 1) for one in paged)
        lines.append(
            f"Error of the median iteration in paged memory, {len(paged)} schedules: median {of_all:.1%}; "
            f"without the waits and mappings of the host in the prediction {of_schedules:.1%}."
        )
    return "".join(f"- {line}\n" for line in lines)


def _spread(word: str, ratios: Sequence[float]) -> str:
    """How far the operations of a kind are from the prediction."""
    if not ratios:
        return f"Least over predicted time of a {word}: there is none."
    ordered, errors = sorted(ratios), sorted(abs(ratio - 1) for ratio in ratios)
    return (
        f"Least over predicted time of a {word}, {len(ratios)} of them: 10 % under {at(ordered, 0.1):.2f}, "
        f"median {at(ordered, 0.5):.2f}, 10 % above {at(ordered, 0.9):.2f}; "
        f"median error {at(errors, 0.5):.1%}."
    )


def at(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of sorted values lies."""
    return values[min(int(share * len(values)), len(values) - 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/execution.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    parser.add_argument("--repeat", type=int, metavar="N", default=25, help="executions; default: 25")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a schedule with copies")
    options = parser.parse_args(arguments)
    found = list(cases(options.repeat))
    publish(table(found), options.write, BEGIN, END)
    if options.picture is not None:
        trial = min((case for case in found if case.has_copies), key=lambda case: case.disturbance).trial
        write_atomically(options.picture, picture(replace(trial, executions=trial.executions[:1])))


if __name__ == "__main__":
    main()
