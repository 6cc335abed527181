"""Gaps of ``flow`` at real sizes, where the machine has all that instances can say of it.

``python docs/scripts/machine.py`` makes the runs that the data file lacks; ``--write FILE`` puts the table
into the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.benchmark.report.exhibits import percent
from pebbler.instances.files import read_json, write_document
from pebbler.instances.instance import Instance, Slowdown
from pebbler.instances.memory import ideal_ns
from pebbler.instances.origin import DataPrecision
from pebbler.instances.units import format_size, format_time
from pebbler.instances.workload import Side, Workload
from pebbler.solver.solve import solve
from pebbler.validate.measures import carried_bytes

DATA = Path("docs/data/machine.json")
CELLS_OF_PAGE = "<!-- begin cells -->\n", "<!-- end cells -->\n"
SECONDS = 600.0
SHARE = 0.1
"""Share of the time of a cell for each of the same with the optimizer on one side."""
MEDIAN, WORST = 0.02, 0.05
"""Targets of the gaps."""
SLOWDOWN = Slowdown(offload=47_000, prefetch=47_000)
"""What copies of either direction take of a task's speed, in millionths: the most that vDNN measures."""

_log = logging.getLogger(__name__)


class Cell(msgspec.Struct, frozen=True):
    """A training step under a budget, on an A100 whose memory and host are as small as is said."""

    network: str
    batch: int
    precision: DataPrecision
    budget: str
    host: str

    @property
    def name(self) -> str:
        """All of it."""
        return f"{self.network}/{self.batch}/{self.precision}/{self.budget}/{self.host}"

    def instance(self, side: Side = "choose") -> Instance:
        """Return the step with all keys of the machine, the optimizer where it is asked for."""
        workload = Workload(
            self.network,
            self.batch,
            "a100",
            steady=True,
            optimizer="adamw",
            optimizer_on=side,
            link_both="measured",
            host_memory=self.host,
            precision=self.precision,
        )
        return slowed(workload.instance(self.budget))


def slowed(instance: Instance) -> Instance:
    """Return an instance whose tasks on the device are slowed down by copies."""
    tasks = (
        msgspec.structs.replace(task, slowdown_ppm=SLOWDOWN) if task.device_algorithms else task
        for task in instance.tasks
    )
    return msgspec.structs.replace(instance, tasks=tuple(tasks))


CELLS = (
    *(
        Cell(network, batch, "bf16", budget, "64GiB")
        for network, batches in (("gpt2_xl", (2, 8)), ("llama32_1b", (1, 4)))
        for batch in batches
        for budget in ("16GiB", "24GiB")
    ),
    *(Cell("vgg16", 256, "fp32", budget, "16GiB") for budget in ("1.25xMmin", "75%")),
    *(Cell("resnet152", 64, "fp32", budget, "16GiB") for budget in ("30%", "60%")),
)
"""What is solved."""


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, solved.

    Attributes
    ----------
    seconds
        Time limit.
    ideal_ns
        Least time of the step with memory without end.
    makespan_ns, lower_bound_ns, certified_lower_bound_ns, bound_by, stopped_by
        As those of `Result`.
    carried_bytes
        What the schedule has on the device at both ends.
    on_host, updates
        Steps of the optimizer that run on the host, and all of them.
    device_ns, host_ns
        Time with the optimizer on one side only; None where no schedule was found, or there is none.
    made
        When, where and with what.
    """

    cell: Cell
    seconds: float
    ideal_ns: int
    makespan_ns: int | None
    lower_bound_ns: int
    certified_lower_bound_ns: int
    bound_by: str
    stopped_by: str
    carried_bytes: int | None
    on_host: int | None
    updates: int
    device_ns: int | None
    host_ns: int | None
    made: str


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was solved so far."""

    format: Literal["pebbler/machine/1"] = "pebbler/machine/1"
    cells: tuple[Solved, ...] = ()


def solved(cell: Cell, seconds: float) -> Solved:
    """Solve a cell, and the same with the optimizer on one side."""
    one_side = [makespan(cell, side, SHARE * seconds) for side in ("device", "host")]
    instance = cell.instance()
    result = solve(instance, "flow", time_limit=seconds, workers=2, memory="paged")
    _stop_if_interrupted(result.stopped_by)
    schedule = result.schedule
    return Solved(
        cell=cell,
        seconds=seconds,
        ideal_ns=ideal_ns(instance),
        makespan_ns=result.makespan_ns,
        lower_bound_ns=result.lower_bound_ns,
        certified_lower_bound_ns=result.certified_lower_bound_ns,
        bound_by=result.bound_by,
        stopped_by=result.stopped_by,
        carried_bytes=None if schedule is None else carried_bytes(schedule),
        on_host=None if schedule is None else sum(o.stream == "host" for o in schedule.operations),
        updates=sum(task.may_run_on_host for task in instance.tasks),
        device_ns=one_side[0],
        host_ns=one_side[1],
        made=made_here(),
    )


def makespan(cell: Cell, side: Side, seconds: float) -> int | None:
    """Return the time of a cell with the optimizer on one side; None without a schedule."""
    result = solve(cell.instance(side), "flow", time_limit=seconds, workers=2, memory="paged")
    _stop_if_interrupted(result.stopped_by)
    return result.makespan_ns


def _stop_if_interrupted(stopped_by: str) -> None:
    if stopped_by == "interrupted":
        raise KeyboardInterrupt


def run(cells: Sequence[Cell], seconds: float, path: Path, *, again: bool = False) -> Data:
    """Solve the cells that a data file lacks at a time limit, and keep each as soon as it is there.

    Parameters
    ----------
    cells
        What is solved.
    seconds
        Time limit of each.
    path
        The data file.
    again
        Whether to solve what it has, too.
    """
    data = read(path)
    runs = {one.cell: one for one in data.cells}
    for cell in cells:
        if again or cell not in runs or runs[cell].seconds != seconds:
            _log.info("%s", cell.name)
            runs[cell] = solved(cell, seconds)
            data = Data(cells=tuple(runs[one] for one in CELLS if one in runs))
            write_document(data, path)
    return data


def read(path: Path) -> Data:
    """Read a data file; where there is none, nothing was solved."""
    return read_json(path, Data, "gaps on a whole machine") if path.exists() else Data()


def table(data: Data) -> str:
    """Return the gaps of the cells, as Markdown, with the targets before them."""
    gaps = [_gap(one) for one in data.cells]
    text = ""
    if gaps:
        told = [
            f"{word} {percent(gap)}, {'met' if gap <= limit else 'missed'}: {percent(limit)}"
            for word, gap, limit in (("median", median(gaps), MEDIAN), ("worst", max(gaps), WORST))
        ]
        text = f"{len(gaps)} of {len(CELLS)} cells: {'; '.join(told)}.\n\n"
    rows = [
        (
            one.cell.name,
            f"{one.seconds:g} s",
            format_time(one.ideal_ns),
            _time(one.device_ns),
            _time(one.host_ns),
            _time(one.makespan_ns),
            "" if one.on_host is None else f"{one.on_host} of {one.updates}",
            "" if one.carried_bytes is None else format_size(one.carried_bytes),
            f"{format_time(one.lower_bound_ns)} ({one.bound_by})",
            percent(_gap(one)),
            percent(_gap(one, certified=True)),
        )
        for one in data.cells
    ]
    header = (
        "cell",
        "limit",
        "ideal",
        "optimizer on the device",
        "on the host",
        "chosen",
        "steps on the host",
        "on the device",
        "bound",
        "gap",
        "certified gap",
    )
    origins = "".join(f"\n{origin}.\n" for origin in dict.fromkeys(one.made for one in data.cells))
    return text + markdown(header, rows) + origins


def _gap(one: Solved, *, certified: bool = False) -> float:
    """Return the gap of a solution; infinite without a schedule."""
    if one.makespan_ns is None:
        return float("inf")
    proven = max(one.certified_lower_bound_ns if certified else one.lower_bound_ns, 1)
    return (one.makespan_ns - proven) / proven


def _time(ns: int | None) -> str:
    return "no schedule" if ns is None else format_time(ns)


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve what is missing, and put the table into a page or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/machine.py", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"of each cell; default: {SECONDS:g}"
    )
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="names NETWORK/BATCH/PRECISION/BUDGET/HOST, with * and ?; none: only the table; default: all",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="solve what the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    cells = [cell for cell in CELLS if any(fnmatchcase(cell.name, pattern) for pattern in patterns)]
    if not cells and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    data = run(cells, options.seconds, options.data, again=options.again)
    publish(table(data), options.write, *CELLS_OF_PAGE)


if __name__ == "__main__":
    main()
