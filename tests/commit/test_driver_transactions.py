"""The transactions of tasks, from the driver: ending, describing, fencing and redoing them."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.client import parallel
from headrace.client.admin import AdminClient
from headrace.client.admin.transactions import FENCE_ROUNDS
from headrace.client.blocking import BlockingClient
from headrace.errors import HeadraceError
from headrace.spark import transactions
from headrace.spark.decisions import Span, TaskTransaction
from headrace.spark.errors import LostError, SinkError
from headrace.spark.transactions import EndTxnResult, Outcome, Transactions
from headrace.types import TopicPartition
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer
from tests.support.sink_rig import SinkRig
from tests.support.topics import unique
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
EXPIRY_MS = "1000"


def end(rig: SinkRig, *transactions: TaskTransaction, committed: bool = True) -> list[EndTxnResult]:
    endings = rig.transactions.end(transactions, committed=committed)
    return [endings[task.id] for task in transactions]


def fence(rig: SinkRig, transaction: TaskTransaction) -> None:
    """Abort it behind the driver's back."""
    rig.transactions.fence([transaction.id])


# -- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_transactions_are_committed_from_another_connection(rig, count):
    transactions = [rig.transaction([f"a{number}"]) for number in range(count)]
    assert end(rig, *transactions) == [EndTxnResult.DONE] * count
    assert sorted(rig.rows()) == [f"a{number}" for number in range(count)]


MANY = 3 * parallel.LANE_REQUESTS_MIN


def raw_transactions(rig: SinkRig, count: int) -> list[TaskTransaction]:
    """Open transactions, prepared by raw requests."""
    name, transactions = unique("many"), []
    with Connection(rig.broker.bootstrap) as connection:
        for number in range(count):
            raw = RawProducer(connection, rig.topic, f"{name}-{number}")
            raw.init()
            assert raw.write(0, f"a{number}".encode()).error_code == 0
            spans = (Span(rig.topic, 0, number, number, 1),)
            transactions.append(TaskTransaction(f"{name}-{number}", raw.producer_id, raw.epoch, True, spans))
    return transactions


def test_many_transactions_are_committed_over_several_connections(rig):
    few, many = raw_transactions(rig, 2), raw_transactions(rig, MANY)
    end(rig, *few)
    connections = rig.client.network.connection_count()
    assert end(rig, *many) == [EndTxnResult.DONE] * MANY
    assert rig.client.network.connection_count() > connections


def test_many_transactions_are_committed_while_connections_are_lost(rig, broker):
    transactions = raw_transactions(rig, MANY)
    with broker.faults.inject(api="EndTxn", close=True, when="after", count=5) as fault:
        assert end(rig, *transactions) == [EndTxnResult.DONE] * MANY
        assert fault.hits == 5
    assert sorted(rig.rows()) == sorted(f"a{number}" for number in range(MANY))


def test_many_transactions_are_still_ended_together_after_all_connections_are_lost(rig, broker):
    transactions = raw_transactions(rig, MANY)
    rig.transactions.describe([task.id for task in transactions])
    lanes = [
        node_id + number * parallel.NODE_IDS
        for node_id in rig.client.metadata.cluster.brokers
        for number in range(1, parallel.LANES_MAX)
    ]
    with contextlib.ExitStack() as stack:
        faults = []

        def close_all() -> None:  # after the first is ended: the others are ended together
            fault = broker.faults.inject(api="EndTxn", close=True, count=2 * parallel.LANES_MAX)
            faults.append(stack.enter_context(fault))

        results = rig.transactions.end(transactions, committed=True, between=close_all)
        assert faults[0].hits == 2 * parallel.LANES_MAX
    assert set(results.values()) == {EndTxnResult.DONE}
    assert any(rig.client.network.is_connected(lane) for lane in lanes)  # one by one, none would be opened again


def test_a_coordinator_that_is_still_ending_transactions_is_not_looked_up_again(rig, broker):
    transactions = [rig.transaction([name]) for name in ("a1", "a2", "a3")]
    client_id = unique("looking-up")
    with (
        BlockingClient(rig.options(kafka__client__id=client_id).client_settings()) as client,
        contextlib.ExitStack() as stack,
    ):
        own = Transactions(client)
        own.describe([task.id for task in transactions])
        lookups = stack.enter_context(broker.faults.inject(api="FindCoordinator", client_id=client_id, delay_ms=1))
        faults = []

        def be_busy() -> None:
            fault = broker.faults.inject(api="EndTxn", client_id=client_id, error="CONCURRENT_TRANSACTIONS", count=4)
            faults.append(stack.enter_context(fault))

        be_busy()  # for the first; then for the others, which are ended together
        assert set(own.end(transactions, committed=True, between=be_busy).values()) == {EndTxnResult.DONE}
        assert [fault.hits for fault in faults] == [4, 4]
        assert lookups.hits == 0


def is_used(client: BlockingClient) -> bool:
    """Whether another thread uses the connections."""
    if not client.lock.acquire(blocking=False):
        return True
    client.lock.release()
    return False


def test_other_threads_wait_while_many_requests_are_sent_at_once(rig, broker):
    ids = [rig.transaction([name]).id for name in ("a1", "a2")]
    client_id = unique("one-thread")
    with BlockingClient(rig.options(kafka__client__id=client_id).client_settings()) as client:
        with (
            broker.faults.inject(api="DescribeTransactions", client_id=client_id, delay_ms=500) as fault,
            ThreadPoolExecutor(1) as pool,
        ):
            states = pool.submit(Transactions(client).describe, ids)
            eventually("the request", lambda: fault.hits)
            assert is_used(client)
            assert set(states.result(30) or ()) == set(ids)
        assert not is_used(client)


def test_other_threads_wait_while_fencing_pauses(rig, broker):
    ids = [rig.transaction([name]).id for name in ("a1", "a2")]
    client_id = unique("one-thread")
    with (
        BlockingClient(rig.options(kafka__client__id=client_id).client_settings()) as client,
        broker.faults.inject(api="InitProducerId", client_id=client_id, error="CONCURRENT_TRANSACTIONS") as fault,
        ThreadPoolExecutor(1) as pool,
    ):
        fenced = pool.submit(Transactions(client).fence, ids)
        eventually("the last pause", lambda: fault.hits >= FENCE_ROUNDS * len(ids))
        uses = [is_used(client) for _ in range(1000)]
        fault.remove()
        fenced.result(30)
    assert all(uses)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_coordinators_are_looked_up_once_for_all_requests_about_an_id(rig, broker, count):
    transactions = [rig.transaction([f"a{number}"]) for number in range(count)]
    ids = [task.id for task in transactions]
    client_id = unique("looking-up")
    with BlockingClient(rig.options(kafka__client__id=client_id).client_settings()) as client:
        own = Transactions(client)
        with broker.faults.inject(api="FindCoordinator", client_id=client_id, delay_ms=1) as lookups:
            own.describe(ids)
            own.open_longer_than(0, transactions)
            own.end(transactions, committed=True)
            assert lookups.hits == 1


def test_a_coordinator_that_has_moved_is_looked_up_again(rig, broker):
    transactions = [rig.transaction([name]) for name in ("a1", "a2", "a3")]
    rig.transactions.describe([task.id for task in transactions])
    with contextlib.ExitStack() as stack:
        faults = []

        def move() -> None:  # after the first is ended: the others are ended together
            fault = broker.faults.inject(api="EndTxn", error="NOT_COORDINATOR", count=2)
            faults.append(stack.enter_context(fault))

        results = rig.transactions.end(transactions, committed=True, between=move)
        assert set(results.values()) == {EndTxnResult.DONE}
        assert faults[0].hits == 2
    assert sorted(rig.rows()) == ["a1", "a2", "a3"]
    with broker.faults.inject(api="DescribeTransactions", error="NOT_COORDINATOR", count=1) as fault:
        assert len(rig.transactions.describe([task.id for task in transactions])) == 3
        assert fault.hits == 1


def test_aborted_transactions_are_never_visible(rig):
    transactions = [rig.transaction([name]) for name in ("a1", "a2")]
    assert end(rig, *transactions, committed=False) == [EndTxnResult.DONE] * 2
    assert rig.rows() == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_can_be_repeated_and_the_opposite_is_refused(rig, committed):
    transaction = rig.transaction(["a1"])
    assert end(rig, transaction, committed=committed) == [EndTxnResult.DONE]
    assert end(rig, transaction, committed=committed) == [EndTxnResult.DONE]
    assert end(rig, transaction, committed=not committed) == [EndTxnResult.REFUSED]
    assert rig.rows() == (["a1"] if committed else [])


def test_an_end_is_refused_when_the_id_has_a_newer_epoch(rig):
    transaction = rig.transaction(["a1"])
    fence(rig, transaction)
    assert end(rig, transaction) == [EndTxnResult.REFUSED]
    assert rig.rows() == []


def test_the_first_of_several_is_ended_before_the_rest(rig):
    transactions = [rig.transaction([name]) for name in ("a1", "a2", "a3")]
    seen = []
    rig.transactions.end(transactions, committed=True, between=lambda: seen.append(rig.transactions.open_ids(rig.sink)))
    assert seen == [sorted(task.id for task in transactions[1:])]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_whose_response_is_lost_is_repeated(rig, broker, count, when):
    transactions = [rig.transaction([f"a{number}"]) for number in range(count)]
    with broker.faults.inject(api="EndTxn", close=True, when=when, count=2) as fault:
        assert end(rig, *transactions) == [EndTxnResult.DONE] * count
        assert fault.hits == 2
    assert sorted(rig.rows()) == [f"a{number}" for number in range(count)]


def test_an_end_that_is_not_authorized_raises(rig, broker):
    transaction = rig.transaction(["a1"])
    with (
        broker.faults.inject(api="EndTxn", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", count=1),
        pytest.raises(HeadraceError, match=transaction.id),
    ):
        end(rig, transaction)


# -- describing and fencing ----------------------------------------------------------------------


def test_open_ended_and_unknown_transactions_are_distinguished(rig):
    transaction, ended = rig.transaction(["a1"]), rig.transaction(["a2"])
    end(rig, ended)
    unknown = unique("unknown")
    states = rig.transactions.describe([transaction.id, ended.id, unknown])
    assert [states[name].state for name in (transaction.id, unknown)] == ["Ongoing", "Dead"]
    assert states[transaction.id].is_of(transaction)
    eventually("the end", lambda: rig.transactions.describe([ended.id])[ended.id].state == "CompleteCommit")
    assert not rig.transactions.describe([ended.id])[ended.id].is_of(ended)


def test_a_description_is_not_of_a_transaction_with_another_epoch(rig):
    older = rig.transaction(["a1"], batch=0)
    newer = rig.transaction(["a2"], batch=1)  # under the same id, which fences the older one
    assert newer.id == older.id
    state = rig.transactions.describe([older.id])[older.id]
    assert state.state == "Ongoing"
    assert (state.is_of(older), state.is_of(newer)) == (False, True)


def test_open_ids_are_those_of_the_prefix(rig):
    transaction = rig.transaction(["a1"])
    ended = rig.transaction(["a2"])
    end(rig, ended)
    assert rig.transactions.open_ids(f"{rig.sink}~") == [transaction.id]
    assert rig.transactions.open_ids(unique("other")) == []


def test_a_prefix_of_open_ids_is_not_a_pattern(rig, broker):
    name = unique("a.b+c(")
    with Connection(broker.bootstrap) as connection:
        for transactional_id in (f"{name}~1", name.replace(".", "x") + "~1"):
            raw = RawProducer(connection, rig.topic, transactional_id)
            raw.init()
            assert raw.write(0, b"a1").error_code == 0
    assert rig.transactions.open_ids(f"{name}~") == [f"{name}~1"]
    rig.transactions.fence([f"{name}~1", name.replace(".", "x") + "~1"])


def test_the_age_of_a_transaction_comes_from_its_coordinator(rig):
    transaction, ended = rig.transaction(["a1"]), rig.transaction(["a2"])
    end(rig, ended)
    both = [transaction, ended]
    eventually("a transaction that is 50 ms old", lambda: rig.transactions.open_longer_than(50, both))
    assert rig.transactions.open_longer_than(50, both) == [transaction.id]
    assert rig.transactions.open_longer_than(HOUR_MS, both) == []
    assert rig.transactions.open_longer_than(0, [ended]) == []


def test_a_fenced_id_has_nothing_open_and_refuses_a_late_write(rig, broker):
    name = unique("late")
    with Connection(broker.bootstrap) as connection:
        late = RawProducer(connection, rig.topic, name)
        late.init()
        assert late.write(0, b"a1").error_code == 0
        rig.transactions.fence([name])
        assert rig.transactions.open_ids(name) == []
        assert late.write(1, b"a2").error_code != 0
    assert rig.rows() == []


@pytest.mark.parametrize("error", ["CONCURRENT_TRANSACTIONS", "NOT_COORDINATOR"])
def test_many_ids_are_fenced_at_once(rig, broker, error):
    """As the leftovers of a driver that was killed. Kafka responds CONCURRENT_TRANSACTIONS until it has aborted one."""
    transactions = raw_transactions(rig, MANY)
    ids = [task.id for task in transactions]
    with broker.faults.inject(api="InitProducerId", error=error, count=MANY) as fault:
        rig.transactions.fence(ids)
        assert fault.hits == MANY
    states = rig.transactions.describe(ids)
    assert not any(states[task.id].is_of(task) for task in transactions)
    assert rig.rows() == []


def test_a_refused_fence_is_named(rig, broker):
    ids = [task.id for task in raw_transactions(rig, 2)]
    denied = broker.faults.inject(api="InitProducerId", error="TRANSACTIONAL_ID_AUTHORIZATION_FAILED", count=1)
    with denied, pytest.raises(HeadraceError, match=f"transactional id '{ids[0]}'"):
        rig.transactions.fence(ids)


# -- writing again -------------------------------------------------------------------------------


def test_the_outcome_of_a_committed_transaction_is_visible(rig):
    transaction = rig.transaction(["a1"])
    end(rig, transaction)
    assert rig.redo.outcome(rig.decision(0, transaction), transaction) is Outcome.VISIBLE


def test_the_outcome_of_an_expired_transaction_is_aborted(rig):
    transaction = rig.transaction(["a1"], kafka__transaction__timeout__ms=EXPIRY_MS)
    eventually("the expiry", lambda: not rig.transactions.open_ids(transaction.id))
    assert end(rig, transaction) == [EndTxnResult.REFUSED]
    assert rig.redo.outcome(rig.decision(0, transaction), transaction) is Outcome.ABORTED


def test_the_outcome_of_an_open_transaction_is_unknown(rig, monkeypatch):
    monkeypatch.setattr(transactions, "SETTLE_SECONDS_MAX", 0.1)
    transaction = rig.transaction(["a1"])
    with pytest.raises(SinkError, match=rf"{rig.topic}-0 has had an open transaction"):
        rig.redo.outcome(rig.decision(0, transaction), transaction)


def test_the_rows_of_an_aborted_transaction_are_read_as_they_were_written(rig):
    columns = {
        "key": ["k", None, "k"],
        "value": ["a1", "a2", None],
        "partition": pa.array([1, 1, 0], pa.int32()),
        "timestamp": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms")).cast(pa.timestamp("us", "UTC")),
    }
    transaction = rig.write(iter([pa.RecordBatch.from_pydict(columns)])).transaction
    fence(rig, transaction)
    rows = [
        (topic, row["partition"], row["key"], row["value"], row["timestamp"])
        for topic, result in rig.redo.rows(rig.decision(0, transaction), transaction)
        for row in result.to_pylist()
    ]
    assert [row[:4] for row in sorted(rows, key=repr)] == [
        (rig.topic, 0, b"k", None),
        (rig.topic, 1, None, b"a2"),
        (rig.topic, 1, b"k", b"a1"),
    ]
    assert len({row[4] for row in rows}) == 3


def test_rows_of_others_between_those_of_the_transaction_are_left_out(rig):
    transaction, other = rig.transaction(["a1", "a2"]), rig.transaction(["b1"])
    (span,), (behind,) = transaction.spans, other.spans
    wider = replace(transaction, spans=(replace(span, last=behind.last),))
    for task in (transaction, other):
        fence(rig, task)
    result = [value for _, rows in rig.redo.rows(rig.decision(0, wider), wider) for value in rows["value"].to_pylist()]
    assert result == [b"a1", b"a2"]


def raw_transaction(rig: SinkRig, sequence: int, count: int) -> TaskTransaction:
    """An aborted transaction of two records whose first sequence number is `sequence`, reported as `count` records."""
    name = unique("raw")
    with Connection(rig.broker.bootstrap) as connection:
        raw = RawProducer(connection, rig.topic, name)
        raw.init()
        assert raw.write(sequence, b"a1", b"a2").error_code == 0
    rig.transactions.fence([name])
    return TaskTransaction(name, raw.producer_id, raw.epoch, True, (Span(rig.topic, 0, 0, 1, count),))


def test_rows_are_redone_if_their_sequences_are_complete(rig):
    transaction = raw_transaction(rig, 0, 2)
    assert len([*rig.redo.rows(rig.decision(0, transaction), transaction)]) == 1


@pytest.mark.parametrize(("sequence", "count"), [(0, 3), (2, 2), (2, 4)], ids=["the end", "the count", "the start"])
def test_rows_are_lost_if_their_sequences_show_a_gap(rig, sequence, count):
    """A batch behind a gap is not handed out, even if the number of records is right."""
    transaction = raw_transaction(rig, sequence, count)
    handed_out = []
    with pytest.raises(LostError, match=rf"{rig.topic}-0 offsets 0 to 1 \({count} records\)"):
        handed_out.extend(rig.redo.rows(rig.decision(0, transaction), transaction))
    assert handed_out == [] or sequence == 0


@pytest.mark.parametrize("what", ["records", "topic", "recreated topic"])
def test_deleted_records_are_lost_and_named(rig, broker, monkeypatch, what):
    monkeypatch.setattr(transactions, "SETTLE_SECONDS_MAX", 1.0)
    transaction = rig.transaction(["a1", "a2"])
    fence(rig, transaction)
    if what == "records":
        with AdminClient(broker.bootstrap) as admin:
            admin.delete_records({TopicPartition(rig.topic, 0): -1})
    else:
        broker.delete_topic(rig.topic)
    if what == "recreated topic":
        broker.create_topic(rig.topic)
    decision = rig.decision(4, transaction)
    for read in (rig.redo.outcome, lambda *given: [*rig.redo.rows(*given)]):
        with pytest.raises(LostError, match=rf"batch 4 .* gone from the log: {rig.topic}-0 offsets 0 to 1"):
            read(decision, transaction)
