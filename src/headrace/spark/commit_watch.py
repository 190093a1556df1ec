"""What a live view is told of a sink's commits: every batch phase by phase, and where the one at hand is.

    planning, tasks → TaskTimes in their reports ↘
    Committer → reach(name) → CommitWatch → what is to be told → ViewLink's thread → POST

The committer does not know of it: it passes the places where tests let it die, and here they are noted. A note costs a
microsecond; all that may wait or fail is the link's, whose thread nobody waits for.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from headrace.client.clock import SYSTEM_CLOCK
from headrace.producer import view_link
from headrace.spark.commit_times import rounded
from headrace.spark.failpoints import Failpoints
from headrace.spark.sink_options import SinkOptions
from headrace.spark.worker import PerRun

if TYPE_CHECKING:
    from headrace.spark.task_writer import Report

log = logging.getLogger("headrace.spark")

INTERVAL_SECONDS = 5.0
"""Between reports while nothing happens, so that the view knows it from a driver that is gone."""
BATCHES_MAX = 64
"""Batches that wait to be told while the view is away; then the oldest are forgotten."""
WATCHES_MAX = 8
IDLE_SECONDS_MAX = 120.0
"""A run that has had no commit in this process for so long has ended, or other processes serve it."""
LAST_SECONDS_MAX = 0.25
"""To reach the view after a batch write, when all is committed: then Spark ends the process, and all its threads."""
ERROR_CHARACTERS_MAX = 500
COMMITTED, REPLAYED, EMPTY, WRITTEN, ABORTED, FAILED = "committed", "replayed", "empty", "written", "aborted", "failed"


@dataclass(slots=True)
class TaskTimes:
    """When a task did what, by the clock of its machine: milliseconds since 1970."""

    planned_ms: int = 0
    """When planning began, on the driver."""
    plan_ms: float = 0.0
    started_ms: int = 0
    ended_ms: int = 0
    sent_bytes: int = 0


@dataclass(slots=True)
class WatchedBatch:
    """A batch, as the view is told of it."""

    batch: int
    sequence: int = 0
    """Among all that this watch has told: a batch may come again."""
    tasks: int = 0
    transactions: int = 0
    rows: int = 0
    dead: int = 0
    bytes: int = 0
    is_retried: bool = False
    began_ms: int = 0
    plan_ms: float = 0.0
    write_ms: float = 0.0
    spark_ms: float = 0.0
    """Between planning and committing, beside the tasks: Spark's own."""
    begin_ms: float = 0.0
    decide_ms: float = 0.0
    end_ms: float = 0.0
    redone: int = 0
    outcome: str = ""
    error: str = ""

    @classmethod
    def of(cls, number: int, reports: Sequence[Report]) -> WatchedBatch:
        now_ms = SYSTEM_CLOCK.time_ms()
        made = cls(
            number,
            tasks=len(reports),
            transactions=sum(report.transaction is not None for report in reports),
            rows=sum(report.row_count for report in reports),
            dead=sum(report.dead_count for report in reports),
            bytes=sum(report.times.sent_bytes for report in reports),
            is_retried=any(report.task.attempt > 0 for report in reports),
            began_ms=now_ms,
        )
        if reports:
            times = [report.times for report in reports]
            made.plan_ms = max(one.plan_ms for one in times)
            made.write_ms = max(0, max(one.ended_ms for one in times) - min(one.started_ms for one in times))
            made.began_ms = min(one.planned_ms for one in times) or now_ms
            made.spark_ms = max(0.0, now_ms - made.began_ms - made.plan_ms - made.write_ms)
        return made


@dataclass(slots=True)
class _Now:
    """The batch at hand, and the last place of the protocol that it has passed."""

    batch: WatchedBatch
    place: str = ""
    since_ms: int = field(default_factory=SYSTEM_CLOCK.time_ms)
    marks: dict[str, float] = field(default_factory=dict)  # place → when, by the monotonic clock


class CommitWatch:
    """Tells one view of one run of one sink. Notes come from the thread that commits."""

    def __init__(self, options: SinkOptions, sink: str, query: str, run: str) -> None:
        assert options.view_url is not None
        self._about = {
            "kind": "commits",
            "id": uuid.uuid4().hex,  # its own: Spark serves each commit of a run in any process
            "name": options.view_name or sink,
            "sink": sink,
            "query": query,
            "run": run,
            "topic": options.topic,
            "delivery": options.delivery,
            **view_link.identity(),
            "started_ms": SYSTEM_CLOCK.time_ms(),
            "interval_ms": int(INTERVAL_SECONDS * 1000),
        }
        self._count = 0
        self._now: _Now | None = None
        self._told: deque[WatchedBatch] = deque(maxlen=BATCHES_MAX)  # Added here, taken by the link's thread.
        self._link = view_link.ViewLink(options.view_url, options.view_token, self, INTERVAL_SECONDS)

    # -- the thread that commits -----------------------------------------------------------------

    def begin(self, batch: WatchedBatch) -> None:
        self._now = _Now(batch)
        self._now.marks[""] = time.monotonic()
        self._link.wake()

    def passed(self, place: str) -> None:
        """The commit has come to one of the places in failpoints.py."""
        now = self._now
        if now is not None:
            now.marks[place] = time.monotonic()
            now.place, now.since_ms = place, SYSTEM_CLOCK.time_ms()
            now.batch.redone += place == "redo.done"
            self._link.wake()

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        now = self._now
        if now is None:
            return
        batch, marks, over = now.batch, now.marks, time.monotonic()
        began = marks[""]
        begun = marks.get("begin.done", began)
        decided = marks.get("decide.done")
        batch.begin_ms = (begun - began) * 1000
        batch.decide_ms = ((over if decided is None else decided) - begun) * 1000
        batch.end_ms = 0.0 if decided is None else (over - decided) * 1000
        if outcome == COMMITTED and decided is None:
            outcome = REPLAYED if "replay.abort" in marks else EMPTY
        self._count += 1
        batch.sequence, batch.outcome = self._count, outcome
        batch.error = "" if error is None else str(error)[:ERROR_CHARACTERS_MAX]
        self._told.append(batch)
        self._now = None
        self._link.wake()

    def close(self) -> None:
        self._link.close()

    def close_in_person(self) -> None:
        self._link.close_in_person(LAST_SECONDS_MAX)

    # -- the link's thread -----------------------------------------------------------------------

    def report(self, *, is_last: bool) -> view_link.Report:
        now = self._now
        at_hand = None
        if now is not None:
            at_hand = {**rounded(asdict(now.batch)), "place": now.place, "since_ms": now.since_ms}
        return {
            **self._about,
            "time_ms": SYSTEM_CLOCK.time_ms(),
            "is_closed": is_last,
            "now": at_hand,
            "batches": [rounded(asdict(batch)) for batch in list(self._told)],
        }

    def delivered(self, report: view_link.Report) -> None:
        last = max((batch["sequence"] for batch in report["batches"]), default=0)
        while self._told and self._told[0].sequence <= last:
            self._told.popleft()


# Of this process, in which one thread commits.
_watches: PerRun[CommitWatch] = PerRun(WATCHES_MAX, IDLE_SECONDS_MAX)
_current: CommitWatch | None = None


def watch_of(options: SinkOptions, sink: str, query: str, run: str) -> CommitWatch | None:
    """The watch of this run of a sink, made when first asked for; None if no view is to be told, or none can be."""
    if options.view_url is not None:
        with _unheard():
            return _watches.get(options.view_url, sink, run, lambda: CommitWatch(options, sink, query, run))
    return None


def forget(watch: CommitWatch | None) -> None:
    """Nothing more will come from it, nor from this process perhaps."""
    with _unheard():
        if watch is not None and _watches.discard(watch):
            watch.close_in_person()


class WatchedPlaces(Failpoints):
    """Failpoints that are noted as they are reached, by whoever watches the commit at hand."""

    def reach(self, name: str) -> None:
        if _current is not None:
            with _unheard():
                _current.passed(name)
        super().reach(name)


@contextmanager
def watched(
    watch: CommitWatch | None, number: int, reports: Sequence[Report], outcome: str = COMMITTED
) -> Iterator[None]:
    """The batch that is committed, or aborted, in this block."""
    global _current
    if watch is None:
        yield
        return
    with _unheard():
        watch.begin(WatchedBatch.of(number, reports))
    _current = watch
    try:
        yield
    except BaseException as error:
        with _unheard():
            watch.end(FAILED, error)
        forget(watch)  # Spark ends a process in which something was raised
        raise
    finally:
        _current = None
    with _unheard():
        watch.end(outcome)


@contextmanager
def _unheard() -> Iterator[None]:
    """Whatever goes wrong in telling, the commit goes on."""
    try:
        yield
    except Exception:
        log.debug("the live view could not be told", exc_info=True)
