"""Plans of NVIDIA's cudnn-frontend: the real package on the fake cuDNN, against the CPU's kernels."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from pebbler import Workload, solve
from pebbler.instances.errors import PebblerError
from pebbler.instances.profile import Profile
from pebbler.validate.check import check
from pebbler.validate.execution.backends import find_backend
from pebbler.validate.execution.cpu.backend import CpuBackend
from pebbler.validate.execution.cuda.backend import CudaBackend
from pebbler.validate.execution.cuda.calls import convolution_of
from pebbler.validate.execution.cuda.providers import PLAN, PROVIDERS
from pebbler.validate.execution.emit import emit
from pebbler.validate.execution.kernel import Kernel
from pebbler.validate.execution.profiling.profiler import profile
from pebbler.validate.execution.rebuild import rebuild
from pebbler.validate.execution.trial import attempt

from ....fakecuda.fixtures import FakeCuda, _loaded_fake_cuda, fake_cuda  # noqa: F401
from .test_recorded import compute, draw, kernels

FRONTEND = PROVIDERS[1:]


@pytest.fixture
def frontend(fake_cuda: FakeCuda) -> FakeCuda:  # noqa: F811
    """The fake driver, and the package."""
    if importlib.util.find_spec("cudnn") is None and os.environ.get("PEBBLER_CUDA_TESTS") != "required":
        pytest.skip("plans need cudnn-frontend; pip install 'pebbler[cudnn-frontend]'")
    return fake_cuda


def convolutions() -> list[Kernel]:
    return [kernel for kernel in kernels() if convolution_of(kernel) is not None]


def plans(kernel: Kernel) -> list[Kernel]:
    """The task with each plan."""
    backend = CudaBackend(providers=FRONTEND)
    try:
        return [
            replace(kernel, algorithm=name, workspace_bytes=size) for name, size in backend.algorithms(kernel)
        ]
    finally:
        backend.close()


def wide(role: str) -> Kernel:
    return next(kernel for kernel in kernels() if kernel.task == f"{role}(wide)")


@pytest.mark.parametrize("kernel", convolutions(), ids=lambda kernel: kernel.task)
def test_every_plan_computes_what_the_cpu_computes(frontend: FakeCuda, kernel: Kernel) -> None:
    values = draw(kernel, 1)
    cpu = CpuBackend()
    (name, size), *_ = cpu.algorithms(kernel)
    expected = compute(cpu, replace(kernel, algorithm=name, workspace_bytes=size), values)
    found = plans(kernel)
    assert len(found) >= 2
    for chosen in found:
        results = compute(CudaBackend(), chosen, values)
        for name, array in expected.items():
            result, reference = (some.view(np.float32) for some in (results[name], array))
            np.testing.assert_allclose(result, reference, rtol=2e-4, atol=2e-5, equal_nan=True)
    assert frontend.bytes_in_use() == 0


def test_plans_with_tensor_cores_and_those_that_cannot_be_made_are_left_out(frontend: FakeCuda) -> None:
    names = [chosen.algorithm for chosen in plans(wide("FP"))]
    assert names == [f"{PLAN}eng{number}" for number in (7, 5, 4, 2, 1, 0)]
    del frontend


def test_what_is_added_goes_through_the_workspace(frontend: FakeCuda) -> None:
    for role, adds in (("FP", False), ("BP2", True)):
        kernel = wide(role)
        convolution = convolution_of(kernel, "cudnn-frontend")
        assert convolution is not None
        room = -(-4 * int(np.prod(convolution.written)) // 512) * 512 if adds else 0
        assert convolution.scratch == room
        assert min(chosen.workspace_bytes for chosen in plans(kernel)) == room
    del frontend


def test_atomic_additions_are_told(frontend: FakeCuda) -> None:
    backend = CudaBackend()
    told = {
        chosen.algorithm: backend.is_deterministic(chosen)
        for chosen in plans(wide("BP2"))
        if chosen.algorithm in (f"{PLAN}eng0", f"{PLAN}eng1", f"{PLAN}eng3")
    }
    backend.close()
    assert told == {f"{PLAN}eng0": False, f"{PLAN}eng1": True, f"{PLAN}eng3": False}
    del frontend


@pytest.mark.parametrize(
    ("plan", "less", "said"),
    [("eng1", 4, "needs .* bytes of workspace, and the schedule plans"), ("eng66", 0, "cannot compute it")],
)
def test_a_plan_that_will_not_do_is_refused(frontend: FakeCuda, plan: str, less: int, said: str) -> None:
    size = {chosen.algorithm: chosen.workspace_bytes for chosen in plans(wide("FP"))}.get(PLAN + plan, 0)
    backend = CudaBackend()
    try:
        with pytest.raises(PebblerError, match=rf"'FP\(wide\)'.*{plan}.*{said}"):
            backend.prepare(replace(wide("FP"), algorithm=PLAN + plan, workspace_bytes=size - less))
    finally:
        backend.close()
    del frontend


@pytest.mark.slow
def test_from_a_profile_of_both_providers_to_the_same_bits(frontend: FakeCuda) -> None:
    measured = profile("cifar10_quick", 4, find_backend("cuda", PROVIDERS), repeat=1)
    assert set(measured.machine.libraries) == {"PyCUDA", "cuBLAS", "cuDNN", "cudnn-frontend"}
    varying = {(one["task"], one["algorithm"]) for one in measured.meta["not_deterministic"]}
    assert {("BP2(conv1)", "algo-0"), ("BP2(conv1)", f"{PLAN}eng0")} <= varying
    assert ("BP2(conv1)", f"{PLAN}eng1") not in varying
    assert measured.mapping is not None
    listed = {algorithm.name for task in measured.tasks for algorithm in task.algorithms}
    assert {"implicit-gemm", f"{PLAN}eng0"} <= listed
    workload = Workload("cifar10_quick", 4, measured.machine.device, profile=plans_alone(measured))
    instance = workload.instance("1.0xMmin")
    schedule = solve(instance, "modnn").schedule
    assert schedule is not None
    assert check(instance, schedule).valid
    frontend.configure(delay_us=300, seed=4)
    trial = attempt(instance, schedule, find_backend("cuda"), repeat=1)
    assert trial.right
    assert trial.close
    run = [
        instance.tasks[one.task].algorithms[one.algorithm].name
        for one in schedule.operations
        if one.task is not None and one.algorithm is not None
    ]
    assert sum(name.startswith(PLAN) for name in run) >= 2  # tasks: which plans are fastest is the machine's
    with pytest.raises(PebblerError, match="runs a plan of cudnn-frontend, which a script has not"):
        emit(instance, schedule, rebuild(instance))


def plans_alone(measured: Profile) -> Profile:
    """The profile without cuDNN's own algorithms of what has plans."""
    tasks = tuple(
        msgspec.structs.replace(
            task,
            algorithms=tuple(one for one in task.algorithms if one.name.startswith(PLAN)) or task.algorithms,
        )
        for task in measured.tasks
    )
    return msgspec.structs.replace(measured, tasks=tasks)


def test_without_the_package_one_sentence_says_what_to_install(
    fake_cuda: FakeCuda,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "pebbler.instances.importers.extras.find_spec", lambda name: None if name == "cudnn" else name
    )
    backend = CudaBackend(providers=FRONTEND)
    try:
        with pytest.raises(PebblerError, match=r"pip install 'pebbler\[cudnn-frontend\]'"):
            backend.algorithms(wide("FP"))
    finally:
        backend.close()
    del fake_cuda
