"""What planned training steps cost: to record and to plan them, and beside eager torch's own time.

``python -m tests.validate.execution.torch_steps.costs --write``, from the root of the repository in an
environment with torch, puts what it measures into docs/data/torch-costs.jsonl, a line a network, and the
table of all lines into docs/torch.md; without ``--write`` it prints the table. The machine must do nothing
else meanwhile.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any

import torch

import pebbler.torch
from pebbler.benchmark.gpu.torch_models import Gpt
from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.instances.importers.torch_step.steps import record_made
from pebbler.instances.units import format_time
from pebbler.torch import TrainingPlan
from pebbler.validate.execution.torch.profiler import profile_step

from .models import Made
from .networks import NETWORKS, language
from .training import CLIP, eager_step, executor_of

DOCS = Path(__file__).parents[4] / "docs"

STEPS = 10
"""Steps whose median counts, after a first one that does not."""


def gpt2_in_full(batch: int) -> Made:
    """GPT-2 small as it was published, 124 million parameters, on texts of 64 tokens."""
    return language(Gpt(50257, 1024, 768, 12, 12, dropout=0.1), 50257, batch, 64, fused=True)


CASES: dict[str, tuple[Callable[[int], Made], int]] = {
    **{name: (make, 8) for name, make in NETWORKS.items()},
    "gpt2_in_full": (gpt2_in_full, 1),
}
"""Networks, and batch sizes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """A network, and what its planned step costs.

    Attributes
    ----------
    network, torch
        The network, and the version of torch.
    operators
        Of a step, as far as they compute.
    eager_ns, roomy_ns
        A step of eager torch, and one by a plan in as much memory as it likes, by the clock.
    record_ns, plan_ns
        To record the step; and to record and plan it within half of eager torch's peak, with a profile.
    gap
        Of that plan.
    predicted_ns, measured_ns, step_ns
        Its time as predicted and as the streams measure it, and by the clock, from the call to its return.
    date, made_with
        When and with what.
    """

    network: str
    torch: str
    operators: int
    eager_ns: int
    roomy_ns: int
    record_ns: int
    plan_ns: int
    gap: float | None
    predicted_ns: int
    measured_ns: int
    step_ns: int
    date: str
    made_with: str

    @property
    def overhead_ns(self) -> float:
        """What an operator costs beside its time in eager torch, where nothing is copied."""
        return (self.roomy_ns - self.eager_ns) / self.operators


def timed(work: Callable[[], Any]) -> tuple[Any, int]:
    """Return what some work returns, and its time by the clock."""
    begin = time.perf_counter_ns()
    found = work()
    return found, time.perf_counter_ns() - begin


def median_ns(take: Callable[..., Any], inputs: tuple[Any, ...], steps: int) -> int:
    """Return the median time of some steps, after a first one."""
    take(*inputs)
    return median_low([timed(lambda: take(*inputs))[1] for _ in range(steps)])


def planned_ns(plan: TrainingPlan, made: Made, steps: int) -> tuple[int, int]:
    """Return the median time of a step by a plan: by the clock, and as its streams measure it."""
    streams: list[int] = []
    with executor_of(plan, made) as step:

        def take(*inputs: Any) -> None:
            step(*inputs)
            streams.append(max(one.end_ns for one in step.timed))

        return median_ns(take, made[2], steps), median_low(streams[1:])


def measure(network: str, steps: int, seconds: float, made_with: str) -> Cost:
    """Measure a network."""
    make, batch = CASES[network]

    def made() -> Made:
        torch.manual_seed(3)
        return make(batch)

    def by_method(budget: int | str, method: str | None) -> TrainingPlan:
        return pebbler.torch.plan(
            lambda _: made(),
            batch=batch,
            budget=budget,
            clip=CLIP,
            profile=profile,
            time_limit=seconds,
            method=method,
        )

    eager = made()
    eager_ns = median_ns(eager_step(eager), eager[2], steps)
    del eager
    record, record_ns = timed(lambda: record_made(lambda _: made(), batch, clip=CLIP))
    budget = record.eager_peak_bytes // 2
    del record
    profile = profile_step(network, lambda _: made(), [batch], clip=CLIP, repeat=steps)
    roomy_ns, _ = planned_ns(by_method("150%", "network-wide"), made(), steps)
    plan, plan_ns = timed(lambda: by_method(budget, None))
    step_ns, measured_ns = planned_ns(plan, made(), steps)
    return Cost(
        network=network,
        torch=torch.__version__.partition("+")[0],
        operators=len(plan.instance.tasks),
        eager_ns=eager_ns,
        roomy_ns=roomy_ns,
        record_ns=record_ns,
        plan_ns=plan_ns,
        gap=plan.result.optimality_gap,
        predicted_ns=plan.schedule.makespan_ns,
        measured_ns=measured_ns,
        step_ns=step_ns,
        date=datetime.now(UTC).date().isoformat(),
        made_with=made_with,
    )


def merged(path: Path, costs: Sequence[Cost]) -> list[Cost]:
    """Return the costs of a file, with these in the place of earlier ones of the same network."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {cost.network: cost for cost in (Cost(**json.loads(line)) for line in lines)}
    return list((known | {cost.network: cost for cost in costs}).values())


def table(costs: Sequence[Cost]) -> str:
    """Return a row for every network."""
    header = (
        "network",
        "operators",
        "eager step",
        "planned, all memory",
        "per operator",
        "predicted at 50%",
        "measured",
        "with all beside it",
        "recording",
        "recording and planning",
        "gap",
    )
    rows = [
        (
            f"`{cost.network}`",
            str(cost.operators),
            *map(format_time, (cost.eager_ns, cost.roomy_ns)),
            f"{cost.overhead_ns / 1000:+.0f} us",
            format_time(cost.predicted_ns),
            f"{format_time(cost.measured_ns)} ({cost.measured_ns / cost.predicted_ns - 1:+.0%})",
            *map(format_time, (cost.step_ns, cost.record_ns, cost.plan_ns)),
            "unknown" if cost.gap is None else f"{cost.gap:.1%}",
        )
        for cost in costs
    ]
    made = dict.fromkeys(f"{cost.date}; torch {cost.torch}; {cost.made_with}." for cost in costs)
    return "\n\n".join((markdown(header, rows).rstrip("\n"), *made)) + "\n"


def main() -> int:
    """Measure the networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[*CASES], choices=[*CASES])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=30.0, help="for the method of each plan")
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/torch.md")
    chosen = parser.parse_args()
    made_with = str(origin())  # before anything is written
    torch.set_num_threads(1)  # a core for operators, and one for copies
    path = DOCS / "data" / "torch-costs.jsonl"
    costs: list[Cost] = []
    for network in chosen.networks:
        costs.append(measure(network, chosen.steps, chosen.seconds, made_with))
        print(costs[-1], file=sys.stderr, flush=True)
        if chosen.write:
            lines = [json.dumps(dataclasses.asdict(one)) for one in merged(path, costs)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = DOCS / "torch.md" if chosen.write else None
    shown = merged(path, costs) if chosen.write else costs
    publish(table(shown), page, "<!-- begin costs -->\n", "<!-- end costs -->\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
