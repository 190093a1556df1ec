"""Looks up the partitions of a query and their offsets, on the driver.

A Lookup lives as long as a stream runs, or a batch is planned. It connects on first use.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from headrace.client.admin.groups import GroupAdmin
from headrace.client.blocking import BlockingClient
from headrace.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, Isolation, list_offsets
from headrace.errors import BrokerError, Code, ConfigError
from headrace.spark import consumer_options
from headrace.spark.offset_specs import OffsetSpec
from headrace.spark.planning import Offsets, TopicIds
from headrace.spark.source_options import SourceOptions
from headrace.types import TopicPartition
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

log = logging.getLogger("headrace")

SHOWN_MAX = 10
"""How many partitions a message lists."""
NEWEST_MS_MAX = 1000.0
"""To look up the newest timestamps, on which nothing depends."""

T = TypeVar("T")


class SubscribedPartitions(NamedTuple):
    """The partitions of a subscription, the missing topics and partitions, and the topic ids."""

    partitions: list[TopicPartition]
    missing: list[str]
    topic_ids: TopicIds


class _Topic(NamedTuple):
    partitions: list[TopicPartition]
    topic_id: str | None


class Lookup:
    """Sends requests about topics and offsets to the cluster of a query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        config = consumer_options.resolve(options.kafka)
        self.isolation = Isolation.of(config.of(str, "isolation.level"))
        self._client = BlockingClient(consumer_options.client_settings(config, options.client_id))
        # Before the first metadata request, so that it includes these topics.
        subscription = options.subscription
        for topic in subscription.topics or {tp.topic for tp in subscription.partitions}:
            self._client.metadata.add_topic(topic)

    def close(self) -> None:
        self._client.close()

    # -- partitions ----------------------------------------------------------------------------

    def partitions(self) -> SubscribedPartitions:
        """Return the partitions that the query reads, and the topics and partitions that do not exist."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            topics = {name: topic for name, topic in self._topics(None).items() if matches(name)}
        else:
            topics = self._topics(list(subscription.topics) or sorted({tp.topic for tp in subscription.partitions}))
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
        existing = sorted(tp for topic in topics.values() for tp in topic.partitions)
        if not subscription.partitions:
            missing = [name for name in subscription.topics if name not in topics]
            return SubscribedPartitions(existing, missing, ids)
        missing = [str(tp) for tp in subscription.partitions if tp not in existing]
        return SubscribedPartitions(sorted({*existing}.intersection(subscription.partitions)), missing, ids)

    def _topics(self, names: list[str] | None) -> dict[str, _Topic]:
        """Return those topics that exist; without names, all that are not internal."""
        requested = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=requested, allow_auto_topic_creation=False)

        def request() -> Any:
            return self._client.request(
                message, versions=(4, 12), codes=lambda response: [topic.error_code for topic in response.topics]
            )

        topics: dict[str, _Topic] = {}
        for topic in self._retry(request).topics:
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION or (names is None and topic.is_internal):
                continue
            if topic.error_code:
                raise BrokerError(f"topic {topic.name!r}", code=topic.error_code)
            partitions = [TopicPartition(topic.name, p.partition_index) for p in topic.partitions]
            # Brokers before 2.8, and Metadata before version 10, give no id.
            topic_id = str(uuid.UUID(bytes=bytes(topic.topic_id))) if any(topic.topic_id) else None
            topics[topic.name] = _Topic(partitions, topic_id)
        return topics

    # -- offsets -------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(
        self, partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """Return the end offsets for a reader: with read_committed, where the first open transaction begins.

        A broker that has just become leader may return an end before the `known` one (KAFKA-7703): then retry.
        """
        requested = dict.fromkeys(partitions, LATEST)
        for _ in range(self._options.fetch_retries):
            offsets = self._list(requested)
            if not any(offset < (known or {}).get(tp, 0) for tp, offset in offsets.items()):
                return offsets
            self._pause()
        return self._list(requested)

    def newest_ms(self, partitions: Iterable[TopicPartition]) -> dict[str, int]:
        """Return the newest timestamp of each topic with records. Needs brokers of 3.0 or later (KIP-734)."""
        times = dict.fromkeys(partitions, MAX_TIMESTAMP)
        newest: dict[str, int] = {}
        for tp, listed in list_offsets(self._client, times, self.isolation, NEWEST_MS_MAX, partial=True).items():
            if listed.timestamp >= 0:
                newest[tp.topic] = max(listed.timestamp, newest.get(tp.topic, 0))
        return newest

    def resolve(self, spec: OffsetSpec, partitions: list[TopicPartition], *, without_match: str = "latest") -> Offsets:
        """Return the offsets of a spec. `without_match`, for times after the last record: error or latest."""
        requested = spec.by_partition
        if requested is None:
            assert spec.everywhere is not None
            requested = dict.fromkeys(partitions, spec.everywhere)
        self._check_complete(spec, requested, partitions)
        if not spec.is_time:
            edges = {tp: offset for tp, offset in requested.items() if offset < 0}
            return {**requested, **self._list(edges)}
        offsets = self._list(requested)
        unmatched = [tp for tp, offset in offsets.items() if offset < 0]
        if unmatched and without_match == "error":
            raise ConfigError(
                f"{spec.option}: no record at or after this time in {_shown(unmatched)}; use an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return {**offsets, **self._list(dict.fromkeys(unmatched, LATEST))}

    def _check_complete(
        self, spec: OffsetSpec, requested: Mapping[TopicPartition, int], partitions: list[TopicPartition]
    ) -> None:
        missing, unknown = set(partitions) - requested.keys(), requested.keys() - set(partitions)
        if missing:
            raise ConfigError(f"{spec.option} has no offset for {_shown(missing)}; it has to name every partition")
        if unknown:
            raise ConfigError(f"{spec.option} names {_shown(unknown)}, which the query does not read: leave it out")

    def _list(self, requested: Mapping[TopicPartition, int]) -> Offsets:
        if not requested:
            return {}
        listed = self._retry(lambda: list_offsets(self._client, requested, self.isolation))
        return {tp: listed[tp].offset for tp in requested}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets to a group."""
        GroupAdmin(self._client).alter_group_offsets(group_id, offsets)

    def _retry(self, request: Callable[[], T]) -> T:
        """Send a request; retry after a retriable error."""
        for _ in range(self._options.fetch_retries):
            try:
                return request()
            except BrokerError as error:
                if not error.retriable:
                    raise
                log.info("retrying: %s", error)
            self._pause()
        return request()

    def _pause(self) -> None:
        time.sleep(self._options.fetch_retry_interval_ms / 1000)


def require(missing: Sequence[str]) -> None:
    """Raise if topics or partitions are missing that the query names."""
    if missing:
        raise BrokerError(
            f"{', '.join(missing)}: not on the cluster; create it, or correct the name",
            code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
