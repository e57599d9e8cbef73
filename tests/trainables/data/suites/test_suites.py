import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from small_data import ROWS, make_images, refusal, write_npz
from torch import Tensor

from trainables.common.errors import InputError
from trainables.data import Images, PreparedData
from trainables.data._prepared import digest
from trainables.data.suites import (
    check_suites,
    find_suite,
    prepare_suite,
    suite_directory,
    suite_names,
)
from trainables.data.suites._base import SuiteData
from trainables.data.suites._corruptions import CORRUPTIONS
from trainables.data.suites.cifar_c import Cifar10C, OfficialCorruptions
from trainables.data.suites.ood import PART, fitted
from trainables.metrics import calibration_report

NOWHERE = Path("nowhere")


def by_pixels(images: np.ndarray) -> Tensor:
    patches = torch.from_numpy(np.array(images[:, :30, :30], np.float32)).mean(3)
    means = patches.view(len(images), 3, 10, 30).mean((1, 3))
    return (means / 4).log_softmax(1)


def test_names():
    assert suite_names() == [
        *("bins-10", "bins-20", "cifar10-c", "cifar100-c", "generated-c"),
        *("ood-cifar10", "ood-cifar100", "ood-cub200", "ood-digits", "ood-digits-noisy"),
        *("ood-fashion-mnist", "ood-folder:PATH", "ood-imagenet", "ood-npz:PATH"),
        *("ood-svhn", "ood-tiny-imagenet"),
    ]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("cifar10-c", "cifar10-c"),
        ("ood-svhn", "ood-svhn"),
        ("ood-fashion-mnist", "ood-fashion-mnist"),
        ("ood-npz:some/my data+1.npz", "ood-my_data_1"),
        ("ood-folder:some/Birds", "ood-Birds"),
        (f"ood-npz:{'a' * 60}.npz", f"ood-{'a' * 60}"),
        (f"ood-npz:{'a' * 61}.npz", f"ood-{'a' * 60}"),
    ],
)
def test_labels_are_names_for_metrics(name, label):
    assert find_suite(name, NOWHERE).label == label


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["cifar10c"], "unknown suite 'cifar10c'; near are: cifar10-c"),
        (["ood"], "unknown suite 'ood'"),
        (["ood-shvn"], "unknown suite 'ood-shvn'; near are: ood-svhn"),
        (["cifar10-c-2"], "unknown suite 'cifar10-c-2'; near are: cifar10-c"),
        (["svhn"], "unknown suite 'svhn'; near are: ood-svhn"),
        (["ood-npz"], "dataset 'npz': expected npz:PATH"),
        (["ood-svhn:3"], "'svhn' takes no argument; remove the colon"),
        (
            ["ood-npz:a/x.npz", "ood-svhn", "ood-folder:b/x"],
            "^suites 'ood-npz:a/x.npz' and 'ood-folder:b/x' have the same label 'ood-x'$",
        ),
        (["ood-svhn", "ood-svhn"], "have the same label 'ood-svhn'"),
        (["bins"], "unknown suite 'bins'; near are: bins-"),
        (["bins-1000000"], "unknown suite 'bins-1000000'; near are: bins-"),
        (["bins-0"], "unknown suite 'bins-0'; near are: bins-"),
    ],
)
def test_wrong_names(names, text):
    with pytest.raises(InputError, match=text):
        check_suites(names, NOWHERE)


def test_an_unknown_suite_without_a_near_name_lists_all_suites():
    there = f"there are: {', '.join(suite_names())}"
    told = f"unknown suite 'zzz'; {there}; `calsweep list suites` shows all"
    assert refusal(find_suite, "zzz", NOWHERE) == told


@pytest.mark.parametrize("bins", [1, 7, 20])
def test_errors_in_another_number_of_bins(make_task, arrays, bins):
    task = make_task(test_limit=10)
    data = prepare_suite(f"bins-{bins}", arrays, task, download=False)
    clean = by_pixels(task.test().values)
    metrics, _ = find_suite(f"bins-{bins}", arrays).judge(data, lambda _: clean, clean)
    expected = calibration_report(clean, labels=task.test().labels.copy(), bins=bins)
    assert metrics == {n: expected[n] for n in ("ece", "aece", "cwece", "cwaece", "mce")}
    usual = calibration_report(clean, labels=task.test().labels.copy())
    assert metrics["ece"] != usual["ece"]


def test_corruptions_are_those_of_the_benchmark_in_its_order():
    assert list(CORRUPTIONS) == [
        *("gaussian_noise", "shot_noise", "impulse_noise"),
        *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness"),
        *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ]


def test_official_corruptions_are_stored_as_they_are(make_task, arrays):
    data = prepare_suite("cifar10-c", arrays, make_task(), download=False)
    for corruption in CORRUPTIONS:
        expected = np.load(arrays / "CIFAR-10-C" / f"{corruption}.npy")
        np.testing.assert_array_equal(data.values(corruption), expected)
    np.testing.assert_array_equal(data.labels(), np.arange(ROWS) % 10)
    places = [str(arrays / name) for name in ("CIFAR-10-C", "CIFAR-10-C.tar")]
    assert json.loads((data.directory / "suite.json").read_text())["test_paths"] == places
    assert (data.name, data.root) == ("cifar10-c", str(arrays))


def test_a_limit_keeps_the_rows_that_the_task_keeps(make_task, arrays):
    task = make_task(test_limit=10)
    kept = np.load(task.directory / "test" / "indices.npy")
    data = prepare_suite("cifar10-c", arrays, task, download=False)
    images = data.values("fog")
    assert images[:, 0, 0, 0].tolist() == kept.tolist() * 5
    assert images[:, 0, 0, 1].tolist() == np.repeat(np.arange(1, 6), 10).tolist()
    np.testing.assert_array_equal(data.labels(), task.test().labels)


def test_corruption_metrics_are_means_over_corruptions_and_severities(make_task, arrays):
    data = prepare_suite("cifar10-c", arrays, make_task(), download=False)
    metrics, tensors = find_suite(data.name, data.root).judge(data, by_pixels, torch.empty(0))
    labels = torch.arange(ROWS) % 10
    reports = {}
    for corruption in CORRUPTIONS:
        images = np.load(arrays / "CIFAR-10-C" / f"{corruption}.npy")
        for severity in range(5):
            log_probs = by_pixels(images[severity * ROWS :][:ROWS])
            reports[corruption, severity] = calibration_report(logits=log_probs, labels=labels)
    for name in ("acc", "nll", "brier", "ece", "aece", "cwece", "cwaece", "mce"):
        expected = np.mean([report[name] for report in reports.values()])
        assert metrics[name] == pytest.approx(expected, abs=1e-9)
    for name, severity in itertools.product(("acc", "ece"), range(5)):
        expected = np.mean([reports[corruption, severity][name] for corruption in CORRUPTIONS])
        assert metrics[f"severity-{severity + 1}/{name}"] == pytest.approx(expected, abs=1e-9)
    assert len(metrics) == 8 + 10
    assert tensors["metrics"].shape == (15, 5, 8)
    assert tensors["metrics"][9, 2, 3].item() == reports["fog", 2]["ece"]
    images = np.load(arrays / "CIFAR-10-C" / "fog.npy")[2 * ROWS :][:ROWS]
    best, predicted = by_pixels(images).max(1)
    torch.testing.assert_close(tensors["confidence"][9, 2], best.exp())
    assert torch.equal(tensors["correct"][9, 2], predicted == labels)
    assert tensors["nll"][9, 2].mean().item() == pytest.approx(reports["fog", 2]["nll"], abs=1e-5)


@pytest.mark.parametrize("download", [True, False])
def test_an_intact_archive_is_unpacked(make_task, packed_arrays, download, monkeypatch):
    monkeypatch.setattr(Cifar10C, "address", (packed_arrays / "nothing").as_uri())
    # Not even its 2.9 GB are hashed once more.
    monkeypatch.setattr("torchvision.datasets.utils.download_url", lambda *_: pytest.fail("again"))
    data = prepare_suite("cifar10-c", packed_arrays, make_task(), download=download)
    assert data.values("snow").shape == (5 * ROWS, 32, 32, 3)


@pytest.mark.parametrize(
    ("name", "record", "md5"),
    [
        ("cifar10-c", 2535967, "56bf5dcef84df0e2308c6dcbcbbd8499"),
        ("cifar100-c", 3555552, "11f0ed0f1191edbf9fa23466ae6021d3"),
    ],
)
def test_official_arrays_are_fetched_from_their_own_record(name, record, md5):
    suite = find_suite(name, NOWHERE)
    assert isinstance(suite, OfficialCorruptions)
    assert suite.address == f"https://zenodo.org/records/{record}"
    assert (suite.md5, suite.archive) == (md5, f"{name.upper().replace('R1', 'R-1')}.tar")


def test_an_absent_archive_is_downloaded_and_unpacked(make_task, packed_arrays, monkeypatch):
    def download(url: str, root: str, filename: str, md5: str) -> None:
        assert (url, md5) == (f"{Cifar10C.address}/files/CIFAR-10-C.tar", Cifar10C.md5)
        Path(root).mkdir()
        shutil.copy(packed_arrays / "CIFAR-10-C.tar", Path(root) / filename)

    monkeypatch.setattr("torchvision.datasets.utils.download_url", download)
    data = prepare_suite("cifar10-c", packed_arrays / "new", make_task())
    assert data.values("snow").shape == (5 * ROWS, 32, 32, 3)
    assert (packed_arrays / "new" / "CIFAR-10-C").is_dir()


def test_every_array_is_in_the_signature(arrays):
    suite = find_suite("cifar10-c", arrays)
    seen = {suite.signature()}
    for name in (*CORRUPTIONS, "labels", "spatter"):
        path = arrays / "CIFAR-10-C" / f"{name}.npy"
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(suite.signature())
    assert len(seen) == 1 + 15 + 1


def test_an_archive_with_a_wrong_checksum_is_refused(make_task, packed_arrays):
    archive = packed_arrays / "CIFAR-10-C.tar"
    archive.write_bytes(archive.read_bytes()[:-1] + b"!")
    assert refusal(prepare_suite, "cifar10-c", packed_arrays, make_task()) == (
        f"suite 'cifar10-c': {archive} is damaged (wrong checksum); "
        f"{by_hand('https://zenodo.org/records/2535967', packed_arrays)}"
    )


def by_hand(address: str, root: Path) -> str:
    """Return what is said of arrays that have to be put somewhere."""
    return (
        f"put CIFAR-10-C.tar from {address} into {root}, or use generated-c, whose corruptions are "
        "generated"
    )


@pytest.mark.parametrize("download", [True, False])
def test_missing_arrays_are_reported_with_instructions(make_task, tmp_path, monkeypatch, download):
    address, root = (tmp_path / "nothing").as_uri(), tmp_path / "empty"
    monkeypatch.setattr("trainables.data.suites.cifar_c.Cifar10C.address", address)
    fault = "URLError: " if download else f"{root}/CIFAR-10-C is missing; "
    told = refusal(prepare_suite, "cifar10-c", root, make_task(), download=download)
    assert told.startswith(f"suite 'cifar10-c': {fault}")
    assert told.endswith(f"; {by_hand(address, root)}")


def _save(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        np.save(folder / f"{name}.npy", make(np.load(folder / f"{name}.npy")))

    return change


SHAPE = "(100, 32, 32, 3)"
OFFICIAL_FAULTS = {
    "absent": (lambda f: (f / "fog.npy").unlink(), "fog.npy cannot be read: "),
    "fewer rows": (
        _save("fog", lambda x: x[:-1]),
        f"fog.npy: expected uint8 {SHAPE}, got uint8 (99, 32, 32, 3)",
    ),
    "float": (
        _save("fog", lambda x: x / 255),
        f"fog.npy: expected uint8 {SHAPE}, got float64 {SHAPE}",
    ),
    "short labels": (
        _save("labels", lambda y: y[:-1]),
        "labels.npy: expected integers (100,), got uint8 (99,)",
    ),
    "other labels": (_save("labels", np.sort), "labels.npy differs between severities"),
    "one label too high": (
        _save("labels", lambda y: np.where(y == 9, 10, y)),
        "labels.npy: expected labels from 0 to 9",
    ),
}


@pytest.mark.parametrize("fault", OFFICIAL_FAULTS)
def test_wrong_arrays(fault, make_task, arrays):
    spoil, text = OFFICIAL_FAULTS[fault]
    task = make_task()
    spoil(arrays / "CIFAR-10-C")
    told = refusal(prepare_suite, "cifar10-c", arrays, task, download=False)
    assert told.startswith(f"suite 'cifar10-c': {arrays}/CIFAR-10-C/{text}")
    assert not [p for p in (task.directory.parent / "suites").iterdir() if p.is_dir()]


OFFICIAL = "has 32 x 32 images of 3 channels, but 'npz:.*' has"
GENERATED = "expected images of 3 channels and at least 32 pixels per side, but 'npz:.*' has"


@pytest.mark.parametrize(
    ("suite", "shape", "text"),
    [
        ("cifar10-c", {"classes": 5}, "has 10 classes, but 'npz:.*' has 5"),
        ("cifar100-c", {}, "has 100 classes, but 'npz:.*' has 10"),
        ("cifar10-c", {"size": 28}, f"{OFFICIAL} 28 x 28 images of 3 channels"),
        ("cifar10-c", {"channels": 1}, f"{OFFICIAL} 32 x 32 images of 1 channel"),
        ("generated-c", {"size": 8}, f"{GENERATED} 8 x 8 images of 3 channels"),
        ("generated-c", {"channels": 1}, f"{GENERATED} 32 x 32 images of 1 channel"),
        ("ood-digits", {"channels": 4}, "expected images of 1 or 3 channels, but 'npz:.*' has 4"),
    ],
)
def test_a_suite_that_does_not_fit_is_refused(suite, shape, text, make_task, arrays):
    with pytest.raises(InputError, match=f"^suite '{suite}': {text}$"):
        prepare_suite(suite, arrays, make_task(**shape))


def test_another_version_of_the_library_makes_other_corruptions(monkeypatch):
    suite, seen = find_suite("generated-c", NOWHERE), set()
    for version in ("1.2.0", "1.3.0"):
        monkeypatch.setattr("trainables.data.suites.generated_c.version", lambda _, v=version: v)
        seen.add(suite.signature())
    assert seen == {"imagecorruptions-imaug 1.2.0", "imagecorruptions-imaug 1.3.0"}


def test_other_class_names_are_refused(make_task):
    suite, info = find_suite("cifar10-c", NOWHERE), make_task().info
    suite.check(info)
    with pytest.raises(InputError, match="names class 0 'airplane', but 'svhn' names it '0'"):
        suite.check(replace(info, name="svhn"))
    with pytest.raises(InputError, match=r"names class 9 'truck', but 'npz:.*' names it 'lorry'$"):
        suite.check(replace(info, classes=(*suite.classes[:9], "lorry")))


def need_library() -> None:
    pytest.importorskip(
        "imagecorruptions", reason="OpenCV finds no libGL on this system", exc_type=ImportError
    )


def test_each_image_is_corrupted_by_draws_of_its_own_wherever_blocks_end(make_task, monkeypatch):
    """A library stands in that says what it was asked for, and draws as the true one does."""
    from trainables.data.suites import generated_c

    def corrupt(image: np.ndarray, severity: int, name: str, seed: int | None = None) -> np.ndarray:
        own = seed is not None
        assert own == (name in ("impulse_noise", "glass_blur"))
        said = image.copy()
        said[0, 0] = (severity, CORRUPTIONS.index(name), own)
        said[0, 1] = np.frombuffer(np.uint32(seed).tobytes()[:3], np.uint8) if own else 0
        said[0, 2] = np.random.randint(0, 256, 3)
        return said

    monkeypatch.setitem(sys.modules, "imagecorruptions", SimpleNamespace(corrupt=corrupt))
    images = make_task().test().values
    drawn: set[tuple[int, ...]] = set()
    for number, corruption in enumerate(CORRUPTIONS[:5]):
        whole = generated_c._block(images, corruption, 2, 0)
        np.testing.assert_array_equal(whole[:, 1:], images[:, 1:])
        np.testing.assert_array_equal(generated_c._block(images[7:], corruption, 2, 7), whole[7:])
        other = generated_c._block(images, corruption, 3, 0)
        assert whole[:, 0, 0, :2].tolist() == [[2, number]] * ROWS
        assert other[:, 0, 0, :2].tolist() == [[3, number]] * ROWS
        for made in (whole, other):
            drawn |= {tuple(said) for said in made[:, 0, 2].tolist()}
            seeds = {tuple(said) for said in made[:, 0, 1].tolist()}
            assert len(seeds) == (ROWS if made[0, 0, 0, 2] else 1)
    assert len(drawn) == 5 * 2 * ROWS
    state = np.random.get_state()[1].copy()
    parts = list(generated_c._corrupted(images, "fog"))
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    np.testing.assert_array_equal(
        np.concatenate(parts)[:, 0, 0, 0], np.repeat(np.arange(1, 6), ROWS)
    )


def test_generated_corruptions_equal_those_of_the_library(make_task):
    need_library()
    from imagecorruptions import corrupt

    task = make_task(classes=2, test_limit=1)
    state = np.random.get_state()[1].copy()
    data = prepare_suite("generated-c", NOWHERE, task)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    clean = task.test().values
    for corruption in ("brightness", "pixelate", "jpeg_compression", "contrast"):
        images = data.values(corruption)
        assert images.shape == (5, 32, 32, 3)
        for severity in range(5):
            expected = corrupt(np.array(clean[0]), severity + 1, corruption)
            np.testing.assert_array_equal(images[severity], expected)
    np.testing.assert_array_equal(data.labels(), task.test().labels)


@pytest.mark.full
def test_processes_make_the_same(make_task, monkeypatch):
    need_library()
    from trainables.data.suites import generated_c

    images = make_task().test().values[:4]
    alone = np.concatenate(list(generated_c._corrupted(images, "impulse_noise")))
    monkeypatch.setattr(generated_c, "BLOCK", 3)
    together = np.concatenate(list(generated_c._corrupted(images, "impulse_noise")))
    np.testing.assert_array_equal(alone, together)


def test_generated_corruptions_without_the_library_name_the_package_to_install(
    make_task, monkeypatch
):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    told = refusal(prepare_suite, "generated-c", NOWHERE, make_task())
    assert told.startswith("suite 'generated-c': needs imagecorruptions-imaug (")
    assert told.endswith("): pip install 'calsweep[corruptions]'")


def test_other_images_are_brought_into_the_form_of_the_task(make_task, tmp_path):
    other = write_npz(tmp_path / "grey.npz", size=8, channels=1, seed=7)
    data = prepare_suite(f"ood-npz:{other}", NOWHERE, make_task())
    images = data.values(PART)
    assert images.shape == (ROWS, 32, 32, 3)
    pixels = np.load(other)["x_test"][5, ..., 0]
    expected = np.asarray(Image.fromarray(pixels).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(images[5].astype(int) - expected[..., None]).max() <= 1
    np.testing.assert_array_equal(data.labels(), np.arange(ROWS) % 10)


def test_larger_images_are_smoothed_into_height_and_width_of_the_task():
    pixels = make_images(2, 40)
    found = fitted(pixels, Images((8, 20), 3, (0.5,) * 3, (0.5,) * 3, "none"))
    for image, expected in zip(found, pixels, strict=True):
        theirs = Image.fromarray(expected).resize((20, 8), Image.Resampling.BILINEAR)
        assert np.abs(image.astype(int) - np.asarray(theirs)).max() <= 1


def test_images_of_a_suite_lose_colour_and_transparency_for_grey_tasks(make_task):
    form = make_task(channels=1).info.inputs
    colours = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 4), dtype=np.uint8)
    grey = fitted(colours, form)
    weights = np.array([0.299, 0.587, 0.114])
    assert np.abs(grey[..., 0] - colours[..., :3] @ weights).max() < 1.5
    np.testing.assert_array_equal(fitted(grey, form), grey)
    np.testing.assert_array_equal(fitted(colours[..., [0, 3]], form), colours[..., :1])
    np.testing.assert_array_equal(
        fitted(colours[..., [0, 3]], make_task().info.inputs), colours[..., [0, 0, 0]]
    )


def test_a_suites_names_and_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = find_suite("ood-npz:own.npz", "raw")
    assert own.full_name() == f"ood-npz:{tmp_path / 'own.npz'}"
    assert own.test_paths() == [tmp_path / "own.npz"]
    official = find_suite("cifar100-c", "raw")
    folder, archive = tmp_path / "raw" / "CIFAR-100-C", tmp_path / "raw" / "CIFAR-100-C.tar"
    assert official.test_paths() == [folder, archive]
    absent = f"suite 'cifar100-c' is not downloaded yet: {archive} is missing"
    assert official.missing_download() == absent
    before = official.signature()
    folder.mkdir(parents=True)
    assert official.missing_download() == ""
    (folder / "labels.npy").write_bytes(b"")
    assert official.signature() != before
    shutil.rmtree(folder)
    archive.write_bytes(b"")
    assert official.missing_download() == ""
    images = tmp_path / "raw" / "train_32x32.mat"
    assert find_suite("ood-svhn", "raw").missing_download() == (
        f"dataset 'svhn' is not downloaded yet: {images} is missing"
    )
    assert find_suite("bins-999999", "raw").test_paths() == []


def test_ood_metrics_are_those_of_the_largest_probability(make_task, tmp_path):
    task = make_task()
    other = write_npz(tmp_path / "other.npz", seed=9)
    data = prepare_suite(f"ood-npz:{other}", NOWHERE, task)
    clean = by_pixels(task.test().values)
    metrics, tensors = find_suite(data.name, data.root).judge(data, by_pixels, clean)
    inside = clean.softmax(1).amax(1)
    outside = by_pixels(np.load(other)["x_test"]).softmax(1).amax(1)
    truth = np.r_[np.ones(ROWS), np.zeros(ROWS)]
    expected = roc_auc_score(truth, torch.cat((inside, outside)).numpy())
    assert metrics["auroc"] == pytest.approx(expected, abs=1e-9)
    threshold = inside.sort().values[ROWS - 19]
    assert metrics["fpr95"] == pytest.approx((outside >= threshold).double().mean().item())
    torch.testing.assert_close(tensors["outside"].exp().float(), outside)


def test_a_data_set_without_test_images_gives_all_its_images(make_task):
    data = prepare_suite("ood-digits", NOWHERE, make_task())
    assert len(data.values(PART)) == 1797
    limited = prepare_suite("ood-digits", NOWHERE, make_task(test_limit=10))
    assert len(limited.values(PART)) == len(limited.labels()) == 10
    everything = data.values(PART)
    for image, label in zip(limited.values(PART), limited.labels(), strict=True):
        assert label in data.labels()[(everything == image).all((1, 2, 3))]


def test_the_tasks_own_images_are_refused(make_task):
    task = make_task()
    told = f"has the images of the task itself, {task.info.name!r}; use another data set"
    suite = f"ood-{task.info.name}"
    assert refusal(prepare_suite, suite, NOWHERE, task) == f"suite {suite!r}: {told}"


def test_an_absent_data_set_is_named(make_task, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        prepare_suite(f"ood-npz:{tmp_path / 'none.npz'}", NOWHERE, make_task())
    told = f"^dataset 'svhn': {tmp_path}/train_32x32.mat is missing; allow the download, or get "
    with pytest.raises(InputError, match=told):
        prepare_suite("ood-svhn", tmp_path, make_task(), download=False)


@pytest.fixture
def stored(make_task: Callable[..., PreparedData], tmp_path: Path) -> Callable[[], SuiteData]:
    other, task = write_npz(tmp_path / "other.npz", seed=9), make_task()
    return lambda: prepare_suite(f"ood-npz:{other}", NOWHERE, task)


def test_a_suite_is_found_where_it_was_stored_before(make_task):
    """What is stored in another form has another place: older programs may share the folder."""
    data = replace(make_task(), key="0" * 32)
    places = {
        suite: suite_directory(find_suite(suite, NOWHERE), data).relative_to(data.directory.parent)
        for suite in ("bins-10", "cifar10-c")
    }
    assert places == {
        "bins-10": Path("suites/19e48aaa30d433868931b64bec578c96"),
        "cifar10-c": Path("suites/686c70f221a5f46aeaf0bce4c470c032"),
    }


def test_the_second_time_nothing_is_read(stored, monkeypatch):
    first = stored()
    with monkeypatch.context() as patched:
        patched.setattr(
            "trainables.data.suites.ood.read_source", lambda *_: pytest.fail("read again")
        )
        assert stored().fingerprint == first.fingerprint
    assert SuiteData.open(first.directory).fingerprint == first.fingerprint
    sums = {name: facts["sha256"] for name, facts in first.files.items()}
    assert (set(sums), first.fingerprint) == ({"images.npy", "labels.npy"}, digest(sums))
    monkeypatch.chdir(first.directory.parent)
    assert SuiteData.open(first.directory.name) == first


@pytest.mark.parametrize("victim", ["images.npy", "labels.npy", "suite.json"])
@pytest.mark.parametrize("how", ["absent", "flipped"])
def test_damage_is_mended(stored, victim, how):
    first = stored()
    path = first.directory / victim
    content = path.read_bytes()
    path.unlink() if how == "absent" else path.write_bytes(content[:-1] + b"\x07")
    again = stored()
    assert again.fingerprint == first.fingerprint
    again.verify()


def test_a_manifest_of_another_form_is_refused_and_mended(stored):
    first = stored()
    path = first.directory / "suite.json"
    whole = json.loads(path.read_text())
    for name in ("name", "root", "signature", "fingerprint", "files"):
        for value in (None, 3, ["a"], {"a": 1}):
            path.write_text(json.dumps({**whole, name: value}))
            if name != "files":
                with pytest.raises(
                    InputError, match=rf"suite\.json cannot .*: {name} is not a text"
                ):
                    SuiteData.open(first.directory)
            assert stored() == first
        path.write_text(json.dumps({key: whole[key] for key in whole if key != name}))
        with pytest.raises(InputError, match=r"suite\.json cannot be read: '"):
            SuiteData.open(first.directory)
        assert stored() == first


def test_a_changed_file_under_the_same_name_is_read_again(stored, tmp_path):
    first = stored()
    write_npz(tmp_path / "other.npz", seed=10)
    assert stored().fingerprint != first.fingerprint


def test_a_suite_that_cannot_be_stored_is_refused(make_task):
    task = make_task()
    (task.directory.parent / "suites").write_text("")
    with pytest.raises(InputError, match=r"^suite 'bins-7': cannot be stored in .*/suites/"):
        prepare_suite("bins-7", NOWHERE, task)


def test_notices_of_a_suite_name_the_part(make_task, arrays, monkeypatch):
    monkeypatch.setattr("trainables.data._prepared.SECONDS_BETWEEN_NOTICES", -1.0)
    told: list[str] = []
    prepare_suite("cifar10-c", arrays, make_task(), download=False, notice=told.append)
    assert [line for line in told if line.startswith("fog")] == [
        f"fog: {20 * severity} of 100 images" for severity in range(1, 6)
    ]
