"""A producer's accumulator, transaction manager, sender and network client, with a fake clock and fake brokers.

    rig = Rig(idempotent=True)
    future = rig.send(b"value")
    rig.run_until(future.done)

There is no thread and no real connection: `turn` runs an iteration of the I/O thread, and time passes when nothing else
happens.
"""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

from headrace.client.connection import ConnectionSettings
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.producer.accumulator import Accumulator, AccumulatorSettings
from headrace.producer.buffer_pool import BufferPool
from headrace.producer.partitioners import AdaptiveSticky
from headrace.producer.records import PreparedRecord
from headrace.producer.sender import Sender, SenderSettings
from headrace.producer.transaction_requests import PendingResult
from headrace.producer.transaction_state import State
from headrace.producer.transactions import TransactionManager
from headrace.types import GroupMetadata
from headrace.wire.api import ApiKey
from headrace.wire.api.group_offsets import (
    OffsetResultPartition,
    OffsetResultTopic,
    TxnOffsetCommitResponse,
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
from tests.support.fake_network import FIRST_PORT, HOST, FakeClock, FakeCluster, Sent, endpoint

PRODUCE, METADATA, FIND_COORDINATOR = ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.FIND_COORDINATOR
INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT = ApiKey.INIT_PRODUCER_ID, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT
ADD_PARTITIONS, ADD_OFFSETS = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN
PRODUCER_ID = 4000
GROUP = GroupMetadata("g", 3, "member", None)
V2 = {"transaction.version": 2}
V1 = {"transaction.version": 1}
TURNS_MAX = 2_000
SEED = 17

log = logging.getLogger("headrace.test")
_open_rigs: weakref.WeakSet[Rig] = weakref.WeakSet()


def close_rigs() -> None:
    """Close the rigs of the test that has ended."""
    while _open_rigs:
        _open_rigs.pop().client.close()


class Rig:
    """A producer with one topic, "t". Broker p modulo `brokers` leads partition p, unless `leaders` is changed."""

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
        versions: dict[int, tuple[int, int]] | None = None,
        topic_id: bytes = bytes(16),
        observer: Any = None,
    ) -> None:
        self.clock = FakeClock()
        rng = random.Random(SEED)
        self.cluster = FakeCluster(self.clock)
        self.cluster.set_features(V1 if features is None else features)
        self.cluster.versions.update(versions or {})
        self.selector = self.cluster.selector
        self.client = NetworkClient(
            ConnectionSettings("rig", open_socket=self.cluster.open_socket),
            NetworkSettings(max_in_flight=max_in_flight),
            self.clock,
            log=log,
            selector=self.selector,
            rng=rng,
        )
        _open_rigs.add(self)
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
            sticky=AdaptiveSticky(
                self.clock, adaptive=adaptive, availability_timeout_ms=availability_timeout_ms, random=rng
            ),
            on_open=None if self.transactions is None else self.transactions.add_partition,
        )
        self.metadata = Metadata(self.clock, rng=rng)
        self.updater = MetadataUpdater(
            self.metadata,
            self.client,
            [endpoint(0)],
            request_timeout_ms=request_timeout_ms,
            rebootstrap_trigger_ms=None,
        )
        self.sender = Sender(
            self.client,
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
            rng=rng,
        )
        self.client.on_failure = self.sender.request_metadata
        self._script_defaults()
        self.metadata.add_topic("t")
        self.run_until(lambda: "t" in self.metadata.cluster.topics)
        self._connect()
        self.cluster.sent.clear()

    def _script_defaults(self) -> None:
        """Set the replies of brokers without failures."""
        cluster = self.cluster
        cluster.always(METADATA, self.reply_to_metadata)
        cluster.always(PRODUCE, self.log.produce)
        cluster.always(FIND_COORDINATOR, lambda sent: coordinator())
        cluster.always(INIT_PRODUCER_ID, self.reply_to_init)
        cluster.always(ADD_PARTITIONS, lambda sent: partitions_added(sent))
        cluster.always(ADD_OFFSETS, AddOffsetsToTxnResponse())
        cluster.always(TXN_OFFSET_COMMIT, lambda sent: offsets_committed(sent))
        cluster.always(END_TXN, self.reply_to_end)

    def reply_to_metadata(self, sent: Sent) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(
                error_code=0 if leader >= 0 else 5, partition_index=p, leader_id=leader, leader_epoch=epoch
            )
            for p, (leader, epoch) in enumerate(zip(self.leaders, self.leader_epochs, strict=True))
        ]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=n, host=HOST, port=FIRST_PORT + n) for n in self.brokers],
            topics=[MetadataResponseTopic(name="t", topic_id=self.topic_id, partitions=partitions)],
        )

    def reply_to_init(self, sent: Sent) -> InitProducerIdResponse:
        """Return a new id, or the next epoch of the id in the request."""
        current = sent.message.producer_id
        if current == -1:
            return InitProducerIdResponse(producer_id=PRODUCER_ID, producer_epoch=0)
        return InitProducerIdResponse(producer_id=current, producer_epoch=sent.message.producer_epoch + 1)

    def reply_to_end(self, sent: Sent) -> EndTxnResponse:
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
        """Send numbered records, each in its own batch."""
        futures = []
        for n in range(count):
            futures.append(self.send(b"%d" % n, partition))
            self.accumulator.close_open_batches()
        return futures

    def init(self, *, begin: bool = True) -> None:
        """Initialize a transactional producer, and begin a transaction."""
        self.finish(self.manager.begin_init())
        if begin:
            self.manager.begin_transaction()
        self.cluster.sent.clear()

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
        """Run iterations of the I/O loop in which no time passes."""
        self.selector.passes_time = False
        for _ in range(count):
            self.sender.run_once()

    def run_until(self, condition: Callable[[], object], turns_max: int = TURNS_MAX) -> None:
        """Run iterations until a condition is true; time passes when nothing else happens."""
        self.selector.passes_time, self.selector.is_enough = True, condition
        for _ in range(turns_max):
            if condition():
                return
            self.sender.run_once()
        raise AssertionError(f"the condition is still false after {turns_max} turns")

    def run_for(self, ms: float) -> None:
        """Run iterations until the time has passed."""
        end = self.clock.now_ms + ms
        self.run_until(lambda: self.clock.now_ms >= end)

    def start(self) -> threading.Thread:
        """Start the I/O thread."""
        self.selector.passes_time, self.selector.is_enough = True, lambda: False
        thread = threading.Thread(target=self.sender.run, daemon=True)
        thread.start()
        return thread

    def finish(self, result: PendingResult) -> None:
        """Run iterations until an operation is done, and raise its error."""
        self.run_until(lambda: result.is_done)
        result.wait(0)

    def error_of(self, future: Any) -> Any:
        """Run iterations until a record has a result; returns its error or None."""
        self.run_until(future.done)
        return future.exception(0)

    def keys_sent(self) -> list[int]:
        """Return the API keys of all requests so far, without Metadata."""
        return [sent.api_key for sent in self.cluster.sent if sent.api_key != METADATA]

    # -- connections -----------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect to all known brokers, without an iteration of the I/O loop."""
        self.selector.passes_time, self.selector.is_enough = True, lambda: False
        for node_id in self.updater.node_ids:
            while not self.client.is_ready(node_id, self.clock.now_ms):
                self.client.poll(self.client.delay_ms(node_id, self.clock.now_ms), self.clock.now_ms)

    def notice_disconnects(self) -> None:
        """Let the client read from its connections, without an iteration of the I/O loop."""
        self.selector.passes_time = False
        self.client.poll(0, self.clock.now_ms)

    def upgrade(
        self, *, versions: dict[int, tuple[int, int]] | None = None, features: dict[str, int] | None = None
    ) -> None:
        """Restart the brokers with other API versions or features; the client learns of them when it reconnects."""
        self.cluster.versions.update(versions or {})
        if features is not None:
            self.cluster.set_features(features)
        self.cluster.disconnect_all()
        self.notice_disconnects()
        self._connect()

    def stop_broker(self, node_id: int) -> None:
        """Stop a broker, and let the client notice it."""
        self.cluster.stop(node_id)
        self.notice_disconnects()


def coordinator(node_id: int = 0, error_code: int = 0) -> FindCoordinatorResponse:
    if error_code:
        return FindCoordinatorResponse(coordinators=[Coordinator(node_id=-1, port=-1, error_code=error_code)])
    return FindCoordinatorResponse(coordinators=[Coordinator(node_id=node_id, host=HOST, port=FIRST_PORT + node_id)])


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
            OffsetResultTopic(
                name=topic.name,
                partitions=[
                    OffsetResultPartition(
                        partition_index=p.partition_index, error_code=(errors or {}).get(p.partition_index, 0)
                    )
                    for p in topic.partitions
                ],
            )
            for topic in sent.message.topics
        ]
    )


def new_rig(**options: Any) -> Rig:
    """Return a transactional rig that is not initialized."""
    return Rig(transactional_id="x", **options)


def rig_in_transaction(**options: Any) -> Rig:
    rig = new_rig(**options)
    rig.init()
    return rig


def rig_with_coordinator_apart(**options: Any) -> Rig:
    """Return a rig whose coordinator is a broker that is not in the metadata."""
    rig = new_rig(brokers=2, **options)
    rig.cluster.always(FIND_COORDINATOR, lambda sent: coordinator(7))
    rig.init()
    return rig
