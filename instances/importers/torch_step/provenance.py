"""Where numbers in the arguments of operators come from: traced from the optimizer through Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...errors import PebblerError
from .refusals import require_plain_call
from .scalars import Expression, Guard, ScalarInput, Traced


class PythonCalls(TorchFunctionMode):
    """Sees every call of torch from Python, and knows which of its numbers are traced.

    Parameters
    ----------
    read
        Called for ``tensor.item()``; returns the value, traced, or None where it has no name.
    backward
        Called with the loss when its backward pass begins and, without, when it has ended.
    """

    def __init__(self, read: Callable[[Any], Traced | None], backward: Callable[[Any], None]) -> None:
        super().__init__()
        self._read = read
        self._backward = backward
        self._named: dict[str, Traced] = {}
        self._traced: list[Traced] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch."""
        kwargs = kwargs or {}
        if func is torch.Tensor.item and (value := self._read(args[0])) is not None:
            return value
        require_plain_call(func)
        if func is torch.Tensor.backward:
            self._backward(args[0])
            try:
                return func(*args, **kwargs)
            finally:
                self._backward(None)
        self._named = {name: value for name, value in kwargs.items() if isinstance(value, Traced)}
        self._traced = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Traced)]
        try:
            return func(*args, **kwargs)
        finally:
            self._named, self._traced = {}, []

    def expression(self, name: str, value: float) -> Expression:
        """Return what an argument of an operator was computed from, else its value.

        It is the number of the same value in the call from Python, if possible that of the same name.
        """
        named = self._named.get(name)
        for traced in self._traced if named is None else [named, *self._traced]:
            if float.__eq__(traced, value):
                return traced.expression
        return value


@contextmanager
def traced_groups(optimizer: Any, guards: dict[Guard, None], scale: float) -> Iterator[None]:
    """Put traced numbers into an optimizer's groups, each times `scale`, and take them out again.

    Raises
    ------
    PebblerError
        When what ran meanwhile has put others there.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    before = [dict(group) for group in groups]
    for number, group in enumerate(groups):
        for key, value in group.items():
            if type(value) is float:
                group[key] = Traced(value * scale, ScalarInput(number, key), guards)
            elif type(value) in (tuple, list) and value and all(type(one) is float for one in value):
                group[key] = type(value)(
                    Traced(one * scale, ScalarInput(number, key, index), guards)
                    for index, one in enumerate(value)
                )
    traced = [dict(group) for group in groups]
    try:
        yield
        for number, (group, entries) in enumerate(zip(groups, traced, strict=True)):
            for key, value in entries.items():
                if group[key] is not value:
                    raise PebblerError(
                        f"the step changes '{key}' of group {number} of the optimizer; do it behind the "
                        "step, as a scheduler does"
                    )
    finally:
        for group, entries in zip(groups, before, strict=True):
            group.update(entries)


def fixed_settings(optimizer: Any) -> dict[tuple[int, str], Any]:
    """Return the entries of an optimizer's groups that are not traced."""

    def is_traced(value: Any) -> bool:
        several = value if type(value) in (tuple, list) and value else (value,)
        return all(type(one) is float for one in several)

    return {
        (number, key): value
        for number, group in enumerate([] if optimizer is None else optimizer.param_groups)
        for key, value in group.items()
        if key != "params" and not is_traced(value)
    }
