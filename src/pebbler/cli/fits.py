"""The command ``fits``: does a network fit a device, up to which batch, what limits it, what does it cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_command,
    add_limits,
    add_workload,
    print_json,
    refuse_options,
    require_folder,
    require_network,
    require_one,
    workload_and_budget,
)

if TYPE_CHECKING:
    from ..instances.instance import Instance
    from ..instances.workload import Workload
    from ..validate.schedule import Schedule

_EXAMPLE = "pebbler fits resnet50 --batch 256 --device v100"


def add_fits(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "fits",
        _fits,
        "does it fit: yes by a checked schedule, no by a proof; up to which batch, and what it costs",
        _EXAMPLE,
    )
    command.add_argument("network", nargs="?", metavar="NETWORK", help="see pebbler networks")
    add_workload(
        command,
        optimizer="what it keeps for each parameter is resident, or carried with --steady: adam 8 bytes "
        "(default), momentum 4, sgd none",
    )
    command.add_argument(
        "--reserve",
        metavar="SIZE",
        help="device memory for the context, libraries and fragments; default: 1.5GiB",
    )
    add_limits(command, "of the whole command; 45 s")
    command.add_argument(
        "--out", type=Path, default=Path("pebbler-out"), metavar="DIR", help="default: pebbler-out"
    )


def _fits(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.fits import SECONDS, fits
    from ..benchmark.output.names import file_name
    from ..benchmark.pictures.sizing import batch_picture
    from ..instances.files import write_atomically, write_document, write_instance
    from ..validate.schedule import write_schedule

    require_folder(arguments.out)
    require_one(arguments, "the question", "network", "torch", "onnx", example=_EXAMPLE)
    require_network(arguments.network, "the question")
    refuse_options(arguments, "one round of the whole batch", ("sub_batch",))
    if arguments.torch is not None:
        refuse_options(arguments, "a question about other batches than a profile has", ("profile",))
    optimizer = arguments.optimizer or "adam"
    arguments.optimizer = optimizer if arguments.steady else None
    workload, asked = workload_and_budget(arguments, arguments.network)
    budget, reserve = _memory(arguments, workload, asked)
    folder: Path = arguments.out

    def keep(instance: Instance, schedule: Schedule) -> None:
        name = file_name(instance)
        checksum = write_instance(instance, folder / f"{name}.instance.json")
        write_schedule(schedule, folder / f"{name}.schedule.json", checksum)

    folder.mkdir(parents=True, exist_ok=True)
    with keeping(folder):
        found = fits(
            workload,
            budget,
            optimizer=None if arguments.steady else optimizer,
            reserve_bytes=reserve,
            time_limit=SECONDS if arguments.time_limit is None else arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            memory=arguments.memory,
            on_found=keep,
        )
    name = f"{file_name(workload.instance(budget, check_budget=False))}.fits"
    write_document(found, folder / f"{name}.json")
    rows = {row.way: row.batches for row in found.rows}
    write_atomically(folder / f"{name}.png", batch_picture(rows, found.batch))
    if arguments.json:
        print_json(found)
    else:
        print(found, f"picture: {escaped(str(folder / name))}.png", sep="\n")
    if found.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return 0 if found.answer == "yes" else 1


def _memory(arguments: argparse.Namespace, workload: Workload, asked: int | str) -> tuple[int, int]:
    """Return the budget, and the reserve beside it: none where the budget is given."""
    from ..benchmark.comparison.fits import RESERVE
    from ..instances.memory import parse_budget
    from ..instances.units import format_size, parse_size

    if isinstance(asked, str):
        refuse_options(arguments, "--budget", ("reserve",))
        return parse_budget(asked, workload.instance(0, check_budget=False)), 0
    reserve = RESERVE if arguments.reserve is None else parse_size(arguments.reserve)
    if reserve >= asked:
        raise PebblerError(
            f"a reserve of {format_size(reserve)} leaves nothing of {format_size(asked)}; give a smaller one"
        )
    return asked - reserve, reserve
