"""The study for a GPU, in all its stages, on the fake driver and on torch's CPU device."""

from __future__ import annotations

import itertools
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import json

from pebbler import Workload
from pebbler.benchmark.gpu.page import tables
from pebbler.benchmark.gpu.stages import ARITHMETICS, WAYS, require_torch, streams, trainings
from pebbler.benchmark.gpu.study import Study
from pebbler.benchmark.report.streams import predicted_layer
from pebbler.cli.main import main
from pebbler.instances.devices.caffe import find_layer
from pebbler.instances.devices.device import find_device
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import encode, write_instance
from pebbler.instances.networks.zoo import find_network
from pebbler.instances.profile import read_profile, write_profile
from pebbler.instances.units import format_time
from pebbler.validate.execution.cuda import backend as cuda
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.cupti import record_kernels
from pebbler.validate.execution.profiling.profiler import profile

from ...extras import needs_torch, single_precision
from ...fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401
from ...fakecuda.stand_ins import Cupti, Nvml, Result, install_broken

SMALL = ["--networks", "lenet/2", "--budgets", "1.05xMmin", "--methods", "vdnn-all-m,modnn"]


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CUPTI that reports two kernels a flush, the later one first; returns what it was asked."""
    stand_in = Cupti()
    stand_in.install(monkeypatch)
    return stand_in.calls


@pytest.fixture
def cupti_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same two kernels in other processes, which import what they find."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "cupti.py").write_text(CUPTI)
    monkeypatch.syspath_prepend(tmp_path / "packages")


CUPTI = """
from types import SimpleNamespace


def kernel(name, start):
    return SimpleNamespace(
        kind=3, name=name, start=start, end=start + 500, registers_per_thread=32,
        grid_x=8, grid_y=2, grid_z=1, block_x=256, block_y=1, block_z=1,
        static_shared_memory=1024, dynamic_shared_memory=64,
    )


completed = []
cupti = SimpleNamespace(
    ActivityKind=SimpleNamespace(CONCURRENT_KERNEL=3),
    cuptiError=RuntimeError,
    activity_register_callbacks=lambda _, done: completed.append(done),
    activity_enable=lambda _: None,
    activity_disable=lambda _: None,
    activity_flush_all=lambda _: completed[-1]([kernel("second", 2000), kernel("first", 1000)]),
)
"""


def measure_small(folder: Path, stages: str, *options: str) -> int:
    """Run the command on LeNet; its page and its archive are in the folder beside that of the results."""
    places = ["--out", str(folder), "--page", str(folder.parent / "page.md"), "--repeat", "1"]
    return main(["measure", *SMALL, *places, "--stages", stages, *options])


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- begin gpu -->\n<!-- end of gpu -->\nafter\n", encoding="utf-8")
    return path


def test_all_stages_leave_their_files(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    page: Path,
    cupti_elsewhere: None,  # noqa: ARG001
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "gpu"
    assert measure_small(folder, "page") == 0
    assert "Nothing has been measured yet." in page.read_text(encoding="utf-8")
    capsys.readouterr()
    assert measure_small(folder, "profile,kernels,solve,run,page", "--json") == 0
    told = json.decode(capsys.readouterr().out)
    assert (told["measured"], told["there"], told["failed"], told["skipped"]) == (6, 0, {}, {})
    profile = read_profile(folder / "lenet-2-profile.json")
    assert profile.machine.device == "Fake CUDA device (host memory)"
    assert {task.name for task in profile.tasks} >= {"FP(conv1)", "BP2(conv1)", "BP1(loss)"}
    kernels = json.decode((folder / "lenet-2-kernels.json").read_bytes())
    assert kernels["t_launch_ns"] > 0
    assert [one["name"] for one in kernels["tasks"]["FP(conv1)"]] == ["first", "second"]
    run = json.decode((folder / "lenet-2-1.05xMmin-vdnn-all-m-run.json").read_bytes())
    assert run["identical_to_unbudgeted"] or not run["deterministic"]
    assert run["max_abs_error"] < 1e-3
    text = page.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| lenet") and "xMmin" in line]
    assert [row.split(" | ")[2] for row in rows] == ["vdnn-all-m", "modnn"]
    assert text.startswith("before\n<!-- begin gpu -->\nFake CUDA device (host memory) (1.00 GiB), driver ")
    assert text.endswith("<!-- end of gpu -->\nafter\n")
    with tarfile.open(told["archive"]["file"]) as archive:
        packed = {name.removeprefix("gpu/") for name in archive.getnames()}
    assert packed == {path.name for path in folder.iterdir()}

    times = {path: path.stat().st_mtime_ns for path in folder.glob("lenet-*")}
    assert measure_small(folder, "profile,kernels,solve,run", "--json") == 0
    told = json.decode(capsys.readouterr().out)
    assert (told["measured"], told["there"]) == (0, 6)
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_layers_run_on_streams(fake_cuda: FakeCuda, tmp_path: Path, page: Path) -> None:  # noqa: ARG001, F811
    options = ["--layers", "siamese/conv1", "--device", "p100"]
    assert measure_small(tmp_path / "gpu", "streams,page", *options) == 0
    found = json.decode((tmp_path / "gpu" / "siamese-conv1-backward-streams.json").read_bytes())
    assert found["identical_to_one_stream"] is True
    rows = [line.split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "siamese" in line]
    assert [row[1] for row in rows] == ["forward", "backward"]
    for row in rows:
        assert row[2] == "Fake CUDA device (host memory) (P100)"
        assert (len(row), row[-1]) == (10, "yes |")


def test_layers_are_measured_without_numba_and_predicted_by_the_page(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To compile the simulation takes longer than to measure, and a GPU may be lent for minutes."""
    study = Study(tmp_path, layers=["siamese/conv1"], device="p100", repeat=1)
    unit = next(streams(study))
    monkeypatch.setattr("pebbler.benchmark.gpu.stages.COUNTS", (1, 2))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "numba", None)
        for module in [name for name in sys.modules if name.startswith("pebbler.validate.streams")]:
            without.delitem(sys.modules, module)
        assert (unit.name, unit.call(*unit.arguments)) == ("siamese/conv1 forward", None)
    assert unit.is_done()
    path = tmp_path / "siamese-conv1-forward-streams.json"
    found = json.decode(path.read_bytes())
    assert set(found) == {"device", "stand_in", "times_ns", "launch_ns", "identical_to_one_stream"}
    assert set(found["times_ns"]) == {"1", "2"}
    times = {str(count): 6_000_000 // count for count in (1, 2, 4, 8, 16, 32)}
    path.write_bytes(json.encode(found | {"times_ns": times}))

    def row() -> list[str]:
        return next(line for line in tables(study).splitlines() if "siamese" in line).split(" | ")

    device, layer = find_device("p100"), find_layer("siamese/conv1")
    predicted = predicted_layer(layer, "forward", device, (1, 2))
    assert row()[2:5] == [
        "Fake CUDA device (host memory) (P100)",
        f"6.000 ms ({format_time(predicted[1])})",
        f"2.00 ({predicted[1] / predicted[2]:.2f})",
    ]
    monkeypatch.setattr("pebbler.validate.streams.concurrent.MOST_BLOCKS", 1)
    assert "(not predicted: 64 samples have " in row()[2]
    assert row()[3] == "6.000 ms"


def test_cupti_records_are_what_streams_takes(cupti: list[str]) -> None:
    found = record_kernels(lambda: cupti.append("work"))
    assert cupti == ["enable", "work", "flush", "disable"]
    assert found[0] == {
        "name": "first", "grid": [8, 2, 1], "block": [256, 1, 1], "shared_bytes": 1088,
        "registers": 32, "duration_ns": 500, "invocations": 1,
    }  # fmt: skip


def test_a_failure_of_the_work_is_no_failure_of_cupti(cupti: list[str]) -> None:
    def fail() -> None:
        raise RuntimeError("the work's")

    with pytest.raises(RuntimeError, match="the work's"):
        record_kernels(fail)
    assert cupti == ["enable", "disable"]


def test_cupti_that_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    Cupti(refuses=Result.ERROR_INSUFFICIENT_PRIVILEGES).install(monkeypatch)
    said = r"cannot record kernels \(cuptiError: ERROR_INSUFFICIENT_PRIVILEGES \(35\)\); .*let this user"
    with pytest.raises(PebblerError, match=said):
        record_kernels(lambda: None)


@pytest.mark.parametrize("failure", ["ImportError", "RuntimeError", "at the first call"])
def test_cupti_without_its_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: str
) -> None:
    said = "libcupti.so.13: cannot open shared object file"
    if failure == "at the first call":
        Cupti(missing=RuntimeError(said)).install(monkeypatch)
    else:
        install_broken(monkeypatch, tmp_path, "cupti", f"raise {failure}('{said}')")
    with pytest.raises(PebblerError, match=rf"CUPTI cannot be loaded \({said}\); install nvidia-cuda-cupti"):
        record_kernels(lambda: None)


def test_cupti_that_delivers_nothing_is_told(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Cupti(delivers=False).install(monkeypatch)
    found = profile("lenet", 2, CudaBackend, repeat=1)
    assert found.kernels == ()
    assert found.meta["kernels_not_recorded"] == "the device has reported no kernel of any task"
    assert "no kernel configurations: the device has reported no kernel of any task" in caplog.text


def test_cupti_that_is_not_there_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pebbler.instances.importers.extras.find_spec", lambda _: None)
    with pytest.raises(PebblerError, match=r"pip install 'pebbler\[profiler\]'"):
        record_kernels(lambda: None)


def energy(backend: CudaBackend) -> float | None:
    try:
        return backend.energy_j()
    finally:
        backend.close()


def test_energy_is_what_nvml_counts(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001, F811
    Nvml([12_500]).install(monkeypatch)
    assert energy(CudaBackend()) == 12.5


@pytest.mark.parametrize(
    ("nvml", "said"),
    [
        (Nvml(None), "Not Supported"),
        (Nvml(bus="0000:99:00.0"), "Not Found"),
        (Nvml(fails="LibraryNotFound"), "NVML Shared Library Not Found"),
        (Nvml(fails="DriverNotLoaded"), "Driver Not Loaded"),
    ],
)
def test_energy_that_nvml_does_not_count_is_told_once(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    nvml: Nvml,
    said: str,
) -> None:
    nvml.install(monkeypatch)
    cuda.unmeasured.cache_clear()
    assert energy(CudaBackend()) is None
    assert energy(CudaBackend()) is None
    assert [one.getMessage() for one in caplog.records] == [f"no energy: NVML does not count it ({said})"]


def test_a_profile_has_kernels_and_energy(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    cupti: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    Nvml(range(0, 10**9, 3000)).install(monkeypatch)
    write_profile(profile("lenet", 2, CudaBackend, repeat=2), tmp_path / "p.json")
    found = read_profile(tmp_path / "p.json")
    assert cupti.count("enable") == cupti.count("disable") == len(found.kernels) + 1
    listed = [(task.sub_batch, task.name, one.name) for task in found.tasks for one in task.algorithms]
    assert [(one.sub_batch, one.name, one.algorithm) for one in found.kernels] == listed
    assert [kernel.name for kernel in found.kernels[0].kernels] == ["first", "second"]
    assert found.kernels[0].kernels[0].block == (256, 1, 1)
    most = max(len(task.algorithms) for task in found.tasks)
    assert [(one.sub_batch, one.algorithms, one.energy_mj) for one in found.energy] == [
        (2, number + 1, 3000) for number in range(most)
    ]


def test_a_profile_without_counters_says_what_to_install(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(
        "pebbler.instances.importers.extras.find_spec", lambda name: None if name == "cupti" else name
    )
    monkeypatch.setattr("pebbler.validate.execution.cuda.backend.find_spec", lambda _: None)
    cuda.unmeasured.cache_clear()
    backend = CudaBackend()
    try:
        with pytest.raises(PebblerError, match=r"pip install 'pebbler\[profiler\]'"):
            backend.record_kernels(lambda: None)
        assert backend.energy_j() is None
        assert backend.energy_j() is None
    finally:
        backend.close()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert "pip install 'pebbler[profiler]'" in said[0]


@pytest.fixture
def torch_as_before() -> Iterator[None]:
    """Leave torch's settings of single precision as they were; units of the study set them."""
    with single_precision():
        yield


@pytest.mark.usefixtures("torch_as_before")
@pytest.mark.parametrize("way", WAYS)
def test_torch_trains_a_chain_of_the_zoo_in_every_way(way: str) -> None:
    from pebbler.benchmark.gpu.torch_memory import iteration

    found = iteration("lenet", 4, 2**30, way, repeat=2, device="cpu")
    assert (found["status"], found["way"], len(found["times_ns"])) == ("done", way, 2)
    assert encode(found)


@pytest.mark.usefixtures("torch_as_before")
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_torch_rounds_as_it_is_told_and_says_so(arithmetic: str) -> None:
    from pebbler.benchmark.gpu.torch_memory import iteration

    found = iteration("lenet", 2, 2**30, "plain", arithmetic, repeat=1, device="cpu")
    rounds = arithmetic == "tf32"
    assert (found["arithmetic"], found["budget_bytes"]) == (arithmetic, 2**30)
    assert (found["tf32_products"], found["tf32_convolutions"]) == (rounds, rounds)


def test_torch_without_cuda_says_so() -> None:
    torch = needs_torch()
    if torch.cuda.is_available():
        pytest.skip("torch has a GPU here")
    with pytest.raises(PebblerError, match=r"torch .* built without CUDA|torch finds no CUDA device"):
        require_torch()


def test_torch_trains_under_the_budgets_of_the_instances_in_both_arithmetics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it measures is left to a stand-in, so no torch is needed."""
    asked = []

    def iteration(network: str, batch: int, budget: int, way: str, arithmetic: str, *, repeat: int) -> Any:
        asked.append((network, batch, budget, way, arithmetic, repeat))
        times = [] if way == "plain" else [3_000_000, 1_000_000, 2_000_000]
        return {"times_ns": times, "status": "done" if times else "out of memory", "peak_bytes": 2**20}

    stand_in = SimpleNamespace(iteration=iteration)
    monkeypatch.setitem(sys.modules, "pebbler.benchmark.gpu.torch_memory", stand_in)
    study = Study(tmp_path, [("lenet", 8)], budgets=["1.05xMmin", "2xMmin", "3xMmin"], repeat=3)
    assert {unit.lacks() for unit in trainings(study)} == {
        "there is no instance of lenet/8 yet; do the stage solve first"
    }
    budgets = []
    for text in study.budgets[:2]:
        instance = Workload("lenet", 8, "k40").instance(text)
        budgets.append(instance.budget_bytes)
        write_instance(instance, study.path("lenet", 8, text, "instance.json"))
    units = list(trainings(study))
    assert len(units) == len(WAYS) * len(ARITHMETICS)
    for unit in units:
        assert (unit.lacks(), unit.is_done()) == (None, False)
        assert unit.call(*unit.arguments) is None
        assert unit.is_done()
    ways = itertools.product(WAYS, ARITHMETICS, budgets)
    assert asked == [("lenet", 8, budget, way, arithmetic, 3) for way, arithmetic, budget in ways]
    units[0].call(*units[0].arguments)
    assert len(asked) == len(WAYS) * len(ARITHMETICS) * 2  # what is there is not done again
    rows = [line.split(" | ") for line in tables(study).splitlines() if line.startswith("| lenet")]
    assert [row[2] for row in rows[:4]] == [
        "torch, plain, single precision",
        "torch, plain, TF32",
        "torch, save_on_cpu, single precision",
        "torch, save_on_cpu, TF32",
    ]
    assert [row[4] for row in rows[:3]] == ["out of memory", "out of memory", "2.000 ms"]


def test_torch_models_have_the_parameters_of_the_zoo() -> None:
    needs_torch()
    from pebbler.benchmark.gpu.torch_memory import sequential

    for name in ("alexnet", "resnet50"):
        module = sequential(find_network(name))
        assert sum(values.numel() for values in module.parameters()) == find_network(name).parameters
    with pytest.raises(PebblerError, match="no chain"):
        sequential(find_network("googlenet"))
