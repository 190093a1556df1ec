"""The driver of the demo's stream, a process of its own, made to be killed.

    standard input: settings, a line of JSON; later `audit`      standard output: events, a line of JSON each
    standard error: the log, Spark's included

It ends with who started it: at the end of its standard input it kills its whole process group, Java included.
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
from headrace.spark.pipeline_spec import LiveView, MaskedOptions, SparkSettings
from headrace.spark.progress import BatchProgress, SilentReporter, Started, Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipeline import Pipeline

COMMAND_SECONDS_MAX = 600.0
AUDIT = "audit"

Emit = Callable[..., None]


def main() -> int:
    emit = _take_stdout()
    settings = json.loads(sys.stdin.readline())
    commands = _guarded_commands()
    try:
        made = orders.pipeline(
            Path(settings["source"]),
            Path(settings["checkpoint"]),
            settings["options"],
            settings["topic"],
            SparkSettings(settings["master"], MaskedOptions(settings["config"])),
            LiveView(settings["view_url"]),
        )
        spark = made.session(log_level="WARN")
        emit("session", spark=spark.version, java=_java_version(spark))
        made.run(spark, reporter=Events(emit))
        if commands.get(timeout=COMMAND_SECONDS_MAX) == AUDIT:
            emit("audited", **_audit(spark, made))
        spark.stop()
    except HeadraceError as error:
        emit("failed", error=str(error))
        return 1
    return 0


class Events(SilentReporter):
    """What the pipeline reports, as events."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def started(self, what: Started) -> None:
        self._emit("started", resumes_after=what.resumes_after)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._emit("batch", **batch.to_json())

    def finished(self, totals: Totals) -> None:
        self._emit("finished", rows=totals.rows)


def _audit(spark: SparkSession, made: Pipeline) -> dict[str, Any]:
    """Everything that is in the files against everything that is in the topic."""
    from headrace.spark.auditing import audit, reading_options

    sink = made.spec.sink.options
    source = spark.read.schema(orders.SCHEMA).parquet(str(made.spec.source.path))
    source.createOrReplaceTempView("source")
    report = audit(spark.sql(orders.RECORDS.sql), sink["topic"], options=reading_options(sink), order=orders.ORDER)
    return report.to_json()


def _take_stdout() -> Emit:
    """The standard output for events alone: whatever else is printed, by Java too, goes to the log."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lock = threading.Lock()

    def emit(event: str, **facts: Any) -> None:
        with lock:
            print(json.dumps({"event": event, **facts}), file=out, flush=True)

    return emit


def _guarded_commands() -> queue.SimpleQueue[str]:
    """Lines of the standard input; its end is ours."""
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
