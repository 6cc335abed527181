"""The instances of an iteration: with one sub-batch for all methods, or with each method's own."""

from __future__ import annotations

from collections.abc import Sequence

from ...heuristics.methods import MethodInfo, SubBatchRule
from ...instances.errors import BudgetError
from ...instances.instance import Instance
from ...instances.units import format_size
from ...instances.workload import Workload, require_workload
from ...solver.guests import Host


def instances_of(workload: Workload, budget: int | str, sub_batch: int | None = None) -> tuple[Instance, ...]:
    """Return the instances that make up one iteration of a workload.

    Parameters
    ----------
    workload
        Network, batch and device.
    budget
        Bytes or a text; a share of the peak or a multiple of the minimum refers to `sub_batch`.
    sub_batch
        Images of a round; by default the batch.

    Returns
    -------
    tuple of Instance
        One instance, or a second one for the smaller last round, both with the same budget in bytes.

    Raises
    ------
    PebblerError
        When the network, the device, the sub-batch or the budget is wrong.
    """
    require_workload(workload)
    instances: list[Instance] = []
    for size, rounds in workload.rounds(workload.batch if sub_batch is None else sub_batch):
        limit = instances[0].budget_bytes if instances else budget
        instances.append(workload.instance(limit, size, rounds=rounds))
    return tuple(instances)


def own_instances(rule: SubBatchRule, workload: Workload, budget_bytes: int) -> tuple[Instance, ...]:
    """Return the instances of an iteration at the sub-batch that a method's own rule chooses.

    The budget may be below the instances' minimum. Then the method's policy has no schedule.
    """
    return tuple(
        workload.instance(budget_bytes, size, rounds=rounds, check_budget=False)
        for size, rounds in workload.rounds(rule(workload, budget_bytes))
    )


def planned(info: MethodInfo, instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the instances of an iteration that a method schedules, which its transform may have changed.

    Raises
    ------
    MethodError
        When the transform returns an instance of another iteration, or with another budget.
    """
    with Host(info) as host:
        return tuple(map(host.transform, instances))


def auto_budget(workload: Workload, budget: int | str) -> int:
    """Read a budget for any sub-batch: ``50%`` refers to the whole batch, ``1.05xMmin`` to one image.

    Raises
    ------
    BudgetError
        When it is below M_floor, the least budget at any sub-batch.
    """
    relative_to_least = isinstance(budget, str) and "min" in budget
    reference = workload.instance(budget, 1 if relative_to_least else None, check_budget=False)
    floor = workload.floor()
    if reference.budget_bytes < floor:
        raise BudgetError(
            f"{workload.name}: a budget of {reference.budget_bytes} bytes is under the minimum of {floor} "
            f"bytes ({format_size(floor)}) that it needs even with a sub-batch of one image; "
            "give a larger budget"
        )
    return reference.budget_bytes
