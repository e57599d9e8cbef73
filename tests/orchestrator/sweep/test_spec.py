import re
from itertools import product
from typing import Any

import pytest
import yaml

from orchestrator.sweep.names import is_sweep_name
from orchestrator.sweep.plan import searched_parameters, starting_values
from orchestrator.sweep.spec import SplitModel, StageResources, TaskSpec, load_sweep, parse_sweep
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


def test_defaults_are_filled_in():
    spec = parse_sweep(GOOD, "good.yaml")
    assert spec.search.trials == 3
    assert spec.search.objective == "nll"
    assert spec.seeds == (0,)
    assert spec.tasks[0].id == "digits/convnet/digits"
    assert [recipe.name for recipe in spec.expanded] == ["ce", "mbls", "ce+ts", "mbls+ts"]
    assert spec.tracking_uri.startswith("sqlite:///")


BAD = {
    "unknown recipe": GOOD.replace("mbls", "mbsl"),
    "misplaced refinement": GOOD.replace("mbls", "macal+mbls"),
    "two losses": GOOD.replace("mbls", "mbls+fl"),
    "recipe twice": GOOD.replace("mbls", "ce"),
    "wildcard without methods": GOOD.replace('[ce, mbls, "*+ts"]', '["*+ts"]'),
    "unknown dataset": GOOD.replace("digits,", "digist,", 1),
    "unknown model": GOOD.replace("convnet", "convent"),
    "a refinement with masks": GOOD.replace(
        "digits, model: convnet", '"voc:streets", model: deeplabv3-small'
    ).replace("mbls", "mbls+macal"),
    "an augmentation of whole images with masks": GOOD.replace(
        "digits, model: convnet", '"voc:streets", model: deeplabv3-small'
    ).replace("mbls", "cutmix"),
    "a temperature of training rows with masks": GOOD.replace(
        "digits, model: convnet", '"voc:streets", model: deeplabv3-small'
    ).replace("trials: 3", "trials: 3, fixed: {ts: {selection: training_ece}}"),
    "boxes of images on texts": GOOD.replace(
        "digits, model: convnet, protocol: digits", TEXTS
    ).replace("[ce, mbls", "[ce, cutmix"),
    "a network of texts on images": GOOD.replace("convnet", "gpool-cnn"),
    "a network of masks on images": GOOD.replace("convnet", "deeplabv3-small"),
    "a network of images on texts": GOOD.replace(
        "digits, model: convnet, protocol: digits", TEXTS
    ).replace("gpool-cnn", "'timm:resnet18'"),
    "a network of images on masks": GOOD.replace("dataset: digits", 'dataset: "voc:streets"'),
    "views of images on texts": GOOD.replace(
        "digits, model: convnet, protocol: digits", TEXTS
    ).replace("mbls2022-text", "{base: mbls2022-text, augmentation: crop-flip}"),
    "views of masks on images": GOOD.replace("protocol: digits", "protocol: chen2017-voc"),
    "unknown protocol": GOOD.replace("protocol: digits", "protocol: diggits"),
    "unknown key": GOOD + "serch: {}\n",
    "unknown search key": GOOD.replace("trials", "trails"),
    "unknown task key": GOOD.replace("model:", "modle:"),
    "unknown parameter": GOOD.replace("{trials: 3}", "{trials: 3, fixed: {mbls: {margn: 6}}}"),
    "parameter of an absent part": GOOD.replace("{trials: 3}", "{fixed: {fl: {gamma: 2}}}"),
    "tuning what is fixed": GOOD.replace(
        "{trials: 3}", "{fixed: {mbls: {margin: 6.0}}, tune: {mbls: [margin]}}"
    ),
    "tuning an unknown parameter": GOOD.replace("{trials: 3}", "{tune: {mbls: [margn]}}"),
    "tuning besides the papers": GOOD.replace(
        "{trials: 3}", "{budget: paper, tune: {mbls: [weight]}}"
    ),
    "an unknown budget": GOOD.replace("{trials: 3}", "{budget: papers}"),
    "a grid with the budget of papers": GOOD.replace(
        "{trials: 3}", "{sampler: grid, budget: paper}"
    ),
    "tuning on a grid": GOOD.replace("{trials: 3}", "{sampler: grid, tune: {mbls: [margin]}}"),
    "tuning what a variant fixes": GOOD.replace("{trials: 3}", "{tune: {wide: [margin]}}").replace(
        "mbls", "wide"
    )
    + "variants: {wide: {of: mbls, fixed: {margin: 9.0}}}\n",
    "a range on a grid": GOOD.replace(
        "{trials: 3}", "{sampler: grid, spaces: {mbls: {margin: {low: 1.0}}}}"
    ),
    "a choice that the part refuses": GOOD.replace(
        "{trials: 3}", "{spaces: {mbls: {weight: {choices: [0.1, -1.0]}}}}"
    ),
    "a range that begins below what the part takes": GOOD.replace(
        "{trials: 3}", "{spaces: {mbls: {margin: {low: -3}}}}"
    ),
    "a range that ends above what the part takes": GOOD.replace(
        "{trials: 3}", "{spaces: {ls: {smoothing: {high: 2}}}}"
    ).replace("mbls", "ls"),
    "another value of what a variant fixes": GOOD.replace(
        "{trials: 3}", "{fixed: {wide: {margin: 8.0}}}"
    ).replace("mbls", "wide")
    + "variants: {wide: {of: mbls, fixed: {margin: 9.0}}}\n",
    "a variant under the name of a part": GOOD + "variants: {ets: {of: ts}}\n",
    "a variant under the name of no training": GOOD + "variants: {given: {of: ts}}\n",
    "a variant of nothing": GOOD + "variants: {wide: {of: mbsl}}\n",
    "a variant in capitals": GOOD + "variants: {W: {of: ts}}\n",
    "a variant's value": GOOD + "variants: {wide: {of: mbls, fixed: {weight: -1.0}}}\n",
    "a tag of ours": GOOD + "tags: {calsweep.kind: a}\n",
    "a tag of the store's": GOOD + "tags: {mlflow: a}\n",
    "parameter out of range": GOOD.replace("{trials: 3}", "{fixed: {mbls: {weight: -1.0}}}"),
    "range upside down": GOOD.replace(
        "{trials: 3}", "{spaces: {mbls: {margin: {low: 9.0, high: 3.0}}}}"
    ),
    "range without end": GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: -.inf}}}}"),
    "negative trials": GOOD.replace("3}", "-3}"),
    "more trials than are counted": GOOD.replace("trials: 3", f"trials: {2**31}"),
    "more restarts than are counted": GOOD + f"resources: {{max_failures: {2**31}}}\n",
    "a limit that ends sound workers": GOOD + "resources: {hang_seconds: 9.5}\n",
    "less than no restart": GOOD + "resources: {max_failures: -1}\n",
    "no whole number of trials": GOOD.replace("3}", "2.5}"),
    "duplicate task": GOOD.replace(
        "recipes:", "  - {dataset: digits, model: convnet, protocol: digits}\nrecipes:"
    ),
    "no tasks": GOOD.replace("  - {dataset: digits, model: convnet, protocol: digits}\n", ""),
    "tab": GOOD.replace("  - {dataset", "\t- {dataset"),
    "empty": "",
    "only a comment": "# nothing\n",
    "a list": "- ce\n",
    "key twice": GOOD + "name: other\n",
    "half a character": GOOD + 'tags: {a: "\\ud800"}\n',
    "a python object": GOOD + "storage: !!python/object/apply:os.getcwd []\n",
    "bad objective": GOOD.replace("{trials: 3}", "{objective: acc}"),
    "objective twice": GOOD.replace("trials: 3", "pareto: [acc, nll]"),
    "another metric twice": GOOD.replace("trials: 3", "pareto: [acc, acc]"),
    "a metric that validation does not report": GOOD.replace("trials: 3", "pareto: [auroc]"),
    "a stop without the model": GOOD.replace("trials: 3", "stop: auto"),
    "a stop with several metrics": GOOD.replace(
        "trials: 3", "stop: auto, sampler: prior, pareto: [acc, ece]"
    ),
    "a stop with a scheduler": GOOD.replace(
        "trials: 3", "stop: auto, sampler: prior, scheduler: asha"
    ),
    "several metrics stopped by one": GOOD.replace("trials: 3", "pareto: [acc], scheduler: asha"),
    "asha where one trial runs at a time": GOOD.replace("trials: 3", "scheduler: asha")
    + "executor: local\n",
    "several trials at once of several GPUs each": GOOD
    + "executor: local\nresources: {concurrent: 2, train: {gpu: 4}}\n",
    "seed twice": GOOD + "seeds: [1, 1]\n",
    "negative seed": GOOD + "seeds: [-1]\n",
    "bare tracking path": GOOD + "tracking: {uri: ./mlruns}\n",
    "a login where no address stands": GOOD + "tracking: 'http://me:secret@there'\n",
    "a URL as the storage": GOOD + "storage: https://bucket\n",
    "logits alone in a bucket": GOOD + "storage: s3://bucket/x\nkeep: logits\n",
    "a mirror": GOOD + "mirror: s3://me:secret@bucket/x\n",
    "a URL as the place of data": GOOD + "data_root: s3://bucket\n",
    "an unknown key of a variant": GOOD + "variants: {wide: {of: mbls, fixd: {}}}\n",
    "bad name": GOOD.replace("small", "../up"),
    "task name that leaves the folder": GOOD.replace("{dataset:", "{name: a/../b, dataset:"),
    "task name with the study's sign": GOOD.replace("{dataset:", '{name: "a|b", dataset:'),
    "two GPUs for a refinement": GOOD + "resources: {refine: {gpu: 2}}\n",
    "processes beside GPUs": GOOD + "resources: {train: {gpu: 1, processes: 2}}\n",
    "a GPU and a half for a trial": GOOD + "resources: {train: {gpu: 1.5}}\n",
    "not finite": GOOD.replace("3}", "3, accuracy_tolerance: .nan}"),
    "a tolerance above all": GOOD.replace("trials: 3", "accuracy_tolerance: 1.5"),
    "a tolerance below none": GOOD.replace("trials: 3", "accuracy_tolerance: -0.1"),
    "errors without end": GOOD.replace("trials: 3", "keep_default: .inf"),
    "errors below none": GOOD.replace("trials: 3", "accuracy_errors: -1"),
    "no choices": GOOD.replace("trials: 3", "spaces: {mbls: {margin: {choices: []}}}"),
    "another scale on a grid": GOOD.replace(
        "trials: 3", "sampler: grid, spaces: {mbls: {margin: {scale: linear}}}"
    ),
    "a range of a second part": GOOD.replace("[ce", "[ce, fl").replace(
        "trials: 3", "spaces: {fl: {gamma: {low: 1.0}}, mbls: {margin: {low: -3}}}"
    ),
    "a range from nothing": GOOD.replace("mbls", "aurc").replace(
        "trials: 3", "spaces: {aurc: {score: {low: 0}}}"
    ),
    "less than no GPU": GOOD + "resources: {train: {gpu: -1}}\n",
    "an unknown executor": GOOD + "executor: slurm\n",
    "no seeds": GOOD + "seeds: []\n",
    "a seed of 32 bits": GOOD + f"seeds: [0, {2**31}]\n",
    "a tag of two words": GOOD + "tags: {a b: c}\n",
    "an unknown field of a protocol": GOOD.replace(
        "protocol: digits", "protocol: {base: digits, epochz: 1}"
    ),
    "a split of no rows": GOOD.replace(
        "protocol: digits", "protocol: digits, split: {validation: 0}"
    ),
    "a setting that the data have not": GOOD.replace(
        "protocol: digits", "protocol: digits, inputs: {length: 4}"
    ),
    "a network of texts on images in a second task": GOOD.replace(
        "recipes:", "  - {name: b, dataset: digits, model: gpool-cnn, protocol: digits}\nrecipes:"
    ),
    "a part that a second task has no use for": GOOD.replace(
        "recipes:", f"  - {{name: b, dataset: {TEXTS}}}\nrecipes:"
    ).replace("[ce, mbls", "[ce, wide")
    + "variants: {wide: {of: cutmix}}\n",
    "an unknown parameter of a variant": GOOD + "variants: {wide: {of: mbls, fixed: {margn: 1}}}\n",
    "a variant with a space": GOOD + "variants: {'wide ': {of: mbls}}\n",
    "a range of a variant": GOOD.replace("mbls", "wide").replace(
        "trials: 3", "spaces: {wide: {margin: {low: -3}}}"
    )
    + "variants: {wide: {of: mbls}}\n",
    "a parameter of what has none": GOOD.replace("{trials: 3}", "{fixed: {ce: {margin: 6.0}}}"),
    "tuning much that is fixed": GOOD.replace("mbls", "acls").replace(
        "{trials: 3}",
        "{fixed: {acls: {weight_neg: 0.01, weight_pos: 0.1, variant: paper, margin: 6.0}}, "
        "tune: {acls: [weight_pos, weight_neg, variant, margin]}}",
    ),
    "a fixed value of a variant": GOOD.replace("mbls", "wide").replace(
        "trials: 3", "fixed: {wide: {margin: -3}}"
    )
    + "variants: {wide: {of: mbls}}\n",
    "no name": GOOD.replace("name: small\n", ""),
    "nothing but braces": "{}",
    "a number as a protocol": GOOD.replace("protocol: digits", "protocol: 3"),
    "a text as a number of rows": GOOD.replace(
        "protocol: digits", "protocol: digits, split: {validation: x}"
    ),
    "a text as seeds": f"{GOOD}seeds: {'x' * 78}\n",
    "a longer text as seeds": f"{GOOD}seeds: {'x' * 79}\n",
    "a list as a fixed value": GOOD + "variants: {wide: {of: mbls, fixed: {margin: [1]}}}\n",
    "a text as a fixed value": GOOD.replace("trials: 3", "fixed: {mbls: {margin: x}}"),
    "three mistakes": GOOD.replace("trials: 3", "trials: -3, parallel_trials: 0") + "seeds: [-1]\n",
    "more mistakes than are listed": f"seedz: 1\n{GOOD}seeds: [{'-1, ' * 99}]\n",
    "a misspelled key and another mistake": GOOD.replace("model", "modle") + "seeds: [-1]\n",
    "a number of base 60": GOOD.replace("trials: 3", "trials: 1:30"),
    "an octal number": GOOD.replace("trials: 3", "trials: 010"),
    "a key of a mapping twice": GOOD.replace(
        "trials: 3", "trials: 3,\n  sampler: tpe,\n  trials: 4"
    ),
    "an unknown key of resources": GOOD + "resources: {train: {gpus: 1}}\n",
    "an unknown key of a split": GOOD.replace(
        "protocol: digits", "protocol: digits, split: {sede: 1}"
    ),
    "a range of what is fixed": GOOD.replace(
        "trials: 3", "fixed: {mbls: {margin: 6.0}}, spaces: {mbls: {margin: {low: 1.0}}}"
    ),
    "a range of what a variant fixes": GOOD.replace("mbls", "wide").replace(
        "trials: 3", "spaces: {wide: {margin: {low: 1.0}}}"
    )
    + "variants: {wide: {of: mbls, fixed: {margin: 6.0}}}\n",
    "an unknown key of a range": GOOD.replace("trials: 3", "spaces: {mbls: {margin: {lo: 1}}}"),
}


def told_of(text: str) -> str:
    """Return what is said of a sweep file, one line that names it."""
    with pytest.raises(InputError) as caught:
        parse_sweep(text, "bad.yaml")
    assert str(caught.value).startswith("bad.yaml: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_mistake_is_told_in_the_same_words(file_regression):
    """After a change that is meant, run this file with ``--force-regen`` and read what differs."""
    told = []
    for mistake, text in BAD.items():
        # Without lists of all that is registered, which a new method or model makes longer.
        line = re.sub(r"; models for .*| \(methods: .*", " ...", told_of(text))
        told.append(f"{mistake}\n  {line}\n")
    file_regression.check("".join(told), encoding="utf-8")


def test_an_unknown_recipe_or_network_is_refused_with_all_known_names():
    assert "(methods: acls, au, " in told_of(BAD["unknown recipe"])
    assert told_of(BAD["a network of images on texts"]).endswith("; models for texts: gpool-cnn")


def test_a_file_that_says_something_wrong_is_named_with_its_folder(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD + "serch: {}\n")
    with pytest.raises(InputError, match=rf"^{path}: serch: unknown key"):
        load_sweep(path)


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "absent.yaml"
    with pytest.raises(InputError, match=f"^{path}: cannot be read"):
        load_sweep(path)


@pytest.mark.parametrize(
    ("encoding", "byte"), [("utf-16", "0xff in line 1"), ("latin-1", "0xfc in line 2")]
)
def test_a_file_in_another_encoding_is_to_be_saved_as_utf_8(encoding, byte, tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes("name: a\n# für alle\n".encode(encoding))
    with pytest.raises(InputError) as caught:
        load_sweep(path)
    assert str(caught.value) == f"{path}: is not UTF-8 (byte {byte}); save it as UTF-8"


def test_a_file_is_as_large_as_its_bytes(tmp_path):
    path = tmp_path / "large.yaml"
    for sign in "ü€":  # One byte more than 128 KiB, then more, which end within a character.
        path.write_text("#" + sign * 2**16, encoding="utf-8")
        with pytest.raises(InputError, match=r"large\.yaml: expected at most 128 KiB, got more$"):
            load_sweep(path)


def test_a_narrower_range_replaces_the_published_one():
    spec = parse_sweep(
        GOOD.replace("{trials: 3}", "{spaces: {mbls: {margin: {low: 8.0, high: 12.0}}}}"), "good"
    )
    margin = searched_parameters(spec, "mbls", spec.tasks[0])["margin"]
    assert (margin.low, margin.high) == (8.0, 12.0)
    assert margin.default == 8.0


def test_a_fixed_parameter_is_not_searched():
    spec = parse_sweep(GOOD.replace("{trials: 3}", "{fixed: {mbls: {margin: 25.0}}}"), "good")
    assert "margin" not in searched_parameters(spec, "mbls", spec.tasks[0])
    assert starting_values(spec, "mbls", spec.tasks[0])["margin"] == 25.0


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
def test_a_task_is_called_by_its_data_network_and_protocol(dataset, name):
    given = dataset.startswith("logits:")
    model, protocol = ("given", "given") if given else ("m", "p")
    task = TaskSpec(dataset=dataset, model=model, protocol=protocol)
    assert (task.given, task.dataset_name) == (given, name)
    assert task.id == (name if given else f"{name}/m/p")
    assert task.model_copy(update={"name": "own"}).id == "own"


def test_a_protocol_with_other_fields_keeps_a_name_of_its_own():
    changed = {"base": "digits", "epochs": 2}
    task = TaskSpec(dataset="digits", model="convnet", protocol=changed)
    assert (task.protocol_name, task.resolved_protocol.epochs) == ("digits-custom", 2)


def test_a_protocol_is_computed_once_for_a_task_and_again_for_a_changed_copy():
    task = TaskSpec(dataset="digits", model="convnet", protocol={"base": "digits", "epochs": 2})
    assert task.resolved_protocol is task.resolved_protocol
    other = task.model_copy(update={"protocol": {"base": "digits", "epochs": 3}})
    assert (task.resolved_protocol.epochs, other.resolved_protocol.epochs) == (2, 3)


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
    dataset, protocol, split, validation
):
    rest: dict[str, Any] = {"test": 0.5, "train_limit": 9, "test_limit": 8, "seed": 4}
    task = TaskSpec(
        dataset=dataset, model="given", protocol=protocol, split=SplitModel(**split, **rest)
    )
    assert task.split_spec.to_dict() == {"validation": validation, **rest}


def test_seeds_choose_rows_where_they_are_to_and_no_two_the_same():
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
    [([3, 1], "null", (3, 1)), ([3, 1], "1", (1, 3)), ([3, 1], "0", (0, 3, 1)), ([0], "0", (0,))],
)
def test_the_searchs_own_seed_comes_first(seeds, search, expected):
    text = GOOD.replace("{trials: 3}", f"{{seed: {search}}}")
    assert parse_sweep(f"{text}seeds: {seeds}\n", "good").all_seeds == expected


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("a", True),
        ("A.b_c-9", True),
        ("x" * 100, True),
        ("x" * 101, False),
        ("-a", False),
        ("", False),
        ("a/b", False),
        ("a ", False),
    ],
)
def test_a_sweeps_name_names_a_folder(name, allowed):
    assert is_sweep_name(name) == allowed


def test_a_tasks_name_may_hold_signs_in_parts_between_slashes():
    name = "vit_b.16:swa/lr@0.1+aug/x-1/größer"
    (task,) = parse_sweep(GOOD.replace("{dataset", f"{{name: '{name}', dataset"), "good").tasks
    assert task.id == name


def test_tags_of_users_may_contain_reserved_words_after_the_beginning():
    tags = {"team.calsweep": "red", "calsweeps": "1", "mlflow_run": "x"}
    assert parse_sweep(f"{GOOD}tags: {tags}\n", "good").tags == tags


def test_true_means_one_standard_error_and_false_means_none():
    text = GOOD.replace("{trials: 3}", "{keep_default: true, accuracy_errors: false}")
    found = parse_sweep(text, "good").search
    assert (found.keep_default, found.accuracy_errors) == (1.0, 0.0)


def test_the_ends_of_allowed_ranges_are_allowed():
    text = GOOD.replace("trials: 3", "accuracy_tolerance: 1, keep_default: 0, trials: 1")
    spec = parse_sweep(
        f"{text}seeds: [0, {2**31 - 1}]\n"
        "resources: {train: {gpu: 1}, checkpoint_seconds: 0, max_failures: 0, concurrent: 1,\n"
        "  hang_seconds: 10}\n",
        "good",
    )
    assert (spec.seeds[1], spec.search.accuracy_tolerance, spec.search.trials) == (2**31 - 1, 1, 1)
    own = spec.resources
    assert (own.train.gpu, own.checkpoint_seconds, own.max_failures) == (1.0, 0, 0)
    assert own.hang_seconds == 10


def test_given_logits_are_read_with_the_resources_of_a_calibration():
    spec = parse_sweep(f"{GOOD}resources: {{calibrate: {{cpu: 2}}}}\n", "good")
    assert spec.resources.given == spec.resources.calibrate == StageResources(cpu=2)


def test_a_missing_split_is_that_of_the_protocol_and_the_data():
    assert parse_sweep(GOOD, "good").tasks[0].split_spec == SplitSpec(validation=0.5, test=0.25)


def test_runs_are_tracked_in_the_storage_unless_an_address_is_given(tmp_path):
    spec = parse_sweep(f"{GOOD}storage: {tmp_path}\n", "good")
    assert spec.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    other = parse_sweep(f"{GOOD}tracking: {{uri: 'http://there:5000'}}\n", "good")
    assert other.tracking_uri == "http://there:5000"


def test_what_nobody_names(file_regression):
    text = GOOD.replace("search: {trials: 3}\n", "")
    plain = parse_sweep(text, "good").model_dump(mode="json")
    file_regression.check(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")


def test_views_are_not_judged_where_the_kind_of_data_names_none(monkeypatch):
    monkeypatch.setattr(Images, "views", ())
    changed = {"base": "digits", "augmentation": "scale-crop-flip"}
    text = GOOD.replace("protocol: digits", f"protocol: {changed}")
    (task,) = parse_sweep(text, "good").tasks
    assert task.resolved_protocol.augmentation == "scale-crop-flip"


HEAD = GOOD.replace("protocol: digits", "protocol: {base: digits, learns: head}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            HEAD,
            "tasks[0].protocol: `learns: head` needs a pretrained network, got "
            "'convnet'; use timm:NAME@pretrained",
        ),
        (
            HEAD.replace("convnet", "timm:resnet10t@pretrained").replace("mbls", "plp"),
            "'plp' freezes weights itself; delete `learns: head`",
        ),
    ],
)
def test_learns_head_needs_a_pretrained_network_and_no_other_freezing(text, told):
    with pytest.raises(InputError, match=rf"{re.escape(told)}$"):
        parse_sweep(text, "good")


def with_task(task: str) -> str:
    return GOOD.replace(GOOD[GOOD.index("tasks:") : GOOD.index("recipes:")], f"tasks: [{task}]\n")


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("features: a/f.npz", ("f/linear/features", "linear", "features")),
        ("features: a/f.npz, model: mlp", ("f/mlp/features", "mlp", "features")),
        (
            "features: a/f.npz, model: mlp, protocol: {base: features, epochs: 3}, name: f",
            ("f", "mlp", "features-custom"),
        ),
    ],
)
def test_features_take_a_linear_head_unless_another_is_named(task, expected):
    (found,) = parse_sweep(with_task(f"{{{task}}}"), "good").tasks
    assert (found.id, found.model, found.protocol_name) == expected
    assert found.dataset == "features:a/f.npz"
    assert not found.given


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("features: f.npz, dataset: digits", "give either features or dataset, not both"),
        ("features: f.npz, logits: l.npz", "give either logits or features, not both"),
        ("features: 3", "features=3 is not a path"),
        (
            "features: f.npz, model: convnet",
            "model 'convnet' takes images, got features; models for features: ",
        ),
    ],
)
def test_features_that_contradict_the_rest_of_a_task_are_refused(task, told):
    with pytest.raises(InputError, match=told):
        parse_sweep(with_task(f"{{{task}}}"), "good")


@pytest.mark.parametrize("model", ["convnet", "gpool-cnn", f"hf:ada/net@{'a' * 40}"])
def test_a_data_set_of_the_hub_is_accepted_before_its_kind_is_known(model, tmp_path):
    task = f"{{dataset: 'hf:ada/pets', model: '{model}', protocol: digits}}"
    text = f"name: pets\ntasks: [{task}]\nrecipes: [ce, ce+ts, cutmix]\ndata_root: {tmp_path}\n"
    assert parse_sweep(text, "pets.yaml").tasks[0].dataset == "hf:ada/pets"
