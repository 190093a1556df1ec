"""The membership of a broker: it registers with the controller and sends heartbeats.

new ─ BrokerRegistration ─► fenced ─ heartbeat, caught up ─► unfenced ─ want_shut_down ─► stopped
 ▲                                                              │
 └──────────────── STALE_BROKER_EPOCH ──────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.broker.catalog.cluster import NO_EPOCH
from headrace.broker.catalog.history import StaleCatalogError
from headrace.broker.cluster.peer import Peer
from headrace.broker.tasks import start_loop
from headrace.errors import BrokerError, ClosedError, Code, ConfigError, ConnectionFailedError
from headrace.wire.api.inter_broker import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
)
from headrace.wire.api.inter_broker import Listener as ListenerRow
from headrace.wire.schema import Message, RequestMessage

log = logging.getLogger("headrace.broker")

REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
RETRY_MS = 100.0
NOT_CAUGHT_UP_MS = 20.0
"""The heartbeat interval of a fenced broker."""
NOT_JOINED_MS = 2_000.0
"""The wait before joining again after the controller's catalog was rejected."""
LEAVE_MS_MAX = 5_000
"""The timeout of registrations and heartbeats, and so of a controlled shutdown."""

_FATAL: dict[int, str] = {
    Code.INCONSISTENT_CLUSTER_ID: "its data belong to another cluster than the controller's",
    Code.CLUSTER_AUTHORIZATION_FAILED: "the controller does not authorize it for CLUSTER_ACTION",
    Code.INVALID_REGISTRATION: "the controller has no user and password for other brokers; see its log for what to set",
}

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a broker registers with."""

    node_id: int
    cluster_id: str
    rack: str | None
    listeners: dict[str, tuple[str, int]]


class Membership:
    """Registers with the controller and keeps a session. Event loop only."""

    def __init__(
        self,
        peer: Peer,
        interval_ms: int,
        *,
        caught_up_to: Callable[[], int],
        verify: Callable[[], Awaitable[None]],
        registered: Callable[[int], None],
    ) -> None:
        """`caught_up_to` returns the position in the catalog; `registered` is called with every new epoch.

        `verify` raises StaleCatalogError or ConfigError, and logs it, if this broker must not join the controller.
        """
        self._peer = peer
        self._interval_ms = interval_ms
        self._caught_up_to = caught_up_to
        self._verify = verify
        self._registered = registered
        self._incarnation = uuid.uuid4().bytes
        self._info: BrokerInfo | None = None
        self._previous_epoch = NO_EPOCH
        self._task: asyncio.Task[None] | None = None
        self._unfenced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_rejection = 0  # error code, to log each once
        self.epoch = NO_EPOCH

    def start(self, info: BrokerInfo, previous_epoch: int) -> None:
        """Start to register. `previous_epoch` is that of the last run if no data were lost since."""
        self._info, self._previous_epoch = info, previous_epoch
        self._task = start_loop(self._run, "heartbeats")

    async def wait_unfenced(self, timeout_ms: float) -> None:
        """Wait until this broker is unfenced. Raises ConfigError if it is rejected, ConnectionFailedError if late."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.shield(self._unfenced)
        except TimeoutError:
            raise ConnectionFailedError(
                f"timed out after {timeout_ms:g} ms waiting for the controller to unfence this broker"
            ) from None

    async def leave(self) -> None:
        """Request a controlled shutdown; return when it is granted or fails."""
        await self._cancel()
        if self.epoch == NO_EPOCH or not self._peer.is_connected:
            return
        try:
            await self._heartbeat(want_shut_down=True)
        except (BrokerError, ConnectionFailedError, ClosedError) as error:
            log.warning("this broker stops without a controlled shutdown: %s", error)

    async def close(self) -> None:
        await self._cancel()
        await self._peer.close()

    async def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                if self.epoch == NO_EPOCH:
                    await self._register()
                response = await self._heartbeat()
                if response.is_fenced:
                    delay_ms = NOT_CAUGHT_UP_MS
                else:
                    delay_ms = self._interval_ms
                    if not self._unfenced.done():
                        self._unfenced.set_result(None)
            except ClosedError:
                return
            except ConnectionFailedError as error:
                log.debug("the controller is unreachable: %s", error)
                delay_ms = RETRY_MS
            except (StaleCatalogError, ConfigError):
                delay_ms = NOT_JOINED_MS
            except BrokerError as error:
                self._rejected(error)
                delay_ms = RETRY_MS
            await asyncio.sleep(delay_ms / 1000)

    def _rejected(self, error: BrokerError) -> None:
        if error.code == Code.STALE_BROKER_EPOCH:
            self._previous_epoch, self.epoch = self.epoch, NO_EPOCH
            return
        reason = _FATAL.get(error.code)
        if error.code != self._last_rejection:
            log.warning("the controller rejects this broker: %s", reason or error)
        self._last_rejection = error.code
        if reason is not None and not self._unfenced.done():
            self._unfenced.set_exception(ConfigError(f"this broker cannot join: {reason}"))

    async def _register(self) -> None:
        info = self._info
        assert info is not None
        await self._verify()
        response = await self._request(
            BrokerRegistrationRequest(
                broker_id=info.node_id,
                cluster_id=info.cluster_id,
                incarnation_id=self._incarnation,
                listeners=[
                    ListenerRow(name=name, host=host, port=port) for name, (host, port) in info.listeners.items()
                ],
                rack=info.rack,
                previous_broker_epoch=self._previous_epoch,
            ),
            REGISTRATION_VERSION,
        )
        self._registered(response.broker_epoch)  # if this fails there is no heartbeat, and it registers again
        self.epoch = response.broker_epoch
        self._last_rejection = 0

    async def _heartbeat(self, *, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        info = self._info
        assert info is not None
        return await self._request(
            BrokerHeartbeatRequest(
                broker_id=info.node_id,
                broker_epoch=self.epoch,
                current_metadata_offset=self._caught_up_to(),
                want_shut_down=want_shut_down,
            ),
            HEARTBEAT_VERSION,
        )

    async def _request(self, request: RequestMessage[M], version: int) -> M:
        response = await self._peer.request(request, version, LEAVE_MS_MAX)
        code = getattr(response, "error_code", 0)
        if code:
            raise BrokerError(f"the controller rejected {type(request).__name__}", code=code)
        return response
