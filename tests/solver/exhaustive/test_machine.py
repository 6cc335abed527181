"""Bounds, exhaustive search and schedules of rules: a shared link, slowed tasks, work on the host.

Each alone, in pairs, with carried blocks, and with host memory that ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest

from pebbler.instances.suites.tiny import tiny_instance
from pebbler.solver.bounds import best_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.solve import solve
from pebbler.validate.check import check
from pebbler.validate.replay.machine import replay

from ...samples import sampled

MACHINE = ("link", "slowdown", "host_work")
KEYS = [
    *((key,) for key in MACHINE),
    *itertools.combinations(MACHINE, 2),
    *((key, other) for key in MACHINE for other in ("carried", "host_budget")),
]
KEYS.remove(("host_work", "carried"))  # too large a search; attacks have smaller instances of both


@pytest.mark.parametrize("seeds", sampled((1, 11), range(0, 304, 38)))
@pytest.mark.parametrize("keys", KEYS, ids="-".join)
def test_bounds_then_exhaustive_search_then_schedules(keys: Sequence[str], seeds: Sequence[int]) -> None:
    judged = worse = found = 0
    for seed in seeds:
        instance = tiny_instance(seed, **dict.fromkeys(keys, True))
        try:
            shortest = brute_force(instance, "divisible", most_states=3000)
        except TimeoutError:
            continue
        judged += 1
        bound = best_bound(instance).lower_bound_ns
        schedules = [solve(instance, name).schedule for name in ("modnn", "vdnn-all-m")]
        if shortest is None:
            assert schedules == [None, None], instance
            continue
        assert check(instance, shortest).reasons == (), instance
        assert replay(instance, shortest, None, Random(seed)) == [], instance
        assert bound <= shortest.makespan_ns, instance
        for schedule in schedules:
            if schedule is not None:
                assert check(instance, schedule).reasons == (), instance
                assert shortest.makespan_ns <= schedule.makespan_ns, instance
                worse += shortest.makespan_ns < schedule.makespan_ns
                found += 1
    assert judged >= len(seeds) / 3
    assert found >= len(seeds) / 8
    assert worse >= len(seeds) / 8
