"""The assignors of consumer groups: which member should have which partitions. Pure functions.

`uniform`  gives all members the same number of partitions, as far as their subscriptions allow, and moves as few as
           possible.
`range`    gives each member a range of the partitions of each topic, in the same order of members, so that the same
           partitions of topics of the same size are together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.broker.groups.consumer_member import TopicPartitionSets

BALANCING_ROUNDS_MAX = 100
"""How often `uniform` balances members with different subscriptions. Each round moves partitions to members with fewer
ones, so it ends by itself; this bounds the time."""


class AssignableMember(NamedTuple):
    """A member as the assignors see it."""

    id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]  # subscribed topics that exist
    current: TopicPartitionSets  # its target so far


Assignment = dict[str, dict[bytes, set[int]]]
"""Partitions by topic id, by member id."""
Assignor = Callable[[Sequence[AssignableMember], Mapping[bytes, int]], Assignment]
"""Assigns the partitions of topics, given with their number of partitions."""


def assign_uniformly(members: Sequence[AssignableMember], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign partitions evenly, and keep current assignments where possible."""
    subscriptions = {member.topic_ids for member in members}
    if len(subscriptions) <= 1:
        return _assign_to_equal(members, partition_counts)
    return _UniformAssignment(members, partition_counts).balanced()


def assign_ranges(members: Sequence[AssignableMember], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign a range of each topic to each subscriber; static members come first."""
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.id))
    assignment: Assignment = {member.id: {} for member in members}
    for topic_id in _subscribed(members, partition_counts):
        subscribers = [member for member in ordered if topic_id in member.topic_ids]
        quota, extra = divmod(partition_counts[topic_id], len(subscribers))
        first = 0
        for position, member in enumerate(subscribers):
            end = first + quota + (position < extra)
            if end > first:
                assignment[member.id][topic_id] = set(range(first, end))
            first = end
    return assignment


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


def _subscribed(members: Iterable[AssignableMember], partition_counts: Mapping[bytes, int]) -> list[bytes]:
    """Return the topics that any member is subscribed to, in the order of `partition_counts`."""
    subscribed = frozenset().union(*(member.topic_ids for member in members))
    return [topic_id for topic_id in partition_counts if topic_id in subscribed]


def _assign_to_equal(members: Sequence[AssignableMember], partition_counts: Mapping[bytes, int]) -> Assignment:
    """Assign the partitions of members that are subscribed to the same topics."""
    topics = _subscribed(members, partition_counts)
    free = {topic_id: set(range(partition_counts[topic_id])) for topic_id in topics}
    assignment: Assignment = {member.id: {} for member in members}
    if not topics:
        return assignment
    quota, extra = divmod(sum(partition_counts[topic_id] for topic_id in topics), len(members))
    counts: dict[str, int] = {}
    # Members with more partitions get the extra ones, so that fewer move.
    ordered = sorted(members, key=lambda member: (-sum(map(len, member.current.values())), member.id))
    for member in ordered:
        limit = quota + (extra > 0)
        kept = 0
        for topic_id, indexes in member.current.items():
            mine = sorted(indexes & free.get(topic_id, set()))[: limit - kept]
            if mine:
                assignment[member.id][topic_id] = set(mine)
                free[topic_id].difference_update(mine)
                kept += len(mine)
        counts[member.id] = kept
        extra -= kept > quota
    unassigned = [(topic_id, index) for topic_id in topics for index in sorted(free[topic_id])]
    position = 0
    for member in ordered:
        missing = quota - counts[member.id]
        if missing >= 0 and extra > 0:
            missing += 1
            extra -= 1
        for topic_id, index in unassigned[position : position + max(missing, 0)]:
            assignment[member.id].setdefault(topic_id, set()).add(index)
        position += max(missing, 0)
    return assignment


class _UniformAssignment:
    """The assignment of members with different subscriptions."""

    def __init__(self, members: Sequence[AssignableMember], partition_counts: Mapping[bytes, int]) -> None:
        self._assignment: Assignment = {member.id: {} for member in members}
        self._counts = dict.fromkeys(self._assignment, 0)
        self._subscribers = {
            topic_id: [member.id for member in sorted(members) if topic_id in member.topic_ids]
            for topic_id in _subscribed(members, partition_counts)
        }
        # Topics with few subscribers first: they have the least choice.
        self._topics = sorted(self._subscribers, key=lambda topic_id: len(self._subscribers[topic_id]))
        free = {topic_id: set(range(partition_counts[topic_id])) for topic_id in self._topics}
        for member in members:
            for topic_id, indexes in member.current.items():
                if topic_id in member.topic_ids:
                    for index in sorted(indexes & free.get(topic_id, set())):
                        self._give(member.id, topic_id, index)
                        free[topic_id].discard(index)
        for topic_id in self._topics:
            least = _MemberHeap(self._subscribers[topic_id], self._counts)
            for index in sorted(free[topic_id]):
                self._give(least.first(), topic_id, index)

    def balanced(self) -> Assignment:
        """Return the assignment after moving partitions until no move makes it more even."""
        for _ in range(BALANCING_ROUNDS_MAX):
            moves = [self._balance_topic(topic_id) for topic_id in self._topics]
            if not any(moves):
                break
        return self._assignment

    def _balance_topic(self, topic_id: bytes) -> bool:
        """Move partitions of a topic to less loaded subscribers; return whether any was moved."""
        has_moved = False
        subscribers = self._subscribers[topic_id]
        least = _MemberHeap(subscribers, self._counts)
        most = _MemberHeap(subscribers, self._counts, sign=-1)
        while most:
            source = most.first()
            indexes = self._assignment[source].get(topic_id)
            if not indexes:
                most.drop_first()
                continue
            target = least.first()
            if self._counts[source] - self._counts[target] < 2:
                break
            index = max(indexes)
            indexes.discard(index)
            if not indexes:
                del self._assignment[source][topic_id]
            self._counts[source] -= 1
            self._give(target, topic_id, index)
            has_moved = True
        return has_moved

    def _give(self, member_id: str, topic_id: bytes, index: int) -> None:
        self._assignment[member_id].setdefault(topic_id, set()).add(index)
        self._counts[member_id] += 1


class _MemberHeap:
    """Members by number of partitions: the least loaded first, or with a sign of -1 the most loaded."""

    def __init__(self, members: Sequence[str], counts: Mapping[str, int], *, sign: int = 1) -> None:
        self._counts, self._sign = counts, sign
        self._heap = [(sign * counts[name], name) for name in members]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def first(self) -> str:
        """Return the first member."""
        while True:
            known, name = self._heap[0]
            count = self._sign * self._counts[name]
            if known == count:
                return name
            heapq.heapreplace(self._heap, (count, name))  # it has changed meanwhile

    def drop_first(self) -> None:
        heapq.heappop(self._heap)
