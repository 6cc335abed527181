"""Training steps that G10 has published, with bounds and checked schedules for the same machine.

``python docs/scripts/g10.py COPY`` solves what the data file lacks; COPY is the folder of G10's repository,
in which ``gpg`` has been run with the config of every point. ``--write FILE`` puts the table into the page
and draws its picture. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import logging
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
from matplotlib import style
from matplotlib.figure import Figure

from pebbler.benchmark.output.drawing import png
from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.files import read_bytes, read_json, write_atomically, write_document
from pebbler.instances.foreign.g10 import Weights, instance_of_config
from pebbler.instances.instance import Instance
from pebbler.instances.memory import ideal_ns, unlimited_peak, why_host_is_short
from pebbler.instances.units import format_size, format_time
from pebbler.solver.bounds import best_bound
from pebbler.solver.result import Result
from pebbler.solver.solve import solve

DATA = Path("docs/data/g10.json")
PUBLISHED = Path("docs/data/g10-published.csv")
PICTURE = "images/g10.png"
STEPS = "<!-- begin steps -->\n", "<!-- end steps -->\n"
SECONDS = 60.0
MANY = 0.05
"""Share of the device's memory from which on weights are many; they are then tried on the host, too."""
CYCLES_PER_NS = 1.2
"""Clock of the published runs, which are in cycles."""
SYSTEMS = {"g10": "G10", "deepum": "DeepUM", "flashneuron": "FlashNeuron", "lru": "LRU"}
"""Columns of the published figures, and the names of what they are of."""

_log = logging.getLogger(__name__)


class Published(msgspec.Struct, frozen=True):
    """A point of the paper's Figure 15: times by column, in nanoseconds; None where the system failed."""

    network: str
    batch: int
    times: dict[str, int | None]

    @property
    def name(self) -> str:
        """Network and batch."""
        return f"{self.network}/{self.batch}"


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """A point, solved.

    Attributes
    ----------
    name
        That of the point.
    seconds
        Time limit of a solution.
    ideal_ns
        Least time of the step with memory without end.
    peak_bytes
        Memory that all needs at once, without a limit.
    any_ns
        Certified bound of every step, wherever its weights are before and after, with any host memory.
    why_not
        Why no step within host memory exists; None where that is not proven.
    weights
        Where the shortest schedule found has its weights at both ends.
    makespan_ns, bound_ns, host_peak_bytes, stopped_by
        Of that schedule: its time, the certified bound of schedules with weights there, its host memory, and
        why the search ended.
    made
        When, where and with what.
    """

    name: str
    seconds: float
    ideal_ns: int
    peak_bytes: int
    any_ns: int
    why_not: str | None = None
    weights: Weights | None = None
    makespan_ns: int | None = None
    bound_ns: int | None = None
    host_peak_bytes: int | None = None
    stopped_by: str | None = None
    made: str


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was solved so far."""

    format: Literal["pebbler/g10/1"] = "pebbler/g10/1"
    points: tuple[Solved, ...] = ()


def published() -> tuple[Published, ...]:
    """Read the published figures."""
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                row["network"],
                int(row["batch"]),
                {
                    system: round(int(row[f"{system}_cycles"]) / CYCLES_PER_NS)
                    if row[f"{system}_cycles"]
                    else None
                    for system in (*SYSTEMS, "ideal")
                },
            )
            for row in csv.DictReader(file)
        )


def config_of(copy: Path, point: Published) -> Path:
    """Return the config of a point in a copy of G10, for G10's own policy."""
    return copy / "src" / "configs" / point.network / f"{point.batch}-sim_prefetch_lru.config"


def solved(config: Path, name: str, seconds: float) -> Solved:
    """Bound a point, and solve it unless it is proven that host memory is too small."""
    data = read_bytes(config)
    instance = instance_of_config(data, config)
    free = msgspec.structs.replace(
        instance_of_config(data, config, "allocated"), host_budget_bytes=msgspec.UNSET
    )
    found = Solved(
        name=name,
        seconds=seconds,
        ideal_ns=ideal_ns(instance),
        peak_bytes=unlimited_peak(instance),
        any_ns=best_bound(free).lower_bound_ns,
        why_not=why_host_is_short(instance),
        made=made_here(),
    )
    if found.why_not is not None:
        return found
    weights, result = "carried", _attempt(instance, seconds)
    weights_bytes = sum(block.bytes for block in instance.blocks if block.initially == "carried")
    if result.makespan_ns != found.ideal_ns and weights_bytes > MANY * instance.budget_bytes:
        other = _attempt(instance_of_config(data, config, "host"), seconds)
        if _time(other) < _time(result):
            weights, result = "host", other
    if result.schedule is None:
        return found
    return msgspec.structs.replace(
        found,
        weights=weights,
        makespan_ns=result.makespan_ns,
        bound_ns=result.certified_lower_bound_ns,
        host_peak_bytes=result.schedule.host_peak_bytes,
        stopped_by=result.stopped_by,
    )


def _attempt(instance: Instance, seconds: float) -> Result:
    result = solve(instance, "flow", time_limit=seconds, workers=2, memory="paged")
    if result.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return result


def _time(result: Result) -> float:
    return float("inf") if result.makespan_ns is None else result.makespan_ns


def run(copy: Path, points: Sequence[Published], seconds: float, path: Path, *, again: bool = False) -> Data:
    """Solve the points that a data file lacks at a time limit, each in a process, and keep each at once.

    Parameters
    ----------
    copy
        The folder of G10's repository.
    points
        What is solved.
    seconds
        Time limit of each solution.
    path
        The data file.
    again
        Whether to solve what it has, too.
    """
    data = read(path)
    runs = {one.name: one for one in data.points}
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1) as pool:
        for point in points:
            if again or point.name not in runs or runs[point.name].seconds != seconds:
                _log.info("%s", point.name)
                found = pool.submit(solved, config_of(copy, point), point.name, seconds).result()
                runs[point.name] = found
                data = Data(points=tuple(runs[one.name] for one in published() if one.name in runs))
                write_document(data, path)
    return data


def read(path: Path) -> Data:
    """Read a data file; where there is none, nothing was solved."""
    return read_json(path, Data, "steps of G10") if path.exists() else Data()


def table(data: Data) -> str:
    """Return the steps as Markdown: bounds, published times and what they are over the bound."""
    rows = []
    for point, one in _pairs(data):
        ours = one.makespan_ns
        rows.append(
            (
                point.name,
                format_size(one.peak_bytes),
                format_time(one.ideal_ns),
                format_time(one.any_ns),
                *(_over(point.times[system], one.any_ns) for system in SYSTEMS),
                "the SSD is needed" if one.why_not else "none found" if ours is None else format_time(ours),
                "" if ours is None else _signed(_ratio(point.times["g10"], ours) - 1),
                one.weights or "",
                "" if one.bound_ns is None else format_time(one.bound_ns),
                "" if ours is None else _signed(_ratio(ours, one.bound_ns) - 1),
                "" if one.host_peak_bytes is None else format_size(one.host_peak_bytes),
            )
        )
    header = (
        "network/batch",
        "needs",
        "ideal",
        "bound of G10",
        *SYSTEMS.values(),
        "pebbler",
        "G10 takes more",
        "weights",
        "bound",
        "gap",
        "host memory",
    )
    origins = "".join(f"\n{origin}.\n" for origin in dict.fromkeys(one.made for one in data.points))
    return _summary(data) + markdown(header, rows) + origins


def _summary(data: Data) -> str:
    """Return in one line how far all are from their bounds, and G10 from the schedules."""
    pairs = _pairs(data)
    kept = [(point, one) for point, one in pairs if one.makespan_ns is not None]
    shares = {
        "G10 over its bound": [_ratio(point.times["g10"], one.any_ns) for point, one in pairs],
        "schedules over theirs": [_ratio(one.makespan_ns, one.bound_ns) for _, one in kept],
        "G10 over the schedules": [_ratio(point.times["g10"], one.makespan_ns) for point, one in kept],
    }
    told = [
        f"{what} median {_signed(median(ratios) - 1)}, worst {_signed(max(ratios) - 1)}"
        for what, ratios in shares.items()
        if ratios
    ]
    return f"{len(pairs)} steps, {len(kept)} of them with a schedule: {'; '.join(told)}.\n\n"


def _pairs(data: Data) -> list[tuple[Published, Solved]]:
    """Return each published point that was solved, with what was found."""
    runs = {one.name: one for one in data.points}
    return [(point, runs[point.name]) for point in published() if point.name in runs]


def _ratio(time: int | None, least: int | None) -> float:
    """Return how often one time is the other; without one of them it is no number."""
    return float("nan") if time is None or least is None else time / least


def _over(time: int | None, bound: int) -> str:
    """Return a published time, and in percent what it is over a bound."""
    return "fails" if time is None else f"{format_time(time)} ({_signed(time / bound - 1)})"


def _signed(share: float) -> str:
    return f"{round(100 * share, 2) + 0:+.2f}%" if abs(share) < 1 else f"{100 * share:+.0f}%"


def picture(data: Data) -> bytes:
    """Draw what steps take over the bound of G10 for each network and batch, as PNG."""
    pairs = _pairs(data)
    networks = list(dict.fromkeys(point.network for point, _ in pairs))
    with style.context("default"):
        figure = Figure(figsize=(12.0, 4.2), dpi=150, layout="constrained")
        for axes, network in zip(
            figure.subplots(1, len(networks), sharey=True, squeeze=False)[0], networks, strict=True
        ):
            mine = [(point, one) for point, one in pairs if point.network == network]
            for k, (system, title) in enumerate(SYSTEMS.items()):
                axes.plot(
                    range(len(mine)),
                    [_ratio(point.times[system], one.any_ns) for point, one in mine],
                    marker="osD^"[k],
                    color=("#1f5fa8", "#d98f1e", "#5b9a57", "#999999")[k],
                    label=title,
                )
            axes.plot(
                range(len(mine)),
                [_ratio(one.makespan_ns, one.any_ns) for _, one in mine],
                marker="x",
                color="#b3261e",
                label="Pebbler, without the SSD",
            )
            axes.axhline(1, color="black", linewidth=1)
            axes.set_xticks(range(len(mine)), [str(point.batch) for point, _ in mine], rotation=45)
            axes.set_title(network)
            axes.set_yscale("log", base=2)
            axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
            axes.set_xlabel("batch")
        figure.axes[0].set_ylabel("time over the bound of G10")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5)
        return png(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve what is missing, and put the table into a page or print it."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/g10.py", description=__doc__)
    parser.add_argument("copy", type=Path, nargs="?", metavar="COPY", help="the folder of G10's repository")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"of each solution; default: {SECONDS:g}"
    )
    parser.add_argument(
        "--points", default="*", metavar="PATTERN,...", help="names NETWORK/BATCH, with * and ?; default: all"
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="solve what the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.points.split(",")
    points = [p for p in published() if any(fnmatchcase(p.name, pattern) for pattern in patterns)]
    if not points:
        parser.error(f"no point matches '{options.points}'")
    if options.copy is None:
        data = read(options.data)
    else:
        data = run(options.copy, points, options.seconds, options.data, again=options.again)
    publish(table(data), options.write, *STEPS)
    if options.write is not None and data.points:
        write_atomically(options.write.parent / PICTURE, picture(data))


if __name__ == "__main__":
    main()
