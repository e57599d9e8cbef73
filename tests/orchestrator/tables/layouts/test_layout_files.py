import re

import pytest

from orchestrator.storage.results import StudyResult
from orchestrator.tables.layouts import arrange_layout, layout_names, load_layout, published_key
from orchestrator.tables.published import load_published
from tests.trainables.data.small_data import refusal
from trainables.common.errors import InputError

ISSUED = {
    "macal": ("table1", "table2", "table3", "table4", "table5"),
    "cls": ("logits", "table1", "table2", "table3"),
    "acls": ("table1", "table3", "table4", "table5", "table6", "tableA", "tableB"),
    "aurc": ("table1", "table2", "table4"),
    "mbls": ("table1", "table2", "table3", "table5", "table6", "table7", "table8"),
}
NAMES = [f"{paper}/{table}" for paper, tables in ISSUED.items() for table in tables]
# Lost tables of which another one repeats some figures, as their notes say.
REPEATED = {"mbls/table6": "missing Table 6"}
METRICS = {"seconds": "train_seconds"}
RUN = {("none", "a task"): StudyResult("s", "a task", "none", "finished")}


def published(layout):
    table = load_published("results")
    found = table[(table["paper"] == layout.paper) & (table["table"] == layout.table)]
    if layout.name in REPEATED:
        found = found[found["note"].str.contains(REPEATED[layout.name])]
    left_out = {entry.what for entry in layout.not_offered}
    for column in ("dataset", "method", "metric"):
        found = found[~found[column].isin(left_out)]
    return found


OURS = " (ours)"  # How the label of a row in our reading ends, next to that of the text.


def printed_rows(layout):
    return [row for row in layout.rows if not row.name.endswith(OURS)]


LOST = "mbls/table4"  # Nothing of it is known but its rows and columns.


def test_every_published_table_has_its_layout():
    assert layout_names() == sorted([*NAMES, LOST])
    assert load_layout(LOST).paper == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_published_row_is_one_row_of_the_layout(name):
    layout = load_layout(name)
    keys = [published_key(row) for row in printed_rows(layout)]
    assert len(set(keys)) == len(keys)
    met = set()
    for _, row in published(layout).iterrows():
        place = (row["method"], row["stage2"], row["posthoc"])
        fits = [k for k in keys if k[:3] == place and row["note"].startswith(k.note)]
        assert len(fits) == 1, f"{place} {row['note']}"
        met.add(fits[0])
    assert met == set(keys)


@pytest.mark.parametrize("name", NAMES)
def test_every_published_column_is_one_column_of_the_layout(name):
    layout = load_layout(name)
    ours = {
        (dataset, model, METRICS.get(metric, metric))
        for dataset, models in layout.columns.items()
        for model in models
        for metric in layout.metrics
    }
    theirs = {
        (row.dataset, row.model, f"bins-10/{row.metric}" if row.n_bins == "10" else row.metric)
        for row in published(layout).astype({"n_bins": str}).itertuples()
    }
    assert theirs == {place for place in ours if name not in REPEATED or place[2] == "ece"}


@pytest.mark.parametrize("name", NAMES)
def test_every_published_figure_is_in_its_cell(name):
    layout = load_layout(name)
    found = arrange_layout(layout, RUN, columns="paper", published=True)
    columns = [
        (dataset, model, metric)
        for dataset, models in layout.columns.items()
        for model in models
        for metric in layout.metrics
    ]
    assert len(found.columns) == len(columns)
    expected, notes = {}, {}
    for row in published(layout).dropna(subset="value").itertuples():
        if {"all", row.dataset, row.model} & set(layout.incomparable):
            continue
        key = (row.method, row.stage2, row.posthoc)
        (label,) = (
            own.name
            for own in printed_rows(layout)
            if published_key(own)[:3] == key and row.note.startswith(published_key(own).note)
        )
        suite = "bins-10/" if str(row.n_bins) == "10" else ""
        metric = {value: ours for ours, value in METRICS.items()}.get(row.metric, row.metric)
        factor = 1 if metric == "seconds" else 100
        at = columns.index((row.dataset, row.model, f"{suite}{metric}"))
        expected[label, at] = pytest.approx(row.value / factor)
        notes[label, at] = (row.value, row.note)
    for at in range(len(columns)):  # Our reading has the same figure next to it.
        for row in layout.rows:
            twin = next(r for r in printed_rows(layout) if published_key(r) == published_key(row))
            if (twin.name, at) in expected:
                expected[row.name, at] = expected[twin.name, at]
                notes[row.name, at] = notes[twin.name, at]
    words = ("cell missing", "conflicts", "garbled", "implausible", "outlier", "suspicious")
    doubted = {
        f"{label} on {' / '.join(found.columns[at].headings)}: {value:g}: {note}"
        for (label, at), (value, note) in notes.items()
        if any(word in note for word in words)
    }
    start = "doubtful in the paper: "
    told = {note.removeprefix(start) for note in found.notes() if note.startswith(start)}
    assert doubted <= told
    assert name in REPEATED or doubted == told
    ours = {at: value for at, value in found.published.items() if at in expected}
    assert ours == expected
    assert name in REPEATED or len(found.published) == len(expected)


@pytest.mark.parametrize("name", NAMES)
def test_entries_that_a_layout_does_not_offer_are_published_and_have_a_reason(name):
    layout = load_layout(name)
    table = load_published("results")
    found = table[(table["paper"] == layout.paper) & (table["table"] == layout.table)]
    words = {*found["dataset"], *found["method"], *found["metric"], *found["model"]}
    for entry in layout.not_offered:
        assert entry.what in words
        assert entry.reason
    assert set(layout.incomparable) <= words | {"all"}


def test_what_each_layout_says(file_regression):
    """After a change that is meant, run this file with ``--force-regen`` and read what differs."""
    lines = []
    for name in NAMES:
        layout = load_layout(name)
        table = arrange_layout(layout, RUN, columns="paper", published=True)
        lines += ["", f"{name}: {layout.title}", *(f"  {note}" for note in table.notes())]
    file_regression.check("\n".join(lines).strip() + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "data"),
    [("mbls/table3", "CUB"), ("mbls/table7", "cub200"), ("acls/table3", "ImageNet")],
)
def test_a_layout_says_that_its_paper_holds_no_training_images_out(name, data):
    told = load_layout(name).note
    assert re.search(rf"{data}[;:].* a tenth of them is held out", told)


def test_the_rows_of_the_ablation_are_in_the_published_order():
    layout = load_layout("macal/table5")
    notes = dict.fromkeys(note.split(";")[0] for note in published(layout)["note"])
    labels = [row.name.replace("+ ", "+") for row in layout.rows]
    vanilla, *steps = notes
    readings = [f"{step} ({reading})" for reading in ("paper", "ours") for step in steps]
    assert labels == [vanilla, *readings]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("macal")])
def test_the_text_and_our_reading_of_macal_are_rows_of_their_own(name):
    rows = load_layout(name).rows
    recipes = {row.recipe: row.name for row in rows if "+macal" in row.recipe}
    printed = [recipe for recipe in recipes if "+macal-paper" in recipe]
    assert printed
    twins = {recipe.replace("+macal-paper", "+macal") for recipe in printed}
    assert {*recipes} == {*printed, *twins}
    assert all(recipes[twin].endswith(OURS) for twin in twins)


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_is_compared_with_the_plain_method(name):
    layout = load_layout(name)
    endings = {
        "cls": ("-ls", "-fl", "-cls", "-cls-cm", "-cls-mm"),
        "acls/table6": ("-margin", "-ranking"),
        "macal/table3": ("+macal-paper", "+macal (ours)"),
    }
    known = endings.get(name, endings.get(layout.paper, ()))
    plain = {f"{row.name}{ending}": row.name for row in layout.rows for ending in known}
    assert [row.baseline for row in layout.rows] == [plain.get(row.name, "") for row in layout.rows]


GOOD = "title: mine\nmetrics: [ece]\nrows: [ce, ls]\n"
WRONG = {
    "no such metric": GOOD.replace("ece", "eec"),
    "unknown key": GOOD + "colums: {}\n",
    "unknown key of a row": GOOD.replace("ls", "{recipe: ls, colour: red}"),
    "no reason": GOOD + "not_offered: [{what: x, why: y}]\n",
    "no rows": GOOD.replace("[ce, ls]", "[]"),
    "no metrics": GOOD.replace("[ece]", "[]"),
    "no models": GOOD + "columns: {cifar10: []}\n",
    "no suites": GOOD + "suites: {cifar10: []}\n",
    "a title that is a number": GOOD.replace("mine", "3"),
    "a key twice": GOOD + "title: again\n",
    "a row twice": GOOD.replace("ls", "ce"),
    "no baseline": GOOD.replace("ls", "{recipe: ls, baseline: mbls}"),
    "neither recipe nor mean": GOOD.replace("ls", "{label: x}"),
    "both recipe and mean": GOOD.replace("ls", "{label: x, recipe: ls, mean: [ce]}"),
    "a mean without a label": GOOD.replace("ls", "{mean: [ce, ls]}"),
    "unknown published key": GOOD.replace("ls", "{recipe: ls, published: {stage: x}}"),
    "no such paper": GOOD + "paper: macal\ntable: Table 99\n",
    "a paper alone": GOOD + "paper: macal\n",
    "a table alone": GOOD + "table: Table 1\n",
    "a list": "[1, 2]",
    "empty": "",
    "no YAML": "title: [",
}


def test_a_wrong_layout_gets_one_line(tmp_path, monkeypatch, file_regression):
    """After a change that is meant, run this with ``--force-regen`` and read what differs."""
    monkeypatch.chdir(tmp_path)
    said = []
    for case, text in WRONG.items():
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_layout("mine.yaml")
        assert "\n" not in str(caught.value)
        said.append(f"{case}:\n  {caught.value}\n")
    file_regression.check("".join(said), encoding="utf-8")


def test_a_layout_that_is_not_there_is_refused(tmp_path):
    assert refusal(load_layout, "macal/tabel1") == (
        "unknown layout 'macal/tabel1'; near are: macal/table1, macal/table5, macal/table4, "
        "or PATH.yaml; `calsweep list layouts` shows all"
    )
    with pytest.raises(InputError, match=r"'\?'; there are: acls/table1, .* more\), or PATH"):
        load_layout("?")
    (tmp_path / "mine.yml").write_text(GOOD, encoding="utf-8")
    assert load_layout(str(tmp_path / "mine.yml")).title == "mine"
    named = tmp_path / "named.yaml"
    named.write_text(f"{GOOD}name: other\n", encoding="utf-8")
    assert load_layout(str(named)).name == str(named)
    with pytest.raises(InputError, match=r"cannot be read: .*No such file"):
        load_layout(str(tmp_path / "none.yaml"))
