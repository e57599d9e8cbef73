"""The report in a real browser: sorting, filtering, width, paper, and that nothing else runs."""

from __future__ import annotations

import pytest


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
    assert set(asked) == {address}
    assert said == []
    for tab in opened:
        tab.close()


def names(table):
    return [row.inner_text().split("\n")[0].split()[0] for row in table.locator("tbody th").all()]


def style(page, selector, name):
    return page.locator(selector).first.evaluate(f"(one) => getComputedStyle(one).{name}")


def test_the_keyboard_reaches_headings_and_tables(visit):
    page = visit()
    table = page.locator("table").first
    before = names(table)
    table.locator("thead button").first.focus()
    page.keyboard.press("Enter")
    assert names(table) == sorted(before, key=str.lower) != before
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == "Acc % ↑"
    assert page.locator(".scroll[tabindex='0']").count() == page.locator("table").count() + 1


def test_a_narrow_screen_does_not_scroll_sideways(visit):
    page = visit(360)
    page.get_by_role("button", name="Open all studies").click()
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.locator("figure.narrow").is_visible()
    assert not page.locator("figure.wide").is_visible()
    assert page.locator("details:not([open])").count() == 0
    for scheme, white in (("light", True), ("dark", False)):
        page.emulate_media(color_scheme=scheme)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == white


def test_nothing_scrolls_on_paper(visit):
    page = visit()
    assert page.locator("figure.wide").is_visible()
    assert not page.locator("figure.narrow").is_visible()
    assert style(page, "td[data-kind=number]", "textAlign") == "right"
    assert style(page, ".scroll", "overflowX") == "auto"
    page.emulate_media(media="print")
    assert style(page, ".scroll", "overflowX") == "visible"
    assert page.locator(".controls:visible, nav:visible").count() == 0
    assert page.locator("details").count() == 8


def test_it_can_be_read_without_scripts(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("table").first.locator("tbody tr:visible").count() == 7
    assert page.locator(".controls:visible").count() == 0
