"""Certificates of lower bounds: what an argument needs, so that anybody can work out its bound again.

A certificate is not believed: its bound is computed anew from the instance and the figures that it holds, in
whole numbers, by `exact_bounds`. Solvers only suggest the figures. The checksum tells a damaged file from a
false claim. This module imports no solver.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from ...instances.applied import unmappable
from ...instances.errors import FormatError
from ...instances.files import encode, read_document, write_document
from ...instances.instance import Instance, Natural, Positive
from ...instances.transforms import page_bytes_of
from ...instances.units import PAGE_BYTES
from ..check import CheckReport
from .arguments import Prices, SinglePeak, compute_ns, in_whole_pages, priced_ns

Argument = Literal["compute", "single-peak", "prices"]

PAGED_ONLY = "+pages"
"""How the name of a bound ends that holds in paged memory only."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound on the makespan of a round, and what its argument needs.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance, and the checksum of its file where there is one.
    argument
        ``compute``, ``single-peak`` (at `position`) or ``prices`` (at `checkpoints`).
    bound_by
        Who suggested the figures: the argument itself, or a model and a solver.
    lower_bound_ns
        No schedule of the instance is shorter.
    position
        The task of a single peak.
    checkpoints, denominator, memory_prices, engine_prices
        Tasks and prices as `exact_bounds.Prices` has them: nanoseconds for a byte at both instants of each
        checkpoint, and nanoseconds for a nanosecond of each copy engine in each interval.
    rerun_prices
        Where tasks may run again: a task, the interval in which it does, a block that it reads or writes, and
        the price, nanoseconds for a byte.
    page_bytes
        Where only paged schedules are bounded, those in pages of a multiple of so many bytes: the argument is
        for the instance in whole pages.
    checksum
        SHA-256 of the file in which this key is the empty text.
    """

    format: Literal["pebbler/certificate/1"] = "pebbler/certificate/1"
    instance: str
    instance_sha256: str | None = None
    argument: Argument
    bound_by: str
    lower_bound_ns: Natural
    position: Natural | None = None
    checkpoints: tuple[Natural, ...] = ()
    denominator: Positive = 1
    memory_prices: tuple[Natural, ...] = ()
    engine_prices: tuple[tuple[Natural, ...], ...] = ()
    rerun_prices: tuple[tuple[Natural, Natural, Natural, Natural], ...] | msgspec.UnsetType = msgspec.UNSET
    page_bytes: Positive | msgspec.UnsetType = msgspec.UNSET
    checksum: str = ""


def certify(
    instance: Instance,
    argument: Argument,
    bound_by: str,
    *,
    position: int | None = None,
    checkpoints: tuple[int, ...] = (),
    prices: Prices | None = None,
) -> Certificate:
    """Work out the bound of an argument, and return it with a certificate.

    Parameters
    ----------
    instance
        What to bound; where it is in whole pages, only the paged schedules are.
    argument, bound_by, position, checkpoints, prices
        As the certificate has them; the name gets a word about pages.

    Raises
    ------
    ValueError
        When the argument does not hold for the instance, or its figures are not what it needs.
    """
    reruns = {} if prices is None else prices.reruns
    page_bytes = page_bytes_of(instance)
    found = Certificate(
        instance=instance.name,
        argument=argument,
        bound_by=name_of_bound(instance, bound_by),
        lower_bound_ns=0,
        position=position,
        checkpoints=checkpoints,
        denominator=1 if prices is None else prices.denominator,
        memory_prices=() if prices is None else tuple(prices.memory),
        engine_prices=() if prices is None else tuple(map(tuple, prices.engines)),
        rerun_prices=tuple((*key, price) for key, price in sorted(reruns.items())) or msgspec.UNSET,
        page_bytes=msgspec.UNSET if page_bytes is None else page_bytes,
    )
    return sealed(msgspec.structs.replace(found, lower_bound_ns=proven_ns(instance, found)))


def name_of_bound(instance: Instance, bound_by: str) -> str:
    """Name of a bound by what proves it; one for the instance in whole pages holds in paged memory only."""
    return bound_by if page_bytes_of(instance) is None else f"{bound_by}{PAGED_ONLY}"


def misses(instance: Instance, certificate: Certificate, memory: str) -> str | None:
    """Say why a bound does not hold for all schedules in a memory model; None where it does.

    A schedule in pages of a multiple of P is one in pages of P, so that a bound for pages of P holds for it.
    An instance that is in those pages already is bounded as it is.
    """
    page_bytes = certificate.page_bytes
    if page_bytes is msgspec.UNSET:
        return None
    if memory != "paged":
        return f"it is for paged memory, not for {memory}"
    if PAGE_BYTES % page_bytes and page_bytes != page_bytes_of(instance):
        return f"it is for pages of {page_bytes} bytes, and schedules may have pages of {PAGE_BYTES}"
    return None


def proven_ns(instance: Instance, certificate: Certificate) -> int:
    """What the figures of a certificate prove, whatever bound it claims; nanoseconds, 0 at least.

    Raises
    ------
    ValueError
        When the argument does not hold for the instance, or its figures are not what it needs.
    """
    if certificate.page_bytes is not msgspec.UNSET:
        instance = in_whole_pages(instance, certificate.page_bytes)
    if certificate.argument == "compute":
        return compute_ns(instance)
    if certificate.argument == "single-peak":
        if certificate.position is None or certificate.position >= len(instance.tasks):
            raise ValueError("the position is not a task of the instance")
        return SinglePeak(instance).at(certificate.position)
    named = () if certificate.rerun_prices is msgspec.UNSET else certificate.rerun_prices
    reruns = {(k, j, d): price for k, j, d, price in named}
    prices = Prices(certificate.denominator, certificate.memory_prices, certificate.engine_prices, reruns)
    return max(priced_ns(instance, certificate.checkpoints, prices), 0)  # prices may prove nothing


def check_certificate(
    instance: Instance, certificate: Certificate, *, instance_sha256: str | None = None
) -> CheckReport:
    """Prove a bound anew from its certificate, or say why it does not follow.

    Parameters
    ----------
    instance, certificate
        What to check.
    instance_sha256
        Checksum of the instance's file, to compare with the one that the certificate names.
    """
    if sealed(certificate) != certificate:
        return CheckReport(False, ("the checksum is not that of the certificate: it was changed or damaged",))
    reasons = []
    if certificate.instance != instance.name:
        reasons.append(f"the certificate is for instance '{certificate.instance}', not for '{instance.name}'")
    if certificate.bound_by.endswith(PAGED_ONLY) != (certificate.page_bytes is not msgspec.UNSET):
        reasons.append(
            f"it is called '{certificate.bound_by}': a bound has 'page_bytes', and a name that ends in "
            f"'{PAGED_ONLY}', if and only if it holds for paged schedules alone"
        )
    if certificate.page_bytes is not msgspec.UNSET and (wrong := unmappable(certificate.page_bytes)):
        reasons.append(f"page_bytes: {wrong}")
    if certificate.instance_sha256 not in (None, instance_sha256) and instance_sha256 is not None:
        reasons.append("instance_sha256 is not the checksum of the instance's file")
    try:
        proven = proven_ns(instance, certificate)
        if proven < certificate.lower_bound_ns:
            claimed = certificate.lower_bound_ns
            reasons.append(f"its figures prove a bound of {proven} ns only, not of {claimed} ns")
    except ValueError as error:
        reasons.append(f"the argument '{certificate.argument}' proves nothing: {error}")
    return CheckReport(not reasons, tuple(reasons))


def sealed(certificate: Certificate) -> Certificate:
    """Return the certificate with its checksum."""
    content = encode(msgspec.structs.replace(certificate, checksum=""))
    return msgspec.structs.replace(certificate, checksum=hashlib.sha256(content).hexdigest())


def write_certificate(certificate: Certificate, path: str | Path, instance_sha256: str | None = None) -> None:
    """Write a certificate file for the instance file of a checksum."""
    write_document(sealed(msgspec.structs.replace(certificate, instance_sha256=instance_sha256)), path)


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate file.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule of the format.
    """
    certificate = read_document(path, Certificate, "a certificate")
    if (certificate.argument == "single-peak") != (certificate.position is not None):
        raise FormatError(f"{path} is not a certificate: a single peak has a 'position', and nothing else")
    return certificate
