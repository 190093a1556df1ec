"""Cases of `make bench-schema` for single dicts, beside Confluent's serializers.

Both get the same dicts and schemas; the registry has responded before the measurement. Confluent's Protobuf serializer
takes messages of Google's library: they are made of the dicts, as in a program that has dicts, and in another case
before the measurement. Its JSON serializer is measured without validation, and with it, which is its default.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient as ConfluentRegistry
from confluent_kafka.schema_registry.avro import AvroSerializer as ConfluentAvro
from confluent_kafka.schema_registry.json_schema import JSONSerializer as ConfluentJson
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as ConfluentProtobuf
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pool, message_factory, timestamp_pb2

from bench.harness import Case
from headrace.broker import EmbeddedBroker
from headrace.producer.schema_serializers import (
    AvroSerializer,
    JsonSchemaSerializer,
    ProtobufSerializer,
    SchemaSerializer,
)
from headrace.schema.protobuf import parse_schema, to_descriptor

COUNT = 2_000
TITLE = "single dicts"
PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message SingleOrder { int64 id = 1; optional string customer = 2; double amount = 3; google.protobuf.Timestamp at = 4; }
"""

MakeRow = Callable[[random.Random], dict[str, Any]]


@contextmanager
def value_cases(
    avro: Mapping[str, tuple[dict[str, Any], MakeRow]], json_text: str, make_flat: MakeRow
) -> Iterator[list[Case]]:
    """Yield the cases, with a registry in this process."""
    with EmbeddedBroker(schema_registry=True) as broker:
        url = broker.schema_registry_url
        registry = ConfluentRegistry({"url": url})
        cases: list[Case] = []
        for name, (schema, make_row) in avro.items():
            text = json.dumps(schema)
            pair = _Pair(f"Avro, {name}", make_row)
            cases += [pair.ours(AvroSerializer(), url, text), pair.theirs("", ConfluentAvro(registry, text))]
        cases += _protobuf(_Pair("Protobuf", make_flat), registry, url)
        cases += _json(_Pair("JSON", make_flat, _with_numbers), registry, url, json_text)
        yield cases


def targets(medians: dict[str, float]) -> Iterator[tuple[str, float, bool]]:
    """Yield the title of each format, how many times slower Confluent's serializer is, and if it is not faster."""
    for name, ours in medians.items():
        if name.startswith(TITLE) and name.endswith(": headrace"):
            title = name.removesuffix(": headrace")
            ratio = medians[f"{title}: Confluent"] / ours
            yield title, ratio, ratio >= 1


class _Pair:
    """The rows of a format, and the cases that serialize them."""

    def __init__(self, title: str, make_row: MakeRow, change: Callable[[dict[str, Any]], None] | None = None) -> None:
        chance = random.Random(20_26)
        self.title = f"{TITLE}, {title}"
        self.topic = title.replace(", ", "-").replace(" ", "-")
        self.rows: list[Any] = [make_row(chance) for _ in range(COUNT)]
        if change is not None:
            for row in self.rows:
                change(row)

    def ours(self, serializer: SchemaSerializer, url: str, schema: str) -> Case:
        options = {"schema.registry.url": url, "writer.schema": schema, "schema.auto.register": True}
        serializer.configure(options, False)
        topic, rows = self.topic, self.rows
        return Case(f"{self.title}: headrace", lambda: [serializer.serialize(topic, row, []) for row in rows], COUNT)

    def theirs(self, what: str, serializer: Any, values: list[Any] | None = None, make: Any = None) -> Case:
        context = SerializationContext(self.topic, MessageField.VALUE)
        rows = self.rows if values is None else values
        name = f"{self.title}: Confluent{what}"
        if make is None:
            return Case(name, lambda: [serializer(row, context) for row in rows], COUNT)
        return Case(name, lambda: [serializer(make(row), context) for row in rows], COUNT)


def _protobuf(pair: _Pair, registry: ConfluentRegistry, url: str) -> list[Case]:
    schema = parse_schema(PROTOBUF, name="single_order.proto")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(to_descriptor(schema))
    message_type: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("SingleOrder"))
    serializer = ConfluentProtobuf(message_type, registry, {"use.deprecated.format": False})
    messages = [message_type(**row) for row in pair.rows]
    return [
        pair.ours(ProtobufSerializer(), url, PROTOBUF),
        pair.theirs("", serializer, make=lambda row: message_type(**row)),
        pair.theirs(", messages made before", serializer, messages),
    ]


def _json(pair: _Pair, registry: ConfluentRegistry, url: str, text: str) -> list[Case]:
    return [
        pair.ours(JsonSchemaSerializer(), url, text),
        pair.theirs("", ConfluentJson(text, registry, conf={"validate": False})),
        pair.theirs(", validated", ConfluentJson(text, registry)),
    ]


def _with_numbers(row: dict[str, Any]) -> None:
    """Replace the time by a number, which JSON can hold."""
    row["at"] = None if row["at"] is None else int(row["at"].timestamp() * 1000)
