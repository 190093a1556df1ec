"""Assignors of classic groups: which member gets which partitions. The leader of a group runs one of them.

    range               consecutive partitions of each topic, to the members in order
    roundrobin          all partitions in turn, to the members in order
    sticky              balanced, with as few moves as possible; all partitions are revoked first
    cooperative-sticky  the same; only partitions that move are revoked, and assigned one rebalance later

Names and user data are those of Java's and librdkafka's assignors, so that their members can be in the same group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.types import TopicPartition
from headrace.wire.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
    flat,
)

RANGE, ROUNDROBIN, STICKY, COOPERATIVE = "range", "roundrobin", "sticky", "cooperative-sticky"
_JAVA = "org.apache.kafka.clients.consumer."
_NAMES = {
    **{name: name for name in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE)},
    _JAVA + "RangeAssignor": RANGE,
    _JAVA + "RoundRobinAssignor": ROUNDROBIN,
    _JAVA + "StickyAssignor": STICKY,
    _JAVA + "CooperativeStickyAssignor": COOPERATIVE,
}
MOVES_MAX = 1_000_000
"""The limit of moves while a group whose members subscribe to different topics is balanced."""

Assigned = dict[str, list[TopicPartition]]
"""Member id → partitions."""


def assignor_names(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names of assignors as the protocol has them."""
    resolved: list[str] = []
    for name in names:
        known = _NAMES.get(str(name).strip())
        if known is None:
            raise ConfigError(
                f"invalid partition.assignment.strategy: expected {RANGE}, {ROUNDROBIN}, {STICKY} or {COOPERATIVE}, "
                f"got {name!r}"
            )
        if known not in resolved:
            resolved.append(known)
    return tuple(resolved)


def is_cooperative(names: Sequence[str]) -> bool:
    """Return whether members keep their partitions while they rejoin: the first assignor decides, as in Java."""
    return names[0] == COOPERATIVE


@dataclass(slots=True)
class Member:
    """A member of a group, as the leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: ConsumerProtocolSubscription

    @property
    def order(self) -> tuple[bool, str]:
        """The sort key of Java's assignors: static members first."""
        return self.instance_id is None, self.instance_id or self.member_id


def user_data(name: str, owned: Iterable[TopicPartition], generation: int) -> bytes | None:
    """Return what a member tells the assignor of the leader."""
    if name == STICKY:
        return encode_sticky(owned, generation) if generation >= 0 else None
    return encode_generation(generation) if name == COOPERATIVE else None


def assign(name: str, members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assigned:
    """Return the partitions of each member. Topics without a count do not exist, and are left out."""
    assigned = _ASSIGNORS[name](sorted(members, key=lambda member: member.order), partition_counts)
    return {member.member_id: sorted(assigned.get(member.member_id, [])) for member in members}


def _range(members: Sequence[Member], counts: Mapping[str, int]) -> Assigned:
    subscribers: defaultdict[str, list[str]] = defaultdict(list)
    for member in members:
        for topic in set(member.subscription.topics):
            subscribers[topic].append(member.member_id)
    assigned: Assigned = defaultdict(list)
    for topic, ids in subscribers.items():
        share, extra = divmod(counts.get(topic, 0), len(ids))
        start = 0
        for index, member_id in enumerate(ids):
            stop = start + share + (1 if index < extra else 0)
            assigned[member_id] += [TopicPartition(topic, number) for number in range(start, stop)]
            start = stop
    return assigned


def _roundrobin(members: Sequence[Member], counts: Mapping[str, int]) -> Assigned:
    assigned: Assigned = defaultdict(list)
    topics = {member.member_id: set(member.subscription.topics) for member in members}
    index = 0
    for topic in sorted(set().union(*topics.values())):
        for number in range(counts.get(topic, 0)):
            while topic not in topics[members[index % len(members)].member_id]:
                index += 1
            assigned[members[index % len(members)].member_id].append(TopicPartition(topic, number))
            index += 1
    return assigned


# -- sticky ------------------------------------------------------------------------------------


def _sticky(members: Sequence[Member], counts: Mapping[str, int]) -> Assigned:
    return _balanced(members, counts, _claims(members, STICKY))


def _cooperative(members: Sequence[Member], counts: Mapping[str, int]) -> Assigned:
    claims = _claims(members, COOPERATIVE)
    assigned = _balanced(members, counts, claims)
    # A partition that moves is left out: its owner revokes it, and joins again; then it is assigned.
    return {
        member_id: [tp for tp in partitions if claims.get(tp, member_id) == member_id]
        for member_id, partitions in assigned.items()
    }


def _claims(members: Sequence[Member], name: str) -> dict[TopicPartition, str]:
    """Return the owner of each partition. Of two members that claim one, the one with the later generation has it."""
    claims: dict[TopicPartition, tuple[int, str]] = {}
    disputed: dict[TopicPartition, int] = {}
    for member in members:
        owned, generation = _owned(member.subscription, name)
        for tp in owned:
            current = claims.get(tp)
            if current is not None and current[0] == generation:
                disputed[tp] = generation
            if current is None or generation > current[0]:
                claims[tp] = (generation, member.member_id)
    return {tp: owner for tp, (generation, owner) in claims.items() if disputed.get(tp) != generation}


def _owned(subscription: ConsumerProtocolSubscription, name: str) -> tuple[list[TopicPartition], int]:
    data = subscription.user_data
    if name == STICKY:
        return decode_sticky(data)
    generation = subscription.generation_id
    return flat(subscription.owned_partitions), generation if generation >= 0 else decode_generation(data)


def _balanced(members: Sequence[Member], counts: Mapping[str, int], claims: Mapping[TopicPartition, str]) -> Assigned:
    topics = {member.member_id: {t for t in member.subscription.topics if t in counts} for member in members}
    assigned: Assigned = {member.member_id: [] for member in members}
    unassigned: list[TopicPartition] = []
    for topic in sorted(set().union(*topics.values())):
        for number in range(counts[topic]):
            tp = TopicPartition(topic, number)
            owner = claims.get(tp, "")
            if topic in topics.get(owner, ()):
                assigned[owner].append(tp)
            else:
                unassigned.append(tp)
    if len({frozenset(each) for each in topics.values()}) == 1:
        _balance_equal(assigned, unassigned)
    else:
        _balance_general(assigned, unassigned, topics)
    return assigned


def _balance_equal(assigned: Assigned, unassigned: list[TopicPartition]) -> None:
    """Balance members with the same topics: each keeps up to its quota, and gets what is missing."""
    total = len(unassigned) + sum(map(len, assigned.values()))
    share, extra = divmod(total, len(assigned))
    # Those that own most keep one more: so fewer partitions move.
    by_count = sorted(assigned, key=lambda member_id: -len(assigned[member_id]))
    quotas = {member_id: share + (1 if index < extra else 0) for index, member_id in enumerate(by_count)}
    for member_id, quota in quotas.items():
        unassigned += assigned[member_id][quota:]
        del assigned[member_id][quota:]
    unassigned.sort(reverse=True)
    for member_id, quota in quotas.items():
        while len(assigned[member_id]) < quota:
            assigned[member_id].append(unassigned.pop())


def _balance_general(assigned: Assigned, unassigned: list[TopicPartition], topics: Mapping[str, set[str]]) -> None:
    """Balance members with different topics: partitions with few candidates first, then moves while they help."""
    candidates: defaultdict[str, list[str]] = defaultdict(list)
    for member_id, subscribed in topics.items():
        for topic in subscribed:
            candidates[topic].append(member_id)

    def load(member_id: str) -> int:
        return len(assigned[member_id])

    for tp in sorted(unassigned, key=lambda tp: (len(candidates[tp.topic]), tp)):
        assigned[min(candidates[tp.topic], key=load)].append(tp)
    for _ in range(MOVES_MAX):
        for member_id in sorted(assigned, key=load, reverse=True):
            move = _first_move(assigned[member_id], load(member_id), candidates, load)
            if move is not None:
                tp, target = move
                assigned[member_id].remove(tp)
                assigned[target].append(tp)
                break
        else:
            return


def _first_move(
    partitions: Sequence[TopicPartition],
    count: int,
    candidates: Mapping[str, list[str]],
    load: Callable[[str], int],
) -> tuple[TopicPartition, str] | None:
    """Return a partition, and a member with at least two fewer that can take it."""
    least: dict[str, str] = {}
    for tp in reversed(partitions):
        if tp.topic not in least:
            least[tp.topic] = min(candidates[tp.topic], key=load)
        if load(least[tp.topic]) + 1 < count:
            return tp, least[tp.topic]
    return None


_ASSIGNORS: dict[str, Callable[[Sequence[Member], Mapping[str, int]], Assigned]] = {
    RANGE: _range,
    ROUNDROBIN: _roundrobin,
    STICKY: _sticky,
    COOPERATIVE: _cooperative,
}
