import re
import shlex

import pytest

ASK = "best --task t --recipe ce"
# Words, and the whole of what is said; ``*`` stands for what may grow or is a system's own.
WRONG = {
    "frobnicate": "No such command 'frobnicate'.",
    "demo --foo": "No such option: --foo",
    "list": "Missing argument 'what'. Choose from: methods, *, sweeps",
    "list things": "Invalid value for 'what': 'things' is not one of 'methods', *, 'sweeps'.",
    "run": "give one of: a sweep file, --resume NAME, --reproduce RUN",
    "run a.yaml --resume a": "give one of: a sweep file, --resume NAME, --reproduce RUN",
    "plan": "Missing argument 'sweep'.",
    "run absent.yaml": "absent.yaml: cannot be read: [Errno 2] No such file *",
    "plan .": ".: cannot be read: [Errno 21] Is a directory: '.'",
    "run --resume nope": "no sweep 'nope' in HERE/calsweep-storage/sweeps *; there are: none",
    "demo --storage file": "storage HERE/file/sweeps/demo cannot be written: Not a directory",
    f"{ASK} --top 0": "Invalid value for '--top': Input should be greater than or equal to 1",
    f"{ASK} --until tomorrow": (
        "--until 'tomorrow' is not a date; use 2026-05-01 or 2026-05-01T13:30"
    ),
    f"{ASK} --tag =red": "--tag '=red' is not KEY=VALUE",
    ASK: "no sweep in HERE/calsweep-storage/sweeps *",
    f"{ASK} --tracking-uri ./mlruns": (
        "tracking uri './mlruns' is not supported *; allowed: sqlite:///PATH/mlflow.db, *"
    ),
    f"{ASK} --tracking-uri sqlite:///file": "file is not a SQLite database; *",
    f"{ASK} --tracking-uri http://127.0.0.1:9": "tracking http://127.0.0.1:9 gives no answer: *",
    "table --format word": (
        "Invalid value for '--format': 'word' is not one of 'terminal', *, 'parquet'."
    ),
    "table --storage file": "tracking database HERE/file/mlflow.db cannot be read: Not a directory",
    "logits calibrate absent.npz --bins 0": (
        "Invalid value for '--bins': Input should be greater than or equal to 1"
    ),
    "logits apply absent absent.npz --bins 1000001": (
        "Invalid value for '--bins': Input should be less than or equal to 1000000"
    ),
    "search replay absent --judge foo": (
        "replay: judge: input should be 'nll', 'brier', * or 'smooth_ece', got 'foo'"
    ),
    "run --reproduce r1 --tolerance=-0.1": (
        "Invalid value for '--tolerance': Input should be greater than or equal to 0"
    ),
    "report nope --plots p": "no sweep 'nope' in HERE/calsweep-storage/sweeps *; there are: none",
    "storage sync absent.jsonl": (
        "HERE/absent.jsonl is not a sweep's journal; use STORAGE/sweeps/NAME/journal.jsonl"
    ),
    "storage sync .": (
        "HERE/journal.jsonl is not a sweep's journal; use STORAGE/sweeps/NAME/journal.jsonl"
    ),
    "logits calibrate absent.npz": "absent.npz: no such file",
    "logits calibrate absent.npz --with nope": "unknown calibrator 'nope'; there are: *",
    "logits apply absent absent.npz": "absent.npz: no such file",
    "logits apply a b.npz --out c.csv": "c.csv: expected a name that ends with .npz, got '.csv'",
    "compare a --claims --claim none": "--claim 'none' is not one of: acls-beats-mbls, *",
    "compare a b": "compare takes one sweep; --ranks, --claims and --question spread take several",
    "compare a --ranks --tracking-uri x --storage y": (
        "--tracking-uri and --storage exclude each other: runs are read from only one place"
    ),
    "table --show gain --baseline ce": (
        "--show gain and --baseline exclude each other: both show a difference after a figure"
    ),
}


@pytest.mark.parametrize("command", ["plan", "run"])
def test_more_gpus_than_a_trial_can_use_are_refused(calsweep, empty_folder, command):
    path = empty_folder / "two.yaml"
    task = "{dataset: digits, model: convnet, protocol: digits}"
    path.write_text(f"name: a\ntasks: [{task}]\nrecipes: [ce]\nresources: {{refine: {{gpu: 2}}}}\n")
    code, out, err = calsweep(command, path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "resources.refine.gpu: a trial can use at most one GPU" in err
    assert [entry.name for entry in empty_folder.iterdir()] == ["two.yaml"]


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_gets_one_line(calsweep, empty_folder, mistake):
    (empty_folder / "file").write_text("no database, no folder")
    code, out, err = calsweep(*shlex.split(mistake))
    assert (code, out) == (2, "")
    told = f"calsweep: {WRONG[mistake]}\n".replace("HERE", str(empty_folder))
    assert re.fullmatch(re.escape(told).replace(r"\*", ".+"), err), err
    assert [entry.name for entry in empty_folder.iterdir()] == ["file"]
