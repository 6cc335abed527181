"""Reading and writing files: one clear sentence when a file is bad, never a half-written file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .arguments import require_instance, require_path
from .errors import FormatError, PebblerError
from .figures import fields_of, sentence_of, shown
from .instance import Instance

_Document = TypeVar("_Document", bound=msgspec.Struct)

LARGEST_FILE = 2**30
"""Bytes of the largest input that is read, 1 GiB; a million tasks take a fifth of it."""

LARGEST_TOML = 2**18
"""Bytes of the largest TOML file that is read, 256 KiB: people write them, and their reader is slow."""

_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")
"""A key of over 32 parts; the time and the memory of tomllib grow with the square of their number."""


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


def read_summed_instance(path: str | Path) -> tuple[Instance, str]:
    """Read an instance file once, and return the instance with the SHA-256 of the very same bytes.

    Raises
    ------
    PebblerError
        As `read_instance` does.
    """
    data = read_bytes(path)
    return decode(data, Instance, "an instance", path), hashlib.sha256(data).hexdigest()


def write_instance(instance: Instance, path: str | Path) -> str:
    """Write an instance file and return the SHA-256 of its bytes."""
    require_instance(instance)
    return write_document(instance, path)


def write_document(document: msgspec.Struct, path: str | Path) -> str:
    """Write a document as JSON and return the SHA-256 of the file's bytes.

    Raises
    ------
    PebblerError
        When the place cannot be written, or a figure is too large for the format.
    """
    try:
        data = encode(document)
    except OverflowError as error:
        raise FormatError(f"{path} is not written: {error}") from None
    _decode(data, type(document), "what pebbler can read again, so it is not written", path)
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def checksum(document: msgspec.Struct) -> str:
    """SHA-256 of the file that `write_document` would write, in hexadecimal."""
    return hashlib.sha256(encode(document)).hexdigest()


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_document(path: str | Path, kind: type[_Document], what: str) -> _Document:
    """Decode the JSON document of type `kind` in a file; `what` names it in errors ("an instance")."""
    return decode(read_bytes(path), kind, what, path)


def read_json(path: str | Path, kind: type[_Document], what: str) -> _Document:
    """Decode a file as `read_document` does, where a document need not say its format."""
    return _decoded_once(read_bytes(path), kind, what, path)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    PebblerError
        When it cannot be read, is larger than `LARGEST_TOML` or is not TOML.
    """
    data = read_bytes(path, LARGEST_TOML)
    try:
        text = data.decode("utf-8")
        if _LONG_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text)
    except RecursionError:
        raise FormatError(f"{path} is not TOML: it is nested too deeply") from None
    except ValueError as error:  # of the text, its encoding or an integer of too many digits
        raise FormatError(f"{path} is not TOML: {error}") from None


def read_bytes(path: str | Path, most: int = LARGEST_FILE) -> bytes:
    """Read a file, or a pipe to its end, and nothing of more than `most` bytes.

    Raises
    ------
    PebblerError
        When it cannot be read, is too large or is a folder, a device or a socket.
    """
    require_path(path)
    try:
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            what = "Is a directory" if stat.S_ISDIR(mode) else "it is a device or a socket"
            raise PebblerError(f"{path} cannot be read: {what}; give a file or a pipe")
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise PebblerError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null character in the name
        if isinstance(error, PebblerError):
            raise
        raise PebblerError(f"{path} cannot be read: {error}") from None
    if len(data) > most:
        raise PebblerError(f"{path} cannot be read: it has more than {most} bytes, the most that is read")
    return data


def decode(data: bytes, kind: type[_Document], what: str, origin: str | Path) -> _Document:
    """Decode a JSON document of type `kind`; `what` names it in errors, `origin` where it is from.

    Raises
    ------
    FormatError
        When it breaks a rule of the format.
    """
    _decode(data, _Named, what, origin)
    return _decoded_once(data, kind, what, origin)


def encode(document: msgspec.Struct | Mapping[str, Any]) -> bytes:
    """Encode a document, or what has keys like one, as JSON: a line a key, and an element of its lists.

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
    for field in fields_of(kind):
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


_STANDARD_OUTPUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
"""Names of standard output as a file."""


def write_atomically(path: str | Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file by way of a temporary one beside it, so that it is whole or not there.

    A file that is there keeps its permissions and, where that is allowed, its owner. A link stays, and what
    it leads to is replaced. A device or a pipe is written to, and so is standard output by its name. The data
    may come in pieces.

    Raises
    ------
    PebblerError
        When the place cannot be written.
    """
    require_path(path)
    try:
        _write(Path(path), [data] if isinstance(data, bytes) else data)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and str(path) in _STANDARD_OUTPUT:
            raise  # as where a command prints: its reader has ended
        raise PebblerError(f"{path} cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a null character in the name
        raise PebblerError(f"{path} cannot be written: {error}") from None


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    if str(path) in _STANDARD_OUTPUT and sys.stdout is not None:
        # Not by that name: commands let what native code prints there go to standard error.
        sys.stdout.flush()
        sys.stdout.buffer.writelines(pieces)
        sys.stdout.buffer.flush()
        return
    try:
        there = path.stat()
    except FileNotFoundError:
        there = None
    if there is not None and not stat.S_ISREG(there.st_mode):
        with path.open("wb", buffering=0) as device:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[device.write(rest) :]
        return
    target = Path(os.path.realpath(path))
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:32]}.")
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        if there is None:
            made.chmod(0o666 & ~_umask())
        else:
            with contextlib.suppress(PermissionError):
                os.chown(made, there.st_uid, there.st_gid)
            made.chmod(there.st_mode & 0o777)
        made.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink()
        raise


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


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return sentence_of(error)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
