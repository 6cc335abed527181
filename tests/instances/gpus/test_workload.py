"""Iterations on several GPUs, made from networks."""

from __future__ import annotations

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.gpus.workload import cluster_instances, gradients_of, portion, several_gpus
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.workload import Workload
from pebbler.validate.gpus.program import cluster_of

ALEXNET = Workload("alexnet", 64, "k40")


@pytest.mark.parametrize("network", ["alexnet", "vgg16", "resnet34", "gpt2"])
@pytest.mark.parametrize("graph", ["executable", "paper"])
def test_gradients_are_those_of_all_weights(network: str, graph: str) -> None:
    workload = Workload(network, 8, "k40", graph)  # type: ignore[arg-type]
    gradients = gradients_of(workload, 8)
    assert sum(gradient.bytes for gradient in gradients) == 4 * find_network(network).parameters
    tasks = [task.name for task in workload.instance(0, check_budget=False).tasks]
    for gradient in gradients:
        layer = gradient.name.removeprefix("dW(").removesuffix(")")
        assert tasks[gradient.produced_by].startswith("BP")
        assert layer in tasks[gradient.produced_by] or network == "gpt2"  # tied weights
        assert f"FP({layer})" in [tasks[k] for k in gradient.used_by]


@pytest.mark.parametrize(("batch", "gpus", "images"), [(64, 1, 64), (64, 4, 16), (64, 3, 22), (7, 7, 1)])
def test_portions_are_rounded_up(batch: int, gpus: int, images: int) -> None:
    assert portion(Workload("alexnet", batch, "k40"), gpus).batch == images


def test_one_round_has_the_gradients() -> None:
    (instance,) = cluster_instances(ALEXNET, several_gpus(ALEXNET, 4), "4GiB")
    assert instance.name == "alexnet-b16-gpus4"
    assert len(cluster_of(instance).gradients) == 8
    assert instance.made_from.batch == 64
    assert instance.made_from.sub_batch == 16


@pytest.mark.parametrize(
    ("sub_batch", "rounds"),
    [
        (8, [("alexnet-b8-gpus4", 1, 0), ("alexnet-b8-gpus4-last", 1, 8)]),
        (6, [("alexnet-b6-gpus4", 2, 0), ("alexnet-b4-gpus4-last", 1, 8)]),
        (4, [("alexnet-b4-gpus4", 3, 0), ("alexnet-b4-gpus4-last", 1, 8)]),
    ],
)
def test_the_last_of_several_rounds_has_them(sub_batch: int, rounds: list[tuple[str, int, int]]) -> None:
    instances = cluster_instances(ALEXNET, several_gpus(ALEXNET, 4), "4GiB", sub_batch)
    assert [(i.name, i.rounds, len(cluster_of(i).gradients)) for i in instances] == rounds
    assert len({instance.budget_bytes for instance in instances}) == 1


def test_the_bus_is_as_fast_as_a_link_unless_told() -> None:
    assert several_gpus(ALEXNET, 2).bus_bytes_per_second == 12 * 10**9
    assert several_gpus(ALEXNET, 2, bus=7).bus_bytes_per_second == 7


def test_batch_norm_over_a_portion_is_told() -> None:
    workload = Workload("resnet34", 8, "k40")
    (instance,) = cluster_instances(workload, several_gpus(workload, 2), "4GiB")
    assert "batch norm" in str(instance.made_from.notes)


@pytest.mark.parametrize(
    ("workload", "gpus", "words"),
    [
        (Workload("alexnet", 2, "k40"), 3, "at least one image"),
        (Workload("alexnet", 4, "k40", weights_as_blocks=True), 2, "keep their weights"),
        (Workload("alexnet", 4, "k40", steady=True), 2, "leave --steady out"),
    ],
)
def test_what_cannot_be_shared(workload: Workload, gpus: int, words: str) -> None:
    with pytest.raises(PebblerError, match=words):
        cluster_instances(workload, several_gpus(workload, gpus), "4GiB")
