"""The view in a real browser: what a person has done to a page stays when it is renewed."""

import pytest

from orchestrator.view.server import _pages

GREYED = '.figures figure:nth-child(2) .search_marks path[opacity^="0.1"]'


@pytest.fixture
def visit(browser, served):
    """Return a function that opens a page; afterwards nothing foreign ran or was asked for."""
    asked, said, opened = [], [], []
    base = served.url.partition("/?")[0]

    def open_page(path="/", width=1280, **options):
        found = browser.new_page(viewport={"width": width, "height": 800}, **options)
        found.on("request", lambda request: asked.append(request.url))
        found.on("console", lambda message: said.append(message.text))
        found.on("pageerror", lambda error: said.append(str(error)))
        found.clock.install()
        found.goto(served.url)
        found.goto(base + path)
        opened.append(found)
        return found

    yield open_page
    assert [tab.evaluate("window.stolen") for tab in opened] == [None] * len(opened)
    assert all(address.startswith((base, "data:,")) for address in asked)
    assert said == []
    for tab in opened:
        tab.close()


def renewed(page, text):
    """Let the time pass until the page looks again, and wait for a text."""
    page.clock.fast_forward(61_000)
    page.get_by_text(text).first.wait_for(timeout=10_000)


def test_a_renewed_page_keeps_the_state_of_its_user(visit, served) -> None:
    page = visit("/sweeps/night")
    served.writer.open("ce", trials=4)
    block = page.locator("[data-filtered]", has=page.locator("#study-table"))
    block.locator("input[type=search]").fill("m")
    block.locator("thead button", has_text="Best objective").click()
    page.evaluate("scrollTo(0, 500)")
    rows = block.locator("tbody tr:visible").all_inner_texts()
    (served.storage.sweep("night").path / "owner").write_text("a new owner")
    with served.storage.sweep("night").journal.open("ab") as stream:
        stream.write(again(served))
    renewed(page, "Run by a new owner")
    assert block.locator("input[type=search]").input_value() == "m"
    assert len(rows) == len(block.locator("tbody tr:visible").all_inner_texts()) < 7
    heading = block.locator("thead th", has_text="Best objective")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert page.evaluate("scrollY") == 500
    focused = page.evaluate("document.activeElement.textContent")
    assert focused.startswith("Best objective")


def again(served) -> bytes:
    """Return the line of a run that resumes the finished sweep."""
    from orchestrator.storage.events import SweepStarted, to_line

    return to_line(
        SweepStarted(time=1_900_000_000_000, sweep="night", sweep_id="5eed", spec={}, provenance={})
    )


def test_a_page_reports_that_its_server_is_away(visit, served) -> None:
    page = visit("/sweeps/night")
    page.route("**/sweeps/night", lambda route: route.fulfill(status=200, body="something else"))
    renewed(page, "calsweep ui does not answer")
    assert page.locator("#study-table").is_visible()
    page.unroute("**/sweeps/night")
    page.clock.fast_forward(61_000)
    page.locator("#away").wait_for(state="hidden", timeout=10_000)


def test_the_keyboard_goes_from_the_list_to_a_log(visit, served) -> None:
    page = visit("/")
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "night":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/sweeps/night")
    page.locator(f"a[href$='{served.failed.key}']").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/trials/*")
    page.locator(".log").focus()
    assert "epoch 1" in page.evaluate("document.activeElement.textContent")


def test_choices_of_rows_outlast_a_renewal_and_become_an_address(visit) -> None:
    page = visit("/sweeps/night/studies/0/rows")
    page.locator("select[name=show]").select_option("right")
    page.locator("main").evaluate("main => { main.dataset.old = 1 }")
    page.clock.fast_forward(61_000)
    page.wait_for_selector("main:not([data-old])")
    assert page.locator("select[name=show]").input_value() == "right"
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/rows?seed=0&bin=&class=&show=right&sort=row&with=*")
    page.locator("#bins a").last.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/rows?seed=0&bin=*&show=right&sort=row&with=*")
    page.locator("#rows tbody a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks/0/rows/*")


def test_two_sweeps_are_chosen_in_the_list(visit, served) -> None:
    page = visit("/")
    page.get_by_label("compare night").check()
    page.get_by_label("compare later").check()
    page.get_by_role("button", name="Compare the two chosen").click()
    assert page.locator("h1").inner_text() == "later and night"


def test_two_trials_are_chosen_and_their_configurations_compared(visit, served) -> None:
    page = visit("/sweeps/night")
    block = page.locator("[data-filtered]", has=page.locator("#study-table"))
    block.locator("input[type=search]").press("Enter")
    boxes = block.locator("input[name=trial]")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("button", name="Compare the configurations of the two chosen").click()
    page.wait_for_url("**/differences?trial=night*&trial=night*")
    assert page.locator("#settings").is_visible()
    assert page.locator("tr.differs").count() > 0


def test_without_scripts_a_page_loads_itself_again(visit) -> None:
    page = visit("/sweeps/night", java_script_enabled=False)
    assert page.locator("table:has(#table-1) tbody tr:visible").count() == 7
    assert 'http-equiv="refresh"' in page.content()


def test_a_trial_that_is_chosen_in_one_chart_shows_in_the_others(visit) -> None:
    page = visit("/sweeps/night/studies/3")
    charts = page.locator(".drawing")
    slice = charts.nth(1)
    slice.locator("svg").wait_for()
    dots = slice.locator(".search_marks path")
    assert dots.count() == 3
    dots.nth(1).hover()
    tip = page.locator("#vg-tooltip-element")
    tip.wait_for()
    assert tip.locator("td.value").all_inner_texts() == ["1", "0.525", "5.062"]
    dots.nth(1).click()
    other = page.locator(".drawing svg").nth(2).locator(".search_marks path")
    page.wait_for_function(
        "document.querySelectorAll('.search_marks path[opacity=\"1\"]').length < 12"
    )
    assert [each.get_attribute("opacity") for each in other.all()] == ["0.12", "1", "0.12"]
    assert slice.get_attribute("aria-label") == "validation ECE against ts.gamma"


def test_charts_are_drawn_again_when_a_page_is_renewed(visit, served) -> None:
    study = served.writer.open("ce", trials=4)
    for number in range(2):
        served.writer.trial(study, number, 0.1 + number / 10)
    page = visit("/sweeps/later/studies/0")
    page.locator(".trial_marks").first.wait_for()
    served.writer.trial(study, 2, 0.4)
    renewed(page, "3 trials")
    page.wait_for_function("document.querySelectorAll('.trial_marks').length > 0")


def test_the_zoom_of_a_chart_outlasts_a_renewal(visit) -> None:
    page = visit("/sweeps/night/studies/3")
    chart = page.locator(".drawing", has=page.locator("svg")).first
    chart.locator("svg .search_marks path").first.wait_for()
    axes = chart.locator("svg .role-axis-label text")
    whole = axes.all_text_contents()
    chart.locator("svg").hover()
    page.keyboard.down("Shift")
    page.mouse.wheel(0, -300)
    page.wait_for_timeout(300)
    zoomed = axes.all_text_contents()
    assert zoomed != whole
    page.locator("main").evaluate("main => { main.dataset.old = 1 }")
    page.clock.fast_forward(61_000)
    page.wait_for_selector("main:not([data-old])")
    chart.locator("svg .search_marks path").first.wait_for()
    assert axes.all_text_contents() == zoomed


def test_a_bar_of_the_reliability_diagram_leads_to_its_rows(visit) -> None:
    page = visit("/sweeps/night/studies/0/rows")
    bar = page.locator("#bins .drawing .bin_marks path").last
    bar.wait_for()
    bar.hover()
    page.locator("#vg-tooltip-element").wait_for()
    bar.click()
    page.wait_for_url("**/rows?seed=0&bin=*#rows")
    assert page.locator("#bins tr.chosen").count() == 1


def test_sorting_survives_a_reload_and_a_renewal(visit) -> None:
    page = visit("/sweeps/night")
    heading = page.locator("table:has(#study-table) thead th", has_text="Best objective")
    heading.locator("button").click()
    for again in (page.reload, lambda: page.clock.fast_forward(61_000)):
        page.locator("main").evaluate("main => { main.dataset.old = 1 }")
        again()
        page.wait_for_selector("main:not([data-old])")
        assert heading.get_attribute("aria-sort") == "ascending"


def test_a_click_sorts_the_trials_of_all_pages(visit, served, monkeypatch) -> None:
    monkeypatch.setattr(_pages, "LISTED", 2)
    study = served.writer.open("ce", trials=4)
    for number in range(4):
        served.writer.trial(study, number, 0.1 + number / 10)
    page = visit("/sweeps/later/trials?study=0&page=2")
    page.get_by_role("button", name="Objective").click()
    page.wait_for_url("**/trials?study=0&sort.trials=2-ascending")
    assert page.locator("tbody th").all_inner_texts() == ["0", "1"]


def test_typing_filters_the_trials_of_all_pages(visit, served, monkeypatch) -> None:
    monkeypatch.setattr(_pages, "LISTED", 2)
    study = served.writer.open("ce", trials=4)
    for number in range(6):
        served.writer.trial(study, number, 0.1, parameters={"way": "odd" if number % 2 else "even"})
    page = visit("/sweeps/later/trials?study=0&page=2")
    page.get_by_role("searchbox").press_sequentially("odd")
    page.clock.fast_forward(400)
    page.locator("output", has_text="3 of 6").wait_for()
    assert page.locator("tbody th").all_inner_texts() == ["5", "3"]
    assert page.evaluate("document.activeElement.value") == "odd"
    page.get_by_role("link", name="earlier").click()
    page.wait_for_url("**/trials?state=&study=0&filter.trials=odd&page=2")
    assert page.locator("tbody th").all_inner_texts() == ["1"]
    page.get_by_role("searchbox").fill("")
    page.clock.fast_forward(400)
    page.wait_for_url("**/trials?state=&study=0")
    assert page.get_by_role("searchbox").input_value() == ""


def test_a_note_that_is_being_written_outlasts_a_renewal_and_is_kept(visit, served) -> None:
    page = visit("/sweeps/night/studies/3", width=390)
    page.get_by_label("All users of this storage").fill("too slow\nsee <b>log</b>")
    (served.storage.sweep("night").path / "notes.json").write_text('{"sweep": "of another"}')
    page.clock.fast_forward(61_000)
    page.wait_for_load_state("networkidle")
    assert page.locator("textarea").input_value() == "too slow\nsee <b>log</b>"
    page.get_by_role("button", name="Save the note").click()
    page.wait_for_url("**/studies/3#notes")
    assert page.locator("textarea").input_value() == "too slow\nsee <b>log</b>"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.goto(page.url.partition("/studies")[0])
    notes = page.locator("table:has(#all-notes) tbody tr")
    assert [row.locator("td").inner_text() for row in notes.all()] == [
        *("of another", "too slow\nsee <b>log</b>")
    ]


@pytest.mark.full
@pytest.mark.parametrize("width", [1400, 390])
def test_charts_of_recipes_and_trials_fit_and_name_recipes(visit, served, width) -> None:
    writer = served.writer
    for recipe in ("ce", "ls"):
        study = writer.open(recipe, trials=4)
        for number in range(4):
            parameters = {"a": number, "b": 4 - number**2}
            key = writer.trial(study, number, 0.4 - number / 10, parameters=parameters)
        again = writer.begin(study, 0, role="seed", seed=1, configuration={recipe: {"margin": 3.5}})
        writer.epochs(again, count=3)
        writer.finish(again, val_ece=0.1)
        writer.close(study, key)
    page = visit("/sweeps/later", width=width)
    for path in ("/sweeps/later", "/sweeps/later/studies/1"):
        page.goto(page.url.partition("/sweeps")[0] + path)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.locator(".drawing:not(:has(svg))").first.wait_for(state="detached")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") == width
    page.goto(page.url.partition("/studies")[0])
    page.locator(".drawing").first.scroll_into_view_if_needed()
    names = page.locator(".drawing").first.locator(".role-legend-label text")
    names.first.wait_for()
    assert names.all_text_contents() == ["ce", "ls"]
