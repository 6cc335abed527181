"""The command ``frontier``: time against budget, or the largest batch within a budget and an overhead."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ..instances.errors import PebblerError, escaped
from .options import (
    WORKLOAD_OPTIONS,
    Parser,
    add_command,
    add_limits,
    add_workload,
    linked,
    positive,
    print_json,
    refuse_options,
    require_folder,
    require_one,
    workload_and_budget,
)

_EXAMPLE = "pebbler frontier vgg16 --batch 64 --device v100 --method modnn -o frontier"


def add_frontier(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``frontier``."""
    command = add_command(
        commands,
        "frontier",
        _frontier,
        "time against budget, from the least to the peak, with bounds; or the largest batch within a budget",
        _EXAMPLE,
    )
    command.add_argument(
        "network_or_file", nargs="?", metavar="NETWORK|FILE", help="a network or an instance file (.json)"
    )
    add_workload(command)
    command.add_argument(
        "--method",
        required=True,
        metavar="M,...",
        help="see pebbler methods; several over budgets: one after the other, and all in one picture",
    )
    command.add_argument(
        "--over",
        choices=("budget", "batch"),
        default="budget",
        help="budget (default): time against budget; batch: the largest batch within --budget and --overhead",
    )
    command.add_argument("--points", type=positive, metavar="N", help="budgets to solve; default: 9")
    command.add_argument(
        "--spacing",
        choices=("adaptive", "even"),
        help="of budgets: where time falls most (default), or evenly",
    )
    command.add_argument(
        "--overhead", type=_share, metavar="X%", help="over the ideal, of --over batch; default: any"
    )
    add_limits(command, "of each point: for the method, and as long for the bound")
    command.add_argument(
        "-o",
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="where to write; what it has is not solved again",
    )


def _frontier(arguments: argparse.Namespace) -> int:
    require_folder(arguments.output)
    require_one(arguments, "a frontier", "network_or_file", "torch", "onnx", example=_EXAMPLE)
    return _over_batch(arguments) if arguments.over == "batch" else _over_budget(arguments)


def _over_budget(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.frontier import Sweep
    from ..benchmark.comparison.plan import planned
    from ..benchmark.output.names import file_name
    from ..benchmark.pictures.frontier import frontier_picture
    from ..heuristics.methods import MethodError, find_method
    from ..instances.files import read_instance, write_atomically
    from ..instances.memory import least_budget, with_budget

    refuse_options(arguments, "--over budget", ("overhead", "budget"))
    source = arguments.network_or_file
    if source is not None and (source.endswith(".json") or Path(source).exists()):
        refuse_options(arguments, source, WORKLOAD_OPTIONS)
        instance = linked(read_instance(source), arguments.link)
    else:
        workload, budget = workload_and_budget(arguments, source)
        (size, rounds), *rest = workload.rounds(arguments.sub_batch or workload.batch)
        if rest:
            raise PebblerError(
                f"a sub-batch of {size} leaves a smaller last round; give one that divides {workload.batch}"
            )
        instance = workload.instance(budget, size, rounds=rounds, check_budget=False)
    methods = [find_method(name) for name in dict.fromkeys(arguments.method.split(","))]
    # one instance for all budgets; parts are cut for the tightest
    instance = with_budget(instance, least_budget(instance))
    frontiers = []
    failed: MethodError | None = None
    for method in methods:
        try:
            (changed,) = planned(method, (instance,))
        except MethodError as error:
            failed = error
            logging.getLogger(__name__).error("%s", error)
            continue
        sweep = Sweep(
            changed,
            method.name,
            arguments.output,
            time_limit=arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            memory=arguments.memory,
        )
        with keeping(arguments.output):
            found = sweep.run(arguments.points or 9, arguments.spacing or "adaptive")
        frontiers.append(found)
        if found.points:
            write_atomically(sweep.path("png"), frontier_picture([found]))
    if failed is not None and not frontiers:
        raise failed
    if len(frontiers) > 1:
        path = arguments.output / f"{file_name(instance)}.frontiers.png"
        write_atomically(path, frontier_picture(frontiers))
    if arguments.json:
        print_json(frontiers[0] if len(methods) == 1 else {"frontiers": frontiers})
    else:
        print(
            *frontiers,
            f"files: {escaped(str(arguments.output))}",
            sep="\n" if len(frontiers) == 1 else "\n\n",
        )
    points = [point for found in frontiers for point in found.points]
    if any(point.makespan_ns is not None for point in points):
        return 0
    return 3 if failed is not None or any(point.stopped_by.startswith("error: ") for point in points) else 1


def _over_batch(arguments: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.largest_batch import largest_batch
    from ..benchmark.output.names import file_name
    from ..instances.files import write_document, write_instance
    from ..instances.instance import Instance
    from ..instances.memory import parse_budget, with_budget
    from ..validate.schedule import Schedule, write_schedule

    folder: Path = arguments.output

    def keep(instance: Instance, schedule: Schedule) -> None:
        name = file_name(instance)
        checksum = write_instance(instance, folder / f"{name}.instance.json")
        path = folder / f"{name}.{arguments.method}.schedule.json"
        write_schedule(replace(schedule, instance_sha256=checksum), path)

    refuse_options(arguments, "--over batch", ("batch", "sub_batch", "points", "spacing"))
    arguments.batch = 1
    workload, budget = workload_and_budget(arguments, arguments.network_or_file)
    one = workload.instance(0, check_budget=False)
    one = with_budget(one, parse_budget(str(budget), one))
    folder.mkdir(parents=True, exist_ok=True)
    with keeping(folder):
        found = largest_batch(
            workload,
            one.budget_bytes,
            arguments.method,
            overhead=arguments.overhead,
            time_limit=arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            memory=arguments.memory,
            on_trained=keep,
        )
    name = file_name(one).removesuffix("-b1")
    write_document(found, folder / f"{name}.{found.method}.largest-batch.json")
    if arguments.json:
        print_json(found)
    else:
        print(found)
    if found.interrupted:
        raise KeyboardInterrupt
    return 0 if found.largest_batch is not None else 1


def _share(text: str) -> float:
    """Read a share in per cent."""
    try:
        share = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not (text.strip().endswith("%") and 0 <= share < float("inf")):
        raise argparse.ArgumentTypeError(f"'{text}' is not a share; write it as 10%")
    return share
