"""A connection to a broker: one request at a time, with headrace's wire layer only."""

from __future__ import annotations

import itertools
import socket
from types import TracebackType
from typing import TypeVar

from headrace.wire.api import api_name
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.wire.fields import Records
from headrace.wire.frames import FRAME_BYTES_MAX, decode_response, decode_response_to, encode_request
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch, read_batches
from headrace.wire.schema import Message, RequestMessage

RESPONSE_SECONDS_MAX = 30
R = TypeVar("R", bound=Message)

_RECEIVE_BYTES = 256 * 1024
_FETCH_BYTES_MAX = 16 * 1024 * 1024


class Connection:
    """Sends requests and reads responses, in the given versions."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=RESPONSE_SECONDS_MAX)
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._frames: list[Buffer] = []  # received, and not read yet
        self._correlation_ids = itertools.count(1)

    def call(self, request: RequestMessage[R], version: int) -> R:
        """Send a request and return its response."""
        sent_id = self.send(request, version)
        correlation_id, response = decode_response_to(request, version, self._receive(request.api_key, version))
        assert (correlation_id, len(self._frames)) == (sent_id, 0)
        return response

    def receive(self, api_key: int, version: int) -> tuple[int, Message]:
        """Return the next response and its correlation id; it must be for that kind of request."""
        return decode_response(api_key, version, self._receive(api_key, version))

    def _receive(self, api_key: int, version: int) -> Buffer:
        while not self._frames:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionError(f"the broker hung up on {api_name(api_key)} v{version}")
            self._reader.feed(data, self._frames)
        return self._frames.pop(0)

    def send(self, request: Message, version: int) -> int:
        """Send a request that has no response, or whose response is not waited for; its correlation id."""
        correlation_id = next(self._correlation_ids)
        self._socket.sendall(b"".join(encode_request(request, version, correlation_id, "headrace-tests")))
        return correlation_id

    def produce(
        self, topic: str, data: Records, *, version: int = 9, partition: int = 0, transactional_id: str | None = None
    ) -> PartitionProduceResponse:
        """Send batches or a message set to one partition, and return the response."""
        partitions = [PartitionProduceData(partition_index=partition, records=data)]
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=RESPONSE_SECONDS_MAX * 1000,
            topic_data=[TopicProduceData(name=topic, partition_data=partitions)],
        )
        response = self.call(request, version)
        ((result,),) = (topic_response.partition_responses for topic_response in response.responses)
        return result

    def fetch(
        self, topic: str, *, version: int = 12, partition: int = 0, offset: int = 0, committed: bool = False
    ) -> PartitionData:
        """Fetch a partition from an offset on, up to a few megabytes."""
        fetch_partition = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES_MAX)
        request = FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=_FETCH_BYTES_MAX,
            isolation_level=int(committed),
            topics=[FetchTopic(topic=topic, partitions=[fetch_partition])],
        )
        response = self.call(request, version)
        assert response.error_code == 0
        ((result,),) = (topic_response.partitions for topic_response in response.responses)
        assert result.error_code == 0
        return result

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def batches_of(result: PartitionData) -> list[RecordBatch]:
    """Return the complete batches of a fetch response."""
    records = result.records
    assert records is None or isinstance(records, bytes | bytearray | memoryview)
    return list(read_batches(records or b"", partial=True))
