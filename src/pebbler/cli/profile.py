"""``pebbler profile``: measure a network on this machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..instances.errors import escaped
from ..validate.execution.cuda.providers import PROVIDERS
from .options import (
    Parser,
    add_backend,
    add_command,
    add_output,
    name_list,
    positive,
    print_json,
    require_place,
    seed_number,
)

if TYPE_CHECKING:
    from ..instances.profile import Profile


def add_profile(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "profile",
        _profile,
        "measure tasks, algorithms, workspaces and copies on this machine",
        "pebbler profile lenet --batch 64 --backend cpu -o lenet.profile.json",
    )
    command.add_argument("network", metavar="NETWORK", help="see pebbler networks")
    command.add_argument("--batch", type=positive, metavar="N", help="images; default: the network's own")
    command.add_argument(
        "--sub-batch",
        type=_positives,
        default=(),
        metavar="N,...",
        help="images of a round; default: the batch",
    )
    add_backend(command)
    command.add_argument(
        "--provider",
        type=name_list,
        default=(),
        metavar="P,...",
        help=f"whose convolutions, on CUDA, of {', '.join(PROVIDERS)}; default: {PROVIDERS[0]}",
    )
    command.add_argument(
        "--repeat", type=positive, default=5, metavar="N", help="executions of each algorithm; default: 5"
    )
    command.add_argument("--seed", type=seed_number, default=0, metavar="N", help="of all data; default: 0")
    add_output(command, "PROFILE")


def _positives(text: str) -> tuple[int, ...]:
    """Read numbers from 1 on, with commas between them."""
    return tuple(positive(one) for one in name_list(text))


def _profile(arguments: argparse.Namespace) -> int:
    from ..console import complain
    from ..instances.errors import PebblerError
    from ..instances.networks.zoo import find_network
    from ..instances.profile import write_profile
    from ..validate.execution.backends import find_backend
    from ..validate.execution.profiling.profiler import profile

    require_place(arguments.output)
    kept: list[Profile] = []
    checksum = ""

    def keep(so_far: Profile) -> None:
        nonlocal checksum
        checksum = write_profile(so_far, arguments.output)
        kept.append(so_far)

    try:
        found = profile(
            arguments.network,
            arguments.batch or find_network(arguments.network).batch,
            find_backend(arguments.backend, arguments.provider),
            sub_batches=arguments.sub_batch,
            repeat=arguments.repeat,
            seed=arguments.seed,
            keep=keep,
        )
    except (KeyboardInterrupt, PebblerError):
        if kept:
            complain(f"{arguments.output} is partial: {_extent(kept[-1])}")
        raise
    if arguments.json:
        print_json(
            {
                "network": found.network,
                "device": found.machine.device,
                "tasks": len(found.tasks),
                "algorithms": sum(len(task.algorithms) for task in found.tasks),
                "copies": len(found.copies),
                "not_measured": found.meta["not_measured"],
                "not_deterministic": found.meta["not_deterministic"],
                "sha256": checksum,
            }
        )
    else:
        print(
            f"{escaped(str(arguments.output))}: {found.network} on {found.machine.device}, {_extent(found)}, "
            f"{len(found.copies)} sizes of copies; "
            f"not measured: {len(found.meta['not_measured'])} algorithms, "
            f"not deterministic: {len(found.meta['not_deterministic'])}"
        )
    return 0


def _extent(found: Profile) -> str:
    """Say how much of the tasks a profile has."""
    algorithms = sum(len(task.algorithms) for task in found.tasks)
    return f"{len(found.tasks)} tasks with {algorithms} algorithms, executed {found.meta['executions']} times"
