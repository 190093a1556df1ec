"""Topics and where their partitions are."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.broker.catalog.journal import Event
from headrace.errors import BrokerError, Code

NAME_CHARACTERS_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


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


@dataclass(slots=True)
class Topic:
    """A topic of the catalog."""

    name: str
    id: bytes  # 16 of them; a topic of the same name made later has another one
    partitions: list[PartitionPlace]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL


class Topics:
    """All topics, by name and by id."""

    kinds = ("topic", "topic-deleted", "partitions-added", "partition")

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[bytes, Topic] = {}

    @staticmethod
    def creation(name: str, replicas: Sequence[Sequence[int]]) -> Event:
        """The event that makes a topic: for each partition its replicas, the leader first."""
        return {"kind": "topic", "name": name, "id": uuid.uuid4().hex, "partitions": [_new(r) for r in replicas]}

    @staticmethod
    def deletion(topic: Topic) -> Event:
        return {"kind": "topic-deleted", "id": topic.id.hex()}

    @staticmethod
    def growth(topic: Topic, replicas: Sequence[Sequence[int]]) -> Event:
        """The event that adds partitions."""
        return {"kind": "partitions-added", "id": topic.id.hex(), "partitions": [_new(r) for r in replicas]}

    @staticmethod
    def move(topic: Topic, index: int, place: PartitionPlace) -> Event:
        """The event that gives a partition another leader, epoch, or set of replicas."""
        return {"kind": "partition", "id": topic.id.hex(), "index": index, "place": _place_to_json(place)}

    def apply(self, event: Event) -> None:
        topic_id = bytes.fromhex(event["id"])
        kind = event["kind"]
        if kind == "topic":
            topic = Topic(event["name"], topic_id, [_place_from_json(row) for row in event["partitions"]])
            self.by_name[topic.name] = self.by_id[topic_id] = topic
        elif kind == "topic-deleted":
            topic = self.by_id.pop(topic_id)
            del self.by_name[topic.name]
        elif kind == "partitions-added":
            self.by_id[topic_id].partitions += [_place_from_json(row) for row in event["partitions"]]
        else:
            self.by_id[topic_id].partitions[event["index"]] = _place_from_json(event["place"])

    def snapshot(self) -> Iterator[Event]:
        for topic in self.by_name.values():
            places = [_place_to_json(place) for place in topic.partitions]
            yield {"kind": "topic", "name": topic.name, "id": topic.id.hex(), "partitions": places}


_Json = list[int | list[int]]


def _new(replicas: Sequence[int]) -> _Json:
    return _place_to_json(PartitionPlace(tuple(replicas), tuple(replicas), replicas[0], 0))


def _place_to_json(place: PartitionPlace) -> _Json:
    return [place.leader, place.leader_epoch, list(place.replicas), list(place.isr)]


def _place_from_json(row: list[int | list[int]]) -> PartitionPlace:
    leader, epoch, replicas, isr = row
    assert isinstance(leader, int)
    assert isinstance(epoch, int)
    assert isinstance(replicas, list)
    assert isinstance(isr, list)
    return PartitionPlace(tuple(replicas), tuple(isr), leader, epoch)
