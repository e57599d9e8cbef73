import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from orchestrator.cli import main
from orchestrator.packages.frozen import render_page
from orchestrator.storage.storage import Storage
from tests.orchestrator.packages.boards import BOARD, unpacked
from trainables.metrics import evaluation_report


@pytest.fixture(scope="module")
def site(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    words = ("--license", "https://spdx.org/licenses/CC-BY-4.0")
    place = ("--storage", str(storage.folder), "--out", str(folder))
    assert main(["package", "publish", "board", *words, *place]) == 0
    return folder


def content(site: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(site / "package.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_figures_follow_from_the_files_alone(site: Path) -> None:
    files = content(site)
    cells = json.loads(files["cells.json"])
    assert [(c["recipe"], c["seed"]) for c in cells] == [
        (recipe, seed) for recipe in ("ce", "ls", "ls+ts") for seed in (0, 1)
    ]
    for cell in cells:
        with np.load(io.BytesIO(files[cell["predictions"]])) as found:
            now = evaluation_report(found["logits"], found["labels"])
        assert cell["figures"] == pytest.approx(now, abs=1e-12)
        assert (cell["bins"], cell["code"], cell["split"]["test_limit"]) == (15, "c0ffee", 120)
    table = pd.read_csv(io.BytesIO(files["table.csv"])).set_index("recipe")
    own = [cell["figures"]["ece"] for cell in cells if cell["recipe"] == "ls+ts"]
    assert table.loc["ls+ts", "ece_mean"] == pytest.approx(np.mean(own))


def test_a_package_has_no_path_of_this_machine(storage: Storage, site: Path) -> None:
    told = b"".join(text for name, text in content(site).items() if not name.endswith(".npz"))
    told += (site / "index.html").read_bytes()
    assert str(storage.folder).encode() not in told
    assert b"tracking" not in told


def test_the_page_is_that_of_one_file(storage: Storage, site: Path, tmp_path: Path) -> None:
    page = (site / "index.html").read_text()
    assert page.count("https://spdx.org/licenses/CC-BY-4.0") == 1
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    file = tmp_path / "result.calsweep"
    words = ("--license", "https://spdx.org/licenses/CC-BY-4.0")
    place = ("--storage", str(storage.folder), "--out", str(file))
    assert main(["package", "publish", "board", *words, *place]) == 0
    with zipfile.ZipFile(file) as archive:
        assert archive.read("index.html").decode() == page


def test_words_of_a_sweep_are_escaped_on_the_page(site: Path, tmp_path: Path) -> None:
    package = unpacked(site / "package.zip", tmp_path)
    honest = render_page(package).count("<script")
    package.ledgers[0].sweep = "<script>alert(1)</script>"
    package.cells[0].trial.configuration = {"ce": {"<b>": "</code><script>"}}
    page = render_page(package)
    assert page.count("<script") == honest
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("sweep", "told"), [("other", "no sweep 'other' in "), ("begun", "sweep 'begun' has not ended")]
)
def test_a_sweep_that_cannot_be_published_is_one_line(storage, tmp_path, capsys, sweep, told):
    part = {"dataset": "digits", "suites": "[]", "train": 150, "test": 120}
    text = BOARD.format(
        name="begun", recipes="[ce]", seeds="[0]", storage=tmp_path, trials=3, **part
    )
    place = Storage(tmp_path).sweep("begun")
    place.path.mkdir(parents=True)
    place.spec_file.write_text(text)
    place.journal.write_bytes(b"")
    words = ("--storage", str(tmp_path), "--out", str(tmp_path / "site"))
    assert main(["package", "publish", sweep, *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "site").exists()
