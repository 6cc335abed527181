"""Linear models in another process: the same results, and whatever becomes of the solver, a result."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.processes.child import Child
from pebbler.instances.processes.signals import held
from pebbler.instances.workload import Workload
from pebbler.solver.flow.checkpoints import hot_checkpoints
from pebbler.solver.flow.model import flow_model
from pebbler.solver.linear.available import list_linear_solvers
from pebbler.solver.linear.facade import solve_linear
from pebbler.solver.linear.model import LinearModel, ModelBuilder
from pebbler.solver.linear.worker import LinearWorker

from ..processes import alive, children, computing, eventually, members


@pytest.fixture
def worker() -> Iterator[LinearWorker]:
    with LinearWorker(grace=1.0) as made:
        yield made


@pytest.fixture(scope="module")
def easy() -> LinearModel:
    instance = Workload("vgg16", 256, "k40").instance("1.05xMmin")
    return flow_model(instance, hot_checkpoints(instance, 16), "all").linear


@pytest.fixture(scope="module")
def endless() -> LinearModel:
    """More than any solver does in minutes: many binary columns in many knapsacks."""
    rng = np.random.default_rng(1)
    builder = ModelBuilder()
    chosen = builder.columns(300, upper=1.0, cost=-rng.integers(900, 1100, 300), integer=True)
    for row in builder.rows(60, upper=150_000.0):
        builder.entries(row, chosen, rng.integers(900, 1100, 300).astype(float))
    return builder.build()


def working(worker: LinearWorker, model: LinearModel) -> int:
    """Begin with a model, and return the process that works on it."""
    worker.start(model)
    pid = computing()
    assert not worker.done()
    return pid


def test_the_same_result_as_in_this_process(worker: LinearWorker, easy: LinearModel) -> None:
    here = solve_linear(easy, seed=3)
    for _ in range(2):
        worker.start(easy, seed=3)
        there = worker.result(60)
        assert worker.done()
        assert (there.status, there.objective, there.bound, there.detail) == (
            here.status,
            here.objective,
            here.bound,
            here.detail,
        )
        assert there.values is not None
        assert here.values is not None
        assert (there.values == here.values).all()


def test_a_crash_costs_its_own_result(worker: LinearWorker, easy: LinearModel, endless: LinearModel) -> None:
    os.kill(working(worker, endless), signal.SIGSEGV)
    result = worker.result(30)
    assert (result.status, result.objective, result.values, result.bound) == ("error", None, None, -math.inf)
    assert result.detail == "highs: it ended with signal 11"
    worker.start(easy)
    assert worker.result(60).status == "optimal"


def test_a_hang_ends_with_the_time_limit_and_a_grace(endless: LinearModel) -> None:
    with LinearWorker(grace=0.5) as worker:
        stopped = children()
        began = time.monotonic()
        worker.start(endless, time_limit=0.5)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            result = worker.result(30)
        finally:
            for pid in filter(alive, stopped):
                os.kill(pid, signal.SIGCONT)
    assert time.monotonic() - began >= 0.9
    assert (result.status, result.bound) == ("unknown", -math.inf)
    assert result.detail == "highs: it was killed after 1 s"


def test_it_can_be_stopped_and_used_again(
    worker: LinearWorker, easy: LinearModel, endless: LinearModel
) -> None:
    process = working(worker, endless)
    with pytest.raises(RuntimeError, match="busy"):
        worker.start(easy)
    with pytest.raises(TimeoutError):
        worker.result(0.01)
    worker.stop()
    assert eventually(lambda: not alive(process))
    assert (worker.result().status, worker.result().detail) == ("unknown", "highs: it was stopped")
    worker.start(easy)
    assert worker.result(60).status == "optimal"


def test_a_time_limit_gives_what_was_found(endless: LinearModel) -> None:
    with LinearWorker() as worker:
        worker.start(endless, time_limit=0.5)
        result = worker.result(30)
    assert result.status == "feasible"
    assert result.objective is not None
    assert -math.inf < result.bound < result.objective


def test_what_a_solver_cannot_take_is_refused(easy: LinearModel) -> None:
    with LinearWorker("glop") as worker:
        worker.start(easy)
        with pytest.raises(PebblerError, match="takes no whole variables"):
            worker.result(30)


def test_programs_of_a_solver_end_with_it(endless: LinearModel) -> None:
    if "cbc" not in list_linear_solvers():
        pytest.skip("cbc is not installed")
    with LinearWorker("cbc") as worker:
        worker.start(endless)
        assert eventually(lambda: any(members(leader) == 2 for leader in children()), 60.0)
        (group,) = (leader for leader in children() if members(leader) == 2)
    assert eventually(lambda: members(group) == 0)


def test_memory_that_runs_out_is_a_result(monkeypatch: pytest.MonkeyPatch, worker: LinearWorker) -> None:
    def full(*_: object) -> object:
        raise MemoryError

    monkeypatch.setattr(Child, "result", full)
    assert (worker.result().status, worker.result().detail) == ("error", "highs: out of memory")


def test_a_status_that_is_not_ok_is_a_sentence(worker: LinearWorker, easy: LinearModel) -> None:
    """MathOpt raises for a cost that is not a number, and for errors of the solver."""
    cost = easy.cost.copy()
    cost[0] = math.nan
    worker.start(dataclasses.replace(easy, cost=cost))
    result = worker.result(30)
    assert (result.status, result.values, result.bound) == ("error", None, -math.inf)
    assert result.detail.startswith("highs: ")
    assert "\n" not in result.detail


def test_ctrl_c_ends_a_model_at_once(endless: LinearModel) -> None:
    """Also where nobody has asked for a process: four times of four it was lost before."""

    def press() -> None:
        solving.append(computing())
        os.kill(os.getpid(), signal.SIGINT)

    solving: list[int] = []
    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        solve_linear(endless, time_limit=300.0)
    presser.join()
    assert eventually(lambda: not alive(solving[0]))


def test_signals_wait_while_a_process_starts() -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with held():
            with held():
                signal.raise_signal(signal.SIGINT)
            assert not came
        assert came == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
