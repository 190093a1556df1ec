"""What the cluster says about the partitions of a query: which there are, and where they begin and end.

One lives on the driver for as long as a stream runs, or a batch is planned. It connects when it is first asked.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from headrace.client.admin.groups import GroupAdmin
from headrace.client.blocking import BlockingClient, TopicPartition
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code, ConfigError
from headrace.spark import consumer_options
from headrace.spark.offset_specs import OffsetSpec
from headrace.spark.planning import Offsets
from headrace.spark.source_options import SourceOptions
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic

log = logging.getLogger("headrace")

SHOWN_MAX = 10
"""As many partitions as a message lists."""

T = TypeVar("T")


class Found(NamedTuple):
    """Partitions of a subscription, and topics it names that are not there."""

    partitions: list[TopicPartition]
    missing: list[str]


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

    def partitions(self) -> list[TopicPartition]:
        """What the query reads. A topic or a partition that is named but not there is an error."""
        found = self.find()
        if found.missing:
            raise BrokerError(
                f"{', '.join(found.missing)}: not on the cluster; create it, or correct the name",
                code=Code.UNKNOWN_TOPIC_OR_PARTITION,
            )
        return found.partitions

    def find(self) -> Found:
        """The same, but what is missing is only listed."""
        subscription = self._options.subscription
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            topics = self._topics(None)
            return Found(sorted(tp for topic, tps in topics.items() if matches(topic) for tp in tps), [])
        names = list(subscription.topics) or list(dict.fromkeys(tp.topic for tp in subscription.partitions))
        topics = self._topics(names)
        if subscription.topics:
            missing = [name for name in names if name not in topics]
            return Found(sorted(tp for tps in topics.values() for tp in tps), missing)
        there = {tp for tps in topics.values() for tp in tps}
        wanted = subscription.partitions
        return Found(sorted(tp for tp in wanted if tp in there), [str(tp) for tp in wanted if tp not in there])

    def _topics(self, names: list[str] | None) -> dict[str, list[TopicPartition]]:
        """Partitions of those topics that there are; of all that are not internal, if no names are given."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        message = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)

        def ask() -> Any:
            return self._client.ask(
                message, versions=(4, 12), codes=lambda answer: [topic.error_code for topic in answer.topics]
            )

        found: dict[str, list[TopicPartition]] = {}
        for topic in self._again(ask).topics:
            if topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION or (names is None and topic.is_internal):
                continue
            if topic.error_code:
                raise BrokerError(f"topic {topic.name!r}", code=topic.error_code)
            found[topic.name] = [TopicPartition(topic.name, p.partition_index) for p in topic.partitions]
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


def _shown(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in sorted(partitions)]
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
