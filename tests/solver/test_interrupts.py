"""Native solvers must leave Ctrl-C as they found it, or the next one ends the program with all it has."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from pebbler.solver.interrupts import handler_kept

_PRESS = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("kept")
"""

_SOLVES = {
    "linear": """
from pebbler.instances.workload import Workload
from pebbler.solver.flow import flow_bound
instance = Workload("lenet", 64, "k40").instance("1.1xMmin")
for integrality in ("none", "all"):
    assert flow_bound(instance, range(18), integrality=integrality, time_limit=10)
""",
    "cp-sat": """
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
solve(Workload("lenet", 64, "k40").instance("1.1xMmin"), "cp-sat", time_limit=2)
""",
    "packing": """
import random
from pebbler.instances.buffers import Buffer
from pebbler.solver.packing import pack
rng = random.Random(1)
made = []
for i in range(2200):
    first = rng.randint(0, 900)
    made.append(Buffer(str(i), first, first + rng.randint(1, 900), rng.randint(1, 40)))
pack(tuple(made), time_limit=2)
""",
}


@pytest.mark.parametrize("solve", _SOLVES.values(), ids=_SOLVES.keys())
def test_an_interrupt_after_a_solver_is_an_exception(solve: str) -> None:
    done = subprocess.run([sys.executable, "-c", solve + _PRESS], capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("kept\n"), done.stderr


def test_the_handler_of_before_is_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with handler_kept() as in_main:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    assert in_main
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_handlers_alone() -> None:
    seen: list[bool] = []

    def work() -> None:
        with handler_kept() as in_main:
            seen.append(in_main)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
