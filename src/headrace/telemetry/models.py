"""The reports: what producers, consumers, committing processes and pipeline drivers send to the live view.

Every report is a complete snapshot, so a lost one costs nothing; only batches of a `CommitReport` are sent until they
are acknowledged. Field names are the JSON names. Times ending in `_ms` are milliseconds: durations, or since 1970 for
`started_ms`, `time_ms`, `began_ms`, `since_ms` and `newest_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The envelope of every report: which process sent it, and how often it does."""

    kind: ClassVar[str]
    id: str
    host: str
    pid: int
    interval_ms: int
    started_ms: int = 0
    time_ms: int = 0
    is_closed: bool = False
    """Whether this is the last report of the sender."""

    @property
    def process(self) -> str:
        """Host and process id, for people."""
        return f"{self.host}, process {self.pid}"


# -- producers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of a latency, in milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of recent batches; None where nothing was measured yet."""

    queue: Percentiles | None = None
    """From the first record of a batch to its request."""
    request: Percentiles | None = None
    delivery: Percentiles | None = None
    """From the first record of a batch to its response."""


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """The transactional id of a producer and its state."""

    id: str
    state: str


@dataclass(frozen=True, slots=True)
class SendSteps:
    """User code that `send` runs: class names; `partitioner` is None for the built-in one."""

    key_serializer: str
    value_serializer: str
    partitioner: str | None = None
    interceptors: tuple[str, ...] = ()
    interceptor_errors: int = 0


@dataclass(frozen=True, slots=True)
class BufferPoolStatus:
    """Use of `buffer.memory`."""

    total_bytes: float
    used_bytes: float
    waiting_threads: int
    waited_ms: float
    exhausted: int
    """How many calls of `send` have failed because the pool was exhausted."""


@dataclass(frozen=True, slots=True)
class PartitionQueueStatus:
    """The queued batches of a partition; records, bytes and capacity are those of the last batch."""

    topic: str
    partition: int
    leader: int
    batches: int
    records: int
    bytes: int
    room_bytes: int
    """Capacity of the batch."""
    age_ms: float
    attempts: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def fill(self) -> float:
        """How full the last batch is, from 0 to 1."""
        return min(1.0, self.bytes / self.room_bytes) if self.room_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AccumulatorStatus:
    """Batches that wait to be sent."""

    batch_bytes: int
    linger_ms: float
    partitions: int
    queued: int
    oldest: tuple[PartitionQueueStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerConnection:
    """A broker as the producer sees it."""

    id: int
    address: str
    is_connected: bool
    in_flight: int
    in_flight_max: int
    sent_bytes: float


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """Records and bytes sent to a topic."""

    topic: str
    records: float
    bytes: float


@dataclass(frozen=True, slots=True)
class ProducerTotals:
    """Counters since the producer was created."""

    records: float
    sent_bytes: float
    retries: float
    errors: float
    splits: float
    throttled_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ReportedError:
    """A recent error, and how many times in a row it occurred."""

    time_ms: int
    where: str
    text: str
    count: int


@dataclass(frozen=True, kw_only=True)
class ProducerSnapshot:
    """The state of a producer at one moment, stage by stage."""

    client_id: str
    transaction: TransactionStatus | None = None
    steps: SendSteps
    pool: BufferPoolStatus
    batches: AccumulatorStatus
    brokers: tuple[BrokerConnection, ...] = ()
    topics: tuple[TopicTotals, ...] = ()
    """The largest first."""
    totals: ProducerTotals
    latency: Latencies
    errors: tuple[ReportedError, ...] = ()
    """The newest first."""


@dataclass(frozen=True, kw_only=True)
class ProducerReport(Report, ProducerSnapshot):
    """A snapshot of a producer."""

    kind: ClassVar[str] = "producer"


# -- consumers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A consumer as a member of its group."""

    group: str
    protocol: str
    state: str
    member: str = ""
    epoch: int | None = None
    """The generation of a classic group, or the epoch of the member; None outside the group."""

    @property
    def epoch_name(self) -> str:
        return "generation" if self.protocol == "classic" else "epoch"


@dataclass(frozen=True, slots=True)
class PositionStatus:
    """An assigned partition, and what the consumer does with it."""

    topic: str
    partition: int
    state: str
    position: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class FetchBufferStatus:
    """Use of `fetch.max.bytes`."""

    total_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class ConsumerTotals:
    """Totals since the consumer was created."""

    records: float
    bytes: float
    fetches: float
    rebalances: float


@dataclass(frozen=True, kw_only=True)
class ConsumerSnapshot:
    """The state of a consumer at one moment."""

    client_id: str
    member: MemberStatus | None = None
    assigned: int
    paused: int
    lag: int | None = None
    """Of the partitions whose end is known."""
    positions: tuple[PositionStatus, ...] = ()
    """The greatest lag first."""
    buffer: FetchBufferStatus
    poll_age_ms: float | None = None
    """Since the last poll."""
    totals: ConsumerTotals


@dataclass(frozen=True, kw_only=True)
class ConsumerReport(Report, ConsumerSnapshot):
    """A snapshot of a consumer."""

    kind: ClassVar[str] = "consumer"


# -- Spark commits -------------------------------------------------------------------------------


class BatchOutcome(StrEnum):
    """How a batch ended. `WRITTEN`: without a transaction (at-least-once)."""

    COMMITTED = "committed"
    REPLAYED = "replayed"
    EMPTY = "empty"
    WRITTEN = "written"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(slots=True, kw_only=True)
class BatchReport:
    """A batch, or one attempt at it, with the duration of each phase."""

    batch: int
    sequence: int = 0
    """Position among all batches that this sender has reported: a batch may be attempted again."""
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
    """Between planning and commit, not counting the tasks: scheduling in Spark."""
    begin_ms: float = 0.0
    decide_ms: float = 0.0
    end_ms: float = 0.0
    redone: int = 0
    outcome: str = ""
    error: str = ""

    @property
    def mode(self) -> str:
        """How its rows were written: direct, parallel or inline."""
        if self.outcome == BatchOutcome.WRITTEN:
            return "direct"
        return "parallel" if self.transactions else "inline"


@dataclass(slots=True)
class BatchTotals:
    """Totals of all batches that were reported."""

    committed: int = 0
    replayed: int = 0
    failed: int = 0
    aborted: int = 0
    redone: int = 0
    dead: int = 0
    rows: int = 0
    bytes: int = 0

    def add(self, batch: BatchReport) -> None:
        if batch.outcome in (BatchOutcome.COMMITTED, BatchOutcome.WRITTEN):
            self.committed += 1
            self.rows += batch.rows
            self.bytes += batch.bytes
            self.dead += batch.dead
        self.replayed += batch.outcome == BatchOutcome.REPLAYED
        self.failed += batch.outcome == BatchOutcome.FAILED
        self.aborted += batch.outcome == BatchOutcome.ABORTED
        self.redone += batch.redone


@dataclass(slots=True, kw_only=True)
class CurrentBatch(BatchReport):
    """The batch that is being committed, and the phase it is in: a `CommitPhase`."""

    phase: str = "begin"
    since_ms: int = 0
    """When the phase began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport(Report):
    """Commits of one process for one run of a sink. Spark may serve each commit in another process."""

    kind: ClassVar[str] = "commits"
    name: str
    """The pipeline, or the sink if it belongs to none."""
    sink: str
    query: str
    run: str = ""
    topic: str | None = None
    delivery: str
    has_view: bool = False
    """Whether the process reports to a live view itself."""
    now: CurrentBatch | None = None
    batches: tuple[BatchReport, ...] = ()
    """Those that were not acknowledged yet."""


# -- pipelines -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A topic of a source: how far the query is behind, and the newest timestamp of a record in it."""

    topic: str
    partitions: int
    lag: int | None = None
    newest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceReport:
    """A source at the end of the last batch."""

    name: str
    lag: int | None = None
    topics: tuple[TopicLag, ...] = ()
    """The greatest lag first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTotals:
    """Progress of a run, as its driver sees it."""

    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    seconds: float = 0.0
    behind: int | None = None
    """Offsets of the source that were not read yet; None if the source does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineReport(Report):
    """The state of a pipeline run, from its driver."""

    kind: ClassVar[str] = "pipeline"
    name: str
    state: str
    error: str = ""
    master: str = ""
    totals: PipelineTotals = PipelineTotals()
    sources: tuple[SourceReport, ...] = ()


AnyReport = ProducerReport | ConsumerReport | CommitReport | PipelineReport
REPORT_TYPES: dict[str, type[AnyReport]] = {
    report.kind: report for report in (ProducerReport, ConsumerReport, CommitReport, PipelineReport)
}
