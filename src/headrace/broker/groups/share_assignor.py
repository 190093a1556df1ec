"""The `simple` assignor of share groups. A pure function.

A partition may have several members. Each partition gets the same number of them, so that each member has at least one
partition; with more partitions than members, each partition has one member. Members keep what they have where possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from headrace.broker.groups.assignors import AssignableMember, Assignment

_Partition = tuple[bytes, int]


def assign_simply(members: Sequence[AssignableMember], partitions: Mapping[bytes, frozenset[int]]) -> Assignment:
    """Assign the partitions of topics to the members that are subscribed to them."""
    assignment: Assignment = {member.id: {} for member in members}
    if len({member.topic_ids for member in members}) <= 1:
        _spread(members, partitions, assignment)
    else:
        for topic_id, indexes in partitions.items():
            _spread([member for member in members if topic_id in member.topic_ids], {topic_id: indexes}, assignment)
    return assignment


def _spread(
    members: Sequence[AssignableMember], topics: Mapping[bytes, frozenset[int]], assignment: Assignment
) -> None:
    """Assign partitions to members that are all subscribed to their topics."""
    partitions = [
        (topic_id, index)
        for topic_id, indexes in topics.items()
        for index in sorted(indexes)
        if members and topic_id in members[0].topic_ids
    ]
    if not partitions:
        return
    sharing = -(-len(members) // len(partitions))
    quotas = _quotas(len(members), sharing * len(partitions))
    owners: dict[_Partition, set[str]] = {partition: set() for partition in partitions}
    counts: dict[str, int] = {}
    for member, quota in zip(members, quotas, strict=True):
        kept = [
            partition
            for partition in partitions
            if partition[1] in member.current.get(partition[0], ()) and len(owners[partition]) < sharing
        ][:quota]
        for partition in kept:
            owners[partition].add(member.id)
        counts[member.id] = len(kept)
    unfilled = [
        member.id for member, quota in zip(members, quotas, strict=True) for _ in range(quota - counts[member.id])
    ]
    for partition in partitions:
        for _ in range(sharing - len(owners[partition])):
            member_id = next((each for each in unfilled if each not in owners[partition]), None)
            if member_id is not None:
                unfilled.remove(member_id)
                owners[partition].add(member_id)
        if not owners[partition]:
            owners[partition].add(members[0].id)
    for (topic_id, index), ids in owners.items():
        for member_id in ids:
            assignment[member_id].setdefault(topic_id, set()).add(index)


def _quotas(members: int, total: int) -> list[int]:
    """Return how many of `total` assignments each member gets."""
    ends = [-(-total * number // members) for number in range(members + 1)]
    return [end - begin for begin, end in pairwise(ends)]
