import math
import sys

import pytest
import torch

from trainables.common.errors import TrainingDivergedError
from trainables.stages import probe


def test_predictions_that_are_not_finite_are_a_fault(monkeypatch):
    # A CPU takes long over so many pixels in bfloat16.
    monkeypatch.setattr(probe, "ROWS", 8)
    monkeypatch.setattr(probe, "SIDE", 8)
    exact, coarse, usual = (
        probe.training_step(torch.device("cpu"), *precision)
        for precision in (["float32"], ["bfloat16"], [])
    )
    assert math.isfinite(exact)
    assert exact != coarse == usual
    logits = torch.tensor([[0.0, 0.0], [0.0, math.nan]])
    monkeypatch.setattr(probe, "predict", lambda *_: logits)
    with pytest.raises(
        TrainingDivergedError, match=r"^predictions became NaN or infinite after one step$"
    ):
        probe.training_step(torch.device("cpu"), "float32")


def test_the_loss_is_printed_and_a_fault_is_the_last_word(monkeypatch, capsys):
    asked: list[torch.device] = []
    monkeypatch.setattr(probe, "training_step", lambda device: asked.append(device) or 0.25)
    monkeypatch.setattr(sys, "argv", ["probe", "cuda:1"])
    probe.main()
    assert capsys.readouterr().out == "0.25\n"
    assert asked == [torch.device("cuda:1")]
    monkeypatch.setattr(sys, "argv", ["probe", "toaster"])
    with pytest.raises(SystemExit, match=r"^RuntimeError: .*toaster"):
        probe.main()
