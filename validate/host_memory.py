"""The checker's rules for host memory with a budget, where copies of blocks have places of their own.

The rules are those of the formats page. Which version a copy has is not looked at here: `check` goes through
all versions, on the device and on the host. This module imports only the instance and the schedule from this
project.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UNSET

from ..instances.instance import Algorithm, Block, Instance
from .order import NEVER, Order, in_words, is_on_host
from .schedule import HostResidence, Operation, Schedule

ALIGNMENT_BYTES = 512
"""Offsets in host memory are multiples of it."""


def host_reasons(instance: Instance, schedule: Schedule, order: Order, ends_ns: Sequence[int]) -> list[str]:
    """Return every reason why a schedule breaks the rules of host memory.

    Parameters
    ----------
    instance, schedule
        A schedule for an instance of one GPU.
    order
        Its order.
    ends_ns
        The simulated end of each operation in nanoseconds, by position.
    """
    if instance.has_host_budget != (schedule.host_peak_bytes is not UNSET):
        if instance.has_host_budget:
            return ["host memory has a budget, and the schedule has no host_residences and host_peak_bytes"]
        return ["the schedule has host_residences, and host memory has no budget"]
    if not instance.has_host_budget:
        return []
    proof = _HostProof(instance, schedule, order)
    proof.acquisitions()
    proof.places()
    proof.separation()
    proof.copies()
    proof.carried()
    proof.peak(ends_ns)
    return proof.reasons


class _HostProof:
    def __init__(self, instance: Instance, schedule: Schedule, order: Order) -> None:
        assert instance.host_budget_bytes is not UNSET
        self.instance, self.schedule, self.order = instance, schedule, order
        self.budget = instance.host_budget_bytes
        self.residences = schedule.host_copies
        self.reasons: list[str] = []
        self.acquired: dict[int, list[HostResidence]] = defaultdict(list)
        for residence in self.residences:
            self.acquired[order.acquisition(residence)].append(residence)

    def fail(self, reason: str) -> None:
        """Add a reason."""
        self.reasons.append(reason)

    def name(self, p: int) -> str:
        """Return operation `p` in words."""
        return in_words(self.instance, self.order.operations[p])

    def what(self, residence: HostResidence) -> str:
        """Return a residence in words."""
        if residence.block is not None:
            return f"the host copy of '{self.instance.blocks[residence.block].name}'"
        assert residence.workspace_of is not None
        return f"the workspace of {self.name(self.order.position[residence.workspace_of])} on the host"

    def acquisitions(self) -> None:
        """Check that what writes to the host acquires its room there, of the right size, which ends later."""
        for residence in self.residences:
            p = self.order.acquisition(residence)
            if residence.block is not None:
                self._copy_acquisition(residence, self.instance.blocks[residence.block], p)
            else:
                self._workspace_acquisition(residence)
            for q in self.order.releases(residence):
                if q != p and not self.order.ends_before(p, q):
                    self.fail(
                        f"{self.what(residence)} is released by {self.name(q)}, not after it is acquired"
                    )
        for p, operation in enumerate(self.order.operations):
            mine = self.acquired.get(p, [])
            if operation.kind == "offload" and len(mine) != 1:
                self.fail(f"{self.name(p)} must acquire exactly one host residence")
            algorithm = self.algorithm(operation)
            if algorithm is None:
                continue
            for d in self.written(operation):
                if sum(residence.block == d for residence in mine) != 1:
                    name = self.instance.blocks[d].name
                    self.fail(f"{self.name(p)} must acquire exactly one host residence of '{name}'")
            wanted = int(algorithm.workspace_bytes > 0)
            held = sum(residence.workspace_of == operation.id for residence in mine)
            if held != wanted:
                self.fail(f"{self.name(p)} has {held} workspaces on the host, not {wanted}")

    def algorithm(self, operation: Operation) -> Algorithm | None:
        """Return the algorithm of a run on the host; None of anything else."""
        if operation.task is None or operation.algorithm is None:
            return None
        algorithm = self.instance.tasks[operation.task].algorithms[operation.algorithm]
        return algorithm if algorithm.on == "host" else None

    def written(self, operation: Operation) -> tuple[int, ...]:
        """Return the blocks of which an operation makes a new copy on the host."""
        if operation.kind == "offload" and operation.block is not None:
            return (operation.block,)
        if operation.task is not None and is_on_host(self.instance, operation):
            return self.instance.tasks[operation.task].outputs
        return ()

    def read(self, operation: Operation) -> tuple[int, ...]:
        """Return the blocks whose copy on the host an operation uses as it finds it."""
        if operation.kind == "prefetch" and operation.block is not None:
            return (operation.block,)
        if operation.task is not None and is_on_host(self.instance, operation):
            task = self.instance.tasks[operation.task]
            return (*task.inputs, *task.updates)
        return ()

    def _copy_acquisition(self, residence: HostResidence, block: Block, p: int) -> None:
        what = self.what(residence)
        if residence.bytes != block.bytes:
            self.fail(f"{what} has {residence.bytes} bytes, the block {block.bytes}")
        if p == NEVER and block.initially == "absent":
            self.fail(f"{what} is there from time 0, when the block does not exist")
        if p != NEVER and residence.block not in self.written(self.order.operations[p]):
            self.fail(f"{what} is acquired by {self.name(p)}, which does not write it")

    def _workspace_acquisition(self, residence: HostResidence) -> None:
        assert residence.workspace_of is not None
        what = self.what(residence)
        if residence.acquired_by != residence.workspace_of or residence.released_after != (
            residence.workspace_of,
        ):
            self.fail(f"{what} is not acquired and released by that run alone")
        algorithm = self.algorithm(self.order.operations[self.order.position[residence.workspace_of]])
        if algorithm is None:
            self.fail(f"{what}: only a run on the host has a workspace there")
        elif residence.bytes != algorithm.workspace_bytes:
            self.fail(f"{what} has {residence.bytes} bytes, the algorithm needs {algorithm.workspace_bytes}")

    def places(self) -> None:
        """Check that every residence lies in host memory and is aligned."""
        for residence in self.residences:
            if residence.offset is None:
                continue
            what, end = self.what(residence), residence.offset + residence.bytes
            if residence.offset % ALIGNMENT_BYTES:
                self.fail(f"{what} lies at {residence.offset}, not a multiple of {ALIGNMENT_BYTES}")
            if end > self.budget:
                self.fail(f"{what} ends at byte {end} of {self.budget} bytes of host memory")

    def separation(self) -> None:
        """Check that of residences with common addresses, one is released before the other is acquired."""
        for p, residence, holder in self.order.clashes(self.acquired, _ranges):
            by = "at time 0" if p == NEVER else f"by {self.name(p)}"
            self.fail(
                f"{self.what(residence)}, acquired {by}, overlaps {self.what(holder)}, "
                "which need not have been released by then"
            )

    def copies(self) -> None:
        """Go through the list: copies follow each other, and are there while they are read and at the end."""
        current: dict[int, HostResidence] = {}
        for residence in self.acquired.get(NEVER, []):
            if residence.block is None:
                continue
            if residence.block in current:
                self.fail(f"{self.what(residence)} is there twice from time 0")
            current[residence.block] = residence
        for p, operation in enumerate(self.order.operations):
            for d in self.read(operation):
                found = current.get(d)
                if found is not None and not self.order.lasts_through(found, p):
                    self.fail(f"{self.name(p)} uses {self.what(found)}, which may have been released by then")
            for residence in self.acquired.get(p, []):
                if residence.block is None:
                    continue
                before = current.get(residence.block)
                if before is not None and not self.order.released_before(before, p):
                    what = self.what(residence)
                    self.fail(f"{self.name(p)} acquires {what}, whose earlier one may still be live")
                current[residence.block] = residence
        for d, block in enumerate(self.instance.blocks):
            if block.finally_ == "host" and (last := current.get(d)) is not None and last.released_after:
                self.fail(f"{self.what(last)} must be there at the end, and is released")

    def carried(self) -> None:
        """Check that copies of carried blocks are there at both ends, in one place, as the schedule says."""
        last = {residence.block: residence for p in sorted(self.acquired) for residence in self.acquired[p]}
        first = {residence.block: residence for residence in self.acquired.get(NEVER, [])}
        for entry in self.schedule.states:
            begin, end = first.get(entry.block), last.get(entry.block)
            name, is_kept = self.instance.blocks[entry.block].name, end is not None and not end.released_after
            if entry.host != (begin is not None):
                self.fail(
                    f"the host copy of '{name}' is there from time 0 where it is carried, and only there"
                )
            if entry.host != is_kept:
                self.fail(f"the host copy of '{name}' lasts to the end where it is carried, and only there")
            if entry.host and begin is not None and end is not None and begin.offset != end.offset:
                self.fail(f"the host copy of '{name}' is carried at {begin.offset} and ends at {end.offset}")

    def peak(self, ends_ns: Sequence[int]) -> None:
        """Check the peak, and that host memory has room for what is there at the simulated times."""
        if self.schedule.memory_model == "divisible":
            starts = [operation.start_ns for operation in self.order.operations]
            peak = self.order.largest_sum(self.residences, starts, ends_ns)
            most = self.order.largest_sum_in_order(self.residences, starts, ends_ns)
            if most > self.budget:
                self.fail(f"at its simulated times {most} bytes are in {self.budget} bytes of host memory")
        else:
            peak = max(((copy.offset or 0) + copy.bytes for copy in self.residences), default=0)
        if self.schedule.host_peak_bytes != peak:
            self.fail(f"host_peak_bytes is {self.schedule.host_peak_bytes}, it is {peak}")


def _ranges(residence: HostResidence) -> tuple[tuple[int, int], ...]:
    """Return the bytes of a residence in host memory; there are none in divisible memory."""
    return () if residence.offset is None else ((residence.offset, residence.bytes),)
