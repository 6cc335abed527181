"""Numbers that an optimizer has anew at every step, and formulas of them in the arguments of operators.

A learning rate changes from step to step, and Adam's bias corrections follow from it and from the count of
steps. The record of a step keeps such an argument of an operator as an `Expression` over `ScalarInput`s.
"""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": python.add,
    "-": python.sub,
    "*": python.mul,
    "/": python.truediv,
    "**": python.pow,
    "negative": python.neg,
    "==": python.eq,
    "!=": python.ne,
    "<": python.lt,
    "<=": python.le,
    ">": python.gt,
    ">=": python.ge,
}


SYMBOLS = frozenset(_FUNCTIONS)
"""Of formulas."""


@dataclass(frozen=True, slots=True)
class ScalarInput:
    """A number that the optimizer holds when a step begins.

    Attributes
    ----------
    owner
        Index of a group of parameters; or a parameter by name, for a number in its state.
    key
        Under which the group or the state has it: ``lr``, ``betas``, ``step``.
    index
        Which of several numbers under one key; None where there is one.
    """

    owner: int | str
    key: str
    index: int | None = None

    def __str__(self) -> str:
        owner = f"group {self.owner}" if isinstance(self.owner, int) else self.owner
        return f"'{self.key}'{'' if self.index is None else f'[{self.index}]'} of {owner}"


@dataclass(frozen=True, slots=True)
class Formula:
    """An operation of Python on one or two numbers in double precision.

    Attributes
    ----------
    symbol
        Of Python, or ``negative``.
    operands
        Numbers, inputs and formulas.
    """

    symbol: str
    operands: tuple[Expression, ...]


Expression = float | ScalarInput | Formula
"""What an argument of an operator is computed from, in the order in which the optimizer did."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A choice that the optimizer made by a number: the step is as recorded only where it is made again."""

    condition: Formula
    outcome: bool

    def holds(self, values: Mapping[ScalarInput, float]) -> bool:
        """Whether other numbers lead to the same choice."""
        return bool(evaluate(self.condition, values)) is self.outcome


def evaluate(expression: Expression, values: Mapping[ScalarInput, float]) -> float:
    """Return what an expression is for given inputs, to the bit what the optimizer computes.

    Raises
    ------
    KeyError
        When an input has no value.
    """
    if isinstance(expression, ScalarInput):
        return values[expression]
    if isinstance(expression, Formula):
        result = _FUNCTIONS[expression.symbol](*(evaluate(one, values) for one in expression.operands))
        return float(result)
    return expression


def inputs_of(expression: Expression) -> set[ScalarInput]:
    """Return the inputs that an expression depends on."""
    if isinstance(expression, ScalarInput):
        return {expression}
    if isinstance(expression, Formula):
        return set().union(*map(inputs_of, expression.operands))
    return set()


class Traced(float):
    """A number that knows what it was computed from, and notes what it is compared with.

    Parameters
    ----------
    value
        The number.
    expression
        What it was computed from.
    guards
        Where comparisons are noted.
    """

    __slots__ = ("expression", "guards")
    expression: Expression
    guards: dict[Guard, None]

    def __new__(cls, value: float, expression: Expression, guards: dict[Guard, None]) -> Traced:
        """Return the number with what it was computed from."""
        number = super().__new__(cls, value)
        number.expression = expression
        number.guards = guards
        return number

    def _formula(self, symbol: str, *operands: Any) -> Any:
        if not all(isinstance(one, float | int) for one in operands):
            return NotImplemented
        result = _FUNCTIONS[symbol](*map(float, operands))
        formula = Formula(
            symbol, tuple(one.expression if isinstance(one, Traced) else float(one) for one in operands)
        )
        if isinstance(result, bool):
            self.guards[Guard(formula, result)] = None
            return result
        return Traced(result, formula, self.guards)

    def __add__(self, other: Any) -> Any:
        return self._formula("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._formula("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._formula("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._formula("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._formula("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._formula("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._formula("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._formula("/", other, self)

    def __pow__(self, other: Any, modulus: None = None) -> Any:
        return self._formula("**", self, other)

    def __rpow__(self, other: Any, modulus: None = None) -> Any:
        return self._formula("**", other, self)

    def __neg__(self) -> Any:
        return self._formula("negative", self)

    def __eq__(self, other: object) -> Any:
        return self._formula("==", self, other)

    def __ne__(self, other: object) -> Any:
        return self._formula("!=", self, other)

    def __lt__(self, other: Any) -> Any:
        return self._formula("<", self, other)

    def __le__(self, other: Any) -> Any:
        return self._formula("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._formula(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._formula(">=", self, other)

    def __bool__(self) -> bool:
        return bool(self != 0.0)

    def __hash__(self) -> int:
        return float.__hash__(self)
