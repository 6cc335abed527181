"""Hidden instances of a contest: from a secret that is published after it, the same on every machine.

The organiser publishes the SHA-256 of the secret's file before the contest, and the file after it. Then
anyone can draw the instances again. The seed of the draws is another checksum of the secret, which the
published one says nothing of.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np

from ..errors import PebblerError
from ..files import read_bytes, write_atomically, write_instance
from ..instance import Instance
from .draws import Draws
from .generators import Knobs, generate
from .shapes import Chain, Dense, Inception, Layered, Recurrent, Residual, Shape, UShaped

_LEAST_BYTES = 32
"""Least number of bytes of a secret; a shorter one could be guessed from its checksum."""

_DOMAIN = b"pebbler contest 1\n"
"""Text before the secret in the checksum that is the seed; another way of drawing has another one."""

_INSTANCE = ".instance.json"
"""Ending of the files of instances."""

_SHAPES: tuple[Callable[[Draws], Shape], ...] = (
    lambda draws: Chain(layers=draws.between(10, 120)),
    lambda draws: Residual(blocks=draws.between(4, 24), depth=draws.between(1, 3)),
    lambda draws: Inception(modules=draws.between(2, 8), branches=draws.between(2, 4)),
    lambda draws: Dense(blocks=draws.between(1, 4), layers=draws.between(3, 8)),
    lambda draws: UShaped(levels=draws.between(2, 5), width=draws.between(1, 4)),
    lambda draws: Recurrent(layers=draws.between(1, 4), steps=draws.between(4, 16)),
    lambda draws: Layered(size=draws.between(20, 120), width=draws.between(2, 8)),
)
"""Random shapes, which take turns."""


def write_secret(path: Path) -> str:
    """Write a new secret into a file, and return the SHA-256 of the file, which is published before.

    Raises
    ------
    PebblerError
        When the file exists, so that no secret is lost, or cannot be written.
    """
    try:
        path.touch(0o600, exist_ok=False)  # nobody else may read it at any moment
    except FileExistsError:
        raise PebblerError(f"{path} exists, and may be the secret of a contest; give a new file") from None
    except OSError as error:
        raise PebblerError(f"{path} cannot be written: {error.strerror or error}") from None
    data = f"{secrets.token_hex(_LEAST_BYTES)}\n".encode()
    write_atomically(path, data)
    return sha256(data).hexdigest()


def write_contest(secret: Path, count: int, directory: Path) -> str:
    """Write the instances of a contest and ``SHA256SUMS`` into a folder; return the secret's SHA-256.

    The checksums are written last, so that a folder with them is complete. The same secret and count give the
    same bytes with the same version of pebbler.

    Parameters
    ----------
    secret
        The secret's file.
    count
        Number of instances.
    directory
        Folder to write to, which is created if need be.

    Raises
    ------
    PebblerError
        When the secret cannot be read or is too short, a file cannot be written, or the folder has instances
        that are not of this contest.
    """
    data = read_bytes(secret)
    if len(data) < _LEAST_BYTES:
        raise PebblerError(
            f"{secret} has {len(data)} bytes, which could be guessed; give {_LEAST_BYTES} or more"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PebblerError(f"{directory} cannot be made: {error.strerror or error}") from None
    drawn = {f"{_name(i)}{_INSTANCE}" for i in range(count)}
    others = sorted({file.name for file in directory.glob(f"*{_INSTANCE}")} - drawn)
    if others:
        raise PebblerError(f"{directory} has {others[0]}, which would be scored, too; give an empty folder")
    sums = []
    for instance in contest_instances(data, count):
        file = f"{instance.name}{_INSTANCE}"
        sums.append(f"{write_instance(instance, directory / file)}  {file}\n")
    write_atomically(directory / "SHA256SUMS", "".join(sums).encode())
    return sha256(data).hexdigest()


def contest_instances(secret: bytes, count: int) -> Iterator[Instance]:
    """Yield the instances that a secret gives: small and large, with little memory and with more."""
    seed = int.from_bytes(sha256(_DOMAIN + secret).digest(), "big")
    draws = Draws(np.random.Generator(np.random.PCG64(seed)))
    for i in range(count):
        shape = _SHAPES[i % len(_SHAPES)](draws)
        knobs = Knobs(
            octaves=draws.between(2, 6),
            transfer_percent=draws.between(40, 300),
            slack_percent=draws.between(5, 60),
            fast_percent=draws.between(0, 80),
            gain_percent=draws.between(20, 60),
            workspace_percent=draws.between(10, 80),
            recomputable_percent=draws.choice((0, 0, 0, 50)),
            host_input=draws.chance(25),
            engines="single" if draws.chance(25) else "duplex",
        )
        own = np.random.Generator(np.random.PCG64(draws.below(2**63)))
        yield generate(_name(i), shape, knobs, own)


def _name(i: int) -> str:
    """Return the name of an instance of a contest."""
    return f"hidden-{i:03}"
