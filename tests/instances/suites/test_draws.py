from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.suites.draws import Draws

MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
"""Of the step of PCG64."""


def draws(seed: int = 0) -> Draws:
    return Draws(np.random.default_rng(seed))


def test_the_stream_is_the_one_that_it_always_was() -> None:
    made = draws(7)
    assert [made.below(10**6) for _ in range(4)] == [348043, 938325, 826786, 733314]
    assert [made.between(-3, 3) for _ in range(4)] == [-1, -3, 0, -1]


def test_the_stream_is_pcg64_as_published() -> None:
    """PCG XSL RR 128/64 (O'Neill 2014), computed here step by step."""
    rng = np.random.default_rng(11)
    state, increment = (rng.bit_generator.state["state"][key] for key in ("state", "inc"))
    made = Draws(rng)
    for _ in range(1000):
        state = (state * MULTIPLIER + increment) % 2**128
        word, turn = (state >> 64) ^ (state % 2**64), state >> 122
        assert made.below(2**64) == (word >> turn | word << (64 - turn)) % 2**64


def test_a_generator_gives_one_stream_however_many_draws_share_it() -> None:
    rng = np.random.default_rng(3)
    halves = [Draws(rng).below(2**40), Draws(rng).below(2**40)]
    whole = draws(3)
    assert halves == [whole.below(2**40), whole.below(2**40)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_all_answers_come_equally_often(count: int) -> None:
    made = draws()
    seen = Counter(made.below(count) for _ in range(1000 * count))
    assert sorted(seen) == list(range(count))
    assert all(850 < times < 1150 for times in seen.values())


def generator(word: int) -> np.random.Generator:
    """A generator whose next word this is: PCG64 puts a state under 2^64 out as it is."""
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    before = (word - state["state"]["inc"]) * pow(MULTIPLIER, -1, 2**128) % 2**128
    rng.bit_generator.state = {**state, "state": {**state["state"], "state": before}}
    return rng


def test_words_beyond_the_last_multiple_are_rejected() -> None:
    """Of 2^64 words, the last one is left over when counting by three: it would make 0 likelier."""
    first, second = generator(2**64 - 1).bit_generator.random_raw(2).tolist()
    assert (first, second % 3) == (2**64 - 1, 2)
    assert Draws(generator(2**64 - 1)).below(3) == 2
    assert Draws(generator(2**64 - 2)).below(3) == 2


def test_ranges_include_both_ends() -> None:
    made = draws()
    assert {made.between(2, 4) for _ in range(100)} == {2, 3, 4}
    assert {made.choice("ab") for _ in range(50)} == {"a", "b"}


def test_percentages() -> None:
    made = draws()
    assert not any(made.chance(0) for _ in range(200))
    assert all(made.chance(100) for _ in range(200))
    assert 200 < sum(made.chance(25) for _ in range(1000)) < 300


def test_another_generator_is_refused() -> None:
    with pytest.raises(PebblerError, match=r"come from MT19937; give a numpy\.random\.Generator on PCG64"):
        Draws(np.random.Generator(np.random.MT19937(0)))
