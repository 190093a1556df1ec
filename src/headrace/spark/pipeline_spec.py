"""The specification of a pipeline as plain values: source, steps, sink, trigger, Spark settings.

    Pipeline file, or Python → PipelineSpec → Pipeline (pipeline.py), which runs it

The keys of each table are declared once, like all options: checks, help and docs come from the declarations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.config import NotEmpty, OneOf, Option, Options
from headrace.errors import ConfigError
from headrace.telemetry.sender import check_url

AVAILABLE_NOW, INTERVAL, ONCE, BATCH = "availableNow", "interval", "once", "batch"

STREAM_MODES = ("append", "complete", "update")
BATCH_MODES = ("append", "overwrite", "ignore", "error", "errorifexists")
WITHOUT_CHECKPOINT = ("console", "memory", "noop")
"""Sinks for trying a query out: it is not resumed later."""
SOURCE_VIEW = "source"
FORMAT = "headrace"

TABLES: dict[str, Options] = {
    "pipeline": Options(Option("name", "str", None, "The name of the application and the query.", NotEmpty())),
    "source": Options(
        Option("format", "str", None, "headrace, rate, or any format that Spark reads.", NotEmpty(), "high"),
        Option("path", "str", None, "What to read, for formats with a path: files, a folder, a pattern."),
        Option("schema", "str", None, "The columns, as DDL (`id BIGINT, name STRING`) or JSON. File streams need it."),
    ),
    "steps": Options(
        Option("name", "str", None, "The name of the result in later steps.", NotEmpty(), "high"),
        Option("sql", "str", None, "A SELECT over `source` and the names of earlier steps.", NotEmpty(), "high"),
    ),
    "sink": Options(
        Option("format", "str", None, "headrace, or any format that Spark writes.", NotEmpty(), "high"),
        Option("path", "str", None, "Where to write, for formats with a path."),
        Option(
            "mode",
            "str",
            "append",
            f"For a stream: {', '.join(STREAM_MODES)}; for a batch: {', '.join(BATCH_MODES)}.",
            OneOf(*dict.fromkeys((*STREAM_MODES, *BATCH_MODES)), ignore_case=True),
        ),
        Option("checkpoint", "str", None, "The folder where a stream keeps its progress.", NotEmpty(), "high"),
        Option("partition_by", "list", (), "Columns to partition files by, in folders."),
    ),
    "trigger": Options(
        Option(
            "mode",
            "str",
            AVAILABLE_NOW,
            "availableNow: read all available records in batches, then stop. interval: run until stopped. once: one "
            "batch, then stop. batch: not a stream, one read and one write.",
            OneOf(AVAILABLE_NOW, INTERVAL, ONCE, BATCH, ignore_case=True),
            "high",
        ),
        Option(
            "interval", "str", None, "With mode = interval: the time between batches, such as `10 seconds`.", NotEmpty()
        ),
    ),
    "spark": Options(
        Option("master", "str", "local[*]", "The Spark master: local[*], spark://host:port, yarn, k8s://…", NotEmpty())
    ),
    "view": Options(
        Option("url", "str", None, "URL of a live view (printed by `headrace ui`) that the run reports to."),
        Option("token", "password", None, "Token of the live view, if it requires one."),
    ),
}
OPEN_TABLES: dict[str, str] = {"source": "options", "sink": "options", "spark": "config"}
"""Tables with an inner table of Spark options, whose names are not checked."""

_SECRET_NAME = re.compile(r"password|passwd|secret|token|credential|jaas|access.?key|private.?key|keystore\.key", re.I)
_SECRET_TEXT = re.compile(r"(?i)((?:password|passwd|pwd|secret|token)=)[^&;,\s]+")
_USER_INFO = re.compile(r"(//[^/@\s:]+:)[^/@\s]+@")
_HIDDEN = "[hidden]"


def masked(name: str, value: str) -> str:
    """Return a value without secrets, for printing."""
    if _SECRET_NAME.search(name):
        return _HIDDEN
    return _USER_INFO.sub(rf"\1{_HIDDEN}@", _SECRET_TEXT.sub(rf"\1{_HIDDEN}", value))


class MaskedOptions(dict[str, str]):
    """Options by name, as texts. The repr masks what looks like a secret."""

    def masked(self) -> dict[str, str]:
        return {name: masked(name, value) for name, value in self.items()}

    def __repr__(self) -> str:
        return repr(self.masked())


@dataclass(frozen=True, slots=True)
class Source:
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=MaskedOptions)


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Sink:
    format: str
    path: str | None = None
    mode: str = "append"
    checkpoint: str | None = None
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=MaskedOptions)


@dataclass(frozen=True, slots=True)
class Trigger:
    mode: str = AVAILABLE_NOW
    interval: str | None = None


@dataclass(frozen=True, slots=True)
class SparkSettings:
    master: str = "local[*]"
    config: Mapping[str, str] = field(default_factory=MaskedOptions)


@dataclass(frozen=True, slots=True)
class LiveView:
    """The live view that gets reports; none without a url."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """A pipeline, checked as far as it can be without Spark."""

    name: str
    source: Source
    sink: Sink
    steps: tuple[Step, ...] = ()
    trigger: Trigger = field(default_factory=Trigger)
    spark: SparkSettings = field(default_factory=SparkSettings)
    view: LiveView = field(default_factory=LiveView)
    locations: Mapping[str, str] = field(default_factory=dict)
    """The position of each table in the file, for messages: `sink` → `orders.toml, line 12`."""

    @property
    def is_stream(self) -> bool:
        return self.trigger.mode != BATCH

    def at(self, table: str) -> str:
        """Return the prefix of a message about a table."""
        location = self.locations.get(table)
        return f"{location}: " if location else ""

    def to_json(self) -> dict[str, Any]:
        """Return the specification without secrets."""
        return {
            "name": self.name,
            "source": _shown(
                format=self.source.format,
                path=self.source.path and masked("path", self.source.path),
                schema=self.source.schema,
                options=MaskedOptions(self.source.options).masked(),
            ),
            "steps": [{"name": step.name, "sql": step.sql} for step in self.steps],
            "sink": _shown(
                format=self.sink.format,
                path=self.sink.path and masked("path", self.sink.path),
                mode=self.sink.mode,
                checkpoint=self.sink.checkpoint and masked("checkpoint", self.sink.checkpoint),
                partition_by=list(self.sink.partition_by),
                options=MaskedOptions(self.sink.options).masked(),
            ),
            "trigger": _shown(mode=self.trigger.mode, interval=self.trigger.interval),
            "spark": {"master": self.spark.master, "config": MaskedOptions(self.spark.config).masked()},
            **({} if self.view.url is None else {"view": {"url": masked("url", self.view.url)}}),
        }


def _shown(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def problems_of(spec: PipelineSpec) -> list[tuple[str, str]]:
    """Return what is wrong, as (table, problem). Does not need Spark."""
    problems: list[tuple[str, str]] = []
    is_stream, sink, trigger = spec.is_stream, spec.sink, spec.trigger
    if is_stream and sink.checkpoint is None and sink.format not in WITHOUT_CHECKPOINT:
        problems.append(
            ("sink", "checkpoint is not set: a stream needs a folder for its progress, to resume after a restart")
        )
    if not is_stream and sink.checkpoint is not None:
        problems.append(("sink", 'checkpoint is set, but the trigger is "batch", which has none: drop one of them'))
    allowed = STREAM_MODES if is_stream else BATCH_MODES
    if sink.mode not in allowed:
        what = "stream" if is_stream else "batch"
        problems.append(("sink", f"mode is {sink.mode!r}; for a {what} it may be {', '.join(allowed)}"))
    if trigger.interval is not None and trigger.mode != INTERVAL:
        problems.append(
            ("trigger", f'interval is set, but mode is {trigger.mode!r}: set mode = "interval", or drop it')
        )
    if trigger.interval is None and trigger.mode == INTERVAL:
        problems.append(
            ("trigger", 'interval is not set; it may be a time such as "10 seconds" ("0 seconds": no pause)')
        )
    if spec.view.url is not None:
        try:
            check_url(spec.view.url)
        except ConfigError as error:
            problems.append(("view", str(error)))
    names = [step.name for step in spec.steps]
    for number, name in enumerate(names):
        if name == SOURCE_VIEW or name in names[:number]:
            problems.append(
                (
                    f"steps.{number}",
                    f"the name {name!r} is not unique: every step needs its own name, other than source",
                )
            )
    problems.extend(_option_problems(spec))
    return problems


def _option_problems(spec: PipelineSpec) -> list[tuple[str, str]]:
    """Return the problems of options of the format headrace."""
    from headrace.spark import sink_options, source_options  # they import the producer, which other formats do not need

    problems: list[tuple[str, str]] = []
    if spec.source.format == FORMAT:
        mode = source_options.Mode.STREAM if spec.is_stream else source_options.Mode.BATCH
        try:
            source_options.parse(spec.source.options, mode)
        except ConfigError as error:
            problems.append(("source.options", str(error)))
    if spec.sink.format == FORMAT:
        try:
            sink_options.SinkOptions.parse(spec.sink.options, is_stream=spec.is_stream)
        except ConfigError as error:
            problems.append(("sink.options", str(error)))
    return problems
