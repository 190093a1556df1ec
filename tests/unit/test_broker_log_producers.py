"""State of producers: retries, gaps, fencing, transactions, the last stable offset, aborted transactions."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.log import Origin
from headrace.errors import BrokerError, Code
from headrace.wire.records import BatchProducer, Marker
from tests.support.examples import examples
from tests.support.log_rig import LogRig, batch, committed_values, state_of, values_of

pytestmark = pytest.mark.both_kernels

SEQUENCE_MAX = 2**31 - 1
EPOCH_MAX = 2**15 - 1


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def send(log, sequence, count=1, *, pid=7, epoch=0, transactional=False, value=b"v"):
    return log.append(batch(*[value] * count, producer=BatchProducer(pid, epoch, sequence, transactional)))


def code_of(action, *args, **kwargs) -> Code:
    with pytest.raises(BrokerError) as caught:
        action(*args, **kwargs)
    return Code(caught.value.code)


# --- idempotence ---


@pytest.mark.behaviour("B08")
def test_a_retry_of_any_of_the_last_five_returns_its_first_offset(rig):
    log = rig.log()
    first = [send(log, 2 * n, 2) for n in range(8)]
    for n in range(3, 8):
        again = send(log, 2 * n, 2)
        assert again.duplicate
        assert again[:2] == first[n][:2]
    assert log.end_offset == 16
    for n in range(3):
        assert code_of(send, log, 2 * n, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_with_another_record_count_is_not_a_retry(rig):
    log = rig.log()
    send(log, 0, 3)
    assert code_of(send, log, 0, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(send, log, 1, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused_and_can_be_filled(rig):
    log = rig.log()
    send(log, 0)
    assert code_of(send, log, 2) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 1)
    send(log, 2)


def test_sequence_numbers_wrap_to_zero(rig):
    log = rig.log()
    send(log, SEQUENCE_MAX - 2, 2)
    wrapped = send(log, SEQUENCE_MAX, 3)
    assert log.producers.views()[0].last_sequence == 1
    assert send(log, SEQUENCE_MAX, 3)[:4] == (*wrapped[:3], True)
    assert code_of(send, log, 0) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 2)
    other = rig.log("other")
    send(other, SEQUENCE_MAX)
    send(other, 0)


def test_an_unknown_producer_may_start_with_any_sequence(rig):
    log = rig.log()
    send(log, 4711)
    send(log, 4712)


def test_a_new_epoch_starts_at_sequence_zero_and_fences_the_old(rig):
    log = rig.log()
    send(log, 0, epoch=3)
    assert code_of(send, log, 1, epoch=4) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=4)
    assert code_of(send, log, 1, epoch=3) == Code.INVALID_PRODUCER_EPOCH
    assert code_of(send, log, 0, epoch=3) == Code.INVALID_PRODUCER_EPOCH
    send(log, 1, epoch=4)


def test_producers_are_independent(rig):
    log = rig.log()
    for pid in (1, 2, 3):
        send(log, 0, pid=pid)
    for pid in (3, 1, 2):
        send(log, 1, pid=pid)
    assert log.append(batch(b"of nobody")).first_offset == 6


def test_a_duplicate_returns_the_append_time_of_the_original(rig):
    log = rig.log(message_timestamp_type="LogAppendTime")
    info = send(log, 0)
    rig.clock.now_ms += 500
    assert send(log, 0).append_time_ms == info.append_time_ms


def test_producers_expire_unless_they_are_in_a_transaction(rig):
    log = rig.log()
    send(log, 0, pid=1)
    send(log, 0, pid=2, transactional=True)
    rig.clock.now_ms += 1000
    send(log, 0, pid=3)
    log.producers.expire(rig.clock.time_ms(), 1000)
    assert [view.producer_id for view in log.producers.views()] == [2, 3]
    send(log, 99, pid=1)


def test_producers_with_old_record_timestamps_do_not_expire(rig):
    log = rig.log()
    log.append(batch(b"v", producer=BatchProducer(1, 0, 0), time_ms=5))
    log.producers.expire(rig.clock.time_ms(), 1000)
    assert len(log.producers.views()) == 1


class Model:
    """A model of a producer: epoch, expected sequence, the last five (epoch, first, count) → offset."""

    def __init__(self) -> None:
        self.epoch = -1
        self.expected = 0
        self.last: list[tuple[int, int, int]] = []

    def send(self, epoch: int, sequence: int, count: int, end: int) -> object:
        if self.epoch >= 0:
            if epoch == self.epoch:
                for first, size, offset in self.last:
                    if (first, size) == (sequence, count):
                        return offset
            if epoch < self.epoch:
                return Code.INVALID_PRODUCER_EPOCH
            if sequence != (self.expected if epoch == self.epoch else 0):
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if epoch != self.epoch:
            self.last = []
        self.epoch = epoch
        self.expected = (sequence + count) % (SEQUENCE_MAX + 1)
        self.last = [*self.last, (sequence, count, end)][-5:]
        return end


SENDS = st.tuples(
    st.sampled_from([1, 2]),
    st.integers(0, 2),
    st.sampled_from([0, 1, 2, 3, 4, 5, 6, SEQUENCE_MAX - 1, SEQUENCE_MAX]),
    st.integers(1, 3),
    st.sampled_from(["", "", "", "crash", "roll"]),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SENDS, max_size=30))
def test_random_sends_match_the_model(tmp_path_factory, sends):
    rig = LogRig(tmp_path_factory.mktemp("producers") / "logs")
    log = rig.log()
    models = {1: Model(), 2: Model()}
    for pid, epoch, sequence, count, event in sends:
        expected = models[pid].send(epoch, sequence, count, log.end_offset)
        try:
            got: object = send(log, sequence, count, pid=pid, epoch=epoch).first_offset
        except BrokerError as error:
            got = error.code
        assert got == expected
        if event == "crash":
            rig = rig.crash()
            log = rig.log()
        elif event == "roll":
            log.roll()


# --- transactions ---


def test_the_last_stable_offset_is_the_first_open_transaction(rig):
    log = rig.log()
    rig.append(log, b"plain")
    send(log, 0, pid=1, transactional=True)
    send(log, 0, pid=2, transactional=True)
    rig.append(log, b"plain")
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    rig.mark(log, 1, 0, committed=True)
    assert log.last_stable_offset == 2
    rig.mark(log, 2, 0, committed=False)
    assert log.last_stable_offset == log.high_watermark == 6


def test_the_last_stable_offset_waits_for_the_marker_to_be_replicated(rig):
    log = rig.log()
    send(log, 0, transactional=True)
    log.append(batch(b"plain"))
    log.append_marker(7, 0, Marker(True, 0), leader_epoch=0)
    log.append(batch(b"plain"))
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 0
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 3
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 4


def test_the_last_stable_offset_is_never_above_the_high_watermark(rig):
    log = rig.log()
    rig.append(log, b"a")
    log.append(batch(b"b"))
    send(log, 0, transactional=True)
    assert (log.high_watermark, log.last_stable_offset) == (1, 1)


@pytest.mark.behaviour("B08")
def test_a_non_transactional_write_within_a_transaction_is_refused(rig):
    log = rig.log()
    send(log, 0, transactional=True)
    assert code_of(send, log, 1) == Code.INVALID_TXN_STATE
    send(log, 1, transactional=True)
    rig.mark(log, 7, 0, committed=True)
    send(log, 2)


def test_an_open_transaction_is_known_by_producer_and_epoch(rig):
    log = rig.log()
    assert not log.producers.is_open(7, 0)
    send(log, 0, transactional=True)
    assert log.producers.is_open(7, 0)
    assert not log.producers.is_open(7, 1)
    assert log.producers.views()[0].current_txn_start_offset == 0
    rig.mark(log, 7, 0, committed=False)
    assert not log.producers.is_open(7, 0)
    assert log.producers.views()[0].current_txn_start_offset == -1


def test_markers_of_fenced_producers_and_coordinators_are_refused(rig):
    log = rig.log()
    send(log, 0, epoch=5, transactional=True)
    assert code_of(rig.mark, log, 7, 4, committed=True) == Code.INVALID_PRODUCER_EPOCH
    rig.mark(log, 7, 5, committed=True, coordinator=3)
    assert code_of(rig.mark, log, 7, 5, committed=True, coordinator=2) == Code.TRANSACTION_COORDINATOR_FENCED
    rig.mark(log, 7, 5, committed=True, coordinator=3)
    assert log.producers.views()[0].coordinator_epoch == 3


def test_a_marker_with_a_later_epoch_fences_the_producer(rig):
    log = rig.log()
    send(log, 0, epoch=5, transactional=True)
    rig.mark(log, 7, 6, committed=False)
    assert code_of(send, log, 1, epoch=5, transactional=True) == Code.INVALID_PRODUCER_EPOCH
    send(log, 0, epoch=6, transactional=True)


def test_sequence_numbers_continue_after_a_marker(rig):
    log = rig.log()
    send(log, 0, transactional=True)
    rig.mark(log, 7, 0, committed=True)
    assert code_of(send, log, 0, 2, transactional=True) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 1, transactional=True)


@pytest.mark.behaviour("B08")
@pytest.mark.parametrize("committed", [True, False])
def test_a_duplicate_of_a_transaction_that_has_ended_is_refused(rig, committed):
    log = rig.log()
    for sequence in (0, 1):
        send(log, sequence, transactional=True)
    rig.mark(log, 7, 0, committed=committed)
    end = log.end_offset
    for sequence in (0, 1):
        with pytest.raises(BrokerError, match="in a transaction that has ended: expected 2") as caught:
            send(log, sequence, transactional=True)
        assert caught.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == end
    # The same in the next transaction; a retry of that one is a duplicate again.
    second = send(log, 2, transactional=True)
    assert code_of(send, log, 1, transactional=True) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 2, transactional=True)[:4] == (*second[:3], True)
    # The same after a restart.
    again = rig.crash().log()
    assert code_of(send, again, 1, transactional=True) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(again, 2, transactional=True)[:4] == (*second[:3], True)


def test_with_transactions_v2_a_late_marker_cannot_end_the_next_transaction(rig):
    log = rig.log()
    send(log, 0, epoch=1, transactional=True)
    rig.mark(log, 7, 2, committed=True, transaction_version=2)
    send(log, 0, epoch=2, transactional=True)
    assert code_of(rig.mark, log, 7, 2, committed=True, transaction_version=2) == Code.INVALID_PRODUCER_EPOCH
    assert code_of(rig.mark, log, 7, 1, committed=True, transaction_version=2) == Code.INVALID_PRODUCER_EPOCH
    assert log.producers.is_open(7, 2)
    rig.mark(log, 7, 3, committed=False, transaction_version=2)
    rig.mark(log, 7, 3, committed=False, transaction_version=2)  # sent again
    assert log.aborted.between(0, 99) == [(7, 2)]


def test_the_last_epoch_can_be_the_epoch_of_its_marker(rig):
    log = rig.log()
    send(log, 0, epoch=EPOCH_MAX, transactional=True)
    rig.mark(log, 7, EPOCH_MAX, committed=True, transaction_version=2)
    assert not log.producers.is_open(7, EPOCH_MAX)


def test_a_marker_of_an_unknown_producer_is_written_and_fences(rig):
    log = rig.log()
    rig.mark(log, 7, 4, committed=False)
    assert log.aborted.between(0, 9) == []
    assert code_of(send, log, 0, epoch=3) == Code.INVALID_PRODUCER_EPOCH
    assert code_of(send, log, 5, epoch=4) == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    send(log, 0, epoch=4)


# --- aborted transactions ---


def test_aborted_transactions_are_those_of_the_offsets(rig):
    log = rig.log(internal_segment_bytes="250")
    for n in range(10):
        pid = n % 3
        send(log, n // 3 * 2, 2, pid=pid, transactional=True)
        rig.append(log, b"plain" * 10)
        rig.mark(log, pid, 0, committed=n % 2 == 0)
    assert len(log.segments) > 5
    aborted = [(n % 3, 4 * n) for n in range(10) if n % 2]
    assert log.aborted.between(0, 40) == aborted
    for first in range(40):
        for end in range(first + 1, 41):
            expected = [row for row in aborted if row[1] < end and row[1] + 3 >= first]
            assert log.aborted.between(first, end) == expected


def test_a_long_transaction_is_found_from_any_of_its_offsets(rig):
    log = rig.log(internal_segment_bytes="200")
    send(log, 0, pid=1, transactional=True)
    for n in range(20):
        send(log, n, pid=2, transactional=True)
        rig.mark(log, 2, 0, committed=False)
    rig.mark(log, 1, 0, committed=False)
    assert log.aborted.between(0, 1) == [(1, 0)]
    assert log.aborted.between(10, 11) == [(2, 9), (1, 0)]
    assert log.aborted.between(41, 42) == [(1, 0)]
    assert len(log.aborted.between(0, 99)) == 21


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "commit", "abort", "plain", "roll", "crash", "watermark"]), st.integers(1, 3)
    ),
    max_size=40,
)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_read_committed_readers_see_committed_records_up_to_the_lso(tmp_path_factory, steps):
    rig = LogRig(tmp_path_factory.mktemp("transactions") / "logs")
    log = rig.log(internal_segment_bytes="400")
    rows: list[tuple[int, int, bytes]] = []  # offset, producer or 0, value
    outcome: dict[int, str] = {}  # first offset of a transaction → how it ended
    open_: dict[int, int] = {}  # producer → first offset
    sequences = {1: 0, 2: 0, 3: 0}
    for step, pid in steps:
        value = b"%d" % log.end_offset
        if step == "write":
            open_.setdefault(pid, log.end_offset)
            outcome.setdefault(open_[pid], "")
            rows.append((log.end_offset, open_[pid], value))
            send(log, sequences[pid], pid=pid, transactional=True, value=value)
            sequences[pid] += 1
        elif step in ("commit", "abort"):
            if pid in open_:
                outcome[open_.pop(pid)] = step
            log.append_marker(pid, 0, Marker(step == "commit", 0), leader_epoch=0)
        elif step == "plain":
            rows.append((log.end_offset, -1, value))
            log.append(batch(value))
        elif step == "roll":
            log.roll()
        elif step == "crash":
            before = state_of(log)
            rig = rig.crash()
            log = rig.log(internal_segment_bytes="400")
            assert {k: v for k, v in state_of(log).items() if k not in ("offsets", "producers")} == {
                k: v for k, v in before.items() if k not in ("offsets", "producers")
            }
        elif step == "watermark":
            log.advance_high_watermark(log.end_offset - pid)
    log.advance_high_watermark(log.end_offset)
    stable = min(open_.values(), default=log.end_offset)
    assert log.last_stable_offset == stable
    visible = [value for offset, first, value in rows if offset < stable and outcome.get(first, "commit") == "commit"]
    assert committed_values(log) == visible
    assert values_of(log) == [value for _, _, value in rows]


def test_followers_have_the_same_producer_state(rig):
    leader, follower = rig.log("a"), rig.log("b")
    send(leader, 0, 2, transactional=True)
    leader.append_marker(7, 1, Marker(False, 2), leader_epoch=0)
    send(leader, 0, epoch=1, transactional=True)
    follower.append(b"".join(bytes(each.view) for each in leader.batches()), origin=Origin.REPLICATION)
    assert state_of(follower) == state_of(leader)
    assert send(follower, 0, epoch=1, transactional=True).duplicate
