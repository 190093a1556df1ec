"""EmbeddedCluster: brokers are killed, paused and restarted; the cluster and its clients continue."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

import headrace
from headrace.broker import EmbeddedCluster, clean_shutdown
from headrace.broker.broker import JOURNAL_NAME
from headrace.broker.catalog.journal import parse
from headrace.errors import ConfigError
from headrace.wire.api.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from headrace.wire.api.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tests.support.peers.connection import Connection
from tests.support.peers.java_client import JavaClient
from tests.support.topics import unique
from tests.support.waiting import eventually

FAIL_OVER_SECONDS_MAX = 3.0
QUICK = {"broker.session.timeout.ms": 1_500, "broker.heartbeat.interval.ms": 100}


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    """Three brokers, the first one the controller; tests restore what they change."""
    with EmbeddedCluster(3, QUICK, separate_controller=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: EmbeddedCluster) -> Iterator[EmbeddedCluster]:
    yield shared
    for broker in shared.brokers:
        if broker.is_running:
            broker.resume()
    shared.start()


def in_sync(cluster: EmbeddedCluster, topic: str, count: int = 3) -> list[dict[str, Any]]:
    """Return the partitions of a topic when each has this many in-sync replicas."""

    def enough() -> list[dict[str, Any]] | None:
        states = cluster.describe_topic(topic)
        return states if all(len(state["isr"]) == count for state in states) else None

    return eventually(f"{count} replicas of {topic} in sync", enough)


def produce(cluster: EmbeddedCluster, topic: str, values: list[str], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "log_level": 0})
    failed: list[object] = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(20) == 0
    assert failed == []


def consumed(cluster: EmbeddedCluster, topic: str, count: int, partition: int = 0) -> list[str]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": unique("group"), "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        values: list[str] = []
        deadline = time.monotonic() + 20
        while len(values) < count and time.monotonic() < deadline:
            for message in consumer.consume(count, 0.2):
                assert message.error() is None
                values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def test_a_killed_leader_is_replaced_and_no_acknowledged_record_is_lost(
    cluster: EmbeddedCluster,
) -> None:
    topic = cluster.create_topic(unique("killed"), 1, 3)
    produce(cluster, topic, [f"before-{n}" for n in range(10)])
    leader = cluster.broker(cluster.describe_topic(topic)[0]["leader"])
    if leader is cluster.controller:
        move_away(cluster, topic)
        leader = cluster.broker(cluster.describe_topic(topic)[0]["leader"])
    epoch = cluster.describe_topic(topic)[0]["leader_epoch"]
    with headrace.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.partitions_for(topic)
        began = time.monotonic()
        leader.kill()
        producer.send(topic, b"after", partition=0).result(20)
        assert time.monotonic() - began < FAIL_OVER_SECONDS_MAX
    (state,) = cluster.describe_topic(topic)
    assert state["leader"] not in (leader.node_id, -1)
    assert state["leader_epoch"] > epoch
    assert leader.node_id not in state["isr"]
    assert consumed(cluster, topic, 11) == [*(f"before-{n}" for n in range(10)), "after"]
    leader.start()
    in_sync(cluster, topic)


def move_away(cluster: EmbeddedCluster, topic: str) -> None:
    """Let another broker than the controller lead, by making it the first replica."""
    in_sync(cluster, topic)
    with Connection(cluster.controller.bootstrap) as connection:
        row = ReassignablePartition(partition_index=0, replicas=[2, 3, 1])
        connection.call(AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[row])]), 1)
        connection.call(ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=topic, partitions=[0])]), 2)
    eventually("2 leads", lambda: cluster.describe_topic(topic)[0]["leader"] == 2)


def test_a_paused_broker_is_fenced_and_unfenced_after_it_resumes(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique("paused"), 3, 3)
    paused = cluster.brokers[1]
    paused.pause()
    eventually("it is fenced", lambda: cluster.controller.known_brokers()[2]["fenced"])
    assert all(state["leader"] in (1, 3) and 2 not in state["isr"] for state in cluster.describe_topic(topic))
    paused.resume()
    in_sync(cluster, topic)
    eventually("the topic in its metadata", lambda: paused.describe_topic(topic) == cluster.describe_topic(topic))
    assert not paused.known_brokers()[2]["fenced"]


def test_produce_and_consume_work_while_the_controller_is_down(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique("headless"), 1, 3)
    move_away(cluster, topic)
    produce(cluster, topic, ["before"])
    generation = cluster.controller.known_brokers()
    cluster.controller.kill()
    # Nobody takes it out of the in-sync set meanwhile, so nothing more is acknowledged by all; but by the leader it is.
    one = Producer({"bootstrap.servers": cluster.brokers[1].bootstrap, "acks": "1", "log_level": 0})
    one.produce(topic, "meanwhile", partition=0)
    assert one.flush(20) == 0
    cluster.controller.start()
    produce(cluster, topic, ["after"])
    assert consumed(cluster, topic, 3) == ["before", "meanwhile", "after"]
    rows = cluster.controller.known_brokers()
    assert {node: row["epoch"] for node, row in rows.items() if node != 1} == {
        node: row["epoch"] for node, row in generation.items() if node != 1
    }
    assert rows[1]["epoch"] > max(row["epoch"] for row in generation.values())
    cluster.brokers[2].kill()
    eventually("it elects again", lambda: 3 not in cluster.describe_topic(topic)[0]["isr"])


def test_a_cluster_that_was_killed_has_all_data_after_a_restart(cluster: EmbeddedCluster) -> None:
    topic = cluster.create_topic(unique("all-killed"), 2, 3)
    for partition in (0, 1):
        produce(cluster, topic, [f"{partition}-{n}" for n in range(20)], partition)
    for broker in reversed(cluster.brokers):
        broker.kill()
    cluster.start()
    states = in_sync(cluster, topic)
    assert all(state["leader_epoch"] > 0 for state in states)
    for partition in (0, 1):
        assert consumed(cluster, topic, 20, partition) == [f"{partition}-{n}" for n in range(20)]
    produce(cluster, topic, ["more"])


def test_a_broker_that_may_have_lost_data_is_not_elected(cluster: EmbeddedCluster) -> None:
    topic = unique("power")
    with Connection(cluster.controller.bootstrap) as connection:
        connection.call(CreateTopicsRequest(topics=[assigned(topic, 2, 3, min_insync_replicas="2")]), 7)
    two, three = cluster.brokers[1:]
    produce(cluster, topic, ["kept"])

    def states() -> tuple[int, list[int], list[int]]:
        (state,) = cluster.describe_topic(topic)
        return state["leader"], state["isr"], sorted(state["elr"])

    three.kill()
    eventually("3 is eligible only", lambda: states() == (2, [2], [3]))
    two.kill()
    eventually("nobody leads", lambda: states() == (-1, [], [2, 3]))
    as_after_a_power_cut(three.data_dir)
    three.start()
    assert states() == (-1, [], [2])  # it lives, but may lack what was acknowledged
    two.start()
    in_sync(cluster, topic, 2)
    assert consumed(cluster, topic, 1) == ["kept"]

    for broker in (three, two):
        broker.kill()
        as_after_a_power_cut(broker.data_dir)
    eventually("nobody leads", lambda: states()[0] == -1)
    three.start()
    two.start()
    assert states() == (-1, [], [])  # the last one has lost its tail, too
    with Connection(cluster.brokers[1].bootstrap) as connection:
        rows = [TopicPartitions(topic=topic, partitions=[0])]
        connection.call(ElectLeadersRequest(election_type=1, topic_partitions=rows), 2)
    in_sync(cluster, topic, 2)
    produce(cluster, topic, ["more"])


def as_after_a_power_cut(data_dir: Path) -> None:
    """Let the broker find that the machine was started again since it ran."""
    kept = json.loads((data_dir / clean_shutdown.FILE_NAME).read_text())
    for name in (clean_shutdown.FILE_NAME, clean_shutdown.COPY_NAME):
        (data_dir / name).write_text(json.dumps({"epoch": kept["epoch"], "boot_id": "another"}))


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_loss_of_records_counts_even_if_the_broker_ends_before_it_registers(is_killed: bool, tmp_path: Path) -> None:
    options = {**QUICK, "replica.high.watermark.checkpoint.interval.ms": 100}
    with EmbeddedCluster(2, options, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", 1, 2, configs={"min.insync.replicas": "2"})
        (state,) = in_sync(cluster, "t", 2)
        leader, other = (cluster.broker(node_id) for node_id in state["replicas"])
        produce(cluster, "t", ["lost here"])
        path = leader.data_dir / "t-0" / f"{0:020d}.log"
        noted = leader.data_dir / "replication-offset-checkpoint"
        eventually("it is committed", lambda: noted.exists() and "t 0 1" in noted.read_text())
        other.kill()
        eventually("it is in sync alone", lambda: len(cluster.describe_topic("t")[0]["isr"]) == 1)
        for broker in (cluster.controller, leader):
            broker.kill()
        os.truncate(path, 0)
        leader.start()  # from its copy of the catalog
        eventually("what is left is noted", lambda: "t 0 0" in noted.read_text())
        if is_killed:
            leader.kill()
        else:
            leader.stop()
        cluster.controller.start()
        leader.start()
        assert cluster.describe_topic("t")[0]["isr"] == []
        other.start()
        in_sync(cluster, "t", 2)
        assert consumed(cluster, "t", 1) == ["lost here"]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """All that are started from here on, also those that are not ready yet."""
    started: list[subprocess.Popen[bytes]] = []
    make = subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(make(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    return started


@pytest.fixture(params=[True, False], ids=["separate", "combined"])
def killed(request: pytest.FixtureRequest, processes: list[subprocess.Popen[bytes]]) -> Iterator[EmbeddedCluster]:
    """A cluster with ten records in each partition of the topic "kept", all of whose processes were killed."""
    with EmbeddedCluster(3, QUICK, separate_controller=request.param) as cluster:
        cluster.create_topic("kept", 3, 3)
        for partition in range(3):
            produce(cluster, "kept", [f"{partition}-{n}" for n in range(10)], partition)
        in_sync(cluster, "kept")
        kill_all(processes)
        yield cluster


def kill_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def kill_at_start(
    cluster: EmbeddedCluster, processes: list[subprocess.Popen[bytes]], what: str, when: Callable[[], bool]
) -> None:
    """Start a cluster, and kill all of its processes as soon as something is so."""
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(cluster.start)
        eventually(what, when)
        while not starting.done():
            kill_all(processes)
            time.sleep(0.01)
    kill_all(processes)


def check_kept(cluster: EmbeddedCluster) -> None:
    for partition, state in enumerate(in_sync(cluster, "kept")):
        assert state["leader"] != -1
        assert consumed(cluster, "kept", 10, partition) == [f"{partition}-{n}" for n in range(10)]


def recorded_epochs(cluster: EmbeddedCluster) -> dict[int, int]:
    """Return the broker epochs in the controller's journal, by node id; it may be written meanwhile."""
    lines = parse((cluster.controller.data_dir / JOURNAL_NAME).read_bytes())
    events = [event for line in lines if line.is_whole for event in line.events if event["kind"] == "broker"]
    return {event["id"]: event["epoch"] for event in events}


def test_brokers_killed_before_they_saved_their_epoch_are_trusted(
    killed: EmbeddedCluster, processes: list[subprocess.Popen[bytes]]
) -> None:
    for broker in killed.brokers:
        held = broker.data_dir / f"{clean_shutdown.FILE_NAME}.partial"
        os.mkfifo(held)  # that opens when somebody reads it: the broker waits with the epoch in its hands
        before = recorded_epochs(killed)[broker.node_id]
        kill_at_start(
            killed,
            processes,
            "an epoch is recorded",
            lambda: recorded_epochs(killed)[broker.node_id] > before,  # noqa: B023 - called here only
        )
        held.unlink()
        assert json.loads((broker.data_dir / clean_shutdown.FILE_NAME).read_text())["epoch"] <= before
    killed.start()
    check_kept(killed)


def test_a_cluster_killed_at_any_point_of_its_start_gets_all_leaders_again(
    killed: EmbeddedCluster, processes: list[subprocess.Popen[bytes]]
) -> None:
    for registrations in (1, 2, 3):
        expected = max(recorded_epochs(killed).values()) + registrations
        kill_at_start(
            killed,
            processes,
            f"{registrations} brokers have registered",
            lambda: max(recorded_epochs(killed).values()) >= expected,  # noqa: B023 - called here only
        )
    killed.start()
    check_kept(killed)


def test_any_broker_can_fail_with_a_separate_controller() -> None:
    with EmbeddedCluster(3, QUICK) as cluster:
        topic = cluster.create_topic("safe", 3)
        returned = AdminClient({"bootstrap.servers": cluster.controller.bootstrap, "log_level": 0}).list_topics(
            timeout=10
        )
        assert set(returned.brokers) == {1, 2, 3}
        assert returned.controller_id in returned.brokers
        assert {node for state in cluster.describe_topic(topic) for node in state["replicas"]} == {1, 2, 3}
        lost = cluster.broker(cluster.describe_topic(topic)[0]["leader"])
        lost.kill()
        produce(cluster, topic, ["one"])
        cluster.controller.kill()
        produce(cluster, topic, ["two"])  # the two that are left are in sync: nobody has to decide anything
        cluster.controller.start()
        lost.start()
        in_sync(cluster, topic)
        assert consumed(cluster, topic, 2) == ["one", "two"]


@pytest.fixture(scope="module")
def degraded() -> Iterator[EmbeddedCluster]:
    """Three brokers with bad networks between them; tests restore what they change."""
    with EmbeddedCluster(3, QUICK, degraded=True, separate_controller=False) as cluster:
        yield cluster


def test_an_isolated_broker_is_replaced_and_catches_up_after_healing(degraded: EmbeddedCluster) -> None:
    topic = degraded.create_topic("cut")
    move_away(degraded, topic)
    produce(degraded, topic, ["before"])
    degraded.brokers[1].isolate()
    produce(degraded, topic, ["meanwhile"])
    (state,) = degraded.describe_topic(topic)
    assert (state["leader"], sorted(state["isr"])) == (3, [1, 3])
    degraded.brokers[1].heal()
    in_sync(degraded, topic)
    isolated = degraded.brokers[1]
    eventually("the topic in its metadata", lambda: isolated.describe_topic(topic) == degraded.describe_topic(topic))
    assert consumed(degraded, topic, 2) == ["before", "meanwhile"]


def test_followers_retry_a_leader_that_does_not_know_the_topic_yet(
    degraded: EmbeddedCluster,
) -> None:
    topic = unique("late")
    way = degraded.brokers[1].controller_degrader
    way.set(latency_ms=300)
    try:
        with Connection(degraded.controller.bootstrap) as connection:
            connection.call(CreateTopicsRequest(topics=[assigned(topic, 2, 1, 3)]), 7)
    finally:
        way.set(latency_ms=0)
    produce(degraded, topic, ["one"])
    in_sync(degraded, topic)


def assigned(topic: str, *replicas: int, **configs: str) -> CreatableTopic:
    """Create a topic with one partition on these brokers."""
    return CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)],
        configs=[CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()],
    )


def test_invalid_clusters_are_rejected() -> None:
    with pytest.raises(ConfigError, match="invalid number of brokers 0: expected 1 to 50"):
        EmbeddedCluster(0)
    with pytest.raises(ConfigError, match="invalid racks: expected 2 items"):
        EmbeddedCluster(2, racks=["a"])


def test_java_tools_describe_and_change_the_cluster(cluster: EmbeddedCluster, java_client: JavaClient) -> None:
    topic = unique("java")
    server = ("--bootstrap-server", cluster.bootstrap_servers)
    java_client.tool("TopicCommand", *server, "--create", "--topic", topic, "--replica-assignment", "2:3,3:1")

    def lines() -> list[str]:
        return java_client.tool("TopicCommand", *server, "--describe", "--topic", topic).lines

    assert "ReplicationFactor: 2" in lines()[0]
    assert "Partition: 0\tLeader: 2\tReplicas: 2,3\tIsr: 2,3" in lines()[1]
    assert "Partition: 1\tLeader: 3\tReplicas: 3,1\tIsr: 3,1" in lines()[2]

    plan = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [1, 2]}]}
    file = Path(cluster.brokers[0].data_dir) / "plan.json"
    file.write_text(json.dumps(plan))
    reassign = ("ReassignPartitionsCommand", *server, "--reassignment-json-file", file)
    run = java_client.tool("reassign.ReassignPartitionsCommand", *reassign[1:], "--execute")
    assert "Successfully started partition reassignment" in run.out
    eventually(
        "moved",
        lambda: "is completed" in java_client.tool("reassign.ReassignPartitionsCommand", *reassign[1:], "--verify").out,
    )
    assert "Replicas: 1,2" in lines()[1]
    java_client.tool(
        *("LeaderElectionCommand", *server, "--election-type", "preferred", "--topic", topic, "--partition", 0)
    )
    assert "Partition: 0\tLeader: 1\t" in lines()[1]

    cluster.brokers[1].kill()
    eventually("2 is out of sync", lambda: "Isr: 1\t" in lines()[1])
    under = java_client.tool("TopicCommand", *server, "--describe", "--under-replicated-partitions").out
    assert f"Topic: {topic}\tPartition: 0" in under
    cluster.brokers[1].start()
    in_sync(cluster, topic, 2)

    cluster.brokers[2].stop()
    assert "is no longer registered" in java_client.tool("ClusterTool", "unregister", *server, "--id", 3).out
    assert set(cluster.controller.known_brokers()) == {1, 2}
    cluster.brokers[2].start()
    in_sync(cluster, topic, 2)


def test_librdkafka_finds_all_brokers_through_any_of_them(cluster: EmbeddedCluster) -> None:
    seen = [
        AdminClient({"bootstrap.servers": one.bootstrap, "log_level": 0}).list_topics(timeout=10)
        for one in cluster.brokers
    ]
    for returned in seen:
        assert {node.id: f"{node.host}:{node.port}" for node in returned.brokers.values()} == {
            one.node_id: one.bootstrap for one in cluster.brokers
        }
        assert returned.controller_id == 1
