"""States of the generator of random numbers in a step, as relations."""

from __future__ import annotations

from typing import Any

import torch

from ..torch_refusals import StepError
from .devices import Device
from .record import Draw


class GeneratorStates:
    """Numbers the states of a device's generator: 0 is the first, each draw leads to another.

    A checkpoint puts an earlier state back before it computes again, so a state may be met more than once.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._states = [device.rng_state()]

    @property
    def count(self) -> int:
        """How many states there are."""
        return len(self._states)

    def number(self, state: Any) -> int:
        """Return the number of a state.

        Raises
        ------
        StepError
            When no operator left the generator in it.
        """
        found = self._find(state)
        if found is None:
            raise StepError(
                "it gives the generator of random numbers a seed or a state of its own; seed it before "
                "training"
            )
        return found

    def draw(self, before: Any) -> Draw | None:
        """Return where an operator has drawn from, with the state before it; None where it drew nothing."""
        after = self._device.rng_state()
        if torch.equal(before, after):
            return None
        begin, end = self.number(before), self._find(after)
        if end is None:
            end = len(self._states)
            self._states.append(after)
        return Draw(begin, end)

    def _find(self, state: Any) -> int | None:
        return next((n for n in reversed(range(self.count)) if torch.equal(self._states[n], state)), None)
