"""The commands ``run``, ``emit`` and ``policy``: execute a schedule, or write it for another program.

With ``--torch``, ``run`` plans a training step of a user's model, and takes steps by the plan.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_backend,
    add_command,
    add_file,
    add_output,
    norm,
    positive,
    print_json,
    require_folder,
    require_one_gpu,
    require_place,
    seconds,
    seed_number,
)

if TYPE_CHECKING:
    from ..validate.execution.trial import Trial


_PLANNING = (
    "batch",
    "budget",
    "method",
    "time_limit",
    "memory",
    "recompute",
    "clip",
    "link",
    "profile",
    "save",
)
"""Options that say how a step is planned."""


def add_run(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``run``."""
    command = add_command(
        commands,
        "run",
        _run,
        "execute a schedule; predicted against measured, numbers against a run without budget",
        "pebbler run lenet.instance.json lenet.schedule.json --backend cpu",
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="an instance file")
    command.add_argument("schedule", nargs="?", metavar="SCHEDULE", help="a schedule file")
    add_backend(command, None)
    command.add_argument(
        "--repeat", type=positive, default=3, metavar="N", help="timed executions; default: 3"
    )
    command.add_argument(
        "--seed", type=seed_number, default=0, metavar="N", help="of weights, images and labels; default: 0"
    )
    command.add_argument(
        "--no-reference",
        action="store_true",
        help="do without the run without a budget, or with eager torch, and the memory that it takes",
    )
    command.add_argument(
        "--graph", action="store_true", help="with --backend cuda: launch every round as one CUDA graph"
    )
    command.add_argument("--operations", action="store_true", help="list every operation of a round")
    command.add_argument(
        "--picture", type=Path, metavar="PNG", help="draw predicted and measured streams, one above the other"
    )
    command.add_argument("--trace", type=Path, metavar="TRACE", help="write both timelines for Perfetto")
    _add_training(command)


def add_emit(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``emit``."""
    command = add_command(
        commands,
        "emit",
        _emit,
        "write a stand-alone PyCUDA script",
        "pebbler emit lenet.instance.json lenet.schedule.json -o lenet.py",
    )
    add_file(command)
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file")
    add_output(command, "SCRIPT.py")


def _run(arguments: argparse.Namespace) -> int:
    if arguments.torch is not None:
        return _run_training(arguments)
    _require_schedule_of_file(arguments)

    from ..instances.files import read_summed_instance
    from ..validate.check import check
    from ..validate.execution.backends import find_backend
    from ..validate.execution.trial import attempt
    from ..validate.schedule import read_schedule

    if arguments.graph:
        _require_graph(arguments)
    backend = find_backend(arguments.backend)
    instance, checksum = read_summed_instance(arguments.file)
    require_one_gpu(instance, "run")
    schedule = read_schedule(arguments.schedule, instance)
    _require_places(arguments)
    report = check(instance, schedule, instance_sha256=checksum)
    if not report.valid:
        if arguments.json:
            print_json(report)
        else:
            print("\n".join(("the schedule is invalid, so it is not run:", *report.reasons)))
        return 1
    trial = attempt(
        instance,
        schedule,
        backend,
        repeat=arguments.repeat,
        reference=not arguments.no_reference,
        seed=arguments.seed,
        graph=arguments.graph,
    )
    return _print_trial(arguments, trial)


def _run_training(arguments: argparse.Namespace) -> int:
    from ..torch import NoScheduleError

    try:
        trial = _try_training(arguments)
    except NoScheduleError as error:
        if arguments.json:
            print_json({"status": "unknown", "stopped_by": str(error)})
        else:
            print(error)
        return 1
    return _print_trial(arguments, trial)


def _print_trial(arguments: argparse.Namespace, trial: Trial) -> int:
    from msgspec import json

    from ..benchmark.report import trial as trial_report
    from ..instances.files import write_atomically

    files: list[tuple[Path, bytes]] = []
    if arguments.picture is not None:
        files.append((arguments.picture, trial_report.picture(trial)))
    if arguments.trace is not None:
        files.append((arguments.trace, json.encode(trial_report.trial_trace(trial))))
    for path, content in sorted(files, key=lambda file: file[0].is_file() or not file[0].exists()):
        write_atomically(path, content)  # devices and pipes first: where one is full, nothing else is written
    if arguments.json:
        print_json(trial_report.as_dict(trial, operations=arguments.operations))
    else:
        if arguments.operations:
            print(trial_report.operations_table(trial) + "\n")
        elif arguments.torch is not None:
            print(trial_report.slowest_table(trial) + "\n")
        print(trial_report.told(trial))
    return 0 if trial.right else 1


def _require_graph(arguments: argparse.Namespace) -> None:
    """Refuse what goes with no graph, before anything is read."""
    if arguments.backend == "cpu":
        raise PebblerError(f"--graph is for --backend cuda; the backend {arguments.backend} has no graphs")
    for option in ("operations", "picture", "trace"):
        if getattr(arguments, option):
            raise PebblerError(
                f"--{option} needs a time for each operation, and a graph has one for all; "
                f"give --graph or --{option}"
            )


def _emit(arguments: argparse.Namespace) -> int:
    from ..instances.files import read_summed_instance, write_atomically
    from ..validate.check import check
    from ..validate.execution.emit import emit
    from ..validate.execution.rebuild import rebuild
    from ..validate.schedule import read_schedule

    require_place(arguments.output)
    instance, checksum = read_summed_instance(arguments.file)
    require_one_gpu(instance, "emit")
    schedule = read_schedule(arguments.schedule, instance)
    report = check(instance, schedule, instance_sha256=checksum)
    if not report.valid:
        if arguments.json:
            print_json(report)
        else:
            print("\n".join(("the schedule is invalid, so there is no script of it:", *report.reasons)))
        return 1
    text = emit(instance, schedule, rebuild(instance))
    write_atomically(arguments.output, text.encode())
    written = escaped(str(arguments.output))
    if arguments.json:
        lines = len(text.splitlines())
        print_json({"script": written, "operations": len(schedule.operations), "lines": lines})
    else:
        print(f"wrote {written}: {len(schedule.operations)} operations")
    return 0


# --- a training step of torch ---------------------------------------------------------------------------


def _add_training(command: argparse.ArgumentParser) -> None:
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
        "--clip", type=norm, metavar="NORM", help="clip gradients to this norm before the optimizer's step"
    )
    group.add_argument(
        "--profile", metavar="PROFILE", help="measured times of operators and copies, for the prediction"
    )
    group.add_argument(
        "--link",
        metavar="RATE",
        help="of copies, for the prediction; default: the profile's, or measured on a GPU, or 10GB/s",
    )
    group.add_argument("--save", type=Path, metavar="FOLDER", help="write the plan, for pebbler.torch.load")


def _require_schedule_of_file(arguments: argparse.Namespace) -> None:
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


def _require_places(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before the work begins."""
    for place in (arguments.picture, arguments.trace):
        if place is not None:
            require_place(place)


def _try_training(arguments: argparse.Namespace) -> Trial:
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
    _require_places(arguments)
    if arguments.save is not None:
        require_folder(arguments.save)

    from ..instances.importers.torch_workload import find_step
    from ..instances.profile import read_profile
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
        link=arguments.link,
        profile=None if arguments.profile is None else read_profile(arguments.profile),
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


def add_policy(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``policy``."""
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
    from ..instances.files import read_summed_instance, write_atomically
    from ..validate.check import check
    from ..validate.schedule import read_schedule

    instance, checksum = read_summed_instance(arguments.instance)
    schedule = read_schedule(arguments.schedule, instance)
    report = check(instance, schedule, instance_sha256=checksum)
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
