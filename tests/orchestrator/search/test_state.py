import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from orchestrator.running.control import snapshot
from orchestrator.search.prior import LEAST
from orchestrator.search.state import SweepState
from orchestrator.search.study_state import (
    Ended,
    Past,
    StudyState,
    TrialMaker,
    TrialSpec,
    setting_of,
)
from orchestrator.storage.events import StudyClosed, StudyOpened, TrialFinished, TrialStarted
from orchestrator.storage.ledger import Ledger
from orchestrator.storage.results import results_of
from orchestrator.sweep.plan import make_plan
from orchestrator.sweep.spec import SplitModel, SweepSpec, parse_sweep
from orchestrator.tables.arrange import build_table
from trainables.common.stages import ArtifactRef
from trainables.data import PreparedData, SplitSpec, prepare
from trainables.metrics import calibration_report
from trainables.stages import ValidationRows

TASK = "digits/convnet/digits"


DATA: dict[str, PreparedData] = {}


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    DATA[TASK] = prepare("digits", folder, SplitSpec(), folder / "prepared")


# Of which random search finds its best in its second trial, with seed 4.
WIDE = {"mbls": {"margin": {"low": 0.0, "high": 20.0}, "weight": {"low": 0.001, "high": 1.0}}}


def make_spec(recipes: str = 'ce, mbls, "*+macal", "*+macal+ts"', **search: Any) -> SweepSpec:
    rules = {"trials": 5, "parallel_trials": 2, "objective": "ece", "keep_default": False, **search}
    text = f"""
name: state
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [{recipes}]
search: {rules}
seeds: [0, 1]
""".replace("None", "null").replace("False", "false")
    return parse_sweep(text, "state")


def make_state(
    spec: SweepSpec, data: dict[str, PreparedData] = DATA, **options: Any
) -> tuple[SweepState, list[dict[str, Any]]]:
    events: list[Any] = []
    return SweepState(make_plan(spec), "sweep", data, events.append, **options), events


def study_of(state: SweepState, recipe: str = "mbls") -> StudyState:
    return state.studies[f"{TASK}|{recipe}"]


def chosen_of(state: SweepState, recipe: str = "mbls", position: int = 0) -> Ended:
    found = study_of(state, recipe).seeds[position]
    assert found is not None
    return found


def taken(state: SweepState) -> TrialSpec:
    trial = state.next_trial()
    assert trial is not None
    return trial


def done(trial: TrialSpec, ece: float, acc: float) -> TrialFinished:
    metrics = {"val_ece": ece, "val_acc": acc}
    return trial.ending("finished", metrics, artifact=trial.request.key())


def measure(trial: TrialSpec) -> TrialFinished:
    noise = random.Random(repr(sorted(trial.parameters.items())) + str(trial.request.seed))
    return done(trial, noise.random() / 10, 0.95 + noise.random() / 50)


def drive(
    state: SweepState,
    workers: int,
    order: random.Random,
    measured: Callable[[TrialSpec], TrialFinished] = measure,
    stop_after: int | None = None,
) -> list[TrialSpec]:
    """Run a sweep with so many workers, which end in an arbitrary order."""
    running: list[TrialSpec] = []
    ended: list[TrialSpec] = []
    while not state.finished and len(ended) != stop_after:
        while len(running) < workers and (trial := state.next_trial()) is not None:
            running.append(trial)
        if not running:
            break
        trial = running.pop(order.randrange(len(running)))
        state.record(trial, measured(trial))
        ended.append(trial)
    return ended


def choices(state: SweepState) -> dict[str, Any]:
    return {
        name: study.chosen and (study.chosen.trial.number, study.chosen.trial.configuration)
        for name, study in state.studies.items()
    }


def test_every_study_runs_its_budget_and_the_default_first():
    state, events = make_state(make_spec())
    ended = drive(state, 3, random.Random(0))
    assert state.finished
    scored = [event.key for event in events if event.event == "trial_scored"]
    assert sorted(scored) == sorted(trial.key for trial in ended)  # Further seeds as well.
    for study in state.studies.values():
        numbers = range(study.plan.trials + 1)  # The last is a further seed.
        assert sorted(study.trials) == list(numbers)
    mbls = study_of(state)
    assert mbls.plan.trials == 5
    assert mbls.trials[0].parameters == {"mbls.margin": 6.0, "mbls.weight": 0.1}
    assert mbls.default_artifact == ("train", mbls.outcomes[0].artifact)
    assert mbls.outcomes[0].artifact
    ce = study_of(state, "ce")
    assert (ce.plan.trials, ce.default_artifact) == (1, None)  # nothing to search


@pytest.mark.parametrize(("workers", "pareto"), [(1, []), (2, []), (7, []), (7, ["acc"])])
def test_suggestions_do_not_depend_on_who_ends_first(workers, pareto):
    reference, _ = make_state(make_spec(pareto=pareto))
    drive(reference, 1, random.Random(0))
    state, _ = make_state(make_spec(pareto=pareto))
    drive(state, workers, random.Random(workers))
    assert choices(state) == choices(reference)
    for name, study in state.studies.items():
        expected = reference.studies[name].trials
        assert {n: t.parameters for n, t in study.trials.items()} == {
            n: t.parameters for n, t in expected.items()
        }


@pytest.mark.parametrize(
    ("train", "precision"),
    [
        ("gpu: 0", "float32"),
        ("gpu: 0.5", "bfloat16"),
        ("precision: bfloat16", "bfloat16"),
        ("gpu: 0.5, precision: float32", "float32"),
    ],
)
def test_trainings_on_a_gpu_use_bfloat16_by_default(train, precision):
    text = f"""
name: state
tasks: [{{dataset: digits, model: convnet, protocol: digits}}]
recipes: [ce+tst+ts]
search: {{trials: 1, objective: ece}}
resources: {{train: {{{train}}}, refine: {{gpu: 1}}}}
"""
    state, _ = make_state(parse_sweep(text, "state"))
    asked = [trial.request for trial in drive(state, 1, random.Random(0))]
    assert [r.stage for r in asked] == ["train", "refine", "calibrate"]
    assert [r.precision for r in asked] == [precision, "float32", "float32"]
    assert asked[1].upstream_request is not None
    assert asked[1].upstream_request["precision"] == precision


def test_a_study_builds_on_the_chosen_configuration():
    state, _ = make_state(make_spec())
    drive(state, 4, random.Random(1))
    chosen = chosen_of(state)
    for trial in study_of(state, "mbls+macal").trials.values():
        assert trial.configuration["mbls"] == chosen.trial.configuration["mbls"]
        same = chosen_of(state, position=trial.request.seed)
        assert trial.request.upstream == same.outcome.artifact


def test_short_stages_come_first_and_studies_of_one_stage_take_turns():
    spec = make_spec("mbls, fl, mbls+ts", trials=3, sampler="random")
    state, _ = make_state(spec)
    running: dict[str, TrialSpec] = {}

    def given(*ended: str) -> list[str]:
        for name in ended:
            state.record(running[name], measure(running[name]))
        names = []
        while (trial := state.next_trial()) is not None:
            names.append(f"{trial.study.split('|')[1]} {trial.number}")
            running[names[-1]] = trial
        return names

    assert given() == ["ce 0", "mbls 0", "fl 0", "mbls 1", "fl 1"]
    assert given("ce 0") == ["ce 1"]
    assert given("fl 0", "mbls 0") == ["mbls 2", "fl 2"]
    assert given("mbls 1", "mbls 2") == ["mbls+ts 0", "mbls 3"]
    assert given("mbls 3") == []  # The calibration of its seed waits for the first one.
    assert given("mbls+ts 0") == ["mbls+ts 1"]
    assert given("fl 1", "fl 2") == ["fl 3"]


def test_further_seeds_end_in_any_order_and_fail_alone():
    spec = make_spec("ce+ts", accuracy_tolerance=None).model_copy(update={"seeds": (0, 1, 2)})
    state, _ = make_state(spec)
    trained = taken(state)
    state.record(trained, measure(trained))
    calibrated, one, two = (taken(state) for _ in range(3))
    state.record(calibrated, measure(calibrated))
    assert (one.seed, two.seed) == (1, 2)
    state.record(two, measure(two))
    assert state.next_trial() is None  # Seeds are asked for in turn.
    state.record(one, one.ending("failed", {}, reason="nan"))
    last = taken(state)
    assert (last.seed, last.request.upstream) == (2, two.request.key())
    state.record(last, measure(last))
    assert state.finished
    ended = {name: study.seeds for name, study in state.studies.items()}
    for recipe in ("ce", "ce+ts"):
        found = ended[f"{TASK}|{recipe}"]
        numbers = sorted(state.studies[f"{TASK}|{recipe}"].trials)
        assert numbers == ([0, 1, 2] if recipe == "ce" else [0, 2])
        assert {place: own and own.trial.seed for place, own in found.items()} == {
            0: 0,
            1: None,
            2: 2,
        }


def test_without_a_finished_baseline_nothing_guards():
    def measured(trial: TrialSpec) -> TrialFinished:
        if trial.study.endswith("|ce"):
            return trial.ending("failed", {}, reason="nan")
        return done(trial, 0.1, 0.2)

    for recipes, succeeded in (("mbls", True), ("ce, mbls", False)):
        state, _ = make_state(make_spec(recipes))
        drive(state, 2, random.Random(0), measured)
        study = study_of(state)
        assert set(study.objectives.values()) == {0.1}
        assert (state.finished, state.succeeded) == (True, succeeded)


def test_a_key_names_a_trial_of_one_sweep_for_ever():
    spec = make_spec("ce, mbls")
    calls = list(product(make_plan(spec), (0, 1), (0, 1)))
    keys = [
        TrialMaker(sweep, spec, DATA).make(plan, number, {}, None, seed).key
        for sweep in ("one", "two", "one")
        for plan, number, seed in calls
    ]
    assert keys[:8] == keys[16:]
    assert len(set(keys)) == 16


def test_an_opened_study_has_all_that_reproduces_its_trials():
    spec = parse_sweep(
        """
name: state
tasks:
  - name: digits/convnet/digits
    dataset: digits
    model: convnet
    protocol: {base: digits, epochs: 7}
recipes: [wide+ts]
variants: {wide: {of: mbls, fixed: {margin: 9.0}}}
search: {trials: 5, parallel_trials: 3, seed: 5, keep_default: 1.5, objective: ece}
seeds: [3, 4]
resources: {deterministic: true, refine: {cpu: 2}}
""",
        "state",
    )
    (task,) = spec.tasks
    _, events = make_state(spec)
    ce, wide, ts = (event for event in events if event.event == "study_opened")
    assert [(e.study, e.recipe, e.trials, e.block) for e in (ce, wide, ts)] == [
        (f"{TASK}|ce", "ce", 1, 1),
        (f"{TASK}|wide", "wide", 5, 1),
        (f"{TASK}|wide+ts", "wide+ts", 1, 3),
    ]
    assert [(e.upstream, e.row) for e in (ce, wide, ts)] == [
        (None, False),
        (None, False),
        (wide.study, True),
    ]
    one = {"cpu": 1, "gpu": 0.0}
    for event in (ce, wide, ts):
        assert (event.task, event.dataset, event.model, event.protocol) == (
            TASK,
            "digits",
            "convnet",
            "digits-custom",
        )
        assert event.fingerprint == DATA[TASK].key
        assert event.setting == setting_of(task, DATA[TASK])
        assert event.rule == {
            "objective": "val_ece",
            "accuracy_tolerance": 0.01,
            "epoch": task.resolved_protocol.keep,
            "tie": "earlier trial",
            "keep_default": 1.5,
        }
        assert event.origin == {
            "dataset": "digits",
            "split": task.split_spec.to_dict(),
            "seeds": [3, 4],
            "inputs": {},
            "protocol": task.resolved_protocol.to_dict(),
            "variants": {} if event is ce else {"wide": "mbls"},
            "resources": {
                "given": one,
                "train": {**one, "processes": 1, "precision": None},
                "refine": {"cpu": 2, "gpu": 0.0},
                "calibrate": one,
            },
            "deterministic": True,
        }


def test_a_variant_is_computed_as_its_method():
    spec = parse_sweep(
        """
name: state
tasks: [{dataset: digits, model: convnet, protocol: digits}]
recipes: [wide]
variants: {wide: {of: mbls, fixed: {margin: 9.0}}}
search: {trials: 1, accuracy_tolerance: null, objective: ece}
""",
        "state",
    )
    state, _ = make_state(spec)
    (trial,) = drive(state, 1, random.Random(0))
    assert list(trial.request.parts) == ["mbls"]
    assert trial.request.parts["mbls"] == trial.configuration["wide"]
    assert trial.configuration["wide"]["margin"] == 9.0


def test_a_score_is_written_again_if_its_error_changed():
    state, events = make_state(make_spec("ce"))
    drive(state, 1, random.Random(0))
    scored = next(event for event in events if event.event == "trial_scored")
    past = Past(Ledger(events))
    assert past.holds(scored)
    for other in (replace(scored, error=0.5), replace(scored, objective=0.5)):
        assert not past.holds(other)


def test_every_task_has_data_of_its_own(tmp_path):
    (task,) = make_spec().tasks
    names = {"a": "digits", "b": "npz:/data/mine.npz"}
    tasks = tuple(
        task.model_copy(update={"name": n, "dataset": d, "inputs": {"of": n}})
        for n, d in names.items()
    )
    other = prepare("digits", tmp_path, SplitSpec(seed=1), tmp_path)
    own = {"b": other, "a": DATA[TASK]}
    spec = make_spec("ce, ce+ts").model_copy(update={"tasks": tasks})
    state, events = make_state(spec, own)
    asked = drive(state, 2, random.Random(0))
    opened = [event for event in events if event.event == "study_opened"]
    assert [event.study for event in opened] == ["a|ce", "a|ce+ts", "b|ce", "b|ce+ts"]
    for event in opened:
        plan = state.studies[event.study].plan
        assert event.fingerprint == own[event.task].key
        assert event.dataset == {"a": "digits", "b": "mine"}[event.task]
        assert event.origin["inputs"] == {"of": event.task}
        assert event.setting == setting_of(plan.task, own[event.task])
    for trial in asked:
        assert trial.request.data == str(own[trial.study[0]].directory)


def test_results_on_other_data_with_another_network_or_protocol_are_not_compared(tmp_path):
    (task,) = make_spec().tasks
    other = prepare("digits", tmp_path, SplitSpec(seed=1), tmp_path)
    changes: list[dict[str, Any]] = [
        {},
        {"model": "resnet8"},
        {"protocol": {"base": "digits", "lr": 0.5}},
        {"protocol": {"base": "digits", "lr": 0.25}},
    ]
    tasks = [task.model_copy(update=change) for change in changes]
    settings = [setting_of(one, DATA[TASK]) for one in tasks] + [setting_of(task, other)]
    assert len(set(settings)) == 5
    named = task.model_copy(update={"name": "else", "suites": ("ood-svhn",)})
    assert setting_of(named, DATA[TASK]) == settings[0]


def test_the_search_may_have_a_seed_and_a_split_of_its_own(tmp_path):
    spec = make_spec("mbls, mbls+ts", trials=2, seed=7, accuracy_tolerance=None)
    task = spec.tasks[0].model_copy(update={"split": SplitModel(vary=True)})
    spec = spec.model_copy(update={"tasks": (task,)})
    seeds = spec.all_seeds
    rows = {
        task.data_name(seed): prepare("digits", tmp_path, task.split_on(seed, False), tmp_path)
        for seed in seeds
    }
    assert (seeds, len({found.key for found in rows.values()})) == ((7, 0, 1), 3)
    assert len({found.test().labels.tobytes() for found in rows.values()}) == 1
    state, events = make_state(spec, rows)
    asked = [(trial.role, trial.request) for trial in drive(state, 1, random.Random(0))]
    assert state.finished
    assert {r.seed for role, r in asked if role == "search"} == {7}
    assert {r.data for _, r in asked if r.seed == 7} == {str(rows[f"{TASK} 7"].directory)}
    assert {r.data for _, r in asked if r.seed == 1} == {str(rows[f"{TASK} 1"].directory)}
    opened = [event for event in events if event.event == "study_opened"]
    assert all(event.origin["seeds"] == [0, 1] for event in opened)
    assert {event.fingerprint for event in opened} == {rows[f"{TASK} 7"].key}
    assert all(event.origin["splits"]["7"]["validation_seed"] == 7 for event in opened)
    assert all(event.origin["split"] == event.origin["splits"]["7"] for event in opened)
    for study in state.studies.values():
        assert [found.trial.seed for found in study.seeds.values() if found] == [7, 0, 1]


@pytest.mark.parametrize("own", [None, 0])
def test_a_study_of_given_logits_is_opened_with_the_rows_of_every_seed(own):
    text = "name: state\ntasks: [{logits: rows.npz}]\nrecipes: [spline]\nseeds: [3, 4]\n"
    spec = parse_sweep(text, "state")
    (task,) = spec.tasks
    fields = {"key": "a", "split": SplitSpec(validation_seed=own), "copies": None}
    rows = cast(PreparedData, SimpleNamespace(**fields))
    _, events = make_state(spec, {task.data_name(seed): rows for seed in (3, 4)})
    splits = {str(seed): task.split_on(seed, whole=own is None).to_dict() for seed in (3, 4)}
    assert [event.origin["splits"] for event in events] == [splits] * 2


def test_a_study_is_opened_with_the_copies_in_its_data():
    assert DATA[TASK].copies is not None
    some = DATA[TASK].copies._replace(test=5, train=5)
    for copies, known in ((DATA[TASK].copies, None), (some, some.lines())):
        _, events = make_state(make_spec(), {TASK: replace(DATA[TASK], copies=copies)})
        assert {str(event.origin.get("copies")) for event in events} == {str(known)}


def test_the_lowest_guarded_objective_wins():
    def measured(trial: TrialSpec) -> TrialFinished:
        if trial.number == 3:
            return done(trial, 0.01, 0.90)
        return done(trial, 0.03 + trial.number / 1000, 0.97)

    guarded, _ = make_state(make_spec("ce, mbls", accuracy_tolerance=0.01))
    drive(guarded, 2, random.Random(0), measured)
    assert chosen_of(guarded).trial.number == 0
    assert study_of(guarded).objectives[3] == pytest.approx(0.01 + (0.97 - 0.01 - 0.90))

    free, _ = make_state(make_spec("ce, mbls", accuracy_tolerance=None))
    drive(free, 2, random.Random(0), measured)
    assert chosen_of(free).trial.number == 3
    # What it would have chosen of fewer trials.
    earlier = [free.scores.choice(study_of(free), trials)[0] for trials in range(6)]
    assert [one and one.trial.number for one in earlier] == [None, 0, 0, 0, 3, 3]


@pytest.mark.parametrize("order", range(4))
def test_every_seed_is_guarded_by_its_own_baseline(order):
    accuracy = {"ce": (0.97, 0.80, 0.90), "mbls": (0.965, 0.70, 0.95)}

    def measured(trial: TrialSpec) -> TrialFinished:
        if (trial.study.endswith("|ce"), trial.seed) == (True, 3):
            return trial.ending("failed", {}, reason="nan")
        return done(trial, 0.03, [*accuracy[trial.study.rpartition("|")[2]], 0.5][trial.seed])

    spec = make_spec("ce, mbls", accuracy_tolerance=0.01)
    spec = spec.model_copy(update={"seeds": (0, 1, 2, 3)})
    state, events = make_state(spec)
    drive(state, 1 + order, random.Random(order), measured)
    assert state.finished
    study = study_of(state)
    found = [study.seeds[position] for position in range(4)]
    # The last seed's baseline failed: nothing guards it.
    expected = [0.03, 0.03 + 0.80 - 0.01 - 0.70, 0.03, 0.03]
    assert [one and one.objective for one in found] == pytest.approx(expected)
    scores = {event.key: event.objective for event in events if event.event == "trial_scored"}
    assert [scores[one.trial.key] for one in found if one] == pytest.approx(expected)


def test_an_objective_of_zero_is_the_lowest():
    def measured(trial: TrialSpec) -> TrialFinished:
        return done(trial, 0.0 if trial.number == 2 else 0.02, 0.97)

    state, _ = make_state(make_spec("mbls"))
    drive(state, 2, random.Random(0), measured)
    chosen = chosen_of(state)
    assert (chosen.trial.number, chosen.objective) == (2, 0.0)


def test_failed_trials_count_and_the_study_goes_on():
    def measured(trial: TrialSpec) -> TrialFinished:
        if trial.study.endswith("|mbls") and trial.number in (0, 2):
            return trial.ending("failed", {}, reason=f"loss of {trial.number} became nan")
        return measure(trial)

    state, events = make_state(make_spec())
    drive(state, 1, random.Random(0), measured)
    closed = [e for e in events if e.event == "study_closed" and e.study == f"{TASK}|mbls"]
    assert [(e.finished, e.failed, e.reason) for e in closed] == [(3, 2, "loss of 0 became nan")]
    assert state.finished
    again, later = make_state(make_spec(), past=Ledger(events))
    assert again.take_over()
    assert (again.finished, later) == (True, [])
    objectives = study_of(again).objectives
    assert [number for number, found in objectives.items() if math.isinf(found)] == [0, 2]


def test_the_reason_is_that_of_the_first_failed_trial_by_number():
    spec = make_spec("mbls", trials=3, parallel_trials=3, accuracy_tolerance=None)
    state, events = make_state(spec)
    for trial in reversed([taken(state) for _ in range(3)]):
        failed = trial.ending("failed", {}, reason=f"loss of {trial.number} became nan")
        state.record(trial, failed)
    (closed,) = [event for event in events if event.event == "study_closed"]
    assert closed.reason == "loss of 0 became nan"
    again, later = make_state(spec, past=Ledger(events))
    assert again.take_over()
    assert (again.finished, later) == (True, [])


def test_nothing_is_built_on_a_study_without_a_finished_trial():
    def measured(trial: TrialSpec) -> TrialFinished:
        failed = trial.ending("failed", {}, reason="out of memory")
        return failed if trial.study.endswith("|mbls") else measure(trial)

    state, events = make_state(make_spec())
    drive(state, 3, random.Random(0), measured)
    assert state.finished
    for recipe in ("mbls", "mbls+macal", "mbls+macal+ts"):
        assert state.studies[f"{TASK}|{recipe}"].chosen is None
    closed = {event.study: event for event in events if event.event == "study_closed"}
    assert "mbls" in closed[f"{TASK}|mbls+macal+ts"].reason
    assert study_of(state, "ce+macal+ts").chosen is not None


@pytest.mark.parametrize("stop_after", [0, 1, 4, 11, 17])
def test_a_resumed_sweep_repeats_nothing_and_chooses_the_same(stop_after):
    whole, _ = make_state(make_spec())
    drive(whole, 2, random.Random(0))
    first, events = make_state(make_spec())
    before = {trial.key for trial in drive(first, 2, random.Random(5), stop_after=stop_after)}

    again, later = make_state(make_spec(), past=Ledger(events))
    after = {trial.key for trial in drive(again, 3, random.Random(6))}
    assert not before & after
    assert again.taken_over == len(before) == stop_after
    assert choices(again) == choices(whole)
    keys = [e.key for e in [*events, *later] if e.event == "trial_finished"]
    assert len(keys) == len(set(keys))


def test_a_finished_trial_without_its_artifact_runs_again():
    first, events = make_state(make_spec("ce"))
    drive(first, 1, random.Random(0))
    again, later = make_state(make_spec("ce"), past=Ledger(events), available=lambda ref: False)
    assert len(drive(again, 1, random.Random(0))) == 2
    # Whoever heard of a new start hears of the new end.
    assert [event.event for event in later] == ["trial_started", "trial_finished"] * 2


def faulty(trial: TrialSpec) -> TrialFinished:
    """Have the machine fail some trials, and the configuration of another one fail."""
    if trial.study.endswith("|mbls") and trial.number == 1:
        return trial.ending("failed", {}, reason="OSError: x", fault="machine")
    if trial.study.endswith("|mbls") and trial.number == 3:
        return trial.ending("failed", {}, reason="loss became nan")
    return measure(trial)


def nan(trial: TrialSpec) -> TrialFinished:
    outcome = faulty(trial)
    return measure(trial) if outcome.fault else outcome


def test_a_trial_that_the_machine_failed_runs_again():
    spec = make_spec("ce, mbls", sampler="random", spaces=WIDE, seed=4)
    whole, _ = make_state(spec)
    drive(whole, 2, random.Random(0), nan)
    first, events = make_state(spec)
    before = drive(first, 2, random.Random(0), faulty)
    again, later = make_state(spec, past=Ledger(events))
    tried, *others = drive(again, 2, random.Random(1), nan)
    assert [trial.role for trial in others] == ["seed"] * 2  # It is the best one, as it turns out.
    assert (tried.study, tried.number, tried.role) == (f"{TASK}|mbls", 1, "search")
    assert tried.key in {trial.key for trial in before}
    assert choices(again) == choices(whole)
    ends = [(e.key, e.status) for e in later if e.event == "trial_finished"]
    assert ends == [(trial.key, "finished") for trial in (tried, *others)]
    closed = [e for e in later if e.event == "study_closed"]
    assert [(e.study, e.finished, e.failed) for e in closed] == [(f"{TASK}|mbls", 4, 1)]

    settled, nothing = make_state(spec, past=Ledger([*events, *later]))
    assert settled.next_trial() is None
    assert settled.finished
    assert nothing == []
    assert choices(settled) == choices(whole)


def test_a_repeated_machine_fault_does_not_close_the_study_again():
    spec = make_spec("ce, mbls", sampler="random")
    first, events = make_state(spec)
    drive(first, 2, random.Random(0), faulty)
    again, later = make_state(spec, past=Ledger(events))
    drive(again, 2, random.Random(0), faulty)
    assert again.finished
    kinds = [e.event for e in later]
    assert kinds == ["trial_started", "trial_finished"]
    assert choices(again) == choices(first)


def test_suggestions_stay_the_same_if_a_trial_runs_again():
    """Only what the machine has failed is computed again; the best of all trials is chosen."""
    spec = make_spec("ce, mbls", trials=8)
    first, events = make_state(spec)
    drive(first, 2, random.Random(0), faulty)
    again, _ = make_state(spec, past=Ledger(events))
    ran = [trial for trial in drive(again, 2, random.Random(0), nan) if trial.role == "search"]
    assert [(trial.study, trial.number) for trial in ran] == [(f"{TASK}|mbls", 1)]
    before, after = study_of(first), study_of(again)
    for number in range(8):
        assert after.trials[number].parameters == before.trials[number].parameters
    finished = {n: value for n, value in after.objectives.items() if n != 3}
    assert sorted(finished) == [0, 1, 2, 4, 5, 6, 7]
    assert chosen_of(again).trial.number == min(finished, key=finished.__getitem__)


def test_while_a_trial_has_to_run_again_nothing_is_dispensable():
    """With its outcome another one may be chosen, or be worth more."""
    spec = make_spec("ce, mbls", sampler="random")
    first, events = make_state(spec)
    drive(first, 2, random.Random(0), faulty)
    again, _ = make_state(spec, past=Ledger(events), available=lambda ref: False)
    assert len(drive(again, 2, random.Random(0))) == len(study_of(first).trials) + 1


def test_machine_faults_are_not_retried_if_another_trial_failed_by_itself():
    def measured(trial: TrialSpec) -> TrialFinished:
        fault = "machine" if trial.number == 0 else ""
        return trial.ending("failed", {}, reason=f"{trial.number} failed", fault=fault)

    state, events = make_state(make_spec("ls", trials=2, accuracy_tolerance=None))
    drive(state, 1, random.Random(0), measured)
    assert [e.reason for e in events if e.event == "study_closed"] == ["0 failed"]


def test_a_study_that_the_machine_failed_says_so():
    def broken(trial: TrialSpec) -> TrialFinished:
        reason = f"OSError: {'xyz'[trial.number]}"
        return trial.ending("failed", {}, reason=reason, fault="machine")

    state, events = make_state(make_spec("ce, ce+ts"))
    drive(state, 2, random.Random(0), broken)
    (closed, following) = [e.reason for e in events if e.event == "study_closed"]
    assert closed == "the machine failed (resume the sweep to try again): OSError: x"
    assert following == f"{TASK}|ce has no finished trial to build on"
    several, ends = make_state(make_spec("ls", trials=2, accuracy_tolerance=None))
    drive(several, 1, random.Random(0), broken)
    assert [e.reason for e in ends if e.event == "study_closed"] == [closed]
    again, later = make_state(make_spec("ce, ce+ts"), past=Ledger(events))
    drive(again, 2, random.Random(0))
    assert [e.reason for e in later if e.event == "study_closed"] == ["", ""]
    assert all(study.chosen is not None for study in again.studies.values())


def test_a_closed_study_needs_only_the_chosen_artifacts():
    spec = make_spec("ce, mbls")
    whole, events = make_state(spec)
    drive(whole, 2, random.Random(0))
    kept = {
        chosen.outcome.artifact
        for study in whole.studies.values()
        for chosen in study.seeds.values()
        if chosen is not None
    }
    again, _ = make_state(spec, past=Ledger(events), available=lambda ref: ref.key in kept)
    assert again.next_trial() is None
    assert again.finished
    assert choices(again) == choices(whole)
    # The runs of further seeds are chosen too.
    seed = chosen_of(whole, "mbls", 1)
    again, _ = make_state(
        spec, past=Ledger(events), available=lambda ref: ref.key in kept - {seed.outcome.artifact}
    )
    assert [trial.key for trial in drive(again, 1, random.Random(0))] == [seed.trial.key]


def test_a_choice_that_is_given_up_is_chosen_again_when_resumed():
    state, events = make_state(make_spec("ce, mbls"))
    drive(state, 2, random.Random(0))
    before, journal = choices(state), []
    for _ in range(2):
        state.give_up(f"{TASK}|mbls", "not measured")
        assert not state.succeeded
        journal += events
        study = Ledger(journal).studies[f"{TASK}|mbls"]
        assert (study.status, study.chosen, study.reason) == ("failed", None, "not measured")
        assert (study.finished, study.failed) == (5, 0)  # Of the search, without further seeds.
        state, events = make_state(make_spec("ce, mbls"), past=Ledger(journal))
        assert state.take_over()
        assert (choices(state), state.succeeded) == (before, True)
    assert Ledger([*journal, *events]).studies[f"{TASK}|mbls"].status == "finished"


def test_a_choice_that_was_given_up_is_computed_again_where_its_artifacts_are_gone():
    state, events = make_state(make_spec("ce, mbls"))
    drive(state, 2, random.Random(0))
    before = choices(state)
    state.give_up(f"{TASK}|mbls", "not measured")
    again, _ = make_state(make_spec("ce, mbls"), past=Ledger(events), available=lambda ref: False)
    # Each trial may be the one that is chosen, so each is needed.
    ended = drive(again, 2, random.Random(0))
    assert {trial.number for trial in ended if trial.study == f"{TASK}|mbls"} == {*range(6)}
    assert choices(again) == before


def test_refinements_come_in_blocks_that_one_pass_computes():
    spec = make_spec('"ce+macal"', trials=5, parallel_trials=3)
    state, _ = make_state(spec)
    trained = taken(state)
    assert trained.request.together == []
    state.record(trained, measure(trained))
    first = next_refinement(state)
    assert first is not None
    assert next_refinement(state) is None  # The others wait for it.
    assert study_of(state, "ce+macal").running == 1
    state.record(first, measure(first))
    others = [next_refinement(state), next_refinement(state)]
    block = (first, *(trial for trial in others if trial is not None))
    assert [trial.number for trial in block] == [0, 1, 2]
    parts = [trial.request.parts for trial in block]
    assert [trial.request.together for trial in block] == [parts] * 3
    assert next_refinement(state) is None  # The next block waits for the results of this one.
    for trial in block[1:]:
        state.record(trial, measure(trial))
    last = next_refinement(state)
    assert last is not None
    assert (last.number, len(last.request.together)) == (3, 2)


def next_refinement(state: SweepState) -> TrialSpec | None:
    while (trial := state.next_trial()) is not None and trial.request.stage != "refine":
        state.record(trial, measure(trial))
    return trial


def test_a_pass_whose_first_member_fails_is_computed_again_by_one_other_member():
    state, _ = make_state(make_spec('"ce+macal"', trials=4, parallel_trials=4))
    first = next_refinement(state)
    assert first is not None
    state.record(first, first.ending("failed", {}, reason="diverged"))
    second = next_refinement(state)
    assert second is not None
    assert (second.number, second.request.together) == (1, first.request.together)
    assert next_refinement(state) is None
    state.record(second, measure(second))
    assert [trial and trial.number for trial in map(next_refinement, (state, state))] == [2, 3]


@pytest.mark.parametrize(("sampler", "block"), [("tpe", 3), ("random", 5)])
def test_a_sampler_that_does_not_learn_has_wide_blocks(sampler, block):
    spec = make_spec('"ce+macal"', trials=5, parallel_trials=3, sampler=sampler)
    state, _ = make_state(spec)
    ended = drive(state, 4, random.Random(0))
    (first,) = [t for t in ended if t.number == 0 and t.study == f"{TASK}|ce+macal"]
    assert len(first.request.together) == block


def test_a_wide_block_is_several_passes_side_by_side(monkeypatch):
    monkeypatch.setattr("orchestrator.search.state.PASS", 2)
    state, _ = make_state(make_spec('"ce+macal"', trials=5, sampler="random"))
    while not (trial := state.next_trial()) or trial.request.stage != "refine":
        assert trial is not None
        state.record(trial, measure(trial))
    passes = [trial, state.next_trial(), state.next_trial()]
    sizes = [one and (one.number, len(one.request.together)) for one in passes]
    assert sizes == [(0, 2), (2, 2), (4, 0)]
    assert passes[1] is not None
    state.record(passes[1], measure(passes[1]))
    carried = taken(state)
    assert carried.number == 3


def test_under_a_scheduler_every_refinement_runs_on_its_own():
    state, _ = make_state(make_spec('"ce+macal"', scheduler="asha"))
    assert all(trial.request.together == [] for trial in drive(state, 2, random.Random(0)))


@pytest.mark.parametrize(("recipe", "block"), [("ce+vs", 3), ("ce+spline", 1)])
def test_calibrations_are_computed_one_by_one_and_some_suggested_in_blocks(recipe, block):
    state, _ = make_state(make_spec(f'"{recipe}"', parallel_trials=3))
    assert state.studies[f"{TASK}|{recipe}"].search.block == block
    ended = [t for t in drive(state, 4, random.Random(0)) if t.study.endswith(recipe)]
    assert len(ended) > 3
    assert all(trial.request.together == [] for trial in ended)


def test_a_resumed_study_keeps_the_blocks_that_it_was_begun_with(monkeypatch):
    """Else its sampler, which hears of results a block at a time, would suggest other points."""
    spec = make_spec('"ce+vs"', trials=8, parallel_trials=4)
    whole, _ = make_state(spec)
    first, events = make_state(spec)
    drive(whole, 2, random.Random(0))
    before = {trial.key for trial in drive(first, 1, random.Random(1), stop_after=7)}
    monkeypatch.setattr("orchestrator.search.study._block", lambda plan, rules: 3)
    again, _ = make_state(spec, past=Ledger(events))
    after = {trial.key for trial in drive(again, 1, random.Random(2))}
    assert not before & after
    assert again.taken_over == 7
    assert choices(again) == choices(whole)


def test_a_study_closes_again_if_other_trials_were_counted_since():
    begun = StudyOpened(study="t|ce", task="t", recipe="ce", trials=1, row=True)
    trials = [
        TrialStarted(
            study="t|ce", number=0, key=key, role="search", seed=0, stage="train", configuration={}
        )
        for key in ("one", "other")
    ]
    ends = [TrialFinished(key=key, status="finished", metrics={}) for key in ("one", "other")]
    close = StudyClosed(study="t|ce", chosen="one", finished=1, failed=0)
    told = [begun, trials[0], ends[0], close]
    assert Past(Ledger(told)).holds(close)
    assert not Past(Ledger([*told, trials[1], ends[1]])).holds(close)


def predict(trial: TrialSpec) -> torch.Tensor:
    """Stand in for validation logits, of 100 rows of class 0: some wrong, the default's most."""
    noise = random.Random(trial.request.key())
    logits = torch.zeros(100, 2)
    logits[:, 0] = 1 + noise.random() / 5
    logits[: 3 if trial.study.endswith("|ce") else 12 - trial.number % 5, 0] *= -1
    return logits


class Rows:
    """Keeps what trials predict, where each image is so many rows alike."""

    def __init__(self, copies: int = 1) -> None:
        self.copies, self.known = copies, dict[str, torch.Tensor]()

    def measured(self, trial: TrialSpec) -> TrialFinished:
        rows = self.known[trial.request.key()] = predict(trial)
        report = calibration_report(logits=rows, labels=torch.zeros(100, dtype=torch.long))
        metrics = {f"val_{name}": value for name, value in report.items()}
        return trial.ending("finished", metrics, artifact=trial.request.key())

    def predictions(self, ref: ArtifactRef) -> ValidationRows:
        rows = self.known[ref.key].repeat_interleave(self.copies, 0)
        images = torch.arange(100).repeat_interleave(self.copies) if self.copies > 1 else None
        return ValidationRows(rows, torch.zeros(len(rows), dtype=torch.long), images)


RULES = {"objective": "nll", "accuracy_errors": 1.0, "keep_default": True}


def test_configurations_are_compared_row_by_row():
    kept = Rows()
    spec, known = make_spec("ce, mbls", **RULES), kept.known
    state, events = make_state(spec, predictions=kept.predictions)
    drive(state, 2, random.Random(0), kept.measured)
    study = study_of(state)
    plain = chosen_of(state, "ce")
    rows = {number: known[outcome.artifact] for number, outcome in study.outcomes.items()}
    right = (known[plain.outcome.artifact].argmax(1) == 0).double()
    lost = {n: right - (logits.argmax(1) == 0).double() for n, logits in rows.items()}
    nll = {n: -logits.double().log_softmax(1)[:, 0] for n, logits in rows.items()}
    for number, objective in study.objectives.items():
        # The tolerance and one standard error of the rows that are lost are not charged.
        charged = float(lost[number].mean()) - 0.01 - float(lost[number].std()) / 10
        assert objective == pytest.approx(float(nll[number].mean()) + charged)
    best = min(study.objectives, key=lambda number: study.objectives[number])
    change = nll[0] + lost[0] - nll[best] - lost[best]
    difference = study.objectives[0] - study.objectives[best]
    assert study.margin == pytest.approx((difference, float(change.std()) / 10))
    assert study.chosen is not None
    assert study.chosen.trial.number == (best if study.margin.clear(1.0) else 0)
    assert study.chosen.objective == study.objectives[study.chosen.trial.number]
    scores = {event.key: event.objective for event in events if event.event == "trial_scored"}
    further = study.seeds[1]
    assert further is not None
    assert further.objective == scores[further.trial.key]

    # Resumed after the artifacts of what was not chosen are gone, it decides nothing anew.
    for number in study.outcomes:
        if study.trials[number].role == "search" and number != study.chosen.trial.number:
            del known[study.outcomes[number].artifact]
    again, later = make_state(spec, past=Ledger(events), predictions=kept.predictions)
    assert again.next_trial() is None
    assert again.finished
    assert later == []
    assert choices(again) == choices(state)


def near(trial: TrialSpec) -> torch.Tensor:
    margin = trial.parameters.get("mbls.margin", 9.0)
    rows = torch.linspace(-2, 4, 100, dtype=torch.double) - abs(margin - 9) / 20
    return torch.stack([rows, torch.zeros_like(rows)], dim=1)


def stopping(kept: Rows, **options: Any) -> tuple[SweepState, list[Any]]:
    rules = {"objective": "nll", "stop": "auto", "trials": 20, "parallel_trials": 3}
    spec = make_spec("ce, mbls", sampler="prior", **rules)
    return make_state(spec, predictions=kept.predictions, **options)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> tuple[Rows, SweepState, list[Any]]:
    monkeypatch.setitem(globals(), "predict", near)
    kept = Rows()
    state, events = stopping(kept)
    drive(state, 1, random.Random(0), kept.measured)
    return kept, state, events


def test_a_search_stops_when_too_little_is_left_to_gain(stopped):
    _, state, events = stopped
    study = study_of(state)
    assert LEAST <= len(study.objectives) < 20
    closed = next(e for e in events if e.event == "study_closed" and e.study == study.plan.id)
    assert closed.finished == len(study.objectives)
    assert study.chosen == min(map(study.ended, study.objectives), key=lambda one: one.objective)
    result = next(r for r in results_of(Ledger(events)) if r.recipe == "mbls")
    assert result.stopped == closed.finished
    line = f"mbls: search stopped after {closed.finished} of 20 trials (too little left to gain)"
    assert line in build_table([result]).notes()
    # One further seed of each recipe.
    assert snapshot(state).trials == snapshot(state).all_trials == closed.finished + 1 + 2


@pytest.mark.parametrize("workers", [2, 5])
def test_a_search_stops_at_the_same_trial_whoever_ends_first(stopped, workers):
    kept, reference, _ = stopped
    state, _ = stopping(kept)
    drive(state, workers, random.Random(workers), kept.measured)
    assert choices(state) == choices(reference)
    assert study_of(state).objectives == study_of(reference).objectives


@pytest.mark.parametrize("stop_after", [5, 9, 10, 11, 14])
def test_a_resumed_search_stops_at_the_same_trial(stopped, stop_after):
    kept, reference, _ = stopped
    first, events = stopping(kept)
    drive(first, 3, random.Random(5), kept.measured, stop_after)
    again, _ = stopping(kept, past=Ledger(events))
    drive(again, 2, random.Random(6), kept.measured)
    assert choices(again) == choices(reference)
    assert study_of(again).objectives == study_of(reference).objectives


def test_a_search_with_equal_trials_stops_after_the_least_number(monkeypatch):
    monkeypatch.setitem(globals(), "predict", lambda trial: torch.eye(2).repeat(50, 1))
    kept = Rows()
    state, _ = stopping(kept)
    drive(state, 2, random.Random(0), kept.measured)
    assert sorted(study_of(state).objectives) == list(range(LEAST))


def test_a_search_without_finished_trials_runs_them_all():
    state, _ = stopping(Rows())
    drive(state, 2, random.Random(0), lambda t: t.ending("failed", {}, reason="NaN"))
    assert len(study_of(state).objectives) == 20


def test_a_resumed_search_that_has_stopped_compares_no_rows(stopped):
    _, reference, events = stopped
    again, later = make_state(reference.plan.spec, past=Ledger(events))  # without predictions
    drive(again, 1, random.Random(0))
    assert choices(again) == choices(reference)
    assert not later


def test_accuracy_without_a_penalty_adds_no_standard_error():
    kept = Rows()
    spec = make_spec("ce, mbls", **RULES, accuracy_tolerance=1.0)
    state, _ = make_state(spec, predictions=kept.predictions)
    drive(state, 2, random.Random(0), kept.measured)
    study = study_of(state)
    best = min(study.objectives, key=lambda number: study.objectives[number])
    nll = [-kept.known[study.outcomes[n].artifact].double().log_softmax(1)[:, 0] for n in (0, best)]
    change = nll[0] - nll[1]
    assert best != 0
    assert study.margin == pytest.approx((float(change.mean()), float(change.std()) / 10))


def test_a_trial_that_was_stopped_is_guarded_without_its_rows():
    def predictions(ref: ArtifactRef) -> ValidationRows:
        assert ref.key, "a stopped trial has none"
        return ValidationRows(torch.zeros(100, 2), torch.zeros(100, dtype=torch.long))

    def measured(trial: TrialSpec) -> TrialFinished:
        if trial.study.endswith("|mbls") and trial.number == 1:
            return trial.ending("pruned", {"val_ece": 0.05, "val_acc": 0.5})
        return done(trial, 0.1, 0.9)

    spec = make_spec("ce, mbls", accuracy_errors=1.0)
    state, events = make_state(spec, predictions=predictions)
    drive(state, 2, random.Random(0), measured)
    study = study_of(state)
    assert study.objectives[1] == pytest.approx(0.05 + 0.9 - 0.01 - 0.5)
    (scored,) = [e for e in events if getattr(e, "key", "") == study.trials[1].key][2:]
    assert scored.error is None
    closed = [e for e in events if e.event == "study_closed" and e.study == study.plan.id]
    assert [(e.finished, e.failed) for e in closed] == [(4, 0)]


def test_pixels_are_compared_image_by_image():
    """Where an image is one row three times over, the errors are those of the rows."""
    margins, objectives = [], []
    for copies in (1, 3):
        kept = Rows(copies)
        state, _ = make_state(make_spec("ce, mbls", **RULES), predictions=kept.predictions)
        drive(state, 2, random.Random(0), kept.measured)
        study = study_of(state)
        margins.append(study.margin)
        objectives.append(study.objectives)
    assert margins[1] == pytest.approx(margins[0])
    assert objectives[1] == pytest.approx(objectives[0])


def test_a_default_that_is_not_published_is_kept_only_in_sweeps_that_began_so():
    spec = make_spec("ce, ce+macal", keep_default=2.0)
    state, events = make_state(spec)
    assert study_of(state, "ce").rule.keep_default == 2.0
    assert study_of(state, "ce+macal").rule.keep_default == 0.0
    opened = next(e for e in events if e.event == "study_opened" and e.recipe == "ce+macal")
    assert "keep_default" not in opened.rule
    again, _ = make_state(spec, past=Ledger(events))
    assert study_of(again, "ce+macal").rule.keep_default == 0.0
    opened.rule = {**opened.rule, "keep_default": 2.0}  # As an earlier release wrote it.
    earlier, _ = make_state(spec, past=Ledger(events))
    assert study_of(earlier, "ce+macal").rule.keep_default == 2.0
