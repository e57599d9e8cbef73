"""What is removed from a storage folder, and what a kept sweep still needs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from orchestrator.cli import main
from orchestrator.storage.events import SweepEnded, from_fields
from orchestrator.storage.garbage import Removal, collect_garbage
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import Storage
from trainables.common.errors import InputError
from trainables.store.artifacts import ArtifactStore

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


def write_checkpoint(store: ArtifactStore) -> Path:
    path = store.checkpoint("train", TRAIN_B).path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"state")
    return path


def trial(key: str, study: str, stage: str, artifact: str, role: str = "search") -> list[Any]:
    opened = {"event": "study_opened", "study": study, "task": "t", "recipe": study[2:]}
    started = {"event": "trial_started", "study": study, "number": 0, "key": key, "role": role}
    ended = {"event": "trial_finished", "key": key, "status": "finished", "metrics": {}}
    return [
        {**opened, "trials": 1, "row": True},
        {**started, "seed": 0, "stage": stage, "configuration": {}},
        {**ended, "artifact": artifact},
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Callable[..., Path]:
    def add(name: str, *events: dict[str, Any], status: str = "finished") -> Path:
        folder = tmp_path / "sweeps" / name
        started = {"event": "sweep_started", "sweep": name, "sweep_id": name}
        with Journal(folder / "journal.jsonl") as journal:
            journal.append(from_fields({**started, "spec": {}, "provenance": {}}))
            for event in events:
                journal.append(from_fields(event))
            if status:
                journal.append(SweepEnded(status=status))
        document = f"{{name: {name}, recipes: [ce], tasks: [{{dataset: digits, model: convnet, "
        (folder / "sweep.yaml").write_text(document + "protocol: digits}]}")
        return folder

    return add


def left(store: ArtifactStore) -> set[str]:
    return {path.parent.name for path in store.root.glob("*/*/*/manifest.json")}


def test_what_was_not_chosen_goes_and_the_whole_chain_of_the_chosen_stays(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    calibrated, predicted, train = "ca" * 32, "fa" * 32, "a0" * 32
    write(store, "calibrate", calibrated, request={"upstream": REFINE, "upstream_stage": "refine"})
    write(store, "evaluate", predicted, upstream=calibrated)
    write(store, "evaluate", "fb" * 32, upstream=TRAIN_B)
    write(store, "train", train)
    for key in (TRAIN_A, TRAIN_B):
        with store.lock("train", key):
            pass
    studies = (
        *trial("k0", "t|ls", "train", TRAIN_B),
        *trial("k1", "t|ce+macal+ts", "calibrate", calibrated),
        *trial("k2", "t|ls", "train", train),
    )
    chosen = {**CLOSED, "study": "t|ce+macal+ts", "chosen": "k1"}
    folder = sweep("one", *studies, chosen, {**CLOSED, "study": "t|ls", "chosen": "k2"})
    (folder / "plots").mkdir()
    (folder / "plots" / "history.svg").write_text("a drawing")
    told = collect_garbage(Storage(tmp_path), dry_run=True)
    assert len(left(store)) == 10
    before = dict(sizes(tmp_path))
    assert collect_garbage(Storage(tmp_path)) == told
    assert left(store) == {TRAIN_A, train, REFINE, calibrated, EVALUATED, predicted}
    after = dict(sizes(tmp_path))
    assert [path.name for path in store.root.glob("*/*/*.lock")] == [f"{TRAIN_A}.lock"]
    assert [(kind.kind, kind.removed, kind.kept) for kind in told] == [
        ("calibrate", 0, 1),
        ("evaluate", 1, 2),
        ("features", 2, 0),
        ("refine", 0, 1),
        ("train", 1, 2),
        ("sweeps", 0, 1),
    ]
    for kind in told:
        was, is_now = before[kind.kind], after.get(kind.kind, 0)
        assert (kind.bytes_removed, kind.bytes_kept) == (was - is_now, is_now)


def sizes(storage: Path) -> Iterator[tuple[str, int]]:
    """Yield the bytes of a storage's artifacts and sweeps by kind, without locks."""
    for folder in (*(storage / "artifacts").glob("*/"), storage / "sweeps"):
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
        yield folder.name, sum(path.stat().st_size for path in files)


def test_the_predictions_of_a_published_default_stay_though_its_network_goes(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    default = "de" * 32
    write(store, "evaluate", default, upstream=TRAIN_B)
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    measured = {"event": "evaluated", "key": "k0", "study": "t|ce", "seed": 0, "metrics": {}}
    sweep("one", *both, CLOSED, {**measured, "default_predictions": default})
    collect_garbage(Storage(tmp_path))
    assert left(store) == {TRAIN_A, default}


EVERYTHING = {TRAIN_A, TRAIN_B, FEATURES_A, FEATURES_B, REFINE, EVALUATED}


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
@pytest.mark.parametrize(
    ("status", "expected"), [("finished", {TRAIN_A, TRAIN_B}), ("interrupted", EVERYTHING)]
)
def test_each_of_several_kept_sweeps_keeps_what_it_needs(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    names: tuple[str, str],
    status: str,
    expected: set[str],
) -> None:
    other, defaults = "a0" * 32, ("d0" * 32, "d1" * 32)
    write(store, "train", other)
    for key in defaults:
        write(store, "evaluate", key, upstream=other)
    measured = {"event": "evaluated", "key": "k0", "study": "t|ce", "seed": 0, "metrics": {}}
    first, second = ({**measured, "default_predictions": key} for key in defaults)
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", other))
    sweep(names[0], *both, CLOSED, first)
    sweep(names[1], *trial("k0", "t|ce", "train", TRAIN_B), second, status=status)
    collect_garbage(Storage(tmp_path))
    assert left(store) == expected.union(defaults)


@pytest.mark.parametrize("status", ["", "interrupted"])
@pytest.mark.parametrize("trials", [0, 1, 2])
def test_a_sweep_that_has_not_ended_keeps_all_that_may_be_its_own(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], trials: int, status: str
) -> None:
    """Started only, killed at any moment, or with a journal that was cut at the end of a line."""
    checkpoint = write_checkpoint(store)
    both = (trial("k0", "t|ce", "train", TRAIN_A), trial("k1", "t|ce", "train", TRAIN_B))
    sweep("one", *(event for events in both[:trials] for event in events), status=status)
    told = {kind.kind: kind for kind in collect_garbage(Storage(tmp_path))}
    assert left(store) == EVERYTHING
    assert checkpoint.exists()
    assert told["checkpoints"] == Removal("checkpoints", 0, 1, 0, 5)


def test_an_open_sweep_does_not_need_what_its_closed_studies_have_not_chosen(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    sweep("one", *both, CLOSED, status="interrupted")
    collect_garbage(Storage(tmp_path))
    assert left(store) == EVERYTHING - {TRAIN_B, FEATURES_B}


def test_a_study_that_was_opened_again_may_choose_another_trial(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    first = (*trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    again = trial("k1", "t|ce", "train", TRAIN_B)
    sweep("one", *first, *again, status="interrupted")
    collect_garbage(Storage(tmp_path))
    assert left(store) == EVERYTHING


@pytest.mark.parametrize("lines", range(1, 8))
def test_wherever_a_journal_is_cut_nothing_that_was_needed_goes(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], lines: int
) -> None:
    refined = {**CLOSED, "study": "t|ce+macal", "chosen": "k2"}
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    folder = sweep("one", *both, CLOSED, *trial("k2", "t|ce+macal", "refine", REFINE), refined)
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    collect_garbage(Storage(tmp_path))
    assert {TRAIN_A, REFINE, EVALUATED} <= left(store)


def test_what_the_machine_failed_may_change_the_choice(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    _, started, ended = trial("k2", "t|ce", "train", "")
    failed = (started, {**ended, "status": "failed", "fault": "machine"})
    sweep("one", *both, *failed, CLOSED)
    collect_garbage(Storage(tmp_path))
    assert left(store) == EVERYTHING
    sweep("one", *trial("k2", "t|ce", "train", ""), CLOSED)
    collect_garbage(Storage(tmp_path))
    assert TRAIN_B not in left(store)


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


TOLD = {
    lose: " has no journal.jsonl, so what it needs is unknown: ",
    empty: ": its journal.jsonl is empty: ",
    tear: ": its journal.jsonl is empty: ",
    flip: ": journal {file}, line {line}: damaged, it does not match its checksum: ",
}


@pytest.mark.parametrize("damage", TOLD)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_sweep_whose_journal_says_nothing_is_not_taken_for_nothing(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    dry_run: bool,
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    file = two / "journal.jsonl"
    content = file.read_bytes()
    damage(file)
    command = ["gc", "--storage", str(tmp_path), *(["--dry-run"] if dry_run else [])]
    assert main(command) == 2
    line = content[: len(content) // 2].count(b"\n") + 1
    assert capsys.readouterr().err == (
        f"calsweep: sweep 'two'{TOLD[damage].format(file=file, line=line)}put its journal back, go "
        "on with `calsweep run --resume two`, or give the sweep up with --drop two\n"
    )
    assert left(store) == EVERYTHING

    assert main([*command, "--drop", "two"]) == 0
    assert left(store) == (EVERYTHING if dry_run else {TRAIN_A})
    assert two.exists() == dry_run


@pytest.mark.parametrize("mark", ["sweep.yaml", "journal.jsonl"])
def test_whatever_is_left_of_a_sweep_can_be_dropped(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], mark: str
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    (two / mark).unlink()
    collect_garbage(Storage(tmp_path), drop=["two"])
    assert left(store) == {TRAIN_A}
    assert not two.exists()


@pytest.mark.parametrize("name", ["../sweeps/one", "..", ".", "", "started"])
def test_nothing_but_a_sweep_can_be_dropped(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], name: str
) -> None:
    for other in ("two", "one"):
        sweep(other, *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    (tmp_path / "sweeps" / "started").mkdir()
    (tmp_path / "sweeps" / "started" / "run.lock").touch()  # Refused before it began.
    with pytest.raises(InputError) as refusal:
        collect_garbage(Storage(tmp_path), drop=[name])
    assert str(refusal.value) == f"no sweep {name!r} in {tmp_path}/sweeps; there are: one, two"
    collect_garbage(Storage(tmp_path))


def test_where_nothing_has_begun_nothing_can_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    with pytest.raises(InputError, match=r"there are: none$"):
        collect_garbage(Storage(tmp_path), drop=["one"])


def test_where_nothing_is_stored_nothing_goes(tmp_path: Path, sweep: Callable[..., Path]) -> None:
    (tmp_path / "sweeps").mkdir()
    assert collect_garbage(Storage(tmp_path)) == []
    size = sum(path.stat().st_size for path in sweep("one").iterdir())
    assert collect_garbage(Storage(tmp_path)) == [Removal("sweeps", 0, 1, 0, size)]


@pytest.mark.parametrize("content", ["{", "[1]", "null", '"text"', '{"request": "text"}'])
def test_a_damaged_record_ends_its_chain_and_nothing_else(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], content: str
) -> None:
    sweep("one", *trial("k0", "t|ce", "refine", REFINE), CLOSED)
    (store.path("refine", REFINE) / "record.json").write_text(content)
    collect_garbage(Storage(tmp_path))
    assert left(store) == {REFINE, EVALUATED}


def test_what_somebody_took_away_is_not_missed(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "refine", REFINE), CLOSED)
    shutil.rmtree(store.path("refine", REFINE))
    collect_garbage(Storage(tmp_path))
    assert left(store) == {EVALUATED}


def test_a_dropped_sweep_takes_what_it_names_while_another_one_is_open(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), status="interrupted")
    sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    collect_garbage(Storage(tmp_path), drop=["two"])
    assert left(store) == EVERYTHING - {TRAIN_B, FEATURES_B}


def test_a_sweep_that_failed_has_ended_too(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED, status="failed")
    collect_garbage(Storage(tmp_path))
    assert left(store) == {TRAIN_A}


def test_further_seeds_of_the_chosen_stay(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    seed = trial("k1", "t|ce", "train", TRAIN_B, role="seed")
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED, *seed)
    collect_garbage(Storage(tmp_path))
    assert left(store) == {TRAIN_A, TRAIN_B}


def test_a_dropped_sweep_goes_with_what_only_it_needs(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    collect_garbage(Storage(tmp_path), drop=["two"])
    assert left(store) == {TRAIN_A}
    assert not two.exists()
    assert (tmp_path / "sweeps" / "one").exists()


def test_several_sweeps_are_dropped_at_once(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    artifacts = {"one": TRAIN_A, "two": TRAIN_B, "three": REFINE}
    for name, key in artifacts.items():
        sweep(name, *trial("k0", "t|ce", "refine" if key == REFINE else "train", key), CLOSED)
    collect_garbage(Storage(tmp_path), drop=iter(["three", "one"]))
    assert left(store) == {TRAIN_B}
    assert [path.name for path in (tmp_path / "sweeps").iterdir()] == ["two"]


def test_a_sweep_that_is_dropped_twice_counts_once(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    dry = ["gc", "--storage", str(tmp_path), "--dry-run"]
    told = []
    for times in (1, 2):
        assert main([*dry, *["--drop", "two"] * times]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert [line.split()[::3] for line in told[1].splitlines()[-2:-1]] == [["sweeps", "1"]]
    found = collect_garbage(Storage(tmp_path), drop=["two", "two"])
    assert [(kind.removed, kind.kept) for kind in found if kind.kind == "sweeps"] == [(1, 1)]
    assert left(store) == {TRAIN_A}


def test_what_is_no_artifact_is_left_alone(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    photos = tmp_path / "elsewhere" / "photos"
    photos.mkdir(parents=True)
    (store.root / "train" / "home").symlink_to(photos.parent)
    told = collect_garbage(Storage(tmp_path))
    assert [(kind.removed, kind.kept) for kind in told if kind.kind == "train"] == [(1, 1)]
    assert photos.is_dir()


def test_every_chain_stays_whole(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    events: list[Any] = []
    for number in range(5):
        train, refine = (f"{number}{digit}" * 32 for digit in "ab")
        write(store, "train", train)
        write(store, "refine", refine, request={"upstream": train, "upstream_stage": "train"})
        study = f"t{number}|ce"
        events += trial(f"k{number}", study, "refine", refine)
        events.append({**CLOSED, "study": study, "chosen": f"k{number}"})
    sweep("one", *events)
    collect_garbage(Storage(tmp_path))
    assert left(store) == {f"{number}{digit}" * 32 for number in range(5) for digit in "ab"}


def test_what_cannot_be_removed_is_named(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    place = store.path("train", TRAIN_B)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert main(["gc", "--storage", str(tmp_path)]) == 2
    told = capsys.readouterr().err.strip()
    assert told == (f"calsweep: {place} cannot be removed: Cannot call rmtree on a symbolic link")
    assert place.is_symlink()


def test_a_file_or_lock_that_cannot_be_removed_is_named(
    tmp_path: Path,
    store: ArtifactStore,
    sweep: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    checkpoint = write_checkpoint(store)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("it is held")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(InputError) as refusal:
            collect_garbage(Storage(tmp_path))
    assert str(refusal.value) == f"{checkpoint} cannot be removed: it is held"
    place = store.path("train", TRAIN_B)
    place.with_suffix(".lock").mkdir()
    with pytest.raises(InputError, match=r"cannot be removed: .*Is a directory: .*lock"):
        collect_garbage(Storage(tmp_path))


def test_checkpoints_and_old_drafts_go(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    checkpoint = write_checkpoint(store)
    old, young = (store.root / "train" / "aa" / f"{TRAIN_A}.{name}.tmp" for name in ("0", "1"))
    file = checkpoint.with_name("unfinished.tmp")
    old.mkdir()
    young.mkdir()
    file.touch()
    hour = time.time() - 3600
    for path in (old, file):
        os.utime(path, (hour - 60, hour - 60))
    os.utime(young, (hour + 60, hour + 60))
    told = {kind.kind: kind for kind in collect_garbage(Storage(tmp_path))}
    assert not checkpoint.exists()
    assert not old.exists()
    assert not file.exists()
    assert young.exists()
    assert (told["drafts"].removed, told["drafts"].kept) == (2, 1)
    assert (told["train"].removed, told["train"].kept) == (1, 1)
    assert told["checkpoints"] == Removal("checkpoints", 1, 0, 5, 0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_running_sweep_is_not_dropped(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path], dry_run: bool
) -> None:
    folder = sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    with FileLock(folder / "run.lock"), pytest.raises(InputError) as refusal:
        collect_garbage(Storage(tmp_path), ["one"], dry_run)
    assert str(refusal.value) == "sweep 'one' is running: `calsweep cancel` stops it"
    assert folder.exists()
    assert left(store) == EVERYTHING


def test_beside_a_running_sweep_only_old_garbage_goes(
    tmp_path: Path, store: ArtifactStore, sweep: Callable[..., Path]
) -> None:
    found, beaten, mine = "f0" * 32, "be" * 32, "a1" * 32
    for key in (found, beaten, mine):
        write(store, "train", key)
    named = [
        event
        for number, key in enumerate((TRAIN_A, TRAIN_B, found, beaten))
        for event in trial(f"k{number}", "t|ce", "train", key)
    ]
    sweep("old", *named, CLOSED)
    folder = sweep("now", *trial("k0", "t|ls", "train", TRAIN_B), status="")
    for manifest in store.root.rglob("manifest.json"):
        os.utime(manifest, (0, 0))
    assert store.find("train", found) is not None  # As a worker of the running sweep does.
    with FileLock(folder / "run.lock"):
        collect_garbage(Storage(tmp_path))
    # Chosen, named by the running one or by none, and what it just found.
    assert EVERYTHING | {mine, found} == left(store)


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
