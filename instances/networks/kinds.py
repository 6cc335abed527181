"""Kinds of layers: one record says all that task graphs, costs, methods and executors ask about a kind.

`KINDS` has the kinds of the zoo; `register_kind` enters another. What computes a kind is with the backends:
each has a table of kernels by kind, and a kind can be executed where there is an entry for it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from ..errors import PebblerError
from ..origin import Graph

Operation = Literal[
    "convolution",
    "transposed-convolution",
    "dense",
    "positionwise",
    "grouped",
    "lookup",
    "product",
    "memory",
]
Saved = Literal["nothing", "mask", "statistics", "values"]
Labels = Literal["none", "classes", "pairs"]
Group = Literal["convolution", "join", "classifier", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A kind of layers.

    Attributes
    ----------
    name
        Unique; instance files have it as the kind of a layer.
    summary
        What it computes, in a few words.
    operation
        What most of its work is. It decides the formula of the cost, and how weights lie:

        - ``convolution``: weights of (channels, channels of a group, kernel, kernel);
        - ``transposed-convolution``: (channels of the input, channels, kernel, kernel);
        - ``dense``: one matrix product, (outputs, inputs);
        - ``positionwise``: one at every position, (channels, channels of all inputs);
        - ``grouped``: the same with weights of its own for each of `Layer.groups` equal parts of the
          positions, (channels of all groups, channels of the input);
        - ``lookup``: rows of a table, (entries, channels);
        - ``product``: a product of its inputs' values, `Layer.products` multiply-adds; no such weights;
        - ``memory``: nothing that takes longer than to move the data; no such weights.

        Of the first six the gradient of the weights is a task of its own, BP2. What others train they
        compute in BP1.
    reads_inputs, reads_output
        Whether BP1 reads what the forward pass has read, and what it has written.
    saves
        What the forward pass keeps for BP1 beside its output: a ``mask`` of a byte a value, ``statistics``,
        two numbers a channel (which the papers' accounting leaves out), or `Layer.saved` ``values`` an image.
    in_place
        Graphs in which it overwrites its input, where nobody else reads that.
    in_place_after_relu
        Whether it may do so where a ReLU made its input: the sign can still be told.
    passes_on
        Whether the gradient of its inputs is that of its output as it is, so that no task computes it.
    guided
        Whether its last input only says where the others' values go, so that it gets no gradient.
    labels
        Of a loss, which ends a path: ``classes``, one a position, or ``pairs``, 0 or 1 an image. No other
        kind has labels.
    is_input
        Whether it is data that no task writes.
    couples_images
        Whether a result depends on the other images of the round.
    scales
        Whether its first parameters are a factor a channel, which start at 1. Whatever else a ``memory`` or
        ``product`` kind trains starts at 0.
    extra_passes
        How often as many bytes as its output has are moved beyond reading operands and writing results once,
        forward and backward.
    backward_products
        Of a ``product``: multiply-adds of BP1, relative to those of the forward pass.
    group
        What the papers' policies treat it as: vDNN leaves a ``classifier`` alone, and offloads and prefetches
        around each ``convolution``; SuperNeurons offloads what a ``join`` makes.
    expensive
        Whether SuperNeurons does not compute its output again.

    Raises
    ------
    PebblerError
        When attributes contradict each other.
    """

    name: str
    summary: str
    operation: Operation = "memory"
    reads_inputs: bool = False
    reads_output: bool = False
    saves: Saved = "nothing"
    in_place: tuple[Graph, ...] = ()
    in_place_after_relu: bool = False
    passes_on: bool = False
    guided: bool = False
    labels: Labels = "none"
    is_input: bool = False
    couples_images: bool = False
    scales: bool = False
    extra_passes: tuple[int, int] = (0, 0)
    backward_products: Fraction = Fraction(2)
    group: Group = "other"
    expensive: bool = False

    def __post_init__(self) -> None:
        if "executable" in self.in_place and self.reads_inputs:
            raise PebblerError(
                f"layer kind '{self.name}': BP1 reads an input that is overwritten; leave out one of the two"
            )
        if self.is_loss and self.in_place:
            raise PebblerError(f"layer kind '{self.name}': a loss cannot be in place; leave out 'in_place'")
        if self.scales and self.has_weight_task:
            raise PebblerError(
                f"layer kind '{self.name}': weights of the operation '{self.operation}' are no scales; "
                "leave out 'scales'"
            )

    def __str__(self) -> str:
        """Return its name."""
        return self.name

    @property
    def is_loss(self) -> bool:
        """Whether it ends a path."""
        return self.labels != "none"

    @property
    def has_weight_task(self) -> bool:
        """Whether the gradient of its weights is a task of its own, BP2."""
        return self.operation not in ("product", "memory")

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies its input by weights: what keeps a GPU busy."""
        return self.has_weight_task and self.operation != "lookup"


_ALL: tuple[LayerKind, ...] = (
    LayerKind(name="input", summary="data", is_input=True),
    LayerKind(
        name="conv", summary="convolution", operation="convolution", group="convolution", expensive=True
    ),
    LayerKind(
        name="deconv", summary="transposed convolution", operation="transposed-convolution", expensive=True
    ),
    LayerKind(name="fc", summary="fully connected", operation="dense", group="classifier", expensive=True),
    LayerKind(name="maxpool", summary="max pooling", reads_inputs=True, reads_output=True),
    LayerKind(name="avgpool", summary="average pooling"),
    LayerKind(name="lrn", summary="local response normalisation", reads_inputs=True, reads_output=True),
    LayerKind(
        name="bn",
        summary="batch norm",
        reads_inputs=True,
        saves="statistics",
        in_place=("paper",),
        couples_images=True,
        scales=True,
        extra_passes=(1, 2),  # a pass for the statistics; X and dY are read for the sums, then once more
    ),
    LayerKind(name="add", summary="sum of its inputs", passes_on=True, group="join"),
    LayerKind(name="concat", summary="its inputs' channels side by side", group="join"),
    LayerKind(
        name="dropout",
        summary="dropout",
        saves="mask",
        in_place=("executable", "paper"),
        in_place_after_relu=True,
    ),
    LayerKind(
        name="softmax",
        summary="softmax and loss in one",
        reads_output=True,
        labels="classes",
        group="classifier",
        expensive=True,
    ),
    LayerKind(
        name="linear",
        summary="a matrix product at every position",
        operation="positionwise",
        expensive=True,
    ),
    LayerKind(
        name="route",
        summary="a softmax over experts, of which each position keeps the largest",
        reads_output=True,
        saves="values",
    ),
    LayerKind(
        name="dispatch",
        summary="positions in the order of their experts",
        saves="values",
        guided=True,
    ),
    LayerKind(
        name="experts",
        summary="a matrix product at every position, with the weights of its expert",
        operation="grouped",
        expensive=True,
    ),
    LayerKind(name="combine", summary="weighted sums of what experts made", reads_inputs=True),
    LayerKind(name="embedding", summary="rows of a table", operation="lookup", expensive=True),
    LayerKind(name="position", summary="a trained vector at every position"),
    LayerKind(
        name="norm",
        summary="normalisation within an image",
        reads_inputs=True,
        saves="values",
        scales=True,
    ),
    LayerKind(name="scale", summary="a factor a channel", reads_inputs=True, scales=True),
    LayerKind(name="gelu", summary="Gaussian error linear unit", reads_inputs=True),
    LayerKind(name="silu", summary="sigmoid linear unit", reads_inputs=True),
    LayerKind(name="sigmoid", summary="logistic function", reads_output=True),
    LayerKind(name="multiply", summary="product value by value", reads_inputs=True),
    LayerKind(
        name="matmul",
        summary="matrix product of two inputs",
        operation="product",
        reads_inputs=True,
        expensive=True,
    ),
    LayerKind(name="rowsoftmax", summary="softmax without a loss", reads_output=True),
    LayerKind(
        name="attention",
        summary="scaled dot-product attention in one task",
        operation="product",
        reads_inputs=True,
        reads_output=True,
        saves="values",
        backward_products=Fraction(5, 2),  # of both operands, and the scores once more
        expensive=True,
    ),
    LayerKind(name="resample", summary="a fixed linear map"),
    LayerKind(name="lstm_cell", summary="new state of an LSTM cell", reads_inputs=True, expensive=True),
    LayerKind(name="lstm_hidden", summary="output of an LSTM cell", reads_inputs=True),
    LayerKind(
        name="loss",
        summary="any loss but softmax's",
        reads_inputs=True,
        labels="pairs",
        expensive=True,
    ),
)

KINDS: dict[str, LayerKind] = {kind.name: kind for kind in _ALL}
"""All kinds by name: ours, and those that are registered."""


def register_kind(kind: LayerKind) -> LayerKind:
    """Enter a kind into `KINDS`, and return it; registering again replaces it, as a notebook does.

    Raises
    ------
    PebblerError
        When the name is that of a kind of ours.
    """
    if kind.name in {one.name for one in _ALL}:
        raise PebblerError(f"layer kind '{kind.name}' is there already; choose another name")
    KINDS[kind.name] = kind
    return kind


def find_kind(name: str) -> LayerKind:
    """Return the kind of a name.

    Raises
    ------
    PebblerError
        When there is none; close names are listed.
    """
    if name in KINDS:
        return KINDS[name]
    close = difflib.get_close_matches(name, KINDS, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(KINDS)}"
    raise PebblerError(f"there is no layer kind '{name}'; {hint}")


def described_kind(name: str) -> LayerKind:
    """Return what is known of a kind that an instance file names: nothing special, where it is not ours."""
    return KINDS.get(name) or LayerKind(name=name, summary="unknown")
