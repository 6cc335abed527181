"""A planned training step bound to a user's module and optimizer, and executed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self
from weakref import finalize, proxy

import torch

from ....instances.errors import PebblerError
from ....instances.importers.torch_cuda import Gpu
from ....instances.importers.torch_step.devices import Processor, device_of
from ....instances.importers.torch_step.memory import bytes_of, tensor_at
from ....instances.importers.torch_step.persistent import (
    create_states,
    drop_states,
    find_tensors,
    grouped_parameters,
    read_scalars,
)
from ....instances.importers.torch_step.provenance import fixed_settings
from ....instances.importers.torch_step.record import Reference, TensorName
from ....instances.importers.torch_step.refusals import require_plain_surroundings, require_recordable
from ....instances.importers.torch_step.scalars import inputs_of
from ....instances.importers.torch_step.steps import require_alike
from ....instances.processes.signals import held
from ..cpu.threads import KeptWork
from ..device import DeviceError, Event
from ..executor import Issuer, Program, Timed
from ..plan import Load
from ..streams import hold
from .accepted import Accepted
from .backend import TorchBackend, open_backend
from .gpu import KeptLaunches, TorchGpuBackend
from .planned import PlannedStep, SettledStep, host_memory, own_memory


@dataclass(frozen=True, slots=True, eq=False)
class _Issued:
    """The work of a step, issued once and done any number of times, with its events.

    Attributes
    ----------
    work
        What streams do, or what the host launches on them.
    origin, events
        The begin of all work, and the begin and the end of each operation.
    mapped
        Nanoseconds of the host for mapping before an operation, and of waiting for that, by its position.
    """

    work: KeptWork | KeptLaunches
    origin: Event
    events: list[tuple[Event, Event]]
    mapped: dict[int, tuple[int, int]]

    @property
    def timed(self) -> tuple[Timed, ...]:
        """Times of its operations when it was done last."""
        found = []
        for i, ((start, end), host_ns) in enumerate(zip(self.events, self.work.hosts_ns, strict=True)):
            mapping, waiting = self.mapped.get(i, (0, 0))
            begin_ns, end_ns = start.since_ns(self.origin), end.since_ns(self.origin)
            found.append(Timed(begin_ns, end_ns, host_ns - mapping - waiting, mapping, waiting))
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class _Home:
    """Where a step leaves something that outlives it: a storage, which keeps the memory alive, and bytes."""

    storage: Any
    bytes: Any
    address: int


class StepExecutor(Issuer):
    """A planned training step of a user's module and optimizer, which can be executed any number of times.

    Between steps, every parameter, buffer and state is in the user's own tensor, and that lies in the
    executor's memory, where the plan leaves it. `close`, or the end of a ``with`` block, gives each of them
    memory of its own. In a step, the host keeps copies of them, to which they are set back where it fails,
    unless `restore` is False.

    Where several sizes are planned, the shapes of the inputs choose among them. All have one memory, as large
    as one of them needs, and in each a step begins where one of the same size has ended. After a step of
    another size, the host's copies are written to where it begins.

    Parameters
    ----------
    sizes
        The step in each planned size, under one budget with one number of resident bytes.
    module, optimizer
        Of the same structure as the recorded ones; the optimizer is None if there was none.
    restore
        Whether a step that fails can be undone. Each step copies everything to the host first for that, which
        takes time. Else module and optimizer have NaN after a step that fails.
    delays, poison, omit, late_ns
        See `ThreadedDevice` and `Issuer`; ids of operations are those of each size.

    Attributes
    ----------
    timed
        Times of each operation of the schedule in the step before.

    Raises
    ------
    PebblerError
        When module or optimizer are not like those that were recorded, or the sizes are not of one step; the
        message names what differs.
    DeviceError
        When there is too little memory.
    """

    def __init__(
        self,
        sizes: Sequence[PlannedStep],
        module: Any,
        optimizer: Any,
        *,
        restore: bool = True,
        delays: tuple[float, int] | None = None,
        poison: bool = False,
        omit: Collection[tuple[int, int]] = (),
        late_ns: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        require_alike([planned.record for planned in sizes])
        _require_one_memory(sizes)
        self.record = sizes[0].record
        self._device = device_of(self.record.device)
        self._timed: tuple[Timed, ...] | _Issued = ()
        self._issued: dict[tuple[Program, bool], _Issued] = {}
        self._homes: dict[SettledStep, dict[int, _Home]] = {}
        self._entries: dict[SettledStep, list[tuple[int, Load, int]]] = {}
        self._module = module
        self._optimizer = optimizer
        self._kept = self.record.lasting
        self._restore = restore
        self._closed = False
        self._accepted: Accepted | None = None  # as the step before has left it
        self._before: SettledStep | None = None
        self._require_same_module()
        backend = open_backend(self._device, delays)
        self._stop = finalize(self, backend.close)
        created: tuple[TensorName, ...] = ()
        try:
            with held():
                created = create_states(module, optimizer)
                drop_states(module, optimizer, tuple(name for name in created if name not in self._kept))
                created = tuple(name for name in created if name in self._kept)
                self._require_own(find_tensors(module, optimizer))
                self._values = host_memory(
                    {at.storage: self.record.storages[at.storage].bytes for at in self._kept.values()},
                    self._device,
                )
                numbers = {
                    at.storage: self.record.storages[at.storage].bytes
                    for at in self._kept.values()
                    if self.record.storages[at.storage].on_host
                }
                self._numbers = {
                    s: _Home(tensor.untyped_storage(), tensor, tensor.data_ptr())
                    for s, tensor in host_memory(numbers, self._device).items()
                }
                on_host = {s: home.storage for s, home in self._numbers.items()}
                settled = [SettledStep(planned, self._values, on_host) for planned in sizes]
                areas: dict[str, int] = {}
                for area, size in (item for one in settled for item in one.plan.areas.items()):
                    areas[area] = max(areas.get(area, 0), size)
                own = replace(settled[0].plan, areas=areas)
                super().__init__(backend, own, poison=poison, omit=omit, late_ns=late_ns)
                self._programs = {one: self.bind(one.plan) for one in settled[1:]}
                self._programs = {settled[0]: self._program, **self._programs}
        except BaseException:
            self._stop()
            drop_states(module, optimizer, created)
            raise

    def __call__(self, *inputs: Any) -> Any:
        """Take a step: forward and backward pass and update; return the loss, a tensor of its own.

        Ctrl-C waits for the end of the step.

        Parameters
        ----------
        inputs
            Tensors of the shapes and types of the recorded ones.

        Raises
        ------
        PebblerError
            When inputs, module or optimizer are not like those that were recorded; nothing was done then.
        DeviceError
            When an operation fails. Module and optimizer are then as before the step, in memory of their own,
            or have NaN if `restore` is False.
        """
        kind = self._device.name.partition(":")[0]
        with held(), torch.no_grad(), torch.autocast(kind, enabled=False):
            return self._step(inputs)

    def close(self) -> None:
        """Give every tensor memory of its own, and release the executor's; a second call does nothing.

        Raises
        ------
        DeviceError
            When there is too little memory; the step is then still open.
        """
        if self._closed:
            return
        with held(), torch.no_grad():
            if self._accepted is not None:
                tensors = self._accepted.tensors
                found = {at.storage: tensors[name].untyped_storage() for name, at in self._kept.items()}
                self._point(tensors, {s: self._own(s, bytes_of(storage)) for s, storage in found.items()})
            self._let_go()
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- a step -----------------------------------------------------------------------------------

    def _step(self, inputs: tuple[Any, ...]) -> Any:
        if self._closed:
            raise PebblerError("the step is closed; bind the plan again")
        self._device.synchronize()  # with whatever the user has done to tensors
        accepted = self._accept()
        size = self._of_size(inputs)
        record, moment, program = size.record, size.recorded.moment, self._programs[size]
        values = read_scalars(self._optimizer, accepted.trained, record.scalars)
        self._require_same_way(size, values)
        self._save(size, accepted, inputs)
        moment.begin(values)
        try:
            self._timed = ()
            self._load(size, accepted)
            for launch, addresses in size.host:
                launch(addresses, 0)
            if program.plan.pages and isinstance(self.backend, TorchBackend):
                self._timed = self.issue(program, 0, ahead=False)  # the host maps them meanwhile
            else:
                issued = self._issued_once(program)
                issued.work.start()
                self._finish(program.plan, issued.events)
                self._timed = issued
            for mapped in program.plan.last_maps:
                self.backend.map(self.address(mapped.place), mapped.pages)
            loss = tensor_at(record.loss, self._storage(size, record.loss.storage)).clone()
        except BaseException as error:
            self._set_back(size, accepted.tensors)
            if isinstance(error, DeviceError):
                now = "are as before the step" if self._restore else "have NaN, as restore is False"
                raise DeviceError(f"{error}; module and optimizer {now}") from None
            raise
        self._device.set_rng_state(moment.generator[record.last_draw])
        if self._optimizer is not None:
            self._optimizer._opt_called = True  # else a scheduler warns that there was no step before its own
        if accepted is not self._accepted or size is not self._before:
            self._point(accepted.tensors, {s: home.storage for s, home in self._homes_of(size).items()})
            self._accepted = Accepted(self._module, self._optimizer, accepted.tensors, self._kept)
            self._before = size
        return loss

    @property
    def timed(self) -> tuple[Timed, ...]:
        """Times of each operation of the schedule in the step before."""
        return self._timed.timed if isinstance(self._timed, _Issued) else self._timed

    def _accept(self) -> Accepted:
        """Return what is found of module and optimizer; refuse what is not as it was when planned."""
        if self._accepted is not None and self._accepted.holds():
            require_plain_surroundings(self._optimizer)
            self._require_same_environment()
            return self._accepted
        self._require_same_module()
        tensors = find_tensors(self._module, self._optimizer)
        self._require_own(tensors)
        return Accepted(self._module, self._optimizer, tensors, self._kept)

    def _issued_once(self, program: Program) -> _Issued:
        """Return the work of a program's operations, which is issued when it is asked for first."""
        assert isinstance(self.backend, TorchBackend | TorchGpuBackend)
        key = program, self.poison
        if key not in self._issued:
            events: list[tuple[Event, Event]] = []
            mapped: dict[int, tuple[int, int]] = {}

            executor = proxy(self)  # which its own work does not keep alive

            def map_for(i: int) -> None:
                mapped[i] = executor._map(program.plan.steps[i], events)

            with self.backend.keeping() as work:
                origin = hold(list(self._streams.values()), 0)
                for i, step in enumerate(program.plan.steps):
                    if step.maps:
                        assert isinstance(work, KeptLaunches)
                        work.calls.append(partial(map_for, i))
                    events.append(self._issue(program, i, events, 0))
                    work.end_operation()
            self._issued[key] = _Issued(work, origin, events, mapped)
        return self._issued[key]

    def _save(self, size: SettledStep, found: Accepted, inputs: tuple[Any, ...]) -> None:
        """Copy what the step finds to the host, and numbers of the host to where its operators have them."""
        homes = self._homes.get(size, self._numbers)
        copied = found.bytes
        if not (self._restore or self.poison or self.plan.pages):  # what is where it is expected stays there
            copied = {s: data for s, data in copied.items() if not _is_at(found, s, homes)}
        if copied:
            self._device.copy_all([self._values[s] for s in copied], [*copied.values()])
        away = [s for s in self._numbers if not _is_at(found, s, self._numbers)]
        if away:
            torch._foreach_copy_([self._numbers[s].bytes for s in away], [self._values[s] for s in away])
        for at, tensor in zip(size.inputs, inputs, strict=True):
            tensor_at(at, size.values[at.storage].untyped_storage()).copy_(tensor)

    def _load(self, size: SettledStep, found: Accepted) -> None:
        """Write what the step finds to the places where its operations expect it, if it is not there."""
        self.clear(self._programs[size])
        if size not in self._entries:
            self._entries[size] = [
                (s, load, self.address(load.place))
                for s, loads in size.loads.items()
                if s in size.values
                for load in loads
            ]
        lost = self.poison or self.plan.pages
        for s, load, address in self._entries[size]:
            if address - load.begin != found.addresses.get(s) or (lost and load.place.area != "resident"):
                self.backend.write(address, size.values[s][load.begin :][: load.bytes].numpy())

    def _set_back(self, size: SettledStep, tensors: Mapping[TensorName, Any]) -> None:
        """Give every tensor memory of its own with the values from before the step, or NaN, and close."""
        self._stop()  # nothing draws random numbers any more
        self._device.set_rng_state(size.recorded.moment.generator[0])
        values = {at.storage: self._values[at.storage] for at in self._kept.values()}
        if not self._restore:
            for tensor in values.values():
                tensor.fill_(0xFF)
        kept = {s: tensor.untyped_storage() for s, tensor in values.items()}
        if isinstance(self._device, Gpu):
            with suppress(RuntimeError, DeviceError):  # else they stay on the host
                kept = {s: self._own(s, tensor) for s, tensor in values.items()}
        self._point(tensors, kept)
        self._let_go()

    def _own(self, s: int, values: Any) -> Any:
        """Return memory of its own with these bytes, for a storage that outlives the step."""
        device = Processor() if self.record.storages[s].on_host else self._device
        return own_memory(len(values), device).copy_(values).untyped_storage()

    def _let_go(self) -> None:
        """Keep no memory any more, but that in which tensors of the user's still lie."""
        self._closed = True
        self._timed = self.timed
        self._accepted = None
        self._homes, self._issued = {}, {}

    def _point(self, tensors: Mapping[TensorName, Any], storages: Mapping[int, Any]) -> None:
        """Let tensors lie in these storages."""
        for name, at in self._kept.items():
            if name in tensors and at.storage in storages:
                storage = storages[at.storage]
                if tensors[name].untyped_storage().data_ptr() != storage.data_ptr():
                    tensors[name].data = tensor_at(at, storage)

    def _homes_of(self, size: SettledStep) -> Mapping[int, _Home]:
        """Return where a step of a size leaves what outlives it, by storage."""
        if size not in self._homes:
            lasting = {at.storage for at in self._kept.values()} & size.homes.keys()
            storages = {s: self._storage(size, s) for s in lasting}
            self._homes[size] = self._numbers | {
                s: _Home(storage, bytes_of(storage), storage.data_ptr()) for s, storage in storages.items()
            }
        return self._homes[size]

    def _storage(self, size: SettledStep, s: int) -> Any:
        """Return what lies where a step leaves a storage of the record; it keeps that memory alive."""
        assert isinstance(self.backend, TorchBackend | TorchGpuBackend)
        return self.backend.storage(self.address(size.homes[s]), size.record.storages[s].bytes)

    # --- refusals ---------------------------------------------------------------------------------

    def _require_same_module(self) -> None:
        """Refuse a module that cannot be recorded any more, or with parts in another mode, and other bits."""
        require_recordable(self._module, self._optimizer, ())
        self._require_same_environment()
        for name, part in self._module.named_modules():
            if part.training is not self.record.training.get(name, part.training):
                mode = "evaluation" if part.training else "training"
                raise PebblerError(
                    f"module '{name or type(part).__name__}' was in {mode} mode when planned; put it there, "
                    "or plan the step anew"
                )

    def _require_same_environment(self) -> None:
        """Refuse settings of torch with which bits are others."""
        now = self._device.environment()
        for key, value in self.record.environment.items():
            if now.get(key) != value:
                raise PebblerError(
                    f"torch has '{key}' {now.get(key)}, and had {value} when planned, which gives other "
                    "bits; set it back, or plan the step anew"
                )

    def _require_own(self, tensors: Mapping[TensorName, Any]) -> None:
        """Refuse a module or an optimizer whose tensors are not like the recorded ones."""
        others = {name for name in tensors if name.role != "state" or name in self._kept}  # other states rest
        for name in sorted(others ^ self._kept.keys(), key=str):
            if name in tensors:
                raise PebblerError(
                    f"{_named(name)} is none of those that were planned for; plan the step anew"
                )
            raise PebblerError(f"there is no {_named(name)}, which was planned for; plan the step anew")
        places: dict[int, int] = {}
        for name, at in self._kept.items():
            tensor = tensors[name]
            _require_like(name, at, tensor)
            if not self._takes(tensor):
                raise PebblerError(
                    f"{_named(name)} is on {tensor.device}, and the step was planned on {self._device.name}; "
                    "move it there, or to the CPU"
                )
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            if (
                storage.nbytes() != self.record.storages[at.storage].bytes
                or tensor.storage_offset() != at.offset
                or places.setdefault(at.storage, begin) != begin
            ):
                raise PebblerError(
                    f"{_named(name)} shares its memory with other tensors than when planned; plan anew"
                )
        groups = grouped_parameters(self._module, self._optimizer)
        if groups != self.record.groups:
            moved = [*map(frozenset.symmetric_difference, groups, self.record.groups), *groups]
            raise PebblerError(
                f"the optimizer has parameter '{min(next(filter(None, moved)))}' in another group than when "
                "planned; plan the step anew"
            )
        for name, tensor in tensors.items():
            if name.role != "parameter":
                continue
            if tensor.grad is not None:
                raise PebblerError(
                    f"{_named(name)} has a gradient; call optimizer.zero_grad() before the step"
                )
            if name.name in self.record.gradients and not tensor.requires_grad:
                raise PebblerError(f"{_named(name)} is not trained, and was when planned; plan the step anew")

    def _takes(self, tensor: Any) -> bool:
        """Whether the step reads a tensor where it is."""
        return str(tensor.device) in ("cpu", self._device.name)

    def _of_size(self, inputs: tuple[Any, ...]) -> SettledStep:
        """Return the planned step that takes inputs of these shapes, or refuse them."""
        sizes = [size for size in self._programs if len(size.inputs) == len(inputs)]
        if not sizes:
            counts = dict.fromkeys(str(len(size.inputs)) for size in self._programs)
            raise PebblerError(f"the step takes {' or '.join(counts)} inputs, and got {len(inputs)}")
        for number, tensor in enumerate(inputs):
            if not isinstance(tensor, torch.Tensor) or not self._takes(tensor):
                where = "" if self._device.name == "cpu" else f" or on {self._device.name}"
                raise PebblerError(f"input {number} is no tensor on the CPU{where}; give one")
            planned = {size: _kind(size.inputs[number]) for size in sizes}
            found = tensor.dtype, tuple(tensor.size())
            sizes = [size for size in sizes if planned[size] == found]
            if not sizes:
                raise PebblerError(_unlike(f"input {number}", found, planned.values()))
        return sizes[0]

    def _require_same_way(self, size: SettledStep, values: Mapping[Any, float]) -> None:
        """Refuse an optimizer with settings for which the step is another one."""
        now = fixed_settings(self._optimizer)
        for (group, key), value in size.record.settings.items():
            if now.get((group, key)) != value:
                raise PebblerError(
                    f"'{key}' of group {group} of the optimizer is {now.get((group, key))}, and was {value} "
                    "when planned; plan the step anew"
                )
        for guard in size.record.guards:
            if not guard.holds(values):
                names = " and ".join(sorted(map(str, inputs_of(guard.condition))))
                raise PebblerError(
                    f"with {names} as now, the optimizer takes another way than when planned; plan anew"
                )


def _is_at(found: Accepted, s: int, homes: Mapping[int, _Home]) -> bool:
    """Whether a storage of the record is found where there is a home for it."""
    return s in homes and found.addresses[s] == homes[s].address


def _require_one_memory(sizes: Sequence[PlannedStep]) -> None:
    """Refuse sizes that were planned for other memory than each other."""
    pools = {
        (one.instance.budget_bytes, one.instance.resident_bytes, one.schedule.page_bytes) for one in sizes
    }
    if len(pools) > 1:
        raise PebblerError("the sizes of the step were planned within other budgets; plan them together")


def _require_like(name: TensorName, at: Reference, tensor: Any) -> None:
    """Refuse a tensor of another shape, type or order."""
    if tensor.dtype is not at.dtype or tensor.size() != at.size:
        raise PebblerError(_unlike(_named(name), (tensor.dtype, tuple(tensor.size())), [_kind(at)]))
    if tensor.stride() != at.stride:
        raise PebblerError(
            f"{_named(name)} has strides {tensor.stride()}, and had {at.stride} when planned; plan anew"
        )


def _named(name: TensorName) -> str:
    return f"{name.role} '{' '.join(filter(None, (name.name, name.key)))}'"


def _kind(at: Reference) -> tuple[Any, tuple[int, ...]]:
    return at.dtype, at.size


def _unlike(
    what: str, found: tuple[Any, tuple[int, ...]], planned: Iterable[tuple[Any, tuple[int, ...]]]
) -> str:
    """Say that a tensor is of another type or shape than those that were planned."""
    shown = dict.fromkeys(_shown(*one) for one in planned)
    return f"{what} is {_shown(*found)}, and was {' or '.join(shown)} when planned; plan the step anew for it"


def _shown(dtype: Any, size: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {size}"
