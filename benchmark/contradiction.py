"""Keeping both sides of a contradiction: a schedule that was checked, and the bound above it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..instances.files import write_atomically, write_instance
from ..solver.answers import ContradictionError
from ..validate.certificate import write_certificate
from ..validate.schedule import write_schedule


@contextmanager
def keeping(folder: Path) -> Iterator[None]:
    """Write what contradicts each other into a folder, which is made, and say so in the error.

    These are, for the instance NAME, ``NAME.contradiction.instance.json``, the same with ``schedule`` and
    with ``certificate``, or with ``bound`` where a bound has no certificate.

    Raises
    ------
    ContradictionError
        The one that comes, with the files' names.
    """
    try:
        yield
    except ContradictionError as error:
        files = ", ".join(str(path) for path in _write(error, folder))
        raise ContradictionError(
            error.instance, error.schedule, error.bound, f"; both are kept in {files}: please report them"
        ) from None


def _write(error: ContradictionError, folder: Path) -> Iterator[Path]:
    from .export import file_name  # with it comes what draws pictures

    folder.mkdir(parents=True, exist_ok=True)

    def place(what: str) -> Path:
        return folder / f"{file_name(error.instance)}.contradiction.{what}.json"

    yield (path := place("instance"))
    checksum = write_instance(error.instance, path)
    yield (path := place("schedule"))
    write_schedule(msgspec.structs.replace(error.schedule, instance_sha256=checksum), path)
    if error.bound is None:
        return
    if error.bound.certificate is not None:
        yield (path := place("certificate"))
        write_certificate(error.bound.certificate, path, checksum)
    else:
        yield (path := place("bound"))
        write_atomically(path, msgspec.json.encode(error.bound.as_dict()))
