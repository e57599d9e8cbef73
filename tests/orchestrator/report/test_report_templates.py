"""The page's templates, element by element, of made-up content."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.report._chart import Axis, Chart, Figure
from orchestrator.report._maps import Maps
from orchestrator.report._page import environment
from orchestrator.report._records import Failure, Run
from orchestrator.report._search import RAMP
from orchestrator.report._tasks import Shift
from orchestrator.statistics import Arena, Interval, Standing
from orchestrator.storage.results import StudyResult
from orchestrator.tables.arrange import build_table

VOID = ("meta", "link", "input", "img", "br")
NONE = "# = .none: –"


class _Outline(HTMLParser):
    """The elements of a page, a line each with its text; of tables the rows, a text a cell.

    A cell is ``KIND =ORDER .CLASS: TEXT``, its kind ``#`` for numbers; what is small follows a
    ``~``, a drawing is ``svg`` with its label or classes.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.rows: list[list[str]] = []
        self.path: list[str] = []
        self.feed(text)
        assert not self.path

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "svg" in self.path:
            pass
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(_cell(given))
        elif "tr" in self.path:
            inner = {"span": "", "small": "~", "code": "code"}.get(tag, tag)
            shown = (given[name] for name in ("style", "class") if name in given)
            self.rows[-1][-1] = " ".join(filter(None, (self.rows[-1][-1], inner, *shown)))
        elif "table" not in self.path or tag == "caption":
            given.pop("viewbox", None)
            named = [f'{name}="{value}"' if value else name for name, value in given.items()]
            self.lines.append(" ".join((tag, *named)))
        if tag not in VOID:
            self.path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.path.pop() == tag

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        if not words or {"svg", "style", "script"} & set(self.path):
            return
        if "tr" in self.path:
            self.rows[-1][-1] += f" {words}"
        else:
            self.lines[-1] += f" {words}"


def _cell(given: dict[str, str]) -> str:
    marks = ["#"] if given.get("data-kind") == "number" else []
    marks += [f"={given['data-order']}"] if "data-order" in given else []
    marks += [f".{given['class']}"] if "class" in given else []
    marks += [given["data-first"]] if "data-first" in given else []
    marks += [f"({given['title']})"] if "title" in given else []
    return " ".join(marks) + ":"


def written(template: str, name: str, *arguments: Any, **named: Any) -> _Outline:
    """Return what a macro writes."""
    found = environment().get_template(template).module
    return _Outline(str(getattr(found, name)(*arguments, **named)))


def result(recipe: str, task: str = "digits", **fields: Any) -> StudyResult:
    return StudyResult("night", task, recipe, fields.pop("status", "finished"), **fields)


def seeds(*eces: float) -> tuple[dict[str, float], ...]:
    return tuple({"ece": ece, "acc": 0.875 - ece, "ece_floor": 0.01} for ece in eces)


RESULTS = [
    result("ce", test=seeds(0.25, 0.375), trials_finished=3),
    result("ls", test=seeds(0.125), trials_finished=2, trials_failed=1),
    result("fl", status="failed", trials_failed=4, reason="out & about"),
    result("mbls+ts", test=seeds(float("nan")), trials_finished=1),
    result("acls", test=({"acc": 0.5},), trials_finished=1),
    result("ce", "odd", test=seeds(0.5), trials_finished=1),
]


def chart(label: str) -> Chart:
    return Chart((10, 20), Axis(0, 1), Axis(0, 1), label)


# The style sheet


def test_colours_mean_what_the_page_says() -> None:
    sheet = environment().globals["style_css"]
    rules: dict[str, str] = {}
    for selector, body in re.findall(r"^([^{}]+?) \{ (.*) \}$", sheet, re.MULTILINE):
        if selector[0] in ".:#":
            rules[selector] = rules.get(selector, "") + body
    tones = {"better": "blue", "worse": "orange"}
    for tone, colour in tones.items():
        assert rules[f".{tone} > span"].startswith(f"color: var(--{colour});")
        assert rules[f".interval.{tone}"] == f"stroke: var(--{colour}); fill: var(--{colour});"
    assert rules[".none, .similar > span"] == "color: var(--soft);"
    for kind, colour in (("over", "orange"), ("under", "blue")):
        assert rules[f".gap.{kind}"] == f"stroke: var(--{colour});"
        assert rules[f".dot.{kind}"] == f"fill: var(--{colour});"
        assert rules[f".ink.{kind}"] == f"color: var(--{colour});"
    for stage, colour in (("train", "blue"), ("refine", "orange"), ("calibrate", "green")):
        assert rules[f".mark.{stage}"] == f"fill: var(--{colour});"
        assert rules[f".key.{stage}::before"].startswith(f"background: var(--{colour});")
    marked = {
        ".best > span": "font-weight: 700;",
        ".second > span": "text-decoration: underline;",
        ".line.ours": "stroke: var(--blue);",
        ".line.reference": "stroke: var(--reference);",
        ".line.trial": "stroke: currentColor;",
        ".line.trial.chosen": "stroke-width: 3;",
        ".ring": "fill: none; stroke: var(--ink);",
        ".mark.search": "fill: currentColor;",
        ".mark.beaten": "fill: var(--reference);",
        ".floor": "fill: var(--faint);",
        ".narrow": "display: none;",
    }
    assert {name: rules[name][: len(start)] for name, start in marked.items()} == marked
    assert f"linear-gradient(90deg, {', '.join(RAMP)})" in rules[".ramp"]
    assert (
        '[aria-sort="descending"] > button::after { content: "\\00a0\\25BE"; opacity: 1; }' in sheet
    )
    narrow = sheet.partition("@media (max-width: 40rem)")[2].partition("@media")[0]
    assert ".wide { display: none; }\n  .narrow { display: block; }" in narrow


# Tables


def test_a_task_has_figures_with_their_deviation_marks_and_differences() -> None:
    table = build_table(RESULTS[:5], ("acc", "ece", "ece_floor"))
    drawn = Shift("−12.50", -0.125, "better", "−14.00 to −11.00", chart("ls"))
    shifts = {"ece": {"ls": drawn, "mbls+ts": Shift("≈ +0.01", 0.0001, "similar", "", None)}}
    found = written(
        "tables.html", "task_table", table, "t-1", "What & where", "ce", shifts, "NOTES"
    )
    hint = "(difference from ce in percentage points, with its 95 % interval)"
    assert found.rows == [
        [
            ": Recipe",
            "# descending: Acc % ↑",
            "#: ECE % ↓",
            f"# {hint}: ECE against ce",
            "#: ECE floor %",
        ],
        [
            "=ce .baseline: ce ~ baseline",
            "# =0.5625 .second: 56.25 ~ ±8.84",
            "# =0.3125 .second: 31.25 ~ ±8.84",
            NONE,
            "# =0.01: 1.00 ~ ±0.00",
        ],
        [
            "=ls: ls ~ 1 of 3 trials failed",
            "# =0.75 .best: 75.00",
            "# =0.125 .best: 12.50",
            "# =-0.125 .better: −12.50 ~ −14.00 to −11.00 svg interval better",
            "# =0.01: 1.00",
        ],
        ["=fl: fl ~ failed (4 of 4 trials): out & about", *[NONE] * 4],
        [
            "=mbls+ts: mbls+ts",
            "# = .none: nan",
            "# = .none: nan",
            "# =0.0001 .similar: ≈ +0.01",
            "# =0.01: 1.00",
        ],
        ["=acls: acls", "# =0.5: 50.00", NONE, NONE, NONE],
    ]
    assert found.lines == [
        'div class="block" data-filtered',
        'div class="scroll" tabindex="0" role="region" aria-labelledby="t-1"',
        'table class="sortable"',
        'caption id="t-1" What & where NOTES',
    ]


def test_further_tables_of_a_task_name_recipes_alone() -> None:
    table = build_table(RESULTS[:3], ("ece",))
    found = written("tables.html", "task_table", table, "more", "More", "ce", asides=False)
    assert [row[0] for row in found.rows[1:]] == ["=ce: ce", "=ls: ls", "=fl: fl"]


def test_every_task_has_its_column_of_one_metric() -> None:
    found = written("tables.html", "overview_table", build_table(RESULTS, ("acc",)))
    absent = "# = .none: not run"
    assert found.rows == [
        [": Recipe", "# descending: digits", "# descending: odd"],
        ["=ce: ce", "# =0.5625 .second: 56.25 ~ ±8.84", "# =0.375 .best: 37.50"],
        ["=ls: ls", "# =0.75 .best: 75.00", absent],
        ["=fl: fl", "# = .none: failed", absent],
        ["=mbls+ts: mbls+ts", "# = .none: nan", absent],
        ["=acls: acls", "# =0.5: 50.00", absent],
    ]
    places = [
        result("ce", task, dataset="data", model=task, protocol="p", test=seeds(0.5))
        for task in ("one", "two")
    ]
    heads = written("tables.html", "overview_table", build_table(places, ("ece",))).rows[0]
    assert heads == [": Recipe", "#: one", "#: two"]


def test_costs_are_told_by_task_where_there_are_several() -> None:
    costs = {("digits", "ce"): 10.0, ("digits", "ls"): 25.04, ("odd", "ls"): 3.0}
    found = written("tables.html", "cost_table", costs, "ce", True)
    assert found.rows == [
        [": Recipe", ": Task", "#: Seconds", "#: × ce", ":"],
        ["=ce: ce", "=digits: digits", "# =10.0: 10.0", "# =1.0: 1.00", "=: svg bar"],
        ["=ls: ls", "=digits: digits", "# =25.04: 25.0", "# =2.504: 2.50", "=: svg bar"],
        ["=ls: ls", "=odd: odd", "# =3.0: 3.0", NONE, "=: svg bar"],
    ]
    alone = written("tables.html", "cost_table", {("digits", "ce"): 0.0}, "ce", False)
    assert alone.rows == [
        [": Recipe", "#: Seconds", "#: × ce", ":"],
        ["=ce: ce", "# =0.0: 0.0", NONE, "=: svg bar"],
    ]


def test_failures_have_their_configuration_where_it_is_known() -> None:
    trial = Failure("ce", "digits", "trial 3", "<oom>", '{"a": 1}')
    study = Failure("ls", "odd", "study failed", "none finished")
    found = written("tables.html", "failure_table", [trial, study], True)
    words = ['={"a": 1} .code: code {"a": 1}', "=:"]
    assert found.rows == [
        [": Recipe", ": Task", ": What", ": Reason", ": Configuration"],
        ["=ce: ce", "=digits: digits", "=trial 3: trial 3", "=<oom>: <oom>", words[0]],
        [
            "=ls: ls",
            "=odd: odd",
            "=study failed: study failed",
            "=none finished: none finished",
            words[1],
        ],
    ]
    alone = written("tables.html", "failure_table", [trial], False)
    assert [row[1] for row in alone.rows] == [": What", "=trial 3: trial 3"]


def test_runs_are_named_by_seed_trial_run_and_predictions() -> None:
    known = Run("ce", "digits", 7, "t1", "r1", "p1")
    codes = ["=t1 .code: code t1", "=r1 .code: code r1", "=p1 .code: code p1"]
    found = written("tables.html", "run_table", [known, Run("ls", "odd", None, "", "", "")], True)
    heads = [": Trial", ": MLflow run", ": Predictions"]
    assert found.rows == [
        [": Recipe", ": Task", "#: Seed", *heads],
        ["=ce: ce", "=digits: digits", "# =7.0: 7", *codes],
        ["=ls: ls", "=odd: odd", "# =: –", *["=– .code: code –"] * 3],
    ]
    alone = written("tables.html", "run_table", [known], False)
    assert alone.rows[1] == ["=ce: ce", "# =7.0: 7", *codes]


@pytest.mark.parametrize(("count", "filtered"), [(5, False), (6, True)])
def test_a_filter_stands_above_more_than_five(count: int, filtered: bool) -> None:
    costs = {("digits", f"recipe {number}"): 1.0 for number in range(count)}
    found = written("tables.html", "cost_table", costs, "ce", False)
    panels = [Figure(f"p{number}", chart("c"), "text") for number in range(count)]
    shown = written("charts.html", "panels", panels)
    words = ['p class="controls" hidden', "label Show rows with"]
    assert found.lines[1:3] == words if filtered else found.lines[1].startswith("div class")
    assert ("label Show recipes with" in shown.lines) == filtered
    assert shown.lines.count("figure data-item") == count


def test_panels_have_title_text_and_chart() -> None:
    shown = written("charts.html", "panels", [Figure("ce", chart("a chart"), "ECE 1 %")])
    assert shown.lines == [
        'div class="block" data-filtered',
        'div class="panels"',
        "figure data-item",
        "figcaption",
        "strong ce",
        "small ECE 1 %",
        'svg width="10" height="20" role="img" aria-label="a chart" class="panel"',
    ]
    plain = written("charts.html", "figures", [Figure("q", chart("by epoch"))])
    assert plain.lines == [
        'div class="figures"',
        "figure",
        "figcaption q",
        'svg width="10" height="20" role="img" aria-label="by epoch"',
    ]


def test_every_kind_of_mark_is_drawn_at_its_place_in_its_colour() -> None:
    drawn = Chart((100, 50), Axis(0, 1), Axis(0, 1), "c", margin=(0, 0, 0, 0))
    drawn.dot(0.25, 0.5, 3.25, "mark search", "trial 1", "#123456")
    drawn.dot(0, 1, 2, "")
    drawn.shape(((1, 2), (3, 4.06)), "share")
    drawn.text(5, 6, "words", "end", "axis")
    svg = str(environment().get_template("charts.html").module.svg(drawn))  # type: ignore[attr-defined]
    assert svg.partition(">")[2].removesuffix("</svg>") == (
        '<circle cx="25.0" cy="25.0" r="3.2" class="mark search" color="#123456">'
        "<title>trial 1</title></circle>"
        '<circle cx="0.0" cy="0.0" r="2.0"></circle>'
        '<polygon points="1.0,2.0 3.0,4.1 " class="share"></polygon>'
        '<text x="5.0" y="6.0" text-anchor="end" class="axis">words</text>'
    )


# The page


def study(name: str, **fields: Any) -> dict[str, Any]:
    empty = {"slices": [], "fronts": [], "curves": [], "importance": [], "scored": 3, "left": 0}
    return {"name": name, "text": f"text of {name}", "live": False, **empty, **fields}


def task(name: str, **fields: Any) -> dict[str, Any]:
    table = build_table(RESULTS[:1], ("acc", "ece"))
    empty = dict.fromkeys(("lead", "further", "scatter", "reliability", "risk", "maps"), ())
    return {
        **{"name": name, "table": table, "shifts": {}, "gains": {}, "gained": None},
        **{"bootstrap": None, "left": 0, "problem": "", "absent": {}, "seeds": False, **empty},
        **fields,
    }


BARE = {
    **dict.fromkeys(("several", "journal"), False),
    **dict.fromkeys(("diagram", "no_ranks", "no_arena", "computed", "spec"), ""),
    **dict.fromkeys(("overviews", "studies", "retention", "failures", "facts", "runs"), ()),
    **{"name": "a & b", "baseline": "ce", "summary": "1 recipe", "rank_label": "ECE"},
    **{"arena": None, "most_curves": 16, "enough": 10, "costs": {}, "version": "9.9"},
    "tasks": [task("digits")],
}


def page_of(**content: Any) -> _Outline:
    return _Outline(environment().get_template("page.html").render({**BARE, **content}))


def sections(found: _Outline) -> dict[str, list[str]]:
    """Return the lines of a page, the first 80 letters of each, by the id of their section."""
    parts: dict[str, list[str]] = {"": []}
    for line in found.lines:
        if line.startswith("section "):
            parts[line.split('"')[1]] = []
        parts[[*parts][-1]].append(line[:80])
    return {name: lines[1:] for name, lines in parts.items()}


def grid(name: str, caption: str) -> list[str]:
    return [
        'div class="block" data-filtered',
        f'div class="scroll" tabindex="0" role="region" aria-labelledby="{name}"'[:80],
        'table class="sortable"',
        f'caption id="{name}" {caption}'[:80],
    ]


def drawing(title: str, label: str) -> list[str]:
    start = ['div class="figures"', "figure", f"figcaption {title}"]
    return [*start, f'svg width="10" height="20" role="img" aria-label="{label}"']


BAR = 'svg class="bar" preserveaspectratio="none" aria-hidden="true"'
BOLD = 'p class="note" Bold is the best figure of a column as printed, underlined the second best.'
CAPTION = "Test figures of the configurations chosen on validation data,"
SEARCHED = [Figure("one", chart("slice"))]


@pytest.fixture(scope="module")
def whole() -> _Outline:
    """Return a page that has every section."""
    other = ("Other", build_table(RESULTS[:1], ("nll",)))
    first = task(
        "first",
        **{"lead": ["Lead 1", "Lead 2"], "further": [other], "seeds": True, "left": 3},
        **{"gained": build_table(RESULTS[:1], ("ece",)), "absent": {"fl": "gone", "au": "lost"}},
        **{"scatter": [chart("wide"), chart("narrow")], "maps": [Maps("ce", "data:m")]},
        **{"reliability": [Figure("r", chart("rel"), "t")]},
        **{"risk": [Figure("k", chart("risk"), "area")]},
    )
    second = task("second", problem="damaged", further=[other], gained=first["gained"])
    return page_of(
        several=True,
        overviews=[build_table(RESULTS, (metric,)) for metric in ("ece", "acc")],
        **{"diagram": "data:x", "no_ranks": "no ranks", "no_arena": "no arena"},
        **{"tasks": [first, second], "journal": True},
        **{"retention": SEARCHED, "computed": "Computed.", "costs": {("first", "ce"): 1.0}},
        **{
            "failures": [Failure("ce", "first", "w", "r")],
            "facts": [("Sweep", "x"), ("Code", "y")],
        },
        **{"runs": [Run("ce", "first", 1, "t", "r", "p")], "spec": "name: x"},
    )


def test_every_section_is_named(whole: _Outline) -> None:
    parts = sections(whole)
    names = ["", "all", "task-1", "task-2", "search", "sparsity", "cost-of", "failed", "provenance"]
    assert [*parts] == names
    links = {line.split('"')[1]: line.split("> ")[-1] for line in parts[""] if line[:2] == "a "}
    assert [*links] == [f"#{name}" for name in names[1:]]
    titles = [
        "All tasks",
        "first",
        "second",
        "Search",
        "Sparsity",
        "Cost",
        "Failures",
        "Provenance",
    ]
    assert [link.rpartition('"')[2].strip() for link in links.values()] == titles
    assert {"h1 a & b", "title a & b · calsweep report", 'p class="summary" 1 recipe'} <= {
        *parts[""]
    }


def test_sections_of_tasks_are_filled(whole: _Outline) -> None:
    parts = sections(whole)
    assert parts["all"] == [
        "h2 All tasks",
        *grid("all-ece", "Test ECE % ↓ on every task"),
        *grid("all-acc", "Test Acc % ↑ on every task"),
        'figure class="diagram scroll" tabindex="0"',
        'img src="data:x" alt="Critical-difference diagram of average ranks by ECE"',
        'p class="note" no ranks',
        'p class="note" no arena',
    ]
    panel = [
        'div class="block" data-filtered',
        'div class="panels"',
        "figure data-item",
        "figcaption",
    ]
    svg = 'svg width="10" height="20" role="img" aria-label='
    assert [line for line in parts["task-1"] if 'class="explain"' not in line] == [
        "h2 first",
        *('p class="lead" Lead 1', 'p class="lead" Lead 2'),
        *grid("table-1", f"{CAPTION} first"),
        BOLD[:80],
        'p class="note" Means over seeds, ± sample standard deviation.',
        *grid("more-1-1", "Other, first"),
        *grid("gain-1", "What the searches brought over the published defaults, first"),
        'p class="note" The chosen trial against the study’s first one, which had the pub',
        'p class="missing" No differences: ce has no predictions here',
        'p class="missing" fl: no diagrams and no interval: gone',
        'p class="missing" au: no diagrams and no interval: lost',
        'p class="missing" 3 more columns of other test sets: calsweep table --metrics',
        "h3 Accuracy against calibration error",
        *('figure class="wide"', f'{svg}"wide" class="scatter"'),
        *('figure class="narrow" aria-hidden="true"', f'{svg}"narrow" class="scatter"'),
        'p class="legend"',
        'span class="key train" method alone',
        'span class="key refine" refined',
        'span class="key calibrate" calibrated',
        'span class="key ring" ce',
        "h3 Reliability",
        'span class="ink over" too confident , one above it',
        'span class="ink under" not confident enough ; in the grey boxes 95 % of dots would lie by'[
            :80
        ],
        *(*panel, "strong r", "small t", f'{svg}"rel" class="panel"'),
        "h3 Risk and coverage",
        *(*panel, "strong k", "small area", f'{svg}"risk" class="panel"'),
        "h3 Where it is wrong",
        *('div class="maps"', "figure", "figcaption ce"),
        'img src="data:m" alt="ce: image, confidence and errors of test images"',
    ]
    explained = [line for line in whole.lines if 'class="explain"' in line]
    assert ", in 15 bins, all seeds together." in explained[1]
    assert ", the mean over seeds; in grey the curve of ce." in explained[2]
    assert parts["task-2"] == [
        "h2 second",
        *grid("table-2", f"{CAPTION} second"),
        BOLD[:80],
        *grid("more-2-1", "Other, second"),
        *grid("gain-2", "What the searches brought over the published defaults, second"),
        'p class="note" The chosen trial against the study’s first one, which had the pub',
        'p class="missing" No diagrams and no intervals: damaged',
    ]


def test_sections_of_the_whole_sweep_are_filled(whole: _Outline) -> None:
    parts = sections(whole)
    assert parts["sparsity"][3:] == drawing("one", "slice")
    note = "What came from the store counts what it cost when it was first computed."
    assert parts["cost-of"] == [
        *("h2 Cost", 'p class="lead" Computed.'),
        *grid("cost", "Seconds to compute the chosen configuration, all its stages, the mean"),
        f'p class="note" {note}'[:80],
    ]
    failed = grid("failures", "Trials and studies that failed or did not end")
    assert parts["failed"] == ["h2 What failed", *failed]
    assert parts["provenance"][:-3] == [
        *("h2 Provenance", 'dl class="facts"', "div", "dt Sweep", "dd x", "div", "dt Code", "dd y"),
        *("details", "summary", "h3 Runs", "small 1", *grid("runs", "The runs behind the figures")),
        *("details", "summary", "h3 Sweep file"),
        'div class="scroll" tabindex="0" role="region" aria-label="Sweep file"',
        "pre name: x",
    ]
    assert "p Made by calsweep 9.9. The page holds" in parts["provenance"][-2]


def test_what_is_drawn_is_explained_in_full(whole: _Outline) -> None:
    told = [
        line for line in whole.lines if re.match(r'p class="(explain|note)"|span class="', line)
    ]
    gained = (
        'p class="note" The chosen trial against the study’s first one, which had the published '
        "values, both of the search’s own seed and on the same choice of the stages before; with "
        "95 % intervals over test data. Recipes for whose last stage nothing was searched are left "
        "out."
    )
    before, after = (f'span class="ramp" aria-hidden="true" {end}' for end in ("first", "low"))
    assert [line for line in told if "key" not in line and not line.startswith(before)] == [
        'p class="note" no ranks',
        'p class="note" no arena',
        BOLD,
        'p class="note" Means over seeds, ± sample standard deviation.',
        f"{gained} What other seeds differ by is the ± beside a figure.",
        'p class="explain" Up and to the left is better. The line joins the recipes that no other '
        "beats in both.",
        'p class="explain" Accuracy (vertical) at each confidence (horizontal), in 15 bins, all '
        "seeds together. A dot below the diagonal is",
        'span class="ink over" too confident , one above it',
        'span class="ink under" not confident enough ; in the grey boxes 95 % of dots would lie by '
        "chance alone. The bars below show how many are where. The estimated true error is free of "
        "what chance adds to the ECE on few rows, as far as that can be told.",
        'p class="explain" The error (vertical) among the most confident part of the test data '
        "(horizontal), the mean over seeds; in grey the curve of ce. The lower, the better a "
        "recipe knows what it does not know; “area” is the mean error over all parts.",
        'p class="explain" Two test images, as seen by the first seed. Beside each image: the '
        "confidence of every pixel, from black (0) to white (1), and the pixels whose class is "
        "wrong, the brighter the red the more confident; white is void.",
        BOLD,
        f"{gained} One seed does not tell what others would differ by.",
        'p class="explain" The retention probability q by epoch: the share of the classifier\'s '
        "weights that a random mask keeps while it trains. One line a trial, coloured by the rank "
        "of its gamma from",
        f"{after} to high; the thick line is the chosen trial.",
        'p class="note" What came from the store counts what it cost when it was first computed.',
    ]


def test_what_is_not_there_is_said_or_left_out() -> None:
    found = page_of()
    parts = sections(found)
    assert [*parts] == ["", "task-1", "search", "cost-of", "failed", "provenance"]
    links = [line.partition(" ")[2] for line in parts[""] if line.startswith("a ")]
    assert links[0] == 'href="#task-1" Results'
    assert len(links) == 5
    assert parts["task-1"] == ["h2 digits", *grid("table-1", f"{CAPTION} digits"), BOLD[:80]]
    assert [len(parts[name]) for name in ("search", "cost-of", "failed")] == [2, 2, 3]
    words = [line for line in found.lines if 'class="missing"' in line or "Nothing" in line]
    assert words[0].startswith('p class="missing" The journal of this sweep is not in this storage')
    assert words[1:] == [
        'p class="missing" The cost of these results is not known.',
        'p class="lead" Nothing failed.',
        'p class="missing" Single trials are known from the journal only.',
    ]


def test_studies_are_shown_as_far_as_there_is_something_to_draw() -> None:
    shares = [("gamma", 0.75), ("width", 0.25)]
    studies = [
        study("s1", slices=SEARCHED, importance=shares, fronts=SEARCHED, scored=12, left=2),
        study("s2", curves=SEARCHED),
        study("s3", slices=SEARCHED),
        study("s4"),
        study("s5", scored=0),
        study("s6", slices=SEARCHED, scored=10),
    ]
    lines = sections(page_of(studies=studies, journal=True))["search"]
    starts = [place for place, line in enumerate(lines) if line == "details"]
    ends = [*starts[1:], len(lines)]
    parts = [lines[start:end] for start, end in zip(starts, ends, strict=True)]
    assert lines[0] == "h2 Search"
    assert lines[3:5] == [
        'p class="controls" hidden',
        'button type="button" data-open="search" Open all studies',
    ]
    front = 'p class="note" Coloured trials are those that no other beats in all that was searched'[
        :80
    ]
    assert parts[0] == [
        *("details", "summary", "h3 s1", "small text of s1", "h4 Importance", 'dl class="bars"'),
        *("div", "dt gamma", "dd", f"{BAR} 75 %", "div", "dt width", "dd", f"{BAR} 25 %"),
        'p class="note" Share of the objective\'s variance (fANOVA, 12 trials).',
        *("h4 Objective by parameter", *drawing("one", "slice")),
        *("h4 Pareto front", front, *drawing("one", "slice")),
        'p class="note" Curves of the 16 best trials; 2 are left out.',
    ]
    few = 'p class="note" 3 trials are too few to tell importance; 10 are needed.'
    curves = ["h4 Learning curves", *drawing("one", "slice")]
    slices = ["h4 Objective by parameter", *drawing("one", "slice")]
    assert parts[1] == ["details", "summary", "h3 s2", "small text of s2", *curves]
    assert parts[2] == ["details", "summary", "h3 s3", "small text of s3", few, *slices]
    even = 'p class="note" These trials do not tell which parameter is important.'
    assert parts[3][:-1] == ["details", "summary", "h3 s6", "small text of s6", even, *slices]
    assert parts[3][-1] == (
        'p class="note" Nothing to draw, one configuration and no epochs: s4, s5.'
    )
    alone = sections(page_of(studies=studies[3:5], journal=True))["search"]
    assert alone == ["h2 Search", parts[3][-1]]


def test_the_arena_names_its_size_and_who_is_left_out() -> None:
    gains = dict.fromkeys(("nll", "brier", "ece"), Interval(0.5, 0.25, 0.75))
    standing = Standing("ts", gains, Interval(0.5, 0.5, 0.5), 10.0, 0.25)
    arena = Arena("given", (standing,), ("one", "two"), 4, 3, {"ets": "no fit", "pts": "lost"})
    found = page_of(several=True, arena=arena)
    lines = sections(found)["all"]
    assert lines[:2] == ["h2 All tasks", "h3 Arena"]
    assert lines[3:] == [
        *grid("arena", "Gains, wins and strengths"),
        'p class="missing" ets is left out: no fit',
        'p class="missing" pts is left out: lost',
    ]
    (told,) = (line for line in found.lines if "Every recipe against every other on" in line)
    assert told == (
        'p class="explain" Every recipe against every other on 4 tasks of 2 networks, 3 splits '
        "each. Gains are over given, above 0 is better; a match is won by the lower NLL; strength "
        "is in points of Elo over given, by the Bradley-Terry model. 95 % intervals by resampling "
        "networks and splits: a few networks tell little of others."
    )


@pytest.mark.parametrize("seeds_told", [False, True])
def test_notes_below_a_table_are_of_what_it_shows(seeds_told: bool) -> None:
    metrics = ("ece", "ece_floor")
    table = build_table([result("ce+ts", test=seeds(0.25))], metrics)
    bootstrap = SimpleNamespace(draws=7, drawn="90 test rows", groups=3, rows=11)
    own = task("digits", table=table, seeds=seeds_told, bootstrap=bootstrap)
    lines = written("tables.html", "notes", own, "ls").lines
    notes = [
        *["Means over seeds, ± sample standard deviation."] * seeds_told,
        "Calibrators are fitted on the validation rows that choose configurations.",
        "ECE floor: what a perfectly calibrated network with the same confidences would show on "
        "average on these test data.",
        "Differences from ls with 95 % intervals of 7 paired resamples of 90 test rows, in points: "
        "blue is better, orange worse, grey cannot be told from chance; ≈ a difference not above "
        "the noise floor. They say what other test data might show, not what other seeds or "
        "another search would.",
    ]
    assert lines == [BOLD, *(f'p class="note" {note}' for note in notes)]
    (gain,) = written("tables.html", "gain_note", own).lines
    assert gain.endswith(
        " What other seeds differ by is the ± beside a figure."
        if seeds_told
        else " One seed does not tell what others would differ by."
    )
    panel = [Figure("r", chart("rel"), "t")]
    found = page_of(tasks=[{**own, "reliability": panel, "risk": panel}])
    text = " ".join(found.lines)
    assert (
        " Drawn are 11 pixels of 3 images: chance is that of other images, and the ECE beside a "
        "name that of all pixels. The estimated true error" in text
    )
    assert (", all seeds together" in text) == (", the mean over seeds" in text) == seeds_told
    assert "No differences" not in text
