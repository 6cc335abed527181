"""Attacks on theorems: what came of them, and what contradicts one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

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
    """

    instances: int = 0
    too_large: int = 0
    active: int = 0
    met: int = 0
    impossible: int = 0

    def attack(self, theorem: Theorem, rng: Random) -> set[str]:
        """Draw a case, attack, and return the features of its instance; raise `Contradiction` if it fails."""
        case = theorem.case(rng)
        try:
            claims = list(theorem.attack(case))
        except TooLargeError:
            self.too_large += 1
            return set()
        for claim in claims:
            if claim.bound > claim.possible:
                raise Contradiction(theorem, case.instance, claim)
        rows = [claim for claim in claims if claim.has_row]
        self.instances += 1
        self.active += bool(rows)
        self.met += any(claim.bound == claim.possible < math.inf for claim in rows)
        self.impossible += bool(claims) and claims[0].possible == math.inf
        return features(case.instance)
