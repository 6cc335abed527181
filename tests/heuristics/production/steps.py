"""A small transformer for tests of rules, and what their schedules do."""

from __future__ import annotations

from typing import Literal

from pebbler.heuristics.methods import Limits, find_method
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.origin import LayerTasks
from pebbler.validate.check import check
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
