"""The command ``compare``: every method side by side, with files, pictures and what to do with them."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError, escaped
from ..instances.units import parse_rate
from .options import (
    Parser,
    add_command,
    add_limits,
    add_workload,
    instance_of_file,
    name_list,
    positive,
    print_json,
    refuse_options,
    require_folder,
    require_one,
    workload_and_budget,
)

if TYPE_CHECKING:
    from ..benchmark.comparison.result import Comparison
    from ..instances.instance import Instance
    from ..instances.workload import Workload

_GPU_OPTIONS = ("nodes", "bus", "cores", "network", "nvlink")
"""Options that need several GPUs."""

EXAMPLE = "pebbler compare vgg16 --batch 256 --device k40 --budget 12GiB"


def add_compare(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "compare",
        _compare,
        "every method side by side, with a lower bound, a table and pictures",
        EXAMPLE,
    )
    command.add_argument(
        "network_or_file",
        nargs="?",
        metavar="NETWORK|FILE",
        help="a network (see pebbler networks) or an instance file (.json)",
    )
    add_workload(command, auto=True)
    _add_gpus(command)
    command.add_argument(
        "--methods",
        type=name_list,
        metavar="A,B,...",
        help="default: all, brute-force for tiny instances only",
    )
    add_limits(
        command,
        "of each method, and as long for the bound when all have ended, where no schedule meets it; "
        "--sub-batch auto: of each search",
    )
    command.add_argument(
        "--out", type=Path, default=Path("pebbler-out"), metavar="DIR", help="default: pebbler-out"
    )


def _compare(arguments: argparse.Namespace) -> int:
    from ..benchmark.comparison.compare import compare, compare_auto, default_methods
    from ..benchmark.comparison.contradiction import keeping
    from ..benchmark.output.table import line_width
    from ..benchmark.pictures.drawn import drawer
    from ..benchmark.pictures.export import export

    source = arguments.network_or_file
    settings = {name: getattr(arguments, name) for name in ("time_limit", "seed", "workers", "memory")}
    require_folder(arguments.out)
    require_one(arguments, "a comparison", "network_or_file", "torch", "onnx", example=EXAMPLE)
    auto = arguments.sub_batch == "auto"
    names = default_methods((), auto=auto) if arguments.methods is None else arguments.methods
    with keeping(arguments.out), drawer(len(names) + 1) as other:
        instance = instance_of_file(arguments, source, ("gpus", *_GPU_OPTIONS))
        if instance is not None:
            comparison = compare(instance, arguments.methods, **settings)
        else:
            workload, budget = workload_and_budget(arguments, source)
            if auto:
                refuse_options(arguments, "--sub-batch auto", ("gpus", *_GPU_OPTIONS))
                comparison = compare_auto(workload, budget, arguments.methods, **settings)
            else:
                instances = _gpu_instances(arguments, workload, budget)
                comparison = compare(instances, arguments.methods, **settings)
        files = export(comparison, arguments.out, other)
    if arguments.json:
        print_json(comparison.as_dict())
    else:
        print(comparison.summary())
        print(f"files:        {len(files)} in {escaped(str(arguments.out))}")
        for path in files:
            print(f"              {path.name}")
        commands = next_commands(comparison, arguments.out)
        if commands:
            print("next:")
        for words in commands:
            print(in_lines(words, line_width()))
    if comparison.interrupted:
        raise KeyboardInterrupt
    if any(row.figures for row in comparison.rows):
        return 0
    return 3 if any(row.status == "error" for row in comparison.rows) else 1


def next_commands(comparison: Comparison, folder: Path) -> list[list[str]]:
    """Commands that go on from the files of a comparison, as words: they prove, show and better the best."""
    from ..benchmark.output.names import file_name

    best = comparison.best
    if best is None:
        return []
    instance = best.instances[0]
    name = file_name(instance)
    file = str(folder / f"{name}.instance.json")
    schedule = str(folder / f"{name}.{best.method}.schedule.json")
    trace = str(folder / f"{name}.{best.method}.trace.json")
    commands = [
        ["pebbler", "check", file, schedule],
        ["pebbler", "trace", file, schedule, "-o", trace],
    ]
    if best.status != "optimal":
        again = any(task.recomputable for task in instance.tasks)
        better = ["--method", "flow-recompute" if again else "flow", "--memory", comparison.memory]
        output = str(folder / f"{name}.better.schedule.json")
        commands.append(["pebbler", "solve", file, *better, "--time-limit", "5min", "-o", output])
    return commands


def _quoted(word: str) -> str:
    """Quote a word for a shell; one with characters that do not print is written as bash's ``$'...'``."""
    if word.isprintable():
        return shlex.quote(word)
    plain = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}"
        for byte in os.fsencode(word)
    )
    return f"$'{''.join(plain)}'"


def in_lines(words: list[str], width: int) -> str:
    """Write a command for a shell, in several lines where it needs them; options keep values."""
    parts: list[str] = []
    for word in map(_quoted, words):
        if parts and parts[-1].startswith("-") and " " not in parts[-1]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(f" {part} \\") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return " \\\n".join(lines)


def _add_gpus(command: argparse.ArgumentParser) -> None:
    """Add the options that `_gpu_instances` reads."""
    command.add_argument(
        "--gpus", type=positive, metavar="M", help="share the batch equally among M GPUs; default: 1"
    )
    command.add_argument(
        "--nodes", type=positive, metavar="N", help="that the GPUs are spread over; default: 1"
    )
    command.add_argument(
        "--bus",
        type=_rate,
        metavar="RATE",
        help="bytes of a second, such as 12GB, that the GPUs of a node share in a direction; "
        "default: those of one GPU's link",
    )
    command.add_argument(
        "--cores", type=positive, metavar="N", help="of a node that add up gradients; default: 1"
    )
    command.add_argument(
        "--network", type=_rate, metavar="RATE", help="of a node's link to others, such as 1Gbps"
    )
    command.add_argument(
        "--nvlink", type=_rate, metavar="RATE", help="of a ring that adds up gradients instead of the host"
    )


def _rate(text: str) -> int:
    """Read a bandwidth."""
    try:
        return parse_rate(text)
    except PebblerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpu_instances(
    arguments: argparse.Namespace, workload: Workload, budget: int | str
) -> tuple[Instance, ...]:
    """Return the instances of an iteration on one GPU, or on several."""
    from ..benchmark.comparison.plan import instances_of
    from ..instances.gpus.workload import cluster_instances, several_gpus

    if (arguments.gpus or 1) == 1:
        refuse_options(arguments, "one GPU", _GPU_OPTIONS)
        return instances_of(workload, budget, arguments.sub_batch)
    if arguments.link is not None:
        raise PebblerError("several GPUs copy over the links of their device and the bus; leave --link out")
    if arguments.link_both is not None:
        raise PebblerError("several GPUs share a bus; give --bus in place of --link-both")
    if arguments.torch is not None:
        raise PebblerError("a torch model does not say which gradients are whose; give a network or --onnx")
    cluster = several_gpus(
        workload,
        arguments.gpus,
        nodes=arguments.nodes or 1,
        bus=arguments.bus,
        cores=arguments.cores or 1,
        network=arguments.network,
        nvlink=arguments.nvlink,
    )
    return cluster_instances(workload, cluster, budget, arguments.sub_batch)
