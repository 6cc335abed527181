"""What an entry of the zoo is: a definition with parameters that a specification may set."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import PebblerError

Parser = Callable[[str, str, str], Any]
"""Reads the text of a parameter: specification (for errors), key, text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A network of the zoo, or a family of them.

    Attributes
    ----------
    define
        Adds the layers to a builder; takes the parameters as keywords.
    batch
        Default batch size.
    source
        Where the definition comes from.
    parameters
        Parameters that a specification may set; the others have the defaults of `define`.
    required
        Parameters without a default: the entry is a family, not a network.
    """

    define: Callable[..., None]
    batch: int
    source: str
    parameters: Mapping[str, Parser] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def read(self, spec: str, text: str) -> dict[str, Any]:
        """Read the parameters of a specification, ``key=value,key=value``.

        Raises
        ------
        PebblerError
            When one is unknown, missing, given twice or wrong.
        """
        given: dict[str, str] = {}
        for item in text.split(",") if text else ():
            key, equals, value = item.partition("=")
            if not equals or key in given:
                raise PebblerError(
                    f"network '{spec}': '{item}' is wrong; write every parameter once, as key=value"
                )
            given[key] = value
        if unknown := sorted(set(given) - set(self.parameters)):
            known = f"it takes {', '.join(self.parameters)}" if self.parameters else "it takes none"
            raise PebblerError(f"network '{spec}': there is no parameter '{unknown[0]}'; {known}")
        given = dict.fromkeys(self.required, "") | given
        return {key: self.parameters[key](spec, key, value) for key, value in given.items()}


def counts(length: int) -> Parser:
    """Parser of `length` positive numbers with hyphens between them."""

    def parse(spec: str, key: str, text: str) -> tuple[int, ...]:
        if not re.fullmatch(rf"[1-9]\d{{0,3}}(-[1-9]\d{{0,3}}){{{length - 1}}}", text):
            example = f"{key}={'-'.join('2' * length)}"
            raise PebblerError(
                f"network '{spec}': '{key}' is '{text}'; give {length} numbers of 1 to 9999 as {example}"
            )
        return tuple(map(int, text.split("-")))

    return parse


def number(spec: str, key: str, text: str) -> int:
    """Read a number of 1 to 999999."""
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise PebblerError(f"network '{spec}': '{key}' is '{text}'; give a number of 1 to 999999")
    return int(text)


def flag(spec: str, key: str, text: str) -> bool:
    """Read 0 or 1."""
    if text not in ("0", "1"):
        raise PebblerError(f"network '{spec}': '{key}' is '{text}'; write 0 or 1")
    return text == "1"
