"""Replication between brokers on one event loop: acks=all, in-sync sets and new leaders."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.api.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from headrace.wire.frames import encode_request
from headrace.wire.records import BatchProducer as Writer
from tests.support.cluster_in_loop import until
from tests.support.log_rig import batch
from tests.support.peers.connection import Connection
from tests.support.replica_cluster import ReplicaCluster, replica_cluster
from tests.support.visible import visible

SECONDS_MAX = 40


def run(folder: Path, test: Callable[[ReplicaCluster], Awaitable[None]], count: int = 3, **options: object) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX), replica_cluster(folder, count, **options) as cluster:
            await test(cluster)

    asyncio.run(main())


async def produce(cluster, node, topic, data, *, acks=-1, timeout_ms=10_000, version=9):
    request = ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(name=topic, partition_data=[PartitionProduceData(partition_index=0, records=data)])
        ],
    )
    response = await cluster.send_request(node, request, version)
    ((result,),) = (topic.partition_responses for topic in response.responses)
    return result


async def read(cluster, node, topic, *, committed=False):
    def call():
        with Connection(cluster.address(node)) as connection:
            return visible(connection, topic, committed=committed)

    return await asyncio.to_thread(call)


@pytest.mark.behaviour("B09", "B10")
def test_check_20_below_min_isr_a_write_is_rejected_before_the_append(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2]], min_insync_replicas="2")
        assert (await produce(cluster, 1, "t", batch(b"a"))).error_code == Code.NONE
        await cluster.stop(2)
        await cluster.in_sync("t", 1)
        assert (await produce(cluster, 1, "t", batch(b"b"))).error_code == Code.NOT_ENOUGH_REPLICAS
        assert cluster.partition(1, "t").log.end_offset == 1
        assert (await produce(cluster, 1, "t", batch(b"c"), acks=1)).error_code == Code.NONE
        assert cluster.partition(1, "t").log.high_watermark == 1  # what only one replica has is not committed
        await cluster.start(2)
        await cluster.in_sync("t", 1, 2)
        assert (await produce(cluster, 1, "t", batch(b"d"))).base_offset == 2
        assert await read(cluster, 1, "t") == [b"a", b"c", b"d"]
        await cluster.logs_agree("t")

    run(tmp_path, test, 2, offsets_topic_replication_factor=1, transaction_state_log_replication_factor=1)


@pytest.mark.behaviour("B09", "B10")
def test_acks_all_and_consumers_wait_for_the_in_sync_replicas(tmp_path):
    """Meanwhile the broker serves others, and the high watermark stays."""

    async def test(cluster):
        await cluster.topic("t", [[1, 2, 3]])
        await produce(cluster, 1, "t", batch(b"a"))
        release = cluster.hold_followers(1)
        waiting = asyncio.create_task(produce(cluster, 1, "t", batch(b"b"), timeout_ms=30_000))
        log = cluster.partition(1, "t").log
        await until("it is appended", lambda: log.end_offset == 2)
        assert (await produce(cluster, 1, "t", batch(b"c"), acks=1)).base_offset == 2
        assert not waiting.done()
        assert (log.high_watermark, await read(cluster, 1, "t")) == (1, [b"a"])
        release()
        result = await waiting
        assert (result.error_code, result.base_offset) == (Code.NONE, 1)
        assert all(cluster.partition(node, "t").log.end_offset >= 2 for node in (1, 2, 3))
        await until("all is committed", lambda: log.high_watermark == 3)
        assert await read(cluster, 1, "t") == [b"a", b"b", b"c"]

    run(tmp_path, test, replica_lag_time_max_ms=30_000)


@pytest.mark.behaviour("B09")
def test_check_20_a_shrinking_in_sync_set_fails_waiting_produces_after_append(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2]], min_insync_replicas="2")
        await produce(cluster, 1, "t", batch(b"a"))
        cluster.hold_followers(1)
        timed_out = await produce(cluster, 1, "t", batch(b"b"), timeout_ms=200)
        assert timed_out.error_code == Code.REQUEST_TIMED_OUT
        waiting = asyncio.create_task(produce(cluster, 1, "t", batch(b"c")))
        await until("it is appended", lambda: cluster.partition(1, "t").log.end_offset == 3)
        await cluster.stop(2)
        assert (await waiting).error_code == Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    run(tmp_path, test, 2)


@pytest.mark.behaviour("B09")
def test_acks_all_waits_for_every_in_sync_replica_and_acks_1_does_not(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2, 3]])
        replicas = cluster.brokers[1].replicas
        held, fetched = {2, 3}, replicas.follower_fetched

        def hear(node, *arguments):
            if node not in held:
                fetched(node, *arguments)

        replicas.follower_fetched = hear
        assert (await produce(cluster, 1, "t", batch(b"a"), acks=1)).error_code == Code.NONE
        waiting = asyncio.create_task(produce(cluster, 1, "t", batch(b"b")))
        await until("it waits", lambda: len(replicas.delayed_produces) == 1)
        held.discard(2)
        replicas.follower_sessions.close()  # the next session repeats what was hidden
        followers = cluster.partition(1, "t").followers
        await until("2 is known to have it", lambda: followers[2].end_offset == 2)
        assert not waiting.done(), "3 is in sync, and does not have it"
        assert cluster.partition(1, "t").log.high_watermark == 0
        held.clear()
        replicas.follower_sessions.close()
        result = await waiting
        assert (result.error_code, result.base_offset) == (Code.NONE, 1)
        assert cluster.partition(1, "t").log.high_watermark == 2

    run(tmp_path, test)


@pytest.mark.behaviour("B08", "B09")
def test_a_duplicate_is_acknowledged_when_the_original_is_replicated(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2]])
        once = batch(b"a", producer=Writer(7, 0, 0))
        release = cluster.hold_followers(1)
        first = await produce(cluster, 1, "t", once, timeout_ms=200)
        assert first.error_code == Code.REQUEST_TIMED_OUT
        again = await produce(cluster, 1, "t", once, timeout_ms=200)
        assert again.error_code == Code.REQUEST_TIMED_OUT, "it was not replicated when it was acknowledged"
        waiting = asyncio.create_task(produce(cluster, 1, "t", once))
        purgatory = cluster.brokers[1].replicas.delayed_produces
        await until("the retry waits", lambda: len(purgatory) == 1)
        release()
        result = await waiting
        assert (result.error_code, result.base_offset) == (Code.NONE, 0)
        assert cluster.partition(1, "t").log.high_watermark == cluster.partition(1, "t").log.end_offset == 1

    run(tmp_path, test, 2)


@pytest.mark.behaviour("B15")
@pytest.mark.parametrize("transactional", [False, True])
def test_a_produce_that_waits_for_replicas_keeps_no_record_bytes(tmp_path, transactional):
    """With verification of a transaction, which waits before the append as well, and without."""
    batches, batch_bytes = 8, 900_000

    async def test(cluster):
        await cluster.topic("t", [[1, 2]])
        if transactional:
            cluster.brokers[1].transactions.ensure_partitions = in_transaction
        await produce(cluster, 1, "t", batch(b"first"))
        cluster.hold_followers(1, refusing=True)
        purgatory = cluster.brokers[1].replicas.delayed_produces
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            writers = [await send(cluster, number) for number in range(batches)]
            await until("all wait", lambda: len(purgatory) == batches)
            gc.collect()
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        for writer in writers:
            writer.close()
        assert cluster.partition(1, "t").log.end_offset == batches + 1
        assert held < batch_bytes, f"{held} bytes are held for {batches} batches of {batch_bytes}"

    async def send(cluster, number):
        """Without our client, which would hold the bytes itself."""
        writer = Writer(number, 0, 0, transactional)
        request = ProduceRequest(
            transactional_id="x" if transactional else None,
            acks=-1,
            timeout_ms=20_000,
            topic_data=[
                TopicProduceData(
                    name="t",
                    partition_data=[
                        PartitionProduceData(partition_index=0, records=batch(bytes(batch_bytes), producer=writer))
                    ],
                )
            ],
        )
        _, stream = await asyncio.open_connection(*cluster.address(1).split(":"))
        stream.write(b"".join(encode_request(request, 9, 1, None)))
        stream.transport.set_write_buffer_limits(0)
        await stream.drain()
        return stream

    async def in_transaction(*_, **__):
        await asyncio.sleep(0)
        return {}

    run(tmp_path, test, 2)


def test_waiting_requests_fail_with_not_leader_when_leadership_moves(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[2, 3, 1]])
        cluster.hold_followers(2)
        waiting = asyncio.create_task(produce(cluster, 2, "t", batch(b"a")))
        await until("it is appended", lambda: cluster.partition(2, "t").log.end_offset == 1)
        await cluster.stop(2)
        assert (await waiting).error_code == Code.NOT_LEADER_OR_FOLLOWER
        assert cluster.registration("t").leader == 3

    run(tmp_path, test)


@pytest.mark.behaviour("B10")
def test_a_lagging_replica_leaves_the_in_sync_set_and_rejoins(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2, 3]])
        await produce(cluster, 1, "t", batch(b"a"))
        release = cluster.hold_followers(1)
        assert (await produce(cluster, 1, "t", batch(b"b"), acks=1)).error_code == Code.NONE
        await cluster.in_sync("t", 1)
        release()
        await cluster.in_sync("t", 1, 2, 3)
        await until("all is committed", lambda: cluster.partition(1, "t").log.high_watermark == 2)

    run(tmp_path, test, replica_lag_time_max_ms=600)


@pytest.mark.behaviour("B11")
def test_check_7_the_next_leader_detects_a_duplicate(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[2, 3, 1]])
        for number in range(5):
            result = await produce(cluster, 2, "t", batch(b"%d" % number, producer=Writer(77, 0, number)))
            assert result.base_offset == number
        await cluster.stop(2)
        assert cluster.registration("t").leader == 3
        for number in range(5):
            result = await produce(cluster, 3, "t", batch(b"%d" % number, producer=Writer(77, 0, number)))
            assert (result.error_code, result.base_offset) == (Code.NONE, number)
        gap = await produce(cluster, 3, "t", batch(b"x", producer=Writer(77, 0, 9)))
        assert gap.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        # And by one that learns it all from that leader.
        await cluster.start(2)
        await cluster.in_sync("t", 1, 2, 3)
        await cluster.stop(3)
        await until("another one leads", lambda: cluster.registration("t").leader == 2)
        result = await produce(cluster, 2, "t", batch(b"3", producer=Writer(77, 0, 3)))
        assert (result.error_code, result.base_offset) == (Code.NONE, 3)

    run(tmp_path, test)


def list_latest(topic, version=7):
    row = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[row])]), version


def test_check_21_a_new_leader_returns_no_end_offset_before_it_is_confirmed(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[2, 3, 1]])
        await produce(cluster, 2, "t", batch(b"a", b"b"))
        release = cluster.hold_followers(3)  # which is about to lead
        await cluster.stop(2)
        await until("it leads", lambda: cluster.partition(3, "t").is_leader)
        partition = cluster.partition(3, "t")
        assert partition.log.high_watermark < 2  # it did not know it yet: its fetch was delayed
        result = await cluster.send_request(3, *list_latest("t"))
        assert result.topics[0].partitions[0].error_code == Code.OFFSET_NOT_AVAILABLE
        release()
        await until("it is confirmed", lambda: partition.is_confirmed)
        result = await cluster.send_request(3, *list_latest("t"))
        assert (result.topics[0].partitions[0].error_code, result.topics[0].partitions[0].offset) == (0, 2)
        assert await read(cluster, 3, "t") == [b"a", b"b"]

    run(tmp_path, test, replica_fetch_wait_max_ms=5000)


def test_check_21_clients_never_see_the_high_watermark_go_back(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2, 3]])
        seen = 0
        for leader in (1, 2, 3, 1):
            await until("it leads", partial(_leads, cluster.partition(leader, "t")))
            await produce(cluster, leader, "t", batch(b"x"))
            end = (await cluster.send_request(leader, *list_latest("t"))).topics[0].partitions[0].offset
            assert end == seen + 1
            seen = end
            await cluster.elect("t", {1: 2, 2: 3, 3: 1}[leader])
        await cluster.logs_agree("t")

    run(tmp_path, test)


@pytest.mark.behaviour("B10")
def test_check_22_an_old_leader_truncates_unreplicated_records(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[2, 3, 1]])
        await produce(cluster, 2, "t", batch(b"a"))
        release = cluster.hold_followers(2, refusing=True)
        await produce(cluster, 2, "t", batch(b"b"), acks=1)  # completes the delayed fetches
        await cluster.logs_agree("t")
        await produce(cluster, 2, "t", batch(b"lost"), acks=1)
        await cluster.elect("t", 3)
        release()
        assert (await produce(cluster, 3, "t", batch(b"c"))).base_offset == 2
        await cluster.logs_agree("t")
        assert await read(cluster, 3, "t") == [b"a", b"b", b"c"]
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic="t",
                    partitions=[OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)],
                )
            ],
        )
        row = (await cluster.send_request(3, request, 4)).topics[0].partitions[0]
        assert (row.leader_epoch, row.end_offset) == (0, 2)

    run(tmp_path, test)


@pytest.mark.parametrize("unclean", ["false", "true"])
def test_check_23_the_last_replica_is_not_elected_when_its_tail_is_lost(tmp_path, unclean, caplog):
    async def test(cluster):
        await cluster.topic("t", [[2, 3]], min_insync_replicas="1", unclean_leader_election_enable=unclean)
        await produce(cluster, 2, "t", batch(b"a"))
        await cluster.stop(3)
        await cluster.in_sync("t", 2)
        await produce(cluster, 2, "t", batch(b"b"))
        folder = cluster.partition(2, "t").log.directory
        await cluster.stop(2)
        (segment,) = folder.glob("*.log")
        os.truncate(segment, segment.stat().st_size - 10)  # as a disk may do that has lost its power
        (folder.parent / ".kafka_cleanshutdown").unlink()
        await cluster.start(2)
        if unclean == "true":
            await until("it leads", lambda: cluster.registration("t").leader == 2)
            assert await read(cluster, 2, "t") == [b"a"]
            assert "t-0: broker 2 is leader by unclean election: acknowledged records that it lacks" in caplog.text
        else:
            await asyncio.sleep(0.5)  # nothing is to happen
            assert cluster.registration("t").leader == -1
            assert "t-0 has no leader: every broker that had all acknowledged records" in caplog.text
            assert "headrace topic config t --set unclean.leader.election.enable=true" in caplog.text

    run(tmp_path, test)


def test_consumers_are_redirected_to_a_follower_on_their_rack(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2]])
        await produce(cluster, 1, "t", batch(b"a"))
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[part])]
        )
        # Long before its fetch would be over.
        await until("it knows", lambda: cluster.partition(2, "t").log.high_watermark == 1)

        async def fetch(node, rack="", version=12):
            result = await cluster.send_request(node, request.replace(rack_id=rack), version)
            return result.responses[0].partitions[0]

        sent = await fetch(1, rack="rack-2")
        assert (sent.preferred_read_replica, bytes(sent.records or b"")) == (2, b"")
        here = await fetch(1, rack="rack-1")
        assert (here.preferred_read_replica, len(here.records) > 0) == (-1, True)
        there = await fetch(2, rack="rack-2")
        assert bytes(there.records) == bytes(here.records)
        assert there.high_watermark == 1
        old = await fetch(2, version=10)
        assert old.error_code == Code.NOT_LEADER_OR_FOLLOWER
        # A node that has no replica knows who does not either.
        assert (await fetch(3)).error_code == Code.NOT_LEADER_OR_FOLLOWER

    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

    async def main() -> None:
        slow = {"replica.fetch.wait.max.ms": 60_000}
        async with asyncio.timeout(SECONDS_MAX), replica_cluster(tmp_path, 0, **slow) as cluster:
            for node in (1, 2, 3):
                await cluster.start(node, **{"broker.rack": f"rack-{node}", "replica.selector.class": selector})
            await test(cluster)

    asyncio.run(main())


@pytest.mark.behaviour("B10")
def test_a_follower_behind_the_leaders_start_restarts_there(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[1, 2]], min_insync_replicas="1")
        for number in range(3):
            await produce(cluster, 1, "t", batch(b"%d" % number))
        await cluster.stop(2)
        for number in range(3, 9):
            await produce(cluster, 1, "t", batch(b"%d" % number))
        assert await delete_before(cluster, "t", 7) == (7, Code.NONE)
        await cluster.start(2)
        await cluster.in_sync("t", 1, 2)
        log = cluster.partition(2, "t").log
        assert (log.start_offset, log.end_offset) == (7, 9)

    run(tmp_path, test, 2)


def test_delete_records_waits_for_all_live_replicas(tmp_path):
    async def test(cluster):
        await cluster.topic("t", [[2, 1, 3]])
        for number in range(9):
            await produce(cluster, 2, "t", batch(b"%d" % number))
        assert await delete_before(cluster, "t", 4, leader=2) == (4, Code.NONE)
        assert [cluster.partition(node, "t").log.start_offset for node in (1, 2, 3)] == [4, 4, 4]
        cluster.hold_followers(2)
        assert await delete_before(cluster, "t", 5, leader=2, timeout_ms=200) == (4, Code.REQUEST_TIMED_OUT)
        await cluster.stop(3)  # it need not be waited for; but 1 is there still
        waiting = asyncio.create_task(delete_before(cluster, "t", 6, leader=2))
        await until("it is deleted here", lambda: cluster.partition(2, "t").log.start_offset == 6)
        await until("and there", lambda: cluster.partition(1, "t").log.start_offset == 6)
        assert not waiting.done()
        await cluster.elect("t", 1)
        assert (await waiting)[1] == Code.NOT_LEADER_OR_FOLLOWER
        assert await delete_before(cluster, "t", -1) == (9, Code.NONE)

    run(tmp_path, test)


async def delete_before(cluster, topic, offset, *, leader=1, timeout_ms=10_000):
    row = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(timeout_ms=timeout_ms, topics=[DeleteRecordsTopic(name=topic, partitions=[row])])
    result = (await cluster.send_request(leader, request, 2)).topics[0].partitions[0]
    return result.low_watermark, result.error_code


def _leads(partition):
    return partition.is_leader
