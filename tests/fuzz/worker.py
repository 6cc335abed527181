"""A process that runs command lines one after the other, and what another process needs to ask it.

Run as a program it takes requests from its standard input, a line each, and answers on what was its standard
output; commands have their own streams.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 10.0
"""Processor time that no command may exceed: it does not depend on what else the machine does."""

_WAIT = 60.0
"""Seconds after which a command that does nothing has not ended."""

_MEMORY = 6 * 2**30
"""Address space of the process: a command that wants more meets a MemoryError."""

_COMMANDS = 500
"""Commands after which a process makes way for a new one."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did: its exit status (None: it did not end), what it wrote, how long it took."""

    status: int | None
    out: str
    err: str
    seconds: float


class Worker:
    """Runs command lines in a process of its own, which is ended when one takes too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._left = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, arguments: list[str], folder: Path) -> Ran:
        """Run a command in a folder."""
        if self._process is None or self._left == 0:
            self._end()
            self._begin()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._left -= 1
        request = json.dumps({"arguments": arguments, "folder": str(folder)})
        began = time.perf_counter()
        with contextlib.suppress(BrokenPipeError):  # of a process that is gone: it gives no answer, either
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _WAIT)
        took = time.perf_counter() - began
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self._end()
            return Ran(None, _read(folder / OUT), _read(folder / ERR), took)
        answer = json.loads(line)
        return Ran(answer["status"], _read(folder / OUT), _read(folder / ERR), answer["seconds"])

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._left = _COMMANDS

    def _end(self) -> None:
        """End the process and all that it began."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process = None


OUT, ERR = "stdout.txt", "stderr.txt"


def _read(place: Path) -> str:
    return place.read_text("utf-8", "surrogateescape") if place.exists() else ""


def _run(arguments: list[str], folder: str) -> tuple[int, float]:
    """Run a command as the program does; an exception that gets out has a traceback and status 1."""
    from pebbler.cli.main import main

    os.chdir(folder)
    streams = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644) for name in (OUT, ERR)]
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends the process
    try:
        status: Any = main(arguments)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    signal.setitimer(signal.ITIMER_PROF, 0)
    took = time.process_time() - began
    sys.stdout.flush()
    sys.stderr.flush()
    return status, took


def _serve() -> None:
    # what commands import is loaded outside their time
    import pebbler.benchmark.comparison.compare
    import pebbler.benchmark.report.report
    import pebbler.benchmark.sweeps.runner
    import pebbler.cli.main
    import pebbler.solver  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    requests = os.fdopen(os.dup(0), "r")
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    print("ready", file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        status, seconds = _run(request["arguments"], request["folder"])
        print(json.dumps({"status": status, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
