"""Requests of clients that only the controller can answer: handed on to it, and the answer back.

The client sees one broker that does it all. It is told that something is done only when the broker it is connected to
has heard of it too: what it asks next will be answered by that one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.cluster.catalog_link import CatalogLink
from headrace.broker.cluster.link import Peer
from headrace.broker.context import Context
from headrace.broker.error_responses import error_response
from headrace.errors import BrokerError, Code, ConnectionFailedError
from headrace.wire.api import response_class
from headrace.wire.api.inter_broker import EnsureTopicRequest, EnsureTopicResponse, ForwardRequest, ForwardResponse
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

FORWARDED = frozenset(
    {
        19,  # CreateTopics
        20,  # DeleteTopics
        30,  # CreateAcls
        31,  # DeleteAcls
        33,  # AlterConfigs
        37,  # CreatePartitions
        43,  # ElectLeaders
        44,  # IncrementalAlterConfigs
        45,  # AlterPartitionReassignments
        49,  # AlterClientQuotas
        51,  # AlterUserScramCredentials
        57,  # UpdateFeatures
        64,  # UnregisterBroker
    }
)
CONNECT_MS_MAX = 5_000
"""How long a request waits for a controller that is not there: it may be restarting."""
CAUGHT_UP_MS_MAX = 5_000
"""How long the answer waits for this broker to hear of what was done."""
RETRY_MS = 50.0


class Forwarding:
    """Hands on, for a broker that is not the controller. Event loop only."""

    def __init__(self, peer: Peer, link: CatalogLink, node_id: int, timeout_ms: int) -> None:
        self._peer = peer
        self._link = link
        self._node_id = node_id
        self._timeout_ms = timeout_ms

    async def hand_on(self, broker: Broker, context: Context, message: Message) -> Message:
        """A handler: the controller's answer to a request, or one that says that there is none."""
        try:
            response = await self._ask(
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
        assert isinstance(response, ForwardResponse)
        return response_class(context.api_key).decode(context.api_version, response.body)

    async def ensure_topic(self, name: str) -> None:
        """Have the controller make a topic; return when it is known here."""
        await self._ask(EnsureTopicRequest(broker_id=self._node_id, name=name))

    async def close(self) -> None:
        await self._peer.close()

    async def _ask(self, request: ForwardRequest | EnsureTopicRequest) -> Message:
        try:
            await self._connected()
            response = await self._peer.ask(request, 0, self._timeout_ms)
        except ConnectionFailedError as error:
            raise BrokerError(
                f"the controller of the cluster does not answer ({error.args[0]}): nothing can be changed meanwhile",
                code=Code.REQUEST_TIMED_OUT,
            ) from error
        assert isinstance(response, ForwardResponse | EnsureTopicResponse)
        if response.error_code:
            raise BrokerError(response.error_message or "refused by the controller", code=response.error_code)
        await self._link.reached(response.generation, response.next_number, CAUGHT_UP_MS_MAX)
        return response

    async def _connected(self) -> None:
        """Wait for a connection: nothing has been asked yet, so there is no harm in trying again."""
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
    raise AssertionError("only Metadata asks for more, and that is not handed on")
