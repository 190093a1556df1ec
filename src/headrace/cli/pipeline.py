"""headrace pipeline: run, check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.output import command_errors, debug_option, emit, format_option
from headrace.cli.pipeline_output import LiveLine, reporter_for
from headrace.cli.spark_options import master_option, spark_session
from headrace.cli.stopping import StopSignals, show_cursor

EXIT_CANCELLED = 130

file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
override_option = click.option(
    "-X", "overrides", metavar="TABLE.KEY=VALUE", multiple=True, help="Counts more than the file; may be repeated."
)


@click.group()
def pipeline() -> None:
    """Run a pipeline on Spark: a source, SQL, a topic that gets every row once."""


@pipeline.command()
@file_argument
@override_option
@master_option
@click.option("--view", metavar="URL", help="A live view to tell of the run: the address that `headrace ui` prints.")
@format_option
@debug_option
@command_errors
def run(
    file: Path, overrides: tuple[str, ...], master: str | None, view: str | None, output_format: str, debug: bool
) -> None:
    """Run the pipeline in FILE, a TOML file, until its end or Ctrl-C.

    A stream goes on from its checkpoint. Ctrl-C (or SIGTERM) lets the batch at hand finish; a second one ends
    everything at once, which loses and doubles nothing either. With the trigger `batch`, Ctrl-C gives the batch up.

    \b
    headrace pipeline run orders.toml -X sink.options.topic=orders-test --master 'local[2]'

    \b
    Exit codes: 0 it came to its end, or was stopped after a batch; 1 it failed, or the file is wrong;
    2 wrong usage; 130, 143 a batch was given up, or a second signal ended it.
    """
    from headrace.spark.pipeline import Pipeline

    made = Pipeline.from_file(file, _overrides(overrides, master, view))
    spec, reporter = made.spec, reporter_for(output_format)
    live = reporter if isinstance(reporter, LiveLine) else None
    said = "stopping after this batch; once more ends it at once" if spec.is_stream else "giving the batch up"
    with (
        StopSignals(said, show_cursor if live else lambda: None) as signals,
        spark_session(spec.name, spec.spark.master, spec.spark.config, debug=debug) as spark,
    ):
        signals.arm()
        try:
            totals = made.run(spark, reporter=reporter, stop=signals.asked)
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
    """Say whether the pipeline in FILE makes sense, without running it.

    Keys, values, variables and options are checked, then Spark plans the SQL: every step is shown with its columns.
    Nothing is read but schemas, nothing is written, and no broker is asked. Secrets are not shown.

    \b
    Exit codes: 0 it makes sense; 1 it does not, and all that is known to be wrong is said; 2 wrong usage.
    """
    from headrace.spark.pipeline import Pipeline

    made = Pipeline.from_file(file, _overrides(overrides, master))
    spec = made.spec
    with spark_session(spec.name, spec.spark.master, spec.spark.config, debug=debug) as spark:
        views = made.check(spark)
    facts = spec.to_json()
    columns = {view.name: dict(view.columns) for view in views}
    emit(output_format, {**facts, "columns": columns}, "\n".join(_described(facts, list(map(str, views)))))


def _overrides(overrides: tuple[str, ...], master: str | None, view: str | None = None) -> tuple[str, ...]:
    given = {"spark.master": master, "view.url": view}
    return (*overrides, *(f"{name}={value}" for name, value in given.items() if value is not None))


def _described(facts: dict[str, Any], views: list[str]) -> list[str]:
    """A pipeline for people."""
    lines = [f"{facts['name']} makes sense."]
    for table in ("source", "sink", "trigger", "spark"):
        inner = {name: value for name, value in facts[table].items() if not isinstance(value, dict)}
        options = {
            name: value for part in facts[table].values() if isinstance(part, dict) for name, value in part.items()
        }
        lines.append(f"{table}: " + ", ".join(f"{name}={value}" for name, value in {**inner, **options}.items()))
    return [*lines, "columns:", *(f"  {view}" for view in views)]
