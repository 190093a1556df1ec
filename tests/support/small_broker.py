"""A minimal broker for tests of the whole producer: it stores records, and can delay responses.

It does not support producer ids: use `enable_idempotence=False`.
"""

from __future__ import annotations

import threading
from types import TracebackType

from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace.wire.frames import RequestHeader
from headrace.wire.layout import Record
from headrace.wire.records import read_batches
from headrace.wire.schema import Message
from tests.support.scripted import METADATA, Peer, ScriptedServer, metadata

WAIT_SECONDS_MAX = 20


class SmallBroker:
    """Every topic exists, with one partition."""

    def __init__(self) -> None:
        self.knows_topics = threading.Event()
        self.responding = threading.Event()
        self.knows_topics.set()
        self.responding.set()
        self.error_code = 0
        self.records: dict[str, list[Record]] = {}
        self._server = ScriptedServer(self._serve)

    @property
    def address(self) -> str:
        return self._server.address

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in self.records.get(topic, [])]

    def _serve(self, peer: Peer) -> None:
        peer.serve({METADATA: self._metadata, ProduceRequest.api_key: self._produce})

    def _metadata(self, peer: Peer, header: RequestHeader, message: Message) -> Message:
        assert isinstance(message, MetadataRequest)
        if not self.knows_topics.is_set():
            message = MetadataRequest(topics=[])
        return metadata(peer, header, message)

    def _produce(self, peer: Peer, header: RequestHeader, message: Message) -> Message | None:
        assert isinstance(message, ProduceRequest)
        assert self.responding.wait(WAIT_SECONDS_MAX)
        responses = []
        for topic in message.topic_data:
            log = self.records.setdefault(topic.name, [])
            for part in topic.partition_data:
                first = len(log)
                if not self.error_code:
                    data = part.records or b""
                    assert isinstance(data, bytes | bytearray | memoryview)
                    log += [record for batch in read_batches(data) for record in batch.records()]
                responses.append(
                    TopicProduceResponse(
                        name=topic.name,
                        partition_responses=[
                            PartitionProduceResponse(
                                partition_index=part.partition_index, error_code=self.error_code, base_offset=first
                            )
                        ],
                    )
                )
        return ProduceResponse(responses=responses) if message.acks else None

    def __enter__(self) -> SmallBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.responding.set()
        self._server.close()
