"""The progress of a pipeline: a BatchProgress for every batch, Totals for all, from Spark's query progress.

StreamingQuery → ProgressWatch.new → BatchProgress → Totals.add      both are passed to a Reporter
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.spark.source_progress import SourceProgress

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql.streaming.query import StreamingQuery

JOBS_MAX = 64
"""Running jobs whose tasks are counted."""

_COMMIT_PHASES = ("walCommit", "commitOffsets")


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch, as Spark reports it when it has ended."""

    batch: int
    rows: int
    rows_per_second: float
    duration_ms: int
    write_ms: int
    """Of the tasks and the sink's commit."""
    commit_ms: int
    """Of Spark's offset log and commit log."""
    rows_out: int | None = None
    offsets: int | None = None
    """Read in this batch, if the source has offsets."""
    behind: int | None = None
    """Offsets between the end of this batch and the end of the source."""
    sources: tuple[SourceProgress, ...] = field(default=(), compare=False)

    @classmethod
    def of_json(cls, progress: Mapping[str, Any]) -> BatchProgress:
        durations = progress.get("durationMs") or {}
        sources = tuple(
            SourceProgress.of_json(source) for source in progress.get("sources", ()) if isinstance(source, Mapping)
        )
        sink_rows = (progress.get("sink") or {}).get("numOutputRows", -1)
        return cls(
            batch=int(progress["batchId"]),
            rows=int(progress.get("numInputRows", 0)),
            rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
            duration_ms=int(durations.get("triggerExecution", progress.get("batchDuration", 0))),
            write_ms=int(durations.get("addBatch", 0)),
            commit_ms=sum(int(durations.get(phase, 0)) for phase in _COMMIT_PHASES),
            rows_out=sink_rows if isinstance(sink_rows, int) and sink_rows >= 0 else None,
            offsets=_sum(source.offset_count for source in sources),
            behind=_sum(source.lag for source in sources),
            sources=sources,
        )

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "sources"}
        lag = {topic.topic: topic.lag for source in self.sources for topic in source.topics()}
        return {name: value for name, value in {**values, "lag": lag or None}.items() if value is not None}


def _sum(counts: Iterator[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


@dataclass(slots=True)
class Totals:
    """All batches so far, of one run or of several one after another."""

    batches: int = 0
    rows: int = 0
    write_ms: int = 0
    commit_ms: int = 0
    offsets: int | None = None
    behind: int | None = None
    last_batch: int | None = None
    stopped: str | None = None
    """Why it ended early, if it did: "stopped" after a batch, or "cancelled" during one."""
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    earlier_seconds: float = 0.0
    """How long the runs before this one took."""

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

    def restart(self) -> None:
        """Continue with another run. The time between the runs does not count."""
        self.earlier_seconds = self.seconds
        self.started_at, self.ended_at, self.behind = time.monotonic(), None, None

    @property
    def seconds(self) -> float:
        """How long all runs took."""
        ended_at = time.monotonic() if self.ended_at is None else self.ended_at
        return self.earlier_seconds + ended_at - self.started_at

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def fraction(self) -> float | None:
        """The share of the source that has been read; None if unknown."""
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
    """The facts at the start of a run."""

    name: str
    is_stream: bool
    master: str
    checkpoint: str | None = None
    resumes_after: int | None = None
    """The last committed batch of the checkpoint; -1 if none is committed; None if the checkpoint is new."""


class Tasks(NamedTuple):
    """The tasks of the running jobs."""

    done: int
    all: int


class Reporter(Protocol):
    """Shows the progress of a pipeline."""

    wants_tasks: bool
    """Whether to call `tasks`: counting them takes a few JVM calls each time."""

    def started(self, what: Started) -> None: ...
    def tasks(self, tasks: Tasks, totals: Totals) -> None: ...
    def batch(self, batch: BatchProgress, totals: Totals) -> None: ...
    def finished(self, totals: Totals) -> None: ...


class SilentReporter:
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
    """Yields each batch of a query once."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last = -1

    def new(self) -> Iterator[BatchProgress]:
        """Yield the batches that have ended since the last call, without triggers that had no new data."""
        last = self._query.lastProgress
        if last is None or (last["batchId"] <= self._last):
            return
        # recentProgress converts a hundred entries: read it only if some may have been missed.
        entries = [last] if last["batchId"] == self._last + 1 else self._query.recentProgress
        for entry in entries:
            progress = json.loads(entry.json)
            if progress["batchId"] > self._last and "addBatch" in progress["durationMs"]:
                self._last = progress["batchId"]
                yield BatchProgress.of_json(progress)


def running_tasks(context: SparkContext) -> Tasks:
    """Count the tasks of all running jobs."""
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
