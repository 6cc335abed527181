"""Forced faults: a wait that a program needs is left out, and an execution has to show the damage."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ...instances.instance import Instance
from ..check import check
from ..schedule import Schedule
from .data import Data
from .device import Backend, DeviceError
from .executor import Execution, Executor
from .plan import plan
from .rebuild import rebuild
from .trial import identical


def essential_waits(instance: Instance, schedule: Schedule) -> list[tuple[int, int]]:
    """Return the waits of a valid schedule that the checker requires, each of them on its own.

    Each wait is a pair of ids: an operation, and the one that it waits for.
    """
    found = []
    for i, operation in enumerate(schedule.operations):
        for other in operation.after:
            after = tuple(one for one in operation.after if one != other)
            operations = list(schedule.operations)
            operations[i] = msgspec.structs.replace(operation, after=after)
            without = msgspec.structs.replace(schedule, operations=tuple(operations))
            # Times differ as well; only what is wrong at every speed counts.
            if any("simulated" not in reason for reason in check(instance, without).reasons):
                found.append((operation.id, other))
    return found


def executions_until_damage(
    instance: Instance,
    schedule: Schedule,
    wait: tuple[int, int],
    backends: Iterable[Callable[[], Backend]],
    data: Data,
    right: Execution,
) -> int | None:
    """Execute a schedule without one of its waits until the numbers are wrong, or an operation fails.

    Some algorithms keep tables of indices in their workspace, and fail where other bytes overwrite these. The
    right execution shows that nothing fails with all waits.

    Parameters
    ----------
    instance, schedule
        The schedule, and the instance that it is for.
    wait
        One of `essential_waits`.
    backends
        Functions that open the device, one for each execution; for instance with different delays.
    data, right
        The data at the start, and the right execution.

    Returns
    -------
    int or None
        Number of the first damaged execution, counted from 1; None if none was damaged.
    """
    settled = plan(instance, schedule, rebuild(instance))
    for count, backend in enumerate(backends, start=1):
        with Executor(backend(), settled, instance.rounds, poison=True, omit=[wait]) as executor:
            executor.load(data)
            try:
                damaged = not identical(executor.run(), right)
            except DeviceError:
                damaged = True
            if damaged:
                return count
    return None
