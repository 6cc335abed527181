"""Which module of a user's model an operator belongs to, in the forward and in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

OUTSIDE = "step", "function"
"""Label of what belongs to no module."""


class ModuleLabels:
    """The module whose forward pass is running, and those that autograd's nodes were made in.

    An operator of the forward pass runs right after its autograd node was made; the node's number tells
    later which module its backward pass belongs to.
    """

    def __init__(self) -> None:
        self._modules: list[tuple[str, str]] = [OUTSIDE]
        self._origins: dict[int, tuple[str, str]] = {}

    @property
    def outside(self) -> bool:
        """Whether no module's forward pass is running."""
        return len(self._modules) == 1

    @contextmanager
    def watching(self, module: Any) -> Iterator[None]:
        """Keep track of the module whose forward pass is running."""
        hooks = []
        for name, part in module.named_modules():
            label = name or type(part).__name__, type(part).__name__

            def enter(*_: Any, label: tuple[str, str] = label) -> None:
                self._modules.append(label)

            def leave(*_: Any) -> None:
                self._modules.pop()

            hooks.append(part.register_forward_pre_hook(enter))
            hooks.append(part.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def current(self) -> tuple[str, str]:
        """Return the module, and its class, that what runs now belongs to; to be asked once an operator."""
        node = torch._C._current_autograd_node()
        if node is not None and self.outside:
            return self._origins.get(node._sequence_nr(), self._modules[0])
        self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, self._modules[-1])
        return self._modules[-1]
