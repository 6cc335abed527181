"""Captions say what the model leaves out of the instance at hand, and nothing that is not so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pebbler.benchmark.comparison.frontier import frontier
from pebbler.benchmark.comparison.largest_batch import largest_batch
from pebbler.benchmark.comparison.least import least_value
from pebbler.benchmark.output.captions import SEVERAL, ModelLimits, caption, limits_of
from pebbler.heuristics.methods import Method
from pebbler.instances.instance import Instance, Slowdown
from pebbler.instances.memory import with_host_memory
from pebbler.instances.transforms import with_shared_link
from pebbler.instances.workload import Workload

Change = Callable[[Instance], Instance]


def slowed(instance: Instance) -> Instance:
    first, *others = instance.tasks
    return replace(instance, tasks=(replace(first, slowdown_ppm=Slowdown(offload=1000)), *others))


CHANGES: dict[str, Change] = {
    "copies do not slow compute down": slowed,
    "host memory is unlimited": lambda instance: with_host_memory(instance, "1GiB"),
}
"""What is left out, and what an instance is like where it is not."""


def test_what_an_instance_has_is_not_left_out(tight: Instance) -> None:
    plain = caption("paged memory", ["today"], limits_of(tight))
    assert plain == caption("paged memory", ["today"])
    assert plain.startswith("paged memory: predicted by simulation, not measured; ")
    assert plain.endswith(". today.")
    for left_out, change in CHANGES.items():
        assert left_out in plain
        told = caption("paged memory", [], limits_of(change(tight)))
        assert left_out not in told
        assert all(other in told for other in CHANGES if other != left_out)


def test_a_shared_link_is_named(tight: Instance) -> None:
    told = caption("paged memory", [], limits_of(with_shared_link(tight, "30GB/s")))
    assert told.startswith("paged memory; a link of 30 GB/s for both directions: predicted by")


def test_several_problems_may_have_any() -> None:
    told = caption("Iteration times", [], SEVERAL)
    assert told == f"Iteration times: {SEVERAL}."
    assert not any(f"; {left_out};" in f"; {told};" for left_out in CHANGES)


@pytest.mark.parametrize(
    "change", [lambda instance: with_shared_link(instance, "2GB/s"), *CHANGES.values(), lambda i: i]
)
def test_frontiers_and_least_values_keep_the_limits(
    change: Change, tight: Instance, toys: Callable[..., None], swap: Method
) -> None:
    toys(swap=swap)
    instance = change(tight)
    assert frontier(instance, "swap", points=1).limits == limits_of(instance)
    assert least_value(instance, "link", 0.5, "swap", refine=False).limits == limits_of(instance)


def test_the_largest_batch_keeps_the_limits(toys: Callable[..., None], swap: Method) -> None:
    toys(swap=swap)
    workload = Workload("lenet", 1, "k40", host_memory="1GiB", link_both="9GB/s")
    found = largest_batch(workload, workload.minimum_budget(), "swap")
    assert found.limits == ModelLimits(host_ends=True, link_bytes_per_second=9 * 10**9)
