"""The instance in which second runs are tasks, as columns: what `unrolled` makes, without the instance.

A search over plans makes one for each plan that it judges. The instance itself takes much
longer, and is made for schedules alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...instances.instance import Instance
from ..gaps import Guide
from ..search.columns import ABSENT, HOST, INPUT, OUTPUT, UPDATE, Columns, Integers, Touches, integers
from ..search.problem import first_writers, stays
from .reruns import Names, Plan, names_of
from .takeovers import Merges, pairs_of

Overwrites = dict[int, list[tuple[int, int]]]
"""Per task, its touches of outputs that may take over places, counted from its first, and of the inputs."""

_NONE: Overwrites = {}


class Absence(NamedTuple):
    """A gap between two uses in which a block is away, in runs of the plan.

    Attributes
    ----------
    block
        The block.
    after, until
        The runs that use it before and after the gap; -1 is the start, and the number of runs is the end.
    last
        The last run without it: its copy begins behind that run.
    """

    block: int
    after: int
    until: int
    last: int


@dataclass(frozen=True, slots=True)
class Unrolling(Names):
    """The columns of an instance in which second runs are tasks.

    Attributes
    ----------
    columns
        As `columns_of` of that instance, with other numbers of tensors, and what a task updates in another
        order.
    """

    columns: Columns

    def stays(self) -> tuple[Integers, Integers, Integers]:
        """Return the stays of blocks between uses, as `stays`, with the original block of each."""
        block, after, until = stays(self.columns)
        return self._originals(block, after), after, until

    def _originals(self, block: Integers, after: Integers) -> Integers:
        """Return the original of each block behind a task."""
        original = integers([d for d, _ in self.copies])[block]
        for place, changes in self.merges.items():
            for i, d in changes:
                original[(block == place) & (after >= i)] = self.copies[d][0]
        return original

    def guide(self, absences: Sequence[Absence]) -> Guide:
        """Return a guide to the transfers of a plan: each block that is away comes back as late as it says.

        Runs take their quickest algorithms; where there is no room for one, the search takes another.
        """
        block, after, _ = stays(self.columns)
        original = self._originals(block, after)
        place = dict(zip(zip(original.tolist(), after.tolist(), strict=True), block.tolist(), strict=True))
        known = [gap for gap in absences if (gap.block, gap.after) in place]
        back = sorted(known, key=lambda gap: (gap.last, gap.until))
        first = np.cumsum(self.columns.choices) - self.columns.choices
        duration = self.columns.algorithms[:, 0]
        own = zip(first.tolist(), self.columns.choices.tolist(), strict=True)
        return Guide(
            [(place[gap.block, gap.after], gap.after) for gap in back],
            [(place[gap.block, gap.after], gap.after) for gap in known],
            [int(np.argmin(duration[begin : begin + count])) for begin, count in own],
            holds=[gap.last + 1 for gap in back],
        )

    def away(self, guide: Guide) -> set[int]:
        """Return the original blocks that a guide lets be away."""
        return {self.copies[self.standing(d, after)][0] for d, after in guide.returning}


def unrolling(instance: Instance, columns: Columns, plan: Plan, overwrites: Overwrites = _NONE) -> Unrolling:
    """Return the columns of `unrolled(instance, plan).instance`.

    Parameters
    ----------
    instance, columns
        An instance, and its columns.
    plan
        Second runs, each of which `stages_of` allows.
    overwrites
        The outputs that take over places of inputs where nothing needs these (`overwrites_of`).
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
    apart = columns._replace(
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
    )
    merges, whole = _merged(apart, of, overwrites) if overwrites else ({}, apart)
    return Unrolling(named.runs, named.copies, whole, merges=merges)


def overwrites_of(instance: Instance, columns: Columns) -> Overwrites:
    """Return the outputs that may take over places of inputs, with the columns of the instance."""
    found = {}
    for k, pairs in pairs_of(instance).items():
        begin, end = columns.touches.begin[k : k + 2].tolist()
        touches = zip(*(part[begin:end].tolist() for part in columns.touches[2:]), strict=True)
        at = {touch: e for e, touch in enumerate(touches)}
        found[k] = [(at[d, OUTPUT], at[x, INPUT]) for d, x in pairs]
    return found


def _merged(columns: Columns, of: Integers, overwrites: Overwrites) -> tuple[Merges, Columns]:
    """Return blocks that stand for others, and columns in which they do, as `takeovers.merged` makes them.

    `of` has the task of each run.
    """
    begin, task, block, kind = columns.touches
    kind, last = kind.copy(), columns.last.copy()
    last_touch = np.full(len(columns.size), -1)
    np.maximum.at(last_touch, block, task)
    stands = np.arange(len(columns.size))
    kept = np.ones(len(block), dtype=bool)
    merges: Merges = {}
    for i in np.flatnonzero(np.isin(of, list(overwrites))).tolist():
        for output, read in overwrites[int(of[i])]:
            output, read = int(begin[i]) + output, int(begin[i]) + read
            d, x = int(block[output]), int(block[read])
            place = int(stands[x])
            if last_touch[x] != i or last[place] != ABSENT:
                continue
            stands[d] = place
            merges.setdefault(place, []).append((i, d))
            last[place], last[d] = last[d], ABSENT
            kept[output], kind[read] = False, UPDATE
    order = np.argsort(3 * task[kept] + kind[kept], kind="stable")
    touches = Touches(
        begin=begin - np.append(0, np.cumsum(~kept))[begin],
        task=task[kept][order],
        block=stands[block[kept]][order],
        kind=kind[kept][order],
    )
    return merges, columns._replace(last=last, touches=touches)


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
