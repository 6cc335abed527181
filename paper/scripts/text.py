"""What the text takes from the study: macros, tables and pictures for LaTeX, tables for the documentation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from findings import Finding
from inventory import HEADER
from pebbler.benchmark.output import latex
from pebbler.benchmark.output.captions import caption
from pebbler.benchmark.output.drawing import pdf
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.benchmark.sweeps.results import origins
from pebbler.instances.files import write_atomically

_MACRO = r"""\newcommand{\result}[1]{%
  \ifcsname result:#1\endcsname\csname result:#1\endcsname
  \else\PackageError{results}{no result '#1'}{Run the study, or look for a slip in the name.}\fi}"""
"""Numbers by name; a name that is not among them is an error."""

RESULTS = "results.tex"
"""Every number of the text, by name: ``\\result{gaps/modnn/median}``."""
INVENTORY = "inventory/"
"""What the names of the inventory's numbers begin with."""

_NONE = "--"
"""In tables of the text, where there is no schedule, or none for half of the problems."""

_MOST_COLUMNS = 12
"""Of a table of the text; one that has more is turned."""

_COLUMNS = "".join(rf">{{\raggedright\arraybackslash}}p{{{width}mm}}" for width in (13, 13, 26, 32, 34, 31))
"""Of the inventory, whose cells are sentences."""


def conditions(finding: Finding) -> str:
    """Say what an exhibit rests on: the model's limits, machine, dates and versions."""
    return caption("Iteration times", origins(finding.runs))


def results(facts: Mapping[str, str]) -> str:
    """Return the macro that the text asks for numbers, and all numbers."""
    lines = [_definition(name, value) for name, value in facts.items()]
    return "\n".join(["% Written by the study; numbers change there.", _MACRO, *lines, ""])


def with_facts(text: str, facts: Mapping[str, str]) -> str:
    """Return what `results` returned, with these numbers in place of those of pages and of the inventory."""
    kept = [
        line
        for line in text.splitlines()
        if (name := _defined(line)) is None or (name not in facts and not name.startswith(INVENTORY))
    ]
    return "\n".join([*kept, *(_definition(name, value) for name, value in facts.items()), ""])


def _definition(name: str, value: str) -> str:
    return rf"\expandafter\def\csname result:{name}\endcsname{{{latex.escape(value)}}}"


def _defined(line: str) -> str | None:
    """The name of the number that a line defines, if it does."""
    found = re.match(r"\\expandafter\\def\\csname result:(.*?)\\endcsname", line)
    return None if found is None else found[1]


def inventory_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the inventory as a table over several pages."""
    header = " & ".join(rf"\textbf{{{name}}}" for name in HEADER) + r" \\"
    lines = [" & ".join(map(latex.escape, row)) + r" \\" for row in rows]
    return "\n".join(
        [
            rf"\begin{{longtable}}{{{_COLUMNS}}}",
            r"\caption{Every figure and table of the papers' evaluations.}\label{tab:inventory}\\",
            r"\toprule",
            header,
            r"\midrule\endfirsthead",
            r"\toprule",
            header,
            r"\midrule\endhead",
            r"\bottomrule\endfoot",
            *lines,
            r"\end{longtable}",
            "",
        ]
    )


def provenance_table(findings: Sequence[Finding]) -> str:
    """Return where and when the runs of each exhibit were made, which captions leave out."""
    lines = [
        f"{latex.escape(finding.exhibit.name)} & {latex.escape(told)} " + r"\\"
        for finding in findings
        for told in origins(finding.runs)
    ]
    return "\n".join(
        [
            r"\begin{longtable}{>{\raggedright\arraybackslash}p{32mm}>{\raggedright\arraybackslash}p{124mm}}",
            r"\caption{What the study's exhibits rest on.}\label{tab:provenance}\\",
            r"\toprule",
            r"\textbf{exhibit} & \textbf{runs, dates, machine, versions, revision} \\",
            r"\midrule\endfirsthead",
            r"\bottomrule\endfoot",
            *lines,
            r"\end{longtable}",
            "",
        ]
    )


def write_text(
    folder: Path, findings: Sequence[Finding], facts: Mapping[str, str], rows: Sequence[Sequence[str]]
) -> tuple[Path, ...]:
    """Write macros, the inventory, and each exhibit as a picture, a figure and a table, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        RESULTS: results(facts).encode(),
        "inventory.tex": inventory_table(rows).encode(),
        "provenance.tex": provenance_table(findings).encode(),
    }
    for finding in findings:
        exhibit = finding.exhibit
        told = f"{exhibit.title}. {finding.short}"
        contents[f"{exhibit.name}.pdf"] = picture(finding)
        contents[f"{exhibit.name}-figure.tex"] = latex.figure(
            f"generated/{exhibit.name}.pdf", told, exhibit.name
        ).encode()
        header, *cells = _upright(
            [
                [_NONE if cell == percent(math.inf) else str(cell) for cell in row]
                for row in (exhibit.table.header, *exhibit.table.rows)
            ]
        )
        contents[f"{exhibit.name}-table.tex"] = latex.table(
            header,
            cells,
            f"{exhibit.title}: the numbers behind the figure, predicted under its conditions; {_NONE}: none.",
            exhibit.name,
        ).encode()
    for name, data in contents.items():
        write_atomically(folder / name, data)
    return tuple(folder / name for name in contents)


def write_inventory(
    folder: Path, page: Path, facts: Mapping[str, str], rows: Sequence[Sequence[str]]
) -> tuple[Path, ...]:
    """Write the inventory, and the numbers of pages, beside the sweeps' as they are."""
    place = folder / RESULTS
    contents = {
        place: with_facts(place.read_text(encoding="utf-8"), facts).encode(),
        folder / "inventory.tex": inventory_table(rows).encode(),
    }
    for path, data in contents.items():
        write_atomically(path, data)
    _publish_inventory(page, rows)
    return *contents, page


def _publish_inventory(page: Path, rows: Sequence[Sequence[str]]) -> None:
    publish(markdown(HEADER, rows), page, "<!-- begin inventory -->\n", "<!-- end inventory -->\n")


def write_page(page: Path, findings: Sequence[Finding], rows: Sequence[Sequence[str]]) -> None:
    """Put the inventory and the tables of all exhibits into a page."""
    _publish_inventory(page, rows)
    contents = {}
    for finding in findings:
        exhibit = finding.exhibit
        cells = [[str(cell) for cell in row] for row in exhibit.table.rows]
        table = markdown(exhibit.table.header, cells)
        contents[exhibit.name] = f"{exhibit.caption}\n\n{table}\n{conditions(finding)}\n"
    for name, content in contents.items():
        publish(content, page, f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n")


def _upright(table: list[list[str]]) -> list[list[str]]:
    """Turn a table of many columns, so that its type need not be small."""
    return table if len(table[0]) <= _MOST_COLUMNS else [list(column) for column in zip(*table, strict=True)]


def picture(finding: Finding) -> bytes:
    """Draw an exhibit as a PDF."""
    with style.context("default"):
        figure = Figure(figsize=finding.exhibit.size, layout="constrained")
        finding.exhibit.draw(figure)
        return pdf(figure)
