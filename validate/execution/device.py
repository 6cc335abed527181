"""What a backend offers to the executor: memory, streams, events and kernels.

An address is an integer that means something to the backend alone; ``address + offset`` is an address too.
What is called on a stream returns at once; the stream does it later, in the order of the calls. Everything
else has been done when the call returns. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from .kernel import Kernel

Launch = Any
"""What a backend has prepared for a kernel."""


class DeviceError(PebblerError):
    """A device has failed: out of memory, a kernel, a copy; one sentence."""


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Wait until the stream has come to this point; Ctrl-C interrupts the wait.

        Raises
        ------
        DeviceError
            When something before this point, on the stream or on one that it waited for, has failed.
        """

    def since_ns(self, earlier: Event) -> int:
        """Time from another event, of any stream, to this one; only after both have come.

        Clocks of devices have a precision that falls with the time between two events, so take an event near
        by, such as the one that a round begins with.
        """


class Stream(Protocol):
    """Work in order. After a failure a stream does nothing more, but its events come to pass."""

    def wait(self, event: Event) -> None:
        """Do what follows only after an event that has been recorded, on any stream."""

    def record(self) -> Event:
        """Mark the point that the stream reaches after all that was asked of it so far."""

    def pause(self, duration_ns: int) -> None:
        """Do nothing for so long, less than a second; the host can ask for what follows meanwhile."""

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        """Copy between addresses of the device and of the host's buffers, in any direction; no overlap."""

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        """Write bytes of 0xFF to the device: numbers that are read from there are NaN."""

    def launch(self, launch: Launch, addresses: Mapping[str, int], first: int) -> None:
        """Run a kernel.

        Parameters
        ----------
        launch
            What `Backend.prepare` returned.
        addresses
            Address of each operand by its word (`Kernel.operands`), and of ``workspace`` where it has one.
        first
            Index in the batch of the round's first image.
        """


class Graph(Protocol):
    """Work that was captured once and is asked for as a whole, again and again.

    Attributes
    ----------
    nodes
        Of every piece of the work, in order: kernels, copies and fills that the device has for it.
    """

    @property
    def nodes(self) -> tuple[int, ...]: ...  # noqa: D102

    def launch(self) -> None:
        """Do it all, on the stream that it was captured from."""


class Backend(Protocol):
    """A device. Addresses that it gives out are aligned to 512 bytes at least.

    Attributes
    ----------
    name
        As ``--backend`` takes it.
    device
        Name of the GPU, or of the processor.
    kinds
        Names of the kinds of layers that it has kernels for.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def device(self) -> str: ...  # noqa: D102

    @property
    def kinds(self) -> frozenset[str]: ...  # noqa: D102

    def allocate(self, bytes: int) -> int:  # noqa: A002
        """Take device memory, in one piece; it is free again when the backend is closed.

        Raises
        ------
        DeviceError
            When there is not so much.
        """

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        """Take memory of the host that the device copies from and to at full speed (pinned).

        Raises
        ------
        DeviceError
            When there is not so much.
        """

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """Take device memory as pages, numbered from 0, which have no addresses yet; once at most.

        Raises
        ------
        DeviceError
            When there is not so much, or the device cannot map pages of that size.
        """

    def reserve(self, bytes: int) -> int:  # noqa: A002
        """Take addresses, a whole number of pages, at which there is no memory yet."""

    def map(self, address: int, pages: Sequence[int]) -> None:
        """Let addresses from a reserved one on mean these pages, one after the other.

        What was mapped there before is not any more; a page may be mapped at several addresses. The caller
        has waited for all work that uses these addresses.
        """

    def stream(self, name: str) -> Stream:
        """Create a stream; `name` is ``compute``, ``d2h``, ``h2d`` or ``copy``."""

    def algorithms(self, kernel: Kernel) -> list[tuple[str, int]]:
        """Algorithms that can be tried for a kernel, each with the workspace that it would use, in bytes."""

    def prepare(self, kernel: Kernel) -> Launch:
        """Prepare a kernel for launches: choose its code, check that its workspace will do.

        Raises
        ------
        PebblerError
            When there is no code for it; the sentence names the task and the algorithm.
        """

    def nothing(self) -> Launch:
        """Prepare a launch that does next to nothing, without operands: its time is what launches cost."""

    def is_deterministic(self, kernel: Kernel) -> bool:
        """Whether launches of the kernel on the same numbers give the same bits."""

    def capture(self, streams: Sequence[Stream], work: Sequence[tuple[str, Callable[[], object]]]) -> Graph:
        """Capture work on streams as a graph: nothing of it is done before the graph is launched.

        Parameters
        ----------
        streams
            All that the work uses. The first is what the graph is launched on.
        work
            Pieces, each a name for people and what asks for it. All has been asked for before, outside a
            capture, for libraries load and allocate when they are first used.

        Raises
        ------
        PebblerError
            When the device has no graphs, or a piece cannot be captured; the sentence names it.
        """

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to an address of the device or of the host's buffers; no stream is at work."""

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002
        """Return a copy of what is at an address of the device or of the host's buffers."""

    def versions(self) -> dict[str, str]:
        """Versions of the driver (under ``driver``) and of the libraries that kernels come from."""

    def energy_j(self) -> float | None:
        """Energy that the device has taken up to now, in joules; None where nothing counts it.

        Where something could, the log has the reason.
        """

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:
        """Do some work, which waits for itself; return its kernels as ``pebbler streams`` takes them.

        None where the device has no such kernels.

        Raises
        ------
        PebblerError
            When nothing can tell which these are; the sentence says why.
        """

    def memory_bytes(self) -> int:
        """Device memory that programs can have."""

    def close(self) -> None:
        """Stop the streams, whatever is left to do on them, and give everything back; twice is no error."""


def require_kernels(backend: Backend, kernels: Iterable[Kernel]) -> None:
    """Refuse tasks of a kind of layers that a backend has no kernels for.

    Raises
    ------
    PebblerError
        At the first such task.
    """
    for kernel in kernels:
        if kernel.layer.kind.name not in backend.kinds:
            raise PebblerError(
                f"task '{kernel.task}': the backend {backend.name} has no kernels for layers of kind "
                f"'{kernel.layer.kind}'; run a network without them"
            )
