"""The interface of a backend for the executor: memory, streams, events and kernels.

An address is an integer that has a meaning only for the backend; ``address + offset`` is an address too. A
call on a stream returns at once, and the stream does the work later, in the order of the calls. Every other
call returns when its work is done. All calls come from one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError

Launch = Any
"""A kernel that a backend has prepared."""


class Computation(Protocol):
    """What a task computes; only backends know more of it.

    Attributes
    ----------
    task
        Name of the task.
    kind
        Name of the kind of layer, for a refusal by a backend that has no kernels for it.
    operands
        The name of each block's tensor, or array beside the blocks, that it touches, by a word.
    """

    @property
    def task(self) -> str: ...  # noqa: D102

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def operands(self) -> Mapping[str, str]: ...  # noqa: D102


class DeviceError(PebblerError):
    """A failure of a device, such as of memory, a kernel or a copy; the message is one sentence."""


class Event(Protocol):
    """A point in the work of a stream."""

    def synchronize(self) -> None:
        """Wait until the stream has reached this point; Ctrl-C interrupts the wait.

        Raises
        ------
        DeviceError
            When work before this point has failed, on the stream or on one that it waited for.
        """

    def since_ns(self, earlier: Event) -> int:
        """Return the nanoseconds from another event of any stream to this one, after both are reached.

        The precision of a device's clock falls with the time between two events. So use an event close in
        time, such as the one at which a round begins.
        """


class Stream(Protocol):
    """Work in order. After a failure, a stream does no further work, but its events are reached."""

    def wait(self, event: Event) -> None:
        """Make all later work wait for an event that has been recorded on any stream."""

    def record(self) -> Event:
        """Return an event at the point after all work that the stream has been given so far."""

    def pause(self, duration_ns: int) -> None:
        """Make the stream idle for less than a second; meanwhile, the host can issue further work."""

    def copy(self, target: int, source: int, bytes: int) -> None:  # noqa: A002
        """Copy between addresses of the device and the host's buffers in any direction, without overlap."""

    def fill(self, target: int, bytes: int) -> None:  # noqa: A002
        """Write bytes of 0xFF to the device, so that numbers that are read from there are NaN."""

    def launch(self, launch: Launch, addresses: Mapping[str, int], first: int) -> None:
        """Run a kernel.

        Parameters
        ----------
        launch
            The kernel that `Backend.prepare` returned.
        addresses
            Address of each operand by its word (`Computation.operands`), and of ``workspace`` if the kernel
            has one.
        first
            Index in the batch of the round's first image.
        """


class Graph(Protocol):
    """Work that is captured once and launched as a whole any number of times.

    Attributes
    ----------
    nodes
        Number of the graph's nodes (kernels, copies and fills) for each piece of the work, in order.
    """

    @property
    def nodes(self) -> tuple[int, ...]: ...  # noqa: D102

    def launch(self) -> None:
        """Launch the graph on the stream that it was captured from."""


class Backend(Protocol):
    """A device. Its addresses are aligned to at least 512 bytes.

    The kernels that it is given are `kernel.Kernel` for networks; other computations have their own type.

    Attributes
    ----------
    name
        Name of the backend for ``--backend``.
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
        """Allocate device memory in one piece, which is released when the backend is closed.

        Raises
        ------
        DeviceError
            When there is not enough memory.
        """

    def allocate_host(self, bytes: int) -> int:  # noqa: A002
        """Allocate pinned host memory, which the device copies from and to at full speed.

        Raises
        ------
        DeviceError
            When there is not enough memory.
        """

    def allocate_pages(self, count: int, page_bytes: int) -> None:
        """Allocate device memory as pages without addresses, numbered from 0; this is possible once.

        Raises
        ------
        DeviceError
            When there is not enough memory, or the device cannot map pages of that size.
        """

    def reserve(self, bytes: int) -> int:  # noqa: A002
        """Reserve addresses for a whole number of pages; they have no memory yet."""

    def map(self, address: int, pages: Sequence[int]) -> None:
        """Map these pages, in order, at addresses that begin at a reserved one.

        Other pages that were mapped there before are unmapped. A page that is there already stays, which
        costs nothing. A page may be mapped at several addresses. The caller has waited for all work that
        uses these addresses.
        """

    def stream(self, name: str) -> Stream:
        """Create a stream; `name` is ``compute``, ``d2h``, ``h2d``, ``copy``, or ``host``.

        The last is for kernels that the host computes, on addresses of its buffers.
        """

    def algorithms(self, kernel: Any) -> list[tuple[str, int]]:
        """Return the algorithms to try for a kernel, each with the bytes of workspace that it would use."""

    def prepare(self, kernel: Any) -> Launch:
        """Prepare a kernel for launches: choose its code, and check that its workspace is large enough.

        Raises
        ------
        PebblerError
            When there is no code for it; the message names the task and the algorithm.
        """

    def nothing(self) -> Launch:
        """Prepare a launch without operands that does next to nothing, to measure the cost of launches."""

    def is_deterministic(self, kernel: Any) -> bool:
        """Return whether launches of the kernel on the same numbers give the same bits."""

    def capture(self, streams: Sequence[Stream], work: Sequence[tuple[str, Callable[[], object]]]) -> Graph:
        """Capture work on streams as a graph, without doing it before the graph is launched.

        Parameters
        ----------
        streams
            All streams of the work. The graph is launched on the first one.
        work
            Pieces of the work, each with a name for people and a function that issues it. Each piece must
            have been issued before, outside a capture, because libraries load and allocate at their first
            use.

        Raises
        ------
        PebblerError
            When the device has no graphs, or a piece cannot be captured; the message names the piece.
        """

    def write(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to an address of the device or of the host's buffers, while no stream works."""

    def read(self, address: int, bytes: int) -> NDArray[np.uint8]:  # noqa: A002
        """Return a copy of the data at an address of the device or of the host's buffers."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the driver (under ``driver``) and of the libraries with the kernels."""

    def energy_j(self) -> float | None:
        """Return the energy that the device has used up to now in joules; None if it is not counted.

        If counting is possible in principle but fails, the log has the reason.
        """

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]] | None:
        """Do some work, which waits for itself; return its kernels in the form for ``pebbler streams``.

        Returns None if the device has no such kernels.

        Raises
        ------
        PebblerError
            When the kernels cannot be recorded; the message says why.
        """

    def memory_bytes(self) -> int:
        """Return the bytes of device memory that programs can use."""

    def close(self) -> None:
        """Stop the streams, whatever work remains, and release all memory; a second call does nothing."""


def require_kernels(backend: Backend, kernels: Iterable[Computation]) -> None:
    """Refuse tasks of a kind of layers that a backend has no kernels for.

    Raises
    ------
    PebblerError
        At the first such task.
    """
    for kernel in kernels:
        if kernel.kind not in backend.kinds:
            raise PebblerError(
                f"task '{kernel.task}': the backend {backend.name} has no kernels for layers of kind "
                f"'{kernel.kind}'; run a network without them"
            )
