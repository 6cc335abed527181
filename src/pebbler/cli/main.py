"""The command line: each command reads its arguments, asks the library, and prints.

Whatever is slow to import is imported by the command that needs it, so that ``pebbler --help`` is quick.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ..console import complain, give_up, is_of_output, prepare
from ..instances.errors import DefectError, PebblerError, escaped
from ..progress import progress
from ..statuses import INTERRUPTED
from .bench import add_bench, add_report
from .bound import add_bound, add_check_bound
from .compare import EXAMPLE, add_compare
from .fits import add_fits
from .frontier import add_frontier
from .measure import add_measure
from .options import (
    WORKLOAD_OPTIONS,
    Parser,
    add_command,
    add_file,
    add_limits,
    add_output,
    add_solver,
    add_transforms,
    add_workload,
    linked,
    name_list,
    positive,
    print_json,
    refuse_options,
    require_one,
    require_place,
    workload_and_budget,
)
from .pack import add_pack
from .profile import add_profile
from .run import add_emit, add_policy, add_run
from .streams import add_streams
from .suites import add_best_known, add_contest, add_schemas, add_suite

if TYPE_CHECKING:
    from ..instances.instance import Instance

DONE, NO, WRONG, DEFECT, BROKEN_PIPE = 0, 1, 2, 3, 141
"""Exit statuses: done; the answer is no; wrong usage or input; a defect; nobody reads the output."""

_INSTANCE = "pebbler instance vgg16 --batch 256 --device k40 --budget 12GiB -o vgg16.instance.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv
        Arguments without the program's name; by default those of the process.
    """
    try:
        prepare()
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        give_up(sys.stdout)
        return BROKEN_PIPE
    except DefectError as error:
        complain(str(error))
        return DEFECT
    except OSError as error:
        if is_of_output(error):
            give_up(sys.stdout)
            complain(f"standard output cannot be written: {error.strerror or error}")
        else:
            complain(str(error))
        return WRONG
    except PebblerError as error:
        complain(str(error))
        return WRONG
    except MemoryError:
        complain("there is not enough memory for this; give a smaller input, or a machine with more")
        return WRONG
    except RecursionError:
        complain("the input is nested too deeply, or in too many levels one on the other; give a flatter one")
        return WRONG
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    if "command" not in arguments:
        raise PebblerError(f"give a command, such as {EXAMPLE}; pebbler --help lists all")
    log = getattr(arguments, "log", False)
    with progress(arguments.name_of_command, verbose=arguments.verbose, renewed=not log):
        status: int = arguments.command(arguments)
    return status


# --- commands -----------------------------------------------------------------------------------------


def _instance(arguments: argparse.Namespace) -> int:
    from ..instances.files import write_instance
    from ..instances.memory import least_budget, parse_budget, require_budget, with_budget
    from ..instances.units import format_size

    require_one(arguments, "an instance", "network", "torch", "onnx", "foreign", example=_INSTANCE)
    if arguments.foreign is not None:
        instance, budget, rest = _foreign(arguments), arguments.budget, []
    else:
        workload, budget = workload_and_budget(arguments, arguments.network)
        (size, rounds), *rest = workload.rounds(arguments.sub_batch or workload.batch)
        instance = workload.instance(0, size, rounds=rounds, check_budget=False)
    instance = _transformed(arguments, instance)
    if budget is not None:
        instance = with_budget(instance, parse_budget(str(budget), instance))
    instance = _cut(instance, arguments.parts)
    require_budget(instance)
    checksum = write_instance(instance, arguments.output)
    least = least_budget(instance)
    if arguments.json:
        figures = {
            "name": instance.name,
            "tasks": len(instance.tasks),
            "blocks": len(instance.blocks),
            "rounds": instance.rounds,
            "budget_bytes": instance.budget_bytes,
            "least_budget_bytes": least,
            "resident_bytes": instance.resident_bytes,
            "sha256": checksum,
        }
        print_json(figures)
    else:
        print(
            f"{escaped(str(arguments.output))}: {instance.name}, {len(instance.tasks)} tasks, "
            f"{len(instance.blocks)} blocks, rounds {instance.rounds}, budget "
            f"{format_size(instance.budget_bytes)}, least possible {format_size(least)}"
        )
    for size, _ in rest:
        complain(f"the last round has {size} images and is another file: --batch {size}")
    return DONE


def _foreign(arguments: argparse.Namespace) -> Instance:
    """Return the instance of another project's file, with the link and the host memory that are asked for."""
    from ..instances.foreign.read import read_foreign
    from ..instances.memory import with_host_memory

    others = [option for option in WORKLOAD_OPTIONS if option != "device"]
    refuse_options(arguments, arguments.foreign, others)
    instance = linked(read_foreign(arguments.foreign, arguments.device), arguments)
    if arguments.budget is None and not instance.budget_bytes:
        raise PebblerError(f"{arguments.foreign} has no budget; give one, such as --budget 80%")
    if arguments.host_memory is None:
        return instance
    return with_host_memory(instance, arguments.host_memory)


def _transformed(arguments: argparse.Namespace, instance: Instance) -> Instance:
    """Return the instance with the transforms that the options ask for, but for parts, which come last."""
    from ..instances import transforms

    if arguments.mask:
        instance = transforms.with_mask(instance)
    if arguments.recompute:
        instance = transforms.with_recomputation(instance)
    if arguments.inputs_on_clock:
        instance = transforms.with_inputs_on_clock(instance)
    if arguments.streams is not None:
        from ..heuristics.papers.stream_algorithms import with_streams

        instance = with_streams(instance, arguments.streams)
    return instance


def _cut(instance: Instance, parts: str | None) -> Instance:
    """Return the instance in parts as `--parts` says: of a size, or of sizes that fit its budget."""
    from ..heuristics.parts import with_parts
    from ..instances.transforms import split_parts
    from ..instances.units import parse_size

    if parts == "auto":
        return with_parts(instance)
    return instance if parts is None else split_parts(instance, parse_size(parts))


def _solve(arguments: argparse.Namespace) -> int:

    from ..benchmark.comparison.contradiction import keeping
    from ..instances.files import read_summed_instance
    from ..solver.answers import Answers
    from ..solver.solve import attempt, log_defect
    from ..validate.schedule import read_schedule, write_schedule

    instance, checksum = read_summed_instance(arguments.file)
    start = arguments.warm_start
    require_place(arguments.output)
    with keeping(arguments.output.parent):
        result = attempt(
            Answers(instance, arguments.memory),
            arguments.method,
            time_limit=arguments.time_limit,
            seed=arguments.seed,
            workers=arguments.workers,
            warm_start=None if start is None else read_schedule(start, instance),
            solver=arguments.solver,
            log=arguments.log,
            without=arguments.without,
        )
    if result.failure is not None:
        log_defect(arguments.method, instance.name, result.failure)
    if result.schedule is not None:
        write_schedule(result.schedule, arguments.output, checksum)
    if arguments.json:
        print_json(result.as_dict())
    else:
        print(result)
    if result.failure is not None:
        return DEFECT
    return DONE if result.schedule is not None else NO


def _check(arguments: argparse.Namespace) -> int:
    from ..instances.files import read_summed_instance
    from ..validate.gpus.check import check
    from ..validate.schedule import read_schedule

    instance, checksum = read_summed_instance(arguments.file)
    schedule = read_schedule(arguments.schedule, instance)
    report = check(instance, schedule, instance_sha256=checksum)
    if arguments.json:
        print_json(report)
    elif report.valid:
        relaxed = schedule.memory_model == "divisible"
        print("valid at the simulated times only: divisible memory is a relaxation" if relaxed else "valid")
    else:
        print("\n".join(report.reasons))
    return DONE if report.valid else NO


def _check_trace(arguments: argparse.Namespace) -> int:
    from ..validate.traces.races import check_trace
    from ..validate.traces.trace import read_trace

    report = check_trace(read_trace(arguments.trace))
    if arguments.json:
        print_json(report)
    else:
        print("no timing corrupts data" if report.valid else "\n".join(report.reasons))
    return DONE if report.valid else NO


def _trace(arguments: argparse.Namespace) -> int:
    from msgspec import json

    from ..benchmark.pictures.trace import trace
    from ..instances.files import read_instance, write_atomically
    from ..validate.schedule import read_schedule

    instance = read_instance(arguments.file)
    document = trace(instance, read_schedule(arguments.schedule, instance))
    write_atomically(arguments.output, json.encode(document))
    events = len(document["traceEvents"])
    if arguments.json:
        print_json({"events": events})
    else:
        print(f"{escaped(str(arguments.output))}: {events} events; open it in Perfetto or chrome://tracing")
    return DONE


def _networks(arguments: argparse.Namespace) -> int:
    from ..benchmark.output.table import format_table
    from ..instances.networks.accounting import totals
    from ..instances.networks.taskgraph import task_graph
    from ..instances.networks.zoo import UNAVAILABLE, find_network, list_networks
    from ..instances.units import format_size

    names = list_networks() if arguments.name is None else (arguments.name,)
    missing = UNAVAILABLE if arguments.name is None else {}
    entries: list[dict[str, Any]] = []
    for network in map(find_network, names):
        batch = arguments.batch or network.batch
        entries.append(
            {
                "name": network.name,
                "batch": batch,
                "tasks": len(task_graph(network, batch).tasks),
                "parameters": network.parameters,
                "weight_bytes": 4 * network.parameters,
                "totals": totals(network, batch),
                "source": network.source,
            }
        )
    if arguments.json:
        unavailable = [{"name": name, "reason": reason} for name, reason in missing.items()]
        print_json({"networks": entries, "unavailable": unavailable})
    else:
        rules = ("vDNN network-wide", "moDNN ideal", "moDNN least", "Layrub data")
        header = ("network", "batch", "tasks", "parameters", *rules, "source")
        rows = [
            (
                entry["name"],
                str(entry["batch"]),
                str(entry["tasks"]),
                f"{entry['parameters']:,}",
                *map(format_size, entry["totals"].values()),
                entry["source"],
            )
            for entry in entries
        ]
        print(format_table(header, rows, "lrrrrrrrl"))
        for name, reason in missing.items():
            print(f"{name} is not available: {reason}")
    return DONE


def _devices(arguments: argparse.Namespace) -> int:
    from ..benchmark.output.table import format_table, line_width, wrapped
    from ..instances.devices.device import list_devices
    from ..instances.units import format_size

    devices = list_devices()
    if arguments.json:
        print_json({"devices": devices})
    else:
        rows = [
            (
                device.name,
                device.architecture or "",
                format_size(device.memory_bytes),
                *(
                    f"{peak / 1e12:.1f}" if peak else ""
                    for peak in (device.peak_flops, device.tf32_flops, device.fp16_flops, device.bf16_flops)
                ),
                f"{device.bandwidth / 1e9:.0f}",
                f"{device.offload_bandwidth / 1e9:.1f}",
                f"{device.prefetch_bandwidth / 1e9:.1f}",
                device.title,
            )
            for device in devices
        ]
        peaks = ("fp32", "tf32", "fp16", "bf16")
        header = ("device", "architecture", "memory", *peaks, "bandwidth", "out", "in", "title")
        print(format_table(header, rows, "llrrrrrrrrl"))
        print()
        print(
            wrapped(
                "Peaks of dense products in TFLOP/s, on tensor cores but for fp32; bandwidths of the memory "
                "and of copies out to the host and back in, in GB/s. --json has the source of every figure.",
                line_width(),
            )
        )
    return DONE


def _methods(arguments: argparse.Namespace) -> int:
    from .. import list_methods
    from ..benchmark.output.table import format_table

    methods = list_methods()
    if arguments.json:
        entries = [{"name": m.name, "summary": m.summary, "source": m.source} for m in methods]
        print_json({"methods": entries})
    else:
        rows = [(method.name, method.summary, method.source) for method in methods]
        print(format_table(("method", "what it does", "source"), rows, "lll"))
    return DONE


# --- arguments ----------------------------------------------------------------------------------------


@cache
def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pebbler",
        description="Memory schedules, and proven bounds, for training networks that do not fit the GPU.",
        epilog="pebbler COMMAND --help explains a command. Sizes read 12GiB (or 12G), 12GB, 800MiB; a "
        "budget also 50% (of the peak without a limit) and 1.05xMmin (of the least possible); times 60s, "
        "5min or 5m. Exit status: 0 done, 1 the answer is no, 2 wrong usage or input, 3 a defect of a method "
        "or a proof, 130 interrupted.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND")

    add_compare(commands)
    add_fits(commands)

    command = add_command(
        commands,
        "instance",
        _instance,
        "write the instance file of a network",
        _INSTANCE,
    )
    command.add_argument("network", nargs="?", metavar="NETWORK", help="see pebbler networks")
    command.add_argument(
        "--from",
        dest="foreign",
        metavar="FILE",
        help="of another project instead: a joint graph of torch (on --device), a config of G10, a graph of "
        "MOCCASIN or Checkmate, a log of DTR",
    )
    add_workload(command)
    add_transforms(command)
    add_output(command, "INSTANCE")

    add_suite(commands)
    add_best_known(commands)
    add_contest(commands)

    command = add_command(
        commands,
        "solve",
        _solve,
        "solve an instance with one method",
        "pebbler solve vgg16.instance.json --method vdnn-all-p -o vgg16.schedule.json",
    )
    add_file(command)
    command.add_argument(
        "--method", required=True, metavar="M", help="see pebbler methods; exec:PROGRAM is a program of yours"
    )
    add_limits(command, "of the method, from when it is loaded")
    command.add_argument("--warm-start", metavar="SCHEDULE", help="a schedule to start from")
    command.add_argument(
        "--without", type=name_list, default=(), metavar="RULE,...", help="rules that the method leaves out"
    )
    add_solver(command)
    add_output(command, "SCHEDULE")

    add_bound(commands)
    add_check_bound(commands)

    command = add_command(
        commands,
        "check",
        _check,
        "prove that a schedule is valid, or print every reason why not",
        "pebbler check vgg16.instance.json vgg16.schedule.json",
    )
    add_file(command)
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file")

    command = add_command(
        commands,
        "check-trace",
        _check_trace,
        "prove that no timing of another system's streams corrupts data, or print every race",
        "pebbler check-trace offload.trace.json",
    )
    command.add_argument(
        "trace", metavar="TRACE", help="a trace file: operations, streams, waits and buffers"
    )

    command = add_command(
        commands,
        "trace",
        _trace,
        "write a timeline for Perfetto or chrome://tracing, with memory as a counter",
        "pebbler trace vgg16.instance.json vgg16.schedule.json -o vgg16.trace.json",
    )
    add_file(command)
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file")
    add_output(command, "TRACE")

    add_run(commands)
    add_profile(commands)
    add_measure(commands)
    add_emit(commands)
    add_policy(commands)

    add_pack(commands)
    add_streams(commands)
    add_frontier(commands)
    add_bench(commands)
    add_report(commands)

    command = add_command(
        commands, "networks", _networks, "the networks, or one of them", "pebbler networks vgg16 --batch 64"
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="default: all")
    command.add_argument("--batch", type=positive, metavar="N", help="default: the network's own")

    add_command(commands, "devices", _devices, "the devices", "pebbler devices --json")
    add_command(commands, "methods", _methods, "the methods", "pebbler methods")
    add_schemas(commands)
    return parser


class _Version(argparse.Action):
    """Print the version; it is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from .. import __version__

        print(f"pebbler {__version__}")
        parser.exit()
