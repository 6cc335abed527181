"""How many images a round takes: moDNN's two rules (TPDS 2019, section 5.1.2; DATE 2018, section III-A)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ...instances.instance import Instance
from ...instances.memory import fastest, footprint
from ...instances.workload import Workload
from ..choices import by_speed, leanest

ALPHA = Fraction(15, 100)
"""Share of the tasks that must fit the budget together (TPDS 2019: empirical)."""


def tpds(workload: Workload, budget_bytes: int) -> int:
    """Sub-batch by eq. 8: any 15 % of the tasks, consecutive, fit the budget at once.

    Profiling, which gives the workspace of each task's fastest possible algorithm, and the selection by
    binary search take turns until the sub-batch stays the same (or, where it swings, with the least of those
    it swings between). "Possible" is read as: the task itself fits the budget with it. Otherwise a workspace
    larger than the budget would leave no sub-batch but 1. The result is then rounded down to a multiple of
    64, or of 32 below 64, and so on; a sub-batch that is the whole batch stays. At least 1.
    """

    def select(profile: Instance) -> int:
        workspaces = _workspaces(profile, budget_bytes)
        return _largest(
            workload.batch,
            lambda b: _window_bytes(_at(workload, b), workspaces) <= budget_bytes,
        )

    b = _converged(workload, select)
    return b if b == workload.batch else _regular(b)


def date(workload: Workload, budget_bytes: int) -> int:
    """Sub-batch by eq. 3: the budget beside the weights over what the largest task needs for an image.

    As printed, b = (M - S_W) / max M_min(t, b) has a dimensionless right side only if M_min(t, b), with the
    workspace of the fastest algorithm, is taken per image: that is how it is read here. At least 1.
    """

    def select(profile: Instance) -> int:
        largest = max(
            footprint(profile, k) + algorithm.workspace_bytes for k, algorithm in enumerate(fastest(profile))
        )
        images = profile.made_from.sub_batch
        assert images is not None, "a workload says how many images a round has"
        b = images * (budget_bytes - profile.resident_bytes) // largest
        return int(min(max(b, 1), workload.batch))

    return _converged(workload, select)


def _converged(workload: Workload, select: Callable[[Instance], int]) -> int:
    """Repeat profiling and selection from the whole batch on."""
    seen: list[int] = []
    b = workload.batch
    while b not in seen:
        seen.append(b)
        b = select(_at(workload, b))
    return min(seen[seen.index(b) :])


def _workspaces(profile: Instance, budget_bytes: int) -> list[int]:
    """Per task, the workspace of the fastest algorithm with which it fits the budget, or else the least."""
    workspaces = []
    for k, task in enumerate(profile.tasks):
        room = budget_bytes - profile.resident_bytes - footprint(profile, k)
        possible = (a for a in by_speed(task) if task.algorithms[a].workspace_bytes <= room)
        workspaces.append(task.algorithms[next(possible, leanest(task))].workspace_bytes)
    return workspaces


def _at(workload: Workload, b: int) -> Instance:
    return workload.instance(0, b, check_budget=False)


def _largest(batch: int, fits: Callable[[int], bool]) -> int:
    """Greatest sub-batch that fits, by binary search; 1 when none does."""
    low, high = 1, batch
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _window_bytes(instance: Instance, workspaces: list[int]) -> int:
    """Eq. 8: the most that alpha |T| tasks in a row touch, blocks once, with their largest workspace."""
    count = len(instance.tasks)
    length = max(int(ALPHA * count), 1)
    touched = [0] * len(instance.blocks)
    total = most = 0
    for k in range(count):
        for d in instance.tasks[k].blocks:
            total += 0 if touched[d] else instance.blocks[d].bytes
            touched[d] += 1
        if k >= length:
            for d in instance.tasks[k - length].blocks:
                touched[d] -= 1
                total -= 0 if touched[d] else instance.blocks[d].bytes
        if k >= length - 1:
            most = max(most, total + max(workspaces[k - length + 1 : k + 1]))
    return most + instance.resident_bytes


def _regular(b: int) -> int:
    """Round down to a multiple of 64, or of the largest power of two within b below 64."""
    unit = min(64, 1 << (b.bit_length() - 1))
    return b // unit * unit
