import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainables.losses import LOSSES, build_loss

REFERENCE = json.loads(
    (Path(__file__).parents[2] / "reference" / "losses.json").read_text(encoding="utf-8")
)
CASES = REFERENCE["cases"]


def test_every_loss_has_reference_values() -> None:
    assert {case["name"] for case in CASES} == set(LOSSES.names())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['name']}-{case['parameters']}")
def test_value_and_gradient_are_those_of_the_formula(case: dict[str, Any]) -> None:
    loss = build_loss(case["name"], **case["parameters"])
    targets = torch.tensor(REFERENCE["targets"])
    samples = torch.arange(len(targets))
    loss.prepare(len(targets), len(REFERENCE["logits"][0]))
    for epoch, batch in enumerate(REFERENCE["past"]):
        loss.start_epoch(epoch)
        loss(torch.tensor(batch["logits"]).double(), torch.tensor(batch["targets"]), samples)
    loss.start_epoch(len(REFERENCE["past"]))
    logits = torch.tensor(REFERENCE["logits"], dtype=torch.float64, requires_grad=True)
    value = loss.eval()(logits, targets, samples)
    value.backward()
    assert value.item() == pytest.approx(case["value"], rel=1e-7)
    expected = torch.tensor(case["gradient"], dtype=torch.float64)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-5, atol=1e-7)
