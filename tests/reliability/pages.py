"""Where the studies of reliability write: what they found to docs/data, and tables to docs/reliability.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish

DOCS = Path(__file__).parents[2] / "docs"


def write_section(
    name: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    runs: Sequence[Mapping[str, object]],
    *,
    write: bool,
) -> None:
    """Put a table between its marks in docs/reliability.md and its runs into docs/data, or print it."""
    made = origin()
    day = datetime.now(UTC).date().isoformat()
    text = f"{markdown(header, rows)}\n{day}; {made}.\n"
    page = DOCS / "reliability.md" if write else None
    publish(text, page, f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n")
    if write:
        document = {"date": day, "made_with": str(made), "revision": made.revision, "runs": runs}
        path = DOCS / "data" / f"reliability-{name}.json"
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
