"""One request, one answer, one broker at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace.client.addresses import Endpoint
from headrace.errors import ConnectionFailedError, MalformedError, UnsupportedVersionError, WireError
from headrace.legacy.blocking_channel import Channel
from headrace.legacy.formats import check_takes_message_sets
from headrace.legacy.options import Settings
from headrace.wire import frames
from headrace.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.wire.api.produce import ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.schema import Message

METADATA_VERSION = 0
API_VERSIONS_VERSION = 0
_CORRELATION_ID_MASK = 0x7FFFFFFF

Connect = Callable[[Endpoint], Channel]
Answer = TypeVar("Answer", bound=Message)


class SyncProducer:
    """Connects when it has something to send. One thread at a time."""

    def __init__(self, endpoint: Endpoint, settings: Settings, connect: Connect) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._channel = connect(endpoint)
        self._ids = itertools.count()

    def produce(self, topics: Sequence[TopicProduceData]) -> ProduceResponse | None:
        """Send message sets; the answer, of which there is none with acks=0."""
        settings = self._settings
        request = ProduceRequest(acks=settings.acks, timeout_ms=settings.request_timeout_ms, topic_data=topics)
        if settings.acks == 0:
            self._connect()
            self._channel.check_is_open()
            self._send(request, settings.produce_version)
            return None
        return self._ask(request, settings.produce_version, ProduceResponse)

    def topic_metadata(self, topics: Iterable[str]) -> MetadataResponse:
        """What the broker knows of topics. Those that do not exist are made, if it is configured to."""
        wanted = [MetadataRequestTopic(name=topic) for topic in topics]
        return self._ask(MetadataRequest(topics=wanted), METADATA_VERSION, MetadataResponse)

    def require_message_sets(self) -> None:
        """Raise UnsupportedVersionError if the broker is too new for us."""
        self._connect()
        try:
            response = self._ask(ApiVersionsRequest(), API_VERSIONS_VERSION, ApiVersionsResponse)
        except ConnectionFailedError:
            return  # it hung up on a question that it does not know: old enough
        ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        try:
            check_takes_message_sets(self.endpoint, ranges, self._settings.produce_version)
        except UnsupportedVersionError:
            self.close()
            raise

    def close(self) -> None:
        self._channel.disconnect()

    def _connect(self) -> None:
        if not self._channel.is_connected:
            self._channel.connect()

    def _send(self, request: Message, version: int) -> int:
        self._connect()
        correlation_id = next(self._ids) & _CORRELATION_ID_MASK
        self._channel.send(frames.encode_request(request, version, correlation_id, self._settings.client_id))
        return correlation_id

    def _ask(self, request: Message, version: int, answer: type[Answer]) -> Answer:
        sent_id = self._send(request, version)
        try:
            correlation_id, response = frames.decode_response(request.api_key, version, self._channel.receive())
            if correlation_id != sent_id:
                raise MalformedError(
                    f"expected the answer to request {sent_id}, got that to {correlation_id}", offset=0
                )
        except WireError:
            self._channel.disconnect()  # whatever comes next on it belongs to something else
            raise
        assert isinstance(response, answer)
        return response
