"""Operators of a recorded step as kernels: each runs on tensors that lie at the planned addresses.

An operator runs in the manner that the record says: by the overload that writes into given memory, in place,
or computed in memory that torch allocates (the planned scratch) and copied. Its operands and results have the
shapes, strides and types of the record, for other strides give other bits. The first launch checks that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ....instances.errors import PebblerError
from ....instances.figures import text_of
from ....instances.importers.torch_step.calls import filled, new_results
from ....instances.importers.torch_step.devices import Device, device_of
from ....instances.importers.torch_step.memory import tensor_at
from ....instances.importers.torch_step.record import Reference, StepOperator, StepRecord, leaves_of
from ....instances.importers.torch_step.scalars import Formula, ScalarInput, evaluate
from ....instances.instance import Instance
from ..device import DeviceError

_is_grad_enabled, _get_num_threads = torch.is_grad_enabled, torch.get_num_threads

KIND = "operator"
"""Kind of all kernels here."""


@dataclass(slots=True, eq=False)
class Moment:
    """What the operators of a running step have in common.

    Attributes
    ----------
    device
        Where they run.
    on_host
        Storages that are the host's, by index; the same in every step.
    values
        The numbers that the optimizer was asked for.
    generator
        States of the generator by the numbers that the record has for them, as far as they are known.
    threads
        Threads of each operator: as many as eager torch has.
    ran
        Names of the operators that have run in the step, of those for which it matters.
    """

    device: Device
    on_host: Mapping[int, Any] = field(default_factory=dict)
    values: Mapping[ScalarInput, float] = field(default_factory=dict)
    generator: dict[int, Any] = field(default_factory=dict)
    threads: int = 1
    ran: set[str] = field(default_factory=set)

    def begin(self, values: Mapping[ScalarInput, float]) -> None:
        """Begin a step."""
        self.values, self.threads = values, torch.get_num_threads()
        self.generator = {0: self.device.rng_state()}
        self.ran.clear()


@dataclass(frozen=True, slots=True, eq=False)
class OperatorKernel:
    """An operator of a recorded step.

    Attributes
    ----------
    operator
        The operator.
    names
        Names of all storages of the record, by index.
    sizes
        Their bytes.
    operands
        Names of the storages that it touches, by themselves.
    moment
        What it has in common with the other operators of the step.
    """

    operator: StepOperator
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    operands: Mapping[str, str]
    moment: Moment

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.operator.name

    @property
    def kind(self) -> str:
        """Kind of all operators."""
        return KIND


class RecordedStep:
    """A recorded step as what the blocks and tasks of an instance stand for.

    Parameters
    ----------
    record, instance
        The step, and the instance made of it: tasks have the names of operators, and blocks, or the tensors
        that they are parts of, those of storages.
    on_host
        Storages that are the host's, by index.

    Attributes
    ----------
    unit
        Bytes that storages are aligned to.
    moment
        What the operators of the running step have in common.
    host
        Operators that the host runs before the first task.

    Raises
    ------
    PebblerError
        When the instance is not one of this record.
    """

    images = batch = 1

    def __init__(self, record: StepRecord, instance: Instance, on_host: Mapping[int, Any]) -> None:
        self.record = record
        device = device_of(record.device)
        self.unit = device.alignment
        self.moment = Moment(device, on_host)
        self.parts = tuple((block.tensor or block.name, block.begin or 0) for block in instance.blocks)
        self._names = tuple(text_of(storage.name) for storage in record.storages)
        self._sizes = tuple(storage.bytes for storage in record.storages)
        self._indices = {name: s for s, name in enumerate(self._names)}
        tasks = [operator for operator in record.operators if operator.kind == "task"]
        if [text_of(operator.name) for operator in tasks] != [task.name for task in instance.tasks]:
            raise PebblerError(f"{instance.name}: its tasks are not those of the recorded step; plan it anew")
        if unknown := sorted({name for name, _ in self.parts} - {*self._names}):
            raise PebblerError(
                f"{instance.name}: the recorded step has nothing that is called '{unknown[0]}'; plan it anew"
            )
        self._kernels = [self._kernel(operator) for operator in tasks]
        self.host = [self._kernel(operator) for operator in record.operators if operator.kind == "host"]

    def resident(self) -> Iterator[tuple[str, int]]:
        """Return names and bytes of the storages that tasks touch and that are no blocks."""
        blocks = {name for name, _ in self.parts}
        touched = {name for kernel in self._kernels for name in kernel.operands}
        for name, size in zip(self._names, self._sizes, strict=True):
            if name in touched - blocks:
                yield name, size

    def storage(self, name: str) -> int:
        """Return the index of the storage of a name."""
        return self._indices[name]

    def kernel(self, instance: Instance, task: int, algorithm: int) -> OperatorKernel:  # noqa: ARG002
        """Return the operator of a task, which has one algorithm."""
        return self._kernels[task]

    def _kernel(self, operator: StepOperator) -> OperatorKernel:
        touched = dict.fromkeys(
            reference.storage
            for call in operator.calls
            for reference in leaves_of((call.args, call.kwargs, call.results))
            if isinstance(reference, Reference)
        )
        operands = {
            self._names[s]: self._names[s]
            for s in touched
            if self._sizes[s] and not self.record.storages[s].on_host
        }
        return OperatorKernel(operator, self._names, self._sizes, operands, self.moment)


class OperatorLaunch:
    """A kernel that runs an operator on the tensors at the addresses that it is given.

    Tensors are made at the first launch, and again where an address has changed. In a later launch, only
    those arguments are made that follow from numbers of the optimizer.
    """

    def __init__(self, kernel: OperatorKernel) -> None:
        self.kernel = kernel
        operator = kernel.operator
        self._overload = operator.overload if operator.out is None else operator.out.overload
        given: list[tuple[int | str, Any]] = [*enumerate(operator.args), *operator.kwargs.items()]
        self._varying = [
            (key, tree)
            for key, tree in given
            if any(isinstance(leaf, ScalarInput | Formula) for leaf in leaves_of(tree))
        ]
        self._copied = [
            (position, result)
            for position, result in enumerate(leaves_of(operator.results))
            if operator.manner == "copied"
            and isinstance(result, Reference)
            and result.storage in operator.outputs
        ]
        self._moment = kernel.moment
        self._grad_mode = operator.grad_mode
        self._draw = operator.draw
        self._addresses: Mapping[str, int] | None = None
        self._args: list[Any] = []
        self._kwargs: dict[str, Any] = {}
        self._targets: list[tuple[int, Any]] = []
        self._scratch: AbstractContextManager[None] = nullcontext()
        self._is_again = False
        self._then = [OperatorLaunch(replace(kernel, operator=following)) for following in operator.then]

    def __call__(self, addresses: Mapping[str, int], first: int) -> None:  # noqa: ARG002
        """Run the operator; the thread is left with its settings, which are mostly those of the next."""
        moment, draw = self._moment, self._draw
        if _is_grad_enabled() is not self._grad_mode:
            torch.set_grad_enabled(self._grad_mode)
        if _get_num_threads() != moment.threads:
            torch.set_num_threads(moment.threads)
        if draw is None:
            self.compute(addresses)
            return
        moment.device.set_rng_state(moment.generator[draw.before])
        self.compute(addresses)
        moment.generator[draw.after] = moment.device.rng_state()

    def compute(self, addresses: Mapping[str, int]) -> None:
        """Run the operator, whatever settings and random numbers there are."""
        if self.kernel.operator.idle:
            self._look_back()
        if addresses is not self._addresses and addresses != self._addresses:
            self._bind(addresses)
            with self._scratch:
                returned = self._overload(*self._args, **self._kwargs)
            _require_recorded(self.kernel, returned, addresses)
        else:
            if self._varying:
                self._vary()
            with self._scratch:
                returned = self._overload(*self._args, **self._kwargs)
        if self._targets:
            made = leaves_of(returned)
            for position, target in self._targets:
                target.copy_(made[position])
        for following in self._then:
            following.compute(addresses)

    def _look_back(self) -> None:
        """Find out whether the operator runs again: then what it rewrites for later steps stays as it is."""
        again = self.kernel.task in self._moment.ran
        self._moment.ran.add(self.kernel.task)
        if again is not self._is_again:
            self._is_again, self._addresses = again, None

    def _bind(self, addresses: Mapping[str, int]) -> None:
        """Make all arguments, and what results are copied to."""
        operator, values = self.kernel.operator, self.kernel.moment.values
        at = _Memory(self.kernel, addresses, operator.idle if self._is_again else ())
        self._addresses = addresses
        self._args = list(filled(operator.args, at.tensor, values))
        self._kwargs = filled(operator.kwargs, at.tensor, values)
        if operator.out is not None:
            places = map(at.tensor, new_results(operator))
            self._kwargs |= dict(zip(operator.out.names, places, strict=True))
        self._targets = [(position, at.tensor(result)) for position, result in self._copied]
        if operator.segments_bytes:
            device = self.kernel.moment.device
            self._scratch = device.scratch_at(addresses["workspace"], operator.segments_bytes)

    def _vary(self) -> None:
        """Make those arguments that follow from numbers of the optimizer."""
        values = self.kernel.moment.values
        for key, tree in self._varying:
            if isinstance(tree, ScalarInput | Formula):
                made = evaluate(tree, values)
            else:
                assert self._addresses is not None
                made = filled(tree, _Memory(self.kernel, self._addresses).tensor, values)
            if isinstance(key, int):
                self._args[key] = made
            else:
                self._kwargs[key] = made


class OperatorKernels:
    """What backends for operators of a recorded step have in common: their kernels."""

    @property
    def name(self) -> str:
        """See `Backend`."""
        return "torch"

    @property
    def kinds(self) -> frozenset[str]:
        """See `Backend`."""
        return frozenset((KIND,))

    def algorithms(self, kernel: OperatorKernel) -> list[tuple[str, int]]:
        """See `Backend`."""
        return [("operator", kernel.operator.segments_bytes or kernel.operator.scratch_bytes)]

    def prepare(self, kernel: OperatorKernel) -> OperatorLaunch:
        """See `Backend`."""
        return OperatorLaunch(kernel)

    def is_deterministic(self, kernel: OperatorKernel) -> bool:
        """Return whether torch has the same bits each time on the kernel's device, as it is set."""
        return kernel.moment.device.deterministic


class _Memory:
    """Tensors at the addresses of a launch; those that share a storage in the record share one.

    Storages that are spared have other memory.
    """

    def __init__(
        self, kernel: OperatorKernel, addresses: Mapping[str, int], spare: Iterable[int] = ()
    ) -> None:
        self._kernel = kernel
        self._addresses = addresses
        self._storages: dict[int, Any] = dict(kernel.moment.on_host)
        device = kernel.moment.device
        self._storages |= {s: device.empty(kernel.sizes[s]).untyped_storage() for s in spare}

    def tensor(self, reference: Reference) -> Any:
        """Return the tensor of a reference."""
        s = reference.storage
        if s not in self._storages:
            size, device = self._kernel.sizes[s], self._kernel.moment.device
            address = self._addresses[self._kernel.names[s]] if size else 0
            self._storages[s] = device.storage_at(address, size)
        return tensor_at(reference, self._storages[s])


def _pairs(operator: StepOperator, returned: Any) -> Iterator[tuple[Any, Reference]]:
    """Yield each tensor that an operator returned with what the record has for it."""
    for given, result in zip(leaves_of(returned), leaves_of(operator.results), strict=True):
        if isinstance(result, Reference):
            yield given, result


def _require_recorded(kernel: OperatorKernel, returned: Any, addresses: Mapping[str, int]) -> None:
    """Refuse results of another type, shape or order, or in another place, than those of the record."""
    operator = kernel.operator
    for given, result in _pairs(operator, returned):
        found = given.dtype, tuple(given.size()), tuple(given.stride())
        if found != (result.dtype, result.size, result.stride):
            raise DeviceError(
                f"the operator returned {_shown(*found)} and was recorded with "
                f"{_shown(result.dtype, result.size, result.stride)}; record and plan the step anew"
            )
        copied = operator.manner == "copied" and result.storage in operator.outputs
        name = kernel.names[result.storage]
        lies = given.untyped_storage().data_ptr()
        if given.numel() and not copied and addresses.get(name, lies) != lies:
            raise DeviceError(f"the operator did not write '{name}' where it lies; record the step anew")


def _shown(dtype: Any, size: tuple[int, ...], stride: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {size} and strides {stride}"
