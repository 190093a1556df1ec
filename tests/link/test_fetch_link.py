"""Invalid fetch responses: the fetcher ignores partitions that it did not request, with a warning."""

from __future__ import annotations

import pytest

from headrace.client.fetcher import Fetcher
from headrace.types import TopicPartition
from headrace.wire.api.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace.wire.api.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.wire.frames import RequestHeader
from headrace.wire.kernel import kernel
from headrace.wire.records import seal
from headrace.wire.schema import Message
from tests.support.scripted import METADATA, Peer, ScriptedServer, metadata

SECONDS = 10


def partition(index: int, records: bytes | None = b"") -> PartitionData:
    return PartitionData(
        partition_index=index, high_watermark=1, last_stable_offset=1, log_start_offset=0, records=records
    )


def one_record(value: bytes) -> bytes:
    batch = kernel.OpenBatch(bytearray(200))
    batch.append(0, None, value)
    return bytes(seal(batch))


def offsets(peer: Peer, header: RequestHeader, message: Message) -> Message:
    partition = ListOffsetsPartitionResponse(partition_index=0, offset=0)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])


def test_partitions_that_were_not_requested_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    responses = [
        FetchResponse(responses=[FetchableTopicResponse(topic="other", partitions=[partition(0)])]),
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition(9)])]),
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition(0, one_record(b"v"))])]),
    ]

    def fetch(peer: Peer, header: RequestHeader, message: Message) -> Message:
        return responses.pop(0) if responses else FetchResponse(responses=[])

    def serve(peer: Peer) -> None:
        peer.serve({METADATA: metadata, FetchRequest.api_key: fetch, ListOffsetsRequest.api_key: offsets})

    with ScriptedServer(serve) as server:
        server.api_ranges[ListOffsetsRequest.api_key] = (2, 5)
        with Fetcher(server.address) as fetcher:
            fetcher.assign({TopicPartition("t", 0): 0})
            records = fetcher.poll(timeout_ms=SECONDS * 1000)
    assert [record.value for record in records] == [b"v"]
    assert "returned partition 0 of topic 'other'" in caplog.text
    assert "returned partition 9 of topic 't'" in caplog.text
