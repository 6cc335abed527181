"""The program of a path through a search: each operation waits for all that has ended when it starts.

So it starts at the instant at which the search has started it, and not before. Pages are those of the lowest
addresses that are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ...instances.instance import Instance
from ...instances.units import PAGE_BYTES, ceil_to
from ...validate.measures import highest_byte, memory_curve, with_host
from ...validate.schedule import HostResidence, Kind, MemoryModel, Operation, Residence, Schedule, Stream
from .host_memory import ABSENT


class _Stay:
    """A residence under construction: its pages, and what it is released after, if it is."""

    def __init__(self, acquired_by: int | None, pages: list[int]) -> None:
        self.acquired_by, self.pages = acquired_by, pages
        self.users = [] if acquired_by is None else [acquired_by]
        self.is_over = False


class Emission:
    """A program under construction.

    Parameters
    ----------
    instance, memory
        The instance and the memory model, divisible or paged.
    device, host
        Per block, its version there at time 0, or `ABSENT`.
    """

    def __init__(
        self, instance: Instance, memory: MemoryModel, device: Sequence[int], host: Sequence[int]
    ) -> None:
        self._instance, self._memory = instance, memory
        copies: tuple[Stream, ...] = ("copy",) if instance.engines == "single" else ("d2h", "h2d")
        self._streams: tuple[Stream, ...] = ("compute", *copies, "host")
        self._operations: list[Operation] = []
        self._now = 0
        self._begun: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._taken: set[int] = set()
        self._stays: list[tuple[int | None, _Stay]] = []
        self._copies: list[tuple[int | None, _Stay]] = []
        self._device: dict[int, _Stay] = {}
        self._host: dict[int, _Stay] = {}
        self._scratch: _Stay | None = None
        self._source: _Stay | None = None
        for d, version in enumerate(device):
            if version != ABSENT:
                self._place(d, None)
        for d, version in enumerate(host):
            if version != ABSENT:
                self._place_copy(d, None)

    def wait(self, elapsed: int, idle: Iterable[int]) -> None:
        """Let time pass, after which these streams are idle."""
        self._now += elapsed
        for s in idle:
            if s in self._begun:
                i = self._begun.pop(s)
                self._operations[i] = msgspec.structs.replace(self._operations[i], end_ns=self._now)
                self._ended[s] = i
                if s == 0:
                    self._free(self._scratch)
                    self._free(self._source)
                    self._scratch = self._source = None

    def evict(self, block: int) -> None:
        """Release a block on the device."""
        self._free(self._device.pop(block))

    def drop(self, block: int) -> None:
        """Release a copy on the host."""
        self._free(self._host.pop(block))

    def run(self, task: int, algorithm: int, new: Iterable[int]) -> None:
        """Start a run, which places these of its outputs anew."""
        what = self._instance.tasks[task]
        on_host = what.algorithms[algorithm].on == "host"
        scratch = what.algorithms[algorithm].workspace_bytes
        i = self._issue(len(self._streams) - 1 if on_host else 0, "run", task=task, algorithm=algorithm)
        for d in new:
            if on_host:
                self._place_copy(d, i)
            else:
                self._place(d, i)
        for d in what.blocks:
            (self._host if on_host else self._device)[d].users.append(i)
        if scratch:
            stay = _Stay(i, [] if on_host else self._pages(scratch))
            (self._copies if on_host else self._stays).append((None, stay))
            if on_host:
                stay.is_over = True
            else:
                self._scratch = stay

    def copy(self, kind: str, block: int) -> None:
        """Start an offload, a prefetch or a move."""
        if kind == "offload":
            i = self._issue(1, "offload", block=block)
            self._device[block].users.append(i)
            if self._instance.has_host_budget or block not in self._host:
                self._place_copy(block, i)
        elif kind == "prefetch":
            i = self._issue(len(self._streams) - 2, "prefetch", block=block)
            self._host[block].users.append(i)
            self._place(block, i)
        else:
            i = self._issue(0, "move", block=block)
            self._source = self._device[block]
            self._source.users.append(i)
            self._place(block, i)

    def finish(self) -> Schedule:
        """Return the program."""
        schedule = Schedule(
            format="pebbler/schedule/1",
            instance=self._instance.name,
            method="brute-force",
            memory_model=self._memory,
            page_bytes=PAGE_BYTES if self._memory == "paged" else None,
            operations=tuple(self._operations),
            residences=tuple(self._residence(d, stay) for d, stay in self._stays),
            makespan_ns=self._now,
            peak_bytes=self._instance.resident_bytes,
        )
        if self._memory == "divisible":
            peak = max(memory_curve(self._instance, schedule)[1])
        else:
            peak = self._instance.resident_bytes + highest_byte(schedule)
        schedule = msgspec.structs.replace(schedule, peak_bytes=peak)
        if self._instance.has_host_budget:
            schedule = with_host(schedule, tuple(self._host_residence(d, stay) for d, stay in self._copies))
        return schedule

    def leave(self, block: int, *, device: bool, host: bool) -> None:
        """Release what is left of a block, but on the sides where it must end."""
        if not device and block in self._device:
            self.evict(block)
        if not host and block in self._host:
            self.drop(block)

    # --- inside -----------------------------------------------------------------------------------

    def _issue(
        self,
        s: int,
        kind: Kind,
        *,
        task: int | None = None,
        algorithm: int | None = None,
        block: int | None = None,
    ) -> int:
        i = len(self._operations)
        self._begun[s] = i
        self._operations.append(
            Operation(
                id=i,
                stream=self._streams[s],
                kind=kind,
                task=task,
                algorithm=algorithm,
                block=block,
                after=tuple(sorted(j for other, j in self._ended.items() if other != s)),
                start_ns=self._now,
                end_ns=self._now,
            )
        )
        return i

    def _place(self, block: int, acquired_by: int | None) -> None:
        stay = _Stay(acquired_by, self._pages(self._instance.blocks[block].bytes))
        self._device[block] = stay
        self._stays.append((block, stay))

    def _place_copy(self, block: int, acquired_by: int | None) -> None:
        stay = self._host[block] = _Stay(acquired_by, [])
        self._copies.append((block, stay))

    def _pages(self, size: int) -> list[int]:
        """Take pages for some bytes."""
        if self._memory != "paged":
            return []
        pages: list[int] = []
        page = 0
        while len(pages) < ceil_to(size, PAGE_BYTES) // PAGE_BYTES:
            if page not in self._taken:
                pages.append(page)
            page += 1
        self._taken.update(pages)
        return pages

    def _free(self, stay: _Stay | None) -> None:
        if stay is not None:
            stay.is_over = True
            stay.users = stay.users or [*self._ended.values()][:1]
            self._taken.difference_update(stay.pages)

    def _released_after(self, stay: _Stay) -> tuple[int, ...]:
        return tuple(sorted(set(stay.users))) if stay.is_over else ()

    def _residence(self, block: int | None, stay: _Stay) -> Residence:
        return Residence(
            block=block,
            workspace_of=stay.acquired_by if block is None else None,
            bytes=self._bytes(block, stay),
            extents=tuple((page * PAGE_BYTES, PAGE_BYTES) for page in stay.pages)
            if self._memory == "paged"
            else None,
            acquired_by=stay.acquired_by,
            released_after=self._released_after(stay),
        )

    def _host_residence(self, block: int | None, stay: _Stay) -> HostResidence:
        return HostResidence(
            block=block,
            workspace_of=stay.acquired_by if block is None else None,
            bytes=self._bytes(block, stay),
            acquired_by=stay.acquired_by,
            released_after=self._released_after(stay),
        )

    def _bytes(self, block: int | None, stay: _Stay) -> int:
        """Return the bytes of a block, or of the workspace of the run that has acquired it."""
        if block is not None:
            return self._instance.blocks[block].bytes
        assert stay.acquired_by is not None
        run = self._operations[stay.acquired_by]
        assert run.task is not None
        assert run.algorithm is not None
        return self._instance.tasks[run.task].algorithms[run.algorithm].workspace_bytes
