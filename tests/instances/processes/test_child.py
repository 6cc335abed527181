"""Calls in another process: whatever becomes of it, this one goes on, and it leaves nothing behind."""

from __future__ import annotations

import importlib
import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pebbler.instances.processes.child import Child, ChildEnded

from ...solver.processes import alive, eventually, members


@pytest.fixture
def child() -> Iterator[Child]:
    with Child() as made:
        yield made


def test_one_process_answers_many_calls(child: Child) -> None:
    answers = []
    for _ in range(3):
        child.start(os.getpid)
        answers.append(child.result(30))
    assert len(set(answers)) == 1
    assert answers[0] != os.getpid()


def test_what_a_call_raises_is_raised_here_and_the_process_lives(child: Child) -> None:
    child.start(os.getpid)
    first = child.result(30)
    child.start(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError):
        child.result(30)
    child.start(os.getpid)
    assert child.result(30) == first


def test_a_function_that_is_not_there_is_an_error_of_the_call(
    child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def call():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    child.start(only_here.call)  # the process began before
    with pytest.raises(ModuleNotFoundError, match="only_here"):
        child.result(30)
    child.start(operator.add, 1, 2)
    assert child.result(30) == 3


def test_a_crash_is_told_and_the_next_call_has_a_new_process(child: Child) -> None:
    child.start(os.getpid)
    first = child.result(30)
    child.start(os.abort)
    with pytest.raises(ChildEnded, match=f"signal {signal.SIGABRT:d}") as ended:
        child.result(30)
    assert not ended.value.wanted
    child.start(os._exit, 3)
    with pytest.raises(ChildEnded, match="exit status 3"):
        child.result(30)
    child.start(os.getpid)
    assert child.result(30) != first


def test_what_a_crashed_process_had_started_ends_too(child: Child) -> None:
    child.start(os.getpid)
    leader = child.result(30)
    assert isinstance(leader, int)
    child.start(os.system, "sleep 60 & wait")
    assert eventually(lambda: members(leader) == 3)
    os.kill(leader, signal.SIGSEGV)
    with pytest.raises(ChildEnded, match="signal 11"):
        child.result(30)
    assert eventually(lambda: members(leader) == 0)


LEAVES_BEHIND = """
import os, pathlib, time
told = pathlib.Path(told)
if not os.fork():
    if own_session:
        os.setsid()
    told.write_text(str(os.getpid()))
    time.sleep(600)
while not told.exists() or not told.read_text():
    time.sleep(0.01)
os._exit(3)
"""
"""Ends without an answer, and leaves a process that holds the pipe of answers."""


@pytest.mark.parametrize("own_session", [False, True])
def test_a_process_that_is_left_behind_holds_up_no_answer(
    child: Child, tmp_path: Path, own_session: bool
) -> None:
    """What is in its group is killed; what has left that is not ours, and the call ends all the same."""
    told = tmp_path / "pid"
    child.start(exec, LEAVES_BEHIND, {"told": str(told), "own_session": own_session})
    try:
        with pytest.raises(ChildEnded, match="exit status 3"):
            child.result(30)
        left = int(told.read_text())
        assert alive(left) if own_session else eventually(lambda: not alive(left))
        child.start(os.getpid)
        assert child.result(30) != left
    finally:
        if own_session:
            os.kill(int(told.read_text()), signal.SIGKILL)


def test_a_hang_ends_at_the_wall_limit(child: Child) -> None:
    child.start(time.sleep, 600, wall_limit=0.3)
    with pytest.raises(ChildEnded, match="killed after") as ended:
        child.result(30)
    assert ended.value.wanted
    child.start(operator.add, 1, 2, wall_limit=30)
    assert child.result(30) == 3


def test_done_and_waiting_for_a_while(child: Child) -> None:
    child.start(time.sleep, 60)
    assert not child.done()
    with pytest.raises(TimeoutError):
        child.result(0.05)
    with pytest.raises(RuntimeError, match="busy"):
        child.start(os.getpid)
    child.stop()
    assert child.done()
    with pytest.raises(ChildEnded, match="stopped"):
        child.result()
    child.stop()
    child.start(operator.add, 1, 2)
    assert child.result(30) == 3


def test_what_is_printed_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    with Child() as child:
        child.start(os.system, "echo from a program")
        child.result(30)
    assert capfd.readouterr() == ("", "from a program\n")


def test_hidden_modules_cannot_be_imported_there() -> None:
    with Child(hidden=("wave",)) as child:
        child.start(importlib.import_module, "wave")
        with pytest.raises(ModuleNotFoundError):
            child.result(30)


def test_files_and_programs_of_a_call_end_with_it(child: Child) -> None:
    child.start(tempfile.mkstemp)
    answer = child.result(30)
    assert isinstance(answer, tuple)
    left = Path(answer[1])
    assert left.exists()
    child.start(os.system, f"echo $$ > {left.with_name('pid')}; sleep 60")
    note = left.with_name("pid")
    assert eventually(lambda: note.exists() and note.read_text().strip() != "")
    program = int(note.read_text())
    assert alive(program)
    child.stop()
    assert eventually(lambda: not alive(program))
    assert not left.parent.exists()


PARENT = """
import os, sys, time
from pebbler.instances.processes.child import Child
with Child() as child:
    child.start(os.getpid)
    print(child.result(), flush=True)
    child.start(os.system, "sleep 60")
    child.result()
"""


def parent() -> tuple[subprocess.Popen[str], int]:
    """A program without a guard for its main module, its child at work; the child's id."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_no_child_outlives_its_parent() -> None:
    process, child = parent()
    assert alive(child)
    with process:
        process.kill()
    assert eventually(lambda: not alive(child))


def test_ctrl_c_is_the_parents_alone() -> None:
    process, child = parent()
    with process:
        os.kill(child, signal.SIGINT)
        time.sleep(0.2)
        assert alive(child)
        os.killpg(os.getpgid(child), signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert eventually(lambda: not alive(child))


ASKING = """
class Asking(Exception):
    def __init__(self, first, second):  # more than it keeps
        super().__init__(f"{first} and {second}")

def ask():
    raise Asking("one", "two")

def make():
    return lambda: 0
"""


def test_an_answer_that_cannot_be_passed_on_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.syspath_prepend(tmp_path)
    asking = importlib.import_module("asking")
    with Child() as child:
        child.start(asking.ask)
        with pytest.raises(RuntimeError, match=r"^Asking: one and two \(TypeError in passing it on\)$"):
            child.result(30)
        child.start(asking.make)
        with pytest.raises(RuntimeError, match="in passing it on"):
            child.result(30)


def test_a_value_that_cannot_be_pickled_is_an_error_here(child: Child) -> None:
    child.start(open, os.devnull)
    with pytest.raises(RuntimeError, match="in passing it on"):
        child.result(30)
    child.start(operator.add, 1, 2)
    assert child.result(30) == 3
