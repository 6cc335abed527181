"""The standing by protocol 2026: its configuration, its tables, and a picture of who is best where.

``pebbler bench --protocol 2026 -o docs/data/protocol-2026.sqlite`` makes the runs; ``python
docs/scripts/protocol.py --write docs/contest.md --picture docs/images/protocol-2026.png`` puts configuration
and tables into the page, and draws the picture.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from matplotlib import colormaps, style
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import Exhibit, performance_profile, win_loss
from pebbler.benchmark.report.standing import kernels, known_bounds, standing, without_run
from pebbler.benchmark.sweeps.evaluation import Evaluation, evaluate
from pebbler.benchmark.sweeps.jobs import Setting
from pebbler.benchmark.sweeps.protocol import Protocol
from pebbler.benchmark.sweeps.results import Results, origins
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import write_atomically
from suite_2026 import FOLDER, SUITE, label

DATA = Path("docs/data/protocol-2026.sqlite")
PALETTES = (("tab10", 10), ("Dark2", 8))
"""Names and numbers of colours."""
BEGIN, END = "<!-- begin standing -->\n", "<!-- end standing -->\n"
BEGIN_RULES, END_RULES = "<!-- begin protocol -->\n", "<!-- end protocol -->\n"


def compared(results: Results) -> tuple[str, Protocol, Evaluation]:
    """Return the title of the protocol, its rules, and the runs."""
    ruled = results.protocol()
    if ruled is None:
        raise PebblerError(f"{results.path} is by no protocol; make it with pebbler bench --protocol 2026")
    runs = results.runs()
    return *ruled, evaluate(runs, known_bounds(runs), whole=True)


def report(results: Results) -> str:
    """Return the tables as Markdown: standing, what is solved by kind, profile and comparisons in pairs."""
    title, protocol, evaluation = compared(results)
    shown = [_shown(standing(evaluation, protocol, without_run(evaluation, title)))]
    shown.append(f"**Solved instances by kind**\n\n{by_kind(evaluation, protocol)}")
    if len(evaluation.settings) > 1:
        shown += [_shown(performance_profile(evaluation)), _shown(win_loss(evaluation))]
    tables = "\n".join(shown)
    sources = "; ".join(origins(evaluation.runs))
    return f"{title}.\n\n{tables}\n{kernels(evaluation.runs)} {sources}.\n"


def _shown(exhibit: Exhibit) -> str:
    rows = [[str(cell) for cell in row] for row in exhibit.table.rows]
    return f"**{exhibit.title}**\n\n{markdown(exhibit.table.header, rows)}"


def places() -> dict[str, tuple[str, float, float]]:
    """Return kind, room and copies of each instance of the suite by its name."""
    with (FOLDER / f"{SUITE}.csv").open(newline="") as file:
        return {
            row["instance"]: (row["kind"], float(row["room"]), float(row["copies"]))
            for row in csv.DictReader(file)
        }


def by_kind(evaluation: Evaluation, protocol: Protocol) -> str:
    """Return how many instances of each kind each setting has solved, as Markdown."""
    found, rows = places(), []
    kinds = {key: found[_name(evaluation, key)][0] for key in evaluation.problems}
    total = Counter(kinds.values())
    for setting, name in evaluation.settings.items():
        solved = Counter(kinds[key] for key, after in _solved(evaluation, protocol, setting).items() if after)
        rows.append((name, *(str(solved[kind] or "") for kind in total)))
    rows.append(("of", *map(str, total.values())))
    return markdown(("setting", *total), rows)


def _solved(evaluation: Evaluation, protocol: Protocol, setting: Setting) -> dict[str, bool]:
    unsolved = evaluation.medians(
        setting, lambda run: 0.0 if protocol.solves(setting, run.found, evaluation.gap(run)) else math.inf
    )
    return {key: not one for key, one in unsolved.items()}


def _name(evaluation: Evaluation, key: str) -> str:
    return evaluation.problems[key].problem.partition("/")[2]


def winners(evaluation: Evaluation, protocol: Protocol) -> dict[str, str]:
    """Return by instance the setting that is best: its schedule is as short as any, and it ended first.

    Schedules of which one is at most the protocol's gap longer than the other count as equally short, and all
    figures are medians over seeds. An instance without a schedule has no winner.
    """
    times = {name: evaluation.times(setting) for setting, name in evaluation.settings.items()}
    seconds = {
        name: evaluation.medians(setting, lambda run: run.found.solve_seconds or math.inf)
        for setting, name in evaluation.settings.items()
    }
    found = {}
    for key in evaluation.problems:
        most = min(own[key] for own in times.values()) * (1 + protocol.solved_gap)
        best = [name for name, own in times.items() if own[key] <= most < math.inf]
        if best:
            found[_name(evaluation, key)] = min(best, key=lambda name: seconds[name][key])
    return found


def winners_picture(evaluation: Evaluation, protocol: Protocol) -> Figure:
    """Draw where instances lie by room and copies, coloured by the winner."""
    best, found = winners(evaluation, protocol), places()
    counts = Counter(best.values())
    names = [name for name, _ in counts.most_common()]
    colours = [to_hex(colormaps[name](index)) for name, size in PALETTES for index in range(size)]
    palette = dict(zip(names, colours, strict=False))
    with style.context("default"):
        figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
        axes = figure.subplots()
        for name in names:
            own = [found[instance] for instance, winner in best.items() if winner == name]
            axes.scatter(
                [max(copies, 0.03) for _, _, copies in own],
                [min(max(room, 0.0), 1.2) for _, room, _ in own],
                color=palette[name],
                alpha=0.75,
                label=name,
            )
        label(axes, [(palette[name], "o", f"{name}: {counts[name]}") for name in names])
        axes.set_ylabel("room: budget between the least (0) and the peak (1)")
    return figure


def rules() -> str:
    """Return the protocol as a block of Markdown."""
    file = resources.files("pebbler.benchmark.sweeps").joinpath("protocols", "2026.toml")
    return f"```toml\n{file.read_text('utf-8')}```\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them and the protocol into the page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/protocol.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where to draw who is best")
    options = parser.parse_args(arguments)
    publish(rules(), options.write, BEGIN_RULES, END_RULES)
    with Results(options.data) as results:
        publish(report(results), options.write, BEGIN, END)
        if options.picture:
            _, protocol, evaluation = compared(results)
            write_atomically(options.picture, png(winners_picture(evaluation, protocol)))


if __name__ == "__main__":
    main()
