"""A small transformer for tests of rules, and what their schedules do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.origin import LayerTasks
from pebbler.validate.check import check
from pebbler.validate.measures import memory_curve
from pebbler.validate.schedule import Operation, Schedule

Memory = Literal["contiguous", "paged"]

MIB = 1024 * 1024
OPERATORS = (
    ("norm", "norm", "x", "n"),
    ("first", "linear", "n", "a"),
    ("attn", "attention", "a", "c"),
    ("second", "linear", "c", "m"),
)
"""Operators of a layer before its sum: kind, what it reads, saves and makes."""


def transformer(layers: int = 3, *, budget: int = 400 * MIB, again: bool = True, copy: int = 40) -> Instance:
    """Return layers of four operators and a sum each, all of 10 ns, whose tensors have 10 MiB each.

    The backward pass of an operator takes 20 ns and reads what the operator has read. Copies take 40 ns.
    """
    blocks: list[Block] = []
    tasks: list[Task] = []
    index: dict[str, int] = {}
    forward: dict[str, list[int]] = {}
    backward: dict[str, list[int]] = {}
    kinds: dict[str, str] = {}

    def block(name: str) -> int:
        if name not in index:
            index[name] = len(blocks)
            blocks.append(Block(name=name, bytes=10 * MIB, offload_ns=copy, prefetch_ns=copy))
        return index[name]

    def add(
        layer: str, kind: str, reads: list[str], makes: str, time: int, where: dict[str, list[int]]
    ) -> None:
        kinds[layer] = kind
        where.setdefault(layer, []).append(len(tasks))
        run = Algorithm(name="a", duration_ns=time, workspace_bytes=0)
        tasks.append(
            Task(
                name=f"{'FP' if where is forward else 'BP'}({layer})",
                inputs=tuple(block(name) for name in reads),
                outputs=(block(makes),),
                algorithms=(run,),
                recomputable=again and where is forward,
            )
        )

    add("embed", "embedding", [], "x0", 10, forward)
    for i in range(layers):
        for name, kind, reads, makes in OPERATORS:
            add(f"h{i}_{name}", kind, [f"{reads}{i}"], f"{makes}{i}", 10, forward)
        add(f"h{i}_add", "add", [f"x{i}", f"m{i}"], f"x{i + 1}", 10, forward)
    add("head", "linear", [f"x{layers}"], "y", 10, forward)
    add("head", "linear", [f"x{layers}", "y"], f"g{layers}", 20, backward)
    for i in reversed(range(layers)):
        gradient = f"g{i + 1}"
        for name, kind, reads, _ in reversed(OPERATORS):
            made = f"g{i}_{name}" if name != "norm" else f"g{i}"
            add(f"h{i}_{name}", kind, [f"{reads}{i}", gradient], made, 20, backward)
            gradient = made
    names = dict.fromkeys([*forward, *backward])
    return Instance(
        name="small-transformer",
        engines="duplex",
        budget_bytes=budget,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(blocks),
        tasks=tuple(tasks),
        layers=tuple(
            LayerTasks(
                name=name,
                kind=kinds[name],
                forward=tuple(forward.get(name, ())),
                backward=tuple(backward.get(name, ())),
            )
            for name in names
        ),
    )


def solved(name: str, instance: Instance, memory: Memory = "contiguous") -> Schedule:
    answer = find_method(name).call(instance, Limits(memory=memory))
    assert answer.schedule is not None
    report = check(instance, answer.schedule)
    assert report.valid, report.reasons
    return answer.schedule


def names_of(instance: Instance, schedule: Schedule, kind: str) -> list[str]:
    """Names of what is copied, or of the tasks that run a second time, in the order of time."""
    found = sorted((o for o in schedule.operations if o.kind == kind), key=lambda o: (o.start_ns, o.id))
    if kind != "run":
        return [instance.blocks[o.block].name for o in found if o.block is not None]
    seen: set[int] = set()
    again = []
    for o in found:
        assert o.task is not None
        if o.task in seen:
            again.append(instance.tasks[o.task].name)
        seen.add(o.task)
    return again


def copies(schedule: Schedule, kind: str) -> list[Operation]:
    return sorted((o for o in schedule.operations if o.kind == kind), key=lambda o: o.start_ns)


def runs(schedule: Schedule) -> list[Operation]:
    return sorted((o for o in schedule.operations if o.kind == "run"), key=lambda o: (o.start_ns, o.id))


def traced(
    forward: Sequence[tuple[str, str, str, str]],
    backward: Sequence[tuple[str, str]],
    *,
    mib: Mapping[str, float] | None = None,
    ns: Mapping[str, int] | None = None,
    copy: int = 10,
    budget: int = 1 << 40,
) -> Instance:
    """Return an iteration of operators, each a layer of its own.

    Parameters
    ----------
    forward
        Name, kind, what is read and what is made. What nothing makes is on the device at the start.
    backward
        Names of operators in the order of the backward pass, and what each reads besides the gradient.
    mib, ns
        Sizes of blocks and times of tasks by name (``B(name)`` for the backward pass); else 1.
    """
    sizes, times = mib or {}, ns or {}
    made = {makes for _, _, _, makes in forward}
    blocks: dict[str, Block] = {}

    def block(name: str) -> int:
        size = round(sizes.get(name, 1) * MIB)
        start: Literal["device", "absent"] = "absent" if name in made or name[0] == "'" else "device"
        one = Block(name=name, bytes=size, offload_ns=copy, prefetch_ns=copy, initially=start)
        blocks.setdefault(name, one)
        return list(blocks).index(name)

    def task(name: str, reads: Sequence[str], makes: str, time: int, *, again: bool) -> Task:
        return Task(
            name=name,
            inputs=tuple(block(one) for one in reads),
            outputs=(block(makes),),
            algorithms=(Algorithm(name="a", duration_ns=time, workspace_bytes=0),),
            recomputable=again,
        )

    tasks = [
        task(f"FP({name})", reads.split(), makes, times.get(name, 1), again=True)
        for name, _, reads, makes in forward
    ]
    gradient: list[str] = []
    for name, reads in backward:
        made_here = f"'{name}"
        own = times.get(f"B({name})", 1)
        tasks.append(task(f"BP({name})", [*reads.split(), *gradient], made_here, own, again=False))
        gradient = [made_here]
    places = {name: i for i, (name, *_) in enumerate(forward)}
    behind = {name: len(forward) + i for i, (name, _) in enumerate(backward)}
    kinds = {name: kind for name, kind, _, _ in forward}
    return Instance(
        name="traced",
        engines="duplex",
        budget_bytes=budget,
        resident_bytes=0,
        alignment_bytes=1,
        blocks=tuple(blocks.values()),
        tasks=tuple(tasks),
        layers=tuple(
            LayerTasks(
                name=name,
                kind=kinds.get(name, "other"),
                forward=(places[name],) if name in places else (),
                backward=(behind[name],) if name in behind else (),
            )
            for name in dict.fromkeys([*places, *behind])
        ),
    )


def on_device(instance: Instance, schedule: Schedule, task: str) -> int:
    """Return the bytes that are in use when a task begins to run for the first time, with its outputs."""
    begins = min(o.start_ns for o in runs(schedule) if instance.tasks[o.task or 0].name == task)
    instants, levels = memory_curve(instance, schedule)
    return next(
        level for instant, level in reversed(list(zip(instants, levels, strict=True))) if instant <= begins
    )
