import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from scipy.stats import kstest
from small_data import refusal
from torch import Tensor
from torchvision.models.segmentation import DeepLabV3_ResNet50_Weights

from trainables.common.errors import InputError
from trainables.data import (
    MaskedBatcher,
    PreparedData,
    SourceStatus,
    SplitSpec,
    find_reader,
    missing_download,
    prepare,
    read_source,
)
from trainables.data._masked import (
    IGNORED,
    MASK_OUTSIDE,
    SAMPLED,
    VOID,
    MaskedImages,
    MaskedShape,
    _relit,
    draw_windows,
    sample_pixels,
)
from trainables.data._masked_files import MaskedFiles
from trainables.data.voc2012 import Voc2012Reader

OWN = SplitSpec(validation="own")
LISTS = "ImageSets/Segmentation"


def write(folder: Path, **parts: int) -> Path:
    """Write images of two sizes whose mask is as dark as the image; the first line is void."""
    for place in ("JPEGImages", "SegmentationClass", LISTS):
        (folder / place).mkdir(parents=True, exist_ok=True)
    for part, count in parts.items():
        names = [f"{part}{number}" for number in range(count)]
        (folder / LISTS / f"{part}.txt").write_text("\n".join(names))
        for number, name in enumerate(names):
            mask = np.zeros((10 + number % 2, 14 - number % 2), np.uint8)
            mask[:, 7:], mask[0] = 2, 255
            pixels = np.repeat((100 * (mask == 2))[..., None], 3, axis=2).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg", quality=100)
            palette = Image.fromarray(mask).convert("P")
            palette.save(folder / "SegmentationClass" / f"{name}.png")
    return folder


def prepared(folder: Path, split: SplitSpec = OWN, **inputs: int) -> PreparedData:
    return prepare(f"voc:{folder}", "unused", split, folder / "p", settings=inputs)


def test_parts_are_the_lists(tmp_path):
    data = prepared(write(tmp_path, train=6, val=3, test=2))
    assert data.counts == {"train": 6, "validation": 3, "test": 2}
    assert data.info.classes == ("0", "1", "2")
    rows = np.load(data.directory / "search" / "validation_indices.npy")
    train = read_source(f"voc:{tmp_path}", "unused").train
    assert isinstance(train, MaskedFiles)
    assert [train.pairs[row][0].stem for row in rows] == ["val0", "val1", "val2"]
    assert [mask.name for _, mask in train.take(rows[::-1]).pairs] == [
        f"val{k}.png" for k in (2, 1, 0)
    ]
    np.testing.assert_array_equal(data.search().validation.values, train.take(rows).read(0, 3))
    assert train.read(0, 0).shape == (0, 11, 14, 4)
    usual = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    assert data.info.inputs == MaskedImages((11, 14), *usual, 0, "scale-crop-flip")
    assert prepared(tmp_path, crop=8).info.inputs.crop == 8
    share = prepared(tmp_path, SplitSpec(validation=2))
    assert share.counts == {"train": 7, "validation": 2, "test": 2}
    assert data.key != share.key


def test_an_image_may_move_from_the_training_list_to_that_of_validation(tmp_path):
    before = prepared(write(tmp_path, train=6, val=3, test=2))
    train, val = (tmp_path / LISTS / f"{part}.txt" for part in ("train", "val"))
    *kept, moved = train.read_text().split()
    train.write_text("\n".join(kept))
    val.write_text("\n".join([moved, *val.read_text().split()]))
    after = prepared(tmp_path)
    assert after.counts == {"train": 5, "validation": 4, "test": 2}
    assert after.key != before.key


def test_images_and_masks_that_are_stored_turned_become_upright(tmp_path):
    def rows() -> np.ndarray:
        return read_source(f"voc:{write(tmp_path, train=6)}", "unused").train.read(0, 1)

    (upright,) = rows()
    image, mask = tmp_path / "JPEGImages/train0.jpg", tmp_path / "SegmentationClass/train0.png"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 3
    for path in (image, mask):
        Image.open(path).transpose(Image.Transpose.ROTATE_180).save(path, exif=exif, quality=100)
    reader = find_reader(f"voc:{tmp_path}", "unused")
    train = reader.read(False)[1]
    np.testing.assert_array_equal(train.read(0, 1)[0, ..., 3], upright[..., 3])
    np.testing.assert_allclose(train.read(0, 1)[0, :10, :, 0], upright[:10, :, 0], atol=3)
    assert [*train.content()].count(b"upright") == 2
    assert reader.signature().endswith(" upright")


def test_without_a_list_of_test_images_those_of_validation_are_the_test(tmp_path):
    counts = prepared(write(tmp_path, train=20, val=3)).counts
    assert counts == {"train": 18, "validation": 2, "test": 3}
    reader = find_reader(f"voc:{tmp_path}", "unused")
    assert [len(part) for part in reader.labels() or ()] == [20, 3]
    assert {path.stem for path in reader.test_paths()} == {"val0", "val1", "val2"}
    (tmp_path / LISTS / "val.txt").unlink()
    # Any image may be a test image.
    assert {path.stem for path in reader.test_paths()} == {f"train{k}" for k in range(20)}
    assert len(reader.test_paths()) == 40


@pytest.mark.parametrize(
    ("lists", "counts", "rule"),
    [
        ({"val": 3, "test": 2}, [20, 3, 2], "the data set's own lists train, val and test"),
        ({"test": 2}, [18, 2, 2], "test is a list of the data set; validation is a draw"),
        ({"val": 3}, [18, 2, 3], "test is a list of the data set; validation is a draw"),
        ({}, [13, 2, 5], "no list of test images: test and validation are draws"),
    ],
)
def test_the_split_rule_names_the_lists(lists, counts, rule, tmp_path):
    data = prepared(write(tmp_path, train=20, **lists))
    assert list(data.counts.values()) == counts
    assert data.info.split_rule == (rule if "own" in rule else f"{rule} from train")
    constants = "mean and standard deviation of ImageNet's training images"
    assert data.info.source == f"{tmp_path}; {constants}"


@pytest.mark.parametrize("lists", [{"val": 1, "test": 2}, {"val": 4, "test": 2}, {"val": 2}])
@pytest.mark.parametrize("validation", ["own", 3])
def test_a_split_is_refused_before_the_preparation_if_it_would_fail(lists, validation, tmp_path):
    name = f"voc:{write(tmp_path, train=20, **lists)}"
    train = prepared(tmp_path, SplitSpec(validation)).counts["train"]
    assert missing_download(name, "unused", SplitSpec(validation, train_limit=train)) == ""
    split = SplitSpec(validation, train_limit=train + 1)
    for refuse in (
        lambda: missing_download(name, "unused", split),
        lambda: prepared(tmp_path, split),
    ):
        with pytest.raises(InputError, match=f"split train_limit={train + 1} is more than all"):
            refuse()


def test_every_file_is_in_the_signature(tmp_path):
    write(tmp_path, train=2, val=1, test=1)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": ["a", "b", "c"]}))
    reader = find_reader(f"voc:{tmp_path}", "unused")
    seen = {reader.signature()}
    for path in sorted(path for path in tmp_path.rglob("*.*") if path.is_file()):
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(reader.signature())
    assert len(seen) == 1 + 2 * 4 + 3 + 1


@pytest.mark.parametrize(("shown", "classes"), [(0, 2), (1, 2), (2, 3), (7, 8)])
@pytest.mark.parametrize(("mode", "where"), [("L", "train0"), ("P", "val1")])
def test_without_names_classes_are_numbers_up_to_the_highest_that_is_shown(
    shown, classes, mode, where, tmp_path
):
    write(tmp_path, train=4, val=2, test=2)
    for path in (tmp_path / "SegmentationClass").iterdir():
        mask = np.array(Image.open(path))
        mask[mask == 2] = shown if path.stem == where else 0
        Image.fromarray(mask).convert(mode).save(path)
    data = prepared(tmp_path)
    assert data.info.classes == tuple(map(str, range(classes)))
    rows = data.search().train if where == "train0" else data.search().validation
    assert set(np.unique(rows.values[..., 3])) >= {0, shown, VOID}


def test_masks_of_two_classes_may_be_black_and_white(tmp_path):
    write(tmp_path, train=4, val=2, test=2)
    for path in (tmp_path / "SegmentationClass").iterdir():
        Image.fromarray(np.asarray(Image.open(path)) == 2).save(path)
    data = prepared(tmp_path)
    assert data.info.classes == ("0", "1")
    masks = data.search().train.values[0, :10, :, 3]
    np.testing.assert_array_equal(masks[1:], np.repeat([[0] * 7 + [1] * 7], 9, axis=0))


def test_a_test_image_may_be_the_largest(tmp_path):
    write(tmp_path, train=3, val=2, test=2)
    for place, ending, mode in (("JPEGImages", "jpg", "RGB"), ("SegmentationClass", "png", "L")):
        Image.new(mode, (20, 12)).save(tmp_path / place / f"test1.{ending}")
    data = prepared(tmp_path)
    assert data.info.inputs.shape == MaskedShape((12, 20))
    assert (data.test().values[1, ..., 3] == 0).all()
    assert (data.test().values[0, 10:, :, 3] == MASK_OUTSIDE).all()


SIZES = [(9, 12), (9, 12), (9, 7), (4, 7), (4, 7), (4, 7), (9, 12)]


@pytest.fixture
def noise() -> np.ndarray:
    """Rows (7, 9, 12, 4) of images of ``SIZES``, noise, with void among three classes."""
    rows = np.random.default_rng(0).integers(0, 256, (len(SIZES), 9, 12, 4), dtype=np.uint8)
    rows[..., 3] = np.array([0, 1, 2, VOID])[rows[..., 3] % 4]
    for row, (height, width) in zip(rows, SIZES, strict=True):
        row[height:], row[:, width:] = (0, 0, 0, MASK_OUTSIDE), (0, 0, 0, MASK_OUTSIDE)
    return rows


def of_noise(noise: np.ndarray, crop: int = 0) -> tuple[MaskedBatcher, Tensor, Tensor]:
    """Return what gives batches, one of all rows, and it normalised by hand."""
    inputs = MaskedImages((9, 12), (0.4, 0.5, 0.6), (0.2, 0.25, 0.3), crop)
    batcher = inputs.batcher(noise)
    (batch,) = batcher.batches(torch.arange(len(noise)), len(noise))
    by_hand = (noise[..., :3] / 255 - np.array(inputs.mean)) / np.array(inputs.std)
    return batcher, batch, torch.from_numpy(by_hand).permute(0, 3, 1, 2).float()


def targets_of(masks: np.ndarray) -> Tensor:
    return torch.from_numpy(np.where(masks < MASK_OUTSIDE, masks.astype(np.int64), IGNORED))


def test_neighbours_of_one_size_come_together_and_whole(noise):
    batcher, batch, images = of_noise(noise)
    found = list(batcher.whole(batch))
    assert batcher.at_once == 2**19 // (9 * 12)
    assert [len(masks) for _, masks in found] == [2, 1, 3, 1]
    first = 0
    for shown, masks in found:
        height, width = SIZES[first]
        rows = slice(first, first + len(masks))
        torch.testing.assert_close(shown, images[rows, :, :height, :width], rtol=0, atol=1e-5)
        assert torch.equal(masks, targets_of(noise[rows, :height, :width, 3]))
        first += len(masks)
    assert first == len(noise)


@pytest.mark.parametrize("crop", [0, 6, 15])
def test_a_crop_is_cut_out_of_image_and_mask_alike(noise, crop):
    """The windows that are drawn, cut out by hand: whole pixels, zeros and ``IGNORED`` beyond."""
    batcher, batch, images = of_noise(noise, crop)
    side = (crop, crop) if crop else (9, 12)
    for seed in range(4):
        windows = draw_windows(
            torch.tensor(SIZES), side, False, torch.Generator().manual_seed(seed)
        )
        shown, masks = batcher.example(
            batch, torch.zeros(7), "crop-flip", torch.Generator().manual_seed(seed)
        )
        assert shown.shape[2:] == masks.shape[1:] == side
        for row, (top, left, height, width, flip) in enumerate(windows.T.int().tolist()):
            assert (height, width) == side
            around = torch.nn.functional.pad(images[row], (15,) * 4)
            targets = torch.nn.functional.pad(
                targets_of(noise[row, ..., 3]), (15,) * 4, value=IGNORED
            )
            rows, columns = (slice(15 + a, 15 + a + b) for a, b in ((top, height), (left, width)))
            image, mask = around[:, rows, columns], targets[rows, columns]
            if flip:
                image, mask = image.flip(2), mask.flip(1)
            torch.testing.assert_close(shown[row], image, rtol=0, atol=1e-3)
            assert torch.equal(masks[row], mask)


def test_a_scaled_crop_shows_the_pixels_of_its_window():
    row, column = np.mgrid[:40, :60]
    values = np.stack((row, column, row, row // 10), axis=2).astype(np.uint8)
    inputs = MaskedImages((40, 60), (0.0,) * 3, (1.0,) * 3, crop=16)
    batcher = inputs.batcher(np.stack([values] * 50))
    (batch,) = batcher.batches(torch.arange(50), 50)
    windows = draw_windows(
        torch.tensor([[40, 60]] * 50), (16, 16), True, torch.Generator().manual_seed(0)
    )
    images, masks = batcher.example(
        batch, torch.zeros(50), inputs.augmentation, torch.Generator().manual_seed(0)
    )
    top, left, height, width, flip = windows.view(5, -1, 1)
    places = (torch.arange(16) + 0.5) / 16
    rows = (top + places * height - 0.5).unsqueeze(2).expand_as(masks)
    columns = (left + torch.where(flip == 1, 1 - places, places) * width - 0.5).unsqueeze(1)
    columns = columns.expand_as(masks)
    inside = (rows >= 0) & (rows <= 39) & (columns >= 0) & (columns <= 59)
    for found, expected in ((images[:, 0], rows), (images[:, 1], columns)):
        torch.testing.assert_close(255 * found[inside], expected[inside], rtol=0, atol=1e-2)
    sure = inside & ((rows - rows.round()).abs() < 0.4)
    assert torch.equal(masks[sure], rows[sure].round().long() // 10)


def test_light_is_changed_of_the_same_crops(noise):
    batcher, batch, _ = of_noise(noise, 6)
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    before = one.get_state()
    images, masks = batcher.example(batch, torch.zeros(7), "crop-flip", one)
    alone = batcher.view(batch, "crop-flip", torch.Generator().set_state(before))
    assert torch.equal(alone, images)
    lit, same = batcher.example(batch, torch.zeros(7), "crop-flip-light", other)
    torch.testing.assert_close(lit, _relit(images, one))
    assert torch.equal(masks, same)


def test_without_augmentation_images_are_seen_as_stored_and_void_counts_nowhere(noise):
    batcher, batch, images = of_noise(noise, 6)
    shown, masks = batcher.example(batch, torch.zeros(7), "none", torch.Generator())
    torch.testing.assert_close(shown, images, rtol=0, atol=1e-5)
    assert torch.equal(masks, targets_of(noise[..., 3]))
    for refuse in (
        lambda: batcher.example(batch, torch.zeros(7), "flip", torch.Generator()),
        lambda: MaskedImages((9, 12), (0.5,) * 3, (0.5,) * 3, augmentation="flip"),
    ):
        with pytest.raises(ValueError, match="augmentation='flip' is not one of none, crop-flip, "):
            refuse()


@pytest.mark.parametrize(
    "wrong",
    [np.zeros((2, 9, 12, 4)), np.zeros((9, 12, 4), np.uint8), np.zeros((2, 9, 12, 2), np.uint8)],
)
def test_rows_of_another_form_are_refused(wrong):
    inputs = MaskedImages((9, 12), (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(ValueError, match=r"^images-with-masks: ") as refused:
        inputs.batcher(wrong)
    assert str(refused.value) == (
        "images-with-masks: expected uint8 (N, H, W, 4), or (N, H, W, 3) without masks, "
        f"got {wrong.dtype} {wrong.shape}"
    )


def test_an_image_larger_than_a_batch_is_read_alone():
    large = np.zeros((1, 725, 725, 3), np.uint8)
    assert MaskedImages((725, 725), (0.5,) * 3, (0.5,) * 3).batcher(large).at_once == 1


def test_light_changes_contrast_and_brightness_both_ways():
    dark, grey = (
        _relit(torch.full((400, 3, 1, 2), value), torch.Generator().manual_seed(0))
        for value in (0.0, 1.0)
    )
    for change in (dark, grey - dark - 1):
        assert torch.allclose(change, change[:, :1, :, :1].expand_as(change), atol=1e-6)
        each = change[:, 0, 0, 0].numpy()
        assert kstest(each, "uniform", (-0.2, 0.4)).pvalue > 0.001
    assert abs(np.corrcoef(dark[:, 0, 0, 0], grey[:, 0, 0, 0] - dark[:, 0, 0, 0])[0, 1]) < 0.2


def test_images_without_masks_are_taken_too(noise):
    batcher, batch, images = of_noise(noise[..., :3])
    torch.testing.assert_close(batcher.plain(batch), images, rtol=0, atol=1e-5)
    ((shown, masks),) = batcher.whole(batch)
    assert shown.shape == (7, 3, 9, 12)
    assert (masks == IGNORED).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_windows_show_as_much_as_possible(scaled):
    sizes = torch.tensor([[40, 60]] * 500)
    generator = torch.Generator().manual_seed(0)
    top, left, height, width, flip = draw_windows(sizes, (20, 50), scaled, generator)
    assert 200 < flip.sum() < 300
    for start, side, whole in ((top, height, 40), (left, width, 60)):
        inside = side <= whole
        assert (start[inside] >= 0).all()
        assert ((start + side)[inside] <= whole + 1e-3).all()
        assert (start[~inside] <= 0).all()
        assert ((start + side)[~inside] >= whole - 1e-3).all()
    if scaled:
        torch.testing.assert_close(height * 50, width * 20)
        scales = np.log2(20 / height.numpy())
        assert kstest(scales, "uniform", (-1, 2)).pvalue > 0.001
        return
    assert (set(height.tolist()), set(width.tolist())) == ({20.0}, {50.0})
    assert set(left.tolist()) == set(map(float, range(11)))
    small = draw_windows(torch.tensor([[17, 50]] * 500), (20, 50), False, generator)
    assert [set(places.tolist()) for places in small[:2]] == [{-3.0, -2.0, -1.0, 0.0}, {0.0}]


def test_the_sample_is_spread_over_images_and_skips_void():
    masks = np.random.default_rng(0).integers(0, 4, (300, 20, 30)).astype(np.uint8)
    masks[masks == 3] = 255
    masks[7] = 255
    masks[8, 3:] = MASK_OUTSIDE
    pixels = sample_pixels(masks)
    counts = pixels.rows.bincount(minlength=300)
    each = SAMPLED // 300
    assert counts[7] == 0
    assert counts[8] == (masks[8] < MASK_OUTSIDE).sum()
    assert (counts[9:] == each).all()
    assert pixels.labels.max() == 2
    assert len(set(zip(pixels.rows.tolist(), pixels.places.tolist(), strict=True))) == len(
        pixels.rows
    )
    again = sample_pixels(masks)
    assert torch.equal(pixels.places, again.places)
    assert torch.equal(
        pixels.labels, torch.from_numpy(masks.reshape(300, -1))[pixels.rows, pixels.places].long()
    )
    # One of each of the equally long runs of a mask's labelled pixels.
    labelled = np.flatnonzero(masks[9] < MASK_OUTSIDE)
    order = np.searchsorted(labelled, pixels.places[pixels.rows == 9].numpy())
    ends = [run * len(labelled) // each for run in range(each + 1)]
    assert all(a <= k < b for k, a, b in zip(order, ends[:-1], ends[1:], strict=True))


def test_defaults_of_masked_images_never_change():
    inputs = MaskedImages((2, 2), (0.5,) * 3, (0.5,) * 3)
    assert (inputs.augmentation, inputs.crop, SAMPLED) == ("scale-crop-flip", 0, 65536)


def test_the_sample_is_the_same_everywhere(monkeypatch):
    # Made once; a change here changes what is stored of everybody's predictions.
    monkeypatch.setattr("trainables.data._masked.SAMPLED", 8)
    pixels = sample_pixels(np.zeros((2, 4, 5), np.uint8))
    assert pixels.rows.tolist() == [0] * 4 + [1] * 4
    assert pixels.places.tolist() == [0, 6, 10, 17, 1, 9, 10, 15]
    assert len(sample_pixels(np.zeros((9, 4, 5), np.uint8)).rows) == 9


def _damage(name: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: change(folder / name)


def _mask(pixels: np.ndarray) -> Callable[[Path], object]:
    return _damage(MASK, lambda path: Image.fromarray(pixels.astype(np.uint8)).save(path))


def _list(content: bytes) -> Callable[[Path], object]:
    return _damage(LIST, lambda path: path.write_bytes(content))


def _names(content: str) -> Callable[[Path], object]:
    return _damage("classes.json", lambda path: path.write_text(content))


MASK, LIST = "SegmentationClass/train1.png", f"{LISTS}/train.txt"
NO_NAMES = 'classes.json: expected {"classes": [NAME, NAME, ...]}'
# What is done to a folder, and what is said of it; PLACE is the folder.
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "broken": (
        _damage(MASK, lambda path: path.write_bytes(path.read_bytes()[:40])),
        f"{MASK} cannot be read as an image: ",
    ),
    "size": (
        _mask(np.zeros((5, 6))),
        f"{MASK} is 6 x 5 pixels, but PLACE/JPEGImages/train1.jpg is 13 x 11",
    ),
    "class": (
        _mask(3 * np.eye(11, 13)),
        f"{MASK}: expected classes 0 to 2, or 255 for void, got 3",
    ),
    "colour": (
        _mask(np.zeros((11, 13, 3))),
        f"{MASK}: expected a palette or grey PNG whose values are classes, got image mode RGB",
    ),
    "missing": (_damage(MASK, Path.unlink), f"{MASK} does not exist, but PLACE/{LIST} lists it"),
    "empty": (_list(b" \n"), f"{LIST} is empty; expected one name per line"),
    "twice": (
        _list(b"train0\ntest1\n"),
        f"{LIST} and PLACE/{LISTS}/test.txt both list test1; list each image only once",
    ),
    "no UTF-8": (
        _list(b"train0\n\xff\n"),
        f"{LIST} cannot be read: 'utf-8' codec can't decode byte 0xff in position 7: invalid start",
    ),
    "no list": (
        _damage(LIST, Path.unlink),
        f"{LIST} does not exist; use PATH/JPEGImages/<name>.jpg, PATH/SegmentationClass/<name>.png "
        f"and PATH/{LIST}, val.txt, test.txt with a name per line",
    ),
    "one class": (
        _names('{"classes": ["a"]}'),
        "classes.json: classes=('a',) must be two or more different names",
    ),
    "classes in one word": (_names('{"classes": "abc"}'), NO_NAMES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_masked_data_are_named(tmp_path, fault):
    write(tmp_path, train=3, val=2, test=2)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": ["a", "b", "c"]}))
    spoil, said = FAULTS[fault]
    spoil(tmp_path)
    told = f"{tmp_path}/{said}".replace("PLACE", str(tmp_path))
    assert refusal(prepared, tmp_path).startswith(told)


def test_a_setting_is_checked():
    told = refusal(find_reader, "voc:x", "unused", {"crop": -1})
    assert told == "dataset 'voc:x': inputs.crop=-1 is outside [0, inf)"


def test_voc2012_tests_on_its_validation_list_and_trains_on_more_where_that_is(tmp_path):
    place = write(tmp_path / "VOCdevkit" / "VOC2012", train=20, val=3)
    (place / LISTS / "test.txt").write_text("without_a_mask")
    data = prepare("voc2012", tmp_path, OWN, tmp_path / "p", download=False)
    assert data.counts == {"train": 18, "validation": 2, "test": 3}
    assert len(data.info.classes) == 21
    assert data.info.classes[15] == "person"
    masks = place / "SegmentationClassAug"
    names = ["more0", *(f"train{k}" for k in range(20))]
    write(place, more=1)
    (place / LISTS / "trainaug.txt").write_text("\n".join(names))
    assert find_reader("voc2012", tmp_path).check().detail.endswith("20 train, 3 val")
    (place / LISTS / "trainaug.txt").unlink()
    masks.mkdir()
    assert find_reader("voc2012", tmp_path).check().detail.endswith("20 train, 3 val")
    for mask in (place / "SegmentationClass").iterdir():
        (masks / mask.name).write_bytes(mask.read_bytes())
    (place / "SegmentationClass" / "more0.png").unlink()
    (place / LISTS / "trainaug.txt").write_text("\n".join(names))
    more = prepare("voc2012", tmp_path, OWN, tmp_path / "p", download=False)
    assert more.counts == {"train": 19, "validation": 2, "test": 3}
    sealed = find_reader("voc2012", tmp_path).test_paths()
    assert masks / "val0.png" in sealed
    assert (len(sealed), sealed[-1].name) == (7, "VOCtrainval_11-May-2012.tar")
    (place / LISTS / "val.txt").unlink()
    (place / LISTS / "trainaug.txt").write_text("nobody")
    assert place in find_reader("voc2012", tmp_path).test_paths()


def test_voc2012_is_downloaded_if_it_is_missing(tmp_path, monkeypatch):
    asked: list[str] = []

    def download(root: str, download: bool) -> None:
        asked.append(root)
        if len(asked) == 1:
            raise RuntimeError("no network\nat all")
        write(Path(root) / "VOCdevkit" / "VOC2012", train=20, val=3)

    monkeypatch.setattr("torchvision.datasets.VOCSegmentation", download)
    place = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012"
    with pytest.raises(InputError, match=r"train\.txt does not exist"):
        read_source("voc2012", tmp_path, download=False)
    assert missing_download("voc2012", tmp_path).startswith("dataset 'voc2012' is not downloaded")
    (sealed,) = find_reader("voc2012", tmp_path).test_paths()
    assert sealed == tmp_path / "VOCtrainval_11-May-2012.tar"
    assert asked == []
    assert refusal(read_source, "voc2012", tmp_path) == (
        "dataset 'voc2012': RuntimeError: no network at all; "
        f"put the archive from {place} into {tmp_path}"
    )
    reader = find_reader("voc2012", tmp_path)
    folder = tmp_path / "VOCdevkit" / "VOC2012"
    assert reader.check().remedy == f"allow the download, or unpack {place} at {folder}"
    for _ in ("downloaded", "there already"):
        assert len(read_source("voc2012", tmp_path).train) == 20
    assert asked == [str(tmp_path)] * 2
    assert reader.check() == SourceStatus(
        True, f"{folder}: images with masks: 20 train, 3 val", remedy=""
    )


def test_classes_of_voc2012_have_their_usual_numbers():
    meta = DeepLabV3_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1.meta["categories"]
    assert list(Voc2012Reader.names) == ["background", *meta[1:]]
