"""Every page in a real browser: two widths, light and dark, the keyboard alone, axe-core."""

import time
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image

from docs.render_demo_pages import PICTURES, SIZE, draw
from orchestrator.nightly.page import Block, to_html
from tests.orchestrator.view.conftest import REASON
from tests.orchestrator.view.server.conftest import served_of, viewed

SERVED = {
    "sweeps": "",
    "sweep": "sweeps/night",
    "running": "sweeps/later",
    "study": "sweeps/night/studies/3",
    "trials": "sweeps/night/trials?state=failed",
    "trial": "sweeps/night/trials/{failed}",
    "rows": "sweeps/night/studies/3/rows?show=wrong",
    "row": "sweeps/night/tasks/0/rows/3",
    "compare": "compare?sweep=night&sweep=later",
    "differences": "differences?trial=night/{failed}&trial=night/{failed}",
    "problem": "sweeps/night/studies/99",
}
DOCS = Path(__file__).parents[4] / "docs"
FROZEN = ("report", "nightly")
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
MISSING = "Failed to load resource: the server responded with a status of 404 (Not Found)"
DRAWN = ("study", "trial", "rows")
# The rules of axe-core that depend on the theme and the width.
SEEN = ("color-contrast", "scrollable-region-focusable", "target-size")
# A part that scrolls sideways may have wider content.
WIDE = """
[...document.body.querySelectorAll('*')].filter((one) => {
  const { width, right } = one.getBoundingClientRect();
  if (!width || right <= innerWidth + 0.5) return false;
  for (let up = one.parentElement; up !== document.body; up = up.parentElement) {
    if (/auto|scroll/.test(getComputedStyle(up).overflowX)) return false;
  }
  return true;
}).map((one) => one.outerHTML.slice(0, 120))
"""
REACHABLE = """
[...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest('svg'))
  .map((one, place) => (one.dataset.place = place, one.outerHTML.slice(0, 120)))
"""
FOCUSED = """
(() => {
  const one = document.activeElement, { outlineStyle, outlineWidth } = getComputedStyle(one);
  const { left, right, top, bottom } = one.getBoundingClientRect();
  const on = left < innerWidth && right > 0 && top < innerHeight && bottom > 0;
  const seen = on && outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2;
  return [one.dataset.place ?? one.outerHTML.slice(0, 120), seen];
})()
"""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory, source, storage, journal_writer, page):
    """Return the address of each page by name, and the one that lets a browser in."""
    folder = tmp_path_factory.mktemp("every")
    view = served_of(viewed(folder / "storage", source, storage, journal_writer))
    home = view.url.partition("?")[0]
    study = view.writer.open("ce", trials=4)
    view.writer.trial(study, 0, 0.1)
    view.writer.begin(study, 1)
    pages = {name: home + path.format(failed=view.failed.key) for name, path in SERVED.items()}
    night = [Block(REASON), Block("Figures", table=(("task", "recipe", "ECE"), ("a", "ce", "1")))]
    for name, text in (("report", page), ("nightly", to_html(night))):
        (folder / name).with_suffix(".html").write_text(text, encoding="utf-8")
        pages[name] = (folder / name).with_suffix(".html").as_uri()
    return {"token": view.url, **pages}


@pytest.fixture(scope="module")
def visitor(browser, addresses):
    context = browser.new_context()
    context.new_page().goto(addresses["token"])
    while "are being computed" in context.request.get(addresses["sweep"]).text():
        time.sleep(0.05)
    yield context
    context.close()


def findings(page, rules):
    """Return the serious and critical findings of axe-core, by some rules, or by all."""
    found = Axe().run(page, options={"runOnly": rules} if rules else None).response["violations"]
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:150]}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def keyboard(page):
    """Return the links and controls that Tab does not reach in their order, or not visibly."""
    known, problems = page.evaluate(REACHABLE), []
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    for place, control in enumerate(known):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        if found != [str(place), True]:
            problems.append(f"Tab {place} reaches {found}, expected {control}")
    return problems


@pytest.mark.full
@pytest.mark.parametrize("name", [*SERVED, *FROZEN])
def test_page(visitor, addresses, name):
    asked, said = [], []
    page = visitor.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    answer = page.goto(addresses[name])
    if answer.status == 404:
        said.remove(MISSING)
    page.evaluate(
        "() => { window.fetch = () => new Promise(() => {}); }"
    )  # The page is not renewed.
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    if name in DRAWN:
        page.locator(".drawing svg").first.wait_for()
    problems = []
    for width, scheme, rules in ((1400, "light", ()), (390, "dark", SEEN)):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        problems += page.evaluate(WIDE) + findings(page, rules)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == PAPER[scheme]
    problems += keyboard(page)
    assert page.locator("h1").count() == 1
    own = addresses[name].partition("?")[0] if name in FROZEN else addresses["sweeps"]
    problems += [address for address in asked if not address.startswith((own, "data:,"))]
    page.close()
    assert "\n".join(problems + said) == ""


@pytest.mark.full
def test_pictures_of_the_documentation_are_drawn_from_pages(visitor, addresses, tmp_path):
    page = visitor.new_page()
    page.set_viewport_size(SIZE)
    for path in draw(page, addresses["sweeps"], "night", tmp_path):
        kept = DOCS / path.name
        assert Image.open(path).size == Image.open(kept).size == (SIZE["width"], SIZE["height"])
        assert kept.stat().st_size < 150_000
    page.close()
    assert {f"{name}.png" for name in PICTURES} == {path.name for path in DOCS.glob("demo-*.png")}
