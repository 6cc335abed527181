"""The instance in which second runs are tasks, as columns: what `unrolled` makes, without the instance.

A search over plans makes one for each plan that it judges. The instance itself takes much
longer, and is made for schedules alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...instances.instance import Instance
from ..search.columns import ABSENT, HOST, OUTPUT, Columns, Integers, Touches, integers
from ..search.problem import first_writers, stays
from .reruns import Names, Plan, names_of


@dataclass(frozen=True, slots=True)
class Unrolling(Names):
    """The columns of an instance in which second runs are tasks.

    Attributes
    ----------
    columns
        As `columns_of` of that instance, with other numbers of tensors.
    """

    columns: Columns


def unrolling(instance: Instance, columns: Columns, plan: Plan) -> Unrolling:
    """Return the columns of `unrolled(instance, plan).instance`.

    Parameters
    ----------
    instance, columns
        An instance, and its columns.
    plan
        Second runs, each of which `stages_of` allows.
    """
    named = names_of(instance, plan)
    of, before = integers(named.runs, 2).T
    blocks, runs = len(columns.size), len(of)
    task, index = _gathered(columns.touches.begin, of)
    touched, kind = columns.touches.block[index], columns.touches.kind[index]
    new = (kind == OUTPUT) & (of != before)[task]
    made, maker = touched[new], task[new]  # what copies are of, and which runs make them

    # the copy of a block that a run touches is the last one that is made until then
    order = np.argsort(made * runs + maker)
    made_at = (made * runs + maker)[order]
    at = np.searchsorted(made_at, touched * runs + task, "right") - 1
    copied = np.zeros(len(at), dtype=bool)
    if len(made):
        copied = (at >= 0) & (made_at[at] // runs == touched)
    touches = Touches(
        begin=np.append(0, np.cumsum(np.diff(columns.touches.begin)[of])),
        task=task,
        block=np.where(copied, blocks + np.append(order, 0)[at], touched),
        kind=kind,
    )

    original = np.concatenate((np.arange(blocks), made))
    latest = np.arange(blocks)
    latest[made] = blocks + np.arange(len(made))  # where one is made again and again, the last one counts
    is_last = latest[original] == np.arange(len(original))
    tensor, tensors = columns.tensor[original], int(columns.tensor.max(initial=0)) + 1
    again = np.concatenate((np.zeros(blocks, dtype=np.int64), maker + 1))
    _, of_algorithms = _gathered(np.append(0, np.cumsum(columns.choices)), of)
    return Unrolling(
        runs=named.runs,
        copies=named.copies,
        columns=columns._replace(
            size=columns.size[original],
            times=columns.times[original],
            shares=columns.shares[original],
            first=np.where(again > 0, ABSENT, columns.first[original]),
            last=np.where(is_last, columns.last[original], ABSENT),
            carried=columns.carried[original] & (again == 0),
            tensor=np.where(tensor < 0, -1, again * tensors + tensor),
            begin=columns.begin[original],
            touches=touches,
            algorithms=columns.algorithms[of_algorithms],
            choices=columns.choices[of],
            kind=columns.kind[of],
            slows=columns.slows[of] if len(columns.slows) else columns.slows,
        ),
    )


def _gathered(begin: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Return the elements of some rows of a list of lists: which of these rows each is in, and its index."""
    counts = np.diff(begin)[rows]
    row = np.repeat(np.arange(len(rows)), counts)
    return row, np.arange(len(row)) + (begin[rows] - np.cumsum(counts) + counts)[row]


def excess(columns: Columns) -> int:
    """Return the sum, over all tasks, of the bytes that have no room whatever is evicted.

    Nothing runs twice in an instance that is given as columns.
    """
    block, after, until = stays(columns)
    touches, total = columns.touches, columns.length
    first_writer = first_writers(columns)
    used = np.bincount(touches.block, minlength=len(columns.size)) > 0
    is_new = (first_writer[block] <= after) | (columns.carried & (first_writer < total))[block]
    leaves, returns = (columns.times[:, :2] >= 0).T
    stuck = ~returns[block] | (~leaves[block] & is_new)
    stuck &= ~((columns.first[block] == HOST) & (after < 0)) & ~(columns.carried & ~used)[block]
    change = np.zeros(total + 1, dtype=np.int64)
    np.add.at(change, after[stuck] + 1, columns.size[block[stuck]])
    np.subtract.at(change, until[stuck], columns.size[block[stuck]])
    scratch = np.minimum.reduceat(columns.algorithms[:, 1], np.cumsum(columns.choices) - columns.choices)
    needs = np.cumsum(change[:-1]) + touches.sums(columns.size) + scratch
    return int(np.maximum(needs - columns.pool, 0).sum())
