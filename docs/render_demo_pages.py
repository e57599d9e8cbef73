"""Draws ``demo-*.png`` from a demo that has finished: ``python docs/render_demo_pages.py``."""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from orchestrator.storage.storage import Storage
from orchestrator.view.server import Book, serve
from orchestrator.view.server._server import Address

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1200, "height": 640}
# The address of each picture's page, and the element that begins it.
PICTURES = {
    "demo-table": ("sweeps/{sweep}", "#task-1 .block"),
    "demo-reliability": ("sweeps/{sweep}", ".panels"),
    "demo-rows": ("sweeps/{sweep}/studies/0/rows?show=wrong&sort=confidence", "#rows"),
}


@contextmanager
def opened() -> Iterator[Browser]:
    """Yield the browser that is installed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as play:
        # The sandbox of the browser does not start for root or in most containers.
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def draw(page: Page, home: str, sweep: str, folder: Path) -> list[Path]:
    """Write the pictures of a sweep's pages into a folder; return their paths."""
    written = []
    for name, (path, begin) in PICTURES.items():
        address = home + path.format(sweep=sweep)
        while "are being computed" in page.request.get(address).text():
            time.sleep(0.1)
        page.goto(address)
        part = page.locator(begin).first
        part.evaluate("(one) => one.scrollIntoView()")
        if part.locator(".drawing").count():
            part.locator(".drawing svg").first.wait_for()
            page.wait_for_timeout(500)  # So that its neighbours are drawn too.
        written.append(folder / f"{name}.png")
        page.screenshot(path=written[-1])
    return written


def main() -> None:
    """Serve a storage and write the pictures of its demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", default="demo")
    parser.add_argument("--storage", default="calsweep-storage")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    found, there = list[str](), threading.Event()

    def started(address: Address) -> None:
        found.append(address.url)
        there.set()

    book = Book(Storage(arguments.storage))
    threading.Thread(target=serve, args=(book, "127.0.0.1", 0, started), daemon=True).start()
    there.wait(30)
    with opened() as browser:
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(found[0])
        draw(page, found[0].partition("?")[0], arguments.sweep, arguments.out)


if __name__ == "__main__":
    main()
