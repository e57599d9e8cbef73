"""Training schemes, which change what is trained when, one file each."""

from trainables.schemes._base import SCHEMES, Scheme

__all__ = ["SCHEMES", "Scheme"]
