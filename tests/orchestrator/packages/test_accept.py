import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from torch.nn import functional as F

from orchestrator.cli import main
from orchestrator.packages.package import TEST
from orchestrator.packages.predictions import RowPredictions
from orchestrator.packages.publish import publish
from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import unpacked

Change = Callable[[RowPredictions], RowPredictions]


@pytest.fixture(scope="module")
def base(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    publish(storage, ["board"], folder)
    return folder / "package.zip"


def changed(base: Path, folder: Path, change: Change) -> Path:
    """Return a package whose test predictions are other ones."""
    package = unpacked(base, folder / "unpacked")
    for file in (package.folder / TEST).iterdir():
        change(RowPredictions.read(file)).save(file)
    return package.pack(folder / "new.zip")


def towards_labels(own: RowPredictions) -> RowPredictions:
    hits = F.one_hot(own.labels, own.logits.shape[1])
    return replace(own, logits=(own.logits + 6 * hits).log_softmax(1))


def away_from_labels(own: RowPredictions) -> RowPredictions:
    hits = F.one_hot(own.labels, own.logits.shape[1])
    return replace(own, logits=(own.logits - 3 * hits).log_softmax(1))


def turned(own: RowPredictions) -> RowPredictions:
    flipped: Tensor = own.rows.flip(0)
    return replace(own, rows=flipped)


def copied(base: Path, folder: Path) -> Path:
    path = folder / "base.zip"
    path.write_bytes(base.read_bytes())
    return path


@pytest.mark.parametrize(("change", "code"), [(towards_labels, 0), (away_from_labels, 3)])
def test_only_an_improvement_is_kept(base, tmp_path, change, code, capsys):
    new, old = changed(base, tmp_path, change), copied(base, tmp_path)
    words = ["package", "accept", str(old), str(new), "--metric", "nll", "--json"]
    assert main(words) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["keep"], found["tries"], found["level"]) == (code == 0, 1, 0.025)
    assert (found["difference"] < 0) == (code == 0)
    assert found["cells"] == [f"{recipe} on digits/tiny" for recipe in ("ce", "ls", "ls+ts")]
    assert found["seeds"] == [0, 1]
    assert (found["p_value"] < 0.025) == (code == 0)


def test_each_further_try_has_a_lower_level(base, tmp_path, capsys):
    new, old = changed(base, tmp_path, towards_labels), copied(base, tmp_path)
    said = []
    for metric in ("acc", "brier", "nll", "acc"):
        main(["package", "accept", str(old), str(new), "--metric", metric])
        said.append(capsys.readouterr().out)
    assert [line.partition("needed at most ")[2].strip() for line in said] == [
        *("0.025 (try 1)", "0.0083 (try 2)", "0.0042 (try 3)"),
        "0.025 (try 1)",  # The same question is no further try.
    ]
    book = json.loads((tmp_path / "base.zip.tries.json").read_text())
    assert [one["metric"] for one in book["tries"]] == ["acc", "brier", "nll"]
    with zipfile.ZipFile(old, "a") as archive:  # Another base begins again.
        archive.comment = b"another"
    main(["package", "accept", str(old), str(new), "--metric", "nll"])
    assert capsys.readouterr().out.strip().endswith("needed at most 0.025 (try 1)")


def test_an_equal_package_is_discarded(base, tmp_path, capsys):
    old = copied(base, tmp_path)
    assert main(["package", "accept", str(old), str(old)]) == 3
    assert capsys.readouterr().out.startswith("discard: ")


def test_packages_that_cannot_be_compared_are_one_line(base, tmp_path, capsys):
    old = copied(base, tmp_path)
    new = changed(base, tmp_path, turned)
    for words, told in (
        ([new], "seed 0: the packages were tested on different rows; run both on the same data"),
        ([old, "--metric", "lac_90_size"], "--metric 'lac_90_size' cannot be compared; use one of"),
    ):
        assert main(["package", "accept", str(old), *map(str, words)]) == 2
        error = capsys.readouterr().err
        assert (told in error, error.count("\n")) == (True, 1)
    (tmp_path / "base.zip.tries.json").write_text("[]")
    assert main(["package", "accept", str(old), str(old)]) == 2
    assert "base.zip.tries.json: the earlier tries cannot be read" in capsys.readouterr().err
