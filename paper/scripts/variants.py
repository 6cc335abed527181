"""Instances that no sweep can name: without some decisions, over other links, to be recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec

from pebbler.heuristics.choices import leanest
from pebbler.instances.files import write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.memory import least_budget
from pebbler.instances.transforms import LINKS, with_link, with_recomputation
from pebbler.instances.workload import Workload

LEAST_SHARE = 64
"""The least sub-batch that is tried is this part of the batch."""

ENDING = ".instance.json"
DECISIONS, LINKED, REWORKED = "decisions", "links", "recompute"
"""Folders of the instances; a configuration's patterns name them."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload under a budget, as budgets are written elsewhere."""

    network: str
    batch: int
    device: str
    budget: str

    @property
    def workload(self) -> Workload:
        """The workload."""
        return Workload(self.network, self.batch, self.device)

    @property
    def name(self) -> str:
        """Its name in files."""
        return f"{self.network}-{self.batch}-{self.device}-{self.budget.replace('%', 'pc')}"

    def __str__(self) -> str:
        return f"{self.network} ({self.batch}), {self.device}, {self.budget}"


CASES = (
    Case("vgg16", 256, "K40", "12GiB"),
    Case("vgg16", 256, "K40", "6GiB"),
    Case("vgg16", 256, "K40", "1.75GiB"),
    Case("resnet34", 256, "K40", "4GiB"),
    Case("googlenet", 128, "V100", "2GiB"),
)
"""Where decisions are taken away."""

LINK_CASES = (
    Case("vgg16", 256, "V100", "75%"),
    Case("vgg16", 256, "V100", "1.05xMmin"),
    Case("resnet34", 256, "V100", "50%"),
    Case("googlenet", 128, "V100", "50%"),
)
"""What is tried over every link."""


@dataclass(frozen=True, slots=True)
class Freedom:
    """What a method may decide: copies, algorithms, and the images of a round, which are given here."""

    sub_batch: int
    transfers: bool
    algorithms: bool

    @property
    def word(self) -> str:
        """It in a file's name."""
        letters = ("t" if self.transfers else "") + ("a" if self.algorithms else "")
        return f"b{self.sub_batch}-{letters or 'none'}"


def freedoms(batch: int) -> Iterator[Freedom]:
    """Yield every choice of what may be decided, at the batch and its halves."""
    sub_batch = batch
    while LEAST_SHARE * sub_batch >= batch:
        for transfers, algorithms in product((False, True), repeat=2):
            yield Freedom(sub_batch, transfers, algorithms)
        if sub_batch % 2:
            return
        sub_batch //= 2


def limited(case: Case, freedom: Freedom) -> Instance | None:
    """Return the instance of an iteration in which only that may be decided; None where it cannot fit.

    Without a choice of algorithms, a task has the one with the least workspace.
    """
    workload = case.workload
    rounds = workload.batch // freedom.sub_batch
    budget = workload.instance(case.budget, check_budget=False).budget_bytes
    instance = workload.instance(budget, freedom.sub_batch, rounds=rounds, check_budget=False)
    if not freedom.transfers:
        blocks = (msgspec.structs.replace(b, offload_ns=None, prefetch_ns=None) for b in instance.blocks)
        instance = msgspec.structs.replace(instance, blocks=tuple(blocks))
    if not freedom.algorithms:
        tasks = (msgspec.structs.replace(t, algorithms=(t.algorithms[leanest(t)],)) for t in instance.tasks)
        instance = msgspec.structs.replace(instance, tasks=tuple(tasks))
    return instance if budget >= least_budget(instance) else None


def linked(case: Case, link: str, *, recompute: bool = False) -> Instance:
    """Return an instance over another link, whose forward tasks may run again or not."""
    instance = with_link(case.workload.instance(case.budget), link)
    return with_recomputation(instance) if recompute else instance


def problem(folder: str, case: Case, word: str) -> str:
    """Return what a sweep calls the problem of an instance that lies in a folder."""
    return f"instances/{folder}/{case.name}.{word}"


def write_instances(
    folder: Path, cases: Sequence[Case] = CASES, link_cases: Sequence[Case] = LINK_CASES
) -> None:
    """Write all instances into the folders that configurations in a folder name."""
    for case in cases:
        for freedom in freedoms(case.batch):
            instance = limited(case, freedom)
            if instance is not None:
                _write(instance, folder / f"{problem(DECISIONS, case, freedom.word)}{ENDING}")
    for case in link_cases:
        for link in LINKS:
            _write(linked(case, link), folder / f"{problem(LINKED, case, link)}{ENDING}")
            _write(linked(case, link, recompute=True), folder / f"{problem(REWORKED, case, link)}{ENDING}")


def _write(instance: Instance, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_instance(instance, place)
