"""Transactions v2 (KIP-890): no AddPartitions, a new epoch with every end, and the way between v1 and v2."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import AbortableError, FatalError
from headrace.producer.transaction_state import State
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.transactions import EndTxnResponse
from headrace.wire.records import read_batches
from tests.support.fake_network import DISCONNECT
from tests.support.rig import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    GROUP,
    INIT_PRODUCER_ID,
    PRODUCE,
    PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    V1,
    V2,
    Rig,
)

pytestmark = pytest.mark.both_kernels

TRANSACTION_ABORTABLE, INVALID_RECORD, CONCURRENT_TRANSACTIONS = 120, 87, 51


def rig_in_transaction(**options: Any) -> Rig:
    rig = Rig(transactional_id="x", features=V2, **options)
    rig.init()
    return rig


def header_of_last(rig: Rig) -> Any:
    (batch,) = read_batches(bytes(rig.cluster.of(PRODUCE)[-1].message.topic_data[0].partition_data[0].records))
    return batch.header


@pytest.mark.behaviour("T11")
def test_the_first_batch_adds_the_partition_at_the_broker():
    rig = rig_in_transaction()
    rig.send()
    rig.commit()
    assert rig.keys_sent() == [PRODUCE, END_TXN]
    assert rig.cluster.of(PRODUCE)[0].version >= 12
    end = rig.cluster.of(END_TXN)[0]
    assert (end.version, end.message.producer_epoch) == (5, 0)


@pytest.mark.behaviour("T11")
def test_every_end_brings_a_new_epoch_and_numbers_start_again():
    rig = rig_in_transaction()
    for n in range(4):
        if n:
            rig.manager.begin_transaction()
        rig.send(b"%d" % n)
        (rig.commit if n % 2 else rig.abort)() if n != 2 else rig.commit()
        assert rig.manager.producer == ProducerIdAndEpoch(PRODUCER_ID, n)  # the broker does not know the first
    headers = []
    for sent in rig.cluster.of(PRODUCE):
        (batch,) = read_batches(bytes(sent.message.topic_data[0].partition_data[0].records))
        headers.append((batch.header.producer_epoch, batch.header.base_sequence))
    assert headers == [(0, 0), (1, 0), (2, 0)]  # what was aborted at once was never sent
    assert not rig.cluster.of(INIT_PRODUCER_ID)


def test_used_up_epochs_bring_a_new_id_with_the_end():
    rig = rig_in_transaction()
    rig.cluster.script(END_TXN, EndTxnResponse(producer_id=5000, producer_epoch=0))
    rig.send(b"a")
    rig.commit()
    assert rig.manager.producer == ProducerIdAndEpoch(5000, 0)
    rig.manager.begin_transaction()
    rig.send(b"b")
    rig.commit()
    assert (header_of_last(rig).producer_id, header_of_last(rig).base_sequence) == (5000, 0)
    assert rig.cluster.of(END_TXN)[-1].message.producer_id == 5000


def test_an_empty_transaction_is_not_sent_to_the_coordinator():
    """The coordinator would reject it: it does not know the transaction (KAFKA-18401)."""
    rig = rig_in_transaction()
    rig.commit()
    rig.manager.begin_transaction()
    rig.abort()
    assert rig.keys_sent() == []
    assert rig.manager.producer.epoch == 0


def test_offsets_need_no_adding():
    rig = rig_in_transaction()
    rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, GROUP))
    assert rig.keys_sent() == [FIND_COORDINATOR, TXN_OFFSET_COMMIT]
    assert rig.cluster.of(TXN_OFFSET_COMMIT)[0].version == 5
    rig.commit()
    assert rig.keys_sent()[-1] == END_TXN


def test_an_error_needs_no_other_epoch_than_that_of_the_end():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(INVALID_RECORD))
    rig.error_of(rig.send())
    with pytest.raises(AbortableError):
        rig.commit()
    rig.abort()
    assert rig.keys_sent() == [PRODUCE, END_TXN]
    assert rig.manager.producer.epoch == 1
    rig.manager.begin_transaction()
    rig.send(b"again")
    rig.commit()
    assert (header_of_last(rig).producer_epoch, header_of_last(rig).base_sequence) == (1, 0)


@pytest.mark.behaviour("T11")
def test_an_abortable_error_of_a_batch():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, rig.log.refuse(TRANSACTION_ABORTABLE))
    rig.error_of(rig.send())
    assert rig.state() is State.ABORTABLE_ERROR
    rig.abort()
    assert rig.state() is State.READY


def test_an_abortable_error_of_the_commit():
    rig = rig_in_transaction()
    rig.cluster.script(END_TXN, EndTxnResponse(error_code=TRANSACTION_ABORTABLE))
    rig.send()
    with pytest.raises(AbortableError, match="TRANSACTION_ABORTABLE"):
        rig.commit()
    rig.abort()
    assert [sent.message.committed for sent in rig.cluster.of(END_TXN)] == [True, False]


def test_the_transaction_before_may_still_be_ending():
    rig = rig_in_transaction()
    rig.cluster.script(PRODUCE, *[rig.log.refuse(CONCURRENT_TRANSACTIONS)] * 3)
    rig.send()
    rig.commit()
    assert rig.log.values() == [b"value"]


def test_a_lost_end_txn_response_is_retried_with_the_same_epoch():
    rig = rig_in_transaction()
    rig.cluster.script(END_TXN, DISCONNECT, EndTxnResponse(producer_id=PRODUCER_ID, producer_epoch=1))
    rig.send()
    rig.commit()
    assert [sent.message.producer_epoch for sent in rig.cluster.of(END_TXN)] == [0, 0]
    assert rig.manager.producer.epoch == 1


# -- between v1 and v2 ---------------------------------------------------------------------------


def test_switching_to_v2_takes_a_new_epoch_between_two_transactions():
    rig = Rig(transactional_id="x", features=V1)
    rig.init()
    rig.send(b"a", 0)
    rig.upgrade(features=V2)
    rig.run_until(rig.send(b"b", 1).done)
    rig.commit()
    # This transaction ends as it began; then a new epoch, so that nothing old gets into the next one.
    assert rig.keys_sent() == [ADD_PARTITIONS, PRODUCE, END_TXN, INIT_PRODUCER_ID]
    assert rig.cluster.of(PRODUCE)[0].version == 11
    assert rig.cluster.of(END_TXN)[0].version == 4
    assert rig.manager.v2_enabled
    assert rig.manager.producer.epoch == 1
    rig.cluster.sent.clear()
    rig.manager.begin_transaction()
    rig.send(b"c")
    rig.commit()
    assert rig.keys_sent() == [PRODUCE, END_TXN]
    assert rig.cluster.of(PRODUCE)[0].version >= 12
    assert rig.cluster.of(END_TXN)[0].version == 5


def test_switching_back_to_v1_takes_effect_with_the_next_transaction():
    rig = rig_in_transaction()
    rig.send(b"a")
    rig.upgrade(features=V1)
    rig.turn(2)
    rig.commit()
    assert rig.keys_sent() == [PRODUCE, END_TXN]
    rig.cluster.sent.clear()
    rig.manager.begin_transaction()
    rig.send(b"b")
    rig.commit()
    assert rig.keys_sent() == [ADD_PARTITIONS, PRODUCE, END_TXN]
    assert rig.cluster.of(END_TXN)[0].version == 4


def test_missing_features_change_nothing():
    rig = rig_in_transaction()
    rig.upgrade(features={})
    rig.send()
    rig.commit()
    assert rig.manager.v2_enabled


@pytest.mark.parametrize("features", [{}, V1, {"metadata.version": 25}])
def test_without_the_feature_transactions_are_v1(features):
    rig = Rig(transactional_id="x", features=features)
    rig.init()
    rig.send()
    rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, GROUP))
    rig.commit()
    assert set(rig.keys_sent()) == {ADD_PARTITIONS, PRODUCE, ADD_OFFSETS, FIND_COORDINATOR, TXN_OFFSET_COMMIT, END_TXN}
    versions = {key: rig.cluster.of(key)[0].version for key in (PRODUCE, TXN_OFFSET_COMMIT, END_TXN, ADD_PARTITIONS)}
    assert versions == {PRODUCE: 11, TXN_OFFSET_COMMIT: 4, END_TXN: 4, ADD_PARTITIONS: 3}


def test_offsets_are_not_committed_by_an_old_group_coordinator_in_v2():
    """It would not add the group to the transaction, and the offsets would never be seen."""
    rig = rig_in_transaction(versions={TXN_OFFSET_COMMIT: (0, 4)})
    with pytest.raises(FatalError):
        rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, GROUP))


def test_an_idempotent_producer_has_nothing_to_do_with_it():
    rig = Rig(idempotent=True, features=V2)
    rig.run_until(rig.send().done)
    assert rig.keys_sent() == [INIT_PRODUCER_ID, PRODUCE]
