"""Whatever a user gets wrong: one line on stderr, exit code 2, and nothing started."""

from __future__ import annotations

import pytest

DEMO = ("demo", "--quiet")
ASK = ("best", "--task", "digits/convnet/digits", "--recipe", "ce")

WRONG = {
    "command": (["frobnicate"], "frobnicate"),
    "option": (["demo", "--foo"], "--foo"),
    "option of the frame": (["--foo"], "--foo"),
    "no catalogue": (["list"], "methods"),
    "catalogue": (["list", "things"], "'things' is not one of 'methods'"),
    "no sweep file named": (["run"], "either a sweep file or --resume"),
    "sweep file and resume": (["run", "a.yaml", "--resume", "a"], "either a sweep file or"),
    "plan of nothing": (["plan"], "sweep"),
    "missing sweep file": (["run", "absent.yaml"], "absent.yaml: cannot be read"),
    "missing sweep file planned": (["plan", "absent.yaml"], "absent.yaml: cannot be read"),
    "folder as sweep file": (["plan", "."], "cannot be read"),
    "resume of nothing": (["run", "--resume", "nope"], "no sweep 'nope'"),
    "no task": ([*DEMO, "--tasks", "digits"], "'digits' is not dataset/model/protocol"),
    "empty tasks": ([*DEMO, "--tasks", ""], "--tasks: '' names nothing"),
    "data set": ([*DEMO, "--tasks", "mnist/convnet/digits"], "unknown dataset 'mnist'"),
    "model": ([*DEMO, "--tasks", "digits/convent/digits"], "convent"),
    "protocol": ([*DEMO, "--tasks", "digits/convnet/digist"], "digist"),
    "recipe": ([*DEMO, "--recipes", "mbsl"], "'mbsl' is unknown"),
    "empty recipes": ([*DEMO, "--recipes", ","], "--recipes: ',' names nothing"),
    "recipe twice": ([*DEMO, "--recipes", "ce,ce"], "'ce' stands twice"),
    "trials": ([*DEMO, "--trials", "0"], "search.trials"),
    "no number of trials": ([*DEMO, "--trials", "few"], "--trials"),
    "seeds": ([*DEMO, "--seeds", "bad"], "--seeds: 'bad' is not a whole number"),
    "negative seed": ([*DEMO, "--seeds=-1"], "seeds[0]"),
    "seed twice": ([*DEMO, "--seeds", "1,1"], "same seed stands twice"),
    "storage that is a file": ([*DEMO, "--storage", "file"], "file/sweeps/demo cannot be written"),
    "no task asked for": (["best", "--recipe", "ce"], "--task"),
    "none of the best": ([*ASK, "--top", "0"], "--top"),
    "nothing tracked yet": ([*ASK], "no tracking database at"),
    "bad tracking uri": ([*ASK, "--tracking-uri", "./mlruns"], "'./mlruns' is not supported"),
    "no database": ([*ASK, "--tracking-uri", "sqlite:///file"], "is no SQLite database"),
    "server away": ([*ASK, "--tracking-uri", "http://127.0.0.1:9"], "127.0.0.1:9 gives no answer"),
    "format": (["table", "--format", "word"], "'word' is not one of 'terminal'"),
    "storage without a folder": (["table", "--storage", "file"], "file is not a folder"),
    "plot of nothing": (["plot", "nope"], "no sweep 'nope'"),
    "journal of nothing": (["sync", "absent.jsonl"], "absent.jsonl is no sweep's journal"),
    "folder without a journal": (["sync", "."], "journal.jsonl is no sweep's journal"),
    "logits of nothing": (["calibrate", "absent.npz"], "absent.npz: no such file"),
    "calibrator of nothing": (["apply", "absent", "absent.npz"], "absent"),
    "no .npz": (["apply", "a", "b.npz", "--out", "c.csv"], "c.csv: ending '.csv', allowed is .npz"),
    "claim": (["claims", "a", "--claim", "none"], "--claim 'none' is not one of: "),
    "two things after a figure": (["table", "--gain", "--baseline", "ce"], "exclude each other"),
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
    assert err.startswith("calsweep: ")
    assert err.count("\n") == 1
    assert expected in err
    assert [entry.name for entry in empty_folder.iterdir()] == ["file"]
