"""Invalid use of a consumer: named errors, with a remedy, and nothing left behind."""

from __future__ import annotations

import os
import threading
import time
from typing import cast

import pytest

from headrace import (
    ClosedError,
    CommitFailedError,
    ConfigError,
    Consumer,
    ConsumerRecord,
    Deserializer,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidTopicError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    Producer,
    ShareConsumer,
    TimedOutError,
    TopicPartition,
)
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 20.0
ZERO = TopicPartition("never-used", 0)


def open_consumer(broker, **options):
    return Consumer(bootstrap_servers=broker.bootstrap, **{"auto_offset_reset": "earliest", **options})


def poll_until(consumer, condition):
    eventually("the condition", lambda: consumer.poll(0.1) is not None and condition(), SECONDS_MAX)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_protocol": "share"}, "group.protocol is 'share'; it may be classic, consumer"),
        ({"value_deserializer": 42}, "value.deserializer"),
        ({"value_deserializer": "no.such.module.Class"}, "no.such.module"),
        ({"key_deserializer": object()}, "key.deserializer"),
        ({"auto_offset_reset": "sometimes"}, "auto.offset.reset is 'sometimes'; it may be earliest, latest"),
        ({"partition_assignment_strategy": "fair"}, "fair"),
        ({"isolation_level": "serializable"}, "isolation.level"),
        ({"group_id": ""}, "group.id"),
        ({"max_poll_records": 0}, "max.poll.records"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"bootstrap_servers": "nowhere"}, "nowhere"),
    ],
)
@pytest.mark.behaviour("C10")
def test_invalid_options_are_refused_before_anything_is_opened(options, message):
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=message):
        Consumer(**{"bootstrap_servers": "localhost:1", "group_id": "g", **options})
    assert threading.active_count() == threads


@pytest.mark.behaviour("C10")
def test_invalid_arguments_are_refused(either):
    with open_consumer(either, group_id=unique("arguments")) as consumer:
        with pytest.raises(ValueError, match="either topics or a pattern"):
            consumer.subscribe()
        with pytest.raises(ValueError, match="got no topics"):
            consumer.subscribe([])
        with pytest.raises(ValueError, match="invalid pattern"):
            consumer.subscribe(pattern="(")
        with pytest.raises(IllegalStateError, match="has no partitions"):
            consumer.poll(0.1)
        consumer.assign([ZERO])
        with pytest.raises(ValueError, match="invalid offset: expected 0 or more, got -1"):
            consumer.seek(ZERO, -1)
        with pytest.raises(IllegalStateError, match="other-0 is not assigned"):
            consumer.seek(TopicPartition("other", 0), 1)
        with pytest.raises(ValueError, match="invalid timestamp_ms"):
            consumer.seek_to_time(-5)
        with pytest.raises(ValueError, match="invalid max_records"):
            consumer.poll(0, max_records=0)


TP = TopicPartition("t", 0)


@pytest.mark.behaviour("C10")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda consumer: consumer.subscribe(5), "invalid topics: expected a list of names, got 5"),
        (lambda consumer: consumer.subscribe(b"t"), "invalid topics"),
        (lambda consumer: consumer.subscribe([5]), "invalid topic: expected its name as a string, got 5"),
        (lambda consumer: consumer.subscribe("t", listener=print), r"has no on_assigned\(\)"),
        (lambda consumer: consumer.assign("t"), "expected a list of TopicPartition"),
        (lambda consumer: consumer.assign(TP), "expected a list of TopicPartition"),
        (lambda consumer: consumer.assign([("t", "0")]), r"expected TopicPartition\(topic, number\), got \('t', '0'\)"),
        (lambda consumer: consumer.assign([("t", -1)]), "expected a number of 0 or more"),
        (lambda consumer: consumer.assign({TP: "3"}), "invalid offset: expected an integer, got '3'"),
        (lambda consumer: consumer.poll("1"), "invalid timeout: expected seconds, got '1'"),
        (lambda consumer: consumer.poll(None), "invalid timeout"),
        (lambda consumer: consumer.poll(float("nan")), "invalid timeout"),
        (lambda consumer: consumer.poll(1, max_records="a"), "invalid max_records"),
        (lambda consumer: consumer.poll_arrow("1"), "invalid timeout"),
        (lambda consumer: consumer.seek(TP, 3.5), "invalid offset: expected an integer, got 3.5"),
        (lambda consumer: consumer.seek("t-0", 3), "invalid partition: expected TopicPartition"),
        (lambda consumer: consumer.seek_to_time("x"), "invalid timestamp_ms"),
        (lambda consumer: consumer.pause("t"), "expected a list of TopicPartition"),
        (lambda consumer: consumer.commit("x"), "expected a mapping"),
        (lambda consumer: consumer.commit({TP: "x"}), "invalid offset"),
        (lambda consumer: consumer.commit({TP: -5}), "invalid offset: expected 0 or more, got -5"),
        (lambda consumer: consumer.commit({TP: OffsetAndMetadata(1, cast(str, b""))}), "invalid metadata"),
        (lambda consumer: consumer.commit_async({TP: 1}, 5), "invalid on_commit"),
        (lambda consumer: consumer.committed(TP), "expected a list of TopicPartition"),
        (lambda consumer: consumer.end_offsets("t"), "expected a list of TopicPartition"),
        (lambda consumer: consumer.offsets_for_times({TP: "x"}), "invalid time"),
        (lambda consumer: consumer.partitions_for(5), "invalid topic"),
    ],
)
def test_values_of_wrong_types_are_refused_at_once(silent_consumer, call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(silent_consumer)


@pytest.fixture(scope="module")
def silent_consumer():
    """A consumer without a broker: what it refuses must not depend on one."""
    with Consumer(bootstrap_servers="localhost:1", group_id="g", default_api_timeout_ms=100) as consumer:
        yield consumer


@pytest.mark.behaviour("C10")
def test_a_poll_after_one_with_an_invalid_argument_reads_on(either):
    topic = new_topic(either, "arguments")
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        producer.send(topic, b"a record").result(SECONDS_MAX)
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(TypeError, match="invalid timeout"):
            consumer.poll("soon")
        assert [record.value for record in consumer.poll(float("inf"))] == [b"a record"]


@pytest.mark.behaviour("C10")
def test_an_invalid_topic_name_is_a_named_error(either):
    with open_consumer(either, group_id=unique("invalid-topic")) as consumer:
        consumer.subscribe(["not a topic"])
        with pytest.raises(InvalidTopicError, match="not a topic"):
            poll_until(consumer, lambda: False)


@pytest.mark.behaviour("C10")
def test_a_subscribed_topic_may_be_created_later(either):
    topic = unique("later")
    with open_consumer(
        either, group_id=unique("later"), allow_auto_create_topics=False, metadata_max_age_ms=300
    ) as consumer:
        consumer.subscribe([topic])
        for _ in range(3):
            assert consumer.poll(0.2) == []
        either.create_topic(topic, 2)
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)


@pytest.mark.behaviour("C10")
def test_a_deleted_topic_leaves_the_others_readable(either):
    doomed, kept = new_topic(either, "doomed"), new_topic(either, "kept")
    with (
        open_consumer(
            either,
            group_id=unique("deleted"),
            allow_auto_create_topics=False,
            metadata_max_age_ms=300,
            heartbeat_interval_ms=200,
        ) as consumer,
        AdminClient(either.bootstrap) as admin,
        Producer(bootstrap_servers=either.bootstrap) as producer,
    ):
        consumer.subscribe([doomed, kept])
        poll_until(consumer, lambda: len(consumer.assignment()) == 2)
        admin.delete_topics([doomed])
        producer.send(kept, b"still here").result(SECONDS_MAX)
        values: list[bytes] = []
        deadline = time.monotonic() + SECONDS_MAX
        while b"still here" not in values or len(consumer.assignment()) > 1:
            assert time.monotonic() < deadline, (values, consumer.assignment())
            values += [record.value for record in consumer.poll(0.2)]
        assert consumer.assignment() == {TopicPartition(kept, 0)}


@pytest.mark.behaviour("C10")
def test_deleted_records_are_out_of_range_without_a_reset_policy(either):
    topic = new_topic(either, "truncated")
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for i in range(20):
            producer.send(topic, b"%d" % i)
    with (
        open_consumer(either, group_id=unique("range"), auto_offset_reset="none") as consumer,
        AdminClient(either.bootstrap) as admin,
    ):
        admin.delete_records({tp: 10})  # before the consumer can fetch them
        consumer.assign({tp: 5})
        for _ in range(2):  # and again, until the application seeks
            with pytest.raises(OffsetOutOfRangeError, match=f"{tp} has no offset 5"):
                poll_until(consumer, lambda: False)
            assert consumer.position(tp) == 5
        consumer.seek_to_beginning()
        poll_until(consumer, lambda: consumer.position(tp) == 20)


@pytest.mark.behaviour("C10")
def test_a_fenced_static_member_stays_fenced(either):
    topic, group = new_topic(either, "fenced"), unique("fenced")
    options = {"group_id": group, "group_instance_id": "the-one", "heartbeat_interval_ms": 200}
    with open_consumer(either, **options) as first:
        first.subscribe([topic])
        poll_until(first, lambda: first.assignment())
        with open_consumer(either, **options) as second:
            second.subscribe([topic])
            poll_until(second, lambda: second.assignment())
            with pytest.raises(FencedInstanceIdError, match=group):
                poll_until(first, lambda: False)
            with pytest.raises((FencedInstanceIdError, CommitFailedError)):
                first.commit({TopicPartition(topic, 0): 1}, SECONDS_MAX)
            assert second.committed([TopicPartition(topic, 0)]) == {}


@pytest.mark.behaviour("C10")
def test_a_member_that_was_removed_cannot_commit(either):
    topic, group = new_topic(either, "removed"), unique("removed")
    tp = TopicPartition(topic, 0)
    with (
        open_consumer(either, group_id=group, enable_auto_commit=False, max_poll_interval_ms=1500) as consumer,
        open_consumer(either, group_id=group, enable_auto_commit=False) as other,
    ):
        consumer.subscribe([topic])
        poll_until(consumer, lambda: consumer.assignment())
        other.subscribe([topic])
        poll_until(other, lambda: other.assignment())  # the first does not poll
        with pytest.raises(CommitFailedError, match=r"max\.poll\.interval\.ms"):
            consumer.commit({tp: 1}, SECONDS_MAX)
        assert other.committed([tp]) == {}


class Blocking(Deserializer):
    """Stays in `poll` until it is released."""

    def __init__(self):
        self.entered = threading.Event()
        self.released = threading.Event()

    def deserialize(self, topic, data, headers):
        self.entered.set()
        self.released.wait(SECONDS_MAX)
        return data


@pytest.mark.behaviour("C10")
def test_two_threads_cannot_use_a_consumer_at_once(either):
    topic, deserializer = new_topic(either, "threads"), Blocking()
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        producer.send(topic, b"a record")
    polled: list[ConsumerRecord] = []
    with open_consumer(either, value_deserializer=deserializer) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        thread = threading.Thread(target=lambda: polled.extend(consumer.poll(SECONDS_MAX)))
        thread.start()
        try:
            assert deserializer.entered.wait(SECONDS_MAX)
            for call in (lambda: consumer.poll(0), lambda: consumer.seek(TopicPartition(topic, 0), 0), consumer.close):
                with pytest.raises(IllegalStateError, match="for one thread at a time"):
                    call()
        finally:
            deserializer.released.set()
            thread.join(SECONDS_MAX)
    assert [record.value for record in polled] == [b"a record"]


@pytest.mark.behaviour("C10")
def test_every_call_after_close_is_an_error(either):
    topic = new_topic(either, "closed")
    tp = TopicPartition(topic, 0)
    consumer = open_consumer(either, group_id=unique("closed"))
    consumer.assign([tp])
    consumer.close()
    consumer.close()
    for call in (
        lambda: consumer.poll(0),
        lambda: consumer.poll_arrow(0),
        lambda: next(iter(consumer)),
        lambda: consumer.subscribe([topic]),
        consumer.unsubscribe,
        lambda: consumer.assign([tp]),
        lambda: consumer.seek(tp, 0),
        consumer.seek_to_beginning,
        consumer.seek_to_committed,
        lambda: consumer.pause([tp]),
        lambda: consumer.position(tp),
        consumer.commit,
        consumer.commit_async,
        lambda: consumer.committed([tp]),
        lambda: consumer.end_offsets([tp]),
        lambda: consumer.partitions_for(topic),
        lambda: consumer.arrow_stream().read_all(),
    ):
        with pytest.raises(ClosedError, match="the consumer is closed"):
            call()
    assert consumer.undo_poll() is None


@pytest.mark.behaviour("C10")
@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_a_consumer_that_is_garbage_warns_ends_its_thread_and_leaves_the_group(either, kind):
    topic, group = new_topic(either, "garbage"), unique("garbage")
    before = set(threading.enumerate())

    def group_state(admin):
        return next((listing.state for listing in admin.list_groups() if listing.group_id == group), "")

    def leave_behind(admin):
        consumer = kind(bootstrap_servers=either.bootstrap, group_id=group)
        consumer.subscribe([topic])
        eventually("a member", lambda: consumer.poll(0.1) is not None and group_state(admin) == "Stable", SECONDS_MAX)

    with AdminClient(either.bootstrap) as admin:
        with pytest.warns(ResourceWarning, match=rf"{kind.__name__}\(.*{group}.* was not closed: call close"):
            leave_behind(admin)
        eventually("no member", lambda: group_state(admin) == "Empty", SECONDS_MAX)
    eventually("no thread", lambda: not set(threading.enumerate()) - before, SECONDS_MAX)


@pytest.mark.behaviour("C10")
def test_a_consumer_of_the_parent_is_refused_after_fork(either):
    topic = new_topic(either, "forked")
    with open_consumer(either) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.poll(0)
            except IllegalStateError as error:
                consumer.close()  # without effect on the connections of the parent
                code = 0 if "fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with Producer(bootstrap_servers=either.bootstrap) as producer:
            producer.send(topic, b"to the parent").result(SECONDS_MAX)
        poll_until(consumer, lambda: consumer.position(TopicPartition(topic, 0)) == 1)


@pytest.mark.behaviour("C10")
def test_an_unreachable_cluster_is_named_when_a_call_times_out():
    with Consumer(bootstrap_servers="localhost:1", group_id="g", default_api_timeout_ms=1000) as consumer:
        consumer.assign([ZERO])
        with pytest.raises(TimedOutError, match="refused"):
            consumer.committed([ZERO], 1)


@pytest.mark.behaviour("C10")
def test_a_consumer_survives_an_outage_that_is_longer_than_its_timeouts():
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("outage")
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            producer.send(topic, b"before").result(SECONDS_MAX)
        with open_consumer(
            broker, group_id="outage", default_api_timeout_ms=500, request_timeout_ms=400, reconnect_backoff_max_ms=100
        ) as consumer:
            broker.kill()
            consumer.assign([TopicPartition(topic, 0)])
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline:
                assert consumer.poll(0.1) == []
            with pytest.raises(TimedOutError, match="the position of outage-0 is unknown after 1 s"):
                consumer.position(TopicPartition(topic, 0), 1)
            broker.start()
            poll_until(consumer, lambda: consumer.positions().get(TopicPartition(topic, 0)) == 1)
