"""A depth-first search for addresses under a given height, after MiniMalloc (Moffitt, ASPLOS 2023).

In every packing, buffers can be moved down until each rests on another one or on the ground. So it is enough
to place buffers in the order of their offsets, each at the lowest place that is free (canonical solutions). A
partial packing is given up in two cases: in some section of time, the remaining bytes do not fit above the
lowest place where any of them can begin (section inference); or the next buffer would leave room below it for
a remaining one (dominance). If no remaining buffer crosses a section's border, both sides are searched
separately. All of this holds for buffers with gaps, too; one crosses the borders in its gaps.

`advance` is compiled by Numba when it is first used. It stops after a number of nodes and can continue later.
So time limits, Ctrl-C and several searches in turn are handled outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ...instances.compiling import telling_of_compiling

Integers = NDArray[np.int64]
"""Array of int64."""

_FAR = 1 << 62
"""Offset beyond every height."""

_LOW, _HIGH, _AFTER_OFFSET, _AFTER_RANK, _OFFSET, _CHOICE, _MARK = range(7)
"""Columns of a frame.

They are: its window of sections; the offset and rank after which its choice must come; its choice so far; and
the number of buffers that were placed when it began.
"""


class Answer(IntEnum):
    """The result of a search so far."""

    OPEN = 0
    FOUND = 1
    IMPOSSIBLE = 2


class PackingSearch:
    """A search that can be stopped and continued.

    Parameters
    ----------
    stays
        Sections of time [begin, end) in which each buffer lives; several if it has gaps.
    size, alignment
        Size and alignment of each buffer, in the unit of `height`.
    height
        Greatest end of a buffer, in any unit.

    Of buffers that could begin at the same offset, and of those that end at the same height, the search
    prefers the first in the arrays.
    """

    def __init__(
        self, stays: Sequence[Sequence[tuple[int, int]]], size: Integers, alignment: Integers, height: int
    ) -> None:
        window = np.cumsum([0, *map(len, stays)], dtype=np.int64)
        opens, closes = np.array([stay for some in stays for stay in some], np.int64).T.copy()
        first, last = opens[window[:-1]], closes[window[1:] - 1]
        count, sections = len(size), int(last.max())
        self.offsets = np.zeros(count, np.int64)
        has_gaps = len(opens) > count
        self._problem = (first, last, window if has_gaps else None, opens, closes, size, alignment, height)
        self._chosen = np.zeros(count, np.bool_)
        self._trail = np.zeros(count, np.int64)
        self._frames = np.zeros((count + 1, 7), np.int64)
        self._ranks = np.zeros((count + 1, count), np.int64)
        self._lowest = np.zeros((count + 1, count), np.int64)
        self._tops = np.zeros((count + 1, sections), np.int64)
        self._to_come = np.zeros((count + 1, sections), np.int64)
        for some, bytes_ in zip(stays, size, strict=True):
            for begin, end in some:
                self._to_come[0, begin:end] += bytes_
        self._position, self._placed, self._split = 0, 0, True
        self.answer = Answer.IMPOSSIBLE if (self._to_come[0] > height).any() else Answer.OPEN

    def run(self, nodes: int) -> Answer:
        """Continue the search for some nodes; `offsets` holds the packing if the answer is ``FOUND``."""
        if self.answer == Answer.OPEN:
            answer, self._position, self._placed, self._split = compiled()(
                *self._problem,
                self._position,
                self._placed,
                self._split,
                self._frames,
                self._chosen,
                self.offsets,
                self._trail,
                self._ranks,
                self._lowest,
                self._tops,
                self._to_come,
                nodes,
            )
            self.answer = Answer(answer)
        return self.answer


@cache
def load_search() -> None:
    """Compile the search, or load it from the cache; this is not part of any time limit."""
    one = np.ones(1, np.int64)
    with telling_of_compiling():
        for stays in ([(0, 1)], [(0, 1), (2, 3)]):
            PackingSearch([stays], one, one, 1).run(1)


@cache
def compiled() -> Callable[..., tuple[int, int, int, bool]]:
    """Return `advance` as machine code, which is the same function."""
    from numba import njit

    function: Callable[..., tuple[int, int, int, bool]] = njit(cache=True)(advance)
    return function


def advance(
    first: Integers,
    last: Integers,
    window: Integers | None,
    opens: Integers,
    closes: Integers,
    size: Integers,
    alignment: Integers,
    height: int,
    position: int,
    placed: int,
    split: bool,
    frames: Integers,
    chosen: NDArray[np.bool_],
    offsets: Integers,
    trail: Integers,
    ranks: Integers,
    lowest: Integers,
    tops: Integers,
    to_come: Integers,
    nodes: int,
) -> tuple[int, int, int, bool]:
    """Continue the search from the state in the arrays, which is updated.

    The frame at each position chooses one buffer of its window. Row p of `ranks`, `lowest` (least offset of
    each buffer), `tops` (height reached in each section) and `to_come` (bytes not placed in each section)
    is the state that the frame at position p starts from.

    Without gaps, there are no windows, and Numba leaves out what they need.

    Returns
    -------
    tuple
        The answer as a number, the position, the number of placed buffers, and whether the next step opens a
        frame.
    """
    count, sections = len(size), tops.shape[1]
    floor = np.empty(sections, np.int64)
    crossed = np.empty(sections, np.bool_)
    while nodes > 0:
        if split:
            begin, end = 0, sections
            if position > 0:
                begin, end = frames[position - 1, _LOW], frames[position - 1, _HIGH]
            crossed[begin:end] = False
            low = sections
            for i in range(count):
                if not chosen[i] and begin <= first[i] and last[i] <= end:
                    low = min(low, first[i])
                    crossed[first[i] : last[i] - 1] = True
            if low == sections:
                if position == 0:
                    return 1, position, placed, split
                position -= 1
                continue
            high = low
            while crossed[high]:
                high += 1
            high += 1
            frame = frames[position]
            if position > 0 and low == begin and high == end:
                frame[_AFTER_OFFSET] = frames[position - 1, _OFFSET]
                frame[_AFTER_RANK] = ranks[position - 1, frames[position - 1, _CHOICE]]
                ranks[position] = ranks[position - 1]
            else:
                frame[_AFTER_OFFSET], frame[_AFTER_RANK] = 0, -_FAR
                for i in range(count):
                    if not chosen[i] and low <= first[i] and last[i] <= high:
                        ranks[position, i] = i - count * to_come[position, first[i] : last[i]].max()
            frame[_LOW], frame[_HIGH], frame[_MARK] = low, high, placed
            frame[_OFFSET], frame[_CHOICE] = -1, -1
            split = False

        frame, rank, least = frames[position], ranks[position], lowest[position]
        low, high = frame[_LOW], frame[_HIGH]
        while placed > frame[_MARK]:
            placed -= 1
            chosen[trail[placed]] = False
        offset, after = frame[_AFTER_OFFSET], frame[_AFTER_RANK]
        if frame[_CHOICE] >= 0:
            offset, after = frame[_OFFSET], rank[frame[_CHOICE]]
        choice, lowest_offset, lowest_top = -1, _FAR, _FAR
        for i in range(count):
            if not chosen[i] and low <= first[i] and last[i] <= high:
                lowest_top = min(lowest_top, least[i] + size[i])
                if least[i] < offset or (least[i] == offset and rank[i] <= after):
                    continue
                if least[i] < lowest_offset or (least[i] == lowest_offset and rank[i] < rank[choice]):
                    choice, lowest_offset = i, least[i]
        if choice < 0 or lowest_offset >= lowest_top:
            if position == 0:
                return 2, position, placed, split
            position -= 1
            continue

        nodes -= 1
        frame[_OFFSET], frame[_CHOICE] = lowest_offset, choice
        top = lowest_offset + size[choice]
        begin, end = first[choice], last[choice]
        next_least, next_tops, next_to_come = lowest[position + 1], tops[position + 1], to_come[position + 1]
        next_tops[low:high] = tops[position, low:high]
        next_to_come[low:high] = to_come[position, low:high]
        if window is None:
            next_tops[begin:end] = top
            next_to_come[begin:end] -= size[choice]
        else:
            for w in range(window[choice], window[choice + 1]):
                next_tops[opens[w] : closes[w]] = top
                next_to_come[opens[w] : closes[w]] -= size[choice]
        chosen[choice], offsets[choice], trail[placed] = True, lowest_offset, choice
        placed += 1
        floor[low:high] = _FAR
        for i in range(count):
            if not chosen[i] and low <= first[i] and last[i] <= high:
                at = least[i]
                if first[i] < end and begin < last[i] and at < top:
                    if window is None:
                        at = -(-top // alignment[i]) * alignment[i]
                    else:
                        for v in range(window[i], window[i + 1]):
                            for w in range(window[choice], window[choice + 1]):
                                if opens[v] < closes[w] and opens[w] < closes[v]:
                                    at = -(-top // alignment[i]) * alignment[i]
                next_least[i] = at
                at = max(at, lowest_offset)
                if window is None:
                    for s in range(first[i], last[i]):
                        floor[s] = min(floor[s], at)
                else:
                    for v in range(window[i], window[i + 1]):
                        for s in range(opens[v], closes[v]):
                            floor[s] = min(floor[s], at)
        fits = True
        for s in range(low, high):
            if next_to_come[s] > 0 and max(floor[s], next_tops[s]) + next_to_come[s] > height:
                fits = False
                break
        if fits:
            position += 1
            split = True
    return 0, position, placed, split
