"""What a sweep asks of Ray Tune, and how many trials it gives out: without Ray."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from orchestrator.running import tune as edge
from orchestrator.running.searcher import StudySchedulers, SweepSearcher
from orchestrator.search.state import SweepState
from orchestrator.storage.journal import Journal
from orchestrator.storage.storage import SweepFolder
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from trainables.data import SplitSpec, prepare
from trainables.ray_edge import StageTrainable
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: asked
tasks: [{{name: d, dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce, mbls, fl]
search: {{trials: 5, parallel_trials: 3, scheduler: {scheduler}, sampler: random}}
resources: {{max_failures: 7, checkpoint_every: 11, {resources}}}
storage: {storage}
"""


def make_spec(storage: Path, scheduler: str = "none", resources: str = "") -> SweepSpec:
    text = SWEEP.format(storage=storage, scheduler=scheduler, resources=resources)
    return parse_sweep(text, "asked")


class Cluster:
    """Stands in for Ray: so many processors and GPUs."""

    def __init__(self, cpus: float = 8.0, gpus: float = 0.0) -> None:
        self.there, self.asked = {"CPU": cpus, "GPU": gpus}, 0

    def cluster_resources(self) -> dict[str, float]:
        self.asked += 1
        return self.there


@pytest.mark.parametrize("scheduler", ["none", "asha"])
def test_tune_is_given_what_the_sweep_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    asked: dict[str, Any] = {}
    said = io.StringIO()

    def tuner(trainable: Any, **settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(fit=lambda: asked.update(fitted=trainable))

    monkeypatch.setattr(edge.tune, "with_parameters", lambda made, **given: (made, given))
    monkeypatch.setattr(edge.tune, "with_resources", lambda made, wanted: (*made, wanted))
    monkeypatch.setattr(edge.tune, "Tuner", tuner)
    spec, store = make_spec(tmp_path, scheduler), ArtifactStore(tmp_path / "artifacts")
    data = {"d": prepare("digits", tmp_path, SplitSpec(), tmp_path / "data")}
    with Journal(tmp_path / "journal.jsonl") as journal:
        state = SweepState(make_plan(spec), "id", data, journal.append)
        place = state, journal, store, Cluster(4.0), Console(file=said, width=100)
        edge.search(*place, growing=scheduler == "asha")
        settings, run = asked["tune_config"], asked["run_config"]
        given = [settings.search_alg.suggest(str(number)) for number in range(5)]
        settings.search_alg.on_trial_result("3", {"notices": ["a checkpoint is damaged"]})

    trainable, parameters, wanted = asked["fitted"]
    assert trainable is StageTrainable
    assert parameters == {
        "storage": str(store.root),
        "report_seconds": 0.0 if scheduler == "asha" else 2.0,
        "checkpoint_every": 11,
    }
    assert wanted({"cpus": 2, "gpus": 0.5}).bundles == [{"CPU": 2.0, "GPU": 0.5}]
    # Plain cross-entropy has one trial; three of each other study may be out at once.
    assert settings.max_concurrent_trials == 1 + 3 + 3
    assert (settings.num_samples, settings.reuse_actors) == (-1, True)
    assert isinstance(settings.search_alg, SweepSearcher)
    assert (settings.search_alg.metric, settings.search_alg.mode) == ("score", "min")
    assert isinstance(settings.scheduler, StudySchedulers) == (scheduler == "asha")
    trial = SimpleNamespace(config=given[1], trial_id="t1")
    assert settings.trial_name_creator(trial) == "d|mbls|0"
    assert settings.trial_dirname_creator(trial) == "t1"
    # Four processors; where more may come, as many trials wait for them.
    fifth = scheduler == "asha"
    assert [isinstance(one, dict) for one in given] == [True] * 4 + [fifth]
    assert said.getvalue().splitlines() == [
        "studies 0/3 · trials 0/11, 0 running",
        "a checkpoint is damaged",
    ]
    assert (run.name, run.storage_path) == ("tune", str(SweepFolder.of(spec).path))
    assert run.failure_config.max_failures == 7
    kept = run.checkpoint_config
    assert (kept.checkpoint_frequency, kept.checkpoint_at_end, run.verbose) == (0, False, 0)
    # What Tune counts of a trial that it gives up is what the searcher asks for.
    settings.scheduler.on_trial_error(
        None, SimpleNamespace(trial_id="0", run_metadata=SimpleNamespace(num_failures=7))
    )
    settings.search_alg.on_trial_complete("0", None, error=True)
    assert settings.search_alg.suggest("again") == given[0]


def test_what_is_stored_here_is_found_without_a_mirror(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    mirror = ArtifactStore(tmp_path / "other")
    mirror.write("train", "ab" * 32, {"w": {"w": torch.zeros(1)}}, {"metrics": {}})
    store.mirror_to((tmp_path / "other").as_uri())
    assert edge._find_local(store, "train", "ab" * 32) is None
    store.write("train", "cd" * 32, {"w": {"w": torch.zeros(1)}}, {"metrics": {}})
    found = edge._find_local(store, "train", "cd" * 32)
    assert found is not None
    assert found.key == "cd" * 32


@pytest.mark.parametrize(
    ("resources", "gpus", "fitting"),
    [
        ("", 0.0, 8),
        ("train: {cpu: 4}, refine: {cpu: 8}", 0.0, 8),  # Calibrations are smaller.
        ("refine: {cpu: 8}, calibrate: {cpu: 8}", 0.0, 8),
        ("train: {cpu: 4}, refine: {cpu: 8}, calibrate: {cpu: 8}", 0.0, 2),
        ("train: {gpu: 0.5}, refine: {gpu: 0.25}, calibrate: {gpu: 1}", 2.0, 8),
        ("concurrent: 3", 0.0, 3),
    ],
)
def test_as_many_trials_are_given_out_as_fit_and_twice_as_many_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: str, gpus: float, fitting: int
) -> None:
    now = [100.0]
    monkeypatch.setattr(edge, "time", SimpleNamespace(monotonic=lambda: now[0]))
    spec = make_spec(tmp_path, resources=resources)
    for growing in (False, True):
        ray = Cluster(8.0, gpus)
        limit = edge._Limit(spec, ray, growing)
        fixed = "concurrent" in resources
        factor = 2 if growing and not fixed else 1
        assert limit() == factor * fitting
        ray.there = {name: 2 * count for name, count in ray.there.items()}
        now[0] += 0.5
        assert limit() == factor * fitting  # To ask takes time.
        now[0] += 1.0
        grown = 2 * factor if growing and not fixed else factor
        assert [limit(), limit()] == [grown * fitting] * 2
        assert ray.asked == (0 if fixed else 2 if growing else 1)
