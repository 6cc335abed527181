"""``pebbler run --torch``: plan a whole training step of a user's model, and take steps by the plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances.errors import PebblerError
from .options import positive, require_folder, require_place, seconds

if TYPE_CHECKING:
    from ..validate.execution.trial import Trial

_PLANNING = ("batch", "budget", "method", "time_limit", "memory", "recompute", "clip", "link", "save")
"""Options that say how a step is planned."""


def add_training(command: argparse.ArgumentParser) -> None:
    """Add ``--torch``, and the options that go with it only."""
    group = command.add_argument_group(
        "a training step of torch, in place of FILE and SCHEDULE (see docs/torch.md)"
    )
    group.add_argument(
        "--torch",
        metavar="MODULE:FUNCTION",
        help="plan the step of a function from a batch size to (module, step, inputs, optimizer), take steps "
        "by the plan, and compare them with eager torch",
    )
    group.add_argument("--batch", type=positive, metavar="N", help="the batch size")
    group.add_argument("--budget", metavar="SIZE", help="memory of the device, also 50%% or 1.05xMmin")
    group.add_argument("--method", metavar="M", help="default: flow; with --recompute flow-recompute")
    group.add_argument("--time-limit", type=seconds, metavar="T", help="of the method; default: 60s")
    group.add_argument("--memory", choices=("contiguous", "paged"), help="default: contiguous")
    group.add_argument(
        "--recompute", action="store_true", default=None, help="operators may run again where that is quicker"
    )
    group.add_argument(
        "--clip", type=_norm, metavar="NORM", help="clip gradients to this norm before the optimizer's step"
    )
    group.add_argument("--link", metavar="RATE", help="of copies, for the prediction; default: 10GB/s")
    group.add_argument("--save", type=Path, metavar="FOLDER", help="write the plan, for pebbler.torch.load")


def _norm(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return number


def require_schedule_of_file(arguments: argparse.Namespace) -> None:
    """Refuse what is no complete question about a schedule in a file."""
    for option in _PLANNING:
        if getattr(arguments, option) is not None:
            name = option.replace("_", "-")
            raise PebblerError(
                f"--{name} is for a step of torch; give --torch MODULE:FUNCTION, or leave it out"
            )
    if arguments.file is None or arguments.schedule is None:
        raise PebblerError(
            "run executes a schedule: give FILE and SCHEDULE, or a step of your own as --torch "
            "MODULE:FUNCTION; see pebbler run --help"
        )
    if arguments.backend is None:
        raise PebblerError("say where it runs: give --backend cpu or --backend cuda; see pebbler run --help")


def require_places(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before the work begins."""
    for place in (arguments.picture, arguments.trace):
        if place is not None:
            require_place(place)


def try_training(arguments: argparse.Namespace) -> Trial:
    """Plan the step of a function, and take steps by the plan."""
    if arguments.file is not None:
        raise PebblerError(f"--torch plans a step of its own; leave out {arguments.file}, or --torch")
    if arguments.backend not in (None, "torch"):
        raise PebblerError("a step of torch runs with the backend torch; leave --backend out")
    if arguments.graph:
        raise PebblerError("--graph is for --backend cuda; a step of torch has no graphs")
    for option in ("batch", "budget"):
        if getattr(arguments, option) is None:
            raise PebblerError(f"--torch needs --{option}, such as --batch 64 and --budget 50%")
    require_places(arguments)
    if arguments.save is not None:
        require_folder(arguments.save)

    from ..instances.importers.torch_workload import find_step
    from ..torch import plan

    make_step = find_step(arguments.torch)

    def seeded(batch: int) -> Any:
        import torch

        torch.manual_seed(arguments.seed)
        return make_step(batch)

    planned = plan(
        seeded,
        batch=arguments.batch,
        budget=arguments.budget,
        time_limit=60.0 if arguments.time_limit is None else arguments.time_limit,
        recompute=bool(arguments.recompute),
        method=arguments.method,
        memory=arguments.memory or "contiguous",
        link=arguments.link or "10GB/s",
        clip=arguments.clip,
        seed=arguments.seed,
    )
    if arguments.save is not None:
        planned.save(arguments.save)

    from ..validate.execution.torch.planned import PlannedStep
    from ..validate.execution.torch.trial import attempt_step

    return attempt_step(
        PlannedStep(planned.record, planned.instance, planned.schedule),
        make_step,
        arguments.batch,
        clip=arguments.clip,
        repeat=arguments.repeat,
        reference=not arguments.no_reference,
        seed=arguments.seed,
    )
