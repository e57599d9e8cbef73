"""One YAML file per method, refinement, calibrator, fitting objective and training protocol."""

from search_spaces._spaces import (
    KINDS,
    Parameter,
    SearchSpace,
    SpaceError,
    declared,
    is_number,
    known_spaces,
    limits_of,
    load_protocol,
    load_space,
    parse_space,
    part_catalogues,
    plug_spaces,
    protocol_names,
    space_names,
)
