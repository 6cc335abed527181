"""What a release still needs: ``python docs/scripts/release.py v0.1.0`` says so, and fails if it is anything.

The workflow of releases asks this before it builds. It needs nothing installed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

URLS = ("Source", "Issues", "Documentation", "Changelog")
"""What the page of the index links to."""


def missing(root: Path, tag: str) -> list[str]:
    """Return what the files of a folder lack for the release that a tag names, a sentence each."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (root / "CITATION.cff").read_text(encoding="utf-8")
    version = project["version"]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and pyproject.toml has version {version}: it should be v{version}")
    heading = re.search(r"^## (.+)$", changes, re.MULTILINE)
    dated = heading and re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", heading[1])
    if not dated:
        found.append(f"the first heading of CHANGELOG.md should be '## {version} (YYYY-MM-DD)'")
    cited = dict(re.findall(r"^([a-z-]+): *(\S.*)$", citation, re.MULTILINE))
    if cited.get("version") != version:
        found.append(f"CITATION.cff should have 'version: {version}'")
    if dated and cited.get("date-released", "").strip("\"'") != dated[1]:
        found.append(f"CITATION.cff should have 'date-released: {dated[1]}'")
    if "repository-code" not in cited:
        found.append("CITATION.cff should have 'repository-code', the address of the sources")
    if lacking := [name for name in URLS if name not in project.get("urls", {})]:
        found.append(f"[project.urls] of pyproject.toml should have {', '.join(lacking)}")
    return found


def main() -> int:
    """Tell what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", help="such as v0.1.0")
    found = missing(Path(), parser.parse_args().tag)
    for sentence in found:
        print(sentence, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
