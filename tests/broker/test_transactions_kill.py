"""kill -9 in every state of a transaction: all partitions have the outcome that the producer got."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time

import pytest

from headrace import AbortableError, Producer
from headrace.broker import EmbeddedBroker
from headrace.broker.log import Origin
from headrace.client.admin import AdminClient
from headrace.errors import Code
from headrace.types import TopicPartition
from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer as Writer
from headrace.wire.records import encode
from tests.support.broker_in_loop import broker_in_loop, hold_markers
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer
from tests.support.visible import visible
from tests.support.waiting import eventually

ID = "payments"
TIMEOUT_MS = 60_000
TIME_MS = time.time_ns() // 1_000_000  # older records might be deleted when the broker starts
SECONDS = 30
EXIT_SECONDS_MAX = 20


# -- the state that the disk has -----------------------------------------------------------------

MARKERS = {"PrepareCommit": 0, "PrepareAbort": 0, "half committed": 1, "CompleteCommit": 2, "CompleteAbort": 2}
"""How many of the two markers are written."""
ENDS_IN_COMMIT = {"Ongoing", "PrepareCommit", "half committed", "CompleteCommit"}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.behaviour("B03")
@pytest.mark.parametrize("state", ["Empty", "Ongoing", *MARKERS])
def test_a_broker_continues_from_any_state_on_disk(tmp_path, state, version):
    """The data directory is copied in that state, which is what kill -9 leaves."""
    copy = tmp_path / "copy"
    producer = asyncio.run(_leave_in_state(tmp_path / "data", copy, state, version))
    with EmbeddedBroker(data_dir=copy) as broker, Connection(broker.bootstrap) as connection:
        writer = RawProducer(connection, "topic", ID, transactions=version)
        writer.producer_id, writer.epoch = producer
        if state == "Ongoing":
            assert visible(connection, "topic", 0) == visible(connection, "topic", 1) == []
            assert writer.end(True).error_code == 0
        is_committed = state in ENDS_IN_COMMIT
        expected = "Empty" if state == "Empty" else "CompleteCommit" if is_committed else "CompleteAbort"
        eventually("the end", lambda: _state(broker) == expected)
        if state != "Empty":
            assert [visible(connection, "topic", index) for index in (0, 1)] == [
                [b"0"][:is_committed],
                [b"1"][:is_committed],
            ]
            assert writer.end(is_committed, epoch=producer[1]).error_code == 0  # a retry succeeds
            assert writer.end(not is_committed, epoch=producer[1]).error_code == Code.INVALID_TXN_STATE
        successor = RawProducer(connection, "topic", ID, transactions=version)
        assert successor.init().error_code == 0
        assert successor.epoch > producer[1]


async def _leave_in_state(data, copy, state, version):
    """Bring a transaction of two partitions to a state, copy the disk, and return producer id and epoch."""
    async with broker_in_loop(data) as broker:
        broker.topic_manager.create("topic", 2, 1, {})
        transactions = broker.transactions
        producer = await transactions.init_producer_id(ID, TIMEOUT_MS)
        if state != "Empty":
            await transactions.add_partitions(
                ID, producer, [TopicPartition("topic", 0), TopicPartition("topic", 1)], version=version
            )
            for index in (0, 1):
                _write(broker, index, producer)
        if state not in ("Empty", "Ongoing"):
            hold_markers(broker, allowed=MARKERS[state])
            await transactions.end_transaction(ID, producer, state in ENDS_IN_COMMIT, version)
            await asyncio.sleep(0.05)  # everything that is not held is done by now
            held = MARKERS[state] < 2
            assert transactions.describe(ID).state.label.startswith("Prepare" if held else "Complete")
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns(".lock"))
    return producer


def _write(broker, index, producer):
    batch = encode(
        [Record(0, TIME_MS, None, b"%d" % index, ())], producer=Writer(producer.producer_id, producer.epoch, 0, True)
    )
    broker.replicas.append(broker.replicas.partition("topic", index), batch, origin=Origin.CLIENT, acks=-1)


def _state(broker):
    with AdminClient(broker.bootstrap) as admin:
        return admin.describe_transactions([ID])[ID].state


# -- a crash in each request ---------------------------------------------------------------------

CRASHES = [
    ("InitProducerId", "before"),
    ("InitProducerId", "after"),
    ("AddPartitionsToTxn", "before"),
    ("AddPartitionsToTxn", "after"),
    ("Produce", "before"),
    ("Produce", "after"),
    ("EndTxn", "before"),
    ("EndTxn", "after"),
]


class Ours:
    """Our own producer: transactions of the second version."""

    def __init__(self, bootstrap):
        self._producer = Producer(bootstrap_servers=bootstrap, transactional_id=ID, max_block_ms=SECONDS * 1000)
        self._producer.init_transactions()

    def run(self, value):
        """Run a transaction in two partitions; return whether it was committed."""
        self._producer.begin_transaction()
        try:
            for partition in (0, 1):
                self._producer.send("topic", value, partition=partition)
            self._producer.commit_transaction()
        except AbortableError:
            self._producer.abort_transaction()
            return False
        return True

    def close(self):
        self._producer.close()


class Theirs:
    """librdkafka's: transactions of the first version."""

    def __init__(self, bootstrap):
        self._producer = librdkafka.transactional(bootstrap, ID)

    def run(self, value):
        self._producer.begin_transaction()
        records = [Record(0, TIME_MS, None, value, ())]
        for partition in (0, 1):
            librdkafka.append(self._producer, "topic", records, partition)
        self._producer.commit_transaction(SECONDS)
        return True

    def close(self):
        del self._producer


# The second version has no AddPartitionsToTxn: the write itself adds its partition.
CASES = [(Theirs, *crash) for crash in CRASHES] + [(Ours, *crash) for crash in CRASHES if "Add" not in crash[0]]


@pytest.mark.parametrize(("client", "api", "when"), CASES)
def test_a_producer_survives_a_crash_during_any_request(client, api, when):
    with EmbeddedBroker() as broker:
        broker.create_topic("topic", 2)
        before = client(broker.bootstrap)
        assert before.run(b"before")
        before.close()
        outcome = []

        def work():
            producer = client(broker.bootstrap)
            outcome.append(producer.run(b"during"))
            producer.close()

        fault = broker.faults.inject(api=api, when=when, crash=True, count=1)
        worker = threading.Thread(target=work)
        worker.start()
        assert broker.wait(EXIT_SECONDS_MAX) != 0
        broker.start()
        worker.join(SECONDS)
        assert len(outcome) == 1, f"the producer did not come through a crash {when} {fault}"
        after = client(broker.bootstrap)
        assert after.run(b"after")
        after.close()
        expected = [b"before", *[b"during"][: outcome[0]], b"after"]
        with Connection(broker.bootstrap) as connection:
            eventually("all of it", lambda: [visible(connection, "topic", p) for p in (0, 1)] == [expected, expected])
