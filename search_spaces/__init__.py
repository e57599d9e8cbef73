"""One YAML file a method, refinement, calibrator, fitting objective and training protocol."""

from search_spaces._spaces import (
    KINDS,
    Parameter,
    SearchSpace,
    SpaceError,
    known_spaces,
    load_protocol,
    load_space,
    parse_space,
    plug_spaces,
    protocol_names,
    space_names,
    splits,
)

__all__ = [
    "KINDS",
    "Parameter",
    "SearchSpace",
    "SpaceError",
    "known_spaces",
    "load_protocol",
    "load_space",
    "parse_space",
    "plug_spaces",
    "protocol_names",
    "space_names",
    "splits",
]
