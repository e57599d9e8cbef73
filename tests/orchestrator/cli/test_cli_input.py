"""Whatever a user gets wrong: one line on stderr, exit code 2, and nothing started."""

from __future__ import annotations

import re

import pytest

DEMO = ("demo", "--quiet")
ASK = ("best", "--task", "digits/convnet/digits", "--recipe", "ce")

# Words, and the whole of what is said; ``*`` stands for what may grow or is a system's own.
WRONG = {
    "command": (["frobnicate"], "No such command 'frobnicate'."),
    "option": (["demo", "--foo"], "No such option: --foo"),
    "option of the frame": (["--foo"], "No such option: --foo"),
    "no catalogue": (
        ["list"],
        "Missing argument 'what'. Choose from: methods, refinements, calibrators, "
        "objectives, datasets, suites, models, metrics, protocols, layouts, sweeps",
    ),
    "catalogue": (
        ["list", "things"],
        "Invalid value for 'what': 'things' is not one of 'methods', 'refinements', "
        "'calibrators', 'objectives', 'datasets', 'suites', 'models', 'metrics', "
        "'protocols', 'layouts', 'sweeps'.",
    ),
    "no sweep file named": (["run"], "give either a sweep file or --resume NAME"),
    "sweep file and resume": (
        ["run", "a.yaml", "--resume", "a"],
        "give either a sweep file or --resume NAME",
    ),
    "plan of nothing": (["plan"], "Missing argument 'sweep'."),
    "missing sweep file": (
        ["run", "absent.yaml"],
        "absent.yaml: cannot be read: [Errno 2] No such file or directory: 'absent.yaml'",
    ),
    "missing sweep file planned": (
        ["plan", "absent.yaml"],
        "absent.yaml: cannot be read: [Errno 2] No such file or directory: 'absent.yaml'",
    ),
    "folder as sweep file": (["plan", "."], ".: cannot be read: [Errno 21] Is a directory: '.'"),
    "resume of nothing": (
        ["run", "--resume", "nope"],
        "no sweep 'nope' in HERE/calsweep-storage/sweeps "
        "(another storage: --storage DIR); there are: none",
    ),
    "no task": ([*DEMO, "--tasks", "digits"], "--tasks: 'digits' is not dataset/model/protocol"),
    "empty tasks": ([*DEMO, "--tasks", ""], "--tasks: '' names nothing"),
    "data set": (
        [*DEMO, "--tasks", "mnist/convnet/digits"],
        "demo: tasks[0].dataset: unknown dataset 'mnist'; there are: 20newsgroups, *, voc2012",
    ),
    "model": (
        [*DEMO, "--tasks", "digits/convent/digits"],
        "demo: tasks[0].model: unknown model 'convent'; near are: convnet",
    ),
    "protocol": (
        [*DEMO, "--tasks", "digits/convnet/digist"],
        "demo: tasks[0].protocol: unknown protocol 'digist'; near are: digits",
    ),
    "recipe": (
        [*DEMO, "--recipes", "mbsl"],
        "recipe 'mbsl': 'mbsl' is unknown; near are: mbls, ms (methods: acls, au, *)",
    ),
    "empty recipes": ([*DEMO, "--recipes", ","], "--recipes: ',' names nothing"),
    "recipe twice": ([*DEMO, "--recipes", "ce,ce"], "recipe 'ce' stands twice"),
    "trials": (
        [*DEMO, "--trials", "0"],
        "demo: search.trials: input should be greater than or equal to 1, got 0",
    ),
    "no number of trials": (
        [*DEMO, "--trials", "few"],
        "Invalid value for '--trials': Input should be a valid integer, unable to parse "
        "string as an integer",
    ),
    "empty seeds": ([*DEMO, "--seeds", " "], "--seeds: ' ' names nothing"),
    "task without a data set": (
        [*DEMO, "--tasks", "/convnet/digits"],
        "--tasks: '/convnet/digits' is not dataset/model/protocol",
    ),
    "seeds": ([*DEMO, "--seeds", "bad"], "--seeds: 'bad' is not a whole number"),
    "negative seed": (
        [*DEMO, "--seeds=-1"],
        "demo: seeds[0]: input should be greater than or equal to 0, got -1",
    ),
    "seed twice": (
        [*DEMO, "--seeds", "1,1"],
        "demo: seeds: the same seed stands twice, got [1, 1]",
    ),
    "storage that is a file": (
        [*DEMO, "--storage", "file"],
        "storage HERE/file/sweeps/demo cannot be written: Not a directory",
    ),
    "none of the best": (
        [*ASK, "--top", "0"],
        "Invalid value for '--top': Input should be greater than or equal to 1",
    ),
    "no such end": (
        [*ASK, "--until", "tomorrow"],
        "--until 'tomorrow' is no date; allowed: 2026-05-01 or 2026-05-01T13:30",
    ),
    "tag without a key": ([*ASK, "--tag", "=red"], "--tag '=red' is not KEY=VALUE"),
    "tag without a value": ([*ASK, "--tag", "red"], "--tag 'red' is not KEY=VALUE"),
    "nothing tracked yet": (
        [*ASK],
        "no tracking database at HERE/calsweep-storage/mlflow.db (another storage: --storage DIR); "
        "`calsweep sync` builds it",
    ),
    "bad tracking uri": (
        [*ASK, "--tracking-uri", "./mlruns"],
        "tracking uri './mlruns' is not supported (MLflow 3 has given up plain folders); "
        "allowed: sqlite:///PATH/mlflow.db, http(s)://HOST:PORT, "
        "postgresql://USER@HOST/DATABASE or folder:/PATH",
    ),
    "no database": (
        [*ASK, "--tracking-uri", "sqlite:///file"],
        "file is no SQLite database; name another file",
    ),
    "server away": (
        [*ASK, "--tracking-uri", "http://127.0.0.1:9"],
        "tracking http://127.0.0.1:9 gives no answer: *",
    ),
    "format": (
        ["table", "--format", "word"],
        "Invalid value for '--format': 'word' is not one of 'terminal', 'markdown', "
        "'csv', 'json', 'latex', 'html', 'parquet'.",
    ),
    "storage without a folder": (
        ["table", "--storage", "file"],
        "tracking database HERE/file/mlflow.db cannot be read: Not a directory",
    ),
    "no resamples": (
        ["compare", "--draws", "0"],
        "Invalid value for '--draws': Input should be greater than or equal to 1",
    ),
    "no bins": (
        ["calibrate", "absent.npz", "--bins", "0"],
        "Invalid value for '--bins': Input should be greater than or equal to 1",
    ),
    "more bins than rows": (
        ["apply", "absent", "absent.npz", "--bins", "1000001"],
        "Invalid value for '--bins': Input should be less than or equal to 1000000",
    ),
    "no process": (
        ["arena", "absent.yaml", "--processes", "0"],
        "Invalid value for '--processes': Input should be greater than or equal to 1",
    ),
    "no searches": (
        ["replay", "absent", "--searches", "0"],
        "Invalid value for '--searches': Input should be greater than or equal to 1",
    ),
    "judge of a replay": (
        ["replay", "absent", "--judge", "foo"],
        "replay: judge: input should be 'nll', 'brier', * or 'smooth_ece', got 'foo'",
    ),
    "tolerance": (
        ["reproduce", "r1", "--tolerance=-0.1"],
        "Invalid value for '--tolerance': Input should be greater than or equal to 0",
    ),
    "plot of no demo": (
        ["plot"],
        "no sweep 'demo' in HERE/calsweep-storage/sweeps "
        "(another storage: --storage DIR); there are: none",
    ),
    "plot of nothing": (
        ["plot", "nope"],
        "no sweep 'nope' in HERE/calsweep-storage/sweeps "
        "(another storage: --storage DIR); there are: none",
    ),
    "journal of nothing": (
        ["sync", "absent.jsonl"],
        "HERE/absent.jsonl is no sweep's journal: that is STORAGE/sweeps/NAME/journal.jsonl",
    ),
    "folder without a journal": (
        ["sync", "."],
        "HERE/journal.jsonl is no sweep's journal: that is STORAGE/sweeps/NAME/journal.jsonl",
    ),
    "logits of nothing": (["calibrate", "absent.npz"], "absent.npz: no such file"),
    "calibrators before logits": (
        ["calibrate", "absent.npz", "--with", "nope"],
        "unknown calibrator 'nope'; there are: *",
    ),
    "calibrator of nothing": (["apply", "absent", "absent.npz"], "absent.npz: no such file"),
    "no .npz": (["apply", "a", "b.npz", "--out", "c.csv"], "c.csv: ending '.csv', allowed is .npz"),
    "claim": (
        ["claims", "a", "--claim", "none"],
        "--claim 'none' is not one of: acls-beats-mbls, *",
    ),
    "two things after a figure": (
        ["table", "--gain", "--baseline", "ce"],
        "--gain and --baseline exclude each other: both stand after a figure",
    ),
}


@pytest.mark.parametrize("command", ["plan", "run"])
def test_more_gpus_than_a_trial_can_use_are_refused(calsweep, empty_folder, command):
    path = empty_folder / "two.yaml"
    task = "{dataset: digits, model: convnet, protocol: digits}"
    path.write_text(f"name: a\ntasks: [{task}]\nrecipes: [ce]\nresources: {{refine: {{gpu: 2}}}}\n")
    code, out, err = calsweep(command, path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "resources.refine.gpu: a trial can use one GPU at most" in err
    assert [entry.name for entry in empty_folder.iterdir()] == ["two.yaml"]


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_gets_one_line(calsweep, empty_folder, mistake):
    (empty_folder / "file").write_text("no database, no folder")
    arguments, expected = WRONG[mistake]
    code, out, err = calsweep(*arguments)
    assert (code, out) == (2, "")
    told = f"calsweep: {expected}\n".replace("HERE", str(empty_folder))
    assert re.fullmatch(re.escape(told).replace(r"\*", ".+"), err), err
    assert [entry.name for entry in empty_folder.iterdir()] == ["file"]
