"""headrace audit: what was to be sent against what a topic holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import CommandError, debug_option, emit, format_option
from headrace.cli.pipeline import override_option
from headrace.cli.settings import key_value
from headrace.cli.spark_options import master_option, spark_session
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.spark.auditing import AuditReport, Example
    from headrace.spark.pipeline import Pipeline
    from headrace.spark.pipeline_spec import PipelineSpec

EXIT_DIFFERENT = 1
EXIT_COULD_NOT_RUN = 2
EXIT_INTERRUPTED = 130
KINDS = ("lost", "duplicated", "unexpected", "out_of_order")


class NotAuditedError(CommandError):
    """No answer, so neither "equal" nor "different"."""

    exit_code = EXIT_COULD_NOT_RUN


@click.command()
@click.option(
    "--pipeline",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A pipeline file: its source and steps are compared with the topic of its sink.",
)
@override_option
@click.option("--source-format", metavar="NAME", help="Without --pipeline: the format of the source, as parquet.")
@click.option("--source-path", metavar="PATH", help="Its path.")
@click.option("--source-schema", metavar="DDL", help="Its columns, where the format does not know them.")
@click.option("--source-option", "source_options", metavar="KEY=VALUE", multiple=True, help="Its options.")
@click.option("--sql", metavar="SELECT", help="Makes the columns key and value from the view `source`.")
@click.option("--topic", metavar="NAME", help="The topic; several with commas. [default: that of the pipeline's sink]")
@click.option("-b", "--bootstrap", metavar="HOST:PORT", help="The brokers. [default: those of the pipeline's sink]")
@click.option(
    "--topic-option", "topic_options", metavar="KEY=VALUE", multiple=True, help="Options for reading the topic."
)
@click.option("--id", "id_", metavar="SQL", help="What makes rows the same. [default: key and value]")
@click.option("--source-id", metavar="SQL", help="The same for the source, if it has other columns.")
@click.option(
    "--order", metavar="SQL", help="What must not fall within a key, over columns of the topic or the source."
)
@click.option("--examples", type=click.IntRange(0, 1000), default=10, show_default=True, help="Of each kind, at most.")
@master_option
@format_option
@debug_option
def audit(output_format: str, debug: bool, **given: Any) -> None:
    """Compare a source with a topic: lost, duplicated, unexpected, out of order.

    A Spark job reads both, the topic as a reader of committed records, and counts every row on both sides.

    \b
    headrace audit --pipeline orders.toml --order "CAST(get_json_object(CAST(value AS STRING), '$.seq') AS BIGINT)"
    headrace audit --source-format parquet --source-path sent/ --topic orders -b localhost:9092

    \b
    Exit codes: 0 they are equal; 1 they differ; 2 there is no telling, or wrong usage; 130 interrupted.
    """
    try:
        report = _audited(given, debug)
    except (HeadraceError, OSError) as error:
        if debug:
            raise
        raise NotAuditedError(str(error)) from error
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from error
    emit(output_format, report.to_json(), "\n".join(_lines(report)))
    if not report.is_equal:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _audited(given: dict[str, Any], debug: bool) -> AuditReport:
    from headrace.spark.auditing import audit as audit_
    from headrace.spark.pipeline import Pipeline

    made = Pipeline(_spec(given)) if given["file"] is None else Pipeline.from_file(given["file"], _overrides(given))
    topic, options = _topic(given, made)
    settings = made.spec.spark
    with spark_session(f"audit of {topic}", settings.master, settings.config, debug=debug) as spark:
        return audit_(
            made.dataframe(spark, stream=False),
            topic,
            options=options,
            id=given["id_"],
            source_id=given["source_id"],
            order=given["order"],
            examples=given["examples"],
        )


def _spec(given: dict[str, Any]) -> PipelineSpec:
    """A pipeline of the source alone; where it would write is not asked."""
    from headrace.spark.pipeline_spec import MaskedOptions, PipelineSpec, Sink, Source, SparkSettings, Step, Trigger

    if given["overrides"]:
        raise click.UsageError("-X changes what is in a pipeline file: it needs --pipeline FILE")
    if given["source_format"] is None:
        raise click.UsageError("--pipeline FILE or --source-format NAME is needed, to know what was to be sent")
    options = MaskedOptions(_pairs(given["source_options"], "--source-option"))
    source = Source(given["source_format"], given["source_path"], given["source_schema"], options)
    steps = () if given["sql"] is None else (Step("rows", given["sql"]),)
    master = given["master"] or SparkSettings().master
    return PipelineSpec("audit", source, Sink("noop"), steps, Trigger("batch"), SparkSettings(master))


def _overrides(given: dict[str, Any]) -> tuple[str, ...]:
    wrong = [name for name in ("source_format", "source_path", "source_schema", "source_options", "sql") if given[name]]
    if wrong:
        raise click.UsageError(f"--{wrong[0].replace('_', '-').rstrip('s')} and --pipeline exclude each other")
    master = given["master"]
    overrides: tuple[str, ...] = given["overrides"]
    return overrides if master is None else (*overrides, f"spark.master={master}")


def _topic(given: dict[str, Any], made: Pipeline) -> tuple[str, dict[str, str]]:
    """The name of the topic, and how to read it."""
    from headrace.spark.auditing import reading_options

    sink = {name.lower(): value for name, value in made.spec.sink.options.items()}
    topic = given["topic"] or sink.get("topic")
    if topic is None:
        raise click.UsageError("--topic is needed: the rows of this source say nothing of their topic")
    options = reading_options(sink) | _pairs(given["topic_options"], "--topic-option")
    if given["bootstrap"]:
        options["kafka.bootstrap.servers"] = given["bootstrap"]
    if "kafka.bootstrap.servers" not in options:
        raise click.UsageError("-b HOST:PORT is needed, to know where the topic is")
    return topic, options


def _pairs(texts: tuple[str, ...], flag: str) -> dict[str, str]:
    return dict(key_value(text, flag) for text in texts)


def _lines(report: AuditReport) -> list[str]:
    """A table for people, and the examples below it."""
    facts = report.to_json()
    names = ["source_rows", "topic_rows", "matched", *(kind for kind in KINDS if kind in facts)]
    lines = ["equal" if report.is_equal else "different"]
    lines += [f"  {name.replace('_', ' '):<13}{facts[name]:>15,}" for name in names]
    for kind in KINDS:
        for example in report.examples.get(kind, ()):
            lines.append(f"{kind.replace('_', ' ')}: {_example(example)}")
    return lines


def _example(example: Example) -> str:
    places = ", ".join(f"{place.topic}-{place.partition} at {place.offset}" for place in example.records)
    parts = [f"key={example.key!r}", f"value={example.value!r}"]
    if example.order is not None:
        parts.append(f"order={example.order}")
    return " ".join(parts) + (f" ({places})" if places else "")
