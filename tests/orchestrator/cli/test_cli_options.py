import importlib
import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.cli import _doctor, _replay
from orchestrator.replay import ReplaySettings
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage
from orchestrator.sweep.spec import SweepSpec
from orchestrator.tables.make import TableOptions

URI = "folder:/tracked"
SWEEP = """
name: night
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce]
storage: kept
"""
ASK = ("best", "--task", "a/b/c", "--recipe", "ce")


class Reached(Exception):
    """The work that a command hands over would begin here."""


Asked = dict[str, Any]


@pytest.fixture
def asked(
    monkeypatch: pytest.MonkeyPatch, calsweep: Callable[..., Any]
) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a command and gives what another function is called with."""

    def call(place: str, *words: object) -> Asked:
        module, _, name = place.rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        found: Asked = {}

        def reach(*arguments: Any, **named: Any) -> None:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            found.update(bound.arguments)
            raise Reached

        with monkeypatch.context() as patched:
            patched.setattr(place, reach)
            with pytest.raises(Reached):
                calsweep(*words)
        return found

    return call


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Have every sweep be of two recipes on two tasks; tell what was asked for and where."""
    told: list[tuple[str, str]] = []

    def results(uri: str, sweep: str) -> list[StudyResult]:
        told.append((uri, sweep))
        names = [("one", "ce"), ("one", f"ls-{sweep}"), ("two", "ce")]
        return [StudyResult(sweep, task, recipe, "finished") for task, recipe in names]

    monkeypatch.setattr("orchestrator.tracking.study_results", results)
    return told


def default_uri(folder: Path, storage: str = "calsweep-storage") -> str:
    return f"sqlite:///{folder / storage / 'mlflow.db'}"


def moment(*parts: int) -> datetime:
    return datetime(*parts).astimezone()  # type: ignore[misc, arg-type]


@pytest.mark.usefixtures("far_east")
def test_best(asked, empty_folder):
    place = "orchestrator.tracking.best_config"
    found = asked(
        *(place, *ASK, "s", "--top", 3, "--fingerprint", "f1", "--code", "c1"),
        *("--since", "2026-05-01", "--until", "2026-05-31", "--tag", "a=b", "--tag", "c=d=e"),
        *("--tag", "f=", "--tracking-uri", URI),
    )
    assert found == {
        **{"task": "a/b/c", "recipe": "ce", "tracking_uri": URI, "sweep": "s", "top": 3},
        **{"since": moment(2026, 5, 1), "until": moment(2026, 6, 1)},
        **{"tags": {"a": "b", "c": "d=e", "f": ""}, "fingerprint": "f1", "code": "c1"},
    }
    kept = asked(place, *ASK, "--storage", "kept")
    assert kept["tracking_uri"] == default_uri(empty_folder, "kept")
    usual = {"top": 1, "tags": {}, "tracking_uri": default_uri(empty_folder)}
    usual |= dict.fromkeys(("sweep", "since", "until", "fingerprint", "code"))
    assert asked(place, *ASK) == found | usual


def test_the_last_of_all_days_has_no_day_after_it(asked, calsweep):
    found = asked("orchestrator.tracking.best_config", *ASK, "--until", "9999-12-31")
    assert found["until"] == datetime(9999, 12, 31, tzinfo=UTC)
    for day in ("0001-01-01", "2026-02-30"):
        code, _, err = calsweep(*ASK, "--since", day)
        assert (code, err.count("\n")) == (2, 1)
        assert f"--since '{day}' is not a date; use 2026-05-01" in err


def test_a_moment_without_a_zone_is_in_local_time(asked, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        words = ("--since", "2026-05-01T13:30", "--until", "2026-05-01T13:30+00:00")
        found = asked("orchestrator.tracking.best_config", *ASK, *words)
    finally:
        monkeypatch.undo()
        time.tzset()
    ends = [found[end].isoformat() for end in ("since", "until")]
    assert ends == ["2026-05-01T13:30:00+09:00", "2026-05-01T22:30:00+09:00"]


def test_table(asked, sweeps, empty_folder, monkeypatch):
    place = "orchestrator.tables.make.make_table"
    words = (
        *("--metrics", "ece, acc", "--recipes", "c*,ls", "--tasks", "one", "--layout", "l"),
        *("--rows", "recipe,model", "--show", "published, floor,runs", "--baseline", "ce"),
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)
    found = asked(place, "table", "b", "a", "b", *words)
    chosen = {"metrics": ["ece", "acc"], "recipes": ["c*", "ls"], "tasks": ["one"], "layout": "l"}
    chosen |= {"rows": ["recipe", "model"], "baseline": "ce"}
    assert found["options"] == TableOptions(**chosen, published=True, floor=True, runs=True)
    assert sweeps == [(URI, "b"), (URI, "a")]
    told = [(result.sweep, result.task, result.recipe) for result in found["results"]]
    assert told == [
        *(("b", "one", "ce"), ("b", "one", "ls-b"), ("b", "two", "ce"), ("a", "one", "ls-a"))
    ]
    sweeps.clear()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    plain = asked(place, "table", "--storage", "kept")
    assert plain["options"] == TableOptions(rows=["recipe"])
    assert sweeps == [(default_uri(empty_folder, "kept"), "demo")]
    combined = asked("orchestrator.tables.arrange.combine", "table", "a", "--show", "mixed")
    assert combined["mixed"] is True


def test_compare(asked, sweeps, empty_folder):
    place = "orchestrator.statistics.compare"
    words = ("--metric", "nll", "--draws", 7, "--seed", 5, "--baseline", "ls", "--task", "two")
    found = asked(place, "compare", "s", *words, "--storage", "kept")
    assert [(result.task, result.recipe) for result in found["results"]] == [("two", "ce")]
    names = ("metric", "baseline", "level", "draws", "seed")
    assert [found[name] for name in names] == ["nll", "ls", 0.95, 7, 5]
    assert found["store"].root == empty_folder / "kept" / "artifacts"
    plain = asked(place, "compare")
    assert [plain[name] for name in names] == ["ece", None, 0.95, 2000, 0]
    assert [result.task for result in plain["results"]] == ["one", "one"]
    assert sweeps == [(default_uri(empty_folder, "kept"), "s"), (default_uri(empty_folder), "demo")]
    asked(place, "compare", "--tracking-uri", URI)
    assert sweeps[-1] == (URI, "demo")


def test_claims(asked, sweeps, empty_folder):
    place = "orchestrator.statistics.judge_claim"
    words = ("--draws", 7, "--seed", 5, "--claim", "mbls-beats-ls", "--tracking-uri", URI)
    found = asked(place, "compare", "a", "b", "--claims", *words, "--storage", "kept")
    assert [result.sweep for result in found["results"]] == ["a"] * 3 + ["b"] * 3
    assert (found["claim"].name, found["draws"], found["seed"]) == ("mbls-beats-ls", 7, 5)
    assert found["store"].root == empty_folder / "kept" / "artifacts"
    plain = asked(place, "compare", "a", "--claims")
    assert (plain["draws"], plain["seed"]) == (2000, 0)
    asked(place, "compare", "a", "--claims", "--storage", "kept")
    uris = [default_uri(empty_folder), default_uri(empty_folder, "kept")]
    assert [uri for uri, _ in sweeps] == [URI, URI, *uris]


def test_ranks(asked, sweeps, empty_folder):
    place = "orchestrator.statistics.block_scores"
    found = asked(place, "compare", "a", "b", "--ranks", "--metric", "nll", "--tracking-uri", URI)
    assert [result.sweep for result in found["results"]] == ["a"] * 3 + ["b"] * 3
    assert (found["metric"], sweeps) == ("nll", [(URI, "a"), (URI, "b")])
    assert asked(place, "compare", "a", "--ranks", "--storage", "kept")["metric"] == "ece"
    assert sweeps[-1] == (default_uri(empty_folder, "kept"), "a")


@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize(
    ("work", "module", "command", "names", "text"),
    [
        ("cli._outcome.write_report", "_outcome", "report", ["progress"], "writing the report"),
        ("replay.replay", "_replay", "search replay kept", ["measuring", "searching"], "replaying"),
        ("running.arena.run_arena", "_arena", "logits arena night.yaml", ["done"], "fitting"),
    ],
)
def test_long_commands_show_their_progress(
    asked, monkeypatch, empty_folder, work, module, command, names, text
):
    (empty_folder / "night.yaml").write_text(SWEEP)
    monkeypatch.setattr(f"orchestrator.cli.{module}.progress_bar", nullcontext)
    found = asked(f"orchestrator.{work}", *command.split())
    assert [found[name] for name in names] == [text] * len(names)


@pytest.mark.parametrize("journal", [False, True])
def test_report(asked, sweeps, empty_folder, journal):
    folder = Storage("kept").sweep("night")
    if journal:
        folder.path.mkdir(parents=True)
        folder.journal.write_text("")
    place = "orchestrator.cli._outcome.write_report"
    words = ("report", "night", "--storage", "kept")
    found = asked(place, *words)
    # What the journal tells is shown; the tracking store is asked only where there is none.
    assert bool(found["source"].results) is not journal
    assert sweeps == ([] if journal else [(default_uri(empty_folder, "kept"), "night")])
    assert (found["path"], found["baseline"]) == (folder.report, None)
    assert found["source"].name == "night"
    assert found["source"].store.root == empty_folder / "kept" / "artifacts"
    found = asked(place, *words, "--out", "page.html", "--baseline", "ls", "--tracking-uri", URI)
    assert (found["path"], found["baseline"]) == (Path("page.html"), "ls")
    assert len(found["source"].results) == 3
    assert sweeps[-1] == (URI, "night")
    plain = asked(place, "report")
    assert plain["path"] == Storage().sweep("demo").report
    assert sweeps[-1] == (default_uri(empty_folder), "demo")


@pytest.fixture
def night(empty_folder: Path) -> Path:
    path = empty_folder / "night.yaml"
    path.write_text(SWEEP)
    return path


RUN = "orchestrator.running.run.run_sweep"


def choices(found: Asked) -> tuple[bool, bool, str | None, bool]:
    console = found["console"]
    assert console is None or console.stderr
    return found["resume"], found["fresh"], found["address"], console is None


def test_run(asked, night, monkeypatch):
    found = asked(RUN, "run", night)
    assert (found["spec"].name, choices(found)) == ("night", (False, False, None, False))
    assert choices(asked(RUN, "run", night, "--fresh")) == (False, True, None, False)
    found = asked(RUN, "run", night, "--address", "auto", "--quiet")
    assert choices(found) == (False, False, "auto", True)
    assert found["spec"].storage == "kept"
    assert asked(RUN, "run", night, "--storage", "other")["spec"].storage == "other"
    Storage("kept").sweep("night").write_spec(found["spec"])
    found = asked(RUN, "run", "--resume", "night", "--storage", "kept")
    assert (found["spec"].name, choices(found)) == ("night", (True, False, None, False))
    Storage("kept").sweep("night").set_control("pause")
    found = asked(RUN, "resume", "night", "--storage", "kept", "--take")
    assert (found["spec"].name, choices(found)) == ("night", (True, False, None, False))
    assert (found["take"], Storage("kept").sweep("night").control()) == (True, "")
    monkeypatch.setattr(RUN, lambda *arguments, **named: "an outcome")
    show = "orchestrator.cli._outcome.show_outcome"
    for words, address in (((), None), (("--address", "auto"), "auto")):
        assert asked(show, "run", night, *words) == {"outcome": "an outcome", "address": address}


def test_demo(asked):
    found = asked(RUN, "demo", "--storage", "kept", "--fresh", "--quiet")
    assert choices(found) == (False, True, None, True)
    spec = found["spec"]
    assert (spec.name, spec.storage, len(spec.expanded)) == ("demo", "kept", 24)
    assert choices(asked(RUN, "demo")) == (False, False, None, False)


def test_submit(asked, calsweep, night, monkeypatch):
    place = "orchestrator.cluster.jobs.submit"
    found = asked(place, "submit", night)
    assert (found["sweep"], found["address"]) == (night, "http://127.0.0.1:8265")
    assert isinstance(found["spec"], SweepSpec)
    assert asked(place, "submit", night, "--address", "http://a:1")["address"] == "http://a:1"
    monkeypatch.setattr(place, lambda *arguments: ("a client", "job-1"))
    told = "job job-1; its output: ray job logs job-1 --follow --address http://a:1\n"
    assert calsweep("submit", night, "--address", "http://a:1") == (0, told, "")
    found = asked("orchestrator.cluster.jobs.follow", "submit", night, "--wait")
    assert (found["client"], found["job"]) == ("a client", "job-1")

    def follow(client: str, job: str, write: Callable[[str], None]) -> int:
        write("half a line")
        return 3

    monkeypatch.setattr("orchestrator.cluster.jobs.follow", follow)
    code, out, _ = calsweep("submit", night, "--wait")
    assert (code, out.splitlines()[-1]) == (3, "half a line")


def test_gc(asked, empty_folder):
    place = "orchestrator.storage.garbage.collect_garbage"
    found = asked(
        place, "storage", "gc", "--storage", "kept", "--drop", "a", "--drop", "b", "--dry-run"
    )
    assert found["storage"].folder == empty_folder / "kept"
    assert (list(found["drop"]), found["dry_run"]) == (["a", "b"], True)
    found = asked(place, "storage", "gc")
    assert found["storage"].folder == empty_folder / "calsweep-storage"
    assert (list(found["drop"]), found["dry_run"]) == ([], False)


def test_sync(asked, calsweep, empty_folder, monkeypatch):
    folder = Storage("kept").sweep("night")
    folder.path.mkdir(parents=True)
    folder.journal.write_text("")
    folder.spec_file.write_text(f"{SWEEP}tracking: {{uri: 'folder:{empty_folder}/own'}}")
    place = "orchestrator.tracking.sync"
    found = asked(place, "storage", "sync", folder.path)
    assert (found["journal"], found["uri"]) == (folder.journal, f"folder:{empty_folder}/own")
    assert found["artifact_root"] == empty_folder / "kept" / "mlflow-artifacts"
    found = asked(place, "storage", "sync", folder.journal, "--tracking-uri", URI)
    assert (found["journal"], found["uri"]) == (folder.journal, URI)
    monkeypatch.setattr(place, lambda *arguments: None)
    told = f"everything in {folder.journal} has reached http://host:5\n"
    login = ("--tracking-uri", "http://ada:secret@host:5")
    assert calsweep("storage", "sync", folder.path, *login) == (0, told, "")


def test_reproduce(asked, empty_folder, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    place = "orchestrator.running.reproduce.reproduce"
    words = ("--tolerance", 0.5, "--data-root", "d", "--tracking-uri", URI)
    found = asked(place, "run", "--reproduce", "r1", *words)
    names = ("run_id", "tracking_uri", "data_root", "tolerance")
    assert [found[name] for name in names] == ["r1", URI, "d", 0.5]
    found["progress"]("train", 1, 3)
    assert capsys.readouterr() == ("", "train: epoch 1 of 3\n")
    quiet = asked(place, "run", "--reproduce", "r1", "--quiet")
    assert quiet["progress"]("train", 1, 3) is None
    assert capsys.readouterr() == ("", "")
    found = asked(place, "run", "--reproduce", "r1", "--storage", "kept")
    uri = default_uri(empty_folder, "kept")
    assert [found[name] for name in names] == ["r1", uri, "data", 1e-6]
    assert not Path(found["folder"]).exists()


def test_replay(asked, empty_folder, monkeypatch):
    place = "orchestrator.replay.replay"
    found = asked(place, "search", "replay", "kept")
    assert found["storage"].folder == empty_folder / "kept"
    assert found["settings"] == ReplaySettings()
    assert (list(found["sweeps"]), found["processes"]) == ([], None)
    (empty_folder / "replay.yaml").write_text("searches: 3\njudge: brier\nbudgets: [4]\n")
    words = ("--sweep", "a", "--sweep", "b", "--processes", 2, "--searches", 5)
    found = asked(place, "search", "replay", "kept", "replay.yaml", *words)
    expected = ReplaySettings(searches=5, judge="brier", budgets=(4,))
    assert found["settings"] == expected
    assert (list(found["sweeps"]), found["processes"]) == (["a", "b"], 2)
    found = asked(place, "search", "replay", "kept", "replay.yaml", "--judge", "ece")
    assert found["settings"] == ReplaySettings(searches=3, judge="ece", budgets=(4,))
    monkeypatch.setattr(place, lambda *arguments, **named: "an outcome")
    shown: list[Any] = []
    monkeypatch.setattr(_replay, "_show", lambda *arguments: shown.append(arguments))
    write = "orchestrator.replay.output.write_replay"
    found = asked(write, "search", "replay", "kept")
    assert found == {"outcome": "an outcome", "folder": empty_folder / "kept" / "replay"}
    found = asked(write, "search", "replay", "kept", "--out", "here", "--markdown")
    assert found["folder"] == Path("here")
    assert shown == [("an outcome", False), ("an outcome", True)]


@pytest.fixture
def _logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainables.data.read_logits", lambda path, kind=None: (str(path), kind))
    monkeypatch.setattr("orchestrator.logits.calibrate.plan_task", lambda *arguments: arguments)


@pytest.mark.usefixtures("_logits")
def test_calibrate(asked):
    place = "orchestrator.logits.calibrate.calibrate_table"
    chosen = ("--with", "ts, ets", "--objectives", "ls", "--bins", 20, "--out", "o")
    words = ("--fit-rows", "0:5", "--fit", "c.npz", "--kind", "probs")
    found = asked(place, "logits", "calibrate", "a.npz", "b.npz", *chosen, *words)
    assert list(found["tasks"]) == [
        ((name, "probs"), "0:5", ("c.npz", "probs")) for name in ("a.npz", "b.npz")
    ]
    assert (list(found["calibrators"]), list(found["objectives"])) == (["ts", "ets"], ["ls"])
    assert (found["bins"], found["out"], found["console"].stderr) == (20, Path("o"), True)
    plain = asked(place, "logits", "calibrate", "a.npz")
    assert list(plain["tasks"]) == [(("a.npz", None), None, None)]
    assert list(plain["calibrators"]) == ["ts", "ets", "pts", "cts"]
    assert list(plain["objectives"]) == ["ce", "ls", "fl", "cls"]
    assert (plain["bins"], plain["out"]) == (15, None)


def test_apply(asked, calsweep, monkeypatch):
    rows = SimpleNamespace(logits=torch.tensor([[2.0, 0.0], [0.0, 1.0]]), labels=torch.arange(2))
    kinds, saved = [], []

    def read(path: Path, kind: str | None) -> SimpleNamespace:
        kinds.append((str(path), kind))
        return SimpleNamespace(rows=rows)

    monkeypatch.setattr("trainables.data.read_logits", read)
    monkeypatch.setattr("trainables.calibrators.load_calibrator", lambda folder: torch.neg)
    monkeypatch.setattr(
        "orchestrator.logits.files.save_log_probs", lambda *arguments: saved.append(arguments)
    )
    words = ("logits", "apply", "calibrator", "a.npz")
    found = asked("orchestrator.logits.scoring.score", *words, "--bins", 20, "--kind", "logits")
    assert (found["bins"], kinds) == (20, [("a.npz", "logits")])
    assert torch.equal(found["log_probs"], -rows.logits)
    assert found["labels"] is rows.labels
    assert asked("orchestrator.logits.scoring.score", *words)["bins"] == 15
    monkeypatch.setattr("orchestrator.logits.scoring.score", lambda *arguments: (0.01, 0.5, 1.25))
    assert calsweep(*words).out.endswith(" 1.2500: calibrated.npz\n")
    told = calsweep(*words, "--out", "deep/o.npz").out
    assert told == "ECE 1.00 %, accuracy 50.00 %, NLL 1.2500: deep/o.npz\n"
    assert Path("deep").is_dir()
    (path, log_probs, labels) = saved[-1]
    assert (path, labels is rows.labels) == (Path("deep/o.npz"), True)
    assert torch.equal(log_probs, -rows.logits)


def test_arena(asked, night):
    place = "orchestrator.running.arena.run_arena"
    found = asked(place, "logits", "arena", night, "--processes", 3)
    assert (found["spec"].name, found["workers"]) == ("night", 3)
    assert asked(place, "logits", "arena", night)["workers"] is None


def test_doctor(asked, monkeypatch, empty_folder):
    monkeypatch.setattr(_doctor, "_ray", lambda: _doctor.Finding("Ray", "not asked"))
    monkeypatch.setattr("orchestrator.tracking.check_login", lambda uri, seconds: None)
    ping, reader = "orchestrator.tracking.ping", "trainables.data.find_reader"
    assert asked(ping, "doctor", "--tracking-uri", URI)["uri"] == URI
    kept = f"sqlite:///{empty_folder / 'kept'}/"
    assert asked(ping, "doctor", "--storage", "kept")["uri"].startswith(kept)
    monkeypatch.setattr(ping, lambda uri, seconds: (True, "there"))
    for words, place in (((), "data"), (("--data-root", "other"), "other")):
        assert asked(reader, "doctor", *words)["root"] == place


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "found"),
    [("calsweep tab", "table"), ("calsweep logs o", "one"), ("calsweep run --qui", "--quiet")],
)
def test_a_shell_completes_commands_and_sweeps(empty_folder, words, found):
    (empty_folder / "calsweep-storage/sweeps/one").mkdir(parents=True)
    (empty_folder / "calsweep-storage/sweeps/one/sweep.yaml").write_text("")
    place = str(words.count(" "))
    asked = {"_CALSWEEP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()"]
    environment = os.environ | asked | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == found


@pytest.mark.parametrize("command", ["", "run", "nightly", "nightly status"])
def test_help_has_a_short_form(calsweep, command):
    short, long = (calsweep(*command.split(), option) for option in ("-h", "--help"))
    assert (short.code, short.out) == (0, long.out)
    assert short.out.startswith("Usage: calsweep")
