from ._base import Scheme
from ._registry import SCHEMES

__all__ = ["SCHEMES", "Scheme"]
