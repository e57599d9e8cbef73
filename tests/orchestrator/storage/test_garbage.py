import os
import shutil
import time
from collections.abc import Iterable, Iterator
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
from trainables.common.stages import ArtifactRef

TRAIN_A, TRAIN_B, REFINE = "aa" * 32, "bb" * 32, "cc" * 32
FEATURES_A, FEATURES_B, EVALUATED = "dd" * 32, "ee" * 32, "ff" * 32
CLOSED = {"event": "study_closed", "study": "t|ce", "chosen": "k0", "finished": 2, "failed": 0}


class Room:
    """A storage: two trainings, the features of both, a refinement of one and its evaluation."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.storage = folder, Storage(folder)
        self.store = self.storage.store()
        self.write("train", TRAIN_A)
        self.write("train", TRAIN_B)
        self.write("features", FEATURES_A, upstream=TRAIN_A)
        self.write("features", FEATURES_B, upstream=TRAIN_B)
        self.write("refine", REFINE, request={"upstream": TRAIN_A, "upstream_stage": "train"})
        self.write("evaluate", EVALUATED, upstream=REFINE)

    def write(self, stage: str, key: str, **record: Any) -> None:
        self.store.write(ArtifactRef(stage, key), {"weights": {"w": torch.zeros(100)}}, record)

    def write_checkpoint(self) -> Path:
        path = self.store.checkpoint(ArtifactRef("train", TRAIN_B)).path
        path.parent.mkdir(parents=True)
        path.write_bytes(b"state")
        return path

    def sweep(self, name: str, *events: dict[str, Any], status: str = "finished") -> Path:
        folder = self.folder / "sweeps" / name
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

    def collect(self, drop: Iterable[str] = (), dry_run: bool = False) -> list[Removal]:
        return collect_garbage(self.storage, drop, dry_run)

    def left(self) -> set[str]:
        return {path.parent.name for path in self.store.root.glob("*/*/*/manifest.json")}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def trial(key: str, study: str, stage: str, artifact: str, role: str = "search") -> list[Any]:
    opened = {"event": "study_opened", "study": study, "task": "t", "recipe": study[2:]}
    started = {"event": "trial_started", "study": study, "number": 0, "key": key, "role": role}
    ended = {"event": "trial_finished", "key": key, "status": "finished", "metrics": {}}
    return [
        {**opened, "trials": 1, "row": True},
        {**started, "seed": 0, "stage": stage, "configuration": {}},
        {**ended, "artifact": artifact},
    ]


def test_gc_keeps_the_whole_chain_of_a_chosen_trial_and_removes_the_rest(room: Room) -> None:
    calibrated, predicted, train = "ca" * 32, "fa" * 32, "a0" * 32
    room.write("calibrate", calibrated, request={"upstream": REFINE, "upstream_stage": "refine"})
    room.write("evaluate", predicted, upstream=calibrated)
    room.write("evaluate", "fb" * 32, upstream=TRAIN_B)
    room.write("train", train)
    for key in (TRAIN_A, TRAIN_B):
        with room.store.lock(ArtifactRef("train", key)):
            pass
    studies = (
        *trial("k0", "t|ls", "train", TRAIN_B),
        *trial("k1", "t|ce+macal+ts", "calibrate", calibrated),
        *trial("k2", "t|ls", "train", train),
    )
    chosen = {**CLOSED, "study": "t|ce+macal+ts", "chosen": "k1"}
    folder = room.sweep("one", *studies, chosen, {**CLOSED, "study": "t|ls", "chosen": "k2"})
    (folder / "plots").mkdir()
    (folder / "plots" / "history.svg").write_text("a drawing")
    told = room.collect(dry_run=True)
    assert len(room.left()) == 10
    before = dict(sizes(room.folder))
    assert room.collect() == told
    assert room.left() == {TRAIN_A, train, REFINE, calibrated, EVALUATED, predicted}
    after = dict(sizes(room.folder))
    assert [path.name for path in room.store.root.glob("*/*/*.lock")] == [f"{TRAIN_A}.lock"]
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
    for folder in (*(storage / "artifacts").glob("*/"), storage / "sweeps"):
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
        yield folder.name, sum(path.stat().st_size for path in files)


def test_the_predictions_of_a_published_default_stay_though_its_network_goes(room: Room) -> None:
    default = "de" * 32
    room.write("evaluate", default, upstream=TRAIN_B)
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    measured = {"event": "evaluated", "key": "k0", "study": "t|ce", "seed": 0, "metrics": {}}
    room.sweep("one", *both, CLOSED, {**measured, "default_predictions": default})
    room.collect()
    assert room.left() == {TRAIN_A, default}


def scored(key: str, objective: float, **error: float) -> dict[str, Any]:
    return {"event": "trial_scored", "key": key, "objective": objective, **error}


@pytest.mark.parametrize(
    ("margin", "errors", "expected"),
    [
        ({}, {}, {TRAIN_A}),
        ({"margin": {"difference": 0.1, "error": 0.2}}, {}, {TRAIN_A, TRAIN_B}),
        ({}, {"error": 0.01}, {TRAIN_A, TRAIN_B}),
    ],
)
def test_trials_whose_rows_the_choice_has_compared_stay(room, margin, errors, expected):
    trials = (*FIRST, *SECOND, scored("k0", 0.2), scored("k1", 0.1, **errors))
    room.sweep("one", *trials, {**CLOSED, **margin})
    room.collect()
    assert room.left() & {TRAIN_A, TRAIN_B} == expected


def test_a_search_that_may_stop_early_keeps_all_its_rows(room: Room) -> None:
    opened, *rest = (*FIRST, *SECOND, scored("k0", 0.2), scored("k1", 0.1))
    room.sweep("one", {**opened, "rule": {"stop": "auto"}}, *rest, CLOSED)
    room.collect()
    assert {TRAIN_A, TRAIN_B} <= room.left()


def test_a_published_default_stays_until_a_resumed_sweep_has_measured_it(room: Room) -> None:
    both = (*trial("k1", "t|ce", "train", TRAIN_B), *trial("k0", "t|ce", "train", TRAIN_A))
    room.sweep("one", *both, CLOSED, status="interrupted")
    room.collect()
    assert {TRAIN_A, TRAIN_B} <= room.left()
    measured = {"event": "evaluated", "key": "k0", "study": "t|ce", "seed": 0, "metrics": {}}
    room.sweep("one", {**measured, "default_predictions": "de" * 32}, status="interrupted")
    room.collect()
    assert TRAIN_B not in room.left()


EVERYTHING = {TRAIN_A, TRAIN_B, FEATURES_A, FEATURES_B, REFINE, EVALUATED}
FIRST, SECOND = trial("k0", "t|ce", "train", TRAIN_A), trial("k1", "t|ce", "train", TRAIN_B)
FURTHER = trial("k1", "t|ce", "train", TRAIN_B, role="seed")


@pytest.mark.parametrize(
    ("events", "status", "expected"),
    [
        pytest.param([*FIRST, CLOSED], "failed", {TRAIN_A}, id="a failed sweep has ended too"),
        pytest.param([*FIRST, CLOSED, *FURTHER], "finished", {TRAIN_A, TRAIN_B}, id="seeds stay"),
        pytest.param(
            [*FIRST, *SECOND, CLOSED],
            "interrupted",
            EVERYTHING - {TRAIN_B, FEATURES_B},
            id="an open sweep needs not what closed studies have not chosen",
        ),
        pytest.param(
            [*FIRST, CLOSED, *SECOND],
            "interrupted",
            EVERYTHING,
            id="a study that was opened again may choose another trial",
        ),
    ],
)
def test_gc_keeps_the_artifacts_that_a_sweep_may_need(room, events, status, expected):
    room.sweep("one", *events, status=status)
    room.collect()
    assert room.left() == expected


@pytest.mark.parametrize("names", [("one", "two"), ("two", "one")])
@pytest.mark.parametrize(
    ("status", "expected"), [("finished", {TRAIN_A, TRAIN_B}), ("interrupted", EVERYTHING)]
)
def test_gc_keeps_the_artifacts_of_each_kept_sweep(room, names, status, expected):
    other, defaults = "a0" * 32, ("d0" * 32, "d1" * 32)
    room.write("train", other)
    for key in defaults:
        room.write("evaluate", key, upstream=other)
    measured = {"event": "evaluated", "key": "k0", "study": "t|ce", "seed": 0, "metrics": {}}
    first, second = ({**measured, "default_predictions": key} for key in defaults)
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", other))
    room.sweep(names[0], *both, CLOSED, first)
    room.sweep(names[1], *trial("k0", "t|ce", "train", TRAIN_B), second, status=status)
    room.collect()
    assert room.left() == expected.union(defaults)


@pytest.mark.parametrize("status", ["", "interrupted"])
@pytest.mark.parametrize("trials", [0, 1, 2])
def test_gc_keeps_everything_that_an_unfinished_sweep_may_own(room, trials, status):
    """Started only, killed at any moment, or with a journal that was cut at the end of a line."""
    checkpoint = room.write_checkpoint()
    both = (trial("k0", "t|ce", "train", TRAIN_A), trial("k1", "t|ce", "train", TRAIN_B))
    room.sweep("one", *(event for events in both[:trials] for event in events), status=status)
    told = {kind.kind: kind for kind in room.collect()}
    assert room.left() == EVERYTHING
    assert checkpoint.exists()
    assert told["checkpoints"] == Removal("checkpoints", 0, 1, 0, 5)


@pytest.mark.parametrize("lines", range(1, 8))
def test_gc_keeps_needed_artifacts_if_the_journal_is_cut_anywhere(room: Room, lines: int) -> None:
    refined = {**CLOSED, "study": "t|ce+macal", "chosen": "k2"}
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    folder = room.sweep("one", *both, CLOSED, *trial("k2", "t|ce+macal", "refine", REFINE), refined)
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    room.collect()
    assert {TRAIN_A, REFINE, EVALUATED} <= room.left()


def test_gc_keeps_artifacts_while_a_machine_fault_may_change_the_choice(room: Room) -> None:
    both = (*trial("k0", "t|ce", "train", TRAIN_A), *trial("k1", "t|ce", "train", TRAIN_B))
    _, started, ended = trial("k2", "t|ce", "train", "")
    failed = (started, {**ended, "status": "failed", "fault": "machine"})
    room.sweep("one", *both, *failed, CLOSED)
    room.collect()
    assert room.left() == EVERYTHING
    room.sweep("one", *trial("k2", "t|ce", "train", ""), CLOSED)
    room.collect()
    assert TRAIN_B not in room.left()


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
    lose: " has no journal.jsonl, so its artifacts are unknown: ",
    empty: ": its journal.jsonl is empty: ",
    tear: ": its journal.jsonl is empty: ",
    flip: ": journal {file}, line {line}: damaged, it does not match its checksum: ",
}


@pytest.mark.parametrize("damage", TOLD)
@pytest.mark.parametrize("dry_run", [True, False])
def test_gc_refuses_a_sweep_with_a_damaged_journal(room, capsys, damage, dry_run):
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = room.sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    file = two / "journal.jsonl"
    content = file.read_bytes()
    damage(file)
    command = ["storage", "gc", "--storage", str(room.folder), *(["--dry-run"] if dry_run else [])]
    assert main(command) == 2
    line = content[: len(content) // 2].count(b"\n") + 1
    assert capsys.readouterr().err == (
        f"calsweep: sweep 'two'{TOLD[damage].format(file=file, line=line)}put its journal back, "
        f"resume it with `calsweep run --resume two --storage {room.folder}`, or give the sweep up "
        "with --drop two\n"
    )
    assert room.left() == EVERYTHING

    assert main([*command, "--drop", "two"]) == 0
    assert room.left() == (EVERYTHING if dry_run else {TRAIN_A})
    assert two.exists() == dry_run


@pytest.mark.parametrize("mark", ["sweep.yaml", "journal.jsonl"])
def test_a_sweep_with_missing_files_can_be_dropped(room: Room, mark: str) -> None:
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    two = room.sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    (two / mark).unlink()
    room.collect(drop=["two"])
    assert room.left() == {TRAIN_A}
    assert not two.exists()


@pytest.mark.parametrize("name", ["../sweeps/one", "..", ".", "", "started"])
def test_nothing_but_a_sweep_can_be_dropped(room: Room, name: str) -> None:
    for other in ("two", "one"):
        room.sweep(other, *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    (room.folder / "sweeps" / "started").mkdir()
    (room.folder / "sweeps" / "started" / "run.lock").touch()  # Refused before it began.
    with pytest.raises(InputError) as refusal:
        room.collect(drop=[name])
    assert str(refusal.value) == f"no sweep {name!r} in {room.folder}/sweeps; there are: one, two"
    room.collect()


def test_a_storage_without_sweeps_refuses_to_drop_one(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    with pytest.raises(InputError, match=r"there are: none$"):
        collect_garbage(Storage(tmp_path), drop=["one"])


def test_gc_of_an_empty_storage_removes_nothing(room: Room) -> None:
    shutil.rmtree(room.store.root)
    (room.folder / "sweeps").mkdir()
    assert room.collect() == []
    size = sum(path.stat().st_size for path in room.sweep("one").iterdir())
    assert room.collect() == [Removal("sweeps", 0, 1, 0, size)]


@pytest.mark.parametrize("content", ["{", "[1]", "null", '"text"', '{"request": "text"}'])
def test_a_damaged_record_ends_its_chain_and_nothing_else(room: Room, content: str) -> None:
    room.sweep("one", *trial("k0", "t|ce", "refine", REFINE), CLOSED)
    (room.store.path(ArtifactRef("refine", REFINE)) / "record.json").write_text(content)
    room.collect()
    assert room.left() == {REFINE, EVALUATED}


def test_gc_accepts_that_an_artifact_was_removed_by_hand(room: Room) -> None:
    room.sweep("one", *trial("k0", "t|ce", "refine", REFINE), CLOSED)
    shutil.rmtree(room.store.path(ArtifactRef("refine", REFINE)))
    room.collect()
    assert room.left() == {EVALUATED}


def test_artifacts_of_a_dropped_sweep_are_removed_while_another_one_is_open(room: Room) -> None:
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), status="interrupted")
    room.sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    room.collect(drop=["two"])
    assert room.left() == EVERYTHING - {TRAIN_B, FEATURES_B}


def test_several_sweeps_are_dropped_at_once(room: Room) -> None:
    artifacts = {"one": TRAIN_A, "two": TRAIN_B, "three": REFINE}
    for name, key in artifacts.items():
        room.sweep(name, *trial("k0", "t|ce", "refine" if key == REFINE else "train", key), CLOSED)
    room.collect(drop=iter(["three", "one"]))
    assert room.left() == {TRAIN_B}
    assert [path.name for path in (room.folder / "sweeps").iterdir()] == ["two"]


def test_a_sweep_that_is_dropped_twice_counts_once(room, capsys):
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    room.sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    dry = ["storage", "gc", "--storage", str(room.folder), "--dry-run"]
    told = []
    for times in (1, 2):
        assert main([*dry, *["--drop", "two"] * times]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert [line.split()[::3] for line in told[1].splitlines()[-2:-1]] == [["sweeps", "1"]]
    found = room.collect(drop=["two", "two"])
    assert [(kind.removed, kind.kept) for kind in found if kind.kind == "sweeps"] == [(1, 1)]
    assert room.left() == {TRAIN_A}


def test_gc_leaves_files_that_are_not_artifacts(room: Room) -> None:
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    photos = room.folder / "elsewhere" / "photos"
    photos.mkdir(parents=True)
    (room.store.root / "train" / "home").symlink_to(photos.parent)
    told = room.collect()
    assert [(kind.removed, kind.kept) for kind in told if kind.kind == "train"] == [(1, 1)]
    assert photos.is_dir()


def test_every_chain_stays_whole(room: Room) -> None:
    events: list[Any] = []
    for number in range(5):
        train, refine = (f"{number}{digit}" * 32 for digit in "ab")
        room.write("train", train)
        room.write("refine", refine, request={"upstream": train, "upstream_stage": "train"})
        study = f"t{number}|ce"
        events += trial(f"k{number}", study, "refine", refine)
        events.append({**CLOSED, "study": study, "chosen": f"k{number}"})
    room.sweep("one", *events)
    room.collect()
    assert room.left() == {f"{number}{digit}" * 32 for number in range(5) for digit in "ab"}


def test_gc_names_a_path_that_cannot_be_removed(room, capsys):
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    place = room.store.path(ArtifactRef("train", TRAIN_B))
    place.rename(room.folder / "elsewhere")
    place.symlink_to(room.folder / "elsewhere")
    assert main(["storage", "gc", "--storage", str(room.folder)]) == 2
    told = capsys.readouterr().err.strip()
    assert told == (f"calsweep: {place} cannot be removed: Cannot call rmtree on a symbolic link")
    assert place.is_symlink()


def test_a_file_or_lock_that_cannot_be_removed_is_named(room, monkeypatch):
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    checkpoint = room.write_checkpoint()

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("it is held")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(InputError) as refusal:
            room.collect()
    assert str(refusal.value) == f"{checkpoint} cannot be removed: it is held"
    place = room.store.path(ArtifactRef("train", TRAIN_B))
    place.with_suffix(".lock").mkdir()
    with pytest.raises(InputError, match=r"cannot be removed: .*Is a directory: .*lock"):
        room.collect()


def test_checkpoints_and_old_drafts_go(room: Room) -> None:
    room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    checkpoint = room.write_checkpoint()
    old, young = (room.store.root / "train" / "aa" / f"{TRAIN_A}.{name}.tmp" for name in ("0", "1"))
    file = checkpoint.with_name("unfinished.tmp")
    old.mkdir()
    young.mkdir()
    file.touch()
    hour = time.time() - 3600
    for path in (old, file):
        os.utime(path, (hour - 60, hour - 60))
    os.utime(young, (hour + 60, hour + 60))
    told = {kind.kind: kind for kind in room.collect()}
    assert not checkpoint.exists()
    assert not old.exists()
    assert not file.exists()
    assert young.exists()
    assert (told["drafts"].removed, told["drafts"].kept) == (2, 1)
    assert (told["train"].removed, told["train"].kept) == (1, 1)
    assert told["checkpoints"] == Removal("checkpoints", 1, 0, 5, 0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_running_sweep_is_not_dropped(room: Room, dry_run: bool) -> None:
    folder = room.sweep("one", *trial("k0", "t|ce", "train", TRAIN_A), CLOSED)
    room.sweep("two", *trial("k0", "t|ce", "train", TRAIN_B), CLOSED)
    with FileLock(folder / "run.lock"), pytest.raises(InputError) as refusal:
        room.collect(["one"], dry_run)
    assert str(refusal.value) == (
        f"sweep 'one' is running: `calsweep cancel one --storage {room.folder}` stops it"
    )
    assert folder.exists()
    assert room.left() == EVERYTHING


def test_gc_removes_only_old_garbage_while_a_sweep_runs(room: Room) -> None:
    found, beaten, mine = "f0" * 32, "be" * 32, "a1" * 32
    for key in (found, beaten, mine):
        room.write("train", key)
    named = [
        event
        for number, key in enumerate((TRAIN_A, TRAIN_B, found, beaten))
        for event in trial(f"k{number}", "t|ce", "train", key)
    ]
    room.sweep("old", *named, CLOSED)
    folder = room.sweep("now", *trial("k0", "t|ls", "train", TRAIN_B), status="")
    for manifest in room.store.root.rglob("manifest.json"):
        os.utime(manifest, (0, 0))
    assert (
        room.store.find(ArtifactRef("train", found)) is not None
    )  # As a worker of the running sweep does.
    with FileLock(folder / "run.lock"):
        room.collect()
    # Chosen, named by the running one or by none, and what it just found.
    assert EVERYTHING | {mine, found} == room.left()
