"""A consumer in a share group (KIP-932): the public API, on the application thread.

    subscribe → poll → acknowledge (explicit mode) → commit_sync, or the next poll → … → close

In implicit mode, the records of a poll are accepted by the next poll, by a commit and by the end of a `with` block. In
explicit mode (share.acknowledgement.mode=explicit) each record is acknowledged before the next poll. As in Java,
`close` accepts nothing by itself: what an application was processing when it failed is delivered again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

from headrace.config import Config
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.consumer import arguments, unclosed
from headrace.consumer.deserialization import Deserialization
from headrace.consumer.share_engine import FetchedRecords, ShareEngine
from headrace.consumer.share_options import resolve_share
from headrace.consumer.share_session import GAP, AcknowledgeType, TopicIdPartition
from headrace.errors import HeadraceError, IllegalStateError, TimedOutError, WakeupError, WireError
from headrace.types import TopicPartition
from headrace.wire.api.share_fetch import AcquiredRecords
from headrace.wire.compression import DECOMPRESSED_BYTES_MAX
from headrace.wire.layout import ConsumerRecord, Header
from headrace.wire.records import read_batches

if TYPE_CHECKING:
    from headrace.config.option_types import ConsumerOptions

POLL_SECONDS = 1.0
COMMIT_SECONDS = 30.0
CLOSE_SECONDS = 30.0


class ShareRecord(NamedTuple):
    """A record that a share consumer returns: locked for this member until it is acknowledged, or for a time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: set by the producer (CreateTime), 1: by the broker (LogAppendTime), -1: none."""
    key: Any
    value: Any
    headers: tuple[Header, ...]
    leader_epoch: int
    """The epoch of the leader that appended the record; -1 if it is unknown."""
    delivery_count: int
    """How often the record was delivered, with this time."""


class _Source(NamedTuple):
    """Where a delivered record has to be acknowledged."""

    node_id: int
    key: TopicIdPartition


def _offsets(row: AcquiredRecords) -> range:
    return range(row.first_offset, row.last_offset + 1)


class ShareConsumer:
    """Reads records in a share group, and acknowledges them. For one thread at a time; only `wakeup` is for others."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_deserializer: object = None,
        value_deserializer: object = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.config: Config = resolve_share(
            config, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **options
        )
        self._is_explicit = self.config["share.acknowledgement.mode"] == "explicit"
        self._busy = threading.Lock()
        self._topics: frozenset[str] = frozenset()
        self._delivered: dict[tuple[str, int, int], _Source] = {}  # not acknowledged yet
        self._bad_records: list[HeadraceError] = []  # errors to raise
        self._engine = engine = ShareEngine(self.config, clock)
        try:
            self._deserialization = Deserialization.load(self.config, engine.plugins, engine.log)
            engine.thread.start()
        except BaseException:
            engine.close(0)
            raise
        unclosed.watch(self, engine)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[ShareEngine]:
        """Check that the consumer can be used, by this thread only."""
        with self._alone():
            self._engine.check_usable()
            yield self._engine

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Check that no other thread uses the consumer."""
        if not self._busy.acquire(blocking=False):
            raise IllegalStateError(
                "another thread uses this consumer, which is for one thread at a time: call wakeup() to end its wait"
            )
        try:
            yield
        finally:
            self._busy.release()

    # -- subscription ----------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | str) -> None:
        """Read these topics with the group."""
        names = arguments.topics_of(topics)
        if not names:
            raise ValueError("subscribe() got no topics: call unsubscribe() or close() to leave the group")
        with self._entered() as engine:
            self._topics = names
            engine.call(lambda: engine.subscribe(names))

    def subscription(self) -> set[str]:
        """Return the topics of the subscription."""
        return set(self._topics)

    # -- records ---------------------------------------------------------------------------------

    def poll(self, timeout: float = POLL_SECONDS) -> list[ShareRecord]:
        """Return records that are locked for this consumer; an empty list after `timeout` seconds."""
        with self._entered() as engine:
            if not self._topics:
                raise IllegalStateError("poll() needs a subscription: call subscribe() first")
            self._finish_delivered()
            if self._bad_records:
                raise self._bad_records.pop(0)
            engine.last_poll_ms = engine.clock.monotonic_ms()
            deadline = time.monotonic() + arguments.milliseconds(timeout) / 1000
            engine.is_waiting = True
            engine.network.wakeup()
            try:
                while True:
                    self._wait(engine, deadline)
                    records = self._take(engine)
                    if records or time.monotonic() >= deadline:
                        return records
            except HeadraceError:
                raise
            except BaseException:  # Ctrl-C: nothing is returned, so nothing must be accepted
                self._release_delivered()
                raise
            finally:
                engine.is_waiting = False

    @staticmethod
    def _wait(engine: ShareEngine, deadline: float) -> None:
        """Wait for records; raise an error of the I/O thread."""
        left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
        engine.wait_until(lambda: bool(engine.fetched or engine.errors or engine.group_error), left_ms)
        if engine.errors:
            raise engine.errors.popleft()
        if engine.group_error is not None and not engine.fetched:
            raise engine.group_error
        if engine.take_wakeup():
            raise WakeupError("wakeup() was called")

    def _finish_delivered(self) -> None:
        """Accept the records of the last poll, or raise if they have to be acknowledged."""
        if not self._delivered:
            return
        if self._is_explicit:
            topic, partition, offset = next(iter(self._delivered))
            raise IllegalStateError(
                f"{len(self._delivered)} records of the last poll are not acknowledged, the first at offset {offset} "
                f"of {topic}-{partition}: call acknowledge() for each (share.acknowledgement.mode is explicit)"
            )
        self._send(dict.fromkeys(self._delivered, AcknowledgeType.ACCEPT))

    def _release_delivered(self) -> None:
        self._send(dict.fromkeys(self._delivered, AcknowledgeType.RELEASE))

    def _take(self, engine: ShareEngine) -> list[ShareRecord]:
        """Return the fetched records. Errors of bad ones are raised if there are no others, else by the next polls."""
        records: list[ShareRecord] = []
        while engine.fetched:
            fetched = engine.fetched.popleft()
            try:
                records += self._decode(fetched)
            except WireError as error:
                source = _Source(fetched.node_id, fetched.key)
                names = [(*fetched.name, offset) for row in fetched.acquired for offset in _offsets(row)]
                self._release(names, source, error)
        if self._bad_records and not records:
            raise self._bad_records.pop(0)
        return records

    def _decode(self, fetched: FetchedRecords) -> list[ShareRecord]:
        topic, partition = fetched.name
        decoded: list[ConsumerRecord] = []
        for batch in read_batches(fetched.data):
            if not batch.header.is_control:
                batch.consumer_records(topic, partition, 0, decoded, DECOMPRESSED_BYTES_MAX)
        by_offset = {record.offset: record for record in decoded}
        source = _Source(fetched.node_id, fetched.key)
        acquired: list[ConsumerRecord] = []
        counts: dict[int, int] = {}
        gaps: dict[int, int] = {}
        for row in fetched.acquired:
            for offset in _offsets(row):
                if offset in by_offset:
                    acquired.append(by_offset[offset])
                    counts[offset] = row.delivery_count
                else:
                    gaps[offset] = GAP
        good = self._deserialize(acquired, source)
        for record in good:
            self._delivered[topic, partition, record.offset] = source
        if gaps:
            self._engine.call(lambda: self._engine.acknowledge(source.node_id, source.key, gaps))
        return [ShareRecord(*record, counts[record.offset]) for record in good]

    def _deserialize(self, acquired: list[ConsumerRecord], source: _Source) -> list[ConsumerRecord]:
        """Return the records that can be read, and release the others: at the limit of deliveries they are archived."""
        if self._deserialization.is_identity:
            return acquired
        good: list[ConsumerRecord] = []
        while acquired:
            readable, error = self._deserialization.records(acquired)
            good += readable
            if error is None:
                break
            bad = acquired[len(readable)]
            self._release([(bad.topic, bad.partition, bad.offset)], source, error)
            acquired = acquired[len(readable) + 1 :]
        return good

    def _release(self, names: Iterable[tuple[str, int, int]], source: _Source, error: HeadraceError) -> None:
        released = dict.fromkeys(names, source)
        self._delivered.update(released)
        self._send(dict.fromkeys(released, AcknowledgeType.RELEASE))
        self._bad_records.append(error)

    # -- acknowledgements ------------------------------------------------------------------------

    def acknowledge(self, record: ShareRecord, kind: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Say what becomes of a record of the last poll; it is sent with the next poll or commit."""
        if not self._is_explicit:
            raise IllegalStateError("acknowledge() needs share.acknowledgement.mode=explicit")
        if not isinstance(record, ShareRecord):
            raise TypeError(f"invalid record: expected a ShareRecord of the last poll, got {record!r}")
        name = (record.topic, record.partition, record.offset)
        if name not in self._delivered:
            raise IllegalStateError(
                f"the record at offset {record.offset} of {record.topic}-{record.partition} is not one of the last "
                "poll, or it was acknowledged before"
            )
        with self._entered():
            self._send({name: AcknowledgeType(kind)})

    def _send(self, types: Mapping[tuple[str, int, int], AcknowledgeType]) -> None:
        by_source: dict[_Source, dict[int, int]] = {}
        for name, kind in types.items():
            by_source.setdefault(self._delivered.pop(name), {})[name[2]] = kind

        def add() -> None:
            for source, offsets in by_source.items():
                self._engine.acknowledge(source.node_id, source.key, offsets)

        self._engine.call(add)

    def commit_sync(self, timeout: float = COMMIT_SECONDS) -> dict[TopicPartition, HeadraceError | None]:
        """Send the acknowledgements, and return when they are persisted: an error or None for each partition.

        After an error the records of the partition come again.
        """
        results: list[dict[TopicPartition, HeadraceError | None]] = []
        with self._entered() as engine:
            self._commit(results)
            if not engine.wait_until(lambda: bool(results), timeout * 1000):
                if engine.take_wakeup():
                    raise WakeupError("wakeup() was called")
                raise TimedOutError(f"commit_sync() timed out after {timeout:g} s waiting for the brokers")
        return results[0]

    def commit_async(self) -> None:
        """Send the acknowledgements without waiting for the result."""
        with self._entered():
            self._commit([])

    def _commit(self, results: list[dict[TopicPartition, HeadraceError | None]]) -> None:
        engine = self._engine
        if not self._is_explicit and self._delivered:
            self._finish_delivered()

        def on_done(outcome: dict[TopicPartition, HeadraceError | None]) -> None:
            results.append(outcome)
            engine.notify()

        engine.call(lambda: engine.flush(on_done))

    # -- end -------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Interrupt `poll` or `commit_sync`, which raises WakeupError. Any thread."""
        self._engine.wakeup()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Send acknowledgements, release other records, leave the group and close the connections.

        Records of the last poll that are neither acknowledged nor committed are delivered again.
        """
        with self._alone():
            self._engine.close(arguments.milliseconds(timeout))

    def __repr__(self) -> str:
        settings = self._engine.settings
        servers = ",".join(map(str, settings.bootstrap_servers))
        return (
            f"ShareConsumer(client_id={settings.client_id!r}, group_id={self._engine.group_id!r}, "
            f"bootstrap_servers={servers!r})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Without an exception, the records of the last poll count as processed."""
        if kind is None and not self._is_explicit and not self._engine.is_closed:
            self._finish_delivered()
        self.close()
