import json
import re
import threading
from dataclasses import asdict

import numpy as np
import pytest
import torch
from pretended_card import pretended_card
from scipy.stats import chisquare, ks_2samp
from torch import Tensor
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as TF

from trainables.common.devices import fits
from trainables.data import (
    Batcher,
    DatasetInfo,
    Images,
    ImageShape,
    MaskedImages,
    MaskedShape,
    Texts,
    TextShape,
)
from trainables.data._images import (
    ImagesWithMargin,
    check_images,
    crop_flip,
    draw_crop_flip,
    draw_resized_crops,
    resized_crop_flip,
)

VIEWS = [(top, left, flip) for top in range(9) for left in range(9) for flip in (0, 1)]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def form(channels: int = 3) -> Images:
    return Images(
        size=(32, 32),
        channels=channels,
        mean=(0.4, 0.5, 0.6)[:channels],
        std=(0.2, 0.25, 0.3)[:channels],
        augmentation="crop-flip",
    )


def batch_of(batcher: Batcher, rows: torch.Tensor) -> torch.Tensor:
    (batch,) = batcher.batches(rows, len(rows))
    return batch


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("device", DEVICES)
def test_plain_is_torchvisions_normalisation(images, device):
    rows = torch.tensor([4, 0, 49, 4])
    batcher = form().batcher(images, device)
    found = batcher.plain(batch_of(batcher, rows)).cpu()
    expected = torch.stack(
        [TF.normalize(TF.to_tensor(images[row]), form().mean, form().std) for row in rows]
    )
    assert found.dtype == torch.float32
    layout = torch.channels_last if device == "cuda" else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_every_view_is_torchvisions(images):
    views = torch.tensor(VIEWS).T
    image = torch.from_numpy(images[0]).permute(2, 0, 1)
    found = crop_flip(image.expand(len(VIEWS), -1, -1, -1), views)
    for (top, left, flip), view in zip(VIEWS, found, strict=True):
        expected = TF.crop(TF.pad(image, [4]), top, left, 32, 32)
        assert torch.equal(view, TF.hflip(expected) if flip else expected)


def test_every_view_is_equally_likely():
    count = 40 * len(VIEWS)
    top, left, flip = draw_crop_flip(count, seeded(0)).numpy()
    counts = np.bincount(2 * (9 * top + left) + flip, minlength=len(VIEWS))
    assert len(counts) == len(VIEWS)
    assert counts.min() > 0
    assert chisquare(counts).pvalue > 0.001


def test_images_with_a_margin_are_seen_in_part():
    row, column = np.mgrid[100:132, 100:138].astype(np.uint8)
    images = np.stack([np.stack([row, column, row], axis=2)] * 800)
    whole = form()
    inputs = ImagesWithMargin(**(asdict(whole) | {"size": (32, 38), "shown": (28, 30)}))
    batcher = inputs.batcher(images)
    batch = batch_of(batcher, torch.arange(len(images)))
    assert inputs.shape == ImageShape(3, 28)
    plain = whole.batcher(images).plain(batch)
    torch.testing.assert_close(batcher.plain(batch), plain[:, :, 2:30, 4:34])
    resized = whole.batcher(images).view(batch, "resized-crop-flip", seeded(0))
    torch.testing.assert_close(
        batcher.view(batch, "resized-crop-flip", seeded(0)), resized[:, :, 2:30, 4:34]
    )
    assert torch.equal(batcher.view(batch, "none", seeded(0)), batcher.plain(batch))
    parts = [plain[0, :, top : top + 28, left : left + 30] for top, left in np.ndindex(5, 5)]
    known = torch.stack([*parts, *(part.flip(2) for part in parts)]).flatten(1)
    seen = batcher.view(batch, "crop-flip", seeded(0)).flatten(1)
    exact = "donot_use_mm_for_euclid_dist"
    found = torch.cdist(seen, known, compute_mode=exact).min(dim=1)
    assert found.values.max() < 1e-3
    assert set(found.indices.tolist()) == set(range(len(known)))
    ImagesWithMargin(**(asdict(whole) | {"shown": (32, 1)}))
    for shown in ((33, 28), (28, 33), (0, 28)):
        with pytest.raises(
            ValueError, match=f"^{re.escape(f'shown={shown} is outside [1, (32, 32)]')}$"
        ):
            ImagesWithMargin(**(asdict(whole) | {"shown": shown}))


def test_a_resized_crop_is_torchvisions():
    images = torch.randint(0, 256, (6, 3, 20, 16), dtype=torch.uint8, generator=seeded(0))
    boxes = [(0, 0, 20, 16), (3, 2, 7, 9), (19, 15, 1, 1), (0, 5, 20, 3), (12, 0, 8, 16)]
    boxes.append((2, 2, 10, 8))
    flips = [0, 1, 0, 1, 0, 1]
    crops = torch.tensor([[*box, flip] for box, flip in zip(boxes, flips, strict=True)]).T.float()
    found = resized_crop_flip(images, crops)
    for image, box, flip, ours in zip(images, boxes, flips, found, strict=True):
        theirs = TF.resized_crop(image.float(), *box, [20, 16], antialias=True)
        theirs = TF.hflip(theirs) if flip else theirs
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-2)


def test_drawn_crops_are_distributed_as_torchvisions():
    torch.manual_seed(0)
    count = 4000
    drawn = draw_resized_crops(count, 48, 64, seeded(0))
    image = torch.zeros(3, 48, 64)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    ).T
    shapes = [torch.stack((crops[2] * crops[3], crops[3] / crops[2])) for crops in (drawn, theirs)]
    for ours, expected in zip((*drawn[:4], *shapes[0]), (*theirs, *shapes[1]), strict=True):
        assert ks_2samp(ours.numpy(), expected.numpy()).pvalue > 0.001
    room = torch.tensor([[48], [64]]) - drawn[2:4]
    assert (drawn[:2] >= 0).all()
    assert (drawn[:2] <= room).all()
    for offsets, most in zip(drawn[:2], room, strict=True):
        assert (offsets == most)[(most > 0) & (most < 6)].any()
    assert drawn[4].mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("height", "width"), [(10, 1000), (1000, 10), (12, 12)])
def test_the_largest_allowed_centre_is_taken_if_no_crop_fits(height, width, monkeypatch):
    """Areas above that of the image make every try fail."""
    monkeypatch.setattr("trainables.data._images.AREAS", (5.0, 5.0))
    theirs = RandomResizedCrop.get_params(torch.zeros(3, height, width), [5.0, 5.0], [3 / 4, 4 / 3])
    assert draw_resized_crops(1, height, width, seeded(0))[:4, 0].tolist() == list(theirs)


def test_a_view_is_its_draws_applied_and_normalised(images):
    low = images[:, :20]
    batcher = form().batcher(low)
    batch = batch_of(batcher, torch.arange(50))
    crops = draw_resized_crops(50, 20, 32, seeded(3))
    expected = {
        "none": batch,
        "crop-flip": crop_flip(batch, draw_crop_flip(50, seeded(3))),
        "resized-crop-flip": resized_crop_flip(batch, crops),
    }
    for augmentation, pixels in expected.items():
        found = batcher.view(batch, augmentation, seeded(3))
        scaled = TF.normalize(pixels / 255, form().mean, form().std)
        torch.testing.assert_close(found, scaled, rtol=1e-5, atol=1e-5)


def test_no_augmentation_draws_nothing(images):
    batcher = form().batcher(images)
    generator = seeded(3)
    state = generator.get_state()
    batch = batch_of(batcher, torch.arange(5))
    assert torch.equal(batcher.view(batch, "none", generator), batcher.plain(batch))
    assert torch.equal(generator.get_state(), state)


def test_nothing_is_copied_on_the_cpu(digits):
    images = digits.search().train.values
    batcher = digits.info.inputs.batcher(images)
    assert batcher._rows.data_ptr() == images.ctypes.data
    assert batch_of(batcher, torch.arange(4)).shape == (4, 1, 8, 8)
    assert len(batcher) == len(images)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("resident", [True, False])
def test_batches_are_in_order_for_images_on_every_device(images, device, resident, monkeypatch):
    monkeypatch.setattr("trainables.data._inputs.fits", lambda *_: resident)
    batcher = form().batcher(images, device)
    assert batcher.resident is resident
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2))
    found = list(batcher.batches(order, 12))
    assert [len(batch) for batch in found] == [12, 12, 12, 12, 2]
    assert all(batch.device.type == device and batch.is_contiguous() for batch in found)
    expected = torch.from_numpy(images).permute(0, 3, 1, 2)[order]
    assert torch.equal(torch.cat(found).cpu(), expected)
    assert len(batcher) == 50


def test_a_failing_reader_raises_and_an_abandoned_reader_ends(images, monkeypatch):
    monkeypatch.setattr("trainables.data._inputs.fits", lambda *_: False)
    batcher = form().batcher(images)
    before = threading.active_count()
    with pytest.raises(IndexError):
        list(batcher.batches(torch.tensor([1, 2, 99]), 2))
    batches = batcher.batches(torch.arange(50), 2)
    next(batches)
    batches.close()
    assert threading.active_count() == before


def test_few_batches_are_read_before_they_are_wanted(images, monkeypatch):
    monkeypatch.setattr("trainables.data._inputs.fits", lambda *_: False)
    batcher = form().batcher(images)
    read: list[Tensor] = []
    whole = batcher._read

    def counted(indices: Tensor) -> Tensor:
        read.append(indices)
        return whole(indices)

    monkeypatch.setattr(batcher, "_read", counted)
    batches = batcher.batches(torch.arange(50), 2)
    next(batches)
    batches.close()
    assert len(read) == 3


@pytest.mark.parametrize(
    ("free", "limit", "reserved", "resident"),
    [
        (400_000, 1.0, 0, True),
        (300_000, 1.0, 0, False),
        (400_000, 0.3, 0, False),
        (400_000, 0.5, 300_000, False),
    ],
)
def test_images_stay_on_the_host_where_they_would_fill_the_device(free, limit, reserved, resident):
    with pretended_card(free=free, reserved=reserved):
        torch.cuda.set_per_process_memory_fraction(limit, 0)
        for device in ("cuda", "cuda:0"):
            assert fits(50 * 32 * 32 * 3, torch.device(device)) is resident
    assert fits(50 * 32 * 32 * 3, torch.device("cpu"))


def test_rows_of_wide_numbers_are_measured_in_bytes():
    rows = np.zeros((100, 500), np.int32)
    with pretended_card(free=2 * rows.nbytes - 1):
        assert not Texts().batcher(rows, torch.device("cuda")).resident


def test_batches_do_not_touch_the_images(images):
    before = images.copy()
    batcher = form().batcher(images)
    batch_of(batcher, torch.arange(50)).zero_()
    batcher.view(batch_of(batcher, torch.arange(50)), "crop-flip", seeded(0)).zero_()
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("device", DEVICES)
def test_views_are_the_same_on_every_device(images, device):
    rows = torch.arange(50)
    batchers = (form().batcher(images, place) for place in ("cpu", device))
    expected, found = (b.view(batch_of(b, rows), "crop-flip", seeded(1)) for b in batchers)
    assert found.device.type == device
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)


def test_wrong_arguments(images):
    for kind in (np.float64, np.int8, np.uint16, np.bool_):
        told = f"images: expected uint8 (0..255), got {np.dtype(kind)} {images.shape}"
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            form().batcher(images.astype(kind))
    for given, expected in ((3, 1), (1, 3), (2, 3)):
        with pytest.raises(
            ValueError, match=f"^images have {given} channels, expected {expected}$"
        ):
            form(expected).batcher(images[..., :given])
    check_images("x", np.zeros((1, 1, 1, 4), np.uint8))
    for shape in ((1, 1, 1, 5), (0, 1, 1, 1), (1, 1, 0, 1), (1, 1, 1)):
        told = f"x: expected shape (N, H, W, C) with C from 1 to 4 and no empty axis, got {shape}"
        with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
            check_images("x", np.zeros(shape, np.uint8))
    batcher = form().batcher(images)
    batch = batch_of(batcher, torch.arange(2))
    with pytest.raises(ValueError, match="augmentation='flip' is not one of none, crop-flip"):
        batcher.view(batch, "flip", torch.Generator())


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("classes", ("a",), "classes=('a',) must be two or more different names"),
        ("classes", ("a", "a"), "classes=('a', 'a') must be two or more different names"),
        ("size", (0, 3), "size=(0, 3), channels=3 must be at least 1"),
        ("size", (3, 0), "size=(3, 0), channels=3 must be at least 1"),
        ("channels", 0, "size=(32, 32), channels=0 must be at least 1"),
        ("mean", (0.5,), "mean=(0.5,) must have 3 entries"),
        ("std", (0.5,), "std=(0.5,) must have 3 entries"),
        ("std", (0.1, 0.0, 0.1), "std=(0.1, 0.0, 0.1) is outside (0, inf)"),
        (
            "augmentation",
            "cutout",
            "augmentation='cutout' is not one of none, crop-flip, resized-crop-flip",
        ),
    ],
)
def test_info_is_checked(field, value, text):
    info = DatasetInfo("made", ("a", "b"), form(), "", "")
    assert DatasetInfo.from_dict(json.loads(json.dumps(info.to_dict()))) == info
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        DatasetInfo.from_dict({**info.to_dict(), field: value})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ImageShape(0, 8), "channels=0 is outside"),
        (lambda: ImageShape(1, 0), "size=0 is outside"),
        (lambda: MaskedShape((8, 0)), "size=0 is outside"),
        (lambda: MaskedShape((0, 8)), "size=0 is outside"),
        (lambda: TextShape(0, 8), "tokens=0 is outside"),
        (lambda: TextShape(8, 0), "length=0 is outside"),
        (lambda: Texts(augmentation="crop-flip"), "augmentation='crop-flip' is not one of none"),
        (
            lambda: MaskedImages((8, 8), (0.5,) * 2, (0.25,) * 3),
            r"^mean=\(0.5, 0.5\), std=\(0.25, 0.25, 0.25\) must be three numbers, std above 0$",
        ),
        (lambda: MaskedImages((8, 8), (0.5,) * 3, (0.5,) * 2), "must be three numbers"),
        (lambda: MaskedImages((8, 8), (0.5,) * 3, (0.5, 0.5, 0.0)), "std above 0"),
    ],
)
def test_shapes_are_checked(make, text):
    with pytest.raises(ValueError, match=text):
        make()
