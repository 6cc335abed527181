"""What the tests take a few of, and `.ci/long` all."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

BY_LAYERS = (
    *("checkpoint-layers", "torchtitan-selective", "transformers-offload", "hidden-states-offload"),
    *("megatron-offload", "torchtitan-offload", "torchtitan-budget", "torchtitan-budget-ilp"),
)
"""Methods for networks with named layers that repeat, which refuse all else."""

ON_HOST = ("zero-offload", "superoffload")
"""Methods for updates of weights that may run on the host, which refuse all else."""

EVERY_KIND = (
    *("alexnet_caffe", "siamese", "googlenet", "resnet18", "convnext_t", "fcn8s", "gpt2", "llama_block"),
    *("vit_b16", "moe_xs"),
)
"""Small networks that have every kind of layer of the zoo among them."""


def mostly_slow(values: Iterable[Any], few: Container[Any]) -> list[Any]:
    """All values as parameters of a test; those that are not among the few are slow."""
    return [value if value in few else pytest.param(value, marks=pytest.mark.slow) for value in values]


def crossed(*choices: Sequence[Any], of: int) -> list[Any]:
    """All combinations of choices, as parameters of a test; one of so many is not slow.

    Every choice is among these: neighbours in one place are in different classes of the sum of places.
    """
    places = product(*(range(len(some)) for some in choices))
    return [
        pytest.param(*values, marks=[] if sum(at) % of == 0 else pytest.mark.slow)
        for at, values in zip(places, product(*choices), strict=True)
    ]


def chunks(seeds: range) -> list[Any]:
    """The beginnings of chunks of seeds, as parameters of a test; those after the first are slow."""
    first, *others = seeds
    return [first, *(pytest.param(seed, marks=pytest.mark.slow) for seed in others)]


def sampled(few: Sequence[int], seeds: range) -> list[Any]:
    """A few seeds, and all in chunks as long as their step; as parameters of a test, the chunks are slow."""
    return [
        few,
        *(pytest.param(range(first, first + seeds.step), marks=pytest.mark.slow) for first in seeds),
    ]


def counts(few: int, many: int) -> list[Any]:
    """A small number of draws and a large one, as parameters of a test; the large one is slow."""
    return [few, pytest.param(many, marks=pytest.mark.slow)]
