"""Building a program operation by operation, so that its waits and places are right by construction.

A method issues runs, offloads, prefetches, moves and releases in the order in which a host thread would
issue them; the builder places blocks in the pool, derives the waits (data, stale copies, memory that is
reused) and keeps the simulated time. So a method consists of its decisions only.

It is long because all operations belong to one class, and each of them says what it takes and raises.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...instances.arguments import require_instance, require_one_of
from ...instances.errors import PebblerError
from ...instances.instance import Instance, Task
from ...instances.units import PAGE_BYTES, ceil_to, format_size
from ...validate.measures import highest_byte, memory_curve, with_host
from ...validate.schedule import Kind, MemoryModel, Schedule, Stream
from ..carried import as_read, begins_on_device, begins_on_host, ends_on_device, states_of
from ..clock import look
from ..methods import Refusal
from .host import HostCopy, HostMemory
from .pool import Fit, PagePool, Pool, Range
from .room import Place, Room
from .stay import Stay
from .timeline import Timeline, simulated

_NO_END = np.iinfo(np.int64).max
"""Bytes of host memory without a budget."""


class OutOfMemoryError(Exception):
    """The pool has no place for a block or workspace that an operation needs.

    Attributes
    ----------
    what
        Name of the block, or of the task with the workspace.
    bytes
        Its size in bytes.
    """

    def __init__(self, what: str, size: int, pool: Pool | PagePool) -> None:
        self.what = what
        self.bytes = size
        super().__init__(
            f"no place for {what} ({format_size(size)}): {format_size(pool.free_bytes)} free, "
            f"largest hole {format_size(pool.largest_hole)}"
        )


class ProgramBuilder:
    """A program under construction, at the point where the next operation is issued.

    Parameters
    ----------
    instance
        The instance to schedule.
    memory
        Memory model of the schedule.
    fit
        Which hole a contiguous allocation takes (see `Pool`).
    one_copy_queue
        Issue all copies in one FIFO order whatever their direction, as systems with one memory stream do.
    plan
        Offset in bytes of every placement, in the order of placements, for contiguous memory; by default,
        data lies where the pool has room.
    start
        Blocks that are initially on the device and are kept there from time 0, each with its offset in bytes,
        or None for any offset. The other blocks start on the host only. By default, all blocks that fit are
        kept. Carried blocks are kept in any case.
    copies
        Where host memory has a budget: blocks of which the host keeps a copy from time 0, each with its
        offset there in bytes, or None for any offset. No copy is then dropped that is wanted later, but by
        `drop_copy`. By default, all copies that have room are kept, and dropped where others need the room.
    homing
        Whether carried blocks may leave in contiguous memory. They come back to the offset where they began,
        whose bytes must be free then. By default, they stay until the end.

    Raises
    ------
    PebblerError
        When the memory is paged and a part begins inside a page, or an argument is wrong.
    Refusal
        When host memory has a budget, and no room for what begins there alone, or when the pool has no room
        for a carried block.

    Attributes
    ----------
    instance
        The instance; carried blocks as `as_read` returns them.
    pool
        Free memory at this point of the program.
    starts, ends
        Simulated start and end times of the operations issued so far, in nanoseconds, by id.
    offload_ns, bytes
        Per block, its offload time in nanoseconds (0 where it has none) and its size in bytes.
    free_bytes
        The pool less the resident blocks, whose sizes are rounded up to the alignment, in bytes. It is the
        same in every memory model, wherever the holes are, so that decisions that use it do not depend on
        addresses.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        memory: MemoryModel = "contiguous",
        fit: Fit = "best",
        one_copy_queue: bool = False,
        plan: Sequence[int] = (),
        start: Mapping[int, int | None] | None = None,
        copies: Mapping[int, int | None] | None = None,
        homing: bool = False,
    ) -> None:
        look()
        require_instance(instance)
        require_one_of("memory", memory, get_args(MemoryModel))
        self.instance = instance = as_read(instance, memory, homing=homing)
        self.memory: MemoryModel = memory
        self._timeline = Timeline()
        self.starts, self.ends = self._timeline.starts, self._timeline.ends
        self._room = self._new_room(fit, plan)
        self.pool = self._room.pool
        self._one_copy_queue = one_copy_queue
        self._events = 0
        self._last_copy: int | None = None
        self._stays: list[Stay] = []
        self._open: dict[int, Stay] = {}
        self._previous: dict[int, tuple[int, ...]] = {}
        self._written_by: dict[int, int] = {}
        self.offload_ns = np.array([block.offload_ns or 0 for block in instance.blocks], dtype=np.int64)
        self.bytes = np.array([block.bytes for block in instance.blocks], dtype=np.int64)
        self._may_offload = np.array([b.offload_ns is not None for b in instance.blocks], dtype=bool)
        self._may_prefetch = np.array(
            [block.prefetch_ns is not None for block in instance.blocks], dtype=bool
        )
        self._on_host = np.array(
            [begins_on_host(instance, d) for d in range(len(instance.blocks))], dtype=bool
        )
        self._offloaded_by: dict[int, int] = {}
        self._address = np.full(len(instance.blocks), -1, dtype=np.int64)
        self._rounded = np.zeros(len(instance.blocks), dtype=np.int64)
        self._claims: dict[int, Place] = {}
        self._scratch_claim: tuple[Range, ...] = ()
        self._has_run = [False] * len(instance.tasks)
        self._aligned = [ceil_to(block.bytes, instance.alignment_bytes) for block in instance.blocks]
        self.free_bytes = instance.pool_bytes
        self._homes: dict[int, int] = {}
        self._begin(start)
        self._host: HostMemory | None = None
        if instance.has_host_budget:
            self._host = HostMemory(
                instance,
                memory,
                self.ends,
                self._on_host,
                self._is_wanted,
                lambda d: copies is not None or d not in self._open,
                keeps_homes=copies is None,
            )
            self._begin_copies(self._host, copies)

    # --- where things are -------------------------------------------------------------------------

    @property
    def makespan_ns(self) -> int:
        """End of the latest operation issued so far, in nanoseconds."""
        return max(self.ends, default=0)

    def is_resident(self, block: int) -> bool:
        """Return whether the block is on the device at this point of the program."""
        return block in self._open

    def on_host(self, block: int) -> bool:
        """Return whether the host holds, or will hold once copies have ended, a copy that is not stale."""
        return bool(self._on_host[block])

    def host_copies(self) -> NDArray[np.bool_]:
        """Return, per block, whether the host holds, or will hold, a copy that is not stale."""
        return self._on_host

    def evictable(self) -> NDArray[np.bool_]:
        """Return, per block, whether it could leave the device, if it is there, and come back."""
        leaves = self._may_offload & (self.bytes <= self.host_free_bytes())
        return np.asarray(self._may_prefetch & (leaves | self._on_host))

    def host_free_bytes(self) -> int:
        """Return how many bytes more the host could hold, without copies that are not needed."""
        return _NO_END if self._host is None else self._host.free_bytes

    def resident_blocks(self) -> tuple[int, ...]:
        """Return the indices of the blocks that are on the device at this point of the program."""
        return tuple(sorted(self._open))

    def lifetimes(self) -> list[tuple[int, int, int]]:
        """Return the bytes, begin and end of every placement so far.

        Begin and end count the placements and releases of the program. Two placements are on the device
        together if these intervals overlap.
        """
        return [
            (stay.bytes, stay.placed, self._events + 1 if stay.gone is None else stay.gone)
            for stay in self._stays
        ]

    def placements(self) -> list[int | None]:
        """Return the block of every placement so far, in order; None stands for a workspace."""
        return [stay.block for stay in self._stays]

    def ranges_of(self, block: int) -> tuple[Range, ...]:
        """Return the ranges in which a resident block lies."""
        return self._open[block].ranges

    def stay_of(self, block: int) -> Stay:
        """Return the residence of a resident block, as far as it is known."""
        return self._open[block]

    def host_copy_of(self, block: int) -> HostCopy | None:
        """Return the residence of a block's copy in host memory that has a budget, if there is one."""
        return None if self._host is None else self._host.copy_of(block)

    def segments(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return offset, bytes and block of every resident block and of every hole, by address.

        A hole has the block -1. Contiguous memory only.
        """
        resident = np.flatnonzero(self._address >= 0)
        holes = np.array(self.pool.holes(), dtype=np.int64).reshape(-1, 2)
        starts = np.concatenate((self._address[resident], holes[:, 0]))
        sizes = np.concatenate((self._rounded[resident], holes[:, 1]))
        blocks = np.concatenate((resident, np.full(len(holes), -1)))
        order = np.argsort(starts)
        return starts[order], sizes[order], blocks[order]

    def copy_queue_end(self) -> int:
        """Return the time from which another offload can start."""
        last = self._last_copy if self._one_copy_queue else self._timeline.last.get(self._copy_stream("d2h"))
        return 0 if last is None else self.ends[last]

    def missing_bytes(self, size: int) -> int:
        """Return how many more bytes must be free before `size` bytes have room, wherever the holes are."""
        return ceil_to(size, self._room.unit) - self.pool.free_bytes

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes could be placed without evicting anything."""
        if self.memory != "contiguous":
            return self.missing_bytes(size) <= 0
        return self.pool.largest_hole >= size

    def leaves_at(self, blocks: Iterable[int]) -> int:
        """Return when these resident blocks would have left the device if they were evicted now."""
        queue = self.copy_queue_end()
        latest = 0
        for d in blocks:
            stay = self._open[d]
            latest = max([latest, *(self.ends[i] for i in stay.users.values())])
            if not self._on_host[d]:
                written = self._written_by.get(d)
                start = max(queue, 0 if written is None else self.ends[written])
                queue = start + (self.instance.blocks[d].offload_ns or 0)
                latest = max(latest, queue)
        return latest

    def expected_start(self, task: int) -> int:
        """Return when a task would start, if its inputs are resident and its claims are made."""
        what = self.instance.tasks[task]
        waits = self._room.hazards.over(self._scratch_claim)
        for d in (*what.inputs, *what.updates):
            waits |= self._arrival(d, what.name)
        for d in what.updates:
            waits |= set(self._open[d].users.values())
        for d in what.outputs:
            if d in self._claims:
                waits |= self._room.hazards.over(self._claims[d].ranges)
        last = self._timeline.last.get("compute")
        return max([0 if last is None else self.ends[last], *(self.ends[i] for i in waits)])

    # --- claims -----------------------------------------------------------------------------------

    def claim(self, block: int) -> None:
        """Reserve room for an output of the task that runs next, before the task is issued.

        Raises
        ------
        OutOfMemoryError
            When there is no place.
        """
        place = self._room.place_block(block)
        if place is None:
            info = self.instance.blocks[block]
            raise OutOfMemoryError(f"block '{info.name}'", info.bytes, self.pool)
        self._claims[block] = place

    def claim_workspace(self, size: int) -> None:
        """Reserve room for the workspace of the task that runs next, before the task is issued.

        Raises
        ------
        OutOfMemoryError
            When there is no place.
        """
        place = self._room.take(size, None)
        if place is None:
            raise OutOfMemoryError("a workspace", size, self.pool)
        self._scratch_claim = place

    def drop_claims(self) -> None:
        """Release all reserved room."""
        for place in self._claims.values():
            self._room.unplace(place)
        self._room.give_back(self._scratch_claim)
        self._claims, self._scratch_claim = {}, ()

    # --- operations -------------------------------------------------------------------------------

    def run(
        self,
        task: int,
        algorithm: int,
        after: Iterable[int] = (),
        *,
        at: Mapping[int, int] | None = None,
        workspace_at: int | None = None,
        over: Mapping[int, int] | None = None,
    ) -> int:
        """Run a task, or run it again. Outputs and workspace are placed now unless claimed before.

        Parameters
        ----------
        task, algorithm
            Index of the task, and of one of its algorithms.
        after
            Operations to wait for beyond those that the builder finds.
        at, workspace_at
            Offsets in bytes of outputs by block, and of the workspace, for contiguous memory; by default,
            they lie where the pool has room.
        over
            Inputs by the outputs that take over their places, as the algorithm lets them; the inputs are not
            there any more then.

        Returns
        -------
        int
            Id of the operation.

        Raises
        ------
        OutOfMemoryError
            When there is no place; the program is then unchanged.
        PebblerError
            When an input is not resident, or an output may not take over a place.
        """
        what, over = self.instance.tasks[task], over or {}
        waits = self._data_waits(what, algorithm, after)
        for d, x in over.items():
            if (d, x) not in what.algorithms[algorithm].takes_over or d in self._open:
                names = self.instance.blocks[d].name, self.instance.blocks[x].name
                raise PebblerError(f"'{names[0]}' may not take over the place of '{names[1]}' in {what.name}")
            waits |= {i for stream, i in self._open[x].users.items() if stream != "compute"}
        made = what.makes(algorithm)
        outputs = [d for d in made if d not in self._open and d not in over]
        workspace = what.algorithms[algorithm].workspace_bytes
        places, scratch = self._place_all(outputs, workspace, what.name, at or {}, workspace_at)
        waits |= self._place_waits(places, scratch)
        duration = what.algorithms[algorithm].duration_ns
        i = self._issue("compute", "run", duration, waits, task=task, algorithm=algorithm)
        for d, place in places:
            self._open_stay(d, place, i)
        for d, x in over.items():
            self._take_over(d, x, i)
        for d in what.touches(algorithm):
            if d in self._open:
                self._open[d].users["compute"] = i
        for d in (*made, *what.updates):
            self._written_by[d] = i
        for d in (*what.updates, *(() if self._has_run[task] else made)):
            self.drop_copy(d)
        if workspace:
            stay = Stay(None, i, scratch, workspace, i, None, self._count(), self._count())
            stay.released_after = (i,)
            self._stays.append(stay)
            self._room.give_back(scratch, (i,))
        self._has_run[task] = True
        return i

    def offload(self, block: int, after: Iterable[int] = (), *, host_at: int | None = None) -> int:
        """Copy a resident block to the host.

        Parameters
        ----------
        block
            Index of the block.
        after
            Operations to wait for beyond those that the builder finds.
        host_at
            Offset of the copy in bytes, where host memory has a budget; by default, where there is room.

        Returns
        -------
        int
            Id of the operation.

        Raises
        ------
        Refusal
            When the instance does not let the block be offloaded, or host memory has no room for it.
        PebblerError
            When the block is not resident.
        """
        info = self.instance.blocks[block]
        if info.offload_ns is None:
            raise Refusal(f"block '{info.name}' cannot be offloaded: its offload_ns is null")
        waits = set(after) | self._arrival(block, "an offload")
        if block in self._written_by:
            waits.add(self._written_by[block])
        place: tuple[Range, ...] = ()
        if self._host is not None:
            place, before = self._host.place(block, host_at)
            waits |= before
        i = self._issue(self._copy_stream("d2h"), "offload", info.offload_ns, waits, block=block)
        if self._host is not None:
            self._host.write(block, place, i)
        self._open[block].users[self._timeline.operations[i].stream] = i
        self._on_host[block] = True
        self._offloaded_by[block] = i
        return i

    def prefetch(self, block: int, after: Iterable[int] = (), *, at: int | None = None) -> int:
        """Copy a block from the host to the device.

        Parameters
        ----------
        block
            Index of the block.
        after
            Operations to wait for beyond those that the builder finds.
        at
            Offset in bytes; by default, the block lies where the pool has room. A carried block in contiguous
            memory lies where it began.

        Returns
        -------
        int
            Id of the operation.

        Raises
        ------
        OutOfMemoryError
            When there is no place; the program is then unchanged.
        Refusal
            When the instance does not let the block be prefetched, or host memory had no room for its copy.
        PebblerError
            When the block is resident already or has no valid host copy.
        """
        info = self.instance.blocks[block]
        if info.prefetch_ns is None:
            raise Refusal(f"block '{info.name}' cannot be prefetched: its prefetch_ns is null")
        if block in self._open or not self._on_host[block]:
            if self._host is not None and block not in self._open:
                raise Refusal(f"host memory had no room to keep the copy of block '{info.name}'")
            why = "is on the device already" if block in self._open else "has no valid copy on the host"
            raise PebblerError(f"block '{info.name}' cannot be prefetched: it {why}")
        place = self._room.place_block(block, self._homes.get(block, at))
        if place is None:
            raise OutOfMemoryError(f"block '{info.name}'", info.bytes, self.pool)
        waits = set(after) | self._room.hazards.over(place.ranges) | set(self._previous.get(block, ()))
        if block in self._offloaded_by:
            waits.add(self._offloaded_by[block])
        i = self._issue(self._copy_stream("h2d"), "prefetch", info.prefetch_ns, waits, block=block)
        if self._host is not None:
            self._host.read(block, i)
        self._open_stay(block, place, i)
        return i

    def fetch(self, blocks: Iterable[int], after: Iterable[int] = ()) -> list[int]:
        """Prefetch those of the given blocks that are not resident, and return the ids of the operations.

        Raises
        ------
        OutOfMemoryError, Refusal, PebblerError
            As `prefetch`, for the first block that cannot come.
        """
        return [self.prefetch(d, after) for d in blocks if d not in self._open]

    def move(self, block: int, after: Iterable[int] = (), *, at: int | None = None) -> int:
        """Copy a resident block to another place on the device, and release the old place.

        Parameters
        ----------
        block
            Index of the block.
        after
            Operations to wait for beyond those that the builder finds.
        at
            Offset in bytes of the new place; by default, the block lies where the pool has room.

        Returns
        -------
        int
            Id of the operation.

        Raises
        ------
        OutOfMemoryError
            When there is no second place; the program is then unchanged.
        PebblerError
            When the block is not resident or may not be moved, or is a part and no place is given.
        """
        info = self.instance.blocks[block]
        if info.move_ns is None or (info.tensor is not None and at is None):
            raise PebblerError(f"block '{info.name}' cannot be moved: its move_ns is null, or it is a part")
        waits = set(after) | self._arrival(block, "a move")
        waits |= {i for stream, i in self._open[block].users.items() if stream != "compute"}
        ranges = self._room.take(info.bytes, at)
        if ranges is None:
            raise OutOfMemoryError(f"a move of block '{info.name}'", info.bytes, self.pool)
        waits |= self._room.hazards.over(ranges)
        i = self._issue("compute", "move", info.move_ns, waits, block=block)
        placed = self._count()
        self._close_stay(block, (i,))
        self._open_stay(block, Place(ranges), i, placed)
        self._written_by[block] = i
        return i

    def release(self, block: int, after: Iterable[int] = ()) -> None:
        """Release a resident block's memory once its users so far, and the operations `after`, have ended.

        Raises
        ------
        Refusal
            When a carried block would leave before the first operation.
        """
        stay = self._open[block]
        ops = {*stay.users.values(), *after}
        if not ops and stay.acquired_by is not None:
            ops = {stay.acquired_by}
        if not ops and self.instance.blocks[block].initially == "carried":
            ops = self._any_operation(block)
        self._close_stay(block, tuple(sorted(self._timeline.latest(ops))))

    def release_dead(self, task: int, keep: Container[int] = ()) -> None:
        """Release a task's blocks that no later task uses; those that must end on the host are copied first.

        Blocks in `keep` are not released.
        """
        for d in self.instance.tasks[task].blocks:
            if d not in keep and d in self._open and self.instance.uses[d][-1] <= task:
                self.retire(d)

    def retire(self, block: int) -> None:
        """Release a resident block for good, after copying it if it must end on the host.

        A block that must end on the device, as a carried one, is not released.
        """
        if ends_on_device(self.instance.blocks[block]):
            return
        finally_ = self.instance.blocks[block].finally_
        if finally_ == "host" and not self._on_host[block]:
            self.offload(block)
        elif finally_ != "host" and self._host is not None:
            self.drop_copy(block)
        self.release(block)

    def settle(self) -> None:
        """Issue the copies that the end requires and that have not been issued.

        Raises
        ------
        OutOfMemoryError
            When a block that must end on the device has no place.
        """
        for d, block in enumerate(self.instance.blocks):
            if block.finally_ == "host" and not self._on_host[d]:
                self.offload(d)
            elif ends_on_device(block) and d not in self._open:
                self.prefetch(d)

    def finish(self, method: str, meta: dict[str, Any] | None = None) -> Schedule:
        """Issue the copies that the end requires, and return the schedule.

        Parameters
        ----------
        method
            Name of the method, for the schedule.
        meta
            Further entries for the schedule.

        Returns
        -------
        Schedule
            The whole program with its places and its simulated times.

        Raises
        ------
        OutOfMemoryError
            When a block that must end on the device has no place.
        """
        self.settle()
        if self._host is not None:
            self._host.tidy()
        residences = tuple(stay.residence(self.memory) for stay in self._stays if stay.used)
        schedule = Schedule(
            format="pebbler/schedule/1",
            instance=self.instance.name,
            method=method,
            memory_model=self.memory,
            page_bytes=PAGE_BYTES if self.memory == "paged" else None,
            operations=tuple(self._timeline.operations),
            residences=residences,
            makespan_ns=self.makespan_ns,
            peak_bytes=self.instance.resident_bytes,
            meta=meta or {},
        )
        if self.instance.is_coupled:
            schedule = simulated(self.instance, schedule)
        if self.memory == "divisible":
            peak = max(memory_curve(self.instance, schedule)[1])
        else:
            peak = self.instance.resident_bytes + highest_byte(schedule)
        schedule = msgspec.structs.replace(schedule, peak_bytes=peak)
        if self._host is not None:
            schedule = with_host(schedule, self._host.residences())
        if self.instance.carried:
            schedule = msgspec.structs.replace(schedule, carried=states_of(self.instance, schedule))
        return schedule

    # --- inside -----------------------------------------------------------------------------------

    def _begin(self, start: Mapping[int, int | None] | None) -> None:
        """Place blocks from time 0: carried ones, then others that begin on the device and have room."""
        blocks, uses = self.instance.blocks, self.instance.uses
        initially = [d for d, block in enumerate(blocks) if begins_on_device(block)]
        wanted = dict.fromkeys(initially) if start is None else start
        for d in sorted(initially, key=lambda d: (blocks[d].initially != "carried", *uses[d][:1], d)):
            must = blocks[d].initially == "carried"
            if not must and d not in wanted:
                continue
            place = self._room.place_block(d, wanted.get(d))
            if place is not None:
                self._open_stay(d, place, None)
                if must and self.memory == "contiguous":
                    self._homes[d] = place.ranges[0][0]
            elif must:
                what = f"block '{blocks[d].name}', which is carried"
                raise Refusal(str(OutOfMemoryError(what, blocks[d].bytes, self.pool)))

    def _any_operation(self, block: int) -> set[int]:
        """Return the last operation, after which a carried block leaves that nothing has used yet."""
        if not self.ends:
            name = self.instance.blocks[block].name
            raise Refusal(f"block '{name}' is carried, and cannot leave before the first operation")
        return {len(self.ends) - 1}

    def _new_room(self, fit: Fit, plan: Sequence[int]) -> Room:
        return Room(self.instance, self.memory, fit, plan, self.ends)

    def _begin_copies(self, host: HostMemory, copies: Mapping[int, int | None] | None) -> None:
        """Keep copies from time 0: of what is on the host alone and wanted, then of others that have room."""
        if copies is not None:
            for d, at in copies.items():
                host.begin(d, at, must=True)
            return
        blocks, uses = self.instance.blocks, self.instance.uses
        begins = [d for d in range(len(blocks)) if begins_on_host(self.instance, d)]
        alone = [d for d in begins if d not in self._open and (uses[d] or blocks[d].finally_ != "anywhere")]
        for d in alone:
            host.begin(d, must=True)
        others = [d for d in begins if d in self._open]
        for d in sorted(others, key=lambda d: (blocks[d].finally_ != "host", d)):
            host.begin(d, must=False)

    def _is_wanted(self, block: int) -> bool:
        """Return whether a block is used later, perhaps by a second run, or has a place at the end."""
        info = self.instance.blocks[block]
        return (
            info.finally_ != "anywhere"
            or info.initially == "carried"
            or any(
                not self._has_run[k] or self.instance.tasks[k].recomputable for k in self.instance.uses[block]
            )
        )

    def drop_copy(self, block: int) -> None:
        """Release the copy of a block on the host, if there is one, once it has been written and read."""
        self._on_host[block] = False
        if self._host is not None:
            self._host.drop(block)

    def _count(self) -> int:
        self._events += 1
        return self._events

    def _copy_stream(self, direction: Stream) -> Stream:
        return "copy" if self.instance.engines == "single" else direction

    def _arrival(self, block: int, reader: str) -> set[int]:
        """Return what a reader of a block waits for: the operation that brought the block."""
        if block not in self._open:
            name = self.instance.blocks[block].name
            raise PebblerError(f"block '{name}' is not on the device where {reader} needs it")
        acquired_by = self._open[block].acquired_by
        return set() if acquired_by is None else {acquired_by}

    def _data_waits(self, what: Task, algorithm: int, after: Iterable[int]) -> set[int]:
        """Return what a run waits for because of data: `after`, arrivals, and copies of its blocks."""
        waits = set(after)
        for d in what.reads(algorithm):
            waits |= self._arrival(d, what.name)
        for d in (*what.updates, *(d for d in what.makes(algorithm) if d in self._open)):
            waits |= self._arrival(d, what.name)
            waits |= {i for stream, i in self._open[d].users.items() if stream != "compute"}
        return waits

    def _place_waits(self, places: Iterable[tuple[int, Place]], scratch: tuple[Range, ...]) -> set[int]:
        """Return what a run waits for because of the places of its outputs and its workspace."""
        waits = self._room.hazards.over(scratch)
        for d, place in places:
            waits |= self._room.hazards.over(place.ranges) | set(self._previous.get(d, ()))
        return waits

    def _issue(
        self,
        stream: Stream,
        kind: Kind,
        duration: int,
        waits: set[int],
        *,
        task: int | None = None,
        algorithm: int | None = None,
        block: int | None = None,
    ) -> int:
        """Append an operation; where all copies have one queue, a copy comes after the copy before it."""
        look()
        if kind in ("offload", "prefetch"):
            if self._one_copy_queue and self._last_copy is not None:
                waits.add(self._last_copy)
            self._last_copy = len(self.ends)
        return self._timeline.issue(
            stream, kind, duration, waits, task=task, algorithm=algorithm, block=block
        )

    def _open_stay(
        self, block: int, place: Place, acquired_by: int | None, placed: int | None = None
    ) -> None:
        size = self.instance.blocks[block].bytes
        stay = Stay(block, None, place.ranges, size, acquired_by, place.span, placed or self._count())
        if acquired_by is not None:
            stay.users[self._timeline.operations[acquired_by].stream] = acquired_by
        self._stays.append(stay)
        self._open[block] = stay
        self.free_bytes -= self._aligned[block]
        self._address[block], self._rounded[block] = place.ranges[0]

    def _take_over(self, block: int, place_of: int, run: int) -> None:
        """Let a block have the place of an input of a run, whose stay ends with that."""
        old = self._open.pop(place_of)
        self.free_bytes += self._aligned[place_of]
        self._address[place_of] = -1
        old.gone = self._count()
        old.released_after = self._previous[place_of] = (run,)
        self._open_stay(block, Place(old.ranges, old.span), run)
        self._open[block].takes_over = True

    def _close_stay(self, block: int, released_after: tuple[int, ...]) -> None:
        stay = self._open.pop(block)
        self.free_bytes += self._aligned[block]
        self._address[block] = -1
        stay.gone = self._count()
        stay.released_after = self._previous[block] = released_after
        stay.used = bool(released_after)  # or initially on the device for nothing
        self._room.leave(Place(stay.ranges, stay.span), released_after)

    def _place_all(
        self,
        outputs: Sequence[int],
        workspace: int,
        name: str,
        at: Mapping[int, int],
        workspace_at: int | None,
    ) -> tuple[list[tuple[int, Place]], tuple[Range, ...]]:
        """Place outputs, first those with an offset, then the larger ones, and the workspace; all or none."""
        places: list[tuple[int, Place]] = []
        failure: OutOfMemoryError | None = None
        for d in sorted(outputs, key=lambda d: (d not in at, -self.instance.blocks[d].bytes, d)):
            place = self._claims.get(d) or self._room.place_block(d, at.get(d))
            if place is None:
                block = self.instance.blocks[d]
                failure = OutOfMemoryError(f"block '{block.name}'", block.bytes, self.pool)
                break
            places.append((d, place))
        scratch = self._scratch_claim
        if failure is None and workspace and not scratch:
            scratch = self._room.take(workspace, workspace_at) or ()
            if not scratch:
                failure = OutOfMemoryError(f"the workspace of task '{name}'", workspace, self.pool)
        if failure is not None:
            for d, place in places:
                if d not in self._claims:
                    self._room.unplace(place)
            raise failure
        self._claims, self._scratch_claim = {}, ()
        return places, scratch
