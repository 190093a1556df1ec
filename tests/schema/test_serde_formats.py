"""Protobuf and JSON columns against Confluent's serializers and deserializers, on Apicurio Registry."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow as pa
import pytest

from headrace import MockProducer
from headrace.client.schema_decoder import SchemaDecoder
from headrace.client.schema_encoder import SchemaEncoder
from headrace.client.serde import RowCause, SerdeSettings
from headrace.schema import Schema, SchemaFormat

confluent = pytest.importorskip("confluent_kafka.schema_registry")
from confluent_kafka.schema_registry import topic_subject_name_strategy  # noqa: E402
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer  # noqa: E402
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402

BY_TOPIC = {"subject.name.strategy": topic_subject_name_strategy}
SHOP = """
syntax = "proto3";
package shop;
message Order { int64 id = 1; optional string customer = 2; repeated string tags = 3; }
message Refund { int64 id = 1; double amount = 2; }
"""
ORDER_JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer"}, "customer": {"type": "string"}},
        "required": ["id"],
    }
)


def context(topic):
    return SerializationContext(topic, MessageField.VALUE)


def message_types():
    """The message types of SHOP, for Google's library."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from headrace.schema.protobuf import parse_schema, to_descriptor

    file = descriptor_pb2.FileDescriptorProto.FromString(to_descriptor(parse_schema(SHOP)))
    file.name = f"{uuid.uuid4().hex}.proto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}")) for name in ("Order", "Refund")]


def protobuf(**changes) -> SerdeSettings:
    return SerdeSettings("value", SchemaFormat.PROTOBUF, **changes)


def test_values_of_confluents_protobuf_serializer_are_decoded_equal(apicurio_client, confluent_client, topic):
    order, refund = message_types()
    conf = {**BY_TOPIC, "use.deprecated.format": False}
    to_order, to_refund = (ProtobufSerializer(kind, confluent_client, conf) for kind in (order, refund))
    values = [
        to_order(order(id=1, customer="Ann", tags=["a", "b"]), context(topic)),
        to_refund(refund(id=2, amount=1.5), context(topic)),
        to_order(order(id=3), context(topic)),
    ]
    column, row_errors = SchemaDecoder(apicurio_client, protobuf(reader="latest")).decode(
        topic, pa.array(values, pa.binary())
    )
    assert column.to_pylist() == [
        {"id": 1, "customer": "Ann", "tags": ["a", "b"]},
        None,
        {"id": 3, "customer": None, "tags": []},
    ]
    assert [(error.row, error.cause) for error in row_errors] == [(1, RowCause.INCOMPATIBLE_SCHEMA)]
    assert "the message type is shop.Refund, the reader's is shop.Order" in row_errors[0].text
    refunds = SchemaDecoder(apicurio_client, protobuf(reader="latest", record_name="shop.Refund"))
    assert refunds.decode(topic, pa.array(values, pa.binary())).column.to_pylist() == [
        None,
        {"id": 2, "amount": 1.5},
        None,
    ]
    objects, row_errors = SchemaDecoder(apicurio_client, protobuf()).decode_objects(
        topic, pa.array(values, pa.binary())
    )
    assert [each["id"] for each in objects] == [1, 2, 3]
    assert row_errors == []


@pytest.mark.parametrize("name", ["shop.Order", "shop.Refund"])
def test_confluents_protobuf_deserializer_reads_encoded_columns(apicurio_client, topic, name):
    apicurio_client.register(f"{topic}-value", Schema(SHOP, SchemaFormat.PROTOBUF))
    rows: dict[str, dict[str, Any]] = {
        "shop.Order": {"id": 7, "customer": "Ann", "tags": ["x"]},
        "shop.Refund": {"id": 7, "amount": 2.5},
    }
    settings = protobuf(record_name=name, reader="latest")
    kind = SchemaDecoder(apicurio_client, settings).arrow_type(topic)
    values, row_errors = SchemaEncoder(apicurio_client, settings).encode(topic, pa.array([rows[name], None], kind))
    assert row_errors == []
    message_type = message_types()[name == "shop.Refund"]
    # Without a registry: Apicurio returns descriptors that are not base64, which Confluent's deserializer refuses.
    deserialize = ProtobufDeserializer(message_type, {"use.deprecated.format": False})
    assert deserialize(values[0].as_py(), context(topic)) == message_type(**rows[name])
    assert values[1].as_py() is None


def test_json_values_are_exchanged_with_confluents_serializers(apicurio_client, confluent_client, topic):
    orders = [{"id": 1, "customer": "Ann"}, {"id": 2}]
    serialize = JSONSerializer(ORDER_JSON, confluent_client, conf=BY_TOPIC)
    values = pa.array([serialize(order, context(topic)) for order in orders], pa.binary())
    settings = SerdeSettings("value", SchemaFormat.JSON, reader="latest")
    column, row_errors = SchemaDecoder(apicurio_client, settings).decode(topic, values)
    assert row_errors == []
    assert column.to_pylist() == [{"id": 1, "customer": "Ann"}, {"id": 2, "customer": None}]
    encoded, row_errors = SchemaEncoder(apicurio_client, settings).encode(topic, column)
    assert row_errors == []
    deserialize = JSONDeserializer(None, schema_registry_client=confluent_client, conf=BY_TOPIC)
    assert [deserialize(value, context(topic)) for value in encoded.to_pylist()] == orders


@pytest.mark.parametrize(
    ("serializer", "format"), [("protobuf", SchemaFormat.PROTOBUF), ("json-schema", SchemaFormat.JSON)]
)
def test_a_producer_sends_dicts_in_every_format(apicurio_client, apicurio_registry, topic, serializer, format):
    text = SHOP if format is SchemaFormat.PROTOBUF else ORDER_JSON
    producer = MockProducer(
        {
            "value.serializer": serializer,
            "schema.registry.url": apicurio_registry.url,
            "writer.schema": text,
            "schema.auto.register": True,
        }
    )
    producer.send(topic, {"id": 5, "customer": "Ann"})
    [record] = producer.history
    decoder = SchemaDecoder(apicurio_client, SerdeSettings("value", format, reader="latest"))
    [value] = decoder.decode(topic, pa.array([record.value], pa.binary())).column.to_pylist()
    assert (value["id"], value["customer"]) == (5, "Ann")


@pytest.mark.parametrize("format", list(SchemaFormat))
def test_a_derived_schema_is_registered_and_read_in_every_format(apicurio_client, topic, format):
    kind = pa.struct([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    rows = pa.array([{"id": 1, "name": "x"}, {"id": 2, "name": None}], kind)
    settings = SerdeSettings("value", format, reader="latest", auto_register=True, record_name="shop.Thing")
    values, row_errors = SchemaEncoder(apicurio_client, settings).encode(topic, rows)
    assert row_errors == []
    assert SchemaDecoder(apicurio_client, settings).decode(topic, values).column.to_pylist() == rows.to_pylist()
