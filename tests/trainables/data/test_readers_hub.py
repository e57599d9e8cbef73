import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_data import refusal

from tests.hub import TOKEN, Hub
from trainables.common.errors import InputError
from trainables.data import (
    DataNote,
    Images,
    Inputs,
    SplitSpec,
    Texts,
    find_prepared,
    find_reader,
    missing_download,
    prepare,
    read_source,
)
from trainables.data._hub_files import find_splits

NAME = "datasets/ada/pets"
LABEL = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}


def parquet(columns: dict[str, list], features: dict | None = None) -> bytes:
    table = pa.table(columns)
    if features is not None:
        told = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": told})
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def texts(count: int, word: str = "pet", **more: list) -> bytes:
    rows = [f"{word} number {k}" for k in range(count)]
    features = {"text": {"_type": "Value", "dtype": "string"}, **LABEL}
    return parquet({"text": rows, "label": [k % 2 for k in range(count)], **more}, features)


def image(value: int, size: tuple[int, int] = (6, 6)) -> dict[str, object]:
    stream = io.BytesIO()
    Image.new("RGB", size, (value, 0, 255)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


def images(count: int, size: tuple[int, int] = (6, 6)) -> bytes:
    columns = {"image": [image(k, size) for k in range(count)], "label": [0, 1] * (count // 2)}
    return parquet(columns, {"image": {"_type": "Image"}, **LABEL})


@pytest.fixture
def put(hub: Hub):
    """Give the repository ada/pets a training and a test file of texts; return the commit."""

    def put(word: str = "pet", revision: str = "main") -> str:
        train, test = texts(20, word), texts(4, f"unseen {word}")
        files = {"data/train-00000-of-00001.parquet": train, "data/test-0.parquet": test}
        return hub.put(NAME, files, revision)

    return put


def test_texts_keep_their_split_and_the_names_of_classes(put, tmp_path):
    commit = put()
    source = read_source("hf:ada/pets", tmp_path)
    assert source.info.classes == ("cat", "dog")
    assert source.train.values[3] == "pet number 3"
    assert source.test.labels.tolist() == [0, 1, 0, 1]
    address = f"https://huggingface.co/datasets/ada/pets, commit {commit}"
    assert source.info.source == address
    assert find_reader("hf:ada/pets", tmp_path).kind is Texts


def test_images_are_stored_as_those_of_a_folder_are(hub, tmp_path):
    hub.put(NAME, {"train.parquet": images(8), "test.parquet": images(2, (10, 8))})
    source = read_source("hf:ada/pets", tmp_path / "root")
    assert source.train.values.shape == (8, 6, 6, 3)
    for k in range(8):
        place = tmp_path / "folder/train" / ("cat", "dog")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{k}.png").write_bytes(image(k)["bytes"])
        place = tmp_path / "folder/test" / ("cat", "dog")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{k}.png").write_bytes(image(k % 2, (10, 8))["bytes"])
    local = read_source(f"folder:{tmp_path}/folder", tmp_path)
    order = np.argsort(source.train.labels, kind="stable")
    assert np.array_equal(source.train.values[order], local.train.values)
    assert np.array_equal(source.test.values, local.test.values[[0, 4]])
    assert source.info.inputs == local.info.inputs
    assert find_reader("hf:ada/pets", tmp_path / "root").kind is Images


def test_prepared_data_are_found_without_a_connection(put, hub, tmp_path):
    put()
    made = prepare("hf:ada/pets", tmp_path, SplitSpec(), tmp_path / "p")
    hub.calls.clear()
    found = find_prepared("hf:ada/pets", tmp_path, SplitSpec(), tmp_path / "p")
    assert (found.key, hub.calls) == (made.key, [])
    assert missing_download("hf:ada/pets", tmp_path, SplitSpec()) == ""


def test_a_revision_that_moves_is_noted_and_the_first_commit_stays(put, tmp_path):
    old = put()
    first = read_source("hf:ada/pets", tmp_path)
    new = put("animal")
    told = (
        f"hf:ada/pets: the Hub now has commit {new[:12]}, but this data root keeps {old[:12]}; "
        f"for the new one use hf:ada/pets@{new}"
    )
    with pytest.warns(DataNote) as notes:
        again = read_source("hf:ada/pets", tmp_path)
    assert [str(note.message) for note in notes] == [told]
    assert again.fingerprint == first.fingerprint
    moved = read_source(f"hf:ada/pets@{new}", tmp_path)
    assert moved.train.values[0] == "animal number 0"
    assert moved.fingerprint != first.fingerprint


def test_a_downloaded_commit_needs_no_request_to_the_hub(put, hub, tmp_path):
    name = f"hf:ada/pets@{put()}"
    read_source(name, tmp_path)
    hub.calls.clear()
    read_source(name, tmp_path)
    assert hub.calls == []


def test_a_branch_may_have_a_slash(put, tmp_path):
    put("branch", "refs/pr/1")
    source = read_source("hf:ada/pets@refs/pr/1", tmp_path)
    assert source.train.values[0] == "branch number 0"


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_is_replaced_by_the_cached_commit(put, hub, tmp_path, status):
    hub.faults.append(("GET /api", status))
    put()
    refused = refusal(read_source, "hf:ada/pets", tmp_path)
    told = f"hf:ada/pets: the Hub answers {status}; try again later"
    assert refused == told
    commit = put()
    first = read_source("hf:ada/pets", tmp_path)
    hub.faults.append(("GET /api", status))
    with pytest.warns(DataNote, match=f"{told}; the cached commit {commit[:12]} is used"):
        assert read_source("hf:ada/pets", tmp_path).fingerprint == first.fingerprint


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_connection_the_cached_commit_is_used(put, tmp_path, monkeypatch, offline):
    import huggingface_hub.constants as constants

    put()

    def disconnect():
        if offline:
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        else:
            monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")

    reason = "OfflineModeIsEnabled" if offline else "ConnectError"
    with monkeypatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", constants.ENDPOINT)
        read_source("hf:ada/pets", tmp_path / "cached")
    disconnect()
    told = f"hf:ada/pets: no connection to the Hub ({reason})"
    assert refusal(read_source, "hf:ada/pets", tmp_path) == told
    with pytest.warns(DataNote) as notes:
        read_source("hf:ada/pets", tmp_path / "cached")
    assert str(notes[0].message).startswith(f"hf:ada/pets: {told}; the cached commit ")


def test_an_interrupted_download_is_completed(put, hub, tmp_path):
    put()
    hub.faults += [("resolve/.*/data/test", 503)] * 12
    told = "hf:ada/pets: the Hub answers 503; try again later"
    assert refusal(read_source, "hf:ada/pets", tmp_path) == told
    assert not find_reader("hf:ada/pets", tmp_path).check().present
    hub.faults.clear()
    assert len(read_source("hf:ada/pets", tmp_path).test) == 4


def test_a_private_or_misspelt_repository_and_a_wrong_revision_are_refused(hub, put, tmp_path):
    gone = "is private or does not exist; check the name, or set HF_TOKEN to a valid token"
    assert refusal(read_source, "hf:ada/pest", tmp_path) == f"hf:ada/pest: {gone}"
    put()
    wrong = "hf:ada/pets: has no such revision; check the text after @"
    assert refusal(read_source, "hf:ada/pets@v9", tmp_path) == wrong
    hub.private.add(NAME)
    assert refusal(read_source, "hf:ada/pets", tmp_path) == f"hf:ada/pets: {gone}"


def test_a_wrong_token_is_refused_and_no_token_is_shown_or_stored(hub, put, tmp_path, monkeypatch):
    put()
    hub.private.add(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_token")
    told = "hf:ada/pets: the Hub refuses the token (401); set HF_TOKEN to a token with access"
    assert refusal(read_source, "hf:ada/pets", tmp_path / "root") == told
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    prepare("hf:ada/pets", tmp_path / "root", SplitSpec(), tmp_path / "root" / "p")
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert files
    assert all(TOKEN.encode() not in path.read_bytes() for path in files)


def test_nothing_is_downloaded_unless_that_is_allowed(hub, put, tmp_path):
    put()
    told = refusal(read_source, "hf:ada/pets", tmp_path, download=False)
    assert told.startswith("dataset 'hf:ada/pets': not downloaded yet; allow the download")
    absent = missing_download("hf:ada/pets", tmp_path, SplitSpec())
    assert absent.startswith("dataset 'hf:ada/pets' is not downloaded yet: ")
    assert hub.calls == []
    assert find_reader("hf:ada/pets", tmp_path).kind is Inputs


def test_other_formats_are_read_from_the_copy_that_the_hub_makes(hub, tmp_path):
    hub.put(NAME, {"train.csv": b"text,label\n"})
    assert refusal(read_source, "hf:ada/pets", tmp_path) == (
        "dataset 'hf:ada/pets': hf:ada/pets has no Parquet files in main or refs/convert/parquet"
    )
    hub.put(NAME, {"default/train/0000.parquet": texts(8)}, "refs/convert/parquet")
    assert len(read_source("hf:ada/pets", tmp_path).train) == 8


def test_a_row_of_a_split_in_several_files_is_named_with_all_of_them(hub, tmp_path):
    hidden = parquet({"text": ["a"], "label": [-1]}, LABEL)
    hub.put(NAME, {"data/train-0.parquet": texts(8), "data/train-1.parquet": hidden})
    told = refusal(read_source, "hf:ada/pets", tmp_path)
    files = "train-0.parquet and the following files up to train-1.parquet, numbered together"
    assert f"{files}: label=-1 in row 8 is not a label" in told


def test_columns_and_splits_are_named_where_there_are_several(hub, tmp_path):
    several = {"text": ["a b"] * 4, "title": ["c"] * 4, "fine": [0, 1, 0, 1]}
    hidden = parquet({**several, "fine": [-1] * 4}, {"fine": LABEL["label"]})
    shown = parquet(several, {"fine": LABEL["label"]})
    files = {"train.parquet": shown, "validation.parquet": shown, "test.parquet": hidden}
    hub.put(NAME, files)
    told = refusal(read_source, "hf:ada/pets", tmp_path)
    assert "fine=-1 in row 0 is not a label" in told
    assert told.endswith("inputs: {test: SPLIT}")
    settings = {"test": "validation", "text": "title"}
    source = read_source("hf:ada/pets", tmp_path, settings=settings)
    assert (source.test.values[0], source.test.labels.tolist()) == ("c", [0, 1, 0, 1])
    made = prepare("hf:ada/pets", tmp_path, SplitSpec(), tmp_path / "p", settings=settings)
    (record,) = (tmp_path / "p" / "sources").glob("*.json")
    assert any(
        "validation.parquet" in path for path in json.loads(record.read_text())["test_paths"]
    )
    assert made.info.num_classes == 2
    with pytest.raises(InputError, match=r"no split 'dev'.*splits are test, train, validation"):
        find_reader("hf:ada/pets", tmp_path, {"test": "dev"})
    with pytest.raises(InputError, match=r"no column 'words'; use inputs: \{text: COLUMN"):
        find_reader("hf:ada/pets", tmp_path, {"text": "words"})


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("hf:pets", "'pets' is not a repository; use hf:ORG/NAME"),
        ("hf:ada/pets@", "'ada/pets@' is not a repository"),
        ("hf:", "expected hf:ORG/NAME"),
        ("hf:ada/../pets", "is not a repository"),
    ],
)
def test_an_address_of_another_form_is_refused(tmp_path, name, fault):
    assert fault in refusal(find_reader, name, tmp_path)


def test_splits_follow_the_header_of_the_readme_or_else_the_names_of_files():
    files = ["en/a.parquet", "en/b.parquet", "fr/a.parquet", "README.md"]
    card = {
        "configs": [
            {"config_name": "en", "data_files": [{"split": "train", "path": ["en/*"]}]},
            {
                "config_name": "fr",
                "default": True,
                "data_files": [{"split": "test", "path": "fr/*"}],
            },
        ]
    }
    assert find_splits(files, card, "en") == {"train": ["en/a.parquet", "en/b.parquet"]}
    assert find_splits(files, card, "") == {"test": ["fr/a.parquet"]}
    with pytest.raises(InputError, match="no configuration 'de'; configurations are en, fr"):
        find_splits(files, card, "de")
    with pytest.raises(InputError, match="several configurations; add one after a colon: en, fr"):
        find_splits(files, {}, "")
    named = ["data/train-0.parquet", "my_dev.parquet", "testing/contest.parquet"]
    expected = [["data/train-0.parquet"], ["my_dev.parquet"], ["testing/contest.parquet"]]
    found = find_splits(named, {}, "")
    assert [found[split] for split in ("train", "validation", "test")] == expected
    assert find_splits(["data.csv"], {}, "") == {}
