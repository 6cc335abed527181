"""Certificates that were changed, and claims that do not follow, are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from pebbler.benchmark.chain import chain_instance
from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.files import encode
from pebbler.instances.instance import Instance
from pebbler.instances.memory import with_budget
from pebbler.instances.workload import Workload
from pebbler.solver.bounds import compute_bound, single_peak_bound
from pebbler.solver.flow import flow_bound, hot_checkpoints
from pebbler.validate.certificate import (
    Certificate,
    check_certificate,
    proven_ns,
    read_certificate,
    sealed,
    write_certificate,
)


@pytest.fixture(scope="module")
def instance() -> Instance:
    return Workload("vgg16", 64, "v100").instance("1.05xMmin")


@pytest.fixture(scope="module")
def certificates(instance: Instance) -> dict[str, Certificate]:
    """One an argument."""
    bounds = {
        "compute": compute_bound(instance),
        "single-peak": single_peak_bound(instance),
        "prices": flow_bound(instance, hot_checkpoints(instance, 20)),
    }
    found = {name: bound.certificate for name, bound in bounds.items() if bound is not None}
    return {name: certificate for name, certificate in found.items() if certificate is not None}


def reasons(instance: Instance, certificate: Certificate) -> str:
    report = check_certificate(instance, certificate)
    assert report.valid == (not report.reasons)
    return "; ".join(report.reasons)


ARGUMENTS = ["compute", "single-peak", "prices"]


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_every_argument_is_proven_anew(
    argument: str, instance: Instance, certificates: dict[str, Certificate], tmp_path: Path
) -> None:
    certificate = certificates[argument]
    assert certificate.argument == argument
    assert reasons(instance, certificate) == ""
    assert certificate.lower_bound_ns == proven_ns(instance, certificate)
    write_certificate(certificate, tmp_path / "c.json", "abc")
    again = read_certificate(tmp_path / "c.json")
    assert check_certificate(instance, again, instance_sha256="abc").valid
    assert not check_certificate(instance, again, instance_sha256="abd").valid
    assert (tmp_path / "c.json").read_bytes() == encode(again)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_certificate_with_any_digit_changed_is_refused(
    argument: str, instance: Instance, certificates: dict[str, Certificate], tmp_path: Path
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
        assert "checksum" in reasons(instance, changed)
        refused += 1
    assert refused > 30


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_bound_above_what_is_proven_is_refused_with_a_right_checksum(
    argument: str, instance: Instance, certificates: dict[str, Certificate]
) -> None:
    honest = certificates[argument]
    for more in (1, 1000, honest.lower_bound_ns):
        claim = honest.lower_bound_ns + more
        false = sealed(msgspec.structs.replace(honest, lower_bound_ns=claim))
        assert f"prove a bound of {honest.lower_bound_ns} ns only, not of {claim} ns" in reasons(
            instance, false
        )
    less = sealed(msgspec.structs.replace(honest, lower_bound_ns=honest.lower_bound_ns - 1))
    assert reasons(instance, less) == ""


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


@pytest.mark.parametrize(
    ("argument", "change", "reason"),
    [
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
    instance: Instance,
    certificates: dict[str, Certificate],
) -> None:
    honest = certificates[argument]
    changed = sealed(msgspec.structs.replace(honest, **change(honest)))  # type: ignore[arg-type]
    assert reason in reasons(instance, changed)


@pytest.mark.parametrize("argument", ["single-peak", "prices"])
def test_a_larger_budget_is_another_problem(
    argument: str, instance: Instance, certificates: dict[str, Certificate]
) -> None:
    assert "prove a bound of" in reasons(with_budget(instance, 2**34), certificates[argument])


def test_recomputable_tasks_leave_the_compute_bound_alone() -> None:
    again = next(i for i in map(chain_instance, range(99)) if any(t.recomputable for t in i.tasks))
    found = compute_bound(again).certificate
    assert found is not None
    assert reasons(again, found) == ""
    peak = sealed(msgspec.structs.replace(found, argument="single-peak", position=0))
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
