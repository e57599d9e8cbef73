from ._base import GRANULARITIES, Network, units
from ._registry import (
    CLIP,
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
from .image_text import TEMPLATES, ImageTextModel, check_templates

__all__ = [
    "CLIP",
    "GRANULARITIES",
    "MODELS",
    "PRETRAINED",
    "TEMPLATES",
    "ImageTextModel",
    "Network",
    "begins_trained",
    "build_model",
    "check_model",
    "check_takes",
    "check_templates",
    "model_names",
    "register_model",
    "units",
    "without_weights",
]
