"""The study of interrupts: Ctrl-C and SIGTERM at random moments of every command that takes long.

``python -m tests.reliability.interrupts --moments 20 --write``, from the root of the repository, writes
docs/data/reliability-interrupts.json and the table in docs/reliability.md; without ``--write`` it prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from random import Random

from pebbler.cli.main import main as run

from .pages import write_section

ALLOWED = 2.0
"""Seconds that a command may take to end."""

PATIENCE = 60.0
"""Seconds after which a command that does not end is killed."""

PEBBLER = (sys.executable, "-m", "pebbler")


@dataclass(frozen=True, slots=True)
class Command:
    """A command that takes long: what it is called here, its arguments, and the files that keep its best.

    `kept` are checked by the commands of `checks` where they are there: files under a budget of moments that
    come too early have none.
    """

    name: str
    arguments: tuple[str, ...]
    seconds: float
    checks: Callable[[Path], Iterator[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """What a signal did to a command."""

    command: str
    moment: float
    signal: str
    seconds: float
    status: int
    faults: tuple[str, ...]


def commands(folder: Path) -> tuple[Command, ...]:
    """The commands, on files of a folder that `prepare` has made."""
    instance, lenet = str(folder / "vgg16.instance.json"), str(folder / "lenet.instance.json")
    long, hard = str(folder / "resnet1517.instance.json"), str(folder / "alexnet.instance.json")
    tiny = str(folder / "tiny" / "residual-sizes-s2.instance.json")
    again, buffers = str(folder / "again.instance.json"), str(folder / "buffers.csv")

    def solve(method: str, file: str, seconds: float = 8.0) -> Command:
        arguments = (
            "solve",
            file,
            "--method",
            method,
            "--time-limit",
            "20s",
            "-o",
            "s.schedule.json",
            "--json",
        )
        return Command(f"solve --method {method}", arguments, seconds, lambda at: _checked(file, at))

    limit = ("--time-limit", "20s")
    search = "frontier resnet50 --batch 256 --device v100 --budget 14GiB --over link --overhead 5%"
    return (
        Command(
            "bound",
            ("bound", instance, *limit, "-o", "b.certificate.json", "--json"),
            8.0,
            lambda at: _proven(instance, at),
        ),
        *(solve(method, instance) for method in ("flow", "local-search")),
        solve("modnn", long, 4.0),
        solve("cp-sat", hard),
        solve("brute-force", tiny),
        *(solve(method, again) for method in ("checkmate", "poet", "flow-recompute")),
        Command(
            "compare",
            (
                "compare",
                instance,
                "--methods",
                "modnn,vdnn-all-p,vdnn-all-m,vdnn-conv-m,vdnn-dyn,flow",  # so many that another process draws
                "--time-limit",
                "20s",
                "--out",
                "out",
            ),
            10.0,
            _compared,
        ),
        Command(
            "frontier",
            ("frontier", instance, "--method", "flow", "--time-limit", "3s", "--points", "3", "-o", "out"),
            12.0,
            _nothing,
        ),
        Command(
            "frontier --over link",
            (*search.split(), *limit, "-o", "out", "--json"),
            10.0,
            _nothing,
        ),
        Command("fits", ("fits", "resnet50", *limit, "--json"), 10.0, _nothing),
        Command("bench", ("bench", str(folder / "bench.toml"), "-o", "r.sqlite"), 8.0, _nothing),
        Command("report", ("report", str(folder / "r.sqlite"), "-o", "page"), 4.0, _nothing),
        Command("pack", ("pack", buffers, *limit, "-o", "p.csv", "--json"), 6.0, _nothing),
        Command(
            "streams",
            ("streams", "caffenet/conv1", "--json"),
            2.0,
            _nothing,
        ),
        Command(
            "run",
            ("run", lenet, str(folder / "lenet.schedule.json"), "--backend", "cpu", "--repeat", "500"),
            5.0,
            _nothing,
        ),
    )


def _nothing(_: Path) -> Iterator[tuple[str, ...]]:
    return iter(())


def _checked(file: str, at: Path) -> Iterator[tuple[str, ...]]:
    if (at / "s.schedule.json").exists():
        yield ("check", file, "s.schedule.json")


def _proven(file: str, at: Path) -> Iterator[tuple[str, ...]]:
    if (at / "b.certificate.json").exists():
        yield ("check-bound", file, "b.certificate.json")


def _compared(at: Path) -> Iterator[tuple[str, ...]]:
    for schedule in sorted(at.glob("out/*.schedule.json")):
        instance = schedule.with_name(schedule.name.split(".")[0] + ".instance.json")
        yield ("check", str(instance), str(schedule))


def prepare(folder: Path, names: Collection[str] = ()) -> None:
    """Make the files that the commands read, or those of some names."""
    made = (
        "instance vgg16 --batch 256 --budget 1.05xMmin -o vgg16.instance.json",
        "instance lenet --batch 64 --budget 1.1xMmin -o lenet.instance.json",
        "instance resnet34 --batch 32 --budget 1.2xMmin --recompute -o again.instance.json",
        "instance resnet1517 --batch 16 --budget 1.05xMmin -o resnet1517.instance.json",
        "instance alexnet --batch 128 --budget 1.0xMmin -o alexnet.instance.json",
        "generate tiny -o tiny",
        "solve lenet.instance.json --method modnn -o lenet.schedule.json",
        "bench short.toml -o r.sqlite",
    )
    rng = Random(1)
    lines = ["id,lower,upper,size"]
    for i in range(2200):
        first = rng.randint(0, 900)
        lines.append(f"{i},{first},{first + rng.randint(1, 900)},{rng.randint(1, 40)}")
    (folder / "buffers.csv").write_text("\n".join(lines) + "\n")
    (folder / "bench.toml").write_text(BENCH)
    (folder / "short.toml").write_text(BENCH.replace("6s", "0.2s"))
    for line in made if not names else [line for line in made if line.split()[-1] in names]:
        with chdir(folder), redirect_stdout(StringIO()):
            assert run(line.split()) == 0, line


BENCH = """
title = "A sweep to be interrupted"

[[sweep]]
methods = ["modnn", "local-search", "flow"]
time_limits = ["6s"]

[[sweep.workloads]]
network = "vgg16"
batch = 64
device = "k40"
budgets = ["1.1xMmin"]
"""


def interrupt(
    command: Command, moment: float, signals: Sequence[int], apart: float = 0.2, allowed: float = ALLOWED
) -> Interrupt:
    """Start a command, send it signals from a moment on, and say what was wrong with how it ended."""
    scratch = Path(tempfile.mkdtemp(prefix="interrupted-"))
    temporary, place = scratch / "tmp", scratch / "work"
    temporary.mkdir()
    place.mkdir()
    process = subprocess.Popen(
        [*PEBBLER, *command.arguments],
        cwd=place,
        env={**os.environ, "TMPDIR": str(temporary), "PEBBLER_STUDY": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _await_handlers(process)
    try:
        out, errors = process.communicate(timeout=moment)
        sent = False
    except subprocess.TimeoutExpired:
        sent = True
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            if number is not signals[-1]:
                time.sleep(apart)
        try:
            out, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
    seconds = time.monotonic() - began if sent else 0.0
    faults = []
    wanted = (128 + signals[0], 0) if sent else (0, 1)  # 0: all was done when the signal came
    if process.returncode not in wanted:
        faults.append(f"status {process.returncode}: {errors[-200:].strip()}")
    if "Traceback" in errors or "Exception ignored" in errors:
        faults.append("a traceback: " + errors[-300:])
    if seconds > allowed:
        faults.append(f"{seconds:.1f} s to end")
    if out and "--json" in command.arguments:
        try:
            json.loads(out)
        except json.JSONDecodeError:
            faults.append("its output is not JSON")
    if left := _processes(str(scratch)):
        faults.append(f"processes left: {left}")
    if names := [path.name for path in temporary.iterdir()]:
        faults.append(f"temporary files left: {names}")
    if hidden := [path.name for path in place.rglob(".*")]:
        faults.append(f"half-written files: {hidden}")
    for arguments in command.checks(place):
        with chdir(place), redirect_stdout(StringIO()) as told, redirect_stderr(told):
            status = run(arguments)
        if status:
            faults.append(f"{' '.join(arguments[:1])}: {told.getvalue()}"[:300])
    shutil.rmtree(scratch)
    name = "+".join(signal.Signals(number).name for number in signals)
    return Interrupt(
        command.name, moment, name if sent else "none", seconds, process.returncode, tuple(faults)
    )


def _await_handlers(process: subprocess.Popen[str]) -> None:
    """Wait until the program has the signals in hand: before that, they are Python's."""
    place = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        lines = place.read_text().splitlines()
        caught = next((line for line in lines if line.startswith("SigCgt")), "SigCgt: 0")
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.002)


def _processes(mark: str) -> list[int]:
    """Processes with a mark in their environment, a moment from now."""
    deadline = time.monotonic() + 1.0
    while True:
        found = []
        for place in Path("/proc").iterdir():
            if not place.name.isdecimal():
                continue
            try:
                state = (place / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z" and mark in (place / "environ").read_text(errors="replace"):
                    found.append(int(place.name))
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def study(folder: Path, moments: int, seed: int, only: Sequence[str] = ()) -> Iterator[Interrupt]:
    """Interrupt every command at random moments: a quarter by SIGTERM, a quarter twice.

    A command that ends before its moment is started again, up to twice as often as there are moments, and
    later moments are drawn from the time before that one.
    """
    rng = Random(seed)
    for command in commands(folder):
        if only and command.name not in only:
            continue
        latest, sent = command.seconds, 0
        for _ in range(3 * moments):
            signals = [signal.SIGTERM if sent % 4 == 3 else signal.SIGINT]
            if sent % 4 == 2:
                signals.append(signal.SIGINT)
            one = interrupt(command, rng.uniform(0.0, latest), signals, rng.uniform(0.0, 0.3))
            yield one
            sent += one.signal != "none"
            if sent == moments:
                break
            if one.signal == "none":
                latest = one.moment


def main() -> int:
    """Run the study."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored would be ignored by commands
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/reliability.md")
    arguments = parser.parse_args()
    done: list[Interrupt] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        for one in study(folder, arguments.moments, arguments.seed, arguments.only):
            done.append(one)
            told = "; ".join(one.faults) or "ok"
            line = f"{one.command:26} {one.signal:14} at {one.moment:5.2f} s: {one.seconds:4.2f} s, {told}"
            print(line, file=sys.stderr, flush=True)
    rows = []
    for name in dict.fromkeys(one.command for one in done):
        mine = [one for one in done if one.command == name]
        sent = [one for one in mine if one.signal != "none"]
        worst = max((one.seconds for one in sent), default=0.0)
        rows.append((f"`{name}`", str(len(sent)), f"{worst:.2f}", str(sum(bool(one.faults) for one in mine))))
    header = ("command", "signals", "seconds to end, at most", "failures")
    write_section("interrupts", header, rows, [asdict(one) for one in done], write=arguments.write)
    return 1 if any(one.faults for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
