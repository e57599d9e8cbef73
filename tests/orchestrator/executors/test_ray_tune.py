import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from orchestrator.executors import _nodes, ray_tune
from orchestrator.executors._counters import Counters
from orchestrator.executors._held_gpus import HeldGpus
from orchestrator.executors._hung_actors import HungActors
from orchestrator.executors._nodes import Limit, inspecting
from orchestrator.executors.ray_tune import GroupSchedulers, LoopSearcher, OrderOfSearch, RayTune
from orchestrator.loop import Loop
from orchestrator.storage.machines import Machines
from orchestrator.storage.storage import Storage
from tests.orchestrator.executors.small_jobs import Jobs, fit
from trainables.common.errors import InputError
from trainables.common.files import code_files
from trainables.jobs import EpochMetrics, Fault, FaultKind, Report, Status, lost
from trainables.ray_edge import JobTrainable
from trainables.worker import inspect_machine

STOP, CONTINUE = TrialScheduler.STOP, TrialScheduler.CONTINUE
GOES_ON = Report(status=Status.RUNNING)
FINISHED = Report(status=Status.FINISHED, artifact="a")
BROKEN = Report(status=Status.FAILED, fault=Fault(FaultKind.MACHINE, "OSError: x"), node="b")


def node(name: str, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": True, "NodeManagerHostname": "h", "Resources": resources}


NODES = [node("a", CPU=8.0, GPU=1.0), node("b", CPU=8.0, GPU=1.0)]


def searcher(
    count: int = 3,
    most: int = 1,
    write: Callable[[Any], None] = lambda event: None,
    held: Any = None,
    **changes: Any,
) -> tuple[LoopSearcher, Jobs]:
    jobs = Jobs([fit(Path("data"), str(number), **changes) for number in range(count)])
    loop = Loop(jobs, write, most)
    hung = HungActors(0)
    return LoopSearcher(loop, lambda: 100, held or HeldGpus(()), Counters("s"), hung), jobs


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tune.ray, "nodes", lambda: NODES)


def test_jobs_become_trials_until_the_loop_is_done() -> None:
    search, jobs = searcher(count=2)
    first = search.suggest("a")
    assert (first["job"].key, first["labels"]) == ("0", {})
    assert search.suggest("b") is None  # The last job waits for the others.
    search.on_trial_complete("a", {"report": FINISHED})
    assert search.suggest("b")["job"].key == "1"
    search.on_trial_complete("b", {"report": FINISHED})
    assert search.suggest("c") == Searcher.FINISHED
    assert list(jobs.ends.values()) == [FINISHED, FINISHED]


def test_excluded_gpus_are_occupied_before_jobs_start(tmp_path: Path) -> None:
    storage, kept = Storage(tmp_path), list[object]()
    storage.leave_machine_out("host:gpu3", "x")
    storage.leave_machine_out("other", "x")
    search, _ = searcher(held=SimpleNamespace(keep=kept.append))
    search._loop.machines = Machines(storage)
    assert search.suggest("a")
    assert kept == [{("host", "3")}]


def test_no_more_jobs_are_out_than_the_limit() -> None:
    search, _ = searcher()
    search._limit = lambda: 1
    assert search.suggest("a") is not None
    assert search.suggest("b") is None


@pytest.mark.parametrize(
    ("last", "result", "error", "expected"),
    [
        (None, FINISHED, False, FINISHED),
        (GOES_ON, GOES_ON, False, replace(GOES_ON, status=Status.PRUNED)),
        (BROKEN, None, True, BROKEN),
        (GOES_ON, None, True, lost(GOES_ON)),
        (None, None, False, lost()),
    ],
)
def test_last_report_says_how_a_job_ended(last, result, error, expected):
    search, jobs = searcher(most=0)
    search.suggest("a")
    if last is not None:
        search.on_trial_result("a", {"report": last})
    assert jobs.ends == {}
    search.on_trial_complete("a", None if result is None else {"report": result}, error)
    assert jobs.ends == {"0": expected}


def test_job_that_a_node_failed_avoids_it() -> None:
    search, _ = searcher()
    search.suggest("a")
    search.on_trial_result("a", {"report": BROKEN})
    search.on_trial_complete("a", None, error=True)
    again = search.suggest("b")
    assert again["job"].attempt == 1
    assert again["labels"] == {"ray.io/node-id": "!in(b)"}


def test_job_alone_on_a_gpu_gets_room() -> None:
    search, jobs = searcher(gpus=0.5)
    search.suggest("a")
    memory = Report(status=Status.FAILED, fault=Fault(FaultKind.MEMORY, "OutOfMemoryError: x"))
    search.on_trial_complete("a", {"report": memory})
    assert search.suggest("again")["job"].gpus == 1.0
    assert search.suggest("later") is None  # Nothing new takes the GPU that it waits for.
    search.on_trial_result("again", {"report": GOES_ON})
    assert search.suggest("later")["job"].gpus == 0.5
    search.on_trial_complete("again", {"report": memory})
    assert jobs.ends == {"0": memory}


@pytest.mark.parametrize("when", ["on_trial_result", "on_trial_complete"])
def test_journal_that_cannot_be_written_ends_the_sweep(when: str) -> None:
    """Tune swallows what is raised when a trial reports or ends; the first failure is raised."""
    failures = iter(["no space left", "another"])

    def refuse(event: Any) -> None:
        raise InputError(next(failures))

    search, _ = searcher(count=4, write=refuse)
    for name in "ab":
        assert search.suggest(name)
    for name in "ab":
        report = replace(GOES_ON, history=(EpochMetrics(1, {}),))
        getattr(search, when)(name, {"report": report})
    with pytest.raises(InputError, match="no space left"):
        search.suggest("c")


def test_snapshots_leave_the_live_state_out(tmp_path: Path) -> None:
    search, _ = searcher()
    assert set(search.__getstate__()) == {"_metric", "_mode"}
    search.save(str(tmp_path / "snapshot"))


def trial_of(group: str, number: int, epochs: int = 9) -> Any:
    job = replace(fit(Path("data"), str(number)), group=group, epochs=epochs)
    return SimpleNamespace(trial_id=f"{group}-{number}", config={"job": job})


def decide(schedulers: GroupSchedulers, trial: Any, epoch: int, score: float) -> str:
    result = {"report": GOES_ON, "epoch": epoch, "score": score}
    return schedulers.on_trial_result(None, trial, result)


def added(schedulers: GroupSchedulers, *trials: Any) -> None:
    for trial in trials:
        schedulers.on_trial_add(None, trial)


def test_asha_stops_the_weaker_two_thirds_of_a_group() -> None:
    schedulers, trials = GroupSchedulers(), [trial_of("a", number) for number in range(6)]
    added(schedulers, *trials)
    scores = [0.1, 0.2, 0.3, 0.16, 0.05, 0.14]
    decisions = [decide(schedulers, t, 1, s) for t, s in zip(trials, scores, strict=True)]
    assert decisions == [CONTINUE, STOP, STOP, CONTINUE, CONTINUE, STOP]


def test_groups_do_not_stop_each_other() -> None:
    schedulers = GroupSchedulers()
    good, bad = trial_of("good", 0), trial_of("bad", 1)
    added(schedulers, good, bad)
    assert decide(schedulers, good, 1, 0.1) == CONTINUE
    assert decide(schedulers, bad, 1, 0.9) == CONTINUE


@pytest.mark.parametrize(("epochs", "first"), [(1, 1), (9, 1), (90, 10), (350, 38)])
def test_first_decision_is_after_a_ninth_of_the_epochs(epochs: int, first: int) -> None:
    schedulers = GroupSchedulers()
    best, worst = trial_of("a", 0, epochs), trial_of("a", 1, epochs)
    added(schedulers, best, worst)
    for epoch in range(1, first):
        assert decide(schedulers, best, epoch, 0.1) == CONTINUE
        assert decide(schedulers, worst, epoch, 0.9) == CONTINUE
    assert decide(schedulers, best, first, 0.1) == CONTINUE
    assert decide(schedulers, worst, first, 0.9) == STOP


def test_last_epoch_stops_no_trial() -> None:
    schedulers, trial = GroupSchedulers(), trial_of("a", 0, 5)
    added(schedulers, trial)
    assert [decide(schedulers, trial, epoch, 0.5) for epoch in range(1, 6)] == [CONTINUE] * 5


def test_further_seeds_and_broken_trials_run_on() -> None:
    schedulers = GroupSchedulers()
    best, seed, broken = trial_of("a", 0), trial_of("a", 1, epochs=0), trial_of("a", 2)
    added(schedulers, best, seed, broken)
    assert decide(schedulers, best, 1, 0.1) == CONTINUE
    assert decide(schedulers, seed, 1, 0.9) == CONTINUE
    told = {"report": BROKEN, "epoch": 1, "score": 0.9}
    assert schedulers.on_trial_result(None, broken, told) == CONTINUE
    assert decide(schedulers, broken, 1, 0.9) == STOP


def test_the_last_report_of_a_trial_counts_for_later_trials() -> None:
    """Tune hands over the last report where it ends a trial, not before."""
    schedulers = GroupSchedulers()
    ended, weak = trial_of("a", 0), trial_of("a", 1)
    added(schedulers, ended, weak)
    schedulers.on_trial_complete(None, ended, {"epoch": 1, "score": 0.1})
    assert decide(schedulers, weak, 1, 0.9) == STOP


def test_reports_before_the_first_epoch_count_for_nothing() -> None:
    schedulers = GroupSchedulers()
    lost, good = trial_of("a", 0), trial_of("a", 1)
    added(schedulers, lost, good)
    assert decide(schedulers, lost, 0, float("inf")) == CONTINUE
    schedulers.on_trial_complete(None, lost, {"epoch": 0, "score": float("inf")})
    assert decide(schedulers, good, 1, 0.9) == CONTINUE


def test_no_trial_is_taken_from_the_process_that_is_being_started_for_it() -> None:
    """Tune gives a free actor to the trial that a scheduler chooses, and ends that trial's own."""
    waiting = SimpleNamespace(status=Trial.PENDING)
    controller: Any = SimpleNamespace(get_trials=lambda: [waiting])
    assert FIFOScheduler().choose_trial_to_run(controller) is waiting
    schedulers: list[TrialScheduler] = [OrderOfSearch(), GroupSchedulers()]
    assert [each.choose_trial_to_run(controller) for each in schedulers] == [None, None]


@pytest.mark.parametrize("asha", [False, True])
def test_tune_is_given_the_settings(tmp_path, monkeypatch, asha):
    asked: dict[str, Any] = {}

    def tuner(trainable: Any, **settings: Any) -> Any:
        asked.update(settings)
        return SimpleNamespace(fit=lambda: asked.update(fitted=trainable))

    monkeypatch.setattr(ray_tune.tune, "with_parameters", lambda made, **given: (made, given))
    monkeypatch.setattr(ray_tune.tune, "with_resources", lambda made, wanted: (*made, wanted))
    monkeypatch.setattr(ray_tune.tune, "Tuner", tuner)
    monkeypatch.setattr(ray_tune.ray, "cluster_resources", lambda: {"CPU": 4.0})
    executor = RayTune(
        tmp_path / "artifacts", tmp_path, checkpoint_seconds=11, asha=asha, hang_seconds=0
    )
    jobs = Jobs([fit(tmp_path, str(number)) for number in range(9)])
    executor.run(Loop(jobs, lambda event: None, 7), sealed=not asha)
    trainable, parameters, wanted = asked["fitted"]
    settings, config = asked["tune_config"], asked["run_config"]
    assert trainable is JobTrainable
    assert parameters == {
        "storage": str(tmp_path / "artifacts"),
        "sealed": not asha,
        "report_seconds": 0.0 if asha else 2.0,
        "checkpoint_seconds": 11,
        "code": code_files(),
        "logs": str(tmp_path / "logs"),
        "plugins": (),
        "pulse": settings.search_alg._hung.run,
        "beat_seconds": None,
    }
    assert wanted({"job": fit(tmp_path, "0"), "labels": {}}).bundles == [{"CPU": 1.0}]
    assert (settings.num_samples, settings.reuse_actors) == (-1, True)
    assert type(settings.scheduler) is (GroupSchedulers if asha else OrderOfSearch)
    given = [settings.search_alg.suggest(str(number)) for number in range(5)]
    assert [one is not None for one in given] == [True] * 4 + [False]
    trial = SimpleNamespace(config=given[0], trial_id="t1")
    assert settings.trial_name_creator(trial) == "fits|0"
    assert settings.trial_dirname_creator(trial) == "t1"
    assert (config.name, config.storage_path, config.verbose) == ("tune", str(tmp_path), 0)
    kept = config.checkpoint_config
    assert (kept.checkpoint_frequency, kept.checkpoint_at_end) == (0, False)
    assert config.failure_config.max_failures == 0


@pytest.mark.parametrize(
    ("sizes", "gpus", "fitting"),
    [
        ([(1, 0.0)] * 3, 0.0, 8),
        ([(4, 0.0), (8, 0.0), (1, 0.0)], 0.0, 8),  # The smallest count.
        ([(4, 0.0), (8, 0.0), (8, 0.0)], 0.0, 2),
        ([(1, 0.5), (1, 0.25), (1, 1.0)], 2.0, 8),
    ],
)
def test_as_many_jobs_are_open_as_fit_and_twice_as_many_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[float, float]], gpus: float, fitting: int
) -> None:
    now, there, asked = [100.0], {"CPU": 8.0, "GPU": gpus}, list[None]()

    def resources() -> dict[str, float]:
        asked.append(None)
        return there

    monkeypatch.setattr(_nodes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(ray_tune.ray, "cluster_resources", resources)
    fixed, alone, growing = (Limit(sizes, *how) for how in ((3, True), (None, False), (None, True)))
    assert (fixed(), alone(), growing(), len(asked)) == (3, fitting, 2 * fitting, 2)
    there |= {name: 2 * count for name, count in there.items()}
    now[0] += 0.5
    assert (alone(), growing(), len(asked)) == (fitting, 2 * fitting, 2)  # To ask takes time.
    now[0] += 1.0
    assert (fixed(), alone(), growing(), len(asked)) == (3, fitting, 4 * fitting, 3)


WORKER = """
import sys

sys.modules["orchestrator"] = None
from ray import cloudpickle

wanted, job, labels = cloudpickle.loads(open(sys.argv[1], "rb").read())
print(wanted({"job": job, "labels": labels}))
"""


@pytest.mark.parametrize(("gpu", "refused"), [(0.0, False), (0.5, True)])
def test_gpus_are_tested_where_trials_take_one(gpu, refused, tmp_path, monkeypatch):
    head, worker = "0" * 56, "1" * 56
    nodes = [node(head, CPU=0.0), node(worker, CPU=2.0, GPU=1.0)]

    class Inspected:
        def options(self, scheduling_strategy: Any) -> "Inspected":
            return self

        def remote(self, storage: str, nonce: str, gpus: int) -> Any:
            here = inspect_machine(storage, nonce, 0)
            return replace(here, gpus=dict.fromkeys(range(gpus), "it is broken"))

    monkeypatch.setattr(_nodes, "inspected", Inspected())
    monkeypatch.setattr(ray_tune.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray_tune.ray, "wait", lambda found, timeout: (found, []))
    monkeypatch.setattr(ray_tune.ray, "get", lambda found: found)
    jobs, said = Jobs([]), list[str]()
    monkeypatch.setattr(jobs, "sizes", [(1, gpu)])
    loop = Loop(jobs, lambda event: None, 0, said.append)
    told = r"^no trial can start any more: GPU 0: it is broken$"
    refuses = pytest.raises(InputError, match=told) if refused else nullcontext()
    with refuses, inspecting(tmp_path, loop, set()):
        assert not refused
    assert (bool(said), worker in loop.machines.refused) == (refused, refused)
    assert not list(tmp_path.iterdir())  # The nonce is gone.


@pytest.mark.full
def test_workers_do_not_import_the_orchestrator(tmp_path: Path) -> None:
    job = fit(tmp_path, "0", cpus=2, gpus=0.5)
    sent = ray_tune._resources(), job, {"ray.io/node-id": "!in(b)"}
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(sent))
    command = [sys.executable, "-c", WORKER, tmp_path / "sent"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "'CPU': 2.0" in told
    assert "'GPU': 0.5" in told
    assert "!in(b)" in told
