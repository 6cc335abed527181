"""JSON Schemas of the file formats, made from the classes that read them.

They are shipped as ``validate/schemas/*.schema.json``, for programs in any language;
``pebbler schemas -o validate/schemas`` writes them anew. A schema says which keys and types there are. The
readers check all other rules, such as that no data is read before it exists.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..instances.errors import PebblerError
from ..instances.files import write_atomically
from ..instances.instance import Instance
from ..instances.profile import Profile
from ..instances.suites.manifest import Manifest
from .bounds.certificate import Certificate
from .schedule import Schedule
from .traces.trace import Trace

FORMATS: dict[str, type[msgspec.Struct]] = {
    "certificate": Certificate,
    "instance": Instance,
    "manifest": Manifest,
    "profile": Profile,
    "schedule": Schedule,
    "trace": Trace,
}
"""Classes of the documents that have a schema, by the name of their format."""


def json_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document's class.

    In Python, the key `format` has a default. A file must have this key, so that the schema requires it.
    """
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for component in components.values():
        component["description"] = component["description"].splitlines()[0]
    root = components.pop(kind.__name__)
    root["required"] = sorted({"format", *root["required"]})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": components}


def schema_file(name: str) -> bytes:
    """Return the schema file of a format.

    Raises
    ------
    PebblerError
        When there is no such format.
    """
    if name not in FORMATS:
        raise PebblerError(f"there is no schema '{name}'; there are {', '.join(FORMATS)}")
    schema = msgspec.json.encode(json_schema(FORMATS[name]), order="sorted")
    return msgspec.json.format(schema, indent=2) + b"\n"


def write_schemas(folder: Path) -> tuple[str, ...]:
    """Write all schemas into a folder, which is made, and return the names of the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PebblerError(f"{folder} cannot be made: {error.strerror or error}") from None
    files = {f"{name}.schema.json": schema_file(name) for name in FORMATS}
    for file, data in files.items():
        write_atomically(folder / file, data)
    return tuple(files)


if __name__ == "__main__":
    print("pebbler: this name goes with the next version; use pebbler schemas -o DIR", file=sys.stderr)
    sys.argv[1:] = ["schemas", "--output", *sys.argv[1:]]
    runpy.run_module("pebbler", run_name="__main__", alter_sys=True)
