"""A trial of a planned training step: its bits compared with eager torch's, its times with the prediction."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from statistics import median_low
from typing import Any

import numpy as np
import torch

from ....instances.importers.torch_refusals import loss_in
from ....instances.importers.torch_step.devices import device_of
from ....instances.importers.torch_step.memory import have_same_bits
from ....instances.importers.torch_step.persistent import find_tensors
from ....instances.importers.torch_step.record import TensorName
from ....instances.importers.torch_step.steps import MakeTrainingStep
from ..executor import Execution, Timed
from ..trial import TOLERANCE, Trial
from .planned import PlannedStep
from .step import StepExecutor

_log = logging.getLogger(__name__)


def attempt_step(
    planned: PlannedStep,
    make_step: MakeTrainingStep,
    batch: int,
    *,
    clip: float | None = None,
    repeat: int = 3,
    reference: bool = True,
    seed: int = 0,
) -> Trial:
    """Take steps by a plan, and the same steps with eager torch, and compare.

    Both begin with what the function makes after the same seed, take a step in advance, the planned one in
    poisoned memory, and then `repeat` steps that are measured, all with the inputs that the function gives.

    Parameters
    ----------
    planned
        The step that the function makes for this batch size.
    make_step, batch, clip
        As the step was recorded.
    repeat
        Number of timed steps.
    reference
        Whether to train with eager torch first, which needs memory for all data; where a GPU has too little,
        CUDA moves it meanwhile, and there is no time of eager torch. Without it, nothing is compared.
    seed
        Of parameters, inputs and whatever the step draws.

    Raises
    ------
    PebblerError
        When the function makes another step than was planned.
    DeviceError
        When an operation fails.
    """
    losses: list[Any] = []
    left: dict[TensorName, Any] = {}
    eager_ns = None
    if reference:
        _log.info("%s: with eager torch", planned.instance.name)
        losses, left, eager_ns = _reference(planned, make_step, batch, clip, repeat, seed)
        gc.collect()
    module, _, inputs, optimizer = _made(make_step, batch, seed)
    found, executions = [], []
    with StepExecutor([planned], module, optimizer, poison=True) as step:
        device, title, settled = step.backend.name, step.backend.device, step.plan
        for number in range(repeat + 1):
            _log.info("%s: step %d of %d", planned.instance.name, number + 1, repeat + 1)
            found.append(step(*inputs))
            step.poison = False
            executions.append(_execution(step.timed, found[-1]))
        same = [have_same_bits(one.cpu(), other) for one, other in zip(found, losses, strict=False)]
        ours = _on_host(module, optimizer)
        same += [have_same_bits(ours[name], tensor) for name, tensor in left.items()]
        errors = [_distance(ours[name], tensor) for name, tensor in left.items()]
        deterministic = device_of(planned.record.device).deterministic
    return Trial(
        instance=planned.instance,
        schedule=planned.schedule,
        plan=settled,
        backend=device,
        device=title,
        executions=tuple(sorted(executions[1:], key=lambda one: one.measured_ns)),
        energy_j=None,
        reference_ns=eager_ns,
        loss=executions[-1].loss,
        identical=all(same),
        deterministic=deterministic,
        max_abs_error=max(errors, default=0.0),
        close=all(_distance(ours[name], tensor) <= _bound(tensor) for name, tensor in left.items()),
        compared_with="eager torch",
    )


def _made(make_step: MakeTrainingStep, batch: int, seed: int) -> tuple[Any, Any, tuple[Any, ...], Any]:
    """Return what the function makes, and None for an optimizer that it leaves out."""
    torch.manual_seed(seed)
    module, step, inputs, *optimizer = make_step(batch)
    torch.manual_seed(seed)
    return module, step, inputs, optimizer[0] if optimizer else None


def _reference(
    planned: PlannedStep,
    make_step: MakeTrainingStep,
    batch: int,
    clip: float | None,
    repeat: int,
    seed: int,
) -> tuple[list[Any], dict[TensorName, Any], int | None]:
    """As `_eagerly`; without a time where eager torch has too little memory for it."""
    try:
        return _eagerly(planned, make_step, batch, clip, repeat, seed)
    except torch.OutOfMemoryError:
        _log.info("%s: too little memory for eager torch; CUDA moves it meanwhile", planned.instance.name)
    with device_of(planned.record.device).oversubscribed():
        losses, left, _ = _eagerly(planned, make_step, batch, clip, repeat, seed)
    return losses, left, None


def _eagerly(
    planned: PlannedStep,
    make_step: MakeTrainingStep,
    batch: int,
    clip: float | None,
    repeat: int,
    seed: int,
) -> tuple[list[Any], dict[TensorName, Any], int]:
    """Return losses of steps with eager torch, all that is left of the last one, and their median time.

    Everything is on the host.
    """
    module, step, inputs, optimizer = _made(make_step, batch, seed)
    device, losses, times = device_of(planned.record.device), [], []
    for _ in range(repeat + 1):
        device.synchronize()
        begin = time.perf_counter_ns()
        losses.append(_step_eagerly(module, step, inputs, optimizer, clip).to("cpu", copy=True))
        device.synchronize()
        times.append(time.perf_counter_ns() - begin)
    return losses, _on_host(module, optimizer), median_low(times[1:])


def _on_host(module: Any, optimizer: Any) -> dict[TensorName, Any]:
    """Return copies of all that a step leaves; what is on the host already moves later."""
    found = find_tensors(module, optimizer)
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in found.items()}


def _step_eagerly(
    module: Any, step: Callable[..., Any], inputs: tuple[Any, ...], optimizer: Any, clip: float | None
) -> Any:
    """Take a step with eager torch, and what it leaves out behind it; return the loss."""
    steps: list[object] = []
    hook = None
    if optimizer is not None:
        hook = optimizer.register_step_post_hook(lambda *_: steps.append(None))
    try:
        loss = loss_in(step(*inputs))
        if not steps and all(parameter.grad is None for parameter in module.parameters()):
            loss.backward()
        if clip is not None and not steps:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        if optimizer is not None and not steps:
            optimizer.step()
    finally:
        if hook is not None:
            hook.remove()
    for parameter in module.parameters():
        parameter.grad = None
    return loss.detach()


def _execution(timed: tuple[Timed, ...], loss: Any) -> Execution:
    return Execution((timed,), np.array([float(loss)], dtype=np.float32), {}, {})


def _bound(tensor: Any) -> float:
    """Return how far off a tensor may be where operators do not give the same bits each time."""
    largest = tensor.double().abs().max() if tensor.numel() else 0.0
    return TOLERANCE * float(largest)


def _distance(found: Any, wanted: Any) -> float:
    """Return the largest difference between two tensors; infinity where one of them is NaN alone."""
    if have_same_bits(found, wanted):
        return 0.0
    difference = (found.detach().double() - wanted.double()).abs().max()
    return float(torch.nan_to_num(difference, nan=float("inf")))
