"""Brokers on given data folders, in a thread of this process, and a client that finds leaders and coordinators.

For tests that damage data folders: a failed start and the error of a partition are results, not exceptions.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve
from headrace.errors import BrokerError, Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace.wire.api.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from headrace.wire.api.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace.wire.api.transactions import EndTxnRequest, InitProducerIdRequest
from headrace.wire.schema import Message, RequestMessage
from tests.support.peers.connection import Connection

START_SECONDS_MAX = 15.0
STOP_SECONDS_MAX = 15.0
SETTLE_SECONDS_MAX = 6.0
"""How long a client retries transient errors, in total."""
_RETRY_SECONDS = 0.02
_FETCH_BYTES_MAX = 1 << 20
GROUP, TRANSACTION = 0, 1
TRANSIENT = frozenset(
    {
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.NOT_COORDINATOR,
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

T = TypeVar("T")
R = TypeVar("R", bound=Message)


class LogLines(logging.Handler):
    """The log lines of this process from WARNING on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class RunningBrokers:
    """Brokers 1 to n on these folders; the first one is the controller if there are several."""

    def __init__(self, folders: Sequence[Path], **options: object) -> None:
        self._folders = folders
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.brokers: dict[int, Broker] = {}
        self.refusals: dict[int, BaseException] = {}  # why a broker did not start

    def start(self) -> None:
        """Start the brokers, the controller first. Failed starts are in `refusals`."""
        self._start([1])
        if not self.refusals:
            self._start(range(2, len(self._folders) + 1))

    def _start(self, node_ids: Sequence[int]) -> None:
        starting = {}
        for node_id in node_ids:
            options: dict[str, object] = {
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "node.id": node_id,
                **self._options,
                "log.dirs": str(self._folders[node_id - 1]),
            }
            if node_id > 1:
                options["headrace.controller"] = self.brokers[1].listeners[0].address
            broker = Broker(resolve(("argument", options)))
            starting[node_id] = broker, asyncio.run_coroutine_threadsafe(broker.start(), self._loop)
        deadline = time.monotonic() + START_SECONDS_MAX
        for node_id, (broker, started) in starting.items():
            try:
                started.result(max(deadline - time.monotonic(), 0))
                self.brokers[node_id] = broker
            except TimeoutError:
                raise TimeoutError(f"broker {node_id} has not started after {START_SECONDS_MAX:g} s") from None
            except Exception as error:
                self.refusals[node_id] = error

    def stop(self) -> None:
        """Stop all brokers, the controller last, and end the thread."""
        for node_id in sorted(self.brokers, reverse=True):
            asyncio.run_coroutine_threadsafe(self.brokers[node_id].stop(), self._loop).result(STOP_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS_MAX)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the brokers."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS_MAX)

    def client(self) -> RoutingClient:
        return RoutingClient([broker.listeners[0].address for broker in self.brokers.values()])

    def __enter__(self) -> RunningBrokers:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class RoutingClient:
    """Sends each request to the right broker. `RawProducer` uses `call` and `produce`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self._connections: dict[str, Connection] = {}
        self._leaders: dict[tuple[str, int], str] = {}
        self._coordinators: dict[tuple[int, str], str] = {}
        self._retry_seconds_left = SETTLE_SECONDS_MAX

    def call(self, request: RequestMessage[R], version: int) -> R:
        """Send a request to its coordinator, or to any broker, and return the response."""
        if isinstance(request, InitProducerIdRequest | EndTxnRequest) and request.transactional_id is not None:
            address = self.coordinator(TRANSACTION, request.transactional_id)
        elif isinstance(request, OffsetCommitRequest | OffsetFetchRequest):
            address = self.coordinator(GROUP, request.group_id)
        else:
            address = self._addresses[0]
        return self._connection(address).call(request, version)

    def call_leader(self, topic: str, partition: int, request: RequestMessage[R], version: int) -> R:
        """Send a request to the leader of a partition; raise BrokerError if it is unreachable."""
        address = self.leader(topic, partition)
        try:
            return self._connection(address).call(request, version)
        except ConnectionError as error:
            self._leaders.clear()
            self._connections.pop(address, None)
            text = f"the leader of {topic}-{partition} is unreachable: {error}"
            raise BrokerError(text, code=Code.LEADER_NOT_AVAILABLE) from error

    def coordinator(self, kind: int, key: str) -> str:
        """Return the address of a coordinator."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known

        def find() -> tuple[int, str]:
            response = self._connection(self._addresses[0]).call(FindCoordinatorRequest(key=key, key_type=kind), 3)
            assert isinstance(response, FindCoordinatorResponse)
            return response.error_code, f"{response.host}:{response.port}"

        code, address = self._retried(find)
        if code:
            raise BrokerError(f"no coordinator for {key}", code=code)
        self._coordinators[kind, key] = address
        return address

    def leader(self, topic: str, partition: int) -> str:
        """Return the address of the leader of a partition; raise BrokerError if there is none."""
        known = self._leaders.get((topic, partition))
        if known is not None:
            return known

        def find() -> tuple[int, str]:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
            response = self._connection(self._addresses[0]).call(request, 9)
            assert isinstance(response, MetadataResponse)
            brokers = {row.node_id: f"{row.host}:{row.port}" for row in response.brokers}
            (topic_response,) = response.topics
            if topic_response.error_code:
                return topic_response.error_code, ""
            rows = {row.partition_index: row for row in topic_response.partitions}
            if partition not in rows:
                return Code.UNKNOWN_TOPIC_OR_PARTITION, ""
            row = rows[partition]
            if row.leader_id not in brokers:
                return row.error_code or Code.LEADER_NOT_AVAILABLE, ""
            return 0, brokers[row.leader_id]

        code, address = self._retried(find)
        if code:
            raise BrokerError(f"{topic}-{partition} has no leader", code=code)
        self._leaders[topic, partition] = address
        return address

    def produce(
        self, topic: str, data: bytes, *, version: int = 9, partition: int = 0, transactional_id: str | None = None
    ) -> PartitionProduceResponse:
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=2000,
            topic_data=[
                TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(partition_index=partition, records=data)]
                )
            ],
        )

        def send() -> tuple[int, PartitionProduceResponse]:
            try:
                response = self.call_leader(topic, partition, request, version)
            except BrokerError as error:
                return error.code, PartitionProduceResponse(partition_index=partition, error_code=error.code)
            assert isinstance(response, ProduceResponse)
            ((partition_response,),) = (topic_response.partition_responses for topic_response in response.responses)
            if partition_response.error_code:
                self._leaders.clear()
            return partition_response.error_code, partition_response

        return self._retried(send)[1]

    def fetch(self, topic: str, partition: int, offset: int, *, committed: bool) -> PartitionData:
        """Fetch from an offset without waiting. The error of the partition is in the response."""
        fetch_partition = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES_MAX,
            isolation_level=int(committed),
            topics=[FetchTopic(topic=topic, partitions=[fetch_partition])],
        )

        def fetch() -> tuple[int, PartitionData]:
            try:
                response = self.call_leader(topic, partition, request, 11)
            except BrokerError as error:
                return error.code, PartitionData(partition_index=partition, error_code=error.code)
            assert isinstance(response, FetchResponse)
            ((partition_response,),) = (topic_response.partitions for topic_response in response.responses)
            if partition_response.error_code:
                self._leaders.clear()
            return partition_response.error_code, partition_response

        return self._retried(fetch)[1]

    def _connection(self, address: str) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(address)
        return connection

    def _retried(self, request: Callable[[], tuple[int, T]]) -> tuple[int, T]:
        """Retry transient errors, and return the first other result, or the last one when the time is up."""
        transient = TRANSIENT if len(self._addresses) > 1 else TRANSIENT - {Code.UNKNOWN_TOPIC_OR_PARTITION}
        while True:
            code, result = request()
            if code not in transient or self._retry_seconds_left <= 0:
                return code, result
            self._retry_seconds_left -= _RETRY_SECONDS
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
