from __future__ import annotations

import subprocess
import sys

import pytest

import pebbler
from pebbler.heuristics.loading import kernels, load_for
from pebbler.heuristics.methods import Limits


def test_kernels_and_what_each_method_loads_can_be_loaded() -> None:
    methods = pebbler.list_methods()
    assert {"flow", "cp-sat", "local-search"} <= {info.name for info in methods}
    for info in methods:
        load_for(info.call, Limits())
    kernels(Limits())


CALLED = """
import sys
from pebbler.heuristics.loading import load_for
from pebbler.heuristics.methods import Limits, Refusal, find_method
from pebbler.instances.workload import Workload
import pebbler.solver

limits = Limits(time_limit=0.1)
info = find_method(sys.argv[1])
instance = Workload("lenet", 64, "k40").instance("1.2xMmin")
instance = instance if info.transform is None else info.transform(instance)
load_for(info.call, limits)
loaded = set(sys.modules)
try:
    info.call(instance, limits)
except Refusal:
    pass
late = {name.partition(".")[0] for name in set(sys.modules) - loaded}
print(sorted(late & {"numpy", "numba", "networkx", "ortools", "pandas", "pulp", "scipy"}))
"""


@pytest.mark.parametrize(
    "method",
    [
        "torch-compile",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("flow", "modnn", "knapsack-rule", "cp-sat", "flow-recompute", "checkmate", "poet")
        ),
    ],
)
def test_what_a_method_imports_is_there_before_its_clock_starts(method: str) -> None:
    done = subprocess.run([sys.executable, "-c", CALLED, method], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
