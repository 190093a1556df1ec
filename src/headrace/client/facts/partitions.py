"""Partitions by name, and how far each of them reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import EARLIEST, LATEST
from headrace.errors import NotFoundError


def chosen_partitions(admin: AdminClient, wanted: Mapping[str, Iterable[int] | None]) -> list[TopicPartition]:
    """Partitions by topic and number, None for all of a topic; those that are not there are an error."""
    there = existing_partitions(admin, wanted)
    found: set[TopicPartition] = set()
    for topic, numbers in wanted.items():
        of_topic = {tp for tp in there if tp.topic == topic}
        if not of_topic:
            raise NotFoundError(f"there is no topic {topic!r}")
        for number in [tp.partition for tp in of_topic] if numbers is None else numbers:
            tp = TopicPartition(topic, number)
            if tp not in of_topic:
                raise NotFoundError(f"topic {topic!r} has {len(of_topic)} partitions, and none with number {number}")
            found.add(tp)
    return sorted(found)


def bounds(
    admin: AdminClient, wanted: Iterable[TopicPartition], *, led_only: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """First and end offset of those partitions that are there; with `led_only`, that have somebody to be asked now."""
    wanted = list(wanted)
    there = existing_partitions(admin, {tp.topic for tp in wanted}, led_only=led_only)
    known = [tp for tp in wanted if tp in there]
    if not known:
        return {}
    starts = admin.list_offsets(dict.fromkeys(known, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(known, LATEST))
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in known}


def existing_partitions(admin: AdminClient, topics: Iterable[str], *, led_only: bool = False) -> set[TopicPartition]:
    """All partitions of those topics that are there; with `led_only`, those that have a leader now."""
    names = sorted({*topics})
    described = admin.describe_topics(names, missing_ok=True) if names else {}
    return {
        TopicPartition(name, info.partition)
        for name, topic in described.items()
        for info in topic.partitions
        if info.leader != NO_LEADER or not led_only
    }
