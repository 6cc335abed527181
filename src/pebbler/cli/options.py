"""What commands share: the parser, options that several of them have, what they refuse and how they print."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..instances.errors import PebblerError
from ..instances.units import LARGEST, LARGEST_SEED, MOST_THREADS, parse_time

if TYPE_CHECKING:
    from ..instances.instance import Instance
    from ..instances.networks.taskgraph import Graph
    from ..instances.workload import Workload

WORKLOAD_OPTIONS = (
    "batch",
    "sub_batch",
    "device",
    "cudnn",
    "profile",
    "graph",
    "engines",
    "weights_as_blocks",
    "steady",
    "optimizer",
    "optimizer_on",
    "host_bandwidth",
    "slowdown",
    "precision",
)
"""Options that say what an instance file is made from."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong as a `PebblerError`."""
        raise PebblerError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse what is not among choices; of commands, say which one is close."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            close = difflib.get_close_matches(str(value), action.choices, n=2)
            hint = (
                f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(action.choices)}"
            )
            raise PebblerError(f"there is no command '{value}'; {hint}")
        super()._check_value(action, value)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help; argparse itself passes over a write that fails."""
        print(message, end="", file=file)


def add_command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    call: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    """Add a command, with the options that all have; `call` returns the exit status."""
    command = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        allow_abbrev=False,
    )
    command.set_defaults(command=call, name_of_command=name)
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="progress in lines that stay, even without a terminal",
    )
    return command


def add_file(command: argparse.ArgumentParser) -> None:
    """Add the argument ``FILE``, an instance."""
    command.add_argument("file", metavar="FILE", help="an instance file")


def add_output(command: argparse.ArgumentParser, what: str) -> None:
    """Add ``-o``, where to write."""
    command.add_argument("-o", "--output", required=True, type=Path, metavar=what, help="where to write")


def add_backend(command: argparse.ArgumentParser, default: str | None = "cpu") -> None:
    """Add ``--backend``, which `find_backend` reads."""
    command.add_argument(
        "--backend",
        default=default,
        metavar="NAME",
        help="where to run it: cpu, cuda, or a backend of another package"
        + ("" if default is None else "; default: %(default)s"),
    )


_OPTIMIZER = "of --steady, what updates the weights in the iteration; default: sgd"


def add_workload(
    command: argparse.ArgumentParser, *, auto: bool = False, optimizer: str = _OPTIMIZER
) -> None:
    """Add the options that `workload_and_budget` reads; `optimizer` says what that option means."""
    command.add_argument(
        "--torch",
        metavar="MODULE:FUNCTION",
        help="a torch model instead: a function from a batch size to (module, step, inputs); with --profile "
        "its whole training step",
    )
    command.add_argument("--onnx", metavar="FILE", help="an ONNX model instead")
    command.add_argument("--batch", type=positive, metavar="N", help="images; default: the network's own")
    command.add_argument(
        "--sub-batch",
        type=positive_or_auto if auto else positive,
        metavar="auto|N" if auto else "N",
        help="images of a round; default: the batch" + ("; auto: each method's choice" if auto else ""),
    )
    command.add_argument(
        "--device",
        metavar="NAME",
        help="see pebbler devices, or your own file (.toml); default: k40; of --torch and --onnx, rtx4090",
    )
    command.add_argument(
        "--cudnn",
        metavar="VERSION",
        help="4, 5.0, 5.1, 6, 7, 8 or 9: which algorithms there are; default: of the device's first year",
    )
    command.add_argument(
        "--profile", metavar="FILE", help="measured times in place of a device and its cost model"
    )
    command.add_argument(
        "--link",
        metavar="NAME|RATE",
        help="to the host, in place of the device's: pcie3, pcie4, pcie5, nvlink or the bytes of a second, "
        "25GB/s; two with a comma between them: to the host, to the device",
    )
    command.add_argument(
        "--link-both",
        metavar="RATE|measured",
        help="what copies in both directions get together, such as 30GB/s; measured: what the profile or the "
        "device has. Default: they know nothing of each other",
    )
    command.add_argument(
        "--slowdown",
        action="store_true",
        default=None,
        help="copies slow tasks down as the profile has measured it",
    )
    command.add_argument("--budget", metavar="SIZE", help="default: the device's memory")
    command.add_argument(
        "--host-memory", metavar="SIZE", help="of the host, for copies, such as 64GiB; default: it never ends"
    )
    command.add_argument("--graph", choices=("executable", "paper"), help="default: executable")
    command.add_argument("--engines", choices=("duplex", "single"), help="copy streams; default: duplex")
    command.add_argument(
        "--weights-as-blocks",
        action="store_true",
        default=None,
        help="weights and their gradients are blocks, not resident",
    )
    command.add_argument(
        "--steady",
        action="store_true",
        default=None,
        help="one iteration of many: weights, as blocks, begin where the one before has left them",
    )
    command.add_argument("--optimizer", choices=("none", "sgd", "momentum", "adam", "adamw"), help=optimizer)
    command.add_argument(
        "--optimizer-on",
        choices=("device", "host", "choose"),
        help="where the optimizer of --steady computes; choose: each method's choice; default: device",
    )
    command.add_argument(
        "--host-bandwidth",
        metavar="RATE",
        help="what an optimizer on the host reads and writes, such as 100GB/s; default: by the device or "
        "the profile",
    )
    command.add_argument(
        "--precision",
        choices=("fp32", "bf16"),
        help="numbers of weights, feature maps and gradients; default: fp32",
    )


def add_transforms(command: argparse.ArgumentParser) -> None:
    """Add the options that transform an instance."""
    command.add_argument(
        "--inputs-on-clock", action="store_true", help="the input is on the host at first and must be copied"
    )
    command.add_argument("--recompute", action="store_true", help="forward tasks may run again")
    command.add_argument("--mask", action="store_true", help="Layrub's ReLU: signs instead of outputs")
    command.add_argument(
        "--streams",
        choices=("also", "only"),
        help="convolutions sample by sample on several streams: beside the others, or only so",
    )
    command.add_argument(
        "--parts",
        metavar="auto|SIZE",
        help="tensors in parts: of at most SIZE, 2MiB or more; auto: as flow-parts cuts them for the budget",
    )


def add_limits(command: argparse.ArgumentParser, limited: str) -> None:
    """Add a method's limits and the memory model; `limited` says what the time limit limits."""
    command.add_argument("--time-limit", type=seconds, metavar="T", help=f"{limited}; default: none")
    command.add_argument("--seed", type=seed_number, default=0, metavar="N", help="default: 0")
    add_workers(command)
    add_memory(command, "memory model")


def add_memory(command: argparse.ArgumentParser, told: str) -> None:
    """Add ``--memory``, with what it means."""
    command.add_argument(
        "--memory", choices=("contiguous", "paged"), default="contiguous", help=f"{told}; default: contiguous"
    )


def add_workers(command: argparse.ArgumentParser) -> None:
    """Add ``--workers``."""
    command.add_argument("--workers", type=threads, default=1, metavar="N", help="threads; default: 1")


def add_solver(command: argparse.ArgumentParser) -> None:
    """Add the options of the solver of linear models."""
    command.add_argument(
        "--solver", default="highs", metavar="NAME", help="of linear models: highs (default), scip, cbc, ..."
    )
    command.add_argument("--log", action="store_true", help="write the solver's log to standard error")


def name_list(text: str) -> tuple[str, ...]:
    """Read names with commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def seconds(text: str) -> float:
    """Read a time."""
    try:
        return parse_time(text)
    except PebblerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def share(text: str) -> float:
    """Read a share in per cent."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not (text.strip().endswith("%") and 0 <= value < float("inf")):
        raise argparse.ArgumentTypeError(f"'{text}' is not a share; write it as 10%")
    return value


def positive(text: str) -> int:
    """Read a whole number from 1 on."""
    return _whole(text, 1, LARGEST)


def seed_number(text: str) -> int:
    """Read a seed: every solver takes it."""
    return _whole(text, 0, LARGEST_SEED)


def threads(text: str) -> int:
    """Read a number of threads."""
    return _whole(text, 1, MOST_THREADS)


def norm(text: str) -> float:
    """Read the norm that gradients are clipped to."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above 0")
    return number


def _whole(text: str, least: int, most: int) -> int:
    number = int(text) if text.isdecimal() and len(text) <= 20 else -1
    if not least <= number <= most:
        end = "on" if most == LARGEST else f"to {most}"
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from {least} {end}")
    return number


def positive_or_auto(text: str) -> int | str:
    """Read a whole number from 1 on, or ``auto``."""
    return text if text == "auto" else positive(text)


# --- what options mean -------------------------------------------------------------------------------


def workload_and_budget(arguments: argparse.Namespace, network: str | None) -> tuple[Workload, int | str]:
    """Return the workload and the budget that the options describe; without a network, of a user's model."""
    from ..instances.devices.device import DEVICE_OF_TODAY, find_device
    from ..instances.networks.zoo import find_network
    from ..instances.profile import read_profile
    from ..instances.workload import Workload

    if arguments.profile is None:
        profile = None
        device = arguments.device or ("k40" if network is not None else DEVICE_OF_TODAY)
        graph: Graph = arguments.graph or "executable"
        memory = find_device(device).memory_bytes
    else:
        refuse_options(arguments, arguments.profile, ("device", "cudnn", "graph"))
        profile = read_profile(arguments.profile)
        device, graph, memory = profile.machine.device, profile.graph, profile.machine.memory_bytes
    settings: dict[str, Any] = {
        "device": device,
        "cudnn": arguments.cudnn,
        "graph": graph,
        "engines": arguments.engines or "duplex",
        "weights_as_blocks": bool(arguments.weights_as_blocks),
        "steady": bool(arguments.steady),
        "optimizer": arguments.optimizer,
        "profile": profile,
        "link": arguments.link,
        "host_memory": arguments.host_memory,
        "link_both": arguments.link_both,
        "slowdown": bool(arguments.slowdown),
        "optimizer_on": arguments.optimizer_on or "device",
        "host_bandwidth": arguments.host_bandwidth,
        "precision": arguments.precision or "fp32",
    }
    if network is None:
        workload = _imported(arguments, settings)
    else:
        workload = Workload(network, arguments.batch or find_network(network).batch, **settings)
    return workload, memory if arguments.budget is None else arguments.budget


def _imported(arguments: argparse.Namespace, settings: dict[str, Any]) -> Workload:
    """Return the workload of a user's torch or ONNX model."""
    from ..instances.importers.onnx_workload import read_model
    from ..instances.importers.torch_workload import TorchWorkload, find_step
    from ..instances.workload import Workload

    name = arguments.onnx if arguments.torch is None else arguments.torch
    if arguments.batch is None:
        raise PebblerError(f"{name} has no batch size of its own; give one as --batch N")
    if arguments.torch is not None and settings["profile"] is not None:
        return _measured_step(name, arguments.batch, settings)
    if arguments.torch is not None:
        return TorchWorkload(name, arguments.batch, make_step=find_step(name), **settings)
    return Workload(read_model(name), arguments.batch, **settings)


def _measured_step(name: str, batch: int, settings: dict[str, Any]) -> Workload:
    """Return the workload of a whole training step of torch, with the times of a profile."""
    from msgspec import UNSET

    from ..instances.importers.torch_workload import TorchStepWorkload, find_step

    measured = settings["profile"].training_step
    clip = None if measured is UNSET else measured.clip
    return TorchStepWorkload(name, batch, make_step=find_step(name), clip=clip, recompute=False, **settings)


def linked(instance: Instance, arguments: argparse.Namespace) -> Instance:
    """Return the instance of a file with the link that is asked for, shared or not; without one, as it is."""
    from ..instances.transforms import with_link, with_shared_link

    if arguments.link is not None:
        instance = with_link(instance, arguments.link)
    if arguments.link_both is None:
        return instance
    if arguments.link_both == "measured":
        raise PebblerError("a file has no link that was measured; give --link-both as a bandwidth")
    return with_shared_link(instance, arguments.link_both)


def instance_of_file(
    arguments: argparse.Namespace, source: str | None, others: tuple[str, ...] = ()
) -> Instance | None:
    """Return the instance of a file, with the link and the budgets that are asked for; of no file None.

    Options that describe a workload, and `others`, are refused beside a file.
    """
    from ..instances.files import read_instance
    from ..instances.memory import parse_budget, with_budget, with_host_memory

    if source is None:
        return None
    _refuse_model(source)
    if not is_file(source):
        return None
    refuse_options(arguments, source, (*WORKLOAD_OPTIONS, *others))
    instance = linked(read_instance(source), arguments)
    if arguments.budget is not None:
        instance = with_budget(instance, parse_budget(arguments.budget, instance))
    if arguments.host_memory is not None:
        instance = with_host_memory(instance, arguments.host_memory)
    return instance


def is_file(source: str) -> bool:
    """Whether a name is that of a file; a folder, such as one of results, may be called like a network."""
    if source.endswith(".json"):
        return True
    if not Path(source).is_dir():
        return Path(source).exists()
    from ..instances.networks.zoo import find_network

    try:
        find_network(source)
    except PebblerError:
        return True
    return False


def require_network(source: str | None, what: str) -> None:
    """Refuse a file where a network is needed: `what` asks for other batches, and an instance has one."""
    if source is not None:
        _refuse_model(source)
        if is_file(source):
            raise PebblerError(
                f"{source} is a file, and {what} asks for other batches than that of an instance; "
                "give a network, --torch or --onnx"
            )


def _refuse_model(source: str) -> None:
    """Refuse a file of a model where a network or an instance is named, and say which option takes it."""
    kind = Path(source).suffix
    if kind == ".onnx":
        raise PebblerError(f"{source} is named like an ONNX model; give it as --onnx {source}")
    if kind in (".pt", ".pth", ".py"):
        raise PebblerError(
            f"{source} is named like a file of torch; give a function that builds the model as "
            "--torch MODULE:FUNCTION"
        )


def require_one(arguments: argparse.Namespace, what: str, *names: str, example: str) -> None:
    """Refuse anything but exactly one of these arguments."""
    given = sum(getattr(arguments, name) is not None for name in names)
    if given != 1:
        known = {"network": "NETWORK", "network_or_file": "NETWORK|FILE", "foreign": "--from FILE"}
        choices = [known.get(name, f"--{name}") for name in names]
        told = f"{what} is made from one thing; give {', '.join(choices[:-1])} or {choices[-1]}"
        raise PebblerError(told if given else f"{told}, such as {example}; pebbler networks lists them")


def refuse_options(arguments: argparse.Namespace, source: str, names: Sequence[str]) -> None:
    """Refuse options that something else settles."""
    for name in names:
        if getattr(arguments, name) is not None:
            option = "--" + name.replace("_", "-")
            raise PebblerError(f"{source} settles {option}; leave the option out")


def require_one_gpu(instance: Instance, command: str) -> None:
    """Refuse an instance with several GPUs."""
    if instance.gpus > 1:
        raise PebblerError(
            f"{instance.name} has {instance.gpus} GPUs, and {command} takes an instance of one"
        )


def require_place(path: Path) -> None:
    """Refuse a file that cannot be written, before the work begins and not after it."""
    if path.is_dir() or not Path(os.path.realpath(path)).parent.is_dir():
        raise PebblerError(f"{path} cannot be written: it is a folder or lies in none that exists")


def require_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, before the work begins and not after it."""
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise PebblerError(f"{path} cannot be a folder: {existing} is a file")


def print_json(value: object) -> None:
    """Print one JSON object."""
    from msgspec import json

    print(json.format(json.encode(value), indent=2).decode())
