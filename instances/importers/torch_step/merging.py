"""Operators that rewrite what the one before them has just made, as one operator with it.

Batch norm and a ReLU in place behind it are an example: what the first makes is nothing that anybody else
reads. As one, they make the same data again whenever they run, and so they may run again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .record import StepOperator, leaves_of
from .scalars import Formula, ScalarInput


def merged(operators: Iterable[StepOperator]) -> list[StepOperator]:
    """Return operators, where each that may be is one with the operator before it (``then``)."""
    found: list[StepOperator] = []
    for operator in operators:
        if found and _may_follow(found[-1], operator):
            found[-1] = _as_one(found[-1], operator)
        else:
            found.append(operator)
    return found


def _may_follow(first: StepOperator, second: StepOperator) -> bool:
    """Whether an operator only rewrites what the one before it has made, by nothing but what is recorded."""
    numbers = leaves_of((second.args, second.kwargs))
    return (
        first.kind == second.kind == "task"
        and first.phase == second.phase != "optimizer"
        and second.manner == "in place"
        and {*second.updates} <= {*first.outputs}
        and not second.outputs
        and not second.hidden
        and not second.segments_bytes
        and second.draw is None
        and first.grad_mode == second.grad_mode
        and not any(isinstance(number, ScalarInput | Formula) for number in numbers)
    )


def _as_one(first: StepOperator, second: StepOperator) -> StepOperator:
    written = {*first.outputs, *first.updates}
    what = second.overload._schema.name.rpartition("::")[2]
    return replace(
        first,
        name=f"{first.name[:-1]}, {what})",
        reads=tuple(dict.fromkeys((*first.reads, *(d for d in second.reads if d not in written)))),
        scratch_bytes=max(first.scratch_bytes, second.scratch_bytes),
        duration_ns=first.duration_ns + second.duration_ns,
        then=(*first.then, second),
    )
