"""The mutation study: damaged schedules, judged by the checker and by the symbolic replay.

``python -m tests.validate.mutation_study``, from the root of the repository, prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from random import Random

import msgspec

from pebbler.instances.errors import FormatError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.validate.check import check
from pebbler.validate.replay.durations import draw_durations
from pebbler.validate.replay.fault import Fault
from pebbler.validate.replay.machine import Machine
from pebbler.validate.schedule import Schedule, require_indices

from .carried_mutants import CARRIED, CARRIED_FORM, CARRIED_INSTANCE, CARRIED_ON_HOST
from .host_mutants import HOST, HOST_FIGURES, HOST_FORM, HOST_INSTANCE
from .machine_mutants import MACHINE_FIGURES, MACHINE_FORM, ON_HOST_OF_MACHINE, ON_MACHINE
from .machine_programs import coupled_case, host_work_case, retimed
from .mutants import FIGURES, FORM, INSTANCE, PROGRAM, Case, InstanceMutation, Mutation
from .random_programs import random_case

FORMAL: dict[Mutation | InstanceMutation, str] = {
    **FORM,
    **HOST_FORM,
    **CARRIED_FORM,
    **MACHINE_FORM,
}
"""Mutations against a rule of the form or a permission; each with its rule."""

REPORTED: tuple[Mutation, ...] = (*FIGURES, *HOST_FIGURES, *MACHINE_FIGURES)
"""Mutations of what is reported."""

ORDINARY: tuple[Mutation | InstanceMutation, ...] = (*PROGRAM, *INSTANCE, *FORM, *FIGURES)
"""Mutations of programs with and without host memory that ends."""

ON_HOST: tuple[Mutation | InstanceMutation, ...] = (*HOST, *HOST_INSTANCE, *HOST_FORM, *HOST_FIGURES)
"""Mutations of programs with host memory that ends."""

OF_CARRIED: tuple[Mutation | InstanceMutation, ...] = (
    *CARRIED,
    *CARRIED_ON_HOST,
    *CARRIED_INSTANCE,
    *CARRIED_FORM,
)
"""Mutations of programs with carried blocks."""

OF_MACHINE: tuple[Mutation | InstanceMutation, ...] = (*ON_MACHINE, *MACHINE_FORM, *MACHINE_FIGURES)
"""Mutations of programs with a shared link, slowed runs or work on the host."""

DRAWS = 50
"""Duration draws that an accepted schedule must survive, and in which damage by a rejected one is sought."""

RARE = 5000
"""Draws in which a fault of a rejected schedule is sought that the first ones do not show: a race that the
slower of two operations nearly always loses.
"""


@dataclass(slots=True)
class Tally:
    """What became of some mutants.

    `damaged`, `misreported` and `ruled` count rejected mutants by the gravest fault that a replay found:
    data lost, wrong figures, a rule broken without damage; `silent` ones survived every draw.
    """

    mutants: int = 0
    malformed: int = 0
    accepted: int = 0
    damaged: int = 0
    misreported: int = 0
    ruled: int = 0
    silent: int = 0

    @property
    def rejected(self) -> int:
        return self.mutants - self.malformed - self.accepted

    @property
    def confirmed(self) -> float:
        """Share of the rejected mutants that do damage or report wrong figures."""
        return (self.damaged + self.misreported) / max(self.rejected, 1)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A mutant on which checker and replay disagree: one of the two lists is empty, and should not be."""

    mutation: str
    instance: Instance
    schedule: Schedule
    reasons: tuple[str, ...]
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class Study:
    """Tallies by kind of mutation, and every contradiction."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    contradictions: list[Contradiction] = field(default_factory=list)

    def total(self, *leave_out: str) -> Tally:
        """Sum of the tallies, but for some kinds."""
        total = Tally()
        for name, tally in self.tallies.items():
            if name not in leave_out:
                for item in fields(Tally):
                    setattr(total, item.name, getattr(total, item.name) + getattr(tally, item.name))
        return total

    def judge(self, name: str, case: Case | None, rng: Random) -> bool:
        """Count a mutant (None: malformed) and return whether the checker accepts it."""
        tally = self.tallies.setdefault(name, Tally())
        tally.mutants += 1
        if case is None:
            tally.malformed += 1
            return False
        instance, schedule = case
        report = check(instance, schedule)
        if report.valid:
            tally.accepted += 1
            faults = survive(instance, schedule, rng)
            if faults:
                self.contradictions.append(Contradiction(name, instance, schedule, (), tuple(faults)))
            return True
        kinds = _damage(instance, schedule, rng)
        if "data" in kinds:
            tally.damaged += 1
        elif "figure" in kinds:
            tally.misreported += 1
        elif "rule" in kinds:
            tally.ruled += 1
        else:
            tally.silent += 1
            self.contradictions.append(Contradiction(name, instance, schedule, report.reasons, ()))
        return False


def conduct(seed: int, per_kind: int, *, host: bool = False, carried: bool = False) -> Study:
    """Make `per_kind` mutants of each kind, every one from a random valid schedule of its own.

    Ordinary mutations damage programs without a budget of host memory, or with one where `host` is set, and
    without carried blocks, or with some where `carried` is set. Every other program with carried blocks for
    mutations of these has a budget of host memory. Times of a shared link and of slowed
    runs are reported wrong of programs without work on the host; what runs there is damaged in programs that
    have it.
    """
    study = Study()
    for mutation in (*ORDINARY, *ON_HOST, *OF_CARRIED):
        rng, draws = Random(f"{seed} {mutation.__name__}"), Random(seed)
        is_of_carried = mutation in OF_CARRIED
        count = tried = 0
        while count < per_kind:
            tried += 1
            ends = mutation in (*ON_HOST, *CARRIED_ON_HOST) or (is_of_carried and tried % 2 == 0)
            for case in _mutate(
                mutation, random_case(rng, host=host or ends, carried=carried or is_of_carried), rng
            ):
                study.judge(mutation.__name__, case, draws)
                count += 1
    _conduct_on_machine(study, seed, per_kind)
    return study


def conduct_on_machine(seed: int, per_kind: int) -> Study:
    """Make mutants of programs with a shared link, slowed runs and work on the host, as `conduct` does."""
    study = Study()
    _conduct_on_machine(study, seed, per_kind)
    return study


def _conduct_on_machine(study: Study, seed: int, per_kind: int) -> None:
    for mutation in OF_MACHINE:
        rng, draws = Random(f"{seed} {mutation.__name__}"), Random(seed)
        count = 0
        while count < per_kind:
            if mutation in MACHINE_FIGURES:
                case_of = coupled_case(rng)
            else:
                case_of = host_work_case(rng, host=mutation in ON_HOST_OF_MACHINE)
            for case in _mutate(mutation, case_of, rng):
                study.judge(mutation.__name__, case, draws)
                count += 1


def wander_on_host(seed: int, starts: int, steps: int) -> Study:
    """Mutate on and on, as `wander` does, from programs with work on the host."""
    study = Study()
    rng = Random(seed)
    ordinary = (*PROGRAM, *INSTANCE)
    for _ in range(starts):
        here = host_work_case(rng)
        for _ in range(steps):
            ends = here[0].has_host_budget and rng.random() < 0.3
            kinds = (*HOST, *HOST_INSTANCE) if ends else ON_MACHINE if rng.random() < 0.5 else ordinary
            mutation = rng.choice(kinds)
            for case in _mutate(mutation, here, rng):
                if study.judge(mutation.__name__, case, rng) and case is not None and case[1].residences:
                    here = case
    return study


def wander(
    seed: int,
    starts: int,
    steps: int,
    *,
    host: bool = False,
    carried: bool = False,
    own_inputs: bool = False,
    own_outputs: bool = False,
) -> Study:
    """Mutate on and on: an accepted mutant is what the next mutation damages.

    So the study reaches valid programs that no builder would write. With `host`, host memory ends, and most
    mutations are of what is in it. With `carried`, rounds carry blocks; half of the mutations are theirs.
    With `own_inputs`, algorithms read different blocks; with `own_outputs`, some leave out outputs.
    """
    study = Study()
    rng = Random(seed)
    ordinary, on_host = (*PROGRAM, *INSTANCE), (*HOST, *HOST_INSTANCE)
    of_carried = (*CARRIED, *CARRIED_INSTANCE, *(CARRIED_ON_HOST if host else ()))
    for _ in range(starts):
        here = random_case(rng, host=host, carried=carried, own_inputs=own_inputs, own_outputs=own_outputs)
        for _ in range(steps):
            kinds = on_host if host and rng.random() < 0.7 else ordinary
            mutation = rng.choice(of_carried if carried and rng.random() < 0.5 else kinds)
            for case in _mutate(mutation, here, rng):
                if study.judge(mutation.__name__, case, rng) and case is not None:
                    here = case
    return study


def survive(instance: Instance, schedule: Schedule, rng: Random) -> list[Fault]:
    """Return the faults of the first of `DRAWS` draws, the nominal one first, that has any."""
    machine = Machine(instance, schedule)
    faults = machine.replay(None, rng)
    for _ in range(DRAWS - 1):
        if faults:
            break
        faults = machine.replay(draw_durations(instance, schedule, rng), rng)
    return faults


def markdown(study: Study) -> str:
    """Write the study as a Markdown table."""
    head = (
        "mutation",
        "mutants",
        "malformed",
        "accepted",
        "rejected",
        "damage",
        "figures",
        "rule only",
        "silent",
    )
    rows = [head, ("---", *["---:"] * (len(head) - 1))]
    form = tuple(mutation.__name__ for mutation in FORMAL)
    sums = (("**all but form**", study.total(*form)), ("**all**", study.total()))
    for name, tally in (*study.tallies.items(), *sums):
        mark = " *" if name in form else ""
        figures = (
            tally.mutants,
            tally.malformed,
            tally.accepted,
            tally.rejected,
            tally.damaged,
            tally.misreported,
            tally.ruled,
            tally.silent,
        )
        rows.append((name.replace("_", " ") + mark, *map(str, figures)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _mutate(mutation: Mutation | InstanceMutation, case: Case, rng: Random) -> Iterator[Case | None]:
    """Yield the mutant, None if the format refuses it, or nothing if there is nothing to damage."""
    instance, schedule = case
    try:
        mutant = mutation(instance, schedule, rng)
        if mutant is None:
            return
        instance, schedule = (instance, mutant) if isinstance(mutant, Schedule) else mutant
        require_indices(instance, msgspec.json.decode(encode(schedule), type=Schedule))
    except (FormatError, msgspec.ValidationError):
        yield None
        return
    yield instance, schedule if mutation in REPORTED else retimed(instance, schedule)


def _damage(instance: Instance, schedule: Schedule, rng: Random) -> set[str]:
    """Kinds of fault found until one is grave, in `DRAWS` draws, or in `RARE` until there is one at all."""
    machine = Machine(instance, schedule)
    kinds: set[str] = {fault.kind for fault in machine.replay(None, rng)}
    for draw in range(1, RARE):
        if kinds & {"data", "figure"} or (kinds and draw >= DRAWS):
            break
        kinds |= {fault.kind for fault in machine.replay(draw_durations(instance, schedule, rng), rng)}
    return kinds


def main() -> int:
    """Print the study; the exit status is 1 where checker and replay contradict each other."""
    parser = argparse.ArgumentParser(description="Print the mutation study of the checker as Markdown.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-kind", type=int, default=200)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--host", action="store_true", help="of programs with host memory that ends alone")
    parser.add_argument("--carried", action="store_true", help="of programs with carried blocks alone")
    parser.add_argument("--machine", action="store_true", help="of links, slowed runs and host work alone")
    arguments = parser.parse_args()
    if arguments.machine:
        study = conduct_on_machine(arguments.seed, arguments.per_kind)
    else:
        study = conduct(arguments.seed, arguments.per_kind, host=arguments.host, carried=arguments.carried)
    print(markdown(study))
    total = study.total()
    form = study.total(*(mutation.__name__ for mutation in FORMAL))
    print(
        f"\nOf {total.rejected} rejected mutants {total.confirmed:.1%} do damage or report wrong figures "
        f"within {DRAWS} draws, {form.confirmed:.1%} without the kinds marked *. "
        f"Contradictions: {len(study.contradictions)}."
    )
    contradictions = list(study.contradictions)
    hosts = (True,) if arguments.host else (False, True)
    carries = (True,) if arguments.carried else (False, True)
    for host, carried in () if arguments.machine else itertools.product(hosts, carries):
        walk = wander(arguments.seed, arguments.starts, 60, host=host, carried=carried)
        further = walk.total()
        contradictions += walk.contradictions
        print(
            f"Wandering on from accepted mutants{', in host memory that ends' if host else ''}"
            f"{', with carried blocks' if carried else ''}: "
            f"{further.mutants} more, {further.accepted} accepted, {further.rejected} rejected. "
            f"Contradictions: {len(walk.contradictions)}."
        )
    walk = wander_on_host(arguments.seed, arguments.starts, 60)
    further = walk.total()
    contradictions += walk.contradictions
    print(
        f"Wandering on from accepted mutants, with work on the host: {further.mutants} more, "
        f"{further.accepted} accepted, {further.rejected} rejected. "
        f"Contradictions: {len(walk.contradictions)}."
    )
    print()
    for mutation, rule in FORMAL.items():
        print(f"- {mutation.__name__.replace('_', ' ')} *: {rule}.")
    return int(bool(contradictions))


if __name__ == "__main__":
    raise SystemExit(main())
