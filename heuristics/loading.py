"""What methods load or compile, before a clock starts that a time limit is compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ..instances.compiling import telling_of_compiling
from ..instances.instance import Algorithm, Block, Instance, Task
from .methods import Limits, Method

Loader = Callable[[Limits], None]
"""Loads something; quickly, where it is loaded already."""

_loaders: dict[Method, tuple[Loader, ...]] = {}


def loads(*loaders: Loader) -> Callable[[Method], Method]:
    """Say what a method loads (a decorator, under that of its registration)."""

    def note(method: Method) -> Method:
        _loaders[method] = loaders
        return method

    return note


def load_for(method: Method, limits: Limits) -> None:
    """Load what a method uses."""
    for loader in _loaders.get(method, ()):
        loader(limits)


def kernels(_: Limits) -> None:
    """Compile the kernels of the search, or load them from the cache."""
    _kernels()


@cache
def _kernels() -> None:
    from .search.search import LocalSearch  # with it comes Numba

    with telling_of_compiling():
        search = LocalSearch(_small(), "contiguous")
        search.run(work=1)
        search.suggest(search.guide())
        search.schedule("small")


def _small() -> Instance:
    """Two layers and their backward pass, in which a block must leave and return."""
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
