from ._base import Objective, RowTerms
from ._registry import OBJECTIVES, build_objective

__all__ = ["OBJECTIVES", "Objective", "RowTerms", "build_objective"]
