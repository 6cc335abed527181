"""Certificates of lower bounds: the figures with which anybody can compute a bound again.

A certificate is not trusted: `arguments` computes its bound anew, in whole numbers, from the instance and
from the certificate's figures. Solvers only suggest the figures. The checksum distinguishes a damaged file
from a false claim. This module imports no solver.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

import msgspec

from ...instances.applied import unmappable
from ...instances.arguments import require_instance, require_kind
from ...instances.errors import FormatError
from ...instances.files import encode, read_document, write_document
from ...instances.instance import Instance, Natural, Positive
from ...instances.transforms import page_bytes_of
from ...instances.units import PAGE_BYTES
from ..check import CheckReport
from .arguments import Prices, compute_ns, in_whole_pages, priced_ns
from .critical_path import critical_path_ns
from .divisor import in_steps_ns
from .single_peak import SinglePeak

Argument = Literal["compute", "critical-path", "single-peak", "prices"]
"""Name of an argument that proves a bound."""

PAGED_ONLY = "+pages"
"""Ending of the name of a bound that holds in paged memory only."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lower bound on the makespan of a round, with the figures that its argument needs.

    Attributes
    ----------
    instance, instance_sha256
        Name of the instance, and the SHA-256 checksum of its file if there is one.
    argument
        ``compute``, ``critical-path``, ``single-peak`` (at `position`) or ``prices`` (at `checkpoints`).
    bound_by
        Source of the figures: the argument itself, or a model and a solver.
    lower_bound_ns
        The bound in nanoseconds: no schedule of the instance is shorter.
    position
        The task of a single peak.
    checkpoints, denominator, memory_prices, engine_prices
        Tasks and prices as in `arguments.Prices`: nanoseconds per byte at both instants of each checkpoint,
        and nanoseconds per nanosecond of each copy engine in each interval.
    rerun_prices
        If tasks may run again: a task, the interval in which it does, a block that it reads or writes, and
        the price in nanoseconds per byte. If what a checkpoint reads depends on its algorithm: the task, one
        of its instants, a block that it reads with some algorithms only, and the price.
    host_prices
        Where host memory has a budget, prices of its bytes at both instants of each checkpoint, if any is not
        zero.
    end_prices
        Where blocks are carried, and any of these prices is not zero: that of a byte on the device at both
        ends, and that of a byte on the host at both ends, if host memory has a budget.
    link_prices
        Where both directions share a link, and any of these prices is not zero: nanoseconds per nanosecond of
        the link's time in each interval.
    fair_prices
        The same of the times that copies out, and copies in, leave the others (`machine.FairShares`).
    stream_prices
        The same of the host's time, where tasks may run on the host.
    survival_prices
        If tasks may run again, and any of these prices is not zero: an instant, a block, the block itself or
        an input of its producer, and the price in nanoseconds per byte of the first block (`survival`).
    page_bytes
        If only paged schedules are bounded, the bytes of which their page size is a multiple. The argument is
        then for the instance in whole pages.
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
    host_prices: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    end_prices: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    link_prices: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    stream_prices: tuple[Natural, ...] | msgspec.UnsetType = msgspec.UNSET
    fair_prices: tuple[tuple[Natural, ...], tuple[Natural, ...]] | msgspec.UnsetType = msgspec.UNSET
    survival_prices: tuple[tuple[Natural, Natural, Natural, Natural], ...] | msgspec.UnsetType = msgspec.UNSET
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
    """Compute the bound of an argument, and return it as a certificate.

    Parameters
    ----------
    instance
        The instance to bound. If it is in whole pages, only paged schedules are bounded.
    argument, bound_by, position, checkpoints, prices
        As in the certificate; for an instance in whole pages, the name is extended by ``+pages``.

    Raises
    ------
    ValueError
        When the argument does not hold for the instance, or its figures are not valid.
    """
    reruns = {} if prices is None else prices.reruns
    survival = {} if prices is None else prices.survival
    link = () if prices is None else prices.link
    fair = tuple(map(tuple, link[1:]))
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
        host_prices=tuple(prices.host) if prices is not None and any(prices.host) else msgspec.UNSET,
        end_prices=tuple(prices.ends) if prices is not None and any(prices.ends) else msgspec.UNSET,
        link_prices=tuple(link[0]) if link and any(link[0]) else msgspec.UNSET,
        stream_prices=tuple(prices.stream) if prices is not None and any(prices.stream) else msgspec.UNSET,
        fair_prices=(fair[0], fair[1]) if any(map(any, fair)) else msgspec.UNSET,
        survival_prices=tuple((*key, price) for key, price in sorted(survival.items())) or msgspec.UNSET,
    )
    return sealed(msgspec.structs.replace(found, lower_bound_ns=proven_ns(instance, found)))


def name_of_bound(instance: Instance, bound_by: str) -> str:
    """Return the name of a bound by its proof; the name says if it holds in paged memory only."""
    return bound_by if page_bytes_of(instance) is None else f"{bound_by}{PAGED_ONLY}"


def misses(instance: Instance, certificate: Certificate, memory: str) -> str | None:
    """Return why a bound does not hold for all schedules in a memory model; None if it does.

    A schedule in pages of a multiple of P is also one in pages of P, so that a bound for pages of P holds for
    it. An instance that is in those pages already is bounded without change.
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
    """Return the bound in nanoseconds that a certificate's figures prove, whatever it claims; at least 0.

    It is a multiple of the divisor of all times (`divisor`).

    Raises
    ------
    ValueError
        When the argument does not hold for the instance, or its figures are not valid.
    """
    if certificate.page_bytes is not msgspec.UNSET:
        instance = in_whole_pages(instance, certificate.page_bytes)
    return in_steps_ns(instance, max(_argued_ns(instance, certificate), 0))  # prices may prove nothing


def _argued_ns(instance: Instance, certificate: Certificate) -> int:
    """Return what the argument proves of an instance, in whole pages if the certificate is for these."""
    if certificate.argument == "compute":
        return compute_ns(instance)
    if certificate.argument == "critical-path":
        return critical_path_ns(instance)
    if certificate.argument == "single-peak":
        if certificate.position is None or certificate.position >= len(instance.tasks):
            raise ValueError("the position is not a task of the instance")
        return SinglePeak(instance).at(certificate.position)
    named = () if certificate.rerun_prices is msgspec.UNSET else certificate.rerun_prices
    reruns = {(k, j, d): price for k, j, d, price in named}
    host = () if certificate.host_prices is msgspec.UNSET else certificate.host_prices
    ends = () if certificate.end_prices is msgspec.UNSET else certificate.end_prices
    link = [] if certificate.link_prices is msgspec.UNSET else [certificate.link_prices]
    if certificate.fair_prices is not msgspec.UNSET:
        link = [*(link or [(0,) * len(certificate.fair_prices[0])]), *certificate.fair_prices]
    stream = () if certificate.stream_prices is msgspec.UNSET else certificate.stream_prices
    of_time = certificate.memory_prices, certificate.engine_prices
    lost = () if certificate.survival_prices is msgspec.UNSET else certificate.survival_prices
    survival = {(t, d, x): price for t, d, x, price in lost}
    prices = Prices(certificate.denominator, *of_time, reruns, host, ends, link, stream, survival)
    return priced_ns(instance, certificate.checkpoints, prices)


def check_certificate(
    instance: Instance, certificate: Certificate, *, instance_sha256: str | None = None
) -> CheckReport:
    """Prove a bound anew from its certificate, or say why it does not follow.

    Parameters
    ----------
    instance, certificate
        The certificate to check, and the instance that it is for.
    instance_sha256
        SHA-256 checksum of the instance's file, to compare with the checksum in the certificate.

    Returns
    -------
    CheckReport
        Whether the certificate is valid, and every reason if it is not.

    Raises
    ------
    PebblerError
        If this is no instance or no certificate.
    """
    require_instance(instance)
    _require_certificate(certificate)
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


def _require_certificate(value: object) -> None:
    advice = "give a certificate; that of a bound is None where a solver's word is all that there is"
    require_kind("certificate", value, Certificate, advice)


def write_certificate(certificate: Certificate, path: str | Path, instance_sha256: str | None = None) -> None:
    """Write a certificate file.

    Parameters
    ----------
    certificate
        The certificate; the file gets its checksum.
    path
        The file to write.
    instance_sha256
        SHA-256 checksum of the instance's file, if there is one.
    """
    _require_certificate(certificate)
    write_document(sealed(msgspec.structs.replace(certificate, instance_sha256=instance_sha256)), path)


def read_certificate(path: str | Path) -> Certificate:
    """Read a certificate file. Its bound is not checked: see `check_certificate`.

    Parameters
    ----------
    path
        The file to read.

    Returns
    -------
    Certificate
        The certificate as the file has it.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule of the format.
    """
    certificate = read_document(path, Certificate, "a certificate")
    if (certificate.argument == "single-peak") != (certificate.position is not None):
        raise FormatError(f"{path} is not a certificate: a single peak has a 'position', and nothing else")
    return certificate
