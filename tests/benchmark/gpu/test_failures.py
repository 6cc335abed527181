"""Whatever fails in measuring, it is written down and the rest goes on."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest
from msgspec import json

from pebbler.benchmark.gpu import measure as measuring
from pebbler.benchmark.gpu.measure import STAGES, Stage, keep_machine, measure, pack
from pebbler.benchmark.gpu.stages import Unit, read
from pebbler.benchmark.gpu.study import Study
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.profile import read_profile, write_profile

from ...fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401
from ...reliability.interrupts import PEBBLER, _processes
from . import unit_faults
from .unit_faults import Broken, Call

OPTIONS = ["--budgets", "1.05xMmin", "--methods", "vdnn-all-m", "--repeat", "1"]


@pytest.fixture(autouse=True)
def _importable(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes import these tests."""
    monkeypatch.syspath_prepend(pytestconfig.rootpath)


# --- units that leave an empty file ---------------------------------------------------------------------

FAULTS = {
    "refusal": (unit_faults.refuse, "the device has no room for it"),
    "failure": (unit_faults.fail, "an illegal address was met"),
    "library": (unit_faults.lack_a_library, "ImportError: libcudart.so.13: cannot open"),
    "defect": (unit_faults.break_down, "KeyError: 'surprise'"),
    "crash": (unit_faults.crash, "it ended with signal 6"),
    "hang": (unit_faults.hang, "it was killed after 1 s"),
}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Enter a stage ``toy`` whose units leave empty files, unless something goes wrong."""

    def enter(names: Sequence[str], faults: Mapping[str, Call] = MappingProxyType({})) -> None:
        def units(study: Study) -> Iterator[Unit]:
            for name in names:
                path = study.path(name)
                unit = Unit(name, unit_faults.touch, (path,), path.exists)
                yield unit_faults.broken(unit, faults[name]) if name in faults else unit

        monkeypatch.setitem(STAGES, "toy", Stage(units))

    return enter


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if "." not in path.name}


@pytest.mark.parametrize(
    ("faults", "mended"),
    [
        (("defect", "crash", "hang"), ("crash",)),
        pytest.param(tuple(FAULTS), tuple(FAULTS), marks=pytest.mark.slow),
    ],
    ids=["few", "all"],
)
def test_failures_are_written_down_and_the_next_unit_goes_on(
    faults: tuple[str, ...], mended: tuple[str, ...], toy: Callable[..., None], tmp_path: Path
) -> None:
    quick = {name: fault for name, (fault, _) in FAULTS.items() if name in faults and name != "hang"}
    toy([*quick, "last"], quick)
    found = measure(Study(tmp_path), ["toy"])
    assert (found.measured, files(tmp_path)) == (1, {"last"})
    toy(["hang"], {"hang": unit_faults.hang})
    found.failed |= measure(Study(tmp_path), ["toy"], unit_limit=1.0).failed
    written = read(tmp_path / "failures.json")
    assert list(found.failed) == list(written) == [f"toy {name}" for name in faults]
    for name in faults:
        _, said = FAULTS[name]
        assert said in found.failed[f"toy {name}"]
        assert said in written[f"toy {name}"]["sentence"]
    log = (tmp_path / "log.txt").read_text()
    assert "toy defect: INFO: the exception in full\nTraceback" in log
    assert "Fatal Python error: Aborted" in log
    toy([*mended, "last"])
    again = measure(Study(tmp_path), ["toy"])
    assert (again.measured, again.there, again.failed) == (len(mended), 1, {})
    left = [f"toy {name}" for name in faults if name not in mended]
    assert [*read(tmp_path / "failures.json")] == left


def test_messages_arrive_whatever_a_unit_is_called(
    toy: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "gpt2/8 75% %s flow"
    toy([name], {name: unit_faults.warn})
    with caplog.at_level(logging.INFO):
        assert measure(Study(tmp_path), ["toy"]).measured == 1
    messages = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert ("INFO", f"toy {name}: 1 of 2") in messages
    assert ("WARNING", "the link is slow") in messages
    log = (tmp_path / "log.txt").read_text()
    assert f"toy {name}: WARNING: the link is slow" in log
    assert "Logging error" not in log


def test_a_result_that_is_wrong_stays_and_has_failed(toy: Callable[..., None], tmp_path: Path) -> None:
    toy(["one"], {"one": unit_faults.complain})
    found = measure(Study(tmp_path), ["toy"])
    assert (found.measured, found.failed) == (0, {"toy one": "the numbers are wrong"})
    assert files(tmp_path) == {"one"}


def test_what_there_is_no_time_for_is_left_and_has_not_failed(
    toy: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "there").touch()
    toy(["there", "hang", "next"], {"hang": unit_faults.hang})
    for seconds in (0.5, 4.0):
        found = measure(Study(tmp_path), ["toy"], time_limit=seconds)
        assert (found.there, found.measured, found.failed) == (1, 0, {})
        assert found.left == ["toy hang", "toy next"]
    assert not (tmp_path / "failures.json").exists()


def test_what_is_not_there_yet_is_skipped_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = Study(tmp_path, networks=[("lenet", 2)])
    found = measure(study, ["kernels", "solve", "run"])
    assert (found.measured, found.failed, len(found.skipped)) == (0, {}, 33)
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert said == [
        f"skipped: the stage {stage} has left nothing for lenet/2 yet; do it first"
        for stage in ("profile", "solve")
    ]


def test_a_stage_without_what_it_needs_fails_as_a_whole(tmp_path: Path) -> None:
    found = measure(Study(tmp_path, networks=[("lenet", 2)]), ["torch"])
    assert list(found.failed) == ["torch"]
    assert "torch" in found.failed["torch"]


def test_the_archive_is_whole_after_every_stage(
    toy: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(["one"])
    folder, packed = tmp_path / "gpu", list[list[str]]()
    folder.mkdir()
    monkeypatch.setattr(
        measuring, "pack", lambda source, _: packed.append(sorted(path.name for path in source.iterdir()))
    )
    measure(Study(folder), ["toy", "toy"], archive=tmp_path / "gpu.tar.gz")
    assert packed == [["log.txt", "one"]] * 2


def test_an_archive_that_is_too_large_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, archive = tmp_path / "gpu", tmp_path / "gpu" / "all.tar.gz"
    folder.mkdir()
    pack(folder, archive)
    assert not archive.exists()  # there was nothing
    (folder / "noise").write_bytes(os.urandom(2000))
    pack(folder, archive)
    assert not caplog.records
    monkeypatch.setattr(measuring, "LARGEST_ARCHIVE", 1000)
    size = archive.stat().st_size
    pack(folder, archive)
    assert "more than 1000 B" in caplog.text
    assert abs(archive.stat().st_size - size) < 100  # it is not in itself


def test_ctrl_c_keeps_what_was_measured_and_ends_the_process(
    toy: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(["one", "hang", "next"], {"hang": unit_faults.hang})
    look = time.sleep

    def press(seconds: float) -> None:
        look(seconds)
        log = tmp_path / "log.txt"
        if log.exists() and "hanging" in log.read_text():
            raise KeyboardInterrupt

    monkeypatch.setattr(measuring.time, "sleep", press)
    found = measure(Study(tmp_path), ["toy"], archive=tmp_path / "all.tar.gz")
    assert (found.interrupted, found.measured, files(tmp_path)) == (True, 1, {"one"})
    assert (tmp_path / "all.tar.gz").exists()


# --- real units on the fake driver ----------------------------------------------------------------------


def run(folder: Path, stages: str, *options: str) -> int:
    return main(["measure", "--stages", stages, "--out", str(folder), *OPTIONS, *options])


@pytest.fixture(scope="module")
def solved(
    _loaded_fake_cuda: FakeCuda,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A folder with profiles and schedules of LeNet in two batches."""
    folder = tmp_path_factory.mktemp("solved") / "gpu"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _loaded_fake_cuda.variables.items():
            patch.setenv(name, value)
        assert run(folder, "profile,solve", "--networks", "lenet/2,lenet/1") == 0
    return folder


@pytest.fixture
def folder(solved: Path, tmp_path: Path) -> Path:
    shutil.copytree(solved, tmp_path / "gpu")
    return tmp_path / "gpu"


def broken(monkeypatch: pytest.MonkeyPatch, name: str, fault: Call, word: str) -> None:
    stage = STAGES[name]
    monkeypatch.setitem(STAGES, name, Stage(Broken(stage, fault, word), stage.require, stage.finish))


@pytest.mark.parametrize(
    ("stage", "fault", "word", "said"),
    [
        ("run", unit_faults.crash, "lenet/2", "signal 6"),
        ("solve", unit_faults.lack_a_library, "lenet/2", "libcudart"),
        pytest.param(
            *("profile", unit_faults.lose_the_context, "lenet/2", "unspecified launch failure"),
            marks=pytest.mark.slow,
        ),
        pytest.param("kernels", unit_faults.crash, "lenet/2", "signal 6", marks=pytest.mark.slow),
    ],
)
def test_one_network_that_fails_leaves_the_other_alone(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    folder: Path,
    stage: str,
    fault: Call,
    word: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = {"profile": "profile", "solve": "solve", "run": "run", "kernels": "kernels"}[stage]
    if stage in ("profile", "solve"):
        for path in folder.glob(f"*{written}.json"):
            path.unlink()
    broken(monkeypatch, stage, fault, word)
    assert run(folder, stage, "--networks", "lenet/2,lenet/1", "--json") == 1
    told = json.decode(capsys.readouterr().out)
    failed = {name: sentence for name, sentence in told["failed"].items() if "lenet/2" in name}
    assert len(failed) == 1
    assert said in next(iter(failed.values()))
    assert read(folder / "failures.json").keys() == told["failed"].keys()
    there = [path.name for path in folder.glob(f"*{written}.json")]
    if stage == "kernels":  # where there is no CUPTI, the other fails as well, and for that reason
        assert "pebbler[profiler]" in told["failed"]["kernels lenet/1"]
    else:
        assert [name.startswith("lenet-1") for name in there] == [True]


@pytest.mark.slow
def test_a_layer_that_fails_leaves_the_other_alone(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch, "streams", unit_faults.lose_the_context, "forward")
    assert run(tmp_path / "gpu", "streams", "--layers", "siamese/conv1") == 1
    assert [path.name for path in (tmp_path / "gpu").glob("*streams.json")] == [
        "siamese-conv1-backward-streams.json"
    ]


def test_a_profile_outlives_a_crash_after_it(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(monkeypatch, "profile", unit_faults.crash_in_the_end, "lenet/1")
    assert run(tmp_path / "gpu", "profile", "--networks", "lenet/1") == 1
    before = (tmp_path / "gpu" / "lenet-1-profile.json").read_bytes()
    assert run(tmp_path / "gpu", "profile", "--networks", "lenet/1") == 0
    assert (tmp_path / "gpu" / "lenet-1-profile.json").read_bytes() == before


def test_a_profile_that_is_not_complete_is_measured_again(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = folder / "lenet-1-profile.json"
    measured = read_profile(path)
    part = msgspec.structs.replace(
        measured,
        meta=measured.meta | {"complete": False},
        tasks=tuple(msgspec.structs.replace(task, algorithms=task.algorithms[:1]) for task in measured.tasks),
    )
    write_profile(part, path)
    assert run(folder, "profile", "--networks", "lenet/2,lenet/1", "--json") == 0
    told = json.decode(capsys.readouterr().out)
    assert (told["measured"], told["there"]) == (1, 1)
    again = read_profile(path)
    assert again.meta["complete"] is True
    assert [len(task.algorithms) for task in again.tasks] == [len(task.algorithms) for task in measured.tasks]


def test_a_budget_under_the_least_is_a_result(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin gpu -->\n<!-- end of gpu -->\n")
    options = ["--networks", "lenet/2", "--budgets", "0.5xMmin,1.25xMmin", "--page", str(page), "--json"]
    assert run(folder, "solve,page", *options) == 0
    assert json.decode(capsys.readouterr().out)["measured"] == 2
    found = read(folder / "lenet-2-0.5xMmin-vdnn-all-m-solve.json")
    assert (found["status"], found["makespan_ns"]) == ("infeasible", None)
    (row,) = (line for line in page.read_text().splitlines() if "0.5xMmin" in line)
    assert "no schedule: lenet-b2: a budget of" in row
    assert row.count(" | ") == 8
    assert run(folder, "solve", *options) == 0
    assert json.decode(capsys.readouterr().out)["measured"] == 0


def test_results_of_another_gpu_are_not_mixed(folder: Path) -> None:
    found = read(folder / "machine.json")
    assert found["packages"].keys() >= {"numpy", "msgspec"}
    keep_machine(folder, found)
    with pytest.raises(PebblerError, match="give another folder as --out"):
        keep_machine(folder, found | {"device": "another"})


# --- the program ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_ends_the_command_in_order(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    options = ["--stages", "profile", "--networks", "lenet/2,cifar10_quick/64", "--out", "gpu", "--json"]
    process = subprocess.Popen(
        [*PEBBLER, "measure", *options],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary), "PEBBLER_STUDY": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log, deadline = tmp_path / "gpu" / "log.txt", time.monotonic() + 120
    while not (log.exists() and "profile cifar10_quick/64: INFO: cifar10" in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (143, False)
    told = json.decode(out)
    assert (told["interrupted"], told["measured"], told["failed"]) == (True, 1, {})
    assert read_profile(tmp_path / "gpu" / "lenet-2-profile.json").meta["complete"] is True
    assert _processes(str(tmp_path)) == []
    assert list(temporary.iterdir()) == []


HIDDEN = """
import importlib.metadata
find = importlib.metadata.Distribution.from_name.__func__

def without(kind, name):
    if name in ("pebbler", "ortools", "pulp"):
        raise importlib.metadata.PackageNotFoundError(name)
    return find(kind, name)

importlib.metadata.Distribution.from_name = classmethod(without)
"""


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_without_solvers_and_without_an_installed_pebbler_all_but_solve_works(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    folder: Path,
    tmp_path: Path,
    *,
    everything: bool,
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for name in ("ortools", "pulp"):
        (hidden / f"{name}.py").write_text("raise ImportError('there are no solvers here')\n")
    (hidden / "sitecustomize.py").write_text(HIDDEN)
    page = tmp_path / "page.md"
    page.write_text("<!-- begin gpu -->\n<!-- end of gpu -->\n")

    def call(*options: str) -> subprocess.CompletedProcess[str]:
        command = [*PEBBLER, "measure", "--out", str(folder), "--page", str(page), *OPTIONS, *options]
        path = os.pathsep.join(filter(None, (str(hidden), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)

    stages = ["--smoke", "--stages", "run,streams,page"] if everything else ["--stages", "run,page"]
    done = call(*stages, "--networks", "lenet/2", "--layers", "siamese/conv1")
    assert (done.returncode, "failed" in done.stderr) == (0, False), done.stderr
    assert ("siamese/conv1" in page.read_text()) == everything
    assert (folder / "lenet-2-1.05xMmin-vdnn-all-m-run.json").exists()
    assert not everything or read(folder / "smoke.json")["passed"] is True
    done = call(
        "--stages", "solve", "--budgets", "1.25xMmin", "--methods", "modnn,flow", "--networks", "lenet/2"
    )
    assert done.returncode == 1
    assert "failed: solve lenet/2 1.25xMmin flow: ImportError: there are no solvers here" in done.stdout
    assert done.stdout.count("failed: ") == 1
