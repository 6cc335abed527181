"""Seeds in chunks, of which the tests take one, and `.ci/long` all."""

from __future__ import annotations

from typing import Any

import pytest


def chunks(seeds: range) -> list[Any]:
    """The beginnings of chunks of seeds, as parameters of a test; those after the first are slow."""
    first, *others = seeds
    return [first, *(pytest.param(seed, marks=pytest.mark.slow) for seed in others)]
