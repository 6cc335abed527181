"""Training steps of torch on a GPU: records, plans that are run, and today's other means.

Everything here is done in the process of a unit (`steps`), on the device that it is given.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...instances.errors import PebblerError
from ...instances.files import read_instance, write_instance
from ...instances.importers.torch_cuda import Gpu
from ...instances.importers.torch_record_file import read_record, write_record
from ...instances.importers.torch_step.devices import device_of
from ...instances.importers.torch_step.instance import step_instance
from ...instances.importers.torch_step.memory import ALIGNMENT
from ...instances.importers.torch_step.record import StepRecord
from ...instances.importers.torch_step.steps import record_made
from ...instances.importers.torch_workload import find_step
from ...instances.instance import Instance
from ...instances.memory import with_budget
from ...instances.profile import write_profile
from ...validate.execution.torch.planned import PlannedStep
from ...validate.execution.torch.profiler import profile_step
from ...validate.execution.torch.step import StepExecutor
from ...validate.execution.torch.trial import attempt_step
from ...validate.schedule import read_schedule
from ..report.trial import as_dict
from .stages import read, write
from .torch_memory import require_gpu, set_arithmetic
from .torch_models import Recomputed

DEVICE = "cuda:0"
"""Where units compute."""

ACTIVATION_BUDGETS = (0.5, 0.25, 0.1)
"""Shares of feature maps that torch.compile may keep (``activation_memory_budget``): the first that fits."""


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
    times, held = _measured(planned, make, batch, repeat, restore=True)
    gc.collect()
    unsafe, _ = _measured(planned, make, batch, repeat, restore=False)
    found = as_dict(trial, operations=True) | {
        "right": trial.right,
        "times_ns": times,
        "times_without_restore_ns": unsafe,
        "held_bytes": held,
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
    """Return the times of whole steps, and the most bytes of the GPU that torch's allocator held."""
    device = device_of(planned.record.device)
    assert isinstance(device, Gpu)
    device.let_go()
    module, _, inputs, optimizer = make(batch)
    times = []
    with StepExecutor([planned], module, optimizer, restore=restore) as step:
        for index in range(repeat + 1):
            begin = time.perf_counter_ns()
            step(*inputs)
            if index:
                times.append(time.perf_counter_ns() - begin)
        return times, device.held_bytes()  # without what the model gets at the end


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
