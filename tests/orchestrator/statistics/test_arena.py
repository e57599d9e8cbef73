import csv
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from orchestrator.cli import main
from orchestrator.cli._arena import FIELDS, show_arena
from orchestrator.statistics import (
    ARENA_METRICS,
    Arena,
    Interval,
    RankComparison,
    Standing,
    arena,
    critical_difference_diagram,
)
from orchestrator.storage.results import StudyResult
from trainables.charts.chart import Chart
from trainables.common.errors import InputError

# NLL of each recipe: `best` always wins, `even` ties with the baseline on one of two networks.
NLL = {
    "given": {"one": 1.0, "two": 2.0},
    "even": {"one": 1.0, "two": 1.5},
    "best": {"one": 0.5, "two": 1.0},
}


def result(recipe: str, network: str, size: int, seeds: int = 4, **changes: object) -> StudyResult:
    fields = {
        "sweep": "s",
        "task": f"{size}/{network}",
        "recipe": recipe,
        "status": "finished",
        "dataset": network,
        "model": "given",
        "seconds": (0.5,) * seeds,
        **changes,
    }
    if "test" not in changes:
        fields["test"] = tuple(
            {"nll": NLL[recipe][network] + 0.01 * seed, "brier": 0.5, "ece": 0.1 / (1 + seed)}
            for seed in range(seeds)
        )
    return StudyResult(**fields)


RESULTS = [result(*place) for place in product(NLL, ("one", "two"), (10, 20))]


def test_gains_wins_and_strengths_of_a_made_up_arena() -> None:
    found = arena(RESULTS, "given", draws=200)
    assert [standing.recipe for standing in found.standings] == ["best", "even", "given"]
    assert (found.networks, found.tasks, found.seeds) == (("one", "two"), 4, 4)
    best, even, given = found.standings
    assert best.gains["nll"].value == pytest.approx(0.75)
    # A resample holds the first network twice, both, or the second twice.
    assert best.gains["nll"][1:] == pytest.approx((0.5, 1.0))
    assert even.gains["nll"].value == pytest.approx(0.25)
    assert even.gains["brier"] == pytest.approx((0, 0, 0))
    assert [best.wins.value, even.wins.value, given.wins.value] == pytest.approx([1, 0.375, 0.125])
    assert given.strength == 0
    assert best.strength > even.strength > 0
    assert best.seconds == pytest.approx(0.5)


def rows_of(*rows: tuple[float, float, float]) -> tuple[dict[str, float], ...]:
    return tuple(dict(zip(ARENA_METRICS, row, strict=True)) for row in rows)


def test_networks_have_equal_weight_with_any_number_of_tasks() -> None:
    dice = np.random.default_rng(1)
    names, tasks = ("a", "given", "b", "c"), {"one": (10, 20), "two": (10,), "three": (10,)}
    rows = {
        (name, network): dice.integers(1, 9, (len(sizes), 3, 3)) / 10  # (tasks, splits, metrics)
        for name in names
        for network, sizes in tasks.items()
    }
    results = [
        result(name, network, size, test=rows_of(*own))
        for (name, network), tables in rows.items()
        for size, own in zip(tasks[network], tables, strict=True)
    ]
    lost = result("lost", "one", 10, status="failed", test=())
    found = arena([lost, *results], "given", draws=40, seed=3)
    assert {standing.recipe for standing in found.standings} == set(names)
    for standing in found.standings:
        gains, wins = [], []
        for network in tasks:
            own = rows[standing.recipe, network]
            gains.append((rows["given", network] - own).mean((0, 1)))
            others = [rows[name, network] for name in names if name != standing.recipe]
            gaps = np.array([other - own for other in others])[..., 0]
            wins.append(np.mean((gaps > 0) + 0.5 * (gaps == 0)))
        values = [standing.gains[metric].value for metric in ARENA_METRICS]
        assert values == pytest.approx(np.mean(gains, 0))
        assert standing.wins.value == pytest.approx(np.mean(wins))
    strengths = [standing.strength for standing in found.standings]
    assert strengths == sorted(strengths, reverse=True)
    assert [one.recipe for one in found.standings if one.strength == 0] == ["given"]
    copies = [replace(one, task=f"copy/{one.task}") for one in results if "two" in one.task]
    again = arena([*results, *copies], "given", draws=40, seed=3)
    for own, other in zip(found.standings, again.standings, strict=True):
        assert other.wins == pytest.approx(own.wins)
        assert other.gains["nll"] == pytest.approx(own.gains["nll"])


@pytest.mark.parametrize(
    ("other", "low", "high"), [((0, 1, 2), 0, 2), ((2, 1, 0), 1, 1)], ids=["alike", "opposed"]
)
def test_splits_are_drawn_within_a_network_with_all_its_tasks(other, low, high) -> None:
    """The worst of three splits is drawn thrice in 1 of 27 resamples, more than a tail holds."""
    results = [
        result(name, "one", size, test=rows_of(*((3 - gain, 1, 1) for gain in gains)))
        for name, tasks in (("given", ((0, 0, 0),) * 2), ("best", ((0, 1, 2), other)))
        for size, gains in zip((10, 20), tasks, strict=True)
    ]
    best = arena(results, "given", draws=2000).standings[0]
    assert best.gains["nll"] == pytest.approx((1, low, high))


def test_seconds_are_the_mean_of_all_fits() -> None:
    known = {10: (1.0,), 20: (2.0, 3.0)}
    results = [
        result(name, "one", size, seconds=own)
        for name in ("given", "best")
        for size, own in known.items()
    ]
    assert {own.seconds for own in arena(results, "given", draws=1).standings} == {2.0}


def test_strengths_are_those_of_two_players_in_chess() -> None:
    scores = np.array([1.0] * 75 + [3.0] * 25)  # Below 2 in three of four splits.
    both = [
        result(name, "one", 10, test=tuple(dict.fromkeys(("nll", "brier", "ece"), v) for v in own))
        for name, own in (("given", np.full(100, 2.0)), ("best", scores))
    ]
    best, _ = arena(both, "given", draws=2).standings
    assert best.wins.value == pytest.approx(0.75)
    assert best.strength == pytest.approx(400 * np.log10(3), rel=0.01)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "failed"}, "4 of 4 seeds on 10/one"),
        ({"test": ({"nll": 1.0, "brier": np.nan, "ece": 0.1},) * 4}, "0 of 4 seeds on 10/one"),
        ({"test": ({"nll": np.inf, "brier": 1.0, "ece": 0.1},) * 4}, "0 of 4 seeds on 10/one"),
        ({"seeds": 2, "reason": "out of reach"}, "2 of 4 seeds on 10/one: out of reach"),
        ({"task": "30/one"}, "not run on 10/one"),
    ],
)
def test_an_arena_gives_the_reason_why_a_recipe_is_left_out(changes, reason) -> None:
    others = [r for r in RESULTS if (r.recipe, r.task) != ("even", "10/one")]
    lacking = result("even", "one", 10, **changes)
    if "task" in changes:  # Which the others have run.
        others += [result(name, "one", 30) for name in ("given", "best")]
    found = arena([*others, lacking], "given", draws=1)
    assert found.absent == {"even": reason}
    assert {standing.recipe for standing in found.standings} == {"given", "best"}


def test_networks_go_by_data_set_and_model() -> None:
    places = [("one", "vit"), ("one", "given"), ("", "")]
    both = [
        result(name, "one", size, dataset=dataset, model=model, task=f"t{size}", seconds=known)
        for name, known in (("given", (0.0,)), ("best", ()))
        for size, (dataset, model) in enumerate(places)
    ]
    found = arena(both, "given", draws=1)
    assert found.networks == ("one/vit", "one", "t2")
    assert [standing.seconds for standing in found.standings] == [None, 0.0]


def test_standings_are_printed_in_the_units_of_their_headings(capsys) -> None:
    gains = {"nll": Interval(0.5, -0.25, 0.75), "brier": Interval(-0.1, -0.2, 0.0)}
    gains["ece"] = Interval(0.0123, 0.01, 0.02)
    shown = Standing("ts", gains, Interval(0.63, 0.5, 0.75), 123.4, 0.0, "ab")
    unknown = Standing("given", gains, Interval(0.5, 0.5, 0.5), 0.0, None)
    made_up = Arena(
        "given", (shown, unknown), ("one", "two"), 4, 3, {"ets": "NaN", "pts": "lost"}, 6
    )
    show_arena(made_up, "markdown")
    head, _, first, second, about, *absent = filter(str.strip, capsys.readouterr().out.split("\n"))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (head, first, second)]
    names = ["recipe", "group", "strength", "wins %", "NLL gain", "Brier gain", "ECE % gain"]
    assert cells[0] == [*names, "CPU s"]
    figures = ["+0.5000 [-0.2500; +0.7500]", "-0.1000 [-0.2000; +0.0000]", "+1.23 [+1.00; +2.00]"]
    assert cells[1] == ["ts", "ab", "123", "63 [50; 75]", *figures, "0.000"]
    assert cells[2] == ["given", "", "0", "50 [50; 50]", *figures, ""]
    assert about == (
        "2 networks (one, two), 4 tasks, 3 splits of each; gains are relative to 'given', above 0 "
        "is better; strength: Elo points relative to 'given', from a Bradley-Terry model in which "
        "the lower NLL wins; in brackets: 95 % intervals from resampled networks and splits"
    )
    lacking, *absent = absent
    assert lacking == "groups: too few networks for a test by NLL; add at least 6 more"
    assert absent == ["excluded: ets (NaN)", "excluded: pts (lost)"]
    show_arena(made_up, "csv")
    head, first, second = csv.reader(capsys.readouterr().out.splitlines())
    assert head == list(FIELDS)
    named = dict(zip(head, first, strict=True))
    popped = (named.pop("recipe"), named.pop("cpu_seconds"), named.pop("group"))
    assert popped == ("ts", "0.0", "ab")
    ends = [*shown.wins, *gains["nll"], *gains["brier"], *gains["ece"]]
    assert [float(value) for value in named.values()] == [123.4, *ends]
    assert [name for name in named if name.startswith("wins")] == ["wins", "wins_low", "wins_high"]
    assert second[-2:] == ["", ""]


def test_the_command_ranks_by_nll_in_its_diagram(monkeypatch, tmp_path, capsys, progress) -> None:
    drawn: list[RankComparison] = []

    def draw(comparison: RankComparison, title: str) -> Chart:
        assert title == "NLL"
        drawn.append(comparison)
        return critical_difference_diagram(comparison, title)

    def run(spec: None, processes: int | None, done: Callable[[int, int], None]) -> object:
        done(1, 4)
        return RESULTS

    steps = progress("_arena")
    monkeypatch.setattr("orchestrator.statistics.critical_difference_diagram", draw)
    monkeypatch.setattr("orchestrator.sweep.spec.load_sweep", lambda path: None)
    monkeypatch.setattr("orchestrator.running.arena.run_arena", run)
    path = tmp_path / "cd.svg"
    assert (
        main(["logits", "arena", "some.yaml", "--diagram", str(path), "--format", "markdown"]) == 0
    )
    assert drawn[0].ranks == {"best": 1.0, "even": 2.25, "given": 2.75}
    assert steps == ["fitting", (1, 4)]
    assert f"wrote {path}" in capsys.readouterr().out
    assert "<svg" in path.read_text()
    monkeypatch.chdir(tmp_path)
    assert main(["logits", "arena", "some.yaml"]) == 0
    assert len(drawn) == 1
    shown = capsys.readouterr().out
    assert "wrote" not in shown
    assert "|" not in shown
    assert [entry.name for entry in tmp_path.iterdir()] == ["cd.svg"]
    assert main(["logits", "arena", "some.yaml", "--diagram", "cd.txt"]) == 2
    expected = "expected a name that ends with one of .pdf, .png, .svg, got '.txt'"
    told = f"calsweep: --diagram cd.txt: {expected}\n"
    assert capsys.readouterr().err == told
    (tmp_path / "cd.png").mkdir()
    assert main(["logits", "arena", "some.yaml", "--diagram", "cd.png"]) == 2
    told = "calsweep: Invalid value for '--diagram': file 'cd.png' is a directory.\n"
    assert capsys.readouterr().err == told


def test_an_arena_of_one_is_refused() -> None:
    needs = "an arena needs figures of two recipes on every task and seed"
    with pytest.raises(InputError, match=rf"^{needs} \(only one recipe\)$"):
        arena([r for r in RESULTS if r.recipe == "given"], "given")
    with pytest.raises(InputError, match=rf"^{needs} \(no given\)$"):
        arena([r for r in RESULTS if r.recipe != "given"], "given")
    lacking = [r for r in RESULTS if (r.recipe, r.task) != ("given", "20/two")]
    with pytest.raises(InputError, match=rf"^{needs} \(given: not run on 20/two\)$"):
        arena(lacking, "given")


@pytest.mark.parametrize(("networks", "groups", "lacking"), [(5, ["", ""], 1), (6, ["a", "b"], 0)])
def test_networks_not_splits_tell_recipes_apart(networks, groups, lacking) -> None:
    results = [
        StudyResult(
            *("s", f"net{n}", recipe, "finished"),
            test=tuple({"nll": nll + 0.01 * n, "brier": 0.1, "ece": 0.1} for _ in range(40)),
            dataset=f"net{n}",
            model="given",
        )
        for n in range(networks)
        for recipe, nll in (("given", 1.0), ("ts", 0.5))
    ]
    found = arena(results, "given", draws=5)
    assert [own.group for own in found.standings] == groups
    assert found.lacking == lacking
