"""Ctrl-C and SIGTERM end commands in order: a small sample of the study in `interrupts`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .interrupts import PEBBLER, Command, commands, interrupt, prepare

SLACK = 30.0
"""Seconds to end that are allowed here, for machines with other work; the study allows two."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("interrupts")
    prepare(made, ("vgg16.instance.json", "buffers.csv"))
    return made


def of(folder: Path, name: str) -> Command:
    return next(command for command in commands(folder) if command.name == name)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("bound", 0.1),
        ("compare", 1.0),
        pytest.param("compare", 2.0, marks=pytest.mark.slow),
        pytest.param("pack", 0.1, marks=pytest.mark.slow),
        pytest.param("bound", 2.0, marks=pytest.mark.slow),
        pytest.param("compare", 0.1, marks=pytest.mark.slow),
        pytest.param("pack", 2.0, marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_a_command_and_keeps_its_best(folder: Path, name: str, moment: float) -> None:
    found = interrupt(of(folder, name), moment, [signal.SIGINT], allowed=SLACK)
    assert (found.signal, found.status, found.faults) == ("SIGINT", 130, ())


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("bound", 0.1),
        pytest.param("bound", 1.0, marks=pytest.mark.slow),
        pytest.param("solve --method flow", 2.5, marks=pytest.mark.slow),
    ],
)
def test_sigterm_is_handled_alike(folder: Path, name: str, moment: float) -> None:
    found = interrupt(of(folder, name), moment, [signal.SIGTERM], allowed=SLACK)
    assert (found.signal, found.status, found.faults) == ("SIGTERM", 143, ())


@pytest.mark.parametrize(
    ("moment", "apart"),
    [
        pytest.param(1.0, 0.1, marks=pytest.mark.landing),
        *(pytest.param(2.5, apart, marks=pytest.mark.slow) for apart in (0.0, 0.1)),
    ],
)
def test_a_second_ctrl_c_gives_no_traceback(folder: Path, moment: float, apart: float) -> None:
    signals = [signal.SIGINT, signal.SIGINT]
    found = interrupt(of(folder, "solve --method flow"), moment, signals, apart, allowed=SLACK)
    assert (found.status, found.faults) == (130, ())


def test_what_native_code_writes_is_not_in_the_output(tmp_path: Path) -> None:
    """HiGHS writes to file descriptor 1 itself; so does this method, by the descriptor and by a process."""
    code = """
import os
from pebbler.process import program
def noisy():
    os.write(1, b"from native code\\n")
    os.system("echo from a program")
    print('{"from": "us"}')
    return 0
program(noisy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '{"from": "us"}\n')
    assert done.stderr == "from native code\nfrom a program\n"


def test_the_end_waits_for_what_is_registered_and_for_nothing_else() -> None:
    """Taking all modules apart takes half a second; a thread that still runs could take any time."""
    code = """
import atexit, threading, time
from pebbler.process import program
def leave():
    threading.Thread(target=time.sleep, args=(600,)).start()
    atexit.register(print, "cleaned up")
    print("done")
    return 1
program(leave)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "done\ncleaned up\n", "")


def test_ignored_signals_stay_ignored() -> None:
    """As those of a process in the background of a shell."""
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from pebbler.process import program
def press():
    os.kill(os.getpid(), signal.SIGINT)
    return 0
program(press)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_an_import_waits_for_its_end(tmp_path: Path, number: signal.Signals) -> None:
    """There, an exception could become another one, or leave a module half loaded."""
    (tmp_path / "slow_module.py").write_text(
        f"import os\nos.kill(os.getpid(), {int(number)})\nwhole = sum(range(10**6)) > 0\n"
    )
    code = """
import sys
from pebbler.process import program
def load():
    try:
        import slow_module
        while True:
            pass
    except KeyboardInterrupt:
        print("whole" if sys.modules["slow_module"].whole else "half")
    return 0
program(load)
"""
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.stdout, done.returncode) == ("whole\n", 128 + number)
    assert done.stderr == "pebbler: interrupted\n"


def test_a_signal_in_llvmlite_waits_for_what_it_makes(tmp_path: Path) -> None:
    """The finalizers of its objects fail where an object is half made."""
    folder = tmp_path / "llvmlite"
    folder.mkdir()
    (folder / "binding.py").write_text("""
import os, signal
class Reference:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
        self.pointer = 1
    def __del__(self):
        del self.pointer
""")
    code = """
from pebbler.process import program
import binding
def make():
    binding.Reference()
    while True:
        pass
program(make)
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.stderr, done.returncode) == ("pebbler: interrupted\n", 128 + signal.SIGINT)


def test_a_closed_standard_output_is_no_traceback() -> None:
    done = subprocess.run(
        f"{' '.join(PEBBLER)} devices --json | head -c 10", shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
