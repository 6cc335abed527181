"""Schedules on CUDA, on the fake driver: results, races, faults, and what is left behind."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from pebbler import Workload, solve
from pebbler.heuristics.program.builder import ProgramBuilder
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.origin import Optimizer
from pebbler.instances.transforms import split_parts, with_engines, with_inputs_on_clock, with_mask
from pebbler.validate.check import check
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.libraries import Library
from pebbler.validate.execution.data import initial
from pebbler.validate.execution.device import Backend, DeviceError
from pebbler.validate.execution.emit import emit
from pebbler.validate.execution.executor import Execution, Executor
from pebbler.validate.execution.plan import plan
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import identical
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import MemoryModel, Schedule

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda, repeatable  # noqa: F401
from ....samples import mostly_slow
from ..test_trial import through_one_place

LENET, QUICK, VGG, RESNET = "lenet", "cifar10_quick", "vgg:groups=1-1-1-1-1,size=32", "resnet56:depth=8"
NARROW = f"{VGG},dense=256"


@cache
def solved(
    network: str, batch: int, budget: str, method: str, memory: str, sub_batch: int
) -> tuple[Instance, Schedule]:
    """An instance and a method's schedule for it, with the cost model's algorithms."""
    workload = Workload(network, batch=batch, device="k40")
    instance = workload.instance(budget, sub_batch, rounds=batch // sub_batch)
    schedule = solve(instance, method=method, memory=memory, time_limit=1).schedule  # type: ignore[arg-type]
    assert schedule is not None
    assert check(instance, schedule).valid
    return instance, schedule


def case(*chosen: object) -> tuple[Instance, Schedule]:
    """The same with algorithms that always give the same bits."""
    instance, schedule = solved(*chosen)  # type: ignore[arg-type]
    return repeatable(instance), schedule


def execute(instance: Instance, schedule: Schedule, backend: Backend, **options: object) -> Execution:
    rebuilt = rebuild(instance)
    settled = plan(instance, schedule, rebuilt)
    with Executor(backend, settled, instance.rounds, **options) as executor:  # type: ignore[arg-type]
        executor.load(initial(rebuilt.graph.network, rebuilt.batch, 0, instance.made_from.optimizer))
        return executor.run()


@cache
def without_budget(chosen: tuple[str, int, str, str, str, int]) -> Execution:
    """The same computation, every block in a place of its own."""
    return execute(*unlimited(*case(*chosen)), CudaBackend())


CASES = [
    (LENET, 8, "1.0xMmin", "modnn", "contiguous", 8),
    (LENET, 16, "1.02xMmin", "vdnn-all-m", "contiguous", 8),
    (LENET, 128, "1.2xMmin", "modnn", "paged", 128),
    (QUICK, 8, "1.0xMmin", "flow", "contiguous", 8),
    (QUICK, 8, "1.2xMmin", "vdnn-all-m", "contiguous", 8),
    (QUICK, 16, "1.2xMmin", "vdnn-dyn", "contiguous", 8),
    (QUICK, 24, "2xMmin", "vdnn-all-m", "paged", 24),
    (VGG, 2, "1.0xMmin", "modnn", "contiguous", 2),
    (RESNET, 4, "1.0xMmin", "flow", "contiguous", 4),
    (RESNET, 8, "1.6xMmin", "vdnn-all-m", "contiguous", 4),
    (RESNET, 32, "1.5xMmin", "modnn", "paged", 32),
    (QUICK, 64, "1.2xMmin", "vdnn-all-m", "paged", 64),
]
TWO_ROUNDS, MOVING, PAGED, BATCH_NORM = CASES[1], CASES[4], CASES[6], CASES[9]
LONG = CASES[2], CASES[7], CASES[8], CASES[10], CASES[11]
"""Cases that are in the slow tests: others are as they in all but the network or the batch."""


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(case, marks=pytest.mark.slow) if case in LONG else case for case in CASES],
    ids=lambda chosen: "-".join(map(str, chosen)),
)
def test_results_are_those_of_a_run_without_budget(
    fake_cuda: FakeCuda,  # noqa: F811
    chosen: tuple[str, int, str, str, str, int],
) -> None:
    instance, schedule = case(*chosen)
    unbudgeted = without_budget(chosen)
    fake_cuda.configure(delay_us=300, seed=1)
    found = execute(instance, schedule, CudaBackend(), poison=True)
    assert identical(found, unbudgeted)
    assert fake_cuda.unpinned_copies() == 0
    assert fake_cuda.bytes_in_use() == 0


@pytest.mark.parametrize("chosen", [TWO_ROUNDS, MOVING, BATCH_NORM], ids=lambda chosen: chosen[0])
def test_results_are_those_of_the_cpu(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    chosen: tuple[str, int, str, str, str, int],
) -> None:
    found, expected = (execute(*solved(*chosen), backend) for backend in (CudaBackend(), CpuBackend()))
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
    for name, values in expected.gradients.items():
        scale = float(np.abs(values).max())
        np.testing.assert_allclose(found.gradients[name], values, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_weights_are_updated_as_on_the_cpu(fake_cuda: FakeCuda, optimizer: Optimizer) -> None:  # noqa: ARG001, F811
    instance = steady(QUICK, optimizer, "1.2xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    found, expected = (execute(instance, schedule, backend) for backend in (CudaBackend(), CpuBackend()))
    assert found.carried.keys() == expected.carried.keys()
    for name, values in expected.carried.items():
        scale = float(np.abs(values).max())
        np.testing.assert_allclose(found.carried[name], values, rtol=1e-3, atol=1e-4 * scale)


VARIANTS: dict[str, Callable[[], tuple[Instance, str, str]]] = {
    "one copy engine": lambda: (with_engines(quick(4), "single"), "vdnn-all-m", "contiguous"),
    "signs": lambda: (with_mask(quick(4)), "vdnn-all-m", "contiguous"),
    "inputs on the clock": lambda: (with_inputs_on_clock(quick(4)), "vdnn-all-m", "contiguous"),
    "parts": lambda: (split_parts(lenet(64), 2 * 2**20), "modnn", "contiguous"),
    "parts in pages": lambda: (split_parts(lenet(128), 2 * 2**20), "modnn", "paged"),
    "weights as blocks": lambda: (quick(4, weights_as_blocks=True), "modnn", "contiguous"),
    "frozen weights": lambda: (steady(QUICK, "none", "1.2xMmin"), "modnn", "contiguous"),
    "gradient descent": lambda: (steady(QUICK, "sgd", "1.2xMmin"), "modnn", "contiguous"),
    "momentum in pages": lambda: (steady(LENET, "momentum", "32MiB"), "modnn", "paged"),
    "Adam": lambda: (steady(QUICK, "adam", "1.2xMmin"), "modnn", "contiguous"),
    "Adam in parts": lambda: (split_parts(steady(NARROW, "adam", "2xMmin"), 2 * 2**20), "modnn", "paged"),
}


def quick(batch: int, *, weights_as_blocks: bool = False) -> Instance:
    """CIFAR10_quick, two rounds."""
    workload = Workload(QUICK, batch=2 * batch, device="k40", weights_as_blocks=weights_as_blocks)
    return workload.instance("1.2xMmin", batch, rounds=2)


def steady(network: str, optimizer: Optimizer, budget: str) -> Instance:
    return Workload(network, 4, "k40", steady=True, optimizer=optimizer).instance(budget)


def lenet(batch: int) -> Instance:
    return Workload(LENET, batch=batch, device="k40").instance("1.2xMmin")


EVERYDAY = ("one copy engine", "signs", "parts in pages", "weights as blocks", "frozen weights", "Adam")
"""Others are two of these together, or between them."""


@pytest.mark.parametrize("variant", mostly_slow(VARIANTS, EVERYDAY))
def test_variants_of_the_problem_run_and_are_written_as_scripts(
    fake_cuda: FakeCuda,  # noqa: F811
    variant: str,
    tmp_path: Path,
) -> None:
    instance, method, memory = VARIANTS[variant]()
    schedule = solve(instance, method=method, memory=memory).schedule  # type: ignore[arg-type]
    assert schedule is not None
    instance = repeatable(instance)
    fake_cuda.configure(delay_us=300, seed=2)
    found = execute(instance, schedule, CudaBackend(), poison=True)
    assert identical(found, execute(*unlimited(instance, schedule), CudaBackend()))
    assert run_script(instance, schedule, tmp_path)[1] == f"gradients {checksum(found)}"


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_blocks_are_moved_inside_the_device(
    fake_cuda: FakeCuda,  # noqa: F811
    memory: MemoryModel,
    tmp_path: Path,
) -> None:
    instance = repeatable(Workload(LENET, 2, "k40").instance("64MiB"))
    builder = ProgramBuilder(instance, memory=memory)
    for k, task in enumerate(instance.tasks):
        builder.run(k, 0)
        builder.release_dead(k)
        for d in filter(builder.is_resident, task.outputs):
            builder.move(d)
    schedule = builder.finish("restless")
    assert sum(operation.kind == "move" for operation in schedule.operations) > 5
    fake_cuda.configure(delay_us=300, seed=3)
    found = execute(instance, schedule, CudaBackend(), poison=True)
    assert identical(found, execute(*unlimited(instance, schedule), CudaBackend()))
    assert run_script(instance, schedule, tmp_path)[1] == f"gradients {checksum(found)}"


@pytest.mark.parametrize("memory", ["contiguous", "paged"])
def test_copies_lie_in_host_memory_of_exactly_its_budget(
    fake_cuda: FakeCuda,  # noqa: F811
    memory: MemoryModel,
    tmp_path: Path,
) -> None:
    whole = repeatable(Workload(LENET, 2, "k40").instance("64MiB"))
    instance = replace(whole, host_budget_bytes=max(block.bytes for block in whole.blocks))
    schedule = through_one_place(instance, memory)
    fake_cuda.configure(delay_us=300, seed=4)
    found = execute(instance, schedule, CudaBackend(), poison=True)
    assert identical(found, execute(*unlimited(instance, schedule), CudaBackend()))
    assert run_script(instance, schedule, tmp_path)[1] == f"gradients {checksum(found)}"


def run_script(instance: Instance, schedule: Schedule, folder: Path) -> list[str]:
    """Lines that the script of a schedule prints."""
    script = folder / "script.py"
    script.write_text(emit(instance, schedule, rebuild(instance)), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def checksum(execution: Execution) -> str:
    found = [*execution.gradients.values(), *execution.carried.values()]
    values = b"".join(values.tobytes() for values in found)
    return hashlib.sha256(values).hexdigest()


@pytest.mark.parametrize(
    "cases",
    [[case for case in CASES if case not in LONG], pytest.param(CASES, marks=pytest.mark.slow)],
    ids=["everyday", "all"],
)
def test_the_cases_move_blocks(cases: list[tuple[str, int, str, str, str, int]]) -> None:
    kinds = {operation.kind for chosen in cases for operation in case(*chosen)[1].operations}
    assert {"run", "offload", "prefetch"} <= kinds
    moving = sum(any(o.kind == "prefetch" for o in case(*chosen)[1].operations) for chosen in cases)
    assert moving >= len(cases) * 10 / 11


def test_events_are_on_one_clock(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(delay_us=200, seed=5)
    instance, schedule = case(*MOVING)
    timed = execute(instance, schedule, CudaBackend()).rounds[0]
    place = {operation.id: i for i, operation in enumerate(schedule.operations)}
    for i, operation in enumerate(schedule.operations):
        assert timed[i].start_ns <= timed[i].end_ns
        for other in operation.after:
            assert timed[place[other]].end_ns <= timed[i].start_ns + 1000  # single-precision milliseconds


def test_missing_waits_do_damage(fake_cuda: FakeCuda) -> None:  # noqa: F811
    instance, schedule = case(*MOVING)
    expected = without_budget(MOVING)
    streams = {operation.id: operation.stream for operation in schedule.operations}
    waits = [
        (operation.id, other)
        for operation in schedule.operations
        for other in operation.after
        if streams[other] != operation.stream
    ]
    damaged = 0
    for seed in range(3):
        fake_cuda.configure(delay_us=2000, seed=seed)
        damaged += not identical(execute(instance, schedule, CudaBackend(), omit=waits), expected)
    assert damaged >= 2


# --- faults -------------------------------------------------------------------------------------------


def test_too_little_memory_is_one_sentence_and_leaves_nothing(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(capacity=2**20)
    with pytest.raises(
        DeviceError, match=r"has not enough memory for .* of device memory; give a smaller budget"
    ):
        execute(*case(*MOVING), CudaBackend())
    assert fake_cuda.bytes_in_use() == 0


def test_too_little_memory_for_pages_is_one_sentence(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(capacity=5 * 2**20)
    with pytest.raises(DeviceError, match="out of memory"):
        execute(*case(*PAGED), CudaBackend())
    assert fake_cuda.bytes_in_use() == 0


@pytest.mark.parametrize("fault", ["launch", "copy"])
def test_a_failing_operation_is_named_and_nothing_hangs(fake_cuda: FakeCuda, fault: str) -> None:  # noqa: F811
    instance, schedule = case(*MOVING)
    backend = CudaBackend()
    fake_cuda.fail(**{fault: 12})
    with pytest.raises(
        DeviceError,
        match=r"the GPU has failed, .*(launch failure|ECC error)|failed: execution failed",
    ):
        execute(instance, schedule, backend)
    assert fake_cuda.bytes_in_use() == 0
    fake_cuda.recover()
    assert identical(execute(instance, schedule, CudaBackend()), without_budget(MOVING))


def test_an_interrupt_gives_everything_back(fake_cuda: FakeCuda) -> None:  # noqa: F811
    fake_cuda.configure(delay_us=20_000, seed=1)
    instance, schedule = case(*MOVING)
    stopper = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        execute(instance, schedule, CudaBackend())
    assert fake_cuda.bytes_in_use() == 0


def test_closing_twice_is_no_error(fake_cuda: FakeCuda) -> None:  # noqa: F811
    backend = CudaBackend()
    backend.allocate(1000)
    backend.close()
    backend.close()
    assert fake_cuda.bytes_in_use() == 0


def test_a_backend_goes_with_its_last_reference(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    # In a cycle its streams might be destroyed by another thread, which PyCUDA refuses with a warning.
    backend = CudaBackend()
    execute(*case(*MOVING), backend)
    gone = weakref.ref(backend)
    gc.disable()
    try:
        del backend
        assert gone() is None
    finally:
        gc.enable()


def test_backends_share_one_context(fake_cuda: FakeCuda) -> None:  # noqa: F811
    CudaBackend().close()
    counted = fake_cuda.retains(), fake_cuda.releases(), fake_cuda.contexts()
    assert counted[2] == 0
    one, other = CudaBackend(), CudaBackend()
    place = one.allocate(8)
    other.close()
    one.write(place, np.arange(2, dtype=np.float32))
    assert one.read(place, 8).view(np.float32).tolist() == [0, 1]
    assert fake_cuda.contexts() == 1
    one.close()
    assert (fake_cuda.retains(), fake_cuda.releases(), fake_cuda.contexts()) == counted


@pytest.mark.parametrize("ending", ["backend.close()", "backend", "1 / 0", "in_a_thread()"])
def test_a_process_gives_its_context_back_once(fake_cuda: FakeCuda, ending: str) -> None:  # noqa: ARG001, F811
    # The handlers of a process run in the opposite order: what was registered first sees what is left.
    code = f"""
import atexit, ctypes, threading
driver = ctypes.CDLL("libcuda.so.1")
@atexit.register
def tell():
    print(driver.fakecuda_retains(), driver.fakecuda_releases(), driver.fakecuda_contexts(), flush=True)
from pebbler.validate.execution.cuda.backend import CudaBackend
def in_a_thread():
    backend.close()
    thread = threading.Thread(target=lambda: CudaBackend().close())
    thread.start()
    thread.join()
CudaBackend().close()
backend = CudaBackend()
backend.allocate(100)
stream = backend.stream("d2h")
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1 1 0\n"
    assert done.returncode == ("/" in ending)
    assert ("ZeroDivisionError" in done.stderr) == ("/" in ending)
    assert "PyCUDA" not in done.stderr


def test_a_page_is_seen_at_every_address_that_means_it(fake_cuda: FakeCuda) -> None:  # noqa: F811
    page = 2 * 2**20
    backend = CudaBackend()
    try:
        backend.allocate_pages(3, page)
        address = backend.reserve(2 * page + 1)
        backend.map(address, [2, 1])
        backend.write(address, np.arange(2 * page // 4, dtype=np.int32))
        backend.map(address + 2 * page, [1])
        assert backend.read(address + 2 * page, 8).view(np.int32).tolist() == [page // 4, page // 4 + 1]
        backend.map(address, [0])
        assert np.isnan(backend.read(address, 8).view(np.float32)).all()
    finally:
        backend.close()
    assert fake_cuda.bytes_in_use() == 0


def test_a_page_that_is_there_is_not_mapped_again(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    call = Library.call

    def noted(library: Library, name: str, *arguments: object) -> object:
        asked.append(name)
        return call(library, name, *arguments)

    page = 2 * 2**20
    backend = CudaBackend()
    try:
        backend.allocate_pages(3, page)
        address = backend.reserve(2 * page)
        backend.map(address, [0, 1])
        monkeypatch.setattr(Library, "call", noted)
        backend.map(address, [0, 1])
        assert asked == []
        backend.map(address, [0, 2])
        assert asked == ["cuMemUnmap", "cuMemMap", "cuMemSetAccess"]
    finally:
        backend.close()


def test_pages_of_another_size_are_refused(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    backend = CudaBackend()
    with pytest.raises(DeviceError, match="maps pages of 2097152 bytes, not of 4096"):
        backend.allocate_pages(1, 4096)
    backend.close()


def test_a_gpu_that_is_not_there_is_refused(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    with pytest.raises(PebblerError, match="there is no GPU 3; CUDA counts 1"):
        CudaBackend(3)


# --- code generation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [TWO_ROUNDS, PAGED, BATCH_NORM], ids=lambda chosen: chosen[0])
def test_the_script_computes_what_the_executor_computes(
    fake_cuda: FakeCuda,  # noqa: ARG001, F811
    chosen: tuple[str, int, str, str, str, int],
    tmp_path: Path,
) -> None:
    instance, schedule = case(*chosen)
    expected = execute(instance, schedule, CudaBackend())
    loss, gradients, elapsed = run_script(instance, schedule, tmp_path)
    assert loss == f"loss {expected.loss:.9g}"
    assert gradients == f"gradients {checksum(expected)}"
    assert float(elapsed.split()[1]) > 0


def test_the_script_imports_nothing_else_and_holds_what_it_uses(fake_cuda: FakeCuda) -> None:  # noqa: ARG001, F811
    instance, schedule = case(*TWO_ROUNDS)
    text = emit(instance, schedule, rebuild(instance))
    imported = {
        line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported <= {*sys.stdlib_module_names, "numpy", "pycuda"}
    assert "KERNEL(maxpool_forward" in text
    assert "KERNEL(lrn_forward" not in text
    assert "cuMemMap" not in text
    assert text.count("mark(") >= len(schedule.operations)
    for operation in schedule.operations:
        for other in operation.after:
            assert f"done[{[o.id for o in schedule.operations].index(other)}]" in text
