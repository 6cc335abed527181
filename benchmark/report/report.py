"""The report of a sweep: every exhibit as picture, CSV and LaTeX, all runs as CSV, and a page with all."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from itertools import chain
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure

from ...instances.errors import PebblerError
from ...instances.files import write_atomically
from ...instances.importers.extras import require_extra
from ..output import latex
from ..output.captions import SEVERAL, caption
from ..output.drawing import footnote, png, svg
from ..sweeps.evaluation import evaluate
from ..sweeps.results import COLUMNS, Results, Run, cells_of, origins
from .checked import Checked, check_runs
from .exhibits import Exhibit, exhibits, time_limits
from .page import page
from .standing import known_bounds, standing, without_run

_MOST_ORIGINS = 2
"""Greatest number of origins of runs that a picture names one by one, to leave room for what it shows."""


@dataclass(frozen=True, slots=True)
class Written:
    """A written report: its files, runs and exhibits by name, and what was checked first, if it was."""

    files: tuple[Path, ...]
    runs: int
    exhibits: tuple[str, ...]
    checked: Checked | None = None


def write_report(results: Results, folder: Path, *, parquet: bool = False, check: bool = False) -> Written:
    """Write the report of a results file into a folder, which is created if need be.

    For each exhibit NAME: ``NAME.png``, ``NAME.svg``, ``NAME.csv`` and ``NAME.tex``; ``runs.csv`` with all
    runs, and ``index.html``, which needs no other file and no network. The same results give the same bytes.

    Parameters
    ----------
    results
        The runs, and the schedules beside them; timelines of missing schedules are left out.
    folder
        The folder of the report.
    parquet
        Whether to write ``runs.parquet`` as well.
    check
        Whether to hold all runs against the files beside the results first (`checked.check_runs`). By a
        protocol, bounds then count as far as they are proven.

    Raises
    ------
    PebblerError
        When there are no runs, they contradict each other, one is not what its files say, or a file cannot be
        written.
    """
    if parquet:
        require_extra("pyarrow", "parquet")
    checked = check_runs(results) if check else None
    runs, ruled = results.runs() if checked is None else checked.runs, results.protocol()
    evaluation = evaluate(runs) if ruled is None else evaluate(runs, known_bounds(runs), whole=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PebblerError(f"{folder} cannot be made: {error.strerror or error}") from None
    limits = time_limits(evaluation)
    conditions = f"{limits} {caption('Iteration times', origins(evaluation.runs), SEVERAL)}"
    short = f"{limits} {caption('Iteration times', origins(evaluation.runs, most=_MOST_ORIGINS), SEVERAL)}"
    shown: list[tuple[Exhibit, bytes]] = []
    contents: dict[str, bytes] = {"runs.csv": _csv(runs)}
    first: list[Exhibit] = []
    if ruled is not None:
        first = [standing(evaluation, ruled[1], without_run(evaluation, ruled[0]), checked=check)]
    for exhibit in chain(first, exhibits(evaluation)):
        pictures = _pictures(exhibit, f"{exhibit.caption} {short}")
        shown.append((exhibit, pictures["svg"]))
        contents |= {f"{exhibit.name}.{kind}": data for kind, data in pictures.items()}
        contents[f"{exhibit.name}.csv"] = exhibit.data.csv().encode()
        contents[f"{exhibit.name}.tex"] = _latex(exhibit, f"{exhibit.caption} {conditions}").encode()
    contents["index.html"] = page(evaluation, shown, conditions, results).encode()
    if parquet:
        contents["runs.parquet"] = _parquet(runs)
    for name, data in contents.items():
        write_atomically(folder / name, data)
    return Written(
        tuple(folder / name for name in contents),
        len(runs),
        tuple(exhibit.name for exhibit, _ in shown),
        checked,
    )


def _pictures(exhibit: Exhibit, told: str) -> dict[str, bytes]:
    with style.context("default"):
        figure = Figure(figsize=exhibit.size, dpi=150, layout="constrained")
        exhibit.draw(figure)
        figure.suptitle(exhibit.title, fontsize=12)
        footnote(figure, told)
        return {"png": png(figure), "svg": svg(figure)}


def _latex(exhibit: Exhibit, told: str) -> str:
    rows = [[str(cell) for cell in row] for row in exhibit.table.rows]
    return latex.figure(f"{exhibit.name}.png", told, exhibit.name) + latex.table(
        exhibit.table.header, rows, told, exhibit.name
    )


def _csv(runs: Sequence[Run]) -> bytes:
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(cells_of, runs))
    return text.getvalue().encode()


def _parquet(runs: Sequence[Run]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    data = BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(map(cells_of, runs))), data)
    return data.getvalue()
