import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from orchestrator.cli import _reproduce
from orchestrator.cli._console import print_table, progress_bar
from orchestrator.cli._outcome import _relative, _tracking, show_outcome
from orchestrator.running.preview import StagePreview
from orchestrator.running.reproduce import Comparison, Reproduction
from orchestrator.running.run import SweepOutcome
from orchestrator.storage.garbage import Removal
from orchestrator.storage.results import StudyResult
from orchestrator.storage.storage import Storage, SweepFolder
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tables.arrange import build_table
from orchestrator.tables.make import render
from orchestrator.tracking import BestConfig

SWEEP = """
name: night
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce]
storage: kept
"""


def words(out):
    return [line.split() for line in out.splitlines() if line.strip()]


@pytest.mark.parametrize(("option", "freed"), [([], "were"), (["--dry-run"], "would be")])
def test_gc_tells_how_much(calsweep, monkeypatch, option, freed):
    found = [Removal("train", 1, 2, 1_500_000, 300_000), Removal("data", 0, 3, 100_000, 0)]
    monkeypatch.setattr("orchestrator.storage.garbage.collect_garbage", lambda *_: found)
    code, out, _ = calsweep("storage", "gc", *option)
    assert code == 0
    assert words(out) == [
        ["kind", "removed", "MB", "kept", "MB"],
        ["train", "1", "1.5", "2", "0.3"],
        ["data", "0", "0.1", "3", "0.0"],
        ["1.6", "MB", *freed.split(), "freed"],
    ]
    head, train, data = out.splitlines()[:3]
    assert (train.index("train"), data.index("data")) == (head.index("kind"),) * 2
    for end in (head.index("removed") + 7, head.index("kept") + 4):
        assert all(row[end - 1] != " " == row[end] for row in (train, data))


def test_tables_escape_control_characters_and_ignore_markup(capsys):
    print_table(("recipe",), [("\x1b[31mred",), ("[bold]x[/bold]",)], ("recipe",))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    assert "[bold]x[/bold]" in out


def test_a_terminal_too_narrow_for_standings_still_has_a_line_a_row(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    monkeypatch.setenv("COLUMNS", "24")
    rows = [("ce", "+0.5 [0.1; 0.7]"), ("ls", "0 [0; 0]")]
    print_table(("recipe", "NLL gain"), rows, ("recipe",))
    told = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert [line.split()[0] for line in told.splitlines() if line.strip()][2:] == ["ce", "ls"]


def test_progress_is_shown_where_somebody_watches_and_leaves_nothing_behind(capsys, monkeypatch):
    with progress_bar("fitting") as show:
        show(1, 4)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("fitting") as show:
        show(1, 4)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    assert "fitting" in drawn.err
    assert "\x1b[2K" in drawn.err.rpartition("fitting")[2], "the bar still stands there"
    assert " 25%" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn.err)


def best_of(number, **fields):
    known = {"task": "a/b/c", "recipe": "ls", "sweep": "s", "run_id": f"r{number}"}
    known |= {"number": number, "objective": 0.1 * number, "rule": {}, "validation": {}}
    return BestConfig(**known, fixed={"ls": {"smoothing": number / 10}}, **fields)


@pytest.fixture
def best(calsweep, monkeypatch):
    """Return a function that asks for the best, of which there are two, or one."""
    found = [best_of(1, note="older code is left out"), best_of(2)]

    def call(*arguments, top=2):
        monkeypatch.setattr("orchestrator.tracking.best_config", lambda *_, **__: found[:top])
        return calsweep("best", "--task", "a/b/c", "--recipe", "ls", "--top", top, *arguments)

    return call, found


def test_the_best_are_one_document_or_several(best):
    call, found = best
    code, out, err = call()
    assert (code, err) == (0, "calsweep: older code is left out\n")
    assert list(yaml.safe_load_all(out)) == [one.to_dict() for one in found]
    assert call("--format", "json").out == (
        json.dumps([one.to_dict() for one in found], indent=2) + "\n"
    )
    assert json.loads(call("--format", "json", top=1).out) == found[0].to_dict()
    assert call("--format", "fixed", top=1).out == found[0].to_fixed()
    assert call("--format", "fixed").out == "---\n".join(one.to_fixed() for one in found)
    assert call(top=1).out == found[0].to_yaml()


@pytest.mark.parametrize(
    ("out", "stem"), [("o.yaml", "o"), ("o.yml", "o"), ("o.json", "o"), ("d/e/o.1", "d/e/o.1")]
)
def test_the_best_are_written_under_the_name_that_was_given(best, empty_folder, out, stem):
    call, found = best
    told = call("--out", out).out.splitlines()
    files = [f"{stem}-{rank}.{ending}" for rank in (1, 2) for ending in ("yaml", "json")]
    assert told == [f"wrote {name}" for name in files]
    read = [yaml.safe_load((empty_folder / name).read_text()) for name in files]
    assert read == [found[0].to_dict()] * 2 + [found[1].to_dict()] * 2
    assert call("--out", out, top=1).out == f"wrote {stem}.yaml\nwrote {stem}.json\n"


@pytest.mark.parametrize(("new", "words"), [(True, "champion\n"), (False, "champion already\n")])
def test_the_very_best_is_promoted(best, monkeypatch, new, words):
    asked = []

    def promote(*arguments):
        asked.append(arguments)
        return SimpleNamespace(model="a.b.c", version="3", alias="champion", new=new)

    monkeypatch.setattr("orchestrator.tracking.champion.promote", promote)
    _, _, err = best[0]("--promote", "--tracking-uri", "folder:/t", "--storage", "kept")
    assert asked == [("r1", "folder:/t", "kept")]
    assert err.endswith(f"calsweep: a.b.c version 3 is the {words}")


DIFFERENT = "different: val_ece by -5.00e-02, more than 0.001"


@pytest.mark.parametrize(
    ("reproduced", "commit", "code", "verdict"),
    [
        (0.25, "c0ffee", 0, "equal: no figure differs by more than 0.001"),
        (0.251, "", 0, "equal: no figure differs by more than 0.001"),
        (0.2, "c0ffee", 1, f"{DIFFERENT}; the run's code is c0ffee"),
        (0.2, "", 1, f"{DIFFERENT}; the run's code is unknown"),
    ],
)
def test_a_reproduction_is_a_table_and_a_verdict(
    calsweep, monkeypatch, reproduced, commit, code, verdict
):
    study = SimpleNamespace(recipe="ls", task="a/b/c")
    run = SimpleNamespace(study=study, trial=SimpleNamespace(seed=7, code=commit))
    figures = (Comparison("val_ece", 0.25, reproduced), Comparison("test_acc", 0.5, 0.5))
    found = Reproduction(run, figures, 0.001 + 1e-9, "key", ("another GPU", "other code"))
    monkeypatch.setattr("orchestrator.running.reproduce.reproduce", lambda *_, **__: found)
    answer = calsweep("run", "--reproduce", "r1")
    lines = [line.strip() for line in answer.out.splitlines() if line.strip()]
    assert (answer.code, lines[0]) == (code, "ls on a/b/c, seed 7")
    remarks = [f"results may differ: {remark}" for remark in found.remarks]
    assert lines[-3:] == [*remarks, verdict]
    head = [cell.strip() for cell in lines[2].strip("┃").split("┃")]
    assert head == ["metric", "recorded", "reproduced", "difference"]
    assert [line[-3:] for line in lines if "test_acc" in line] == ["0 │"]
    assert all("│ val_ece " in line for line in lines if "val_ece  " in line)
    rows = [line.split() for line in lines if line.startswith(("val_ece", "test_acc", "│"))]
    rows = [[cell for cell in row if cell != "│"] for row in rows]
    gap = reproduced - 0.25
    change = f"{gap:+.2e}" if gap else "0"
    assert rows == [
        ["val_ece", "0.250000", f"{reproduced:.6f}", change],
        ["test_acc", "0.500000", "0.500000", "0"],
    ]


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(1, [1]), (5, [1, 2, 3, 4, 5]), (20, [1, *range(2, 21, 2)]), (25, [1, *range(2, 25, 2), 25])],
)
def test_reproduce_prints_at_most_about_ten_epochs(capsys, epochs, told):
    show = _reproduce._shown(Console())
    for epoch in range(1, epochs + 1):
        show("train", epoch, epochs)
    expected = [f"train: epoch {epoch} of {epochs}" for epoch in told]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_plan_shows_times_where_they_are_known(calsweep, monkeypatch, empty_folder):
    (empty_folder / "night.yaml").write_text(SWEEP)
    stages = [StagePreview("t", "train", 40, 2, 90.0), StagePreview("t", "refine", 3, 0, None)]
    stages += [StagePreview("t", "calibrate", 0, 5, 0.25)]
    stages += [StagePreview("u", "calibrate", 4, 0, 0.0)]
    monkeypatch.setattr("orchestrator.running.preview.preview", lambda *_: stages)
    lines = calsweep("plan", "night.yaml").out.splitlines()
    rows = [[cell for cell in re.split(" {2,}", line.strip()) if cell] for line in lines]
    task = "digits/convnet/digits"
    assert rows == [
        ["task", "recipe", "stage", "trials", "searches", "builds on"],
        [task, "ce", "train", "1", "nothing: one trial"],
        [
            "1 study, 1 trial: at most 1 training, 0 refinements on stored features, "
            "0 calibrations of stored logits"
        ],
        ["one training per trial would be 1 training"],
        ["task", "stage", "to compute, at most", "reused", "time each", "time in all"],
        ["t", "train", "40", "2", "1 min 30 s", "1 h 00 min"],
        ["t", "refine", "3", "0", "no estimate"],
        ["t", "calibrate", "0", "5", "0.2 s", "0 s"],
        ["u", "calibrate", "4", "0", "0 s", "0 s"],
        [
            "sweep 'night'; times are for one trial at a time, estimated from the last tracked "
            "runs on the same data, model and protocol"
        ],
    ]


@pytest.fixture
def outcome(journal_writer):
    """Return the outcome of a sweep of one recipe."""
    spec = parse_sweep(f"{SWEEP}tracking: {{uri: 'http://me:secret@host:5000'}}", "night")
    spec = spec.model_copy(update={"storage": str(Storage("kept").folder)})
    result = StudyResult("night", "t", "ce", "finished", test=({"acc": 0.9, "ece": 0.05},))
    SweepFolder.of(spec).path.mkdir(parents=True)
    writer = journal_writer(SweepFolder.of(spec).path, "night")
    writer.start()
    writer.end()
    return SweepOutcome(spec, "finished", (result,), True, 61.4)


def test_a_sweep_ends_with_its_table_and_places(capsys, outcome):
    assert show_outcome(outcome) == 1  # It has no report.
    out = capsys.readouterr().out
    assert ["ce", "90.00", "5.00", "–", "–", "–"] in words(out)
    *_, where, report, untracked = out.splitlines()
    assert untracked.startswith("tables and report are not tracked: ")
    assert "secret" not in out
    assert where == (
        "1 min 01 s · tracking: http://host:5000 · artifacts: kept/artifacts · "
        "configurations: kept/sweeps/night/chosen · "
        "tables: kept/sweeps/night/table.md, .csv, .tex, .html"
    )
    assert report == "no report: sweep night has no study yet, so there is nothing to report"
    folder, table = SweepFolder.of(outcome.spec), build_table(outcome.results)
    for ending, name in {"md": "markdown", "csv": "csv", "tex": "latex", "html": "html"}.items():
        assert folder.table(ending).read_text() == render(table, name)


@pytest.mark.parametrize("address", [None, "auto"])
def test_an_interrupted_sweep_says_how_to_go_on(capsys, outcome, address, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal, a narrow one.
    monkeypatch.setenv("COLUMNS", "40")
    stopped = replace(outcome, status="interrupted")
    assert show_outcome(stopped, address) == 130
    storage = Storage("kept").folder
    command = f"calsweep run --resume night --storage {storage}"
    command += "" if address is None else " --address auto"
    told = f"sweep night was interrupted; resume it with: {command}\n"
    assert capsys.readouterr().out == told
    assert not SweepFolder.of(stopped.spec).table("md").exists()


def test_a_path_outside_the_working_folder_is_printed_in_full(empty_folder):
    assert _relative(empty_folder / "a" / "b") == "a/b"
    assert _relative(empty_folder.parent / "c") == str(empty_folder.parent / "c")


def test_an_undelivered_sweep_prints_the_sync_command(capsys, outcome):
    show_outcome(replace(outcome, tracked=False))
    assert capsys.readouterr().out.splitlines()[-1] == (
        "not everything has reached http://host:5000; deliver the rest with: "
        f"calsweep storage sync {outcome.journal}"
    )


def test_commands_to_be_copied_have_odd_names_in_quotation_marks(capsys, outcome, tmp_path):
    storage = f"{tmp_path}/it's mine"
    spec = outcome.spec.model_copy(update={"storage": storage})
    show_outcome(replace(outcome, spec=spec, status="interrupted", tracked=False))
    told = [line.partition(": calsweep ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [shlex.split(command) for command in told] == [
        ["run", "--resume", "night", "--storage", storage],
        ["storage", "sync", f"{storage}/sweeps/night/journal.jsonl"],
    ]


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1)])
def test_a_sweep_with_a_journal_ends_with_its_report(capsys, outcome, journal_writer, status, code):
    folder = SweepFolder.of(outcome.spec)
    writer = journal_writer(folder.path, "night")
    writer.start()
    writer.trial(writer.open("ce"), 0, 0.1)
    writer.end()
    assert show_outcome(replace(outcome, status=status)) == code
    assert capsys.readouterr().out.splitlines()[-2] == "report: kept/sweeps/night/report.html"
    assert folder.report.is_file()


def test_a_report_that_cannot_be_written_after_the_work_is_exit_code_1(calsweep, journal_writer):
    folder = Storage("kept").sweep("night")
    folder.write_spec(parse_sweep(SWEEP, "night"))
    writer = journal_writer(folder.path, "night")
    writer.start()
    writer.trial(writer.open("ce"), 0, 0.1)
    folder.report.mkdir()
    code, out, err = calsweep("report", "night", "--storage", "kept")
    assert (code, out) == (1, "")
    assert re.fullmatch(f"calsweep: report {folder.report}.* cannot be written: .*\n", err)


@pytest.mark.parametrize("name", ["table.md", "report.html"])
def test_a_table_or_report_that_cannot_be_written_is_a_line_and_exit_code_1(
    capsys, outcome, journal_writer, name
):
    folder = SweepFolder.of(outcome.spec)
    writer = journal_writer(folder.path, "night")
    writer.start()
    writer.trial(writer.open("ce"), 0, 0.1)
    (folder.path / name).mkdir()
    assert show_outcome(replace(outcome, tracked=False, fault="it is damaged")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(f"{name} cannot be written: Is a directory" in line for line in lines) == 1
    assert (
        "http://host:5000: it is damaged; deliver the rest with: calsweep storage sync "
        in lines[-1]
    )


def test_plots_are_listed(calsweep, journal_writer, empty_folder):
    spec = parse_sweep(SWEEP, "night")
    folder = SweepFolder.of(spec)
    folder.write_spec(spec)
    writer = journal_writer(folder.path, "night")
    writer.start()
    words = ("report", "night", "--storage", "kept", "--plots", "drawn")
    told = "calsweep: sweep night has no study yet, so there is nothing to report\n"
    assert calsweep(*words) == (2, "there is nothing to plot yet\n", told)
    for recipe in ("ce", "ls"):
        writer.trial(writer.open(recipe), 0, 0.1)
    writer.end()
    code, out, _ = calsweep(*words)
    names = [f"digits-convnet-digits--{recipe}-learning.svg" for recipe in ("ce", "ls")]
    drawn = ("2 plots in drawn:", *(f"  {name}" for name in names))
    assert (code, out.splitlines()) == (0, [*drawn, f"wrote {folder.report}"])
    assert sorted(path.name for path in Path("drawn").iterdir()) == names


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("http://ada:secret@mlflow:5000", "http://mlflow:5000"),
        ("folder:/data/runs", "folder:/data/runs"),
        ("sqlite:////my runs.db", "mlflow ui --backend-store-uri 'sqlite:////my runs.db'"),
        ("postgresql://ada:secret@m/runs", "mlflow ui --backend-store-uri postgresql://ada@m/runs"),
    ],
)
def test_a_server_is_a_page_and_a_store_needs_a_command(uri, text):
    assert _tracking(uri) == text
