"""Which instances make up an iteration: one sub-batch for all methods, or each method's own."""

from __future__ import annotations

from collections.abc import Sequence

from ..heuristics.methods import MethodInfo
from ..instances.errors import BudgetError
from ..instances.instance import Instance
from ..instances.memory import least_budget
from ..instances.units import format_size
from ..instances.workload import Workload
from ..solver.bounds import Bound, best_bound, compute_bound


def instances_of(workload: Workload, budget: int | str, sub_batch: int | None = None) -> tuple[Instance, ...]:
    """Return the instances that make up one iteration of a workload.

    Parameters
    ----------
    workload
        Network, batch and device.
    budget
        Bytes or a text; a text that refers to the peak or the minimum does so at `sub_batch`.
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
    instances: list[Instance] = []
    for size, rounds in workload.rounds(workload.batch if sub_batch is None else sub_batch):
        limit = instances[0].budget_bytes if instances else budget
        instances.append(workload.instance(limit, size, rounds=rounds))
    return tuple(instances)


def own_instances(method: MethodInfo, workload: Workload, budget_bytes: int) -> tuple[Instance, ...]:
    """Return the instances of an iteration at the sub-batch that a method chooses.

    A method without a rule of its own takes the whole batch in one round. The budget may be under the
    instances' minimum: then the method's policy has no schedule.
    """
    b = workload.batch if method.sub_batch is None else method.sub_batch(workload, budget_bytes)
    return tuple(
        workload.instance(budget_bytes, size, rounds=rounds, check_budget=False)
        for size, rounds in workload.rounds(b)
    )


def auto_budget(workload: Workload, budget: int | str) -> int:
    """Read a budget for any sub-batch: ``50%`` is at the whole batch, ``1.05xMmin`` at one image.

    Raises
    ------
    BudgetError
        When it is under M_floor, the least budget at any sub-batch.
    """
    relative_to_least = isinstance(budget, str) and "min" in budget
    reference = workload.instance(budget, 1 if relative_to_least else None, check_budget=False)
    floor = workload.floor()
    if reference.budget_bytes < floor:
        raise BudgetError(
            f"{workload.network}: a budget of {reference.budget_bytes} bytes is under the minimum of {floor} "
            f"bytes ({format_size(floor)}) that it needs even with a sub-batch of one image; "
            "give a larger budget"
        )
    return reference.budget_bytes


def least_bound(workload: Workload, budget_bytes: int) -> Bound:
    """Return the least of the bounds over all sub-batches: no choice of the sub-batch leads below it.

    Sub-batches are taken by their compute bounds; one whose compute bound is no less than the best bound so
    far cannot lower it.
    """
    candidates = []
    for b in range(1, workload.batch + 1):
        instances = [
            workload.instance(budget_bytes, size, rounds=rounds, check_budget=False)
            for size, rounds in workload.rounds(b)
        ]
        if all(least_budget(instance) <= budget_bytes for instance in instances):
            least = sum(i.rounds * compute_bound(i).lower_bound_ns for i in instances)
            candidates.append((least, b, instances))
    best: Bound | None = None
    for least, _, instances in sorted(candidates, key=lambda candidate: candidate[:2]):
        if best is not None and least >= best.lower_bound_ns:
            break
        bound = iteration_bound(instances, [best_bound(instance) for instance in instances])
        if best is None or bound.lower_bound_ns < best.lower_bound_ns:
            best = bound
    assert best is not None, "auto_budget has let a budget under M_floor pass"
    return best


def iteration_bound(instances: Sequence[Instance], bounds: Sequence[Bound]) -> Bound:
    """Add the bounds of an iteration's instances up, each as often as it is executed."""
    return Bound(
        sum(
            instance.rounds * bound.lower_bound_ns for instance, bound in zip(instances, bounds, strict=True)
        ),
        " and ".join(dict.fromkeys(bound.bound_by for bound in bounds)),
        all(bound.certified for bound in bounds),
    )
