"""The results of a sweep: an SQLite file with one row for each run, and a folder for instances and schedules.

A run is added as a whole, after its files, so that a sweep may be killed at any moment. The names of files
are their checksums: files of a run that was never added do no harm.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from hashlib import sha256
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from ...instances.errors import PebblerError
from ...instances.files import write_atomically
from ..output.machine import Origin
from .jobs import Found, Setting
from .problems import About
from .protocol import Protocol

_APPLICATION = 0x7065_6262
"""Application number ``pebb`` in the file's header."""

_VERSION = 2
"""Version of the file's tables. Version 1, which is read and written as well, lacks some columns."""

_ADDED = ("solver", "kernel_seconds")
"""Columns that version 1 lacks."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was made: its question, result, cost and machine.

    Attributes
    ----------
    fingerprint
        Checksum by which two runs are the same (`Job.fingerprint`).
    about
        Description of the problem.
    seed, setting, found, origin
        Seed and setting of the job; result and origin of its measurement.
    wall_seconds
        Lifetime of the run's process in seconds; None if its worker was lost.
    kernel_seconds
        Time of the fixed kernel on the machine in seconds; None if it was not timed.
    date
        Day of the measurement.
    """

    fingerprint: str
    about: About
    seed: int
    setting: Setting
    found: Found
    wall_seconds: float | None
    date: str
    origin: Origin
    kernel_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def flat(self) -> dict[str, Any]:
        """Return all fields by name, including those of the parts."""
        own = {name: getattr(self, name) for name in _OWN}
        return own | {name: getattr(getattr(self, part), name) for part in _PARTS for name in _PARTS[part]}


_PARTS = {
    "about": tuple(f.name for f in fields(About)),
    "setting": tuple(f.name for f in fields(Setting)),
    "found": Found.__struct_fields__,
    "origin": tuple(f.name for f in fields(Origin)),
}
"""Fields of each part of a run."""

_OWN = tuple(name for name in Run.__struct_fields__ if name not in _PARTS)
"""Fields of a run that are no parts."""

COLUMNS = (*_OWN, *(name for names in _PARTS.values() for name in names))
"""Columns of the table."""

_JSON = ("without", "instances", "schedules", "trace", "packages")
"""Columns whose cells are JSON."""


class Results:
    """A results file with its folder.

    Parameters
    ----------
    path
        The SQLite file; the folder beside it has its name with the ending ``.files``.
    write
        Whether to create the file if it is missing, and to write to it.

    Raises
    ------
    PebblerError
        When the file cannot be opened, or is not a results file.
    """

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        if not path.name:
            raise PebblerError(f"'{path}' is no results file; give one that pebbler bench made")
        self.folder = path.with_suffix(".files")
        self._made = write and not path.exists()
        if not write and not path.exists():
            raise PebblerError(f"{path} cannot be read: there is no such file; pebbler bench makes one")
        if not self._made and not path.is_file():
            raise PebblerError(f"{path} is no file, and cannot hold results")
        uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        with _told(path):
            self._database = sqlite3.connect(uri, uri=True)
        try:
            self._prepare(write)
        except PebblerError:
            self._give_up()
            raise

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._database.close()
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Close the file after a failure; a new file without runs is removed."""
        try:
            empty = self._made and not self._database.execute("SELECT count(*) FROM runs").fetchone()[0]
        except sqlite3.Error:
            empty = self._made
        self._database.close()
        if empty:
            Path(os.path.realpath(self.path)).unlink(missing_ok=True)

    def fingerprints(self, *, failed: bool = True) -> set[str]:
        """Return the fingerprints of all runs, or of those that have not failed."""
        condition = "" if failed else " WHERE status != 'error'"
        return {row[0] for row in self._execute(f"SELECT fingerprint FROM runs{condition}")}

    def add(
        self,
        run: Run,
        instances: Iterable[bytes] = (),
        schedules: Iterable[bytes] = (),
        certificates: Iterable[bytes] = (),
    ) -> None:
        """Add a run after its files; it replaces a run with the same fingerprint."""
        for place, files in (
            (self.instance_file, instances),
            (self.schedule_file, schedules),
            (self.certificate_file, certificates),
        ):
            for data in files:
                _keep(place(sha256(data).hexdigest()), data)
        cells = cells_of(run)
        self._execute(
            f"INSERT OR REPLACE INTO runs ({', '.join(cells)}) VALUES ({', '.join('?' * len(cells))})",
            list(cells.values()),
        )

    def add_title(self, title: str) -> None:
        """Add the title of a configuration whose runs are here."""
        self._execute("CREATE TABLE IF NOT EXISTS titles (title TEXT PRIMARY KEY)")
        self._execute("INSERT OR IGNORE INTO titles VALUES (?)", [title])

    def titles(self) -> list[str]:
        """Return the titles of the configurations, in order; an old file has none."""
        if not self._has("titles"):
            return []
        return [str(title) for (title,) in self._execute("SELECT title FROM titles ORDER BY rowid")]

    def set_protocol(self, title: str, protocol: Protocol | None) -> None:
        """Say by which protocol the runs are made; None for runs without one.

        Raises
        ------
        PebblerError
            When the file has runs by other rules.
        """
        asked = None if protocol is None else (title, protocol)
        known = self.protocol()
        if known == asked:
            return
        if known is not None or self.fingerprints():
            rules = "no protocol" if known is None else known[0]
            raise PebblerError(f"{self.path} has runs by {rules}; give another file, as in -o mine.sqlite")
        self._execute("CREATE TABLE protocols (title TEXT, rules TEXT)")
        self._execute("INSERT INTO protocols VALUES (?, ?)", [title, msgspec.json.encode(protocol).decode()])

    def protocol(self) -> tuple[str, Protocol] | None:
        """Return title and rules of the protocol by which the runs were made, if there is one.

        Raises
        ------
        PebblerError
            When the file is damaged.
        """
        if not self._has("protocols"):
            return None
        try:
            ((title, rules),) = self._execute("SELECT title, rules FROM protocols")
            return str(title), msgspec.json.decode(rules, type=Protocol)
        except (msgspec.MsgspecError, PebblerError, TypeError, ValueError) as error:
            raise PebblerError(f"{self.path} is damaged: {error}") from None

    def _has(self, table: str) -> bool:
        """Return whether the file has a table."""
        return bool(self._execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", [table]))

    def instance_file(self, name: str) -> Path:
        """Return the path of the instance with a checksum."""
        return self.folder / "instances" / f"{name}.instance.json"

    def schedule_file(self, name: str) -> Path:
        """Return the path of the schedule with a checksum."""
        return self.folder / "schedules" / f"{name}.schedule.json"

    def certificate_file(self, name: str) -> Path:
        """Return the path of a certificate that a schedule contradicts, by its checksum."""
        return self.folder / "certificates" / f"{name}.certificate.json"

    def runs(self) -> list[Run]:
        """Return all runs in the order in which they were added.

        Raises
        ------
        PebblerError
            When the file is damaged.
        """
        columns = [name for name in COLUMNS if name not in _ADDED or self._version == _VERSION]
        rows = self._execute(f"SELECT {', '.join(columns)} FROM runs ORDER BY rowid")
        try:
            return [_run(columns, row) for row in rows]
        except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:  # of cells of another type
            raise PebblerError(f"{self.path} is damaged: {error}") from None

    def _prepare(self, write: bool) -> None:
        """Create the table in a new file; refuse a file that is no results file."""
        ((tables,),) = self._execute("SELECT count(*) FROM sqlite_master")
        if write and not tables:
            columns = ", ".join(COLUMNS).replace("fingerprint", "fingerprint TEXT PRIMARY KEY", 1)
            self._execute(f"PRAGMA application_id = {_APPLICATION}")
            self._execute(f"PRAGMA user_version = {_VERSION}")
            self._execute(f"CREATE TABLE runs ({columns})")
        ((application,),) = self._execute("PRAGMA application_id")
        ((version,),) = self._execute("PRAGMA user_version")
        if application != _APPLICATION:
            raise PebblerError(f"{self.path} is not a results file; give one that pebbler bench made")
        self._version = version
        if version == 1 and write:
            for name in _ADDED:
                self._execute(f"ALTER TABLE runs ADD COLUMN {name}")
            self._execute(f"PRAGMA user_version = {_VERSION}")
            self._version = _VERSION
        if version not in (1, _VERSION):
            raise PebblerError(
                f"{self.path} is a results file of format {version}, and this pebbler reads {_VERSION}; "
                "use the pebbler that made it"
            )

    def _execute(self, command: str, cells: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a command, which is done as a whole or not at all."""
        with _told(self.path), self._database:
            return self._database.execute(command, cells).fetchall()


def _keep(place: Path, data: bytes) -> None:
    """Write a file unless it exists: its name is the checksum of its content."""
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, data)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Return SQLite's error about a file as a sentence."""
    try:
        yield
    except sqlite3.Error as error:
        raise PebblerError(f"{path} cannot be used as a results file: {error}") from None
    except UnicodeDecodeError:  # Python cannot read what SQLite says of names in a damaged file
        raise PebblerError(f"{path} is damaged: it has names that are no text") from None


def cells_of(run: Run) -> dict[str, Any]:
    """Return the cells of a run's row: numbers, texts, and JSON for the rest."""
    return {
        name: msgspec.json.encode(value).decode() if name in _JSON else None if value is UNSET else value
        for name, value in run.flat().items()
    }


def _run(columns: Sequence[str], row: Iterable[Any]) -> Run:
    values = {
        name: msgspec.json.decode(cell) if name in _JSON else cell
        for name, cell in zip(columns, row, strict=True)
    }
    if values.get("solver") is None:  # the default
        values.pop("solver", None)
    parts = {
        part: {name: values.pop(name) for name in names if name in values} for part, names in _PARTS.items()
    }
    return msgspec.convert(values | parts, Run, strict=False)


def read_latest(path: Path) -> list[Run]:
    """Return the last run of each measurement in a results file, whatever version it was made with.

    A measurement is a problem by name, a setting and a seed.
    """
    with Results(path) as results:
        return list({(run.about.problem, run.setting, run.seed): run for run in results.runs()}.values())


def origins(runs: Iterable[Run], *, most: int | None = None) -> list[str]:
    """Return where and when runs were made, as a text for each machine, version and revision.

    If these are more than `most`, one text counts them.
    """
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(str(run.origin), []).append(run.date)
    if most is not None and len(found) > most:
        dates = list(chain.from_iterable(found.values()))
        return [f"{_counted(dates)}: {len(found)} machines, versions or revisions"]
    return [f"{_counted(dates)}: {text}" for text, dates in found.items()]


def _counted(dates: Sequence[str]) -> str:
    return f"{len(dates)} runs, {' to '.join(sorted({min(dates), max(dates)}))}"
