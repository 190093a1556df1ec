"""The producer. `send` takes the fast path in `_send/` where it can; everything else is in `engine.py` and `sender.py`.

A record's way when the fast path does not apply:

    intercept → metadata → serialize → partition → size check → append → wake the I/O thread
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from headrace.client.metadata import PartitionInfo
from headrace.config import Config
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import AbortableError
from headrace.producer._send import FastSend, RecordFuture
from headrace.producer.batch import ArrowDelivery
from headrace.producer.engine import SendEngine
from headrace.producer.records import (
    ArrowTable,
    Delivery,
    Headers,
    Offsets,
    PreparedRecord,
    ProducerRecord,
    checked_headers,
)
from headrace.producer.settings import ProducerSettings, resolve
from headrace.telemetry.metrics import MetricName, Value
from headrace.types import GroupMember, GroupMetadata, PositionedMember

if TYPE_CHECKING:
    from headrace.config.option_types import ProducerOptions
    from headrace.producer.settings import ProducerArguments


class TransactionScope:
    """A base class with `transaction()` for classes that can begin, commit and abort a transaction."""

    def begin_transaction(self) -> None:
        raise NotImplementedError

    def commit_transaction(self) -> None:
        raise NotImplementedError

    def _abort_after_error(self) -> None:
        """Abort if possible. The caller raises the error that led here."""
        raise NotImplementedError

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction():` commits at the end and aborts on an exception."""
        self.begin_transaction()
        try:
            yield self
        except BaseException:
            self._abort_after_error()
            raise
        try:
            self.commit_transaction()
        except AbortableError:
            self._abort_after_error()
            raise


class Producer(FastSend, TransactionScope):
    """Sends records to Kafka. Safe to share between threads: their records then share batches and requests."""

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
        self.config: Config = resolve(
            config, profile=profile, key_serializer=key_serializer, value_serializer=value_serializer, **options
        )
        self._engine = SendEngine(self.config, clock)
        self._appenders = self._engine.appenders
        self._fast_send_enabled = self._engine.pipeline.is_noop

    @property
    def settings(self) -> ProducerSettings:
        """The options as typed values."""
        return self._engine.settings

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **arguments: Unpack[ProducerArguments]) -> Self:
        """Return a producer with the options of a `.properties` file; keyword arguments take precedence."""
        return cls(Path(path), **arguments)

    # -- sending -------------------------------------------------------------------------------

    def _send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        on_delivery: Delivery | None,
    ) -> RecordFuture:
        engine = self._engine
        appender = self._appenders.get(topic) if engine.pipeline.only_serialize else None
        if appender is None:
            record = ProducerRecord(topic, value, key, partition, timestamp_ms, headers or ())
            return self.send_record(record, on_delivery)
        # Only serializers: once key and value are bytes, the appender can do the rest.
        try:
            pairs = [] if headers is None else list(checked_headers(headers))
            key, value = engine.pipeline.serialize(topic, key, value, pairs)
            future = appender.try_append(key, value, partition, timestamp_ms, pairs, on_delivery)
            if future is not None:
                return future
            ProducerRecord(topic, None, None, partition, timestamp_ms)  # checks what the appender did not accept
            engine.check_sendable()
            deadline_ms = engine.deadline_ms()
            queues = engine.wait_for_topic(topic, partition, deadline_ms)
            prepared = PreparedRecord(partition, timestamp_ms, key, value, pairs, None)
            return engine.append(queues, prepared, on_delivery, deadline_ms)
        except Exception as error:
            refused = engine.refuse(topic, on_delivery, error)
            if refused is None:
                raise
            return refused

    def send_record(self, record: ProducerRecord, on_delivery: Delivery | None = None) -> RecordFuture:
        """`send` with the record as one object."""
        return self._engine.send_record(record, on_delivery)

    def send_arrow(
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
        """Send whole columns: each row is a record. Missing columns count as null; the value must be there.

        Keys and values must be binary or string, unless their serializer is `avro`, `protobuf` or `json-schema`. Other
        serializers, interceptors and partitioner.class do not apply.
        """
        names = {"key": key, "value": value, "headers": headers, "partition": partition, "timestamp": timestamp}
        return self._engine.send_arrow(topic, table_or_batch, names)

    def partitions_for(self, topic: str) -> Sequence[PartitionInfo]:
        """Return the partitions of a topic, as the metadata has them."""
        return self._engine.partitions_for(topic)

    def metrics(self) -> dict[MetricName, Value]:
        """Return the current value of every metric, under Kafka's names."""
        return self._engine.metrics.snapshot()

    # -- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Get a producer id, fence older producers with this transactional.id, and wait for their transactions."""
        self._engine.init_transactions().acknowledged = True

    def begin_transaction(self) -> None:
        """Begin a transaction. Local: the broker learns of it with the first record."""
        self._engine.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Offsets | PositionedMember, group: GroupMetadata | GroupMember | None = None
    ) -> None:
        """Commit consumer offsets with the transaction: those of all records that a consumer has returned.

        Pass the consumer; or offsets, (topic, partition) → the next to read, and the consumer or its group metadata.
        """
        self._engine.send_offsets_to_transaction(offsets, group)

    def commit_transaction(self) -> None:
        """Send all queued records and commit; raises the first error of any record."""
        self._engine.commit_transaction().acknowledged = True

    def abort_transaction(self) -> None:
        """Drop records that were not sent, and abort the transaction."""
        self._engine.abort_transaction().acknowledged = True

    def _abort_after_error(self) -> None:
        self._engine.abort_after_error()

    # -- flush and close -----------------------------------------------------------------------

    def flush(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until all records sent before have a result."""
        self._engine.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, abort an open transaction, and stop; after `timeout` seconds, give up on the rest.

        Without a timeout, wait until every record has been acknowledged or has expired. In a callback it gives up at
        once, because callbacks run on the I/O thread, which would have to send.
        """
        self._engine.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return describe(self._engine)


def describe(engine: SendEngine) -> str:
    """Return the repr of a producer."""
    servers = ",".join(map(str, engine.settings.bootstrap_servers))
    return f"Producer(client_id={engine.settings.client_id!r}, bootstrap_servers={servers!r})"
