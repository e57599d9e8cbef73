"""Training schemes, which change what is trained when, one file each."""

from typing import Any

from trainables.schemes._base import Scheme
from trainables.schemes._registry import SCHEMES

__all__ = ["SCHEMES", "Scheme", "build_scheme"]


def build_scheme(name: str, **parameters: Any) -> Scheme:
    """Make a training scheme by name, for example ``build_scheme("plp")``.

    Raises:
        InputError: If the name or a parameter's name is unknown (a ``ValueError``).
        ValueError: If a value is out of its range.
    """
    return SCHEMES.build(name, **parameters)
