"""When an optimizer belongs on the host, over the speed of the link and of the host, with proof: a map.

``python docs/scripts/optimizer_side.py`` solves what the data file lacks; ``--write FILE`` puts what is found
into the page and draws its picture. It can be stopped at any time, and goes on where it was. Nothing in it
ends by the clock, so that it finds the same on every machine.
"""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from pebbler.benchmark.output.captions import caption
from pebbler.benchmark.output.drawing import footnote, png
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.files import read_json, write_atomically, write_document
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import in_pages
from pebbler.instances.units import format_time
from pebbler.instances.workload import Side, Workload
from pebbler.solver.bounds import critical_path_bound
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.solve import solve

DATA = Path("docs/data/optimizer-side.json")
PICTURE = "images/optimizer-side.png"
MARKS = "<!-- begin sides -->\n", "<!-- end sides -->\n"

NETWORK, BATCH, DEVICE, BUDGET = "llama_block", 1, "a100", "1.5GiB"
LINKS = (6, 9, 13, 18, 25, 50)
"""Rates of the link in each direction, in GB/s."""
HOSTS = (25, 50, 100, 200)
"""What a step of the optimizer on the host reads and writes, in GB/s."""
BOTH = 1.43
"""What both directions get together, as a multiple of one: that of the A100's link, as others measured it."""

Verdict = Literal["device", "host", "some", "open"]
COLOURS: dict[Verdict, str] = {"device": "#a6d3ee", "host": "#f7d08a", "some": "#b7ddb0", "open": "#e4e4e4"}
TOLD: dict[Verdict, str] = {
    "device": "on the device: proven better than on the host",
    "host": "on the host: proven better than on the device",
    "some": "some of it on each side: proven better than either",
    "open": "not proven",
}
SHORT: dict[Verdict, str] = {"device": "device", "host": "host", "some": "some on each", "open": ""}

_log = logging.getLogger(__name__)


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """An iteration whose optimizer is on the device, on the host, or where the schedule says.

    Attributes
    ----------
    side, link, host
        Where the optimizer is, and the speeds in GB/s; on the device the host's does not matter: None.
    makespan_ns
        The schedule's; None without one.
    bound_ns
        What is proven in exact arithmetic.
    made
        When, where and with what.
    """

    side: Side
    link: int
    host: int | None
    makespan_ns: int | None
    bound_ns: int
    made: str

    @property
    def key(self) -> Key:
        """What was solved."""
        return self.side, self.link, self.host


Key = tuple[Side, int, int | None]


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was solved so far."""

    format: Literal["pebbler/optimizer-side/1"] = "pebbler/optimizer-side/1"
    solved: tuple[Solved, ...] = ()


def points() -> list[Key]:
    """Return what is solved: on the device at each link, else at each link with each host."""
    found: list[Key] = [("device", link, None) for link in LINKS]
    sides: tuple[Side, ...] = ("host", "choose")
    found += [(side, link, host) for side in sides for link in LINKS for host in HOSTS]
    return found


def instance(side: Side, link: int, host: int | None) -> Instance:
    """Return the iteration with its optimizer on a side."""
    return Workload(
        NETWORK,
        BATCH,
        DEVICE,
        steady=True,
        optimizer="adamw",
        optimizer_on=side,
        link=f"{link}GB/s",
        link_both=round(BOTH * link * 10**9),
        host_bandwidth=None if host is None else f"{host}GB/s",
    ).instance(BUDGET)


def solved(key: Key) -> Solved:
    """Solve a point: a linear program with a checkpoint at every task, and a search until it is done.

    The bound is the better of the program's and of the critical path, which has the last steps of a host.
    """
    side, link, host = key
    iteration = instance(*key)
    bound = critical_path_bound(iteration)
    if (program := flow_bound(in_pages(iteration), range(len(iteration.tasks)), solver="glop")) is not None:
        bound = bound.raised(program)
    result = solve(iteration, "local-search", memory="paged", bound=bound)
    if result.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return Solved(
        side=side,
        link=link,
        host=host,
        makespan_ns=result.makespan_ns,
        bound_ns=result.certified_lower_bound_ns,
        made=made_here(),
    )


def ask(wanted: Iterable[Key], path: Path, *, again: bool = False) -> Data:
    """Solve what a data file lacks, or all again; each point is kept as soon as it is there."""
    data = read(path)
    known = {one.key: one for one in data.solved}
    order = points()
    for key in wanted:
        if not again and key in known:
            continue
        _log.info("%s, link %s, host %s", *key)
        known[key] = solved(key)
        data = Data(solved=tuple(known[one] for one in order if one in known))
        write_document(data, path)
    return data


def read(path: Path) -> Data:
    """Read a data file; where there is none, nothing was solved."""
    return read_json(path, Data, "sides of an optimizer") if path.exists() else Data()


@dataclass(frozen=True, slots=True)
class Times:
    """What is known of one side at a link and a host: the shortest schedule and the best bound, in ns."""

    shortest: float
    bound: int


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known at a link and a host, of the optimizer on the device, on the host, and on either side."""

    device: Times
    host: Times
    choose: Times

    @property
    def verdict(self) -> Verdict:
        """Where the optimizer is proven to belong."""
        if self.choose.shortest < min(self.device.bound, self.host.bound):
            return "some"
        if self.host.shortest < self.device.bound:
            return "host"
        return "device" if self.device.shortest < self.host.bound else "open"

    @property
    def gain(self) -> float:
        """By how much the side of the verdict is proven shorter, of the time of the other, or of both."""
        other = {
            "some": min(self.device.bound, self.host.bound),
            "host": self.device.bound,
            "device": self.host.bound,
        }
        ours = {"some": self.choose, "host": self.host, "device": self.device}
        verdict = self.verdict
        return 0.0 if verdict == "open" else 1 - ours[verdict].shortest / other[verdict]


def cells(data: Data) -> dict[tuple[int, int], Cell]:
    """Return what is known at each link and host where all three were solved.

    Either side alone is a choice that `choose` has: its schedules are schedules of that, and the bounds of
    that hold for it.
    """
    known = {one.key: one for one in data.solved}

    def shortest(*keys: Key) -> float:
        found = (known[key].makespan_ns for key in keys)
        return min((time for time in found if time is not None), default=float("inf"))

    def bound(*keys: Key) -> int:
        return max(known[key].bound_ns for key in keys)

    made = {}
    for link, host in product(LINKS, HOSTS):
        device: Key = ("device", link, None)
        there: Key = ("host", link, host)
        either: Key = ("choose", link, host)
        if not known.keys() >= {device, there, either}:
            continue
        made[link, host] = Cell(
            device=Times(shortest(device), bound(device, either)),
            host=Times(shortest(there), bound(there, either)),
            choose=Times(shortest(device, there, either), bound(either)),
        )
    return made


def side_table(data: Data) -> str:
    """Return at how many points which side is proven, and the times at some hosts, as Markdown."""
    known = cells(data)
    counts = Counter(cell.verdict for cell in known.values())
    text = f"{len(known)} points. " + "; ".join(f"{TOLD[verdict]}: {counts[verdict]}" for verdict in TOLD)
    rows = []
    for (link, host), cell in known.items():
        times = map(_told, (cell.device, cell.host, cell.choose))
        rows.append((f"{link} GB/s", f"{host} GB/s", *times, SHORT[cell.verdict]))
    header = ("link", "host", "on the device", "on the host", "on either side", "proven better")
    origins = dict.fromkeys(one.made for one in data.solved)
    return f"{text}.\n\n{markdown(header, rows)}" + "".join(f"\n{origin}.\n" for origin in origins)


def _told(times: Times) -> str:
    """Return the shortest schedule, and what is proven."""
    shortest = "no schedule" if times.shortest == float("inf") else format_time(int(times.shortest))
    return f"{shortest} (at least {format_time(times.bound)})"


def side_picture(data: Data) -> bytes:
    """Draw where the optimizer is proven to belong, as PNG: a cell a point, with what is gained at least."""
    known = cells(data)
    with style.context("default"):
        figure = Figure(figsize=(9.0, 6.4), dpi=150, layout="constrained")
        axes = figure.subplots()
        for (link, host), cell in known.items():
            x, y = LINKS.index(link), HOSTS.index(host)
            verdict = cell.verdict
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=COLOURS[verdict], edgecolor="white"))
            if verdict != "open":
                axes.text(x, y, f"{cell.gain:.1%}", ha="center", va="center", fontsize=10)
        axes.set_xlim(-0.5, len(LINKS) - 0.5)
        axes.set_ylim(-0.5, len(HOSTS) - 0.5)
        axes.set_xticks(range(len(LINKS)), list(map(str, LINKS)))
        axes.set_yticks(range(len(HOSTS)), list(map(str, HOSTS)))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(f"link in each direction (GB/s); both together get {BOTH} times as much")
        axes.set_ylabel("optimizer's step on the host (GB/s)")
        found = [verdict for verdict in TOLD if any(cell.verdict == verdict for cell in known.values())]
        axes.legend(
            handles=[Patch(facecolor=COLOURS[verdict], label=TOLD[verdict]) for verdict in found],
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=2,
            frameon=False,
            fontsize=10,
        )
        figure.suptitle(
            f"{NETWORK}, batch {BATCH}, on {DEVICE.upper()} with {BUDGET}: where AdamW belongs",
            fontsize=12,
        )
        subject = "local search, paged memory, one link for both directions"
        footnote(figure, caption(subject, dict.fromkeys(one.made for one in data.solved)))
        return png(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve what is missing, and put what is found into a page or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/optimizer_side.py", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument(
        "--points",
        default="*",
        metavar="PATTERN,...",
        help="names SIDE/LINK/HOST, such as choose/13/100, with * and ?; none: only the table; default: all",
    )
    parser.add_argument("--again", action="store_true", help="solve what the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.points.split(",")
    wanted = [key for key in points() if any(fnmatchcase("/".join(map(str, key)), p) for p in patterns)]
    if not wanted and options.points != "none":
        parser.error(f"no point matches '{options.points}'")
    data = ask(wanted, options.data, again=options.again)
    publish(side_table(data), options.write, *MARKS)
    if options.write is not None and data.solved:
        write_atomically(options.write.parent / PICTURE, side_picture(data))


if __name__ == "__main__":
    main()
