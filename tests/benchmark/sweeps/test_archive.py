"""The archive of a suite: what is in it, and that its bytes depend on nothing but the version."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from hashlib import sha256
from importlib import resources
from pathlib import Path

import pytest

from pebbler.benchmark.sweeps.archive import export_suite
from pebbler.instances.errors import PebblerError
from pebbler.instances.files import read_instance
from pebbler.validate.schemas import FORMATS, schema_file


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "tiny.tar"
    export_suite("tiny", path)
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Files of an archive in their order, read by hand from what POSIX says of ustar."""
    data, files = path.read_bytes(), {}
    while data[0]:
        header, data = data[:512], data[512:]
        name, size = header[:100].rstrip(b"\0").decode(), int(header[124:135], 8)
        assert header[100:124] == b"0000644\0" + b"0000000\0" * 2, name  # mode, owner, group
        assert header[136:148] == b"00000000000\0", name  # time
        assert sum(header[:148] + b" " * 8 + header[156:]) == int(header[148:154], 8), name
        assert header[156:265] == b"0" + b"\0" * 100 + b"ustar\x0000", name
        assert not header[265:].strip(b"\0"), name  # names of owners, devices, and a longer name
        files[name] = data[:size]
        assert not data[size : -(-size // 512) * 512].strip(b"\0"), name
        data = data[-(-size // 512) * 512 :]
    assert data == b"\0" * 1024
    return files


def test_every_byte_of_an_archive_is_fixed_and_the_files_are_those_of_the_suite(
    made: Path, tmp_path: Path
) -> None:
    files = contents(made)
    assert list(files) == sorted(files)
    sums = dict(reversed(line.split("  ")) for line in files["tiny/SHA256SUMS"].decode().splitlines())
    assert {f"tiny/{name}" for name in sums} == files.keys() - {"tiny/SHA256SUMS"}
    assert all(sha256(files[f"tiny/{name}"]).hexdigest() == of for name, of in sums.items())
    for name in FORMATS:
        assert files[f"tiny/schemas/{name}.schema.json"] == schema_file(name)
    known = resources.files("pebbler.instances.suites").joinpath("best_known", "tiny.json").read_bytes()
    assert files["tiny/best-known.json"] == known
    assert 'title: "Pebbler suite tiny: Instances small enough' in files["tiny/CITATION.cff"].decode()
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path, filter="data")
    instances = list((tmp_path / "tiny").glob("*.instance.json"))
    assert len(instances) == 51
    assert read_instance(instances[0]).name == instances[0].name.removesuffix(".instance.json")


def test_the_licence_is_that_of_pebbler(made: Path, pytestconfig: pytest.Config) -> None:
    assert contents(made)["tiny/LICENSE"] == (pytestconfig.rootpath / "LICENSE").read_bytes()


def test_an_archive_has_the_same_bytes_where_umask_and_names_are_others(made: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        _, checksum = export_suite("tiny", tmp_path / "other.tar")
    finally:
        os.umask(before)
    assert (tmp_path / "other.tar").read_bytes() == made.read_bytes()
    assert checksum == sha256(made.read_bytes()).hexdigest()


@pytest.mark.slow
def test_an_archive_has_the_same_bytes_in_another_place_time_zone_and_language(
    made: Path, tmp_path: Path
) -> None:
    other = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "pebbler", "suite", "export", "tiny", "-o", "t.tar"]
    subprocess.run(command, env={**os.environ, **other}, cwd=tmp_path, check=True)
    assert (tmp_path / "t.tar").read_bytes() == made.read_bytes()


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PebblerError, match="there is no suite 'tinny'"):
        export_suite("tinny", tmp_path / "t.tar")
    assert list(tmp_path.iterdir()) == []
