"""What the cluster says about the partitions of a query: which there are, and where they begin and end.

One lives on the driver for as long as a stream runs, or a batch is planned. It connects when it is first asked.
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
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code, ConfigError
from headrace.spark import consumer_options
from headrace.spark.offset_specs import OffsetSpec
from headrace.spark.planning import Offsets, TopicIds
from headrace.spark.source_options import SourceOptions
from headrace.types import TopicPartition
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

log = logging.getLogger("headrace")

SHOWN_MAX = 10
"""As many partitions as a message lists."""

T = TypeVar("T")


class Found(NamedTuple):
    """Partitions of a subscription, topics it names that are not there, and the ids of those that are."""

    partitions: list[TopicPartition]
    missing: list[str]
    topic_ids: TopicIds


class _Topic(NamedTuple):
    partitions: list[TopicPartition]
    topic_id: str | None


class Lookup:
    """Asks a cluster, as the options say."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        config = consumer_options.resolve(options.kafka)
        self.isolation = Isolation.of(config.of(str, "isolation.level"))
        self._client = BlockingClient(consumer_options.client_settings(config, options.client_id))
        # Before the first metadata are asked for: else these topics would have to wait for the next.
        subscription = options.subscription
        for topic in subscription.topics or {tp.topic for tp in subscription.partitions}:
            self._client.metadata.add_topic(topic)

    def close(self) -> None:
        self._client.close()

    # -- partitions ----------------------------------------------------------------------------

    def find(self) -> Found:
        """What the query reads, with the topics and partitions that are named but do not exist."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            topics = {name: topic for name, topic in self._topics(None).items() if matches(name)}
        else:
            topics = self._topics(list(subscription.topics) or sorted({tp.topic for tp in subscription.partitions}))
        ids = {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
        there = sorted(tp for topic in topics.values() for tp in topic.partitions)
        if not subscription.partitions:
            return Found(there, [name for name in subscription.topics if name not in topics], ids)
        wanted, known = subscription.partitions, set(there)
        return Found(sorted(known.intersection(wanted)), [str(tp) for tp in wanted if tp not in known], ids)

    def _topics(self, names: list[str] | None) -> dict[str, _Topic]:
        """Those topics that there are; all that are not internal, if no names are given."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)

        def ask() -> Any:
            return self._client.request(
                message, versions=(4, 12), codes=lambda answer: [topic.error_code for topic in answer.topics]
            )

        found: dict[str, _Topic] = {}
        for topic in self._again(ask).topics:
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION or (names is None and topic.is_internal):
                continue
            if topic.error_code:
                raise BrokerError(f"topic {topic.name!r}", code=topic.error_code)
            partitions = [TopicPartition(topic.name, p.partition_index) for p in topic.partitions]
            # Brokers before 2.8, and Metadata before version 10, give no id.
            topic_id = str(uuid.UUID(bytes=bytes(topic.topic_id))) if any(topic.topic_id) else None
            found[topic.name] = _Topic(partitions, topic_id)
        return found

    # -- offsets -------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(
        self, partitions: Iterable[TopicPartition], known: Mapping[TopicPartition, int] | None = None
    ) -> Offsets:
        """The ends as far as a reader may go: under read_committed, where the first open transaction begins.

        A broker that has just become leader may know less than the last one did (KAFKA-7703): with an end before one
        that is `known`, it is asked again.
        """
        wanted = dict.fromkeys(partitions, LATEST)
        for _ in range(self._options.fetch_retries):
            found = self._list(wanted)
            if not any(offset < (known or {}).get(tp, 0) for tp, offset in found.items()):
                return found
            self._pause()
        return self._list(wanted)

    def resolve(self, spec: OffsetSpec, partitions: list[TopicPartition], *, without_match: str = "latest") -> Offsets:
        """Offsets from what the user said. `without_match` is for times that no record has reached: error or latest."""
        wanted = spec.by_partition
        if wanted is None:
            assert spec.everywhere is not None
            wanted = dict.fromkeys(partitions, spec.everywhere)
        self._check_complete(spec, wanted, partitions)
        if not spec.is_time:
            edges = {tp: offset for tp, offset in wanted.items() if offset < 0}
            return {**wanted, **self._list(edges)}
        found = self._list(wanted)
        unmatched = [tp for tp, offset in found.items() if offset < 0]
        if unmatched and without_match == "error":
            raise ConfigError(
                f"{spec.option}: no record so late in {_shown(unmatched)}; take an earlier time, or set "
                "startingOffsetsByTimestampStrategy to latest"
            )
        return {**found, **self._list(dict.fromkeys(unmatched, LATEST))}

    def _check_complete(
        self, spec: OffsetSpec, wanted: Mapping[TopicPartition, int], partitions: list[TopicPartition]
    ) -> None:
        missing, unknown = set(partitions) - wanted.keys(), wanted.keys() - set(partitions)
        if missing:
            raise ConfigError(f"{spec.option} says nothing of {_shown(missing)}; it has to name every partition")
        if unknown:
            raise ConfigError(f"{spec.option} names {_shown(unknown)}, which the query does not read: leave it out")

    def _list(self, wanted: Mapping[TopicPartition, int]) -> Offsets:
        if not wanted:
            return {}
        found = self._again(lambda: list_offsets(self._client, wanted, self.isolation))
        return {tp: found[tp].offset for tp in wanted}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Tell a group how far the query is."""
        GroupAdmin(self._client).alter_group_offsets(group_id, offsets)

    def _again(self, ask: Callable[[], T]) -> T:
        """Ask, and again if a broker says that it may work later."""
        for _ in range(self._options.fetch_retries):
            try:
                return ask()
            except BrokerError as error:
                if not error.retriable:
                    raise
                log.info("asking again: %s", error)
            self._pause()
        return ask()

    def _pause(self) -> None:
        time.sleep(self._options.fetch_retry_interval_ms / 1000)


def require(missing: Sequence[str]) -> None:
    """Refuse to begin while something is missing that the query names."""
    if missing:
        raise BrokerError(
            f"{', '.join(missing)}: not on the cluster; create it, or correct the name",
            code=Code.UNKNOWN_TOPIC_OR_PARTITION,
        )


def _shown(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
