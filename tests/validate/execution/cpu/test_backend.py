from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from pebbler import solve
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cpu.memory import available_bytes
from pebbler.validate.execution.cpu.threads import CpuStream
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.device import DeviceError
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.faults import essential_waits, executions_until_damage
from pebbler.validate.execution.kernel import Kernel
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule, write_schedule

PAGE = 2**21


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    opened = CpuBackend()
    yield opened
    opened.close()


@pytest.fixture
def case() -> tuple[Instance, Schedule]:
    """A schedule that copies."""
    instance = Workload("lenet", 2, "K40").instance("1.5xMmin")
    schedule = solve(instance, "vdnn-all-m").schedule
    assert schedule is not None
    assert {operation.stream for operation in schedule.operations} == {"compute", "d2h", "h2d"}
    return instance, schedule


def open_threads() -> int:
    return sum(thread.name.startswith("pebbler") for thread in threading.enumerate())


def put(stream: CpuStream, work: Callable[[], object]) -> None:
    """Launch work that is no kernel."""
    stream.launch(lambda *_: work(), {}, 0)  # type: ignore[arg-type,return-value]


# --- memory, streams, events --------------------------------------------------------------------------


def test_what_is_written_is_read(backend: CpuBackend) -> None:
    device, host = backend.allocate(4096), backend.allocate_host(4096)
    values = np.arange(1024, dtype=np.float32)
    backend.write(host, values)
    stream = backend.stream("h2d")
    stream.copy(device, host, 4096)
    stream.fill(device, 512)
    done = stream.record()
    done.synchronize()
    found = backend.read(device, 4096).view(np.float32)
    assert np.isnan(found[:128]).all()
    assert (found[128:] == values[128:]).all()
    assert device % 512 == host % 512 == 0


def test_a_stream_waits_for_an_event_of_another(backend: CpuBackend) -> None:
    first, second = backend.stream("d2h"), backend.stream("h2d")
    gate, order = threading.Event(), []
    put(first, gate.wait)
    put(first, lambda: order.append("first"))
    second.wait(first.record())
    put(second, lambda: order.append("second"))
    end = second.record()
    time.sleep(0.02)
    assert not order
    gate.set()
    end.synchronize()
    assert order == ["first", "second"]


def test_kept_work_is_done_any_number_of_times_in_its_order(backend: CpuBackend) -> None:
    """Streams wait for each other anew each time, and do nothing while their work is kept."""
    streams = [backend.stream(name) for name in ("compute", "d2h", "h2d")]
    done: list[int] = []
    with backend.keeping() as work:
        event = None
        for number in range(6):
            stream = streams[number % 3]
            if event is not None:
                stream.wait(event)
            put(stream, partial(done.append, number))
            event = stream.record()
        ends = [stream.record() for stream in streams]
    assert not done
    for _ in range(300):
        work.start()
        for end in ends:
            end.synchronize()
        assert done == list(range(6))
        done.clear()
    put(streams[0], partial(done.append, 9))
    streams[0].record().synchronize()
    assert done == [9], "and afterwards what they are given"


def test_events_have_times_on_one_clock(backend: CpuBackend) -> None:
    first, second = backend.stream("compute"), backend.stream("h2d")
    start = first.record()
    first.pause(2_000_000)
    middle = first.record()
    second.wait(middle)
    end = second.record()
    end.synchronize()
    assert 2_000_000 <= middle.since_ns(start) <= end.since_ns(start)
    assert start.since_ns(end) == -end.since_ns(start)


class Interrupted(BaseException):
    """What a signal raises."""


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_wait_may_be_interrupted_at_every_line(backend: CpuBackend) -> None:
    stream = backend.stream("compute")
    lines = interrupted = 0

    def trace(_: FrameType, kind: str, __: object) -> object:
        nonlocal lines
        if kind == "line":
            lines -= 1
            if lines == 0:
                raise Interrupted
        return trace

    for count in range(1, 100):
        stream.pause(1_000_000)
        event, lines = stream.record(), count
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            event.synchronize()
        except Interrupted:
            interrupted += 1
        finally:
            sys.settrace(before)
        assert stream.thread.is_alive()
        stream.record().synchronize()  # others are not held up
        if interrupted < count:
            break
    assert 3 <= interrupted < 99


def test_pages_are_mapped_one_after_the_other_wherever_they_are(backend: CpuBackend) -> None:
    backend.allocate_pages(4, PAGE)
    whole, other = backend.reserve(4 * PAGE), backend.reserve(2 * PAGE)
    backend.map(whole, range(4))
    for page in range(4):
        backend.write(whole + page * PAGE, np.full(8, page, dtype=np.uint8))
    backend.map(other, [3, 1])
    assert backend.read(other, 8).tolist() == [3] * 8
    assert backend.read(other + PAGE, 8).tolist() == [1] * 8
    backend.write(other, np.full(8, 7, dtype=np.uint8))
    assert backend.read(whole + 3 * PAGE, 8).tolist() == [7] * 8
    backend.map(other, [0, 2])
    assert backend.read(other + PAGE, 8).tolist() == [2] * 8
    with pytest.raises(PebblerError, match="page 4 is not among the 4"):
        backend.map(other, [4, 0])
    with pytest.raises(PebblerError, match="one pool"):
        backend.allocate_pages(1, PAGE)


def test_a_page_that_is_there_stays_as_it_is(backend: CpuBackend) -> None:
    """What is mapped anew can be written to, which here the middle page cannot."""
    backend.allocate_pages(4, PAGE)
    address = backend.reserve(3 * PAGE)
    backend.map(address, [0, 1, 2])
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), 1) == 0
    backend.map(address, [3, 1, 0])
    backend.write(address, np.full(8, 3, dtype=np.uint8))
    backend.write(address + 2 * PAGE, np.full(8, 4, dtype=np.uint8))
    assert protection_at(address + PAGE) == "r--s"
    backend.map(address, [0, 3, 2])
    assert [int(backend.read(address + k * PAGE, 1)[0]) for k in range(3)] == [4, 3, 0]
    assert protection_at(address + PAGE) == "rw-s"


def protection_at(address: int) -> str:
    """Return how this process may use an address, as Linux tells."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, protection, *_ = line.split()
        begin, end = (int(number, 16) for number in span.split("-"))
        if begin <= address < end:
            return protection
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_pages_of_an_odd_size_are_refused(backend: CpuBackend) -> None:
    with pytest.raises(DeviceError, match="pages of 1000 bytes cannot be mapped"):
        backend.allocate_pages(4, 1000)


@pytest.mark.parametrize("take", ["allocate", "allocate_host"])
def test_more_memory_than_there_is_is_refused(backend: CpuBackend, take: str) -> None:
    with pytest.raises(DeviceError, match=r"bytes of memory are needed and \d+ are available"):
        getattr(backend, take)(2 * available_bytes())


def test_closing_ends_every_thread_and_twice_is_no_error() -> None:
    before = open_threads()
    backend = CpuBackend()
    for name in ("compute", "d2h", "h2d"):
        backend.stream(name).pause(1_000_000)
    assert open_threads() == before + 3
    backend.close()
    backend.close()
    assert open_threads() == before


def test_closing_does_not_wait_for_what_is_left() -> None:
    backend = CpuBackend()
    stream, done = backend.stream("compute"), []
    for _ in range(1000):
        put(stream, lambda: done.append(time.sleep(0.01)))
    last = stream.record()
    backend.close()
    assert len(done) < 1000
    with pytest.raises(DeviceError, match="stopped"):
        last.synchronize()


# --- failures -----------------------------------------------------------------------------------------


class Failing(CpuBackend):
    """Fails in a task, or in the first copy."""

    def __init__(self, task: str = "") -> None:
        super().__init__()
        self.task = task

    def prepare(self, kernel: Kernel) -> Callable[[Mapping[str, int], int], None]:
        if kernel.task != self.task:
            return super().prepare(kernel)

        def fail(_: Mapping[str, int], __: int) -> None:
            raise FloatingPointError("it burns")

        return fail

    def stream(self, name: str) -> CpuStream:
        stream = super().stream(name)
        if not self.task and name == "d2h":

            def copy(*_: int) -> None:
                put(stream, lambda: ctypes.memmove(None, object(), 8))  # type: ignore[arg-type]

            stream.copy = copy  # type: ignore[method-assign]
        return stream


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("FP(conv2)", r"FP\(conv2\) \(operation \d+\): FloatingPointError: it burns"),
        ("BP1(pool1)", r"BP1\(pool1\) \(operation \d+\): FloatingPointError: it burns"),
        ("", r"offload .* \(operation \d+\): ArgumentError"),
    ],
)
@pytest.mark.parametrize("poison", [False, True])
def test_a_failure_is_one_error_that_names_the_operation(
    case: tuple[Instance, Schedule], task: str, words: str, poison: bool
) -> None:
    instance, schedule = case
    before = open_threads()
    data = initial(rebuild(instance).graph.network, 2)
    with Executor(Failing(task), plan(instance, schedule, rebuild(instance)), 1, poison=poison) as executor:
        executor.load(data)
        with pytest.raises(DeviceError, match=words):
            executor.run()
    assert open_threads() == before


def test_a_failure_before_pages_are_mapped_names_the_operation_as_well() -> None:
    instance = Workload("vgg:groups=1-1-1-1-1,size=32,dense=64", 16, "K40").instance(0, check_budget=False)
    instance = with_budget(instance, instance.resident_bytes + 12 * PAGE)
    schedule = solve(instance, "vdnn-all-m", memory="paged").schedule
    assert schedule is not None
    settled = plan(instance, schedule, rebuild(instance))
    assert any(mapped.after for step in settled.steps for mapped in step.maps)
    with Executor(Failing("FP(conv1_1)"), settled, 1) as executor:
        executor.load(initial(rebuild(instance).graph.network, 16))
        with pytest.raises(DeviceError, match=r"^FP\(conv1_1\) \(operation 0\): FloatingPointError"):
            executor.run()


def test_data_that_is_missing_or_too_small_is_refused(case: tuple[Instance, Schedule]) -> None:
    instance, schedule = case
    data = initial(rebuild(instance).graph.network, 2)
    with Executor(CpuBackend(), plan(instance, schedule, rebuild(instance)), 1) as executor:
        for name in ("X(input)", "W(conv1)", "labels(loss)"):
            with pytest.raises(PebblerError, match="has no array"):
                executor.load({key: values for key, values in data.items() if key != name})
            with pytest.raises(PebblerError, match="has no array"):
                executor.load(data | {name: data[name][:1]})


def test_a_pool_beyond_the_memory_is_refused_and_everything_given_back(
    case: tuple[Instance, Schedule],
) -> None:
    instance, schedule = case
    settled = plan(instance, schedule, rebuild(instance))
    settled.areas["pool"] = 2 * available_bytes()
    before = open_threads()
    with pytest.raises(DeviceError, match="take a smaller budget"):
        Executor(CpuBackend(), settled, 1)
    assert open_threads() == before


def test_ctrl_c_ends_a_run_at_once(tmp_path: Path) -> None:
    instance = Workload("lenet", 4, "K40").instance("2xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    write_instance(instance, tmp_path / "i.json")
    write_schedule(schedule, tmp_path / "s.json")
    command = [sys.executable, "-m", "pebbler", "run", "i.json", "s.json", "--backend", "cpu"]
    with subprocess.Popen(
        [*command, "--repeat", "100000", "-v"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "timed execution 2" in line:
                break
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert error.splitlines()[-1] == "pebbler: interrupted"
    assert "Traceback" not in error


# --- faults -------------------------------------------------------------------------------------------


@pytest.fixture
def right(case: tuple[Instance, Schedule]) -> Execution:
    instance, schedule = case
    rebuilt = rebuild(instance)
    roomy, program = unlimited(instance, schedule)
    with Executor(CpuBackend(), plan(roomy, program, rebuilt), 1) as executor:
        executor.load(initial(rebuilt.graph.network, 2))
        return executor.run()


def delayed(count: int) -> list[Callable[[], CpuBackend]]:
    return [partial(CpuBackend, (0.004, seed)) for seed in range(count)]


def test_waits_that_are_left_out_show_damage(case: tuple[Instance, Schedule], right: Execution) -> None:
    instance, schedule = case
    data = initial(rebuild(instance).graph.network, 2)
    waits = essential_waits(instance, schedule)
    assert len(waits) >= 8
    found = [executions_until_damage(instance, schedule, wait, delayed(8), data, right) for wait in waits]
    assert sum(one is not None for one in found) >= len(waits) / 4


def test_delays_alone_do_no_damage(case: tuple[Instance, Schedule], right: Execution) -> None:
    instance, schedule = case
    data = initial(rebuild(instance).graph.network, 2)
    nothing = (-1, -1)
    assert executions_until_damage(instance, schedule, nothing, delayed(8), data, right) is None


def test_an_operation_that_fails_without_a_wait_is_damaged(
    case: tuple[Instance, Schedule], right: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An algorithm reads a table of indices that another block has overwritten."""
    instance, schedule = case
    data = initial(rebuild(instance).graph.network, 2)
    wait = essential_waits(instance, schedule)[0]
    made = iter((right, DeviceError("BP2(conv2) (operation 14): ValueError: ...")))

    def run(_: Executor) -> Execution:
        found = next(made)
        if isinstance(found, DeviceError):
            raise found
        return found

    monkeypatch.setattr(Executor, "run", run)
    assert executions_until_damage(instance, schedule, wait, [CpuBackend] * 3, data, right) == 2
