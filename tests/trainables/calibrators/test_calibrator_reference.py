"""Calibrators against values that naive code computed from their definitions: tests/reference."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trainables.calibrators import calibrator_from_recipe

REFERENCE = json.loads(
    (Path(__file__).parents[2] / "reference" / "calibrators.json").read_text(encoding="utf-8")
)
# Their fits end where the objective hardly falls any more, a little before the minimiser.
CLOSE = {"ms": 3e-3, "dirichlet": 3e-3, "pts": 4e-3, "sms": 1e-4}


@pytest.mark.parametrize(
    "case", REFERENCE["cases"], ids=lambda case: f"{case['name']}-{case['objective']}"
)
def test_rows_are_mapped_as_the_definition_says(case: dict[str, Any]) -> None:
    name = "-".join(filter(None, (case["name"], case["objective"])))
    calibrator = calibrator_from_recipe(name, case["parameters"])
    logits = torch.tensor(REFERENCE["fit_logits"], dtype=torch.float64)
    calibrator.fit(logits, torch.tensor(REFERENCE["fit_labels"]))
    found = calibrator(torch.tensor(REFERENCE["logits"], dtype=torch.float64))
    expected = torch.tensor(case["log_probs"], dtype=torch.float64)
    close = CLOSE.get(case["name"], 1e-5)
    torch.testing.assert_close(found, expected, rtol=10 * close, atol=close)
