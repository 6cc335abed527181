"""Buffers with fixed lifetimes, and their file: the CSV of MiniMalloc (Moffitt, ASPLOS 2023)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import chain, pairwise
from pathlib import Path

from .errors import FormatError
from .files import read_bytes, write_atomically
from .units import LARGEST

_REQUIRED = ("id", "lower", "upper", "size")
_KNOWN = (*_REQUIRED, "alignment", "gaps", "offset")

_GAP = re.compile(r"(-?\d+)-(-?\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that are needed from one instant up to another, and not at the other, perhaps with gaps.

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
    gaps
        Times [begin, end) inside the lifetime at which the bytes are not needed, in rising order and apart.
        Other buffers may have the bytes meanwhile. Before and after a gap, the offset is the same.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1
    gaps: tuple[tuple[int, int], ...] = ()

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
        edges = [self.lower, *chain.from_iterable(self.gaps), self.upper]
        if not all(before < after for before, after in pairwise(edges)):
            raise FormatError(
                f"buffer '{self.id}' has the gaps {_as_text(self.gaps)} in [{self.lower}, {self.upper}); "
                "they must be inside, in rising order and apart"
            )

    @property
    def stays(self) -> tuple[tuple[int, int], ...]:
        """The times [begin, end) at which the bytes are needed: the lifetime without the gaps."""
        return without(self.lower, self.upper, self.gaps)


def without(begin: int, end: int, gaps: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the times [begin, end) between two instants that gaps in rising order leave."""
    edges = [begin, *chain.from_iterable(gaps), end]
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def read_buffers(path: str | Path) -> tuple[Buffer, ...]:
    """Read buffers from a CSV file.

    Its first line names the columns: id, lower, upper and size in any order, perhaps alignment and gaps, and
    perhaps offset, which is not read. A gap is written as ``begin-end``, and there is a space between two.

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
    """Write buffers with their offsets, in MiniMalloc's form; alignment and gaps only where there are any."""
    names = list(_KNOWN)
    if all(buffer.alignment == 1 for buffer in buffers):
        names.remove("alignment")
    if not any(buffer.gaps for buffer in buffers):
        names.remove("gaps")
    lines = [",".join(names)]
    for buffer, offset in zip(buffers, offsets, strict=True):
        told = {"gaps": _as_text(buffer.gaps), "offset": offset}
        values = (told.get(name, getattr(buffer, name, None)) for name in names)
        lines.append(",".join(_quoted(str(value)) for value in values))
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
        buffers[name] = Buffer(name, **figures, gaps=_gaps(entry.get("gaps", "")))
    return tuple(buffers.values())


def _gaps(text: str) -> tuple[tuple[int, int], ...]:
    gaps = []
    for gap in text.split():
        if "@" in gap:
            raise FormatError(
                f"gap '{gap}' keeps some bytes; write gaps such as 3-5, in which none are needed"
            )
        edges = _GAP.fullmatch(gap)
        if edges is None:
            raise FormatError(f"gap '{gap}' is not of the form begin-end, such as 3-5")
        begin, end = (_whole(edge, "gap") for edge in edges.groups())
        gaps.append((begin, end))
    return tuple(gaps)


def _as_text(gaps: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{begin}-{end}" for begin, end in gaps)


def _whole(text: str, name: str) -> int:
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        raise FormatError(f"{name} '{text}' is not a whole number of at most 2**53; write digits only")
    return int(text)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
