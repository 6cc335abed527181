"""Whatever fails, module and optimizer are usable: as before the step or after it, to the last bit."""

from __future__ import annotations

import ctypes
import gc
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ....extras import needs_torch
from ....samples import counts

torch = needs_torch()

from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.torch import TrainingPlan  # noqa: E402
from pebbler.validate.execution.device import DeviceError  # noqa: E402
from pebbler.validate.execution.torch import step as executing  # noqa: E402
from pebbler.validate.execution.torch.kernels import OperatorLaunch  # noqa: E402

from .models import Made, adamw, noisy  # noqa: E402
from .training import are_equal, batches_of, eager_step, made_by, planned, state_of  # noqa: E402


@pytest.fixture(scope="module")
def plan() -> TrainingPlan:
    return planned(noisy, "1.2xMmin", method="modnn")


def phases(plan: TrainingPlan) -> dict[str, str]:
    """An operator in the middle of each phase."""
    found = {}
    for phase in ("forward", "backward", "clip", "optimizer"):
        names = [one.name for one in plan.record.operators if one.phase == phase and one.kind == "task"]
        found[phase] = names[len(names) // 2]
    return found


def assert_usable_after(plan: TrainingPlan, fail: Any, told: str) -> None:
    """Take a step, another one that fails, and then two more: by eager torch, and by the plan again."""
    eager, ours = made_by(noisy), made_by(noisy)
    batches = batches_of(eager, 3)
    torch.manual_seed(7)
    wanted = [eager_step(eager)(*batch) for batch in batches]
    torch.manual_seed(7)
    step = plan.bind(ours[0], ours[3])
    found = [step(*batches[0])]
    before = state_of(ours)
    with fail(), pytest.raises(DeviceError, match=told) as caught:
        step(*batches[1])
    assert len(str(caught.value).splitlines()) == 1
    assert are_equal(state_of(ours), before)
    with pytest.raises(PebblerError, match="the step is closed"):
        step(*batches[1])
    found.append(eager_step(ours)(*batches[1]))
    with plan.bind(ours[0], ours[3]) as again:
        found.append(again(*batches[2]))
    assert are_equal(found + state_of(ours), wanted + state_of(eager))


@pytest.mark.parametrize("phase", ["forward", "backward", "clip", "optimizer"])
def test_an_operator_that_fails_leaves_everything_as_before_the_step(
    plan: TrainingPlan, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, run = phases(plan)[phase], OperatorLaunch.compute

    def failing(launch: OperatorLaunch, addresses: Any) -> None:
        run(launch, addresses)  # so what it rewrites is rewritten
        if launch.kernel.operator.name == name:
            raise RuntimeError("it failed")

    @contextmanager
    def fail() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(OperatorLaunch, "compute", failing)
            yield

    assert_usable_after(plan, fail, r"it failed; module and optimizer are as before the step")


@pytest.mark.parametrize(
    ("budget", "options"),
    [("1.2xMmin", {}), ("80%", {"weights_as_blocks": False}), ("40MiB", {"memory": "paged"})],
)
def test_without_restore_steps_have_eagers_bits_and_a_failed_one_leaves_nan(
    budget: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(noisy, budget, method="modnn", **options)
    eager, ours = made_by(noisy), made_by(noisy)
    batches = batches_of(eager, 4)
    torch.manual_seed(7)
    wanted = [eager_step(eager)(*batch) for batch in batches[:3]]
    torch.manual_seed(7)
    step = plan.bind(ours[0], ours[3], restore=False)
    assert are_equal([step(*batch) for batch in batches[:3]] + state_of(ours), wanted + state_of(eager))

    name, run = phases(plan)["backward"], OperatorLaunch.compute

    def failing(launch: OperatorLaunch, addresses: Any) -> None:
        run(launch, addresses)
        if launch.kernel.operator.name == name:
            raise RuntimeError("it failed")

    monkeypatch.setattr(OperatorLaunch, "compute", failing)
    with pytest.raises(DeviceError, match="module and optimizer have NaN, as restore is False"):
        step(*batches[3])
    assert all(parameter.isnan().all() for parameter in ours[0].parameters())


@pytest.mark.parametrize("number", [0, 5])
def test_a_copy_that_fails_leaves_everything_as_before_the_step(
    plan: TrainingPlan, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    memmove = ctypes.memmove

    def copy(target: int, source: int, bytes: int) -> None:  # noqa: A002
        copies.append(source)
        if len(copies) > number:
            raise OSError("the link is down")
        memmove(target, source, bytes)

    @contextmanager
    def fail() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "memmove", copy)
            yield

    assert_usable_after(plan, fail, "OSError: the link is down; module and optimizer are as before the step")


# --- memory -------------------------------------------------------------------------------------------


def large(batch: int) -> Made:
    """Its convolution allocates more at once than the system's allocator keeps."""
    module = torch.nn.Conv2d(8, 8, 3, padding=1)

    def step(x: Any) -> Any:
        return module(x).square().mean()

    return module, step, (torch.randn(batch, 8, 296, 296),), adamw(module)


@pytest.fixture(scope="module")
def conv() -> TrainingPlan:
    return planned(large, "1.05xMmin", method="modnn")


@contextmanager
def no_more_memory(spare: int = 8 << 20) -> Iterator[None]:
    """Within, this process gets hardly any private memory; what it has freed goes back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    used = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_out_of_memory_within_an_operator_leaves_everything_as_before_the_step(conv: TrainingPlan) -> None:
    convolution = next(o for o in conv.record.operators if "convolution" in o.name)
    assert convolution.scratch_bytes > 32 << 20
    eager, ours = made_by(large), made_by(large)
    eager_step(eager)(*eager[2])
    step = conv.bind(ours[0], ours[3])
    before = state_of(ours)
    with (
        no_more_memory(),
        pytest.raises(DeviceError, match=r"can't allocate memory.*as before the step") as caught,
    ):
        step(*ours[2])
    assert len(str(caught.value).splitlines()) == 1
    assert are_equal(state_of(ours), before)
    with conv.bind(ours[0], ours[3]) as step:
        step(*ours[2])
    assert are_equal(state_of(ours), state_of(eager))


def test_out_of_memory_when_a_plan_is_bound_leaves_no_trace(
    conv: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_by(large)
    before = state_of(made)
    with no_more_memory(), pytest.raises(DeviceError, match=r"bytes of memory( on the host)? cannot be had"):
        conv.bind(made[0], made[3])
    with monkeypatch.context() as patch:
        patch.setattr("pebbler.validate.execution.cpu.memory.available_bytes", lambda: 1000)
        with pytest.raises(DeviceError, match="bytes of memory are needed and 1000 are available"):
            conv.bind(made[0], made[3])
    assert not made[3].state
    assert are_equal(state_of(made), before)
    eager = made_by(large)
    eager_step(eager)(*eager[2])
    with conv.bind(made[0], made[3]) as step:
        step(*made[2])
    assert are_equal(state_of(made), state_of(eager))


def test_a_step_that_cannot_be_closed_is_still_open(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(size: int, _: object) -> Any:
        raise DeviceError(f"no memory for {size} bytes")

    eager, ours = made_by(noisy), made_by(noisy)
    torch.manual_seed(7)
    wanted = [eager_step(eager)(*eager[2]) for _ in range(2)]
    torch.manual_seed(7)
    step = plan.bind(ours[0], ours[3])
    found = [step(*ours[2])]
    with monkeypatch.context() as patch:
        patch.setattr(executing, "own_memory", refuse)
        with pytest.raises(DeviceError, match="no memory"):
            step.close()
    found.append(step(*ours[2]))
    step.close()
    assert are_equal(found + state_of(ours), wanted + state_of(eager))


# --- Ctrl-C -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupts", counts(6, 40))
def test_ctrl_c_at_any_moment_leaves_everything_as_before_or_after_a_step(
    pytestconfig: pytest.Config,
    interrupts: int,
) -> None:
    rng = Random(0)
    told = []
    command = [sys.executable, "-m", "tests.validate.execution.torch_steps.interrupted"]
    with subprocess.Popen(command, cwd=pytestconfig.rootpath, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            for _ in range(interrupts):
                assert worker.stdout.readline() == "ready\n"
                time.sleep(rng.uniform(0, 0.1))
                worker.send_signal(signal.SIGINT)
                told.append(worker.stdout.readline().strip())
        finally:
            worker.kill()
    assert {*told} <= {"before", "after"}, told
