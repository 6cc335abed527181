"""Problems of a sweep: instances of suites and files, and workloads, each built where it is needed."""

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
        """Names of suite and instance."""
        return f"{self.suite}/{self.member}"

    def instances(self) -> tuple[Instance, ...]:
        """Build the instance."""
        # Found by name: what msgspec leaves out of a file as a default is not left out of a pickled copy.
        return tuple(one.build() for one in members(find_suite(self.suite)) if one.name == self.member)


@dataclass(frozen=True, slots=True)
class FileProblem:
    """An instance file with its content, so that other machines need not have the file."""

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
        """Network, batch, device and budget, then all options that are not the default."""
        work = self.workload
        words: tuple[str, ...] = (work.graph, work.engines)
        rest = [word for word in words if word not in ("executable", "duplex")]
        if work.cudnn is not None:
            rest.append(f"cuDNN {work.cudnn}")
        if work.precision != "fp32":
            rest.append(work.precision)
        if work.updated_by is not None:
            rest.append(f"steady, {work.updated_by}")
        elif work.weights_as_blocks:
            rest.append("weights as blocks")
        if work.host_memory is not None:
            rest.append(f"host memory {work.host_memory}")
        if work.link_both is not None:
            rest.append(f"link {work.link_both} for both directions")
        if work.optimizer_on != "device":
            rest.append(
                {"host": "optimizer on the host", "choose": "optimizer on either side"}[work.optimizer_on]
            )
        if work.host_bandwidth is not None:
            rest.append(f"host {work.host_bandwidth}")
        if self.sub_batch is not None:
            rest.append(f"sub-batch {self.sub_batch}")
        return "/".join([work.name, str(work.batch), work.device, self.budget, *rest])

    def instances(self) -> tuple[Instance, ...]:
        """Build the instances of the iteration; if the method chooses, the whole batch in one round.

        Raises
        ------
        PebblerError
            For a name that does not exist, or a budget below the minimum.
        """
        if self.sub_batch == "auto":
            budget_bytes = auto_budget(self.workload, self.budget)
            return (self.workload.instance(budget_bytes, check_budget=False),)
        return instances_of(self.workload, self.budget, self.sub_batch)


Problem = SuiteProblem | FileProblem | WorkloadProblem
"""An iteration that can be built on any machine, with the same bytes."""


def is_free(problem: Problem) -> bool:
    """Return whether the method chooses the sub-batch."""
    return isinstance(problem, WorkloadProblem) and problem.sub_batch == "auto"


@dataclass(frozen=True, slots=True)
class About:
    """The description of a problem.

    Attributes
    ----------
    problem, problem_sha256
        Its name and its checksum; for a problem that is just one instance, the checksum of the instance's
        file.
    family_sha256
        Checksum that is the same under every budget, and different for other problems.
    network, batch, device, graph
        Origin of the instance, if it is known.
    rounds_of
        Images of a round, if the instance has this number; ``auto`` if the method chooses.
    engines, tasks, budget_bytes
        Figures of the first instance.
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
    """Return the description of a problem by its instances."""
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
    """Return the checksum of an iteration by those of its instances; for a single instance, its own."""
    return sums[0] if len(sums) == 1 else sha256(" ".join(sums).encode()).hexdigest()


def _without_budget(instance: Instance) -> Instance:
    """Return an instance without its budget, and without names and notes that may contain it."""
    nameless = msgspec.structs.replace(
        instance, budget_bytes=0, meta={}, transforms=UNSET, origin=UNSET, layers=UNSET
    )
    msgspec.structs.force_setattr(nameless, "name", "")  # families are older than the rule that none is empty
    return nameless
