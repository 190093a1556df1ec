"""Schema formats, and the built-in deserializers, as the consumer's deserializers: for records and for columns."""

from __future__ import annotations

import json
import struct
import time
import uuid

import pyarrow as pa
import pytest

from headrace import (
    ConfigError,
    Consumer,
    ConsumerRecord,
    DeserializationError,
    Producer,
    RegistryUnavailableError,
    Schema,
    SchemaError,
    SchemaFormat,
    SchemaRegistryClient,
    TopicPartition,
)
from tests.support.topics import unique

SECONDS_MAX = 20.0
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
AVRO_2 = {**AVRO, "fields": [*AVRO["fields"], {"name": "note", "type": "string", "default": "-"}]}
PROTOBUF = 'syntax = "proto3"; message Order { int64 id = 1; }'
JSON = '{"type": "object", "title": "Order", "required": ["id"], "properties": {"id": {"type": "integer"}}}'
FORMATS = pytest.mark.parametrize(
    ("name", "text"), [("avro", json.dumps(AVRO)), ("protobuf", PROTOBUF), ("json-schema", JSON)]
)


@pytest.fixture
def broker(box):
    return box


@pytest.fixture
def topic(broker):
    return broker.create_topic(unique("typed"), 2)


def write(broker, topic, values, serializer="avro", schema: object = None, **options):
    """Send values to partition 0, in one batch."""
    config = {
        "bootstrap.servers": broker.bootstrap,
        "value.serializer": serializer,
        "linger.ms": 20,
        **options,
    }
    if schema is not None:
        config |= {"schema.registry.url": broker.schema_registry_url, "writer.schema": schema}
        config["schema.auto.register"] = True
    with Producer(config) as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def open_consumer(broker, topic, deserializer: object, **options):
    config = {
        "bootstrap.servers": broker.bootstrap,
        "schema.registry.url": broker.schema_registry_url,
        "auto.offset.reset": "earliest",
        **{name.replace("_", "."): value for name, value in options.items()},
    }
    consumer = Consumer(config, value_deserializer=deserializer)
    consumer.assign([TopicPartition(topic, 0)])
    return consumer


def read(consumer, count):
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(records) < count:
        assert time.monotonic() < deadline
        records += consumer.poll(1)
    return records


def read_columns(consumer, count):
    batches: list[pa.RecordBatch] = []
    deadline = time.monotonic() + SECONDS_MAX
    while sum(batch.num_rows for batch in batches) < count:
        assert time.monotonic() < deadline
        batch = consumer.poll_arrow(1)
        if batch is not None:
            batches.append(batch)
    return pa.Table.from_batches(batches)


@pytest.mark.behaviour("R04")
@FORMATS
def test_records_have_the_objects_that_the_producer_sent(broker, topic, name, text):
    rows = [{"id": number} for number in range(1000)]
    write(broker, topic, [*rows, None], name, text)
    with open_consumer(broker, topic, name) as consumer:
        assert [record.value for record in read(consumer, 1001)] == [*rows, None]


@pytest.mark.behaviour("R04")
@FORMATS
def test_columns_have_the_type_of_the_schema(broker, topic, name, text):
    write(broker, topic, [{"id": number} for number in range(100)], name, text)
    with open_consumer(broker, topic, name) as consumer:
        table = read_columns(consumer, 100)
        assert table.schema == consumer.arrow_schema()
    assert table["value"].type.field("id").type == pa.int64()
    assert table["value"].to_pylist() == [{"id": number} for number in range(100)]
    with open_consumer(broker, topic, name) as consumer:
        assert pa.table(consumer).equals(table)


@pytest.mark.behaviour("R04")
def test_values_of_several_writers_become_one_column(broker, topic):
    write(broker, topic, [{"id": 1}], schema=json.dumps(AVRO))
    write(broker, topic, [{"id": 2, "note": "n"}], schema=json.dumps(AVRO_2))
    write(broker, topic, [{"id": 3}], schema=json.dumps(AVRO))
    with open_consumer(broker, topic, "avro") as consumer:
        values = [record.value for record in read(consumer, 3)]
    assert values == [{"id": 1}, {"id": 2, "note": "n"}, {"id": 3}]  # as they were written
    expected = [{"id": 1, "note": "-"}, {"id": 2, "note": "n"}, {"id": 3, "note": "-"}]
    with open_consumer(broker, topic, "avro") as consumer:
        assert read_columns(consumer, 3)["value"].to_pylist() == expected
    with open_consumer(broker, topic, "avro", reader_schema="latest") as consumer:
        assert [record.value for record in read(consumer, 3)] == expected


def test_a_batch_is_of_one_topic_if_schemas_give_the_types(broker, topic):
    other = broker.create_topic(unique("other"), 1)
    write(broker, topic, [{"id": 1}], schema=json.dumps(AVRO))
    write(broker, other, [{"id": 2, "note": "n"}], schema=json.dumps(AVRO_2))
    with open_consumer(broker, topic, "avro") as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(other, 0)])
        rows: dict[str, object] = {}
        deadline = time.monotonic() + SECONDS_MAX
        while len(rows) < 2:
            assert time.monotonic() < deadline
            batch = consumer.poll_arrow(1)
            if batch is not None:
                (name,) = set(batch["topic"].to_pylist())
                rows[name] = batch["value"].to_pylist()
        assert rows == {topic: [{"id": 1}], other: [{"id": 2, "note": "n"}]}
        with pytest.raises(SchemaError, match="several types"):
            consumer.arrow_schema()


# -- bad records --------------------------------------------------------------------------------


def write_with_bad_ones(broker, topic):
    """Write orders 0 to 9, of which 3 and 7 are not Avro."""
    write(broker, topic, [{"id": number} for number in range(3)], schema=json.dumps(AVRO))
    write(broker, topic, [b"bad 3"], "bytes")
    write(broker, topic, [{"id": number} for number in range(4, 7)], schema=json.dumps(AVRO))
    write(broker, topic, [b"bad 7"], "bytes")
    write(broker, topic, [{"id": number} for number in range(8, 10)], schema=json.dumps(AVRO))


@pytest.mark.behaviour("R04")
@pytest.mark.parametrize("columns", [False, True], ids=["records", "columns"])
def test_a_bad_record_is_an_error_after_the_records_before_it(broker, topic, columns):
    write_with_bad_ones(broker, topic)
    name = TopicPartition(topic, 0)
    seen: list[int] = []
    errors: list[tuple[DeserializationError, int]] = []
    with open_consumer(broker, topic, "avro") as consumer:
        deadline = time.monotonic() + SECONDS_MAX
        while len(seen) < 8:
            assert time.monotonic() < deadline
            try:
                if columns:
                    batch = consumer.poll_arrow(1)
                    seen += [] if batch is None else [value["id"] for value in batch["value"].to_pylist()]
                else:
                    seen += [record.value["id"] for record in consumer.poll(1)]
            except DeserializationError as error:
                errors.append((error, consumer.position(name)))
                if len(errors) > 1 and errors[-2][1] == error.offset:
                    consumer.seek(name, error.offset + 1)  # the second time
    assert seen == [0, 1, 2, 4, 5, 6, 8, 9]
    assert [(error.offset, position) for error, position in errors] == [(3, 3), (3, 3), (7, 7), (7, 7)]
    first = errors[0][0]
    assert (first.topic, first.partition, first.deserializer) == (topic, 0, "AvroDeserializer")
    assert "seek to offset 4" in str(first)


@pytest.mark.behaviour("R04")
@pytest.mark.parametrize("choice", ["null", "corrupt-column"])
def test_bad_records_are_null_if_the_option_says_so(broker, topic, choice, caplog):
    write_with_bad_ones(broker, topic)
    expected = [None if number in (3, 7) else {"id": number} for number in range(10)]
    with open_consumer(broker, topic, "avro", on_bad_record=choice) as consumer:
        assert [record.value for record in read(consumer, 10)] == expected
    assert "could not be deserialized" in caplog.text
    with open_consumer(broker, topic, "avro", on_bad_record=choice) as consumer:
        table = read_columns(consumer, 10)
        assert table.schema == consumer.arrow_schema()
    assert table["value"].to_pylist() == expected
    if choice == "corrupt-column":
        corrupt = table["_corrupt"].to_pylist()
        assert {row: each["value"] for row, each in enumerate(corrupt) if each} == {3: b"bad 3", 7: b"bad 7"}
        assert corrupt[3]["error"].startswith("value: ")


def test_a_registry_that_is_down_raises_until_it_is_back(broker, topic):
    write(broker, topic, [{"id": 1}], schema=json.dumps(AVRO))
    options = {"schema_registry_url": "http://127.0.0.1:1", "schema_registry_max_retries": 0}
    with open_consumer(broker, topic, "avro", **options) as consumer:
        for poll in (consumer.poll, consumer.poll, consumer.poll_arrow):
            with pytest.raises(RegistryUnavailableError):
                poll(SECONDS_MAX)
        assert consumer.position(TopicPartition(topic, 0)) == 0


def test_a_schema_deserializer_without_a_registry_is_refused(broker):
    with pytest.raises(ConfigError, match=r"schema\.registry\.url is not set"):
        Consumer(bootstrap_servers=broker.bootstrap, value_deserializer="avro")


def test_names_of_confluents_classes_are_known(broker, topic):
    registry = SchemaRegistryClient(broker.schema_registry_url)
    registry.register(f"{topic}-value", Schema(PROTOBUF, SchemaFormat.PROTOBUF))
    name = "io.confluent.kafka.serializers.protobuf.KafkaProtobufDeserializer"
    with open_consumer(broker, topic, name) as consumer:
        assert consumer.arrow_schema().field("value").type.field("id").type == pa.int64()


# -- built-in deserializers on columns -----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "data_type", "values", "bad"),
    [
        ("str", ["é".encode(), b"b"], pa.string(), ["é", "b"], b"\xff"),
        ("json", [b'{"a":1}', b"2"], pa.string(), ['{"a":1}', "2"], b"\xff"),
        ("uuid", [str(uuid.UUID(int=1)).encode()], pa.string(), [str(uuid.UUID(int=1))], b"\xff"),
        ("short", [struct.pack(">h", -2)], pa.int16(), [-2], b"1"),
        ("int", [struct.pack(">i", 5), struct.pack(">i", -(2**31))], pa.int32(), [5, -(2**31)], b"12345"),
        ("long", [struct.pack(">q", 2**40)], pa.int64(), [2**40], b""),
        ("float", [struct.pack(">f", 0.5)], pa.float32(), [0.5], b"x"),
        ("double", [struct.pack(">d", 1e300)], pa.float64(), [1e300], b"x"),
        ("bool", [b"\0", b"\1"], pa.bool_(), [False, True], b"\2"),
        ("none", [None], pa.null(), [None], b"x"),
        (lambda data: data, [b"\xff"], pa.binary(), [b"\xff"], None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_built_in_deserializers_give_columns_their_types(broker, topic, name, data, data_type, values, bad):
    write(broker, topic, [*data, None], "bytes")
    with open_consumer(broker, topic, name) as consumer:
        table = read_columns(consumer, len(data) + 1)
        assert table.schema == consumer.arrow_schema()
    assert (table["value"].type, table["value"].to_pylist()) == (data_type, [*values, None])
    if bad is None:
        return
    write(broker, topic, [bad, *data], "bytes")
    with open_consumer(broker, topic, name, on_bad_record="null") as consumer:
        table = read_columns(consumer, 2 * len(data) + 2)
    assert table["value"].to_pylist() == [*values, None, None, *values]


def test_text_in_another_encoding_is_decoded_in_columns(broker, topic):
    write(broker, topic, ["é".encode("latin-1"), b"\xff"], "bytes")
    with open_consumer(broker, topic, "str", value_deserializer_encoding="latin-1") as consumer:
        assert read_columns(consumer, 2)["value"].to_pylist() == ["é", "ÿ"]
