"""The command ``pack``: addresses for the buffers of a file, or of many files side by side."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError, escaped
from .options import (
    Parser,
    add_command,
    add_workers,
    print_json,
    require_folder,
    require_place,
    seconds,
    seed_number,
)

if TYPE_CHECKING:
    from ..instances.buffers import Buffer
    from ..solver.packing.pack import PackResult


def add_pack(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "pack",
        _pack,
        "addresses for buffers with fixed lifetimes: the least height, or any under a capacity",
        "pebbler pack buffers.csv --capacity 1MiB --time-limit 60s -o packed.csv",
    )
    command.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE|FOLDER",
        help="MiniMalloc's CSV: id,lower,upper,size; several, or a folder of .csv files, give one table",
    )
    command.add_argument("--capacity", metavar="SIZE", help="stop at the first packing that fits")
    command.add_argument("--time-limit", type=seconds, metavar="T", help="for each file; default: none")
    command.add_argument("--seed", type=seed_number, default=0, metavar="N", help="default: 0")
    add_workers(command)
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="where to write: a file, or for several a folder; default: nowhere",
    )


@dataclass(frozen=True, slots=True)
class _Packed:
    """A file, how many buffers it has, what came of it, and the seconds that took."""

    file: Path
    buffers: int
    result: PackResult
    seconds: float


def _pack(arguments: argparse.Namespace) -> int:
    from ..heuristics.methods import Limits
    from ..instances.units import parse_size
    from ..solver.packing.pack import load_packing

    capacity = None if arguments.capacity is None else parse_size(arguments.capacity)
    alone = len(arguments.files) == 1 and not arguments.files[0].is_dir()
    files = [file for path in arguments.files for file in (_files_of(path) if path.is_dir() else [path])]
    if arguments.output is not None:
        (require_place if alone else require_folder)(arguments.output)
        _require_names(() if alone else files)
    read = [(file, _read(file)) for file in files]
    if not alone:
        load_packing(Limits())  # and not in the time of the first file
    packed: list[_Packed] = []
    interrupted = False
    try:
        for count, (file, buffers) in enumerate(read, start=1):
            if not alone:
                logging.getLogger(__name__).info("%d of %d: %s", count, len(files), file)
            packed.append(_packed(arguments, file, buffers, capacity, alone=alone))
            if packed[-1].result.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupted = True
    if alone:
        _show_one(packed, as_json=arguments.json)
    else:
        _show_all(packed, capacity, as_json=arguments.json)
    if interrupted:
        raise KeyboardInterrupt
    return 0 if all(one.result.offsets is not None for one in packed) else 1


def _files_of(folder: Path) -> list[Path]:
    """The CSV files of a folder, in the order of their names."""
    files = sorted(file for file in folder.iterdir() if file.suffix == ".csv")
    if not files:
        raise PebblerError(f"{folder} has no .csv file; give a folder that has some, or files")
    return files


def _require_names(files: Iterable[Path]) -> None:
    """Refuse files that would be at one place in a folder."""
    named: dict[str, Path] = {}
    for file in files:
        if file.name in named:
            raise PebblerError(f"{named[file.name]} and {file} have one name; write them to two folders")
        named[file.name] = file


def _read(file: Path) -> tuple[Buffer, ...]:
    from ..instances.buffers import read_buffers
    from ..solver.packing.pack import common_unit

    buffers = read_buffers(file)
    try:
        common_unit(buffers)
    except PebblerError as error:
        raise PebblerError(f"{file}: {error}") from None
    return buffers


def _packed(
    arguments: argparse.Namespace, file: Path, buffers: Sequence[Buffer], capacity: int | None, *, alone: bool
) -> _Packed:
    """Pack the buffers of a file, and write where they are."""
    from ..instances.buffers import write_offsets
    from ..solver.packing.pack import pack

    began = time.perf_counter()
    result = pack(
        buffers,
        capacity=capacity,
        time_limit=arguments.time_limit,
        workers=arguments.workers,
        seed=arguments.seed,
    )
    seconds = time.perf_counter() - began
    if result.offsets is not None and arguments.output is not None:
        if not alone:
            arguments.output.mkdir(parents=True, exist_ok=True)
        write_offsets(buffers, result.offsets, arguments.output if alone else arguments.output / file.name)
    return _Packed(file, len(buffers), result, seconds)


def _show_one(packed: Sequence[_Packed], *, as_json: bool) -> None:
    for one in packed:  # none, where it was interrupted early
        if as_json:
            print_json(one.result.as_dict())
        else:
            print(one.result)


def _show_all(packed: Sequence[_Packed], capacity: int | None, *, as_json: bool) -> None:
    from ..benchmark.output.table import format_table
    from ..instances.units import format_size

    if as_json:
        entries = [
            {
                "file": escaped(str(one.file)),
                "buffers": one.buffers,
                **one.result.as_dict(),
                "solve_seconds": one.seconds,
            }
            for one in packed
        ]
        print_json({"packings": entries})
        return
    header = ("file", "buffers", "status", "height", "lower bound", "solve time")
    rows = [
        (
            escaped(str(one.file)),
            str(one.buffers),
            one.result.status,
            "none" if one.result.height is None else f"{one.result.height:,}",
            f"{one.result.lower_bound:,}",
            f"{one.seconds:.2f} s",
        )
        for one in packed
    ]
    print(format_table(header, rows, "lrlrrr"))
    if capacity is not None:
        print(f"capacity: {capacity:,} ({format_size(capacity)})")
