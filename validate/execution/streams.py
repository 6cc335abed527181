"""What is done with the streams of any backend: hold them back, and ask whether they still work."""

from __future__ import annotations

from collections.abc import Sequence

from .device import DeviceError, Event, Stream

HELD = 200
"""Operations that streams are held back for, at most: the driver's queue takes about a thousand launches."""

HELD_NS = 100_000
"""How long for each of them: more than a host needs for one, so that all are queued when the first begins."""


def hold(streams: Sequence[Stream], operations: int) -> Event:
    """Hold streams back while the host asks them for the operations to come; return the event they begin at.

    What the host takes for the first operations is then in no time that counts from that event, as in a
    program whose host is ahead of the device. The hold is a pause of a length that is settled before: nothing
    has to end it, so the host may wait for the streams, or fail, at any time.

    Parameters
    ----------
    streams
        Each waits for the event.
    operations
        How many follow, on all streams together; from 0 on the streams begin at once.
    """
    first, *others = streams
    if operations:
        first.pause(HELD_NS * min(operations, HELD))
    begin = first.record()
    for stream in others:
        stream.wait(begin)
    return begin


def works(stream: Stream) -> bool:
    """Whether a stream still does what it is asked for, after a failure that may have been of one launch."""
    try:
        stream.record().synchronize()
    except DeviceError:
        return False
    return True
