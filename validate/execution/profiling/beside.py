"""Times of work on a stream: alone, and while other streams are busy all the time.

The other streams are not assumed to be busy. Events show whether their work began before the first time that
counts and ended after the last. If not, more of their work is issued, and all is measured again.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..device import Event, Stream
from ..streams import hold

_MOST = 10_000
"""Greatest number of times that the other work is issued."""

_MARGIN = 1.5
"""Ratio of the duration of the other work to that of the measured work, once both are known."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Work:
    """Work that is issued to a stream any number of times.

    Attributes
    ----------
    name
        Its name for people.
    stream
        The stream of the work.
    ask
        Function that issues it once.
    """

    name: str
    stream: Stream
    ask: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Span:
    """The time from an event on a stream to a later event."""

    begin: Event
    end: Event

    @property
    def ns(self) -> int:
        """Nanoseconds between the events."""
        return self.end.since_ns(self.begin)


def alone_ns(work: Work, repeat: int) -> int:
    """Return the median time of some work in nanoseconds.

    The work is done `repeat` times, after a first time that does not count.
    """
    hold([work.stream], repeat + 1)
    return _median(_asked(work, repeat))


def beside_ns(work: Work, others: Sequence[Work], repeat: int) -> int | None:
    """Return the median time of some work in nanoseconds, while other streams are never idle.

    Returns None, with a message in the log, if the other work is too short to cover it.

    Parameters
    ----------
    work
        The work to measure: `repeat` times, after a first time that does not count.
    others
        The other work, each on its own stream.
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
    """Return the spans of the work that count, and each other work's span from its first time to its last.

    The work begins when each of the others has been done once. The rest of the others is issued after the
    work, in turns, because the host waits when a queue is full.
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
    """Issue the work once, and then as often as it counts; return the spans of these times."""
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
