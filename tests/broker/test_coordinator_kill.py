"""Check 12 with kill -9: each transaction has one outcome after the coordinator is killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from headrace import FatalError, Producer
from headrace.broker import EmbeddedCluster
from headrace.broker.embedded_cluster import ClusterBroker
from headrace.client.admin import AdminClient
from headrace.wire.api.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.support.chaos_clients import ClientFactory, ConfluentClient, HeadraceClient, MustAbortError
from tests.support.crashes import committed as committed_records
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

PARTITIONS = 3
STATE_TOPIC = "__transaction_state"
CLOSE_SECONDS_MAX = 5
CRASH_SECONDS_MAX = 20
OPTIONS = {"transaction.state.log.num.partitions": 1, "broker.heartbeat.interval.ms": 200}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Start a cluster in which one broker coordinates all transactions, and another takes over."""
    with EmbeddedCluster(3, OPTIONS) as running:
        with Producer(bootstrap_servers=running.bootstrap_servers, transactional_id="first") as producer:
            producer.init_transactions()  # creates the coordinator
        yield running


def coordinator(cluster: EmbeddedCluster) -> ClusterBroker:
    (partition,) = cluster.describe_topic(STATE_TOPIC)
    return cluster.broker(partition["leader"])


def is_whole(cluster: EmbeddedCluster, topic: str) -> bool:
    return all(len(partition["isr"]) == len(partition["replicas"]) for partition in cluster.describe_topic(topic))


def seen(cluster: EmbeddedCluster, topic: str) -> list[list[bytes | None]]:
    """Return the committed values of each partition."""
    committed = committed_records(cluster.bootstrap_servers, topic)
    return [[value for _, value in committed[index]] for index in range(PARTITIONS)]


class Transacting:
    """A producer, its topic, and the expected records of each partition."""

    def __init__(self, cluster: EmbeddedCluster, name: str, leaders: list[int]) -> None:
        self.id = unique(name.replace(" ", "-"))
        self.expected: list[bytes] = []
        self._cluster = cluster
        rows = []
        for index, leader in enumerate(leaders):
            others = [node for node in (1, 2, 3) if node != leader]
            rows.append(CreatableReplicaAssignment(partition_index=index, broker_ids=[leader, *others]))
        topic = CreatableTopic(name=self.id, num_partitions=-1, replication_factor=-1, assignments=rows)
        with Connection(cluster.controller.bootstrap) as connection:
            connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 7)
        self.producer = self.another()
        self.producer.init_transactions()

    def another(self) -> Producer:
        return Producer(bootstrap_servers=self._cluster.bootstrap_servers, transactional_id=self.id)

    def write(self, value: bytes, *, seen: bool) -> None:
        """Begin a transaction and write to each partition."""
        self.producer.begin_transaction()
        for index in range(PARTITIONS):
            self.producer.send(self.id, value, partition=index)
        self.producer.flush()
        if seen:
            self.expected.append(value)

    def end(self, *, commit: bool) -> None:
        self.producer.commit_transaction() if commit else self.producer.abort_transaction()

    def is_in(self, state: str) -> bool:
        with AdminClient(self._cluster.bootstrap_servers) as admin:
            return admin.describe_transactions([self.id])[self.id].state == state

    def close(self) -> None:
        self.producer.close(CLOSE_SECONDS_MAX)


@pytest.mark.behaviour("B11")
@pytest.mark.timeout(120)
def test_check_12_a_coordinator_is_killed_with_transactions_in_every_state(cluster: EmbeddedCluster) -> None:
    victim = coordinator(cluster)
    others = [broker for broker in cluster.brokers if broker is not victim]
    elsewhere = [others[0].node_id, others[1].node_id, others[0].node_id]
    with ExitStack() as stack:

        def transacting(name: str, leaders: list[int]) -> Transacting:
            made = Transacting(cluster, name, leaders)
            stack.callback(made.close)
            return made

        empty = transacting("empty", [1, 2, 3])
        ended = {commit: transacting(f"complete {commit}", [1, 2, 3]) for commit in (True, False)}
        for commit, writer in ended.items():
            writer.write(b"ended", seen=commit)
            writer.end(commit=commit)
            eventually("it is over", partial(writer.is_in, "CompleteCommit" if commit else "CompleteAbort"))
        open_one, orphan = transacting("ongoing", [1, 2, 3]), transacting("orphan", [1, 2, 3])
        open_one.write(b"open", seen=True)
        orphan.write(b"orphan", seen=False)
        # Markers reach only the partitions that the coordinator leads itself.
        for broker in others:
            broker.faults.inject(api="WriteTxnMarkers", drop=True)
        decided = {
            (commit, half): transacting(f"decided {commit} {half}", [1, 2, 3] if half else elsewhere)
            for commit in (True, False)
            for half in (True, False)
        }
        for (commit, _), writer in decided.items():
            writer.write(b"decided", seen=commit)
            writer.end(commit=commit)
            assert writer.is_in("PrepareCommit" if commit else "PrepareAbort")
        victim.kill()
        for broker in others:
            broker.faults.clear()

        eventually("another coordinator", lambda: coordinator(cluster) is not victim)
        assert empty.is_in("Empty")
        for commit, writer in [*ended.items(), *((commit, writer) for (commit, _), writer in decided.items())]:
            eventually("it is over", partial(writer.is_in, "CompleteCommit" if commit else "CompleteAbort"))
        assert open_one.is_in("Ongoing")
        open_one.end(commit=True)
        heir = orphan.another()
        heir.init_transactions()
        with pytest.raises(FatalError, match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH"):
            orphan.end(commit=True)
        orphan.close()
        orphan.producer = heir

        everybody = [empty, *ended.values(), *decided.values(), open_one, orphan]
        for writer in everybody:
            writer.write(b"after", seen=True)
            writer.end(commit=True)
            eventually("it is over", partial(writer.is_in, "CompleteCommit"))
        victim.start()
        for writer in everybody:
            eventually("all replicas in sync", partial(is_whole, cluster, writer.id))
            assert seen(cluster, writer.id) == [writer.expected] * PARTITIONS


@pytest.mark.behaviour("B11")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_has_one_outcome_when_the_coordinator_dies(cluster: EmbeddedCluster, when: str) -> None:
    """Crash before the decision, or after it and before the response."""
    topics = {make: cluster.create_topic(unique("crash"), PARTITIONS, 3) for make in (HeadraceClient, ConfluentClient)}
    victim = coordinator(cluster)
    eventually("its log is on all", partial(is_whole, cluster, STATE_TOPIC))
    victim.faults.inject(api="EndTxn", crash=True, when=when)
    with ThreadPoolExecutor(len(topics)) as pool:
        running = {
            topic: pool.submit(transact, make, cluster.bootstrap_servers, topic) for make, topic in topics.items()
        }
        try:
            assert victim.wait(CRASH_SECONDS_MAX) != 0
        finally:
            outcomes = {topic: writer.result() for topic, writer in running.items()}
            victim.start()
    for topic, committed in outcomes.items():
        eventually("all replicas in sync", partial(is_whole, cluster, topic))
        assert seen(cluster, topic) == [[*[b"during"][:committed], b"after"]] * PARTITIONS


def transact(make: ClientFactory, bootstrap: str, topic: str) -> bool:
    """Run two transactions; return whether the first was committed."""
    client = make(bootstrap, topic, unique("id"))
    try:
        client.init()
        committed = attempt(client, "during")
        assert attempt(client, "after")
    finally:
        client.close()
    return committed


def attempt(client: Any, value: str) -> bool:
    client.begin()
    try:
        for index in range(PARTITIONS):
            client.send(value, index, _nobody)
        client.commit()
    except MustAbortError:
        client.abort()
        return False
    return True


def _nobody(*_: object) -> None:
    """Ignore delivery reports: the end of the transaction is sufficient."""
