"""Diagram of the commit protocol: the phase the current batch is in, and how long each phase of the last one took.

plan → write → begin → check → DECIDE → end → finished
                 ↓       ↓               ↓
               replay  abort            redo
"""

from __future__ import annotations

import time
from typing import NamedTuple

from headrace.telemetry.listeners import CommitPhase
from headrace.telemetry.models import BatchOutcome, BatchReport, CurrentBatch
from headrace.ui import formatting
from headrace.ui.charts import Arrow, Box, Diagram, Label, Tone
from headrace.ui.reports import ReportedPipeline

WIDTH, HEIGHT = 1180, 252
_BOX_WIDTH, _BOX_HEIGHT, _LOW_HEIGHT, _GAP = 150, 96, 72, 20
_TOP, _BOTTOM = 30, 176
_SHOWN_MS_MIN = 0.05
SLOW_SECONDS = 10.0
"""A phase that takes longer than this is marked as slow."""


class _Phase(NamedTuple):
    title: str
    column: int
    y: int
    lines: tuple[str, str]


PHASES: dict[str, _Phase] = {
    "plan": _Phase("Plan", 0, _TOP, ("driver: options,", "topic metadata")),
    "write": _Phase("Write", 1, _TOP, ("executors: open", "transactions")),
    CommitPhase.BEGIN: _Phase("Begin", 2, _TOP, ("fence older runs,", "read decisions")),
    CommitPhase.CHECK: _Phase("Check", 3, _TOP, ("are transactions", "still open?")),
    CommitPhase.DECIDE: _Phase("DECIDE", 4, _TOP, ("commit the", "decision record")),
    CommitPhase.END: _Phase("End", 5, _TOP, ("commit the tasks'", "transactions")),
    CommitPhase.FINISH: _Phase("Finished", 6, _TOP, ("rows visible to", "readers, once")),
    CommitPhase.ABORT: _Phase("Abort", 3, _BOTTOM, ("nothing visible;", "Spark retries")),
    CommitPhase.REPLAY: _Phase("Replay", 2, _BOTTOM, ("already decided:", "not sent twice")),
    CommitPhase.REDO: _Phase("Redo", 5, _BOTTOM, ("expired: rows", "written again")),
}
_FINAL_PHASES: dict[str, str] = {
    BatchOutcome.COMMITTED: CommitPhase.FINISH,
    BatchOutcome.WRITTEN: CommitPhase.FINISH,
    BatchOutcome.REPLAYED: CommitPhase.REPLAY,
    BatchOutcome.ABORTED: CommitPhase.ABORT,
    BatchOutcome.FAILED: CommitPhase.ABORT,
}


def create_commit_diagram() -> Diagram:
    return Diagram("The commit protocol and the phase of the current batch", WIDTH, HEIGHT)


def phase_time(ms: float) -> str:
    """The duration of a phase; a dash if it was skipped."""
    return formatting.milliseconds(ms) if ms >= _SHOWN_MS_MIN else formatting.UNKNOWN


def draw_commit(diagram: Diagram, pipeline: ReportedPipeline) -> None:
    run, last = pipeline.run, pipeline.batches[-1] if pipeline.batches else None
    current = None if run is None else run.current
    tones = _tones(current, last)
    boxes = [_box(name, phase, tones.get(name), last) for name, phase in PHASES.items()]
    diagram.show(boxes, _ARROWS, [Label(4, 16, _headline(pipeline.state, current, last))])


def _headline(state: str, current: CurrentBatch | None, last: BatchReport | None) -> str:
    if current is not None:
        rows = formatting.count(current.rows, "rows")
        return (
            f"Committing batch {current.batch} ({rows}); {formatting.duration(_phase_seconds(current))} in this phase"
        )
    if last is None:
        return "No batch committed yet"
    activity = "Between commits: Spark plans, tasks write" if state == "running" else f"Pipeline is {state}"
    return f"{activity}. Last batch: {last.batch}, {last.outcome}"


def _phase_seconds(current: CurrentBatch) -> float:
    return max(0.0, time.time() - current.since_ms / 1000)


def _tones(current: CurrentBatch | None, last: BatchReport | None) -> dict[str, tuple[Tone, str]]:
    """Tone and mark of the one phase that is highlighted: that of the current batch, or the final one of the last."""
    if current is not None:
        is_slow = _phase_seconds(current) > SLOW_SECONDS
        return {current.phase: ("warn", "slow") if is_slow else ("here", "now")}
    final = None if last is None else _FINAL_PHASES.get(last.outcome)
    return {} if final is None else {final: ("bad" if final == CommitPhase.ABORT else "good", "last")}


def _box(name: str, phase: _Phase, highlight: tuple[Tone, str] | None, last: BatchReport | None) -> Box:
    tone, mark = highlight or ("faint" if phase.y == _BOTTOM else "", "")
    last_ms = _last_ms(name, last)
    figures = [] if last_ms is None else [f"last: {phase_time(last_ms)}"]
    height = _BOX_HEIGHT if phase.y == _TOP else _LOW_HEIGHT
    lines = [*phase.lines, *figures]
    return Box(_x(phase.column), phase.y, _BOX_WIDTH, height, phase.title, lines, tone=tone, mark=mark)


def _last_ms(name: str, last: BatchReport | None) -> float | None:
    """How long a phase took in the last batch; None for phases that are not timed."""
    if last is None:
        return None
    durations: dict[str, float] = {
        "plan": last.plan_ms,
        "write": last.write_ms,
        CommitPhase.BEGIN: last.begin_ms,
        CommitPhase.DECIDE: last.decide_ms,
        CommitPhase.END: last.end_ms,
    }
    return durations.get(name)


def _x(column: int) -> int:
    return 4 + column * (_BOX_WIDTH + _GAP)


def _across(column: int) -> Arrow:
    middle = _TOP + _BOX_HEIGHT // 2
    return Arrow([(_x(column) + _BOX_WIDTH, middle), (_x(column + 1) - 2, middle)])


def _down(column: int, *, back: bool = False) -> Arrow:
    x = _x(column) + _BOX_WIDTH // 2 + (14 if back else 0)
    ends = [(x, _BOTTOM), (x, _TOP + _BOX_HEIGHT + 2)] if back else [(x, _TOP + _BOX_HEIGHT), (x, _BOTTOM - 2)]
    return Arrow(ends, is_dashed=True)


_ARROWS = [
    *(_across(column) for column in range(6)),
    _down(2),
    _down(3),
    _down(5),
    _down(5, back=True),
]
