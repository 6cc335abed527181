"""Certificates that were changed, and claims that do not follow, are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.transforms import in_pages, with_recomputation
from pebbler.instances.units import PAGE_BYTES
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import compute_bound, critical_path_bound, single_peak_bound
from pebbler.solver.exhaustive.brute_force import brute_force
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_bound
from pebbler.solver.flow.recompute import recompute_bound
from pebbler.validate.bounds.arguments import compute_ns
from pebbler.validate.bounds.certificate import (
    Certificate,
    certify,
    check_certificate,
    misses,
    proven_ns,
    read_certificate,
    sealed,
    write_certificate,
)

from ...samples import counts
from ..hostile import hostile_instance


@pytest.fixture(scope="module")
def instance() -> Instance:
    return Workload("vgg16", 64, "v100").instance("1.05xMmin")


@pytest.fixture(scope="module")
def again(instance: Instance) -> Instance:
    """The same where forward tasks may run again."""
    return with_recomputation(instance)


@pytest.fixture(scope="module")
def steps() -> Instance:
    """One with steps of an optimizer on the host."""
    workload = Workload("lenet", 16, "k40", steady=True, optimizer="adam", optimizer_on="host")
    return workload.instance("1.2xMmin")


@pytest.fixture(scope="module")
def certificates(instance: Instance, again: Instance, steps: Instance) -> dict[str, Certificate]:
    """One an argument; and one with prices of second runs."""
    bounds = {
        "compute": compute_bound(instance),
        "critical-path": critical_path_bound(steps),
        "single-peak": single_peak_bound(instance),
        "prices": flow_bound(instance, hot_checkpoints(instance, 20)),
        "second runs": recompute_bound(again, hot_checkpoints(again, 16)),
    }
    found = {name: bound.certificate for name, bound in bounds.items() if bound is not None}
    return {name: certificate for name, certificate in found.items() if certificate is not None}


@pytest.fixture
def proven(argument: str, instance: Instance, again: Instance, steps: Instance) -> Instance:
    """What the certificate of an argument is for."""
    return {"second runs": again, "critical-path": steps}.get(argument, instance)


def reasons(instance: Instance, certificate: Certificate) -> str:
    report = check_certificate(instance, certificate)
    assert report.valid == (not report.reasons)
    return "; ".join(report.reasons)


ARGUMENTS = ["compute", "critical-path", "single-peak", "prices", "second runs"]


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_every_argument_is_proven_anew(
    argument: str, proven: Instance, certificates: dict[str, Certificate], tmp_path: Path
) -> None:
    certificate = certificates[argument]
    assert certificate.argument == ("prices" if argument == "second runs" else argument)
    assert ("rerun_prices" in str(encode(certificate))) == (argument == "second runs")
    assert reasons(proven, certificate) == ""
    assert certificate.lower_bound_ns == proven_ns(proven, certificate)
    assert argument == "compute" or certificate.lower_bound_ns > compute_ns(proven)
    write_certificate(certificate, tmp_path / "c.json", "abc")
    again = read_certificate(tmp_path / "c.json")
    assert check_certificate(proven, again, instance_sha256="abc").valid
    assert not check_certificate(proven, again, instance_sha256="abd").valid
    assert (tmp_path / "c.json").read_bytes() == encode(again)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_certificate_with_any_digit_changed_is_refused(
    argument: str, proven: Instance, certificates: dict[str, Certificate], tmp_path: Path
) -> None:
    """Every digit of the file in turn, those of the checksum included (of prices every seventh)."""
    write_certificate(certificates[argument], tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    places = [match.start() for match in re.finditer(r"\d", text)]
    rng = Random(0)
    refused = 0
    for place in places[:: 1 if len(places) < 500 else 7]:
        digit = rng.choice([other for other in "0123456789" if other != text[place]])
        (tmp_path / "d.json").write_text(text[:place] + digit + text[place + 1 :])
        try:
            changed = read_certificate(tmp_path / "d.json")
        except FormatError:  # a number may not begin with 0, and the format's name has a digit
            refused += 1
            continue
        assert "checksum" in reasons(proven, changed)
        refused += 1
    assert refused > 30


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_bound_above_what_is_proven_is_refused_with_a_right_checksum(
    argument: str, proven: Instance, certificates: dict[str, Certificate]
) -> None:
    honest = certificates[argument]
    for more in (1, 1000, honest.lower_bound_ns):
        claim = honest.lower_bound_ns + more
        false = sealed(msgspec.structs.replace(honest, lower_bound_ns=claim))
        assert f"prove a bound of {honest.lower_bound_ns} ns only, not of {claim} ns" in reasons(
            proven, false
        )
    less = sealed(msgspec.structs.replace(honest, lower_bound_ns=honest.lower_bound_ns - 1))
    assert reasons(proven, less) == ""


def test_prices_that_were_changed_prove_what_they_prove_and_no_more(
    instance: Instance, certificates: dict[str, Certificate]
) -> None:
    """Sealed anew, a mutant is judged by its own prices: the claim stands only where these still prove it."""
    honest = certificates["prices"]
    rng = Random(1)
    refused = 0
    for _ in range(100):
        memory = list(honest.memory_prices)
        i = rng.randrange(len(memory))
        memory[i] = max(0, memory[i] + rng.choice((-1, 1)) * rng.randint(1, honest.denominator))
        mutant = sealed(msgspec.structs.replace(honest, memory_prices=tuple(memory)))
        proven = proven_ns(instance, mutant)
        assert check_certificate(instance, mutant).valid == (proven >= honest.lower_bound_ns)
        refused += proven < honest.lower_bound_ns
    assert refused >= 30


def test_prices_of_second_runs_that_were_changed_prove_what_they_prove_and_no_more(
    again: Instance, certificates: dict[str, Certificate]
) -> None:
    """One left out, lower or higher: less is proven, mostly, and never more than the best prices do."""
    honest = certificates["second runs"]
    assert not isinstance(honest.rerun_prices, msgspec.UnsetType)
    rng = Random(2)
    refused = 0
    for i, (k, j, d, price) in enumerate(honest.rerun_prices):
        other = rng.choice((0, price // 2, 2 * price))
        prices = (*honest.rerun_prices[:i], (k, j, d, other), *honest.rerun_prices[i + 1 :])
        mutant = sealed(msgspec.structs.replace(honest, rerun_prices=prices))
        proven = proven_ns(again, mutant)
        assert proven <= honest.lower_bound_ns + 1
        assert check_certificate(again, mutant).valid == (proven >= honest.lower_bound_ns)
        refused += proven < honest.lower_bound_ns
    assert refused >= len(honest.rerun_prices) / 2 >= 5


@pytest.mark.parametrize(
    ("argument", "change", "reason"),
    [
        ("second runs", lambda _: {"rerun_prices": ((0, 1, 0, 1),)}, "no second run in interval 1"),
        ("second runs", lambda _: {"rerun_prices": ((0, 0, 9, 1),)}, "that touches block 9"),
        ("second runs", lambda _: {"rerun_prices": ((73, 24, 0, 1),)}, "task 73 has no second run"),
        ("second runs", lambda _: {"rerun_prices": ((10**6, 24, 0, 1),)}, "task 1000000 has no second run"),
        ("prices", lambda _: {"rerun_prices": ((0, 2, 0, 1),)}, "task 0 has no second run"),
        ("prices", lambda c: {"engine_prices": c.engine_prices[:1]}, "not a price for every instant"),
        (
            "prices",
            lambda c: {"engine_prices": tuple((c.denominator,) * len(p) for p in c.engine_prices)},
            "above one together",
        ),
        ("prices", lambda c: {"checkpoints": c.checkpoints[::-1]}, "increasing order"),
        ("prices", lambda c: {"checkpoints": (*c.checkpoints[:-1], 74)}, "increasing order"),
        ("prices", lambda _: {"argument": "single-peak"}, "the position is not a task"),
        ("single-peak", lambda _: {"position": 74}, "the position is not a task"),
        ("compute", lambda _: {"instance": "another"}, "is for instance 'another', not for 'vgg16-b64'"),
    ],
)
def test_what_does_not_fit_the_instance_is_refused(
    argument: str,
    change: Callable[[Certificate], dict[str, object]],
    reason: str,
    proven: Instance,
    certificates: dict[str, Certificate],
) -> None:
    honest = certificates[argument]
    changed = sealed(msgspec.structs.replace(honest, **change(honest)))  # type: ignore[arg-type]
    assert reason in reasons(proven, changed)


def test_a_certificate_for_paged_memory_says_so_and_holds_for_nothing_else() -> None:
    """A page for each of the small blocks of a deep network: what is proven with pages is not without."""
    instance = Workload("resnet56", 8, "v100").instance("50%")
    bound = flow_bound(in_pages(instance), hot_checkpoints(instance, 12))
    assert bound is not None
    assert bound.certificate is not None
    assert bound.bound_by == bound.certificate.bound_by == "flow-lp-highs+pages"
    assert bound.certificate.page_bytes == 2 * 2**20
    assert reasons(instance, bound.certificate) == ""
    elsewhere = sealed(msgspec.structs.replace(bound.certificate, page_bytes=msgspec.UNSET))
    assert f"prove a bound of {proven_ns(instance, elsewhere)} ns only" in reasons(instance, elsewhere)
    smaller = sealed(msgspec.structs.replace(bound.certificate, page_bytes=2**20))
    assert "ns only" in reasons(instance, smaller)


def test_a_name_does_not_hide_that_a_bound_is_for_paged_memory() -> None:
    instance = Workload("resnet56", 8, "v100").instance("50%")
    paged = certify(in_pages(instance), "compute", "compute")
    hidden = sealed(msgspec.structs.replace(paged, bound_by="compute"))
    assert "if and only if it holds for paged schedules alone" in reasons(instance, hidden)
    boast = sealed(msgspec.structs.replace(certify(instance, "compute", "compute"), bound_by="compute+pages"))
    assert "if and only if" in reasons(instance, boast)


@pytest.mark.parametrize("page_bytes", [512, 3 * 2**20, 10**12])
def test_pages_are_those_that_a_schedule_can_have(page_bytes: int) -> None:
    instance = Workload("resnet56", 8, "v100").instance("50%")
    honest = certify(in_pages(instance), "compute", "compute")
    strange = sealed(msgspec.structs.replace(honest, page_bytes=page_bytes))
    assert f"pages of {page_bytes} bytes cannot be mapped" in reasons(instance, strange)
    with pytest.raises(FormatError, match=f"pages of {page_bytes} bytes cannot be mapped"):
        in_pages(instance, page_bytes)


def test_a_bound_in_pages_holds_for_schedules_in_multiples_of_them() -> None:
    """And an instance that is in pages already is bounded as it is, whatever pages its schedules have."""
    instance = Workload("resnet56", 8, "v100").instance("50%")
    larger = in_pages(instance, 2 * PAGE_BYTES)
    small, large = (certify(one, "compute", "compute") for one in (in_pages(instance), larger))
    assert reasons(instance, large) == ""
    assert misses(instance, small, "paged") is None
    assert misses(instance, small, "contiguous") == "it is for paged memory, not for contiguous"
    told = misses(instance, large, "paged")
    assert told == f"it is for pages of {2 * PAGE_BYTES} bytes, and schedules may have pages of {PAGE_BYTES}"
    assert misses(larger, large, "paged") is None
    assert misses(instance, certify(instance, "compute", "compute"), "contiguous") is None


@pytest.mark.parametrize("count", counts(50, 120))
def test_no_certificate_whatever_its_figures_is_accepted_above_an_optimum(count: int) -> None:
    """Any figures, claims near what is possible: what the checker lets pass is true, what it refuses is not
    what the figures prove."""
    accepted = refused = senseless = 0
    for seed in range(count):
        rng = Random(seed)
        instance = hostile_instance(rng, recomputable=seed % 3 == 0, most_tasks=4)
        try:
            schedule = brute_force(instance, "divisible", most_states=1000)
        except TimeoutError:
            continue
        if schedule is None:
            continue
        for _ in range(30):
            certificate = drawn(instance, rng, schedule.makespan_ns)
            report = check_certificate(instance, certificate)
            if report.valid:
                assert certificate.lower_bound_ns <= schedule.makespan_ns
                assert certificate.lower_bound_ns <= proven_ns(instance, certificate)
            accepted += report.valid
            refused += "ns only" in "".join(report.reasons)
            senseless += "proves nothing" in "".join(report.reasons)
    assert min(accepted, refused, senseless) >= 5 * count / 6


def drawn(instance: Instance, rng: Random, optimum: int) -> Certificate:
    """A certificate with figures that nobody worked out, some of which are no prices at all."""
    count = len(instance.tasks)
    some = sorted(rng.sample(range(count + (rng.random() < 0.1)), rng.randint(0, count)))
    instants = 2 * len(some) + (rng.random() < 0.05)
    engines = 1 if instance.engines == "single" else 2
    one = rng.choice((1, 2, 7, 1000))
    touched = rng.randrange(count)
    rerun = (touched, rng.randint(0, 2 * len(some)), rng.randrange(len(instance.blocks)), rng.randint(0, one))
    return sealed(
        Certificate(
            instance=instance.name,
            argument=rng.choice(("compute", "critical-path", "single-peak", "prices", "prices", "prices")),
            bound_by="a guess",
            lower_bound_ns=max(optimum + rng.randint(-6, 3), 0),
            position=rng.randint(0, count),
            checkpoints=tuple(some),
            denominator=one,
            memory_prices=tuple(rng.choice((0, 0, rng.randint(0, 2 * one))) for _ in range(instants)),
            engine_prices=tuple(
                tuple(rng.choice((0, rng.randint(0, one))) // engines for _ in range(instants + 1))
                for _ in range(engines)
            ),
            rerun_prices=(rerun,) if rng.random() < 0.2 else msgspec.UNSET,
        )
    )


@pytest.mark.parametrize("argument", ["single-peak", "prices", "second runs"])
def test_a_larger_budget_is_another_problem(
    argument: str, proven: Instance, certificates: dict[str, Certificate]
) -> None:
    assert "prove a bound of" in reasons(with_budget(proven, 2**34), certificates[argument])


def test_what_holds_for_second_runs_holds_without_them_and_not_the_other_way_round(
    instance: Instance, again: Instance, certificates: dict[str, Certificate]
) -> None:
    """Second runs may make it shorter than any bound of copies alone."""
    named = sealed(msgspec.structs.replace(certificates["prices"], instance=again.name))
    assert "prove a bound of" in reasons(again, named)
    first = certificates["second runs"]
    free = msgspec.structs.replace(first, instance=instance.name, rerun_prices=msgspec.UNSET)
    assert proven_ns(instance, free) >= first.lower_bound_ns


def test_a_single_peak_proves_nothing_for_recomputable_tasks(
    again: Instance, certificates: dict[str, Certificate]
) -> None:
    peak = sealed(msgspec.structs.replace(certificates["single-peak"], instance=again.name))
    assert "does not hold for recomputable tasks" in reasons(again, peak)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": "pebbler/instance/1"}', '{"format": "pebbler/certificate/1"}'],
)
def test_what_is_no_certificate_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(PebblerError, match=r"c\.json is not a certificate: "):
        read_certificate(tmp_path / "c.json")


def test_a_position_belongs_to_a_single_peak(certificates: dict[str, Certificate], tmp_path: Path) -> None:
    write_certificate(msgspec.structs.replace(certificates["compute"], position=3), tmp_path / "c.json")
    with pytest.raises(FormatError, match="'position'"):
        read_certificate(tmp_path / "c.json")
