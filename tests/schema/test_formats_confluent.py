"""Random schemas and values of all formats against Confluent's serializers and deserializers, on both registries."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import confluent_kafka.schema_registry as confluent
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.client.registry import SchemaRegistryClient
from headrace.client.schema_decoder import SchemaDecoder
from headrace.client.schema_encoder import SchemaEncoder
from headrace.client.serde import SerdeSettings
from headrace.schema import SchemaFormat
from tests.support import avro_types, json_types, protobuf_types

EXAMPLES = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # each example is a dozen requests: shrinking would take minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
TOPIC_NAMES = {"subject.name.strategy": confluent.topic_subject_name_strategy}
"""Without it, the serializers ask the registry for a strategy first, and wait where it has no such request."""


@pytest.fixture(scope="module")
def theirs(registry):
    with confluent.SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture(scope="module")
def ours(registry):
    return SchemaRegistryClient(registry.url)


def new_context() -> SerializationContext:
    return SerializationContext(f"random-{uuid.uuid4().hex[:12]}", MessageField.VALUE)


def read_and_write(ours, format: SchemaFormat, topic: str, values: list[bytes], name: str | None = None) -> Any:
    """Decode values with the topic's schema, and encode them again."""
    serde = SerdeSettings("value", format, "latest", record_name=name)
    column, errors = SchemaDecoder(ours, serde).decode(topic, pa.array(values, pa.binary()))
    assert errors == []
    encoded, errors = SchemaEncoder(ours, serde).encode(topic, column)
    assert errors == []
    return column, encoded.to_pylist()


@pytest.mark.behaviour("R02")
@EXAMPLES
@given(data=st.data())
def test_avro_values_are_confluents(ours, theirs, data):
    random_type = data.draw(avro_types.record_types())
    pairs = data.draw(st.lists(random_type.values, min_size=1, max_size=3))
    context = new_context()
    serialize = AvroSerializer(theirs, random_type.text, conf=TOPIC_NAMES)
    values = [serialize(written, context) for written, _ in pairs]
    column, encoded = read_and_write(ours, SchemaFormat.AVRO, context.topic, values)
    assert column.to_pylist() == [expected for _, expected in pairs]
    assert encoded == values


@pytest.mark.behaviour("R02")
@EXAMPLES
@given(seed=st.integers(0, 2**32))
def test_protobuf_values_are_confluents(ours, theirs, seed):
    chance = random.Random(seed)
    random_type = protobuf_types.random_schema(chance)
    message_type = random_type.message_type
    messages = [protobuf_types.fill(message_type(), chance) for _ in range(3)]
    context = new_context()
    serialize = ProtobufSerializer(message_type, theirs, {"use.deprecated.format": False, **TOPIC_NAMES})
    values = [serialize(message, context) for message in messages]
    name = message_type.DESCRIPTOR.full_name
    column, encoded = read_and_write(ours, SchemaFormat.PROTOBUF, context.topic, values, name)
    assert column.to_pylist(maps_as_pydicts="strict") == list(map(protobuf_types.arrow_value, messages))
    deserialize = ProtobufDeserializer(message_type, {"use.deprecated.format": False})
    assert [deserialize(value, context) for value in encoded] == messages


@pytest.mark.behaviour("R02")
@EXAMPLES
@given(data=st.data())
def test_json_values_are_confluents(ours, theirs, data):
    random_type = data.draw(json_types.object_types())
    pairs = data.draw(st.lists(random_type.values, min_size=1, max_size=3))
    context = new_context()
    text = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": "Random", **random_type.schema})
    serialize = JSONSerializer(text, theirs, conf=TOPIC_NAMES, json_encode=json.dumps)
    values = [serialize(written, context) for written, _ in pairs]
    column, encoded = read_and_write(ours, SchemaFormat.JSON, context.topic, values)
    assert column.to_pylist() == [expected for _, expected in pairs]
    deserialize = JSONDeserializer(text, schema_registry_client=theirs)
    read_again, _ = read_and_write(ours, SchemaFormat.JSON, context.topic, encoded)
    assert read_again.equals(column)
    for value in encoded:
        deserialize(value, context)  # which validates
