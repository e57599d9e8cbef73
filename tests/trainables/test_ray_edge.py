"""The trainable that Tune runs, without a cluster; and that no search trial reaches test data.

A trial gives up test data for the rest of its process's life, so that everything here happens in
processes of their own: see ``ray_edge_scenarios.py``.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_stages import Workshop, request

from trainables.ray_edge import node_here
from trainables.stages import evaluate_on_test

SCRIPT = Path(__file__).with_name("ray_edge_scenarios.py")
ATTEMPTS = re.findall(r"@attempt\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"))
EPOCHS = [1, 2, 3]
NOTHING_YET = {
    "status": "waiting",
    "reason": "",
    "reused": False,
    "epoch": 0,
    "done": False,
    "metrics": {},
    "storage_failed": False,
    "memory_failed": False,
}


def outcomes_in(mode: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mode, str(folder)],
        env={**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"},
        cwd=SCRIPT.parents[2],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workshop's folder with one evaluated training."""
    folder = tmp_path_factory.mktemp("edge")
    workshop = Workshop(folder)
    trained = workshop.compute(request(workshop.prepared))
    _, evaluation = evaluate_on_test(workshop.store, "train", trained.key, workshop.prepared)
    (folder / "evaluated").write_text(f"train {trained.key}")
    (folder / "evaluation").write_text(evaluation.key)
    return folder


@pytest.fixture(scope="module")
def sealed(folder: Path) -> dict[str, Any]:
    return outcomes_in("sealed", folder)


@pytest.fixture(scope="module")
def unsealed(folder: Path) -> dict[str, Any]:
    return outcomes_in("open", folder)


def finished(report: dict[str, Any], reused: bool = False) -> bool:
    metrics = report["metrics"]
    assert {"val_acc", "val_ece", "val_nll"} <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())
    return (report["status"], report["reason"], report["reused"], report["done"]) == (
        "finished",
        "",
        reused,
        True,
    )


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_process_that_ran_a_trial_reaches_no_test_labels(
    sealed: dict[str, Any], name: str
) -> None:
    assert sealed["attempts"][name] == "sealed"


@pytest.mark.parametrize("name", ATTEMPTS)
def test_the_same_attempt_succeeds_where_no_trial_ran(unsealed: dict[str, Any], name: str) -> None:
    assert unsealed["attempts"][name] == "reached"


def test_test_data_are_given_up_before_the_first_step(sealed: dict[str, Any]) -> None:
    assert sealed["before the first step"] == "sealed"


def test_a_training_reports_every_epoch_and_leaves_an_artifact(sealed: dict[str, Any]) -> None:
    found = sealed["a_training"]
    assert found["statuses"] == ["running"] * 2 + ["finished"]
    assert found["epochs"] == EPOCHS
    assert found["steps"] == [[epoch] for epoch in EPOCHS]
    assert all(found["scores"])
    assert found["rising"]
    assert found["cost"]
    assert finished(found["last"])
    assert found["last"]["metrics"] == found["history"] == found["stored"]


def test_short_epochs_are_reported_together(sealed: dict[str, Any]) -> None:
    found = sealed["short_epochs_together"]
    assert found["steps"] == EPOCHS
    assert finished(found)


def test_reports_and_states_come_in_time_and_seconds_add_up(sealed: dict[str, Any]) -> None:
    found = sealed["epochs_of_ten_seconds"]
    # More than fifteen seconds are two epochs. The state is that of the second report.
    resumed = [[1, 2, 3, 4, 5, 6], [7]]
    assert found["steps"] == [[1, 2], [3, 4], [5, 6], *resumed]
    assert found["seconds"] == [20, 40, 60, 60, 70]
    assert found["states"] == [0, 1, 1]
    assert found["cost"] == 70


def test_what_is_stored_is_not_computed_again(sealed: dict[str, Any]) -> None:
    found = sealed["a_stored_artifact"]
    assert finished(found["again"], reused=True)
    assert found["again"]["metrics"] == found["first"]["metrics"]
    assert [entry["step"] for entry in found["history"]] == EPOCHS
    assert found["history"][-1]["metrics"] == found["first"]["metrics"]
    assert found["score"]
    stored, anew = found["other scores"]
    assert stored == pytest.approx(anew, abs=1e-6)
    assert 0 < stored != found["first"]["metrics"]["val_nll"]
    assert found["reused"] == [True, False]


def test_what_is_damaged_is_computed_again(sealed: dict[str, Any]) -> None:
    found = sealed["a_damaged_artifact"]
    assert finished(found["again"], reused=False)
    assert found["again"]["metrics"] == found["first"]["metrics"]
    (notice,) = found["notices"]
    assert "weights.safetensors" in notice
    assert "damaged" in notice


def test_a_trial_waits_for_another_that_computes_the_same(sealed: dict[str, Any]) -> None:
    found = sealed["waiting_for_another_that_finishes"]
    assert found["waiting"] == NOTHING_YET
    assert found["infinite"]
    assert finished(found["other"])
    assert finished(found["then"], reused=True)
    assert found["then"]["metrics"] == found["other"]["metrics"]


def test_a_trial_takes_over_from_another_that_gave_up(sealed: dict[str, Any]) -> None:
    found = sealed["waiting_for_another_that_gives_up"]
    assert found["waiting"] == "waiting"
    assert found["then"] == ["running"] * 2 + ["finished"]


def test_a_trial_does_not_wait_for_good(sealed: dict[str, Any]) -> None:
    """A scheduler may have stopped the other one, whose actor then lies idle with the lock."""
    found = sealed["another_that_is_silent"]
    assert finished(found["last"])
    assert found["stored"]
    assert sealed["signs_of_life"]
    assert sealed["a_lock_of_long_ago"] == [True]
    assert sealed["patience"] == [["waiting", "running"], [0.2]]


def test_an_actor_lets_go_of_what_it_leaves_unfinished(sealed: dict[str, Any]) -> None:
    found = sealed["another_configuration_midway"]
    assert found["blocked"] == "waiting"
    assert found["waiting"] == {**NOTHING_YET, "history": []}
    assert found["infinite"]
    assert found["anew"]
    assert found["steps"] == [[epoch] for epoch in EPOCHS]
    assert found["reset"] is True
    assert found["other"] == "finished"
    assert finished(found["own"])
    assert found["seeds"] == [True, True]


def test_a_trial_begins_as_if_it_were_the_first_of_its_actor(sealed: dict[str, Any]) -> None:
    found = sealed["one_trial_after_another"]
    assert found["reports"] == [["finished", True, 0], ["running", False, 10]]
    assert found["left"] == [0, 1]  # The state is that of its own second report.


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a_stage_that_raises", "RuntimeError: first line"),
        ("a_stage_without_memory", "MemoryError: cannot allocate"),
        (
            "a_stage_without_device_memory",
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.10 GiB "
            "free.",
        ),
        ("a_stage_without_words", "ValueError: "),
    ],
)
def test_a_stage_that_raises_is_a_failed_trial_and_the_actor_goes_on(
    sealed: dict[str, Any], name: str, reason: str
) -> None:
    found = sealed[name]
    assert found["failed"]["status"] == "failed"
    assert found["failed"]["reason"] == reason
    assert found["failed"]["memory_failed"] is (name == "a_stage_without_device_memory")
    assert found["failed"]["done"] is True
    assert found["next"] == ["running"] * 2 + ["finished"]


def test_a_trial_that_the_machine_fails_goes_on_in_another_process(sealed: dict[str, Any]) -> None:
    found = sealed["a_machine_that_fails_twice"]
    failures = ["OSError: [Errno 5] Input/output error"]
    failures.append("AcceleratorError: CUDA error: unspecified launch failure")
    assert found["reports"] == ["running", *failures, "running", "finished"]
    assert [text.splitlines()[0] for text in found["raised"]] == failures
    told = f"train of flaky+plp failed on {os.uname().nodename}, by no fault of its own"
    going_on = "train of flaky+plp goes on from epoch 1 of 3"
    expected = [line for failure in failures for line in (f"{told}: {failure}", going_on)]
    assert found["notices"] == expected
    assert finished(found["last"])
    assert found["same"]
    assert found["left"] == 0


def test_a_trial_tells_where_it_failed(sealed: dict[str, Any]) -> None:
    for name, count in (("a_machine_that_fails_twice", 2), ("a_configuration_that_fails", 1)):
        found = sealed[name]
        assert len(found["where"]) == count
        assert all("per_row" in text and "raise error" in text for text in found["where"])
        assert found["hosts"]
        assert found["nodes"] == [""], "there is no Ray"


def test_a_configuration_that_fails_is_not_tried_again(sealed: dict[str, Any]) -> None:
    found = sealed["a_configuration_that_fails"]
    assert found["reports"] == ["running", "ValueError: a value out of range"]
    assert found["raised"] == []
    assert found["last"]["status"] == "failed"
    assert found["left"] == 0


def test_without_memory_the_state_stays_for_a_trial_that_shares_the_device_with_none(
    sealed: dict[str, Any],
) -> None:
    found = sealed["a_device_whose_memory_does_not_suffice_midway"]
    assert found["reports"] == ["running", "OutOfMemoryError: CUDA out of memory"]
    assert found["last"]["memory_failed"]
    assert found["left"] == 1


def test_without_room_the_state_stays_for_when_there_is_some(sealed: dict[str, Any]) -> None:
    found = sealed["storage_that_fills_up_midway"]
    assert found["reports"][1] == "cannot write artifact x: No space left on device"
    assert found["last"]["storage_failed"]
    assert found["left"] == 1


def test_a_device_that_cannot_be_taken_is_told_by_the_first_step(sealed: dict[str, Any]) -> None:
    found = sealed["a_device_that_cannot_be_taken"]
    assert (found["status"], found["done"], found["raised"]) == ("broken", False, True)
    assert found["next"] == ["running"] * 2 + ["finished"]
    reason = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert found["reason"] == f"RuntimeError: {reason}"


def test_a_training_that_diverges_is_a_failed_trial(sealed: dict[str, Any]) -> None:
    found = sealed["a_training_that_diverges"]
    assert found["last"]["status"] == "failed"
    assert re.fullmatch(r"TrainingDivergedError: .* (in|of) epoch \d", found["last"]["reason"]), (
        found["last"]["reason"]
    )
    assert found["stored"]


def test_what_is_missing_is_a_failed_trial_that_names_it(
    sealed: dict[str, Any], folder: Path
) -> None:
    upstream = sealed["an_upstream_that_is_missing"]
    assert upstream["status"] == "failed"
    assert re.match(r"InputError: artifact .* is missing or damaged", upstream["reason"])
    data = sealed["data_that_are_gone"]
    assert data["status"] == "failed"
    assert str(folder / "none") in data["reason"]


def test_a_damaged_upstream_is_computed_again(sealed: dict[str, Any]) -> None:
    found = sealed["an_upstream_that_is_damaged"]
    assert finished(found["last"])
    assert found["carried"]
    assert found["again"]
    assert found["key"]
    assert "damaged" in found["notices"][0]


def test_a_resumed_trial_ends_where_an_uninterrupted_one_does(sealed: dict[str, Any]) -> None:
    found = sealed["a_checkpoint"]
    assert finished(found["resumed"])
    assert found["resumed"]["metrics"] == found["expected"]["metrics"]
    assert found["reports"] == 1
    assert found["steps"] == EPOCHS
    assert found["bitwise"]
    assert found["seconds"]
    assert found["early"] == 0
    assert found["left"] == 0


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        ("a_damaged_checkpoint", "BadZipFile"),
        ("a_checkpoint_with_a_flipped_bit", "ValueError"),
        ("a_checkpoint_of_something_else", "RuntimeError"),
    ],
)
def test_a_damaged_checkpoint_is_not_used(sealed: dict[str, Any], damage: str, kind: str) -> None:
    found = sealed[damage]
    assert finished(found["last"])
    assert found["reports"] == len(EPOCHS)
    assert found["last"]["metrics"] == sealed["a_checkpoint"]["expected"]["metrics"]
    told = f"checkpoint {found['path']} is damaged ({kind}): the stage starts anew"
    assert found["notices"] == [told]
    assert found.get("gone", True)


def test_storage_that_cannot_be_written_is_told_apart(sealed: dict[str, Any]) -> None:
    found = sealed["storage_that_is_full"]
    assert found["status"] == "failed"
    assert found["storage_failed"]
    told = f"cannot write checkpoint {found['path']}: [Errno 20] Not a directory: "
    assert found["reason"].startswith(told)


def test_a_checkpoint_that_does_not_fit_says_why(sealed: dict[str, Any]) -> None:
    for found in sealed["a_checkpoint_that_does_not_fit"]:
        assert found["storage_failed"]
        assert found["reason"].startswith("cannot write checkpoint")
        assert found["reason"].endswith("File too large")
        assert found["then"] == ["train of ce goes on from epoch 1 of 3"], "the one before is whole"


def test_a_gpu_that_torch_does_not_see_is_told_once(sealed: dict[str, Any]) -> None:
    (notice,) = sealed["a_gpu_that_torch_does_not_see"]
    place, _, said = notice.partition(": ")
    assert place == os.uname().nodename
    assert said == "torch sees no GPU there: trials that ask for one compute on the CPU"


@pytest.mark.parametrize(("within", "name"), [(True, "n7"), (False, "")])
def test_a_process_within_ray_knows_its_node(
    monkeypatch: pytest.MonkeyPatch, within: bool, name: str
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: within)
    context = SimpleNamespace(get_node_id=lambda: "n7", node_id="n7")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    assert node_here() == name


def test_resources_decide_device_and_threads(sealed: dict[str, Any]) -> None:
    places, shares = sealed["devices"]
    assert places == ["cpu", "cuda:0"]
    assert shares == [0.5, 1.0]
    assert sealed["threads"] == [1, 2, 1]


def test_a_task_is_opened_where_the_trial_at_hand_computes(sealed: dict[str, Any]) -> None:
    assert sealed["one_task_on_two_devices"] == ["cpu", "cuda:0", "cpu"]


def test_a_gpu_holds_one_task_and_is_let_go_with_the_trial(sealed: dict[str, Any]) -> None:
    found = sealed["tasks_at_hand"]
    assert found["kept"] == [2, 1, 1]
    assert found["told"] == [False, False, True, False, False, True, True, True, True]
    assert found["freed"] == 1
