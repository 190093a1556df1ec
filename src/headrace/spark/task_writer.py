"""A task's part: rows in Arrow columns become records in Kafka, or ride home to the driver.

    batches of columns → ColumnPlan → kept as long as they are few → Report with the rows themselves (inline)
                                    ↘ a transaction of the task's own → flushed, left open → Report of what is open

The report is all that the driver learns of a task. One that never gets home (a killed worker, a twin that lost) leaves
an open transaction behind, which no decision holds: it is aborted by the next commit, or by its time-out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headrace.client.blocking import BlockingClient
from headrace.client.clock import SYSTEM_CLOCK
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.producer.arrow import ArrowDelivery
from headrace.producer.engine import SendEngine
from headrace.spark import worker
from headrace.spark.columns import ColumnPlan, Limits, Sending
from headrace.spark.commit_watch import TaskTimes
from headrace.spark.decisions import Fingerprint, Span, TaskTransaction
from headrace.spark.errors import SinkError, not_sent
from headrace.spark.failpoints import Failpoints
from headrace.spark.origins import KnownOrigins, OriginFilter, OriginReport, base_for
from headrace.spark.sink_options import PLAN_MS_MAX, SinkOptions

UNANSWERED_MAX = 64
"""Sendings whose answers are not looked at yet."""
FLUSH_SECONDS_MAX = 900.0
UNKNOWN_PARTITION_MS_MAX = 2000.0
UNKNOWN_PARTITION_POLL_MS = 100.0
_QUERY, _BATCH, _RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Place:
    """Which task of what this is."""

    sink: str
    query: str
    run: str
    batch: int
    partition: int
    attempt: int

    @property
    def name(self) -> str:
        return f"batch {self.batch} of query {self.query}, task {self.partition} (attempt {self.attempt})"


@dataclass(slots=True)
class Report(WriterCommitMessage):
    """What a task has to say."""

    place: Place
    transaction: TaskTransaction | None = None
    inline: list[tuple[str, bytes]] = field(default_factory=list)  # topic, Arrow IPC stream
    row_count: int = 0
    """Rows that are delivered with the batch; those that were skipped are not counted."""
    dead_count: int = 0
    origin: OriginReport | None = None
    """With the option source.offsets only."""
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    """Of the rows as they came from Spark, without those that were skipped."""
    times: TaskTimes = field(default_factory=TaskTimes)


def place_of_task(sink: str | None, batch_run: str | None, batch_query: str = "") -> Place:
    """Where a task is, by Spark's word: a stream's tasks have it in their properties; `batch_run` is for the others."""
    context = TaskContext.get()
    if context is None:
        raise SinkError("this is no task of Spark's: there is no task context")
    partition, attempt = context.partitionId(), context.attemptNumber()
    if batch_run is not None:
        assert sink is not None
        return Place(sink, batch_query, batch_run, 0, partition, attempt)
    query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
    run = context.getLocalProperty(_RUN)
    if not query or batch is None or not run:
        raise SinkError(
            f"Spark has not told the task which query and batch it belongs to ({_QUERY}={query!r}, {_BATCH}={batch!r}, "
            f"{_RUN}={run!r}): without that nothing can be delivered exactly once. Set delivery=at-least-once"
        )
    return Place(sink or default_sink(query), query, run, int(batch), partition, attempt)


def default_sink(query: str) -> str:
    return f"headrace-{query}"


class TaskWriter:
    """Writes the rows of one task attempt."""

    def __init__(
        self,
        options: SinkOptions,
        place: Place,
        limits: Limits,
        known: Mapping[str, KnownOrigins] | None = None,
    ) -> None:
        """`known`: what the queries of the sink have delivered, for the option source.offsets."""
        self._options = options
        self._place = place
        self._failpoints = Failpoints(options.failpoints)
        self._plan = ColumnPlan(options, limits, place.name, self._count_partitions)
        self._report = Report(place)
        self._origins: OriginFilter | None = None
        if options.origins is not None:
            base = base_for(known or {}, place.query, place.batch)
            self._origins = OriginFilter(options.origins, base, place.name)
            self._report.origin = self._origins.report
        self._sender: _Sender | None = None  # while there is something to send

    def write(self, batches: Iterator[pa.RecordBatch], times: TaskTimes | None = None) -> Report:
        """`times` knows of the planning already."""
        times = self._report.times = replace(times or self._report.times)
        times.started_ms = SYSTEM_CLOCK.time_ms()
        try:
            if not self._options.is_exactly_once:
                self._write_plainly(batches)
            else:
                self._write(batches)
        finally:
            self._plan.close()
        self._report.dead_count = self._plan.bad_count
        self._report.fingerprint = self._plan.fingerprint
        times.ended_ms = SYSTEM_CLOCK.time_ms()
        return self._report

    def _sendings(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sending]:
        for given in batches:
            batch = given if self._origins is None else self._origins.apply(given)
            self._report.row_count += batch.num_rows
            if batch.num_rows:
                for sending in self._plan.prepare(batch):
                    self._report.times.sent_bytes += sending.columns.nbytes
                    yield sending

    def _count_partitions(self, topic: str, highest: int | None) -> int:
        """The number of partitions of a topic that only the rows name; or now, if a row names one above."""
        if highest is not None:
            return partition_count_above(self._options, topic, highest)
        if self._sender is not None:
            return self._sender.count_partitions(topic)
        with worker.producer_of(self._options) as producer:
            return _Sender(producer, self._place).count_partitions(topic)

    @contextlib.contextmanager
    def _sending(self) -> Iterator[_Sender]:
        with worker.producer_of(self._options) as producer:
            self._sender = _Sender(producer, self._place)
            try:
                yield self._sender
            finally:
                self._sender = None

    def _write_plainly(self, batches: Iterator[pa.RecordBatch]) -> None:
        """At least once: seen as soon as it is written."""
        with self._sending() as sender:
            for sending in self._sendings(batches):
                sender.send(sending)
            sender.finish()

    # -- exactly once ----------------------------------------------------------------------------

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        sendings = self._sendings(batches)
        kept: list[Sending] = []
        if self._options.commit_mode != "parallel":
            for sending in sendings:
                kept.append(sending)
                if self._report.times.sent_bytes > self._options.inline_bytes_max:
                    break
            else:
                self._report.inline = [(one.topic, _to_ipc(one.columns)) for one in kept]
                return
            if self._options.commit_mode == "inline":
                raise SinkError(
                    f"{self._place.name} has more for the driver than commit.inline.bytes.max "
                    f"({self._options.inline_bytes_max} bytes): set commit.mode=auto, or make batches smaller"
                )
        first = kept or list(_first(sendings))
        if first:
            self._write_in_transaction(first, sendings)

    def _write_in_transaction(self, first: list[Sending], rest: Iterator[Sending]) -> None:
        self._failpoints.reach("task.begin")
        place = self._place
        with self._sending() as sender:
            identifier = worker.transactional_id(place.sink, place.run, place.batch)
            worker.begin(sender.producer, identifier)
            try:
                for sending in first:
                    sender.send(sending)
                self._failpoints.reach("task.sent")
                for sending in rest:
                    sender.send(sending)
                self._leave_open(sender, identifier)
            except BaseException:
                worker.abort(sender.producer)
                raise
        self._failpoints.reach("task.flushed")

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
    """The number of partitions of a topic, from metadata that is requested now.

    Brokers learn of a new partition one after the other, so for a moment it is looked for again.
    """
    with BlockingClient(options.client_settings(PLAN_MS_MAX)) as client:
        deadline = client.clock.monotonic_ms() + UNKNOWN_PARTITION_MS_MAX
        while True:
            cluster = client.cluster([topic], client.deadline(), fresh=True)
            client.metadata.raise_topic_error(topic)
            count = cluster.partition_count(topic)
            if count is None:
                error = BrokerError(f"topic {topic!r}", code=cluster.errors.get(topic, Code.UNKNOWN_TOPIC_OR_PARTITION))
                raise SinkError(not_sent(topic, error)) from error
            if count > partition or client.clock.monotonic_ms() >= deadline:
                return count
            client.poll(UNKNOWN_PARTITION_POLL_MS)


class _Sender:
    """Sends the rows of one task, and knows where brokers have put them."""

    def __init__(self, producer: SendEngine, place: Place) -> None:
        self.producer = producer
        self._place = place
        self._open: list[tuple[str, ArrowDelivery]] = []
        self._spans: dict[tuple[str, int], list[int]] = {}  # first, last, count

    def count_partitions(self, topic: str) -> int:
        with self._explained(topic):
            return len(self.producer.partitions_for(topic))

    def send(self, sending: Sending) -> None:
        with self._explained(sending.topic):
            delivery = self.producer.send_arrow(sending.topic, sending.columns)
            if delivery.refusal is not None:
                raise delivery.refusal
            self._open.append((sending.topic, delivery))
        if len(self._open) > UNANSWERED_MAX:
            while self._open and self._open[0][1].done():
                self._take(*self._open.pop(0))

    @contextlib.contextmanager
    def _explained(self, topic: str) -> Iterator[None]:
        try:
            yield
        except HeadraceError as error:
            raise SinkError(f"{self._place.name}, {not_sent(topic, error)}") from error

    def finish(self) -> tuple[Span, ...]:
        """Waits for all answers; raises the first error there is."""
        for topic, delivery in self._open:
            self._take(topic, delivery)
        self._open.clear()
        return tuple(Span(*place, *found) for place, found in sorted(self._spans.items()))

    def _take(self, topic: str, delivery: ArrowDelivery) -> None:
        for partition, ranges in delivery.result(FLUSH_SECONDS_MAX).items():
            first, last = ranges[0].first, ranges[-1].last
            count = sum(one.last - one.first + 1 for one in ranges)
            found = self._spans.setdefault((topic, partition), [first, last, 0])
            found[0], found[1] = min(found[0], first), max(found[1], last)
            found[2] += count


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
    """The columns that rode home."""
    (batch,) = pa.ipc.open_stream(data)
    return batch


def merged(reports: list[Report]) -> list[tuple[str, pa.RecordBatch]]:
    """The inline rows of all tasks, one after the other."""
    return [(topic, from_ipc(data)) for report in reports for topic, data in report.inline]
