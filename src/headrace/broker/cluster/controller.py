"""The controller: who belongs to the cluster, who lives, and who leads what.

    registration, heartbeats, lost connections ─► Sessions ─► fenced or not ─┐
    AlterPartition, ElectLeaders, reassignments ─────────────────────────────┴► PartitionChanges ─► catalog ─► all

What it knows is in the catalog, so a restart takes nothing from it. Everything here runs between two turns of the event
loop: an occasion is looked at, decided and recorded before the next one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.catalog import Event
from headrace.broker.catalog.brokers import Brokers, Registration
from headrace.broker.catalog.topics import INTERNAL, PartitionPlace, Topic, Topics
from headrace.broker.clock import Timer
from headrace.broker.cluster import trust
from headrace.broker.cluster.catalog_feed import CatalogFeed
from headrace.broker.cluster.cluster import NO_EPOCH, Cluster, advertised
from headrace.broker.cluster.elections import NOBODY, Election, back, move
from headrace.broker.cluster.forwarding import FORWARDED
from headrace.broker.cluster.partition_changes import PartitionChanges
from headrace.broker.cluster.sessions import Sessions
from headrace.broker.context import Context, Session
from headrace.broker.handlers import Handler, handler
from headrace.errors import BrokerError, Code
from headrace.wire.api.inter_broker import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")

SPREAD_MS_MAX = 500
"""How long the answer to a change waits for the brokers that live to hear of it."""
HANDOVER_MS_MAX = 2_000
"""How long the controller waits, before it stops, for others to hear that they lead."""
LEADERLESS_SHOWN_MAX = 5
REBALANCED_MAX = 1_000
"""Leaderships that are given back at a time."""


class Controller(Cluster):
    """The one broker of a cluster that decides. Event loop only."""

    is_controller = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._broker = broker
        self._catalog = broker.catalog
        self._folder = data_folder(broker.config)
        config = broker.config
        self.feed = CatalogFeed(broker.catalog)
        self.changes = PartitionChanges(broker.catalog, broker.log_config)
        self.sessions = Sessions(broker.clock, config.of(int, "broker.session.timeout.ms"), self._session_ended)
        self._registered_at: dict[int, int] = {}  # the catalog's number then; a broker lives when it has that
        self._rebalance_ms = 1000 * config.of(int, "leader.imbalance.check.interval.seconds")
        self._timer: Timer | None = None
        if config.of(bool, "auto.leader.rebalance.enable"):
            self._timer = broker.clock.call_later(self._rebalance_ms, self._rebalance)

    # -- this broker -----------------------------------------------------------------------------

    def found(self, *, trusted: bool = True) -> None:
        """Be the controller, of a cluster that begins or of one that was there: before partitions are taken over."""
        before = self._catalog.brokers.by_id.get(self.node_id)
        if before is not None and not trusted:
            self._distrust(self.node_id)
        if self._broker.has_partitions:
            self._register_itself(before)
        self._record(self.changes.tidied())
        self._report_leaderless()
        for node_id, other in self._catalog.brokers.by_id.items():
            if node_id != self.node_id and not other.fenced:
                self.sessions.touch(node_id, None)  # it will be heard of soon if it lives

    def _register_itself(self, before: Registration | None) -> None:
        addresses = advertised(self._broker.listeners)
        if before is not None and any(port == 0 for _, port in addresses.values()):
            addresses = dict(before.listeners)  # until the system has picked the ports
        self.broker_epoch = self._catalog.brokers.last_epoch + 1
        row = Registration(
            self.node_id,
            uuid.uuid4().hex,
            self.broker_epoch,
            addresses,
            self._broker.rack,
            fenced=True,
            stopping=False,
            unfenced_epoch=0 if before is None else before.unfenced_epoch,
        )
        self._record([self._row(row)])
        trust.keep_epoch(self._folder, self.broker_epoch)  # like others: unfenced only when the epoch is on its disk
        again = self.changes.restarted(self.node_id) if before is not None else []
        self._record([self._row(_unfenced(row)), *again, *self.changes.returned(self.node_id)])

    async def joined(self) -> None:
        self._broker.server.disconnected_listener = self.sessions.disconnected
        row = self._catalog.brokers.by_id.get(self.node_id)
        addresses = advertised(self._broker.listeners)
        if row is not None and row.listeners != addresses:
            self._record([self._row(replace(row, listeners=addresses))])

    async def leave(self) -> None:
        events = self.changes.handed_over(self.node_id)
        if events:
            self._record(events)
            await self.feed.reached(self._others, self._catalog.recent.next_number, HANDOVER_MS_MAX)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.sessions.close()
        await self.peers.close()

    # -- other brokers ---------------------------------------------------------------------------

    def register(self, message: BrokerRegistrationRequest, connection: Session) -> int:
        """Take a broker in, fenced for now; its epoch. Raises if there is another one with its number."""
        node_id, incarnation = message.broker_id, message.incarnation_id.hex()
        before = self._catalog.brokers.by_id.get(node_id)
        if node_id == self.node_id or (
            before is not None and before.incarnation != incarnation and self.sessions.is_connected(node_id)
        ):
            raise BrokerError(
                f"there is a broker {node_id} already: give each a node.id of its own",
                code=Code.DUPLICATE_BROKER_REGISTRATION,
            )
        if before is not None:
            if not before.fenced:
                self._fence(node_id, "it was restarted")
            if not before.trusts(message.previous_broker_epoch):
                self._distrust(node_id)
        epoch = self._catalog.brokers.last_epoch + 1
        addresses = {one.name: (one.host, one.port) for one in message.listeners}
        row = Registration(
            node_id,
            incarnation,
            epoch,
            addresses,
            message.rack,
            fenced=True,
            stopping=False,
            unfenced_epoch=0 if before is None else before.unfenced_epoch,
        )
        self._record([self._row(row)])
        self._registered_at[node_id] = self._catalog.recent.next_number
        self.sessions.touch(node_id, connection)
        log.info("broker %d has registered, with epoch %d", node_id, epoch)
        return epoch

    async def heartbeat(self, message: BrokerHeartbeatRequest, connection: Session) -> BrokerHeartbeatResponse:
        """A broker lives: it may become, or cease to be, one that counts."""
        node_id = message.broker_id
        row = self._row_of(node_id, message.broker_epoch)
        self.sessions.touch(node_id, connection)
        caught_up = message.current_metadata_offset >= self._registered_at.get(node_id, 0)
        if message.want_shut_down:
            return await self._let_go(row)
        if row.fenced and caught_up and not message.want_fence:
            log.info("broker %d lives", node_id)
            row = _unfenced(row)
            self._record([self._row(row), *self.changes.returned(node_id)])
        return BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=row.fenced)

    async def _let_go(self, row: Registration) -> BrokerHeartbeatResponse:
        """A broker wants to stop: it may when others lead what it has led, and know it."""
        node_id = row.node_id
        if not row.stopping:
            self._record([*self.changes.without(node_id), self._row(replace(row, stopping=True))])
        await self.feed.reached(self._others, self._catalog.recent.next_number, HANDOVER_MS_MAX)
        self._fence(node_id, "it stops")
        return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=True, should_shut_down=True)

    def _session_ended(self, node_id: int) -> None:
        self._fence(node_id, "it is not heard of any more")

    def _fence(self, node_id: int, why: str) -> None:
        row = self._catalog.brokers.by_id.get(node_id)
        if row is None or row.fenced:
            return
        log.log(logging.INFO if row.stopping else logging.WARNING, "broker %d counts as gone: %s", node_id, why)
        events = self.changes.without(node_id)
        self._record([*events, self._row(replace(row, fenced=True))])
        self.feed.forget(node_id)

    def _distrust(self, node_id: int) -> None:
        """Count no longer on a broker that comes back without the data that it had."""
        events = self.changes.distrusting(node_id)
        if events:
            log.warning(
                "broker %d may have lost data: it is no longer in sync, nor eligible to lead, in %d partitions",
                node_id,
                len(events),
            )
            self._record(events)
            self._report_leaderless()

    def _report_leaderless(self) -> None:
        """Log the partitions that get no leader without somebody's help."""
        stuck = [each for each in self._catalog.topics.leaderless() if not each.candidates]
        for each in stuck[:LEADERLESS_SHOWN_MAX]:
            log.error("%s", each)
        if len(stuck) > LEADERLESS_SHOWN_MAX:
            log.error(
                "%d partitions more have no leader: `headrace broker status` lists them",
                len(stuck) - LEADERLESS_SHOWN_MAX,
            )

    def unregister(self, node_id: int) -> None:
        """Forget a broker. If it comes back it is a new one, also if it is in the replicas of a partition."""
        if node_id not in self._catalog.brokers.by_id:
            raise BrokerError(f"there is no broker {node_id}", code=Code.BROKER_ID_NOT_REGISTERED)
        self._fence(node_id, "it is to be forgotten")
        self._record([*self.changes.distrusting(node_id), Brokers.removal(node_id, self._catalog.brokers.last_epoch)])
        self.sessions.forget(node_id)
        self._registered_at.pop(node_id, None)

    # -- partitions ------------------------------------------------------------------------------

    async def alter_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, partition_epoch: int, new_isr: Mapping[int, int]
    ) -> PartitionPlace:
        return self.alter(self.node_id, self.broker_epoch, topic_id, index, leader_epoch, partition_epoch, new_isr)

    def alter(
        self,
        node_id: int,
        broker_epoch: int,
        topic_id: bytes,
        index: int,
        leader_epoch: int,
        partition_epoch: int,
        new_isr: Mapping[int, int],
    ) -> PartitionPlace:
        """Let a partition have the in-sync set that its leader asks for."""
        self._row_of(node_id, broker_epoch)
        topic = self._catalog.topics.by_id.get(topic_id)
        if topic is None:
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        place = self.changes.in_sync(node_id, topic, index, leader_epoch, partition_epoch, new_isr)
        if place is None:
            return topic.partitions[index]
        self._record([Topics.move(topic, index, place)])
        if place.leader != node_id:
            raise BrokerError(f"{topic.name}-{index}: broker {place.leader} leads it now", code=Code.NEW_LEADER_ELECTED)
        return place

    def elect(self, topic: Topic, index: int, election: Election) -> None:
        """Let a partition have another leader. BrokerError if it needs or has none."""
        place = self.changes.elect(topic, index, election)
        self._record([Topics.move(topic, index, place)])

    def move(self, topic: Topic, index: int, replicas: Sequence[int] | None) -> None:
        """Let a partition have other replicas; None gives up a move that is under way."""
        place = topic.partitions[index]
        found = self.changes.moved(topic, index, back(place) if replicas is None else move(place, replicas))
        if found is not None:
            self._record([Topics.move(topic, index, found)])

    def _rebalance(self) -> None:
        """Give leadership back to the first replicas, from time to time."""
        self._timer = self._broker.clock.call_later(self._rebalance_ms, self._rebalance)
        self._record(self.changes.rebalanced(REBALANCED_MAX))

    # -- what else only the controller does ------------------------------------------------------

    async def create_topic(self, name: str) -> None:
        self.ensure_topic(name)
        await self.spread()

    def ensure_topic(self, name: str) -> None:
        """Make a topic that is missing, because somebody asked for it."""
        if name in INTERNAL:
            self._broker.internal.ensure(name)
        elif name not in self._catalog.topics.by_name:
            self._broker.topic_admin.auto_create(name)

    async def producer_ids(self) -> tuple[int, int]:
        return self.reserve_producer_ids()

    def reserve_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids that nobody has had: the first one, and the first one beyond."""
        return self._broker.transactions.ids.reserve()

    def handlers(self) -> Callable[[int], Handler]:
        """What answers an API key here."""
        return lambda api_key: self._changing if api_key in FORWARDED else handler(api_key)

    async def _changing(self, broker: Broker, context: Context, message: Message) -> Message | None:
        """A handler: answer a request that changes the cluster when the others have heard of it."""
        answer = handler(context.api_key)(broker, context, message)
        self._record(self.changes.tidied())  # before anybody else hears of another min.insync.replicas
        response = await answer if isinstance(answer, Awaitable) else answer
        await self.spread()
        return response

    async def spread(self) -> None:
        """Wait, a little, until all that live have heard of what was recorded: a client may ask any of them next."""
        await self.feed.reached(self._others, self._catalog.recent.next_number, SPREAD_MS_MAX)

    def _others(self) -> list[int]:
        """Brokers that live, and mean to."""
        rows = self._catalog.brokers.live()
        return [row.node_id for row in rows if row.node_id != self.node_id and not row.stopping]

    def _row_of(self, node_id: int, epoch: int) -> Registration:
        row = self._catalog.brokers.by_id.get(node_id)
        if row is None or row.epoch != epoch or epoch == NO_EPOCH:
            raise BrokerError(f"broker {node_id} has to register again", code=Code.STALE_BROKER_EPOCH)
        return row

    def _row(self, row: Registration) -> Event:
        return Brokers.change(row, self.node_id)

    def _record(self, events: list[Event]) -> None:
        if not events:
            return
        by_id = self._catalog.topics.by_id
        moved = [
            (by_id[bytes.fromhex(event["id"])], event["index"]) for event in events if event["kind"] == "partition"
        ]
        before = [topic.partitions[index] for topic, index in moved]
        self._catalog.record(*events)
        for (topic, index), place in zip(moved, before, strict=True):
            leader = topic.partitions[index].leader
            if leader not in (NOBODY, place.leader, *place.isr, *place.elr):
                log.warning(
                    "%s-%d: broker %d leads it by an unclean election: acknowledged records that it lacks are lost",
                    topic.name,
                    index,
                    leader,
                )


def _unfenced(row: Registration) -> Registration:
    return replace(row, fenced=False, stopping=False, unfenced_epoch=row.epoch)
