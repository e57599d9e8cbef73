"""The one exception for what a user can mend."""

from __future__ import annotations

__all__ = ["InputError"]


class InputError(ValueError):
    """Something a user gave is wrong: a file, a name or a value.

    The text is one line that says what is wrong, where, with which value, and what is allowed. The
    command line prints it and exits with code 2.
    """
