"""Which brokers get the replicas of new partitions.

Leaders go round the brokers from a random one on; the other replicas follow at a distance that grows by one with every
round, so that the partitions of one leader have their followers on different brokers. With racks, the brokers are put
into an order that alternates between racks, and a partition gets no two replicas in a rack (or on a broker) that could
still go to another one. (The same rules as Kafka's tools have always had.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from headrace.errors import BrokerError, Code


def place(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    first: int | None = None,
    shift: int | None = None,
    number: int = 0,
) -> list[list[int]]:
    """For each partition its replicas, the leader first.

    `brokers` are their racks by node id. `number` is that of the first partition; `first` and `shift` replace chance.
    """
    if replication_factor > len(brokers):
        raise BrokerError(
            f"{replication_factor} replicas of a partition need as many brokers that live; there are {len(brokers)}: "
            f"{', '.join(map(str, sorted(brokers))) or 'none'}",
            code=Code.INVALID_REPLICATION_FACTOR,
        )
    ring = _alternating(brokers)
    start = random.randrange(len(ring)) if first is None else first
    distance = random.randrange(len(ring)) if shift is None else shift
    placed = []
    for partition in range(number, number + partitions):
        if partition and partition % len(ring) == 0:
            distance += 1
        leader = (partition + start) % len(ring)
        placed.append(_replicas(ring, brokers, leader, distance, replication_factor))
    return placed


def place_in_cluster(
    live: Mapping[int, str | None], away: Sequence[int], partitions: int, replication_factor: int, number: int = 0
) -> list[list[int]]:
    """The same, with brokers that are away for now if the others are not enough: their replicas come later."""
    missing = replication_factor - len(live)
    if missing <= 0 or missing > len(away) or not live:
        return place(live, partitions, replication_factor, number=number)
    placed = place(live, partitions, len(live), number=number)
    return [
        [*replicas, *(away[(index + step) % len(away)] for step in range(missing))]
        for index, replicas in enumerate(placed)
    ]


def _replicas(
    ring: Sequence[int], brokers: Mapping[int, str | None], leader: int, distance: int, count: int
) -> list[int]:
    chosen = [ring[leader]]
    racks = {_rack(brokers, ring[leader])}
    all_racks = {_rack(brokers, node) for node in ring}
    step = 0
    while len(chosen) < count:  # every broker comes up once in a round of the ring
        node = ring[_follower(leader, distance, step, len(ring))]
        step += 1
        rack = _rack(brokers, node)
        if node in chosen or (rack in racks and len(racks) < len(all_racks)):
            continue
        chosen.append(node)
        racks.add(rack)
    return chosen


def _follower(leader: int, distance: int, step: int, count: int) -> int:
    return (leader + 1 + (distance + step) % (count - 1)) % count


def _rack(brokers: Mapping[int, str | None], node: int) -> str | int:
    """A broker that does not say where it is stands alone."""
    rack = brokers[node]
    return node if rack is None else rack


def _alternating(brokers: Mapping[int, str | None]) -> list[int]:
    """0 (rack a), 3 (rack b), 1 (rack a), …: neighbours in different racks, as far as that goes."""
    by_rack: dict[str, list[int]] = {}
    for node in sorted(brokers):
        by_rack.setdefault(str(brokers[node]), []).append(node)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node for round_ in rounds for node in round_ if node is not None]
