"""The controller's decisions on partitions as events of the catalog: elections for all affected partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog import Catalog, Event
from headrace.broker.catalog.topics import NO_LEADER, PartitionRegistration, Topic, Topics
from headrace.broker.cluster.elections import NO_CHANGE, Election, ElectionRules, PartitionChange, apply_change
from headrace.broker.cluster.role import IsrChange
from headrace.errors import BrokerError, Code

if TYPE_CHECKING:
    from headrace.broker.log import LogConfig


class _Affected(NamedTuple):
    """A partition that a change of brokers or options affects."""

    topic: Topic
    number: int
    partition: PartitionRegistration
    rules: ElectionRules

    def change(self, change: PartitionChange = NO_CHANGE, election: Election | None = None) -> list[Event]:
        rules = self.rules if election is None else replace(self.rules, election=election)
        partition = apply_change(self.partition, rules, change)
        return [] if partition is None else [Topics.partition_change(self.topic, self.number, partition)]


class PartitionChanges:
    """Reads the catalog and returns the events to record. Event loop only."""

    def __init__(self, catalog: Catalog, config_of: Callable[[str], LogConfig]) -> None:
        self._catalog = catalog
        self._config_of = config_of

    # -- brokers that come and go ----------------------------------------------------------------

    def broker_gone(self, node_id: int) -> list[Event]:
        """Return the events for a broker that is gone or shutting down: it leads nothing and is in no in-sync set."""
        return [
            event
            for affected in self._affected(lambda partition: node_id in partition.isr, self._active_except(node_id))
            for event in affected.change(PartitionChange(isr=_except(affected.partition.isr, node_id)))
        ]

    def hand_over(self, node_id: int) -> list[Event]:
        """Return the events for a broker that will stop: it keeps leading where no other broker can."""
        return [
            event
            for affected in self._affected(lambda partition: node_id in partition.isr, self._active_except(node_id))
            if any(map(affected.rules.is_active, affected.partition.isr))
            for event in affected.change(PartitionChange(isr=_except(affected.partition.isr, node_id)))
        ]

    def broker_lost_data(self, node_id: int) -> list[Event]:
        """Return the events for a broker that may have lost data: it is in sync only where it is the only replica."""

        def relies_on_broker(partition: PartitionRegistration) -> bool:
            return (node_id in partition.isr or node_id in partition.elr) and partition.replicas != (node_id,)

        return [
            event
            for affected in self._affected(relies_on_broker, self._active_except(node_id))
            for event in affected.change(
                PartitionChange(isr=_except(affected.partition.isr, node_id), distrusted=(node_id,))
            )
        ]

    def broker_returned(self, node_id: int) -> list[Event]:
        """Return the events for a broker that is unfenced: it may lead partitions without a leader."""
        return [
            event
            for affected in self._affected(lambda partition: partition.leader == NO_LEADER, self._active_with(node_id))
            for event in affected.change()
        ]

    def broker_restarted(self, node_id: int) -> list[Event]:
        """Return the events for a broker that restarted before it was fenced: it leads again in a new epoch."""
        return [
            event
            for affected in self._affected(lambda partition: partition.leader == node_id, self._active_with(node_id))
            for event in affected.change(PartitionChange(new_epoch=True))
        ]

    def config_changed(self) -> list[Event]:
        """Return the events that follow from changed topic options.

        A smaller min.insync.replicas commits more, and eligible replicas may lack it. Where unclean elections are now
        enabled, a leader is elected.
        """
        return [
            event
            for affected in self._affected(
                lambda partition: partition.leader == NO_LEADER or bool(partition.elr), self._is_active
            )
            if affected.partition.leader == NO_LEADER or len(affected.partition.isr) >= affected.rules.min_isr
            for event in affected.change()
        ]

    # -- requests --------------------------------------------------------------------------------

    def alter_isr(self, node_id: int, topic: Topic, change: IsrChange) -> PartitionRegistration | None:
        """Return the partition with the proposed in-sync set; None if nothing changes. Raises if it is rejected."""
        partition = self._partition(topic, change.partition)
        name = f"{topic.name}-{change.partition}"
        leader_epoch, partition_epoch, isr = change.leader_epoch, change.partition_epoch, change.isr
        if leader_epoch > partition.leader_epoch or partition_epoch > partition.partition_epoch:
            raise BrokerError(
                f"{name}: epochs {leader_epoch} and {partition_epoch} are newer than the controller's "
                f"{partition.leader_epoch} and {partition.partition_epoch}",
                code=Code.NOT_CONTROLLER,
            )
        if leader_epoch < partition.leader_epoch:
            raise BrokerError(
                f"{name}: leader epoch {leader_epoch} is older than {partition.leader_epoch}",
                code=Code.FENCED_LEADER_EPOCH,
            )
        if node_id != partition.leader:
            raise BrokerError(
                f"{name}: broker {node_id} is not the leader, broker {partition.leader} is", code=Code.INVALID_REQUEST
            )
        if partition_epoch < partition.partition_epoch:
            raise BrokerError(
                f"{name}: partition epoch {partition_epoch} is older than {partition.partition_epoch}",
                code=Code.INVALID_UPDATE_VERSION,
            )
        if node_id not in isr or not set(isr) <= set(partition.replicas):
            raise BrokerError(
                f"{name}: invalid in-sync set {sorted(isr)}: expected the leader {node_id} and some of the replicas "
                f"{list(partition.replicas)}",
                code=Code.INVALID_REQUEST,
            )
        for node, epoch in isr.items():
            self._check_eligible(name, node, epoch)
        return apply_change(partition, self._rules(topic, self._is_active), PartitionChange(isr=list(isr)))

    def elect(self, topic: Topic, index: int, election: Election) -> PartitionRegistration:
        """Return the partition with a newly elected leader. Raises if it is not needed or not possible."""
        before = self._partition(topic, index)
        unclean = election is Election.UNCLEAN
        preferred = before.replicas[0]
        if before.leader != NO_LEADER and (unclean or before.leader == preferred):
            raise BrokerError(f"broker {before.leader} is already the leader", code=Code.ELECTION_NOT_NEEDED)
        partition = apply_change(before, replace(self._rules(topic, self._is_active), election=election))
        if partition is None or partition.leader == NO_LEADER or (not unclean and partition.leader != preferred):
            if unclean:
                raise BrokerError("no replica is live", code=Code.ELIGIBLE_LEADERS_NOT_AVAILABLE)
            raise BrokerError(
                f"broker {preferred} is not in sync or not live", code=Code.PREFERRED_LEADER_NOT_AVAILABLE
            )
        return partition

    def reassign(self, topic: Topic, index: int, change: PartitionChange) -> PartitionRegistration | None:
        """Return the partition with a reassignment begun or cancelled; None if nothing changes."""
        partition = apply_change(self._partition(topic, index), self._rules(topic, self._is_active), change)
        if partition is not None and partition.leader == NO_LEADER:
            raise BrokerError(
                f"{topic.name}-{index} would have no leader with these replicas", code=Code.INVALID_REPLICA_ASSIGNMENT
            )
        return partition

    def elect_preferred(self, count_max: int) -> list[Event]:
        """Return the events that make preferred replicas leaders where they can be, up to a limit."""

        def is_imbalanced(partition: PartitionRegistration) -> bool:
            preferred = partition.replicas[0]
            return partition.leader != preferred and preferred in partition.isr and self._is_active(preferred)

        return [
            event
            for affected in islice(self._affected(is_imbalanced, self._is_active), count_max)
            for event in affected.change(election=Election.PREFERRED)
        ]

    # -- rules -----------------------------------------------------------------------------------

    def _affected(
        self, is_affected: Callable[[PartitionRegistration], bool], is_active: Callable[[int], bool]
    ) -> Iterator[_Affected]:
        for topic in self._catalog.topics.by_name.values():
            rules: ElectionRules | None = None
            for index, partition in enumerate(topic.partitions):
                if is_affected(partition):
                    rules = rules or self._rules(topic, is_active)
                    yield _Affected(topic, index, partition, rules)

    def _rules(self, topic: Topic, is_active: Callable[[int], bool]) -> ElectionRules:
        config = self._config_of(topic.name)
        election = Election.UNCLEAN if config.unclean_leader_election_enable else Election.ONLINE
        return ElectionRules(is_active, min(config.min_insync_replicas, len(topic.partitions[0].replicas)), election)

    def _partition(self, topic: Topic, index: int) -> PartitionRegistration:
        if not 0 <= index < len(topic.partitions):
            raise BrokerError(f"unknown partition {topic.name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[index]

    def _is_active(self, node_id: int) -> bool:
        broker = self._catalog.brokers.by_id.get(node_id)
        return broker is not None and not broker.fenced and not broker.stopping

    def _active_except(self, gone: int) -> Callable[[int], bool]:
        return lambda node_id: node_id != gone and self._is_active(node_id)

    def _active_with(self, returned: int) -> Callable[[int], bool]:
        return lambda node_id: node_id == returned or self._is_active(node_id)

    def _check_eligible(self, name: str, node_id: int, epoch: int) -> None:
        broker = self._catalog.brokers.by_id.get(node_id)
        if broker is None or broker.fenced or broker.stopping or epoch not in (-1, broker.epoch):
            raise BrokerError(
                f"{name}: broker {node_id} is fenced, stopping, or was restarted", code=Code.INELIGIBLE_REPLICA
            )


def _except(nodes: Sequence[int], removed: int) -> list[int]:
    return [node for node in nodes if node != removed]
