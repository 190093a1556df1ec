"""The plots of the report, as SVG: text in, text out. Colours come from the page, by class, so they follow its scheme.

Frame: axes, grid, ticks; data → pixels      rows_plot, batches_plot, commits_plot: what is drawn in it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from headrace.demo.outcome import BatchTimes, Kill, percentile

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
X_TICKS, Y_TICKS = 8, 5
POINTS_MAX = 1_500
BINS = 24
CLIP_FACTOR = 3.0
"""Bars and bins end at so many times the middle: a first batch, on a cold Spark, would flatten all others."""
Phase = tuple[str, str, Callable[[BatchTimes], float]]
PHASES: tuple[Phase, ...] = (
    ("plan", "planning", lambda batch: batch.plan_ms),
    ("write", "writing (tasks)", lambda batch: batch.write_ms),
    ("commit", "commit (sink)", lambda batch: batch.commit_ms),
    ("log", "Spark's own logs", lambda batch: batch.log_ms),
)
_LABEL_GAP = 112
_LABEL_ROWS = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot's axes, both from 0."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.y_max

    def drawn(self, title: str, x_name: str, y_name: str, body: Sequence[str], *, x_ticks: bool = True) -> str:
        """The whole picture; `title` is for those who do not see it."""
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
            *self._y_axis(y_name),
            *(self._x_axis() if x_ticks else ()),
            f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(x_name)}</text>",
            *body,
            f'<line class="axis" x1="{LEFT}" y1="{self.y(0):.1f}" x2="{WIDTH - RIGHT}" y2="{self.y(0):.1f}"/>',
            "</svg>",
        ]
        return "\n".join(parts)

    def _y_axis(self, name: str) -> list[str]:
        parts = [f'<text class="name" x="{LEFT}" y="14">{escape(name)}</text>']
        for value in ticks(self.y_max, Y_TICKS):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
        return parts

    def _x_axis(self) -> list[str]:
        return [
            f'<text class="tick" x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{short(value)}</text>"
            for value in ticks(self.x_max, X_TICKS)
        ]


def rows_plot(samples: Sequence[tuple[float, int]], kills: Sequence[Kill], rows: int) -> str:
    """Rows visible over time, in steps, with the kills and the gaps they made."""
    end_s = max([at_s for at_s, _ in samples] or [1.0])
    frame = Frame(max(end_s, 1.0), max(rows, 1) * 1.04)
    body: list[str] = []
    rows_of_labels = _label_rows([frame.x(kill.at_s) for kill in kills if kill.is_done])
    for kill, row in zip([kill for kill in kills if kill.is_done], rows_of_labels, strict=True):
        body += _kill_marks(frame, kill, row)
    path: list[str] = []
    last_y = frame.y(0)
    for at_s, count in _thinned(samples):
        x, y = frame.x(at_s), frame.y(count)
        path.append(f"L{x:.1f} {last_y:.1f}" if path else f"M{x:.1f} {last_y:.1f}")
        if y != last_y:
            path.append(f"L{x:.1f} {y:.1f}")
        last_y = y
    if path:
        body.append(f'<path class="line" d="{"".join(path)}"/>')
    told = "; ".join(f"{kill.what} killed at {kill.at_s:.1f} s" for kill in kills if kill.is_done)
    title = f"Rows visible over time: {rows:,} after {end_s:.1f} s; {told}"
    return frame.drawn(title, "seconds since the driver was started", "rows visible", body)


def batches_plot(batches: Sequence[BatchTimes]) -> str:
    """A bar for each batch, stacked by phase."""
    totals = [batch.total_ms for batch in batches]
    top_ms = _clip(totals)
    frame = Frame(max(1, len(batches)), top_ms * 1.08)
    width = frame.x(1) - frame.x(0)
    body: list[str] = []
    step = max(1, math.ceil(len(batches) / 20))
    for place, batch in enumerate(batches):
        x = frame.x(place) + width * 0.12
        hint = ", ".join(f"{name} {of(batch):,.0f} ms" for _, name, of in PHASES)
        body.append(f"<g><title>batch {batch.batch}: {batch.rows:,} rows, {batch.total_ms:,.0f} ms: {hint}</title>")
        base_ms = 0.0
        for css, _, of in PHASES:
            end_ms = min(base_ms + of(batch), top_ms)
            body.append(_bar(f"fill-{css}", x, frame.y(end_ms), width * 0.76, frame.y(base_ms) - frame.y(end_ms)))
            base_ms = end_ms
        if batch.total_ms > top_ms:
            body.append(_over(x + width * 0.38, frame.y(top_ms) - 5, f"{batch.total_ms / 1000:.1f} s"))
        body.append("</g>")
        if place % step == 0:
            middle, low = x + width * 0.38, HEIGHT - BOTTOM + 16
            body.append(f'<text class="tick" x="{middle:.1f}" y="{low}" text-anchor="middle">{batch.batch}</text>')
    title = f"Duration of {len(batches)} batches by phase; the one in the middle took {percentile(totals, 50):,.0f} ms"
    return frame.drawn(title, "batch", "milliseconds", body, x_ticks=False)


def commits_plot(commits_ms: Sequence[float]) -> str:
    """How many commits took how long, with the middle and the 95th percentile."""
    p50, p95 = percentile(commits_ms, 50), percentile(commits_ms, 95)
    width_ms = _nice(max(_clip(commits_ms), 1.0) / BINS)
    counts = [0] * (BINS + 1)  # the last one is for all that took longer
    for value in commits_ms:
        counts[min(BINS, int(value / width_ms))] += 1
    frame = Frame((BINS + 1) * width_ms, max(counts) * 1.15 or 1)
    body: list[str] = []
    for place, count in enumerate(counts):
        x, y = frame.x(place * width_ms), frame.y(count)
        is_rest = place == BINS
        what = (
            f"{place * width_ms:g} ms or more" if is_rest else f"{place * width_ms:g} to {(place + 1) * width_ms:g} ms"
        )
        bar = _bar("fill-rest" if is_rest else "fill-commit", x + 1, y, frame.x(width_ms) - LEFT - 2, frame.y(0) - y)
        body.append(f"<g><title>{count} commits took {what}</title>{bar}</g>")
        if is_rest and count:
            body.append(_over(x - 4, frame.y(0) - 5, f"{count} longer", anchor="end"))
    for name, value, row in (("median", p50, 0), ("95 %", p95, 1)):
        # A value beyond the scale is marked in the middle of the bin that holds it.
        x, at = frame.x(min(value, (BINS + 0.5) * width_ms)), TOP - 6 + 14 * row
        anchor, shift = ("end", -5) if x > WIDTH - RIGHT - 130 else ("start", 5)
        body.append(f'<line class="mark" x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{frame.y(0):.1f}"/>')
        body.append(f'<text class="label" x="{x + shift:.1f}" y="{at}" text-anchor="{anchor}">')
        body.append(f"{name} {value:,.1f} ms</text>")
    title = f"{len(commits_ms)} commits; median {p50:,.1f} ms, 95th percentile {p95:,.1f} ms"
    return frame.drawn(title, "milliseconds from the last task's report to the end of the commit", "commits", body)


def legend() -> str:
    """Of the phases."""
    items = (f'<span class="key"><i class="fill-{css}"></i>{escape(name)}</span>' for css, name, _ in PHASES)
    return f'<p class="legend">{"".join(items)}</p>'


def ticks(top: float, count: int) -> list[float]:
    """Round numbers from 0 up to `top`, about so many."""
    step = _nice(top / count)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A tick in as few characters as it takes: 1.5M, 250k, 12."""
    for unit, letter in ((1_000_000, "M"), (10_000, "k")):
        if value >= unit:
            return f"{value / (1_000 if letter == 'k' else unit):g}{letter}"
    return f"{value:,.6g}"


def _nice(value: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, and not less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value * 0.999)


def _clip(values: Sequence[float]) -> float:
    return max(1.0, min(max(values, default=1.0), CLIP_FACTOR * percentile(values, 50)))


def _thinned(samples: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    step = max(1, math.ceil(len(samples) / POINTS_MAX))
    return [*samples[:-1:step], samples[-1]] if samples else []


def _label_rows(places: Sequence[float]) -> list[int]:
    """A row for each label, so that neighbours do not lie on one another."""
    found: list[int] = []
    ends = [-math.inf] * _LABEL_ROWS
    for place in places:
        row = next((row for row, end in enumerate(ends) if place >= end), 0)
        ends[row] = place + _LABEL_GAP
        found.append(row)
    return found


def _kill_marks(frame: Frame, kill: Kill, row: int) -> list[str]:
    x, top = frame.x(kill.at_s), TOP - 12 + 15 * row
    parts = []
    if kill.back_s is not None:
        wide = frame.x(kill.at_s + kill.back_s) - x
        hint = f"no new rows for {kill.back_s:.1f} s"
        parts.append(
            f'<rect class="gap" x="{x:.1f}" y="{TOP}" width="{wide:.1f}" height="{frame.y(0) - TOP:.1f}">'
            f"<title>{hint}</title></rect>"
        )
    anchor, shift = ("end", -6) if x > WIDTH - RIGHT - 130 else ("start", 6)
    back = "" if kill.back_s is None else f", {kill.back_s:.1f} s"
    parts.append(f'<line class="kill" x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{frame.y(0):.1f}"/>')
    parts.append(f'<text class="label kill-text" x="{x + shift:.1f}" y="{top}" text-anchor="{anchor}">')
    parts.append(f"✕ {kill.what}{back}</text>")
    return parts


def _bar(css: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{css}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(0.0, height):.1f}"/>'


def _over(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="over" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
