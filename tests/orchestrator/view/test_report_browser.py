"""The report in a real browser: sorting, filtering, width, paper, and that nothing else runs."""

import pytest

ALL_DRAWN = "[...document.querySelectorAll('.drawing')].every((one) => one.querySelector('svg'))"


@pytest.fixture(scope="module")
def address(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(browser, address):
    """Return a function that opens the page; afterwards it must have asked and said nothing."""
    asked, said, opened = [], [], []

    def open_page(width=1280, **options):
        found = browser.new_page(viewport={"width": width, "height": 800}, **options)
        found.on("request", lambda request: asked.append(request.url))
        found.on("console", lambda message: said.append(message.text))
        found.on("pageerror", lambda error: said.append(str(error)))
        found.goto(address)
        opened.append(found)
        return found

    yield open_page
    assert [tab.evaluate("window.stolen") for tab in opened] == [None] * len(opened)
    assert {each.partition("?")[0] for each in asked} == {address}
    assert said == []
    for tab in opened:
        tab.close()


def names(table):
    return [
        row.inner_text().split("\n")[0].split()[0] for row in table.locator("th[scope=row]").all()
    ]


def style(page, selector, name):
    return page.locator(selector).first.evaluate(f"(one) => getComputedStyle(one).{name}")


def test_the_keyboard_reaches_headings_and_tables(visit):
    page = visit()
    table = page.locator("table:has(#table-1)")
    before = names(table)
    table.locator("thead button").first.focus()
    page.keyboard.press("Enter")
    assert names(table) == sorted(before, key=str.lower) != before
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "Acc % ↑"
    assert page.locator(".scroll[tabindex='0']").count() == page.locator("table").count() + 1


def test_sorting_and_filtering_are_in_the_address_and_survive_a_reload(visit):
    page = visit()
    block = page.locator("[data-filtered]", has=page.locator("#study-table"))
    block.locator("thead button", has_text="Best objective").click()
    block.locator("thead button", has_text="Best objective").click()
    block.locator("input").fill("m")
    shown = names(block.locator("tbody tr:visible"))
    assert page.url.endswith("?sort.study-table=5-descending&filter.study-table=m")
    page.reload()
    assert names(block.locator("tbody tr:visible")) == shown
    assert block.locator("output").inner_text() == f"{len(shown)} of 7"
    heading = block.locator("thead th", has_text="Best objective")
    assert heading.get_attribute("aria-sort") == "descending"
    block.locator("input").fill("")
    assert page.url.endswith("?sort.study-table=5-descending")


def test_a_narrow_screen_does_not_scroll_sideways(visit):
    page = visit(360)
    page.get_by_role("button", name="Open all studies").click()
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # Draws all charts.
    page.wait_for_function(ALL_DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    wide = "[...document.querySelectorAll('.drawing svg')].filter((one) => one.clientWidth > 330)"
    assert page.evaluate(f"{wide}.map((one) => one.closest('figure').className)") == []
    for scheme, white in (("light", True), ("dark", False)):
        page.emulate_media(color_scheme=scheme)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == white


def test_nothing_scrolls_on_paper(visit):
    page = visit()
    assert style(page, "td[data-kind=number]", "textAlign") == "right"
    assert style(page, ".scroll", "overflowX") == "auto"
    page.emulate_media(media="print")
    assert style(page, ".scroll", "overflowX") == "visible"
    assert page.locator(".controls:visible, nav:visible").count() == 0
    assert page.locator("details").count() == 8


@pytest.mark.parametrize("width", [1400, 390])
def test_links_within_the_page_land_and_paper_has_all_sections(visit, width):
    """Sections far from the screen have no layout until they come near it."""
    page = visit(width)
    for name in ("provenance", "search"):
        page.locator(f"nav a[href='#{name}']").click()
        page.wait_for_timeout(100)
        top = page.locator(f"#{name}").evaluate("(one) => one.getBoundingClientRect().top")
        left = page.evaluate("document.documentElement.scrollHeight - innerHeight - scrollY")
        assert -1 <= top <= 50 or left < 1
        assert page.locator(f"#{name} h2").is_visible()
    page.emulate_media(media="print")
    sections = page.locator("main > section").all()
    styles = {one.evaluate("(one) => getComputedStyle(one).contentVisibility") for one in sections}
    assert (len(sections) > 4, styles) == (True, {"visible"})


def test_charts_are_drawn_near_the_screen_and_all_of_them_on_paper(visit):
    page = visit()
    assert page.locator(".drawing svg").count() == 0
    page.get_by_role("heading", name="Reliability", exact=True).scroll_into_view_if_needed()
    page.locator(".drawing svg").first.wait_for()
    assert 0 < page.locator(".drawing svg").count() < page.locator(".drawing").count()
    # Paper does not wait: everything is drawn within the event.
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(ALL_DRAWN)
    dot = page.locator(".panels .bin_marks path").first
    dot.scroll_into_view_if_needed()
    dot.hover()
    page.locator("#vg-tooltip-element").wait_for()
    assert page.locator("#vg-tooltip-element .key").all_inner_texts() == [
        "mean confidence",
        "accuracy",
        "rows",
        "share of rows",
    ]


def test_a_report_can_be_read_without_scripts(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("table:has(#table-1) tbody tr:visible").count() == 7
    assert page.locator(".controls:visible").count() == 0
