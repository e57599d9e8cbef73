import sys
from typing import Any

import pytest
import torch

from trainables.refinements import (
    REFINEMENTS,
    HeadsTogether,
    HeadTrainer,
    _together,
    build_refinement,
)

ROWS, FEATURES, CLASSES, EPOCHS = 130, 12, 5, 3
GENERATOR = torch.Generator().manual_seed(0)
VIEWS = [torch.randn(ROWS, FEATURES, generator=GENERATOR) for _ in range(2)]
LABELS = torch.randint(0, CLASSES, (ROWS,), generator=GENERATOR)
MACAL = [
    {"gamma": 0.9, "q0": 0.3, "lr": 0.05},
    {"gamma": 0.5, "q0": 0.7, "lr": 0.2, "eta_init": 0.3},
    {"gamma": 0.99, "q0": 0.5, "lr": 0.1, "hidden": 9},
]
TST = [{"lr": 0.05}, {"lr": 0.2}, {"lr": 0.1}]


def trainer(name: str, seed: int, **parameters: Any) -> HeadTrainer:
    return HeadTrainer(
        build_refinement(name, **{"epochs": EPOCHS, **parameters}),
        VIEWS,
        LABELS,
        num_classes=CLASSES,
        batch_size=40,
        momentum=0.9,
        weight_decay=5e-4,
        seed=seed,
        held_out=(VIEWS[1][:70], LABELS[:70]),
    )


def trainers(name: str, **common: Any) -> list[HeadTrainer]:
    if name == "tst-wide":
        return [trainer("tst", seed, lr=0.1, latent_dim=2 + seed) for seed in range(3)]
    if name == "macal-wide":  # Two of one seed, and all of about the same size.
        return [
            trainer("macal", seed, hidden=hidden, q0=0.2 + seed / 2, **common)
            for seed, hidden in ((0, 8), (1, 7), (0, 9), (0, 8))
        ]
    own = MACAL if name == "macal" else TST
    return [trainer(name, seed, **{**values, **common}) for seed, values in enumerate(own)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("macal", {}),
        ("macal", {"resample": "epoch"}),
        ("macal", {"feedback": "training"}),
        ("macal", {"feedback": "validation", "clock": "crossing"}),
        (
            "macal",
            {"q_role": "keep", "optimizer": "masked", "resample": "epoch", "feedback": "dense"},
        ),
        ("macal", {"feedback": "training", "q_role": "keep", "resample": "epoch"}),
        ("macal", {"inference": "last"}),
        ("macal", {"inference": "last", "restructure": False, "resample": "epoch"}),
        ("macal", {"optimizer": "masked"}),
        ("macal", {"optimizer": "masked", "resample": "epoch"}),
        ("macal", {"restrict_gradient": False, "inference": "dense"}),
        ("macal", {"restructure": False, "sparsity": "adaptive"}),
        ("macal", {"sparsity": "fixed"}),
        ("tst", {}),
        ("tst", {"latent_dim": 3}),
        ("tst-wide", {}),
        ("macal-wide", {}),
        ("macal-wide", {"q_role": "keep", "inference": "last"}),
    ],
)
def test_together_is_one_by_one(name, common):
    alone, members = trainers(name, **common), trainers(name, **common)
    together = HeadsTogether(members)
    for _ in range(EPOCHS):
        expected = [one.train_epoch() for one in alone]
        for own, figures in zip(together.train_epoch(), expected, strict=True):
            assert own == pytest.approx(figures, abs=1e-5)
    for one, member in zip(alone, members, strict=True):
        assert member.epoch == EPOCHS
        assert not member.head.training
        for label, tensor in one.head.state_dict().items():
            torch.testing.assert_close(member.head.state_dict()[label], tensor, atol=1e-4, rtol=0)


def test_each_head_of_a_group_gets_its_own_feedback(monkeypatch):
    monkeypatch.setattr(_together, "EVALUATION_BATCH", 90)  # several passes a measurement
    own = [{"feedback": name} for name in ("dense", "training")]
    own.append({"feedback": "dense", "sparsity": "fixed"})
    alone, members = ([trainer("macal", 0, **each) for each in own] for _ in range(2))
    together = HeadsTogether(members)
    for _ in range(2):
        expected = [one.train_epoch() for one in alone]
        for figures, wanted in zip(together.train_epoch(), expected, strict=True):
            assert figures == pytest.approx(wanted, abs=1e-5)
    assert len({figures["next_q"] for figures in expected}) == 3


def test_logits_together_are_those_of_each(monkeypatch):
    monkeypatch.setattr(_together, "EVALUATION_BATCH", 90)
    members = trainers("macal")
    together = HeadsTogether(members)
    together.train_epoch()
    for member, logits in zip(members, together.logits(VIEWS[0]), strict=True):
        torch.testing.assert_close(logits, member.head(VIEWS[0]), atol=1e-5, rtol=0)


def test_features_in_bfloat16_are_computed_with_as_if_in_float32(monkeypatch):
    narrow, found = [view.bfloat16() for view in VIEWS], []
    for views in (narrow, [view.float() for view in narrow]):
        monkeypatch.setattr(sys.modules[__name__], "VIEWS", views)
        together = HeadsTogether(trainers("macal"))
        found.append((together.train_epoch(), torch.cat(together.logits(views[1]))))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_head_continues_alone_after_an_epoch_with_others():
    alone, members = trainers("macal"), trainers("macal")
    HeadsTogether(members).train_epoch()
    for one, member in zip(alone, members, strict=True):
        one.train_epoch()
        assert member.train_epoch() == pytest.approx(one.train_epoch(), abs=1e-5)


def test_a_head_that_diverges_does_not_change_the_others():
    members = [trainer("tst", 0, lr=0.1), trainer("tst", 1, lr=1e38)]
    alone = trainer("tst", 0, lr=0.1)
    together = HeadsTogether(members)
    for _ in range(2):
        figures, expected = together.train_epoch(), alone.train_epoch()
    assert figures[0] == pytest.approx(expected, abs=1e-5)
    assert not all(torch.isfinite(p).all() for p in members[1].head.parameters())
    together.drop(members[1])
    assert together.train_epoch()[0] == pytest.approx(alone.train_epoch(), abs=1e-5)
    assert [member.epoch for member in members] == [3, 2]


OTHERWISE = {
    "gamma": 0.6,
    "q0": 0.2,
    "eta_init": 0.3,
    "eta_final": 0.2,
    "lr": 0.03,
    "hidden": 11,
    "restrict_gradient": False,
    "restructure": False,
    "sparsity": "adaptive",
    "resample": "epoch",
    "inference": "dense",
    "feedback": "training",
    "clock": "crossing",
    "accept": "better",
    "q_role": "keep",
    "optimizer": "masked",
    "views": "original",
    "variant": "paper",
    "epochs": 2,
}


@pytest.mark.full
@pytest.mark.parametrize("usual_first", [True, False])
@pytest.mark.parametrize("name", REFINEMENTS.parameter_names("macal"))
def test_heads_trained_together_have_the_figures_of_heads_trained_alone(name, usual_first):
    """Whichever setting two differ in: they are refused, or their figures are their own."""
    usual = {"hidden": 10, "epochs": EPOCHS}
    settings = [usual, {**usual, name: OTHERWISE[name]}][:: 1 if usual_first else -1]
    alone, members = ([trainer("macal", 0, **own) for own in settings] for _ in range(2))
    try:
        together = HeadsTogether(members)
    except ValueError:
        return
    for _ in range(2):
        expected = [one.train_epoch() for one in alone]
        for figures, wanted in zip(together.train_epoch(), expected, strict=True):
            assert figures == pytest.approx(wanted, abs=1e-5)
        for one, logits in zip(alone, together.logits(VIEWS[0]), strict=True):
            torch.testing.assert_close(logits, one.head(VIEWS[0]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("macal", {"restructure": True}, {"restructure": False}),
        ("macal", {"resample": "epoch"}, {"resample": "batch"}),
        ("macal", {"q_role": "keep"}, {"q_role": "drop"}),
        ("macal", {"inference": "dense"}, {"inference": "last"}),
        ("macal", {"optimizer": "masked"}, {"optimizer": "plain"}),
        ("macal", {"feedback": "dense"}, {"feedback": "deployed"}),
        ("macal", {"feedback": "validation"}, {"feedback": "deployed"}),
        ("macal", {"views": "augmented"}, {"views": "original"}),
        ("macal", {"restrict_gradient": True}, {"restrict_gradient": False}),
        ("macal", {"epochs": 3}, {"epochs": 4}),
        ("tst", {"epochs": 3}, {"epochs": 4}),
        ("tst", {"latent_dim": 0}, {"latent_dim": 4}),
        ("vtst", {}, {}),
    ],
)
def test_heads_with_different_keys_cannot_be_trained_together(name, one, other):
    with pytest.raises(
        ValueError, match=r"^expected trainers with the same key, got 2 with the keys .*$"
    ):
        HeadsTogether([trainer(name, 0, **one), trainer(name, 1, **other)])


def test_an_empty_group_of_heads_is_refused():
    with pytest.raises(
        ValueError, match=r"^expected trainers with the same key, got 0 with the keys .*$"
    ):
        HeadsTogether([])
