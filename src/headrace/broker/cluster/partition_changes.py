"""The controller's decisions on partitions, as events of the catalog: elections for all that an occasion concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.topics import PartitionPlace, Topic, Topics
from headrace.broker.cluster.elections import NOBODY, NOTHING, Election, Rules, Wanted, changed
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.log import LogConfig


class _Found(NamedTuple):
    """A partition that an occasion concerns."""

    topic: Topic
    number: int
    place: PartitionPlace
    rules: Rules


class PartitionChanges:
    """Reads the catalog, and says what to record. Event loop only."""

    def __init__(self, catalog: Catalog, config_of: Callable[[str], LogConfig]) -> None:
        self._catalog = catalog
        self._config_of = config_of

    # -- brokers that come and go ----------------------------------------------------------------

    def without(self, node_id: int) -> list[Event]:
        """A broker is gone, or about to go: it leads nothing and is in sync with nothing."""
        return [
            event
            for found in self._where(lambda place: node_id in place.isr, self._active_but(node_id))
            for event in _changes(found, Wanted(isr=_but(found.place.isr, node_id)))
        ]

    def handed_over(self, node_id: int) -> list[Event]:
        """A broker is about to go: others lead where another one can; where none can, it does to the end."""
        return [
            event
            for found in self._where(lambda place: node_id in place.isr, self._active_but(node_id))
            if any(map(found.rules.is_active, found.place.isr))
            for event in _changes(found, Wanted(isr=_but(found.place.isr, node_id)))
        ]

    def distrusting(self, node_id: int) -> list[Event]:
        """A broker may have lost what it had: it counts as in sync nowhere but where it is the only replica."""

        def counted_on(place: PartitionPlace) -> bool:
            return (node_id in place.isr or node_id in place.elr) and place.replicas != (node_id,)

        return [
            event
            for found in self._where(counted_on, self._active_but(node_id))
            for event in _changes(found, Wanted(isr=_but(found.place.isr, node_id), distrusted=(node_id,)))
        ]

    def returned(self, node_id: int) -> list[Event]:
        """A broker is there: it may lead what nobody leads."""
        return [
            event
            for found in self._where(lambda place: place.leader == NOBODY, self._active_and(node_id))
            for event in _changes(found, NOTHING)
        ]

    def restarted(self, node_id: int) -> list[Event]:
        """A broker that was not missed is there again: it leads what it led in a new epoch."""
        return [
            event
            for found in self._where(lambda place: place.leader == node_id, self._active_and(node_id))
            for event in _changes(found, Wanted(new_epoch=True))
        ]

    def tidied(self) -> list[Event]:
        """What follows from other options of topics.

        With a smaller min.insync.replicas more is committed, and who was eligible may lack it. Where an unclean leader
        is allowed now, there is one.
        """
        return [
            event
            for found in self._where(lambda place: place.leader == NOBODY or bool(place.elr), self._is_active)
            if found.place.leader == NOBODY or len(found.place.isr) >= found.rules.min_isr
            for event in _changes(found, NOTHING)
        ]

    # -- what is asked for -----------------------------------------------------------------------

    def in_sync(
        self, node_id: int, topic: Topic, index: int, leader_epoch: int, partition_epoch: int, isr: Mapping[int, int]
    ) -> PartitionPlace | None:
        """The place with the in-sync set that its leader asks for; None if that is what it is. Raises if it may not."""
        place = self._place(topic, index)
        name = f"{topic.name}-{index}"
        if leader_epoch > place.leader_epoch or partition_epoch > place.partition_epoch:
            raise BrokerError(f"{name}: the epochs are of another controller", code=Code.NOT_CONTROLLER)
        if leader_epoch < place.leader_epoch:
            raise BrokerError(f"{name}: leader epoch {leader_epoch} is over", code=Code.FENCED_LEADER_EPOCH)
        if node_id != place.leader:
            raise BrokerError(f"{name}: broker {place.leader} leads it", code=Code.INVALID_REQUEST)
        if partition_epoch < place.partition_epoch:
            raise BrokerError(f"{name}: partition epoch {partition_epoch} is over", code=Code.INVALID_UPDATE_VERSION)
        if node_id not in isr or not set(isr) <= set(place.replicas):
            raise BrokerError(f"{name}: {sorted(isr)} cannot be in sync", code=Code.INVALID_REQUEST)
        for node, epoch in isr.items():
            self._check_eligible(name, node, epoch)
        return changed(place, self._rules(topic, self._is_active), Wanted(isr=list(isr)))

    def elect(self, topic: Topic, index: int, election: Election) -> PartitionPlace:
        """The place with the leader that is asked for. Raises if it needs or has no other one."""
        place = self._place(topic, index)
        unclean = election is Election.UNCLEAN
        if place.leader != NOBODY and (unclean or place.leader == place.replicas[0]):
            raise BrokerError(f"broker {place.leader} leads it already", code=Code.ELECTION_NOT_NEEDED)
        rules = replace(self._rules(topic, self._is_active), election=election)
        found = changed(place, rules)
        if found is None or found.leader == NOBODY or (not unclean and found.leader != place.replicas[0]):
            if unclean:
                raise BrokerError("no replica of it lives", code=Code.ELIGIBLE_LEADERS_NOT_AVAILABLE)
            raise BrokerError(
                f"broker {place.replicas[0]} is not in sync, or does not live",
                code=Code.PREFERRED_LEADER_NOT_AVAILABLE,
            )
        return found

    def moved(self, topic: Topic, index: int, wanted: Wanted) -> PartitionPlace | None:
        """The place when a move is to begin or to be given up; None if there is nothing to do."""
        found = changed(self._place(topic, index), self._rules(topic, self._is_active), wanted)
        if found is not None and found.leader == NOBODY:
            raise BrokerError(f"{topic.name}-{index}: nobody could lead it then", code=Code.INVALID_REPLICA_ASSIGNMENT)
        return found

    def rebalanced(self, count_max: int) -> list[Event]:
        """Leadership for first replicas that could have it and do not, as many as allowed at once."""

        def imbalanced(place: PartitionPlace) -> bool:
            first = place.replicas[0]
            return place.leader != first and first in place.isr and self._is_active(first)

        return [
            event
            for found in islice(self._where(imbalanced, self._is_active), count_max)
            for event in _changes(found._replace(rules=replace(found.rules, election=Election.PREFERRED)), NOTHING)
        ]

    # -- rules -----------------------------------------------------------------------------------

    def _where(self, concerns: Callable[[PartitionPlace], bool], is_active: Callable[[int], bool]) -> Iterator[_Found]:
        for topic in self._catalog.topics.by_name.values():
            rules: Rules | None = None
            for index, place in enumerate(topic.partitions):
                if concerns(place):
                    rules = rules or self._rules(topic, is_active)
                    yield _Found(topic, index, place, rules)

    def _rules(self, topic: Topic, is_active: Callable[[int], bool]) -> Rules:
        config = self._config_of(topic.name)
        election = Election.UNCLEAN if config.unclean_leader_election_enable else Election.ONLINE
        return Rules(is_active, min(config.min_insync_replicas, len(topic.partitions[0].replicas)), election)

    def _place(self, topic: Topic, index: int) -> PartitionPlace:
        if not 0 <= index < len(topic.partitions):
            raise BrokerError(f"there is no partition {topic.name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[index]

    def _is_active(self, node_id: int) -> bool:
        row = self._catalog.brokers.by_id.get(node_id)
        return row is not None and not row.fenced and not row.stopping

    def _active_but(self, gone: int) -> Callable[[int], bool]:
        return lambda node_id: node_id != gone and self._is_active(node_id)

    def _active_and(self, here: int) -> Callable[[int], bool]:
        return lambda node_id: node_id == here or self._is_active(node_id)

    def _check_eligible(self, name: str, node_id: int, epoch: int) -> None:
        row = self._catalog.brokers.by_id.get(node_id)
        if row is None or row.fenced or row.stopping or epoch not in (-1, row.epoch):
            raise BrokerError(
                f"{name}: broker {node_id} is not heard of, wants to stop, or has been restarted",
                code=Code.INELIGIBLE_REPLICA,
            )


def _changes(found: _Found, wanted: Wanted) -> list[Event]:
    place = changed(found.place, found.rules, wanted)
    return [] if place is None else [Topics.move(found.topic, found.number, place)]


def _but(nodes: Sequence[int], gone: int) -> list[int]:
    return [node for node in nodes if node != gone]
