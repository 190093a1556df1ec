"""The default event handler: what happens to messages, sync or async, until they are sent or given up.

    serialise → ┌► renew metadata, if it is time ─► partition ─► group by broker ─► send ─► done
                │                                                                    │ failed
                └──────────── renew metadata ◄── sleep retry.backoff.ms ◄────────────┘   message.send.max.retries times

What fails is tried again, whatever the reason, as in 0.8; what has been acknowledged is not. The one error that is
raised at once is that of a broker which takes no message sets at all.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from headrace.errors import BrokerError, ConnectionFailedError, HeadraceError, MalformedError, UnsupportedVersionError
from headrace.legacy.collator import ByPartition, Collator
from headrace.legacy.encoders import MessageEncoder
from headrace.legacy.errors import FailedToSendMessageError
from headrace.legacy.messages import Messages, SerializedMessages
from headrace.legacy.metrics import Counter, ProducerStats
from headrace.legacy.options import Settings
from headrace.legacy.partition_info import NO_LEADER, BrokerPartitionInfo
from headrace.legacy.producer_pool import ProducerPool
from headrace.legacy.waiting import WaitingClock
from headrace.types import TopicPartition
from headrace.wire import legacy
from headrace.wire.api.produce import PartitionProduceData, ProduceResponse, TopicProduceData

log = logging.getLogger("headrace")

REASONS_MAX = 3
"""So many failed partitions are named in an error."""


class DefaultEventHandler:
    """One thread at a time: the send thread, or who holds the lock of a sync producer."""

    def __init__(
        self,
        settings: Settings,
        encoder: MessageEncoder,
        collator: Collator,
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
        self._reasons: dict[str, str] = {}  # why what failed in the last attempt did, by topic or partition

    def handle(self, messages: Messages[object]) -> None:
        """Send messages; FailedToSendMessageError if some are left after the last attempt."""
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
            "%d messages failed, attempt %d of %d in %d ms: %s",
            *(len(outstanding), attempt + 1, attempts, backoff_ms, self._why()),
        )
        self._clock.sleep_ms(backoff_ms)
        self._refresh(set(outstanding.topics))
        self._stats.count(Counter.RESENDS)

    def _refresh(self, topics: Collection[str]) -> None:
        """Metadata that cannot be had now may be had at the next attempt, and the old ones may still do."""
        self._collator.forget_choices()
        try:
            self._partition_info.update(topics)
        except HeadraceError as error:
            log.warning("metadata of %d topics were not renewed: %s", len(topics), error)

    # -- partition, group, send ------------------------------------------------------------------

    def _dispatch(self, messages: SerializedMessages, timestamp_ms: int) -> SerializedMessages:
        """Send messages; those that failed."""
        self._reasons.clear()
        by_broker, failed = self._collator.collate(messages, self._reasons)
        for broker_id, by_partition in by_broker.items():
            for tp in self._send(broker_id, by_partition, timestamp_ms):
                failed.extend(by_partition[tp])
        return failed

    def _send(self, broker_id: int, by_partition: ByPartition, timestamp_ms: int) -> Collection[TopicPartition]:
        """Send to one broker; the partitions that failed."""
        if broker_id == NO_LEADER:
            self._reasons.update({str(tp): "there is no leader" for tp in by_partition})
            return by_partition
        try:
            response = self._pool.producer(broker_id).produce(self._topic_data(by_partition, timestamp_ms))
            return [] if response is None else self._failed_partitions(response, by_partition)
        except UnsupportedVersionError:
            raise
        except HeadraceError as error:
            if isinstance(error, ConnectionFailedError):
                self._pool.doubt(broker_id)
            self._reasons.update({str(tp): str(error) for tp in by_partition})
            return by_partition

    def _topic_data(self, by_partition: ByPartition, timestamp_ms: int) -> list[TopicProduceData]:
        magic, codec_of = self._settings.magic, self._settings.codec_of
        topics: dict[str, list[PartitionProduceData]] = {}
        for (topic, partition), messages in by_partition.items():
            data = legacy.encode_columns(
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
            raise MalformedError(f"expected an answer about {len(sent)} partitions, got {len(codes)}", offset=0)
        failed = [tp for tp in sent if codes[tp]]
        self._reasons.update({str(tp): str(BrokerError(code=codes[tp])) for tp in failed})
        return failed

    # -- telling ---------------------------------------------------------------------------------

    def _why(self) -> str:
        named = [f"{what}: {why}" for what, why in list(self._reasons.items())[:REASONS_MAX]]
        more = len(self._reasons) - len(named)
        return "; ".join(named) + (f"; and {more} more" if more else "")

    def _failure(self, unsent_count: int, message_count: int) -> FailedToSendMessageError:
        return FailedToSendMessageError(
            f"{unsent_count} of {message_count} messages were not sent in {self._settings.retries_max + 1} attempts "
            f"(message.send.max.retries is {self._settings.retries_max}): {self._why()}",
            unsent_count=unsent_count,
        )
