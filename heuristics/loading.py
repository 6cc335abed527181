"""Code that methods load or compile before the clock of their time limit starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from msgspec.structs import replace

from ..instances.compiling import telling_of_compiling
from ..instances.gpus.cluster import Cluster, Gradient
from ..instances.instance import Algorithm, Block, Instance, Task
from .methods import Limits, Method

Loader = Callable[[Limits], None]
"""A function that loads something for a method. If the thing is loaded already, it returns quickly."""

_loaders: dict[Method, tuple[Loader, ...]] = {}
"""Loaders of each method that has any."""


def loads(*loaders: Loader) -> Callable[[Method], Method]:
    """Note which loaders a method needs (a decorator; it stands below the one that registers the method)."""

    def note(method: Method) -> Method:
        _loaders[method] = loaders
        return method

    return note


def load_for(method: Method, limits: Limits) -> None:
    """Call the loaders of a method."""
    for loader in _loaders.get(method, ()):
        loader(limits)


def kernels(_: Limits) -> None:
    """Compile the kernels of local search, or load them from Numba's cache."""
    _kernels()


@cache
def _kernels() -> None:
    from .search.search import LocalSearch  # with it comes Numba

    with telling_of_compiling():
        search = LocalSearch(_small(), "contiguous")
        search.run(work=1)
        search.suggest(search.guide())
        search.schedule("small")


def plan_kernels(_: Limits) -> None:
    """Compile the search over plans of what runs again, or load it from Numba's cache."""
    _plan_kernels()


@cache
def _plan_kernels() -> None:
    from .recomputation.search import RerunSearch  # with it comes Numba

    small = _small()
    blocks = tuple(replace(block, offload_ns=None, prefetch_ns=None) for block in small.blocks)
    tasks = tuple(replace(task, recomputable=True) for task in small.tasks)
    with telling_of_compiling():
        RerunSearch(replace(small, blocks=blocks, tasks=tasks), "paged").run(work=1)


@cache
def cluster_kernels() -> None:
    """Compile what local search on several GPUs has beside the kernels, or load it from Numba's cache."""
    from .search.cluster import ClusterSearch  # with it comes Numba

    gradient = Gradient(name="dW", bytes=512, offload_ns=1, prefetch_ns=1, produced_by=3, used_by=())
    shared = Cluster(
        gpus=2,
        bus_bytes_per_second=10**9,
        core_bytes_per_second=10**9,
        host_bytes_per_second=10**9,
        gradients=(gradient,),
    )
    with telling_of_compiling():
        ClusterSearch(replace(_small(), cluster=shared), _small(), 0, ())


def _small() -> Instance:
    """Return two layers and their backward pass, with a budget under which a block must leave and return."""
    blocks = tuple(
        Block(name=name, bytes=512, offload_ns=1, prefetch_ns=1, move_ns=1)
        for name in ("first", "second", "third", "fourth")
    )
    uses = (((), (0,)), ((0,), (1,)), ((1,), (2,)), ((0, 2), (3,)))
    tasks = tuple(
        Task(
            name=f"task {k}",
            inputs=inputs,
            outputs=outputs,
            algorithms=(Algorithm(name="only", duration_ns=1, workspace_bytes=0),),
        )
        for k, (inputs, outputs) in enumerate(uses)
    )
    return Instance(
        name="small", engines="duplex", budget_bytes=3 * 512, resident_bytes=0, blocks=blocks, tasks=tasks
    )
