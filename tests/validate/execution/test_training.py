from __future__ import annotations

import numpy as np
import pytest

from pebbler import solve
from pebbler.instances.instance import Instance
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.data import Data, initial
from pebbler.validate.execution.executor import Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.training import descend, digits
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule

from ...samples import counts

BATCH = 32


def batches(count: int) -> list[Data]:
    rng = np.random.default_rng(8)
    return [dict(zip(("X(input)", "labels(loss)"), digits(BATCH, rng), strict=True)) for _ in range(count)]


def test_digits_are_where_they_say_and_differ() -> None:
    images, labels = digits(400, np.random.default_rng(1))
    assert images.shape == (400, 1, 28, 28)
    assert set(labels) == set(range(10))
    assert images[labels == 8].sum() / (labels == 8).sum() > images[labels == 1].sum() / (labels == 1).sum()


@pytest.mark.parametrize("steps", counts(5, 30))
def test_lenet_learns_under_half_the_memory_on_the_trajectory_without_a_budget(steps: int) -> None:
    """In thirty steps it learns; so many of them are made without a budget, too."""
    workload = Workload("lenet", BATCH, "K40")
    whole = workload.instance("64MiB")
    everything = solve(whole, "network-wide").schedule
    assert everything is not None
    instance = workload.instance(everything.peak_bytes // 2, sub_batch=8, rounds=4)
    schedule = solve(instance, "vdnn-all-m").schedule
    assert schedule is not None
    assert any(operation.kind == "offload" for operation in schedule.operations)
    rebuilt = rebuild(instance)
    data = initial(rebuilt.graph.network, BATCH)
    every = batches(30)

    def opened(instance: Instance, schedule: Schedule) -> Executor:
        return Executor(CpuBackend(), plan(instance, schedule, rebuilt), instance.rounds, poison=True)

    with opened(*unlimited(instance, schedule)) as executor:
        others, other_weights = descend(executor, data, every[:steps], rate=0.01)
    with opened(instance, schedule) as executor:
        losses, weights = descend(executor, data, every[:steps], rate=0.01)
        rest, _ = descend(executor, data | weights, every[steps:], rate=0.01)
    assert losses == others
    assert all(weights[name].tobytes() == values.tobytes() for name, values in other_weights.items())
    assert np.mean([*losses, *rest][-5:]) < 0.5 * np.mean(losses[:5])
