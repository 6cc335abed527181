"""Optimizers: what each keeps for a parameter from one iteration to the next."""

from __future__ import annotations

from ..errors import PebblerError
from ..origin import DataPrecision

STATES: dict[str, tuple[str, ...]] = {
    "none": (),
    "sgd": (),
    "momentum": ("m",),
    "adam": ("m", "v"),
    "adamw": ("m", "v"),
}
"""Letters of the numbers that an optimizer keeps for each parameter, beside it and its gradient.

SGD keeps nothing, with momentum its velocity, Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter,
2019) both moments; ``none`` is no optimizer.
"""


def kept(optimizer: str, precision: DataPrecision = "fp32") -> tuple[str, ...]:
    """Return letters of the numbers in single precision that stay for each parameter between iterations.

    Where parameters are in bfloat16, an optimizer adds its steps up in a copy ``p`` in single precision
    (Micikevicius et al., 2018), beside its states.
    """
    master = () if precision == "fp32" or optimizer == "none" else ("p",)
    return (*master, *STATES[optimizer])


def require_optimizer(name: str) -> None:
    """Refuse what is no optimizer.

    Raises
    ------
    PebblerError
        For an unknown name.
    """
    if name not in STATES:
        raise PebblerError(f"there is no optimizer '{name}'; there are {', '.join(STATES)}")
