"""Programs as methods: an executable reads an instance file, and writes a schedule file.

A method called ``exec:PROGRAM`` is no registered one: `find_method` makes it from the name. The program is
called as ``PROGRAM INSTANCE SCHEDULE --time-limit SECONDS``, and runs with the rights of the user.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..instances.errors import FormatError, PebblerError
from ..instances.files import decode, read_bytes, sha256_of, write_instance
from ..instances.instance import Instance
from ..instances.processes.child import Child, ChildEnded
from ..instances.processes.programs import run
from ..validate.check import check
from ..validate.schedule import Schedule
from .methods import Answer, Limits, MethodError, MethodInfo, Refusal, register_prefix

PREFIX = "exec"
"""What the name of such a method begins with, before a colon."""

GRACE = 2.0
"""Seconds after its time limit at which a program is killed."""


def program_sha256(method: str) -> str | None:
    """Return the checksum of the program that a method is; None for another method, or without a program."""
    prefix, _, program = method.partition(":")
    found = shutil.which(program) if prefix == PREFIX else None
    return None if found is None else sha256_of(found)


def _found(name: str) -> MethodInfo:
    """Return the method with a name that begins with the prefix, whether its program is there or not."""
    program = name.removeprefix(f"{PREFIX}:")
    if not program:
        raise PebblerError(f"'{name}' names no program; give one, such as {PREFIX}:./my-solver")
    return MethodInfo(
        name,
        f"the program {program}",
        "docs/take-part.md",
        partial(_solved, name, program),
        shown="named",
        carries="chosen",
        sides="chosen",
        reads="chosen",
    )


register_prefix(PREFIX, _found)


def require_program(method: str) -> None:
    """Refuse a method that is a program which is not there; any other method is fine.

    Raises
    ------
    PebblerError
        When there is no such program that may be executed.
    """
    prefix, _, program = method.partition(":")
    if prefix == PREFIX and shutil.which(program) is None:
        raise PebblerError(f"method {method}: {_why_not(program)}")


def _why_not(program: str) -> str:
    """Return why a name is not that of a program that may be executed, and what to do."""
    told = f"there is no program {program} that may be executed"
    if not Path(program).is_file():
        return told
    if os.sep not in program:
        return f"{told} in PATH; the file in this folder is {PREFIX}:./{program}"
    return f"{told}: it is a file, but without permission; give it by chmod +x"


def _solved(name: str, program: str, instance: Instance, limits: Limits) -> Answer:
    """Run a program on an instance, and return the schedule that it has written in the end.

    The program and what it has started are in a process group, which is killed when the program has ended or
    is over its time limit, on Ctrl-C, and with this process. On Ctrl-C, a valid schedule there counts.

    Raises
    ------
    Refusal
        When the program has written no schedule.
    MethodError
        When it cannot be started or fails, or its file is not a schedule.
    """
    place = shutil.which(program)
    if place is None:
        raise MethodError(f"method {name}: {_why_not(program)}")
    with TemporaryDirectory(prefix="pebbler-", ignore_cleanup_errors=True) as folder, Child() as child:
        instance_file, schedule_file = Path(folder, "instance.json"), Path(folder, "schedule.json")
        write_instance(instance, instance_file)
        words = [str(Path(place).absolute()), str(instance_file), str(schedule_file)]
        if limits.time_limit is not None:
            words += ["--time-limit", _decimal(limits.time_limit)]
        settings = {
            "PEBBLER_SEED": str(limits.seed),
            "PEBBLER_WORKERS": str(limits.workers),
            "PEBBLER_MEMORY": limits.memory,
            "TMPDIR": folder,
        }
        try:
            over = _ended(child, name, words, {**os.environ, **settings}, limits.time_limit)
        except KeyboardInterrupt:
            child.stop()
            kept = _kept(schedule_file, instance, limits.memory)
            if kept is None:
                raise
            return Answer(kept, "interrupted")
        child.stop()  # what the program has left behind may write no more
        if not schedule_file.is_file():
            raise Refusal("it wrote no schedule" + (" within its time limit" if over else ""))
        try:
            data = read_bytes(schedule_file)
            schedule = decode(data, Schedule, "a schedule", "the file that it wrote")
        except FormatError as error:
            told = f"method {name}: {error}"
            raise MethodError(f"{told}; it was killed at its time limit" if over else told) from None
        except PebblerError as error:
            raise MethodError(f"method {name}: {error}") from None
    return Answer(schedule, stopped_by="time limit" if over else "done")


def _kept(file: Path, instance: Instance, memory: str) -> Schedule | None:
    """Return the schedule that an interrupted program has written; None if there is none that holds."""
    try:
        schedule = decode(read_bytes(file), Schedule, "a schedule", file) if file.is_file() else None
        valid = schedule is not None and check(instance, schedule).valid
    except PebblerError:
        return None
    return schedule if valid and schedule is not None and schedule.memory_model == memory else None


def _ended(
    child: Child, name: str, words: list[str], environment: dict[str, str], time_limit: float | None
) -> bool:
    """Run a program until it ends or is killed; return whether it was over its time limit.

    Raises
    ------
    MethodError
        When it cannot be started, or ends in another way than with exit status 0.
    """
    child.start(os.getpid)
    child.result()  # the clock starts once that process is there
    child.start(run, words, environment, wall_limit=None if time_limit is None else time_limit + GRACE)
    try:
        code = child.result()
    except ChildEnded as error:
        if error.wanted:
            return True
        raise MethodError(f"method {name} ended the process group that it ran in: {error}") from None
    except OSError as error:
        told = f"{error.strerror or error}; a script begins with a line such as #!/usr/bin/env python3"
        raise MethodError(f"method {name} cannot be started: {told}") from None
    if code:
        assert isinstance(code, int)
        told = f"exit status {code}" if code > 0 else f"signal {-code}"
        raise MethodError(f"method {name} ended with {told}, so what it wrote does not count")
    return False


def _decimal(seconds: float) -> str:
    """Write a time limit so that any language reads it: whole seconds without a point."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
