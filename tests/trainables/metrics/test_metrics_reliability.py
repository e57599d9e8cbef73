"""Reliability curves and their diagram."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from trainables.metrics import calibration_report, reliability_curve, reliability_diagram


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return {"probs": rng.dirichlet(np.ones(3), 300), "labels": rng.integers(0, 3, 300)}


def test_each_bin_holds_its_rows():
    probs = np.array([[0.55, 0.45], [0.58, 0.42], [0.05, 0.95], [1.0, 0.0]])
    curve = reliability_curve(probs=probs, labels=np.array([0, 1, 1, 1]), bins=10)
    np.testing.assert_array_equal(curve.count, [0, 0, 0, 0, 0, 2, 0, 0, 0, 2])
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


def test_equal_mass_bins_hold_equally_many_rows(data):
    count = reliability_curve(**data, bins=15, scheme="mass").count
    assert abs(count - 20).max() <= 1


def test_bad_arguments_are_refused(data):
    with pytest.raises(ValueError, match="scheme='size' is not one of width, mass"):
        reliability_curve(**data, scheme="size")
    with pytest.raises(ValueError, match="bins=0"):
        reliability_curve(**data, bins=0)
    with pytest.raises(ValueError, match="got neither"):
        reliability_curve()


def test_the_diagram_draws_the_curve(data):
    curve = reliability_curve(**data)
    figure = reliability_diagram(curve, title="a $ and a _")
    main, share = figure.axes
    bars = main.containers[0]
    heights = [bar.get_height() for bar in bars]
    np.testing.assert_allclose(heights, curve.accuracy[curve.count > 0])
    shares = [bar.get_height() for bar in share.containers[0]]
    np.testing.assert_allclose(shares, curve.count / 300)
    assert main.get_title() == "a $ and a _"
    assert f"{100 * curve.error:.2f} %" in main.texts[0].get_text()


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
