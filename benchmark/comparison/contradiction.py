"""The files of a contradiction: a schedule that was checked, and the bound above it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...instances.files import write_atomically, write_instance
from ...solver.answers import ContradictionError
from ...validate.bounds.certificate import write_certificate
from ...validate.schedule import write_schedule
from ..output.names import file_name


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Write both sides of a contradiction into a folder, and name the files in the error (a context manager).

    For the instance NAME, the files are ``NAME.contradiction.instance.json``, the same with ``schedule`` and
    with ``certificate``, or with ``bound`` if a bound has no certificate. The folder is created if need be.

    Raises
    ------
    ContradictionError
        The original error, with the place of the files.
    """
    try:
        yield
    except ContradictionError as error:
        files = _write(error, folder)
        raise ContradictionError(
            error.instance, error.schedule, error.bound, f"; both are kept as {files}: please report them"
        ) from None


def _write(error: ContradictionError, folder: Path) -> str:
    """Write the files, and return their common path with a star."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{file_name(error.instance)}.contradiction"

    def place(what: str) -> Path:
        return folder / f"{name}.{what}.json"

    checksum = write_instance(error.instance, place("instance"))
    write_schedule(error.schedule, place("schedule"), checksum)
    if error.bound is not None and error.bound.certificate is not None:
        write_certificate(error.bound.certificate, place("certificate"), checksum)
    elif error.bound is not None:
        write_atomically(place("bound"), msgspec.json.encode(error.bound.as_dict()))
    return str(folder / f"{name}.*.json")
