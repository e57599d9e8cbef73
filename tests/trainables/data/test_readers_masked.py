"""Images with masks in the layout of PASCAL VOC: lists, sizes, crops, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trainables.common.errors import InputError
from trainables.data import (
    MaskedBatcher,
    PreparedData,
    SplitSpec,
    find_reader,
    missing_download,
    prepare,
)
from trainables.data._masked import IGNORED, MASK_OUTSIDE, SAMPLED, draw_windows, sample_pixels

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


def test_parts_are_the_lists(tmp_path: Path) -> None:
    data = prepared(write(tmp_path, train=6, val=3, test=2))
    assert data.counts == {"train": 6, "validation": 3, "test": 2}
    assert data.info.classes == ("0", "1", "2")
    share = prepared(tmp_path, SplitSpec(validation=2))
    assert share.counts == {"train": 7, "validation": 2, "test": 2}
    assert data.key != share.key


def test_without_a_list_of_test_images_those_of_validation_are_the_test(tmp_path: Path) -> None:
    assert prepared(write(tmp_path, train=20, val=3)).counts == {
        "train": 18,
        "validation": 2,
        "test": 3,
    }


def test_small_images_are_seen_at_their_own_size(tmp_path: Path) -> None:
    data = prepared(write(tmp_path, train=4, val=2, test=2))
    values = data.search().train.values
    assert values.shape == (4, 11, 14, 4)
    assert (values[0, 10, :, 3] == MASK_OUTSIDE).all()
    assert (values[1, :, 13, 3] == MASK_OUTSIDE).all()
    batcher = data.info.inputs.batcher(values)
    assert isinstance(batcher, MaskedBatcher)
    (batch,) = batcher.batches(torch.arange(4), 4)
    shown = list(batcher.whole(batch))
    assert [tuple(masks.shape) for _, masks in shown] == [(1, 10, 14), (1, 11, 13)] * 2
    for images, masks in shown:
        assert (masks[:, 0] == IGNORED).all()
        assert set(masks[:, 1:].unique().tolist()) == {0, 2}
        assert images.shape == (1, 3, *masks.shape[1:])


@pytest.mark.parametrize("augmentation", ["crop-flip", "scale-crop-flip", "crop-flip-light"])
def test_masks_move_with_their_images(tmp_path: Path, augmentation: str) -> None:
    data = prepared(write(tmp_path, train=8, val=2, test=2), crop=8)
    values = data.search().train.values.copy()
    values[..., :3] = np.where(values[..., 3:] == 2, 255, 0)  # Without what JPEG makes of them.
    batcher = data.info.inputs.batcher(values)
    (batch,) = batcher.batches(torch.arange(8), 8)
    generator = torch.Generator().manual_seed(1)
    seen = set()
    for _ in range(20):
        images, masks = batcher.example(batch, torch.zeros(8), augmentation, generator)
        assert (images.shape, masks.shape) == ((8, 3, 8, 8), (8, 8, 8))
        bright = images.mean(1)
        middle = (bright.amax((1, 2)) + bright.amin((1, 2))).view(8, 1, 1) / 2
        both = (masks == 2).any((1, 2)) & (masks == 0).any((1, 2))
        agree = ((bright > middle) == (masks == 2)) | (masks == IGNORED)
        # Interpolation between both classes may round to either.
        assert agree[both].float().mean() > (0.85 if "scale" in augmentation else 0.999)
        seen |= set(masks.unique().tolist())
    assert seen == {IGNORED, 0, 2}


@pytest.mark.parametrize("scaled", [False, True])
def test_windows_show_as_much_as_possible(scaled: bool) -> None:
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
    if not scaled:
        assert set(left.tolist()) == set(map(float, range(11)))


def test_the_sample_is_spread_over_images_and_skips_void() -> None:
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


def damage(folder: Path, what: str) -> None:
    mask = folder / "SegmentationClass" / "train1.png"
    names = folder / LISTS / "train.txt"
    wrong = np.zeros((11, 13), np.uint8)
    wrong[2, 3] = 7
    changes: dict[str, Callable[[], object]] = {
        "broken": lambda: mask.write_bytes(mask.read_bytes()[:40]),
        "size": lambda: Image.fromarray(np.zeros((5, 6), np.uint8)).save(mask),
        "class": lambda: Image.fromarray(wrong).save(mask),
        "colour": lambda: Image.fromarray(np.zeros((11, 13, 3), np.uint8)).save(mask),
        "missing": lambda: mask.unlink(),
        "empty": lambda: names.write_text(" \n"),
        "twice": lambda: names.write_text("train0\ntest1\n"),
        "classes": lambda: (folder / "classes.json").write_text('{"classes": ["a"]}'),
        "no list": lambda: names.unlink(),
    }
    changes[what]()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("broken", r"train1\.png cannot be read as an image"),
        ("size", r"train1\.png is 6 x 5 pixels, but .*train1\.jpg is 13 x 11"),
        ("class", r"train1\.png holds class 7, allowed are 0 to 2, and 255 for void"),
        ("colour", r"train1\.png has image mode RGB, allowed is a palette or grey PNG"),
        ("missing", r"train1\.png does not exist, but .*train\.txt names it"),
        ("empty", r"train\.txt is empty; needed is a name a line"),
        ("twice", r"test\.txt names test1, and so does .*train\.txt: an image may be named once"),
        ("classes", r"classes\.json is no .*two or more different names"),
        ("no list", r"train\.txt does not exist; lay it out as PATH/JPEGImages"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path: Path, what: str, said: str) -> None:
    write(tmp_path, train=3, val=2, test=2)
    (tmp_path / "classes.json").write_text(json.dumps({"classes": ["a", "b", "c"]}))
    damage(tmp_path, what)
    with pytest.raises(InputError, match=said) as error:
        prepared(tmp_path)
    assert "\n" not in str(error.value)


def test_a_setting_is_checked(tmp_path: Path) -> None:
    for settings, said in (({"length": 3}, "inputs.length is unknown"), ({"crop": -1}, "crop=-1")):
        with pytest.raises(InputError, match=said):
            find_reader(f"voc:{tmp_path}", "unused", settings)


def test_voc2012_tests_on_its_validation_list_and_trains_on_more_where_that_is(
    tmp_path: Path,
) -> None:
    place = write(tmp_path / "VOCdevkit" / "VOC2012", train=20, val=3)
    data = prepare("voc2012", tmp_path, OWN, tmp_path / "p", download=False)
    assert data.counts == {"train": 18, "validation": 2, "test": 3}
    assert len(data.info.classes) == 21
    assert data.info.classes[15] == "person"
    masks = place / "SegmentationClassAug"
    masks.mkdir()
    names = ["more0", *(f"train{k}" for k in range(20))]
    write(place, more=1)
    for mask in (place / "SegmentationClass").iterdir():
        (masks / mask.name).write_bytes(mask.read_bytes())
    (place / LISTS / "trainaug.txt").write_text("\n".join(names))
    more = prepare("voc2012", tmp_path, OWN, tmp_path / "p", download=False)
    assert more.counts == {"train": 19, "validation": 2, "test": 3}
    sealed = find_reader("voc2012", tmp_path).test_paths()
    assert masks / "val0.png" in sealed
    (place / LISTS / "val.txt").unlink()
    (place / LISTS / "trainaug.txt").write_text("nobody")
    assert place in find_reader("voc2012", tmp_path).test_paths()


def test_voc2012_says_what_has_to_be_downloaded(tmp_path: Path) -> None:
    assert "voc2012" in missing_download("voc2012", tmp_path)
    with pytest.raises(InputError, match=r"train\.txt does not exist"):
        prepare("voc2012", tmp_path, OWN, tmp_path / "p", download=False)
