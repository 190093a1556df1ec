"""Elections: the next state of a partition, as a pure function without time, network or disk.

    a new in-sync set, new replicas, or a broker that came or went
      → complete a reassignment → eligible leader replicas → election → the next state

Eligible leader replicas (KIP-966): while the in-sync set is smaller than min.insync.replicas nothing is committed. A
replica that leaves the set then has all committed records, and may lead when no in-sync replica is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.broker.catalog.topics import NO_LEADER, PartitionRegistration


class Election(Enum):
    """The kind of an election."""

    ONLINE = "online"  # the current leader if it is active, otherwise another one with all committed records
    PREFERRED = "preferred"  # the first replica, if it is in sync
    UNCLEAN = "unclean"  # any active replica if there is no other: records that only others have are lost


@dataclass(frozen=True, slots=True)
class ElectionRules:
    """The settings of a topic and the cluster that an election depends on."""

    is_active: Callable[[int], bool]  # whether a broker is live and not stopping
    min_isr: int
    election: Election = Election.ONLINE


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The requested change of a partition; None: unchanged."""

    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    distrusted: Collection[int] = ()  # brokers that may have lost data
    new_epoch: bool = False  # begin a leader epoch even if the leader stays


NO_CHANGE = PartitionChange()


def apply_change(
    partition: PartitionRegistration, rules: ElectionRules, change: PartitionChange = NO_CHANGE
) -> PartitionRegistration | None:
    """Return the next state of a partition; None if nothing changes."""
    target = replace(
        partition,
        isr=_or_current(change.isr, partition.isr),
        replicas=_or_current(change.replicas, partition.replicas),
        adding=_or_current(change.adding, partition.adding),
        removing=_or_current(change.removing, partition.removing),
    )
    _complete_reassignment(target)
    _choose_eligible(partition, target, rules, change.distrusted)
    _elect(target, rules)
    if not target.isr and partition.isr:
        target.last_known_elr = (partition.leader,) if partition.leader != NO_LEADER else partition.isr
    elif target.leader != NO_LEADER:
        target.last_known_elr = ()
    if target == partition and not change.new_epoch:
        return None
    lost_replica = not set(partition.replicas) <= set(target.replicas)  # it must stop fetching in this epoch
    if target.leader != partition.leader or lost_replica or change.new_epoch:
        target.leader_epoch += 1
    target.partition_epoch += 1
    return target


def _or_current(changed: Sequence[int] | None, current: tuple[int, ...]) -> tuple[int, ...]:
    return current if changed is None else tuple(changed)


def _complete_reassignment(target: PartitionRegistration) -> None:
    """End a reassignment when all remaining replicas are in sync."""
    if not (target.adding or target.removing):
        return
    remaining = _without(target.replicas, target.removing)
    isr = _without(target.isr, target.removing)
    if isr and remaining and set(remaining) <= set(isr):
        target.replicas, target.isr, target.adding, target.removing = remaining, isr, (), ()


def _choose_eligible(
    partition: PartitionRegistration, target: PartitionRegistration, rules: ElectionRules, distrusted: Collection[int]
) -> None:
    if len(target.isr) >= rules.min_isr:
        target.elr = ()
        return
    candidates = dict.fromkeys((*partition.elr, *partition.isr))
    target.elr = tuple(
        node for node in candidates if node in target.replicas and node not in target.isr and node not in distrusted
    )


def _elect(target: PartitionRegistration, rules: ElectionRules) -> None:
    clean = target.isr or target.elr
    order = (target.leader, *target.replicas)
    if rules.election is Election.PREFERRED:
        order = (target.replicas[0], *order)
    leader = _first(order, lambda node: node in clean and rules.is_active(node))
    if leader == NO_LEADER and rules.election is Election.UNCLEAN:
        order = (*target.last_known_elr, *target.replicas)
        leader = _first(order, lambda node: node in target.replicas and rules.is_active(node))
        if leader != NO_LEADER:
            target.isr, target.elr = (leader,), ()
    elif leader != NO_LEADER and not target.isr:
        target.isr, target.elr = (leader,), _without(target.elr, (leader,))
    target.leader = leader


def _first(nodes: Iterable[int], is_suitable: Callable[[int], bool]) -> int:
    return next((node for node in nodes if node != NO_LEADER and is_suitable(node)), NO_LEADER)


def _without(nodes: Sequence[int], removed: Collection[int]) -> tuple[int, ...]:
    return tuple(node for node in nodes if node not in removed)


# -- reassignments -------------------------------------------------------------------------------


def begin_reassignment(partition: PartitionRegistration, replicas: Sequence[int]) -> PartitionChange:
    """Return the change that begins a reassignment: old replicas are removed when the new ones have caught up."""
    removing = _without(partition.replicas, replicas)  # including those that a running reassignment has added
    adding = _without(replicas, _without(partition.replicas, partition.adding))
    return PartitionChange(replicas=(*replicas, *removing), adding=adding, removing=removing)


def cancel_reassignment(partition: PartitionRegistration) -> PartitionChange:
    """Return the change that cancels a reassignment: the replicas as before it."""
    before = _without(partition.replicas, partition.adding)
    return PartitionChange(replicas=before, adding=(), removing=(), isr=_without(partition.isr, partition.adding))
