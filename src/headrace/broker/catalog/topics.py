"""Topics and where their partitions are."""

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
INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})
NO_LEADER = -1
DELETED_KEPT_MAX = 1_000
"""Topics that were deleted last: brokers that were away meanwhile may remove their replicas, and no others."""


def check_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless a topic may be called that (and a folder made of it)."""
    if not name or name in (".", "..") or len(name) > NAME_CHARACTERS_MAX or not _NAME.fullmatch(name):
        raise BrokerError(
            f"topic name {name[:300]!r}: 1 to {NAME_CHARACTERS_MAX} of a-z A-Z 0-9 . _ - are allowed, but not . or ..",
            code=Code.INVALID_TOPIC_EXCEPTION,
        )


@dataclass(slots=True)
class PartitionPlace:
    """Where a partition is, and who leads it."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int  # -1: nobody
    leader_epoch: int
    partition_epoch: int = 0  # counts every change, leader_epoch those of the leader
    elr: tuple[int, ...] = ()  # not in sync, but known to have all that is committed (KIP-966)
    last_known_elr: tuple[int, ...] = ()  # who led last, when nobody is left of whom that is known
    adding: tuple[int, ...] = ()  # replicas that are to come,
    removing: tuple[int, ...] = ()  # and to go when those have caught up


@dataclass(slots=True)
class Topic:
    """A topic of the catalog."""

    name: str
    id: bytes  # 16 of them; a topic of the same name made later has another one
    partitions: list[PartitionPlace]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


@dataclass(frozen=True, slots=True)
class Leaderless:
    """A partition that nobody leads: it can be neither read nor written."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    candidates: tuple[int, ...]  # brokers that are known to have all that was acknowledged
    last_leaders: tuple[int, ...]  # if there is no such broker

    def __str__(self) -> str:
        fact = f"{self.topic}-{self.partition} has no leader"
        if self.candidates:
            return f"{fact}: it gets one when broker {_either(self.candidates)} is back, with the data that it had"
        first = _either(self.last_leaders or self.replicas[:1])
        return (
            f"{fact}: every broker that had all acknowledged records has come back without some of its data. Stop "
            f"broker {first} and restore its data folder, if you have it. To go on without the records that are lost: "
            f"headrace topic config {self.topic} --set unclean.leader.election.enable=true, and then --delete "
            f"unclean.leader.election.enable. Broker {first} leads then, or another replica if that one is stopped: "
            "stop it first if it has lost more than the others"
        )


def _either(node_ids: Sequence[int]) -> str:
    return " or ".join(map(str, node_ids))


def _everybody(node_id: int) -> bool:
    return True


IsLive = Callable[[int], bool]
"""Whether a broker lives, by its number."""


class Topics:
    """All topics, by name and by id."""

    # "topic-tombstone" names a topic that was deleted before, "topic-lost" one that a snapshot does not have.
    kinds = ("topic", "topic-deleted", "topic-tombstone", "topic-lost", "partitions-added", "partition")

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}
        self.deleted: dict[bytes, str] = {}  # name by id, the last one last

    @staticmethod
    def creation(name: str, replicas: Sequence[Sequence[int]], is_live: IsLive = _everybody) -> Event:
        """The event that makes a topic: for each partition its replicas, the leader first.

        Replicas on brokers that do not live come later; one of each partition has to.
        """
        places = [_new(brokers, is_live) for brokers in replicas]
        return {"kind": "topic", "name": name, "id": uuid.uuid4().hex, "partitions": places}

    @staticmethod
    def existing(topic: Topic) -> Event:
        """The event that makes a topic as it is."""
        places = [_place_to_json(place) for place in topic.partitions]
        return {"kind": "topic", "name": topic.name, "id": topic.id.hex(), "partitions": places}

    @staticmethod
    def deletion(topic: Topic) -> Event:
        return _about(topic.id, topic.name, "topic-deleted")

    @staticmethod
    def growth(topic: Topic, replicas: Sequence[Sequence[int]], is_live: IsLive = _everybody) -> Event:
        """The event that adds partitions."""
        places = [_new(brokers, is_live) for brokers in replicas]
        return {"kind": "partitions-added", "id": topic.id.hex(), "partitions": places}

    @staticmethod
    def move(topic: Topic, index: int, place: PartitionPlace) -> Event:
        """The event that gives a partition another leader, epoch, or set of replicas."""
        return {"kind": "partition", "id": topic.id.hex(), "index": index, "place": _place_to_json(place)}

    @staticmethod
    def not_led_by(node_id: int, event: Event) -> Event:
        """An event, of any section, as it would be if nobody led what a broker leads."""
        if "partitions" in event:
            return {**event, "partitions": [_not_led_by(node_id, row) for row in event["partitions"]]}
        if "place" in event:
            return {**event, "place": _not_led_by(node_id, event["place"])}
        return event

    def apply(self, event: Event) -> None:
        topic_id = bytes.fromhex(event["id"])
        kind = event["kind"]
        if kind == "topic":
            topic = Topic(event["name"], topic_id, [_place_from_json(row) for row in event["partitions"]])
            self.by_name[topic.name] = self.by_id[topic_id] = topic
        elif kind == "topic-deleted":
            self._forget(topic_id)
            self._bury(topic_id, event["name"])
        elif kind == "topic-tombstone":
            self._bury(topic_id, event["name"])
        elif kind == "topic-lost":
            self._forget(topic_id)
        elif kind == "partitions-added":
            self.by_id[topic_id].partitions += [_place_from_json(row) for row in event["partitions"]]
        else:
            self.by_id[topic_id].partitions[event["index"]] = _place_from_json(event["place"])

    def leaderless(self) -> list[Leaderless]:
        """Return the partitions that nobody leads."""
        return [
            Leaderless(topic.name, index, place.replicas, place.isr or place.elr, place.last_known_elr)
            for topic in self.by_name.values()
            for index, place in enumerate(topic.partitions)
            if place.leader == NO_LEADER
        ]

    def _forget(self, topic_id: bytes) -> None:
        topic = self.by_id.pop(topic_id)
        del self.by_name[topic.name]

    def _bury(self, topic_id: bytes, name: str) -> None:
        self.deleted[topic_id] = name
        if len(self.deleted) > DELETED_KEPT_MAX:
            del self.deleted[next(iter(self.deleted))]

    def snapshot(self) -> Iterator[Event]:
        for topic_id, name in self.deleted.items():
            yield _about(topic_id, name, "topic-tombstone")
        yield from map(self.existing, self.by_name.values())

    def changes_to(self, target: Topics) -> Iterator[Event]:
        """Events that make this section what `target` is. What `target` does not know is lost, but not deleted."""
        for topic_id, topic in self.by_id.items():
            if topic_id in target.deleted:
                yield self.deletion(topic)
            elif topic_id not in target.by_id:
                yield _about(topic_id, topic.name, "topic-lost")
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
            wanted = target.by_id[before.id].partitions
            if len(wanted) > len(before.partitions):
                rows = event["partitions"][len(before.partitions) :]
                yield {"kind": "partitions-added", "id": event["id"], "partitions": rows}
            for index, (old, new) in enumerate(zip(before.partitions, wanted, strict=False)):
                if old != new:
                    yield {**self.move(before, index, new), "from_snapshot": True}


def _about(topic_id: bytes, name: str, kind: str) -> Event:
    return {"kind": kind, "id": topic_id.hex(), "name": name}


_Json = list[Any]
_ALONE = (0, (), (), (), ())
"""What a place has beyond leader, epoch, replicas and in-sync replicas, unless it is moved about: left out then."""


def _new(replicas: Sequence[int], is_live: IsLive) -> _Json:
    isr = tuple(filter(is_live, replicas))
    return _place_to_json(PartitionPlace(tuple(replicas), isr, isr[0], 0))


def _place_to_json(place: PartitionPlace) -> _Json:
    row: _Json = [place.leader, place.leader_epoch, list(place.replicas), list(place.isr)]
    more = (place.partition_epoch, place.elr, place.last_known_elr, place.adding, place.removing)
    return row if more == _ALONE else [*row, *more]


def _place_from_json(row: _Json) -> PartitionPlace:
    leader, leader_epoch, replicas, isr, *more = row
    partition_epoch, *sets = more or _ALONE
    return PartitionPlace(
        tuple(replicas), tuple(isr), leader, leader_epoch, partition_epoch, *(tuple(nodes) for nodes in sets)
    )


def _not_led_by(node_id: int, row: _Json) -> _Json:
    return [-1, *row[1:]] if row[0] == node_id else row
