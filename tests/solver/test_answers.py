"""Answers against each other: whoever comes first, no word stands above a checked schedule."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pebbler.heuristics.methods import Limits, Method
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Instance
from pebbler.solver.answers import Answers, ContradictionError, Ledger
from pebbler.solver.bounds import Bound, certified_bound, compute_bound
from pebbler.validate.bounds.certificate import certify
from pebbler.validate.schedule import Schedule

MS = 10**6
Step = Callable[[Answers], None]


@pytest.fixture
def kept(chain: Instance, keep: Method) -> Schedule:
    """A schedule of 10 ms; computing takes 5 ms at least."""
    schedule = keep(chain, Limits()).schedule
    assert schedule is not None
    return schedule


def test_the_order_of_events_makes_no_difference(
    chain: Instance, kept: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = certify(chain, "compute", "sums")
    steps: list[Step] = [
        lambda answers: answers.claim(compute_bound(chain)),
        lambda answers: answers.claim(Bound(7 * MS, "honest", certified=False), "a"),
        lambda answers: answers.claim(Bound(11 * MS, "lie", False, certificate), "b"),
        lambda answers: answers.deny("c"),
        lambda answers: answers.admit(kept),
    ]
    for order in itertools.permutations(steps):
        caplog.clear()
        answers = Answers(chain, "contiguous")
        for step in order:
            step(answers)
        found = answers.bound()
        assert (found.lower_bound_ns, found.bound_by, found.certified_ns) == (7 * MS, "honest", 5 * MS)
        assert set(answers.refuted) == {"b", "c"}
        assert "its makespan 10000000 is under the lie bound 11000000" in answers.refuted["b"]
        assert len(caplog.records) == 2


def test_a_bound_that_is_met_stands(chain: Instance, kept: Schedule) -> None:
    answers = Answers(chain, "contiguous")
    answers.admit(kept)
    answers.claim(Bound(10 * MS, "tight", certified=False), "a")
    assert answers.bound().lower_bound_ns == 10 * MS
    assert not answers.refuted


def test_without_a_claim_the_bound_is_the_cheap_one(chain: Instance, kept: Schedule) -> None:
    answers = Answers(chain, "contiguous")
    assert answers.bound().lower_bound_ns == 5 * MS
    answers.claim(Bound(11 * MS, "lie", certified=False))
    assert answers.bound().lower_bound_ns == 11 * MS
    answers.admit(kept)
    assert (answers.bound().lower_bound_ns, answers.bound().certified) == (5 * MS, True)


def test_an_author_does_not_rest_on_the_word_of_others(chain: Instance) -> None:
    answers = Answers(chain, "contiguous")
    answers.claim(certified_bound(certify(chain, "compute", "sums")), "a")
    answers.claim(Bound(8 * MS, "a's", certified=False), "a")
    answers.claim(Bound(9 * MS, "b's", certified=False), "b")
    assert answers.bound("a").lower_bound_ns == 8 * MS
    assert answers.bound("b").lower_bound_ns == 9 * MS
    assert answers.bound("c").lower_bound_ns == 5 * MS
    assert answers.bound().lower_bound_ns == 9 * MS


@pytest.mark.parametrize("first", ["schedule", "bound"])
def test_a_certified_bound_above_a_schedule_ends_everything(
    first: str, chain: Instance, kept: Schedule
) -> None:
    wrong = certified_bound(replace(certify(chain, "compute", "wrong"), lower_bound_ns=10 * MS + 1))
    for bound in (wrong, Bound(12 * MS, "word", False, wrong.certificate)):
        answers = Answers(chain, "contiguous")
        steps: list[Callable[[], None]] = [
            lambda answers=answers: answers.admit(kept),  # type: ignore[misc]
            lambda answers=answers, bound=bound: answers.claim(bound, "a"),  # type: ignore[misc]
        ]
        one, other = steps if first == "schedule" else steps[::-1]
        one()
        with pytest.raises(ContradictionError, match="contradicts the wrong bound of 10000001 ns") as caught:
            other()
        assert (caught.value.schedule, caught.value.bound) == (kept, bound)
        again = pickle.loads(pickle.dumps(caught.value))
        assert str(again) == str(caught.value)


def test_pebbler_s_own_proof_that_there_is_none_is_no_mere_word(chain: Instance, kept: Schedule) -> None:
    answers = Answers(chain, "contiguous")
    answers.deny()
    with pytest.raises(ContradictionError, match="contradicts the proof that it has no schedule"):
        answers.admit(kept)


def test_bounds_of_paged_schedules_bound_no_others(chain: Instance) -> None:
    paged = Bound(9 * MS, "flow+pages", certified=False)
    with pytest.raises(PebblerError, match=r"'flow\+pages' is for paged memory, not for contiguous"):
        Answers(chain, "contiguous").claim(paged)
    answers = Answers(chain, "paged")
    answers.claim(paged)
    assert answers.bound() == paged


def test_a_ledger_has_one_page_a_round(chain: Instance, tight: Instance, kept: Schedule) -> None:
    ledger = Ledger("contiguous")
    assert ledger.of(chain) is ledger.of(replace(chain, rounds=7))
    assert ledger.of(chain) is not ledger.of(tight)
    ledger.of(chain).claim(Bound(11 * MS, "lie", certified=False), "a")
    ledger.of(tight).claim(Bound(11 * MS, "lie", certified=False), "b")
    ledger.of(chain).admit(kept)
    assert set(ledger.refuted) == {"a"}
    assert ledger.refuted["a"].startswith("chain-b4: ")
