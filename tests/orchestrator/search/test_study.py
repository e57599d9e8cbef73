import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection

from orchestrator.search.prior import LENGTH, NOISE, Next, predicted, suggestion
from orchestrator.search.study import StudySearch, _seed, distribution_of
from orchestrator.sweep.plan import StudyPlan, make_plan
from orchestrator.sweep.spec import SearchModel, parse_sweep
from search_spaces import Parameter, load_space

FINISHED = "finished"
Objective = Callable[[dict[str, Any]], float]
GP = pytest.param("gp", marks=pytest.mark.full)
SAMPLERS = ("tpe", "random", GP, "prior")


def study(recipe: str = "mbls", dataset: str = "digits", **search: Any) -> tuple[StudyPlan, Any]:
    rules = {"trials": 12, "parallel_trials": 1, "accuracy_tolerance": None, **search}
    spec = parse_sweep(
        f"name: study\ntasks: [{{dataset: {dataset}, model: resnet8, protocol: digits}}]\n"
        f"recipes: [{recipe}]\nsearch: {str(rules).replace('None', 'null')}\n",
        "study",
    )
    return list(make_plan(spec))[-1], spec.search


def open_search(recipe: str = "mbls", seed: int = 0, **search: Any) -> StudySearch:
    planned, rules = study(recipe, **search)
    return StudySearch(planned, rules, seed)


def bowl(parameters: dict[str, Any]) -> float:
    return abs(parameters.get("mbls.margin", 9.0) - 9) / 12


def drive(search: StudySearch, objective: Objective = bowl) -> list[dict[str, Any]]:
    """Give out trials as soon as may be and score them in the order of their numbers."""
    asked: list[dict[str, Any]] = []
    scored = 0
    while scored < search.plan.trials:
        while search.may_ask():
            number, parameters = search.ask()
            assert number == len(asked)
            asked.append(parameters)
        search.score(scored, objective(asked[scored]), FINISHED)
        scored += 1
    assert not search.may_ask()
    return asked


@cache
def usual(sampler: str, lag: int = 1) -> list[dict[str, Any]]:
    return drive(open_search(sampler=sampler, parallel_trials=lag))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_published_default_comes_first(sampler):
    asked = usual(sampler)
    assert asked[0] == {"mbls.margin": 6.0, "mbls.weight": 0.1}
    assert len(asked) == 12
    assert len({tuple(point.values()) for point in asked}) == 12


def test_the_default_is_that_of_the_data_set():
    planned, rules = study(dataset="cifar100")
    _, first = StudySearch(planned, rules, 0).ask()
    assert first["mbls.margin"] == 10.0
    chosen, rules = study(dataset="cifar100", spaces={"mbls": {"margin": {"choices": [6.0, 10.0]}}})
    _, first = StudySearch(chosen, rules, 0).ask()
    assert first["mbls.margin"] == 10.0


@pytest.mark.parametrize(
    ("change", "margin"),
    [
        ({"low": 8.0, "high": 12.0}, 8.0),
        ({"low": 1.0, "high": 3.0}, 3.0),
        ({"choices": [2.0, 6.0]}, 6.0),
        ({"choices": [2.0, 4.0]}, 2.0),
    ],
)
def test_a_default_outside_the_range_moves_to_its_end(change, margin):
    _, first = open_search(spaces={"mbls": {"margin": change}}).ask()
    assert first["mbls.margin"] == margin


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_suggestions_depend_on_seed_and_results_alone(sampler):
    first = usual(sampler)
    optuna.create_study(sampler=optuna.samplers.RandomSampler()).ask()
    assert drive(open_search(sampler=sampler)) == first
    assert drive(open_search(sampler=sampler, seed=1)) != first


@pytest.mark.parametrize(
    "search", [{}, {"parallel_trials": 3}, {"spaces": {"mbls": {"margin": {"choices": [6.0]}}}}]
)
def test_tpe_suggests_the_same_as_optunas_sampler_with_the_seed_of_each_trial(search, monkeypatch):
    expected = drive(open_search(**search))

    def new(_: StudySearch, seed: int) -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=4, multivariate=True)

    monkeypatch.setattr(StudySearch, "_sampler", new)
    assert drive(open_search(**search)) == expected


def test_studies_of_different_tasks_draw_differently():
    one = drive(open_search(sampler="random"))
    other = drive(open_search(sampler="random", dataset="fashion-mnist"))
    assert one[1:] != other[1:]


@pytest.mark.parametrize("sampler", ["tpe", GP, "prior"])
def test_later_suggestions_use_earlier_results(sampler):
    near = drive(open_search(sampler=sampler, trials=18))
    far = drive(open_search(sampler=sampler, trials=18), lambda p: -bowl(p))
    distance = [sum(bowl(point) for point in asked[9:]) / 9 for asked in (near, far)]
    assert distance[0] < distance[1] / 2


def drive_pareto(sampler: str, sign: float = 1.0, **search: Any) -> StudySearch:
    """Score trials alike by the objective, and the better by accuracy the nearer they are."""
    found = open_search(sampler=sampler, pareto=["acc"], **search)
    while found.may_ask():
        number, parameters = found.ask()
        found.score(number, 0.5, FINISHED, {"val_acc": 1 - sign * bowl(parameters)})
    return found


def test_suggestions_use_every_metric_that_is_searched_for():
    near, far = (drive_pareto("tpe", sign, trials=18)._study.trials for sign in (1, -1))
    distance = [sum(bowl(trial.params) for trial in asked[9:]) / 9 for asked in (near, far)]
    assert distance[0] < distance[1] / 2
    again = drive_pareto("tpe", trials=18)._study.trials
    assert [trial.params for trial in again] == [trial.params for trial in near]


def test_a_trial_that_failed_has_no_other_metric_to_tell_of():
    search = open_search(pareto=["acc"])
    for _ in range(2):
        number, _ = search.ask()
        search.score(number, None, "failed")
    assert [trial.state.name for trial in search._study.trials] == ["FAIL", "RUNNING"]


def test_the_sampler_knows_the_direction_of_each_metric():
    directions = open_search(pareto=["acc", "ece"])._study.directions
    down, up = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    assert directions == [down, up, down]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ({"type": "float", "default": 2.0, "low": 1.0, "high": 3.0}, FloatDistribution(1.0, 3.0)),
        (
            {"type": "float", "default": 2.0, "low": 1.0, "high": 3.0, "scale": "log"},
            FloatDistribution(1.0, 3.0, log=True),
        ),
        ({"type": "int", "default": 2, "low": 1.0, "high": 3.0}, IntDistribution(1, 3)),
        (
            {"type": "int", "default": 2, "low": 1, "high": 3, "scale": "log"},
            IntDistribution(1, 3, log=True),
        ),
        (
            {"type": "categorical", "default": "b", "choices": ("a", "b")},
            CategoricalDistribution(("a", "b")),
        ),
    ],
)
def test_a_parameter_is_sampled_on_its_scale(parameter, expected):
    assert distribution_of(Parameter("x", "x", source="here", **parameter)) == expected


@pytest.mark.parametrize(("trials", "startup"), [(1, 1), (5, 1), (6, 2), (29, 9), (90, 10)])
@pytest.mark.parametrize("sampler", ["tpe", GP])
def test_a_third_of_the_trials_is_drawn_at_random_first_ten_at_most(trials, startup, sampler):
    search = open_search(trials=trials, sampler=sampler)
    search.ask()
    made: Any = search._study.sampler
    assert made._n_startup_trials == startup
    assert sampler == "gp" or made._multivariate


def test_seeds_are_as_they_have_always_been():
    """A sweep that an earlier version began goes on as that version would have."""
    assert (_seed("digits|ce", 0, 0), _seed("digits|ce", 1, 7)) == (835328300, 2166027968)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("known", [1, 11])
def test_suggestions_of_an_earlier_run_are_reused(sampler, known):
    expected = usual(sampler, lag=3)
    search = open_search(sampler=sampler, parallel_trials=3)
    asked: list[dict[str, Any]] = []
    for scored in range(12):
        while search.may_ask():
            number = len(asked)
            given = expected[number] if number < known else None
            assert search.ask(given)[0] == number
            asked.append(expected[number] if given else dict(search._study.trials[-1].params))
        search.score(scored, bowl(asked[scored]), FINISHED)
    assert asked == expected


@pytest.mark.parametrize("given", [{"mbls.margin": -1.0, "mbls.weight": 0.1}, {}, {"x": 1}])
def test_parameters_outside_the_space_are_suggested_again(given):
    search, expected = open_search(parallel_trials=2), open_search(parallel_trials=2)
    assert search.ask(given) == expected.ask()
    assert search.ask(given) == expected.ask()


@pytest.mark.parametrize(
    ("search", "block"),
    [
        ({"sampler": "grid"}, 64),
        ({"sampler": "random"}, 64),
        ({"sampler": "random", "parallel_trials": 70}, 70),
        ({"sampler": "tpe", "parallel_trials": 3}, 3),
        ({"sampler": "random", "scheduler": "asha"}, 1),
    ],
)
def test_sampler_and_parallel_trials_decide_the_size_of_a_block_of_refinements(search, block):
    spaces = {"macal": {"gamma": {"choices": [0.5, 0.8]}}}
    assert open_search("ce+macal", **{"spaces": spaces, **search}).block == block


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_suggestions_are_within_the_search_space(sampler):
    planned, rules = study("ce+macal", sampler=sampler, trials=6)
    for point in drive(StudySearch(planned, rules, 0), lambda p: p["macal.q0"]):
        for name, value in point.items():
            part, key = name.split(".")
            assert planned.searched[part][key].check(value) == value
        assert isinstance(point["macal.hidden"], int)


@pytest.mark.parametrize(
    ("recipe", "values"),
    [
        ("aurc", ["msp", "margin", "neg_entropy"]),
        ("ce+ts-cls", ["nd", "cm", "mm"]),
        ("ce+spline", [6, *(knots for knots in range(3, 21) if knots != 6)]),
    ],
)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_small_space_is_tried_in_full(recipe, values, sampler):
    asked = drive(open_search(recipe, trials=50, sampler=sampler), lambda _: 0.5)
    assert [value for point in asked for value in point.values()] == values


def test_a_space_larger_than_the_budget_is_sampled():
    asked = drive(open_search("ce+spline", trials=9, sampler="random"), lambda _: 0.5)
    knots = [point["spline.knots"] for point in asked]
    assert knots[0] == 6
    assert knots[1:] != sorted(knots[1:])


def test_nothing_to_search_is_one_trial():
    search = open_search("ce")
    assert search.may_ask()
    assert search.ask() == (0, {})
    assert not search.may_ask()
    search.score(0, 0.1, FINISHED)
    assert not search.may_ask()


GRID = {"margin": {"choices": [0.0, 6.0, 10.0]}, "weight": {"choices": [0.1, 1.0]}}


def test_a_grid_is_whole_and_in_order_with_the_default_first():
    asked = drive(open_search(sampler="grid", spaces={"mbls": GRID}))
    assert [(p["mbls.margin"], p["mbls.weight"]) for p in asked] == [
        (6.0, 0.1),
        (0.0, 0.1),
        (0.0, 1.0),
        (6.0, 1.0),
        (10.0, 0.1),
        (10.0, 1.0),
    ]


def test_a_grid_without_the_default_begins_at_its_first_point():
    spaces = {"mbls": {"margin": {"choices": [0.0, 10.0]}, "weight": {"choices": [1.0, 0.5]}}}
    asked = drive(open_search(sampler="grid", spaces=spaces))
    assert [(p["mbls.margin"], p["mbls.weight"]) for p in asked] == [
        (0.0, 1.0),
        (0.0, 0.5),
        (10.0, 1.0),
        (10.0, 0.5),
    ]


@pytest.mark.parametrize("lag", [1, 2, 3, 20])
def test_parallel_trials_limits_how_many_suggestions_are_open(lag):
    search = open_search(parallel_trials=lag)
    given = 0
    while search.may_ask():
        search.ask()
        given += 1
    assert given == min(lag, 12)
    if lag in (2, 3):
        # The second one ending first allows nothing: the next waits for the first.
        search.score(1, 0.5, FINISHED)
        assert not search.may_ask()
        search.score(0, 0.5, FINISHED)
        for number in (lag, lag + 1):
            assert search.may_ask()
            assert search.ask()[0] == number
        assert not search.may_ask()


def test_trials_of_an_earlier_run_end_as_others_do():
    def told(given: bool) -> list[tuple[str, Any]]:
        search = open_search(trials=6)
        asked = [drive(open_search(trials=6))[number] if given else None for number in range(5)]
        ends = ((0.3, FINISHED), (None, "failed"), (0.4, "pruned"), (math.nan, FINISHED))
        ends = (*ends, (math.inf, FINISHED))
        for parameters, (value, status) in zip(asked, ends, strict=True):
            number, _ = search.ask(parameters)
            search.score(number, value, status)
        search.ask()
        assert search._study.best_value == 0.3
        return [(trial.state.name, trial.values) for trial in search._study.trials]

    states = ["COMPLETE", "FAIL", "PRUNED", "FAIL", "COMPLETE", "RUNNING"]
    assert told(given=True) == told(given=False)
    assert [state for state, _ in told(given=True)] == states


def test_unknown_results_are_not_used():
    """Trial n hears of trials up to n - lag and no others, even if they have ended."""
    search = open_search(parallel_trials=3, trials=6)
    search.ask()
    search.ask()
    search.ask()
    for number in range(3):
        search.score(number, 0.5, FINISHED)
    search.ask()
    states = [trial.state.name for trial in search._study.trials]
    assert states == ["COMPLETE", "RUNNING", "RUNNING", "RUNNING"]


@pytest.mark.parametrize("sampler", ["tpe", GP, "prior"])
def test_a_search_survives_nothing_but_failures(sampler):
    search = open_search(sampler=sampler)
    for _ in range(12):
        number, _ = search.ask()
        search.score(number, None, "failed")
    assert not search.may_ask()


@pytest.mark.parametrize("sampler", ["tpe", "prior", "random", GP, "grid"])
def test_optuna_has_nothing_to_warn_of(sampler, capfd):
    spaces = {"mbls": GRID} if sampler == "grid" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drive(open_search(sampler=sampler, spaces=spaces, trials=6))
        drive_pareto(sampler, spaces=spaces, trials=6)
    assert capfd.readouterr().err == ""


def test_the_rules_have_no_sampler_that_is_not_tried_here():
    allowed = SearchModel.model_fields["sampler"].annotation
    assert set(getattr(allowed, "__args__", ())) == {"tpe", "prior", "random", "gp", "grid"}


MBLS = load_space("methods", "mbls").portfolio


def test_a_portfolio_follows_the_published_default():
    asked = [{key.removeprefix("mbls."): v for key, v in p.items()} for p in usual("prior")]
    assert len(MBLS) == 3
    assert asked[:4] == [{"margin": 6.0, "weight": 0.1}, *MBLS]


@pytest.mark.parametrize(
    "search",
    [
        {"fixed": {"mbls": {"variant": "paper"}}},
        {"tune": {"mbls": ["margin"]}},
        {"fixed": {"mbls": {"weight": 0.1}}},
    ],
)
def test_a_portfolio_is_for_the_whole_published_space(search):
    assert study(sampler="prior", **search)[0].portfolio == ()


def test_configurations_of_a_portfolio_outside_the_range_are_left_out():
    planned, _ = study(sampler="prior", spaces={"mbls": {"margin": {"low": 1.0, "high": 7.0}}})
    assert [point["mbls.margin"] for point in planned.portfolio] == [MBLS[1]["margin"]]


def test_without_a_portfolio_the_first_points_are_far_from_each_other():
    asked = drive(open_search("ifl", sampler="prior", trials=4))
    assert [point["ifl.gamma"] for point in asked] == pytest.approx(
        [2.0, 0.7395, 2.7790, 1.5185], abs=1e-4
    )


@pytest.mark.parametrize("trials", [20, 21])
def test_tpe_follows_after_twenty_trials(trials, monkeypatch):
    """A Gaussian process takes longer the more trials there are."""
    asked: list[int] = []

    def modelled(plan: Any, points: Any, values: Any, seed: int) -> Next:
        asked.append(len(points))
        return suggestion(plan, points, values, seed)

    monkeypatch.setattr("orchestrator.search.study.suggestion", modelled)
    drive(open_search(sampler="prior", trials=trials, parallel_trials=1))
    assert asked == list(range(4, 20))


def test_the_gaussian_process_of_one_value_is_known():
    far = math.sqrt(5) * 0.3 / LENGTH
    covariance = (1 + far + far * far / 3) * math.exp(-far)
    mean, error = predicted(np.array([[0.2]]), np.array([2.0]), np.array([[0.2], [0.5]]))
    assert mean == pytest.approx([2 / (1 + NOISE), 2 * covariance / (1 + NOISE)])
    assert error**2 == pytest.approx([NOISE / (1 + NOISE), 1 - covariance**2 / (1 + NOISE)])


def test_a_trial_that_failed_counts_as_the_worst():
    planned, _ = study("ifl", sampler="prior")
    points = [{"ifl.gamma": value} for value in (1.0, 2.0, 3.0)]
    failed = suggestion(planned, points, [0.1, 0.4, None], 0)
    assert failed == suggestion(planned, points, [0.1, 0.4, math.inf], 0)
    assert failed.point["ifl.gamma"] < 2.0


def test_an_improvement_has_the_unit_of_the_objective():
    planned, _ = study("ifl", sampler="prior")
    points = [{"ifl.gamma": value} for value in (1.0, 2.0, 3.0)]
    small, large = (suggestion(planned, points, [k * 0.1, k * 0.4], 0) for k in (1, 10))
    assert large.improvement == pytest.approx(10 * small.improvement)
    assert large.point == small.point
