"""A broker that is not the controller: it follows the catalog, is a member, and hands on what it may not do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.catalog.epochs import StaleCatalogError
from headrace.broker.catalog.topics import PartitionPlace, Topics
from headrace.broker.cluster import trust
from headrace.broker.cluster.catalog_link import CatalogLink
from headrace.broker.cluster.cluster import NO_EPOCH, Cluster, advertised
from headrace.broker.cluster.forwarding import FORWARDED, Forwarding
from headrace.broker.cluster.in_sync_requests import InSyncRequests
from headrace.broker.cluster.link import Address, Peer, RefusedError
from headrace.broker.cluster.registration import Card, Membership
from headrace.broker.handlers import Handler, handler
from headrace.errors import BrokerError, ConfigError, ConnectionFailedError, HeadraceError
from headrace.wire.api.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")

WITHOUT_CONTROLLER_MS = 3_000
"""A broker that has been here before starts without its controller when that does not answer for so long."""


class Following(Cluster):
    """This broker's part in another one's cluster. Event loop only."""

    is_controller = False

    def __init__(self, broker: Broker, controller: str) -> None:
        super().__init__(broker)
        self._broker = broker
        self._catalog = broker.catalog
        self._folder = data_folder(broker.config)
        self._address = _address(controller)
        config = broker.config
        self._timeout_ms = config.of(int, "request.timeout.ms")
        self._join_ms_max = config.of(int, "initial.broker.registration.timeout.ms")
        self._hands_over = config.of(bool, "controlled.shutdown.enable")
        self._link = CatalogLink(broker.catalog, self._peer("catalog"), self.node_id, self._redirect)
        self._membership = Membership(
            self._peer("membership"),
            config.of(int, "broker.heartbeat.interval.ms"),
            lambda: self._link.next_number,
            self._link.verify,
            self._registered,
        )
        self._control = self._peer("control")
        self._forwarding = Forwarding(self._peer("forward"), self._link, self.node_id, self._timeout_ms)
        self._in_sync = InSyncRequests(self._control, self.node_id, lambda: self.broker_epoch, self._timeout_ms)
        self._previous_epoch = NO_EPOCH
        self._is_cut_off = False

    def _peer(self, purpose: str) -> Peer:
        return Peer(lambda: self._address, client_id=f"broker-{self.node_id}-{purpose}", tls=self.tls, login=self.login)

    # -- coming and going ------------------------------------------------------------------------

    async def catch_up(self, previous_epoch: int) -> None:
        """Get the catalog, before anything is taken over from it; start from our copy if the controller is away."""
        self._previous_epoch = previous_epoch
        knows_it = bool(self._catalog.identity.cluster_id)
        try:
            await self._link.catch_up(WITHOUT_CONTROLLER_MS if knows_it else self._join_ms_max)
        except RefusedError as error:
            raise self._not_taken_in(error) from error
        except ConnectionFailedError as error:
            if not knows_it:
                raise ConfigError(
                    f"headrace.controller: no broker answers at {self._shown}: start that one first, or correct the "
                    f"address ({error.args[0]})"
                ) from error
            log.warning("the controller at %s does not answer: this broker leads nothing until it does", self._shown)
            self._start_from_copy()
        except StaleCatalogError:
            self._start_from_copy()
        except BrokerError as error:
            raise self._not_taken_in(error) from error

    def _start_from_copy(self) -> None:
        """Our copy may be old: others may lead by now what it says that we do."""
        self._is_cut_off = True
        self._catalog.assume([Topics.not_led_by(self.node_id, event) for event in self._catalog.topics.snapshot()])

    def _not_taken_in(self, error: HeadraceError) -> ConfigError:
        return ConfigError(
            f"headrace.controller: the broker at {self._shown} does not take this one in: {error.args[0]}"
        )

    def handlers(self) -> Callable[[int], Handler]:
        """What answers an API key here."""
        hand_on: Handler = self._forwarding.hand_on
        return lambda api_key: hand_on if api_key in FORWARDED else handler(api_key)

    async def joined(self) -> None:
        identity = self._catalog.identity
        card = Card(self.node_id, identity.cluster_id, self._broker.rack, advertised(self._broker.listeners))
        self._membership.start(card, self._previous_epoch)
        if not self._is_cut_off:
            await self._membership.lives(self._join_ms_max)

    async def leave(self) -> None:
        if self._hands_over:
            await self._membership.leave()

    async def close(self) -> None:
        await self._membership.close()
        await self._link.close()
        await self._in_sync.close()
        await self._forwarding.close()
        await self._control.close()
        await self.peers.close()

    def _registered(self, epoch: int) -> None:
        trust.keep_epoch(self._folder, epoch)  # before the first heartbeat, and so before it is unfenced
        self.broker_epoch = epoch
        self._link.follow()

    @property
    def _shown(self) -> str:
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def controller_address(self) -> str:
        return self._shown

    def _redirect(self, address: str) -> None:
        """The broker that headrace.controller names is not the controller, and tells who is."""
        log.info("the broker at %s is not the controller: that is at %s", self._shown, address)
        self._address = _address(address)

    @property
    def catalog_problem(self) -> str | None:
        return self._link.problem

    # -- what the controller does for us ---------------------------------------------------------

    async def alter_partition(
        self, topic_id: bytes, index: int, leader_epoch: int, partition_epoch: int, new_isr: Mapping[int, int]
    ) -> PartitionPlace:
        topic = self._catalog.topics.by_id.get(topic_id)
        answer = await self._in_sync.ask(topic_id, index, leader_epoch, partition_epoch, new_isr)
        replicas = topic.partitions[index].replicas if topic is not None else ()
        return PartitionPlace(
            replicas, tuple(answer.isr), answer.leader_id, answer.leader_epoch, answer.partition_epoch
        )

    async def create_topic(self, name: str) -> None:
        await self._forwarding.ensure_topic(name)

    async def spread(self) -> None:
        return None

    async def producer_ids(self) -> tuple[int, int]:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        answer = await self._control.ask(request, 0, self._timeout_ms)
        assert isinstance(answer, AllocateProducerIdsResponse)
        if answer.error_code:
            raise BrokerError("the controller refuses producer ids", code=answer.error_code)
        return answer.producer_id_start, answer.producer_id_start + answer.producer_id_len


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 0xFFFF:
        raise ConfigError(f"headrace.controller is HOST:PORT of the cluster's controller, not {text!r}")
    return host.strip("[]"), int(port)
