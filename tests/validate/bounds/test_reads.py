"""Bounds where what a task reads depends on its algorithm: on the least, and with prices of the rest."""

from __future__ import annotations

import msgspec
import pytest

from pebbler.instances.instance import Instance
from pebbler.solver.bounds import best_bound, compute_bound, critical_path_bound, single_peak_bound
from pebbler.validate.bounds.arguments import Prices, fitting, priced_ns
from pebbler.validate.bounds.certificate import certify, check_certificate
from pebbler.validate.bounds.reads import choices_of, with_least_reads

from ...reading import algorithm, either, masked, with_last

EVERY = (0, 1, 2, 3)


def prices_of(reruns: dict[tuple[int, int, int], int]) -> Prices:
    """Prices of all the time that a copy out takes before z is there, and of a copy back behind it."""
    out, back = [0, 0, 1, 1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1, 0, 0]
    return Prices(1, [0, 0, 0, 0, 10, 10, 0, 0], [out, back], reruns)


def priced(instance: Instance, reruns: dict[tuple[int, int, int], int]) -> int:
    """The bound at these prices."""
    return priced_ns(instance, EVERY, prices_of(reruns))


def test_an_ordinary_instance_is_its_own_least() -> None:
    plain = with_last(either(), algorithm())
    assert with_least_reads(plain) is plain


def test_the_least_is_what_every_algorithm_reads_of_those_that_fit() -> None:
    """An algorithm that does not fit beside what it reads is left out, but counts for what is read."""
    xy, yz = algorithm("xy", inputs=(1, 0)), algorithm("yz", inputs=(1, 2))
    chosen = with_last(either(), algorithm("y"), xy, yz)
    assert [a.name for a in fitting(chosen, 3)] == ["y", "xy"]
    last = with_least_reads(chosen).tasks[3]
    assert (last.inputs, [a.name for a in last.algorithms]) == ((1,), ["y", "xy"])
    assert not last.reads_vary
    assert [(a.name, *rest) for a, *rest in choices_of(chosen, 3)] == [("y", (), ()), ("xy", (0,), ())]
    none_fits = with_last(either(budget_bytes=0), algorithm("y"), algorithm("x", inputs=(0,)))
    assert len(choices_of(none_fits, 3)) == 2


def test_bounds_count_on_the_least_that_is_read() -> None:
    """Each has to hold for a schedule that reads x, and for one that reads y."""
    chosen, fixed = either(), with_last(either(), algorithm("from y"))
    assert single_peak_bound(fixed).lower_bound_ns == 24
    assert single_peak_bound(chosen).lower_bound_ns == 4
    assert compute_bound(chosen).lower_bound_ns == critical_path_bound(chosen).lower_bound_ns == 4
    assert best_bound(chosen).lower_bound_ns == 4


def test_what_does_not_fit_does_not_count_as_fast() -> None:
    slow = with_last(either(), algorithm("y", 5), algorithm("xz", 1, inputs=(0, 2)))
    assert compute_bound(slow).lower_bound_ns == 8
    assert compute_bound(msgspec.structs.replace(slow, budget_bytes=3)).lower_bound_ns == 4


def test_prices_of_what_only_some_algorithms_read_prove_more() -> None:
    """Either block is dear to have back: it pays that the task reads one of them, whichever."""
    chosen = either()
    both = {(3, 6, 0): 20, (3, 6, 1): 20}
    assert priced(chosen, {}) <= 4
    assert priced(chosen, {(3, 6, 0): 20}) <= 4  # the task reads y
    assert priced(chosen, both) == 23
    third = with_last(chosen, *chosen.tasks[3].algorithms, algorithm("neither", inputs=()))
    assert priced(third, both) <= 4
    slow = with_last(chosen, *chosen.tasks[3].algorithms, algorithm("neither", 12, inputs=()))
    assert priced(slow, both) == 2 + 12


def test_a_certificate_has_such_prices() -> None:
    prices = prices_of({(3, 6, 0): 20, (3, 6, 1): 20})
    found = certify(either(), "prices", "by hand", checkpoints=EVERY, prices=prices)
    assert found.lower_bound_ns == 23
    assert found.rerun_prices == ((3, 6, 0, 20), (3, 6, 1, 20))
    assert check_certificate(either(), found).valid
    fixed = with_last(either(), algorithm("from y"))
    (reason,) = check_certificate(fixed, found).reasons
    assert "task 3 has no second run in interval 6 that touches block 0" in reason


@pytest.mark.parametrize(
    ("reruns", "message"),
    [
        ({(3, 6, 2): 1}, "task 3 neither reads nor makes block 2 with some of its algorithms only"),
        ({(3, 7, 0): -1}, "task 3, instant 7: a price of block 0 is negative"),
        ({(3, 8, 0): 1}, "task 3 has no second run in interval 8 that touches block 0"),
        ({(1, 2, 0): 1}, "task 1 has no second run in interval 2 that touches block 0"),
    ],
)
def test_other_prices_are_refused(reruns: dict[tuple[int, int, int], int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        priced(either(), reruns)


def test_what_all_algorithms_read_has_no_such_price() -> None:
    both = with_last(either(), algorithm("y"), algorithm("xy", inputs=(0, 1)))
    with pytest.raises(
        ValueError, match="task 3 neither reads nor makes block 1 with some of its algorithms only"
    ):
        priced(both, {(3, 6, 1): 1})


def mask_prices(reruns: dict[tuple[int, int, int], int]) -> Prices:
    """Prices of memory while z is there, of a copy of x out before, and of one back behind it."""
    out, back = [0, 0, 120, 0, 3, 0, 0, 0, 0], [0, 0, 0, 0, 0, 12, 16, 0, 0]
    return Prices(120, [0, 0, 0, 0, 30, 10, 0, 0], [out, back], reruns)


def test_what_may_be_left_out_pays_to_be_made_and_is_paid_by_who_reads_it() -> None:
    """To make the mask takes 1 ns more, which is its price; x is as dear."""
    x, mask, made = (3, 6, 0), (3, 6, 2), (1, 3, 2)

    def priced(reruns: dict[tuple[int, int, int], int]) -> int:
        return priced_ns(masked(), EVERY, mask_prices(reruns))

    assert priced({x: 40, mask: 160, made: 120}) == 5
    assert priced({x: 40, made: 120}) <= 4  # the mask is read for nothing
    assert priced({x: 40, mask: 160}) <= 4  # it is made for nothing
    assert priced({x: 40, mask: 160, made: 360}) <= 4  # a mask is made that nobody takes


@pytest.mark.parametrize(
    ("reruns", "message"),
    [
        ({(1, 3, 1): 1}, "task 1 neither reads nor makes block 1 with some of its algorithms only"),
        ({(1, 3, 2): -1}, "task 1, instant 3: a price of block 2 is negative"),
        ({(1, 4, 2): 1}, "task 1 has no second run in interval 4 that touches block 2"),
    ],
)
def test_other_prices_of_making_are_refused(reruns: dict[tuple[int, int, int], int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        priced_ns(masked(), EVERY, mask_prices(reruns))
