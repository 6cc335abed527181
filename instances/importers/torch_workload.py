"""The workloads of a user's torch model: a function that builds it, a batch and a device."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec import UnsetType

from ..devices.device import DEVICE_OF_TODAY, find_device
from ..devices.roofline import COST_MODEL
from ..errors import PebblerError
from ..instance import Instance
from ..origin import Origin
from ..profile import Profile
from ..workload import BATCH_NORM_NOTE, Workload
from .extras import require_extra
from .operators import OperatorGraph, operator_instance

if TYPE_CHECKING:
    from .torch_graph import MakeStep
    from .torch_step.instance import Lasting, StepInstance
    from .torch_step.record import StepRecord
    from .torch_step.steps import MakeTrainingStep


def _require_no_precision(workload: Workload) -> None:
    if workload.precision != "fp32":
        raise PebblerError(
            f"{workload.name}: a torch model has tensors in the precision that it gives them; leave "
            "'precision' out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWorkload(Workload):
    """One training iteration of a torch model with a batch on a device.

    `network` is what the model is called; `graph` is ``executable``, and weights stay resident.

    Attributes
    ----------
    device
        By default one of today.
    make_step
        From a batch size to ``(module, step, inputs)``: ``step(*inputs)`` is the scalar loss, computed with
        the module. It is called once for every sub-batch that is asked for.

    Raises
    ------
    PebblerError
        When torch is missing, the batch is not positive, or the graph is another one.
    """

    device: str = field(default=DEVICE_OF_TODAY, kw_only=False)
    make_step: MakeStep
    _recorded: dict[int, OperatorGraph] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_extra("torch")
        Workload.__post_init__(self)
        _require_no_precision(self)
        if self.steady:
            raise PebblerError(
                f"{self.name}: weights of a torch model are resident, so it has no steady state to ask for; "
                "leave it out"
            )
        if self.graph != "executable" or self.weights_as_blocks or self.profile is not None:
            raise PebblerError(
                f"{self.name}: a torch model has the executable graph, resident weights and no profile (a "
                "whole training step has one: TorchStepWorkload); leave the other choices out"
            )

    def parameter_bytes(self) -> int:
        """Bytes of the model's parameters, without gradients or what an optimizer keeps."""
        storages = self._graph(self.batch).storages
        return sum(storage.bytes for storage in storages if storage.place == "parameter")

    def _graph(self, sub_batch: int) -> OperatorGraph:
        """Return what is recorded of a round."""
        from .torch_graph import record

        if sub_batch not in self._recorded:
            self._recorded[sub_batch] = record(self.make_step, sub_batch)
        return self._recorded[sub_batch]

    def round(self, sub_batch: int, rounds: int) -> Instance:
        """Return the instance of one round."""
        graph = self._graph(sub_batch)
        device = find_device(self.device, self.cudnn)
        normalised = any("batch_norm" in operator.name for operator in graph.operators)
        origin = Origin(
            network=self.name,
            batch=self.batch,
            sub_batch=sub_batch,
            device=device.name,
            cudnn=device.cudnn,
            graph=self.graph,
            cost_model="roofline",
            cost_model_version=COST_MODEL,
            notes=BATCH_NORM_NOTE if normalised and sub_batch < self.batch else None,
        )
        return operator_instance(
            graph,
            device,
            name=_slug(self.name, sub_batch),
            engines=self.engines,
            rounds=rounds,
            origin=origin,
            meta={"source": "recorded from torch"},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStepWorkload(Workload):
    """One whole training step of a torch model, with clipping and the optimizer, as it runs where it is.

    `network` is what the model is called; `graph` is ``executable``; times are measured while the step is
    recorded, or those of a profile.

    Attributes
    ----------
    device
        That of the profile, or left out.
    profile
        As `pebbler profile --torch` measures it.
    link
        Of copies to and from the host; None: the profile's, or what the device's copies reach.
    weights_as_blocks
        Whether parameters, buffers and the optimizer's states may leave the device within a step.
    steady
        Whether they begin a step where the step before has left them, in place of on the device.
    make_step
        From the batch to ``(module, step, inputs, optimizer)``, as `record_made` takes it.
    clip
        Norm to which gradients are clipped before the optimizer's step; None: they are not.
    recompute
        Whether operators may run again.

    Raises
    ------
    PebblerError
        When torch is missing, the batch is not positive, or another choice is made than there is.
    """

    device: str = field(default="cpu", kw_only=False)
    weights_as_blocks: bool = True
    make_step: MakeTrainingStep
    clip: float | None = None
    recompute: bool = True
    _recorded: list[StepRecord] = field(default_factory=list, init=False, repr=False, compare=False)
    _links: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_extra("torch")
        Workload.__post_init__(self)
        _require_no_precision(self)
        if self.optimizer is not None:
            raise PebblerError(f"{self.name}: the optimizer is what make_step returns; leave 'optimizer' out")
        if (self.device != "cpu" and self.profile is None) or self.graph != "executable" or self.cudnn:
            raise PebblerError(
                f"{self.name}: a training step is recorded where its module is, with times of its own or a "
                "profile's; leave device, graph and cudnn out"
            )
        if self.profile is not None:
            self._require_profile(self.profile)
        if self.host_bandwidth is not None:
            raise PebblerError(
                f"{self.name}: the optimizer takes as long as it was measured; leave 'host_bandwidth' out"
            )

    @property
    def updated_by(self) -> None:
        """What updates the weights is the step's own, and has no name among those of networks."""

    def _require_updates(self) -> None:
        """Nothing: the step has been recorded with its optimizer, and times are its own."""

    def _require_profile(self, profile: Profile) -> None:
        """Refuse a profile of something else than this step."""
        measured = profile.training_step
        if isinstance(measured, UnsetType):
            raise PebblerError(
                f"the profile of {profile.network} is not one of a training step; measure one with pebbler "
                "profile --torch"
            )
        if measured.clip != self.clip:
            raise PebblerError(
                f"the profile is of a step that clips gradients to {measured.clip}, and this one clips to "
                f"{self.clip}; give its own"
            )

    def _lasting(self) -> Lasting:
        if self.steady:
            return "carried"
        return "device" if self.weights_as_blocks else "resident"

    def record(self) -> StepRecord:
        """Return the record of the step, which runs when it is asked for first."""
        from .torch_step.steps import record_made

        if not self._recorded:
            self._recorded.append(record_made(self.make_step, self.batch, clip=self.clip))
        return self._recorded[0]

    def recorded(self) -> StepInstance:
        """Return the instance under a budget of 0, with what its tasks and blocks are in the record."""
        from .torch_step.devices import device_of
        from .torch_step.instance import step_instance

        record = self.record()
        if self.link is None and self.profile is None and not self._links:
            self._links.append(device_of(record.device).link())
        return step_instance(
            record,
            name=_slug(self.name, self.batch),
            link=self.link or next(iter(self._links), None),
            profile=self.profile,
            lasting=self._lasting(),
            recompute=self.recompute,
            engines=self.engines,
            optimizer_on=self.optimizer_on,
            network=self.name,
            batch=self.batch,
        )

    def parameter_bytes(self) -> int:
        """Bytes of the model's parameters, without gradients or what an optimizer keeps."""
        return sum(storage.bytes for storage in self.record().storages if storage.role == "parameter")

    def round(self, sub_batch: int, rounds: int) -> Instance:
        """Return the instance of the step, which is a round of its own."""
        if sub_batch != self.batch or rounds != 1:
            raise PebblerError(
                f"{self.name}: a training step updates the parameters once, in one round of the batch; "
                "accumulate gradients of micro-batches in the step itself"
            )
        return self.recorded().instance


def _slug(name: str, batch: int) -> str:
    return "-".join([*re.findall(r"\w+", name), f"b{batch}"])


def find_step(spec: str) -> MakeStep:
    """Import the function that ``module:function`` names; the current folder is searched, too.

    Raises
    ------
    PebblerError
        When torch is missing, the module cannot be imported or has no such function.
    """
    require_extra("torch")
    module_name, _, function_name = spec.partition(":")
    if not module_name or not function_name:
        raise PebblerError(f"'{spec}' names no function; write MODULE:FUNCTION, such as my_model:make_step")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except Exception as error:
        raise PebblerError(f"'{module_name}' cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise PebblerError(
            f"{module_name} has no function '{function_name}'; write one that takes a batch size"
        )
    return cast("MakeStep", function)
