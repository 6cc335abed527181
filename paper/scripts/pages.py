"""What the documentation's pages say: cells of tables, so that nothing is computed twice or typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pebbler.instances.errors import PebblerError


@dataclass(frozen=True, slots=True)
class Pages:
    """A folder of pages in Markdown, which the scripts of the benchmark have filled."""

    folder: Path

    def cell(self, page: str, row: str, column: str, mark: str | None = None) -> str:
        """Return a cell of the first table of a page that has such a row and column.

        Parameters
        ----------
        page
            Name of the page, without its ending.
        row, column
            First cell of the row, or its first cells with `` | `` between them; and the header's cell.
        mark
            Between which marks to look; by default on the whole page.

        Raises
        ------
        PebblerError
            When no table has them.
        """
        keys = row.split(" | ")
        for header, *rows in _tables(self._text(page, mark)):
            for cells in rows:
                if cells[: len(keys)] == keys and column in header[len(keys) :]:
                    return cells[header.index(column, len(keys))]
        raise PebblerError(f"{self._place(page)}: no table has a row '{row}' and a column '{column}'")

    def rows(self, page: str, mark: str) -> list[list[str]]:
        """Return the first table between marks, its header first.

        Raises
        ------
        PebblerError
            When there is none.
        """
        for table in _tables(self._text(page, mark)):
            return table
        raise PebblerError(f"{self._place(page)}: there is no table between the marks '{mark}'")

    def line(self, page: str, pattern: str) -> str:
        """Return the first group of a regular expression, or else all of what it matches, on a page.

        Raises
        ------
        PebblerError
            When nothing matches.
        """
        found = re.search(pattern, self._text(page, None))
        if found is None:
            raise PebblerError(f"{self._place(page)}: nothing there matches '{pattern}'")
        return found[1] if found.groups() else found[0]

    def _place(self, page: str) -> Path:
        return self.folder / f"{page}.md"

    def _text(self, page: str, mark: str | None) -> str:
        try:
            text = self._place(page).read_text(encoding="utf-8")
        except OSError as error:
            raise PebblerError(f"{self._place(page)} cannot be read: {error.strerror or error}") from None
        if mark is None:
            return text
        begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
        if begin not in text or end not in text:
            raise PebblerError(f"{self._place(page)} has no marks '{mark}'")
        return text.split(begin)[1].split(end)[0]


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a text in Markdown: a header and rows, without the line between."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [lines[0], *lines[2:]]
