"""``pebbler emit``: write a schedule as a stand-alone PyCUDA script."""

from __future__ import annotations

import argparse

from ..instances.errors import escaped
from .options import Parser, add_command, add_file, add_output, print_json, require_one_gpu, require_place


def add_emit(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
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
