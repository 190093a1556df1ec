"""Idempotence through the sender: each record once and in order, whatever brokers and connections do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.errors import BrokerError, FatalError, HeadraceError, TimedOutError
from headrace.producer.transaction_state import State
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.transactions import InitProducerIdResponse
from headrace.wire.records import read_batches
from tests.support.fake_network import DISCONNECT, SILENCE, After
from tests.support.rig import INIT_PRODUCER_ID, PRODUCE, PRODUCER_ID, Rig

pytestmark = pytest.mark.both_kernels

NOT_LEADER, TOO_LARGE, OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_RECORD = 6, 10, 45, 59, 87
LAST = 0x7FFFFFFF


def headers(rig: Rig) -> list[Any]:
    """Of the batches as they were sent, one for each partition of each request."""
    batch_headers = []
    for sent in rig.cluster.of(PRODUCE):
        for topic in sent.message.topic_data:
            for partition in topic.partition_data:
                batch_headers += [batch.header for batch in read_batches(bytes(partition.records))]
    return batch_headers


def numbers(rig: Rig) -> list[tuple[int, int]]:
    return [(header.producer_epoch, header.base_sequence) for header in headers(rig)]


def all_done(futures: list[Any]) -> Any:
    return lambda: all(future.done() for future in futures)


def ready_rig(**options: Any) -> Rig:
    """With partitions that know the producer; what it has stored there is not counted."""
    rig = Rig(idempotent=True, **options)
    for partition in range(len(rig.leaders)):
        rig.run_until(rig.send(b"warm", partition).done)
    rig.cluster.sent.clear()
    rig.log.batches.clear()
    return rig


# -- the id --------------------------------------------------------------------------------------


@pytest.mark.behaviour("P45")
def test_the_producer_id_is_requested_once_before_the_first_batch():
    rig = Rig(idempotent=True)
    rig.turn(3)
    assert rig.keys_sent() == []
    futures = rig.send_batches(3)
    rig.run_until(all_done(futures))
    assert rig.keys_sent() == [INIT_PRODUCER_ID, PRODUCE, PRODUCE, PRODUCE]
    request = rig.cluster.of(INIT_PRODUCER_ID)[0].message
    assert (request.transactional_id, request.producer_id) == (None, -1)
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers(rig)] == [
        (PRODUCER_ID, 0, n) for n in range(3)
    ]
    assert not headers(rig)[0].is_transactional


def test_each_partition_counts_for_itself():
    rig = ready_rig()
    futures = [*rig.send_batches(2, 0), *rig.send_batches(2, 1)]
    rig.run_until(all_done(futures))
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for sent in rig.cluster.of(PRODUCE):
        for partition in sent.message.topic_data[0].partition_data:
            (batch,) = read_batches(bytes(partition.records))
            by_partition[partition.partition_index].append(batch.header.base_sequence)
    assert by_partition == {0: [1, 2], 1: [1, 2]}


@pytest.mark.parametrize(
    "reply", [DISCONNECT, InitProducerIdResponse(error_code=14), InitProducerIdResponse(error_code=15)]
)
def test_the_producer_id_is_requested_again(reply):
    rig = Rig(idempotent=True)
    rig.cluster.script(INIT_PRODUCER_ID, reply)
    rig.run_until(rig.send().done)
    assert len(rig.cluster.of(INIT_PRODUCER_ID)) == 2


@pytest.mark.parametrize("code", [31, 53])
def test_an_unauthorized_id_fails_queued_records_and_is_requested_again(code):
    rig = Rig(idempotent=True)
    rig.cluster.script(INIT_PRODUCER_ID, InitProducerIdResponse(error_code=code))
    futures = [rig.send(b"a", 0), rig.send(b"b", 1)]
    rig.run_until(all_done(futures))
    assert [future.exception(0).code for future in futures] == [code, code]
    assert rig.state() is State.UNINITIALIZED
    assert len(rig.cluster.of(INIT_PRODUCER_ID)) == 1
    assert rig.pool.available_bytes == rig.pool.total_bytes
    assert rig.error_of(rig.send(b"c")) is None


def test_an_id_that_cannot_be_had_at_all_is_fatal():
    rig = Rig(idempotent=True)
    rig.cluster.script(INIT_PRODUCER_ID, InitProducerIdResponse(error_code=42))
    error = rig.error_of(rig.send())
    assert isinstance(error, FatalError)
    assert "INVALID_REQUEST" in str(error)
    with pytest.raises(FatalError):
        rig.send()


def test_records_expire_while_there_is_no_id():
    rig = Rig(idempotent=True, delivery_timeout_ms=1000)
    rig.cluster.always(INIT_PRODUCER_ID, InitProducerIdResponse(error_code=14))
    assert isinstance(rig.error_of(rig.send()), TimedOutError)


# -- retries -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P45")
def test_a_retry_has_the_same_numbers():
    rig = ready_rig()
    rig.cluster.script(PRODUCE, DISCONNECT, rig.log.refuse(NOT_LEADER), DISCONNECT)
    rig.run_until(rig.send().done)
    assert numbers(rig) == [(0, 1)] * 4
    assert rig.log.values() == [b"value"]


@pytest.mark.behaviour("P46")
def test_a_batch_stored_before_a_disconnect_is_stored_once():
    rig = ready_rig()
    rig.run_until(rig.send(b"first").done)
    rig.cluster.script(PRODUCE, rig.log.stored_but_lost)
    future = rig.send(b"second")
    rig.run_until(future.done)
    assert future.result(0).offset == 2
    assert rig.log.values() == [b"first", b"second"]


@pytest.mark.behaviour("P46")
def test_an_old_duplicate_is_a_success_without_an_offset():
    rig = ready_rig()
    rig.cluster.script(PRODUCE, rig.log.refuse(46))
    future = rig.send()
    rig.run_until(future.done)
    assert future.result(0).offset is None


@pytest.mark.behaviour("P33")
def test_the_order_holds_when_the_first_of_five_fails():
    rig = ready_rig()
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))
    futures = rig.send_batches(10)
    rig.run_until(all_done(futures))
    assert rig.log.values() == [b"%d" % n for n in range(10)]
    assert [future.result(0).offset for future in futures] == list(range(1, 11))
    assert rig.manager.producer.epoch == 0  # those behind were only out of turn
    # After a failure one goes at a time, until the line is clear.
    assert numbers(rig)[:6] == [(0, n) for n in (1, 2, 3, 4, 5, 1)]


def test_a_batch_out_of_turn_that_comes_back_first_still_waits():
    rig = ready_rig(brokers=2)
    rig.cluster.script(PRODUCE, After(50, rig.log.refuse(NOT_LEADER)))
    futures = rig.send_batches(3)
    rig.run_until(all_done(futures))
    assert rig.log.values() == [b"0", b"1", b"2"]


def test_a_split_batch_keeps_its_numbers_and_those_behind_it_theirs():
    rig = ready_rig(batch_bytes=4096)
    rig.log.batch_bytes_max = 600
    futures = [rig.send(b"%02d" % n * 30) for n in range(30)]
    rig.accumulator.close_open_batches()
    futures += [rig.send(b"%02d" % n * 30) for n in range(30, 60)]
    rig.run_until(all_done(futures))
    assert rig.log.values() == [b"%02d" % n * 30 for n in range(60)]
    assert [future.result(0).offset for future in futures] == list(range(1, 61))
    assert rig.manager.producer.epoch == 0


# -- the wrap ------------------------------------------------------------------------------------


@pytest.mark.behaviour("P47")
def test_numbers_wrap():
    rig = ready_rig()
    (future,) = rig.send_batches(1)
    rig.run_until(future.done)
    sequences = rig.manager._sequences.of(future.batch, rig.manager.producer)
    sequences.next, sequences.last_acked_sequence = LAST - 1, LAST - 2
    rig.log._writers["t", 0, PRODUCER_ID].last_sequence = LAST - 2
    rig.log._writers["t", 0, PRODUCER_ID].batches.clear()
    rig.cluster.sent.clear()
    rig.cluster.script(PRODUCE, rig.log.produce, rig.log.refuse(NOT_LEADER))  # the one at the wrap is tried again
    futures = rig.send_batches(6)
    rig.run_until(all_done(futures))
    assert [h.base_sequence for h in headers(rig)][:5] == [LAST - 1, LAST, 0, 1, 2]
    assert rig.log.values()[1:] == [b"%d" % n for n in range(6)]
    assert rig.manager.producer.epoch == 0


# -- KIP-360 -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P46")
def test_those_behind_a_refused_batch_get_a_new_epoch_and_go_on():
    rig = ready_rig()
    rig.run_until(rig.send(b"before").done)
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    futures = rig.send_batches(4)
    rig.run_until(all_done(futures))
    assert isinstance(futures[0].exception(0), BrokerError)
    assert [future.exception(0) for future in futures[1:]] == [None] * 3
    assert rig.log.values() == [b"before", b"1", b"2", b"3"]
    assert rig.manager.producer == ProducerIdAndEpoch(PRODUCER_ID, 1)


def test_other_partitions_are_not_disturbed_by_a_new_epoch():
    rig = ready_rig(partitions=2, brokers=2)
    rig.cluster.script(PRODUCE, After(200, rig.log.produce), rig.log.refuse(INVALID_RECORD))
    slow = rig.send(b"slow", 1)
    rig.turn()
    bad = rig.send(b"bad", 0)
    rig.turn(2)
    assert (bad.done(), slow.done()) == (True, False)
    assert rig.manager.producer.epoch == 1
    waiting = rig.send(b"waiting", 1)
    rig.turn(3)
    assert not waiting.done()  # numbers of the new epoch start when the old one is over
    rig.run_until(waiting.done)
    assert slow.exception(0) is None
    assert rig.log.values(1) == [b"slow", b"waiting"]
    assert [(h.producer_epoch, h.base_sequence) for h in headers(rig)][-1] == (1, 0)


def test_a_broker_that_lost_its_state_gets_a_new_epoch():
    rig = ready_rig()
    rig.run_until(rig.send(b"a").done)
    rig.cluster.script(PRODUCE, rig.log.refuse(UNKNOWN_PRODUCER, log_start_offset=1))
    futures = rig.send_batches(3)
    rig.run_until(all_done(futures))
    assert [future.exception(0) for future in futures] == [None] * 3
    assert rig.log.values() == [b"a", b"0", b"1", b"2"]
    assert rig.manager.producer.epoch == 1


def test_used_up_epochs_need_a_new_id():
    rig = ready_rig()
    rig.manager.producer = ProducerIdAndEpoch(PRODUCER_ID, 0x7FFF)
    rig.run_until(rig.send(b"a").done)
    rig.cluster.sent.clear()
    rig.cluster.always(INIT_PRODUCER_ID, InitProducerIdResponse(producer_id=5000, producer_epoch=0))
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    futures = rig.send_batches(4)
    rig.run_until(all_done(futures))
    assert [future.exception(0) is None for future in futures] == [False, True, True, True]
    assert len(rig.cluster.of(INIT_PRODUCER_ID)) == 1
    assert rig.cluster.of(INIT_PRODUCER_ID)[0].message.producer_id == -1
    assert rig.manager.producer == ProducerIdAndEpoch(5000, 0)
    assert rig.log.values() == [b"a", b"1", b"2", b"3"]
    assert [(h.producer_id, h.base_sequence) for h in headers(rig)][-1] == (5000, 2)


# -- doubt ---------------------------------------------------------------------------------------


@pytest.mark.behaviour("T10")
def test_nothing_new_goes_out_while_the_fate_of_an_expired_batch_is_not_known():
    rig = ready_rig(delivery_timeout_ms=1000, request_timeout_ms=30_000)
    rig.cluster.script(PRODUCE, After(3000, rig.log.produce))
    lost = rig.send(b"lost")
    rig.run_until(lost.done)
    assert isinstance(lost.exception(0), TimedOutError)
    rig.cluster.sent.clear()
    following = rig.send(b"following")
    rig.run_until(following.done)
    # It was given up as the only one in flight: there is a gap, so a new epoch, in which it does not matter any more.
    assert [(h.producer_epoch, h.base_sequence) for h in headers(rig)] == [(1, 0)]
    rig.run_for(3000)
    rig.run_until(rig.send(b"more").done)
    assert set(rig.log.values()) >= {b"following", b"more"}


@pytest.mark.behaviour("T10")
def test_nothing_new_goes_out_while_a_batch_behind_an_expired_one_is_in_flight():
    rig = ready_rig(delivery_timeout_ms=1000, request_timeout_ms=30_000)
    rig.cluster.always(PRODUCE, After(10_000, rig.log.produce))
    expired = rig.send(b"expired")
    rig.turn(3)
    rig.clock.advance(600)
    behind = rig.send(b"behind")
    rig.turn(3)
    rig.clock.advance(500)
    rig.turn(3)
    assert expired.done()
    assert not behind.done()
    rig.send(b"new")
    rig.turn(5)
    # Whether the first one was stored is not known, so neither is the number that the broker expects.
    assert [header.base_sequence for header in headers(rig)] == [1, 2]


def test_a_stored_batch_behind_an_expired_one_resolves_the_partition():
    rig = ready_rig(delivery_timeout_ms=5000, request_timeout_ms=30_000)
    rig.cluster.script(PRODUCE, rig.log.stored_but_lost)
    first = rig.send(b"first")
    rig.clock.advance(4000)
    rig.accumulator.close_open_batches()
    second = rig.send(b"second")
    rig.turn(1)
    rig.stop_broker(0)  # until the first has expired
    rig.run_until(first.done)
    assert isinstance(first.exception(0), TimedOutError)
    third = rig.send(b"third")
    rig.cluster.start(0)
    rig.run_until(lambda: second.done() and third.done())
    assert (second.exception(0), third.exception(0)) == (None, None)
    assert rig.log.values() == [b"first", b"second", b"third"]
    assert rig.manager.producer.epoch == 0


def test_a_batch_behind_an_expired_one_that_was_not_stored_gets_a_new_epoch():
    rig = ready_rig(delivery_timeout_ms=5000, request_timeout_ms=30_000)
    rig.run_until(rig.send(b"zero").done)
    rig.cluster.script(PRODUCE, DISCONNECT)
    first = rig.send(b"first")
    rig.clock.advance(4000)
    rig.accumulator.close_open_batches()
    second = rig.send(b"second")
    rig.turn(1)
    rig.stop_broker(0)
    rig.run_until(first.done)
    rig.cluster.start(0)
    rig.run_until(second.done)
    assert second.exception(0) is None
    assert rig.log.values() == [b"zero", b"second"]
    assert rig.manager.producer.epoch == 1


# -- anything ------------------------------------------------------------------------------------


def faults(rig: Rig, chance: random.Random) -> Any:
    """A broker in trouble: most requests succeed, the others fail with errors that are retried."""

    def respond(sent: Any) -> Any:
        kind = chance.randrange(10)
        if kind == 0:
            return DISCONNECT
        if kind == 1:
            on_the_way = [s for s in rig.cluster.in_flight(sent.node_id) if s.api_key == PRODUCE]
            for request in on_the_way[: chance.randrange(1, len(on_the_way) + 1)]:
                rig.log.produce(request)  # stored, but the responses are lost
            return DISCONNECT
        if kind == 2:
            return rig.log.refuse(chance.choice([2, 3, 6, 7, 19, 56]))(sent)
        return rig.log.produce(sent)

    return respond


@pytest.mark.parametrize("seed", range(12))
def test_each_record_once_and_in_order_through_any_trouble(seed):
    chance = random.Random(seed)
    rig = Rig(idempotent=True, partitions=3, brokers=2, batch_bytes=256)
    rig.log.batch_bytes_max = 200 if seed % 2 else 1 << 30
    rig.cluster.always(PRODUCE, faults(rig, chance))
    futures = []
    for n in range(150):
        futures.append(rig.send(b"%d" % n + b"." * chance.randrange(40), chance.randrange(3)))
        if chance.random() < 0.3:
            rig.turn()
        if chance.random() < 0.05:
            rig.clock.advance(chance.randrange(300))
    rig.run_until(all_done(futures), turns_max=20_000)
    assert [future.exception(0) for future in futures] == [None] * 150
    for partition in range(3):
        stored = [int(value.split(b".")[0]) for value in rig.log.values(partition) if value is not None]
        assert stored == sorted(set(stored))
    assert sum(len(rig.log.values(partition)) for partition in range(3)) == 150
    assert rig.pool.available_bytes == rig.pool.total_bytes


@pytest.mark.parametrize("seed", range(12))
def test_records_that_expire_or_are_refused_take_no_other_with_them(seed):
    chance = random.Random(1000 + seed)
    rig = Rig(
        idempotent=True, partitions=2, brokers=2, batch_bytes=256, delivery_timeout_ms=2000, request_timeout_ms=800
    )
    trouble = faults(rig, chance)

    def respond(sent: Any) -> Any:
        kind = chance.randrange(12)
        if kind == 0:
            return rig.log.refuse(INVALID_RECORD)(sent)
        return trouble(sent)

    def reply() -> Any:
        return After(chance.choice([0, 0, 20, 500]), respond) if chance.random() < 0.9 else SILENCE

    futures: list[tuple[int, Any]] = []
    for n in range(120):
        rig.cluster.script(PRODUCE, reply())
        futures.append((n, rig.send(b"%d" % n, chance.randrange(2))))
        if chance.random() < 0.4:
            rig.accumulator.close_open_batches()
            rig.turn()
        if chance.random() < 0.1:
            rig.clock.advance(chance.randrange(900))
    rig.cluster.always(PRODUCE, respond)
    rig.run_until(all_done([future for _, future in futures]), turns_max=20_000)
    stored = [[int(v) for v in rig.log.values(partition) if v is not None] for partition in range(2)]
    for values in stored:
        assert len(values) == len(set(values))  # never twice
        assert values == sorted(values)  # never out of order
    everything = {n for values in stored for n in values}
    for n, future in futures:
        assert isinstance(future.exception(0), HeadraceError | None)
        if future.exception(0) is None:
            assert n in everything
    # It continues.
    rig.cluster.always(PRODUCE, rig.log.produce)
    rig.cluster.clear_scripts()
    rig.run_until(lambda: not rig.accumulator.has_incomplete(), turns_max=20_000)
    assert rig.error_of(rig.send(b"900", 0)) is None
    assert rig.error_of(rig.send(b"901", 1)) is None
    assert rig.pool.available_bytes == rig.pool.total_bytes


def test_the_first_batch_of_a_partition_goes_alone():
    """A broker that does not know a producer accepts any sequence: the second batch must not come before the first."""
    rig = Rig(idempotent=True)
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))
    futures = rig.send_batches(4)
    rig.run_until(all_done(futures))
    assert rig.log.values() == [b"0", b"1", b"2", b"3"]
    assert numbers(rig) == [(0, 0), (0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_refusal_after_an_attempt_that_may_have_been_stored_doubles_nothing():
    rig = ready_rig()

    def crash(sent: Any) -> Any:
        for request in rig.cluster.in_flight(0):
            rig.log.produce(request)
        return DISCONNECT

    rig.cluster.script(PRODUCE, crash, SILENCE, rig.log.refuse(29))
    first, second = rig.send_batches(2)
    rig.run_until(lambda: first.done() and second.done())
    assert first.exception(0).code == 29
    assert second.exception(0) is None
    assert rig.log.values() == [b"0", b"1"]


def test_a_batch_that_the_broker_had_long_ago_is_a_success():
    """Stored, its response lost, and more than five after it acknowledged before it could be sent again."""
    rig = ready_rig()
    rig.cluster.script(PRODUCE, rig.log.stored_but_lost)
    first = rig.send(b"first")
    rig.turn()
    for n in range(6):
        rig.run_until(lambda: rig.accumulator.has_undrained() and not rig.client.total_in_flight())
        rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))  # for the first, again and again
        rig.accumulator.close_open_batches()
        behind = rig.send(b"%d" % n)
        rig.run_until(behind.done)
    rig.run_until(first.done)
    assert first.exception(0) is None
    assert rig.log.values() == [b"first", *(b"%d" % n for n in range(6))]
    assert rig.manager.producer.epoch == 0
