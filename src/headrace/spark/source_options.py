"""The options of the source, as in Spark's own Kafka source, and its columns.

    options of a query → parse → SourceOptions      checked, typed, pickled for the executors
                       → schema_of                  the columns, with the types of Spark's own source

Keys and values with a format have the types of their schemas instead: see typed_columns.py.

Names come in lower case, because option names are case-insensitive in Spark; messages use the documented names.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Literal

from headrace.client.offsets import EARLIEST, LATEST
from headrace.config import Between, Config, NotEmpty, OneOf, Option, Options
from headrace.config.serde_options import CORRUPT, BadRecords
from headrace.errors import ConfigError
from headrace.spark import consumer_options
from headrace.spark.format_options import FORMAT_NAMES, FormatOptions, is_format_option
from headrace.spark.kafka_options import PREFIX
from headrace.spark.offset_specs import End, OffsetSpec, Subscription, parse_offsets, parse_subscription

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from headrace.schema.types import RecordField

log = logging.getLogger("headrace")

_COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "__topic": "string",
    "__partition": "int",
    "__offset": "bigint",
    "__topic_id": "string",
    CORRUPT: "struct<key:binary,value:binary,error:string>",
}
"""Names and Spark types, in order; `headers`, the origin and `_corrupt` only with their options."""
_MAY_BE_NULL = frozenset({"key", "value", "headers", "__topic_id", CORRUPT})
ORIGIN_PREFIX = "__"

TYPO_SIMILARITY_MIN = 0.8
"""An unknown name this similar to a known one is a typing error, not another library's option."""


_OFFSETS = 'a text such as earliest, latest, or JSON such as {"topic":{"0":23,"1":-2}}'
_TIMES = 'JSON with times in milliseconds such as {"topic":{"0":1700000000000}}'

SOURCE_OPTIONS = Options(
    Option("subscribe", "str", None, "Topic names, separated by commas.", None, "high"),
    Option("subscribePattern", "str", None, "A regular expression for whole topic names."),
    Option("assign", "str", None, 'Partitions, as JSON: {"topic":[0,1]}.'),
    Option(
        "startingOffsets",
        "str",
        None,
        f"Where a new query begins: {_OFFSETS} (-1: latest, -2: earliest). By default latest for a stream, earliest "
        "for a batch. A stream with a checkpoint continues from there.",
        None,
        "high",
    ),
    Option("endingOffsets", "str", None, f"Where a batch ends: {_OFFSETS} (-1: latest, the default). Batch only."),
    Option("startingTimestamp", "long", None, "Begin at this time in milliseconds, in every partition.", Between(0)),
    Option("startingOffsetsByTimestamp", "str", None, f"Begin at times: {_TIMES}."),
    Option(
        "startingOffsetsByTimestampStrategy",
        "str",
        "error",
        "What to do if a partition has no record at or after the time: fail, or begin at its end.",
        OneOf("error", "latest", ignore_case=True),
    ),
    Option(
        "endingTimestamp",
        "long",
        None,
        "End before this time in milliseconds, in every partition. Batch only.",
        Between(0),
    ),
    Option("endingOffsetsByTimestamp", "str", None, f"End before times: {_TIMES}. Batch only."),
    Option(
        "failOnDataLoss",
        "bool",
        True,
        "Fail if records were deleted before they were read (retention, deleted records, a recreated topic). With "
        "false, log a warning and continue.",
        None,
        "high",
    ),
    Option("includeHeaders", "bool", False, "Add a column with the headers."),
    Option(
        "includeOrigin",
        "bool",
        False,
        "Add columns with the source record of a row: __topic, __partition, __offset, __topic_id. The sink's option "
        "source.offsets uses them.",
    ),
    Option("minPartitions", "int", None, "The minimum number of tasks: long ranges are split.", Between(1)),
    Option("maxRecordsPerPartition", "long", None, "The most offsets a task reads: long ranges are split.", Between(1)),
    Option("maxOffsetsPerTrigger", "long", None, "The most offsets of a micro-batch. Stream only.", Between(1)),
    Option(
        "minOffsetsPerTrigger",
        "long",
        None,
        "Wait for this many offsets, or for maxTriggerDelay. Stream only.",
        Between(1),
    ),
    Option("maxTriggerDelay", "str", "15m", "The longest wait for minOffsetsPerTrigger: 500ms, 30s, 15m, 1h."),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "long",
        120_000,
        "How long a task waits for records from a broker, and for a schema while the schema registry is unavailable.",
        Between(1),
    ),
    Option("fetchOffset.numRetries", "int", 3, "How often to retry looking up offsets.", Between(0)),
    Option("fetchOffset.retryIntervalMs", "long", 10, "The time between these retries.", Between(0)),
    Option(
        "groupIdPrefix",
        "str",
        None,
        "Used as client.id if neither kafka.client.id nor kafka.group.id is set: the source joins no group.",
    ),
    Option(
        "commit.offsets.group.id",
        "str",
        None,
        "A group to which the offsets of every finished micro-batch are committed, for tools that show lag. The "
        "query itself uses the checkpoint. Stream only.",
        NotEmpty(),
    ),
    Option(
        "on.bad.record",
        "str",
        BadRecords.FAIL.value,
        "What to do with a record whose key or value cannot be decoded by its format: fail the query; null: return "
        "null instead; corrupt-column: return null, and the bytes and the reason in the column _corrupt.",
        OneOf(*(choice.value for choice in BadRecords), ignore_case=True),
    ),
)

_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commit.offsets.group.id")
_BATCH_ONLY = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")
_WRITERS_ONLY = (
    "writer.schema",
    "key.writer.schema",
    "schema.auto.register",
    "use.latest.version",
    "normalize.schemas",
)
_KNOWN = {name.lower(): name for name in (*FORMAT_NAMES, *SOURCE_OPTIONS)}

_TIME = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.ASCII)
_MS_OF_UNIT = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Mode(Enum):
    ANY = auto()  # not known yet
    BATCH = auto()
    STREAM = auto()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query, checked."""

    subscription: Subscription
    starting: OffsetSpec
    ending: OffsetSpec
    without_match: Literal["error", "latest"]
    """What to do if no record is at or after a starting time."""
    fail_on_data_loss: bool
    include_headers: bool
    include_origin: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: float
    poll_timeout_ms: int
    fetch_retries: int
    fetch_retry_interval_ms: int
    commit_group_id: str | None
    client_id: str
    kafka: Mapping[str, str]
    """Options of the consumer, without `kafka.`. Not in the repr: they may have passwords."""
    formats: FormatOptions | None = None
    """None: keys and values are bytes."""
    on_bad_record: BadRecords = BadRecords.FAIL

    @property
    def name(self) -> str:
        """The source, for people: topics and cluster."""
        return f"{self.subscription} at {self.kafka['bootstrap.servers']}"

    def __repr__(self) -> str:
        return f"SourceOptions({self.subscription}, starting {self.starting}, ending {self.ending})"


def parse(options: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Parse and check the options, without a broker."""
    given, kafka, formats = _split_options(options)
    config = SOURCE_OPTIONS.resolve(("argument", given))
    consumer = consumer_options.resolve(kafka)
    _check_mode(config, mode)
    min_offsets = config.optional(int, "minOffsetsPerTrigger")
    max_offsets = config.optional(int, "maxOffsetsPerTrigger")
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger is {min_offsets}; it may be at most maxOffsetsPerTrigger, which is {max_offsets}"
        )
    strategy = config.of(str, "startingOffsetsByTimestampStrategy")
    return SourceOptions(
        subscription=parse_subscription(config),
        starting=_starting(config, mode),
        ending=parse_offsets(config, End.ENDING, LATEST),
        without_match="latest" if strategy == "latest" else "error",
        fail_on_data_loss=config.of(bool, "failOnDataLoss"),
        include_headers=config.of(bool, "includeHeaders"),
        include_origin=config.of(bool, "includeOrigin"),
        min_partitions=config.optional(int, "minPartitions"),
        max_records_per_partition=config.optional(int, "maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=_milliseconds("maxTriggerDelay", config.of(str, "maxTriggerDelay")),
        poll_timeout_ms=config.of(int, "kafkaConsumer.pollTimeoutMs"),
        fetch_retries=config.of(int, "fetchOffset.numRetries"),
        fetch_retry_interval_ms=config.of(int, "fetchOffset.retryIntervalMs"),
        commit_group_id=config.optional(str, "commit.offsets.group.id"),
        client_id=_client_id(config, consumer),
        kafka=kafka,
        formats=FormatOptions.parse(formats),
        on_bad_record=BadRecords(config.of(str, "on.bad.record")),
    )


def warn_of_no_effect(options: Mapping[str, str], mode: Mode) -> None:
    """Log which options change nothing in this query."""
    given, kafka, formats = _split_options(options)
    if mode is Mode.BATCH:
        for name in _STREAM_ONLY:
            if name in given:
                log.warning("option %s has no effect in a batch query", name)
    for name in _WRITERS_ONLY:
        if name in formats:
            log.warning("option %s has no effect in the source: it is for writers", name)
    consumer_options.warn_of_no_effect(kafka)


def schema_of(options: SourceOptions, types: Mapping[RecordField, DataType] | None = None) -> StructType:
    """Return the columns, with `types` for keys and values that have a format."""
    return schema(
        [
            name
            for name in _COLUMNS
            if (options.include_headers or name != "headers")
            and (options.include_origin or not name.startswith(ORIGIN_PREFIX))
            and (options.on_bad_record is BadRecords.CORRUPT_COLUMN or name != CORRUPT)
        ],
        types,
    )


def schema(columns: Iterable[str], typed: Mapping[RecordField, DataType] | None = None) -> StructType:
    """Return these columns with Spark's types; those of `typed` instead of bytes."""
    from pyspark.sql import types  # an optional dependency: options are checked without it

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    kinds = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "array<struct<key:string,value:binary>>": types.ArrayType(header),
        "struct<key:binary,value:binary,error:string>": types.StructType()
        .add("key", types.BinaryType())
        .add("value", types.BinaryType())
        .add("error", types.StringType()),
    }
    by_name: dict[str, DataType] = {name: kinds[kind] for name, kind in _COLUMNS.items()} | dict(typed or {})
    return types.StructType([types.StructField(name, by_name[name]) for name in columns])


def check_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of a schema. With a user's schema, only its columns are passed to Spark.

    The types of keys and values with a format depend on their schemas: see typed_columns.
    """
    formats = () if options.formats is None else options.formats.settings
    for field in schema.fields:
        expected = _COLUMNS.get(field.name)
        if expected is None:
            raise ConfigError(f"the schema has a column {field.name!r}; the source has {', '.join(_COLUMNS)}")
        if field.name == CORRUPT and options.on_bad_record is not BadRecords.CORRUPT_COLUMN:
            raise ConfigError(f"the schema has a column {CORRUPT}: set on.bad.record=corrupt-column")
        if field.name not in formats and field.dataType.simpleString() != expected:
            raise ConfigError(
                f"the schema has column {field.name} as {field.dataType.simpleString()}; the source gives {expected}: "
                "leave the schema out and cast"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise ConfigError(f"the schema has column {field.name} as not null, but records may have none: allow nulls")
    if not schema.fields:
        raise ConfigError(f"the schema has no columns; the source has {', '.join(_COLUMNS)}")
    return tuple(field.name for field in schema.fields)


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the options of the source by their documented names, of the consumer without `kafka.`, and of formats."""
    given: dict[str, str] = {}
    kafka: dict[str, str] = {}
    formats: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        if is_format_option(name):
            formats[name] = value
        elif name in _KNOWN:
            given[_KNOWN[name]] = value
        elif name.startswith(PREFIX):
            kafka[name.removeprefix(PREFIX)] = value
        elif near := difflib.get_close_matches(name, _KNOWN, n=1, cutoff=TYPO_SIMILARITY_MIN):
            raise ConfigError(f"there is no option {key!r}; did you mean {_KNOWN[near[0]]!r}?")
        elif name in consumer_options.CONSUMER_OPTIONS:
            raise ConfigError(f"there is no option {key!r}; did you mean {PREFIX + name!r}?")
    return given, kafka, formats


def _check_mode(config: Config, mode: Mode) -> None:
    if mode is Mode.STREAM:
        for name in _BATCH_ONLY:
            if config.given(name):
                raise ConfigError(f"{name} is {config[name]!r}, but a stream has no end: leave it out")


def _starting(config: Config, mode: Mode) -> OffsetSpec:
    default = LATEST if mode is Mode.STREAM else EARLIEST
    starting = parse_offsets(config, End.STARTING, default)
    if mode is Mode.BATCH and starting.is_latest_anywhere:
        raise ConfigError(
            f"startingOffsets is {config['startingOffsets']!r}, but a batch from the end reads nothing; it may be "
            "earliest, or offsets other than -1"
        )
    return starting


def _client_id(config: Config, consumer: Config) -> str:
    for value in (consumer["client.id"], consumer["group.id"], config["groupIdPrefix"]):
        if value:
            return str(value)
    return "headrace-spark-source"


def _milliseconds(name: str, text: str) -> float:
    """Parse a time such as 15m; a number without a unit is milliseconds."""
    match = _TIME.fullmatch(text.lower())
    if match is None:
        raise ConfigError(f"{name} is {text!r}; it may be a number with us, ms, s, m, h or d after it, such as 15m")
    return int(match[1]) * _MS_OF_UNIT[match[2] or "ms"]
