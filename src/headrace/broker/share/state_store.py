"""The state of any share partition: at the share coordinator of this broker, or of another one.

A share coordinator that moves or is being loaded is asked again, up to a time limit. In a cluster the requests are
Kafka's InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.broker.catalog.topics import NO_LEADER, SHARE_GROUP_STATE, Topics
from headrace.broker.share.coordinator import ShareCoordinator
from headrace.broker.share.state import SharePartitionKey, ShareState, StateUpdate
from headrace.errors import BrokerError, Code, ConnectionFailedError
from headrace.wire.api.share_state import (
    DeletePartition,
    DeleteShareGroupStateRequest,
    DeleteStateData,
    InitializePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    ReadPartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    WritePartition,
    WriteShareGroupStateRequest,
    WriteStateData,
)

if TYPE_CHECKING:
    from headrace.broker.cluster.peer import Peers

RETRY_MS = 100
RETRIES_MAX = 100
"""A coordinator has ten seconds to move or to load its state."""
RESPONSE_MS = 10_000
CONNECTIONS = 4
"""Connections to each broker, because a server handles the requests of a connection in order."""
STATE_VERSION = 1
"""The version of WriteShareGroupState and ReadShareGroupStateSummary; the others have version 0 only."""
_RETRIED = (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE)

T = TypeVar("T")


class _PartitionResult(Protocol):
    """The result for a partition, in all five responses."""

    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...


class ShareStateStore:
    """Reads and writes the state of share partitions, wherever their coordinator is. Event loop only."""

    def __init__(
        self, coordinator: ShareCoordinator, topics: Topics, node_id: int, peers: Callable[[], Peers | None]
    ) -> None:
        """`peers` returns the connections to other brokers; None if the broker is standalone."""
        self._coordinator = coordinator
        self._topics = topics
        self._node_id = node_id
        self._peers = peers

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Start a new state at an offset."""

        async def request(peers: Peers, node: int) -> None:
            row = InitializePartition(partition=key.partition, state_epoch=state_epoch, start_offset=start_offset)
            message = InitializeShareGroupStateRequest(
                group_id=key.group_id, topics=[InitializeStateData(topic_id=key.topic_id, partitions=[row])]
            )
            response = await peers.to(node, _purpose(key)).request(message, 0, RESPONSE_MS)
            _check(response.results[0].partitions[0])

        await self._call(key, lambda: self._coordinator.initialize(key, state_epoch, start_offset), request)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Return the state for the leader of an epoch."""

        async def request(peers: Peers, node: int) -> ShareState:
            row = ReadPartition(partition=key.partition, leader_epoch=leader_epoch)
            message = ReadShareGroupStateRequest(
                group_id=key.group_id, topics=[ReadStateData(topic_id=key.topic_id, partitions=[row])]
            )
            response = await peers.to(node, _purpose(key)).request(message, 0, RESPONSE_MS)
            result = response.results[0].partitions[0]
            _check(result)
            return ShareState(
                state_epoch=result.state_epoch, start_offset=result.start_offset, batches=tuple(result.state_batches)
            )

        return await self._call(key, lambda: self._coordinator.read(key, leader_epoch), request)

    async def write(self, key: SharePartitionKey, update: StateUpdate) -> None:
        """Change the state."""

        async def request(peers: Peers, node: int) -> None:
            row = WritePartition(
                partition=key.partition,
                state_epoch=update.state_epoch,
                leader_epoch=update.leader_epoch,
                start_offset=update.start_offset,
                delivery_complete_count=update.complete_count,
                state_batches=update.batches,
            )
            message = WriteShareGroupStateRequest(
                group_id=key.group_id, topics=[WriteStateData(topic_id=key.topic_id, partitions=[row])]
            )
            response = await peers.to(node, _purpose(key)).request(message, STATE_VERSION, RESPONSE_MS)
            _check(response.results[0].partitions[0])

        await self._call(key, lambda: self._coordinator.write(key, update), request)

    async def delete(self, key: SharePartitionKey) -> None:
        """Delete the state, if there is one."""

        async def request(peers: Peers, node: int) -> None:
            row = DeleteStateData(topic_id=key.topic_id, partitions=[DeletePartition(partition=key.partition)])
            message = DeleteShareGroupStateRequest(group_id=key.group_id, topics=[row])
            response = await peers.to(node, _purpose(key)).request(message, 0, RESPONSE_MS)
            _check(response.results[0].partitions[0])

        await self._call(key, lambda: self._coordinator.delete(key), request)

    async def summary(self, key: SharePartitionKey) -> ShareState:
        """Return the start offset, the epochs and the number of completed deliveries, without batches."""

        async def local() -> ShareState:
            return self._coordinator.summary(key)

        async def request(peers: Peers, node: int) -> ShareState:
            row = ReadPartition(partition=key.partition, leader_epoch=-1)
            message = ReadShareGroupStateSummaryRequest(
                group_id=key.group_id, topics=[ReadStateData(topic_id=key.topic_id, partitions=[row])]
            )
            response = await peers.to(node, _purpose(key)).request(message, STATE_VERSION, RESPONSE_MS)
            result = response.results[0].partitions[0]
            _check(result)
            return ShareState(
                state_epoch=result.state_epoch,
                leader_epoch=result.leader_epoch,
                start_offset=result.start_offset,
                complete_count=result.delivery_complete_count,
            )

        return await self._call(key, local, request)

    async def _call(
        self,
        key: SharePartitionKey,
        local: Callable[[], Awaitable[T]],
        remote: Callable[[Peers, int], Awaitable[T]],
    ) -> T:
        """Call the coordinator of a share partition; retry while it moves."""
        failure = BrokerError(code=Code.COORDINATOR_NOT_AVAILABLE)
        for attempt in range(RETRIES_MAX):
            if attempt:
                await asyncio.sleep(RETRY_MS / 1000)
            try:
                node, peers = self._leader(key), self._peers()
                if node == self._node_id or peers is None:
                    return await local()
                return await remote(peers, node)
            except BrokerError as error:
                if error.code not in _RETRIED:
                    raise
                failure = error
            except ConnectionFailedError as error:
                failure = BrokerError(str(error), code=Code.COORDINATOR_NOT_AVAILABLE)
        raise BrokerError(
            f"the share coordinator of {key.coordinator_key} is not available: {failure}",
            code=Code.COORDINATOR_NOT_AVAILABLE,
        ) from failure

    def _leader(self, key: SharePartitionKey) -> int:
        index = self._coordinator.partition_for(key)
        leader = self._topics.by_name[SHARE_GROUP_STATE].partitions[index].leader
        if leader == NO_LEADER:
            raise BrokerError(f"{SHARE_GROUP_STATE}-{index} has no leader", code=Code.COORDINATOR_NOT_AVAILABLE)
        return leader


def _purpose(key: SharePartitionKey) -> str:
    return f"share-state-{hash(key) % CONNECTIONS}"


def _check(result: _PartitionResult) -> None:
    if result.error_code:
        raise BrokerError(result.error_message or "", code=result.error_code)
