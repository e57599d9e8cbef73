"""The engine on a GPU where there is none: a pretended one whose kernels compute nothing.

What it gives are no figures; but all that torch refuses, from a wrong device to a wrong type, it
refuses here too. The script is ``gpu_scenarios.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainables.methods import method_names
from trainables.stages import STAGES

SCRIPT = Path(__file__).with_name("gpu_scenarios.py")
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "gcc", "g++"))), reason="needs gcc and g++"
    ),
    pytest.mark.skipif(
        not str(torch.version.cuda).startswith("13."), reason="needs torch for CUDA 13"
    ),
]


def run(command: list[str | Path], **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2]), **environment},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    tool, card = shared / "tools" / "nullgpu", tmp_path_factory.mktemp("card")
    run(["bash", tool / "build.sh", sys.executable, card])
    folder = tmp_path_factory.mktemp("gpu")
    told = run(["bash", tool / "run.sh", sys.executable, SCRIPT, folder], NULLGPU=str(card))
    return dict(json.loads(told.splitlines()[-1]))


def test_a_trial_is_held_to_its_share_of_its_own_gpu(found: dict[str, Any]) -> None:
    assert found["a_share"] == ["cuda:0", 0.5]


def test_a_chain_of_stages_is_computed_measured_and_exported(found: dict[str, Any]) -> None:
    chain = found["a_chain"]
    assert list(chain["stages"]) == list(STAGES)
    for stage in chain["stages"].values():
        assert {"acc", "ece", "nll"} <= set(stage["metrics"])
        assert stage["outputs"] == [30, 3]
    assert chain["launches"] > chain["convolutions"] > 0


def test_every_method_trains(found: dict[str, Any]) -> None:
    assert found["every_method"] == dict.fromkeys(method_names(), 1)


def test_models_of_all_families_train(found: dict[str, Any]) -> None:
    assert set(found["several_models"].values()) == {1}


def test_every_refinement_trains_alone_and_in_a_common_pass(found: dict[str, Any]) -> None:
    assert found["every_refinement"] == {
        "macal": ["RefineTogether", 2],
        "tst": ["RefineTogether", 2],
        "vtst": ["RefineStage", 2],
    }


def test_a_device_may_come_without_an_index(found: dict[str, Any]) -> None:
    assert found["a_device_without_an_index"] == [True, "cuda:0"]


def test_images_are_streamed_to_a_gpu_that_is_almost_full(found: dict[str, Any]) -> None:
    assert found["images_that_do_not_fit"] == [False, False, [30, 3]]


def test_a_trial_of_tune_ends_well(found: dict[str, Any]) -> None:
    assert found["a_trial_of_tune"] == ["finished", "", 2, True]
