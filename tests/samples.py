"""What the tests take a few of, and `.ci/long` all."""

from __future__ import annotations

from typing import Any

import pytest

BY_LAYERS = ("checkpoint-layers", "torchtitan-selective", "transformers-offload", "hidden-states-offload")
"""Methods for networks with named layers that repeat, which refuse all else."""


def chunks(seeds: range) -> list[Any]:
    """The beginnings of chunks of seeds, as parameters of a test; those after the first are slow."""
    first, *others = seeds
    return [first, *(pytest.param(seed, marks=pytest.mark.slow) for seed in others)]


def sampled(few: range, seeds: range) -> list[Any]:
    """A few seeds, and all in chunks as long as their step; as parameters of a test, the chunks are slow."""
    return [
        few,
        *(pytest.param(range(first, first + seeds.step), marks=pytest.mark.slow) for first in seeds),
    ]


def counts(few: int, many: int) -> list[Any]:
    """A small number of draws and a large one, as parameters of a test; the large one is slow."""
    return [few, pytest.param(many, marks=pytest.mark.slow)]
