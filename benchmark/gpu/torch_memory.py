"""Training iterations in torch under a memory limit, for comparison with the means of today's users.

There are three ways: ``plain``; ``save_on_cpu``, which keeps the data for the backward pass in pinned host
memory
(torch.autograd.graph.save_on_cpu); ``checkpoint``, which recomputes segments of the network
(torch.utils.checkpoint.checkpoint_sequential; Chen et al. 2016), about as many as the root of its modules.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from ...instances.errors import PebblerError
from ...instances.networks.network import Layer, Network
from ...instances.networks.zoo import find_network
from .torch_models import ResNet


def require_gpu() -> None:
    """Refuse to continue if torch finds no GPU.

    Raises
    ------
    PebblerError
        With the reason, if torch gives one.
    """
    if torch.version.cuda is None:
        raise PebblerError(f"torch {torch.__version__} is built without CUDA; install one that has it")
    if not torch.cuda.is_available():
        raise PebblerError("torch finds no CUDA device; leave out the stages that need one")


def set_arithmetic(arithmetic: str) -> None:
    """Let products and convolutions round their inputs to TF32 (``tf32``), or not (``fp32``).

    By default torch rounds in convolutions and not in products; pebbler never does.
    """
    torch.backends.cuda.matmul.allow_tf32 = arithmetic == "tf32"
    torch.backends.cudnn.allow_tf32 = arithmetic == "tf32"


def iteration(
    network: str,
    batch: int,
    budget_bytes: int,
    way: str,
    arithmetic: str = "fp32",
    *,
    repeat: int,
    device: str = "cuda",
) -> dict[str, Any]:
    """Measure iterations, forward and backward, with torch's caching allocator limited to a budget.

    Parameters
    ----------
    network, batch
        A network of the zoo, and the number of images of an iteration.
    budget_bytes
        Bytes that the allocator may use.
    way
        ``plain``, ``save_on_cpu`` or ``checkpoint``.
    arithmetic
        ``fp32`` or ``tf32``: see `set_arithmetic`.
    repeat
        Number of timed iterations, after a first one.
    device
        Name of the device in torch.

    Returns
    -------
    dict
        ``way``, ``arithmetic``, and torch's settings of it (``tf32_products``, ``tf32_convolutions``),
        ``status`` (``done`` or ``out of memory``), ``times_ns`` of the iterations, ``peak_bytes`` of
        allocated memory, ``budget_bytes``, ``torch`` and ``device``.

    Raises
    ------
    PebblerError
        When there is no CUDA device, or no such network in torch here.
    """
    if device == "cuda":
        require_gpu()
    set_arithmetic(arithmetic)
    torch.manual_seed(0)
    module = sequential(find_network(network)).to(device)
    shape = find_network(network).layers[0].shape
    images = torch.randn(batch, *shape, device=device)
    labels = torch.randint(10, (batch,), device=device)
    found: dict[str, Any] = {
        "way": way,
        "arithmetic": arithmetic,
        "tf32_products": torch.backends.cuda.matmul.allow_tf32,
        "tf32_convolutions": torch.backends.cudnn.allow_tf32,
        "budget_bytes": budget_bytes,
        "torch": str(torch.__version__),
        "device": device,
    }
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        torch.cuda.empty_cache()  # what a model before this one has left
        share = budget_bytes / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0))
        torch.cuda.reset_peak_memory_stats()
    times: list[int] = []
    try:
        for index in range(repeat + 1):
            begin = time.perf_counter_ns()
            module.zero_grad(set_to_none=False)
            _step(module, images, labels, way)
            if device == "cuda":
                torch.cuda.synchronize()
            if index:  # the first one warms up
                times.append(time.perf_counter_ns() - begin)
        status = "done"
    except torch.OutOfMemoryError:
        status, times = "out of memory", []
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {**found, "status": status, "times_ns": times, "peak_bytes": peak}


def sequential(network: Network) -> nn.Sequential:
    """Return a network as torch's own layers: a chain, or ResNet-50.

    Raises
    ------
    PebblerError
        When it is neither.
    """
    if network.name == "resnet50":
        return ResNet((3, 4, 6, 3), 64, 1000)
    modules: list[nn.Module] = []
    for before, layer in zip(network.layers, network.layers[1:], strict=False):
        if layer.inputs != (before.name,):
            raise PebblerError(f"'{network.name}' is no chain of layers; there is no torch model of it here")
        modules += _modules(network, before, layer)
    return nn.Sequential(*modules)


def _step(module: nn.Sequential, images: torch.Tensor, labels: torch.Tensor, way: str) -> None:
    saved: Any = contextlib.nullcontext()
    if way == "save_on_cpu":
        saved = torch.autograd.graph.save_on_cpu(pin_memory=images.is_cuda)
    with saved:
        if way == "checkpoint":
            segments = max(1, math.isqrt(len(module)))
            scores = checkpoint_sequential(module, segments, images, use_reentrant=False)
        else:
            scores = module(images)
        loss = F.cross_entropy(scores, labels)
    loss.backward()


def _modules(network: Network, before: Layer, layer: Layer) -> list[nn.Module]:
    source = before.shape
    if layer.kind.name == "conv":
        sizes = (source.channels, layer.shape.channels, layer.kernel, layer.stride, layer.pad)
        made: list[nn.Module] = [nn.Conv2d(*sizes, groups=layer.groups)]
    elif layer.kind.name == "fc":
        made = [nn.Flatten(), nn.Linear(source.elements, layer.shape.channels)]
    elif layer.kind.name == "maxpool":
        made = [nn.MaxPool2d(layer.kernel, layer.stride, layer.pad, ceil_mode=_is_ceil(before, layer))]
    elif layer.kind.name == "softmax":
        made = []
    else:
        raise PebblerError(f"'{network.name}' has a layer of kind '{layer.kind}'; torch's model has none")
    return [*made, nn.ReLU(inplace=True)] if layer.relu else made


def _is_ceil(before: Layer, layer: Layer) -> bool:
    """Return whether the last window reaches over the border."""
    return (before.shape.height + 2 * layer.pad - layer.kernel) // layer.stride + 1 < layer.shape.height
