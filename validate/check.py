"""The checker: proof that a schedule is valid whatever the operations' durations, or every reason why not.

A schedule is a program. So it is not enough that it is right at the predicted times. The proof rests on the
program's order alone: a stream runs its operations in list order, and an operation waits for those in
`after`. If the program orders every two operations that touch the same bytes, all executions have the same
effect as running the list from top to bottom. One pass over the list then shows which version of each block
every operation sees.

Only a divisible schedule is checked at its simulated times, because that model has no addresses: such a
schedule is a relaxation and never a solution.

This module imports only the instance and the schedule from this project, and so do its three
parts beside it, `order`, `times` and `host_memory`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from msgspec import UNSET

from ..instances.instance import Block, Instance
from .host_memory import host_reasons
from .order import NEVER, Order, in_words, is_on_host
from .schedule import Operation, Residence, Schedule, as_from_files
from .times import copy_ns, time_reasons


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The answer of a checker: whether the input is `valid`, and the reasons if it is not."""

    valid: bool
    reasons: tuple[str, ...]


def check(instance: Instance, schedule: Schedule, *, instance_sha256: str | None = None) -> CheckReport:
    """Prove that a schedule is valid for an instance of one GPU; `gpus.check` has the one for any number.

    Parameters
    ----------
    instance, schedule
        The schedule to check, and the instance that it is for.
    instance_sha256
        SHA-256 checksum of the instance's file, to compare with the checksum in the schedule.

    Returns
    -------
    CheckReport
        Whether the schedule is valid, and every reason if it is not.

    Raises
    ------
    FormatError
        When a file cannot hold the instance or the schedule, or the schedule names a task, an algorithm or a
        block that the instance does not have.
    """
    instance, schedule = as_from_files(instance, schedule)
    if instance.cluster is not UNSET:
        return CheckReport(False, ("GPUs of a cluster share a bus; pebbler.check proves their schedules",))
    proof = _Proof(instance, schedule)
    proof.reasons += origin_reasons(instance, schedule, instance_sha256)
    proof.program()
    reasons, ends = time_reasons(instance, schedule, proof.order)
    proof.reasons += reasons
    peak = proof.peak(ends)
    if schedule.peak_bytes != peak:
        proof.fail(f"peak_bytes is {schedule.peak_bytes}, it is {peak}")
    proof.reasons += host_reasons(instance, schedule, proof.order, ends)
    return CheckReport(not proof.reasons, tuple(proof.reasons))


def origin_reasons(instance: Instance, schedule: Schedule, instance_sha256: str | None) -> list[str]:
    """Return the reasons why a schedule is for another instance, as its names and checksums show."""
    reasons = []
    if schedule.instance != instance.name:
        reasons.append(f"the schedule is for instance '{schedule.instance}', not for '{instance.name}'")
    if schedule.instance_sha256 not in (None, instance_sha256) and instance_sha256 is not None:
        reasons.append("instance_sha256 is not the checksum of the instance's file")
    return reasons


def check_apart(instance: Instance, schedule: Schedule) -> tuple[list[str], int]:
    """Check the program of one GPU of several, whose times do not follow from its own program alone.

    Returns
    -------
    reasons
        Why the program is not valid; its times are not checked.
    peak_bytes
        The peak, at these times if memory is divisible.
    """
    proof = _Proof(instance, schedule)
    proof.program()
    peak = proof.peak([operation.end_ns for operation in schedule.operations])
    return proof.reasons, peak


@dataclass(slots=True)
class _Content:
    """State of one block during the pass over the list from top to bottom.

    `device` and `host` are the versions there, `latest` is the newest. `written_by` and `offloaded_by` have
    last written and copied what is on the device, `copied_by` has last written what is on the host, and
    `readers` have read it since.
    """

    device: int | None = None
    host: int | None = None
    latest: int = 0
    written_by: int = NEVER
    offloaded_by: int = NEVER
    copied_by: int = NEVER
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Proof:
    instance: Instance
    schedule: Schedule
    reasons: list[str] = field(default_factory=list)
    operations: tuple[Operation, ...] = field(init=False)
    position: dict[int, int] = field(init=False)
    order: Order = field(init=False)
    acquired: dict[int, list[Residence]] = field(init=False)
    kept: frozenset[int] = field(init=False)
    taken: dict[int, Residence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = Order(self.schedule)
        self.operations, self.position = self.order.operations, self.order.position
        self.acquired = defaultdict(list)
        for residence in self.schedule.residences:
            self.acquired[self.order.acquisition(residence)].append(residence)
        self.kept = frozenset(state.block for state in self.schedule.states if state.device)

    # --- words ------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Add a reason."""
        self.reasons.append(reason)

    def name(self, p: int) -> str:
        """Return operation `p` in words."""
        return in_words(self.instance, self.operations[p])

    def what(self, residence: Residence) -> str:
        """Return the content of a residence in words."""
        if residence.block is not None:
            return f"'{self.block(residence.block).name}'"
        assert residence.workspace_of is not None
        return f"the workspace of {self.name(self.position[residence.workspace_of])}"

    def block(self, index: int) -> Block:
        """Return the name of a block."""
        return self.instance.blocks[index]

    # --- rules ------------------------------------------------------------------------------------

    def program(self) -> None:
        """Check everything that does not depend on durations."""
        self.streams()
        self.first_runs()
        self.acquisitions()
        self.places()
        self.takeovers()
        self.separation()
        self.succession()
        self.contents()

    def streams(self) -> None:
        """Check streams: runs on compute or on the host, copies on their direction's engine, none is null."""
        single = self.instance.engines == "single"
        proper = {
            "run": "compute",
            "move": "compute",
            "offload": "copy" if single else "d2h",
            "prefetch": "copy" if single else "h2d",
        }
        for p, operation in enumerate(self.operations):
            stream = "host" if is_on_host(self.instance, operation) else proper[operation.kind]
            if operation.stream != stream:
                self.fail(f"{self.name(p)} is on stream {operation.stream}, not on {stream}")
            if operation.block is not None and copy_ns(self.instance, operation) is None:
                self.fail(f"{self.name(p)}: the instance's null time forbids it")

    def first_runs(self) -> None:
        """Check runs: every task runs, first runs of a stream are in order, only some tasks run again."""
        first: dict[int, int] = {}
        for p, operation in enumerate(self.operations):
            if operation.task is None or first.setdefault(operation.task, p) == p:
                continue
            if not self.instance.tasks[operation.task].recomputable:
                self.fail(f"{self.name(p)} runs again, but its task is not recomputable")
        last: dict[str, int] = {}
        for k, task in enumerate(self.instance.tasks):
            if k not in first:
                self.fail(f"task '{task.name}' never runs")
                continue
            p = first[k]
            before = last.get(self.operations[p].stream, NEVER)
            if p < before:
                earlier = self.operations[before].task
                assert earlier is not None
                self.fail(f"{self.name(p)} runs before '{self.instance.tasks[earlier].name}' has run")
            last[self.operations[p].stream] = max(p, before)

    def acquisitions(self) -> None:
        """Check that the right operation acquires each residence, with the right size and a later end."""
        for residence in self.schedule.residences:
            p = self.order.acquisition(residence)
            if residence.block is not None:
                self._block_acquisition(residence, p)
            else:
                self._workspace_acquisition(residence)
            for i in residence.released_after:
                q = self.position[i]
                if q != p and not self.order.ends_before(p, q):
                    self.fail(
                        f"{self.what(residence)} is released by {self.name(q)}, not after it is acquired"
                    )
        for p, operation in enumerate(self.operations):
            mine = self.acquired.get(p, [])
            for d in _must_acquire(operation):
                if sum(residence.block == d for residence in mine) != 1:
                    self.fail(f"{self.name(p)} must acquire exactly one residence of '{self.block(d).name}'")
            if operation.task is not None and operation.algorithm is not None:
                algorithm = self.instance.tasks[operation.task].algorithms[operation.algorithm]
                wanted = int(algorithm.workspace_bytes > 0 and algorithm.on == "device")
                held = sum(residence.workspace_of == operation.id for residence in mine)
                if held != wanted:
                    self.fail(f"{self.name(p)} has {held} workspaces, not {wanted}")

    def _block_acquisition(self, residence: Residence, p: int) -> None:
        assert residence.block is not None
        block = self.block(residence.block)
        if residence.bytes != block.bytes:
            self.fail(f"a residence of '{block.name}' has {residence.bytes} bytes, the block {block.bytes}")
        if p == NEVER:
            if block.initially != "device" and residence.block not in self.kept:
                self.fail(f"'{block.name}' is resident from time 0 but is not initially on the device")
            if sum(other.block == residence.block for other in self.acquired[NEVER]) > 1:
                self.fail(f"'{block.name}' is resident twice from time 0")
            return
        operation = self.operations[p]
        writes = _must_acquire(operation)
        if operation.task is not None and not is_on_host(self.instance, operation):
            writes = self._made(operation)
        if residence.block not in writes:
            self.fail(f"'{block.name}' is acquired by {self.name(p)}, which does not bring it there")

    def _workspace_acquisition(self, residence: Residence) -> None:
        assert residence.workspace_of is not None
        what = self.what(residence)
        operation = self.operations[self.position[residence.workspace_of]]
        if residence.acquired_by != residence.workspace_of or residence.released_after != (operation.id,):
            self.fail(f"{what} is not acquired and released by that run alone")
        if operation.task is None or operation.algorithm is None:
            self.fail(f"{what}: only a run has a workspace")
            return
        needed = self.instance.tasks[operation.task].algorithms[operation.algorithm].workspace_bytes
        if residence.bytes != needed:
            self.fail(f"{what} has {residence.bytes} bytes, the algorithm needs {needed}")

    def places(self) -> None:
        """Check that every residence lies in the pool and is aligned, and that pages are whole."""
        pool, unit = self.instance.pool_bytes, self.instance.alignment_bytes
        page = self.schedule.page_bytes
        if page is not None:
            unit = page
            for block in self.instance.blocks:
                if block.begin is not None and block.begin % page:
                    self.fail(f"part '{block.name}' begins inside a page")
        for residence in self.schedule.residences:
            what = self.what(residence)
            ranges = sorted(_ranges(residence))
            if any(start + size > following for (start, size), (following, _) in pairwise(ranges)):
                self.fail(f"{what} has the same page twice")
            for start, size in ranges:
                if start % unit:
                    self.fail(f"{what} lies at {start}, not a multiple of {unit}")
                if start + size > pool:
                    self.fail(f"{what} ends at byte {start + size} of a pool of {pool}")
            if page is not None and residence.extents is not None:
                mapped = sum(size for _, size in residence.extents)
                if (
                    any(size % page for _, size in residence.extents)
                    or mapped != -(-residence.bytes // page) * page
                ):
                    self.fail(
                        f"{what} has {mapped} bytes in its extents, not its {residence.bytes} in whole pages"
                    )

    def takeovers(self) -> None:
        """Check residences that take over the place of an input, and note which: their run lets them.

        The input's residence ends with the run, and all else that it waits for has ended when the run starts.
        """
        last: dict[int, Residence] = {}
        for p in sorted(self.acquired):
            here = self.acquired[p]
            for residence in here:
                if residence.takes_over:
                    self._takeover(p, residence, last)
            last.update((r.block, r) for r in here if r.block is not None)

    def _takeover(self, p: int, residence: Residence, last: dict[int, Residence]) -> None:
        what, pairs = self.what(residence), dict[int, int]()
        run = None if p == NEVER else self.operations[p]
        if run is not None and run.task is not None and run.algorithm is not None:
            pairs = dict(self.instance.tasks[run.task].algorithms[run.algorithm].takes_over)
        if residence.block not in pairs or run is None:
            by = "at time 0" if run is None else f"by {self.name(p)}"
            self.fail(f"{what}, acquired {by}, takes over a place and may not")
            return
        name, place = self.block(pairs[residence.block]).name, last.get(pairs[residence.block])
        if place is None or _ranges(place) != _ranges(residence):
            self.fail(f"{what} takes over the place of '{name}' in {self.name(p)} and lies elsewhere")
            return
        releases = self.order.releases(place)
        if p not in releases or not all(q == p or self.order.ends_before(q, p) for q in releases):
            self.fail(f"{what} takes over the place of '{name}', which does not end with {self.name(p)}")
            return
        self.taken[id(residence)] = place

    def separation(self) -> None:
        """Check that of residences with common addresses, one is released before the other is acquired."""
        for p, residence, holder in self.order.clashes(self.acquired, _ranges):
            if self.taken.get(id(residence)) is holder:
                continue
            by = "at time 0" if p == NEVER else f"by {self.name(p)}"
            self.fail(
                f"{self.what(residence)}, acquired {by}, overlaps {self.what(holder)}, "
                "which need not have been released by then"
            )

    def succession(self) -> None:
        """Check that at most one residence of a block is live at a time; a move has the old and the new."""
        last: dict[int, Residence] = {}
        for p in sorted(self.acquired):
            for residence in self.acquired[p]:
                if residence.block is None:
                    continue
                before = last.get(residence.block)
                last[residence.block] = residence
                if before is None or p == NEVER:
                    continue
                if self.operations[p].kind == "move":
                    releases = self.order.releases(before)
                    fine = p in releases and all(q == p or self.order.ends_before(q, p) for q in releases)
                else:
                    fine = self.order.released_before(before, p)
                if not fine:
                    name = self.block(residence.block).name
                    self.fail(f"{self.name(p)} acquires '{name}', whose earlier residence may still be live")

    def contents(self) -> None:
        """Go through the list, and check that each operation sees resident data in the right version."""
        state = [_Content(host=0 if copied else None) for copied in self._copied_at_start()]
        required = _versions(self.instance)
        current: dict[int, Residence] = {}
        for residence in self.acquired.get(NEVER, []):
            if residence.block is not None:
                current[residence.block] = residence
                state[residence.block].device = 0
        for p, operation in enumerate(self.operations):
            if operation.task is not None and is_on_host(self.instance, operation):
                self._host_run(p, operation.task, state, required[operation.task])
            elif operation.task is not None:
                self._run(p, operation, state, current, required[operation.task])
            elif operation.block is not None:
                self._copy(p, operation.block, state[operation.block], current)
        self._carried(state, current)
        for d, block in enumerate(self.instance.blocks):
            content = state[d]
            if block.finally_ == "host" and content.host != content.latest:
                self.fail(f"'{block.name}' must end on the host, which has no valid copy")
            if block.finally_ == "device":
                stay = current.get(d)
                if stay is None or stay.released_after or content.device != content.latest:
                    self.fail(f"'{block.name}' must end on the device, where it is not kept")

    def _copied_at_start(self) -> list[bool]:
        """Return, per block, whether the host has a copy at time 0: if it exists, or as the schedule says."""
        if self.instance.has_host_budget:
            kept = {copy.block for copy in self.schedule.host_copies if copy.acquired_by is None}
            return [d in kept for d in range(len(self.instance.blocks))]
        carried = {state.block for state in self.schedule.states if state.host}
        return [
            d in carried if block.initially == "carried" else block.initially != "absent"
            for d, block in enumerate(self.instance.blocks)
        ]

    def _carried(self, state: list[_Content], current: dict[int, Residence]) -> None:
        """Check that carried blocks end where they begin, as the schedule says."""
        named, carried = tuple(entry.block for entry in self.schedule.states), self.instance.carried
        if self.schedule.carried is not UNSET and not carried:
            self.fail("the schedule has a list 'carried', and the instance carries no block")
        if named != carried:
            self.fail(f"'carried' names blocks {list(named)}, the instance carries {list(carried)}")
            return
        first = {residence.block: residence for residence in self.acquired.get(NEVER, [])}
        for entry in self.schedule.states:
            d, name = entry.block, self.block(entry.block).name
            begin, end, content = first.get(d), current.get(d), state[d]
            is_kept = end is not None and not end.released_after
            if entry.device and begin is None:
                self.fail(f"'{name}' is carried on the device, where it is not from time 0")
            if entry.device and not (is_kept and content.device == content.latest):
                self.fail(f"'{name}' is carried on the device, where it is not kept in its latest version")
            if entry.device and begin is not None and end is not None and begin.offset != end.offset:
                self.fail(f"'{name}' is carried at offset {begin.offset} and ends at {end.offset}")
            if not entry.device and is_kept:
                self.fail(f"'{name}' is not carried on the device, where it is kept at the end")
            if entry.host and content.host != content.latest:
                self.fail(f"'{name}' is carried on the host, which has no valid copy at the end")

    def _run(
        self,
        p: int,
        run: Operation,
        state: list[_Content],
        current: dict[int, Residence],
        required: dict[int, int],
    ) -> None:
        """Check a run on the device, which reads and makes what its algorithm does, and nothing else."""
        assert run.task is not None
        assert run.algorithm is not None
        task = self.instance.tasks[run.task]
        own = task.algorithms[run.algorithm].inputs
        reads, made = (*(task.inputs if own is UNSET else own), *task.updates), self._made(run)
        for residence in self.acquired.get(p, []):
            if residence.block is not None:
                current[residence.block] = residence
        for d in (*reads, *made):
            self._is_there(p, d, current)
        for d in reads:
            if state[d].device != required[d]:
                self.fail(
                    f"{self.name(p)} needs version {required[d]} of '{self.block(d).name}', "
                    f"and version {state[d].device} is there"
                )
        for d in (*task.updates, *made):
            content = state[d]
            if not self.order.ends_before(content.offloaded_by, p):
                self.fail(f"{self.name(p)} writes '{self.block(d).name}' while an offload may be copying it")
            content.device = self._next(p, d, content, required)
            content.written_by = p
        self._one_base(p, (*reads, *made), current)

    def _made(self, run: Operation) -> tuple[int, ...]:
        """Return the outputs that a run's algorithm makes."""
        assert run.task is not None
        assert run.algorithm is not None
        task = self.instance.tasks[run.task]
        own = task.algorithms[run.algorithm].outputs
        return task.outputs if own is UNSET else own

    def _host_run(self, p: int, k: int, state: list[_Content], required: dict[int, int]) -> None:
        """Check a run on the host, which reads and writes copies there, and touches nothing on the device."""
        task = self.instance.tasks[k]
        for d in (*task.inputs, *task.updates):
            if state[d].host != required[d]:
                self.fail(
                    f"{self.name(p)} needs version {required[d]} of '{self.block(d).name}' on the host, "
                    f"and version {state[d].host} is there"
                )
            self._reads_copy(p, d, state[d])
        for d in (*task.updates, *task.outputs):
            self._writes_copy(p, d, state[d])
            state[d].host = self._next(p, d, state[d], required)

    def _next(self, p: int, d: int, content: _Content, required: dict[int, int]) -> int:
        """Return the version of a block that a run writes, after checking that there is no later one."""
        version = required[d] + 1
        if version < content.latest:
            self.fail(f"{self.name(p)} writes '{self.block(d).name}' again after a later update of it")
        content.latest = max(content.latest, version)
        return version

    def _reads_copy(self, p: int, d: int, content: _Content) -> None:
        """Check that what has written the copy of a block on the host has ended before it is read."""
        if not self.order.ends_before(content.copied_by, p):
            by = self.operations[content.copied_by].kind
            self.fail(
                f"{self.name(p)} reads the host copy of '{self.block(d).name}' while "
                f"{'an offload' if by == 'offload' else 'a run'} may be writing it"
            )
        content.readers.append(p)

    def _writes_copy(self, p: int, d: int, content: _Content) -> None:
        """Check that all that has written or read the host copy of a block has ended before a write."""
        if not all(q == p or self.order.ends_before(q, p) for q in (content.copied_by, *content.readers)):
            self.fail(
                f"{self.name(p)} writes the host copy of '{self.block(d).name}', which may still be in use"
            )
        content.copied_by, content.readers = p, []

    def _copy(self, p: int, d: int, content: _Content, current: dict[int, Residence]) -> None:
        kind, name = self.operations[p].kind, self.block(d).name
        if kind != "prefetch":
            self._is_there(p, d, current)
            if content.device != content.latest:
                self.fail(f"{self.name(p)} copies version {content.device} of '{name}', not {content.latest}")
            if not self.order.ends_before(content.written_by, p):
                self.fail(f"{self.name(p)} copies '{name}' while a run may be writing it")
        if kind == "offload":
            self._writes_copy(p, d, content)
            content.host, content.offloaded_by = content.device, p
            return
        if kind == "prefetch":
            if content.host is None or content.host != content.latest:
                self.fail(f"{self.name(p)} reads a host copy of '{name}' that is missing or stale")
            self._reads_copy(p, d, content)
            content.device = content.host
        elif not self.order.ends_before(content.offloaded_by, p):
            self.fail(f"{self.name(p)} moves '{name}' while an offload may be copying it")
        content.written_by, content.offloaded_by = p, NEVER
        for residence in self.acquired.get(p, []):
            if residence.block == d:
                current[d] = residence

    def _is_there(self, p: int, d: int, current: dict[int, Residence]) -> None:
        """Check that the last residence of the block is there from before `p` starts until it has ended."""
        name = self.block(d).name
        residence = current.get(d)
        if residence is None:
            self.fail(f"{self.name(p)} needs '{name}', which is not on the device")
            return
        acquisition = self.order.acquisition(residence)
        if acquisition != p and not self.order.ends_before(acquisition, p):
            self.fail(f"{self.name(p)} uses '{name}', which need not have arrived by then")
        if not self.order.lasts_through(residence, p):
            self.fail(f"{self.name(p)} uses '{name}', which may have been released by then")

    def _one_base(self, p: int, blocks: Iterable[int], current: dict[int, Residence]) -> None:
        """Check that a run's parts of one tensor lie at base + begin for one base (contiguous)."""
        if self.schedule.memory_model != "contiguous":
            return
        bases: dict[str, set[int]] = defaultdict(set)
        for d in blocks:
            block, residence = self.block(d), current.get(d)
            if block.tensor is not None and block.begin is not None and residence is not None:
                bases[block.tensor].add((residence.offset or 0) - block.begin)
        for tensor, found in bases.items():
            if len(found) > 1:
                self.fail(f"{self.name(p)} touches parts of '{tensor}' that do not lie at one base")

    def peak(self, ends: list[int]) -> int:
        """Return the peak in bytes, after checking that divisible memory holds the live data at these times.

        In the other memory models, `places` has checked all residences in the pool, so that only the resident
        bytes remain to be checked.
        """
        if self.schedule.memory_model == "divisible":
            starts = [operation.start_ns for operation in self.operations]
            peak = self.order.largest_sum(self.schedule.residences, starts, ends)
            most = self.order.largest_sum_in_order(self.schedule.residences, starts, ends)
            if most > self.instance.pool_bytes:
                self.fail(
                    f"at its simulated times {most} bytes are live in a pool of {self.instance.pool_bytes}"
                )
        else:
            residences = self.schedule.residences
            peak = max((start + size for r in residences for start, size in _ranges(r)), default=0)
            if not residences and self.instance.pool_bytes < 0:
                self.fail(
                    f"{self.instance.resident_bytes} bytes are resident, more than the budget of "
                    f"{self.instance.budget_bytes}"
                )
        return self.instance.resident_bytes + peak


def _versions(instance: Instance) -> list[dict[int, int]]:
    """Return, per task, the version of each block that it finds: how often earlier tasks have written it."""
    count = [0] * len(instance.blocks)
    required = []
    for task in instance.tasks:
        required.append({d: count[d] for d in task.blocks})
        for d in (*task.outputs, *task.updates):
            count[d] += 1
    return required


def _must_acquire(operation: Operation) -> tuple[int, ...]:
    """Return the blocks for which an operation must acquire a residence; a prefetch and a move, their own."""
    if operation.kind in ("prefetch", "move") and operation.block is not None:
        return (operation.block,)
    return ()


def _ranges(residence: Residence) -> tuple[tuple[int, int], ...]:
    """Return the byte ranges of a residence in the pool; there are none in divisible memory."""
    if residence.offset is not None:
        return ((residence.offset, residence.bytes),)
    return residence.extents or ()
