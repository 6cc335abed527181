"""The study of training steps: six networks train within budgets, and have eager torch's bits or do not.

``python -m tests.validate.execution.torch_steps.study --write``, from the root of the repository in an
environment with torch, puts what it finds into docs/data/torch-steps.jsonl, a line a case, and the table of
all lines into docs/torch.md; without ``--write`` it prints the table. Lines of other versions of torch stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from msgspec.structs import replace
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pebbler
import pebbler.torch
from pebbler.benchmark.output.machine import origin
from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.clock import is_rule
from pebbler.heuristics.methods import find_method
from pebbler.heuristics.parts import with_parts
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget, with_budget
from pebbler.instances.transforms import in_pages
from pebbler.instances.units import format_size
from pebbler.torch import TrainingPlan
from pebbler.validate.check import check

from .networks import NETWORKS, lowered
from .training import CLIP, eager_step, executor_of, state_of

DOCS = Path(__file__).parents[4] / "docs"

SIZES = (8, 3)
"""Batch sizes: all but the last batch of an epoch, and that."""

LARGER = {"gpt2_small": 64, "llama": 160, "vit_b": 96, "resnet50": 128, "lstm": 768}
"""The larger batch size in paged memory, where it is another one: most tensors take a page of 2 MiB there,
and half of a small peak is less than what one operator needs.
"""

STEPS = 20
EPOCH = 10
"""Steps in all, and of an epoch."""

Memory = Literal["contiguous", "paged"]
MEMORIES: tuple[Memory, ...] = ("contiguous", "paged")
PRECISIONS = ("fp32", "bf16")
BUDGETS = ("50%", "1.05xMmin")
"""Half of eager torch's peak, and little more than the operator needs that needs most (in whole pages)."""

METHODS = {
    "copies": ("flow", "modnn"),
    "recompute": ("memonger-rule", "flow-recompute", "modnn"),
    "parts": ("flow-parts", "modnn-parts"),
}
"""What a schedule may do: copy tensors, also run operators again, or copy parts of tensors. With its methods,
of which each is asked where the ones before it have found no schedule: the rule runs most operators again.
"""

LINK = "1GB/s"
"""So slow that it pays to run operators again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """A case, and what became of it.

    Attributes
    ----------
    network, precision, memory, budget, way
        The case.
    torch
        Its version.
    ended
        ``equal``: every loss, and everything that outlives a step, has eager's bits after all steps. Else
        what happened.
    eager_bytes, budget_bytes, peak_bytes
        Eager torch's peak, the budget, and what of it the program used.
    operators, again, moved_bytes, gap, method
        Of the larger batch size: operators, those that run again, bytes that are copied, the gap, and the
        method that found the schedule.
    steps
        Steps that were taken.
    date, made_with
        When and with what.
    """

    network: str
    precision: str
    memory: Memory
    budget: str
    way: str
    torch: str
    ended: str
    eager_bytes: int
    budget_bytes: int
    peak_bytes: int | None
    operators: int
    again: int | None
    moved_bytes: int | None
    gap: float | None
    method: str | None
    steps: int
    date: str
    made_with: str

    @property
    def case(self) -> tuple[str, ...]:
        """What another run of the same case has in common."""
        return self.torch, self.network, self.precision, self.memory, self.budget, self.way

    @property
    def kept(self) -> bool:
        """Whether what is promised held: the bits, or a refusal because one operator needs more."""
        return self.ended in ("equal", IMPOSSIBLE)


IMPOSSIBLE = "an operator needs more"
"""The end of a case whose budget is below the least possible one."""


class Alive(TorchDispatchMode):
    """Measures the greatest sum of live storages while operators run, by weak references to them."""

    def __init__(self, begun: Any) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._note(begun)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator."""
        found = func(*args, **(kwargs or {}))
        self._note((args, kwargs, found))
        return found

    def _note(self, tensors: Any) -> None:
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor):
                weak = StorageWeakRef(tensor.untyped_storage())
                self._alive[weak.cdata] = weak, tensor.untyped_storage().nbytes()
        self._alive = {key: one for key, one in self._alive.items() if not one[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._alive.values()))


class Network:
    """A network in a precision, and what eager torch makes of it.

    Attributes
    ----------
    eager_bytes
        Eager torch's peak, in a step with the larger batch size.
    wanted
        Its losses, and all that outlives a step after the last one.
    plans
        Plans for each batch size, in as much memory as they like.
    """

    def __init__(self, name: str, precision: str, steps: int, sizes: tuple[int, int]) -> None:
        self._make = lowered(NETWORKS[name]) if precision == "bf16" else NETWORKS[name]
        self._steps, self._sizes = steps, sizes
        torch.manual_seed(5)
        self._inputs = [self._make(size)[2] for size in sizes]
        made = self._made()
        take = eager_step(made)
        take(*made[2])  # makes the optimizer's states
        states = [list(state.values()) for state in made[3].state.values()]
        with Alive((list(made[0].state_dict().values()), states, made[2])) as alive:
            take(*made[2])
        self.eager_bytes = alive.peak_bytes
        made = self._made()
        self.wanted = self._trained(made, eager_step(made))
        torch.manual_seed(3)
        roomy = pebbler.torch.plan(
            self._make,
            batch=sizes,
            budget="1TiB",
            clip=CLIP,
            recompute=True,
            method="network-wide",
            link=LINK,
        )
        self.plans = (roomy, *roomy.others)

    @property
    def operators(self) -> int:
        """Operators of a step that compute."""
        return len(self.plans[0].instance.tasks)

    def budget(self, memory: Memory, budget: str) -> tuple[int, bool]:
        """Return a budget in bytes, and whether every operator has room in it."""
        instances = [one.instance for one in self.plans]
        sizes = [in_pages(instance) for instance in instances] if memory == "paged" else instances
        least = max(least_budget(instance) for instance in sizes)
        found = self.eager_bytes // 2 if budget == "50%" else -(-least * 105 // 100)
        return found, least <= found

    def instances(self, budget: int, way: str) -> list[Instance]:
        """Return the instance of each batch size under a budget, with what a way may do."""
        found = []
        for one in self.plans:
            instance = with_budget(one.instance, budget)
            if way != "recompute":
                tasks = tuple(replace(task, recomputable=False) for task in instance.tasks)
                instance = replace(instance, tasks=tasks)
            found.append(with_parts(instance, instance.carried) if way == "parts" else instance)
        return found

    def plan(
        self, instances: list[Instance], memory: Memory, methods: Sequence[str], seconds: float
    ) -> TrainingPlan | str:
        """Return a plan, or why the methods have found none."""
        plans = []
        for one, instance in zip(self.plans, instances, strict=True):
            for method in methods:
                limit = None if is_rule(find_method(method).call) else seconds
                result = pebbler.solve(instance, method, time_limit=limit, memory=memory)
                if result.schedule is not None:
                    break
            else:
                return f"no schedule: {result.stopped_by}"
            plans.append(dataclasses.replace(one, instance=instance, result=result, others=()))
        return dataclasses.replace(plans[0], others=tuple(plans[1:]))

    def compare(self, plan: TrainingPlan) -> str:
        """Take all steps by a plan, and say whether they have eager torch's bits, within the budget."""
        made = self._made()
        for one in (plan, *plan.others):
            if (
                not check(one.instance, one.schedule).valid
                or one.schedule.peak_bytes > one.instance.budget_bytes
            ):
                return "the schedule is not valid"
        with executor_of(plan, made, poison=True) as step:
            pool = step.plan.areas.get("pool", step.plan.pages * step.plan.page_bytes)
            if pool + plan.instance.resident_bytes > plan.instance.budget_bytes:
                return "the pool is larger than the budget"
            found = self._trained(made, step)
        for number, (one, other) in enumerate(zip(found, self.wanted, strict=True)):
            if not torch.equal(one, other):
                return f"differs in step {number}" if number < self._steps else "differs after the last step"
        return "equal"

    def _made(self) -> Any:
        torch.manual_seed(3)
        return self._make(self._sizes[0])

    def _trained(self, made: Any, take: Callable[..., Any]) -> list[Any]:
        """Take all steps, with a schedule of learning rates; return losses, and what there is after them."""
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(made[3], STEPS)
        torch.manual_seed(7)
        losses = []
        for number in range(self._steps):
            inputs = self._inputs[number % EPOCH == EPOCH - 1]
            losses.append(take(*(tensor.roll(number, 0) for tensor in inputs)))
            scheduler.step()
        return losses + state_of(made)


def study(chosen: argparse.Namespace) -> Iterator[Run]:
    """Run the cases."""
    made_with = str(origin())  # before anything is written
    for name, precision, memory in product(chosen.networks, chosen.precisions, chosen.memories):
        larger = LARGER.get(name, SIZES[0]) if memory == "paged" else SIZES[0]
        network = Network(name, precision, chosen.steps, (larger, SIZES[1]))
        for budget, way in product(BUDGETS, chosen.ways):
            size, fits = network.budget(memory, budget)
            instances = network.instances(size, way)
            if way == "parts" and not any(block.tensor for block in instances[0].blocks):
                continue  # tensors are too small for that
            plan: TrainingPlan | str = IMPOSSIBLE
            if fits:
                plan = network.plan(instances, memory, METHODS[way], chosen.seconds)
            planned = plan if isinstance(plan, TrainingPlan) else None
            yield Run(
                network=name,
                precision=precision,
                memory=memory,
                budget=budget,
                way=way,
                torch=torch.__version__.partition("+")[0],
                ended=network.compare(plan) if isinstance(plan, TrainingPlan) else plan,
                eager_bytes=network.eager_bytes,
                budget_bytes=size,
                peak_bytes=planned and max(one.schedule.peak_bytes for one in (planned, *planned.others)),
                operators=network.operators,
                again=planned and runs_again(planned),
                moved_bytes=planned and moved_bytes(planned),
                gap=planned and planned.result.optimality_gap,
                method=planned and planned.schedule.method,
                steps=chosen.steps,
                date=datetime.now(UTC).date().isoformat(),
                made_with=made_with,
            )


def runs_again(plan: TrainingPlan) -> int:
    """Return how many operators run again in a step."""
    runs = sum(operation.kind == "run" for operation in plan.schedule.operations)
    return runs - len(plan.instance.tasks)


def moved_bytes(plan: TrainingPlan) -> int:
    """Return how much a step copies, out and back."""
    return (plan.result.offloaded_bytes or 0) + (plan.result.prefetched_bytes or 0)


# --- what is written ----------------------------------------------------------------------------------


def merged(path: Path, runs: Sequence[Run]) -> list[Run]:
    """Return the runs of a file, with those in the place of earlier ones of the same case."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = {run.case: run for run in (Run(**json.loads(line)) for line in lines)}
    return list((known | {run.case: run for run in runs}).values())


def table(runs: Sequence[Run]) -> str:
    """Return a row for every network, precision, memory and budget, and what its ways came to, by version."""
    versions = sorted({run.torch for run in runs}, key=lambda word: [int(n) for n in word.split(".")])
    rows: dict[tuple[str, ...], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        rows[run.network, run.precision, run.memory, run.budget][run.torch].append(run)
    shown = markdown(
        ("network", "precision", "memory", "budget", "eager's peak", *(f"torch {one}" for one in versions)),
        [
            (
                *(f"`{key[0]}`", *key[1:3], f"{key[3]}: {told(found, 'budget_bytes')}"),
                told(found, "eager_bytes"),
                *(", ".join(map(told_end, found[one])) for one in versions),
            )
            for key, found in rows.items()
        ],
    )
    made = dict.fromkeys(f"{run.date}; torch {run.torch}; {run.made_with}." for run in runs)
    return "\n\n".join((shown.rstrip("\n"), *made)) + "\n"


def told(found: dict[str, list[Run]], figure: str) -> str:
    """Return bytes as they are in the last version."""
    last = list(found.values())[-1][0]
    return format_size(getattr(last, figure))


def told_end(run: Run) -> str:
    """Return how a run ended, in a few words for those that have eager's bits."""
    if run.ended != "equal":
        return f"**{run.way}: {run.ended}**"
    return f"{run.way} ({run.again} operators)" if run.again else run.way


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--memories", nargs="*", default=MEMORIES, choices=MEMORIES)
    parser.add_argument("--ways", nargs="*", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each plan by no rule")
    parser.add_argument("--write", action="store_true", help="write docs/data and docs/torch.md")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # two would only wait for each other with tensors that small
    path = DOCS / "data" / "torch-steps.jsonl"
    runs = []
    for run in study(chosen):
        words = f"{run.network:10} {run.precision} {run.memory:10} {run.budget:9} {run.way:9}"
        print(f"{'ok  ' if run.kept else 'NOT '} {words} {run.ended}", file=sys.stderr, flush=True)
        runs.append(run)
        if chosen.write:
            lines = [json.dumps(dataclasses.asdict(one)) for one in merged(path, runs)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    page = DOCS / "torch.md" if chosen.write else None
    shown = merged(path, runs) if chosen.write else runs
    publish(table(shown), page, "<!-- begin steps -->\n", "<!-- end steps -->\n")
    return 0 if all(run.kept for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
