"""The files of a comparison: instances, schedules and pictures in one folder."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path

from ...instances.errors import PebblerError
from ...instances.files import write_atomically, write_instance
from ...instances.processes.child import Child
from ...validate.schedule import write_schedule
from ..comparison.result import Comparison
from ..output.machine import made_here
from ..output.names import file_name, method_file_name
from .drawn import Picture, drawer, drawn, overview, timeline

_log = logging.getLogger(__name__)


def export(comparison: Comparison, directory: Path, other: Child | None = None) -> tuple[Path, ...]:
    """Write a comparison's files into a folder, which is created if need be, and return their paths.

    For each instance NAME: ``NAME.instance.json``, and for each method with a schedule
    ``NAME.METHOD.schedule.json`` and its timeline ``NAME.METHOD.png``; for the comparison, ``NAME.png`` with
    the name of the first instance. Schedules carry the checksum of their instance's file. A comparison that
    was interrupted has no pictures, so that the user need not wait for them.

    Parameters
    ----------
    comparison, directory
        The comparison, and the folder.
    other
        A process from `drawer` that helps, if one was started before.

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
    pictures: list[Picture] = []
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
            stem = f"{name}.{method_file_name(row.method)}"
            path = directory / f"{stem}.schedule.json"
            write_schedule(schedule, path, checksums[name])
            written.append(path)
            if not comparison.interrupted:
                path = directory / f"{stem}.png"
                pictures.append(Picture(path, timeline, (instance, schedule, made_here())))
                written.append(path)
    if comparison.rows and not comparison.interrupted:
        path = directory / f"{file_name(comparison.instance)}.png"
        pictures.append(Picture(path, overview, (comparison, made_here())))
        written.append(path)
    with drawer(len(pictures)) if other is None else nullcontext(other) as helper:
        for path, content in drawn(pictures, helper):
            write_atomically(path, content)
    return tuple(written)
