"""The log of a follower: truncation and appends make it equal to the leader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import fetching
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import PartitionRegistration, Topics
from headrace.broker.cluster.replica_fetcher import common_end
from headrace.broker.fetching import FetchLimits, PartitionFetch, Read, Replica
from headrace.broker.log import LogConfig, Origin
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import BrokerError, Code
from headrace.wire.records import BatchProducer
from tests.support.fake_internal import HandClock
from tests.support.log_rig import LogRig, batch, let_go, producers_of

TOPIC = "t"


class Node:
    """The replica manager of a broker; the test decides the leader."""

    def __init__(self, folder: Path, node_id: int, creation) -> None:
        folder.mkdir(exist_ok=True)
        self.rig = LogRig(folder / "data")
        self.catalog = Catalog(folder / "catalog.journal")
        clock: HandClock = self.rig.clock
        self.replicas = ReplicaManager(
            node_id,
            self.rig.manager,
            self.catalog,
            clock,
            lambda _: LogConfig.resolve({"internal.segment.bytes": "400"}),
        )
        self.node_id = node_id
        self.replicas.start()
        self.catalog.record(creation)

    @property
    def partition(self) -> Partition:
        return self.replicas.replica(TOPIC, 0)

    @property
    def log(self):
        return self.partition.log

    def register(self, leader: int, epoch: int, isr=(1, 2)) -> None:
        topic = self.catalog.topics.by_name[TOPIC]
        self.catalog.record(
            self.catalog.topics.partition_change(topic, 0, PartitionRegistration((1, 2), isr, leader, epoch, epoch))
        )

    def write(self, *values: bytes, producer: BatchProducer | None = None) -> None:
        data = batch(*values) if producer is None else batch(*values, producer=producer)
        origin = Origin.CLIENT if producer is None or producer.base_sequence >= 0 else Origin.COORDINATOR
        self.replicas.append(self.partition, data, origin=origin, acks=1)

    def fetch_from(self, leader: Node) -> Read:
        """Fetch once as a follower and process the response."""
        log = self.log
        fetch = PartitionFetch(0, log.end_offset, 1 << 20, self.partition.leader_epoch, log.latest_epoch)
        fetch.partition = leader.partition
        limits = FetchLimits(1, 1 << 20, False, Replica(self.node_id, -1, leader.replicas.follower_fetched))
        (read,), _ = fetching.read_all([fetch], limits)
        if read.diverging is not None:
            log.truncate(common_end(log, *read.diverging))
        elif read.error_code == Code.NONE:
            self.replicas.append_as_follower(self.partition, read.data, read.high_watermark, read.start_offset)
        return read

    def catch_up(self, leader: Node) -> int:
        """Fetch until there is nothing more; return how often the log was truncated."""
        cut = 0
        for _ in range(50):
            read = self.fetch_from(leader)
            assert read.error_code == Code.NONE
            cut += read.diverging is not None
            if read.diverging is None and not len(read.data) and self.log.high_watermark == leader.log.high_watermark:
                return cut
        raise AssertionError("it never catches up")


@pytest.fixture
def nodes(tmp_path) -> Iterator[tuple[Node, Node]]:
    creation = Topics.creation(TOPIC, [[1, 2]])
    yield Node(tmp_path / "1", 1, creation), Node(tmp_path / "2", 2, creation)
    let_go()


def bytes_of(node: Node) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(node.log.directory.glob("*.log")))


def register(nodes, leader: int, epoch: int, isr=(1, 2)) -> None:
    for node in nodes:
        node.register(leader, epoch, isr)


def test_a_follower_has_the_same_bytes_and_producer_state(nodes):
    node1, node2 = nodes
    for number in range(20):
        node1.write(b"%d" % number, producer=BatchProducer(7, 0, number))
    assert node2.catch_up(node1) == 0
    assert bytes_of(node2) == bytes_of(node1)
    assert (node2.log.high_watermark, node2.log.end_offset) == (20, 20)
    assert producers_of(node2.log) == producers_of(node1.log)
    assert node2.log.producers.unreplicated == node1.log.producers.unreplicated
    assert node2.log.epochs.rows == node1.log.epochs.rows


@pytest.mark.behaviour("B10")
def test_check_22_divergence_is_resolved_by_epoch_even_with_equal_offsets(nodes):
    """KAFKA-6361: leadership changes back and forth, and each leader has records that the other does not have."""
    node1, node2 = nodes
    node1.write(b"a0", b"a1")
    node2.catch_up(node1)
    node1.write(b"lost-0")  # epoch 0, offset 2, not replicated
    register(nodes, 2, 1, isr=(2,))
    node2.write(b"b2")  # epoch 1, offset 2
    register(nodes, 1, 2, isr=(1,))  # an unclean election, as in that report
    node1.write(b"c3")  # epoch 2, offset 3, after the record that node 2 does not have
    register(nodes, 2, 3, isr=(2,))
    node2.write(b"d3", b"d4", b"d5")  # epoch 3
    assert node1.catch_up(node2) >= 1
    assert bytes_of(node1) == bytes_of(node2)
    assert node1.log.epochs.rows == node2.log.epochs.rows
    assert node1.log.end_offset == node2.log.end_offset == 6


def test_check_22_an_epoch_without_records_causes_no_endless_truncation(nodes):
    node1, node2 = nodes
    node1.write(b"a")
    node2.catch_up(node1)
    node1.register(1, 1)  # it leads, but no other broker knows
    register(nodes, 2, 2)
    node2.write(b"b")
    assert node1.catch_up(node2) == 1
    assert bytes_of(node1) == bytes_of(node2)


def test_check_21_truncation_comes_before_advancing_the_high_watermark(nodes):
    """KAFKA-14704: a follower must not apply the leader's high watermark to records that the leader lacks."""
    node1, node2 = nodes
    node1.write(b"a")
    node2.catch_up(node1)
    node1.write(b"lost-1")
    node1.write(b"lost-2")
    register(nodes, 2, 1, isr=(2,))
    node2.write(b"b1")
    node2.write(b"b2")
    assert (node1.log.end_offset, node2.log.high_watermark) == (3, 3)
    read = node1.fetch_from(node2)
    assert read.diverging is not None
    assert node1.log.high_watermark == 1
    assert node1.log.end_offset == 1
    node1.catch_up(node2)
    assert node1.log.high_watermark == 3
    assert bytes_of(node1) == bytes_of(node2)


def test_check_7_producer_state_is_truncated_with_the_log(nodes):
    node1, node2 = nodes
    for number in range(6):
        node1.write(b"%d" % number, producer=BatchProducer(7, 0, number))
    node2.catch_up(node1)
    node1.write(b"lost", producer=BatchProducer(7, 0, 6))
    register(nodes, 2, 1)
    # The producer sends the lost batch again, to the new leader, and continues.
    for number in range(6, 12):
        node2.write(b"again-%d" % number, producer=BatchProducer(7, 0, number))
    # A retry of one of the last five batches is detected as a duplicate.
    info = node2.log.append(batch(b"again-9", producer=BatchProducer(7, 0, 9)), leader_epoch=1)
    assert (info.duplicate, info.first_offset) == (True, 9)
    node1.catch_up(node2)
    assert producers_of(node1.log) == producers_of(node2.log)
    assert node1.log.producers.unreplicated == node2.log.producers.unreplicated
    register(nodes, 1, 2)
    info = node1.log.append(batch(b"again-9", producer=BatchProducer(7, 0, 9)), leader_epoch=2)
    assert (info.duplicate, info.first_offset) == (True, 9)


def test_open_transactions_and_the_last_stable_offset_are_replicated(nodes):
    node1, node2 = nodes
    node1.write(b"a")
    node1.write(b"open", producer=BatchProducer(9, 0, 0, transactional=True))
    node1.write(b"b")
    node2.catch_up(node1)
    assert (node1.log.last_stable_offset, node2.log.last_stable_offset) == (1, 1)
    register(nodes, 2, 1)
    node2.rig.mark(node2.log, 9, 0, committed=False)
    node1.catch_up(node2)
    assert node1.log.last_stable_offset == node2.log.last_stable_offset == node2.log.end_offset
    assert [node1.producer_id for node1 in node1.log.aborted.between(0, 9)] == [9]


def test_a_follower_starts_at_the_leaders_start_offset(nodes):
    node1, node2 = nodes
    for number in range(5):
        node1.write(b"%d" % number)
    node2.catch_up(node1)
    node1.log.delete_records(3)
    node2.catch_up(node1)
    assert node2.log.start_offset == 3


def test_an_epoch_unknown_to_the_leader_is_out_of_range(nodes):
    node1, node2 = nodes
    node2.register(2, 4)
    node2.write(b"x")
    node2.register(1, 0)
    assert node2.fetch_from(node1).error_code == Code.OFFSET_OUT_OF_RANGE


def test_a_former_leader_rejects_appends(nodes):
    node1, _ = nodes
    held = node1.partition
    register(nodes, 2, 1)
    with pytest.raises(BrokerError, match="another leader") as caught:
        node1.replicas.append(held, batch(b"x"), origin=Origin.CLIENT, acks=1)
    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER
