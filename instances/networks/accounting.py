"""How much memory a network takes, as each paper counts it: bytes from layer shapes, without workspaces.

The rules are made for the convolutional networks that the papers train. ReLU, batch norm and dropout are in
place in all of them, as in Caffe; the loss counts for nothing.
"""

from __future__ import annotations

from .network import Layer, Network
from .taskgraph import FLOAT_BYTES, task_graph


def totals(network: Network, batch: int) -> dict[str, int]:
    """Return the total of every rule that the papers state, in bytes, by the rule's name."""
    return {
        "vdnn_network_wide": vdnn_network_wide(network, batch),
        "modnn_ideal": modnn_ideal(network, batch),
        "modnn_lower_bound": modnn_lower_bound(network),
        "layrub_data_and_gradient": layrub_data_and_gradient(network, batch),
    }


def vdnn_network_wide(network: Network, batch: int) -> int:
    """Network-wide allocation: every output and the input, twice the largest gradient, weights and gradients.

    Source: vDNN (MICRO 2016), sections II-B and IV-A.
    """
    blobs = _blobs(network)
    largest = max(layer.shape.elements for layer in blobs if not layer.kind.is_input)
    values = sum(layer.shape.elements for layer in blobs) + 2 * largest
    return FLOAT_BYTES * (batch * values + 2 * network.parameters)


def modnn_ideal(network: Network, batch: int) -> int:
    """Ideal case: every output and its derivative, the input, weights and their gradients.

    Source: moDNN (TPDS 2019), section 7.1.
    """
    values = sum((1 if layer.kind.is_input else 2) * layer.shape.elements for layer in _blobs(network))
    return FLOAT_BYTES * (batch * values + 2 * network.parameters)


def modnn_lower_bound(network: Network) -> int:
    """Least memory: weights, their gradients, and the largest task with one image, on the paper graph.

    Source: moDNN (TPDS 2019), equation 7.
    """
    graph = task_graph(network, 1, "paper")
    footprints = (
        sum(graph.blocks[d].bytes for d in (*task.inputs, *task.outputs, *task.updates))
        for task in graph.tasks
    )
    return graph.resident_bytes + max(footprints)


def layrub_data_and_gradient(network: Network, batch: int) -> int:
    """Intermediate data of Caffe: data and gradient of every blob; a gradient more for each reader of a fork.

    Caffe's Split layer shares the data of a blob with several readers, but not its gradient. The input has no
    gradient.

    Source: Layrub (TACO 2018), Table 1 and section 5.1.
    """
    values = 0
    for layer in _blobs(network):
        readers = _readers(network, layer)
        gradients = 0 if layer.kind.is_input else 1 + (readers if readers > 1 else 0)
        values += layer.shape.elements * (1 + gradients)
    return FLOAT_BYTES * batch * values


def layrub_resident(network: Network) -> int:
    """Model of what Layrub's process occupies on a K40M for a bottleneck ResNet with a batch of 32.

    Three times the weights (with gradients and momentum; Caffe's running statistics of batch norm count as
    weights), 2.665 MiB for every convolution and 1371 MiB. Fitted to ResNet-50 and ResNet-302; deeper ones
    are predictions.

    Source: Layrub (TACO 2018), Table 6.
    """
    statistics = sum(2 * layer.shape.channels for layer in network.layers if layer.kind.saves == "statistics")
    convolutions = sum(layer.kind.operation == "convolution" for layer in network.layers)
    fitted = (2_665 * convolutions + 1_371_000) * 2**20 // 1000
    return 3 * FLOAT_BYTES * (network.parameters + statistics) + fitted


def _blobs(network: Network) -> list[Layer]:
    """Layers with an output of their own."""
    return [layer for layer in network.layers if not (_in_place(layer) or layer.kind.is_loss)]


def _in_place(layer: Layer) -> bool:
    """Whether the papers count it as in place."""
    return "paper" in layer.kind.in_place


def _readers(network: Network, layer: Layer) -> int:
    """Number of layers that read the output of a layer, past those that work on it in place."""
    consumers = network.consumers(layer.name)
    while len(consumers) == 1 and _in_place(consumers[0]):
        consumers = network.consumers(consumers[0].name)
    return len(consumers)
