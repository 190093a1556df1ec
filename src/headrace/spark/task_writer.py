"""Writes the rows of a task to Kafka, or sends them to the driver.

    Arrow batches → ColumnPlan → few bytes: Report with the rows (inline)
                               ↘ more: a transaction of the task → flushed, left open → Report with the transaction

The report is all that the driver learns from a task. A task whose report does not arrive (a killed worker, a duplicate
attempt) leaves an open transaction that is in no decision: the next commit aborts it, or its time-out does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headrace.client.blocking import BlockingClient
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import BrokerError, Code, HeadraceError, TimedOutError
from headrace.producer.batch import ArrowDelivery
from headrace.producer.engine import SendEngine
from headrace.spark import worker
from headrace.spark.columns import ColumnPlan, Limits, Sending
from headrace.spark.commit_reporter import TaskTimes
from headrace.spark.decisions import Fingerprint, Span, TaskTransaction
from headrace.spark.errors import FencedError, SinkError, not_sent
from headrace.spark.failpoints import Failpoints
from headrace.spark.ledger import Ledger, is_fenced
from headrace.spark.log_setup import log_context
from headrace.spark.origins import KnownOrigins, OriginFilter, OriginReport, base_for
from headrace.spark.sink_options import PLAN_MS_MAX, SinkOptions

UNCOLLECTED_MAX = 64
"""Deliveries whose results are not collected yet."""
FLUSH_SECONDS_MAX = 900.0
UNKNOWN_PARTITION_MS_MAX = 2000.0
UNKNOWN_PARTITION_POLL_MS = 100.0
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """An attempt of a task: sink, query, run, batch, partition of the DataFrame and attempt number."""

    sink: str
    query: str
    run: str
    batch: int
    partition: int
    attempt: int

    @property
    def name(self) -> str:
        return f"batch {self.batch} of query {self.query}, task {self.partition} (attempt {self.attempt})"

    @property
    def log_context(self) -> dict[str, object]:
        task = str(self.partition) if not self.attempt else f"{self.partition} (attempt {self.attempt})"
        return {"sink": self.sink, "batch": self.batch, "task": task}


@dataclass(slots=True)
class Report(WriterCommitMessage):
    """What a task reports to the driver."""

    task: TaskAttempt
    transaction: TaskTransaction | None = None
    inline: list[tuple[str, bytes]] = field(default_factory=list)  # topic, Arrow IPC stream
    row_count: int = 0
    """Rows that are delivered with the batch, without skipped rows."""
    dead_count: int = 0
    origin: OriginReport | None = None
    """With the option source.offsets only."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    """Of the rows as they came from Spark, without skipped rows."""
    times: TaskTimes = field(default_factory=TaskTimes)


def current_task_attempt(sink: str | None, batch_run: str | None, batch_query: str = "") -> TaskAttempt:
    """Return the attempt that this process runs. Streams have query, batch and run in Spark's local properties."""
    context = TaskContext.get()
    if context is None:
        raise SinkError("there is no Spark task context: this is not a Spark task")
    partition, attempt = context.partitionId(), context.attemptNumber()
    if batch_run is not None:
        assert sink is not None
        return TaskAttempt(sink, batch_query, batch_run, 0, partition, attempt)
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    run = context.getLocalProperty(_RUN)
    if not query or batch is None or not run:
        raise SinkError(
            f"the query, batch or run of the task is unknown ({_QUERY}={query!r}, {_BATCH}={batch!r}, {_RUN}={run!r}): "
            "exactly-once delivery is not possible without them. Set delivery=at-least-once"
        )
    return TaskAttempt(sink or default_sink(query), query, run, int(batch), partition, attempt)


def default_sink(query: str) -> str:
    return f"headrace-{query}"


class TaskWriter:
    """Writes the rows of one task attempt."""

    def __init__(
        self,
        options: SinkOptions,
        task: TaskAttempt,
        limits: Limits,
        known: Mapping[str, KnownOrigins] | None = None,
    ) -> None:
        """`known`: the source offsets that the queries of the sink have delivered, with the option source.offsets."""
        self._options = options
        self._task = task
        self._failpoints = Failpoints(options.failpoints)
        self._plan = ColumnPlan(options, limits, task.name, self._count_partitions)
        self._report = Report(task)
        self._origins: OriginFilter | None = None
        if options.origins is not None:
            base = base_for(known or {}, task.query, task.batch)
            self._origins = OriginFilter(options.origins, base, task.name)
            self._report.origin = self._origins.report
        self._sender: _Sender | None = None  # while there is something to send

    def write(self, batches: Iterator[pa.RecordBatch], times: TaskTimes | None = None) -> Report:
        """Write the rows and return the report. `times` has the time of planning."""
        times = self._report.times = replace(times or self._report.times)
        times.started_ms = SYSTEM_CLOCK.time_ms()
        with log_context(**self._task.log_context):
            self._write(batches)
        times.ended_ms = SYSTEM_CLOCK.time_ms()
        return self._report

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        try:
            if not self._options.is_exactly_once:
                self._write_at_least_once(batches)
            else:
                self._write_exactly_once(batches)
        finally:
            self._plan.close()
        self._report.dead_count = self._plan.bad_count
        self._report.fingerprint = self._plan.fingerprint

    def _sendings(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sending]:
        for rows in batches:
            batch = rows if self._origins is None else self._origins.apply(rows)
            self._report.row_count += batch.num_rows
            if batch.num_rows:
                for sending in self._plan.prepare(batch):
                    self._report.times.sent_bytes += sending.columns.nbytes
                    yield sending

    def _count_partitions(self, topic: str, highest: int | None) -> int:
        """Return the number of partitions of a topic; from new metadata if a row names a partition above `highest`."""
        if highest is not None:
            return partition_count_above(self._options, topic, highest)
        if self._sender is not None:
            return self._sender.count_partitions(topic)
        with worker.producer_of(self._options) as producer:
            return _Sender(producer, self._task, self._options).count_partitions(topic)

    @contextlib.contextmanager
    def _sending(self) -> Iterator[_Sender]:
        with worker.producer_of(self._options) as producer:
            self._sender = _Sender(producer, self._task, self._options)
            try:
                yield self._sender
            finally:
                self._sender = None

    def _write_at_least_once(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Write without a transaction: rows are visible at once."""
        with self._sending() as sender:
            for sending in self._sendings(batches):
                sender.send(sending)
            sender.finish()

    # -- exactly once ----------------------------------------------------------------------------

    def _write_exactly_once(self, batches: Iterator[pa.RecordBatch]) -> None:
        sendings = self._sendings(batches)
        kept: list[Sending] = []
        if self._options.commit_mode != "parallel":
            for sending in sendings:
                kept.append(sending)
                if self._report.times.sent_bytes > self._options.inline_bytes_max:
                    break
            else:
                self._report.inline = [(sending.topic, _to_ipc(sending.columns)) for sending in kept]
                return
            if self._options.commit_mode == "inline":
                raise SinkError(
                    f"{self._task.name} has more inline rows than commit.inline.bytes.max "
                    f"({self._options.inline_bytes_max} bytes): set commit.mode=auto, or make batches smaller"
                )
        first = kept or list(_first(sendings))
        if first:
            self._write_in_transaction(first, sendings)

    def _write_in_transaction(self, first: list[Sending], rest: Iterator[Sending]) -> None:
        self._failpoints.reach("task.begin")
        task = self._task
        with self._sending() as sender:
            identifier = worker.transactional_id(task.sink, task.run, task.batch)
            worker.begin(sender.producer, identifier)
            try:
                for sending in first:
                    sender.send(sending)
                self._failpoints.reach("task.sent")
                for sending in rest:
                    sender.send(sending)
                self._leave_open(sender, identifier)
            except BaseException as error:
                worker.abort(sender.producer)
                if is_fenced(error):
                    raise self._fenced(identifier) from error
                raise
        self._failpoints.reach("task.flushed")

    def _fenced(self, identifier: str) -> SinkError:
        """Return the error of a task whose transaction another client has ended: it names the run that holds the sink.

        A run that takes a sink over ends the open transactions of the runs before it.
        """
        task, last = self._task, None
        with contextlib.suppress(HeadraceError), BlockingClient(self._options.client_settings(PLAN_MS_MAX)) as client:
            ledger = Ledger(self._options, task.sink, client)
            ledger.read()
            last = ledger.holders.last
        fact = f"{task.name}: transaction {identifier!r} of sink.id {task.sink!r} was ended before the task was done"
        if last is not None and last.run != task.run:
            return FencedError(
                f"{fact}, by another driver or query, which holds the sink now: {last}. If it runs this query after a "
                "restart, stop this one; if both are meant to run, give each its own sink.id"
            )
        timeout_ms = self._options.resolved().of(int, "transaction.timeout.ms")
        return SinkError(
            f"{fact}, by its time-out (kafka.transaction.timeout.ms is {timeout_ms}), or by another query with this "
            "sink.id that has not committed yet: make batches smaller, or give each query its own sink.id"
        )

    def _leave_open(self, sender: _Sender, identifier: str) -> None:
        producer = sender.producer
        producer.flush(FLUSH_SECONDS_MAX)
        spans = sender.finish()
        if not spans:
            worker.abort(producer)
            return
        producer_id, epoch, is_v2 = worker.identity(producer)
        self._report.transaction = TaskTransaction(identifier, producer_id, epoch, is_v2, spans)
        worker.leave_open(producer)


def partition_count_above(options: SinkOptions, topic: str, partition: int) -> int:
    """Return the number of partitions of a topic, from new metadata.

    Brokers learn of a new partition one after the other, so this retries for two seconds.
    """
    with BlockingClient(options.client_settings(PLAN_MS_MAX)) as client:
        deadline = client.clock.monotonic_ms() + UNKNOWN_PARTITION_MS_MAX
        while True:
            cluster = client.cluster([topic], client.deadline(), fresh=True)
            client.metadata.raise_topic_error(topic)
            count = cluster.partition_count(topic)
            if count is None:
                error = BrokerError(f"topic {topic!r}", code=cluster.errors.get(topic, Code.UNKNOWN_TOPIC_OR_PARTITION))
                raise SinkError(not_sent(topic, error, is_missing=True)) from error
            if count > partition or client.clock.monotonic_ms() >= deadline:
                return count
            client.poll(UNKNOWN_PARTITION_POLL_MS)


class _Sender:
    """Sends the rows of one task, and collects their offsets."""

    def __init__(self, producer: SendEngine, task: TaskAttempt, options: SinkOptions) -> None:
        self.producer = producer
        self._task = task
        self._options = options
        self._open: list[tuple[str, ArrowDelivery]] = []
        self._spans: dict[tuple[str, int], list[int]] = {}  # first, last, count

    def count_partitions(self, topic: str) -> int:
        with self._explained(topic):
            self._create_if_missing(topic)
            return len(self.producer.partitions_for(topic))

    def send(self, sending: Sending) -> None:
        with self._explained(sending.topic):
            self._create_if_missing(sending.topic)
            delivery = self.producer.send_arrow(sending.topic, sending.columns)
            if delivery.refusal is not None:
                raise delivery.refusal
            self._open.append((sending.topic, delivery))
        if len(self._open) > UNCOLLECTED_MAX:
            while self._open and self._open[0][1].done():
                self._collect(*self._open.pop(0))

    def _create_if_missing(self, topic: str) -> None:
        """Create a topic that a row names, with the option topic.create. Those of options exist since planning."""
        creation = self._options.creation
        if creation is None or topic in (self._options.topic, self._options.dead_letter_topic):
            return
        if topic not in self.producer.metadata.cluster.topics:
            with BlockingClient(self._options.client_settings(PLAN_MS_MAX)) as client:
                creation.ensure(client, [topic])

    @contextlib.contextmanager
    def _explained(self, topic: str) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            is_missing = isinstance(error, TimedOutError) and topic not in self.producer.metadata.cluster.topics
            raise SinkError(f"{self._task.name}, {not_sent(topic, error, is_missing=is_missing)}") from error

    def finish(self) -> tuple[Span, ...]:
        """Wait for all deliveries; raise the first error."""
        for topic, delivery in self._open:
            self._collect(topic, delivery)
        self._open.clear()
        return tuple(Span(*partition, *span) for partition, span in sorted(self._spans.items()))

    def _collect(self, topic: str, delivery: ArrowDelivery) -> None:
        for partition, ranges in delivery.result(FLUSH_SECONDS_MAX).items():
            first, last = ranges[0].first, ranges[-1].last
            count = sum(offsets.last - offsets.first + 1 for offsets in ranges)
            span = self._spans.setdefault((topic, partition), [first, last, 0])
            span[0], span[1] = min(span[0], first), max(span[1], last)
            span[2] += count


def _first(sendings: Iterator[Sending]) -> Iterator[Sending]:
    for sending in sendings:
        yield sending
        return


def _to_ipc(columns: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, columns.schema) as stream:
        stream.write_batch(columns)
    return bytes(sink.getvalue())


def from_ipc(data: bytes) -> pa.RecordBatch:
    """Decode inline rows."""
    (batch,) = pa.ipc.open_stream(data)
    return batch


def merged(reports: list[Report]) -> list[tuple[str, pa.RecordBatch]]:
    """Return the inline rows of all tasks, usually as one batch for each topic, for one request to its leaders.

    The rows of a topic stay in order: only batches that follow one another and have the same columns are joined.
    """
    runs_by_topic: dict[str, list[list[pa.RecordBatch]]] = {}
    for report in reports:
        for topic, data in report.inline:
            columns, runs = from_ipc(data), runs_by_topic.setdefault(topic, [])
            if runs and runs[-1][0].schema == columns.schema:
                runs[-1].append(columns)
            else:
                runs.append([columns])
    return [
        (topic, batch)
        for topic, runs in runs_by_topic.items()
        for parts in runs
        for batch in (parts if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches())
    ]
