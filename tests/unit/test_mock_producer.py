"""The producer for users' own tests behaves as the real one does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace import (
    AbortableError,
    ClosedError,
    FatalError,
    GroupMetadata,
    HeadraceError,
    IllegalStateError,
    MockProducer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    RecordTooLargeError,
    SerializationError,
    TimedOutError,
)

pytestmark = pytest.mark.both_kernels


def sent(producer):
    return [record.value for record in producer.history]


def test_records_are_serialised_partitioned_and_kept():
    outcomes = []
    producer = MockProducer(key_serializer="str", value_serializer="json", topics={"orders": 4})
    future = producer.send(
        "orders", {"a": 1}, "key", headers={"h": b"x"}, timestamp_ms=7, on_delivery=lambda *args: outcomes.append(args)
    )
    (record,) = producer.history
    assert (record.topic, record.key, record.value, record.headers) == ("orders", b"key", b'{"a":1}', (("h", b"x"),))
    assert record.record == ProducerRecord("orders", {"a": 1}, "key", None, 7, {"h": b"x"})
    metadata = RecordMetadata("orders", record.partition, 0, 7, 3, 7)
    assert (future.result(0), outcomes) == (metadata, [(metadata, None)])
    assert producer.send("orders", [], "key").result(0).offset == 1, "the same partition, because the key is the same"
    assert len(producer.partitions_for("orders")) == 4
    assert {producer.send("orders", n).result(0).partition for n in range(8)} == {0, 1, 2, 3}


def test_errors_of_a_real_producer_are_raised():
    producer = MockProducer(topics={"t": 1}, max_request_size=1000)
    with pytest.raises(SerializationError):
        producer.send("t", 5)
    with pytest.raises(RecordTooLargeError, match="1000"):
        producer.send("t", b"x" * 2000).result(0)
    with pytest.raises(TimedOutError, match="topic 'other' is unknown"):
        producer.send("other", b"v").result(0)
    with pytest.raises(TimedOutError, match="partition 3 of topic 't'"):
        producer.send("t", b"v", partition=3).result(0)
    with pytest.raises(IllegalStateError, match=r"transactional\.id"):
        producer.begin_transaction()
    assert producer.history == []


def test_custom_partitioners_and_interceptors_run():
    heard = []

    class Heard(ProducerInterceptor):
        def on_send(self, record):
            return ProducerRecord(record.topic, b"changed")

        def on_acknowledgement(self, metadata, error):
            heard.append((metadata.partition, error))

    producer = MockProducer(topics={"t": 3}, partitioner_class=lambda *_: 2, interceptor_classes=Heard())
    producer.send("t", b"v")
    assert (sent(producer), heard) == ([b"changed"], [(2, None)])
    producer.auto_complete = False
    producer.send("t", b"v")
    error = HeadraceError("broken")
    assert producer.error_next(error)
    assert heard[1] == (2, error)


def test_the_test_decides_when_a_record_is_acknowledged_or_fails():
    producer = MockProducer({"linger.ms": 5}, auto_complete=False)
    first, second, third = (producer.send("t", b"%d" % n) for n in range(3))
    assert not first.done()
    assert producer.complete_next()
    assert first.result(0).offset == 0
    assert producer.error_next(ConnectionError("gone"))
    assert isinstance(second.exception(0), ConnectionError)
    producer.flush()
    assert third.result(0).offset == 1
    assert not producer.complete_next()
    assert not producer.error_next(ConnectionError())
    late = producer.send("t", b"late")
    producer.close(0)
    assert isinstance(late.exception(0), ClosedError)
    with pytest.raises(ClosedError):
        producer.send("t", b"v")


def test_transactions_show_records_when_they_are_committed():
    producer = MockProducer(transactional_id="t1")
    with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) while the producer is uninitialized"):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(IllegalStateError, match=r"send\(\) while the producer is ready"):
        producer.send("t", b"v")
    with producer.transaction():
        producer.send("t", b"1")
        producer.send_offsets_to_transaction({("in", 0): 5}, GroupMetadata("g"))
        assert (producer.history, len(producer.uncommitted), producer.committed_offsets) == ([], 1, {})
    assert (sent(producer), producer.commits, producer.committed_offsets) == ([b"1"], 1, {"g": {("in", 0): 5}})

    def fail():
        with producer.transaction():
            producer.send("t", b"2")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (sent(producer), producer.uncommitted, producer.commits) == ([b"1"], [], 1)


def test_a_record_that_fails_in_a_transaction_has_it_aborted():
    producer = MockProducer(transactional_id="t1", auto_complete=False)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"1")
    producer.error_next(HeadraceError("too bad"))
    for call in (producer.commit_transaction, lambda: producer.send("t", b"2")):
        with pytest.raises(AbortableError, match="too bad"):
            call()
    producer.abort_transaction()
    with producer.transaction():
        future = producer.send("t", b"3")
    assert (sent(producer), future.done()) == ([b"3"], True)


@pytest.mark.behaviour("P50")
def test_a_refused_record_calls_its_callback_and_fails_the_transaction():
    outcomes = []
    producer = MockProducer(transactional_id="t", max_request_size=1000)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("t", b"x" * 2000, on_delivery=lambda *outcome: outcomes.append(outcome))
    assert isinstance(future.exception(0), RecordTooLargeError)
    assert outcomes == [(None, future.exception(0))]
    with pytest.raises(AbortableError, match=r"max\.request\.size"):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("t", b"fits")
    assert [sent.value for sent in producer.history] == [b"fits"]


def test_a_fenced_producer_can_do_no_more():
    producer = MockProducer(transactional_id="t1", auto_complete=False)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("t", b"1")
    producer.fence()
    assert isinstance(future.exception(0), FatalError)
    for call in (
        lambda: producer.send("t", b"v"),
        producer.commit_transaction,
        producer.abort_transaction,
        producer.begin_transaction,
    ):
        with pytest.raises(FatalError, match="PRODUCER_FENCED"):
            call()
    assert producer.history == []


def test_any_call_can_be_made_to_fail():
    producer = MockProducer()
    producer.failures["send"] = TimedOutError("full")
    with pytest.raises(TimedOutError, match="full"):
        producer.send("t", b"v").result(0)
    del producer.failures["send"]
    producer.send("t", b"v")
    producer.failures["flush"] = TimedOutError("slow")
    with pytest.raises(TimedOutError, match="slow"):
        producer.flush()
    producer.clear()
    assert producer.history == []


def test_columns_are_sent_row_by_row():
    producer = MockProducer(topics={"t": 2})
    table = pa.table({"value": [b"a", b"b"], "partition": [1, None], "timestamp": pa.array([5, 6], pa.timestamp("ms"))})
    delivery = producer.send_arrow("t", table)
    assert delivery.done()
    assert delivery.result(0) == {1: [(0, 0)], 0: [(0, 0)]}
    assert [record.timestamp_ms for record in producer.history] == [5, 6]


def test_a_file_of_properties_will_do(tmp_path):
    (tmp_path / "p.properties").write_text("acks=0\nvalue.serializer=str\nenable.idempotence=false\n")
    with MockProducer.from_properties(tmp_path / "p.properties") as producer:
        assert producer.send("t", "text").result(0).offset is None
    assert sent(producer) == [b"text"]
