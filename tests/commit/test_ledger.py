"""The ledger and its decision topic on a broker: what is decided, who may decide, and what a reader can rely on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.errors import ConfigError
from headrace.spark import decisions, ledger
from headrace.spark.decisions import Decision, DecisionLog
from headrace.spark.failpoints import FailpointError
from headrace.spark.sink_errors import FencedError, InDoubtError, NotDecidedError, SinkError
from sink_rig import QUERY, SinkRig
from topics import unique
from waiting import eventually

SECONDS_MAX = 30
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


@pytest.mark.parametrize("place", ["on_rows", "on_written"])
def test_a_write_that_fails_before_its_commit_leaves_neither_rows_nor_decision(rig, place):
    own = rig.ledger()
    own.open()
    with pytest.raises(FailpointError):
        own.write(rig.decision(), rows_of(rig, "a1"), **{place: fail})
    assert (own.read(), rig.rows()) == ({}, [])
    own.write(rig.decision(), rows_of(rig, "a2"))
    assert (own.read(), rig.rows()) == ({QUERY: rig.decision()}, ["a2"])


def test_an_erased_decision_is_not_read(rig):
    own = rig.ledger()
    own.open()
    own.write(rig.decision())
    own.write(rig.decision().finished(), is_erased=True)
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


def test_a_commit_without_a_response_is_in_doubt_and_the_log_tells(rig, broker, monkeypatch):
    """The coordinator has committed and its response is lost for good: "not decided" would be a lie."""
    monkeypatch.setattr(ledger, "DECISION_SECONDS_MAX", 0.0)
    monkeypatch.setattr(ledger, "CLOSE_SECONDS_MAX", 0.0)
    client_id = unique("unanswered")
    own = rig.ledger(kafka__client__id=client_id, kafka__max__block__ms=SHORT_MS)
    own.open()
    with broker.faults.inject(api="EndTxn", client_id=client_id, drop=True, when="after") as fault:
        with pytest.raises(InDoubtError, match="Start the query again"):
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


def test_opening_a_ledger_ends_the_write_that_an_older_one_has_under_way(rig):
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


def test_a_read_waits_for_what_was_begun_before_it(rig, broker):
    """A decision behind an open transaction of another sink is committed, and no reader is given it yet."""
    own = rig.ledger()
    own.open()
    other = rig.producer(unique("other"))
    other.begin_transaction()
    other.send(rig.decision_topic, b"{}", b'["other","query"]')
    other.flush()
    own.write(rig.decision(7))
    polls = broker.faults.inject(api="ListOffsets", topic=rig.decision_topic, delay_ms=1)
    with polls, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(rig.ledger().read)
        try:
            eventually("the read to poll", lambda: polls.hits >= POLLS_MIN or reading.done())
            assert not reading.done()
        finally:
            other.abort_transaction()
        assert reading.result(SECONDS_MAX) == {QUERY: rig.decision(7)}


def test_a_read_gives_up_on_a_transaction_that_stays_open_and_names_it(rig, monkeypatch):
    monkeypatch.setattr(decisions, "SETTLE_MS_MAX", 100)
    monkeypatch.setattr(decisions, "READ_MS_MAX", 1000)
    own = rig.ledger()
    own.open()
    other = rig.producer(unique("other"))
    other.begin_transaction()
    other.send(rig.decision_topic, b"{}", b'["other","query"]')
    other.flush()
    with pytest.raises(SinkError, match=rf"'{rig.decision_topic}' has had an open transaction at offset 0"):
        own.read()


# -- the topic -----------------------------------------------------------------------------------


def test_the_decision_topic_is_made_with_one_compacted_partition(rig, broker):
    log = DecisionLog(rig.client, rig.decision_topic)
    log.ensure()
    log.ensure()
    with AdminClient(broker.bootstrap) as admin:
        (partition,) = admin.describe_topics([rig.decision_topic])[rig.decision_topic].partitions
        resource = ConfigResource(ResourceKind.TOPIC, rig.decision_topic)
        configs = admin.describe_configs([resource])[resource]
    assert len(partition.replicas) == 1
    assert configs["cleanup.policy"].value == "compact"


def test_a_decision_topic_that_forgets_with_time_is_refused(rig, broker):
    broker.create_topic(rig.decision_topic, 1)
    with pytest.raises(SinkError, match=r"has cleanup.policy=delete: .* Set cleanup.policy=compact on it"):
        rig.ledger().open()


def test_a_decision_topic_with_two_partitions_is_refused(rig, broker):
    broker.create_topic(rig.decision_topic, 2)
    with pytest.raises(SinkError, match=rf"'{rig.decision_topic}' has 2 partitions"):
        rig.ledger().open()
