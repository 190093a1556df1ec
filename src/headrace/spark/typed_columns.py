"""The types of key and value columns that have a format, on the driver.

    topics → registry → a reader's schema for each → one Spark type → columns of the DataFrame
    columns of the query → TypedColumn: the fields to decode and the schemas → pickled for the executors

The schemas are looked up once, when a DataFrame is created, so all tasks of a query decode to the same type. A stream
that finds a new topic later (subscribePattern) adds its schema to the partitions of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as spark

from headrace.client.schema_decoder import SchemaDecoder
from headrace.errors import ConfigError, SchemaError, SchemaNotFoundError
from headrace.schema.types import Schema
from headrace.spark.arrow_types import spark_type
from headrace.spark.errors import PlanError
from headrace.spark.lookup import Lookup
from headrace.spark.read_columns import ANY_TOPIC, SchemasByField, TopicSchemas, TypedColumn

if TYPE_CHECKING:
    from headrace.client.serde import SerdeSettings, TopicSchema
    from headrace.schema.types import RecordField
    from headrace.spark.source_options import SourceOptions

SHOWN_CHARS_MAX = 300
"""Of a type in an error."""


def find_schemas(options: SourceOptions, topics: Iterable[str] | None = None) -> dict[RecordField, TopicSchemas]:
    """Return the readers' schemas of a query: of these topics, by default of all that it subscribes to."""
    assert options.formats is not None
    registry = options.formats.registry()
    registry.expire_latest()  # the process of an earlier query may know an older version
    names: Sequence[str] | None = None if topics is None else sorted(topics)
    schemas: dict[RecordField, TopicSchemas] = {}
    for name, settings in options.formats.settings.items():
        decoder = SchemaDecoder(registry, settings)
        if isinstance(settings.reader, Schema):
            schemas[name] = {ANY_TOPIC: _explained(decoder, name, ANY_TOPIC)}
            continue
        if names is None:
            names = _subscribed_topics(options, name)
        schemas[name] = {topic: _explained(decoder, name, topic) for topic in names}
    return schemas


def spark_types(options: SourceOptions, schemas: SchemasByField) -> dict[RecordField, spark.DataType]:
    """Return the types of the columns with a format; raises PlanError if those of the topics differ."""
    assert options.formats is not None
    return {name: _common_type(name, options.formats.settings[name], topics) for name, topics in schemas.items()}


def typed_columns(
    options: SourceOptions, columns: spark.StructType, schemas: SchemasByField
) -> dict[RecordField, TypedColumn]:
    """Return the columns of a query that have a format; raises ConfigError if their types are not the source's."""
    assert options.formats is not None
    types = spark_types(options, schemas)
    typed: dict[RecordField, TypedColumn] = {}
    for name, source_type in types.items():
        for column in columns.fields:
            if column.name != name:
                continue
            _check_type(name, column.dataType, source_type)
            fields = None if column.dataType == source_type else _selected(column.dataType)
            typed[name] = TypedColumn(options.formats.settings[name], column.dataType, fields, schemas[name])
    return typed


def schemas_of_new_topic(
    options: SourceOptions, topic: str, columns: Mapping[RecordField, TypedColumn]
) -> SchemasByField:
    """Return the readers' schemas of a topic that a running stream has found.

    Raises PlanError if its type is not that of the stream.
    """
    schemas = find_schemas(options, [topic])
    for name, data_type in spark_types(options, schemas).items():
        if name in columns:
            try:
                _check_type(name, columns[name].type, data_type)
            except ConfigError as error:
                raise PlanError(
                    f"topic {topic!r} is new, and its type is not that of the stream: {error}. Restart the query, set "
                    f"{_reader_option(name)} to the text of a schema, or read the topic in a query of its own"
                ) from error
    return {name: topics for name, topics in schemas.items() if name in columns}


def _subscribed_topics(options: SourceOptions, name: str) -> list[str]:
    subscription = options.subscription
    if subscription.pattern is None:
        return sorted(set(subscription.topics) or {tp.topic for tp in subscription.partitions})
    lookup = Lookup(options)
    try:
        topics = sorted({tp.topic for tp in lookup.partitions().partitions})
    finally:
        lookup.close()
    if not topics:
        raise PlanError(
            f"no topic matches {subscription.pattern!r}, so the type of column {name!r} is not known: create the "
            f"topics first, or set {_reader_option(name)} to the text of a schema"
        )
    return topics


def _explained(decoder: SchemaDecoder, name: str, topic: str) -> TopicSchema:
    """Return the reader's schema of a topic, with its type checked."""
    of_topic = f" of topic {topic!r}" if topic else ""
    fact = f"the type of column {name!r}{of_topic} is not known"
    try:
        schema = decoder.topic_schema(topic)
        spark_type(decoder.arrow_type(topic))
    except SchemaNotFoundError as error:
        raise PlanError(
            f"{fact}: {error}. Register a schema, or set {_reader_option(name)} to the text of one"
        ) from error
    except SchemaError as error:
        raise PlanError(f"{fact}: {error}") from error
    return schema


def _common_type(name: RecordField, settings: SerdeSettings, schemas: TopicSchemas) -> spark.DataType:
    topics_by_type: dict[spark.DataType, list[str]] = {}
    for topic, schema in sorted(schemas.items()):
        data_type = spark_type(schema.parsed().arrow_type(None, settings.record_name))
        topics_by_type.setdefault(data_type, []).append(topic)
    if len(topics_by_type) == 1:
        return next(iter(topics_by_type))
    nullable = {_nullable(data_type) for data_type in topics_by_type}
    if len(nullable) > 1:
        shown = "; ".join(
            f"{', '.join(map(repr, topics))}: {_shown(data_type)}" for data_type, topics in topics_by_type.items()
        )
        raise PlanError(
            f"column {name!r} has several types, because the schemas of the topics differ: {shown}. Set "
            f"{_reader_option(name)} to the text of a schema for all of them, or read each topic in its own query"
        )
    return nullable.pop()


def _nullable(data_type: spark.DataType) -> spark.DataType:
    """Return a type that allows nulls everywhere inside."""
    if isinstance(data_type, spark.StructType):
        return spark.StructType([spark.StructField(field.name, _nullable(field.dataType)) for field in data_type])
    if isinstance(data_type, spark.ArrayType):
        return spark.ArrayType(_nullable(data_type.elementType))
    if isinstance(data_type, spark.MapType):
        return spark.MapType(data_type.keyType, _nullable(data_type.valueType))
    return data_type


def _check_type(path: str, given: spark.DataType, source: spark.DataType) -> None:
    """Raise if a type of the user's is not the source's, or a part of it."""
    if isinstance(given, spark.StructType) and isinstance(source, spark.StructType):
        by_name = {field.name: field for field in source.fields}
        for field in given.fields:
            inner = f"{path}.{field.name}"
            if field.name not in by_name:
                raise ConfigError(
                    f"schema(…) has the field {inner}, which the reader's schema does not have; its fields are "
                    f"{', '.join(by_name) or 'none'}"
                )
            _check_nullable(inner, field.nullable, by_name[field.name].nullable)
            _check_type(inner, field.dataType, by_name[field.name].dataType)
        return
    if isinstance(given, spark.ArrayType) and isinstance(source, spark.ArrayType):
        _check_nullable(f"{path}.element", given.containsNull, source.containsNull)
        _check_type(f"{path}.element", given.elementType, source.elementType)
        return
    if isinstance(given, spark.MapType) and isinstance(source, spark.MapType):
        _check_nullable(f"{path}.value", given.valueContainsNull, source.valueContainsNull)
        _check_type(f"{path}.key", given.keyType, source.keyType)
        _check_type(f"{path}.value", given.valueType, source.valueType)
        return
    if given != source:
        raise ConfigError(
            f"schema(…) has {path} as {_shown(given)}, the reader's schema as {_shown(source)}: use that, and cast "
            "the column"
        )


def _check_nullable(path: str, given: bool, source: bool) -> None:
    if source and not given:
        raise ConfigError(f"schema(…) has {path} as NOT NULL, but the reader's schema allows null: leave NOT NULL out")


def _selected(data_type: spark.DataType) -> tuple[str, ...] | None:
    """Return the paths of the fields to decode; None for all, also if paths could not be told from names with dots."""
    names = tuple(_paths(data_type))
    return tuple(map(".".join, names)) if all(path and "." not in "".join(path) for path in names) else None


def _paths(data_type: spark.DataType, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names on the way to each field; items of arrays and maps have the path of their column."""
    if isinstance(data_type, spark.ArrayType):
        yield from _paths(data_type.elementType, path)
    elif isinstance(data_type, spark.MapType):
        yield from _paths(data_type.valueType, path)
    elif isinstance(data_type, spark.StructType) and data_type.fields:
        for field in data_type.fields:
            yield from _paths(field.dataType, (*path, field.name))
    else:
        yield path


def _reader_option(name: str) -> str:
    return "reader.schema" if name == "value" else "key.reader.schema"


def _shown(data_type: spark.DataType) -> str:
    text = data_type.simpleString()
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 1] + "…"
