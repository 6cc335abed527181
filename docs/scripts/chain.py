"""Proofs against each other: bounds, exhaustive searches and methods on hundreds of tiny instances.

``python docs/scripts/chain.py`` prints the table of docs/chain.md; ``--write FILE`` puts it into the
page, and ``--count N`` sets the number of instances.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from pebbler.benchmark.output.markdown import publish, row
from pebbler.heuristics.methods import Limits, Refusal, list_methods
from pebbler.heuristics.parts import with_parts
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.instances.suites.tiny import plain, scaled, tiny_instance, twisted
from pebbler.instances.transforms import in_parts
from pebbler.instances.units import PAGE_BYTES
from pebbler.solver.bounds import compute_bound, single_peak_bound
from pebbler.solver.cp_sat.model import solve_divisible
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.model import Integrality, flow_bound
from pebbler.validate.check import check
from pebbler.validate.schedule import MemoryModel, Schedule

COUNT = 600
BEGIN, END = "<!-- begin chain -->\n", "<!-- end chain -->\n"

Values = Mapping[str, float]
"""Makespans and bounds of one instance in nanoseconds; infinite: it was proven that there is no schedule."""

_STATES = 10_000
"""States after which the search in contiguous memory gives up."""

LINKS = (
    ("compute", "single-peak"),
    ("compute", "flow-lp"),
    ("flow-lp", "flow-milp"),
    ("single-peak", "cp-sat"),
    ("flow-milp", "cp-sat"),
    ("cp-sat", "divisible"),
    ("divisible", "cp-sat"),
    ("divisible", "paged"),
    ("paged", "contiguous"),
    ("divisible", "contiguous"),
)
"""What is never above what; the last three are optima by exhaustive search. Methods follow."""


class Link(NamedTuple):
    """How often, and by how much, one value is below another on instances that have both.

    Attributes
    ----------
    below, above
        The values.
    both, equal, strict
        Instances with both, and those with equal and with different values.
    alone
        Of the strict ones, those where only the value above is infinite: proven to have no schedule.
    mean, largest
        Ratio above / below where both are finite and the one below is positive.
    """

    below: str
    above: str
    both: int
    equal: int
    strict: int
    alone: int
    mean: float
    largest: float


def chain_instance(seed: int) -> Instance:
    """Return one of a mix of tiny instances, with tensors in parts where the draw has them.

    One in six has recomputable tasks where the draw has them; half have places at the end, null times and
    operations that take no time.
    """
    make = (tiny_instance, plain, plain, twisted, twisted, twisted)[seed % 6]
    return make(seed)


def page_sized(instance: Instance) -> Instance:
    """Return the instance in units of pages: what was aligned to `alignment_bytes` is aligned to pages."""
    return scaled(instance, size=PAGE_BYTES // instance.alignment_bytes)


def evaluate(instance: Instance) -> Values:
    """Return all that is known of an instance: bounds, optima in three memory models, answers of methods.

    Paged memory is tried on the instance in units of pages, in which times are the same. A value is missing
    where a bound does not cover recomputation, where a method has no schedule, and where the search in
    contiguous memory is hopeless (there is not even a divisible schedule) or too long. ``proven by M`` is
    the bound that method M claims.

    Raises
    ------
    AssertionError
        When a schedule does not pass the checker.
    """
    pages = page_sized(instance)
    values: dict[str, float] = {"compute": compute_bound(instance).lower_bound_ns}
    if not any(task.recomputable for task in instance.tasks):
        values |= _bounds(instance)
    values["divisible"] = _optimum(instance, "divisible")
    values["paged"] = _optimum(pages, "paged")
    if values["divisible"] < math.inf:
        with suppress(TimeoutError):
            values["contiguous"] = _optimum(instance, "contiguous", _STATES)
    for name, found in (*_answers(instance, "contiguous"), *_answers(pages, "paged")):
        values[name] = found
    return values


def _optimum(instance: Instance, memory: MemoryModel, most_states: float = math.inf) -> float:
    schedule = brute_force(instance, memory, most_states=most_states)
    _require_valid(instance, schedule)
    return math.inf if schedule is None else schedule.makespan_ns


def broken(values: Values) -> Iterator[str]:
    """Say which links do not hold for the values of an instance."""
    for below, above in links_of(values):
        if values[below] > values[above]:
            yield f"{below} ({values[below]}) is above {above} ({values[above]})"


def links_of(values: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of values of which the first must not be above the second."""
    names = tuple(values)
    found = [link for link in LINKS if link[0] in names and link[1] in names]
    for name in names:
        method, _, memory = name.partition(" in ")
        if memory and method.startswith("proven by "):
            found += [(name, memory)] if memory in names else []
        elif memory:
            found.append((memory if memory in names else "divisible", name))
    return found


def measure(instances: Iterable[Instance]) -> list[Link]:
    """Evaluate instances and count how the values compare, link by link.

    Raises
    ------
    AssertionError
        When a link is broken, with the instance and the values.
    """
    everything = []
    for instance in instances:
        values = evaluate(instance)
        reasons = list(broken(values))
        if reasons:
            raise AssertionError(f"{instance.name}: {'; '.join(reasons)}")
        everything.append(values)
    found = {link for values in everything for link in links_of(values)}
    named = [*LINKS, *sorted(found.difference(LINKS))]
    return [_link(below, above, everything) for below, above in named]


def _link(below: str, above: str, everything: Sequence[Values]) -> Link:
    both = [(v[below], v[above]) for v in everything if below in v and above in v]
    finite = [high / low for low, high in both if low > 0 and high < math.inf]
    equal = sum(low == high for low, high in both)
    alone = sum(low < high == math.inf for low, high in both)
    mean = math.fsum(finite) / len(finite) if finite else math.nan
    largest = max(finite, default=math.nan)
    return Link(below, above, len(both), equal, len(both) - equal, alone, mean, largest)


def _bounds(instance: Instance) -> dict[str, float]:
    """Bounds that do not cover recomputation; CP-SAT's is an optimum here."""
    every = range(len(instance.tasks))
    bounds: dict[str, float] = {"single-peak": single_peak_bound(instance).lower_bound_ns}
    models: tuple[tuple[str, Integrality], ...] = (("flow-lp", "none"), ("flow-milp", "all"))
    for name, integrality in models:
        bound = flow_bound(instance, every, integrality=integrality)
        if bound is not None:
            bounds[name] = bound.lower_bound_ns
    found = solve_divisible(instance, Limits())
    if not found.exact or found.status not in ("OPTIMAL", "INFEASIBLE"):
        raise AssertionError(f"{instance.name}: CP-SAT says {found.status}")
    bounds["cp-sat"] = math.inf if found.lower_bound_ns is None else found.lower_bound_ns
    return bounds


def _answers(instance: Instance, memory: Literal["contiguous", "paged"]) -> Iterator[tuple[str, float]]:
    """What every method finds and proves, but for exhaustive search and methods of parts on whole tensors."""
    for method in list_methods():
        of_parts = method.transform is with_parts
        if method.name == "brute-force" or (of_parts and not in_parts(instance)):
            continue
        try:
            answer = method.call(instance, Limits(memory=memory))
        except Refusal:
            continue
        _require_valid(instance, answer.schedule)
        if answer.schedule is not None:
            yield f"{method.name} in {memory}", answer.schedule.makespan_ns
        if answer.infeasible:
            yield f"proven by {method.name} in {memory}", math.inf
        elif answer.lower_bound_ns is not None:
            yield f"proven by {method.name} in {memory}", answer.lower_bound_ns


def _require_valid(instance: Instance, schedule: Schedule | None) -> None:
    reasons = () if schedule is None else check(instance, schedule).reasons
    if schedule is not None and reasons:
        raise AssertionError(f"{schedule.method} on {instance.name}: {'; '.join(reasons)}")


_HEADER = ("below <= above", "both", "equal", "strict", "of these infeasible above", "mean ratio", "largest")


def table(count: int) -> str:
    """Return the links on the first `count` instances as Markdown."""
    instances = [chain_instance(seed) for seed in range(count)]
    links = measure(instances)
    lines = [
        f"{count} instances: {_features(instances)}.",
        "",
        row(_HEADER),
        row(["---", *["---:"] * (len(_HEADER) - 1)]),
    ]
    for link in links:
        lines.append(
            row(
                (
                    f"{link.below} <= {link.above}",
                    *map(str, (link.both, link.equal, link.strict, link.alone)),
                    f"{link.mean:.4f}",
                    f"{link.largest:.4f}",
                )
            )
        )
    return "\n".join(lines) + "\n"


def _features(instances: Sequence[Instance]) -> str:
    """How many instances have what."""
    blocks = [instance.blocks for instance in instances]
    tasks = [instance.tasks for instance in instances]
    counts = {
        "one copy engine": sum(instance.engines == "single" for instance in instances),
        "tensors in parts": sum(any(block.tensor is not None for block in some) for some in blocks),
        "updates in place": sum(any(task.updates for task in some) for some in tasks),
        "recomputable tasks": sum(any(task.recomputable for task in some) for some in tasks),
        "workspaces": sum(any(a.workspace_bytes for task in some for a in task.algorithms) for some in tasks),
        "a block that starts on the host only": sum(
            any(b.initially == "host" for b in some) for some in blocks
        ),
        "a place at the end": sum(any(b.finally_ != "anywhere" for b in some) for some in blocks),
        "a copy that is impossible": sum(
            any(None in (b.offload_ns, b.prefetch_ns) for b in some) for some in blocks
        ),
        "moves inside the device": sum(any(b.move_ns is not None for b in some) for some in blocks),
    }
    return ", ".join(f"{count} with {what}" for what, count in counts.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/chain.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the table into")
    parser.add_argument("--count", type=int, metavar="N", default=COUNT, help="number of instances")
    options = parser.parse_args(arguments)
    if options.count < 1:
        raise PebblerError(f"--count: {options.count} is not positive; give 1 or more")
    publish(table(options.count), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
