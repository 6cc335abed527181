"""Tables as plain text, which fit the width of the output."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import zip_longest

WIDTH = 100
"""Number of characters of a line if the width is not known."""

_GAP = "  "
"""Space between columns."""

_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]i?B|B|[num]?s|x)\b)")
"""Space between a number and its unit."""

_TIED = "\xa0"
"""Character that stands for the space between a number and its unit, so that they are not separated."""

_NARROW = 24
"""Number of characters below which a column of text is not made narrower."""


def line_width() -> int:
    """Return the characters of a line of standard output: ``COLUMNS``, the terminal's width, or 100."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and 0 < len(said) < 5 and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (AttributeError, OSError, ValueError):  # there is none, or it is no terminal
        return WIDTH


def wrapped(text: str, width: int, *, first: str = "", indent: int = 0) -> str:
    """Fill lines with the words of a text, the first one after `first`, the others indented."""
    return "\n".join(_filled(text, max(width, indent + _NARROW), first, " " * indent))


def _filled(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """Return the lines of a text; a word, or a number and its unit, is never divided."""
    lines = textwrap.wrap(
        _UNIT.sub(_TIED, text),
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIED, " ") for line in lines]


def format_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None
) -> str:
    """Align rows under a header.

    If the columns need more than `width`, columns of text wrap between words. If that is not enough, the
    columns that do not fit follow below, again with the first column. A number is never cut or broken.

    Parameters
    ----------
    header
        Titles of the columns.
    rows
        Rows with one cell for each column.
    align
        One letter for each column: ``l`` for left, ``r`` for right. All left-aligned columns but the first
        are text, which may wrap.
    width
        Characters of a line; by default `line_width`. A single column that is wider is not changed.
    """
    width = line_width() if width is None else width
    columns = [[title, *(row[i] for row in rows)] for i, title in enumerate(header)]
    widest = [max(map(len, column)) for column in columns]
    least = [
        min(most, max(_NARROW, *(len(word) for cell in column for word in cell.split() or [""])))
        if align[i] == "l" and i > 0
        else most
        for i, (column, most) in enumerate(zip(columns, widest, strict=True))
    ]
    blocks = []
    for block in _blocks(least, width):
        widths = _widened([least[i] for i in block], [widest[i] for i in block], width)
        lines = [
            _lines([columns[i][row] for i in block], widths, [align[i] for i in block])
            for row in range(len(rows) + 1)
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def format_html(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    """Write rows under a header as a table that a notebook shows; the last cell of a short row is wide."""

    def line(cells: Sequence[str], tag: str) -> str:
        *first, last = cells
        wide = f' colspan="{len(header) - len(first)}"' if len(cells) < len(header) else ""
        written = "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in first)
        return f"<tr>{written}<{tag}{wide}>{escape(last)}</{tag}></tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{line(header, 'th')}{body}</table>"


def _blocks(least: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns that stand side by side, from left to right; the first is in every block."""
    blocks, taken = [[0]], least[0]
    for i in range(1, len(least)):
        if taken + len(_GAP) + least[i] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            taken = least[0]
        blocks[-1].append(i)
        taken += len(_GAP) + least[i]
    return blocks


def _widened(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Return widths of columns, with the remaining room given to the narrowest of those that need more."""
    widths = list(least)
    room = width - sum(widths) - len(_GAP) * (len(widths) - 1)
    while room > 0 and (wanting := [i for i, wanted in enumerate(most) if widths[i] < wanted]):
        widths[min(wanting, key=lambda i: widths[i])] += 1
        room -= 1
    return widths


def _lines(cells: Sequence[str], widths: Sequence[int], align: Sequence[str]) -> str:
    """Return the lines of a row, as many as its longest cell needs."""
    parts_of = [
        _filled(cell, width) if len(cell) > width else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for parts in zip_longest(*parts_of, fillvalue=""):
        line = (
            part.ljust(width) if side == "l" else part.rjust(width)
            for part, width, side in zip(parts, widths, align, strict=True)
        )
        lines.append(_GAP.join(line).rstrip())
    return "\n".join(lines)
