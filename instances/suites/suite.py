"""Suites: sets of instances worth citing, each described by a file in ``suites/``.

Instances are built on demand, or they are files that never change: those of ``suites/frozen/``.
"""

from __future__ import annotations

import difflib
import gzip
import re
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Annotated, Literal

import msgspec
import numpy as np

from ..arguments import require_kind
from ..errors import PebblerError
from ..files import decode
from ..instance import Instance
from ..networks.taskgraph import Graph
from ..workload import Workload
from .generators import Knobs, generate
from .shapes import Shape

_USUAL = ("executable", "duplex")
"""Options that are not part of an instance's name."""

_Filled = msgspec.Meta(min_length=1)
"""Rule that a text or a list is not empty."""


class Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Random instances of one shape, one for each seed; an instance's name is `name` and the seed."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+$")]
    shape: Shape
    seeds: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], _Filled]
    knobs: Knobs = Knobs()


class Real(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network on a device, with one instance for each graph and budget.

    Attributes
    ----------
    network, batch, device, cudnn, engines
        As in a `Workload`.
    graphs
        Graphs of the instances.
    sub_batch
        Number of images of a round; by default the batch.
    budgets
        Budgets in the usual form: ``12GiB``, ``50%``, ``1.05xMmin``.
    source
        The experiment that the instances are from.
    """

    network: str
    batch: Annotated[int, msgspec.Meta(ge=1)]
    device: str
    cudnn: str | None = None
    budgets: Annotated[tuple[str, ...], _Filled]
    graphs: Annotated[tuple[Graph, ...], _Filled] = ("executable",)
    engines: Literal["duplex", "single"] = "duplex"
    sub_batch: Annotated[int, msgspec.Meta(ge=1)] | None = None
    source: str | None = None


class Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Instances of one kind that are files, and never change.

    Attributes
    ----------
    kind, purpose
        What they have in common, in a word and in a sentence.
    memory
        The memory model in which they are solved.
    instances
        The SHA-256 of each instance's file, by the instance's name.
    """

    kind: Annotated[str, _Filled]
    purpose: Annotated[str, _Filled]
    memory: Literal["contiguous", "paged"]
    instances: Annotated[dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]], _Filled]

    def content(self, name: str) -> bytes:
        """Return the bytes of an instance's file.

        Raises
        ------
        PebblerError
            When they are not those that are listed, so that pebbler is not as it was installed.
        """
        file = f"{name}.instance.json.gz"
        try:
            data = gzip.decompress(resources.files(__package__).joinpath("frozen", file).read_bytes())
        except (OSError, EOFError, zlib.error):
            data = b""
        if sha256(data).hexdigest() != self.instances[name]:
            raise PebblerError(f"{file} of pebbler is not as it was frozen; install pebbler again")
        return data


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A set of instances worth citing: the content of a suite's file.

    Attributes
    ----------
    title
        Description of the suite in a line.
    drawn, real, frozen
        Its instances: random ones, networks, and files.
    """

    title: str
    drawn: tuple[Drawn, ...] = ()
    real: tuple[Real, ...] = ()
    frozen: tuple[Frozen, ...] = ()


@dataclass(frozen=True, slots=True)
class Member:
    """An instance of a suite that has not been built yet."""

    name: str
    source: tuple[Frozen] | tuple[Drawn, int] | tuple[Real, Graph, str]

    @property
    def frozen(self) -> Frozen | None:
        """What is known of it if it is a file that never changes, else None."""
        return self.source[0] if len(self.source) == 1 else None

    def build(self) -> Instance:
        """Build the instance, or read it where it is frozen.

        Raises
        ------
        BudgetError
            When its budget is below the minimum, which is a defect of the suite.
        PebblerError
            When it is frozen, and its file is not as it was.
        """
        if len(self.source) == 1:
            return decode(self.source[0].content(self.name), Instance, "an instance", self.name)
        if len(self.source) == 2:
            drawn, seed = self.source
            rng = np.random.Generator(np.random.PCG64(seed))
            return generate(self.name, drawn.shape, drawn.knobs, rng)
        real, graph, budget = self.source
        workload = Workload(real.network, real.batch, real.device, graph, real.engines, cudnn=real.cudnn)
        b = real.sub_batch or real.batch
        instance = workload.instance(budget, b, rounds=real.batch // b)
        meta = instance.meta if real.source is None else {**instance.meta, "experiment": real.source}
        return msgspec.structs.replace(instance, name=self.name, meta=meta)


def list_suites() -> tuple[str, ...]:
    """Return the names of all suites."""
    folder = resources.files(__package__)
    return tuple(
        sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    )


def find_suite(name: str) -> Suite:
    """Return the suite with a name.

    Parameters
    ----------
    name
        A name that `list_suites` returns.

    Returns
    -------
    Suite
        The suite; `members` yields its instances.

    Raises
    ------
    PebblerError
        When there is no such suite; the message lists similar names.
    """
    require_kind("a suite", name, str, "give its name, one that list_suites has")
    return _found(name)


@cache
def _found(name: str) -> Suite:
    names = list_suites()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(names)}"
        raise PebblerError(f"there is no suite '{name}'; {hint}")
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Suite)


def members(suite: Suite) -> Iterator[Member]:
    """Yield the instances of a suite, in the order of its file."""
    for frozen in suite.frozen:
        for name in frozen.instances:
            yield Member(name, (frozen,))
    for drawn in suite.drawn:
        for seed in drawn.seeds:
            yield Member(f"{drawn.name}-s{seed}", (drawn, seed))
    for real in suite.real:
        start = f"{real.network}-b{real.sub_batch or real.batch}-{real.device}"
        library = [] if real.cudnn is None else [f"cudnn{real.cudnn}"]
        for graph in real.graphs:
            for budget in real.budgets:
                words = [start, *library, budget, *(w for w in (graph, real.engines) if w not in _USUAL)]
                name = re.sub(r"[^a-z0-9.]+", "-", "-".join(words).lower()).strip("-")
                yield Member(name, (real, graph, budget))
