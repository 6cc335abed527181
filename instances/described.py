"""What an instance's ``meta`` says of it: the layers that its tasks belong to, and labels to print.

All else under ``meta`` is the user's. A label that is of another type than it should be counts as absent.
"""

from __future__ import annotations

import msgspec

from .errors import FormatError
from .figures import Natural, is_natural, is_text
from .instance import Instance


class Layer(msgspec.Struct, frozen=True):
    """An entry of ``meta.layers``: a layer with its tasks in either pass."""

    name: str
    kind: str
    forward: tuple[Natural, ...]
    backward: tuple[Natural, ...]


def layers(instance: Instance) -> tuple[Layer, ...]:
    """Return the layers that an instance names in ``meta.layers``, in forward order; none without it.

    Raises
    ------
    FormatError
        When that is not a list of layers whose tasks exist.
    """
    try:
        found = msgspec.convert(instance.meta.get("layers", ()), tuple[Layer, ...])
    except msgspec.ValidationError as error:
        raise FormatError(f"{instance.name}: meta.layers is not a list of layers: {error}") from None
    for layer in found:
        for k in (*layer.forward, *layer.backward):
            if k >= len(instance.tasks):
                raise FormatError(f"{instance.name}: meta.layers: layer '{layer.name}' names no task {k}")
    return found


def text_label(instance: Instance, key: str) -> str | None:
    """Return a label of ``meta`` that is one line of text, such as the network; None without it."""
    value = instance.meta.get(key)
    return value if is_text(value) else None


def count_label(instance: Instance, key: str) -> int | None:
    """Return a label of ``meta`` that is a whole number, such as the batch; None without it."""
    value = instance.meta.get(key)
    return value if is_natural(value) else None
