"""Buffers with fixed lifetimes, and their file: the CSV of MiniMalloc (Moffitt, ASPLOS 2023)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from .errors import FormatError
from .files import read_bytes, write_atomically
from .units import LARGEST

_REQUIRED = ("id", "lower", "upper", "size")
_KNOWN = (*_REQUIRED, "alignment", "offset")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are needed from one instant up to another, and not at the other.

    Attributes
    ----------
    id
        Name, unique in its file.
    lower, upper
        Lifetime [lower, upper) in any unit of time; whole numbers, lower < upper.
    size
        Bytes, at least 1.
    alignment
        The offset is a multiple of this many bytes.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1

    def __post_init__(self) -> None:
        if not -LARGEST <= self.lower < self.upper <= LARGEST:
            raise FormatError(
                f"buffer '{self.id}' lives in [{self.lower}, {self.upper}); "
                "lower must be less than upper, and both at most 2**53"
            )
        if not 1 <= self.size <= LARGEST:
            raise FormatError(f"buffer '{self.id}' has size {self.size}; it must be from 1 to 2**53 bytes")
        if not 1 <= self.alignment <= LARGEST:
            raise FormatError(f"buffer '{self.id}' has alignment {self.alignment}; it must be at least 1")


def read_buffers(path: str | Path) -> tuple[Buffer, ...]:
    """Read buffers from a CSV file.

    Its first line names the columns: id, lower, upper and size in any order, perhaps alignment, and perhaps
    offset, which is not read.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule; the sentence names the line.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not a CSV file: it is not text in UTF-8") from None
    rows = csv.reader(StringIO(text, newline=""), strict=True)
    try:
        return _buffers(rows)
    except (FormatError, csv.Error) as error:
        raise FormatError(f"{path}, line {max(rows.line_num, 1)}: {error}") from None


def write_offsets(buffers: Sequence[Buffer], offsets: Sequence[int], path: str | Path) -> None:
    """Write buffers with their offsets, in MiniMalloc's form; alignment only where one is not 1."""
    names = list(_KNOWN)
    if all(buffer.alignment == 1 for buffer in buffers):
        names.remove("alignment")
    lines = [",".join(names)]
    for buffer, offset in zip(buffers, offsets, strict=True):
        lines.append(
            ",".join(_quoted(str(offset if name == "offset" else getattr(buffer, name))) for name in names)
        )
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def _buffers(rows: Iterator[list[str]]) -> tuple[Buffer, ...]:
    header = [name.strip() for name in next(rows, [])]
    missing = [name for name in _REQUIRED if name not in header]
    if missing:
        raise FormatError(f"column '{missing[0]}' is missing; the first line must be id,lower,upper,size")
    for name in header:
        if name not in _KNOWN:
            raise FormatError(f"column '{name}' is not known; leave it out (known are {', '.join(_KNOWN)})")
        if header.count(name) > 1:
            raise FormatError(f"column '{name}' is there twice; leave one out")
    buffers: dict[str, Buffer] = {}
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise FormatError(f"{len(row)} values for {len(header)} columns; write one for each")
        entry = dict(zip(header, row, strict=True))
        name = entry["id"].strip()
        if name in buffers:
            raise FormatError(f"id '{name}' is there twice; give each buffer its own")
        figures = {key: _whole(entry[key], key) for key in _KNOWN[1:5] if key in entry}
        buffers[name] = Buffer(name, **figures)
    return tuple(buffers.values())


def _whole(text: str, name: str) -> int:
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        raise FormatError(f"{name} '{text}' is not a whole number of at most 2**53; write digits only")
    return int(text)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
