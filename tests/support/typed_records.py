"""Records with schemas, written with fastavro, and the Spark source of a query with formats, without Spark."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from headrace.producer.producer import Producer
from headrace.schema import framing
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.source import BatchReader, StreamReader

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
ORDER_TEXT = json.dumps(ORDER)
OLD_ORDER = {**ORDER, "fields": ORDER["fields"][:1]}
"""Without the fields that version 2 has added."""
NEW_ORDER = {
    **ORDER,
    "fields": [*ORDER["fields"], {"name": "currency", "type": "string", "default": "EUR"}],
}


def order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": None if number % 3 == 0 else f"c{number}", "at": 1_700_000_000_000 + number}


def avro(schema: Mapping[str, Any] | str, row: object, schema_id: int) -> bytes:
    """Return a framed value."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)  # type: ignore[arg-type]
    return framing.encode_id(schema_id) + out.getvalue()


def send(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[tuple[str, bytes]]] | None = None,
) -> None:
    """Write values to partition 0."""
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        for row, value in enumerate(values):
            producer.send(
                topic,
                value,
                key=None if keys is None else keys[row],
                partition=0,
                headers=() if headers is None else headers[row],
            )
        producer.flush(30)


def options_of(bootstrap: str, registry_url: str, topic: str, **options: object) -> dict[str, str]:
    """Return the options of a query; `value_format` sets value.format, and so on."""
    given = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "schema.registry.url": registry_url,
        "schema.registry.max.retries": "0",
        "value.format": "avro",
    }
    for name, value in options.items():
        given[name.replace("_", ".")] = str(value)
    return given


def planned(options: Mapping[str, str], schema: StructType | None = None) -> tuple[HeadraceDataSource, StructType]:
    """Return the data source and the schema of a DataFrame, as Spark passes them from process to process."""
    source = HeadraceDataSource(dict(options))
    columns = source.schema() if schema is None else schema
    assert isinstance(columns, StructType)
    return _shipped(source), columns


def batch_reader(options: Mapping[str, str], schema: StructType | None = None) -> BatchReader:
    source, columns = planned(options, schema)
    reader = source.reader(columns)
    assert isinstance(reader, BatchReader)
    return reader


def stream_reader(options: Mapping[str, str], schema: StructType | None = None) -> StreamReader:
    source, columns = planned(options, schema)
    reader = source.streamReader(columns)
    assert isinstance(reader, StreamReader)
    return reader


def read(reader: BatchReader) -> pa.Table:
    """Return the rows of all tasks; each gets the reader as Spark ships it."""
    partitions = reader.partitions()
    batches = [batch for part in partitions for batch in _shipped(reader).read(_shipped(part))]
    return pa.Table.from_batches(batches)


def read_table(options: Mapping[str, str], schema: StructType | None = None) -> pa.Table:
    return read(batch_reader(options, schema))


def _shipped(thing: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(thing))
