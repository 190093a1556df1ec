"""Messages by leader and partition: where each of them goes."""

from __future__ import annotations

import random
from collections import defaultdict

from headrace.errors import HeadraceError
from headrace.legacy.messages import Messages, SerializedMessages
from headrace.legacy.partition_info import NO_LEADER, BrokerPartitionInfo, PartitionAndLeader
from headrace.legacy.partitioner import Partitioner
from headrace.types import TopicPartition

ByPartition = dict[TopicPartition, SerializedMessages]


class Collator:
    """Knows the partitioner, and which partition messages without a key go to at present. One thread at a time."""

    def __init__(self, partition_info: BrokerPartitionInfo, partitioner: Partitioner, chance: random.Random) -> None:
        self._partition_info = partition_info
        self._partitioner = partitioner
        self._chance = chance
        self._without_key: dict[str, int] = {}  # a place among its partitions, by topic

    def forget_choices(self) -> None:
        """With a refresh: messages without a key may go elsewhere from now on."""
        self._without_key.clear()

    def collate(
        self, messages: SerializedMessages, reasons: dict[str, str]
    ) -> tuple[dict[int, ByPartition], SerializedMessages]:
        """Messages by leader and partition, and those for which there is no saying where; `reasons` says why."""
        by_broker: dict[int, ByPartition] = {}
        failed: SerializedMessages = Messages([], [], [], [])
        for topic, of_topic in _by_topic(messages).items():
            try:
                partitions = self._partition_info.partitions(topic)
            except HeadraceError as error:
                reasons[topic] = str(error)
                failed.extend(of_topic)
                continue
            for place, some in self._by_partition(topic, partitions, of_topic, failed, reasons).items():
                partition, leader_id = partitions[place]
                by_broker.setdefault(leader_id, {})[TopicPartition(topic, partition)] = some
        return by_broker, failed

    def _by_partition(
        self,
        topic: str,
        partitions: list[PartitionAndLeader],
        messages: SerializedMessages,
        failed: SerializedMessages,
        reasons: dict[str, str],
    ) -> dict[int, SerializedMessages]:
        if messages.partition_keys.count(None) == len(messages):
            return {self._place_without_key(topic, partitions): messages}
        rows: defaultdict[int, list[int]] = defaultdict(list)
        for row, key in enumerate(messages.partition_keys):
            try:
                rows[self._place(topic, partitions, key)].append(row)
            except Exception as error:  # a partitioner of the user's may raise anything
                reasons[topic] = str(error)
                failed.extend(messages.rows([row]))
        return {place: messages.rows(some) for place, some in rows.items()}

    def _place(self, topic: str, partitions: list[PartitionAndLeader], key: object) -> int:
        if key is None:
            return self._place_without_key(topic, partitions)
        place = self._partitioner.partition(key, len(partitions))
        if place not in range(len(partitions)):
            name = type(self._partitioner).__qualname__
            raise ValueError(f"{name} chose partition {place!r} of topic {topic!r}, which has {len(partitions)}")
        return place

    def _place_without_key(self, topic: str, partitions: list[PartitionAndLeader]) -> int:
        """Any partition that has a leader, the same one until the next refresh: fewer connections, larger sets."""
        place = self._without_key.get(topic)
        if place is None:
            led = [place for place, each in enumerate(partitions) if each.leader_id != NO_LEADER]
            place = self._without_key[topic] = self._chance.choice(led or range(len(partitions)))
        return place


def _by_topic(messages: SerializedMessages) -> dict[str, SerializedMessages]:
    topics = messages.topics
    if topics.count(topics[0]) == len(topics):
        return {topics[0]: messages}
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, topic in enumerate(topics):
        rows[topic].append(row)
    return {topic: messages.rows(some) for topic, some in rows.items()}
