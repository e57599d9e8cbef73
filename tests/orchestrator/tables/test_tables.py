import csv
import dataclasses
import io
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from rich.console import Console

from orchestrator.storage.results import StudyResult
from orchestrator.tables.arrange import build_table, by_pair, combine
from orchestrator.tables.columns import column, shown_names
from orchestrator.tables.make import (
    RENDERERS,
    TableOptions,
    comparison_table,
    make_table,
    render,
    to_rich,
)
from orchestrator.tables.table import Gain, Row, TableColumn
from tests.orchestrator.whole import assert_same
from tests.trainables.data.small_data import refusal
from trainables.common.errors import InputError
from trainables.metrics import METRICS, REPORTED

LISTED = [name for name in shown_names() if not METRICS.columns([name])]

TASK = "digits/convnet/short"
NASTY = "a|b*c_d`e`<b>&amp;$x$ 50% #1 {y} ~^ [l](u) \\z"


def study(recipe, *test, task=TASK, status="finished", **fields):
    fields = {"trials_finished": 4, **fields}
    return StudyResult(
        sweep="demo", task=task, recipe=recipe, status=status, test=tuple(test), **fields
    )


def figures(acc=0.9, ece=0.05, nll=0.4):
    return {"acc": acc, "ece": ece, "nll": nll}


def table_of(*studies, metrics=("acc", "ece", "nll")):
    return build_table(studies, metrics=metrics)


def rows_of(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    split = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in split}


class _Cells(HTMLParser):
    """Read the text of every cell of an HTML page, row by row."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_row_with_the_figures_of_another_recipe_names_that_recipe():
    """Both are of several seeds: one seed that agrees does not make them one."""
    seeds = [{**figures(nll=nll), "brier": nll / 2} for nll in (0.4, 0.5)]
    shifted = [{**seed, "nll": seed["nll"] + 1e-7} for seed in seeds]
    other = [seeds[0], {**seeds[1], "brier": 0.2504}]
    table = table_of(study("ce", *seeds), study("mbls", *shifted), study("ls", *other))
    shown = rows_of(render(table, "markdown"))
    assert "= ce" in shown["mbls"][0]
    assert not any("= ce" in cell for cell in (*shown["ls"], *shown["ce"]))
    assert "= ce: equal to ce in every figure of every seed" in table.notes()


def test_rows_in_two_parts_are_noted_once_per_task():
    line = "5 of 10 test rows are copies of training rows (5), so test figures may be too good"
    found = [study(name, figures(), copies=(line,)) for name in ("ce", "ls")]
    found.append(study("ce", figures(), task="clean"))
    assert table_of(*found).notes().count(f"{TASK}: {line}") == 1
    assert not any("copies" in note for note in table_of(found[2]).notes())


def test_values_that_no_paper_has_are_named():
    ours = {"cts": {"assignment": "prediction", "shrinkage": 3.0}, "pts": {"weight_decay": 0.002}}
    table = table_of(study("ce+cts", figures(), configuration=ours))
    assert "not from a paper (our defaults): cts.assignment" in table.notes()
    # The paper of macal gives no gamma; its clock and its acceptance are the defaults.
    macal = {"gamma": 0.95, "q0": 0.5, "clock": "start", "accept": "always", "feedback": "deployed"}
    table = table_of(study("ce+macal", figures(), configuration={"macal": macal}))
    ours = "macal.feedback, macal.gamma"
    assert f"not from a paper (our defaults): {ours}" in table.notes()


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("ece", "ECE % ↓"),
        ("cifar10-c/ece", "cifar10-c ECE % ↓"),
        ("ood-svhn/auroc", "ood-svhn AUROC % ↑"),
        ("ood-svhn/fpr95", "ood-svhn FPR95 % ↓"),
        ("cifar10-c/gaussian_noise/3/acc", "cifar10-c/gaussian_noise/3 Acc % ↑"),
        ("3d_v1.0@a+b/acc", "3d_v1.0@a+b Acc % ↑"),
        ("ece_floor", "ECE floor %"),
        ("debiased_ece", "debiased ECE % ↓"),
        ("smooth_ece", "smooth ECE % ↓"),
        ("seconds", "Seconds ↓"),
    ],
)
def test_a_column_heading_has_unit_and_direction(name, heading):
    assert column(name).heading == heading


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("auc", "near are: aurc, auroc, augrc"),
        ("/ece", "near are: ece, aece, cwece"),
        ("a//ece", "near are: ece, aece, cwece"),
        ("cifar10-c/seconds", "near are: seconds"),
        *((name, f"there are: {', '.join(LISTED)}") for name in ("cifar10-c/", "", "foo")),
    ],
)
def test_a_column_that_is_not_there_is_refused(name, near):
    told = f"unknown metric '{name}'; {near}, and SUITE/METRIC for a suite"
    told += "; `calsweep list metrics` shows all"
    assert refusal(column, name) == told


def test_a_difference_of_nothing_has_no_minus():
    assert [column("ece").show_change(gap) for gap in (-0.00004, 0.00004, 0.0, -0.00006)] == [
        *("+0.00", "+0.00", "+0.00", "-0.01")
    ]


def test_no_noise_floor_is_best():
    results = [study("ce", {"ece_floor": 0.01}), study("ls", {"ece_floor": 0.02})]
    found = table_of(*results, metrics=("ece_floor",)).compared_with("ls")
    assert rows_of(render(found, "markdown")) == {"ce": ["1.00"], "ls": ["2.00"]}


def test_mean_and_sample_deviation_over_seeds_in_percent():
    seeds = [figures(acc, ece, nll) for acc, ece, nll in ((0.9, 0.04, 1), (0.92, 0.05, 2))]
    seeds.append(figures(0.97, 0.09, 6))
    found = table_of(study("ce", *seeds))
    # by hand: mean 0.93, squares 9e-4 + 1e-4 + 16e-4 = 26e-4, over 2, root = 0.036056
    assert found.summary("ce", TASK, "acc") == pytest.approx((0.93, 0.0360555), rel=1e-5)
    cells = rows_of(render(found, "markdown"))["ce"]
    # mean 0.06, squares 4e-4 + 1e-4 + 9e-4, over 2, root = 0.026458; 3, 4 + 1 + 9, 7, 2.6458
    assert cells == ["**93.00 ± 3.61**", "**6.00 ± 2.65**", "**3.0000 ± 2.6458**"]
    assert "over 3 seeds" in render(found, "markdown")


def test_means_over_tasks_and_their_floors_are_computed_seed_by_seed():
    def seeds(*eces):
        of_suite = {"x/ece_floor": 0.09}
        return [{"ece": e, "x/ece": e + 0.1, "ece_floor": e / 10, **of_suite} for e in eces]

    results = [
        study("ce", *seeds(0.02, 0.04), task="a"),
        study("ce", *seeds(0.16, 0.12), task="b"),
        study("ls", *seeds(0.04, 0.10), task="a"),
        study("ls", *seeds(0.20), task="b"),
        study("fl", *seeds(0.04, 0.05), task="a"),
        study("fl", {"ece": 0.04}, {"ece": 0.05}, task="b"),
    ]
    rows = (
        Row("ce", ("ce",)),
        Row("both", ("ls", "ce"), None, "ce"),
        Row("on a", ("ce", "ls"), frozenset("a"), "ce"),
        Row("fl", ("fl",)),
    )
    columns = tuple(
        TableColumn((), ("a", "b"), metrics, column("ece"))
        for metrics in (("ece",), ("ece", "x/ece"))
    )
    table = dataclasses.replace(build_table(results), rows=rows, columns=columns, floor=True)
    cells = {row.label: table.line(row) for row in rows}
    shown = {
        name: [(c.text, c.mark, c.change, c.tone) for c in line] for name, line in cells.items()
    }
    assert shown == {
        "ce": [("8.50 ± 0.71", "", "", ""), ("13.50 ± 0.71", "second", "", "")],
        # One of the four has a seed less than the others.
        "both": [("11.00", "", "+2.50", "worse"), ("16.00", "", "≈ +2.50", "")],
        "on a": [
            ("5.00 ± 2.83", "second", "-3.50", "better"),
            ("10.00 ± 2.83", "best", "≈ -3.50", ""),
        ],
        "fl": [("4.50 ± 0.71", "best", "", ""), ("–", "", "", "")],
    }
    floors = [[table.noise_floor(row, entry) for entry in columns] for row in rows]
    assert floors[0] == pytest.approx([0.0085, 0.04925])
    assert floors[1] == pytest.approx([0.011, 0.0505])
    assert floors[2] == pytest.approx([0.005, 0.0475])
    assert floors[3] == [None, None]


def test_brier_and_nll_are_not_in_percent():
    row = dict.fromkeys(REPORTED, 0.5)
    found = build_table([study("ce", row)], metrics=REPORTED)
    cells = dict(zip(REPORTED, rows_of(render(found, "markdown"))["ce"], strict=True))
    assert cells["brier"] == cells["nll"] == "**0.5000**"
    assert {cells[name] for name in ("acc", "ece", "aece", "mce")} == {"**50.00**"}
    assert cells["cwece"] == cells["cwaece"] == "**50.000**"


def test_a_figure_that_is_missing_or_not_finite_shows_and_is_never_best():
    found = table_of(
        study("ce", figures(nll=math.inf)),
        study("ls", figures(nll=0.3), figures(nll=math.nan)),
        study("fl", {"acc": 0.9}),
        study("dfl", figures(nll=9.0)),
    )
    cells = rows_of(render(found, "markdown"))
    assert [cells[name][2] for name in ("ce", "ls", "fl", "dfl")] == [
        "inf",
        "nan",
        "–",
        "**9.0000**",
    ]
    assert r"fl & \textbf{90.00} & -- & -- \\" in render(found, "latex").splitlines()


def test_the_best_is_bold_and_the_second_underlined_in_the_right_direction():
    found = table_of(
        study("ce", figures(0.90, 0.05, 0.1)),
        study("ls", figures(0.95, 0.02, 0.3)),
        study("fl", figures(0.92, 0.08, 0.2)),
    )
    cells = rows_of(render(found, "markdown"))
    assert cells["ce"] == ["90.00", "<ins>5.00</ins>", "**0.1000**"]
    assert cells["ls"] == ["**95.00**", "**2.00**", "0.3000"]
    assert cells["fl"] == ["<ins>92.00</ins>", "8.00", "<ins>0.2000</ins>"]


def test_a_network_at_chance_is_never_best_and_a_note_says_why():
    found = table_of(
        study("ce", figures(0.90, 0.05, 0.1)),
        study("ls", figures(0.45, 0.03, 0.2)),
        study("au", figures(0.10, 0.01, 2.3)),
    )
    cells = rows_of(render(found, "markdown"))
    assert cells["au"] == ["10.00", "1.00", "2.3000"]
    assert cells["ls"][1] == "**3.00**"
    task = next(iter(found.results))[1]
    (note,) = (line for line in found.notes() if "half" in line)
    assert note == (f"au on {task}: less than half of the accuracy of ce, so never marked as best")


def test_figures_equal_as_printed_share_a_mark():
    found = table_of(
        study("ce", figures(ece=0.050001)),
        study("ls", figures(ece=0.049999)),
        study("fl", figures(ece=0.0501)),
        study("dfl", figures(ece=0.0501004)),
        study("au", figures(ece=0.06)),
    )
    cells = rows_of(render(found, "markdown"))
    marks = [cells[name][1] for name in ("ce", "ls", "fl", "dfl", "au")]
    assert marks == ["**5.00**", "**5.00**", "<ins>5.01</ins>", "<ins>5.01</ins>", "6.00"]


def test_a_method_is_followed_by_its_variants_in_order_of_appearance():
    given = ["ce", "mbls", "mbls+macal+ts", "ce+ts", "fl+ts", "mbls+ts", "ce+macal", "fl"]
    found = table_of(*(study(name, figures()) for name in given))
    assert found.recipes == (
        *("ce", "ce+ts", "ce+macal"),
        *("mbls", "mbls+macal+ts", "mbls+ts"),
        *("fl", "fl+ts"),
    )
    assert list(rows_of(render(found, "markdown"))) == list(found.recipes)


def test_sorting_puts_the_best_first_and_loses_no_row():
    found = table_of(
        study("fl", status="failed", trials_failed=2),
        study("ce", figures(0.90, 0.05)),
        study("ls", figures(0.95, 0.07)),
        study("dfl", figures(0.93, 0.01)),
    )
    assert found.sorted_by("ece").recipes == ("dfl", "ce", "ls", "fl")
    assert found.sorted_by("acc").recipes == ("ls", "dfl", "ce", "fl")
    assert found.recipes == ("fl", "ce", "ls", "dfl")


def test_a_layout_that_was_run_in_part_is_sorted_by_the_networks_that_ran():
    """No row has a figure on the layout's other networks."""
    ran = "cifar10/resnet50/p"
    ours = [
        study(recipe, figures(0.9, ece), task=ran, dataset="cifar10", model="resnet50")
        for recipe, ece in (("ce", 0.02), ("ls", 0.03), ("mbls", 0.01))
    ]
    found = make_table(ours, TableOptions(layout="macal/table1")).sorted_by("ece")
    assert [row.recipes[0] for row in found.rows[:4]] == ["mbls", "ce", "ls", "acls"]


def test_figures_that_are_not_finite_are_sorted_last():
    values = {"nan": math.nan, "high": 0.9, "inf": math.inf, "low": 0.1, "mid": 0.5}
    found = table_of(*(study(name, figures(ece, ece)) for name, ece in values.items()))
    assert found.sorted_by("ece").recipes == ("low", "mid", "high", "nan", "inf")
    assert found.sorted_by("acc").recipes == ("high", "mid", "low", "nan", "inf")


def test_sorting_over_all_tasks_takes_the_mean_and_wants_all_of_them():
    found = table_of(
        study("ce", figures(ece=0.05), task="a"),
        study("ce", figures(ece=0.05), task="b"),
        study("ls", figures(ece=0.08), task="a"),
        study("ls", figures(ece=0.01), task="b"),
        study("fl", figures(ece=0.001), task="a"),
    )
    assert found.sorted_by("ece").recipes == ("ls", "ce", "fl")


@pytest.fixture
def troubled():
    return table_of(
        study("ce", figures(), trials_failed=2, trials_finished=8, charged=(0.0, 0.02, 1e-9)),
        study("ls", status="failed", trials_failed=3, trials_finished=1, reason="loss is NaN"),
        study("fl", status="running", trials_finished=2, trials_failed=1),
        study("dfl"),
    )


@pytest.mark.parametrize("name", [name for name in RENDERERS if name != "csv"])
def test_failed_and_running_studies_are_shown(troubled, name):
    text = render(troubled, name)
    assert "failed (3 of 4 trials): loss is NaN" in text
    assert "running (2 trials finished, 1 failed)" in text
    assert "finished, without test figures" in text
    assert f"ce on {TASK}: 2 of 10 trials failed" in text
    assert "lost more validation accuracy than allowed on 1 of 3 seeds" in text


@pytest.mark.parametrize(
    ("role", "q", "sparsity", "told"),
    [
        (
            "keep",
            (1.0, 0.4),
            "decaying",
            "q collapsed to 1 on 1 of 2 seeds: masks keep every weight",
        ),
        ("keep", (0.0, 0.0), "adaptive", "q collapsed to 0 on 2 of 2 seeds: masks keep none"),
        (
            "drop",
            (0.0, 0.4),
            "decaying",
            "q collapsed to 0 on 1 of 2 seeds: masks keep every weight",
        ),
        ("keep", (0.9, 0.4), "decaying", ""),
        ("keep", (0.0, 0.0), "fixed", ""),
    ],
)
def test_collapsed_masks_are_noted_below_the_table(role, q, sparsity, told):
    own = {"macal-paper": {"q_role": role, "sparsity": sparsity}}
    found = table_of(study("ce+macal-paper", figures(), figures(), configuration=own, q=q))
    notes = [note for note in found.notes() if "collapsed" in note]
    assert len(notes) == bool(told)
    assert all(note.startswith(f"ce+macal-paper on {TASK}: {told}") for note in notes)


def test_a_value_of_ours_is_named_where_no_paper_gives_it():
    own = {"macal": {"gamma": 0.95, "lr": 0.1}}
    rate = {"macal": {"gamma": 0.9, "lr": 0.003}}
    line = "not from a paper (our defaults): "
    for dataset, values, named in (
        ("cifar10", own, "macal.gamma"),
        ("20newsgroups", rate, "macal.lr"),
        ("cifar10", rate, None),
    ):
        ours = study("ce+macal", figures(), configuration=values, dataset=dataset)
        told = [note.removeprefix(line) for note in table_of(ours).notes() if line in note]
        assert told == [named] * bool(named)


@pytest.mark.parametrize("name", [name for name in RENDERERS if name != "csv"])
def test_interrupted_studies_are_not_shown_as_failed(name):
    reason = "it was interrupted; resume it with: calsweep run --resume one"
    lost = [study(recipe, status="interrupted", reason=reason) for recipe in ("ce", "ls")]
    text = render(table_of(*lost), name)
    assert "interrupted" in text
    assert "failed" not in text
    assert name == "json" or text.count("calsweep run --resume one") == 1


def test_a_reason_is_below_the_table_with_its_place():
    good, bad = {"trials_finished": 1}, {"status": "failed", "trials_failed": 1, "reason": "NaN"}
    results = [placed("ce", "a", "x", **good), placed("ce", "b", "x", **good)]
    results += [placed("ls", "a", "x", **good)]
    results += [dataclasses.replace(placed("ls", "b", "x"), test=(), **bad)]
    found = build_table(results, ("ece", "acc"))
    text = render(found, "terminal").splitlines()
    assert text[-1] == "ls on b / x: failed (1 of 5 trials): NaN"
    words = [line.split() for line in text if line.strip()]
    # A block of its own for each data set, in which one word stands for both figures.
    assert [line for line in words if line[0] in ("a", "b", "ce", "ls")][:6] == [
        ["a", "·", "x"],
        ["ce", "5.00", "90.00"],
        ["ls", "5.00", "90.00"],
        ["b", "·", "x"],
        ["ce", "5.00", "90.00"],
        ["ls", "failed"],
    ]
    places = (("ce", "x"), ("ce", "y"), ("ls", "y"))
    lost = build_table([placed(name, "a", model) for name, model in places], ("ece", "acc"))
    lines = render(lost, "terminal").splitlines()
    row = next(line for line in lines if line.split()[:1] == ["ls"])
    head = next(line for line in lines if "ECE" in line)
    ends = [match.end() for match in re.finditer(r"[↓↑]", head)]
    # Figures stand below their headings, beside a notice that spans two columns.
    assert [row[:end].split()[-1] for end in (ends[2], ends[3])] == ["5.00", "90.00"]
    assert row[: ends[0]].split() == ["ls", "not", "run"]
    assert lines[0].split() == ["a"]


def test_reasons_of_one_recipe_on_two_tasks_are_listed_separately():
    lost = [study("ls", status="failed", reason=f"lost {task}", task=task) for task in "ab"]
    notes = [line for line in render(table_of(*lost), "terminal").splitlines() if "trials" in line]
    assert notes == [f"ls on {task}: failed (0 of 4 trials): lost {task}" for task in "ab"]


def test_figures_of_an_unfinished_study_are_not_compared():
    found = table_of(study("ce", figures(ece=0.001), status="running"), study("ls", figures()))
    assert found.summary("ce", TASK, "ece") is None
    assert rows_of(render(found, "markdown"))["ls"][1] == "**5.00**"


def test_missing_parts_of_a_mean_are_listed():
    names = [f"task {number}" for number in range(9)]
    results = [study("ce", figures(), task=name) for name in names[:5]]
    results += [
        study("ce", status="failed", task=names[5], trials_failed=2, reason="NaN"),
        study("ce", status="failed", task=names[6], trials_failed=2, reason="NaN"),
        study("ce", status="running", task=names[7], trials_finished=1, trials_failed=3),
        study("ls", figures(), task=names[8]),
    ]
    (notice,) = build_table(results, ("ece",)).line(build_table(results).rows[0])
    assert notice.short == "of 9: 2 failed, 1 running, 1 not run"
    assert notice.text == (
        "of 9: 2 failed, 1 running, 1 not run; failed (2 of 6 trials): NaN; "
        "running (1 trial finished, 3 failed)"
    )


def test_the_lines_below_tell_seeds_trials_and_runs():
    results = [
        study("ce", figures(), figures(), run_ids=("r1", "r2"), trials_failed=1),
        study("ls", figures(), figures(), figures(), searched_predictions="k"),
        study("fl", status="failed", trials_failed=4),
    ]
    table = make_table(results, TableOptions(runs=True, baseline="ls", floor=True))
    seeds, difference, floor, failed, *runs = table.notes()
    # Of ls it is known that the search has seen no seed of these.
    assert seeds == "mean ± sample standard deviation over 2 to 3 seeds (none used for the search)"
    assert difference == "in parentheses: the difference from row ls"
    assert floor.startswith("floor: ")
    assert failed == f"ce on {TASK}: 1 of 5 trials failed"
    assert runs == [
        f"runs of ce on {TASK} (sweep demo): r1, r2",
        *(f"runs of {name} on {TASK} (sweep demo): none" for name in ("ls", "fl")),
    ]
    assert make_table([study("ce", figures())]).notes() == []
    rows = (Row("a", ("ce",), None, "b"), Row("b", ("ls",), None, "a"))
    varied = dataclasses.replace(table, rows=rows, runs=False, floor=False).notes()
    assert varied[1] == "in parentheses: the difference from each row's baseline, such as b for a"


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ((True, True), " (including the seed used for the search)"),
        ((False, False), " (none used for the search)"),
        ((True, False), ""),
    ],
)
def test_a_note_says_whether_the_search_used_a_seed_if_all_agree(own, told):
    results = [
        study(name, figures(), figures(), searched_predictions="a", predictions=("c", "ab"[seen]))
        for name, seen in zip(("ce", "ls"), [not seen for seen in own], strict=True)
    ]
    line = f"mean ± sample standard deviation over 2 seeds{told}"
    assert table_of(*results).notes() == [line]


@pytest.mark.parametrize(
    ("tasks", "named"), [("aa", "ce, ls"), ("ab", "ce on a, ls on b")], ids=["one", "two"]
)
def test_rows_without_a_search_are_named_with_their_task_if_several(tasks, named):
    results = [
        study(name, figures(), task=task, trials_finished=1)
        for name, task in zip(("ce", "ls"), tasks, strict=True)
    ]
    table = dataclasses.replace(table_of(*results), gains={})
    assert table.notes()[-1] == f"without a search: {named}"


def test_a_gain_on_one_task_does_not_count_on_another():
    results = [study("ce", figures(), task=task, trials_finished=1) for task in "ab"]
    gains = {("ce", "b", "ece"): Gain(-0.01, -0.02, -0.005, False, False)}
    table = dataclasses.replace(table_of(*results), gains=gains)
    assert table.notes()[-1] == "without a search: ce"


@pytest.mark.parametrize(
    ("recipes", "told"), [(("ce", "ce+ts"), True), (("given", "ts"), False), (("ce",), False)]
)
def test_the_rows_of_calibrators_are_noted_if_one_follows_a_method(recipes, told):
    notes = table_of(*(study(name, figures()) for name in recipes)).notes()
    line = "calibrators were fitted on the same validation rows that selected the hyper-parameters"
    assert notes == [line] * told


def test_calibrators_fitted_on_training_rows_have_their_own_note():
    held_out = (
        "calibrators were fitted on the same validation rows that selected the hyper-parameters"
    )
    training = "calibrators fitted on the training rows of the networks: ts"
    own = {"ce": {}, "ts": {"selection": "training_ece"}}
    results = [study("ce+ts", figures(), configuration=own)]
    assert table_of(*results).notes() == [training]
    for recipe, other in (("ce+vs", {"vs": {}}), ("ls+ts", {"ts": {"selection": "objective"}})):
        both = table_of(*results, study(recipe, figures(), configuration=other))
        assert both.notes()[:2] == [training, held_out]
    other_version = {"ce": {"gone": 1}, "ts": {"selection": "entropy", "gone": "x"}}
    assert table_of(study("ce+ts", figures(), configuration=other_version)).notes() == [held_out]


def test_splits_are_noted_if_one_study_varied_them():
    results = [study("ce", figures(), figures()), study("ls", figures(), figures(), varied=True)]
    deviations = "mean ± sample standard deviation over 2 seeds"
    assert table_of(*results).notes() == [f"{deviations} and splits"]
    assert table_of(results[0]).notes() == [deviations]


@pytest.mark.parametrize("count", [1, 2])
def test_a_mean_of_studies_that_were_not_run_was_not_run(count):
    found = table_of(study("ce", figures()))
    absent = Row("mean", ("ls", "fl")[:count])
    cell = dataclasses.replace(found, rows=(absent,)).line(absent)[0]
    assert (cell.short, cell.text) == ("not run", "not run")


GAINS = {
    "ls": (Gain(-0.0123, -0.02, -0.01, False, False), ("-1.23", "better", ("[-2.00, -1.00]",))),
    "fl": (Gain(0.0123, 0.01, 0.02, False, False), ("+1.23", "worse", ("[+1.00, +2.00]",))),
    "dfl": (Gain(0.0, -0.01, 0.01, False, False), ("+0.00", "", ("[-1.00, +1.00]",))),
    "au": (Gain(-0.01, -0.02, -0.005, False, True), ("≈ -1.00", "", ("[-2.00, -0.50]",))),
    "acls": (Gain(-0.01, -0.02, -0.005, True, False), ("default", "", ())),
    "flsd": (Gain(-0.01, -0.02, 0.0, False, False), ("-1.00", "", ("[-2.00, +0.00]",))),
    "mbls": (Gain(0.01, 0.0, 0.02, False, False), ("+1.00", "", ("[+0.00, +2.00]",))),
    "ce": (None, ("", "", ())),
}


def test_the_gain_of_a_search_follows_its_figure():
    results = [study(name, figures(), searched_predictions="k") for name in GAINS]
    gains = {(name, TASK, "ece"): gain for name, (gain, _) in GAINS.items() if gain}
    table = dataclasses.replace(build_table(results, ("ece", "acc")), gains=gains)
    for row in table.rows:
        ece, accuracy = table.line(row)
        assert (ece.change, ece.tone, ece.asides) == GAINS[row.label][1], row.label
        assert accuracy.change == ""
    floored = [dataclasses.replace(r, test=({**figures(), "ece_floor": 0.001},)) for r in results]
    beside = dataclasses.replace(table, results=by_pair(floored), floor=True)
    asides = {row.label: beside.line(row)[0].asides for row in beside.rows}
    assert asides["ls"] == ("[-2.00, -1.00]", "(floor 0.10)")
    assert asides["acls"] == ("(floor 0.10)",)
    mean = Row("mean", ("ls", "fl"))  # Of several studies no gain is known.
    (ece, _) = dataclasses.replace(table, rows=(*table.rows, mean)).line(mean)
    assert (ece.change, ece.asides) == ("", ())
    turned = {(name, task, "acc"): gain for (name, task, _), gain in gains.items()}
    row = next(row for row in table.rows if row.label == "ls")
    assert dataclasses.replace(table, gains=turned).line(row)[1].tone == "worse"
    several = dataclasses.replace(table.columns[0], metrics=("ece", "acc"))
    assert table.gain(row, several) is None
    once = [dataclasses.replace(r, trials_finished=int(r.recipe == "ce")) for r in results]
    about = [
        dataclasses.replace(table, results=by_pair(r), gains=gains).notes() for r in (results, once)
    ]
    brought = (
        "in parentheses: how far the search of the recipe's last stage changed the figure of "
        "the published default, on the seed used for the search, with the 95 % interval over "
        "test data; "
        "default: the published default was chosen; ≈: not above the noise floor"
    )
    lacking = "failed or was not measured (run the sweep again to measure it)"
    assert about == [
        [brought, f"the published default {lacking}: ce"],
        [brought, "without a search: ce"],
    ]
    lost = [*results, study("crl", status="failed", trials_finished=0, trials_failed=2)]
    told = dataclasses.replace(table, rows=build_table(lost).rows, results=by_pair(lost)).notes()
    assert told == about[0]  # Of one that failed nothing could be known.
    lines = {row["recipe"]: row for row in csv.DictReader(io.StringIO(render(table, "csv")))}
    names = ("ece_gain", "ece_gain_low", "ece_gain_high")
    assert [float(lines["ls"][name]) for name in names] == [-0.0123, -0.02, -0.01]
    assert [lines["ce"][name] for name in names] == [""] * 3


def test_json_and_data_frame_hold_every_cell():
    found = table_of(
        study("ce", {"ece": 0.25}, {"ece": 0.75}, run_ids=("r1", "r2")),
        study("=1", {"ece": math.nan}),
        study("fl", status="failed", trials_failed=3, reason="<b>"),
        metrics=("ece",),
    )
    document = json.loads(render(found, "json"))
    assert (document["sweeps"], document["rows"]) == (["demo"], ["ce", "=1", "fl"])
    assert [cell["row"] for cell in document["cells"]] == document["rows"]
    assert {cell["column"] for cell in document["cells"]} == set(document["columns"])
    shown = [(cell["mean"], cell["std"], cell["seeds"]) for cell in document["cells"]]
    assert shown == [(0.5, pytest.approx(0.125**0.5), 2), (None, None, 1), (None, None, 0)]
    assert document["cells"][2]["status"] == "failed (3 of 7 trials): <b>"
    frame = found.to_pandas()
    wide = frame.pivot(index="row", columns="column", values="mean")
    assert wide.loc["ce", document["columns"][0]] == 0.5
    assert frame.columns.tolist() == [*document["cells"][0]]
    assert "&lt;b&gt;" in found._repr_html_()


@pytest.mark.parametrize("sign", "=+-@")
def test_csv_text_cannot_be_run_as_a_formula(sign):
    text = f"{sign}cmd()"
    found = table_of(study("fl", status="failed", reason=f"\n {text}", task=text))
    (row,) = csv.DictReader(io.StringIO(render(found, "csv")))
    assert (row["reason"], row["task"]) == (f"'{text}", f"'{text}")


@pytest.fixture
def nasty():
    return table_of(study(NASTY, status="failed", reason=NASTY), study("ce", figures()))


def test_html_shows_words_as_they_are(nasty):
    page = render(nasty, "html")
    cells = _Cells(page)
    assert cells.rows[2][0] == NASTY
    assert cells.rows[2][1].rstrip("\n").endswith(NASTY)
    assert "b" not in cells.tags
    assert [text.strip() for text in cells.rows[3]] == ["ce", "90.00", "5.00", "0.4000"]
    assert cells.tags.count("strong") == 3


def test_markdown_keeps_its_columns_and_escapes_marks(nasty):
    text = render(nasty, "markdown")
    assert {len(row) for row in rows_of(text).values()} == {3}
    name = next(iter(rows_of(text)))
    assert re.sub(r"\\(.)", r"\1", name) == NASTY
    assert not re.search(r"(?<!\\)[*_`<>&$\[\]~]", name)


def test_latex_is_balanced_and_escaped():
    found = table_of(
        study(NASTY, status="failed", reason=NASTY),
        study("ce", figures(), figures(0.8)),
        study("ls", figures(0.7), figures(0.7)),
    )
    text = render(found, "latex")
    row = text.split("\\midrule\n")[1].splitlines()[0]
    assert row.startswith(
        r"a\textbar{}b*c\_d`e`\textless{}b\textgreater{}\&amp;\$x\$ 50\% \#1 \{y\} "
        r"\textasciitilde{}\textasciicircum{} {[}l{]}(u) \textbackslash{}z & "
    )
    assert row.count(" & ") == 1
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert r"\textbf{85.00 $\pm$ 7.07}" in text
    assert r"\underline{70.00 $\pm$ 0.00}" in text
    for word in (r"\begin{tabular}{lrrr}", r"\toprule", r"\cmidrule(lr){2-4}", r"\bottomrule"):
        assert word in text
    assert text.isascii()


@pytest.mark.parametrize("name", RENDERERS)
def test_line_breaks_and_control_characters_do_not_get_through(name):
    result = study("c\ne", status="failed", reason="one\ntwo\r\n\x1b[31mthree\x07", task="t\nu")
    text = render(table_of(result), name)
    assert "c e" in text
    assert "t u" in text
    assert "e" not in [line.split()[0] for line in text.splitlines() if line.split()]
    assert "one two [31mthree" in text.replace("{[}", "[").replace("\\[", "[")
    assert not set(text) & {"\x1b", "\x07", "\r"}


def test_a_terminal_colours_better_and_worse_figures_and_dims_the_others():
    ece = (("ce", 0.05, 0.001), ("ls", 0.04, 0.001), ("fl", 0.06, 0.001), ("dfl", 0.0505, 0.001))
    results = [study(name, {"ece": value, "ece_floor": floor}) for name, value, floor in ece]
    results.append(study("[red]acls", status="running"))
    options = TableOptions(metrics=("ece",), floor=True, baseline="ce")
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    console.print(to_rich(make_table(results, options)))
    lines = console.file.getvalue().splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()[:1]}
    assert "\x1b[32m(-1.00)" in rows["ls"].replace(" (", "(")
    assert "\x1b[31m(+1.00)" in rows["fl"].replace(" (", "(")
    assert "\x1b[2m(≈ +0.05)" in rows["dfl"].replace(" (", "(")
    assert "\x1b[2m(floor 0.10)" in rows["ce"].replace(" (", "(")
    assert "\x1b[2;3m" in rows["[red]acls"]
    assert re.search(r"\x1b\[1m *4\.00", rows["ls"])
    assert re.search(r"\x1b\[4m *5\.00", rows["ce"])


def shown_in(width, table):
    """Return what a terminal shows: its lines, how many blocks, and if it says it is narrow."""
    console = Console(file=io.StringIO(), width=width)
    console.print(to_rich(table))
    lines = console.file.getvalue().splitlines()
    blocks = sum(line.split()[:1] == ["ce"] for line in lines)
    return lines, blocks, any("too narrow" in line for line in lines)


def test_deviations_give_way_before_a_table_is_split_and_only_where_there_are_some():
    once = [placed("ce", "a", model) for model in ("x", "y")]
    twice = [dataclasses.replace(r, test=(figures(0.7), figures(0.8))) for r in once]
    short, full = (
        max(map(len, shown_in(200, build_table(results, ("acc", "ece")))[0][:-1]))
        for results in (once, twice)
    )
    assert short < full
    for results, wide in ((once, short), (twice, full)):
        table = build_table(results, ("acc", "ece"))
        assert shown_in(max(wide, 40), table)[1:] == (1, False)
    table = build_table(twice, ("acc", "ece"))
    for width in (full - 1, short):
        lines, *found = shown_in(width, table)
        assert found == [1, True]
        assert not any("±" in line and "75.00" in line for line in lines)
        assert not any("†" in line for line in lines)
    assert shown_in(short - 1, table)[1] == 2
    alone = build_table(once[:1], ("acc", "ece"))
    wide = max(map(len, shown_in(200, alone)[0]))
    assert not shown_in(wide - 2, alone)[2]


@pytest.mark.parametrize(("models", "parts"), [("xyz", ["xy", "z"]), ("vwxyz", ["vwx", "yz"])])
def test_the_first_part_of_a_table_that_is_split_holds_the_middle_column(models, parts):
    table = table_of(*(placed("ce", "a", model) for model in models), metrics=("ece",))
    wide = max(map(len, shown_in(200, table)[0]))
    lines = shown_in(wide - 1, table)[0]
    heads = [line.split() for line in lines if set(line.split()) & set(models)]
    assert ["".join(sorted(set(models).intersection(head))) for head in heads] == parts


def test_a_terminal_too_narrow_for_a_table_still_has_a_line_a_row():
    table = table_of(placed("mbls+macal+ts", "a", "x"), placed("ce", "a", "x"))
    console = Console(file=io.StringIO(), width=30)
    console.print(to_rich(table))
    shown = [line.split()[0] for line in console.file.getvalue().splitlines() if line.strip()]
    head = shown.index("recipe")
    assert shown[head + 3] == "ce"
    assert shown[head + 2][:8] == "mbls+mac"
    assert shown[head - 1] == "a/x/p"


def test_a_narrow_terminal_keeps_the_mark_of_the_floor():
    results = [study("ce", *({"ece": e, "ece_floor": 0.1} for e in (0.05, 0.07)))]
    found = make_table(results, TableOptions(metrics=("ece",), floor=True))
    assert "6.00±1.41†" in render(found, "terminal")
    console = Console(file=io.StringIO(), width=33)
    console.print(to_rich(found))
    assert "6.00† (floor 10.00)" in console.file.getvalue()


def test_a_table_from_the_server_has_the_columns_asked_for(monkeypatch):
    asked = []

    def results(uri, sweep):
        asked.append((uri, sweep))
        return [study("ce", figures())]

    monkeypatch.setattr("orchestrator.tracking.study_results", results)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there")
    assert comparison_table("night").metrics == ("acc", "ece", "aece", "cwece", "nll")
    found = comparison_table("day", tracking_uri="http://here", metrics=("nll",))
    assert (found.metrics, asked) == (("nll",), [("http://there", "night"), ("http://here", "day")])


def test_wrong_requests_are_refused():
    ours = study("ce", figures())
    formats = "terminal, markdown, csv, json, latex, html"
    assert refusal(render, table_of(ours), "pdf") == f"unknown format 'pdf'; use {formats}"
    unknown = "unknown metric 'auc'; near are: aurc, auroc, augrc"
    assert refusal(table_of(ours).sorted_by, "auc").startswith(unknown)
    assert refusal(table_of, ours, metrics=("auc",)).startswith(unknown)
    for metrics, named in ((("ece", "acc", "ece"), "ece, acc, ece"), ((), "none")):
        told = f"metrics: expected one or more different metrics, got {named}"
        assert refusal(table_of, ours, metrics=metrics) == told
    assert refusal(build_table, []) == "there are no results to make a table of"


def test_two_results_of_one_pair_are_refused():
    other = dataclasses.replace(study("ce", figures()), sweep="night")
    for second, sweeps in ((other, "demo and night"), (study("ce", figures()), "demo")):
        told = f"two results for ce on {TASK} (sweep {sweeps}); choose one"
        assert refusal(table_of, study("ce", figures()), second) == told


def differences(found, label, position=0):
    row = next(row for row in found.rows if row.label == label)
    cell = found.line(row)[position]
    return cell.change, cell.tone


def test_a_baseline_shows_gain_and_loss_with_their_own_sign():
    found = table_of(
        study("ce", figures(0.90, 0.05, 0.5)),
        study("ls", figures(0.92, 0.039, 0.7)),
        study("fl", figures(0.90, 0.050001, 0.4)),
    ).compared_with("ce")
    assert [differences(found, "ce", k) for k in range(3)] == [("", "")] * 3
    assert [differences(found, "ls", k) for k in range(3)] == [
        ("+2.00", "better"),
        ("-1.10", "better"),
        ("+0.2000", "worse"),
    ]
    assert differences(found, "fl", 1) == ("+0.00", "")
    assert rows_of(render(found, "markdown"))["ls"][1] == "**3.90** (-1.10)"
    assert '<span class="better">(-1.10)</span>' in render(found, "html")
    assert "the difference from row ce" in render(found, "terminal")


def test_a_baseline_is_found_by_label_or_by_its_only_recipe():
    found = table_of(study("ce", figures()), study("ls", figures()))
    rows = (Row("mean", ("ce", "ls")), Row("plain", ("ce",)), Row("ls", ("ls",)))
    table = dataclasses.replace(found, rows=rows)
    for baseline, labels in (
        ("ce", ["plain", "", "plain"]),
        ("plain", ["plain", "", "plain"]),
        ("mean", ["", "mean", "mean"]),
    ):
        assert [row.baseline for row in table.compared_with(baseline).rows] == labels


def test_a_difference_needs_both_figures():
    found = table_of(
        study("ce", status="failed"),
        study("ls", figures()),
        study("fl", figures(nll=math.nan)),
        study("dfl", figures(nll=math.inf)),
    )
    assert differences(found.compared_with("ce"), "ls") == ("", "")
    for baseline in ("fl", "dfl"):
        assert differences(found.compared_with(baseline), "ls", 2) == ("", "")
    told = "baseline: no row is named 'mbls'; rows are ce, ls, fl, dfl"
    assert refusal(found.compared_with, "mbls") == told


def test_figures_and_differences_that_chance_explains_are_marked():
    results = [
        study("ce", {"ece": 0.05, "ece_floor": 0.01}),
        study("ls", {"ece": 0.042, "ece_floor": 0.004}),
        study("fl", {"ece": 0.009, "ece_floor": 0.0095}),
        study("dfl", {"ece": 0.03}),
        study("acls", {"ece": 0.035, "ece_floor": 0.02}),
    ]
    options = TableOptions(metrics=("ece", "acc"), floor=True, baseline="ce")
    cells = rows_of(render(make_table(results, options), "markdown"))
    assert list(cells) == ["ce", "ls", "fl", "dfl", "acls"]
    assert cells["ce"][0] == "5.00 (floor 1.00)"
    assert cells["ls"][0] == "4.20 (≈ -0.80) (floor 0.40)"
    assert cells["fl"][0] == "**0.90†** (-4.10) (floor 0.95)"
    assert cells["dfl"][0] == "<ins>3.00</ins> (-2.00)"
    assert cells["acls"][0] == "3.50 (≈ -1.50) (floor 2.00)"
    assert all(texts[1] == "–" for texts in cells.values())
    assert differences(make_table(results, options), "ls") == ("≈ -0.80", "")


def placed(recipe, dataset, model, protocol="p", ece=0.05, **fields):
    fields |= {"dataset": dataset, "model": model, "protocol": protocol}
    return study(recipe, figures(ece=ece), task=f"{dataset}/{model}/{protocol}", **fields)


PLACES = [("a", "x"), ("b", "x"), ("a", "y")]


def above(*results, rows=("recipe",)):
    return [entry.groups for entry in build_table(results, ("ece",), rows).columns]


def test_headings_of_columns_distinguish_tasks():
    assert above(*(placed("ce", *at) for at in PLACES)) == [("a", "x"), ("a", "y"), ("b", "x")]
    protocols = [("a", "x", "p"), ("a", "x", "q"), ("b", "x", "p")]
    first, second, third = (placed("ce", *at) for at in protocols)
    assert above(first, second) == protocols[:2]
    assert above(first, second, third) == protocols
    own, other = (dataclasses.replace(second, task=task) for task in ("own", "other"))
    assert above(first, own) == [("a/x/p",), ("own",)]
    for rows in (("recipe",), ("recipe", "model")):
        assert above(own, other, rows=rows) == [("own",), ("other",)]
    own = dataclasses.replace(placed("ce", "a", "y"), task="own")
    assert above(first, own, rows=("recipe", "dataset")) == [("x",), ("y",)]
    assert above(first) == [("a/x/p",)]
    assert render(table_of(first, metrics=("acc",)), "markdown").startswith(
        "**a/x/p**\n\n| recipe | Acc % ↑ |\n"
    )


def test_more_tasks_than_fit_are_shown_as_their_mean():
    names = "abcdefghi"
    results = [study("ce", figures(ece=k / 100), task=name) for k, name in enumerate(names)]
    results += [study("ls", figures(), task=name) for name in names[1:]]
    eight = build_table(results[:8], ("ece",))
    assert ([entry.tasks for entry in eight.columns], eight.notes()) == (
        [(name,) for name in names[:8]],
        [],
    )
    nine = build_table(results, ("ece", "acc"))
    assert [(entry.groups, entry.tasks) for entry in nine.columns] == [
        (("mean over 9 tasks",), tuple(names))
    ] * 2
    cells = rows_of(render(nine, "markdown"))
    assert cells["ce"][0] == "**4.00**"
    assert cells["ls"][0] == "of 9: 1 not run"
    assert nine.notes() == ["mean over 9 tasks; --tasks NAME,... shows up to 8 separately"]
    # What must fit are the columns, which tasks in rows of their own share.
    pairs = [placed("ce", name, model) for name in names for model in "xy"]
    few, many = (build_table(pairs[:end], ("ece",), ("recipe", "model")) for end in (16, 18))
    assert ([entry.groups for entry in few.columns], few.notes()) == (
        [(name,) for name in names[:8]],
        [],
    )
    assert [entry.groups for entry in many.columns] == [("mean over 18 tasks",)]
    assert many.notes() == ["mean over 18 tasks; --tasks NAME,... shows up to 8 separately"]


def test_rows_may_be_more_than_recipes():
    results = [
        placed(r, *place, ece=0.01 * k) for k, place in enumerate(PLACES) for r in ("ce", "ls")
    ]
    found = build_table(results, ("ece",), rows=("recipe", "model"))
    assert [row.label for row in found.rows] == ["ce · x", "ce · y", "ls · x", "ls · y"]
    assert [entry.groups for entry in found.columns] == [("a",), ("b",)]
    cells = rows_of(render(found, "markdown"))
    assert [text.strip("*") for text in cells["ce · x"]] == ["0.00", "1.00"]
    assert cells["ce · y"] == ["<ins>2.00</ins>", "not run"]
    assert r"ce $\cdot$ y & " in render(found, "latex")
    wide = build_table(results, ("ece",), rows=("recipe", "task"))
    assert len(wide.rows) == 6
    assert len(wide.columns) == 1
    lost = [*results, dataclasses.replace(results[0], recipe="fl", status="running")]
    wide = build_table(lost, ("ece",), rows=("recipe", "task"))
    assert len(wide.rows) == 7
    text = render(wide, "terminal")
    place = "fl · a/x/p on a/x/p, b/x/p, a/y/p"
    assert text.splitlines()[-1] == f"{place}: running (4 trials finished, 0 failed)"
    compared = found.compared_with("ce")
    assert [row.baseline for row in compared.rows] == ["", "", "ce · x", "ce · y"]
    alone = build_table([*results, placed("ls", "a", "z")], ("ece",), rows=("recipe", "model"))
    assert alone.compared_with("ce").rows[-1].baseline == "ce · x"
    once = "rows: expected different names, one of them recipe, got"
    for rows, message in (
        (("model",), f"{once} model"),
        ((), f"{once} none"),
        (("recipe", "model", "recipe"), f"{once} recipe,model,recipe"),
        (
            ("recipe", "colour"),
            "rows: 'colour' is not one of recipe, dataset, model, protocol, task",
        ),
    ):
        assert refusal(build_table, results, ("ece",), rows=rows) == message


def test_no_two_tasks_are_ever_averaged_unasked():
    results = [placed("ce", "a", "x", "p"), placed("ce", "a", "x", "q", ece=0.9)]
    for rows in (("recipe", "model"), ("recipe", "dataset"), ("recipe", "protocol")):
        found = build_table(results, ("ece",), rows=rows)
        for row in found.rows:
            assert all(len(found.sources(row, entry.tasks)) <= 1 for entry in found.columns)


def test_recipes_and_tasks_are_chosen_by_wildcards():
    results = [placed(r, *place) for place in PLACES for r in ("ce", "mbls", "mbls+ts", "ce+ts")]
    found = make_table(results, TableOptions(recipes=["mbls*", "ce"], tasks=["a/*"]))
    assert found.recipes == ("ce", "mbls", "mbls+ts")
    assert found.tasks == ("a/x/p", "a/y/p")
    assert make_table(iter(results), TableOptions(recipes=["*"])).recipes[0] == "ce"
    told = "no recipe matches 'fl'; recipes are ce, mbls, mbls+ts, ce+ts"
    assert refusal(make_table, results, TableOptions(recipes=["ce", "fl"])) == told
    told = "no task matches 'c/*'; tasks are a/x/p, b/x/p, a/y/p"
    assert refusal(make_table, results, TableOptions(tasks=["a/*", "c/*"])) == told
    assert make_table(results, TableOptions(recipes=["*ts", "mbls"])).recipes == (
        *("mbls", "mbls+ts", "ce+ts"),
    )


def test_options_that_exclude_each_other_are_refused():
    results = [study("ce", figures())]
    told = "--show published needs --layout, which names the paper's table"
    assert refusal(make_table, results, TableOptions(published=True)) == told
    options = TableOptions(rows=("recipe", "model"), layout="macal/table1")
    told = "--rows and --layout exclude each other: a layout has its own rows"
    assert refusal(make_table, results, options) == told
    assert "one or more" in refusal(make_table, results, TableOptions(metrics=()))


def test_the_cost_of_the_chosen_configurations_is_a_column():
    found = table_of(study("ce", figures(), figures(), seconds=(10.0, 12.0)), metrics=("seconds",))
    assert rows_of(render(found, "markdown"))["ce"] == ["**11.0 ± 1.4**"]


def test_csv_has_the_metrics_of_suites():
    names = [f"{suite}/ece" for suite in "gcfaedb"]
    # One of them is known of the second seed only.
    found = table_of(study("ce", dict.fromkeys(names[1:], 0.4), dict.fromkeys(names[:1], 0.2)))
    (line,) = csv.DictReader(io.StringIO(render(found, "csv")))
    assert [name for name in line if "/" in name][::2] == [f"{name}_mean" for name in sorted(names)]
    assert float(line["g/ece_mean"]) == 0.2


def test_only_signs_that_occur_are_explained():
    floor = "on this test data"
    cases = {(0.02, 0.05): "; †: the figure is not above it", (0.05, 0.02): ""}
    for (ece, least), signs in cases.items():
        results = [study("ce", {**figures(ece=ece), "ece_floor": least})]
        (note,) = make_table(results, TableOptions(metrics=["ece"], floor=True)).notes()
        assert note.endswith(f"{floor}{signs}")


def of_sweep(name, recipe, **fields):
    return dataclasses.replace(study(recipe, figures()), sweep=name, **fields)


def test_two_sweeps_with_one_recipe_and_task_are_not_mixed_unasked():
    sweeps = [
        [of_sweep("a", "ce"), of_sweep("a", "ls")],
        [of_sweep("b", "ce"), of_sweep("b", "fl")],
    ]
    with pytest.raises(InputError, match=f"sweeps a and b both have ce on {TASK}; leave one out"):
        combine(sweeps)
    said: list[str] = []
    found = [(result.sweep, result.recipe) for result in combine(sweeps[::-1], said.append)]
    assert found == [("b", "ce"), ("b", "fl"), ("a", "ls")]
    assert said == [
        f"sweeps b and a both have ce on {TASK}; the table shows b, which is named first"
    ]
    combine([*sweeps, [of_sweep("c", "ce"), of_sweep("c", "ls"), of_sweep("c", "fl")]], said.append)
    both = f"sweeps a and c both have ce on {TASK} and 1 more"
    assert said[2] == f"{both}; the table shows a, which is named first"
    assert len(said) == 4


def test_one_recipe_on_two_tasks_may_come_from_two_sweeps():
    first, both = [of_sweep("a", "ce")], [of_sweep("b", "ce"), of_sweep("b", "ce", task="other")]
    assert combine([first, [], both[1:]]) == [*first, *both[1:]]
    assert combine([first, both], [].append) == [*first, *both[1:]]


def test_unknown_data_of_a_sweep_does_not_count_as_different():
    prints = [("a", "ce", ""), ("b", "ls", "1"), ("c", "fl", "")]
    sweeps = [[of_sweep(name, recipe, fingerprint=code)] for name, recipe, code in prints]
    assert len(combine(sweeps)) == 3
    sweeps.append([of_sweep("d", "dfl", fingerprint="2")])
    with pytest.raises(InputError, match=f"the data of {TASK} differs between sweeps b and d"):
        combine(sweeps)
    other = dataclasses.replace(of_sweep("d", "dfl", fingerprint="2"), task="other")
    found = make_table(combine([sweeps[1], [other]]))
    assert found.notes() == ["from the sweeps b, d"]


@pytest.mark.parametrize(("field", "what"), [("fingerprint", "the data of"), ("code", "the code")])
def test_sweeps_of_other_data_or_code_are_not_mixed_unasked(field, what):
    sweeps = [[of_sweep("a", "ce", **{field: "1"})], [of_sweep("b", "ls", **{field: "2"})]]
    about = f"{what} {TASK}" if field == "fingerprint" else what
    told = f"{about} differs between sweeps a and b; --show mixed shows them together"
    assert refusal(combine, sweeps) == told
    (note,) = make_table(combine(sweeps, mixed=True)).notes()
    word = {"fingerprint": "their data differ", "code": "their code differs"}[field]
    assert note == f"from the sweeps a, b; {word}"
    same = [[of_sweep("a", "ce", **{field: "1"})], [of_sweep("b", "ls", **{field: "1"})]]
    assert len(combine(same)) == 2
    resumed = [[of_sweep("a", "ce", **{field: "1"}), of_sweep("a", "ls", **{field: "2"})]]
    assert len(combine(resumed)) == 2
    unknown = [[of_sweep("a", "ce", **{field: "1"})], [of_sweep("b", "ls")]]
    assert make_table(combine(unknown)).notes() == ["from the sweeps a, b"]


def test_different_code_of_a_plugin_is_noted():
    one, two = {"mine": "1" * 64, "same": "3" * 64}, {"mine": "2" * 64, "same": "3" * 64}
    first, second = (of_sweep("a", "ce", plugins=one), of_sweep("b", "ls", plugins=two))
    told = (
        "the code of plugin mine differs between sweeps a and b; --show mixed shows them together"
    )
    assert refusal(combine, [[first], [second]]) == told
    (note,) = make_table(combine([[first], [second]], mixed=True)).notes()
    codes = f"{'1' * 12} in a, {'2' * 12} in b"
    assert note == f"from the sweeps a, b; the code of plugin mine differs: {codes}"
    said: list[str] = []
    combine([[first], [of_sweep("b", "ce", plugins=two)]], said.append)
    both = f"sweeps a and b both have ce on {TASK}; the code of plugin mine differs"
    assert said == [f"{both}; the table shows a, which is named first"]


def test_figures_of_different_code_are_marked():
    codes = {"ce": ("1" * 64,), "ls": ("1" * 64,), "fl": ("1" * 64, "2" * 64), "dfl": ()}
    rows = [of_sweep("a", recipe, computed_by=code) for recipe, code in codes.items()]
    note = (
        f"computed by different code: 111111111111 ce on {TASK}, ls on {TASK}, fl on {TASK}; "
        f"222222222222 fl on {TASK}"
    )
    assert make_table(rows).notes() == [note]
    assert make_table([*rows[:2], rows[3]]).notes() == []


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex")
def test_latex_compiles(tmp_path):
    results = [
        placed("ce", "a", "x", run_ids=("r_1",)),
        placed(NASTY, "a", "y"),
        placed("ls", "b", "x", status="failed", reason=NASTY),
    ]
    options = TableOptions(floor=True, baseline="ce", runs=True)
    head = r"\documentclass{article}\usepackage{booktabs}\begin{document}\tiny"
    text = f"{head}\n{render(make_table(results, options), 'latex')}\\end{{document}}\n"
    (tmp_path / "table.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 0


@pytest.fixture
def every_kind_of_cell():
    """Return a table that has two levels of headings and each kind of cell and of notice."""
    results = [
        placed("ce", "a&b", "x", ece=0.05),
        placed("ls", "a&b", "x", ece=0.042),
        placed("fl_1", "a&b", "x", ece=0.05),
        placed(
            "dfl", "a&b", "x", status="failed", trials_finished=0, trials_failed=2, reason="<oom>"
        ),
        placed("ce", "a&b", "y", ece=0.06),
        placed("ls", "a&b", "y", ece=0.09),
        placed("ce", "c", "y", ece=0.07),
        placed("ls", "c", "y", status="running"),
    ]
    results = [
        dataclasses.replace(r, test=tuple({**seed, "ece_floor": 0.01} for seed in r.test))
        for r in results
    ]
    return make_table(results, TableOptions(metrics=("acc", "ece"), floor=True, baseline="ce"))


@pytest.mark.parametrize("name", ["html", "latex", "markdown", "terminal"])
def test_all_of_a_table(name, every_kind_of_cell, file_regression):
    """After a change that is meant, run this file with ``--force-regen`` and read what differs."""
    text = render(every_kind_of_cell, name)
    file_regression.check(text, basename=name, encoding="utf-8")


def test_all_of_a_table_as_csv(file_regression):
    results = [
        study("ls", {"ece": 0.25, "x/acc": 0.5}, task="b", trials_finished=3),
        study("ce", {"ece": 0.5}, {"ece": 1.0}, task="a", run_ids=("r", "s"), trials_failed=2),
        study("ce", status="running", task="b", reason="+1", trials_finished=1),
    ]
    results[1] = dataclasses.replace(
        results[1],
        configuration={"z": {"b": None}, "a": {}},
        validation={"ece": 0.125, "seconds": 3.0, "x/ece": 9.0},
        seconds=(2.0, 4.0),
    )
    gains = {
        ("ls", "b", "nll"): Gain(1.0, 0.5, 2.0, False, False),
        ("ce", "a", "ece"): Gain(-0.25, -0.5, 0.125, True, True),
    }
    table = dataclasses.replace(table_of(*results), gains=gains)
    rows = csv.DictReader(io.StringIO(render(table, "csv")))
    said = [f"{name}: {text}\n" for row in rows for name, text in row.items()]
    file_regression.check("".join(said), encoding="utf-8", check_fn=assert_same)
