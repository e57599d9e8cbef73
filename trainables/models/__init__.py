"""Networks by name, each split into feature extractor and classifier."""

from trainables.models._base import Network
from trainables.models._registry import build_model, model_names

__all__ = ["Network", "build_model", "model_names"]
