"""Profiles of training steps: every operator, copies, and plans made with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ....extras import needs_torch

torch = needs_torch()

from msgspec.structs import replace  # noqa: E402

import pebbler.torch  # noqa: E402
from pebbler.instances.errors import PebblerError  # noqa: E402
from pebbler.instances.profile import Profile, read_profile, write_profile  # noqa: E402
from pebbler.validate.execution.torch.profiler import profile_step  # noqa: E402

from .models import cnn, noisy  # noqa: E402
from .training import BATCH, CLIP, assert_trains_as_eager  # noqa: E402


@pytest.fixture(scope="module")
def kept() -> list[Profile]:
    """The profiles of a step that were kept while it was measured; the last one is complete."""
    found: list[Profile] = []
    last = profile_step("noisy", noisy, (BATCH, 4), clip=CLIP, repeat=2, keep=found.append)
    assert last is found[-1]
    return found


@pytest.fixture
def profile(kept: list[Profile]) -> Profile:
    return kept[-1]


def test_every_operator_of_every_size_is_measured(profile: Profile) -> None:
    plan = pebbler.torch.plan(
        noisy, batch=(BATCH, 4), budget="1GiB", clip=CLIP, profile=profile, method="network-wide"
    )
    assert {*profile.algorithms} == {BATCH, 4}
    for size in (plan, *plan.others):
        measured = profile.algorithms[size.batch]
        assert list(measured) == [task.name for task in size.instance.tasks]
        assert all(task.algorithms == measured[task.name] for task in size.instance.tasks)
        assert size.schedule.makespan_ns == sum(one.duration_ns for (one,) in measured.values())
        block = max(size.instance.blocks, key=lambda block: block.bytes)
        assert block.offload_ns == profile.copy_ns(block.bytes, "offload")
        assert block.prefetch_ns == profile.copy_ns(block.bytes, "prefetch")
    assert plan.instance.made_from.device == profile.machine.device
    assert plan.instance.made_from.mapping == profile.mapping


def test_a_profile_that_ends_early_can_be_used(kept: list[Profile], tmp_path: Path) -> None:
    assert [one.meta["complete"] for one in kept] == [False] * 4 + [True]
    assert [one.meta["executions"] for one in kept] == [1, 2, 1, 2, 2]
    write_profile(kept[0], tmp_path / "p.json")
    again = read_profile(tmp_path / "p.json")
    assert {*again.algorithms} == {4}
    assert (again.training_step, again.tasks) == (kept[0].training_step, kept[0].tasks)


def test_a_step_that_was_planned_with_a_profile_has_eagers_bits(profile: Profile) -> None:
    torch.manual_seed(3)
    plan = pebbler.torch.plan(
        noisy, batch=BATCH, budget="1.2xMmin", clip=CLIP, profile=profile, method="modnn"
    )
    assert any(operation.kind == "prefetch" for operation in plan.schedule.operations)
    assert_trains_as_eager(noisy, plan, steps=2)


def test_a_link_takes_the_place_of_the_measured_copies(profile: Profile) -> None:
    plan = pebbler.torch.plan(
        noisy, batch=4, budget="1GiB", clip=CLIP, profile=profile, link="1GB/s", method="network-wide"
    )
    assert all(block.offload_ns == block.bytes for block in plan.instance.blocks)


def test_the_larger_scratch_counts(profile: Profile) -> None:
    """On a GPU, a library may take more one time than another."""
    first, *others = profile.tasks
    larger = replace(first.algorithms[0], workspace_bytes=first.algorithms[0].workspace_bytes + 64)
    with_more = replace(profile, tasks=(replace(first, algorithms=(larger,)), *others))
    plan = pebbler.torch.plan(
        noisy, batch=4, budget="1GiB", clip=CLIP, profile=with_more, method="network-wide"
    )
    (task,) = (task for task in plan.instance.tasks if task.name == first.name)
    assert task.algorithms[0].workspace_bytes == larger.workspace_bytes


def test_a_profile_of_something_else_is_refused(profile: Profile) -> None:
    first, *others = profile.tasks
    other = replace(first.algorithms[0], name="another")
    for wrong, make, batch, clip, told in [
        (profile, noisy, 8, CLIP, "has no sub-batch 8; it has 4, 16"),
        (profile, noisy, BATCH, None, "clips gradients to 0.5, and this one clips to None"),
        (profile, cnn, BATCH, CLIP, "has no task 'FP(stem convolution)' at sub-batch 16"),
        (replace(profile, tasks=(*others,)), noisy, 4, CLIP, f"has no task '{first.name}'"),
        (
            replace(profile, tasks=(replace(first, algorithms=(other,)), *others)),
            noisy,
            4,
            CLIP,
            "measure it anew",
        ),
    ]:
        with pytest.raises(PebblerError, match=re.escape(told)) as caught:
            pebbler.torch.plan(
                make, batch=batch, budget="1GiB", clip=clip, profile=wrong, method="network-wide"
            )
        assert len(str(caught.value).splitlines()) == 1
