"""The computation of each task of a network, in words that every backend understands.

All numbers are single precision, images in the order NCHW without gaps; a layer's weights are one array, its
biases at the end. The kinds compute, with N images (`Kernel.images`) of a round:

| kind | forward | backward |
|---|---|---|
| conv | ``y[o] = b[o] + sum_c,i,j w[o,c,i,j] x[c, s h + i - p, s v + j - p]``, w as (Cout, Cin / g, k, k) | |
| deconv | the transpose of a convolution from y to x, w as (Cin, Cout, k, k), plus b | a convolution |
| fc | ``y = w x + b``, w as (outputs, inputs) | |
| linear | the same at every position, with the channels of all inputs | |
| maxpool | greatest x in the window, of those that exist | dy goes to the first in the window that equals y |
| avgpool | mean of the x in the window that exist | |
| lrn | ``y = x / (k + alpha / n sum x^2)^beta`` over n neighbouring channels (`LRN`) | |
| bn | ``y = w (x - mean) / sqrt(variance + epsilon) + b`` over N, H and W; saved: means, then 1 / sqrt | |
| norm | the same over the channels at each position; saved for each image: means, then 1 / sqrt | |
| scale | ``y = w x`` with a factor a channel | |
| gelu | ``y = x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`` (Hendrycks and Gimpel 2016) | |
| add | sum of the inputs, in order; one of 1 x 1 counts at every position | dy to each dx that it has |
| concat | the inputs' channels, in their order | |
| dropout | ``y = 2 x`` where the mask is 1, else 0; the mask is a byte, see `keep` | the same on dy |
| softmax | probabilities y over the channels at each position; ``losses[n] = -mean of log y[label]`` | |
| loss | ``d^2 / 2`` at label 1, ``max(1 - d, 0)^2 / 2`` at 0; d: distance of the two inputs | |
| resample | see `resampling` | its transpose |

and backward of softmax is ``dx = (y - 1 at the label) / (batch x positions)``, with `Kernel.batch`, and that
of a loss (contrastive, Hadsell et al. 2006) its derivative over that: gradients are those of the mean loss of
the whole batch, whatever the rounds. Roles: ``FP`` computes y, then ``max(y, 0)`` if the layer has a ReLU;
``BP2`` adds to dw; ``BP1`` computes every dx from dy, and dw of what has no BP2; ``relu`` sets dy to 0 where
y (or the sign in ``signs``) is not above 0; ``copy`` copies x0 to y; ``OPT`` updates w, value by value. What
there is beside w and dw tells by which optimizer:

| optimizer | keeps | update |
|---|---|---|
| sgd | | ``w -= RATE dw`` |
| momentum | m | ``m = MOMENTUM m + dw``, then ``w -= RATE m`` |
| adam | m, v | ``m = b m + (1 - b) dw``, ``v = c v + (1 - c) dw^2``, ``w -= r m / (sqrt(v) + e)`` |
| adamw | m, v | ``w -= r d w`` first, with the decay d of `Kernel.decay`, then as adam |

with ``ADAM`` = (r, b, c, e) of Kingma and Ba (2015), without their correction of the bias in the first
iterations, for which a kernel would have to know how many there have been. m and v start at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...instances.errors import PebblerError
from ...instances.networks.network import Layer, Network, Shape
from ...instances.networks.taskgraph import LayerTask, Role, TaskGraph

LRN = (5, 1e-4, 0.75, 1.0)
"""The numbers n, alpha, beta and k of local response normalisation (Krizhevsky et al. 2012 as in Caffe, k =
1).
"""

EPSILON = 1e-5
"""Number that is added to the variance in batch norm."""

RATE = 0.01
"""Learning rate of gradient descent, with and without momentum."""

MOMENTUM = 0.9
"""Share of its velocity that momentum keeps."""

ADAM = (1e-3, 0.9, 0.999, 1e-8)
"""Adam's learning rate, the shares of both moments that it keeps, and what it adds to a root."""

DECAY = 0.01
"""How much AdamW takes off weights at each step, before the learning rate."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The computation of a task, with its algorithm.

    Attributes
    ----------
    task
        Name of the task.
    layer, role
        The layer, and the pass or copy that is computed.
    sources
        Shapes of the layer's inputs.
    images, batch
        Number of images of a round, and of all rounds together.
    parameters
        Number of values of w: the layer's own, or those of the layer that it shares weights with.
    values
        Number of values of a copy.
    key
        Key of the layer's dropout mask.
    operands
        The name of each block or array that it touches, by a word: ``x0``, ``x1``, ..., ``y``, ``dy``,
        ``dx0``, ..., ``w``,
        ``dw``, ``m`` and ``v`` (what an optimizer keeps), ``mask`` (bytes), ``saved``,
        ``signs`` (bytes: y > 0, written by FP, read by relu), ``labels``
        (int32, of the whole batch: one a position) and ``losses`` (of the whole batch: one an image). Two
        words have one name if the computation works in place.
    decay
        Of an update by AdamW: how much it takes off the weights; of anything else 0.
    adds
        Words of the results that are added to; other results are written.
    algorithm, workspace_bytes, on
        Algorithm and workspace of the instance, and the side on which it runs; the word of the workspace is
        ``workspace``.
    """

    task: str
    layer: Layer
    role: Role
    sources: tuple[Shape, ...]
    images: int
    batch: int
    parameters: int
    values: int
    key: int
    operands: Mapping[str, str]
    adds: frozenset[str]
    decay: float = 0.0
    algorithm: str = ""
    workspace_bytes: int = 0
    on: Literal["device", "host"] = "device"

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies by weights, or sums up their gradient by a product."""
        return self.layer.kind.multiplies and self.role in ("FP", "BP1", "BP2")

    @property
    def kind(self) -> str:
        """Name of the layer's kind."""
        return self.layer.kind.name


def kernels_of(
    graph: TaskGraph, batch: int, signs: frozenset[str] = frozenset(), *, decay: float = 0.0
) -> list[Kernel]:
    """Return the computation of each task of an executable graph, without algorithms.

    Parameters
    ----------
    graph
        The tasks of a round.
    batch
        Images of all rounds together.
    signs
        Names of the layers whose ReLU keeps signs instead of y (Layrub, TACO 2018, section 4.2).
    decay
        How much updates take off the weights, by AdamW.

    Raises
    ------
    PebblerError
        When a layer computes something else than the table above says of its kind.
    """
    for layer in graph.network.layers:
        if layer.kind.name in _DESCRIBED and not _DESCRIBED[layer.kind.name](layer):
            raise PebblerError(
                f"network '{graph.network.name}', layer '{layer.name}': there are no kernels for this "
                f"'{layer.kind}'; only convolutional networks can be run"
            )
    return [_kernel(graph, task, batch, signs, decay) for task in graph.tasks]


def resident(network: Network, batch: int) -> Iterator[tuple[str, int]]:
    """Return names and bytes of the arrays beside blocks: weights, their gradients, labels and losses."""
    for layer in network.layers:
        if layer.parameters:
            yield f"W({layer.name})", 4 * layer.parameters
            yield f"dW({layer.name})", 4 * layer.parameters
        if layer.kind.is_loss:
            yield f"labels({layer.name})", 4 * batch * layer.shape.positions
            yield f"losses({layer.name})", 4 * batch


def keep(key: int, first: int, count: int) -> NDArray[np.uint8]:
    """Return a dropout mask that begins at value `first` of the batch: 1 where a value is kept.

    The mask is a hash of key and index (the finaliser of MurmurHash3, Appleby 2011), so that it depends
    neither on the sub-batch nor on the backend: with ``h = index x 0x9E3779B9 + key`` in 32 bits,
    ``h ^= h >> 16; h *= 0x85EBCA6B; h ^= h >> 13; h *= 0xC2B2AE35; h ^= h >> 16``, kept where ``h >> 31``.
    """
    h = np.arange(first, first + count, dtype=np.uint64).astype(np.uint32)
    h *= np.uint32(0x9E3779B9)
    h += np.uint32(key)
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return (h >> np.uint32(31)).astype(np.uint8)


def resampling(source: Shape, target: Shape) -> tuple[Literal["crop", "repeat", "subsample"], int, int]:
    """Return the fixed linear map from one shape to the other, and its two numbers a and b.

    ``crop``: y[c, h, v] = x[c, h + a, v + b]; ``repeat``: x[c, h // a, v // b]; ``subsample``:
    x[c, a h, b v], and 0 in channels that x does not have (He et al. 2016, option A).

    Raises
    ------
    PebblerError
        When the map is none of these.
    """
    rows, columns = target.height, target.width
    if target.channels > source.channels and source.height % rows == 0 == source.width % columns:
        return "subsample", source.height // rows, source.width // columns
    if target.channels == source.channels and rows <= source.height and columns <= source.width:
        return "crop", (source.height - rows) // 2, (source.width - columns) // 2
    if target.channels == source.channels and rows % source.height == 0 == columns % source.width:
        return "repeat", rows // source.height, columns // source.width
    raise PebblerError(f"there are no kernels for a resampling of {tuple(source)} to {tuple(target)}")


_DESCRIBED: dict[str, Callable[[Layer], bool]] = {
    "norm": lambda layer: layer.saved == 2 * layer.shape.positions,  # not over groups, not a mean square
    "loss": lambda layer: len(layer.inputs) == 2,
}
"""Which layers of a kind compute what the table above says; all, where nothing is said."""


def _kernel(graph: TaskGraph, task: LayerTask, batch: int, signs: frozenset[str], decay: float) -> Kernel:
    layer = task.layer
    operands = _operands(graph, task, layer.name in signs)
    written = {graph.blocks[d].name for d in task.outputs}
    in_place = {name for word, name in operands.items() if word in ("x0", "y", "dy")}
    adds = {
        word
        for word, name in operands.items()
        if (word.startswith("dx") or word == "dw") and name not in written and name not in in_place
    }
    return Kernel(
        task=task.name,
        layer=layer,
        role=task.role,
        sources=tuple(graph.network[x].shape for x in layer.inputs),
        images=graph.batch,
        batch=batch,
        parameters=(layer if layer.tied is None else graph.network[layer.tied]).parameters,
        values=graph.blocks[task.outputs[0]].bytes // 4 if task.role == "copy" else 0,
        key=graph.network.layers.index(layer),
        operands=MappingProxyType(operands),
        adds=frozenset(adds),
        decay=decay if task.role == "OPT" else 0.0,
    )


def _operands(graph: TaskGraph, task: LayerTask, has_signs: bool) -> dict[str, str]:
    """Give the blocks of a task their words, in the order of `task_graph`."""
    layer = task.layer
    inputs, outputs, updates = (
        [graph.blocks[d].name for d in blocks] for blocks in (task.inputs, task.outputs, task.updates)
    )
    found: dict[str, str] = {}
    if task.role == "copy":
        return {"x0": inputs[0], "y": outputs[0]}
    if task.role == "relu":
        mask = {"signs": f"M({layer.name})"} if has_signs else {"y": inputs[0]}
        return mask | {"dy": updates[0]}
    if task.role == "OPT":
        return {"dw": inputs[0], **dict(zip(("w", "m", "v"), updates, strict=False))}
    names = iter(inputs)
    owner = layer.name if layer.tied is None else layer.tied
    if layer.parameters or layer.tied is not None:
        if task.role != "BP2":
            found["w"] = f"W({owner})"
        if task.role == "BP2" or (task.role == "BP1" and not layer.kind.has_weight_task):
            found["dw"] = f"dW({owner})"
    if layer.kind.is_loss:
        found["labels"] = f"labels({layer.name})"
    if layer.kind.saves == "mask":
        found["mask"] = f"M({layer.name})"
    elif layer.kind.saves != "nothing" and task.role != "BP2":
        found["saved"] = f"S({layer.name})"
    if task.role == "FP":
        for i in range(len(layer.inputs)):
            found[f"x{i}"] = updates[0] if task.in_place else next(names)
        found["y"] = updates[0] if task.in_place else outputs[0]
        if layer.kind.is_loss:
            found["losses"] = f"losses({layer.name})"
        if has_signs:
            found["signs"] = f"M({layer.name})"
        return found
    if task.role == "BP2":
        for i in range(len(layer.inputs)):
            found[f"x{i}"] = next(names)
        return found | {"dy": next(names)}
    if not layer.kind.is_loss:
        found["dy"] = updates[0] if task.in_place else next(names)
    if layer.kind.reads_inputs:
        for i in range(len(layer.inputs)):
            found[f"x{i}"] = next(names)
    if layer.kind.reads_output:
        found["y"] = next(names)
    for i, target in enumerate(task.targets):
        if target is not None:
            found[f"dx{i}"] = graph.blocks[target].name
    return found
