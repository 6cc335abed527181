"""Tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Align rows under a header.

    Parameters
    ----------
    header
        Titles of the columns.
    rows
        Cells; the last cell of a row that is shorter than the header runs across the columns left over.
    align
        A letter a column: ``l`` to the left, ``r`` to the right.
    """
    widths = [len(title) for title in header]
    for row in rows:
        for i, cell in enumerate(row if len(row) == len(header) else row[:-1]):
            widths[i] = max(widths[i], len(cell))
    return "\n".join(_line(row, widths, align) for row in (header, *rows))


def _line(row: Sequence[str], widths: Sequence[int], align: str) -> str:
    cells = [
        cell.ljust(width) if side == "l" else cell.rjust(width)
        for cell, width, side in zip(row, widths, align, strict=False)
    ]
    if len(row) < len(widths):
        cells[-1] = row[-1]
    return "  ".join(cells).rstrip()
