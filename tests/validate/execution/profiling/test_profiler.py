"""What a profile says of a device whose times are known, and what is left of one that fails midway."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pebbler import solve
from pebbler.cli.main import main
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance, Slowdown
from pebbler.instances.origin import LaunchTimes
from pebbler.instances.profile import Profile, read_profile, write_profile
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cpu.threads import CpuStream
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.device import Backend, DeviceError
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.kernel import Kernel
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.profiling import profiler
from pebbler.validate.execution.profiling.beside import Work, beside_ns
from pebbler.validate.execution.profiling.copies import SMALLEST_COPY, Copies, slowdown_of
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import MemoryModel, Schedule

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401
from .virtual_device import Kinds, VirtualDevice

ALGORITHMS = [("plain", 0), ("large", 512), ("larger", 1024)]
"""Of every convolution of the virtual device."""


def listed(kernel: Kernel) -> list[tuple[str, int]]:
    return ALGORITHMS if kernel.layer.kind.name == "conv" and kernel.role == "FP" else [("kernel", 0)]


host_speed = cache(profiler.host_bandwidth)


@pytest.fixture(autouse=True)
def _host_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is virtual, but the processor is real, and takes its time."""
    monkeypatch.setattr(profiler, "host_bandwidth", lambda _: host_speed(1))


def of_lenet(device: VirtualDevice, *, repeat: int = 3, **options: Any) -> Profile:
    device.listed = listed
    return profile("lenet", 2, lambda: device, repeat=repeat, **options)


def durations(found: Profile) -> dict[tuple[str, str], int]:
    return {(task.name, one.name): one.duration_ns for task in found.tasks for one in task.algorithms}


# --- copies in both directions, and beside kernels ----------------------------------------------------


def sharing(kind: str, others: Kinds) -> float:
    """A link that two directions share, and memory that copies and kernels share."""
    slow = 1.0
    if kind in ("offload", "prefetch"):
        slow *= 2.5 if others & {"offload", "prefetch"} else 1
        slow *= 1.25 if "kernel" in others else 1
    if kind == "kernel":
        slow *= 1 + 0.5 * len(others & {"offload", "prefetch"})
    return 1 / slow


def test_copies_are_measured_alone_and_beside_the_other_direction() -> None:
    found = of_lenet(VirtualDevice(host_ns=500, rate=sharing))
    for one in found.copies:
        assert one.offload_ns == one.prefetch_ns == one.move_ns == 1000 + one.bytes
        assert one.offload_beside_prefetch_ns == pytest.approx(2.5 * one.offload_ns, abs=2)
        assert one.prefetch_beside_offload_ns == pytest.approx(2.5 * one.prefetch_ns, abs=2)


def test_what_disturbs_the_copies_of_one_size_does_not_count() -> None:
    device, asked = VirtualDevice(), [0]

    def rate(kind: str, others: Kinds) -> float:  # noqa: ARG001
        asked[0] += kind == "offload"
        return 0.25 if asked[0] <= 12 else 1.0

    disturbed = [*Copies(VirtualDevice(rate=rate), 16 * SMALLEST_COPY).times(3)]
    assert asked[0] > 12
    assert disturbed == [*Copies(device, 16 * SMALLEST_COPY).times(3)]


@pytest.mark.parametrize("kernel_ns", [200, 2000, 2_000_000])
def test_copies_and_a_kernel_are_measured_beside_each_other_whichever_is_longer(kernel_ns: int) -> None:
    found = of_lenet(VirtualDevice(host_ns=100, rate=sharing, kernel_ns=lambda _: kernel_ns))
    beside = found.meta["beside_compute"]
    copy = found.copies[-1].offload_ns
    assert beside["bytes"] == found.copies[-1].bytes
    assert beside["kernel"].split(" with ")[0] in {task.name for task in found.tasks}
    for way, other in (("offload", "prefetch"), ("prefetch", "offload")):
        times = beside[f"{way}_ns"]
        assert times["alone"] == copy
        assert times["beside_kernel"] == pytest.approx(1.25 * copy, abs=2)
        assert times[f"beside_kernel_and_{other}"] == pytest.approx(1.25 * 2.5 * copy, abs=2)
        assert beside["kernel_ns"][f"beside_{way}"] == pytest.approx(1.5 * kernel_ns, abs=2)
    assert found.slowdown_ppm is not None
    assert found.slowdown_ppm.offload == pytest.approx(10**6 / 3, rel=0.02)
    assert found.slowdown_ppm.prefetch == pytest.approx(10**6 / 3, rel=0.02)
    assert found.both_bandwidth == pytest.approx(2 * 10**9 / 2.5, rel=0.02)
    assert beside["kernel_ns"]["alone"] == kernel_ns
    assert beside["kernel_ns"]["beside_offload_and_prefetch"] == pytest.approx(2 * kernel_ns, abs=2)


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ((100, 200, 400), (400_000, 600_000)),
        ((100, 125, 100), (200_000, 0)),
        ((100, 99, 300), (0, 666_667)),
        ((100, None, 300), None),
    ],
)
def test_what_copies_take_of_a_kernels_speed_follows_from_its_times(
    times: tuple[int, int | None, int], taken: tuple[int, int] | None
) -> None:
    names = ("alone", "beside_offload", "beside_prefetch")
    found = slowdown_of(dict(zip(names, times, strict=True)))
    assert found == (None if taken is None else Slowdown(offload=taken[0], prefetch=taken[1]))


def test_a_step_of_an_optimizer_on_the_processor_is_measured() -> None:
    """Its rate is more than that of a disk, and less than any memory has."""
    found = of_lenet(VirtualDevice())
    assert found.host_bandwidth is not None
    assert 10**7 < found.host_bandwidth < 10**13


def test_what_cannot_be_kept_busy_is_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    """A host that takes longer to ask for the other work than the device to do it."""
    device = VirtualDevice(host_ns=100, kernel_ns=lambda _: 1)
    kernel, copy = device.stream("compute"), device.stream("h2d")
    device.allocate_host(2**30)
    work = Work("a copy", copy, lambda: copy.copy(2**30, 0, 10**9))
    short = Work("a kernel", kernel, lambda: kernel.launch("short", {}, 0))
    assert beside_ns(work, [short], 2) is None
    assert "a copy beside a kernel is not measured" in caplog.text


# --- tasks: medians, turns, holds ---------------------------------------------------------------------


def uneven(sequence: list[float]) -> Callable[[object], float]:
    """Times that repeat, for every launch of its own."""
    seen: dict[object, int] = {}

    def kernel_ns(launch: object) -> float:
        seen[launch] = seen.get(launch, -1) + 1
        return 1000 * sequence[seen[launch] % len(sequence)]

    return kernel_ns


def test_times_are_medians() -> None:
    """Two launches, by itself and in the execution that does not count, come before the five that count."""
    found = of_lenet(VirtualDevice(kernel_ns=uneven([50, 50, 7, 1, 5, 4, 9])), repeat=5)
    assert durations(found)["FP(conv2)", "large"] == 5000


def test_executions_with_different_algorithms_take_turns() -> None:
    device = VirtualDevice()
    of_lenet(device, repeat=3)
    turns = [launch[1] for launch in device.launched if launch[0] == "FP(conv2)"]
    assert turns[-6:] == ["plain", "large", "larger"] * 2


def test_drift_of_the_clock_meets_all_algorithms_alike() -> None:
    device = VirtualDevice()
    device.kernel_ns = lambda _: 1000 * (1 + device.now / 2e7)
    found = durations(of_lenet(device, repeat=9))
    slowest, fastest = (pick(found["FP(conv2)", name] for name, _ in ALGORITHMS) for pick in (max, min))
    assert found["FP(conv2)", "plain"] > 1500
    assert slowest < 1.1 * fastest


def test_a_host_that_is_slower_than_the_device_is_in_no_time() -> None:
    found = of_lenet(VirtualDevice(host_ns=20_000, kernel_ns=lambda _: 700))
    assert set(durations(found).values()) == {700}


def test_launches_are_measured_on_the_host_and_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device = VirtualDevice(host_ns=4000, kernel_ns=lambda one: 1300 if one == "nothing" else 900, node_ns=700)
    clock = SimpleNamespace(perf_counter_ns=lambda: int(device.now))
    monkeypatch.setattr("pebbler.validate.execution.profiling.host_costs.time", clock)
    found = of_lenet(device)
    assert found.launches is not None
    assert found.launches == LaunchTimes(host_ns=4000, gap_ns=1300, graph_gap_ns=700)


def test_times_are_as_precise_when_the_device_has_been_open_for_an_hour() -> None:
    """Where events tell times in single precision, an hour has steps of a quarter of a millisecond."""
    found = of_lenet(VirtualDevice(now=3.6e12, kernel_ns=lambda _: 700))
    assert set(durations(found).values()) == {700}


def test_a_run_is_held_until_it_is_queued_and_counts_from_there() -> None:
    device = VirtualDevice(host_ns=20_000, kernel_ns=lambda _: 700)
    instance, schedule = solved("contiguous")
    runs = sum(operation.kind == "run" for operation in schedule.operations)
    execution = executed(device, instance, schedule)
    assert runs * 700 <= execution.measured_ns < 20_000 * runs
    assert execution.rounds[0][0].start_ns < 1000
    assert device.now > 20_000 * runs


def test_a_graph_is_held_until_it_is_queued_and_counts_from_there() -> None:
    device = VirtualDevice(host_ns=20_000, node_ns=700)
    execution = executed(device, *unlimited(*solved("contiguous")), graph=True)
    assert execution.nodes is not None
    assert execution.measured_ns == 700 * sum(execution.nodes)


def test_a_run_in_pages_is_not_held() -> None:
    """Its host maps pages before it issues the first operation, and that is on the clock."""
    backend = Counting()
    executed(backend, *solved("paged"))
    assert backend.pauses == 0
    backend = Counting()
    executed(backend, *solved("contiguous"))
    assert backend.pauses == 1


class Counting(CpuBackend):
    """Counts pauses."""

    pauses = 0

    def stream(self, name: str) -> CpuStream:
        stream = super().stream(name)
        pause = stream.pause

        def counted(duration_ns: int) -> None:
            self.pauses += 1
            pause(duration_ns)

        stream.pause = counted  # type: ignore[method-assign]
        return stream


def solved(memory: MemoryModel) -> tuple[Instance, Schedule]:
    instance = Workload("lenet", 2, "K40").instance("64MiB")
    schedule = solve(instance, "vdnn-all-m", memory=memory).schedule
    assert schedule is not None
    return instance, schedule


def executed(backend: Backend, instance: Instance, schedule: Schedule, *, graph: bool = False) -> Execution:
    rebuilt = rebuild(instance)
    with Executor(backend, plan(instance, schedule, rebuilt), 1) as executor:
        executor.load(initial(rebuilt.graph.network, rebuilt.batch))
        return executor.run(graph=graph)


def test_streams_of_both_backends_pause(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    for backend in (CpuBackend(), CudaBackend()):
        try:
            stream, other = backend.stream("compute"), backend.stream("h2d")
            begin = stream.record()
            stream.pause(20_000_000)
            end, meanwhile = stream.record(), other.record()
            for event in (end, meanwhile):
                event.synchronize()
            assert end.since_ns(begin) >= 20_000_000
            assert end.since_ns(meanwhile) > 0
        finally:
            backend.close()


# --- what the device refuses --------------------------------------------------------------------------


def test_an_algorithm_that_is_refused_at_its_launch_is_left_out_with_the_reason() -> None:
    refused = {("FP(conv1)", "plain"), ("FP(conv2)", "larger")}
    found = of_lenet(VirtualDevice(refused=set(refused)))
    assert {name for task, name in durations(found) if task == "FP(conv1)"} == {"large", "larger"}
    assert {name for task, name in durations(found) if task == "FP(conv2)"} == {"plain", "large"}
    statuses = found.meta["not_measured"]
    assert {(one["task"], one["algorithm"]) for one in statuses} == refused
    assert {one["status"] for one in statuses} == {"CUDNN_STATUS_NOT_SUPPORTED"}
    assert [one["workspace_bytes"] for one in statuses] == [0, 1024]
    assert found.meta["complete"]


def test_a_task_without_an_algorithm_that_is_launched_is_told() -> None:
    refused = {("FP(conv2)", name) for name, _ in ALGORITHMS}
    with pytest.raises(PebblerError, match=r"'FP\(conv2\)'.*launches no algorithm of it: CUDNN_STATUS_NOT"):
        of_lenet(VirtualDevice(refused=set(refused)))


def test_the_kernel_beside_copies_is_one_that_the_device_launches() -> None:
    busy = of_lenet(VirtualDevice()).meta["beside_compute"]["kernel"].split(" with ")
    device = VirtualDevice(refused={tuple(busy)})
    device.listed = lambda kernel: [*listed(kernel), ("another", 0)]
    found = profile("lenet", 2, lambda: device, repeat=1)
    assert found.meta["beside_compute"]["kernel"] == f"{busy[0]} with another"


def test_a_device_that_is_lost_leaves_what_was_measured_and_the_reason() -> None:
    kept: list[Profile] = []
    with pytest.raises(DeviceError, match=r"'FP\(conv2\)', algorithm 'larger': .*does nothing more"):
        of_lenet(VirtualDevice(lost_at={("FP(conv2)", "larger")}), keep=kept.append)
    assert {name for task, name in durations(kept[-1]) if task == "FP(conv2)"} == {"plain", "large"}
    (status,) = kept[-1].meta["not_measured"]
    assert (status["task"], status["algorithm"]) == ("FP(conv2)", "larger")
    assert "does nothing more" in status["status"]
    assert kept[-1].meta["complete"] is False


# --- what is kept -------------------------------------------------------------------------------------


def test_a_profile_that_can_be_used_is_kept_after_every_step(tmp_path: Path) -> None:
    kept: list[Profile] = []
    found = of_lenet(VirtualDevice(), repeat=2, sub_batches=(1, 2), keep=kept.append)
    assert kept[-1] is found
    assert [one.meta["complete"] for one in kept] == [False] * (len(kept) - 2) + [True] * 2
    assert kept[-2].kernels == ()  # what records them may end the process
    counts = [sum(len(task.algorithms) for task in one.tasks) for one in kept]
    assert all(fewer <= more for fewer, more in pairwise(counts))
    assert len(set(counts)) == 2 * len(ALGORITHMS)
    tasks = len(found.tasks) // 2
    for one in kept:
        assert len(one.tasks) in (tasks, 2 * tasks)
        assert one.copies == found.copies
        write_profile(one, tmp_path / "p.json")
        again = read_profile(tmp_path / "p.json")
        workload = Workload("lenet", 1, again.machine.device, profile=again)
        assert workload.instance("2xMmin").tasks[0].algorithms == again.tasks[0].algorithms
    assert kept[0].meta["executions"] == 1
    assert found.meta["executions"] == 2


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGKILL, signal.SIGINT)),
    ],
)
def test_a_command_that_is_ended_leaves_a_file_that_can_be_used(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pebbler", "profile", "lenet", "--batch", "1", "--repeat", "9999"]
    with subprocess.Popen(
        [*command, "-o", "p.json"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        file = tmp_path / "p.json"
        for _ in range(3000):
            if file.exists():
                break
            time.sleep(0.02)
        time.sleep(0.1)  # the file may be there an instant before the command knows
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["p.json"]
    found = read_profile(file)
    assert found.meta["complete"] is False
    assert Workload("lenet", 1, found.machine.device, profile=found).instance("2xMmin")
    assert out == ""
    if number == signal.SIGKILL:
        return
    assert process.returncode == 128 + number
    partial, interrupted = err.splitlines()[-2:]
    assert partial.startswith(f"pebbler: p.json is partial: {len(found.tasks)} tasks with ")
    assert interrupted == "pebbler: interrupted"


def test_a_failure_leaves_the_file_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    device = VirtualDevice(lost_at={("FP(conv2)", "large")}, listed=listed)
    monkeypatch.setattr("pebbler.validate.execution.cpu.backend.CpuBackend", lambda: device)
    assert main(["profile", "lenet", "--batch", "2", "--repeat", "1", "-o", "p.json"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "p.json is partial: " in lines[-2]
    assert "does nothing more" in lines[-1]
    assert read_profile("p.json").meta["complete"] is False


# --- kernels ------------------------------------------------------------------------------------------


class Recording(VirtualDevice):
    """Has kernels to record, and something to record them with."""

    def __init__(self, record: Callable[[], list[dict[str, Any]]]) -> None:
        super().__init__()
        self._record = record

    def record_kernels(self, work: Callable[[], object]) -> list[dict[str, Any]]:
        work()
        return self._record()


ONE = {
    "name": "k", "grid": [1, 1, 1], "block": [32, 1, 1], "shared_bytes": 0, "registers": 8,
    "duration_ns": 5, "invocations": 1,
}  # fmt: skip


def failing() -> list[dict[str, Any]]:
    raise PebblerError("CUPTI cannot record kernels")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (failing, "CUPTI cannot record kernels"),
        (list, "has reported no kernel of any task"),
        (lambda: [ONE | {"duration_ns": 0}], "Expected `int` >= 1"),
        (lambda: [ONE | {"name": "\n"}], "characters that do not print"),
    ],
)
def test_whatever_becomes_of_the_kernels_the_times_are_kept(
    record: Callable[[], list[dict[str, Any]]], reason: str, tmp_path: Path
) -> None:
    kept: list[Profile] = []
    found = of_lenet(Recording(record), keep=kept.append)
    assert found.kernels == ()
    assert reason in found.meta["kernels_not_recorded"]
    assert found.meta["complete"]
    assert durations(found) == durations(kept[-2])
    write_profile(found, tmp_path / "p.json")
    assert not read_profile(tmp_path / "p.json").kernels


def test_kernels_that_are_recorded_are_in_the_profile() -> None:
    found = of_lenet(Recording(lambda: [ONE]))
    assert {(one.name, one.algorithm) for one in found.kernels} == set(durations(found))
    assert "kernels_not_recorded" not in found.meta


def break_enable(api: SimpleNamespace) -> None:
    def enable(_: object) -> None:
        raise api.cuptiError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    api.activity_enable = enable


def break_disable(api: SimpleNamespace) -> None:
    def disable(_: object) -> None:
        raise api.cuptiError("CUPTI_ERROR_NOT_INITIALIZED")

    api.activity_disable = disable


FAULTS: dict[str, Callable[[SimpleNamespace], object]] = {
    "INSUFFICIENT_PRIVILEGES": break_enable,
    "NOT_INITIALIZED": break_disable,
    "no attribute 'activity_flush_all'": lambda api: vars(api).pop("activity_flush_all"),
    "reported no kernel": lambda _: None,
}


@pytest.mark.parametrize("reason", [*FAULTS, "libcupti.so.13: cannot open"])
def test_cupti_that_fails_in_any_way_leaves_the_times(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    module = ModuleType("cupti")
    module.__spec__ = ModuleSpec("cupti", None)
    if reason in FAULTS:
        api = SimpleNamespace(
            ActivityKind=SimpleNamespace(CONCURRENT_KERNEL=3),
            cuptiError=type("cuptiError", (Exception,), {}),
            **dict.fromkeys(
                ("activity_register_callbacks", "activity_enable", "activity_disable", "activity_flush_all"),
                lambda *_: None,
            ),
        )
        FAULTS[reason](api)
        vars(module)["cupti"] = api
    else:

        def missing(_: str) -> None:
            raise ImportError("libcupti.so.13: cannot open shared object file")

        vars(module)["__getattr__"] = missing
    monkeypatch.setitem(sys.modules, "cupti", module)
    found = profile("lenet", 1, CudaBackend, repeat=1)
    assert found.kernels == ()
    assert reason in found.meta["kernels_not_recorded"]
    assert all(task.algorithms for task in found.tasks)
