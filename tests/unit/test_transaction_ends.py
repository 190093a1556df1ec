"""How transactions end: commit, abort, time-outs, lost sequence numbers, closing."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from headrace.errors import (
    AbortableError,
    ClosedError,
    FatalError,
    HeadraceError,
    IllegalStateError,
    TimedOutError,
)
from headrace.producer.records import PreparedRecord
from headrace.producer.transaction_state import State
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.transactions import AddOffsetsToTxnResponse, EndTxnResponse
from tests.support.fake_network import DISCONNECT, SILENCE, After
from tests.support.rig import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    GROUP,
    INIT_PRODUCER_ID,
    PRODUCE,
    PRODUCER_ID,
    V1,
    V2,
    Rig,
    new_rig,
    partitions_added,
    rig_in_transaction,
    rig_with_coordinator_apart,
)

pytestmark = pytest.mark.both_kernels

NOT_LEADER, INVALID_RECORD = 6, 87
SECONDS_MAX = 20


# -- commit and abort ----------------------------------------------------------------------------


def test_commit_sends_all_first():
    rig = rig_in_transaction(linger_ms=60_000)
    futures = [rig.send(b"%d" % n, n % 2) for n in range(10)]
    rig.commit()
    assert all(f.done() for f in futures)
    assert rig.keys_sent()[-1] == END_TXN
    end = rig.cluster.of(END_TXN)[0]
    assert (end.message.committed, end.version) == (True, 4)
    assert rig.state() is State.READY


def test_commit_waits_for_retries_without_a_busy_loop():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, After(5000, rig.log.refuse(NOT_LEADER)))
    rig.send()
    before = len(rig.selector.polls)
    rig.commit()
    assert len(rig.selector.polls) - before < 20
    assert rig.log.values() == [b"value"]
    assert rig.keys_sent()[-2:] == [PRODUCE, END_TXN]


def test_a_record_sent_and_committed_in_one_iteration_is_included():
    rig = rig_in_transaction()
    rig.run_until(rig.send(b"first", 0).done)
    calls = []

    def has_incomplete() -> bool:
        calls.append(1)
        return rig.accumulator.has_incomplete()

    # Both happen after the I/O thread has begun its turn.
    rig.send(b"second", 0)
    rig.manager.begin_commit()
    assert rig.manager.next_request(has_incomplete, rig.clock.now_ms) is None
    assert calls


def test_an_empty_transaction_is_not_sent_to_the_coordinator():
    rig = rig_in_transaction()
    rig.commit()
    rig.manager.begin_transaction()
    rig.abort()
    assert rig.keys_sent() == []
    assert rig.state() is State.READY


@pytest.mark.behaviour("T08")
def test_commit_raises_the_first_error_and_abort_goes_on():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.send(b"a", 0)
    rig.send(b"b", 1)
    rig.run_until(lambda: rig.manager.has_error)
    rig.manager.fail_abortable(HeadraceError("a later one"))
    with pytest.raises(AbortableError) as caught:
        rig.commit()
    assert "INVALID_RECORD" in str(caught.value)
    assert rig.keys_sent().count(END_TXN) == 0
    rig.abort()
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [False]
    assert rig.state() is State.READY


def test_a_queued_commit_that_fails_is_not_sent_after_the_abort():
    """The queued EndTxn of the commit must never leave: it would commit half a transaction."""
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, After(100, rig.log.refuse(INVALID_RECORD)))
    rig.send()
    commit = rig.manager.begin_commit()
    rig.run_until(lambda: commit.is_done)
    with pytest.raises(AbortableError):
        commit.wait(0)
    rig.abort()
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [False]


def test_an_error_of_any_batch_drops_the_rest_at_once():
    rig = rig_with_coordinator_apart()
    rig.run_until(rig.send(b"zero", 0).done)
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.cluster.script(ADD_PARTITIONS, SILENCE)
    bad = rig.send(b"bad", 0)
    unsent = rig.send(b"unsent", 1)
    rig.run_until(bad.done)
    rig.turn(2)
    assert isinstance(unsent.exception(0), AbortableError)
    assert "INVALID_RECORD" in str(unsent.exception(0))
    assert rig.log.values(1) == []


@pytest.mark.behaviour("T08")
def test_abort_drops_what_was_not_sent():
    rig = rig_in_transaction()
    rig.cluster.always(ADD_PARTITIONS, After(50, partitions_added))
    future = rig.send()
    rig.turn(2)
    rig.abort()
    assert isinstance(future.exception(0), AbortableError)
    assert "aborted before the record was sent" in str(future.exception(0))
    assert rig.keys_sent() == [ADD_PARTITIONS, END_TXN]  # it was added: the coordinator has to know
    assert rig.pool.available_bytes == rig.pool.total_bytes


def test_abort_waits_for_the_results_of_sent_batches():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(NOT_LEADER))
    sent = rig.send()
    rig.turn(2)
    assert rig.cluster.of(PRODUCE)
    rig.abort()
    assert sent.exception(0) is None
    assert rig.keys_sent()[-3:] == [PRODUCE, PRODUCE, END_TXN]


@pytest.mark.parametrize("operation", ["commit", "abort"])
def test_a_call_that_timed_out_is_joined_by_the_next(operation):
    rig = rig_in_transaction()
    rig.run_until(rig.send().done)
    rig.cluster.script(END_TXN, After(500, EndTxnResponse()))
    begin = getattr(rig.manager, f"begin_{operation}")
    first = begin()
    rig.turn(3)
    with pytest.raises(TimedOutError, match=f"{operation}_transaction timed out after 0 s .* call it again"):
        first.wait(0)
    for call in ("begin_transaction", "begin_abort" if operation == "commit" else "begin_commit"):
        with pytest.raises(IllegalStateError, match=rf"{operation}_transaction\(\) again first"):
            getattr(rig.manager, call)()
    assert begin() is first
    rig.finish(first)
    assert len(rig.cluster.of(END_TXN)) == 1
    rig.manager.begin_transaction()


def test_the_result_of_a_timed_out_call_must_be_fetched_first():
    rig = rig_in_transaction()
    rig.run_until(rig.send().done)
    first = rig.manager.begin_commit()
    rig.run_until(lambda: first.is_done)
    with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) again first"):
        rig.manager.begin_transaction()
    assert rig.manager.begin_commit() is first
    first.wait(0)
    rig.manager.begin_transaction()


def test_init_that_timed_out_is_joined_by_the_next():
    rig = new_rig()
    rig.cluster.script(FIND_COORDINATOR, SILENCE)
    first = rig.manager.begin_init()
    rig.turn(2)
    with pytest.raises(TimedOutError):
        first.wait(0)
    assert rig.manager.begin_init() is first
    rig.finish(first)


def test_offsets_that_timed_out_do_not_keep_from_aborting():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_OFFSETS, After(500, DISCONNECT))
    result = rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    rig.turn(2)
    with pytest.raises(TimedOutError):
        result.wait(0)
    rig.abort()
    assert rig.state() is State.READY


def test_the_manager_forgets_the_partitions_of_the_transaction_before():
    rig = rig_in_transaction()
    rig.send(b"a", 0)
    rig.commit()
    rig.manager.begin_transaction()
    rig.send(b"b", 0)
    rig.commit()
    assert rig.keys_sent() == [ADD_PARTITIONS, PRODUCE, END_TXN] * 2
    assert rig.log.values() == [b"a", b"b"]


def test_a_record_that_comes_too_late_for_its_transaction_is_refused():
    """Another thread may end the transaction between the check and the opening of the batch."""
    rig = rig_in_transaction()
    rig.commit()
    queues = rig.accumulator.topic("t", 2)
    with pytest.raises(IllegalStateError, match="send"):
        rig.accumulator.append(
            queues, rig.metadata.cluster, PreparedRecord(0, None, None, b"v", (), None), None, rig.clock.now_ms
        )
    assert not rig.accumulator.has_incomplete()


# -- sequences in a transaction ------------------------------------------------------------------


def test_an_epoch_is_bumped_after_the_abort_and_numbers_start_again():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.error_of(rig.send())
    rig.abort()
    assert rig.keys_sent()[-2:] == [END_TXN, INIT_PRODUCER_ID]
    bump = rig.cluster.of(INIT_PRODUCER_ID)[0]
    assert (bump.message.producer_id, bump.message.producer_epoch) == (PRODUCER_ID, 0)
    assert rig.manager.producer == ProducerIdAndEpoch(PRODUCER_ID, 1)


def test_an_old_coordinator_cannot_bump_and_numbers_go_on():
    rig = new_rig(versions={INIT_PRODUCER_ID: (0, 2)})
    rig.init()
    rig.send(b"a")
    rig.commit()
    rig.manager.begin_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.error_of(rig.send(b"b"))
    rig.abort()
    assert not rig.cluster.of(INIT_PRODUCER_ID)
    rig.manager.begin_transaction()
    rig.send(b"c")
    rig.commit()
    assert rig.log.values() == [b"a", b"c"]


def expire_on_the_wire(rig: Rig) -> Any:
    rig.cluster.script(PRODUCE, SILENCE)
    lost = rig.send(b"lost")
    rig.run_until(lost.done)
    assert isinstance(lost.exception(0), TimedOutError)
    return lost


@pytest.mark.behaviour("T10")
def test_unresolved_numbers_lead_to_an_abort_and_a_new_epoch():
    rig = rig_in_transaction(delivery_timeout_ms=1000, request_timeout_ms=3000)
    rig.run_until(rig.send(b"first").done)
    expire_on_the_wire(rig)
    assert rig.state() is State.ABORTABLE_ERROR
    rig.abort()
    assert rig.keys_sent()[-2:] == [END_TXN, INIT_PRODUCER_ID]
    rig.manager.begin_transaction()
    rig.send(b"again")
    rig.commit()
    assert rig.log.values() == [b"first", b"again"]


@pytest.mark.behaviour("T10")
def test_unresolved_numbers_are_fatal_where_there_is_no_new_epoch():
    rig = new_rig(delivery_timeout_ms=1000, request_timeout_ms=3000, versions={INIT_PRODUCER_ID: (0, 2)})
    rig.init()
    expire_on_the_wire(rig)
    rig.turn()
    assert rig.manager.has_fatal_error
    with pytest.raises(FatalError, match="it is unknown whether they were stored"):
        rig.abort()


def test_numbers_that_are_lost_while_aborting_are_mended_by_a_new_epoch():
    rig = rig_in_transaction(delivery_timeout_ms=1000, request_timeout_ms=3000)
    rig.run_until(rig.send(b"first").done)
    rig.cluster.script(PRODUCE, SILENCE)
    lost = rig.send(b"lost")
    rig.turn(2)
    rig.abort()
    assert isinstance(lost.exception(0), TimedOutError)
    assert rig.keys_sent()[-2:] == [END_TXN, INIT_PRODUCER_ID]
    rig.manager.begin_transaction()
    rig.send(b"again")
    rig.commit()
    assert rig.log.values() == [b"first", b"again"]


def test_the_transaction_is_not_ended_while_a_batch_is_on_the_wire():
    rig = rig_in_transaction(delivery_timeout_ms=1000, request_timeout_ms=3000)
    expire_on_the_wire(rig)
    result = rig.manager.begin_abort()
    rig.turn(5)
    assert not rig.cluster.of(END_TXN)  # a late batch must not come after the end of its transaction
    rig.finish(result)


# -- closing -------------------------------------------------------------------------------------


@pytest.mark.behaviour("P36")
def test_closing_aborts_an_open_transaction():
    rig = rig_in_transaction()
    future = rig.send()
    rig.sender.initiate_close()
    rig.start().join(SECONDS_MAX)
    assert future.exception(0) is None
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [False]


def test_closing_lets_a_commit_end():
    rig = rig_in_transaction()
    rig.send()
    result = rig.manager.begin_commit()
    rig.sender.initiate_close()
    rig.start().join(SECONDS_MAX)
    result.wait(0)
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [True]


def test_closing_aborts_regardless_of_a_pending_operation():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.send()
    commit = rig.manager.begin_commit()  # it fails, and nobody waits for the outcome
    rig.sender.initiate_close()
    rig.start().join(SECONDS_MAX)
    assert commit.is_done
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [False]


def test_closing_after_a_fatal_error_ends():
    rig = rig_in_transaction()
    rig.send()
    rig.manager.fail_fatally(HeadraceError("over"))
    rig.sender.initiate_close()
    thread = rig.start()
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


def test_force_close_fails_all_waits():
    rig = rig_in_transaction()
    rig.cluster.always(PRODUCE, SILENCE)
    future = rig.send()
    rig.turn(3)
    commit = rig.manager.begin_commit()
    errors: list[Exception] = []

    def wait() -> None:
        try:
            commit.wait(SECONDS_MAX * 1000)
        except Exception as error:
            errors.append(error)

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    rig.sender.force_close()
    rig.start().join(SECONDS_MAX)
    waiter.join(SECONDS_MAX)
    assert isinstance(errors[0], ClosedError)
    assert future.exception(0) is not None


def test_force_close_fails_the_wait_for_a_request_in_flight():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_OFFSETS, SILENCE)
    result = rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    rig.turn(2)
    rig.sender.force_close()
    rig.start().join(SECONDS_MAX)
    with pytest.raises(ClosedError):
        result.wait(0)


@pytest.mark.parametrize("reply", [AddOffsetsToTxnResponse(), AddOffsetsToTxnResponse(error_code=14), DISCONNECT])
def test_a_fatal_error_fails_the_wait_for_a_request_in_flight(reply):
    rig = rig_in_transaction()
    rig.cluster.script(ADD_OFFSETS, After(100, reply))
    result = rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    rig.turn(2)
    rig.manager.fail_fatally(HeadraceError("something else"))
    with pytest.raises(FatalError, match="something else"):
        rig.finish(result)


# -- anything ------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [V1, V2])
@pytest.mark.parametrize("seed", range(10))
def test_a_commit_is_sent_only_when_all_its_records_are_stored(seed, features):
    chance = random.Random(seed)
    rig = new_rig(
        brokers=2, partitions=3, batch_bytes=256, delivery_timeout_ms=3000, request_timeout_ms=900, features=features
    )
    current: list[bytes] = []

    def stored() -> list[bytes | None]:
        return [value for partition in range(3) for value in rig.log.values(partition)]

    def produce(sent: Any) -> Any:
        kind = chance.randrange(14)
        if kind == 0:
            return DISCONNECT
        if kind == 1:
            return rig.log.stored_but_lost(sent)
        if kind == 2:
            return rig.log.refuse(chance.choice([3, 6, 7, 19]))(sent)
        if kind == 3:
            return rig.log.refuse(INVALID_RECORD)(sent)
        return rig.log.produce(sent)

    def end(sent: Any) -> Any:
        if sent.message.committed:
            assert set(current) <= set(stored()), "a commit before its records"
        kind = chance.randrange(6)
        if kind == 0:
            return DISCONNECT
        return EndTxnResponse(error_code=chance.choice([14, 15, 16, 51])) if kind == 1 else rig.reply_to_end(sent)

    def add(sent: Any) -> Any:
        code = chance.choice([0, 0, 0, 14, 16, 51])
        return partitions_added(sent, {0: code, 1: code, 2: code}) if chance.random() < 0.9 else DISCONNECT

    rig.init(begin=False)
    rig.cluster.always(PRODUCE, lambda sent: produce(sent))
    rig.cluster.always(END_TXN, end)
    rig.cluster.always(ADD_PARTITIONS, add)
    ends = {"commit": 0, "abort": 0}
    for n in range(25):
        current.clear()
        rig.manager.begin_transaction()
        try:
            for i in range(chance.randrange(12)):
                value = b"%d:%d" % (n, i)
                rig.send(value, chance.randrange(3))
                current.append(value)
                if chance.random() < 0.4:
                    rig.turn()
            rig.commit()
            ends["commit"] += 1
            assert [stored().count(value) for value in current] == [1] * len(current)
        except AbortableError:
            rig.abort()
            ends["abort"] += 1
        assert rig.state() is State.READY
        assert not rig.accumulator.has_incomplete()
    assert ends["commit"] > 3
    assert rig.pool.available_bytes == rig.pool.total_bytes
    for partition in range(3):
        order = [tuple(map(int, v.split(b":"))) for v in rig.log.values(partition) if v is not None]
        assert order == sorted(order)
