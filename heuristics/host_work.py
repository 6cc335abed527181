"""Work on the host, as methods plan it: some tasks run there before all copies, and some after them.

Methods plan the device's tasks, on an instance of those alone. A block whose last version is read on the host
must end on the host there; a block that the host writes first begins on the host. The program is then
completed: runs whose data is on the host from the start come first, and the copies that touch what they touch
wait for them; the other runs come last, each after the copies of what it reads. So a task on the host cannot
both read what the device has made and write what the device uses later. A step of an optimizer does not.

In paged memory, what it updates may be on the device at both ends as well, if the device only reads it. It
then leaves after its last use, and returns after the update.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from ..instances.instance import Block, Instance, Task
from ..instances.origin import LayerTasks
from ..instances.units import ceil_to
from ..validate.host_memory import ALIGNMENT_BYTES
from ..validate.measures import with_host
from ..validate.schedule import HostResidence, MemoryModel, Operation, Schedule
from .carried import states_of
from .choices import by_speed
from .gaps import Gap, Guide
from .methods import Answer, Limits, Method, Refusal
from .program.timeline import simulated


class HostRun(NamedTuple):
    """A run on the host after the device's tasks.

    Attributes
    ----------
    duration_ns
        Its time in nanoseconds.
    reads
        Blocks whose last copies out it waits for.
    returns
        Blocks that come to the device after it if they were there at first.
    """

    duration_ns: int
    reads: tuple[int, ...]
    returns: tuple[int, ...]


def on_sides(instance: Instance, hosted: frozenset[int], memory: MemoryModel) -> Instance:
    """Return the instance in which some tasks run on the host, with the fastest algorithm, and no others.

    A carried block that they touch lives on the host, unless it may be on the device at both ends, too.
    """
    touched = {d for k in hosted for d in instance.tasks[k].blocks}
    touched -= _may_return(instance, hosted) if memory == "paged" else set()
    return replace(
        instance,
        blocks=tuple(
            _on_host(block) if d in touched and block.initially == "carried" else block
            for d, block in enumerate(instance.blocks)
        ),
        tasks=tuple(
            replace(task, algorithms=tuple(task.algorithms[a] for a in _choices(task, k in hosted)))
            for k, task in enumerate(instance.tasks)
        ),
    )


def _may_return(instance: Instance, hosted: frozenset[int]) -> set[int]:
    """Return the carried blocks that tasks on the host update, and that others read, and do not write."""
    found = {d for k in hosted for d in instance.tasks[k].updates}
    found &= {d for k, task in enumerate(instance.tasks) if k not in hosted for d in task.inputs}
    return {
        d
        for d in found
        if hosted.issuperset(instance.writers[d])
        and instance.blocks[d].initially == "carried"
        and instance.blocks[d].prefetch_ns is not None
        and instance.blocks[d].offload_ns is not None
    }


def _on_host(block: Block) -> Block:
    return replace(block, initially="host", finally_="host")


def of_both_sides(instance: Instance, hosted: frozenset[int], schedule: Schedule) -> Schedule:
    """Return a schedule of an instance `on_sides`, with the numbers of algorithms in the original."""
    choices = [_choices(task, k in hosted) for k, task in enumerate(instance.tasks)]
    return replace(
        schedule,
        operations=tuple(
            operation
            if operation.task is None or operation.algorithm is None
            else replace(operation, algorithm=choices[operation.task][operation.algorithm])
            for operation in schedule.operations
        ),
    )


def of_one_side(instance: Instance, hosted: frozenset[int], schedule: Schedule) -> Schedule | None:
    """Return a schedule of the original as one of the instance `on_sides`, None if its algorithms differ."""
    choices = [_choices(task, k in hosted) for k, task in enumerate(instance.tasks)]
    operations = []
    for operation in schedule.operations:
        if operation.task is not None and operation.algorithm is not None:
            if operation.algorithm not in choices[operation.task]:
                return None
            operation = replace(operation, algorithm=choices[operation.task].index(operation.algorithm))
        operations.append(operation)
    return replace(schedule, operations=tuple(operations))


def _choices(task: Task, hosted: bool) -> list[int]:
    """Return the algorithms of a task on the device, or the fastest one on the host."""
    found = [a for a, one in enumerate(task.algorithms) if (one.on == "host") == hosted]
    if hosted:
        found = [
            min(found, key=lambda a: (task.algorithms[a].duration_ns, task.algorithms[a].workspace_bytes))
        ]
    return found


def planned(method: Method, instance: Instance, limits: Limits) -> Answer:
    """Call a method that plans the device's tasks; return its schedule with the runs on the host.

    Raises
    ------
    Refusal
        As the method, or as `HostWork`.
    """
    if not instance.has_host_work:
        return method(instance, limits)
    work = HostWork(instance)
    answer = method(work.device, limits)
    if answer.schedule is None:
        return Answer(None, answer.stopped_by)
    return Answer(work.completed(answer.schedule), answer.stopped_by)


class HostWork:
    """The tasks of an instance that run on the host, and the instance that is left for the device.

    Parameters
    ----------
    instance
        An instance in which each task has algorithms on one side only, as `on_sides` returns it.
    returns
        Whether carried blocks that late tasks update may be on the device at both ends. If so, they begin
        there in the device's instance, and each of them that is there at first has to come once more at the
        end of its programs, as `runs` says.

    Raises
    ------
    Refusal
        When a task on the host reads what the device makes and writes what the device uses, or needs a copy
        that is impossible, or host memory has no room for it.

    Attributes
    ----------
    instance
        The instance.
    early, late
        The tasks on the host that come before all copies, and those that come after them.
    """

    def __init__(self, instance: Instance, *, returns: bool = False) -> None:
        self.instance = instance
        hosted = [k for k, task in enumerate(instance.tasks) if task.may_run_on_host]
        self._kept = [k for k in range(len(instance.tasks)) if k not in set(hosted)]
        self._touches: list[list[int]] = [[] for _ in instance.blocks]
        self._writes: list[list[int]] = [[] for _ in instance.blocks]
        for k in self._kept:
            for d in instance.tasks[k].blocks:
                self._touches[d].append(k)
            for d in _written(instance.tasks[k]):
                self._writes[d].append(k)
        count = 0
        while count < len(hosted) and self._is_early(hosted[count]):
            count += 1
        self.early, self.late = hosted[:count], hosted[count:]
        self._early = {d for k in self.early for d in instance.tasks[k].blocks}
        self._late = {d for k in self.late for d in instance.tasks[k].blocks}
        may = _may_return(instance, frozenset(hosted)) - self._early if returns else set()
        self._returns = {d: k for k in self.late for d in instance.tasks[k].updates if d in may}
        for k in self.late:
            self._require_last(k)
        if not self._kept:
            raise Refusal("no task is left for the device")
        if self.early and instance.has_host_budget:
            name = instance.tasks[self.early[0]].name
            raise Refusal(
                f"task '{name}' runs on the host before all copies; that takes host memory without end"
            )

    @cached_property
    def device(self) -> Instance:
        """The instance of the device's tasks; its blocks are those of the original."""
        instance = self.instance
        turn = {k: i for i, k in enumerate(self._kept)}
        layers = instance.layers
        if instance.named_layers:
            layers = tuple(
                LayerTasks(
                    name=layer.name,
                    kind=layer.kind,
                    forward=tuple(turn[k] for k in layer.forward if k in turn),
                    backward=tuple(turn[k] for k in layer.backward if k in turn),
                )
                for layer in instance.named_layers
            )
        budget = instance.host_budget_bytes
        if isinstance(budget, int) and self._added_bytes:
            budget = (budget - self._added_bytes) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            if budget < 0:
                raise Refusal("host memory has no room for what tasks on the host write and work with")
        return replace(
            instance,
            blocks=tuple(self._block(d, block) for d, block in enumerate(instance.blocks)),
            tasks=tuple(instance.tasks[k] for k in self._kept),
            layers=layers,
            host_budget_bytes=budget,
        )

    def runs(self) -> list[HostRun]:
        """Return the late runs, in order."""
        found = []
        for k in self.late:
            task = self.instance.tasks[k]
            reads = tuple(d for d in (*task.inputs, *task.updates) if self._writes[d])
            returns = tuple(d for d in task.updates if self._returns.get(d) == k)
            found.append(HostRun(task.algorithms[0].duration_ns, reads, returns))
        return found

    def projected(self, schedule: Schedule) -> Schedule:
        """Return a schedule's operations on the device, as operations of the device's instance."""
        turn = {k: i for i, k in enumerate(self._kept)}
        left = {operation.id for operation in schedule.operations if operation.stream != "host"}
        operations = tuple(
            replace(
                operation,
                task=None if operation.task is None else turn[operation.task],
                after=tuple(i for i in operation.after if i in left),
            )
            for operation in schedule.operations
            if operation.id in left
        )
        return replace(schedule, operations=operations, host_residences=UNSET, host_peak_bytes=UNSET)

    def guided(self, original: Instance, guide: Guide) -> Guide:
        """Return a guide for the original, from which `on_sides` has made this, as one for the device."""
        kept, device = self._kept, self.device
        hosted = set(range(len(original.tasks))).difference(kept)

        def after(gap: Gap) -> Gap:
            return gap[0], bisect_right(kept, gap[1]) - 1

        choices = [_choices(task, k in hosted) for k, task in enumerate(original.tasks)]
        return guide._replace(
            returning=[after(gap) for gap in guide.returning],
            leaving=[after(gap) for gap in guide.leaving],
            algorithms=[
                choices[k].index(guide.algorithms[k])
                if guide.algorithms[k] in choices[k]
                else by_speed(task)[0]
                for k, task in zip(kept, device.tasks, strict=True)
            ],
            holds=[bisect_left(kept, k) for k in guide.holds],
        )

    def completed(self, schedule: Schedule) -> Schedule:
        """Return a schedule of the device's instance as one of the whole, with the runs on the host."""
        fresh = max((operation.id for operation in schedule.operations), default=-1) + 1
        ids = {k: fresh + i for i, k in enumerate((*self.early, *self.late))}
        first = {d: ids[k] for k in self.early for d in self.instance.tasks[k].blocks}
        written = {d: ids[k] for k in self.early for d in _written(self.instance.tasks[k])}
        operations = [_run(ids[k], k, ()) for k in self.early]
        last: dict[tuple[str, int], tuple[int, Operation]] = {}
        unused = {d: len(self._touches[d]) for d in self._returns}
        returning: dict[int, list[Operation]] = {k: [] for k in self.late}
        for p, operation in enumerate(schedule.operations):
            if operation.task is not None:
                k = self._kept[operation.task]
                operation = replace(operation, task=k)
                for d in self.instance.tasks[k].blocks:
                    if d in unused:
                        unused[d] -= 1
            elif operation.block in unused and not unused[operation.block]:
                k = self._returns[operation.block]
                returning[k].append(replace(operation, after=(*operation.after, ids[k])))
                continue
            elif operation.block is not None and operation.kind != "move":
                last[operation.kind, operation.block] = p, operation
                before = (written if operation.kind == "prefetch" else first).get(operation.block)
                if before is not None:
                    operation = replace(operation, after=(*operation.after, before))
            operations.append(operation)
        for k in self.late:
            task = self.instance.tasks[k]
            waits: dict[str, tuple[int, int]] = {}
            copies = [last.get(("offload", d)) for d in (*task.inputs, *task.updates)]
            copies += [last.get(("prefetch", d)) for d in task.updates]
            for copy in copies:
                if copy is not None:
                    p, operation = copy
                    waits[operation.stream] = max(waits.get(operation.stream, (-1, -1)), (p, operation.id))
            operations.append(_run(ids[k], k, sorted(i for _, i in waits.values())))
            operations += returning[k]
        whole = replace(schedule, operations=tuple(operations))
        if self.instance.has_host_budget:
            whole = with_host(whole, (*schedule.host_copies, *self._residences(schedule, ids)))
        if self.instance.carried:
            whole = replace(whole, carried=states_of(self.instance, whole))
        return simulated(self.instance, whole)

    # --- inside -----------------------------------------------------------------------------------

    def _is_early(self, k: int) -> bool:
        """Return whether a task finds all it reads on the host from the start, and no task before uses it."""
        task = self.instance.tasks[k]
        return not any(w < k for d in task.inputs for w in self._writes[d]) and not any(
            w < k for d in _written(task) for w in self._touches[d]
        )

    def _require_last(self, k: int) -> None:
        """Refuse a task whose results the device uses, or what it reads is changed there later."""
        instance, task = self.instance, self.instance.tasks[k]
        for d in task.blocks:
            block = instance.blocks[d]
            later = (self._touches if d in _written(task) else self._writes)[d]
            at_end = block.finally_ == "device" and (
                d in _written(task) or bool(self._writes[d]) or instance.has_host_budget
            )
            if at_end or any(j > k for j in later):
                raise Refusal(
                    f"task '{task.name}' would run on the host between tasks of the device that make and use "
                    f"'{block.name}'"
                )
            if self._writes[d] and block.offload_ns is None:
                raise Refusal(
                    f"task '{task.name}' would read '{block.name}' on the host, and its offload_ns is null"
                )

    def _block(self, d: int, block: Block) -> Block:
        """Return a block as the device's instance has it."""
        if d in self._returns:
            return replace(block, initially="device", finally_="host")
        if block.initially == "carried" and (d in self._early or d in self._late):
            block = _on_host(block)
        if d in self._early and any(d in _written(self.instance.tasks[k]) for k in self.early):
            block = replace(block, initially="host")
        if block.initially == "absent" and not self._writes[d]:
            return replace(block, finally_="anywhere")  # written on the host, after all copies
        if block.finally_ != "device" and d in self._late:
            block = replace(block, finally_="host")
        return block

    @cached_property
    def _added_bytes(self) -> int:
        """Bytes of host memory for outputs, and for one workspace after the other."""
        tasks = [self.instance.tasks[k] for k in self.late]
        total = 0
        for task in tasks:
            for d in task.outputs:
                total = ceil_to(total, ALIGNMENT_BYTES) + self.instance.blocks[d].bytes
        workspace = max((task.algorithms[0].workspace_bytes for task in tasks), default=0)
        return ceil_to(total, ALIGNMENT_BYTES) + workspace if workspace else total

    def _residences(self, schedule: Schedule, ids: dict[int, int]) -> Iterable[HostResidence]:
        """Yield the residences of outputs and workspaces, above those of the device's instance."""
        at = self.device.host_budget_bytes
        assert isinstance(at, int)
        placed = schedule.memory_model != "divisible"
        for k in self.late:
            for d in self.instance.tasks[k].outputs:
                size = self.instance.blocks[d].bytes
                yield HostResidence(block=d, offset=at if placed else None, bytes=size, acquired_by=ids[k])
                at += ceil_to(size, ALIGNMENT_BYTES)
        for k in self.late:
            size = self.instance.tasks[k].algorithms[0].workspace_bytes
            if size:
                yield HostResidence(
                    workspace_of=ids[k],
                    offset=at if placed else None,
                    bytes=size,
                    acquired_by=ids[k],
                    released_after=(ids[k],),
                )


def _written(task: Task) -> tuple[int, ...]:
    return (*task.outputs, *task.updates)


def _run(i: int, k: int, after: Iterable[int]) -> Operation:
    """Return a run on the host, with its only algorithm."""
    return Operation(
        id=i, stream="host", kind="run", task=k, algorithm=0, after=tuple(after), start_ns=0, end_ns=0
    )
