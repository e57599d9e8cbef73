import json
import shutil
import threading
from itertools import chain

import pytest
import yaml
from filelock import FileLock

from orchestrator.sweep.plan import searched_parameters, starting_values
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tables.columns import shown_names
from orchestrator.tracking import open_tracker
from orchestrator.tracking import sync as deliver
from orchestrator.tracking.tracker import RunQuery
from trainables.metrics import METRICS

LISTED = [name for name in shown_names() if not METRICS.columns([name])]

TASK = "digits/convnet/digits"
TEST = {"test_acc": 0.98, "test_ece": 0.0123, "test_aece": 0.01, "test_cwece": 0.004}
UNKNOWN = (
    f"unknown metric 'foo'; there are: {', '.join(LISTED)}, and SUITE/METRIC for a suite; "
    "`calsweep list metrics` shows all"
)
SWEEP = """
name: {name}
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce, mbls]
"""


@pytest.fixture
def store(tmp_path):
    return f"folder:{tmp_path}/tracked"


@pytest.fixture
def journal(writer):
    """Return the journal of a finished sweep of ``ce`` (one trial) and ``mbls`` (three)."""
    writer.start()
    ce, mbls = writer.open("ce", trials=1), writer.open("mbls", trials=3)
    keys = [writer.trial(ce, 0, 0.3, configuration={"ce": {}})]
    for number, objective in enumerate([0.3, 0.1, 0.2]):
        configuration = {"mbls": {"margin": 6.0 + number, "weight": 0.1, "variant": "released"}}
        keys.append(writer.trial(mbls, number, objective, configuration=configuration))
    writer.close(ce, keys[0], finished=1)
    writer.close(mbls, keys[2], finished=3)
    writer.evaluate(keys[0], ce, **TEST, test_nll=0.06)
    writer.evaluate(keys[2], mbls, **{**TEST, "test_ece": 0.0099}, test_nll=0.05)
    writer.end()
    return writer.path


@pytest.fixture
def ask(calsweep, journal, writer, store, monkeypatch):
    """Return a function that asks about that sweep on the store."""
    deliver(journal, store)

    def call(command, *arguments):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        return calsweep(command, writer.sweep, *arguments)

    return call


@pytest.fixture
def best(ask):
    return lambda *arguments: ask("best", "--task", TASK, "--recipe", "mbls", *arguments)


def test_best_prints_the_lowest_objective_as_yaml_and_json(best):
    code, out, err = best()
    found = yaml.safe_load(out)
    assert (code, err) == (0, "")
    assert (found["number"], found["objective"]) == (1, 0.1)
    assert found["fixed"] == {"mbls": {"margin": 7.0, "weight": 0.1, "variant": "released"}}
    assert json.loads(best("--format", "json").out) == found


def test_best_of_a_sweep_is_that_of_every_recipe(ask):
    code, out, err = ask("best")
    found = list(yaml.safe_load_all(out))
    assert (code, err) == (0, "")
    assert [(one["task"], one["recipe"]) for one in found] == [(TASK, "ce"), (TASK, "mbls")]
    (ce,) = json.loads(ask("best", "--recipe", "ce", "--top", "2", "--json").out)
    assert ce == found[0]
    refused = ask("best", "--promote")
    assert refused.code == 2
    assert refused.err == (
        "calsweep: --promote: expected one recipe on one task; add --task and --recipe\n"
    )
    unknown = ask("best", "--recipe", "fl").err
    assert unknown.startswith("calsweep: no recipe 'fl' on "), unknown


def test_best_says_that_no_trial_has_finished(calsweep, writer, store):
    writer.start()
    writer.open("mbls", trials=3)
    writer.end("interrupted")
    deliver(writer.path, store)
    scope = (writer.sweep, "--tracking-uri", store, "--task", TASK, "--recipe", "mbls")
    for form in ("yaml", "json", "fixed"):
        code, out, err = calsweep("best", *scope, "--format", form)
        assert (code, out) == (1, "")
        assert err == f"calsweep: no trial of 'mbls' on '{TASK}' has finished\n"


def test_best_goes_into_files_that_another_sweep_file_takes(best, empty_folder):
    code, out, _ = best("--out", "chosen/mbls")
    found = yaml.safe_load((empty_folder / "chosen" / "mbls.yaml").read_text())
    assert code == 0
    assert out == "wrote chosen/mbls.yaml\nwrote chosen/mbls.json\n"
    assert json.loads((empty_folder / "chosen" / "mbls.json").read_text()) == found
    document = {**yaml.safe_load(SWEEP.format(name="again")), "search": {"fixed": found["fixed"]}}
    spec = parse_sweep(yaml.safe_dump(document), "again")
    assert searched_parameters(spec, "mbls", spec.tasks[0]) == {}
    assert starting_values(spec, "mbls", spec.tasks[0])["margin"] == 7.0


def test_best_with_top_2_returns_a_list_even_of_one_trial(ask, empty_folder):
    words = ("best", "--task", TASK, "--recipe", "ce")
    one, several = (json.loads(ask(*words, "--json", "--top", top).out) for top in (1, 2))
    assert several == [one]
    assert ask(*words, "--top", 2, "--out", "ce").code == 0
    assert sorted(path.name for path in empty_folder.iterdir()) == ["ce-1.json", "ce-1.yaml"]


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("file/inside", "--out: file/inside cannot be written: HERE/file is not a folder"),
        ("/", "--out /: cannot be written: PosixPath('/') has an empty name"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(best, empty_folder, out, told):
    (empty_folder / "file").write_text("")
    code, _, err = best("--out", out)
    assert (code, err) == (2, f"calsweep: {told.replace('HERE', str(empty_folder))}\n")


@pytest.mark.parametrize(
    ("option", "value", "what", "listing"),
    [
        ("--task", "mnist/x/y", "task 'mnist/x/y'", TASK),
        ("--recipe", "fl", f"recipe 'fl' for '{TASK}'", "ce, mbls"),
    ],
)
def test_best_lists_the_known_names_if_one_is_unknown(ask, store, option, value, what, listing):
    options = {"--task": TASK, "--recipe": "mbls", option: value}
    told = f"calsweep: no {what} on {store}; there are: {listing}\n"
    assert ask("best", *chain(*options.items())) == (2, "", told)


@pytest.mark.full
def test_best_of_an_unknown_sweep_lists_the_known_sweeps(calsweep, journal, database, writer):
    deliver(journal, database)
    code, out, err = calsweep("best", "nope", "--tracking-uri", database)
    assert (code, out) == (2, "")
    told = f"calsweep: no sweep 'nope' on {database} (another storage: --storage DIR); there are: "
    assert err.startswith(told)
    assert writer.sweep in err


def test_the_table_has_every_recipe(ask):
    code, out, err = ask("table")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert (code, err) == (0, "")
    assert rows["ce"] == ["98.00", "1.23", "1.00", "0.400", "0.0600"]
    assert rows["mbls"] == ["98.00", "0.99", "1.00", "0.400", "0.0500"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--metrics", "foo"], UNKNOWN),
        (["--metrics", ""], "metrics: expected one or more different metrics, got none"),
    ],
)
def test_the_table_refuses_unknown_arguments(ask, arguments, expected):
    code, out, err = ask("table", *arguments)
    assert (code, out, err) == (2, "", f"calsweep: {expected}\n")


@pytest.fixture
def stored(journal, writer, empty_folder):
    """Return the folder of that sweep inside a storage."""
    folder = empty_folder / "moved-storage" / "sweeps" / "left-over"
    folder.mkdir(parents=True)
    shutil.copy(journal, folder / "journal.jsonl")
    (folder / "sweep.yaml").write_text(SWEEP.format(name="left-over"))
    return folder


def test_sync_delivers_each_event_once(calsweep, stored, writer, database, snapshot):
    store = database
    first = calsweep("storage", "sync", stored, "--tracking-uri", store)
    delivered = snapshot(store, writer.sweep)
    again = calsweep("storage", "sync", stored / "journal.jsonl", "--tracking-uri", store)
    assert first == again == (0, f"everything in {stored}/journal.jsonl has reached {store}\n", "")
    assert len(delivered["runs"]) == 6  # two studies, four trials
    assert snapshot(store, writer.sweep) == delivered


def test_sync_waits_for_the_process_of_an_ended_sweep_that_still_delivers(
    calsweep, stored, database, monkeypatch
):
    monkeypatch.setattr("orchestrator.tracking._shipper.LOCK_WAIT", 0.1)
    lock = FileLock(stored / "shipped.lock", thread_local=False)
    lock.acquire()
    threading.Timer(1.0, lock.release).start()
    found = calsweep("storage", "sync", stored, "--tracking-uri", database)
    told = f"another process still delivers {stored}/journal.jsonl; waiting for its end"
    assert found.code == 0
    assert found.out.splitlines()[0] == told


def test_sync_brings_the_tables_and_the_report_of_a_sweep_that_has_ended(
    calsweep, stored, store, tmp_path
):
    for name in ("table.md", "report.html"):
        (stored / name).write_text(name)
    for _ in range(2):
        assert calsweep("storage", "sync", stored, "--tracking-uri", store).code == 0
    tracker = open_tracker(store)
    place, _ = tracker.open_experiment("left-over", tmp_path)
    (run,) = tracker.runs(RunQuery([place.id], {}))
    assert (run.tags["calsweep.kind"], run.status) == ("outcome", "FINISHED")
    (report,) = tmp_path.glob(f"tracked/**/{run.id}/**/report.html")
    assert report.read_text() == "report.html"
    names = {path.name for path in report.parent.iterdir()}
    assert names == {"sweep.yaml", "table.md", "report.html"}


@pytest.mark.parametrize("end", [None, "interrupted"])
def test_sync_brings_no_tables_of_a_sweep_that_has_not_ended(calsweep, stored, writer, store, end):
    (stored / "table.md").write_text("of an earlier run")
    *kept, _ = writer.path.read_text().splitlines(keepends=True)
    writer.path.write_text("".join(kept))
    if end:
        writer.end(end)
    shutil.copy(writer.path, stored)
    assert calsweep("storage", "sync", stored, "--tracking-uri", store).code == 0
    assert open_tracker(store).sweeps().keys() == {writer.sweep}


@pytest.mark.parametrize("lost", ["sweep.yaml", "journal.jsonl"])
def test_sync_needs_the_journal_and_the_sweep_file(calsweep, stored, store, lost):
    (stored / lost).unlink()
    code, _, err = calsweep("storage", "sync", stored, "--tracking-uri", store)
    told = "is not a sweep's journal; use STORAGE/sweeps/NAME/journal.jsonl"
    assert (code, err) == (2, f"calsweep: {stored}/journal.jsonl {told}\n")
