"""What is removed from a storage folder, and what a kept sweep still needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from orchestrator.cli import main
from orchestrator.garbage import collect_garbage
from orchestrator.journal import Journal
from trainables.artifacts import ArtifactStore
from trainables.errors import InputError

TRAIN_A, TRAIN_B, REFINE = "aa" * 32, "bb" * 32, "cc" * 32
FEATURES_A, FEATURES_B, EVALUATED = "dd" * 32, "ee" * 32, "ff" * 32
CLOSED = {"event": "study_closed", "study": "t|ce", "chosen": "k0", "finished": 2, "failed": 0}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """Return two trainings, the features of both, a refinement of one and its evaluation."""
    store = ArtifactStore(tmp_path / "artifacts")
    write(store, "train", TRAIN_A)
    write(store, "train", TRAIN_B)
    write(store, "features", FEATURES_A, upstream=TRAIN_A)
    write(store, "features", FEATURES_B, upstream=TRAIN_B)
    write(store, "refine", REFINE, request={"upstream": TRAIN_A, "upstream_stage": "train"})
    write(store, "evaluate", EVALUATED, upstream=REFINE)
    return store


def write(store: ArtifactStore, stage: str, key: str, **record: Any) -> None:
    store.write(stage, key, {"weights": {"w": torch.zeros(100)}}, record)


def trial(key: str, study: str, stage: str, artifact: str, role: str = "search") -> list[Any]:
    started = {"event": "trial_started", "study": study, "number": 0, "key": key, "role": role}
    ended = {"event": "trial_finished", "key": key, "status": "finished", "metrics": {}}
    return [
        {**started, "seed": 0, "stage": stage, "configuration": {}},
        {**ended, "artifact": artifact},
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Path]:
    def add(name: str, *events: dict[str, Any]) -> Path:
        folder = tmp_path / "sweeps" / name
        with Journal(folder / "journal.jsonl") as journal:
            for event in events:
                journal.append(event)
        document = f"{{name: {name}, recipes: [ce], tasks: [{{dataset: digits, model: convnet, "
        (folder / "sweep.yaml").write_text(document + "protocol: digits}]}")
        return folder

    return add


def left(store: ArtifactStore) -> set[str]:
    return {path.parent.name for path in store.root.glob("*/*/*/manifest.json")}


def test_what_was_not_chosen_goes_and_the_whole_chain_of_the_chosen_stays(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    refined = {**CLOSED, "study": "t|ce+macal", "chosen": "k2"}
    studies = (
        *trial("k0", "t|ce", "train", TRAIN_A),
        *trial("k1", "t|ce", "train", TRAIN_B),
        *trial("k2", "t|ce+macal", "refine", REFINE),
    )
    sweep("one", *studies, CLOSED, refined)
    told = collect_garbage(tmp_path, dry_run=True)
    assert len(left(store)) == 6
    assert collect_garbage(tmp_path) == told
    assert left(store) == {TRAIN_A, REFINE, EVALUATED}
    counts = {kind.kind: (kind.removed, kind.kept) for kind in told}
    assert counts["train"] == (1, 1)
    assert counts["features"] == (2, 0)
    assert all(kind.bytes_removed > 400 for kind in told if kind.removed)


def test_an_unfinished_study_keeps_everything_of_its_own(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    collect_garbage(tmp_path)
    assert left(store) == {TRAIN_A, TRAIN_B, FEATURES_A, FEATURES_B}


def test_further_seeds_of_the_chosen_stay(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    seed = trial("k1", "t|ce", "train", TRAIN_B, role="seed")
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED, *seed)
    collect_garbage(tmp_path)
    assert left(store) == {TRAIN_A, TRAIN_B}


def test_a_dropped_sweep_goes_with_what_only_it_needs(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    collect_garbage(tmp_path, drop=["two"])
    assert left(store) == {TRAIN_A}
    assert not two.exists()
    assert (tmp_path / "sweeps" / "one").exists()


def test_checkpoints_and_old_drafts_go(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    checkpoint = store.checkpoint("train", TRAIN_B)
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"state")
    old, young = (store.root / "train" / "aa" / f"{name}.tmp" for name in ("old", "young"))
    old.mkdir()
    young.mkdir()
    os.utime(old, (0, 0))
    collect_garbage(tmp_path)
    assert not checkpoint.exists()
    assert not old.exists()
    assert young.exists()


def test_a_running_sweep_is_left_alone(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    folder = sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    with FileLock(folder / "run.lock"), pytest.raises(InputError, match="'one' is running"):
        collect_garbage(tmp_path)
    assert len(left(store)) == 6


def test_the_command_says_how_much(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    assert main(["gc", "--storage", str(tmp_path)]) == 0
    assert "freed" in capsys.readouterr().out
    assert main(["gc", "--storage", str(tmp_path), "--drop", "none"]) == 2
    assert "no sweep 'none'" in capsys.readouterr().err
    assert main(["gc", "--storage", str(tmp_path / "nowhere")]) == 2
