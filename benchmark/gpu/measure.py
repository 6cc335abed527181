"""Measurement of a GPU stage by stage, with each unit in its own process; after a failure, the others go on.

After a CUDA context is lost, everything in its process fails. So no two units share a process. The result of
a unit is a file of the folder. The folder also has ``machine.json``, ``failures.json`` with the failures, and
``log.txt`` with the messages of the processes.
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
from . import steps as measure_steps
from .page import tables
from .stages import Unit, read, write
from .study import SMOKE, Study

MARKS = "<!-- begin gpu -->\n", "<!-- end of gpu -->"
"""Marks in a page between which the tables stand."""

LARGEST_ARCHIVE = 16 * 2**20
"""Bytes of an archive above which a warning is given, as machines that are lent return files up to this size.
"""

_CLOSING_SECONDS = 3.0
"""Seconds of a command's time limit that are reserved for the work after the last unit."""

_MACHINE_SECONDS = 120.0
"""Wall time limit in seconds for opening the GPU."""

_LOOK_SECONDS = 0.05
"""Seconds between two looks at the process of a unit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its units, its requirements, and its use of results and failures."""

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
    "steps": Stage(measure_steps.records, require=measure_stages.require_torch),
    "plans": Stage(measure_steps.plans),
    "trials": Stage(measure_steps.runs, require=measure_stages.require_torch),
}
"""All stages but the page, which needs no process."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a command's units.

    Attributes
    ----------
    measured, there
        Number of units measured now, and number of units that the folder had.
    failed
        Failed units, each with a sentence that says why.
    skipped
        Units that could not be measured yet, each with the reason.
    left
        Units for which there was no time; the next command continues with them.
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
    """Measure the units whose results the folder does not have, stage after stage.

    Parameters
    ----------
    study
        The study to measure; its folder exists.
    stages
        Names of the stages in order.
    time_limit
        Time limit in seconds of the whole command. A unit that is under way then is ended, and is left for
        the next command.
    unit_limit
        Time limit in seconds of a unit; a unit that takes longer has failed.
    archive
        Archive into which all results are packed after every stage with results.
    page
        Page that gets the tables in the stage ``page``; None means standard output.

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
        """Do a stage; after a failure, the rest of the stage is done."""
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
        """Do a unit; return whether it succeeded."""
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
        """Log a message; a warning that every process may give is logged once."""
        if level >= logging.WARNING and text in self._told:
            return
        self._told.add(text)
        _log.log(level, "%s", text)


def _never() -> bool:
    """Return that a stage's requirement is checked every time."""
    return False


def sentence(error: Exception) -> str:
    """Return an exception as a sentence."""
    if isinstance(error, PebblerError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


# --- the machine ----------------------------------------------------------------------------------------


def require_machine() -> dict[str, Any]:
    """Open the GPU in its own process, and return its description; nothing is written.

    Raises
    ------
    PebblerError
        When PyCUDA, the driver or a GPU is missing, or the GPU does not open.
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
    """Return the GPU, the versions of the software on it, and the machine around it."""
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
    """Store the machine of a folder's results once; refuse results of two GPUs in one folder.

    Raises
    ------
    PebblerError
        When the folder has results of another GPU.
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
    """Do a unit in this process; all messages go to the log.

    Raises
    ------
    PebblerError
        For every failure, as other exceptions may not survive the transfer to the parent process.
    """
    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    faulthandler.enable()
    shown = name.replace("%", "%%")  # as in "trials gpt2/8 75% flow"
    logging.basicConfig(stream=sys.stderr, format=f"%(asctime)s {shown}: %(levelname)s: %(message)s")
    logging.getLogger("pebbler").setLevel(logging.INFO)
    try:
        return call(*arguments)
    except PebblerError:
        raise
    except Exception as error:
        _log.info("the exception in full", exc_info=True)
        raise PebblerError(sentence(error)) from None


class _Said:
    """Messages of a unit's process for the log, passed on while the process works."""

    def __init__(self, log: Path, name: str, tell: Callable[[int, str], None]) -> None:
        self._log, self._name, self._tell = log, name, tell
        self._at = log.stat().st_size if log.exists() else 0
        self._line = re.compile(rf"[\d-]+ [\d:,]+ {re.escape(name)}: (INFO|WARNING|ERROR): (.*)")

    def pass_on(self) -> None:
        """Pass on the messages since the last call."""
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
    """The file of failures whose units have not been measured since."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = read(path) if path.exists() else {}

    def note(self, name: str, wrong: str, seconds: float) -> None:
        """Store a failure."""
        date = datetime.now(UTC).isoformat(timespec="seconds")
        self._found[name] = {"sentence": wrong, "seconds": round(seconds, 1), "date": date}
        write(self._path, self._found)

    def forget(self, name: str) -> None:
        """Remove the failure of a unit that has been measured after all."""
        if self._found.pop(name, None) is not None:
            write(self._path, self._found)


# --- the archive ----------------------------------------------------------------------------------------


def pack(folder: Path, archive: Path) -> None:
    """Pack all results into a compressed archive, named after their folder; without results, do nothing.

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
