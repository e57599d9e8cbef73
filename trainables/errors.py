"""The exceptions that a sweep tells apart: what a user can mend, and what ends a trial."""

from __future__ import annotations

__all__ = ["InputError", "StorageError", "TrainingDivergedError"]


class InputError(ValueError):
    """Something a user gave is wrong: a file, a name or a value.

    The text is one line that says what is wrong, where, with which value, and what is allowed. The
    command line prints it and exits with code 2.
    """


class StorageError(InputError):
    """The storage cannot be written, such as a full disk: every trial would end by it."""


class TrainingDivergedError(ArithmeticError):
    """A loss or a metric became infinite or NaN, so that going on would be pointless."""
