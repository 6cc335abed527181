"""``pebbler profile``: measure a network on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..instances.errors import escaped
from ..validate.execution.cuda.providers import PROVIDERS
from .options import (
    Parser,
    add_backend,
    add_command,
    add_output,
    name_list,
    norm,
    positive,
    print_json,
    require_one,
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
    command.add_argument("network", nargs="?", metavar="NETWORK", help="see pebbler networks")
    command.add_argument(
        "--torch",
        metavar="MODULE:FUNCTION",
        help="a training step of torch instead: a function from a batch size to (module, step, inputs, "
        "optimizer)",
    )
    command.add_argument(
        "--clip",
        type=norm,
        metavar="NORM",
        help="with --torch: clip gradients to this norm before the optimizer's step",
    )
    command.add_argument("--batch", type=positive, metavar="N", help="images; default: the network's own")
    command.add_argument(
        "--sub-batch",
        type=_positives,
        default=(),
        metavar="N,...",
        help="images of a round, or with --torch batch sizes to measure; default: the batch",
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
    from ..instances.profile import write_profile

    require_one(arguments, "a profile", "network", "torch", example="pebbler profile lenet")
    require_place(arguments.output)
    kept: list[Profile] = []
    checksum = ""

    def keep(so_far: Profile) -> None:
        nonlocal checksum
        checksum = write_profile(so_far, arguments.output)
        kept.append(so_far)

    try:
        found = (_network if arguments.torch is None else _step)(arguments, keep)
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


def _network(arguments: argparse.Namespace, keep: Callable[[Profile], None]) -> Profile:
    from ..instances.errors import PebblerError
    from ..instances.networks.zoo import find_network
    from ..validate.execution.backends import find_backend
    from ..validate.execution.profiling.profiler import profile

    if arguments.clip is not None:
        raise PebblerError("--clip is for a training step of torch; give --torch, or leave it out")
    return profile(
        arguments.network,
        arguments.batch or find_network(arguments.network).batch,
        find_backend(arguments.backend, arguments.provider),
        sub_batches=arguments.sub_batch,
        repeat=arguments.repeat,
        seed=arguments.seed,
        keep=keep,
    )


def _step(arguments: argparse.Namespace, keep: Callable[[Profile], None]) -> Profile:
    from ..instances.errors import PebblerError
    from ..instances.importers.torch_workload import find_step

    if arguments.batch is None and not arguments.sub_batch:
        raise PebblerError(f"{arguments.torch} has no batch size of its own; give one as --batch N")
    if arguments.backend not in ("cpu", "torch") or arguments.provider:
        raise PebblerError(
            "a training step of torch is measured where its module is; leave --backend and --provider out"
        )
    make_step = find_step(arguments.torch)

    from ..validate.execution.torch.profiler import profile_step

    return profile_step(
        arguments.torch,
        make_step,
        arguments.sub_batch or (arguments.batch,),
        clip=arguments.clip,
        repeat=arguments.repeat,
        seed=arguments.seed,
        keep=keep,
    )


def _extent(found: Profile) -> str:
    """Say how much of the tasks a profile has."""
    algorithms = sum(len(task.algorithms) for task in found.tasks)
    return f"{len(found.tasks)} tasks with {algorithms} algorithms, executed {found.meta['executions']} times"
