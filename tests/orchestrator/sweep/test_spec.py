"""The sweep file: what it means, and that every mistake in it gets one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.sweep.plan import searched_parameters, starting_values
from orchestrator.sweep.spec import load_sweep, parse_sweep
from trainables.common.errors import InputError

GOOD = """
name: small
tasks:
  - {dataset: digits, model: convnet, protocol: digits}
recipes: [ce, mbls, "*+ts"]
search: {trials: 3}
"""
TEXTS = "'text:articles', model: gpool-cnn, protocol: mbls2022-text"


def test_defaults_are_filled_in() -> None:
    spec = parse_sweep(GOOD, "good.yaml")
    assert spec.search.trials == 3
    assert spec.search.objective == "nll"
    assert spec.seeds == (0,)
    assert spec.tasks[0].id == "digits/convnet/digits"
    assert [recipe.name for recipe in spec.expanded()] == ["ce", "mbls", "ce+ts", "mbls+ts"]
    assert spec.tracking_uri.startswith("sqlite:///")


BAD = {
    "unknown recipe": (GOOD.replace("mbls", "mbsl"), ["mbsl", "mbls"]),
    "misplaced refinement": (GOOD.replace("mbls", "macal+mbls"), ["macal", "method[+refinement]"]),
    "two losses": (GOOD.replace("mbls", "mbls+fl"), ["mbls+fl", "one loss at most"]),
    "recipe twice": (GOOD.replace("mbls", "ce"), ["'ce' stands twice"]),
    "wildcard without methods": (GOOD.replace('[ce, mbls, "*+ts"]', '["*+ts"]'), ["*+ts"]),
    "unknown dataset": (GOOD.replace("digits,", "digist,", 1), ["digist", "digits"]),
    "unknown model": (GOOD.replace("convnet", "convent"), ["tasks[0].model", "convent", "convnet"]),
    "a refinement with masks": (
        GOOD.replace("digits, model: convnet", '"voc:streets", model: deeplabv3-small').replace(
            "mbls", "mbls+macal"
        ),
        ["tasks[0]", "'macal' is not for images-with-masks", "one feature vector an image"],
    ),
    "an augmentation of whole images with masks": (
        GOOD.replace("digits, model: convnet", '"voc:streets", model: deeplabv3-small').replace(
            "mbls", "cutmix"
        ),
        ["'cutmix' is not for images-with-masks", "one class"],
    ),
    "boxes of images on texts": (
        GOOD.replace("digits, model: convnet, protocol: digits", TEXTS).replace(
            "[ce, mbls", "[ce, cutmix"
        ),
        ["tasks[0]", "'cutmix' is not for texts", "take mixup or mit"],
    ),
    "a network of texts on images": (
        GOOD.replace("convnet", "gpool-cnn"),
        ["tasks[0].model", "'gpool-cnn' takes texts, the data are images", "convnet"],
    ),
    "a network of masks on images": (
        GOOD.replace("convnet", "deeplabv3-small"),
        ["tasks[0].model", "takes images with masks, the data are images"],
    ),
    "a network of images on texts": (
        GOOD.replace("digits, model: convnet, protocol: digits", TEXTS).replace(
            "gpool-cnn", "'timm:resnet18'"
        ),
        ["tasks[0].model", "takes images, the data are texts", "for those: gpool-cnn"],
    ),
    "a network of images on masks": (
        GOOD.replace("dataset: digits", 'dataset: "voc:streets"'),
        ["tasks[0].model", "takes images, the data are images with masks", "deeplabv3-small"],
    ),
    "views of images on texts": (
        GOOD.replace("digits, model: convnet, protocol: digits", TEXTS).replace(
            "mbls2022-text", "{base: mbls2022-text, augmentation: crop-flip}"
        ),
        ["tasks[0].protocol", "'crop-flip' is not for texts; those are: none"],
    ),
    "views of masks on images": (
        GOOD.replace("protocol: digits", "protocol: chen2017-voc"),
        ["tasks[0].protocol", "'scale-crop-flip' is not for images; those are: none, crop-flip"],
    ),
    "unknown protocol": (GOOD.replace("protocol: digits", "protocol: diggits"), ["diggits"]),
    "unknown key": (GOOD + "serch: {}\n", ["serch", "unknown key", "search"]),
    "unknown search key": (GOOD.replace("trials", "trails"), ["search.trails", "trials"]),
    "unknown task key": (GOOD.replace("model:", "modle:"), ["tasks[0].mod"]),
    "unknown parameter": (
        GOOD.replace("{trials: 3}", "{trials: 3, fixed: {mbls: {margn: 6}}}"),
        ["search.fixed.mbls", "margn", "margin, weight"],
    ),
    "parameter of an absent part": (
        GOOD.replace("{trials: 3}", "{fixed: {fl: {gamma: 2}}}"),
        ["search.fixed", "'fl'", "ce, mbls, ts"],
    ),
    "tuning what is fixed": (
        GOOD.replace("{trials: 3}", "{fixed: {mbls: {margin: 6.0}}, tune: {mbls: [margin]}}"),
        ["search.tune.mbls", "'margin' is fixed"],
    ),
    "tuning an unknown parameter": (
        GOOD.replace("{trials: 3}", "{tune: {mbls: [margn]}}"),
        ["search.tune.mbls", "margn", "margin, weight"],
    ),
    "tuning on a grid": (
        GOOD.replace("{trials: 3}", "{sampler: grid, tune: {mbls: [margin]}}"),
        ["search.tune", "`spaces`"],
    ),
    "parameter out of range": (
        GOOD.replace("{trials: 3}", "{fixed: {mbls: {weight: -1.0}}}"),
        ["search.fixed.mbls", "weight=-1"],
    ),
    "range upside down": (
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: 9.0, high: 3.0}}}}"),
        ["search.spaces.mbls", "margin", "9.0"],
    ),
    "negative trials": (GOOD.replace("3}", "-3}"), ["search.trials", "-3", "greater than"]),
    "no whole number of trials": (GOOD.replace("3}", "2.5}"), ["search.trials", "2.5"]),
    "duplicate task": (
        GOOD.replace(
            "recipes:", "  - {dataset: digits, model: convnet, protocol: digits}\nrecipes:"
        ),
        ["tasks[1]", "digits/convnet/digits", "twice"],
    ),
    "no tasks": (GOOD.replace("  - {dataset: digits, model: convnet, protocol: digits}\n", ""), []),
    "tab": (GOOD.replace("  - {dataset", "\t- {dataset"), ["line 4", "tab"]),
    "empty": ("", ["empty"]),
    "only a comment": ("# nothing\n", ["empty"]),
    "a list": ("- ce\n", ["list"]),
    "key twice": (GOOD + "name: other\n", ["'name'", "twice"]),
    "a python object": (GOOD + "storage: !!python/object/apply:os.getcwd []\n", ["python"]),
    "bad objective": (GOOD.replace("{trials: 3}", "{objective: acc}"), ["objective", "acc"]),
    "objective twice": (
        GOOD.replace("trials: 3", "pareto: [acc, nll]"),
        ["search.pareto", "'nll' is the objective already"],
    ),
    "a metric that validation does not report": (
        GOOD.replace("trials: 3", "pareto: [auroc]"),
        ["search.pareto[0]", "'acc', 'nll'", "auroc"],
    ),
    "several metrics stopped by one": (
        GOOD.replace("trials: 3", "pareto: [acc], scheduler: asha"),
        ["search.pareto", "asha"],
    ),
    "seed twice": (GOOD + "seeds: [1, 1]\n", ["seeds", "twice"]),
    "negative seed": (GOOD + "seeds: [-1]\n", ["seeds[0]", "-1"]),
    "bare tracking path": (GOOD + "tracking: {uri: ./mlruns}\n", ["mlruns"]),
    "bad name": (GOOD.replace("small", "../up"), ["name", "../up"]),
    "task name that leaves the folder": (
        GOOD.replace("{dataset:", "{name: a/../b, dataset:"),
        ["tasks[0]", "a/../b", "letters"],
    ),
    "task name with the study's sign": (
        GOOD.replace("{dataset:", '{name: "a|b", dataset:'),
        ["tasks[0]", "a|b"],
    ),
    "two GPUs for a trial": (
        GOOD + "resources: {train: {gpu: 2}}\n",
        ["resources.train.gpu", "one GPU at most", "fraction", "got 2"],
    ),
    "not finite": (GOOD.replace("3}", "3, accuracy_tolerance: .nan}"), ["accuracy_tolerance"]),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_mistake_gets_one_line_that_says_what_and_where(mistake: str) -> None:
    text, expected = BAD[mistake]
    with pytest.raises(InputError) as caught:
        parse_sweep(text, "bad.yaml")
    message = str(caught.value)
    assert message.startswith("bad.yaml: ")
    assert "\n" not in message
    for piece in expected:
        assert piece in message, message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.yaml: cannot be read"):
        load_sweep(tmp_path / "absent.yaml")


def test_a_file_of_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InputError, match=r"bytes\.yaml: cannot be read"):
        load_sweep(path)


def test_a_narrower_range_replaces_the_published_one() -> None:
    spec = parse_sweep(
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: 8.0, high: 12.0}}}}"), "good"
    )
    margin = searched_parameters(spec, "mbls")["margin"]
    assert (margin.low, margin.high) == (8.0, 12.0)
    assert margin.default == 8.0


def test_a_fixed_parameter_is_not_searched() -> None:
    spec = parse_sweep(GOOD.replace("{trials: 3}", "{fixed: {mbls: {margin: 25.0}}}"), "good")
    assert "margin" not in searched_parameters(spec, "mbls")
    assert starting_values(spec, "mbls", spec.tasks[0])["margin"] == 25.0


@pytest.mark.parametrize("name", ["demo", "cifar10-cpu", "cifar10-gpu"])
def test_the_examples_are_valid(name: str) -> None:
    folder = Path(__file__).resolve().parents[3] / "examples"
    assert load_sweep(folder / f"{name}.yaml").name == name
