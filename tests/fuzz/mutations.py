"""Damage: to JSON by key and value, to text by line and word, to tables of SQLite by cell, and to bytes."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

NASTY = (
    "",
    " ",
    "a\nb",
    "a\r\nb",
    "\x1b[31mred\x1b[0m",
    "\x00",
    "\x7f\x85\u2028\u202e",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "'; DROP TABLE runs; --",
    '"""',
    "\\",
    "%s%n{0}{x}",
    "../../x",
    "a $\\frac{ b$",
    "/dev/full",
    "ä" * 300,
    "x" * 5000,
    "\U0001f480",
)
"""Texts that have broken programs."""

FIGURES = (
    0, 1, -1, 2, 511, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.5, -0.0, 1e308, -1e308, 5e-324, 1e999,
)  # fmt: skip
"""Figures at the ends of their types."""

OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, "1", "NaN")


def damaged(kind: str, data: bytes, rng: Random) -> bytes:
    """Return a file of a kind with one to three kinds of damage."""
    structured = _STRUCTURED.get(kind, _json)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = (structured if rng.random() < 0.8 else _bytes)(data, rng)
    return data


def word(rng: Random, good: tuple[str, ...]) -> str:
    """Return a value of an option: a right one, one that breaks, or a figure; none has a null character."""
    kind = rng.random()
    if good and kind < 0.4:
        return rng.choice(good)
    if kind < 0.7:
        return rng.choice(NASTY).replace("\x00", "")
    figure = rng.choice(("9" * 400, "99999999999999", "1e308", "nan", "inf", *map(str, FIGURES)))
    return figure + rng.choice(("", "", "s", "%", "GiB", "xMmin", "Gbps", ",1"))


# --- JSON ---------------------------------------------------------------------------------------------


def _json(data: bytes, rng: Random) -> bytes:
    """Damage a document at a random place, or how it is written."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    if not isinstance(document, dict | list) or rng.random() < 0.15:
        return _written(document, rng)
    places = list(_places(document))
    if not places:
        return _bytes(data, rng)
    place, key = rng.choice(places)
    rng.choice(_CHANGES)(place, key, rng)
    try:
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except RecursionError:  # nested twice, it is too deep to be written here
        return _bytes(data, rng)


def _places(document: Any) -> Any:
    """Yield every place of a value: what it is in, and its key or index there."""
    stack = [document]
    while stack:
        here = stack.pop()
        for key in list(here) if isinstance(here, dict) else range(len(here)):
            yield here, key
            if isinstance(here[key], dict | list):
                stack.append(here[key])


def _half_more(number: float) -> float:
    """Return a fraction, unless the number is too large for one."""
    return number + 0.5 if abs(number) < 2**1000 else number


def _replace(place: Any, key: Any, rng: Random) -> None:
    old = place[key]
    if isinstance(old, str):
        place[key] = rng.choice((*NASTY, old + rng.choice(NASTY), old.upper()))
    elif isinstance(old, int | float) and not isinstance(old, bool):
        place[key] = rng.choice((*FIGURES, old + 1, old - 1, old * 2, -old, _half_more(old)))
    else:
        place[key] = rng.choice(OTHERS)


def _retype(place: Any, key: Any, rng: Random) -> None:
    place[key] = rng.choice((*OTHERS, *FIGURES, *NASTY))


def _drop(place: Any, key: Any, rng: Random) -> None:  # noqa: ARG001
    del place[key]


def _repeat(place: Any, key: Any, rng: Random) -> None:
    if isinstance(place, list):
        place[key:key] = [place[key]] * rng.choice((1, 1, 2, 100, 3000))
    else:
        place[rng.choice(NASTY)] = place[key]


def _swap(place: Any, key: Any, rng: Random) -> None:
    other = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    place[key], place[other] = place[other], place[key]


def _nest(place: Any, key: Any, rng: Random) -> None:
    for _ in range(rng.choice((1, 10, 500))):
        place[key] = [place[key]] if rng.random() < 0.5 else {"x": place[key]}


_CHANGES: tuple[Callable[[Any, Any, Random], None], ...] = (
    _replace, _replace, _replace, _retype, _drop, _repeat, _swap, _nest,
)  # fmt: skip


def _written(document: Any, rng: Random) -> bytes:
    """Write a document in an odd way: twice a key, deep, in another encoding, with figures of many digits."""
    text = json.dumps(document)
    match rng.randrange(7):
        case 0:
            keys = re.findall(r'"(\w+)": ', text)
            key = rng.choice(keys) if keys else "x"
            return text.replace("{", '{"' + key + '": 0, ', 1).encode()
        case 1:
            return (b"[" if rng.random() < 0.5 else b'{"a":') * rng.choice((100, 2000, 100_000))
        case 2:
            return text.encode(rng.choice(("utf-16", "utf-32", "utf-8-sig", "cp037")))
        case 3:
            figures = list(re.finditer(r"\b\d+\b", text))
            if not figures:
                return b"9" * 5000
            spot = rng.choice(figures)
            digits = rng.choice(("9" * 400, "9" * 5000, "1e400", "-0", "0x10", "1_000", "01"))
            return (text[: spot.start()] + digits + text[spot.end() :]).encode()
        case 4:
            return text.encode() + rng.choice((b"{}", b"x", b"\x00", text.encode()))
        case 5:
            return json.dumps(document, indent=rng.choice((0, 40))).encode()
        case _:
            return rng.choice((b"", b"null", b"[]", b"{}", b"0", b'""', b"\xef\xbb\xbf", b" " * 10_000))


# --- text ---------------------------------------------------------------------------------------------


def _text(data: bytes, rng: Random) -> bytes:
    """Damage a text by word, line or length: TOML and CSV."""
    text = data.decode("utf-8", "replace")
    lines = text.splitlines(keepends=True)
    match rng.randrange(6):
        case 0 | 1 | 2:
            words = list(re.finditer(r"[^\s,=\[\]]+", text))
            if not words:
                return b"x"
            spot = rng.choice(words)
            new = rng.choice(
                (*NASTY, *map(str, FIGURES), "9" * 5000, "[]", "{}", "true", "inf", "nan", '"x"')
            )
            return (text[: spot.start()] + new + text[spot.end() :]).encode("utf-8", "replace")
        case 3:
            if lines:
                del lines[rng.randrange(len(lines))]
        case 4:
            if lines:
                spot_ = rng.randrange(len(lines))
                lines[spot_:spot_] = [lines[spot_]] * rng.choice((1, 2, 2000))
        case _:
            lines.append(
                rng.choice(("a = " + "[" * 5000, "a" + ".a" * 3000 + " = 1", "[" * 5000, "a,b\n" * 50, '"'))
            )
    return "".join(lines).encode("utf-8", "replace")


def _log(data: bytes, rng: Random) -> bytes:
    """Damage a line of JSON, or the lines."""
    lines = data.splitlines()
    if not lines or rng.random() < 0.3:
        return _text(data, rng)
    spot = rng.randrange(len(lines))
    lines[spot] = _json(lines[spot], rng)
    return b"\n".join(lines)


# --- tables and bytes ---------------------------------------------------------------------------------


def _table(data: bytes, rng: Random) -> bytes:
    """Damage a cell, a row, a column or the header of an SQLite file."""
    with TemporaryDirectory() as folder:
        place = Path(folder, "t.sqlite")
        place.write_bytes(data)
        database = sqlite3.connect(place)
        try:
            names = [row[1] for row in database.execute("PRAGMA table_info(runs)")]
            if not names:
                return _bytes(data, rng)
            name = rng.choice(names)
            match rng.randrange(8):
                case 0 | 1 | 2 | 3:
                    value = rng.choice((None, *NASTY, *FIGURES, "[]", "{}", "[1", b"\xff", '[["a", 1, 2]]'))
                    if isinstance(value, int) and abs(value) >= 2**63:
                        value = float(value)
                    database.execute(f'UPDATE runs SET "{name}" = ? WHERE rowid = 1', (value,))
                case 4:
                    database.execute(f'UPDATE runs SET "{name}" = NULL')
                case 5:
                    database.execute("DELETE FROM runs")
                case 6:
                    database.execute(f'ALTER TABLE runs RENAME COLUMN "{name}" TO other')
                case _:
                    database.execute(f"PRAGMA {rng.choice(('user_version', 'application_id'))} = 7")
            database.commit()
        except sqlite3.Error:
            return _bytes(data, rng)
        finally:
            database.close()
        return place.read_bytes()


def _bytes(data: bytes, rng: Random) -> bytes:
    """Cut, flip, double or fill bytes."""
    if not data:
        return rng.randbytes(20)
    spot = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            return data[:spot]
        case 1:
            return data[:spot] + bytes([data[spot] ^ (1 << rng.randrange(8))]) + data[spot + 1 :]
        case 2:
            return (
                data[:spot]
                + rng.choice((b"\x00", b"\xff", b"\n", b"{", b'"', rng.randbytes(4)))
                + data[spot:]
            )
        case 3:
            return data[:spot] + data[spot // 2 :]
        case _:
            return data[:spot] + data[min(len(data), spot + rng.randrange(1, 9)) :]


_STRUCTURED: dict[str, Callable[[bytes, Random], bytes]] = {
    "device": _text,
    "config": _text,
    "buffers": _text,
    "more_buffers": _text,
    "log": _log,
    "results": _table,
    "onnx": _bytes,
}
"""Per kind of file that is no JSON, what damages it."""
