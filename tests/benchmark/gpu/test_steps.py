"""The stages for training steps of torch, on a stand-in for a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from ...extras import needs_torch, single_precision

torch = needs_torch()

from pebbler.benchmark.gpu import torch_models, torch_steps  # noqa: E402
from pebbler.benchmark.gpu.page import tables  # noqa: E402
from pebbler.benchmark.gpu.stages import is_settled, read  # noqa: E402
from pebbler.benchmark.gpu.steps import WAYS, in_torch, plans, records, runs, solve_step  # noqa: E402
from pebbler.benchmark.gpu.study import STEP_METHODS, Study  # noqa: E402
from pebbler.instances.files import write_instance  # noqa: E402
from pebbler.instances.importers.torch_step import devices  # noqa: E402
from pebbler.instances.memory import with_budget  # noqa: E402
from pebbler.instances.workload import Workload  # noqa: E402
from pebbler.validate.execution.torch import gpu as backends  # noqa: E402

from ...validate.execution.torch_steps.fake_gpu import FakeGpu, FakeVirtualMemory  # noqa: E402

LONG = (" flow", " activation_budget")
"""Ends of the names of units that take long."""

MODEL = "tests.validate.execution.torch_steps.models:wide"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A GPU that is the processor, and torch's settings as they were before."""
    found = FakeGpu()
    monkeypatch.setitem(devices.DEVICES, "cpu", lambda _: found)
    monkeypatch.setattr(backends, "VirtualMemory", FakeVirtualMemory)
    monkeypatch.setattr(torch_steps, "DEVICE", "cpu")
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, filled = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory
    torch.set_num_threads(1)
    with single_precision():
        yield found
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    found.close()


@pytest.mark.usefixtures("gpu")
def test_a_step_is_recorded_planned_run_and_compared_with_torch(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=[(MODEL, 2)], shares=[80], repeat=1)
    for unit in runs(study):
        assert str(unit.lacks()).endswith("left nothing for wide/2 yet; do it first")
    for units in (records(study), plans(study), runs(study)):
        for unit in units:
            if unit.name in ("check_steps", "check_oversubscribed") or unit.name.endswith(LONG):
                continue  # which take longer
            assert (unit.lacks(), unit.is_done()) == (None, False)
            assert unit.call(*unit.arguments) is None
            assert unit.is_done()
    step = json.decode((tmp_path / "step-wide-2-step.json").read_bytes())
    run = json.decode((tmp_path / "step-wide-2-80-modnn-run.json").read_bytes())
    assert run["identical_to_unbudgeted"]
    assert run["peak_bytes"] <= run["budget_bytes"] <= 0.8 * step["eager_peak_bytes"]
    text = tables(study)
    for way in WAYS[:-1]:
        assert f"| wide, batch 2 | 80% | torch, {way} |" in text
    assert "| wide, batch 2 | 80% | modnn |" in text
    assert "| copies through pinned memory bring the same bytes back | yes |" in text


def test_a_budget_under_the_least_one_is_a_result(tmp_path: Path) -> None:
    source, schedule, target = (tmp_path / name for name in ("instance.json", "schedule.json", "solve.json"))
    write_instance(with_budget(Workload("lenet", 2, "k40").instance("1.2xMmin"), 4096), source)
    solve_step(source, "modnn", schedule, target)
    assert "is under the minimum of" in json.decode(target.read_bytes())["stopped_by"]
    assert is_settled(target, tmp_path / "run.json")
    assert not schedule.exists()


@pytest.mark.parametrize(
    ("make", "inputs", "wanted"),
    [
        (
            lambda: torch_models.Unet(4, 2),
            (1, 3, 8, 8),
            [
                "down.0",
                "down.1",
                *(f"middle.{i}" for i in (0, 1, 3, 4)),
                "up.0",
                "up.1",
                "joined.0",
                "joined.1",
            ],
        ),
        (lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (2, 4), ["0"]),
        (
            lambda: torch.nn.TransformerEncoderLayer(4, 2, 8),
            None,
            ["self_attn", "linear1", "linear2", "norm1", "norm2"],
        ),
    ],
)
def test_parts_of_the_outermost_lists_become_checkpoints(
    make: Callable[[], Any], inputs: tuple[int, ...] | None, wanted: list[str]
) -> None:
    module = make()
    given = None if inputs is None else torch.randn(inputs)
    before = None if given is None else module(given)
    torch_steps.checkpoint_blocks(module)
    found = [name for name, part in module.named_modules() if isinstance(part, torch_models.Recomputed)]
    assert sorted(found) == sorted(wanted)
    if given is not None:
        assert torch.equal(module(given), before)


def test_what_compiles_comes_after_all_else(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=[("models:small", 8), ("models:large", 2)], shares=[75, 50])
    names = [unit.name for unit in runs(study)]
    steps = [f"{step} {share}%" for step in ("small/8", "large/2") for share in (75, 50)]
    plans_first = [f"{step} {method}" for step in steps for method in STEP_METHODS]
    assert names == plans_first + [f"{step} {way}" for way in WAYS for step in steps]
    assert WAYS[-1] == "activation_budget"


@pytest.mark.usefixtures("gpu")
def test_a_step_with_less_memory_than_it_needs_is_told_of(tmp_path: Path) -> None:
    """The stand-in has memory enough; that a GPU has not is what the check asks of one."""
    path = tmp_path / "checks.json"
    assert in_torch("check_oversubscribed", path, MODEL, 2) is None
    (told,) = read(path)["checks"]
    assert told["check"] == "wide, batch 2, with 75 % of eager torch's peak"
    assert told["sentence"].startswith("recorded in ")


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_small_steps_have_eagers_bits(tmp_path: Path) -> None:
    assert in_torch("check_steps", tmp_path / "checks.json") is None


def test_a_gpu_that_does_something_else_is_told(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu, "wait", lambda *_: None)
    monkeypatch.setattr(gpu, "set_rng_state", lambda *_: None)
    told = str(in_torch("check_gpu", tmp_path / "checks.json"))
    assert "a state that is set again gives other numbers" in told
    assert "a stream waits for an event of another one, and only then: the work before an event" in told
