"""Time of the host thread to issue an operation through PyCUDA, on the fake CUDA driver.

``python -m tests.validate.execution.cuda_host_study --page docs/gpu.md``, from the root of the repository,
puts the table into the page; without ``--page`` it prints it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from pebbler import Workload, solve
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.validate.execution.backends import find_backend
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.providers import PROVIDERS
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.rebuild import rebuild

from ...fakecuda.fixtures import load_fake_cuda
from .cuda_fault_study import PROGRAMS, Program, program

EXECUTIONS = 10
"""Executions of each program; one more comes first and does not count."""


def of_plans() -> Program:
    """A program whose convolutions are plans of cudnn-frontend, where it has some."""
    measured = profile("cifar10_quick", 4, find_backend("cuda", PROVIDERS[1:]), repeat=1)
    workload = Workload("cifar10_quick", 4, measured.machine.device, profile=measured)
    instance = workload.instance("1.2xMmin")
    schedule = solve(instance, method="vdnn-all-m").schedule
    assert schedule is not None
    return Program(instance, schedule, [])


def host_us(drawn: Program) -> list[float]:
    """Microseconds of every operation of every execution."""
    rebuilt = rebuild(drawn.instance)
    with Executor(CudaBackend(), plan(drawn.instance, drawn.schedule, rebuilt), 1) as executor:
        executor.load(initial(rebuilt.graph.network, rebuilt.batch))
        executor.run()
        executions = [executor.run() for _ in range(EXECUTIONS)]
    return [timed.host_ns / 1000 for one in executions for row in one.rounds for timed in row]


def table() -> str:
    header = ["program", "operations", "median", "90 %", "99 %"]
    rows = []
    programs = {
        f"{network}, batch {batch}, {budget}, {method}, {memory}": program(
            network, batch, budget, method, memory
        )
        for network, batch, budget, method, memory in PROGRAMS
    }
    programs["cifar10_quick, batch 4, 1.2xMmin, vdnn-all-m, contiguous, plans of cudnn-frontend"] = of_plans()
    for name, drawn in programs.items():
        times = host_us(drawn)
        quantiles = [f"{value:.0f} us" for value in np.quantile(times, [0.5, 0.9, 0.99])]
        rows.append([name, str(len(times) // EXECUTIONS), *quantiles])
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--cache", type=Path, default=Path(".pytest_cache/fakecuda"), metavar="DIR")
    arguments = parser.parse_args()
    fake = load_fake_cuda(arguments.cache.resolve())
    fake.configure()
    os.environ.update(fake.variables)
    publish("\n" + table(), arguments.page, "<!-- begin host -->\n", "<!-- end of host -->")


if __name__ == "__main__":
    main()
