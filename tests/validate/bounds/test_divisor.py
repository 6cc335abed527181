"""Bounds in whole steps: the divisor of all times, where it counts, and what it closes."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from pebbler.instances.instance import Algorithm, Block, Instance, Link, Slowdown
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_bound
from pebbler.validate.bounds.certificate import certify, check_certificate, sealed
from pebbler.validate.bounds.divisor import divisor_ns, in_steps_ns

from ...samples import counts
from ..hostile import hostile_cluster, hostile_instance


def slower(instance: Instance, times: int) -> Instance:
    """The instance with all times so many times as long."""

    def longer(ns: int | None) -> int | None:
        return None if ns is None else ns * times

    def block(one: Block) -> Block:
        return msgspec.structs.replace(
            one,
            offload_ns=longer(one.offload_ns),
            prefetch_ns=longer(one.prefetch_ns),
            move_ns=longer(one.move_ns),
        )

    def algorithm(one: Algorithm) -> Algorithm:
        return msgspec.structs.replace(one, duration_ns=one.duration_ns * times)

    tasks = tuple(
        msgspec.structs.replace(task, algorithms=tuple(map(algorithm, task.algorithms)))
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, blocks=tuple(map(block, instance.blocks)), tasks=tasks)


def test_it_divides_every_time(chain: Instance) -> None:
    assert divisor_ns(chain) == 500_000
    assert [in_steps_ns(chain, ns) for ns in (0, 1, 499_999, 500_000, 500_001)] == [
        0,
        *[500_000] * 3,
        1_000_000,
    ]
    assert divisor_ns(slower(chain, 0)) == 1
    moved = msgspec.structs.replace(chain.blocks[0], move_ns=750_000)
    assert divisor_ns(msgspec.structs.replace(chain, blocks=(moved, *chain.blocks[1:]))) == 250_000


def test_times_that_depend_on_each_other_are_in_no_steps(chain: Instance) -> None:
    task = msgspec.structs.replace(chain.tasks[0], slowdown_ppm=Slowdown(offload=500_000))
    linked = msgspec.structs.replace(chain, link=Link(both_bytes_per_second=10**9))
    slowed = msgspec.structs.replace(chain, tasks=(task, *chain.tasks[1:]))
    cluster = slower(hostile_cluster(Random(0)), 10)
    assert [divisor_ns(one) for one in (linked, slowed, cluster)] == [1, 1, 1]


@pytest.mark.parametrize("count", counts(60, 1500))
def test_bounds_in_steps_are_never_above_the_optimum(count: int) -> None:
    """Prices that are a little too low are raised to what is possible, and no further."""
    rng, raised = Random(1), 0
    for _ in range(count):
        instance = slower(hostile_instance(rng, most_tasks=4), rng.choice((6, 35, 1000)))
        schedule = brute_force(instance, "divisible")
        if schedule is None:
            continue
        divisor = divisor_ns(instance)
        assert schedule.makespan_ns % divisor == 0
        bound = flow_bound(instance, hot_checkpoints(instance, 20))
        for found in (certify(instance, "compute", "compute"), bound and bound.certificate):
            if found is None:
                continue
            assert found.lower_bound_ns % divisor == 0
            assert found.lower_bound_ns <= schedule.makespan_ns
            assert check_certificate(instance, found).valid
            raised += in_steps_ns(instance, found.lower_bound_ns - 1) == found.lower_bound_ns > 0
            above = sealed(msgspec.structs.replace(found, lower_bound_ns=found.lower_bound_ns + 1))
            assert not check_certificate(instance, above).valid
    assert raised > count // 2
