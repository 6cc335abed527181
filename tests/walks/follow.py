"""Follow a page word for word: write its files, run its commands in one shell, and compare what they print.

``python follow.py PAGE``, started in the folder of the checkout, begins with what the page installs. With
``--installed`` it leaves that out. Blocks that need modules are left out where these are not installed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

BLOCK = re.compile(
    r"^(?P<marks>(?:<!--.*-->\n)*)```(?P<language>\w+)\n(?P<text>(?:.*\n)*?)```$", re.MULTILINE
)
MARK = re.compile(r"<!-- (needs|file|output) ?(.*?) ?-->")
INSTALLS = "python3 -m venv"


def untimed(printed: str) -> list[list[str]]:
    """Words of each line, without a time at its end."""
    return [re.sub(r"[\d.]+ s$", "", line).split() for line in printed.splitlines()]


def follow(page: Path, installed: bool, folder: Path) -> None:
    """Run the blocks of a page; the folder gets what each prints."""
    script = ["set -euo pipefail"]
    commands: list[str] = []
    promised: dict[int, str] = {}
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        marks, text = dict(MARK.findall(block["marks"])), block["text"]
        if "output" in marks:
            promised[len(commands) - 1] = text
            continue
        if "file" in marks:
            step = f"cat > '{marks['file']}' <<'end of the file'\n{text}end of the file\n"
        elif block["language"] == "sh" and not (installed and INSTALLS in text):
            step = f"{{\n{text}}} > '{folder}/{len(commands)}' 2>&1\n"
            commands.append(text)
        else:
            continue
        if "needs" in marks:
            step = f"if python -c 'import {marks['needs']}' 2> /dev/null; then\n{step}fi\n"
        script.append(step)
    status = subprocess.run(["bash", "-c", "\n".join(script)], check=False).returncode
    for number, command in enumerate(commands):
        file = folder / str(number)
        printed = file.read_text(encoding="utf-8") if file.exists() else "left out\n"
        print(f"\n$ {command}{printed}", flush=True)
        if number in promised and untimed(printed) != untimed(promised[number]):
            raise SystemExit(f"{page} promises another answer:\n{promised[number]}")
    if status:
        raise SystemExit(f"a command of {page} ended with status {status}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--installed", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        follow(asked.page.resolve(), asked.installed, Path(place))
