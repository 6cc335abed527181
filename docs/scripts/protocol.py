"""The standing by protocol 2026: its configuration and its tables.

``pebbler bench --protocol 2026 -o docs/data/protocol-2026.sqlite`` makes the runs; ``python
docs/scripts/protocol.py --write docs/contest.md`` puts configuration and tables into the page.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import Exhibit, performance_profile, win_loss
from pebbler.benchmark.report.standing import kernels, known_bounds, standing, without_run
from pebbler.benchmark.sweeps.evaluation import evaluate
from pebbler.benchmark.sweeps.results import Results, origins
from pebbler.instances.errors import PebblerError

DATA = Path("docs/data/protocol-2026.sqlite")
UNFINISHED = ("flow", "local-search")
"""Methods that have not run on all instances and with all seeds yet; they have no place in the tables."""
BEGIN, END = "<!-- begin standing -->\n", "<!-- end standing -->\n"
BEGIN_RULES, END_RULES = "<!-- begin protocol -->\n", "<!-- end protocol -->\n"


def report(results: Results) -> str:
    """Return the tables as Markdown: standing, performance profile and comparisons in pairs."""
    ruled = results.protocol()
    if ruled is None:
        raise PebblerError(f"{results.path} is by no protocol; make it with pebbler bench --protocol 2026")
    made = results.runs()
    runs = [run for run in made if run.setting.method not in UNFINISHED]
    evaluation = evaluate(runs, known_bounds(runs), whole=True)
    shown = [standing(evaluation, ruled[1], without_run(evaluation, ruled[0]))]
    if len(evaluation.settings) > 1:
        shown += [performance_profile(evaluation), win_loss(evaluation)]
    tables = "\n".join(map(_shown, shown))
    sources = "; ".join(origins(evaluation.runs))
    begun = Counter(run.setting.method for run in made if run.setting.method in UNFINISHED)
    others = ", ".join(f"`{method}` ({count})" for method, count in sorted(begun.items()))
    told = f" Not shown, as their runs are not complete: {others}." if begun else ""
    return f"{ruled[0]}.\n\n{tables}\n{kernels(evaluation.runs)} {sources}.{told}\n"


def _shown(exhibit: Exhibit) -> str:
    rows = [[str(cell) for cell in row] for row in exhibit.table.rows]
    return f"**{exhibit.title}**\n\n{markdown(exhibit.table.header, rows)}"


def rules() -> str:
    """Return the protocol as a block of Markdown."""
    file = resources.files("pebbler.benchmark.sweeps").joinpath("protocols", "2026.toml")
    return f"```toml\n{file.read_text('utf-8')}```\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them and the protocol into the page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/protocol.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    publish(rules(), options.write, BEGIN_RULES, END_RULES)
    with Results(options.data) as results:
        publish(report(results), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
