from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainables.models import Network

_CONSTANT = ("empty", "scalar_tensor")  # Operations that make no more of host tensors than numbers.
WARM_UP = 2  # Steps of an epoch that run as they are written before one is recorded.


class GraphedStep:
    """A training step that is recorded once an epoch, and from there on launched as a whole.

    A graph repeats what the device did, with the numbers that the host gave it then: hence a new
    one for every epoch, whose learning rate, schedules and frozen weights are its own; what changes
    with every step, such as mixing ratios, is part of the batch. A step in which the host computes
    is never recorded, and a short batch runs as the step is written. Either way the figures are
    those of the step as written.

    Args:
        step: Changes weights and sums on the device by a batch: inputs, targets, indices, and what
            was drawn for them.
        network: What it trains; its counters of batches may lie on the host.
        size: Rows of a batch that is recorded.

    Attributes:
        refused: Why steps run as they are written; empty while they are recorded.
    """

    def __init__(self, step: Callable[..., None], network: Network, size: int) -> None:
        self._step, self._size = step, size
        self._counters = [
            buffer
            for name, buffer in network.named_buffers()
            if name.endswith("num_batches_tracked") and buffer.device.type == "cpu"
        ]
        self._stream = torch.cuda.Stream()
        self._batch: tuple[Tensor, ...] = ()
        self.refused = ""
        self.start_epoch()

    def start_epoch(self) -> None:
        """Forget the graph of the epoch before."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._counted = [0] * len(self._counters)
        self._warm = 0

    def __call__(self, *batch: Tensor) -> None:
        held = zip(self._batch, batch, strict=False)  # None before the first is recorded.
        fits = len(batch[0]) == self._size and all(own.shape == new.shape for own, new in held)
        if self.refused or not fits:
            self._step(*batch)
        elif self._warm < WARM_UP:
            self._warm += 1
            with self._aside():
                # Watched code is not compiled, so that the first step is not.
                take = self._watched if self._warm == WARM_UP else self._step
                take(*batch)
        elif self._graph is None:
            self._record(batch)
        else:
            self._replay(batch)

    def _watched(self, *batch: Tensor) -> None:
        """Take the step as it is written; find out whether the host has a part in it."""
        before = [int(counter) for counter in self._counters]
        with _HostWork(self._counters) as host:
            self._step(*batch)
        self._counted = [int(c) - b for c, b in zip(self._counters, before, strict=True)]
        if host.found:
            self.refused = f"the host computes {host.found} in every step"

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        """Record the step, which computes nothing yet, and take it."""
        self._batch = tuple(part.clone() for part in batch)
        counts = [counter.clone() for counter in self._counters]
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[batch[0].device.index]
        drawn = generator.clone_state()
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream()),  # It is left, fail what may.
                # Other threads may do what a recording must not, such as pin memory.
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                self._step(*self._batch)
        except RuntimeError as error:
            self.refused = str(error).strip().splitlines()[0]
            generator.graphsafe_set_state(drawn)  # Else this process draws nothing any more.
        for counter, count in zip(self._counters, counts, strict=True):
            counter.copy_(count)
        if self.refused:
            self._step(*batch)
        else:
            self._graph = graph
            self._replay(batch)

    def _replay(self, batch: tuple[Tensor, ...]) -> None:
        for held, given in zip(self._batch, batch, strict=True):
            held.copy_(given)
        assert self._graph is not None
        self._graph.replay()
        for counter, count in zip(self._counters, self._counted, strict=True):
            counter.add_(count)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Compute on the stream that is recorded, in order with the work before and after."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


class _HostWork(TorchDispatchMode):
    """Notes an operation on the host's tensors, but for those ``known`` and plain numbers."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self._known = list(known)
        self.found = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() >= 0:
            return out  # The backward pass repeats tensors kept from the forward pass.
        name = func.name().removeprefix("aten::")
        if name.startswith(_CONSTANT):
            self._known.append(out)
        elif any(map(self._is_unknown, tree_leaves((args, kwargs, out)))):
            self.found = self.found or name
        return out

    def _is_unknown(self, value: Any) -> bool:
        on_host = isinstance(value, Tensor) and value.device.type == "cpu"
        return on_host and not any(value is tensor for tensor in self._known)
