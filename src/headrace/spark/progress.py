"""How far a pipeline is: one BatchProgress for every batch, Totals for all, from what Spark says of a query.

StreamingQuery → ProgressWatch.new → BatchProgress → Totals.add      and from both to who shows it: Reporter
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.spark.planning import Position, offset_count

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQuery

JOBS_MAX = 64
"""Running jobs that are looked at for their tasks."""

_COMMIT_PHASES = ("walCommit", "commitOffsets")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch, as Spark reports it when it is over."""

    batch: int
    rows: int
    rows_per_second: float
    duration_ms: int
    write_ms: int
    """The tasks, and the sink's commit."""
    commit_ms: int
    """Spark's own logs of offsets and commits."""
    rows_out: int | None = None
    offsets: int | None = None
    """Read in this batch, if the source counts in offsets."""
    behind: int | None = None
    """Offsets between the end of this batch and the end of the source."""

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> BatchProgress:
        durations = found.get("durationMs") or {}
        sources = [source for source in found.get("sources", ()) if isinstance(source, Mapping)]
        sink_rows = (found.get("sink") or {}).get("numOutputRows", -1)
        return cls(
            batch=int(found["batchId"]),
            rows=int(found.get("numInputRows", 0)),
            rows_per_second=float(found.get("processedRowsPerSecond") or 0.0),
            duration_ms=int(durations.get("triggerExecution", found.get("batchDuration", 0))),
            write_ms=int(durations.get("addBatch", 0)),
            commit_ms=sum(int(durations.get(phase, 0)) for phase in _COMMIT_PHASES),
            rows_out=sink_rows if isinstance(sink_rows, int) and sink_rows >= 0 else None,
            offsets=_sum(_offsets_read(source) for source in sources),
            behind=_sum(_offsets_behind(source) for source in sources),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def _sum(counts: Iterator[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _position(offset: Any) -> Position | None:
    """An offset of the form `{"topic": {"0": 5}}`; other sources have other forms."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    if not isinstance(offset, Mapping):
        return None
    try:
        found = Position.of_json(offset)
    except (AttributeError, TypeError, ValueError):
        return None
    return found if all(isinstance(number, int) for number in found.offsets.values()) else None


def _offsets_read(source: Mapping[str, Any]) -> int | None:
    start, end = _position(source.get("startOffset")), _position(source.get("endOffset"))
    if end is None:
        return None
    begin = end.begin if start is None else start.until(end).offsets
    return None if begin is None else offset_count(begin, end.offsets)


def _offsets_behind(source: Mapping[str, Any]) -> int | None:
    end, latest = _position(source.get("endOffset")), _position(source.get("latestOffset"))
    return None if end is None or latest is None else offset_count(end.offsets, latest.offsets)


@dataclass(slots=True)
class Totals:
    """All batches of a run so far."""

    batches: int = 0
    rows: int = 0
    write_ms: int = 0
    commit_ms: int = 0
    offsets: int | None = None
    behind: int | None = None
    last_batch: int | None = None
    stopped: str | None = None
    """Why it ended before its end, if it did: "stopped" after a batch, or "cancelled" in the middle of one."""
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    def add(self, batch: BatchProgress) -> None:
        self.batches += 1
        self.rows += batch.rows
        self.write_ms += batch.write_ms
        self.commit_ms += batch.commit_ms
        self.last_batch = batch.batch
        self.behind = batch.behind
        if batch.offsets is not None:
            self.offsets = (self.offsets or 0) + batch.offsets

    def end(self) -> None:
        self.ended_at = time.monotonic()

    @property
    def seconds(self) -> float:
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def fraction(self) -> float | None:
        """How much of what there is has been read; None if there is no telling."""
        if self.offsets is None or self.behind is None:
            return None
        whole = self.offsets + self.behind
        return self.offsets / whole if whole else 1.0

    def to_json(self) -> dict[str, Any]:
        known = {
            "batches": self.batches,
            "rows": self.rows,
            "rows_per_second": round(self.rows_per_second, 1),
            "seconds": round(self.seconds, 3),
            "write_ms": self.write_ms,
            "commit_ms": self.commit_ms,
            "behind": self.behind,
            "last_batch": self.last_batch,
            "stopped": self.stopped,
        }
        return {name: value for name, value in known.items() if value is not None}


class Started(NamedTuple):
    """What is known when a run begins."""

    name: str
    is_stream: bool
    master: str
    checkpoint: str | None = None
    resumes_after: int | None = None
    """The last batch that was committed under this checkpoint; -1 if it was used, but nothing is committed yet."""


class Tasks(NamedTuple):
    """Of the jobs that run now."""

    done: int
    all: int


class Reporter(Protocol):
    """Who shows progress."""

    wants_tasks: bool
    """Whether `tasks` is worth the asking: it takes a few calls of the JVM each time."""

    def started(self, what: Started) -> None: ...
    def tasks(self, tasks: Tasks, totals: Totals) -> None: ...
    def batch(self, batch: BatchProgress, totals: Totals) -> None: ...
    def finished(self, totals: Totals) -> None: ...


class Silence:
    """Shows nothing."""

    wants_tasks = False

    def started(self, what: Started) -> None:
        pass

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        pass

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        pass

    def finished(self, totals: Totals) -> None:
        pass


class ProgressWatch:
    """Hands out each batch of a query once."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last = -1

    def new(self) -> Iterator[BatchProgress]:
        """The batches that are over since it was last asked. Triggers that found nothing to do are no batches."""
        last = self._query.lastProgress
        if last is None or (last["batchId"] <= self._last):
            return
        # All that Spark remembers is a hundred conversions, so it is asked only if some may have been missed.
        entries = [last] if last["batchId"] == self._last + 1 else self._query.recentProgress
        for entry in entries:
            found = json.loads(entry.json)
            if found["batchId"] > self._last and "addBatch" in found["durationMs"]:
                self._last = found["batchId"]
                yield BatchProgress.of_json(found)


def running_tasks(context: SparkContext) -> Tasks:
    """The tasks of all jobs that run now."""
    tracker = context.statusTracker()
    done = total = 0
    for job_id in tracker.getActiveJobsIds()[:JOBS_MAX]:
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job else ():
            stage = tracker.getStageInfo(stage_id)
            if stage is not None:
                done += stage.numCompletedTasks
                total += stage.numTasks
    return Tasks(done, total)
