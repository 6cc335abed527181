"""The fuzzing study: damaged inputs to every command, and what must hold whatever comes in.

``python -m tests.fuzz.study --inputs 20000``, from the root of the repository, writes its result to
docs/data/reliability-fuzz.json and its table into docs/reliability.md; ``--only N`` runs one input again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from pebbler.benchmark.output import markdown as page
from pebbler.benchmark.output.machine import origin
from pebbler.instances.files import write_atomically

from .inputs import FORMS, Form, seeds
from .mutations import damaged, word
from .worker import ERR, OUT, Ran, Worker

DATA, PAGE = Path("docs/data/reliability-fuzz.json"), Path("docs/reliability.md")
BEGIN, END = "<!-- begin fuzz -->", "<!-- end fuzz -->"

STATUSES = (0, 1, 2, 3, 130)
"""Exit statuses that docs/formats.md has; nobody leaves the output here."""

LONGEST = 500
"""Characters of a message."""

Seeds = dict[str, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class Input:
    """A command line and the files that it names, of which some are damaged."""

    number: int
    command: str
    arguments: tuple[str, ...]
    files: dict[str, bytes]


@dataclass(slots=True)
class Tally:
    """What became of the inputs of a command."""

    inputs: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    worst_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def draw(number: int, seed: int, kinds: Seeds) -> Input:
    """Return the input of a number: the same for the same seed, whichever come before it."""
    rng = Random(f"{seed} {number}")
    form = rng.choices(FORMS, [form.weight for form in FORMS])[0] if number >= len(FORMS) else FORMS[number]
    words = _words(form, rng)
    named = [name for text in words for name in re.findall(r"\{(\w+)\}", text) if name in kinds]
    # the instance, the schedule and the certificate at one place go together
    place = rng.choice((0, 0, 1, 2, 3, 4, 5))
    files = {name: kinds[name][min(place, len(kinds[name]) - 1)] for name in dict.fromkeys(named)}
    if files and rng.random() < 0.85:
        name = rng.choice(list(files))
        files[name] = damaged(name, files[name], rng)
    places = {name: _file_name(name) for name in files} | {"out": "out"}
    arguments = tuple(
        re.sub(r"\{(\w+)\}", lambda match: places.get(match[1], match[0]), text) for text in words
    )
    return Input(number, form.command, arguments, {places[name]: data for name, data in files.items()})


def _file_name(name: str) -> str:
    endings = {"device": ".toml", "config": ".toml", "results": ".sqlite", "onnx": ".onnx"}
    endings |= {"buffers": ".csv", "more_buffers": ".csv"}
    return name + endings.get(name, ".json")


def _words(form: Form, rng: Random) -> list[str]:
    """Words of a command line: the form's, with options of its own, and sometimes damaged."""
    words = list(form.words)
    for name in rng.sample(list(form.values), min(len(form.values), rng.choice((0, 0, 0, 1, 2)))):
        good = form.values[name]
        words += [name] if not good else [name, rng.choice(good) if rng.random() < 0.6 else word(rng, good)]
    if rng.random() < 0.5:
        words.append("--json")
    if rng.random() < 0.15:
        spot = rng.randrange(1, len(words)) if len(words) > 1 else 0
        match rng.randrange(4):
            case 0:
                words[spot] = _harmless(words, spot, word(rng, ()))
            case 1:
                del words[spot]
            case 2:
                words.insert(spot, words[spot])
            case _:
                words.insert(
                    spot, rng.choice(("--", "-", "--json=1", "-o", "--no-such", "-v", "--help", "\udcff"))
                )
    return words


def _harmless(words: list[str], spot: int, text: str) -> str:
    """A text in place of a word; how much work is to be done is not made more, for that would be done."""
    amounts = ("--repeat", "--points", "--time-limit", "--batch")
    return "-1" if words[spot - 1] in amounts and re.match(r"\s*\d", text) else text


def judge(given: Input, ran: Ran, folder: Path, before: set[Path]) -> Iterator[str]:
    """Yield what is wrong with what a command did."""
    if ran.status is None:
        yield f"it did not end within {ran.seconds:.1f} s, or took its process with it"
        return
    if ran.status not in STATUSES:
        yield f"its exit status is {ran.status}"
    if "Traceback" in ran.err:
        yield "a traceback: " + ran.err.strip().splitlines()[-1][:300]
        return
    lines = ran.err.splitlines()
    for line in lines:
        if len(line) >= LONGEST:
            yield f"a message of {len(line)} characters: {line[:200]}"
        if not line.isprintable():
            yield f"a message with control characters: {line[:200]!r}"
    if ran.status == 2 and not (lines and lines[-1].startswith("pebbler: ")):
        yield "status 2 without a sentence"
    if not re.fullmatch(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]*", ran.out):
        yield f"control characters in the output: {ran.out[:200]!r}"
    if ran.status in (0, 1) and "--json" in given.arguments and "--help" not in given.arguments:
        try:
            json.loads(ran.out)
        except ValueError as error:
            yield f"no JSON: {error}: {ran.out[:100]!r}"
    yield from _left(ran, set(folder.rglob("*")) - before, folder)


def _left(ran: Ran, made: set[Path], folder: Path) -> Iterator[str]:
    """Files that should not be there: half-written, empty, or of a command that refused its input."""
    files = sorted(place for place in made if place.is_file() and place.name not in (OUT, ERR))
    for place in files:
        name = place.relative_to(folder).as_posix()
        if place.name.startswith(".") or place.name.endswith(("-journal", "-wal")):
            yield f"a file is left over: {name!r}"
        elif place.stat().st_size == 0:
            yield f"an empty file: {name!r}"
        elif ran.status == 2 and place.parent == folder:  # folders keep the whole files that came before
            yield f"status 2, and yet a file: {name!r}"
        elif place.suffix == ".json":
            try:
                json.loads(place.read_bytes())
            except ValueError:
                yield f"half a file: {name!r}"


def conduct(inputs: int, seed: int, *, first: int = 0, show: bool = False) -> dict[str, Tally]:
    """Run inputs, and return what became of them by command."""
    kinds = seeds()
    tallies: dict[str, Tally] = {}
    with Worker() as worker:
        for number in range(first, first + inputs):
            given = draw(number, seed, kinds)
            tally = tallies.setdefault(given.command, Tally())
            folder = Path(mkdtemp(prefix="fuzz-"))
            try:
                for file, data in given.files.items():
                    (folder / file).write_bytes(data)
                before = set(folder.rglob("*"))
                ran = worker.run(list(given.arguments), folder)
                wrong = list(judge(given, ran, folder, before))
            finally:
                if not show:
                    shutil.rmtree(folder)
            tally.inputs += 1
            tally.statuses[str(ran.status)] += 1
            tally.worst_seconds = max(tally.worst_seconds, ran.seconds)
            for what in wrong:
                told = f"{number}: {' '.join(given.arguments)[:200]!r}: {what}"
                tally.failures.append(told)
                print(told, file=sys.stderr, flush=True)
            if show:
                print(folder, given.arguments, ran, *wrong, sep="\n")
            elif number % 1000 == 999:
                print(f"{number + 1} inputs", file=sys.stderr, flush=True)
    return tallies


def markdown(found: dict[str, Tally], seed: int) -> str:
    """Write the study as a Markdown table."""
    header = ("command", "inputs", "done (0)", "no (1)", "refused (2)", "other", "longest", "failures")
    rows = []
    whole = Tally()
    for name, tally in sorted(found.items()):
        rows.append(_row(name, tally))
        whole.inputs += tally.inputs
        whole.statuses += tally.statuses
        whole.worst_seconds = max(whole.worst_seconds, tally.worst_seconds)
        whole.failures += tally.failures
    rows.append(_row("**all**", whole))
    told = f"Seed {seed}; {datetime.now(UTC).date().isoformat()}; {origin()}."
    return f"{page.markdown(header, rows)}\n{told}"


def _row(name: str, tally: Tally) -> tuple[str, ...]:
    known = [tally.statuses[status] for status in ("0", "1", "2")]
    return (
        name,
        f"{tally.inputs:,}",
        *(f"{count:,}" for count in known),
        str(tally.inputs - sum(known)),
        f"{tally.worst_seconds:.1f} s",
        str(len(tally.failures)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz all commands and write what came of it.")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one input, show it and leave its folder")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    if arguments.only is not None:
        conduct(1, arguments.seed, first=arguments.only, show=True)
        return 0
    found = conduct(arguments.inputs, arguments.seed, first=arguments.first)
    table = markdown(found, arguments.seed)
    print(table)
    if not arguments.dry:
        document = {
            "date": datetime.now(UTC).date().isoformat(),
            "seed": arguments.seed,
            "inputs": arguments.inputs,
            "origin": str(origin()),
            "commands": {
                name: {
                    "inputs": tally.inputs,
                    "statuses": dict(sorted(tally.statuses.items())),
                    "worst_seconds": round(tally.worst_seconds, 3),
                    "failures": tally.failures,
                }
                for name, tally in sorted(found.items())
            },
        }
        write_atomically(DATA, (json.dumps(document, indent=1) + "\n").encode())
        page.publish(f"\n{table}\n", PAGE, BEGIN, END)
    return 1 if any(tally.failures for tally in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
