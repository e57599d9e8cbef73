"""Networks by name, each split into feature extractor and classifier."""

from trainables.models._base import (
    GRANULARITIES,
    MODELS,
    PRETRAINED,
    Network,
    build_model,
    check_model,
    check_takes,
    model_names,
    register_model,
    units,
)
