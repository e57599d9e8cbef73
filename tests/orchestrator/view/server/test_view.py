"""The view of a storage through HTTP: who may see it, what it shows, and that it only reads."""

import os
import re
import shutil
import time
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urljoin

import pytest
from starlette.testclient import TestClient

from orchestrator.storage.storage import Storage
from orchestrator.view import from_folder, render_report
from orchestrator.view.server import Book, _pages, application
from orchestrator.view.server._details import Details
from tests.charts import charts_of
from tests.orchestrator.view.conftest import REASON, TASK
from trainables.common.errors import InputError

POLICY = "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:;"


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def links(self) -> list[str]:
        return [str(a["href"]) for tag, a in self.found if tag == "a"]


def words(page: str) -> str:
    return " ".join(Elements(page).text.split())


def row(page: str, name: str, table: str = "") -> list[str]:
    """Return the texts of the cells of the row whose first one begins with a name.

    It is the first such row behind the caption with the id ``table``.
    """
    page = page.partition(f'<caption id="{table}">')[2] if table else page
    for line in re.findall(r"(?s)<tr data-item[^>]*>(.*?)</tr>", page):
        cells = [words(cell) for cell in re.findall(r"(?s)<t[hd].*?</t[hd]>", line)]
        if cells[0].startswith(name):
            return cells
    raise AssertionError(f"no row {name} in {words(page)}")


def everything(client: TestClient, start: str, gone: str = " ") -> dict[str, str]:
    """Return every page that links lead to, by its address, but for those with ``gone`` in it.

    Of the test rows of a study, the first page is enough.
    """
    pages: dict[str, str] = {}
    waiting = [start]
    while waiting:
        address = waiting.pop()
        answer = client.get(address)
        assert answer.status_code == 200, address
        pages[address] = answer.text
        found = (urljoin(address, link) for link in Elements(answer.text).links())
        found = (link for link in found if "?seed=" not in link and gone not in link)
        waiting += [link for link in found if link not in pages and "#" not in link]
    return pages


def test_nothing_is_seen_without_the_token(view) -> None:
    stranger = TestClient(view.client.app, base_url="http://127.0.0.1:8720")
    trial = f"/sweeps/night/trials/{view.failed.key}"
    places = ["/", "/sweeps/night", trial, "/style.css", "/nowhere", "/?token=guess", "/?token="]
    for place in places:
        answer = stranger.get(place)
        assert (answer.status_code, "night" in answer.text) == (403, False), place
        assert answer.headers["content-security-policy"].startswith(POLICY)
    answer = stranger.get("/sweeps/night?token=a-token", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sweeps/night")
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("calsweep-8720=a-token;")
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert stranger.get("/sweeps/night").status_code == 200
    own = {"Origin": "http://127.0.0.1:8720"}
    assert stranger.post("/sweeps/night", headers=own).status_code == 405


@pytest.mark.full
def test_pages_run_and_fetch_nothing_of_others(view) -> None:
    pages = everything(view.client, "/")
    assert len(pages) > 40
    for address, page in pages.items():
        elements = Elements(page)
        scripts = [a for tag, a in elements.found if tag == "script"]
        run = [each for each in scripts if each.get("type") != "application/json"]
        own = {"src": "/script.js", "id": "vega", "data-src": "/vega.js", "defer": None}
        assert run == [own], address
        assert not [a for _, a in elements.found if "style" in a], address
        assert not [n for _, a in elements.found for n in a if n.startswith("on")], address
        assert not [a for tag, a in elements.found if tag in ("img", "iframe", "base")], address
        links = [str(a[n]) for _, a in elements.found for n in ("src", "href", "action") if n in a]
        assert all(re.match(r"/(?!/)|[#?]|data:,$", link) for link in links), address
    answer = view.client.get("/sweeps/night")
    assert answer.headers["content-security-policy"].startswith(POLICY)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert TASK in Elements(answer.text).text


def test_a_finished_sweep_shows_its_table_and_failures(view) -> None:
    page = view.client.get("/sweeps/night").text
    assert "finished · started" in words(page)
    assert re.search(r"Acc % ↑ ECE % ↓", words(page))
    failed = row(page, view.failed.study.partition("|")[2], "failures")
    assert failed[1:3] == [" ".join(REASON.split()), "trial 2"]
    assert f'href="/sweeps/night/trials/{view.failed.key}"' in page
    trial = view.client.get(f"/sweeps/night/trials/{view.failed.key}").text
    assert f"epoch 1 {' '.join(REASON.split())}" in words(trial)
    assert [each["description"] for each in charts_of(trial)] == [
        "validation ECE % by epoch",
        "validation Acc % by epoch",
        "retention probability q by epoch",
    ]


def test_a_growing_sweep_is_read_on(view) -> None:
    client, writer = view.client, view.writer
    assert "No study has been opened yet." in client.get("/sweeps/later").text
    study = writer.open("ce", trials=4)
    first = writer.begin(study, 0)
    writer.epochs(first, count=3)
    with view.storage.sweep("later").owned():
        page = client.get("/sweeps/later").text
        assert row(page, "ce", "study-table")[1:5] == ["running", "0/4", "1", "0"]
        assert row(page, f"{study}|0")[1:4] == ["not placed", "–", "3"]
        assert 'data-seconds="5"' in page
    assert row(client.get("/sweeps/later/trials").text, "ce|0")[1] == "interrupted"
    writer.finish(first, val_ece=0.021, val_acc=0.9)
    writer.score(first, 0.123)
    writer.trial(study, 1, 0.5)
    page = client.get("/sweeps/later").text
    assert row(page, "ce", "study-table")[2:8] == ["2/4", "0", "0", "12.30", "90.00", "2.10"]
    assert "died · started" in words(page)
    assert row(client.get("/").text, "later")[1:3] == ["died", "2/4"]
    described = [
        each["description"] for each in charts_of(client.get("/sweeps/later/studies/0").text)
    ]
    assert described == [
        "validation ECE % by trial, and the best so far",
        *("validation ECE % by epoch", "validation Acc % by epoch"),
    ]
    assert words(client.get("/sweeps/later/trials?state=finished").text).startswith(
        "2 finished trials"
    )


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("", ["4", "3", "2", "1", "0"]),
        ("2-ascending", ["2", "0", "3", "4", "1"]),
        ("2-descending", ["3", "0", "2", "4", "1"]),
        ("0-ascending", ["0", "1", "2", "3", "4"]),
        ("1-descending", ["4", "3", "2", "0", "1"]),
    ],
)
def test_trials_are_sorted_over_all_pages(view, monkeypatch, order, expected) -> None:
    monkeypatch.setattr(_pages, "LISTED", 3)
    study = view.writer.open("ce", trials=4)
    for number, objective in enumerate((0.3, None, 0.1, 0.4)):
        if objective is not None:
            view.writer.trial(study, number, objective)
        else:
            view.writer.finish(view.writer.begin(study, number), status="failed")
    view.writer.begin(study, 4)
    pages = [
        view.client.get(f"/sweeps/later/trials?study=0&sort.trials={order}&page={page}").text
        for page in (1, 2)
    ]
    rows = [re.findall(r"(?s)<tr data-item>\s*<th.*?</th>", page) for page in pages]
    assert [words(each) for page in rows for each in page] == expected
    ending = f"&sort.trials={order}" if order else ""
    first, second = (Elements(page).links() for page in pages)
    assert f"?state=&study=0{ending}&page=2" in first
    assert f"?state=failed&study=0{ending}" in second
    assert all("data-served" in page for page in pages)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("GAMMA 0.5", "753"), ("interrupted", "8"), ("out of", "1"), ("40.00", "3"), ("5 failed", "")],
)
def test_trials_are_filtered_over_all_pages(view, monkeypatch, text, expected) -> None:
    monkeypatch.setattr(_pages, "LISTED", 2)
    study = view.writer.open("ce", trials=4)
    view.writer.finish(view.writer.begin(study, 1), status="failed", reason="Out of memory")
    for number in range(2, 8):
        parameters = {"gamma": 0.5 if number % 2 else 0.25}
        view.writer.trial(study, number, 0.1 + number / 10, parameters=parameters)
    view.writer.begin(study, 8)
    address, found = f"/sweeps/later/trials?study=0&filter.trials={text}", ""
    while address:
        page = view.client.get(address).text
        rows = re.findall(r"(?s)<tr data-item>\s*<th.*?</th>", page)
        found += "".join(words(each) for each in rows)
        assert f'data-served="{len(expected)} of 8"' in page
        following = re.search(r'href="([^"]+)" rel="next"', page)
        address = urljoin(address, unescape(following[1])) if following else ""
    assert found == expected
    assert f"?state=failed&study=0&filter.trials={quote(text)}" in Elements(page).links()


def test_a_replaced_journal_is_read_again(view, journal_writer) -> None:
    assert row(view.client.get("/").text, "night")[2] == "39/81"
    shutil.rmtree(view.storage.sweep("night").path)
    assert "This storage has no sweep" in view.client.get("/sweeps/night").text
    writer = journal_writer(view.storage.sweep("night").path, "night", sweep_id="0bee")
    writer.start()
    writer.trial(writer.open("ls", trials=3), 0, 0.25)
    assert row(view.client.get("/").text, "night")[2] == "1/3"


def test_a_damaged_journal_is_named_and_others_are_shown(view) -> None:
    journal = view.storage.sweep("later").journal
    view.writer.trial(view.writer.open("ce"), 0, 0.5)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], lines[3].replace(b"t", b"x"), *lines[4:]]))
    assert row(view.client.get("/").text, "later damaged")
    page = view.client.get("/sweeps/later").text
    assert f"journal {journal}, line 4: damaged" in words(page)
    assert view.client.get("/sweeps/night").status_code == 200


def test_two_sweeps_are_compared(view, journal_writer, make_sweep, tmp_path) -> None:
    other = make_sweep(tmp_path / "other", tasks=(TASK,))
    assert other.name == "night"
    shutil.copytree(tmp_path / "other/sweeps/night", view.storage.sweep("second").path)
    page = view.client.get("/compare?sweep=night&sweep=second").text
    ours = row(page, "mbls+macal")
    assert len(ours) == 10
    assert [ours[1], ours[3]] == [ours[2], "+0.00"]
    lonely = view.client.get("/compare?sweep=night&sweep=later").text
    (shown,) = re.findall(r"(?s)<main[^>]*>(.*?)</main>", lonely)
    assert words(shown) == "The sweeps share no task."
    for wrong in ("sweep=night", "sweep=night&sweep=night", "sweep=night&sweep=none", ""):
        assert view.client.get(f"/compare?{wrong}").status_code == 404


def test_compared_figures_are_those_of_the_tables(view) -> None:
    shutil.copytree(view.storage.sweep("night").path, view.storage.sweep("other").path)
    client = view.client
    page = client.get("/compare?sweep=night&sweep=other").text
    for recipe in ("ce", "mbls", "mbls+macal"):
        compared = row(page, recipe)
        for name in ("night", "other"):
            table = row(client.get(f"/sweeps/{name}?metrics=acc,ece,nll").text, recipe, "table-1")
            # Once intervals are computed, a column with the change follows each figure.
            figures = [cell.split()[0] for cell in table[1:] if cell[:1].isdigit()][:3]
            assert [compared[1 + 3 * n + (name == "other")].split()[0] for n in range(3)] == figures
        assert {compared[3], compared[6], compared[9]} <= {"+0.00", "+0.0000"}


def test_a_sweep_that_dies_and_is_resumed_while_its_page_is_open(view, journal_writer) -> None:
    client, writer = view.client, view.writer
    study = writer.open("ce", trials=2)
    writer.begin(study, 0)
    folder = view.storage.sweep("later")

    def page() -> str:
        return words(client.get("/sweeps/later").text)

    with folder.owned():
        assert row(client.get("/sweeps/later").text, "ce", "study-table")[1] == "running"
        assert re.search(r'data-seconds="(\d+)"', client.get("/sweeps/later").text)[1] == "5"
    assert "interrupted" in page()
    assert "resume it with: calsweep run --resume later" in page()
    with folder.owned():
        writer.start(spec={"seeds": [0]})
        key = writer.trial(study, 0, 0.125)
        writer.close(study, key)
        assert "interrupted" not in page()
        assert row(client.get("/sweeps/later").text, "ce", "study-table")[0].startswith("ce")
        writer.evaluate(key, study, test_acc=0.9, test_ece=0.04)
        writer.end()
    assert "resume it with" not in page()
    assert row(client.get("/sweeps/later").text, "ce", "table-1")[1] == "90.00"


def test_a_report_without_a_finished_trial_shows_its_failure(view) -> None:
    view.writer.finish(view.writer.begin(view.writer.open("ce"), 0), status="failed", reason=REASON)
    view.writer.end("failed")
    page = render_report(from_folder(view.storage.sweep("later")))
    assert "No recipe has a test figure yet." in words(page)
    assert row(page, "ce", "study-table")
    assert "<script>window.stolen" not in page
    assert REASON in words(page)


def test_slow_parts_of_many_open_tabs_are_computed_once(monkeypatch) -> None:
    details, asked = Details(frozen=False), []
    monkeypatch.setattr(details._aside, "call", lambda function, tab: asked.append(tab) or tab)
    for _ in range(2):
        for tab in range(1, 21):
            while details._later((tab,), str, len, tab) is None:
                time.sleep(0.001)
    assert asked == list(range(1, 21))


@pytest.mark.parametrize("place", ["/sweeps/night/trials", "/sweeps/night/studies/3/rows"])
def test_a_page_that_does_not_exist_links_to_the_first_one(view, place: str) -> None:
    choices = "state=finished&show=right"
    for page in ("0", "abc", "-1", "99"):
        answer = view.client.get(f"{place}?{choices}&page={page}")
        assert (answer.status_code, answer.text.count('class="missing">')) == (404, 1), page
        assert f"page={page}" in words(answer.text).replace("'", "")
        *_, first = Elements(answer.text).links()
        found = view.client.get(urljoin(place, first))
        assert (found.status_code, found.url.query.decode()) == (200, choices)
    assert view.client.get(f"{place}?page=").status_code == 200


@pytest.mark.full
@pytest.mark.parametrize(
    "place",
    [
        *("/sweeps/none", "/sweeps/..%2Fnight", "/sweeps/night/studies/99", "/sweeps/night/report"),
        *("/sweeps/night/trials/none", "/sweeps/night/trials?state=odd", "/sweeps/none/report"),
        *("/sweeps/night/trials?study=-1", "/sweeps/night/trials?sort.trials=9-ascending", "/else"),
    ],
)
def test_a_missing_page_is_one_line(view, place: str) -> None:
    answer = view.client.get(place)
    assert answer.status_code == 404
    assert answer.text.count('class="missing">') == 1 or "Not Found" in answer.text


def test_the_page_of_a_sweep_that_has_ended_gets_the_slow_parts_of_its_report(view) -> None:
    page = view.client.get("/sweeps/night").text
    assert "are being computed; this page shows them when they are ready." in words(page)
    assert 'data-seconds="5"' in page
    deadline = time.monotonic() + 60
    while "being computed" in page:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        page = view.client.get("/sweeps/night").text
    assert 'data-seconds="60"' in page
    report = render_report(from_folder(view.storage.sweep("night")))
    ours, theirs = (re.findall(r"<h[23]>(.*?)</h[23]>", each) for each in (page, report))
    searched = [each for each in theirs if each in ours or each in ("Runs", "Sweep file")]
    assert [each for each in ours if each not in ("Running now", "Notes")] == searched
    assert row(page, "mbls", "table-1") == row(report, "mbls", "table-1")
    assert "Importance" in view.client.get("/sweeps/night/studies/2").text


def test_slow_parts_are_computed_again_when_a_sweep_has_more_trials(view, monkeypatch) -> None:
    monkeypatch.setattr("orchestrator.view.server._details.details", lambda *given: {"studies": []})
    study, deadline = view.writer.open("ce", trials=4), time.monotonic() + 60
    for number in range(2):
        view.writer.trial(study, number, 0.5)
        page = view.client.get("/sweeps/later").text
        assert "being computed" in page
        while "being computed" in page:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            page = view.client.get("/sweeps/later").text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("error", "text"),
    [(InputError("no such data"), "no such data."), (KeyError("a"), "could not be computed")],
)
def test_slow_parts_that_fail_are_named_on_the_page(view, monkeypatch, error, text) -> None:
    def fail(*given):
        raise error

    monkeypatch.setattr("orchestrator.view.server._details.details", fail)
    view.client.get("/sweeps/night")
    deadline = time.monotonic() + 60
    while text not in view.client.get("/sweeps/night").text:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_key_that_is_a_path_reads_no_file(view) -> None:
    secret = view.storage.folder / "secret.log"
    secret.write_text("treasure")
    view.writer.begin(view.writer.open("ce"), 0, key="../../../secret")
    page = view.client.get("/sweeps/later/trials").text
    (link,) = [link for link in Elements(page).links() if "secret" in link]
    answer = view.client.get(link)
    assert (answer.status_code, "treasure" in answer.text) == (404, False)


def test_only_the_end_of_a_long_log_is_shown(view) -> None:
    log = view.storage.sweep("night").logs / f"{view.failed.key}.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    page = view.client.get(f"/sweeps/night/trials/{view.failed.key}").text
    assert "line 99999" in page
    assert len(page) < 150_000


@pytest.mark.full
def test_a_copied_storage_is_shown_without_writing(view, tmp_path) -> None:
    copy = tmp_path / "laptop"
    shutil.copytree(view.storage.folder / "sweeps", copy / "sweeps")
    before = {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))}
    client = TestClient(application(Book(Storage(copy)), "t"), base_url="http://127.0.0.1:8720")
    client.get("/?token=t")
    pages = everything(client, "/sweeps/night", gone="/rows")
    assert "finished" in pages["/sweeps/night"]
    lost = client.get("/sweeps/night/studies/0/rows")
    assert (lost.status_code, lost.text.count('class="missing">')) == (404, 1)
    assert "`calsweep run --resume night --storage" in lost.text
    assert {path: path.stat().st_mtime_ns for path in sorted(copy.rglob("*"))} == before


def test_files_outside_the_storage_are_not_served(view, tmp_path_factory):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("a secret")
    folder = view.storage.sweep("night")
    log = folder.logs / f"{view.failed.key}.log"
    log.unlink()
    log.symlink_to(secret)
    page = view.client.get(f"/sweeps/night/trials/{view.failed.key}").text
    assert "a secret" not in page
    assert "The log is not shown: it leads to a place outside " in page


def test_a_pipe_is_not_opened(view):
    log = view.storage.sweep("night").logs / f"{view.failed.key}.log"
    log.unlink()
    os.mkfifo(log)
    page = view.client.get(f"/sweeps/night/trials/{view.failed.key}").text
    assert "The log is not shown: it is not a regular file." in page


def test_a_sweep_that_leads_out_of_the_storage_is_left_out_by_name(view, tmp_path_factory):
    away = tmp_path_factory.mktemp("away") / "sweep"
    shutil.copytree(view.storage.sweep("night").path, away)
    (view.storage.folder / "sweeps/linked").symlink_to(away)
    (view.storage.folder / "sweeps/stream").mkdir()
    os.mkfifo(view.storage.folder / "sweeps/stream/journal.jsonl")
    book = Book(view.storage)
    assert {"linked", "stream"}.isdisjoint(book.sweeps())
    assert book.outside == ["linked", "stream"]
    assert view.client.get("/sweeps/linked").status_code == 404


@pytest.mark.parametrize("name", ["owner", "control", "run.lock"])
def test_a_sweep_whose_state_is_a_link_or_a_pipe_is_left_out(view, tmp_path_factory, name):
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("a secret")
    file = view.storage.sweep("later").path / name
    file.unlink(missing_ok=True)
    file.symlink_to(secret)
    assert "later" not in words(view.client.get("/").text)
    assert view.client.get("/sweeps/later").status_code == 404
    file.unlink()
    os.mkfifo(file)
    assert Book(view.storage).outside == ["later"]
    file.unlink()
    assert view.client.get("/sweeps/later").status_code == 200


def test_cells_of_test_figures_say_the_state_of_their_study(view) -> None:
    client, writer = view.client, view.writer
    writer.start(spec={"seeds": [0, 1]})
    ce, ls = writer.open("ce", trials=2), writer.open("ls", trials=4)
    writer.open("ls+ts", upstream=ls)
    with view.storage.sweep("later").owned():

        def cells(recipe):
            return row(client.get("/sweeps/later").text, recipe, "table-1")

        assert cells("ce") == ["ce waiting for its first trial", "waiting", "waiting"]
        assert cells("ls+ts") == [f"ls+ts waiting for the choice of {ls}", "waiting", "waiting"]
        keys = [writer.trial(ce, 0, 0.1), writer.trial(ce, 0, 0.1, role="seed", seed=1)]
        assert cells("ce") == ["ce running, 2 of 3 trials ended", "running", "running"]
        writer.close(ce, keys[0])
        nothing = "0 of 2 seeds measured on test data"
        assert cells("ce") == [f"ce {nothing}", "not measured", "not measured"]
        writer.evaluate(keys[0], ce, test_acc=0.9, test_ece=0.04)
        assert cells("ce") == ["ce 1 of 2 seeds measured on test data", "90.00", "4.00"]
        writer.evaluate(keys[1], ce, seed=1, test_acc=0.9, test_ece=0.06)
        assert cells("ce") == ["ce baseline", "90.00 ±0.00", "5.00 ±1.41"]
        page = client.get("/sweeps/later").text
        assert row(page, "ce", "study-time")[1:3] == ["3 s", "0"]


def test_two_configurations_are_compared_at_an_address(view) -> None:
    client, writer = view.client, view.writer
    ce, ls = writer.open("ce"), writer.open("ls")
    first = writer.trial(ce, 0, 0.125, configuration={"ce": {"lr": 0.1, "wd": 5e-4}, "a": {"x": 1}})
    second = writer.trial(ls, 0, 0.25, seed=1, configuration={"ce": {"lr": 0.2, "wd": 5e-4}})
    page = client.get(f"/differences?trial=later/{first}&trial=later/{second}").text
    assert "4 of 8 settings differ." in words(page)
    assert row(page, "ce.lr", "settings") == ["ce.lr", "0.1", "0.2", "differ"]
    assert row(page, "ce.wd", "settings") == ["ce.wd", "0.0005", "0.0005", "same"]
    assert row(page, "a.x", "settings") == ["a.x", "1", "–", "differ"]
    assert re.findall(r'<tr data-item class="differs">\s*<th[^>]*><span>(.*?)<', page) == [
        *("recipe", "ce.lr", "a.x", "seed")
    ]
    assert row(page, "objective", "trial-figures") == ["objective", "0.125", "0.25", "+0.1250"]
    same = client.get(f"/differences?trial=later/{first}&trial=later/{first}").text
    assert "0 of 8 settings differ." in words(same)
    assert 'class="differs"' not in same
    boxes = re.findall(r'name="trial" value="(.*?)"', client.get("/sweeps/later").text)
    assert boxes == [f"later/{first}", f"later/{second}"]
    for wrong in ("", f"?trial=later/{first}", "?trial=later/a&trial=later/b", "?trial=x&trial=y"):
        answer = client.get(f"/differences{wrong}")
        assert (answer.status_code, answer.text.count('class="missing">')) == (404, 1), wrong
