from ._base import GRANULARITIES, Network, units
from ._registry import (
    MODELS,
    PRETRAINED,
    build_model,
    check_model,
    check_takes,
    model_names,
    register_model,
)

__all__ = [
    "GRANULARITIES",
    "MODELS",
    "PRETRAINED",
    "Network",
    "build_model",
    "check_model",
    "check_takes",
    "model_names",
    "register_model",
    "units",
]
