import inspect
import io
import json
import os
import pickle
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from orchestrator.cli import main
from orchestrator.cli._logits import apply, calibrate
from orchestrator.logits.calibrate import (
    CalibrationCell,
    CalibrationTable,
    Task,
    average_cell,
    calibrate_table,
    plan_task,
)
from orchestrator.logits.files import make_folder, parse_rows, save_log_probs
from orchestrator.logits.progress import _Watch, shown_recipes
from orchestrator.logits.scoring import score
from tests.orchestrator.disks import files_of_at_most
from tests.trainables.data.small_data import refusal
from trainables.calibrators import build_calibrator, cross_fit, load_calibrator
from trainables.common.errors import InputError
from trainables.data import DataNote, LogitRows, read_logits
from trainables.metrics import calibration_report


def draw(rows: int = 400, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, (rows, classes)).astype(np.float32)
    noise = generator.gumbel(size=logits.shape)
    return logits, (logits / 2 + noise).argmax(1).astype(np.int64)


@pytest.fixture
def npz(tmp_path):
    logits, labels = draw()
    np.savez(tmp_path / "net.npz", logits=logits, labels=labels)
    return tmp_path / "net.npz"


TWO = np.zeros((2, 3))
ONE_ARRAY = "scores: expected exactly one array named logits or probs or predictions; the file has"
NOT_ONE = (
    "rows add up to 1.5 to 1.5, expected 1; they may be one sigmoid per class; save probabilities "
    "of classes that add up to 1 (divide each row by its sum if the network is used in "
    "this way)"
)
ONE_SCORE = (
    "expected one score per class, got one per row (shape (3,)); for probabilities p of "
    "class 1, save probs = np.stack([1 - p, p], axis=1), or a table with the columns prob_0 and "
    "prob_1; for logits z of class 1, save logits = np.stack([0 * z, z], axis=1)"
)


@pytest.mark.parametrize(
    ("arrays", "kind", "text"),
    [
        (
            {"logits": TWO},
            None,
            "labels: expected exactly one array named labels or ground_truth; the file has logits",
        ),
        ({"x": TWO, "labels": [0, 1]}, None, f"{ONE_ARRAY} x, labels"),
        (
            {"logits": TWO, "probs": TWO, "labels": [0, 1]},
            None,
            f"{ONE_ARRAY} logits, probs, labels",
        ),
        ({"logits": np.zeros(3), "labels": [0, 1, 2]}, None, ONE_SCORE),
        (
            {"logits": TWO * np.nan, "labels": [0, 1]},
            None,
            "logits: expected finite values, or -inf for masked classes, got nan in row 0, class 0 "
            "(6 such values)",
        ),
        (
            {"logits": np.array([["a"]]), "labels": [0]},
            None,
            "scores: expected an array of numbers, got <U1",
        ),
        ({"probs": TWO + 0.5, "labels": [0, 1]}, None, NOT_ONE),
        ({"predictions": TWO, "ground_truth": [0, 1]}, "p", "kind='p' is not one of logits, probs"),
    ],
)
def test_bad_files_are_one_line_errors(tmp_path, arrays, kind, text):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert refusal(read_logits, tmp_path / "bad.npz", kind) == (
        text if kind else f"{tmp_path / 'bad.npz'}: {text}"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("missing.npz", ": no such file"),
        ("text.npz", " is not an intact .npz archive: "),
        ("cut.npz", " is not an intact .npz archive: "),
        ("logits.csv", ": no columns of labels (it has 'no arrays here'); name one column `label`"),
        ("logits.txt", ": expected an ending of .npz, "),
        ("text.p", ": cannot be read as a pickled pair ("),
    ],
)
def test_unreadable_files_are_named(tmp_path, npz, name, text):
    if name.startswith(("text", "logits")):
        (tmp_path / name).write_text("no arrays here")
    if name.startswith("cut"):
        (tmp_path / name).write_bytes(npz.read_bytes()[:200])
    assert refusal(read_logits, tmp_path / name, "logits").startswith(f"{tmp_path / name}{text}")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_pairs_of_any_protocol(tmp_path, protocol):
    pair = tuple((logits, labels[:, None]) for logits, labels in (draw(seed=1), draw(seed=2)))
    (tmp_path / "net.p").write_bytes(pickle.dumps(pair, protocol=protocol))
    file = read_logits(tmp_path / "net.p", "logits")
    np.testing.assert_array_equal(file.fit.logits.numpy(), pair[0][0])
    np.testing.assert_array_equal(file.rows.labels.numpy(), pair[1][1][:, 0])
    with pytest.raises(InputError, match="are the scores logits or probabilities"):
        read_logits(tmp_path / "net.p")


class Malicious:
    def __init__(self, call, *arguments) -> None:
        self._reduced = call, arguments

    def __reduce__(self):
        return self._reduced


@pytest.mark.parametrize(
    "payload",
    [
        Malicious(os.system, "echo pwned > pwned"),
        Malicious(eval, "open('pwned', 'w')"),
        Malicious(np.load, "pwned"),
        Malicious(getattr, "text", "upper"),
        (np.zeros((2, 2)), Malicious(open, "pwned", "w")),
        {"a": Malicious(exec, "open('pwned', 'w')")},
    ],
    ids=["system", "eval", "load", "getattr", "open", "exec"],
)
def test_the_unpickler_builds_arrays_and_nothing_else(tmp_path, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.p").write_bytes(pickle.dumps(payload))
    with pytest.raises(
        InputError, match=r"bad\.p: the pickle uses .*only NumPy arrays are allowed"
    ):
        read_logits(tmp_path / "bad.p", "logits")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1, 2, 3], "expected ((validation scores, labels), (test scores, labels)), got list"),
        (
            (np.zeros((2, 2)), np.zeros(2)),
            "expected ((validation scores, labels), (test scores, labels)), got ndarray",
        ),
        (
            ((np.zeros((2, 2)), [0, 1]),) * 2,
            "validation labels: expected an array of labels, got list",
        ),
        (
            ((np.array([[None, 1]]), np.zeros(1, int)),) * 2,
            "scores: expected an array of numbers, got object",
        ),
    ],
)
def test_pickles_of_another_shape_are_refused(tmp_path, content, text):
    (tmp_path / "odd.pkl").write_bytes(pickle.dumps(content))
    assert refusal(read_logits, tmp_path / "odd.pkl", "logits") == f"{tmp_path / 'odd.pkl'}: {text}"


@pytest.mark.parametrize(
    ("text", "expected"), [("0:5", (0, 5)), ("3:", (3, 10)), (":4", (0, 4)), (" 2:10 ", (2, 10))]
)
def test_parse_rows(text, expected):
    assert parse_rows(text, 10) == slice(*expected)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["", "5", "-3:5", "a:b", "1:2:3"], "expected START:STOP, such as 0:5000"),
        (["5:5", "6:3", "0:11", "10:", ":0", "0:0", "4:0"], "expected 0 <= START < STOP <= 10"),
    ],
)
def test_parse_rows_refuses_the_rest(texts, told):
    for text in texts:
        assert refusal(parse_rows, text, 10) == f"rows {text!r}: {told}"


@pytest.mark.parametrize(("text", "left"), [("0:100", 300), ("300:", 300), ("100:150", 350)])
def test_rows_to_fit_on_are_never_scored(npz, text, left):
    task = plan_task(read_logits(npz), text)
    fitted = {tuple(row) for row in task.fit.logits.tolist()}
    scored = {tuple(row) for row in task.judge.logits.tolist()}
    assert len(task.judge) == left
    assert len(task.fit) + left == 400
    assert not fitted & scored
    start, stop = (int(end or 400) for end in text.split(":"))
    for rows, kept in (
        (task.fit, np.arange(start, stop)),
        (task.judge, np.delete(np.arange(400), np.arange(start, stop))),
    ):
        for found, whole in zip((rows.logits, rows.labels), draw(), strict=True):
            np.testing.assert_array_equal(found.numpy(), whole[kept])


def test_calibrators_are_fitted_on_the_first_part_of_a_file_with_two_parts(tmp_path, npz):
    (logits, labels), (others, theirs) = draw(40, seed=1), draw(30, seed=2)
    arrays = {"logits_fit": logits, "labels_fit": labels}
    np.savez(tmp_path / "two.npz", **arrays, logits_test=others, labels_test=theirs)
    two, file = read_logits(tmp_path / "two.npz"), read_logits(npz)
    for task, judged in ((plan_task(two), 30), (plan_task(file, None, two), 400)):
        assert (len(task.fit), len(task.judge)) == (40, judged)
        np.testing.assert_array_equal(task.fit.labels.numpy(), labels)
    assert plan_task(file, None, two).name == "net"
    assert len(plan_task(two, "0:10").judge) == 20
    assert len(plan_task(two, None, file).fit) == 400


def test_plan_task_refuses_to_fit_on_all_rows_or_on_rows_and_a_file(tmp_path, npz):
    file = read_logits(npz)
    told = r"^rows 0:400: expected a part of the 400 rows, got all; the other rows are scored$"
    with pytest.raises(InputError, match=told):
        plan_task(file, ":")
    with pytest.raises(InputError, match=r"^expected either rows or a file to fit on, got both"):
        plan_task(file, "0:10", file)


def test_a_file_to_fit_on_has_the_same_classes_in_the_same_order(tmp_path):
    for name, classes in (("a", "xyz"), ("b", "yxz"), ("c", "xyz")):
        labels = np.array([*"xyz"])
        np.savez(tmp_path / f"{name}.npz", logits=np.eye(3) * 2, labels=labels, classes=[*classes])
    a, b, c = (read_logits(tmp_path / f"{name}.npz") for name in "abc")
    assert plan_task(a, None, c).fit.labels.tolist() == [0, 1, 2]
    told = "b: class 0 is 'y', but 'x' in a; bring the columns into the same order"
    assert refusal(plan_task, a, None, b) == told


def test_a_fit_on_another_label_set_gives_figures_of_calibrators_that_transfer(tmp_path, npz):
    logits, labels = draw(classes=3, seed=1)
    np.savez(tmp_path / "k3.npz", logits=logits, labels=labels)
    file, other = read_logits(npz), read_logits(tmp_path / "k3.npz")
    with pytest.warns(DataNote, match=r"^logits: 4 classes, but this ts was fitted on 3; "):
        table = calibrate_table([plan_task(file, None, other)], ["ts", "vs"], ["ce"])
    mapped = file.rows.logits / build_calibrator("ts").fit(logits, labels).temperature
    expected = calibration_report(logits=mapped, labels=file.rows.labels)
    assert table.cell("net", "ts", "ce").ece == pytest.approx(expected["ece"], abs=1e-6)
    refused = table.cell("net", "vs")
    assert np.isnan(refused.ece)
    assert refused.note.startswith("logits: 4 classes, but this vs was fitted on 3; calibrators")


def test_the_table_holds_the_figures_of_each_calibrator(npz):
    task = plan_task(read_logits(npz), "0:200")
    table = calibrate_table([task], ["ts", "cts", "vs", "ets"], ["ce", "cls"], bins=7)
    shown = "uncalibrated, ts-ce ts-cls cts-ce cts-cls vs, ets-ce ets-cls average-ce average-cls"
    assert table.rows == [tuple(re.split("[-,]", row)) for row in shown.split(" ")]
    fitted = build_calibrator("ts", "cls").fit(task.fit.logits, task.fit.labels)
    judged = {"labels": task.judge.labels, "bins": 7}
    expected = calibration_report(logits=fitted(task.judge.logits), **judged)
    cell = table.cell("net", "ts", "cls")
    assert min(cell.seconds, table.cell("net", "uncalibrated").seconds) > 0
    assert cell.ece == pytest.approx(expected["ece"])
    assert cell.accuracy == pytest.approx(expected["acc"])
    assert cell.nll == pytest.approx(expected["nll"])
    assert cell.gain == pytest.approx(table.cell("net", "ts", "ce").ece - cell.ece)
    assert table.cell("net", "ts", "ce").gain is None
    assert table.cell("net", "vs").gain is None
    for name in ("ece", "gain"):
        each = [getattr(table.cell("net", c, "cls"), name) for c in ("ts", "cts", "ets")]
        found = getattr(table.cell("net", "average", "cls"), name)
        assert found == pytest.approx(np.mean(each)), name
    assert table.cell("net", "average", "ce").gain is None
    assert ("average", "ce") not in calibrate_table([task], ["ts", "vs"], ["ce"]).rows
    before = calibration_report(logits=task.judge.logits, **judged)
    assert table.cell("net", "uncalibrated").ece == pytest.approx(before["ece"])


def test_a_table_says_what_its_cells_hold():
    nan = float("nan")
    cells = [
        [CalibrationCell(0.1, 0.5, 1.0, seconds=1.0), CalibrationCell(0.2, 0.75, 2.0, seconds=2.0)],
        [CalibrationCell(0.05, 0.5, 0.5, 0.01), CalibrationCell(0.3, 0.25, 1.5, -0.05, note="odd")],
        [CalibrationCell(0.04, 0.5, 0.5, 0.02), CalibrationCell(nan, nan, nan, note="no")],
        [CalibrationCell(0.04, 0.5, 0.5, 0.02), CalibrationCell(0.03, 0.5, 0.5)],
    ]
    rows = [("uncalibrated", ""), ("ts", "ls"), ("vs", ""), ("ets", "ls")]
    table = CalibrationTable(["a", "long name"], rows, cells)
    assert table.cell("long name", "ts", "ls") is cells[1][1]
    assert table.cell("a", "vs") is cells[2][0]
    lines = table.lines()
    assert [[part.strip() for part in line.split("|")[1:-1]] for line in lines[:1] + lines[2:]] == [
        ["calibrator", "objective", "a", "long name", "average"],
        ["uncalibrated", "", "10.00 (50.00)", "20.00 (75.00)", "15.00 (62.50)"],
        ["ts", "ls", "5.00 (50.00) +1.00", "30.00 (25.00) -5.00 *", "17.50 (37.50) -2.00"],
        ["vs", "", "4.00 (50.00) +2.00", "-", "-"],
        ["ets", "ls", "4.00 (50.00) +2.00", "3.00 (50.00)", "3.50 (50.00)"],
    ]
    assert len({tuple(k for k, sign in enumerate(line) if sign == "|") for line in lines}) == 1
    assert set(lines[1]) == set("| -")
    assert table.notes() == ["* ts-ls on long name: odd", "* vs on long name: no"]
    assert average_cell(cells[0]) == CalibrationCell(
        pytest.approx(0.15), pytest.approx(0.625), pytest.approx(1.5), None, 3.0
    )
    entries = json.loads(table.to_json())
    assert [(e["task"], e["calibrator"], e["objective"]) for e in entries[:3]] == [
        ("a", "uncalibrated", ""),
        ("long name", "uncalibrated", ""),
        ("a", "ts", "ls"),
    ]
    assert entries[1] == {
        **{"task": "long name", "calibrator": "uncalibrated", "objective": ""},
        **{"ece": 0.2, "accuracy": 0.75, "nll": 2.0, "gain": None, "seconds": 2.0, "note": ""},
    }
    assert (entries[3]["gain"], entries[3]["note"]) == (-0.05, "odd")
    assert entries[5] == {
        **{"task": "long name", "calibrator": "vs", "objective": "", "note": "no"},
        **{"ece": None, "accuracy": None, "nll": None, "gain": None, "seconds": 0.0},
    }
    assert len(CalibrationTable(["a"], rows[:1], [cells[0][:1]]).lines()[0].split("|")) == 5


def test_without_rows_to_fit_on_every_row_is_cross_fitted(tmp_path, npz):
    rows = read_logits(npz).rows
    table = calibrate_table([plan_task(read_logits(npz))], ["ts"], ["ce"], out=tmp_path / "out")
    kept = load_calibrator(tmp_path / "out" / "net" / "ts-ce")
    whole = build_calibrator("ts").fit(rows.logits, rows.labels)
    assert torch.equal(kept(rows.logits), whole(rows.logits))
    task = plan_task(read_logits(npz), "0:200")
    calibrate_table([task], ["ts"], ["ce"], out=tmp_path / "other")
    kept = load_calibrator(tmp_path / "other" / "net" / "ts-ce")
    early = build_calibrator("ts").fit(task.fit.logits, task.fit.labels)
    assert torch.equal(kept(rows.logits), early(rows.logits))
    held_out = cross_fit(lambda: build_calibrator("ts"), rows.logits, rows.labels)
    assert table.cell("net", "ts", "ce").ece == pytest.approx(score(held_out, rows.labels, 15)[0])


@pytest.mark.filterwarnings("error")
def test_a_fit_that_fails_leaves_the_other_cells(npz):
    task = plan_task(read_logits(npz), "0:200")
    hopeless = LogitRows(-task.fit.logits, task.fit.logits.argmax(1))
    table = calibrate_table([Task("net", task.judge, hopeless)], ["ts", "meta-mis"], ["ce"])
    assert np.isnan(table.cell("net", "meta-mis").ece)
    bound, refused = table.notes()
    assert "temperatures on the bound" in bound
    assert "no fitting row is classified correctly" in refused
    assert table.cell("net", "ts", "ce").ece >= 0
    assert json.loads(table.to_json())[-1]["ece"] is None


def test_nothing_is_gained_over_a_fit_that_has_no_figures(npz, monkeypatch):
    def build(name, objective):
        if objective == "ce":
            raise InputError("out of reach")
        return build_calibrator(name, objective)

    monkeypatch.setattr("orchestrator.logits.calibrate.build_calibrator", build)
    table = calibrate_table([plan_task(read_logits(npz), "0:200")], ["ts"], ["ce", "cls"])
    cell = table.cell("net", "ts", "cls")
    assert (np.isfinite(cell.ece), cell.gain) == (True, None)
    assert table.notes() == ["* ts-ce on net: out of reach"]


def test_a_file_in_the_place_of_a_folder_for_results_is_named(npz):
    below = npz / "below"
    told = f"{below}: cannot create the folder (Not a directory)"
    assert refusal(make_folder, below) == told
    with pytest.raises(InputError, match=r"^--out: 's3:/+bucket/x' is a URL; use a path on"):
        make_folder("s3://bucket/x")


@pytest.mark.parametrize(
    ("calibrators", "objectives", "text"),
    [
        (["tss"], ["ce"], "unknown calibrator 'tss'; near are: ts, svs, sms; `calsweep list"),
        (["ts"], ["xe"], "unknown objective 'xe'; there are: ce, cls"),
        (["ts", "vs", "tss"], ["ce"], "unknown calibrator 'tss'"),
        (["ts"], ["ce", "xe"], "unknown objective 'xe'"),
        (["vs", "ts", "ts"], ["ce"], "calibrators: expected each once, got 'ts' twice"),
        (["ts"], ["ce", "ls", "ce"], "objectives: expected each once, got 'ce' twice"),
        ([], ["ce"], "calibrators: expected at least one, got none; use beta"),
        (["ts"], [], "objectives: expected at least one, got none; use ce"),
    ],
)
def test_wrong_names_stop_before_anything_is_fitted(npz, calibrators, objectives, text):
    with pytest.raises(InputError, match=text):
        calibrate_table([plan_task(read_logits(npz))], calibrators, objectives)


def test_two_files_of_one_name_are_refused(npz):
    task = plan_task(read_logits(npz))
    with pytest.raises(InputError, match="different names, got net, net"):
        calibrate_table([task, task], ["ts"], ["ce"])
    with pytest.raises(InputError, match="different names, got none"):
        calibrate_table([], ["ts"], ["ce"])


@pytest.fixture
def command(monkeypatch):
    """Return the commands; none takes so long that its progress is shown."""
    monkeypatch.setattr("orchestrator.logits.progress.PATIENCE", 600.0)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(calibrate)
    app.command()(apply)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_the_commands_end_to_end(tmp_path, npz, command):
    out, mapped = tmp_path / "out", tmp_path / "a" / "b" / "mapped.npz"
    words = ("--with", "ts,vs", "--objectives", "ce,cls", "--fit-rows", "0:200", "--out", out)
    result = command("calibrate", npz, *words)
    assert result.exit_code == 0, result.output
    head, *_, last = result.output.splitlines()
    assert head == "ECE % (accuracy %) and gain over ce; above 0 is better, * see below"
    assert last == f"calibrators and table in {out}"
    assert "| ts           | cls       |" in result.output
    figures = json.loads((out / "table.json").read_text())
    found = {(f["calibrator"], f["objective"]) for f in figures}
    assert found == {("uncalibrated", ""), ("ts", "ce"), ("ts", "cls"), ("vs", "")}
    table = [line for line in result.output.splitlines() if line.startswith("|")]
    assert (out / "table.md").read_text().splitlines() == table
    assert (out / "table.md").read_text().endswith("|\n")
    result = command("apply", out / "net" / "ts-cls", npz, "--out", mapped)
    assert result.exit_code == 0, result.output
    kept = read_logits(mapped).rows
    expected = load_calibrator(out / "net" / "ts-cls")(read_logits(npz).rows.logits)
    assert torch.equal(kept.logits, expected)
    assert torch.equal(kept.labels, read_logits(npz).rows.labels)
    assert float(kept.logits.exp().sum(1).max()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("name", ["table.md", "table.json"])
def test_a_table_that_cannot_be_written_is_one_line(tmp_path, npz, capsys, name):
    (tmp_path / "out" / name).mkdir(parents=True)
    words = ["--with", "ts", "--objectives", "ce", "--out", str(tmp_path / "out")]
    assert main(["logits", "calibrate", str(npz), *words]) == 1
    told = capsys.readouterr().err
    assert f"calsweep: {tmp_path}/out/{name}: cannot be written (Is a directory)\n" in told
    assert "Traceback" not in told


def test_a_full_disk_leaves_the_earlier_mapped_file(tmp_path):
    path = tmp_path / "mapped.npz"
    save_log_probs(path, torch.zeros(3, 2), torch.zeros(3).long())
    before = path.read_bytes()
    complaint = r"mapped.npz: cannot be written \(File too large\)"
    with files_of_at_most(1000), pytest.raises(InputError, match=complaint):
        save_log_probs(path, torch.zeros(300, 20), torch.zeros(300).long())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["mapped.npz"]


def test_a_table_without_a_fitted_calibrator_is_still_written(tmp_path, npz, command):
    out = tmp_path / "deep" / "out"
    result = command("calibrate", npz, "--with", "meta-acc", "--out", out)
    assert result.exit_code == 0, result.output
    assert "is out of reach on these rows" in result.output
    assert json.loads((out / "table.json").read_text())[1]["ece"] is None


@pytest.mark.full
def test_files_calibrators_objectives_and_notes_keep_their_order(tmp_path, npz, command):
    (tmp_path / "early.npz").write_bytes(npz.read_bytes())
    names = ("--with", "vs,meta-acc,ts", "--objectives", "ls,ce")
    result = command("calibrate", npz, tmp_path / "early.npz", *names)
    assert result.exit_code == 0, result.output
    table = [line for line in result.output.splitlines() if line.startswith("|")]
    cells = [[part.strip() for part in line.split("|")[1:-1]] for line in table]
    assert cells[0][2:] == ["net", "early", "average"]
    assert [row[:2] for row in cells[2:]] == [
        *(["uncalibrated", ""], ["vs", ""], ["meta-acc", ""], ["ts", "ls"], ["ts", "ce"])
    ]
    below = result.output.splitlines()[1 + len(table) :]
    assert [line.partition(":")[0] for line in below] == [
        *("* meta-acc on net", "* meta-acc on early")
    ]
    assert result.output.splitlines()[1:-2] == table


@pytest.mark.parametrize("values", [4 * 7, 1])
def test_pieces_score_as_the_whole_does(npz, monkeypatch, values):
    rows = read_logits(npz).rows
    whole = score(rows.logits, rows.labels, 15)
    monkeypatch.setattr("orchestrator.logits.scoring.VALUES_AT_ONCE", values)
    assert score(rows.logits, rows.labels, 15) == pytest.approx(whole, rel=1e-12)
    expected = calibration_report(logits=rows.logits, labels=rows.labels)
    assert whole == pytest.approx([expected[name] for name in ("ece", "acc", "nll")], rel=1e-12)


def test_progress_names_each_recipe_of_each_task(npz, monkeypatch):
    told = []

    @contextmanager
    def noted(console, total):
        told.append(total)
        yield told.append

    monkeypatch.setattr("orchestrator.logits.calibrate.shown_recipes", noted)
    task = plan_task(read_logits(npz), "0:200")
    calibrate_table([task, replace(task, name="other")], ["ts", "vs"], ["ce", "ls"])
    names = ("ts-ce", "ts-ls", "vs")
    assert told == [6, *(f"{name} on {place}" for place in ("net", "other") for name in names)]


def test_from_python_the_defaults_are_those_of_the_command():
    ours, theirs = (inspect.signature(each).parameters for each in (calibrate_table, calibrate))
    assert ",".join(ours["calibrators"].default) == theirs["with_"].default
    assert ",".join(ours["objectives"].default) == theirs["objectives"].default
    assert ours["bins"].default == theirs["bins"].default


def test_only_long_calibrations_show_progress(npz, monkeypatch):
    task = plan_task(read_logits(npz), "0:200")
    shown = [io.StringIO(), io.StringIO()]
    monkeypatch.setattr("orchestrator.logits.progress.PATIENCE", 600.0)
    calibrate_table([task], ["ts"], ["ce"], console=Console(file=shown[0]))
    assert shown[0].getvalue() == ""
    monkeypatch.setattr("orchestrator.logits.progress.PATIENCE", 0.05)
    with shown_recipes(Console(file=shown[1]), 2) as begin:
        begin("ts-ce on net")
        begin("ts-cls on net")
        deadline = time.monotonic() + 60
        while not shown[1].getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "recipe 2 of 2: ts-cls on net" in shown[1].getvalue()
    before = threading.active_count()
    with shown_recipes(Console(file=shown[0]), 2):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    assert re.fullmatch(r"(recipe 0 of 2: uncalibrated rows · 0:00:\d\d\n)?", shown[0].getvalue())


class Waits:
    """An event that comes to pass during the third wait, and notes how long each may take."""

    def __init__(self) -> None:
        self.asked: list[float | None] = []

    def wait(self, seconds: float | None = None) -> bool:
        self.asked.append(seconds)
        return len(self.asked) == 3


def test_two_seconds_pass_before_the_first_line_and_ten_before_the_next():
    shown, waits = io.StringIO(), Waits()
    watch = _Watch(Console(file=shown), 2)
    watch.done = waits
    watch.show()
    assert waits.asked == [2.0, 10.0, 10.0]
    assert shown.getvalue().count("recipe 0 of 2: uncalibrated rows · 0:00:0") == 2


def test_on_a_terminal_the_recipe_at_work_is_shown_live_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr("orchestrator.logits.progress.PATIENCE", 0.0)
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, _environ={})
    with shown_recipes(terminal, 2) as begin:
        begin("ts-ce on net")
        deadline = time.monotonic() + 60
        while "recipe 1 of 2: ts-ce on net" not in shown.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert shown.getvalue().endswith("\x1b[1A\x1b[2K")  # The line is taken away again.


def test_progress_begins_with_the_uncalibrated_rows(monkeypatch):
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("orchestrator.logits.progress.time", clock)
    now = 100.0
    watch = _Watch(Console(file=io.StringIO()), 3)
    now = 161.4
    assert watch._line().plain == "recipe 0 of 3: uncalibrated rows · 0:01:01"
    watch.begin("ts-ce on net")
    assert watch._line().plain == "recipe 1 of 3: ts-ce on net · 0:01:01"


def test_fit_on_another_file(tmp_path, npz, command):
    logits, labels = draw(seed=7)
    np.savez(tmp_path / "fit.npz", logits=logits, labels=labels)
    result = command("calibrate", npz, "--with", "ts", "--fit", tmp_path / "fit.npz")
    assert result.exit_code == 0, result.output
    task = plan_task(read_logits(npz), None, read_logits(tmp_path / "fit.npz"))
    cell = calibrate_table([task], ["ts"], ["ce"]).cell("net", "ts", "ce")
    assert f"{100 * cell.ece:.2f}" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "no.npz"),
        ("apply", "nowhere", "net.npz"),
        ("apply", "nowhere", "net.npz", "--out", "x.csv"),
        ("apply", "nowhere", "net.npz", "--out", "net.npz/x.npz"),
        ("calibrate", "net.npz", "--with", "ts", "--out", "s3://bucket/x"),
    ],
)
def test_wrong_input_is_an_input_error(npz, command, monkeypatch, words):
    monkeypatch.chdir(npz.parent)
    result = command(*words)
    assert isinstance(result.exception, InputError)


def test_rows_that_are_fitted_on_and_scored_are_counted_or_refused(tmp_path, npz, capsys):
    words = ["--with", "ts", "--objectives", "ce"]
    assert main(["logits", "calibrate", str(npz), "--fit", str(npz), *words]) == 2
    rows = read_logits(npz).rows
    count = len(rows)
    told = f"{count} of {count} rows to score are copies of rows to fit on"
    remedy = "use other rows to score or to fit on"
    assert capsys.readouterr().err == f"calsweep: {npz.stem}: {told}; {remedy}\n"
    path = tmp_path / "twice.npz"
    logits, labels = (torch.cat([part, part[:3]]).numpy() for part in (rows.logits, rows.labels))
    np.savez(path, logits=logits, labels=labels)
    assert (
        main(["logits", "calibrate", str(path), "--fit-rows", f"{count - 10}:{count + 3}", *words])
        == 0
    )
    told = f"3 of {count - 10} rows to score are copies of rows to fit on"
    assert f"twice: {told}, so results of calibrators may be too good" in capsys.readouterr().err
