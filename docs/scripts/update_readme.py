"""Put into the README what its main job prints and draws, and the table of methods with the study's figures.

Run it from the root of the checkout: ``python docs/scripts/update_readme.py``; with ``--table`` it writes the
table alone.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import pebbler
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.cli.main import main
from pebbler.instances.files import read_instance
from pebbler.validate.schedule import read_schedule

BEGIN, END = "<!-- output -->\n", "<!-- end of output -->"
METHODS = "<!-- begin methods -->\n", "<!-- end methods -->\n"

PAGES = {
    "flow": "flow.md",
    "local-search": "local-search.md",
    "modnn": "papers-modnn.md",
    "vdnn-dyn": "papers-vdnn.md",
    "layrub-hybrid": "papers-layrub.md",
    "knapsack-rule": "comparators.md",
    "memonger-rule": "comparators.md",
    "superneurons-rule": "comparators.md",
    "save-on-cpu-rule": "comparators.md",
    "torch-memory-budget": "production.md",
    "deepcompile-offload": "production.md",
    "network-wide": "papers-vdnn.md",
}
"""The methods of the table, which the study has run, and the page of each."""


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


def methods(study: str) -> str:
    """The table of methods with the figures of the study's page, the least gap first."""
    table = study.split("<!-- begin gaps -->")[1].split("<!-- end gaps -->")[0]
    found: list[tuple[float, list[str]]] = []
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    columns = next(cells for cells in lines if cells[0] == "method")
    for cells in lines:
        name, _, own = cells[0].partition(" ")
        if name in PAGES:
            median, scheduled = (cells[columns.index(word)] for word in ("all", "with a schedule"))
            info = pebbler.find_method(name)
            link = f"[`{name}`](docs/{PAGES[name]})" + (r" \*" if own else "")
            row = [link, info.summary, info.source, median, scheduled]
            found.append((float(median[:-1]) if median.endswith("%") else math.inf, row))
    header = ["method", "what it does", "source", "median gap", "with a schedule"]
    return markdown(header, [row for _, row in sorted(found)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python docs/scripts/update_readme.py", description=__doc__)
    parser.add_argument("--table", action="store_true", help="only the table of methods")
    if not parser.parse_args().table:
        update(Path("README.md"), Path("docs", "images"))
    publish(methods(Path("docs", "study.md").read_text(encoding="utf-8")), Path("README.md"), *METHODS)
