"""The study of bounds: every theorem attacked with far more instances than the tests have time for.

``python -m tests.adversary.study --instances 100000``, from the root of the repository, appends a line for
each theorem and seed to ``docs/data/adversary.jsonl``, and leaves out what is there: it can be stopped at any
time and goes on where it was. ``--host-budget`` makes lines of instances whose host memory has a budget,
``--carried`` of instances with carried blocks, and both together of those with both. ``--theorem`` attacks
one theorem alone.
``--write docs/reliability.md`` puts the table of all lines into the page, ``--instances 0`` makes none. A
contradiction, or any other error, is a line with the instance, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.files import encode

from .attack import Contradiction, attacked
from .instances import KEYS
from .theorems import THEOREMS

BEGIN, END = "<!-- begin adversary -->\n", "<!-- end adversary -->\n"
DATA = Path("docs/data/adversary.jsonl")

COUNT, COUNT_OF_SLOW = 250, 25
"""Instances of a theorem for each seed; the second is for attacks that take long."""

_HEADER = ("theorem", "instances", "with its rows", "these met", "no schedule", "too large", "contradictions")

Line = dict[str, Any]
"""What came of a theorem and a seed: the tally by name, seconds, where it was made, and what contradicts
it."""


def conduct(name: str, seed: int, count: int, keys: Collection[str] = ()) -> Line:
    """Attack a theorem and say what came of it."""
    began = time.monotonic()
    line: Line = {"theorem": name, "seed": seed, "count": count} | dict.fromkeys(sorted(keys), True)
    try:
        tally = attacked(THEOREMS[name], seed, count, keys)
        line |= tally.as_dict()
    except Contradiction as found:
        line["contradiction"] = {
            "says": f"{found.claim.what}: {found.claim.bound}, possible {found.claim.possible}",
            "instance": json.loads(encode(found.instance)),
        }
    except Exception as error:  # it is told, and ends the study with status 1
        line["contradiction"] = {"says": f"{error!r} {' '.join(getattr(error, '__notes__', ()))}"}
    return line | {"seconds": round(time.monotonic() - began, 1), "made": made_here()}


def read(data: Path) -> list[Line]:
    """Return what has been done."""
    if not data.exists():
        return []
    return [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]


def table(lines: Iterable[Line]) -> str:
    """Return all lines by theorem, as Markdown."""
    done = [line for line in lines if "contradiction" not in line]
    wrong = [line for line in lines if "contradiction" in line]
    keys = ("instances", "active", "met", "impossible", "too_large")
    rows = []
    for name, theorem in THEOREMS.items():
        mine = [line for line in done if line["theorem"] == name]
        sums = [sum(line[key] for line in mine) for key in keys]
        failed = sum(line["theorem"] == name for line in wrong)
        rows.append([f"[{name}]({Path(theorem.page).name})", *(f"{n:,}" for n in sums), str(failed)])
    total = [sum(line[key] for line in done) for key in keys]
    rows.append(["**all**", *(f"{n:,}" for n in total), str(len(wrong))])
    made = sorted({line["made"] for line in (*done, *wrong)})
    return markdown(_HEADER, rows) + "".join(f"\n{line}.\n" for line in made)


def main(arguments: Sequence[str] | None = None) -> int:
    """Conduct what is missing, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversary.study", description=__doc__)
    parser.add_argument("--instances", type=int, default=100_000, metavar="N", help="so many, or a few more")
    parser.add_argument("--seed", type=int, default=1, help="the first; one follows the other")
    parser.add_argument("--theorem", choices=THEOREMS, metavar="NAME", help="attack this one alone")
    parser.add_argument("--host-budget", action="store_true", help="give host memory a budget")
    parser.add_argument("--carried", action="store_true", help="let rounds carry blocks")
    parser.add_argument("--link", action="store_true", help="let copies in both directions share a link")
    parser.add_argument("--slowdown", action="store_true", help="let copies slow tasks down")
    parser.add_argument("--host-work", action="store_true", help="let tasks run on the host")
    parser.add_argument("--own-inputs", action="store_true", help="let algorithms read different blocks")
    parser.add_argument("--own-outputs", action="store_true", help="let algorithms leave out outputs")
    parser.add_argument("--takes-over", action="store_true", help="let outputs take over places of inputs")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help="lines to add to")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    keys = {key for key in KEYS if getattr(options, key)}
    known = {
        (line["theorem"], line["seed"]) for line in read(options.data) if keys == KEYS.keys() & line.keys()
    }
    names = [name for name in THEOREMS if options.theorem in (None, name) and THEOREMS[name].takes(keys)]
    if not names:
        parser.error(f"theorem '{options.theorem}' is not about instances with all of these keys")
    made, seed = 0, options.seed
    while made < options.instances:
        for name in names:
            theorem = THEOREMS[name]
            count = COUNT_OF_SLOW if theorem.is_slow else COUNT
            made += count
            if (name, seed) not in known:
                line = conduct(name, seed, count, keys)
                told = line.get("contradiction", {}).get("says", "holds")
                print(f"{name}, seed {seed}: {told}", flush=True)
                with options.data.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        seed += 1
    lines = read(options.data)
    publish(table(lines), options.write, BEGIN, END)
    return int(any("contradiction" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
