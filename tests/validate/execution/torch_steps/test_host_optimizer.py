"""Planned training steps whose optimizer computes on the host, against eager torch, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from ....extras import needs_torch

torch = needs_torch()

from pebbler.heuristics.methods import Limits, find_method  # noqa: E402
from pebbler.instances.importers.torch_workload import TorchStepWorkload  # noqa: E402
from pebbler.instances.workload import Side  # noqa: E402
from pebbler.solver.sides import take_sides  # noqa: E402
from pebbler.validate.check import check  # noqa: E402
from pebbler.validate.execution.torch.planned import PlannedStep  # noqa: E402
from pebbler.validate.execution.torch.step import StepExecutor  # noqa: E402
from pebbler.validate.schedule import MemoryModel  # noqa: E402

from .models import gpt, momentum  # noqa: E402
from .training import BATCH, CLIP, Make, are_equal, eager_step, made_by, state_of, train  # noqa: E402


@pytest.mark.parametrize(
    ("make", "side", "memory"), [(gpt, "host", "paged"), (momentum, "choose", "contiguous")]
)
def test_steps_have_eagers_bits(make: Make, side: Side, memory: MemoryModel) -> None:
    """Parameters and states are updated in the host's memory, and are the user's tensors between steps."""
    torch.manual_seed(3)
    workload = TorchStepWorkload(
        "step", BATCH, make_step=make, clip=CLIP, link="12GB/s", steady=True, optimizer_on=side
    )
    instance, method = workload.instance("64MiB"), find_method("modnn")
    schedule = take_sides(instance, method, method.call, Limits(memory=memory)).schedule
    assert schedule is not None
    assert check(instance, schedule).valid
    assert any(operation.stream == "host" for operation in schedule.operations)
    eager, ours = made_by(make), made_by(make)
    wanted = train(eager, eager_step(eager), 3)
    options: dict[str, Any] = {"poison": True, "delays": (0.0003, 1)}
    sizes = [PlannedStep(workload.record(), instance, schedule)]
    with StepExecutor(sizes, ours[0], ours[3], **options) as step:
        assert are_equal(train(ours, step, 3), wanted)
    assert are_equal(state_of(ours)[:-1], wanted[3:-1]), "in memory of their own, too"
