"""No record is lost when the application leaves a loop, fails, or is interrupted: positions follow what it has seen."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest

from headrace import (
    Consumer,
    ConsumerRecord,
    DeserializationError,
    Deserializer,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from tests.support.topics import new_topic, unique

SECONDS_MAX = 20.0
COUNT = 40
INTERRUPTS_MIN = 50
SEED = 17


@pytest.fixture
def topic(either):
    """A partition with the values 0 to 39."""
    name = new_topic(either, "interrupted")
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for i in range(COUNT):
            producer.send(name, b"%d" % i)
    return name


def open_consumer(broker, group, **options):
    return Consumer(bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest", **options)


def committed(broker, group, topic):
    with open_consumer(broker, group) as consumer:
        offsets = consumer.committed([TopicPartition(topic, 0)])
        return offsets[TopicPartition(topic, 0)].offset if offsets else 0


def next_records(consumer, count=1):
    """Poll until there are records."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (records := consumer.poll(0.5, max_records=count)):
        assert time.monotonic() < deadline, "no records"
    return records


@pytest.mark.behaviour("C08")
def test_break_leaves_the_other_records_for_later(either, topic):
    group = unique("break")
    with open_consumer(either, group) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 4:
                break
        assert consumer.position(TopicPartition(topic, 0)) == 5
        for record in consumer:  # continues
            assert record.offset == 5
            break
        assert next_records(consumer)[0].offset == 6  # also without iteration
    assert committed(either, group, topic) == 7


@pytest.mark.behaviour("C08")
def test_a_commit_in_a_loop_is_for_the_records_so_far(either, topic):
    group = unique("loop")
    with open_consumer(either, group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            if record.offset == 9:
                consumer.commit()
            if record.offset == 20:
                break
    assert committed(either, group, topic) == 10


@pytest.mark.behaviour("C08")
def test_a_seek_in_a_loop_takes_effect_with_the_next_record(either, topic):
    with open_consumer(either, unique("seek")) as consumer:
        consumer.subscribe([topic])
        offsets: list[int] = []
        for record in consumer:
            offsets.append(record.offset)
            if record.offset == 3:
                consumer.seek(TopicPartition(topic, 0), 30)
            if record.offset == 31:
                break
    assert offsets == [0, 1, 2, 3, 30, 31]


@pytest.mark.behaviour("C08")
@pytest.mark.parametrize("iterates", [True, False])
def test_records_that_were_not_processed_are_not_committed_at_close(either, topic, iterates):
    group = unique("failed")

    def work():
        with open_consumer(either, group) as consumer:
            consumer.subscribe([topic])
            if iterates:
                for record in consumer:
                    if record.offset == 10:
                        raise ZeroDivisionError
            next_records(consumer, 10)
            next_records(consumer, 10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(either, group, topic) == 10


class StopsAt(Deserializer):
    """Raises an error once, at a value."""

    def __init__(self, value, error):
        self.value = value
        self.error = error

    def deserialize(self, topic, data, headers):
        if data == self.value and self.error is not None:
            error, self.error = self.error, None
            raise error
        return int(data)


@pytest.mark.behaviour("C08")
def test_ctrl_c_in_poll_skips_no_record(either, topic):
    group, deserializer = unique("ctrl-c"), StopsAt(b"13", KeyboardInterrupt())

    def work():
        with open_consumer(either, group, value_deserializer=deserializer) as consumer:
            consumer.subscribe([topic])
            next_records(consumer, 5)
            next_records(consumer, 10)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert committed(either, group, topic) == 5
    deserializer.error = KeyboardInterrupt()
    with open_consumer(either, unique("ctrl-c"), value_deserializer=deserializer) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KeyboardInterrupt):
            next_records(consumer, COUNT)
        assert [record.value for record in next_records(consumer, COUNT)] == list(range(COUNT))


@pytest.mark.behaviour("C08")
def test_ctrl_c_at_any_point_loses_no_record(either, topic):
    chance, stopping = random.Random(SEED), threading.Event()
    interrupts = 0
    main = threading.main_thread().ident
    assert main is not None

    def interrupt():
        while not stopping.wait(chance.uniform(0.0005, 0.01)):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    deadline = time.monotonic() + SECONDS_MAX
    with open_consumer(either, unique("ctrl-c"), max_poll_records=1) as consumer:
        consumer.subscribe([topic])
        next_records(consumer, 1)
        thread.start()
        try:
            while interrupts < INTERRUPTS_MIN:
                seen: list[int] = []
                uninterrupted(consumer.seek_to_beginning)
                while COUNT - 1 not in seen:
                    assert time.monotonic() < deadline, seen
                    try:
                        records = consumer.poll(0.5)
                        seen += [record.offset for record in records]
                    except KeyboardInterrupt:
                        interrupts += 1
                        uninterrupted(consumer.undo_poll)
                # A record may come again, but none before all earlier ones.
                gaps = [offset for i, offset in enumerate(seen) if offset > max(seen[:i], default=-1) + 1]
                assert gaps == [], seen
        finally:
            stopping.set()
            uninterrupted(lambda: thread.join(SECONDS_MAX))


def uninterrupted(call):
    """Call again after every interrupt."""
    while True:
        try:
            return call()
        except KeyboardInterrupt:
            continue


@pytest.mark.behaviour("C08")
def test_a_deserializer_that_fails_keeps_the_position(either, topic):
    deserializer = StopsAt(b"7", ValueError("seven"))
    with open_consumer(either, unique("deserializer"), value_deserializer=deserializer) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in next_records(consumer, COUNT)] == list(range(7))
        assert consumer.position(TopicPartition(topic, 0)) == 7
        assert [record.value for record in next_records(consumer, COUNT)] == list(range(7, COUNT))


@pytest.mark.behaviour("C08")
def test_iteration_raises_the_error_of_a_record_after_those_before_it(either, topic):
    deserializer = StopsAt(b"7", ValueError("seven"))
    seen: list[int] = []
    with open_consumer(either, unique("deserializer"), value_deserializer=deserializer) as consumer:
        consumer.subscribe([topic])
        deserializer.error = ValueError("seven")
        records = iter(consumer)
        while len(seen) < 7:
            seen.append(next(records).value)
        deserializer.error = ValueError("seven")
        with pytest.raises(DeserializationError, match="offset 7"):
            next(records)
        assert next(iter(consumer)).value == 7


class FailsOnce(RebalanceListener):
    """Raises an error in the first call of a method."""

    def __init__(self, method):
        self.method = method
        self.calls = []

    def _call(self, method):
        self.calls.append(method)
        if method == self.method:
            self.method = ""
            raise ZeroDivisionError(method)

    def on_assigned(self, partitions):
        self._call("assigned")

    def on_revoked(self, partitions):
        self._call("revoked")


@pytest.mark.behaviour("C08")
def test_a_listener_that_fails_leaves_poll_and_no_record_is_lost(either, topic):
    group, listener = unique("listener"), FailsOnce("assigned")
    with open_consumer(either, group, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe([topic], listener=listener)
        with pytest.raises(ZeroDivisionError, match="assigned"):
            next_records(consumer)
        assert [record.offset for record in next_records(consumer, 10)] == list(range(10))
        listener.method = "revoked"
        with open_consumer(either, group, heartbeat_interval_ms=200) as other:
            other.subscribe([topic])
            deadline = time.monotonic() + SECONDS_MAX
            seen: list[ConsumerRecord] = []
            error: Exception | None = None
            while error is None or not (seen or other.assignment() or consumer.assignment()):
                assert time.monotonic() < deadline, listener.calls
                try:
                    seen += consumer.poll(0.1, max_records=1)
                except ZeroDivisionError as raised:
                    error = raised
                seen += other.poll(0.1, max_records=1)
    assert str(error) == "revoked"
    assert committed(either, group, topic) >= 10
