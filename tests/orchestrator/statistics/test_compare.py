from dataclasses import replace

import pytest
import torch

from orchestrator.statistics import (
    Difference,
    PairedBootstrap,
    StoredPredictions,
    TaskComparison,
    board,
    compare,
    contrast,
    paired_bootstrap,
)
from orchestrator.storage.results import StudyResult
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.metrics import calibration_report, noise_floor, noise_floors_of_groups

LABELS = torch.arange(400) % 4
TASK = "digits/convnet/digits"


def test_values_are_those_recomputed_from_the_stored_rows(artifacts, evaluated, made_up):
    tables = {"ce": [made_up(LABELS, 0), made_up(LABELS, 1)], "ls": [made_up(LABELS, 0, 0.3)]}
    results = [evaluated(recipe, seeds, LABELS) for recipe, seeds in tables.items()]
    done = []
    found = compare(results, artifacts, draws=100, seed=3, level=0.8, done=done.append)
    options = {"baseline": "ce", "draws": 100, "seed": 3, "level": 0.8}
    assert found.bootstrap == paired_bootstrap(tables, LABELS, **options)
    assert (found.task, done) == (results[0].task, ["ce", "ls"])
    other = compare(results, artifacts, baseline="ls", draws=2).bootstrap
    assert (other.baseline, list(other.differences)) == ("ls", ["ce"])
    for recipe, seeds in tables.items():
        reports = [calibration_report(logits=one, labels=LABELS) for one in seeds]
        expected = sum(report["ece"] for report in reports) / len(seeds)
        assert found.bootstrap.values[recipe] == pytest.approx(expected, abs=1e-6)
        floor = sum(noise_floor(one.float()).mean for one in seeds) / len(seeds)
        assert found.floors[recipe] == floor
    classwise = compare(results, artifacts, "cwece", draws=2).floors
    assert classwise["ls"] == noise_floor(tables["ls"][0].float(), "cwece").mean
    assert found.bootstrap.differences["ls"].excludes_zero
    assert not found.inside_floor("ls")


def test_intervals_over_seeds_include_the_variance_between_seeds(artifacts, evaluated, made_up):
    tables = {
        "ce": [made_up(LABELS, seed) for seed in range(3)],
        "ls": [made_up(LABELS, seed, 0.3 + 0.3 * seed) for seed in range(3)],
    }
    results = [evaluated(recipe, seeds, LABELS) for recipe, seeds in tables.items()]
    rows, seeds = (
        compare(results, artifacts, "nll", draws=100, over_seeds=over) for over in (False, True)
    )
    figures = board(results, artifacts, "nll", draws=100).figures
    expected = contrast(figures["ls"], figures["ce"]).interval()
    found = seeds.bootstrap.differences["ls"]
    assert found == expected
    assert found.high - found.low > 3 * (rows.bootstrap.differences["ls"].high - found.value)
    assert seeds.bootstrap.values == rows.bootstrap.values


def test_pixels_of_an_image_are_no_rows_of_their_own(artifacts, evaluated, made_up):
    """Where an image is one row five times over, the pixels tell what the rows do."""
    copied, images = LABELS.repeat_interleave(5), torch.arange(400).repeat_interleave(5)
    tables = {"ce": made_up(LABELS, 0), "ls": made_up(LABELS, 0, 0.3)}
    results = [
        evaluated(recipe, [table.repeat_interleave(5, 0)], copied, images=images)
        for recipe, table in tables.items()
    ]
    found = compare(results, artifacts, draws=10)
    options = {"baseline": "ce", "draws": 10, "groups": images}
    copies = {recipe: [table.repeat_interleave(5, 0)] for recipe, table in tables.items()}
    assert found.bootstrap == paired_bootstrap(copies, copied, **options)
    assert found.bootstrap.groups == 400
    for recipe, table in tables.items():
        rows = noise_floor(table).mean
        assert found.floors[recipe] == pytest.approx(rows, rel=0.2)
        assert noise_floor(table.repeat_interleave(5, 0)).mean < 0.6 * rows
    classwise = compare(results, artifacts, "cwece", draws=2).floors
    pixels = noise_floors_of_groups(copies["ls"][0].float(), copied, images, ("cwece",))
    assert classwise["ls"] == pixels["cwece"].mean


def test_each_seed_may_have_rows_of_a_file_of_its_own(artifacts, evaluated, made_up):
    numbers = [torch.arange(0, 300), torch.arange(399, 99, -1)]
    labels = [LABELS[own] for own in numbers]
    tables = {
        recipe: [made_up(own, seed, sharpness) for seed, own in enumerate(labels)]
        for recipe, sharpness in (("ce", 1.0), ("ls", 0.3))
    }
    tables = {"fl": tables["ls"][:1], **tables}  # One seed only.
    results = [
        evaluated(recipe, seeds, labels, numbers=numbers) for recipe, seeds in tables.items()
    ]
    found = StoredPredictions(results, artifacts)
    assert found.numbers is not None
    for ours, expected in ((found.numbers, numbers), (found.truths, labels)):
        assert [own.tolist() for own in ours] == [own.tolist() for own in expected]
    assert torch.equal(found.labels, labels[0])
    compared = compare(results, artifacts, draws=20)
    options = {"baseline": "ce", "draws": 20, "numbers": numbers}
    assert compared.bootstrap == paired_bootstrap(tables, labels, **options)
    other = evaluated("mbls", tables["ls"], [labels[0], labels[0]], numbers=numbers)
    told = f"^fl and mbls were not tested on the same rows of {TASK}: their labels differ$"
    with pytest.raises(InputError, match=told):
        StoredPredictions([*results, other], artifacts)


def test_seeds_of_other_labels_have_other_rows(artifacts, evaluated, made_up):
    seeds = evaluated("ce", [made_up(LABELS, 0)] * 2, [LABELS, LABELS.flip(0)])
    with pytest.raises(
        InputError, match=f"^seeds were not tested on the same rows of {TASK}: labels differ$"
    ):
        StoredPredictions([seeds], artifacts)


def test_rows_are_flipped_where_another_class_is_predicted(artifacts, evaluated, made_up):
    own, other = made_up(LABELS, 0), made_up(LABELS, 1)
    moved = own.clone()
    moved[:30] = own[:30].roll(1, 1)
    results = [
        evaluated("ce", [own, other], LABELS),
        evaluated("ce+ts", [2 * own, 0.5 * other], LABELS),
        evaluated("ls", [moved, other], LABELS),
        evaluated("fl", [moved], LABELS),
    ]
    share = 30 / len(LABELS)
    found = compare(results, artifacts, draws=2).flipped
    assert found == pytest.approx({"ce+ts": 0.0, "ls": share / 2, "fl": share})


@pytest.mark.parametrize(
    ("metric", "ends", "side"),
    [
        ("ece", (0.01, 0.02), "worse"),
        ("ece", (-0.02, -0.01), "better"),
        ("ece", (-0.01, 0.02), ""),
        ("ece", (0.0, 0.02), ""),
        ("ece", (-0.02, 0.0), ""),
        ("acc", (0.01, 0.02), "better"),
        ("acc", (-0.02, -0.01), "worse"),
        ("acc", (-0.01, 0.02), ""),
    ],
)
def test_which_side_is_better(metric, ends, side):
    gaps = {"ls": Difference(0.01, *ends)}
    found = PairedBootstrap(metric, "ce", {"ce": 0.1, "ls": 0.11}, gaps, {}, 1, 1)
    compared = TaskComparison("t", found, {"ce": 0.01, "ls": 0.005}, {})
    assert (compared.side("ls"), compared.side("ce")) == (side, "")
    assert (compared.inside_floor("ls"), compared.inside_floor("ce")) == (True, False)
    assert not replace(compared, floors={"ce": 0.009, "ls": 0.005}).inside_floor("ls")
    assert replace(compared, floors={"ce": 0.005, "ls": 0.02}).inside_floor("ls")


def test_a_small_difference_is_inside_the_floor_and_acc_has_none(artifacts, evaluated, made_up):
    near = made_up(LABELS, 0)
    results = [evaluated("ce", [near], LABELS), evaluated("ce+ts", [1.001 * near], LABELS)]
    assert compare(results, artifacts, draws=10).inside_floor("ce+ts")
    accuracy = compare(results, artifacts, "acc", draws=10)
    assert (accuracy.floors, accuracy.inside_floor("ce+ts")) == ({}, False)


def test_a_comparison_names_recipes_without_predictions(artifacts, evaluated, made_up):
    fine = evaluated("ce", [made_up(LABELS, 0)], LABELS)
    others = [
        StudyResult("s", fine.task, "mbls", "failed", reason="NaN"),
        StudyResult("s", fine.task, "fl", "failed"),
        StudyResult("s", fine.task, "acls", "running"),
        StudyResult("s", fine.task, "ls", "finished"),
    ]
    found = compare([fine, *others], artifacts, draws=5)
    assert found.absent == {
        "mbls": "failed: NaN",
        "fl": "failed",
        "acls": "running",
        "ls": "no predictions on record",
    }
    assert list(found.bootstrap.values) == ["ce"]
    told = f"^baseline 'ce' on {TASK}: not in this sweep; recipes with predictions: none$"
    with pytest.raises(InputError, match=told):
        compare(others, artifacts, baseline="ce")


def test_missing_predictions_are_named_with_the_remedy(artifacts, evaluated, made_up):
    result = evaluated("ce", [made_up(LABELS, 0)], LABELS)
    lost = replace(result, predictions=("ab" * 32,))
    remedy = f"`calsweep run --resume s --storage {artifacts.root.parent}` computes it again"
    place = artifacts.path(ArtifactRef("evaluate", "ab" * 32))
    told = f"^the predictions of ce on {TASK} are gone: {place} is missing; {remedy}$"
    with pytest.raises(InputError, match=told):
        StoredPredictions([lost], artifacts)


def test_other_test_rows_are_refused(artifacts, evaluated, made_up):
    results = [
        evaluated("ce", [made_up(LABELS, 0)], LABELS),
        evaluated("ls", [made_up(LABELS, 1)], LABELS.flip(0)),
    ]
    with pytest.raises(
        InputError, match=f"^ce and ls were not tested on the same rows of {TASK}: "
    ):
        compare(results, artifacts)


def test_a_recipe_twice_is_refused(artifacts, evaluated, made_up):
    result = evaluated("ce", [made_up(LABELS, 0)], LABELS)
    with pytest.raises(InputError, match=f"^two results for ce on {TASK}; choose one sweep$"):
        compare([result, result], artifacts)
    failed = StudyResult("s", result.task, "mbls", "failed")
    with pytest.raises(InputError, match=f"^two results for mbls on {TASK}; choose one sweep$"):
        compare([result, failed, failed], artifacts)
    with pytest.raises(ValueError, match=f"^results of {TASK} and of other; expected one task$"):
        StoredPredictions([result, replace(result, task="other")], artifacts)
    with pytest.raises(ValueError, match=r"expected one task$"):
        compare([result, replace(failed, task="other")], artifacts)
