"""The transforms that an instance has been through: the optional key ``transforms`` of an instance file."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from .errors import FormatError, PebblerError
from .figures import Positive, Text, is_one_of, is_positive, is_text, require_types
from .units import PAGE_BYTES, format_size, parse_size

TransformKind = Literal[
    "engines", "inputs-on-clock", "link", "mask", "pages", "parts", "recompute", "streams"
]
"""Name of a transform."""

_KINDS = get_args(TransformKind)
"""All names of transforms."""

_SIZED = ("pages", "parts")
"""Transforms that may have a number of bytes."""

_VALUED = ("engines", "link", "streams")
"""Transforms that have a value."""


class Transform(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A transform that an instance has been through.

    Attributes
    ----------
    kind
        Name of the transform (see `instances.transforms`).
    value
        Argument of ``engines``, ``link`` and ``streams``; else None.
    bytes
        For ``pages``, the bytes of a page, a multiple of 2 MiB. For ``parts`` with one size for all tensors,
        the greatest bytes of a part. Else None.

    Raises
    ------
    FormatError
        When a rule of the format is broken.
    """

    kind: TransformKind
    value: Text | None = None
    bytes: Positive | None = None

    def __post_init__(self) -> None:
        if not (
            is_one_of(self.kind, _KINDS)
            and (self.value is None or is_text(self.value))
            and (self.bytes is None or is_positive(self.bytes))
        ):
            require_types(self)
        if (self.value is not None) != (self.kind in _VALUED):
            raise FormatError(
                f"transform '{self.kind}': {', '.join(_VALUED)} have 'value', and no other has it"
            )
        if (self.bytes is not None and self.kind not in _SIZED) or (self.kind == "pages" and not self.bytes):
            raise FormatError(f"transform '{self.kind}': pages have 'bytes', parts may, and no other has it")
        if self.kind == "pages" and self.bytes is not None and (wrong := unmappable(self.bytes)):
            raise FormatError(f"transform 'pages': {wrong}")

    @property
    def word(self) -> str:
        """The transform in a word, such as ``link=25GB``."""
        if self.kind == "pages":
            return f"pages={self.bytes}"
        shown = self.value if self.bytes is None else format_size(self.bytes).replace(" ", "")
        return self.kind if shown is None else f"{self.kind}={shown}"


def unmappable(page_bytes: int) -> str | None:
    """Return why no schedule can have pages of so many bytes; None if one can."""
    if not page_bytes % PAGE_BYTES:
        return None
    return f"pages of {page_bytes} bytes cannot be mapped; give {PAGE_BYTES} or a multiple of it"


def transforms_of_words(words: Any) -> tuple[Transform, ...]:
    """Return the transforms that a file of an earlier version lists as words under ``meta.transforms``.

    Raises
    ------
    FormatError
        When this is not a list of such words.
    """
    if not isinstance(words, list | tuple):
        raise FormatError(f"meta.transforms is of type {type(words).__name__}, not a list of transforms")
    return tuple(_transform_of_word(word) for word in words)


def _transform_of_word(word: object) -> Transform:
    kind, _, value = word.partition("=") if isinstance(word, str) else ("", "", "")
    try:
        if kind == "pages":
            return msgspec.convert({"kind": kind, "bytes": int(value)}, Transform)
        if kind == "parts" and value:
            return msgspec.convert({"kind": kind, "bytes": parse_size(value)}, Transform)
        return msgspec.convert({"kind": kind, "value": value or None}, Transform)
    except (msgspec.ValidationError, PebblerError, ValueError):
        raise FormatError(
            f"meta.transforms: {ascii(word)[:60]} is no transform; there are {', '.join(_KINDS)}"
        ) from None
