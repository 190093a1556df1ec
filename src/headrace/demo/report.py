"""The report: a self-contained HTML page with SVG plots, whose colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from headrace.demo.outcome import BatchTimes, DemoOutcome, Kill, percentile

WIDTH, HEIGHT = 860, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
X_TICKS, Y_TICKS = 8, 5
POINTS_MAX = 1_500
BINS = 24
CLIP_FACTOR = 3.0
"""Bars and bins are clipped at this multiple of the median: the first batch of a cold Spark takes much longer."""
Phase = tuple[str, str, Callable[[BatchTimes], float]]
PHASES: tuple[Phase, ...] = (
    ("plan", "planning", lambda batch: batch.plan_ms),
    ("write", "writing (tasks)", lambda batch: batch.write_ms),
    ("commit", "commit (sink)", lambda batch: batch.commit_ms),
    ("log", "Spark's logs", lambda batch: batch.log_ms),
)
_LABEL_GAP = 112
_LABEL_ROWS = 2

_STYLE = """
:root { color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1d2530; --soft: #5a6472; --rule: #dfe3e8; --grid: #e9ecf0;
  --plan: #a3acb8; --write: #1f6fb4; --commit: #d1600a; --log: #7a4fa3; --line: #1f6fb4;
  --kill: #b3261e; --gap: rgba(179, 38, 30, .10); --good: #1b7a3d; --good-back: #e6f4ea; --bad-back: #fce8e6; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181d; --card: #1c2229; --text: #e6eaf0; --soft: #a2adba; --rule: #343d48; --grid: #2a323c;
  --plan: #6d7885; --write: #5aa9e6; --commit: #f39a4a; --log: #b796dd; --line: #5aa9e6;
  --kill: #ff8a80; --gap: rgba(255, 138, 128, .14); --good: #7ddb9b; --good-back: #17301f; --bad-back: #3a1d1c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.15rem; margin: 36px 0 4px; }
p { margin: 0 0 12px; } .soft { color: var(--soft); }
.verdict { border-radius: 10px; padding: 14px 18px; margin: 20px 0; font-size: 1.1rem; font-weight: 600; }
.verdict.good { background: var(--good-back); color: var(--good); }
.verdict.bad { background: var(--bad-back); color: var(--kill); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(164px, 1fr)); gap: 10px; margin: 0; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles dd small { font-size: .8rem; font-weight: 400; color: var(--soft); }
figure { margin: 8px 0 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 10px 6px; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 620px; height: auto; font: 12px system-ui, sans-serif; }
.axis { stroke: var(--soft); } .grid { stroke: var(--grid); } .tick, .name { fill: var(--soft); }
.label, .over { fill: var(--text); } .over { font-size: 11px; }
.line { fill: none; stroke: var(--line); stroke-width: 2.2; stroke-linejoin: round; }
.kill { stroke: var(--kill); stroke-width: 1.6; stroke-dasharray: 4 3; } .kill-text { fill: var(--kill); }
.gap { fill: var(--gap); } .mark { stroke: var(--text); stroke-dasharray: 2 3; }
.fill-plan { fill: var(--plan); background: var(--plan); } .fill-write { fill: var(--write); background: var(--write); }
.fill-commit { fill: var(--commit); background: var(--commit); } .fill-log { fill: var(--log); background: var(--log); }
.fill-rest { fill: var(--plan); }
.legend { margin: 4px 0 0; color: var(--soft); font-size: .9rem; } .key { margin-right: 18px; white-space: nowrap; }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin-top: 8px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 500; font-size: .9rem; white-space: nowrap; }
.note { min-width: 230px; } .number { text-align: right; white-space: nowrap; }
details { margin-top: 28px; } summary { cursor: pointer; color: var(--soft); }
"""


def write_report(outcome: DemoOutcome, path: Path) -> None:
    """Write the page, and create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render_page(outcome), encoding="utf-8")


def render_page(outcome: DemoOutcome) -> str:
    """Return the page as HTML."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>headrace demo: {outcome.rows_in:,} orders</title><style>{_STYLE}</style></head><body><main>",
            *_head(outcome),
            *_tiles(outcome),
            *_kills(outcome.kills),
            "<h2>Rows visible to a read_committed consumer</h2>",
            '<p class="soft">Every step is a batch. Red: a process was killed, and no new rows became visible.</p>',
            f"<figure>{rows_plot(outcome.samples, outcome.kills, outcome.rows_in)}</figure>",
            "<h2>Duration of batches</h2>",
            f"<figure>{batches_plot(outcome.batches)}{legend()}</figure>",
            "<h2>Commits</h2>",
            '<p class="soft">The cost of exactly-once: checking that the transactions of all tasks are open, writing '
            "the decision, ending the transactions.</p>",
            f"<figure>{commits_plot([commit.total_ms for commit in outcome.commits])}</figure>",
            *_details(outcome),
            "</main></body></html>",
            "",
        ]
    )


def _head(outcome: DemoOutcome) -> list[str]:
    killed = [kill.what for kill in outcome.kills if kill.is_done]
    names = [f"a {killed[0]}", *(f"the {what}" for what in killed[1:])] if killed else []
    verb = "was" if len(names) == 1 else "were"
    kills = f" while {joined(names)} {verb} killed with SIGKILL" if names else ""
    if outcome.is_equal:
        kind, text = "good", f"✓ Every row once: {outcome.rows_visible:,} of {outcome.rows_in:,}, in order."
    else:
        kind, text = "bad", "✕ Source and topic differ: see the numbers below."
    return [
        f"<h1>{outcome.rows_in:,} orders from Spark to Kafka</h1>",
        f'<p class="soft">Delivered to {escape(outcome.cluster)}{kills}.</p>',
        f'<p class="verdict {kind}">{text}</p>',
    ]


def _tiles(outcome: DemoOutcome) -> list[str]:
    tiles = [
        ("rows in", f"{outcome.rows_in:,}"),
        ("rows visible", f"{outcome.rows_visible:,}"),
        ("lost", f"{outcome.audit.get('lost', 0):,}"),
        ("duplicated", f"{outcome.duplicated:,}"),
        ("out of order", f"{outcome.audit.get('out_of_order', 0):,}"),
        ("rate, including kills", f"{outcome.rows_per_second:,.0f} <small>rows/s</small>"),
        ("rate in a batch", f"{outcome.batch_rows_per_second:,.0f} <small>rows/s</small>"),
        ("batches", f"{outcome.batch_count:,}"),
        ("commit, median", f"{outcome.commit_ms(50):,.0f} <small>ms</small>"),
        ("commit, 95 %", f"{outcome.commit_ms(95):,.0f} <small>ms</small>"),
    ]
    return ['<dl class="tiles">', *(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles), "</dl>"]


def _kills(kills: Sequence[Kill]) -> list[str]:
    rows = []
    for kill in kills:
        cells = (
            (f"{kill.at_s:.1f} s", f"{kill.pid}", f"{kill.open_records:,}", _seconds(kill.back_s))
            if kill.is_done
            else ("–", "–", "–", "–")
        )
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f'<tr><td>{escape(kill.what)}</td>{numbers}<td class="note">{escape(kill.note)}</td></tr>')
    names = ("at", "pid", "records in flight", "new rows after")
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    return [
        "<h2>Killed processes</h2>",
        f'<div class="wide"><table><tr><th>killed −9</th>{head}<th></th></tr>',
        *rows,
        "</table></div>",
    ]


def _details(outcome: DemoOutcome) -> list[str]:
    names = ("batch", "rows", "planning", "writing", "commit", "Spark's logs", "total, ms")
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = []
    for batch in outcome.batches:
        times = (batch.plan_ms, batch.write_ms, batch.commit_ms, batch.log_ms, batch.total_ms)
        cells = (str(batch.batch), f"{batch.rows:,}", *(f"{value:,.0f}" for value in times))
        rows.append("<tr>" + "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>")
    versions = ", ".join(f"{name} {value}" if name != "machine" else value for name, value in outcome.versions.items())
    return [
        "<details><summary>All batches</summary>"
        '<p class="soft">A batch whose driver was killed after the commit is missing: the driver reports it '
        "afterwards.</p>",
        f'<div class="wide"><table><tr>{head}</tr>',
        *rows,
        "</table></div></details>",
        f'<p class="soft" style="margin-top:28px">{escape(versions)}. Stream {outcome.stream_seconds:.1f} s, total '
        f"{outcome.seconds:.1f} s. Run it again: <code>headrace demo</code>.</p>",
    ]


def joined(words: Iterable[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


# -- plots -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlotFrame:
    """The axes of an SVG plot, both starting at 0."""

    x_max: float
    y_max: float

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / self.y_max

    def render(self, title: str, x_name: str, y_name: str, body: Sequence[str], *, x_ticks: bool = True) -> str:
        """Return the SVG; `title` is the text for screen readers."""
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
    """Plot the visible rows over time, with the kills and the gaps after them."""
    end_s = max([at_s for at_s, _ in samples] or [1.0])
    frame = PlotFrame(max(end_s, 1.0), max(rows, 1) * 1.04)
    body: list[str] = []
    done = [kill for kill in kills if kill.is_done]
    for kill, row in zip(done, _label_rows([frame.x(kill.at_s) for kill in done]), strict=True):
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
    kills_text = "; ".join(f"{kill.what} killed at {kill.at_s:.1f} s" for kill in done)
    title = f"Rows visible over time: {rows:,} after {end_s:.1f} s; {kills_text}"
    return frame.render(title, "seconds since the driver was started", "rows visible", body)


def batches_plot(batches: Sequence[BatchTimes]) -> str:
    """Plot a bar for each batch, stacked by phase."""
    totals = [batch.total_ms for batch in batches]
    top_ms = _clip(totals)
    frame = PlotFrame(max(1, len(batches)), top_ms * 1.08)
    width = frame.x(1) - frame.x(0)
    body: list[str] = []
    step = max(1, math.ceil(len(batches) / 20))
    for index, batch in enumerate(batches):
        x = frame.x(index) + width * 0.12
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
        if index % step == 0:
            middle, low = x + width * 0.38, HEIGHT - BOTTOM + 16
            body.append(f'<text class="tick" x="{middle:.1f}" y="{low}" text-anchor="middle">{batch.batch}</text>')
    title = f"Duration of {len(batches)} batches by phase; the median batch took {percentile(totals, 50):,.0f} ms"
    return frame.render(title, "batch", "milliseconds", body, x_ticks=False)


def commits_plot(commits_ms: Sequence[float]) -> str:
    """Plot a histogram of the commit times, with the median and the 95th percentile."""
    p50, p95 = percentile(commits_ms, 50), percentile(commits_ms, 95)
    width_ms = _nice(max(_clip(commits_ms), 1.0) / BINS)
    counts = [0] * (BINS + 1)  # the last bin is for all longer commits
    for value in commits_ms:
        counts[min(BINS, int(value / width_ms))] += 1
    frame = PlotFrame((BINS + 1) * width_ms, max(counts) * 1.15 or 1)
    body: list[str] = []
    for index, count in enumerate(counts):
        start_ms = index * width_ms
        x, y = frame.x(start_ms), frame.y(count)
        is_rest = index == BINS
        duration = f"{start_ms:g} ms or more" if is_rest else f"{start_ms:g} to {start_ms + width_ms:g} ms"
        bar = _bar("fill-rest" if is_rest else "fill-commit", x + 1, y, frame.x(width_ms) - LEFT - 2, frame.y(0) - y)
        body.append(f"<g><title>{count} commits took {duration}</title>{bar}</g>")
        if is_rest and count:
            body.append(_over(x - 4, frame.y(0) - 5, f"{count} longer", anchor="end"))
    for name, value, row in (("median", p50, 0), ("95 %", p95, 1)):
        # A value beyond the scale is marked in the last bin.
        x, at = frame.x(min(value, (BINS + 0.5) * width_ms)), TOP - 6 + 14 * row
        anchor, shift = ("end", -5) if x > WIDTH - RIGHT - 130 else ("start", 5)
        body.append(f'<line class="mark" x1="{x:.1f}" y1="{TOP - 14}" x2="{x:.1f}" y2="{frame.y(0):.1f}"/>')
        body.append(f'<text class="label" x="{x + shift:.1f}" y="{at}" text-anchor="{anchor}">')
        body.append(f"{name} {value:,.1f} ms</text>")
    title = f"{len(commits_ms)} commits; median {p50:,.1f} ms, 95th percentile {p95:,.1f} ms"
    return frame.render(title, "milliseconds from the end of the last task to the end of the commit", "commits", body)


def legend() -> str:
    """Return the legend of the phases."""
    items = (f'<span class="key"><i class="fill-{css}"></i>{escape(name)}</span>' for css, name, _ in PHASES)
    return f'<p class="legend">{"".join(items)}</p>'


def ticks(top: float, count: int) -> list[float]:
    """Return about `count` round numbers from 0 to `top`."""
    step = _nice(top / count)
    return [step * number for number in range(int(top / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number in few characters: 1.5M, 250k, 12."""
    for unit, letter in ((1_000_000, "M"), (10_000, "k")):
        if value >= unit:
            return f"{value / (1_000 if letter == 'k' else unit):g}{letter}"
    return f"{value:,.6g}"


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= value * 0.999)


def _clip(values: Sequence[float]) -> float:
    return max(1.0, min(max(values, default=1.0), CLIP_FACTOR * percentile(values, 50)))


def _thinned(samples: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    step = max(1, math.ceil(len(samples) / POINTS_MAX))
    return [*samples[:-1:step], samples[-1]] if samples else []


def _label_rows(positions: Sequence[float]) -> list[int]:
    """Return a row for each label, so that neighbours do not overlap."""
    rows: list[int] = []
    ends = [-math.inf] * _LABEL_ROWS
    for x in positions:
        row = next((row for row, end in enumerate(ends) if x >= end), 0)
        ends[row] = x + _LABEL_GAP
        rows.append(row)
    return rows


def _kill_marks(frame: PlotFrame, kill: Kill, row: int) -> list[str]:
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
