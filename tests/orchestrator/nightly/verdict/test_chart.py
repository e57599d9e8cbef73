import numpy as np
import pytest
from scipy.stats import t as student

from orchestrator.nightly import Limits
from orchestrator.nightly.verdict.chart import Chart, Scales, family_levels


def test_an_error_level_follows_from_the_bearable_false_alarms():
    levels = family_levels({"quality": 25, "speed": 5}, Limits(false_alarms=0.3))
    assert 25 * (levels["quality"] / 25) ** 2 == pytest.approx(0.3 / 30 / 2)
    assert 5 * (levels["speed"] / 5) ** 2 == pytest.approx(0.3 / 30 / 2)
    alone = family_levels({"speed": 5}, Limits(false_alarms=0.3))
    assert 5 * (alone["speed"] / 5) ** 2 == pytest.approx(0.3 / 30)
    assert family_levels({"speed": 2}, Limits(false_alarms=30)) == {"speed": 2 * 0.05}


def test_scales_turn_worse_upwards():
    scales = Scales(("acc", "ece", "images_per_second", "wall_seconds"), Limits())
    usual, worse = np.array([0.9, 0.02, 1000.0, 60.0]), np.array([0.8, 0.03, 800.0, 75.0])
    assert (scales.worse(worse) > scales.worse(usual)).all()
    assert scales.figures(scales.worse(usual)) == pytest.approx(usual)
    beyond = scales.figures(scales.worse(usual) + scales.thresholds(usual))
    assert beyond == pytest.approx([0.895, 0.022, 850.0, 70.8])


def test_control_limits_are_those_of_student_for_one_more_night():
    series = np.random.default_rng(1).normal(0.02, 0.0005, 22)
    chart = Chart(("ece",), Limits())
    for value in series[:-1]:
        chart.advance(np.array([value]))
    judged = chart.judge(series[-1:])
    past = series[:-1]
    assert judged.expected[0] == pytest.approx(past.mean())
    squares = 3 * (0.5 * judged.threshold[0]) ** 2 + past.var(ddof=1) * 20
    spread = np.sqrt(squares / 23 * (1 + 1 / 21))
    assert judged.spread[0] == pytest.approx(spread)
    assert judged.half_width()[0] == pytest.approx(student.isf(judged.level[0], 23) * spread)


def test_a_missing_night_changes_nothing():
    chart, other = Chart(("ece", "acc"), Limits()), Chart(("ece", "acc"), Limits())
    rng = np.random.default_rng(2)
    for _ in range(12):
        night = chart.scales.worse(np.array([0.02, 0.95]) + rng.normal(0, 1e-3, 2))
        chart.advance(night)
        other.advance(night)
        other.advance(np.full(2, np.nan))
    last = chart.scales.worse(np.array([0.05, 0.93]))
    assert chart.judge(last).worse.tolist() == other.judge(last).worse.tolist() == [True, True]
    assert chart.judge(last).spread == pytest.approx(other.judge(last).spread)


@pytest.mark.parametrize(("first", "second", "alarm"), [(0.0, 0.08, False), (0.08, 0.08, True)])
def test_two_nights_out_are_an_alarm_on_the_same_side_only(first, second, alarm):
    chart = Chart(("ece",), Limits())
    usual = np.random.default_rng(4).normal(0.04, 0.0005, 20)
    for value in (*usual, first):
        chart.advance(np.array([value]))
    judged = chart.advance(np.array([second]))
    assert judged.worse[0]
    assert chart.alarmed[0] == alarm
    assert not chart.improved[0]


def test_noise_alone_seldom_alarms_and_a_change_nearly_always():
    metrics = ("ece",) * 20 + ("images_per_second",) * 20
    usual = np.repeat([0.02, 5000.0], 20)
    rng = np.random.default_rng(3)
    chart = Chart(metrics, Limits(), (50,))
    alarms = 0
    for _ in range(100):
        before = chart.alarmed
        chart.advance(chart.scales.worse(usual * np.exp(rng.normal(0, 0.04, (50, 40)))))
        alarms += int((chart.alarmed & ~before).sum())
    assert alarms / (50 * 100) * 30 < 1
    change = np.ones(40)
    change[[0, 20]] = 1.25, 0.7
    for _ in range(2):
        chart.advance(chart.scales.worse(usual * change * np.exp(rng.normal(0, 0.04, (50, 40)))))
    assert chart.alarmed[:, [0, 20]].mean() > 0.95
    assert chart.alarmed[:, 1:20].mean() < 0.01
