"""The checker and objects in memory: whatever they hold, it gives a reason or refuses in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from pebbler.instances.errors import FormatError
from pebbler.instances.instance import Instance
from pebbler.instances.units import PAGE_BYTES
from pebbler.validate.check import check as check_one_gpu
from pebbler.validate.gpus.check import check, check_cluster
from pebbler.validate.schedule import Schedule

from ..samples import mostly_slow
from .cluster_programs import random_cluster_case
from .random_programs import random_case

WRONG: tuple[Any, ...] = (
    *(-1, -(2**40), 2**53 + 1, 10**40, True, False, 0.0, 1.5, float("nan"), float("inf")),
    *("", "1", "a\nb", "\x1b[2J", "\ud800", "x" * 501),
    *([], [1], (), (-1,), ("a",), {}, {1}, object(), np.int64(1), np.float64(1.0), np.zeros(2)),
)


def objects(document: Any) -> Iterator[msgspec.Struct]:
    """A document and every object in it."""
    yield document
    for field in msgspec.structs.fields(document):
        value = getattr(document, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, msgspec.Struct):
                yield from objects(item)


def answer(prove: Callable[..., Any], instance: Instance, schedule: Schedule) -> bool:
    """Whether a schedule counts as valid; refusals are one line."""
    try:
        report = prove(instance, schedule)
    except FormatError as error:
        sentence = str(error)
    else:
        assert report.valid == (not report.reasons)
        return bool(report.valid)
    assert sentence.isprintable()
    assert len(sentence) < 500
    return False


def tampered(place: msgspec.Struct, key: str, wrong: Any, judge: Callable[[], bool]) -> bool:
    before = getattr(place, key)
    msgspec.structs.force_setattr(place, key, wrong)
    try:
        return judge()
    finally:
        msgspec.structs.force_setattr(place, key, before)


@pytest.mark.parametrize("seed", mostly_slow(range(3), (1,)))
def test_no_schedule_with_a_wrong_value_anywhere_is_valid(seed: int) -> None:
    rng = Random(seed)
    instance, schedule = random_case(rng)
    assert check(instance, schedule).valid
    for place in (*objects(schedule), *objects(instance)):
        for field in msgspec.structs.fields(place):
            if field.name in ("meta", "finally_", "initially"):
                continue
            for wrong in rng.sample(WRONG, 6):
                fits = _fits(wrong, field.type)
                valid = tampered(place, field.name, wrong, lambda: answer(check, instance, schedule))
                assert fits or not valid, (type(place).__name__, field.name, wrong)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a file could hold the value there."""
    try:
        return bool(msgspec.convert(value, kind) == value)
    except (msgspec.ValidationError, ValueError, IndexError):  # msgspec may index a number of numpy's
        return False


@pytest.mark.parametrize("wrong", [None, 5, "schedule", {}, object()])
def test_what_is_no_schedule_or_no_instance_is_refused(wrong: Any) -> None:
    instance, schedule = random_case(Random(1))
    for prove in (check_one_gpu, check, check_cluster):
        for pair in ((instance, wrong), (wrong, schedule), (wrong, wrong)):
            with pytest.raises(FormatError, match="was given where"):
                prove(*pair)


def test_offsets_below_the_pool_are_refused_where_they_are_made() -> None:
    rng = Random(4)
    while (case := random_case(rng))[1].memory_model != "contiguous":
        pass
    first = case[1].residences[0]
    with pytest.raises(FormatError, match=r"residence, 'offset': expected `int` >= 0"):
        msgspec.structs.replace(first, offset=-320688)
    msgspec.structs.force_setattr(first, "offset", -320688)
    with pytest.raises(FormatError, match=r"offset|>= 0"):
        check(*case)


@pytest.mark.parametrize("size", [1, 512, 4096, PAGE_BYTES // 2, PAGE_BYTES + 512])
def test_pages_that_cannot_be_mapped_are_refused(size: int) -> None:
    rng = Random(2)
    while (case := random_case(rng))[1].memory_model != "paged":
        pass
    with pytest.raises(FormatError, match=f"pages of {size} bytes cannot be mapped"):
        msgspec.structs.replace(case[1], page_bytes=size)


def test_lists_stand_for_tuples() -> None:
    instance, schedule = random_case(Random(3))
    listed = msgspec.structs.replace(
        schedule, operations=list(schedule.operations), residences=list(schedule.residences)
    )
    assert listed == schedule
    assert check(instance, listed).valid


def test_a_stay_that_another_gpu_s_operation_ends_is_told_with_the_other_reasons() -> None:
    rng = Random(7)
    instance, _, schedule = random_cluster_case(rng, 2)
    assert check_cluster(instance, schedule).valid
    other = {o.gpu: o.id for o in schedule.operations if o.gradient is None}
    for word, change in (
        ("released", lambda stay: {"released_after": (*stay.released_after, other[1 - stay.gpu])}),
        ("acquired", lambda stay: {"acquired_by": other[1 - stay.gpu]}),
    ):
        for r, stay in enumerate(schedule.residences):
            changed = list(schedule.residences)
            changed[r] = msgspec.structs.replace(stay, **change(stay))
            mutant = msgspec.structs.replace(schedule, residences=tuple(changed), makespan_ns=0)
            reasons = check_cluster(instance, mutant).reasons
            assert any(f"is {word} by operation" in reason for reason in reasons)
            assert any(reason.startswith("makespan_ns is 0") for reason in reasons)


def test_a_stay_that_a_gradient_ends_is_told() -> None:
    rng = Random(7)
    while True:
        instance, _, schedule = random_cluster_case(rng, 2)
        passed = [o for o in schedule.operations if o.kind == "send"]
        stays = [r for r, stay in enumerate(schedule.residences) if passed and stay.gpu == passed[0].gpu]
        if stays:
            break
    changed = list(schedule.residences)
    changed[stays[0]] = msgspec.structs.replace(changed[stays[0]], released_after=(passed[0].id,))
    mutant = msgspec.structs.replace(schedule, residences=tuple(changed))
    assert any(
        "no run and no copy of that GPU" in reason for reason in check_cluster(instance, mutant).reasons
    )
