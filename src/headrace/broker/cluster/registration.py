"""A broker's membership: it registers with the controller, and says again and again that it lives.

new ─ BrokerRegistration ─► fenced ─ heartbeat, caught up ─► lives ─ want_shut_down ─► may stop
 ▲                                                             │
 └────────────── the controller does not know our epoch ───────┘
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.broker.catalog.epochs import StaleCatalogError
from headrace.broker.cluster.cluster import NO_EPOCH
from headrace.broker.cluster.link import Peer
from headrace.broker.tasks import start_loop
from headrace.errors import BrokerError, ClosedError, Code, ConfigError, ConnectionFailedError
from headrace.wire.api.inter_broker import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace.wire.api.inter_broker import Listener as ListenerRow
from headrace.wire.schema import Message

log = logging.getLogger("headrace.broker")

REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
RETRY_MS = 100.0
NOT_CAUGHT_UP_MS = 20.0
"""The wait before the next heartbeat of a broker that does not count as living yet."""
NOT_JOINED_MS = 2_000.0
"""The wait before the next attempt to join a controller whose catalog is refused."""
LEAVE_MS_MAX = 5_000
"""How long a broker that wants to stop waits to be let go."""

_FATAL: dict[int, str] = {
    Code.INCONSISTENT_CLUSTER_ID: "its data are of another cluster than the controller's",
    Code.CLUSTER_AUTHORIZATION_FAILED: "the controller does not give it the right CLUSTER_ACTION",
    Code.INVALID_REGISTRATION: "the controller has no user and password for other brokers; its log says what to set",
}

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Card:
    """Who registers."""

    node_id: int
    cluster_id: str
    rack: str | None
    listeners: dict[str, tuple[str, int]]


class Membership:
    """Registers, and keeps a session with the controller. Event loop only."""

    def __init__(
        self,
        peer: Peer,
        interval_ms: int,
        caught_up_to: Callable[[], int],
        verify: Callable[[], Awaitable[None]],
        registered: Callable[[int], None],
    ) -> None:
        """`caught_up_to` tells how much of the catalog is known; `registered` is told every new epoch.

        `verify` raises StaleCatalogError or ConfigError, with a line in the log, if the controller must not be joined.
        """
        self._peer = peer
        self._interval_ms = interval_ms
        self._caught_up_to = caught_up_to
        self._verify = verify
        self._registered = registered
        self._incarnation = uuid.uuid4().bytes
        self._card: Card | None = None
        self._previous_epoch = NO_EPOCH
        self._task: asyncio.Task[None] | None = None
        self._lives: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refusal = 0  # the code of the last one
        self.epoch = NO_EPOCH

    def start(self, card: Card, previous_epoch: int) -> None:
        """Join as who we are. `previous_epoch` is that of the last run if nothing was lost since."""
        self._card, self._previous_epoch = card, previous_epoch
        self._task = start_loop(self._run, "heartbeats")

    async def lives(self, timeout_ms: float) -> None:
        """Wait until we count as living. Raises ConfigError if that will not be, ConnectionFailedError in the end."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(self._lives)
        except TimeoutError:
            raise ConnectionFailedError(f"the controller has not taken this broker in for {timeout_ms:g} ms") from None

    async def leave(self) -> None:
        """Ask to be let go; return when that is so, or nobody answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self.epoch == NO_EPOCH or not self._peer.is_connected:
            return
        try:
            await self._heartbeat(want_shut_down=True)
        except (BrokerError, ConnectionFailedError, ClosedError) as error:
            log.warning("this broker stops without having been let go: %s", error)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._peer.close()

    async def _run(self) -> None:
        while True:
            try:
                if self.epoch == NO_EPOCH:
                    await self._register()
                answer = await self._heartbeat()
                if answer.is_fenced:
                    delay_ms = NOT_CAUGHT_UP_MS
                else:
                    delay_ms = self._interval_ms
                    if not self._lives.done():
                        self._lives.set_result(None)
            except ClosedError:
                return
            except ConnectionFailedError as error:
                log.debug("the controller is not reached: %s", error)
                delay_ms = RETRY_MS
            except (StaleCatalogError, ConfigError):
                delay_ms = NOT_JOINED_MS
            except BrokerError as error:
                self._refused(error)
                delay_ms = RETRY_MS
            await asyncio.sleep(delay_ms / 1000)

    def _refused(self, error: BrokerError) -> None:
        if error.code == Code.STALE_BROKER_EPOCH:
            self._previous_epoch, self.epoch = self.epoch, NO_EPOCH
            return
        reason = _FATAL.get(error.code)
        if error.code != self._refusal:  # each once: it is tried again and again
            log.warning("the controller does not take this broker in: %s", reason or error)
        self._refusal = error.code
        if reason is not None and not self._lives.done():
            self._lives.set_exception(ConfigError(f"this broker cannot join: {reason}"))

    async def _register(self) -> None:
        card = self._card
        assert card is not None
        await self._verify()
        answer = await self._ask(
            BrokerRegistrationRequest(
                broker_id=card.node_id,
                cluster_id=card.cluster_id,
                incarnation_id=self._incarnation,
                listeners=[
                    ListenerRow(name=name, host=host, port=port) for name, (host, port) in card.listeners.items()
                ],
                rack=card.rack,
                previous_broker_epoch=self._previous_epoch,
            ),
            REGISTRATION_VERSION,
            BrokerRegistrationResponse,
        )
        self._registered(answer.broker_epoch)  # no heartbeat without: if it fails, this broker registers again
        self.epoch = answer.broker_epoch
        self._refusal = 0

    async def _heartbeat(self, *, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        card = self._card
        assert card is not None
        return await self._ask(
            BrokerHeartbeatRequest(
                broker_id=card.node_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._caught_up_to(),
                want_shut_down=want_shut_down,
            ),
            HEARTBEAT_VERSION,
            BrokerHeartbeatResponse,
        )

    async def _ask(self, request: Message, version: int, kind: type[M]) -> M:
        answer = await self._peer.ask(request, version, LEAVE_MS_MAX)
        assert isinstance(answer, kind)
        code = getattr(answer, "error_code", 0)
        if code:
            raise BrokerError(f"the controller refuses {type(request).__name__}", code=code)
        return answer
