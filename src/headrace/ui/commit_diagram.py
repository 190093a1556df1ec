"""The commit protocol as a drawing: where the batch at hand is, and what each step is for.

    plan → write → begin → check → DECIDE → end → finished
                             ↓                ↓
                           abort             redo

A place says what the commit has passed last (see failpoints.py); the step that is marked is the one it is in.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from headrace.ui import formatting
from headrace.ui.charts import Arrow, Box, Drawing, Label, Tone
from headrace.ui.pipeline_reports import AtHand, ToldBatch, ToldPipeline

WIDTH, HEIGHT = 1180, 252
_BOX_WIDTH, _BOX_HEIGHT, _LOW_HEIGHT, _GAP = 150, 96, 72, 20
_TOP, _BOTTOM = 30, 176
_SHOWN_MS_MIN = 0.05
SLOW_SECONDS = 10.0
"""A commit that stays in one step for so long is worth a look."""


class _Step(NamedTuple):
    name: str
    column: int
    y: int
    lines: tuple[str, str]


STEPS = {
    "plan": _Step("Plan", 0, _TOP, ("on the driver:", "options, topic")),
    "write": _Step("Write", 1, _TOP, ("on executors:", "open transactions")),
    "begin": _Step("Begin", 2, _TOP, ("shut out others,", "read decisions")),
    "check": _Step("Check", 3, _TOP, ("are all parts", "still open?")),
    "decide": _Step("DECIDE", 4, _TOP, ("one transaction:", "now it counts")),
    "end": _Step("End", 5, _TOP, ("commit every", "part of it")),
    "finish": _Step("Finished", 6, _TOP, ("seen by readers,", "whole and once")),
    "abort": _Step("Abort", 3, _BOTTOM, ("nothing is seen;", "it is run again")),
    "replay": _Step("Replay", 2, _BOTTOM, ("decided before:", "not sent twice")),
    "redo": _Step("Redo", 5, _BOTTOM, ("a part expired:", "written again")),
}
_PLACES = {
    "": "begin",
    "begin.done": "check",
    "check.done": "decide",
    "decide.done": "end",
    "end.done": "finish",
    "redo.done": "end",
    "finish.done": "finish",
    "replay.abort": "replay",
    "abort.begin": "abort",
}
"""The places whose step is not told by their first word."""
_ENDS = {"committed": "finish", "written": "finish", "replayed": "replay", "aborted": "abort", "failed": "abort"}


def step_of(place: str) -> str:
    """The step that a commit is in when it has passed a place."""
    return _PLACES.get(place) or place.partition(".")[0]


def commit_drawing() -> Drawing:
    """A place for it."""
    return Drawing("The commit protocol, and where the batch at hand is", WIDTH, HEIGHT)


def took(ms: float) -> str:
    """A time; of what was not needed, nothing."""
    return formatting.milliseconds(ms) if ms >= _SHOWN_MS_MIN else formatting.UNKNOWN


def show_commit(drawing: Drawing, told: ToldPipeline) -> None:
    run, last = told.run, told.batches[-1] if told.batches else None
    now = None if run is None else run.now
    here = None if now is None else step_of(now.place)
    ended = _ENDS.get(last.outcome) if now is None and last is not None else None
    boxes = [_box(name, step, here, ended, now, last) for name, step in STEPS.items()]
    drawing.show(boxes, _ARROWS, [Label(4, 16, _headline(told.state, now, last))])


def _headline(state: str, now: AtHand | None, last: ToldBatch | None) -> str:
    if now is not None:
        rows = formatting.count(now.batch.rows, "rows")
        waited = formatting.duration(max(0.0, time.time() - now.since_ms / 1000))
        return f"Batch {now.batch.batch} with {rows} is being committed; in this step for {waited}"
    if last is None:
        return "No batch has been committed yet"
    doing = "Between two commits: Spark plans, and tasks write" if state == "running" else f"This pipeline is {state}"
    return f"{doing}. Batch {last.batch} was the last: {last.outcome}"


def _box(
    name: str, step: _Step, here: str | None, ended: str | None, now: AtHand | None, last: ToldBatch | None
) -> Box:
    tone: Tone = ""
    mark = ""
    if name == here:
        is_slow = now is not None and time.time() - now.since_ms / 1000 > SLOW_SECONDS
        tone, mark = ("warn", "slow") if is_slow else ("here", "now")
    elif name == ended:
        tone, mark = ("bad", "last") if name == "abort" else ("good", "last")
    elif step.y == _BOTTOM:
        tone = "faint"
    last_ms = _took_ms(name, last)
    figures = [] if last_ms is None else [f"last: {took(last_ms)}"]
    height = _BOX_HEIGHT if step.y == _TOP else _LOW_HEIGHT
    return Box(_x(step.column), step.y, _BOX_WIDTH, height, step.name, [*step.lines, *figures], tone, mark=mark)


def _took_ms(name: str, last: ToldBatch | None) -> float | None:
    """In the last batch."""
    if last is None or name not in ("plan", "write", "begin", "decide", "end"):
        return None
    times = {
        "plan": last.plan_ms,
        "write": last.write_ms,
        "begin": last.begin_ms,
        "decide": last.decide_ms,
        "end": last.end_ms,
    }
    return times[name]


def _x(column: int) -> int:
    return 4 + column * (_BOX_WIDTH + _GAP)


def _across(column: int) -> Arrow:
    middle = _TOP + _BOX_HEIGHT // 2
    return Arrow([(_x(column) + _BOX_WIDTH, middle), (_x(column + 1) - 2, middle)])


def _down(column: int, *, back: bool = False) -> Arrow:
    x = _x(column) + _BOX_WIDTH // 2 + (14 if back else 0)
    ends = [(x, _TOP + _BOX_HEIGHT), (x, _BOTTOM - 2)]
    return Arrow(ends if not back else [(x, _BOTTOM), (x, _TOP + _BOX_HEIGHT + 2)], is_dashed=True)


_ARROWS = [
    *(_across(column) for column in range(6)),
    _down(2),
    _down(3),
    _down(5),
    _down(5, back=True),
]
