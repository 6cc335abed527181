"""A process that calls functions for this one: what crashes, hangs or fills memory there costs no more.

In that process, `serve` reads calls from standard input, answers on what was standard output, lets all that
is printed go to standard error, and ends with its input.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Lock, Thread, Timer
from typing import IO, BinaryIO

from .signals import held

_LOOK_MS = 100
"""So often is looked whether a process that is silent has ended."""


class ChildEnded(Exception):  # noqa: N818 - not always an error: who asked for it expects it
    """The process ended before the call did; the message says how.

    Attributes
    ----------
    wanted
        Whether this process ended it: it was stopped, or over its wall limit.
    """

    def __init__(self, message: str, *, wanted: bool) -> None:
        super().__init__(message)
        self.wanted = wanted


class Child:
    """A process that calls one function at a time, and is started again when it has ended.

    It and whatever it starts are killed by `stop`, by the end of a ``with`` block, and after the wall limit
    of a call; it does not outlive this process, and leaves Ctrl-C to it.

    Parameters
    ----------
    hidden
        Modules that must not be imported there, for their libraries clash with others.
    """

    def __init__(self, hidden: Sequence[str] = ()) -> None:
        self._hidden = tuple(hidden)
        self._answer: Future[object] = Future()
        self._answer.set_exception(ChildEnded("nothing was started", wanted=True))
        self._talk: Thread | None = None
        with held():
            self._open()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(
        self, function: Callable[..., object], *arguments: object, wall_limit: float | None = None
    ) -> None:
        """Begin to call a function that can be imported by its name.

        Parameters
        ----------
        function, arguments
            What to call.
        wall_limit
            Seconds after which the process is killed; None: never.

        Raises
        ------
        RuntimeError
            When the call before this one is not done.
        """
        if not self.done():
            raise RuntimeError("the process is busy; wait for its result or stop it")
        call = pickle.dumps(pickle.dumps((function, arguments)))  # inside, what there may fail to be imported
        with held():
            if self._process.poll() is not None:
                self.stop()
                self._open()
            self._answer = Future()
            self._talk = Thread(target=self._converse, args=(call, wall_limit, self._answer), daemon=True)
            self._talk.start()

    def done(self) -> bool:
        """Whether there is a result, or will be none."""
        return self._answer.done()

    def result(self, timeout: float | None = None) -> object:
        """Wait for what the function returns, or raise what it raises.

        Raises
        ------
        ChildEnded
            When the process ended before.
        TimeoutError
            When there is no result after so many seconds; the call goes on.
        """
        return self._answer.result(timeout)

    def stop(self) -> None:
        """End the process now, and with it the call."""
        with held():
            self._kill("it was stopped")
            if self._talk is not None:
                self._talk.join()
            self._open_files.close()

    def _open(self) -> None:
        """Start the process."""
        self._why = ""
        self._lock = Lock()
        self._open_files = ExitStack()
        # What a killed solver leaves in its folder for temporary files goes with it.
        folder = self._open_files.enter_context(
            TemporaryDirectory(prefix="pebbler-", ignore_cleanup_errors=True)
        )
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path)  # noqa: PTH100 - "" is a place too
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()", *self._hidden],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
            start_new_session=True,  # a group of its own: Ctrl-C passes it by, and it is killed as a whole
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls: IO[bytes] = self._process.stdin
        self._answers = io.BufferedReader(_Output(self._process, self._process.stdout.fileno()))
        self._open_files.callback(self._process.wait)
        for pipe in (self._calls, self._process.stdout):
            self._open_files.callback(_close, pipe)

    def _kill(self, why: str) -> None:
        with self._lock:
            if self._process.poll() is None:
                self._why = self._why or why
                _kill_group(self._process.pid)

    def _converse(self, call: bytes, wall_limit: float | None, answer: Future[object]) -> None:
        """Send a call and wait for its answer, in a thread."""
        timer = None
        if wall_limit is not None:
            timer = Timer(wall_limit, self._kill, (f"it was killed after {wall_limit:.0f} s",))
            timer.daemon = True
            timer.start()
        try:
            self._calls.write(call)
            self._calls.flush()
            returned, value = pickle.load(self._answers)
        except Exception:  # an answer that cannot be read may raise anything
            _kill_group(self._process.pid)  # what it had started
            code = self._process.wait()
            returned, value = False, ChildEnded(self._why or _told(code), wanted=bool(self._why))
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()
        if self._why:
            self._process.wait()
        if returned:
            answer.set_result(value)
        else:
            answer.set_exception(value)


class _Output(io.RawIOBase):
    """What a process writes to a pipe until it ends: others may hold the pipe open for longer.

    A process that it has forked has the pipe, too, and may live on.
    """

    def __init__(self, process: subprocess.Popen[bytes], pipe: int) -> None:
        self._process, self._pipe = process, pipe
        self._poll = select.poll()
        self._poll.register(pipe, select.POLLIN)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override] # what BufferedReader gives
        while not self._poll.poll(_LOOK_MS):
            if self._process.poll() is not None and not self._poll.poll(0):
                return 0
        data = os.read(self._pipe, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _told(code: int) -> str:
    return f"it ended with signal {-code}" if code < 0 else f"it ended with exit status {code}"


def _close(pipe: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        pipe.close()


def _kill_group(leader: int) -> None:
    """Kill a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


# --- in the process itself ------------------------------------------------------------------------------


def serve() -> None:
    """Answer calls until standard input ends; arguments of the program are modules to hide."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in sys.argv[1:]:
        sys.modules[name] = None  # type: ignore[assignment] # what an import statement then refuses
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(sys.stdin.buffer, calls), daemon=True).start()
    while True:
        call = calls.get()
        try:
            function, arguments = pickle.loads(call)
            answer: tuple[bool, object] = True, function(*arguments)
        except Exception as error:
            answer = False, error
        answers.write(_written(answer))
        answers.flush()


def _written(answer: tuple[bool, object]) -> bytes:
    """An answer as bytes that can be read again; one that has none is an error that says so."""
    try:
        data = pickle.dumps(answer)
        if not answer[0]:  # exceptions with arguments of their own are written, but not read
            pickle.loads(data)
    except Exception as error:
        told = f"{type(answer[1]).__name__}: {answer[1]}"
        return pickle.dumps((False, RuntimeError(f"{told} ({type(error).__name__} in passing it on)")))
    return data


def _listen(source: BinaryIO, calls: SimpleQueue[bytes]) -> None:
    """Pass calls on while the parent lives; then end, and take what was started along."""
    try:
        while True:
            calls.put(pickle.load(source))
    finally:
        _kill_group(os.getpid())
