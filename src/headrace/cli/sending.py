"""Records on their way into a topic: sent, counted, in transactions if wanted; and what to say when it goes wrong."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from headrace.cli.output import CommandError, NotFoundError
from headrace.cli.produce_progress import count_of
from headrace.cli.record_json import ParsedRecord
from headrace.errors import Code, HeadraceError
from headrace.producer.producer import Producer
from headrace.producer.records import RecordMetadata
from headrace.wire.layout import Header

if TYPE_CHECKING:
    from headrace.cli.connection import Connection

CREATION_SECONDS_MAX = 10.0
"""How long a broker may take to make a topic that was not there, with leaders for all its partitions."""
UNKNOWN_SECONDS_MAX = 3.0
"""How long it may deny that there is such a topic, having been asked to make it."""
INTERRUPTED_SECONDS_MAX = 5.0
"""For what is on its way when Ctrl-C comes."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Fixed:
    """What all records have; what is not given, each has for itself."""

    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    ignore_partition: bool = False

    @property
    def is_nothing(self) -> bool:
        return self == Fixed()


class Sending:
    """Sends records, and knows what became of them.

    As a context: what is left open by an error or by Ctrl-C is flushed, or aborted where it is a transaction, and the
    error tells how many records are there.
    """

    def __init__(
        self, producer: Producer, topic: str, partitions: int, fixed: Fixed, transaction_size: int | None
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._fixed = fixed
        self._is_transactional = producer.settings.transactional_id is not None
        self._transaction_size = transaction_size
        self._in_transaction = 0  # records of the one that is open
        self._is_open = False
        self._started = time.monotonic()
        self._bytes = 0
        self.sent = 0
        self._committed = 0
        self._transactions = 0
        self._acknowledged = 0  # I/O thread only.
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
        self._give_up()
        if isinstance(error, KeyboardInterrupt | SystemExit):
            click.echo(f"interrupted: {self._told()}", err=True)
        elif isinstance(error, CommandError):
            raise type(error)(f"{error.message}. {self._told()}") from error
        elif isinstance(error, HeadraceError):
            raise CommandError(f"{error}. {self._told()}") from error

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def facts(self) -> dict[str, Any]:
        """The summary; names in it are stable."""
        return {
            "topic": self._topic,
            "records": self.sent,
            "bytes": self._bytes,
            "seconds": round(self.seconds, 3),
            "transactions": self._transactions if self._is_transactional else None,
        }

    def send(self, records: Iterable[ParsedRecord]) -> None:
        """Queue some records; raises if one that was sent before has failed."""
        send, topic, fixed, delivered = self._producer.send, self._topic, self._fixed, self._delivered
        plain = fixed.is_nothing and not self._is_transactional
        for record in records:
            key, value, headers, partition, timestamp_ms = record
            if plain and partition is None and not headers:
                send(topic, value, key, timestamp_ms=timestamp_ms, on_delivery=delivered)
                self._bytes += (len(key) if key else 0) + (len(value) if value else 0)
                self.sent += 1
            else:
                self._send_one(record)
        self._raise_failure()

    def _send_one(self, record: ParsedRecord) -> None:
        fixed = self._fixed
        if self._is_transactional and not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        partition = fixed.partition
        if partition is None and not fixed.ignore_partition:
            partition = record.partition
        if partition is not None and partition >= self._partitions:
            raise CommandError(
                f"a record is for partition {partition}, and topic {self._topic!r} has {self._partitions} partitions: "
                f"make it larger (headrace topic alter), or let keys choose (--ignore-partition)"
            )
        key = record.key if fixed.key is None else fixed.key
        self._producer.send(
            self._topic,
            record.value,
            key,
            partition=partition,
            timestamp_ms=record.timestamp_ms if fixed.timestamp_ms is None else fixed.timestamp_ms,
            headers=(*record.headers, *fixed.headers) or None,
            on_delivery=self._delivered,
        )
        self._bytes += len(key or b"") + len(record.value or b"")
        self._bytes += sum(len(name) + len(value or b"") for name, value in (*record.headers, *fixed.headers))
        self.sent += 1
        self._in_transaction += 1
        if self._in_transaction == self._transaction_size:
            self._commit()

    def finish(self) -> None:
        """Wait until all is acknowledged, and commit what is open."""
        if self._is_open:
            self._commit()
        self._producer.flush(self._producer.settings.delivery_timeout_ms / 1000 + INTERRUPTED_SECONDS_MAX)
        self._raise_failure()

    def _commit(self) -> None:
        if self._is_open:
            self._producer.commit_transaction()
            self._transactions += 1
            self._committed = self.sent
        self._is_open, self._in_transaction = False, 0

    def _delivered(self, _: RecordMetadata | None, error: Exception | None) -> None:
        if error is None:
            self._acknowledged += 1
        elif self._first_error is None:
            self._first_error = error

    def _raise_failure(self) -> None:
        if self._first_error is not None:
            raise CommandError(f"a record could not be sent: {self._first_error}") from self._first_error

    def _give_up(self) -> None:
        """Bring what is on its way to an end, within bounds."""
        try:
            if self._is_open:
                self._producer.abort_transaction()
            elif not self._is_transactional:
                self._producer.flush(INTERRUPTED_SECONDS_MAX)
        except HeadraceError as error:
            click.echo(f"warning: {error}", err=True)

    def _told(self) -> str:
        if self._is_transactional:
            return f"Of the input, {count_of(self._committed, 'record')} committed; the rest was aborted."
        left = self.sent - self._acknowledged
        unknown = f"; of {left:,} more nobody knows" if left else ""
        return f"Of the input, {count_of(self._acknowledged, 'record')} written to {self._topic}{unknown}."


def partition_count(connection: Connection, topic: str) -> int:
    """How many partitions a topic has; one that is not there is made, if the broker does that by itself."""
    from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

    asked_to_make = False
    started = time.monotonic()
    with connection.client() as client:
        while True:
            message = MetadataRequest(
                topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=asked_to_make
            )
            (found,) = client.request(message, versions=(4, 12)).topics
            waited, code = time.monotonic() - started, found.error_code
            has_leaders = found.partitions and all(part.leader_id >= 0 for part in found.partitions)
            if not code and (has_leaders or waited > CREATION_SECONDS_MAX):
                if asked_to_make:
                    click.echo(f"note: there was no topic {topic!r}; the broker made it", err=True)
                return len(found.partitions)
            is_unknown = code == Code.UNKNOWN_TOPIC_OR_PARTITION
            if code not in _MAY_COME or waited > (UNKNOWN_SECONDS_MAX if is_unknown else CREATION_SECONDS_MAX):
                raise _no_topic(topic, code)
            asked_to_make = asked_to_make or is_unknown
            time.sleep(_POLL_SECONDS)


_MAY_COME = {0, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE}


def _no_topic(topic: str, code: int) -> CommandError:
    from headrace.errors import error_name

    if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return NotFoundError(
            f"there is no topic {topic!r}, and the broker makes none by itself: `headrace topic create {topic}` does"
        )
    return CommandError(f"topic {topic!r} cannot be written: {error_name(code)} ({code})")
