from collections.abc import Iterator

import pytest
import torch
from laboratory import OVERCONFIDENT, Laboratory, Outcome

from trainables.data import SplitSpec
from trainables.methods import method_names
from trainables.refinements import REFINEMENTS, FittedRefinement

pytestmark = pytest.mark.slow

TOO_LONG = {**OVERCONFIDENT, "batch_size": 32}
TRAINING = {"epochs": 6, "batch_size": 16, "lr": 0.1, "schedule": "cosine"}


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    split = SplitSpec(validation=0.25, train_limit=224)
    yield Laboratory(tmp_path_factory.mktemp("sanity"), split)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain(laboratory: Laboratory) -> Outcome:
    return laboratory.compute("train", {"ce": {}}, TRAINING)


@pytest.mark.parametrize("name", method_names())
def test_a_method_learns_and_differs_from_cross_entropy(name, laboratory, plain):
    own = {"every": 3} if name == "cape" else {}  # Else it acts in the last epoch only.
    outcome = laboratory.compute("train", {name: own}, TRAINING)
    assert outcome.accuracy > 0.8
    if name != "ce":
        assert not torch.allclose(outcome.logits, plain.logits, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "name", [n for n in REFINEMENTS.names() if not issubclass(REFINEMENTS.get(n), FittedRefinement)]
)
def test_a_refinement_learns_and_differs_from_its_network(name, laboratory, plain):
    outcome = laboratory.compute("refine", {name: {"epochs": 20}}, TRAINING, plain.artifact())
    assert outcome.accuracy > 0.8
    assert not torch.allclose(outcome.logits, plain.logits, rtol=1e-2, atol=1e-2)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    split = SplitSpec(validation=0.25, train_limit=150)
    return Laboratory(tmp_path_factory.mktemp("few"), split)


@pytest.fixture(scope="module")
def overconfident(few: Laboratory) -> Outcome:
    return few.compute("train", {"ce": {}}, TOO_LONG)


def test_cross_entropy_is_overconfident(overconfident: Outcome) -> None:
    assert overconfident.confidence > overconfident.accuracy + 0.02


@pytest.mark.parametrize("name", ["ls", "mbls", "acls", "fl"])
def test_confidence_falls(name: str, few: Laboratory, overconfident: Outcome) -> None:
    outcome = few.compute("train", {name: {}}, TOO_LONG)
    assert outcome.confidence < overconfident.confidence
    assert outcome.accuracy > 0.8


def test_the_entropy_penalty_lowers_confidence_as_far_as_its_weight(few, overconfident):
    outcome = few.compute("train", {"ecp": {"weight": 5.0}}, TOO_LONG)
    assert outcome.confidence < overconfident.confidence - 0.05


def test_the_selective_loss_as_written_needs_a_wider_step(laboratory: Laboratory) -> None:
    narrow = laboratory.compute("train", {"au": {"variant": "paper"}}, TRAINING)
    wide = laboratory.compute("train", {"au": {"variant": "paper", "smoothness": 0.5}}, TRAINING)
    assert narrow.confidence < 0.3
    assert wide.accuracy > 0.9
    assert wide.confidence > 0.7
