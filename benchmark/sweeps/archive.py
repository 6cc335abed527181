"""A suite as one file to publish and to cite: an archive that has the same bytes wherever it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import resources
from pathlib import Path
from tarfile import BLOCKSIZE, NUL, USTAR_FORMAT, TarInfo
from tempfile import TemporaryDirectory

from msgspec import json

from ...instances.files import sha256_of, write_atomically
from ...instances.suites.manifest import Manifest, write_suite

_CITATION = """\
cff-version: 1.2.0
message: "If you use this suite, please cite it, with its version and the checksum of the archive."
title: {title}
type: dataset
authors:
  - name: "The Pebbler authors"
version: {version}
license: Apache-2.0
"""


def export_suite(name: str, path: Path) -> tuple[Manifest, str]:
    """Write a suite's archive, and return its manifest and the archive's SHA-256.

    The archive is a tar of one folder: what `write_suite` writes, the JSON schemas of all formats, the
    licence, the citation, and ``SHA256SUMS`` of all these. It is not compressed, because a compressor may
    give other bytes in its next version. Names, order, modes, owners and times are fixed (POSIX ustar).

    Raises
    ------
    PebblerError
        When there is no such suite, or the file cannot be written.
    """
    with TemporaryDirectory(prefix="pebbler-") as made:
        folder = Path(made)
        manifest = write_suite(name, folder)
        _add(folder / "LICENSE", resources.files("pebbler.instances.suites").joinpath("LICENSE").read_bytes())
        title = json.encode(f"Pebbler suite {name}: {manifest.title}").decode()  # which YAML reads, too
        citation = _CITATION.format(title=title, version=manifest.pebbler)
        _add(folder / "CITATION.cff", citation.encode())
        for schema in resources.files("pebbler.validate").joinpath("schemas").iterdir():
            if schema.name.endswith(".json"):
                _add(folder / "schemas" / schema.name, schema.read_bytes())
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        sums = "".join(f"{sha256_of(folder / file)}  {file}\n" for file in files)
        _add(folder / "SHA256SUMS", sums.encode())
        whole = sha256()
        write_atomically(path, _summed(_tar(folder, name, sorted([*files, "SHA256SUMS"])), whole.update))
    return manifest, whole.hexdigest()


def _add(file: Path, data: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)


def _tar(folder: Path, name: str, files: list[str]) -> Iterator[bytes]:
    """Yield the bytes of a tar of files of a folder, which is called `name` in there."""
    for file in files:
        data = (folder / file).read_bytes()
        entry = TarInfo(f"{name}/{file}")  # mode 644, owner 0 without a name, time 0
        entry.size = len(data)
        yield entry.tobuf(USTAR_FORMAT, "ascii", "strict")
        yield data
        yield NUL * (-len(data) % BLOCKSIZE)
    yield NUL * (2 * BLOCKSIZE)


def _summed(chunks: Iterator[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    """Yield chunks, and add each of them to a checksum."""
    for chunk in chunks:
        update(chunk)
        yield chunk
