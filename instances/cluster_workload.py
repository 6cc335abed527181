"""The instances of an iteration on several GPUs: equal portions of a batch, gradients in the last round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from .cluster import Cluster, Gradient
from .errors import PebblerError
from .instance import Instance
from .workload import BATCH_NORM_NOTE, Workload


def portion(workload: Workload, gpus: int) -> Workload:
    """Return what one of several GPUs trains on: an equal portion of the batch, rounded up to whole images.

    Raises
    ------
    PebblerError
        When there are more GPUs than images, or weights are blocks: then they lie on the host between rounds.
    """
    if gpus > workload.batch:
        raise PebblerError(f"{gpus} GPUs share a batch of {workload.batch}; give each at least one image")
    if workload.weights_as_blocks:
        raise PebblerError("several GPUs keep their weights; leave --weights-as-blocks out")
    return replace(workload, batch=-(-workload.batch // gpus))


def cluster_instances(
    workload: Workload, cluster: Cluster, budget: int | str, sub_batch: int | None = None
) -> tuple[Instance, ...]:
    """Return the instances that make up one iteration of a workload on several GPUs.

    Every GPU executes all of them on its portion; where portions are not equal, as if all had the largest.
    Gradients are added up on each GPU, and between them in the last round only, which is an instance of its
    own (moDNN, TPDS 2019, section 6.2).

    Parameters
    ----------
    workload
        Network, whole batch and device.
    cluster
        The GPUs and what they share, without gradients.
    budget
        Of each GPU: bytes or a text; a text that refers to the peak or the minimum does so at `sub_batch`.
    sub_batch
        Images of a round of one GPU; by default its portion.

    Raises
    ------
    PebblerError
        When the network, the device, the portions, the sub-batch or the budget is wrong.
    """
    share = portion(workload, cluster.gpus)
    instances: list[Instance] = []
    for size, rounds, is_last in _rounds(share, share.batch if sub_batch is None else sub_batch):
        limit = instances[0].budget_bytes if instances else budget
        instance = share.instance(limit, size, rounds=rounds)
        gradients = gradients_of(share, size) if is_last else ()
        meta = {**instance.meta, "batch": workload.batch, "gpus": cluster.gpus}
        if share.described().has_batch_norm and size < workload.batch:
            meta["notes"] = BATCH_NORM_NOTE
        instances.append(
            msgspec.structs.replace(
                instance,
                name=f"{instance.name}-gpus{cluster.gpus}" + ("-last" if is_last and instances else ""),
                cluster=msgspec.structs.replace(cluster, gradients=gradients),
                meta=meta,
            )
        )
    return tuple(instances)


def _rounds(share: Workload, sub_batch: int) -> Iterator[tuple[int, int, bool]]:
    """Sub-batch and number of the rounds of a portion, the last of all apart."""
    *full, (size, rounds) = share.rounds(sub_batch)
    yield from ((size, rounds, False) for size, rounds in full)
    if rounds > 1:
        yield size, rounds - 1, False
    yield size, 1, True


def gradients_of(workload: Workload, sub_batch: int) -> tuple[Gradient, ...]:
    """Return the gradients of a round, in the order in which they are complete.

    Their tasks are those that write a gradient and read the weights where both are blocks.
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
