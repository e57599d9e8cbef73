from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainables.models import Network

_CONSTANT = ("empty", "scalar_tensor")  # Harmless operations that create host tensors.
WARM_UP = 2  # Steps of an epoch that run normally before one is recorded.


class GraphedStep:
    """A training step that is recorded once per epoch as a CUDA graph and then replayed.

    A graph repeats the recorded operations with the same numbers from the host. So each epoch, with
    its own learning rate, schedules and frozen weights, needs a new graph; numbers that change in
    every step, such as mixing ratios, are part of the batch. A step that computes on the host is
    never recorded, and a short batch runs normally. Results are the same either way.

    Args:
        step: Updates weights and sums on the device with a batch: inputs, targets, indices, and
            the random values drawn for them.
        network: The network to train; its batch counters may be on the host.
        size: Number of rows of a recorded batch.

    Attributes:
        refused: Why steps are not recorded; empty if they are.
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
        """Forget the previous epoch's graph."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._counted = [0] * len(self._counters)
        self._warm = 0

    def __call__(self, *batch: Tensor) -> None:
        pairs = zip(self._batch, batch, strict=False)  # Empty before the first recording.
        fits = len(batch[0]) == self._size and all(own.shape == new.shape for own, new in pairs)
        if self.refused or not fits:
            self._step(*batch)
        elif self._warm < WARM_UP:
            self._warm += 1
            with self._aside():
                # Watched code does not compile, so the first step compiles and the last is watched.
                run = self._watched if self._warm == WARM_UP else self._step
                run(*batch)
        elif self._graph is None:
            self._record(batch)
        else:
            self._replay(batch)

    def _watched(self, *batch: Tensor) -> None:
        """Run the step normally and find out if it computes on the host."""
        before = [int(counter) for counter in self._counters]
        with _HostWork(self._counters) as host:
            self._step(*batch)
        self._counted = [int(c) - b for c, b in zip(self._counters, before, strict=True)]
        if host.found:
            self.refused = f"the host computes {host.found} in every step"

    def _record(self, batch: tuple[Tensor, ...]) -> None:
        """Record the step (which does not run it), then run it."""
        self._batch = tuple(part.clone() for part in batch)
        counts = [counter.clone() for counter in self._counters]
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[batch[0].device.index]
        drawn = generator.clone_state()
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream()),  # Restored after any error.
                # Let other threads do things that a recording must not, such as pin memory.
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                self._step(*self._batch)
        except RuntimeError as error:
            self.refused = str(error).strip().splitlines()[0]
            generator.graphsafe_set_state(drawn)  # Otherwise it can draw no more random numbers.
        for counter, count in zip(self._counters, counts, strict=True):
            counter.copy_(count)
        if self.refused:
            self._step(*batch)
        else:
            self._graph = graph
            self._replay(batch)

    def _replay(self, batch: tuple[Tensor, ...]) -> None:
        for recorded, new in zip(self._batch, batch, strict=True):
            recorded.copy_(new)
        assert self._graph is not None
        self._graph.replay()
        for counter, count in zip(self._counters, self._counted, strict=True):
            counter.add_(count)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Compute on the stream used for recording, in order with the work before and after."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


class _HostWork(TorchDispatchMode):
    """Finds the first operation on tensors of the host, except ``known`` ones and plain numbers."""

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
