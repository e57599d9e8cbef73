from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch
from weakref import ref

import pytest
import torch
from standin_card import CARD, OnCard, standin_card
from test_engine import facts, images, protocol
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainables.methods import build_method, method_names
from trainables.models import Network
from trainables.schemes._base import Scheme
from trainables.stages.engine import Trainer

BATCH = 6
ROWS = 4 * BATCH + 4  # Two steps to warm up, two that are launched, and a short one.


class Graph:
    """A CUDA graph that repeats operations on the tensors that they were recorded on."""

    launched: ClassVar[int] = 0
    refusal: ClassVar[str] = ""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.found: list[list[Any]] = []
        self.recorded = False

    def replay(self) -> None:
        Graph.launched += 1
        if not self.recorded:
            self.recorded = True  # What is recorded here is computed, too, as no graph would.
            return
        # What may be mixed was seen when it was recorded: autograd makes some tensors on the host.
        with torch.no_grad(), patch("standin_card.refuse_others", lambda *_: None):
            for (func, args, kwargs), found in zip(self.calls, self.found, strict=True):
                again = func(*args, **kwargs)
                for old, new in zip(found, tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old is not new:
                        same = new.shape == old.shape  # Some were squeezed since.
                        old.copy_(new if same else new.reshape(old.shape))


class GraphGenerator(torch.Generator):
    """A generator whose state can be exchanged for another, as a GPU's can."""

    def graphsafe_set_state(self, state: torch.Generator) -> None:  # type: ignore[override]
        self.set_state(state.get_state())


class Recorder(TorchDispatchMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.found: list[list[Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        on_way_back = torch._C._current_graph_task_id() >= 0
        if not on_way_back and not any(isinstance(x, OnCard) for x in tree_leaves((args, found))):
            return found
        self.graph.calls.append((func, args, kwargs or {}))
        # Autograd takes a gradient as it is only if nobody else holds it.
        self.found.append([ref(x) if isinstance(x, Tensor) else x for x in tree_leaves(found)])
        return found

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.graph.found = [[x() if isinstance(x, ref) else x for x in each] for each in self.found]


@contextmanager
def recording(graph: Graph, stream: Any, capture_error_mode: str) -> Iterator[None]:
    if Graph.refusal:
        raise RuntimeError(Graph.refusal)
    with Recorder(graph):
        yield


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    def stream() -> Any:
        return SimpleNamespace(wait_stream=lambda other: None)

    Graph.launched, Graph.refusal = 0, ""
    fakes = {
        "CUDAGraph": Graph,
        "graph": recording,
        "Stream": stream,
        "current_stream": stream,
        "default_generators": (GraphGenerator(),),
        "stream": lambda chosen: nullcontext(),
    }
    with standin_card(free=2**36, total=2**36), patch.multiple(torch.cuda, **fakes):
        yield


def trained(graph: bool, method: str = "ce") -> tuple[Trainer, list[Any]]:
    """Train on the card; return the trainer and what came of it.

    It is one epoch, and two of plain training and where anything outlasts an epoch.
    """
    settings = protocol(epochs=2, batch_size=BATCH, lr=0.1)
    data = images(ROWS), facts(augmentation="crop-flip")
    made = Trainer("convnet", build_method({method: {}}), *data, settings, 0, CARD, graph=graph)
    lasting = made.method.loss.state_dict() or type(made.method.scheme) is not Scheme
    figures = [made.train_epoch() for _ in range(2 if lasting or method == "ce" else 1)]
    weights = {name: value.tolist() for name, value in made.network.state_dict().items()}
    return made, [figures, weights]


@pytest.mark.full
@pytest.mark.parametrize("method", method_names())
def test_recorded_steps_give_the_figures_of_steps_as_written(method):
    _, expected = trained(False, method)
    made, found = trained(True, method)
    assert found == expected
    assert made.remarks() == []
    assert Graph.launched == 2 * len(found[0])


def test_steps_that_cannot_be_recorded_run_operation_by_operation():
    _, expected = trained(False)
    Graph.refusal = "operation not permitted when stream is capturing\nand more"
    made, found = trained(True)
    assert found == expected
    assert made.remarks() == [
        "graph: steps run one operation at a time: operation not permitted when stream is capturing"
    ]


def test_a_step_in_which_the_host_has_a_part_is_not_recorded(monkeypatch):
    written = Network.forward

    def thinned(network: Network, inputs: Tensor) -> Tensor:
        return written(network, inputs) * int(torch.rand((), device="cpu") < 0.5)

    monkeypatch.setattr(Network, "forward", thinned)
    made, _ = trained(True)
    assert Graph.launched == 0
    assert made.remarks() == [
        "graph: steps run one operation at a time: the host computes rand in every step"
    ]
