"""Tasks that the host computes while a GPU does the others, on a driver that stands in for CUDA's."""

from __future__ import annotations

import pytest

from pebbler.instances.workload import Optimizer
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.trial import identical
from pebbler.validate.execution.unlimited import unlimited
from pebbler.validate.schedule import MemoryModel

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda, repeatable  # noqa: F401
from ..test_host_runs import case
from .test_backend import execute


@pytest.mark.parametrize(
    ("optimizer", "budget", "memory"), [("adam", "1.2xMmin", "contiguous"), ("momentum", "32MiB", "paged")]
)
def test_bits_are_those_of_the_run_without_a_budget(
    fake_cuda: FakeCuda,  # noqa: F811
    optimizer: Optimizer,
    budget: str,
    memory: MemoryModel,
) -> None:
    """With random pauses before what streams do, in poisoned memory."""
    instance, schedule = case(optimizer, "host", budget, memory)
    instance = repeatable(instance)
    fake_cuda.configure(delay_us=300, seed=2)
    found = execute(instance, schedule, CudaBackend(), poison=True)
    assert identical(found, execute(*unlimited(instance, schedule), CudaBackend()))


def test_a_missing_wait_is_found(fake_cuda: FakeCuda) -> None:  # noqa: F811
    """An update that does not wait for the copy of its gradient reads NaN, for copies are late here."""
    instance, schedule = case("sgd", "host", "1.2xMmin", "contiguous")
    instance = repeatable(instance)
    right = execute(*unlimited(instance, schedule), CudaBackend())
    fake_cuda.configure(delay_us=3000, seed=2)
    runs = [operation for operation in schedule.operations if operation.stream == "host"]
    omit = [(run.id, other) for run in runs for other in run.after]
    assert not identical(execute(instance, schedule, CudaBackend(), poison=True, omit=omit), right)
