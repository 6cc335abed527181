"""Steps on a GPU, with a stand-in for it; and whether torch has what the real one asks of CUDA."""

from __future__ import annotations

import ast
import ctypes
import gc
import inspect
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import which
from typing import Any, ClassVar

import pytest

from ....extras import needs_torch

torch = needs_torch()

from torch.nn import functional as F  # noqa: E402, N812

from pebbler.benchmark.gpu.torch_models import Gpt  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.instances.importers import torch_cuda  # noqa: E402
from pebbler.instances.importers.torch_cuda import Gpu, Place  # noqa: E402
from pebbler.instances.importers.torch_refusals import StepError  # noqa: E402
from pebbler.instances.importers.torch_step import devices  # noqa: E402
from pebbler.instances.importers.torch_step.calls import new_results  # noqa: E402
from pebbler.instances.importers.torch_step.devices import Processor, common_device, device_of  # noqa: E402
from pebbler.instances.importers.torch_step.instance import step_instance  # noqa: E402
from pebbler.instances.importers.torch_step.record import StepOperator, StepRecord  # noqa: E402
from pebbler.instances.importers.torch_step.steps import record_step  # noqa: E402
from pebbler.instances.importers.torch_step.storages import Storages  # noqa: E402
from pebbler.instances.profile import Profile  # noqa: E402
from pebbler.validate.execution.device import DeviceError  # noqa: E402
from pebbler.validate.execution.torch import gpu as backends  # noqa: E402
from pebbler.validate.execution.torch.gpu import TorchGpuBackend  # noqa: E402
from pebbler.validate.execution.torch.planned import PlannedStep  # noqa: E402
from pebbler.validate.execution.torch.profiler import profile_step  # noqa: E402
from pebbler.validate.execution.torch.step import StepExecutor  # noqa: E402
from pebbler.validate.execution.torch.trial import attempt_step  # noqa: E402
from pebbler.validate.execution.unlimited import in_order, unlimited  # noqa: E402

from .fake_gpu import FakeGpu, FakeVirtualMemory  # noqa: E402
from .fault_study import after_a_step, is_damaged, is_refused, omissions, program, shows  # noqa: E402
from .models import Cnn, Made, adamw, noisy  # noqa: E402
from .training import (  # noqa: E402
    BATCH,
    CLIP,
    Make,
    are_equal,
    assert_trains_as_eager,
    eager_step,
    executor_of,
    made_by,
    planned,
    state_of,
    train,
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A module on the CPU counts as one on a GPU."""
    found = FakeGpu()
    monkeypatch.setitem(devices.DEVICES, "cpu", lambda _: found)
    monkeypatch.setattr(backends, "VirtualMemory", FakeVirtualMemory)
    yield found
    gc.collect()
    found.close()


def small_cnn(batch: int) -> Made:
    """Batch norm, whose running statistics are written unseen, and ReLU in place."""
    module = Cnn(4, 3)

    def step(images: Any, classes: Any) -> Any:
        return F.cross_entropy(module(images), classes)

    return module, step, (torch.randn(batch, 3, 8, 8), torch.randint(10, (batch,))), adamw(module)


def small_gpt(batch: int) -> Made:
    """A block of attention and dropout between tied weights."""
    module = Gpt(16, 8, 16, 1, 2, dropout=0.1)

    def step(given: Any, following: Any) -> Any:
        return F.cross_entropy(module(given).flatten(0, 1), following.flatten())

    return module, step, (torch.randint(16, (batch, 8)), torch.randint(16, (batch, 8))), adamw(module)


RECOMPUTED = {"method": "memonger-rule", "recompute": True, "weights_as_blocks": False}


@pytest.mark.parametrize(
    ("make", "budget", "options"),
    [
        (small_cnn, "1.1xMmin", {}),
        (small_cnn, "95%", RECOMPUTED),
        (small_gpt, "1.1xMmin", {}),
        (small_gpt, "90%", RECOMPUTED),
    ],
)
def test_steps_on_a_gpu_have_eagers_bits(
    gpu: FakeGpu, make: Make, budget: str, options: dict[str, Any]
) -> None:
    plan = planned(make, budget, **{"method": "modnn"} | options)
    assert plan.instance.alignment_bytes == gpu.alignment
    kinds = [operation.kind for operation in plan.schedule.operations]
    copies, again = kinds.count("prefetch"), kinds.count("run") - len(plan.instance.tasks)
    assert again if options else copies
    assert_trains_as_eager(make, plan, steps=3)
    assert {"stream", "run", "record", "copy_all", "host_buffer", "timed", "peak_of"} <= gpu.calls


def test_steps_in_pages_of_a_gpu_have_eagers_bits(gpu: FakeGpu) -> None:
    plan = planned(small_cnn, "40MiB", method="modnn", memory="paged")
    assert any(operation.kind == "prefetch" for operation in plan.schedule.operations)
    assert_trains_as_eager(small_cnn, plan, steps=2)
    assert "current" in gpu.calls


@pytest.mark.usefixtures("gpu")
def test_the_host_maps_pages_in_every_step_and_is_measured() -> None:
    plan = planned(small_cnn, "40MiB", method="modnn", memory="paged")
    made = made_by(small_cnn)
    step = executor_of(plan, made)
    mapping = {i for i, one in enumerate(step.plan.steps) if one.maps}
    assert mapping
    for _ in range(2):
        step(*made[2])
        assert {i for i, one in enumerate(step.timed) if one.mapping_ns} == mapping
        assert all(one.host_ns > 0 for one in step.timed)
    kept = weakref.ref(step)
    del step
    assert kept() is None, "its work does not keep it alive"


@pytest.mark.usefixtures("gpu")
def test_a_wait_that_is_left_out_shows_in_the_bits() -> None:
    budget, options = "1.2xMmin", {"method": "modnn"}
    plan = program(noisy, budget, options)
    wanted = after_a_step(noisy, plan)
    assert are_equal(after_a_step(noisy, plan, delays=(0.001, 1)), wanted)
    everything = Random(0).sample(list(omissions(plan.schedule)), 3)
    damaging = [one for one in everything if is_damaged(plan, one)]
    assert damaging
    for omission in damaging:
        assert is_refused(plan, omission)
        assert shows(noisy, plan, omission, wanted)


def test_the_peak_of_eager_torch_is_that_of_the_allocator(gpu: FakeGpu) -> None:
    module, step, inputs, optimizer = made_by(noisy)
    record = record_step(module, step, inputs, optimizer)
    lasting = {at.storage for at in record.lasting.values()}
    least = sum(record.storages[s].bytes for s in lasting if not record.storages[s].on_host)
    assert record.eager_peak_bytes % gpu.alignment == 0
    assert record.eager_peak_bytes > least
    assert all(operator.scratch_bytes % gpu.alignment == 0 for operator in record.operators)


def test_numbers_that_the_gpu_takes_from_the_host_stay_there(gpu: FakeGpu) -> None:
    """As the seeds that attention on a GPU returns: here, each single number counts as one of the host's."""
    eager, ours = made_by(noisy), made_by(noisy)
    wanted = train(eager, eager_step(eager), 3)
    record = record_step(*ours, clip=CLIP)
    sizes = {at.storage: at.size for operator in record.operators for at in new_results(operator)}
    small = {
        s
        for s, storage in enumerate(record.storages)
        if storage.role == "data" and sizes.get(s) == () and s != record.loss.storage
    }
    assert small
    moved = replace(
        record,
        storages=tuple(
            replace(storage, on_host=storage.on_host or s in small)
            for s, storage in enumerate(record.storages)
        ),
    )
    instance = step_instance(moved, name="numbers", link="1GB/s", lasting="resident").instance
    names = {record.storages[s].name for s in small}
    assert not names & {block.name for block in instance.blocks}
    step = PlannedStep(moved, *unlimited(instance, in_order(instance)))
    with StepExecutor([step], ours[0], ours[3], poison=True) as executor:
        assert are_equal(train(ours, executor, 3), wanted)
    assert gpu.calls


@pytest.mark.usefixtures("gpu")
def test_copies_of_a_gpu_are_measured_where_no_link_is_given() -> None:
    plan = planned(small_cnn, "1.5xMmin", method="modnn")
    block = max(plan.instance.blocks, key=lambda one: one.bytes)
    assert (block.offload_ns, block.prefetch_ns) == (block.bytes // 20, block.bytes // 25)
    slower = planned(small_cnn, "1.5xMmin", method="modnn", link="1GB/s")
    assert max(one.offload_ns or 0 for one in slower.instance.blocks) == block.bytes


# --- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("launches", [None, 0, 3])
def test_an_operator_that_fails_is_named_and_leaves_everything_as_before(
    gpu: FakeGpu, launches: int | None
) -> None:
    """On the GPU, later, or while it is launched."""
    plan = planned(small_cnn, "1.5xMmin", method="modnn")
    made = made_by(small_cnn)
    step = plan.bind(made[0], made[3])
    step(*made[2])
    before = state_of(made)
    inputs = made[2]
    if launches is None:
        inputs = (made[2][0], torch.full_like(made[2][1], 99))
        told = r"nll_loss_forward.*out of bounds.*as before the step"
    else:
        gpu.launches = launches
        failing = plan.schedule.operations[launches].id
        told = (
            rf"^[^\n]*\(operation {failing}\): .*no such thing; module and optimizer are as before the step$"
        )
    with pytest.raises(DeviceError, match=told):
        step(*inputs)
    assert are_equal(state_of(made), before)
    with pytest.raises(PebblerError, match="closed"):
        step(*made[2])


@pytest.mark.usefixtures("gpu")
def test_a_budget_on_a_gpu_has_room_for_the_scratch_that_the_allocator_gives_out() -> None:
    plan = planned(noisy, "1.2xMmin", method="modnn")
    scratch = max(one.scratch_bytes for one in plan.record.operators if one.kind == "task")
    made = made_by(noisy)
    assert scratch > 0
    with plan.bind(made[0], made[3]) as step:
        areas = step.plan.areas
    assert areas["pool"] + areas["resident"] + scratch <= plan.instance.budget_bytes
    assert not any(algorithm.workspace_bytes for task in plan.instance.tasks for algorithm in task.algorithms)


class Pool:
    """A pool of torch's allocator, which must not end while anything goes to one."""

    routed: ClassVar[set[int]] = set()
    ended = 0

    def __init__(self, calls: tuple[int, ...]) -> None:
        self.id = (0, id(self))
        takes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self.allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, *takes)(calls[0])
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *takes)(calls[1])

    def __del__(self) -> None:
        self.free(4096, 64, 0, None)
        Pool.ended += 1 if not Pool.routed else 100


def test_a_place_gives_out_what_it_has_and_ends_when_torch_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def use(pool: Pool, index: int) -> Iterator[None]:
        assert index == 0
        Pool.routed.add(id(pool))
        yield
        Pool.routed.discard(id(pool))

    made: list[weakref.ref[Pool]] = []

    def new(calls: tuple[int, ...]) -> Pool:
        pool = Pool(calls)
        made.append(weakref.ref(pool))
        return pool

    monkeypatch.setattr(torch._C, "_cuda_customAllocator", lambda *calls: calls, raising=False)
    monkeypatch.setattr(torch.cuda, "MemPool", new)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    place, other = Place(0, 4096, 200), Place(0, 8192, 200)
    pool = made[0]()
    assert pool is not None
    assert [pool.allocate(size, 0, None) for size in (64, 128, 64, 8)] == [4096, 4160, None, 4288]
    assert place.segments == [64, 128, 8]
    with place:
        del other
        assert Pool.ended == 0
    assert Pool.ended == 1
    del pool, place
    assert Pool.ended == 2


@pytest.mark.parametrize(("make", "options"), [(small_cnn, {}), (small_gpt, RECOMPUTED)])
def test_large_scratch_has_a_place_in_the_pool(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, make: Make, options: dict[str, Any]
) -> None:
    """Wherever an operator is, its place is NaN when it begins and when it ends."""
    monkeypatch.setattr(gpu, "large_bytes", 1024)
    budget = "90%" if options else "1.1xMmin"
    plan = planned(make, budget, **{"method": "modnn"} | options)
    tasks = [operator for operator in plan.record.operators if operator.kind == "task"]
    large = {operator.name for operator in tasks if operator.scratch_bytes > gpu.large_bytes}
    given = {task.name: task.algorithms[0].workspace_bytes for task in plan.instance.tasks}
    assert {name for name, size in given.items() if size} == large
    assert large < given.keys()
    assert all(
        given[one.name] == one.segments_bytes >= one.scratch_bytes for one in tasks if one.name in large
    )
    assert_trains_as_eager(make, plan, steps=3)
    made = made_by(make)
    gpu.places.clear()
    with executor_of(plan, made) as step:
        step(*made[2])
        runs = [one.task for one in plan.schedule.operations if one.kind == "run"]
        sizes = [given[plan.instance.tasks[task].name] for task in runs]
    assert [size for _, size in gpu.places] == [size for size in sizes if size]


def calls_of(record: StepRecord) -> list[StepOperator]:
    return [call for operator in record.operators for call in operator.calls]


def facts(operator: StepOperator) -> tuple[Any, ...]:
    return operator.overload, operator.manner, operator.hidden, operator.idle, operator.draw


def test_large_scratch_is_measured_without_a_trace(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running statistics, parameters and random states are those of a step that is recorded once."""
    for make in (small_cnn, small_gpt):
        found = []
        for large in (0, sys.maxsize):
            monkeypatch.setattr(gpu, "large_bytes", large)
            module, step, inputs, optimizer = made_by(make)
            record = record_step(module, step, inputs, optimizer, clip=CLIP)
            found.append(record)
        with_places, without = found
        assert any(one.segments_bytes for one in with_places.operators)
        assert not any(one.segments_bytes for one in without.operators)
        assert [*map(facts, calls_of(with_places))] == [*map(facts, calls_of(without))]
        assert with_places.draws == without.draws


def test_a_step_that_needs_more_than_the_gpu_has_is_recorded_and_compared(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "large_bytes", 1024)

    def wide(batch: int) -> Made:
        module, step, inputs, optimizer = small_cnn(batch)

        def short(*given: Any) -> Any:
            if not gpu.is_oversubscribed:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate much")
            return step(*given)

        return module, short, inputs, optimizer

    made = made_by(wide)
    before = state_of(made)
    plan = planned(wide, "1.1xMmin", method="modnn")
    assert not gpu.is_oversubscribed
    assert are_equal(state_of(made), before)
    usual = planned(small_cnn, "1.1xMmin", method="modnn")
    names = [operator.name for operator in usual.record.operators]
    assert [operator.name for operator in plan.record.operators] == names
    assert plan.record.eager_peak_bytes == usual.record.eager_peak_bytes
    step = PlannedStep(plan.record, plan.instance, plan.schedule)
    trial = attempt_step(step, wide, BATCH, clip=CLIP, repeat=1)
    assert trial.identical
    assert trial.reference_ns is None
    assert attempt_step(step, small_cnn, BATCH, clip=CLIP, repeat=1).reference_ns is not None


def test_other_failures_are_not_tried_again(gpu: FakeGpu) -> None:
    module, _, inputs, optimizer = made_by(small_cnn)
    calls = []

    def step(*_: Any) -> Any:
        calls.append(gpu.is_oversubscribed)
        raise ValueError("no")

    with pytest.raises(PebblerError, match=r"the step failed.*no"):
        record_step(module, step, inputs, optimizer)
    assert calls == [False]


def test_a_gpu_with_too_little_memory_is_told(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(noisy, "1GiB", method="network-wide")
    made = made_by(noisy)
    before = state_of(made)
    monkeypatch.setattr(gpu, "memory_bytes", plan.instance.budget_bytes // 2)
    with pytest.raises(DeviceError, match="bytes of memory on cpu cannot be had: CUDA out of memory"):
        plan.bind(made[0], made[3])
    assert are_equal(state_of(made), before)


def test_a_closed_step_keeps_no_memory(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(small_cnn, "1.5xMmin", method="modnn")
    pieces: list[tuple[int, weakref.ref[Any]]] = []
    empty = gpu.empty

    def noted(size: int) -> Any:
        piece = empty(size)
        pieces.append((size, weakref.ref(piece)))
        return piece

    monkeypatch.setattr(gpu, "empty", noted)
    made = made_by(small_cnn)
    step = plan.bind(made[0], made[3])
    (pool,) = [piece for size, piece in pieces if size == gpu.alignment + step.plan.areas["pool"]]
    for _ in range(2):
        step(*made[2])
    timed = step.timed
    assert pool() is not None
    step.close()
    gc.collect()
    assert pool() is None
    assert step.timed == timed


@pytest.mark.usefixtures("gpu")
def test_what_a_gpu_has_not_is_refused() -> None:
    backend = TorchGpuBackend(FakeGpu())
    with pytest.raises(PebblerError, match="operators on the host"):
        backend.stream("host")
    with pytest.raises(PebblerError, match="not captured as graphs"):
        backend.capture([], [])
    backend.close()


# --- where a step is ----------------------------------------------------------------------------------


def test_a_step_is_on_one_device() -> None:
    module = torch.nn.Linear(2, 2)
    assert isinstance(common_device(module, ()), Processor)
    with pytest.raises(
        PebblerError, match="input 0 is on meta, and a step is recorded on the CPU or on a GPU"
    ):
        common_device(module, (torch.ones(1, device="meta"),))
    with pytest.raises(PebblerError, match="is recorded on the CPU or on a GPU of CUDA, and not on 'xpu:0'"):
        device_of("xpu:0")


def test_a_module_on_two_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.DEVICES, "meta", Processor)
    told = "parameter 'bias' is on meta, and parameter 'weight' on cpu; make_step returns everything on one"
    module = torch.nn.Linear(2, 2)
    module.bias = torch.nn.Parameter(module.bias.to("meta"))
    with pytest.raises(PebblerError, match=told):
        common_device(module, ())


def test_of_what_is_elsewhere_only_single_numbers_are_the_hosts() -> None:
    device = FakeGpu("meta")
    storages = Storages({}, device)
    with pytest.raises(StepError, match="a tensor on cpu, and the step is recorded on meta; make it there"):
        storages.find(torch.ones(2), "constant")
    number = storages.find(torch.tensor(7.0), "constant")
    assert storages.entries[number].on_host
    assert storages.entries[number].values.view(torch.float32).item() == 7


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_step_of_one_is_refused() -> None:
    with pytest.raises(PebblerError, match="the step is one of cuda:0, and torch finds 0 GPUs of CUDA here"):
        Gpu("cuda:0")


def test_without_a_driver_there_is_no_managed_memory(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    with (
        pytest.raises(PebblerError, match=r"none that CUDA manages: libcuda\.so\.1: cannot open"),
        Gpu.oversubscribed(gpu),
    ):
        pass


# --- measuring ----------------------------------------------------------------------------------------


def test_a_step_on_a_gpu_is_measured_and_tried(gpu: FakeGpu) -> None:
    profile = profile_step("noisy", noisy, (BATCH,), clip=CLIP, repeat=1)
    assert profile.machine.device == gpu.title
    assert profile.machine.libraries["CUDA"] == "none"
    assert profile.mapping is not None
    plan = planned(noisy, "1.2xMmin", method="modnn", profile=profile)
    assert plan.instance.made_from.device == gpu.title
    step = PlannedStep(plan.record, plan.instance, plan.schedule)
    trial = attempt_step(step, noisy, BATCH, clip=CLIP, repeat=1)
    assert trial.identical
    assert trial.device == gpu.title
    assert len(trial.operations) == len(plan.schedule.operations)


def test_a_step_that_does_not_fit_without_a_budget_has_the_times_of_its_recording(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "memory_bytes", 1 << 16)
    kept: list[Profile] = []
    profile = profile_step("small", small_cnn, (BATCH,), clip=CLIP, repeat=3, keep=kept.append)
    assert profile.meta["recorded"] == [BATCH]
    assert profile.meta["complete"]
    assert len(kept) == 2
    plan = planned(small_cnn, "1.2xMmin", method="modnn", profile=profile)
    recorded = [one.scratch_bytes for one in plan.record.operators if one.kind == "task"]
    assert len(recorded) == len(profile.tasks)
    assert all(one.algorithms[0].duration_ns > 0 for one in profile.tasks)


# --- the surface --------------------------------------------------------------------------------------


def test_the_stand_in_has_the_methods_of_a_gpu() -> None:
    for name, method in vars(Gpu).items():
        if not name.startswith("_") and name not in ("alignment", "scratch_in_pool", "large_bytes"):
            assert name in vars(FakeGpu), name
            if inspect.isfunction(method):
                assert inspect.signature(method) == inspect.signature(getattr(FakeGpu, name)), name


def test_nothing_else_calls_cuda() -> None:
    library = Path(torch_cuda.__file__).parents[2]
    rooms = [library / "instances" / "importers" / "torch_step", library / "validate" / "execution" / "torch"]
    files = [file for room in rooms for file in room.glob("*.py")]
    assert len(files) > 20
    assert not [file for file in files if "torch.cuda." in file.read_text().replace("``torch.cuda``", "")]


def test_torch_has_all_functions_of_cuda_that_are_called() -> None:
    calls = [
        node for node in ast.walk(ast.parse(inspect.getsource(torch_cuda))) if isinstance(node, ast.Call)
    ]
    checked = set()
    for call in calls:
        name = ast.unparse(call.func)
        if name.startswith(("torch.cuda.", "torch.backends.", "cudnn.", "cuda.")):
            found = eval(name, {"torch": torch, "cudnn": torch.backends.cudnn, "cuda": torch.backends.cuda})
            called = found.__new__ if inspect.isclass(found) else found
            first = [object()] if inspect.isclass(found) else []
            given = {word.arg: object() for word in call.keywords if word.arg}
            inspect.signature(called).bind(*first, *call.args, **given)
            checked.add(name)
    assert len(checked) > 15
    event, stream = torch.cuda.Event, torch.cuda.Stream
    inspect.signature(event.record).bind(None, stream)
    inspect.signature(event.elapsed_time).bind(None, event)
    inspect.signature(stream.wait_event).bind(None, event)


@pytest.mark.slow
def test_steps_on_a_device_of_another_type_have_eagers_bits(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Its tensors are none of the CPU's; torch compiles it, which takes minutes."""
    if which("c++") is None or which("ninja") is None:
        pytest.skip("there is no compiler, or no ninja, to compile a device for torch")
    module = f"{__package__}.elsewhere"
    done = subprocess.run(
        [sys.executable, "-m", module, tmp_path],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
