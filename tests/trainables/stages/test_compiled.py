from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_engine import BATCH, METHODS, facts, images, same, trainer, weights

from trainables.stages import engine
from trainables.stages.engine import CompiledFeatures, predict


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the batch of every graph that is compiled; they run as they are."""
    found: list[int] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        found.append(next(len(each) for each in inputs if getattr(each, "ndim", 0) == 4))
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(CompiledFeatures, "learning", ())
    monkeypatch.setattr(engine, "BACKEND", backend)
    yield found
    torch.compiler.reset()


@pytest.mark.full
@pytest.mark.parametrize(("model", "precision"), [("resnet8", "float32"), ("convnet", "bfloat16")])
def test_a_network_is_one_graph_and_a_short_batch_none(model, precision, graphs):
    options: dict[str, Any] = {"rows": 2 * BATCH + 5, "model": model, "precision": precision}
    plain, made = trainer(**options), trainer(**options, compile=True)
    for _ in range(2):
        assert made.train_epoch() == plain.train_epoch()
        predict(made.network, facts().inputs.batcher(images(BATCH).values))
    assert len(graphs) == 1
    assert same(weights(made), weights(plain))
    assert made.remarks() == []


def test_the_next_network_of_the_same_form_takes_the_graph(graphs):
    for seed in (0, 1):
        trainer(seed=seed, compile=True).train_epoch()
    assert len(graphs) == 1


@pytest.mark.full
@pytest.mark.parametrize("frozen_first", [True, False])
def test_a_compiled_graph_respects_frozen_parameters(frozen_first, graphs):
    """Also where the graph was made for another network of the same form."""
    for frozen in (frozen_first, not frozen_first):
        made = trainer(compile=True)
        kernel = made.network.extractor[0].weight.requires_grad_(not frozen)
        before = kernel.detach().clone()
        made.train_epoch()
        assert torch.equal(before, kernel) == frozen
    assert len(graphs) == 2


def test_a_network_that_cannot_be_compiled_gets_a_remark(graphs):
    plain, made = (trainer(model="resnet110-sd", rows=2 * BATCH, compile=c) for c in (False, True))
    assert made.train_epoch() == plain.train_epoch()
    assert not graphs
    (remark,) = made.remarks()
    assert remark.startswith("compile: the network runs uncompiled: ")
    assert len(remark) > 60


def test_freezing_too_often_says_so(graphs, monkeypatch):
    monkeypatch.setattr(engine, "MOST_GRAPHS", 2)
    made = trainer(compile=True)
    for weight in list(made.network.parameters())[:3]:
        assert not made.remarks()
        weight.requires_grad_(False)
        made.train_epoch()
    assert made.remarks() == [
        "compile: the network runs uncompiled: the set of frozen weights changed more than 2 times"
    ]


@pytest.mark.full
def test_plp_freezes_a_compiled_network_as_it_does_another(graphs):
    plain, made = (trainer(METHODS["plp"], rows=2 * BATCH, compile=c) for c in (False, True))
    for _ in range(made.protocol.epochs):
        assert made.train_epoch() == plain.train_epoch()
    assert len(graphs) > 1
    assert same(weights(made), weights(plain))
