"""Imports PyTorch and Optuna when they are first used.

Commands that compute nothing then start without them.

Modules that such commands import have ``from trainables.common.later import Tensor, torch``
instead of imports of PyTorch. Module-level code, such as defaults and base classes, must not use
these names.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Later(ModuleType):
    """Imports the real module of the same name, and copies it, when an attribute is first used."""

    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        vars(self).update(vars(module))
        return getattr(module, name)


class _Type(type):
    """Replaces a class of PyTorch in annotations and ``isinstance``."""

    def __instancecheck__(cls, value: object) -> bool:
        loaded = sys.modules.get("torch")  # If it was never imported, there are no instances.
        return loaded is not None and isinstance(value, getattr(loaded, cls.__name__))


if TYPE_CHECKING:
    import optuna as optuna
    import safetensors.torch as safetensors
    import torch as torch
    from torch import Generator as Generator
    from torch import Tensor as Tensor
    from torch.nn import functional as F
else:
    torch, F = _Later("torch"), _Later("torch.nn.functional")
    optuna, safetensors = _Later("optuna"), _Later("safetensors.torch")
    Generator, Tensor = _Type("Generator", (), {}), _Type("Tensor", (), {})

__all__ = ["F", "Generator", "Tensor", "optuna", "safetensors", "torch"]
