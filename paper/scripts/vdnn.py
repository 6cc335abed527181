"""vDNN's evaluation (MICRO 2016, section V) repeated on the cost model.

``python paper/scripts/vdnn.py`` prints the tables of docs/papers-vdnn.md; ``--write FILE`` puts them into
the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.papers.layers import layer_steps
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest, with_budget
from pebbler.instances.networks.taskgraph import Graph
from pebbler.instances.workload import Workload
from pebbler.solver.solve import solve
from pebbler.validate.measures import memory_curve

BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->"

_GIB = 2**30
_BUDGET = 12 * _GIB
_ENOUGH = 128 * _GIB
DEVICE, CUDNN = "TitanX", "4"
"""Section IV: a Titan X, and cuDNN 4.0."""

CONVENTIONAL = (
    ("alexnet", 128),
    ("overfeat", 128),
    ("googlenet", 128),
    ("vgg16", 64),
    ("vgg16", 128),
    ("vgg16", 256),
)
DEEP = (("vgg16", 32), ("vgg116", 32), ("vgg216", 32), ("vgg316", 32), ("vgg416", 32))

POLICIES = ("all-m", "conv-m", "all-p", "conv-p", "dyn")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy does on a network.

    Attributes
    ----------
    speed
        Oracle's time over the policy's, feature extraction layers only.
    maximum, average
        Bytes in use at most and over time, weights and their gradients included.
    pinned
        Bytes of host memory.
    stopped_by
        What the method says.
    fits
        Whether it does in 12 GiB; if not, the other figures are those with memory enough.
    """

    speed: float
    maximum: int
    average: int
    pinned: int
    stopped_by: str
    fits: bool


def outcome(instance: Instance, policy: str) -> Outcome:
    """Simulate a policy; the checker has passed every schedule that is measured."""
    result = solve(instance, f"vdnn-{policy}")
    if result.schedule is None:
        roomy = with_budget(instance, _ENOUGH)
        result, why = solve(roomy, f"vdnn-{policy}"), result.stopped_by
    else:
        why = None
    schedule = result.schedule
    assert schedule is not None
    classification = _classification(instance)
    outside = sum(
        o.end_ns - o.start_ns for o in schedule.operations if o.task is not None and o.task in classification
    )
    oracle = sum(a.duration_ns for k, a in enumerate(fastest(instance)) if k not in classification)
    return Outcome(
        speed=oracle / (schedule.makespan_ns - outside),
        maximum=max(memory_curve(instance, schedule)[1]),
        average=result.average_bytes or 0,
        pinned=result.pinned_bytes or 0,
        stopped_by=why or result.stopped_by,
        fits=why is None,
    )


def baseline_bytes(instance: Instance) -> int:
    """Network-wide allocation as the paper counts it (section IV-A, Fig. 2).

    All that the forward pass makes or reads, the largest gradient twice, the largest workspace of the fastest
    algorithms, weights and their gradients.
    """
    forward = [k for unit in layer_steps(instance) if unit.direction == "forward" for k in unit.tasks]
    kept = {d for k in forward for d in instance.tasks[k].blocks}
    gradients = [block.bytes for d, block in enumerate(instance.blocks) if d not in kept]
    return (
        instance.resident_bytes
        + sum(instance.blocks[d].bytes for d in kept)
        + 2 * max(gradients)
        + max(algorithm.workspace_bytes for algorithm in fastest(instance))
    )


def _classification(instance: Instance) -> range:
    """Tasks of the classification layers, which every policy runs in the same way: consecutive ones."""
    tasks = [k for unit in layer_steps(instance) if unit.kind in ("fc", "softmax") for k in unit.tasks]
    return range(min(tasks), max(tasks) + 1)


@dataclass(frozen=True, slots=True)
class _Case:
    """A network with all outcomes."""

    name: str
    instance: Instance
    outcomes: dict[str, Outcome]

    @property
    def baseline(self) -> int:
        return baseline_bytes(self.instance)


def case(network: str, batch: int, graph: Graph = "paper", policies: Sequence[str] = POLICIES) -> _Case:
    """Simulate policies on a network, on a Titan X with 12 GiB."""
    workload = Workload(network, batch, DEVICE, graph, cudnn=CUDNN)
    instance = workload.instance(_BUDGET, check_budget=False)
    outcomes = {policy: outcome(instance, policy) for policy in policies}
    return _Case(f"{network} ({batch})", instance, outcomes)


def tables() -> str:
    """All tables of the page, as Markdown."""
    cases = [case(*which) for which in CONVENTIONAL]
    executable = [case(*which, "executable") for which in CONVENTIONAL]
    deep = [case(*which, policies=("dyn",)) for which in DEEP]
    parts = (
        ("Printed and ours", _summary(cases, deep)),
        ("Speed of the feature extraction layers, oracle = 100 %", _speed_table(cases, executable)),
        ("Memory in GiB, greatest / average", _memory_table(cases)),
        ("Saving of greatest / average memory, mean of the six networks", _saving_table(cases)),
        ("Saving of average memory by network (abstract, section VII)", _network_saving_table(cases)),
        ("Very deep networks", _deep_table(deep)),
    )
    return "\n".join(f"**{title}**\n\n{table}" for title, table in parts)


def _summary(cases: Sequence[_Case], deep: Sequence[_Case]) -> str:
    by_name = {case.name: case for case in (*cases, *deep)}

    def losses(policy: str) -> list[float]:
        return [1 - case.outcomes[policy].speed for case in cases]

    speeds = [case.outcomes["dyn"].speed for case in cases]
    vgg128, vgg256, vgg416 = by_name["vgg16 (128)"], by_name["vgg16 (256)"], by_name["vgg416 (32)"]
    least, deepest = vgg128.outcomes["all-m"], vgg416.outcomes["dyn"]
    pinned = vgg256.outcomes["all-m"].pinned
    very_deep = [case for case in deep if case.name != "vgg16 (32)"]
    too_large = sum(case.baseline > _BUDGET for case in (*cases, *very_deep))
    on_host = [1 - case.outcomes["dyn"].maximum / case.baseline for case in very_deep]
    rows = [
        ("dyn: mean speed", "97 %", _percent(mean(speeds))),
        ("dyn: speed, VGG-16 (256), the least", "82 %", _percent(min(speeds))),
        ("all (m): mean loss of speed", "58 %", _percent(mean(losses("all-m")))),
        ("all (m): greatest loss of speed", "65 %", _percent(max(losses("all-m")))),
        ("conv (m): mean loss of speed", "55 %", _percent(mean(losses("conv-m")))),
        ("conv (m): greatest loss of speed", "63 %", _percent(max(losses("conv-m")))),
        ("all (m): loss of speed, VGG-16 (128)", "61 %", _percent(1 - least.speed)),
        ("all (m): greatest memory, VGG-16 (128)", "4.8 GB", _with_and_without(vgg128, least)),
        ("all: host memory, VGG-16 (256)", "up to 16 GB", f"{_gib(pinned)} GiB ({pinned / 1e9:.1f} GB)"),
        ("baseline: networks over 12 GB, of ten", "6", str(too_large)),
        ("dyn: greatest memory, VGG-416 (32)", "4.2 GB", _with_and_without(vgg416, deepest)),
        (
            "dyn: share of the baseline's memory not on the device, VGG-116 to 416",
            "81 to 92 %",
            f"{_percent(min(on_host))} to {_percent(max(on_host))}",
        ),
    ]
    return markdown(("figure", "printed", "ours"), rows)


def _with_and_without(case: _Case, one: Outcome) -> str:
    return f"{_gib(one.maximum)} GiB; {_gib(one.maximum - case.instance.resident_bytes)} without weights"


def _speed_table(cases: Sequence[_Case], executable: Sequence[_Case]) -> str:
    """Speeds of every policy on every network; a dash where it fails, and the mean of the others."""
    rows = [
        (
            case.name,
            *(_speed(case.outcomes[p]) for p in POLICIES),
            _adopted(case.outcomes["dyn"]),
        )
        for case in cases
    ]
    for name, some in (("mean", cases), ("mean, executable graph", executable)):
        means = (mean(c.outcomes[p].speed for c in some if c.outcomes[p].fits) for p in POLICIES)
        rows.append((name, *map(_percent, means), ""))
    return markdown(("network", *map(_label, POLICIES), "dyn adopts"), rows)


def _memory_table(cases: Sequence[_Case]) -> str:
    def pair(one: Outcome) -> str:
        return f"{_gib(one.maximum)} / {_gib(one.average)}{'' if one.fits else ' *'}"

    rows = [
        (
            case.name,
            _gib(case.baseline),
            _gib(case.instance.resident_bytes),
            *(pair(case.outcomes[p]) for p in POLICIES),
        )
        for case in cases
    ]
    return markdown(("network", "baseline", "weights", *map(_label, POLICIES)), rows)


_COUNTINGS = {
    "weights in both": (True, True),
    "weights in neither": (False, False),
    "weights in the baseline only": (False, True),
}
"""Whether a saving counts weights and their gradients in what the policy takes, and in the baseline."""


def _saving(case: _Case, policy: str, ours: bool, theirs: bool) -> tuple[float, float]:
    """Saving of greatest and of average memory; a case's weights are all that is resident."""
    weights, one = case.instance.resident_bytes, case.outcomes[policy]
    left_out = 0 if ours else weights
    baseline = case.baseline - (0 if theirs else weights)
    return 1 - (one.maximum - left_out) / baseline, 1 - (one.average - left_out) / baseline


def _saving_table(cases: Sequence[_Case]) -> str:
    printed = {"all-m": "73 / 93", "all-p": "64 / 90", "conv-p": "52 / 76", "dyn": "49 / 69"}

    def means(policy: str, ours: bool, theirs: bool) -> str:
        greatest, average = zip(*(_saving(case, policy, ours, theirs) for case in cases), strict=True)
        return f"{100 * mean(greatest):.0f} / {100 * mean(average):.0f} %"

    rows = [
        (_label(policy), f"{figures} %", *(means(policy, *counting) for counting in _COUNTINGS.values()))
        for policy, figures in printed.items()
    ]
    return markdown(("policy", "printed", *_COUNTINGS), rows)


def _network_saving_table(cases: Sequence[_Case]) -> str:
    """The savings of average memory that the abstract and section VII print by network."""
    by_name = {case.name: case for case in cases}
    rows = [
        (
            name,
            _label(policy),
            figure,
            *(
                f"{100 * _saving(by_name[name], policy, *counting)[1]:.0f} %"
                for counting in _COUNTINGS.values()
            ),
        )
        for name, policy, figure in (
            ("alexnet (128)", "all-m", "up to 89 %"),
            ("overfeat (128)", "all-m", "up to 91 %"),
            ("googlenet (128)", "all-m", "up to 95 %"),
            ("vgg16 (256)", "all-m", "90 %"),
            ("vgg16 (256)", "dyn", "90 %, with a loss of speed of 18 %"),
        )
    ]
    return markdown(("network", "policy", "printed", *_COUNTINGS), rows)


def _deep_table(deep: Sequence[_Case]) -> str:
    printed = {"vgg16 (32)": "4.9", "vgg416 (32)": "67.1"}
    rows = []
    for case in deep:
        dyn = case.outcomes["dyn"]
        rows.append(
            (
                case.name,
                printed.get(case.name, ""),
                _gib(case.baseline),
                _gib(dyn.maximum),
                _gib(dyn.maximum - case.instance.resident_bytes),
                _percent(dyn.speed),
                _adopted(dyn),
            )
        )
    header = (
        "network",
        "baseline printed, GB",
        "baseline, GiB",
        "dyn, GiB",
        "without weights",
        "speed",
        "dyn adopts",
    )
    return markdown(header, rows)


def _label(policy: str) -> str:
    return policy if policy == "dyn" else "{} ({})".format(*policy.split("-"))


def _speed(one: Outcome) -> str:
    return _percent(one.speed) if one.fits else "-"


def _adopted(one: Outcome) -> str:
    return one.stopped_by.removeprefix("done: ")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/vdnn.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    publish(tables(), options.write, BEGIN, END)


if __name__ == "__main__":
    main()
