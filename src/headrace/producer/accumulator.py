"""Where records wait: for each partition a deque of batches, the last one open.

    application threads: TopicAppender.append (compiled), or `append` here where a batch has to be opened first
    the I/O thread: ready → drain → (request) → complete, reenqueue, or fail

A record goes into the open batch of its partition. Where there is none, or no room, `append` closes the old batch,
lets go of the lock, takes memory from the pool (which may block), and looks again, because another thread may have
been quicker. The lock of a topic guards its deques; it is held for a moment and never while waiting.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.client.clock import SYSTEM_CLOCK, Clock
from headrace.client.locks import OwnedLock
from headrace.client.metadata import NO_LEADER, Cluster
from headrace.client.network import backoff_ms
from headrace.errors import ClosedError, HeadraceError, RecordTooLargeError
from headrace.producer._send import RecordFuture, TopicAppender
from headrace.producer.batch import Delivery, ProducerBatch
from headrace.producer.buffer_pool import BufferPool, Claim
from headrace.producer.queues import PartitionQueue, TopicQueues
from headrace.producer.records import PreparedRecord
from headrace.producer.sticky import StickyChoice
from headrace.wire.compression import NONE
from headrace.wire.kernel import KERNEL_NAME, kernel
from headrace.wire.layout import HEADER_BYTES, EncodedBatch, Header
from headrace.wire.records import record_bytes_max

ROOM_SHARE_OF_POOL = 8  # the largest batch takes no more than this part of buffer.memory
SPARE_BYTES_MAX = 8 * 1024 * 1024
APPEND_ATTEMPTS_MAX = 100  # threads racing for one partition: each round somebody has won

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
    """What could be sent now, and when to look again."""

    nodes: dict[int, list[PartitionQueue]] = field(default_factory=dict)
    next_check_ms: float = float("inf")
    leaderless: set[str] = field(default_factory=set)


class Accumulator:
    """All the queues of a producer."""

    def __init__(
        self,
        settings: AccumulatorSettings,
        pool: BufferPool,
        clock: Clock,
        wake: Callable[[], None],
        sticky: StickyChoice,
        on_open: Callable[[str, int], None] | None = None,
    ) -> None:
        self._settings = settings
        self.pool = pool
        self._clock = clock
        self._wake = wake
        self.sticky = sticky
        self._on_open = on_open  # told of every partition that gets a batch
        self.topics: dict[str, TopicQueues] = {}
        self.appenders: dict[str, TopicAppender] = {}  # what send() looks into first
        self.topics_lock = OwnedLock()
        # Queues that may hold batches, the one first that was served least recently; adding is atomic, any thread.
        self._active: dict[PartitionQueue, None] = {}
        self._incomplete: dict[ProducerBatch, None] = {}  # Not answered yet. Added by any thread, removed by I/O.
        self.unsendable: list[tuple[ProducerBatch, Exception]] = []  # I/O thread only: could not be put into bytes.
        self.flushes: dict[object, None] = {}  # Those under way. Any thread: see `begin_flush`.
        self._closed: HeadraceError | None = None  # What an append is refused with.
        self.spare_buffers: list[bytearray] = []  # For encoding columns; one end of it is as good as the other.

    # -- application threads -------------------------------------------------------------------

    def topic(self, name: str, partition_count: int) -> TopicQueues:
        """The queues of a topic, made or grown to the number of partitions that it has now."""
        queues = self.topics.get(name)
        # The last condition: a signal handler has raised between `grow` and its end here.
        if queues is None or len(queues.queues) < partition_count or self.appenders.get(name) is not queues.appender:
            self.topics_lock.check_not_owned()
            with self.topics_lock:
                queues = self.topics.get(name)
                if queues is None:
                    queues = TopicQueues(name, partition_count, self._make_appender)
                elif len(queues.queues) < partition_count:
                    queues.grow(partition_count)
                # No call in between: a signal handler that raises comes before both or after both.
                self.appenders[name] = queues.appender
                self.topics[name] = queues
        return queues

    def _make_appender(self, topic: TopicQueues, partition_count: int) -> TopicAppender:
        # The compiled appender reads the system's clock by itself.
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
        """Open a batch for the record and append it there. None: another thread's batch is full already."""
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
                # To this partition, whatever the sticky one is by now. If this raises (the record cannot be encoded, or
                # Ctrl-C), the batch stays open for the next record, or is empty when it is drained.
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
        """A new batch at the end of its queue. topic.lock is held. With a claim on its memory, it is an open one."""
        # Known as incomplete first: a transaction that is committed from now on waits for it.
        self._incomplete[batch] = None
        try:
            if self._on_open is not None:
                self._on_open(topic.name, batch.partition)
            queue = topic.queues[batch.partition]
            # No call from here on: a signal handler that raises comes before all of this or after it.
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
        """How much of the pool the next batch takes, for a first record of so many bytes."""
        room = self._settings.batch_bytes
        if self._settings.codec != NONE:
            limit = min(self._settings.max_request_bytes, self.pool.total_bytes // ROOM_SHARE_OF_POOL)
            room = topic.ratio.room_bytes(room, limit)
        return max(room, HEADER_BYTES + record_bytes)

    def _checked_size(self, key: bytes | None, value: bytes | None, headers: Sequence[Header]) -> int:
        size = record_bytes_max(key, value, headers)
        if size + HEADER_BYTES > self._settings.max_request_bytes:
            raise RecordTooLargeError(
                f"a record of {size} bytes serialised is larger than max.request.size "
                f"({self._settings.max_request_bytes}): {NOT_ENOUGH_ROOM_HINT}"
            )
        if size + HEADER_BYTES > self.pool.total_bytes:
            raise RecordTooLargeError(
                f"a record of {size} bytes serialised is larger than buffer.memory ({self.pool.total_bytes}): "
                f"raise buffer.memory"
            )
        return size

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def append_encoded(self, topic: TopicQueues, encoded: Iterable[EncodedBatch], claim: Claim) -> list[ProducerBatch]:
        """Queue batches that were encoded from columns into memory that was claimed for them."""
        now = self._clock.monotonic_ms()
        pieces = list(encoded)
        batches = [ProducerBatch.from_encoded(topic.name, piece, piece.size, now) for piece in pieces]
        used = sum(piece.size for piece in pieces)
        try:
            claim.size -= used  # from here on it belongs to the batches
            self.pool.give_back(claim)
            with topic.lock:
                self._check_open()
                for batch in batches:
                    topic.close_open(batch.partition)  # records sent before go first
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
        """Which nodes have something to be sent to them: full, lingered, retried, or wanted at once (P25)."""
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
                # A new leader need not be spared for what the old one did (KIP-951).
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
        # For want of memory, batches go out that are not full: but where there are full ones to be sent, memory will
        # come back from those, and to hurry would only make more and smaller requests.
        for leader, queues in still_filling.items():
            result.nodes.setdefault(leader, queues)
        return result

    def _retire(self, queue: PartitionQueue) -> None:
        with queue.topic.lock:
            if not queue.batches:
                self._active.pop(queue, None)

    def _backoff_ms(self, batch: ProducerBatch) -> float:
        settings = self._settings
        # The jitter of a batch is its own, not of the moment: else `ready` and `drain` would disagree.
        chance = random.Random(id(batch) ^ batch.attempts)
        return backoff_ms(settings.retry_backoff_ms, settings.retry_backoff_max_ms, batch.attempts, chance)

    def drain(
        self,
        queues: list[PartitionQueue],
        may_drain: Callable[[ProducerBatch], bool] | None,
        assign: Callable[[ProducerBatch], None] | None,
        opened_by_ms: float = float("inf"),
    ) -> list[ProducerBatch]:
        """One batch a partition, round robin over the node's partitions, up to max.request.size (P26).

        Of those that are still open, only what was opened by that time.
        """
        taken: list[ProducerBatch] = []
        size = 0
        for place, queue in enumerate(queues):
            with queue.topic.lock:
                if not queue.batches:
                    continue
                batch = queue.batches[0]
                if not batch.closed and batch.created_ms > opened_by_ms:
                    continue
                if may_drain is not None and not may_drain(batch):
                    continue
                if taken and size + batch.size * queue.topic.ratio.estimate > self._settings.max_request_bytes:
                    queues[:] = queues[place:] + queues[:place]  # this one is the first of the next request
                    return taken
                queue.batches.popleft()
                # Whoever was served goes to the end of the line: `ready` keeps the order of this.
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
                    queue.topic.ratio.observe(sealed_bytes, batch.size)  # what small ones come to says little
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
        """Back to the front, or, with a sequence number, to its place in the order."""
        if counted:
            batch.attempts += 1
        batch.last_attempt_ms = now
        self._put_back(batch)

    def _put_back(self, batch: ProducerBatch) -> None:
        queue = self.topics[batch.topic].queues[batch.partition]
        with queue.topic.lock:
            place = 0
            if batch.has_sequence:
                for place, other in enumerate(queue.batches):  # noqa: B007
                    if not other.has_sequence or (other.base_sequence - batch.base_sequence) & 0x7FFFFFFF < 0x40000000:
                        break
                else:
                    place = len(queue.batches)
            queue.batches.insert(place, batch)
            self._active[queue] = None

    def split_and_reenqueue(self, batch: ProducerBatch, now: float) -> list[ProducerBatch]:
        """Halve a batch that the broker found too large; the parts take its place."""
        self.topics[batch.topic].ratio.reset()
        parts = batch.split(now)
        for part in reversed(parts):
            self._incomplete[part] = None
            self._put_back(part)
        self.finish(batch)
        return parts

    def finish(self, batch: ProducerBatch) -> None:
        """A batch is over, and so is the request that carried it: its memory goes back."""
        self._incomplete.pop(batch, None)
        if batch.allocated_bytes:
            size, batch.allocated_bytes = batch.allocated_bytes, 0
            batch.sealed = None
            # A buffer has one next user only: the pool, or whoever encodes columns.
            self.pool.release(None if batch.was_encoded else batch.buffer, size)
            if batch.was_encoded and len(self.spare_buffers) * len(batch.buffer) < SPARE_BYTES_MAX:
                self.spare_buffers.append(batch.buffer)

    def close_open_batches(self) -> None:
        """Every next send has to open a batch, and so hears of what has happened."""
        for topic in list(self.topics.values()):
            with topic.lock:
                for partition in range(len(topic.queues)):
                    topic.close_open(partition)
        self._wake()

    def expired(self, now: float) -> list[ProducerBatch]:
        """Batches that waited here for longer than delivery.timeout.ms; they are taken out."""
        limit = now - self._settings.delivery_timeout_ms
        found: list[ProducerBatch] = []
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
                        found.append(batch)
                    else:
                        self._discard_empty(batch)
        return found

    def _discard_empty(self, batch: ProducerBatch) -> None:
        """End a batch that was opened for a record which then was not appended."""
        batch.complete(-1, -1)
        self.finish(batch)
        self._wake()  # a commit may wait for it, and no response will come that could go on with that

    def next_expiry_ms(self, now: float) -> float:
        """How long until the oldest waiting batch expires."""
        oldest = min((q.batches[0].created_ms for q in list(self._active) if q.batches), default=None)
        return float("inf") if oldest is None else max(0.0, oldest + self._settings.delivery_timeout_ms - now)

    def has_undrained(self) -> bool:
        return any(queue.batches for queue in list(self._active))

    def has_incomplete(self) -> bool:
        return bool(self._incomplete)

    def undrained(self) -> list[ProducerBatch]:
        """Take out all that was not sent yet (a transaction is aborted, or the producer closed by force)."""
        found: list[ProducerBatch] = []
        for queue in list(self._active):
            with queue.topic.lock:
                for batch in queue.batches:
                    if not batch.closed:
                        queue.topic.close_open(queue.partition)
                        batch.close()
                    found.append(batch)
                queue.batches.clear()
        return found

    def busy_queues(self) -> list[PartitionQueue]:
        """Those that may hold batches. Any thread: they change while one looks."""
        return list(self._active)

    def incomplete(self) -> list[ProducerBatch]:
        return list(self._incomplete)

    def begin_flush(self, flush: object) -> list[ProducerBatch]:
        """Send without lingering as long as `flush` is in `flushes`; returns what was there at this moment.

        The caller takes it out itself: in a function that does so, a signal handler could raise before the first line.
        """
        self.flushes[flush] = None
        self.close_open_batches()  # what is appended later must not keep this flush waiting: it gets a new batch
        return list(self._incomplete)

    def close(self, error: HeadraceError | None = None) -> None:
        """Refuse new records, with `error` if there is one, and send the rest at once.

        When this is over, no batch is added any more: an append looks for `_closed` under the lock of its topic.
        """
        self._closed = error or ClosedError("the producer is closed")
        self.pool.close(error)
        self.close_open_batches()
