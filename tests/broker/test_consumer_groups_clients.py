"""Groups of the consumer protocol (KIP-848) with librdkafka: members that are killed and paused, groups of both."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.client.admin import AdminClient
from headrace.errors import BrokerError, Code
from headrace.wire.api.group_admin import ConsumerGroupDescribeRequest, DescribedConsumerGroup
from headrace.wire.api.metadata import FindCoordinatorRequest
from headrace.wire.layout import Record
from tests.support.peers import java, librdkafka
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

PARTITIONS = 6
RECORDS = 30
SECONDS = 30
POLL_SECONDS = 0.1
OPTIONS = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 1_000,
    "group.consumer.assignment.interval.ms": 100,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
}


class ProcessMember:
    """A member in a process, and the records that it has committed."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str = "consumer") -> None:
        module = "tests.support.consuming_process"
        command = [sys.executable, "-m", module, bootstrap, group, topic, protocol]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.values: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # it may be killed while it prints
                self.values.append(line.split()[1])

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        self._thread.join(SECONDS)


@pytest.fixture(scope="module")
def quick_broker() -> Iterator[EmbeddedBroker]:
    """A broker on which members time out after a second."""
    with EmbeddedBroker(OPTIONS) as running:
        yield running


class Workload:
    """A topic, a group, and the records that its members should get."""

    def __init__(self, broker: EmbeddedBroker | EmbeddedCluster) -> None:
        self.group = unique("group")
        self.bootstrap = broker.bootstrap if isinstance(broker, EmbeddedBroker) else broker.bootstrap_servers
        self.topic: str = broker.create_topic(unique("topic"), PARTITIONS)
        self.members: list[ProcessMember] = []
        self._sent: Counter[str] = Counter()

    def add(self, protocol: str = "consumer") -> ProcessMember:
        member = ProcessMember(self.bootstrap, self.group, self.topic, protocol)
        self.members.append(member)
        return member

    def produce(self) -> None:
        """Write some records to each partition."""
        first = len(self._sent)
        for partition in range(PARTITIONS):
            values = [str(first + RECORDS * partition + n) for n in range(RECORDS)]
            rows = [Record(0, 0, None, value.encode(), ()) for value in values]
            librdkafka.produce(self.bootstrap, self.topic, rows, partition=partition)
            self._sent.update(values)

    def check_all_received_once(self) -> None:
        """Wait until every record was received, and check that none was received twice."""

        def received() -> Counter[str]:
            return Counter(value for member in self.members for value in member.values)

        eventually("all records", lambda: set(received()) == set(self._sent), SECONDS)
        assert received() == self._sent

    def described(self) -> DescribedConsumerGroup:
        """Return what the coordinator says about the group, as soon as there is one."""

        def describe() -> DescribedConsumerGroup | None:
            address = self._coordinator_address()
            if address is None:
                return None
            try:
                with Connection(address) as connection:
                    request = ConsumerGroupDescribeRequest(group_ids=[self.group])
                    (group,) = connection.call(request, 1).groups
            except OSError:
                return None  # it is being killed
            moving = (Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE)
            return None if group.error_code in moving else group

        return eventually("a coordinator", describe, SECONDS)

    def coordinator(self) -> int:
        """Return the broker that coordinates the group."""
        return self._find()[0]

    def _coordinator_address(self) -> str | None:
        node_id, host, port = self._find()
        return None if node_id < 0 else f"{host}:{port}"

    def _find(self) -> tuple[int, str, int]:
        for address in self.bootstrap.split(","):
            try:
                with Connection(address) as connection:
                    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.group])
                    (row,) = connection.call(request, 4).coordinators
            except OSError:
                continue  # this broker was killed
            return row.node_id, row.host, row.port
        return -1, "", -1

    def wait_until_stable(self, count: int) -> None:
        """Wait until a number of members share all partitions."""

        def is_stable() -> bool:
            group = self.described()
            owned = [
                (row.topic_name, index)
                for member in group.members
                for row in member.assignment.topic_partitions
                for index in row.partitions
            ]
            assert len(owned) == len(set(owned))
            return group.group_state == "Stable" and len(group.members) == count and len(owned) == PARTITIONS

        eventually(f"{count} members", is_stable, SECONDS)


@pytest.fixture
def workload(quick_broker) -> Iterator[Workload]:
    made = Workload(quick_broker)
    yield made
    for member in made.members:
        member.close()


def test_every_record_goes_to_one_member_while_members_are_killed_and_paused(workload):
    killed, paused, _ = (workload.add() for _ in range(3))
    workload.wait_until_stable(3)
    workload.produce()
    workload.check_all_received_once()
    killed.send(signal.SIGKILL)
    workload.wait_until_stable(2)
    workload.produce()
    workload.check_all_received_once()
    paused.send(signal.SIGSTOP)
    workload.wait_until_stable(1)
    workload.produce()
    workload.check_all_received_once()
    paused.send(signal.SIGCONT)
    workload.wait_until_stable(2)
    workload.produce()
    workload.check_all_received_once()


def test_a_group_is_upgraded_member_by_member_and_no_record_is_lost_or_repeated(workload):
    classic = [workload.add("classic") for _ in range(2)]
    with AdminClient(workload.bootstrap) as admin:
        eventually("a classic group", lambda: _is_stable_classic(admin, workload.group, 2), SECONDS)
        workload.produce()
        workload.check_all_received_once()
        workload.add()
        workload.wait_until_stable(3)
        assert sorted(member.member_type for member in workload.described().members) == [0, 0, 1]
        workload.produce()
        workload.check_all_received_once()
        for member in classic:
            member.send(signal.SIGKILL)
        workload.wait_until_stable(1)
        workload.produce()
        workload.check_all_received_once()


def test_a_group_is_downgraded_when_its_last_modern_member_dies(workload):
    workload.add("classic")
    modern = workload.add()
    workload.wait_until_stable(2)
    workload.produce()
    workload.check_all_received_once()
    modern.send(signal.SIGKILL)
    with AdminClient(workload.bootstrap) as admin:
        eventually("a classic group", lambda: _is_stable_classic(admin, workload.group, 1), SECONDS)
    assert workload.described().error_code == Code.GROUP_ID_NOT_FOUND
    workload.produce()
    workload.check_all_received_once()


def _is_stable_classic(admin: AdminClient, group: str, count: int) -> bool:
    """Return whether a group is classic and stable, with this number of members."""
    try:
        described = admin.describe_groups([group])[group]
    except BrokerError:
        return False
    return described.state == "Stable" and len(described.members) == count


def test_a_restarted_broker_continues_with_the_members_and_their_epochs(tmp_path):
    with EmbeddedBroker({**OPTIONS, "group.consumer.session.timeout.ms": 20_000}, data_dir=tmp_path) as broker:
        workload = Workload(broker)
        try:
            workload.add()
            workload.add()
            workload.wait_until_stable(2)
            workload.produce()
            workload.check_all_received_once()
            before = workload.described()
            broker.kill()
            broker.start()
            workload.wait_until_stable(2)
            after = workload.described()
            assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, before.assignment_epoch)
            assert {member.member_id for member in after.members} == {member.member_id for member in before.members}
            workload.produce()
            workload.check_all_received_once()
        finally:
            for member in workload.members:
                member.close()


def test_members_continue_when_the_broker_of_their_coordinator_is_killed():
    options = {**OPTIONS, "group.consumer.session.timeout.ms": 20_000, "broker.heartbeat.interval.ms": 200}
    with EmbeddedCluster(3, options) as cluster:
        workload = Workload(cluster)
        try:
            workload.add()
            workload.add()
            workload.wait_until_stable(2)
            workload.produce()
            workload.check_all_received_once()
            before = workload.described()
            cluster.broker(workload.coordinator()).kill()
            workload.wait_until_stable(2)
            after = workload.described()
            assert after.group_epoch == before.group_epoch
            assert {member.member_id for member in after.members} == {member.member_id for member in before.members}
            workload.produce()
            workload.check_all_received_once()
        finally:
            for member in workload.members:
                member.close()


def test_apache_kafka_decodes_the_records_of_a_group(kafka_jars):
    with EmbeddedBroker({**OPTIONS, "offsets.topic.num.partitions": 1}) as broker:
        broker.create_topic("orders-1", 2)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "readers",
                "group.protocol": "consumer",
                "group.instance.id": "one",
                "log_level": 0,
            }
        )
        consumer.subscribe(["^orders-.*"])
        eventually("an assignment", lambda: consumer.poll(POLL_SECONDS) or consumer.assignment(), SECONDS)
        consumer.close()
        broker.stop()
        (segment,) = broker.data_dir.glob("__consumer_offsets-0/*.log")
        tool = ("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(segment))
        printed = java.run(java.java_command(kafka_jars("4.3.0"), *tool, options=java.SHORT_LIVED))
    kinds = [int(kind) for kind in re.findall(r'key: \{"type":"(\d+)"', printed)]
    assert set(kinds) == {3, 5, 6, 7, 8, 16}, printed
    assert re.search(r'"subscribedTopicRegex":"[^"]*orders-', printed)
    assert re.search(r'"assignedPartitions":\[\{"topicId":"[^"]+","partitions":\[0,1\],"assignmentEpochs":\[', printed)
    assert '"topics":["orders-1"]' in printed
    assert "Unknown record type" not in printed
