"""Placement: the brokers for the replicas of new partitions, with the rules of Kafka's tools.

Leaders go round the brokers from a random start. The other replicas follow at a distance that grows by one with every
round, so that the partitions of one leader have their followers on different brokers. With racks, the order of brokers
alternates between racks, and a partition gets two replicas on a rack only if there is no other rack left.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from headrace.errors import BrokerError, Code


def place_replicas(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start: int | None = None,
    shift: int | None = None,
    first_partition: int = 0,
) -> list[list[int]]:
    """Return the replicas of each partition, the leader first.

    `racks` are the racks of the brokers by node id. `start` and `shift` replace the random numbers.
    """
    if replication_factor > len(racks):
        raise BrokerError(
            f"invalid replication factor {replication_factor}: expected at most the number of live brokers, "
            f"{len(racks)} ({', '.join(map(str, sorted(racks))) or 'none'})",
            code=Code.INVALID_REPLICATION_FACTOR,
        )
    ring = _alternating(racks)
    start = random.randrange(len(ring)) if start is None else start
    distance = random.randrange(len(ring)) if shift is None else shift
    assignment = []
    for partition in range(first_partition, first_partition + partitions):
        if partition and partition % len(ring) == 0:
            distance += 1
        leader = (partition + start) % len(ring)
        assignment.append(_replicas(ring, racks, leader, distance, replication_factor))
    return assignment


def place_with_inactive(
    racks: Mapping[int, str | None],
    inactive: Sequence[int],
    partitions: int,
    replication_factor: int,
    first_partition: int = 0,
) -> list[list[int]]:
    """Like `place_replicas`, but use inactive brokers if there are too few others: their replicas join later."""
    missing = replication_factor - len(racks)
    if missing <= 0 or missing > len(inactive) or not racks:
        return place_replicas(racks, partitions, replication_factor, first_partition=first_partition)
    assignment = place_replicas(racks, partitions, len(racks), first_partition=first_partition)
    return [
        [*replicas, *(inactive[(index + step) % len(inactive)] for step in range(missing))]
        for index, replicas in enumerate(assignment)
    ]


def _replicas(
    ring: Sequence[int], racks: Mapping[int, str | None], leader: int, distance: int, count: int
) -> list[int]:
    chosen = [ring[leader]]
    used_racks = {_rack(racks, ring[leader])}
    all_racks = {_rack(racks, node) for node in ring}
    step = 0
    while len(chosen) < count:  # every broker is visited once per round of the ring
        node = ring[_follower(leader, distance, step, len(ring))]
        step += 1
        rack = _rack(racks, node)
        if node in chosen or (rack in used_racks and len(used_racks) < len(all_racks)):
            continue
        chosen.append(node)
        used_racks.add(rack)
    return chosen


def _follower(leader: int, distance: int, step: int, count: int) -> int:
    return (leader + 1 + (distance + step) % (count - 1)) % count


def _rack(racks: Mapping[int, str | None], node: int) -> str | int:
    """Return the rack of a broker; a broker without one counts as a separate rack."""
    rack = racks[node]
    return node if rack is None else rack


def _alternating(racks: Mapping[int, str | None]) -> list[int]:
    """Return the brokers so that neighbours are on different racks where possible: 0 (a), 3 (b), 1 (a), …"""
    by_rack: dict[str, list[int]] = {}
    for node in sorted(racks):
        by_rack.setdefault(str(racks[node]), []).append(node)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node for round_ in rounds for node in round_ if node is not None]
