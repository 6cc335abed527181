"""The number of images of a round: moDNN's two rules (TPDS 2019, section 5.1.2; DATE 2018, section III-A)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from ...instances.instance import Instance
from ...instances.memory import fastest, footprint
from ...instances.workload import Workload
from ..choices import by_speed, leanest

ALPHA = Fraction(15, 100)
"""Share of the tasks that must fit the budget together: an empirical value of TPDS 2019."""


def tpds(workload: Workload, budget_bytes: int) -> int:
    """Choose the sub-batch by eq. 8: any 15 % of the tasks that are consecutive fit the budget together.

    Profiling gives the workspace of each task's fastest possible algorithm. Profiling and the selection by
    binary search alternate until the sub-batch does not change. If it alternates between several values, the
    least of them is taken.

    "Possible" is read as: the task itself fits the budget with this algorithm. Otherwise a workspace larger
    than the budget would leave no sub-batch but 1.

    The result is then rounded down to a multiple of 64, or of 32 below 64, and so on. A sub-batch that is the
    whole batch is not rounded. The result is at least 1.
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
    """Choose the sub-batch by eq. 3: the budget less the weights, over what the largest task needs per image.

    As printed, b = (M - S_W) / max M_min(t, b) has a dimensionless right side only if M_min(t, b), with the
    workspace of the fastest algorithm, is taken per image. It is read in this way here. The result is at
    least 1.
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
    """Repeat profiling and selection, beginning with the whole batch."""
    seen: list[int] = []
    b = workload.batch
    while b not in seen:
        seen.append(b)
        b = select(_at(workload, b))
    return min(seen[seen.index(b) :])


def _workspaces(profile: Instance, budget_bytes: int) -> list[int]:
    """Return, per task, the workspace of its fastest algorithm that fits the budget, or else the least."""
    workspaces = []
    for k, task in enumerate(profile.tasks):
        room = budget_bytes - profile.resident_bytes - footprint(profile, k)
        possible = (a for a in by_speed(task) if task.algorithms[a].workspace_bytes <= room)
        workspaces.append(task.algorithms[next(possible, leanest(task))].workspace_bytes)
    return workspaces


def _at(workload: Workload, b: int) -> Instance:
    return workload.instance(0, b, check_budget=False)


def _largest(batch: int, fits: Callable[[int], bool]) -> int:
    """Return the greatest sub-batch that fits, by binary search; 1 when none does."""
    low, high = 1, batch
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _window_bytes(instance: Instance, workspaces: list[int]) -> int:
    """Return the most bytes that alpha |T| tasks in a row touch, with their largest workspace (eq. 8)."""
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
