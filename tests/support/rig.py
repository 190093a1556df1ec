"""A producer's engine on a bench: accumulator, sender and transaction manager, with a fake clock and fake brokers.

    rig = Rig(idempotent=True)
    future = rig.send(b"value")
    rig.run_until(future.done)

No thread, no socket: a turn of the I/O thread is a call of `turn`, and time passes when nothing else happens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from headrace.client.addresses import Endpoint
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.producer.accumulator import Accumulator, AccumulatorSettings
from headrace.producer.buffer_pool import BufferPool
from headrace.producer.partitioners import AdaptiveSticky
from headrace.producer.records import GroupMetadata, PreparedRecord
from headrace.producer.sender import Sender, SenderSettings
from headrace.producer.transaction_requests import PendingResult
from headrace.producer.transaction_state import State
from headrace.producer.transactions import TransactionManager
from headrace.wire.api.group_offsets import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headrace.wire.api.metadata import (
    Coordinator,
    FindCoordinatorResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.api.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    InitProducerIdResponse,
)
from tests.support.fake_log import FakeLog
from tests.support.fakes import FakeClient, FakeClock, Sent

PRODUCE, METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID = 0, 3, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
PRODUCER_ID = 4000
GROUP = GroupMetadata("g", 3, "member", None)
V2 = {"transaction.version": 2}
V1 = {"transaction.version": 1}
TURNS_MAX = 2_000

log = logging.getLogger("headrace.test")


class Rig:
    """The topic is "t"; partition p is led by broker p modulo their number, unless `leaders` says otherwise."""

    def __init__(
        self,
        *,
        idempotent: bool = False,
        transactional_id: str | None = None,
        partitions: int = 2,
        brokers: int = 1,
        acks: int = -1,
        retries: int = 0x7FFFFFFF,
        linger_ms: float = 0,
        batch_bytes: int = 1024,
        total_bytes: int = 1 << 20,
        max_request_bytes: int = 1 << 20,
        max_in_flight: int = 5,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: int = 30_000,
        codec: int = 0,
        adaptive: bool = True,
        availability_timeout_ms: float = 0,
        features: dict[str, int] | None = None,
        topic_id: bytes = bytes(16),
        observer: Any = None,
    ) -> None:
        self.clock = FakeClock()
        self.client = FakeClient(self.clock, max_in_flight=max_in_flight)
        self.client.features = V1 if features is None else features
        self.log = FakeLog()
        self.topic_id = topic_id
        self.log.topic_names[topic_id] = "t"
        self.brokers = list(range(brokers))
        self.leaders = [p % brokers for p in range(partitions)]
        self.leader_epochs = [0] * partitions
        self.pool = BufferPool(total_bytes, batch_bytes, self.clock)
        self.transactions = None
        if idempotent or transactional_id is not None:
            self.transactions = TransactionManager(transactional_id, 60_000, log, self.client.wakeup)
        self.accumulator = Accumulator(
            AccumulatorSettings(
                batch_bytes=batch_bytes,
                linger_ms=linger_ms,
                max_request_bytes=max_request_bytes,
                delivery_timeout_ms=delivery_timeout_ms,
                codec=codec,
            ),
            self.pool,
            self.clock,
            self.client.wakeup,
            sticky=AdaptiveSticky(self.clock, adaptive=adaptive, availability_timeout_ms=availability_timeout_ms),
            on_open=None if self.transactions is None else self.transactions.add_partition,
        )
        self.metadata = Metadata(self.clock)
        client: Any = self.client
        self.updater = MetadataUpdater(
            self.metadata,
            client,
            [Endpoint("fake", 9092)],
            request_timeout_ms=request_timeout_ms,
            rebootstrap_trigger_ms=None,
        )
        self.sender = Sender(
            client,
            self.updater,
            self.accumulator,
            SenderSettings(
                acks=acks,
                retries=retries,
                request_timeout_ms=request_timeout_ms,
                delivery_timeout_ms=delivery_timeout_ms,
                keeps_order_by_muting=max_in_flight == 1 and self.transactions is None,
            ),
            self.clock,
            log=log,
            transactions=self.transactions,
            observer=observer,
        )
        self._script_defaults()
        self.metadata.add_topic("t")
        self.run_until(lambda: "t" in self.metadata.cluster.topics)
        self.client.sent.clear()

    def _script_defaults(self) -> None:
        """Brokers on a good day."""
        client = self.client
        client.always(METADATA, self.answer_metadata)
        client.always(PRODUCE, self.log.produce)
        client.always(FIND_COORDINATOR, lambda sent: coordinator())
        client.always(INIT_PRODUCER_ID, self.answer_init)
        client.always(ADD_PARTITIONS, lambda sent: partitions_added(sent))
        client.always(ADD_OFFSETS, AddOffsetsToTxnResponse())
        client.always(TXN_OFFSET_COMMIT, lambda sent: offsets_committed(sent))
        client.always(END_TXN, self.answer_end)

    def answer_metadata(self, sent: Sent) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(
                error_code=0 if leader >= 0 else 5, partition_index=p, leader_id=leader, leader_epoch=epoch
            )
            for p, (leader, epoch) in enumerate(zip(self.leaders, self.leader_epochs, strict=True))
        ]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n, host="fake", port=9092 + n) for n in self.brokers],
            topics=[MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=partitions)],
        )

    def answer_init(self, sent: Sent) -> InitProducerIdResponse:
        """A new id, or the next epoch of the one that was sent."""
        current = sent.message.producer_id
        if current == -1:
            return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0)
        return InitProducerIdResponse(producer_id=current, producer_epoch=sent.message.producer_epoch + 1)

    def answer_end(self, sent: Sent) -> EndTxnResponse:
        if sent.version < 5:
            return EndTxnResponse()
        return EndTxnResponse(producer_id=sent.message.producer_id, producer_epoch=sent.message.producer_epoch + 1)

    # -- the application -----------------------------------------------------------------------

    @property
    def manager(self) -> TransactionManager:
        assert self.transactions is not None
        return self.transactions

    def state(self) -> State:
        return self.manager.state

    def send(
        self,
        value: bytes = b"value",
        partition: int | None = 0,
        on_delivery: Any = None,
        *,
        key: bytes | None = None,
        timestamp: int | None = None,
    ) -> Any:
        if self.transactions is not None:
            self.transactions.may_send()
        queues = self.accumulator.topic("t", len(self.leaders))
        cluster = self.metadata.cluster
        return self.accumulator.append(
            queues, cluster, PreparedRecord(partition, timestamp, key, value, (), None), on_delivery, self.clock.now_ms
        )

    def send_batches(self, count: int, partition: int = 0) -> list[Any]:
        """One record a batch, numbered."""
        futures = []
        for n in range(count):
            futures.append(self.send(b"%d" % n, partition))
            self.accumulator.close_open_batches()
        return futures

    def init(self, *, begin: bool = True) -> None:
        """A transactional producer, ready or in a transaction."""
        self.finish(self.manager.begin_init())
        if begin:
            self.manager.begin_transaction()
        self.client.sent.clear()

    def commit(self) -> None:
        result = self.manager.begin_commit()
        self.accumulator.close_open_batches()
        self.finish(result)

    def abort(self) -> None:
        result = self.manager.begin_abort()
        self.accumulator.close_open_batches()
        self.finish(result)

    # -- the I/O thread ------------------------------------------------------------------------

    def turn(self, count: int = 1) -> None:
        """Turns in which no time passes."""
        self.client.passes_time = False
        for _ in range(count):
            self.sender.run_once()

    def run_until(self, is_so: Callable[[], object], turns_max: int = TURNS_MAX) -> None:
        """Turn until something is so; time passes when nothing else happens."""
        self.client.passes_time, self.client.is_enough = True, is_so
        for _ in range(turns_max):
            if is_so():
                return
            self.sender.run_once()
        raise AssertionError(f"not so after {turns_max} turns")

    def run_for(self, ms: float) -> None:
        """Turn until so much time has passed."""
        end = self.clock.now_ms + ms
        self.run_until(lambda: self.clock.now_ms >= end)

    def start(self) -> threading.Thread:
        """The I/O thread itself, for its whole life."""
        self.client.passes_time, self.client.is_enough = True, lambda: False
        thread = threading.Thread(target=self.sender.run, daemon=True)
        thread.start()
        return thread

    def finish(self, result: PendingResult) -> None:
        """Turn until an operation is over, and raise what came of it."""
        self.run_until(lambda: result.is_done)
        result.wait(0)

    def error_of(self, future: Any) -> Any:
        """Turn until a record is answered; its error or None."""
        self.run_until(future.done)
        return future.exception(0)

    def keys_sent(self) -> list[int]:
        """The API keys of all requests so far, but for metadata."""
        return [sent.api_key for sent in self.client.sent if sent.api_key != METADATA]


def coordinator(node_id: int = 0, error_code: int = 0) -> FindCoordinatorResponse:
    if error_code:
        return FindCoordinatorResponse(coordinators=[Coordinator(node_id=-1, port=-1, error_code=error_code)])
    return FindCoordinatorResponse(coordinators=[Coordinator(node_id=node_id, host="fake", port=9092)])


def partitions_added(sent: Sent, errors: dict[int, int] | None = None) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=p, partition_error_code=(errors or {}).get(p, 0))
                    for p in topic.partitions
                ],
            )
            for topic in sent.message.v3_and_below_topics
        ]
    )


def offsets_committed(sent: Sent, errors: dict[int, int] | None = None) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=(errors or {}).get(p.partition_index, 0)
                    )
                    for p in topic.partitions
                ],
            )
            for topic in sent.message.topics
        ]
    )


def new_rig(**options: Any) -> Rig:
    """A transactional one that has done nothing yet."""
    return Rig(transactional_id="x", **options)


def rig_in_transaction(**options: Any) -> Rig:
    rig = new_rig(**options)
    rig.init()
    return rig


def rig_with_coordinator_apart(**options: Any) -> Rig:
    """The coordinator is a broker of its own, that metadata does not know."""
    rig = new_rig(brokers=2, **options)
    rig.client.always(FIND_COORDINATOR, lambda sent: coordinator(7))
    rig.init()
    return rig
