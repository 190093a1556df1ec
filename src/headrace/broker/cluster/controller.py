"""The controller: registers and fences brokers, and elects the leaders of partitions.

    registration, heartbeats, lost connections ─► BrokerSessions ─► fenced or not ─┐
    AlterPartition, ElectLeaders, reassignments ───────────────────────────────────┴► PartitionChanges ─► catalog

All of its state is in the catalog and survives a restart. Each decision is made and recorded within one turn of the
event loop, before the next request or timer.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker import clean_shutdown
from headrace.broker.broker_options import data_folder
from headrace.broker.catalog import Event
from headrace.broker.catalog.cluster import NO_EPOCH, BrokerRegistration, Brokers
from headrace.broker.catalog.topics import INTERNAL, NO_LEADER, PartitionRegistration, Topic, Topics
from headrace.broker.clock import Timer
from headrace.broker.cluster.broker_sessions import BrokerSessions
from headrace.broker.cluster.catalog_replication import CatalogFeed
from headrace.broker.cluster.elections import Election, begin_reassignment, cancel_reassignment
from headrace.broker.cluster.forwarding import FORWARDED
from headrace.broker.cluster.partition_changes import PartitionChanges
from headrace.broker.cluster.role import ClusterRole, IsrChange, advertised
from headrace.broker.context import Context, Session
from headrace.broker.handlers import Handler, handler
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.inter_broker import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")

PROPAGATION_MS_MAX = 500
"""How long the response to a change waits until the live brokers know it."""
HANDOVER_MS_MAX = 2_000
"""How long the controller waits, before a broker stops, until the new leaders know it."""
LEADERLESS_SHOWN_MAX = 5
REBALANCED_MAX = 1_000
"""Leaderships that are moved to preferred replicas at a time."""


class Controller(ClusterRole):
    """The broker that makes all decisions of a cluster. Event loop only."""

    is_controller = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._broker = broker
        self._catalog = broker.catalog
        self._folder = data_folder(broker.config)
        config = broker.config
        self.feed = CatalogFeed(broker.catalog)
        self.changes = PartitionChanges(broker.catalog, broker.log_config)
        self.sessions = BrokerSessions(broker.clock, config.of(int, "broker.session.timeout.ms"), self._session_expired)
        self._registered_at: dict[int, int] = {}  # catalog number by node id; a broker is unfenced when it has it
        self._rebalance_ms = 1000 * config.of(int, "leader.imbalance.check.interval.seconds")
        self._timer: Timer | None = None
        if config.of(bool, "auto.leader.rebalance.enable"):
            self._timer = broker.clock.call_later(self._rebalance_ms, self._rebalance)

    # -- this broker -----------------------------------------------------------------------------

    def start(self, *, trusted: bool = True) -> None:
        """Become the controller of a new or an existing cluster, before partitions are opened."""
        before = self._catalog.brokers.by_id.get(self.node_id)
        if before is not None and not trusted:
            self._distrust(self.node_id)
        if self._broker.has_partitions:
            self._register_itself(before)
        self._record(self.changes.config_changed())
        self._report_leaderless()
        for node_id, other in self._catalog.brokers.by_id.items():
            if node_id != self.node_id and not other.fenced:
                self.sessions.touch(node_id, None)  # fenced unless it sends a heartbeat soon

    def _register_itself(self, before: BrokerRegistration | None) -> None:
        addresses = advertised(self._broker.listeners)
        if before is not None and any(port == 0 for _, port in addresses.values()):
            addresses = dict(before.listeners)  # until the system has chosen the ports
        self.broker_epoch = self._catalog.brokers.last_epoch + 1
        registration = BrokerRegistration(
            self.node_id,
            uuid.uuid4().hex,
            self.broker_epoch,
            addresses,
            self._broker.rack,
            fenced=True,
            stopping=False,
            unfenced_epoch=0 if before is None else before.unfenced_epoch,
        )
        self._record([self._registration_event(registration)])
        # As for other brokers: unfenced only when the epoch is on its disk.
        clean_shutdown.save_epoch(self._folder, self.broker_epoch)
        restarted = self.changes.broker_restarted(self.node_id) if before is not None else []
        unfenced = self._registration_event(_unfenced(registration))
        self._record([unfenced, *restarted, *self.changes.broker_returned(self.node_id)])

    async def join(self) -> None:
        self._broker.server.disconnected_listeners.append(self.sessions.disconnected)
        registration = self._catalog.brokers.by_id.get(self.node_id)
        addresses = advertised(self._broker.listeners)
        if registration is not None and registration.listeners != addresses:
            self._record([self._registration_event(replace(registration, listeners=addresses))])

    async def leave(self) -> None:
        events = self.changes.hand_over(self.node_id)
        if events:
            self._record(events)
            await self.feed.wait_replicated(self._others, self._catalog.recent.next_number, HANDOVER_MS_MAX)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.sessions.close()
        await self.peers.close()

    # -- other brokers ---------------------------------------------------------------------------

    def register(self, message: BrokerRegistrationRequest, connection: Session) -> int:
        """Register a broker, fenced at first; return its epoch. Raises if its node id is in use."""
        node_id, incarnation = message.broker_id, message.incarnation_id.hex()
        before = self._catalog.brokers.by_id.get(node_id)
        if node_id == self.node_id or (
            before is not None and before.incarnation != incarnation and self.sessions.is_connected(node_id)
        ):
            raise BrokerError(
                f"node.id {node_id} is already used by another broker: give each broker a unique node.id",
                code=Code.DUPLICATE_BROKER_REGISTRATION,
            )
        if before is not None:
            if not before.fenced:
                self._fence(node_id, "it was restarted")
            if not before.trusts(message.previous_broker_epoch):
                self._distrust(node_id)
        epoch = self._catalog.brokers.last_epoch + 1
        registration = BrokerRegistration(
            node_id,
            incarnation,
            epoch,
            {listener.name: (listener.host, listener.port) for listener in message.listeners},
            message.rack,
            fenced=True,
            stopping=False,
            unfenced_epoch=0 if before is None else before.unfenced_epoch,
        )
        self._record([self._registration_event(registration)])
        self._registered_at[node_id] = self._catalog.recent.next_number
        self.sessions.touch(node_id, connection)
        log.info("broker %d registered with epoch %d", node_id, epoch)
        return epoch

    async def heartbeat(self, message: BrokerHeartbeatRequest, connection: Session) -> BrokerHeartbeatResponse:
        """Extend the session of a broker; unfence it, or let it shut down."""
        node_id = message.broker_id
        registration = self._registration(node_id, message.broker_epoch)
        self.sessions.touch(node_id, connection)
        caught_up = message.current_metadata_offset >= self._registered_at.get(node_id, 0)
        if message.want_shut_down:
            return await self._shut_down(registration)
        if registration.fenced and caught_up and not message.want_fence:
            log.info("broker %d is unfenced", node_id)
            registration = _unfenced(registration)
            self._record([self._registration_event(registration), *self.changes.broker_returned(node_id)])
        return BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=registration.fenced)

    async def _shut_down(self, registration: BrokerRegistration) -> BrokerHeartbeatResponse:
        """Let a broker stop when its partitions have new leaders that know it."""
        node_id = registration.node_id
        if not registration.stopping:
            stopping = self._registration_event(replace(registration, stopping=True))
            self._record([*self.changes.broker_gone(node_id), stopping])
        await self.feed.wait_replicated(self._others, self._catalog.recent.next_number, HANDOVER_MS_MAX)
        self._fence(node_id, "it is shutting down")
        return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)

    def _session_expired(self, node_id: int) -> None:
        self._fence(node_id, "its session has expired")

    def _fence(self, node_id: int, reason: str) -> None:
        registration = self._catalog.brokers.by_id.get(node_id)
        if registration is None or registration.fenced:
            return
        events = self.changes.broker_gone(node_id)
        self._record([*events, self._registration_event(replace(registration, fenced=True))])
        log.log(logging.INFO if registration.stopping else logging.WARNING, "fenced broker %d: %s", node_id, reason)
        self.feed.forget(node_id)

    def _distrust(self, node_id: int) -> None:
        """Remove a broker that lost data from all in-sync sets and eligible leader replicas."""
        events = self.changes.broker_lost_data(node_id)
        if events:
            log.warning(
                "broker %d may have lost data: it is no longer in sync or eligible to lead in %d partitions",
                node_id,
                len(events),
            )
            self._record(events)
            self._report_leaderless()

    def _report_leaderless(self) -> None:
        """Log the partitions that need an operator to get a leader."""
        stuck = [partition for partition in self._catalog.topics.leaderless() if not partition.candidates]
        for partition in stuck[:LEADERLESS_SHOWN_MAX]:
            log.error("%s", partition)
        if len(stuck) > LEADERLESS_SHOWN_MAX:
            log.error(
                "%d more partitions have no leader: see `headrace broker status`", len(stuck) - LEADERLESS_SHOWN_MAX
            )

    def unregister(self, node_id: int) -> None:
        """Remove a broker. If it registers again it is a new one, even if it is still in the replicas of partitions."""
        if node_id not in self._catalog.brokers.by_id:
            raise BrokerError(f"broker {node_id} is not registered", code=Code.BROKER_ID_NOT_REGISTERED)
        self._fence(node_id, "it is unregistered")
        removal = Brokers.removal(node_id, self._catalog.brokers.last_epoch)
        self._record([*self.changes.broker_lost_data(node_id), removal])
        self.sessions.forget(node_id)
        self._registered_at.pop(node_id, None)

    # -- partitions ------------------------------------------------------------------------------

    async def alter_partition(self, change: IsrChange) -> PartitionRegistration:
        return self.alter_isr(self.node_id, self.broker_epoch, change)

    def alter_isr(self, node_id: int, broker_epoch: int, change: IsrChange) -> PartitionRegistration:
        """Change the in-sync set of a partition as its leader proposes."""
        self._registration(node_id, broker_epoch)
        topic = self._catalog.topics.by_id.get(change.topic_id)
        if topic is None:
            raise BrokerError(f"unknown topic id {change.topic_id.hex()}", code=Code.UNKNOWN_TOPIC_ID)
        partition = self.changes.alter_isr(node_id, topic, change)
        if partition is None:
            return topic.partitions[change.partition]
        self._record([Topics.partition_change(topic, change.partition, partition)])
        if partition.leader != node_id:
            raise BrokerError(
                f"{topic.name}-{change.partition}: broker {partition.leader} is the new leader",
                code=Code.NEW_LEADER_ELECTED,
            )
        return partition

    def elect(self, topic: Topic, index: int, election: Election) -> None:
        """Elect another leader. Raises BrokerError if it is not needed or not possible."""
        self._record([Topics.partition_change(topic, index, self.changes.elect(topic, index, election))])

    def reassign(self, topic: Topic, index: int, replicas: Sequence[int] | None) -> None:
        """Start the reassignment of a partition to other replicas; None cancels a running one."""
        before = topic.partitions[index]
        change = cancel_reassignment(before) if replicas is None else begin_reassignment(before, replicas)
        partition = self.changes.reassign(topic, index, change)
        if partition is not None:
            self._record([Topics.partition_change(topic, index, partition)])

    def _rebalance(self) -> None:
        """Move leaderships to the preferred replicas, periodically."""
        self._timer = self._broker.clock.call_later(self._rebalance_ms, self._rebalance)
        self._record(self.changes.elect_preferred(REBALANCED_MAX))

    # -- other requests for the controller -------------------------------------------------------

    async def create_topic(self, name: str) -> None:
        self.ensure_topic(name)
        await self.wait_propagated()

    def ensure_topic(self, name: str) -> None:
        """Create a topic if it is missing."""
        if name in INTERNAL:
            self._broker.internal.ensure(name)
        elif name not in self._catalog.topics.by_name:
            self._broker.topic_manager.auto_create(name)

    def reserve_producer_ids(self) -> tuple[int, int]:
        """Reserve a block of producer ids; return the first id, and the first id after the block."""
        return self._broker.transactions.ids.reserve()

    def handlers(self) -> Callable[[int], Handler]:
        """Return the look-up of handlers by API key."""
        return lambda api_key: self._handle_change if api_key in FORWARDED else handler(api_key)

    async def _handle_change(self, broker: Broker, context: Context, message: Message) -> Message | None:
        """Handle a request that changes the cluster; respond when the live brokers know the change."""
        result = handler(context.api_key)(broker, context, message)
        self._record(self.changes.config_changed())  # before other brokers get a new min.insync.replicas
        response = await result if isinstance(result, Awaitable) else result
        await self.wait_propagated()
        return response

    async def wait_propagated(self) -> None:
        """Wait, within a limit, until all live brokers have the last change: a client may use any of them next."""
        await self.feed.wait_replicated(self._others, self._catalog.recent.next_number, PROPAGATION_MS_MAX)

    def _others(self) -> list[int]:
        """Return the other live brokers that are not shutting down."""
        live = self._catalog.brokers.live()
        return [other.node_id for other in live if other.node_id != self.node_id and not other.stopping]

    def _registration(self, node_id: int, epoch: int) -> BrokerRegistration:
        registration = self._catalog.brokers.by_id.get(node_id)
        if registration is None or registration.epoch != epoch or epoch == NO_EPOCH:
            raise BrokerError(
                f"broker {node_id} has a stale epoch {epoch}: it has to register again", code=Code.STALE_BROKER_EPOCH
            )
        return registration

    def _registration_event(self, registration: BrokerRegistration) -> Event:
        return Brokers.change(registration, self.node_id)

    def _record(self, events: list[Event]) -> None:
        if not events:
            return
        by_id = self._catalog.topics.by_id
        changed = [
            (by_id[bytes.fromhex(event["id"])], event["index"]) for event in events if event["kind"] == "partition"
        ]
        before = [topic.partitions[index] for topic, index in changed]
        self._catalog.record(*events)
        for (topic, index), partition in zip(changed, before, strict=True):
            leader = topic.partitions[index].leader
            if leader not in (NO_LEADER, partition.leader, *partition.isr, *partition.elr):
                log.warning(
                    "%s-%d: broker %d is leader by unclean election: acknowledged records that it lacks are lost",
                    topic.name,
                    index,
                    leader,
                )


def controller_for(broker: Broker, context: Context) -> Controller:
    """Return the controller if this broker is it and the peer is authorized; otherwise raise."""
    broker.authorizer.require_on_cluster(context.session, Operation.CLUSTER_ACTION)
    if not isinstance(broker.cluster, Controller):
        raise BrokerError(f"broker {broker.node_id} is not the controller", code=Code.NOT_CONTROLLER)
    return broker.cluster


def _unfenced(registration: BrokerRegistration) -> BrokerRegistration:
    return replace(registration, fenced=False, stopping=False, unfenced_epoch=registration.epoch)
