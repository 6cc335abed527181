"""The storages that a step touches, while it is recorded: what they are, and which are alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.multiprocessing.reductions import StorageWeakRef

from ..torch_refusals import StepError
from .devices import Device
from .memory import bytes_of, key_of, reference_to
from .record import Reference, Role, StepStorage, TensorName
from .refusals import require_dense


class Storages:
    """Numbers storages as they turn up, and measures what is alive; it keeps none alive itself.

    Parameters
    ----------
    tensors
        What the step finds, by name; their storages come first.
    device
        Where the step computes.

    Attributes
    ----------
    entries
        As a `StepRecord` has them.
    owners
        Parameters by name, of the storages of parameters, their gradients and states.
    gradients
        Of the parameters by name, as `name_gradients` found them last.
    peak_bytes
        Most that was alive whenever `measure` was called.
    """

    def __init__(self, tensors: Mapping[TensorName, Any], device: Device) -> None:
        self._device = device.name
        self.entries: list[StepStorage] = []
        self.owners: dict[int, str] = {}
        self.gradients: dict[str, Reference] = {}
        self.peak_bytes = 0
        self._numbers: dict[int, int] = {}
        self._weak: list[StorageWeakRef] = []
        self._alive: dict[int, StorageWeakRef] = {}
        self._alive_bytes = 0  # with those in it that are not known to have ended
        self._counts: dict[int, tuple[TensorName, float]] = {}
        for name, tensor in tensors.items():
            self._take_up(name, tensor)

    def find(self, tensor: Any, role: Role) -> int:
        """Return the number of a tensor's storage, and make it one of that role if it is not known.

        Raises
        ------
        StepError
            When the tensor is not dense or on another device, or its storage has changed its size. A single
            number may be on the host.
        """
        require_dense(tensor, self._device)
        key, storage = key_of(tensor), tensor.untyped_storage()
        if key not in self._numbers:
            d = self._numbers[key] = len(self.entries)
            # A weak reference keeps the storage's key from being given to another one, not its memory.
            self._weak.append(StorageWeakRef(storage))
            self._alive[d] = self._weak[-1]
            self._alive_bytes += storage.nbytes()
            values = bytes_of(storage).to("cpu", copy=True) if role == "constant" else None
            on_host = str(tensor.device) != self._device
            self.entries.append(StepStorage(f"{role} {d}", storage.nbytes(), role, on_host, values))
        d = self._numbers[key]
        if storage.nbytes() != self.entries[d].bytes:
            raise StepError("it changes the size of a tensor's memory; make a new tensor")
        return d

    def reference(self, tensor: Any, role: Role = "constant") -> Reference:
        """Return the reference to a tensor, whose storage is of that role if it is not known."""
        return reference_to(tensor, self.find(tensor, role))

    def call(self, d: int, name: str, role: Role) -> None:
        """Give a storage a name and a role."""
        self.entries[d] = replace(self.entries[d], name=name, role=role)

    def name_gradients(self, module: Any) -> None:
        """Name the storages of the gradients that a module's parameters have now."""
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                d = self.find(parameter.grad, "gradient")
                self.gradients[name] = reference_to(parameter.grad, d)
                if d not in self.owners:
                    self.call(d, f"dW({name})", "gradient")
                    self.owners[d] = name

    def count_in(self, tensor: Any) -> tuple[TensorName, float] | None:
        """Return the name and the value at the step's begin of a number in the optimizer's state."""
        d = self._numbers.get(key_of(tensor))
        return None if d is None else self._counts.get(d)

    def are_on_host(self, numbers: set[int]) -> bool:
        """Whether all these storages are numbers of a state on the host, or constants as small."""
        entries = [self.entries[d] for d in numbers]
        return any(entry.on_host and entry.role == "state" for entry in entries) and all(
            entry.on_host or (entry.role == "constant" and entry.bytes <= 8) for entry in entries
        )

    def include_constant(self, numbers: set[int]) -> bool:
        """Whether one of these storages is a constant, whose values every step must find as they are."""
        return any(self.entries[d].role == "constant" for d in numbers)

    def measure(self) -> None:
        """Add up what is alive, if it may be more than ever before."""
        if self._alive_bytes > self.peak_bytes:
            self._alive = {d: storage for d, storage in self._alive.items() if not storage.expired()}
            self._alive_bytes = sum(self.entries[d].bytes for d in self._alive)
            self.peak_bytes = max(self.peak_bytes, self._alive_bytes)

    def _take_up(self, name: TensorName, tensor: Any) -> None:
        known = key_of(tensor) in self._numbers
        d = self.find(tensor, name.role)
        if known:
            return
        on_host = name.role == "state" and tensor.dim() == 0 and tensor.device.type == "cpu"
        self.entries[d] = replace(self.entries[d], name=str(name), on_host=on_host)
        if on_host:
            self._counts[d] = name, float(tensor)
        if name.role in ("parameter", "state"):
            self.owners[d] = name.name
