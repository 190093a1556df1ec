"""The topics of the catalog and the state of their partitions."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.broker.catalog.journal import Event
from headrace.errors import BrokerError, Code

NAME_CHARACTERS_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})
NO_LEADER = -1
DELETED_KEPT_MAX = 1_000
"""How many deleted topic ids are kept: brokers that were down delete only replicas of these topics."""


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless the topic name is valid, also as a folder name."""
    if not name or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise BrokerError(
            f"invalid topic name {name[:300]!r}: expected 1 to {NAME_CHARACTERS_MAX} of a-z A-Z 0-9 . _ -, not . or ..",
            code=Code.INVALID_TOPIC_EXCEPTION,
        )


@dataclass(slots=True)
class PartitionRegistration:
    """The replicas, leader and epochs of a partition, as in Kafka's metadata image."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int = 0  # counts every change; leader_epoch counts changes of the leader
    elr: tuple[int, ...] = ()  # eligible leader replicas: not in sync, but with all committed records (KIP-966)
    last_known_elr: tuple[int, ...] = ()  # the last leader, if no eligible replica is left
    adding: tuple[int, ...] = ()  # replicas added by a reassignment
    removing: tuple[int, ...] = ()  # replicas removed when the added ones have caught up


@dataclass(slots=True)
class Topic:
    """A topic of the catalog."""

    name: str
    id: bytes  # 16 bytes; a later topic of the same name has another id
    partitions: list[PartitionRegistration]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


@dataclass(frozen=True, slots=True)
class Leaderless:
    """A partition without a leader: it can be neither read nor written."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    candidates: tuple[int, ...]  # brokers known to have all acknowledged records
    last_leaders: tuple[int, ...]  # if there are no candidates

    def __str__(self) -> str:
        fact = f"{self.topic}-{self.partition} has no leader"
        if self.candidates:
            return f"{fact}: it gets one when broker {_either(self.candidates)} is back with its data"
        first = _either(self.last_leaders or self.replicas[:1])
        return (
            f"{fact}: every broker that had all acknowledged records has restarted without some of its data. Stop "
            f"broker {first} and restore its data folder, if you have a copy. To continue without the lost records: "
            f"headrace topic config {self.topic} --set unclean.leader.election.enable=true, and then --delete "
            f"unclean.leader.election.enable. Broker {first} becomes the leader, or another replica if it is stopped: "
            "stop it first if it has lost more than the others"
        )


def _either(node_ids: Sequence[int]) -> str:
    return " or ".join(map(str, node_ids))


def _always_live(node_id: int) -> bool:
    return True


IsLive = Callable[[int], bool]
"""Returns whether a broker is live."""


class Topics:
    """All topics, by name and by id."""

    # "topic-tombstone" is a topic that was deleted earlier, "topic-lost" one that a snapshot does not contain.
    kinds = ("topic", "topic-deleted", "topic-tombstone", "topic-lost", "partitions-added", "partition")

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.deleted: dict[bytes, str] = {}  # name by id, the latest last

    @staticmethod
    def creation(name: str, replicas: Sequence[Sequence[int]], is_live: IsLive = _always_live) -> Event:
        """Return the event that creates a topic; `replicas` are those of each partition, the leader first.

        Replicas on brokers that are not live join later. Each partition needs at least one live replica.
        """
        partitions = [_new_partition(brokers, is_live) for brokers in replicas]
        return {"kind": "topic", "name": name, "id": uuid.uuid4().hex, "partitions": partitions}

    @staticmethod
    def existing(topic: Topic) -> Event:
        """Return the event that creates a topic in its current state."""
        partitions = [_to_json(partition) for partition in topic.partitions]
        return {"kind": "topic", "name": topic.name, "id": topic.id.hex(), "partitions": partitions}

    @staticmethod
    def deletion(topic: Topic) -> Event:
        return _topic_event("topic-deleted", topic.id, topic.name)

    @staticmethod
    def growth(topic: Topic, replicas: Sequence[Sequence[int]], is_live: IsLive = _always_live) -> Event:
        """Return the event that adds partitions."""
        partitions = [_new_partition(brokers, is_live) for brokers in replicas]
        return {"kind": "partitions-added", "id": topic.id.hex(), "partitions": partitions}

    @staticmethod
    def partition_change(topic: Topic, index: int, partition: PartitionRegistration) -> Event:
        """Return the event that replaces the state of a partition."""
        return {"kind": "partition", "id": topic.id.hex(), "index": index, "place": _to_json(partition)}

    @staticmethod
    def not_led_by(node_id: int, event: Event) -> Event:
        """Return an event of any section without the leaderships of a broker."""
        if "partitions" in event:
            return {**event, "partitions": [_without_leader(node_id, row) for row in event["partitions"]]}
        if "place" in event:
            return {**event, "place": _without_leader(node_id, event["place"])}
        return event

    def apply(self, event: Event) -> None:
        topic_id = bytes.fromhex(event["id"])
        kind = event["kind"]
        if kind == "topic":
            topic = Topic(event["name"], topic_id, [_from_json(row) for row in event["partitions"]])
            self.by_name[topic.name] = self.by_id[topic_id] = topic
        elif kind == "topic-deleted":
            self._remove(topic_id)
            self._add_tombstone(topic_id, event["name"])
        elif kind == "topic-tombstone":
            self._add_tombstone(topic_id, event["name"])
        elif kind == "topic-lost":
            self._remove(topic_id)
        elif kind == "partitions-added":
            self.by_id[topic_id].partitions += [_from_json(row) for row in event["partitions"]]
        else:
            self.by_id[topic_id].partitions[event["index"]] = _from_json(event["place"])

    def leaderless(self) -> list[Leaderless]:
        """Return the partitions without a leader."""
        return [
            Leaderless(topic.name, index, partition.replicas, partition.isr or partition.elr, partition.last_known_elr)
            for topic in self.by_name.values()
            for index, partition in enumerate(topic.partitions)
            if partition.leader == NO_LEADER
        ]

    def _remove(self, topic_id: bytes) -> None:
        topic = self.by_id.pop(topic_id)
        del self.by_name[topic.name]

    def _add_tombstone(self, topic_id: bytes, name: str) -> None:
        self.deleted[topic_id] = name
        if len(self.deleted) > DELETED_KEPT_MAX:
            del self.deleted[next(iter(self.deleted))]

    def snapshot(self) -> Iterator[Event]:
        for topic_id, name in self.deleted.items():
            yield _topic_event("topic-tombstone", topic_id, name)
        yield from map(self.existing, self.by_name.values())

    def changes_to(self, target: Topics) -> Iterator[Event]:
        """Yield events that turn this section into `target`. Topics unknown to `target` are lost, not deleted."""
        for topic_id, topic in self.by_id.items():
            if topic_id in target.deleted:
                yield self.deletion(topic)
            elif topic_id not in target.by_id:
                yield _topic_event("topic-lost", topic_id, topic.name)
        known = {*self.deleted, *self.by_id}
        for event in target.snapshot():
            if event["kind"] == "topic-tombstone":
                if bytes.fromhex(event["id"]) not in known:
                    yield event
                continue
            before = self.by_id.get(bytes.fromhex(event["id"]))
            if before is None:
                yield event
                continue
            partitions = target.by_id[before.id].partitions
            if len(partitions) > len(before.partitions):
                rows = event["partitions"][len(before.partitions) :]
                yield {"kind": "partitions-added", "id": event["id"], "partitions": rows}
            for index, (old, new) in enumerate(zip(before.partitions, partitions, strict=False)):
                if old != new:
                    yield {**self.partition_change(before, index, new), "from_snapshot": True}


def _topic_event(kind: str, topic_id: bytes, name: str) -> Event:
    return {"kind": kind, "id": topic_id.hex(), "name": name}


_Json = list[Any]
_OPTIONAL = (0, (), (), (), ())
"""Defaults of the optional fields of a partition, which are left out of its JSON if all have them."""


def _new_partition(replicas: Sequence[int], is_live: IsLive) -> _Json:
    isr = tuple(filter(is_live, replicas))
    return _to_json(PartitionRegistration(tuple(replicas), isr, isr[0], 0))


def _to_json(partition: PartitionRegistration) -> _Json:
    row: _Json = [partition.leader, partition.leader_epoch, list(partition.replicas), list(partition.isr)]
    optional = (
        partition.partition_epoch,
        partition.elr,
        partition.last_known_elr,
        partition.adding,
        partition.removing,
    )
    return row if optional == _OPTIONAL else [*row, *optional]


def _from_json(row: _Json) -> PartitionRegistration:
    leader, leader_epoch, replicas, isr, *optional = row
    partition_epoch, *sets = optional or _OPTIONAL
    return PartitionRegistration(
        tuple(replicas), tuple(isr), leader, leader_epoch, partition_epoch, *(tuple(nodes) for nodes in sets)
    )


def _without_leader(node_id: int, row: _Json) -> _Json:
    return [NO_LEADER, *row[1:]] if row[0] == node_id else row
