import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainables.common.errors import TrainingDivergedError
from trainables.data import DatasetInfo, MaskedBatcher, MaskedImages, Pixels, RowArrays
from trainables.metrics import evaluation_report, noise_floors_of_groups
from trainables.models.deeplabv3 import PixelNetwork
from trainables.stages.networks import _judge_pixels, slug
from trainables.stages.pixels import (
    calibrated,
    outputs_of,
    predict_pixels,
    score_pixels,
    shown_maps,
)

HEIGHT, WIDTH, IMAGES = 5, 7, 9
INFO = DatasetInfo(
    name="streets",
    classes=("Sky", "Road & Kerb", "Car (2)", "Never seen"),
    inputs=MaskedImages((HEIGHT, WIDTH), (0.5, 0.4, 0.3), (0.25, 0.2, 0.5)),
    split_rule="",
    source="",
)
SIZES = [(HEIGHT - number // 3 % 2, WIDTH - number // 2 % 3) for number in range(IMAGES)]


def outputs(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return torch.stack([red + 0.3 * blue, 2 * green, -blue, torch.full_like(red, -9.0)], 1)


@pytest.fixture
def rows() -> RowArrays:
    generator = np.random.default_rng(4)
    values = generator.integers(0, 256, (IMAGES, HEIGHT, WIDTH, 4), dtype=np.uint8)
    values[..., 3] = generator.choice([0, 1, 2, 255], (IMAGES, HEIGHT, WIDTH))
    for row, (height, width) in zip(values, SIZES, strict=True):
        row[height:, :, 3] = row[:, width:, 3] = 254
    return RowArrays(values, np.zeros(IMAGES, np.int64))


@pytest.fixture
def batcher(rows: RowArrays) -> MaskedBatcher:
    made = INFO.inputs.batcher(rows.values)
    made.at_once = 4  # Batches end within images of one size.
    return made


def logits_by_hand(image: np.ndarray) -> Tensor:
    pixels = (torch.from_numpy(image[..., :3].copy()).double() / 255).permute(2, 0, 1)
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in ((0.5, 0.4, 0.3), (0.25, 0.2, 0.5)))
    return outputs(((pixels - mean) / std)[None])[0].float()


def labelled_by_hand(rows: RowArrays) -> tuple[Tensor, Pixels]:
    """Return the logits (P, K) of every labelled pixel, and which these are."""
    logits, found = [], []
    for number, image in enumerate(rows.values):
        maps, mask = logits_by_hand(image), image[..., 3]
        for y, x in zip(*np.nonzero(mask < 254), strict=True):
            logits.append(maps[:, y, x])
            found.append((int(mask[y, x]), number, y * WIDTH + x))
    return torch.stack(logits), Pixels(*torch.tensor(found).T.contiguous())


@pytest.mark.parametrize("step", [1, 3])
def test_every_labelled_pixel_counts_once_and_a_sample_is_kept(rows, batcher, step):
    logits, every = labelled_by_hand(rows)
    sample = Pixels(*(part[::step].contiguous() for part in every))
    kept, report = score_pixels(outputs, batcher, sample, 4)
    torch.testing.assert_close(kept, logits[::step], rtol=1e-5, atol=1e-5)
    expected, found = evaluation_report(logits, every.labels), report.report()
    for name in ("acc", "nll", "brier", "ece", "cwece", "mce"):
        assert found[name] == pytest.approx(expected[name], abs=1e-6), name
    predicted = logits.argmax(1)
    for number, share in enumerate(report.class_iou()):
        both, either = (
            (how(predicted == number, every.labels == number)).sum()
            for how in (torch.logical_and, torch.logical_or)
        )
        torch.testing.assert_close(share, both.double() / either, equal_nan=True)


def test_outputs_that_are_not_finite_are_refused(rows, batcher):
    def broken(images: Tensor) -> Tensor:
        found = outputs(images)
        found[-1, 1, 0, 0] = math.inf
        return found

    with pytest.raises(TrainingDivergedError, match="logits of pixels became NaN or infinite"):
        score_pixels(broken, batcher, labelled_by_hand(rows)[1], 4)


def maps_by_hand(rows: RowArrays) -> Tensor:
    """Return log-probabilities (N, K, H, W): beyond an image all classes are equal."""
    found = torch.zeros(IMAGES, 4, HEIGHT, WIDTH)
    for number, (height, width) in enumerate(SIZES):
        found[number, :, :height, :width] = logits_by_hand(rows.values[number])[:, :height, :width]
    return found.log_softmax(1)


def test_predictions_of_smaller_images_are_uniform_beyond_them(rows, batcher):
    found = predict_pixels(outputs, batcher, 4)
    torch.testing.assert_close(found, maps_by_hand(rows), rtol=1e-5, atol=1e-5)


def test_a_few_images_that_are_shown_are_spread_over_all(rows, batcher):
    found = shown_maps(outputs, batcher, 4)
    confidence, predicted = maps_by_hand(rows)[[0, 3, 6]].exp().max(1)
    assert torch.equal(found["rows"], torch.from_numpy(rows.values[[0, 3, 6]]))
    assert torch.equal(found["predicted"], predicted.byte())
    assert (found["confidence"].float() - 255 * confidence).abs().max() < 0.51
    assert {values.dtype for values in found.values()} == {torch.uint8}
    two = INFO.inputs.batcher(rows.values[:2])
    assert len(shown_maps(outputs, two, 4)["rows"]) == 2


def test_a_calibrator_of_rows_is_applied_to_every_pixel(batcher):
    (batch,) = batcher.batches(torch.arange(IMAGES), IMAGES)
    images, factors = batcher.plain(batch), torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = calibrated(outputs, lambda logits: logits * factors)(images)
    torch.testing.assert_close(found, outputs(images) * factors.view(4, 1, 1))


def test_an_evaluation_tells_of_classes_of_chance_and_of_the_sample(rows):
    logits, every = labelled_by_hand(rows)
    sample = Pixels(*(part[::2].contiguous() for part in every))
    metrics, stored = _judge_pixels(outputs, rows, sample, INFO, torch.device("cpu"))
    predicted = logits.argmax(1)
    for number, name in enumerate(("sky", "road-kerb", "car-2")):
        both = ((predicted == number) & (every.labels == number)).sum()
        either = ((predicted == number) | (every.labels == number)).sum()
        assert metrics[f"{name}/iou"] == pytest.approx(float(both / either)), name
    assert "never-seen/iou" not in metrics
    assert metrics["acc"] == pytest.approx(float((predicted == every.labels).double().mean()))
    kept = logits[::2]
    for name, floor in noise_floors_of_groups(kept, sample.labels, sample.rows).items():
        assert metrics[f"{name}_floor"] == pytest.approx(floor.mean, rel=1e-4), name
    torch.testing.assert_close(stored["test"]["log_probs"], kept.log_softmax(1), rtol=0, atol=1e-5)
    assert torch.equal(stored["test"]["labels"], sample.labels)
    assert torch.equal(stored["test"]["images"], sample.rows)
    assert stored["maps"]["rows"].shape == (3, HEIGHT, WIDTH, 4)


@pytest.mark.parametrize(
    ("name", "short"), [("Sky", "sky"), (" Road & Kerb_2 ", "road-kerb-2"), ("道路", "class")]
)
def test_a_class_is_called_by_letters_digits_and_dashes(name, short):
    assert slug(name) == short


@torch.no_grad()
def test_a_pixel_network_is_evaluated_without_dropout_in_its_precision():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5))
    network = PixelNetwork(layers, nn.Linear(4, 3)).train()
    network.precision = "bfloat16"
    images = torch.randn(2, 3, 4, 6)
    found = outputs_of(network)(images)
    assert not network.training
    with torch.autocast("cpu", torch.bfloat16):
        features = layers[0](images)
    assert features.dtype == torch.bfloat16
    expected = network.classifier(features.float().movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(found, expected)
