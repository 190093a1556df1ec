"""Topics as plain values with the stable names of the JSON output; partitions and their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.client.admin import AdminClient, ConfigResource, ResourceKind, TopicPartition
from headrace.client.metadata import NO_LEADER
from headrace.client.offsets import EARLIEST, LATEST, PartitionOffset, list_offsets
from headrace.errors import ConnectionFailedError, HeadraceError, NotFoundError, TimedOutError
from headrace.wire.api.cluster_admin import DescribeLogDirsRequest, TopicPartitions

OFFLINE_MS_MAX = 5_000
"""A partition whose leader returns no offsets for this long is shown as offline."""


def topic_summaries(admin: AdminClient, *, internal: bool) -> list[dict[str, Any]]:
    """Return a summary of every topic."""
    names = admin.list_topics(internal=internal)
    if not names:
        return []
    topics = admin.describe_topics(names)
    sizes = partition_sizes(
        admin, {TopicPartition(n, p.partition): p.leader for n, t in topics.items() for p in t.partitions}
    )
    summaries = []
    for name in names:
        partitions = topics[name].partitions
        known = [sizes.get(TopicPartition(name, info.partition)) for info in partitions]
        summaries.append(
            {
                "topic": name,
                "partitions": len(partitions),
                "replication_factor": max((len(info.replicas) for info in partitions), default=0),
                "internal": topics[name].internal,
                "size_bytes": None if None in known else sum(size or 0 for size in known),
            }
        )
    return summaries


def describe_topic(admin: AdminClient, name: str) -> dict[str, Any]:
    """Return a topic with its partitions, and its options that differ from the defaults."""
    topic = admin.describe_topics([name])[name]
    leaders = {TopicPartition(name, info.partition): info.leader for info in topic.partitions}
    led = [tp for tp, leader in leaders.items() if leader != NO_LEADER]  # the others cannot be queried
    starts = _offsets_online(admin, led, EARLIEST)
    ends = _offsets_online(admin, starts, LATEST)
    sizes = partition_sizes(admin, {tp: leaders[tp] for tp in ends})
    return {
        "topic": name,
        "topic_id": str(topic.topic_id),
        "internal": topic.internal,
        "partitions": [
            {
                "partition": info.partition,
                "leader": None if info.leader == NO_LEADER else info.leader,
                "leader_epoch": info.leader_epoch,
                "replicas": list(info.replicas),
                "isr": list(info.isr),
                "start_offset": starts[tp].offset if tp in starts else None,
                "end_offset": ends[tp].offset if tp in ends else None,
                "size_bytes": sizes.get(tp),
                "offline": tp not in ends,
            }
            for info in topic.partitions
            for tp in (TopicPartition(name, info.partition),)
        ],
        "configs": {entry["name"]: entry["value"] for entry in topic_configs(admin, name) if not entry["is_default"]},
    }


def _offsets_online(
    admin: AdminClient, partitions: Iterable[TopicPartition], time_ms: int
) -> dict[TopicPartition, PartitionOffset]:
    """Return the offsets of the partitions whose leaders have them; the others are offline."""
    times = dict.fromkeys(partitions, time_ms)
    if not times:
        return {}
    timeout_ms = min(OFFLINE_MS_MAX, admin.client.settings.timeout_ms)
    return list_offsets(admin.client, times, timeout_ms=timeout_ms, partial=True)


def topic_configs(admin: AdminClient, name: str) -> list[dict[str, Any]]:
    """Return all options of a topic. An option that a broker sets for all topics counts as a default."""
    resource = ConfigResource(ResourceKind.TOPIC, name)
    entries = admin.describe_configs([resource])[resource]
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "source": entry.source.name.lower(),
            "is_default": entry.source.name != "TOPIC",
        }
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


def partition_sizes(admin: AdminClient, leaders: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the bytes on the leaders' disks; without partitions that are not authorized.

    Unreachable leaders are left out, too; raises if all are unreachable.
    """
    numbers_by_topic: dict[str, list[int]] = {}
    for tp in leaders:
        numbers_by_topic.setdefault(tp.topic, []).append(tp.partition)
    request = DescribeLogDirsRequest(
        topics=[TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in numbers_by_topic.items()]
    )
    sizes: dict[TopicPartition, int] = {}
    nodes = {leader for leader in leaders.values() if leader != NO_LEADER}
    unreachable: list[HeadraceError] = []
    for node_id in nodes:
        try:
            response = admin.client.request(request, node_id)
        except (ConnectionFailedError, TimedOutError) as error:
            unreachable.append(error)
            continue
        except HeadraceError:
            continue
        for result in response.results:
            for topic in result.topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name, part.partition_index)
                    if leaders.get(tp) == node_id and not part.is_future_key:
                        sizes[tp] = part.partition_size
    if unreachable and len(unreachable) == len(nodes):
        raise unreachable[0]
    return sizes


# -- partitions --------------------------------------------------------------------------------------


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


def offset_bounds(
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
