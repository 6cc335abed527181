from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from pebbler.benchmark.sweeps.problems import FileProblem, about
from pebbler.heuristics.papers.layers import layer_steps
from pebbler.instances.errors import FormatError
from pebbler.instances.files import encode, read_instance, read_summed_instance, reread, write_instance
from pebbler.instances.instance import Algorithm, Instance, Task
from pebbler.instances.origin import LayerTasks, MappingTimes, Origin
from pebbler.instances.transforms import with_recomputation
from pebbler.instances.workload import Workload
from pebbler.validate.bounds.certificate import check_certificate, read_certificate
from pebbler.validate.check import check
from pebbler.validate.schedule import read_schedule

ALL = {
    "network": "lenet",
    "batch": 4,
    "sub_batch": 2,
    "device": "K40",
    "graph": "executable",
    "cost_model": "profile",
    "weights_as_blocks": True,
    "mapping": {"call_ns": 3, "page_ns": 4},
    "one_gpu_ideal_ns": 0,
    "notes": "mind this",
}
"""What an earlier version could write under ``meta``."""

DATA = Path(__file__).parents[1] / "data"


def instance(meta: dict[str, Any], **keys: Any) -> Instance:
    only = Algorithm(name="a", duration_ns=1, workspace_bytes=0)
    task = Task(name="t", inputs=(), outputs=(), algorithms=(only,))
    return Instance(
        name="i",
        engines="duplex",
        budget_bytes=1,
        resident_bytes=0,
        blocks=(),
        tasks=(task,),
        meta=meta,
        **keys,
    )


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "c", "kind": "conv", "forward": [0], "backward": []} | changes


# --- files of earlier versions ------------------------------------------------------------------------


def test_a_file_of_an_earlier_version_means_the_same() -> None:
    """Instance, schedule and certificate as the version before the keys wrote them."""
    read, checksum = read_summed_instance(DATA / "earlier.instance.json")
    workload = Workload("lenet", 4, "K40")
    today = with_recomputation(workload.instance(read.budget_bytes, 2, rounds=2))
    as_timed_then = [
        msgspec.structs.replace(task, algorithms=earlier.algorithms)
        for task, earlier in zip(today.tasks, read.tasks, strict=True)
    ]
    origin = msgspec.structs.replace(today.made_from, cudnn=None, cost_model_version=None)
    today = msgspec.structs.replace(today, tasks=tuple(as_timed_then), origin=origin)
    assert read == today
    assert encode(read) == encode(today)
    assert sha256(encode(read)).hexdigest() != checksum
    schedule = read_schedule(DATA / "earlier.schedule.json", read)
    assert schedule.instance_sha256 == checksum
    assert check(read, schedule, instance_sha256=checksum).valid
    assert not check(read, schedule, instance_sha256=sha256(encode(read)).hexdigest()).valid
    certificate = read_certificate(DATA / "earlier.certificate.json")
    assert check_certificate(read, certificate, instance_sha256=checksum).valid


def test_a_sweep_takes_a_file_of_an_earlier_version_for_the_same_problem() -> None:
    data = (DATA / "earlier.instance.json").read_bytes()
    today = encode(read_instance(DATA / "earlier.instance.json"))
    old, new = (FileProblem("x", content) for content in (data, today))
    assert about(old, old.instances()) == about(new, new.instances())


def test_every_label_goes_to_its_key() -> None:
    made = instance({**ALL, "source": "a book", "layers": [entry()]})
    assert msgspec.to_builtins(made.origin) == ALL
    younger = {"cost_model_version", "cudnn", "launches", "optimizer", "precision", "steady"}
    assert set(ALL) == set(Origin.__struct_fields__) - younger
    assert made.made_from.mapping == MappingTimes(call_ns=3, page_ns=4)
    assert made.layers == made.named_layers == (LayerTasks(name="c", kind="conv", forward=(0,), backward=()),)
    assert made.meta == {"source": "a book"}


def test_what_an_earlier_version_could_read_is_read(tmp_path: Path) -> None:
    """Layers of any text, with keys of one's own."""
    document = json.loads(encode(instance({})))
    document["meta"] = {"layers": [entry(name="a\nb", comment=1), entry(kind="")], "network": "x"}
    (tmp_path / "old").write_text(json.dumps(document))
    read = read_instance(tmp_path / "old")
    assert [(layer.name, layer.kind) for layer in read.named_layers] == [("a\\nb", "conv"), ("c", "?")]
    write_instance(read, tmp_path / "new")
    assert read_instance(tmp_path / "new") == read


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        *(("network", wrong) for wrong in (["lenet"], 1, "", "a\nb", "x" * 501, None)),
        *(("batch", wrong) for wrong in (True, 1.5, 4.0, float("nan"), "4", None, [4], 2**60, 0, -1)),
        ("graph", "mine"),
        ("cost_model", "guess"),
        ("weights_as_blocks", 1),
        ("device", {"a": {}}),
        ("one_gpu_ideal_ns", -1),
        ("launches", {"gap_ns": 1}),  # no earlier version wrote it
    ],
)
def test_a_label_of_another_type_is_the_users(key: str, wrong: Any) -> None:
    made = instance({key: wrong, "notes": "n", "mine": [1]})
    assert made.made_from == Origin(notes="n")
    assert made.meta.keys() == {key, "mine"}
    assert made.meta[key] is wrong


@pytest.mark.parametrize("mine", [3, "layers", {"a": 1}, None])
def test_layers_that_are_no_list_are_the_users(mine: Any) -> None:
    made = instance({"layers": mine})
    assert made.named_layers == ()
    assert made.meta == {"layers": mine}


@pytest.mark.parametrize("wrong", [[1], [{"name": "c"}], ["conv"]])
def test_layers_are_layers_or_refused(wrong: Any) -> None:
    with pytest.raises(FormatError, match=r"^i: meta\.layers is not a list of layers"):
        instance({"layers": wrong})
    assert instance({}).named_layers == ()


@pytest.mark.parametrize(
    "wrong", [{"call_ns": -1, "page_ns": 0}, {"call_ns": 1}, [1, 2], {"call_ns": 1, "page_ns": "2"}]
)
def test_a_cost_of_mapping_is_one_or_refused(wrong: Any) -> None:
    with pytest.raises(FormatError, match=r"^meta\.mapping of i is no cost of mapping pages"):
        instance({"mapping": wrong})


def test_what_a_method_gets_and_gives_is_the_same_after_reading() -> None:
    made = instance({**ALL, "layers": [entry()]})
    assert reread(made) == made
    assert encode(reread(made)) == encode(made)


# --- the keys -----------------------------------------------------------------------------------------


def test_keys_that_are_not_set_are_not_written() -> None:
    assert b"origin" not in encode(instance({}))
    assert b"layers" not in encode(instance({}))
    assert msgspec.json.encode(Origin(batch=4)) == b'{"batch":4}'


def test_beside_the_keys_meta_is_the_users_own() -> None:
    """The program carries it along, and looks at nothing there."""
    mine = {**ALL, "layers": 50, "mapping": "a map", "batch": [4]}
    for keys in ({"origin": Origin(batch=2)}, {"layers": ()}, {"origin": Origin(), "layers": ()}):
        made = instance(mine, **keys)
        assert made.meta == mine
        assert made.made_from == keys.get("origin", Origin())
        assert made.named_layers == ()
        assert made.layers is keys.get("layers", UNSET)
        assert reread(made) == made
        assert [unit.layer for unit in layer_steps(made)] == ["t"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"origin": {"batch": "two"}}, r"\$\.origin\.batch"),
        ({"origin": {"batch": 0}}, r"\$\.origin\.batch"),
        ({"origin": {"network": "a\nb"}}, "printable"),
        ({"origin": {"colour": 1}}, "colour"),
        ({"origin": {"mapping": {"call_ns": -1, "page_ns": 1}}}, r"\$\.origin\.mapping\.call_ns"),
        ({"origin": None}, r"\$\.origin"),
        ({"layers": 3}, r"\$\.layers"),
        ({"layers": [entry(colour=1)]}, "colour"),
        ({"layers": [entry(name="a\nb")]}, "printable"),
        ({"layers": [entry(forward=[-1])]}, r"\$\.layers\[0\]\.forward"),
        ({"layers": [entry(forward=[1])]}, "layers: layer 'c' names no task 1"),
    ],
)
def test_a_file_with_wrong_keys_is_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    document = json.loads(encode(instance({}))) | keys
    (tmp_path / "bad").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=f"bad is not an instance: .*{words}"):
        read_instance(tmp_path / "bad")


def test_what_no_file_could_hold_is_refused_where_it_is_made() -> None:
    for make in (
        lambda: Origin(batch=True),
        lambda: Origin(notes="a\nb"),
        lambda: Origin(graph="mine"),  # type: ignore[arg-type]
        lambda: MappingTimes(call_ns=-1, page_ns=0),
        lambda: LayerTasks(name="c", kind="conv", forward=(-1,), backward=()),
        lambda: LayerTasks(name="", kind="conv", forward=(), backward=()),
        lambda: instance({}, origin={"batch": "4"}),
        lambda: instance({}, layers=(LayerTasks(name="c", kind="k", forward=(), backward=(7,)),)),
    ):
        with pytest.raises(FormatError):
            make()
