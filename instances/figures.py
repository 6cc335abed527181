"""Types of what files hold: whole numbers that every language reads exactly, and printable text.

msgspec looks at types when it reads a file, and not when a program makes an object. `require_types` does it
there, in the reader's words. It is slow, so that the classes look at their usual cases by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated

import msgspec

from .errors import FormatError
from .units import LARGEST

MOST_CHARACTERS = 500
"""So many does a text have at most: a name, a method, a network."""

MILLION = 1_000_000
"""All of something, in millionths."""

_MOST_QUOTED = 240

Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
Millionths = Annotated[int, msgspec.Meta(ge=0, le=MILLION)]
Text = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=MOST_CHARACTERS,
        extra_json_schema={"pattern": r"^[^\u0000-\u001f\u007f-\u00a0\u2028\u2029\ud800-\udfff]+$"},
    ),
]
"""One printable line, as `str.isprintable` has it: no control characters, no other spaces than the usual."""


def is_natural(value: object) -> bool:
    """Whether a value is a whole number from 0 on that a file may hold."""
    return type(value) is int and 0 <= value <= LARGEST


def is_positive(value: object) -> bool:
    """Whether a value is a whole number from 1 on that a file may hold."""
    return type(value) is int and 0 < value <= LARGEST


def is_millionths(value: object) -> bool:
    """Whether a value is a whole number of millionths of something, from none to all of it."""
    return type(value) is int and 0 <= value <= MILLION


def is_text(value: object) -> bool:
    """Whether a value is one printable line."""
    return type(value) is str and 0 < len(value) <= MOST_CHARACTERS and value.isprintable()


def are_pairs(value: object) -> bool:
    """Whether a value is a tuple of pairs of whole numbers from 0 on."""
    return type(value) is tuple and all(type(o) is tuple and len(o) == 2 and are_naturals(o) for o in value)


def are_optional(*values: object) -> bool:
    """Whether all values are None, or whole numbers from 0 on that a file may hold."""
    for value in values:
        if value is not None and (type(value) is not int or not 0 <= value <= LARGEST):
            return False
    return True


def are_naturals(values: object) -> bool:
    """Whether a value is a tuple of whole numbers from 0 on that a file may hold."""
    if type(values) is not tuple:
        return False
    for value in values:  # noqa: SIM110 - a generator takes twice the time
        if type(value) is not int or not 0 <= value <= LARGEST:
            return False
    return True


def is_one_of(value: object, words: tuple[str, ...]) -> bool:
    """Whether a value is one of some words."""
    return type(value) is str and value in words


def are_all(values: object, kind: type) -> bool:
    """Whether a value is a tuple of objects of one class."""
    if type(values) is not tuple:
        return False
    for value in values:  # noqa: SIM110 - a generator takes twice the time
        if type(value) is not kind:
            return False
    return True


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a class of documents; msgspec reads their types from text at every call."""
    return msgspec.structs.fields(kind)


def require_types(document: msgspec.Struct) -> None:
    """Refuse an object with a value that no file may hold; a list in place of a tuple becomes one.

    Raises
    ------
    FormatError
        With the key and what it should hold.
    """
    where = _where(document)
    for field in fields_of(type(document)):
        value = getattr(document, field.name)
        if value is msgspec.UNSET and field.default is msgspec.UNSET:
            continue
        try:
            found = msgspec.convert(value, field.type)
        except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
            raise FormatError(f"{where}, '{field.encode_name}': {sentence_of(error)}") from None
        if type(found) is str and not is_text(found):
            raise FormatError(f"{where}, '{field.encode_name}': {shown(found)} is no line of printable text")
        if found is not value:
            msgspec.structs.force_setattr(document, field.name, found)


def sentence_of(error: Exception) -> str:
    """Return what an error of msgspec says, on one line and not too long; it may quote what it found."""
    text = str(error)
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    if len(line) > _MOST_QUOTED:
        line = f"{line[: _MOST_QUOTED // 2]} ... {line[-_MOST_QUOTED // 2 :]}"
    return line if line[:2].isupper() else line[:1].lower() + line[1:]  # JSON stays as it is


def text_of(text: str) -> str:
    """Return a text of somebody else's as one printable line: escaped, and cut where it is long."""
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return line[: MOST_CHARACTERS - 20] or "?"


def distinct(texts: Iterable[str]) -> list[str]:
    """Return somebody else's names as names of blocks or tasks: printable lines, no two the same."""
    taken: set[str] = set()
    names = []
    for text in texts:
        name = line = text_of(text)
        count = 1
        while name in taken:
            count += 1
            name = f"{line}#{count}"
        taken.add(name)
        names.append(name)
    return names


def shown(text: str) -> str:
    """Return a text so that it fits a sentence: on one line, escaped, cut where it is long."""
    written = ascii(text) if not text.isprintable() else repr(text)
    return written if len(written) <= 60 else f"{written[:57]}..."


def _where(document: msgspec.Struct) -> str:
    kind = type(document).__name__.lower()
    name = getattr(document, "name", None)
    return f"{kind} {shown(name)}" if type(name) is str else kind


def require_names(key: str, names: list[str]) -> None:
    """Refuse names of which two are the same.

    Raises
    ------
    FormatError
        With the name, and the places of both in the list.
    """
    if len(set(names)) == len(names):
        return
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if first.setdefault(name, i) != i:
            raise FormatError(
                f"{key}[{i}] has the name {shown(name)} of {key}[{first[name]}]; give each its own"
            )
