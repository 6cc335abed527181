"""From layers to tasks and blocks: one training iteration as a list of tasks on named pieces of data.

Names: tasks ``FP(l)``, ``BP(relu l)``, ``BP2(l)`` (weight gradient), ``BP1(l)`` (gradient of the input) and
``copy(dY(l))`` and ``OPT(l)`` (update of the weights); blocks ``X(input)``, ``Y(l)``, ``dY(l)`` (gradient of
the loss for Y(l)), ``M(l)`` (dropout's mask), ``S(l)`` (what else normalisation, attention and routing keep),
``W(l)`` and ``dW(l)``, ``m(l)`` and ``v(l)`` (what an optimizer keeps), ``p(l)`` (weights in single precision
where W(l) is in bfloat16).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..errors import PebblerError
from ..instance import Initially
from ..origin import VALUE_BYTES, DataPrecision, Optimizer
from ..origin import Graph as Graph
from .network import Layer, Network
from .optimizers import kept, require_optimizer

FLOAT_BYTES = 4
"""Bytes of a number in single precision, and of an index."""

Role = Literal["FP", "BP1", "BP2", "relu", "copy", "OPT"]


@dataclass(frozen=True, slots=True)
class DataBlock:
    """A block: its name, size in bytes, and where it is at the start and must be at the end."""

    name: str
    bytes: int
    initially: Initially = "absent"
    finally_: Literal["anywhere", "device", "host"] = "anywhere"


@dataclass(frozen=True, slots=True)
class LayerTask:
    """A task.

    Attributes
    ----------
    name
        Unique within the graph.
    layer
        The layer that it belongs to; a copy belongs to the layer in whose backward pass it is made.
    role
        ``relu`` is the backward pass of an in-place ReLU; ``copy`` copies its input to its output; ``OPT``
        updates weights.
    inputs, outputs, updates
        Indices of blocks, in the order of the table in `task_graph`.
    targets
        Of BP1, per input of the layer: the block in which this task writes the input's gradient or adds to
        it; None where there is none to write.
    extra_bytes
        Memory traffic beyond reading the layer's operands and writing its results once.
    in_place
        Whether FP overwrites its input, and BP1 the gradient of its output.
    """

    name: str
    layer: Layer
    role: Role
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    updates: tuple[int, ...]
    targets: tuple[int | None, ...]
    extra_bytes: int
    in_place: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TaskGraph:
    """The tasks of one training iteration, in order, and the blocks that they touch.

    Attributes
    ----------
    network, batch, graph, precision
        What it was made from.
    blocks, tasks
        Tasks refer to blocks by index.
    resident_bytes
        Weights and their gradients, where they are not blocks.
    """

    network: Network
    batch: int
    graph: Graph
    blocks: tuple[DataBlock, ...]
    tasks: tuple[LayerTask, ...]
    resident_bytes: int
    precision: DataPrecision = "fp32"


def task_graph(
    network: Network,
    batch: int,
    graph: Graph = "executable",
    weights_as_blocks: bool = False,
    optimizer: Optimizer | None = None,
    precision: DataPrecision = "fp32",
) -> TaskGraph:
    """Turn a network into tasks and blocks.

    The forward tasks run in the order of the layers; backward, from the last layer on, a layer's ReLU task
    runs before its BP2 and that before its BP1 (Layrub's coordinated execution sequence). A layer that reads
    only data without trained layers above it has no BP1. Gradients that meet are accumulated in place: the
    later BP1 updates the block. Tasks touch these blocks, in this order:

    | task | inputs | outputs | updates |
    |---|---|---|---|
    | FP(any other kind) | every X | Y | |
    | FP(bn, norm, attention, route, dispatch) | every X | Y, S | |
    | FP(dropout) | | M | Y of its input |
    | BP(relu l) | Y | | dY |
    | BP2(conv, deconv, fc, linear, experts, embedding) | every X, dY | | |
    | BP1(conv, deconv, fc, linear, experts) | dY | every dX | |
    | BP1(avgpool, concat, position, resample) | dY | every dX | |
    | BP1(gelu, silu, scale, multiply, matmul, combine, lstm_cell, lstm_hidden) | dY, every X | every dX | |
    | BP1(maxpool, lrn) | dY, X, Y | dX | |
    | BP1(rowsoftmax) | dY, Y | dX | |
    | BP1(route) | dY, Y, S | dX | |
    | BP1(dispatch) | dY, S | dX of the first input | |
    | BP1(bn, norm) | dY, X, S | dX | |
    | BP1(attention) | dY, every X, Y, S | every dX | |
    | BP1(dropout) | M | | dY |
    | BP1(softmax) | Y | dX | |
    | BP1(loss) | every X | every dX | |
    | BP1(add), to accumulate or for a value a channel | dY | dX | dX |
    | copy(dY(l)) | a shared gradient | dY(l) | |
    | OPT(l) | dW(l) | | W(l), p(l), m(l) and v(l) where there are any |

    A dX that exists already is in the updates instead. An addition passes its dY on to its inputs as it is; a
    gradient that is about to be changed while another layer still needs it is copied first. Dropout whose
    input has other readers, or reads its own output in its backward pass, writes its own Y and dX instead.

    ``graph="paper"`` is the accounting of the papers. Batch norm is in place as well: ``FP(bn)`` updates the
    convolution's Y and ``BP1(bn)`` reads it and updates dY; no statistics are saved. There is no ReLU task:
    the last task that contributes to a gradient reads Y for the sign, too (moDNN, TPDS 2019, eq. 2: the
    derivative is that for Z). Only a gradient that comes unchanged out of an addition keeps its ReLU task.

    With `weights_as_blocks` (moDNN, TPDS 2019, Fig. 9), W(l) is the input after X or S of FP and after dY, X
    and S of BP1, and dW(l) is an output of BP2, or of BP1 for normalisation, scale and position. Layers with
    tied weights share both; the later of them updates dW. W starts on the host and is never written; dW must
    reach the host.

    With an `optimizer` the iteration is one of many (a steady state): weights are blocks, and W(l) is carried
    to the next iteration, as are m(l) and v(l), which momentum and Adam keep. ``OPT(l)`` follows the last
    task that reads W(l) or contributes to dW(l), so that no task of this iteration reads new weights; tied
    weights are so updated once. No dW is wanted at the end. With the optimizer ``none`` there are no such
    tasks: the weights are carried as they are, and dW must reach the host.

    The `precision` is that of weights, feature maps and gradients. Statistics, logarithms of attention and
    what an optimizer keeps are in single precision whatever it is; indices have 4 bytes. In bfloat16, an
    optimizer keeps p(l), the weights in single precision, of which it writes W(l).

    Raises
    ------
    PebblerError
        When the batch is not positive, or the graph or the optimizer is unknown.
    """
    if batch < 1:
        raise PebblerError(f"network '{network.name}': a batch of {batch} is not positive; give 1 or more")
    if graph not in ("executable", "paper"):
        raise PebblerError(f"there is no graph '{graph}'; write executable or paper")
    if optimizer is not None:
        require_optimizer(optimizer)
    return _Builder(network, batch, graph, weights_as_blocks, optimizer, precision).build()


@dataclass(slots=True)
class _Draft:
    """A task whose blocks are still being collected."""

    name: str
    layer: Layer
    role: Role
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    targets: list[int | None] = field(default_factory=list)
    extra_bytes: int = 0
    in_place: bool = False

    def finish(self) -> LayerTask:
        return LayerTask(
            self.name,
            self.layer,
            self.role,
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.updates),
            tuple(self.targets),
            self.extra_bytes,
            self.in_place,
        )


def _owner(layer: Layer) -> str:
    """Name of the layer whose weights it uses."""
    return layer.name if layer.tied is None else layer.tied


class _Builder:
    """Walks the layers forward, then backward, and keeps where every output and gradient lies.

    Attributes
    ----------
    feature
        Per layer, the block of its output.
    gradient
        Per layer, the block of the loss's gradient for its output, once a task has contributed to it.
    needed_by
        Per gradient block, the layers whose gradient it still is.
    last_writer
        Per layer, the last task that wrote its gradient for this layer.
    """

    def __init__(
        self,
        network: Network,
        batch: int,
        graph: Graph,
        weights_as_blocks: bool,
        optimizer: Optimizer | None,
        precision: DataPrecision,
    ) -> None:
        self.network = network
        self.batch = batch
        self.precision: DataPrecision = precision
        self.value_bytes = VALUE_BYTES[precision]
        self.graph: Graph = graph
        self.weights_as_blocks = weights_as_blocks or optimizer is not None
        self.optimizer: Optimizer | None = optimizer
        self.blocks: list[DataBlock] = []
        self.tasks: list[_Draft] = []
        self.feature: dict[str, int] = {}
        self.saved: dict[str, int] = {}
        self.weights: dict[str, int] = {}
        self.weight_gradients: dict[str, int] = {}
        self.gradient: dict[str, int] = {}
        self.needed_by: dict[int, set[str]] = {}
        self.last_writer: dict[str, _Draft] = {}
        self.trained: dict[str, bool] = {}

    def build(self) -> TaskGraph:
        for layer in self.network.layers:
            own = layer.parameters > 0 or layer.tied is not None
            self.trained[layer.name] = own or any(self.trained[x] for x in layer.inputs)
            if layer.kind.is_input:
                self.feature[layer.name] = self._block(f"X({layer.name})", self._bytes(layer), "device")
            else:
                self._forward(layer)
        for layer in reversed(self.network.layers):
            if self.trained[layer.name] and (layer.kind.is_loss or layer.name in self.gradient):
                self._backward(layer)
        if self.optimizer not in (None, "none"):
            self._update_weights(kept(self.optimizer, self.precision))
        resident = 0 if self.weights_as_blocks else 2 * self.value_bytes * self.network.parameters
        tasks = tuple(draft.finish() for draft in self.tasks)
        blocks = tuple(self.blocks)
        return TaskGraph(self.network, self.batch, self.graph, blocks, tasks, resident, self.precision)

    def _forward(self, layer: Layer) -> None:
        task = _Draft(f"FP({layer.name})", layer, "FP")
        sources = [self.feature[x] for x in layer.inputs]
        size = self._bytes(layer)
        if self._in_place(layer):
            task.in_place = True
            task.updates = sources
            self.feature[layer.name] = sources[0]
        else:
            task.inputs = sources
            self.feature[layer.name] = self._block(f"Y({layer.name})", size)
            task.outputs.append(self.feature[layer.name])
        if saved := self._saved_bytes(layer):
            letter = "M" if layer.kind.saves == "mask" else "S"
            self.saved[layer.name] = self._block(f"{letter}({layer.name})", saved)
            task.outputs.append(self.saved[layer.name])
        task.extra_bytes += layer.kind.extra_passes[0] * size
        if layer.relu:
            task.extra_bytes += 2 * size
        if self.weights_as_blocks and layer.parameters:
            weight_bytes = self.value_bytes * layer.parameters
            place: Initially = "host" if self.optimizer is None else "carried"
            self.weights[layer.name] = self._block(f"W({layer.name})", weight_bytes, place)
        self._read_weights(task, layer)
        self.tasks.append(task)

    def _backward(self, layer: Layer) -> None:
        if layer.relu:
            self._relu(layer)
        if layer.kind.passes_on:
            self._pass_on(layer)
        elif self._in_place(layer):
            self._backward_in_place(layer)
        else:
            if layer.kind.has_weight_task:
                self._weight_gradient(layer)
            self._input_gradients(layer)
        if layer.name in self.gradient:
            self.needed_by[self.gradient[layer.name]].discard(layer.name)

    def _relu(self, layer: Layer) -> None:
        """Apply the derivative of an in-place ReLU: in the last contribution on the paper graph."""
        feature = self.feature[layer.name]
        writer = self.last_writer.get(layer.name)
        if self.graph == "paper" and writer is not None:
            if feature not in writer.inputs:
                writer.inputs.append(feature)
                if writer.layer.kind.has_weight_task:
                    writer.extra_bytes += self._bytes(layer)
        else:
            gradient = self._own_gradient(layer.name, layer)
            task = _Draft(f"BP(relu {layer.name})", layer, "relu", inputs=[feature], updates=[gradient])
            self.tasks.append(task)

    def _pass_on(self, layer: Layer) -> None:
        """Give the gradient of a sum to its inputs: the same block, or added to what they have."""
        shared = self.gradient[layer.name]
        task = _Draft(f"BP1({layer.name})", layer, "BP1", inputs=[shared])
        for source in layer.inputs:
            whole = self.network[source].shape == layer.shape
            if source in self.gradient or not self.trained[source] or not whole:
                self._contribute(task, source)
            else:
                self.gradient[source] = shared
                self.needed_by[shared].add(source)
                task.targets.append(None)
        if task.outputs or task.updates:
            self.tasks.append(task)

    def _backward_in_place(self, layer: Layer) -> None:
        (source,) = layer.inputs
        gradient = self._own_gradient(layer.name, layer)
        task = _Draft(f"BP1({layer.name})", layer, "BP1", updates=[gradient], targets=[gradient])
        task.in_place = True
        if layer.name in self.saved:
            task.inputs.append(self.saved[layer.name])
        elif layer.kind.reads_inputs or layer.kind.reads_output:
            task.inputs.append(self.feature[layer.name])
        task.extra_bytes += layer.kind.extra_passes[1] * self._bytes(layer)
        self._add_weights(task, layer)
        self.tasks.append(task)
        self.gradient[source] = gradient
        self.needed_by[gradient].add(source)
        self.last_writer[source] = task

    def _weight_gradient(self, layer: Layer) -> None:
        inputs = [*(self.feature[x] for x in layer.inputs), self.gradient[layer.name]]
        task = _Draft(f"BP2({layer.name})", layer, "BP2", inputs=inputs)
        self._add_weight_gradient(task, layer)
        self.tasks.append(task)

    def _input_gradients(self, layer: Layer) -> None:
        """Add BP1: what it reads besides dY decides how long feature maps live."""
        task = _Draft(f"BP1({layer.name})", layer, "BP1")
        if not layer.kind.is_loss:
            task.inputs.append(self.gradient[layer.name])
        if layer.kind.reads_inputs:
            task.inputs += [self.feature[x] for x in layer.inputs]
        if layer.kind.reads_output:
            task.inputs.append(self.feature[layer.name])
        if layer.name in self.saved:
            task.inputs.append(self.saved[layer.name])
        task.extra_bytes += layer.kind.extra_passes[1] * self._bytes(layer)
        if layer.kind.has_weight_task:
            self._read_weights(task, layer)
        elif layer.parameters:
            self._add_weights(task, layer)
        for source in layer.inputs[:-1] if layer.kind.guided else layer.inputs:
            self._contribute(task, source)
        if layer.kind.guided:
            task.targets.append(None)
        if task.outputs or task.updates or (layer.parameters and not layer.kind.has_weight_task):
            self.tasks.append(task)

    def _add_weights(self, task: _Draft, layer: Layer) -> None:
        """Let a task read the weights and write their gradient, where these are blocks."""
        self._read_weights(task, layer)
        self._add_weight_gradient(task, layer)

    def _read_weights(self, task: _Draft, layer: Layer) -> None:
        if (owner := _owner(layer)) in self.weights:
            task.inputs.append(self.weights[owner])

    def _add_weight_gradient(self, task: _Draft, layer: Layer) -> None:
        owner = _owner(layer)
        if owner in self.weight_gradients:
            task.updates.append(self.weight_gradients[owner])
        elif owner in self.weights:
            size = self.blocks[self.weights[owner]].bytes
            is_wanted = self.optimizer in (None, "none")
            self.weight_gradients[owner] = self._block(
                f"dW({owner})", size, finally_="host" if is_wanted else "anywhere"
            )
            task.outputs.append(self.weight_gradients[owner])

    def _update_weights(self, states: tuple[str, ...]) -> None:
        """Update all weights, each after the last task that reads them or contributes to their gradient."""
        last = {
            d: k for k, task in enumerate(self.tasks) for d in (*task.inputs, *task.outputs, *task.updates)
        }
        after: dict[int, list[_Draft]] = {}
        for name, gradient in self.weight_gradients.items():
            weights, layer = self.weights[name], self.network[name]
            size = FLOAT_BYTES * layer.parameters
            own = [self._block(f"{letter}({name})", size, "carried") for letter in states]
            task = _Draft(f"OPT({name})", layer, "OPT", inputs=[gradient], updates=[weights, *own])
            after.setdefault(max(last[weights], last[gradient]), []).append(task)
        self.tasks = [one for k, task in enumerate(self.tasks) for one in (task, *after.get(k, ()))]

    def _contribute(self, task: _Draft, source: str) -> None:
        """Let a task write the gradient of a layer's output, or add to it, where anybody needs it."""
        if not self.trained[source]:
            task.targets.append(None)
            return
        if source in self.gradient:
            task.updates.append(self._own_gradient(source, task.layer))
        else:
            block = self._gradient_block(source)
            self.gradient[source] = block
            self.needed_by[block] = {source}
            task.outputs.append(block)
        task.targets.append(self.gradient[source])
        self.last_writer[source] = task

    def _own_gradient(self, name: str, during: Layer) -> int:
        """Return a layer's gradient block after copying it if another layer still needs what it holds."""
        shared = self.gradient[name]
        if self.needed_by[shared] == {name}:
            return shared
        own = self._gradient_block(name)
        copy = _Draft(f"copy({self.blocks[own].name})", during, "copy", inputs=[shared], outputs=[own])
        self.tasks.append(copy)
        self.needed_by[shared].remove(name)
        self.needed_by[own] = {name}
        self.gradient[name] = own
        return own

    def _gradient_block(self, name: str) -> int:
        feature = self.blocks[self.feature[name]]
        return self._block(f"d{feature.name}", feature.bytes)

    def _in_place(self, layer: Layer) -> bool:
        """Whether a layer overwrites its input: nobody else may read that, its own producer included."""
        if self.graph not in layer.kind.in_place:
            return False
        producer = self.network[layer.inputs[0]]
        if producer.kind.is_input or producer.kind.reads_output:
            return False
        if producer.relu and not layer.kind.in_place_after_relu:
            return False
        return len(self.network.consumers(producer.name)) == 1

    def _saved_bytes(self, layer: Layer) -> int:
        """Bytes that the forward pass keeps for the backward pass beside the output."""
        if layer.kind.saves == "mask":
            return self.batch * layer.shape.elements
        if layer.kind.saves == "statistics":
            return 2 * FLOAT_BYTES * layer.shape.channels if self.graph == "executable" else 0
        return FLOAT_BYTES * self.batch * layer.saved

    def _block(
        self,
        name: str,
        size: int,
        initially: Initially = "absent",
        finally_: Literal["anywhere", "device", "host"] = "anywhere",
    ) -> int:
        self.blocks.append(DataBlock(name, size, initially, finally_))
        return len(self.blocks) - 1

    def _bytes(self, layer: Layer) -> int:
        return self._number_bytes(layer) * self.batch * layer.shape.elements

    def _number_bytes(self, layer: Layer) -> int:
        """Bytes of a number of a layer's output: of an index where tables are looked up with it."""
        readers = self.network.consumers(layer.name) if layer.kind.is_input else ()
        is_index = any(reader.kind.operation == "lookup" for reader in readers)
        return FLOAT_BYTES if is_index else self.value_bytes
