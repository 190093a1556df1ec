"""Permissions for share groups (KIP-932): headrace refuses what Apache Kafka refuses, with the same errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.client.admin import AclBinding, AclBindingFilter, AdminClient, Operation, Resource, SetScramPassword
from headrace.client.credentials import SaslSettings
from headrace.wire.sasl import SCRAM_SHA_256, authenticate
from tests.support.comparison.scenario import compare
from tests.support.comparison.share_groups import ShareGroupScenario
from tests.support.guarded_broker import GuardedBroker
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection
from tests.support.topics import unique

PASSWORD = "secret"
GROUP, TOPIC = Resource.GROUP, Resource.TOPIC
GRANTS = {
    "nothing": (),
    "group-read": ((GROUP, Operation.READ),),
    "group-describe": ((GROUP, Operation.DESCRIBE),),
    "group-delete": ((GROUP, Operation.DELETE),),
    "topic-read": ((TOPIC, Operation.READ),),
    "topic-describe": ((TOPIC, Operation.DESCRIBE),),
    "group-read-topic-describe": ((GROUP, Operation.READ), (TOPIC, Operation.DESCRIBE)),
    "group-read-topic-read": ((GROUP, Operation.READ), (TOPIC, Operation.READ)),
    "group-describe-topic-describe": ((GROUP, Operation.DESCRIBE), (TOPIC, Operation.DESCRIBE)),
    "group-delete-topic-read": ((GROUP, Operation.DELETE), (TOPIC, Operation.READ)),
    "cluster-action": ((Resource.CLUSTER, Operation.CLUSTER_ACTION),),
}
CLUSTER = "kafka-cluster"


class PermissionScenario(ShareGroupScenario):
    """Requests of users with different permissions. What members cause while they are permitted is not compared."""

    not_compared = (
        *ShareGroupScenario.not_compared,
        *("member_epoch", "assignment", "heartbeat_interval_ms", "group_epoch", "assignment_epoch", "members"),
    )

    def prepare(self, broker: Broker, admin: AdminClient) -> None:
        super().prepare(broker, admin)
        self.admin_address = broker.bootstrap
        self.user = "none"

    def log_in(self, sasl: str, user: str) -> None:
        """Create a user with its permissions, and send the next requests as this user."""
        principal = f"User:{user}"
        names = {GROUP: self.group, TOPIC: self.topic, Resource.CLUSTER: CLUSTER}
        acls = [AclBinding(kind, names[kind], principal, operation) for kind, operation in GRANTS[user]]
        with AdminClient(self.admin_address) as admin:
            admin.create_acls(acls)
            selected = AclBindingFilter(principal=principal)
            self.until(lambda: len(admin.describe_acls(selected)) == len(acls))
        self.connection.close()
        self.connection = Connection(sasl)
        exchange = authenticate(SaslSettings(SCRAM_SHA_256, user, PASSWORD).mechanism("broker"), version=1)
        sent = next(exchange)
        while True:
            try:
                sent = exchange.send(self.connection.call(*sent))
            except StopIteration:
                return

    def send_all(self, user: str) -> None:
        """Send every request about share groups."""
        offsets = [{"topic_name": self.topic, "partitions": [{"partition_index": 0, "start_offset": 3}]}]
        absent = [{"topic_name": f"{self.topic}-absent", "partitions": [{"partition_index": 0, "start_offset": 3}]}]
        self.beat(f"{user}: heartbeat", user, 0, subscribed_topic_names=[self.topic])
        self.beat(f"{user}: leave", user, -1)
        for group in (self.group, "absent"):  # one by one: Apache Kafka lists the refused ones first
            described = {"group_ids": [group], "include_authorized_operations": True}
            self.call(f"{user}: describe {group}", "ShareGroupDescribe", **described)
        self.fetch(f"{user}: fetch", user, 0, max_records=0, max_wait_ms=0)
        self.acknowledge(f"{user}: acknowledge", user, 1, (0, 0, [1]))
        self.fetch(f"{user}: last fetch", user, -1, max_records=0, max_wait_ms=0)
        self.describe_offsets(f"{user}: offsets")
        self.call(
            f"{user}: all offsets", "DescribeShareGroupOffsets", groups=[{"group_id": self.group, "topics": None}]
        )
        for name, rows in (("alter", offsets), ("alter an absent topic", absent)):
            self.call(f"{user}: {name}", "AlterShareGroupOffsets", group_id=self.group, topics=rows)
        self.call(
            f"{user}: delete offsets",
            "DeleteShareGroupOffsets",
            group_id=self.group,
            topics=[{"topic_name": self.topic}],
        )
        self.call(f"{user}: delete", "DeleteGroups", groups_names=[self.group])
        self.call(f"{user}: list", "ListGroups", types_filter=["share"])


@pytest.fixture(scope="module")
def guarded(kafka_jars, tmp_path_factory) -> Iterator[list[GuardedBroker]]:
    folder = tmp_path_factory.mktemp("guarded")
    brokers = []
    try:
        for kind in ("headrace", "apache"):
            brokers.append(GuardedBroker(kind, kafka_jars("4.3.0"), folder / kind))
            with AdminClient(brokers[-1].bootstrap) as admin:
                admin.alter_user_scram_credentials(SetScramPassword(user, SCRAM_SHA_256, PASSWORD) for user in GRANTS)
        yield brokers
    finally:
        for broker in brokers:
            broker.remove()


def test_requests_without_permission_get_the_same_errors(guarded):
    name = unique("permitted")
    scenarios = [PermissionScenario(each.broker, name) for each in guarded]
    addresses = {id(scenario): each.sasl for scenario, each in zip(scenarios, guarded, strict=True)}

    def script(s: PermissionScenario) -> None:
        s.join("member")
        for user in GRANTS:
            s.log_in(addresses[id(s)], user)
            s.send_all(user)

    try:
        compare(scenarios, script)
    finally:
        for scenario in scenarios:
            scenario.connection.close()
