from __future__ import annotations

import pebbler
from pebbler.heuristics.loading import kernels, load_for
from pebbler.heuristics.methods import Limits


def test_kernels_and_what_each_method_loads_can_be_loaded() -> None:
    methods = pebbler.list_methods()
    assert {"flow", "cp-sat", "local-search"} <= {info.name for info in methods}
    for info in methods:
        load_for(info.call, Limits())
    kernels(Limits())
