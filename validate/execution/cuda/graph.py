"""Work on several streams as one CUDA graph: captured once, then launched as a whole.

PyCUDA does not wrap these calls; they are made through ctypes, in the context that PyCUDA has made current.
Work that is issued to a stream during a capture becomes nodes of the graph. Each node of a stream comes after
the one before it, and a wait for an event becomes edges. Other streams join a capture by waiting for an event
of its
first stream, which has to wait for them before it ends.

The capture is in thread-local mode. An allocation during a capture, for example by a library, would happen
once, and not again when the graph is launched. Relaxed mode would allow it. Thread-local mode refuses it.
Global mode would also refuse such calls of other threads, whose work is not captured.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import gc
import itertools
from collections.abc import Callable, Iterator, Sequence

from ..device import DeviceError, Stream
from .libraries import Library, load_cuda

_THREAD_LOCAL = 1
"""CUDA's number for the thread-local capture mode."""

_ACTIVE = 1
"""CUDA's number for an active capture."""

_NO_FLAGS = 0
"""No flags for the instantiation of a graph."""


class CudaGraph:
    """A graph that can be launched; `close` releases it before its stream."""

    def __init__(self, driver: Library, handle: c.c_void_p, stream: int, nodes: tuple[int, ...]) -> None:
        self._driver = driver
        self._handle = handle
        self._stream = stream
        self.nodes = nodes

    def launch(self) -> None:
        """Launch the graph on the stream that it was captured from."""
        self._driver.call("cuGraphLaunch", self._handle, self._stream)

    def close(self) -> None:
        """Release the graph; no launch is under way."""
        self._driver.call("cuGraphExecDestroy", self._handle)


class Capturer:
    """The driver's calls for a capture.

    Raises
    ------
    PebblerError
        When the driver does not have them.
    """

    def __init__(self) -> None:
        self._driver = load_cuda("install a driver of CUDA 11.4 or later, or run it without --graph")
        pointer = c.c_void_p
        self._driver.declare(
            cuStreamBeginCapture_v2=[pointer, c.c_int],
            cuStreamEndCapture=[pointer, pointer],
            cuStreamGetCaptureInfo_v2=[pointer] * 6,
            cuGraphGetNodes=[pointer] * 3,
            cuGraphInstantiateWithFlags=[pointer, pointer, c.c_ulonglong],
            cuGraphUpload=[pointer, pointer],
            cuGraphLaunch=[pointer, pointer],
            cuGraphExecDestroy=[pointer],
            cuGraphDestroy=[pointer],
        )

    def capture(
        self, streams: Sequence[Stream], stream: int, work: Sequence[tuple[str, Callable[[], object]]]
    ) -> CudaGraph:
        """Capture work on streams without doing it. See `Backend.capture`.

        `stream` is the driver's handle of the first stream.
        """
        graph, handle = c.c_void_p(), c.c_void_p()
        with _without_collection():
            self._driver.call("cuStreamBeginCapture_v2", stream, _THREAD_LOCAL)
            try:
                nodes = self._issue(streams, stream, work)
            except BaseException:
                # The streams leave the capture whatever this says; why it failed is known.
                self._driver.status("cuStreamEndCapture", stream, c.byref(graph))
                if graph:
                    self._driver.call("cuGraphDestroy", graph)
                raise
            self._driver.call("cuStreamEndCapture", stream, c.byref(graph))
        try:
            self._driver.call("cuGraphInstantiateWithFlags", c.byref(handle), graph, _NO_FLAGS)
        finally:
            self._driver.call("cuGraphDestroy", graph)
        found = CudaGraph(self._driver, handle, stream, nodes)
        try:
            self._driver.call("cuGraphUpload", handle, stream)
        except DeviceError:
            found.close()
            raise
        return found

    def _issue(
        self, streams: Sequence[Stream], stream: int, work: Sequence[tuple[str, Callable[[], object]]]
    ) -> tuple[int, ...]:
        """Issue all the work on all streams; return the nodes of each piece."""
        first, *others = streams
        start = first.record()
        for other in others:
            other.wait(start)
        ends = [0]
        for name, issue in work:
            try:
                issue()
                ends.append(self._count(stream))
            except DeviceError as error:
                raise DeviceError(
                    f"{name} cannot be part of a CUDA graph, run it without --graph: {error}"
                ) from None
        for other in others:
            first.wait(other.record())
        return tuple(end - begin for begin, end in itertools.pairwise(ends))

    def _count(self, stream: int) -> int:
        """Return the number of nodes captured so far.

        Raises
        ------
        DeviceError
            When the capture was invalidated without an earlier error.
        """
        status, graph, count = c.c_int(), c.c_void_p(), c.c_size_t()
        asked = (c.byref(status), None, c.byref(graph), None, None)
        self._driver.call("cuStreamGetCaptureInfo_v2", stream, *asked)
        if status.value != _ACTIVE:
            raise DeviceError("it has made a call that is not permitted while a stream is captured")
        self._driver.call("cuGraphGetNodes", graph, None, c.byref(count))
        return int(count.value)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Stop Python's collection of cycles: a release of device memory would end the capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
