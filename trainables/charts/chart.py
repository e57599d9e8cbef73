"""Charts as Vega-Lite specifications, functions that build them, and image files."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Spec = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

VERSION = "6.4"  # The version of Vega-Lite.
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
KINDS = (".pdf", ".png", ".svg")  # Endings of image files.
SCALE = 2.0  # Pixels of a PNG file per pixel of a chart.
POINTS = 100  # Maximum number of points of a curve; more are not visible.
WIDE = 20.0  # An axis is logarithmic above this ratio of its largest to its smallest value.

RAMP = ("#3d6fb6", "#2f93a8", "#55a868", "#b59a2f", "#d9742b")  # Legible on white and on black.
# Characters that XML 1.0 does not allow.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
COLOUR = re.compile(r"var\(--(\w+)\)")
# Colours in files. Pages have variables with the same names, which depend on the reader's theme.
COLOURS = {
    "paper": "#ffffff",
    "ink": "#16191d",
    "soft": "#59626c",
    "rule": "#dde1e6",
    "faint": "#f4f6f8",
    "blue": "#1f6fb2",
    "orange": "#b54c0b",
    "green": "#2b8a5a",
    "chance": "#e3e7eb",
    "reference": "#a9b1ba",
}
TEXT = {"labelColor": "var(--soft)", "titleColor": "var(--ink)", "titleFontWeight": 500}
CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "gridColor": "var(--rule)",
        "domainColor": "var(--soft)",
        "tickColor": "var(--soft)",
        "labelFontSize": 11,
        "titleFontSize": 12,
        "labelLimit": 120,
    },
    "axisX": {"grid": False},
    "legend": {**TEXT, "symbolLimit": 12, "symbolStrokeWidth": 3, "symbolOpacity": 1},
    "title": {"color": "var(--ink)", "subtitleColor": "var(--soft)", "anchor": "start"},
    "text": {"color": "var(--ink)", "fontSize": 12},
    "line": {"strokeJoin": "round"},
    "autosize": {"type": "fit", "contains": "padding"},
}
# The value of ``pick``'s field in the chosen row, or null. Charts of a group share it.
PICKED: Spec = {"name": "picked", "value": None}
# The wheel zooms only with the shift key; otherwise wheel and finger scroll the page.
ZOOM: Spec = {
    "name": "zoom",
    "bind": "scales",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.shiftKey]",
        "translate": "[pointerdown[event.pointerType === 'mouse'], window:pointerup] "
        "> window:pointermove!",
    },
}


@dataclass(frozen=True)
class Chart:
    """A chart with its title and description.

    Attributes:
        title: The title, which pages show above the chart.
        label: The description for screen readers.
        spec: The Vega-Lite specification. On a page it has the width of its container; its colours
            may be ``var(--NAME)`` of ``COLOURS``.
        text: Text next to the title, such as the calibration error.
        width: Width in a file, in pixels; a PNG file has ``SCALE`` times as many.
    """

    title: str
    label: str
    spec: Spec
    text: str = ""
    width: int = 340

    @property
    def alone(self) -> Spec:
        """Return the specification for a file, which includes width, colours and title."""
        spec = {"$schema": SCHEMA, **self.spec, "config": {**CONFIG, "background": "white"}}
        if spec.get("width") == "container":
            spec["width"] = self.width
        if self.title:
            spec["title"] = {"text": self.title, "subtitle": self.text}
        return _plain(spec)

    def image(self, kind: str) -> bytes:
        """Return the chart as an image of one of ``KINDS``, or raise ``ValueError``."""
        import vl_convert

        spec = json.dumps(self.alone, allow_nan=False)
        if kind == ".png":
            return vl_convert.vegalite_to_png(spec, VERSION, scale=SCALE)
        if kind == ".pdf":
            return vl_convert.vegalite_to_pdf(spec, VERSION)
        if kind == ".svg":
            return vl_convert.vegalite_to_svg(spec, VERSION).encode()
        raise ValueError(f"expected one of {', '.join(KINDS)}, got {kind!r}")

    def save(self, path: str | Path) -> None:
        """Write the chart as an image; the file's ending must be one of ``KINDS``."""
        image = self.image(Path(path).suffix)
        Path(path).write_bytes(image)


def writable(text: str) -> str:
    """Replace the characters of a text that XML does not allow; they would abort vl_convert."""
    return FORBIDDEN.sub("\ufffd", text)


def _plain(value: Any) -> Any:
    """Replace the variables in a part of a specification by colours, for a file."""
    if isinstance(value, str):
        return COLOUR.sub(lambda found: COLOURS.get(found[1], found[0]), writable(value))
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def drawn(
    title: str,
    label: str,
    layers: Sequence[Spec],
    rows: Rows = (),
    *,
    height: int = 240,
    width: int = 340,
    text: str = "",
    **more: Any,
) -> Chart:
    """Return a chart of layers, from back to front; layers without own rows use ``rows``."""
    spec = {"width": "container", "height": height, "description": label}
    values = {"data": {"values": list(rows)}, "params": [PICKED]}
    return Chart(title, label, {**spec, **values, **more, "layer": list(layers)}, text, width)


def layer(
    name: str,
    mark: str,
    encoding: Spec,
    rows: Rows | None = None,
    tone: str = "",
    params: Sequence[Spec] = (),
    transform: Sequence[Spec] = (),
    **looks: Any,
) -> Spec:
    """Return a layer of marks, clipped at the frame.

    ``tone`` is one of ``COLOURS``; ``looks`` are further properties of the mark.
    """
    looks |= {"color": f"var(--{tone})"} if tone else {}
    found = {"name": name, "mark": {"type": mark, "clip": True, **looks}, "encoding": encoding}
    if rows is not None:
        found["data"] = {"values": list(rows)}
    more = {"params": list(params), "transform": list(transform)}
    return {**found, **{key: value for key, value in more.items() if value}}


def amount(field: str, title: str, *, log: bool = False, **more: Any) -> Spec:
    """Return a Vega-Lite channel for numbers with an axis that fits them; ``more`` adds keys."""
    scale: Spec = {"type": "log"} if log else {"zero": False}
    scale |= {"nice": False, "padding": 10, **more.pop("scale", {})}
    axis = more.pop("axis", {})
    if "values" not in axis:  # With both keys, Vega would drop some of the values.
        axis = {"tickCount": 5, **axis}
    shown = {"field": field, "type": "quantitative", "title": title}
    return {**shown, "scale": scale, "axis": axis, **more}


def ramp(field: str, title: str, values: Iterable[float | None]) -> Spec:
    """Return a Vega-Lite channel of colours: the lowest value is blue, the highest orange."""
    found = [value for value in values if value is not None] or [0.0]
    scale = {"domain": [min(found), max(found)], "range": list(RAMP)}
    scale |= {"type": "log"} if spread_widely(found) else {}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def names(field: str, title: str, **more: Any) -> Spec:
    """Return a Vega-Lite channel for a field of names; ``more`` are further keys."""
    return {"field": field, "type": "nominal", "title": title, **more}


def curves(*fields: str) -> list[Spec]:
    """Return the transform that makes rows of points from rows whose fields are lists of values."""
    return [{"flatten": list(fields)}]


def tips(**fields: str) -> list[Spec]:
    """Return a tooltip with a line per ``FIELD=TITLE``; numbers have six significant digits."""
    return [{"field": name, "title": title, "format": ".6~g"} for name, title in fields.items()]


def pick(field: str) -> tuple[Spec, Spec]:
    """Return a parameter for choosing rows with a click, and an opacity that shows the choice."""
    click = {"name": "pick", "select": {"type": "point", "fields": [field]}}
    chosen = {"test": f"picked === null || datum[{field!r}] === picked", "value": 1}
    return click, {"condition": chosen, "value": 0.12}


def spread_widely(values: Iterable[float], ratio: float = WIDE) -> bool:
    """Return True if values are positive and the largest is above ``ratio`` times the smallest."""
    found = list(values)
    return min(found) > 0 and max(found) / min(found) > ratio


def thinned(points: Sequence[T], most: int = POINTS) -> list[T]:
    """Return at most ``most`` evenly spaced items of a sequence, including both ends."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def side_by_side(title: Sequence[str], charts: Sequence[Chart], columns: int = 4) -> Chart:
    """Combine charts into one for a file.

    ``title`` has one string per line; the first is also the description for screen readers.
    """
    parts = {"concat": [_part(chart) for chart in charts], "columns": columns}
    return Chart("", title[0], {"title": list(title), "params": [PICKED], **parts})


def _part(chart: Chart) -> Spec:
    """Return a chart's specification without parameters and names, which would be repeated."""
    kept = {key: value for key, value in chart.spec.items() if key != "params"}
    layers = [
        {key: value for key, value in each.items() if key not in ("name", "params")}
        for each in chart.spec["layer"]
    ]
    return {**kept, "width": chart.width, "title": chart.title, "layer": layers}
