"""The zoo: networks by name, or by a specification with parameters such as ``vgg:groups=2-2-3-3-3``."""

from __future__ import annotations

import difflib
from functools import lru_cache

from .errors import PebblerError
from .network import Network, NetworkBuilder
from .zoo_classic import CLASSIC
from .zoo_maps import MAPS
from .zoo_residual import RESIDUAL
from .zoo_sequence import SEQUENCE

UNAVAILABLE = {
    "lstm_cnn": "Layrub (TACO 2018) trains it with a batch of 384 and 16 frames, but no public definition "
    "of it was found",
}
"""Networks of the papers that are missing, and why."""

_ENTRIES = {**CLASSIC, **RESIDUAL, **MAPS, **SEQUENCE}


@lru_cache(maxsize=64)
def find_network(spec: str) -> Network:
    """Return the network that a specification names.

    Parameters
    ----------
    spec
        A name of `list_networks`, or a name and parameters: ``vgg16:size=288``, ``gpt2:tokens=512``,
        ``vgg:groups=2-24-64-4-4`` (convolutions in each group), ``resnet:blocks=3-83-416-3`` (bottleneck
        blocks in each stage), ``resnet:blocks=2-2-2-2,basic=1`` (blocks of two 3x3 convolutions).

    Raises
    ------
    PebblerError
        When there is no such network, with close names, or when a parameter is wrong.
    """
    name, _, rest = spec.partition(":")
    if name in UNAVAILABLE:
        raise PebblerError(f"network '{name}' is not available: {UNAVAILABLE[name]}")
    if name not in _ENTRIES:
        close = difflib.get_close_matches(name, _ENTRIES, n=3)
        hint = f"close names: {', '.join(close)}" if close else f"there are {', '.join(_ENTRIES)}"
        raise PebblerError(f"there is no network '{name}'; {hint}")
    entry = _ENTRIES[name]
    builder = NetworkBuilder(spec)
    entry.define(builder, **entry.read(spec, rest))
    return builder.finish(batch=entry.batch, source=entry.source)


def list_networks() -> tuple[str, ...]:
    """Names of all networks; families, which need parameters, are left out."""
    return tuple(name for name, entry in _ENTRIES.items() if not entry.required)


def list_parameters(name: str) -> tuple[str, ...]:
    """Parameters that the specification of a network or a family may set."""
    return tuple(_ENTRIES[name].parameters)
