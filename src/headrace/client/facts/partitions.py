"""Existing partitions, and their start and end offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import EARLIEST, LATEST
from headrace.errors import NotFoundError


def chosen_partitions(admin: AdminClient, numbers_by_topic: Mapping[str, Iterable[int] | None]) -> list[TopicPartition]:
    """Return partitions by topic and number (None: all of the topic); raises NotFoundError for missing ones."""
    existing = existing_partitions(admin, numbers_by_topic)
    chosen: set[TopicPartition] = set()
    for topic, numbers in numbers_by_topic.items():
        of_topic = {tp for tp in existing if tp.topic == topic}
        if not of_topic:
            raise NotFoundError(f"topic {topic!r} does not exist")
        for number in [tp.partition for tp in of_topic] if numbers is None else numbers:
            tp = TopicPartition(topic, number)
            if tp not in of_topic:
                raise NotFoundError(f"topic {topic!r} has {len(of_topic)} partitions, but not partition {number}")
            chosen.add(tp)
    return sorted(chosen)


def bounds(
    admin: AdminClient, partitions: Iterable[TopicPartition], *, led_only: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """Return start and end offsets of existing partitions; with `led_only`, of those with a leader."""
    partitions = list(partitions)
    existing = existing_partitions(admin, {tp.topic for tp in partitions}, led_only=led_only)
    known = [tp for tp in partitions if tp in existing]
    if not known:
        return {}
    starts = admin.list_offsets(dict.fromkeys(known, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(known, LATEST))
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in known}


def existing_partitions(admin: AdminClient, topics: Iterable[str], *, led_only: bool = False) -> set[TopicPartition]:
    """Return the partitions of existing topics; with `led_only`, those with a leader."""
    names = sorted({*topics})
    described = admin.describe_topics(names, missing_ok=True) if names else {}
    return {
        TopicPartition(name, info.partition)
        for name, topic in described.items()
        for info in topic.partitions
        if info.leader != NO_LEADER or not led_only
    }
