import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainables.refinements import HeadTrainer, build_refinement
from trainables.refinements.macal import MaskedHead, clip_bound, sparsity_step


def masked_head(trainer: HeadTrainer) -> MaskedHead:
    return trainer.head


@pytest.mark.shared
def test_every_stored_sequence(shared):
    index = json.loads((shared / "goldens" / "index.json").read_text(encoding="utf-8"))
    arrays = np.load(shared / "goldens" / "maccal.npz")
    cases = index["files"]["maccal.npz"]
    assert len(cases) == 42
    for case in cases:
        accuracies = arrays[f"in/{case['sequence']}/acc"]
        confidences = arrays[f"in/{case['sequence']}/conf"]
        first = {"t_from_0": 0, "t_from_1": 1}[case["indexing"]]
        q, found, bounds = case["q0"], [], []
        for step, (accuracy, confidence) in enumerate(zip(accuracies, confidences, strict=True)):
            bound = clip_bound(case["eta_init"], case["eta_final"], step + first, case["T"])
            q = sparsity_step(q, accuracy, confidence, case["gamma"], bound)
            found.append(q)
            bounds.append(bound)
        np.testing.assert_allclose(bounds, arrays[case["prefix"] + "eta"], rtol=1e-12, atol=0)
        np.testing.assert_allclose(found, arrays[case["prefix"] + "q"], rtol=0, atol=1e-12)


@pytest.mark.shared
def test_refinement_follows_a_stored_sequence(shared):
    arrays = np.load(shared / "goldens" / "maccal.npz")
    refinement = build_refinement("macal", gamma=0.95, epochs=20)
    head = refinement.build_head(3, 2)
    found = []
    for accuracy, confidence in zip(
        arrays["in/crossing/acc"], arrays["in/crossing/conf"], strict=True
    ):
        refinement.start_epoch(head, len(found), torch.Generator().manual_seed(0))
        found.append(refinement.end_epoch(head, accuracy, confidence)["next_q"])
    expected = arrays["out/crossing/g0.95/t_from_1/q"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


fractions = st.floats(0, 1)


@given(fractions, fractions, fractions, st.floats(0.01, 2), st.floats(1e-4, 0.5))
def test_q_stays_a_probability_and_moves_by_eta_at_most(q, accuracy, confidence, gamma, eta):
    after = sparsity_step(q, accuracy, confidence, gamma, eta)
    assert 0 <= after <= 1
    assert abs(after - q) <= eta + 1e-12
    gap = confidence - gamma * accuracy
    assert (after - q) * gap >= 0


def test_bound_runs_from_initial_to_final():
    assert clip_bound(0.1, 0.001, 0, 40) == pytest.approx(0.1, rel=1e-12)
    assert clip_bound(0.1, 0.001, 20, 40) == pytest.approx(0.01, rel=1e-12)
    assert clip_bound(0.1, 0.001, 40, 40) == pytest.approx(0.001, rel=1e-12)


def test_mask_takes_weights_out_of_the_output():
    head = MaskedHead((3, 2), 0.5).train()
    head.masks()["layers.0.weight"].copy_(torch.tensor([[1, 0, 1], [0, 0, 1]]).bool())
    features = torch.randn(5, 3)
    weight = head.get_parameter("layers.0.weight").detach() * head.masks()["layers.0.weight"]
    expected = features @ weight.T + head.get_parameter("layers.0.bias")
    torch.testing.assert_close(head(features), expected)


def test_nothing_dropped_is_a_plain_two_layer_classifier(make_trainer):
    trainer = make_trainer("macal", sparsity="fixed", q0=0.0)
    assert trainer.train_epoch()["q"] == 0
    assert all(mask.all() for mask in masked_head(trainer).masks().values())


@pytest.mark.parametrize(
    ("own", "second"),
    [
        ({}, True),
        ({"feedback": "dense"}, True),
        ({"feedback": "training"}, False),
        ({"sparsity": "fixed"}, False),
    ],
)
def test_macal_makes_a_second_pass_only_if_q_depends_on_one(own, second):
    assert build_refinement("macal", **own).second_pass is second


def test_a_head_without_weights_finds_its_way_back():
    refinement = build_refinement("macal", gamma=0.8, q0=0.99, hidden=16)
    head = refinement.build_head(3, 4)
    generator = torch.Generator().manual_seed(0)
    refinement.start_epoch(head, 0, generator)
    assert refinement.end_epoch(head, 0.2, 1.0)["next_q"] == 1 - 1 / 16
    refinement.start_epoch(head, 1, generator)
    assert refinement.end_epoch(head, 0.9, 0.3)["next_q"] < 1 - 1 / 16


def test_the_clock_may_wait_until_confidence_is_too_high():
    waits = build_refinement("macal", gamma=0.9, epochs=8, clock="crossing")
    head = waits.build_head(3, 2)
    steps = []
    for confidence in (0.1, 0.1, 0.1, 1.0, 1.0, 0.0):
        waits.start_epoch(head, len(steps), torch.Generator().manual_seed(0))
        figures = waits.end_epoch(head, accuracy=1.0, confidence=confidence)
        steps.append(figures["next_q"] - figures["q"])
    bounds = [clip_bound(0.1, 0.001, t, 8) for t in (1, 1, 1, 1, 2, 3)]
    signs = np.array([-1, -1, -1, 1, 1, -1])
    np.testing.assert_allclose(steps, signs * bounds, rtol=0, atol=1e-12)


def test_feedback_on_held_out_rows_needs_them(problem):
    refinement = build_refinement("macal", feedback="validation", gamma=1.0)
    settings = {"num_classes": 4, "batch_size": 16, "momentum": 0.9, "weight_decay": 0.0}
    with pytest.raises(ValueError, match="held_out is missing"):
        HeadTrainer(refinement, *problem, **settings, seed=0)
