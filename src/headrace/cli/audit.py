"""headrace audit: compare a source with the topic it was written to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import LazyModule
from headrace.cli.errors import EXIT_INTERRUPTED, CommandError
from headrace.cli.output import debug_option, emit, format_option
from headrace.cli.pipeline import master_option, override_option, spark_session
from headrace.cli.shared_options import parse_key_value
from headrace.errors import HeadraceError
from headrace.spark.pipeline import Pipeline
from headrace.spark.pipeline_spec import MaskedOptions, PipelineSpec, Sink, Source, SparkSettings, Step, Trigger

if TYPE_CHECKING:
    from headrace.spark import auditing, consumer_options
    from headrace.spark.auditing import AuditReport, Example
else:
    auditing = LazyModule("headrace.spark.auditing")
    consumer_options = LazyModule("headrace.spark.consumer_options")

EXIT_DIFFERENT = 1
EXIT_COULD_NOT_RUN = 2
KINDS = ("lost", "duplicated", "unexpected", "out_of_order")


class AuditFailedError(CommandError):
    """The audit could not run: source and topic are neither equal nor different."""

    exit_code = EXIT_COULD_NOT_RUN


@click.command()
@click.option(
    "--pipeline",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Pipeline file: its source and steps are compared with the topic of its sink.",
)
@override_option
@click.option("--source-format", metavar="NAME", help="Without --pipeline: format of the source, such as parquet.")
@click.option("--source-path", metavar="PATH", help="Path of the source.")
@click.option("--source-schema", metavar="DDL", help="Columns of the source, if the format does not define them.")
@click.option("--source-option", "source_options", metavar="KEY=VALUE", multiple=True, help="Options of the source.")
@click.option("--sql", metavar="SELECT", help="Query that selects key and value from the view `source`.")
@click.option("--topic", metavar="NAME", help="Topics, comma-separated. [default: the topic of the pipeline's sink]")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="Bootstrap servers. [default: those of the sink]")
@click.option(
    "--topic-option", "topic_options", metavar="KEY=VALUE", multiple=True, help="Options for reading the topic."
)
@click.option("--id", "id_", metavar="SQL", help="Expression that identifies a row. [default: key and value]")
@click.option("--source-id", metavar="SQL", help="The same for the source, if its columns differ.")
@click.option(
    "--order", metavar="SQL", help="Expression that must not decrease within a key, on columns of topic or source."
)
@click.option(
    "--examples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Examples shown of each difference."
)
@master_option
@format_option
@debug_option
def audit(output_format: str, debug: bool, **given: Any) -> None:
    """Compare a source with a topic: lost, duplicated, unexpected, out of order.

    A Spark job reads the source and the committed records of the topic, and counts every row on both sides.

    \b
    headrace audit --pipeline orders.toml --order "CAST(get_json_object(CAST(value AS STRING), '$.seq') AS BIGINT)"
    headrace audit --source-format parquet --source-path sent/ --topic orders -b localhost:9092

    \b
    Exit codes: 0 equal; 1 different; 2 the audit could not run, or invalid usage; 130 interrupted.
    """
    try:
        report = _run_audit(given, debug)
    except (HeadraceError, OSError) as error:
        if debug:
            raise
        raise AuditFailedError(str(error)) from error
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from error
    emit(output_format, report.to_json(), "\n".join(_report_lines(report)))
    if not report.is_equal:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _run_audit(given: dict[str, Any], debug: bool) -> AuditReport:
    pipeline = (
        Pipeline(_source_spec(given))
        if given["file"] is None
        else Pipeline.from_file(given["file"], _file_overrides(given))
    )
    topic, options = _topic(given, pipeline)
    spark_settings = pipeline.spec.spark
    with spark_session(f"audit of {topic}", spark_settings.master, spark_settings.config, debug=debug) as spark:
        return auditing.audit(
            pipeline.dataframe(spark, stream=False),
            topic,
            options=options,
            id=given["id_"],
            source_id=given["source_id"],
            order=given["order"],
            examples=given["examples"],
        )


def _source_spec(given: dict[str, Any]) -> PipelineSpec:
    """Return a pipeline of the source alone, without a sink."""
    if given["overrides"]:
        raise click.UsageError("-X overrides a value of a pipeline file: it requires --pipeline FILE")
    if given["source_format"] is None:
        raise click.UsageError("no source: pass --pipeline FILE or --source-format NAME")
    options = MaskedOptions(_pairs(given["source_options"], "--source-option"))
    source = Source(given["source_format"], given["source_path"], given["source_schema"], options)
    steps = () if given["sql"] is None else (Step("rows", given["sql"]),)
    master = given["master"] or SparkSettings().master
    return PipelineSpec("audit", source, Sink("noop"), steps, Trigger("batch"), SparkSettings(master))


def _file_overrides(given: dict[str, Any]) -> tuple[str, ...]:
    source_flags = ("source_format", "source_path", "source_schema", "source_options", "sql")
    if conflicting := [name for name in source_flags if given[name]]:
        flag = conflicting[0].replace("_", "-").rstrip("s")
        raise click.UsageError(f"--{flag} and --pipeline are mutually exclusive")
    master = given["master"]
    overrides: tuple[str, ...] = given["overrides"]
    return overrides if master is None else (*overrides, f"spark.master={master}")


def _topic(given: dict[str, Any], pipeline: Pipeline) -> tuple[str, dict[str, str]]:
    """Return the name of the topic, and the options to read it."""
    sink = {name.lower(): value for name, value in pipeline.spec.sink.options.items()}
    topic = given["topic"] or sink.get("topic")
    if topic is None:
        raise click.UsageError("no topic: pass --topic NAME (the rows of this source do not name one)")
    options = consumer_options.reading_options(sink) | _pairs(given["topic_options"], "--topic-option")
    if given["bootstrap"]:
        options["kafka.bootstrap.servers"] = given["bootstrap"]
    if "kafka.bootstrap.servers" not in options:
        raise click.UsageError("no bootstrap servers: pass -b HOST:PORT")
    return topic, options


def _pairs(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    return dict(parse_key_value(text, flag) for text in texts)


def _report_lines(report: AuditReport) -> list[str]:
    facts = report.to_json()
    names = ["source_rows", "topic_rows", "matched", *(kind for kind in KINDS if kind in facts)]
    lines = ["equal" if report.is_equal else "different"]
    lines += [f"  {name.replace('_', ' '):<13}{facts[name]:>15,}" for name in names]
    for kind in KINDS:
        for example in report.examples.get(kind, ()):
            lines.append(f"{kind.replace('_', ' ')}: {_example_text(example)}")
    return lines


def _example_text(example: Example) -> str:
    records = ", ".join(f"{record.topic}-{record.partition} at {record.offset}" for record in example.records)
    parts = [f"key={example.key!r}", f"value={example.value!r}"]
    if example.order is not None:
        parts.append(f"order={example.order}")
    return " ".join(parts) + (f" ({records})" if records else "")
