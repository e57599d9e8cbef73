from ._base import GRANULARITIES, Network, units
from ._registry import (
    MODELS,
    PRETRAINED,
    begins_trained,
    build_model,
    check_model,
    check_takes,
    model_names,
    register_model,
    without_weights,
)

__all__ = [
    "GRANULARITIES",
    "MODELS",
    "PRETRAINED",
    "Network",
    "begins_trained",
    "build_model",
    "check_model",
    "check_takes",
    "model_names",
    "register_model",
    "units",
    "without_weights",
]
