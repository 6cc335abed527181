from __future__ import annotations

from typing import Any

import pytest

from pebbler.heuristics.choices import by_speed, leanest
from pebbler.heuristics.papers.layers import LayerStep, layer_steps
from pebbler.instances.errors import PebblerError
from pebbler.instances.instance import Algorithm, Instance, Task


def instance(counts: list[int], layers: Any = None) -> Instance:
    """Tasks t0, t1, ... with these numbers of algorithms."""
    return Instance(
        name="hand",
        engines="duplex",
        budget_bytes=0,
        resident_bytes=0,
        blocks=(),
        tasks=tuple(
            Task(
                name=f"t{k}",
                inputs=(),
                outputs=(),
                algorithms=tuple(
                    Algorithm(name=str(a), duration_ns=a, workspace_bytes=0) for a in range(count)
                ),
            )
            for k, count in enumerate(counts)
        ),
        meta={} if layers is None else {"layers": layers},
    )


def test_without_layers_every_task_is_a_unit_and_choice_makes_a_convolution() -> None:
    assert layer_steps(instance([1, 2])) == (
        LayerStep("t0", "other", None, (0,)),
        LayerStep("t1", "conv", None, (1,)),
    )


def test_consecutive_tasks_of_a_layer_in_one_pass_are_a_unit() -> None:
    layers = [
        {"name": "c", "kind": "conv", "forward": [0], "backward": [4, 5]},
        {"name": "r", "kind": "relu", "forward": [1], "backward": [3]},
    ]
    assert layer_steps(instance([1] * 6, layers)) == (
        LayerStep("c", "conv", "forward", (0,)),
        LayerStep("r", "relu", "forward", (1,)),
        LayerStep("t2", "other", None, (2,)),
        LayerStep("r", "relu", "backward", (3,)),
        LayerStep("c", "conv", "backward", (4, 5)),
    )


def test_passes_that_meet_are_two_units() -> None:
    layers = [{"name": "c", "kind": "conv", "forward": [0], "backward": [1, 2]}]
    assert [unit.tasks for unit in layer_steps(instance([1] * 3, layers))] == [(0,), (1, 2)]


def test_tasks_of_a_layer_that_lie_apart_are_units_apart() -> None:
    layers = [
        {"name": "c", "kind": "conv", "forward": [0, 2], "backward": []},
        {"name": "d", "kind": "conv", "forward": [1], "backward": []},
    ]
    assert [(unit.layer, unit.tasks) for unit in layer_steps(instance([1] * 3, layers))] == [
        ("c", (0,)),
        ("d", (1,)),
        ("c", (2,)),
    ]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([3], "meta.layers is not a list of layers"),
        ([{"name": "c"}], "meta.layers is not a list of layers: Object missing required field"),
        ([{"name": "c", "kind": "conv", "forward": [-1], "backward": []}], "not a list of layers"),
        ([{"name": "c", "kind": "conv", "forward": [1], "backward": []}], "layer 'c' names no task 1"),
        ([{"name": "c", "kind": "conv", "forward": [], "backward": [7]}], "layer 'c' names no task 7"),
    ],
)
def test_layers_that_are_none(layers: Any, words: str) -> None:
    with pytest.raises(PebblerError, match=words) as caught:
        layer_steps(instance([1], layers))
    assert str(caught.value).startswith("hand: meta.layers")


def algorithm(duration: int, workspace: int) -> Algorithm:
    return Algorithm(name="a", duration_ns=duration, workspace_bytes=workspace)


def test_choices() -> None:
    algorithms = (algorithm(5, 8), algorithm(3, 9), algorithm(3, 4), algorithm(7, 0), algorithm(6, 0))
    task = Task(name="t", inputs=(), outputs=(), algorithms=algorithms)
    assert by_speed(task) == [2, 1, 0, 4, 3]
    assert leanest(task) == 4
