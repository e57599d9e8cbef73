from ._base import FittedRefinement, Refinement
from ._registry import REFINEMENTS, build_refinement
from ._together import HeadsTogether
from ._trainer import HeadTrainer

__all__ = [
    "REFINEMENTS",
    "FittedRefinement",
    "HeadTrainer",
    "HeadsTogether",
    "Refinement",
    "build_refinement",
]
