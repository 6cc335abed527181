"""The zoo: networks by name, or by a specification with parameters such as ``vgg:groups=2-2-3-3-3``."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache

from ..arguments import require_kind
from ..errors import PebblerError
from .builder import NetworkBuilder
from .classic import CLASSIC
from .dense import DENSE
from .entry import Entry
from .maps import MAPS
from .mixture import MIXTURE
from .network import Network
from .residual import RESIDUAL
from .sequence import SEQUENCE

UNAVAILABLE = {
    "lstm_cnn": "Layrub (TACO 2018) trains it with a batch of 384 and 16 frames, but no public definition "
    "of it was found",
}
"""Networks of the papers that are missing, and why."""

_OURS = {**CLASSIC, **RESIDUAL, **DENSE, **MAPS, **SEQUENCE, **MIXTURE}
ENTRIES = dict(_OURS)
"""The networks by name, with those that users have registered."""


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
    require_kind("a network", spec, str, "give its name, such as 'vgg16'")
    return _found(spec)


@lru_cache(maxsize=64)
def _found(spec: str) -> Network:
    name, _, rest = spec.partition(":")
    if name in UNAVAILABLE:
        raise PebblerError(f"network '{name}' is not available: {UNAVAILABLE[name]}")
    if name not in ENTRIES:
        known = {_plain(entry): entry for entry in ENTRIES}
        close = [known[match] for match in difflib.get_close_matches(_plain(name), known, n=3)]
        hint = f"close names: {', '.join(close)}" if close else f"there are {', '.join(ENTRIES)}"
        raise PebblerError(f"there is no network '{name}'; {hint}")
    entry = ENTRIES[name]
    builder = NetworkBuilder(spec)
    try:
        parameters = entry.read(spec, rest)
    except PebblerError as error:
        if rest or not entry.required:
            raise
        members = [member for member in list_networks() if member.startswith(name)][:6]
        told = f", or did you mean {', '.join(members)}?" if members else ""
        raise PebblerError(f"{error}{told}") from None
    entry.define(builder, **parameters)
    return builder.finish(batch=entry.batch, source=entry.source)


def _plain(name: str) -> str:
    """A name without what is easily written otherwise."""
    return "".join(filter(str.isalnum, name.lower()))


def register_network(name: str, entry: Entry) -> None:
    """Enter a network, or a family, under a name: `find_network`, and whatever takes a name, finds it.

    Registering again replaces it, as a notebook does.

    Raises
    ------
    PebblerError
        When the name is one of ours, or could not be written in a specification.
    """
    if name in _OURS or name in UNAVAILABLE:
        raise PebblerError(f"network '{name}' is there already; choose another name")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise PebblerError(f"network '{name}': write its name with letters, digits, '_', '.' and '-' alone")
    ENTRIES[name] = entry
    _found.cache_clear()


def list_networks() -> tuple[str, ...]:
    """Names of all networks; families, which need parameters, are left out."""
    return tuple(name for name, entry in ENTRIES.items() if not entry.required)


def list_parameters(name: str) -> tuple[str, ...]:
    """Parameters that the specification of a network or a family may set."""
    return tuple(ENTRIES[name].parameters)
