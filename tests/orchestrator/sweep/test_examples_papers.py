import csv
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from orchestrator.storage.results import StudyResult
from orchestrator.sweep.plan import Plan, StudyPlan, make_plan
from orchestrator.sweep.spec import parse_sweep
from orchestrator.tables.layouts import layout_names, load_layout, published_key
from orchestrator.tables.make import TableOptions, make_table
from orchestrator.tables.published import load_published
from orchestrator.tables.table import Notice
from search_spaces import KINDS, Parameter, load_space, space_names
from trainables.data import SOURCES
from trainables.models import model_names

FOLDER = files("orchestrator") / "examples" / "papers"
REFERENCE = Path(__file__).parents[2] / "reference"
OF_MACAL = ("wrn-26-10", "densenet121")
# On the paper's own logits, by an example of its own: there is nothing to train.
PUBLIC = "cls/logits"
LAYOUTS = {name.replace("/", "-"): name for name in layout_names() if name != PUBLIC}
# What a finished study has at least; suites come on top.
FIGURES = dict.fromkeys(("acc", "ece", "aece", "cwece", "mce", "miou"), 0.1)
# What the papers' figures were computed with, where it is not the default: (paper, part as
# published) to parameters and values.
AS_PUBLISHED = {
    ("aurc", "kde-xe"): {"variant": "released"},
    ("aurc", "aurc"): {"variant": "released"},
    ("aurc", "au"): {"variant": "released"},
    ("aurc", "ts"): {"selection": "training_ece"},
    ("mbls", "ts"): {"selection": "ece"},
    ("acls", "ts"): {"selection": "ece"},
    ("cls", "ts"): {"variant": "released"},
    ("cls", "ets"): {"variant": "released", "mixture": "logits"},
    ("cls", "cts"): {"variant": "released", "assignment": "logit"},
    ("cls", "pts"): {"variant": "released", "weight_decay": 0.002},
}
# The published parameters of a method, by the names that they have here.
PARAMETERS = {
    ("acls", "margin"): "margin",
    ("acls", "weight of the predicted-class term"): "weight_pos",
    ("acls", "weight of the other-class terms"): "weight_neg",
    ("mbls", "margin"): "margin",
    ("mbls", "penalty weight"): "weight",
    ("ls", "smoothing"): "smoothing",
    ("fl", "focusing parameter"): "gamma",
    ("dfl", "focusing parameter"): "gamma",
    ("ifl", "focusing parameter"): "gamma",
    ("ecp", "balancing weight"): "weight",
    ("kde-xe", "regularisation weight"): "weight",
    ("au", "CDF smoothing"): "smoothness",
    ("au", "low-confidence coverage"): "coverage",
    ("au", "confidence score function"): "score",
    ("pts", "weight decay"): "weight_decay",
    ("cls", "class-loss normalisation"): "normalization",
    ("macal", "stage-2 epochs"): "epochs",
    ("macal", "stage-2 learning rate"): "lr",
    ("macal", "initial retention probability"): "q0",
    ("macal", "initial clip bound"): "eta_init",
    ("macal", "final clip bound"): "eta_final",
    ("tst", "stage-2 epochs"): "epochs",
    ("vtst", "stage-2 epochs"): "epochs",
}
# What each paper chose on validation data, and on which data sets and networks (as published).
TUNED = list(csv.DictReader((REFERENCE / "tuned_on.csv").open(encoding="utf-8")))
# Networks of MaC-Cal's tables for which no source has the gamma of DFL.
OPEN = {
    *(f"{dataset}/{model}" for dataset in ("cifar10", "cifar100") for model in OF_MACAL),
    "tiny-imagenet/resnet50",
}
# What sweeps of figures search.
OF_FIGURES = {
    **{"acls-margin": {"acls.margin"}, "acls-penalty": set(), "aurc-scores": set()},
    **{"aurc-au": {"au.coverage", "au.smoothness"}, "mbls-margin": set()},
    **{f"macal-{name}": {"macal.gamma"} for name in ("corruptions", "mixup", "gamma-cifar100")},
}
TRANSFORMERS = {
    "timm:vit_small_patch16_224@pretrained": "vit-small",
    "timm:swin_tiny_patch4_window7_224@pretrained": "swin-tiny",
}
WORDS = {"softmax margin": "margin", "negative entropy": "neg_entropy"}
# What the full sweeps' data sets are at a size for one CPU.
SMALL = {"20newsgroups": "20newsgroups", "voc2012": "voc:data/camvid"}


VECTORS = "glove.6B.100d.txt"


@cache
def made_vectors() -> str:
    path = Path(tempfile.mkdtemp()) / VECTORS
    path.write_text("".join(f"{word} {' '.join(['0.5'] * 100)}\n" for word in ("a", "b")))
    return str(path)


@cache
def plan(name: str) -> Plan:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").replace(VECTORS, made_vectors())
    spec = parse_sweep(text, f"{name}.yaml", Path(str(FOLDER)))
    assert spec.name == name
    return make_plan(spec)


def outcomes(planned: Plan) -> list[StudyResult]:
    """Return what the sweep's rows would come to."""
    return [
        StudyResult(
            sweep=planned.spec.name,
            task=study.task.id,
            recipe=study.recipe.name,
            status="finished",
            test=(FIGURES | dict.fromkeys(_suite_metrics(study.task.suites), 0.5),),
            dataset=study.task.dataset_name,
            model=study.task.model,
            protocol=study.task.protocol_name,
            seconds=(1.0,),
        )
        for study in planned
        if study.row
    ]


def _suite_metrics(suites: tuple[str, ...]) -> list[str]:
    metrics = ("auroc", "fpr95", "ece", "aece")
    return [f"{suite}/{metric}" for suite in suites for metric in metrics]


def test_every_layout_has_a_sweep_of_either_size_and_there_are_no_others():
    found = sorted(entry.name.removesuffix(".yaml") for entry in FOLDER.iterdir())
    assert found == sorted([*LAYOUTS, *(f"{name}-cpu" for name in LAYOUTS)])


@pytest.mark.full
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_full_sweep_fills_every_cell_of_the_published_table(name):
    published = bool(load_layout(LAYOUTS[name]).paper)  # The values of MbLS's Table 4 are lost.
    table = make_table(
        outcomes(plan(name)),
        TableOptions(layout=LAYOUTS[name], columns="paper", published=published),
    )
    for row in table.rows:
        for cell in table.line(row):
            assert not isinstance(cell, Notice), f"{row.label}: {cell.text}"
            assert cell.text != "–"
    left_out = [note for note in table.notes() if "not in this layout" in note]
    assert not left_out
    assert bool(table.published) == ("all" not in load_layout(LAYOUTS[name]).incomparable)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cpu_sweep_fills_every_row_and_is_small(name):
    planned = plan(f"{name}-cpu")
    table = make_table(outcomes(planned), TableOptions(layout=LAYOUTS[name]))
    for row in table.rows:
        assert all(cell.text[0].isdigit() for cell in table.line(row))
    assert not [note for note in table.notes() if "not in this layout" in note]
    dataset = " ".join(load_layout(LAYOUTS[name]).columns)
    assert {study.task.dataset for study in planned} == {SMALL.get(dataset, "digits")}
    assert planned.trials <= 90


@pytest.mark.parametrize("size", ["", "-cpu"])
@pytest.mark.parametrize(
    "name", [n for n in LAYOUTS if n.startswith(("acls", "aurc", "cls", "mbls-table7"))]
)
def test_rows_of_a_layout_are_computed_like_the_published_figures(name, size):
    studies = {study.recipe.name: study for study in plan(name + size)}
    layout = load_layout(LAYOUTS[name])
    met, stated = set(), set()
    for row in layout.rows:
        key = published_key(row)
        stated |= {key.method, key.posthoc.partition("+")[0]}
        for recipe in row.recipes if len(row.recipes) == 1 else ():
            parts = zip(
                recipe.split("+"), (key.method, key.posthoc.partition("+")[0]), strict=False
            )
            for index, (part, published) in enumerate(parts):
                if (layout.paper, published) in AS_PUBLISHED:
                    study = studies["+".join(recipe.split("+")[: index + 1])]
                    for parameter, value in AS_PUBLISHED[layout.paper, published].items():
                        assert study.defaults[part][parameter] == value
                        assert parameter not in study.searched[part]
                    met.add(published)
    assert met == stated & {part for paper, part in AS_PUBLISHED if paper == layout.paper}


@cache
def stated_rows(paper: str, method: str) -> list[Any]:
    table = load_published("hyperparameters")
    return list(table[(table["paper"] == paper) & (table["method"] == method)].itertuples())


def published_rows(paper: str, method: str, dataset: str, model: str) -> Iterator[tuple[str, Any]]:
    """Yield our parameter and the published row of each that a paper states for a task."""
    for row in stated_rows(paper, method):
        ours = PARAMETERS.get((method, row.parameter))
        if ours and row.dataset in ("all", dataset) and row.model in ("all", model):
            yield ours, row


def tuned_rows(method: str, variant: str, place: tuple[str, str]) -> dict[str, list[str]]:
    """Return each parameter that papers tuned on a data set and model, and the values if stated."""
    known = {"/".join(place), place[0]}
    rows = [r for r in TUNED if r["method"] == method and known & {*r["tuned_on"].split(";")}]
    ordered = sorted(rows, key=lambda row: row["variant"])
    return {
        row["parameter"]: row["values"].split(";") if row["values"] else []
        for row in ordered
        if row["variant"] in ("", variant)
    }


def values_of(parameter: Parameter) -> list[str]:
    return [f"{c:g}" if isinstance(c, float) else str(c) for c in parameter.choices]


def check_published(
    planned: Plan,
    study: StudyPlan,
    part: str,
    paper: str,
    place: tuple[str, str],
    but: tuple[str, ...] = (),
) -> None:
    """Compare a part's values with those that its paper states, but for fixed ones."""
    values, base = study.defaults[part], planned.spec.base(part)
    for method in base.split("-") if study.recipe.calibrator else [base]:
        for parameter, row in published_rows(paper, method, *place):
            stated = row.published_default
            free = parameter not in {*planned.spec.fixed(part), *but}
            if free and stated and " " not in stated:
                assert values[parameter] == type(values[parameter])(stated.lower())


@pytest.mark.parametrize("size", ["", "-cpu"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_sweep_of_a_paper_tunes_exactly_the_parameters_that_the_paper_tuned(name, size):
    planned, layout = plan(name + size), load_layout(LAYOUTS[name])
    assert planned.spec.search.budget == "paper"
    as_published = layout.paper == "macal"  # "original configurations" of other methods
    recipes = {recipe.name for recipe in planned.spec.expanded}
    takes_over = layout.paper == "acls" and "mbls" in recipes
    own = {"acls": ("weight_pos", "weight_neg")} if takes_over else None
    tune = planned.spec.search.tune
    assert tune == ({} if as_published else own)
    models = {
        str(ours): theirs for each in layout.columns.values() for theirs, ours in each.items()
    }
    for study in planned:
        place = (study.task.dataset, models.get(study.task.model, study.task.model))
        for part in study.recipe.own_parts:
            fixed, base = planned.spec.fixed(part), planned.spec.base(part)
            check_published(planned, study, part, layout.paper, place)
            tunes = tune is None or base in tune
            expected = tuned_rows(base, str(fixed.get("variant")), place) if tunes else {}
            expected = {key: grid for key, grid in expected.items() if key not in fixed}
            if base == "dfl" and "/".join(place) in OPEN:
                expected = {"gamma": []}
            searched = dict(study.searched[part])
            if base == "macal" and "gamma" in searched:  # Of which the paper says (0, 1).
                gamma = searched.pop("gamma")
                assert (gamma.low, gamma.high, searched) == (0.01, 0.999, {})
            elif searched:
                assert study.trials == study.points or study.trials <= planned.spec.search.trials
                grids = all(parameter.choices for parameter in searched.values())
                assert not grids or study.trials == study.points  # The whole grid.
            assert {key: values_of(parameter) for key, parameter in searched.items()} == expected


@pytest.mark.parametrize("name", OF_FIGURES)
def test_a_sweep_of_a_figure_varies_only_the_parameters_of_the_figure(name):
    path = Path(str(FOLDER)).parent / f"{name}.yaml"
    planned = make_plan(parse_sweep(path.read_text(encoding="utf-8"), name, path.parent))
    varied = set()
    for study in planned:
        place = (study.task.dataset, TRANSFORMERS.get(study.task.model, study.task.model))
        for part in study.recipe.own_parts:
            searched = tuple(study.searched[part]) if study.trials > 1 else ()
            varied |= {f"{planned.spec.base(part)}.{parameter}" for parameter in searched}
            check_published(planned, study, part, name.partition("-")[0], place, but=searched)
    assert varied == OF_FIGURES[name]


def test_the_variant_decides_which_scores_of_au_are_searched():
    for variant in ("released", "paper"):
        text = (FOLDER / "aurc-table1.yaml").read_text(encoding="utf-8")
        text = text.replace("search:\n", f"search:\n  fixed: {{au: {{variant: {variant}}}}}\n")
        (study,) = (
            study
            for study in make_plan(parse_sweep(text, "aurc", Path(str(FOLDER))))
            if (study.task.id, study.recipe.name) == ("cifar10/resnet50/xia2022", "au")
        )
        found = {key: values_of(parameter) for key, parameter in study.searched["au"].items()}
        assert found == tuned_rows("au", variant, ("cifar10", "resnet50"))


def test_acls_is_also_tuned_on_each_data_set_as_its_main_text_says():
    text = (FOLDER.parent / "acls-weights.yaml").read_text(encoding="utf-8")
    grids = tuned_rows("acls", "", ("tiny-imagenet", "resnet50"))
    studies = [s for s in make_plan(parse_sweep(text, "acls-weights")) if s.recipe.name == "acls"]
    assert {study.task.dataset for study in studies} == {"cifar10", "tiny-imagenet"}
    for study in studies:
        found = {key: values_of(parameter) for key, parameter in study.searched["acls"].items()}
        assert found == grids
        assert study.trials == study.points == 16


@pytest.mark.shared
def test_tuned_values_are_those_of_the_transcription(shared):
    """It lists grids as ``searched_values``, and perhaps the data in ``tuned_on``."""
    with (shared / "published" / "hyperparameters.csv").open(encoding="utf-8") as stream:
        stated = list(csv.DictReader(stream))
    for row in TUNED:
        found = [
            each
            for each in stated
            if (each["paper"], each["method"]) == (row["paper"], row["method"])
            and PARAMETERS.get((each["method"], each["parameter"])) == row["parameter"]
        ]
        assert found, row
        grids = {tuple(WORDS.get(v, v) for v in e["searched_values"].split(";")) for e in found}
        whole = row["method"] == "acls" or row["variant"] == "paper"
        if whole:  # As released, one score of AU is cross-entropy.
            assert tuple(row["values"].split(";")) in grids
        wanted = {own for own in (e.get("tuned_on", "") for e in found) if own}
        assert wanted <= {*row["tuned_on"].split(";")} | {row["tuned_on"]}


@pytest.mark.parametrize("name", [n for n in LAYOUTS if n.startswith("cls")])
def test_the_losses_of_cls_fit_at_their_published_values(name):
    """Searched, smoothing and gamma end near 0, where the loss is cross-entropy."""
    published = {"ls": ("smoothing", 0.05), "fl": ("gamma", 3.0)}
    for study in plan(name):
        objective = study.recipe.name.rpartition("-")[2]
        assert study.trials == 1
        if objective == "cls":
            (values,) = study.defaults.values()
            assert values["deviation"] == "population"  # Eq. 4.
        if objective in published:
            parameter, value = published[objective]
            (values,) = study.defaults.values()
            assert values[parameter] == value
            assert values.get("detach", True)  # The released gradient of the focal loss.
            (searched,) = study.searched.values()
            assert parameter not in searched


def test_networks_that_were_pretrained_in_a_paper_are_here():
    protocols = load_published("protocols")
    pretrained = {
        (row.paper, row.dataset, model)
        for row in protocols[protocols["note"].str.contains("pretrained")].itertuples()
        for model in row.models.split(";")
    }
    met = set()
    for name in layout_names():
        layout = load_layout(name)
        for dataset, models in layout.columns.items():
            for model, ours in models.items():
                if (layout.paper, dataset, model) in pretrained:
                    assert str(ours).endswith("@pretrained"), (name, model)
                    met.add((layout.paper, model))
    assert {("mbls", "resnet101"), ("aurc", "vit-small"), ("aurc", "swin-tiny")} <= met


@pytest.fixture(scope="module")
def tasks() -> set[tuple[str, str]]:
    """Data set and model of every task of the full sweeps."""
    return {
        (study.task.dataset, study.task.model.removesuffix("@pretrained"))
        for name in LAYOUTS
        for study in plan(name)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_by_task_name_existing_data_sets_and_models(kind, tasks):
    for name in space_names(kind):
        space = load_space(kind, name)
        for parameter, entry in space.parameters.items():
            for key, default in entry.defaults.items():
                dataset, _, model = key.partition("/")
                assert dataset in SOURCES.names(), (name, key)
                if model:
                    assert (dataset, model) in tasks or model in model_names(), (name, key)
                point = space.default_point(dataset, model or None)
                assert point[parameter] == default, (name, key)


def test_the_defaults_of_the_transformers_reach_their_studies():
    found = {
        (study.task.model.removeprefix("timm:").split("_")[0], part): values
        for study in plan("aurc-table1")
        if study.task.dataset == "tiny-imagenet"
        for part, values in study.defaults.items()
    }
    for model, kappa in (("vit", 0.2), ("swin", 0.4)):
        assert found[model, "au"]["coverage"] == kappa
        assert found[model, "ifl"]["gamma"] == found[model, "dfl"]["gamma"] == 1.0
