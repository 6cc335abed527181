"""What people write and read: sizes (``12GiB``, ``12G``), times (``60s``, ``5min``, ``5m``) and facts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from html import escape

from .errors import PebblerError

LARGEST = 2**53
"""Greatest figure in a file: every integer up to it is exact in a double, whatever language reads it."""

PAGE_BYTES = 2 * 2**20
"""A page of the paged memory model, where parts begin: what CUDA's virtual memory calls map (2 MiB)."""

LARGEST_SEED = 2**31 - 1
"""Greatest seed that every solver takes."""

MOST_THREADS = 1024
"""Threads that can be asked for."""

_SIZES = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_ANY_CASE = {word: size for unit, size in _SIZES.items() for word in (unit, unit.lower(), unit.upper())}
del _ANY_CASE["b"]  # a bit, to many
_LETTERS = {letter: _SIZES[f"{letter.upper()}iB"] for letter in "kKmMgGtT"}
"""What a letter alone means: as memory is counted, in powers of two."""

_BIT_RATES = {"kbps": 10**3, "Mbps": 10**6, "Gbps": 10**9, "Tbps": 10**12}
_TIMES = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)\s*")
_LONGEST_TIME = 1e9
"""Seconds: 30 years, and few enough for every clock."""


def ceil_to(value: int, multiple: int) -> int:
    """Round `value` up to a multiple of `multiple`."""
    return -(-value // multiple) * multiple


def parse_size(
    text: str,
    what: str = "a size; write it as 12GiB, 12GB, 800MiB or a number of bytes",
    *,
    letters: bool = True,
) -> int:
    """Read a size in bytes; a fraction of a byte rounds up, and units may be all small or all large letters.

    Parameters
    ----------
    text
        What to read.
    what
        What it should have been, for the error.
    letters
        Whether a letter alone is a unit, a power of two as memory is counted: ``12G`` is ``12GiB``.

    Raises
    ------
    PebblerError
        When `text` is not a number followed by a known unit, or too large.
    """
    match = _QUANTITY.fullmatch(text)
    unit = None if match is None else (_ANY_CASE | _LETTERS if letters else _ANY_CASE).get(match[2])
    if match is None or unit is None:
        raise PebblerError(f"'{text}' is not {what}")
    size = math.ceil(Fraction(match[1]) * unit)
    if size > LARGEST:
        raise PebblerError(f"'{text}' is more than {LARGEST} bytes, the largest size that files hold")
    return size


def parse_rate(text: str) -> int:
    """Read a bandwidth in bytes a second: a size, such as ``12GB``, or bits, such as ``1Gbps``.

    Raises
    ------
    PebblerError
        When `text` is neither, or 0.
    """
    what = "a bandwidth; write the bytes of a second as 12GB, or its bits as 1Gbps"
    match = _QUANTITY.fullmatch(text)
    if match is not None and match[2] in _BIT_RATES:
        rate = int(Fraction(match[1]) * _BIT_RATES[match[2]] / 8)
    else:
        rate = parse_size(text, what, letters=False)
    if not rate:
        raise PebblerError(f"'{text}' is not {what}; it passes nothing")
    if rate > LARGEST:
        raise PebblerError(f"'{text}' is more than {LARGEST} bytes a second, the largest figure in files")
    return rate


def parse_time(text: str) -> float:
    """Read a duration in seconds.

    Raises
    ------
    PebblerError
        When `text` is not a number followed by a known unit, or too long.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in _TIMES:
        raise PebblerError(f"'{text}' is not a time; write it as 60s, 5min or a number of seconds")
    time = float(match[1]) * _TIMES[match[2]]
    if time > _LONGEST_TIME:
        raise PebblerError(f"'{text}' is more than {_LONGEST_TIME:.0f} seconds; give a shorter time")
    return time


def format_size(size: int) -> str:
    """Write a size with a binary unit and at most four significant digits.

    >>> format_size(12 * 2**30)
    '12.00 GiB'
    """
    for unit in ("GiB", "MiB", "KiB"):
        if abs(size) >= _SIZES[unit]:
            return f"{size / _SIZES[unit]:.2f} {unit}"
    return f"{size} B"


def format_time(nanoseconds: int) -> str:
    """Write a duration with a unit that keeps it readable.

    >>> format_time(5_880_138_000)
    '5.880 s'
    """
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if abs(nanoseconds) >= scale:
            return f"{nanoseconds / scale:.3f} {unit}"
    return f"{nanoseconds} ns"


Facts = Sequence[tuple[str, str]]
"""Names and values, as `as_lines` and `as_html` show them."""


def as_lines(facts: Facts) -> str:
    """Write facts as text, a line each."""
    return "\n".join(f"{name:<16} {value}" for name, value in facts)


def as_html(facts: Facts) -> str:
    """Write facts as a table that a notebook shows, a row each."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f"<table>{rows}</table>"
