"""A GPU that needs no driver: its tensors lie on the CPU and say that they lie on ``cuda:0``.

Every operation is computed, on the CPU, so that the figures are right; what mixes tensors of the
card and of the host is refused, as are generators of the wrong one. Types under autocast, pinned
memory, streams, kernels and what is mixed on the way back it knows nothing of.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import torch
from pretended_card import pretended_card
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from trainables.common import later

CARD, HOST = torch.device("cuda:0"), torch.device("cpu")
COPIES = {"aten::copy_", "aten::_to_copy"}
AS_TENSOR = torch.as_tensor
STRICT = {"aten::clamp"}  # Takes no number of the host that is a tensor.


class OnCard(Tensor):
    """A tensor of the card; autograd takes it for one of the host and needs no GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device, is_cuda, is_cpu = CARD, True, False

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnCard":
        size = (held.shape, held.stride(), held.storage_offset())
        with torch.inference_mode(False):  # What it holds may be an inference tensor, it is none.
            return torch.Tensor._make_wrapper_subclass(cls, *size, dtype=held.dtype, device=HOST)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {})

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        copy = kwargs.pop("copy", False)
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype = device or CARD, dtype or self.dtype
        if (device.type, dtype, layout, copy) == (CARD.type, self.dtype, None, False):
            return self
        return torch.ops.aten._to_copy(self, device=device, dtype=dtype, memory_format=layout)

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.to(HOST)

    def new_tensor(self, data: Any) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=self.dtype, device=CARD)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


class CardGenerator(torch.Generator):
    """A generator of the card if it is asked for one there."""

    there: ClassVar[set[int]] = set()  # What torch hands to operations is another object.

    def __new__(cls, device: Any = HOST) -> "CardGenerator":
        made = super().__new__(cls)
        if torch.device(device).type == CARD.type:
            cls.there.add(made._cdata)
        return made

    def __init__(self, device: Any = HOST) -> None:
        super().__init__()

    def __del__(self) -> None:
        self.there.discard(self._cdata)


def computed(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute an operation on the CPU; return tensors of the card if it belongs there."""
    given: list[Tensor] = []
    asked: list[torch.device] = []

    def bare(value: Any) -> Any:
        if isinstance(value, torch.device):
            asked.append(value)
            return HOST
        if isinstance(value, Tensor):
            given.append(value)
        return value.held if isinstance(value, OnCard) else value

    options = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    inputs = mapped(bare, (args, options))
    inside = [isinstance(each, OnCard) for each in given]
    name = func.name().split(".")[0]
    if any(inside) and name not in COPIES:
        refuse_others(name, given)
    there = asked[0].type == CARD.type if asked else any(inside)
    refuse_generator(name, kwargs.get("generator"), there)
    found = func(*inputs[0], **inputs[1])
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():
            func(*args, **kwargs)  # Has the tensor itself know of its new shape.
    owners = {id(each.held): each for each in given if isinstance(each, OnCard)}
    return mapped(lambda value: wrapped(value, owners), found) if there else found


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Do what torch's ``tree_map`` does, which takes longer than the operations."""
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(function, each) for each in value])
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    return function(value)


def refuse_others(name: str, given: list[Tensor]) -> None:
    """Raise what torch raises where tensors of the host come with those of the card."""
    # What autograd itself makes on the way back, it makes on the host.
    backward = torch._C._current_graph_task_id() >= 0
    takes_numbers = name not in STRICT
    host = [each for each in given if not isinstance(each, OnCard)]
    if not backward and any(each.dim() or not takes_numbers for each in host):
        raise RuntimeError(f"{name}: expected all tensors on one device, found {CARD} and {HOST}")


def refuse_generator(name: str, generator: Any, there: bool) -> None:
    if generator is not None and (generator._cdata in CardGenerator.there) != there:
        raise RuntimeError(f"{name}: expected a generator of the tensors' own device")


def wrapped(value: Any, owners: Mapping[int, OnCard]) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, OnCard):
        return value
    return owners[id(value)] if id(value) in owners else OnCard(value)


class Card(TorchDispatchMode):
    """Sees also what is made on the card or brought there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.name() == "aten::is_pinned":
            return False
        if func.name() in ("aten::pin_memory", "aten::_pin_memory"):
            return args[0].clone()
        return computed(func, args, kwargs or {})


def as_tensor(data: Any, **kwargs: Any) -> Tensor:
    return data if isinstance(data, OnCard) else AS_TENSOR(data, **kwargs)


@contextmanager
def standin_card(**memory: int) -> Iterator[None]:
    """Have torch see a GPU and compute what is sent there; ``memory`` is ``pretended_card``'s."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)  # ``torch.tensor`` sends to the card as others do.
    try:
        with (
            pretended_card(**memory),
            patch("trainables.refinements._trainer.Generator", CardGenerator),
            patch.object(torch.cuda.random, "_lazy_init", lambda: None),
            patch.object(torch, "as_tensor", as_tensor),
            patch.object(later.torch, "as_tensor", as_tensor, create=True),
            patch.object(torch.cuda, "default_generators", (torch.Generator(),)),
            Card(),
        ):
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(before)
