"""How much host memory is enough for some networks, and gaps of ``flow`` where it is short.

``python docs/scripts/host_memory.py`` asks what the data file lacks; ``--write FILE`` puts the tables into
the page and draws its picture. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from pebbler.benchmark.comparison.least import Least, format_value, least_value
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.pictures.sizing import least_picture
from pebbler.benchmark.report.exhibits import percent
from pebbler.instances.files import read_json, write_atomically, write_document
from pebbler.instances.memory import least_host_bytes, with_host_memory
from pebbler.instances.units import PAGE_BYTES, format_size, format_time
from pebbler.instances.workload import Workload
from pebbler.solver.result import Result
from pebbler.solver.solve import solve

DATA = Path("docs/data/host-memory.json")
PICTURE = "images/host-memory.png"
ENOUGH = "<!-- begin enough -->\n", "<!-- end enough -->\n"
GAPS = "<!-- begin gaps -->\n", "<!-- end gaps -->\n"
SECONDS = 60.0
OVERHEAD = 0.05
MEDIAN, WORST = 0.01, 0.05
"""Targets of the gaps."""

_log = logging.getLogger(__name__)


class Case(msgspec.Struct, frozen=True):
    """A network with a batch on a device under a budget."""

    network: str
    batch: int
    device: str
    budget: str
    weights_as_blocks: bool = False
    steady: bool = False

    @property
    def name(self) -> str:
        """All of it."""
        weights = "/steady" if self.steady else "/weights as blocks" if self.weights_as_blocks else ""
        return f"{self.network}/{self.batch}/{self.device}/{self.budget}{weights}"

    @property
    def workload(self) -> Workload:
        """The iteration."""
        return Workload(
            self.network,
            self.batch,
            self.device,
            weights_as_blocks=self.weights_as_blocks,
            steady=self.steady,
        )


CELLS = tuple(
    Case(network, batch, device, budget, steady=steady)
    for network, batch, steady, devices, budgets in (
        ("vgg16", 256, False, ("k40", "v100"), ("1.05xMmin", "1.25xMmin")),
        ("resnet152", 64, False, ("k40", "v100"), ("1.25xMmin", "50%")),
        ("gpt2", 8, True, ("v100", "rtx4090"), ("1.05xMmin", "50%")),
    )
    for device in devices
    for budget in budgets
)
"""What is solved with unlimited host memory, and with little; copies are needed under every budget."""

QUESTIONS = (
    Case("vgg16", 256, "k40", "12GiB"),
    Case("vgg16", 256, "v100", "12GiB"),
    Case("resnet152", 64, "v100", "4GiB"),
    Case("gpt2", 8, "rtx4090", "4GiB", weights_as_blocks=True),
)
"""What is asked how much is enough for it; the first has a picture."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, solved: figures as those of `Result`."""

    makespan_ns: int | None
    lower_bound_ns: int
    certified_lower_bound_ns: int
    bound_by: str
    pinned_bytes: int | None
    stopped_by: str


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, solved twice.

    Attributes
    ----------
    seconds
        Time limit of each solution.
    least_bytes, given_bytes
        Host memory with less than which nothing works, and what was given; None where there was no schedule
        without a limit.
    unlimited, limited
        With unlimited host memory, and with what was given.
    made
        When, where and with what.
    """

    case: Case
    seconds: float
    least_bytes: int
    given_bytes: int | None
    unlimited: Side
    limited: Side | None
    made: str


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """How much is enough for a case."""

    case: Case
    found: Least


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked so far."""

    format: Literal["pebbler/host-memory/1"] = "pebbler/host-memory/1"
    answers: tuple[Answered, ...] = ()
    cells: tuple[Solved, ...] = ()


def solved(case: Case, seconds: float) -> Solved:
    """Solve a cell with unlimited host memory, and then with half of what is between least and pinned."""
    instance = case.workload.instance(case.budget)
    unlimited = solve(instance, "flow", time_limit=seconds, workers=2, memory="paged")
    _stop_if_interrupted(unlimited.stopped_by)
    least, given, limited = least_host_bytes(instance, PAGE_BYTES), None, None
    if unlimited.pinned_bytes is not None:
        given = (least + unlimited.pinned_bytes) // 2
        limited = solve(
            with_host_memory(instance, given),
            "flow",
            time_limit=seconds,
            workers=2,
            memory="paged",
            bound=unlimited.bound,  # it holds for less host memory, too
        )
        _stop_if_interrupted(limited.stopped_by)
    return Solved(
        case=case,
        seconds=seconds,
        least_bytes=least,
        given_bytes=given,
        unlimited=_side(unlimited),
        limited=None if limited is None else _side(limited),
        made=made_here(),
    )


def _side(result: Result) -> Side:
    return Side(**{name: getattr(result, name) for name in Side.__struct_fields__})


def answered(case: Case, seconds: float) -> Answered:
    """Ask how much host memory is enough for a case."""
    instance = case.workload.instance(case.budget)
    found = least_value(instance, "host-memory", OVERHEAD, time_limit=seconds, workers=2, memory="paged")
    _stop_if_interrupted(found.stopped_by)
    return Answered(case=case, found=found)


def _stop_if_interrupted(stopped_by: str) -> None:
    if stopped_by == "interrupted":
        raise KeyboardInterrupt


def ask(
    questions: Sequence[Case], cells: Sequence[Case], seconds: float, path: Path, *, again: bool = False
) -> Data:
    """Ask what a data file lacks at a time limit, and keep each answer as soon as it is there.

    Parameters
    ----------
    questions, cells
        What is asked how much is enough for it, and what is solved.
    seconds
        Time limit of each answer and of each solution.
    path
        The data file.
    again
        Whether to ask what it has, too.
    """
    data = read(path)
    answers = {one.case: one for one in data.answers}
    runs = {one.case: one for one in data.cells}

    def kept() -> Data:
        found = Data(
            answers=tuple(answers[case] for case in QUESTIONS if case in answers),
            cells=tuple(runs[case] for case in CELLS if case in runs),
        )
        write_document(found, path)
        return found

    for case in questions:
        if again or case not in answers or answers[case].found.time_limit != seconds:
            _log.info("how much is enough for %s", case.name)
            answers[case] = answered(case, seconds)
            data = kept()
    for case in cells:
        if again or case not in runs or runs[case].seconds != seconds:
            _log.info("%s", case.name)
            runs[case] = solved(case, seconds)
            data = kept()
    return data


def read(path: Path) -> Data:
    """Read a data file; where there is none, nothing was asked."""
    return read_json(path, Data, "answers on host memory") if path.exists() else Data()


def enough_table(data: Data) -> str:
    """Return what is enough, as Markdown."""
    rows = []
    for one in data.answers:
        found, sides = one.found, []
        for value in dict.fromkeys((found.impossible, found.certified_impossible)):
            if value is not None and value >= (found.least_host_bytes or 0):
                sides.append(format_value(found.over, value))
        time = found.unlimited_ns
        rows.append(
            (
                one.case.name,
                "" if time is None else format_time(time),
                "" if time is None else percent(time / found.ideal_ns - 1),
                format_size(found.least_host_bytes or 0),
                "; ".join(sides) or "nothing proven beyond that",
                "no schedule" if found.least is None else format_value(found.over, found.least),
                f"{found.time_limit:g} s, {found.stopped_by}",
            )
        )
    header = (
        "network/batch/device/budget",
        "time, unlimited",
        "over the ideal",
        "nothing works with less",
        "not enough",
        "enough",
        "search",
    )
    return markdown(header, rows) + _origins(made for one in data.answers for made in one.found.made)


def gaps_table(data: Data) -> str:
    """Return the gaps of the cells, as Markdown, with the targets before them."""
    gaps = [_gap(one.limited) for one in data.cells]
    text = ""
    if gaps:
        told = [
            f"{word} {percent(gap)}, {'met' if gap <= limit else 'missed'}: {percent(limit)}"
            for word, gap, limit in (("median", median(gaps), MEDIAN), ("worst", max(gaps), WORST))
        ]
        text = f"{len(gaps)} cells: {'; '.join(told)}.\n\n"
    rows = []
    for one in data.cells:
        free, tight = one.unlimited, one.limited
        rows.append(
            (
                one.case.name,
                f"{one.seconds:g} s",
                format_size(one.least_bytes),
                _size(free.pinned_bytes),
                _size(one.given_bytes),
                _time(free.makespan_ns),
                "" if tight is None else _time(tight.makespan_ns),
                "" if tight is None else f"{format_time(tight.lower_bound_ns)} ({tight.bound_by})",
                percent(_gap(tight)),
                percent(_gap(tight, certified=True)),
            )
        )
    header = (
        "cell",
        "limit",
        "least",
        "pinned",
        "given",
        "time, unlimited",
        "time, given",
        "bound",
        "gap",
        "certified gap",
    )
    return text + markdown(header, rows) + _origins(one.made for one in data.cells)


def _gap(side: Side | None, *, certified: bool = False) -> float:
    """Return the gap of a solution; infinite without a schedule."""
    if side is None or side.makespan_ns is None:
        return float("inf")
    proven = max(side.certified_lower_bound_ns if certified else side.lower_bound_ns, 1)
    return (side.makespan_ns - proven) / proven


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)


def _time(ns: int | None) -> str:
    return "no schedule" if ns is None else format_time(ns)


def _origins(made: Iterator[str]) -> str:
    """Return when and where answers were made, a line each."""
    return "".join(f"\n{origin}.\n" for origin in dict.fromkeys(made))


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask what is missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/host_memory.py", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help="of each solution; default: 60"
    )
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="names NETWORK/BATCH/DEVICE/BUDGET, with * and ?; none: only the tables; default: all",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="ask what the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    questions, cells = (
        [case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
        for cases in (QUESTIONS, CELLS)
    )
    if not questions and not cells and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    data = ask(questions, cells, options.seconds, options.data, again=options.again)
    publish(enough_table(data), options.write, *ENOUGH)
    publish(gaps_table(data), options.write, *GAPS)
    if options.write is not None and data.answers:
        write_atomically(options.write.parent / PICTURE, least_picture(data.answers[0].found))


if __name__ == "__main__":
    main()
