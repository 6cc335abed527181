"""The study of standard output: every command with a solver, hundreds of times, and each answer is parsed.

``python -m tests.reliability.json_runs --runs 500 --write``, from the root of the repository, writes
docs/data/reliability-json.json and the table in docs/reliability.md; without ``--write`` it prints it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from .interrupts import PEBBLER, prepare
from .pages import write_section


@dataclass(frozen=True, slots=True)
class Output:
    """A run of a command: what was wrong with its output; empty where nothing was."""

    command: str
    arguments: tuple[str, ...]
    status: int
    fault: str


def arguments_of(command: str, rng: Random) -> list[str]:
    """The arguments of a run, some of them drawn."""
    file = rng.choice(("vgg16", "lenet", "again", "lenet")) + ".instance.json"
    limit = ["--time-limit", rng.choice(("0.05s", "0.3s", "1s"))]
    memory = ["--memory", rng.choice(("contiguous", "paged"))]
    solver = ["--solver", rng.choice(("highs", "highs", "scip", "cbc"))]
    name, _, method = command.partition(" ")
    if name == "solve":
        seed = ["--seed", str(rng.randrange(1000))]
        return [name, file, "--method", method, *limit, *memory, *solver, *seed, "-o", "s.json"]
    if name == "bound":
        return [name, file, *limit, *memory, *solver]
    if name == "compare":
        return [name, file, "--methods", "modnn,cp-sat,flow", *limit, *memory, "--out", "out"]
    if name == "frontier":
        return [name, file, "--method", "flow", *limit, *memory, "--points", "2", "-o", f"f{rng.random()}"]
    if name == "pack":
        return [name, "buffers.csv", *limit, "--seed", str(rng.randrange(1000))]
    layer = rng.choice(("conv1", "conv2", "conv3"))
    return [name, f"caffenet/{layer}", "--model", rng.choice(("as-printed", "corrected")), *solver]


COMMANDS = (
    *(
        f"solve {method}"
        for method in ("flow", "cp-sat", "checkmate", "poet", "flow-recompute", "local-search")
    ),
    "bound",
    "compare",
    "frontier",
    "pack",
    "streams",
)


def study(folder: Path, runs: int, seed: int, commands: Sequence[str] = COMMANDS) -> Iterator[Output]:
    """Run the commands in turn, with drawn arguments."""
    rng = Random(seed)
    for i in range(runs):
        command = commands[i % len(commands)]
        arguments = (*arguments_of(command, rng), "--json")
        done = subprocess.run([*PEBBLER, *arguments], cwd=folder, capture_output=True, text=True)
        yield Output(command, arguments, done.returncode, fault_of(done))


def fault_of(done: subprocess.CompletedProcess[str]) -> str:
    """What is wrong with a run: no JSON where there must be, JSON where none may be, or a traceback."""
    if "Traceback" in done.stderr:
        return "a traceback: " + done.stderr[-300:]
    if done.returncode == 2:
        complained = len(done.stderr.strip().splitlines()) == 1 and not done.stdout
        return "" if complained else f"status 2: {done.stdout}{done.stderr}"[:300]
    if done.returncode not in (0, 1):
        return f"status {done.returncode}: {done.stderr}"[:300]
    if not done.stdout and done.returncode == 1:
        return "" if done.stderr else "status 1, and not a word"
    try:
        json.loads(done.stdout)
    except json.JSONDecodeError as error:
        return f"not JSON: {error}: {done.stdout[:200]}"
    return ""


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/reliability.md")
    arguments = parser.parse_args()
    found: list[Output] = []
    with tempfile.TemporaryDirectory() as place:
        prepare(Path(place))
        for output in study(Path(place), arguments.runs, arguments.seed):
            found.append(output)
            print(output.command, output.status, output.fault or "ok", file=sys.stderr, flush=True)
    rows: list[Sequence[str]] = []
    for command in COMMANDS:
        mine = [output for output in found if output.command == command]
        answers = sum(output.status in (0, 1) for output in mine)
        rows.append((f"`{command}`", str(len(mine)), str(answers), str(sum(bool(o.fault) for o in mine))))
    header = ("command", "runs", "answers", "failures")
    write_section("json", header, rows, [asdict(output) for output in found], write=arguments.write)
    return 1 if any(output.fault for output in found) else 0


if __name__ == "__main__":
    sys.exit(main())
