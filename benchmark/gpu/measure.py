"""Measuring a GPU stage by stage: each unit in a process of its own, and whatever fails, the rest goes on.

A lost CUDA context makes everything after it in its process fail, so no two units share one. What a unit
leaves is a file of the folder. Beside these there are ``machine.json``, ``failures.json`` with what failed,
and ``log.txt`` with all that the processes said.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import math
import os
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...instances.errors import PebblerError
from ...instances.files import write_atomically
from ...instances.processes.child import Child, ChildEnded
from ...instances.units import format_size
from ...validate.execution.backends import find_backend
from ..output.machine import origin
from ..output.markdown import publish
from . import smoke
from . import stages as measure_stages
from .page import tables
from .stages import Unit, read, write
from .study import SMOKE, Study

MARKS = "<!-- begin gpu -->\n", "<!-- end of gpu -->"
"""What the tables stand between in a page."""

LARGEST_ARCHIVE = 16 * 2**20
"""Bytes of an archive beyond which a warning is given: machines that are lent give back so much in a file."""

_CLOSING_SECONDS = 3.0
"""Time of a command that is left for what comes after the last unit."""
_MACHINE_SECONDS = 120.0
"""Wall limit for opening the GPU."""
_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage measures, what it cannot do without, and what it makes of its units and their failures."""

    units: Callable[[Study], Iterator[Unit]]
    require: Callable[[], None] | None = None
    finish: Callable[[Study, dict[str, str]], None] | None = None


STAGES = {
    SMOKE: Stage(smoke.units, finish=smoke.put_together),
    "profile": Stage(measure_stages.profiles),
    "kernels": Stage(measure_stages.kernels),
    "streams": Stage(measure_stages.streams),
    "solve": Stage(measure_stages.solutions),
    "run": Stage(measure_stages.runs),
    "torch": Stage(measure_stages.trainings, require=measure_stages.require_torch),
}
"""All stages but the page, which needs no process."""


@dataclass(slots=True)
class Outcome:
    """What became of the units of a command.

    Attributes
    ----------
    measured, there
        How many were measured now, and how many the folder had.
    failed
        What failed, and the sentence that says why.
    skipped
        What could not be measured yet, and why.
    left
        What there was no time for: the next command goes on with it.
    interrupted
        Whether Ctrl-C or a signal ended the command.
    """

    measured: int = 0
    there: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    interrupted: bool = False


# --- the command ----------------------------------------------------------------------------------------


def measure(
    study: Study,
    stages: Sequence[str],
    *,
    time_limit: float | None = None,
    unit_limit: float | None = None,
    archive: Path | None = None,
    page: Path | None = None,
) -> Outcome:
    """Measure what the folder lacks, stage after stage.

    Parameters
    ----------
    study
        What to measure; the folder is there.
    stages
        Names, in the order in which they are done.
    time_limit
        Seconds of the whole; what is under way then is ended, and left for the next time.
    unit_limit
        Seconds of a unit; one that takes longer has failed.
    archive
        Where all results are packed, after every stage that leaves some.
    page
        What gets the tables in the stage ``page``; None: standard output.

    Raises
    ------
    PebblerError
        When a file of the folder, the archive or the page cannot be read or written.
    """
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit - _CLOSING_SECONDS
    work = _Work(study, deadline, math.inf if unit_limit is None else unit_limit)
    try:
        for name in stages:
            if name == "page":
                publish(tables(study), page, *MARKS)
            else:
                work.do(name, STAGES[name])
            if archive is not None:
                pack(study.folder, archive)
    except KeyboardInterrupt:
        work.outcome.interrupted = True
        if archive is not None:
            pack(study.folder, archive)
    return work.outcome


class _Work:
    """The units of a study, done one after the other."""

    def __init__(self, study: Study, deadline: float, unit_limit: float) -> None:
        self.outcome = Outcome()
        self._study = study
        self._deadline = deadline
        self._unit_limit = unit_limit
        self._told: set[str] = set()
        self._failures = _Failures(study.folder / "failures.json")

    def do(self, name: str, stage: Stage) -> None:
        """Do a stage: whatever fails in it, the rest of it is done."""
        failed: dict[str, str] = {}
        try:
            if stage.require is not None and not self._one(
                name, Unit(name, stage.require, (), _never), failed
            ):
                return
            for unit in stage.units(self._study):
                self._one(f"{name} {unit.name}", unit, failed)
        finally:
            if stage.finish is not None:
                stage.finish(self._study, failed)

    def _one(self, name: str, unit: Unit, failed: dict[str, str]) -> bool:
        """Do a unit, and say whether nothing is wrong."""
        outcome, began = self.outcome, time.monotonic()
        wrong: str | None
        try:
            if unit.is_done():
                outcome.there += 1
                return True
            if (reason := unit.lacks()) is not None:
                outcome.skipped[name] = reason
                self._tell(logging.WARNING, f"skipped: {reason}")
                return False
            limit = min(self._unit_limit, self._deadline - began)
            if limit <= 0:
                outcome.left.append(name)
                return False
            _log.info("%s", name)
            wrong = self._in_process(name, unit, None if limit == math.inf else limit)
        except ChildEnded as ended:
            if time.monotonic() >= self._deadline and ended.wanted:
                outcome.left.append(name)
                return False
            wrong = f"the process that measured it failed: {ended}"
        except Exception as error:
            wrong = sentence(error)
        if wrong is None:
            outcome.measured += unit.is_done is not _never
            self._failures.forget(name)
            return True
        outcome.failed[name] = failed[unit.name] = wrong
        self._failures.note(name, wrong, time.monotonic() - began)
        self._tell(logging.WARNING, f"failed: {name}: {wrong}")
        return False

    def _in_process(self, name: str, unit: Unit, limit: float | None) -> str | None:
        log = self._study.folder / "log.txt"
        said = _Said(log, name, self._tell)
        with Child() as child:
            child.start(work, log, name, unit.call, unit.arguments, wall_limit=limit)
            while not child.done():
                time.sleep(_LOOK_SECONDS)
                said.pass_on()
            try:
                answer = child.result()
            finally:
                said.pass_on()
        assert answer is None or isinstance(answer, str)
        return answer

    def _tell(self, level: int, text: str) -> None:
        """Log a message; every process may have the same warning, which is told once."""
        if level >= logging.WARNING and text in self._told:
            return
        self._told.add(text)
        _log.log(level, "%s", text)


def _never() -> bool:
    """Say that what a stage requires is looked at every time."""
    return False


def sentence(error: Exception) -> str:
    """Say what an exception is."""
    if isinstance(error, PebblerError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


# --- the machine ----------------------------------------------------------------------------------------


def require_machine() -> dict[str, Any]:
    """Open the GPU in a process of its own, and say what it is; nothing is written.

    Raises
    ------
    PebblerError
        When PyCUDA, the driver or a GPU is not there, or it does not open.
    """
    with Child() as child:
        child.start(machine, wall_limit=_MACHINE_SECONDS)
        try:
            found = child.result()
        except ChildEnded as ended:
            raise PebblerError(f"the GPU cannot be opened: {ended}; see nvidia-smi") from None
    assert isinstance(found, dict)
    return found


def machine() -> dict[str, Any]:
    """Return the GPU, the versions of what runs on it, and the machine around it."""
    backend = find_backend("cuda")()
    try:
        about = origin()
        return {
            "device": backend.device,
            "memory_bytes": backend.memory_bytes(),
            "versions": backend.versions(),
            "machine": about.machine,
            "python": about.python,
            "packages": about.packages,
            "revision": about.revision,
            "date": datetime.now(UTC).date().isoformat(),
        }
    finally:
        backend.close()


def keep_machine(folder: Path, found: dict[str, Any]) -> None:
    """Write down what a folder's results were measured on, once; refuse those of two GPUs in one.

    Raises
    ------
    PebblerError
        When the folder has those of another GPU.
    """
    path = folder / "machine.json"
    if not path.exists():
        write(path, found)
    elif (other := read(path).get("device")) != found["device"]:
        raise PebblerError(
            f"{folder} has what was measured on '{other}', and this is '{found['device']}'; give another "
            "folder as --out"
        )


# --- in the process of a unit ---------------------------------------------------------------------------


def work(log: Path, name: str, call: Callable[..., str | None], arguments: tuple[object, ...]) -> str | None:
    """Do a unit in this process; all that is said goes to the log.

    Raises
    ------
    PebblerError
        Whatever goes wrong: other exceptions may not survive the way back.
    """
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.enable()
    logging.basicConfig(stream=sys.stderr, format=f"%(asctime)s {name}: %(levelname)s: %(message)s")
    logging.getLogger("pebbler").setLevel(logging.INFO)
    try:
        return call(*arguments)
    except PebblerError:
        raise
    except Exception as error:
        _log.info("the exception in full", exc_info=True)
        raise PebblerError(sentence(error)) from None


class _Said:
    """What the process of a unit adds to the log, passed on while it works."""

    def __init__(self, log: Path, name: str, tell: Callable[[int, str], None]) -> None:
        self._log, self._name, self._tell = log, name, tell
        self._at = log.stat().st_size if log.exists() else 0
        self._line = re.compile(rf"[\d-]+ [\d:,]+ {re.escape(name)}: (INFO|WARNING|ERROR): (.*)")

    def pass_on(self) -> None:
        """Tell the messages that have come since."""
        if not self._log.exists():
            return
        with self._log.open("rb") as file:
            file.seek(self._at)
            whole, end, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(end)
        for line in whole.decode("utf-8", "replace").splitlines():
            if (match := self._line.fullmatch(line)) is not None:
                level = logging.getLevelNamesMapping()[match[1]]
                self._tell(level, match[2] if level >= logging.WARNING else f"{self._name}: {match[2]}")


# --- what failed ----------------------------------------------------------------------------------------


class _Failures:
    """The file of what failed and has not been measured since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = read(path) if path.exists() else {}

    def note(self, name: str, wrong: str, seconds: float) -> None:
        """Write down a failure."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        self._found[name] = {"sentence": wrong, "seconds": round(seconds, 1), "date": date}
        write(self._path, self._found)

    def forget(self, name: str) -> None:
        """Strike out what has been measured after all."""
        if self._found.pop(name, None) is not None:
            write(self._path, self._found)


# --- the archive ----------------------------------------------------------------------------------------


def pack(folder: Path, archive: Path) -> None:
    """Pack all results into a compressed archive, under the name of their folder; of none, make no archive.

    Raises
    ------
    PebblerError
        When it cannot be written.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    files = [path for path in files if path.resolve() != archive.resolve()]
    if not files:
        return
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=9) as tar:
        for path in files:
            tar.add(path, f"{folder.resolve().name}/{path.name}")
    data = made.getvalue()
    write_atomically(archive, data)
    if len(data) > LARGEST_ARCHIVE:
        _log.warning(
            "%s has %s, more than %s; pack a part of %s",
            archive,
            format_size(len(data)),
            format_size(LARGEST_ARCHIVE),
            folder,
        )
