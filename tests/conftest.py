"""A small instance and methods to play with, for the tests of everything above the methods."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import msgspec
import pytest

from pebbler.heuristics import methods
from pebbler.heuristics.methods import Answer, Limits, MethodInfo, Refusal
from pebbler.heuristics.program.builder import OutOfMemoryError, ProgramBuilder
from pebbler.instances.files import write_instance
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.memory import with_budget
from pebbler.process import SELDOM

MIB = 2**20

# Hundreds of processes start and import the same modules: compiled once, these cost a tenth less of all time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background ignores it, and so would every process that a test sends it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: each look for garbage among it takes a sixth of a second.

    Garbage is looked for as seldom as in the program.
    """
    gc.freeze()
    gc.set_threshold(SELDOM)


@pytest.fixture(autouse=True)
def _no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as where nobody says how much room there is: pytest-xdist says 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def chain() -> Instance:
    """Three steps forward, two back, on blocks of 1 MiB; keeping all takes 5 MiB, and M_min is 4 MiB."""
    places = ["device", "absent", "absent", "absent", "absent", "absent"]
    blocks = tuple(
        Block(name=name, bytes=MIB, offload_ns=500_000, prefetch_ns=500_000, initially=place)  # type: ignore[arg-type]
        for name, place in zip("XABCDE", places, strict=True)
    )
    slow = Algorithm(name="slow", duration_ns=2_000_000, workspace_bytes=0)
    fast = Algorithm(name="fast", duration_ns=1_000_000, workspace_bytes=MIB)
    reads_and_writes = {
        "FP(a)": ((0,), (1,)),
        "FP(b)": ((1,), (2,)),
        "FP(c)": ((2,), (3,)),
        "BP(c)": ((2, 3), (4,)),
        "BP(a)": ((1, 4), (5,)),
    }
    return Instance(
        name="chain-b4",
        engines="duplex",
        budget_bytes=8 * MIB,
        resident_bytes=MIB,
        blocks=blocks,
        tasks=tuple(
            Task(name=name, inputs=inputs, outputs=outputs, algorithms=(slow, fast))
            for name, (inputs, outputs) in reads_and_writes.items()
        ),
        meta={"network": "chain", "batch": 4, "sub_batch": 4, "graph": "executable"},
    )


@pytest.fixture
def tight(chain: Instance) -> Instance:
    """The chain under its least budget: something must be offloaded."""
    return with_budget(chain, 4 * MIB)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are composed as always, and their files are there, but nothing is laid out or rendered.

    It is for tests of text and files beside them: a picture takes a fifth of a second, and a process that
    draws half of them a second to start.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pebbler.benchmark.pictures import drawn

    def sign(_: FigureCanvasAgg, file: IO[bytes], **__: object) -> None:
        file.write(b"\x89PNG\r\n\x1a\n")

    def empty(_: Figure, file: IO[bytes], *, format: str, **__: object) -> None:  # noqa: A002 - its name
        assert format == "svg"
        file.write(b'<svg xmlns="http://www.w3.org/2000/svg"></svg>')

    monkeypatch.setattr(FigureCanvasAgg, "print_png", sign)
    monkeypatch.setattr(Figure, "savefig", empty)
    monkeypatch.setattr(drawn, "ALONE", 1000)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(tight: Instance, elsewhere: Path) -> Path:
    """The tight chain in a file."""
    write_instance(tight, "tight.instance.json")
    return elsewhere / "tight.instance.json"


@pytest.fixture
def toys() -> Iterator[Callable[..., None]]:
    """Replace all registered methods by toys, as keywords ``name=function``."""
    import pebbler.solver  # noqa: F401 - real methods register now, and not among the toys

    with ExitStack() as stack:

        def put(**chosen: methods.Method) -> None:
            entries = [
                MethodInfo(
                    name,
                    f"the toy {name}",
                    "tests",
                    call,
                    shown="named" if name == "brute-force" else "always",
                )
                for name, call in chosen.items()
            ]
            stack.enter_context(methods.temporary_methods(entries))

        yield put


@pytest.fixture
def keep() -> methods.Method:
    """Offloads nothing, and always takes the first algorithm."""

    def method(instance: Instance, limits: Limits) -> Answer:
        builder = ProgramBuilder(instance, memory=limits.memory)
        try:
            for k in range(len(instance.tasks)):
                builder.run(k, 0)
                builder.release_dead(k)
        except OutOfMemoryError as error:
            raise Refusal(str(error)) from None
        return Answer(builder.finish("keep"))

    return method


@pytest.fixture
def swap() -> methods.Method:
    """Offloads every block that is not used by the next task, and prefetches it when it is needed."""

    def method(instance: Instance, limits: Limits) -> Answer:
        builder = ProgramBuilder(instance, memory=limits.memory)
        for k, task in enumerate(instance.tasks):
            for d in (*task.inputs, *task.updates):
                if not builder.is_resident(d):
                    builder.prefetch(d)
            builder.run(k, 0)
            builder.release_dead(k)
            for d in builder.resident_blocks():
                if k + 1 not in instance.uses[d]:
                    if not builder.on_host(d):
                        builder.offload(d)
                    builder.release(d)
        return Answer(builder.finish("swap"))

    return method


@pytest.fixture
def liar(keep: methods.Method) -> methods.Method:
    """Claims to be a nanosecond quicker than it is."""

    def method(instance: Instance, limits: Limits) -> Answer:
        schedule = keep(instance, limits).schedule
        assert schedule is not None
        return Answer(msgspec.structs.replace(schedule, makespan_ns=schedule.makespan_ns - 1))

    return method
