"""A program of which only the use of memory is simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, get_args

from ...instances.errors import PebblerError
from ...instances.instance import Instance, Task
from ...validate.schedule import Kind, Operation, Schedule, Stream
from ..clock import look
from .builder import ProgramBuilder
from .pool import Fit, PagePool, Range
from .room import Place, Room

_SKETCHED = {
    stream: Operation(id=0, stream=stream, kind="run", start_ns=0, end_ns=0) for stream in get_args(Stream)
}
"""Operation of each stream that stands for all of its operations in a sketch."""


class Sketch(ProgramBuilder):
    """A program of which only the use of memory is simulated: bytes without addresses, and no times.

    A sketch gives lifetimes, placements and the peak in less time than a whole program. It cannot be
    finished.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance, memory="divisible")

    @property
    def peak_bytes(self) -> int:
        """Largest number of bytes of blocks and workspaces that were in use at once so far."""
        return self._taken.peak_bytes

    def release(self, block: int, after: Iterable[int] = ()) -> None:  # noqa: ARG002
        """Release a resident block's memory."""
        self._close_stay(block, ())

    def finish(self, method: str, meta: dict[str, Any] | None = None) -> Schedule:  # noqa: ARG002
        """Refuse, because a sketch has no schedule.

        Raises
        ------
        PebblerError
            Always.
        """
        raise PebblerError(f"{method}: a sketch has no schedule; issue the program on a ProgramBuilder")

    def _new_room(self, fit: Fit, plan: Sequence[int]) -> Room:
        self._taken = _Bytes(self.instance, fit, plan, self.ends)
        return self._taken

    def _data_waits(self, what: Task, algorithm: int, after: Iterable[int]) -> set[int]:  # noqa: ARG002
        return set()

    def _place_waits(self, places: Iterable[tuple[int, Place]], scratch: tuple[Range, ...]) -> set[int]:  # noqa: ARG002
        return set()

    def _issue(
        self,
        stream: Stream,
        kind: Kind,  # noqa: ARG002
        duration: int,  # noqa: ARG002
        waits: set[int],  # noqa: ARG002
        *,
        task: int | None = None,  # noqa: ARG002
        algorithm: int | None = None,  # noqa: ARG002
        block: int | None = None,  # noqa: ARG002
    ) -> int:
        look()
        self._timeline.operations.append(_SKETCHED[stream])
        self.starts.append(0)
        self.ends.append(0)
        return len(self.ends) - 1


class _Bytes(Room):
    """Memory as a number of bytes, without addresses and without waits.

    Attributes
    ----------
    peak_bytes
        Largest number of bytes that were in use at once so far.
    """

    def __init__(self, instance: Instance, fit: Fit, plan: Sequence[int], ends: Sequence[int]) -> None:
        super().__init__(instance, "divisible", fit, plan, ends)
        self.peak_bytes = 0

    def take(self, size: int, at: int | None) -> tuple[Range, ...] | None:  # noqa: ARG002
        """Allocate bytes without an address."""
        assert isinstance(self.pool, PagePool)
        if size > self.pool.free_bytes:
            return None
        self.pool.free_bytes -= size
        self.peak_bytes = max(self.peak_bytes, self._instance.pool_bytes - self.pool.free_bytes)
        return ((0, size),)

    def give_back(self, ranges: tuple[Range, ...], ops: Iterable[int] | None = None) -> None:  # noqa: ARG002
        """Release bytes."""
        assert isinstance(self.pool, PagePool)
        self.pool.free_bytes += sum(size for _, size in ranges)
