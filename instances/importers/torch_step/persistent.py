"""What outlives a step: parameters, buffers and states of the optimizer, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch

from ...errors import PebblerError
from .devices import Device
from .memory import bytes_of, key_of
from .record import TensorName
from .scalars import ScalarInput

_KNOWN = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.RAdam,
)
"""Optimizers that make their states by a function of their own, the same as in their first step."""


def find_tensors(module: Any, optimizer: Any) -> dict[TensorName, Any]:
    """Return the tensors of a module and its optimizer (None: no optimizer) by name.

    Raises
    ------
    PebblerError
        When the optimizer has a parameter that the module has not.
    """
    found = {TensorName("parameter", name): tensor for name, tensor in module.named_parameters()}
    found |= {TensorName("buffer", name): tensor for name, tensor in module.named_buffers()}
    for name, parameter in trained_parameters(module, optimizer).items():
        for key, value in (optimizer.state.get(parameter) or {}).items():
            if isinstance(value, torch.Tensor):
                found[TensorName("state", name, key)] = value
    return found


def trained_parameters(module: Any, optimizer: Any) -> dict[str, Any]:
    """Return the parameters of an optimizer by the names that the module has for them.

    Raises
    ------
    PebblerError
        When the optimizer has a parameter that the module has not.
    """
    if optimizer is None:
        return {}
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    trained = {}
    for group, entry in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(entry["params"]):
            if id(parameter) not in names:
                raise PebblerError(
                    f"parameter {position} in group {group} of the optimizer is none of the module's; "
                    "make_step returns the module that has all parameters which are trained"
                )
            trained[names[id(parameter)]] = parameter
    return trained


def grouped_parameters(module: Any, optimizer: Any) -> tuple[frozenset[str], ...]:
    """Return the parameters of each of an optimizer's groups by the names that the module has for them."""
    names = {id(parameter): name for name, parameter in trained_parameters(module, optimizer).items()}
    groups = [] if optimizer is None else optimizer.param_groups
    return tuple(frozenset(names[id(parameter)] for parameter in group["params"]) for group in groups)


def read_scalars(
    optimizer: Any, parameters: Mapping[str, Any], scalars: tuple[ScalarInput, ...]
) -> dict[ScalarInput, float]:
    """Return the values that the inputs of a record have now, when a step begins.

    Parameters
    ----------
    optimizer, parameters
        The optimizer (None: there is none), and its parameters by name.
    scalars
        The inputs.
    """

    def value(scalar: ScalarInput) -> float:
        if isinstance(scalar.owner, int):
            entry = optimizer.param_groups[scalar.owner][scalar.key]
            return float(entry if scalar.index is None else entry[scalar.index])
        return float(optimizer.state[parameters[scalar.owner]][scalar.key])

    return {scalar: value(scalar) for scalar in scalars}


def create_states(module: Any, optimizer: Any) -> tuple[TensorName, ...]:
    """Make the states that an optimizer would make in its first step, and return their names.

    Those of Adam's kind make them by their own function, with the same values. SGD's momentum is 0, from
    which its first step makes the gradient, as it does from none; a zero may have the other sign. Those of
    other optimizers are not known.

    Raises
    ------
    PebblerError
        When SGD has dampening, with which a first step is another one.
    """
    before = set(find_tensors(module, optimizer))
    for group in optimizer.param_groups if optimizer is not None else ():
        if type(optimizer) in _KNOWN:
            missing = [p for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
            _create_moments(optimizer, group, missing)
        elif type(optimizer) is torch.optim.SGD:
            _create_momentum(optimizer, group)
    return tuple(name for name in find_tensors(module, optimizer) if name not in before)


def _create_moments(optimizer: Any, group: dict[str, Any], parameters: list[Any]) -> None:
    """Call what an optimizer makes its states with, for parameters that have no states, on gradients of 0."""
    lists = len(signature(optimizer._init_group).parameters) - 1
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand_as(parameter)
    try:
        optimizer._init_group({**group, "params": parameters}, *([] for _ in range(lists)))
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _create_momentum(optimizer: Any, group: dict[str, Any]) -> None:
    for parameter in group["params"]:
        state = optimizer.state.get(parameter) or {}
        if group["momentum"] and parameter.requires_grad and state.get("momentum_buffer") is None:
            if group["dampening"]:
                raise PebblerError(
                    "SGD with dampening takes its first step without it; take one step before you return the "
                    "optimizer"
                )
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def drop_states(module: Any, optimizer: Any, names: tuple[TensorName, ...]) -> None:
    """Take states away that were made for a record."""
    parameters = trained_parameters(module, optimizer)
    for name in names:
        state = optimizer.state[parameters[name.name]]
        del state[name.key]
        if not state:
            del optimizer.state[parameters[name.name]]


@contextmanager
def kept_as_they_are(module: Any, optimizer: Any, device: Device) -> Iterator[None]:
    """Put tensors, gradients, the optimizer's states and groups and the generator back as they were.

    Copies are on the host, whatever the device is.
    """
    tensors = find_tensors(module, optimizer)
    storages = {key_of(tensor): tensor.untyped_storage() for tensor in tensors.values()}
    copies = {key: bytes_of(storage).to("cpu", copy=True) for key, storage in storages.items()}
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    groups = [dict(group) for group in optimizer.param_groups] if optimizer is not None else []
    states = {} if optimizer is None else {p: (state, dict(state)) for p, state in optimizer.state.items()}
    generator = device.rng_state()
    try:
        yield
    finally:
        if optimizer is not None:
            optimizer.state.clear()
        for parameter, (state, entries) in states.items():
            state.clear()
            state.update(entries)
            optimizer.state[parameter] = state
        for key, storage in storages.items():
            bytes_of(storage).copy_(copies[key])
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for number, group in enumerate(groups):
            optimizer.param_groups[number].update(group)
        device.set_rng_state(generator)
