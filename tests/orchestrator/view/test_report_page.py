"""The report as text: what it shows, what it says is missing, and that it runs no foreign text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.metadata import version
from itertools import pairwise

import pytest

from orchestrator.cli import main
from orchestrator.storage.storage import Storage
from orchestrator.view import from_folder, render_report, write_report
from tests.orchestrator.view.conftest import SHARPNESS
from trainables.common.errors import InputError
from trainables.common.stages import ArtifactRef
from trainables.store.artifacts import ArtifactStore

VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    """The elements of a page: name, attributes, text; fails where they are not nested well."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2].append(data)

    def texts(self, tag):
        return ["".join(text).strip() for name, _, text in self.elements if name == tag]

    def rows(self, caption):
        """Return the rows of the table of that caption, a list of texts and orders each."""
        table = next(
            start
            for start, (tag, _, text) in enumerate(self.elements)
            if tag == "table" and caption in "".join(text)
        )
        rows = []
        for tag, attributes, text in self.elements[table + 1 :]:
            if tag == "table":
                break
            if tag == "tr" and "data-item" in attributes:
                rows.append([])
            elif tag in ("td", "th") and "data-order" in attributes:
                rows[-1].append((" ".join("".join(text).split()), attributes["data-order"]))
        return rows


@pytest.fixture(scope="module")
def parsed(page):
    return Page(page)


def test_headings_are_in_order_and_tables_have_captions(parsed):
    levels = [int(tag[1]) for tag, *_ in parsed.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(parsed.texts("table")) == len([t for t in parsed.texts("caption") if t]) > 4


def test_text_of_runs_is_text(parsed, page):
    scripts = [dict(attributes) for tag, attributes, *_ in parsed.elements if tag == "script"]
    run = [each for each in scripts if each.get("type") != "application/json"]
    assert run == [{"type": "text/plain", "id": "vega"}, {}]
    assert "window.stolen" not in "".join(parsed.texts("script")[-2:])  # Those before are data.
    assert not [e for e in parsed.elements if any(name.startswith("on") for name in e[1])]
    assert 'window.stolen = "task"' in parsed.texts("h2")[1]
    assert "window.stolen" in " ".join(parsed.texts("td"))
    assert "<script>window" not in page


def test_a_page_needs_no_network(parsed, page):
    policy = next(a["content"] for _, a, _ in parsed.elements if "http-equiv" in a)
    assert policy.startswith("default-src 'none';")
    links = [a[name] for _, a, _ in parsed.elements for name in ("src", "href") if name in a]
    assert links
    assert all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\(|@import", page)


def test_a_report_compares_with_the_chosen_baseline(source):
    told = []
    page = Page(render_report(source, "mbls", lambda *step: told.append(step)))
    rows = {row[0][1]: row for row in page.rows("Test figures")}
    assert "baseline" in rows["mbls"][0][0]
    assert rows["mbls"][4] == ("–", "")
    assert float(rows["ce"][4][1]) < 0
    assert sum(text == "ECE against mbls" for text in page.texts("th")) == 1
    # Read, and compared by accuracy and by ECE; of the seventh recipe there is nothing to read.
    # Then every study.
    assert told == [(step, 28) for step in range(1, 26)]
    costs = {
        row[0][0]: [text for text, _ in row[1:3]] for row in page.rows("Mean seconds over seeds")
    }
    assert costs["ce"] == ["10.5", "1.00"]


def test_addresses_of_servers_are_not_shown(page):
    assert "secret" not in page


def test_the_page_has_the_version_that_made_it(page):
    assert f"Made by calsweep {version('calsweep')}. The page is complete and" in page


def test_runs_are_named_as_far_as_they_are_known(source):
    study = next(iter(source.history.studies.values()))
    known = replace(source, runs={study.chosen: "run-of-ce"})
    rows = Page(render_report(known)).rows("runs behind")
    assert [row[3][0] for row in rows[:2]] == ["run-of-ce", "–"]
    assert study.chosen.startswith(rows[0][2][0])


def test_missing_predictions_are_named(source, tmp_path):
    text = render_report(replace(source, store=ArtifactStore(tmp_path)))
    assert "ce: no diagrams and no interval" in text
    assert "Test figures of the configurations" in text
    assert "Reliability" not in text


def test_one_damaged_artifact_does_not_cost_the_page(make_sweep, tmp_path):
    source = make_sweep(tmp_path)
    key = source.results[1].predictions[0]
    for path in source.store.path(ArtifactRef("evaluate", key)).glob("*.safetensors"):
        path.write_bytes(b"no tensors")
    text = render_report(source)
    assert "Test figures of the configurations" in text
    assert "mbls: no diagrams and no interval" in text
    assert "test.safetensors has 10 bytes" in text


def test_without_a_journal_the_results_alone_are_shown(source, tmp_path):
    folder = Storage(tmp_path).sweep("night")
    with pytest.raises(InputError) as caught:
        from_folder(folder)
    told = f"journal {folder.journal} cannot be read: No such file or directory"
    assert str(caught.value) == told
    alone = from_folder(folder, source.results)
    alone = replace(alone, store=source.store)
    text = render_report(alone)
    assert "The journal of this sweep is not in this storage" in text
    assert "Reliability" in text


def test_several_tasks_have_sections_and_overviews(make_sweep, tmp_path):
    source, told = make_sweep(tmp_path, ("first", "second")), []
    page = Page(render_report(source, progress=lambda *step: told.append(step)))
    assert told == [(step, 56) for step in range(1, 51)]
    rows = page.rows("on every task")
    assert [len(row) for row in rows] == [3] * 7
    assert rows[-1][1][0] == "failed"
    eces = {(r.recipe, r.task): [seed["ece"] for seed in r.test] for r in source.results}
    for (_, recipe), *cells in rows[:-1]:
        for (text, order), task in zip(cells, ("first", "second"), strict=True):
            mean = sum(eces[recipe, task]) / 2
            assert float(order) == pytest.approx(mean)
            assert text.startswith(f"{100 * mean:.2f} ±")
    accuracy = {row[0][1]: row[1][0] for row in page.rows("Test Acc % ↑ on every task")}
    assert all(float(text.split()[0]) > 30 for name, text in accuracy.items() if name != "acls")
    assert page.texts("h2")[:4] == ["What failed", "All tasks", "first", "second"]
    names = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    errors = [text for text in page.texts("figcaption") if "estimated true error" in text]
    assert len({text.rpartition("error ")[2] for text in errors}) == len(errors) == 2 * 6
    for caption, place in (("Mean seconds", 1), ("failed or did not end", 2), ("runs behind", 1)):
        assert {row[place][0] for row in page.rows(caption)} == {"first", "second"}


def test_a_baseline_must_be_a_recipe(source):
    with pytest.raises(InputError) as caught:
        render_report(replace(source, results=[*source.results] * 2), "resnet")
    names = ", ".join([*SHARPNESS, "acls"])
    assert str(caught.value) == f"baseline 'resnet' is not a recipe; there are: {names}"


def test_without_the_usual_baseline_there_are_no_differences(source):
    others = [result for result in source.results if result.recipe != "ce"]
    rows = Page(render_report(replace(source, results=others))).rows("Test figures")
    assert {len(row) for row in rows} == {4}


def test_a_sweep_without_studies_has_no_report(source):
    with pytest.raises(InputError) as caught:
        render_report(replace(source, results=[]))
    told = "sweep night has no study yet, so there is nothing to report"
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("place", "why"), [("file/report.html", "File exists"), ("folder", "Is a directory")]
)
def test_a_page_that_cannot_be_written_is_named(source, tmp_path, monkeypatch, place, why):
    monkeypatch.setattr("orchestrator.view._page.render_report", lambda *given: "a page")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    with pytest.raises(InputError) as caught:
        write_report(source, path)
    assert str(caught.value) == f"report {path} cannot be written: {why}"


def test_a_page_is_replaced_as_a_whole(source, tmp_path, monkeypatch):
    asked = []
    place = "orchestrator.view._page.render_report"
    monkeypatch.setattr(place, lambda *given: asked.append(given) or "after")
    path, kept = tmp_path / "report.html", tmp_path / "kept.html"
    path.write_text("before")
    kept.hardlink_to(path)  # Whoever had it open still reads what it was.
    assert write_report(source, path, "ls", print) == path
    assert (path.read_text(), kept.read_text()) == ("after", "before")
    assert asked == [(source, "ls", print)]


def test_the_command_writes_the_page(source, storage, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "night", "--storage", str(storage), "--out", "a/b/page.html"]) == 0
    assert capsys.readouterr().out == "wrote a/b/page.html\n"
    assert (tmp_path / "a/b/page.html").read_text(encoding="utf-8") == render_report(source)
    assert main(["report", "night", "--storage", str(storage), "--baseline", "x"]) == 2
    assert main(["report", "day", "--storage", str(storage)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("calsweep: ") for line in errors] == [True, True]
