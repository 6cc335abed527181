from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import numpy as np
import pytest

from pebbler.instances.errors import FormatError, PebblerError
from pebbler.instances.files import (
    LARGEST_TOML,
    encode,
    read_bytes,
    read_instance,
    read_summed_instance,
    read_toml,
    reread,
    sha256_of,
    write_atomically,
    write_instance,
)
from pebbler.instances.instance import Algorithm, Block, Instance, Task
from pebbler.instances.units import LARGEST


@pytest.fixture
def instance() -> Instance:
    """Every key away from its default somewhere."""
    return Instance(
        name="höhe <1>",
        engines="single",
        budget_bytes=4096,
        resident_bytes=7,
        alignment_bytes=4,
        rounds=3,
        blocks=(
            Block(
                name="x",
                bytes=5,
                offload_ns=None,
                prefetch_ns=3,
                move_ns=1,
                initially="host",
                finally_="device",
            ),
            Block(name="p", bytes=8, offload_ns=0, prefetch_ns=None, tensor="t", begin=0),
            Block(
                name="q", bytes=LARGEST, offload_ns=2, prefetch_ns=2, tensor="t", begin=8, initially="device"
            ),
        ),
        tasks=(
            Task(
                name="f",
                inputs=(0,),
                outputs=(1,),
                updates=(2,),
                algorithms=(
                    Algorithm(name="a", duration_ns=0, workspace_bytes=0),
                    Algorithm(name="b", duration_ns=LARGEST, workspace_bytes=1),
                ),
                recomputable=True,
            ),
        ),
        meta={"batch": 4, "list": [{"name": "l"}], "nothing": None, "share": 0.5},
    )


@pytest.fixture
def document(instance: Instance) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(encode(instance))
    return document


def put(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_file_comes_back_as_it_went(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "a.instance.json"
    digest = write_instance(instance, path)
    assert read_instance(path) == instance
    assert digest == sha256_of(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_instance_same_bytes(instance: Instance, tmp_path: Path) -> None:
    write_instance(instance, tmp_path / "a")
    write_instance(read_instance(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_keys_are_those_of_the_contract(document: dict[str, Any]) -> None:
    assert document["format"] == "pebbler/instance/1"
    assert document["blocks"][0]["finally"] == "device"
    assert set(document["tasks"][0]) == {"name", "inputs", "outputs", "updates", "algorithms", "recomputable"}


def test_a_block_and_a_task_have_a_line_each(instance: Instance) -> None:
    lines = encode(instance).decode().splitlines()
    for name in ('"x"', '"p"', '"q"', '"f"'):
        assert sum(line.startswith(f'  {{"name":{name}') for line in lines) == 1


def test_minimal_file_gets_the_contract_s_defaults(tmp_path: Path) -> None:
    minimal = {
        "format": "pebbler/instance/1",
        "name": "m",
        "engines": "duplex",
        "budget_bytes": 0,
        "resident_bytes": 0,
        "blocks": [{"name": "x", "bytes": 1, "offload_ns": None, "prefetch_ns": None}],
        "tasks": [
            {
                "name": "t",
                "inputs": [],
                "outputs": [0],
                "algorithms": [{"name": "a", "duration_ns": 0, "workspace_bytes": 0}],
            }
        ],
    }
    made = read_instance(put(tmp_path / "m", minimal))
    assert (made.alignment_bytes, made.rounds, made.meta) == (512, 1, {})
    assert made.blocks[0].initially == "absent"


def set_at(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """Set the place that all but the last of `keys` lead to."""
    *path, last, value = keys

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path:
            place = place[key]
        place[last] = value

    return change


def drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *path, last = keys

    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for key in path:
            place = place[key]
        del place[last]

    return change


@pytest.mark.parametrize(
    ("change", "key", "place"),
    [
        (set_at("colour", 1), "colour", ""),
        (set_at("blocks", 1, "colour", 1), "colour", "$.blocks[...]"),
        (set_at("tasks", 0, "colour", 1), "colour", "$.tasks[...]"),
        (set_at("tasks", 0, "algorithms", 1, "colour", 1), "colour", "$.tasks[...].algorithms[...]"),
        (set_at("blocks", 0, "finally_", "device"), "finally_", "$.blocks[...]"),
        (drop("format"), "format", ""),
        (drop("engines"), "engines", ""),
        (drop("blocks", 0, "offload_ns"), "offload_ns", "$.blocks[...]"),
        (drop("tasks", 0, "inputs"), "inputs", "$.tasks[...]"),
        (set_at("format", "pebbler/instance/2"), "pebbler/instance/2", "$.format"),
        (set_at("engines", "triple"), "triple", "$.engines"),
        (set_at("blocks", 0, "initially", "disk"), "disk", "$.blocks[...].initially"),
        (set_at("blocks", 0, "bytes", 0), ">= 1", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "bytes", -1), ">= 1", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "bytes", 1.5), "`int`", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "bytes", True), "`int`", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "bytes", "8"), "`int`", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "bytes", LARGEST + 1), "<= ", "$.blocks[...].bytes"),
        (set_at("blocks", 0, "offload_ns", -1), ">= 0", "$.blocks[...].offload_ns"),
        (set_at("blocks", 0, "begin", -4), ">= 0", "$.blocks[...].begin"),
        (set_at("tasks", 0, "inputs", [-1]), ">= 0", "$.tasks[...].inputs[...]"),
        (set_at("tasks", 0, "inputs", [9]), "block index 9 is out of range 0..2", ""),
        (set_at("tasks", 0, "algorithms", 0, "duration_ns", -1), ">= 0", "duration_ns"),
        (set_at("tasks", 0, "algorithms", 0, "workspace_bytes", None), "`int`", "workspace_bytes"),
        (set_at("alignment_bytes", 0), ">= 1", "$.alignment_bytes"),
        (set_at("rounds", 0), ">= 1", "$.rounds"),
        (set_at("budget_bytes", -1), ">= 0", "$.budget_bytes"),
        (set_at("meta", [1]), "`object`", "$.meta"),
        (set_at("name", None), "`str`", "$.name"),
        (set_at("tasks", []), "there is none", ""),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence_that_names_the_place(
    change: Callable[[dict[str, Any]], None],
    key: str,
    place: str,
    document: dict[str, Any],
    tmp_path: Path,
) -> None:
    change(document)
    path = put(tmp_path / "bad.instance.json", document)
    with pytest.raises(FormatError) as caught:
        read_instance(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path} is not an instance: ")
    assert key in sentence
    assert place in re.sub(r"\[\d+\]", "[...]", sentence)
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"meta": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_bytes_that_are_no_instance(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="is not an instance") as caught:
        read_instance(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match=r"none\.json cannot be read: No such file"):
        read_instance(tmp_path / "none.json")
    with pytest.raises(PebblerError, match="cannot be read"):
        sha256_of(tmp_path)


def test_writing_replaces_whole_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PebblerError, match="cannot be written: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="cannot be written: No such file"):
        write_atomically(tmp_path / "none" / "a", b"")


def test_a_document_in_memory_is_read_as_a_file_is(instance: Instance) -> None:
    again = reread(instance)
    assert again == instance
    assert again is not instance


@pytest.mark.parametrize(
    "wrong",
    [-1, True, 1.0, float("nan"), float("inf"), "4096", None, LARGEST + 1, 10**30, [1], np.int64(4096)],
)
def test_a_document_in_memory_that_no_file_may_hold_is_refused(instance: Instance, wrong: object) -> None:
    msgspec.structs.force_setattr(instance, "budget_bytes", wrong)
    with pytest.raises(FormatError, match=r"the Instance in memory") as caught:
        reread(instance)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [float("nan"), False, "1"])
def test_what_json_writes_as_null_is_no_null(instance: Instance, wrong: object) -> None:
    msgspec.structs.force_setattr(instance.blocks[0], "move_ns", wrong)
    with pytest.raises(FormatError, match=r"move_ns|blocks"):
        reread(instance)


def test_contents_that_json_cannot_express_are_refused(instance: Instance) -> None:
    for wrong in ({"a": object()}, {"a": "\ud800"}, {(1, 2): 3}):
        msgspec.structs.force_setattr(instance, "meta", wrong)
        with pytest.raises(FormatError, match="in memory"):
            reread(instance)
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    msgspec.structs.force_setattr(instance, "meta", loop)
    with pytest.raises(FormatError, match="nested too deeply"):
        reread(instance)


def test_only_documents_are_read_again() -> None:
    with pytest.raises(FormatError, match="the dict in memory is not a document"):
        reread({"format": "pebbler/instance/1"})  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (b'"name":"x"', b'"name":"y","name":"x"', "name"),
        (b'"budget_bytes": 4096', b'"budget_bytes": 1, "budget_bytes": 4096', "budget_bytes"),
        (b'"batch":4', b'"batch":4,"batch":4', "batch"),
        (b'"duration_ns":0', b'"duration_ns":0,"duration\\u005fns":0', "duration_ns"),
        (b'{"name":"l"}', b'{"name":"l","a\\nb":1,"a\\nb":2}', "a\\\\nb"),
    ],
)
def test_a_key_is_there_once(instance: Instance, tmp_path: Path, old: bytes, new: bytes, key: str) -> None:
    data = encode(instance)
    assert old in data
    (tmp_path / "twice").write_bytes(data.replace(old, new, 1))
    with pytest.raises(
        FormatError, match=f"twice is not an instance: the key '{key}' is there twice"
    ) as caught:
        read_instance(tmp_path / "twice")
    assert str(caught.value).isprintable()


def test_figures_of_any_length_are_refused_and_no_trouble(instance: Instance, tmp_path: Path) -> None:
    for place, match in ((b'"budget_bytes": 4096', "out of range|<= 9007"), (b'"share":0.5', "")):
        (tmp_path / "long").write_bytes(encode(instance).replace(place, place + b"0" * 5000))
        try:
            read_instance(tmp_path / "long")
        except FormatError as error:
            assert re.search(match, str(error))  # noqa: PT017
        else:
            assert not match


# --- what is read --------------------------------------------------------------------------------------


def fed(data: bytes) -> int:
    """The reading end of a pipe that gives these bytes and ends."""
    reader, writer = os.pipe()

    def feed() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(data)

    Thread(target=feed, daemon=True).start()
    return reader


def test_a_pipe_is_read_once(instance: Instance) -> None:
    data = encode(instance)
    reader = fed(data)
    try:
        read, checksum = read_summed_instance(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    assert read == instance
    assert checksum == hashlib.sha256(data).hexdigest()


def test_the_checksum_is_of_the_bytes_that_were_read(instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(encode(instance).replace(b"\n", b"\n \n"))
    assert read_summed_instance(path) == (instance, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_file_or_a_pipe_of_too_many_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    assert read_bytes(path, 100) == bytes(100)
    with pytest.raises(PebblerError, match="it has more than 99 bytes"):
        read_bytes(path, 99)
    with path.open("wb") as file:
        file.truncate(2**42)
    with pytest.raises(PebblerError, match="it has more than 1000 bytes"):
        read_bytes(path, 1000)
    reader = fed(bytes(1001))
    with pytest.raises(PebblerError, match="it has more than 1000 bytes"):
        read_bytes(f"/dev/fd/{reader}", 1000)
    os.close(reader)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="Is a directory; give a file or a pipe"):
        read_bytes(tmp_path)
    with pytest.raises(PebblerError, match="it is a device or a socket"):
        read_bytes("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(PebblerError, match="it is a device or a socket"):
            read_bytes(tmp_path / "s")
    with pytest.raises(PebblerError, match=r"cannot be read: .*embedded null"):
        read_bytes("a\0b")
    with pytest.raises(PebblerError, match="cannot be read: File name too long"):
        read_bytes("a" * 5000)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a" + b".a" * 100_000 + b" = 1", "nested too deeply"),
        (b"a = " + b"9" * 5000, "4300"),
        (b"a = '\xff'", "utf-8"),
        (b"a = 1\na = 2", "overwrite"),
        (b"#" * (LARGEST_TOML + 1), "more than"),
    ],
)
def test_toml_that_cannot_be_read(text: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(text)
    with pytest.raises(PebblerError) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


# --- what is written -----------------------------------------------------------------------------------


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, further = tmp_path / "far" / "a", tmp_path / "link", tmp_path / "further"
    link.symlink_to("far/a")
    further.symlink_to("link")
    write_atomically(further, b"new")  # its target is not there yet
    write_atomically(link, b"newer")
    assert target.read_bytes() == b"newer"
    assert not target.is_symlink()
    assert link.readlink() == Path("far/a")
    assert further.readlink() == Path("link")
    assert {*tmp_path.rglob("*")} == {target.parent, target, link, further}


def test_a_circle_of_links_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(PebblerError, match="cannot be written: Too many levels of symbolic links"):
        write_atomically(tmp_path / "a", b"")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_a_mode_stays(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(mode)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == mode


def test_an_owner_stays_where_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    try:
        os.chown(path, 12345, 54321)
    except PermissionError:
        pytest.skip("only root gives files away")
    write_atomically(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_new_file_has_the_mode_of_new_files(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "a", b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    path, data = tmp_path / "pipe", bytes(range(256)) * 4096
    os.mkfifo(path)
    got: list[bytes] = []
    reader = Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()
    write_atomically(path, data)
    reader.join(10)
    assert got == [data]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_standard_output_is_written_to_by_its_name(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print("before")
    write_atomically("/dev/stdout", [b"one, ", b"two\n"])
    print("after")
    assert capsysbinary.readouterr() == (b"before\none, two\nafter\n", b"")


def test_a_command_writes_to_standard_output_and_leaves_that_of_errors_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pebbler", "suite", "export", "tiny", "-o", "/dev/stdout"]
    archive, errors = tmp_path / "tiny.tar", tmp_path / "errors.txt"
    errors.write_text("an earlier line\n")
    with archive.open("wb") as out, errors.open("ab") as err:
        subprocess.run(command, stdout=out, stderr=err, check=True)
    assert errors.read_text() == "an earlier line\n"
    with tarfile.open(archive) as tar:
        assert "tiny/SHA256SUMS" in tar.getnames()


@pytest.mark.parametrize(("minor", "said"), [(3, None), (7, "No space left on device")])
def test_a_device_is_written_to_and_stays(minor: int, said: str | None, tmp_path: Path) -> None:
    """Copies of the null device and of the one that is always full."""
    device = tmp_path / "device"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("only root makes devices, and not everywhere")
    link = tmp_path / "link"
    link.symlink_to("device")
    for place in (device, link):
        if said is None:
            write_atomically(place, b"data")
        else:
            with pytest.raises(PebblerError, match=said):
                write_atomically(place, b"data")
    assert stat.S_ISCHR(device.lstat().st_mode)
    assert link.is_symlink()
    assert {*tmp_path.iterdir()} == {device, link}


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("budget", [LARGEST + 1, 2**63, 2**64, 10**400])
def test_what_could_not_be_read_again_is_not_written(budget: int, instance: Instance, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with pytest.raises(PebblerError) as caught:
        write_instance(msgspec.structs.replace(instance, budget_bytes=budget), path)
    assert len(str(caught.value)) < 500
    assert path.read_bytes() == b"old"
