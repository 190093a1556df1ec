"""Which broker leads which partition: topic metadata, from the brokers of `metadata.broker.list`."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection
from typing import NamedTuple

from headrace.client.addresses import Endpoint
from headrace.errors import BrokerError, Code, ConnectionFailedError, HeadraceError, error_name
from headrace.legacy.options import Settings
from headrace.legacy.producer_pool import ProducerPool
from headrace.legacy.sync_producer import Connect, SyncProducer
from headrace.wire.api.metadata import MetadataResponse, MetadataResponseTopic

log = logging.getLogger("headrace")

NO_LEADER = -1


class PartitionAndLeader(NamedTuple):
    partition: int
    leader_id: int  # or NO_LEADER


class BrokerPartitionInfo:
    """What the last metadata said. One thread at a time."""

    def __init__(self, settings: Settings, pool: ProducerPool, connect: Connect, chance: random.Random) -> None:
        self._settings = settings
        self._pool = pool
        self._connect = connect
        self._chance = chance
        self._partitions: dict[str, list[PartitionAndLeader]] = {}
        self._topic_errors: dict[str, int] = {}

    def partitions(self, topic: str) -> list[PartitionAndLeader]:
        """The partitions of a topic in order; metadata are fetched if there are none of it."""
        if topic not in self._partitions:
            self.update({topic})
        found = self._partitions.get(topic)
        if found is None:
            raise BrokerError(f"topic {topic!r}", code=self._topic_errors.get(topic, Code.UNKNOWN_TOPIC_OR_PARTITION))
        return found

    def update(self, topics: Collection[str]) -> None:
        """Ask anew about some topics, and renew the connections to who leads them."""
        response = self._fetch(topics)
        for topic in response.topics:
            self._learn(topic)
        led_by = {partition.leader_id for topic in response.topics for partition in topic.partitions}
        self._pool.update(
            {
                broker.node_id: Endpoint(broker.host, broker.port)
                for broker in response.brokers
                if broker.node_id in led_by
            }
        )

    def _learn(self, topic: MetadataResponseTopic) -> None:
        assert topic.name is not None  # in v0
        if topic.error_code or not topic.partitions:
            # What was known of it stays, as in 0.8: whether it is still true, the next request will show.
            self._topic_errors[topic.name] = topic.error_code or Code.LEADER_NOT_AVAILABLE
            log.warning("no metadata of topic %s: %s", topic.name, error_name(self._topic_errors[topic.name]))
            return
        # Other errors of a partition are about its replicas, which are nothing to a producer.
        self._partitions[topic.name] = sorted(
            PartitionAndLeader(each.partition_index, each.leader_id if each.leader_id >= 0 else NO_LEADER)
            for each in topic.partitions
        )

    def _fetch(self, topics: Collection[str]) -> MetadataResponse:
        """From the first broker that answers, in an order that differs, so that not all clients ask the same one."""
        brokers = list(self._settings.brokers)
        self._chance.shuffle(brokers)
        failures: list[str] = []
        for endpoint in brokers:
            producer = SyncProducer(endpoint, self._settings, self._connect)
            try:
                return producer.topic_metadata(topics)
            except HeadraceError as error:
                failures.append(str(error))
            finally:
                producer.close()
        raise ConnectionFailedError(f"no broker of metadata.broker.list gave metadata: {'; '.join(failures)}")
