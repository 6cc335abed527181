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
    alive: list[tuple[Buffer, int]] = []
    for buffer, offset in sorted(zip(buffers, offsets, strict=True), key=lambda pair: pair[0].lower):
        alive = [(other, place) for other, place in alive if other.upper > buffer.lower]
        reasons += [
            f"buffers '{other.id}' and '{buffer.id}' share bytes from {max(place, offset)} "
            f"at time {buffer.lower}"
            for other, place in alive
            if place < offset + buffer.size and offset < place + other.size
        ]
        alive.append((buffer, offset))
    return tuple(reasons)
