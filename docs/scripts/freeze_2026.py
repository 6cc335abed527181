"""How the instances of the suite pebbler-2026 were made, which are files from then on.

``python docs/scripts/freeze_2026.py -o FOLDER`` makes all of them anew, but for the training steps of torch,
and writes their files; ``--kind torch`` makes these, where torch is installed. Their times were measured, so
that each run gives others. Those of networks change with the cost model. The suite itself never changes: its
files lie in ``instances/suites/pebbler-2026``. This script says what is in them.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from pebbler import Instance, Workload
from pebbler.instances.files import encode, write_atomically
from pebbler.instances.instance import Slowdown
from pebbler.instances.memory import with_host_memory
from pebbler.instances.suites.generators import Knobs, generate
from pebbler.instances.suites.shapes import (
    Chain,
    Dense,
    Inception,
    Layered,
    Recurrent,
    Residual,
    Shape,
    UShaped,
)
from pebbler.instances.transforms import split_parts, with_recomputation
from pebbler.instances.units import PAGE_BYTES

MIB = 2**20
SEED = 2026

Memory = Literal["contiguous", "paged"]

SLOWDOWN = Slowdown(offload=47_000, prefetch=47_000)
"""What copies of either direction take of a task's speed, in millionths: the most that vDNN measures."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An instance to be made, and its memory model."""

    kind: str
    name: str
    memory: Memory
    make: Callable[[], Instance]

    def instance(self) -> Instance:
        """Make it under its name in the suite."""
        return msgspec.structs.replace(self.make(), name=self.name)


def choices(kind: str | None = None) -> list[Choice]:
    """Return what is chosen, of one kind or of all but torch, in the order of the suite."""
    if kind == "torch":
        from steps_2026 import steps

        return [Choice("torch", f"torch-{name}", "contiguous", make) for name, make in steps()]
    return [choice for choice in _all() if kind in (None, choice.kind)]


def _all() -> Iterator[Choice]:
    yield from _papers()
    yield from _tight()
    yield from _transformers()
    yield from _parts()
    yield from _recompute()
    yield from _host()
    yield from _steady()
    yield from _link()
    yield from _scaling()
    yield from _pack()
    yield from _random()


def _papers() -> Iterator[Choice]:
    """Networks that vDNN, moDNN and Layrub offload on a single GPU."""
    for network, batch, sub_batch, device, budget, memory in (
        ("alexnet_caffe", 256, 256, "K40", "1800MiB", "contiguous"),
        ("googlenet", 128, 128, "TitanX", "2GiB", "contiguous"),
        ("vgg16", 256, 256, "K40", "12GiB", "contiguous"),
        ("vgg16", 256, 64, "K40", "4GiB", "contiguous"),
        ("vgg19", 256, 128, "K40", "8GiB", "paged"),
        ("vgg101b", 128, 128, "K40", "8GiB", "contiguous"),
        ("vgg116", 32, 32, "TitanX", "12GiB", "contiguous"),
        ("vgg416", 32, 32, "TitanX", "12GiB", "paged"),
        ("resnet34", 256, 256, "K40", "4GiB", "contiguous"),
        ("resnet34", 256, 256, "K40", "3GiB", "contiguous"),
        ("resnet152", 256, 256, "K40", "8GiB", "contiguous"),
        ("resnet302", 32, 32, "TitanZ", "6082MiB", "paged"),
        ("fcn", 128, 128, "K40", "8GiB", "contiguous"),
        ("wrn28_10", 128, 128, "K40", "1GiB", "paged"),
    ):
        workload = Workload(network, batch, device)
        name = _slug("papers", network, f"b{sub_batch}", device, budget)
        make = partial(workload.instance, budget, sub_batch, rounds=batch // sub_batch)
        yield Choice("papers", name, _memory(memory), make)


def _tight() -> Iterator[Choice]:
    """Budgets close to the least possible."""
    for network, batch, device, budget, memory in (
        ("alexnet", 128, "K40", "1.02xMmin", "contiguous"),
        ("alexnet", 128, "K40", "1.05xMmin", "contiguous"),
        ("googlenet", 128, "K40", "1.05xMmin", "paged"),
        ("vgg16", 64, "V100", "1.05xMmin", "contiguous"),
        ("vgg16", 256, "K40", "1.1xMmin", "contiguous"),
        ("resnet50", 32, "K40", "1.1xMmin", "paged"),
        ("resnet152", 32, "K40", "1.1xMmin", "contiguous"),
        ("wrn28_10", 128, "K40", "1.05xMmin", "paged"),
        ("unet", 8, "K40", "1.1xMmin", "contiguous"),
    ):
        yield _network("tight", network, batch, device, budget, _memory(memory))
    for shape, slack in (("chain", 5), ("dense", 10), ("u-shaped", 5), ("layered", 15), ("inception", 10)):
        knobs = Knobs(slack_percent=slack, transfer_percent=50)
        yield _drawn("tight", f"{shape}-slack{slack}", SHAPES[shape], knobs, "paged")


def _transformers() -> Iterator[Choice]:
    """Transformers and other networks of today, on devices of today."""
    for network, batch, device, budget, memory in (
        ("gpt2", 8, "V100", "1.1xMmin", "paged"),
        ("gpt2", 8, "V100", "85%", "contiguous"),
        ("gpt2_medium", 8, "A100", "60%", "paged"),
        ("llama_block", 8, "A100", "1.1xMmin", "paged"),
        ("llama32_1b", 4, "A100", "80%", "contiguous"),
        ("vit_b16", 128, "V100", "60%", "paged"),
        ("vit_b16", 128, "A100", "75%", "contiguous"),
        ("vit_l16", 64, "A100", "60%", "paged"),
        ("convnext_t", 64, "K40", "1.25xMmin", "paged"),
        ("convnext_t", 64, "A100", "85%", "paged"),
        ("sd15_unet", 8, "H200", "60%", "paged"),
        ("sd15_unet", 8, "H200", "85%", "contiguous"),
    ):
        yield _network("transformers", network, batch, device, budget, _memory(memory))


def _parts() -> Iterator[Choice]:
    """Tensors in parts, which leave and come back one by one."""
    for network, batch, device, budget, size in (
        ("alexnet", 128, "K40", "1.05xMmin", 16),
        ("vgg16", 64, "K40", "1.1xMmin", 64),
        ("vgg16", 256, "V100", "75%", 256),
        ("googlenet", 128, "TitanX", "1.5xMmin", 32),
        ("resnet50", 32, "K40", "1.25xMmin", 16),
        ("unet", 8, "K40", "1.25xMmin", 128),
        ("gpt2", 8, "V100", "85%", 128),
        ("vit_b16", 128, "A100", "75%", 64),
    ):
        workload = Workload(network, batch, device)
        name = _slug("parts", network, f"b{batch}", device, budget, f"{size}mib")

        def make(workload: Workload = workload, budget: str = budget, size: int = size) -> Instance:
            return split_parts(workload.instance(budget), size * MIB)

        yield Choice("parts", name, "paged", make)


def _recompute() -> Iterator[Choice]:
    """Forward tasks may run again, beside copies or, where nothing moves, in place of them."""
    for network, batch, device, budget, memory in (
        ("alexnet", 128, "K40", "1.05xMmin", "contiguous"),
        ("vgg16", 64, "K40", "75%", "contiguous"),
        ("resnet50", 32, "V100", "50%", "paged"),
        ("gpt2", 8, "A100", "70%", "paged"),
    ):
        workload = Workload(network, batch, device)

        def make(workload: Workload = workload, budget: str = budget) -> Instance:
            return with_recomputation(workload.instance(budget))

        name = _slug("recompute", network, f"b{batch}", device, budget)
        yield Choice("recompute", name, _memory(memory), make)
    for shape, transfer, slack in (
        ("chain", 60, 80),
        ("residual", 200, 60),
        ("u-shaped", 100, 70),
        ("small-chain", 0, 60),
        ("small-residual", 0, 70),
    ):
        knobs = Knobs(slack_percent=slack, transfer_percent=transfer, recomputable_percent=100)
        yield _drawn("recompute", f"{shape}-copies{transfer}", SHAPES[shape], knobs, "contiguous")


def _host() -> Iterator[Choice]:
    """Host memory that ends: not everything that has to leave may be there at once."""
    for network, batch, device, budget, host in (
        ("vgg16", 64, "K40", "1.25xMmin", "1500MiB"),
        ("vgg16", 256, "V100", "75%", "5GiB"),
        ("resnet50", 32, "K40", "50%", "1500MiB"),
        ("resnet152", 64, "K40", "60%", "5GiB"),
        ("gpt2", 8, "V100", "85%", "2GiB"),
        ("unet", 8, "K40", "70%", "2GiB"),
    ):
        workload = Workload(network, batch, device, host_memory=host)
        name = _slug("host", network, f"b{batch}", device, budget, host)
        yield Choice("host", name, "paged", partial(workload.instance, budget))
    for shape, host_mib in (("residual", 200), ("layered", 200)):
        knobs = Knobs(slack_percent=60, transfer_percent=50)
        whole = _drawn("host", f"{shape}-{host_mib}mib", SHAPES[shape], knobs, "contiguous")

        def limited(whole: Choice = whole, host_mib: int = host_mib) -> Instance:
            return with_host_memory(whole.make(), host_mib * MIB)

        yield Choice("host", whole.name, "contiguous", limited)


def _steady() -> Iterator[Choice]:
    """Iterations of a steady state with an optimizer: weights end where they began."""
    for network, batch, device, optimizer, side, budget in (
        ("alexnet", 256, "K40", "sgd", "device", "75%"),
        ("vgg16", 64, "K40", "adam", "device", "75%"),
        ("vgg16", 64, "K40", "adam", "choose", "85%"),
        ("resnet50", 64, "K40", "momentum", "device", "50%"),
        ("gpt2", 8, "V100", "sgd", "device", "50%"),
        ("gpt2", 8, "V100", "adamw", "choose", "85%"),
        ("gpt2_medium", 4, "V100", "adamw", "host", "85%"),
        ("llama32_1b", 1, "A100", "adamw", "device", "85%"),
        ("vit_b16", 64, "V100", "adamw", "device", "85%"),
    ):
        told: dict[str, Any] = {"steady": True, "optimizer": optimizer, "optimizer_on": side}
        workload = Workload(network, batch, device, **told)
        name = _slug("steady", network, f"b{batch}", device, optimizer, side, budget)
        yield Choice("steady", name, "paged", partial(workload.instance, budget))


def _link() -> Iterator[Choice]:
    """Copies that share a link, or that slow tasks down."""
    for network, batch, device, both, budget, slowed in (
        ("alexnet", 256, "K40", "17.1GB/s", "75%", False),
        ("vgg16", 256, "K40", "17.1GB/s", "85%", True),
        ("vgg16", 256, "K40", "17.1GB/s", "75%", False),
        ("resnet152", 64, "K40", "17.1GB/s", "60%", True),
        ("gpt2", 8, "A100", "measured", "85%", False),
        ("vit_b16", 128, "A100", "measured", "75%", False),
    ):
        workload = Workload(network, batch, device, link_both=both)
        words = ["slowed"] if slowed else []
        name = _slug("link", network, f"b{batch}", device, budget, *words)

        def make(workload: Workload = workload, budget: str = budget, slowed: bool = slowed) -> Instance:
            instance = workload.instance(budget)
            if not slowed:
                return instance
            tasks = (msgspec.structs.replace(task, slowdown_ppm=SLOWDOWN) for task in instance.tasks)
            return msgspec.structs.replace(instance, tasks=tuple(tasks))

        yield Choice("link", name, "paged", make)


def _scaling() -> Iterator[Choice]:
    """The same shapes with a thousand tasks and more."""
    for shape, memory in (
        ("chain-1000", "contiguous"),
        ("residual-1000", "paged"),
        ("recurrent-1000", "contiguous"),
        ("layered-1000", "paged"),
        ("chain-2000", "paged"),
        ("residual-3000", "paged"),
    ):
        knobs = Knobs(slack_percent=60, transfer_percent=40)
        yield _drawn("scaling", shape, SHAPES[shape], knobs, _memory(memory))


def _pack() -> Iterator[Choice]:
    """Nothing ever moves: which fast algorithms have room, and at which addresses, is all there is."""
    for shape, slack in (
        ("chain", 104),
        ("residual", 102),
        ("dense", 105),
        ("inception", 106),
        ("u-shaped", 103),
        ("layered", 104),
        ("recurrent", 103),
    ):
        knobs = Knobs(
            transfer_percent=0, slack_percent=slack, fast_percent=100, gain_percent=50, workspace_percent=100
        )
        yield _drawn("pack", f"{shape}-slack{slack}", SHAPES[shape], knobs, "contiguous")


def _random() -> Iterator[Choice]:
    """Seven shapes, from few copies to many, with and without workspaces, and with one copy engine."""
    for index, shape in enumerate(
        ("chain", "residual", "inception", "dense", "u-shaped", "recurrent", "layered")
    ):
        computes = Knobs(transfer_percent=40, slack_percent=30, octaves=2)
        even = Knobs(transfer_percent=70, slack_percent=60)
        yield _drawn("random", f"{shape}-computes", SHAPES[shape], computes, MEMORY[index % 2])
        yield _drawn("random", f"{shape}-even", SHAPES[shape], even, MEMORY[(index + 1) % 2])
    copies = Knobs(transfer_percent=300, slack_percent=70)
    for shape in ("chain", "residual", "layered"):
        yield _drawn("random", f"{shape}-copies", SHAPES[shape], copies, "paged")
    single = Knobs(engines="single", host_input=True, slack_percent=60, transfer_percent=40)
    for shape in ("chain", "residual", "layered"):
        yield _drawn("random", f"{shape}-single", SHAPES[shape], single, "contiguous")
    workspaces = Knobs(
        fast_percent=90, gain_percent=60, workspace_percent=80, slack_percent=50, transfer_percent=50
    )
    for shape in ("inception", "dense", "recurrent"):
        yield _drawn("random", f"{shape}-workspaces", SHAPES[shape], workspaces, "contiguous")


PURPOSES = {
    "papers": "networks that vDNN, moDNN and Layrub offload on one GPU, with their budgets or smaller ones",
    "tight": "budgets close to the least possible",
    "transformers": "transformers and other networks of today, on devices of today",
    "torch": "whole training steps of torch with clipping and the optimizer, as recorded",
    "parts": "tensors in parts, which leave and come back one by one",
    "recompute": "forward tasks may run again, beside copies or, where nothing moves, in place of them",
    "host": "host memory that ends, so that not everything that has to leave is there at once",
    "steady": "iterations of a steady state with an optimizer: weights end where they began",
    "link": "copies that share a link with those of the other direction, or that slow tasks down",
    "scaling": "a thousand tasks and more",
    "pack": "nothing moves: which fast algorithms have room, and at which addresses, is all there is",
    "random": "seven shapes, from few copies to many, with workspaces, and with one copy engine",
}
"""Kinds of instances, and what each is for."""

MEMORY: tuple[Memory, Memory] = ("contiguous", "paged")

SHAPES: dict[str, Shape] = {
    "chain": Chain(layers=40),
    "residual": Residual(blocks=12, depth=2),
    "inception": Inception(modules=6, branches=4),
    "dense": Dense(blocks=4, layers=6),
    "u-shaped": UShaped(levels=4, width=2),
    "recurrent": Recurrent(layers=3, steps=12),
    "layered": Layered(size=60, width=4),
    "small-chain": Chain(layers=16),
    "small-residual": Residual(blocks=5, depth=2),
    "chain-1000": Chain(layers=500),
    "residual-1000": Residual(blocks=166, depth=2),
    "recurrent-1000": Recurrent(layers=4, steps=125),
    "layered-1000": Layered(size=500, width=12),
    "chain-2000": Chain(layers=1000),
    "residual-3000": Residual(blocks=500, depth=2),
}
"""Shapes of random instances, by the word in their names."""


def _network(kind: str, network: str, batch: int, device: str, budget: str, memory: Memory) -> Choice:
    workload = Workload(network, batch, device)
    name = _slug(kind, network, f"b{batch}", device, budget)
    return Choice(kind, name, memory, partial(workload.instance, budget))


def _drawn(kind: str, word: str, shape: Shape, knobs: Knobs, memory: Memory) -> Choice:
    name = _slug(kind, word)
    seed = [SEED, *name.encode()]
    if memory == "paged":
        knobs = msgspec.structs.replace(knobs, unit_bytes=2 * PAGE_BYTES, grid_bytes=PAGE_BYTES)

    def make() -> Instance:
        return generate(name, shape, knobs, np.random.Generator(np.random.PCG64(seed)))

    return Choice(kind, name, memory, make)


def _memory(word: str) -> Memory:
    return "paged" if word == "paged" else "contiguous"


def _slug(*words: str) -> str:
    text = "-".join(words).lower().replace("%", "pc").replace("_", "-")
    return "".join(letter for letter in text if letter.isalnum() or letter in "-.")


def entries(made: Sequence[tuple[Choice, str]]) -> str:
    """Return the part of the suite's file that lists instances, with the checksums of their files."""
    groups: dict[tuple[str, Memory], list[str]] = {}
    for choice, checksum in made:
        line = f'"{choice.name}" = "{checksum}"\n'
        groups.setdefault((choice.kind, choice.memory), []).append(line)
    return "".join(
        f'\n[[frozen]]\nkind = "{kind}"\nmemory = "{memory}"\npurpose = "{PURPOSES[kind]}"\n\n'
        f"[frozen.instances]\n{''.join(lines)}"
        for (kind, memory), lines in groups.items()
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the files of the instances, and print what the suite's file says of them."""
    parser = argparse.ArgumentParser(prog="python docs/scripts/freeze_2026.py", description=__doc__)
    parser.add_argument("--kind", choices=PURPOSES, help="of one kind only; default: of all but torch")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    made = []
    for choice in choices(options.kind):
        data = encode(choice.instance())
        place = options.output / f"{choice.name}.instance.json.gz"
        write_atomically(place, gzip.compress(data, mtime=0))
        made.append((choice, sha256(data).hexdigest()))
    print(entries(made), end="")


if __name__ == "__main__":
    main()
