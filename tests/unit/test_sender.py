"""The I/O thread: requests and responses, retries, expiry, order, closing."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace.errors import (
    BrokerError,
    ClosedError,
    ConnectionFailedError,
    HeadraceError,
    TimedOutError,
    UnsupportedVersionError,
)
from headrace.producer.records import PreparedRecord
from headrace.wire.api.produce import ProduceResponse
from tests.support.fake_network import DISCONNECT, SILENCE, After
from tests.support.rig import METADATA, PRODUCE, Rig
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_kernels

NOT_LEADER, MESSAGE_TOO_LARGE, INVALID_RECORD = 6, 10, 87
SECONDS_MAX = 20


def partitions_of(sent: Any) -> list[int]:
    return [p.partition_index for topic in sent.message.topic_data for p in topic.partition_data]


# -- requests ------------------------------------------------------------------------------------


def test_batches_of_a_node_go_in_one_request():
    rig = Rig(partitions=4, brokers=2)
    futures = [rig.send(b"%d" % p, p) for p in range(4)]
    rig.run_until(lambda: all(f.done() for f in futures))
    assert sorted((s.node_id, partitions_of(s)) for s in rig.cluster.of(PRODUCE)) == [(0, [0, 2]), (1, [1, 3])]
    request = rig.cluster.of(PRODUCE)[0].message
    assert (request.acks, request.timeout_ms, request.transactional_id) == (-1, 30_000, None)
    assert [f.result(0).partition for f in futures] == [0, 1, 2, 3]


def test_topics_go_by_id_where_both_sides_can():
    topic_id = bytes(range(16))
    rig = Rig(topic_id=topic_id)
    rig.run_until(rig.send().done)
    (sent,) = rig.cluster.take(PRODUCE)
    assert (sent.version, sent.message.topic_data[0].topic_id) == (13, topic_id)
    rig.upgrade(versions={PRODUCE: (3, 12)})
    rig.run_until(rig.send().done)
    (sent,) = rig.cluster.take(PRODUCE)
    assert (sent.version, sent.message.topic_data[0].name) == (12, "t")


def test_without_topic_ids_names_are_used():
    rig = Rig()
    rig.run_until(rig.send().done)
    assert rig.cluster.of(PRODUCE)[0].version == 12


def test_a_recreated_topic_is_followed_by_its_new_id():
    old, new = bytes([1] * 16), bytes([2] * 16)
    rig = Rig(topic_id=old)
    rig.topic_id = new
    rig.log.topic_names[new] = "t"

    def respond(sent: Any) -> Any:
        is_old = sent.message.topic_data[0].topic_id == old
        return (rig.log.refuse(100) if is_old else rig.log.produce)(sent)

    rig.cluster.always(PRODUCE, respond)
    rig.run_until(rig.send().done)
    ids = [s.message.topic_data[0].topic_id for s in rig.cluster.of(PRODUCE)]
    assert (ids[0], ids[-1]) == (old, new)


def test_a_broker_too_old_for_producer_ids_fails_the_batch():
    rig = Rig(idempotent=True, versions={PRODUCE: (0, 2)})
    assert isinstance(rig.error_of(rig.send()), UnsupportedVersionError)
    assert not rig.cluster.of(PRODUCE)
    assert rig.pool.available_bytes == rig.pool.total_bytes


@pytest.mark.behaviour("P30")
def test_acks_0_is_done_when_it_is_written():
    rig = Rig(acks=0)
    future = rig.send()
    rig.turn()
    assert future.result(0).offset is None
    assert rig.cluster.of(PRODUCE)[0].message.acks == 0
    assert rig.pool.available_bytes == rig.pool.total_bytes


@pytest.mark.behaviour("P34")
def test_a_throttled_node_is_left_alone_until_its_time():
    rig = Rig(partitions=2, brokers=2)
    rig.cluster.script(PRODUCE, lambda sent: rig.log.produce(sent).replace(throttle_time_ms=500))
    throttled = rig.send(b"throttled", 0)
    rig.turn()
    assert throttled.done()
    slow, quick = rig.send(b"a", 0), rig.send(b"b", 1)
    rig.turn(2)
    assert (slow.done(), quick.done()) == (False, True)
    assert max(rig.selector.polls[-1:]) <= 500
    before = len(rig.selector.polls)
    start = rig.clock.now_ms
    rig.run_until(slow.done)
    assert rig.clock.now_ms - start == 500
    assert len(rig.selector.polls) - before <= 4  # no busy loop meanwhile


@pytest.mark.behaviour("P35")
def test_an_idle_producer_sleeps():
    rig = Rig(idempotent=True)
    rig.run_until(rig.send().done)
    before = len(rig.selector.polls)
    rig.run_for(3_600_000)
    assert len(rig.selector.polls) - before < 200


@pytest.mark.behaviour("P35")
def test_a_node_that_is_away_makes_no_busy_loop():
    rig = Rig(delivery_timeout_ms=60_000)
    rig.stop_broker(0)
    future = rig.send()
    before = len(rig.selector.polls)
    error = rig.error_of(future)
    assert isinstance(error, TimedOutError)
    assert "no connection to broker 0" in str(error)
    assert len(rig.selector.polls) - before < 2_000


# -- responses -----------------------------------------------------------------------------------


def test_a_lost_connection_is_tried_again_and_metadata_refreshed():
    rig = Rig()
    rig.cluster.script(PRODUCE, DISCONNECT, DISCONNECT)
    future = rig.send()
    rig.run_until(future.done)
    assert future.result(0).offset == 0
    assert len(rig.cluster.of(PRODUCE)) == 3
    assert rig.cluster.of(METADATA)


def test_a_response_timeout_is_retried():
    rig = Rig(request_timeout_ms=1000)
    rig.cluster.script(PRODUCE, SILENCE)
    future = rig.send()
    start = rig.clock.now_ms
    rig.run_until(future.done)
    assert future.result(0).offset == 0
    assert 1000 <= rig.clock.now_ms - start < 2000


def test_a_partition_missing_from_the_response_is_retried():
    rig = Rig()
    rig.cluster.script(PRODUCE, ProduceResponse())
    future = rig.send()
    rig.run_until(future.done)
    assert future.result(0).offset == 0


def test_retries_are_counted():
    rig = Rig(retries=2)
    rig.cluster.always(PRODUCE, rig.log.refuse(NOT_LEADER))
    error = rig.error_of(rig.send())
    assert isinstance(error, BrokerError)
    assert error.code == NOT_LEADER
    assert len(rig.cluster.of(PRODUCE)) == 3


def test_retries_are_counted_for_lost_connections_too():
    rig = Rig(retries=1)
    rig.cluster.always(PRODUCE, DISCONNECT)
    error = rig.error_of(rig.send())
    assert isinstance(error, ConnectionFailedError)
    assert len(rig.cluster.of(PRODUCE)) == 2


def test_one_bad_partition_does_not_harm_the_others():
    rig = Rig(partitions=2)
    rig.log.batch_bytes_max = 300
    bad, good = rig.send(b"x" * 400, 0), rig.send(b"y", 1)
    rig.run_until(lambda: bad.done() and good.done())
    assert bad.exception(0).code == MESSAGE_TOO_LARGE
    assert good.result(0).offset == 0


def test_the_leader_that_comes_with_the_error_is_believed_at_once():
    rig = Rig(brokers=2, partitions=2)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER, leader=(1, 5)))
    future = rig.send(b"v", 0)
    start = rig.clock.now_ms
    rig.run_until(future.done)
    assert [s.node_id for s in rig.cluster.of(PRODUCE)] == [0, 1]
    assert rig.clock.now_ms == start  # and not waited for


def test_an_unknown_leader_is_reached_by_the_endpoint_in_the_error():
    rig = Rig(brokers=2, partitions=2)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER, leader=(7, 5)))
    rig.run_until(rig.send(b"v", 0).done)
    assert [s.node_id for s in rig.cluster.of(PRODUCE)] == [0, 7]
    assert rig.client.is_connected(7)
    rig.metadata.request_update()
    rig.run_until(lambda: 7 not in rig.metadata.cluster.brokers)
    assert not rig.client.knows_node(7), "the next response did not have it"


@pytest.mark.parametrize(("code", "leader"), [(3, (1, 5)), (NOT_LEADER, (1, 0)), (NOT_LEADER, (-1, -1))])
def test_other_errors_and_old_epochs_do_not_change_the_leader(code, leader):
    rig = Rig(brokers=2, partitions=2)
    rig.cluster.script(PRODUCE, rig.log.refuse(code, leader=leader))
    rig.run_until(rig.send(b"v", 0).done)
    assert [s.node_id for s in rig.cluster.of(PRODUCE)] == [0, 0]


def test_records_that_the_broker_names_have_errors_of_their_own():
    rig = Rig()
    futures = [rig.send(b"%d" % n) for n in range(3)]
    rig.cluster.script(
        PRODUCE, rig.log.refuse(INVALID_RECORD, message="all of it", record_errors={0: None, 2: "no key"})
    )
    rig.run_until(futures[0].done)
    first, second, third = (f.exception(0) for f in futures)
    assert (first.code, third.code) == (INVALID_RECORD, INVALID_RECORD)
    assert "all of it" in str(first)
    assert "no key" in str(third)
    assert "another record of its batch" in str(second)
    assert "all of it" in str(second)


@pytest.mark.parametrize("options", [{"idempotent": True}, {"max_in_flight": 1}])
@pytest.mark.behaviour("P27")
def test_a_batch_too_large_is_split_until_it_fits(options):
    rig = Rig(batch_bytes=4096, **options)
    rig.log.batch_bytes_max = 400
    heard: list[Any] = []
    futures = [rig.send(b"%03d" % n * 20, 0, lambda m, e: heard.append(m.offset)) for n in range(40)]
    rig.run_until(lambda: all(f.done() for f in futures))
    assert [f.result(0).offset for f in futures] == list(range(40))
    assert heard == list(range(40))
    assert rig.log.values() == [b"%03d" % n * 20 for n in range(40)]
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert not rig.accumulator.has_incomplete()


def test_a_single_record_too_large_for_the_broker_fails():
    rig = Rig()
    rig.log.batch_bytes_max = 100
    error = rig.error_of(rig.send(b"x" * 200))
    assert error.code == MESSAGE_TOO_LARGE
    assert len(rig.cluster.of(PRODUCE)) == 1


def test_a_record_that_cannot_be_put_into_bytes_fails_and_the_rest_goes_on(monkeypatch):
    rig = Rig(partitions=2)
    bad, good = rig.send(b"bad", 0), rig.send(b"good", 1)

    def fail(codec: int, level: int | None) -> memoryview:
        raise RuntimeError("no such codec")

    monkeypatch.setattr(bad.batch, "seal", fail)
    rig.run_until(lambda: bad.done() and good.done())
    assert "no such codec" in str(bad.exception(0))
    assert good.result(0).offset == 0
    assert rig.pool.available_bytes == rig.pool.total_bytes


# -- expiry --------------------------------------------------------------------------------------


@pytest.mark.behaviour("P32")
def test_a_batch_expires_while_it_waits():
    rig = Rig(delivery_timeout_ms=1000)
    rig.leaders[0] = -1
    rig.metadata.request_update()
    rig.run_until(lambda: rig.metadata.cluster.leader("t", 0) == -1)
    futures = [rig.send(b"v", 0) for _ in range(3)]
    start = rig.clock.now_ms
    error = rig.error_of(futures[0])
    assert isinstance(error, TimedOutError)
    assert str(error).startswith("3 records to t-0 expired: 1000 ms since the batch was created")
    assert "delivery.timeout.ms is 1000" in str(error)
    assert "the partition has no leader" in str(error)
    assert rig.clock.now_ms - start == pytest.approx(1000)
    assert rig.pool.available_bytes == rig.pool.total_bytes


def test_a_batch_that_expires_between_attempts_has_the_last_error():
    rig = Rig(delivery_timeout_ms=1000)
    rig.cluster.always(PRODUCE, rig.log.refuse(NOT_LEADER))
    error = rig.error_of(rig.send())
    assert isinstance(error, TimedOutError)
    assert "1 records to t-0 expired" in str(error)
    assert len(rig.cluster.of(PRODUCE)) > 2


@pytest.mark.behaviour("P24", "P32")
def test_memory_of_a_batch_that_expires_in_flight_is_freed_with_its_request():
    rig = Rig(delivery_timeout_ms=1000, request_timeout_ms=30_000)
    rig.cluster.script(PRODUCE, After(5000, rig.log.produce))
    future = rig.send()
    start = rig.clock.now_ms
    error = rig.error_of(future)
    assert rig.clock.now_ms - start == 1000
    assert isinstance(error, TimedOutError)
    assert "no response to the last attempt" in str(error)
    assert rig.pool.available_bytes == rig.pool.total_bytes - 1024  # a socket may still read it (KAFKA-19012)
    rig.run_for(4000)
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert future.exception(0) is error  # a late response changes nothing
    assert not rig.accumulator.has_incomplete()


@pytest.mark.parametrize("late", [NOT_LEADER, MESSAGE_TOO_LARGE, INVALID_RECORD, None])
@pytest.mark.parametrize("idempotent", [True, False])
def test_any_response_after_expiry_frees_the_memory_without_a_retry(late, idempotent):
    rig = Rig(delivery_timeout_ms=1000, idempotent=idempotent)
    if idempotent:
        rig.run_until(rig.send().done)
    reply = DISCONNECT if late is None else rig.log.refuse(late)
    rig.cluster.take(PRODUCE)
    rig.cluster.script(PRODUCE, After(5000, reply))
    futures = [rig.send(), rig.send()]
    rig.run_for(6000)
    assert all(isinstance(f.exception(0), TimedOutError) for f in futures)
    assert len(rig.cluster.take(PRODUCE)) == 1
    assert rig.pool.available_bytes == rig.pool.total_bytes
    again = rig.send()
    rig.run_until(again.done)
    assert again.exception(0) is None


# -- order ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("P33")
def test_one_request_in_flight_keeps_the_order_through_retries():
    rig = Rig(max_in_flight=1)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER), DISCONNECT, rig.log.produce, rig.log.refuse(NOT_LEADER))
    futures = rig.send_batches(8)
    rig.run_until(lambda: all(f.done() for f in futures))
    assert rig.log.values() == [b"%d" % n for n in range(8)]


def test_a_muted_partition_waits_for_its_response_others_do_not():
    rig = Rig(partitions=2, brokers=2, max_in_flight=1)
    rig.cluster.script(PRODUCE, After(100, rig.log.produce))
    slow = rig.send_batches(2, 0)
    quick = rig.send_batches(2, 1)
    rig.turn(5)
    assert [f.done() for f in slow + quick] == [False, False, True, True]
    assert [s.node_id for s in rig.cluster.of(PRODUCE)] == [0, 1, 1]


@pytest.mark.behaviour("P33")
def test_a_batch_in_flight_holds_back_the_next_when_the_leader_moves():
    rig = Rig(partitions=1, brokers=2, max_in_flight=1)
    rig.cluster.script(PRODUCE, After(1000, rig.log.produce))
    first = rig.send_batches(1)
    rig.turn(3)
    assert [sent.node_id for sent in rig.cluster.of(PRODUCE)] == [0]
    rig.leaders[0], rig.leader_epochs[0] = 1, 1
    rig.metadata.request_update(is_urgent=True)
    rig.run_until(lambda: rig.metadata.cluster.leader("t", 0) == 1)
    second = rig.send_batches(1)
    rig.turn(5)
    assert [sent.node_id for sent in rig.cluster.of(PRODUCE)] == [0]  # node 1 is free, but must not overtake
    rig.run_until(lambda: all(future.done() for future in first + second))
    assert [sent.node_id for sent in rig.cluster.of(PRODUCE)] == [0, 1]


def test_without_numbers_several_in_flight_may_change_the_order():
    rig = Rig(max_in_flight=5)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))
    futures = rig.send_batches(3)
    rig.run_until(lambda: all(f.done() for f in futures))
    assert rig.log.values() == [b"1", b"2", b"0"]


def test_a_node_takes_as_many_requests_at_once_as_it_may():
    rig = Rig(max_in_flight=3)
    rig.cluster.always(PRODUCE, SILENCE)
    rig.send_batches(10)
    rig.turn(3)
    assert len(rig.cluster.of(PRODUCE)) == 3


# -- the loop ------------------------------------------------------------------------------------


@pytest.mark.behaviour("P29")
def test_the_loop_survives_an_exception_of_an_iteration(monkeypatch, caplog):
    rig = Rig()
    future = rig.send()
    original, calls = rig.accumulator.ready, []

    def ready(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("of one turn")
        return original(*args)

    monkeypatch.setattr(rig.accumulator, "ready", ready)
    thread = rig.start()
    assert future.result(SECONDS_MAX).offset == 0
    rig.sender.initiate_close()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert "an iteration of the I/O loop failed" in caplog.text


@pytest.mark.behaviour("P29")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_the_loop_survives_a_base_exception(monkeypatch, error):
    rig = Rig()
    future = rig.send()
    original, calls = rig.accumulator.ready, []

    def ready(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return original(*args)

    monkeypatch.setattr(rig.accumulator, "ready", ready)
    thread = rig.start()
    assert future.result(SECONDS_MAX).offset == 0
    rig.sender.initiate_close()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


@pytest.mark.behaviour("P29")
def test_send_wakes_the_io_thread_for_new_and_for_full_batches_only(monkeypatch):
    rig = Rig()
    woken: list[int] = []
    monkeypatch.setattr(rig.accumulator, "_wake", lambda: woken.append(1))
    rig.send(b"opens a batch", 0)
    assert len(woken) == 1
    rig.send(b"goes into it", 0)
    assert len(woken) == 1
    rig.accumulator.topics["t"].appender.open_batches[0].close()  # it is full
    rig.send(b"opens another", 0)
    assert len(woken) == 2
    rig.send(b"x", 1)
    assert len(woken) == 3


def test_an_observer_that_raises_leaves_no_wait_open(caplog):
    class Bad:
        def __getattr__(self, name: str) -> Any:
            def method(*args: Any) -> None:
                if name in ("batch_failed", "batch_retried"):
                    raise RuntimeError("of the metrics")

            return method

    rig = Rig(observer=Bad(), partitions=2)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))
    futures = [rig.send(b"a", 0), rig.send(b"b", 1)]
    rig.run_until(lambda: all(f.done() for f in futures))
    assert all("of the metrics" in str(f.exception(0)) for f in futures)
    assert rig.pool.available_bytes == rig.pool.total_bytes


# -- closing -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P36")
def test_closing_sends_what_is_left():
    rig = Rig(linger_ms=10_000)
    futures = [rig.send(b"%d" % n) for n in range(5)]
    thread = rig.start()
    rig.sender.initiate_close()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    assert [f.result(0).offset for f in futures] == list(range(5))
    assert rig.selector.is_closed


def test_closing_waits_for_retries():
    rig = Rig()
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER), DISCONNECT)
    future = rig.send()
    rig.sender.initiate_close()
    thread = rig.start()
    thread.join(SECONDS_MAX)
    assert future.result(0).offset == 0


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.behaviour("P36")
def test_force_fails_what_is_waiting_and_what_is_on_the_wire(idempotent):
    rig = Rig(idempotent=idempotent)
    rig.cluster.always(PRODUCE, SILENCE)
    heard: list[Any] = []
    on_wire = rig.send(b"a", 0, lambda m, e: heard.append(e))
    rig.turn(3)
    assert rig.cluster.of(PRODUCE)
    waiting = rig.send(b"b", 1, lambda m, e: heard.append(e))
    rig.stop_broker(0)
    rig.sender.force_close()
    thread = rig.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()
    for future in (on_wire, waiting):
        assert isinstance(future.exception(0), HeadraceError)
    assert isinstance(waiting.exception(0), ClosedError)
    assert len(heard) == 2
    assert rig.pool.available_bytes == rig.pool.total_bytes


def test_closing_wakes_threads_that_wait_for_memory():
    rig = Rig(total_bytes=1024)
    rig.cluster.always(PRODUCE, SILENCE)
    rig.send()
    errors: list[Exception] = []

    def append() -> None:
        try:
            rig.accumulator.append(
                rig.accumulator.topic("t", 2),
                rig.metadata.cluster,
                PreparedRecord(1, None, None, b"v", (), None),
                None,
                rig.clock.now_ms + 1e9,
            )
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=append, daemon=True)
    thread.start()
    eventually("it waits", lambda: rig.pool.waiting_threads)
    rig.sender.initiate_close()
    thread.join(SECONDS_MAX)
    assert isinstance(errors[0], ClosedError)


def test_a_connection_that_cannot_be_closed_leaves_no_wait_open(monkeypatch):
    rig = Rig()
    rig.cluster.always(PRODUCE, SILENCE)
    future = rig.send()
    rig.turn(2)

    def fail() -> None:
        raise OSError("bad file descriptor")

    monkeypatch.setattr(rig.client, "close", fail)
    rig.sender.force_close()
    thread = rig.start()
    thread.join(SECONDS_MAX)
    assert isinstance(future.exception(0), ClosedError)
