"""Times of work on a stream: alone, and while other streams are busy all along.

That they are busy is not taken for granted: events say whether the others began before the first time that
counts and ended after the last. Where they did not, they are asked for more, and the work is measured anew.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..device import Event, Stream
from ..streams import hold

_MOST = 10_000
"""So often is other work asked for, at most."""

_MARGIN = 1.5
"""How much longer than the work the others are to last, when it is known how long that is."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """Something that a stream is asked for again and again.

    Attributes
    ----------
    name
        What people call it.
    stream
        On which it is done.
    ask
        Asks for it once.
    """

    name: str
    stream: Stream
    ask: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Span:
    """From an event on a stream to a later one."""

    begin: Event
    end: Event

    @property
    def ns(self) -> int:
        return self.end.since_ns(self.begin)


def alone_ns(work: Work, repeat: int) -> int:
    """Return the median time of some work, done `repeat` times and once more before, which does not count."""
    hold([work.stream], repeat + 1)
    return _median(_asked(work, repeat))


def beside_ns(work: Work, others: Sequence[Work], repeat: int) -> int | None:
    """Return the median time of some work beside other work on streams that are never idle meanwhile.

    None where the others are too short to cover it, which the log says.

    Parameters
    ----------
    work
        What is timed, `repeat` times and once more before, which does not count.
    others
        What goes on meanwhile, each on a stream of its own.
    """
    counts = [repeat + 4] * len(others)
    while max(counts) <= _MOST:
        times, spans = _attempt(work, others, counts, repeat)
        last = times[-1].end
        if all(times[0].begin.since_ns(one.begin) >= 0 and one.end.since_ns(last) >= 0 for one in spans):
            return _median(times)
        shares = [last.since_ns(one.begin) / max(one.ns, 1) for one in spans]
        counts = [
            count if share <= 1 else max(2 * count, round(_MARGIN * share * count))
            for count, share in zip(counts, shares, strict=True)
        ]
    short = " and ".join(other.name for other in others)
    _log.warning("%s beside %s is not measured: the latter cannot be kept busy for so long", work.name, short)
    return None


def _attempt(
    work: Work, others: Sequence[Work], counts: Sequence[int], repeat: int
) -> tuple[list[_Span], list[_Span]]:
    """Return the spans of the work that count, and of each of the others from its first time to its last.

    The work begins when each of the others has been done once. The rest of these are asked for after it, in
    turns, for a queue that is full makes the host wait.
    """
    hold([*(other.stream for other in others), work.stream], sum(counts) + repeat + 1)
    begins = []
    for other in others:
        begins.append(other.stream.record())
        other.ask()
        work.stream.wait(other.stream.record())
    spans = _asked(work, repeat)
    for turn in range(1, max(counts)):
        for other, count in zip(others, counts, strict=True):
            if turn < count:
                other.ask()
    busy = [_Span(begin, other.stream.record()) for begin, other in zip(begins, others, strict=True)]
    for one in (*busy, spans[-1]):
        one.end.synchronize()
    return spans, busy


def _asked(work: Work, repeat: int) -> list[_Span]:
    """Ask for the work once, and then as often as it counts; return the spans of these."""
    work.ask()
    spans = []
    for _ in range(repeat):
        start = work.stream.record()
        work.ask()
        spans.append(_Span(start, work.stream.record()))
    return spans


def _median(spans: Sequence[_Span]) -> int:
    spans[-1].end.synchronize()
    return max(1, statistics.median_low(one.ns for one in spans))
