"""Who leads a partition, and what becomes of its sets of replicas. Nothing here knows time, network or disk.

    a new in-sync set, new replicas, or a broker that came or went
      → a move that is complete ends → eligible leader replicas → election → the place as it is to be

Eligible leader replicas (KIP-966): while the in-sync set is smaller than min.insync.replicas nothing is committed, so
whoever leaves it then still has all that ever was, and may lead when nobody is left in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.broker.catalog.topics import PartitionPlace

NOBODY = -1


class Election(Enum):
    """Which leader is wanted."""

    ONLINE = "online"  # the present one if it lives, else another one that has all that is committed
    PREFERRED = "preferred"  # the first replica, if it can
    UNCLEAN = "unclean"  # any that lives, if no other can: what only the others have is lost


@dataclass(frozen=True, slots=True)
class Rules:
    """What a partition's topic and the cluster say."""

    is_active: Callable[[int], bool]  # a broker that lives, and does not want to stop
    min_isr: int
    election: Election = Election.ONLINE


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to change; None: as it is."""

    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    distrusted: Collection[int] = ()  # brokers that may have lost what they had
    new_epoch: bool = False  # begin a leader epoch even if the leader stays


NOTHING = Wanted()


def changed(place: PartitionPlace, rules: Rules, wanted: Wanted = NOTHING) -> PartitionPlace | None:
    """The place as it is to be; None if that is as it is."""
    target = replace(
        place,
        isr=_or(wanted.isr, place.isr),
        replicas=_or(wanted.replicas, place.replicas),
        adding=_or(wanted.adding, place.adding),
        removing=_or(wanted.removing, place.removing),
    )
    _complete_move(target)
    _choose_eligible(place, target, rules, wanted.distrusted)
    _elect(target, rules)
    if not target.isr and place.isr:
        target.last_known_elr = (place.leader,) if place.leader != NOBODY else place.isr
    elif target.leader != NOBODY:
        target.last_known_elr = ()
    if target == place and not wanted.new_epoch:
        return None
    lost_replica = not set(place.replicas) <= set(target.replicas)  # it must not go on fetching in this epoch
    if target.leader != place.leader or lost_replica or wanted.new_epoch:
        target.leader_epoch += 1
    target.partition_epoch += 1
    return target


def _or(wanted: Sequence[int] | None, there: tuple[int, ...]) -> tuple[int, ...]:
    return there if wanted is None else tuple(wanted)


def _complete_move(target: PartitionPlace) -> None:
    """End a move when all replicas that stay are in sync."""
    if not (target.adding or target.removing):
        return
    staying = _without(target.replicas, target.removing)
    isr = _without(target.isr, target.removing)
    if isr and staying and set(staying) <= set(isr):
        target.replicas, target.isr, target.adding, target.removing = staying, isr, (), ()


def _choose_eligible(place: PartitionPlace, target: PartitionPlace, rules: Rules, distrusted: Collection[int]) -> None:
    if len(target.isr) >= rules.min_isr:
        target.elr = ()
        return
    candidates = dict.fromkeys((*place.elr, *place.isr))
    target.elr = tuple(
        node for node in candidates if node in target.replicas and node not in target.isr and node not in distrusted
    )


def _elect(target: PartitionPlace, rules: Rules) -> None:
    clean = target.isr or target.elr
    order = (target.leader, *target.replicas)
    if rules.election is Election.PREFERRED:
        order = (target.replicas[0], *order)
    leader = _first(order, lambda node: node in clean and rules.is_active(node))
    if leader == NOBODY and rules.election is Election.UNCLEAN:
        order = (*target.last_known_elr, *target.replicas)
        leader = _first(order, lambda node: node in target.replicas and rules.is_active(node))
        if leader != NOBODY:
            target.isr, target.elr = (leader,), ()
    elif leader != NOBODY and not target.isr:
        target.isr, target.elr = (leader,), _without(target.elr, (leader,))
    target.leader = leader


def _first(nodes: Iterable[int], fits: Callable[[int], bool]) -> int:
    return next((node for node in nodes if node != NOBODY and fits(node)), NOBODY)


def _without(nodes: Sequence[int], gone: Collection[int]) -> tuple[int, ...]:
    return tuple(node for node in nodes if node not in gone)


# -- moves ---------------------------------------------------------------------------------------


def move(place: PartitionPlace, replicas: Sequence[int]) -> Wanted:
    """What begins a move to other replicas: the new ones come, the old ones go when those have caught up."""
    removing = _without(place.replicas, replicas)  # with those that a move under way has brought for nothing
    adding = _without(replicas, _without(place.replicas, place.adding))
    return Wanted(replicas=(*replicas, *removing), adding=adding, removing=removing)


def back(place: PartitionPlace) -> Wanted:
    """What gives up a move: the replicas that were there before it."""
    before = _without(place.replicas, place.adding)
    return Wanted(replicas=before, adding=(), removing=(), isr=_without(place.isr, place.adding))
