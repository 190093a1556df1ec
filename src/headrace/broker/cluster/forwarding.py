"""Forwarding of client requests that only the controller can handle.

A client can send every request to any broker. The response is returned when the client's broker knows the change too,
because that broker will handle the next request of the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.cluster.catalog_replication import CatalogReplica
from headrace.broker.cluster.peer import Peer
from headrace.broker.context import Context
from headrace.broker.error_responses import error_response
from headrace.errors import BrokerError, Code, ConnectionFailedError
from headrace.wire.api import ApiKey, response_class
from headrace.wire.api.inter_broker import EnsureTopicRequest, EnsureTopicResponse, ForwardRequest, ForwardResponse
from headrace.wire.schema import Message, RequestMessage

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

R = TypeVar("R", ForwardResponse, EnsureTopicResponse)

FORWARDED = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
    }
)
CONNECT_MS_MAX = 5_000
"""How long a request waits for a connection to the controller, which may be restarting."""
CAUGHT_UP_MS_MAX = 5_000
"""How long a response waits until this broker knows the change."""
RETRY_MS = 50.0


class Forwarding:
    """Forwards requests to the controller. Event loop only."""

    def __init__(self, peer: Peer, catalog: CatalogReplica, node_id: int, timeout_ms: int) -> None:
        self._peer = peer
        self._catalog = catalog
        self._node_id = node_id
        self._timeout_ms = timeout_ms

    async def forward(self, broker: Broker, context: Context, message: Message) -> Message:
        """Handle a request by forwarding it; return the controller's response, or an error response."""
        try:
            response = await self._request(
                ForwardRequest(
                    broker_id=self._node_id,
                    request_key=context.api_key,
                    request_version=context.api_version,
                    principal=context.session.principal,
                    host=context.session.host,
                    listener=context.session.listener,
                    client_id=context.client_id,
                    body=message.encode(context.api_version),
                )
            )
        except BrokerError as error:
            return await error_response(context, message, error.code, _never, str(error.args[0]))
        return response_class(context.api_key).decode(context.api_version, response.body)

    async def ensure_topic(self, name: str) -> None:
        """Create a topic on the controller; return when it is known here."""
        await self._request(EnsureTopicRequest(broker_id=self._node_id, name=name))

    async def close(self) -> None:
        await self._peer.close()

    async def _request(self, request: RequestMessage[R]) -> R:
        try:
            await self._connect()
            response = await self._peer.request(request, 0, self._timeout_ms)
        except ConnectionFailedError as error:
            raise BrokerError(
                f"the controller does not respond ({error.args[0]}): nothing can be changed until it does",
                code=Code.REQUEST_TIMED_OUT,
            ) from error
        if response.error_code:
            raise BrokerError(response.error_message or "rejected by the controller", code=response.error_code)
        await self._catalog.wait_for(response.generation, response.next_number, CAUGHT_UP_MS_MAX)
        return response

    async def _connect(self) -> None:
        """Wait for a connection; retrying is safe because nothing has been sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONNECT_MS_MAX / 1000
        while True:
            try:
                return await self._peer.connect()
            except ConnectionFailedError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(RETRY_MS / 1000)


async def _never() -> Message | None:
    raise AssertionError("only Metadata calls the handler again, and it is not forwarded")
