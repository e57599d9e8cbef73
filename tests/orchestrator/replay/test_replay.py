import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from orchestrator.replay.recorded import RecordedStudy, RecordedTrial, _apart
from orchestrator.replay.run import Judged, ReplayOutcome, _judged, _searches, _summary
from orchestrator.replay.settings import ReplaySettings, changed, load_replay
from orchestrator.replay.simulate import Choice, Search, Table, resampled, simulate
from orchestrator.search.state import SweepState
from orchestrator.storage.ledger import Trial
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SweepSpec, parse_sweep
from search_spaces import Parameter
from trainables.common.errors import InputError
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.stages import ValidationRows, objective_terms

TASK = "digits/convnet/digits"
LABELS = torch.zeros(60, dtype=torch.long)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("data")
    return prepare("digits", folder, SplitSpec(), folder / "prepared")


@pytest.fixture(scope="module")
def spec() -> SweepSpec:
    return parse_sweep(
        """
name: told
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [ce, mbls]
search:
  {trials: 8, objective: nll, keep_default: true, accuracy_errors: 1, parallel_trials: 2,
  spaces: {mbls: {margin: {low: 0.0, high: 20.0}, weight: {low: 0.001, high: 1.0}}}}
seeds: [3]
""",
        "told",
    )


def logits_of(name: str) -> torch.Tensor:
    noise = torch.Generator().manual_seed(random.Random(name).randrange(2**31))
    return torch.randn(60, 3, generator=noise) + torch.tensor([1.0, 0.0, 0.0])


@pytest.fixture(scope="module")
def live(data: PreparedData, spec: SweepSpec) -> tuple[SweepState, RecordedStudy]:
    """A search that ran, and what is recorded of it."""
    known: dict[str, torch.Tensor] = {}
    state = SweepState(
        make_plan(spec),
        "live",
        {TASK: data},
        lambda event: None,
        predictions=lambda ref: ValidationRows(known[ref.key], LABELS),
    )
    while (trial := state.next_trial()) is not None:
        logits = known[trial.request.key()] = logits_of(repr(sorted(trial.parameters.items())))
        told = {m: objective_terms(m, logits, LABELS).mean().item() for m in ("acc", "nll")}
        metrics = {f"val_{name}": value for name, value in told.items()}
        state.record(trial, trial.ending("finished", metrics, artifact=trial.request.key()))
    return state, recorded(state, data, known)


@pytest.fixture
def study(live: tuple[SweepState, RecordedStudy]) -> RecordedStudy:
    return live[1]


def recorded(
    state: SweepState, data: PreparedData, known: dict[str, torch.Tensor]
) -> RecordedStudy:
    def of(name: str) -> list[RecordedTrial]:
        study = state.studies[f"{TASK}|{name}"]
        return [
            RecordedTrial(
                Trial(**told(study.trials[number], outcome)),
                known[outcome.artifact],
                logits_of(f"{outcome.artifact} on test").log_softmax(1),
                {"nll": 0.5},
            )
            for number, outcome in sorted(study.outcomes.items())
        ]

    def told(trial: Any, outcome: Any) -> dict[str, Any]:
        started = {k: getattr(trial, k) for k in ("study", "number", "key", "role", "seed")}
        rest = {"stage": trial.stage, "configuration": trial.configuration}
        return {**started, **rest, "metrics": outcome.metrics, "artifact": outcome.artifact}

    plan = state.studies[f"{TASK}|mbls"].plan
    return RecordedStudy(plan, tuple(of("mbls")), LABELS, LABELS + 1, of("ce")[0], data)


def test_a_search_with_its_own_settings_makes_the_same_choices(live, spec):
    state, study = live
    ran = state.studies[study.plan.id]
    found = simulate(Table(study), spec, seed=3, budgets=(1, 4, 99))
    assert set(found.distances) == {0.0}
    assert [choice.budget for choice in found.choices] == [1, 4, 8]
    assert found.choices[0].position == 0
    for choice in found.choices:
        chosen, _ = state.scores.choice(ran, choice.budget)
        assert chosen is not None
        assert (choice.position, choice.objective) == (chosen.trial.number, chosen.objective)
    seeded = changed(spec, "seeded", {"seed": 5})
    assert simulate(Table(study), seeded, seed=3, budgets=(1, 4, 99)) == found
    # Another seed asks for other configurations.
    assert max(simulate(Table(study), spec, seed=4).distances) > 0


def test_budgets_are_sorted_and_unique_for_any_order_of_trials(study, spec):
    asked = simulate(Table(study), spec, seed=3, budgets=(4, 1, 4, 8))
    assert asked == simulate(Table(study), spec, seed=3, budgets=(1, 4))
    turned = Table(replace(study, trials=study.trials[::-1]))
    again = simulate(turned, spec, seed=3, budgets=(1, 4)).choices
    assert [choice.position for choice in again] == [
        7 - choice.position for choice in asked.choices if choice.position is not None
    ]


def test_a_search_begins_at_the_sweeps_seed_and_the_replays(study, spec):

    def distances(seed: int, number: int) -> set[float]:
        settings = ReplaySettings(resample=False, strategies={"as run": {}}, seed=seed)
        job = ("told", study, {"as run": spec}, settings, range(number, number + 1))
        return {row.distance for row in _searches(job)}

    for seed, number in ((0, 0), (2, 0), (2, 1)):
        found = simulate(Table(study), spec, seed=3 + seed + number).distances
        assert distances(seed, number) == {sum(found) / 8}
    assert distances(0, 0) == {0.0} != distances(2, 0)


def test_searches_draw_the_same_rows_only_if_their_numbers_are_equal(study, spec, monkeypatch):
    asked: list[tuple[int, int]] = []
    searched: list[int] = []

    def table(own: RecordedStudy, rows: torch.Tensor | None) -> Table:
        searched.append(len(own.labels))
        return Table(own, rows)

    def draw(rows: int, seed: int) -> torch.Tensor:
        asked.append((rows, seed))
        return resampled(rows, seed)

    monkeypatch.setattr("orchestrator.replay.run.Table", table)
    monkeypatch.setattr("orchestrator.replay.run.resampled", draw)
    settings = ReplaySettings(strategies={"as run": {}}, seed=5)
    for chosen in (settings, settings.model_copy(update={"validation": 50})):
        _searches(("told", study, {"as run": spec}, chosen, range(1, 3)))
    assert asked == [(60, 6), (60, 7)]  # None where they are drawn without replacement.
    assert searched == [60, 60, 50, 50]


def test_rows_that_are_drawn_again_keep_their_labels(study: RecordedStudy) -> None:
    study = replace(study, labels=torch.arange(60) % 3)
    rows = resampled(60, seed=1)
    found = study.trials[0]
    labels, logits = study.labels[rows], found.logits[rows]
    assert Table(study, rows).metrics(found, ("acc", "nll")) == {
        f"val_{name}": objective_terms(name, logits, labels).mean().item()
        for name in ("acc", "nll")
    }


def test_equally_near_configurations_are_answered_by_the_first(study: RecordedStudy) -> None:
    twice = replace(study, trials=(*study.trials, *study.trials))
    assert twice.nearest(study.trials[2].trial.configuration) == (2, 0.0)


def test_a_failed_default_is_left_out_of_the_comparison(study: RecordedStudy) -> None:
    search = Search((Choice(8, 2, 0.0),), (0.1,))
    (row,) = _judged("a", "s", study, 0, search, {1: 0.25, 2: 0.75})
    assert (row.loss, row.best, math.isnan(row.default)) == (0.75, 0.25, True)
    other = judged(1, 0, 0.5)
    final = _summary("a", 8, [row, other, replace(other, number=-1, loss=math.nan)])
    assert (final.loss, final.default, final.worse) == (0.625, 0.5, 0.0)
    assert final.regret == pytest.approx((0.5 + 0.2) / 2)
    means = (0.75, 0.5)  # One search, and another of which a study has no finished trial.
    assert (final.low, final.high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))))


def test_a_strategy_is_judged_by_the_trial_and_not_by_an_equal_loss() -> None:
    final = _summary("a", 8, [judged(0, 0, 0.5), judged(1, 4, 0.5)])
    assert (final.kept, final.worse) == (0.5, 0.0)


def test_replay_settings_have_defaults() -> None:
    assert ReplaySettings().model_dump() == {
        "searches": 20,
        "resample": True,
        "validation": None,
        "test": True,
        "judge": "nll",
        "budgets": (1, 2, 5, 10, 20, 50),
        "recipes": (),
        "strategies": {
            "as run": {},
            "random": {"sampler": "random"},
            "nll": {"objective": "nll"},
            "default kept": {"keep_default": 2.0},
        },
        "seed": 0,
    }


def test_a_strategy_changes_only_the_settings_that_it_names(spec: SweepSpec) -> None:
    found = changed(spec, "random", {"sampler": "random"})
    rules = spec.search.model_copy(update={"sampler": "random"})
    assert found == spec.model_copy(update={"search": rules})
    tuned = changed(spec, "tuned", {"tune": {"mbls": ["margin"]}})
    with pytest.raises(InputError, match=r"^strategies\.grid: search\.tune: "):
        changed(tuned, "grid", {"sampler": "grid"})


def test_a_strategy_may_search_for_several_metrics(study: RecordedStudy, spec: SweepSpec) -> None:
    several = changed(spec, "several", {"pareto": ["acc", "ece"]})
    found = simulate(Table(study), several, seed=0)
    assert found.distances[0] == 0.0
    assert found != simulate(Table(study), spec, seed=0)


def test_a_guard_that_was_never_there_guards_no_strategy(study, spec):
    free = changed(spec, "free", {"accuracy_tolerance": None, "keep_default": False})
    strict = changed(spec, "strict", {"accuracy_tolerance": 0.0, "keep_default": False})
    alone = Table(replace(study, plain=None))
    assert simulate(alone, strict, seed=3) == simulate(Table(study), free, seed=3)
    assert study.plain is not None
    right = replace(study.plain.trial, metrics={**study.plain.trial.metrics, "val_acc": 1.0})
    guarded = Table(replace(study, plain=replace(study.plain, trial=right)))
    best = [simulate(table, strict, seed=3).choices[-1] for table in (guarded, alone)]
    assert best[0].objective > best[1].objective


def test_other_rows_make_other_objectives(study: RecordedStudy, spec: SweepSpec) -> None:
    free = changed(spec, "free", {"accuracy_tolerance": None, "keep_default": False})
    rows = resampled(60, 1)
    assert rows.unique().numel() < 60
    assert {row for seed in range(9) for row in resampled(4, seed).tolist()} == {0, 1, 2, 3}
    (found,) = simulate(Table(study, rows), free, seed=3).choices
    nll = [float(objective_terms("nll", t.logits[rows], LABELS).mean()) for t in study.trials]
    assert found.objective == pytest.approx(min(nll))
    assert found.position == nll.index(min(nll))


def test_rows_drawn_for_a_search_do_not_judge_it(study: RecordedStudy, spec: SweepSpec) -> None:
    drawn = study.drawn(50, seed=1)
    assert (len(drawn.labels), len(drawn.test_labels)) == (50, 70)
    for found, own in zip(study.trials, drawn.trials, strict=True):
        every = torch.cat([found.logits.log_softmax(1), found.outputs])
        again = torch.cat([own.logits, own.outputs])
        assert torch.equal(again.sort(0).values, every.sort(0).values)
    # Rows keep their labels: of class 0 these are of validation, of class 1 of test.
    first = drawn.trials[0]
    kept = (first.logits[:, None] == study.trials[0].outputs).all(-1).any(1)
    assert torch.equal(drawn.labels, kept.long())
    free = changed(spec, "free", {"accuracy_tolerance": None, "keep_default": False})
    (choice,) = simulate(Table(drawn), free, seed=0).choices
    nll = [float(objective_terms("nll", t.logits, drawn.labels).mean()) for t in drawn.trials]
    assert (choice.position, choice.objective) == (nll.index(min(nll)), pytest.approx(min(nll)))
    # The guard sees the same rows: here of a network that is always right.
    says_0, says_1 = (5 * torch.eye(3)[label].expand(60, 3) for label in (0, 1))
    assert study.plain is not None
    plain = replace(study.plain, logits=says_0, outputs=says_1.log_softmax(1))
    guarded = replace(study, plain=plain).drawn(50, seed=1)
    strict = {"accuracy_tolerance": 0.0, "accuracy_errors": 0.0, "keep_default": False}
    (choice,) = simulate(Table(guarded), changed(spec, "strict", strict), seed=0).choices
    right = [(t.logits.argmax(1) == drawn.labels).double().mean() for t in drawn.trials]
    charged = [n + 1.0 - float(acc) for n, acc in zip(nll, right, strict=True)]
    assert choice.objective == pytest.approx(min(charged))
    others = -first.outputs.double()[range(70), drawn.test_labels].mean()
    assert study.losses("nll")[0] == 0.5
    assert drawn.losses("nll")[0] == pytest.approx(float(others))


def test_the_nearest_configuration_answers_and_says_how_near_it_is(study: RecordedStudy) -> None:
    tried = study.trials[2].trial.configuration
    assert study.nearest(tried) == (2, 0.0)
    margin = {**tried["mbls"], "margin": tried["mbls"]["margin"] + 0.02}
    assert study.nearest({"mbls": margin}) == (2, pytest.approx(0.001))  # of [0, 20]
    weight = {**tried["mbls"], "weight": tried["mbls"]["weight"] * 1.01}
    scale = math.log(1000) if study.plan.searched["mbls"]["weight"].scale == "log" else 0.999
    step = math.log(1.01) if scale > 1 else 0.01 * tried["mbls"]["weight"]
    assert study.nearest({"mbls": weight}) == (2, pytest.approx(step / scale))
    both = {**margin, "weight": weight["weight"]}
    assert study.nearest({"mbls": both}) == (2, pytest.approx(max(0.001, step / scale)))


@pytest.mark.parametrize(
    ("fields", "one", "other", "distance"),
    [
        ({"type": "float", "low": 1.0, "high": 5.0}, 4.0, 2.0, 0.5),
        ({"type": "float", "low": 1.0, "high": 100.0, "scale": "log"}, 1.0, 10.0, 0.5),
        ({"type": "int", "low": 1, "high": 9}, 3, 5, 0.25),
        ({"type": "float", "low": 2.0, "high": 2.0}, 2.0, 2.0, 0.0),
        ({"type": "categorical", "choices": ("a", "b", 2.0)}, "a", "a", 0.0),
        ({"type": "categorical", "choices": ("a", "b", 2.0)}, 2.0, "b", 1.0),
    ],
)
def test_values_are_as_far_apart_as_their_range_says(fields, one, other, distance):
    parameter = Parameter("x", "x", source="here", default=one, **fields)
    assert _apart(parameter, one, other) == _apart(parameter, other, one) == distance


def judged(search: int, number: int, loss: float, budget: int = 8) -> Judged:
    place = {"strategy": "a", "sweep": "s", "study": "t|mbls"}
    return Judged(
        **place,
        search=search,
        budget=budget,
        number=number,
        loss=loss,
        default=0.5,
        best=0.3,
        distance=0.1,
    )


def test_choices_are_judged_by_default_best_and_rows() -> None:
    rows = [judged(0, 0, 0.5), judged(1, 4, 0.6), judged(2, 5, 0.4), judged(3, 7, 0.3)]
    early = [replace(row, budget=1, number=0, loss=0.5) for row in rows]
    settings = ReplaySettings(strategies={"a": {}}, searches=4)
    outcome = ReplayOutcome(settings, (), {}, [*early, *rows], {})
    (final,) = outcome.finals()
    assert (final.loss, final.default) == (pytest.approx(0.45), 0.5)
    assert (final.worse, final.kept, final.searches) == (0.25, 0.25, 4)
    assert final.regret == pytest.approx(0.15)
    assert 0.3 <= final.low < 0.45 < final.high <= 0.6
    first, last = outcome.summaries()
    assert (first.budget, first.kept, first.low, first.high) == (1, 1.0, 0.5, 0.5)
    assert last == replace(final, budget=8)
    other = [replace(row, study="t|ts", loss=row.loss + 0.1) for row in rows]
    (both,) = replace(outcome, judged=[*rows, *other]).finals()
    assert (both.searches, both.loss) == (8, pytest.approx(0.5))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("strategies: {}", "strategies: .*at least 1"),
        (
            "strategies: {a: {objektive: nll}}",
            "strategies.a: objektive: unknown key; near are: objective; ",
        ),
        (
            "strategies: {a: {scheduler: asha}}",
            "strategies.a: expected scheduler none, since a replay cannot stop trials early, "
            "got asha$",
        ),
        ("judge: refinement", "judge: input should be 'nll'"),
        ("", "the document is empty; a replay needs strategies$"),
        (
            "test: false",
            "`test: false` needs `validation`, the number of rows for the search; the other "
            "validation rows score its choices$",
        ),
        ("validation: 0", "validation: .* greater than or equal to 1, got 0"),
        ("searches: 0", "searches: .* greater than or equal to 1, got 0"),
        ("seed: -1", "seed: .* greater than or equal to 0, got -1"),
        (f"seed: {2**31}", f"seed: .* less than {2**31}, got {2**31}"),
    ],
)
def test_a_wrong_replay_file_is_refused_in_one_line(tmp_path, text, complaint):
    path = tmp_path / "replay.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"replay.yaml: {complaint}") as raised:
        load_replay(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("resample", "validation", "resampled"),
    [(True, None, True), (True, 50, False), (False, None, False), (False, 50, False)],
)
def test_rows_are_drawn_in_one_way(resample: bool, validation: int | None, resampled: bool) -> None:
    found = ReplaySettings(resample=resample, validation=validation)
    assert found.resampled == resampled
