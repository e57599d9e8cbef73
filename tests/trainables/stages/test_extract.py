from pathlib import Path

import numpy as np
import pytest
import torch
from small_stages import write_masks

from orchestrator.cli import main
from trainables.common.errors import InputError
from trainables.data import SplitSpec, prepare, read_source
from trainables.stages import extract
from trainables.stages.engine import every_row, in_batches, seeded_network
from trainables.stages.extract import extract_features

CPU = torch.device("cpu")


def extracted(out: Path, model: str = "convnet", data: str = "digits") -> dict[str, int]:
    return extract_features(model, data, "unused", out, CPU, lambda text: None)


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cached")
    assert extracted(folder) == {"train": 1797}
    return folder


def test_stored_features_are_those_that_the_classifier_sees(cached: Path) -> None:
    source = read_source("digits", "unused")
    network = seeded_network("convnet", source.info, 0)
    batcher = source.info.inputs.batcher(source.train.read(0, 1797))
    expected = in_batches(network, lambda b: network.features(batcher.plain(b)), every_row(batcher))
    found = np.load(cached / "features_train.npy")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.load(cached / "labels_train.npy"), source.train.labels)


def test_the_folder_is_data_of_a_task(cached: Path, tmp_path: Path) -> None:
    data = prepare(f"features:{cached}", "unused", SplitSpec(), tmp_path / "data")
    assert data.info.classes == tuple("0123456789")
    assert data.info.inputs.width == np.load(cached / "features_train.npy").shape[1]


def test_an_interrupted_call_is_continued_to_the_same_bits(cached, tmp_path, monkeypatch):
    monkeypatch.setattr(extract, "EVALUATION_BATCH", 500)
    extracted(tmp_path / "whole")
    told: list[str] = []

    def interrupt(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            raise KeyboardInterrupt

    out = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        extract_features("convnet", "digits", "unused", out, CPU, interrupt)
    assert not [*out.glob("*.npy")]
    draft = out / "features_train.npy.part"
    draft.write_bytes(draft.read_bytes()[:-8])  # A row that was half written.
    extract_features("convnet", "digits", "unused", out, CPU, told.append)
    assert [text.split()[1] for text in told] == ["500", "1,000", "1,000", "1,500", "1,797"]
    for name in ("features_train.npy", "labels_train.npy", "classes.npy"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    extract_features("convnet", "digits", "unused", out, CPU, told.append)
    assert len(told) == 5


def test_a_folder_of_other_features_is_refused(cached: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="contains features of convnet on digits; use a new folder"
    ):
        extracted(cached, "resnet8")
    np.save(tmp_path / "mine.npy", np.zeros(3))
    with pytest.raises(
        InputError, match=r"contains other files, such as mine\.npy; use a new folder"
    ):
        extracted(tmp_path)


def test_a_network_without_one_vector_a_row_is_refused(tmp_path: Path) -> None:
    name = write_masks(tmp_path / "masks")
    with pytest.raises(
        InputError,
        match=r"expected features of shape \(D,\) per row, got \(.*\); use another model",
    ):
        extracted(tmp_path / "out", "deeplabv3-small", name)


def test_a_network_for_other_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'linear' takes features, got images"):
        extracted(tmp_path, "linear")


def test_the_command_says_that_weights_are_random_and_how_a_task_names_the_folder(tmp_path, capsys):
    out = tmp_path / "cached"
    assert main(["features", "extract", "convnet", "digits", "--out", str(out), "--quiet"]) == 0
    told = capsys.readouterr()
    assert told.out == (
        f"features of 1,797 train rows in {out}; in a sweep file: tasks: [{{features: {out}}}]\n"
    )
    assert told.err == (
        "calsweep: note: convnet has random weights; pretrained ones are timm:NAME@pretrained\n"
    )
