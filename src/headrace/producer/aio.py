"""The producer for asyncio: the methods of `Producer`, awaited where those block.

    future = await producer.send(…)     queues the record; waits only for metadata, schemas or memory (back-pressure)
    metadata = await future             waits until the broker has stored it

It uses the same engine as `Producer`. Calls that need not wait run on the event loop. Waits run in a thread and return
to the loop before the record is queued: a task that is cancelled in `send` has sent nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from headrace.client.concurrency import in_thread
from headrace.client.metadata import PartitionInfo
from headrace.config import Config
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import AbortableError, TimedOutError
from headrace.producer._send import RecordFuture
from headrace.producer.batch import ArrowDelivery
from headrace.producer.engine import SendEngine
from headrace.producer.producer import describe
from headrace.producer.queues import TopicQueues
from headrace.producer.records import (
    ArrowTable,
    Delivery,
    Headers,
    Offsets,
    ProducerRecord,
    RecordMetadata,
)
from headrace.producer.settings import resolve
from headrace.telemetry.metrics import MetricName, Value
from headrace.types import GroupMember, GroupMetadata, PositionedMember

if TYPE_CHECKING:
    from headrace.config.option_types import ProducerOptions
    from headrace.producer.settings import ProducerArguments

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class AsyncProducer:
    """Sends records to Kafka from one event loop. Arguments and methods are those of `Producer`."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_serializer: object = None,
        value_serializer: object = None,
        profile: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ProducerOptions],
    ) -> None:
        resolved = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._engine = SendEngine(resolved, clock)
        self._appenders = self._engine.appenders
        self._fast_send_enabled = self._engine.pipeline.is_noop
        # Event loop only, all three.
        self._memory_turn = asyncio.Lock()  # Held by the task that waits for memory; the others queue in order.
        self._metadata_waits: dict[tuple[str, int | None], asyncio.Task[TopicQueues]] = {}
        self._schema_waits: dict[str, asyncio.Task[None]] = {}

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **arguments: Unpack[ProducerArguments]) -> Self:
        """Return a producer with the options of a `.properties` file; keyword arguments take precedence."""
        return cls(Path(path), **arguments)

    @property
    def config(self) -> Config:
        """The resolved options."""
        return self._engine.config

    # -- sending -------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = None,
        on_delivery: Delivery | None = None,
    ) -> RecordFuture:
        """Queue a record; await the returned future for its metadata. `on_delivery` runs on the event loop."""
        if on_delivery is not None:
            on_delivery = _on_loop(on_delivery)
        if self._fast_send_enabled and headers is None:
            appender = self._appenders.get(topic)
            if appender is not None:
                future = appender.try_append(key, value, partition, timestamp_ms, None, on_delivery)
                if future is not None:
                    return future
        return await self._send(ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ()), on_delivery)

    async def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """`send` with the record as one object."""
        return await self._send(record, None if on_delivery is None else _on_loop(on_delivery))

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = None,
        on_delivery: Delivery | None = None,
    ) -> RecordMetadata:
        """`send`, and await the metadata."""
        future = await self.send(
            topic,
            value,
            key,
            partition=partition,
            timestamp_ms=timestamp_ms,
            headers=headers,
            on_delivery=on_delivery,
        )
        return await future

    async def _send(self, record: ProducerRecord, on_delivery: Delivery | None) -> RecordFuture:
        engine = self._engine
        deadline_ms = engine.deadline_ms()
        record, on_delivery = engine.pipeline.intercept(record, on_delivery)
        try:
            engine.check_sendable()
            topic = await self._topic(record.topic, record.partition, deadline_ms)
            if not engine.pipeline.is_ready(record.topic):
                await asyncio.shield(self._schema_wait(record.topic))
            prepared = engine.prepare(record, on_delivery)
            if not self._memory_turn.locked():
                future = engine.try_append(topic, prepared, on_delivery)
                if future is not None:
                    return future
            async with self._memory_turn:
                while (future := engine.try_append(topic, prepared, on_delivery)) is None:
                    await in_thread(partial(engine.wait_for_memory, topic, prepared, deadline_ms))
                return future
        except Exception as error:
            refused = engine.refuse(record.topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    async def _topic(self, name: str, partition: int | None, deadline_ms: float) -> TopicQueues:
        while True:
            topic = self._engine.topic(name, partition)
            if topic is not None:
                return topic
            try:
                return await asyncio.shield(self._metadata_wait(name, partition, deadline_ms))
            except TimedOutError:
                # Without this check, a caller would get the timeout of an earlier one whose wait it shares.
                if self._engine.clock.monotonic_ms() >= deadline_ms:
                    raise

    def _metadata_wait(self, topic: str, partition: int | None, deadline_ms: float) -> asyncio.Task[TopicQueues]:
        """Return the wait for the metadata of a topic. Tasks that need the same topic share one thread."""
        call = partial(self._engine.wait_for_topic, topic, partition, deadline_ms)
        return _shared_wait(self._metadata_waits, (topic, partition), call)

    def _schema_wait(self, topic: str) -> asyncio.Task[None]:
        """Return the wait for what the serializers request for a topic, in one thread for all tasks that need it."""
        return _shared_wait(self._schema_waits, topic, partial(self._engine.pipeline.prepare_topic, topic))

    async def send_arrow(
        self,
        topic: str,
        table_or_batch: ArrowTable,
        *,
        key: str = "key",
        value: str = "value",
        headers: str = "headers",
        partition: str = "partition",
        timestamp: str = "timestamp",
    ) -> ArrowDelivery:
        """Send Arrow columns; await the delivery for the offsets.

        A thread encodes them. If the caller is cancelled, the rows are still sent.
        """
        names = {"key": key, "value": value, "headers": headers, "partition": partition, "timestamp": timestamp}
        return await in_thread(lambda: self._engine.send_arrow(topic, table_or_batch, names))

    async def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return the partitions of a topic, as the metadata has them."""
        return await in_thread(lambda: self._engine.partitions_for(topic))

    def metrics(self) -> dict[MetricName, Value]:
        """Return the current value of every metric, under Kafka's names."""
        return self._engine.metrics.snapshot()

    # -- transactions --------------------------------------------------------------------------

    async def init_transactions(self) -> None:
        """Get a producer id, fence older producers with this transactional.id, and wait for their transactions."""
        (await in_thread(self._engine.init_transactions)).acknowledged = True

    async def begin_transaction(self) -> None:
        """Begin a transaction. Local: the broker learns of it with the first record."""
        self._engine.begin_transaction()

    async def send_offsets_to_transaction(
        self, offsets: Offsets | PositionedMember, group: GroupMetadata | GroupMember | None = None
    ) -> None:
        """Commit consumer offsets with the transaction: those of all records that a consumer has returned.

        Pass the consumer; or offsets, (topic, partition) → the next to read, and the consumer or its group metadata.
        """
        await in_thread(lambda: self._engine.send_offsets_to_transaction(offsets, group))

    async def commit_transaction(self) -> None:
        """Send all queued records and commit. Continues if the caller is cancelled."""
        (await in_thread(self._engine.commit_transaction)).acknowledged = True

    async def abort_transaction(self) -> None:
        """Drop records that were not sent, and abort the transaction."""
        (await in_thread(self._engine.abort_transaction)).acknowledged = True

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """`async with producer.transaction():` commits at the end and aborts on an exception or cancellation."""
        await self.begin_transaction()
        try:
            yield self
        except BaseException:
            await in_thread(self._engine.abort_after_error)
            raise
        try:
            await self.commit_transaction()
        except AbortableError:
            await in_thread(self._engine.abort_after_error)
            raise

    # -- flush and close -----------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until all records sent before have a result."""
        await in_thread(lambda: self._engine.flush(timeout))

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort an open transaction, and stop; after `timeout` seconds, give up on the rest."""
        await in_thread(lambda: self._engine.close(timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{describe(self._engine)}"


def _shared_wait(waits: dict[K, asyncio.Task[T]], key: K, call: Callable[[], T]) -> asyncio.Task[T]:
    """Return the wait for a call in a thread: one that runs for this key, or a new one."""
    wait = waits.get(key)
    if wait is None:
        wait = waits[key] = asyncio.create_task(in_thread(call))

        def remove(done: asyncio.Task[T]) -> None:
            waits.pop(key, None)
            if not done.cancelled():
                done.exception()  # marks it as retrieved: all callers may have been cancelled

        wait.add_done_callback(remove)
    return wait


def _on_loop(on_delivery: Delivery) -> Delivery:
    """Return a callback that calls `on_delivery` on this event loop."""
    loop = asyncio.get_running_loop()

    def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_delivery, metadata, error)

    return delivered
