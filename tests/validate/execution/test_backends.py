"""Backends of other packages, by entry point: one that records what is asked of it, and broken ones."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pebbler import read_instance, solve
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_instance
from pebbler.instances.workload import Workload
from pebbler.validate.execution.backends import BACKENDS, find_backend, list_backends
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.schedule import Schedule, write_schedule

RECORDING = """
from pebbler.validate.execution.cpu.backend import CpuBackend

asked = []


class Recording(CpuBackend):
    @property
    def name(self):
        return "recording"

    def prepare(self, kernel):
        asked.append(kernel.task)
        return super().prepare(kernel)
"""

Package = Callable[[str, str], str]
"""Installs a package with one module of the given code and an entry point; returns the module's name."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    monkeypatch.syspath_prepend(tmp_path)

    def install(code: str, point: str) -> str:
        module = f"backend_{len(list(tmp_path.iterdir()))}"
        monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type] # undone, the module is gone
        del sys.modules[module]
        (tmp_path / f"{module}.py").write_text(code, encoding="utf-8")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[pebbler.backends]\n{point.format(module)}\n")
        importlib.invalidate_caches()
        return module

    return install


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schedule:
    """Put ``i.json`` and ``s.json`` into an empty folder, and go there."""
    folder = tmp_path / "files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    instance = Workload("lenet", 2, "K40").instance("3xMmin")
    schedule = solve(instance, "network-wide").schedule
    assert schedule is not None
    write_instance(instance, "i.json")
    write_schedule(schedule, "s.json")
    return schedule


def test_a_backend_of_another_package_runs_schedules_and_measures(
    package: Package, case: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    module = package(RECORDING, "recording = {}:Recording")
    assert list_backends() == (*BACKENDS, "recording")
    assert main(("run", "i.json", "s.json", "--backend", "recording", "--repeat", "1", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["backend"] == "recording"
    assert found["identical_to_unbudgeted"]
    asked = importlib.import_module(module).asked
    tasks = [kernel.task for kernel in rebuild(read_instance("i.json")).kernels]
    assert asked == 2 * tasks, "once without a budget, once with it"
    assert len(asked) == 2 * sum(operation.kind == "run" for operation in case.operations)
    arguments = ("--batch", "1", "--repeat", "1", "--backend", "recording", "-o", "p.json")
    assert main(("profile", "lenet", *arguments)) == 0
    assert json.loads(Path("p.json").read_text())["meta"]["backend"] == "recording"


@pytest.mark.parametrize(
    ("code", "point", "words"),
    [
        (
            "import no_such_module",
            "broken = {}:Any",
            "of {} cannot be loaded: ModuleNotFoundError:",
        ),
        ("", "broken = {}:Missing", "of {} cannot be loaded: AttributeError: module"),
        ("raise SystemExit('bye')", "broken = {}:Any", "of {} cannot be loaded: SystemExit: bye"),
        ("Any = 7", "broken = {}:Any", "of {} is no callable but int; its entry point must open it"),
        ("def Any(): return 1 / 0", "broken = {}:Any", "of {} cannot be opened: ZeroDivisionError: division"),
        ("def Any(): return object()", "broken = {}:Any", "of {} has no 'name', which every backend has"),
        (
            RECORDING + "class Any(Recording):\n    kinds = frozenset({'conv'})",
            "broken = {}:Any",
            "task 'FP(pool1)': the backend recording has no kernels for layers of kind 'maxpool'",
        ),
    ],
)
@pytest.mark.usefixtures("case")
def test_a_broken_backend_is_named_in_one_sentence(
    package: Package, capsys: pytest.CaptureFixture[str], code: str, point: str, words: str
) -> None:
    module = package(code, point)
    assert main(("run", "i.json", "s.json", "--backend", "broken")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert words.format(module) in line


def test_what_a_backend_prints_while_it_is_loaded_goes_to_standard_error(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    package("print('loading')" + RECORDING, "recording = {}:Recording")
    find_backend("recording")().close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loading" in captured.err


def test_two_backends_of_one_name_are_refused(package: Package) -> None:
    first, second = (package(RECORDING, "recording = {}:Recording") for _ in range(2))
    with pytest.raises(PebblerError, match=rf"of {first} and {second}; uninstall all but one"):
        find_backend("recording")


def test_nobody_takes_the_place_of_our_backends(package: Package) -> None:
    package("Recording = 7", "cpu = {}:Recording")
    assert find_backend("cpu") is CpuBackend
    assert list_backends() == BACKENDS


def test_convolutions_of_a_provider_are_for_cuda(package: Package) -> None:
    package(RECORDING, "recording = {}:Recording")
    with pytest.raises(PebblerError, match="for --backend cuda; 'recording' has its own"):
        find_backend("recording", ("cudnn",))
