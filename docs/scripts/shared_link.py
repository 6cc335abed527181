"""What a link that both directions share costs each method; what it costs at least and at most, with proof.

``python docs/scripts/shared_link.py`` solves what the data file lacks; ``--write FILE`` puts the tables into
the page. It can be stopped at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from pebbler.benchmark.output.machine import made_here
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.files import read_json, write_document
from pebbler.instances.instance import Instance
from pebbler.instances.origin import Optimizer
from pebbler.instances.transforms import in_pages
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import Bound
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.solve import solve

DATA = Path("docs/data/shared-link.json")
METHOD_TABLE = "<!-- begin methods -->\n", "<!-- end methods -->\n"
PROOF_TABLE = "<!-- begin proofs -->\n", "<!-- end proofs -->\n"
SECONDS = 15.0

FEW = 100
"""Tasks up to which FLOW is solved as a linear program with a checkpoint at each, which takes seconds."""

METHODS = ("vdnn-all-m", "vdnn-dyn", "tensorflow-rule", "modnn", "flow")
"""Methods of the table; the last one proves bounds."""

_log = logging.getLogger(__name__)


class Case(msgspec.Struct, frozen=True):
    """A network with a batch on a device under a budget, and what its link passes in both directions."""

    network: str
    batch: int
    device: str
    budget: str
    both: str
    optimizer: Optimizer | None = None

    @property
    def name(self) -> str:
        """All of it but the link."""
        steady = "" if self.optimizer is None else f"/{self.optimizer}"
        return f"{self.network}/{self.batch}/{self.device}/{self.budget}{steady}"

    def instance(self, *, shared: bool) -> Instance:
        """Return the iteration, with or without the shared link; with an optimizer, it is a steady state."""
        return Workload(
            self.network,
            self.batch,
            self.device,
            steady=self.optimizer is not None,
            optimizer=self.optimizer,
            link_both=self.both if shared else None,
        ).instance(self.budget)


CASES = (
    Case("vgg16", 256, "v100", "1.25xMmin", "17.1GB/s"),
    Case("resnet50", 64, "a100", "1.5xMmin", "measured"),
    Case("vgg16", 64, "k40", "60%", "17.1GB/s", "adam"),
    Case("vgg16", 64, "v100", "60%", "17.1GB/s", "adam"),
    Case("vgg16", 64, "a100", "60%", "measured", "adam"),
    Case("llama_block", 1, "v100", "1.5GiB", "17.1GB/s", "adamw"),
    Case("llama_block", 1, "a100", "1.5GiB", "measured", "adamw"),
    Case("llama_block", 1, "a100", "2.5GiB", "measured", "adamw"),
    Case("gpt2", 8, "v100", "50%", "17.1GB/s", "adamw"),
    Case("gpt2", 8, "a100", "50%", "measured", "adamw"),
)
"""Single iterations, and steady states with their optimizer on the device.

The A100's link was measured: 71 % of what both directions pass alone, which the others have here, too.
"""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a method found of a case: figures as those of `Result`."""

    makespan_ns: int | None
    lower_bound_ns: int
    certified_lower_bound_ns: int
    bound_by: str
    stopped_by: str


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """A case, solved by each method.

    Attributes
    ----------
    seconds
        Time limit of each method.
    apart, shared
        By method, what was found with directions that know nothing of each other, and with a shared link.
    made
        When, where and with what.
    """

    case: Case
    seconds: float
    apart: dict[str, Figures]
    shared: dict[str, Figures]
    made: str


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was solved so far."""

    format: Literal["pebbler/shared-link/1"] = "pebbler/shared-link/1"
    cases: tuple[Solved, ...] = ()


class Proof(msgspec.Struct, frozen=True):
    """The shortest schedules of a case and the best bounds, apart and shared, in nanoseconds.

    Attributes
    ----------
    apart_ns, shared_ns
        The shortest schedules. One for a shared link is one for directions that are apart, too, and takes no
        longer there.
    apart_bound_ns, shared_bound_ns
        The best bounds. One for directions that are apart holds for a shared link, too.
    """

    apart_ns: int
    shared_ns: int
    apart_bound_ns: int
    shared_bound_ns: int

    @property
    def at_least(self) -> float:
        """What the shared link costs the best schedule at least."""
        return max(self.shared_bound_ns / self.apart_ns - 1, 0.0)

    @property
    def at_most(self) -> float:
        """What it costs the best schedule at most."""
        return self.shared_ns / self.apart_bound_ns - 1


def proof(one: Solved, *, certified: bool = False) -> Proof | None:
    """Return what a case proves, by the best bounds or in exact arithmetic; None without both schedules."""
    apart, shared = (
        [found.makespan_ns for found in side.values() if found.makespan_ns is not None]
        for side in (one.apart, one.shared)
    )
    if not shared:
        return None
    bounds = []
    for side in (one.apart, one.shared):
        found = (f.certified_lower_bound_ns if certified else f.lower_bound_ns for f in side.values())
        bounds.append(max(found))
    return Proof(min(*apart, *shared), min(shared), bounds[0], max(bounds))


def solved(case: Case, seconds: float) -> Solved:
    """Solve a case by each method, with directions that know nothing of each other and with a shared link."""
    bound: Bound | None = None
    sides: list[dict[str, Figures]] = []
    for shared in (False, True):
        instance, found = case.instance(shared=shared), {}
        if len(instance.tasks) <= FEW:
            linear = flow_bound(in_pages(instance), range(len(instance.tasks)), solver="glop")
            if linear is not None:
                bound = linear if bound is None else bound.raised(linear)
        for method in METHODS:
            result = solve(
                instance,
                method,
                time_limit=seconds,
                workers=2,
                memory="paged",
                bound=bound,  # it holds for a shared link, too
            )
            if result.stopped_by == "interrupted":
                raise KeyboardInterrupt
            found[method] = Figures(**{name: getattr(result, name) for name in Figures.__struct_fields__})
        bound = result.bound
        sides.append(found)
    return Solved(case=case, seconds=seconds, apart=sides[0], shared=sides[1], made=made_here())


def ask(cases: Sequence[Case], seconds: float, path: Path, *, again: bool = False) -> Data:
    """Solve what a data file lacks at a time limit, or all again; each is kept as soon as it is there."""
    data = read(path)
    runs = {one.case: one for one in data.cases}
    for case in cases:
        if again or case not in runs or runs[case].seconds != seconds:
            _log.info("%s", case.name)
            runs[case] = solved(case, seconds)
            data = Data(cases=tuple(runs[case] for case in CASES if case in runs))
            write_document(data, path)
    return data


def read(path: Path) -> Data:
    """Read a data file; where there is none, nothing was solved."""
    return read_json(path, Data, "what a shared link costs") if path.exists() else Data()


def method_table(data: Data) -> str:
    """Return the times of each method with a shared link, and what that costs it, as Markdown."""
    rows = []
    for one in data.cases:
        rows.append((one.case.name, *(_cost(one.apart, one.shared, method) for method in METHODS)))
    return markdown(("network/batch/device/budget", *METHODS), rows)


def proof_table(data: Data) -> str:
    """Return what a shared link costs at least and at most, as Markdown."""
    rows = []
    for one in data.cases:
        told, exact = proof(one), proof(one, certified=True)
        if told is None or exact is None:
            rows.append((one.case.name, one.case.both, *["no schedule"] * 6))
            continue
        times = told.apart_ns, told.apart_bound_ns, told.shared_ns, told.shared_bound_ns
        at_least = _percent(told.at_least)
        if exact.at_least != told.at_least:
            at_least += f" ({_percent(exact.at_least)})"
        rows.append(
            (one.case.name, one.case.both, *map(format_time, times), at_least, _percent(told.at_most))
        )
    header = (
        "network/batch/device/budget",
        "both directions",
        "schedule, apart",
        "bound, apart",
        "schedule, shared",
        "bound, shared",
        "costs at least",
        "at most",
    )
    origins = dict.fromkeys(f"{one.made}, {one.seconds:g} s a method" for one in data.cases)
    return markdown(header, rows) + "".join(f"\n{origin}.\n" for origin in origins)


def _cost(apart: Mapping[str, Figures], shared: Mapping[str, Figures], method: str) -> str:
    """Return the time of a method with a shared link, and by how much it is longer."""
    before, after = apart[method].makespan_ns, shared[method].makespan_ns
    if before is None or after is None:
        return "no schedule"
    return f"{format_time(after)} ({after / before - 1:+.1%})"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solve what is missing, and put the tables into a page or print them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/shared_link.py", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, metavar="S", help=f"of each method; default: {SECONDS:g}"
    )
    parser.add_argument(
        "--cells",
        default="*",
        metavar="PATTERN,...",
        help="names NETWORK/BATCH/DEVICE/BUDGET, with * and ?; none: only the tables; default: all",
    )
    parser.add_argument("--data", type=Path, default=DATA, metavar="FILE", help=f"default: {DATA}")
    parser.add_argument("--again", action="store_true", help="solve what the file has, too")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    patterns = options.cells.split(",")
    cases = [case for case in CASES if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
    if not cases and options.cells != "none":
        parser.error(f"no cell matches '{options.cells}'")
    data = ask(cases, options.seconds, options.data, again=options.again)
    publish(method_table(data), options.write, *METHOD_TABLE)
    publish(proof_table(data), options.write, *PROOF_TABLE)


if __name__ == "__main__":
    main()
