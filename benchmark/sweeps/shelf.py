"""The folder of a suite's best-known values: one file, and beside it a folder of schedules and certificates.

``SUITE.json`` has values and checksums alone, and the folder ``SUITE`` has the documents, compressed, each
under a name with the start of its checksum. So a new document never replaces an older one before the values
do: whatever is interrupted leaves a folder that holds together. A suite that is shipped with its schedules,
as `tiny` is, has the documents inside of ``SUITE.json``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from ...instances.errors import FormatError
from ...instances.files import decode, encode, read_bytes, write_atomically, write_document
from ...validate.bounds.certificate import Certificate
from ...validate.schedule import Schedule
from .best_known import Record, Registry, best_known, read_registry

_END = ".json.gz"

_KINDS: dict[str, type[Schedule] | type[Certificate]] = {"schedule": Schedule, "certificate": Certificate}
"""Documents of a record, by the name of its attribute."""

_EMPTY: dict[str, UnsetType | None] = {"schedule": None, "certificate": UNSET}
"""What a record has in place of a document that lies apart."""


class Shelf:
    """A folder with the best-known values of a suite, which it need not have yet.

    Attributes
    ----------
    file
        The file with the values.
    """

    def __init__(self, folder: Path, suite: str) -> None:
        self.file = folder / f"{suite}.json"
        self._suite = suite
        self._apart = _is_apart(suite)
        self._sums: dict[int, tuple[msgspec.Struct, str]] = {}

    def read(self) -> Registry:
        """Read the values and the documents; where there is no file, it is what is shipped.

        Raises
        ------
        PebblerError
            When a file cannot be read, breaks a rule of the format, or is not what the values say.
        """
        if not self.file.exists():
            return best_known(self._suite)
        return with_documents(read_registry(self.file, self._suite), self.file.parent)

    def write(self, registry: Registry) -> None:
        """Write the documents that are new, then the values, and remove documents that none refers to.

        Raises
        ------
        PebblerError
            When the place cannot be written.
        """
        folder = self.file.parent / self._suite
        (folder if self._apart else folder.parent).mkdir(parents=True, exist_ok=True)
        if self._apart:
            records = tuple(self._laid_apart(record, folder) for record in registry.records)
            registry = msgspec.structs.replace(registry, records=records)
        write_document(registry, self.file)
        if self._apart:
            kept = {place for record in registry.records for _, place in _places(record, folder)}
            for place in sorted({*folder.glob(f"*{_END}")} - kept):
                place.unlink()

    def _laid_apart(self, record: Record, folder: Path) -> Record:
        """Write the documents of a record that are not there yet, and return it without them."""
        documents = {
            kind: document
            for kind in _EMPTY
            if (document := getattr(record, kind)) is not None and document is not UNSET
        }
        sums = {f"{kind}_sha256": self._checksum(document) for kind, document in documents.items()}
        bare = msgspec.structs.replace(record, **sums, **{kind: _EMPTY[kind] for kind in documents})
        for kind, place in _places(bare, folder):
            if kind in documents and not place.exists():
                write_atomically(place, gzip.compress(encode(documents[kind]), mtime=0))
        return bare

    def _checksum(self, document: msgspec.Struct) -> str:
        """Return the checksum of a document's file, which is not encoded again each time."""
        known, checksum = self._sums.get(id(document), (None, ""))
        if known is not document:
            checksum = sha256(encode(document)).hexdigest()
            self._sums[id(document)] = document, checksum
        return checksum


def with_documents(registry: Registry, folder: Path) -> Registry:
    """Return a registry with the documents that lie in a folder beside its file.

    A document that is not there is left out: its values are known.

    Raises
    ------
    PebblerError
        When a document cannot be read, or is not what the values say.
    """
    if not _is_apart(registry.suite):
        return registry
    records = []
    for record in registry.records:
        found = {
            kind: _unpacked(place, _KINDS[kind], getattr(record, f"{kind}_sha256"))
            for kind, place in _places(record, folder / registry.suite)
            if place.exists()
        }
        records.append(msgspec.structs.replace(record, **found))
    return msgspec.structs.replace(registry, records=tuple(records))


def _is_apart(suite: str) -> bool:
    return all(record.schedule is None for record in best_known(suite).records)


def _places(record: Record, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kinds of a record's documents that have a checksum, and their files."""
    for kind in _KINDS:
        checksum = getattr(record, f"{kind}_sha256")
        if checksum is not UNSET:
            yield kind, folder / f"{record.instance}-{checksum[:8]}.{kind}{_END}"


def _unpacked(file: Path, kind: type[Schedule] | type[Certificate], checksum: str) -> Schedule | Certificate:
    what = f"a {kind.__name__.lower()}"
    try:
        data = gzip.decompress(read_bytes(file))
    except (OSError, EOFError, zlib.error):
        raise FormatError(f"{file} is not compressed by gzip; take it out, and enter {what} again") from None
    if sha256(data).hexdigest() != checksum:
        raise FormatError(f"{file} is not what the values say; take it out, and enter {what} again")
    return decode(data, kind, what, file)
