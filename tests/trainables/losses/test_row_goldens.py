from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference_values import Goldens

from trainables.losses import Loss, build_loss

Hyper = dict[str, Any]
SCORES = {"MSP": "msp", "SoftmaxMargin": "margin", "NegEntropy": "neg_entropy"}

BUILDERS: dict[str, Callable[[Hyper], tuple[str, Hyper]]] = {
    "ce": lambda h: ("ce", {}),
    "ls": lambda h: ("ls", {"smoothing": h["alpha"]}),
    "ls_mdca_variant": lambda h: ("ls", {"smoothing": h["alpha"], "spread": "others"}),
    "focal": lambda h: ("fl", {"gamma": h["gamma"]}),
    "focal_detached_weight": lambda h: ("fl", {"gamma": h["gamma"], "detach": True}),
    "flsd53": lambda h: ("flsd", {"gamma": h["gamma_ge_0_5"]}),
    "flsd_other_gamma": lambda h: ("flsd", {"gamma": h["gamma_ge_0_5"]}),
    "flsd53_han": lambda h: ("flsd", {"schedule": "one-threshold"}),
    "dual_focal": lambda h: ("dfl", {"gamma": h["gamma"]}),
    "dual_focal_han": lambda h: ("dfl", {"gamma": h["gamma"]}),
    "inverse_focal": lambda h: ("ifl", {"gamma": h["gamma"]}),
    "brier": lambda h: ("brier", {}),
    "ecp": lambda h: ("ecp", {"weight": h["alpha"]}),
    "mbls": lambda h: ("mbls", {"margin": h["margin"], "weight": h["alpha"]}),
    "acls": lambda h: (
        "acls",
        {
            "margin": h["margin"],
            "weight_pos": h["alpha"] * h["pos_lambda"],
            "weight_neg": h["alpha"] * h["neg_lambda"],
        },
    ),
    "aurc": lambda h: ("aurc", {"score": SCORES[h["score_function"]], "variant": "released"}),
    "aurc_single_softmax": lambda h: ("aurc", {"score": SCORES[h["score_function"]]}),
    "aurc_prob": lambda h: ("aurc", {"score": SCORES[h["score_function"]]}),
}

NOT_OFFERED = {
    ("aurc_prob", "overconfident"): "given probabilities, the code clamps p_y in the cross-entropy "
    "too and so loses the gradient of rows with p_y < 1e-9; these losses take logits"
}


def build(golden: dict[str, Any]) -> Loss:
    name, parameters = BUILDERS[golden["loss"]](golden["hyper"])
    if golden["reduction"] == "sum":
        parameters["reduction"] = "sum"
    return build_loss(name, **parameters)


@pytest.mark.shared
@pytest.mark.parametrize("loss", BUILDERS)
def test_value_and_gradient_are_those_of_the_released_code(loss, loss_goldens):
    cases = [c for c in loss_goldens.of(loss) if (loss, c["case"]) not in NOT_OFFERED]
    assert cases
    for case in cases:
        logits = loss_goldens.tensor(case["logits"]).requires_grad_()
        value = build(case)(logits, loss_goldens.tensor(case["targets"]))
        value.backward()
        assert value.item() == pytest.approx(case["value"], rel=1e-12), case["case"]
        expected = loss_goldens.tensor(case["grad"])
        torch.testing.assert_close(
            logits.grad,
            expected,
            rtol=1e-9,
            atol=1e-13 * float(expected.abs().max()),
            msg=lambda text, case=case: f"{case['id']} {case['case']}: {text}",
        )


@pytest.mark.shared
@pytest.mark.parametrize(("loss", "case"), NOT_OFFERED)
def test_losses_differ_from_reference_variants_that_are_not_offered(
    loss: str, case: str, loss_goldens: Goldens
) -> None:
    for golden in loss_goldens.of(loss):
        if golden["case"] == case:
            logits = loss_goldens.tensor(golden["logits"])
            value = build(golden)(logits, loss_goldens.tensor(golden["targets"]))
            assert value.item() != pytest.approx(golden["value"], rel=1e-3)
