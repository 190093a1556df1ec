"""Every error code of a Produce response, for each kind of producer: what Kafka's own does."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ERROR_CODES, AbortableError, BrokerError, FatalError
from headrace.producer.transaction_state import State
from headrace.wire.records import read_batches
from tests.support.error_facts import CODES, REFRESHED, RETRIED
from tests.support.rig import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, METADATA, PRODUCE, Rig

pytestmark = pytest.mark.both_kernels

OUT_OF_ORDER, DUPLICATE, UNKNOWN_PRODUCER = 45, 46, 59
# Not authorised for the cluster or the transactional id, another's producer id, fenced.
FATAL = frozenset({31, 49, 53, 90})


def header_of(sent: Any) -> Any:
    (batch,) = read_batches(bytes(sent.message.topic_data[0].partition_data[0].records))
    return batch.header


def refreshes(rig: Rig) -> bool:
    """Return whether metadata was requested, or will be after the back-off."""
    return bool(rig.cluster.of(METADATA)) or rig.metadata.time_to_update_ms(rig.clock.now_ms) < 10_000


def outcome(rig: Rig, code: int) -> str:
    """The result of a record whose first attempt fails with the code."""
    rig.cluster.script(PRODUCE, rig.log.refuse(code, log_start_offset=0))
    future = rig.send(b"record")
    attempts_before = len(rig.cluster.of(PRODUCE))
    rig.run_until(lambda: future.done() or len(rig.cluster.of(PRODUCE)) > attempts_before + 1)
    if future.done() and future.exception(0) is not None:
        assert isinstance(future.exception(0), BrokerError)
        assert future.exception(0).code == code
        return "failed"
    if future.done() and len(rig.cluster.of(PRODUCE)) == attempts_before + 1:
        assert future.result(0).offset is None
        return "taken for stored"
    rig.run_until(future.done)
    assert future.result(0).offset is not None
    return "retried"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.behaviour("P31")
def test_a_plain_producer(code):
    rig = Rig()
    expected = "retried" if code in RETRIED else "taken for stored" if code == DUPLICATE else "failed"
    assert outcome(rig, code) == expected
    assert refreshes(rig) == (code in REFRESHED)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.behaviour("P31", "P46")
def test_an_idempotent_producer(code):
    rig = Rig(idempotent=True)
    rig.run_until(rig.send(b"first").done)
    rig.cluster.sent.clear()
    happened = outcome(rig, code)
    assert refreshes(rig) == (code in REFRESHED)
    if code in FATAL:
        assert (happened, rig.state()) == ("failed", State.FATAL_ERROR)
        with pytest.raises(FatalError):
            rig.send(b"never")
        return
    assert rig.state() is State.READY
    if code in RETRIED:
        assert happened == "retried"
        assert [header_of(s).base_sequence for s in rig.cluster.of(PRODUCE)] == [1, 1]
        epoch, sequence = 0, 2
    elif code == DUPLICATE:
        assert happened == "taken for stored"
        return
    elif code in (OUT_OF_ORDER, UNKNOWN_PRODUCER):
        # KIP-360: a new epoch, numbers from 0, and the same batch again.
        assert happened == "retried"
        assert [(header_of(s).producer_epoch, header_of(s).base_sequence) for s in rig.cluster.of(PRODUCE)] == [
            (0, 1),
            (1, 0),
        ]
        epoch, sequence = 1, 1
    else:
        # The batch is lost, and its numbers with it: those that follow get a new epoch.
        assert happened == "failed"
        epoch, sequence = 1, 0
    rig.run_until(rig.send(b"next").done)
    last = header_of(rig.cluster.of(PRODUCE)[-1])
    assert (last.producer_epoch, last.base_sequence) == (epoch, sequence)
    values = [b"first", *([b"record"] if happened == "retried" else []), b"next"]
    assert rig.log.values() == values
    assert not rig.cluster.of(INIT_PRODUCER_ID)


@pytest.mark.parametrize("code", CODES)
def test_a_transactional_producer(code):
    rig = Rig(transactional_id="x")
    rig.init()
    rig.run_until(rig.send(b"first").done)
    happened = outcome(rig, code)
    if code in FATAL:
        assert (happened, rig.state()) == ("failed", State.FATAL_ERROR)
        with pytest.raises(FatalError):
            rig.commit()
        with pytest.raises(FatalError):
            rig.abort()
        return
    if code in RETRIED or code == DUPLICATE:
        assert happened == ("retried" if code in RETRIED else "taken for stored")
        if code in RETRIED:
            rig.commit()
            assert rig.state() is State.READY
        return
    assert (happened, rig.state()) == ("failed", State.ABORTABLE_ERROR)
    with pytest.raises(AbortableError) as caught:
        rig.send(b"more")
    assert ERROR_CODES[code].name in str(caught.value)
    with pytest.raises(AbortableError):
        rig.commit()
    rig.cluster.sent.clear()
    rig.abort()
    # KIP-360: a new epoch after the abort.
    assert rig.keys_sent() == [END_TXN, INIT_PRODUCER_ID]
    assert rig.state() is State.READY
    rig.manager.begin_transaction()
    rig.send(b"again")
    rig.commit()
    last = header_of(rig.cluster.of(PRODUCE)[-1])
    assert (last.producer_epoch, last.base_sequence, last.is_transactional) == (1, 0, True)
    assert rig.keys_sent()[-3:] == [ADD_PARTITIONS, PRODUCE, END_TXN]


def test_an_unknown_error_code_is_not_retried():
    rig = Rig()
    error_code = 9999
    rig.cluster.script(PRODUCE, rig.log.refuse(error_code))
    error = rig.error_of(rig.send())
    assert (error.code, str(error)[:10]) == (error_code, "ERROR_9999")


def test_the_error_names_partition_and_message():
    rig = Rig()
    rig.cluster.script(PRODUCE, rig.log.refuse(87, message="no key in a compacted topic"))
    assert str(rig.error_of(rig.send(b"v", 1))) == "INVALID_RECORD (87): t-1: no key in a compacted topic"
