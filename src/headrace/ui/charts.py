"""Charts, by the ECharts that NiceGUI brings: lines over the last minutes, stacked bars.

Colours are Okabe and Ito's, which colour-blind people can tell apart; lines also differ in their dashes, bars in their
patterns' order and names. Text takes its colours from the page (SVG knows CSS variables), so light and dark both work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from headrace.ui.history import HISTORY_SECONDS, Point

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
DASHES = ("solid", "dashed", "dotted")
POINTS_MAX = 450
"""Of a line: more cannot be told apart on a screen."""
STEPS_MAX = 4
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 256, 512)
_TEXT, _GRID = "var(--hr-muted)", "var(--hr-line)"


class LineChart:
    """Lines over the last fifteen minutes. Values are in `unit`, which stands at the axis."""

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
        """Draw these points, by the names of the lines."""
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
    """Bars of several parts each, the newest at the right."""

    def __init__(self, label: str, names: Sequence[str], unit: str, *, hidden: Sequence[str] = ()) -> None:
        """`hidden` are parts that are drawn only when somebody presses their name."""
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
        """Draw these bars: a name, and a value for each part."""
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
    """Steps of an axis of bytes that are round in its units, and where it ends: ECharts counts in tens."""
    unit = 1.0
    while highest / unit >= 1024:
        unit *= 1024
    step = next(step * unit for step in _STEPS if highest <= step * unit * STEPS_MAX)
    return step, step * max(1, -int(-highest // step))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """As many points as can be told apart: the peak of each few, so that none gets lost."""
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
