"""Protobuf values of Confluent's serializer: read and written with the schema that it has registered."""

from __future__ import annotations

import random

import confluent_kafka.schema_registry as confluent
import pyarrow as pa
import pytest

from headrace.client.registry import SchemaRegistryClient
from headrace.schema import framing
from headrace.schema.protobuf import ProtobufDecoder, ProtobufEncoder, parse_schema
from tests.support.protobuf_types import arrow_value, fill, message_class

SCHEMA = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message First { int64 id = 1; }
message Order {
  map<string, Line> lines = 1; repeated sint32 numbers = 2; oneof payment { string card = 3; uint64 cash = 4; }
  google.protobuf.Timestamp at = 5; State state = 6;
  message Line { string sku = 1; optional double price = 2; }
  enum State { NEW = 0; PAID = 1; }
}
"""


@pytest.mark.parametrize("name", ["shop.First", "shop.Order", "shop.Order.Line"])
def test_values_have_the_bytes_of_confluents_serializer(apicurio_registry, subject, name):
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    chance = random.Random(7)
    message_type = message_class(parse_schema(SCHEMA, name="shop/order.proto"), name)
    messages = [fill(message_type(), chance) for _ in range(20)]
    context = SerializationContext(subject.removesuffix("-value"), MessageField.VALUE)
    with confluent.SchemaRegistryClient({"url": apicurio_registry.url}) as client:
        serializer = ProtobufSerializer(message_type, client, {"use.deprecated.format": False})
        values = [serializer(message, context) for message in messages]
    latest = SchemaRegistryClient(apicurio_registry.url).get_latest(subject)
    schema = parse_schema(latest.schema.text)
    assert latest.id is not None
    prefix = framing.encode_id(latest.id, schema.message_indexes(name))
    assert all(value.startswith(prefix) for value in values)

    orders, errors = ProtobufDecoder(schema, name).decode(pa.array(values, pa.binary()), skip=len(prefix))
    assert not errors
    assert orders.to_pylist(maps_as_pydicts="strict") == [arrow_value(message) for message in messages]
    encoded, errors = ProtobufEncoder(schema, orders.type, name).encode(orders, prefix)
    assert not errors
    assert encoded.to_pylist() == values
