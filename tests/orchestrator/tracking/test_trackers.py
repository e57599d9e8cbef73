import json
import shutil
from dataclasses import replace
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from uuid import uuid4

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from orchestrator.tracking import SingleRun, deliver_run, open_tracker
from orchestrator.tracking._changes import Change, Point
from orchestrator.tracking.contract import TRACKER_CHECKS
from orchestrator.tracking.mlflow import server
from orchestrator.tracking.mlflow.server import MlflowTracker
from orchestrator.tracking.tracker import (
    Experiment,
    LoginError,
    RefusedError,
    RunQuery,
    UnreachableError,
    model_name,
)
from tests.orchestrator.tracking.projects import Project
from trainables.common.errors import InputError


@pytest.fixture(params=["sqlite", "folder", "tensorboard", "trackio", "wandb", "postgresql"])
def tracker(request, folder, monkeypatch):
    if request.param in ("trackio", "wandb"):
        Project.install(request.param, folder, monkeypatch)
        return open_tracker(f"{request.param}:ours", create=True)
    if request.param in ("folder", "tensorboard"):
        return open_tracker(f"{request.param}:{folder}/tracked", create=True)
    kept = {"sqlite": "database"}.get(request.param, request.param)
    return open_tracker(request.getfixturevalue(kept), create=True)


@pytest.fixture
def experiment(tracker, folder):
    return tracker.open_experiment(uuid4().hex, folder)[0].id


@pytest.fixture
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("f")


@pytest.fixture
def make(tracker, experiment):
    """Return a function that makes a run with some tags and metrics."""

    def run(started=1_000, status="FINISHED", metrics=None, **tags):
        run_id = tracker.create_run(experiment, "a run", {"calsweep.key": "k", **tags}, started)
        points = [Point(name, value, 5_000, 0) for name, value in (metrics or {}).items()]
        tracker.log(run_id, Change("k", points))
        if status != "RUNNING":
            tracker.set_status(run_id, status, 9_000)
        return run_id

    return run


@pytest.mark.full
@pytest.mark.parametrize("check", TRACKER_CHECKS, ids=lambda check: check.__name__)
def test_every_tracker_keeps(tracker, folder, check):
    check(tracker, folder)


def test_an_experiment_knows_when_it_was_created(tracker, folder):
    before = time_ns() // 1_000_000
    made, _ = tracker.open_experiment(uuid4().hex, folder)
    assert before <= made.created <= time_ns() // 1_000_000


def test_more_sweeps_than_a_page_holds_are_listed(database, folder, monkeypatch):
    tracker, real = open_tracker(database), MlflowClient.search_experiments
    made = {name: tracker.open_experiment(name, folder)[0].id for name in ("p1", "p2", "p3")}

    def one_at_a_time(client, **options):
        return real(client, **{**options, "max_results": 1})

    monkeypatch.setattr(MlflowClient, "search_experiments", one_at_a_time)
    assert made.items() <= tracker.sweeps().items()


@pytest.mark.parametrize("uri", ["postgresql+psycopg2://ada@h/m", "http://h", "sqlite:///m.db"])
@pytest.mark.parametrize("length", [157, 158])
def test_only_a_remote_database_limits_the_length_of_paths(uri, length, tmp_path, monkeypatch):
    made = []

    class Client:
        def __init__(self, tracking_uri, registry_uri):
            pass

        def get_experiment_by_name(self, name):
            return None

        def create_experiment(self, name, place, tags):
            made.append((name, place, tags))
            return "7"

        def get_experiment(self, experiment_id):
            return SimpleNamespace(creation_time=5)

    monkeypatch.setattr(server, "MlflowClient", Client)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(server, "_create", lambda file: file.touch())
    root = Path("/", "x" * (length - len("file:////a_b.c-d")))
    if uri.startswith("postgresql") and length > 157:
        with pytest.raises(RefusedError) as refusal:
            MlflowTracker(uri).open_experiment("a b.c-d", root)
        assert str(refusal.value) == (
            f"artifacts at file://{root}/a_b.c-d: 158 characters, but {uri} allows at most 157; "
            "use a storage with a shorter path"
        )
        return
    assert MlflowTracker(uri).open_experiment("a b.c-d", root) == (Experiment("7", 5), True)
    ((name, place, tags),) = made
    assert (name, tags) == ("a b.c-d", {"calsweep.kind": "sweep"})
    assert place == (None if uri.startswith("http") else f"file://{root}/a_b.c-d")
    assert place is None or len(place) == length


def test_a_storage_with_a_relative_path_can_be_moved(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old, new = Path("old"), Path("new")
    old.mkdir()
    shutil.copy(database.removeprefix("sqlite:///"), old / "mlflow.db")
    made, _ = MlflowTracker(f"sqlite:///{old}/mlflow.db").open_experiment("moved", old / "files")
    old.rename(new)
    tracker = MlflowTracker(f"sqlite:///{new}/mlflow.db")
    assert tracker.open_experiment("moved", new / "files") == (made, False)
    place = tracker.client.get_experiment(made.id).artifact_location
    assert place == (tmp_path / "new" / "files" / "moved").as_uri()


def test_every_request_to_an_absent_server_can_be_repeated(tmp_path):
    class Away:
        def __getattr__(self, name):
            def fail(*_, **__):
                raise ConnectionResetError("by peer")

            return fail

    report, exported = tmp_path / "report.md", tmp_path / "exported"
    report.touch()
    exported.mkdir()
    (exported / "chain.json").touch()
    tracker = MlflowTracker("http://127.0.0.1:9")
    tracker.client = Away()
    asked = [
        ("open_experiment", "s", tmp_path),
        ("sweeps",),
        ("runs", RunQuery(["1"], {})),
        ("run", "1"),
        ("log", "1", Change("k", tags={"a": "b"})),
        ("upload", "1", "r.md", report),
        *(("set_status", "1", status, 2) for status in ("FAILED", "RUNNING")),
        ("delete_run", "1"),
        ("register", "t", "1", exported, {}, "champion"),
        ("create_run", "1", "a run", {}, 1),
    ]
    for method, *arguments in asked:
        try:
            list(getattr(tracker, method)(*arguments))
        except UnreachableError:
            continue
        pytest.fail(f"{method} says nothing")


@pytest.mark.parametrize(
    ("code", "kind"), [("PERMISSION_DENIED", LoginError), ("INTERNAL_ERROR", UnreachableError)]
)
def test_a_model_is_not_created_if_the_lookup_fails(code, kind, tmp_path):
    def refuse(name):
        error = MlflowException("no")
        error.error_code = code
        raise error

    tracker, made = MlflowTracker("http://127.0.0.1:9"), []
    tracker.client = SimpleNamespace(
        get_registered_model=refuse, create_registered_model=lambda *_, **__: made.append(1)
    )
    with pytest.raises(kind):
        tracker.register("t", "r", tmp_path, {}, "champion")
    assert made == []


def test_files_are_stored_under_their_name(tracker, make, folder, tmp_path):
    run_id = make()
    picture = tmp_path / "some picture.png"
    picture.write_bytes(b"png")
    tracker.upload(run_id, "reliability.png", picture)
    picture.write_bytes(b"drawn again")
    tracker.upload(run_id, "reliability.png", picture)
    (stored,) = (path for path in folder.rglob("reliability.png"))
    assert stored.read_bytes() == b"drawn again"
    assert run_id in stored.parts
    with pytest.raises(RefusedError, match=r"no\.png: .* does not exist"):
        tracker.upload(run_id, "no.png", tmp_path / "none.png")


def test_a_champion_is_replaced(tracker, make, tmp_path, request):
    """Beside what the contract asks for: numbers, another alias, and who may not have the name."""
    task, folder = f"{request.node.name}/net", tmp_path / "exported"
    if not isinstance(tracker, MlflowTracker):
        with pytest.raises(InputError, match=r"^tracking \w+:.* stores no models$"):
            tracker.register(task, make(), folder, {}, "champion")
        return
    folder.mkdir()
    (folder / "0.bin").touch()
    first, second = make(), make()

    def promote(run_id, alias="champion"):
        return tracker.register(task, run_id, folder, {"calsweep.recipe": "ce"}, alias)

    name, *told = promote(first)
    assert told == ["1", True]
    assert promote(second) == (name, "2", True)
    (folder / "0.bin").write_text("not stored again")
    assert promote(first, "former") == (name, "1", True)
    kept = tracker.client.get_model_version(name, "1")
    assert (kept.tags, kept.run_id) == ({"calsweep.recipe": "ce"}, first)
    assert kept.source == f"runs:/{first}/model"
    stored = tracker.client.download_artifacts(first, "model/0.bin", str(tmp_path))
    assert Path(stored).read_bytes() == b""
    assert promote(first) == (name, "1", True)
    with pytest.raises(InputError, match="rename or delete it"):
        tracker.register(task.replace("/", "."), first, folder, {}, "champion")


def test_a_model_has_the_name_of_its_task_in_allowed_characters():
    assert model_name("npz:/own:2/convnet/short") == "npz-.own-2.convnet.short"


def test_a_single_run_is_tracked_once_and_completely(tracker, folder, tmp_path):
    name, report = f"{uuid4().hex}-nights", tmp_path / "report.md"
    report.write_text("all is well")
    night = SingleRun(
        "k", "a night", "FAILED", 1_000, 9_000, {"t": "1"}, {"ece": 0.5}, {"r.md": report}
    )
    run_id = deliver_run(tracker.uri, name, "nights", night, folder)
    experiment = tracker.run(run_id).experiment
    tracker.create_run(experiment, "made late", {"calsweep.key": "k"}, 2_000)
    other = tracker.create_run(experiment, "another", {"calsweep.key": "l"}, 500)
    again = replace(night, tags={"t": "2"}, started=5_000)
    assert deliver_run(tracker.uri, name, "nights", again, folder) == run_id
    runs = {run.id: run for run in tracker.runs(RunQuery([experiment], {}))}
    assert runs.keys() == {run_id, other}
    run = runs[run_id]
    assert (run.status, run.started, run.parent, run.metrics) == (
        "FAILED",
        1_000,
        None,
        {"ece": 0.5},
    )
    assert {"t": "2", "calsweep.key": "k", "calsweep.kind": "nights"}.items() <= run.tags.items()
    (stored,) = (path for path in folder.rglob("r.md"))
    assert stored.read_text() == "all is well"
    assert name not in tracker.sweeps()
    for file in folder.rglob(f"runs/{run_id}.json"):  # Not asked by anyone, but shown to people.
        record = json.loads(file.read_text())
        assert (record["name"], record["ended"]) == ("a night", 9_000)
        assert record["metrics"] == {"ece": [[0, 9_000, 0.5]]}
    report.unlink()
    with pytest.raises(InputError) as refusal:
        deliver_run(tracker.uri, name, "nights", night, folder)
    told = f"artifact r.md: {report} does not exist"
    assert str(refusal.value) == f"run a night: the tracking store refuses it: {told}"
    other = replace(night, key="m")
    with pytest.raises(InputError):
        deliver_run(tracker.uri, name, "nights", other, folder)
    (half,) = tracker.runs(RunQuery([experiment], {"calsweep.key": "m"}))
    assert half.status == "RUNNING"  # It has not all its files.
    report.write_text("all is well")
    assert deliver_run(tracker.uri, name, "nights", other, folder) == half.id
    assert tracker.run(half.id).status == "FAILED"
