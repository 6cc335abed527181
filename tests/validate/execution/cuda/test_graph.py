"""Rounds as CUDA graphs, on the fake driver: the same bits, real races, refusals, and nothing left behind."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from pebbler import Workload, solve
from pebbler.benchmark.report.trial import as_dict, operations_table, told
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.origin import LaunchTimes
from pebbler.instances.transforms import split_parts, with_engines
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cuda.backend import CudaBackend, CudaStream
from pebbler.validate.execution.cuda.cublas import Cublas
from pebbler.validate.execution.cuda.libraries import Library
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.device import DeviceError
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.profiling.host_costs import launch_times
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import attempt, identical
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import Schedule
from pebbler.validate.simulate import nominal_ns

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda, repeatable  # noqa: F401
from ....samples import mostly_slow

Solved = tuple[Instance, Schedule]


@cache
def solved(network: str, batch: int, budget: str, method: str, rounds: int) -> Solved:
    return variant(Workload(network, batch * rounds, "k40").instance(budget, batch, rounds=rounds), method)


def variant(instance: Instance, method: str) -> Solved:
    """The instance with algorithms that always give the same bits, and a schedule of it."""
    instance = repeatable(instance)
    return instance, schedule_of(instance, method)


def schedule_of(instance: Instance, method: str, memory: str = "contiguous") -> Schedule:
    schedule = solve(instance, method=method, memory=memory, time_limit=1).schedule  # type: ignore[arg-type]
    assert schedule is not None
    return schedule


def moving() -> Solved:
    """Two rounds with copies in both directions, and products of cuBLAS."""
    return solved("cifar10_quick", 4, "1.2xMmin", "vdnn-all-m", 2)


def executor_of(instance: Instance, schedule: Schedule, **options: Any) -> Executor:
    rebuilt = rebuild(instance)
    executor = Executor(CudaBackend(), plan(instance, schedule, rebuilt), instance.rounds, **options)
    executor.load(initial(rebuilt.graph.network, rebuilt.batch, 0, instance.made_from.optimizer))
    return executor


def without_budget(instance: Instance, schedule: Schedule) -> Execution:
    with executor_of(*unlimited(instance, schedule)) as executor:
        return executor.run()


CASES: dict[str, Callable[[], Solved]] = {
    "two rounds": moving,
    "techniques of moDNN": lambda: solved("lenet", 8, "1.0xMmin", "modnn", 1),
    "batch norm": lambda: solved("resnet56:depth=8", 4, "1.6xMmin", "vdnn-all-m", 2),
    "one copy engine": lambda: variant(with_engines(moving()[0], "single"), "vdnn-all-m"),
    "parts": lambda: variant(split_parts(solved("lenet", 64, "1.2xMmin", "modnn", 1)[0], 2**21), "modnn"),
    "weights as blocks": lambda: variant(
        Workload("cifar10_quick", 4, "k40", weights_as_blocks=True).instance("1.2xMmin"), "modnn"
    ),
}


@pytest.mark.parametrize("case", mostly_slow(CASES, ("two rounds", "techniques of moDNN", "parts")))
def test_graphs_have_the_bits_of_streams_and_of_a_run_without_budget(
    fake_cuda: FakeCuda,  # noqa: F811
    case: str,
) -> None:
    instance, schedule = CASES[case]()
    expected = without_budget(instance, schedule)
    fake_cuda.configure(delay_us=300, seed=1)
    with executor_of(instance, schedule, poison=True) as executor:
        streams = executor.run()
        poisoned = [executor.run(graph=True), executor.run(graph=True)]
        executor.poison = False
        graphs = [*poisoned, executor.run(graph=True), executor.run(graph=True)]
    for found in (streams, *graphs):
        assert identical(found, expected)
    assert [len(row) for row in graphs[0].rounds] == [1] * instance.rounds
    assert graphs[-1].measured_ns > 0
    assert fake_cuda.unpinned_copies() == 0
    assert fake_cuda.bytes_in_use() == 0
    assert fake_cuda.graphs() == 0


@pytest.mark.parametrize("budget", ["1.0xMmin", "1.3xMmin"])
def test_a_graph_goes_on_from_what_the_iteration_before_has_left(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    budget: str,
) -> None:
    workload = Workload("lenet", 4, "k40", steady=True, optimizer="adam")
    instance, schedule = variant(workload.instance(budget), "modnn")
    with executor_of(*unlimited(instance, schedule)) as executor:
        expected = [executor.run() for _ in range(4)]
    with executor_of(instance, schedule, poison=True) as executor:
        found = [executor.run(), executor.run(graph=True)]
        executor.poison = False
        found += [executor.run(graph=True), executor.run(graph=True)]
    assert [identical(one, other) for one, other in zip(found, expected, strict=True)] == [True] * 4
    assert len({one.loss for one in found}) == 4


def test_bits_that_vary_do_so_in_graphs(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance = Workload("cifar10_quick", 8, "k40").instance("1.2xMmin", 4, rounds=2)
    with executor_of(instance, schedule_of(instance, "vdnn-all-m")) as executor:
        executor.run()
        found = [executor.run(graph=True) for _ in range(4)]
    assert not all(identical(one, found[0]) for one in found)


def test_every_operation_has_its_nodes_in_the_graph(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance, schedule = moving()
    with executor_of(instance, schedule) as executor:
        assert executor.run().nodes is None
        nodes = executor.run(graph=True).nodes
        executor.poison = True
        poisoned = executor.run(graph=True).nodes
    assert nodes is not None
    assert poisoned is not None
    assert len(nodes) == len(schedule.operations)
    for operation, count in zip(schedule.operations, nodes, strict=True):
        assert count == 1 if operation.kind != "run" else count >= 1
    assert max(nodes) > 1
    assert sum(poisoned) > sum(nodes), "memory that is given back is filled in the graph, too"


def test_missing_waits_do_damage_in_graphs(fake_cuda: FakeCuda) -> None:  # noqa: F811
    instance, schedule = moving()
    expected = without_budget(instance, schedule)
    streams = {operation.id: operation.stream for operation in schedule.operations}
    waits = [
        (operation.id, other)
        for operation in schedule.operations
        for other in operation.after
        if streams[other] != operation.stream
    ]
    damaged = 0
    for seed in range(3):
        with executor_of(instance, schedule, omit=waits) as executor:
            executor.run()
            fake_cuda.configure(delay_us=2000, seed=seed)
            damaged += not identical(executor.run(graph=True), expected)
    assert damaged >= 2


def test_a_trial_of_graphs_has_one_time_a_round(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance, schedule = moving()
    trial = attempt(instance, schedule, CudaBackend, repeat=3, graph=True)
    assert trial.identical
    assert len(trial.executions) == 3
    assert trial.nodes is not None
    found = as_dict(trial)
    assert found["graph"] is True
    assert found["nodes"] == sum(trial.nodes)
    assert found["identical_to_unbudgeted"] is True
    assert (found["error_ns"], found["host_ns_per_operation"]) == (None, None)
    assert found["host_ns"] > 0
    assert found["peak_bytes"] == schedule.peak_bytes
    text = told(trial)
    assert "the same bits as without a budget" in text
    assert "a launch of" in text
    assert trial.causes() is None
    for asked in (operations_table, lambda one: as_dict(one, operations=True), lambda one: one.measured()):
        with pytest.raises(PebblerError, match="a graph has one time for all of its operations"):
            asked(trial)  # type: ignore[no-untyped-call]
    eager = as_dict(attempt(instance, schedule, CudaBackend, repeat=1, reference=False))
    assert (eager["graph"], eager["nodes"]) == (False, None)
    assert eager["host_ns"] > 0


def test_the_prediction_has_the_gaps_of_graphs_where_they_are_known(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
) -> None:
    instance, schedule = moving()
    trial = attempt(instance, schedule, CudaBackend, repeat=1, reference=False, graph=True)

    def known(**launches: int) -> Any:
        origin = msgspec.structs.replace(instance.made_from, launches=LaunchTimes(host_ns=7, **launches))
        return replace(trial, instance=msgspec.structs.replace(instance, origin=origin))

    for unknown in (trial, known(gap_ns=5)):
        assert unknown.predicted_ns == unknown.scheduled_ns
        assert "without the launch gaps of graphs, which are unknown" in told(unknown)
    assert known(gap_ns=900, graph_gap_ns=900).predicted_ns == trial.scheduled_ns
    assert trial.nodes is not None
    kernels = [
        nodes if operation.kind == "run" else 0
        for operation, nodes in zip(schedule.operations, trial.nodes, strict=True)
    ]
    nominal = [nominal_ns(instance, operation) for operation in schedule.operations]
    slower = known(gap_ns=100, graph_gap_ns=10**7)
    by_hand = [ns + (10**7 - 100) * count for ns, count in zip(nominal, kernels, strict=True)]
    assert slower.predicted_ns == instance.rounds * trial.simulated(by_hand, [0] * len(nominal))
    assert slower.predicted_ns > trial.scheduled_ns
    assert "with the launch gaps of graphs; the schedule alone" in told(slower)
    no_time = known(gap_ns=10**9, graph_gap_ns=0)
    copies = [0 if count else ns for ns, count in zip(nominal, kernels, strict=True)]
    assert no_time.predicted_ns == instance.rounds * trial.simulated(copies, [0] * len(nominal))


def test_a_profile_measures_the_gap_and_the_instance_has_it(fake_cuda: FakeCuda) -> None:  # noqa: F811
    measured = profile("lenet", 1, CudaBackend, repeat=1)
    assert measured.launches is not None
    assert measured.launches.graph_gap_ns is not None
    instance = Workload("lenet", 1, measured.machine.device, profile=measured).instance("2xMmin")
    assert instance.made_from.launches == measured.launches
    on_cpu = profile("lenet", 1, CpuBackend, repeat=1).launches
    assert on_cpu is not None
    assert on_cpu.graph_gap_ns is None
    assert fake_cuda.graphs() == 0


def test_the_gap_in_a_graph_is_that_of_a_chain(fake_cuda: FakeCuda, backend: CudaBackend) -> None:  # noqa: F811
    fake_cuda.configure(delay_us=40, seed=4)  # 20 us before a kernel, on average
    found = launch_times(backend, 3)
    assert found.graph_gap_ns is not None
    assert 10_000 < found.graph_gap_ns < 10**7
    assert 10_000 < found.gap_ns < 10**7


# --- refusals -----------------------------------------------------------------------------------------


def test_paged_memory_is_refused_before_anything_runs(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance = Workload("cifar10_quick", 64, "k40").instance("1.2xMmin")
    schedule = schedule_of(instance, "vdnn-all-m", "paged")

    def opened() -> CudaBackend:
        raise AssertionError("a device was opened")

    with pytest.raises(PebblerError, match="in paged memory a round cannot be one graph"):
        attempt(instance, schedule, opened, graph=True)
    with (
        executor_of(instance, schedule) as executor,
        pytest.raises(PebblerError, match="in paged memory a round cannot be one graph"),
    ):
        executor.run(graph=True)


def test_a_backend_without_graphs_is_refused() -> None:
    instance = Workload("lenet", 2, "k40").instance("64MiB")
    schedule = schedule_of(instance, "vdnn-all-m")
    with pytest.raises(PebblerError, match="the CPU has no graphs; run it without --graph"):
        attempt(instance, schedule, CpuBackend, repeat=1, reference=False, graph=True)


def test_a_driver_without_the_calls_is_refused(
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare = Library.declare

    def older(library: Library, **signatures: Any) -> None:
        if "cuGraphUpload" in signatures:
            signatures["cuGraphNotYetThere"] = []
        declare(library, **signatures)

    monkeypatch.setattr(Library, "declare", older)
    with pytest.raises(PebblerError, match=r"no cuGraphNotYetThere; install a driver of CUDA 11\.4 or later"):
        attempt(*moving(), CudaBackend, repeat=1, reference=False, graph=True)
    assert fake_cuda.bytes_in_use() == 0


def test_a_first_use_inside_a_capture_is_refused_by_the_name_of_its_operation(
    fake_cuda: FakeCuda,  # noqa: F811
) -> None:
    # Without an iteration before, the first product of cuBLAS allocates in the middle of the capture.
    instance, schedule = moving()
    with executor_of(instance, schedule) as executor:
        with pytest.raises(DeviceError, match=r"^FP\(\w+\) \(operation \d+\) cannot be part of a CUDA graph"):
            executor.run(graph=True)
        assert fake_cuda.graphs() == 0
        assert identical(executor.run(), without_budget(instance, schedule)), "the streams work as before"
        executor.run(graph=True)
    assert (fake_cuda.bytes_in_use(), fake_cuda.graphs()) == (0, 0)


def test_what_invalidates_a_capture_without_a_word_is_named(
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, schedule = moving()
    multiply = Cublas.multiply

    def allocate() -> None:
        ctypes.CDLL("libcuda.so.1").cuMemHostAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1), 0)

    def careless(self: Cublas, *arguments: Any) -> None:
        multiply(self, *arguments)
        allocate()

    with executor_of(instance, schedule) as executor:
        executor.run()
        monkeypatch.setattr(Cublas, "multiply", careless)
        with pytest.raises(DeviceError, match=r"^FP\(ip1\) .* CUDA graph, .*previous error during capture"):
            executor.run(graph=True)
        stream = executor.backend.stream("compute")
        with pytest.raises(DeviceError, match=r"^the second cannot be .*a call that is not permitted while"):
            executor.backend.capture([stream], [("the first", stream.record), ("the second", allocate)])
    assert (fake_cuda.bytes_in_use(), fake_cuda.graphs()) == (0, 0)


def test_a_failure_inside_a_graph_is_one_sentence_and_leaves_nothing(fake_cuda: FakeCuda) -> None:  # noqa: F811
    executor = executor_of(*moving())
    with executor:
        executor.run()
        fake_cuda.fail(launch=3)  # of the capture; it fails when the graph is launched
        with pytest.raises(DeviceError, match=r"the GPU has failed, .*launch failure"):
            executor.run(graph=True)
    fake_cuda.recover()
    assert (fake_cuda.bytes_in_use(), fake_cuda.graphs()) == (0, 0)


def test_an_interrupt_in_a_capture_gives_everything_back(
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance, schedule = moving()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with executor_of(instance, schedule) as executor:
        expected = executor.run()
        with monkeypatch.context() as patch:
            patch.setattr(Cublas, "multiply", interrupted)
            with pytest.raises(KeyboardInterrupt):
                executor.run(graph=True)
        assert gc.isenabled()
        assert identical(executor.run(), expected)
    assert (fake_cuda.bytes_in_use(), fake_cuda.graphs()) == (0, 0)


def test_memory_that_python_collects_does_not_end_a_capture(
    fake_cuda: FakeCuda,  # noqa: F811
    backend: CudaBackend,
) -> None:
    class Holder:
        """A cycle with memory of the device in it."""

        def __init__(self, memory: Any) -> None:
            self.memory, self.itself = memory, self

    stream = backend.stream("compute")
    place = backend.allocate(512)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:

        def work() -> None:
            Holder(held.pop())
            for _ in range(100):
                stream.fill(place, 512)

        held = [backend.driver.mem_alloc(1)]
        backend.capture([stream], [("fills", work)]).launch()
        stream.record().synchronize()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert fake_cuda.bytes_in_use() == 4096, "of the two, only the place is left"


# --- the fake driver is as strict as the real one -----------------------------------------------------


@pytest.fixture
def backend(fake_cuda: FakeCuda) -> Iterator[CudaBackend]:  # noqa: ARG001, F811
    opened = CudaBackend()
    yield opened
    opened.close()


UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED = range(900, 908)
WRONG_THREAD = 908
GLOBAL, THREAD_LOCAL, RELAXED = range(3)


class Driver:
    """The driver's calls, which return their status."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> int:
        given = [ctypes.c_void_p(one) if isinstance(one, int) else one for one in arguments]
        return int(getattr(self._library, name)(*given))

    def event(self) -> int:
        found = ctypes.c_void_p()
        assert self("cuEventCreate", ctypes.byref(found), 0) == 0
        assert found.value
        return found.value

    def record(self, event: int, stream: CudaStream) -> None:
        assert self("cuEventRecord", event, stream.raw.handle) == 0

    def begin(self, stream: CudaStream, mode: int = THREAD_LOCAL) -> None:
        assert self("cuStreamBeginCapture_v2", stream.raw.handle, mode) == 0

    def end(self, stream: CudaStream) -> int:
        """End a capture; the graph is given back."""
        graph = ctypes.c_void_p()
        status = self("cuStreamEndCapture", stream.raw.handle, ctypes.byref(graph))
        assert bool(graph) == (status == 0)
        if graph:
            self("cuGraphDestroy", graph)
        return status


def in_another_thread(work: Callable[[], Any]) -> Any:
    """Do some work in a thread that has the same context."""
    driver, context, found = Driver(), ctypes.c_void_p(), []

    def enter_and_work() -> None:
        assert driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0) == 0
        assert driver("cuCtxPushCurrent_v2", context) == 0
        found.append(work())
        assert driver("cuCtxPopCurrent_v2", None) == 0
        assert driver("cuDevicePrimaryCtxRelease_v2", 0) == 0

    thread = threading.Thread(target=enter_and_work)
    thread.start()
    thread.join()
    return found[0]


def test_what_the_host_may_not_do_to_a_capture(backend: CudaBackend) -> None:
    driver, stream, other = Driver(), backend.stream("d2h"), backend.stream("h2d")
    place, host = backend.allocate(512), backend.allocate_host(512)
    before = driver.event()
    driver.record(before, stream)
    event = driver.event()
    calls: dict[str, tuple[int, Callable[[], int]]] = {
        "wait for the stream": (UNSUPPORTED, lambda: driver("cuStreamSynchronize", stream.raw.handle)),
        "query the stream": (UNSUPPORTED, lambda: driver("cuStreamQuery", stream.raw.handle)),
        "wait for all": (UNSUPPORTED, lambda: driver("cuCtxSynchronize")),
        "wait for a captured event": (CAPTURED, lambda: driver("cuEventSynchronize", event)),
        "query a captured event": (CAPTURED, lambda: driver("cuEventQuery", event)),
        "query any event": (UNSUPPORTED, lambda: driver("cuEventQuery", before)),
        "allocate": (UNSUPPORTED, lambda: driver("cuMemAlloc_v2", ctypes.byref(ctypes.c_void_p()), 512)),
        "copy and wait": (IMPLICIT, lambda: driver("cuMemcpyHtoD_v2", place, host, 512)),
        "use the legacy stream": (IMPLICIT, lambda: driver("cuMemsetD8Async", place, 0, 512, None)),
        "wait for what is not captured": (
            ISOLATION,
            lambda: driver("cuStreamWaitEvent", stream.raw.handle, before, 0),
        ),
    }
    for what, (status, call) in calls.items():
        driver.begin(stream)
        driver.record(event, stream)
        stream.fill(place, 512)
        assert call() == status, what
        assert driver("cuMemsetD8Async", place, 0, 512, stream.raw.handle) == INVALIDATED, what
        assert driver.end(stream) == INVALIDATED, what
        other.wait(stream.record())
        other.record().synchronize()
    elapsed = (ctypes.byref(ctypes.c_float()), before, event)
    assert driver("cuEventElapsedTime_v2", *elapsed) == CAPTURED
    assert driver("cuStreamWaitEvent", other.raw.handle, event, 0) == CAPTURED


@pytest.mark.parametrize(
    ("mode", "here", "elsewhere"),
    [(GLOBAL, UNSUPPORTED, UNSUPPORTED), (THREAD_LOCAL, UNSUPPORTED, 0), (RELAXED, 0, 0)],
)
def test_the_mode_says_who_may_allocate(backend: CudaBackend, mode: int, here: int, elsewhere: int) -> None:
    driver, stream = Driver(), backend.stream("d2h")
    place = backend.allocate(512)

    def query() -> int:
        return driver("cuEventQuery", before)

    before = driver.event()
    driver.record(before, stream)
    assert driver("cuEventSynchronize", before) == 0
    for call, status in ((query, here), (lambda: in_another_thread(query), elsewhere)):
        driver.begin(stream, mode)
        stream.fill(place, 512)
        assert call() == status
        assert driver.end(stream) == (INVALIDATED if status else 0)


def test_a_capture_ends_where_it_began_and_with_all_that_joined(backend: CudaBackend) -> None:
    driver, first, second = Driver(), backend.stream("d2h"), backend.stream("h2d")
    place = backend.allocate(512)

    def fork() -> None:
        driver.begin(first)
        second.wait(first.record())
        second.fill(place, 512)

    fork()
    assert driver.end(first) == UNJOINED
    fork()
    first.wait(second.record())
    assert driver.end(first) == 0
    fork()
    assert driver.end(second) == UNMATCHED
    assert driver.end(first) == INVALIDATED
    driver.begin(first)
    assert in_another_thread(lambda: driver.end(first)) == WRONG_THREAD
    assert driver.end(first) == 0
    assert driver.end(first) == 401, "no capture is under way"
    driver.begin(first)
    driver.begin(second)
    event = driver.event()
    driver.record(event, second)
    assert driver("cuStreamWaitEvent", first.raw.handle, event, 0) == MERGE
    assert (driver.end(first), driver.end(second)) == (INVALIDATED, INVALIDATED)


def test_what_a_graph_uses_is_in_use_while_it_is_launched(
    fake_cuda: FakeCuda,  # noqa: F811
    backend: CudaBackend,
) -> None:
    page = 2 * 2**20
    backend.allocate_pages(2, page)
    address = backend.reserve(2 * page)
    backend.map(address, [0, 1])
    stream = backend.stream("compute")
    graph = backend.capture([stream], [("a fill", lambda: stream.fill(address, page))])
    backend.map(address, [1])
    fake_cuda.configure(delay_us=200_000)
    graph.launch()
    stream.record().synchronize()
    backend.map(address, [0])
    graph.launch()
    backend.map(address + page, [0])  # the other page is in nobody's use
    with pytest.raises(DeviceError, match="illegal memory access"):
        backend.map(address, [1])


def test_graphs_that_are_gone_are_refused(fake_cuda: FakeCuda, backend: CudaBackend) -> None:  # noqa: F811
    invalid_value, invalid_handle = 1, 400
    driver, stream = Driver(), backend.stream("compute")
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    driver.begin(stream)
    assert driver("cuStreamEndCapture", stream.raw.handle, ctypes.byref(graph)) == 0

    def instantiate() -> int:
        return driver("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)

    assert instantiate() == 0
    assert fake_cuda.graphs() == 2
    assert driver("cuGraphDestroy", graph) == 0
    assert (driver("cuGraphDestroy", graph), instantiate()) == (invalid_value, invalid_value)
    assert driver("cuGraphLaunch", executable, stream.raw.handle) == 0, "it does without the graph"
    assert driver("cuGraphExecDestroy", executable) == 0
    assert driver("cuGraphExecDestroy", executable) == invalid_handle
    assert driver("cuGraphLaunch", executable, stream.raw.handle) == invalid_handle


def test_nothing_of_a_capture_is_done_before_the_graph_is_launched(backend: CudaBackend) -> None:
    first, second = backend.stream("d2h"), backend.stream("h2d")
    place = backend.allocate(8)
    host = backend.allocate_host(8)

    def aside() -> None:
        second.fill(place, 8)
        second.copy(host, place, 8)

    backend.write(place, np.zeros(8, dtype=np.uint8))
    backend.write(host, np.zeros(8, dtype=np.uint8))
    graph = backend.capture([first, second], [("aside", aside)])
    assert graph.nodes == (2,)
    assert not backend.read(host, 8).any()
    for _ in range(2):
        graph.launch()
        first.record().synchronize()
        assert (backend.read(host, 8) == 0xFF).all()
        backend.write(host, np.zeros(8, dtype=np.uint8))
        backend.write(place, np.zeros(8, dtype=np.uint8))
