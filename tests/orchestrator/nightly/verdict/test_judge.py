import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nights import ACC, ECE, LEVELS, RECIPES, SPEED, TASK, history, name, record

from orchestrator.nightly import (
    Bounds,
    CellKey,
    Limits,
    NightRecord,
    Row,
    Shape,
    Threshold,
    Verdict,
    detectable,
    grouped,
    judge,
)

QUIET = history(range(10))


def changed(night: NightRecord, cell: CellKey, values: dict[int, float]) -> NightRecord:
    return replace(night, cells={**night.cells, cell: values})


def told(verdict: Verdict) -> list[tuple[CellKey, str, str]]:
    return [(alarm.cell, alarm.kind, alarm.reason) for alarm in verdict.alarms]


def test_a_series_that_never_varies_is_fine():
    verdict = judge(QUIET, record(10))
    assert verdict == Verdict(name(10), "ok")
    rounded = dict.fromkeys(record(10).cells, 1 + 1e-7)
    assert judge([*QUIET, record(10, factors=rounded)], record(11, factors=rounded)).status == "ok"


def test_one_worse_night_is_suspicious_and_the_second_an_alarm():
    worse = {ECE: 1.2}
    first = judge(QUIET, record(10, factors=worse))
    assert (first.status, first.raised) == ("suspicious", False)
    gap = f"0.02436 instead of 0.0203, since {name(10)}"
    assert [(found.cell, found.text) for found in first.suspicions] == [
        (ECE, f"{ECE} is worse, for one night so far: {gap}")
    ]
    second = judge([*QUIET, record(10, factors=worse)], record(11, factors=worse))
    assert second.status == "regression"
    assert told(second) == [(ECE, "soft", "nights")]
    (alarm,) = second.alarms
    assert alarm.since == name(10)
    assert alarm.expected == pytest.approx(0.02 * 1.015)
    assert alarm.value - alarm.expected == pytest.approx(0.2 * 0.02 * 1.015)
    assert alarm.threshold == pytest.approx(0.1 * 0.02 * 1.015)
    assert alarm.lower < alarm.expected < alarm.upper < alarm.value
    assert alarm.text == f"{ECE} is worse, 2 nights in a row: {gap}"


@pytest.mark.parametrize(("cell", "factor"), [(ECE, 1.3), (ACC, 0.9), (SPEED, 0.5)])
def test_the_lower_limit_is_below_the_upper_one_whatever_is_better(cell, factor):
    worse = [record(night, factors={cell: factor}) for night in (10, 11)]
    (alarm,) = judge([*QUIET, worse[0]], worse[1]).alarms
    assert alarm.lower < alarm.expected < alarm.upper
    assert not alarm.lower <= alarm.value <= alarm.upper


def test_one_worse_night_between_good_ones_stays_without_an_alarm():
    nights = [*QUIET, record(10, factors={ECE: 1.2}), record(11)]
    assert judge(nights[:-1], nights[-1]).status == "ok"
    assert judge(nights, record(12, factors={ECE: 1.2})).status == "suspicious"


@pytest.mark.parametrize(
    ("cell", "factor"), [(ECE, 1.09), (ACC, 0.996), (SPEED, 0.87)], ids=["ece", "acc", "speed"]
)
def test_a_change_below_the_practical_threshold_raises_no_alarm(cell, factor):
    small = {cell: factor}
    assert judge([*QUIET, record(10, factors=small)], record(11, factors=small)).status == "ok"


@pytest.mark.parametrize("metric", ["ece", "cifar10-c/ece"])
@pytest.mark.parametrize(
    ("relative", "most", "reasons"),
    [(0.19, 0.0244, ["nights"]), (0.21, 0.0244, []), (0.21, 0.0243, ["limit"])],
)
def test_thresholds_and_limits_of_the_file_decide_on_alarms(metric, relative, most, reasons):
    def renamed(night: NightRecord) -> NightRecord:
        new = {**dict(zip(LEVELS, LEVELS, strict=True)), "ece": metric}
        cells = {c._replace(metric=new[c.metric]): values for c, values in night.cells.items()}
        shape = replace(night.shape, metrics=tuple(new.values()))
        return replace(night, cells=cells, shape=shape)

    limits = Limits(
        thresholds={"ece": Threshold(relative=relative)}, hard={"ece": Bounds(max=most)}
    )
    worse = [renamed(record(night, factors={ECE: 1.2})) for night in (10, 11)]
    alarms = judge([*map(renamed, QUIET), worse[0]], worse[1], limits).alarms
    assert [(a.cell, a.reason) for a in alarms] == [
        (ECE._replace(metric=metric), reason) for reason in reasons
    ]


@pytest.mark.parametrize(
    ("cell", "factor", "size"),
    [(ECE, 1.15, 0.1), (ACC, 0.99, 0.01), (SPEED, 0.8, 0.15)],
    ids=["ece", "acc", "speed"],
)
def test_a_change_that_noise_explains_raises_no_alarm(cell, factor, size):
    worse = [record(night, 0.0, {cell: factor}) for night in (30, 31)]
    for noise, expected in ((0.0, True), (size, False)):
        verdict = judge([*history(range(30), noise), worse[0]], worse[1])
        assert (cell in {alarm.cell for alarm in verdict.alarms}) == expected


def test_noise_above_the_assumed_one_is_learned():
    verdict = judge(history(range(60), noise=0.1), record(60, noise=0.1))
    assert verdict.alarms == ()


def test_an_alarm_stays_until_the_figures_are_back():
    bad = [record(night, factors={ECE: 1.3}) for night in range(10, 60)]
    late = judge([*QUIET, *bad], record(60, factors={ECE: 1.3}))
    assert told(late) == [(ECE, "soft", "nights")]
    assert late.alarms[0].since == name(10)
    assert "51 nights in a row" in late.alarms[0].text
    assert judge([*QUIET, *bad], record(60)).status == "ok"


def test_an_accepted_change_restarts_the_series():
    bad = [record(night, factors={ECE: 1.3}) for night in (10, 11, 12)]
    for accepted in (ECE, CellKey(*ECE.pair)):
        assert judge([*QUIET, *bad[:2]], bad[2], accepted={accepted: name(10)}).status == "ok"
    twice = {ECE: name(5), CellKey(*ECE.pair): name(10)}
    assert judge([*QUIET, *bad[:2]], bad[2], accepted=twice).status == "ok"
    other = {CellKey("ce", TASK, "ece"): name(10)}
    assert judge([*QUIET, *bad[:2]], bad[2], accepted=other).status == "regression"
    later = [record(night, factors={ECE: 1.3}) for night in range(13, 25)]
    worse = [record(night, factors={ECE: 1.7}) for night in (25, 26)]
    again = judge([*QUIET, *bad, *later, worse[0]], worse[1], accepted={ECE: name(10)})
    assert told(again) == [(ECE, "soft", "nights")]
    assert again.alarms[0].expected == pytest.approx(1.3 * 0.02 * 1.015)


@pytest.mark.parametrize("start", ["2031-01-01", "2026-01-11.9"])
def test_an_accepted_series_continues_with_any_names_of_nights(start):
    """The clock was wrong that night, or many nights ran on one date."""
    first, *rest = [record(night, factors={ECE: 1.3}) for night in range(10, 20)]
    known = [
        *QUIET,
        replace(first, night=start),
        replace(rest[0], night="2026-01-11.10"),
        *rest[1:],
    ]
    for accepted in ({ECE: start}, {ECE: name(3), CellKey(*ECE.pair): start}):
        verdict = judge(known, record(20, factors={ECE: 1.3}), accepted=accepted)
        assert verdict == Verdict(name(20), "ok")
        worse = [record(night, factors={ECE: 1.7}) for night in (20, 21)]
        verdict = judge([*known, worse[0]], worse[1], accepted=accepted)
        assert told(verdict) == [(ECE, "soft", "nights")]
        assert verdict.alarms[0].nights == 10
        # By its date, if somebody removed it; and where it is too long ago to be looked at.
        gone = [night for night in known if night.night != start]
        again = {cell: name(10) if night == start else night for cell, night in accepted.items()}
        assert judge(gone, record(20, factors={ECE: 1.3}), accepted=again).status == "ok"
        assert judge(gone[10:], record(20, factors={ECE: 1.3}), accepted=accepted).notes == ()


def test_an_improvement_is_reported_and_becomes_the_expected_value():
    better = [record(night, factors={ECE: 0.7}) for night in range(10, 20)]
    verdicts = [judge([*QUIET, *better[:night]], better[night]) for night in range(10)]
    assert {verdict.status for verdict in verdicts} == {"ok"}
    told_on = [[item.cell for item in verdict.improvements] for verdict in verdicts]
    assert told_on == [[], *[[ECE]] * 4, *[[]] * 5]
    gap = f"0.01421 instead of 0.0203, since {name(10)}"
    assert verdicts[1].improvements[0].text == f"{ECE} is better: {gap}"
    low = judge([*QUIET, better[0]], better[1], Limits(hard={"ece": Bounds(min=0.0145)}))
    assert (told(low), low.improvements) == ([(ECE, "hard", "limit")], ())
    lost = judge([*QUIET, *better[:4], record(14)], record(15))
    assert (lost.status, lost.suspicions) == ("ok", ())
    back = judge([*QUIET, *better, record(20)], record(21))
    assert told(back) == [(ECE, "soft", "nights")]
    assert back.alarms[0].since == name(20)


def test_changes_of_the_environment_are_named_as_causes():
    new = {"torch": "2", "numpy": "3", "code": "c", "cpu": "x"}
    worse = [record(night, 0.0, {ECE: 1.2}, new) for night in (10, 11)]
    (alarm,) = judge([*QUIET, worse[0]], worse[1]).alarms
    changes = ("code: none -> c", "cpu: none -> x", "numpy: none -> 3", "torch: 1 -> 2")
    assert alarm.causes == tuple(f"{change} ({name(10)})" for change in changes)
    gone = [record(night, 0.0, {ECE: 1.2}, {"numpy": "3"}) for night in (10, 11)]
    (alarm,) = judge([*QUIET, gone[0]], gone[1]).alarms
    lost = ("numpy: none -> 3", "torch: 1 -> none")
    assert alarm.causes == tuple(f"{change} ({name(10)})" for change in lost)
    older = [*history(range(5)), *(record(night, environment=new) for night in range(5, 10))]
    (alarm,) = judge([*older, worse[0]], worse[1]).alarms
    assert alarm.causes == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_is_an_alarm_at_once(value):
    verdict = judge(QUIET, changed(record(10), ECE, {0: 0.02, 1: value, 2: 0.02}))
    assert verdict.status == "regression"
    assert told(verdict) == [(ECE, "hard", "not finite")]
    assert f"{value:g} (seed 1)" in verdict.alarms[0].text
    both = judge(QUIET, changed(record(10), ECE, {0: value, 1: 0.02, 2: -value}))
    assert both.alarms[0].text == f"{ECE} is {value:g} (seed 0), {-value:g} (seed 2)"
    healed = judge([*QUIET, changed(record(10), ECE, {0: value})], record(11))
    assert healed.status == "ok"


def test_a_speed_of_zero_is_an_alarm_at_once():
    verdict = judge(QUIET, changed(record(10), SPEED, {0: 0.0, 1: 1.0, 2: 1.0}))
    assert told(verdict) == [(SPEED, "hard", "not finite")]


def test_an_error_of_zero_is_a_figure_like_any_other():
    best = [changed(record(night), ECE, dict.fromkeys(range(3), 0.0)) for night in range(10)]
    assert judge(best[:-1], best[-1]).status == "ok"
    verdict = judge([*best, record(10)], record(11))
    assert told(verdict) == [(ECE, "soft", "nights")]
    assert verdict.alarms[0].expected == 0.0
    share = Limits(thresholds={"ece": Threshold(relative=0.1)})  # Of nothing that is nothing.
    assert judge(best[:-1], best[-1], share).status == "ok"
    assert told(judge([*best, record(10)], record(11), share)) == [(ECE, "soft", "nights")]


def test_a_failed_recipe_makes_the_night_incomplete():
    night = record(10)
    cells = {cell: values for cell, values in night.cells.items() if cell.recipe != "ls"}
    failed = {("ls", TASK): "out of memory"}
    night = replace(night, cells=cells, failed=failed, environment={"torch": "2"})
    verdict = judge(QUIET, night)
    assert (verdict.status, verdict.raised) == ("incomplete", True)
    assert told(verdict) == [(CellKey("ls", TASK), "hard", "failed")]
    assert "out of memory" in verdict.alarms[0].text
    assert verdict.alarms[0].causes == (f"torch: 1 -> 2 ({name(10)})",)


def test_a_table_of_the_wrong_shape_makes_the_night_incomplete():
    night = changed(record(10), ECE, {0: 0.02, 1: 0.02})
    surplus = changed(night, CellKey("fl", TASK, "ece"), {0: 0.02})
    verdict = judge(QUIET, changed(surplus, CellKey("fl", TASK, "nll"), {0: 0.2}))
    assert verdict.status == "incomplete"
    assert told(verdict) == [
        (CellKey("ls", TASK), "hard", "missing"),
        (CellKey("fl", TASK), "hard", "unexpected"),
    ]
    assert verdict.alarms[0].text == f"ls on {TASK} lacks ece of seed 2"
    elsewhere = judge(QUIET, changed(record(10), CellKey("ls", "other", "ece"), {0: 0.02}))
    assert told(elsewhere) == [(CellKey("ls", "other"), "hard", "unexpected")]
    gone = changed(changed(night, ECE, {1: 0.02}), ACC, {0: 0.9, 1: 0.9})
    text = f"ls on {TASK} lacks acc of seed 2, ece of seeds 0, 2"
    assert judge(QUIET, gone).alarms[0].text == text
    none = judge(QUIET, changed(record(10), ECE, {}), Limits(hard={"ece": Bounds(max=1)}))
    assert [alarm.text for alarm in none.alarms] == [f"ls on {TASK} lacks ece of seeds 0, 1, 2"]
    assert none.notes == ()
    two = replace(record(10).shape, tasks=(TASK, "other"))
    half = [alarm.cell for alarm in judge(QUIET, replace(record(10), shape=two)).alarms]
    assert half == [CellKey(recipe, "other") for recipe in RECIPES]
    failed = replace(record(10), shape=two, failed={("ls", TASK): "out of memory"})
    lacking = [alarm.cell for alarm in judge(QUIET, failed).alarms if alarm.reason == "missing"]
    assert lacking == half
    shapeless = replace(record(10), shape=Shape())
    assert judge(QUIET, changed(shapeless, CellKey("fl", TASK, "ece"), {0: 0.02})).status == "ok"
    whole = changed(record(10), CellKey("*", "*", "total_seconds"), {0: 60.0})
    assert judge(QUIET, whole).status == "ok"


def test_seeds_missing_besides_a_failed_recipe_raise_an_alarm():
    night = changed(record(10), CellKey(RECIPES[-1], TASK, "ece"), {0: 0.02})
    verdict = judge(QUIET, replace(night, failed={(RECIPES[0], TASK): "out of memory"}))
    assert [alarm.text for alarm in verdict.alarms] == [
        f"{RECIPES[0]} on {TASK} failed: out of memory",
        f"{RECIPES[-1]} on {TASK} lacks ece of seeds 1, 2",
    ]


def test_an_empty_night_is_incomplete():
    verdict = judge(QUIET, replace(record(10), cells={}))
    assert verdict.status == "incomplete"
    assert [alarm.cell.recipe for alarm in verdict.alarms] == list(RECIPES)


def test_a_bound_needs_one_night_and_no_history():
    limits = Limits(hard={"ece": Bounds(max=0.02005), "acc": Bounds(min=0.5)})
    verdict = judge([], record(0), limits)
    assert told(verdict) == [
        (CellKey(recipe, TASK, "ece"), "hard", "limit") for recipe in ("ce", "ls", "ce+ts")
    ]
    assert verdict.alarms[0].upper == 0.02005
    assert verdict.alarms[0].text == f"ce on {TASK}: ece is 0.0201, above the limit of 0.02005"
    (low,) = judge([], record(0), Limits(hard={"nll": Bounds(min=0.202, max=1)})).alarms
    assert low.text == f"ce on {TASK}: nll is 0.201, below the limit of 0.202"
    assert (low.value, low.lower, low.upper) == (pytest.approx(0.201), 0.202, 1.0)
    assert judge([], record(0), Limits(hard={"ece": Bounds(max=0.05)})).status == "ok"
    exactly = Limits(hard={"ece": Bounds(min=0.5, max=0.5)})
    on_it = judge([], changed(record(0), ECE, dict.fromkeys(range(3), 0.5)), exactly)
    assert ECE not in {alarm.cell for alarm in on_it.alarms}


def twins(night: NightRecord, recipe: str, factor: float = 1.0) -> NightRecord:
    """Let ce and a recipe have the same figures, those of ce times a factor."""
    for metric in ("acc", "ece", "nll"):
        usual = night.cells[CellKey("ce", TASK, metric)].items()
        for either in ("ce", recipe):
            own = {seed: factor * value for seed, value in usual}
            night = changed(night, CellKey(either, TASK, metric), own)
    return night


def test_a_recipe_that_starts_to_equal_another_raises_an_alarm():
    twin = twins(record(10, environment={"torch": "2"}), "ls")
    verdict = judge(QUIET, twin)
    assert told(verdict) == [(CellKey("ls", TASK), "hard", "twin")]
    same = f"ls on {TASK} has the same figures as ce to the last digit, since {name(10)}"
    assert verdict.alarms[0].text == same
    later = replace(twin, night=name(11))
    alarm = judge([*QUIET, twin], later).alarms[0]
    assert (alarm.since, alarm.causes) == (name(10), (f"torch: 1 -> 2 ({name(10)})",))
    # They were equal before, and apart in between.
    before = [twins(record(8), "ls"), record(9)]
    assert judge([*QUIET[:8], *before, twin], later).alarms[0].since == name(10)
    assert judge([*QUIET, twin], later, accepted={CellKey("ls", TASK): name(10)}).status == "ok"
    other = judge([*QUIET, twin], later, accepted={CellKey("ce", TASK): name(10)})
    assert {alarm.reason for alarm in other.alarms} == {"nights"}
    assert judge([twin], later).status == "ok"
    both = judge(QUIET, twins(record(10), "ls", 1.001)).alarms
    assert [(alarm.cell.recipe, alarm.text.split()[8]) for alarm in both] == [
        ("ce", "ls"),
        ("ls", "ce"),
    ]


@pytest.mark.parametrize(
    ("metrics", "factor", "twin"),
    [
        (("acc", "ece", "nll"), 1 + 5e-6, True),
        (("acc", "ece", "nll"), 1 + 1.5e-5, False),
        (("nll",), 1.0, False),
    ],
)
def test_twins_are_equal_in_all_figures_but_for_rounding(metrics, factor, twin):
    night = record(10)
    for metric in ("acc", "ece", "nll"):
        as_of, times = ("ce", factor) if metric in metrics else ("ls", 1.0001)
        figures = night.cells[CellKey(as_of, TASK, metric)].items()
        own = {seed: times * value for seed, value in figures}
        night = changed(night, CellKey("ls", TASK, metric), own)
    # Each of the two was missing once.
    begun = [
        replace(old, cells={cell: v for cell, v in old.cells.items() if cell.recipe != recipe})
        for old, recipe in zip(QUIET, ("ls", "ce"), strict=False)
    ]
    verdict = judge([*begun, *QUIET[2:]], night)
    assert ("twin" in {alarm.reason for alarm in verdict.alarms}) == twin


def test_recipes_with_equal_accuracies_only_raise_no_alarm():
    both = ("acc", "cifar10-c/acc")

    def accuracies(night: NightRecord) -> NightRecord:
        usual = {cell: values for cell, values in night.cells.items() if cell.metric == "acc"}
        cells = {cell._replace(metric=m): values for cell, values in usual.items() for m in both}
        return replace(night, cells=cells, shape=replace(night.shape, metrics=both))

    night = accuracies(record(10))
    for metric in both:
        own = night.cells[CellKey("ce", TASK, metric)]
        night = changed(night, ACC._replace(metric=metric), {**own})
    assert judge([accuracies(night) for night in QUIET], night).alarms == ()


@pytest.mark.parametrize("other", ["other", f"{TASK}-2"])
def test_equal_figures_on_two_tasks_raise_no_alarm(other):
    def with_another_task(night: NightRecord, factor: float) -> NightRecord:
        copies = {
            CellKey(cell.recipe, other, cell.metric): {s: factor * v for s, v in values.items()}
            for cell, values in night.cells.items()
        }
        shape = replace(night.shape, tasks=(TASK, other))
        return replace(night, cells={**night.cells, **copies}, shape=shape)

    history = [with_another_task(night, 0.999) for night in QUIET]
    assert judge(history, with_another_task(record(10), 1.0)).alarms == ()


@pytest.mark.parametrize("tonight", [name(11), f"{name(10)}.2", f"{name(10)}.1"])
def test_a_night_before_of_a_similar_name_counts(tonight):
    before = replace(record(10, factors={ECE: 1.2}), night=f"{name(10)}.12")
    first = replace(record(10, factors={ECE: 1.2}), night=name(10))
    last = replace(record(11, factors={ECE: 1.2}), night=tonight)
    for earlier in (before, first):
        assert judge([*QUIET, earlier], last).status == "regression"
    assert judge([*QUIET, last], last).status == "suspicious"


def defined(night: NightRecord, recipe: str, definition: str) -> NightRecord:
    rows = {(own, TASK): Row("train", definition if own == recipe else "") for own in RECIPES}
    return replace(night, rows=rows)


def test_recipes_that_the_benchmark_redefines_are_not_compared():
    before = [defined(night, "ls", "old") for night in QUIET]
    worse = {ECE: 3.0, CellKey("ce", TASK, "ece"): 3.0}
    first = defined(record(10, factors=worse), "ls", "new")
    verdict = judge(before, first)
    assert [found.cell for found in verdict.suspicions] == [CellKey("ce", TASK, "ece")]
    assert verdict.notes[0] == f"redefined in the benchmark since the night before: ls on {TASK}"
    alone = judge(before, defined(record(10, factors={ECE: 3.0}), "ls", "new"))
    assert (alone.status, alone.code, alone.suspicions) == ("not comparable", 0, ())
    later = judge([*before, first], defined(record(11, factors={ECE: 3.0}), "ls", "new"))
    assert (later.status, later.alarms) == ("ok", ())
    # As it was again: the nights of then count.
    again = defined(record(11, factors={ECE: 3.0}), "ls", "old")
    assert ECE in {found.cell for found in judge([*before, first], again).suspicions}
    # Records that say nothing of their rows have the hash of the whole benchmark.
    old = [replace(night, environment={"benchmark": "a"}) for night in QUIET]
    whole = replace(record(10, factors={ECE: 3.0}), environment={"benchmark": "b"})
    assert judge(old, whole).status == "not comparable"
    assert NightRecord.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_findings_of_one_night_belong_together():
    worse = {cell: 1.2 for cell in record(0).cells if cell.metric in ("ece", "nll")}
    slow = {SPEED: 0.6}
    first = judge(QUIET, record(10, factors=worse | slow))
    quality, cost = grouped(first.suspicions)
    assert {found.cell for found in quality} == set(worse)
    assert [found.cell for found in cost] == [SPEED]
    assert quality[0].cell.metric == "nll"  # Of which a smaller share matters.
    assert 0 < cost[0].chance < 1e-3


def stages(night: int, slow: float = 1.0, sizes: float = 0.01) -> NightRecord:
    """Return speeds of two stages, which share the noise of the machine."""
    rng, own = np.random.default_rng(night), record(night)
    machine = np.exp(0.1 * rng.normal())
    rows = {("ce", TASK): Row("train", ""), ("ls", TASK): Row("train", "")}
    rows |= {("ce+ts", TASK): Row("calibrate", "")}
    cells = dict(own.cells)
    for recipe in RECIPES:
        cell = CellKey(recipe, TASK, "images_per_second")
        factor = machine / (slow if recipe == "ce+ts" else 1.0)
        cells[cell] = {
            seed: value * factor * np.exp(sizes * rng.normal())
            for seed, value in own.cells[cell].items()
        }
    return replace(own, cells=cells, rows=rows)


def test_a_stage_that_becomes_slower_than_the_others_is_named():
    before = [stages(night) for night in range(30)]
    after = [stages(night, slow=1.05) for night in range(30, 33)]
    verdict = judge([*before, *after[:-1]], after[-1])
    cell = CellKey("*", "*", "calibrate_time")
    (found,) = (found for found in verdict.alarms if found.cell == cell)
    assert found.since in (name(29), name(30), name(31))
    assert found.value == pytest.approx(1.05, abs=0.015)
    assert "calibrate takes" in found.text
    quiet = judge(before[:-1], before[-1])
    assert not [alarm for alarm in quiet.alarms if alarm.cell.metric.endswith("_time")]
    accepted = judge([*before, *after[:-1]], after[-1], accepted={cell: found.since})
    assert cell not in {alarm.cell for alarm in accepted.alarms}
    # One stage alone has nothing to be compared with.
    lone = [replace(night, rows=dict.fromkeys(night.rows, Row("train", ""))) for night in before]
    assert judge(lone[:-1], lone[-1]).alarms == ()


def test_the_smallest_change_that_is_seen_is_alarmed():
    nights = history(range(20))
    sight = detectable(nights)
    usual, beyond = sight[ECE]
    assert usual == pytest.approx(0.0203)
    for factor, raised in ((1.01, True), (0.99, False)):
        worse = {ECE: 1 + factor * (beyond / usual - 1)}
        verdict = judge([*nights, record(20, factors=worse)], record(21, factors=worse))
        assert (ECE in {alarm.cell for alarm in verdict.alarms}) == raised
    assert detectable(history(range(20), noise=0.05))[ECE][1] > beyond
    assert detectable(history(range(4))) == {}


def test_a_short_history_is_stated():
    none = "no earlier night: only hard limits were checked"
    assert judge([], record(0)).notes == (f"15 of 15 cells have {none}",)
    few = "fewer than 5 earlier nights: their noise is assumed from their thresholds"
    assert judge(history(range(4)), record(4)).notes == (f"15 of 15 cells have {few}",)
    assert judge(history(range(5)), record(5)).notes == ()


def test_a_large_change_is_seen_on_the_third_night():
    worse = {ECE: 1.6}
    verdict = judge([record(0), record(1, factors=worse)], record(2, factors=worse))
    assert told(verdict) == [(ECE, "soft", "nights")]


def test_only_common_seeds_are_compared():
    slow = {0: 5000.0, 1: 1.0, 2: 1.0}
    nights = [changed(record(night), SPEED, slow) for night in range(10)]
    tonight = [changed(record(night), SPEED, {0: 5000.0, 7: 1.0}) for night in (10, 11)]
    verdict = judge([*nights, tonight[0]], tonight[1])
    assert [a.reason for a in verdict.alarms] == ["missing"]
    assert verdict.suspicions == ()
    fresh = [changed(record(night), ECE, {7: 5.0}) for night in (10, 11)]
    assert [a.reason for a in judge([*QUIET, fresh[0]], fresh[1]).alarms] == ["missing"]


def test_a_drift_too_slow_for_two_nights_is_found_with_its_beginning():
    nights = [record(night, factors={ECE: 1.01 ** max(0, night - 20)}) for night in range(60)]
    verdicts = [judge(nights[:night], nights[night]) for night in range(15, 60, 2)]
    assert {verdict.status for verdict in verdicts[:5]} == {"ok"}
    raised = next(verdict for verdict in verdicts if verdict.raised)
    assert told(raised) == [(ECE, "soft", "step")]
    assert raised.alarms[0].text.startswith(f"{ECE} has become worse by a step or drift: 0.0")
    assert name(20) < raised.alarms[0].since <= raised.night < name(60)
    growth = raised.alarms[0].value / raised.alarms[0].expected - 1
    assert 0.1 < growth < 0.35
    assert verdicts[-1].raised


@pytest.mark.parametrize(("growth", "reasons"), [(1.0018, ["step"]), (1.00174, [])])
def test_a_drift_counts_over_the_last_90_nights(growth, reasons):
    # Over 100 nights both are worse by more than the threshold, over 88 neither.
    nights = [record(night, factors={ECE: growth**night}) for night in range(100)]
    assert [alarm.reason for alarm in judge(nights[:-1], nights[-1]).alarms] == reasons


def test_a_step_hidden_in_noise_is_found_in_the_series():
    noisy = [
        record(night, 0.05, {ECE: 1.25 if night >= 30 else 1.0}, {"torch": str(night >= 30)})
        for night in range(50)
    ]
    for night in (47, 48, 49):
        (alarm,) = (a for a in judge(noisy[:night], noisy[night]).alarms if a.cell == ECE)
        assert name(27) <= alarm.since <= name(33)


@pytest.mark.parametrize("began", [name(20), "2031-01-01", "2026-02-10.9"])
def test_a_step_before_two_worse_nights_is_dated_with_any_name_of_a_night(began):
    def factor(night: int) -> float:
        return 1.0 if night < 20 else 1.095 if night < 40 else 1.3

    nights = [record(night, factors={ECE: factor(night)}) for night in range(42)]
    nights[20] = replace(nights[20], night=began)
    nights[40] = replace(nights[40], night="2026-02-10.10")
    (alarm,) = judge(nights[:-1], nights[-1]).alarms
    gap = f"0.02639 instead of 0.0203, since {began}"
    assert (alarm.reason, alarm.since, alarm.nights) == ("step", began, 20)
    assert alarm.text == f"{ECE} has become worse by a step or drift: {gap}"


def test_a_verdict_survives_json():
    worse = [record(night, 0.0, {ECE: 1.2, SPEED: 1.5}, {"torch": "2"}) for night in (10, 11)]
    verdict = judge([*QUIET, worse[0]], changed(worse[1], ACC, {0: math.nan}))
    assert verdict.alarms
    assert verdict.improvements
    text = json.dumps(verdict.to_json(), allow_nan=False)
    assert Verdict.from_json(json.loads(text)) == verdict


CELLS = st.sampled_from(sorted(record(0).cells))
FACTORS = st.dictionaries(CELLS, st.floats(0.3, 3.0), max_size=6)


@settings(max_examples=10, deadline=None)
@given(FACTORS, st.randoms(use_true_random=False))
def test_the_order_of_cells_does_not_matter(factors, random):
    def shuffled(night: NightRecord) -> NightRecord:
        cells = list(night.cells.items())
        random.shuffle(cells)
        return replace(night, cells=dict(cells))

    nights = [*history(range(8), 0.02), *(record(night, 0.02, factors) for night in (8, 9))]
    verdict = judge(nights[:-1], nights[-1])
    other = judge([shuffled(night) for night in nights[:-1]], shuffled(nights[-1]))
    assert other.status == verdict.status
    for kind in ("alarms", "suspicions", "improvements"):
        assert {a.cell for a in getattr(other, kind)} == {a.cell for a in getattr(verdict, kind)}


@settings(max_examples=10, deadline=None)
@given(st.dictionaries(CELLS, st.floats(1.0, 5.0), max_size=15))
def test_improvements_never_alarm(gains):
    better = {
        cell: gain if cell.metric in ("acc", "images_per_second") else 1 / gain
        for cell, gain in gains.items()
    }
    nights = [*history(range(6)), *(record(night, factors=better) for night in range(6, 10))]
    for night in range(6, 10):
        verdict = judge(nights[:night], nights[night])
        assert (verdict.status, verdict.suspicions) == ("ok", ())


@settings(max_examples=10, deadline=None)
@given(CELLS, st.floats(0.2, 5.0))
def test_an_accepted_cell_is_silent(cell, factor):
    nights = [*history(range(6)), *(record(night, 0.0, {cell: factor}) for night in range(6, 10))]
    for night in range(6, 10):
        verdict = judge(nights[:night], nights[night], accepted={cell: name(6)})
        assert (verdict.status, verdict.improvements) == ("ok", ())


def test_every_metric_of_the_history_is_judged():
    assert set(LEVELS) == {cell.metric for cell in record(0).cells}
    with pytest.raises(ValueError, match="metric='speed' is not one of acc, "):
        judge([], changed(record(0), CellKey("ls", TASK, "speed"), {0: 1.0}))


@pytest.mark.parametrize("cell", [ECE, ACC, SPEED])
@pytest.mark.parametrize("seen", [(1.3, 0.7), (1.0, 0.7, 1.3), (0.7, 1.3, 1.0, 1.3)])
def test_a_night_without_a_figure_changes_nothing(cell, seen):
    nights = [record(10 + n, factors={cell: factor}) for n, factor in enumerate(seen)]
    gap = record(9)
    gap = replace(gap, cells={key: row for key, row in gap.cells.items() if key != cell})
    gaps = [replace(gap, night=f"{night.night}.1") for night in nights]
    between = [one for pair in zip(nights, gaps, strict=True) for one in pair]
    for factor in (1.3, 0.7, 1.0):
        last = record(20, factors={cell: factor})
        whole, broken = judge([*QUIET, *nights], last), judge([*QUIET, *between], last)
        for kind, found in whole.findings.items():
            own = [each for each in found if each.cell == cell]
            assert [each for each in broken.findings[kind] if each.cell == cell] == own


@pytest.mark.parametrize("before", [7, 12, 20])
def test_an_alarm_for_a_step_counts_the_nights_before_the_step(before):
    nights = [record(n, factors={ECE: 1.2 if n >= before else 1.0}) for n in range(before + 3)]
    (alarm,) = (found for found in judge(nights[:-1], nights[-1]).alarms if found.cell == ECE)
    assert (alarm.nights, alarm.since) == (before, name(before))
