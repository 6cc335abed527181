"""The smoke test: on the fake driver, where it must find what is wrong, and on a GPU where there is one."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import json

from pebbler import Workload
from pebbler.benchmark.gpu import smoke
from pebbler.benchmark.gpu.smoke import (
    MEMORY,
    METHODS,
    compare_algorithms,
    compare_schedule,
    difference,
    on_cpu,
    put_together,
    ready_schedule,
)
from pebbler.benchmark.gpu.stages import measure_profile, read
from pebbler.benchmark.gpu.study import Study
from pebbler.cli.main import main
from pebbler.heuristics.methods import Answer, Refusal
from pebbler.instances.errors import PebblerError
from pebbler.validate.check import check
from pebbler.validate.execution import data, trial
from pebbler.validate.execution.cuda.backend import CudaStream

from ...fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401

A_GPU = """
import ctypes, sys
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"no driver: {error}")
if hasattr(driver, "fakecuda_fail"):
    sys.exit("the driver is the fake one")
number = ctypes.c_int()
status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number))
sys.exit(f"the driver counts no GPU (error {status})" if status or not number.value else 0)
"""


def run(folder: Path, *networks: str) -> tuple[int, dict[str, Any]]:
    options = ["--networks", ",".join(networks)] if networks else []
    status = main(["measure", "--smoke", "--out", str(folder), "--repeat", "1", *options])
    return status, read(folder / "smoke.json")


def test_a_gpu_computes_what_the_cpu_computes(tmp_path: Path) -> None:
    """All of it, where there is a GPU."""
    found = subprocess.run([sys.executable, "-c", A_GPU], capture_output=True, text=True, timeout=60)
    if found.returncode:
        pytest.skip(f"there is no GPU here: {found.stderr.strip()}")
    if find_spec("pycuda") is None:
        pytest.skip("there is a GPU here, but no PyCUDA")
    command = [sys.executable, "-m", "pebbler", "measure", "--smoke", "--out", str(tmp_path / "gpu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read(tmp_path / "gpu" / "smoke.json")["passed"] is True


def test_the_fake_driver_computes_what_the_cpu_computes(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "gpu"
    status, found = run(folder, "lenet/2")
    assert (status, found["passed"], found["missing"]) == (0, True, [])
    wanted = ["profile", "algorithms", *(f"{method} {memory}" for method in METHODS for memory in MEMORY)]
    assert [one["check"] for one in found["checks"]] == [f"lenet/2 {name}" for name in wanted]
    assert all(one["error"] is None or one["error"] < 1e-5 for one in found["checks"])
    launched = read(folder / "smoke-lenet-2-algorithms.json")
    names = {(one["task"], one["algorithm"]) for one in launched["algorithms"]}
    assert {
        ("FP(conv1)", "fft"),
        ("BP2(conv2)", "algo-3"),
        ("BP1(ip1)", "gemm"),
        ("FP(pool1)", "kernel"),
    } <= names
    capsys.readouterr()
    # a check that did not pass is made again, and only that
    target = folder / "smoke-lenet-2-modnn-paged.json"
    target.write_bytes(target.read_bytes().replace(b'"passed": true', b'"passed": false'))
    assert main(["measure", "--smoke", "--out", str(folder), "--networks", "lenet/2", "--json"]) == 0
    told = json.decode(capsys.readouterr().out)
    assert (told["measured"], told["there"]) == (1, 5)


@pytest.fixture
def source(fake_cuda: FakeCuda, tmp_path: Path) -> Path:  # noqa: ARG001, F811
    path = tmp_path / "smoke-lenet-2-profile.json"
    measure_profile(path, "lenet", 2, (), 1)
    return path


def test_what_the_gpu_does_not_compute_is_found(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fourth task does nothing."""
    launch, count = CudaStream.launch, itertools.count()

    def sometimes(self: CudaStream, *arguments: Any) -> None:
        if next(count) % 4 != 3:
            launch(self, *arguments)

    monkeypatch.setattr(CudaStream, "launch", sometimes)
    target = source.parent / "smoke-lenet-2-algorithms.json"
    said = compare_algorithms(target, "lenet", 2, ())
    found = read(target)
    assert (found["passed"], found["error"], found["sentence"]) == (False, None, said)
    assert "differ from the CPU by more than they may: " in found["sentence"]
    assert [one["error"] is None for one in found["algorithms"][:8]] == [False, False, False, True] * 2
    target = source.parent / "smoke-lenet-2-modnn-paged.json"
    said = compare_schedule(target, source, 2, "modnn", "paged")
    assert (read(target)["passed"], read(target)["sentence"]) == (False, said)


def test_numbers_that_are_a_little_wrong_are_found_and_told(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU starts from other weights."""
    draw = data.initial
    seeds = iter((1, 0))  # of the run on the GPU, and on the CPU
    monkeypatch.setattr(
        trial, "initial", lambda network, batch, _, kept: draw(network, batch, next(seeds), kept)
    )
    target = source.parent / "smoke-lenet-2-modnn-contiguous.json"
    said = compare_schedule(target, source, 2, "modnn", "contiguous")
    found = read(target)
    assert (found["passed"], found["sentence"]) == (False, said)
    assert 0.001 < found["error"] < 100
    assert found["error"] == max(found["differences"].values())


def test_a_lost_context_ends_the_algorithms_and_what_was_found_stays(
    source: Path,
    fake_cuda: FakeCuda,  # noqa: F811
) -> None:
    target = source.parent / "smoke-lenet-2-algorithms.json"
    fake_cuda.fail(launch=5)
    said = compare_algorithms(target, "lenet", 2, ())
    found = read(target)
    assert (found["passed"], found["sentence"]) == (False, said)
    assert len(found["algorithms"]) in range(1, 5)
    assert f"{len(found['algorithms'])} algorithms launched, then: " in found["sentence"]
    assert "unspecified launch failure" in found["sentence"]


def test_one_file_has_what_came_of_everything(source: Path) -> None:
    study = Study(source.parent, smoke_networks=[("lenet", 2)])
    compare_schedule(study.path("smoke", "lenet", 2, "modnn", "paged.json"), source, 2, "modnn", "paged")
    put_together(study, {"lenet/2 algorithms": "it crashed"})
    found = read(study.path("smoke.json"))
    assert [(one["check"], one["passed"]) for one in found["checks"]] == [
        ("lenet/2 profile", True),
        ("lenet/2 algorithms", False),
        ("lenet/2 modnn paged", True),
    ]
    assert (found["passed"], found["checks"][1]["sentence"]) == (False, "it crashed")
    assert found["missing"] == [
        "lenet/2 vdnn-all-m contiguous",
        "lenet/2 vdnn-all-m paged",
        "lenet/2 modnn contiguous",
    ]


@pytest.mark.parametrize("network", ["lenet", "cifar10_quick", "resnet56:depth=8"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory", MEMORY)
def test_the_schedules_copy_and_are_the_cpus_as_well(network: str, method: str, memory: Any) -> None:
    instance, schedule = ready_schedule(Workload(network, 4, "h200"), method, memory)
    assert schedule.memory_model == memory
    assert {operation.kind for operation in schedule.operations} >= {"run", "offload", "prefetch"}
    assert check(on_cpu(instance), schedule).valid


def test_a_rule_without_a_schedule_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Answer:
        raise Refusal("no place for X")

    monkeypatch.setattr(smoke, "find_method", lambda _: SimpleNamespace(call=refuse))
    with pytest.raises(PebblerError, match=r"modnn has no paged schedule of lenet-b2 .* no place for X"):
        ready_schedule(Workload("lenet", 2, "k40"), "modnn", "paged")


def test_difference_is_relative_to_the_largest_and_finds_nan() -> None:
    wanted = np.array([1.0, -4.0, np.nan], dtype=np.float32)
    assert difference(wanted.copy(), wanted) == 0.0  # the same bits
    assert difference(np.array([1.0, -2.0, np.nan], dtype=np.float32), wanted) == 0.5
    assert difference(np.array([np.nan, -4.0, np.nan], dtype=np.float32), wanted) == math.inf
    assert difference(np.array([1.0, -4.0, 0.0], dtype=np.float32), wanted) == math.inf
    zeros = np.zeros(2, dtype=np.float32)
    assert difference(np.array([0.0, 0.25], dtype=np.float32), zeros) == 0.25
