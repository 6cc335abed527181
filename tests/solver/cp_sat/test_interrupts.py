"""Native solvers must leave Ctrl-C as they found it, or the next one ends the program with all it has."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PRESS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("kept after {}")
"""

_SOLVES = {
    "linear": """
from pebbler.instances.workload import Workload
from pebbler.solver.flow.model import flow_bound
instance = Workload("lenet", 64, "k40").instance("1.1xMmin")
for integrality in ("none", "all"):
    assert flow_bound(instance, range(18), integrality=integrality, time_limit=10)
""",
    "cp-sat": """
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
solve(Workload("lenet", 64, "k40").instance("1.1xMmin"), "cp-sat", time_limit=0.1)
""",
    "packing": """
import random, sys
from pebbler.instances.buffers import Buffer
from pebbler.solver.packing import pack as packing
packing.LARGEST_SEARCH = 0  # so that CP-SAT packs
rng = random.Random(1)
made = []
for i in range(300):
    first = rng.randint(0, 900)
    made.append(Buffer(str(i), first, first + rng.randint(1, 900), rng.randint(1, 40)))
packing.pack(tuple(made), time_limit=0.1)
assert "ortools.sat.python.cp_model" in sys.modules
""",
}


@pytest.mark.landing
def test_an_interrupt_after_a_solver_is_an_exception() -> None:
    """After each of them in one process, so also after those before it."""
    code = "".join(solve + _PRESS.format(name) for name, solve in _SOLVES.items())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    kept = [line for line in done.stdout.splitlines() if line.startswith("kept after ")]
    assert kept == [f"kept after {name}" for name in _SOLVES], done.stderr


@pytest.mark.slow
def test_an_interrupt_ends_the_search_and_keeps_its_best() -> None:
    """However early it comes; CP-SAT's own handling has deadlocked here."""
    code = """
import os, signal, sys, threading
from ortools.sat.python import cp_model
from pebbler.solver.cp_sat.interrupts import solve_interruptibly
model = cp_model.CpModel()
x = [model.new_int_var(0, 9999, "") for _ in range(400)]
model.add_all_different(x)
for i in range(399):
    model.add(x[i] + 3 * x[i + 1] >= 100 + i)
model.minimize(sum((i % 13 + 1) * v for i, v in enumerate(x)))
solver = cp_model.CpSolver()
solver.parameters.num_workers = 1
threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGINT)).start()
status, interrupted = solve_interruptibly(solver, model)
assert interrupted
print("ended", solver.status_name(status))
"""
    for delay in ("0.05", "0.5"):
        done = subprocess.run([sys.executable, "-c", code, delay], capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("ended"), done.stderr
