"""The leader of a partition: the high watermark and the in-sync set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace.broker.catalog.topics import PartitionRegistration
from headrace.broker.partition import Partition, PartitionEnv
from headrace.broker.purgatory import DelayedProduce
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from tests.support.fake_internal import HandClock
from tests.support.log_rig import LogRig, batch, let_go

LAG_MS = 30_000


class PartitionRig:
    """Broker 1 with a partition that has replicas on 1, 2 and 3."""

    def __init__(self, tmp_path, *, isr=(1, 2, 3), min_isr="1"):
        self.logs = LogRig(tmp_path / "data")
        self.clock: HandClock = self.logs.clock
        self.log = self.logs.log("t", 0, **{"min.insync.replicas": min_isr})
        self.fenced: set[int] = set()
        env = PartitionEnv(1, self.clock, LAG_MS, lambda node, epoch: node not in self.fenced)
        self.partition = Partition(
            TopicPartition("t", 0), self.log, PartitionRegistration((1, 2, 3), isr, 1, 5, 7), env
        )

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.append(batch(b"x"), leader_epoch=self.partition.leader_epoch)

    def fetch(self, node: int, offset: int, broker_epoch: int = 1) -> int:
        """Fetch as a follower; return the high watermark after it."""
        self.partition.follower_fetched(node, offset, broker_epoch)
        self.partition.advance_high_watermark()
        return self.log.high_watermark

    def register(self, *, isr, leader=1, leader_epoch=5, partition_epoch=8) -> None:
        self.partition.apply_registration(PartitionRegistration((1, 2, 3), isr, leader, leader_epoch, partition_epoch))


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    let_go()


def test_the_high_watermark_is_what_all_in_sync_replicas_have(tmp_path):
    rig = PartitionRig(tmp_path)
    rig.write(5)
    assert not rig.partition.advance_high_watermark()
    assert rig.fetch(2, 5) == 0  # replica 3 has not fetched yet
    assert rig.fetch(3, 2) == 2
    assert rig.fetch(3, 4) == 4
    assert rig.fetch(2, 1) == 4  # it never goes back


def test_a_replica_outside_the_in_sync_set_does_not_hold_the_high_watermark(tmp_path):
    rig = PartitionRig(tmp_path, isr=(1, 2))
    rig.write(5)
    assert rig.fetch(2, 5) == 5
    rig.write(5)
    assert rig.fetch(3, 1) == 5
    assert rig.fetch(2, 10) == 10


def test_the_high_watermark_waits_for_a_replica_that_can_join(tmp_path):
    rig = PartitionRig(tmp_path, isr=(1,))
    rig.write(2)
    rig.partition.advance_high_watermark()
    assert rig.fetch(2, 2) == 2  # it has everything
    rig.write(3)
    assert not rig.partition.advance_high_watermark()
    assert rig.partition.can_join_isr(2)
    rig.fenced.add(2)  # fenced: it is no longer waited for
    assert rig.partition.advance_high_watermark()
    assert not rig.partition.can_join_isr(2)


def test_a_joining_replica_needs_all_committed_records(tmp_path):
    rig = PartitionRig(tmp_path, isr=(1,))
    rig.write(4)
    rig.partition.advance_high_watermark()
    rig.fetch(2, 3)
    assert not rig.partition.can_join_isr(2)
    rig.fetch(2, 4)
    assert rig.partition.can_join_isr(2)
    rig.register(isr=(1,), leader_epoch=6)
    assert rig.partition.epoch_start == 4
    assert not rig.partition.can_join_isr(2)  # it has not fetched in this epoch yet


@pytest.mark.behaviour("B10")
def test_a_joining_replica_needs_all_records_of_the_epoch_start(tmp_path):
    rig = PartitionRig(tmp_path, isr=(1,))
    rig.write(4)  # the high watermark is still 0, but an earlier leader may have committed more
    rig.register(isr=(1,), leader_epoch=6)
    rig.partition.follower_fetched(2, 3, 1)
    assert not rig.partition.can_join_isr(2)
    rig.partition.follower_fetched(2, 4, 1)
    assert rig.partition.can_join_isr(2)


@pytest.mark.behaviour("B09")
def test_a_waiting_produce_fails_when_another_leader_epoch_begins(tmp_path):
    async def test():
        rig = PartitionRig(tmp_path, isr=(1, 2, 3))
        rig.write(1)
        waiting = DelayedProduce(rig.partition, 0)
        assert not waiting.try_complete(TopicPartition("t", 0))
        # It followed another leader in between, which may have written the record at this offset.
        rig.register(isr=(1,), leader_epoch=7)
        rig.partition.advance_high_watermark()
        assert rig.log.high_watermark == 1
        assert waiting.try_complete(TopicPartition("t", 0))
        with pytest.raises(BrokerError, match="may not have it") as caught:
            await waiting.future
        assert caught.value.code == Code.NOT_LEADER_OR_FOLLOWER

    asyncio.run(test())


@pytest.mark.behaviour("B10")
def test_the_larger_of_current_and_proposed_in_sync_set_counts(tmp_path):
    rig = PartitionRig(tmp_path, isr=(1, 2))
    rig.write(3)
    rig.fetch(2, 3)
    rig.partition.propose_isr((1, 2, 3))
    rig.write(2)
    assert rig.fetch(2, 5) == 3  # 3 may be elected already
    rig.register(isr=(1, 2, 3))
    assert rig.partition.proposed_isr is None
    assert rig.fetch(3, 5) == 5

    rig.write(1)
    rig.clock.now_ms += LAG_MS + 1
    rig.partition.propose_isr((1, 2))
    assert rig.fetch(2, 6) == 5
    rig.register(isr=(1, 2), partition_epoch=9)
    rig.partition.advance_high_watermark()
    assert rig.log.high_watermark == 6


def test_below_min_insync_replicas_the_high_watermark_stays(tmp_path):
    """Check 20: otherwise the last replica could commit records that no other replica has."""
    rig = PartitionRig(tmp_path, isr=(1,), min_isr="2")
    rig.write(3)
    assert not rig.partition.advance_high_watermark()
    rig.register(isr=(1, 2))
    assert rig.fetch(2, 3) == 3


def test_min_isr_is_at_most_the_number_of_replicas(tmp_path):
    rig = PartitionRig(tmp_path, min_isr="5")
    assert rig.partition.min_isr == 3


def test_a_follower_lags_after_replica_lag_time_max_ms(tmp_path):
    rig = PartitionRig(tmp_path)
    rig.write(10)
    rig.fetch(2, 10)
    rig.fetch(3, 5)
    rig.clock.now_ms += LAG_MS
    assert rig.partition.lagging_replicas() == []
    rig.clock.now_ms += 1
    assert rig.partition.lagging_replicas() == [3]  # 2 has everything, however long ago
    rig.fetch(3, 9)
    assert rig.partition.lagging_replicas() == [3]


def test_a_follower_under_constant_load_does_not_lag(tmp_path):
    rig = PartitionRig(tmp_path)
    rig.write(1)
    at = 0
    for _ in range(5):
        rig.fetch(2, at)
        rig.fetch(3, rig.log.end_offset)
        at = rig.log.end_offset
        rig.write(1)
        rig.clock.now_ms += LAG_MS // 2
    assert rig.partition.lagging_replicas() == []


def test_a_new_leader_forgets_its_followers_and_begins_an_epoch(tmp_path):
    rig = PartitionRig(tmp_path)
    rig.write(3)
    rig.fetch(2, 3)
    rig.fetch(3, 3)
    rig.register(isr=(1, 2, 3), leader=2, leader_epoch=6)
    assert not rig.partition.is_leader
    assert not rig.partition.advance_high_watermark()
    rig.register(isr=(1, 2, 3), leader=1, leader_epoch=7)
    rig.write(1)
    assert rig.log.latest_epoch == 7
    assert rig.fetch(2, 4) == 3
    assert rig.fetch(3, 4) == 4


def test_an_epoch_is_confirmed_when_its_start_is_replicated(tmp_path):
    """Check 21: until then it must not return its end, which may be behind that of its predecessor."""
    rig = PartitionRig(tmp_path)
    rig.write(3)
    rig.register(isr=(1, 2, 3), leader_epoch=6)
    assert not rig.partition.is_confirmed
    rig.fetch(2, 3)
    assert rig.fetch(3, 3) == 3
    assert rig.partition.is_confirmed


@pytest.mark.parametrize(
    ("node", "broker_epoch", "code"), [(9, 1, Code.UNKNOWN_LEADER_EPOCH), (2, 0, Code.NOT_LEADER_OR_FOLLOWER)]
)
def test_fetches_of_non_replicas_and_from_before_a_restart_are_rejected(tmp_path, node, broker_epoch, code):
    rig = PartitionRig(tmp_path)
    rig.fetch(2, 0, broker_epoch=1)
    with pytest.raises(BrokerError) as caught:
        rig.fetch(node, 0, broker_epoch)
    assert caught.value.code == code
