"""The nightly page in a real browser, as a phone shows it."""

import pytest

from orchestrator.nightly.page import Block, to_html

REASON = "no trial finished: the loss is not a number " * 3
LONG = tuple(f"metric_{number}_of_many" for number in range(12))


@pytest.mark.full
def test_a_phone_shows_the_reason_of_a_failure_without_scrolling_sideways(browser, tmp_path):
    failed = ("digits/convnet/digits", "mbls+macal", f"failed: {REASON}")
    whole = ("digits/convnet/digits", "ce", *["0.1234"] * len(LONG))
    figures = (("task", "recipe", *LONG), failed, whole)
    blocks = [Block(f"nightly digits, 2026-11-21: {REASON}"), Block("Figures", table=figures)]
    path = tmp_path / "report.html"
    path.write_text(to_html(blocks), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 27)")):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    reason = page.locator("th small", has_text="the loss is not a number").bounding_box()
    assert reason["x"] >= 0
    assert reason["x"] + reason["width"] <= 390
    assert (said, asked) == ([], [path.as_uri()])
    page.close()
