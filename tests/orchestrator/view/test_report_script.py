"""The report's script in a real browser: sorting, filtering, opening, paper, case by case."""

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.view._page import environment

Visit = Callable[..., list[Any]]

# By the first column's order: A, B, C ... are the rows' names.
ROWS = [
    ("A", "b", "10"),
    ("B", "", "-2.5"),
    ("C", "run 10", ""),
    ("D", "B", "9"),
    ("E", "run 9", "10"),
    ("F", "a", "1e-3"),
]


def small_page() -> str:
    """Return two tables, each with a filter, two parts of details, and the controls."""
    head = (
        '<tr><th data-kind="text">name</th><th data-kind="number">figure</th>'
        '<th data-kind="number" data-first="descending">more is better</th><th> </th></tr>'
    )
    body = "".join(
        f'<tr data-item><th data-order="{word}">{name} is <b>{word}</b></th>'
        f'<td data-order="{figure}">{figure}</td><td data-order="{figure}"></td><td></td></tr>'
        for name, word, figure in ROWS
    )
    block = (
        '<div data-filtered><p class="controls" hidden><input><output></output></p>'
        f'<table class="sortable"><thead>{head}</thead><tbody>{body}</tbody></table></div>'
    )
    parts = '<details>1</details><details open="">2</details>'
    return (
        f"<body>{block}{block}"
        f"<div data-filtered><i data-item>few</i></div>"
        f"<table><thead><tr><th>plain</th></tr></thead></table>"
        f'<p class="controls" hidden><button data-open="here">open</button></p>'
        f'<section id="here">{parts}</section><section id="there">{parts}</section></body>'
    )


@pytest.fixture
def visit(browser: Any) -> Visit:
    """Return a function that gives what steps see of a page whose script has run."""

    def take(*steps: tuple[Any, ...], page: str = "") -> list[Any]:
        tab = browser.new_page()
        tab.set_content(
            page or f"{small_page()}<script>{environment().globals['script_js']}</script>"
        )
        seen = [_step(tab, *step) for step in steps]
        tab.close()
        return seen

    return take


def _step(tab: Any, kind: str, what: str, *more: Any) -> Any:
    found = tab.locator(what) if kind != "tell" else None
    if kind == "tell":
        return tab.evaluate("(name) => { dispatchEvent(new Event(name)); }", what)
    if kind == "click":
        return found.nth(*more).click()
    if kind == "type":
        return found.nth(more[0]).fill(more[1])
    read = {
        "texts": "(all) => all.map((one) => one.textContent)",
        "shown": "(all) => all.map((one) => !one.hidden)",
        "open": "(all) => all.map((one) => one.open)",
        "read": "(all, name) => all.map((one) => one.getAttribute(name))",
    }
    return found.evaluate_all(read[kind], *more)


def heading(place: int) -> tuple[str, str, int]:
    return "click", "thead th button", place


NAMES = ("texts", "tbody th")


def names(texts: list[str]) -> tuple[str, str]:
    """Return the rows of both tables, a letter each."""
    letters = "".join(text[0] for text in texts)
    return letters[: len(ROWS)], letters[len(ROWS) :]


@pytest.mark.parametrize(
    ("column", "clicks", "order"),
    [
        # Words as people sort them, numbers in them by their size.
        (0, 2, ["FADECB", "CEDAFB"]),
        (1, 3, ["BFDAEC", "AEDFBC", "BFDAEC"]),
        (2, 2, ["AEDFBC", "BFDAEC"]),
    ],
)
def test_a_heading_sorts_its_table_to_and_fro_with_empty_cells_last(column, clicks, order, visit):
    seen = visit(*[step for _ in range(clicks) for step in (heading(column), NAMES)])[1::2]
    assert [names(texts) for texts in seen] == [(found, "ABCDEF") for found in order]


def test_equal_cells_keep_the_order_of_the_heading_before(visit: Visit) -> None:
    words = heading(0)
    seen = visit(words, words, NAMES, heading(1), NAMES)
    assert names(seen[2])[0] == "CEDAFB"
    assert names(seen[4])[0] == "BFDEAC"


def test_the_heading_that_sorts_says_so_alone_in_its_table(visit: Visit) -> None:
    read = ("read", "thead th", "aria-sort")
    seen = visit(heading(3), heading(0), read, heading(0), read, heading(2), read)
    other = ["ascending", None, None, None, None]
    assert seen[2] == ["ascending", None, None, None, *other]
    assert seen[4] == ["descending", None, None, None, *other]
    assert seen[6] == [None, None, "descending", None, *other]


def test_headings_of_words_are_buttons_and_others_are_left(visit: Visit) -> None:
    seen = visit(("texts", "thead th button"), ("texts", "thead th"), ("texts", "button"))
    own = ["name", "figure", "more is better"]
    assert seen == [own * 2, [*own, " ", *own, " ", "plain"], [*own * 2, "open"]]


def test_a_filter_keeps_the_rows_that_hold_every_word(visit: Visit) -> None:
    kept = {
        "RUN": ("CE", "2 of 6"),
        " 9 run ": ("E", "1 of 6"),
        "run is": ("CE", "2 of 6"),
        "nowhere": ("", "0 of 6"),
        "  ": ("ABCDEF", ""),
    }
    look = ("shown", "tr"), ("texts", "output")
    seen = visit(*[step for text in kept for step in (("type", "input", 1, text), *look)])
    found = zip(seen[1::3], seen[2::3], kept.values(), strict=True)
    for shown, outputs, (rows, told) in found:
        assert shown[1 : len(ROWS) + 1] == [True] * len(ROWS)
        own = zip(ROWS, shown[len(ROWS) + 2 :], strict=False)
        assert "".join(row[0] for row, on in own if on) == rows
        assert outputs == ["", told]


def test_controls_are_shown_and_open_the_parts_that_they_name(visit: Visit) -> None:
    seen = visit(
        ("shown", ".controls"),
        ("open", "details"),
        ("click", "[data-open]", 0),
        ("open", "details"),
    )
    assert seen == [[True] * 3, [False, True] * 2, None, [True, True, False, True]]


def test_all_is_open_on_paper_and_as_before_afterwards(visit: Visit) -> None:
    state = ("open", "details")
    seen = visit(("tell", "beforeprint"), state, ("tell", "afterprint"), state)
    assert seen[1::2] == [[True] * 4, [False, True] * 2]


def test_the_page_of_a_sweep_is_sorted_by_its_figures(page: str, visit: Visit) -> None:
    table = "table:has(#table-1)"
    orders = ("read", f"{table} tbody td", "data-order")
    before, after = visit(orders, ("click", f"{table} thead th button", 3), orders, page=page)[::2]
    width = 5  # Two metrics with their differences, and the noise floor.
    assert before != after
    assert sorted(before) == sorted(after)
    errors = after[2 : 7 * width : width]
    assert errors == [*sorted(filter(None, errors), key=float), ""]
