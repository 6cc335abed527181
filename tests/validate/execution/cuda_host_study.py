"""Time of the host thread to issue an operation through PyCUDA, on the fake CUDA driver.

``python -m tests.validate.execution.cuda_host_study --page docs/gpu.md``, from the root of the repository,
puts the table into the page; without ``--page`` it prints it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from pebbler.benchmark.page import markdown, publish
from pebbler.validate.execution.cuda import CudaBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild

from ...fakecuda.fixtures import load_fake_cuda
from .cuda_fault_study import PROGRAMS, program

EXECUTIONS = 10
"""Executions of each program; one more comes first and does not count."""


def host_us(key: tuple[str, int, str, str, str]) -> list[float]:
    """Microseconds of every operation of every execution."""
    drawn = program(*key)
    rebuilt = rebuild(drawn.instance)
    with Executor(CudaBackend(), plan(drawn.instance, drawn.schedule, rebuilt), 1) as executor:
        executor.load(initial(rebuilt.graph.network, rebuilt.batch))
        executor.run()
        executions = [executor.run() for _ in range(EXECUTIONS)]
    return [timed.host_ns / 1000 for one in executions for row in one.rounds for timed in row]


def table() -> str:
    header = ["program", "operations", "median", "90 %", "99 %"]
    rows = []
    for key in PROGRAMS:
        network, batch, budget, method, memory = key
        times = host_us(key)
        quantiles = [f"{value:.0f} us" for value in np.quantile(times, [0.5, 0.9, 0.99])]
        name = f"{network}, batch {batch}, {budget}, {method}, {memory}"
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
