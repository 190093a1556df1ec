"""The role of a broker that is not the controller: it replicates the catalog, is a member, and forwards changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker import clean_shutdown
from headrace.broker.broker_options import data_folder
from headrace.broker.catalog.cluster import NO_EPOCH
from headrace.broker.catalog.history import StaleCatalogError
from headrace.broker.catalog.topics import PartitionRegistration, Topics
from headrace.broker.cluster.catalog_replication import CatalogReplica
from headrace.broker.cluster.forwarding import FORWARDED, Forwarding
from headrace.broker.cluster.isr import AlterPartitionManager
from headrace.broker.cluster.membership import BrokerInfo, Membership
from headrace.broker.cluster.peer import Address, Peer, RefusedError
from headrace.broker.cluster.role import ClusterRole, IsrChange, advertised
from headrace.broker.handlers import Handler, handler
from headrace.errors import BrokerError, ConfigError, ConnectionFailedError, HeadraceError
from headrace.wire.api.inter_broker import AllocateProducerIdsRequest

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger("headrace.broker")

WITHOUT_CONTROLLER_MS = 3_000
"""How long a broker with a copy of the catalog waits for the controller before it starts without it."""


class FollowerRole(ClusterRole):
    """The role of a broker in the cluster of another controller. Event loop only."""

    is_controller = False

    def __init__(self, broker: Broker, controller: str) -> None:
        super().__init__(broker)
        self._broker = broker
        self._catalog = broker.catalog
        self._folder = data_folder(broker.config)
        self._address = _parse_address(controller)
        config = broker.config
        self._timeout_ms = config.of(int, "request.timeout.ms")
        self._join_ms_max = config.of(int, "initial.broker.registration.timeout.ms")
        self._controlled_shutdown = config.of(bool, "controlled.shutdown.enable")
        self._replica = CatalogReplica(broker.catalog, self._peer("catalog"), self.node_id, self._redirect)
        self._membership = Membership(
            self._peer("membership"),
            config.of(int, "broker.heartbeat.interval.ms"),
            caught_up_to=lambda: self._replica.next_number,
            verify=self._replica.verify,
            registered=self._registered,
        )
        self._control = self._peer("control")
        self._forwarding = Forwarding(self._peer("forward"), self._replica, self.node_id, self._timeout_ms)
        self._alter_partition = AlterPartitionManager(
            self._control, self.node_id, lambda: self.broker_epoch, self._timeout_ms
        )
        self._previous_epoch = NO_EPOCH
        self._started_from_copy = False

    def _peer(self, purpose: str) -> Peer:
        return Peer(lambda: self._address, client_id=f"broker-{self.node_id}-{purpose}", tls=self.tls, login=self.login)

    # -- joining and leaving ---------------------------------------------------------------------

    async def catch_up(self, previous_epoch: int) -> None:
        """Fetch the catalog before partitions are opened; use the local copy if the controller is unreachable."""
        self._previous_epoch = previous_epoch
        has_copy = bool(self._catalog.identity.cluster_id)
        try:
            await self._replica.catch_up(WITHOUT_CONTROLLER_MS if has_copy else self._join_ms_max)
        except RefusedError as error:
            raise self._rejected(error) from error
        except ConnectionFailedError as error:
            if not has_copy:
                raise ConfigError(
                    f"headrace.controller: no broker responds at {self.controller_address}: start it first, or correct "
                    f"the address ({error.args[0]})"
                ) from error
            log.warning(
                "the controller at %s does not respond: this broker leads no partition until it does",
                self.controller_address,
            )
            self._start_from_copy()
        except StaleCatalogError:
            self._start_from_copy()
        except BrokerError as error:
            raise self._rejected(error) from error

    def _start_from_copy(self) -> None:
        """Lead nothing: the copy may be old, and its partitions may have other leaders by now."""
        self._started_from_copy = True
        self._catalog.overlay([Topics.not_led_by(self.node_id, event) for event in self._catalog.topics.snapshot()])

    def _rejected(self, error: HeadraceError) -> ConfigError:
        return ConfigError(
            f"headrace.controller: the broker at {self.controller_address} rejects this broker: {error.args[0]}"
        )

    def handlers(self) -> Callable[[int], Handler]:
        """Return the look-up of handlers by API key."""
        forward: Handler = self._forwarding.forward
        return lambda api_key: forward if api_key in FORWARDED else handler(api_key)

    async def join(self) -> None:
        cluster_id = self._catalog.identity.cluster_id
        info = BrokerInfo(self.node_id, cluster_id, self._broker.rack, advertised(self._broker.listeners))
        self._membership.start(info, self._previous_epoch)
        if not self._started_from_copy:
            await self._membership.wait_unfenced(self._join_ms_max)

    async def leave(self) -> None:
        if self._controlled_shutdown:
            await self._membership.leave()

    async def close(self) -> None:
        await self._membership.close()
        await self._replica.close()
        await self._alter_partition.close()
        await self._forwarding.close()
        await self._control.close()
        await self.peers.close()

    def _registered(self, epoch: int) -> None:
        clean_shutdown.save_epoch(self._folder, epoch)  # before the first heartbeat, which unfences this broker
        self.broker_epoch = epoch
        self._replica.start()

    @property
    def controller_address(self) -> str:
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _redirect(self, address: str) -> None:
        """Use another controller address: the broker at headrace.controller is not the controller."""
        log.info("the broker at %s is not the controller, which is at %s", self.controller_address, address)
        self._address = _parse_address(address)

    @property
    def catalog_problem(self) -> str | None:
        return self._replica.problem

    # -- requests to the controller --------------------------------------------------------------

    async def alter_partition(self, change: IsrChange) -> PartitionRegistration:
        topic = self._catalog.topics.by_id.get(change.topic_id)
        result = await self._alter_partition.alter(change)
        replicas = topic.partitions[change.partition].replicas if topic is not None else ()
        return PartitionRegistration(
            replicas, tuple(result.isr), result.leader_id, result.leader_epoch, result.partition_epoch
        )

    async def create_topic(self, name: str) -> None:
        await self._forwarding.ensure_topic(name)

    async def wait_propagated(self) -> None:
        return None

    async def allocate_producer_ids(self) -> tuple[int, int]:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.broker_epoch)
        response = await self._control.request(request, 0, self._timeout_ms)
        if response.error_code:
            raise BrokerError("the controller rejected AllocateProducerIds", code=response.error_code)
        return response.producer_id_start, response.producer_id_start + response.producer_id_len


def _parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 0xFFFF:
        raise ConfigError(f"headrace.controller is {text!r}; it may be HOST:PORT of the cluster's controller")
    return host.strip("[]"), int(port)
