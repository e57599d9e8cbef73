import csv
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from orchestrator.cli import main
from orchestrator.cli._replay import _settings
from orchestrator.replay import ReplayOutcome, ReplaySettings, read_sweeps, replay
from orchestrator.replay.output import HEADINGS, cells, draw, headings, notes, write_replay
from orchestrator.replay.recorded import _NotReplayableError, _Reader
from orchestrator.replay.run import _searches
from orchestrator.replay.settings import changed
from orchestrator.replay.simulate import Repeated, Table, repeat, simulate
from orchestrator.running.data import prepare_data
from orchestrator.search.state import SweepState
from orchestrator.storage.events import Epoch, SweepEnded, SweepStarted, TrialFinished
from orchestrator.storage.journal import Journal, iterate_events
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import parse_sweep
from tests.charts import axes_of, check_chart, is_log, layer_of, rows_of
from tests.orchestrator.tiny_sweep import compute_within
from tests.trainables.data.small_data import refusal
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.stages import ValidationRows, validation_rows

SWEEP = """
name: {name}
tasks: [{{logits: {folder}/rows.npz, split: {{test: 0.5, validation: 60}}}}]
recipes: [{recipes}]
search: {{trials: {trials}, sampler: random, keep_default: false, seed: {seed}}}
seeds: {seeds}
storage: {folder}/storage
"""
TRIALS = {"one": 4, "two": 3}
SEEDS = {"one": ("null", [0, 1]), "two": (0, [1, 2])}  # The search's own and the others.
STUDY = "rows|spline"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Two sweeps of the same study that have ended, and one that has not."""
    folder = tmp_path_factory.mktemp("replay")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 200)
    logits = 3 * (rng.normal(size=(200, 3)) + 1.5 * np.eye(3)[labels])
    np.savez(folder / "rows.npz", logits=logits.astype(np.float32), labels=labels)
    for name, trials in (*TRIALS.items(), ("open", 4)):
        seed, seeds = SEEDS.get(name, ("null", [0]))
        rows = "spline" if name == "two" else "given, spline"  # What it builds on is no row there.
        place = {"name": name, "folder": folder, "recipes": rows}
        text = SWEEP.format(**place, trials=trials, seed=seed, seeds=seeds)
        spec = parse_sweep(text, name)
        SweepFolder.of(spec).write_spec(spec)
        if name in TRIALS:
            compute_within(spec)
        else:
            with Journal(SweepFolder.of(spec).journal) as journal:
                journal.append(SweepStarted(sweep=name, sweep_id="id", spec={}, provenance={}))
    return Storage(folder / "storage")


@pytest.fixture(scope="module")
def outcome(storage: Storage) -> ReplayOutcome:
    strategies: dict[str, dict[str, Any]] = {"as run": {}, "few": {"trials": 2}}
    settings = ReplaySettings(searches=2, resample=False, budgets=(1, 2), strategies=strategies)
    told: list[Any] = []
    found = replay(storage, settings, searching=lambda *count: told.append(count))
    assert told == [(4, 8), (8, 8)]  # Two searches of a study by each of two strategies.
    assert found.skipped == {(name, "rows|given"): "nothing to search" for name in TRIALS}
    return found


def test_every_trial_of_ended_sweeps_is_read_and_measured(storage: Storage) -> None:
    told: list[Any] = []
    sweeps = read_sweeps(storage, done=lambda *count: told.append(count))
    assert [(sweep.folder.name, sweep.complete) for sweep in sweeps] == [
        ("one", True),
        ("two", True),
    ]
    assert told == [(5, 5), (4, 4)]  # The given logits are a trial too.
    for sweep in sweeps:
        assert sweep.skipped == {"rows|given": "nothing to search"}
        assert sorted(sweep.data) == [f"rows {seed}" for seed in sweep.spec.all_seeds]
        (study,) = sweep.studies
        fingerprint = sweep.ledger.studies[STUDY].fingerprint
        assert fingerprint == sweep.data["rows 0"].key != sweep.data["rows 1"].key
        assert [found.trial.number for found in study.trials] == list(
            range(TRIALS[sweep.folder.name])
        )
        assert (len(study.labels), len(study.test_labels)) == (60, 100)
        assert study.plain is not None
        assert study.plain.trial.study == "rows|given"
        for found in study.trials:
            rows = found.outputs.double()[range(100), study.test_labels]
            assert found.test["nll"] == pytest.approx(-float(rows.mean()), abs=1e-6)
        assert study.losses("nll") == {f.trial.number: f.test["nll"] for f in study.trials}
        artifacts = {f.trial.artifact: f for f in (*study.trials, study.plain)}
        assert study.by_artifact == artifacts
        seen = [(trial.key, step, metrics) for trial, step, metrics in sweep.epochs()]
        assert seen == [
            (event.key, event.step, event.metrics)
            for event in iterate_events(sweep.folder.journal, kinds=(Epoch,))
            if isinstance(event, Epoch)
        ]


def test_without_test_rows_nothing_is_measured_on_them(storage: Storage) -> None:
    (sweep,) = read_sweeps(storage, ["two"], ["spline"], test=False)
    (study,) = sweep.studies
    assert sweep.skipped == {}
    for found in study.trials:
        assert (len(found.logits), len(found.outputs), found.test) == (60, 0, {})
    assert len(study.test_labels) == 0
    settings = ReplaySettings(searches=1, validation=30, test=False, strategies={"as run": {}})
    (replayed,) = replay(storage, settings, ["two"]).sweeps
    assert [found.test for found in replayed.studies[0].trials] == [{}] * len(study.trials)


@pytest.mark.parametrize(
    ("names", "recipes", "complaint"),
    [
        (["three"], [], "no sweep 'three' in .*; there are: one, open, two$"),
        (["one", "open"], [], "sweep 'open' has not ended, so not all of its choices are known; "),
        ([], ["ts"], "no recipe 'ts' in sweep 'one'; there are: given, spline$"),
        ([], ["given"], r"can be replayed: rows\|given: nothing to search$"),
    ],
)
def test_an_error_names_sweeps_that_cannot_be_replayed(storage, names, recipes, complaint):
    with pytest.raises(InputError, match=complaint):
        read_sweeps(storage, names, recipes)


@pytest.mark.full
def test_a_replay_finds_the_data_of_every_seed_of_a_sweep_without_a_search(storage, tmp_path):
    """Its seeds draw test rows, too."""
    copy = Storage(shutil.copytree(storage.folder, tmp_path / "storage"))
    shutil.copy(storage.folder.parent / "rows.npz", tmp_path)
    rows = dict(np.load(tmp_path / "rows.npz"))  # Two tasks whose splits are the same.
    np.savez(tmp_path / "other.npz", logits=2 * rows["logits"], labels=rows["labels"])
    place = {"name": "plain", "folder": tmp_path, "recipes": "spline"}
    text = SWEEP.format(**place, trials=1, seed="null", seeds=[0, 1])
    split = "split: {test: 0.5, validation: 60}"
    other = f"{{logits: {tmp_path}/other.npz, {split}}}"
    spec = parse_sweep(text.replace("tasks: [", f"tasks: [{other}, "), "plain")
    SweepFolder.of(spec).write_spec(spec)
    compute_within(spec)
    sweeps = read_sweeps(copy, ["one", "plain"], test=False)
    assert [(sweep.complete, len(sweep.studies)) for sweep in sweeps] == [(True, 1), (True, 2)]
    found, drawn = sweeps[1].data, prepare_data(spec)
    assert {name: own.key for name, own in found.items()} == {n: d.key for n, d in drawn.items()}


def test_a_replay_without_an_ended_sweep_names_one_to_resume(storage, tmp_path):
    alone = Storage(tmp_path)
    shutil.copytree(storage.sweep("open").path, alone.sweep("open").path)
    for _ in range(2):
        assert refusal(read_sweeps, alone) == (
            "sweep 'open' has not ended, so not all of its choices are known; "
            f"resume it with `calsweep run --resume open --storage {tmp_path}`"
        )
        with Journal(alone.sweep("open").journal) as journal:
            journal.append(SweepEnded(status="interrupted"))
    with pytest.raises(InputError, match=r"can be replayed: .*spline: no finished trial$"):
        read_sweeps(alone, ["open"], test=False)  # What is not measured may go on.
    with Journal(alone.sweep("open").journal) as journal:  # Before it had opened a study.
        journal.append(SweepEnded(status="failed"))
    reasons = r"rows\|given: nothing to search; rows\|spline: no finished trial$"
    with pytest.raises(InputError, match=reasons):
        read_sweeps(alone)


def test_deleted_artifacts_cannot_be_replayed(storage: Storage, tmp_path: Path) -> None:
    copy = Storage(shutil.copytree(storage.folder, tmp_path / "copy"))
    first, second = (
        read_sweeps(copy, ["one"], test=False)[0].data[f"rows {seed}"] for seed in (0, 1)
    )
    shutil.rmtree(second.directory)
    (sweep,) = read_sweeps(copy, ["one"], test=False)
    assert (list(sweep.data), sweep.complete) == (["rows 0"], False)
    # Its searches can be judged, but not all of its own choices be made again.
    few = ReplaySettings(searches=1, validation=30, test=False, strategies={"as run": {}})
    found = replay(copy, few, ["one"])
    assert (len(found.judged) > 0, found.repeated) == (True, {})
    gone = sweep.studies[0].trials[2].trial.artifact
    shutil.rmtree(copy.store().path(ArtifactRef("calibrate", gone)))
    with pytest.raises(InputError, match=r"spline: the artifact of trial 2 is gone$"):
        read_sweeps(copy, ["one"], test=False)
    shutil.rmtree(first.directory)
    with pytest.raises(
        InputError,
        match=r"spline: its data was deleted from the storage; run the sweep there again$",
    ):
        read_sweeps(copy, ["one"], test=False)


def test_trials_that_were_pruned_are_left_out_of_a_sweep_that_failed(storage, tmp_path):
    copy = Storage(shutil.copytree(storage.folder, tmp_path / "copy"))
    file = copy.sweep("one").journal
    study = read_ledger(file).studies[STUDY]
    pruned = next(t.key for t in study.searched if t.number and t.key != study.chosen)
    events = [event for event in iterate_events(file) if isinstance(event, TrialFinished)]
    (end,) = (event for event in events if event.key == pruned)
    with Journal(file) as journal:
        journal.append(replace(end, status="pruned", artifact=None))
        journal.append(Epoch(key="of no trial", step=1, metrics={}))
        journal.append(SweepEnded(status="failed"))
    (sweep,) = read_sweeps(copy, ["one"])
    (before,) = read_sweeps(storage, ["one"], test=False)
    assert len(list(sweep.epochs())) == len(list(before.epochs()))
    left = sweep.studies[0].trials
    assert [found.trial.key for found in left] == [
        trial.key for trial in study.searched if trial.key != pruned
    ]
    losses = {found.trial.number: found.test["nll"] for found in left}
    assert sweep.studies[0].losses("nll") == losses


def test_each_search_is_judged_by_the_recorded_figures_of_its_choice(
    outcome: ReplayOutcome,
) -> None:
    order = [(row.strategy, row.sweep, row.search, row.budget) for row in outcome.judged]
    assert order == [
        (strategy, sweep, search, budget)
        for strategy, budgets in (("as run", [1, 2]), ("few", [1]))
        for sweep in ("one", "two")
        for search in (0, 1)
        for budget in [*budgets, TRIALS[sweep] if strategy == "as run" else 2]
    ]
    for row in outcome.judged:
        (sweep,) = (found for found in outcome.sweeps if found.folder.name == row.sweep)
        losses = sweep.studies[0].losses("nll")
        figures = (row.study, row.loss, row.default, row.best)
        assert figures == (STUDY, losses[row.number], losses[0], min(losses.values()))
        if row.budget == 1:
            assert row.number == 0
        # The first search draws what the sweep itself has drawn.
        if row.search == 0:
            assert row.distance == 0
            best = min(
                sweep.studies[0].trials[: row.budget],
                key=lambda found: (found.trial.objective, found.trial.number),
            )
            assert row.number == best.trial.number
        else:
            changes = outcome.settings.strategies[row.strategy]
            spec = changed(sweep.spec, row.strategy, changes)
            apart = simulate(Table(sweep.studies[0]), spec, seed=1).distances
            assert row.distance == pytest.approx(sum(apart) / len(apart)) != 0
            assert apart[0] == 0 < max(apart)
    assert all(choice.same for found in outcome.repeated.values() for choice in found)
    assert {name: len(found) for name, found in outcome.repeated.items()} == {"one": 2, "two": 2}


def test_a_replay_does_not_choose_trials_that_never_ran(storage: Storage) -> None:
    (sweep,) = read_sweeps(storage, ["one"], ["spline"], test=False)
    study = sweep.ledger.studies[STUDY]
    assert study.chosen_trial is not None
    number = study.chosen_trial.number
    del sweep.ledger.trials[study.chosen_trial.key]
    given, spline = repeat(sweep)
    assert given.same
    assert (spline.study, spline.recorded, spline.same) == (STUDY, number, False)


def test_a_summary_is_over_all_studies_of_all_sweeps(outcome: ReplayOutcome) -> None:
    finals, summaries = outcome.finals(), outcome.summaries()
    assert [(one.strategy, one.budget) for one in summaries] == [
        ("as run", 1),
        ("as run", 2),
        ("as run", 4),
        ("as run", 3),
        ("few", 1),
        ("few", 2),
    ]
    assert [one.searches for one in summaries] == [4, 4, 2, 2, 4, 4]
    for final, name in zip(finals, ("as run", "few"), strict=True):
        last = {sweep: TRIALS[sweep] if name == "as run" else 2 for sweep in TRIALS}
        rows = [r for r in outcome.judged if r.strategy == name and r.budget == last[r.sweep]]
        assert (final.strategy, final.budget, final.searches) == (name, 0, 4)
        assert final.loss == pytest.approx(sum(row.loss for row in rows) / 4)
        assert final.default == pytest.approx(sum(row.default for row in rows) / 4)
        assert final.regret == pytest.approx(sum(row.loss - row.best for row in rows) / 4)
        assert final.worse == sum(row.loss > row.default for row in rows) / 4
        assert final.kept == sum(row.number == 0 for row in rows) / 4
        assert final.distance == pytest.approx(sum(row.distance for row in rows) / 4)
        means = [sum(row.loss for row in rows if row.search == n) / 2 for n in (0, 1)]
        assert (final.low, final.high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))))
    assert finals[1] == replace(summaries[-1], budget=0)


def test_rows_that_a_search_has_not_drawn_judge_it(storage: Storage) -> None:
    sweeps = read_sweeps(storage, ["one"])
    (study,) = sweeps[0].studies
    settings = ReplaySettings(searches=1, validation=90, strategies={"as run": {}}, seed=5)
    rows = _searches(("one", study, {"as run": sweeps[0].spec}, settings, range(2, 3)))
    drawn = study.drawn(90, 7)
    assert [row.search for row in rows] == [2] * len(rows)
    assert {row.loss for row in rows} == {drawn.losses("nll")[row.number] for row in rows}
    few = settings.model_copy(update={"validation": 159})
    assert len(replay(storage, few, ["one"]).judged) == len(rows)
    assert refusal(replay, storage, few.model_copy(update={"validation": 160}), ["one"]) == (
        "validation: expected less than the 160 validation and test rows of rows|spline, because "
        "choices are scored on the other rows, got 160"
    )


def test_a_replay_reads_only_the_requested_recipes(storage: Storage) -> None:
    told: list[Any] = []
    settings = ReplaySettings(
        searches=6,
        resample=False,
        recipes=("spline",),
        strategies={"z": {"trials": 1}, "a": {"trials": 1}},
    )
    found = replay(
        storage,
        settings,
        ["two"],
        measuring=lambda *count: told.append(count),
        searching=lambda *count: told.append(count),
    )
    # Trials that are measured, then searches: five at once of each of two strategies.
    assert told == [(3, 3), (10, 12), (12, 12)]
    assert found.skipped == {}
    assert [row.strategy for row in found.judged] == ["z"] * 6 + ["a"] * 6


def test_a_study_is_replayed_where_there_was_a_choice_however_few_trials_it_had(storage):
    (sweep,) = read_sweeps(storage, ["one"], test=False)
    told: list[Any] = []
    data = dict(reversed(sweep.data.items()))
    reader = _Reader(
        storage.store(), sweep.ledger, data, lambda *count: told.append(count), 9, False
    )
    given, spline = sweep.plan
    with pytest.raises(_NotReplayableError, match=r"^nothing to search$"):
        reader.study(given)
    found = reader.study(replace(spline, trials=1))
    assert (len(found.trials), found.data) == (TRIALS["one"], data["rows 0"])
    # It is guarded by what the other study has chosen.
    chosen = sweep.ledger.studies[STUDY].chosen_trial
    guard = reader.study(replace(spline, reference=STUDY)).plain
    assert guard is not None
    assert chosen is not None
    assert (guard.trial.key, chosen.number > 0) == (chosen.key, True)
    assert told == [(5, 9), (9, 9)]


def test_pixels_are_not_replayed(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def pixels(*place: Any) -> ValidationRows:
        rows = validation_rows(*place)
        return ValidationRows(rows.logits, rows.labels, torch.arange(len(rows.labels)) // 2)

    monkeypatch.setattr("orchestrator.replay.recorded.validation_rows", pixels)
    with pytest.raises(
        InputError, match=r"spline: pixels of an image cannot be resampled as single rows$"
    ):
        read_sweeps(storage, ["one"], test=False)


def test_a_storage_without_a_sweep_says_so(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    with pytest.raises(InputError, match=r"can be replayed: there is no ended sweep$"):
        read_sweeps(Storage(tmp_path))
    with pytest.raises(InputError, match=rf"^no sweep 'one' in {tmp_path}; there are: none$"):
        read_sweeps(Storage(tmp_path), ["one"])


def test_a_sweep_that_was_never_run_is_not_replayed(storage: Storage, tmp_path: Path) -> None:
    copy = Storage(shutil.copytree(storage.folder, tmp_path / "copy"))
    copy.sweep("open").journal.unlink()
    (sweep,) = read_sweeps(copy, ["two"], test=False)
    with pytest.raises(InputError, match=r"no sweep 'open' in .*; there are: one, two$"):
        read_sweeps(copy, ["open"])
    trials = [found.trial for found in sweep.studies[0].trials]
    with Journal(copy.sweep("two").journal) as journal:
        for trial in trials:
            failed = TrialFinished(key=trial.key, status="failed", metrics={}, reason="NaN")
            journal.append(failed)
    with pytest.raises(InputError) as caught:
        read_sweeps(copy, ["two"])
    reasons = "rows|given: nothing to search; rows|spline: no finished trial"
    assert str(caught.value) == f"nothing in {copy.folder} can be replayed: {reasons}"


@pytest.mark.parametrize("status", ["running", "pruned"])
def test_a_replay_does_not_choose_a_trial_that_has_not_finished(
    storage: Storage, status: str
) -> None:
    (sweep,) = read_sweeps(storage, ["one"], ["spline"], test=False)
    chosen = sweep.ledger.studies[STUDY].chosen_trial
    assert chosen is not None
    chosen.status = status
    _, spline = repeat(sweep)
    assert (spline.recorded, spline.same) == (chosen.number, False)


def test_a_replay_uses_the_recorded_number_of_suggestions_at_once(storage, monkeypatch):
    (sweep,) = read_sweeps(storage, ["one"], test=False)
    states: list[SweepState] = []

    def remember(*given: Any, **more: Any) -> SweepState:
        states.append(SweepState(*given, **more))
        return states[-1]

    monkeypatch.setattr("orchestrator.replay.simulate.SweepState", remember)
    sweep.ledger.studies[STUDY].block = 3
    repeat(sweep)
    (state,) = states
    assert [study.search.block for study in state.studies.values()] == [1, 3]


def test_a_replay_names_a_folder_that_cannot_be_written(
    outcome: ReplayOutcome, tmp_path: Path
) -> None:
    place = tmp_path / "a" / "b"
    assert write_replay(outcome, place) == write_replay(outcome, place)
    below = place / "outcomes.csv" / "c"
    with pytest.raises(InputError, match=f"^{below} cannot be written: Not a directory$"):
        write_replay(outcome, below)


def test_a_table_has_every_metric_of_any_sweep(outcome: ReplayOutcome, tmp_path: Path) -> None:
    def told(name: str, **own: float) -> Any:
        known = outcome.sweeps[0].ledger.studies[STUDY].searched[0]
        trial = replace(known, study="größer|ts", configuration={"b": {"y": 1, "x": 2}, "a": {}})
        epoch = trial, 1, {"val_nll": 0.5, "loss": 1.0, **own}
        return SimpleNamespace(folder=SimpleNamespace(name=name), epochs=lambda: iter([epoch]))

    sweeps = told("one"), told("two", val_mce=0.25)
    files = write_replay(replace(outcome, sweeps=sweeps), tmp_path)
    first, second = csv.DictReader(files[0].open(encoding="utf-8"))
    assert (first["study"], first["configuration"]) == (
        "größer|ts",
        '{"a": {}, "b": {"x": 2, "y": 1}}',
    )
    assert (first["val_mce"], second["val_mce"], "loss" in first) == ("", "0.25", False)
    assert b"\r" not in files[0].read_bytes()


def test_the_order_of_searches_does_not_depend_on_their_end(outcome, monkeypatch):
    one = outcome.judged[0]
    rows = [
        replace(one, strategy=strategy, sweep=sweep, study=study, search=search, budget=budget)
        for strategy in ("z", "a")  # As in the file.
        for sweep in ("one", "two")
        for study in ("t|mbls", "t|ts")
        for search in (2, 10)
        for budget in (5, 20)
    ]
    monkeypatch.setattr("orchestrator.replay.run.read_sweeps", lambda *given: [])
    monkeypatch.setattr("orchestrator.replay.run._run", lambda *given: iter([rows[::-1]]))
    settings = ReplaySettings(strategies={"z": {}, "a": {}})
    assert replay("nowhere", settings).judged == rows


@pytest.mark.parametrize("processes", [3, None])
def test_many_searches_are_shared_by_processes_and_come_to_the_same(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, processes: int | None
) -> None:
    made: list[Any] = []

    def pool(count: int, context: Any, *start: Any) -> ThreadPoolExecutor:
        made.append((count, context.get_start_method(), *start))
        return ThreadPoolExecutor(1)

    monkeypatch.setattr("orchestrator.replay.run.ProcessPoolExecutor", pool)
    strategies: dict[str, dict[str, Any]] = {"as run": {}, "few": {"trials": 2}}
    settings = ReplaySettings(searches=6, resample=False, strategies=strategies)
    expected = replay(storage, settings, ["two"], processes=processes).judged
    monkeypatch.setattr("orchestrator.replay.run.ALONE", 12)
    replay(storage, settings, ["two"], processes=processes)
    assert made == []
    monkeypatch.setattr("orchestrator.replay.run.ALONE", 11)
    assert replay(storage, settings, ["two"], processes=processes).judged == expected
    count = processes or len(os.sched_getaffinity(0))
    assert made == [(count, "spawn", torch.set_num_threads, (1,))]


def test_tables_and_plot_hold_every_figure(outcome: ReplayOutcome, tmp_path: Path) -> None:
    files = write_replay(outcome, tmp_path / "out")
    assert [path.name for path in files] == ["outcomes.csv", "searches.csv", "replay.png"]
    with Image.open(files[2]) as image:
        assert image.size[0] == 2 * 640  # Enough for print.
    every, searches = (list(csv.DictReader(path.open())) for path in files[:2])
    assert [
        tuple(row[key] for key in ("strategy", "sweep", "study", "search", "budget", "number"))
        for row in searches
    ] == [
        (j.strategy, j.sweep, j.study, str(j.search), str(j.budget), str(j.number))
        for j in outcome.judged
    ]
    for row, judged in zip(searches, outcome.judged, strict=True):
        for name in ("loss", "default", "best", "distance"):
            assert float(row[name]) == getattr(judged, name)
    trials = [
        (sweep.folder.name, trial, step, metrics)
        for sweep in outcome.sweeps
        for trial, step, metrics in sweep.epochs()
    ]
    assert len(every) == len(trials) > 0
    for row, (sweep, trial, step, metrics) in zip(every, trials, strict=True):
        assert [row[key] for key in ("sweep", "study", "number", "role", "seed", "epoch")] == [
            *(sweep, trial.study, str(trial.number), trial.role, str(trial.seed), str(step))
        ]
        assert (row["status"], json.loads(row["configuration"])) == (
            trial.status,
            trial.configuration,
        )
        told = {name: float(row[name]) for name in row if name.startswith("val_") and row[name]}
        assert told == {name: v for name, v in metrics.items() if name.startswith("val_")}


@pytest.mark.parametrize(
    ("judge", "factor", "heading"), [("nll", 1, "NLL ↓"), ("ece", 100, "ECE % ↓")]
)
def test_the_plot_shows_each_strategy_and_the_default_in_the_metrics_own_unit(
    outcome: ReplayOutcome, judge: str, factor: int, heading: str
) -> None:
    settings = outcome.settings.model_copy(update={"judge": judge})
    chart = draw(replace(outcome, settings=settings))
    check_chart(chart)
    rows = rows_of(chart, "strategy")
    assert [
        tuple(row[name] for name in ("strategy", "budget", "loss", "low", "high")) for row in rows
    ] == [
        (one.strategy, one.budget, *(factor * end for end in (one.loss, one.low, one.high)))
        for one in outcome.summaries()
    ]
    assert rows_of(chart, "band") == rows
    band = layer_of(chart, "band")["encoding"]
    assert (band["y"]["field"], band["y2"]["field"]) == ("low", "high")
    default = {"loss": factor * outcome.finals()[0].default, "strategy": "published default"}
    assert rows_of(chart, "default") == [default]
    assert axes_of(chart) == ["trials of a study", f"test {heading}"]
    assert is_log(chart, "x")
    assert band["x"]["axis"]["values"] == [1, 2, 3, 4]
    assert band["color"]["scale"]["domain"] == ["as run", "few", "published default"]


def test_the_table_shows_each_figure_under_its_heading(outcome: ReplayOutcome) -> None:
    (first, _) = outcome.finals()
    shown = replace(
        first, loss=0.5, low=0.25, high=0.75, regret=0.125, worse=0.1, kept=0.2, distance=0.034
    )
    assert headings(outcome) == ["strategy", "test NLL ↓", *HEADINGS]
    interval = dict(zip(headings(outcome), cells(shown, outcome), strict=True))
    assert {name: text.strip() for name, text in interval.items()} == {
        "strategy": "as run",
        "test NLL ↓": "0.5000",
        "95% interval": "[0.2500, 0.7500]",
        "regret": "0.1250",
        "worse than default": "10.0 %",
        "default kept": "20.0 %",
        "distance": "3.4 %",
    }
    lines = notes(outcome)
    assert lines[:2] == [
        f"sweep {name}: with its own settings, the replay repeats 2 of 2 choices" for name in TRIALS
    ]
    assert lines[2] == (
        "2 studies, 2 searches per study and strategy; validation rows: the same for all searches; "
        f"the published default has a test NLL of {first.default:.4f}"
    )
    assert lines[3:] == [
        "regret: test metric of the choice minus that of the best recorded trial; distance: "
        "difference between a suggested configuration and the recorded one whose results it got, "
        "in % of the range of the parameter that differs most",
        "rows|given: not replayed: nothing to search",
    ]
    more_studies = [*outcome.judged, replace(outcome.judged[0], study="rows|ts")]
    assert notes(replace(outcome, judged=more_studies))[2].startswith("3 studies, 2 searches")
    choices = [Repeated(STUDY, 1, replayed) for replayed in (1, 2, 1, None)]
    assert notes(replace(outcome, repeated={"two": choices, "one": choices[:1]}))[:2] == [
        "sweep two: with its own settings, the replay repeats 2 of 4 choices",
        "sweep one: with its own settings, the replay repeats 1 of 1 choice",
    ]
    skipped = {("one", STUDY): "gone", ("two", STUDY): "gone", ("two", "rows|ts"): "pixels"}
    assert notes(replace(outcome, skipped={**skipped, ("one", "rows|ets"): "pixels"}))[4:] == [
        f"{STUDY}: not replayed: gone",
        "rows|ts: not replayed: pixels (sweep two)",
        "rows|ets: not replayed: pixels (sweep one)",
    ]
    more = replace(outcome, sweeps=(*outcome.sweeps, outcome.sweeps[0]), skipped=skipped)
    assert notes(more)[4] == f"{STUDY}: not replayed: gone (sweep one, two)"
    for change, words in (
        ({"resample": True}, "validation rows: resampled for each search;"),
        (
            {"resample": True, "validation": 9},
            "validation rows: 9 drawn for each search (the others score its choice);",
        ),
    ):
        settings = outcome.settings.model_copy(update=change)
        assert words in notes(replace(outcome, settings=settings))[2]


def test_the_command_prints_table_notes_and_files(outcome, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("orchestrator.replay.replay", lambda *arguments, **named: outcome)
    assert (
        main(["search", "replay", str(tmp_path), "--out", str(tmp_path / "out"), "--markdown"]) == 0
    )
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:4]]
    assert table[0] == headings(outcome)
    assert table[2:] == [cells(final, outcome) for final in outcome.finals()]
    assert lines[3].startswith("| few      | ")
    names = ("outcomes.csv", "searches.csv", "replay.png")
    files = [f"wrote {tmp_path / 'out' / name}" for name in names]
    assert lines[4:] == [*notes(outcome), *files]


def test_options_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "replay.yaml"
    path.write_text("searches: 7\njudge: brier\nseed: 3\n")
    assert _settings(None, None, None) == ReplaySettings()
    assert _settings(path, None, "ece") == ReplaySettings(searches=7, judge="ece", seed=3)
    assert _settings(path, 9, None) == ReplaySettings(searches=9, judge="brier", seed=3)
