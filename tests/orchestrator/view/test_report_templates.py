"""The page's templates, element by element, of made-up content."""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.statistics import Arena, Interval, Standing
from orchestrator.storage.results import StudyResult
from orchestrator.tables.arrange import build_table
from orchestrator.tables.columns import column
from orchestrator.view._maps import Maps
from orchestrator.view._page import environment
from orchestrator.view._panels import IntervalBar
from orchestrator.view._records import Failure, Run
from orchestrator.view._scatter import STAGES
from orchestrator.view._tasks import Shift
from tests.charts import HELD
from trainables.charts.chart import COLOURS, RAMP, Chart

VOID = ("meta", "link", "input", "img", "br")


class _Outline(HTMLParser):
    """The elements of a page, a line each with its text; of tables the rows, a text a cell.

    A cell is ``KIND =ORDER .CLASS: TEXT``, its kind ``#`` for numbers; small text follows a ``~``.
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
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append(_cell(given))
        elif "tr" in self.path:
            inner = {"span": "", "small": "~", "code": "code"}.get(tag, tag)
            shown = (given[name] for name in ("style", "class") if name in given)
            self.rows[-1][-1] = " ".join(filter(None, (self.rows[-1][-1], inner, *shown)))
        elif "table" not in self.path or tag == "caption":
            named = [f'{name}="{value}"' if value else name for name, value in given.items()]
            self.lines.append(" ".join((tag, *named)))
        if tag not in VOID:
            self.path.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.path.pop() == tag

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        if not words or {"style", "script"} & set(self.path):
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


def chart(title: str, label: str = "a label", text: str = "") -> Chart:
    return Chart(title, label, {"mark": "</script><b>"}, text)


BAR = IntervalBar(10, 60.04, 35, ("left",))


# The style sheet


def test_colours_match_the_legend_of_the_page() -> None:
    sheet = environment().globals["style_css"]
    rules: dict[str, str] = {}
    for selector, body in re.findall(r"^([^{}]+?) \{ (.*) \}$", sheet, re.MULTILINE):
        if selector[0] in ".:#":
            rules[selector] = rules.get(selector, "") + body
    tones = {"better": "blue", "worse": "orange"}
    for tone, colour in tones.items():
        assert rules[f".{tone} > span"].startswith(f"color: var(--{colour});")
        assert rules[f".interval.{tone}"] == f"color: var(--{colour});"
    assert rules[".none, .similar > span"] == "color: var(--soft);"
    for kind, colour in (("over", "orange"), ("under", "blue")):
        assert rules[f".ink.{kind}"] == f"color: var(--{colour});"
    for stage, colour in (("train", "blue"), ("refine", "orange"), ("calibrate", "green")):
        assert STAGES[stage][1] == f"var(--{colour})"
        assert rules[f".key.{stage}::before"].startswith(f"background: var(--{colour});")
    marked = {".best > span": "font-weight: 700;", ".second > span": "text-decoration: underline;"}
    assert {name: rules[name][: len(start)] for name, start in marked.items()} == marked
    assert f"linear-gradient(90deg, {', '.join(RAMP)})" in rules[".ramp"]
    assert (
        '[aria-sort="descending"] > button::after { content: "\\00a0\\25BE"; opacity: 1; }' in sheet
    )
    light = re.findall(r"--(\w+): (#\w+);", sheet.partition("@media")[0])
    assert COLOURS.items() <= dict(light).items()


# Tables


def task_tables() -> Iterator[_Outline]:
    """Yield tables of a task, with differences and without, and of all tasks."""
    table = build_table(RESULTS[:5], ("acc", "ece", "ece_floor"))
    drawn = Shift("−12.50", -0.125, "better", "−14.00 to −11.00", BAR)
    shifts = {"ece": {"ls": drawn, "mbls+ts": Shift("≈ +0.01", 0.0001, "similar", "", None)}}
    words = ("t-1", "What & where", "ce", shifts, "NOTES")
    yield written("tables.html", "task_table", table, *words)
    further = build_table(RESULTS[:3], ("ece",))
    yield written("tables.html", "task_table", further, "more", "More", "ce", asides=False)
    yield written("tables.html", "overview_table", build_table(RESULTS, ("acc",)))
    places = [
        result("ce", task, dataset="data", model=task, protocol="p", test=seeds(0.5))
        for task in ("one", "two")
    ]
    yield written("tables.html", "overview_table", build_table(places, ("ece",)))


def other_tables() -> Iterator[_Outline]:
    """Yield costs, failures and runs: of several tasks and of one, known and unknown."""
    costs = {("digits", "ce"): 10.0, ("digits", "ls"): 25.04, ("odd", "ls"): 3.0}
    yield written("tables.html", "cost_table", costs, "ce", True)
    yield written("tables.html", "cost_table", {("digits", "ce"): 0.0}, "ce", False)
    trial = Failure("ce", "digits", "trial 3", "<oom>", '{"a": 1}')
    study = Failure("ls", "odd", "study failed", "none finished")
    yield written("tables.html", "failure_table", [trial, study], True)
    yield written("tables.html", "failure_table", [trial], False)
    known = Run("ce", "digits", 7, "t1", "r1", "p1")
    yield written("tables.html", "run_table", [known, Run("ls", "odd", None, "", "", "")], True)
    yield written("tables.html", "run_table", [known], False)


def panels() -> Iterator[_Outline]:
    yield written("charts.html", "panels", [chart("ce", text="ECE 1 %")])
    yield written("charts.html", "figures", [chart("q")])


@pytest.mark.parametrize(("count", "filtered"), [(5, False), (6, True)])
def test_more_than_five_rows_or_charts_get_a_filter(count: int, filtered: bool) -> None:
    costs = {("digits", f"recipe {number}"): 1.0 for number in range(count)}
    found = written("tables.html", "cost_table", costs, "ce", False)
    panels = [chart(f"p{number}", text="text") for number in range(count)]
    shown = written("charts.html", "panels", panels)
    words = ['p class="controls" hidden', "label Show rows with"]
    assert found.lines[1:3] == words if filtered else found.lines[1].startswith("div class")
    assert ("label Show recipes with" in shown.lines) == filtered
    assert shown.lines.count('figure data-item aria-label="a label"') == count


def test_a_specification_cannot_end_its_script() -> None:
    found = str(environment().get_template("charts.html").module.drawing(chart("c")))  # type: ignore[attr-defined]
    assert found.count("</script>") == 1
    assert json.loads(HELD.fullmatch(found)[1]) == {"mark": "</script><b>"}  # type: ignore[index]


def test_an_interval_has_a_bar_a_dot_and_an_arrow() -> None:
    module = environment().get_template("charts.html").module
    found = " ".join(str(module.interval(BAR, "better")).split())  # type: ignore[attr-defined]
    assert found == (
        '<svg class="interval better" viewBox="-4 0 108 12" preserveAspectRatio="none" '
        'aria-hidden="true"><path d="M50 0V12"/><rect x="10.0" y="5" width="50.0" height="2"/>'
        '<ellipse cx="35.0" cy="6" rx="3.5" ry="3"/><polygon points="0,2 -4,6 0,10"/></svg>'
    )


# The page


def study(name: str, **fields: Any) -> dict[str, Any]:
    charts = ("best", "importance", "slices", "parallel", "fronts", "curves", "seeds")
    empty = {**dict.fromkeys(charts, ()), "weighed": "", "left": 0}
    return {"name": name, "text": f"text of {name}", "live": False, **empty, **fields}


def task(name: str, **fields: Any) -> dict[str, Any]:
    table = build_table(RESULTS[:1], ("acc", "ece"))
    empty = dict.fromkeys(("lead", "further", "scatter", "reliability", "risk", "maps"), ())
    return {
        **{"name": name, "table": table, "shifts": {}, "gains": {}, "gained": None},
        **{"bootstrap": None, "left": 0, "problem": "", "absent": {}, "seeds": False, **empty},
        **{"ungained": {}},
        **fields,
    }


BARE = {
    **dict.fromkeys(("several", "journal"), False),
    **dict.fromkeys(("no_ranks", "no_arena", "computed", "spec", "pending", "note_at"), ""),
    **dict.fromkeys(("failures", "facts", "runs"), ()),
    **dict.fromkeys(("overviews", "lines", "progress", "written", "studies", "retention"), ()),
    **{"name": "a & b", "baseline": "ce", "summary": "1 recipe", "diagram": None},
    **{
        "arena": None,
        "shown": column("ece"),
        "most_curves": 16,
        "undrawn": 0,
        "costs": {},
        "states": {},
        "version": "9.9",
    },
    "tasks": [task("digits")],
}


def page_of(**content: Any) -> _Outline:
    return _Outline(environment().get_template("sweep.html").render({**BARE, **content}))


SEARCHED = [chart("one", "slice")]


def whole() -> Iterator[_Outline]:
    """Yield a page that has every section, and one that has none."""
    other = ("Other", build_table(RESULTS[:1], ("nll",)))
    first = task(
        "first",
        **{"lead": ["Lead 1", "Lead 2"], "further": [other], "seeds": True, "left": 3},
        **{"gained": build_table(RESULTS[:1], ("ece",)), "absent": {"fl": "gone", "au": "lost"}},
        **{"ungained": {"ls": "gone too"}},
        **{"scatter": chart("", "scatter"), "maps": [Maps("ce", "data:m")]},
        **{"reliability": [chart("r", "rel", "t")]},
        **{"risk": [chart("k", "risk", "area")]},
    )
    second = task("second", problem="damaged", further=[other], gained=first["gained"])
    yield page_of(
        several=True,
        overviews=[build_table(RESULTS, (metric,)) for metric in ("ece", "acc")],
        **{"diagram": chart("ranks", "ranked"), "no_ranks": "no ranks", "no_arena": "no arena"},
        **{"tasks": [first, second], "journal": True},
        **{
            "retention": SEARCHED,
            "progress": SEARCHED,
            "computed": "Computed.",
            "written": [("sweep", "", "a & b")],
            "costs": {("first", "ce"): 1.0},
        },
        **{
            "failures": [Failure("ce", "first", "w", "r")],
            "facts": [("Sweep", "x"), ("Code", "y")],
        },
        **{"runs": [Run("ce", "first", 1, "t", "r", "p")], "spec": "name: x"},
    )
    yield page_of()


def searches() -> Iterator[_Outline]:
    """Yield studies with all, some and nothing to draw."""
    shares = [("gamma", 0.75), ("width", 0.25)]
    studies = [
        study(
            "s1",
            best=SEARCHED,
            slices=SEARCHED,
            parallel=SEARCHED,
            importance=shares,
            weighed="By trees.",
            fronts=SEARCHED,
            left=2,
        ),
        study("s2", curves=SEARCHED, seeds=SEARCHED),
        study("s3", slices=SEARCHED, weighed="Too few."),
        study("s4"),
    ]
    yield page_of(studies=studies, journal=True, undrawn=7)
    yield page_of(studies=studies[3:], journal=True)


def arenas() -> Iterator[_Outline]:
    """Yield a table of an arena, in the units of its headings, and a page that has one."""
    gains = {"nll": Interval(0.5, -0.25, 0.75), "brier": Interval(-0.1, -0.2, 0.0)}
    gains["ece"] = Interval(0.0123, 0.01, 0.02)
    standings = (
        Standing("ts", gains, Interval(0.63, 0.5, 0.75), 123.4, 0.25),
        Standing("given", gains, Interval(0.5, 0.5, 0.5), 0.0, None),
    )
    absent = {"ets": "no fit", "pts": "lost"}
    arena = Arena("given", standings, ("one", "two"), 4, 3, absent)
    yield written("tables.html", "arena_table", arena)
    yield page_of(several=True, arena=arena)


def notes() -> Iterator[_Outline]:
    """Yield the notes on a task of one seed and of several, and its page."""
    table = build_table([result("ce+ts", test=seeds(0.25))], ("ece", "ece_floor"))
    bootstrap = SimpleNamespace(draws=7, drawn="90 test rows", groups=3, rows=11)
    panel = [chart("r", "rel", "t")]
    for several in (False, True):
        own = task("digits", table=table, seeds=several, bootstrap=bootstrap)
        yield written("tables.html", "notes", own, "ls")
        yield written("tables.html", "gain_note", own)
        yield page_of(tasks=[{**own, "reliability": panel, "risk": panel}])


@pytest.mark.parametrize(
    "part", [task_tables, other_tables, panels, whole, searches, arenas, notes]
)
def test_what_templates_write(part: Callable[[], Iterator[_Outline]], file_regression: Any) -> None:
    """After a change that is meant, run this file with ``--force-regen`` and read what differs."""
    said = []
    for found in part():
        rows = (" | ".join(row) for row in found.rows)
        said.append("\n".join([*found.lines, *rows]))
    file_regression.check("\n\n".join(said), basename=part.__name__, encoding="utf-8")
