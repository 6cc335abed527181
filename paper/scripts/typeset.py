"""The PDFs of the text and its supplement, from the committed data and texts, in another folder.

``python paper/scripts/typeset.py`` writes numbers, tables and pictures anew, and runs latexmk, or pdflatex
and bibtex where there is no latexmk. Without TeX it says so and ends well, but under
``PEBBLER_PAPER=required``, as CI may have it, it fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from inventory import rows, tally
from pages import Pages
from pebbler.instances.errors import PebblerError
from study import facts, findings, plan
from text import write_text

TEXTS = ("pebbler", "supplement")
"""What is built, each of which is a file of LaTeX."""

REQUIRED = "PEBBLER_PAPER"
"""The variable of the environment that makes a missing TeX an error where it is `required`."""


def prepare(folder: Path, docs: Path, out: Path) -> None:
    """Write into a folder all that TeX reads: the texts, and what the committed data and pages give."""
    out.mkdir(parents=True, exist_ok=True)
    for place in (*(folder / f"{name}.tex" for name in TEXTS), folder / "pebbler.bib"):
        shutil.copy(place, out)
    pages = Pages(docs)
    found, table = findings(plan(folder), docs), rows(pages)
    write_text(out / "generated", found, facts(pages, found, tally(table)), table)


def commands(name: str) -> list[list[str]] | None:
    """Return what makes a PDF of a text here, one after the other; None without TeX."""
    if shutil.which("latexmk") is not None:
        return [["latexmk", "-pdf", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]]
    if shutil.which("pdflatex") is None or shutil.which("bibtex") is None:
        return None
    latex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
    cites = name == "pebbler"
    return [latex, ["bibtex", name], latex, latex] if cites else [latex, latex]


def run_tex(out: Path, name: str, steps: Sequence[Sequence[str]]) -> Path:
    """Run TeX on a text, and return the PDF.

    Raises
    ------
    PebblerError
        When it fails, or a reference, a citation or a number is undefined.
    """
    for step in steps:
        done = subprocess.run(step, cwd=out, capture_output=True, text=True, errors="replace")
        if done.returncode:
            told = [line for line in done.stdout.splitlines() if line.startswith(("!", "l."))]
            raise PebblerError(f"{step[0]} fails on {name}.tex: {' '.join(told)[:300] or done.stdout[-300:]}")
    log = (out / f"{name}.log").read_text("latin-1")
    if found := re.search(r"(?:Reference|Citation) `[^']*'.*undefined", log):
        raise PebblerError(f"{name}.tex: {found[0]}")
    return out / f"{name}.pdf"


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the PDFs, or say that there is no TeX."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/typeset.py", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("paper"), help="of the texts; default: paper")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of the pages; default: docs")
    parser.add_argument("--out", type=Path, default=Path("paper", "build"), help="default: paper/build")
    options = parser.parse_args(arguments)
    try:
        prepare(options.folder, options.docs, options.out)
        for name in TEXTS:
            steps = commands(name)
            if steps is not None:
                print(run_tex(options.out, name, steps))
            elif os.environ.get(REQUIRED) == "required":
                raise PebblerError("there is no TeX; install latexmk, lmodern and texlive-latex-recommended")
            else:
                print(f"{options.out / name}.tex is ready; there is no TeX here that makes a PDF of it")
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror or error}")
    except PebblerError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
