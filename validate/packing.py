"""The check of a packing, which shares only the buffers with the solver."""

from __future__ import annotations

from collections.abc import Sequence

from ..instances.buffers import Buffer


def check_packing(
    buffers: Sequence[Buffer], offsets: Sequence[int], capacity: int | None = None
) -> tuple[str, ...]:
    """Return every reason why a packing is wrong; none if it is right.

    Parameters
    ----------
    buffers, offsets
        An offset in bytes for each buffer.
    capacity
        Greatest end of a buffer in bytes; None allows any height.
    """
    if len(offsets) != len(buffers):
        return (f"there are {len(offsets)} offsets for {len(buffers)} buffers",)
    reasons = []
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0:
            reasons.append(f"buffer '{buffer.id}' is at {offset}, before the first byte")
        if offset % buffer.alignment:
            reasons.append(f"buffer '{buffer.id}' is at {offset}, no multiple of {buffer.alignment}")
        if capacity is not None and offset + buffer.size > capacity:
            reasons.append(f"buffer '{buffer.id}' ends at {offset + buffer.size}, beyond {capacity}")
    stays = [
        (begin, end, buffer, offset)
        for buffer, offset in zip(buffers, offsets, strict=True)
        for begin, end in buffer.stays
    ]
    alive: list[tuple[int, Buffer, int]] = []
    for begin, end, buffer, offset in sorted(stays, key=lambda stay: stay[0]):
        alive = [stay for stay in alive if stay[0] > begin]
        reasons += [
            f"buffers '{other.id}' and '{buffer.id}' share bytes from {max(place, offset)} at time {begin}"
            for _, other, place in alive
            if place < offset + buffer.size and offset < place + other.size
        ]
        alive.append((end, buffer, offset))
    return tuple(reasons)
