"""Measurements in the documentation: a Markdown table between two marks of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(row(cells) + "\n" for cells in (header, ["---"] * len(header), *rows))


def row(cells: Iterable[str]) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def replaced(text: str, begin: str, end: str, content: str) -> str:
    """Return a text with other content between two marks, each of which occurs once."""
    before, rest = text.split(begin)
    return before + begin + content + end + rest.split(end)[1]


def publish(content: str, page: Path | None, begin: str, end: str) -> None:
    """Put content between the marks of a page, or print it without a page."""
    if page is None:
        print(content, end="")
    else:
        page.write_text(replaced(page.read_text(encoding="utf-8"), begin, end, content), encoding="utf-8")
