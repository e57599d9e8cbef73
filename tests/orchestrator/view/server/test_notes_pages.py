"""Notes through HTTP: who may write them, where they are shown, and that figures stay."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from orchestrator.storage.notes import read_notes
from orchestrator.view import from_folder, render_report
from orchestrator.view.server import Book, application
from tests.orchestrator.view.conftest import REASON
from tests.orchestrator.view.server.test_view import row, words

OWN = {"Origin": "http://127.0.0.1:8720"}


def test_a_note_is_written_on_a_sweep_a_study_and_a_trial(view) -> None:
    client, trial = view.client, f"/sweeps/night/trials/{view.failed.key}"
    journal = view.storage.sweep("night").journal.read_bytes()
    for place in ("/sweeps/night", "/sweeps/night/studies/0", trial):
        data = {"text": f"{REASON}\r\nabout {place}"}
        answer = client.post(f"{place}/note", data=data, headers=OWN, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{place}#notes")
        page = client.get(place).text
        assert f"about {place}" in words(page)
        assert "<script>window.stolen" not in page
    page = client.get("/sweeps/night").text
    report = render_report(from_folder(view.storage.sweep("night")))
    for shown in (page, report):
        for name, place in (("sweep", "/sweeps/night"), (view.failed.study, trial)):
            assert row(shown, name.partition("|")[0], "all-notes")
            assert f"about {place}" in words(shown)
    assert f'href="{trial}"' in page.partition("all-notes")[2]
    assert "<textarea" not in report
    assert view.storage.sweep("night").journal.read_bytes() == journal
    client.post("/sweeps/night/note", data={"text": ""}, headers=OWN)
    assert "sweep" not in read_notes(view.storage.sweep("night"))


def test_notes_of_two_tabs_are_both_kept_and_outlast_a_restart(view) -> None:
    places = ("/sweeps/night", "/sweeps/night/studies/0", "/sweeps/night/studies/1")
    with ThreadPoolExecutor(3) as tabs:
        done = tabs.map(
            lambda place: view.client.post(
                f"{place}/note", data={"text": f"of {place}"}, headers=OWN, follow_redirects=False
            ),
            places,
        )
    assert [answer.status_code for answer in done] == [303] * 3
    view.client.post("/sweeps/night/note", data={"text": "the later one"}, headers=OWN)
    again = TestClient(application(Book(view.storage), "t"), base_url="http://127.0.0.1:8720")
    again.get("/?token=t")
    shown = [words(again.get(place).text) for place in places]
    assert "the later one" in shown[0]
    assert "of /sweeps/night/studies/0" in shown[0]
    assert "of /sweeps/night/studies/1" in shown[2]


def test_only_pages_of_the_server_itself_change_notes(view) -> None:
    stranger = TestClient(view.client.app, base_url="http://127.0.0.1:8720")
    for client, headers in (
        (stranger, OWN),
        (view.client, {}),
        *((view.client, {"Origin": o}) for o in ("null", "http://127.0.0.1:9", "http://evil.com")),
    ):
        answer = client.post("/sweeps/night/note", data={"text": "x"}, headers=headers)
        assert (answer.status_code, answer.text.count("\n")) == (403, 0)
    assert read_notes(view.storage.sweep("night")) == {}
    assert view.client.get("/sweeps/night/note").status_code == 405


@pytest.mark.parametrize(
    ("place", "size", "status"),
    [
        *(("/sweeps/none", 1, 404), ("/sweeps/night/studies/99", 1, 404)),
        *(("/sweeps/night/trials/none", 1, 404), ("/sweeps/night", 10_001, 400)),
        ("/sweeps/night", 200_000, 413),
    ],
)
def test_a_note_that_cannot_be_kept_is_refused_in_one_line(view, place, size, status) -> None:
    answer = view.client.post(f"{place}/note", data={"text": "x" * size}, headers=OWN)
    assert (answer.status_code, answer.text.count('class="missing">')) == (status, 1)
    assert read_notes(view.storage.sweep("night")) == {}


def test_damaged_notes_are_named_and_the_page_is_shown(view) -> None:
    (view.storage.sweep("night").path / "notes.json").write_text("{")
    page = view.client.get("/sweeps/night").text
    assert "notes.json is damaged: " in words(page)
    assert "<textarea" not in page
    assert row(page, "mbls", "table-1")


def test_pages_of_a_packed_file_have_no_form_for_notes(view) -> None:
    view.storage.lacks = "no data"
    client = TestClient(application(Book(view.storage), "t"), base_url="http://127.0.0.1:8720")
    client.get("/?token=t")
    assert "<textarea" not in client.get("/sweeps/night").text
    assert "<textarea" not in client.get("/sweeps/night/studies/0").text
    assert client.post("/sweeps/night/note", data={"text": "x"}, headers=OWN).status_code == 404
