"""Reliability curves and their diagram, and risk-coverage curves."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from trainables.metrics import (
    calibration_report,
    reliability_curve,
    reliability_diagram,
    risk_coverage_curve,
)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return {"probs": rng.dirichlet(np.ones(3), 300), "labels": rng.integers(0, 3, 300)}


def test_each_bin_holds_its_rows():
    probs = np.array([[0.55, 0.45], [0.58, 0.42], [0.05, 0.95], [1.0, 0.0]])
    curve = reliability_curve(probs=probs, labels=np.array([0, 1, 1, 1]), bins=10)
    np.testing.assert_array_equal(curve.count, [0, 0, 0, 0, 0, 2, 0, 0, 0, 2])
    assert curve.count.dtype == np.int64
    np.testing.assert_allclose(curve.edges, np.arange(11) / 10)
    assert curve.confidence[5] == pytest.approx(0.565)
    assert curve.accuracy[5] == 0.5
    assert curve.confidence[9] == pytest.approx(0.975)
    assert curve.accuracy[9] == 0.5
    assert np.isnan(curve.confidence[0])
    assert np.isnan(curve.accuracy[0])


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_errors_are_those_of_the_report(data, bins):
    report = calibration_report(**data, bins=bins)
    width = reliability_curve(**data, bins=bins)
    assert width.error == pytest.approx(report["ece"], abs=1e-12)
    gaps = np.abs(width.accuracy - width.confidence)
    assert np.nanmax(gaps) == pytest.approx(report["mce"], abs=1e-12)
    mass = reliability_curve(**data, bins=bins, scheme="mass")
    assert mass.error == pytest.approx(report["aece"], abs=1e-12)
    assert mass.count.sum() == width.count.sum() == 300


def test_edges_have_the_precision_of_the_probabilities():
    probs = np.array([[k / 15, 1 - k / 15] for k in range(8, 16)], dtype=np.float32)
    curve = reliability_curve(probs=probs, labels=np.zeros(8, int))
    np.testing.assert_array_equal(curve.count, [0] * 7 + [1] * 8)


def test_bad_arguments_are_refused(data):
    with pytest.raises(ValueError, match="scheme='size' is not one of width, mass"):
        reliability_curve(**data, scheme="size")
    with pytest.raises(ValueError, match="bins=0"):
        reliability_curve(**data, bins=0)
    with pytest.raises(ValueError, match="got neither"):
        reliability_curve()


def boxes(bars):
    """Left and lower end and height of bars."""
    return [[getattr(bar, f"get_{key}")() for bar in bars] for key in ("x", "y", "height")]


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_the_diagram_draws_the_curve(data, scheme):
    data["probs"][:100] = data["probs"][0]  # Of equal mass some bins are empty, all unlike wide.
    curve = reliability_curve(**data, scheme=scheme)
    assert 0 < (curve.count == 0).sum() < 14
    figure = reliability_diagram(curve, title="a $ and a _")
    main, share = figure.axes
    filled = curve.count > 0
    left, gap = curve.edges[:-1], curve.confidence - curve.accuracy
    accuracy = [left[filled], np.zeros(filled.sum()), curve.accuracy[filled]]
    np.testing.assert_allclose(boxes(main.containers[0]), accuracy)
    gaps = [left[filled], curve.accuracy[filled], gap[filled]]
    np.testing.assert_allclose(boxes(main.containers[1]), gaps)
    shares = [left, np.zeros(15), curve.count / 300]
    np.testing.assert_allclose(boxes(share.containers[0]), shares)
    widths = np.diff(curve.edges)
    for bars, expected in zip(
        (*main.containers, *share.containers), (widths[filled], widths[filled], widths), strict=True
    ):
        np.testing.assert_allclose([bar.get_width() for bar in bars], expected)
    np.testing.assert_array_equal(main.lines[0].get_xydata(), [[0, 0], [1, 1]])
    assert (main.get_xlim(), main.get_ylim()) == ((0, 1), (0, 1))
    assert [text.get_text() for text in main.get_legend().texts] == ["accuracy", "gap"]
    labels = main.get_ylabel(), share.get_ylabel(), share.get_xlabel()
    assert labels == ("accuracy", "share", "confidence")
    assert main.get_title() == "a $ and a _"
    assert not main.title.get_parse_math()
    assert [text.get_text() for text in main.texts] == [f"error {100 * curve.error:.2f} %"]


def test_the_diagram_can_be_saved_from_threads_and_leaves_no_figure_open(data, tmp_path):
    paths = [tmp_path / f"{i}.png" for i in range(3)]

    def draw(path):
        reliability_diagram(reliability_curve(**data, bins=10)).savefig(path)

    threads = [threading.Thread(target=draw, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {path.read_bytes()[:8] for path in paths} == {b"\x89PNG\r\n\x1a\n"}
    from matplotlib import pyplot

    assert pyplot.get_fignums() == []


def test_the_risk_is_the_error_among_the_most_confident_rows():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(4, (60,), generator=generator)
    curve = risk_coverage_curve(logits=logits, labels=labels)
    rows = sorted(
        (max(row.tolist()), int(row.argmax() != label))
        for row, label in zip(logits.softmax(1), labels, strict=True)
    )[::-1]
    wrong = [error for _, error in rows]
    expected = [sum(wrong[:kept]) / kept for kept in range(1, 61)]
    assert curve.risk == pytest.approx(expected)
    assert curve.coverage == pytest.approx(np.arange(1, 61) / 60)
    assert curve.area == pytest.approx(sum(expected) / 60)
    report = calibration_report(logits=logits, labels=labels)
    assert curve.risk[-1] == pytest.approx(1 - report["acc"])


def test_rows_of_equal_confidence_share_their_errors():
    probs = torch.tensor([[0.9, 0.1]] * 4 + [[0.4, 0.6]])
    labels = torch.tensor([1, 0, 0, 0, 1])
    for order in ([0, 1, 2, 3, 4], [3, 2, 1, 0, 4]):
        curve = risk_coverage_curve(probs=probs[order], labels=labels[order])
        assert curve.risk == pytest.approx([0.25] * 4 + [0.2])
