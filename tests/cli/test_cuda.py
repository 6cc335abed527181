"""The commands that write or need CUDA code: emit, and run on the fake driver."""

from __future__ import annotations

import ctypes.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pebbler import Workload, solve
from pebbler.cli.main import main
from pebbler.instances.files import write_instance
from pebbler.instances.importers import extras
from pebbler.validate.execution.cuda.layer_streams import StreamedLayer
from pebbler.validate.schedule import Schedule, write_schedule

from ..fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda, repeatable  # noqa: F401


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    instance = repeatable(Workload("lenet", batch=4, device="k40").instance("1.02xMmin"))
    schedule = solve(instance, method="vdnn-all-m").schedule
    assert schedule is not None
    places = tmp_path / "lenet.instance.json", tmp_path / "lenet.schedule.json"
    write_instance(instance, places[0])
    write_schedule(schedule, places[1])
    return places


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence with which a command is refused."""
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main([str(argument) for argument in arguments]))
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_emit_writes_a_script_that_is_python(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    assert main(["emit", *map(str, files), "-o", str(script), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    text = script.read_text(encoding="utf-8")
    assert told["lines"] == len(text.splitlines())
    compile(text, str(script), "exec")
    assert main(["emit", *map(str, files), "-o", str(tmp_path / "again.py")]) == 0
    assert (tmp_path / "again.py").read_text(encoding="utf-8") == text


def test_emit_refuses_what_is_no_schedule(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance, schedule = files
    script = tmp_path / "script.py"
    broken = tmp_path / "broken.json"
    for content in (b"", schedule.read_bytes()[:200], b"{}"):
        broken.write_bytes(content)
        assert "broken.json" in refused(capsys, "emit", instance, broken, "-o", script)
    assert "no-such" in refused(capsys, "emit", instance, tmp_path / "no-such.json", "-o", script)
    refused(capsys, "emit", instance, schedule, "-o", tmp_path / "no" / "folder.py")
    assert not script.exists()


def test_emit_says_why_a_schedule_is_invalid(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance, place = files
    schedule = msgspec.json.decode(place.read_bytes(), type=Schedule)
    without_waits = tuple(msgspec.structs.replace(one, after=()) for one in schedule.operations)
    write_schedule(msgspec.structs.replace(schedule, operations=without_waits), place)
    assert main(["emit", str(instance), str(place), "-o", str(tmp_path / "script.py")]) == 1
    assert "invalid" in capsys.readouterr().out
    assert not (tmp_path / "script.py").exists()


def test_emit_refuses_the_accounting_of_the_papers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = Workload("lenet", batch=4, device="k40", graph="paper").instance("1GiB")
    schedule = solve(instance, method="network-wide").schedule
    assert schedule is not None
    write_instance(instance, tmp_path / "i.json")
    write_schedule(schedule, tmp_path / "s.json")
    said = refused(capsys, "emit", tmp_path / "i.json", tmp_path / "s.json", "-o", tmp_path / "script.py")
    assert "cannot be run" in said


def test_run_on_cuda(fake_cuda: FakeCuda, files: tuple[Path, Path]) -> None:  # noqa: ARG001, F811
    command = [sys.executable, "-m", "pebbler", "run", *map(str, files), "--backend", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["backend"] == "cuda"
    assert told["device"] == "Fake CUDA device (host memory)"
    assert told["identical_to_unbudgeted"] is True
    assert told["measured_ns"] > 0


def test_run_with_atomic_additions_is_right_within_tolerance(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    files: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    instance, schedule = files
    write_instance(Workload("lenet", batch=4, device="k40").instance("1.02xMmin"), instance)
    assert main(["run", str(instance), str(schedule), "--backend", "cuda", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["identical_to_unbudgeted"], told["deterministic"]) == (False, False)
    assert 0 < told["max_abs_error"] < 1e-3


def test_streams_measured_beside_predicted(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["streams", "siamese/conv1", "--batch", "6", "--pass", "backward", "--measure", "3,2"]
    assert main([*command, "--repeat", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured = told["measured"]
    assert (measured["device"], measured["stand_in"]) == ("Fake CUDA device (host memory)", True)
    assert measured["identical_to_one_stream"] is True
    assert list(measured["times_ns"]) == list(measured["predicted_ns"]) == ["1", "3", "2"]
    assert measured["predicted_ns"]["1"] == told["one_stream_ns"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "no GPU: its times say nothing" in text
    assert "the same bits as on one stream" in text


def test_streams_without_numba_are_measured_alone(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in [name for name in sys.modules if name.startswith("pebbler.validate.streams.concurrent")]:
        monkeypatch.delitem(sys.modules, module)
    command = ["streams", "siamese/conv1", "--batch", "6", "--measure", "2", "--repeat", "1"]
    assert main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"layer", "device", "measured"}
    assert (told["measured"]["predicted_ns"], list(told["measured"]["times_ns"])) == (None, ["1", "2"])
    assert main(command) == 0
    assert "predicted: not without Numba" in capsys.readouterr().out
    assert "takes Numba" in refused(capsys, *command, "--picture", tmp_path / "picture.png")


def test_other_bits_on_more_streams_are_exit_status_1(
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_cuda.configure(delay_us=2000, seed=2)
    whole = StreamedLayer.run
    monkeypatch.setattr(StreamedLayer, "run", lambda self, streams: whole(self, streams, omit=("join",)))
    assert main(["streams", "siamese/conv1", "--batch", "6", "--measure", "3", "--repeat", "1"]) == 1
    assert "WRONG: not the bits of one stream" in capsys.readouterr().out


def test_streams_without_pycuda_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    said = refused(capsys, "streams", "siamese/conv1", "--batch", "6", "--measure", "2")
    assert "pycuda is not installed; install it with pip install 'pebbler[cuda]'" in said


def test_cuda_without_pycuda_says_what_to_install(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    said = refused(capsys, "run", *files, "--backend", "cuda")
    assert "pycuda is not installed; install it with pip install 'pebbler[cuda]'" in said


def run_elsewhere(files: tuple[Path, Path]) -> str:
    """The one sentence with which another process refuses to run a schedule on CUDA."""
    command = [sys.executable, "-m", "pebbler", "run", *map(str, files), "--backend", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_cuda_without_a_driver_says_what_to_install(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    if ctypes.util.find_library("cuda") is not None:
        pytest.skip("there is a driver")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    assert "install NVIDIA's driver" in run_elsewhere(files)


def test_a_driver_without_a_call_that_pycuda_needs_is_too_old(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    source = "int cuDriverGetVersion(int *v) { *v = 11080; return 0; }"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    said = run_elsewhere(files)
    assert re.search(r"driver is too old: it is for CUDA 11\.8 and has no cu\w+; install one for", said)


def test_a_driver_older_than_pycuda_is_too_old(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_VERSION", "12040")
    monkeypatch.setenv("FAKECUDA_INIT", "803")
    said = run_elsewhere(files)
    assert "too old: it is for CUDA 12.4 and PyCUDA was built for 13.0 (cuInit failed: system has" in said


def test_a_driver_that_finds_no_gpu_is_told(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKECUDA_INIT", "100")
    assert "finds no GPU that it can use (cuInit failed: no CUDA-capable device" in run_elsewhere(files)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "[ $1 = --version ] && echo nvcc && exit; echo 'nvcc warning : old' >&2; "
            "echo \"nvcc fatal : Unsupported gpu architecture 'compute_90'\" >&2; exit 1",
            "nvcc cannot compile the kernels (nvcc fatal : Unsupported gpu architecture 'compute_90'); ",
        ),
        ("exit 127", "nvcc cannot be run (error invoking 'nvcc --version': status 127"),
        (None, "nvcc cannot be run (error invoking 'nvcc --version'"),
    ],
)
def test_an_nvcc_that_fails_is_named(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    script: str | None,
    said: str,
) -> None:
    if script is not None:
        (tmp_path / "nvcc").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert said in run_elsewhere(files)


def test_the_script_finds_libraries_in_packages(
    fake_cuda: FakeCuda,  # noqa: F811
    files: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    libraries = Path(fake_cuda.variables["LD_LIBRARY_PATH"].split(":")[0])
    driver, packages = tmp_path / "driver", tmp_path / "packages"
    for name, folder in (
        ("libcuda.so.1", driver),
        ("libcudnn.so.9", packages / "nvidia" / "cudnn" / "lib"),
        ("libcublas.so.13", packages / "nvidia" / "cu13" / "lib"),
    ):
        folder.mkdir(parents=True)
        shutil.copy(libraries / name, folder / name)
    script = tmp_path / "script.py"
    assert main(["emit", *map(str, files), "-o", str(script)]) == 0
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    command = [sys.executable, str(script)]
    missing = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert missing.returncode == 1
    assert missing.stderr == (
        "cuDNN (libcudnn.so.9) cannot be loaded; install nvidia-cudnn-cu13 from PyPI, or name its folder in "
        "LD_LIBRARY_PATH\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(packages), prepend=":")
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith("loss ")


def test_run_as_a_graph(fake_cuda: FakeCuda, files: tuple[Path, Path]) -> None:  # noqa: ARG001, F811
    command = [sys.executable, "-m", "pebbler", "run", *map(str, files), "--backend", "cuda", "--graph"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["graph"], told["identical_to_unbudgeted"]) == (True, True)
    assert (told["error_ns"], told["host_ns_per_operation"]) == (None, None)
    assert told["measured_ns"] > 0
    assert told["host_ns"] > 0
    assert told["nodes"] > 0
    assert "operations" not in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "cpu"], "--graph is for --backend cuda; the backend cpu has no graphs"),
        (["--backend", "cuda", "--operations"], "give --graph or --operations"),
        (["--backend", "cuda", "--picture", "p.png"], "give --graph or --picture"),
        (["--backend", "cuda", "--trace", "t.json"], "give --graph or --trace"),
    ],
)
def test_what_goes_with_no_graph_is_refused(
    files: tuple[Path, Path], options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, "run", *files, "--graph", *options)


def test_a_graph_in_paged_memory_is_refused(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    instance = Workload("cifar10_quick", batch=64, device="k40").instance("64MiB")
    schedule = solve(instance, method="vdnn-all-m", memory="paged").schedule
    assert schedule is not None
    write_instance(instance, tmp_path / "i.json")
    write_schedule(schedule, tmp_path / "s.json")
    said = refused(capsys, "run", tmp_path / "i.json", tmp_path / "s.json", "--backend", "cuda", "--graph")
    assert "the host maps pages in the middle of it; solve with --memory contiguous" in said
