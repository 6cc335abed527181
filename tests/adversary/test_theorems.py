"""Every theorem under attack, on the same instances in every run; the study has far more of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from .attack import Tally, attacked
from .instances import adversarial, features
from .theorems import MACHINE, PLAIN, THEOREMS

SLOW, LANDING = pytest.mark.slow, pytest.mark.landing
SOME = 0.4
"""Share of the attacks that the suite makes."""
RARE = ("single peak", "prices with second runs", "windows", "idle windows")
"""Theorems whose rows are in few models: the suite attacks them as often as `.ci/long`."""
SEARCH = "exhaustive search"
"""The judge: in parts, which can run at once, it agrees with a search without its pruning on a thousand
instances and more, a few of which are drawn in the suite."""
HEAVY = (SEARCH, "exhaustive search in pages", "methods")
"""Theorems whose attacks take longest: the suite attacks them on plain instances, and `.ci/run` on all."""
PARTS, COUNT_OF_PART = 8, 170


def cases() -> Iterator[Any]:
    """Each theorem with a seed and a number of instances: few in the suite, and then all."""
    for name, theorem in THEOREMS.items():
        if name == SEARCH:
            yield from (pytest.param(name, seed, COUNT_OF_PART, marks=SLOW) for seed in range(PARTS))
            yield name, 0, int(SOME * COUNT_OF_PART)
        else:
            count = 40 if theorem.is_slow else 80
            yield pytest.param(name, 0, count, marks=[] if name in RARE else SLOW)
            if name not in RARE:
                yield name, 0, int(SOME * count)


def shares(names: Iterable[str]) -> Iterator[Any]:
    """Each theorem with a share of its attacks: some in the suite, and then all."""
    for name in names:
        yield pytest.param(name, 1.0, marks=[] if name in RARE else SLOW)
        if name not in RARE:
            yield pytest.param(name, SOME, marks=LANDING if name in HEAVY else [])


@pytest.mark.parametrize(("name", "seed", "count"), list(cases()))
def test_no_bound_is_above_a_schedule(name: str, seed: int, count: int) -> None:
    theorem = THEOREMS[name]
    tally = attacked(theorem, seed=seed, count=count)
    assert tally.instances >= 0.6 * count
    assert tally.instances - tally.impossible >= 0.4 * count
    assert PARTS * tally.instances >= 1000 or count != COUNT_OF_PART
    # what the theorem is about was in the model, and said as much as there is to say
    assert tally.active >= 0.04 * count, tally
    assert tally.met >= 1, tally
    if theorem.shape == PLAIN and count >= 80:
        lacking = {name for name in FEATURES if not tally.features[name]}
        assert not lacking, lacking


def test_eighty_instances_have_everything() -> None:
    tally = Tally()
    for seed in range(80):
        tally.features.update(features(adversarial(Random(seed), PLAIN)))
    assert not {name for name in FEATURES if not tally.features[name]}


@pytest.mark.parametrize(
    ("name", "share"),
    list(shares(name for name, theorem in THEOREMS.items() if theorem.takes({"host_budget"}))),
)
def test_no_bound_is_above_a_schedule_that_keeps_within_host_memory(name: str, share: float) -> None:
    theorem = THEOREMS[name]
    most = 120 if name == SEARCH else 20 if theorem.is_slow and share < 1 else 40
    count = int(share * most)
    tally = attacked(theorem, 7, count, {"host_budget"})
    assert tally.instances >= 0.4 * count
    assert tally.instances - tally.impossible >= 0.2 * count
    assert tally.active >= 1, tally
    assert tally.features["no host memory"] >= 1 or share < 1, tally
    assert tally.features["host memory for some copies"] >= 0.2 * tally.instances, tally


CARRIED = [name for name, theorem in THEOREMS.items() if theorem.takes({"carried"})]
"""Theorems that are about instances with carried blocks, too."""


@pytest.mark.parametrize("host_budget", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize(("name", "share"), list(shares(CARRIED)))
def test_no_bound_is_above_a_schedule_that_can_be_repeated(
    name: str, host_budget: bool, share: float
) -> None:
    theorem = THEOREMS[name]
    keys = {"carried", "host_budget"} if host_budget else {"carried"}
    if not theorem.takes(keys):
        return
    count = int(share * (100 if name == SEARCH else 20 if theorem.is_slow else 40))
    tally = attacked(theorem, 13, count, keys)
    assert tally.instances >= 0.4 * count
    assert tally.instances - tally.impossible >= 0.2 * count
    assert tally.active >= 1, tally
    assert tally.features["a carried block"] == tally.instances, tally
    assert tally.features["a carried block that is updated"] >= 0.1 * tally.instances, tally
    assert tally.features["a carried block that is read only"] >= 0.1 * tally.instances, tally
    assert tally.features["host memory ends"] == tally.instances * host_budget, tally


MACHINES = [
    *([key] for key in MACHINE),
    *itertools.combinations(MACHINE, 2),
    *([key, other] for key in MACHINE for other in ("carried", "host_budget")),
]
"""What a machine may have beside the device, alone and in pairs."""

UNSEARCHED = {("pages", "host_work", "host_budget")}
"""Theorems with keys of which no instance is small enough for the judge, as the theorem needs it."""

REACHED = {
    "link": "a link for both directions",
    "slowdown": "a task that copies slow down",
    "host_budget": "host memory ends",
    "carried": "a carried block",
}


def marks(name: str, keys: Sequence[str]) -> Any:
    """The judge is on every pair of what a machine has when a change lands."""
    if name in HEAVY:
        return LANDING if name.startswith(SEARCH) else SLOW
    return [] if len(keys) == 1 and not THEOREMS[name].is_slow else SLOW


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(
            name,
            keys,
            id=f"{name}-{'-'.join(keys)}",
            marks=marks(name, keys),
        )
        for name, theorem in THEOREMS.items()
        for keys in MACHINES
        if theorem.takes(keys) and (name, *keys) not in UNSEARCHED
    ],
)
def test_no_bound_is_above_a_schedule_on_the_machine_as_it_is(name: str, keys: Sequence[str]) -> None:
    theorem = THEOREMS[name]
    pair = len(keys) > 1
    count = 25 if name == SEARCH else (12 if pair else 2) if theorem.is_slow else 40 if pair else 6
    tally = attacked(theorem, 17, count, keys)
    assert tally.instances >= (0.05 if pair else 0.3) * count  # the others are too large to search
    for key in keys:
        if key in REACHED:
            assert tally.features[REACHED[key]] == tally.instances, tally
    if name == SEARCH:
        assert tally.active >= 1 or "carried" in keys, tally
        assert "host_work" not in keys or tally.features["a task on either side"] >= count / 5, tally
        assert "host_work" not in keys or tally.features["a task for the host alone"] >= count / 10, tally


OWN_INPUTS = [
    *((name, ()) for name, theorem in THEOREMS.items() if theorem.takes({"own_inputs"})),
    *(
        (name, keys)
        for keys in (
            *((key,) for key in ("own_outputs", "takes_over", "carried", "host_budget", "link", "slowdown")),
            ("own_outputs", "takes_over"),
        )
        for name, theorem in THEOREMS.items()
        if theorem.takes({"own_inputs", *keys})
    ),
]
"""Theorems that are about instances whose algorithms read different blocks, alone and with another key."""

CHIEF = (SEARCH, "prices with second runs", "flow with second runs")
LIGHT = tuple(name for name in THEOREMS if name not in HEAVY or name == SEARCH)
QUICK = {(): LIGHT, ("takes_over",): LIGHT, ("own_outputs",): CHIEF, ("own_outputs", "takes_over"): CHIEF[1:]}
"""By the other key, the theorems that the quick tests attack."""


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param(
            name,
            keys,
            marks=SLOW if name not in QUICK.get(keys, ()) else [],
        )
        for name, keys in OWN_INPUTS
    ],
)
def test_no_bound_is_above_a_schedule_whose_runs_choose_what_they_read(
    name: str, keys: Sequence[str]
) -> None:
    theorem = THEOREMS[name]
    count = 10 if theorem.is_slow else 40
    tally = attacked(theorem, 19, count, {"own_inputs", *keys})
    assert tally.instances >= 0.4 * count
    assert tally.instances - tally.impossible >= 0.2 * count
    assert tally.active >= 1, tally
    share = 0.1 if theorem.is_slow and "own_outputs" in keys else 0.4  # larger ones take too many states
    assert tally.features["a block that only some algorithms read"] >= share * tally.instances, tally
    optional = tally.features["an output that some algorithms leave out"]
    assert optional >= (0.5 * tally.instances if "own_outputs" in keys else 0), tally
    overwrites = tally.features["an output that may take over a place"]
    assert overwrites >= (0.15 * tally.instances if "takes_over" in keys else 0), tally


def test_every_theorem_is_stated_and_documented(pytestconfig: pytest.Config) -> None:
    for theorem in THEOREMS.values():
        assert len(theorem.statement) > 50, theorem.name
        assert (pytestconfig.rootpath / theorem.page).is_file(), theorem.name


FEATURES = (
    "one copy engine",
    "updates in place",
    "a block on the host only",
    "a block on the device at first",
    "must end on the host",
    "must end on the device",
    "must end on the device, without uses",
    "a copy that is impossible",
    "a copy without time",
    "a block without uses",
    "a block of one byte",
    "a block of a terabyte's order",
    "runs without time",
    "no run takes time",
    "a time of minutes",
    "a workspace",
    "several algorithms",
    "an algorithm that does not fit",
    "tensors in parts",
    "alignment",
    "resident bytes",
    "no byte to spare",
    "one task",
)
