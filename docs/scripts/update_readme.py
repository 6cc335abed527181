"""Run the README's main job, and put what it prints and draws into the README.

Run it from the root of the checkout: ``python docs/scripts/update_readme.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from pebbler.cli.main import main
from pebbler.instances.files import read_instance
from pebbler.validate.schedule import read_schedule

BEGIN, END = "<!-- output -->\n", "<!-- end of output -->"


def update(readme: Path, images: Path) -> None:
    """Replace the output between the marks, and the two pictures."""
    text = readme.read_text(encoding="utf-8")
    command = re.search(r"pebbler (compare .*)", text)
    if command is None:
        raise SystemExit(f"{readme} has no main job")
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
            status = main(shlex.split(command[1]))
        if status:
            raise SystemExit(f"the main job ended with status {status}")
        out = Path(folder, "pebbler-out")
        (file,) = out.glob("*.instance.json")
        instance = read_instance(file)
        fastest = min(out.glob("*.schedule.json"), key=lambda path: read_schedule(path, instance).makespan_ns)
        shutil.copyfile(out / f"{instance.name}.png", images / "overview.png")
        shutil.copyfile(out / fastest.name.replace(".schedule.json", ".png"), images / "timeline.png")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    readme.write_text(f"{before}{BEGIN}```text\n{printed.getvalue()}```\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python docs/scripts/update_readme.py", description=__doc__).parse_args()
    update(Path("README.md"), Path("docs", "images"))
