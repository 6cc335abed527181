"""Launch configurations of kernels, closed ones included, by CUPTI's activity records (cupti-python)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ....instances.errors import PebblerError
from ....instances.importers.extras import require_extra

_BUFFER_BYTES = 8 * 2**20
"""Bytes of a buffer for records."""

_FORCED = 1
"""Flag to flush records that are not complete."""


def record_kernels(work: Callable[[], object]) -> list[dict[str, Any]]:
    """Return the kernels that ran during some work, which waits for them, in the order in which they began.

    Each is an object in the form for ``pebbler streams``: ``name``, ``grid``, ``block``, ``shared_bytes``,
    ``registers``, ``duration_ns`` and ``invocations``, which is 1.

    Raises
    ------
    PebblerError
        When cupti-python is not installed, or fails in any way. What the work raises is passed on.
    """
    require_extra("cupti", "profiler")
    found: list[tuple[int, dict[str, Any]]] = []
    try:
        from cupti import cupti

        kind = cupti.ActivityKind.CONCURRENT_KERNEL

        def completed(activities: list[Any]) -> None:
            found.extend((one.start, _described(one)) for one in activities if one.kind == kind)

        cupti.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), completed)
    except Exception as error:  # whatever it says of a libcupti.so that is missing or does not fit
        said = " ".join(str(error).split())
        raise PebblerError(f"CUPTI cannot be loaded ({said}); install nvidia-cuda-cupti from PyPI") from None
    with _failing():
        cupti.activity_enable(kind)
    try:
        work()
        with _failing():
            cupti.activity_flush_all(_FORCED)
    finally:
        with _failing():
            cupti.activity_disable(kind)
    return [kernel for _, kernel in sorted(found, key=lambda pair: pair[0])]


@contextlib.contextmanager
def _failing() -> Iterator[None]:
    """Turn an error of another package into one sentence, whatever its version and the machine."""
    try:
        yield
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise PebblerError(
            f"CUPTI cannot record kernels ({said}); install CUPTI for this driver, and let this user profile "
            "the GPU"
        ) from None


def _described(activity: Any) -> dict[str, Any]:
    return {
        "name": activity.name,
        "grid": [activity.grid_x, activity.grid_y, activity.grid_z],
        "block": [activity.block_x, activity.block_y, activity.block_z],
        "shared_bytes": activity.static_shared_memory + activity.dynamic_shared_memory,
        "registers": activity.registers_per_thread,
        "duration_ns": activity.end - activity.start,
        "invocations": 1,
    }
