from typing import Any

import pytest

from orchestrator.sweep.names import study_id
from orchestrator.sweep.plan import MANY, Plan, StudyPlan, make_plan, searches
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError

DIGITS = "digits/convnet/digits"


def plan(recipes: str, seeds: str = "[0]", tasks: str = "", extra: str = "", **search: Any) -> Plan:
    rules = str({"trials": 5, **search}).replace("None", "null")
    listed = tasks or "{dataset: digits, model: convnet, protocol: digits}"
    return make_plan(
        parse_sweep(
            f"name: plan\ntasks: [{listed}]\nrecipes: [{recipes}]\nsearch: {rules}\n"
            f"seeds: {seeds}\n{extra}",
            "plan",
        )
    )


def rows(made: Plan) -> dict[str, bool]:
    return {study.recipe.name: study.row for study in made}


def trials(made: Plan) -> dict[str, int]:
    return {study.recipe.name: study.trials for study in made}


def test_studies_come_after_those_they_build_on():
    made = plan('"ce+macal+ts", mbls, ce, "*+macal"')
    seen: set[str] = set()
    for study in made:
        assert study.upstream is None or study.upstream in seen
        assert study.id == study_id(DIGITS, study.recipe.name)
        seen.add(study.id)
    builds_on = {study.recipe.name: study.upstream for study in made}
    assert builds_on == {
        "ce": None,
        "mbls": None,
        "ce+macal": study_id(DIGITS, "ce"),
        "mbls+macal": study_id(DIGITS, "mbls"),
        "ce+macal+ts": study_id(DIGITS, "ce+macal"),
    }
    # Short chains first, else as they are mentioned, the baseline before all.
    assert list(builds_on) == ["ce", "mbls", "ce+macal", "mbls+macal", "ce+macal+ts"]
    assert list(rows(plan("mbls, fl, ce"))) == ["ce", "mbls", "fl"]
    assert list(rows(plan("mbls, fl, ce", accuracy_tolerance=None))) == ["mbls", "fl", "ce"]


def test_recipes_that_others_only_build_on_are_not_rows():
    made = plan("mbls+macal+ts", accuracy_tolerance=None)
    assert rows(made) == {"mbls": False, "mbls+macal": False, "mbls+macal+ts": True}


def test_the_guard_brings_plain_cross_entropy_along():
    assert rows(plan("mbls")) == {"ce": False, "mbls": True}
    assert rows(plan("mbls, ce")) == {"ce": True, "mbls": True}
    assert rows(plan("mbls", accuracy_tolerance=None)) == {"mbls": True}


def test_every_study_but_the_baseline_is_compared_with_it():
    made = plan('mbls, "*+ts"')
    references = {study.recipe.name: study.reference for study in made}
    ce = study_id(DIGITS, "ce")
    assert references == {"ce": None, "mbls": ce, "mbls+ts": ce}
    strict = plan("mbls", accuracy_tolerance=0)
    assert {study.recipe.name: study.reference for study in strict} == {"ce": None, "mbls": ce}
    free = plan("mbls, ce", accuracy_tolerance=None)
    assert {study.reference for study in free} == {None}


def test_tasks_are_apart():
    tasks = (
        "{name: a, dataset: digits, model: convnet, protocol: digits}, "
        "{name: b, dataset: digits, model: resnet8, protocol: digits}"
    )
    made = plan("mbls+ts", tasks=tasks)
    assert [study.task.id for study in made] == ["a"] * 3 + ["b"] * 3
    for study in made:
        for other in (study.upstream, study.reference):
            assert other is None or other.startswith(f"{study.task.id}|")


def test_every_method_gets_the_same_budget_and_nothing_to_search_one_trial():
    made = plan("ce, brier, mbls, fl, acls, ce+ts, ce+isotonic, ce+macal")
    assert trials(made) == {
        "ce": 1,
        "brier": 1,
        "mbls": 5,
        "fl": 5,
        "acls": 5,
        "ce+ts": 1,
        "ce+isotonic": 1,
        "ce+macal": 5,
    }
    fixed = plan("mbls", fixed={"mbls": {"margin": 10.0, "weight": 0.1}})
    assert trials(fixed)["mbls"] == 1


@pytest.mark.parametrize(
    ("recipe", "search", "points"),
    [
        ("aurc", {}, 3),
        ("ce+ts-cls", {}, 3),
        ("ce+spline", {"trials": 100}, 18),
        ("ce+spline", {"trials": 100, "spaces": {"spline": {"knots": {"low": 5, "high": 6}}}}, 2),
        ("fl", {"spaces": {"fl": {"gamma": {"low": 2.0, "high": 2.0}}}}, 1),
    ],
)
def test_no_study_has_more_trials_than_configurations(recipe, search, points):
    (study,) = (s for s in plan(recipe, **search) if s.recipe.name == recipe)
    assert (study.trials, study.points) == (points, points)


def test_a_continuous_parameter_has_configurations_without_end():
    studies = {study.recipe.name: study for study in plan("fl, mbls, kde-xe")}
    assert {studies[name].points for name in ("fl", "mbls", "kde-xe")} == {MANY}
    assert studies["mbls"].trials == 5


def test_a_grid_has_as_many_trials_as_points():
    made = plan(
        "ce, mbls, ce+macal",
        sampler="grid",
        trials=2,
        spaces={
            "mbls": {"margin": {"choices": [0.0, 6.0, 10.0]}, "weight": {"choices": [0.1, 1.0]}},
            "macal": {"gamma": {"choices": [0.5, 0.8, 0.9, 0.95]}},
        },
    )
    assert trials(made) == {"ce": 1, "mbls": 6, "ce+macal": 4}
    (mbls,) = (study for study in made if study.recipe.name == "mbls")
    assert set(mbls.searched["mbls"]) == {"margin", "weight"}


def test_only_parameters_in_tune_or_spaces_are_searched():
    spaces = {"macal": {"q0": {"choices": [0.3, 0.5]}}}
    tune = {"macal": ["gamma"], "mbls": []}
    made = plan("fl, mbls, ce, ce+macal", tune=tune, spaces=spaces)
    assert trials(made) == {"fl": 1, "mbls": 1, "ce": 1, "ce+macal": 5}
    (macal,) = (study for study in made if study.recipe.name == "ce+macal")
    assert set(macal.searched["macal"]) == {"gamma", "q0"}


def test_trials_are_counted_by_stage_and_with_further_seeds():
    made = plan("mbls, ce, ce+macal, ce+macal+ts", seeds="[0, 1, 2]")
    assert made.stage_trials() == {"train": (5 + 2) + (1 + 2), "refine": 5 + 2, "calibrate": 1 + 2}
    assert made.trials == sum(made.stage_trials().values())
    # The search's own seed is one more.
    own = plan("mbls, ce", seeds="[0, 1, 2]", seed=7)
    assert own.stage_trials() == {"train": (5 + 3) + (1 + 3)}


@pytest.mark.parametrize(
    ("recipes", "rules", "searched"),
    [
        ("ce, ce+ts", {}, False),
        ("ce, ce+spline", {}, True),
        ("mbls", {}, True),
        ("mbls", {"trials": 1}, False),
        ("mbls", {"tune": {}}, False),
    ],
)
def test_a_sweep_searches_if_a_study_has_at_least_two_trials(recipes, rules, searched):
    assert searches(plan(recipes, **rules).spec) == searched


@pytest.mark.parametrize(
    ("dataset", "model", "margin", "gamma"),
    [
        ("cifar10", "resnet50", 6.0, 5.0),
        ("cifar10", "resnet110", 6.0, 4.5),
        ("cifar100", "resnet50", 10.0, None),
        ("digits", "convnet", 6.0, None),
        ("'npz:/data/cifar100.npz'", "resnet50", 6.0, None),
    ],
)
def test_defaults_are_those_published_for_the_data_set(dataset, model, margin, gamma):
    made = plan("mbls, dfl", tasks=f"{{dataset: {dataset}, model: {model}, protocol: digits}}")
    defaults = {study.recipe.name: study.defaults for study in made}
    assert defaults["mbls"]["mbls"]["margin"] == margin
    if gamma is not None:
        assert defaults["dfl"]["dfl"]["gamma"] == gamma


def test_each_task_has_the_defaults_of_its_own_data_set():
    tasks = ", ".join(
        f"{{dataset: {dataset}, model: resnet50, protocol: digits}}"
        for dataset in ("cifar10", "cifar100")
    )
    margins = [s.defaults["mbls"]["margin"] for s in plan("mbls", tasks=tasks) if s.row]
    assert margins == [6.0, 10.0]


def test_a_combined_method_searches_all_its_parts():
    (study,) = (s for s in plan("mbls+mixup") if s.row)
    assert set(study.searched) == {"mbls", "mixup"}
    assert set(study.searched["mixup"]) == {"alpha"}
    assert "variant" in study.defaults["mbls"]
    assert "variant" not in study.searched["mbls"]


def test_a_variant_is_a_study_of_its_own_with_its_settings():
    extra = "variants: {macal-static: {of: macal, fixed: {sparsity: adaptive, gamma: 0.8}}}\n"
    made = plan("ce, ce+macal, ce+macal-static", extra=extra)
    studies = {study.recipe.name: study for study in made}
    static = studies["ce+macal-static"]
    assert static.upstream == studies["ce+macal"].upstream
    assert static.defaults["macal-static"]["sparsity"] == "adaptive"
    assert static.defaults["macal-static"]["gamma"] == 0.8
    assert set(static.searched["macal-static"]) == set(studies["ce+macal"].searched["macal"]) - {
        "gamma"
    }


def test_which_studies_are_suggested_a_block_at_a_time():
    extra = "variants: {warm: {of: ts-ls}, soft: {of: spline}}\n"
    recipes = "mbls, ce+macal, ce+ts, ce+cts-ls, ce+vs, ce+warm, ce+soft, ce+spline, ce+macal+ets"
    blocks = [study.recipe.name for study in plan(recipes, extra=extra) if study.blockwise]
    assert sorted(blocks) == ["ce+cts-ls", "ce+macal", "ce+ts", "ce+vs", "ce+warm"]


def test_fixed_values_are_those_of_the_variant_and_those_of_the_sweep():
    extra = "variants: {wide: {of: mbls, fixed: {weight: 0.5}}}\n"
    made = plan("wide", extra=extra, fixed={"wide": {"margin": 12.0, "weight": 0.5}})
    (study,) = (study for study in made if study.row)
    assert {**study.defaults["wide"], "variant": ""} == {
        "margin": 12.0,
        "weight": 0.5,
        "variant": "",
    }
    assert study.searched == {"wide": {}}


def macal_of(extra: str = "", **search: Any) -> StudyPlan:
    (study,) = (s for s in plan("ce+macal", extra=extra, **search) if s.row)
    return study


def test_a_variant_of_macal_gives_the_values_that_the_sweep_leaves_open():
    usual = macal_of().defaults["macal"]
    fixed = {"macal": {"variant": "paper", "feedback": "dense"}}
    printed = macal_of(fixed=fixed).defaults["macal"]
    assert {key: value for key, value in printed.items() if usual.get(key) != value} == {
        "variant": "paper",
        "q_role": "keep",
        "optimizer": "masked",
        "resample": "epoch",
        "feedback": "dense",
    }


def test_the_usual_variant_is_in_no_configuration_so_that_stored_outcomes_keep_their_keys():
    usual = macal_of().defaults["macal"]
    assert "variant" not in usual
    assert macal_of(fixed={"macal": {"variant": "ours"}}).defaults["macal"] == usual


@pytest.mark.parametrize(
    "search",
    [{"spaces": {"macal": {"variant": {"choices": ["paper"]}}}}, {"tune": {"macal": ["variant"]}}],
)
def test_a_variant_that_gives_other_values_is_not_searched(search):
    line = "'variant' sets the defaults of resample, feedback, q_role, optimizer and cannot be"
    with pytest.raises(InputError, match=line):
        macal_of(**search)


@pytest.mark.parametrize(
    ("recipe", "search", "published"),
    [
        ("ce+macal", {"tune": {"macal": ["gamma"]}}, False),
        ("ce+macal", {"tune": {"macal": ["gamma", "q0"]}}, False),
        ("ce+macal", {"tune": {"macal": ["q0", "eta_init", "lr"]}}, True),
        ("ce+macal", {"fixed": {"macal": {"gamma": 0.9, "hidden": 64}}}, True),
        ("mbls", {}, True),
        ("mbls", {"spaces": {"mbls": {"margin": {"low": 1.0, "high": 3.0}}}}, False),
        ("ce+dirichlet", {}, False),
    ],
)
def test_a_search_begins_at_a_published_default_if_a_paper_prints_each_value(
    recipe, search, published
):
    (study,) = (s for s in plan(recipe, **search) if s.row)
    assert study.trials > 1
    assert study.published is published


def test_an_unpublished_learning_rate_holds_for_one_data_set_only():
    tasks = (
        "{dataset: 20newsgroups, model: gpool-cnn, protocol: mbls2022-text}, "
        "{dataset: cifar10, model: resnet50, protocol: mukhoti2020}"
    )
    made = plan("ce+macal", tasks=tasks, tune={"macal": ["lr"]})
    assert [study.published for study in made if study.row] == [False, True]
