from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pebbler.instances.applied import Transform, transforms_of_words
from pebbler.instances.errors import FormatError
from pebbler.instances.files import encode, read_instance, write_instance
from pebbler.instances.instance import Instance
from pebbler.instances.transforms import (
    has_been,
    in_pages,
    in_parts,
    page_bytes_of,
    split_parts,
    with_engines,
    with_inputs_on_clock,
    with_link,
    with_mask,
    with_recomputation,
)
from pebbler.instances.workload import Workload


@pytest.fixture(scope="module")
def vgg16() -> Instance:
    return Workload("vgg16", 2, "K40").instance("4GiB")


@pytest.fixture(scope="module")
def changed(vgg16: Instance) -> Instance:
    every = with_recomputation(with_link(with_inputs_on_clock(with_engines(vgg16, "single")), "pcie5"))
    return in_pages(split_parts(with_mask(every), 8 * 2**20))


def as_earlier(instance: Instance) -> dict[str, Any]:
    """The file as versions before the key `transforms` wrote it."""
    document: dict[str, Any] = json.loads(encode(instance))
    if document.pop("transforms", None) is not None:
        document["meta"]["transforms"] = [transform.word for transform in instance.applied]
    return document


def test_files_of_earlier_versions_mean_the_same(changed: Instance, tmp_path: Path) -> None:
    document = as_earlier(changed)
    assert "pages=2097152" in document["meta"]["transforms"]
    (tmp_path / "old").write_text(json.dumps(document))
    old = read_instance(tmp_path / "old")
    assert old == changed
    assert (page_bytes_of(old), in_parts(old), has_been(old, "mask")) == (2**21, True, True)
    write_instance(old, tmp_path / "new")
    assert read_instance(tmp_path / "new") == changed


def test_an_instance_that_was_not_transformed_keeps_its_bytes(vgg16: Instance, tmp_path: Path) -> None:
    assert b"transforms" not in encode(vgg16)
    document = as_earlier(vgg16)
    document["meta"]["transforms"] = []
    (tmp_path / "old").write_text(json.dumps(document))
    assert encode(read_instance(tmp_path / "old")) == encode(vgg16)


@pytest.mark.parametrize(
    "words",
    [
        *(
            [1],
            [None],
            ["x"],
            [""],
            ["mask=1"],
            ["pages"],
            ["pages="],
            ["pages=x"],
            ["pages=0"],
            ["pages=-1"],
        ),
        *(
            ["pages=" + "9" * 5000],
            ["parts=0"],
            ["parts=x"],
            ["link"],
            ["engines"],
            ["link=a\nb"],
            [["mask"]],
        ),
        *("mask", 3, None, {"mask": 1}, ["mask", 1]),
    ],
)
def test_what_is_no_transform_is_refused(vgg16: Instance, words: Any) -> None:
    with pytest.raises(FormatError, match=r"^meta\.transforms") as caught:
        transforms_of_words(words)
    assert str(caught.value).isprintable()
    with pytest.raises(FormatError, match=r"^meta\.transforms"):
        msgspec.structs.replace(vgg16, meta={"transforms": words})


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "paint"},
        {"kind": "mask", "value": "x"},
        {"kind": "mask", "bytes": 1},
        {"kind": "pages"},
        {"kind": "pages", "bytes": 0},
        {"kind": "pages", "bytes": 512},
        {"kind": "pages", "bytes": 3 * 2**20},
        {"kind": "link"},
        {"kind": "link", "value": ""},
        {"kind": "link", "value": "x", "bytes": 1},
    ],
)
def test_a_transform_has_its_keys_and_no_other(vgg16: Instance, keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        Transform(**keys)
    document = json.loads(encode(vgg16)) | {"transforms": [keys]}
    (tmp_path / "bad").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"bad is not an instance: .*\$\.transforms"):
        read_instance(tmp_path / "bad")


def test_meta_changes_no_problem(vgg16: Instance) -> None:
    """Beside the key, what meta says of transforms is the user's."""
    said = msgspec.structs.replace(
        in_pages(vgg16), meta={**vgg16.meta, "transforms": ["mask", 1], "pages": 7, "mask": True}
    )
    assert page_bytes_of(said) == 2**21
    assert not has_been(said, "mask")
