import io
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_stages import MACAL, Workshop, few_digits, request
from torch import Tensor
from torch.nn import functional as F

from trainables.calibrators import CALIBRATORS, build_calibrator, cross_fit
from trainables.common.errors import InputError, TrainingDivergedError
from trainables.common.stages import STAGES, ArtifactRef
from trainables.data import Batcher, GivenLogits, ImageShape, MaskedImages, SplitSpec
from trainables.models import Network, build_model
from trainables.stages import (
    LastPass,
    StageRequest,
    base,
    calibrate,
    check_part,
    evaluate_on_test,
    export,
    networks,
    open_stage,
    stage_precision,
    train,
    validation_rows,
    with_objective,
)
from trainables.stages.base import find_artifact
from trainables.stages.engine import predict
from trainables.stages.export import export_chain, load_chain
from trainables.stages.networks import calibrator_of, predictor
from trainables.stages.refine import FEATURE_VIEWS, load_features
from trainables.store.artifacts import Artifact, ArtifactStore, stage_key

CROPS = {"augmentation": "crop-flip", "epochs": 2}
METRICS = {"acc", "nll", "brier", "ece", "aece", "cwece", "cwaece", "mce"}


@pytest.fixture(scope="module")
def chain(workshop: Workshop) -> tuple[Artifact, Artifact, Artifact]:
    return workshop.chain()


@pytest.fixture(scope="module")
def trained(chain: tuple[Artifact, Artifact, Artifact]) -> Artifact:
    return chain[0]


@pytest.fixture(scope="module")
def refined(chain: tuple[Artifact, Artifact, Artifact]) -> Artifact:
    return chain[1]


@pytest.fixture(scope="module")
def calibrated(chain: tuple[Artifact, Artifact, Artifact]) -> Artifact:
    return chain[2]


@pytest.fixture(scope="module")
def augmented(workshop: Workshop) -> Artifact:
    return workshop.compute(request(workshop.prepared, protocol=CROPS))


def network_of(trained: Artifact) -> Network:
    network = build_model("convnet", 10, ImageShape(1, 8))
    network.load_state_dict(trained.tensors("weights"))
    return network.eval()


def normalised(images: np.ndarray) -> Tensor:
    pixels = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).double()
    return ((pixels / 255 - 0.5) / 0.5).float()


def test_every_stage_leaves_metrics_logits_and_its_request(workshop, chain):
    labels = torch.from_numpy(np.array(workshop.data.search.validation.labels))
    for artifact, stage in zip(chain, STAGES, strict=True):
        assert artifact.stage == stage
        found = workshop.store.find(ArtifactRef(stage, artifact.key))
        metrics = found.record["metrics"]
        assert {f"val_{name}" for name in METRICS} <= set(metrics)
        assert all(math.isfinite(value) for value in metrics.values())
        rows = found.tensors("validation")
        assert rows["logits"].shape == (300, 10)
        assert torch.equal(rows["labels"], labels)
        assert (rows["logits"].dtype, rows["labels"].dtype) == (torch.float32, torch.int64)
        assert StageRequest(**found.record["request"]).key() == artifact.key


def test_stored_weights_give_the_stored_logits(workshop, trained):
    with torch.no_grad():
        live = network_of(trained)(normalised(workshop.data.search.validation.values))
    torch.testing.assert_close(trained.tensors("validation")["logits"], live, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stage", ["train", "refine"])
def test_an_interrupted_stage_goes_on_bitwise(workshop, augmented, stage):
    if stage == "train":
        best = {**CROPS, "epochs": 3, "keep": "best_val_acc"}
        wanted = request(workshop.prepared, parts={"au": {}, "mixup": {}}, protocol=best)
    else:
        wanted = request(workshop.prepared, "refine", MACAL, augmented)
    whole = workshop.open(wanted)
    checkpoints, figures = [], []
    while whole.epoch < whole.epochs:
        stream = io.BytesIO()
        torch.save(whole.state_dict(), stream)
        checkpoints.append(stream.getvalue())
        figures.append(whole.run_epoch())
    expected, _ = whole.outcome()
    for epoch, checkpoint in enumerate(checkpoints):
        resumed = workshop.open(wanted)
        resumed.load_state_dict(torch.load(io.BytesIO(checkpoint), weights_only=True))
        assert resumed.epoch == epoch
        again = [resumed.run_epoch() for _ in range(epoch, resumed.epochs)]
        assert again == figures[epoch:]
        outcome, _ = resumed.outcome()
        for file, tensors in expected.items():
            for name, tensor in tensors.items():
                assert torch.equal(outcome[file][name], tensor), f"{file}/{name}"


def test_a_training_resumed_after_its_last_epoch_still_has_logits(workshop, trained):
    first = workshop.open(request(workshop.prepared))
    while first.epoch < first.epochs:
        first.run_epoch()
    again = workshop.open(request(workshop.prepared))
    again.load_state_dict(first.state_dict())
    assert again.epoch == again.epochs
    assert torch.equal(
        again.outcome()[0]["validation"]["logits"], trained.tensors("validation")["logits"]
    )


# So high a rate that later epochs are worse than earlier ones.
WILD = {"lr": 1.0, "schedule": "constant", "epochs": 6}


@pytest.fixture(scope="module")
def wild(workshop: Workshop) -> list[tuple[dict[str, float], Tensor]]:
    """Return figures and validation logits of every epoch; the best is not the last."""
    plain = workshop.open(request(workshop.prepared, protocol=WILD))
    plain.ask_for("val_nll_after_ts")
    found = []
    while plain.epoch < plain.epochs:
        found.append((plain.run_epoch(), plain.outcome()[0]["validation"]["logits"]))
    return found


def best_of(wild: list[tuple[dict[str, float], Tensor]], metric: str = "nll") -> int:
    values = [figures[f"val_{metric}"] * (-1 if metric == "acc" else 1) for figures, _ in wild]
    return int(np.argmin(values))


@pytest.mark.full
@pytest.mark.parametrize(
    ("keep", "after", "metric"),
    [
        ("best_val_nll", 0, "nll"),
        ("best_val_acc", 0, "acc"),
        ("best_val_nll", 3, "nll"),
        ("best_val_nll_after_ts", 0, "nll_after_ts"),
    ],
)
def test_the_best_epoch_after_the_warm_up_is_kept(workshop, wild, keep, after, metric):
    best = after + best_of(wild[after:], metric)
    figures, logits = wild[best]
    rule = {"keep": keep, "keep_after": after}
    kept = workshop.compute(request(workshop.prepared, protocol={**WILD, **rule}))
    assert kept.record["kept_epoch"] == best + 1 < kept.record["epochs"] == 6
    assert torch.equal(kept.tensors("validation")["logits"], logits)
    assert kept.record["metrics"][f"val_{metric}"] == figures[f"val_{metric}"]
    assert kept.record["metrics"]["train_loss"] == wild[-1][0]["train_loss"]
    with torch.no_grad():
        live = network_of(kept)(normalised(workshop.data.search.validation.values))
    torch.testing.assert_close(live, logits, rtol=1e-4, atol=1e-4)


def test_the_last_epoch_of_the_warm_up_is_not_kept_though_it_is_the_best(workshop, wild):
    after = best_of(wild) + 1
    rule = {**WILD, "keep": "best_val_nll", "keep_after": after}
    kept = workshop.compute(request(workshop.prepared, protocol=rule))
    assert kept.record["kept_epoch"] == after + best_of(wild[after:]) + 1


def test_the_first_of_equally_good_epochs_is_kept(workshop):
    run = workshop.open(request(workshop.prepared, protocol={"keep": "best_val_acc"}))
    for run.epoch, accuracy in enumerate((0.5, 0.7, 0.7, 0.6), 1):
        run._with_best({"val_acc": accuracy})
    assert run.outcome()[1]["kept_epoch"] == 2


def test_a_training_resumed_after_its_best_epoch_remembers_it(workshop, wild):
    best = best_of(wild) + 1
    assert best < len(wild)
    wanted = request(workshop.prepared, protocol={**WILD, "keep": "best_val_nll"})
    first, second = workshop.open(wanted), workshop.open(wanted)
    for _ in range(best):
        first.run_epoch()
    second.load_state_dict(first.state_dict())
    while second.epoch < second.epochs:
        second.run_epoch()
    assert second.outcome()[1]["kept_epoch"] == best


def test_a_head_whose_q_ended_is_reported_once_stored(workshop, trained, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(workshop.store, "notice", told.append)
    own = {"q_role": "keep", "epochs": 6, "gamma": 0.01, "eta_init": 1.0, "eta_final": 1.0}
    workshop.compute(request(workshop.prepared, "refine", {"macal": own}, trained))
    assert len(told) == 1
    assert "where the mask keeps almost all weights" in told[0]


@pytest.mark.full
def test_the_seed_of_a_calibration_decides_its_folds(workshop, trained):
    parts = {"isotonic": {}}
    fitted = workshop.compute(request(workshop.prepared, "calibrate", parts, trained, seed=1))
    rows = trained.tensors("validation")
    held_out = [
        cross_fit(partial(calibrator_of, parts), rows["logits"], rows["labels"], 5, folds).float()
        for folds in (1, 0)
    ]
    found = fitted.tensors("validation")["logits"]
    assert found.dtype == torch.float32
    assert torch.equal(found, held_out[0])
    assert not torch.equal(found, held_out[1])


def test_the_seed_of_a_refinement_decides_its_head(workshop, trained):
    asked = [request(workshop.prepared, "refine", MACAL, trained, seed) for seed in (0, 0, 1)]
    first, again, other = (workshop.open(each).trainer.head.layers[0].weight for each in asked)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_cached_features_equal_live_ones(workshop, augmented):
    cached, _ = load_features(augmented, workshop.store, workshop.data)
    assert cached["views"].shape[:2] == (8, 400)
    network = network_of(augmented)
    train = workshop.data.search.train.values
    batcher = workshop.prepared.info.inputs.batcher(train)
    pixels = torch.from_numpy(np.array(train)).permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        for seed, view in enumerate(cached["views"]):
            generator = torch.Generator().manual_seed(seed)
            live = network.features(batcher.view(pixels, "crop-flip", generator))
            torch.testing.assert_close(view, live, rtol=1e-4, atol=1e-4)
        plain = network.features(normalised(workshop.data.search.validation.values))
    torch.testing.assert_close(cached["validation"], plain, rtol=1e-4, atol=1e-4)
    assert len({view.sum().item() for view in cached["views"]}) == FEATURE_VIEWS


def rows_of(logits: Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in logits.tolist()}


class Noting(CALIBRATORS.get("ts")):
    """Notes by which rows it was fitted and which it was asked about."""

    fitted, asked = set[Any](), set[Any]()

    def fit(self, logits: Tensor, labels: Tensor) -> "Noting":
        self.fitted = rows_of(logits)
        return super().fit(logits, labels)

    def __call__(self, logits: Tensor) -> Tensor:
        self.asked = rows_of(logits)
        return super().__call__(logits)


def test_no_row_is_scored_by_a_calibrator_that_was_fitted_on_it(workshop, refined, monkeypatch):
    made: list[Noting] = []

    def build(parts: Mapping[str, Any]) -> Noting:
        made.append(Noting())
        return made[-1]

    monkeypatch.setattr(calibrate, "calibrator_of", build)
    workshop.open(request(workshop.prepared, "calibrate", {"ts": {}}, refined)).run_epoch()
    every = rows_of(refined.tensors("validation")["logits"])
    final, *scoring = made
    assert len(scoring) == 5
    for calibrator in scoring:
        assert calibrator.asked
        assert not calibrator.fitted & calibrator.asked
        assert calibrator.fitted | calibrator.asked == every
    assert set().union(*(calibrator.asked for calibrator in scoring)) == every
    assert sum(len(calibrator.asked) for calibrator in scoring) == len(every)
    assert final.fitted == every
    assert not final.asked


@pytest.mark.parametrize("name", ["ts", "isotonic"])
def test_reported_metrics_are_not_those_of_the_fitting_rows(workshop, refined, name):
    stage = workshop.open(request(workshop.prepared, "calibrate", {name: {}}, refined))
    metrics = stage.run_epoch()
    rows = refined.tensors("validation")
    calibrator = build_calibrator(name).fit(rows["logits"], rows["labels"])
    fitted = calibrator(rows["logits"])
    on_fitting_rows = by_hand(fitted.double().numpy(), rows["labels"].numpy())
    assert metrics["val_nll"] > on_fitting_rows["nll"]
    files, facts = stage.outcome()
    told = {n.removeprefix("fit_"): v for n, v in metrics.items() if n.startswith("fit_")}
    assert facts["summary"] == told == calibrator.summary() != {}
    held_out = files["validation"]["logits"]
    assert metrics["val_nll"] == pytest.approx(
        by_hand(held_out.double().numpy(), rows["labels"].numpy())["nll"], abs=1e-6
    )


@pytest.mark.parametrize("stage", ["train", "refine"])
def test_a_temperature_of_the_training_rows_is_judged_on_all_validation_rows(
    workshop, trained, refined, stage
):
    upstream = {"train": trained, "refine": refined}[stage]
    parts = {"ts": {"selection": "training_ece"}}
    fitted = workshop.compute(request(workshop.prepared, "calibrate", parts, upstream))
    train = workshop.prepared.search().train
    outputs = predictor(
        workshop.store,
        ArtifactRef(stage, upstream.key),
        workshop.prepared.info,
        torch.device("cpu"),
    )
    logits, labels = outputs(train.values), torch.from_numpy(train.labels.copy())
    expected = build_calibrator("ts", selection="ece").fit(logits, labels)
    assert fitted.tensors("calibrator")["temperature"] == expected.temperature
    own = upstream.tensors("validation")["logits"]
    assert torch.equal(fitted.tensors("validation")["logits"], expected(own).float())


def by_hand(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute metrics straight from their definitions."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    probs = shifted / shifted.sum(1, keepdims=True)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    ece = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if inside.any():
            ece += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return {
        "acc": correct.mean(),
        "nll": -np.log(probs[np.arange(len(labels)), labels]).mean(),
        "brier": ((probs - np.eye(10)[labels]) ** 2).sum(1).mean(),
        "ece": ece,
    }


def features_by_hand(trained: Artifact, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network_of(trained).features(normalised(images)).double().numpy()


def head_by_hand(refined: Artifact, features: np.ndarray) -> np.ndarray:
    """Apply two layers, whose weights are scaled by the share that training kept."""
    head = {name: value.double().numpy() for name, value in refined.tensors("head").items()}
    hidden = features @ ((1 - head["q"]) * head["layers.0.weight"]).T + head["layers.0.bias"]
    return (
        np.maximum(hidden, 0) @ ((1 - head["q"]) * head["layers.1.weight"]).T
        + head["layers.1.bias"]
    )


def test_an_evaluation_equals_a_computation_in_numpy(workshop, trained, refined, calibrated):
    test = workshop.prepared.test()
    features = features_by_hand(trained, test.values)
    weights = {name: value.double().numpy() for name, value in trained.tensors("weights").items()}
    plain = features @ weights["classifier.weight"].T + weights["classifier.bias"]
    masked = head_by_hand(refined, features)
    temperature = calibrated.tensors("calibrator")["temperature"].item()
    assert temperature != 1
    for artifact, logits in (
        (trained, plain),
        (refined, masked),
        (calibrated, masked / temperature),
    ):
        metrics, stored = evaluate_on_test(workshop.store, artifact.ref, workshop.prepared)
        added = {"debiased_ece", "smooth_ece", "ece_floor", "aece_floor", "cwece_floor"}
        assert set(metrics) == METRICS | added
        for name, value in by_hand(logits, np.array(test.labels)).items():
            assert metrics[name] == pytest.approx(value, abs=2e-4), (artifact.stage, name)
        rows = stored.tensors("test")
        expected = F.log_softmax(torch.from_numpy(logits), 1).float()
        torch.testing.assert_close(rows["log_probs"], expected, rtol=1e-3, atol=1e-3)
        assert torch.equal(rows["labels"], torch.from_numpy(np.array(test.labels)))


@pytest.mark.parametrize("method", ["balcal", "mcdrop"])
def test_networks_of_a_scheme_are_evaluated_as_they_were_validated(workshop, method, monkeypatch):
    trained = workshop.compute(
        request(workshop.prepared, parts={method: {}}, protocol={"epochs": 1})
    )
    # Test images take the place of the validation images, which have known logits.
    validation = workshop.data.search.validation
    monkeypatch.setattr(type(workshop.prepared), "test", lambda _: validation)
    _, stored = evaluate_on_test(workshop.store, trained.ref, workshop.prepared)
    expected = trained.tensors("validation")["logits"].log_softmax(1)
    torch.testing.assert_close(stored.tensors("test")["log_probs"], expected)


def test_an_evaluation_is_stored_and_recomputed_when_damaged(workshop, refined, monkeypatch):
    arguments = (workshop.store, refined.ref, workshop.prepared)
    metrics, stored = evaluate_on_test(*arguments)
    with monkeypatch.context() as patched:
        patched.setattr(networks, "evaluation_report", lambda *_: pytest.fail("computed again"))
        assert evaluate_on_test(*arguments)[0] == metrics
    (stored.directory / "test.safetensors").write_bytes(b"damaged")
    again, repaired = evaluate_on_test(*arguments)
    assert again == metrics
    assert repaired.tensors("test")["labels"].shape == (350,)


def test_one_pass_of_a_network_serves_all_stages_that_build_on_the_network(
    workshop, chain, augmented, monkeypatch
):
    trained, test = chain[0], workshop.prepared.test().values
    direct = workshop.compute(request(workshop.prepared, "calibrate", {"ts": {}}, trained))
    info, device = workshop.prepared.info, workshop.data.device
    network = networks.restore_network(trained, info, device)
    alone = [
        networks.predictor(workshop.store, each.ref, info, device)(test)
        for each in (*chain, direct)
    ]
    logits = predict(network, info.inputs.batcher(test, device))
    assert torch.equal(alone[0], logits.log_softmax(1))
    passes: list[Network] = []

    def counted(network: Network, batcher: Batcher) -> Tensor:
        passes.append(network)
        return extract(network, batcher)

    extract = networks.extract_features
    monkeypatch.setattr(networks, "extract_features", counted)
    shutil.rmtree(workshop.store.root / "evaluate", ignore_errors=True)
    last = LastPass()
    for each, expected in zip((*chain, direct), alone, strict=True):
        _, found = evaluate_on_test(workshop.store, each.ref, workshop.prepared, device, last)
        assert torch.equal(found.tensors("test")["log_probs"], expected)
    assert len(passes) == 1
    other = workshop.store, augmented.ref
    _, found = evaluate_on_test(*other, workshop.prepared, device, last)
    expected = networks.predictor(*other, info, device)(test)
    assert torch.equal(found.tensors("test")["log_probs"], expected)


def test_everything_that_matters_changes_the_key(workshop, trained, refined, tmp_path):
    base = request(workshop.prepared, "refine", MACAL, trained)
    other = few_digits(tmp_path, SplitSpec(validation=300, test=350, train_limit=399))
    changed = [
        replace(base, data=str(other.directory)),
        replace(base, seed=1),
        replace(base, model="resnet8"),
        replace(base, precision="bfloat16"),
        replace(base, protocol={**base.protocol, "batch_size": 51}),
        replace(base, parts={"macal": {**MACAL["macal"], "lr": 0.2}}),
        replace(base, parts={"tst": MACAL["macal"]}),
        replace(base, upstream=refined.key),
        replace(base, stage="calibrate"),
    ]
    keys = {base.key(), *(wanted.key() for wanted in changed)}
    assert len(keys) == len(changed) + 1


def test_equal_data_elsewhere_have_the_same_key(workshop, tmp_path):
    moved = few_digits(tmp_path)
    assert moved.directory != workshop.prepared.directory
    assert request(moved).key() == request(workshop.prepared).key()
    assert StageRequest(**asdict(request(moved))).key() == request(moved).key()


@pytest.fixture(scope="module")
def coarse(workshop: Workshop) -> Artifact:
    return workshop.compute(replace(request(workshop.prepared), precision="bfloat16"))


def test_a_training_computes_in_the_precision_that_is_asked_for(workshop, trained, coarse):
    logits, others = (each.tensors("validation")["logits"] for each in (trained, coarse))
    assert not torch.equal(logits, others)
    told = [each.record["computed"]["precision"] for each in (trained, coarse)]
    assert told == ["float32", "bfloat16"]
    network = network_of(coarse)
    pixels = normalised(workshop.data.search.validation.values)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(network(pixels), others)
    with pytest.raises(ValueError, match="precision='half' is not one of float32, bfloat16"):
        workshop.open(replace(request(workshop.prepared), precision="half"))


def test_features_are_computed_in_the_precision_of_the_network(workshop, trained, coarse, tmp_path):
    images = workshop.prepared.test().values
    for network, half in ((trained, False), (coarse, True)):
        features, _ = load_features(network, workshop.store, workshop.data)
        key = stage_key("features", upstream=network.key, views=FEATURE_VIEWS)
        record = json.loads(
            (workshop.store.path(ArtifactRef("features", key)) / "record.json").read_text()
        )
        assert record["computed"]["precision"] == network.record["request"]["precision"]
        assert {values.dtype == torch.bfloat16 for values in features.values()} == {half}
        refined = workshop.compute(request(workshop.prepared, "refine", MACAL, network))
        for stage in (network, refined):
            _, tested = evaluate_on_test(workshop.store, stage.ref, workshop.prepared)
            export_chain(workshop.store, stage.ref, workshop.prepared.info, tmp_path / stage.key)
            written = {path.name: path for path in (tmp_path / stage.key).rglob("*.*")}
            link = find_artifact(ArtifactStore(tmp_path / stage.key), stage.ref)
            assert link.record["metrics"] == stage.record["metrics"]
            left_out = ("data", "upstream_request")
            asked = {k: v for k, v in stage.record["request"].items() if k not in left_out}
            assert link.record["request"] == asked
            links = ["weights"] if stage is network else ["weights", "head"]
            assert {f"{name}.safetensors" for name in links} == {
                name for name in written if name.endswith("safetensors")
            }
            assert str(workshop.prepared.directory) not in written["record.json"].read_text()
            outputs = load_chain(tmp_path / stage.key)(images)
            assert torch.equal(outputs, tested.tensors("test")["log_probs"])
            precision = "bfloat16" if half else "float32"
            assert tested.record["computed"]["precision"] == precision
        plain = network_of(network)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, half):
            expected = plain(normalised(images)).log_softmax(1)
        _, tested = evaluate_on_test(workshop.store, network.ref, workshop.prepared)
        found = tested.tensors("test")["log_probs"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_network_that_began_with_pretrained_weights_is_rebuilt_without_them(workshop, trained):
    fields = {**trained.record["request"], "model": "convnet@pretrained"}
    began = replace(trained, record={**trained.record, "request": fields})
    network = networks.restore_network(began, workshop.prepared.info, workshop.data.device)
    weights = trained.tensors("weights")
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r": cannot be read as the description of a chain \("),
        ("{", r": cannot be read as the description of a chain \("),
        ("[1]", ": is not the description of a chain of format 1$"),
        ('{"format": 2}', ": is not the description of a chain of format 1$"),
        ('{"format": 1}', r" is damaged: KeyError\('data'\)"),
        ('{"format": 1, "data": 3}', " is damaged: AttributeError"),
        ('{"format": 1, "data": INFO, "stage": 3, "key": "a"}', " is damaged: TypeError"),
        ('{"format": 1, "data": ALIKE}', " is damaged: ValueError"),
        ("[" * 100_000, r": cannot be read as the description of a chain \(maximum recursion"),
    ],
)
def test_a_folder_without_a_chain_is_named(tmp_path, content, said):
    if content is not None:
        info = few_digits(tmp_path / "data").info.to_dict()
        alike = {**info, "classes": ["0"] * 10}
        content = content.replace("INFO", json.dumps(info)).replace("ALIKE", json.dumps(alike))
        (tmp_path / "chain.json").write_text(content)
    for folder in (tmp_path, str(tmp_path)):
        with pytest.raises(InputError, match=rf"^{tmp_path}/chain\.json{said}"):
            load_chain(folder)


def test_a_loaded_chain_computes_on_the_given_device_or_the_cpu(
    workshop, trained, tmp_path, monkeypatch
):
    export_chain(workshop.store, trained.ref, workshop.prepared.info, tmp_path)
    asked: list[Any] = []
    monkeypatch.setattr(export, "predictor", lambda *given: asked.append(given[1:]))
    for device in (None, torch.device("cuda:1")):
        load_chain(tmp_path, device)
    what = trained.ref, workshop.prepared.info
    assert asked == [(*what, torch.device("cpu")), (*what, torch.device("cuda:1"))]


def test_a_chain_whose_description_is_a_folder_is_neither_written_nor_read(
    workshop, trained, tmp_path
):
    (tmp_path / "chain.json").mkdir()
    with pytest.raises(InputError, match=rf"^{tmp_path} cannot be written: .*Is a directory"):
        export_chain(workshop.store, trained.ref, workshop.prepared.info, tmp_path)
    told = rf"^{tmp_path}/chain\.json: cannot be read as the description .*Is a directory"
    with pytest.raises(InputError, match=told):
        load_chain(tmp_path)


@pytest.mark.parametrize("stage", ["refine", "calibrate"])
def test_an_upstream_that_is_missing_or_damaged_is_named(tmp_path, workshop, trained, stage):
    parts = MACAL if stage == "refine" else {"ts": {}}
    store = ArtifactStore(tmp_path)
    wanted = request(workshop.prepared, stage, parts, trained)

    def attempt() -> None:
        open_stage(wanted, store, workshop.data).run_epoch()

    with pytest.raises(InputError, match="is missing or damaged") as caught:
        attempt()
    assert str(store.path(trained.ref)) in str(caught.value)
    copy = store.write(trained.ref, {"weights": {"w": torch.ones(2)}}, trained.record)
    (copy.directory / "weights.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="is missing or damaged"):
        attempt()
    told = "^this stage needs a previous stage's artifact; the request names none$"
    for lacking in (replace(wanted, upstream=None), replace(wanted, upstream_stage=None)):
        with pytest.raises(InputError, match=told):
            open_stage(lacking, store, workshop.data).run_epoch()


def test_damaged_upstream_artifacts_are_computed_again_unless_another_trial_was_first(
    tmp_path, workshop, monkeypatch
):
    store = ArtifactStore(tmp_path / "store")

    def chained(stage: str, parts: Any, before: Artifact | None = None) -> StageRequest:
        wanted = request(workshop.prepared, stage, parts, before, protocol={"epochs": 2})
        return replace(wanted, upstream_request=before and before.record["request"])

    def finished(wanted: StageRequest) -> Artifact:
        run = open_stage(wanted, store, workshop.data)
        history = [{"step": step, "metrics": run.run_epoch()} for step in (1, 2)]
        run.finish(history[-1]["metrics"], history)
        found = store.find(wanted.ref)
        return found

    trained = finished(chained("train", {"ce": {}}))
    refined = finished(chained("refine", {"macal": {"epochs": 2}}, trained))
    last = chained("calibrate", {"ts": {}}, refined)
    expected = open_stage(last, store, workshop.data).run_epoch()
    shutil.copytree(store.root, tmp_path / "whole")
    shutil.rmtree(store.root / "features")
    for each in (trained, refined):
        (each.directory / "validation.safetensors").write_bytes(b"x")
    assert open_stage(last, store, workshop.data).run_epoch() == expected
    for each in (trained, refined):
        again = store.find(each.ref)
        for fact in ("request", "metrics", "history", "computed"):
            assert again.record[fact] == each.record[fact]

    lock = store.lock

    @contextmanager
    def waited(ref: ArtifactRef) -> Iterator[None]:
        with lock(ref):
            shutil.copytree(tmp_path / "whole", store.root, dirs_exist_ok=True)
            yield

    (refined.directory / "validation.safetensors").write_bytes(b"x")
    monkeypatch.setattr(store, "lock", waited)
    monkeypatch.setattr(base, "open_stage", lambda *_: pytest.fail("computed again"))
    assert open_stage(last, store, workshop.data).run_epoch() == expected


def test_an_unknown_stage_is_named(workshop):
    wanted = replace(request(workshop.prepared), stage="polish")
    told = "^unknown stage 'polish'; stages are: given, train, refine, calibrate$"
    with pytest.raises(InputError, match=told):
        workshop.open(wanted)


def test_evaluating_a_missing_artifact_raises_an_input_error(workshop):
    with pytest.raises(InputError, match="is missing or damaged"):
        evaluate_on_test(workshop.store, ArtifactRef("train", "ab" * 32), workshop.prepared)


@pytest.mark.parametrize(
    ("stage", "parts", "protocol"),
    [("train", {"ce": {}}, {"lr": 1e30}), ("refine", {"tst": {"epochs": 2, "lr": 1e37}}, {})],
)
def test_a_stage_that_diverges_says_so(workshop, trained, stage, parts, protocol):
    upstream = trained if stage == "refine" else None
    run = workshop.open(request(workshop.prepared, stage, parts, upstream, protocol=protocol))
    with pytest.raises(TrainingDivergedError, match=r"in epoch [12]"):
        [run.run_epoch() for _ in range(run.epochs)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_named_with_its_epoch(workshop, value):
    run = workshop.open(request(workshop.prepared))
    run.epoch = 3
    run.check_finite({"lr": 0.1}, finite=True)
    with pytest.raises(TrainingDivergedError, match=f"^train_loss became {value} in epoch 3$"):
        run.check_finite({"lr": 0.1, "train_loss": value}, finite=True)


def test_remarks_of_a_training_are_printed_when_the_outcome_is_stored(workshop, monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(workshop.store, "notice", told.append)
    run = workshop.open(request(workshop.prepared, seed=9, protocol={"epochs": 1}))
    metrics = run.run_epoch()
    monkeypatch.setattr(run._trainer, "_graphed", SimpleNamespace(refused="no card"))
    run.finish(metrics)
    assert told == ["graph: steps run one operation at a time: no card"]


def test_validation_logits_that_are_not_finite_are_noticed(workshop, monkeypatch):
    run = workshop.open(request(workshop.prepared))
    logits = torch.zeros(300, 10)
    logits[7, 3] = math.inf
    monkeypatch.setattr(train, "predict", lambda *_: logits)
    with pytest.raises(TrainingDivergedError, match="logits became NaN or infinite in epoch 1"):
        run.run_epoch()


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("mcdrop", "it drops entries of one feature vector per image"),
        ("mit", "it decouples a network's outputs for whole images"),
        ("macal", "its classifier takes one feature vector per image"),
    ],
)
def test_a_part_that_is_not_for_the_data_is_refused(workshop, part, reason):
    inputs = MaskedImages((8, 8), (0.5,) * 3, (0.25,) * 3)
    data: Any = SimpleNamespace(prepared=SimpleNamespace(info=SimpleNamespace(inputs=inputs)))
    wanted = request(workshop.prepared, parts={"ce": {}, part: {}})
    with pytest.raises(InputError, match=f"^{part!r} is not for images-with-masks: {reason}$"):
        open_stage(wanted, workshop.store, data)


@pytest.mark.parametrize("kind", [MaskedImages, GivenLogits])
def test_a_temperature_of_training_rows_needs_a_network_of_whole_rows(kind):
    check_part("ts-ls", {"selection": "ece"}, kind)
    with pytest.raises(InputError, match=f"^'ts-ls' with .* which {kind.kind} do not provide$"):
        check_part("ts-ls", {"selection": "training_ece"}, kind)


@pytest.mark.parametrize("images", [None, torch.tensor([4, 4, 5])])
def test_validation_rows_are_those_that_are_stored(workshop, images):
    rows = {"logits": torch.rand(3, 2), "labels": torch.tensor([1, 0, 1])}
    stored = rows if images is None else {**rows, "images": images}
    key = ("b" if images is None else "c") * 64
    workshop.store.write(ArtifactRef("train", key), {"validation": stored}, {})
    found = validation_rows(workshop.store, ArtifactRef("train", key))
    assert torch.equal(found.logits, rows["logits"])
    assert torch.equal(found.labels, rows["labels"])
    assert found.images is None if images is None else torch.equal(found.images, images)


def test_trainings_on_a_gpu_alone_are_asked_for_in_half_precision():
    found = [stage_precision("train", gpus) for gpus in (0, 0.5, 1)]
    assert found == ["float32", "bfloat16", "bfloat16"]
    assert {stage_precision(stage, 1) for stage in ("refine", "calibrate")} == {"float32"}


def test_the_features_of_one_network_and_its_rows_are_kept_at_a_time():
    last, computed = LastPass(), []

    def compute(place: tuple[str, str]) -> Tensor:
        return last.keep(*place, lambda: computed.append(place) or torch.ones(1))

    places = [("rows", "a"), ("rows", "a"), ("rows", "b"), ("others", "b"), ("rows", "a")]
    for place in places:
        compute(place)
    assert computed == places[1:]


@pytest.mark.parametrize("name", ["nll_after_ts", "smooth_ece"])
def test_an_objective_outside_the_report_is_computed_every_epoch_and_for_stored_outcomes(
    workshop, name
):
    keep = "last" if name == "nll_after_ts" else "best_val_nll_after_ts"
    wanted = request(workshop.prepared, protocol={"epochs": 2, "keep": keep})
    plain, asked = workshop.open(wanted), workshop.open(wanted)
    asked.ask_for(f"val_{name}")
    asked.ask_for("val_nll")  # Is there already.
    figures = [(plain.run_epoch(), asked.run_epoch()) for _ in range(2)]
    for one, other in figures:
        assert other.keys() - one.keys() == {f"val_{name}"}
    stored = plain.finish(figures[-1][0])
    # What is told of more rows than are stored, such as all pixels, stays as it was told.
    told = {"val_nll": 7.0}
    assert with_objective(told, "val_nll", stored) == told
    assert with_objective(told, "train_loss", stored) == told
    assert with_objective(stored.record["metrics"], f"val_{name}", stored) == pytest.approx(
        figures[-1][1]
    )
