import io
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from orchestrator.cli import main
from orchestrator.packages import frozen
from orchestrator.packages.frozen import _place, opened_file
from orchestrator.packages.verify import VerifyOptions, verify
from orchestrator.storage.events import StudyOpened, SweepEnded, SweepStarted
from orchestrator.storage.journal import Journal, read_events
from orchestrator.storage.ledger import Ledger, read_ledger
from orchestrator.storage.results import cells_of
from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, application
from orchestrator.view.server._details import COMPUTING
from orchestrator.view.server._rows import RowBook
from trainables.common.errors import InputError

PAGE = Path(__file__).parents[3] / "docs" / "travel.md"
# The pages of a file in a process of its own, and the slow libraries that were imported.
SERVES = """
import sys
from pathlib import Path
from starlette.testclient import TestClient
from orchestrator.packages.frozen import opened_file
from orchestrator.view.server import Book, _aside, application

_aside.PROGRAM = ""  # Intervals are computed with PyTorch in another process.
with opened_file(Path(sys.argv[1])) as storage:
    client = TestClient(application(Book(storage), "t"), base_url="http://127.0.0.1:1")
    client.get("/?token=t")
    for page in ("", "/studies/0/rows", "/tasks/0/rows/1"):
        print(client.get(f"/sweeps/board{page}").status_code)
print({"torch", "pandas", "sklearn", "ray", "mlflow"} & set(sys.modules))
"""
CHEAP = VerifyOptions(share=0.0, revision="c0ffee")
CELLS = [(recipe, seed) for recipe in ("ce", "ls", "ls+ts") for seed in (0, 1)]
Members = dict[str, bytes]


@pytest.fixture(scope="module")
def files(storage: Storage, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the file as it is by default, and the one that can be verified."""
    folder = tmp_path_factory.mktemp("frozen")
    paths = folder / "result.calsweep", folder / "whole.calsweep"
    for path, options in zip(paths, ((), ("--logits",)), strict=True):
        place = ("--storage", str(storage.folder), "--out", str(path))
        assert main(["package", "publish", "board", *options, *place]) == 0
    return paths


@pytest.fixture(scope="module")
def file(files: tuple[Path, Path]) -> Path:
    return files[0]


def members(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, content: Members, packed: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def test_pandas_reads_results_trials_and_rows(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        results, trials, rows = (
            pd.read_parquet(archive.open(f"{name}.parquet"))
            for name in ("results", "trials", "predictions")
        )
    assert list(zip(results["recipe"], results["seed"], strict=True)) == CELLS
    assert set(results["status"]) == {"finished"}
    right = rows["label"] == rows["prediction"]
    assert (rows["confidence_in_label"][right] == rows["confidence"][right]).all()
    cells = rows.groupby(["recipe", "seed"])
    for result, (_, own) in zip(results.itertuples(), cells, strict=True):
        hits = own["label"] == own["prediction"]
        gaps = (own["confidence"] - hits).groupby(own["bin"]).sum().abs()
        assert (hits.mean(), gaps.sum() / len(own)) == pytest.approx((result.acc, result.ece))
        assert result.nll == pytest.approx(-np.log(own["confidence_in_label"]).mean(), rel=1e-5)
    assert len(trials) == len(set(trials["trial"])) == 8
    assert trials["chosen"].sum() == 3
    chosen = trials[trials["chosen"]].set_index("recipe")
    again = results[results["seed"] == 0].set_index("recipe")
    assert (chosen["configuration"] == again["configuration"]).all()
    assert list(json.loads(chosen["configuration"]["ls+ts"])) == ["ls", "ts"]


def test_the_example_of_the_documentation_runs(file, monkeypatch, capsys):
    monkeypatch.chdir(file.parent)
    (text,) = re.findall(r'```python title="rows.py"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    found: dict[str, pd.DataFrame] = {}
    exec(text, found)
    assert set(found["rows"]["recipe"]) == {"ce"}
    assert len(found["rows"]) == 2 * 120
    assert "ls+ts" in capsys.readouterr().out


def test_two_sweeps_of_one_name_are_both_shown(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("page")
    (tmp_path / "journals").mkdir()
    for sweep_id in ("1a7e", "beef"):
        ledger = Ledger()
        ledger.sweep, ledger.sweep_id = "demo", sweep_id
        (tmp_path / "journals" / f"{sweep_id}.jsonl").write_text(sweep_id)
        _place(ledger, tmp_path)
    found = {each.name: each.journal.read_text() for each in Storage(tmp_path).sweeps()}
    assert found == {"demo": "1a7e", "demo-beef": "beef"}
    ledger.sweep = "../../escape"
    with pytest.raises(InputError, match="is not a valid name of a sweep"):
        _place(ledger, tmp_path)


def test_a_sweep_without_test_figures_is_refused(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is written for a sweep with failures only."""
    own = shutil.copytree(storage.folder, tmp_path / "own", ignore=lambda *_: ["artifacts"])
    journal = own / "sweeps/board/journal.jsonl"
    events = [e for e in read_events(journal)[0] if isinstance(e, SweepStarted | StudyOpened)]
    journal.unlink()
    with Journal(journal) as written:
        for event in (*events, SweepEnded(status="failed")):
            written.append(event)
    out = tmp_path / "out.calsweep"
    assert main(["package", "publish", "board", "--storage", str(own), "--out", str(out)]) == 2
    assert "sweep 'board' has no test figure to publish\n" in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_that_is_named_like_a_zip_file_is_refused(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, root = tmp_path / "result.zip", str(storage.folder)
    assert main(["package", "publish", "board", "--storage", root, "--out", str(out)]) == 2
    assert f"--out {out}: expected a folder for page and package" in capsys.readouterr().err
    assert not out.exists()


def test_a_reader_can_take_the_rows_of_one_cell(file: Path) -> None:
    found = pq.ParquetFile(io.BytesIO(members(file)["predictions.parquet"]))
    assert found.num_row_groups == len(CELLS)
    one = found.read_row_group(3).to_pandas()
    assert {*zip(one["recipe"], one["seed"], strict=True)} == {CELLS[3]}
    assert len(one) == 120


def test_equal_results_are_equal_bytes_and_compressed_once(files: tuple[Path, Path]) -> None:
    small, whole = map(members, files)
    assert small == {name: data for name, data in whole.items() if name in small}
    assert {name.partition("/")[0] for name in {*whole} - {*small}} == {"test", "validation"}
    with zipfile.ZipFile(files[1]) as archive:
        found = archive.infolist()
    assert [each.filename for each in found] == sorted(whole)
    stored = {each.filename for each in found if each.compress_type == zipfile.ZIP_STORED}
    assert stored == {name for name in whole if name.endswith((".npz", ".parquet"))}
    assert {each.date_time for each in found} == {(1980, 1, 1, 0, 0, 0)}


def test_the_page_of_a_frozen_package_loads_nothing_and_has_no_path(
    file: Path, storage: Storage
) -> None:
    content = members(file)
    page = content["index.html"].decode()
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", page)
    assert all(f"{recipe}</" in page for recipe, _ in CELLS)
    assert not any(str(storage.folder).encode() in data for data in content.values())


def test_a_frozen_package_is_verified_and_merged(files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = files[1]
    found = verify(whole, CHEAP)
    assert found.problems == []
    assert "Parquet tables" in [check.title for check in found.checks]
    merged = tmp_path / "new" / "merged.calsweep"
    assert main(["package", "merge", str(whole), str(whole), "--out", str(merged)]) == 0
    assert merged.read_bytes() == whole.read_bytes()


def forged(data: bytes, name: str, change: Callable[[pd.Series], pd.Series]) -> bytes:
    """Return a table with one other column, in the same row groups."""
    file = pq.ParquetFile(io.BytesIO(data))
    schema, sink = file.schema_arrow, io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number).to_pandas()
            table[name] = change(table[name])
            writer.write_table(pa.Table.from_pandas(table, schema, preserve_index=False))
    return sink.getvalue()


@pytest.mark.parametrize(
    ("member", "column", "change"),
    [
        ("predictions.parquet", "confidence", lambda own: own * 0.999),
        ("predictions.parquet", "prediction", lambda own: (own + 1) % 10),
        ("predictions.parquet", "bin", lambda own: own.clip(upper=13)),
        ("results.parquet", "ece", lambda own: own - 1e-9),
        ("trials.parquet", "recipe", lambda own: own + "x"),
    ],
)
def test_a_forged_table_is_found(files, tmp_path, member, column, change):
    content = members(files[1])
    content[member] = forged(content[member], column, change)
    found = verify(written(tmp_path / "forged.calsweep", content), CHEAP)
    assert f"{member} does not agree with the journals and predictions" in found.problems


def links(page: str) -> list[str]:
    return re.findall(r"/sweeps/board/tasks/0/rows/\d+", page)


def figures(page: str) -> list[str]:
    return re.findall(r'data-order="(0\.\d+)" data-kind="number"', page)


@pytest.mark.full
def test_ui_shows_the_rows_of_the_storage(file: Path, storage: Storage) -> None:
    cells = cells_of(read_ledger(storage.sweep("board").journal))
    with opened_file(file) as packed:
        assert not list(packed.folder.rglob("*.parquet"))  # Rows stay in the file.
        for _, trial in cells:
            ours, theirs = (RowBook(each).read(trial.predictions) for each in (packed, storage))
            for name in ("labels", "predicted", "confidence", "true", "bins"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            np.testing.assert_allclose(ours.curve.error, theirs.curve.error, atol=1e-7)
        client = TestClient(application(Book(packed), "t"), base_url="http://127.0.0.1:8720")
        assert "board" in client.get("/?token=t").text
        asked = "/sweeps/board/studies/1/rows?seed=1&sort=disagreement&with=ce"
        page = client.get(asked).text
        assert "A .calsweep file has no inputs and no names of classes" in page
        assert "are not in this storage" not in page
        stored = TestClient(application(Book(storage), "t"), base_url="http://127.0.0.1:8720")
        stored.get("/?token=t")
        assert links(page) == links(stored.get(asked).text)
        for row in links(page)[:2]:
            ours, theirs = (figures(each.get(row).text) for each in (client, stored))
            assert ours == theirs
            assert len(ours) == 2 * len(cells)
        sweep = client.get("/sweeps/board?metrics=acc,risk_80")
        assert sweep.status_code == 200
        assert (
            "risk_80 need all probabilities of each row; a .calsweep file has only two."
            in sweep.text
        )
        assert all(study.recipe in sweep.text for study, _ in cells)


def test_reading_rows_leaves_no_page_of_the_file_in_memory(file: Path, tmp_path: Path) -> None:
    own = Path(shutil.copy(file, tmp_path))
    with opened_file(own) as packed:
        for key in packed._groups:
            rows = RowBook(packed).read(key)
            assert rows.labels.dtype == rows.predicted.dtype == np.uint8
        maps = psutil.Process().memory_maps()
        assert [each.rss for each in maps if each.path == str(own)] == [0]


def test_ui_says_where_the_diagrams_of_a_file_are(file: Path) -> None:
    with opened_file(file) as packed:
        client = TestClient(application(Book(packed), "t"), base_url="http://127.0.0.1:8720")
        client.get("/?token=t")
        end = time.monotonic() + 60
        while COMPUTING in (page := client.get("/sweeps/board").text) and time.monotonic() < end:
            time.sleep(0.02)
    assert "No diagrams and no intervals: they need all probabilities. Unpack" in page
    assert "no predictions on record" not in page
    assert "has no predictions here" not in page


@pytest.mark.full
def test_the_pages_of_a_frozen_package_import_no_slow_library(file: Path) -> None:
    here = os.environ | {"PYTHONPATH": str(PAGE.parents[1])}
    command = [sys.executable, "-c", SERVES, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=here)
    assert done.stdout.split() == ["200", "200", "200", "set()"], done.stderr


@pytest.mark.parametrize(("model", "numbers"), [("given", [40, 7, 11, 3, 20]), ("convnet", None)])
def test_a_row_is_found_by_its_number(tmp_path, monkeypatch, model, numbers):
    """Rows of given logits keep the numbers that they have in the file of logits."""
    monkeypatch.setattr(frozen, "BATCH", 2)
    found = numbers or list(range(5))
    shares = np.linspace(0.1, 0.9, 5, dtype=np.float32)
    columns = [["t"] * 5, ["r"] * 5, [0] * 5, found, range(5), range(5), shares, shares, range(5)]
    arrays = [
        pa.array(list(each), kind) for each, kind in zip(columns, frozen.ROW.types, strict=True)
    ]
    pq.write_table(pa.table(arrays, schema=frozen.ROW), tmp_path / "rows")
    cell = SimpleNamespace(
        study=SimpleNamespace(model=model), trial=SimpleNamespace(predictions="key")
    )
    rows = pq.ParquetFile(tmp_path / "rows")
    cells: Any = SimpleNamespace(cells=[cell])
    storage = frozen.FileStorage(tmp_path, tmp_path, cells, mmap.mmap(-1, 1), rows)
    book = RowBook(storage)
    every = book.read("key")
    for place, number in enumerate(found):
        assert book.row("key", number) == every.at(place)
        assert every.at(place)[:1] + every.at(place)[5:6] == (place, number)
    assert book.row("key", 99) is None


def without(name: str) -> Callable[[Members], Members]:
    return lambda content: {key: data for key, data in content.items() if key != name}


def with_changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Members], Members]:
    return lambda content: {**content, name: change(content[name])}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without("predictions.parquet"), "predictions.parquet is missing; write it with"),
        (without("index.html"), "index.html is missing; write it with"),
        (
            with_changed("package.json", lambda data: data.replace(b'"format": 1', b'"format": 2')),
            "has format 2, this version reads format 1; use the version that wrote it, or a later",
        ),
        (lambda content: {**content, "../../escape.txt": b""}, "an unexpected file"),
        (with_changed("predictions.parquet", lambda data: data[:-50]), "is damaged"),
        (lambda content: content, ""),
    ],
    ids=["rows", "page", "future", "path", "damaged", "honest"],
)
def test_a_file_that_cannot_be_shown_is_one_line(file, tmp_path, capsys, monkeypatch, change, told):
    monkeypatch.setattr("orchestrator.view.server.serve", lambda *_: None)
    path = written(tmp_path / "other.calsweep", change(members(file)))
    assert main(["ui", str(path)]) == (2 if told else 0)
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == (1 if told else 0)


def test_a_truncated_file_is_one_line(file, tmp_path, capsys):
    path = tmp_path / "part.calsweep"
    for data, told in (
        (file.read_bytes()[:-1000], f"{path} is truncated: its end is missing; copy it again"),
        (b"recipe,ece\n", f"{path} is not a .calsweep file"),
    ):
        path.write_bytes(data)
        assert main(["ui", str(path)]) == 2
        assert capsys.readouterr().err == f"calsweep: {told}\n"
    written(path, members(file), zipfile.ZIP_DEFLATED)
    assert main(["ui", str(path)]) == 2
    assert "predictions.parquet is compressed" in capsys.readouterr().err
    assert main(["ui", str(tmp_path)]) == 2
    assert f"use `calsweep ui --storage {tmp_path}`" in capsys.readouterr().err


def test_a_file_without_logits_is_not_verified_or_merged(file, tmp_path, capsys):
    for words in (["verify", str(file)], ["merge", str(file), str(file), "--out", str(tmp_path)]):
        assert main(["package", *words]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"calsweep: {file} has no logits")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value"), [("confidence", 1.5), ("bin", 15), ("label", -1), ("label", None)]
)
def test_the_page_reports_rows_with_impossible_values(file, tmp_path, column, value):
    content = members(file)
    data = content["predictions.parquet"]
    data = forged(data, column, lambda own: own.astype(object).map(lambda _: value))
    path = written(tmp_path / "other.calsweep", {**content, "predictions.parquet": data})
    with opened_file(path) as packed:
        client = TestClient(application(Book(packed), "t"), base_url="http://127.0.0.1:8720")
        client.get("/?token=t")
        answer = client.get("/sweeps/board/studies/0/rows")
    assert answer.status_code == 404
    assert "predictions.parquet" in answer.text
