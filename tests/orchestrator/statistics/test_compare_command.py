import csv
import io
import json
import re
from dataclasses import replace

import pytest
import torch

from orchestrator.cli._compare import FIELDS, _csv_rows, _show
from orchestrator.cli._ranks import _rank_lines
from orchestrator.statistics import (
    BlockScores,
    Difference,
    PairedBootstrap,
    PairTest,
    RankComparison,
    TaskComparison,
    critical_difference_diagram,
)
from orchestrator.storage.results import StudyResult
from orchestrator.tables.columns import shown_names
from trainables.metrics import METRICS

LISTED = [name for name in shown_names() if not METRICS.columns([name])]

LABELS = torch.arange(300) % 4
TASK = "digits/convnet/digits"


@pytest.fixture
def results(evaluated, made_up):
    """Return the results of a sweep of four recipes."""
    near = made_up(LABELS, 0)
    fields = {"dataset": "digits", "model": "convnet"}

    def result(recipe, log_probs, ece):
        return evaluated(recipe, [log_probs], LABELS, test=({"ece": ece},), **fields)

    return [
        result("ce", near, 0.1),
        result("ce+ts", 1.001 * near, 0.11),
        result("ls", 0.3 * near, 0.3),
        StudyResult("s", TASK, "mbls", "failed", reason="NaN", **fields),
    ]


@pytest.fixture
def calsweep(command_on, results):
    return command_on(results)


def test_compare_says_if_seeds_are_in_the_intervals(calsweep):
    code, out, _ = calsweep("compare", "s", "--draws", 50, "--over-seeds")
    assert code == 0
    assert "intervals over seeds and test rows (Student's t)" in out
    assert "Student" not in calsweep("compare", "s", "--draws", 50)[1]


def test_progress_is_counted_over_the_recipes_of_all_tasks(calsweep, results, progress):
    results += [replace(result, task="other") for result in results]
    steps = progress("_compare")
    calsweep("compare", "s", "--draws", 2)
    # Of one in four there is nothing to resample.
    assert steps == ["resampling", *((number, 8) for number in range(1, 7))]


def test_compare_prints_the_same_rows_as_json_and_csv(calsweep):
    code, out, err = calsweep("compare", "s", "--draws", 50, "--json")
    rows = csv.DictReader(
        io.StringIO(calsweep("compare", "s", "--draws", 50, "--format", "csv")[1])
    )
    assert (code, err) == (0, "")
    texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in json.loads(out)]
    assert texts == list(rows)


def test_ranks_as_json(calsweep):
    found = json.loads(calsweep("compare", "s", "--ranks", "--json")[1])
    assert (found["metric"], found["blocks"], found["friedman"]) == ("ece", 1, None)
    assert set(found["ranks"]) == {"ce", "ce+ts", "ls"}


def made_up_comparison():
    gaps = {"ls": Difference(0.02, 0.01, 0.03), "ts": Difference(-0.001, -0.03, -0.0001)}
    values = {"ce": 0.05, "ls": 0.07, "ts": 0.049}
    found = PairedBootstrap("ece", "ce", values, gaps, {"ce": 3, "ls": 1, "ts": 2}, 300, 50)
    floors = {"ce": 0.015, "ls": 0.0125, "ts": 0.0}
    absent, flipped = {"fl": "failed", "au": "running"}, {"ls": 0.0213, "ts": 0.0}
    return TaskComparison("a/b/c", found, floors, absent, flipped)


def test_what_is_printed_of_a_comparison(capsys, file_regression):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    _show(made_up_comparison(), markdown=True)
    rows = (dict(zip(FIELDS, row, strict=True)) for row in _csv_rows(made_up_comparison()))
    text = "".join(f"{row}\n" for row in rows)
    shown = re.sub(" +\n", "\n", capsys.readouterr().out)
    file_regression.check(shown + text, encoding="utf-8")


def test_every_task_is_compared_unless_one_is_named(calsweep, results):
    results += [replace(result, task="other") for result in results]
    for words, tasks in (((), {TASK, "other"}), (("--task", "other"), {"other"})):
        _, out, _ = calsweep("compare", "s", "--draws", 2, "--format", "csv", *words)
        rows = list(csv.DictReader(io.StringIO(out)))
        assert {row["task"] for row in rows} == tasks
        assert len(rows) == 4 * len(tasks)
        shown = calsweep("compare", "s", "--draws", 2, *words)[1].splitlines()
        assert {line for line in shown if line in (TASK, "other")} == tasks
        assert sum(line.rstrip().endswith("baseline") for line in shown) == len(tasks)


def ranked(low, high, incomplete, **changes):
    """Return the lines of ``compare --ranks`` on made-up ranks."""
    fields = {
        "ranks": {"ts": 1.25, "ce": 1.75},
        "blocks": 8,
        "friedman": 0.01234,
        "critical_difference": 0.6789,
        "pairs": (PairTest("ts", "ce", 0.0312), PairTest("ts", "ls", 0.2)),
    }
    found = BlockScores({}, (("a", "b"),), incomplete, (low, high))
    return [*_rank_lines(RankComparison(**{**fields, **changes}), found, "ECE % ↓")]


def test_what_is_printed_of_ranks(file_regression):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    pairs = (PairTest("ts", "ce", None), PairTest("ts", "ls", 0.04))
    found = (
        ranked(1, 3, {"fl": (("a", "b"), ("c", "d")), "au": (("c", "d"),)}),
        ranked(2, 2, {}, friedman=None, critical_difference=None),
        ranked(2, 2, {}, pairs=pairs),
    )
    file_regression.check("\n\n".join(map("\n".join, found)), encoding="utf-8")


@pytest.mark.parametrize(("metric", "best"), [("ece", "ce"), ("acc", "ls")])
def test_lines_and_diagram_rank_a_metric_in_its_direction(
    calsweep, results, tmp_path, monkeypatch, metric, best
):
    results[:] = [
        replace(result, test=tuple({**row, "acc": row["ece"]} for row in result.test))
        for result in results
    ]
    drawn = []

    def draw(comparison, title):
        drawn.append((comparison, title))
        return critical_difference_diagram(comparison, title)

    monkeypatch.setattr("orchestrator.statistics.critical_difference_diagram", draw)
    path = tmp_path / "new" / "plots" / "cd.svg"
    words = ("--metric", metric, "--control", "ce", "--out", path)
    _, out, _ = calsweep("compare", "s", "--ranks", *words)
    assert out.splitlines()[1].split() == ["1.00", best]
    ((comparison, title),) = drawn
    assert next(iter(comparison.ranks)) == best
    assert len(comparison.pairs) == 3
    assert title.startswith({"ece": "ECE % ↓", "acc": "Acc % ↑"}[metric])
    assert "for 2 pairs" in out
    assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "s", "--task", "x"), f"--task 'x' is not in this sweep; there are: {TASK}"),
        (
            ("compare", "s", "--baseline", "mbls"),
            f"baseline 'mbls' on {TASK}: failed: NaN; recipes with predictions: ce, ce+ts, ls",
        ),
        (
            ("compare", "s", "--baseline", "fl"),
            f"baseline 'fl' on {TASK}: not in this sweep; recipes with predictions: ce, ce+ts, ls",
        ),
        (
            ("compare", "s", "--metric", "auroc"),
            "metric 'auroc' cannot be resampled; near are: aurc, augrc, e_aurc",
        ),
        (
            ("compare", "s", "--ranks", "--metric", "foo"),
            f"unknown metric 'foo'; there are: {', '.join(LISTED)}, "
            "and SUITE/METRIC for a suite; `calsweep list metrics` shows all",
        ),
        (
            ("compare", "s", "--ranks", "--control", "mbls"),
            "--control 'mbls' is not among the ranked recipes: ce, ce+ts, ls",
        ),
        (
            ("compare", "s", "--ranks", "--out", "cd.txt"),
            "--out cd.txt: expected a name that ends with one of .pdf, .png, .svg, got '.txt'",
        ),
    ],
)
def test_wrong_input_is_one_line(calsweep, arguments, message):
    assert calsweep(*arguments) == (2, "", f"calsweep: {message}\n")


def test_a_diagram_that_cannot_be_written_is_named(calsweep, tmp_path):
    path = tmp_path / "cd.svg"
    path.mkdir()
    code, _, err = calsweep("compare", "s", "--ranks", "--out", path)
    told = f"calsweep: Invalid value for '--out': file '{path}' is a directory.\n"
    assert (code, err) == (2, told)
