"""Checks of torch on a GPU: what the backend asks of it, small steps, and one with less memory than it needs.

Like the units beside them (`torch_steps`), they run in processes of their own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ...instances.errors import PebblerError
from ...instances.importers.torch_cuda import Gpu
from ...instances.importers.torch_step.devices import device_of
from ...instances.importers.torch_step.instance import Lasting, step_instance
from ...instances.importers.torch_step.memory import bytes_of
from ...instances.importers.torch_step.steps import record_made
from ...instances.memory import with_budget
from ...solver.solve import solve
from ...validate.execution.device import DeviceError
from ...validate.execution.torch.gpu import TorchGpuBackend
from ...validate.execution.torch.planned import PlannedStep
from ...validate.execution.torch.trial import attempt_step
from . import torch_models, torch_steps
from .stages import write
from .torch_memory import require_gpu

_BYTES = 1 << 20
"""Bytes of what the checks of a GPU copy."""

_OVERSUBSCRIBED = f"{torch_models.__name__}:gpt2"
"""A step that is taken with less memory than it needs."""

Memory = Literal["contiguous", "paged"]
"""Memory model of a schedule."""


# --- the GPU ------------------------------------------------------------------------------------------


def check_gpu(target: Path) -> str | None:
    """Check one by one all that the backend asks of torch's CUDA; return what is wrong."""
    if torch_steps.DEVICE.startswith("cuda"):
        require_gpu()
    gpu = device_of(torch_steps.DEVICE)
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
    yield "large scratch comes from its place, and from nowhere else", partial(_check_scratch, gpu)
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


def _check_scratch(gpu: Gpu) -> str | None:
    size, part = 64 << 20, 33 << 20
    memory, held = gpu.empty(gpu.alignment + size), gpu.held_bytes()
    begin = memory.data_ptr() + gpu.alignment
    place = gpu.scratch_at(begin, size)

    def taken(*wanted: int) -> list[int]:
        with place:
            kept = [gpu.empty(one) for one in wanted]
        return [one.data_ptr() - begin for one in kept]

    first = taken(part, 1 << 10)
    if not 0 <= min(first) <= max(first) < size:
        return f"scratch lies at {first}, and its place has {size} bytes"
    if taken(part, 1 << 10) != first:
        return "the same work gets other addresses for the second time"
    with suppress(torch.OutOfMemoryError):
        return f"a place of {size} bytes gave out {part} and {size - part}: {taken(part, size - part)}"
    if 0 <= gpu.empty(part).data_ptr() - begin < size:
        return "what is allocated outside lies in the place"
    needed = gpu.segments_of(lambda: (gpu.empty(part), gpu.empty(1 << 10)), 2 * part)
    if not part + 1024 <= needed <= size:
        return f"scratch of {part} bytes needs {needed}"
    grew = gpu.held_bytes() - held
    return None if grew < 8 * part else f"the allocator holds {grew} bytes more than before"


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
    torch_steps.settle()
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
    make = torch_steps.maker(f"{torch_models.__name__}:{model}", torch_steps.DEVICE)
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


def check_oversubscribed(
    target: Path, spec: str = _OVERSUBSCRIBED, batch: int = 8, share: int = 75
) -> str | None:
    """Record, plan and take a step on a GPU with less memory than eager torch needs; return what is wrong.

    Other memory is held meanwhile, so that `share` percent of eager torch's peak are left. Eager torch then
    has managed memory, with the bits that it has otherwise.
    """
    torch_steps.settle()
    make, gpu = torch_steps.maker(spec, torch_steps.DEVICE), device_of(torch_steps.DEVICE)
    assert isinstance(gpu, Gpu)
    usual = record_made(make, batch)
    gc.collect()
    gpu.let_go()
    held = gpu.empty(max(0, gpu.memory_bytes - usual.eager_peak_bytes * share // 100))
    begin = time.perf_counter()
    record = record_made(make, batch)
    seconds = time.perf_counter() - begin
    instance = step_instance(
        record, name="oversubscribed", link="50GB/s", lasting="carried", batch=batch
    ).instance
    instance = torch_steps.within(instance, usual.eager_peak_bytes // 2)
    result = solve(instance, "modnn", time_limit=30.0)
    if result.schedule is None:
        wrong = f"no schedule: {result.stopped_by}"
    else:
        trial = attempt_step(PlannedStep(record, instance, result.schedule), make, batch, repeat=2)
        wrong = "" if trial.identical else f"other bits than eager torch's, by {trial.max_abs_error:.3g}"
        if torch_steps.DEVICE.startswith("cuda") and trial.reference_ns is not None:
            wrong = wrong or "eager torch had memory enough"
    del held
    sums = [sum(operator.duration_ns for operator in one.operators) for one in (usual, record)]
    told = f"recorded in {seconds:.1f} s; its operators take {sums[1] / sums[0]:.2f} of their usual time"
    name = f"{spec.rpartition(':')[2]}, batch {batch}, with {share} % of eager torch's peak"
    checks = [{"check": name, "passed": not wrong, "sentence": wrong or told}]
    write(target, {"torch": str(torch.__version__), "checks": checks})
    return wrong or None
