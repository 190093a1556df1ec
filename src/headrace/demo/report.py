"""The report: one page that needs nothing but itself, and opens from disk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from headrace.demo.outcome import Kill, Outcome
from headrace.demo.plots import batches_plot, commits_plot, legend, rows_plot

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


def write_report(outcome: Outcome, path: Path) -> None:
    """Write the page; the folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(outcome), encoding="utf-8")


def page(outcome: Outcome) -> str:
    """The whole page as text."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>headrace demo: {outcome.rows_in:,} orders</title><style>{_STYLE}</style></head><body><main>",
            *_head(outcome),
            *_tiles(outcome),
            *_kills(outcome.kills),
            "<h2>Rows that a reader of committed records sees</h2>",
            '<p class="soft">Every step is a batch. Red: a process was killed, and so long no new rows came.</p>',
            f"<figure>{rows_plot(outcome.samples, outcome.kills, outcome.rows_in)}</figure>",
            "<h2>Where the time of a batch goes</h2>",
            f"<figure>{batches_plot(outcome.batches)}{legend()}</figure>",
            "<h2>Commits</h2>",
            '<p class="soft">What exactly-once costs: checking that all tasks hold their transactions, writing the '
            "decision, ending the transactions.</p>",
            f"<figure>{commits_plot([commit.total_ms for commit in outcome.commits])}</figure>",
            *_details(outcome),
            "</main></body></html>",
            "",
        ]
    )


def _head(outcome: Outcome) -> list[str]:
    killed = [kill.what for kill in outcome.kills if kill.is_done]
    names = [f"a {killed[0]}", *(f"the {what}" for what in killed[1:])] if killed else []
    said = f" while {listed(names)} {'was' if len(names) == 1 else 'were'} killed" if names else ""
    if outcome.is_equal:
        kind, text = "good", f"✓ Every row once: {outcome.rows_visible:,} of {outcome.rows_in:,}, in order."
    else:
        kind, text = "bad", "✕ Source and topic differ: see the numbers below."
    return [
        f"<h1>{outcome.rows_in:,} orders from Spark to Kafka</h1>",
        f'<p class="soft">Delivered into {escape(outcome.cluster)}{said} with signal 9.</p>'
        if said
        else f'<p class="soft">Delivered into {escape(outcome.cluster)}.</p>',
        f'<p class="verdict {kind}">{text}</p>',
    ]


def _tiles(outcome: Outcome) -> list[str]:
    tiles = [
        ("rows in", f"{outcome.rows_in:,}"),
        ("rows visible", f"{outcome.rows_visible:,}"),
        ("lost", f"{outcome.audit.get('lost', 0):,}"),
        ("duplicated", f"{outcome.duplicated:,}"),
        ("out of order", f"{outcome.audit.get('out_of_order', 0):,}"),
        ("rate, with all kills", f"{outcome.rows_per_second:,.0f} <small>rows/s</small>"),
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
        "<h2>What was killed</h2>",
        f'<div class="wide"><table><tr><th>killed −9</th>{head}<th></th></tr>',
        *rows,
        "</table></div>",
    ]


def _details(outcome: Outcome) -> list[str]:
    names = ("batch", "rows", "planning", "writing", "commit", "Spark's logs", "all, ms")
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    rows = []
    for one in outcome.batches:
        times = (one.plan_ms, one.write_ms, one.commit_ms, one.log_ms, one.total_ms)
        cells = (str(one.batch), f"{one.rows:,}", *(f"{value:,.0f}" for value in times))
        rows.append("<tr>" + "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>")
    versions = ", ".join(f"{name} {value}" if name != "machine" else value for name, value in outcome.versions.items())
    return [
        "<details><summary>All batches</summary>"
        '<p class="soft">A batch that was committed when its driver died has no line: nobody was left to report '
        "it.</p>",
        f'<div class="wide"><table><tr>{head}</tr>',
        *rows,
        "</table></div></details>",
        f'<p class="soft" style="margin-top:28px">{escape(versions)}. Stream {outcome.stream_seconds:.1f} s, all of it '
        f"{outcome.seconds:.1f} s. Run it again: <code>headrace demo</code>.</p>",
    ]


def listed(words: Iterable[str]) -> str:
    """a; a and b; a, b and c."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
