"""The instances of an iteration on several GPUs: equal portions, and gradients in the last round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from ..arguments import require_kind
from ..devices.device import find_device
from ..errors import PebblerError
from ..instance import Instance
from ..memory import ideal_ns
from ..workload import BATCH_NORM_NOTE, Workload, require_workload
from .cluster import CORE_BYTES_PER_SECOND, HOST_BYTES_PER_SECOND, SECOND, Cluster, Gradient


def several_gpus(
    workload: Workload,
    gpus: int,
    *,
    nodes: int = 1,
    bus: int | None = None,
    cores: int = 1,
    network: int | None = None,
    nvlink: int | None = None,
) -> Cluster:
    """Return a cluster of GPUs of a workload's device, without gradients.

    Parameters
    ----------
    workload
        The workload, whose device or profile has the rate of a link to the host.
    gpus, nodes
        Number of GPUs, and number of nodes.
    bus, network, nvlink
        Rates in bytes per second. By default, the bus is as fast as one GPU's link, and there is no NVLink.
    cores
        Number of a node's cores that add up gradients.

    Returns
    -------
    Cluster
        The GPUs and their connections, for `cluster_instances`.

    Raises
    ------
    PebblerError
        When the numbers do not fit each other.
    """
    require_workload(workload)
    if bus is None:
        bus = _link_rate(workload)
    return Cluster(
        gpus=gpus,
        nodes=nodes,
        bus_bytes_per_second=bus,
        cores=cores,
        core_bytes_per_second=CORE_BYTES_PER_SECOND,
        host_bytes_per_second=HOST_BYTES_PER_SECOND,
        network_bytes_per_second=network,
        nvlink_bytes_per_second=nvlink,
    )


def _link_rate(workload: Workload) -> int:
    """Return the bytes per second of a GPU's slower link."""
    if workload.profile is None:
        device = find_device(workload.device)
        return int(min(device.offload_bandwidth, device.prefetch_bandwidth))
    sample = 2**30
    times = workload.profile.copy_ns(sample, "offload"), workload.profile.copy_ns(sample, "prefetch")
    return sample * SECOND // max(times)


def portion(workload: Workload, gpus: int) -> Workload:
    """Return the workload of one of several GPUs: an equal portion of the batch, rounded up to whole images.

    Raises
    ------
    PebblerError
        When there are more GPUs than images, or when weights are blocks, as these lie on the host between
        rounds, or carried.
    """
    require_workload(workload)
    if gpus > workload.batch:
        raise PebblerError(f"{gpus} GPUs share a batch of {workload.batch}; give each at least one image")
    if workload.steady:
        raise PebblerError("a steady state of several GPUs cannot be asked for yet; leave --steady out")
    if workload.weights_as_blocks:
        raise PebblerError("several GPUs keep their weights; leave --weights-as-blocks out")
    return replace(workload, batch=-(-workload.batch // gpus))


def cluster_instances(
    workload: Workload, cluster: Cluster, budget: int | str, sub_batch: int | None = None
) -> tuple[Instance, ...]:
    """Return the instances that make up one iteration of a workload on several GPUs.

    Every GPU executes all of them on its portion. If portions are not equal, all GPUs are treated as if they
    had the largest. Gradients are added up on each GPU first, and between GPUs in the last round only, which
    is an instance of its own (moDNN, TPDS 2019, section 6.2).

    Parameters
    ----------
    workload
        Network, whole batch and device.
    cluster
        The GPUs and their connections, without gradients.
    budget
        Budget of each GPU: bytes or a text. A share of the peak or a multiple of the minimum refers to
        `sub_batch`.
    sub_batch
        Images of a round of one GPU; by default its portion.

    Returns
    -------
    tuple of Instance
        One instance for each kind of round; the last one has the gradients.

    Raises
    ------
    PebblerError
        When the network, the device, the portions, the sub-batch or the budget is wrong.
    """
    require_kind("cluster", cluster, Cluster, "make one with several_gpus(workload, gpus)")
    share = portion(workload, cluster.gpus)
    whole = workload.round(workload.batch, 1)
    instances: list[Instance] = []
    for size, rounds, is_last in _rounds(share, share.batch if sub_batch is None else sub_batch):
        limit = instances[0].budget_bytes if instances else budget
        instance = share.instance(limit, size, rounds=rounds)
        gradients = gradients_of(share, size) if is_last else ()
        batch_norm = share.described().has_batch_norm and size < workload.batch
        origin = msgspec.structs.replace(
            instance.made_from,
            batch=workload.batch,
            one_gpu_ideal_ns=ideal_ns(whole),
            notes=BATCH_NORM_NOTE if batch_norm else instance.made_from.notes,
        )
        instances.append(
            msgspec.structs.replace(
                instance,
                name=f"{instance.name}-gpus{cluster.gpus}" + ("-last" if is_last and instances else ""),
                cluster=msgspec.structs.replace(cluster, gradients=gradients),
                origin=origin,
            )
        )
    return tuple(instances)


def _rounds(share: Workload, sub_batch: int) -> Iterator[tuple[int, int, bool]]:
    """Return sub-batch and number of the rounds of a portion, with the last round apart."""
    *full, (size, rounds) = share.rounds(sub_batch)
    yield from ((size, rounds, False) for size, rounds in full)
    if rounds > 1:
        yield size, rounds - 1, False
    yield size, 1, True


def gradients_of(workload: Workload, sub_batch: int) -> tuple[Gradient, ...]:
    """Return the gradients of a round, in the order in which they are complete.

    If gradient and weights are blocks, their tasks are those that write the gradient and read the weights.
    """
    blocks = replace(workload, weights_as_blocks=True).round(sub_batch, 1)
    index = {block.name: d for d, block in enumerate(blocks.blocks)}
    gradients = []
    for name, d in index.items():
        if name.startswith("dW("):
            weights = index[name.removeprefix("d")]
            sent, returned = blocks.blocks[d].offload_ns, blocks.blocks[weights].prefetch_ns
            assert sent is not None, "gradients that are blocks can be copied"
            assert returned is not None, "weights that are blocks can be copied"
            gradients.append(
                Gradient(
                    name=name,
                    bytes=blocks.blocks[d].bytes,
                    offload_ns=sent,
                    prefetch_ns=returned,
                    produced_by=blocks.writers[d][-1],
                    used_by=blocks.uses[weights],
                )
            )
    return tuple(sorted(gradients, key=lambda gradient: gradient.produced_by))
