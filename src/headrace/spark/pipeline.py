"""Runs a pipeline: a source, SQL steps and a sink, as a stream or as a batch.

    spec → check (options) → plan: source → view → step → view → … → DataFrame → run: start, watch, stop → Totals

A Pipeline has no state except its spec: the progress of a stream is in its checkpoint, the decisions of a sink in the
decision topic. To resume, run the same pipeline again. PySpark, an optional dependency, is imported in functions.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import ConfigError
from headrace.spark import local_session
from headrace.spark.errors import SparkError, explain
from headrace.spark.pipeline_file import parse_pipeline, read_pipeline
from headrace.spark.pipeline_reporter import reporting, sink_options
from headrace.spark.pipeline_spec import (
    AVAILABLE_NOW,
    FORMAT,
    INTERVAL,
    SOURCE_VIEW,
    PipelineSpec,
    problems_of,
)
from headrace.spark.progress import (
    BatchProgress,
    ProgressWatch,
    Reporter,
    SilentReporter,
    Started,
    Tasks,
    Totals,
    running_tasks,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

POLL_SECONDS = 0.1
CANCEL_SECONDS_MAX = 30.0
"""How long to wait for the end of the thread that watches a batch."""


class View(NamedTuple):
    """A view of the pipeline, and its columns: `id` → `bigint`."""

    name: str
    columns: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name} {kind}' for name, kind in self.columns.items())})"


class Pipeline:
    """Source → SQL steps → sink."""

    def __init__(self, spec: PipelineSpec) -> None:
        if problems := problems_of(spec):
            raise ConfigError("\n".join(f"[{table}] {problem}" for table, problem in problems))
        self.spec = spec

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        overrides: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Read a pipeline from a TOML file; overrides are texts `table.key=value`. docs/pipeline.md has the format."""
        return cls(read_pipeline(path, overrides, environment))

    @classmethod
    def from_toml(
        cls, text: str, overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> Pipeline:
        """Read a pipeline from a TOML text."""
        return cls(parse_pipeline(text, "pipeline", overrides, os.environ if environment is None else environment))

    def __repr__(self) -> str:
        return f"Pipeline({self.spec.to_json()})"

    # -- planning ------------------------------------------------------------------------------

    def session(self, **arguments: Any) -> SparkSession:
        """Return a session with the settings of this pipeline."""
        return local_session.session(self.spec.name, self.spec.spark.master, self.spec.spark.config, **arguments)

    def check(self, spark: SparkSession) -> list[View]:
        """Let Spark plan the query, and check the columns for the sink. Reads and writes nothing, needs no broker."""
        frame, views = self._planned(spark, self.spec.is_stream)
        self._check_sink(frame)
        return views

    def dataframe(self, spark: SparkSession, *, stream: bool | None = None) -> DataFrame:
        """Return the DataFrame for the sink; `stream=False` reads the whole source of a stream as a batch."""
        return self._planned(spark, self.spec.is_stream if stream is None else stream)[0]

    def _planned(self, spark: SparkSession, is_stream: bool) -> tuple[DataFrame, list[View]]:
        spec = self.spec
        created: list[str] = []
        with _removed_views(spark, created):
            with _explained(f"{spec.at('source')}cannot read the source ({spec.source.format})"):
                frame = _loaded(spark.readStream if is_stream else spark.read, spec, is_stream)
                views = [_view(spark, SOURCE_VIEW, frame, created)]
            for number, step in enumerate(spec.steps):
                visible = "; ".join(map(str, views))
                with _explained(
                    f"{spec.at(f'steps.{number}')}step {step.name!r} is invalid", f" (it can use {visible})"
                ):
                    frame = spark.sql(step.sql)
                    views.append(_view(spark, step.name, frame, created))
            return frame, views

    def _check_sink(self, frame: DataFrame) -> None:
        if self.spec.sink.format != FORMAT:
            return
        from headrace.spark.columns import check_schema  # imports Arrow, which other sinks do not need
        from headrace.spark.sink_options import SinkOptions

        options = SinkOptions.parse(self.spec.sink.options, is_stream=self.spec.is_stream)
        with _explained(f"{self.spec.at('sink')}the sink cannot write these columns"):
            check_schema(frame.schema, options)

    # -- running -------------------------------------------------------------------------------

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        reporter: Reporter | None = None,
        stop: threading.Event | None = None,
    ) -> Totals:
        """Run to the end, or until `stop` is set: a stream then finishes its current batch, a batch is cancelled."""
        spark, reporter, stop = spark or self.session(), reporter or SilentReporter(), stop or threading.Event()
        with reporting(self.spec, reporter) as reporter:
            self.check(spark)
            if stop.is_set():
                reporter.finished(totals := Totals(stopped="stopped"))
                return totals
            return (self._run_stream if self.spec.is_stream else self._run_batch)(spark, reporter, stop)

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the stream and return its query."""
        if not self.spec.is_stream:
            raise ConfigError(f"{self.spec.at('trigger')}the trigger is batch, which is not a stream: call run()")
        sink, trigger = self.spec.sink, self.spec.trigger
        writer = self.dataframe(spark).writeStream.format(sink.format).outputMode(sink.mode).queryName(self.spec.name)
        writer = writer.options(**{**sink_options(self.spec), **sink.options})
        if sink.checkpoint is not None:
            writer = writer.option("checkpointLocation", sink.checkpoint)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        with _explained(f"{self.spec.at('sink')}cannot start the stream"):
            if trigger.mode == INTERVAL:
                writer = writer.trigger(processingTime=trigger.interval or "0 seconds")
            elif trigger.mode == AVAILABLE_NOW:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(once=True)
            return writer.start(sink.path) if sink.path is not None else writer.start()

    def _run_stream(self, spark: SparkSession, reporter: Reporter, stop: threading.Event) -> Totals:
        checkpoint = self.spec.sink.checkpoint
        resumes_after = None if checkpoint is None else last_committed(spark, checkpoint)
        reporter.started(Started(self.spec.name, True, _master(spark), checkpoint, resumes_after))
        totals = Totals()
        query = self.start(spark)
        try:
            self._watch(spark, query, reporter, stop, totals)
        finally:
            if query.isActive:
                query.stop()
        # A query that is stopped early may report the stop as an error.
        if totals.stopped is None and (error := query.exception()) is not None:
            raise SparkError(f"the stream failed{_after(totals)}: {explain(error)}") from error
        totals.end()
        reporter.finished(totals)
        return totals

    def _watch(
        self, spark: SparkSession, query: StreamingQuery, reporter: Reporter, stop: threading.Event, totals: Totals
    ) -> None:
        watch = ProgressWatch(query)
        ending = False
        while True:
            is_active = query.isActive  # read first, or the last batch could be missed
            was_idle = not query.status["isTriggerActive"]
            batches = 0
            for batch in watch.new():
                batches += 1
                totals.add(batch)
                reporter.batch(batch, totals)
            if not is_active:
                return
            if ending and (batches or was_idle):
                query.stop()
                totals.stopped = "stopped"
                return
            ending = stop.is_set()
            if reporter.wants_tasks:
                reporter.tasks(running_tasks(spark.sparkContext), totals)
            if ending:
                time.sleep(POLL_SECONDS)
            else:
                stop.wait(POLL_SECONDS)

    def _run_batch(self, spark: SparkSession, reporter: Reporter, stop: threading.Event) -> Totals:
        from pyspark.sql import Observation
        from pyspark.sql.functions import count, lit

        sink = self.spec.sink
        reporter.started(Started(self.spec.name, False, _master(spark)))
        totals = Totals()
        observed = Observation()
        frame = self.dataframe(spark).observe(observed, count(lit(1)).alias("rows"))
        options = {**sink_options(self.spec), **sink.options}
        writer = frame.write.format(sink.format).mode(sink.mode).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        with _cancelled_if(stop, spark, lambda tasks: reporter.tasks(tasks, totals), reporter.wants_tasks):
            try:
                with _explained(f"{self.spec.at('sink')}the batch failed"):
                    writer.save(sink.path)
            except SparkError:
                if not stop.is_set():
                    raise
                totals.stopped = "cancelled"
        if totals.stopped is None:
            duration_ms = int(totals.seconds * 1000)
            rows = int(observed.get["rows"])
            rate = rows / totals.seconds if totals.seconds else 0.0
            totals.add(BatchProgress(0, rows, rate, duration_ms, duration_ms, 0, rows_out=rows))
        totals.end()
        reporter.finished(totals)
        return totals


@contextmanager
def _cancelled_if(
    stop: threading.Event, spark: SparkSession, show: Callable[[Tasks], None], wants_tasks: bool
) -> Iterator[None]:
    """Watch the jobs of the block from another thread, and cancel them if `stop` is set.

    The block stays in the caller's thread, whose active session Spark uses to find the format.
    """
    context, tag, over = spark.sparkContext, f"headrace-pipeline-{uuid.uuid4()}", threading.Event()

    def watch() -> None:
        while not over.wait(POLL_SECONDS):
            if stop.is_set():
                context.cancelJobsWithTag(tag)  # repeatedly: another job may have started
            elif wants_tasks:
                show(running_tasks(context))

    watcher = threading.Thread(target=watch, name="headrace-pipeline", daemon=True)
    context.addJobTag(tag)
    context.setInterruptOnCancel(True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(CANCEL_SECONDS_MAX)
        context.setInterruptOnCancel(False)
        context.removeJobTag(tag)


def last_committed(spark: SparkSession, checkpoint: str) -> int | None:
    """Return the last committed batch of a checkpoint; -1 if none is committed; None if the checkpoint is new."""
    # PySpark has no public access to Hadoop's file systems, where checkpoints are.
    jvm, context = spark._jvm, spark.sparkContext
    assert jvm is not None
    path = jvm.org.apache.hadoop.fs.Path(checkpoint)
    try:
        files = path.getFileSystem(context._jsc.hadoopConfiguration())
        if not files.exists(jvm.org.apache.hadoop.fs.Path(path, "metadata")):
            return None
        commits = jvm.org.apache.hadoop.fs.Path(path, "commits")
        if not files.exists(commits):
            return -1
        names = [status.getPath().getName() for status in files.listStatus(commits)]
    except Exception as error:
        raise SparkError(f"cannot read the checkpoint {checkpoint}: {explain(error)}") from error
    return max((int(name.split(".")[0]) for name in names if name.split(".")[0].isdecimal()), default=-1)


def _loaded(reader: DataFrameReader | DataStreamReader, spec: PipelineSpec, is_stream: bool) -> DataFrame:
    source = spec.source
    reader = reader.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(_schema(source.schema))
    if source.format == FORMAT and spec.is_stream and not is_stream:
        # A batch reads the whole source. A stream may begin at the end, a batch may not.
        given = {name.lower() for name in source.options}
        if source.options.get("startingOffsets", "latest") == "latest" and "startingtimestamp" not in given:
            reader = reader.option("startingOffsets", "earliest")
    return reader.load() if source.path is None else reader.load(source.path)


def _schema(text: str) -> Any:
    """Return DDL as it is, JSON as a type."""
    if not text.lstrip().startswith("{"):
        return text
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(text))


def _view(spark: SparkSession, name: str, frame: DataFrame, created: list[str]) -> View:
    """Create a temporary view of a DataFrame."""
    if spark.catalog.tableExists(name):
        raise ConfigError(f"this session already has a table or view {name!r}: rename one of them")
    frame.createTempView(name)
    created.append(name)
    return View(name, {field.name: field.dataType.simpleString() for field in frame.schema.fields})


@contextmanager
def _removed_views(spark: SparkSession, names: Sequence[str]) -> Iterator[None]:
    """Drop the temporary views after planning: planned queries do not need them."""
    try:
        yield
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


@contextmanager
def _explained(beginning: str, end: str = "") -> Iterator[None]:
    """Raise Spark's errors as one line that begins with what failed, and its position in the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{beginning}: {error}{end}") from error
    except Exception as error:
        raise SparkError(f"{beginning}: {explain(error)}{_remedy(error)}{end}") from error


def _remedy(error: Exception) -> str:
    text = str(error)
    if "Schema must be specified" in text or "schema must be specified" in text:
        return '; set schema in [source], as "id BIGINT, name STRING"'
    return ""


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""


def _after(totals: Totals) -> str:
    return "" if totals.last_batch is None else f" after batch {totals.last_batch}"
