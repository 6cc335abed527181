"""Options of several GPUs, and the instances that they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..instances.errors import PebblerError
from ..instances.units import parse_rate
from .options import positive, refuse_options

if TYPE_CHECKING:
    from ..instances.instance import Instance
    from ..instances.workload import Workload

GPU_OPTIONS = ("nodes", "bus", "cores", "network", "nvlink")
"""Options that need several GPUs."""


def add_gpus(command: argparse.ArgumentParser) -> None:
    """Add the options that `gpu_instances` reads."""
    command.add_argument(
        "--gpus", type=positive, metavar="M", help="share the batch equally among M GPUs; default: 1"
    )
    command.add_argument(
        "--nodes", type=positive, metavar="N", help="that the GPUs are spread over; default: 1"
    )
    command.add_argument(
        "--bus",
        type=rate,
        metavar="RATE",
        help="bytes of a second, such as 12GB, that the GPUs of a node share in a direction; "
        "default: those of one GPU's link",
    )
    command.add_argument(
        "--cores", type=positive, metavar="N", help="of a node that add up gradients; default: 1"
    )
    command.add_argument(
        "--network", type=rate, metavar="RATE", help="of a node's link to others, such as 1Gbps"
    )
    command.add_argument(
        "--nvlink", type=rate, metavar="RATE", help="of a ring that adds up gradients instead of the host"
    )


def rate(text: str) -> int:
    """Read a bandwidth."""
    try:
        return parse_rate(text)
    except PebblerError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def gpu_instances(
    arguments: argparse.Namespace, workload: Workload, budget: int | str
) -> tuple[Instance, ...]:
    """Return the instances of an iteration on one GPU, or on several."""
    from ..benchmark.comparison.plan import instances_of
    from ..instances.gpus.workload import cluster_instances, several_gpus

    if (arguments.gpus or 1) == 1:
        refuse_options(arguments, "one GPU", GPU_OPTIONS)
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
