"""Sweeps that keep the logits of beaten trials, and not their weights."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.storage.events import TrialFinished
from orchestrator.storage.journal import read_events
from orchestrator.storage.ledger import read_ledger
from tests.orchestrator.one_process import one_process
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.stages import validation_rows
from trainables.stages.base import find_artifact
from trainables.store.artifacts import ArtifactStore

SWEEP = """
name: NAME
tasks:
  - {dataset: digits, model: convnet, protocol: {base: digits, epochs: 3},
     split: {train_limit: 200, test_limit: 150}}
recipes: [mbls, wide, mbls+macal, mbls+ts]
variants: {wide: {of: mbls, fixed: {margin: 6.0}}}
search: {trials: 3, sampler: random, keep_default: false, fixed: {macal: {epochs: 6}},
         tune: {mbls: [margin], wide: [weight], macal: [gamma]}}
executor: local
storage: STORAGE
tracking: {uri: 'folder:HERE/runs'}
keep: KEEP
"""


@pytest.fixture(scope="module", autouse=True)
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in a folder with the storage of a sweep that has kept few weights."""
    with pytest.MonkeyPatch.context() as patch, one_process():
        patch.chdir(tmp_path_factory.mktemp("kept"))
        assert run("logits", "few") == 0
        yield


def run(keep: str, storage: str, name: str = "one", command: str = "run") -> int:
    text = SWEEP.replace("NAME", name).replace("KEEP", keep).replace("STORAGE", storage)
    text = text.replace("HERE", str(Path.cwd()))
    Path(f"{name}.yaml").write_text(text)
    return main([command, f"{name}.yaml"])


def weights(storage: str) -> set[str]:
    found = Path(storage, "artifacts").rglob("*.safetensors")
    return {path.parent.name for path in found if path.stem in ("weights", "head")}


def needed(storage: str) -> set[str]:
    """Return the trained artifacts of the published default and the choice of each study."""
    ledger = read_ledger(Path(storage, "sweeps/one/journal.jsonl"))
    kept = [(study.searched[0], study.chosen_trial) for study in ledger.studies.values()]
    return {t.artifact for pair in kept for t in pair if t and t.stage in ("train", "refine")}


def told(storage: str) -> str:
    out = Path(storage, "table.csv")
    table = ["table", "one", "--show", "comparable", "--format", "csv", "--out", str(out)]
    assert main([*table, "--storage", storage]) == 0
    cells = ["one", "--storage", storage, "--out", f"{storage}/cells"]
    assert main(["package", "predictions", *cells]) == 0
    assert main(["report", "one", "--storage", storage]) == 0
    return out.read_text()


def ends(storage: str, name: str = "one") -> list[TrialFinished]:
    events, _ = read_events(Path(storage, "sweeps", name, "journal.jsonl"))
    return [event for event in events if isinstance(event, TrialFinished)]


def test_beaten_trials_lose_their_weights_and_nothing_else(capsys):
    assert run("all", "all") == 0
    assert told("few") == told("all")
    for cell in Path("all/cells").rglob("*.npz"):
        assert Path("few", cell.relative_to("all")).read_bytes() == cell.read_bytes()
    assert weights("few") == needed("few") < weights("all")
    before = ends("few")
    assert run("logits", "few") == 0
    assert ends("few") == before
    store = ArtifactStore(Path("few/artifacts").absolute())
    beaten = next(
        end.artifact for end in before if store.is_dropped(ArtifactRef("train", end.artifact))
    )
    assert len(validation_rows(store, ArtifactRef("train", beaten)).labels) > 0
    fault = "has no weights, because a sweep with `keep: logits` removed them"
    with pytest.raises(InputError, match=f"{beaten} {fault}$"):
        find_artifact(store, ArtifactRef("train", beaten))
    capsys.readouterr()
    assert main(["search", "replay", "few"]) == 2
    assert "the weights of trial " in capsys.readouterr().err


@pytest.mark.full
def test_another_sweep_computes_dropped_weights_again(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("few", "copy")
    assert run("all", "copy", "two", "plan") == 0
    again = "must be computed again, because `keep: logits` removed their weights"
    assert again in capsys.readouterr().out.replace("\n", " ")
    assert run("all", "copy", "two") == 0
    found, before = ([e.metrics.get("val_nll") for e in ends("copy", n)] for n in ("two", "one"))
    assert found == pytest.approx(before, rel=1e-4)  # Refinements share a pass with others now.
    stored = {end.artifact for end in ends("copy")}
    assert weights("copy") == {
        key for key in stored if not list(Path("copy").rglob(f"calibrate/*/{key}"))
    }


@pytest.mark.full
def test_weights_stay_if_the_journal_of_another_sweep_cannot_be_read(caplog):
    assert run("all", "storage", "other") == 0
    journal = Path("storage/sweeps/other/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:5], b"damage\n", *lines[5:]]))
    before = weights("storage")
    assert run("logits", "storage") == 0
    assert weights("storage") >= before
    assert len(weights("storage")) > len(needed("storage"))
    assert (
        f"weights of trials that were not chosen are kept: journal {journal.resolve()}, line 6"
        in caplog.text
    )
