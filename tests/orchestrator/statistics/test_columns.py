import csv
import io
import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from orchestrator.statistics import Board, KeptPredictions, deployment, spreads, with_columns
from orchestrator.statistics._bootstrap import Measured, _difference
from orchestrator.storage.results import StudyResult
from trainables.common.stages import ArtifactRef
from trainables.metrics import METRICS, column_report

LABELS = torch.arange(300) % 4


@pytest.fixture
def results(evaluated, made_up, artifacts):
    """Two recipes of two seeds, with validation rows."""
    found = []
    for place, (recipe, factor) in enumerate({"ce": 1.0, "ls": 0.3}.items()):
        seeds = [factor * made_up(LABELS, place + seed) for seed in (0, 5)]
        result = evaluated(recipe, seeds, LABELS, test=({"ece": 0.1}, {"ece": 0.2}))
        for key in result.predictions:
            rows = {"logits": factor * made_up(LABELS, 9).float(), "labels": LABELS}
            artifacts.write(ArtifactRef("train", f"of-{key}"), {"validation": rows}, {})
            record = artifacts.find(ArtifactRef("evaluate", key))
            tensors = {"test": record.tensors("test")}
            ref = ArtifactRef("evaluate", f"{key[:-1]}x")
            artifacts.write(ref, tensors, {"upstream": f"of-{key}"})
        found.append(replace(result, predictions=tuple(f"{k[:-1]}x" for k in result.predictions)))
    return found


def test_each_figure_is_that_of_the_stored_rows(results, artifacts):
    names = METRICS.columns(METRICS)
    said: list[str] = []
    for result in with_columns(results, ["ece", *names, "seconds"], artifacts, said.append):
        for seed, key in zip(result.test, result.predictions, strict=True):
            rows = artifacts.find(ArtifactRef("evaluate", key)).tensors("test")
            fit = KeptPredictions(artifacts).validation(key)
            expected = column_report(rows["log_probs"], rows["labels"], names, fit)
            assert seed == {**expected, "ece": seed["ece"]}
    assert said == []


def test_stored_metrics_are_not_computed_again(results, artifacts):
    stored = [replace(result, test=({"aurc": 7.0},) * 2) for result in results]
    found = with_columns(stored, ["aurc", "augrc"], artifacts, pytest.fail)
    assert [seed["aurc"] for seed in found[0].test] == [7.0, 7.0]
    assert all(0 < seed["augrc"] < 1 for seed in found[0].test)


def test_a_message_names_metrics_that_cannot_be_computed(results, artifacts, evaluated, made_up):
    bare = evaluated("mbls", [made_up(LABELS, 3)], LABELS, test=({"ece": 0.1},))
    gone = replace(results[0], predictions=("0" * 64,) * 2)
    none = replace(results[1], predictions=())
    pixels = evaluated("au", [made_up(LABELS, 3)], LABELS, images=LABELS // 2, test=({"ece": 0.1},))
    said: list[str] = []
    found = with_columns([bare, gone, none, pixels], ["augrc"], artifacts, said.append)
    assert ["augrc" in result.test[0] for result in found] == [True, False, False, True]
    assert said[0].startswith(
        f"ce on digits/convnet/digits has no augrc: {artifacts.root}/evaluate/00/{'0' * 64} is "
        "missing; `calsweep run --resume s "
    )
    assert said[1:] == [
        "ls on digits/convnet/digits has no augrc: no predictions on record",
        "au on digits/convnet/digits: augrc computed from the stored sample of pixels, not from "
        "all pixels",
    ]
    with_columns([bare], ["aps_90_size"], artifacts, said.append)
    assert said[-1] == (
        "mbls on digits/convnet/digits has no aps_90_size: conformal thresholds are fitted on "
        "validation rows, which are not in this storage"
    )


def test_computed_metrics_are_in_tables_and_csv_only_if_requested(results, command_on):
    calsweep = command_on(results)
    code, out, err = calsweep("table", "s", "--metrics", "ece,augrc,lac_90_size")
    assert (code, err) == (0, "")
    assert "AUGRC % ↓" in out
    assert "LAC 90 size ↓" in out
    for metrics, there in (("ece", False), ("ece,augrc", True)):
        _, out, _ = calsweep("table", "s", "--metrics", metrics, "--format", "csv")
        (first, *_) = csv.DictReader(io.StringIO(out))
        assert ("augrc_mean" in first) == there
        assert "aurc_mean" not in first
    assert 0 < float(first["augrc_mean"]) < 1


@pytest.mark.parametrize("metric", ["augrc", "nll_calibration", "raps_90_size", "lac_95_coverage"])
def test_compare_resamples_them(results, command_on, metric):
    calsweep = command_on(results)
    code, out, err = calsweep("compare", "s", "--metric", metric, "--draws", 50, "--format", "csv")
    assert (code, err) == (0, "")
    base, other = csv.DictReader(io.StringIO(out))
    assert base["verdict"] == "baseline"
    assert float(other["low"]) <= float(other["difference"]) <= float(other["high"])
    assert {"better", "worse"}.isdisjoint(other["verdict"].split()) or "coverage" not in metric


def test_ranks_and_ties_accept_computed_metrics(results, command_on):
    calsweep = command_on(results)
    code, out, err = calsweep("table", "s", "--metrics", "aps_95_size", "--show", "ties")
    assert (code, err) == (0, "")
    assert " a" in out
    code, out, err = calsweep("compare", "s", "--ranks", "--metric", "augrc")
    assert (code, err) == (0, "")
    assert "AUGRC" in out


def board_of(**recipes):
    """Return the figures of recipes that have a mean and a spread over four seeds."""
    generator, found = torch.Generator().manual_seed(0), {}
    for recipe, mean in recipes.items():
        draws = mean + torch.randn(200, generator=generator) * 1e-3
        seeds = torch.randn(4, generator=generator) * 1e-3
        found[recipe] = Measured(mean + seeds - seeds.mean(), draws.expand(4, 200))
    return found


def test_reversals_are_pairs_that_both_metrics_tell_apart(monkeypatch, results, artifacts):
    figures = {
        "nll": board_of(a=0.1, b=0.10001, c=0.3),
        "ece": board_of(a=0.1, b=0.2, c=0.3),
        "augrc": board_of(a=0.3, b=0.2, c=0.2001),
        "aps_90_size": board_of(a=1.0, b=2.0, c=3.0),
    }
    monkeypatch.setattr(
        "orchestrator.statistics._deploy.board",
        lambda results, store, metric, **rest: Board("t", metric, figures[metric], {}, {}, 300, 4),
    )
    lines = deployment(results, artifacts, draws=2)
    assert [f"{line.topic}: {line.text}" for line in lines] == [
        "best by NLL: a (0.1000), tied with b",
        "ECE against AUGRC: 2 of 3 pairs reverse (better by ECE: a than b, a than c); "
        "2 differ by both metrics",
        "ECE against APS 90 size: 0 of 3 pairs reverse; 3 differ by both metrics",
        "AUGRC against APS 90 size: 2 of 3 pairs reverse (better by AUGRC: b than a, c than a); "
        "2 differ by both metrics",
        "best by others: ECE: a (10.00), tied with none; AUGRC: b (20.000), tied with c; "
        "APS 90 size: a (1.00), tied with none",
    ]


def test_which_to_deploy_is_five_lines_a_task(results, command_on):
    calsweep = command_on(results)
    code, out, err = calsweep("compare", "s", "--question", "deploy", "--draws", 20)
    assert (code, err) == (0, "")
    task, *lines = out.splitlines()
    assert (task, len(lines)) == (results[0].task, 5)
    assert lines[0].startswith("best by NLL: ce (")
    told = json.loads(calsweep("compare", "s", "--question", "deploy", "--draws", 20, "--json")[1])
    assert [f"{line['topic']}: {line['text']}" for line in told] == lines
    refused = calsweep("compare", "s", "--question", "deploy", "--metric", "acc")
    told = "calsweep: --question deploy has its own metrics; remove --metric\n"
    assert refused == (2, "", told)


def test_without_validation_rows_the_line_says_why(evaluated, made_up, artifacts):
    bare = [evaluated(name, [made_up(LABELS, 3)], LABELS) for name in ("ce", "ls")]
    *_, size, _, last = deployment(bare, artifacts, draws=5)
    reason = "not known (conformal thresholds are fitted on validation rows, which are not in"
    assert size.text.startswith(reason)
    assert f"APS 90 size: {reason}" in last.text


def planted(generator, splits, searches, seeds, deviations):
    """Return boards of sweeps, and their splits, whose figures have such deviations."""
    rows, seed, search, split = deviations
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    of_rows, boards = rows * draw(400), []
    for own in (split * draw(splits)).tolist():
        for its in (own + search * draw(searches)).tolist():
            figures = its + seed * draw(seeds)
            measured = Measured(figures, figures[:, None] + of_rows)
            boards.append(Board("t", "nll", {"ce": measured}, {}, {}, 300, 4))
    return boards, [str(split) for split in range(splits) for _ in range(searches)]


def test_shares_of_the_variance_are_those_that_were_planted():
    generator = torch.Generator().manual_seed(1)
    found = next(iter(spreads(*planted(generator, 1, 1, 4000, (3, 4, 0, 0)))))
    assert found.deviation == pytest.approx(5, rel=0.05)
    assert found.rows == pytest.approx(9 / 25, rel=0.1)
    assert found.seeds == pytest.approx(16 / 25, rel=0.1)
    assert (found.search, found.splits) == (None, None)
    found = next(iter(spreads(*planted(generator, 1, 1, 1, (3, 4, 0, 0)))))
    assert (found.rows, found.seeds) == (1.0, None)


def test_several_sweeps_show_the_shares_of_search_and_splits():
    generator = torch.Generator().manual_seed(2)
    found = next(iter(spreads(*planted(generator, 600, 2, 3, (1, 2, 4, 2)))))
    assert found.deviation == pytest.approx(5, rel=0.05)
    assert found.rows == pytest.approx(1 / 25, rel=0.2)
    assert found.seeds == pytest.approx(4 / 25, rel=0.2)
    assert found.search == pytest.approx(16 / 25, rel=0.2)
    assert found.splits == pytest.approx(4 / 25, rel=0.3)
    # One search a split: the two are not told apart.
    found = next(iter(spreads(*planted(generator, 600, 1, 3, (1, 2, 4, 2)))))
    assert found.search is None
    assert found.splits == pytest.approx(20 / 25, rel=0.2)


def test_the_variance_of_test_rows_is_not_attributed_to_splits():
    generator = torch.Generator().manual_seed(3)
    boards = []
    for number in range(800):
        rows = 3 * torch.randn(1, generator=generator, dtype=torch.float64)
        figures = rows + 0.1 * torch.randn(3, generator=generator, dtype=torch.float64)
        draws = figures[:, None] + 3 * torch.randn(500, generator=generator, dtype=torch.float64)
        own = {"ce": Measured(figures, draws)}
        boards.append(Board("t", "nll", own, {}, {}, 300, 4, torch.tensor([number])))
    found = next(iter(spreads(boards, [str(number) for number in range(800)])))
    assert found.splits == pytest.approx(0, abs=0.1)
    same = [replace(board, labels=None) for board in boards]
    found = next(iter(spreads(same, [str(number) for number in range(800)])))
    assert found.splits == pytest.approx(0.5, abs=0.1)


def test_the_spread_is_printed_for_each_recipe(results, command_on):
    calsweep = command_on(results)
    words = ("compare", "s", "--question", "spread", "--metric", "nll", "--draws", 50)
    code, out, err = calsweep(*words)
    assert (code, err) == (0, "")
    assert "deviation of NLL" in out
    rows = json.loads(calsweep(*words, "--json")[1])
    assert [row["recipe"] for row in rows] == ["ce", "ls"]
    assert all(row["rows"] + row["seeds"] == pytest.approx(1) for row in rows)


def test_repeated_sweeps_are_separated_or_requested(evaluated, made_up, command_on):
    def sweep(number):
        seeds = [made_up(LABELS, 10 * number + seed) for seed in range(2)]
        found = evaluated(f"ce-{number}", seeds, LABELS, test=({"ece": 0.1}, {"ece": 0.2}))
        return replace(found, recipe="ce", sweep_id=str(number), fingerprint="f")

    first, second = sweep(1), sweep(2)
    words = ("compare", "s", "--question", "spread", "--metric", "nll", "--draws", 50)
    out = command_on([first])(*words)[1]
    again = "(sweeps with other names and other `seeds`"
    assert out.splitlines()[-1] == (
        f"shares of the variance of one network; not known: search {again}), "
        f"splits {again}, with another `split: {{seed: 1}}`)"
    )
    calsweep = command_on([first, second])
    (row,) = json.loads(calsweep(*words, "--json")[1])
    assert row["rows"] + row["seeds"] + row["search"] == pytest.approx(1)
    assert row["splits"] is None
    assert (
        calsweep(*words)[1]
        .splitlines()[-1]
        .startswith("shares of the variance of one network; not known: splits (sweeps")
    )
    out = command_on([first, replace(second, fingerprint="g")])(*words)[1]
    last = "network; splits include the search on them; not known: search (sweeps"
    assert last in out.splitlines()[-1]
    refused = command_on([first, replace(first, sweep_id="2")])(*words)
    assert refused[0] == 2
    assert refused[2].startswith(
        "calsweep: ce has the same network in two of the sweeps; give each"
    )


def test_a_detectable_difference_is_found_in_four_of_five_cases():
    draws = torch.randn(4000, generator=torch.Generator().manual_seed(2)).double() * 0.01
    flat = Measured(torch.zeros(1).double(), torch.zeros(1, 4000).double())
    least = _difference(Measured(torch.zeros(1).double(), draws[None]), flat, 0.95).detectable
    own = draws.std().item()
    assert least == pytest.approx((1.959964 + 0.841621) * own, rel=0.01)
    found = sum(abs(least + error) > 1.96 * own for error in draws.tolist()) / 4000
    assert found == pytest.approx(0.8, abs=0.02)


def test_without_predictions_there_is_no_best_recipe(artifacts):
    running = [StudyResult("s", "t", "ce", "running")]
    first, *_ = deployment(running, artifacts, draws=2)
    assert first.text == "no recipe has predictions"
