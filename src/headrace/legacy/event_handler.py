"""The event handler: what happens to a batch of messages, sync or async, until it is sent or fails.

    serialize → ┌► refresh metadata, if due ─► partition ─► group by broker ─► send ─► done
                │                                                               │ failed
                └────────── refresh metadata ◄── sleep retry.backoff.ms ◄───────┘   message.send.max.retries times

Every failure is retried, as in 0.8, but not messages that were acknowledged. Only the error of a broker that does not
accept message sets is raised at once.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection
from enum import StrEnum
from typing import cast

from headrace.client.plugins import PluginKind
from headrace.errors import (
    BrokerError,
    ConnectionFailedError,
    HeadraceError,
    MalformedError,
    SerializationError,
    UnsupportedVersionError,
)
from headrace.legacy.messages import Messages, SerializedMessages
from headrace.legacy.options import LegacySettings
from headrace.legacy.partitioner import ByPartition, Collator
from headrace.legacy.queue import WaitingClock
from headrace.legacy.sync_producer import NO_LEADER, BrokerPartitionInfo, ProducerPool
from headrace.producer.serializers import KIND as SERIALIZER_KIND
from headrace.producer.serializers import (
    BytesSerializer,
    IntSerializer,
    LongSerializer,
    NoneSerializer,
    Serializer,
    StrSerializer,
)
from headrace.types import TopicPartition
from headrace.wire import message_sets
from headrace.wire.api.produce import PartitionProduceData, ProduceResponse, TopicProduceData

log = logging.getLogger("headrace")

REASONS_MAX = 3
"""The number of failed partitions that an error names."""

_SCALA = "kafka.serializer."
ENCODER_KIND = PluginKind(
    "encoder",
    Serializer,
    {
        **SERIALIZER_KIND.known,
        _SCALA + "DefaultEncoder": BytesSerializer,
        _SCALA + "StringEncoder": StrSerializer,
        _SCALA + "IntegerEncoder": IntSerializer,
        _SCALA + "LongEncoder": LongSerializer,
        _SCALA + "NullEncoder": NoneSerializer,
    },
    SERIALIZER_KIND.adapt,
)
"""Encoders, as serializers are called in 0.8: those of headrace.Producer, also under their Scala names."""

Column = list[bytes | None]
_BYTES = {bytes, type(None)}
_STR = {str}
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)  # the names that brokers accept


class FailedToSendMessageError(HeadraceError):
    """After the last retry, `unsent_count` messages of the call were not acknowledged; the others were."""

    _fields = ("unsent_count",)

    def __init__(self, message: str, *, unsent_count: int) -> None:
        super().__init__(message)
        self.unsent_count = unsent_count


class Counter(StrEnum):
    """The metrics of the producer, with the names of 0.8."""

    DROPPED_MESSAGES = "DroppedMessages"  # messages that the full queue, or `close`, has dropped
    SERIALIZATION_ERRORS = "SerializationErrors"  # messages whose encoder failed
    RESENDS = "Resends"  # retries of batches
    FAILED_SENDS = "FailedSends"  # batches that failed after the last retry


class ProducerStats:
    """Counters. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Counter, int] = dict.fromkeys(Counter, 0)  # Guarded by _lock.

    def count(self, counter: Counter, more: int = 1) -> None:
        with self._lock:
            self._counts[counter] += more

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return {counter.value: count for counter, count in self._counts.items()}


class MessageEncoder:
    """Serializes values and keys."""

    def __init__(self, encoder: Serializer, key_encoder: Serializer, stats: ProducerStats, *, is_async: bool) -> None:
        self._encoder = encoder
        self._key_encoder = key_encoder
        self._stats = stats
        self._is_async = is_async
        self._is_identity = type(encoder) is type(key_encoder) is BytesSerializer
        self._valid_topics: set[str] = set()

    def serialize(self, messages: Messages[object]) -> SerializedMessages:
        """Serialize messages. Errors are counted, and raised (sync) or logged while the message is dropped (async)."""
        topics, values, keys = messages.topics, messages.values, messages.keys
        # The partition is derived from the key before serialization.
        partition_keys = _partition_keys(messages.partition_keys, keys)
        if self._is_identity and _are_bytes(values) and _are_bytes(keys) and self._are_valid(topics):
            return Messages(topics, cast(Column, values), cast(Column, keys), partition_keys)
        serialized: SerializedMessages = Messages([], [], [], [])
        for topic, value, key, partition_key in zip(topics, values, keys, partition_keys, strict=True):
            try:
                self._check_topic(topic)
                value_bytes = self._encoder.serialize(topic, value, [])
                key_bytes = self._key_encoder.serialize(topic, key, [])
            except Exception as error:  # a user-defined encoder may raise anything
                self._stats.count(Counter.SERIALIZATION_ERRORS)
                if not self._is_async:
                    raise
                log.error("dropped a message for topic %s: %s", topic, error)
            else:
                serialized.extend(Messages([topic], [value_bytes], [key_bytes], [partition_key]))
        return serialized

    def _are_valid(self, topics: list[str]) -> bool:
        return _STR.issuperset(map(type, topics)) and self._valid_topics.issuperset(topics)

    def _check_topic(self, topic: object) -> None:
        """Refuse an invalid topic name, which would fail the requests for other topics too."""
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
            raise SerializationError(
                f"invalid topic name: expected 1 to 249 of the characters a-z A-Z 0-9 . _ -, got {topic!r}",
                topic=str(topic),
                serializer="",
                value_type=type(topic).__qualname__,
            )
        self._valid_topics.add(topic)


def _partition_keys(partition_keys: list[object], keys: list[object]) -> list[object]:
    if partition_keys.count(None) == len(keys):
        return keys
    return [key if chosen is None else chosen for chosen, key in zip(partition_keys, keys, strict=True)]


def _are_bytes(column: list[object]) -> bool:
    return _BYTES.issuperset(map(type, column))


class DefaultEventHandler:
    """Sends batches. One thread at a time: the send thread, or the holder of a sync producer's lock."""

    def __init__(
        self,
        settings: LegacySettings,
        encoder: MessageEncoder,
        collator: Collator,
        *,
        partition_info: BrokerPartitionInfo,
        pool: ProducerPool,
        stats: ProducerStats,
        clock: WaitingClock,
    ) -> None:
        self._settings = settings
        self._encoder = encoder
        self._collator = collator
        self._partition_info = partition_info
        self._pool = pool
        self._stats = stats
        self._clock = clock
        self._last_refresh: float | None = None
        self._topics_in_use: set[str] = set()  # since the last refresh
        self._reasons: dict[str, str] = {}  # causes of the failures in the last attempt, by topic or partition

    def handle(self, messages: Messages[object]) -> None:
        """Send messages; raise FailedToSendMessageError if some are unsent after the last attempt."""
        timestamp_ms = self._clock.time_ms()
        outstanding = self._encoder.serialize(messages)
        if not outstanding:
            return
        try:
            for attempt in range(self._settings.retries_max + 1):
                if attempt:
                    self._prepare_resend(outstanding, attempt)
                self._refresh_if_due(outstanding)
                outstanding = self._dispatch(outstanding, timestamp_ms)
                if not outstanding:
                    return
            raise self._failure(len(outstanding), len(messages))
        except (FailedToSendMessageError, UnsupportedVersionError):
            self._stats.count(Counter.FAILED_SENDS)
            raise

    def close(self) -> None:
        self._pool.close()

    # -- metadata --------------------------------------------------------------------------------

    def _refresh_if_due(self, messages: SerializedMessages) -> None:
        self._topics_in_use.update(messages.topics)
        interval_ms = self._settings.refresh_interval_ms
        if interval_ms < 0:
            return
        now = self._clock.monotonic_ms()
        if self._last_refresh is None or now - self._last_refresh >= interval_ms:
            self._refresh(self._topics_in_use)
            self._topics_in_use.clear()
            self._last_refresh = now

    def _prepare_resend(self, outstanding: SerializedMessages, attempt: int) -> None:
        attempts, backoff_ms = self._settings.retries_max + 1, self._settings.retry_backoff_ms
        log.warning(
            "sending %d messages failed, attempt %d of %d in %d ms: %s",
            *(len(outstanding), attempt + 1, attempts, backoff_ms, self._reasons_text()),
        )
        self._clock.sleep_ms(backoff_ms)
        self._refresh(set(outstanding.topics))
        self._stats.count(Counter.RESENDS)

    def _refresh(self, topics: Collection[str]) -> None:
        """Refresh metadata; a failure is logged, because the old metadata may still be valid."""
        self._collator.reset_keyless_partitions()
        try:
            self._partition_info.update(topics)
        except HeadraceError as error:
            log.warning("metadata refresh of %d topics failed: %s", len(topics), error)

    # -- partition, group, send ------------------------------------------------------------------

    def _dispatch(self, messages: SerializedMessages, timestamp_ms: int) -> SerializedMessages:
        """Send messages, and return those that failed."""
        self._reasons.clear()
        by_broker, failed = self._collator.collate(messages, self._reasons)
        for broker_id, by_partition in by_broker.items():
            for tp in self._send(broker_id, by_partition, timestamp_ms):
                failed.extend(by_partition[tp])
        return failed

    def _send(self, broker_id: int, by_partition: ByPartition, timestamp_ms: int) -> Collection[TopicPartition]:
        """Send to one broker, and return the partitions that failed."""
        if broker_id == NO_LEADER:
            self._reasons.update({str(tp): "no leader" for tp in by_partition})
            return by_partition
        try:
            response = self._pool.producer(broker_id).produce(self._topic_data(by_partition, timestamp_ms))
            return [] if response is None else self._failed_partitions(response, by_partition)
        except UnsupportedVersionError:
            raise
        except HeadraceError as error:
            if isinstance(error, ConnectionFailedError):
                self._pool.invalidate(broker_id)
            self._reasons.update({str(tp): str(error) for tp in by_partition})
            return by_partition

    def _topic_data(self, by_partition: ByPartition, timestamp_ms: int) -> list[TopicProduceData]:
        magic, codec_of = self._settings.magic, self._settings.codec_of
        topics: dict[str, list[PartitionProduceData]] = {}
        for (topic, partition), messages in by_partition.items():
            data = message_sets.encode_columns(
                messages.keys, messages.values, magic=magic, codec=codec_of(topic), timestamp=timestamp_ms
            )
            topics.setdefault(topic, []).append(PartitionProduceData(partition_index=partition, records=data))
        return [TopicProduceData(name=topic, partition_data=parts) for topic, parts in topics.items()]

    def _failed_partitions(self, response: ProduceResponse, sent: ByPartition) -> list[TopicPartition]:
        codes = {
            (topic.name, each.partition_index): each.error_code
            for topic in response.responses
            for each in topic.partition_responses
        }
        if codes.keys() != sent.keys():
            raise MalformedError(f"expected a response for {len(sent)} partitions, got {len(codes)}", offset=0)
        failed = [tp for tp in sent if codes[tp]]
        self._reasons.update({str(tp): str(BrokerError(code=codes[tp])) for tp in failed})
        return failed

    # -- errors ----------------------------------------------------------------------------------

    def _reasons_text(self) -> str:
        named = [f"{name}: {reason}" for name, reason in list(self._reasons.items())[:REASONS_MAX]]
        more = len(self._reasons) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more else "")

    def _failure(self, unsent_count: int, message_count: int) -> FailedToSendMessageError:
        return FailedToSendMessageError(
            f"{unsent_count} of {message_count} messages failed after {self._settings.retries_max + 1} attempts "
            f"(message.send.max.retries={self._settings.retries_max}): {self._reasons_text()}",
            unsent_count=unsent_count,
        )
