"""What several GPUs share."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from pebbler.instances.errors import FormatError
from pebbler.instances.files import decode, encode
from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Task

GB = 10**9
GRADIENT = Gradient(name="dW", bytes=1200, offload_ns=100, prefetch_ns=100, produced_by=0, used_by=(0,))
FOUR = Cluster(
    gpus=4, bus_bytes_per_second=12 * GB, core_bytes_per_second=2 * GB, host_bytes_per_second=5 * GB
)


@pytest.fixture
def instance() -> Instance:
    """One task."""
    only = Algorithm(name="only", duration_ns=1, workspace_bytes=0)
    return Instance(
        name="one",
        engines="duplex",
        budget_bytes=10,
        resident_bytes=0,
        blocks=(Block(name="x", bytes=4, offload_ns=1, prefetch_ns=1),),
        tasks=(Task(name="t", inputs=(), outputs=(0,), algorithms=(only,)),),
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 1025}, "at most 1024 GPUs"),
        ({"cores": 2**60}, "cores"),
        ({"nodes": 3}, "do not share 4 GPUs evenly"),
        ({"nodes": 2}, "come together"),
        ({"network_bytes_per_second": GB}, "come together"),
        ({"nodes": 2, "network_bytes_per_second": GB, "nvlink_bytes_per_second": GB}, "does not reach"),
    ],
)
def test_numbers_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        replace(FOUR, **change)


def test_file_with_a_cluster_and_without(instance: Instance) -> None:
    assert b"cluster" not in encode(instance)
    several = replace(instance, cluster=replace(FOUR, gradients=(GRADIENT,)))
    assert decode(encode(several), Instance, "an instance", "here") == several
    assert (instance.gpus, several.gpus) == (1, 4)


@pytest.mark.parametrize("change", [{"produced_by": 1}, {"used_by": (0, 7)}])
def test_gradient_of_a_task_that_is_not_there(instance: Instance, change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="out of range"):
        replace(instance, cluster=replace(FOUR, gradients=(replace(GRADIENT, **change),)))


@pytest.mark.parametrize(("cores", "time"), [(1, 600), (2, 300), (4, 240), (20, 240)])
def test_cores_add_until_the_host_can_do_no_more(cores: int, time: int) -> None:
    assert replace(FOUR, cores=cores).accumulate_ns(GRADIENT) == time


def test_rings() -> None:
    assert replace(FOUR, nvlink_bytes_per_second=GB).reduce_ns(GRADIENT) == 2 * 3 * 300
    nodes = replace(FOUR, nodes=2, network_bytes_per_second=GB)
    assert nodes.exchange_ns(GRADIENT) == 1200


def test_naive_adding_gathers_and_sends_over_the_link_of_one_gpu() -> None:
    assert FOUR.naive_ns([GRADIENT]) == 2 * 3 * 100
    assert FOUR.naive_ns([GRADIENT], staged=True) == 300 + 300 + 100 + 300
    assert replace(FOUR, gpus=1).naive_ns([GRADIENT], staged=True) == 0


@pytest.mark.parametrize(
    ("size", "alone_ns", "load"),
    [(1200, 100, 1200), (1205, 100, 1200), (1212, 100, 1200), (1213, 100, 1213), (600, 100, 600), (5, 0, 5)],
)
def test_what_rounding_a_time_down_saves_is_no_load(size: int, alone_ns: int, load: int) -> None:
    assert FOUR.load(size, alone_ns) == Fraction(load)


def test_passing_the_bus() -> None:
    assert FOUR.passing_ns(1201, 100) == 100
    assert FOUR.passing_ns(1200, 50, copies=4) == 400
    assert FOUR.passing_ns(1200, 0) == 0
