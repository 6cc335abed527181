from __future__ import annotations

from typing import Any

import pytest

from pebbler.instances.described import count_label, layers, text_label
from pebbler.instances.errors import FormatError
from pebbler.instances.instance import Algorithm, Instance, Task


def instance(meta: dict[str, Any]) -> Instance:
    only = Algorithm(name="a", duration_ns=1, workspace_bytes=0)
    task = Task(name="t", inputs=(), outputs=(), algorithms=(only,))
    return Instance(
        name="i", engines="duplex", budget_bytes=1, resident_bytes=0, blocks=(), tasks=(task,), meta=meta
    )


def test_labels_are_what_they_should_be_or_absent() -> None:
    given = instance({"network": "lenet", "batch": 4, "device": ["K40"], "graph": "a\nb", "sub_batch": -1})
    assert [text_label(given, key) for key in ("network", "device", "graph", "none")] == [
        "lenet",
        *[None] * 3,
    ]
    assert [count_label(given, key) for key in ("batch", "sub_batch", "none")] == [4, None, None]
    for wrong in (True, 1.5, float("nan"), "4", None, [4], 2**60):
        assert count_label(instance({"batch": wrong}), "batch") is None


@pytest.mark.parametrize("wrong", [3, "layers", [1], {"a": 1}, [{"name": "c"}], None])
def test_layers_are_layers_or_refused(wrong: Any) -> None:
    with pytest.raises(FormatError, match=r"^i: meta\.layers is not a list of layers"):
        layers(instance({"layers": wrong}))
    assert layers(instance({})) == ()
