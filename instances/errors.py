"""What can go wrong with input, as one sentence that says what, where and what to do."""

LONGEST = 400
"""Characters of a message beyond which its middle is left out."""


def escaped(text: str) -> str:
    """Return a text as one line: what does not print, line ends and control codes among it, is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable(text: str, most: int = LONGEST) -> str:
    """Return a text as one line of at most `most` characters, whatever it holds.

    What does not print, line ends and control codes among it, is escaped; of what is too long the middle is
    left out, so that the place and the advice stay.
    """
    if len(text) > 8 * most:  # before work is done on what is left out anyway
        text = f"{text[: 4 * most]}…{text[-4 * most :]}"
    line = escaped(text)
    if len(line) <= most:
        return line
    return f"{line[: most * 2 // 3]}…{line[len(line) - (most - most * 2 // 3 - 1) :]}"


class PebblerError(ValueError):
    """Wrong usage or bad input: the command line answers it with exit status 2.

    It is one printable line, whatever it quotes.
    """

    def __str__(self) -> str:
        return escaped(super().__str__())


class FormatError(PebblerError):
    """A file breaks a rule of its format."""


class BudgetError(PebblerError):
    """A memory budget is under the minimum that any schedule of the instance needs."""


class DefectError(AssertionError):
    """Something does not hold that a method or pebbler promised: the command line answers with status 3.

    It is one printable line, whatever it quotes.
    """

    def __str__(self) -> str:
        return escaped(super().__str__())
