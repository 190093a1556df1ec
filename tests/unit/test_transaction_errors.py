"""Every error code that a coordinator can return, for each request: what Kafka's own producer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ERROR_CODES, AbortableError, BrokerError, FatalError, HeadraceError
from headrace.producer.transaction_state import State
from headrace.wire.api.transactions import AddOffsetsToTxnResponse, EndTxnResponse, InitProducerIdResponse
from tests.support.error_facts import CODES, RETRIED
from tests.support.fake_network import DISCONNECT
from tests.support.rig import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    FIND_COORDINATOR,
    GROUP,
    INIT_PRODUCER_ID,
    TXN_OFFSET_COMMIT,
    Rig,
    coordinator,
    offsets_committed,
    partitions_added,
)

pytestmark = pytest.mark.both_kernels

MOVED = frozenset({15, 16})  # COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
FENCED = frozenset({47, 90})
UNKNOWN_PRODUCER, ABORTABLE = 59, 120


class Case:
    """A request, how to have it sent, and what its errors mean beyond the common ones."""

    def __init__(
        self,
        key: int,
        act: Callable[[Rig], None],
        reply: Callable[[int], Any],
        *,
        abortable: set[int],
        refused: set[int] | None = None,
        find_again: frozenset[int] = MOVED,
        other: str = "fatal",
        finds: str = "transaction",
        begin: bool = True,
        fatal: frozenset[int] = frozenset(),
    ) -> None:
        self.key, self.act, self.reply = key, act, reply
        self.abortable, self.refused = abortable, refused or set()
        self.find_again, self.other, self.finds, self.begin, self.fatal = find_again, other, finds, begin, fatal

    def expected(self, code: int) -> str:
        if code in self.find_again:
            return "find again"
        if code in RETRIED:
            return "retry"
        if code in FENCED or code in self.fatal:
            return "fatal"
        if code in self.refused:
            return "refused"
        return "abortable" if code in self.abortable else self.other


def init(rig: Rig) -> None:
    rig.finish(rig.manager.begin_init())


def send(rig: Rig) -> None:
    error = rig.error_of(rig.send())
    if error is not None:
        raise error


def send_offsets(rig: Rig) -> None:
    rig.finish(rig.manager.begin_send_offsets({("t", 0): 5}, GROUP))


def commit(rig: Rig) -> None:
    rig.send()
    rig.commit()


CASES = {
    "FindCoordinator": Case(
        FIND_COORDINATOR,
        init,
        lambda code: coordinator(error_code=code),
        abortable=set(),
        refused={30, ABORTABLE},
        find_again=frozenset(),
        begin=False,
    ),
    "InitProducerId": Case(
        INIT_PRODUCER_ID,
        init,
        lambda code: InitProducerIdResponse(error_code=code),
        abortable=set(),
        refused={31, 53, ABORTABLE},
        begin=False,
    ),
    "AddPartitionsToTxn": Case(
        ADD_PARTITIONS,
        send,
        lambda code: lambda sent: partitions_added(sent, {0: code}),
        abortable={UNKNOWN_PRODUCER, ABORTABLE},
        fatal=frozenset({48, 49, 53}),
        other="abortable",
    ),
    "AddOffsetsToTxn": Case(
        ADD_OFFSETS,
        send_offsets,
        lambda code: AddOffsetsToTxnResponse(error_code=code),
        abortable={30, UNKNOWN_PRODUCER, ABORTABLE},
    ),
    "TxnOffsetCommit": Case(
        TXN_OFFSET_COMMIT,
        send_offsets,
        lambda code: lambda sent: offsets_committed(sent, {0: code}),
        abortable={22, 25, 30, 82, ABORTABLE},
        find_again=MOVED | {7},
        finds="group",
    ),
    "EndTxn": Case(
        END_TXN, commit, lambda code: EndTxnResponse(error_code=code), abortable={UNKNOWN_PRODUCER, ABORTABLE}
    ),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", [name for name in CASES if name != "FindCoordinator"])
@pytest.mark.behaviour("T07")
def test_every_code_of_every_request(name, code):
    case = CASES[name]
    rig = Rig(transactional_id="x")
    if case.begin:
        rig.init()
    rig.cluster.script(case.key, case.reply(code))
    expected = case.expected(code)
    if expected in ("retry", "find again"):
        case.act(rig)
        assert len(rig.cluster.of(case.key)) == 2
        key_types = [sent.message.key_type for sent in rig.cluster.of(FIND_COORDINATOR)]
        before_and_again = key_types.count(1 if case.finds == "transaction" else 0)
        first_time = 0 if case.begin and case.finds == "transaction" else 1
        assert before_and_again == first_time + (expected == "find again")
        assert not rig.manager.has_error
        return
    with pytest.raises(HeadraceError) as caught:
        case.act(rig)
    assert len(rig.cluster.of(case.key)) == 1
    code_name = ERROR_CODES[90 if code in FENCED else code].name
    assert code_name in str(caught.value)
    if expected == "fatal":
        assert isinstance(caught.value, FatalError)
        assert rig.manager.has_fatal_error
        with pytest.raises(FatalError):
            rig.manager.begin_abort()
    elif expected == "refused":
        assert isinstance(caught.value, AbortableError if code == ABORTABLE else BrokerError)
        assert rig.state() is State.UNINITIALIZED  # there is nothing to abort: it may be tried again
        init(rig)
    else:
        assert isinstance(caught.value, AbortableError)
        assert rig.state() is State.ABORTABLE_ERROR
        rig.abort()
        assert rig.state() is State.READY
        bumped = bool(rig.cluster.of(INIT_PRODUCER_ID))
        assert bumped == (code == UNKNOWN_PRODUCER)  # the coordinator has forgotten us: a new epoch


@pytest.mark.parametrize("code", CODES)
@pytest.mark.behaviour("T07")
def test_every_code_of_finding_the_coordinator_of_the_transaction(code):
    rig = Rig(transactional_id="x")
    rig.cluster.script(FIND_COORDINATOR, coordinator(error_code=code))
    if code in RETRIED:
        init(rig)
        assert len(rig.cluster.of(FIND_COORDINATOR)) == 2
    elif code in (30, ABORTABLE):
        with pytest.raises(AbortableError):
            init(rig)
        assert rig.state() is State.UNINITIALIZED
        init(rig)
    else:
        with pytest.raises(FatalError):
            init(rig)


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_finding_the_coordinator_of_a_group(code):
    rig = Rig(transactional_id="x")
    rig.init()
    rig.cluster.script(FIND_COORDINATOR, coordinator(error_code=code))
    if code in RETRIED:
        send_offsets(rig)
        assert len(rig.cluster.of(FIND_COORDINATOR)) == 2
    elif code in (30, ABORTABLE):
        with pytest.raises(AbortableError):
            send_offsets(rig)
        rig.abort()
        assert rig.state() is State.READY
    else:
        with pytest.raises(FatalError):
            send_offsets(rig)


@pytest.mark.parametrize("name", CASES)
def test_a_lost_connection_is_tried_again_with_the_coordinator_found_again(name):
    case = CASES[name]
    rig = Rig(transactional_id="x")
    if case.begin:
        rig.init()
    rig.cluster.script(case.key, DISCONNECT)
    case.act(rig)
    assert len(rig.cluster.of(case.key)) >= 2


@pytest.mark.parametrize("name", CASES)
def test_a_broker_that_cannot_take_the_request_is_fatal(name):
    case = CASES[name]
    rig = Rig(transactional_id="x")
    if case.begin:
        rig.init()
    rig.upgrade(versions={case.key: (90, 91)})
    with pytest.raises(FatalError):
        case.act(rig)


@pytest.mark.parametrize("name", ["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"])
def test_without_a_new_epoch_to_be_had_a_forgotten_producer_is_fatal(name):
    case = CASES[name]
    rig = Rig(transactional_id="x", versions={INIT_PRODUCER_ID: (0, 2)})
    rig.init()
    rig.cluster.script(case.key, case.reply(UNKNOWN_PRODUCER))
    with pytest.raises(FatalError):
        case.act(rig)


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER, ABORTABLE])
def test_an_abort_that_cannot_be_is_done_by_a_new_epoch(code):
    rig = Rig(transactional_id="x")
    rig.init()
    rig.run_until(rig.send().done)
    rig.cluster.script(END_TXN, EndTxnResponse(error_code=code))
    rig.abort()
    assert rig.keys_sent()[-2:] == [END_TXN, INIT_PRODUCER_ID]
    assert rig.state() is State.READY
    rig.manager.begin_transaction()


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER, ABORTABLE])
def test_an_impossible_abort_is_fatal_without_a_new_epoch(code):
    rig = Rig(transactional_id="x", versions={INIT_PRODUCER_ID: (0, 2)})
    rig.init()
    rig.run_until(rig.send().done)
    rig.cluster.script(END_TXN, EndTxnResponse(error_code=code))
    with pytest.raises(FatalError):
        rig.abort()


def test_a_new_epoch_that_cannot_be_had_just_now_needs_another_abort():
    rig = Rig(transactional_id="x")
    rig.init()
    rig.cluster.script(CASES["AddPartitionsToTxn"].key, CASES["AddPartitionsToTxn"].reply(UNKNOWN_PRODUCER))
    with pytest.raises(AbortableError):
        send(rig)
    rig.cluster.script(INIT_PRODUCER_ID, InitProducerIdResponse(error_code=ABORTABLE))
    with pytest.raises(AbortableError):
        rig.abort()
    rig.abort()
    assert rig.manager.producer.epoch == 1


# -- several partitions in one response ----------------------------------------------------------


def test_one_topic_that_may_not_be_written_fails_the_transaction_and_names_it():
    rig = Rig(transactional_id="x", partitions=3)
    rig.init()
    rig.cluster.script(ADD_PARTITIONS, lambda sent: partitions_added(sent, {0: 55, 1: 29, 2: 55}))
    for partition in range(3):
        rig.send(b"v", partition)
    with pytest.raises(AbortableError, match=r"TOPIC_AUTHORIZATION_FAILED .* t-1"):
        rig.commit()


def test_partitions_that_were_not_attempted_are_not_taken_for_added():
    rig = Rig(transactional_id="x")
    rig.init()
    rig.cluster.script(ADD_PARTITIONS, lambda sent: partitions_added(sent, {0: 55}))
    with pytest.raises(AbortableError, match="OPERATION_NOT_ATTEMPTED"):
        send(rig)
    assert rig.log.values() == []


def test_only_offsets_that_were_not_committed_are_sent_again():
    rig = Rig(transactional_id="x")
    rig.init()
    rig.cluster.script(TXN_OFFSET_COMMIT, lambda sent: offsets_committed(sent, {1: 14, 2: 3}))
    rig.finish(rig.manager.begin_send_offsets({("t", n): n for n in range(4)}, GROUP))
    sent = [[p.partition_index for p in s.message.topics[0].partitions] for s in rig.cluster.of(TXN_OFFSET_COMMIT)]
    assert sent == [[0, 1, 2, 3], [1, 2]]


def test_a_final_error_of_one_offset_counts_more_than_a_passing_one_of_another():
    rig = Rig(transactional_id="x")
    rig.init()
    rig.cluster.script(TXN_OFFSET_COMMIT, lambda sent: offsets_committed(sent, {0: 14, 1: 22}))
    with pytest.raises(AbortableError, match="ILLEGAL_GENERATION"):
        rig.finish(rig.manager.begin_send_offsets({("t", 0): 1, ("t", 1): 1}, GROUP))
    assert len(rig.cluster.of(TXN_OFFSET_COMMIT)) == 1
