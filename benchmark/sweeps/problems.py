"""What a sweep solves: instances of suites and files, and workloads, each built where it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import UNSET

from ...instances.files import checksum, decode
from ...instances.instance import Instance
from ...instances.suites.suite import find_suite, members
from ...instances.workload import Workload
from ..comparison.plan import auto_budget, instances_of


@dataclass(frozen=True, slots=True)
class SuiteProblem:
    """An instance of a suite."""

    suite: str
    member: str

    @property
    def name(self) -> str:
        """Suite and instance."""
        return f"{self.suite}/{self.member}"

    def instances(self) -> tuple[Instance, ...]:
        """Build the instance."""
        # Found by name: what msgspec leaves out of a file as a default is not left out of a pickled copy.
        return tuple(one.build() for one in members(find_suite(self.suite)) if one.name == self.member)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """An instance file; its content travels along, so that other machines need not have it."""

    name: str
    content: bytes

    def instances(self) -> tuple[Instance, ...]:
        """Decode the instance.

        Raises
        ------
        FormatError
            When the content breaks a rule of the format.
        """
        return (decode(self.content, Instance, "an instance", self.name),)


@dataclass(frozen=True, slots=True)
class WorkloadProblem:
    """A workload under a budget, at a sub-batch, or with one that the method chooses (``auto``)."""

    workload: Workload
    budget: str
    sub_batch: int | Literal["auto"] | None = None

    @property
    def name(self) -> str:
        """Network, batch, device and budget, then all that is not usual."""
        work = self.workload
        words: tuple[str, ...] = (work.graph, work.engines)
        rest = [word for word in words if word not in ("executable", "duplex")]
        if self.sub_batch is not None:
            rest.append(f"sub-batch {self.sub_batch}")
        return "/".join([work.name, str(work.batch), work.device, self.budget, *rest])

    def instances(self) -> tuple[Instance, ...]:
        """Build the instances of the iteration; the whole batch in one round where the method chooses.

        Raises
        ------
        PebblerError
            For a name that does not exist, or a budget under the minimum.
        """
        if self.sub_batch == "auto":
            budget_bytes = auto_budget(self.workload, self.budget)
            return (self.workload.instance(budget_bytes, check_budget=False),)
        return instances_of(self.workload, self.budget, self.sub_batch)


Problem = SuiteProblem | FileProblem | WorkloadProblem
"""An iteration that can be built anywhere, and is the same there to the byte."""


def is_free(problem: Problem) -> bool:
    """Whether the method chooses the sub-batch."""
    return isinstance(problem, WorkloadProblem) and problem.sub_batch == "auto"


@dataclass(frozen=True, slots=True)
class About:
    """What is told of a problem.

    Attributes
    ----------
    problem, problem_sha256
        Its name, and its checksum: of its instance's file where it is one instance and nothing more.
    family_sha256
        The same under every budget, and for nothing else.
    network, batch, device, graph
        Where the instance says so.
    rounds_of
        Images of a round, where the instance says so; ``auto``: the method's choice.
    engines, tasks, budget_bytes
        Of the first instance.
    """

    problem: str
    problem_sha256: str
    family_sha256: str
    network: str | None
    batch: int | None
    device: str | None
    graph: str | None
    rounds_of: str | None
    engines: str
    tasks: int
    budget_bytes: int


def about(problem: Problem, instances: Sequence[Instance]) -> About:
    """Describe a problem by its instances."""
    first, origin = instances[0], instances[0].made_from
    images = "auto" if is_free(problem) else origin.sub_batch
    return About(
        problem=problem.name,
        problem_sha256=problem_sha256(problem, instances),
        family_sha256=problem_sha256(problem, list(map(_without_budget, instances))),
        network=origin.network,
        batch=origin.batch,
        device=origin.device,
        graph=origin.graph,
        rounds_of=None if images is None else str(images),
        engines=first.engines,
        tasks=len(first.tasks),
        budget_bytes=first.budget_bytes,
    )


def problem_sha256(problem: Problem, instances: Sequence[Instance]) -> str:
    """Return the checksum of a problem."""
    sums = list(map(checksum, instances))
    return own_sha256([*sums, "auto"]) if is_free(problem) else own_sha256(sums)


def own_sha256(sums: Sequence[str]) -> str:
    """Return the checksum of an iteration, by those of its instances: of a single one it is that."""
    return sums[0] if len(sums) == 1 else sha256(" ".join(sums).encode()).hexdigest()


def _without_budget(instance: Instance) -> Instance:
    """Return an instance without its budget, and without names and notes that may tell it."""
    nameless = msgspec.structs.replace(
        instance, budget_bytes=0, meta={}, transforms=UNSET, origin=UNSET, layers=UNSET
    )
    msgspec.structs.force_setattr(nameless, "name", "")  # families are older than the rule that none is empty
    return nameless
