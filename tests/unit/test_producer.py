"""The producer as a whole, on a broker of a few lines: construction, the short life of a record, the end."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest

from headrace import (
    BrokerError,
    BufferExhaustedError,
    ClosedError,
    ConfigError,
    HeadraceError,
    MetricName,
    MetricsReporter,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordTooLargeError,
    SerializationError,
    Serializer,
    TimedOutError,
)
from tests.support.small_broker import SmallBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_kernels

SECONDS = 10
NOWHERE = "127.0.0.1:1"
HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


@pytest.fixture
def broker():
    with SmallBroker() as broker:
        yield broker


def make(broker, **options):
    short = {"request.timeout.ms": 3000, "delivery.timeout.ms": 4000}
    return Producer(short, bootstrap_servers=broker.address, enable_idempotence=False, **options)


def io_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace-")]


def run_script(code, *args):
    """What a program prints to standard output and error; it has to end by itself."""
    return subprocess.run(
        [sys.executable, "-W", "default", "-c", code, *args], capture_output=True, text=True, timeout=30, check=True
    )


class Heard(ProducerInterceptor):
    """Writes down what it hears."""

    def __init__(self):
        self.acknowledged = []
        self.refused = []

    def on_acknowledgement(self, metadata, error):
        self.acknowledged.append((metadata.topic, metadata.partition, metadata.offset, error))

    def on_send_error(self, record, partition, error):
        self.refused.append((record.topic, partition, str(error)))


# -- construction ------------------------------------------------------------------------------


@pytest.mark.behaviour("P05")
def test_the_constructor_needs_no_broker_and_the_first_send_names_the_missing_one():
    started = time.monotonic()
    with Producer(bootstrap_servers=NOWHERE, max_block_ms=300) as producer:
        assert time.monotonic() - started < 2
        with pytest.raises(TimedOutError, match=r"topic 't' is not in the metadata after 3\d\d ms .*127\.0\.0\.1:1"):
            producer.send("t", b"v").result(0)


@pytest.mark.behaviour("P05")
@pytest.mark.parametrize(
    "use",
    [
        lambda producer: producer.send("t", b"v"),
        lambda producer: producer.send_arrow("t", pa.table({"value": [b"v"]})),
        lambda producer: producer.partitions_for("t"),
        lambda producer: producer.init_transactions(),
    ],
    ids=["send", "send_arrow", "partitions_for", "init_transactions"],
)
def test_the_first_connection_comes_with_the_first_use(request, use):
    is_transactional = "init_transactions" in request.node.name
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        transactional_id = "t" if is_transactional else None
        with Producer(bootstrap_servers=address, max_block_ms=10_000, transactional_id=transactional_id) as producer:
            listening.settimeout(0.2)
            with pytest.raises(TimeoutError):
                listening.accept()

            def run():
                with contextlib.suppress(HeadraceError):  # nothing responds here
                    use(producer)

            using = threading.Thread(target=run, daemon=True)
            using.start()
            listening.settimeout(SECONDS)
            listening.accept()[0].close()
            producer.close(0)
            using.join(SECONDS)
            assert not using.is_alive()


@pytest.mark.behaviour("P04")
def test_a_constructor_that_fails_closes_what_it_opened():
    closed = []

    class Plugin(Serializer):
        def serialize(self, topic, value, headers):
            return b""

        def close(self):
            closed.append("serializer")

    class Reporter(MetricsReporter):
        def metric_removal(self, metric):
            closed.append("metrics")

        def close(self):
            closed.append("reporter")

    before, descriptors = io_threads(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"partitioner.class: .*Broken could not be configured: no"):
        Producer(
            bootstrap_servers=NOWHERE,
            value_serializer=Plugin(),
            metric_reporters=[Reporter()],
            partitioner_class=Broken,
        )
    with pytest.raises(ConfigError, match=r"ssl.truststore.location"):
        Producer(
            bootstrap_servers=NOWHERE,
            value_serializer=Plugin(),
            metric_reporters=[Reporter()],
            security_protocol="SSL",
            ssl_truststore_location="/not/there.pem",
        )
    assert io_threads() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert closed.count("serializer") == 2
    assert closed[-2:] == ["reporter", "serializer"]


@pytest.mark.behaviour("P04")
def test_a_constructor_that_cannot_start_its_thread_leaves_no_socket(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    descriptors = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            Producer(bootstrap_servers=NOWHERE)
    assert len(os.listdir("/proc/self/fd")) == descriptors


class Broken:
    def configure(self, config):
        raise ValueError("no")

    def partition(self, *_):
        return 0


@pytest.mark.behaviour("P02")
def test_an_unknown_option_is_warned_of_with_the_most_similar_name(caplog):
    class Reads(Serializer):
        def configure(self, config, is_key):
            assert config["mine.too"] == "x"

    given = {"bootstrap.servers": NOWHERE, "client.id": "c", "linger": 5, "batch.sise": 1, "mine.too": "x"}
    with Producer(given, key_serializer=Reads):
        pass
    assert [record.getMessage() for record in caplog.records if "unknown option" in record.getMessage()] == [
        "[producer client_id=c] unknown option 'batch.sise' has no effect; did you mean 'batch.size'?",
        "[producer client_id=c] unknown option 'linger' has no effect; did you mean 'linger.ms'?",
    ]


@pytest.mark.behaviour("P03")
def test_client_ids_are_made_up_and_stand_in_every_log_line(broker, caplog):
    """Every part that logs is made to: options, plug-ins, interceptors, reporters, callbacks, network, the end."""
    caplog.set_level(logging.DEBUG, "headrace")

    class Failing(ProducerInterceptor, MetricsReporter):
        def on_send(self, record):
            raise ValueError("mine")

        def on_acknowledgement(self, metadata, error):
            raise ValueError("mine")

        def on_update(self, cluster):
            raise ValueError("mine")

        def metric_change(self, metric):
            raise ValueError("mine")

        def close(self):
            raise ValueError("mine")

    def failing(metadata, error):
        raise ValueError("mine")

    failing_plugin = Failing()
    options = {
        "linger.ms": 0,
        "request.timeout.ms": 130_000,  # raises delivery.timeout.ms
        "retry.backoff.ms": 2000,
        "acks": "1",  # turns idempotence off
        "nonsense": 1,
        "metrics.recording.level": "DEBUG",
        "interceptor.classes": failing_plugin,
        "metric.reporters": [failing_plugin, "view"],
        "view.url": f"http://{NOWHERE}",
    }
    with Producer(options, bootstrap_servers=[NOWHERE, broker.address]) as one:
        assert one.settings.client_id.startswith("producer-")
        one.send("t", b"v", on_delivery=failing).result(SECONDS)
        one.send_record(ProducerRecord("t", b"x" * 2_000_000), on_delivery=failing)
        eventually("the view", lambda: "live view" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("headrace")]
    prefix = f"[producer client_id={one.settings.client_id}] "
    assert [line for line in lines if not line.startswith(prefix)] == []
    for part in (
        "delivery.timeout.ms is raised",
        "retry.backoff.ms is",
        "idempotence is off",
        "unknown option 'nonsense'",
        "metrics.recording.level has no effect",
        "on_send failed",
        "on_acknowledgement failed",
        "on_send_error failed",
        "cluster listener failed",
        "metrics reporter failed",
        "could not be closed",
        "delivery callback for t-0 failed",
        "delivery callback for topic t failed",
        "connected to node",
        "the live view",
    ):
        assert any(part in line for line in lines), part
    caplog.clear()
    with Producer(bootstrap_servers=NOWHERE, transactional_id="t1", max_block_ms=200) as two:
        assert two.settings.client_id == "producer-t1"
        assert repr(two) == "Producer(client_id='producer-t1', bootstrap_servers='127.0.0.1:1')"
        with pytest.raises(TimedOutError):
            two.init_transactions()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("headrace")]
    assert lines
    assert all(line.startswith("[producer client_id=producer-t1 transactional_id=t1] ") for line in lines)


@pytest.mark.behaviour("P02")
def test_options_that_change_nothing_are_warned_of_unless_they_are_off(broker, caplog, monkeypatch):
    monkeypatch.setattr("headrace.producer.settings._warned_no_effect", set())
    with Producer(bootstrap_servers=NOWHERE, enable_metrics_push=False):
        pass
    assert "no effect" not in caplog.text
    with Producer(bootstrap_servers=NOWHERE, enable_metrics_push=True, metrics_recording_level="TRACE"):
        pass
    assert "option enable.metrics.push has no effect: metrics are not sent to brokers" in caplog.text
    assert "option metrics.recording.level has no effect: all metrics have the level INFO" in caplog.text


@pytest.mark.behaviour("P06")
def test_reporters_and_listeners_are_plug_ins(broker):
    seen = []

    class Listener(Serializer):
        def serialize(self, topic, value, headers):
            return value

        def on_update(self, cluster):
            seen.append(dict(cluster.topics))

    with make(broker, value_serializer=Listener(), metric_reporters="log") as producer:
        assert [thread.name for thread in io_threads() if "metrics" in thread.name] == ["headrace-metrics-log"]
        producer.send("t", b"v").result(SECONDS)
    assert any("t" in topics for topics in seen)
    assert not [thread.name for thread in io_threads() if "metrics" in thread.name]


# -- sending -----------------------------------------------------------------------------------


def test_records_arrive_by_the_short_way_and_by_the_long_one(broker):
    with make(broker) as producer:
        producer.send("t", b"1")
        producer.send("t", b"2", b"k", headers=[("a", b"x")], timestamp_ms=5)
        producer.send_record(ProducerRecord("t", b"3"))
        producer.send("t", bytearray(b"4"), partition=0)
        delivery = producer.send_arrow("t", pa.table({"value": [b"5", None]}))
        producer.flush(SECONDS)
        assert delivery.done()
        assert delivery.result(0) == {0: [(4, 5)]}
    assert broker.values("t") == [b"1", b"2", b"3", b"4", b"5", None]
    assert broker.records["t"][1][1:] == (5, b"k", b"2", (("a", b"x"),))


@pytest.mark.behaviour("P13")
def test_interceptors_get_every_failure_with_the_partition_if_known(broker):
    heard = Heard()

    class Refuses(Serializer):
        def serialize(self, topic, value, headers):
            raise ZeroDivisionError("mine")

    with make(broker, interceptor_classes=heard, key_serializer=Refuses()) as producer:
        with pytest.raises(ZeroDivisionError):
            producer.send("t", b"v", b"k")
        with pytest.raises(ZeroDivisionError):
            producer.send("t", b"v", b"k", partition=0)
    refused = pytest.raises(ValueError, match=r"<lambda> chose partition 5 of 't', which has 0 to 0")
    with make(broker, interceptor_classes=heard, partitioner_class=lambda *_: 5) as producer, refused:
        producer.send("t", b"v")
    with make(broker, interceptor_classes=heard, partitioner_class=lambda *_: 0, max_request_size=1000) as producer:
        with pytest.raises(Exception, match=r"max.request.size"):
            producer.send("t", b"v" * 2000).result(0)
        broker.error_code = 29  # TOPIC_AUTHORIZATION_FAILED
        future = producer.send("t", b"v")
        assert isinstance(future.exception(SECONDS), BrokerError)
    with pytest.raises(ClosedError):
        producer.send("t", b"v")
    assert [(topic, partition) for topic, partition, _ in heard.refused] == [
        ("t", None),
        ("t", 0),
        ("t", None),
        ("t", 0),
        ("t", None),
    ]
    ((topic, partition, offset, error),) = heard.acknowledged
    assert (topic, partition, offset) == ("t", 0, None)
    assert isinstance(error, BrokerError)


@pytest.mark.behaviour("P13")
def test_a_failed_batch_of_the_built_in_partitioner_has_its_partition(broker):
    heard, outcomes = Heard(), []
    with make(broker, interceptor_classes=[heard]) as producer:
        producer.send("t", b"known").result(SECONDS)
        broker.error_code = 87
        producer.send("t", b"v", on_delivery=lambda *args: outcomes.append(args)).exception(SECONDS)
    assert heard.acknowledged[1][:3] == ("t", 0, None)
    ((metadata, error),) = outcomes
    assert metadata is None
    assert "INVALID_RECORD" in str(error)


# Errors that Kafka's producer sets in the future: options, what is sent, the error.
REFUSALS = [
    ({"max_request_size": 1000}, {"value": b"x" * 2000}, RecordTooLargeError),
    ({"buffer_memory": 20_000, "max_request_size": 100_000}, {"value": b"x" * 30_000}, RecordTooLargeError),
    ({"max_block_ms": 100}, {"value": b"v", "partition": 7}, TimedOutError),
]


@pytest.mark.behaviour("P37", "P50")
@pytest.mark.parametrize(("options", "given", "kind"), REFUSALS)
@pytest.mark.parametrize("plugins", [{}, {"interceptor_classes": ProducerInterceptor()}], ids=["short", "intercepted"])
def test_a_refused_record_fails_its_future_and_calls_its_callback(broker, options, given, kind, plugins):
    outcomes = []
    with make(broker, **options, **plugins) as producer:
        future = producer.send("t", **given, on_delivery=lambda *outcome: outcomes.append(outcome))
        assert future.done()
        with pytest.raises(kind):
            future.result(0)
        assert isinstance(future.exception(0), kind)
        ((metadata, error),) = outcomes
        assert metadata is None
        assert error is future.exception(0)
        later: list = []
        future.add_done_callback(later.append)
        assert later == [future]
        assert producer.send("t", b"fits").result(SECONDS).offset == 0
        tags = (("client-id", producer.settings.client_id),)
        assert producer.metrics()[MetricName("record-error-total", "producer-metrics", tags)] == 1
    assert broker.values("t") == [b"fits"]


@pytest.mark.behaviour("P50")
def test_an_exhausted_buffer_fails_the_future_and_calls_the_callback(broker):
    outcomes = []
    with make(broker, buffer_memory=16_384, max_block_ms=100, linger_ms=0) as producer:
        producer.send("t", b"0").result(SECONDS)
        broker.responding.clear()
        producer.send("t", bytes(16_000))
        future = producer.send("t", bytes(16_000), on_delivery=lambda _, error: outcomes.append(error))
        assert future.done()
        assert isinstance(future.exception(0), BufferExhaustedError)
        assert outcomes == [future.exception(0)]
        broker.responding.set()


@pytest.mark.behaviour("P50")
def test_refused_rows_fail_their_delivery_and_those_before_them_are_sent(broker):
    with make(broker, max_request_size=10_000) as producer:
        delivery = producer.send_arrow("t", pa.table({"value": [b"x" * 20_000]}))
        assert delivery.done()
        assert isinstance(delivery.refusal, RecordTooLargeError)
        with pytest.raises(RecordTooLargeError, match="row 0 has 20000 bytes"):
            delivery.result(0)
        # By its headers: seen only when the slice is encoded.
        headers = [[], [{"key": "h", "value": b"x" * 20_000}]]
        table = pa.Table.from_batches(
            [pa.record_batch({"value": [b"v%d" % n], "headers": pa.array([h], HEADERS)}) for n, h in enumerate(headers)]
        )
        delivery = producer.send_arrow("t", table)
        assert delivery.queued_rows == 1
        with pytest.raises(RecordTooLargeError, match="with its headers"):
            delivery.result(SECONDS)
        producer.flush(SECONDS)
        assert producer._engine.pool.available_bytes == producer._engine.pool.total_bytes
    assert broker.values("t") == [b"v0"]


@pytest.mark.behaviour("P50")
def test_errors_that_are_not_api_errors_are_raised_without_a_callback(broker):
    outcomes = []
    with make(broker, value_serializer="str") as producer:
        with pytest.raises(SerializationError):
            producer.send("t", b"bytes", on_delivery=lambda *outcome: outcomes.append(outcome))
        with pytest.raises(ValueError, match="partition"):
            producer.send("t", "v", partition=-1, on_delivery=lambda *outcome: outcomes.append(outcome))
    with pytest.raises(ClosedError):
        producer.send("t", "v", on_delivery=lambda *outcome: outcomes.append(outcome))
    assert outcomes == []


@pytest.mark.behaviour("P50", "P51")
def test_a_failing_callback_of_a_refused_record_is_logged_ctrl_c_is_raised(broker, caplog):
    def fails(_, error):
        raise ValueError("of the callback")

    def interrupted(_, error):
        raise KeyboardInterrupt

    with make(broker, max_request_size=1000) as producer:
        assert producer.send("t", b"x" * 2000, on_delivery=fails).done()
        assert "of the callback" in caplog.text
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"x" * 2000, on_delivery=interrupted)
        producer.send("t", b"v").result(SECONDS)


@pytest.mark.behaviour("P29")
def test_a_producer_has_one_thread_that_sends_and_calls_back(broker):
    before = set(threading.enumerate())
    called: list[threading.Thread] = []
    with make(broker) as producer:
        for topic in ("t", "u"):
            for _ in range(3):
                producer.send(topic, b"v", on_delivery=lambda *_: called.append(threading.current_thread())).result(
                    SECONDS
                )
        ours = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("headrace-")}
        producer.flush(SECONDS)
    assert len(ours) == 1
    assert len(called) == 6
    assert set(called) == ours


@pytest.mark.behaviour("P29")
def test_a_send_is_not_kept_waiting_by_an_idle_io_thread(broker):
    """It sleeps for a minute if nobody wakes it."""
    with make(broker) as producer:
        producer.send("t", b"0").result(SECONDS)
        started = time.monotonic()
        for number in range(20):
            producer.send("t", b"%d" % number).result(SECONDS)
        assert time.monotonic() - started < SECONDS


@pytest.mark.behaviour("P50")
def test_errors_of_callbacks_and_interceptors_are_counted_in_metrics(broker):
    class Failing(ProducerInterceptor):
        def on_send(self, record):
            raise ValueError("mine")

    def failing(metadata, error):
        raise ValueError("mine")

    def counted(producer):
        values = {name.name: value for name, value in producer.metrics().items() if name.group == "producer-metrics"}
        return values["callback-error-total"], values["interceptor-error-total"]

    with make(broker, max_request_size=1000, interceptor_classes=Failing()) as producer:
        producer.send("t", b"v").result(SECONDS)
        assert counted(producer) == (0, 1)
        producer.send("t", b"v", on_delivery=failing)
        producer.send("t", b"x" * 2000, on_delivery=failing)  # refused: its callback runs at once
        producer.flush(SECONDS)
        eventually("both callbacks", lambda: counted(producer) == (2, 3))


@pytest.mark.behaviour("P08")
def test_the_wait_for_metadata_leaves_less_time_to_wait_for_memory(broker, monkeypatch):
    with make(broker, max_block_ms=10_000, retry_backoff_ms=20, retry_backoff_max_ms=20) as producer:
        broker.knows_topics.clear()
        threading.Timer(0.3, broker.knows_topics.set).start()
        allowed = []
        allocate = producer._engine.pool.allocate

        def noting(size, max_block_ms, claim):
            allowed.append(max_block_ms)
            return allocate(size, max_block_ms, claim)

        monkeypatch.setattr(producer._engine.pool, "allocate", noting)
        producer.send("t", b"v").result(SECONDS)
        (left_ms,) = allowed
        assert left_ms <= 10_000 - 300


@pytest.mark.behaviour("P41")
def test_no_more_requests_are_in_flight_than_allowed(broker):
    with make(broker, max_in_flight_requests_per_connection=2, batch_size=0, linger_ms=0) as producer:
        producer.send("t", b"0").result(SECONDS)
        broker.responding.clear()
        for number in range(10):
            producer.send("t", b"%d" % number)
        with pytest.raises(TimedOutError):
            producer.flush(0.3)
        tags = (("client-id", producer.settings.client_id),)
        assert producer.metrics()[MetricName("requests-in-flight", "producer-metrics", tags)] == 2
        broker.responding.set()


@pytest.mark.behaviour("P01")
@pytest.mark.parametrize("way", ["mapping", "file"])
def test_a_serializer_object_wins_over_the_configured_class(broker, tmp_path, way):
    file = tmp_path / "producer.properties"
    file.write_text("value.serializer=org.apache.kafka.common.serialization.StringSerializer\n")
    config = {"value.serializer": "str"} if way == "mapping" else file

    def shouting(value):
        return value.upper().encode()

    address = broker.address
    with Producer(config, value_serializer=shouting, bootstrap_servers=address, enable_idempotence=False) as producer:
        producer.send("t", "text").result(SECONDS)
    assert broker.values("t") == [b"TEXT"]


def test_invalid_arguments_are_refused_before_anything_happens(broker):
    with make(broker) as producer:
        for wrong in ({"partition": -1}, {"headers": [("a", "text")]}, {"headers": {1: b""}}):
            with pytest.raises(ValueError, match=r"expected"):
                producer.send("t", b"v", **wrong)
        with pytest.raises(KeyError, match="no column 'value' for the value; the columns are a, b"):
            producer.send_arrow("t", pa.table({"a": [1], "b": [2]}))
        with pytest.raises(TypeError, match="send_arrow expected a pyarrow Table or RecordBatch, got list"):
            producer.send_arrow("t", [1])
        with pytest.raises(ValueError, match=r"column 'partition': expected 0 or more, or null, got -2"):
            producer.send_arrow("t", pa.table({"value": [b"v"], "partition": [-2]}))
        with pytest.raises(TypeError, match="column value has type int64; expected binary or string"):
            producer.send_arrow("t", pa.table({"value": [1]}))
        assert producer.settings.buffer_memory == producer._engine.pool.available_bytes
    assert broker.values("t") == []


# -- the end -----------------------------------------------------------------------------------


def test_a_closed_producer_raises_and_has_no_thread(broker):
    producer = make(broker)
    producer.send("t", b"v")
    producer.close()
    assert broker.values("t") == [b"v"]
    assert not [thread for thread in io_threads() if thread.name == f"headrace-{producer.settings.client_id}"]
    calls = (
        lambda: producer.send("t", b"v"),
        lambda: producer.send_record(ProducerRecord("t")),
        lambda: producer.send_arrow("t", pa.table({"value": [b"v"]})),
        lambda: producer.partitions_for("t"),
        producer.flush,
        producer.init_transactions,
    )
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    producer.close()
    assert producer.metrics() == {}


def test_close_without_time_fails_pending_records_at_once(broker):
    producer = make(broker)
    producer.send("t", b"first").result(SECONDS)
    broker.responding.clear()
    futures = [producer.send("t", b"v" * 1000) for _ in range(100)]
    started = time.monotonic()
    producer.close(timeout=0)
    assert time.monotonic() - started < 2
    assert all(isinstance(future.exception(0), ClosedError) for future in futures)


def test_close_in_a_callback_calls_interceptors_before_closing_them(broker):
    class Last(Heard):
        closed_after = None

        def close(self):
            self.closed_after = len(self.acknowledged)

    heard = Last()
    producer = make(broker, interceptor_classes=[heard], batch_size=0, max_in_flight_requests_per_connection=1)
    producer.send("t", b"first", on_delivery=lambda *_: producer.close())
    broker.responding.clear()
    for _ in range(5):
        producer.send("t", b"later")
    broker.responding.set()
    eventually("the end", lambda: heard.closed_after is not None)
    assert heard.closed_after == 6
    assert any(isinstance(error, ClosedError) for *_, error in heard.acknowledged)


def test_a_child_of_fork_gets_a_clear_error_and_the_parent_goes_on(broker):
    code = """
import os, sys
from headrace import IllegalStateError, Producer
producer = Producer(bootstrap_servers=sys.argv[1], enable_idempotence=False, linger_ms=1000)
parent = producer.send("t", b"parent")
producer.flush()
parent.result(10)
left = producer.send("t", b"not yet sent")
if os.fork() == 0:
    for call in (lambda: producer.send("t", b"child"), producer.flush):
        try:
            call()
        except IllegalStateError as error:
            print("child:", error, flush=True)
    producer.close()
    mine = Producer(bootstrap_servers=sys.argv[1], enable_idempotence=False)
    print("child sent", mine.send("t", b"child's own").result(10).topic, flush=True)
    mine.close()
    sys.exit()
assert os.wait()[1] == 0
producer.flush()
print("parent:", left.result(10).topic)
producer.close()
"""
    done = run_script(code, broker.address)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("child:")] == 2 * [
        "child: this producer was created before fork(): its I/O thread is in the parent. Create one in the child"
    ]
    assert "child sent t" in lines
    assert "parent: t" in lines
    assert "not delivered" not in done.stderr
    assert sorted(filter(None, broker.values("t"))) == [b"child's own", b"not yet sent", b"parent"]


def test_records_left_at_the_end_of_the_process_are_warned_of(broker):
    code = """
import sys
from headrace import Producer
producer = Producer(bootstrap_servers=sys.argv[1], enable_idempotence=False, linger_ms=60000)
for _ in range(3):
    producer.send("t", b"lost")
"""
    done = run_script(code, broker.address)
    assert "3 records" in done.stderr
    assert "were not delivered when the process ended: call flush() or close()" in done.stderr
    assert broker.values("t") == []


def test_a_thread_that_waits_for_memory_is_released_by_close(broker):
    producer = make(broker, buffer_memory=40_000, batch_size=10_000)
    producer.send("t", b"first").result(SECONDS)
    broker.responding.clear()
    errors = []

    def fill():
        try:
            while True:
                producer.send("t", b"x" * 9_000)
        except ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    eventually("a thread that waits", lambda: producer._engine.pool.waiting_threads)
    assert producer.metrics()
    producer.close(timeout=0.1)
    thread.join(SECONDS)
    assert len(errors) == 1
