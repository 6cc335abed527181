"""A module and an optimizer as a step has accepted and left them, and whether they are still so.

To look at every tensor and module by name takes some milliseconds with hundreds of them. Between two steps
mostly nothing changes but values and learning rates, and that is seen faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

import torch

from ....instances.importers.torch_step.memory import bytes_of
from ....instances.importers.torch_step.persistent import trained_parameters
from ....instances.importers.torch_step.record import Reference, TensorName

_OWNED = attrgetter("_modules", "_parameters", "_buffers")
_HOOKS = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODE = attrgetter("__class__", "training", "_compiled_call_impl")
_KIND = attrgetter("__class__", "dtype", "shape", "requires_grad")
_TENSOR_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
_GRADIENT = attrgetter("grad")
_IDENTITY = attrgetter("_cdata")


class Accepted:
    """What was found of a module and an optimizer, all of which was as it has to be.

    Parameters
    ----------
    module, optimizer
        The optimizer may be None.
    tensors
        Their parameters, buffers and states by name.
    kept
        What outlives a step, by name.

    Attributes
    ----------
    trained
        Parameters of the optimizer, by name.
    bytes
        Every storage of `kept` as a tensor of bytes, by its index in the record.
    addresses
        Where they begin.

    Raises
    ------
    PebblerError
        When the optimizer has a parameter that the module has not.
    """

    def __init__(
        self,
        module: Any,
        optimizer: Any,
        tensors: Mapping[TensorName, Any],
        kept: Mapping[TensorName, Reference],
    ) -> None:
        self.tensors = tensors
        self.trained = trained_parameters(module, optimizer)
        storages = {at.storage: tensors[name].untyped_storage() for name, at in kept.items()}
        self.bytes = {s: bytes_of(storage) for s, storage in storages.items()}
        self.addresses = {s: storage.data_ptr() for s, storage in storages.items()}
        self._optimizer = optimizer
        self._parts = [part for _, part in module.named_modules()]
        self._all = [*tensors.values()]
        self._leaves = [tensor for name, tensor in tensors.items() if name.role == "parameter"]
        self._alive = [tensor.untyped_storage() for tensor in self._all], _values_of(self._owned())
        self._seen = self._look()

    def holds(self) -> bool:
        """Return whether everything is still so; values in tensors and numbers of groups may be others.

        It covers the names and the kinds of all modules and tensors, where tensors lie, hooks, gradients, and
        the groups and states of the optimizer. Hooks for all modules, those of the optimizer, and other
        entries of its groups are none of it.
        """
        return self._look() == self._seen

    def _look(self) -> tuple[Any, ...]:
        """Return what has to stay; objects, which live as long as this, stand there by their addresses."""
        owned, tensors, groups = self._owned(), self._all, _groups_of(self._optimizer)
        return (
            [*map(_MODE, self._parts)],
            [*map(tuple, owned)],
            [*map(id, _values_of(owned))],
            [[*map(id, group)] for group in groups],
            any(chain.from_iterable(map(_HOOKS, self._parts))),
            any(chain.from_iterable(map(_TENSOR_HOOKS, tensors))),
            any(gradient is not None for gradient in map(_GRADIENT, self._leaves)),
            [*map(_KIND, tensors)],
            [*map(torch.Tensor.stride, tensors)],
            [*map(torch.Tensor.data_ptr, tensors)],
            [*map(_IDENTITY, map(torch.Tensor.untyped_storage, tensors))],
        )

    def _owned(self) -> list[dict[str, Any]]:
        """Return all dictionaries in which modules, tensors and states are."""
        states = () if self._optimizer is None else map(self._optimizer.state.get, self.trained.values())
        return [*chain.from_iterable(map(_OWNED, self._parts)), *(state or {} for state in states)]


def _values_of(owned: list[dict[str, Any]]) -> list[Any]:
    return [value for one in owned for value in one.values()]


def _groups_of(optimizer: Any) -> list[list[Any]]:
    return [] if optimizer is None else [group["params"] for group in optimizer.param_groups]
