"""The commands ``run`` and ``emit``: execute a schedule beside its prediction, or write it as a script."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import escaped
from .options import (
    Parser,
    add_backend,
    add_command,
    add_file,
    add_output,
    positive,
    print_json,
    require_one_gpu,
    require_place,
    seed_number,
)
from .training import add_training, require_places, require_schedule_of_file, try_training

if TYPE_CHECKING:
    from ..validate.execution.trial import Trial


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
    add_training(command)


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
    require_schedule_of_file(arguments)

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
    require_places(arguments)
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
        trial = try_training(arguments)
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
    from ..instances.errors import PebblerError

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
