import pytest
import torch

from trainables.metrics import REPORTED, StreamedReport, calibration_report, evaluation_report


def predictions(rows: int, classes: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    logits = spread * torch.randn(rows, classes, generator=generator)
    labels = torch.multinomial((0.6 * logits).softmax(1), 1, generator=generator).squeeze(1)
    return logits, labels


def streamed(logits: torch.Tensor, labels: torch.Tensor, bins: int = 15) -> StreamedReport:
    report = StreamedReport(logits.shape[1], bins)
    report.add(logits, labels)
    return report


def assert_same(logits: torch.Tensor, labels: torch.Tensor, bins: int = 15) -> None:
    found = streamed(logits, labels, bins).report()
    expected = evaluation_report(logits, labels, bins)
    for name in (*REPORTED, "debiased_ece", "smooth_ece"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name


def error_of_aece(logits: torch.Tensor, labels: torch.Tensor, bins: int = 15) -> list[float]:
    report = streamed(logits, labels, bins)
    exact = calibration_report(logits=logits, labels=labels, bins=bins)["aece"]
    return [abs(report.report()["aece"] - exact), report.aece_error]


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "classes", "spread", "bins"),
    [(12_000, 11, 3.0, 15), (6000, 21, 8.0, 20), (6000, 2, 0.5, 18)],
)
def test_parts_add_up_to_the_report(rows, classes, spread, bins, monkeypatch):
    # Each part is read a few rows at a time, too.
    monkeypatch.setattr("trainables.metrics._streamed.CACHED_ELEMENTS", 900 * classes)
    logits, labels = predictions(rows, classes, spread)
    report = StreamedReport(classes, bins)
    for some, its in zip(logits.split(2101), labels.split(2101), strict=True):
        report.add(some, its)
    expected, found = evaluation_report(logits, labels, bins), report.report()
    names = [*REPORTED, "debiased_ece", "smooth_ece"]
    assert list(found) == [*names, "miou"]
    for name in names:
        value = expected[name]
        close = 1e-4 if name in ("aece", "cwaece") else 1e-10
        assert found[name] == pytest.approx(value, abs=close), name
    assert abs(found["aece"] - expected["aece"]) <= report.aece_error + 1e-10
    assert report.aece_error < 1e-3


def test_probabilities_on_the_edges_of_bins_belong_to_the_lower() -> None:
    probs = torch.tensor([[k / 15, 1 - k / 15] for k in range(1, 15)], dtype=torch.float64)
    labels = torch.zeros(14, dtype=torch.int64)
    logits = probs.log()
    found = streamed(logits, labels).report()
    assert torch.equal(logits, probs.log())
    expected = calibration_report(logits=probs.log(), labels=labels)
    assert found["cwece"] == pytest.approx(expected["cwece"], abs=1e-12)


def test_confidences_on_the_edges_of_bins_belong_to_the_lower():
    # Confidences of 1/2 and 3/4, both edges, and others above them of another gap.
    logits = torch.tensor([[1.0, 1], [1, 1], [3, 2], [3, 1], [3, 1], [7, 1]]).double().log()
    assert_same(logits, torch.tensor([0, 0, 1, 0, 0, 1]), bins=4)


@pytest.mark.parametrize("low", [-2000.0, -torch.inf])
def test_probabilities_of_0_and_1_have_their_bins(low: float) -> None:
    logits = torch.full((7, 3), low, dtype=torch.float64)
    logits[torch.arange(7), torch.arange(7) % 3] = 0.0
    logits[6] = torch.tensor([1.0, 0.0, low])
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0]) if low > -torch.inf else torch.arange(7) % 3
    labels[3] = 1 if low > -torch.inf else 0
    assert_same(logits, labels)


def test_the_bound_holds_where_no_cell_can_tell_confidences_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 1e-7 * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (3000,), generator=generator)
    error, bound = error_of_aece(logits, labels)
    assert 1e-3 < error <= bound


@pytest.mark.parametrize("bins", [6, 7])
def test_rows_of_which_each_has_its_cell_are_cut_exactly(bins: int) -> None:
    assert error_of_aece(*predictions(60, 3, 1.0), bins)[0] < 1e-12


@pytest.mark.full
@pytest.mark.parametrize(
    ("counts", "confidences", "right"),
    [
        ((10, 40, 10), (0.57, 0.7, 0.8), (False, True, False)),
        ((27, 20, 25), (0.57, 0.995, 0.997), (True, False, True)),
    ],
)
def test_the_bound_holds_where_the_rows_of_a_cell_are_all_right_or_all_wrong(
    counts: tuple[int, ...], confidences: tuple[float, ...], right: tuple[bool, ...]
) -> None:
    sizes = torch.tensor(counts)
    sure = torch.tensor(confidences, dtype=torch.float64).repeat_interleave(sizes)
    sure += 1e-12 * torch.arange(len(sure))
    logits = torch.stack([sure, 1 - sure], 1).log()
    labels = (~torch.tensor(right)).long().repeat_interleave(sizes)
    error, bound = error_of_aece(logits, labels, bins=2)
    assert 0.01 < error <= bound


@pytest.mark.full
def test_the_bound_holds_whichever_rows_share_a_cell() -> None:
    generator = torch.Generator().manual_seed(0)
    reached = []
    for _ in range(6):
        places = torch.randint(4, (60,), generator=generator)
        near = 1e-9 * torch.randn(60, generator=generator, dtype=torch.float64)
        logits = torch.stack([0.3 + 0.5 * places + near, torch.zeros_like(near)], 1)
        labels = torch.randint(2, (60,), generator=generator)
        error, bound = error_of_aece(logits, labels, bins=5)
        assert error <= bound + 1e-12
        reached.append(error > 0.01)
    assert any(reached)


def test_iou_is_of_pixels_that_are_labelled_or_predicted_as_a_class() -> None:
    predicted, labels = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 1, 1, 0])
    report = streamed(torch.nn.functional.one_hot(predicted, 3).float(), labels)
    iou = report.class_iou()
    assert iou[:2].tolist() == pytest.approx([1 / 3, 2 / 4])
    assert iou[2].isnan()
    assert report.report()["miou"] == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_wrong_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_classes=1 is outside \[2, inf\)"):
        StreamedReport(1)
    with pytest.raises(ValueError, match=r"^bins=0 is outside \[1, inf\)$"):
        StreamedReport(2, bins=0)
    report = StreamedReport(3)
    with pytest.raises(ValueError, match=r"^no rows to report; call add first$"):
        report.report()
    with pytest.raises(ValueError, match="labels: expected 0 to 2, got 3 in row 0"):
        report.add(torch.zeros(1, 3), torch.tensor([3]))
    with pytest.raises(ValueError, match="logits: 4 classes, expected 3"):
        report.add(torch.zeros(1, 4), torch.tensor([3]))
    with pytest.raises(ValueError, match="logits contain NaN, infinity"):
        report.add(torch.tensor([[0.0, torch.inf, 0.0]]), torch.tensor([0]))
