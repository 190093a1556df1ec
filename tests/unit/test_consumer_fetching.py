"""Fetches and positions of the consumer on a fake network: leaders, replicas, truncation, sessions."""

from __future__ import annotations

import pytest

from headrace.client.connection import ConnectionSettings
from headrace.client.metadata import Metadata, MetadataUpdater
from headrace.client.network import NetworkClient, NetworkSettings
from headrace.client.offsets import Isolation
from headrace.client.plugins import PluginLoader, PrefixedLogger
from headrace.consumer.fetching import MISSING_MS_MAX, PartitionFetcher
from headrace.consumer.offset_lookups import OffsetLookups
from headrace.consumer.partitions import AssignedPartition, Assignment, FetchBuffer, PositionState
from headrace.consumer.positions import PositionKeeper
from headrace.consumer.settings import ConsumerSettings, resolve
from headrace.errors import BrokerError, Code, LogTruncationError, TopicAuthorizationError
from headrace.types import TopicPartition
from headrace.wire.api import ApiKey
from headrace.wire.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.wire.api.leaders import LeaderIdAndEpoch, NodeEndpoint
from headrace.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.api.offsets import EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.fake_network import DISCONNECT, FakeClock, FakeCluster, endpoint

TOPIC_ID = bytes(range(16))
TP = TopicPartition("t", 0)


def batch(offset, count=1, epoch=0):
    return bytes(encode([Record(offset + i, 1, None, b"v", ()) for i in range(count)], leader_epoch=epoch))


class Rig:
    """A fetcher and a position keeper on three fake brokers, with one partition."""

    def __init__(self, **options) -> None:
        config = resolve({"bootstrap.servers": "127.0.0.1:9093", "client.rack": "r", **options})
        self.settings = ConsumerSettings.build(config, PluginLoader(config))
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.cluster.selector.passes_time = True
        self.leader, self.epoch = 1, 0
        self.cluster.always(ApiKey.METADATA, lambda sent: self.metadata_response())
        self.network = NetworkClient(
            ConnectionSettings("c", open_socket=self.cluster.open_socket),
            NetworkSettings(max_in_flight=100),
            self.clock,
            selector=self.cluster.selector,
        )
        self.metadata = Metadata(self.clock, is_lazy=True)
        self.updater = MetadataUpdater(
            self.metadata, self.network, [endpoint(1)], request_timeout_ms=1000, rebootstrap_trigger_ms=None
        )
        self.buffer = FetchBuffer()
        self.partition = AssignedPartition(TP, PositionState.FETCH)
        self.partition.start_at(0)
        self.assignment = Assignment({TP: self.partition}, 1)
        self.errors: list[Exception] = []
        self.truncations: list[int] = []
        log = PrefixedLogger("consumer")
        self.lookups = OffsetLookups(
            self.network,
            self.updater,
            self.clock,
            Isolation.READ_UNCOMMITTED,
            request_timeout_ms=1000,
            retry_backoff_ms=100,
        )
        self.positions = PositionKeeper(
            self.metadata,
            self.lookups,
            None,
            self.settings,
            self.clock,
            assignment=lambda: self.assignment,
            on_ready=lambda: self.fetcher.wake(),
            on_error=self._on_error,
            on_truncation=lambda partition, offset: self.truncations.append(offset),
            log=log,
        )
        self.fetcher = PartitionFetcher(
            self.network,
            self.updater,
            self.buffer,
            self.settings.fetch,
            self.clock,
            assignment=lambda: self.assignment,
            on_data=lambda: None,
            on_error=self._on_error,
            on_reset=self.positions.wake,
            log=log,
        )

    def _on_error(self, partition, error):
        partition.error = error
        self.errors.append(error)

    def metadata_response(self):
        partition = MetadataResponsePartition(
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.epoch,
            replica_nodes=[1, 2, 3],
            isr_nodes=[1, 2, 3],
        )
        brokers = [MetadataResponseBroker(node_id=n, host="127.0.0.1", port=endpoint(n).port) for n in (1, 2, 3)]
        topic = MetadataResponseTopic(name="t", topic_id=TOPIC_ID, partitions=[partition])
        return MetadataResponse(brokers=brokers, topics=[topic], controller_id=1)

    def fetch(self, *replies):
        """Run until the replies to fetches are used up; returns the data."""
        self.cluster.script(ApiKey.FETCH, *replies)
        self.run(lambda: self.cluster.script_is_empty() and not self.network.total_in_flight())
        return list(self.buffer.take())

    def run(self, condition, turns=100):
        for _ in range(turns):
            now = self.clock.monotonic_ms()
            self.positions.run()
            wait_ms = min(self.updater.maybe_update(now), self.lookups.run(now), self.fetcher.run(now), 200.0)
            self.network.poll(wait_ms, now)
            if condition():
                return
        raise AssertionError("the condition did not become true")

    def fetches(self):
        return [(sent.node_id, sent.message) for sent in self.cluster.of(ApiKey.FETCH)]


def response(records=None, code=0, session=7, **fields):
    data = PartitionData(partition_index=0, error_code=code, high_watermark=100, records=records, **fields)
    return FetchResponse(session_id=session, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])])


def offsets_of(fetched):
    return [each.batches.next().header.base_offset for each in fetched]


@pytest.mark.behaviour("C05")
def test_a_preferred_replica_is_fetched_from_until_it_refuses():
    rig = Rig()
    rig.fetch(response(preferred_read_replica=2))
    assert offsets_of(rig.fetch(response(batch(0)))) == [0]
    assert [node for node, _ in rig.fetches()] == [1, 2]
    assert rig.fetches()[0][1].rack_id == "r"
    rig.fetch(response(code=Code.OFFSET_OUT_OF_RANGE))  # the follower lags behind: the leader decides
    assert offsets_of(rig.fetch(response(batch(1)))) == [1]
    assert [node for node, _ in rig.fetches()] == [1, 2, 2, 1]
    assert not rig.errors


@pytest.mark.behaviour("C05")
def test_the_leader_in_an_error_is_used_although_metadata_is_stale():
    rig = Rig()
    hint = response(code=Code.NOT_LEADER_OR_FOLLOWER, current_leader=LeaderIdAndEpoch(leader_id=3, leader_epoch=5))
    hint = hint.replace(node_endpoints=[NodeEndpoint(node_id=3, host="127.0.0.1", port=endpoint(3).port)])
    rig.fetch(hint)  # the metadata of the other brokers stay behind
    assert offsets_of(rig.fetch(response(batch(0)))) == [0]
    node_id, request = rig.fetches()[-1]
    assert node_id == 3
    assert request.topics[0].partitions[0].current_leader_epoch == 5


@pytest.mark.behaviour("C05")
def test_a_lost_connection_starts_a_new_session_with_the_new_leader():
    rig = Rig()
    rig.fetch(response(batch(0)))
    rig.leader, rig.epoch = 2, 0
    rig.cluster.script(ApiKey.FETCH, DISCONNECT)
    rig.run(lambda: rig.cluster.script_is_empty())
    rig.run(lambda: rig.metadata.cluster.leader("t", 0) == 2)
    assert offsets_of(rig.fetch(response(batch(1)))) == [1]
    node_id, request = rig.fetches()[-1]
    assert (node_id, request.session_epoch) == (2, 0)


def epoch_end(offset, epoch=0):
    row = EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=offset)
    return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResult(topic="t", partitions=[row])])


def new_epoch(rig, end):
    """Let the partition have a new leader epoch, whose leader says where epoch 0 ends."""
    rig.cluster.always(ApiKey.OFFSET_FOR_LEADER_EPOCH, epoch_end(end))
    rig.epoch = 1
    rig.metadata.request_update(is_urgent=True)
    rig.cluster.always(ApiKey.FETCH, response())
    rig.run(lambda: rig.cluster.of(ApiKey.OFFSET_FOR_LEADER_EPOCH) and not rig.partition.is_pending)


@pytest.mark.behaviour("C05")
@pytest.mark.parametrize(("end", "truncations"), [(10, []), (12, []), (4, [4])])
def test_a_new_leader_without_the_records_is_a_truncation(end, truncations):
    rig = Rig(**{"auto.offset.reset": "earliest"})
    rig.fetch(response(batch(0, 10)))
    new_epoch(rig, end)
    asked = rig.cluster.of(ApiKey.OFFSET_FOR_LEADER_EPOCH)[0].message.topics[0].partitions[0]
    assert asked.leader_epoch == 0
    assert rig.truncations == truncations
    assert rig.partition.validated_epoch == 1


@pytest.mark.behaviour("C05")
def test_without_a_reset_policy_a_truncation_is_an_error():
    rig = Rig(**{"auto.offset.reset": "none"})
    rig.fetch(response(batch(0, 10)))
    new_epoch(rig, 4)
    assert isinstance(rig.errors[0], LogTruncationError)
    assert "epoch 0 ends at 4, read up to 10" in str(rig.errors[0])


def test_a_missing_permission_is_raised_and_others_are_retried():
    rig = Rig()
    rig.fetch(response(code=Code.UNKNOWN_LEADER_EPOCH), response(code=Code.KAFKA_STORAGE_ERROR))
    assert not rig.errors
    rig.fetch(response(code=Code.TOPIC_AUTHORIZATION_FAILED))
    assert isinstance(rig.errors[0], TopicAuthorizationError)


def test_no_more_is_requested_than_the_buffer_has_room_for():
    rig = Rig(**{"fetch.max.bytes": 1000, "max.partition.fetch.bytes": 800})
    rig.fetch(response(batch(0, 20)))
    size = rig.fetches()[-1][1].max_bytes
    assert size == 800
    rig.cluster.always(ApiKey.FETCH, response())
    kept = len(batch(0, 20))
    rig.run(lambda: len(rig.fetches()) > 1)
    assert rig.fetches()[-1][1].max_bytes == min(800, 1000 - kept)


def test_the_next_fetch_is_sent_before_the_application_takes_the_data():
    rig = Rig()
    rig.cluster.script(ApiKey.FETCH, response(batch(0)), response(batch(1)))
    rig.run(lambda: len(rig.buffer) == 2)
    with pytest.raises(AssertionError, match="did not become true"):  # nobody takes the two
        rig.run(lambda: len(rig.fetches()) > 2)
    taken = list(rig.buffer.take())
    rig.fetcher.data_taken()
    assert offsets_of(taken) + offsets_of(rig.fetch(response(batch(2)))) == [0, 1, 2]
    asked = [request.topics[0].partitions[0].fetch_offset for _, request in rig.fetches()]
    assert asked == [0, 1, 2]


def test_data_of_a_moved_partition_do_not_delay_its_next_fetch():
    rig = Rig()
    rig.cluster.script(ApiKey.FETCH, response(batch(0)), response(batch(1)))
    rig.run(lambda: len(rig.buffer) == 2)
    rig.partition = AssignedPartition(TP, PositionState.FETCH)
    rig.partition.start_at(50)
    rig.assignment = Assignment({TP: rig.partition}, 2)
    rig.cluster.script(ApiKey.FETCH, response(batch(50)))
    rig.run(lambda: len(rig.buffer) == 3)
    assert rig.fetches()[2][1].topics[0].partitions[0].fetch_offset == 50


@pytest.mark.parametrize("code", [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID])
def test_a_partition_that_is_missing_for_half_a_minute_is_an_error(code):
    rig = Rig()
    rig.cluster.always(ApiKey.FETCH, lambda sent: response(code=code))
    started = rig.clock.monotonic_ms()
    rig.run(lambda: rig.errors, turns=2000)
    assert rig.clock.monotonic_ms() - started == pytest.approx(MISSING_MS_MAX, rel=0.1)
    (error,) = rig.errors
    assert isinstance(error, BrokerError)
    assert error.code == code
    assert "t-0 has been missing for 30 s: was its topic deleted?" in str(error)
    rig.partition.error = None  # `poll` has raised it
    rig.cluster.always(ApiKey.FETCH, response(batch(0)))  # created again
    rig.fetcher.wake()
    rig.run(lambda: rig.buffer, turns=2000)
    assert len(rig.errors) == 1
