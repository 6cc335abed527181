"""Tables as plain text, as wide as there is room."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Sequence
from html import escape
from itertools import zip_longest

WIDTH = 100
"""Characters of a line where nobody says how many there is room for."""

_GAP = "  "

_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]i?B|B|[num]?s|x)\b)")
_TIED = "\xa0"
"""What is between a figure and its unit, and stands there so that they stay together."""

_NARROW = 24
"""Characters under which a column of text is not made narrower."""


def line_width() -> int:
    """Characters of a line of standard output: what ``COLUMNS`` says, or the terminal, or 100."""
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
    """Lines of a text, without a word, or a figure and its unit, that are apart."""
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

    Where the columns need more than `width`, columns of text wrap between words. If that is not enough, those
    that do not fit follow below, under the first column again. A figure is never cut or broken.

    Parameters
    ----------
    header
        Titles of the columns.
    rows
        A cell a column.
    align
        A letter a column: ``l`` to the left, ``r`` to the right. All but the first of those to the left are
        text, which may wrap.
    width
        Characters of a line; by default `line_width`. A column that is wider alone stays so.
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
    """Columns that stand beside each other, from left to right; the first is in every block."""
    blocks, taken = [[0]], least[0]
    for i in range(1, len(least)):
        if taken + len(_GAP) + least[i] > width and len(blocks[-1]) > 1:
            blocks.append([0])
            taken = least[0]
        blocks[-1].append(i)
        taken += len(_GAP) + least[i]
    return blocks


def _widened(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Widths of columns: the room that is left goes to the narrowest of those that want more."""
    widths = list(least)
    room = width - sum(widths) - len(_GAP) * (len(widths) - 1)
    while room > 0 and (wanting := [i for i, wanted in enumerate(most) if widths[i] < wanted]):
        widths[min(wanting, key=lambda i: widths[i])] += 1
        room -= 1
    return widths


def _lines(cells: Sequence[str], widths: Sequence[int], align: Sequence[str]) -> str:
    """A row; as many lines as its longest cell takes."""
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
