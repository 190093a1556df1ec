"""The consumer for asyncio: the methods of `Consumer`, awaited where those block.

    async with AsyncConsumer(…) as consumer:
        consumer.subscribe(["topic"])
        async for record in consumer: …

It uses the same engine. Waits run in a thread, one at a time; listeners of rebalances are called in that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from headrace.client.concurrency import in_thread
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.consumer.consumer import CLOSE_SECONDS, POLL_SECONDS, Consumer
from headrace.consumer.rebalances import RebalanceListener
from headrace.consumer.results import OffsetAndTimestamp
from headrace.errors import ClosedError, WakeupError
from headrace.telemetry.metrics import MetricName, Value
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from headrace.wire.layout import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config.option_types import ConsumerOptions
    from headrace.consumer.settings import ConsumerArguments

T = TypeVar("T")


async def _end_of(future: asyncio.Future[T]) -> None:
    """Wait for a future, even if the caller is cancelled again."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])


class AsyncConsumer:
    """Reads records from Kafka in one event loop. Arguments and methods are those of `Consumer`."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_deserializer: object = None,
        value_deserializer: object = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._consumer = Consumer(
            config, key_deserializer=key_deserializer, value_deserializer=value_deserializer, clock=clock, **options
        )
        self._turn = asyncio.Lock()  # A consumer is for one thread at a time.
        self._is_closing = False

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **arguments: Unpack[ConsumerArguments]) -> Self:
        """Return a consumer with the options of a `.properties` file; keyword arguments take precedence."""
        return cls(Path(path), **arguments)

    async def _run(self, call: Callable[[], T], *, is_poll: bool = False) -> T:
        """Run a call in a thread. If the caller is cancelled, it returns when the thread has ended its wait."""
        async with self._turn:
            self._check_open()
            waiting = asyncio.ensure_future(in_thread(call))
            try:
                return await asyncio.shield(waiting)
            except WakeupError:
                self._check_open()
                raise
            except asyncio.CancelledError:
                self._consumer.wakeup()
                await _end_of(waiting)
                self._consumer.clear_wakeup()
                if is_poll and waiting.exception() is None and waiting.result():
                    self._consumer.undo_poll()  # nobody gets the records
                raise

    def _check_open(self) -> None:
        if self._is_closing:
            raise ClosedError("the consumer is closed")

    # -- partitions ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read the partitions that the group assigns. The listener is called in a thread."""
        self._consumer.subscribe(topics, pattern=pattern, listener=listener)

    async def unsubscribe(self) -> None:
        """Leave the group, or give up the partitions of `assign`."""
        await self._run(self._consumer.unsubscribe)

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read these partitions, without the group's assignment."""
        self._consumer.assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return self._consumer.assignment()

    # -- reading -------------------------------------------------------------------------------

    async def poll(self, timeout: float = POLL_SECONDS, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return fetched records; an empty list after `timeout` seconds."""
        return await self._run(lambda: self._consumer.poll(timeout, max_records), is_poll=True)

    async def poll_arrow(self, timeout: float = POLL_SECONDS) -> pa.RecordBatch | None:
        """Return fetched records as columns; None after `timeout` seconds."""
        return await self._run(lambda: self._consumer.poll_arrow(timeout), is_poll=True)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield records for ever. The positions follow the records that were yielded."""
        pending = self._consumer.pending
        while True:
            self._check_open()
            record = pending.next()
            if record is None:
                pending.add(await self.poll())
            else:
                yield record

    # -- positions and offsets -----------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset."""
        self._consumer.seek(partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first records."""
        self._consumer.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue after the last records."""
        self._consumer.seek_to_end(partitions)

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the committed offsets of the group, for example after a transaction was aborted."""
        self._consumer.seek_to_committed(partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._consumer.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._consumer.resume(partitions)

    async def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record; waits until it is known."""
        return await self._run(lambda: self._consumer.position(partition, timeout))

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offsets of the next records of all partitions whose position is known."""
        return self._consumer.positions()

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets after the last records."""
        return await self._run(lambda: self._consumer.end_offsets(partitions, timeout))

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of a time (in milliseconds) or later; None if there is none."""
        return await self._run(lambda: self._consumer.offsets_for_times(times, timeout))

    async def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float | None = None
    ) -> None:
        """Commit offsets, by default the positions."""
        await self._run(lambda: self._consumer.commit(offsets, timeout))

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group; partitions without one are missing."""
        return await self._run(lambda: self._consumer.committed(partitions, timeout))

    def group_metadata(self) -> GroupMetadata:
        """Return the group and the member, for `producer.send_offsets_to_transaction`."""
        return self._consumer.group_metadata()

    # -- metrics and close ---------------------------------------------------------------------

    def arrow_schema(self) -> pa.Schema:
        """Return the columns of `poll_arrow`, with the types that the deserializers give them."""
        return self._consumer.arrow_schema()

    def metrics(self) -> dict[MetricName, Value]:
        """Return the value of every metric, under Kafka's names."""
        return self._consumer.metrics()

    async def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commit if enable.auto.commit is on, leave the group, and stop. Calls of other tasks raise ClosedError.

        If the caller is cancelled, the consumer is closed nevertheless, within `timeout` seconds.
        """
        self._is_closing = True
        if self._turn.locked():
            self._consumer.wakeup()
        async with self._turn:
            closing = asyncio.ensure_future(in_thread(lambda: self._consumer.close(timeout)))
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await _end_of(closing)
                raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Close. After an exception, the records of the last poll do not count as processed."""
        if kind is not None and not self._turn.locked():
            self._consumer.undo_poll()
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._consumer!r}"
