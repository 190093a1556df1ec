"""Pipelines that report: how a run goes, as its driver sees it, and every commit of its sink, phase by phase.

    kind "pipeline"   from whoever runs it: state, totals, Spark's figures of each batch
    kind "commits"    from the process that commits: batches with their phases, and the one at hand

Both are found by the name of the pipeline; a sink without a pipeline has its own name, and commits only.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from headrace.ui.report_fields import Fields

BATCHES_MAX = 500
RUNS_MAX = 8
"""Of one name: a driver that was started again is another run."""
SILENT_INTERVALS = 4
_SECONDS_MIN = 5.0
PHASES = ("plan_ms", "write_ms", "spark_ms", "begin_ms", "decide_ms", "end_ms")


@dataclass(frozen=True, slots=True)
class ToldBatch:
    """A batch, or an attempt at one, as the committing process tells it."""

    batch: int
    run: str
    outcome: str
    error: str
    tasks: int
    transactions: int
    rows: int
    dead: int
    bytes: int
    is_retried: bool
    began_ms: int
    redone: int
    plan_ms: float
    write_ms: float
    spark_ms: float
    begin_ms: float
    decide_ms: float
    end_ms: float

    @classmethod
    def of(cls, found: Fields, run: str) -> ToldBatch:
        return cls(
            batch=found.whole("batch"),
            run=run,
            outcome=found.text("outcome"),
            error=found.text("error", ""),
            tasks=found.whole("tasks"),
            transactions=found.whole("transactions"),
            rows=found.whole("rows"),
            dead=found.whole("dead"),
            bytes=found.whole("bytes"),
            is_retried=found.flag("is_retried"),
            began_ms=found.whole("began_ms"),
            redone=found.whole("redone"),
            **{name: max(0.0, found.number(name)) for name in PHASES},
        )

    @property
    def mode(self) -> str:
        """How its rows came to the topic."""
        if self.outcome == "written":
            return "direct"
        return "parallel" if self.transactions else "inline"

    @property
    def total_ms(self) -> float:
        return self.plan_ms + self.write_ms + self.spark_ms + self.begin_ms + self.decide_ms + self.end_ms


@dataclass(frozen=True, slots=True)
class AtHand:
    """The batch that is being committed, and the last place of the protocol it has passed."""

    batch: ToldBatch
    place: str
    since_ms: int


@dataclass(slots=True)
class CommitRun:
    """A process that commits for a run of a sink: Spark may serve each commit in another one."""

    id: str
    sink: str
    query: str
    topic: str
    delivery: str
    place: str
    interval_ms: int
    now: AtHand | None = None
    is_closed: bool = False
    heard_s: float = 0.0
    last_sequence: int = 0

    @property
    def is_live(self) -> bool:
        return not self.is_closed and not _is_silent(self.heard_s, self.interval_ms)


@dataclass(frozen=True, slots=True)
class DriverRun:
    """What runs the pipeline says of it."""

    id: str
    state: str
    error: str
    place: str
    master: str
    interval_ms: int
    is_closed: bool
    batches: int
    rows: int
    rows_per_second: float
    seconds: float
    behind: int | None
    heard_s: float


@dataclass(slots=True)
class Totals:
    """Of all that was heard."""

    committed: int = 0
    replayed: int = 0
    failed: int = 0
    aborted: int = 0
    redone: int = 0
    dead: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, batch: ToldBatch) -> None:
        if batch.outcome in ("committed", "written"):
            self.committed += 1
            self.rows += batch.rows
            self.bytes += batch.bytes
            self.dead += batch.dead
        self.replayed += batch.outcome == "replayed"
        self.failed += batch.outcome == "failed"
        self.aborted += batch.outcome == "aborted"
        self.redone += batch.redone


class ToldPipeline:
    """All runs under one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.driver: DriverRun | None = None
        self.runs: dict[str, CommitRun] = {}
        self.batches: deque[ToldBatch] = deque(maxlen=BATCHES_MAX)
        self.totals = Totals()

    def take_driver(self, id: str, found: Fields) -> None:
        totals = found.inner("totals") if found.has("totals") else Fields({})
        self.driver = DriverRun(
            id=id,
            state=found.text("state"),
            error=found.text("error", ""),
            place=f"{found.text('host')}, process {found.whole('pid')}",
            master=found.text("master", ""),
            interval_ms=found.whole("interval_ms"),
            is_closed=found.flag("is_closed"),
            batches=totals.whole("batches", 0),
            rows=totals.whole("rows", 0),
            rows_per_second=totals.number("rows_per_second", 0.0),
            seconds=totals.number("seconds", 0.0),
            behind=totals.whole("behind") if totals.has("behind") else None,
            heard_s=time.time(),
        )

    def take_commits(self, id: str, found: Fields) -> None:
        run = self.runs.get(id) or CommitRun(
            id,
            sink=found.text("sink"),
            query=found.text("query"),
            topic=found.text("topic", ""),
            delivery=found.text("delivery"),
            place=f"{found.text('host')}, process {found.whole('pid')}",
            interval_ms=found.whole("interval_ms"),
        )
        news = [(one.whole("sequence"), ToldBatch.of(one, id)) for one in found.items("batches")]
        now = found.inner("now") if found.has("now") else None
        at_hand = None if now is None else AtHand(ToldBatch.of(now, id), now.text("place"), now.whole("since_ms"))
        # From here on nothing is refused any more.
        self.runs.pop(id, None)
        self.runs[id] = run
        while len(self.runs) > RUNS_MAX:
            del self.runs[next(iter(self.runs))]
        run.now, run.is_closed, run.heard_s = at_hand, found.flag("is_closed"), time.time()
        for sequence, batch in news:
            if sequence > run.last_sequence:  # else it is told again, for the answer got lost
                run.last_sequence = sequence
                self.batches.append(batch)
                self.totals.add(batch)

    @property
    def run(self) -> CommitRun | None:
        """The one that is committing; else the living one that was heard of last."""
        newest_first = reversed(self.runs.values())
        return min(newest_first, key=lambda run: (not run.is_live, run.now is None), default=None)

    @property
    def heard_s(self) -> float:
        heard = [run.heard_s for run in self.runs.values()]
        return max([*heard, 0.0 if self.driver is None else self.driver.heard_s])

    @property
    def state(self) -> str:
        """running, finished, stopped, cancelled, failed, closed or silent."""
        driver, run = self.driver, self.run
        if driver is not None and (driver.is_closed or driver.state in ("finished", "stopped", "cancelled", "failed")):
            return driver.state
        if driver is not None and _is_silent(driver.heard_s, driver.interval_ms):
            return "silent"
        if driver is not None:
            return driver.state
        if run is None or run.is_closed:
            return "closed"
        return "silent" if _is_silent(run.heard_s, run.interval_ms) else "running"


def _is_silent(heard_s: float, interval_ms: int) -> bool:
    return time.time() - heard_s > max(_SECONDS_MIN, SILENT_INTERVALS * interval_ms / 1000)
