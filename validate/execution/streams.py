"""Functions for the streams of any backend: to hold them, and to test whether they still work."""

from __future__ import annotations

from collections.abc import Sequence

from .device import DeviceError, Event, Stream

HELD = 200
"""Greatest number of operations for which streams are held; the driver's queue has room for about a thousand
launches.
"""

HELD_NS = 100_000
"""Nanoseconds to hold streams for each operation.

A host needs less time for one operation, so that all operations are queued when the first one begins.
"""


def hold(streams: Sequence[Stream], operations: int) -> Event:
    """Hold streams while the host issues the operations to come; return the event at which they begin.

    So the host's time for the first operations is not part of any time that counts from that event, as in a
    program whose host is ahead of the device. The hold is a pause of fixed length. Nothing has to end it, so
    the host may wait for the streams, or fail, at any time.

    Parameters
    ----------
    streams
        The streams, each of which waits for the event.
    operations
        Number of operations to come on all streams together; with 0, the streams begin at once.
    """
    first, *others = streams
    if operations:
        first.pause(HELD_NS * min(operations, HELD))
    begin = first.record()
    for stream in others:
        stream.wait(begin)
    return begin


def works(stream: Stream) -> bool:
    """Return whether a stream still does work, after a failure that may have been of one launch only."""
    try:
        stream.record().synchronize()
    except DeviceError:
        return False
    return True
