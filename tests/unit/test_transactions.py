"""The transaction manager with the sender: init, partitions and offsets, the order of requests."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import BrokerError, ClosedError, FatalError, IllegalStateError
from headrace.producer.records import Offset
from headrace.producer.sequences import NO_PRODUCER_ID_AND_EPOCH
from headrace.producer.transaction_requests import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    PendingResult,
    QueuedRequest,
)
from headrace.producer.transaction_state import State
from headrace.types import ProducerIdAndEpoch
from headrace.wire.api.transactions import InitProducerIdResponse
from headrace.wire.records import read_batches
from tests.support.fake_network import DISCONNECT, FIRST_PORT, HOST, SILENCE, After
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
    coordinator,
    new_rig,
    partitions_added,
    rig_in_transaction,
    rig_with_coordinator_apart,
)

pytestmark = pytest.mark.both_kernels

CONCURRENT_TRANSACTIONS = 51


# -- init ----------------------------------------------------------------------------------------


def test_init_finds_the_coordinator_and_gets_an_id():
    rig = new_rig(brokers=2)
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(1))
    rig.finish(rig.manager.begin_init())
    assert rig.keys_sent() == [FIND_COORDINATOR, INIT_PRODUCER_ID]
    find, init = (sent for sent in rig.cluster.sent if sent.api_key in (FIND_COORDINATOR, INIT_PRODUCER_ID))
    assert (find.message.key_type, find.message.coordinator_keys) == (1, ("x",))
    assert (init.node_id, init.message.transactional_id, init.message.transaction_timeout_ms) == (1, "x", 60_000)
    assert rig.manager.producer == ProducerIdAndEpoch(PRODUCER_ID, 0)


def test_an_old_broker_gets_a_request_for_one_coordinator():
    rig = new_rig(versions={FIND_COORDINATOR: (0, 3)})

    def respond(sent: Any) -> Any:
        assert (sent.message.key, sent.message.key_type) == ("x", 1)
        return coordinator().replace(coordinators=(), node_id=0, host=HOST, port=FIRST_PORT)

    rig.cluster.always(FIND_COORDINATOR, respond)
    rig.init()


@pytest.mark.behaviour("T02")
def test_init_waits_while_the_transaction_of_the_older_instance_ends():
    rig = new_rig()
    rig.cluster.script(INIT_PRODUCER_ID, *[InitProducerIdResponse(error_code=CONCURRENT_TRANSACTIONS)] * 5)
    rig.finish(rig.manager.begin_init())
    assert len(rig.cluster.of(INIT_PRODUCER_ID)) == 6


def test_a_coordinator_that_metadata_does_not_know_can_be_reached():
    rig = new_rig()
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(7))
    rig.init()
    assert rig.client.is_connected(7)


def test_an_unreachable_coordinator_is_looked_up_again_with_back_off():
    rig = new_rig(brokers=2)
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(1))
    rig.stop_broker(1)
    result = rig.manager.begin_init()
    rig.run_for(4000)
    assert not result.is_done
    assert 2 <= len(rig.cluster.of(FIND_COORDINATOR)) < 30
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(0))
    rig.finish(result)


def test_a_refused_init_may_be_tried_again():
    rig = new_rig()
    rig.cluster.script(INIT_PRODUCER_ID, InitProducerIdResponse(error_code=53))
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        rig.finish(rig.manager.begin_init())
    assert rig.state() is State.UNINITIALIZED
    rig.finish(rig.manager.begin_init())
    assert rig.state() is State.READY


# -- begin, add partitions -----------------------------------------------------------------------


@pytest.mark.behaviour("T04")
def test_begin_is_local_and_the_first_partition_goes_to_the_coordinator():
    rig = rig_in_transaction()
    rig.turn(3)
    assert rig.keys_sent() == []
    future = rig.send(b"v", 1)
    rig.run_until(future.done)
    assert rig.keys_sent() == [ADD_PARTITIONS, PRODUCE]
    request = rig.cluster.of(ADD_PARTITIONS)[0].message
    assert (request.v3_and_below_transactional_id, request.v3_and_below_producer_id) == ("x", PRODUCER_ID)
    produce = rig.cluster.of(PRODUCE)[0]
    assert produce.message.transactional_id == "x"
    assert produce.version == 11  # v12 would add partitions by itself
    (batch,) = read_batches(bytes(produce.message.topic_data[0].partition_data[0].records))
    assert batch.header.is_transactional


@pytest.mark.behaviour("T05")
def test_many_new_partitions_make_one_request():
    rig = rig_in_transaction(partitions=20)
    futures = [rig.send(b"v", p) for p in range(20)]
    rig.run_until(lambda: all(f.done() for f in futures))
    (request,) = rig.cluster.of(ADD_PARTITIONS)
    assert request.message.v3_and_below_topics[0].partitions == tuple(range(20))
    rig.run_until(rig.send(b"again", 3).done)
    assert len(rig.cluster.of(ADD_PARTITIONS)) == 1


@pytest.mark.behaviour("T05")
def test_no_batch_leaves_before_its_partition_is_added():
    rig = rig_with_coordinator_apart()
    rig.run_until(rig.send(b"v", 0).done)
    rig.cluster.script(ADD_PARTITIONS, After(1000, partitions_added))
    known, new = rig.send(b"known", 0), rig.send(b"new", 1)
    rig.turn(5)
    assert (known.done(), new.done()) == (True, False)
    assert rig.log.values(1) == []
    rig.run_until(new.done)


@pytest.mark.behaviour("T05")
def test_the_end_of_the_transaction_before_is_waited_for_only_a_moment():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_PARTITIONS, *[lambda sent: partitions_added(sent, {0: CONCURRENT_TRANSACTIONS})] * 3)
    start = rig.clock.now_ms
    rig.run_until(rig.send(b"v", 0).done)
    assert rig.clock.now_ms - start == 60
    # Later in the transaction it is something else, and waits as usual.
    rig.cluster.script(ADD_PARTITIONS, *[lambda sent: partitions_added(sent, {1: CONCURRENT_TRANSACTIONS})] * 3)
    start = rig.clock.now_ms
    rig.run_until(rig.send(b"v", 1).done)
    assert rig.clock.now_ms - start > 300


# -- the order of requests -----------------------------------------------------------------------


@pytest.mark.behaviour("T06")
def test_requests_leave_in_the_order_of_their_priority():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_PARTITIONS, DISCONNECT)  # so that the coordinator has to be found again
    rig.send()
    offsets = rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    commit = rig.manager.begin_commit()
    rig.accumulator.close_open_batches()
    rig.finish(commit)
    keys = rig.keys_sent()
    assert keys[0] in (ADD_OFFSETS, ADD_PARTITIONS)
    assert keys[-1] == END_TXN
    assert keys.index(FIND_COORDINATOR) < keys.index(END_TXN)
    assert set(keys[:-1]) == {ADD_OFFSETS, ADD_PARTITIONS, FIND_COORDINATOR, TXN_OFFSET_COMMIT, PRODUCE}
    offsets.wait(0)


@pytest.mark.behaviour("T06")
def test_requests_are_sent_by_priority():
    rig = rig_in_transaction()
    manager, group = rig.manager, GROUP
    fresh, current = NO_PRODUCER_ID_AND_EPOCH, manager.producer
    queued: list[QueuedRequest] = [
        InitProducerId(manager, current, None),  # for a new epoch, after the end
        EndTransaction(manager, True, PendingResult("commit_transaction")),
        AddOffsets(manager, {("t", 0): 1}, group, PendingResult("send_offsets_to_transaction")),
        AddPartitions(manager, frozenset({("t", 0)})),
        InitProducerId(manager, fresh, None),
        FindCoordinator(manager, ("transaction", "x"), rig.client.set_node),
    ]
    manager.transaction_started = True
    for request in queued:
        manager.enqueue(request)
    left = [manager.next_request(lambda: False, rig.clock.now_ms) for _ in queued]
    kinds = [FindCoordinator, InitProducerId, AddOffsets, AddPartitions, EndTransaction, InitProducerId]
    assert [type(request) for request in left] == kinds
    assert left[1] is queued[4]


def test_one_request_is_in_flight_at_a_time():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_OFFSETS, SILENCE)
    rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    rig.send()
    rig.turn(5)
    assert rig.keys_sent() == [ADD_OFFSETS]


# -- offsets -------------------------------------------------------------------------------------


@pytest.mark.behaviour("T09")
def test_offsets_go_to_the_coordinator_of_the_group_with_its_metadata():
    rig = rig_in_transaction(brokers=2)
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(1 - sent.message.key_type))
    offsets: dict[tuple[str, int], Offset] = {("in", 0): 5, ("in", 1): (6, "note")}
    rig.finish(rig.manager.begin_send_offsets(offsets, GROUP))
    assert rig.keys_sent() == [ADD_OFFSETS, FIND_COORDINATOR, TXN_OFFSET_COMMIT]
    add, find, commit = (sent for sent in rig.cluster.sent if sent.api_key != 3)
    assert (add.node_id, add.message.group_id, commit.node_id) == (0, "g", 1)
    assert (find.message.key_type, find.message.coordinator_keys) == (0, ("g",))
    message = commit.message
    assert (message.group_id, message.generation_id, message.member_id) == ("g", 3, "member")
    assert commit.version == 4
    (topic,) = message.topics
    rows = [(p.partition_index, p.committed_offset, p.committed_metadata) for p in topic.partitions]
    assert rows == [(0, 5, ""), (1, 6, "note")]
    rig.commit()
    assert rig.keys_sent()[-1] == END_TXN


def test_each_group_has_its_coordinator():
    rig = rig_in_transaction(brokers=3)
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator({"a": 1, "b": 2}[sent.message.coordinator_keys[0]]))
    for group in ("a", "b", "a"):
        rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, type(GROUP)(group)))
    assert [sent.node_id for sent in rig.cluster.of(TXN_OFFSET_COMMIT)] == [1, 2, 1]
    assert len(rig.cluster.of(FIND_COORDINATOR)) == 2


def test_group_metadata_needs_a_broker_that_can_take_it():
    rig = rig_in_transaction(versions={TXN_OFFSET_COMMIT: (0, 2)})
    with pytest.raises(FatalError):
        rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, GROUP))
    rig = rig_in_transaction(versions={TXN_OFFSET_COMMIT: (0, 2)})
    rig.finish(rig.manager.begin_send_offsets({("in", 0): 5}, type(GROUP)("g")))


# -- leaving a transaction to somebody else ------------------------------------------------------


def test_the_io_thread_resets_the_manager_to_another_transactional_id():
    rig = rig_in_transaction()
    rig.run_until(rig.send().done)
    result = rig.manager.begin_reset("y")
    assert (result.is_done, rig.state()) == (False, State.IN_TRANSACTION)  # until the I/O thread comes to it
    rig.finish(result)
    assert (rig.state(), rig.manager.has_producer_id) == (State.UNINITIALIZED, False)
    rig.finish(rig.manager.begin_init())
    assert rig.cluster.of(INIT_PRODUCER_ID)[-1].message.transactional_id == "y"
    assert END_TXN not in rig.keys_sent()


def test_a_reset_fails_while_a_request_is_in_flight():
    rig = rig_in_transaction()
    rig.cluster.script(ADD_OFFSETS, SILENCE)
    rig.manager.begin_send_offsets({("t", 0): 5}, GROUP)
    rig.turn()
    with pytest.raises(IllegalStateError, match="request is in flight"):
        rig.finish(rig.manager.begin_reset("y"))
    assert rig.state() is State.IN_TRANSACTION


def test_a_reset_fails_when_the_producer_closes():
    rig = rig_in_transaction()
    result = rig.manager.begin_reset("y")
    rig.manager.cancel_requests(ClosedError("closed"))
    with pytest.raises(ClosedError):
        result.wait(0)
