import csv
import io
from dataclasses import replace

import pytest

from orchestrator.storage.results import StudyResult
from orchestrator.tables.layouts import layout_names, load_layout
from orchestrator.tables.make import TableOptions, make_table, render
from orchestrator.tables.published import load_published
from orchestrator.tables.table import Gain
from tests.trainables.data.small_data import refusal

NETWORKS = ("resnet50", "resnet110", "wrn-26-10", "densenet121")


def study(recipe, dataset="cifar10", model="resnet50", protocol="mukhoti2020", **test):
    seconds = (test.pop("seconds"),) if "seconds" in test else ()
    subset = test.pop("subset", "")
    return StudyResult(
        "night",
        f"{dataset}/{model}/{protocol}",
        recipe,
        "finished",
        test=({"acc": 0.95, "ece": 0.02, **test},),
        run_ids=(f"run-{recipe}-{model}",),
        dataset=dataset,
        model=model,
        protocol=protocol,
        seconds=seconds,
        subset=subset,
    )


def fill(layout, *results, **options):
    return make_table(results, TableOptions(layout=layout, **options))


def cells(table, label):
    """Return the cells of a row by data set, model and metric."""
    row = next(row for row in table.rows if row.label == label)
    whole = [cell for cell in table.line(row) for _ in range(getattr(cell, "span", 1))]
    return {
        (*entry.groups, entry.metrics[-1]): cell
        for entry, cell in zip(table.columns, whole, strict=True)
    }


def test_the_rows_and_columns_are_the_layout_s_in_its_order():
    table = fill("macal/table1", study("ls"), study("ce"))
    assert [row.label for row in table.rows] == [r.name for r in load_layout("macal/table1").rows]
    assert [entry.groups for entry in table.columns] == [
        *(("cifar10", model) for model in NETWORKS),
        *(("cifar100", model) for model in NETWORKS),
        ("tiny-imagenet", "resnet50"),
    ]


def test_a_layout_marks_cells_that_were_not_run_and_names_recipes_it_does_not_have():
    foreign = [study(recipe, model="resnet8") for recipe in ("ce", "own", "esd")]
    table = fill("macal/table1", study("ce"), study("own"), *foreign)
    found = cells(table, "ce")
    assert found["cifar10", "resnet50", "ece"].text == "2.00"
    assert found["cifar10", "resnet110", "ece"].text == "not run"
    assert cells(table, "ls")["cifar10", "resnet50", "ece"].text == "not run"
    notes = table.notes()
    assert "recipes of the sweep that are not in this layout: own, esd" in notes
    assert "tasks of the sweep that are not in this layout: cifar10/resnet8/mukhoti2020" in notes


def test_a_published_figure_is_shown_for_the_same_data_set_model_and_metric():
    table = fill("macal/table1", study("ce"), study("ce", "digits"), published=True)
    assert cells(table, "ce")["cifar10", "resnet50", "ece"].asides == ("[paper 4.11]",)
    floored = fill("macal/table1", study("ce", ece_floor=0.004), published=True, floor=True)
    assert "2.00 (floor 0.40) [paper 4.11]" in render(floored, "terminal")
    told = [note for note in table.notes() if "paper" in note]
    assert told[-2:] == [
        "[paper]: published in macal Table 1 for the same data set, model and metric; our "
        "networks were trained by mukhoti2020",
        "the paper does not state the number of bins; ours is 15",
    ]
    assert "[paper" not in render(fill("macal/table1", study("ce")), "markdown")


@pytest.mark.parametrize("other", [{"dataset": "cifar100-lt"}, {"model": "resnet8"}])
def test_another_data_set_or_model_gets_no_published_figure(other):
    table = fill("macal/table1", study("ce", **other), published=True)
    assert not table.published
    assert "macal Table 1 has no figure for these data sets and models" in table.notes()


def test_a_part_of_a_data_set_gets_no_published_figure():
    part = fill("macal/table1", study("ce", subset="test_limit 1000"), published=True)
    whole = fill("macal/table1", study("ce"), published=True)
    gone = set(whole.published) - set(part.published)
    assert {position for _, position in gone} == {0}
    assert ("ce", 0) in gone
    other = study("ce", "digits", subset="train_limit 5")
    part = fill("macal/table1", study("ce", subset="test_limit 1000"), other, published=True)
    start = "not compared with the paper: "
    assert [note.removeprefix(start) for note in part.notes() if note.startswith(start)] == [
        "cifar10/resnet50/mukhoti2020: only a part of the data set (test_limit 1000)",
        "digits/resnet50/mukhoti2020: only a part of the data set (train_limit 5)",
    ]


def test_another_metric_gets_no_published_figure():
    ours = study("ce", nll=0.2, **{"cifar10-c/ece": 0.3})
    table = fill("macal/table1", ours, metrics=("nll", "cifar10-c/ece", "ece"), published=True)
    found = cells(table, "ce")
    assert found["cifar10", "resnet50", "cifar10-c/ece"].asides == ()
    assert found["cifar10", "resnet50", "nll"].asides == ()
    assert found["cifar10", "resnet50", "ece"].asides == ("[paper 4.11]",)


def test_figures_are_compared_with_those_of_as_many_bins():
    rows = load_published("results").query("table == 'Table B' and metric == 'ece'")
    by_bins = rows.query("method == 'mmce'").set_index("n_bins")["value"]
    assert by_bins[10] != by_bins[15]
    ours = study("mmce", "tiny-imagenet", **{"bins-10/ece": 0.03})
    table = fill("acls/tableB", ours, published=True)
    found = cells(table, "mmce")["tiny-imagenet", "resnet50", "ece"].asides
    assert found == (f"[paper {by_bins[15]:.2f}]",)
    found = cells(table, "mmce")["tiny-imagenet", "resnet50", "bins-10/ece"].asides
    assert found == (f"[paper {by_bins[10]:.2f}]",)
    assert not any("does not state the number of bins" in note for note in table.notes())


def test_a_mean_over_networks_needs_all_networks():
    partly = [study("ls", model=model, ece=0.01) for model in NETWORKS[:3]]
    found = cells(fill("macal/table3", *partly, published=True), "ls")
    assert found["cifar10", "average", "acc"].text == "of 4: 1 not run"
    whole = [*partly, study("ls", model=NETWORKS[3], ece=0.05)]
    table = fill("macal/table3", *whole, published=True)
    cell = cells(table, "ls")["cifar10", "average", "ece"]
    assert (cell.text, cell.asides) == ("2.00", ("[paper 3.66]",))
    (about,) = (note for note in table.notes() if note.startswith("cifar10 / average: mean over "))
    assert set(about.partition("over ")[2].split(", ")) == {result.task for result in whole}


def test_a_mean_over_two_networks_has_a_note_and_a_published_value_if_both_saw_all_data(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\npaper: macal\ntable: Table 3\nmetrics: [ece]\nrows: [ls, mbls]\n"
        "columns: {cifar10: {average: [resnet50, resnet110]}}\n"
    )
    runs = [study("ls"), study("mbls"), study("ls", model="resnet110", protocol="other")]
    whole = fill(str(path), *runs, published=True)
    tasks = "cifar10/resnet50/mukhoti2020, cifar10/resnet110/other"
    assert list(whole.published) == [("ls", 0), ("mbls", 0)]
    assert whole.notes() == [
        f"cifar10 / average: mean over {tasks}",
        "[paper]: published in macal Table 3 for the same data set, model and metric; our "
        "networks were trained by mukhoti2020, other",
        "the paper does not state the number of bins; ours is 15",
    ]
    partly = [*runs[:2], replace(runs[2], subset="test_limit 9")]
    assert fill(str(path), *partly, published=True).published == {}


def test_a_network_that_the_paper_does_not_pin_down_is_not_compared():
    runs = [study("ce", model=model) for model in ("wrn-32", "resnet110-cifar")]
    table = fill("cls/table1", *runs, published=True)
    found = cells(table, "ce")
    assert found["cifar10", "wrn-32", "ece"].asides == ()
    assert found["cifar10", "resnet110", "ece"].asides == ("[paper 4.75]",)
    assert any("wrn-32: the paper does not state" in note for note in table.notes())


def test_the_other_resnet110_is_not_taken_for_that_of_the_paper():
    table = fill("cls/table1", study("ce", model="resnet110"), columns="paper")
    assert cells(table, "ce")["cifar10", "resnet110", "ece"].text == "not run"


def test_doubts_about_a_published_figure_are_noted():
    table = fill("macal/table3", study("dfl+macal", "tiny-imagenet"), published=True)
    start = "doubtful in the paper: dfl+macal (ours) on tiny-imagenet / average / Acc % ↑: 2.76: "
    assert any(note.startswith(f"{start}as extracted; implausible") for note in table.notes())


def test_a_note_marks_a_published_figure_that_repeats_the_neighbouring_one(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\npaper: cls\ntable: Table 2\nmetrics: [ece]\nrows: [ce]\n"
        "columns: {cifar100-lt: [wrn-28]}\n"
    )
    told = fill(str(path), study("ce", "cifar100-lt", "wrn-28"), published=True).notes()
    assert told[-1] == (
        "doubtful in the paper: ce on cifar100-lt / wrn-28 / ECE % ↓: 9.11: same ECE as the "
        "cifar10-lt cell of the same row; suspicious (also in Table 4)"
    )


def test_a_row_is_published_by_the_beginning_of_its_note(tmp_path):
    path = tmp_path / "mine.yaml"
    notes = ("+Classifier", "Classifier")
    rows = "".join(
        f"  - {{recipe: ce+macal-{k}, published: {{stage2: macal-partial, note: {note}}}}}\n"
        for k, note in enumerate(notes)
    )
    path.write_text(
        "title: mine\npaper: macal\ntable: Table 5\nmetrics: [ece]\n"
        f"columns: {{cifar10: [densenet121]}}\nrows:\n{rows}"
    )
    runs = [study(f"ce+macal-{k}", model="densenet121") for k in (0, 1)]
    table = fill(str(path), *runs, published=True)
    assert list(table.published) == [("ce+macal-0", 0)]


def test_the_noted_protocol_is_that_of_the_compared_tasks():
    other = study("ce", "digits", protocol="other")
    told = "our networks were trained by "
    for protocol, named in (("mukhoti2020", "mukhoti2020"), ("", "an unknown protocol")):
        ours = replace(study("ce"), protocol=protocol)
        notes = fill("macal/table1", ours, other, published=True).notes()
        assert [note.partition(told)[2] for note in notes if told in note] == [named]


def test_bins_are_noted_for_binned_errors_only():
    for metrics, told in ((("acc",), False), (("acc", "ece"), True)):
        table = fill("macal/table3", study("ce"), metrics=metrics, published=True)
        found = [note for note in table.notes() if "number of bins" in note]
        assert bool(found) == told
        assert all(note.endswith("; ours is 15") for note in found)


def test_notes_of_a_layout_are_below_the_table(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\nmetrics: [ece, nll]\nrows: [{label: =both, mean: [ls, ce]}]\n"
        "columns: {cifar10: [resnet50]}\nnote: a note\n"
        "not_offered: [{what: x, reason: no code}, {what: y, reason: no data}]\n"
    )
    table = fill(str(path), study("ce"), study("ls"))
    told = ["a note", "not offered: x: no code", "not offered: y: no data"]
    assert table.notes() == told
    days = fill(str(path), study("ce"), replace(study("ls"), sweep="day"))
    assert days.notes() == [*told, "from the sweeps day, night"]
    shown, missing = csv.DictReader(io.StringIO(render(table, "csv")))
    assert (shown["recipes"], shown["status"], missing["status"]) == (
        *("ls ce", "finished"),
        "no figure",
    )
    assert shown["run_ids"] == "run-ls-resnet50 run-ce-resnet50"
    assert shown["row"] == "'=both"  # No formula.
    own = fill(str(path), study("ce", "digits"))
    start = f"rows of layout {path}; columns are the sweep's own tasks"
    assert own.notes() == [start, *told]


def test_the_cost_is_the_seconds_of_a_recipe():
    table = fill("macal/table4", study("ce", seconds=61.25), study("mit", seconds=70.0))
    assert cells(table, "ce")["cifar10", "resnet50", "seconds"].text == "61.2"
    assert cells(table, "ce")["cifar10", "resnet50", "seconds"].mark == "best"


def test_out_of_distribution_figures_are_means_over_the_suites():
    figures = {"ood-svhn/auroc": 0.9, "ood-cifar100/auroc": 0.8, "ood-noise/auroc": 0.1}
    place = ("cifar10->cifar100+svhn", "average", "ood-svhn/auroc")
    runs = [study("ce", model=model, **figures) for model in NETWORKS]
    table = fill("macal/table2", *runs, published=True)
    assert cells(table, "ce")[place].text == "85.00"
    assert not table.published


def test_elsewhere_all_suites_that_have_the_metric_are_taken():
    figures = {"ood-noise/auroc": 0.6, "ood-other/auroc": 0.8, "ood-noise/fpr95": 0.3}
    figures |= {"ood-other/fpr95": 0.3, "ood/auroc": 0.7, "ood/fpr95": 0.3}
    table = fill("macal/table2", study("ce", "digits", "convnet", **figures))
    texts = [cell.text for cell in cells(table, "ce").values()]
    assert texts == ["70.00", "30.00"]
    means = [f"{name}: mean over ood-noise/{name}, ood-other/{name}" for name in ("auroc", "fpr95")]
    assert [note for note in table.notes() if ": mean over " in note] == means
    assert [entry.headings[-1] for entry in table.columns] == ["AUROC % ↑", "FPR95 % ↓"]
    other = study("ce", "digits", "resnet8", **{"ood-third/auroc": 0.5})
    both = fill("macal/table2", study("ce", "digits", "convnet", **figures), other)
    assert [entry.metrics for entry in both.columns][0::2] == [
        ("ood-noise/auroc", "ood-other/auroc"),
        ("ood-third/auroc",),
    ]


def test_all_suites_of_a_recipe_are_in_the_mean_which_is_noted_once():
    own = {f"ood-{name}/{metric}": 0.5 for name in "dacb" for metric in ("ece", "debiased_ece")}
    runs = [
        study(recipe, "digits", model, **suites)
        for model in ("convnet", "resnet8")
        for recipe, suites in (("ce", own), ("plp", {"ood-e/ece": 0.5}))
    ]
    table = fill("macal/table2", *runs, metrics=("ece", "nll"))
    suites = tuple(f"ood-{name}/ece" for name in "abcde")
    assert [entry.metrics for entry in table.columns] == [suites, ("nll",)] * 2
    assert table.notes() == [
        "rows of layout macal/table2; columns are the sweep's own tasks",
        f"ece: mean over {', '.join(suites)}",
        load_layout("macal/table2").note,
    ]


def test_a_row_may_be_the_mean_of_several_recipes():
    parts = ("ts", "ets", "pts-paper", "cts-logit")
    runs = [study(f"ce+{name}", ece=0.01 * k) for k, name in enumerate(parts)]
    runs += [study(f"ce+{name}-ls", ece=0.03) for name in parts]
    table = fill("cls/table1", *runs)
    mean, changed = cells(table, "average"), cells(table, "average-ls")
    assert next(iter(mean.values())).text == "1.50"
    cell = next(iter(changed.values()))
    assert (cell.text, cell.change, cell.tone) == ("3.00", "+1.50", "worse")
    other = fill("cls/table1", *runs, baseline="average-ls")
    compared = {row.label: row.baseline for row in other.rows}
    assert compared.pop("average-ls") == ""
    assert set(compared.values()) == {"average-ls"}
    assert next(iter(cells(fill("cls/table1", *runs[1:]), "average").values())).short == (
        "of 4: 1 not run"
    )


@pytest.mark.parametrize("name", layout_names())
def test_every_layout_fits_a_sweep_of_other_tasks(name):
    layout = load_layout(name)
    recipes = dict.fromkeys(recipe for row in layout.rows for recipe in row.recipes)
    extra = {"aece": 0.01, "cwece": 0.01, "mce": 0.1, "auroc": 0.9, "fpr95": 0.1, "seconds": 3.0}
    extra |= {"miou": 0.5}
    suites = {"ood-noise/auroc": 0.9, "ood-noise/fpr95": 0.2}
    suites |= {"bins-10/ece": 0.02, "bins-10/aece": 0.02}
    runs = [study(recipe, "digits", "convnet", **extra, **suites) for recipe in recipes]
    table = fill(name, *runs, published=bool(layout.paper))
    assert table.tasks == ("digits/convnet/mukhoti2020",)
    assert len(table.columns) == len(layout.metrics)
    assert not table.published
    for row in table.rows:
        assert all(cell.text[0].isdigit() for cell in table.line(row))
    assert render(table, "latex").isascii()


def test_columns_may_be_chosen():
    runs = study("ce"), study("ce", "digits", "convnet")
    assert len(fill("macal/table1", *runs).columns) == 9
    turned = fill("macal/table1", *reversed(runs), columns="sweep")
    assert [entry.groups[0] for entry in turned.columns] == ["digits", "cifar10"]
    only = fill("macal/table1", study("ce", "digits", "convnet"), columns="paper")
    assert {cell.text for cell in cells(only, "ce").values()} == {"not run"}


def test_a_layout_prints_only_the_names_of_recipes_that_it_does_not_show(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: mine\nmetrics: [ece]\nrows: [ce, ls]\n", encoding="utf-8")
    shown = {"code": "1", "fingerprint": "1", "searched_predictions": "c"}
    shown |= {"test": study("ce").test * 2, "predictions": ("a", "b")}
    other = {"code": "2", "fingerprint": "2", "searched_predictions": "a", "varied": True}
    other |= {"test": study("ce").test * 3, "predictions": ("a", "b"), "trials_failed": 1}
    runs = [
        replace(study("ce"), **shown),
        replace(study("ls"), **shown, sweep="eve"),
        replace(study("esd"), **other, sweep="day"),
    ]
    table = fill(str(path), *runs, runs=True)
    assert table.notes() == [
        "mean ± sample standard deviation over 2 seeds",
        "recipes of the sweep that are not in this layout: esd",
        "from the sweeps night, eve",
        "runs of ce on cifar10/resnet50/mukhoti2020 (sweep night): run-ce-resnet50",
        "runs of ls on cifar10/resnet50/mukhoti2020 (sweep eve): run-ls-resnet50",
    ]
    assert replace(table, gains={}).notes()[2] == "without a search: ce, ls"


def test_two_names_of_one_task_are_columns_of_their_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\nmetrics: [ece, acc]\nrows: [ce, ls]\n"
        "datasets: {one: cifar10, two: cifar10}\ncolumns: {one: [resnet50], two: [resnet50]}\n"
    )
    table = fill(str(path), study("ce"))
    assert [entry.groups[0] for entry in table.columns] == ["one", "one", "two", "two"]
    assert [(cell.text, cell.span) for cell in table.line(table.rows[1])] == [("not run", 2)] * 2


def test_two_tasks_for_one_column_are_refused():
    runs = study("ce"), study("ce", protocol="mukhoti2020/0.1")
    assert refusal(fill, "macal/table1", *runs) == (
        "layout macal/table1: cifar10 / resnet50 has several tasks: cifar10/resnet50/mukhoti2020, "
        "cifar10/resnet50/mukhoti2020/0.1; choose one with --tasks"
    )
    assert fill("macal/table1", *runs, tasks=["*/mukhoti2020"]).columns


def test_a_layout_file_of_a_user_is_found_by_its_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: mine\nmetrics: [ece]\nrows: [ls, ce]\n", encoding="utf-8")
    table = fill(str(path), study("ce"), study("ls", ece=0.01))
    assert ([row.label for row in table.rows], table.notes()) == (["ls", "ce"], [])
    for options, message in (
        ({"published": True}, f"layout {path} names no paper, so nothing published can be shown"),
        ({"columns": "paper"}, f"layout {path} names no columns; use columns='sweep'"),
        (
            {"metrics": ("ece", "ece")},
            "metrics: expected one or more different metrics, got ece, ece",
        ),
        ({"metrics": ()}, "metrics: expected one or more different metrics, got none"),
        ({"columns": "papers"}, "columns 'papers' is not one of auto, paper, sweep"),
    ):
        assert refusal(fill, str(path), study("ce"), **options) == message


def test_csv_has_a_line_a_cell_with_fractions():
    table = fill("macal/table1", study("ce"), published=True)
    lines = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(lines) == 17 * 9
    task = "cifar10/resnet50/mukhoti2020"
    assert {**lines[0], "published": float(lines[0]["published"])} == {
        "layout": "macal/table1",
        "row": "ce",
        "recipes": "ce",
        "column": "cifar10 / resnet50 / ECE % ↓",
        "tasks": task,
        "metrics": "ece",
        "status": "finished",
        "mean": "0.02",
        "std": "",
        "seeds": "1",
        "noise_floor": "",
        "published": pytest.approx(0.0411),
        "run_ids": "run-ce-resnet50",
    }
    assert lines[1]["status"] == "not run"
    floored = fill("macal/table1", study("ce", ece_floor=0.004))
    gains = {("ce", task, "ece"): Gain(-0.01, -0.02, -0.005, False, False)}
    text = render(replace(floored, gains=gains), "csv")
    first, second, *_ = csv.DictReader(io.StringIO(text))
    found = [float(first[name]) for name in ("noise_floor", "gain", "gain_low", "gain_high")]
    assert found == [0.004, -0.01, -0.02, -0.005]
    assert (second["gain"], second["run_ids"]) == ("", "")
    assert (first["layout"], first["tasks"], first["metrics"]) == ("macal/table1", task, "ece")
