"""Training steps of torch on a GPU: checks of the GPU, records, plans that are run, and today's other means.

Everything here is done in the process of a unit (`steps`), on the device that it is given.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ...instances.errors import PebblerError
from ...instances.files import read_instance, write_instance
from ...instances.importers.torch_cuda import Gpu
from ...instances.importers.torch_record_file import read_record, write_record
from ...instances.importers.torch_step.devices import device_of
from ...instances.importers.torch_step.instance import Lasting, step_instance
from ...instances.importers.torch_step.memory import ALIGNMENT, bytes_of
from ...instances.importers.torch_step.record import StepRecord
from ...instances.importers.torch_step.steps import record_made
from ...instances.importers.torch_workload import find_step
from ...instances.instance import Instance
from ...instances.memory import with_budget
from ...instances.profile import write_profile
from ...solver.solve import solve
from ...validate.execution.device import DeviceError
from ...validate.execution.torch.gpu import TorchGpuBackend
from ...validate.execution.torch.planned import PlannedStep
from ...validate.execution.torch.profiler import profile_step
from ...validate.execution.torch.step import StepExecutor
from ...validate.execution.torch.trial import attempt_step
from ...validate.schedule import read_schedule
from ..report.trial import as_dict
from . import torch_models
from .stages import read, write
from .torch_memory import require_gpu, set_arithmetic
from .torch_models import Recomputed

DEVICE = "cuda:0"
"""Where units compute."""

ACTIVATION_BUDGETS = (0.5, 0.25, 0.1)
"""Shares of feature maps that torch.compile may keep (``activation_memory_budget``): the first that fits."""

_BYTES = 1 << 20
"""Bytes of what the checks of a GPU copy."""

Memory = Literal["contiguous", "paged"]
"""Memory model of a schedule."""


def settle(*, strict: bool = True) -> None:
    """Let torch compute with the same bits each time, in single precision.

    Parameters
    ----------
    strict
        Whether operators fail that cannot; else torch warns, and bits may differ.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if DEVICE.startswith("cuda"):
        require_gpu()
        set_arithmetic("fp32")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.utils.deterministic.fill_uninitialized_memory = False


def maker(spec: str, device: str) -> Callable[[int], tuple[Any, ...]]:
    """Return the function of a model that puts everything on a device, with values and a fused AdamW."""
    make = find_step(spec)

    def make_step(batch: int) -> tuple[Any, ...]:
        module, step, inputs, *_ = make(batch)
        module.to(device)
        drawn = tuple(_drawn(tensor).to(device) for tensor in inputs)
        return module, step, drawn, torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    return make_step


def _drawn(tensor: Any) -> Any:
    """Return other values: of integers, below 10."""
    if tensor.is_floating_point():
        return torch.randn_like(tensor)
    return torch.randint_like(tensor, 10)


# --- the GPU ------------------------------------------------------------------------------------------


def check_gpu(target: Path) -> str | None:
    """Check one by one all that the backend asks of torch's CUDA; return what is wrong."""
    if DEVICE.startswith("cuda"):
        require_gpu()
    gpu = device_of(DEVICE)
    assert isinstance(gpu, Gpu)
    found = []
    for name, check in _checks(gpu):
        try:
            wrong = check()
        except Exception as error:  # each way to fail is an answer
            wrong = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        found.append({"check": name, "passed": wrong is None, "sentence": wrong or "as it should be"})
    write(target, {"device": gpu.title, "versions": gpu.versions(), "checks": found})
    failed = [f"{one['check']}: {one['sentence']}" for one in found if not one["passed"]]
    return "; ".join(failed) or None


def _checks(gpu: Gpu) -> Iterator[tuple[str, Callable[[], str | None]]]:
    yield "memory is aligned, and a storage at an address is that memory", partial(_check_places, gpu)
    yield "copies through pinned memory bring the same bytes back", partial(_check_copies, gpu)
    yield "a stream waits for an event of another one, and only then", partial(_check_waits, gpu)
    yield "what is prepared once is launched twice, in its order", partial(_check_kept, gpu)
    yield "a pause takes as long as it should", partial(_check_pause, gpu)
    yield "the same random state gives the same numbers, and moves on", partial(_check_random, gpu)
    yield "the allocator's statistics count what an operator takes", partial(_check_statistics, gpu)
    yield "pages are mapped, and one page at two addresses is the same memory", partial(_check_pages, gpu)
    yield "an operator that fails leaves its name and a usable device", partial(_check_failure, gpu)


def _check_places(gpu: Gpu) -> str | None:
    memory = gpu.empty(_BYTES)
    begin = memory.data_ptr()
    if begin % gpu.alignment:
        return f"memory begins at {begin}, no multiple of {gpu.alignment}"
    storage = gpu.storage_at(begin + gpu.alignment, gpu.alignment, memory)
    if (storage.data_ptr(), storage.nbytes()) != (begin + gpu.alignment, gpu.alignment):
        return "a storage at an address is another piece of memory"
    torch.empty(0, dtype=torch.uint8, device=gpu.device).set_(storage, 0, (gpu.alignment,), (1,)).fill_(7)
    same = int(memory[gpu.alignment]) == 7 and int(memory[2 * gpu.alignment - 1]) == 7
    return None if same else "what is written to a storage at an address does not arrive there"


def _check_copies(gpu: Gpu) -> str | None:
    backend = TorchGpuBackend(gpu)
    try:
        host, there, back = (
            backend.allocate_host(_BYTES),
            backend.allocate(_BYTES),
            backend.allocate_host(_BYTES),
        )
        given = torch.randint(256, (_BYTES,), dtype=torch.uint8).numpy()
        backend.write(host, given)
        down, up = backend.stream("h2d"), backend.stream("d2h")
        down.copy(there, host, _BYTES)
        up.wait(down.record())
        up.copy(back, there, _BYTES)
        up.record().synchronize()
        return None if (backend.read(back, _BYTES) == given).all() else "other bytes came back"
    finally:
        backend.close()


def _check_waits(gpu: Gpu) -> str | None:
    backend = TorchGpuBackend(gpu)
    try:
        place = backend.allocate(4)
        first, second = backend.stream("compute"), backend.stream("d2h")
        first.fill(place, 4)
        first.record().synchronize()
        began = first.record()
        first.pause(20_000_000)
        first.launch(lambda *_: bytes_of(gpu.storage_at(place, 4)).fill_(0), {}, 0)
        ended = first.record()
        alone = second.record()
        second.wait(ended)
        late = second.record()
        late.synchronize()
        if int(backend.read(place, 1)[0]):
            return "the work before an event had not been done when the event was reached"
        if not alone.since_ns(began) < ended.since_ns(began) <= late.since_ns(began):
            return "streams do not run beside each other, or a wait holds nothing back"
        return None
    finally:
        backend.close()


def _check_kept(gpu: Gpu) -> str | None:
    backend = TorchGpuBackend(gpu)
    try:
        place = backend.allocate(4)
        there = bytes_of(gpu.storage_at(place, 4))
        first, second = backend.stream("compute"), backend.stream("d2h")
        there.add_(0).mul_(1)  # CUDA loads a kernel when it is first launched, and waits for all work then
        with backend.keeping() as work:
            first.fill(place, 4)
            began = first.record()
            first.pause(20_000_000)
            first.launch(lambda *_: there.add_(2), {}, 0)
            ended = first.record()
            alone = second.record()
            second.wait(ended)
            second.launch(lambda *_: there.mul_(3), {}, 0)
            late = second.record()
            work.end_operation()
        for _ in range(2):
            work.start()
            late.synchronize()
            if (found := int(backend.read(place, 1)[0])) != 3:  # (255 + 2) * 3 in a byte
                return f"work on two streams left {found} for 3"
            if not alone.since_ns(began) < ended.since_ns(began) <= late.since_ns(began):
                return "operators do not go to their streams"
        return None
    finally:
        backend.close()


def _check_pause(gpu: Gpu) -> str | None:
    stream = gpu.stream("compute")
    gpu.sleep(stream, 1)
    begin, end = gpu.event(), gpu.event()
    gpu.record(begin, stream)
    gpu.sleep(stream, 10_000_000)
    gpu.record(end, stream)
    gpu.reach(end)
    took = gpu.elapsed_ns(begin, end)
    return None if 5_000_000 < took < 40_000_000 else f"a pause of 10 ms took {took / 1e6:.3f} ms"


def _check_random(gpu: Gpu) -> str | None:
    state = gpu.rng_state()

    def drawn() -> Any:
        return torch.rand(1000, device=gpu.device)

    first, after = drawn(), gpu.rng_state()
    second = drawn()
    gpu.set_rng_state(state)
    if not torch.equal(first, drawn()):
        return "a state that is set again gives other numbers"
    if not torch.equal(after, gpu.rng_state()):
        return "the same draw leaves another state"
    return "two draws give the same numbers" if torch.equal(first, second) else None


def _check_statistics(gpu: Gpu) -> str | None:
    with gpu.allocations() as found:
        kept = torch.empty(_BYTES, dtype=torch.uint8, device=gpu.device)
        scratch = torch.empty(_BYTES, dtype=torch.uint8, device=gpu.device)
        del scratch
    del kept
    if (found.peak_bytes, found.kept_bytes) != (2 * _BYTES, _BYTES):
        return f"of two times {_BYTES} bytes it counted {found.peak_bytes}, and {found.kept_bytes} kept"
    return None


def _check_pages(gpu: Gpu) -> str | None:
    backend = TorchGpuBackend(gpu)
    page = 2 << 20
    try:
        backend.allocate_pages(2, page)
        one, other = backend.reserve(2 * page), backend.reserve(page)
        backend.map(one, [0, 1])
        backend.map(other, [1])
        given = torch.randint(256, (page,), dtype=torch.uint8).numpy()
        backend.write(one + page, given)
        if not (backend.read(other, page) == given).all():
            return "a page at two addresses is not the same memory"
        backend.map(one, [1, 0])
        return (
            None if (backend.read(one, page) == given).all() else "a page that is mapped anew has other bytes"
        )
    finally:
        backend.close()


def _check_failure(gpu: Gpu) -> str | None:
    backend = TorchGpuBackend(gpu)

    def fail(*_: Any) -> None:
        torch.ones(2, device=gpu.device) + torch.ones(3, device=gpu.device)

    try:
        stream = backend.stream("compute")
        stream.launch(fail, {}, 0)
        try:
            stream.record().synchronize()
        except DeviceError as error:
            gpu.synchronize()
            return None if "size of tensor" in str(error) else f"the failure is told as '{error}'"
        return "an operator that fails is not told of"
    finally:
        backend.close()


# --- small steps --------------------------------------------------------------------------------------

_SMALL: tuple[tuple[str, str, str, Memory, bool], ...] = (
    ("small_gpt", "1.2xMmin", "modnn", "contiguous", False),
    ("small_gpt", "90%", "memonger-rule", "contiguous", True),
    ("small_cnn", "1.2xMmin", "modnn", "contiguous", False),
    ("small_half", "1.2xMmin", "modnn", "contiguous", False),
    ("small_cnn", "64MiB", "modnn", "paged", False),
)
"""Model, budget, method, memory, and whether operators run again."""


def check_steps(target: Path) -> str | None:
    """Take steps of small models by plans of rules, which need no solver; return what is wrong.

    All begin with eager torch, and have to have its bits.
    """
    settle()
    found = []
    for model, budget, method, memory, recompute in _SMALL:
        name = f"{model}, {budget}, {method}, {memory}"
        try:
            wrong = _tried(model, budget, method, memory, recompute)
        except PebblerError as error:
            wrong = str(error)
        found.append({"check": name, "passed": wrong is None, "sentence": wrong or "the bits of eager torch"})
    write(target, {"torch": str(torch.__version__), "checks": found})
    failed = [f"{one['check']}: {one['sentence']}" for one in found if not one["passed"]]
    return "; ".join(failed) or None


def _tried(model: str, budget: str, method: str, memory: Memory, recompute: bool) -> str | None:
    make = maker(f"{torch_models.__name__}:{model}", DEVICE)
    record = record_made(make, 16, clip=1.0)
    lasting: Lasting = "resident" if recompute else "carried"
    roomy = step_instance(
        record, name=model, link="10GB/s", lasting=lasting, recompute=recompute, batch=16
    ).instance
    instance = with_budget(roomy, budget)
    result = solve(instance, method, memory=memory, time_limit=30.0)
    if result.schedule is None:
        return f"no schedule: {result.stopped_by}"
    trial = attempt_step(PlannedStep(record, instance, result.schedule), make, 16, clip=1.0, repeat=2)
    return None if trial.identical else f"other bits than eager torch's, by {trial.max_abs_error:.3g} at most"


# --- steps --------------------------------------------------------------------------------------------


def record_one(
    spec: str, batch: int, instances: dict[tuple[int, bool], Path], files: dict[str, Path], repeat: int
) -> None:
    """Record and measure the step of a model, and write its instance under every budget.

    Parameters
    ----------
    spec
        Of the model: ``module:function``.
    batch
        Its batch.
    instances
        The instance files by the budget, in percent of eager torch's peak, and by whether operators may run
        again.
    files
        Those of the ``record``, the ``profile`` and the ``step``, which comes last.
    repeat
        Steps that are measured.
    """
    made = maker(spec, DEVICE)
    strict = True
    settle()
    began = time.perf_counter()
    try:
        record = record_made(made, batch)
    except PebblerError as error:
        if "deterministic" not in str(error):
            raise
        strict = False
        settle(strict=False)
        began = time.perf_counter()
        record = record_made(made, batch)
    seconds = time.perf_counter() - began
    write_record(record, files["record"])
    profile = profile_step(spec, made, (batch,), repeat=repeat)
    write_profile(profile, files["profile"])
    name = f"{spec.rpartition(':')[2]}-b{batch}"
    for (share, recompute), path in instances.items():
        instance = step_instance(
            record, name=name, profile=profile, lasting="carried", recompute=recompute, batch=batch
        ).instance
        write_instance(within(instance, record.eager_peak_bytes * share // 100), path)
    write(
        files["step"],
        {
            "device": profile.machine.device,
            "torch": str(torch.__version__),
            "operators": len(record.operators),
            "eager_peak_bytes": record.eager_peak_bytes,
            "largest_scratch_bytes": max(operator.scratch_bytes for operator in record.operators),
            "recording_seconds": round(seconds, 3),
            "strict": strict,
        },
    )


def within(instance: Instance, budget_bytes: int) -> Instance:
    """Return an instance under a budget, a multiple of its alignment."""
    unit = max(instance.alignment_bytes, ALIGNMENT)
    return with_budget(instance, budget_bytes // unit * unit)


def run_one(
    spec: str,
    batch: int,
    files: dict[str, Path],
    source: Path,
    schedule: Path,
    target: Path,
    repeat: int,
) -> str | None:
    """Take steps by a plan: compared with eager torch, and then alone, for time and memory."""
    settle(strict=read(files["step"])["strict"])
    record, instance = read_record(files["record"]), read_instance(source)
    planned = PlannedStep(record, instance, read_schedule(schedule, instance))
    trial = attempt_step(planned, maker(spec, DEVICE), batch, repeat=repeat)
    make = maker(spec, DEVICE if _has_shared_memory(record) else "cpu")
    gc.collect()
    times, peak = _measured(planned, make, batch, repeat, restore=True)
    gc.collect()
    unsafe, _ = _measured(planned, make, batch, repeat, restore=False)
    found = as_dict(trial, operations=True) | {
        "right": trial.right,
        "times_ns": times,
        "times_without_restore_ns": unsafe,
        "allocated_bytes": peak,
        "budget_bytes": instance.budget_bytes,
    }
    write(target, found)
    if trial.right:
        return None
    return f"a step by the plan differs from eager torch's by {trial.max_abs_error:.3g} at most"


def _has_shared_memory(record: StepRecord) -> bool:
    """Whether parameters lie in one memory, as the weights of recurrent layers do on a GPU alone."""
    return any(at.offset for name, at in record.tensors.items() if name.role == "parameter")


def _measured(
    planned: PlannedStep, make: Callable[[int], tuple[Any, ...]], batch: int, repeat: int, *, restore: bool
) -> tuple[list[int], int]:
    """Return the times of whole steps, and the allocator's peak, with what of the model is there before."""
    device = device_of(planned.record.device)
    with device.allocations() as model:
        module, _, inputs, optimizer = make(batch)
    times = []
    with ExitStack() as closing, device.allocations() as memory:  # without what the model gets at the end
        step = closing.enter_context(StepExecutor([planned], module, optimizer, restore=restore))
        for index in range(repeat + 1):
            begin = time.perf_counter_ns()
            step(*inputs)
            if index:
                times.append(time.perf_counter_ns() - begin)
    return times, model.kept_bytes + memory.peak_bytes


def train_one(
    spec: str,
    batch: int,
    way: str,
    files: dict[str, Path],
    source: Path,
    target: Path,
    repeat: int,
) -> None:
    """Take steps in one of torch's ways, with its allocator limited to the budget of an instance."""
    settle(strict=read(files["step"])["strict"])
    budget_bytes = read_instance(source).budget_bytes
    found: dict[str, Any] = {"way": way, "budget_bytes": budget_bytes, "torch": str(torch.__version__)}
    for share in ACTIVATION_BUDGETS if way == "activation_budget" else (None,):
        tried = _trained(maker(spec, DEVICE), batch, way, share, budget_bytes, repeat)
        found |= tried | {"activation_budget": share}
        if tried["status"] == "done":
            break
    write(target, found)


def _trained(
    make: Callable[[int], tuple[Any, ...]],
    batch: int,
    way: str,
    share: float | None,
    budget_bytes: int,
    repeat: int,
) -> dict[str, Any]:
    """Return ``status``, ``times_ns`` and ``allocated_bytes`` of steps in a way."""
    gpu = device_of(DEVICE)
    torch.manual_seed(0)
    module, step, inputs, optimizer = make(batch)
    if way == "checkpoint":
        checkpoint_blocks(module)
    if share is not None:
        import torch._functorch.config as settings

        torch._dynamo.reset()
        settings.activation_memory_budget = share
        module.compile()
    on_gpu = DEVICE.startswith("cuda")
    saved: Callable[[], Any] = nullcontext
    if way == "save_on_cpu":
        saved = partial(torch.autograd.graph.save_on_cpu, pin_memory=on_gpu)
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget_bytes / torch.cuda.mem_get_info()[1]))
        torch.cuda.reset_peak_memory_stats()
    times: list[int] = []
    status = "done"
    try:
        for index in range(repeat + 1):
            begin = time.perf_counter_ns()
            with saved():
                loss = step(*inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            gpu.synchronize()
            if index:
                times.append(time.perf_counter_ns() - begin)
    except torch.OutOfMemoryError:
        status, times = "out of memory", []
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"status": status, "times_ns": times, "allocated_bytes": peak}


def checkpoint_blocks(module: torch.nn.Module) -> None:
    """Let the parts of a model's sequences and lists each be computed again in the backward pass.

    Of one within another, the outer one counts; a model without any is one itself.
    """
    lists = (torch.nn.Sequential, torch.nn.ModuleList)

    def outermost(part: torch.nn.Module) -> Iterator[torch.nn.Module]:
        for child in part.children():
            if isinstance(child, lists):
                yield child
            else:
                yield from outermost(child)

    found = [module] if isinstance(module, lists) else list(outermost(module)) or [module]
    for sequence in found:
        for name, part in list(sequence.named_children()):
            if any(True for _ in part.parameters()):
                setattr(sequence, name, Recomputed(part))
