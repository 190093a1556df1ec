"""A cluster for the 0.8 producer without a socket, and a clock by which its threads wait.

    cluster = FakeCluster({"orders": [1, 1, 2]})     topic → the leader of each partition, -1 for none
    cluster.script(6, HANG_UP, 0)                    how the next produce requests end: a code for all partitions, …
    Producer(…, connect=cluster.connect, clock=WaitingFakeClock())

Requests and responses are encoded and decoded. All requests are recorded.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from headrace.client.addresses import Endpoint
from headrace.errors import ConnectionFailedError
from headrace.wire import frames, message_sets
from headrace.wire.api.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.wire.framing import FrameReader
from headrace.wire.layout import Record
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message
from tests.support.fake_network import FakeClock

HOST = "fake"
HANG_UP = "hang up"
WAIT_SECONDS_MAX = 20


class WaitingFakeClock(FakeClock):
    """A clock that advances only in waits, and then runs the actions scheduled with `at`."""

    def __init__(self) -> None:
        super().__init__()
        self.slept_ms: list[float] = []
        self._events: list[tuple[float, Callable[[], object]]] = []

    def at(self, in_ms: float, action: Callable[[], object]) -> None:
        """Schedule an action for a later wait."""
        self._events.append((self.now_ms + in_ms, action))
        self._events.sort(key=lambda event: event[0])

    def sleep_ms(self, ms: float) -> None:
        self.slept_ms.append(ms)
        self.advance(ms)

    def wait_ms(self, condition: threading.Condition, ms: float) -> None:
        until = self.now_ms + ms
        if not self._events or self._events[0][0] > until:
            self.now_ms = until
            return
        self.now_ms, action = self._events.pop(0)
        condition.release()
        try:
            action()
        finally:
            condition.acquire()


class FakeChannel:
    """A connection to a broker of the fake cluster."""

    def __init__(self, cluster: FakeCluster, endpoint: Endpoint) -> None:
        self._cluster = cluster
        self.endpoint = endpoint
        self.is_connected = False
        self._response: bytes | None = None

    def connect(self) -> None:
        assert self._cluster.lets_connect.wait(WAIT_SECONDS_MAX)
        self._cluster.connects.append(self.endpoint)
        if self._cluster.down or self.endpoint in self._cluster.unreachable:
            raise ConnectionFailedError(f"broker {self.endpoint} could not be reached")
        self.is_connected = True

    def send(self, frame: list[Buffer]) -> None:
        assert self.is_connected
        whole: list[Buffer] = []
        FrameReader(frames.FRAME_BYTES_MAX).feed(b"".join(frame), whole)
        header, pos = frames.decode_request_header(whole[0])
        self._cluster.client_ids.add(header.client_id)
        message = frames.decode_request_body(header, whole[0], pos)
        response = self._cluster.respond(self.endpoint, header.api_version, message)
        self._response = None
        if response is not None:
            self._response = b"".join(frames.encode_response(response, header.api_version, header.correlation_id))

    def receive(self) -> Buffer:
        assert self.is_connected
        if self._response is None:
            self.disconnect()
            raise ConnectionFailedError(f"broker {self.endpoint} has closed the connection without a response")
        return self._response[4:]

    def check_is_open(self) -> None:
        assert self.is_connected

    def disconnect(self) -> None:
        self.is_connected = False


class FakeCluster:
    """Brokers 1, 2, … at ports 9001, 9002, …; all of them serve metadata."""

    def __init__(self, leaders: dict[str, list[int]]) -> None:
        self.leaders = leaders
        self.topic_errors: dict[str, int] = {}
        self.down = False
        self.lets_connect = threading.Event()
        self.lets_connect.set()
        self.unreachable: set[Endpoint] = set()
        self.ranges: dict[int, tuple[int, int]] | None = {0: (0, 11), 1: (0, 17)}  # None: closes the connection
        self.connects: list[Endpoint] = []
        self.client_ids: set[str | None] = set()
        self.metadata_requests: list[set[str]] = []
        self.produced: list[tuple[int, ProduceRequest]] = []  # version and request
        self.sets: defaultdict[tuple[str, int], list[bytes]] = defaultdict(list)  # those that were acknowledged
        self._script: deque[Any] = deque()

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:9001"

    def connect(self, endpoint: Endpoint) -> FakeChannel:
        return FakeChannel(self, endpoint)

    def script(self, *outcomes: Any) -> None:
        """Set the results of the next produce requests: HANG_UP, an error code, or codes by (topic, partition)."""
        self._script.extend(outcomes)

    def records(self, topic: str, partition: int) -> list[Record]:
        return [record for data in self.sets[topic, partition] for record in message_sets.decode(data)]

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of all partitions, in order of the partitions."""
        return [record.value for part in range(len(self.leaders[topic])) for record in self.records(topic, part)]

    def respond(self, endpoint: Endpoint, version: int, message: Message) -> Message | None:
        if isinstance(message, MetadataRequest):
            assert version == 0
            return self._metadata(message)
        if isinstance(message, ProduceRequest):
            return self._produce(version, message)
        assert isinstance(message, ApiVersionsRequest)
        if self.ranges is None:
            return None
        keys = [ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.ranges.items()]
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: MetadataRequest) -> Message:
        names = [topic.name or "" for topic in request.topics or ()]
        self.metadata_requests.append(set(names))
        ids = sorted({1, *(leader for leaders in self.leaders.values() for leader in leaders if leader > 0)})
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=node, host=HOST, port=9000 + node) for node in ids],
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        if name in self.topic_errors or name not in self.leaders:
            return MetadataResponseTopic(name=name, error_code=self.topic_errors.get(name, 3))
        partitions = [
            MetadataResponsePartition(partition_index=index, leader_id=leader, error_code=0 if leader > 0 else 5)
            for index, leader in enumerate(self.leaders[name])
        ]
        return MetadataResponseTopic(name=name, partitions=partitions)

    def _produce(self, version: int, request: ProduceRequest) -> Message | None:
        self.produced.append((version, request))
        outcome = self._script.popleft() if self._script else 0
        if outcome == HANG_UP:
            return None
        responses: defaultdict[str, list[PartitionProduceResponse]] = defaultdict(list)
        for topic, partition, data in _sets(request):
            code = outcome.get((topic, partition), 0) if isinstance(outcome, dict) else outcome
            if not code:
                self.sets[topic, partition].append(data)
            responses[topic].append(PartitionProduceResponse(partition_index=partition, error_code=code))
        return ProduceResponse(
            responses=[TopicProduceResponse(name=name, partition_responses=parts) for name, parts in responses.items()]
        )


def _sets(request: ProduceRequest) -> Iterator[tuple[str, int, bytes]]:
    for topic in request.topic_data:
        for part in topic.partition_data:
            assert isinstance(part.records, bytes | bytearray | memoryview)
            yield topic.name, part.partition_index, bytes(part.records)
