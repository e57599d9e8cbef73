"""The test rows behind a figure: bins, filters, order, pictures and their addresses."""

import base64
import gc
import io
import re
import shutil
import time
import weakref
from html import unescape
from urllib.parse import urljoin

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from orchestrator.storage.ledger import read_ledger
from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, _rows, application
from orchestrator.view.server._inputs import show_input
from orchestrator.view.server._row_pages import Measured, RowPages
from orchestrator.view.server._rows import RowBook, largest_first
from tests.orchestrator.view.conftest import EVIL
from tests.orchestrator.view.server.test_view import Elements, row, words
from trainables.common.stages import ArtifactRef
from trainables.data import (
    MASK_OUTSIDE,
    GivenLogits,
    Images,
    MaskedImages,
    SplitSpec,
    Texts,
    prepare,
)
from trainables.metrics import column_report, evaluation_report
from trainables.store.artifacts import ArtifactStore

CLASSES = ("cat", "<script>window.stolen='class'</script>", "dog")
ROWS = 130
RECIPES = {"ce": 1.0, "mbls": 3.0, "ls": 2.0}


def key_of(number: int) -> str:
    return f"{number:02x}" * 32


def predicted(number: int, labels: np.ndarray) -> torch.Tensor:
    """Return log-probabilities (N, 3); those of two rows are on the edges of bins."""
    generator = torch.Generator().manual_seed(number)
    logits = torch.randn(len(labels), 3, generator=generator) * list(RECIPES.values())[number // 2]
    logits[0] = torch.tensor([0.6, 0.2, 0.2]).log()
    logits[1] = torch.tensor([0.4, 0.2, 0.4]).log()
    return logits.log_softmax(1)


@pytest.fixture(scope="module")
def kept(tmp_path_factory, journal_writer):
    """Return a storage with a measured sweep on pictures, two seeds each, and the test data."""
    root = tmp_path_factory.mktemp("rows")
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (60 + ROWS, 8, 6, 3), np.uint8)
    labels = draws.integers(0, 3, 60 + ROWS)
    np.savez(
        root / "own.npz",
        **{"x_train": images[:60], "y_train": labels[:60], "x_test": images[60:]},
        **{"y_test": labels[60:], "classes": np.array(CLASSES)},
    )
    data = prepare(f"npz:{root / 'own.npz'}", root, SplitSpec(), root / "data")
    assert data.info.classes == CLASSES
    store, writer = ArtifactStore(root / "artifacts"), journal_writer(root / "sweeps/s", "s")
    writer.start(spec={"name": "s", "seeds": [0, 1]})
    for number, recipe in enumerate(RECIPES):
        study = writer.open(recipe, task="own/net/short", fingerprint=data.key)
        first = writer.trial(study, 0, 0.5, configuration={recipe: {}})
        again = writer.begin(study, 0, role="seed", seed=1, configuration={recipe: {}})
        writer.finish(again, val_ece=0.1)
        writer.close(study, first)
        for seed, trial in enumerate((first, again)):
            key, truth = key_of(2 * number + seed), torch.from_numpy(labels[60:])
            rows = {"log_probs": predicted(2 * number + seed, labels[60:]), "labels": truth}
            store.write(ArtifactRef("evaluate", key), {"test": rows}, {"metrics": {}})
            report = evaluation_report(logits=rows["log_probs"], labels=truth)
            figures = {f"test_{name}": value for name, value in report.items()}
            writer.evaluate(trial, study, seed=seed, facts={"predictions": key}, **figures)
    writer.trial(writer.open("fl", task="own/net/short", fingerprint=data.key), 0, 0.4)
    writer.end()
    return root, data


def opened(root) -> TestClient:
    client = TestClient(application(Book(Storage(root)), "t"), base_url="http://127.0.0.1:8720")
    assert client.get("/?token=t").status_code == 200
    return client


@pytest.fixture(scope="module")
def client(kept):
    return opened(kept[0])


@pytest.fixture
def copy(kept, tmp_path):
    """Return a copy of the storage that a test may damage."""
    return shutil.copytree(kept[0], tmp_path / "copy")


def shown(root, index: int, **query: str) -> dict:
    """Return what a page of rows shows, without a server."""
    storage = Storage(root)
    ledger = read_ledger(storage.sweep("s").journal)
    measured = Measured.of(storage.sweep("s"), ledger)
    return RowPages(storage).rows(measured, list(ledger.studies.values())[index], query)


def numbers(page: str) -> list[int]:
    """Return the row numbers of a list."""
    return [int(n) for n in re.findall(r"/tasks/0/rows/(\d+)\"", page)]


def every(client: TestClient, address: str) -> list[int]:
    """Return the row numbers on a page and on all that follow."""
    found = []
    while address:
        page = client.get(address)
        assert page.status_code == 200, address
        found += numbers(page.text)
        following = re.search(r'href="([^"]+)" rel="next"', page.text)
        address = urljoin(address, unescape(following[1])) if following else ""
    return found


@pytest.mark.parametrize("number", range(6))
def test_the_bins_give_ece_and_part_the_rows(kept, number: int) -> None:
    labels = kept[1].test().labels
    found = RowBook(Storage(kept[0])).read(key_of(number))
    assert found is not None
    log_probs = predicted(number, labels)
    report = evaluation_report(logits=log_probs, labels=torch.tensor(labels))
    parts = [found.chosen(in_bin=each) for each in range(15)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(ROWS))
    confidence = log_probs.double().softmax(1).amax(1).numpy()
    gaps = [abs(float((confidence[p] - found.right[p]).sum())) for p in parts]
    assert sum(gaps) / ROWS == pytest.approx(report["ece"], abs=1e-12)
    assert found.curve.error == pytest.approx(report["ece"], abs=1e-12)
    assert found.curve.count.tolist() == list(map(len, parts))
    assert np.array_equal(found.labels, labels)
    assert float(found.right.mean()) == report["acc"]


def test_filters_part_the_rows_and_stay_in_their_bins(kept) -> None:
    found = RowBook(Storage(kept[0])).read(key_of(2))
    right, wrong, over, under = (set(found.chosen(s)) for s in ("right", "wrong", "over", "under"))
    assert right | wrong == set(range(ROWS))
    assert not right & wrong
    assert over < wrong
    assert under < right
    above = found.curve.confidence > found.curve.accuracy
    assert over == {place for place in wrong if above[found.bins[place]]}
    of_one = [set(found.chosen(label=label)) for label in range(3)]
    assert sum(map(len, of_one)) == ROWS
    assert all(found.labels[place] == 2 for place in of_one[2])


def test_equal_values_keep_the_order_of_rows_over_pages() -> None:
    values = np.float32([0.5, 0.25, 0.5, 1.0, 0.0, 0.5])
    places = np.array([0, 2, 3, 4, 5])
    assert largest_first(places, values, 0, 5).tolist() == [3, 0, 2, 5, 4]
    assert largest_first(places, values, 1, 3).tolist() == [0, 2]


def test_from_a_figure_to_a_row_in_three_clicks(client) -> None:
    def follow(address: str, wanted: str) -> str:
        links = Elements(client.get(address).text).links()
        return urljoin(address, next(link for link in links if wanted in link))

    rows = follow("/sweeps/s", "/studies/1/rows")
    inside = follow(rows, "&bin=")
    last = follow(inside.partition("#")[0], "/tasks/0/rows/")
    page = client.get(last).text
    assert {name: row(page, name)[1] for name in RECIPES} == dict.fromkeys(RECIPES, "0")
    assert follow("/sweeps/s/studies/1", "/rows") == rows


def test_the_address_of_a_page_selects_and_sorts_rows(client, kept) -> None:
    rows, other = (RowBook(Storage(kept[0])).read(key_of(number)) for number in (3, 1))
    gap = np.abs(rows.true - other.true)
    assert every(client, "/sweeps/s/studies/1/rows?seed=1") == list(range(ROWS))
    wrong = every(client, "/sweeps/s/studies/1/rows?seed=1&show=wrong&sort=disagreement&with=ce")
    assert sorted(wrong) == rows.chosen("wrong").tolist()
    assert (np.diff(gap[wrong]) <= 0).all()
    sure = every(client, "/sweeps/s/studies/1/rows?seed=1&class=1&sort=confidence&bin=")
    assert sorted(sure) == rows.chosen(label=1).tolist()
    assert (np.diff(rows.confidence[sure]) <= 0).all()
    page = client.get("/sweeps/s/studies/1/rows?seed=1&sort=disagreement&with=ls&show=right").text
    chosen = re.findall(r'<option value="(\w*)" selected>', page)
    assert chosen == ["1", "right", "disagreement", "ls"]


def test_a_row_shows_its_picture_and_every_prediction(client, kept) -> None:
    page = client.get("/sweeps/s/tasks/0/rows/77").text
    test = kept[1].test()
    source = re.search(r'src="data:image/png;base64,([^"]+)" width="240" height="320"', page)
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(source[1]))))
    assert np.array_equal(picture, test.values[77])
    assert f"label {CLASSES[test.labels[77]]}" in words(page)
    lines = re.findall(r"(?s)<tr data-item>(.*?)</tr>", page)
    assert len(lines) == 6
    for number, line in enumerate(lines):
        scores = predicted(number, test.labels)[77].exp()
        cells = [words(cell) for cell in re.findall(r"(?s)<t[hd].*?</t[hd]>", line)]
        right = int(scores.argmax()) == test.labels[77]
        assert cells[2:4] == [CLASSES[scores.argmax()], "right" if right else "wrong"]
        shown = [f"{100 * p:.1f}" for p in (scores.max(), scores[test.labels[77]])]
        assert cells[4:] == shown


def test_names_of_classes_and_recipes_are_escaped(client, view) -> None:
    for page in (
        client.get("/sweeps/s/studies/0/rows?class=1").text,
        client.get("/sweeps/s/tasks/0/rows/3").text,
        view.client.get("/sweeps/night/studies/0/rows").text,
        view.client.get("/sweeps/night/studies/0/rows", params={"with": EVIL}).text,
        view.client.get("/sweeps/night/tasks/0/rows/3").text,
    ):
        elements = Elements(page).found
        scripts = [a for tag, a in elements if tag == "script"]
        assert [a for a in scripts if a.get("type") != "application/json"] == [
            {"src": "/script.js", "id": "vega", "data-src": "/vega.js", "defer": None}
        ]
        assert not [n for _, a in elements for n in a if n.startswith("on") or n == "style"]
        images = [a["src"] for tag, a in elements if tag == "img"]
        assert all(source.startswith("data:image/png;base64,") for source in images)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("studies/0/rows?seed=7", "seed=7 is not one of 0, 1."),
        ("studies/0/rows?bin=15", "bin=15 is outside 0 to 14."),
        ("studies/0/rows?bin=-1", "bin='-1' is not a whole number."),
        ("studies/0/rows?class=3", "class=3 is outside 0 to 2."),
        ("studies/0/rows?show=odd", "show='odd' is not one of all, right, wrong, over, under."),
        ("studies/0/rows?sort=x", "sort='x' is not one of row, confidence, disagreement."),
        ("studies/0/rows?with=ce", "with='ce' is not one of mbls, ls."),
        ("studies/0/rows?page=4", "page=4 is outside 1 to 3."),
        ("studies/0/rows?page=0", "page=0 is outside 1 to 3."),
        ("studies/3/rows", "fl on own/net/short has no test rows yet: test data are sealed until "),
        ("studies/9/rows", "This sweep has no study 9."),
        ("tasks/1/rows/0", "This sweep has no task 1."),
        ("tasks/0/rows/130", "The predictions of own/net/short have no row 130."),
    ],
)
def test_a_bad_address_is_one_line(client, query: str, text: str) -> None:
    answer = client.get(f"/sweeps/s/{query}")
    assert (answer.status_code, answer.text.count('class="missing">')) == (404, 1)
    assert text in words(answer.text)


def test_figures_are_shown_without_the_data(copy) -> None:
    shutil.rmtree(copy / "data")
    client = opened(copy)
    for place in ("studies/1/rows?show=wrong", "tasks/0/rows/5"):
        page = client.get(f"/sweeps/s/{place}").text
        assert "The prepared data of own/net/short are damaged or not in this storage" in page
        assert f"`calsweep run --resume s --storage {copy}` prepares them again." in words(page)
        assert "class 2" in page
        assert "<img" not in page


def test_other_data_are_not_shown_with_the_predictions(copy) -> None:
    (labels,) = (copy / "data").glob("*/test/labels.npy")
    np.save(labels, (np.load(labels) + 1) % 3)
    found = shown(copy, 1)
    own = "The stored data of own/net/short have other labels than the predictions."
    assert found["problems"] == [own]
    assert {line.shown.picture for line in found["lines"]} == {""}


def ready(client: TestClient, metrics: str) -> str:
    """Return the page of the sweep with other columns, when they are computed."""
    address, deadline = f"/sweeps/s?metrics={metrics}", time.monotonic() + 20
    while f"{metrics} are being computed" in (page := client.get(address).text):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return page


def test_a_table_shows_the_columns_of_the_address(client, kept) -> None:
    first = client.get("/sweeps/s?metrics=nll,%20risk_80").text
    assert "risk_80 are being computed" in words(first)
    assert row(first, "ce", "table-1")[2] == "–"
    assert 'name="metrics" value="nll,risk_80"' in first
    ready(client, "risk_80")
    page = client.get("/sweeps/s?metrics=nll,risk_80").text
    truth = torch.from_numpy(kept[1].test().labels.copy())
    rows = [predicted(n, truth.numpy()) for n in (0, 1)]
    risk = np.mean([column_report(each, truth, ["risk_80"])["risk_80"] for each in rows])
    nll = np.mean([evaluation_report(logits=each, labels=truth)["nll"] for each in rows])
    found = [cell.partition(" ")[0] for cell in row(page, "ce", "table-1")[1:]]
    assert found == [f"{nll:.4f}", f"{100 * risk:.2f}"]
    assert "Differences from ce" not in words(page)
    assert len(row(client.get("/sweeps/s").text, "ce", "table-1")) > 3
    lacking = ready(client, "lac_90_size")
    assert row(lacking, "ce", "table-1")[1] == "–"
    assert "ce on own/net/short has no lac_90_size: " in words(lacking)


@pytest.mark.parametrize(
    ("metrics", "text"), [("acc,nope", "unknown metric 'nope'"), ("ece,ece", "different metrics")]
)
def test_unknown_columns_are_named(client, metrics: str, text: str) -> None:
    answer = client.get(f"/sweeps/s?metrics={metrics}")
    assert answer.status_code == 404
    assert text in unescape(answer.text)


def test_a_page_does_not_keep_the_rows_that_the_cache_has_dropped(kept, monkeypatch) -> None:
    read, seen = _rows._rows_in, []

    def reading(path):
        rows = read(path)
        seen.append(weakref.ref(rows))
        return rows

    monkeypatch.setattr(_rows, "KEPT", 1)
    monkeypatch.setattr(_rows, "_rows_in", reading)
    client = opened(kept[0])
    client.get("/sweeps/s/studies/0/rows")  # Compiles the template.
    gc.collect()
    seen.clear()
    gc.disable()
    try:
        assert client.get("/sweeps/s/studies/0/rows?sort=disagreement").status_code == 200
        assert [rows() for rows in seen] == [None, None]
    finally:
        gc.enable()


def test_lost_and_damaged_predictions_are_named_and_others_shown(copy) -> None:
    store = ArtifactStore(copy / "artifacts")
    places = [store.path(ArtifactRef("evaluate", key_of(number))) for number in (2, 3)]
    shutil.rmtree(places[0])
    (places[1] / "test.safetensors").write_bytes(b"x" * 100)
    text = "The predictions of mbls on own/net/short, seed 0, are not in this storage; "
    with pytest.raises(HTTPException, match=text):
        shown(copy, 1)
    with pytest.raises(HTTPException, match=r"test\.safetensors is damaged: .*; `calsweep run"):
        shown(copy, 1, seed="1")
    beside = shown(copy, 0, **{"with": "mbls"})
    assert [len(beside["lines"]), beside["selection"].other] == [50, ""]
    assert beside["problems"][0].startswith(text)
    with pytest.raises(HTTPException, match=text):
        shown(copy, 0, **{"with": "mbls", "sort": "disagreement"})
    page = opened(copy).get("/sweeps/s/tasks/0/rows/5").text
    assert row(page, "mbls")[2:] == ["not stored", *"–––"]
    assert page.count('class="missing">') == 2
    assert row(page, "ls")[3] in ("right", "wrong")


def test_predictions_that_differ_from_the_table_are_named(copy) -> None:
    store = ArtifactStore(copy / "artifacts")
    places = [store.path(ArtifactRef("evaluate", key_of(number))) for number in (0, 4)]
    shutil.copy(places[1] / "test.safetensors", places[0])
    (problem,) = shown(copy, 0)["problems"]
    assert problem.endswith("the stored predictions are not those of the table.")


def test_no_file_outside_the_storage_is_read(copy, tmp_path) -> None:
    store = ArtifactStore(copy / "artifacts")
    path = store.path(ArtifactRef("evaluate", key_of(0))) / "test.safetensors"
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    with pytest.raises(HTTPException, match="was not read: it leads to a place outside"):
        shown(copy, 0)
    (values,) = (copy / "data").glob("*/test/images.npy")
    values.rename(tmp_path / "images")
    values.symlink_to(tmp_path / "images")
    lacking, problem = shown(copy, 1)["problems"]
    assert "it leads to a place outside" in lacking
    assert "are damaged or not in this storage" in problem


def test_rows_of_given_logits_are_found_by_their_numbers(copy) -> None:
    log_probs, own = predicted(0, np.zeros(ROWS)), torch.arange(ROWS).flip(0) * 7
    rows = {"log_probs": log_probs, "labels": torch.arange(ROWS) % 3, "rows": own}
    ArtifactStore(copy / "artifacts").write(
        ArtifactRef("evaluate", "ff" * 32), {"test": rows}, {"metrics": {}}
    )
    book = RowBook(Storage(copy))
    kept = book.read("ff" * 32)
    assert [kept.at(place).number for place in (0, 9)] == [7 * (ROWS - 1), 7 * (ROWS - 10)]
    found = book.row("ff" * 32, 7 * (ROWS - 10))
    assert found.confidence == pytest.approx(float(log_probs[9].max().exp()))
    assert [found.label, book.row("ff" * 32, 8)] == [0, None]


def test_a_pixel_shows_its_image_and_the_maps_of_it(tmp_path, journal_writer) -> None:
    for place in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (tmp_path / "voc" / place).mkdir(parents=True)
    for part, count in {"train": 4, "test": 2}.items():
        names = [f"{part}{number}" for number in range(count)]
        (tmp_path / f"voc/ImageSets/Segmentation/{part}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            mask = np.full((6, 8 - number), number % 2, np.uint8)
            Image.fromarray(mask + 9).save(tmp_path / f"voc/JPEGImages/{name}.jpg")
            Image.fromarray(mask).save(tmp_path / f"voc/SegmentationClass/{name}.png")
    data = prepare(f"voc:{tmp_path / 'voc'}", tmp_path, SplitSpec(validation=1), tmp_path / "data")
    pixels = data.info.inputs.pixels(data.test())
    log_probs = torch.randn(len(pixels.labels), 2).log_softmax(1)
    rows = {"log_probs": log_probs, "labels": pixels.labels, "images": pixels.rows}
    kept = torch.from_numpy(data.test().values[1:].copy())
    maps = {"rows": kept, **dict.fromkeys(("confidence", "predicted"), kept[..., 3].clone())}
    maps = {name: values.clone() for name, values in maps.items()}
    ref = ArtifactRef("evaluate", key_of(9))
    ArtifactStore(tmp_path / "artifacts").write(ref, {"test": rows, "maps": maps}, {"metrics": {}})
    writer = journal_writer(tmp_path / "sweeps/s", "s")
    writer.start()
    study = writer.open("ce", fingerprint=data.key)
    trial = writer.trial(study, 0, 0.5)
    writer.close(study, trial)
    writer.evaluate(trial, study, facts={"predictions": key_of(9)}, test_ece=0.5)
    found = shown(tmp_path, 0, bin="14")
    assert found["problems"] == [
        "These rows are a sample of the pixels behind the table's figures."
    ]
    client = opened(tmp_path)
    last = len(pixels.labels) - 1
    for number, image, pictures in ((0, 0, ["png"]), (last, 1, ["png", "jpeg"])):
        page = client.get(f"/sweeps/s/tasks/0/rows/{number}").text
        text = f"Row {number} of the test data, a pixel of image {image} · label {image}"
        assert text in words(page)
        assert re.findall(r'src="data:image/(\w+);', page) == pictures
    assert 'width="315" height="270"' in page  # The smaller image, without the rest of its row.


def test_inputs_are_shown_as_they_are_stored() -> None:
    texts = Texts(vocabulary=3, length=60, words=("one", "<two>", "three"))
    values = np.array([0] * 10 + [1, 2, 3] + [3] * 47, np.int32)
    assert show_input(texts, values[:13]).text == "one <two> three"
    assert show_input(texts, values).text.endswith("three ...")
    assert len(show_input(texts, values, large=True).text.split()) == 50
    assert (
        show_input(GivenLogits(12), np.arange(12) / 4).text == "0 0.25 0.5 0.75 1 1.25 1.5 1.75 ..."
    )
    masks = MaskedImages((6, 8), (0.5,) * 3, (0.5,) * 3)
    stored = np.full((6, 8, 4), MASK_OUTSIDE, np.uint8)
    stored[:4, :5] = np.arange(20).reshape(4, 5, 1)
    shown = show_input(masks, stored)
    picture = Image.open(io.BytesIO(base64.b64decode(shown.picture.partition(",")[2])))
    assert np.array_equal(np.asarray(picture), stored[:4, :5, :3])
    assert shown.size == (60, 48)
    large = np.full((100, 150, 3), 7, np.uint8)
    images = Images((100, 150), 3, (0.5,) * 3, (0.5,) * 3, "none")
    assert show_input(images, large).size == (50, 34)
    assert show_input(images, large, large=True).size == (300, 200)
