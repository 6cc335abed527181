"""What can go wrong with input, as one sentence that says what, where and what to do."""


class PebblerError(ValueError):
    """Wrong usage or bad input: the command line answers it with exit status 2."""


class FormatError(PebblerError):
    """A file breaks a rule of its format."""


class BudgetError(PebblerError):
    """A memory budget is under the minimum that any schedule of the instance needs."""


class DefectError(AssertionError):
    """Something does not hold that a method or pebbler promised: the command line answers with status 3."""
