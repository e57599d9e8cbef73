from typing import Any

import pytest

from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.results import StudyResult, results_of, usual_baseline
from trainables.common.stages import GIVEN

CONFIGURATION = {"ls": {"smoothing": 0.1}, "ts": {}}
FACTS = {
    "dataset": "digits",
    "model": "convnet",
    "protocol": "short",
    "fingerprint": "f2",
    "rule": {"objective": "val_ece", "accuracy_tolerance": 0.01},
    "origin": {"splits": {}, "seeds": [0, 2], "split": {"train_limit": 50, "test_limit": 20}},
}


def restart(writer: Any, code: str) -> None:
    provenance = {"git_commit": code}
    writer.write("sweep_started", sweep="s", sweep_id="1d", spec={}, provenance=provenance)


def test_a_result_has_all_facts_of_its_study(writer: Any) -> None:
    """Of two tasks alike but for the figures, with trials of older code and of another seed."""
    restart(writer, "first")
    writer.open("base", row=False)
    tasks = ("t", "u")
    studies = [writer.open("ls+ts", task=task, **FACTS) for task in tasks]
    empty = writer.open("dfl", task="t")
    restart(writer, "later")
    for at, study in enumerate(studies):
        seeds = [
            writer.trial(study, n, 0.5, role="seed", seed=n, configuration=CONFIGURATION)
            for n in (2, 1)
        ]
        older = writer.trial(study, 3, 0.5, configuration=CONFIGURATION)
        chosen = writer.trial(study, 1, 0.25 + at, configuration=CONFIGURATION)
        writer.finish(chosen, val_ece=0.125 + at / 2, val_acc=0.91, train_loss=0.5)
        plain = {"ls": {}, "ts": {}}
        other = writer.trial(study, 5, 0.25, role="seed", seed=2, configuration=plain)
        writer.close(study, chosen, finished=3, failed=1 + at, reason=f"r{at}")
        costs = zip((other, *seeds, chosen, older), (2, 2, 1, 0, 0), range(5), strict=True)
        for key, seed, number in costs:
            facts = {"predictions": f"p{at}{number}", "seconds": number + 0.5}
            facts["default_predictions"] = f"d{at}{number}"
            writer.evaluate(key, study, seed=seed, test_ece=number / 100 + at, facts=facts)
    writer.close(empty, None, finished=0, failed=2, reason="nan")
    writer.end()

    shared: dict[str, Any] = {
        **{name: FACTS[name] for name in ("dataset", "model", "protocol", "fingerprint")},
        "rule": {"objective": "val_ece", "accuracy_tolerance": "0.01"},
        "sweep": "s",
        "sweep_id": "1d",
        "recipe": "ls+ts",
        "status": "finished",
        "configuration": CONFIGURATION,
        "trials": 2,
        "trials_finished": 3,
        "code": "later",
        "varied": True,
        "subset": "train_limit 50, test_limit 20",
        "seconds": (3.5, 1.5),
    }
    assert results_of(read_ledger(writer.path)) == [
        *(
            StudyResult(
                **shared,
                task=task,
                validation={"ece": 0.125 + at / 2, "acc": 0.91},
                test=({"ece": 0.03 + at}, {"ece": 0.01 + at}),
                trials_failed=1 + at,
                reason=f"r{at}",
                started=(1_800_000_000_020 + 10 * at) / 1000,
                predictions=(f"p{at}3", f"p{at}1"),
                searched_predictions=f"p{at}3",
                default_predictions=f"d{at}3",
                charged=(0.125 + at / 2, 0.25),
            )
            for at, task in enumerate(tasks)
        ),
        StudyResult(
            sweep="s",
            sweep_id="1d",
            task="t",
            recipe="dfl",
            status="failed",
            trials=2,
            trials_failed=2,
            reason="nan",
            fingerprint="f1",
            code="first",
            started=1_800_000_000.04,
        ),
    ]


def test_facts_known_of_only_some_seeds_are_left_out_of_a_result(writer: Any) -> None:
    restart(writer, "code")
    study = writer.open("ls", **FACTS)
    alike = {"configuration": CONFIGURATION}
    chosen = writer.trial(study, 0, 0.5, **alike)
    other = writer.trial(study, 1, 0.5, role="seed", seed=2, **alike)
    writer.close(study, chosen)
    writer.evaluate(chosen, study, test_ece=0.1, facts={"predictions": "p", "seconds": 0.0})
    both = {"predictions": "q", "seconds": 2.0}
    for facts, known in (({}, ((), ())), (both, (("p", "q"), (0.0, 2.0)))):
        writer.evaluate(other, study, seed=2, test_ece=0.2, facts=facts)
        (found,) = results_of(read_ledger(writer.path))
        assert [test["ece"] for test in found.test] == [0.1, 0.2]
        assert (found.predictions, found.seconds) == known


def test_a_result_has_the_chosen_configuration_before_the_evaluation(writer: Any) -> None:
    restart(writer, "code")
    study = writer.open("ls+ts")
    older, chosen = (writer.trial(study, n, 0.5, configuration=CONFIGURATION) for n in (0, 1))
    writer.close(study, chosen)
    (found,) = results_of(read_ledger(writer.path))
    assert (found.configuration, found.validation) == (CONFIGURATION, {"ece": 0.25, "acc": 0.91})
    assert (found.status, found.test) == ("finished", ())
    writer.open("ls+ts")
    assert results_of(read_ledger(writer.path))[0].status == "running"
    writer.evaluate(older, study, test_ece=0.1)
    (found,) = results_of(read_ledger(writer.path))
    assert found.test == ({"ece": 0.1},)


def result(**facts: Any) -> StudyResult:
    return StudyResult(**{"sweep": "s", "task": "t", "recipe": "ce", "status": "running", **facts})


def test_a_study_has_one_of_three_statuses() -> None:
    assert result(status="failed").reason == ""
    with pytest.raises(ValueError, match="status='pruned' is not one of finished, failed, running"):
        result(status="pruned")


@pytest.mark.parametrize("name", ["trials_finished", "trials_failed"])
def test_a_count_is_none_below_zero(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}=-1 is outside \[0, inf\)"):
        result(**{name: -1})


def test_a_search_has_more_than_one_trial() -> None:
    counts = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (0, 2)]
    found = [result(trials_finished=n, trials_failed=m).searched for n, m in counts]
    assert found == [False, False, False, True, True, True]


def test_the_default_is_kept_where_it_was_chosen_itself() -> None:
    pairs = [("", ""), ("p", ""), ("", "p"), ("p", "p"), ("p", "q")]
    found = [
        result(searched_predictions=ours, default_predictions=default).kept_default
        for ours, default in pairs
    ]
    assert found == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("models", "baseline"), [([], "ce"), (["a", "b"], "ce"), (["a", GIVEN], GIVEN)]
)
def test_recipes_are_compared_with_plain_training_or_the_logits_as_given(models, baseline):
    assert usual_baseline(result(model=model) for model in models) == baseline
