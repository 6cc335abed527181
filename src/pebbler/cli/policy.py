"""The command ``policy``: a schedule as what a framework reads, and what is lost."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Parser, add_command, print_json


def add_policy(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "policy",
        _policy,
        "a schedule as tags of nodes for torch, or as lists of modules for Megatron-LM",
        "pebbler policy gpt2.instance.json gpt2.schedule.json --for megatron",
    )
    command.add_argument("instance", type=Path, metavar="INSTANCE", help="an instance file")
    command.add_argument("schedule", type=Path, metavar="SCHEDULE", help="a schedule of it")
    command.add_argument(
        "--for",
        dest="framework",
        choices=("torch", "megatron"),
        default="torch",
        help="torch (the default): a line 'NAME TAG' for each saved tensor; megatron: its options",
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write; default: print")


def _policy(arguments: argparse.Namespace) -> int:
    from ..heuristics.methods import Refusal
    from ..heuristics.production.exports import megatron_modules, torch_tags
    from ..instances.errors import PebblerError
    from ..instances.files import read_summed_instance, write_atomically
    from ..validate.check import check
    from ..validate.schedule import read_schedule

    instance, checksum = read_summed_instance(arguments.instance)
    schedule = read_schedule(arguments.schedule, instance)
    report = check(instance, schedule, checksum)
    if not report.valid:
        raise PebblerError(f"{arguments.schedule} is no schedule of {instance.name}: {report.reasons[0]}")
    export = torch_tags if arguments.framework == "torch" else megatron_modules
    try:
        exported = export(instance, schedule)
    except Refusal as refusal:
        raise PebblerError(f"{instance.name} has no policy for {arguments.framework}: {refusal}") from None
    text = "".join(f"{line}\n" for line in exported.lines)
    if arguments.output is not None:
        write_atomically(arguments.output, text.encode())
    if arguments.json:
        print_json(
            {
                "policy": list(exported.lines),
                **{f"{treatment}_bytes": size for treatment, size in exported.bytes_by.items()},
                "other_bytes": exported.other_bytes,
                "moved_bytes": exported.moved_bytes,
            }
        )
    else:
        print(exported if arguments.output is not None else f"{text}{exported}")
    return 0
