"""The Spark driver of the demo, which runs in a process that can be killed.

    stdin: settings as a line of JSON, later `audit`      stdout: events, one line of JSON each
    stderr: the log, including Spark's

When stdin is closed it kills its process group, including the JVM: it never outlives the demo.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.demo import orders
from headrace.errors import HeadraceError
from headrace.spark.auditing import audit
from headrace.spark.consumer_options import reading_options
from headrace.spark.pipeline import Pipeline
from headrace.spark.pipeline_spec import LiveView, MaskedOptions, SparkSettings
from headrace.spark.progress import BatchProgress, SilentReporter, Started, Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND_SECONDS_MAX = 600.0
AUDIT = "audit"

Emit = Callable[..., None]


def main() -> int:
    emit = _redirect_stdout()
    settings = json.loads(sys.stdin.readline())
    commands = _read_commands()
    try:
        pipeline = orders.pipeline(
            Path(settings["source"]),
            Path(settings["checkpoint"]),
            settings["options"],
            topic=settings["topic"],
            spark=SparkSettings(settings["master"], MaskedOptions(settings["config"])),
            view=LiveView(settings["view_url"]),
        )
        spark = pipeline.session(log_level="WARN")
        emit("session", spark=spark.version, java=_java_version(spark))
        pipeline.run(spark, reporter=EventReporter(emit))
        if commands.get(timeout=COMMAND_SECONDS_MAX) == AUDIT:
            emit("audited", **_run_audit(spark, pipeline))
        spark.stop()
    except HeadraceError as error:
        emit("failed", error=str(error))
        return 1
    return 0


class EventReporter(SilentReporter):
    """Emits the progress of the pipeline as events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def started(self, what: Started) -> None:
        self._emit("started", resumes_after=what.resumes_after)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._emit("batch", **batch.to_json())

    def finished(self, totals: Totals) -> None:
        self._emit("finished", rows=totals.rows)


def _run_audit(spark: SparkSession, pipeline: Pipeline) -> dict[str, Any]:
    """Compare all rows of the files with all records of the topic."""
    sink = pipeline.spec.sink.options
    source = spark.read.schema(orders.SCHEMA).parquet(str(pipeline.spec.source.path))
    source.createOrReplaceTempView("source")
    report = audit(spark.sql(orders.RECORDS.sql), sink["topic"], options=reading_options(sink), order=orders.ORDER)
    return report.to_json()


def _redirect_stdout() -> Emit:
    """Reserve stdout for events: other output, also that of the JVM, goes to the log."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def emit(event: str, **facts: Any) -> None:
        with lock:
            print(json.dumps({"event": event, **facts}), file=out, flush=True)

    return emit


def _read_commands() -> queue.SimpleQueue[str]:
    """Read lines of stdin in a thread, which kills this process group when stdin is closed."""
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=read, name="headrace-demo-guard", daemon=True).start()
    return commands


def _java_version(spark: SparkSession) -> str:
    jvm = spark._jvm
    assert jvm is not None
    return str(jvm.java.lang.System.getProperty("java.version"))


if __name__ == "__main__":
    sys.exit(main())
