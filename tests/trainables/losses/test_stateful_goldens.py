from typing import Any

import pytest
import torch
from reference_values import Goldens
from torch import Tensor

from trainables.losses import Loss, build_loss
from trainables.losses.au import histogram, smooth_cdf

SCORES = {"MSP": "msp", "SoftmaxMargin": "margin", "NegEntropy": "neg_entropy"}
RANK_TARGETS = {"softmax": "msp", "margin": "margin", "entropy": "neg_entropy"}
# The typed-in 2.302585 differs from log 10 by 4e-8.
CRL_TOLERANCE = {"softmax": 1e-12, "margin": 1e-12, "entropy": 1e-7}
AU_NOT_OFFERED = {
    "is_prob": "given probabilities, the code clamps p_y in the cross-entropy too and does not "
    "normalise the entropy, so that all scores fall into the first bin; these losses take logits"
}
CRL_NOT_OFFERED = {"crl/degenerate": "0/0 makes the released loss NaN; here nothing is ranked"}


def check_step(
    loss: Loss, inputs: tuple[Tensor, ...], value: float, gradient: Tensor, rtol: float
) -> None:
    logits = inputs[0].requires_grad_()
    result = loss(*inputs)
    result.backward()
    assert result.item() == pytest.approx(value, rel=rtol)
    atol = rtol * float(gradient.abs().max())
    torch.testing.assert_close(logits.grad, gradient, rtol=rtol, atol=atol)


def build_au(case: dict[str, Any]) -> Loss:
    hyper = case["hyper"]
    # With the sign error every confidence is 1, however many softmaxes come before it.
    single = case["variant"] == "single_softmax" and hyper["score_function"] != "NegEntropy"
    return build_loss(
        "au",
        coverage=hyper["conf_quantile"],
        smoothness=hyper["hist_sigma"],
        score=SCORES[hyper["score_function"]],
        bins=hyper["bins"],
        variant="paper" if single or case["variant"] == "corrected" else "released",
        batch_size=hyper["batch_size"],
        reduction=case["reduction"],
    )


@pytest.mark.shared
@pytest.mark.parametrize("variant", ["released", "single_softmax", "corrected"])
def test_au_over_an_epoch(variant: str, stateful_goldens: Goldens) -> None:
    cases = [case for case in stateful_goldens.of("au") if case["variant"] == variant]
    assert cases
    for case in cases:
        loss = build_au(case)
        for step, expected in enumerate(case["steps"]):
            inputs = tuple(
                stateful_goldens.tensor(f"au/in/batch{step}/{part}")
                for part in ("logits", "targets")
            )
            gradient = stateful_goldens.tensor(expected["prefix"] + "grad")
            check_step(loss, inputs, expected["value"], gradient, rtol=1e-11)
            assert loss.counts.sum().item() == expected["total"]


@pytest.mark.shared
def test_every_au_variant_is_matched_or_named_as_not_offered(stateful_goldens: Goldens) -> None:
    variants = {case["variant"] for case in stateful_goldens.of("au")}
    assert variants == {"released", "single_softmax", "corrected", *AU_NOT_OFFERED}


@pytest.mark.shared
def test_the_histogram_and_its_distribution_function(stateful_goldens: Goldens) -> None:
    cases = stateful_goldens.of("histogram_cdf")
    assert cases
    points = stateful_goldens.tensor("hist/x")
    for case in cases:
        bins, counts = case["hyper"]["bins"], torch.zeros(case["hyper"]["bins"]).double()
        for step in range(3):
            added = stateful_goldens.tensor(f"hist/add{step}")
            counts += histogram(added, torch.ones_like(added, dtype=torch.bool), bins)
            torch.testing.assert_close(
                smooth_cdf(points, counts, case["hyper"]["sigma"]),
                stateful_goldens.tensor(f"{case['id']}/cdf_after{step}"),
                rtol=1e-12,
                atol=1e-15,
            )
        # The stored counts are all those of the end.
        assert torch.equal(counts, stateful_goldens.tensor("hist/counts_after2"))


@pytest.mark.shared
@pytest.mark.parametrize("case_id", ["softmax/w1", "softmax/w0.5", "entropy/w1", "margin/w1"])
def test_crl_over_epochs(case_id: str, stateful_goldens: Goldens) -> None:
    (case,) = (c for c in stateful_goldens.of("crl") if c["id"] == f"crl/{case_id}")
    target = case["hyper"]["rank_target"]
    loss = build_loss("crl", weight=case["hyper"]["rank_weight"], score=RANK_TARGETS[target])
    loss.prepare(case["hyper"]["n_data"], case["hyper"]["K"])
    for step in case["steps"]:
        if step["batch"] == 0:
            loss.start_epoch(step["epoch"] - 1)
        prefix = f"crl/in/epoch{step['epoch']}/batch{step['batch']}/"
        inputs = tuple(
            stateful_goldens.tensor(prefix + part) for part in ("logits", "targets", "idx")
        )
        gradient = stateful_goldens.tensor(step["prefix"] + "grad_total")
        check_step(loss, inputs, step["total"], gradient, CRL_TOLERANCE[target])
        if "max_correctness_after_epoch" in step:
            after = f"crl/{case_id}/epoch{step['epoch']}/correctness_after"
            assert torch.equal(loss.history.counts, stateful_goldens.tensor(after))


@pytest.mark.shared
def test_every_crl_case_is_matched_or_named_as_not_offered(stateful_goldens: Goldens) -> None:
    cases = {case["id"] for case in stateful_goldens.of("crl")}
    matched = {"crl/softmax/w1", "crl/softmax/w0.5", "crl/entropy/w1", "crl/margin/w1"}
    assert cases == matched | set(CRL_NOT_OFFERED)


def test_crl_ranks_nothing_if_every_sample_was_always_right() -> None:
    loss = build_loss("crl")
    loss.prepare(4, 3)
    logits, targets = 5.0 * torch.eye(3)[[0, 1, 2, 0]], torch.tensor([0, 1, 2, 0])
    for epoch in range(2):
        loss.start_epoch(epoch)
        value = loss(logits, targets, torch.arange(4))
        assert value.item() == pytest.approx(build_loss("ce")(logits, targets).item())
