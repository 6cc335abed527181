"""Where a step computes: on the processor, or on a GPU; what recording asks of either."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

from ...errors import PebblerError
from ..torch_cuda import Gpu
from .memory import ALIGNMENT, Allocations


class Device(Protocol):
    """What recording and replaying ask of a device.

    Attributes
    ----------
    name
        As torch names it.
    key
        Of torch's dispatcher.
    alignment
        Bytes that torch's allocator aligns to there.
    deterministic
        Whether operators give the same bits each time, or torch refuses those that do not.
    scratch_in_pool
        Whether a plan has a place for what operators take on the way; else torch's allocator gives it out
        beside the pool.
    large_bytes
        Scratch of more than this has a place in the pool all the same.
    is_oversubscribed
        Whether what torch's allocator gives out may be more than the device has (`oversubscribed`).
    """

    key: str
    scratch_in_pool: bool
    large_bytes: int
    is_oversubscribed: bool
    alignment: int
    name: str

    @property
    def deterministic(self) -> bool: ...  # noqa: D102

    def require_ready(self) -> None:
        """Refuse settings with which a step may have other bits each time."""

    def environment(self) -> dict[str, Any]:
        """Return what bits depend on beside a record, as it is now."""

    def rng_state(self) -> Any:
        """Return the state of the generator of random numbers."""

    def set_rng_state(self, state: Any) -> None:
        """Set it."""

    def synchronize(self) -> None:
        """Wait for all work."""

    def allocations(self) -> AbstractContextManager[Allocations]:
        """Measure what torch's allocator gives out within."""

    def oversubscribed(self) -> AbstractContextManager[None]:
        """Within, let torch's allocator give out more than the device has, which takes long."""

    def segments_of(self, work: Callable[[], object], peak_bytes: int) -> int:
        """Return the bytes that torch's allocator needs for some work in memory of its own; 0: unknown."""

    def scratch_at(self, address: int, size: int) -> AbstractContextManager[None]:
        """Return the place from which torch's allocator takes what it gives out within."""

    def timed(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """Do some work; return its result and its time in nanoseconds."""

    def link(self) -> str:
        """Return what copies to the host and back are taken to reach, as `parse_link` reads it."""

    def peak_of(self, step: Callable[[], object], present_bytes: int) -> int | None:
        """Take a step, and return the allocator's peak; None where it has none, and no step is taken.

        Parameters
        ----------
        step
            Takes it.
        present_bytes
            What of the step's is there before, and counts.
        """

    def empty(self, size: int) -> Any:
        """Return that many bytes."""

    def host_buffer(self, size: int) -> Any:
        """Return that many bytes of the host, which copies are quick with, as a buffer."""

    def storage_at(self, address: int, size: int) -> Any:
        """Return the storage that is the memory at an address."""

    def copy_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy tensors of bytes, on whatever side they are."""


class Processor:
    """The processor."""

    name, key, alignment, scratch_in_pool = "cpu", "CPU", ALIGNMENT, True

    is_oversubscribed = False
    large_bytes = sys.maxsize
    """All scratch has a place."""

    deterministic = True
    """With the same number of threads, operators give the same bits."""

    def __init__(self, name: str = "cpu") -> None:
        del name  # there is one

    def require_ready(self) -> None:
        """Nothing: no setting lets bits differ."""

    def environment(self) -> dict[str, Any]:
        """See `Device`."""
        return {
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "onednn": torch._C._get_mkldnn_enabled(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }

    def rng_state(self) -> Any:
        """See `Device`."""
        return torch.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        """See `Device`."""
        torch.set_rng_state(state)

    def synchronize(self) -> None:
        """Nothing: an operator has ended when it returns."""

    @contextmanager
    def allocations(self) -> Iterator[Allocations]:
        """Note what the thread that runs allocates within.

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
            changes = [event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"]
            found.peak_bytes = max(accumulate(changes, initial=0))
            found.kept_bytes = max(0, sum(changes))

    def oversubscribed(self) -> AbstractContextManager[None]:
        """Return what does nothing: the system moves memory by itself, as far as it can."""
        return nullcontext()

    def segments_of(self, work: Callable[[], object], peak_bytes: int) -> int:  # noqa: ARG002
        """Return 0: no operator has large scratch."""
        return 0

    def scratch_at(self, address: int, size: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return what does nothing: torch's allocator on the CPU takes memory from nobody."""
        return nullcontext()

    def timed(self, work: Callable[[], Any]) -> tuple[Any, int]:
        """See `Device`."""
        begin = perf_counter_ns()
        returned = work()
        return returned, perf_counter_ns() - begin

    def link(self) -> str:
        """Return a rate that memory of the processor reaches; the device is one that it stands for."""
        return "10GB/s"

    def peak_of(self, step: Callable[[], object], present_bytes: int) -> int | None:  # noqa: ARG002
        """Return None: torch's allocator on the CPU keeps no peak."""
        return None

    def empty(self, size: int) -> Any:
        """See `Device`."""
        return torch.empty(size, dtype=torch.uint8, device="cpu")

    def host_buffer(self, size: int) -> Any:
        """Return one shared mapping, as the host's copies of blocks are, which no limit on data counts."""
        return mmap.mmap(-1, size)

    def storage_at(self, address: int, size: int) -> Any:
        """Return the storage that is the memory at an address; it does not keep that memory alive."""
        if not size:
            return self.empty(0).untyped_storage()
        found = (ctypes.c_char * size).from_address(address)
        return torch.frombuffer(found, dtype=torch.uint8).untyped_storage()

    def copy_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """See `Device`."""
        torch._foreach_copy_(targets, sources)


DEVICES: dict[str, Callable[[str], Device]] = {"cpu": Processor, "cuda": Gpu}
"""The devices by torch's names of their types."""


def device_of(name: str) -> Device:
    """Return the device that torch calls so.

    Raises
    ------
    PebblerError
        When there is no such device here, or steps do not compute on its kind.
    """
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        raise PebblerError(f"a step is recorded on the CPU or on a GPU of CUDA, and not on '{name}'")
    return DEVICES[kind](name)


def common_device(module: Any, inputs: Sequence[Any]) -> Device:
    """Return the device on which all tensors of a module and its inputs are.

    Raises
    ------
    PebblerError
        When they are on several devices, or on one where no step is recorded.
    """
    named = (
        *((f"parameter '{name}'", tensor) for name, tensor in module.named_parameters()),
        *((f"buffer '{name}'", tensor) for name, tensor in module.named_buffers()),
        *((f"input {number}", tensor) for number, tensor in enumerate(inputs)),
    )
    first = None
    for what, tensor in named:
        if tensor.device.type not in DEVICES:
            raise PebblerError(
                f"{what} is on {tensor.device}, and a step is recorded on the CPU or on a GPU of CUDA, with "
                "its values; make_step returns everything there"
            )
        first = first or (what, tensor.device)
        if tensor.device != first[1]:
            raise PebblerError(
                f"{what} is on {tensor.device}, and {first[0]} on {first[1]}; make_step returns everything "
                "on one device"
            )
    return device_of("cpu" if first is None else str(first[1]))
