"""Policies that others have written as methods: ``policy:FILE`` does what the file says with saved tensors.

A file has tags, a line ``NAME TAG`` for each saved tensor, as `exports.torch_tags` writes them, or the
forward graph that the partitioner of torch has made and logged.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

from ...instances.arguments import quoted
from ...instances.errors import FormatError, PebblerError
from ...instances.files import read_bytes, sha256_of
from ...instances.foreign.fx import SavedValues, has_forward, saved_values
from ...instances.instance import Instance
from ..clock import limited
from ..methods import Answer, Limits, MethodInfo, Refusal, register_prefix
from ..recomputation.plan import NOTHING_AGAIN, Policy, recomputed, restorable, turn
from ..recomputation.rules import planned
from .exports import TAGS, Treatment
from .saved import activations

PREFIX = "policy"
"""What the name of such a method begins with, before a colon."""

_TREATMENT = {tag: treatment for treatment, tag in TAGS.items()}


def policy_sha256(method: str) -> str | None:
    """Return the checksum of the file that a method follows; None for another method, or without a file."""
    prefix, _, file = method.partition(":")
    return sha256_of(file) if prefix == PREFIX and Path(file).is_file() else None


@lru_cache(maxsize=64)
def _found(name: str) -> MethodInfo:
    """Return the method of a file, whether that is there or not."""
    file = name.removeprefix(f"{PREFIX}:")
    if not file:
        raise PebblerError(f"'{name}' names no file; give one, such as {PREFIX}:tags.txt")
    return MethodInfo(
        name,
        f"what {file} says of each saved tensor",
        "docs/production.md",
        limited(partial(_followed, name, file)),
        shown="named",
        transform=planned,
    )


register_prefix(PREFIX, _found)


def _followed(name: str, file: str, instance: Instance, limits: Limits) -> Answer:
    """Keep, copy out and compute again as a file says; a copy comes back when it is needed.

    Raises
    ------
    Refusal
        When the file cannot be read or is of another graph, what it drops cannot be computed again, or there
        is no room.
    """
    try:
        data = read_bytes(file)
        if has_forward(data):
            policy = _of_partition(instance, saved_values(data, file), file)
        else:
            policy = _of_tags(instance, data, file)
    except PebblerError as error:
        raise Refusal(str(error)) from None
    return Answer(recomputed(instance, limits, policy, name))


def _of_partition(instance: Instance, partition: SavedValues, file: str) -> Policy:
    """Keep the memory of what torch's forward graph returns, and drop all else that can be computed again.

    Torch may make in the forward pass what the backward pass alone reads. Here that is made in the backward
    pass, and what it is made of is saved instead.
    """
    blocks_of, end = _blocks_of(instance), turn(instance)
    saved: set[int] = set()
    stack = [d for name in partition.names for d in _resolved(name, partition, blocks_of, instance, file)]
    while stack:
        d = stack.pop()
        writers = instance.writers[d]
        if writers and writers[0] >= end:
            stack.extend(instance.tasks[writers[0]].inputs)
        else:
            saved.add(d)
    again = restorable(instance).intersection(activations(instance))
    if not again:
        raise Refusal(NOTHING_AGAIN)
    return Policy(again - saved, saved=saved, once=True)


def _resolved(
    name: str, partition: SavedValues, blocks_of: dict[str, list[int]], instance: Instance, file: str
) -> list[int]:
    """Return the blocks that have the memory of a node of torch; none for parameters, which are no blocks."""
    node = name
    while node not in blocks_of and node in partition.views:
        node = partition.views[node]
    if node in blocks_of:
        return blocks_of[node]
    if node.startswith("primals_"):
        return []
    raise FormatError(
        f"{file} saves {quoted(name)}, and {instance.name} has no such tensor; give the joint graph of the "
        "same compilation"
    )


def _of_tags(instance: Instance, data: bytes, file: str) -> Policy:
    """Do with each tensor what its tag says; tensors without a tag are kept."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise FormatError(f"{file} is neither UTF-8 nor what torch logs; give lines 'NAME TAG'") from None
    blocks_of = _blocks_of(instance)
    by: dict[Treatment, set[int]] = {treatment: set() for treatment in TAGS}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, tag = line.strip().rpartition(" ")
        if tag not in _TREATMENT or not name:
            raise FormatError(
                f"{file}, line {number}: {quoted(line)} is no tensor with one of {', '.join(_TREATMENT)}"
            )
        if name not in blocks_of:
            raise FormatError(f"{file}, line {number}: {instance.name} has no tensor {quoted(name)}")
        by[_TREATMENT[tag]].update(blocks_of[name])
    _require(by["recompute"] - restorable(instance), instance, file, "computed again")
    copied = {d for d in by["offload"] if instance.blocks[d].offload_ns is not None}
    _require(by["offload"] - copied, instance, file, "copied out")
    return Policy(by["recompute"], by["offload"], by["keep"])


def _blocks_of(instance: Instance) -> dict[str, list[int]]:
    """Return the blocks of each tensor, by its name: several where it is in parts."""
    found: dict[str, list[int]] = {}
    for d, block in enumerate(instance.blocks):
        found.setdefault(block.tensor or block.name, []).append(d)
    return found


def _require(left: set[int], instance: Instance, file: str, what: str) -> None:
    """Refuse blocks with which a file does what cannot be done."""
    if left:
        name = instance.blocks[min(left)].name
        raise FormatError(f"{file}: {quoted(name)} of {instance.name} cannot be {what}; give it another tag")
