"""Logits as tasks: what every task has, on rows that no network was trained for."""

import pickle
import time
import warnings
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
import torch

from orchestrator import best_config
from orchestrator.cli._plan import show_plan
from orchestrator.executors.in_process import InProcess
from orchestrator.loop import Loop
from orchestrator.running import arena
from orchestrator.running.arena import run_arena
from orchestrator.running.data import DataPreview, prepare_data, preview_data
from orchestrator.running.reproduce import reproduce
from orchestrator.running.run import run_sweep
from orchestrator.statistics import compare, judge_claim
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import StudyResult, results_of
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from orchestrator.tables.claims import load_claims
from orchestrator.tables.make import TableOptions, make_table
from orchestrator.tracking import study_results
from orchestrator.view import from_folder, render_report
from tests.orchestrator.one_process import one_process
from tests.orchestrator.tiny_sweep import compute_within, run_within
from trainables.calibrators import Calibrator, FitWarning, _released, build_calibrator
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.data import (
    PreparedData,
    TestDataSealedError,
    read_logits,
    seal_test_data,
    sealed_within,
)
from trainables.jobs import Job, Report
from trainables.metrics import calibration_report
from trainables.stages.export import export_chain, load_chain
from trainables.worker import _computations as fitting

SWEEP = """
name: logits
tasks: [{{logits: {files}, split: {{test: 0.5, validation: {fit}}}}}]
recipes: [{recipes}]
variants: {variants}
search: {{trials: {trials}, seed: {seed}}}
seeds: {seeds}
storage: {storage}
"""
USUAL = {"recipes": "given, ts, ets-cls", "variants": "{}", "seed": "null", "seeds": [0, 1]}
ONE = "files/one.npz"


def write_logits(path: Path, rows: int = 400, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    logits = 3 * (rng.normal(size=(rows, 3)) + 1.5 * np.eye(3)[labels])
    np.savez(path, logits=logits.astype(np.float32), labels=labels)


def make_spec(
    folder: Path, trials: int = 1, fit: object = 100, files: str = "files", **more: Any
) -> SweepSpec:
    places = {"files": folder / files, "storage": folder / f"storage-{trials}"}
    text = SWEEP.format(**{**USUAL, **more}, **places, fit=fit, trials=trials)
    return parse_sweep(text, "logits")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logits")
    (folder / "files").mkdir()
    for seed, name in enumerate(("one", "two")):
        write_logits(folder / "files" / f"{name}.npz", seed=seed)
    return folder


@pytest.fixture(scope="module")
def spec(folder: Path) -> SweepSpec:
    return run_within(make_spec(folder))


@pytest.fixture(scope="module")
def results(spec: SweepSpec) -> dict[tuple[str, str], StudyResult]:
    found = study_results(spec.tracking_uri, "logits")
    return {(result.task, result.recipe): result for result in found}


def test_every_file_is_a_task_with_every_recipe(results):
    recipes = ("given", "ts", "ets-cls")
    assert list(results) == [(task, recipe) for task in ("one", "two") for recipe in recipes]
    assert all(len(result.test) == 2 for result in results.values())
    for task in ("one", "two"):
        given, ts = results[task, "given"], results[task, "ts"]
        for before, after in zip(given.test, ts.test, strict=True):
            assert after["nll"] < before["nll"] - 0.02
            assert after["acc"] == before["acc"]


def test_figures_are_those_of_a_fit_by_hand(folder, spec, results):
    rows = np.load(folder / ONE)
    place = Storage.of(spec).data / results["one", "ts"].fingerprint
    fit, test = (
        np.load(place / part) for part in ("search/validation_indices.npy", "test/indices.npy")
    )
    assert (len(fit), len(test), len(set(fit) & set(test))) == (100, 200, 0)
    ts = build_calibrator("ts").fit(rows["logits"][fit], rows["labels"][fit])
    report = calibration_report(logits=ts(rows["logits"][test]), labels=rows["labels"][test])
    for name, value in report.items():
        assert results["one", "ts"].test[0][name] == pytest.approx(value, abs=1e-6)


def drawn(spec: SweepSpec) -> list[tuple[list[int], list[int]]]:
    """Return the rows to fit on and to test on, for each seed."""
    data, looked = prepare_data(spec), preview_data(spec).prepared
    assert {name: own.directory for name, own in looked.items()} == {
        name: own.directory for name, own in data.items()
    }
    places = [data[spec.tasks[0].data_name(seed)].directory for seed in spec.seeds]
    parts = ("search/validation_indices.npy", "test/indices.npy")
    found = [[np.load(place / part).tolist() for part in parts] for place in places]
    return [(fit, test) for fit, test in found]


@pytest.mark.parametrize("trials", [1, 3])
def test_a_search_keeps_the_test_rows_for_all_seeds(folder: Path, trials: int) -> None:
    (fit, test), (other_fit, other_test) = drawn(make_spec(folder, trials=trials))
    assert fit != other_fit
    assert (test == other_test) == (trials > 1)
    assert trials == 1 or not {*fit, *other_fit} & {*test}


def test_the_search_has_rows_of_its_own_seed(folder: Path) -> None:
    spec = make_spec(folder, files=ONE, seed=7)
    names = {spec.tasks[0].data_name(seed) for seed in (7, 0, 1)}
    assert len(names) == 3
    assert set(prepare_data(spec)) == set(preview_data(spec).prepared) == names


def test_recipes_are_compared_on_the_rows_of_each_seed(spec, results):
    ours = [result for (task, _), result in results.items() if task == "one"]
    found = compare(ours, Storage.of(spec).store(), "nll", draws=200).bootstrap
    assert (found.baseline, found.seeds["ts"], found.rows) == ("given", 2, 200)
    gain = [
        after["nll"] - before["nll"]
        for before, after in zip(
            results["one", "given"].test, results["one", "ts"].test, strict=True
        )
    ]
    assert found.differences["ts"].value == pytest.approx(sum(gain) / 2, abs=1e-6)
    assert found.differences["ts"].high < 0


def test_a_sealed_process_reads_no_test_rows(folder, spec, results):
    """Nor the file that holds them."""
    data = PreparedData.open(Storage.of(spec).data / results["one", "ts"].fingerprint)
    with sealed_within():
        seal_test_data(data.directory)
        assert len(data.search().validation) == 100
        for read in (data.test, data.test_numbers, lambda: read_logits(str(folder / ONE))):
            with pytest.raises((TestDataSealedError, InputError), match="sealed in this process"):
                read()


def test_a_changed_file_of_logits_has_another_fingerprint(tmp_path: Path) -> None:
    write_logits(tmp_path / "rows.npz")
    spec = make_spec(tmp_path, files="rows.npz")
    (before,) = {data.fingerprint for data in prepare_data(spec).values()}
    write_logits(tmp_path / "rows.npz", seed=1)
    (after,) = {data.fingerprint for data in prepare_data(spec).values()}
    assert before != after


@one_process()
def test_a_sweep_is_refused_on_changed_data_and_goes_on_with_its_own(tmp_path: Path) -> None:
    write_logits(tmp_path / "rows.npz")
    before = (tmp_path / "rows.npz").read_bytes()
    spec = make_spec(tmp_path, files="rows.npz")
    run_sweep(spec)
    journal = SweepFolder.of(spec).journal
    lines = journal.read_bytes()
    write_logits(tmp_path / "rows.npz", seed=1)
    told = (
        r"^sweep 'logits' was computed on other data of rows \(hash [0-9a-f]{12}, now "
        r"[0-9a-f]{12}\); put the data back, give this sweep another name, or run the sweep file "
        "with --fresh$"
    )
    with pytest.raises(InputError, match=told):
        run_sweep(spec)
    assert journal.read_bytes() == lines
    (tmp_path / "rows.npz").write_bytes(before)
    run_sweep(spec)
    ends = [event.event for event in read_events(journal)[0]]
    assert ends.count("trial_finished") == lines.count(b'"trial_finished"')


def test_every_set_of_an_hdf5_file_is_a_task(tmp_path: Path) -> None:
    rng, pairs = np.random.default_rng(0), [("cifar", "resnet"), ("cifar", "vit"), ("svhn", "vit")]
    with h5py.File(tmp_path / "arena.h5", "w") as file:
        for dataset, model in pairs:
            group = file.create_group(f"{dataset}/{model}")
            for part, rows in (("cal", 30), ("test", 20)):
                group[f"probas_{part}"] = rng.dirichlet(np.ones(4), rows).astype(np.float32)
                group[f"labels_{part}"] = rng.integers(0, 4, rows)
        file["svhn/other"] = h5py.ExternalLink("elsewhere.h5", "svhn/vit")
        expected = np.log(file["cifar/vit/probas_test"][()])
    spec = make_spec(tmp_path, files="arena.h5", fit=20)
    assert [task.id for task in spec.tasks] == ["/".join(pair) for pair in pairs]
    data = prepare_data(spec)["cifar/vit 0"]
    np.testing.assert_array_equal(data.test().values, expected)
    assert data.counts["validation"] == 20
    with pytest.raises(InputError, match="no set 'svhn/other'; sets are cifar/resnet, cifar/vit"):
        prepare_data(make_spec(tmp_path, files="arena.h5:svhn/other"))


WRONG = {
    "an empty folder": (
        "tasks: [{logits: empty}]",
        "tasks[0].logits: empty: no logits; expected files",
    ),
    "both kinds": (
        "tasks: [{logits: a.npz}, {dataset: digits, model: convnet, protocol: digits}]",
        "tasks[1]: a sweep has tasks of logits or of data sets, not both",
    ),
    "both kinds the other way round": (
        "tasks: [{dataset: digits, model: convnet, protocol: digits}, {logits: a.npz}]",
        "tasks[1]: a sweep has tasks of logits or of data sets, not both",
    ),
    "an empty second folder": (
        "tasks: [{logits: a.npz}, {logits: empty}]",
        "tasks[1].logits: empty: no logits; expected files",
    ),
    "no path": ("tasks: [{logits: ''}]", "tasks[0]: logits='' is not a path"),
    "a number as a path": ("tasks: [{logits: 3}]", "tasks[0]: logits=3 is not a path"),
    "a model": ("tasks: [{logits: a.npz, model: convnet}]", "either logits or model, not both"),
    "a protocol": ("tasks: [{logits: a.npz, protocol: x}]", "either logits or protocol, not both"),
    "a set of data": ("tasks: [{logits: a.npz, dataset: x}]", "either logits or dataset, not both"),
    "a protocol spelled out": (
        "tasks: [{dataset: 'logits:a.npz', model: given, protocol: digits}]",
        "tasks[0].model: for logits, model and protocol must be 'given'; write only logits: PATH",
    ),
    "a network": ("tasks: [{logits: a.npz}]\nrecipes: [ce]", "recipe 'ce': tasks with logits"),
    "a data set": (
        "tasks: [{dataset: digits, model: convnet, protocol: digits}]",
        "recipe 'ts': 'ts' is misplaced; write method[+refinement][+calibrator]",
    ),
    "suites": (
        "tasks: [{logits: a.npz, suites: [cifar10-c]}]",
        "tasks[0].model: suites need a network, and logits have none",
    ),
    "a setting": ("tasks: [{logits: a.npz, inputs: {kind: x}}]", "inputs.kind='x' is not one of"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_get_a_line(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_logits(tmp_path / "a.npz")
    (tmp_path / "empty").mkdir()
    text, expected = WRONG[mistake]
    recipes = "" if "recipes" in text else "\nrecipes: [ts]"
    with pytest.raises(InputError) as caught:
        parse_sweep(f"name: wrong\n{text}{recipes}", "wrong.yaml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"logits": np.zeros((4, 2))}, "expected exactly one array named labels"),
        (
            {"logits": np.full((4, 2), np.nan), "labels": [0, 1, 0, 1]},
            "logits: expected finite values",
        ),
        (
            {"logits": np.full((4, 2), 1e200), "labels": [0, 1, 0, 1]},
            "outside the range of float32",
        ),
        (
            {"predictions": np.ones((4, 2)), "labels": [0, 1, 0, 1]},
            "are the scores logits or probabilities",
        ),
        ({"logits_fit": np.zeros((4, 2)), "labels_fit": [0, 1, 0, 1]}, "logits_test"),
    ],
)
def test_a_wrong_file_names_task_and_file(arrays, expected, tmp_path):
    np.savez(tmp_path / "wrong.npz", **arrays)
    with pytest.raises(InputError, match=r"tasks\[0\] \(wrong\): .*wrong.npz: .*") as caught:
        preview_data(make_spec(tmp_path, files="wrong.npz"))
    assert expected in str(caught.value)


def test_scores_are_read_as_the_kind_that_is_named(tmp_path: Path) -> None:
    first = np.random.default_rng(0).uniform(0.1, 0.9, 60)
    scores = np.stack([first, 1 - first], 1)
    np.savez(tmp_path / "scores.npz", predictions=scores, labels=np.arange(60) % 2)
    task = f"logits: {tmp_path}/scores.npz"
    for kind in ("logits", "probs"):
        text = f"{{{task}, name: {kind}, inputs: {{kind: {kind}}}}}"
        spec = parse_sweep(f"name: x\ntasks: [{text}]\nrecipes: [ts]\nstorage: {tmp_path}\n", "x")
        if kind == "logits":
            with pytest.raises(InputError, match="the logits are probabilities"):
                prepare_data(spec)
            continue
        assert replace(preview_data(spec), copies={}) == DataPreview({})
        prepared = prepare_data(spec)
        assert replace(preview_data(spec), copies={}) == DataPreview(prepared)


@pytest.mark.parametrize("names", [["absent"], ["one", "absent"]])
def test_a_missing_file_of_logits_is_reported_with_its_task(
    tmp_path: Path, names: list[str]
) -> None:
    write_logits(tmp_path / "one.npz")
    tasks = [{"logits": str(tmp_path / f"{name}.npz")} for name in names]
    spec = parse_sweep(f"name: x\ntasks: {tasks}\nrecipes: [ts]\nstorage: {tmp_path}\n", "x")
    told = rf"^tasks\[{len(names) - 1}\] \(absent\): .*absent.npz: no such file"
    for look in (preview_data, prepare_data):
        with pytest.raises(InputError, match=told):
            look(spec)


def test_a_plan_of_logits_names_calibrations_alone(folder, capsys):
    plan = make_plan(make_spec(folder))
    show_plan(plan.spec)
    out = capsys.readouterr().out
    count = plan.stage_trials()["calibrate"]
    assert f" studies, {plan.trials} trials: {count} calibrations of given logits\n" in out
    assert "training" not in out


class ArenaInProcess(InProcess):
    """Fits in this process: fresh ones would import everything once more."""

    counts: ClassVar[list[int]] = []  # How many there were to be, of one arena after the other.

    def __init__(self, count: int, *bench: Any, **others: Any) -> None:
        super().__init__(*bench, **others)
        self.counts.append(count)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(arena, "Processes", ArenaInProcess)
    return ArenaInProcess.counts


def test_an_arena_has_a_process_a_core(folder, monkeypatch, here):
    """But none without a split."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    spec = make_spec(folder, files=ONE)
    for cores, workers, count in ((1, None, 1), (9, None, 2), (1, 2, 2), (1, 3, 2)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores))
        run_arena(spec, workers)
        assert here.pop() == count
    assert set(threads) == {1}


@pytest.mark.usefixtures("here")
def test_an_arena_has_the_figures_of_the_sweep(folder, results):
    told: list[tuple[int, int]] = []
    found = run_arena(make_spec(folder), 1, lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [(r.task, r.recipe) for r in found] == list(results)
    for result in found:
        tracked = results[result.task, result.recipe]
        for ours, theirs in zip(result.test, tracked.test, strict=True):
            assert ours == pytest.approx({name: theirs[name] for name in ours}, abs=1e-6)
            assert set(ours) == {"nll", "brier", "ece"}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("refused", [{1}, {2}, {1, 2}])
def test_an_impossible_fit_fails_its_study_alone(folder, monkeypatch, refused):
    real, fits = fitting._fitted, []

    def fitted(name: str, parameters: Any, rows: torch.Tensor, labels: torch.Tensor) -> Calibrator:
        if len(rows) == 100 and name == "ts":  # The split's, not those that warm up.
            fits.append(name)
            if len(fits) in refused:
                raise InputError(f"too few rows on split {len(fits)}")
        return real(name, parameters, rows, labels)

    monkeypatch.setattr(fitting, "_fitted", fitted)
    given, failed, other = run_arena(make_spec(folder, files=ONE), 1)
    assert (given.status, other.status) == ("finished", "finished")
    assert (failed.recipe, failed.status) == ("ts", "failed")
    assert failed.reason == f"too few rows on split {min(refused)}"
    left = 2 - len(refused)
    assert (failed.trials_finished, failed.trials_failed) == (left, len(refused))
    assert [len(r.test) for r in (given, failed, other)] == [2, left, 2]
    assert [len(r.seconds) for r in (given, failed, other)] == [2, left, 2]


@pytest.mark.usefixtures("here")
def test_an_arena_has_the_seconds_of_the_fits_alone(folder, monkeypatch):
    now, fitted, report = [0.0], fitting._fitted, fitting.calibration_report

    def fit(name: str, parameters: Any, rows: torch.Tensor, labels: torch.Tensor) -> Calibrator:
        now[0] += {"ts": 2.0, "ets-cls": 5.0}[name] * len(rows)
        return fitted(name, parameters, rows, labels)

    def judge(**options: Any) -> dict[str, float]:
        now[0] += 9000
        return report(**options)

    monkeypatch.setattr(fitting, "_fitted", fit)
    monkeypatch.setattr(fitting, "calibration_report", judge)
    monkeypatch.setattr(
        fitting, "time", SimpleNamespace(process_time=lambda: now[0], monotonic=time.monotonic)
    )
    found = run_arena(make_spec(folder, files=ONE), 1)
    assert [result.seconds for result in found] == [(0.0, 0.0), (200.0, 200.0), (500.0, 500.0)]
    for result in found:
        assert (result.sweep, result.dataset) == ("logits", "one")
        assert (result.model, result.protocol) == ("given", "given")
        assert list(result.configuration) == [result.recipe]
    assert found[2].configuration["ets-cls"]["normalization"] == "nd"


@pytest.mark.usefixtures("here")
def test_an_arena_begins_with_the_longest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    for name, rows in (("a", 60), ("b", 240), ("c", 120)):
        write_logits(tmp_path / "files" / f"{name}.npz", rows=rows)
    take, begun = Loop.take, list[str]()

    def taking(loop: Loop, job: Job, report: Report) -> None:
        begun.append(job.group)
        take(loop, job, report)

    monkeypatch.setattr(Loop, "take", taking)
    found = run_arena(make_spec(tmp_path, fit=0.5), 1)
    assert begun == ["b", "b", "c", "c", "a", "a"]
    assert list(dict.fromkeys(result.task for result in found)) == ["a", "b", "c"]


def test_the_sets_of_a_task_are_named_after_it(folder: Path, tmp_path: Path) -> None:
    write_logits(tmp_path / "alone.npz")
    for place, names in (
        (folder / "files", ["mine/one", "mine/two"]),
        (folder / ONE, ["mine"]),
        (tmp_path, ["mine/alone"]),
    ):
        task = f"{{name: mine, logits: {place}}}"
        spec = parse_sweep(f"name: named\ntasks: [{task}]\nrecipes: [ts]\n", "named")
        assert [found.id for found in spec.tasks] == names


def test_the_best_can_be_fixed_in_another_sweep(folder: Path, spec: SweepSpec) -> None:
    (best,) = best_config("one", "ets-cls", tracking_uri=spec.tracking_uri)
    assert list(best.fixed) == ["given", "ets-cls"]
    document = make_spec(folder).model_dump(mode="json")
    document["search"]["fixed"] = best.fixed
    assert SweepSpec.model_validate(document).fixed("ets-cls") == best.fixed["ets-cls"]


@pytest.mark.usefixtures("here")
def test_an_arena_fits_variants_on_each_seed(folder: Path) -> None:
    variants = "{other: {of: ts-ls, fixed: {smoothing: 0.3}}}"
    more = {"files": ONE, "recipes": "other, ts-ls", "variants": variants}
    variant, plain = run_arena(make_spec(folder, seeds=[1, 0], **more), 2)
    assert variant.configuration["other"] == {**plain.configuration["ts-ls"], "smoothing": 0.3}
    assert (variant.status, len(variant.test)) == ("finished", 2)
    assert variant.test != plain.test
    (_, again) = run_arena(make_spec(folder, **more), 1)
    assert again.test == plain.test[::-1] != plain.test


@pytest.mark.usefixtures("here")
def test_an_arena_is_not_ended_by_doubtful_fits(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    labels, noise = np.arange(200) % 3, np.random.default_rng(0).normal(size=(200, 3))
    for name, logits in (("sure", 9 * np.eye(3)[labels]), ("good", noise + 3 * np.eye(3)[labels])):
        np.savez(tmp_path / "files" / f"{name}.npz", logits=logits, labels=labels)
    variants = "{half: {of: meta-acc, fixed: {accuracy: 0.3}}}"
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        found = run_arena(make_spec(tmp_path, recipes="ts, half", variants=variants), 1)
    ended = {(result.task, result.recipe): result.status for result in found}
    assert (ended["sure", "ts"], ended["good", "half"]) == ("finished", "finished")


def test_an_arena_fits_published_values_on_logits(folder: Path) -> None:
    text = "name: nets\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\nrecipes: [ce]"
    searching = "'logits': an arena uses published values; set search.trials to 1"
    for spec, told in (
        (parse_sweep(text, "nets"), "'nets': an arena needs tasks with `logits`"),
        (make_spec(folder, trials=3), searching),
    ):
        with pytest.raises(InputError, match=f"^sweep {told}$"):
            run_arena(spec)


def test_an_exported_calibrator_maps_as_the_sweep_did(folder, spec, results, tmp_path):
    store, result = Storage.of(spec).store(), results["two", "ts"]
    tested = store.find(ArtifactRef("evaluate", result.predictions[0]))
    data = PreparedData.open(Storage.of(spec).data / result.fingerprint)
    assert tested is not None
    export_chain(store, ArtifactRef("calibrate", tested.record["upstream"]), data.info, tmp_path)
    rows = tested.tensors("test")
    logits = np.load(folder / "files" / "two.npz")["logits"][rows["rows"].numpy()]
    torch.testing.assert_close(load_chain(tmp_path)(logits), rows["log_probs"])
    assert not list(tmp_path.rglob("validation*"))


def test_a_report_of_several_sets_holds_their_arena(spec: SweepSpec) -> None:
    page = render_report(from_folder(SweepFolder.of(spec)))
    assert (
        "Every recipe is compared with every other on 2 tasks of 2 networks, with 2 splits each"
        in page
    )
    assert "Average rank by NLL: critical-difference diagram" in page


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_is_reproduced_on_the_rows_of_its_seed(seed, spec, results, tmp_path):
    run = results["two", "ets-cls"].run_ids[seed]
    again = reproduce(run, tracking_uri=spec.tracking_uri, folder=tmp_path)
    assert again.equal
    assert {figure.metric for figure in again.figures} >= {"val_ece", "test_ece", "test_nll"}


def write_pickle(path: Path, seed: int, classes: int) -> None:
    """Write what NN_calibration's files hold: two pairs, the labels a column."""
    rng = np.random.default_rng(seed)
    pairs = []
    for rows in (150, 200):
        labels = rng.integers(0, classes, (rows, 1))
        scores = 3 * (rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels[:, 0]])
        pairs.append((scores.astype(np.float32), labels))
    path.write_bytes(pickle.dumps(tuple(pairs), protocol=2))


@pytest.mark.slow
def test_the_public_logits_of_a_paper_fill_its_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_released, "CONSTANT", ((0.02, 10),))  # Of 1000 steps.
    monkeypatch.setattr(_released, "SCHEDULE", ((0.005, 10),))
    (tmp_path / "logits").mkdir()
    write_pickle(tmp_path / "logits" / "probs_densenet40_c10_logits.p", 0, 10)
    write_pickle(tmp_path / "logits" / "probs_resnet_wide32_c100_logits.p", 1, 20)
    example = files("orchestrator").joinpath("examples/cls-logits.yaml").read_text("utf-8")
    spec = parse_sweep(example, "cls-logits.yaml")
    assert {study.trials for study in make_plan(spec)} == {1}
    compute_within(spec)
    results = results_of(read_ledger(SweepFolder.of(spec).journal))
    table = make_table(results, TableOptions(layout="cls/logits", published=True))
    assert len({entry.groups for entry in table.columns}) == 10
    for row in table.rows:
        filled = {e.groups for e in table.columns if table.notice(row, e) is None}
        assert filled == {("cifar10", "densenet40"), ("cifar100", "wrn-32")}
    assert table.published["ts-cls", 0] == pytest.approx(0.0071)
    assert any(note.endswith("metric; our figures are from given logits") for note in table.notes())
    (claim,) = (claim for claim in load_claims() if claim.name == "cls-improves-ts")
    found = judge_claim(claim, results, Storage.of(spec).store(), draws=20)
    assert [(pair.better, pair.than, pair.seeds) for pair in found.pairs] == [
        ("ts-cls", "ts", 1)
    ] * 2
    sharp = claim.model_copy(update={"better": "*+ts", "than": "*", "metric": "nll"})
    found = judge_claim(sharp, results, Storage.of(spec).store(), draws=50)
    assert [pair.verdict for pair in found.pairs] == ["holds on these logits"] * 2
