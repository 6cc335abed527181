"""Durations of the operations of a program: the instance's own, or drawn ones."""

from __future__ import annotations

from random import Random

from ...instances.instance import Instance
from ..schedule import Operation, Schedule


def own_durations(instance: Instance, schedule: Schedule) -> list[int]:
    """Return the instance's duration of every operation; it is 0 for a copy that is not possible."""
    durations = []
    for operation in schedule.operations:
        if operation.kind == "run":
            task, algorithm = number(operation.task), number(operation.algorithm)
            durations.append(instance.tasks[task].algorithms[algorithm].duration_ns)
        else:
            durations.append(copy_ns(instance, operation) or 0)
    return durations


def draw_durations(instance: Instance, schedule: Schedule, rng: Random) -> list[int]:
    """Draw a duration for every operation, in one of several regimes that favour different races.

    The regimes: all zero, nominal, up to twice nominal, each operation zero or nominal or a thousandfold, one
    slow or one instant stream, one slow or one instant operation, magnitudes spread over six decades.
    """
    nominal = [max(duration, 1) for duration in own_durations(instance, schedule)]
    count = len(nominal)
    if not count:
        return []
    streams = [operation.stream for operation in schedule.operations]
    base = [0] * count if rng.random() < 0.3 else nominal
    regime = rng.randrange(8)
    if regime == 0:
        return base
    if regime == 1:
        return [rng.randint(0, 2 * duration) for duration in nominal]
    if regime == 2:
        return [duration * rng.choice((0, 1, 1000)) for duration in nominal]
    if regime == 3:
        chosen = rng.choice(streams)
        factor = rng.choice((0, 1000))
        return [nominal[i] * factor if streams[i] == chosen else base[i] for i in range(count)]
    if regime in (4, 5):
        slow = {rng.randrange(count) for _ in range(regime - 3)}
        return [sum(nominal) * 1000 if i in slow else base[i] for i in range(count)]
    if regime == 6:
        instant = rng.randrange(count)
        return [0 if i == instant else nominal[i] for i in range(count)]
    return [int(10 ** rng.uniform(0, 6)) for _ in range(count)]


def copy_ns(instance: Instance, operation: Operation) -> int | None:
    """Return the instance's duration of a copy; None if the block is never copied in that direction."""
    block = instance.blocks[number(operation.block)]
    return {"offload": block.offload_ns, "prefetch": block.prefetch_ns, "move": block.move_ns}[operation.kind]


def number(value: int | None) -> int:
    """Return the value of a key that the format guarantees."""
    assert value is not None
    return value
