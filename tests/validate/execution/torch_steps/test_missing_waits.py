"""Waits that a torch step needs: without one of them, the checker refuses it, and its bits are others."""

from __future__ import annotations

import pytest

from ....extras import needs_torch

torch = needs_torch()

from .fault_study import PROGRAMS, after_a_step, pages, program, study, table  # noqa: E402
from .models import noisy  # noqa: E402
from .training import Make, are_equal  # noqa: E402


def test_delays_alone_do_no_damage() -> None:
    plan = program(noisy, "1.2xMmin", {"method": "modnn"})
    wanted = after_a_step(noisy, plan)
    for seed in range(3):
        assert are_equal(after_a_step(noisy, plan, delays=(0.001, seed)), wanted)


@pytest.mark.parametrize(("make", "cases"), [(noisy, 8), (pages, 8)])
def test_a_wait_that_is_left_out_shows_in_the_bits(make: Make, cases: int) -> None:
    budget, options = next((budget, options) for one, budget, options in PROGRAMS if one is make)
    tally = study(make, program(make, budget, options), cases)
    assert tally.tried == cases
    assert tally.damaged >= cases / 2
    assert tally.shown >= 0.95 * tally.damaged, tally.hidden
    assert f"{tally.shown} ({tally.shown / tally.damaged:.1%})" in table([("a step", tally)])
