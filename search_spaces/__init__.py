"""What may be searched: one YAML file a method, refinement, calibrator and fitting objective."""

from search_spaces._loader import load_space, space_names
from search_spaces._space import KINDS, Parameter, SearchSpace, SpaceError

__all__ = ["KINDS", "Parameter", "SearchSpace", "SpaceError", "load_space", "space_names"]
