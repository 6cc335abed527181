"""The command ``compare``: every method side by side, with files, pictures and what to do with them."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import escaped
from .gpus import GPU_OPTIONS, add_gpus, gpu_instances
from .options import (
    Parser,
    add_command,
    add_limits,
    add_workload,
    instance_of_file,
    name_list,
    print_json,
    refuse_options,
    require_folder,
    require_one,
    workload_and_budget,
)

if TYPE_CHECKING:
    from ..benchmark.comparison.result import Comparison

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
    add_gpus(command)
    command.add_argument(
        "--methods",
        type=name_list,
        metavar="A,B,...",
        help="default: all, brute-force for tiny instances only; exec:PROGRAM is a program of yours",
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
        instance = instance_of_file(arguments, source, ("gpus", *GPU_OPTIONS))
        if instance is not None:
            comparison = compare(instance, arguments.methods, **settings)
        else:
            workload, budget = workload_and_budget(arguments, source)
            if auto:
                refuse_options(arguments, "--sub-batch auto", ("gpus", *GPU_OPTIONS))
                comparison = compare_auto(workload, budget, arguments.methods, **settings)
            else:
                instances = gpu_instances(arguments, workload, budget)
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
    from ..benchmark.output.names import file_name, method_file_name

    best = comparison.best
    if best is None:
        return []
    instance = best.instances[0]
    name = file_name(instance)
    file = str(folder / f"{name}.instance.json")
    stem = f"{name}.{method_file_name(best.method)}"
    schedule = str(folder / f"{stem}.schedule.json")
    trace = str(folder / f"{stem}.trace.json")
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
