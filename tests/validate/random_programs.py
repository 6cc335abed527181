"""Random tiny instances, and random valid schedules on them with every kind of operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from pebbler.heuristics.methods import Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import least_budget
from pebbler.instances.units import PAGE_BYTES, ceil_to
from pebbler.validate.schedule import Carried, HostResidence, MemoryModel, Operation, Residence, Schedule

MODELS: tuple[MemoryModel, ...] = ("contiguous", "paged", "divisible")


@dataclass(slots=True)
class _Blocks:
    """Blocks made so far; a group is a whole block or all parts of one tensor."""

    rng: Random
    model: MemoryModel
    alignment: int
    blocks: list[Block] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)

    def size(self) -> int:
        if self.model == "paged":
            return max(1, self.rng.randint(1, 3) * PAGE_BYTES - self.rng.choice((0, 0, 1, 777)))
        return self.rng.choice((1, 3, 4, 100, 511, 512, 513, 1024, self.rng.randint(1, 2000)))

    def time(self, null: float) -> int | None:
        return None if self.rng.random() < null else self.rng.choice((0, 1, 5, self.rng.randint(0, 40)))

    def add(self, initially: str) -> tuple[int, ...]:
        count = 1 if self.rng.random() < 0.75 else self.rng.randint(2, 3)
        tensor = None if count == 1 else f"t{len(self.groups)}"
        begin = 0
        group = []
        for _ in range(count):
            size = self.size()
            d = len(self.blocks)
            group.append(d)
            block = Block(
                name=f"b{d}",
                bytes=size,
                offload_ns=self.time(0.15),
                prefetch_ns=self.time(0.15 if initially != "host" else 0.0),
                move_ns=self.time(0.2),
                initially=initially,  # type: ignore[arg-type]
                tensor=tensor,
                begin=None if tensor is None else begin,
            )
            self.blocks.append(block)
            unit = PAGE_BYTES if self.model == "paged" else self.alignment
            begin += ceil_to(size, unit) + self.rng.choice((0, 0, unit))
        self.groups.append(tuple(group))
        return tuple(group)


def random_instance(rng: Random, model: MemoryModel) -> Instance:
    """Draw an instance of three to eight tasks, with a budget that often is tight."""
    alignment = rng.choice((1, 4, 512))
    made = _Blocks(rng, model, alignment)
    for _ in range(rng.randint(1, 3)):
        made.add(rng.choice(("device", "device", "host")))
    count = rng.randint(3, 8)
    chain = rng.random() < 0.4
    tasks = []
    for k in range(count):
        known = list(made.groups)
        read = [known[-1]] if chain else rng.sample(known, min(len(known), rng.randint(1, 2)))
        updated = [group for group in read if rng.random() < 0.25]
        read = [group for group in read if group not in updated]
        written = (
            [] if k == count - 1 and updated else [made.add("absent") for _ in range(rng.choice((1, 1, 2)))]
        )
        tasks.append(
            Task(
                name=f"k{k}",
                inputs=_flat(read),
                outputs=_flat(written),
                updates=_flat(updated),
                algorithms=tuple(
                    Algorithm(
                        name=f"a{a}",
                        duration_ns=rng.choice((0, 1, 7, rng.randint(0, 60))),
                        workspace_bytes=0 if rng.random() < 0.5 else made.size(),
                    )
                    for a in range(rng.randint(1, 3))
                ),
                recomputable=rng.random() < 0.6,
            )
        )
    blocks = tuple(
        msgspec.structs.replace(block, finally_=_end_place(rng, block)) if rng.random() < 0.3 else block
        for block in made.blocks
    )
    resident = rng.choice((0, 0, 1000))
    instance = Instance(
        name="random",
        engines=rng.choice(("duplex", "single")),
        budget_bytes=0,
        resident_bytes=resident,
        alignment_bytes=alignment,
        blocks=blocks,
        tasks=tuple(tasks),
    )
    pool = least_budget(instance) - resident
    if model == "paged":
        pages = [ceil_to(block.bytes, PAGE_BYTES) for block in blocks]
        scratch = [max(ceil_to(a.workspace_bytes, PAGE_BYTES) for a in task.algorithms) for task in tasks]
        pool = max(
            sum(pages[d] for d in task.blocks) + room for task, room in zip(tasks, scratch, strict=True)
        )
    pool = int(pool * rng.choice((1.0, 1.1, 1.3, 1.6, 2.0)))
    return msgspec.structs.replace(instance, budget_bytes=resident + pool)


def random_schedule(instance: Instance, model: MemoryModel, rng: Random) -> Schedule | None:
    """Draw a valid schedule; None when the random decisions ran into a dead end."""
    try:
        driver = _Driver(instance, model, rng)
        for k in range(len(instance.tasks)):
            driver.wander(k)
            driver.run(k)
            driver.tidy(k)
        driver.finish()
        schedule = driver.builder.finish("random")
    except (_DeadEndError, OutOfMemoryError, Refusal):
        return None
    return _reworded(schedule, rng)


def random_case(
    rng: Random,
    *,
    host: bool = False,
    carried: bool = False,
    own_inputs: bool = False,
    own_outputs: bool = False,
) -> tuple[Instance, Schedule]:
    """Draw an instance and a valid schedule for it; all memory models.

    With `host`, host memory ends; with `carried`, rounds carry blocks; with `own_inputs`, algorithms read
    different blocks, and some run of the schedule reads other blocks than its task's inputs; with
    `own_outputs`, they may leave out outputs, and some run of the schedule does.
    """
    draw = random_round if carried else random_schedule
    while True:
        model = rng.choice(("contiguous", "contiguous", "paged", "divisible"))
        instance = random_instance(rng, model)
        if carried:
            instance = with_carried(instance, rng)
        if own_inputs:
            instance = with_own_inputs(instance, rng)
        if own_outputs:
            instance = with_own_outputs(instance, rng)
        if host:
            instance = with_host_budget(instance, rng)
        for _ in range(5):
            schedule = draw(instance, model, rng)
            if schedule is None or (host and not schedule.host_residences):
                continue
            if own_inputs and not any(reads_otherwise(instance, o) for o in schedule.operations):
                continue
            if not own_outputs or any(leaves_out(instance, o) for o in schedule.operations):
                return instance, schedule


def with_own_inputs(instance: Instance, rng: Random) -> Instance:
    """Let algorithms of most tasks read some of the task's inputs only, or other tensors instead."""
    groups: dict[str, list[int]] = {}
    for d, block in enumerate(instance.blocks):
        groups.setdefault(block.tensor or block.name, []).append(d)
    exists, tasks = {d for d, b in enumerate(instance.blocks) if b.initially != "absent"}, []
    for task in instance.tasks:
        there = [group for group in groups.values() if exists.issuperset(group)]
        exists.update(task.outputs)
        chosen = rng.sample(there, rng.randint(0, min(len(there), 2)))
        read = _flat([group for group in chosen if not {*group} & {*task.updates}])
        if {*read} != {*task.inputs} and rng.random() < 0.8:
            own = msgspec.structs.replace(rng.choice(task.algorithms), name="own", inputs=read)
            at = rng.randint(0, len(task.algorithms))
            algorithms = (*task.algorithms[:at], own, *task.algorithms[at:])
            task = msgspec.structs.replace(task, algorithms=algorithms)
        tasks.append(task)
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def with_own_outputs(instance: Instance, rng: Random) -> Instance:
    """Let algorithms leave out most of the outputs that they may; what has read them always need not."""
    tasks = list(instance.tasks)
    for d, (block, writers) in enumerate(zip(instance.blocks, instance.writers, strict=True)):
        is_free = block.finally_ == "anywhere" and block.tensor is None and block.initially == "absent"
        if not is_free or len(writers) != 1 or rng.random() < 0.3:
            continue
        (k,) = writers
        own = rng.choice(tasks[k].algorithms)
        made = tasks[k].outputs if own.outputs is msgspec.UNSET else own.outputs
        less = msgspec.structs.replace(own, outputs=tuple(o for o in made if o != d))
        tasks[k] = msgspec.structs.replace(tasks[k], algorithms=(*tasks[k].algorithms, less))
        for i, task in enumerate(tasks):
            if d in task.must_read:
                read = tuple(x for x in task.inputs if x != d)
                other = msgspec.structs.replace(task.algorithms[0], inputs=read, outputs=msgspec.UNSET)
                tasks[i] = msgspec.structs.replace(task, algorithms=(*task.algorithms, other))
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


def leaves_out(instance: Instance, operation: Operation) -> bool:
    """Whether an operation is a run with an algorithm that leaves out some output."""
    if operation.task is None or operation.algorithm is None:
        return False
    return instance.tasks[operation.task].algorithms[operation.algorithm].outputs is not msgspec.UNSET


def reads_otherwise(instance: Instance, operation: Operation) -> bool:
    """Whether an operation is a run with an algorithm that has inputs of its own."""
    if operation.task is None or operation.algorithm is None:
        return False
    return instance.tasks[operation.task].algorithms[operation.algorithm].inputs is not msgspec.UNSET


def with_host_budget(instance: Instance, rng: Random) -> Instance:
    """Give host memory a budget: from what one block takes to more than all blocks take."""
    sizes = [ceil_to(block.bytes, 512) for block in instance.blocks]
    several = sum(rng.sample(sizes, rng.randint(1, min(len(sizes), 3))))
    budget = rng.choice((several, several, sum(sizes) // 2, sum(sizes), 2 * sum(sizes)))
    return msgspec.structs.replace(instance, host_budget_bytes=budget - rng.choice((0, 0, 1, 511)))


def with_carried(instance: Instance, rng: Random) -> Instance:
    """Let rounds carry some of the blocks that exist from the start, one at least."""
    first = [d for d, block in enumerate(instance.blocks) if block.initially != "absent"]
    chosen = rng.sample(first, rng.randint(1, len(first)))
    blocks = tuple(
        msgspec.structs.replace(block, initially="carried", finally_="anywhere") if d in chosen else block
        for d, block in enumerate(instance.blocks)
    )
    return msgspec.structs.replace(instance, blocks=blocks)


def random_round(instance: Instance, model: MemoryModel, rng: Random) -> Schedule | None:
    """Draw a valid schedule of an instance with carried blocks; None at a dead end.

    It is built on the instance in which each begins and ends in the place that is drawn for it.
    """
    states = []
    for d in instance.carried:
        ways = [(True, False), (False, True)]
        if not (instance.has_host_budget and instance.writers[d]):
            ways.append((True, True))  # else what the host has at first is stale before anything reads it
        on_device, on_host = rng.choice(ways)
        states.append(Carried(block=d, device=on_device, host=on_host))
    try:
        driver = _RoundDriver(instance, model, rng, states)
        for k in range(len(instance.tasks)):
            driver.wander(k)
            driver.run(k)
            driver.tidy(k)
        driver.finish()
        schedule = driver.builder.finish("random")
    except (_DeadEndError, OutOfMemoryError, Refusal):
        return None
    return _reworded(msgspec.structs.replace(schedule, carried=tuple(states)), rng)


class _DeadEndError(Exception):
    """The decisions taken so far leave no way to go on."""


class _Driver:
    """Random decisions that keep a program valid."""

    def __init__(self, instance: Instance, model: MemoryModel, rng: Random) -> None:
        self.instance = instance
        self.rng = rng
        initially = [d for d, block in enumerate(instance.blocks) if block.initially == "device"]
        self.builder = self._builder(model, initially)
        self.done = 0
        self.restless = instance.has_host_budget or rng.random() < 0.7

    def _builder(self, model: MemoryModel, initially: list[int]) -> ProgramBuilder:
        rng = self.rng
        copies = None
        if self.instance.has_host_budget and rng.random() < 0.5:
            begins = [d for d, block in enumerate(self.instance.blocks) if block.initially != "absent"]
            copies = {d: None for d in begins if d not in initially or rng.random() < 0.5}
        return ProgramBuilder(
            self.instance,
            memory=model,
            fit=rng.choice(("best", "first", "exact-first")),
            one_copy_queue=rng.random() < 0.2,
            start=None if rng.random() < 0.5 else {d: None for d in initially if rng.random() < 0.7},
            copies=copies,
        )

    def waits(self) -> list[int]:
        """Now and then, waits that nothing asks for."""
        issued = len(self.builder.ends)
        if not issued or self.rng.random() < 0.8:
            return []
        return self.rng.sample(range(issued), min(issued, self.rng.randint(1, 2)))

    def version(self, d: int, before: int) -> int:
        return sum(k < before for k in self.instance.writers[d])

    def needed_later(self, d: int) -> bool:
        return self.instance.blocks[d].finally_ != "anywhere" or any(
            k >= self.done for k in self.instance.uses[d]
        )

    def may_rerun(self, k: int) -> bool:
        """Whether task k may run again now: nothing that it touches has another version than then."""
        task = self.instance.tasks[k]
        return (
            k < self.done
            and task.recomputable
            and not task.updates
            and all(self.version(d, self.done) == self.version(d, k) for d in task.may_read)
            and all(self.version(d, self.done) == 1 for d in task.outputs)
        )

    def run(self, k: int, keep: frozenset[int] = frozenset()) -> None:
        task = self.instance.tasks[k]
        choices = list(range(len(task.algorithms)))
        if task.reads_vary:
            choices = [self.rng.choice(choices)]
        read = (*task.reads(choices[0]), *task.updates)
        keep |= set(task.touches(choices[0]))
        for d in self.rng.sample(read, len(read)):
            self.bring(d, keep)
        for d in read:
            self.bring(d, keep)
        if not all(map(self.builder.is_resident, read)):
            raise _DeadEndError  # a second run has left it out
        self.rng.shuffle(choices)
        while True:
            for a in choices:
                try:
                    self.builder.run(k, a, after=self.waits())
                    return
                except OutOfMemoryError:
                    continue
            self.evict_one(keep)

    def bring(self, d: int, keep: frozenset[int]) -> None:
        """Have a block on the device: it is there, or on the host, or its producer can run again."""
        builder = self.builder
        if builder.is_resident(d):
            return
        while builder.on_host(d) and self.instance.blocks[d].prefetch_ns is not None:
            try:
                builder.prefetch(d, after=self.waits())
                return
            except OutOfMemoryError:
                self.evict_one(keep)  # which may drop this copy, where host memory ends
        producers = self.instance.writers[d]
        if not producers or not self.may_rerun(producers[0]) or len(keep) > 12:
            raise _DeadEndError
        self.run(producers[0], keep)

    def evict_one(self, keep: frozenset[int]) -> None:
        candidates = [d for d in self.builder.resident_blocks() if d not in keep]
        self.rng.shuffle(candidates)
        if not any(self.evict(d) for d in candidates):
            raise _DeadEndError

    def evict(self, d: int) -> bool:
        """Give a block's place back, after a copy to the host if it is needed again."""
        block = self.instance.blocks[d]
        builder = self.builder
        if self.needed_later(d):
            producers = self.instance.writers[d]
            again = bool(producers) and self.may_rerun(producers[0]) and block.finally_ == "anywhere"
            if again and self.rng.random() < 0.5:
                builder.release(d)
                return True
            if block.prefetch_ns is None and block.finally_ != "host":
                return False
            if not builder.on_host(d):
                if block.offload_ns is None:
                    return False
                self.offload(d)
        builder.release(d)
        return True

    def offload(self, d: int) -> None:
        """Copy a block to the host, where that has a budget now and then to a place of our choice."""
        if not self.instance.has_host_budget:
            self.builder.offload(d, after=self.waits())
            return
        last = max(int(self.instance.host_budget_bytes) - self.instance.blocks[d].bytes, 0) // 512
        places = [512 * self.rng.randint(0, last)] if self.rng.random() < 0.3 else []
        for at in (*places, None):
            while True:
                try:
                    self.builder.offload(d, after=self.waits(), host_at=at)
                    return
                except Refusal:
                    if at is not None or not self.drop_copy():
                        break
        raise _DeadEndError

    def drop_copy(self) -> bool:
        """Drop a copy of what is on the device, too, or not needed any more; return whether there is one."""
        builder = self.builder
        spare = [
            d
            for d in range(len(self.instance.blocks))
            if builder.on_host(d) and (builder.is_resident(d) or not self.needed_later(d))
        ]
        if spare:
            builder.drop_copy(self.rng.choice(spare))
        return bool(spare)

    def wander(self, k: int) -> None:
        """Offload, evict, prefetch, move and run again without need."""
        builder = self.builder
        while self.restless and self.rng.random() < 0.6:
            d = self.rng.randrange(len(self.instance.blocks))
            block = self.instance.blocks[d]
            choices = ["offload", "evict", "prefetch", "move", "run", "move"]
            if self.instance.has_host_budget:
                choices += ["drop", "offload", "evict"]
            try:
                match self.rng.choice(choices):
                    case "offload" if builder.is_resident(d) and block.offload_ns is not None:
                        self.offload(d)
                    case "drop":
                        self.drop_copy()
                    case "evict" if builder.is_resident(d):
                        self.evict(d)
                    case "prefetch" if (
                        builder.on_host(d) and not builder.is_resident(d) and block.prefetch_ns is not None
                    ):
                        builder.prefetch(d, after=self.waits())
                    case "move" if builder.is_resident(d) and block.move_ns is not None and not block.tensor:
                        builder.move(d, after=self.waits())
                    case "run" if k and self.may_rerun(again := self.rng.randrange(k)):
                        task = self.instance.tasks[again]
                        if all(builder.is_resident(i) for i in task.may_read):
                            builder.run(again, self.rng.randrange(len(task.algorithms)), after=self.waits())
                    case _:
                        pass
            except OutOfMemoryError:
                pass

    def tidy(self, k: int) -> None:
        """Count the task as done; usually release what nothing needs any more."""
        self.done = k + 1
        for d in self.builder.resident_blocks():
            if not self.needed_later(d) and self.rng.random() < 0.8:
                self.builder.release(d)

    def finish(self) -> None:
        for d, block in enumerate(self.instance.blocks):
            if block.finally_ == "host" and not self.builder.on_host(d):
                if block.offload_ns is None:
                    raise _DeadEndError
                self.bring(d, frozenset())
                self.offload(d)
        last = frozenset(d for d, block in enumerate(self.instance.blocks) if block.finally_ == "device")
        for d in sorted(last):
            self.bring(d, last)


class _RoundDriver(_Driver):
    """Random decisions that end a round where it begins.

    What is there from time 0 goes only after something has used it, since a release names an operation.
    """

    def __init__(
        self, instance: Instance, model: MemoryModel, rng: Random, states: Sequence[Carried]
    ) -> None:
        self.on_device = {state.block for state in states if state.device}
        self.on_host = {state.block for state in states if state.host}
        self.saved: set[int] = set()
        self.copies: dict[int, int | None] = {}
        blocks = list(instance.blocks)
        for state in states:
            blocks[state.block] = msgspec.structs.replace(
                blocks[state.block],
                initially="device" if state.device else "host",
                finally_="host" if state.host else "device",
            )
        super().__init__(msgspec.structs.replace(instance, blocks=tuple(blocks)), model, rng)
        if not all(self.builder.is_resident(d) for d in self.on_device):
            raise _DeadEndError
        self.homes = {d: self.builder.ranges_of(d)[0][0] for d in self.on_device}
        for d in self.on_device - self.on_host:
            self.builder.drop_copy(d)

    def _builder(self, model: MemoryModel, initially: list[int]) -> ProgramBuilder:
        rng, end = self.rng, 0
        only = {d for d, block in enumerate(self.instance.blocks) if block.initially == "host"}
        for d in rng.sample(sorted(self.on_host | only), len(self.on_host | only)):
            self.copies[d] = None if model == "divisible" else end
            end += ceil_to(self.instance.blocks[d].bytes, 512) + rng.choice((0, 0, 512))
        return ProgramBuilder(
            self.instance,
            memory=model,
            fit=rng.choice(("best", "first", "exact-first")),
            one_copy_queue=rng.random() < 0.2,
            start={d: None for d in initially if d in self.on_device or rng.random() < 0.7},
            copies=self.copies if self.instance.has_host_budget else None,
        )

    def is_unread(self, d: int) -> bool:
        """Whether the host has a block's copy from time 0, and nothing has read it."""
        copy = self.builder.host_copy_of(d)
        return copy is not None and copy.acquired_by is None and not copy.readers

    def is_home(self, d: int) -> bool:
        """Whether the host has the latest version of a block in the copy's place from time 0."""
        copy = self.builder.host_copy_of(d)
        if copy is None or not self.builder.on_host(d):
            return self.builder.on_host(d)
        return self.copies[d] in (None, copy.ranges[0][0])

    def evict(self, d: int) -> bool:
        stay = self.builder.stay_of(d)
        if d in self.on_device and stay.acquired_by is None and not stay.users:
            return False
        return super().evict(d)

    def offload(self, d: int) -> None:
        if not self.is_unread(d) and d not in self.saved:
            super().offload(d)

    def drop_copy(self) -> bool:
        builder = self.builder
        spare = [
            d
            for d in builder.resident_blocks()
            if builder.on_host(d) and not self.is_unread(d) and d not in self.saved
        ]
        if spare:
            builder.drop_copy(self.rng.choice(spare))
        return bool(spare)

    def finish(self) -> None:
        for d in sorted(self.on_host):
            self.save(d)
        super().finish()
        last = frozenset(d for d, block in enumerate(self.instance.blocks) if block.finally_ == "device")
        last |= self.on_device
        for d in sorted(self.on_device):
            self.bring(d, last)
        for d in sorted(self.on_device) if self.builder.memory == "contiguous" else ():
            if self.builder.ranges_of(d)[0][0] != self.homes[d]:
                self.bring_home(d, last)
        for d in self.on_host - self.on_device:
            if self.builder.is_resident(d):
                self.builder.release(d)

    def save(self, d: int) -> None:
        """Have a copy on the host, in its place from time 0."""
        while not self.is_home(d):
            if self.instance.blocks[d].offload_ns is None:
                raise _DeadEndError
            self.bring(d, frozenset())
            try:
                self.builder.offload(d, after=self.waits(), host_at=self.copies[d])
            except Refusal:
                if not self.drop_copy():
                    raise
        self.saved.add(d)

    def bring_home(self, d: int, keep: frozenset[int]) -> None:
        """Have a block at its offset from time 0, by a move or by two copies."""
        block, at = self.instance.blocks[d], self.homes[d]
        moves = block.move_ns is not None and self.rng.random() < 0.5
        if not moves and not self.evict(d):
            raise _DeadEndError
        while True:
            try:
                self.builder.move(d, at=at) if moves else self.builder.prefetch(d, at=at)
                return
            except OutOfMemoryError:
                self.evict_one(keep)


def _reworded(schedule: Schedule, rng: Random) -> Schedule:
    """The same program in other words: other ids, another topological order, extents cut into pages."""
    operations = list(schedule.operations)
    if rng.random() < 0.5:
        operations = _reordered(operations, rng)
    name = {operation.id: operation.id for operation in operations}
    if rng.random() < 0.5:
        fresh = rng.sample(range(3 * len(operations)), len(operations))
        name = {operation.id: i for operation, i in zip(operations, fresh, strict=True)}
    residences = list(schedule.residences)
    if rng.random() < 0.5:
        rng.shuffle(residences)
    cut = rng.random() < 0.5
    return msgspec.structs.replace(
        schedule,
        operations=tuple(
            msgspec.structs.replace(
                operation,
                id=name[operation.id],
                after=tuple(name[i] for i in rng.sample(operation.after, len(operation.after))),
            )
            for operation in operations
        ),
        residences=tuple(
            msgspec.structs.replace(
                residence,
                workspace_of=None if residence.workspace_of is None else name[residence.workspace_of],
                acquired_by=None if residence.acquired_by is None else name[residence.acquired_by],
                released_after=tuple(name[i] for i in residence.released_after),
                extents=_pages(residence) if cut else residence.extents,
            )
            for residence in residences
        ),
        host_residences=schedule.host_residences and _renamed(schedule.host_copies, name, rng),
    )


def _renamed(
    copies: tuple[HostResidence, ...], name: dict[int, int], rng: Random
) -> tuple[HostResidence, ...]:
    """The copies with other ids and in another order."""
    return tuple(
        msgspec.structs.replace(
            copy,
            acquired_by=None if copy.acquired_by is None else name[copy.acquired_by],
            released_after=tuple(name[i] for i in copy.released_after),
        )
        for copy in rng.sample(copies, len(copies))
    )


def _pages(residence: Residence) -> tuple[tuple[int, int], ...] | None:
    if residence.extents is None:
        return None
    return tuple(
        (page, PAGE_BYTES)
        for offset, size in residence.extents
        for page in range(offset, offset + size, PAGE_BYTES)
    )


def _reordered(operations: list[Operation], rng: Random) -> list[Operation]:
    """Another order of the list with the same streams and waits."""
    waiting = list(operations)
    ordered: list[Operation] = []
    while waiting:
        issued = {operation.id for operation in ordered}
        seen: set[str] = set()
        ready = []
        for operation in waiting:
            if operation.stream not in seen and issued.issuperset(operation.after):
                ready.append(operation)
            seen.add(operation.stream)
        chosen = rng.choice(ready)
        waiting.remove(chosen)
        ordered.append(chosen)
    return ordered


def _end_place(rng: Random, block: Block) -> str:
    if block.offload_ns is None:
        return "device"
    return rng.choice(("device", "host"))


def _flat(groups: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(d for group in groups for d in group)
