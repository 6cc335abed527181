"""The pictures of a comparison; if there are many, two processes draw them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from ...instances.instance import Instance
from ...instances.processes.child import Child, ChildEnded
from ...validate.schedule import Schedule
from ..output.machine import usable_cores

if TYPE_CHECKING:
    from ..comparison.result import Comparison

ALONE = 4
"""Number of pictures that one process draws sooner than another process would help."""


class Picture(NamedTuple):
    """A file, and the call that draws its content."""

    path: Path
    draw: Callable[..., bytes]
    arguments: tuple[object, ...]


@contextmanager
def drawer(pictures: int) -> Iterator[Child | None]:
    """Return a process that loads the drawing code, or None if so many pictures are drawn sooner without it.

    The process does not draw before `drawn` asks for it, because methods that run meanwhile are measured.
    """
    if pictures <= ALONE or usable_cores() == 1:
        yield None
        return
    with Child() as child:
        child.start(_load)
        yield child


def drawn(pictures: Sequence[Picture], other: Child | None) -> Iterator[tuple[Path, bytes]]:
    """Draw pictures as PNG from both ends; the other process, if there is one, begins with the first."""
    waiting = deque(pictures)
    there: Picture | None = None
    while waiting:
        if other is not None and other.done():
            if there is not None:
                yield there.path, _drawn_by(other, there)
            there = waiting.popleft()
            other.start(there.draw, *there.arguments)
        if waiting:
            here = waiting.pop()
            yield here.path, here.draw(*here.arguments)
    if other is not None and there is not None:
        yield there.path, _drawn_by(other, there)


def _drawn_by(other: Child, picture: Picture) -> bytes:
    """Wait for a picture from another process; if that process has ended, draw the picture here."""
    try:
        return cast(bytes, other.result())
    except ChildEnded:
        return picture.draw(*picture.arguments)


def timeline(instance: Instance, schedule: Schedule, made: str) -> bytes:
    """Draw a timeline as `plots` does."""
    from .schedule import timeline  # with it comes matplotlib

    return timeline(instance, schedule, made)


def overview(comparison: Comparison, made: str) -> bytes:
    """Draw methods side by side as `plots` does."""
    from .schedule import overview

    return overview(comparison, made)


def _load() -> None:
    from . import schedule as plots  # noqa: F401
