from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pebbler.instances.errors import FormatError
from pebbler.instances.figures import MOST_CHARACTERS, distinct, is_text, sentence_of, text_of
from pebbler.instances.gpus.cluster import Cluster, Gradient
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import LARGEST

BLOCK = {"name": "b", "bytes": 1, "offload_ns": 0, "prefetch_ns": None}
ALGORITHM = {"name": "a", "duration_ns": 0, "workspace_bytes": 0}
TASK = {"name": "t", "inputs": (), "outputs": (), "algorithms": (Algorithm(**ALGORITHM),)}  # type: ignore[arg-type]
INSTANCE = {
    "name": "i",
    "engines": "duplex",
    "budget_bytes": 1,
    "resident_bytes": 0,
    "blocks": (),
    "tasks": (Task(**TASK),),  # type: ignore[arg-type]
}
CLUSTER = {"gpus": 1, "bus_bytes_per_second": 1, "core_bytes_per_second": 1, "host_bytes_per_second": 1}
GRADIENT = {"name": "g", "bytes": 1, "offload_ns": 0, "prefetch_ns": 0, "produced_by": 0, "used_by": ()}
FIGURE = (-1, True, 1.0, float("nan"), "1", LARGEST + 1, np.int64(1), [1])
TEXT = ("", "a\nb", "a\x1b[31mb", "\x00", "\ud800", "\u2028", "x" * (MOST_CHARACTERS + 1), 5, None)
INDICES = ((-1,), (True,), (1.5,), ("0",), 3, "01", None, np.zeros(2, dtype=int))


@pytest.mark.parametrize(
    ("kind", "usual", "key", "wrong"),
    [
        *((Block, BLOCK, "bytes", wrong) for wrong in (0, -5, None, *FIGURE)),
        *((Block, BLOCK, key, wrong) for key in ("offload_ns", "move_ns", "begin") for wrong in FIGURE),
        *((Block, BLOCK, "name", wrong) for wrong in TEXT),
        *((Block, BLOCK, "tensor", wrong) for wrong in TEXT[:-1]),
        *(
            (Block, BLOCK, key, wrong)
            for key in ("initially", "finally_")
            for wrong in ("x", None, 1, ["host"])
        ),
        *(
            (Algorithm, ALGORITHM, key, wrong)
            for key in ("duration_ns", "workspace_bytes")
            for wrong in FIGURE
        ),
        *((Algorithm, ALGORITHM, "name", wrong) for wrong in TEXT),
        *((Task, TASK, "name", wrong) for wrong in TEXT),
        *((Task, TASK, key, wrong) for key in ("inputs", "outputs", "updates") for wrong in INDICES),
        *((Task, TASK, "algorithms", wrong) for wrong in (None, 1, ("a",), (None,), (Block(**BLOCK),))),  # type: ignore[arg-type]
        *((Task, TASK, "recomputable", wrong) for wrong in (1, "yes", None)),
        *((Instance, INSTANCE, "name", wrong) for wrong in TEXT),
        *((Instance, INSTANCE, "engines", wrong) for wrong in ("duples", "", None, 2, ("duplex",))),
        *(
            (Instance, INSTANCE, key, wrong)
            for key in ("budget_bytes", "rounds")
            for wrong in ("12GiB", *FIGURE)
        ),
        *(
            (Instance, INSTANCE, key, wrong)
            for key in ("blocks", "tasks")
            for wrong in (None, 3, (None,), ("x",))
        ),
        *((Instance, INSTANCE, "meta", wrong) for wrong in (None, [], "m")),
        *((Instance, INSTANCE, "cluster", wrong) for wrong in (None, 2, "two")),
        *((Instance, INSTANCE, "transforms", wrong) for wrong in (None, ("mask",), [1], "mask")),
        *((Cluster, CLUSTER, "gpus", wrong) for wrong in (0, *FIGURE)),
        *((Gradient, GRADIENT, "used_by", wrong) for wrong in INDICES),
        *((Gradient, GRADIENT, "offload_ns", wrong) for wrong in FIGURE),
        *((Gradient, GRADIENT, "name", wrong) for wrong in TEXT),
    ],
)
def test_what_no_file_may_hold_is_refused_where_it_is_made(
    kind: type, usual: dict[str, Any], key: str, wrong: Any
) -> None:
    kind(**usual)
    with pytest.raises(FormatError) as caught:
        kind(**{**usual, key: wrong})
    assert key.rstrip("_") in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_lists_become_tuples() -> None:
    made = Task(name="t", inputs=[0], outputs=[1, 2], algorithms=[Algorithm(**ALGORITHM)])  # type: ignore[arg-type]
    assert (made.inputs, made.outputs) == ((0,), (1, 2))
    assert type(made.algorithms) is tuple


@pytest.mark.parametrize("key", ["blocks", "tasks"])
def test_no_two_have_one_name(key: str) -> None:
    twice = {"blocks": (Block(**BLOCK),) * 2, "tasks": (Task(**TASK),) * 2}  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=rf"{key}\[1\] has the name '.' of {key}\[0\]; give each its own"):
        Instance(**{**INSTANCE, key: twice[key]})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a", "höhe <1>", "日本", "a b", "x" * MOST_CHARACTERS, "'", '"\\'])
def test_printable_text_is_text(text: str) -> None:
    assert is_text(text)
    assert text_of(text)[:10] == text[:10]


@pytest.mark.parametrize("text", [text for text in TEXT if isinstance(text, str)])
def test_somebody_else_s_text_is_made_printable(text: str) -> None:
    assert is_text(text_of(text))


def test_somebody_else_s_names_are_made_distinct() -> None:
    assert distinct(["a", "b", "a", "a", "a#2", ""]) == ["a", "b", "a#2", "a#3", "a#2#2", "?"]
    names = distinct(["x" * 600, "x" * 700, *TEXT[:6]])
    assert len(set(names)) == len(names)
    assert all(map(is_text, names))


def test_what_an_error_quotes_is_escaped_and_cut() -> None:
    assert sentence_of(ValueError("Bad 'a\nb'")) == "bad 'a\\nb'"
    assert sentence_of(ValueError("JSON is malformed")) == "JSON is malformed"
    assert len(sentence_of(ValueError("x" * 10**6))) < 300
