"""The states of a transactional producer: every call in every state, and wrong steps."""

from __future__ import annotations

import pytest

from headrace.errors import (
    AbortableError,
    BrokerError,
    FatalError,
    HeadraceError,
    IllegalStateError,
)
from headrace.producer.transaction_state import LEGAL, State, is_legal
from headrace.types import ProducerIdAndEpoch
from tests.support.rig import (
    GROUP,
    Rig,
    new_rig,
    rig_in_transaction,
)

INVALID_RECORD = 87


# -- states --------------------------------------------------------------------------------------


def rig_in(state: State) -> Rig:
    """A producer in a state, by the way that leads there."""
    rig = new_rig()
    if state is State.UNINITIALIZED:
        return rig
    if state is State.INITIALIZING:
        rig.manager.begin_init().acknowledged = True
        return rig
    rig.init(begin=state is not State.READY)
    if state is State.COMMITTING:
        rig.manager.begin_commit().acknowledged = True
    elif state is State.ABORTING:
        rig.manager.begin_abort().acknowledged = True
    elif state is State.ABORTABLE_ERROR:
        rig.manager.fail_abortable(BrokerError("t-0", code=INVALID_RECORD))
    elif state is State.FATAL_ERROR:
        rig.manager.fail_fatally(BrokerError("", code=90))
    return rig


CALLS = {
    "init_transactions": (lambda rig: rig.manager.begin_init(), {State.UNINITIALIZED}),
    "begin_transaction": (lambda rig: rig.manager.begin_transaction(), {State.READY}),
    "send": (lambda rig: rig.send(), {State.IN_TRANSACTION}),
    "send_offsets_to_transaction": (
        lambda rig: rig.manager.begin_send_offsets({("t", 0): 5}, GROUP),
        {State.IN_TRANSACTION},
    ),
    "commit_transaction": (lambda rig: rig.manager.begin_commit(), {State.IN_TRANSACTION}),
    "abort_transaction": (lambda rig: rig.manager.begin_abort(), {State.IN_TRANSACTION, State.ABORTABLE_ERROR}),
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.behaviour("T03")
def test_every_call_in_every_state(call, state):
    rig = rig_in(state)
    assert rig.state() is state
    action, legal_in = CALLS[call]
    if state in legal_in:
        action(rig)
        return
    expected: type[Exception] = IllegalStateError
    if state is State.ABORTABLE_ERROR:
        expected = AbortableError
    elif state is State.FATAL_ERROR:
        expected = FatalError
    with pytest.raises(expected) as caught:
        action(rig)
    if expected is IllegalStateError:
        assert str(state) in str(caught.value)
        assert call in str(caught.value)
    assert rig.state() is state  # a wrong call changes nothing


@pytest.mark.parametrize("call", [call for call in CALLS if call != "send"])
def test_transactions_need_a_transactional_id(call):
    rig = Rig(idempotent=True)
    with pytest.raises(IllegalStateError, match=r"transactional\.id"):
        CALLS[call][0](rig)


def test_the_table():
    assert set(LEGAL) == set(State)
    assert all(is_legal(state, State.FATAL_ERROR) for state in State)
    assert LEGAL[State.FATAL_ERROR] == {State.FATAL_ERROR}
    assert not is_legal(State.READY, State.COMMITTING)
    assert str(State.IN_TRANSACTION) == "in transaction"


@pytest.mark.behaviour("T03")
def test_an_illegal_transition_on_the_io_thread_is_fatal():
    rig = new_rig()
    rig.init(begin=False)
    with pytest.raises(IllegalStateError, match="illegal state transition ready → ready"):
        rig.manager.end(None, None)
    assert rig.manager.has_fatal_error
    with pytest.raises(IllegalStateError):
        rig.manager.begin_transaction()


def test_an_illegal_transition_fails_the_pending_operation():
    rig = rig_in_transaction()
    rig.send()
    result = rig.manager.begin_commit()
    with pytest.raises(IllegalStateError, match="illegal state transition committing → uninitialized"):
        rig.manager.refuse_producer_id(HeadraceError("too late"))
    with pytest.raises(IllegalStateError):
        result.wait(0)


def test_an_invalid_response_is_fatal_and_ends_all_waits(monkeypatch, caplog):
    rig = new_rig()
    result = rig.manager.begin_init()

    def fail(producer: ProducerIdAndEpoch) -> None:
        raise ValueError("nonsense")

    monkeypatch.setattr(rig.manager, "take_producer_id", fail)
    with pytest.raises(FatalError, match="invalid response"):
        rig.finish(result)
    assert "ValueError: nonsense" in caplog.text
