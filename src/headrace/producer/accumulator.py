"""The accumulator: for each partition a queue of batches, the last of which may be open.

    application threads: TopicAppender.try_append (compiled), or `append` here if a batch must be opened first
    I/O thread: ready → drain → (request) → complete, reenqueue, or fail

A record goes into the open batch of its partition. If there is none, or it has no room, `append` closes the old batch,
releases the lock, takes memory from the pool (which may block), and checks again, because another thread may have
opened a batch. A topic's lock guards its queues; it is held briefly, and never while waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.client.concurrency import OwnedLock
from headrace.client.metadata import NO_LEADER, Cluster
from headrace.config.backoff import exponential_backoff
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import ClosedError, HeadraceError, RecordTooLargeError
from headrace.producer._send import RecordFuture, TopicAppender
from headrace.producer.batch import ProducerBatch
from headrace.producer.buffer_pool import BufferPool, Claim
from headrace.producer.partitioners import AdaptiveSticky
from headrace.producer.queues import PartitionQueue, TopicQueues
from headrace.producer.records import Delivery, PreparedRecord
from headrace.wire.compression import NONE
from headrace.wire.kernel import KERNEL_NAME, kernel
from headrace.wire.layout import HEADER_BYTES, EncodedBatch, Header
from headrace.wire.records import record_bytes_max

ROOM_SHARE_OF_POOL = 8  # A batch takes at most this fraction of buffer.memory.
SPARE_BYTES_MAX = 8 * 1024 * 1024
APPEND_ATTEMPTS_MAX = 100  # Each attempt can be lost to another thread.

NOT_ENOUGH_ROOM_HINT = "send smaller records, or raise max.request.size (and max.message.bytes of the topic)"


@dataclass(slots=True, frozen=True)
class AccumulatorSettings:
    batch_bytes: int = 16 * 1024
    linger_ms: float = 5
    max_request_bytes: int = 1024 * 1024
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    delivery_timeout_ms: float = 120_000
    codec: int = 0
    level: int | None = None
    hashes_keys: bool = True


@dataclass(slots=True)
class Ready:
    """The queues with batches to send now, by leader, and when to check again."""

    nodes: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    next_check_ms: float = float("inf")
    leaderless: set[str] = field(default_factory=set)


class Accumulator:
    """The queues of a producer."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        pool: BufferPool,
        clock: Clock,
        wake: Callable[[], None],
        *,
        sticky: AdaptiveSticky,
        on_open: Callable[[str, int], None] | None = None,
    ) -> None:
        self._settings = settings
        self.pool = pool
        self._clock = clock
        self._wake = wake
        self.sticky = sticky
        self._on_open = on_open  # Called for every partition that gets a batch.
        self.topics: dict[str, TopicQueues] = {}
        self.appenders: dict[str, TopicAppender] = {}  # For the fast path of send().
        self.topics_lock = OwnedLock()
        # Queues that may have batches, least recently drained first. Adding is atomic: any thread.
        self._active: dict[PartitionQueue, None] = {}
        # Batches without a result. Added by any thread, removed by the I/O thread.
        self._incomplete: dict[ProducerBatch, None] = {}
        # I/O thread only: batches that could not be encoded.
        self.unsendable: list[tuple[ProducerBatch, Exception]] = []
        self.flushes: dict[object, None] = {}  # Flushes in progress. Any thread: see `begin_flush`.
        self._closed: HeadraceError | None = None  # Raised by `append`.
        self.spare_buffers: list[bytearray] = []  # For encoding columns. Any thread.

    # -- application threads -------------------------------------------------------------------

    def topic(self, name: str, partition_count: int) -> TopicQueues:
        """Return the queues of a topic, created or grown to its current number of partitions."""
        queues = self.topics.get(name)
        # The last condition: a signal handler raised in an earlier call, after `grow` and before the assignments below.
        if queues is None or len(queues.queues) < partition_count or self.appenders.get(name) is not queues.appender:
            self.topics_lock.check_not_owned()
            with self.topics_lock:
                queues = self.topics.get(name)
                if queues is None:
                    queues = TopicQueues(name, partition_count, self._make_appender)
                elif len(queues.queues) < partition_count:
                    queues.grow(partition_count)
                # No call in between: a signal handler that raises runs before both or after both.
                self.appenders[name] = queues.appender
                self.topics[name] = queues
        return queues

    def _make_appender(self, topic: TopicQueues, partition_count: int) -> TopicAppender:
        # The compiled appender reads the system's clock directly.
        own_clock = self._clock is SYSTEM_CLOCK and KERNEL_NAME == "compiled"
        return TopicAppender(
            topic.name,
            partition_count,
            record_bytes_max=self._settings.max_request_bytes - HEADER_BYTES,
            hashes_keys=self._settings.hashes_keys,
            lock=topic.lock,
            now_ms=None if own_clock else self._clock.time_ms,  # type: ignore[arg-type]
        )

    def append(
        self,
        topic: TopicQueues,
        cluster: Cluster,
        prepared: PreparedRecord,
        on_delivery: Delivery | None,
        deadline_ms: float,
    ) -> RecordFuture:
        """Append a record, opening a batch if necessary; blocks for memory until the deadline."""
        partition, timestamp_ms, key, value, headers, choose_again = prepared
        key = key if key is None or type(key) is bytes else bytes(key)  # the appender accepts nothing else
        value = value if value is None or type(value) is bytes else bytes(value)
        size = self._checked_size(key, value, headers)
        keyless = partition is None and not (self._settings.hashes_keys and key is not None)
        closed = False
        for _ in range(APPEND_ATTEMPTS_MAX):
            with topic.lock:
                self._check_open()
                if keyless and topic.appender.sticky_partition < 0:
                    self.sticky.move_on(topic, cluster)
                future = topic.appender.try_append_locked(key, value, partition, timestamp_ms, headers, on_delivery)
                if future is None:
                    chosen = partition if partition is not None else self._partition_of(topic, key)
                    closed = topic.close_open(chosen) or closed
                    if keyless and topic.sticky_bytes >= self._settings.batch_bytes:
                        self.sticky.move_on(topic, cluster)
                        continue
            if future is not None:
                if closed:
                    self._wake()  # not under the lock: it may release the GIL
                return future
            if choose_again is not None and partition is not None:
                partition, choose_again = choose_again(partition), None
                continue
            record = PreparedRecord(chosen, timestamp_ms, key, value, headers, None)
            future = self._append_to_new(topic, record, on_delivery, size, deadline_ms)
            if future is not None:
                return future
        raise AssertionError(f"append lost {APPEND_ATTEMPTS_MAX} races for a batch; please report this")

    def _append_to_new(
        self, topic: TopicQueues, record: PreparedRecord, on_delivery: Delivery | None, size: int, deadline_ms: float
    ) -> RecordFuture | None:
        """Open a batch for the record and append it; None if another thread has opened and filled one meanwhile."""
        partition = record.partition
        assert partition is not None
        room = self.room_bytes(topic, size)
        if self.pool.available_bytes < room:
            self._wake()  # sending what is buffered is what frees memory
        claim = Claim()
        try:
            buffer = self.pool.allocate(room, max(0.0, deadline_ms - self._clock.monotonic_ms()), claim)
            with topic.lock:
                self._check_open()
                open_batch = topic.appender.open_batches[partition]
                if open_batch is None or open_batch.closed:
                    batch = ProducerBatch(topic.name, partition, buffer, room, self._clock.monotonic_ms())
                    self._enqueue(topic, batch, claim)
                # To this partition, even if the sticky one has changed. If this raises (the record cannot be encoded,
                # or Ctrl-C), the batch stays open for the next record, or is drained empty.
                return topic.appender.try_append_locked(
                    record.key, record.value, partition, record.timestamp_ms, record.headers, on_delivery
                )
        finally:
            try:
                if claim.size:
                    self.pool.give_back(claim)
                else:
                    self._wake()
            finally:
                if claim.size:  # a second signal, during the clean-up after the first
                    self.pool.give_back(claim)

    def _enqueue(self, topic: TopicQueues, batch: ProducerBatch, claim: Claim | None = None) -> None:
        """Append a batch to its queue; with a claim on its memory, as the open one. topic.lock is held."""
        # First: a commit from now on waits for this batch.
        self._incomplete[batch] = None
        try:
            if self._on_open is not None:
                self._on_open(topic.name, batch.partition)
            queue = topic.queues[batch.partition]
            # No call from here on: a signal handler that raises runs before all of this or after it.
            if claim is not None:
                topic.appender.open_batches[batch.partition] = batch
                claim.size = 0
            queue.batches += (batch,)
            self._active[queue] = None
        except BaseException:
            self._incomplete.pop(batch, None)
            raise

    def _partition_of(self, topic: TopicQueues, key: bytes | None) -> int:
        if key is not None and self._settings.hashes_keys:
            return int((kernel.murmur2(key) & 0x7FFFFFFF) % len(topic.queues))
        return topic.appender.sticky_partition

    def room_bytes(self, topic: TopicQueues, record_bytes: int) -> int:
        """Return the buffer size of a new batch whose first record takes `record_bytes`."""
        room = self._settings.batch_bytes
        if self._settings.codec != NONE:
            limit = min(self._settings.max_request_bytes, self.pool.total_bytes // ROOM_SHARE_OF_POOL)
            room = topic.ratio.room_bytes(room, limit)
        return max(room, HEADER_BYTES + record_bytes)

    def _checked_size(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
        size = record_bytes_max(key, value, headers)
        if size + HEADER_BYTES > self._settings.max_request_bytes:
            raise RecordTooLargeError(
                f"the record takes {size} bytes serialized, more than max.request.size "
                f"({self._settings.max_request_bytes}): {NOT_ENOUGH_ROOM_HINT}"
            )
        if size + HEADER_BYTES > self.pool.total_bytes:
            raise RecordTooLargeError(
                f"the record takes {size} bytes serialized, more than buffer.memory ({self.pool.total_bytes}): "
                f"raise buffer.memory"
            )
        return size

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def append_encoded(self, topic: TopicQueues, encoded: Iterable[EncodedBatch], claim: Claim) -> list[ProducerBatch]:
        """Queue batches that were encoded from Arrow columns into claimed memory."""
        now = self._clock.monotonic_ms()
        pieces = list(encoded)
        batches = [ProducerBatch.from_encoded(topic.name, piece, piece.size, now) for piece in pieces]
        used = sum(piece.size for piece in pieces)
        try:
            claim.size -= used  # now owned by the batches
            self.pool.give_back(claim)
            with topic.lock:
                self._check_open()
                for batch in batches:
                    topic.close_open(batch.partition)  # keeps the order of records
                    self._enqueue(topic, batch)
        except BaseException:
            for batch in batches:
                if batch not in self._incomplete:
                    self.finish(batch)
            raise
        self._wake()
        return batches

    # -- the I/O thread ------------------------------------------------------------------------

    @property
    def linger_ms(self) -> float:
        return self._settings.linger_ms

    def ready(self, cluster: Cluster, now: float) -> Ready:
        """Return the nodes with batches to send: full, lingered, due for a retry, flushed, or blocking memory (P25)."""
        result = Ready()
        hurry = bool(self.flushes) or self._closed is not None
        exhausted = self.pool.waiting_threads > 0
        still_filling: dict[int, list[PartitionQueue]] = {}
        linger = self._settings.linger_ms
        for queue in list(self._active):
            batches = queue.batches
            try:
                first, last = batches[0], batches[-1]
            except IndexError:
                self._retire(queue)
                continue
            leader = cluster.leader(queue.topic.name, queue.partition)
            if leader == NO_LEADER:
                result.leaderless.add(queue.topic.name)
                continue
            if queue.muted:
                continue
            lingers = 0.0 if hurry or last.closed else last.created_ms + linger - now
            if first.attempts:
                # No back-off for a new leader (KIP-951).
                moved = leader != first.sent_to
                wait = 0.0 if moved else first.last_attempt_ms + self._backoff_ms(first) - now
            else:
                wait = lingers if first is last else 0.0
                if exhausted and wait > 0:
                    still_filling.setdefault(leader, []).append(queue)
            if wait <= 0:
                result.nodes.setdefault(leader, []).append(queue)
            for later in (wait, lingers):
                if 0 < later < result.next_check_ms:
                    result.next_check_ms = later
        # If threads wait for memory, batches that are not full are sent too, except to nodes with full ones: those free
        # memory anyway, and sending more would only make requests smaller.
        for leader, queues in still_filling.items():
            result.nodes.setdefault(leader, queues)
        return result

    def _retire(self, queue: PartitionQueue) -> None:
        with queue.topic.lock:
            if not queue.batches:
                self._active.pop(queue, None)

    def _backoff_ms(self, batch: ProducerBatch) -> float:
        settings = self._settings
        # The jitter depends on the batch only, so that `ready` gives the same result each time.
        rng = random.Random(hash((batch.created_ms, batch.partition, batch.attempts)))
        return exponential_backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms, batch.attempts, rng)

    def drain(
        self,
        queues: list[PartitionQueue],
        may_drain: Callable[[ProducerBatch], bool] | None,
        assign: Callable[[ProducerBatch], None] | None,
        opened_by_ms: float = float("inf"),
    ) -> list[ProducerBatch]:
        """Take one batch from each queue of a node, round robin, up to max.request.size in all (P26).

        Batches that are still open are taken only if they were opened by `opened_by_ms`.
        """
        taken: list[ProducerBatch] = []
        size = 0
        for index, queue in enumerate(queues):
            with queue.topic.lock:
                if not queue.batches:
                    continue
                batch = queue.batches[0]
                if not batch.closed and batch.created_ms > opened_by_ms:
                    continue
                if may_drain is not None and not may_drain(batch):
                    continue
                if taken and size + batch.size * queue.topic.ratio.estimate > self._settings.max_request_bytes:
                    queues[:] = queues[index:] + queues[:index]  # this queue is first in the next request
                    return taken
                queue.batches.popleft()
                # The queue moves to the end: `ready` keeps this order.
                self._active.pop(queue, None)
                self._active[queue] = None
                if not batch.closed:
                    queue.topic.close_open(queue.partition)
                    batch.close()
            if not batch.record_count:
                self._discard_empty(batch)
                continue
            if assign is not None and not batch.has_sequence:
                assign(batch)
            try:
                sealed_bytes = len(batch.seal(self._settings.codec, self._settings.level))
                if self._settings.codec != NONE and batch.size * 2 >= self._settings.batch_bytes:
                    queue.topic.ratio.observe(sealed_bytes, batch.size)  # small batches compress differently
                size += sealed_bytes
            except Exception as error:
                self.unsendable.append((batch, error))
                continue
            taken.append(batch)
        return taken

    def mute(self, batch: ProducerBatch) -> None:
        self.topics[batch.topic].queues[batch.partition].muted = True

    def unmute(self, batch: ProducerBatch) -> None:
        self.topics[batch.topic].queues[batch.partition].muted = False

    def reenqueue(self, batch: ProducerBatch, now: float, counted: bool = True) -> None:
        """Put a batch back at the front of its queue; with a sequence number, in order."""
        if counted:
            batch.attempts += 1
        batch.last_attempt_ms = now
        self._put_back(batch)

    def _put_back(self, batch: ProducerBatch) -> None:
        queue = self.topics[batch.topic].queues[batch.partition]
        with queue.topic.lock:
            index = 0
            if batch.has_sequence:
                for index, other in enumerate(queue.batches):  # noqa: B007
                    if not other.has_sequence or (other.base_sequence - batch.base_sequence) & 0x7FFFFFFF < 0x40000000:
                        break
                else:
                    index = len(queue.batches)
            queue.batches.insert(index, batch)
            self._active[queue] = None

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Split a batch that is too large for the broker, and queue the parts in its place."""
        self.topics[batch.topic].ratio.reset()
        parts = batch.split(now)
        for part in reversed(parts):
            self._incomplete[part] = None
            self._put_back(part)
        self.finish(batch)
        return parts

    def finish(self, batch: ProducerBatch) -> None:
        """Return the memory of a batch that is done and no longer in flight."""
        self._incomplete.pop(batch, None)
        if batch.allocated_bytes:
            size, batch.allocated_bytes = batch.allocated_bytes, 0
            batch.sealed = None
            # A buffer is reused either by the pool or for encoding columns.
            self.pool.release(None if batch.was_encoded else batch.buffer, size)
            if batch.was_encoded and len(self.spare_buffers) * len(batch.buffer) < SPARE_BYTES_MAX:
                self.spare_buffers.append(batch.buffer)

    def close_open_batches(self) -> None:
        """Close all open batches. The next send leaves the fast path to open one, and so notices a new state."""
        for topic in list(self.topics.values()):
            with topic.lock:
                for partition in range(len(topic.queues)):
                    topic.close_open(partition)
        self._wake()

    def expired(self, now: float) -> list[ProducerBatch]:
        """Remove and return queued batches older than delivery.timeout.ms."""
        limit = now - self._settings.delivery_timeout_ms
        expired: list[ProducerBatch] = []
        for queue in list(self._active):
            if not queue.batches or queue.batches[0].created_ms > limit:
                continue
            with queue.topic.lock:
                while queue.batches and queue.batches[0].created_ms <= limit:
                    batch = queue.batches.popleft()
                    if not batch.closed:
                        queue.topic.close_open(queue.partition)
                        batch.close()
                    if batch.record_count:
                        expired.append(batch)
                    else:
                        self._discard_empty(batch)
        return expired

    def _discard_empty(self, batch: ProducerBatch) -> None:
        """Complete a batch without records: the record that it was opened for could not be appended."""
        batch.complete(-1, -1)
        self.finish(batch)
        self._wake()  # a commit may wait for it, and no response will wake the loop

    def next_expiry_ms(self, now: float) -> float:
        """Return the time until the oldest queued batch expires."""
        oldest = min((q.batches[0].created_ms for q in list(self._active) if q.batches), default=None)
        return float("inf") if oldest is None else max(0.0, oldest + self._settings.delivery_timeout_ms - now)

    def has_undrained(self) -> bool:
        return any(queue.batches for queue in list(self._active))

    def has_incomplete(self) -> bool:
        return bool(self._incomplete)

    def awaits_results(self) -> bool:
        """Return whether a batch has no result, or is in flight; the I/O thread removes it from here a moment later."""
        return any(batch.in_flight or not batch.is_done for batch in self.incomplete())

    def undrained(self) -> list[ProducerBatch]:
        """Remove and return all queued batches, because of an abort or a forced close."""
        removed: list[ProducerBatch] = []
        for queue in list(self._active):
            with queue.topic.lock:
                for batch in queue.batches:
                    if not batch.closed:
                        queue.topic.close_open(queue.partition)
                        batch.close()
                    removed.append(batch)
                queue.batches.clear()
        return removed

    def busy_queues(self) -> list[PartitionQueue]:
        """Return the queues that may have batches. Any thread."""
        return list(self._active)

    def incomplete(self) -> list[ProducerBatch]:
        return list(self._incomplete)

    def begin_flush(self, flush: object) -> list[ProducerBatch]:
        """Send without lingering while `flush` is in `flushes`; returns the batches without a result.

        The caller removes `flush` itself: in a function that did so, a signal handler could raise before the first
        line.
        """
        self.flushes[flush] = None
        self.close_open_batches()  # later records get a new batch, which this flush does not wait for
        return list(self._incomplete)

    def close(self, error: HeadraceError | None = None) -> None:
        """Reject new records, with `error` if given, and send the rest without lingering.

        No batch is added after this returns: `append` checks `_closed` under the topic's lock.
        """
        self._closed = error or ClosedError("the producer is closed")
        self.pool.close(error)
        self.close_open_batches()
