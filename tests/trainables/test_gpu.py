"""The engine on a GPU where there is none: a stand-in that computes on the CPU, and, where it lies
beside the repository, a pretended one whose kernels compute nothing.

The stand-in finds wrong devices and wrong figures. The other one gives no figures; but all that
torch refuses, from a wrong device to a wrong type, it refuses too, and it has autocast, pinned
memory and launches. The script is ``gpu_scenarios.py``.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_stages import EVERY_LAYER

from trainables.common.stages import STAGES
from trainables.data import IMAGE_AUGMENTATIONS, ImageShape, MaskedShape, TextShape
from trainables.losses import LOSSES
from trainables.methods import method_names
from trainables.models import model_names

pytestmark = pytest.mark.full
SCRIPT = Path(__file__).with_name("gpu_scenarios.py")
NEEDED = [
    pytest.mark.shared,
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "gcc", "g++"))), reason="needs gcc and g++"
    ),
    pytest.mark.skipif(
        not str(torch.version.cuda).startswith("13."), reason="needs torch for CUDA 13"
    ),
]


def run(command: list[str | Path], **environment: str) -> str:
    path = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def on_pretended_card(shared: Path, folder: Path) -> str:
    tool, card = shared / "tools" / "nullgpu", folder / "card"
    run(["bash", tool / "build.sh", sys.executable, card])
    return run(["bash", tool / "run.sh", sys.executable, SCRIPT, folder], NULLGPU=str(card))


REAL = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
CARDS = ["stand-in", pytest.param("pretended", marks=NEEDED), pytest.param("real", marks=REAL)]


@pytest.fixture(scope="module", params=CARDS)
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu")
    if request.param == "pretended":
        told = on_pretended_card(request.getfixturevalue("shared"), folder)
    else:
        seen = {"CUDA_VISIBLE_DEVICES": ""} if request.param == "stand-in" else {}
        told = run([sys.executable, SCRIPT, folder], **seen)
    return {"card": request.param, **json.loads(told.splitlines()[-1])}


def test_a_trial_is_held_to_its_share_of_its_own_gpu(found):
    device, share = found["a_share"]
    assert device == "cuda:0"
    assert 0.48 < share < 0.5  # The rest is for the CUDA context.


def test_a_chain_of_stages_is_computed_measured_and_exported(found):
    chain = found["a_chain"]
    assert list(chain["stages"]) == list(STAGES)
    precision = "float32" if found["card"] == "stand-in" else "bfloat16"
    for stage in chain["stages"].values():
        assert {"acc", "ece", "nll"} <= set(stage["metrics"])
        assert stage["outputs"] == [30, 3]
        for computed in stage["computed"]:
            assert computed["device"] not in ("", "cpu", "cuda")
            assert computed["deterministic"] is False
            assert computed["precision"] == precision
    if found["card"] == "pretended":
        assert chain["launches"] > chain["convs"] > 0


def test_every_method_trains_where_kernels_must_be_deterministic(found):
    trained, refused, still = found["every_method_deterministically"]
    assert trained == dict.fromkeys([*method_names(), *IMAGE_AUGMENTATIONS], 1)
    assert not still
    if found["card"] != "stand-in":  # Its kernels are a CPU's.
        assert "does not have a deterministic implementation" in refused


def test_every_model_trains(found):
    names = [name for kind in (ImageShape, TextShape, MaskedShape) for name in model_names(kind)]
    names = [name for name in names if "@" not in name]  # What is published is not here.
    if found["card"] != "real":  # The others are deeper and wider.
        names = [name for name in names if name in EVERY_LAYER]
    assert found["every_model"] == dict.fromkeys(names, 1)


def test_every_loss_trains_on_masks_whose_pixels_are_calibrated(found):
    if found["card"] == "stand-in":
        return
    trained, (shape, count, sound) = found["pixels"]
    assert trained == dict.fromkeys([*LOSSES.names(), "mixup"], 1)
    assert (shape, sound) == ([count, 3], True)


def test_pixels_are_trained_calibrated_and_tested_as_on_a_cpu(found):
    if found["card"] != "pretended":
        close = 0.2 if found["card"] == "real" else 1e-6  # Another one trains other weights.
        for on_card, on_cpu in zip(*found["a_chain_of_masks"], strict=True):
            assert {"val_ece", "miou", "ece_floor"} <= on_cpu.keys()
            assert on_card.keys() == on_cpu.keys()
            # A bin of few rows decides the largest error: with other weights it may be any.
            widest = {"mce", "val_mce"} if found["card"] == "real" else set()
            ours, theirs = (
                {k: v for k, v in each.items() if k not in widest} for each in (on_card, on_cpu)
            )
            assert ours == pytest.approx(theirs, rel=0, abs=close, nan_ok=True)


def test_every_refinement_trains_alone_and_in_a_common_pass(found):
    assert found["every_refinement"] == {
        "macal": ["RefineTogether", 2],
        "tst": ["RefineTogether", 2],
        "vtst": ["RefineStage", 2],
    }


def test_a_device_may_come_without_an_index(found):
    assert found["a_device_without_an_index"] == [True, "cuda:0"]


def test_images_are_streamed_to_a_gpu_that_is_almost_full(found):
    if found["card"] != "stand-in":
        assert found["images_that_do_not_fit"] == [False, False, [30, 3]]


def test_views_that_do_not_fit_are_brought_one_at_a_time(found):
    (place, read, figures), (other_place, other_read, other_figures) = found[
        "views_that_do_not_fit"
    ]
    assert (place, other_place) == ("cuda:0", "cpu")
    assert read == other_read == "cuda:0"
    if found["card"] != "pretended":
        assert figures == pytest.approx(other_figures, rel=1e-3)


def test_an_epochs_metrics_are_those_of_a_cpu(found):
    if found["card"] != "pretended":
        on_card, on_cpu = found["figures_of_an_epoch"]
        assert "val_ece" in on_cpu
        if found["card"] == "stand-in":  # Another one trains weights of its own.
            assert on_card == pytest.approx(on_cpu, rel=0, abs=1e-6)


def test_recorded_steps_train_as_steps_as_written(found):
    if found["card"] == "stand-in":
        return  # It records nothing.
    losses, remarks = found["recorded_steps"]
    if found["card"] == "real":
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
        assert remarks == []


# The stand-in counts nothing.
@pytest.mark.parametrize("found", [pytest.param("pretended", marks=NEEDED)], indirect=True)
def test_steps_are_few_launches_and_no_waits(found):
    launches = found["launches"]
    assert max(launches["losses"].values()) <= 120
    assert launches["waits of losses"] == 0
    assert launches["resnet50"][0] < 700
    where, computed, waits = found["waits_of_predictions"]
    assert (where, computed, set(waits.values())) == ("cuda:0", True, {0})
    # Of half a million pixels: one each for sizes, labels and their range, four for finite values.
    assert launches["pixels"][2:] == [7, 0]
    for model in ("resnet50", "mixup"):
        assert launches[model][0] > 50
        assert launches[model][1:] == [0, 0, 0]


def test_doctor_has_a_card_do_a_training_step(found):
    if found["card"] != "pretended":
        on_card, on_cpu = found["a_step_as_doctor_asks_for"]
        assert on_card == pytest.approx(on_cpu, rel=1e-3 if found["card"] == "real" else 0, abs=0)


def test_batches_are_counted_where_that_costs_nothing(found):
    assert found["where_batches_are_counted"] == [["cpu"], ["cuda:0"]]


def test_a_trial_of_tune_ends_well(found):
    # Of the stand-in's memory torch counts nothing.
    counts = found["card"] != "stand-in"
    assert found["a_trial_of_tune"] == ["finished", "", 2, counts]
