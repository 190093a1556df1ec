"""A producer's serializers with a schema registry, and typed records from a fetcher, on the headrace broker."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
import types

import pyarrow as pa
import pytest

from headrace import AsyncProducer, MockProducer, Producer, errors
from headrace.broker import EmbeddedBroker
from headrace.client.fetcher import Fetcher
from headrace.client.serde import RowCause
from headrace.client.typed_records import RecordDecoder
from headrace.schema import framing
from headrace.types import TopicPartition
from tests.support.avro_types import fastavro_bytes
from tests.support.scripted_registry import SmallRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}
ANN = {"id": 1, "customer": "Ann", "currency": "USD"}


@pytest.fixture
def server():
    server = SmallRegistry()
    server.add("orders-value", json.dumps(ORDER))
    server.add("orders-key", '"string"')
    yield server
    server.close()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def options(server):
    return {"value.serializer": "avro", "schema.registry.url": server.url}


def framed(value):
    return framing.encode_id(1) + fastavro_bytes(ORDER, value)


def sent(producer, value, key=None):
    producer.send("orders", value, key)
    return producer.history[-1]


@dataclasses.dataclass
class Order:
    id: int
    customer: str | None = None
    currency: str = "EUR"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ANN, ANN),
        (types.MappingProxyType(ANN), ANN),
        (Order(2), {"id": 2, "customer": None, "currency": "EUR"}),
        ({"id": 3}, {"id": 3, "customer": None, "currency": "EUR"}),
        (None, None),
    ],
    ids=["dict", "mapping", "dataclass", "default", "null"],
)
def test_values_are_sent_as_avro_with_the_schema_id(options, value, expected):
    record = sent(MockProducer(options), value)
    assert record.value == (None if expected is None else framed(expected))


def test_keys_have_a_schema_of_their_own(options):
    record = sent(MockProducer({**options, "key.serializer": "avro"}), ANN, "k")
    assert record.key == framing.encode_id(2) + b"\x02k"


def test_the_names_of_confluents_serializers_and_options_are_accepted(server):
    producer = MockProducer(
        {
            "value.serializer": "io.confluent.kafka.serializers.KafkaAvroSerializer",
            "schema.registry.url": server.url,
            "auto.register.schemas": "true",
            "writer.schema": json.dumps({**ORDER, "name": "Renamed"}),
            "value.subject.name.strategy": "io.confluent.kafka.serializers.subject.RecordNameStrategy",
        }
    )
    sent(producer, ANN)
    assert len(server.subjects["Renamed"]) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"id": "x"},
            r"AvroSerializer expected a value that fits the schema \(schema id 1: field id: expected an integer, got "
            r"str\), got dict as value of a record to topic 'orders'; convert it",
        ),
        ({"customer": "x"}, r"schema id 1: field id: no value, and the Avro schema has no default; add the field"),
        ({"id": None}, r"schema id 1: field id: null in a field that is not nullable"),
        ({"id": 1, "custmer": "x"}, r"no field 'custmer' in the schema, only id, customer, currency; remove"),
        ("text", r"value: expected record Order as a dict, a mapping or a dataclass, got str"),
    ],
)
def test_a_value_that_does_not_fit_is_named(options, value, message):
    with pytest.raises(errors.SerializationError, match=message):
        sent(MockProducer(options), value)


def test_single_values_need_a_schema_even_with_auto_register(server, options):
    producer = MockProducer({**options, "schema.auto.register": "true"})
    with pytest.raises(
        errors.ConfigError, match=r"derives one from Arrow columns only; set writer\.schema to the text"
    ):
        sent(producer, ANN)
    assert server.requests == []


def test_single_values_follow_the_latest_version_of_the_subject(server, options):
    producer = MockProducer({**options, "schema.registry.latest.cache.ttl.sec": "0"})
    assert sent(producer, ANN).value == framed(ANN)
    newer = {**ORDER, "fields": [{"name": "id", "type": "long"}]}
    number = server.add("orders-value", json.dumps(newer))
    assert sent(producer, {"id": 7}).value == framing.encode_id(number) + fastavro_bytes(newer, {"id": 7})


def test_single_values_of_a_topic_need_one_request(server, options):
    producer = MockProducer(options)
    for _ in range(3):
        sent(producer, ANN)
    assert len(server.requests) == 1


def test_the_asyncio_producer_does_not_block_its_loop_for_the_registry(broker, server, options):
    """The registry responds only after the event loop has run: a request on the loop would time out."""
    loop_ran = threading.Event()
    respond = server.respond
    waited: list[bool] = []

    def late(method, path):
        waited.append(loop_ran.wait(20))
        return respond(method, path)

    server.respond = late
    server.add("async-orders-value", json.dumps(ORDER))

    async def send():
        async with AsyncProducer({**options, "bootstrap.servers": broker.bootstrap}) as producer:
            sends = [asyncio.create_task(producer.send_and_wait("async-orders", ANN)) for _ in range(5)]
            while not server.requests:
                await asyncio.sleep(0.001)
            loop_ran.set()
            return await asyncio.gather(*sends)

    metadata = asyncio.run(asyncio.wait_for(send(), 60))
    assert sorted(each.offset for each in metadata) == [0, 1, 2, 3, 4]
    assert waited == [True]


def test_a_task_cancelled_while_it_waits_for_the_registry_sends_nothing(broker, server, options):
    asked, go_on = threading.Event(), threading.Event()
    respond = server.respond

    def late(method, path):
        asked.set()
        go_on.wait(20)
        return respond(method, path)

    server.respond = late
    server.add("cancelled-orders-value", json.dumps(ORDER))

    async def send():
        async with AsyncProducer({**options, "bootstrap.servers": broker.bootstrap}) as producer:
            first = asyncio.create_task(producer.send("cancelled-orders", ANN))
            while not asked.is_set():
                await asyncio.sleep(0.001)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            go_on.set()
            return await producer.send_and_wait("cancelled-orders", ANN)

    assert asyncio.run(asyncio.wait_for(send(), 60)).offset == 0


def test_a_serializer_without_a_registry_is_refused():
    with pytest.raises(errors.ConfigError, match=r"schema\.registry\.url is not set"):
        MockProducer({"value.serializer": "avro"})


@pytest.mark.behaviour("R04")
def test_records_are_read_with_the_types_they_were_sent_with(broker, options, server):
    config = {**options, "bootstrap.servers": broker.bootstrap, "key.serializer": "avro"}
    with Producer(config) as producer:
        for number in range(3):
            producer.send("orders", {**ANN, "id": number}, f"k{number}", partition=0)
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        producer.send("orders", b"plain", b"\0", partition=0)
    decoder = RecordDecoder.from_options(
        {"value.format": "avro", "key.format": "avro", "schema.registry.url": server.url}, default_reader="latest"
    )
    partition = TopicPartition("orders", 0)
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign({partition: 0}, until={partition: 4})
        records = []
        while not fetcher.is_finished():
            records += decoder.decode(fetcher.poll(10_000))
        fetcher.assign({partition: 0}, until={partition: 4})
        batches = []
        while not fetcher.is_finished():
            batches += [decoder.decode_batch("orders", batch) for batch in fetcher.poll_arrow(10_000).values()]
    assert [record.key for record in records] == ["k0", "k1", "k2", None]
    assert [record.value for record in records[:3]] == [{**ANN, "id": number} for number in range(3)]
    assert records[0].value_error is None
    assert records[3].value_error is not None
    assert records[3].value_error.cause is RowCause.NO_SCHEMA_ID
    assert records[3].key_error is not None
    assert [row for typed in batches for row in typed.batch.column("key").to_pylist()] == ["k0", "k1", "k2", None]
    assert [row and row["id"] for typed in batches for row in typed.batch.column("value").to_pylist()] == [
        0,
        1,
        2,
        None,
    ]
    assert sum(len(typed.value_errors) for typed in batches) == 1


@pytest.mark.behaviour("R04")
@pytest.mark.parametrize("as_table", [True, False])
def test_send_arrow_takes_struct_columns(broker, options, server, as_table):
    topic = f"columns-{as_table}".lower()
    server.add(f"{topic}-value", json.dumps(ORDER))
    batch = pa.record_batch({"value": pa.array([{"id": n, "customer": f"c{n}"} for n in range(1000)])})
    data = pa.Table.from_batches([batch, batch]) if as_table else batch
    with Producer({**options, "bootstrap.servers": broker.bootstrap}) as producer:
        delivery = producer.send_arrow(topic, data)
        delivery.result(30)
    partition = TopicPartition(topic, 0)
    with Fetcher(broker.bootstrap) as fetcher:
        fetcher.assign({partition: 0}, until={partition: 1})
        [record] = fetcher.poll(10_000, records_max=1)
    assert record.value == framed({"id": 0, "customer": "c0", "currency": "EUR"})


def test_send_arrow_sends_nothing_if_a_row_does_not_fit(broker, options, server):
    server.add("bad-value", json.dumps(ORDER))
    kind = pa.struct([("id", pa.int64()), ("customer", pa.string())])
    rows = pa.record_batch({"value": pa.array([{"id": 1}, {"id": None}], kind)})
    partition = TopicPartition("bad", 0)
    with Producer({**options, "bootstrap.servers": broker.bootstrap}) as producer:
        producer.send("bad", {"id": 7}, partition=0).result(30)
        with pytest.raises(errors.SerializationError, match=r"cannot encode 1 rows .*row 1: schema id 1: field id"):
            producer.send_arrow("bad", rows)
    with Fetcher(broker.bootstrap) as fetcher:
        assert fetcher.end_offsets([partition]) == {partition: 1}


@pytest.mark.parametrize("serializer", ["json", "bytes"])
def test_a_format_that_the_serializer_does_not_write_is_an_error(broker, server, serializer):
    given = {"bootstrap.servers": broker.bootstrap, "schema.registry.url": server.url, "value.format": "json"}
    with pytest.raises(errors.ConfigError, match=r"value\.format is set, .*json-schema"):
        Producer({**given, "value.serializer": serializer})
    Producer({**given, "value.format": "none", "value.serializer": serializer}).close()
