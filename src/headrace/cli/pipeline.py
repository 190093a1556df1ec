"""headrace pipeline: run and check; progress as a live line, plain lines or JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.errors import command_errors
from headrace.cli.output import debug_option, emit, format_option
from headrace.cli.signals import StopSignals, show_cursor
from headrace.spark.local_session import session
from headrace.spark.pipeline import Pipeline
from headrace.spark.progress import BatchProgress, Reporter, Started, Tasks, Totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

EXIT_CANCELLED = 130
_REFRESH_PER_SECOND = 8

file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
override_option = click.option(
    "-X", "overrides", metavar="TABLE.KEY=VALUE", multiple=True, help="Override a value of the file; repeatable."
)
master_option = click.option("--master", metavar="URL", help="Spark master: local[4], spark://host:7077, yarn, k8s://…")


@contextmanager
def spark_session(name: str, master: str, config: Mapping[str, str], *, debug: bool) -> Iterator[SparkSession]:
    """Yield a Spark session; Spark's own log is shown only with --debug."""
    if not debug:
        # PySpark logs query errors to stderr; the command reports them in one paragraph.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    spark = session(name, master, config, log_level="WARN" if debug else "OFF")
    try:
        yield spark
    finally:
        spark.stop()


@click.group()
def pipeline() -> None:
    """Run a pipeline on Spark: a source, SQL, and an exactly-once topic sink."""


@pipeline.command()
@file_argument
@override_option
@master_option
@click.option("--view", metavar="URL", help="Live view to report to: the address that `headrace ui` prints.")
@format_option
@debug_option
@command_errors
def run(
    *, file: Path, overrides: tuple[str, ...], master: str | None, view: str | None, output_format: str, debug: bool
) -> None:
    """Run the pipeline in FILE, a TOML file, until it ends or Ctrl-C.

    A stream resumes from its checkpoint. Ctrl-C (or SIGTERM) stops it after the current batch; a second one ends the
    process at once, without losing or duplicating rows. With the trigger `batch`, Ctrl-C cancels the batch.

    \b
    headrace pipeline run orders.toml -X sink.options.topic=orders-test --master 'local[2]'

    \b
    Exit codes: 0 finished, or stopped after a batch; 1 failure, or an invalid file; 2 invalid usage;
    130, 143 the batch was cancelled, or a second signal ended the process.
    """
    loaded = Pipeline.from_file(file, _with_overrides(overrides, master, view))
    spec, reporter = loaded.spec, reporter_for(output_format)
    live = reporter if isinstance(reporter, LiveReporter) else None
    message = "stopping after this batch; press Ctrl-C again to exit now" if spec.is_stream else "cancelling the batch"
    with (
        StopSignals(message, show_cursor if live else lambda: None) as signals,
        spark_session(spec.name, spec.spark.master, spec.spark.config, debug=debug) as spark,
    ):
        signals.install()
        try:
            totals = loaded.run(spark, reporter=reporter, stop=signals.stop_requested)
        finally:
            if live is not None:
                live.close()
    if totals.stopped == "cancelled":
        raise click.exceptions.Exit(EXIT_CANCELLED)


@pipeline.command()
@file_argument
@override_option
@master_option
@format_option
@debug_option
@command_errors
def check(file: Path, overrides: tuple[str, ...], master: str | None, output_format: str, debug: bool) -> None:
    """Validate the pipeline in FILE without running it.

    Checks keys, values, variables and options, then lets Spark plan the SQL, and shows the columns of every step. Only
    schemas are read, nothing is written, and no broker is contacted. Secrets are not shown.

    \b
    Exit codes: 0 valid; 1 invalid, with all known errors; 2 invalid usage.
    """
    loaded = Pipeline.from_file(file, _with_overrides(overrides, master))
    spec = loaded.spec
    with spark_session(spec.name, spec.spark.master, spec.spark.config, debug=debug) as spark:
        views = loaded.check(spark)
    facts = spec.to_json()
    columns = {view.name: dict(view.columns) for view in views}
    emit(output_format, {**facts, "columns": columns}, "\n".join(_description_lines(facts, list(map(str, views)))))


def _with_overrides(overrides: tuple[str, ...], master: str | None, view: str | None = None) -> tuple[str, ...]:
    given = {"spark.master": master, "view.url": view}
    return (*overrides, *(f"{name}={value}" for name, value in given.items() if value is not None))


def _description_lines(facts: dict[str, Any], views: list[str]) -> list[str]:
    lines = [f"{facts['name']} is valid."]
    for table in ("source", "sink", "trigger", "spark"):
        values = {name: value for name, value in facts[table].items() if not isinstance(value, dict)}
        options = {
            name: value for part in facts[table].values() if isinstance(part, dict) for name, value in part.items()
        }
        lines.append(f"{table}: " + ", ".join(f"{name}={value}" for name, value in {**values, **options}.items()))
    return [*lines, "columns:", *(f"  {view}" for view in views)]


# -- progress --------------------------------------------------------------------------------------


def reporter_for(output_format: str) -> Reporter:
    """Return the reporter for a format: JSON, or at a terminal a live line, else plain lines."""
    if output_format == "json":
        return JsonReporter()
    return LiveReporter() if sys.stdout.isatty() else PlainReporter()


class JsonReporter:
    """Prints an object for each event."""

    wants_tasks = False

    def started(self, event: Started) -> None:
        self._emit("started", {name: value for name, value in event._asdict().items() if value is not None})

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        pass

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._emit("batch", {**batch.to_json(), "total_rows": totals.rows})

    def finished(self, totals: Totals) -> None:
        self._emit("finished", totals.to_json())

    def _emit(self, event: str, facts: dict[str, Any]) -> None:
        click.echo(json.dumps({"event": event, **facts}))


class PlainReporter:
    """Prints a line for each batch."""

    wants_tasks = False

    def started(self, event: Started) -> None:
        click.echo(started_text(event))

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        pass

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        click.echo(_batch_text(batch, totals))

    def finished(self, totals: Totals) -> None:
        click.echo(finished_text(totals))


class LiveReporter:
    """Shows one live line with a bar: over the remaining offsets if they are known, else over the batch's tasks."""

    wants_tasks = True

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._text = ""

    def started(self, event: Started) -> None:
        # Imported here: only a terminal needs rich.
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        click.echo(started_text(event))
        self._progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            # Rich's elapsed time stops when the bar is full, which it is at the end of every batch.
            TextColumn("{task.fields[share]} {task.fields[seconds]:,.0f} s"),
            TextColumn("{task.description}"),
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
        )
        self._progress.add_task("waiting for the first batch", total=None, share="", seconds=0)
        self._progress.start()

    def tasks(self, tasks: Tasks, totals: Totals) -> None:
        if totals.fraction is None:
            share = f"{tasks.done}/{tasks.all} tasks" if tasks.all else ""
            self._update(total=tasks.all or None, completed=tasks.done, share=share)
        self._update(seconds=totals.seconds)

    def batch(self, batch: BatchProgress, totals: Totals) -> None:
        self._text = _batch_text(batch, totals)
        if totals.fraction is None:
            self._update(description=self._text)
        else:
            share = f"{totals.fraction:4.0%}"
            self._update(description=self._text, total=1.0, completed=totals.fraction, share=share)

    def finished(self, totals: Totals) -> None:
        self.close()
        if self._text:
            click.echo(self._text)
        click.echo(finished_text(totals))

    def close(self) -> None:
        """Remove the live line and restore the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _update(self, **changes: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **changes)


def started_text(event: Started) -> str:
    if not event.is_stream:
        return f"{event.name}: one batch on {event.master}"
    if event.checkpoint is None:
        return f"{event.name}: stream on {event.master}, without a checkpoint"
    if event.resumes_after is None:
        return f"{event.name}: new stream on {event.master}, checkpoint {event.checkpoint}"
    position = f"after batch {event.resumes_after}" if event.resumes_after >= 0 else "at its first batch"
    return f"{event.name}: resuming {position} on {event.master}, checkpoint {event.checkpoint}"


def _batch_text(batch: BatchProgress, totals: Totals) -> str:
    parts = [
        f"batch {batch.batch}: {batch.rows:,} rows",
        f"{batch.rows_per_second:,.0f} rows/s",
        f"write {batch.write_ms:,} ms",
        f"commit {batch.commit_ms:,} ms",
    ]
    if batch.behind is not None:
        parts.append(f"{batch.behind:,} behind")
    return f"{', '.join(parts)} (total {totals.rows:,} rows)"


def finished_text(totals: Totals) -> str:
    if totals.stopped == "cancelled":
        return "cancelled during the batch"
    word = "finished" if totals.stopped is None else "stopped"
    batches = f"{totals.batches:,} batch{'' if totals.batches == 1 else 'es'}"
    behind = "" if not totals.behind else f", {totals.behind:,} behind"
    return (
        f"{word}: {totals.rows:,} rows in {batches}, {totals.seconds:,.1f} s "
        f"({totals.rows_per_second:,.0f} rows/s){behind}"
    )
