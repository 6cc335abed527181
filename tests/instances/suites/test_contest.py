"""Hidden instances of a contest: what a secret gives, and what is refused as one."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from pebbler.instances.errors import PebblerError
from pebbler.instances.files import checksum, read_instance
from pebbler.instances.suites.contest import contest_instances, write_contest, write_secret

SECRET = b"a secret that everybody knows, of some length\n"

PINNED = "8a2d1bec10c5a2690f064051f2231bdbb7cb7813ee0e969858952b9fba4a1d12"
"""Checksum of the checksums of the first fourteen instances, which are the same on every machine."""


def test_a_secret_gives_the_same_instances_anywhere() -> None:
    instances = list(contest_instances(SECRET, 14))
    assert sha256("".join(map(checksum, instances)).encode()).hexdigest() == PINNED
    assert {instance.meta["shape"]["family"] for instance in instances} == {  # type: ignore[call-overload,index]
        *("chain", "residual", "inception", "dense", "u-shaped", "recurrent", "layered")
    }
    assert {instance.engines for instance in instances} == {"duplex", "single"}


def test_fewer_are_the_first_of_more_and_another_secret_gives_others() -> None:
    few, more = (list(map(checksum, contest_instances(SECRET, count))) for count in (2, 3))
    assert few == more[:2]
    assert not {*more} & {*map(checksum, contest_instances(SECRET + b"!", 3))}


def test_what_is_published_first_is_the_checksum_of_the_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    published = write_secret(secret)
    data = secret.read_bytes()
    assert published == sha256(data).hexdigest()
    assert len(data) > 64
    assert secret.stat().st_mode & 0o077 == 0
    assert write_contest(secret, 2, tmp_path / "hidden") == published
    sums = dict(
        line.split("  ")[::-1] for line in (tmp_path / "hidden" / "SHA256SUMS").read_text().splitlines()
    )
    assert [*sums] == ["hidden-000.instance.json", "hidden-001.instance.json"]
    for instance, file in zip(contest_instances(data, 2), sums, strict=True):
        assert read_instance(tmp_path / "hidden" / file) == instance
        assert checksum(instance) == sums[file]
    other = tmp_path / "other.txt"
    assert write_secret(other) != published


def test_a_secret_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(SECRET)
    with pytest.raises(PebblerError, match="may be the secret of a contest; give a new file"):
        write_secret(tmp_path / "secret.txt")
    assert (tmp_path / "secret.txt").read_bytes() == SECRET
    (tmp_path / "link").symlink_to("none")
    with pytest.raises(PebblerError, match="link exists, and may be the secret"):
        write_secret(tmp_path / "link")
    with pytest.raises(PebblerError, match="cannot be written"):
        write_secret(tmp_path / "none" / "secret.txt")


def test_instances_of_another_draw_are_not_mixed_with_these(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(SECRET)
    hidden = tmp_path / "hidden"
    write_contest(tmp_path / "secret.txt", 2, hidden)
    write_contest(tmp_path / "secret.txt", 2, hidden)
    sums = (hidden / "SHA256SUMS").read_bytes()
    with pytest.raises(PebblerError, match=r"has hidden-001\.instance\.json, which would be scored, too"):
        write_contest(tmp_path / "secret.txt", 1, hidden)
    assert (hidden / "SHA256SUMS").read_bytes() == sums


def test_what_is_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("1234\n")
    with pytest.raises(PebblerError, match="has 5 bytes, which could be guessed; give 32 or more"):
        write_contest(tmp_path / "short.txt", 1, tmp_path / "hidden")
    with pytest.raises(PebblerError, match="cannot be read"):
        write_contest(tmp_path / "none.txt", 1, tmp_path / "hidden")
    (tmp_path / "secret.txt").write_bytes(SECRET)
    with pytest.raises(PebblerError, match="cannot be made"):
        write_contest(tmp_path / "secret.txt", 1, tmp_path / "short.txt")
