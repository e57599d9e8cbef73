import numpy as np
import pytest
import torch
from small_data import write_npz
from small_stages import Workshop

from tests.own_process import run_script
from trainables.common.devices import default_device
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.data.suites import SuiteData, auroc, find_suite, fpr_at_tpr, prepare_suite
from trainables.data.suites.ood import PART
from trainables.metrics import metrics_digest
from trainables.stages import evaluate_on_test, evaluate_suite, pooled, predictor
from trainables.store.artifacts import Artifact, stage_key


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("suites"))


@pytest.fixture(scope="module")
def chain(workshop: Workshop) -> tuple[Artifact, Artifact, Artifact]:
    return workshop.chain()


@pytest.fixture(scope="module")
def suites(
    workshop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SuiteData, SuiteData]:
    """Two sets of noise, one of them in colour, for the digits."""
    folder = tmp_path_factory.mktemp("others")
    places = write_npz(folder / "a.npz", 28, 1, seed=1), write_npz(folder / "b.npz", 8, 3, seed=2)
    first, second = (prepare_suite(f"ood-npz:{p}", folder, workshop.prepared) for p in places)
    return first, second


def test_every_stage_is_measured_as_by_hand(workshop, chain, suites):
    values = set()
    for artifact in chain:
        where = (workshop.store, artifact.ref)
        metrics, found = evaluate_suite(*where, workshop.prepared, suites[0].directory)
        outputs = predictor(*where, workshop.prepared.info, default_device())
        outside = outputs(np.array(suites[0].values(PART))).softmax(1).amax(1)
        inside = outputs(workshop.prepared.test().values).softmax(1).amax(1)
        assert outside.shape == (20,)
        assert metrics["ood-a/auroc"] == pytest.approx(auroc(inside, outside), abs=1e-3)
        assert metrics["ood-a/fpr95"] == pytest.approx(fpr_at_tpr(inside, outside), abs=0.06)
        stored = found.tensors("suite")
        assert metrics["ood-a/auroc"] == auroc(stored["inside"], stored["outside"])
        torch.testing.assert_close(stored["outside"].exp(), outside.double(), rtol=1e-4, atol=1e-5)
        values.add(metrics["ood-a/auroc"])
    assert len(values) > 1


def test_another_suite_does_not_repeat_stored_evaluations(workshop, chain, suites, monkeypatch):
    where = (workshop.store, chain[0].ref, workshop.prepared)
    clean = evaluate_on_test(*where)[1]
    first, stored = evaluate_suite(*where, suites[0].directory)
    second, other = evaluate_suite(*where, suites[1].directory)
    own = {"upstream": chain[0].key, "data": workshop.prepared.key}
    assert clean.key == stage_key("evaluate", **own, metrics=metrics_digest("report", "test"))
    for label, suite, found in zip(("ood-a", "ood-b"), suites, (stored, other), strict=True):
        what = {"suite": label, "images": suite.fingerprint}
        expected = stage_key("evaluate", **own, **what, metrics=metrics_digest("report", "suite"))
        assert found.key == expected
    assert set(first) == {"ood-a/auroc", "ood-a/fpr95"}
    assert set(second) == {"ood-b/auroc", "ood-b/fpr95"}
    with monkeypatch.context() as patched:
        for name in ("predictor", "evaluate_on_test"):
            patched.setattr(
                f"trainables.stages.networks.{name}", lambda *_: pytest.fail("computed again")
            )
        assert evaluate_suite(*where, suites[0].directory)[0] == first
    (stored.directory / "suite.safetensors").write_bytes(b"damaged")
    assert evaluate_suite(*where, suites[0].directory)[0] == first


def test_pools_of_two_suites_or_more_are_their_means():
    metrics = {"a/auroc": 0.2, "b/auroc": 0.4, "a/fpr95": 1.0, "b/fpr95": 0.5, "alone/ece": 0.3}
    metrics |= {"none/ece": 0.7, "c/ece": 0.1, "d/ece": 0.2, "e/ece": 0.6, "ab/auroc": 9.0}
    metrics["b/aupr"] = 0.7  # Not of the other of its pool.
    pools = dict(zip("abcde", ["ood", "ood", "shift", "shift", "shift"], strict=True))
    assert pooled(metrics, {**pools, "none": "", "alone": "single"}) == pytest.approx(
        {"ood/auroc": 0.3, "ood/fpr95": 0.75, "shift/ece": 0.3}
    )


def test_an_evaluation_names_the_file_or_artifact_that_is_missing(workshop, suites, tmp_path):
    with pytest.raises(InputError, match=r"suite\.json cannot be read"):
        evaluate_suite(workshop.store, ArtifactRef("train", "ab" * 32), workshop.prepared, tmp_path)
    with pytest.raises(InputError, match="is missing or damaged"):
        evaluate_suite(
            workshop.store, ArtifactRef("train", "ab" * 32), workshop.prepared, suites[0].directory
        )


SCRIPT = """
import sys
import numpy as np
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore
from trainables.data import PreparedData, TestDataSealedError, seal_test_data
from trainables.data.suites import SuiteData, prepare_suite
from trainables.stages import evaluate_suite
prepared, directory, source, store, key = sys.argv[1:]
data, ref = PreparedData.open(prepared), ArtifactRef("train", key)
attempts = {
    "images": lambda: SuiteData.open(directory).values("images"),
    "labels": lambda: SuiteData.open(directory).labels(),
    "file": lambda: np.load(f"{directory}/images.npy"),
    "mapped": lambda: np.load(f"{directory}/images.npy", mmap_mode="r"),
    "source": lambda: np.load(source)["x_test"],
    "prepare": lambda: prepare_suite(f"ood-npz:{source}", ".", data),
    "another": lambda: prepare_suite("ood-digits", ".", data),
    "evaluate": lambda: evaluate_suite(ArtifactStore(store), ref, data, directory),
}


def outcome(attempt):
    try:
        attempt()
    except TestDataSealedError:
        return "sealed"
    except Exception as error:
        return type(error).__name__
    return "reached"


before = {name: outcome(attempt) for name, attempt in attempts.items()}
held = SuiteData.open(directory).labels()
print("held", "reached", outcome(lambda: seal_test_data(data.directory)))
del held
seal_test_data(data.directory)
for name, attempt in attempts.items():
    print(name, before[name], outcome(attempt))
"""


def test_a_sealed_process_does_not_reach_a_suite(workshop, chain, suites):
    data, where = suites[0], (workshop.store, chain[0].ref)
    evaluate_suite(*where, workshop.prepared, data.directory)  # It is there to be found.
    source = str(find_suite(data.name, data.root).test_paths()[0])
    places = [str(workshop.prepared.directory), str(data.directory), source]
    told = run_script(SCRIPT, *places, str(workshop.store.root), chain[0].key)
    before, after = {}, {}
    for line in told.splitlines():
        name, before[name], after[name] = line.split()
    # That one gets as far as reading: the digits are the task's own.
    assert before == {**dict.fromkeys(before, "reached"), "another": "InputError"}
    assert len(after) == 9
    assert set(after.values()) == {"sealed"}
