"""The consumer: the public API, on the application thread. The work in the background is in `engine.py`.

subscribe or assign → poll (records) or poll_arrow (columns) → commit → close
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from headrace.client.metadata import PartitionInfo
from headrace.client.offsets import EARLIEST, LATEST, PartitionOffset
from headrace.config import Config
from headrace.config.clock import SYSTEM_CLOCK, Clock, timed
from headrace.consumer import arguments, unclosed
from headrace.consumer.arrow_stream import stream
from headrace.consumer.deserialization import Deserialization
from headrace.consumer.engine import ConsumerEngine
from headrace.consumer.group import ConsumerGroup, OnCommit
from headrace.consumer.iteration import PendingRecords
from headrace.consumer.offset_lookups import OffsetLookup, OnOffset
from headrace.consumer.partitions import UNKNOWN_OFFSET, AssignedPartition, PositionState
from headrace.consumer.reader import RecordReader
from headrace.consumer.rebalances import RebalanceListener
from headrace.consumer.results import OffsetAndTimestamp, Outcome
from headrace.consumer.settings import ConsumerSettings, resolve
from headrace.errors import HeadraceError, IllegalStateError, TimedOutError
from headrace.telemetry.metrics import MetricName, Value
from headrace.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from headrace.wire.layout import ConsumerRecord

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config.option_types import ConsumerOptions
    from headrace.consumer.settings import ConsumerArguments

POLL_SECONDS = 1.0
"""The default timeout of a poll."""
CLOSE_SECONDS = 30.0

T = TypeVar("T")


class Consumer:
    """Reads records from Kafka. For one thread at a time; only `wakeup` may be called by others."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        key_deserializer: object = None,
        value_deserializer: object = None,
        clock: Clock = SYSTEM_CLOCK,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.config: Config = resolve(
            config, key_deserializer=key_deserializer, value_deserializer=value_deserializer, **options
        )
        self._engine = engine = ConsumerEngine(self.config, clock)
        self._busy = threading.RLock()  # Re-entrant, because listeners may commit and seek.
        self.pending = PendingRecords(engine)
        """For iteration, also that of `AsyncConsumer`."""
        try:
            self._deserialization = Deserialization.load(self.config, engine.plugins, engine.log)
            self._reader = RecordReader(engine.buffer, engine, engine.settings.fetch.max_bytes, self._deserialization)
            engine.start()
        except BaseException:
            engine.close(0)
            raise
        unclosed.watch(self, engine)

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **arguments: Unpack[ConsumerArguments]) -> Self:
        """Return a consumer with the options of a `.properties` file; keyword arguments take precedence."""
        return cls(Path(path), **arguments)

    @property
    def settings(self) -> ConsumerSettings:
        """The options as typed values."""
        return self._engine.settings

    @contextlib.contextmanager
    def _entered(self) -> Iterator[ConsumerEngine]:
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

    # -- partitions ----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] | str | None = None,
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read the partitions of these topics, or of all whose names match `pattern`, that the group assigns.

        The pattern is a regular expression for the whole name: of Python, or with group.protocol=consumer of RE2, which
        the broker matches. Partitions are assigned in `poll`.
        """
        with self._entered() as engine:
            group = self._group("subscribe")
            if (topics is None) == (pattern is None):
                raise ValueError("subscribe() needs either topics or a pattern")
            arguments.check_listener(listener)
            names = frozenset() if topics is None else arguments.topics_of(topics)
            if group.topics is None and engine.assignment.partitions:
                raise IllegalStateError("partitions were assigned with assign(): call unsubscribe() first")
            if not names and pattern is None:
                raise ValueError("subscribe() got no topics: call unsubscribe() to leave the group")
            group.subscribe(group.matching(names, pattern, engine.settings.matches_internal_topics), listener)

    def unsubscribe(self) -> None:
        """Leave the group, or give up the partitions of `assign`."""
        with self._entered() as engine:
            if engine.group is not None and engine.group.topics is not None:
                engine.group.unsubscribe(engine.settings.api_timeout_ms, "the consumer has unsubscribed")
            engine.assign([])

    def subscription(self) -> set[str]:
        """Return the topics that the consumer subscribes to; with a pattern, those that match it.

        With a pattern that the broker matches (group.protocol=consumer), those of the assigned partitions.
        """
        group = self._engine.group
        if group is None or group.topics is None:
            return set()
        if group.topics.regex:
            return {tp.topic for tp in self._engine.assignment.partitions}
        return set(group.topics.resolve(self._engine.metadata.cluster))

    def is_subscribed(self) -> bool:
        """Return whether the group assigns the partitions."""
        return self._engine.group is not None and self._engine.group.topics is not None

    def _group(self, operation: str) -> ConsumerGroup:
        if self._engine.group is None:
            raise IllegalStateError(f"{operation}() needs a group.id: set it, or use assign()")
        return self._engine.group

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read these partitions, without the group's assignment. A mapping has the offsets to start at."""
        starts = arguments.starts_of(partitions)
        with self._entered() as engine:
            if self.is_subscribed():
                raise IllegalStateError("the consumer has subscribed to topics: call unsubscribe() before assign()")
            current = engine.assignment.partitions
            assigned = []
            for name, offset in starts.items():
                if offset is not None:
                    assigned.append(_moved(AssignedPartition(name, PositionState.RESET), offset))
                else:
                    assigned.append(current.get(name) or AssignedPartition(name, PositionState.COMMITTED))
            engine.assign(assigned)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        return set(self._engine.assignment.partitions)

    def partitions_for(self, topic: str, timeout: float | None = None) -> Sequence[PartitionInfo]:
        """Return the partitions of a topic, as the metadata has them."""
        with self._entered() as engine:
            engine.wait_for_topic(arguments.topic_of(topic), self._timeout_ms(timeout))
            return engine.metadata.cluster.topics[topic].partitions

    # -- reading -------------------------------------------------------------------------------

    def poll(self, timeout: float = POLL_SECONDS, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return fetched records, at most `max_records` (max.poll.records); an empty list after `timeout` seconds.

        Listeners of rebalances are called in here.
        """
        default = self._engine.settings.max_poll_records
        count_max = default if max_records is None else arguments.integer_of(max_records, "max_records")
        if count_max < 1:
            raise ValueError(f"invalid max_records: expected 1 or more, got {count_max}")
        interceptors = self._engine.interceptors

        def take() -> list[ConsumerRecord]:
            records = self._reader.records(count_max)
            return interceptors.on_consume(records) if records and interceptors else records

        return self._poll(take, arguments.milliseconds(timeout)) or []

    def poll_arrow(self, timeout: float = POLL_SECONDS) -> pa.RecordBatch | None:
        """Return fetched records as columns; None after `timeout` seconds.

        The columns are topic, partition, offset, timestamp, timestampType, key, value, headers, with the types of
        `arrow_schema`. The size of a batch is limited by fetch.max.bytes, not by max.poll.records.
        """
        return self._poll(self._reader.columns, arguments.milliseconds(timeout))

    def _poll(self, take: Callable[[], T | None], timeout_ms: float) -> T | None:
        with self._entered() as engine:
            if not engine.assignment.partitions and not self.is_subscribed():
                raise IllegalStateError("the consumer has no partitions: call subscribe() or assign() first")
            self.pending.give_back()
            self._reader.settle()
            try:
                return engine.poll(take, timeout_ms)
            except HeadraceError:
                raise
            except BaseException:  # Ctrl-C: nothing is returned, so nothing must be skipped
                self._reader.undo()
                raise

    def arrow_schema(self) -> pa.Schema:
        """Return the columns of `poll_arrow`, with the types that the deserializers give them.

        With schemas, the types are those of the assigned topics; SchemaError is raised if they differ.
        """
        return self._deserialization.schema(sorted({name.topic for name in self._engine.assignment.partitions}))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield records for ever. The positions follow the records that were yielded."""
        while True:
            self._engine.check_usable()
            record = self.pending.next()
            if record is None:
                self.pending.add(self.poll())
            else:
                yield record

    def undo_poll(self) -> None:
        """Move the positions back before the records that were returned last, which are then returned again.

        Records that were committed stay committed.
        """
        if self._engine.is_closed:
            return
        with self._entered():
            if self.pending.is_active:
                self.pending.undo()
            else:
                self._reader.undo()

    def arrow_stream(self, timeout: float | None = None) -> pa.RecordBatchReader:
        """Return a reader of the records from the positions up to the current ends of the assigned partitions.

        It raises TimedOutError if nothing comes for `timeout` seconds (default.api.timeout.ms).
        """
        return stream(self, self._timeout_ms(timeout) / 1000)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export `arrow_stream()` through the Arrow PyCapsule interface, for Polars, DuckDB, pandas and others."""
        return self.arrow_stream().__arrow_c_stream__(requested_schema)

    # -- positions -----------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset."""
        position = arguments.offset_of(offset, "; see seek_to_beginning, seek_to_end")
        with self._entered() as engine:
            engine.replace([_moved(engine.partition(partition), position)])

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first records of these partitions, by default of all assigned ones."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue after the last records; with read_committed, at the last stable offset."""
        self._seek_to(LATEST, partitions)

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the first record of that time (in milliseconds) or later, or at the end."""
        if arguments.integer_of(timestamp_ms, "timestamp_ms") < 0:
            raise ValueError(f"invalid timestamp_ms: expected 0 or more, got {timestamp_ms}")
        self._seek_to(timestamp_ms, partitions)

    def _seek_to(self, time: int, partitions: Iterable[TopicPartition] | None) -> None:
        with self._entered() as engine:
            engine.replace(
                AssignedPartition(p.name, PositionState.RESET, paused=p.paused, reset_time=time)
                for p in engine.partitions(partitions).values()
            )

    def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue at the committed offsets of the group; partitions without one, as auto.offset.reset says.

        After a transaction was aborted, this reads its records again.
        """
        with self._entered() as engine:
            self._group("seek_to_committed")
            engine.replace(
                AssignedPartition(p.name, PositionState.COMMITTED, paused=p.paused)
                for p in engine.partitions(partitions).values()
            )

    def position(self, partition: TopicPartition, timeout: float | None = None) -> int:
        """Return the offset of the next record; waits until it is known."""
        with self._entered() as engine:
            timeout_ms = self._timeout_ms(timeout)

            def is_known() -> bool:
                assigned = engine.partition(partition)
                return assigned.position != UNKNOWN_OFFSET or assigned.error is not None

            if not engine.wait_until(is_known, timeout_ms):
                raise TimedOutError(f"the position of {partition} is unknown after {timeout_ms / 1000:g} s")
            assigned = engine.partition(partition)
            if assigned.position == UNKNOWN_OFFSET and assigned.error is not None:
                raise assigned.error
            return assigned.position

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offsets of the next records of all assigned partitions whose position is known.

        They become part of a transaction with `producer.send_offsets_to_transaction(consumer)`.
        """
        partitions = self._engine.assignment.partitions
        return {name: p.position for name, p in partitions.items() if p.position != UNKNOWN_OFFSET}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        self._set_paused(partitions, True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        with self._entered() as engine:
            for partition in engine.partitions(partitions).values():
                partition.paused = paused
            engine.pauses_changed()

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return {name for name, p in self._engine.assignment.partitions.items() if p.paused}

    def lag(self, partition: TopicPartition) -> int | None:
        """Return how many offsets the position is behind the end, as of the last fetch; None if that is unknown."""
        return self._engine.lag(self._engine.partition(partition))

    # -- commits -------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None, timeout: float | None = None
    ) -> None:
        """Commit offsets, by default the positions, and wait until the group has them.

        The offset of a partition is that of the next record to read.
        """
        with self._entered():
            group, timeout_ms = self._group("commit"), self._timeout_ms(timeout)
            self._settle()
            with timed(self._engine.metrics.commit_sync):
                group.commit(_offsets(offsets, group), timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        on_commit: OnCommit | None = None,
    ) -> None:
        """Commit offsets, by default the positions, without waiting. `on_commit` is called in a later `poll`."""
        with self._entered():
            group = self._group("commit_async")
            if on_commit is not None and not callable(on_commit):
                raise TypeError(f"invalid on_commit: expected a function, got {on_commit!r}")
            self._settle()
            group.commit_async(_offsets(offsets, group), on_commit)

    def _settle(self) -> None:
        """Count the records that were returned as processed: the application commits them."""
        self.pending.settle()
        self._reader.settle()

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group; partitions without one are missing."""
        with self._entered():
            group, names = self._group("committed"), arguments.partitions_of(partitions)
            with timed(self._engine.metrics.committed):
                return group.committed(names, self._timeout_ms(timeout))

    def group_metadata(self) -> GroupMetadata:
        """Return the group and the member, for `producer.send_offsets_to_transaction`."""
        return self._group("group_metadata").identity

    # -- offsets of partitions -----------------------------------------------------------------

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets of the first records."""
        starts = self._list_offsets(dict.fromkeys(arguments.partitions_of(partitions), EARLIEST), timeout)
        return {name: offset.offset for name, offset in starts.items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets after the last records; with read_committed, the last stable offsets."""
        ends = self._list_offsets(dict.fromkeys(arguments.partitions_of(partitions), LATEST), timeout)
        return {name: offset.offset for name, offset in ends.items()}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of a time (in milliseconds) or later; None if there is none."""
        offsets = self._list_offsets(arguments.times_of(times), timeout)
        return {name: OffsetAndTimestamp(*row) if row.offset >= 0 else None for name, row in offsets.items()}

    def _list_offsets(
        self, times: Mapping[TopicPartition, int], timeout: float | None
    ) -> dict[TopicPartition, PartitionOffset]:
        timeout_ms = self._timeout_ms(timeout)
        with self._entered() as engine:
            outcomes: dict[TopicPartition, Outcome[PartitionOffset]] = {name: engine.outcome() for name in times}
            deadline_ms = engine.clock.monotonic_ms() + timeout_ms

            def look_up() -> None:
                for name, outcome in outcomes.items():
                    engine.lookups.add(OffsetLookup(name, times[name], _settle(outcome), deadline_ms))

            engine.call(look_up)
            return {name: engine.wait(outcome, timeout_ms, "ListOffsets") for name, outcome in outcomes.items()}

    # -- metrics, wakeup and close -------------------------------------------------------------

    def metrics(self) -> dict[MetricName, Value]:
        """Return the value of every metric, under Kafka's names."""
        return self._engine.metrics.snapshot()

    def wakeup(self) -> None:
        """Make the current or next call that waits raise WakeupError. Any thread, and signal handlers."""
        self._engine.wakeup()

    def clear_wakeup(self) -> None:
        """Forget a `wakeup` that has interrupted nothing."""
        self._engine.clear_wakeup()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Commit if enable.auto.commit is on, leave the group, and stop; after `timeout` seconds, without waiting."""
        with self._alone():
            self._engine.close(arguments.milliseconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        """Close. After an exception, the records of the last poll do not count as processed."""
        if kind is not None:
            self.undo_poll()
        self.close()

    def __repr__(self) -> str:
        return describe(self._engine)

    def _timeout_ms(self, timeout: float | None) -> float:
        return self._engine.settings.api_timeout_ms if timeout is None else arguments.milliseconds(timeout)


def describe(engine: ConsumerEngine) -> str:
    """Return the repr of a consumer."""
    settings = engine.settings
    group = "" if settings.group is None else f", group_id={settings.group.group_id!r}"
    servers = ",".join(map(str, settings.bootstrap_servers))
    return f"Consumer(client_id={settings.client_id!r}{group}, bootstrap_servers={servers!r})"


def _offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None, group: ConsumerGroup
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return offsets in full, by default the positions."""
    return group.positions() if offsets is None else arguments.commits_of(offsets)


def _moved(partition: AssignedPartition, offset: int) -> AssignedPartition:
    """Return a new object for a partition, at an offset: responses for the old one are ignored."""
    moved = AssignedPartition(partition.name, PositionState.RESET, paused=partition.paused)
    if offset < 0:
        moved.reset_time = offset
    else:
        moved.start_at(offset)
    return moved


def _settle(outcome: Outcome[PartitionOffset]) -> OnOffset:
    def on_offset(result: PartitionOffset | HeadraceError) -> None:
        if isinstance(result, HeadraceError):
            outcome.fail(result)
        else:
            outcome.succeed(result)

    return on_offset
