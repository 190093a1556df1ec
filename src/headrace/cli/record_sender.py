"""Sending the records of `headrace produce`: counting, transactions, and how many were written if it fails."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import click

from headrace.cli.connection import ClusterConnection
from headrace.cli.errors import CommandError, ResourceNotFoundError
from headrace.cli.output import count_text
from headrace.cli.record_json import ParsedRecord
from headrace.errors import Code, HeadraceError, error_name
from headrace.producer.producer import Producer
from headrace.producer.records import RecordMetadata
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.layout import Header

CREATION_SECONDS_MAX = 10.0
"""For a broker to create a topic, with leaders for all its partitions."""
UNKNOWN_SECONDS_MAX = 3.0
"""For which a broker may report a topic as unknown after it was requested to create it."""
INTERRUPTED_SECONDS_MAX = 5.0
"""For records in flight on Ctrl-C."""
_POLL_SECONDS = 0.05
_RETRIABLE_CODES = {0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE}


@dataclass(frozen=True, slots=True)
class RecordOverrides:
    """Fields that the command line sets for all records; None leaves the record's own value."""

    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    ignore_partition: bool = False

    @property
    def are_empty(self) -> bool:
        return self == RecordOverrides()


class RecordSender:
    """Sends records and counts those that are acknowledged.

    As a context manager: on an error or Ctrl-C, records in flight are flushed, or an open transaction is aborted, and
    the error says how many records were written.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partition_count: int,
        *,
        overrides: RecordOverrides,
        transaction_size: int | None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition_count = partition_count
        self._overrides = overrides
        self._is_transactional = producer.settings.transactional_id is not None
        self._transaction_size = transaction_size
        self._transaction_records = 0  # in the open transaction
        self._is_transaction_open = False
        self._started_at = time.monotonic()
        self._bytes = 0
        self.sent_count = 0
        self._committed_count = 0
        self._transactions = 0
        self._acknowledged_count = 0  # I/O thread only.
        self._first_error: Exception | None = None  # Set by the I/O thread, once.

    def __enter__(self) -> Self:
        if self._is_transactional:
            self._producer.init_transactions()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._finish_in_flight()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            click.echo(f"interrupted: {self._outcome_text()}", err=True)
        elif isinstance(error, CommandError):
            raise type(error)(f"{error.message}. {self._outcome_text()}") from error
        elif isinstance(error, HeadraceError):
            raise CommandError(f"{error}. {self._outcome_text()}") from error

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started_at

    def facts(self) -> dict[str, Any]:
        """Return the summary as JSON; its field names are stable."""
        return {
            "topic": self._topic,
            "records": self.sent_count,
            "bytes": self._bytes,
            "seconds": round(self.seconds, 3),
            "transactions": self._transactions if self._is_transactional else None,
        }

    def send(self, records: Iterable[ParsedRecord]) -> None:
        """Send records; raise if an earlier one has failed."""
        send, topic, on_delivery = self._producer.send, self._topic, self._on_delivery
        is_plain = self._overrides.are_empty and not self._is_transactional
        for record in records:
            key, value, headers, partition, timestamp_ms = record
            if is_plain and partition is None and not headers:
                send(topic, value, key, timestamp_ms=timestamp_ms, on_delivery=on_delivery)
                self._bytes += (len(key) if key else 0) + (len(value) if value else 0)
                self.sent_count += 1
            else:
                self._send_with_overrides(record)
        self._raise_failure()

    def _send_with_overrides(self, record: ParsedRecord) -> None:
        overrides = self._overrides
        if self._is_transactional and not self._is_transaction_open:
            self._producer.begin_transaction()
            self._is_transaction_open = True
        partition = overrides.partition
        if partition is None and not overrides.ignore_partition:
            partition = record.partition
        if partition is not None and partition >= self._partition_count:
            raise CommandError(
                f"a record has partition {partition}, but topic {self._topic!r} has {self._partition_count} "
                "partitions: add some (headrace topic alter), or partition by key (--ignore-partition)"
            )
        key = record.key if overrides.key is None else overrides.key
        headers = (*record.headers, *overrides.headers)
        self._producer.send(
            self._topic,
            record.value,
            key,
            partition=partition,
            timestamp_ms=record.timestamp_ms if overrides.timestamp_ms is None else overrides.timestamp_ms,
            headers=headers or None,
            on_delivery=self._on_delivery,
        )
        self._bytes += len(key or b"") + len(record.value or b"")
        self._bytes += sum(len(name) + len(value or b"") for name, value in headers)
        self.sent_count += 1
        self._transaction_records += 1
        if self._transaction_records == self._transaction_size:
            self._commit()

    def finish(self) -> None:
        """Commit the open transaction, and wait until every record is acknowledged."""
        self._commit()
        self._producer.flush(self._producer.settings.delivery_timeout_ms / 1000 + INTERRUPTED_SECONDS_MAX)
        self._raise_failure()

    def _commit(self) -> None:
        if self._is_transaction_open:
            self._producer.commit_transaction()
            self._transactions += 1
            self._committed_count = self.sent_count
        self._is_transaction_open, self._transaction_records = False, 0

    def _on_delivery(self, _: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self._acknowledged_count += 1
        elif self._first_error is None:
            self._first_error = error

    def _raise_failure(self) -> None:
        if self._first_error is not None:
            raise CommandError(f"sending a record failed: {self._first_error}") from self._first_error

    def _finish_in_flight(self) -> None:
        """Abort the open transaction, or flush for a bounded time."""
        try:
            if self._is_transaction_open:
                self._producer.abort_transaction()
            elif not self._is_transactional:
                self._producer.flush(INTERRUPTED_SECONDS_MAX)
        except HeadraceError as error:
            click.echo(f"warning: {error}", err=True)

    def _outcome_text(self) -> str:
        if self._is_transactional:
            return f"{count_text(self._committed_count, 'record')} committed; the rest aborted."
        unacknowledged = self.sent_count - self._acknowledged_count
        unknown = f"; {unacknowledged:,} more sent but not acknowledged" if unacknowledged else ""
        return f"{count_text(self._acknowledged_count, 'record')} written to {self._topic}{unknown}."


def ensure_topic(connection: ClusterConnection, topic: str) -> int:
    """Return the partition count of a topic; wait for the broker to create it if it does so automatically."""
    is_creation_requested = False
    started_at = time.monotonic()
    with connection.client() as client:
        while True:
            request = MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=is_creation_requested
            )
            (metadata,) = client.request(request, versions=(4, 12)).topics
            waited, code = time.monotonic() - started_at, metadata.error_code
            has_leaders = metadata.partitions and all(part.leader_id >= 0 for part in metadata.partitions)
            if not code and (has_leaders or waited > CREATION_SECONDS_MAX):
                if is_creation_requested:
                    click.echo(f"note: topic {topic!r} did not exist; the broker created it", err=True)
                return len(metadata.partitions)
            is_unknown = code == Code.UNKNOWN_TOPIC_OR_PARTITION
            if code not in _RETRIABLE_CODES or waited > (UNKNOWN_SECONDS_MAX if is_unknown else CREATION_SECONDS_MAX):
                raise _topic_error(topic, code)
            is_creation_requested = is_creation_requested or is_unknown
            time.sleep(_POLL_SECONDS)


def _topic_error(topic: str, code: int) -> CommandError:
    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return ResourceNotFoundError(
            f"topic {topic!r} does not exist, and the broker does not create topics automatically; create it with "
            f"`headrace topic create {topic}`"
        )
    return CommandError(f"topic {topic!r} is not writable: {error_name(code)} ({code})")
