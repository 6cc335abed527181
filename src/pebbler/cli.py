"""The command line: each command reads its arguments, asks the library, and prints.

Whatever is slow to import is imported by the command that needs it, so that ``pebbler --help`` is quick.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .instances.errors import PebblerError
from .instances.units import parse_time

if TYPE_CHECKING:
    from .instances.instance import Instance
    from .instances.taskgraph import Graph
    from .instances.workload import Workload

DONE, NO, WRONG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
"""Exit statuses: done; the answer is no; wrong usage or input; Ctrl-C; nobody reads the output."""


_WORKLOAD = ("batch", "sub_batch", "device", "profile", "graph", "engines", "weights_as_blocks")
"""Options that say what an instance file is made from."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv
        Arguments without the program's name; by default those of the process.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered must not be written when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (PebblerError, OSError) as error:
        print(f"pebbler: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        print("pebbler: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    with _progress(arguments.verbose or sys.stderr.isatty()):
        status: int = arguments.command(arguments)
    return status


# --- commands -----------------------------------------------------------------------------------------


def _compare(arguments: argparse.Namespace) -> int:
    from .benchmark.compare import compare, compare_auto
    from .benchmark.export import export
    from .benchmark.plan import instances_of
    from .instances.files import read_instance
    from .instances.memory import parse_budget, with_budget

    source = arguments.network_or_file
    settings = {name: getattr(arguments, name) for name in ("time_limit", "seed", "workers", "memory")}
    _require_folder(arguments.out)
    _require_one(arguments, "a comparison", "network_or_file", "torch", "onnx")
    if source is not None and (source.endswith(".json") or Path(source).exists()):
        _refuse_options(arguments, source, _WORKLOAD)
        instance = read_instance(source)
        if arguments.budget is not None:
            instance = with_budget(instance, parse_budget(arguments.budget, instance))
        comparison = compare(instance, arguments.methods, **settings)
    else:
        workload, budget = _workload(arguments, source)
        if arguments.sub_batch == "auto":
            comparison = compare_auto(workload, budget, arguments.methods, **settings)
        else:
            instances = instances_of(workload, budget, arguments.sub_batch)
            comparison = compare(instances, arguments.methods, **settings)
    files = export(comparison, arguments.out)
    if arguments.json:
        _print_json(comparison.as_dict())
    else:
        print(comparison)
        print(f"files:        {len(files)} in {arguments.out}")
        for path in files:
            print(f"              {path.name}")
    if comparison.interrupted:
        raise KeyboardInterrupt
    return DONE if any(row.figures for row in comparison.rows) else NO


def _instance(arguments: argparse.Namespace) -> int:
    from .instances.files import write_instance
    from .instances.memory import least_budget, parse_budget, require_budget, with_budget
    from .instances.units import format_size

    _require_one(arguments, "an instance", "network", "torch", "onnx", "foreign")
    if arguments.foreign is not None:
        instance, budget, rest = _foreign(arguments), arguments.budget, []
    else:
        workload, budget = _workload(arguments, arguments.network)
        (size, rounds), *rest = workload.rounds(arguments.sub_batch or workload.batch)
        instance = workload.instance(0, size, rounds=rounds, check_budget=False)
    instance = _transformed(arguments, instance)
    instance = with_budget(instance, parse_budget(str(budget), instance))
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
        _print_json(figures)
    else:
        print(
            f"{arguments.output}: {instance.name}, {len(instance.tasks)} tasks, "
            f"{len(instance.blocks)} blocks, rounds {instance.rounds}, budget "
            f"{format_size(instance.budget_bytes)}, least possible {format_size(least)}"
        )
    for size, _ in rest:
        print(
            f"pebbler: the last round has {size} images and is another file: --batch {size}", file=sys.stderr
        )
    return DONE


def _foreign(arguments: argparse.Namespace) -> Instance:
    """Return the instance of another project's file."""
    from .instances.readers import read_foreign

    _refuse_options(arguments, arguments.foreign, _WORKLOAD)
    if arguments.budget is None:
        raise PebblerError(f"{arguments.foreign} has no budget; give one, such as --budget 80%")
    return read_foreign(arguments.foreign)


def _transformed(arguments: argparse.Namespace, instance: Instance) -> Instance:
    """Return the instance with the transforms that the options ask for; parts come last."""
    from .instances import transforms
    from .instances.units import parse_size

    if arguments.mask:
        instance = transforms.with_mask(instance)
    if arguments.recompute:
        instance = transforms.with_recomputation(instance)
    if arguments.inputs_on_clock:
        instance = transforms.with_inputs_on_clock(instance)
    if arguments.link is not None:
        instance = transforms.with_link(instance, arguments.link)
    if arguments.parts is not None:
        instance = transforms.split_parts(instance, parse_size(arguments.parts))
    return instance


def _generate(arguments: argparse.Namespace) -> int:
    from .instances.manifest import write_suite

    _require_folder(arguments.output)
    manifest = write_suite(arguments.suite, arguments.output)
    if arguments.json:
        _print_json(manifest)
    else:
        tasks = [entry.tasks for entry in manifest.instances]
        print(
            f"{arguments.output}: suite {manifest.suite}, {len(tasks)} instances of {min(tasks)} to "
            f"{max(tasks)} tasks; manifest.json has their checksums"
        )
    return DONE


def _solve(arguments: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from .instances.files import read_instance, sha256_of
    from .solver.solve import solve
    from .validate.schedule import read_schedule, write_schedule

    instance = read_instance(arguments.file)
    start = arguments.warm_start
    _require_place(arguments.output)
    result = solve(
        instance,
        arguments.method,
        time_limit=arguments.time_limit,
        seed=arguments.seed,
        workers=arguments.workers,
        memory=arguments.memory,
        warm_start=None if start is None else read_schedule(start, instance),
        solver=arguments.solver,
        log=arguments.log,
        without=arguments.without,
    )
    if result.schedule is not None:
        schedule = replace(result.schedule, instance_sha256=sha256_of(arguments.file))
        write_schedule(schedule, arguments.output)
    if arguments.json:
        _print_json(result.as_dict())
    else:
        print(result)
    return DONE if result.schedule is not None else NO


def _bound(arguments: argparse.Namespace) -> int:
    from .instances.files import read_instance
    from .instances.units import format_time
    from .solver.bounds import Bound, best_bound
    from .solver.refine import refine_bound

    def told(bound: Bound) -> str:
        exact = "in exact arithmetic" if bound.certified else "not certified"
        return f"{format_time(bound.lower_bound_ns)} ({bound.lower_bound_ns} ns), {bound.bound_by}, {exact}"

    def progress(better: Bound) -> None:
        logging.getLogger(__name__).info("%s", told(better))

    instance = read_instance(arguments.file)
    if arguments.time_limit is None:
        bound = best_bound(instance)
    else:
        bound = refine_bound(
            instance,
            arguments.time_limit,
            solver=arguments.solver,
            log=arguments.log,
            on_better=progress,
        )
    if arguments.json:
        _print_json(bound)
    else:
        print(told(bound))
    return DONE


def _check(arguments: argparse.Namespace) -> int:
    from .instances.files import read_instance, sha256_of
    from .validate.check import check
    from .validate.schedule import read_schedule

    instance = read_instance(arguments.file)
    schedule = read_schedule(arguments.schedule, instance)
    report = check(instance, schedule, instance_sha256=sha256_of(arguments.file))
    if arguments.json:
        _print_json(report)
    elif report.valid:
        relaxed = schedule.memory_model == "divisible"
        print("valid at the simulated times only: divisible memory is a relaxation" if relaxed else "valid")
    else:
        print("\n".join(report.reasons))
    return DONE if report.valid else NO


def _trace(arguments: argparse.Namespace) -> int:
    from msgspec import json

    from .benchmark.trace import trace
    from .instances.files import read_instance, write_atomically
    from .validate.schedule import read_schedule

    instance = read_instance(arguments.file)
    document = trace(instance, read_schedule(arguments.schedule, instance))
    write_atomically(arguments.output, json.encode(document))
    events = len(document["traceEvents"])
    if arguments.json:
        _print_json({"events": events})
    else:
        print(f"{arguments.output}: {events} events; open it in Perfetto or chrome://tracing")
    return DONE


def _pack(arguments: argparse.Namespace) -> int:
    from .instances.buffers import read_buffers, write_offsets
    from .instances.units import parse_size
    from .solver.packing import pack

    if arguments.output is not None:
        _require_place(arguments.output)
    buffers = read_buffers(arguments.file)
    result = pack(
        buffers,
        capacity=None if arguments.capacity is None else parse_size(arguments.capacity),
        time_limit=arguments.time_limit,
        workers=arguments.workers,
        seed=arguments.seed,
    )
    if result.offsets is not None and arguments.output is not None:
        write_offsets(buffers, result.offsets, arguments.output)
    if arguments.json:
        _print_json(result.as_dict())
    else:
        print(result)
    if result.interrupted:
        raise KeyboardInterrupt
    return DONE if result.offsets is not None else NO


def _networks(arguments: argparse.Namespace) -> int:
    from .benchmark.table import format_table
    from .instances.accounting import totals
    from .instances.taskgraph import task_graph
    from .instances.units import format_size
    from .instances.zoo import UNAVAILABLE, find_network, list_networks

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
        _print_json({"networks": entries, "unavailable": unavailable})
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
    from .benchmark.table import format_table
    from .instances.devices import list_devices
    from .instances.units import format_size

    devices = list_devices()
    if arguments.json:
        _print_json({"devices": devices})
    else:
        rows = [
            (
                device.name,
                format_size(device.memory_bytes),
                f"{device.peak_flops / 1e12:.2f} TFLOP/s",
                f"{device.bandwidth / 1e9:.0f} GB/s",
                f"{device.offload_bandwidth / 1e9:.1f} GB/s",
                f"{device.prefetch_bandwidth / 1e9:.1f} GB/s",
                device.title,
            )
            for device in devices
        ]
        header = ("device", "memory", "peak", "bandwidth", "offload", "prefetch", "title")
        print(format_table(header, rows, "lrrrrrl"))
    return DONE


def _methods(arguments: argparse.Namespace) -> int:
    from . import list_methods
    from .benchmark.table import format_table

    methods = list_methods()
    if arguments.json:
        entries = [{"name": m.name, "summary": m.summary, "source": m.source} for m in methods]
        _print_json({"methods": entries})
    else:
        rows = [(method.name, method.summary, method.source) for method in methods]
        print(format_table(("method", "what it does", "source"), rows, "lll"))
    return DONE


# --- arguments ----------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        raise PebblerError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pebbler",
        description="Memory schedules, and proven bounds, for training networks that do not fit the GPU.",
        epilog="pebbler COMMAND --help explains a command. Sizes read 12GiB, 12GB, 800MiB; a budget also "
        "50% (of the peak without a limit) and 1.05xMmin (of the least possible); times 60s, 5min.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    command = _add_command(
        commands,
        "compare",
        _compare,
        "every method side by side, with a lower bound, a table and pictures",
        "pebbler compare vgg16 --batch 256 --device k40 --budget 12GiB",
    )
    command.add_argument(
        "network_or_file",
        nargs="?",
        metavar="NETWORK|FILE",
        help="a network or an instance file (.json)",
    )
    _add_workload(command, auto=True)
    command.add_argument(
        "--methods", type=_names, metavar="A,B,...", help="default: all, brute-force for tiny instances only"
    )
    _add_limits(command)
    command.add_argument(
        "--out", type=Path, default=Path("pebbler-out"), metavar="DIR", help="default: pebbler-out"
    )

    command = _add_command(
        commands,
        "instance",
        _instance,
        "write the instance file of a network",
        "pebbler instance vgg16 --batch 256 --device k40 --budget 12GiB -o vgg16.instance.json",
    )
    command.add_argument("network", nargs="?", metavar="NETWORK", help="see pebbler networks")
    command.add_argument(
        "--from",
        dest="foreign",
        metavar="FILE",
        help="a recomputation problem instead: a graph of MOCCASIN or Checkmate, or a log of DTR",
    )
    _add_workload(command)
    _add_transforms(command)
    _add_output(command, "INSTANCE")

    command = _add_command(
        commands,
        "generate",
        _generate,
        "write the instances of a suite, with a manifest and checksums",
        "pebbler generate tiny -o tiny",
    )
    command.add_argument(
        "suite", metavar="SUITE", help="papers, random, scaling, tight, tiny or transformers"
    )
    _add_output(command, "DIR")

    command = _add_command(
        commands,
        "solve",
        _solve,
        "solve an instance with one method",
        "pebbler solve vgg16.instance.json --method vdnn-all-p -o vgg16.schedule.json",
    )
    _add_file(command)
    command.add_argument("--method", required=True, metavar="M", help="see pebbler methods")
    _add_limits(command)
    command.add_argument("--warm-start", metavar="SCHEDULE", help="a schedule to start from")
    command.add_argument(
        "--without", type=_names, default=(), metavar="RULE,...", help="rules that the method leaves out"
    )
    _add_solver(command)
    _add_output(command, "SCHEDULE")

    command = _add_command(
        commands,
        "bound",
        _bound,
        "the best proven lower bound on the makespan, and the argument that gave it",
        "pebbler bound vgg16.instance.json --time-limit 60s",
    )
    _add_file(command)
    command.add_argument(
        "--time-limit",
        type=_seconds,
        metavar="T",
        help="for better bounds by linear and integer programs; default: only those in exact arithmetic",
    )
    _add_solver(command)

    command = _add_command(
        commands,
        "check",
        _check,
        "prove that a schedule is valid, or print every reason why not",
        "pebbler check vgg16.instance.json vgg16.schedule.json",
    )
    _add_file(command)
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file")

    command = _add_command(
        commands,
        "trace",
        _trace,
        "write a timeline for Perfetto or chrome://tracing, with memory as a counter",
        "pebbler trace vgg16.instance.json vgg16.schedule.json -o vgg16.trace.json",
    )
    _add_file(command)
    command.add_argument("schedule", metavar="SCHEDULE", help="a schedule file")
    _add_output(command, "TRACE")

    command = _add_command(
        commands,
        "pack",
        _pack,
        "addresses for buffers with fixed lifetimes: the least height, or any under a capacity",
        "pebbler pack buffers.csv --capacity 1MiB --time-limit 60s -o packed.csv",
    )
    command.add_argument("file", metavar="FILE.csv", help="MiniMalloc's CSV: id,lower,upper,size")
    command.add_argument("--capacity", metavar="SIZE", help="stop at the first packing that fits")
    command.add_argument("--time-limit", type=_seconds, metavar="T", help="default: none")
    command.add_argument("--seed", type=_natural, default=0, metavar="N", help="default: 0")
    _add_workers(command)
    command.add_argument(
        "-o", "--output", type=Path, metavar="OUT.csv", help="where to write; default: nowhere"
    )

    command = _add_command(
        commands, "networks", _networks, "the networks, or one of them", "pebbler networks vgg16 --batch 64"
    )
    command.add_argument("name", nargs="?", metavar="NAME", help="default: all")
    command.add_argument("--batch", type=_positive, metavar="N", help="default: the network's own")

    _add_command(commands, "devices", _devices, "the devices", "pebbler devices --json")
    _add_command(commands, "methods", _methods, "the methods", "pebbler methods")
    return parser


class _Version(argparse.Action):
    """Print the version; it is looked up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:  # noqa: A002
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from . import __version__

        print(f"pebbler {__version__}")
        parser.exit()


def _add_command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    call: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        allow_abbrev=False,
    )
    command.set_defaults(command=call)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "-v", "--verbose", action="store_true", help="report progress even without a terminal"
    )
    return command


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="an instance file")


def _add_output(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument("-o", "--output", required=True, type=Path, metavar=what, help="where to write")


def _add_workload(command: argparse.ArgumentParser, *, auto: bool = False) -> None:
    command.add_argument(
        "--torch",
        metavar="MODULE:FUNCTION",
        help="a torch model instead: a function from a batch size to (module, step, inputs)",
    )
    command.add_argument("--onnx", metavar="FILE", help="an ONNX model instead")
    command.add_argument("--batch", type=_positive, metavar="N", help="images; default: the network's own")
    command.add_argument(
        "--sub-batch",
        type=_positive_or_auto if auto else _positive,
        metavar="auto|N" if auto else "N",
        help="images of a round; default: the batch" + ("; auto: each method's choice" if auto else ""),
    )
    command.add_argument(
        "--device", metavar="NAME", help="see pebbler devices, or a file of your own (.toml); default: k40"
    )
    command.add_argument(
        "--profile", metavar="FILE", help="measured times in place of a device and its cost model"
    )
    command.add_argument("--budget", metavar="SIZE", help="default: the device's memory")
    command.add_argument("--graph", choices=("executable", "paper"), help="default: executable")
    command.add_argument("--engines", choices=("duplex", "single"), help="copy streams; default: duplex")
    command.add_argument(
        "--weights-as-blocks",
        action="store_true",
        default=None,
        help="weights and their gradients are blocks, not resident",
    )


def _add_transforms(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--inputs-on-clock", action="store_true", help="the input is on the host at first and must be copied"
    )
    command.add_argument(
        "--link", metavar="NAME", help="pcie3, pcie4, pcie5, nvlink or the bytes of a second: 25GB"
    )
    command.add_argument("--recompute", action="store_true", help="forward tasks may run again")
    command.add_argument("--mask", action="store_true", help="Layrub's ReLU: signs instead of outputs")
    command.add_argument("--parts", metavar="SIZE", help="tensors in parts of at most SIZE, 2MiB or more")


def _add_limits(command: argparse.ArgumentParser) -> None:
    command.add_argument("--time-limit", type=_seconds, metavar="T", help="for each method; default: none")
    command.add_argument("--seed", type=_natural, default=0, metavar="N", help="default: 0")
    _add_workers(command)
    command.add_argument(
        "--memory", choices=("contiguous", "paged"), default="contiguous", help="memory model"
    )


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=_positive, default=1, metavar="N", help="threads; default: 1")


def _add_solver(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--solver", default="highs", metavar="NAME", help="of linear models: highs (default), scip, cbc, ..."
    )
    command.add_argument("--log", action="store_true", help="write the solver's log to standard error")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seconds(text: str) -> float:
    try:
        return parse_time(text)
    except PebblerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 on")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1 on")
    return int(text)


def _positive_or_auto(text: str) -> int | str:
    return text if text == "auto" else _positive(text)


# --- shared by commands -------------------------------------------------------------------------------


def _workload(arguments: argparse.Namespace, network: str | None) -> tuple[Workload, int | str]:
    """Return the workload and the budget that the options describe; without a network, of a user's model."""
    from .instances.devices import find_device
    from .instances.profile import read_profile
    from .instances.workload import Workload
    from .instances.zoo import find_network

    if arguments.profile is None:
        profile = None
        device = arguments.device or "k40"
        graph: Graph = arguments.graph or "executable"
        memory = find_device(device).memory_bytes
    else:
        _refuse_options(arguments, arguments.profile, ("device", "graph"))
        profile = read_profile(arguments.profile)
        device, graph, memory = profile.machine.device, profile.graph, profile.machine.memory_bytes
    settings: dict[str, Any] = {
        "device": device,
        "graph": graph,
        "engines": arguments.engines or "duplex",
        "weights_as_blocks": bool(arguments.weights_as_blocks),
        "profile": profile,
    }
    if network is None:
        workload = _imported(arguments, settings)
    else:
        workload = Workload(network, arguments.batch or find_network(network).batch, **settings)
    return workload, memory if arguments.budget is None else arguments.budget


def _imported(arguments: argparse.Namespace, settings: dict[str, Any]) -> Workload:
    """Return the workload of a user's torch or ONNX model."""
    from .instances.onnx_workload import NetworkWorkload, read_model
    from .instances.torch_workload import TorchWorkload, find_step

    name = arguments.onnx if arguments.torch is None else arguments.torch
    if arguments.batch is None:
        raise PebblerError(f"{name} has no batch size of its own; give one as --batch N")
    if arguments.torch is not None:
        return TorchWorkload(name, arguments.batch, make_step=find_step(name), **settings)
    return NetworkWorkload(Path(name).stem, arguments.batch, own=read_model(name), **settings)


def _require_one(arguments: argparse.Namespace, what: str, *names: str) -> None:
    if sum(getattr(arguments, name) is not None for name in names) != 1:
        known = {"network": "NETWORK", "network_or_file": "NETWORK|FILE", "foreign": "--from FILE"}
        choices = [known.get(name, f"--{name}") for name in names]
        raise PebblerError(f"{what} is made from one thing; give {', '.join(choices[:-1])} or {choices[-1]}")


def _refuse_options(arguments: argparse.Namespace, source: str, names: Sequence[str]) -> None:
    for name in names:
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            raise PebblerError(f"{source} settles {option}; leave the option out")


def _require_place(path: Path) -> None:
    """Refuse a file that cannot be written, before the work begins and not after it."""
    if path.is_dir() or not path.parent.is_dir():
        raise PebblerError(f"{path} cannot be written: it is a folder or lies in none that exists")


def _require_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, before the work begins and not after it."""
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise PebblerError(f"{path} cannot be a folder: {existing} is a file")


def _print_json(value: object) -> None:
    from msgspec import json

    print(json.format(json.encode(value), indent=2).decode())


@contextmanager
def _progress(shown: bool) -> Iterator[None]:
    """Let the library's messages reach standard error: all of them, or warnings only."""
    log = logging.getLogger("pebbler")
    handler = logging.StreamHandler()
    log.addHandler(handler)
    log.setLevel(logging.INFO if shown else logging.WARNING)
    try:
        yield
    finally:
        log.removeHandler(handler)
