"""What torch's allocator on the CPU gives out and takes back while an operator runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy


class Allocations:
    """Changes of the memory in use, in the order in which they came.

    Attributes
    ----------
    changes
        In bytes; below 0 where memory is given back.
    """

    def __init__(self) -> None:
        self.changes: list[int] = []

    @property
    def peak_bytes(self) -> int:
        """Most that was in use at once, of what was not there before."""
        return max(accumulate(self.changes, initial=0))

    @property
    def kept_bytes(self) -> int:
        """What was in use in the end, of what was not there before."""
        return max(0, sum(self.changes))


@contextmanager
def allocations() -> Iterator[Allocations]:
    """Note what is allocated within by the thread that runs.

    Libraries that allocate for themselves, such as oneDNN, are not seen.
    """
    found = Allocations()
    # Torch's earlier profiler keeps the events of a thread in order, and prints nothing.
    memory = ProfilerConfig(
        ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig()
    )
    _enable_profiler_legacy(memory)
    try:
        yield found
    finally:
        events = [event for thread in _disable_profiler_legacy() for event in thread]
        found.changes = [event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"]
