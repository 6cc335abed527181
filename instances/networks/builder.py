"""Networks layer by layer: a `NetworkBuilder` infers shapes, and `finish` gives the immutable `Network`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..arguments import quoted, require_whole
from ..errors import PebblerError
from ..figures import is_text
from .kinds import KINDS, LayerKind, find_kind
from .network import Layer, Network, Shape


class NetworkBuilder:
    """Defines a network layer by layer; every method returns the name of the layer that it adds.

    The methods raise PebblerError when a name is used twice, an input does not exist, or shapes do not fit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._layers: dict[str, Layer] = {}

    def shape(self, name: str) -> Shape:
        """Return the output shape of a layer that has been added."""
        if type(name) is not str or name not in self._layers:
            raise PebblerError(
                f"network '{self._name}': there is no layer {quoted(name)} to read; define it first"
            )
        return self._layers[name].shape

    def input(self, channels: int, height: int, width: int, name: str = "input") -> str:
        """Add an input: data that no task writes."""
        self._require(name, channels=channels, height=height, width=width)
        return self._add(Layer(name, KINDS["input"], (), Shape(channels, height, width)))

    def conv(
        self,
        name: str,
        source: str,
        channels: int,
        kernel: int,
        *,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = True,
        relu: bool = False,
        tied: str | None = None,
    ) -> str:
        """Add a convolution with `channels` outputs."""
        self._require(name, channels=channels, kernel=kernel, stride=stride, pad=pad, groups=groups)
        shape = self.shape(source)
        if shape.channels % groups or channels % groups:
            raise self._error(name, f"{groups} groups do not divide {shape.channels} and {channels} channels")
        weights = shape.channels // groups * channels * kernel * kernel
        height, width = (self._windows(name, size, kernel, stride, pad, False) for size in shape[1:])
        return self._add(
            Layer(
                name,
                KINDS["conv"],
                (source,),
                Shape(channels, height, width),
                parameters=weights + channels * bias,
                kernel=kernel,
                stride=stride,
                pad=pad,
                groups=groups,
                relu=relu,
                tied=tied,
            )
        )

    def deconv(
        self, name: str, source: str, channels: int, kernel: int, *, stride: int, pad: int, bias: bool = True
    ) -> str:
        """Add a transposed convolution: ``stride * (size - 1) + kernel - 2 * pad`` values a side."""
        self._require(name, channels=channels, kernel=kernel, stride=stride, pad=pad)
        shape = self.shape(source)
        height, width = (stride * (size - 1) + kernel - 2 * pad for size in shape[1:])
        if min(height, width) < 1:
            raise self._error(name, f"a padding of {pad} leaves no output")
        return self._add(
            Layer(
                name,
                KINDS["deconv"],
                (source,),
                Shape(channels, height, width),
                parameters=shape.channels * channels * kernel * kernel + channels * bias,
                kernel=kernel,
                stride=stride,
                pad=pad,
            )
        )

    def fc(self, name: str, source: str, outputs: int, *, relu: bool = False, tied: str | None = None) -> str:
        """Add a fully connected layer, with biases."""
        self._require(name, outputs=outputs)
        inputs = self.shape(source).elements
        return self._add(
            Layer(
                name,
                KINDS["fc"],
                (source,),
                Shape(outputs, 1, 1),
                parameters=(inputs + 1) * outputs,
                relu=relu,
                tied=tied,
            )
        )

    def linear(
        self, name: str, *sources: str, outputs: int, bias: bool = True, tied: str | None = None
    ) -> str:
        """Add one matrix product at every position, over the channels of all sources together."""
        self._require(name, outputs=outputs)
        shapes = self._alike(name, sources)
        inputs = sum(shape.channels for shape in shapes)
        return self._add(
            Layer(
                name,
                KINDS["linear"],
                sources,
                Shape(outputs, *shapes[0][1:]),
                parameters=(inputs + bias) * outputs,
                tied=tied,
            )
        )

    def route(self, name: str, source: str) -> str:
        """Add the shares of experts at each position, of which the largest stay and the others are 0.

        The source, a `linear` layer in most models, has a channel for each expert. How many stay is what
        `dispatch` has room for; the softmax of all is kept for the backward pass.
        """
        shape = self.shape(source)
        return self._add(Layer(name, KINDS["route"], (source,), shape, saved=shape.elements))

    def dispatch(self, name: str, source: str, shares: str, *, slots: int) -> str:
        """Add a copy of positions in the order of the experts that they go to.

        Parameters
        ----------
        name, source
            As everywhere.
        shares
            The layer that says where positions go: a channel for each expert, 0 where one does not go.
        slots
            Positions that each expert gets: those that come later are dropped, and slots that are left are 0.
        """
        self._require(name, slots=slots)
        shape, experts = self.shape(source), self._experts_of(name, source, shares)
        if slots > shape.positions:
            raise self._error(
                name, f"an expert cannot get {slots} of {shape.positions} positions; give fewer slots"
            )
        positions = experts * slots
        return self._add(
            Layer(
                name,
                KINDS["dispatch"],
                (source, shares),
                Shape(shape.channels, positions, 1),
                saved=positions,
            )
        )

    def experts(self, name: str, source: str, *, outputs: int, experts: int) -> str:
        """Add one matrix product at every position, without biases, with the weights of its expert.

        Every expert has an equal part of the positions, in the order in which `dispatch` has put them.
        """
        self._require(name, outputs=outputs, experts=experts)
        shape = self.shape(source)
        if shape.positions % experts:
            raise self._error(name, f"{experts} experts do not divide {shape.positions} positions")
        return self._add(
            Layer(
                name,
                KINDS["experts"],
                (source,),
                Shape(outputs, *shape[1:]),
                parameters=experts * shape.channels * outputs,
                groups=experts,
            )
        )

    def combine(self, name: str, source: str, shares: str) -> str:
        """Add, for each position of `shares`, the sum of what its experts made of it, times their shares."""
        shape, target = self.shape(source), self.shape(shares)
        if shape.positions % target.channels:
            raise self._error(
                name, f"{target.channels} experts do not divide {shape.positions} positions of '{source}'"
            )
        return self._add(Layer(name, KINDS["combine"], (source, shares), Shape(shape.channels, *target[1:])))

    def embedding(self, name: str, source: str, entries: int, width: int) -> str:
        """Add a table of `entries` vectors; the source, an input, has the index of one at each position."""
        self._require(name, entries=entries, width=width)
        shape = self.shape(source)
        if not self._layers[source].kind.is_input or shape.channels != 1:
            raise self._error(name, f"'{source}' is no input of one channel; give it the indices")
        return self._add(
            Layer(name, KINDS["embedding"], (source,), Shape(width, *shape[1:]), parameters=entries * width)
        )

    def position(self, name: str, source: str, *, extra: int = 0) -> str:
        """Put `extra` trained tokens before a sequence and add a trained vector to every token."""
        shape = self.shape(source)
        tokens = shape.positions + extra
        parameters = (tokens + extra) * shape.channels
        return self._add(
            Layer(name, KINDS["position"], (source,), Shape(shape.channels, tokens, 1), parameters=parameters)
        )

    def layer_norm(self, name: str, source: str) -> str:
        """Add a normalisation over the channels of every position, with a scale and a shift a channel."""
        shape = self.shape(source)
        return self._norm(name, source, 2 * shape.channels, 2 * shape.positions)

    def rms_norm(self, name: str, source: str) -> str:
        """Add a division by the root mean square of every position, with a scale a channel."""
        shape = self.shape(source)
        return self._norm(name, source, shape.channels, shape.positions)

    def group_norm(self, name: str, source: str, groups: int) -> str:
        """Add a normalisation over groups of channels, with a scale and a shift a channel."""
        self._require(name, groups=groups)
        shape = self.shape(source)
        if shape.channels % groups:
            raise self._error(name, f"{groups} groups do not divide {shape.channels} channels")
        return self._norm(name, source, 2 * shape.channels, 2 * groups)

    def scale(self, name: str, source: str) -> str:
        """Add a trained factor a channel."""
        shape = self.shape(source)
        return self._add(Layer(name, KINDS["scale"], (source,), shape, parameters=shape.channels))

    def gelu(self, name: str, source: str) -> str:
        """Add a Gaussian error linear unit."""
        return self._add(Layer(name, KINDS["gelu"], (source,), self.shape(source)))

    def silu(self, name: str, source: str) -> str:
        """Add a sigmoid linear unit."""
        return self._add(Layer(name, KINDS["silu"], (source,), self.shape(source)))

    def multiply(self, name: str, left: str, right: str) -> str:
        """Add the product, value by value, of two layers of one shape."""
        if self.shape(left) != self.shape(right):
            raise self._error(name, "its inputs differ in shape; give it inputs of one shape")
        return self._add(Layer(name, KINDS["multiply"], (left, right), self.shape(left)))

    def attention(
        self, name: str, *sources: str, heads: int, groups: int | None = None, causal: bool = False
    ) -> str:
        """Add scaled dot-product attention in one task that stores no scores (Dao et al. 2022).

        The sources hold queries, keys and values, in this order: side by side in one, or one each.

        Parameters
        ----------
        name, sources
            As everywhere; the last source says how many tokens are attended to.
        heads, groups
            Heads of the queries, and of keys and values (by default as many).
        causal
            Whether a token attends to itself and earlier ones only, which halves the work.
        """
        groups = heads if groups is None else groups
        self._require(name, heads=heads, groups=groups)
        shapes = [self.shape(source) for source in sources]
        width, rest = divmod(sum(shape.channels for shape in shapes), heads + 2 * groups)
        if rest:
            raise self._error(name, f"{heads} + 2 x {groups} heads do not divide its channels")
        shape = Shape(heads * width, *shapes[0][1:])
        products = 2 * shape.elements * shapes[-1].positions // (2 if causal else 1)
        return self._add(
            Layer(name, KINDS["attention"], sources, shape, saved=heads * shape.positions, products=products)
        )

    def scores(self, name: str, queries: str, keys: str, *, heads: int) -> str:
        """Add the products of all queries with all keys: heads x queries x keys."""
        self._require(name, heads=heads)
        left, right = self.shape(queries), self.shape(keys)
        if left.channels != right.channels or left.channels % heads:
            raise self._error(
                name, f"{heads} heads do not divide {left.channels} and {right.channels} channels"
            )
        shape = Shape(heads, left.positions, right.positions)
        products = left.elements * right.positions
        return self._add(Layer(name, KINDS["matmul"], (queries, keys), shape, products=products))

    def rowsoftmax(self, name: str, source: str) -> str:
        """Add a softmax over the rows of the scores, without a loss."""
        return self._add(Layer(name, KINDS["rowsoftmax"], (source,), self.shape(source)))

    def context(self, name: str, weights: str, values: str) -> str:
        """Add the sums of values, weighted by a softmax of scores."""
        left, right = self.shape(weights), self.shape(values)
        if left.width != right.positions or right.channels % left.channels:
            raise self._error(name, "its weights and its values differ in tokens or heads")
        shape = Shape(right.channels, left.height, 1)
        return self._add(
            Layer(name, KINDS["matmul"], (weights, values), shape, products=shape.elements * right.positions)
        )

    def resample(self, name: str, source: str, shape: Shape) -> str:
        """Add a fixed linear map: upsampling, cropping, zero padding, a choice of tokens, a rotation."""
        return self._add(Layer(name, KINDS["resample"], (source,), shape))

    def lstm_cell(self, name: str, gates: str, state: str) -> str:
        """Add the new state of an LSTM cell from its four gates, before their activations, and its state."""
        return self._lstm(name, KINDS["lstm_cell"], gates, state)

    def lstm_hidden(self, name: str, gates: str, state: str) -> str:
        """Add the output of an LSTM cell from its gates, before their activations, and its new state."""
        return self._lstm(name, KINDS["lstm_hidden"], gates, state)

    def maxpool(
        self,
        name: str,
        source: str,
        kernel: int,
        *,
        stride: int,
        pad: int = 0,
        ceil: bool = False,
        relu: bool = False,
    ) -> str:
        """Add max pooling; with `ceil` the last window may reach over the border, as in Caffe."""
        return self._pool(KINDS["maxpool"], name, source, kernel, stride, pad, ceil, relu)

    def avgpool(
        self,
        name: str,
        source: str,
        kernel: int | None = None,
        *,
        stride: int = 1,
        pad: int = 0,
        ceil: bool = False,
    ) -> str:
        """Add average pooling, by default over the whole map; `ceil` as for max pooling."""
        kernel = self.shape(source).height if kernel is None else kernel
        return self._pool(KINDS["avgpool"], name, source, kernel, stride, pad, ceil, False)

    def lrn(self, name: str, source: str) -> str:
        """Add local response normalisation."""
        return self._add(Layer(name, KINDS["lrn"], (source,), self.shape(source)))

    def bn(self, name: str, source: str, *, relu: bool = False) -> str:
        """Add batch norm with a scale and a shift a channel."""
        shape = self.shape(source)
        return self._add(Layer(name, KINDS["bn"], (source,), shape, parameters=2 * shape.channels, relu=relu))

    def add(self, name: str, *sources: str, relu: bool = False) -> str:
        """Add the sum of layers of one shape; one value a channel is added at all positions."""
        first, *others = (self.shape(source) for source in sources)
        if any(shape not in (first, Shape(first.channels, 1, 1)) for shape in others):
            raise self._error(name, "its inputs differ in shape; give it inputs of one shape")
        return self._add(Layer(name, KINDS["add"], sources, first, relu=relu))

    def concat(self, name: str, *sources: str) -> str:
        """Add the concatenation of layers along the channels."""
        shapes = self._alike(name, sources)
        shape = Shape(sum(shape.channels for shape in shapes), *shapes[0][1:])
        return self._add(Layer(name, KINDS["concat"], sources, shape))

    def dropout(self, name: str, source: str) -> str:
        """Add dropout."""
        return self._add(Layer(name, KINDS["dropout"], (source,), self.shape(source)))

    def softmax(self, name: str, source: str) -> str:
        """Add softmax and loss: the end of the network."""
        return self._add(Layer(name, KINDS["softmax"], (source,), self.shape(source)))

    def loss(self, name: str, *sources: str) -> str:
        """Add a loss whose derivative depends on what it reads (squared error, contrastive): an end, too."""
        return self._add(Layer(name, KINDS["loss"], sources, Shape(1, 1, 1)))

    def layer(
        self,
        name: str,
        kind: str,
        *sources: str,
        shape: Shape | None = None,
        parameters: int = 0,
        relu: bool = False,
        saved: int = 0,
        products: int = 0,
    ) -> str:
        """Add a layer of any registered kind, as `find_kind` takes it.

        Parameters
        ----------
        name, kind, sources
            As everywhere.
        shape
            Its output for one image; by default that of the first source.
        parameters, relu, saved, products
            As `Layer` has them.
        """
        found = find_kind(kind)
        if found.is_input == bool(sources):
            raise self._error(
                name, f"'{kind}' reads {'no layer' if found.is_input else 'at least one layer'}"
            )
        inputs = [self.shape(source) for source in sources]
        if (output := shape or next(iter(inputs), None)) is None:
            raise self._error(name, "nothing says its shape; give one")
        return self._add(
            Layer(
                name,
                found,
                sources,
                output,
                parameters=parameters,
                relu=relu,
                saved=saved,
                products=products,
            )
        )

    def finish(self, *, batch: int = 1, source: str = "defined in Python") -> Network:
        """Return the network; every path must end in a loss.

        Parameters
        ----------
        batch
            The batch size that it is usually trained with; a `Workload` has its own.
        source
            Where the definition comes from, for people.

        Raises
        ------
        PebblerError
            When a layer's output is read by nobody and is no loss, or when a loss is read.
        """
        layers = tuple(self._layers.values())  # each was added after what it reads
        read = {name for layer in layers for name in layer.inputs}
        for layer in layers:
            if layer.kind.is_loss == (layer.name in read):
                raise self._error(layer.name, "every path ends in exactly one loss; add one where it ends")
        return Network(self._name, batch, source, layers)

    def _pool(
        self,
        kind: LayerKind,
        name: str,
        source: str,
        kernel: int,
        stride: int,
        pad: int,
        ceil: bool,
        relu: bool,
    ) -> str:
        self._require(name, kernel=kernel, stride=stride, pad=pad)
        shape = self.shape(source)
        height, width = (self._windows(name, size, kernel, stride, pad, ceil) for size in shape[1:])
        return self._add(
            Layer(
                name,
                kind,
                (source,),
                Shape(shape.channels, height, width),
                kernel=kernel,
                stride=stride,
                pad=pad,
                relu=relu,
            )
        )

    def _windows(self, name: str, size: int, kernel: int, stride: int, pad: int, ceil: bool) -> int:
        """Count the windows along one side; with `ceil` the last one starts inside the image (Caffe)."""
        span = size + 2 * pad - kernel
        if span < 0:
            raise self._error(name, f"a window of {kernel} does not fit into {size} with a padding of {pad}")
        count = (-(-span // stride) if ceil else span // stride) + 1
        return count - 1 if ceil and (count - 1) * stride >= size + pad else count

    def _norm(self, name: str, source: str, parameters: int, saved: int) -> str:
        shape = self.shape(source)
        return self._add(Layer(name, KINDS["norm"], (source,), shape, parameters=parameters, saved=saved))

    def _lstm(self, name: str, kind: LayerKind, gates: str, state: str) -> str:
        shape = self.shape(state)
        if self.shape(gates) != Shape(4 * shape.channels, *shape[1:]):
            raise self._error(name, f"'{gates}' has not the four gates of '{state}'")
        return self._add(Layer(name, kind, (gates, state), shape))

    def _experts_of(self, name: str, source: str, shares: str) -> int:
        """How many experts the shares of a source's positions are of."""
        shape = self.shape(shares)
        if shape[1:] != self.shape(source)[1:]:
            raise self._error(
                name, f"'{source}' and '{shares}' differ in positions; give it the shares of its positions"
            )
        return shape.channels

    def _alike(self, name: str, sources: Sequence[str]) -> list[Shape]:
        """Shapes of sources that have one height and one width."""
        shapes = [self.shape(source) for source in sources]
        if len({shape[1:] for shape in shapes}) != 1:
            raise self._error(name, "its inputs differ in height or width; give it inputs of one size")
        return shapes

    def _require(self, name: str, **figures: int) -> None:
        """Refuse figures that are no whole numbers from 1 on; a padding may be 0."""
        for key, figure in figures.items():
            require_whole(f"network '{self._name}', layer {quoted(name)}: {key}", figure, int(key != "pad"))

    def _add(self, layer: Layer) -> str:
        if not is_text(layer.name):
            raise PebblerError(
                f"network '{self._name}': a layer has the name {quoted(layer.name)}; give one line of text"
            )
        if layer.name in self._layers:
            raise self._error(layer.name, "the name is used twice; give every layer its own")
        if len(set(layer.inputs)) != len(layer.inputs):
            raise self._error(layer.name, "it reads a layer twice; list every input once")
        if layer.tied is not None:
            owner = self._layers.get(layer.tied)
            if owner is None or owner.parameters != layer.parameters:
                raise self._error(
                    layer.name,
                    f"'{layer.tied}' has no weights of its own of that size; tie it to one that has",
                )
            layer = replace(layer, parameters=0)
        self._layers[layer.name] = layer
        return layer.name

    def _error(self, name: str, what: str) -> PebblerError:
        return PebblerError(f"network '{self._name}', layer '{name}': {what}")
