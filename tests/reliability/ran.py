"""When the studies of `.ci/long` last ran: ``python -m tests.reliability.ran STUDY SECONDS`` writes it down.

It goes to docs/data/reliability-long.json, and into the table of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish

from .pages import DOCS


def note(study: str, seconds: int, docs: Path) -> None:
    """Put the row of a study that has ended without an error in the place of its last one."""
    data = docs / "data" / "reliability-long.json"
    rows = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {}
    made = origin()
    rows[study] = {
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": seconds,
        "revision": made.revision,
        "made_with": str(made),
    }
    data.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table = markdown(
        ("study", "last ran", "minutes", "revision"),
        [
            (f"`{name}`", row["date"], f"{row['seconds'] / 60:.0f}", (row["revision"] or "not known")[:12])
            for name, row in rows.items()
        ],
    )
    publish(table, docs / "reliability.md", "<!-- begin long -->\n", "<!-- end long -->\n")


def main() -> None:
    """Write down that a study ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("seconds", type=int)
    arguments = parser.parse_args()
    note(arguments.study, arguments.seconds, DOCS)


if __name__ == "__main__":
    main()
