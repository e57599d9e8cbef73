"""Evaluations that a machine fails are started again; what cannot be measured is a failed study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.running import evaluate
from orchestrator.running.evaluate import Evaluation, evaluate_all, pending_evaluations
from orchestrator.storage.ledger import Ledger
from orchestrator.sweep.spec import parse_sweep
from trainables.common.errors import InputError, StorageError
from trainables.store.artifacts import ArtifactStore

MEMORY = torch.OutOfMemoryError("CUDA out of memory")
RECIPES = ["ce", "ls"]
LAUNCH = torch.AcceleratorError("CUDA error: unspecified launch failure")


class OneNode:
    """In Ray's place: runs a task where it is waited for; notes its share of a GPU.

    A task raises what ``errors`` holds, one after the other, wrapped as Ray does it. There are
    ``others`` beside the node that is bad, on which every task starts unless told otherwise.
    """

    def __init__(self, *errors: Exception, others: int = 0) -> None:
        self.errors = list(errors)
        self.others = others
        self.where: list[dict[str, str]] = []
        self.shares: list[float] = []
        self.sizes: list[int] = []
        self.jobs: list[Any] = []
        self.most = 0

    def remote(self, num_cpus: float, num_gpus: float) -> Callable[..., Any]:
        assert num_cpus == 1

        def start(storage: str, folder: str, jobs: Any, gpus: float, deterministic: bool) -> int:
            assert (gpus, deterministic) == (num_gpus, False)
            self.shares.append(gpus)
            self.sizes.append(len(jobs))
            self.jobs.append(jobs)
            return len(self.jobs) - 1

        def options(label_selector: dict[str, str]) -> Any:
            self.where.append(label_selector)
            return SimpleNamespace(remote=start)

        return lambda function: SimpleNamespace(options=options)

    def nodes(self) -> list[dict[str, Any]]:
        names = ["bad", *map(str, range(self.others))]
        return [{"Alive": True, "NodeID": n, "Resources": {"CPU": 8.0, "GPU": 1.0}} for n in names]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, "GPU": 1.0}

    def wait(self, tasks: list[int]) -> tuple[list[int], list[int]]:
        self.most = max(self.most, len(tasks))
        return tasks[:1], tasks[1:]

    def get(self, task: int) -> Any:
        if self.errors:
            error = self.errors.pop(0)
            error.calsweep_node = getattr(error, "calsweep_node", "bad")  # type: ignore[attr-defined]
            wrapped = type(error)(f"worker's traceback: {error}")
            wrapped.cause = error  # type: ignore[attr-defined]
            raise wrapped
        return self.jobs[task]


def measured(
    ray: OneNode,
    folder: Path,
    gpu: float = 0.0,
    concurrent: str = "null",
    recipes: Sequence[str] = RECIPES,
) -> tuple[list[str], dict[str, str]]:
    """Return the recipes that were measured, and the reasons of the others."""
    spec = parse_sweep(
        "name: e\ntasks: [{dataset: digits, model: convnet, protocol: digits}]\nrecipes: [ce]\n"
        f"storage: {folder}\n"
        f"resources: {{max_failures: 2, train: {{gpu: {gpu}}}, concurrent: {concurrent}}}\n",
        "e",
    )
    chosen: Any = {name: SimpleNamespace(trial=SimpleNamespace(study=name)) for name in recipes}
    jobs = [Evaluation(chosen[name], "task", name) for name in recipes]
    found: list[Any] = []
    lost: dict[str, str] = {}
    evaluate_all(jobs, spec, ArtifactStore(folder), ray, found.append, lost.__setitem__)
    return sorted(job.recipe for job in found), lost


def test_what_a_machine_fails_is_measured_again(tmp_path: Path) -> None:
    ray = OneNode(LAUNCH, OSError(5, "Input/output error"), LAUNCH)
    assert measured(ray, tmp_path) == (RECIPES, {})
    assert ray.shares == [0.0] * 5


def test_where_nothing_was_chosen_there_is_nothing_to_measure(tmp_path: Path) -> None:
    assert measured(OneNode(), tmp_path, recipes=[]) == ([], {})


def test_what_a_node_fails_is_measured_on_another_if_there_is_one(tmp_path: Path) -> None:
    elsewhere, anywhere = {"ray.io/node-id": "!in(bad)"}, {}
    for others, again in ((1, elsewhere), (0, anywhere)):
        ray = OneNode(LAUNCH, others=others)
        assert measured(ray, tmp_path, gpu=1.0) == (RECIPES, {})
        assert ray.sizes == [2, 1, 1]  # The one that failed, and what waited behind it.
        assert ray.where == [anywhere, again, again]
    # A configuration fails wherever it runs.
    ray = OneNode(InputError("suite is damaged"), MEMORY, others=1)
    measured(ray, tmp_path, gpu=0.5, concurrent="1")
    assert ray.where == [anywhere] * 3


@pytest.mark.parametrize(("concurrent", "most"), [("null", 2), ("1", 1), ("5", 2)])
def test_no_more_are_measured_at_once_than_trials_may_run(
    tmp_path: Path, concurrent: str, most: int
) -> None:
    ray = OneNode(LAUNCH)
    assert measured(ray, tmp_path, concurrent=concurrent) == (RECIPES, {})
    assert ray.most == most
    assert max(ray.sizes) == len(RECIPES) // most


def test_what_runs_out_of_its_share_is_measured_alone_once(tmp_path: Path) -> None:
    ray = OneNode(MEMORY)
    assert measured(ray, tmp_path, gpu=0.25) == (RECIPES, {})
    assert ray.shares == [0.25, 0.25, 1.0]


def test_a_process_on_a_gpu_measures_several_up_to_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = OneNode()
    assert measured(ray, tmp_path, gpu=1.0) == (RECIPES, {})
    assert ray.sizes == [2]
    ray = OneNode(InputError("suite is damaged"))
    found, lost = measured(ray, tmp_path, gpu=1.0)
    assert (found, list(lost), ray.sizes) == (["ls"], ["ce"], [2, 1])

    def named(storage: str, folder: str, job: Any, *options: Any) -> Any:
        if job == "bad":
            raise ValueError(job)
        return job

    monkeypatch.setattr(evaluate, "evaluate", named)
    assert evaluate.evaluate_each("", "", ["a", "b", "bad", "c"], 0.5, False) == ["a", "b"]  # type: ignore[list-item]
    monkeypatch.setattr("trainables.ray_edge.node_here", lambda: "node 7")
    with pytest.raises(ValueError, match="bad") as caught:
        evaluate.evaluate_each("", "", ["bad", "c"], 0.5, False)  # type: ignore[list-item]
    assert getattr(caught.value, evaluate.NODE) == "node 7"


@pytest.mark.parametrize(
    ("count", "gpu", "sizes"),
    [
        (20, 1.0, [8, 8, 4]),  # One process at a time, of eight at most.
        (20, 0.25, [5, 5, 5, 5]),
        (20, 0.0, [3, 3, 3, 3, 3, 3, 2]),  # Eight processors.
        (3, 0.25, [1, 1, 1]),
    ],
)
def test_processes_share_what_is_to_be_measured(
    tmp_path: Path, count: int, gpu: float, sizes: list[int]
) -> None:
    ray, recipes = OneNode(), [f"r{number:02d}" for number in range(count)]
    assert measured(ray, tmp_path, gpu, recipes=recipes) == (recipes, {})
    assert ray.sizes == sizes


def test_what_a_process_leaves_is_measured_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, recipes = OneNode(), list("abcdefgh")
    real = ray.get
    monkeypatch.setattr(ray, "get", lambda task: real(task)[:3])
    assert measured(ray, tmp_path, 1.0, recipes=recipes) == (recipes, {})
    assert ray.sizes == [8, 5, 2]


def test_what_is_left_avoids_every_node_that_has_failed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OSError(5, "Input/output error")
    other.calsweep_node = "0"  # type: ignore[attr-defined]
    ray = OneNode(LAUNCH, InputError("suite is damaged"), other, others=2)
    real = ray.get
    monkeypatch.setattr(ray, "get", lambda task: real(task)[:1])
    found, lost = measured(ray, tmp_path, 1.0, recipes=list("abcd"))
    assert (found, list(lost)) == (list("bcd"), ["a"])
    assert ray.sizes == [4, 1, 3, 1, 2, 1]
    once, twice = ({"ray.io/node-id": f"!in({nodes})"} for nodes in ("bad", "0,bad"))
    assert ray.where == [{}, once, once, twice, twice, twice]


@pytest.mark.parametrize(
    ("errors", "gpu", "reason"),
    [
        ([LAUNCH] * 5, 0.0, "AcceleratorError: CUDA error: unspecified launch failure"),
        ([MEMORY] * 3, 0.25, "OutOfMemoryError: CUDA out of memory"),
        ([MEMORY], 0.0, "OutOfMemoryError: CUDA out of memory"),
        ([MEMORY], 1.0, "OutOfMemoryError: CUDA out of memory"),
        ([InputError("suite is damaged")], 0.0, "InputError: suite is damaged"),
    ],
)
def test_what_cannot_be_measured_is_told_and_the_others_go_on(
    tmp_path: Path, errors: list[Exception], gpu: float, reason: str
) -> None:
    found, lost = measured(OneNode(*errors), tmp_path, gpu)
    assert sorted([*found, *lost]) == RECIPES
    assert list(lost.values()) == [f"not measured on test data: {reason}"]


def test_a_configuration_is_measured_once_more_than_a_machine_may_fail_it(tmp_path: Path) -> None:
    assert measured(OneNode(LAUNCH, LAUNCH), tmp_path, recipes=["ce"]) == (["ce"], {})
    found, lost = measured(OneNode(LAUNCH, LAUNCH, LAUNCH), tmp_path, recipes=["ce"])
    assert (found, list(lost)) == ([], ["ce"])


def test_no_node_that_has_failed_is_tried_again() -> None:
    first: Any = evaluate._Work(["a", "b"], 0.5, avoided=frozenset("m"))  # type: ignore[list-item]
    error = OSError(5, "Input/output error")
    error.calsweep_node = "n"  # type: ignore[attr-defined]
    again = evaluate._Work(["a"], 0.5, 1, frozenset("mn"))  # type: ignore[list-item]
    assert first.after(error, 1) == again
    assert again.after(error, 1) is None
    # What runs out of its share has no node to blame.
    assert first.after(MEMORY, 0) == evaluate._Work(["a"], 1.0, 1, frozenset("m"))  # type: ignore[list-item]


def test_a_storage_that_cannot_be_written_ends_the_sweep(tmp_path: Path) -> None:
    error = StorageError("no space")
    with pytest.raises(StorageError) as caught:
        measured(OneNode(error), tmp_path)
    assert caught.value is error


def chosen_one(key: str, upstream: str | None = None, before: str | None = None) -> Any:
    """Return a chosen trial that builds on another, which may build on a third."""
    earlier = {"upstream": before} if upstream else None
    request = SimpleNamespace(data="", upstream=upstream, upstream_request=earlier)
    trial, outcome = SimpleNamespace(key=key, request=request), SimpleNamespace(artifact=key)
    return SimpleNamespace(trial=trial, outcome=outcome)


def test_what_builds_on_one_training_is_measured_in_turn_if_it_is_a_row() -> None:
    jobs = [
        chosen_one("a"),
        chosen_one("b"),
        chosen_one("y", "b"),
        chosen_one("z", "a"),
        chosen_one("x", "0", "b"),
    ]
    plan = SimpleNamespace(
        row=True, task=SimpleNamespace(id="t", suites=()), recipe=SimpleNamespace(name="r")
    )
    study = SimpleNamespace(plan=plan, chosen=None, seeds=dict(enumerate([*jobs, None])))
    no_row = SimpleNamespace(plan=SimpleNamespace(row=False), seeds={0: chosen_one("base")})
    spec = SimpleNamespace(data_root="")
    studies = {"t|base": no_row, "t|r": study}
    state: Any = SimpleNamespace(plan=SimpleNamespace(spec=spec), studies=studies)
    order = [job.chosen.trial.key for job in pending_evaluations(state, Ledger())]
    assert order == ["a", "z", "b", "y", "x"]


def test_a_published_default_that_is_there_is_measured_beside_the_chosen_trial_once() -> None:
    chosen, again = (chosen_one(key) for key in "ab")
    plan = SimpleNamespace(
        row=True,
        stage="train",
        task=SimpleNamespace(id="t", suites=()),
        recipe=SimpleNamespace(name="mbls"),
    )
    study = SimpleNamespace(
        plan=plan, chosen=chosen, seeds={0: chosen, 1: again}, default_artifact="d"
    )
    spec = SimpleNamespace(data_root="")
    state: Any = SimpleNamespace(plan=SimpleNamespace(spec=spec), studies={"t|mbls": study})
    assert [job.default for job in pending_evaluations(state, Ledger())] == ["d", ""]

    past: Any = SimpleNamespace(trials={})
    for key in "ab":
        past.trials[key] = SimpleNamespace(
            test={"ece": 0.1}, predictions=f"of {key}", default_predictions=""
        )
    assert [job.default for job in pending_evaluations(state, past)] == ["d"]
    assert pending_evaluations(state, past, lambda stage, key: stage == "evaluate") == []
    past.trials["a"].default_predictions = "p"
    assert pending_evaluations(state, past) == []
    # Predictions that are damaged count as gone, and are needed to compare.
    (lost,) = pending_evaluations(state, past, lambda stage, key: key != "of b")
    assert lost.chosen is again


def link(stage: str, upstream: tuple[str, str] | None, seconds: float | None) -> Any:
    before = dict(zip(("upstream_stage", "upstream"), upstream or (None, None), strict=True))
    return SimpleNamespace(stage=stage, record={"request": before, "seconds": seconds})


ALL = ["calibrate", "refine", "train"]
CHAIN = {
    ("calibrate", "k"): link("calibrate", ("refine", "r"), 0.25),
    ("refine", "r"): link("refine", ("train", "t"), 2.0),
    ("train", "t"): link("train", None, 30.5004),
}


@pytest.mark.parametrize(
    ("change", "stages", "seconds"),
    [
        ({}, ALL, 32.75),
        ({("train", "t"): None}, ALL[:2], None),
        ({("refine", "r"): link("refine", ("train", "t"), None)}, ALL, None),
        ({("calibrate", "k"): link("calibrate", ("refine", "r"), 0.0)}, ALL, 32.5),
        ({("calibrate", "k"): None}, [], None),
    ],
)
def test_a_chain_costs_what_all_its_stages_do(
    change: dict[Any, Any], stages: list[str], seconds: float | None
) -> None:
    store: Any = SimpleNamespace(find=lambda *place: {**CHAIN, **change}[place])
    chain = evaluate.chain_of(store, "calibrate", "k")
    assert [found.stage for found in chain] == stages
    assert evaluate.chain_seconds(chain) == seconds
