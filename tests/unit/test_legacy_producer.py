"""The 0.8 producer with a fake cluster, on a fake clock."""

from __future__ import annotations

import os
import pickle
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ClosedError, ConfigError, SerializationError, UnsupportedVersionError
from headrace.legacy import FailedToSendMessageError, KeyedMessage, Partitioner, Producer, QueueFullError
from headrace.legacy.options import OPTIONS
from headrace.legacy.partitioner import DefaultPartitioner, java_hash
from headrace.wire import message_sets
from headrace.wire.api.produce import ProduceResponse
from headrace.wire.compression import CODEC_IDS
from headrace.wire.layout import NO_TIMESTAMP, Record
from tests.support.legacy_rig import HANG_UP, FakeCluster, WaitingFakeClock
from tests.support.waiting import eventually

COUNTERS = {"DroppedMessages": 0, "SerializationErrors": 0, "Resends": 0, "FailedSends": 0}
PERIOD_MS = "topic.metadata.refresh.interval.ms"


def producer_of(cluster, clock=None, **options):
    options = {"request_required_acks": 1, "metadata_broker_list": cluster.bootstrap, **options}
    return Producer(clock=clock or WaitingFakeClock(), connect=cluster.connect, rng=random.Random(7), **options)


def make_producer(cluster, **options):
    """Return a producer and its clock."""
    clock = WaitingFakeClock()
    return producer_of(cluster, clock, **options), clock


# -- sync and async --------------------------------------------------------------------------------


@pytest.mark.behaviour("L01")
def test_sync_send_returns_after_sending():
    cluster = FakeCluster({"t": [1]})
    with producer_of(cluster) as producer:
        producer.send(KeyedMessage("t", b"a"))
        producer.send([KeyedMessage("t", b"b"), KeyedMessage("t", b"c", b"k")])
        assert [(r.key, r.value) for r in cluster.records("t", 0)] == [(None, b"a"), (None, b"b"), (b"k", b"c")]
        assert len(cluster.produced) == 2


@pytest.mark.behaviour("L01", "L04")
def test_sync_raises_after_the_last_retry():
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster)
    cluster.script(6, 6, HANG_UP, 7)
    with pytest.raises(FailedToSendMessageError, match=r"1 of 1 messages failed after 4 attempts.*t-0: REQUEST_TIME"):
        producer.send(KeyedMessage("t", b"a"))
    assert clock.slept_ms == [100, 100, 100]
    assert producer.metrics() == {**COUNTERS, "Resends": 3, "FailedSends": 1}
    producer.send(KeyedMessage("t", b"b"))
    assert cluster.values("t") == [b"b"]


@pytest.mark.behaviour("L01")
def test_close_waits_until_queued_messages_are_sent():
    cluster = FakeCluster({"t": [1], "u": [1]})
    with producer_of(cluster, producer_type="async", batch_num_messages=3) as producer:
        for number in range(7):
            producer.send(KeyedMessage("t", b"%d" % number))
        producer.send(KeyedMessage("u", b"x"))
    assert cluster.values("t") == [b"%d" % number for number in range(7)]
    assert cluster.values("u") == [b"x"]
    with pytest.raises(ClosedError, match="closed; create a new one"):
        producer.send(KeyedMessage("t", b"late"))


@pytest.mark.behaviour("L01")
def test_the_send_thread_survives_a_failed_batch(caplog):
    cluster = FakeCluster({"t": [1]})
    cluster.script(6, 6, 6, 6)
    with producer_of(cluster, producer_type="async", batch_num_messages=1) as producer:
        producer.send([KeyedMessage("t", b"lost"), KeyedMessage("t", b"kept")])
    assert cluster.values("t") == [b"kept"]
    assert producer.metrics() == {**COUNTERS, "Resends": 3, "FailedSends": 1}
    assert "NOT_LEADER_OR_FOLLOWER" in caplog.text


@pytest.mark.behaviour("L03")
def test_messages_dropped_by_a_full_queue_are_counted_and_raised():
    cluster = FakeCluster({"t": [1]})
    cluster.lets_connect.clear()
    options = {"producer_type": "async", "queue_enqueue_timeout_ms": 0, "queue_buffering_max_messages": 5}
    with producer_of(cluster, **options, batch_num_messages=1) as producer:
        producer.send(KeyedMessage("t", b"taken by the thread"))
        eventually("the thread to take it", lambda: len(producer._queue) == 0)
        producer.send([KeyedMessage("t", b"%d" % number) for number in range(5)])
        with pytest.raises(QueueFullError):
            producer.send(KeyedMessage("t", b"x"))
        with pytest.raises(QueueFullError) as caught:
            producer.send([KeyedMessage("t", b"y"), KeyedMessage("t", b"z")])
        assert caught.value.dropped_count == 2
        assert producer.metrics()["DroppedMessages"] == 3
        cluster.lets_connect.set()
    assert len(cluster.values("t")) == 6


def test_close_drops_queued_messages_after_its_timeout(caplog):
    cluster = FakeCluster({"t": [1]})
    cluster.lets_connect.clear()
    producer = producer_of(cluster, producer_type="async", batch_num_messages=1)
    producer.send([KeyedMessage("t", b"%d" % number) for number in range(4)])
    eventually("the thread to take one", lambda: len(producer._queue) == 3)
    producer.close(timeout=0.01)
    assert producer.metrics()["DroppedMessages"] == 3
    assert "dropped 3 queued messages" in caplog.text
    cluster.lets_connect.set()
    producer._thread.join(20)
    assert cluster.values("t") == [b"0"]


def test_send_accepts_keyed_messages_only():
    with producer_of(FakeCluster({"t": [1]})) as producer:
        for wrong in (["t"], [KeyedMessage("t", b"a"), None], ("t", b"a")):
            with pytest.raises(TypeError, match="send expects one KeyedMessage or several"):
                producer.send(wrong)
        producer.send([])


def test_a_producer_is_unusable_in_a_forked_child():
    with producer_of(FakeCluster({"t": [1]}), producer_type="async") as producer:
        pid = os.fork()
        if not pid:
            try:
                producer.send(KeyedMessage("t", b"a"))
            except ClosedError as error:
                os._exit(0 if "before fork()" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0


# -- the handler -----------------------------------------------------------------------------------


@pytest.mark.behaviour("L04")
def test_only_failed_messages_are_retried():
    cluster = FakeCluster({"t": [1, 1], "u": [2]})
    producer, clock = make_producer(cluster, partitioner_class=_ByNumber)
    cluster.script({("t", 1): 6}, 0, {("t", 1): 3})
    producer.send([*(KeyedMessage("t", b"%d" % i, partition_key=i % 2) for i in range(4)), KeyedMessage("u", b"u")])
    assert [record.value for record in cluster.records("t", 0)] == [b"0", b"2"]
    assert [record.value for record in cluster.records("t", 1)] == [b"1", b"3"]
    assert cluster.values("u") == [b"u"]
    sent = [{(t.name, p.partition_index) for t in r.topic_data for p in t.partition_data} for _, r in cluster.produced]
    assert sent == [{("t", 0), ("t", 1)}, {("u", 0)}, {("t", 1)}, {("t", 1)}]
    assert clock.slept_ms == [100, 100]
    assert producer.metrics() == {**COUNTERS, "Resends": 2}


@pytest.mark.behaviour("L04")
def test_messages_are_grouped_by_leader():
    cluster = FakeCluster({"t": [1, 2, 1, 2]})
    producer, _ = make_producer(cluster, partitioner_class=_ByNumber)
    producer.send([KeyedMessage("t", b"%d" % i, partition_key=i) for i in range(4)])
    sent = [[p.partition_index for p in request.topic_data[0].partition_data] for _, request in cluster.produced]
    assert sent == [[0, 2], [1, 3]]


@pytest.mark.behaviour("L04", "L05")
def test_a_moved_leader_is_found_after_a_failure():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, topic_metadata_refresh_interval_ms=-1)
    producer.send(KeyedMessage("t", b"a"))
    cluster.leaders["t"] = [2]
    cluster.script(6)
    producer.send(KeyedMessage("t", b"b"))
    assert cluster.values("t") == [b"a", b"b"]
    assert [str(endpoint) for endpoint in cluster.connects] == ["fake:9001", "fake:9001", "fake:9001", "fake:9002"]


@pytest.mark.behaviour("L04")
def test_retries_and_backoff_are_as_configured():
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster, message_send_max_retries=1, retry_backoff_ms=7)
    cluster.script(6, 6)
    with pytest.raises(FailedToSendMessageError, match="after 2 attempts"):
        producer.send(KeyedMessage("t", b"a"))
    assert clock.slept_ms == [7]


@pytest.mark.behaviour("L04")
def test_a_missing_topic_does_not_delay_others():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster)
    with pytest.raises(FailedToSendMessageError, match=r"1 of 2 .*new: UNKNOWN_TOPIC_OR_PARTITION"):
        producer.send([KeyedMessage("new", b"a"), KeyedMessage("t", b"b")])
    assert cluster.values("t") == [b"b"]
    cluster.leaders["new"] = [-1]
    with pytest.raises(FailedToSendMessageError, match="new-0: no leader"):
        producer.send(KeyedMessage("new", b"a"))
    cluster.leaders["new"] = [1]
    producer.send(KeyedMessage("new", b"a"))
    assert cluster.values("new") == [b"a"]


@pytest.mark.behaviour("L04")
def test_unreachable_brokers_are_reported_after_the_retries():
    cluster = FakeCluster({"t": [1]})
    cluster.down = True
    producer, _ = make_producer(cluster)
    with pytest.raises(
        FailedToSendMessageError, match=r"no broker of metadata\.broker\.list returned metadata: .*fake:9001"
    ):
        producer.send(KeyedMessage("t", b"a"))
    cluster.down = False
    producer.send(KeyedMessage("t", b"a"))
    assert cluster.values("t") == [b"a"]


def test_metadata_is_fetched_from_any_reachable_broker():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, metadata_broker_list="gone:1,fake:9001,lost:2")
    cluster.unreachable = {endpoint for endpoint in producer._settings.brokers if endpoint.host != "fake"}
    producer.send(KeyedMessage("t", b"a"))
    assert cluster.values("t") == [b"a"]


def test_a_response_for_other_partitions_is_a_failure():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, message_send_max_retries=0)
    respond = cluster.respond

    def forgetful(endpoint, version, message):
        return ProduceResponse(responses=[]) if message.api_key == 0 else respond(endpoint, version, message)

    cluster.respond = forgetful  # type: ignore[method-assign]
    with pytest.raises(FailedToSendMessageError, match="expected a response for 1 partitions, got 0"):
        producer.send(KeyedMessage("t", b"a"))


# -- serialization ---------------------------------------------------------------------------------


@pytest.mark.behaviour("L04")
def test_sync_raises_encoder_errors_and_sends_nothing():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster)
    with pytest.raises(SerializationError, match="BytesSerializer expected bytes, got str"):
        producer.send([KeyedMessage("t", b"a"), KeyedMessage("t", "text")])
    assert cluster.produced == []
    assert producer.metrics() == {**COUNTERS, "SerializationErrors": 1}


@pytest.mark.behaviour("L04")
def test_async_drops_messages_that_fail_to_encode(caplog):
    cluster = FakeCluster({"t": [1]})
    with producer_of(cluster, producer_type="async") as producer:
        producer.send(
            [KeyedMessage("t", b"a"), KeyedMessage("t", 5), KeyedMessage("no topic", b"b"), KeyedMessage("t", b"c")]
        )
        producer.send(KeyedMessage(["list"], b"d"))  # type: ignore[arg-type]
    assert cluster.values("t") == [b"a", b"c"]
    assert producer.metrics() == {**COUNTERS, "SerializationErrors": 3}
    assert "got 'no topic'" in caplog.text


# -- metadata --------------------------------------------------------------------------------------


@pytest.mark.behaviour("L05")
def test_metadata_and_connections_are_refreshed_by_interval():
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster)
    for advance_ms, requested, connects in ((0, 1, 2), (599_999, 1, 2), (1, 2, 4), (10, 2, 4), (600_000, 3, 6)):
        clock.advance(advance_ms)
        producer.send(KeyedMessage("t", b"a"))
        assert (len(cluster.metadata_requests), len(cluster.connects)) == (requested, connects)


@pytest.mark.behaviour("L05")
def test_a_negative_interval_refreshes_only_after_failures():
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster, topic_metadata_refresh_interval_ms=-1)
    for _ in range(3):
        producer.send(KeyedMessage("t", b"a"))
        clock.advance(1e9)
    assert len(cluster.metadata_requests) == 1  # because the topic was new
    cluster.script(6)
    producer.send(KeyedMessage("t", b"a"))
    assert len(cluster.metadata_requests) == 2


@pytest.mark.behaviour("L05")
def test_an_interval_of_zero_refreshes_with_every_send():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, topic_metadata_refresh_interval_ms=0)
    for _ in range(3):
        producer.send(KeyedMessage("t", b"a"))
    assert len(cluster.metadata_requests) == 3


@pytest.mark.behaviour("L05")
def test_a_refresh_requests_the_topics_used_since_the_last_one():
    cluster = FakeCluster({"t": [1], "u": [1]})
    producer, clock = make_producer(cluster)
    producer.send(KeyedMessage("t", b"a"))
    producer.send(KeyedMessage("u", b"a"))
    clock.advance(600_000)
    producer.send(KeyedMessage("u", b"a"))
    assert cluster.metadata_requests == [{"t"}, {"u"}, {"u"}]


def test_old_metadata_is_used_if_a_refresh_fails():
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster)
    producer.send(KeyedMessage("t", b"a"))
    clock.advance(600_000)
    cluster.topic_errors["t"] = 5
    producer.send(KeyedMessage("t", b"b"))
    assert cluster.values("t") == [b"a", b"b"]


# -- partitions ------------------------------------------------------------------------------------


class _ByNumber(Partitioner):
    def partition(self, key, partition_count):
        return key


@pytest.mark.behaviour("L08")
def test_keyless_messages_keep_a_partition_until_the_next_refresh():
    cluster = FakeCluster({"t": [1] * 8})
    producer, clock = make_producer(cluster)
    chosen = []
    for _ in range(60):
        for _ in range(3):
            producer.send(KeyedMessage("t", b"a"))
        chosen.append({r.topic_data[0].partition_data[0].partition_index for _, r in cluster.produced})
        cluster.produced.clear()
        clock.advance(600_000)
    assert {len(partitions) for partitions in chosen} == {1}
    assert set.union(*chosen) == set(range(8))


@pytest.mark.behaviour("L08")
def test_keyless_messages_avoid_partitions_without_a_leader():
    cluster = FakeCluster({"t": [-1, -1, 1, -1]})
    producer, clock = make_producer(cluster)
    for _ in range(10):
        producer.send(KeyedMessage("t", b"a"))
        clock.advance(600_000)
    assert len(cluster.records("t", 2)) == 10


@pytest.mark.behaviour("L08")
def test_the_partition_key_takes_precedence_over_the_key():
    cluster = FakeCluster({"t": [1] * 5})
    with producer_of(cluster, key_serializer_class="kafka.serializer.StringEncoder") as producer:
        producer.send(
            [KeyedMessage("t", b"a", "key"), KeyedMessage("t", b"b", "key", 3), KeyedMessage("t", b"c", None, 4)]
        )
    # "key".hashCode() is 106079; 106079 % 5 is 4
    assert [(r.key, r.value) for r in cluster.records("t", 4)] == [(b"key", b"a"), (None, b"c")]
    assert [(r.key, r.value) for r in cluster.records("t", 3)] == [(b"key", b"b")]


@pytest.mark.behaviour("L08")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        # What Java prints for hashCode() of String, Integer, Long and Boolean, and for Arrays.hashCode(byte[]).
        ("", 0),
        ("hello", 99162322),
        ("größe", 98762257),
        ("😀", 1772899),
        ("polygenelubricants", -2147483648),
        (7, 7),
        (-7, -7),
        (2**31, -2147483648),
        (-(2**40), -256),
        (True, 1231),
        (False, 1237),
        (b"", 1),
        (b"hello", 127791473),
        (b"\xff\x80\x00", 24862),
    ],
)
def test_keys_are_hashed_like_java(key, value):
    assert java_hash(key) == value


def test_the_smallest_int_goes_to_partition_0():
    assert DefaultPartitioner().partition("polygenelubricants", 7) == 0
    assert DefaultPartitioner().partition(-7, 5) == 2


def test_a_key_without_a_partition_fails_no_other_message():
    cluster = FakeCluster({"t": [1, 1]})
    producer, _ = make_producer(cluster, message_send_max_retries=1)
    with pytest.raises(FailedToSendMessageError, match=r"1 of 2 .*invalid key: float has no stable hash"):
        producer.send([KeyedMessage("t", b"a", partition_key=1.5), KeyedMessage("t", b"b", b"k")])
    assert cluster.values("t") == [b"b"]
    producer, _ = make_producer(cluster, message_send_max_retries=0, partitioner_class=_ByNumber())
    with pytest.raises(
        FailedToSendMessageError, match="_ByNumber returned partition 9, but topic 't' has 2 partitions"
    ):
        producer.send(KeyedMessage("t", b"a", partition_key=9))


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("L02", "L03", "L04", "L05", "L07", "L08")
def test_the_options_of_0_8_have_their_defaults():
    assert {name: OPTIONS[name].default for name in OPTIONS} == {
        "metadata.broker.list": None,
        "request.required.acks": 0,
        "request.timeout.ms": 10000,
        "producer.type": "sync",
        "serializer.class": "kafka.serializer.DefaultEncoder",
        "key.serializer.class": None,
        "partitioner.class": "kafka.producer.DefaultPartitioner",
        "compression.codec": "none",
        "compressed.topics": (),
        "message.send.max.retries": 3,
        "retry.backoff.ms": 100,
        "topic.metadata.refresh.interval.ms": 600000,
        "queue.buffering.max.ms": 5000,
        "queue.buffering.max.messages": 10000,
        "queue.enqueue.timeout.ms": -1,
        "batch.num.messages": 200,
        "send.buffer.bytes": 102400,
        "client.id": "",
        "produce.request.version": 0,
    }


def test_the_docs_list_every_option():
    text = (Path(__file__).parents[2] / "docs" / "legacy.md").read_text(encoding="utf-8")
    for option in OPTIONS.values():
        default = f"`{option.show(option.default)}`" if option.show(option.default) else ""
        assert f"| `{option.name}` | {default} | {option.doc} |" in text


@pytest.mark.behaviour("L08")
def test_encoders_have_scala_names_and_keys_default_to_values():
    cluster = FakeCluster({"t": [1]})
    config = {"serializer.class": "kafka.serializer.StringEncoder", "serializer.encoding": "latin-1", "client.id": "me"}
    with producer_of(cluster, config=config) as producer:
        producer.send(KeyedMessage("t", "größe", "k"))
    assert [(r.key, r.value) for r in cluster.records("t", 0)] == [(b"k", "größe".encode("latin-1"))]
    assert cluster.client_ids == {"me"}


@pytest.mark.behaviour("L08")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "2"])
def test_compressed_topics_limit_the_codec(codec):
    cluster = FakeCluster({"t": [1], "u": [1]})
    with producer_of(cluster, compression_codec=codec, compressed_topics="t") as producer:
        producer.send([KeyedMessage("t", b"a" * 1000), KeyedMessage("u", b"a" * 1000)])
    assert (len(cluster.sets["t", 0][0]) < 200, len(cluster.sets["u", 0][0]) > 1000) == (True, True)
    assert cluster.values("t") == cluster.values("u") == [b"a" * 1000]
    with producer_of(cluster, compression_codec=codec) as producer:
        producer.send(KeyedMessage("u", b"a" * 1000))
    assert len(cluster.sets["u", 0][1]) < 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metadata_broker_list": None}, "metadata.broker.list is empty"),
        ({"metadata_broker_list": "nowhere"}, "metadata.broker.list: expected host:port, got 'nowhere'"),
        ({"producer_type": "both"}, "producer.type is 'both'; it may be sync, async"),
        ({"request_required_acks": 2}, "request.required.acks is 2; it may be -1 to 1"),
        ({"compression_codec": "zstd"}, "compression.codec is 'zstd'"),
        (
            {"producer_type": "async", "batch_num_messages": 20_000},
            "invalid batch.num.messages: expected at most",
        ),
        (
            {"serializer_class": "kafka.serializer.Nonsense"},
            "serializer.class 'kafka.serializer.Nonsense' cannot be imported",
        ),
        ({"produce_request_version": 3}, "produce.request.version is 3; it may be 0 to 2"),
        ({"client_id": "x" * 40_000}, "invalid client.id: expected at most 32767 bytes, got 40000"),
        ({"linger_ms": 5}, "unknown option 'linger_ms'"),
    ],
)
def test_an_invalid_option_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        producer_of(FakeCluster({}), **options)
    assert message in str(caught.value)


# -- formats ---------------------------------------------------------------------------------------

VALUES = st.none() | st.binary(max_size=40)


@pytest.mark.behaviour("L06")
@given(
    pairs=st.lists(st.tuples(st.none() | VALUES, VALUES), min_size=1, max_size=20),
    magic=st.sampled_from([0, 1]),
    codec=st.sampled_from([0, 1, 2, 3]),
    has_keys=st.booleans(),
)
def test_a_message_set_equals_that_of_the_wire_layer(pairs, magic, codec, has_keys):
    keys = [key if has_keys else None for key, _ in pairs]
    values = [value for _, value in pairs]
    data = message_sets.encode_columns(keys, values, magic=magic, codec=codec, timestamp=1234)
    time_ms = 1234 if magic else NO_TIMESTAMP
    records = [Record(i, time_ms, key, value, ()) for i, (key, value) in enumerate(zip(keys, values, strict=True))]
    assert message_sets.decode(data) == records
    if not codec:
        assert data == message_sets.encode(records, magic=magic)


@pytest.mark.behaviour("L06")
def test_the_bytes_of_a_magic_0_message():
    data = message_sets.encode_columns([b"key"], [b"value"], magic=0, codec=0, timestamp=5)
    offset, size, crc, rest = data[:8], data[8:12], data[12:16], data[16:]
    assert (offset, size) == (bytes(8), (22).to_bytes(4))
    assert crc == zlib.crc32(rest).to_bytes(4)
    assert rest == b"\x00\x00" + b"\x00\x00\x00\x03key" + b"\x00\x00\x00\x05value"


@pytest.mark.behaviour("L06", "L07")
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_the_request_version_determines_the_magic(version, magic, codec):
    cluster = FakeCluster({"t": [1]})
    producer, clock = make_producer(cluster, produce_request_version=version, compression_codec=codec)
    producer.send([KeyedMessage("t", b"a"), KeyedMessage("t", b"b")])
    assert [sent for sent, _ in cluster.produced] == [version]
    data = cluster.sets["t", 0][0]
    assert (data[16], data[17]) == (magic, CODEC_IDS[codec])
    time_ms = clock.time_ms() if magic else NO_TIMESTAMP
    assert [record.timestamp for record in cluster.records("t", 0)] == [time_ms, time_ms]


@pytest.mark.behaviour("L07")
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_acks_and_timeout_are_in_the_request(acks):
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, request_required_acks=acks, request_timeout_ms=4321)
    producer.send(KeyedMessage("t", b"a"))
    ((_, request),) = cluster.produced
    assert (request.acks, request.timeout_ms) == (acks, 4321)


@pytest.mark.behaviour("L07")
def test_acks_0_does_not_wait_for_a_response():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster, request_required_acks=0)
    cluster.script(HANG_UP)
    producer.send(KeyedMessage("t", b"a"))
    assert producer.metrics() == COUNTERS


# -- brokers that are too new or very old ----------------------------------------------------------


@pytest.mark.behaviour("L09")
@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("ranges", [{0: (0, 13), 1: (4, 18)}, {0: (3, 13)}])
def test_a_broker_without_message_sets_is_refused_before_sending(acks, ranges):
    cluster = FakeCluster({"t": [1]})
    cluster.ranges = ranges
    producer, clock = make_producer(cluster, request_required_acks=acks)
    with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0 has removed .* use headrace\.Producer"):
        producer.send(KeyedMessage("t", b"a"))
    assert cluster.produced == []
    assert clock.slept_ms == []
    assert producer.metrics() == {**COUNTERS, "FailedSends": 1}


def test_a_broker_without_api_versions_is_used():
    cluster = FakeCluster({"t": [1]})
    cluster.ranges = None
    producer, _ = make_producer(cluster)
    producer.send(KeyedMessage("t", b"a"))
    producer.send(KeyedMessage("t", b"b"))
    assert cluster.values("t") == [b"a", b"b"]
    assert len(cluster.connects) == 3  # metadata, ApiVersions, the rest


def test_an_upgraded_broker_is_checked_again():
    cluster = FakeCluster({"t": [1]})
    producer, _ = make_producer(cluster)
    producer.send(KeyedMessage("t", b"a"))
    cluster.ranges = {0: (0, 13), 1: (4, 18)}
    cluster.script(HANG_UP)
    with pytest.raises(UnsupportedVersionError):
        producer.send(KeyedMessage("t", b"b"))


def test_errors_can_be_pickled():
    for error in (QueueFullError("full", dropped_count=3), FailedToSendMessageError("failed", unsent_count=2)):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
