"""The ledger and its decision topic on a broker: writing, reading and fencing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.errors import ConfigError
from headrace.producer.producer import Producer
from headrace.spark import decision_log, ledger
from headrace.spark.decision_log import DecisionLog
from headrace.spark.decisions import Decision, Span, TaskTransaction
from headrace.spark.errors import FencedError, InDoubtError, NotDecidedError, SinkError
from headrace.spark.failpoints import FailpointError
from tests.support.crashes import committed
from tests.support.sink_rig import QUERY, SinkRig
from tests.support.topics import unique
from tests.support.waiting import eventually

SECONDS_MAX = 30
BROKER_RECORD_BYTES_MAX = 1_048_588
"""Kafka's default of max.message.bytes."""
SHORT_MS = "1000"
SENDS_MAX = 1000
POLLS_MIN = 5
SEND_PAUSE_SECONDS = 0.01


def rows_of(rig: SinkRig, *values: str) -> list:
    """The inline rows of a batch, as a task hands them to the driver."""
    return rig.batch(0, rig.task(values, commit__mode="inline")).inline


def fail() -> None:
    raise FailpointError("on purpose")


# -- writing -------------------------------------------------------------------------------------


def test_rows_and_decision_are_written_together(rig):
    own = rig.ledger()
    own.open()
    own.write(rig.decision(3), rows_of(rig, "a1", "b1"))
    assert rig.rows() == ["a1", "b1"]
    assert rig.ledger().read() == {QUERY: rig.decision(3)}


@pytest.mark.parametrize("hook", ["on_rows", "on_written"])
def test_a_write_that_fails_before_its_commit_leaves_neither_rows_nor_decision(rig, hook):
    own = rig.ledger()
    own.open()
    with pytest.raises(FailpointError):
        own.write(rig.decision(), rows_of(rig, "a1"), **{hook: fail})
    assert (own.read(), rig.rows()) == ({}, [])
    own.write(rig.decision(), rows_of(rig, "a2"))
    assert (own.read(), rig.rows()) == ({QUERY: rig.decision()}, ["a2"])


def test_an_erased_decision_is_not_read(rig):
    own = rig.ledger()
    own.open()
    own.write(rig.decision())
    own.write(rig.decision().finished(), as_tombstone=True)
    assert own.read() == {}


def test_a_ledger_that_is_not_open_writes_nothing(rig):
    with pytest.raises(SinkError, match="not open"):
        rig.ledger().write(rig.decision())


@pytest.mark.parametrize("delay_ms", [0, 300], ids=["while rows are sent", "at the commit"])
def test_a_rejected_row_means_that_nothing_is_decided(rig, broker, delay_ms):
    """Whichever call the producer raises it from."""
    own = rig.ledger()
    own.open()
    rows = rows_of(rig, "a1")

    def many() -> Iterator:
        yield from rows
        for _ in range(0 if delay_ms else SENDS_MAX):
            time.sleep(SEND_PAUSE_SECONDS)
            yield from rows

    with (
        broker.faults.inject(api="Produce", topic=rig.topic, error="TOPIC_AUTHORIZATION_FAILED", delay_ms=delay_ms),
        pytest.raises(NotDecidedError, match="TOPIC_AUTHORIZATION_FAILED"),
    ):
        own.write(rig.decision(), many())
    assert (own.read(), rig.rows()) == ({}, [])


def test_a_commit_without_a_response_is_in_doubt_until_the_log_is_read(rig, broker, monkeypatch):
    """The coordinator has committed and its response is lost for good: "not decided" would be a lie."""
    monkeypatch.setattr(ledger, "DECISION_SECONDS_MAX", 0.0)
    monkeypatch.setattr(ledger, "CLOSE_SECONDS_MAX", 0.0)
    client_id = unique("unanswered")
    own = rig.ledger(kafka__client__id=client_id, kafka__max__block__ms=SHORT_MS)
    own.open()
    with broker.faults.inject(api="EndTxn", client_id=client_id, drop=True, when="after") as fault:
        with pytest.raises(InDoubtError, match="no response for 0 s"):
            own.write(rig.decision(), rows_of(rig, "a1"))
        own.close()
        assert fault.hits == 1
    assert rig.ledger().read() == {QUERY: rig.decision()}
    assert rig.rows() == ["a1"]


def test_a_commit_is_repeated_until_it_has_a_response(rig, broker):
    client_id = unique("slow")
    own = rig.ledger(kafka__client__id=client_id)
    own.open()
    with broker.faults.inject(api="EndTxn", client_id=client_id, close=True, when="after", count=2) as fault:
        own.write(rig.decision(), rows_of(rig, "a1"))
        assert fault.hits == 2
    assert (own.read(), rig.rows()) == ({QUERY: rig.decision()}, ["a1"])


# -- fencing -------------------------------------------------------------------------------------


def test_the_ledger_opened_last_is_the_only_one_that_can_write(rig):
    older, newer = rig.ledger(), rig.ledger()
    older.open()
    older.write(rig.decision(0))
    newer.open()
    with pytest.raises(FencedError, match=rig.sink):
        older.write(rig.decision(1), rows_of(rig, "a1"))
    assert newer.read() == {QUERY: rig.decision(0)}
    newer.write(rig.decision(2), rows_of(rig, "a2"))
    assert (newer.read(), rig.rows()) == ({QUERY: rig.decision(2)}, ["a2"])


def test_opening_a_ledger_aborts_the_open_write_of_an_older_one(rig):
    older, newer = rig.ledger(), rig.ledger()
    older.open()
    with pytest.raises(FencedError):
        older.write(rig.decision(1), rows_of(rig, "a1"), on_written=newer.open)
    assert (newer.read(), rig.rows()) == ({}, [])


def test_ledgers_of_two_sinks_do_not_fence_each_other(rig):
    other = rig.ledger(unique("other"))
    own = rig.ledger()
    own.open()
    other.open()
    own.write(rig.decision(1))
    assert own.read() == {QUERY: rig.decision(1)}
    assert other.read() == {}


def test_a_transaction_longer_than_brokers_allow_is_refused_with_the_remedy(rig):
    with pytest.raises(ConfigError, match=r"3600000 ms.*transaction\.max\.timeout\.ms.*Raise it"):
        rig.ledger().open(3_600_000)


def test_a_transaction_longer_than_brokers_allow_falls_back_to_the_configured_one(rig):
    own = rig.ledger(kafka__transaction__timeout__ms="20000")
    own.open(3_600_000)
    own.write(rig.decision())
    assert rig.transactions.describe([rig.sink])[rig.sink].timeout_ms == 20_000


# -- reading -------------------------------------------------------------------------------------


def test_there_are_no_decisions_before_the_first_ledger_is_opened(rig):
    assert rig.ledger().read() == {}


def test_the_last_decision_of_each_query_of_the_sink_is_read(rig):
    own = rig.ledger()
    own.open()
    for decision in (rig.decision(0), rig.decision(5, query="other"), rig.decision(1)):
        own.write(decision)
    foreign = rig.ledger(unique("foreign"))
    foreign.open()
    foreign.write(Decision("foreign", QUERY, "run", 9))
    with rig.producer(unique("garbage")) as producer, producer.transaction():
        for key in (b"garbage", b"[1, 2]"):
            producer.send(rig.decision_topic, b"garbage", key)
    assert own.read() == {QUERY: rig.decision(1), "other": rig.decision(5, query="other")}


def send_openly(rig: SinkRig, transactional_id: str, key: bytes, value: bytes) -> Producer:
    """Send a record to the decision topic in a transaction, and leave that open."""
    producer = rig.producer(transactional_id)
    producer.begin_transaction()
    producer.send(rig.decision_topic, value, key)
    producer.flush()
    return producer


def open_foreign_transaction(rig: SinkRig) -> Producer:
    return send_openly(rig, unique("other"), b'["other","query"]', b"{}")


def test_a_hung_transaction_of_another_sink_does_not_delay_a_read(rig, monkeypatch):
    """Decisions behind it are read all the same, and those that were aborted are not."""
    monkeypatch.setattr(decision_log, "SETTLE_MS_MAX", 0)
    own, known = rig.ledger(), rig.ledger()
    own.open()
    own.write(rig.decision(6))
    assert known.read() == {QUERY: rig.decision(6)}
    open_foreign_transaction(rig)
    own.write(rig.decision(7))
    assert known.read() == rig.ledger().read() == {QUERY: rig.decision(7)}
    with pytest.raises(FailpointError):
        own.write(rig.decision(8), on_written=fail)
    send_openly(rig, unique("own"), rig.decision(9).key, rig.decision(9).encode()).abort_transaction()
    own.write(rig.decision(9, query="erased"))
    own.write(rig.decision(9, query="erased"), as_tombstone=True)
    own.write(rig.decision(1, query="other"))
    expected = {QUERY: rig.decision(7), "other": rig.decision(1, query="other")}
    assert known.read() == rig.ledger().read() == expected


def test_a_transaction_behind_an_open_one_is_read_with_its_outcome(rig, monkeypatch):
    """Its record is below the last stable offset, and its marker above."""
    monkeypatch.setattr(decision_log, "SETTLE_MS_MAX", 0)
    rig.ledger().open()
    keep = send_openly(rig, unique("own"), rig.decision(1, query="kept").key, rig.decision(1, query="kept").encode())
    drop = send_openly(rig, unique("own"), rig.decision(1, query="dropped").key, rig.decision(1).encode())
    open_foreign_transaction(rig)
    keep.commit_transaction()
    drop.abort_transaction()
    assert rig.ledger().read() == {"kept": rig.decision(1, query="kept")}


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_a_read_waits_for_the_transaction_of_its_sink(rig, broker, is_committed):
    rig.ledger().open()
    own = send_openly(rig, unique("own"), rig.decision(7).key, rig.decision(7).encode())
    polls = broker.faults.inject(api="ListOffsets", topic=rig.decision_topic, delay_ms=1)
    with polls, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(rig.ledger().read)
        try:
            eventually("the read to poll", lambda: polls.hits >= POLLS_MIN or reading.done())
            assert not reading.done()
        finally:
            (own.commit_transaction if is_committed else own.abort_transaction)()
        assert reading.result(SECONDS_MAX) == ({QUERY: rig.decision(7)} if is_committed else {})


def test_a_read_gives_up_on_a_transaction_of_its_sink_that_stays_open(rig, monkeypatch):
    monkeypatch.setattr(decision_log, "SETTLE_MS_MAX", 100)
    rig.ledger().open()
    send_openly(rig, unique("own"), rig.decision(7).key, rig.decision(7).encode())
    with pytest.raises(SinkError, match=rf"a transaction of sink.id '{rig.sink}' has been open .* before offset 1 "):
        rig.ledger().read()


# -- decisions in parts --------------------------------------------------------------------------

TASKS = 40


def large_decision(rig: SinkRig, batch: int = 0, tasks: int = TASKS) -> Decision:
    """A decision that is too large for a record of the default size of topics: offsets are not repetitive."""
    digits = random.Random(batch)
    spans = [Span("topic", number, digits.randrange(1 << 60), digits.randrange(1 << 60), 9) for number in range(1500)]
    transactions = [TaskTransaction(f"{rig.sink}~run~worker~{task}", 7, 0, True, tuple(spans)) for task in range(tasks)]
    return rig.decision(batch, *transactions)


def part_values(rig: SinkRig) -> list[bytes | None]:
    """The last value of each part in the topic, None for a tombstone."""
    records = committed(rig.broker.bootstrap, rig.decision_topic)[0]
    last = {key: value for key, value in records if key is not None and b'"part"' in key}
    return [*last.values()]


@pytest.fixture
def small_topic(rig, broker) -> None:
    """A decision topic that somebody has created without max.message.bytes."""
    broker.create_topic(rig.decision_topic, 1, {"cleanup.policy": "compact"})


@pytest.mark.usefixtures("small_topic")
def test_a_decision_that_is_too_large_for_a_record_is_read_whole(rig):
    own, known, large = rig.ledger(), rig.ledger(), large_decision(rig)
    own.open()
    own.write(large, rows_of(rig, "a1"))
    assert len(large.encode()) > BROKER_RECORD_BYTES_MAX
    assert known.read() == rig.ledger().read() == {QUERY: large}
    assert rig.rows() == ["a1"]


@pytest.mark.usefixtures("small_topic")
def test_the_parts_of_a_decision_are_erased_when_it_is_finished_by_any_process(rig):
    own, other, large = rig.ledger(), rig.ledger(), large_decision(rig)
    own.open()
    own.write(large)
    assert None not in part_values(rig)
    other.open()
    other.write(other.read()[QUERY].finished())
    assert set(part_values(rig)) == {None}
    assert own.read() == rig.ledger().read() == {QUERY: large.finished()}
    end = len(committed(rig.broker.bootstrap, rig.decision_topic)[0])
    other.write(rig.decision(1))
    assert len(committed(rig.broker.bootstrap, rig.decision_topic)[0]) == end + 1, "the parts are erased once"


@pytest.mark.usefixtures("small_topic")
def test_a_decision_in_parts_that_is_not_committed_leaves_the_one_before_it_as_it_was(rig):
    own, first, second = rig.ledger(), large_decision(rig, 0), large_decision(rig, 1, TASKS // 2)
    own.open()
    own.write(first)
    with pytest.raises(FailpointError):
        own.write(second, on_written=fail)
    assert own.read() == rig.ledger().read() == {QUERY: first}
    own.write(second)
    assert own.read() == rig.ledger().read() == {QUERY: second}
    assert None in part_values(rig), "the second has fewer parts"
    own.write(second, as_tombstone=True)
    assert own.read() == rig.ledger().read() == {}


@pytest.mark.usefixtures("small_topic")
def test_a_decision_in_parts_is_read_behind_an_open_transaction_of_another_sink(rig):
    own, large = rig.ledger(), large_decision(rig)
    own.open()
    open_foreign_transaction(rig)
    own.write(large)
    assert rig.ledger().read() == {QUERY: large}


# -- the topic -----------------------------------------------------------------------------------


def test_the_decision_topic_is_created_with_one_compacted_partition(rig, broker):
    log = DecisionLog(rig.client, rig.decision_topic)
    log.ensure()
    log.ensure()
    with AdminClient(broker.bootstrap) as admin:
        (partition,) = admin.describe_topics([rig.decision_topic])[rig.decision_topic].partitions
        resource = ConfigResource(ResourceKind.TOPIC, rig.decision_topic)
        configs = admin.describe_configs([resource])[resource]
    assert len(partition.replicas) == 1
    assert configs["cleanup.policy"].value == "compact"


def test_a_decision_topic_with_time_retention_is_refused(rig, broker):
    broker.create_topic(rig.decision_topic, 1)
    with pytest.raises(SinkError, match=r"has cleanup.policy=delete: .* Set cleanup.policy=compact on it"):
        rig.ledger().open()


def test_a_decision_topic_with_two_partitions_is_refused(rig, broker):
    broker.create_topic(rig.decision_topic, 2)
    with pytest.raises(SinkError, match=rf"'{rig.decision_topic}' has 2 partitions"):
        rig.ledger().open()


def test_a_decision_topic_that_was_deleted_is_not_created_by_a_write(rig, broker):
    """An auto-created decision topic would delete decisions after some time."""
    own = rig.ledger(
        kafka__max__block__ms=SHORT_MS,
        kafka__delivery__timeout__ms=SHORT_MS,
        kafka__linger__ms="0",
        kafka__request__timeout__ms="500",
    )
    own.open()
    own.write(rig.decision(0))
    broker.delete_topic(rig.decision_topic)
    with pytest.raises(NotDecidedError, match=rf"'{rig.decision_topic}' does not exist any more: it was deleted"):
        own.write(rig.decision(1), rows_of(rig, "a1"))
    with AdminClient(broker.bootstrap) as admin:
        assert rig.decision_topic not in admin.list_topics()
    assert rig.rows() == []
    own.open()
    assert own.read() == {}


def test_rows_of_the_driver_go_to_a_topic_that_the_brokers_create(rig):
    """As rows of tasks do."""
    own, topic = rig.ledger(), unique("new")
    own.open()
    own.write(rig.decision(), [(topic, columns) for _, columns in rows_of(rig, "a1")])
    assert committed(rig.broker.bootstrap, topic)
