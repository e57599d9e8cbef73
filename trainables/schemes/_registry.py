"""The training schemes by name."""

from typing import TYPE_CHECKING

from trainables.common.registry import Registry

if TYPE_CHECKING:
    from trainables.schemes._base import Scheme

SCHEMES: "Registry[Scheme]" = Registry(
    "training scheme", "trainables.schemes", "trainables.schemes._base.Scheme", "methods"
)
