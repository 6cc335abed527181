"""Attacks on theorems: what came of them, and what contradicts one, shrunk by hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from random import Random

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pebbler.instances.instance import Instance

from .instances import features
from .theorems import Claim, Theorem, TooLargeError


class Contradiction(AssertionError):  # noqa: N818 - it is what a test reports
    """A bound above a schedule."""

    def __init__(self, theorem: Theorem, instance: Instance, claim: Claim) -> None:
        self.theorem, self.instance, self.claim = theorem, instance, claim
        super().__init__(
            f"{theorem.name}: {claim.what} says {claim.bound}, and {claim.possible} is possible: {instance!r}"
        )


@dataclass(slots=True)
class Tally:
    """What came of the attacks on a theorem.

    Attributes
    ----------
    instances
        Judged ones.
    too_large
        Those on which no search ended.
    active
        Judged ones with what the theorem is about in the model.
    met
        Those of them with a claim that equals what is possible.
    impossible
        Judged ones that have no schedule, so that every claim holds.
    features
        How many judged ones have what.
    """

    instances: int = 0
    too_large: int = 0
    active: int = 0
    met: int = 0
    impossible: int = 0
    features: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, object]:
        """All of it by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def attack(self, theorem: Theorem, rng: Random, keys: Collection[str] = ()) -> None:
        """Draw a case and attack; raise `Contradiction` if the theorem fails."""
        case = theorem.case(rng, keys)
        try:
            claims = list(theorem.attack(case))
        except TooLargeError:
            self.too_large += 1
            return
        except Exception as error:
            error.add_note(repr(case.instance))
            raise
        for claim in claims:
            if claim.bound > claim.possible:
                raise Contradiction(theorem, case.instance, claim)
        rows = [claim for claim in claims if claim.has_row]
        self.instances += 1
        self.active += bool(rows)
        self.met += any(claim.bound == claim.possible < math.inf for claim in rows)
        self.impossible += bool(claims) and claims[0].possible == math.inf
        self.features.update(features(case.instance))


def attacked(theorem: Theorem, seed: int, count: int, keys: Collection[str] = ()) -> Tally:
    """Attack a theorem with so many instances, the same ones for a seed, which have these of `KEYS`.

    Raises
    ------
    Contradiction
        With the smallest instance that hypothesis finds.
    """
    tally = Tally()

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def one(rng: Random) -> None:
        tally.attack(theorem, rng, keys)

    one()
    return tally
