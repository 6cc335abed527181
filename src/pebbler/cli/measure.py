"""``pebbler measure``: all that only a GPU can tell, in stages that can be stopped and taken up again."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..benchmark.gpu.study import (
    BUDGETS,
    METHODS,
    NETWORKS,
    ON_THE_GPU,
    SMOKE,
    SMOKE_NETWORKS,
    STAGES,
    Study,
)
from ..instances.errors import PebblerError, escaped
from ..validate.execution.cuda.providers import PROVIDERS
from .options import (
    Parser,
    add_command,
    name_list,
    positive,
    print_json,
    require_folder,
    require_place,
    seconds,
)

if TYPE_CHECKING:
    from ..benchmark.gpu.measure import Outcome

_ALL = "all"
_EXAMPLE = "pebbler measure --smoke --stages profile --time-limit 9min"


def add_measure(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "measure",
        _measure,
        "measure all that only a GPU can tell, stage by stage; what the folder has is not measured again",
        _EXAMPLE,
    )
    told = "; ".join(f"{name}: {what}" for name, what in STAGES.items())
    command.add_argument(
        "--stages",
        type=name_list,
        default=(),
        metavar="A,B,...",
        help=f"what to do, in this order, or {_ALL}. {told}".replace("%", "%%"),
    )
    command.add_argument(
        "--smoke",
        action="store_true",
        help="first of all, compare the GPU with the CPU on small networks: every algorithm, and schedules "
        "by rule; some four minutes",
    )
    command.add_argument(
        "--out",
        type=Path,
        default=Path("docs/data/gpu"),
        metavar="DIR",
        help="where a file is left for each result; default: %(default)s",
    )
    command.add_argument(
        "--archive",
        type=Path,
        metavar="FILE.tar.gz",
        help="packs all of DIR after every stage, or at once without one; default: DIR.tar.gz",
    )
    command.add_argument(
        "--page",
        type=Path,
        default=Path("docs/gpu.md"),
        metavar="FILE",
        help="what gets the tables; default: %(default)s",
    )
    command.add_argument(
        "--time-limit",
        type=seconds,
        metavar="T",
        help="of the command: what is not done by then is left for the next one; default: none",
    )
    command.add_argument(
        "--unit-limit",
        type=seconds,
        default=300.0,
        metavar="T",
        help="of a profile, a run, ...: what takes longer has failed; default: 5min",
    )
    command.add_argument(
        "--networks",
        type=_networks,
        default=(),
        metavar="NAME/BATCH,...",
        help=f"default: {','.join(f'{name}/{batch}' for name, batch in NETWORKS)}; others for --smoke",
    )
    command.add_argument(
        "--budgets", type=name_list, default=(), metavar="SIZE,...", help=f"default: {','.join(BUDGETS)}"
    )
    command.add_argument(
        "--methods", type=name_list, default=(), metavar="M,...", help=f"default: {','.join(METHODS)}"
    )
    command.add_argument(
        "--layers", type=name_list, default=(), metavar="LAYER,...", help="default: GLP4NN's Table 5"
    )
    command.add_argument(
        "--device",
        default="h200",
        metavar="NAME",
        help="predicted beside layers on streams, by the stage page; default: h200",
    )
    command.add_argument(
        "--provider",
        type=name_list,
        default=(),
        metavar="P,...",
        help=f"whose convolutions, of {', '.join(PROVIDERS)}; default: {PROVIDERS[0]}",
    )
    command.add_argument(
        "--repeat", type=positive, default=5, metavar="N", help="timed executions; default: 5"
    )


def _networks(text: str) -> tuple[tuple[str, int], ...]:
    """Read networks with their batches; commas may also lie inside a network."""
    found, rest = [], ""
    for part in text.split(","):
        rest = f"{rest},{part}" if rest else part.strip()
        name, slash, batch = rest.rpartition("/")
        if slash:
            found.append((name, positive(batch)))
            rest = ""
    if rest or not found:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of NAME/BATCH, such as lenet/64,vgg16/32")
    return tuple(found)


def _measure(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    stages = tuple(dict.fromkeys(arguments.stages))
    if stages == (_ALL,):
        stages = tuple(STAGES)
    for stage in stages:
        if stage not in STAGES:
            raise PebblerError(f"there is no stage '{stage}'; there are {', '.join(STAGES)}, or {_ALL}")
    if arguments.smoke:
        stages = (SMOKE, *stages)
    if not stages and arguments.archive is None:
        raise PebblerError(f"there is nothing to do; give --stages, --smoke or --archive, such as {_EXAMPLE}")
    folder = arguments.out
    archive = arguments.archive or folder.resolve().with_name(f"{folder.resolve().name}.tar.gz")
    study = _study(arguments, stages)
    require_folder(folder)
    if arguments.archive is not None:
        require_place(archive)
    if "page" in stages:
        _require_marks(arguments.page)

    from ..benchmark.gpu.measure import Outcome, keep_machine, measure, pack, require_machine

    found = require_machine() if ON_THE_GPU & set(stages) else None
    if not stages and not folder.is_dir():
        raise PebblerError(f"{folder} is not there, so there is nothing to pack")
    folder.mkdir(parents=True, exist_ok=True)
    if found is not None:
        keep_machine(folder, found)
    limit = arguments.time_limit
    if stages:
        outcome = measure(
            study,
            stages,
            time_limit=None if limit is None else limit - (time.monotonic() - began),
            unit_limit=arguments.unit_limit,
            archive=archive,
            page=arguments.page,
        )
    else:
        outcome = Outcome()
        pack(folder, archive)
    _tell(arguments, outcome, archive)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return 1 if outcome.failed else 0


def _study(arguments: argparse.Namespace, stages: tuple[str, ...]) -> Study:
    """Return what is to be measured, once all of it is known to exist."""
    from ..instances.devices.caffe import find_layer
    from ..instances.devices.device import find_device
    from ..instances.memory import parse_budget
    from ..instances.networks.zoo import find_network
    from ..instances.workload import Workload
    from ..validate.execution.backends import find_backend

    for network, _ in arguments.networks:
        find_network(network)
    for layer in arguments.layers:
        find_layer(layer)
    for budget in arguments.budgets:
        parse_budget(budget, Workload("lenet", 1, "k40").round(1, 1))
    if "solve" in stages and arguments.methods:
        from .. import find_method

        for method in arguments.methods:
            find_method(method)
    find_device(arguments.device)
    find_backend("cuda", arguments.provider)
    return Study(
        arguments.out,
        networks=arguments.networks or NETWORKS,
        smoke_networks=arguments.networks or SMOKE_NETWORKS,
        budgets=arguments.budgets or BUDGETS,
        methods=arguments.methods or METHODS,
        layers=arguments.layers,
        device=arguments.device,
        providers=arguments.provider,
        repeat=arguments.repeat,
    )


def _require_marks(page: Path) -> None:
    """Refuse a page that has no place for the tables, before the work begins."""
    from ..benchmark.gpu.measure import MARKS
    from ..instances.files import read_bytes

    try:
        text = read_bytes(page).decode("utf-8")
    except UnicodeDecodeError:
        raise PebblerError(f"{page} is no text in UTF-8; give a page that is") from None
    begin, end = (text.find(mark) for mark in MARKS)
    if not 0 <= begin < end or any(text.count(mark) != 1 for mark in MARKS):
        wanted = " and ".join(mark.strip() for mark in MARKS)
        raise PebblerError(f"{page} has no place for the tables; give it the lines {wanted}, once each")


def _tell(arguments: argparse.Namespace, outcome: Outcome, archive: Path) -> None:
    """Print what became of the units."""
    from ..instances.units import format_size

    packed = archive.stat().st_size if archive.exists() else None
    if arguments.json:
        print_json(
            {
                "folder": str(arguments.out),
                "measured": outcome.measured,
                "there": outcome.there,
                "failed": outcome.failed,
                "skipped": outcome.skipped,
                "left": outcome.left,
                "interrupted": outcome.interrupted,
                "archive": None if packed is None else {"file": str(archive), "bytes": packed},
            }
        )
        return
    counts = (
        f"{outcome.measured} measured",
        f"{outcome.there} were there",
        f"{len(outcome.failed)} failed",
        f"{len(outcome.skipped)} skipped",
        f"{len(outcome.left)} left for the next time",
    )
    print(f"{escaped(str(arguments.out))}: {', '.join(counts)}")
    for name, wrong in outcome.failed.items():
        print(f"failed: {name}: {wrong}")
    for reason in dict.fromkeys(outcome.skipped.values()):
        print(f"skipped: {reason}")
    if packed is not None:
        print(f"{escaped(str(archive))}: {format_size(packed)}, all of it")
