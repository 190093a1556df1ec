"""In-sync set proposals with a fake controller, and the fetch sessions of followers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.cluster import BrokerRegistration, Brokers
from headrace.broker.catalog.topics import PartitionRegistration, Topics
from headrace.broker.cluster.follower_sessions import FollowerSessions
from headrace.broker.cluster.isr import IsrManager
from headrace.broker.cluster.role import ClusterRole, IsrChange
from headrace.broker.fetching import PartitionFetch, Read
from headrace.broker.log import LogConfig, Origin
from headrace.broker.partition import Partition
from headrace.broker.replica_manager import ReplicaManager
from headrace.errors import BrokerError, Code, ConnectionFailedError, HeadraceError
from tests.support.cluster_in_loop import until
from tests.support.fake_internal import HandClock
from tests.support.log_rig import LogRig, batch, let_go

LAG_MS = 10_000


class Controller:
    """Records proposals and responds as the test says."""

    broker_epoch = 11

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.proposals: list[dict[int, int]] = []
        self.responses: list[HeadraceError | None] = []  # None: accepted

    async def alter_partition(self, change: IsrChange) -> PartitionRegistration:
        self.proposals.append(dict(change.isr))
        response = self.responses.pop(0) if self.responses else None
        if response is not None:
            raise response
        return self.rig.register(tuple(change.isr), partition_epoch=change.partition_epoch + 1)


class Rig:
    """Broker 1, which leads a partition with replicas on 1, 2 and 3."""

    def __init__(self, tmp_path, isr=(1, 2, 3)) -> None:
        self.logs = LogRig(tmp_path / "data")
        self.clock: HandClock = self.logs.clock
        self.catalog = Catalog(tmp_path / "catalog.journal")
        self.replicas = ReplicaManager(
            1, self.logs.manager, self.catalog, self.clock, lambda _: LogConfig.resolve({}), lag_ms_max=LAG_MS
        )
        self.replicas.start()
        self.controller = Controller(self)
        self.in_sync = IsrManager(self.replicas, cast(ClusterRole, self.controller), self.clock, LAG_MS)
        self.in_sync.start()
        for node in (1, 2, 3):
            self.broker(node)
        self.catalog.record(Topics.creation("t", [[1, 2, 3]]))
        self.register(isr, partition_epoch=1)

    @property
    def partition(self) -> Partition:
        return self.replicas.partition("t", 0)

    def broker(self, node: int, *, fenced: bool = False) -> None:
        row = BrokerRegistration(node, "00", 10 + node, {}, None, fenced=fenced, stopping=False)
        self.catalog.record(Brokers.change(row, 1))

    def register(self, isr, *, partition_epoch) -> PartitionRegistration:
        topic = self.catalog.topics.by_name["t"]
        registration = PartitionRegistration((1, 2, 3), isr, 1, 0, partition_epoch)
        self.catalog.record(self.catalog.topics.partition_change(topic, 0, registration))
        return registration

    def write(self) -> None:
        self.replicas.append(self.partition, batch(b"x"), origin=Origin.CLIENT, acks=1)

    def fetch(self, node: int, offset: int) -> int:
        self.replicas.follower_fetched(node, 10 + node, self.partition, offset)
        return self.partition.log.high_watermark


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    let_go()


def run(tmp_path, test: Callable[[Rig], Awaitable[None]], **options) -> None:
    async def main() -> None:
        rig = Rig(tmp_path, **options)
        try:
            await asyncio.wait_for(test(rig), 20)
        finally:
            await rig.in_sync.stop()

    asyncio.run(main())


def test_a_caught_up_replica_joins_with_its_broker_epoch(tmp_path):
    async def test(rig):
        rig.write()
        assert rig.fetch(3, 1) == 0
        await rig.clock.run()
        assert rig.controller.proposals == [{1: 11, 2: -1, 3: 13}]
        assert set(rig.partition.isr) == {1, 2, 3}

    run(tmp_path, test, isr=(1, 2))


def test_a_lagging_replica_leaves_the_in_sync_set(tmp_path):
    async def test(rig):
        rig.write()
        rig.fetch(2, 1)
        await rig.clock.run(LAG_MS + LAG_MS / 2)
        assert rig.controller.proposals[-1] == {1: 11, 2: 12}
        assert rig.partition.isr == (1, 2)
        assert rig.partition.log.high_watermark == 1

    run(tmp_path, test)


def test_a_proposal_is_retried_while_the_controller_is_unreachable(tmp_path):
    async def test(rig):
        rig.controller.responses = [ConnectionFailedError("away")] * 3
        rig.write()
        rig.fetch(2, 1)
        await rig.clock.run(LAG_MS + LAG_MS / 2 - 1)
        await rig.clock.run(2)
        assert rig.partition.isr == (1, 2, 3)
        assert rig.partition.proposed_isr == (1, 2)
        assert rig.partition.log.high_watermark == 0
        await rig.clock.run(1000)
        assert len(rig.controller.proposals) == 4
        assert rig.partition.isr == (1, 2)

    run(tmp_path, test)


@pytest.mark.behaviour("B18")
def test_an_unexpected_exception_does_not_end_a_proposal(tmp_path, caplog):
    async def test(rig):
        rig.controller.responses = [KeyError("a bug")]
        rig.write()
        rig.fetch(3, 1)
        await until("a retry", lambda: set(rig.partition.isr) == {1, 2, 3})
        assert len(rig.controller.proposals) == 2

    run(tmp_path, test, isr=(1, 2))
    assert "KeyError: 'a bug'" in caplog.text


@pytest.mark.parametrize(("code", "kept"), [(Code.INELIGIBLE_REPLICA, False), (Code.INVALID_UPDATE_VERSION, True)])
def test_a_rejection_ends_a_proposal_unless_it_may_have_succeeded(tmp_path, code, kept):
    async def test(rig):
        rig.controller.responses = [BrokerError("no", code=code)]
        rig.write()
        rig.fetch(3, 1)
        await rig.clock.run(100)
        assert len(rig.controller.proposals) == 1
        assert (rig.partition.proposed_isr is not None) is kept
        rig.register((1, 2, 3), partition_epoch=5)  # the controller had a newer state
        assert rig.partition.proposed_isr is None

    run(tmp_path, test, isr=(1, 2))


def test_a_fenced_broker_does_not_hold_the_high_watermark(tmp_path):
    """The controller first removes it from the in-sync set and then fences it: both events count."""

    async def test(rig):
        rig.write()
        rig.fetch(2, 1)
        assert rig.fetch(3, 1) == 1
        rig.write()
        rig.register((1, 2), partition_epoch=2)
        assert rig.fetch(2, 2) == 1  # broker 3 could rejoin
        rig.broker(3, fenced=True)
        assert rig.partition.log.high_watermark == 2

    run(tmp_path, test)


def test_a_broker_that_fetched_while_fenced_joins_when_unfenced(tmp_path):
    async def test(rig):
        rig.broker(3, fenced=True)
        rig.fetch(3, 0)
        await rig.clock.run()
        assert rig.controller.proposals == []
        rig.broker(3)
        await rig.clock.run()
        assert rig.controller.proposals == [{1: 11, 2: -1, 3: 13}]

    run(tmp_path, test, isr=(1, 2))


# -- fetch sessions of followers


def log_end(partition):
    return partition.log.end_offset


def test_a_session_returns_each_change_once_and_marked_partitions_again(tmp_path):
    async def test(rig):
        session = FollowerSessions().find(2, 0, 0)
        partition_id = (rig.partition.topic_id, 0)
        session.update(partition_id, PartitionFetch(0, 0, 1000, partition=rig.partition))
        due = session.due([partition_id])
        assert [*due] == [partition_id]
        quiet = Read(b"", 0, 0, 0)
        assert len(session.unreported(due, [quiet], log_end)) == 1  # the high watermark was not known
        assert session.due([]) == {}
        assert session.unreported(due, [quiet], log_end) == []
        rig.write()
        assert [*session.due([])] == [partition_id]
        # It did not fit into the response: it stays marked.
        assert session.unreported(due, [quiet], log_end) == []
        assert [*session.due([])] == [partition_id]
        session.forget(partition_id)
        rig.write()
        assert session.due([]) == {}
        assert not rig.partition.follower_sessions

    run(tmp_path, test)


def test_records_complete_a_waiting_fetch_but_the_high_watermark_does_not(tmp_path):
    async def test(rig):
        session = FollowerSessions().find(2, 0, 0)
        partition_id = (rig.partition.topic_id, 0)
        session.update(partition_id, PartitionFetch(0, 0, 1000, partition=rig.partition))
        session.due([partition_id])
        waiting = asyncio.create_task(session.wait(rig.clock, 500))
        await rig.clock.run()
        session.mark_for_next(partition_id)
        await rig.clock.run(10)
        assert not waiting.done()
        rig.write()
        await rig.clock.run()
        assert waiting.done()
        late = asyncio.create_task(session.wait(rig.clock, 500))
        await rig.clock.run(500)
        assert late.done()

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [(99, 1, Code.FETCH_SESSION_ID_NOT_FOUND), (1, 3, Code.INVALID_FETCH_SESSION_EPOCH)],
)
def test_a_fetch_with_a_wrong_session_is_rejected(session_id, epoch, code):
    sessions = FollowerSessions()
    begun = sessions.find(2, 0, 0)
    assert sessions.find(2, begun.id, 1) is begun
    with pytest.raises(BrokerError) as caught:
        sessions.find(2, session_id, epoch)
    assert caught.value.code == code
