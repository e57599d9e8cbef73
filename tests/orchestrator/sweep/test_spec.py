"""The sweep file: what it means, and that every mistake in it gets one clear line."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

from orchestrator.sweep.plan import searched_parameters, starting_values
from orchestrator.sweep.spec import (
    SplitModel,
    StageResources,
    TaskSpec,
    is_sweep_name,
    load_sweep,
    parse_sweep,
)
from trainables.common.errors import InputError
from trainables.data import SplitSpec
from trainables.data._images import Images

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
    "unknown key": (GOOD + "serch: {}\n", ["serch: unknown key; near are: search; allowed"]),
    "unknown search key": (GOOD.replace("trials", "trails"), ["search.trails", "trials"]),
    "unknown task key": (GOOD.replace("model:", "modle:"), ["tasks[0].mod"]),
    "unknown parameter": (
        GOOD.replace("{trials: 3}", "{trials: 3, fixed: {mbls: {margn: 6}}}"),
        ["search.fixed.mbls: ", "'margn'; near are: margin; it has: margin, weight"],
    ),
    "parameter of an absent part": (
        GOOD.replace("{trials: 3}", "{fixed: {fl: {gamma: 2}}}"),
        ["search.fixed: 'fl' is part of no recipe here; parts are: ce, mbls, ts"],
    ),
    "tuning what is fixed": (
        GOOD.replace("{trials: 3}", "{fixed: {mbls: {margin: 6.0}}, tune: {mbls: [margin]}}"),
        ["search.tune.mbls", "'margin' is fixed"],
    ),
    "tuning an unknown parameter": (
        GOOD.replace("{trials: 3}", "{tune: {mbls: [margn]}}"),
        ["search.tune.mbls", "margn", "margin, weight"],
    ),
    "tuning besides the papers": (
        GOOD.replace("{trials: 3}", "{budget: paper, tune: {mbls: [margin]}}"),
        ["search.tune: budget `paper` tunes what the papers did; give others a range in `spaces`"],
    ),
    "an unknown budget": (
        GOOD.replace("{trials: 3}", "{budget: papers}"),
        ["search.budget", "'equal' or 'paper'"],
    ),
    "tuning on a grid": (
        GOOD.replace("{trials: 3}", "{sampler: grid, tune: {mbls: [margin]}}"),
        ["search.tune", "`spaces`"],
    ),
    "tuning what a variant fixes": (
        GOOD.replace("{trials: 3}", "{tune: {wide: [margin]}}").replace("mbls", "wide")
        + "variants: {wide: {of: mbls, fixed: {margin: 9.0}}}\n",
        ["search.tune.wide", "'margin' is fixed"],
    ),
    "a range on a grid": (
        GOOD.replace("{trials: 3}", "{sampler: grid, spaces: {mbls: {margin: {low: 1.0}}}}"),
        ["search.spaces.mbls.margin", "the grid sampler needs `choices`"],
    ),
    "a choice that the part refuses": (
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {weight: {choices: [0.1, -1.0]}}}}"),
        ["search.spaces.mbls", "weight=-1"],
    ),
    "a range that begins below what the part takes": (
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: -3}}}}"),
        ["search.spaces.mbls", "margin=-3.0 is outside [0, inf)"],
    ),
    "a range that ends above what the part takes": (
        GOOD.replace("{trials: 3}", "{spaces: {ls: {smoothing: {high: 2}}}}").replace("mbls", "ls"),
        ["search.spaces.ls", "smoothing=2.0 is outside"],
    ),
    "a variant under the name of a part": (
        GOOD + "variants: {ets: {of: ts}}\n",
        ["variants.ets", "'ets' is the name of a part already"],
    ),
    "a variant under the name of no training": (
        GOOD + "variants: {given: {of: ts}}\n",
        ["variants.given: 'given' is the name of a part already"],
    ),
    "a variant of nothing": (GOOD + "variants: {wide: {of: mbsl}}\n", ["variants.wide.of", "mbsl"]),
    "a variant in capitals": (GOOD + "variants: {W: {of: ts}}\n", ["variants.W", "small letters"]),
    "a variant's value": (
        GOOD + "variants: {wide: {of: mbls, fixed: {weight: -1.0}}}\n",
        ["variants.wide.fixed", "weight=-1"],
    ),
    "a tag of ours": (GOOD + "tags: {calsweep.kind: a}\n", ["tags", "begins with none of"]),
    "a tag of the store's": (GOOD + "tags: {mlflow: a}\n", ["tags", "begins with none of"]),
    "parameter out of range": (
        GOOD.replace("{trials: 3}", "{fixed: {mbls: {weight: -1.0}}}"),
        ["search.fixed.mbls", "weight=-1"],
    ),
    "range upside down": (
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: 9.0, high: 3.0}}}}"),
        ["search.spaces.mbls", "margin", "9.0"],
    ),
    "range without end": (
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: -.inf}}}}"),
        ["search.spaces.mbls", "margin: needs finite low and high, got -inf"],
    ),
    "negative trials": (GOOD.replace("3}", "-3}"), ["search.trials", "-3", "greater than"]),
    "more trials than are counted": (
        GOOD.replace("trials: 3", f"trials: {2**31}"),
        ["search.trials", f"less than {2**31}"],
    ),
    "more restarts than are counted": (
        GOOD + f"resources: {{max_failures: {2**31}}}\n",
        ["resources.max_failures", f"less than {2**31}"],
    ),
    "less than no restart": (
        GOOD + "resources: {max_failures: -1}\n",
        ["resources.max_failures", "greater than or equal to 0, got -1"],
    ),
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
    "another metric twice": (
        GOOD.replace("trials: 3", "pareto: [acc, acc]"),
        ["search.pareto", "'acc' is the objective already, or stands twice"],
    ),
    "a metric that validation does not report": (
        GOOD.replace("trials: 3", "pareto: [auroc]"),
        ["search.pareto[0]", "acc, nll", "auroc"],
    ),
    "several metrics stopped by one": (
        GOOD.replace("trials: 3", "pareto: [acc], scheduler: asha"),
        ["search.pareto", "asha"],
    ),
    "asha where one trial runs at a time": (
        GOOD.replace("trials: 3", "scheduler: asha") + "executor: local\n",
        ["search.scheduler", "`local`"],
    ),
    "seed twice": (GOOD + "seeds: [1, 1]\n", ["seeds", "twice"]),
    "negative seed": (GOOD + "seeds: [-1]\n", ["seeds[0]", "-1"]),
    "bare tracking path": (
        GOOD + "tracking: {uri: ./mlruns}\n",
        ["tracking.uri './mlruns' is not"],
    ),
    "a login where no address stands": (
        GOOD + "tracking: 'http://me:secret@there'\n",
        ["tracking: ", "got ***"],
    ),
    "a URL as the storage": (
        GOOD + "storage: https://bucket\n",
        ["storage: 'https://bucket' is a URL", "s3://BUCKET/PATH"],
    ),
    "logits alone in a bucket": (
        GOOD + "storage: s3://bucket/x\nkeep: logits\n",
        ["keep: logits needs a storage that is a folder, not s3://bucket/x"],
    ),
    "a mirror": (
        GOOD + "mirror: s3://me:secret@bucket/x\n",
        ["mirror: is no key any longer; write storage: s3://BUCKET/PATH"],
    ),
    "a URL as the place of data": (
        GOOD + "data_root: s3://bucket\n",
        ["data_root: 's3://bucket' is a URL; it is a path on this machine"],
    ),
    "an unknown key of a variant": (
        GOOD + "variants: {wide: {of: mbls, fixd: {}}}\n",
        ["variants.wide.fixd: unknown key; near are: fixed; allowed are: of, fixed"],
    ),
    "bad name": (GOOD.replace("small", "../up"), ["name", "../up"]),
    "task name that leaves the folder": (
        GOOD.replace("{dataset:", "{name: a/../b, dataset:"),
        ["tasks[0]", "a/../b", "letters"],
    ),
    "task name with the study's sign": (
        GOOD.replace("{dataset:", '{name: "a|b", dataset:'),
        ["tasks[0]", "a|b"],
    ),
    "two GPUs for a refinement": (
        GOOD + "resources: {refine: {gpu: 2}}\n",
        ["resources.refine.gpu", "one GPU at most", "fraction", "got 2"],
    ),
    "processes beside GPUs": (
        GOOD + "resources: {train: {gpu: 1, processes: 2}}\n",
        ["resources.train", "processes=2 are for CPUs"],
    ),
    "a GPU and a half for a trial": (
        GOOD + "resources: {train: {gpu: 1.5}}\n",
        ["resources.train.gpu", "whole number", "got 1.5"],
    ),
    "not finite": (GOOD.replace("3}", "3, accuracy_tolerance: .nan}"), ["accuracy_tolerance"]),
    "a tolerance above all": (
        GOOD.replace("trials: 3", "accuracy_tolerance: 1.5"),
        ["search.accuracy_tolerance", "less than or equal to 1, got 1.5"],
    ),
    "a tolerance below none": (
        GOOD.replace("trials: 3", "accuracy_tolerance: -0.1"),
        ["search.accuracy_tolerance", "greater than or equal to 0, got -0.1"],
    ),
    "errors without end": (
        GOOD.replace("trials: 3", "keep_default: .inf"),
        ["search.keep_default", "a finite number, got inf"],
    ),
    "errors below none": (
        GOOD.replace("trials: 3", "accuracy_errors: -1"),
        ["search.accuracy_errors", "greater than or equal to 0, got -1"],
    ),
    "no choices": (
        GOOD.replace("trials: 3", "spaces: {mbls: {margin: {choices: []}}}"),
        ["search.spaces.mbls.margin.choices", "at least 1 item"],
    ),
    "another scale on a grid": (
        GOOD.replace("trials: 3", "sampler: grid, spaces: {mbls: {margin: {scale: linear}}}"),
        ["search.spaces.mbls.margin", "the grid sampler needs `choices`"],
    ),
    "a range of a second part": (
        GOOD.replace("[ce", "[ce, fl").replace(
            "trials: 3", "spaces: {fl: {gamma: {low: 1.0}}, mbls: {margin: {low: -3}}}"
        ),
        ["search.spaces.mbls", "margin=-3.0 is outside [0, inf)"],
    ),
    "a range from nothing": (
        GOOD.replace("mbls", "aurc").replace("trials: 3", "spaces: {aurc: {score: {low: 0}}}"),
        ["search.spaces.aurc", "score takes choices, not a range"],
    ),
    "less than no GPU": (
        GOOD + "resources: {train: {gpu: -1}}\n",
        ["resources.train.gpu", "greater than or equal to 0, got -1"],
    ),
    "no seeds": (GOOD + "seeds: []\n", ["seeds", "at least 1 item"]),
    "a seed of 32 bits": (GOOD + f"seeds: [0, {2**31}]\n", ["seeds[1]", f"less than {2**31}"]),
    "a tag of two words": (GOOD + "tags: {a b: c}\n", ["tags", "letters, digits", "got {'a b'"]),
    "an unknown field of a protocol": (
        GOOD.replace("protocol: digits", "protocol: {base: digits, epochz: 1}"),
        ["tasks[0].protocol: ", "no field 'epochz'"],
    ),
    "a split of no rows": (
        GOOD.replace("protocol: digits", "protocol: digits, split: {validation: 0}"),
        ["tasks[0].split: validation=0 is outside"],
    ),
    "a setting that the data have not": (
        GOOD.replace("protocol: digits", "protocol: digits, inputs: {length: 4}"),
        ["tasks[0].dataset: ", "inputs.length is unknown"],
    ),
    "a network of texts on images in a second task": (
        GOOD.replace(
            "recipes:",
            "  - {name: b, dataset: digits, model: gpool-cnn, protocol: digits}\nrecipes:",
        ),
        ["tasks[1].model", "'gpool-cnn' takes texts, the data are images"],
    ),
    "a part that a second task has no use for": (
        GOOD.replace("recipes:", f"  - {{name: b, dataset: {TEXTS}}}\nrecipes:").replace(
            "[ce, mbls", "[ce, wide"
        )
        + "variants: {wide: {of: cutmix}}\n",
        ["recipes: tasks[1] (b): ", "'cutmix' is not for texts"],
    ),
    "an unknown parameter of a variant": (
        GOOD + "variants: {wide: {of: mbls, fixed: {margn: 1}}}\n",
        ["variants.wide.fixed: unknown parameter 'margn'"],
    ),
    "a variant with a space": (
        GOOD + "variants: {'wide ': {of: mbls}}\n",
        ["variants.wide : a name is made of small letters"],
    ),
    "a range of a variant": (
        GOOD.replace("mbls", "wide").replace("trials: 3", "spaces: {wide: {margin: {low: -3}}}")
        + "variants: {wide: {of: mbls}}\n",
        ["search.spaces.wide: margin=-3.0 is outside"],
    ),
    "a parameter of what has none": (
        GOOD.replace("{trials: 3}", "{fixed: {ce: {margin: 6.0}}}"),
        ["search.fixed.ce: unknown parameter 'margin'; it has: none"],
    ),
    "tuning much that is fixed": (
        GOOD.replace("mbls", "acls").replace(
            "{trials: 3}",
            "{fixed: {acls: {weight_neg: 0.01, weight_pos: 0.1, variant: paper, margin: 6.0}}, "
            "tune: {acls: [weight_pos, weight_neg, variant, margin]}}",
        ),
        ["search.tune.acls: 'margin' is fixed here; tune it or fix it"],
    ),
    "a fixed value of a variant": (
        GOOD.replace("mbls", "wide").replace("trials: 3", "fixed: {wide: {margin: -3}}")
        + "variants: {wide: {of: mbls}}\n",
        ["search.fixed.wide: margin=-3 is outside"],
    ),
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


def test_every_mistake_is_told_in_the_same_words(file_regression: FileRegressionFixture) -> None:
    """After a change that is meant, run this file with ``--force-regen`` and read what differs."""
    told = []
    for mistake, (text, _) in BAD.items():
        with pytest.raises(InputError) as caught:
            parse_sweep(text, "bad.yaml")
        # Without lists of all that is registered, which a new method or model makes longer.
        line = re.sub(r"; for those: .*| \(methods: .*", " ...", str(caught.value))
        told.append(f"{mistake}\n  {line}\n")
    file_regression.check("".join(told), encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD.replace("name: small\n", ""), "name: is missing"),
        ("{}", "name: is missing"),
        (
            GOOD.replace("protocol: digits", "protocol: 3"),
            "tasks[0].protocol: input should be a valid string, got 3",
        ),
        (
            GOOD.replace("protocol: digits", "protocol: digits, split: {validation: x}"),
            "tasks[0].split.validation: input should be a valid number, got 'x'",
        ),
        (
            f"{GOOD}seeds: {'x' * 78}\n",
            f"seeds: input should be a valid tuple, got '{'x' * 78}'",
        ),
        (
            f"{GOOD}seeds: {'x' * 79}\n",
            f"seeds: input should be a valid tuple, got '{'x' * 76}...",
        ),
        (
            GOOD + "variants: {wide: {of: mbls, fixed: {margin: [1]}}}\n",
            "variants.wide.fixed.margin: input should be a valid boolean, got [1]",
        ),
        (
            GOOD.replace("trials: 3", "fixed: {mbls: {margin: x}}"),
            "search.fixed.mbls: margin='x' is not a number in [0, inf)",
        ),
        (
            GOOD.replace("trials: 3", "trials: -3, parallel_trials: 0") + "seeds: [-1]\n",
            "search.trials: input should be greater than or equal to 1, got -3",
        ),
        (GOOD + "name: other\n", "line 7: key 'name' stands twice"),
        (
            GOOD.replace("trials: 3", "trials: 3,\n  sampler: tpe,\n  trials: 4"),
            "line 8: key 'trials' stands twice",
        ),
        (
            GOOD + "resources: {train: {gpus: 1}}\n",
            "resources.train.gpus: unknown key; near are: gpu; allowed are: cpu, gpu, processes",
        ),
        (
            GOOD.replace("protocol: digits", "protocol: digits, split: {sede: 1}"),
            "tasks[0].split.sede: unknown key; near are: seed; allowed are: validation, test, "
            "train_limit, test_limit, seed, vary",
        ),
        (
            GOOD.replace("trials: 3", "spaces: {mbls: {margin: {lo: 1}}}"),
            "search.spaces.mbls.margin.lo: unknown key; near are: low; allowed are: low, high, "
            "scale, choices",
        ),
        ("- ce\n", "the document is a list; a sweep is a mapping of keys"),
        ("", "the document is empty; a sweep needs name, tasks and recipes"),
    ],
)
def test_the_first_mistake_is_told_with_its_place(text: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sweep(text, "a folder/bad.yaml")
    assert str(caught.value) == f"a folder/bad.yaml: {line}"


def test_a_file_that_says_something_wrong_is_named_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD + "serch: {}\n")
    with pytest.raises(InputError, match=rf"^{path}: serch: unknown key"):
        load_sweep(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    with pytest.raises(InputError, match=f"^{path}: cannot be read"):
        load_sweep(path)


def test_a_file_of_bytes_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(InputError, match=r"bytes\.yaml: cannot be read"):
        load_sweep(path)


def test_a_file_is_as_large_as_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("#" + "ü" * 2**16, encoding="utf-8")  # One byte more than 128 KiB.
    with pytest.raises(InputError, match=r"large\.yaml: is larger than 128 KiB, the most allowed"):
        load_sweep(path)


def test_a_narrower_range_replaces_the_published_one() -> None:
    spec = parse_sweep(
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: 8.0, high: 12.0}}}}"), "good"
    )
    margin = searched_parameters(spec, "mbls", spec.tasks[0])["margin"]
    assert (margin.low, margin.high) == (8.0, 12.0)
    assert margin.default == 8.0


def test_a_fixed_parameter_is_not_searched() -> None:
    spec = parse_sweep(GOOD.replace("{trials: 3}", "{fixed: {mbls: {margin: 25.0}}}"), "good")
    assert "margin" not in searched_parameters(spec, "mbls", spec.tasks[0])
    assert starting_values(spec, "mbls", spec.tasks[0])["margin"] == 25.0


@pytest.mark.parametrize("name", ["demo", "cifar10-cpu", "cifar10-gpu"])
def test_the_examples_are_valid(name: str) -> None:
    folder = Path(__file__).resolve().parents[3] / "examples"
    assert load_sweep(folder / f"{name}.yaml").name == name


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("digits", "digits"),
        ("cifar10-lt:50", "cifar10-lt:50"),
        ("npz:/data/mine.npz", "mine"),
        ("folder:/data/birds", "birds"),
        ("text:articles", "articles"),
        ("voc:/data/streets", "streets"),
        ("logits:/data/vit.npz", "vit"),
        ("logits:/data/arena.h5:svhn/vit", "svhn/vit"),
    ],
)
def test_a_task_is_called_by_its_data_network_and_protocol(dataset: str, name: str) -> None:
    given = dataset.startswith("logits:")
    model, protocol = ("given", "given") if given else ("m", "p")
    task = TaskSpec(dataset=dataset, model=model, protocol=protocol)
    assert (task.given, task.dataset_name) == (given, name)
    assert task.id == (name if given else f"{name}/m/p")
    assert task.model_copy(update={"name": "own"}).id == "own"


def test_a_protocol_with_other_fields_keeps_a_name_of_its_own() -> None:
    changed = {"base": "digits", "epochs": 2}
    task = TaskSpec(dataset="digits", model="convnet", protocol=changed)
    assert (task.protocol_name, task.resolved_protocol.epochs) == ("digits-custom", 2)


@pytest.mark.parametrize(
    ("dataset", "protocol", "split", "validation"),
    [
        ("digits", {"base": "digits", "validation": 0.3}, {}, 0.3),
        ("digits", {"base": "digits", "validation": 0.3}, {"validation": 50}, 50),
        ("digits", {"base": "digits", "validation": None}, {}, 0.1),
        ("voc:streets", {"base": "digits", "validation": None}, {}, "own"),
        ("logits:a.npz", "given", {}, "all"),
        ("logits:a.npz", "given", {"validation": 90}, 90),
    ],
)
def test_rows_to_choose_by_are_those_of_split_protocol_or_data(
    dataset: str, protocol: Any, split: dict[str, Any], validation: Any
) -> None:
    rest: dict[str, Any] = {"test": 0.5, "train_limit": 9, "test_limit": 8, "seed": 4}
    task = TaskSpec(
        dataset=dataset, model="given", protocol=protocol, split=SplitModel(**split, **rest)
    )
    assert task.split_spec.to_dict() == {"validation": validation, **rest}


def test_seeds_choose_rows_where_they_are_to_and_no_two_the_same() -> None:
    plain = TaskSpec(dataset="digits", model="convnet", protocol="digits")
    vary = plain.model_copy(update={"split": SplitModel(vary=True, seed=4)})
    given = TaskSpec(dataset="logits:a.npz", model="given", protocol="given")
    for whole in (True, False):
        assert plain.split_on(7, whole) == plain.split_spec
        assert vary.split_on(7, whole).to_dict() == {
            **vary.split_spec.to_dict(),
            "validation_seed": 7,
        }
    assert given.split_on(7, whole=False).to_dict() == {
        **given.split_spec.to_dict(),
        "validation_seed": 7,
    }
    found = [
        given.model_copy(update={"split": SplitModel(seed=own)}).split_on(seed, whole=True)
        for own, seed in product((0, 1, 2, 2**31 - 1), repeat=2)
    ]
    assert found[0] == given.split_spec
    assert found[4].seed == 2**31  # Of the split's seed 1 and the sweep's 0, for ever.
    assert len({split.seed for split in found}) == len(found)
    assert {split.validation_seed for split in found} == {None}
    names = [[task.data_name(seed) for seed in (0, 1)] for task in (plain, vary, given)]
    task = "digits/convnet/digits"
    assert names == [[task, task], [f"{task} 0", f"{task} 1"], ["a 0", "a 1"]]


@pytest.mark.parametrize(
    ("seeds", "search", "expected"),
    [
        ([3, 1], "null", (3, 1)),
        ([3, 1], "1", (1, 3)),
        ([3, 1], "0", (0, 3, 1)),
        ([0], "0", (0,)),
    ],
)
def test_the_searchs_own_seed_comes_first(
    seeds: list[int], search: str, expected: tuple[int, ...]
) -> None:
    text = GOOD.replace("{trials: 3}", f"{{seed: {search}}}")
    assert parse_sweep(f"{text}seeds: {seeds}\n", "good").all_seeds == expected


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a", True),
        ("A.b_c-9", True),
        ("x" * 250, True),
        ("x" * 251, False),
        ("-a", False),
        ("", False),
        ("a/b", False),
        ("a ", False),
    ],
)
def test_a_sweeps_name_names_a_folder(name: str, allowed: bool) -> None:
    assert is_sweep_name(name) == allowed


def test_a_tasks_name_may_hold_signs_in_parts_between_slashes() -> None:
    name = "vit_b.16:swa/lr@0.1+aug/x-1/größer"
    (task,) = parse_sweep(GOOD.replace("{dataset", f"{{name: '{name}', dataset"), "good").tasks
    assert task.id == name


def test_own_tags_may_hold_our_words_but_not_begin_with_them() -> None:
    tags = {"team.calsweep": "red", "calsweeps": "1", "mlflow_run": "x"}
    assert parse_sweep(f"{GOOD}tags: {tags}\n", "good").tags == tags


def test_true_stands_for_one_standard_error_and_false_for_none() -> None:
    text = GOOD.replace("{trials: 3}", "{keep_default: true, accuracy_errors: false}")
    found = parse_sweep(text, "good").search
    assert (found.keep_default, found.accuracy_errors) == (1.0, 0.0)


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    text = GOOD.replace("trials: 3", "accuracy_tolerance: 1, keep_default: 0, trials: 1")
    spec = parse_sweep(
        f"{text}seeds: [0, {2**31 - 1}]\n"
        "resources: {train: {gpu: 1}, checkpoint_seconds: 0, max_failures: 0, concurrent: 1}\n",
        "good",
    )
    assert (spec.seeds[1], spec.search.accuracy_tolerance, spec.search.trials) == (2**31 - 1, 1, 1)
    own = spec.resources
    assert (own.train.gpu, own.checkpoint_seconds, own.max_failures) == (1.0, 0, 0)


def test_a_search_that_nobody_rules() -> None:
    text = GOOD.replace("search: {trials: 3}\n", "")
    assert parse_sweep(text, "good").search.model_dump() == {
        "trials": 20,
        "sampler": "tpe",
        "scheduler": "none",
        "objective": "nll",
        "pareto": (),
        "seed": None,
        "accuracy_tolerance": 0.01,
        "accuracy_errors": 0.0,
        "keep_default": 2.0,
        "parallel_trials": 4,
        "spaces": {},
        "fixed": {},
        "tune": None,
        "budget": "equal",
    }


def test_resources_that_nobody_names() -> None:
    usual = {"cpu": 1, "gpu": 0.0}
    assert parse_sweep(GOOD, "good").resources.model_dump() == {
        "train": {**usual, "processes": 1},
        **dict.fromkeys(("refine", "calibrate"), usual),
        "concurrent": None,
        "checkpoint_seconds": 20.0,
        "max_failures": 3,
        "deterministic": False,
        "graph": False,
    }


def test_given_logits_are_read_with_what_a_calibration_takes() -> None:
    spec = parse_sweep(f"{GOOD}resources: {{calibrate: {{cpu: 2}}}}\n", "good")
    assert spec.resources.given == spec.resources.calibrate == StageResources(cpu=2)


def test_a_split_that_nobody_names_is_that_of_protocol_and_data() -> None:
    assert parse_sweep(GOOD, "good").tasks[0].split_spec == SplitSpec(validation=0.5, test=0.25)


def test_runs_are_tracked_in_the_storage_unless_an_address_is_given(tmp_path: Path) -> None:
    spec = parse_sweep(f"{GOOD}storage: {tmp_path}\n", "good")
    assert spec.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    other = parse_sweep(f"{GOOD}tracking: {{uri: 'http://there:5000'}}\n", "good")
    assert other.tracking_uri == "http://there:5000"


def test_what_nobody_names_beside_tasks_and_recipes() -> None:
    spec = parse_sweep(GOOD, "good")
    rest = spec.model_dump(exclude={"name", "tasks", "recipes", "search", "resources"})
    assert rest == {
        "plugins": (),
        "variants": {},
        "seeds": (0,),
        "executor": "ray",
        "tags": {},
        "tracking": {"uri": None},
        "storage": "calsweep-storage",
        "data_root": "data",
        "keep": "all",
    }
    assert spec.tasks[0].model_dump() == {
        "dataset": "digits",
        "model": "convnet",
        "protocol": "digits",
        "name": "",
        "split": {
            "validation": None,
            "test": 0.25,
            "train_limit": None,
            "test_limit": None,
            "seed": 0,
            "vary": False,
        },
        "inputs": {},
        "suites": (),
    }


def test_a_login_of_the_tracking_server_is_used_but_neither_shown_nor_stored() -> None:
    uri = "http://me:secret@there:5000"
    spec = parse_sweep(f"{GOOD}tracking: {{uri: '{uri}'}}\n", "good")
    assert spec.tracking_uri == uri
    assert spec.model_dump()["tracking"] == {"uri": "http://there:5000"}
    assert "secret" not in repr(spec)


def test_views_are_not_judged_where_the_kind_of_data_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Images, "views", ())
    changed = {"base": "digits", "augmentation": "scale-crop-flip"}
    text = GOOD.replace("protocol: digits", f"protocol: {changed}")
    (task,) = parse_sweep(text, "good").tasks
    assert task.resolved_protocol.augmentation == "scale-crop-flip"
