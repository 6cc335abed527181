"""The command ``frontier``: time against budget; the least link, budget or host memory; the largest batch."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_command,
    add_limits,
    add_workload,
    instance_of_file,
    positive,
    print_json,
    refuse_options,
    require_folder,
    require_network,
    require_one,
    share,
    workload_and_budget,
)

if TYPE_CHECKING:
    from ..instances.instance import Instance
    from ..validate.bounds.certificate import Certificate

_EXAMPLE = "pebbler frontier vgg16 --batch 64 --device v100 --method modnn -o frontier"


def add_frontier(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``frontier``."""
    command = add_command(
        commands,
        "frontier",
        _frontier,
        "time against budget, from the least to the peak, with bounds; or the least link, budget or host "
        "memory, or the largest batch within an overhead",
        _EXAMPLE,
    )
    command.add_argument(
        "network_or_file", nargs="?", metavar="NETWORK|FILE", help="a network or an instance file (.json)"
    )
    add_workload(command)
    command.add_argument(
        "--method",
        metavar="M,...",
        help="see pebbler methods; several over budgets: one after the other, and all in one picture; "
        "several with --overhead: tried in turn. Default: flow; with --overhead or over batches modnn,flow",
    )
    command.add_argument(
        "--over",
        choices=("budget", "link", "host-memory", "batch"),
        default="budget",
        help="budget (default): time against budget, or with --overhead the least budget; link, host-memory: "
        "the least link or host memory within --overhead; batch: the largest batch within --budget and "
        "--overhead",
    )
    command.add_argument("--points", type=positive, metavar="N", help="budgets to solve; default: 9")
    command.add_argument(
        "--spacing",
        choices=("adaptive", "even"),
        help="of budgets: where time falls most (default), or evenly",
    )
    command.add_argument(
        "--overhead",
        type=share,
        metavar="X%",
        help="over the ideal; over host memory, over a schedule with all that it wants there; default over "
        "batches: any",
    )
    add_limits(
        command,
        "of each point: for the method, and as long for the bound; for the least link, budget or host "
        "memory and over batches: of the whole search, 45 s",
    )
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
    if arguments.over == "batch":
        return _over_batch(arguments)
    if arguments.over != "budget" or arguments.overhead is not None:
        return _least(arguments)
    return _over_budget(arguments)


def _instance_of(arguments: argparse.Namespace) -> Instance:
    """Return the instance of a file or a network, under the budget that is asked for."""
    if (instance := instance_of_file(arguments, arguments.network_or_file)) is not None:
        return instance
    workload, budget = workload_and_budget(arguments, arguments.network_or_file)
    (size, rounds), *rest = workload.rounds(arguments.sub_batch or workload.batch)
    if rest:
        raise PebblerError(
            f"a sub-batch of {size} leaves a smaller last round; give one that divides {workload.batch}"
        )
    return workload.instance(budget, size, rounds=rounds, check_budget=False)


def _over_budget(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.frontier import Sweep
    from ..benchmark.comparison.plan import planned
    from ..benchmark.output.names import file_name
    from ..benchmark.pictures.frontier import frontier_picture
    from ..heuristics.methods import MethodError, find_method
    from ..instances.files import write_atomically
    from ..instances.memory import least_budget, with_budget

    refuse_options(arguments, "--over budget", ("budget",))
    instance = _instance_of(arguments)
    methods = [find_method(name) for name in dict.fromkeys((arguments.method or "flow").split(","))]
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


def _least(arguments: argparse.Namespace) -> int:
    """Find the least link, budget or host memory within an overhead."""
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.largest_batch import BEST
    from ..benchmark.comparison.least import SECONDS, least_value
    from ..benchmark.output.names import file_name
    from ..benchmark.pictures.sizing import least_picture
    from ..instances.files import write_atomically, write_document, write_instance
    from ..validate.bounds.certificate import write_certificate
    from ..validate.schedule import Schedule, write_schedule

    over, folder = arguments.over, arguments.output
    refuse_options(arguments, f"--over {over} with --overhead", ("points", "spacing"))
    refuse_options(arguments, f"--over {over}", (over.replace("-", "_"),))
    if arguments.overhead is None:
        raise PebblerError(
            f"the least {over.replace('-', ' ')} is that within an overhead; give one, such as --overhead 5%"
        )

    def keep(instance: Instance, found: Schedule | Certificate) -> None:
        which = "enough" if isinstance(found, Schedule) else "too-little"
        name = f"{file_name(instance)}.{over}.{which}"
        checksum = write_instance(instance, folder / f"{name}.instance.json")
        if isinstance(found, Schedule):
            write_schedule(found, folder / f"{name}.schedule.json", checksum)
        else:
            write_certificate(found, folder / f"{name}.certificate.json", checksum)

    instance = _instance_of(arguments)
    folder.mkdir(parents=True, exist_ok=True)
    with keeping(folder):
        found = least_value(
            instance,
            over,
            arguments.overhead,
            arguments.method or BEST,
            time_limit=SECONDS if arguments.time_limit is None else arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            memory=arguments.memory,
            on_found=keep,
        )
    name = f"{file_name(instance)}.least-{over}"
    write_document(found, folder / f"{name}.json")
    write_atomically(folder / f"{name}.png", least_picture(found))
    if arguments.json:
        print_json(found)
    else:
        print(found, f"files: {escaped(str(folder))}", sep="\n")
    if found.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return 0 if found.least is not None else 1


def _over_batch(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.comparison.largest_batch import BEST, SECONDS, largest_batch
    from ..benchmark.output.names import file_name, method_file_name
    from ..benchmark.pictures.sizing import batch_picture
    from ..instances.files import write_atomically, write_document, write_instance
    from ..instances.memory import parse_budget, with_budget
    from ..validate.schedule import Schedule, write_schedule

    folder: Path = arguments.output

    def keep(instance: Instance, schedule: Schedule) -> None:
        name = file_name(instance)
        checksum = write_instance(instance, folder / f"{name}.instance.json")
        write_schedule(
            schedule, folder / f"{name}.{method_file_name(schedule.method)}.schedule.json", checksum
        )

    require_network(arguments.network_or_file, "--over batch")
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
            arguments.method or BEST,
            overhead=arguments.overhead,
            time_limit=SECONDS if arguments.time_limit is None else arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            memory=arguments.memory,
            on_trained=keep,
        )
    name = file_name(one).removesuffix("-b1")
    name = f"{name}.{method_file_name(found.method.replace(',', '+'))}.largest-batch"
    write_document(found, folder / f"{name}.json")
    write_atomically(folder / f"{name}.png", batch_picture({found.method: found}))
    if arguments.json:
        print_json(found)
    else:
        print(found, f"files: {escaped(str(folder))}", sep="\n")
    if found.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return 0 if found.largest_batch is not None else 1
