"""The producer for asyncio: the same names, awaited where the other one blocks.

    future = await producer.send(…)     the record is queued; waits only for metadata, or for memory (back-pressure)
    metadata = await future             the broker has it

It drives an ordinary `Producer`. What need not wait happens on the event loop, without a thread in between; what has to
wait does so in a thread, and comes back to the loop before anything is done to the record. So whoever is cancelled in
`send` has sent nothing, and whoever is cancelled after it changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.client.metadata import PartitionInfo
from headrace.config import Config
from headrace.errors import AbortableError, BufferExhaustedError, TimedOutError
from headrace.producer.arrow import ArrowDelivery
from headrace.producer.batch import Delivery
from headrace.producer.buffer_pool import Claim
from headrace.producer.metrics import MetricName, Value
from headrace.producer.offload import in_thread
from headrace.producer.producer import Headers, Producer
from headrace.producer.queues import TopicQueues
from headrace.producer.records import ProducerRecord, RecordMetadata
from headrace.producer.steps import Prepared
from headrace.producer.transactions import GroupMetadata
from headrace.wire.records import record_bytes_max

if TYPE_CHECKING:
    from headrace.producer._send import RecordFuture


NOT_WAITING_MS = 0.0  # a deadline that is over


class AsyncProducer:
    """Sends records to Kafka from one event loop. Takes what `Producer` takes; see there for what is not said here."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        profile: str | None = None,
        **options: Any,
    ) -> None:
        self._producer = Producer(
            config, key_serializer=key_serializer, value_serializer=value_serializer, profile=profile, **options
        )
        # Event loop only, both.
        self._memory_turn = asyncio.Lock()  # who waits for memory; the others queue here, in order
        self._metadata_waits: dict[tuple[str, int | None], asyncio.Task[TopicQueues]] = {}

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **options: Any) -> Self:
        """A producer from a `.properties` file; keyword arguments win over it."""
        return cls(Path(path), **options)

    @property
    def config(self) -> Config:
        """The options as they were resolved."""
        return self._producer.config

    # -- sending -------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = None,
        on_delivery: Delivery | None = None,
    ) -> RecordFuture:
        """Queue a record; await the future that comes back for its metadata. `on_delivery` runs on the event loop."""
        if on_delivery is not None:
            on_delivery = _on_loop(on_delivery)
        producer = self._producer
        if producer._fast_send_enabled and headers is None:
            appender = producer._appenders.get(topic)
            if appender is not None:
                future = appender.try_append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return await self._send(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()), on_delivery)

    async def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """`send` with a record as one object."""
        return await self._send(record, None if on_delivery is None else _on_loop(on_delivery))

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordMetadata:
        """`send`, and await the metadata."""
        metadata: RecordMetadata = await (await self.send(topic, value, key, **options))
        return metadata

    async def _send(self, record: ProducerRecord, on_delivery: Delivery | None) -> RecordFuture:
        producer = self._producer
        deadline_ms = producer._deadline_ms()
        record, on_delivery = producer._steps.intercept(record, on_delivery)
        try:
            producer._check_may_send()
            topic = await self._topic(record.topic, record.partition, deadline_ms)
            cluster = producer._metadata.cluster
            prepared = producer._steps.prepare(record, on_delivery, cluster)
            if not self._memory_turn.locked() and self._has_room(topic, prepared):
                with contextlib.suppress(BufferExhaustedError):  # a thread was faster
                    return producer._append(topic, cluster, prepared, on_delivery, NOT_WAITING_MS)
            async with self._memory_turn:
                while True:
                    if self._has_room(topic, prepared):
                        with contextlib.suppress(BufferExhaustedError):
                            return producer._append(topic, cluster, prepared, on_delivery, NOT_WAITING_MS)
                    await in_thread(partial(self._wait_for_room, topic, prepared, deadline_ms))
        except Exception as error:
            refused = producer._refuse(record.topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    async def _topic(self, topic: str, partition: int | None, deadline_ms: float) -> TopicQueues:
        producer = self._producer
        while True:
            count = producer._metadata.cluster.partition_count(topic)
            if count is not None and (partition is None or partition < count):
                return producer._topic(topic, partition, deadline_ms)
            try:
                return await asyncio.shield(self._metadata_wait(topic, partition, deadline_ms))
            except TimedOutError:
                if producer._clock.monotonic_ms() >= deadline_ms:  # else it was the time of who came before us
                    raise

    def _metadata_wait(self, topic: str, partition: int | None, deadline_ms: float) -> asyncio.Task[TopicQueues]:
        """However many tasks want the same topic, one thread waits for it."""
        key = (topic, partition)
        wait = self._metadata_waits.get(key)
        if wait is None:
            wait = asyncio.create_task(in_thread(partial(self._producer._topic, topic, partition, deadline_ms)))
            self._metadata_waits[key] = wait

            def forget(done: asyncio.Task[TopicQueues]) -> None:
                self._metadata_waits.pop(key, None)
                if not done.cancelled():
                    done.exception()  # all who wanted to know may have been cancelled

            wait.add_done_callback(forget)
        return wait

    def _room_wanted(self, topic: TopicQueues, prepared: Prepared) -> int:
        """What `Accumulator.append` would take from the pool if it had to open a batch now."""
        size = record_bytes_max(prepared.key, prepared.value, prepared.headers)
        return min(self._producer._accumulator.room_bytes(topic, size), self._producer._pool.total_bytes)

    def _has_room(self, topic: TopicQueues, prepared: Prepared) -> bool:
        pool = self._producer._pool
        return not pool.waiting_threads and pool.available_bytes >= self._room_wanted(topic, prepared)

    def _wait_for_room(self, topic: TopicQueues, prepared: Prepared, deadline_ms: float) -> None:
        """Blocks until there is memory, and leaves it where it is."""
        producer = self._producer
        producer._wake()  # what is buffered has to go out for memory to come back
        claim, left_ms = Claim(), max(0.0, deadline_ms - producer._clock.monotonic_ms())
        producer._pool.reserve(self._room_wanted(topic, prepared), left_ms, claim)
        producer._pool.give_back(claim)

    async def send_arrow(self, topic: str, table_or_batch: pa.Table | pa.RecordBatch, **columns: str) -> ArrowDelivery:
        """Send whole columns; await what comes back for the offsets.

        A thread encodes them: when its caller is cancelled, that goes on, and the rows are sent.
        """
        return await in_thread(lambda: self._producer.send_arrow(topic, table_or_batch, **columns))

    async def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """The partitions of a topic, as far as metadata tells."""
        return await in_thread(lambda: self._producer.partitions_for(topic))

    def metrics(self) -> dict[MetricName, Value]:
        """Every metric, under Kafka's name, with its value now."""
        return self._producer.metrics()

    # -- transactions --------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Get a producer id, fence older instances of this transactional.id and wait until theirs are over."""
        await in_thread(self._producer.init_transactions)

    async def begin_transaction(self) -> None:
        """From here on, what is sent belongs together. Does not wait."""
        self._producer.begin_transaction()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[tuple[str, int], int | tuple[int, str]], group_metadata: GroupMetadata
    ) -> None:
        """Commit consumer offsets with the transaction: (topic, partition) → next offset to read."""
        await in_thread(lambda: self._producer.send_offsets_to_transaction(offsets, group_metadata))

    async def commit_transaction(self) -> None:
        """Send all that was queued and commit it. Once begun, it goes on when its caller is cancelled."""
        await in_thread(self._producer.commit_transaction)

    async def abort_transaction(self) -> None:
        """Drop what was not sent and abort the rest."""
        await in_thread(self._producer.abort_transaction)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` commits at the end and aborts on an exception, cancelling included."""
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            await in_thread(self._producer._abort_after_error)
            raise
        try:
            await self.commit_transaction()
        except AbortableError:
            await in_thread(self._producer._abort_after_error)
            raise

    # -- the end -------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until all that was sent before is answered, one way or the other."""
        await in_thread(lambda: self._producer.flush(timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort an open transaction, and stop; after `timeout` seconds, give up on the rest."""
        await in_thread(lambda: self._producer.close(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._producer!r}"


def _on_loop(on_delivery: Delivery) -> Delivery:
    """The callback, called on this event loop."""
    loop = asyncio.get_running_loop()

    def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(on_delivery, metadata, error)

    return delivered
