"""JSON Schemas of the file formats, made from the classes that read them.

They are shipped as ``validate/schemas/*.schema.json``, for programs in any language;
``python -m pebbler.validate.schemas FOLDER`` writes them anew. A schema says which keys and types there are;
what it cannot say, such as that nothing is read before it exists, the readers check.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..instances.files import write_atomically
from ..instances.instance import Instance
from ..instances.profile import Profile
from ..instances.suites.manifest import Manifest
from .bounds.certificate import Certificate
from .schedule import Schedule

FORMATS: dict[str, type[msgspec.Struct]] = {
    "certificate": Certificate,
    "instance": Instance,
    "manifest": Manifest,
    "profile": Profile,
    "schedule": Schedule,
}
"""The documents that have a schema, by the name of their files."""


def json_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document's class.

    In Python a document's format need not be given; in a file it must be, so that it is required here.
    """
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for component in components.values():
        component["description"] = component["description"].splitlines()[0]
    root = components.pop(kind.__name__)
    root["required"] = sorted({"format", *root["required"]})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": components}


def write_schemas(folder: Path) -> None:
    """Write all schemas into a folder."""
    for name, kind in FORMATS.items():
        text = msgspec.json.format(msgspec.json.encode(json_schema(kind), order="sorted"), indent=2)
        write_atomically(folder / f"{name}.schema.json", text + b"\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the schemas into the folder that is named."""
    (folder,) = sys.argv[1:] if arguments is None else arguments
    write_schemas(Path(folder))


if __name__ == "__main__":
    main()
