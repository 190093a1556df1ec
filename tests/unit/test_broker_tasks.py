"""Background tasks of a broker: none fails silently."""

from __future__ import annotations

import ast
import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import headrace.broker
from headrace.broker import control, tasks
from headrace.broker.broker import Broker
from headrace.broker.broker_options import resolve
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, PartitionRegistration, Topics
from headrace.broker.cluster.isr import AlterPartitionManager
from headrace.broker.cluster.membership import BrokerInfo, Membership
from headrace.broker.cluster.peer import Peer
from headrace.broker.cluster.replica_fetcher import FetchSettings, LeaderFetcher
from headrace.broker.cluster.role import IsrChange
from headrace.broker.log import LogConfig, LogManager
from headrace.broker.replica_manager import ReplicaManager
from headrace.broker.service import Service
from headrace.errors import BrokerError, Code, HeadraceError, IllegalStateError
from headrace.wire.api.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from headrace.wire.api.inter_broker import (
    AlterPartitionResponse,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    PartitionResult,
    TopicResult,
)
from headrace.wire.records import RecordBatch
from headrace.wire.schema import Message
from tests.support.broker_in_loop import broker_in_loop
from tests.support.cluster_in_loop import until
from tests.support.fake_internal import HandClock
from tests.support.group_rig import GroupRig
from tests.support.log_rig import LogRig, batch

SECONDS_MAX = 20


class BugError(Exception):
    """What nobody expects."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(tasks, "BACKOFF_SECONDS_MIN", 0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await test()

    asyncio.run(main())


class FakePeer:
    """Another broker; each response is a message, an error, or a function of the request that returns one."""

    is_connected = True

    def __init__(self, *responses: Any) -> None:
        self.requests: list[Message] = []
        self._responses = list(responses)
        self._held = asyncio.Event()

    async def request(self, message: Message, version: int, timeout_ms: float) -> Message:
        self.requests.append(message)
        if not self._responses:
            await self._held.wait()
        response = self._responses.pop(0)
        if isinstance(response, Exception):
            raise response
        return cast(Message, response(message) if callable(response) else response)

    def disconnect(self, why: str) -> None:
        pass

    async def close(self) -> None:
        pass


# --- the helper ---


@pytest.mark.behaviour("B18")
def test_a_failed_task_is_logged_with_its_traceback_and_counted(caplog):
    async def fails() -> None:
        raise BugError("here")

    async def test() -> None:
        with pytest.raises(BugError):
            await tasks.start_task(fails(), "a job")
        assert tasks.failures() == {"a job": 1}
        with pytest.raises(BugError):
            await tasks.start_task(fails(), "a job", outcomes=(BugError,))
        tasks.start_task(asyncio.sleep(60), "cancelled").cancel()
        await asyncio.sleep(0)
        assert tasks.failures() == {"a job": 1}

    run(test)
    assert [record.message for record in caplog.records] == ["background task a job failed"]
    assert "raise BugError" in caplog.text


@pytest.mark.behaviour("B18")
def test_a_failed_loop_is_restarted_with_back_off(caplog, monkeypatch):
    async def test() -> None:
        turns = itertools.count()
        waits: list[float] = []

        async def noted(seconds: float) -> None:
            waits.append(seconds)

        async def loop() -> None:
            if next(turns) < 5:
                raise BugError("again")

        monkeypatch.setattr(tasks, "BACKOFF_SECONDS_MAX", 6.0)
        monkeypatch.setattr(tasks, "BACKOFF_SECONDS_MIN", 1.0)
        monkeypatch.setattr(asyncio, "sleep", noted)
        await tasks.start_loop(loop, "a loop")
        assert waits == [1, 2, 4, 6, 6]
        assert tasks.failures() == {"a loop": 5}

    run(test)
    assert caplog.text.count("raise BugError") == 5


def test_an_exception_in_a_timer_is_counted(tmp_path, caplog):
    async def test() -> None:
        async with broker_in_loop(tmp_path) as broker:
            broker.clock.call_later(0, next, iter([]))
            await until("it is counted", lambda: tasks.failures() == {"callback": 1})

    run(test)
    assert "StopIteration" in caplog.text


def test_tasks_are_started_by_the_tasks_module_only():
    """A TaskGroup is allowed: its exceptions go to the caller that awaits it."""
    starts = []
    for path in Path(headrace.broker.__path__[0]).rglob("*.py"):
        tree = ast.parse(path.read_text())
        groups = {
            item.optional_vars.id
            for node in ast.walk(tree)
            if isinstance(node, ast.AsyncWith)
            for item in node.items
            if isinstance(item.optional_vars, ast.Name) and "TaskGroup" in ast.unparse(item.context_expr)
        }
        for node in ast.walk(tree):
            is_start = isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future")
            if is_start and ast.unparse(node).rpartition(".")[0] not in groups:
                starts.append(path.name)
    assert starts == ["tasks.py"]


def test_the_status_contains_task_failures(tmp_path):
    async def fails() -> None:
        raise BugError("here")

    async def test() -> None:
        config = resolve(("argument", {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        service = Service(config)
        ready = await service.start()
        try:
            tasks.start_task(fails(), "a job")
            status = await asyncio.to_thread(control.call, ready.control, "status")
            assert (status["task_failures"], status["damaged"]) == ({"a job": 1}, [])
        finally:
            await service.stop()

    run(test)


# --- who uses it ---


class Follower:
    """Broker 2, which follows broker 1."""

    def __init__(self, folder: Path) -> None:
        self.logs = LogRig(folder / "data")
        self.clock: HandClock = self.logs.clock
        catalog = Catalog(folder / "catalog.journal")
        self.replicas = ReplicaManager(2, self.logs.manager, catalog, self.clock, lambda _: LogConfig.resolve({}))
        self.replicas.start()
        catalog.record(Topics.creation("t", [[1, 2]]))
        self.partition = self.replicas.replica("t", 0)

    def records(self, request: Message) -> FetchResponse:
        """What the leader sends: a record."""
        row = PartitionData(
            partition_index=0, high_watermark=0, log_start_offset=0, records=batch(b"a", leader_epoch=0)
        )
        return FetchResponse(
            session_id=5, responses=[FetchableTopicResponse(topic_id=self.partition.topic_id, partitions=[row])]
        )

    def fetcher(self, peer: FakePeer) -> LeaderFetcher:
        settings = FetchSettings(1, 500, 1 << 20, 1 << 20, 1000, 1000, False)
        return LeaderFetcher(
            2, cast(Peer, peer), self.replicas, broker_epoch=lambda: 7, clock=self.clock, settings=settings
        )


@pytest.mark.behaviour("B10", "B18")
def test_a_replica_fetcher_continues_after_an_unexpected_error(tmp_path, caplog):
    async def test() -> None:
        follower = Follower(tmp_path)
        peer = FakePeer(BugError("in the fetch"), follower.records)
        fetcher = follower.fetcher(peer)
        fetcher.add(follower.partition)
        await until("the record is there", lambda: follower.partition.log.end_offset == 1)
        assert tasks.failures() == {"replica fetcher": 1}
        fetcher.stop()

    run(test)
    assert "in the fetch" in caplog.text


@pytest.mark.behaviour("B10")
def test_a_response_of_an_older_leader_epoch_is_ignored(tmp_path):
    async def test() -> None:
        follower = Follower(tmp_path)
        partition = follower.partition

        def late(request: Message) -> FetchResponse:
            partition.apply_registration(
                PartitionRegistration((1, 2), (1, 2), 1, 3, 3)
            )  # the fetcher is about to hear of it
            return follower.records(request)

        peer = FakePeer(late)
        fetcher = follower.fetcher(peer)
        fetcher.add(partition)
        await until("it has fetched again", lambda: len(peer.requests) == 2)
        assert partition.log.end_offset == 0
        fetcher.stop()

    run(test)


@pytest.mark.behaviour("B18")
def test_heartbeats_continue_after_an_unexpected_error(caplog):
    async def test() -> None:
        epochs: list[int] = []

        def registered(epoch: int) -> None:
            epochs.append(epoch)
            if len(epochs) == 1:
                raise BugError("in a listener")

        async def verified() -> None:
            pass

        peer = FakePeer(
            BrokerRegistrationResponse(broker_epoch=3),  # not kept by the listener that fails: registers again
            BrokerRegistrationResponse(broker_epoch=4),
            BrokerHeartbeatResponse(is_fenced=False),
        )
        membership = Membership(
            cast(Peer, peer), 60_000, caught_up_to=lambda: 0, verify=verified, registered=registered
        )
        membership.start(BrokerInfo(2, "cluster", None, {}), -1)
        await membership.wait_unfenced(5_000)
        assert [type(request) for request in peer.requests[:2]] == [BrokerRegistrationRequest] * 2
        assert membership.epoch == 4
        assert tasks.failures() == {"heartbeats": 1}
        await membership.close()

    run(test)
    assert "in a listener" in caplog.text


@pytest.mark.behaviour("B18")
def test_alter_partition_recovers_from_an_incomplete_response():
    async def test() -> None:
        whole = AlterPartitionResponse(
            topics=[TopicResult(topic_id=bytes(16), partitions=[PartitionResult(partition_index=0, partition_epoch=4)])]
        )
        requests = AlterPartitionManager(cast(Peer, FakePeer(AlterPartitionResponse(), whole)), 1, lambda: 1, 1000)
        with pytest.raises(BrokerError) as caught:
            await requests.alter(IsrChange(bytes(16), 0, 1, 3, {1: 1}))
        assert caught.value.code == Code.UNKNOWN_SERVER_ERROR
        assert (await requests.alter(IsrChange(bytes(16), 0, 1, 3, {1: 1}))).partition_epoch == 4
        assert tasks.failures() == {"AlterPartition": 1}
        await requests.close()

    run(test)


@pytest.mark.behaviour("B18")
@pytest.mark.parametrize("error", [BrokerError("damaged", code=Code.CORRUPT_MESSAGE), OSError("no such disk")])
def test_an_unreadable_group_partition_does_not_stop_the_broker(error, caplog):
    async def test() -> None:
        rig = GroupRig()

        def broken(topic: str, index: int) -> Iterator[RecordBatch]:
            yield from []
            raise error

        rig.internal.batches = broken  # type: ignore[method-assign]
        async with rig:
            with pytest.raises(HeadraceError) as caught:
                await rig.join()
            assert cast(BrokerError, caught.value).code == Code.COORDINATOR_LOAD_IN_PROGRESS

    run(test)
    assert f"failed to load {CONSUMER_OFFSETS}-0" in caplog.text


def test_a_flush_ends_when_the_log_is_truncated_below_what_it_waits_for(tmp_path):
    async def test() -> None:
        rig = LogRig(tmp_path)
        log = rig.log()
        for n in range(5):
            rig.append(log, b"%d" % n)
        flushing = asyncio.ensure_future(rig.manager.flushed(log))
        await asyncio.sleep(0)  # it has seen the end of the log
        log.truncate(2)
        await asyncio.wait_for(flushing, 5)
        assert log.recovery_point == log.end_offset == 2

    run(test)


def test_a_failed_start_releases_the_data_folder(tmp_path):
    async def test() -> None:
        config = resolve(("argument", {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}))
        founded = Broker(config)
        await founded.start()
        await founded.stop()
        (tmp_path / "t-0" / "00000000000000000000.log").mkdir(parents=True)
        with pytest.raises(IllegalStateError, match=r"the log in .*t-0 cannot be opened"):
            await Broker(config).start()
        (tmp_path / "t-0" / "00000000000000000000.log").rmdir()
        LogManager(tmp_path, HandClock(), {}).release()

    run(test)
