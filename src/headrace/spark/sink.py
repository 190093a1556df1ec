"""The sink: Spark's writers for batches and for streams.

    planning (a process for each batch)      check options, columns and topics; Spark pickles the writer
    executors                                write → TaskWriter → Report
    committing (processes of a pool)         commit, abort → Committer

Only what is pickled passes from one of these to the next. Spark runs each commit in any idle process, so the objects
that this module keeps for each run are caches: the state is in the decision topic.

What all processes of an application share, such as what was warned of, is noted: see `python_process.note`.
"""

from __future__ import annotations

import logging
import operator
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from headrace.client.admin.topics import TopicAdmin
from headrace.client.blocking import BlockingClient
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import BrokerError, Code, HeadraceError, RegistryUnavailableError, UnsupportedVersionError
from headrace.spark.columns import Limits, check_schema
from headrace.spark.commit_reporter import TaskTimes, close_reporter, commit_reporter, reported, task_phases
from headrace.spark.commit_times import Stopwatch
from headrace.spark.commit_types import WRITE_PREFIX, Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Fingerprint
from headrace.spark.errors import FIRST_CONNECTION_MS_MAX, MISSING_TOPIC, PlanError, SinkError, not_connected
from headrace.spark.failpoints import Failpoints
from headrace.spark.format_options import FormatOptions
from headrace.spark.holders import WRITE_RUN_PREFIX
from headrace.spark.ledger import Ledger
from headrace.spark.log_setup import log_context, set_up_log
from headrace.spark.origins import KnownOrigins, known_origins
from headrace.spark.python_process import is_noted, note, prepare_process
from headrace.spark.read_columns import SchemasByField
from headrace.spark.shipping import Shipped
from headrace.spark.sink_options import PLAN_MS_MAX, SinkOptions
from headrace.spark.task_writer import Report, TaskAttempt, TaskWriter, current_task_attempt, merged
from headrace.spark.tracing import new_committer
from headrace.spark.worker import PerRun
from headrace.telemetry.listeners import CommitListener
from headrace.telemetry.models import BatchOutcome
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # Spark 4.0 passes the rows of a stream one by one
    DataSourceStreamArrowWriter = None  # type: ignore[assignment,misc]

log = logging.getLogger("headrace.spark")

SESSIONS_MAX = 8
"""Runs for which a committing process keeps connections; beyond that, the least recently used is closed."""
SESSION_IDLE_SECONDS_MAX = 120.0
"""A run without a commit in this process for this long has ended, or other processes commit it."""
CHECKED_MAX = 64
_WRITE_BIT = 1 << 4
"""The operation Write has the number 4 in Kafka."""
_OPERATIONS_UNKNOWN = -(1 << 31)
_sessions: PerRun[Committer] = PerRun(SESSIONS_MAX, SESSION_IDLE_SECONDS_MAX)
_readers: PerRun[_OriginReader] = PerRun(SESSIONS_MAX, SESSION_IDLE_SECONDS_MAX)
_limits: dict[str, tuple[Limits, float]] = {}  # with the monotonic time in milliseconds at which they expire


def plan(options: SinkOptions, schema: StructType) -> Limits:
    """Check options, columns and topics before anything is written.

    Spark plans every batch in one of a few processes. Each caches the brokers' responses for metadata.max.age.ms.
    """
    check_schema(schema, options)
    Failpoints(options.failpoints)
    topics = options.topic, options.dead_letter_topic, options.creation
    formats = None if options.formats is None else (options.formats, sorted(options.formats.registry_options.items()))
    key = repr((sorted(options.kafka.items()), topics, schema.simpleString(), formats))
    now = SYSTEM_CLOCK.monotonic_ms()
    limits, until_ms = _limits.get(key, (None, now))
    if limits is None or now >= until_ms:
        if len(_limits) >= CHECKED_MAX:
            _limits.clear()
        query = repr((options.kafka["bootstrap.servers"], options.sink_id, options.topic))
        if (text := options.no_effect_text()) is not None and note(f"{query}: {text}"):
            log.warning("%s", text)
        # A broker may restart while a query runs. What has never been connected fails sooner.
        schemas = {} if limits is None else limits.schemas
        limits = _look_up(options, None if is_noted(query) else FIRST_CONNECTION_MS_MAX)
        if options.formats is not None:
            limits = replace(limits, schemas=_writer_schemas(options, options.formats, schema, schemas))
        note(query)
        _limits[key] = limits, now + options.resolved().of(int, "metadata.max.age.ms")
    return limits


def _writer_schemas(
    options: SinkOptions, formats: FormatOptions, schema: StructType, known: SchemasByField
) -> SchemasByField:
    """Return the schemas with which rows are written; the known ones if the registry is unavailable."""
    from headrace.spark.record_encoding import find_writer_schemas  # imports the registry's client

    try:
        return find_writer_schemas(formats, schema, options.topic)
    except RegistryUnavailableError as error:
        if known:
            log.warning("continuing with the schemas that are known: %s", error)
            return known
        raise PlanError(f"the schema of topic {options.topic!r} is not known: {error}") from error


def _look_up(options: SinkOptions, first_connection_ms: float | None) -> Limits:
    topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic is not None]
    config = options.resolved()
    limit = config.of(int, "max.request.size")
    settings = replace(
        options.client_settings(min(PLAN_MS_MAX, config.of(int, "max.block.ms"))),
        first_connection_ms=first_connection_ms,
    )
    try:
        with BlockingClient(settings) as client:
            if not topics:
                client.cluster((), client.deadline(), fresh=True)
                return Limits(limit, {})
            if options.creation is None:
                descriptions = TopicAdmin(client).describe_topics(topics)
            else:
                descriptions = options.creation.ensure(client, topics)
            _check_may_write(client, topics)
    except PlanError:
        raise
    except BrokerError as error:
        if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            raise PlanError(f"{error.args[0]} does not exist ({error.name}): {MISSING_TOPIC}") from error
        if error.code == Code.INVALID_TOPIC_EXCEPTION:
            raise PlanError(f"{error.args[0]}: invalid name ({error.name}); correct it") from error
        if error.code == Code.TOPIC_AUTHORIZATION_FAILED:
            raise _not_authorized(topics) from error
        raise PlanError(str(error)) from error
    except HeadraceError as error:
        raise PlanError(not_connected(options.kafka["bootstrap.servers"], error)) from error
    return Limits(limit, {name: len(topic.partitions) for name, topic in descriptions.items()})


def _not_authorized(topics: Iterable[str]) -> PlanError:
    return PlanError(
        f"not authorized to write to topic {' or '.join(map(repr, topics))}: allow the operation Write "
        "(kafka-acls.sh --add --allow-principal … --operation Write --operation Describe --topic …)"
    )


def _check_may_write(client: BlockingClient, topics: Iterable[str]) -> None:
    """Raise if the brokers say that records to one of these topics would be refused."""
    message = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    try:
        response = client.request(message, versions=(8, 12))
    except UnsupportedVersionError:
        return  # brokers before 2.3 do not report it: they refuse the records
    for topic in response.topics:
        operations = topic.topic_authorized_operations
        if operations != _OPERATIONS_UNKNOWN and not operations & _WRITE_BIT:
            raise _not_authorized([topic.name or ""])


def _timed_plan(options: SinkOptions, schema: StructType) -> tuple[Limits, TaskTimes]:
    """Return the plan and the time it took."""
    set_up_log()
    watch, times = Stopwatch(), TaskTimes(planned_ms=SYSTEM_CLOCK.time_ms())
    limits = plan(options, schema)
    times.plan_ms = watch.lap_ms()
    return limits, times


def _committer(options: SinkOptions, sink: str, run: str, *, is_single_use: bool = False) -> Committer:
    client = BlockingClient(options.client_settings())
    return new_committer(
        *(options, sink, run, client, Failpoints(options.failpoints)),
        on_close=client.close,
        replay_check=options.replay_check,
        is_single_use=is_single_use,
    )


class _OriginReader:
    """Reads the source offsets that the queries of a sink have delivered. Later reads fetch what is new."""

    def __init__(self, options: SinkOptions, sink: str) -> None:
        self._client = BlockingClient(options.client_settings())
        self._ledger = Ledger(options, sink, self._client)

    def read(self) -> dict[str, KnownOrigins]:
        return known_origins(self._ledger.read_before_writing())

    def close(self) -> None:
        self._client.close()


def _known_origins(options: SinkOptions) -> dict[str, KnownOrigins] | None:
    """Return the source offsets that the queries of the sink have delivered; None without source.offsets.

    They are read for all queries: Spark gives the query id to tasks, but not to the planner.
    """
    if options.origins is None or options.sink_id is None:
        return None
    sink, settings = options.sink_id, repr((options.decision_topic, sorted(options.kafka.items())))
    reader = _readers.get(options.kafka["bootstrap.servers"], sink, settings, lambda: _OriginReader(options, sink))
    return reader.read()


def _outcome(options: SinkOptions, is_commit: bool) -> BatchOutcome:
    if not is_commit:
        return BatchOutcome.ABORTED
    return BatchOutcome.COMMITTED if options.is_exactly_once else BatchOutcome.WRITTEN


def _reports(messages: list[WriterCommitMessage | None]) -> list[Report]:
    """Return the reports of the tasks; failed tasks have none."""
    return [message for message in messages if isinstance(message, Report)]


def _batch(reports: list[Report], number: int, *, erase_decision: bool = False) -> Batch:
    batches = {(report.task.sink, report.task.query, report.task.run, report.task.batch) for report in reports}
    if len(batches) != 1:
        raise SinkError(
            f"internal error: reports of several batches in one commit: {sorted(batches)}; please report it"
        )
    ((_, query, _, batch),) = batches
    if batch != number:
        raise SinkError(f"internal error: reports of batch {batch} in the commit of batch {number}; please report it")
    origins = [report.origin for report in reports if report.origin is not None]
    return Batch(
        query,
        number,
        [report.transaction for report in reports if report.transaction is not None],
        merged(reports),
        had_retries=any(report.task.attempt for report in reports),
        erase_decision=erase_decision,
        fingerprint=sum((report.fingerprint for report in reports), Fingerprint()),
        origin=reduce(operator.add, origins) if origins else None,
        phases=task_phases(reports, SYSTEM_CLOCK.time_ms()),
    )


class BatchWriter(Shipped, DataSourceArrowWriter):
    """`df.write.format("headrace").mode("append").save()`."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise PlanError("a topic cannot be overwritten: use mode('append')")
        self._options = SinkOptions.parse(options, is_stream=False)
        self._limits, self._times = _timed_plan(self._options, schema)
        unique_id = uuid.uuid4().hex
        self._run = WRITE_RUN_PREFIX + unique_id
        name = self._options.write_id or unique_id
        self._query = WRITE_PREFIX + name
        self._sink = self._options.sink_id or f"headrace-write-{name}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        prepare_process()
        task = current_task_attempt(self._sink, self._run, self._query)
        return TaskWriter(self._options, task, self._limits).write(iterator, self._times)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._finish(messages, is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._finish(messages, is_commit=False)

    def _finish(self, messages: list[WriterCommitMessage | None], *, is_commit: bool) -> None:
        reports = _reports(messages)
        reporter = commit_reporter(self._options, self._sink, self._query, self._run)
        try:
            with (
                log_context(sink=self._sink),
                reported(reporter, 0, reports, _outcome(self._options, is_commit)) as listener,
            ):
                if self._options.is_exactly_once:
                    self._end(reports, listener, is_commit=is_commit)
        finally:
            close_reporter(reporter)

    def _end(self, reports: list[Report], listener: CommitListener, *, is_commit: bool) -> None:
        erase_decision = self._options.write_id is None
        batch = Batch(self._query, 0, fingerprint=Fingerprint())
        if reports:
            batch = _batch(reports, 0, erase_decision=erase_decision)
        is_single_use = erase_decision and self._options.sink_id is None
        committer = _committer(self._options, self._sink, self._run, is_single_use=is_single_use)
        try:
            if is_commit:
                committer.commit(batch, listener)
            else:
                committer.abort(batch, listener)
        finally:
            committer.close()


class _StreamWriter(Shipped):
    """`df.writeStream.format("headrace").start()`."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_planning: bool = True
    ) -> None:
        """`is_planning`: Spark pickles this writer for the tasks. Otherwise it only commits or aborts."""
        if overwrite:
            raise PlanError("a topic cannot be overwritten: use outputMode('append')")
        self._options = SinkOptions.parse(options, is_stream=True)
        self._limits: Limits | None = None
        if is_planning:
            self._limits, self._times = _timed_plan(self._options, schema)
            self._known = _known_origins(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        assert self._limits is not None, "this writer was not planned"
        prepare_process()
        task = current_task_attempt(self._options.sink_id, None)
        return TaskWriter(self._options, task, self._limits, self._known).write(iterator, self._times)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._finish(_reports(messages), batchId, is_commit=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._finish(_reports(messages), batchId, is_commit=False)

    def _finish(self, reports: list[Report], number: int, *, is_commit: bool) -> None:
        if not reports:
            return
        task = reports[0].task
        reporter = commit_reporter(self._options, task.sink, task.query, task.run)
        with (
            log_context(sink=task.sink, batch=number),
            reported(reporter, number, reports, _outcome(self._options, is_commit)) as listener,
        ):
            if self._options.is_exactly_once:
                batch, committer = _batch(reports, number), self._session(task)
                if is_commit:
                    committer.commit(batch, listener)
                else:
                    committer.abort(batch, listener)

    def _session(self, task: TaskAttempt) -> Committer:
        """Return the committer of this run in this process."""
        return _sessions.get(
            self._options.kafka["bootstrap.servers"],
            task.sink,
            task.run,
            lambda: _committer(self._options, task.sink, task.run),
        )


if DataSourceStreamArrowWriter is not None:

    class StreamWriter(_StreamWriter, DataSourceStreamArrowWriter):
        """`df.writeStream.format("headrace").start()`."""

else:

    class StreamWriter(_StreamWriter):  # type: ignore[no-redef]
        """Refuses streams on Spark 4.0."""

        def __init__(
            self, options: Mapping[str, str], schema: StructType, overwrite: bool, *, is_planning: bool = True
        ) -> None:
            raise PlanError(
                f"writing streams needs Spark 4.1 or newer, and this is {pyspark.__version__}: upgrade Spark, or write "
                "batches: writeStream.foreachBatch with the batch id in write.id"
            )
