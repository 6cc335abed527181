"""moDNN (Chen, Chen and Hu, TPDS 2019; DATE 2018): Algorithm 1 on one compute and one transfer stream."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ...instances.instance import Instance
from ...instances.memory import fastest
from ...validate.schedule import Schedule
from ..choices import by_speed, leanest
from ..clock import limited
from ..methods import Answer, Limits, Refusal, register
from ..parts import with_parts
from ..program.builder import OutOfMemoryError, ProgramBuilder
from . import modnn_sub_batch as sub_batch
from .modnn_eviction import evict_blocks, find_eviction


@dataclass(frozen=True, slots=True)
class Techniques:
    """The techniques of moDNN that are in use on one instance (TPDS 2019, section 7.3).

    Attributes
    ----------
    transfers
        Offloading and prefetching. Without them, no block is ever evicted.
    algorithms
        Selection of algorithms by eq. 10. Without it, every task takes its fastest algorithm that has room.
    """

    transfers: bool = True
    algorithms: bool = True


@register(
    "modnn",
    "Algorithm 1: evict on demand, prefetch in time, algorithms by gain",
    "moDNN (TPDS 2019)",
    sub_batch=sub_batch.tpds,
    carries="read",
)
@limited
def modnn(instance: Instance, limits: Limits) -> Answer:
    """Schedule by Algorithm 1 with all techniques; the sub-batch is chosen by eq. 8 (`sub_batch.tpds`)."""
    return _answer(instance, limits, "modnn", Techniques())


@register(
    "modnn-date",
    "the same schedule, with the sub-batch of the first paper",
    "moDNN (DATE 2018)",
    shown="auto",
    sub_batch=sub_batch.date,
    carries="read",
)
@limited
def modnn_date(instance: Instance, limits: Limits) -> Answer:
    """Schedule as the DATE paper does: its eq. 5 is eq. 10, and its eq. 3 chooses another sub-batch.

    The DATE paper omits how it predicts whether a prefetch is useful; the later paper's prediction is used.
    """
    return _answer(instance, limits, "modnn-date", Techniques())


@register(
    "modnn-transfers",
    "moDNN with offloading and prefetching alone",
    "moDNN (TPDS 2019), section 7.3",
    shown="named",
    carries="read",
)
@limited
def modnn_transfers(instance: Instance, limits: Limits) -> Answer:
    """Run Algorithm 1 without the selection of algorithms."""
    return _answer(instance, limits, "modnn-transfers", Techniques(algorithms=False))


@register(
    "modnn-algorithms",
    "moDNN with the selection of algorithms alone",
    "moDNN (TPDS 2019), section 7.3",
    shown="named",
    carries="read",
)
@limited
def modnn_algorithms(instance: Instance, limits: Limits) -> Answer:
    """Run Algorithm 1 without offloading and prefetching."""
    return _answer(instance, limits, "modnn-algorithms", Techniques(transfers=False))


@register(
    "modnn-sub-batch",
    "moDNN with the sub-batch size alone",
    "moDNN (TPDS 2019), section 7.3",
    shown="named",
    sub_batch=sub_batch.tpds,
    carries="read",
)
@limited
def modnn_sub_batch(instance: Instance, limits: Limits) -> Answer:
    """Run Algorithm 1 without transfers and selection: only the sub-batch, from the planner, is moDNN's."""
    return _answer(instance, limits, "modnn-sub-batch", Techniques(transfers=False, algorithms=False))


@register(
    "modnn-parts",
    "moDNN where tensors are in parts, which leave and come back one by one",
    "moDNN (TPDS 2019), on parts: this project",
    shown="named",
    transform=with_parts,
    carries="read",
)
@limited
def modnn_parts(instance: Instance, limits: Limits) -> Answer:
    """Run Algorithm 1 with all techniques on tensors in parts; a part is treated like any other block."""
    return _answer(instance, limits, "modnn-parts", Techniques())


def _answer(instance: Instance, limits: Limits, name: str, techniques: Techniques) -> Answer:
    simulation = _Simulation(instance, limits, techniques)
    for t, task in enumerate(instance.tasks):
        try:
            simulation.step(t)
        except OutOfMemoryError as error:
            raise Refusal(f"{error} at task {task.name}") from None
    try:
        return Answer(simulation.finish(name))
    except OutOfMemoryError as error:
        raise Refusal(f"{error} after the last task") from None


class _Simulation:
    """The simulated execution of Algorithm 1, task by task.

    Attributes
    ----------
    unused
        Per block, whether it is on the device and has not been used since it was last generated or prefetched
        (criterion 1).
    needed_at
        Per block, the next task that uses it; the number of tasks when there is none.
    wanted
        Heap of (next use, block) of blocks that were evicted; entries may be out of date.
    """

    def __init__(self, instance: Instance, limits: Limits, techniques: Techniques) -> None:
        self.instance = instance
        self.techniques = techniques
        self.builder = ProgramBuilder(instance, memory=limits.memory, fit="exact-first", one_copy_queue=True)
        self.unused = np.zeros(len(instance.blocks), dtype=bool)
        self.unused[list(self.builder.resident_blocks())] = True
        count = len(instance.tasks)
        self.uses = [iter((*uses, count)) for uses in instance.uses]
        self.needed_at = np.array([next(uses) for uses in self.uses], dtype=np.int64)
        self.wanted: list[tuple[int, int]] = []
        self.before = [0, *accumulate(algorithm.duration_ns for algorithm in fastest(instance))]
        self.last_run: tuple[int, ...] = ()
        self.defragmentations = 0
        for d, block in enumerate(instance.blocks):
            if block.initially != "absent" and not self.builder.is_resident(d):
                self._want(d)

    def step(self, t: int) -> None:
        """Do one pass of Algorithm 1's outer loop (lines 3 to 31)."""
        task = self.instance.tasks[t]
        if not self._prepare(t):
            self._defragment(t)
        algorithm = self._select(t)
        if self.techniques.transfers:
            self._prefetch(t, task.algorithms[algorithm].duration_ns)
        self.last_run = (self.builder.run(t, algorithm),)
        for d in task.blocks:
            self.needed_at[d] = next(self.uses[d])
        self.builder.release_dead(t)
        self.unused[list(task.blocks)] = False
        self.unused[[d for d in task.outputs if self.builder.is_resident(d)]] = True

    def finish(self, name: str) -> Schedule:
        """Return the schedule, after bringing the blocks that must end on the device.

        Raises
        ------
        OutOfMemoryError
            When there is no place for such a block even after a defragmentation.
        """
        try:
            self.builder.settle()
        except OutOfMemoryError:
            self._evict_all()
        return self.builder.finish(name, {"defragmentations": self.defragmentations})

    # --- lines 3 to 8 -----------------------------------------------------------------------------

    def _prepare(self, t: int) -> bool:
        """Claim room for task t's outputs and bring its inputs; False when only defragmentation helps."""
        task = self.instance.tasks[t]
        return all(self._claim(d, t) for d in task.outputs) and all(
            self._load(d, t) for d in (*task.inputs, *task.updates) if not self.builder.is_resident(d)
        )

    def _load(self, d: int, t: int) -> bool:
        fits = self._fit(lambda: self.builder.prefetch(d, self.last_run), self.instance.blocks[d].bytes, t)
        if fits:
            self.unused[d] = True
        return fits

    def _claim(self, d: int, t: int) -> bool:
        return self._fit(lambda: self.builder.claim(d), self.instance.blocks[d].bytes, t)

    def _fit(self, allocate: Callable[[], object], size: int, t: int) -> bool:
        """Allocate a block, after evicting by the scheme with the least delay if need be.

        One scheme makes room, except for a part of a tensor, which needs room for all of the tensor. Returns
        False when no scheme (or no further one) is found.
        """
        while True:
            try:
                allocate()
            except OutOfMemoryError:
                found = self._scheme(size, t)
                if found is None or not found[1]:
                    return False
                self._evict(found[1])
            else:
                return True

    def _scheme(self, size: int, t: int) -> tuple[int, tuple[int, ...]] | None:
        if not self.techniques.transfers:
            return None
        now = self.builder.ends[self.last_run[0]] if self.last_run else 0
        movable = self.builder.evictable() & ~self.unused
        movable[list(self.instance.tasks[t].blocks)] = False
        return find_eviction(self.builder, size, movable, self.needed_at, now)

    def _evict(self, blocks: tuple[int, ...]) -> None:
        evict_blocks(self.builder, blocks)
        self.unused[list(blocks)] = False
        for d in blocks:
            self._want(d)

    def _want(self, d: int) -> None:
        if self.needed_at[d] < len(self.instance.tasks):
            heapq.heappush(self.wanted, (int(self.needed_at[d]), d))

    def _defragment(self, t: int) -> None:
        """Offload all data and reload what task t needs (section 5.2.1, at the end).

        Raises
        ------
        OutOfMemoryError
            When the task does not fit even so.
        """
        self.builder.drop_claims()
        self._evict_all()
        task = self.instance.tasks[t]
        for d in (*task.inputs, *task.updates):
            if not self.builder.is_resident(d):
                self.builder.prefetch(d, self.last_run)
        for d in task.outputs:
            self.builder.claim(d)

    def _evict_all(self) -> None:
        if self.techniques.transfers:
            self.defragmentations += 1
            evictable = self.builder.evictable()
            self._evict(tuple(d for d in self.builder.resident_blocks() if evictable[d]))

    # --- lines 9 to 14 ----------------------------------------------------------------------------

    def _select(self, t: int) -> int:
        """Choose task t's algorithm by its gain (eq. 10) and claim its workspace."""
        task = self.instance.tasks[t]
        base = leanest(task)
        if self.techniques.algorithms:
            gains = {a: self._gain(t, a, base) for a in range(len(task.algorithms))}
            order = sorted(
                (a for a in gains if gains[a] is not None),
                key=lambda a: (-(gains[a] or 0), task.algorithms[a].workspace_bytes, a),
            )
        else:
            order = by_speed(task)
        for a in order:
            if self._claim_workspace(task.algorithms[a].workspace_bytes, t):
                return a
        self._defragment(t)
        self.builder.claim_workspace(task.algorithms[base].workspace_bytes)
        return base

    def _gain(self, t: int, a: int, base: int) -> int | None:
        """Return the time that an algorithm gains over the baseline, less its penalties, if it has room."""
        task = self.instance.tasks[t]
        algorithm = task.algorithms[a]
        offload = delayed = 0
        if algorithm.workspace_bytes:
            if not self.builder.has_room(algorithm.workspace_bytes):
                found = self._scheme(algorithm.workspace_bytes, t)
                if found is None:
                    return None
                offload = found[0]
            delayed = self._delayed_prefetches(t, algorithm.workspace_bytes)
        return task.algorithms[base].duration_ns - algorithm.duration_ns - offload - delayed

    def _delayed_prefetches(self, t: int, workspace: int) -> int:
        """Return the time of those prefetches for the next such task that the workspace leaves no room for.

        Only the current free memory counts, and only one future task with prefetches (section 5.2.3).
        """
        ahead = self._next_wanted(t)
        if ahead is None:
            return 0
        room = self.builder.pool.free_bytes
        delayed = 0
        for d in self._absent(ahead):
            block = self.instance.blocks[d]
            if block.bytes <= room and block.bytes > room - workspace:
                delayed += block.prefetch_ns or 0
            else:
                room -= min(block.bytes, room)
        return delayed

    def _claim_workspace(self, size: int, t: int) -> bool:
        return not size or self._fit(lambda: self.builder.claim_workspace(size), size, t)

    # --- lines 15 to 27 ---------------------------------------------------------------------------

    def _prefetch(self, t: int, duration_ns: int) -> None:
        """Prefetch blocks for future tasks, as long as the copies should start before task t does."""
        now = self.builder.expected_start(t)
        checked = t
        while (s := self._next_wanted(t)) is not None:
            absent = self._absent(s)
            transfer = sum(self.instance.blocks[d].prefetch_ns or 0 for d in absent)
            expected = now + self.before[s] - self.before[t]
            if now + duration_ns + transfer <= expected or self._defragments(t, checked, s):  # eq. 9, line 16
                break
            checked = s
            if not all(self._load(d, t) for d in absent):
                break

    def _next_wanted(self, t: int) -> int | None:
        """Return the first task after t that needs a block which is only on the host."""
        while self.wanted:
            s, d = self.wanted[0]
            if self.needed_at[d] == s and s > t and not self.builder.is_resident(d):
                return s
            heapq.heappop(self.wanted)
        return None

    def _absent(self, s: int) -> list[int]:
        task = self.instance.tasks[s]
        return [
            d
            for d in (*task.inputs, *task.updates)
            if self.builder.on_host(d) and not self.builder.is_resident(d)
        ]

    def _defragments(self, t: int, checked: int, s: int) -> bool:
        """Return whether a task in (checked, s] is predicted to need a defragmentation (section 5.2.2).

        The prediction makes two aggressive assumptions. Blocks that have been used since they came may be
        offloaded by then. All that an earlier task needs has been prefetched for it. So only those blocks
        remain that have come and are not used before.
        """
        stays = self.unused.copy()
        total = int(self.builder.bytes[stays].sum())
        for k in range(t, s + 1):
            task = self.instance.tasks[k]
            needed = sum(self.instance.blocks[d].bytes for d in task.blocks)
            for d in task.blocks:
                if stays[d]:
                    stays[d] = False
                    total -= self.instance.blocks[d].bytes
            if k > checked and total + needed > self.instance.pool_bytes:
                return True
            for d in task.outputs:
                if self.instance.uses[d][-1] > k:
                    stays[d] = True
                    total += self.instance.blocks[d].bytes
        return False
