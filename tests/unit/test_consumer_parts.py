"""Parts of the consumer: record objects, fetched data, fetch sessions, options, engines."""

from __future__ import annotations

import os

import pytest

from headrace.client.plugins import PluginLoader
from headrace.config.offset_reset import duration_ms
from headrace.consumer.consumer import Consumer
from headrace.consumer.fetch_session import FetchedFrom, FetchSession
from headrace.consumer.options import CONSUMER_OPTIONS
from headrace.consumer.partitions import end_of_data
from headrace.consumer.settings import ConsumerSettings, resolve
from headrace.consumer.share_consumer import ShareConsumer
from headrace.errors import Code, ConfigError, IllegalStateError, MalformedError
from headrace.spark.kafka_options import CONSUMER_ONLY
from headrace.types import TopicPartition
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.kernel import kernel
from headrace.wire.layout import ConsumerRecord, Record
from headrace.wire.records import encode, parse_batch

BOOTSTRAP = {"bootstrap.servers": "localhost:9092"}
ID = bytes(range(16))


def batch_of(count, base=0, **options):
    rows = [Record(base + i, 1000 + i, b"k" if i % 2 else None, b"v%d" % i, (("h", None),)) for i in range(count)]
    return encode(rows, **options)


def parsed(data):
    batch = parse_batch(data, 0)
    assert batch is not None
    return batch


@pytest.mark.both_kernels
def test_consumer_records_have_all_fields_from_an_offset_on():
    batch = parsed(batch_of(4, 10, leader_epoch=3))
    records: list[ConsumerRecord] = []
    batch.consumer_records("t", 2, 12, records, 1 << 20)
    assert records == [
        ConsumerRecord("t", 2, 12, 1002, 0, None, b"v2", (("h", None),), 3),
        ConsumerRecord("t", 2, 13, 1003, 0, b"k", b"v3", (("h", None),), 3),
    ]
    assert type(records[0]) is ConsumerRecord


@pytest.mark.both_kernels
def test_times_of_the_broker_are_marked():
    records: list[ConsumerRecord] = []
    parsed(batch_of(2, append_time=77)).consumer_records("t", 0, 0, records, 1 << 20)
    assert [(record.timestamp, record.timestamp_type) for record in records] == [(77, 1), (77, 1)]


@pytest.mark.both_kernels
def test_a_damaged_payload_is_an_error():
    payload = bytes(parsed(batch_of(3)).payload())
    arguments = {"base_offset": 0, "base_timestamp": 0, "append_time": -1, "leader_epoch": 0, "first_offset": 0}
    for damaged in (payload[:-1], payload + b"x", b"\xff" * 20):
        with pytest.raises(MalformedError):
            kernel.decode_consumer_records(damaged, 3, [], topic="t", partition=0, **arguments)


def test_the_end_of_fetched_data_ignores_a_partial_batch():
    first, second = bytes(batch_of(3, 5, leader_epoch=1)), bytes(batch_of(2, 8, leader_epoch=2))
    assert end_of_data(first + second) == (10, 2)
    assert end_of_data(first + second[:-1]) == (8, 1)
    assert end_of_data(first[:-1]) == (-1, -1)
    with pytest.raises(MalformedError):
        end_of_data(first[:8] + bytes(4) + first[12:])


def session_request(session, **offsets):
    rows = {TopicPartition("t", int(name[1:])): FetchedFrom(ID, offset, 0) for name, offset in offsets.items()}
    request = session.request(rows, FetchRequest(max_wait_ms=1, min_bytes=1))
    named = {p.partition: p.fetch_offset for topic in request.topics for p in topic.partitions}
    forgotten = [number for topic in request.forgotten_topics_data for number in topic.partitions]
    return request.session_id, request.session_epoch, named, forgotten


def test_a_session_names_changes_and_starts_again_after_errors():
    session = FetchSession(100)
    assert session_request(session, p0=1, p1=2) == (0, 0, {0: 1, 1: 2}, [])
    session.succeeded(9)
    assert session_request(session, p0=1, p1=3, p2=0) == (9, 1, {1: 3, 2: 0}, [])
    session.succeeded(9)
    assert session_request(session, p1=3) == (9, 2, {}, [0, 2])
    session.reset()  # the connection was lost: this closes the session, and starts another
    assert session_request(session, p1=3) == (9, 0, {1: 3}, [])
    session.failed(Code.FETCH_SESSION_ID_NOT_FOUND)
    assert session_request(session, p1=3) == (0, 0, {1: 3}, [])
    session.succeeded(0)  # a broker without room for a session
    assert session_request(session, p1=3) == (0, 0, {1: 3}, [])


def test_the_options_are_those_of_kafka():
    assert CONSUMER_OPTIONS.keys() >= CONSUMER_ONLY


def test_contradictions_are_errors():
    for options, text in (
        ({"enable.auto.commit": True}, r"group\.id is not set"),
        ({"group.instance.id": "a"}, r"group\.id is not"),
        ({"group.id": "g", "heartbeat.interval.ms": 50_000}, r"must be below session\.timeout\.ms"),
        ({"group.id": "g", "group.remote.assignor": "range"}, r"group\.remote\.assignor.*set group\.protocol=consumer"),
        ({"group.id": "g", "group.protocol": "consumer", "session.timeout.ms": 6000}, "session.*=classic"),
        ({"group.id": "g", "group.protocol": "consumer", "heartbeat.interval.ms": 6000}, "heartbeat.*=classic"),
        ({"group.id": "g", "group.protocol": "CONSUMER", "partition.assignment.strategy": "range"}, "strategy is set"),
        ({"group.id": "g", "group.protocol": "share"}, r"group\.protocol"),
        ({"auto.offset.reset": "by_duration:1h"}, r"auto\.offset\.reset"),
        ({"partition.assignment.strategy": "best"}, "expected range"),
    ):
        with pytest.raises(ConfigError, match=text):
            resolve({**BOOTSTRAP, **options})


def test_settings_are_typed():
    config = resolve({**BOOTSTRAP, "auto.offset.reset": "by_duration:PT90M"}, fetch_max_bytes="1000")
    settings = ConsumerSettings.build(config, PluginLoader(config))
    assert (settings.reset_time, settings.reset_age_ms) == (None, 5_400_000)
    assert settings.fetch.max_bytes == 1000
    assert settings.group is None
    assert settings.auto_commit_interval_ms is None


def test_durations_are_those_of_iso_8601():
    values = {"PT1H": 3_600_000, "P1DT2M0.5S": 86_520_500, "pt5s": 5000}
    assert {text: duration_ms(text) for text in values} == values
    assert [duration_ms(text) for text in ("P", "PT", "1H", "P1Y", "PT1H ")] == [None] * 5


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_a_consumer_that_fork_copied_is_refused_and_its_close_does_nothing(kind, monkeypatch):
    parent = os.getpid()
    with kind({**BOOTSTRAP, "bootstrap.servers": "127.0.0.1:1"}, group_id="g") as consumer:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(IllegalStateError, match=r"created before fork\(\)"):
                consumer.subscribe(["t"])
            consumer.close()
        consumer.subscribe(["t"])
