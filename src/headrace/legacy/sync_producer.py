"""Connections to brokers: SyncProducer for one broker, ProducerPool for all leaders, and topic metadata.

Kafka 4.0 has removed the requests that carry message sets (KIP-724, KIP-896). It closes the connection on such a
request without a response, so with acks=0 all messages would be lost silently. Therefore the version ranges of a broker
are checked before the first message set is sent. Brokers before 0.10 do not know ApiVersions and close the connection,
which shows that they are old enough.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.client.addresses import Endpoint
from headrace.errors import (
    BrokerError,
    Code,
    ConnectionFailedError,
    HeadraceError,
    MalformedError,
    UnsupportedVersionError,
    WireError,
    error_name,
)
from headrace.legacy.blocking_channel import Channel
from headrace.legacy.options import LegacySettings
from headrace.wire import frames
from headrace.wire.api.fetch import FetchRequest
from headrace.wire.api.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from headrace.wire.api.produce import ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.schema import Message, RequestMessage

log = logging.getLogger("headrace")

METADATA_VERSION = 0
API_VERSIONS_VERSION = 0
MESSAGE_SET_FETCH_VERSION_LAST = 3
NO_LEADER = -1
_CORRELATION_ID_MASK = 0x7FFFFFFF

Connect = Callable[[Endpoint], Channel]
R = TypeVar("R", bound=Message)


class SyncProducer:
    """Sends requests to one broker and waits for the responses; connects when needed. One thread at a time."""

    def __init__(self, endpoint: Endpoint, settings: LegacySettings, connect: Connect) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self._channel = connect(endpoint)
        self._ids = itertools.count()

    def produce(self, topics: Sequence[TopicProduceData]) -> ProduceResponse | None:
        """Send message sets, and return the response, or None with acks=0."""
        settings = self._settings
        request = ProduceRequest(acks=settings.acks, timeout_ms=settings.request_timeout_ms, topic_data=topics)
        if settings.acks == 0:
            self._connect()
            self._channel.check_is_open()
            self._send(request, settings.produce_version)
            return None
        return self._request(request, settings.produce_version)

    def topic_metadata(self, topics: Iterable[str]) -> MetadataResponse:
        """Return the metadata of topics; the broker creates missing ones if it is configured to."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics])
        return self._request(request, METADATA_VERSION)

    def require_message_sets(self) -> None:
        """Raise UnsupportedVersionError if the broker does not accept message sets."""
        self._connect()
        try:
            response = self._request(ApiVersionsRequest(), API_VERSIONS_VERSION)
        except ConnectionFailedError:
            return  # a broker before 0.10 closes the connection on ApiVersions
        ranges = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        try:
            _check_message_sets(self.endpoint, ranges, self._settings.produce_version)
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

    def _request(self, request: RequestMessage[R], version: int) -> R:
        sent_id = self._send(request, version)
        try:
            correlation_id, response = frames.decode_response_to(request, version, self._channel.receive())
            if correlation_id != sent_id:
                raise MalformedError(f"expected correlation id {sent_id}, got {correlation_id}", offset=0)
        except WireError:
            self._channel.disconnect()  # further bytes cannot be matched to requests
            raise
        return response


def _check_message_sets(endpoint: Endpoint, ranges: Mapping[int, tuple[int, int]], produce_version: int) -> None:
    """Raise UnsupportedVersionError if the version ranges of a broker exclude message sets."""
    produce_first, _ = ranges.get(ProduceRequest.api_key, (0, 0))
    fetch_first, _ = ranges.get(FetchRequest.api_key, (0, 0))
    # Kafka 4 still advertises old versions of Produce, because librdkafka derives codecs from them (KAFKA-18659).
    if produce_first > produce_version or fetch_first > MESSAGE_SET_FETCH_VERSION_LAST:
        raise UnsupportedVersionError(
            f"broker {endpoint} does not accept message sets (magic 0 and 1, Produce v0 to v2), which Kafka 4.0 has "
            "removed (KIP-724, KIP-896) and which are all that the 0.8 producer supports; use headrace.Producer, or a "
            "broker of version 3.9 or older"
        )


class ProducerPool:
    """A SyncProducer for each broker that leads a partition. One thread at a time."""

    def __init__(self, settings: LegacySettings, connect: Connect) -> None:
        self._settings = settings
        self._connect = connect
        self._producers: dict[int, SyncProducer] = {}
        self._verified: set[Endpoint] = set()  # brokers that accept message sets

    def update(self, leaders: Mapping[int, Endpoint]) -> None:
        """Replace the connections to these brokers: a broker may have restarted or moved to another address."""
        for broker_id, endpoint in leaders.items():
            if (old := self._producers.get(broker_id)) is not None:
                old.close()
            self._producers[broker_id] = SyncProducer(endpoint, self._settings, self._connect)

    def producer(self, broker_id: int) -> SyncProducer:
        """Return the producer of a broker that accepts message sets."""
        producer = self._producers.get(broker_id)
        if producer is None:
            raise ConnectionFailedError(f"the address of broker {broker_id} is unknown: not in any metadata response")
        if producer.endpoint not in self._verified:
            producer.require_message_sets()
            self._verified.add(producer.endpoint)
        return producer

    def invalidate(self, broker_id: int) -> None:
        """Check the versions of a broker again, which may be upgraded when it reconnects."""
        if (producer := self._producers.get(broker_id)) is not None:
            self._verified.discard(producer.endpoint)

    def close(self) -> None:
        for producer in self._producers.values():
            producer.close()
        self._producers.clear()


class PartitionAndLeader(NamedTuple):
    partition: int
    leader_id: int  # or NO_LEADER


class BrokerPartitionInfo:
    """The partitions and leaders of topics, from metadata responses. One thread at a time."""

    def __init__(self, settings: LegacySettings, pool: ProducerPool, connect: Connect, rng: random.Random) -> None:
        self._settings = settings
        self._pool = pool
        self._connect = connect
        self._rng = rng
        self._partitions: dict[str, list[PartitionAndLeader]] = {}
        self._topic_errors: dict[str, int] = {}

    def partitions(self, topic: str) -> list[PartitionAndLeader]:
        """Return the partitions of a topic in order; fetch its metadata if it is unknown."""
        if topic not in self._partitions:
            self.update({topic})
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise BrokerError(f"topic {topic!r}", code=self._topic_errors.get(topic, Code.UNKNOWN_TOPIC_OR_PARTITION))
        return partitions

    def update(self, topics: Collection[str]) -> None:
        """Fetch the metadata of topics, and replace the connections to their leaders."""
        response = self._fetch(topics)
        for topic in response.topics:
            self._apply(topic)
        led_by = {partition.leader_id for topic in response.topics for partition in topic.partitions}
        self._pool.update(
            {
                broker.node_id: Endpoint(broker.host, broker.port)
                for broker in response.brokers
                if broker.node_id in led_by
            }
        )

    def _apply(self, topic: MetadataResponseTopic) -> None:
        assert topic.name is not None  # in v0
        if topic.error_code or not topic.partitions:
            # The previous partitions are kept, as in 0.8: the next request shows whether they are still valid.
            self._topic_errors[topic.name] = topic.error_code or Code.LEADER_NOT_AVAILABLE
            log.warning("no metadata for topic %s: %s", topic.name, error_name(self._topic_errors[topic.name]))
            return
        # Other errors of a partition concern its replicas, which do not matter to a producer.
        self._partitions[topic.name] = sorted(
            PartitionAndLeader(each.partition_index, each.leader_id if each.leader_id >= 0 else NO_LEADER)
            for each in topic.partitions
        )

    def _fetch(self, topics: Collection[str]) -> MetadataResponse:
        """Fetch from the first broker that responds, in random order to spread the load."""
        brokers = list(self._settings.brokers)
        self._rng.shuffle(brokers)
        failures: list[str] = []
        for endpoint in brokers:
            producer = SyncProducer(endpoint, self._settings, self._connect)
            try:
                return producer.topic_metadata(topics)
            except HeadraceError as error:
                failures.append(str(error))
            finally:
                producer.close()
        raise ConnectionFailedError(f"no broker of metadata.broker.list returned metadata: {'; '.join(failures)}")
