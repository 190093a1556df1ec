"""Partitions by name, and how far each of them reaches."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.cli.output import NotFoundError, WrongUsageError
from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.offsets import EARLIEST, LATEST


def named_partitions(admin: AdminClient, topics: Iterable[str]) -> list[TopicPartition]:
    """What --topic names, as TOPIC or TOPIC:0,2: all partitions of a topic, or some."""
    asked = [text.partition(":") for text in topics]
    there = existing_partitions(admin, {topic for topic, _, _ in asked})
    found: set[TopicPartition] = set()
    for topic, colon, numbers in asked:
        of_topic = {tp for tp in there if tp.topic == topic}
        if not of_topic:
            raise NotFoundError(f"there is no topic {topic!r}; `headrace topic list` shows those there are")
        if not colon:
            found |= of_topic
            continue
        for number in numbers.split(","):
            if not number.strip().isdecimal():
                raise WrongUsageError(f"--topic takes TOPIC or TOPIC:0,2, not {topic}:{numbers}")
            tp = TopicPartition(topic, int(number))
            if tp not in of_topic:
                raise NotFoundError(f"topic {topic!r} has {len(of_topic)} partitions, and none with number {number}")
            found.add(tp)
    return sorted(found)


def bounds(admin: AdminClient, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """First and end offset of those partitions that are there."""
    wanted = list(wanted)
    there = existing_partitions(admin, {tp.topic for tp in wanted})
    known = [tp for tp in wanted if tp in there]
    if not known:
        return {}
    starts = admin.list_offsets(dict.fromkeys(known, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(known, LATEST))
    return {tp: (starts[tp].offset, ends[tp].offset) for tp in known}


def existing_partitions(admin: AdminClient, topics: Iterable[str]) -> set[TopicPartition]:
    """All partitions of those topics that are there."""
    names = sorted({*topics}.intersection(admin.list_topics(internal=True)))
    described = admin.describe_topics(names) if names else {}
    return {TopicPartition(name, info.partition) for name, topic in described.items() for info in topic.partitions}
