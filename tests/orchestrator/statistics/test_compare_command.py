"""``calsweep compare`` and ``calsweep ranks`` as a user meets them."""

from __future__ import annotations

import csv
import io

import pytest
import torch

import orchestrator.tracking
from orchestrator.cli import main
from orchestrator.storage.results import StudyResult

LABELS = torch.arange(300) % 4
TASK = "digits/convnet/digits"


@pytest.fixture
def calsweep(monkeypatch, capsys, tmp_path, evaluated, made_up):
    """Return a function that runs a command on a sweep of four recipes."""
    near = made_up(LABELS, 0)
    fields = {"dataset": "digits", "model": "convnet"}

    def result(recipe, log_probs, ece):
        return evaluated(recipe, [log_probs], LABELS, test=({"ece": ece},), **fields)

    results = [
        result("ce", near, 0.1),
        result("ce+ts", 1.001 * near, 0.11),
        result("ls", 0.3 * near, 0.3),
        StudyResult("s", TASK, "mbls", "failed", reason="NaN", **fields),
    ]
    monkeypatch.setattr(
        orchestrator.tracking, "study_results", lambda uri, sweep: results, raising=False
    )

    def call(*arguments):
        code = main([*map(str, arguments), "--storage", str(tmp_path)])
        found = capsys.readouterr()
        return code, found.out, found.err

    return call


def lines(text):
    return {line.split()[0]: line for line in text.splitlines() if line.strip()}


def test_compare_marks_what_excludes_zero_and_what_is_inside_the_floor(calsweep):
    code, out, err = calsweep("compare", "s", "--draws", 50)
    assert (code, err) == (0, "")
    found = lines(out)
    assert found["ce"].endswith("baseline") or "baseline" in found["ce"]
    assert "≈ inside the noise floor" in found["ce+ts"]
    assert "worse *" in found["ls"]
    assert "≈" not in found["ls"]
    assert "failed: NaN" in found["mbls"]
    assert "300 test rows, 50 paired resamples, seeds a recipe: 1" in out


def test_compare_as_csv_holds_fractions(calsweep):
    _, out, _ = calsweep("compare", "s", "--draws", 50, "--format", "csv")
    rows = {row["recipe"]: row for row in csv.DictReader(io.StringIO(out))}
    assert list(rows) == ["ce", "ce+ts", "ls", "mbls"]
    worse = rows["ls"]
    gap = float(worse["value"]) - float(rows["ce"]["value"])
    assert float(worse["difference"]) == pytest.approx(gap)
    assert 0 < float(worse["low"]) < gap < float(worse["high"])
    assert (rows["mbls"]["value"], rows["mbls"]["verdict"]) == ("", "failed: NaN")


def test_compare_as_markdown_is_a_table(calsweep):
    _, out, _ = calsweep("compare", "s", "--draws", 5, "--format", "markdown", "--metric", "acc")
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert len(rows) == 6
    assert {line.count("|") for line in rows} == {7}
    assert rows[2].split("|")[3].strip() == "–"


def test_ranks_of_one_block_are_not_testable_and_drawn(calsweep, tmp_path):
    code, out, _ = calsweep("ranks", "s", "--out", tmp_path / "plots" / "cd.svg")
    assert code == 0
    assert "1.00  ce" in out
    assert "3.00  ls" in out
    assert "Friedman, all alike: not testable" in out
    assert "not testable, too few blocks (1) for 3 pairs" in out
    assert "not ranked: mbls has no figure on digits/convnet" in out
    assert "<svg" in (tmp_path / "plots" / "cd.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "s", "--task", "x"), "--task 'x' is not in this sweep; there are: digits/"),
        (
            ("compare", "s", "--baseline", "mbls"),
            "baseline 'mbls' on digits/convnet/digits: failed",
        ),
        (("compare", "s", "--metric", "mce"), "metric 'mce' cannot be resampled"),
        (("ranks", "s", "--metric", "foo"), "unknown metric 'foo'"),
        (("ranks", "s", "--control", "mbls"), "--control 'mbls' is not ranked; there are: ce"),
        (("ranks", "s", "--out", "cd.txt"), "--out cd.txt: ending '.txt', allowed are"),
    ],
)
def test_wrong_input_is_one_line(calsweep, arguments, message):
    code, _, err = calsweep(*arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
