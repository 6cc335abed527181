"""The files of a comparison: instances, schedules and pictures in one folder."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, cast

from msgspec.structs import replace

from ..instances.errors import PebblerError
from ..instances.files import write_atomically, write_instance
from ..instances.instance import Instance
from ..solver.child import Child
from ..validate.schedule import write_schedule
from .compare import Comparison
from .machine import made_here, usable_cores
from .plots import overview, timeline

_log = logging.getLogger(__name__)

_ALONE = 4
"""Number of pictures that are drawn sooner than another process would help."""


class _Picture(NamedTuple):
    """A file, and the call that draws what is in it."""

    path: Path
    draw: Callable[..., bytes]
    arguments: tuple[object, ...]


def export(comparison: Comparison, directory: Path) -> tuple[Path, ...]:
    """Write a comparison's files into a folder, which is made unless it is there, and return their paths.

    For each instance NAME: ``NAME.instance.json``, and for each method with a schedule
    ``NAME.METHOD.schedule.json`` and its timeline ``NAME.METHOD.png``; for the whole, ``NAME.png`` with the
    name of the first instance. Schedules carry the checksum of their instance's file. A comparison that was
    interrupted has no pictures: who interrupts does not wait for them.

    Raises
    ------
    PebblerError
        When the folder or a file cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PebblerError(f"{directory} cannot be made: {error.strerror or error}") from None
    _log.debug("writing files and pictures")
    written: list[Path] = []
    pictures: list[_Picture] = []
    checksums: dict[str, str] = {}
    for row in comparison.rows:
        for instance, schedule in zip_longest(row.instances, row.schedules):
            name = file_name(instance)
            if name not in checksums:
                path = directory / f"{name}.instance.json"
                checksums[name] = write_instance(instance, path)
                written.append(path)
            if schedule is None:
                continue
            path = directory / f"{name}.{row.method}.schedule.json"
            write_schedule(replace(schedule, instance_sha256=checksums[name]), path)
            written.append(path)
            if not comparison.interrupted:
                path = directory / f"{name}.{row.method}.png"
                pictures.append(_Picture(path, timeline, (instance, schedule, made_here())))
                written.append(path)
    if comparison.rows and not comparison.interrupted:
        path = directory / f"{file_name(comparison.instance)}.png"
        pictures.append(_Picture(path, overview, (comparison, made_here())))
        written.append(path)
    for path, content in _drawn(pictures):
        write_atomically(path, content)
    return tuple(written)


def _drawn(pictures: Sequence[_Picture]) -> Iterator[tuple[Path, bytes]]:
    """Draw pictures from both ends: where they are many, another process begins with the last."""
    waiting = deque(pictures)
    with ExitStack() as stack:
        other = stack.enter_context(Child()) if len(pictures) > _ALONE and usable_cores() > 1 else None
        there: Path | None = None
        while waiting:
            if other is not None and other.done():
                if there is not None:
                    yield there, cast(bytes, other.result())
                there, draw, arguments = waiting.pop()
                other.start(draw, *arguments)
            if waiting:
                path, draw, arguments = waiting.popleft()
                yield path, draw(*arguments)
        if other is not None and there is not None:
            yield there, cast(bytes, other.result())


def file_name(instance: Instance) -> str:
    """Name of an instance, without what might lead out of the folder."""
    return re.sub(r"[^\w.-]+", "-", instance.name).lstrip(".") or "instance"
