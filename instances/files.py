"""Reading and writing files: one clear sentence when a file is bad, never a half-written file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import FormatError, PebblerError
from .figures import sentence_of, shown
from .instance import Instance

_Document = TypeVar("_Document", bound=msgspec.Struct)


class _Named(msgspec.Struct):
    """What every document has: in Python its format need not be given, in a file it must be."""

    format: str


def read_instance(path: str | Path) -> Instance:
    """Read an instance file.

    Raises
    ------
    PebblerError
        When the file cannot be read or breaks a rule of the format; the sentence names the place.
    """
    return read_document(path, Instance, "an instance")


def write_instance(instance: Instance, path: str | Path) -> str:
    """Write an instance file and return the SHA-256 of its bytes."""
    return write_document(instance, path)


def write_document(document: msgspec.Struct, path: str | Path) -> str:
    """Write a document as JSON and return the SHA-256 of the file's bytes."""
    data = encode(document)
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def checksum(document: msgspec.Struct) -> str:
    """SHA-256 of the file that `write_document` would write, in hexadecimal."""
    return hashlib.sha256(encode(document)).hexdigest()


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(_read(path)).hexdigest()


def read_document(path: str | Path, kind: type[_Document], what: str) -> _Document:
    """Decode the JSON document of type `kind` in a file; `what` names it in errors ("an instance")."""
    return decode(_read(path), kind, what, path)


def read_json(path: str | Path, kind: type[_Document], what: str) -> _Document:
    """Decode a file as `read_document` does, where a document need not say its format."""
    return _decoded_once(_read(path), kind, what, path)


def decode(data: bytes, kind: type[_Document], what: str, origin: str | Path) -> _Document:
    """Decode a JSON document of type `kind`; `what` names it in errors, `origin` where it is from.

    Raises
    ------
    FormatError
        When it breaks a rule of the format.
    """
    _decode(data, _Named, what, origin)
    return _decoded_once(data, kind, what, origin)


def encode(document: msgspec.Struct) -> bytes:
    """Encode a document as JSON: one line a key, and one line an element of a top-level list.

    The same document gives the same bytes, and files compare well line by line.
    """
    entries = msgspec.to_builtins(document)
    lines = []
    for key, value in entries.items():
        if isinstance(value, list | tuple) and value:
            body = b",\n".join(b"  " + msgspec.json.encode(item) for item in value)
            text = b"[\n" + body + b"\n ]"
        else:
            text = msgspec.json.encode(value)
        lines.append(b" " + msgspec.json.encode(key) + b": " + text)
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def reread(document: _Document) -> _Document:
    """Return what the file of a document would hold, read as strictly as a file is.

    What somebody else made passes here before anything is concluded from it.

    Raises
    ------
    FormatError
        When a file with these contents would be refused, or JSON cannot express them.
    """
    kind = type(document)
    what = f"the {kind.__name__} in memory"
    if not isinstance(document, msgspec.Struct):
        raise FormatError(f"{what} is not a document of pebbler")
    try:
        again = msgspec.json.decode(msgspec.json.encode(document), type=kind)
    except (msgspec.MsgspecError, FormatError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FormatError(f"{what} breaks a rule of its format: {_sentence(error)}") from None
    for field in msgspec.structs.fields(kind):
        if field.name != "meta" and getattr(again, field.name) != getattr(document, field.name):
            raise FormatError(
                f"{what} breaks a rule of its format: a file cannot hold its '{field.encode_name}'"
            )
    return again


def require_unique_keys(data: bytes) -> None:
    """Refuse JSON with an object that has a key twice: some programs take the first, others the last.

    Raises
    ------
    FormatError
        With the key.
    """
    json.loads(data, object_pairs_hook=_require_unique, parse_int=float)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file by way of a temporary one beside it, so that it is whole or not there.

    Raises
    ------
    PebblerError
        When the place cannot be written.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise PebblerError(f"{path} cannot be written: {error.strerror or error}") from None


def _decoded_once(data: bytes, kind: type[_Document], what: str, origin: str | Path) -> _Document:
    """Decode a document and refuse one that has a key twice."""
    document = _decode(data, kind, what, origin)
    try:
        require_unique_keys(data)
    except (FormatError, RecursionError) as error:
        raise FormatError(f"{origin} is not {what}: {_sentence(error)}") from None
    return document


def _decode(data: bytes, kind: type[_Document], what: str, origin: str | Path) -> _Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, FormatError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{origin} is not {what}: {_sentence(error)}") from None


def _require_unique(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise FormatError(f"the key {shown(twice)} is there twice in one object; leave one of them out")


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PebblerError(f"{path} cannot be read: {error.strerror or error}") from None


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return sentence_of(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
