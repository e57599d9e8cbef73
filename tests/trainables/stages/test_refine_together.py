import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_stages import Workshop, request

from trainables.common.errors import TrainingDivergedError
from trainables.common.stages import ArtifactRef
from trainables.stages import StageRequest, StageRun, objective_terms, open_stage, predictor, refine
from trainables.stages.export import export_chain, load_chain
from trainables.stages.refine import RefineTogether
from trainables.store.artifacts import Artifact

GAMMAS = (0.7, 0.9, 0.99)


@pytest.fixture(scope="module")
def trained(workshop: Workshop) -> Artifact:
    return workshop.compute(request(workshop.prepared, protocol={"epochs": 2}))


def wanted(workshop: Workshop, trained: Artifact, seed: int, **own: Any) -> list[StageRequest]:
    rates = [{"gamma": gamma, "lr": gamma / 10, "q0": 1 - gamma} for gamma in GAMMAS]
    parts = [{"macal": {"epochs": 3, **each, **own}} for each in rates]
    return [request(workshop.prepared, "refine", part, trained, seed) for part in parts]


def run_all(run: StageRun, seconds: float | None = None) -> Artifact:
    history = []
    while run.epoch < run.epochs:
        history.append({"step": run.epoch + 1, "metrics": run.run_epoch()})
    return run.finish(history[-1]["metrics"], history, seconds)


def of_a_pass(requests: list[StageRequest]) -> list[StageRequest]:
    parts = [one.parts for one in requests]
    return [replace(one, together=parts) for one in requests]


def open_all(workshop: Workshop, requests: list[StageRequest], position: int = 0) -> StageRun:
    return open_stage(of_a_pass(requests)[position], workshop.store, workshop.data)


def test_refinements_trained_together_are_stored_as_if_trained_alone(
    workshop, trained, monkeypatch
):
    requests = wanted(workshop, trained, seed=0)
    alone = Workshop.__new__(Workshop)
    alone.prepared, alone.data = workshop.prepared, workshop.data
    alone.store = type(workshop.store)(workshop.store.root.parent / "alone")
    expected = []
    for one in requests:
        (alone.store.root / "train").mkdir(parents=True, exist_ok=True)
        link = alone.store.path(trained.ref)
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            link.symlink_to(trained.directory)
        run = alone.open(one)
        run.ask_for("val_nll_after_ts")
        expected.append(run_all(run))
    # Another trial computed the features: whoever asks for them bears what they cost.
    load = refine.load_features
    monkeypatch.setattr(refine, "load_features", lambda *which: (load(*which)[0], 0.5))
    run = open_all(workshop, requests)
    assert isinstance(run, RefineTogether)
    run.ask_for("val_nll_after_ts")
    run_all(run, seconds=30.0)
    for one, other in zip(of_a_pass(requests), expected, strict=True):
        found = workshop.store.find(one.ref)
        assert found.record["metrics"] == pytest.approx(other.record["metrics"], abs=1e-4)
        assert [entry["step"] for entry in found.record["history"]] == [1, 2, 3]
        assert found.record["epochs"] == 3
        assert found.record["seconds"] == (10.5 if one.parts == requests[0].parts else 10.0)
        for name, tensor in other.tensors("head").items():
            torch.testing.assert_close(found.tensors("head")[name], tensor, atol=1e-4, rtol=0)
    assert len({other.record["metrics"]["val_nll"] for other in expected}) == len(requests)


def test_each_refinement_trained_together_gets_its_notices(workshop, trained, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(workshop.store, "notice", told.append)
    ends = {"gamma": 5.0, "eta_init": 1.0, "eta_final": 1.0}
    requests = [
        request(workshop.prepared, "refine", {"macal": {"epochs": 8, "lr": lr, **ends}}, trained, 8)
        for lr in (0.1, 0.2)
    ]
    run_all(open_all(workshop, requests))
    assert [text.partition(",")[0] for text in told] == ["macal: q ended at 0"] * 2


def test_stored_refinements_are_not_stored_again_with_the_others(workshop, trained):
    requests = wanted(workshop, trained, seed=1)
    run_all(open_all(workshop, requests))
    first, second, third = of_a_pass(requests)
    shutil.rmtree(workshop.store.path(first.ref))
    before = workshop.store.path(second.ref).stat().st_mtime_ns
    run_all(open_all(workshop, requests))
    assert workshop.store.path(second.ref).stat().st_mtime_ns == before
    assert workshop.store.contains(third.ref)


@pytest.mark.parametrize("lr", [0.05, 1e38])
def test_every_member_of_a_pass_has_the_same_bits_whichever_is_asked_for(
    workshop, trained, tmp_path, lr
):
    requests = wanted(workshop, trained, seed=11)
    requests[1] = replace(requests[1], parts={"macal": {"epochs": 3, "gamma": 0.8, "lr": lr}})
    found = []
    for position in (0, 2):
        again = Workshop.__new__(Workshop)
        again.data, again.store = workshop.data, type(workshop.store)(tmp_path / str(position))
        again.store.path(trained.ref).parent.mkdir(parents=True)
        again.store.path(trained.ref).symlink_to(trained.directory)
        if position:  # An outcome of its own that is stored already changes nothing.
            run_all(open_all(again, requests))
            for place in (0, 2):
                shutil.rmtree(again.store.path(of_a_pass(requests)[place].ref))
        run_all(open_all(again, requests, position))
        stored = [again.store.find(of_a_pass(requests)[place].ref) for place in (0, 2)]
        found.append([artifact.tensors("head") for artifact in stored])
        assert again.store.contains(of_a_pass(requests)[1].ref) == (lr < 1)
    for one, other in zip(*found, strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_refinement_that_cannot_share_the_pass_is_trained_alone(workshop, trained):
    requests = [
        wanted(workshop, trained, seed=2)[0],
        wanted(workshop, trained, seed=2, resample="epoch")[1],
    ]
    run = open_all(workshop, requests)
    assert not isinstance(run, RefineTogether)


def test_a_refinement_that_diverges_is_not_stored(workshop, trained):
    requests = [wanted(workshop, trained, seed=3)[0], wanted(workshop, trained, seed=3, lr=1e38)[1]]
    requests.append(wanted(workshop, trained, seed=3)[2])
    alone = workshop.open(requests[2])
    metrics = [alone.run_epoch() for _ in range(alone.epochs)]
    run_all(open_all(workshop, requests), seconds=30.0)
    passed = of_a_pass(requests)
    assert not workshop.store.contains(passed[1].ref)
    stored = [workshop.store.find(passed[place].ref) for place in (0, 2)]
    shares = [found.record["seconds"] for found in (stored[0], stored[1])]
    assert shares == pytest.approx([15.0, 15.0], abs=4)  # With what the features cost, if that.
    assert stored[1].record["metrics"] == pytest.approx(metrics[-1], abs=1e-4)
    with pytest.raises(TrainingDivergedError):
        run_all(open_all(workshop, requests, position=1))


def test_a_member_that_cannot_be_built_fails_alone(workshop, trained):
    requests = wanted(workshop, trained, seed=12)
    requests[1] = replace(requests[1], parts={"macal": {"epochs": 3, "hidden": 10**12}})
    run_all(open_all(workshop, requests))
    stored = [workshop.store.contains(one.ref) for one in of_a_pass(requests)]
    assert stored == [True, False, True]
    with pytest.raises(RuntimeError, match="alloc"):
        open_all(workshop, requests, position=1)


def test_the_metrics_of_a_member_are_those_of_its_stored_rows(workshop, trained):
    common = {"epochs": 3, "lr": 0.1}
    parts = [{"macal": {**common, "hidden": hidden}} for hidden in (16, 20, 24)]
    requests = [request(workshop.prepared, "refine", part, trained, 13) for part in parts]
    run_all(open_all(workshop, requests))
    for one in of_a_pass(requests):
        found = workshop.store.find(one.ref)
        rows = found.tensors("validation")
        nll = objective_terms("nll", rows["logits"], rows["labels"]).mean()
        assert float(nll) == found.record["metrics"]["val_nll"]


COLLAPSED = {"q0": 0.99, "sparsity": "fixed", "hidden": 4}


def test_a_refinement_that_loses_its_accuracy_is_not_stored(workshop, trained):
    requests = wanted(workshop, trained, seed=9, epochs=6, hidden=32)
    lost = {"macal": {"epochs": 6, **COLLAPSED}}
    requests[1] = request(workshop.prepared, "refine", lost, trained, 9)
    run_all(open_all(workshop, requests))
    stored = [workshop.store.contains(one.ref) for one in of_a_pass(requests)]
    assert stored == [True, False, True]
    for others in ([], requests[:1]):
        with pytest.raises(
            TrainingDivergedError, match=r"^validation accuracy collapsed to \d+\.\d%; the"
        ):
            run_all(open_all(workshop, [requests[1], *others]))


@pytest.mark.full
@pytest.mark.parametrize("together", [True, False])
def test_the_network_keeps_its_classifier_unless_nll_falls(workshop, trained, together, tmp_path):
    own = trained.tensors("validation")
    long = {"sparsity": "fixed", "q0": 0.0, "epochs": 40, "hidden": 64, "accept": "better"}
    parts = [{"macal": long}, {"macal": {**long, "epochs": 40, "lr": 1e-4}}]
    seed = 10 + together
    requests = [request(workshop.prepared, "refine", part, trained, seed) for part in parts]
    if together:
        requests = of_a_pass(requests)
        run_all(open_all(workshop, requests))
    else:
        for one in requests:
            run_all(workshop.open(one))
    found = [workshop.store.find(one.ref) for one in requests]
    assert [one is not None and one.record["accepted"] for one in found] == [True, False]
    assert found[0].record["metrics"]["val_nll"] < trained.record["metrics"]["val_nll"]
    kept = {k: v for k, v in trained.record["metrics"].items() if k.startswith("val_")}
    assert kept.items() <= found[1].record["metrics"].items()
    assert torch.equal(found[1].tensors("validation")["logits"], own["logits"])
    info, device = workshop.prepared.info, torch.device("cpu")
    rows = workshop.data.search.validation.values
    chains = trained.ref, found[1].ref
    before, after = (predictor(workshop.store, ref, info, device)(rows) for ref in chains)
    assert torch.equal(before, after)
    export_chain(workshop.store, ArtifactRef("refine", found[1].key), info, tmp_path)
    assert torch.equal(load_chain(tmp_path)(rows), before)


def test_refinements_trained_together_continue_from_a_saved_state(workshop, trained, tmp_path):
    requests = wanted(workshop, trained, seed=5)
    first = open_all(workshop, requests)
    expected = [first.run_epoch() for _ in range(3)]
    second = open_all(workshop, requests)
    second.run_epoch()
    torch.save(second.state_dict(), tmp_path / "state.pt")
    third = open_all(workshop, requests)
    third.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert third.epoch == 1
    assert [third.run_epoch() for _ in range(2)] == expected[1:]
    third.finish(expected[-1])
    last = of_a_pass(requests)[2]
    found = workshop.store.find(last.ref)
    assert [entry["step"] for entry in found.record["history"]] == [1, 2, 3]
    whole = first.state_dict()["others"][last.key()]["trainer"]["head"]
    for name, tensor in found.tensors("head").items():
        assert torch.equal(tensor, whole[name]), name
