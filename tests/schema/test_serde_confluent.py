"""Columns against Confluent's serializers and deserializers, on Apicurio Registry."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace import errors
from headrace.client.registry import SchemaRegistryClient
from headrace.client.schema_decoder import SchemaDecoder
from headrace.client.schema_encoder import SchemaEncoder
from headrace.client.serde import SerdeSettings
from headrace.schema import Schema, SchemaFormat
from tests.support.avro_types import fastavro_bytes
from tests.support.scripted_registry import SmallRegistry

confluent = pytest.importorskip("confluent_kafka.schema_registry")
from confluent_kafka.schema_registry import topic_subject_name_strategy  # noqa: E402
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.schema_registry.serde import SchemaId  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
NEWER = {
    **ORDER,
    "fields": [
        *ORDER["fields"][1:],
        {"name": "id", "type": "long"},
        {"name": "state", "type": "string", "default": "NEW"},
    ],
}
BY_TOPIC = {"subject.name.strategy": topic_subject_name_strategy}
"""Their default strategy sends a request for each serializer that Apicurio does not know, and may not respond to."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
AT = datetime.datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=datetime.UTC)


def order(number, **more):
    return {
        "id": number,
        "customer": None if number % 3 else f"c{number}",
        "amount": Decimal(number) / 100,
        "at": AT + datetime.timedelta(seconds=number),
        "tags": ["a"] * (number % 4),
        **more,
    }


def settings(**changes) -> SerdeSettings:
    return SerdeSettings("value", SchemaFormat.AVRO, **changes)


def context(topic, headers=None):
    return SerializationContext(topic, MessageField.VALUE, headers)


def test_values_of_confluents_avro_serializer_are_decoded_equal(apicurio_client, confluent_client, topic):
    serialize = AvroSerializer(confluent_client, json.dumps(ORDER), conf=BY_TOPIC)
    orders = [order(number) for number in range(200)]
    values = pa.array([serialize(each, context(topic)) for each in orders], pa.binary())
    column, row_errors = SchemaDecoder(apicurio_client, settings(reader="latest")).decode(topic, values)
    assert row_errors == []
    assert column.to_pylist() == orders


def test_confluents_avro_deserializer_reads_encoded_columns(apicurio_client, confluent_client, topic):
    apicurio_client.register(f"{topic}-value", Schema(json.dumps(ORDER)))
    orders = [order(number) for number in range(200)]
    encoder = SchemaEncoder(apicurio_client, settings())
    column = SchemaDecoder(apicurio_client, settings(reader="latest")).arrow_type(topic)
    values, row_errors = encoder.encode(topic, pa.array(orders, column))
    assert row_errors == []
    deserialize = AvroDeserializer(confluent_client, conf=BY_TOPIC)
    assert [deserialize(value, context(topic)) for value in values.to_pylist()] == orders
    serialize = AvroSerializer(confluent_client, json.dumps(ORDER), conf={"auto.register.schemas": False, **BY_TOPIC})
    assert values.to_pylist() == [serialize(each, context(topic)) for each in orders]


@pytest.mark.behaviour("R02")
def test_a_batch_of_old_and_new_schemas_is_read_as_the_latest(apicurio_client, confluent_client, topic):
    old, new = (AvroSerializer(confluent_client, json.dumps(schema), conf=BY_TOPIC) for schema in (ORDER, NEWER))
    values = [
        old(order(number), context(topic)) if number % 5 == 0 else new(order(number, state="PAID"), context(topic))
        for number in range(100)
    ]
    column, row_errors = SchemaDecoder(apicurio_client, settings(reader="latest")).decode(
        topic, pa.array(values, pa.binary())
    )
    assert row_errors == []
    assert column.to_pylist() == [order(n, state="PAID" if n % 5 else "NEW") for n in range(100)]
    first = SchemaDecoder(apicurio_client, settings(reader=1)).decode(topic, pa.array(values, pa.binary())).column
    assert first.to_pylist() == [order(n) for n in range(100)]


def test_a_derived_schema_is_read_by_confluents_deserializer(apicurio_client, confluent_client, topic):
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("day", pa.date32())])
    rows = [{"id": 1, "name": "x", "day": datetime.date(2026, 1, 2)}, {"id": 2, "name": None, "day": None}]
    values, _ = SchemaEncoder(apicurio_client, settings(auto_register=True)).encode(topic, pa.array(rows, kind))
    deserialize = AvroDeserializer(confluent_client, conf=BY_TOPIC)
    assert [deserialize(value, context(topic)) for value in values.to_pylist()] == rows


def test_an_incompatible_derived_schema_fails_in_the_registrys_words(apicurio_client, topic):
    apicurio_client.set_compatibility("BACKWARD", f"{topic}-value")
    encoder = SchemaEncoder(apicurio_client, settings(auto_register=True))
    encoder.encode(topic, pa.array([{"id": 1}], pa.struct([("id", pa.int64())])))
    with pytest.raises(errors.IncompatibleSchemaError, match="Incompatible artifact"):
        encoder.prepare(topic, pa.struct([("id", pa.string())]))


def test_the_guid_header_of_confluents_serializer_names_the_schema(topic):
    """On the small registry, because Apicurio has no GUIDs."""
    server = SmallRegistry()
    try:
        guid = server.guid(server.add(f"{topic}-value", json.dumps(ORDER)))
        headers: list[tuple[str, bytes]] = []
        payload = fastavro_bytes(ORDER, order(7))
        schema_id = SchemaId("AVRO", 1, str(guid))
        value = confluent.header_schema_id_serializer(payload, context(topic, headers), schema_id)
        column = pa.array([[{"key": name, "value": header} for name, header in headers]], HEADERS)
        decoder = SchemaDecoder(SchemaRegistryClient(server.url), settings(reader="latest"))
        decoded, row_errors = decoder.decode(topic, pa.array([value], pa.binary()), column)
    finally:
        server.close()
    assert value == payload
    assert row_errors == []
    assert decoded.to_pylist() == [order(7)]
