"""What went wrong in a user's torch code, as one sentence: where, why, and what to do about it."""

from __future__ import annotations

import linecache
import logging
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ..errors import PebblerError

_PASSED_OVER = ("torch.", f"{__name__.rpartition('.')[0]}.")
"""Modules whose lines say nothing to a user."""
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))

_VALUE = (
    "it asks for the value of a tensor, and recording computes none; log and print after the step, and "
    "decide by torch.where or by what is no tensor"
)
_SHAPE = (
    "the shape of a result depends on values, and recording computes none; keep the shape and mask with "
    "torch.where"
)
_PACKED = (
    "it packs sequences, whose shape then depends on their lengths; leave them padded, and leave the padding "
    "out of the loss by a mask"
)
_NUMPY = "it makes a NumPy array of a tensor, and recording computes no values; compute it with torch"
_CUDA = (
    "it asks for CUDA, which recording does without; leave out what sets up or waits for a GPU ('.cuda()' "
    "and device='cuda' may stay: every tensor counts as one on the GPU)"
)
_SWAP = "it moves the module to another device; move it in make_step, or not at all"
_TWICE = "it runs a backward pass of its own; call backward() of the loss once, or return the loss"

_KNOWN = (
    (".numpy()", _NUMPY),
    ("numpy array", _NUMPY),
    ("FakeTensor.__format__", _VALUE),
    ("CUDA", _CUDA),
    ("cuda", _CUDA),
    ("NVIDIA", _CUDA),
    ("Couldn't swap", _SWAP),
    ("backward through the graph a second time", _TWICE),
)
"""Parts of torch's messages, and what they mean here."""


class StepError(Exception):
    """Something that a step must not do; its text says what, and what to do."""


@contextmanager
def explained(what: str, known: tuple[tuple[str, str], ...] = _KNOWN) -> Iterator[None]:
    """Turn whatever a user's code raises into one sentence; its traceback stays attached.

    Parameters
    ----------
    what
        What runs: ``the step``.
    known
        Parts of torch's messages, and what they mean here.

    Raises
    ------
    PebblerError
        With the user's line, where the error comes from one.
    """
    quiet = logging.getLogger("torch._subclasses.fake_tensor")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)  # it logs the traceback of what is told below
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True to a scalar")
            yield
    except PebblerError:
        raise
    except Exception as error:
        raise PebblerError(f"{what} failed{_place(error)}: {_reason(error, known)}") from error
    finally:
        quiet.setLevel(level)


def loss_of(result: Any, step: Callable[..., Any]) -> Any:
    """Return the loss that a step returned: a number, or what is called or comes first in a collection.

    Raises
    ------
    PebblerError
        When it is none to train with.
    """
    loss = loss_in(result)
    if not is_loss(loss):
        found = type(loss).__name__
        if isinstance(loss, torch.Tensor):
            found = f"{loss.numel()} values" if loss.numel() != 1 else "a number that depends on no parameter"
        elif loss is None:
            found = "None" if result is None else f"{type(result).__name__} without one"
        raise PebblerError(
            f"the step{place_of(step)} returned no loss to train with but {found}: return one number that "
            "depends on a parameter, alone, as 'loss' of a dataclass or dictionary, or first in a tuple, or "
            "call its backward() in the step"
        )
    return loss


def loss_in(result: Any) -> Any:
    """Return what a step returned as its loss, whatever that is; None where there is none."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, Mapping):
        return result.get("loss")
    first = result[0] if isinstance(result, tuple | list) and result else None
    return getattr(result, "loss", first)


def is_loss(loss: Any) -> bool:
    """Whether it is one number that depends on a parameter."""
    return isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.requires_grad


def place_of(function: Any) -> str:
    """Return where a function, or the forward pass of a module, is written: `` at FILE:LINE``, or nothing."""
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    code = getattr(function, "__code__", None)
    return "" if code is None else f" at {_short(code.co_filename)}:{code.co_firstlineno}"


def _place(error: Exception) -> str:
    """Name the innermost line of the user's own code, else of a library's, with its text."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not f"{frame.f_globals.get('__name__')}.".startswith(_PASSED_OVER)
    ]
    own = [place for place in frames if not place[0].startswith((*_LIBRARIES, "<frozen"))]
    if not frames:
        return ""
    file, line = (own or frames)[-1]
    return f" at {_short(file)}:{line}, '{linecache.getline(file, line).strip()}'"


def _reason(error: Exception, known: tuple[tuple[str, str], ...]) -> str:
    text = str(error).partition("\n")[0]
    if isinstance(error, StepError):
        return text
    if isinstance(error, DataDependentOutputException):
        return _VALUE
    if isinstance(error, DynamicOutputShapeException):
        return _PACKED if "pack_padded_sequence" in text else _SHAPE
    meaning = next((meaning for part, meaning in known if part in text), None)
    return meaning or f"{type(error).__name__}: {text}; see docs/importers.md for what works"


def _short(file: str) -> str:
    """Return a path as the user would write it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
