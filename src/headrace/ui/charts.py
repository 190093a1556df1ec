"""Charts (ECharts) and diagrams (inline SVG).

    chart = LineChart("Records in, last 15 minutes", ["in"], "records/s")
    diagram = Diagram("Path of a record", 1180, 420)
    page.live(lambda: diagram.show([Box(…), …], [Arrow(…), …]))

Chart colours are the colour-blind-safe palette of Okabe and Ito; lines also differ in their dashes. Other colours are
CSS variables of the page, which SVG understands, so that light and dark themes both work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from nicegui import ui

from headrace.ui.collector import HISTORY_SECONDS, Point

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
DASHES = ("solid", "dashed", "dotted")
POINTS_MAX = 450
"""Points per line: more cannot be distinguished on a screen."""
STEPS_MAX = 4
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 256, 512)
_TEXT, _GRID = "var(--hr-muted)", "var(--hr-line)"

LINE_PIXELS = 18
TITLE_PIXELS = 24
PADDING_PIXELS = 12
BAR_PIXELS = 6
CHARACTER_PIXELS = 6.9
"""Estimated width of a character in a box. Text that does not fit is cut; the tooltip has all of it."""

Tone = Literal["", "good", "warn", "bad", "here", "faint"]
_STROKES = {
    "": ("var(--hr-line)", 1.2),
    "good": ("var(--hr-good)", 2.0),
    "warn": ("var(--hr-warn)", 2.5),
    "bad": ("var(--hr-bad)", 2.5),
    "here": ("var(--hr-blue)", 3.0),
    "faint": ("var(--hr-line)", 1.0),
}


class LineChart:
    """Lines over the last 15 minutes; `unit` labels the axis."""

    def __init__(self, label: str, names: Sequence[str], unit: str, *, is_bytes: bool = False) -> None:
        self._is_bytes = is_bytes
        self._shown: Any = None
        options = _frame(unit, names, is_bytes)
        options["xAxis"] = {"type": "time", "axisLabel": {"color": _TEXT, "hideOverlap": True}, "axisLine": _line()}
        options["series"] = [
            {
                "name": name,
                "type": "line",
                "symbol": "none",
                "color": PALETTE[index % len(PALETTE)],
                "lineStyle": {"type": DASHES[index % len(DASHES)], "width": 2},
                "data": [],
            }
            for index, name in enumerate(names)
        ]
        self._chart = ui.echart(options, renderer="svg").classes("hr-chart")
        self._chart.props(f'role="img" aria-label="{label}"')

    def show(self, lines: Mapping[str, Sequence[Point]]) -> None:
        """Draw points by the names of the lines."""
        newest = {name: points[-1] if points else None for name, points in lines.items()}
        if newest == self._shown:
            return
        self._shown = newest
        options, now = self._chart.options, time.time()
        if self._is_bytes:
            options["yAxis"]["interval"], options["yAxis"]["max"] = byte_steps(
                max((value or 0.0 for points in lines.values() for _, value in points), default=0.0)
            )
        options["xAxis"]["min"], options["xAxis"]["max"] = (now - HISTORY_SECONDS) * 1000, now * 1000
        for series in options["series"]:
            points = thinned(lines.get(series["name"], ()))
            series["data"] = [[round(at * 1000), None if value is None else round(value, 3)] for at, value in points]
        self._chart.update()


class StackedBars:
    """Stacked bars, the newest on the right."""

    def __init__(self, label: str, names: Sequence[str], unit: str, *, hidden: Sequence[str] = ()) -> None:
        """`hidden` parts are drawn only after a click on their name in the legend."""
        self._shown: Any = None
        options = _frame(unit, names, False)
        options["legend"]["selected"] = {name: name not in hidden for name in names}
        options["xAxis"] = {"type": "category", "data": [], "axisLabel": {"color": _TEXT}, "axisLine": _line()}
        options["series"] = [
            {"name": name, "type": "bar", "stack": "all", "color": PALETTE[index % len(PALETTE)], "data": []}
            for index, name in enumerate(names)
        ]
        self._chart = ui.echart(options, renderer="svg").classes("hr-chart")
        self._chart.props(f'role="img" aria-label="{label}"')

    def show(self, bars: Sequence[tuple[str, Mapping[str, float]]]) -> None:
        """Draw bars: a name, and a value for each part."""
        drawn = [(name, dict(parts)) for name, parts in bars]
        if drawn == self._shown:
            return
        self._shown = drawn
        options = self._chart.options
        options["xAxis"]["data"] = [name for name, _ in drawn]
        for series in options["series"]:
            series["data"] = [round(parts.get(series["name"], 0.0), 3) for _, parts in drawn]
        self._chart.update()


def byte_steps(highest: float) -> tuple[float, float]:
    """Return step and end of an axis of bytes, round in binary units: ECharts only knows decimal ones."""
    unit = 1.0
    while highest / unit >= 1024:
        unit *= 1024
    step = next(step * unit for step in _STEPS if highest <= step * unit * STEPS_MAX)
    return step, step * max(1, -int(-highest // step))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Reduce points to POINTS_MAX by keeping the peak of each group."""
    if len(points) <= POINTS_MAX:
        return points
    step = -(-len(points) // POINTS_MAX)
    groups = (points[at : at + step] for at in range(0, len(points), step))
    return [max(group, key=lambda point: -1.0 if point[1] is None else point[1]) for group in groups]


def _frame(unit: str, names: Sequence[str], is_bytes: bool) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "type": "value",
        "name": unit,
        "nameTextStyle": {"color": _TEXT, "align": "left"},
        "min": 0,
        "axisLabel": {"color": _TEXT},
        "splitLine": {"lineStyle": {"color": _GRID}},
        "minInterval": 1,
    }
    if is_bytes:
        axis["axisLabel"][":formatter"] = "value => window.headraceBytes(value)"
    return {
        "animation": False,
        "useUTC": True,
        "textStyle": {"fontFamily": "sans-serif"},
        "grid": {"left": 64, "right": 26, "top": 34, "bottom": 28},
        "legend": {"show": len(names) > 1, "top": 0, "right": 8, "textStyle": {"color": _TEXT}},
        "tooltip": {"trigger": "axis"},
        "yAxis": axis,
    }


def _line() -> dict[str, Any]:
    return {"lineStyle": {"color": _GRID}}


# -- diagrams ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """A box with a title and lines of text; `bar` is a share from 0 to 1, drawn at the bottom."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: Sequence[str] = ()
    tone: Tone = ""
    bar: float | None = None
    mark: str = ""
    """A word in the corner, so that nothing is shown by colour alone."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line through points, with a tip at the last one."""

    points: Sequence[tuple[int, int]]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """Text outside of boxes."""

    x: int
    y: int
    text: str


class Diagram:
    """A diagram on a page. All text is escaped: some of it comes from other processes."""

    def __init__(self, label: str, width: int, height: int) -> None:
        self._label = label
        self._width = width
        self._height = height
        self._element = ui.html("", sanitize=False).classes("hr-drawing")

    def show(self, boxes: Sequence[Box], arrows: Sequence[Arrow], labels: Sequence[Label] = ()) -> None:
        """Draw boxes, arrows and labels; an unchanged diagram is not sent to the browser."""
        svg = self._svg(boxes, arrows, labels)
        if svg != self._element.content:
            self._element.set_content(svg)

    def _svg(self, boxes: Sequence[Box], arrows: Sequence[Arrow], labels: Sequence[Label]) -> str:
        description = "; ".join(", ".join([box.title, box.mark, *box.lines]) for box in boxes)
        parts = [
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{escape(self._label)}"'
            f' style="width: 100%; max-width: {self._width * 5 // 4}px">',
            f"<desc>{escape(description)}</desc>",
            '<defs><marker id="hr-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
            ' orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--hr-muted)"/></marker></defs>',
            *map(_arrow, arrows),
            *map(_box, boxes),
            *map(_label, labels),
            "</svg>",
        ]
        return "".join(parts)


def _box(box: Box) -> str:
    colour, width = _STROKES[box.tone]
    ink = "var(--hr-muted)" if box.tone == "faint" else "var(--hr-text)"
    left, top = box.x + PADDING_PIXELS, box.y + TITLE_PIXELS - 4
    full_text = ", ".join([box.title, *box.lines])
    parts = [
        f"<g><title>{escape(full_text)}</title>",
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" fill="var(--hr-page)"'
        f' stroke="{colour}" stroke-width="{width}"/>',
        f'<text x="{left}" y="{top}" font-weight="600" fill="{ink}">{escape(box.title)}</text>',
    ]
    if box.mark:
        parts.append(
            f'<text x="{box.x + box.width - PADDING_PIXELS}" y="{top}" text-anchor="end" font-weight="600"'
            f' fill="{ink if box.tone == "" else colour}">{escape(box.mark)}</text>'
        )
    characters_max = int((box.width - 2 * PADDING_PIXELS) / CHARACTER_PIXELS)
    for number, line in enumerate(box.lines):
        y = top + (number + 1) * LINE_PIXELS + 2
        parts.append(f'<text x="{left}" y="{y}" fill="{ink}">{escape(_cut(line, characters_max))}</text>')
    if box.bar is not None:
        parts.append(_bar(box, min(1.0, max(0.0, box.bar)), colour if box.tone else "var(--hr-blue)"))
    return "".join([*parts, "</g>"])


def _bar(box: Box, share: float, colour: str) -> str:
    x, y = box.x + PADDING_PIXELS, box.y + box.height - PADDING_PIXELS - BAR_PIXELS + 2
    width = box.width - 2 * PADDING_PIXELS
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{BAR_PIXELS}" rx="3" fill="var(--hr-line)"/>'
        f'<rect x="{x}" y="{y}" width="{width * share:.1f}" height="{BAR_PIXELS}" rx="3" fill="{colour}"/>'
    )


def _arrow(arrow: Arrow) -> str:
    path = "M" + "L".join(f"{x} {y}" for x, y in arrow.points)
    dashes = ' stroke-dasharray="5 4"' if arrow.is_dashed else ""
    return (
        f'<path d="{path}" fill="none" stroke="var(--hr-muted)" stroke-width="1.5" marker-end="url(#hr-tip)"{dashes}/>'
    )


def _label(label: Label) -> str:
    return f'<text x="{label.x}" y="{label.y}" fill="var(--hr-muted)">{escape(label.text)}</text>'


def _cut(text: str, characters_max: int) -> str:
    return text if len(text) <= characters_max else text[: max(1, characters_max - 1)] + "…"
