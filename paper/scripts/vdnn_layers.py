"""What vDNN's motivation shows layer by layer (MICRO 2016, Figs. 1, 4 to 6 and 12), on the cost model.

``python paper/scripts/vdnn_layers.py`` prints the tables of docs/papers-vdnn.md; ``--write FILE``
puts them into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from pebbler.benchmark.output.markdown import markdown, publish
from pebbler.heuristics.papers.layers import LayerStep, layer_steps
from pebbler.instances.instance import Instance
from pebbler.instances.memory import fastest
from pebbler.instances.units import format_time
from pebbler.instances.workload import Workload
from vdnn import CONVENTIONAL, CUDNN, DEVICE, baseline_bytes, outcome

_BUDGET = 12 * 2**30
_CLASSIFIER = ("fc", "softmax", "dropout")
_WEIGHTS = "W("
"""How the names of weights begin where they are blocks."""

_GB = 10**9


@cache
def instance_of(network: str, batch: int, *, weights_as_blocks: bool = False) -> Instance:
    """A network on the paper's device, whose 12 GiB need not suffice."""
    workload = Workload(network, batch, DEVICE, "paper", weights_as_blocks=weights_as_blocks, cudnn=CUDNN)
    return workload.instance(_BUDGET, check_budget=False)


def unit_bytes(instance: Instance, unit: LayerStep) -> int:
    """Bytes that a layer's pass touches: its blocks, and the largest workspace of its fastest algorithms."""
    blocks = {d for k in unit.tasks for d in instance.tasks[k].blocks}
    workspace = max(fastest(instance)[k].workspace_bytes for k in unit.tasks)
    return sum(instance.blocks[d].bytes for d in blocks) + workspace


def unused_share(network: str, batch: int) -> float:
    """Share of the network-wide allocation that no layer uses at any one time (Fig. 1, right axis).

    A layer uses its own weights and their gradients, its maps and their gradients, and its workspace.
    """
    layerwise = instance_of(network, batch, weights_as_blocks=True)
    most = max(unit_bytes(layerwise, unit) for unit in layer_steps(layerwise))
    return 1 - most / baseline_bytes(instance_of(network, batch))


def breakdown(network: str, batch: int) -> dict[str, int]:
    """Network-wide allocation by what it is for (Fig. 4), in bytes; the sum is `baseline_bytes`."""
    instance = instance_of(network, batch)
    forward = {
        d for unit in layer_steps(instance) if unit.direction == "forward" for d in _blocks(instance, unit)
    }
    maps = sum(instance.blocks[d].bytes for d in forward)
    workspace = max(algorithm.workspace_bytes for algorithm in fastest(instance))
    return {
        "weights and their gradients": instance.resident_bytes,
        "feature maps": maps,
        "gradient maps": baseline_bytes(instance) - instance.resident_bytes - maps - workspace,
        "workspace": workspace,
    }


def feature_extraction_share(network: str, batch: int) -> float:
    """Share of the network-wide allocation that is not the classifier's (section III).

    The classifier has the weights of fully connected layers, with their gradients, and what its layers write.
    """
    instance, layerwise = instance_of(network, batch), instance_of(network, batch, weights_as_blocks=True)
    classifier = {k for unit in layer_steps(layerwise) if unit.kind in _CLASSIFIER for k in unit.tasks}
    read = {layerwise.blocks[d] for k in classifier for d in layerwise.tasks[k].inputs}
    weights = sum(block.bytes for block in read if block.name.startswith(_WEIGHTS))
    written = {d for u in layer_steps(instance) if u.kind in _CLASSIFIER for d in _outputs(instance, u)}
    own = 2 * weights + sum(instance.blocks[d].bytes for d in written)
    return 1 - own / baseline_bytes(instance)


def reuse_distance_ns(network: str, batch: int) -> int:
    """Time from the end of the first layer's forward pass to the start of its backward pass (Fig. 6)."""
    instance = instance_of(network, batch)
    passes = [unit for unit in layer_steps(instance) if unit.kind == "conv"]
    first = next(unit for unit in passes if unit.direction == "forward")
    back = next(unit for unit in reversed(passes) if unit.layer == first.layer)
    quickest = fastest(instance)
    return sum(quickest[k].duration_ns for k in range(max(first.tasks) + 1, min(back.tasks)))


def _blocks(instance: Instance, unit: LayerStep) -> set[int]:
    return {d for k in unit.tasks for d in instance.tasks[k].blocks}


def _outputs(instance: Instance, unit: LayerStep) -> set[int]:
    forward = unit.tasks if unit.direction == "forward" else ()
    return {d for k in forward for d in instance.tasks[k].outputs}


# --- tables -----------------------------------------------------------------------------------------------


def usage_table() -> str:
    """Figs. 1 and 4: the network-wide allocation, what it is for, and what is unused at any one time."""
    printed = {("alexnet", 128): "1.1", ("vgg16", 128): "15", ("vgg16", 256): "28"}
    parts = [breakdown(*which) for which in CONVENTIONAL]
    rows = []
    for (network, batch), part in zip(CONVENTIONAL, parts, strict=True):
        whole = sum(part.values())
        rows.append(
            (
                f"{network} ({batch})",
                printed.get((network, batch), ""),
                f"{whole / _GB:.2f}",
                *(f"{size / _GB:.2f}" for size in part.values()),
                f"{part['feature maps'] / whole:.0%}",
                f"{unused_share(network, batch):.0%}",
                f"{feature_extraction_share(network, batch):.0%}",
            )
        )
    rows.append(("printed", "", "", "", "", "", "", "grows with depth", "53 to 79 %", "81 % (AlexNet), 96 %"))
    header = (
        "network",
        "printed, GB",
        "network-wide, GB",
        *parts[0],
        "share of feature maps",
        "unused",
        "feature extraction",
    )
    return markdown(header, rows)


def layers_table() -> str:
    """Figs. 5 and 6: VGG-16, by layer: memory of the forward pass with 256 images, times with 64."""
    large, small = instance_of("vgg16", 256), instance_of("vgg16", 64)
    layerwise = instance_of("vgg16", 256, weights_as_blocks=True)
    weights = {block.name: block.bytes for block in layerwise.blocks if block.name.startswith(_WEIGHTS)}
    quickest = fastest(small)
    passes = layer_steps(small)
    starts = [sum(a.duration_ns for a in quickest[:k]) for k in range(len(quickest) + 1)]
    rows = []
    for unit in layer_steps(large):
        if unit.direction != "forward" or unit.kind not in ("conv", "fc"):
            continue
        workspace = max(fastest(large)[k].workspace_bytes for k in unit.tasks)
        forward, backward = (
            next(u for u in passes if u.layer == unit.layer and u.direction == direction)
            for direction in ("forward", "backward")
        )
        times = [sum(quickest[k].duration_ns for k in u.tasks) for u in (forward, backward)]
        distance = starts[min(backward.tasks)] - starts[max(forward.tasks) + 1]
        rows.append(
            (
                unit.layer,
                f"{(unit_bytes(large, unit) - workspace) / 1e6:.0f}",
                f"{workspace / 1e6:.0f}",
                f"{weights[f'{_WEIGHTS}{unit.layer})'] / 1e6:.1f}",
                *map(format_time, times),
                format_time(distance),
            )
        )
    header = ("layer", "maps, MB", "workspace, MB", "weights, MB", "forward", "backward", "reuse distance")
    return markdown(header, rows)


def distance_table() -> str:
    """Section III: the reuse distance of the first layer's input."""
    rows = [
        (f"{network} ({batch})", printed, format_time(reuse_distance_ns(network, batch)))
        for network, batch, printed in (
            ("alexnet", 128, "more than 60 ms"),
            ("vgg16", 64, "more than 1200 ms"),
        )
    ]
    return markdown(("network", "printed", "ours"), rows)


def pinned_table() -> str:
    """Fig. 12: host memory that holds what was offloaded, by policy."""
    rows = []
    for network, batch in CONVENTIONAL:
        pinned = [
            outcome(instance_of(network, batch), policy).pinned for policy in ("all-m", "conv-m", "dyn")
        ]
        rows.append((f"{network} ({batch})", *(f"{size / _GB:.2f}" for size in pinned)))
    rows.append(("printed", "up to 16", "", ""))
    return markdown(("network", "all, GB", "conv, GB", "dyn, GB"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "usage": usage_table,
    "layers": layers_table,
    "distance": distance_table,
    "pinned": pinned_table,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python paper/scripts/vdnn_layers.py", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to put the tables into")
    options = parser.parse_args(arguments)
    for name, table in TABLES.items():
        publish(table(), options.write, f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n")


if __name__ == "__main__":
    main()
