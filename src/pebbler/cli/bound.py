"""The commands ``bound`` and ``check-bound``: a lower bound, its certificate, and the certificate's proof."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..console import complain
from ..instances.errors import PebblerError
from .options import Parser, add_command, add_file, add_memory, add_solver, print_json, require_place, seconds

if TYPE_CHECKING:
    from ..solver.bounds import Bound


def add_bound(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``bound``."""
    command = add_command(
        commands,
        "bound",
        _bound,
        "the best proven lower bound on the makespan, and the argument that gave it",
        "pebbler bound vgg16.instance.json --time-limit 60s -o vgg16.certificate.json",
    )
    add_file(command)
    command.add_argument(
        "--time-limit",
        type=seconds,
        metavar="T",
        help="for better bounds by linear and integer programs; default: only those that need no solver",
    )
    add_memory(command, "for which schedules: a bound for contiguous memory holds for paged memory, too")
    add_solver(command)
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="CERTIFICATE",
        help="where to write the certificate of the best bound that has one; default: nowhere",
    )


def add_check_bound(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``check-bound``."""
    command = add_command(
        commands,
        "check-bound",
        _check_bound,
        "prove a lower bound anew from its certificate, in exact arithmetic",
        "pebbler check-bound vgg16.instance.json vgg16.certificate.json",
    )
    add_file(command)
    command.add_argument("certificate", metavar="CERTIFICATE", help="a certificate file")


def _bound(arguments: argparse.Namespace) -> int:
    from ..instances.files import read_summed_instance
    from ..instances.memory import require_budget, why_infeasible
    from ..solver.bounds import best_bound
    from ..solver.flow.stages import refine_bound
    from ..validate.bounds.certificate import write_certificate

    bound: Bound | None = None
    interrupted = False

    def progress(better: Bound) -> None:
        nonlocal bound
        bound = better
        logging.getLogger(__name__).info("%s", _told(better))

    if arguments.output is not None:
        require_place(arguments.output)
    instance, checksum = read_summed_instance(arguments.file)
    require_budget(instance)
    if (reason := why_infeasible(instance)) is not None:
        complain(f"{instance.name} has no schedule: {reason}")
        if arguments.json:
            print_json({"lower_bound_ns": None, "reason": reason})
        return 1
    if arguments.time_limit is None:
        bound = best_bound(instance, memory=arguments.memory)
    else:
        try:
            bound = refine_bound(
                instance,
                arguments.time_limit,
                solver=arguments.solver,
                log=arguments.log,
                memory=arguments.memory,
                on_better=progress,
            )
        except KeyboardInterrupt:
            if bound is None:
                raise
            interrupted = True
    if arguments.output is not None:
        if bound.certificate is None:
            raise PebblerError(f"the bound by {bound.bound_by} has no certificate; leave -o out")
        write_certificate(bound.certificate, arguments.output, checksum)
    if arguments.json:
        print_json(bound.as_dict())
    else:
        print(_told(bound))
    if interrupted:
        raise KeyboardInterrupt
    return 0


def _check_bound(arguments: argparse.Namespace) -> int:
    from msgspec import UNSET

    from ..instances.files import read_summed_instance
    from ..validate.bounds.certificate import check_certificate, read_certificate

    instance, checksum = read_summed_instance(arguments.file)
    certificate = read_certificate(arguments.certificate)
    report = check_certificate(instance, certificate, instance_sha256=checksum)
    if arguments.json:
        print_json(report)
    elif report.valid:
        paged = "" if certificate.page_bytes is UNSET else f"in pages of {certificate.page_bytes} bytes "
        print(f"proven: no schedule {paged}takes less than {certificate.lower_bound_ns} ns")
    else:
        print("\n".join(report.reasons))
    return 0 if report.valid else 1


def _told(bound: Bound) -> str:
    from ..instances.units import format_time

    def figure(ns: int) -> str:
        return f"{format_time(ns)} ({ns} ns)"

    if bound.certified:
        return f"{figure(bound.lower_bound_ns)}, {bound.bound_by}, in exact arithmetic"
    told = f"{figure(bound.lower_bound_ns)}, {bound.bound_by}, the solver's word"
    if bound.certificate is not None:
        told += f"; in exact arithmetic {figure(bound.certified_ns)}, {bound.certificate.bound_by}"
    return told
