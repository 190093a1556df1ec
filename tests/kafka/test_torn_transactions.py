"""A produce response is lost, and the application aborts the transaction before the producer has retried.

On the classic protocol, an abort keeps the epoch. librdkafka (2.16.0) then gives the sequence number of the record that
it purged to the next record of the partition. The broker has a batch with that number, of the aborted transaction.
Apache Kafka acknowledges the new batch as its duplicate and does not write it: the transaction is committed without the
record, and the delivery report says that it was written. headrace's broker refuses the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import Code
from headrace.verify import (
    Action,
    AnomalyKind,
    HistoryWriter,
    Phase,
    SendOp,
    TransactionOp,
    Verdict,
    check,
    load_history,
)
from headrace.wire.api import ApiKey
from tests.support.chaos_clients import Client, ClientFactory, ConfluentClient, GaveUpError, HeadraceClient, OnResult
from tests.support.chaos_readers import read_finally
from tests.support.chaos_writers import Setting
from tests.support.fault_proxy import FaultProxy, ProxyFault
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer
from tests.support.waiting import eventually

OFFLINE_SECONDS = 0.7
V2_VERSION = 5
"""Of EndTxn: transactions v2 begin with it."""
BrokerOf = Callable[[str], Broker]


@pytest.fixture
def broker_of(request: pytest.FixtureRequest) -> BrokerOf:
    """Return a running broker by its make."""
    fixtures = {"kafka 3.9": "kafka39", "kafka 4.3": "kafka", "headrace": "headrace_broker"}
    return lambda make: request.getfixturevalue(fixtures[make])


class Story:
    """One producer that records what it does."""

    def __init__(self, proxy: FaultProxy, setting: Setting, factory: ClientFactory) -> None:
        self._proxy = proxy
        self._setting = setting
        self._id = f"id-{setting.topic}"
        self.client: Client = factory(proxy.bootstrap, setting.topic, self._id)

    def add(self, action: Action, phase: Phase, transaction: str | None = None) -> None:
        self._setting.history.add(TransactionOp(action, phase, "writer", transaction, self._id))

    def send(self, transaction: str, partition: int) -> None:
        value, topic = f"{transaction}-{partition}", self._setting.topic
        send = SendOp(Phase.INVOKE, "writer", value, topic, partition, transaction=transaction)
        self._setting.history.add(send)
        self.client.send(value, partition, self._on_result(value))

    def _on_result(self, value: str) -> OnResult:
        def on_result(phase: Phase, partition: int | None, offset: int | None) -> None:
            self._setting.history.add(SendOp(phase, "writer", value, self._setting.topic, partition, offset))

        return on_result

    def _is_hit(self, fault: ProxyFault) -> bool:
        self.client.serve()
        return fault.hits > 0

    def commit(self, transaction: str) -> Phase:
        self.add(Action.COMMIT, Phase.INVOKE, transaction)
        try:
            self.client.commit()
            phase = Phase.OK
        except GaveUpError:
            phase = Phase.INFO
        self.add(Action.COMMIT, phase, transaction)
        return phase

    def abort_after_a_lost_response(self) -> None:
        """Abort while the producer cannot reach the broker, after that has written the record."""
        self.client.begin()
        with self._proxy.lose_responses(ApiKey.PRODUCE, count=1, cut=True) as fault:
            self.send("aborted", 0)
            eventually("the response is lost", lambda: self._is_hit(fault))
        healing = threading.Timer(OFFLINE_SECONDS, self._proxy.heal)
        healing.start()
        self.add(Action.ABORT, Phase.INVOKE, "aborted")
        self.client.abort()
        self.add(Action.ABORT, Phase.OK, "aborted")
        healing.join()


def run(
    broker: Broker, factory: ClientFactory, folder: Path, topic: str, *, classic: bool = True
) -> tuple[Phase, Verdict]:
    """Return the result of the last commit, and the verdict."""
    path = folder / f"{topic}.jsonl"
    with FaultProxy(broker.bootstrap, classic=classic) as proxy, HistoryWriter(path) as history:
        setting = Setting(broker.bootstrap, broker.create_topic(topic, 2), 2, history)
        story = Story(proxy, setting, factory)
        try:
            story.client.init()
            story.client.begin()
            story.send("first", 0)
            assert story.commit("first") is Phase.OK
            story.abort_after_a_lost_response()
            story.client.begin()
            for partition in (0, 1):
                story.send("second", partition)
            phase = story.commit("second")
        finally:
            story.client.close()
        successor = factory(broker.bootstrap, topic, f"id-{topic}")
        successor.init()  # ends what the first one left open, or waits for its end
        successor.close()
        read_finally(setting)
        assert (proxy.versions[ApiKey.END_TXN] < V2_VERSION) is classic
    return phase, check(load_history(path))


@pytest.mark.parametrize("make", ["kafka 3.9", "kafka 4.3"])
def test_the_checker_reports_the_transaction_that_librdkafka_tears(
    make: str, broker_of: BrokerOf, tmp_path: Path
) -> None:
    phase, verdict = run(broker_of(make), ConfluentClient, tmp_path, f"torn-{make.replace(' ', '-')}")
    assert phase is Phase.OK, verdict
    assert AnomalyKind.TORN in verdict.kinds, verdict
    (torn,) = [anomaly for anomaly in verdict.anomalies if anomaly.kind is AnomalyKind.TORN]
    assert "transaction second: 1 of 2 values are missing: 'second-0'" in torn.text
    # The acknowledged offset is that of the aborted record.
    (changed,) = [anomaly for anomaly in verdict.anomalies if anomaly.kind is AnomalyKind.CHANGED] or [torn]
    assert set(verdict.kinds) <= {AnomalyKind.TORN, AnomalyKind.CHANGED}, changed


def test_headraces_broker_refuses_the_batch_that_would_tear_it(broker_of: BrokerOf, tmp_path: Path) -> None:
    phase, verdict = run(broker_of("headrace"), ConfluentClient, tmp_path, "torn-headrace")
    assert phase is Phase.INFO, verdict
    assert verdict.is_valid, verdict


@pytest.mark.parametrize(
    ("make", "classic"),
    [("kafka 3.9", True), ("kafka 4.3", True), ("kafka 4.3", False), ("headrace", True), ("headrace", False)],
)
def test_headraces_producer_does_not_tear_it(make: str, classic: bool, broker_of: BrokerOf, tmp_path: Path) -> None:
    topic = f"whole-{make.replace(' ', '-')}-{classic}"
    phase, verdict = run(broker_of(make), HeadraceClient, tmp_path, topic, classic=classic)
    assert phase is Phase.OK, verdict
    assert verdict.is_valid, verdict


def write_again(broker: Broker, topic: str, *, transactions: int, new_epoch: bool = False) -> tuple[int, list[bytes]]:
    """Abort a transaction, and use its sequence number for the next one, as raw requests.

    Return the error code of the second batch and what is visible.
    """
    broker.create_topic(topic)
    with Connection(broker.bootstrap) as connection:
        producer = RawProducer(connection, topic, f"id-{topic}", transactions=transactions)
        producer.init()
        if transactions == 1:
            assert producer.add(0) == [0]
        assert producer.write(0, b"aborted").error_code == 0
        assert producer.end(False).error_code == 0
        if new_epoch:
            assert producer.init(producer_id=producer.producer_id, epoch=producer.epoch).error_code == 0
        if transactions == 1:
            assert producer.add(0) == [0]
        code = producer.write(0, b"committed").error_code
        producer.end(code == 0)
        producer.init()  # waits for the markers
        visible = connection.fetch(topic, committed=True)
        data = visible.records or b""
        assert isinstance(data, bytes | bytearray | memoryview)
        return code, [value for value in (b"aborted", b"committed") if value in bytes(data)]


@pytest.mark.parametrize("make", ["kafka 3.9", "kafka 4.3"])
def test_kafka_acknowledges_a_reused_sequence_number_without_writing_the_batch(make: str, broker_of: BrokerOf) -> None:
    code, values = write_again(broker_of(make), f"reused-{make.replace(' ', '-')}", transactions=1)
    assert (code, b"committed" in values) == (0, False)


def test_headraces_broker_refuses_a_reused_sequence_number(broker_of: BrokerOf) -> None:
    code, values = write_again(broker_of("headrace"), "reused-headrace", transactions=1)
    assert (code, b"committed" in values) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, False)


@pytest.mark.parametrize("make", ["kafka 3.9", "kafka 4.3", "headrace"])
def test_with_a_new_epoch_the_batch_is_written(make: str, broker_of: BrokerOf) -> None:
    topic = f"new-epoch-{make.replace(' ', '-')}"
    code, values = write_again(broker_of(make), topic, transactions=1, new_epoch=True)
    assert (code, b"committed" in values) == (0, True)


@pytest.mark.parametrize("make", ["kafka 4.3", "headrace"])
def test_transactions_v2_have_a_new_epoch_after_every_end(make: str, broker_of: BrokerOf) -> None:
    code, values = write_again(broker_of(make), f"v2-{make.replace(' ', '-')}", transactions=2)
    assert (code, b"committed" in values) == (0, True)
