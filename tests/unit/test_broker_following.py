"""A follower's log: where it is cut, what it takes over, and that it comes out the same as the leader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker import fetching
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import PartitionPlace, Topics
from headrace.broker.cluster.leader_fetcher import common_end
from headrace.broker.fetching import FetchLimits, PartitionFetch, Read, Replica
from headrace.broker.log import LogConfig, Origin
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import BrokerError, Code
from headrace.wire.records import BatchProducer
from tests.support.fake_internal import HandClock
from tests.support.log_rig import LogRig, batch, let_go

TOPIC = "t"


class Node:
    """A broker as far as replicas go, told by the test who leads."""

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

    def place(self, leader: int, epoch: int, isr=(1, 2)) -> None:
        topic = self.catalog.topics.by_name[TOPIC]
        self.catalog.record(self.catalog.topics.move(topic, 0, PartitionPlace((1, 2), isr, leader, epoch, epoch)))

    def write(self, *values: bytes, producer: BatchProducer | None = None) -> None:
        data = batch(*values) if producer is None else batch(*values, producer=producer)
        origin = Origin.CLIENT if producer is None or producer.base_sequence >= 0 else Origin.COORDINATOR
        self.replicas.append(self.partition, data, origin=origin, acks=1)

    def fetch_from(self, leader: Node) -> Read:
        """One fetch of a follower, and what it does with the answer."""
        log = self.log
        wanted = PartitionFetch(0, log.end_offset, 1 << 20, self.partition.leader_epoch, log.latest_epoch)
        wanted.partition = leader.partition
        limits = FetchLimits(1, 1 << 20, False, Replica(self.node_id, -1, leader.replicas.follower_fetched))
        (read,), _ = fetching.read_all([wanted], limits)
        if read.diverging is not None:
            log.truncate(common_end(log, *read.diverging))
        elif read.error_code == Code.NONE:
            self.replicas.take_over(self.partition, read.data, read.high_watermark, read.start_offset)
        return read

    def catch_up(self, leader: Node) -> int:
        """Fetch until there is nothing more; how many times the log was cut."""
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


def place(nodes, leader: int, epoch: int, isr=(1, 2)) -> None:
    for node in nodes:
        node.place(leader, epoch, isr)


def test_a_follower_has_the_same_bytes_and_knows_the_same_of_producers(nodes):
    one, two = nodes
    for number in range(20):
        one.write(b"%d" % number, producer=BatchProducer(7, 0, number))
    assert two.catch_up(one) == 0
    assert bytes_of(two) == bytes_of(one)
    assert (two.log.high_watermark, two.log.end_offset) == (20, 20)
    assert two.log.producers.facts() == one.log.producers.facts()
    assert two.log.epochs.rows == one.log.epochs.rows


@pytest.mark.behaviour("B10")
def test_check_22_divergence_is_resolved_by_epoch_though_the_offsets_would_fit(nodes):
    """KAFKA-6361: leadership goes back and forth, each leader with records that the other never got."""
    one, two = nodes
    one.write(b"a0", b"a1")
    two.catch_up(one)
    one.write(b"lost-0")  # epoch 0, offset 2, not replicated
    place(nodes, 2, 1, isr=(2,))
    two.write(b"b2")  # epoch 1, offset 2
    place(nodes, 1, 2, isr=(1,))  # unclean, as it was in that report
    one.write(b"c3")  # epoch 2, offset 3, on top of the one that two does not have
    place(nodes, 2, 3, isr=(2,))
    two.write(b"d3", b"d4", b"d5")  # epoch 3
    assert one.catch_up(two) >= 1
    assert bytes_of(one) == bytes_of(two)
    assert one.log.epochs.rows == two.log.epochs.rows
    assert one.log.end_offset == two.log.end_offset == 6


def test_check_22_a_leader_that_wrote_nothing_leaves_no_epoch_behind_that_would_be_cut_for_ever(nodes):
    one, two = nodes
    one.write(b"a")
    two.catch_up(one)
    one.place(1, 1)  # it leads, and nobody hears of it
    place(nodes, 2, 2)
    two.write(b"b")
    assert one.catch_up(two) == 1
    assert bytes_of(one) == bytes_of(two)


def test_check_21_what_diverges_is_cut_before_the_high_watermark_is_raised(nodes):
    """KAFKA-14704: a follower must not take the leader's high watermark for records that the leader does not have."""
    one, two = nodes
    one.write(b"a")
    two.catch_up(one)
    one.write(b"lost-1")
    one.write(b"lost-2")
    place(nodes, 2, 1, isr=(2,))
    two.write(b"b1")
    two.write(b"b2")
    assert (one.log.end_offset, two.log.high_watermark) == (3, 3)
    read = one.fetch_from(two)
    assert read.diverging is not None
    assert one.log.high_watermark == 1
    assert one.log.end_offset == 1
    one.catch_up(two)
    assert one.log.high_watermark == 3
    assert bytes_of(one) == bytes_of(two)


def test_check_7_dedupe_state_is_cut_with_the_log_and_follows_the_new_leaders(nodes):
    one, two = nodes
    for number in range(6):
        one.write(b"%d" % number, producer=BatchProducer(7, 0, number))
    two.catch_up(one)
    one.write(b"lost", producer=BatchProducer(7, 0, 6))
    place(nodes, 2, 1)
    # The producer sends the one that was lost again, to the new leader, and goes on.
    for number in range(6, 12):
        two.write(b"again-%d" % number, producer=BatchProducer(7, 0, number))
    # A retry of one of the last five is known for what it is.
    info = two.log.append(batch(b"again-9", producer=BatchProducer(7, 0, 9)), leader_epoch=1)
    assert (info.duplicate, info.first_offset) == (True, 9)
    one.catch_up(two)
    assert one.log.producers.facts() == two.log.producers.facts()
    place(nodes, 1, 2)
    info = one.log.append(batch(b"again-9", producer=BatchProducer(7, 0, 9)), leader_epoch=2)
    assert (info.duplicate, info.first_offset) == (True, 9)


def test_open_transactions_and_the_last_stable_offset_follow(nodes):
    one, two = nodes
    one.write(b"a")
    one.write(b"open", producer=BatchProducer(9, 0, 0, transactional=True))
    one.write(b"b")
    two.catch_up(one)
    assert (one.log.last_stable_offset, two.log.last_stable_offset) == (1, 1)
    place(nodes, 2, 1)
    two.rig.mark(two.log, 9, 0, committed=False)
    one.catch_up(two)
    assert one.log.last_stable_offset == two.log.last_stable_offset == two.log.end_offset
    assert [one.producer_id for one in one.log.aborted_transactions(0, 9)] == [9]


def test_a_follower_begins_where_the_leader_does(nodes):
    one, two = nodes
    for number in range(5):
        one.write(b"%d" % number)
    two.catch_up(one)
    one.log.delete_records(3)
    two.catch_up(one)
    assert two.log.start_offset == 3


def test_an_epoch_that_the_leader_never_knew_is_out_of_its_range(nodes):
    one, two = nodes
    two.place(2, 4)
    two.write(b"x")
    two.place(1, 0)
    assert two.fetch_from(one).error_code == Code.OFFSET_OUT_OF_RANGE


def test_who_lost_leadership_writes_nothing_more(nodes):
    one, _ = nodes
    held = one.partition
    place(nodes, 2, 1)
    with pytest.raises(BrokerError, match="another leader") as caught:
        one.replicas.append(held, batch(b"x"), origin=Origin.CLIENT, acks=1)
    assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER
