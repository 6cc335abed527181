"""Files that a registry's schedules and certificates lie in."""

from __future__ import annotations

from msgspec import UNSET

from pebbler.benchmark.sweeps.best_known import Registry


def names_of_documents(registry: Registry) -> set[str]:
    """Names of all files that the registry's checksums are of."""
    return {
        f"{record.instance}-{checksum[:8]}.{kind}.json.gz"
        for record in registry.records
        for kind, checksum in (
            ("schedule", record.schedule_sha256),
            ("certificate", record.certificate_sha256),
        )
        if checksum is not UNSET
    }
