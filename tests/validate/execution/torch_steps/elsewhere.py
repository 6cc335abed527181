"""Steps of models on a device of another type than the CPU's, beside eager torch's there.

``python -m tests.validate.execution.torch_steps.elsewhere FOLDER`` compiles ``elsewhere.cpp``, or finds it in
the folder, and prints a line for each model; the exit status is 1 where bits differ. The device is the whole
process's, so it has one of its own. `FakeGpu` stands for CUDA, with tensors that are none of the CPU's.
"""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.cpp_extension import load

import pebbler.torch
from pebbler.instances.errors import PebblerError
from pebbler.instances.importers.torch_step import devices
from pebbler.validate.execution.torch import gpu as backends
from pebbler.validate.execution.torch.planned import PlannedStep
from pebbler.validate.execution.torch.profiler import profile_step
from pebbler.validate.execution.torch.trial import attempt_step

from .fake_gpu import FakeGpu, FakeVirtualMemory
from .models import Cnn, Made, adamw, checkpointed
from .test_gpu import small_gpt
from .training import BATCH, CLIP, Make, are_equal, batches_of, eager_step, executor_of, made_by, planned

KIND = "elsewhere"
DEVICE = f"{KIND}:0"


class OtherGpu(FakeGpu):
    """The device of ``elsewhere.cpp``; the thread that issues operators launches them, as for CUDA."""

    def __init__(self) -> None:
        super().__init__(DEVICE)
        self.name, self.device = DEVICE, torch.device(DEVICE)

    def empty(self, size: int) -> Any:
        return torch.full((size,), 0xFF, dtype=torch.uint8, device=DEVICE)

    def storage_at(self, address: int, size: int, keeper: object = None) -> Any:  # noqa: ARG002
        if not size:
            return self.empty(0).untyped_storage()
        return torch._C._construct_storage_from_data_pointer(address, self.device, size)

    def run(self, stream: Any, work: Callable[[], object]) -> None:  # noqa: ARG002
        work()


def register(folder: Path) -> OtherGpu:
    """Make the device known to torch and to pebbler."""
    source = Path(__file__).with_suffix(".cpp")
    load("elsewhere", [str(source)], extra_cflags=["-O0"], build_directory=str(folder))
    torch.utils.rename_privateuse1_backend(KIND)
    generator = torch.default_generator
    module = types.ModuleType(f"torch.{KIND}")
    module.__dict__.update(
        is_available=lambda: True,
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
        current_device=lambda: 0,
        device_count=lambda: 1,
        get_rng_state=lambda _=None: generator.get_state(),
        set_rng_state=lambda state, _=None: generator.set_state(state),
        manual_seed_all=lambda _: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
    )
    torch._register_device_module(KIND, module)
    gpu = OtherGpu()
    devices.DEVICES[KIND] = lambda _: gpu
    backends.VirtualMemory = FakeVirtualMemory  # type: ignore[misc, assignment]
    return gpu


def there(make: Make) -> Make:
    """The same model on the device."""

    def made(batch: int) -> Any:
        module, step, inputs, *_ = make(batch)
        module.to(DEVICE)
        return module, step, tuple(tensor.to(DEVICE) for tensor in inputs), adamw(module)

    return made


def small_cnn(batch: int) -> Made:
    module = Cnn(4, 3)

    def step(images: Any, classes: Any) -> Any:
        return F.cross_entropy(module(images), classes)

    return module, step, (torch.randn(batch, 3, 8, 8), torch.randint(10, (batch,))), adamw(module)


def dropping(batch: int) -> Made:
    """Random numbers of the device."""
    layers = (layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2)))
    module = nn.Sequential(*layers)
    return module, lambda x: module(x).square().mean(), (torch.randn(batch, 32),), adamw(module)


RECOMPUTED = {"method": "memonger-rule", "recompute": True}
CASES: tuple[tuple[Make, str, dict[str, Any]], ...] = (
    (dropping, "95%", {}),
    (small_gpt, "85%", {}),
    (small_gpt, "90%", RECOMPUTED),
    (small_gpt, "150MiB", {"memory": "paged"}),
    (small_cnn, "85%", {}),
    (checkpointed, "85%", {}),
)
"""Model, budget, and how it is planned; parameters stay, as torch lets only known types of devices change."""


def trained(made: Any, take: Any) -> list[Any]:
    """Losses, and what is left, on the CPU."""
    torch.manual_seed(7)
    losses = [take(*batch).cpu() for batch in batches_of(made, 3)]
    states = [one[key] for one in made[3].state.values() for key in sorted(one)]
    left = (*made[0].state_dict().values(), *states)
    return [*losses, *(tensor.cpu() for tensor in left), torch.get_rng_state()]


def right(make: Make, budget: str, options: dict[str, Any]) -> bool:
    """Whether three steps by a plan have the bits of eager torch, and everything is on the device again."""
    plan = planned(make, budget, **{"method": "modnn", "weights_as_blocks": False} | options)
    eager, ours = made_by(make), made_by(make)
    wanted = trained(eager, eager_step(eager))
    with executor_of(plan, ours, poison=True) as step:

        def take(*batch: Any) -> Any:
            with torch.autocast(KIND, dtype=torch.bfloat16):  # a plan has its own precisions
                loss = step(*batch)
                assert torch.is_autocast_enabled(KIND)
            assert torch.is_grad_enabled()
            return loss

        found = trained(ours, take)
    return are_equal(found, wanted) and {str(tensor.device) for tensor in ours[0].parameters()} == {DEVICE}


def beside(folder: Path) -> bool:
    """Whether a plan can be saved and read, tried, profiled, and be a policy for eager torch."""
    make = there(dropping)
    planned(make, "95%", method="modnn", weights_as_blocks=False).save(folder / "plan")
    plan = pebbler.torch.load(folder / "plan")
    step = PlannedStep(plan.record, plan.instance, plan.schedule)
    trial = attempt_step(step, make, BATCH, clip=CLIP, repeat=1)
    profile = profile_step("dropping", make, (BATCH,), clip=CLIP, repeat=1)
    module, forward, inputs, _ = made_by(make)
    with plan.policy():
        loss = forward(*inputs)
    loss.backward()
    gradients = all(parameter.grad is not None for parameter in module.parameters())
    return trial.identical and len(profile.tasks) == len(plan.instance.tasks) and gradients


def refused(wrong: Callable[[Any, Any], Any], told: str) -> bool:
    """Whether a step that does something else with its model and input is refused by a sentence."""

    def make(batch: int) -> Made:
        module, _, inputs, optimizer = there(dropping)(batch)
        return module, partial(wrong, module), inputs, optimizer

    try:
        planned(make, "1GiB", method="network-wide")
    except PebblerError as error:
        return told in str(error)
    return False


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "the step returns its loss on cpu": lambda module, x: module(x).mean().cpu(),
    "it has a tensor on cpu, and the step": lambda module, x: (module(x) + torch.rand(32).to(DEVICE)).mean(),
    "single numbers on the host": lambda module, x: (module(x) * (torch.rand(()) + 1)).mean(),
}
"""Steps that are refused, by what is said."""


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    folder = Path(sys.argv[1])
    gpu = register(folder)
    found = {}
    for make, budget, options in CASES:
        name = f"{make.__name__} {budget} {options}"
        found[name] = right(there(make), budget, options)
        print(name, found[name], flush=True)
    found |= {told: refused(wrong, told) for told, wrong in WRONG.items()}
    print("refusals", all(found[told] for told in WRONG))
    found["beside"] = beside(folder)
    print("files, trial, profile and policy", found["beside"])
    gpu.close()
    sys.exit(not all(found.values()))


if __name__ == "__main__":
    main()
