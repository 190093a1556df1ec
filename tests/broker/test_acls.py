"""ACLs with real clients, for every resource type."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.errors import Code
from headrace.wire.api.access import AclCreation, CreateAclsRequest, DescribeAclsRequest
from headrace.wire.api.metadata import DescribeClusterRequest, MetadataRequest
from headrace.wire.api.transactions import InitProducerIdRequest
from tests.support.peers.connection import Connection
from tests.support.secure_broker import OPENSSL, SecureBroker, make_certificates
from tests.support.topics import unique

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

SECONDS = 20
USERS = {"admin": "adminpw", "ann": "annpw"}
ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
CLUSTER = "kafka-cluster"

EVERYTHING = DescribeAclsRequest(
    resource_type_filter=1,
    resource_name_filter=None,
    pattern_type_filter=1,
    principal_filter=None,
    host_filter=None,
    operation=1,
    permission_type=1,
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "sasl.plain.users": ",".join(f"{name}:{password}" for name, password in USERS.items()),
    }
    with SecureBroker(folder, options) as broker:
        yield broker


def options_of(guarded, user):
    return {
        "bootstrap.servers": guarded.at["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
    }


def acl_filter(name=None, pattern=ResourcePatternType.ANY, *, kind=ResourceType.TOPIC, permission=None) -> Any:
    """Return a filter that matches anything by default (the stubs require every argument)."""
    make: Any = AclBindingFilter
    return make(kind, name, pattern, None, None, AclOperation.ANY, permission or AclPermissionType.ANY)


@pytest.fixture
def admin(guarded):
    """Yield an admin client of the super user; delete all ACLs afterwards."""
    client = AdminClient(options_of(guarded, "admin"))
    yield client
    everything = acl_filter(kind=ResourceType.ANY)
    client.delete_acls([everything])[everything].result(SECONDS)


@pytest.fixture
def topic(admin):
    name = unique("guarded")
    admin.create_topics([NewTopic(name, 1)])[name].result(SECONDS)
    return name


def binding(kind, name, operation, permission=ALLOW, *, pattern=LITERAL, principal="User:ann", host="*"):
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def allow(admin, *bindings):
    for future in admin.create_acls([*bindings]).values():
        future.result(SECONDS)


def on_topic(name, operation, permission=ALLOW, **changes):
    return binding(ResourceType.TOPIC, name, operation, permission, **changes)


def produced(guarded, topic, **options):
    """Return the error of a record that ann sends."""
    producer = confluent_kafka.Producer({**options_of(guarded, "ann"), "message.timeout.ms": 5_000, **options})
    errors = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS)
    return errors[0] and errors[0].code()


def consumed(guarded, topic, group):
    """Return the first value that ann reads, or the error."""
    consumer = confluent_kafka.Consumer(
        {**options_of(guarded, "ann"), "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        assert message is not None
        error = message.error()
        return error.code() if error else message.value()
    finally:
        consumer.close()


def refused(future):
    with pytest.raises(KafkaException) as caught:
        future.result(SECONDS)
    return caught.value.args[0].code()


def test_a_producer_needs_write_permission(guarded, admin, topic):
    assert produced(guarded, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(admin, on_topic(topic, AclOperation.WRITE))
    assert produced(guarded, topic) is None
    allow(admin, on_topic(topic, AclOperation.WRITE, DENY))
    assert produced(guarded, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_consumer_needs_permissions_for_topic_and_group(guarded, admin, topic):
    group = unique("group")
    allow(admin, on_topic(topic, AclOperation.WRITE))
    assert produced(guarded, topic) is None
    assert consumed(guarded, topic, group) == KafkaError.GROUP_AUTHORIZATION_FAILED
    allow(admin, binding(ResourceType.GROUP, group, AclOperation.READ))
    assert consumed(guarded, topic, group) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(admin, on_topic(topic[:-1], AclOperation.READ, pattern=PREFIXED))
    assert consumed(guarded, topic, group) == b"x"


def test_a_transaction_needs_permission_for_its_id(guarded, admin, topic):
    name = unique("transaction")
    allow(admin, on_topic(topic, AclOperation.WRITE))
    producer = confluent_kafka.Producer({**options_of(guarded, "ann"), "transactional.id": name})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(SECONDS)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    allow(admin, binding(ResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE))
    producer = confluent_kafka.Producer({**options_of(guarded, "ann"), "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.commit_transaction(SECONDS)


def test_a_producer_id_needs_a_writable_topic(guarded, admin, topic):
    with Connection(guarded.at["PLAINTEXT"]) as connection:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        assert connection.call(request, 4).error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        allow(admin, on_topic(topic, AclOperation.WRITE, principal="User:ANONYMOUS"))
        assert connection.call(request, 4).error_code == Code.NONE


def test_topics_without_describe_permission_are_hidden(guarded, admin, topic):
    ann = AdminClient(options_of(guarded, "ann"))
    assert topic not in ann.list_topics(timeout=SECONDS).topics
    allow(admin, on_topic("*", AclOperation.DESCRIBE))
    assert topic in ann.list_topics(timeout=SECONDS).topics


def test_every_admin_request_needs_its_permission(guarded, admin, topic):
    ann = AdminClient(options_of(guarded, "ann"))
    fresh = unique("fresh")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    denied, cluster_denied = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED

    assert refused(ann.create_topics([NewTopic(fresh, 1)])[fresh]) in (denied, cluster_denied)
    allow(admin, on_topic(fresh, AclOperation.CREATE))
    ann.create_topics([NewTopic(fresh, 1)])[fresh].result(SECONDS)

    assert refused(ann.describe_configs([resource])[resource]) == denied
    allow(admin, on_topic(topic, AclOperation.DESCRIBE_CONFIGS))
    assert ann.describe_configs([resource])[resource].result(SECONDS)

    assert refused(ann.create_partitions([NewPartitions(topic, 2)])[topic]) == denied
    allow(admin, on_topic(topic, AclOperation.ALTER))
    ann.create_partitions([NewPartitions(topic, 2)])[topic].result(SECONDS)

    where = TopicPartition(topic, 0, 0)
    allow(admin, on_topic(topic, AclOperation.DELETE))
    assert ann.delete_records([where])[where].result(SECONDS).low_watermark == 0

    rule = on_topic(topic, AclOperation.READ)
    assert refused(ann.create_acls([rule])[rule]) == cluster_denied
    allow(admin, binding(ResourceType.BROKER, CLUSTER, AclOperation.ALTER))
    ann.create_acls([rule])[rule].result(SECONDS)

    ann.delete_topics([topic])[topic].result(SECONDS)


def test_acls_are_described_and_deleted_by_filters(admin, topic):
    mine = on_topic(topic, AclOperation.READ)
    prefix = on_topic(topic[:-1], AclOperation.WRITE, DENY, pattern=PREFIXED, host="10.0.0.1")
    group = binding(ResourceType.GROUP, "*", AclOperation.READ, principal="User:bob")
    allow(admin, mine, prefix, group)
    allow(admin, mine)  # creating it again succeeds

    def matching(*args, **changes):
        return set(admin.describe_acls(acl_filter(*args, **changes)).result(SECONDS))

    assert matching(topic, LITERAL) == {mine}
    assert matching(topic, ResourcePatternType.MATCH) == {mine, prefix}
    assert matching(None, ResourcePatternType.ANY, kind=ResourceType.ANY) == {mine, prefix, group}
    assert matching(None, ResourcePatternType.ANY, permission=DENY) == {prefix}
    doomed = acl_filter(topic, ResourcePatternType.MATCH)
    assert set(admin.delete_acls([doomed])[doomed].result(SECONDS)) == {mine, prefix}
    assert matching(None, ResourcePatternType.ANY, kind=ResourceType.ANY) == {group}


def test_acls_survive_a_restart(guarded, admin, topic):
    allow(admin, on_topic(topic, AclOperation.WRITE))
    guarded.embedded.restart()
    assert produced(guarded, topic) is None


def test_the_principal_comes_from_the_certificate(guarded, admin, topic):
    folder = guarded.certificates
    options = {
        "bootstrap.servers": guarded.at["MTLS"],
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / "client.pem"),
        "ssl.key.location": str(folder / "client.key"),
    }
    client = AdminClient(options)
    assert topic not in client.list_topics(timeout=SECONDS).topics
    allow(admin, on_topic(topic, AclOperation.DESCRIBE, principal=r"User:CN=client,O=Mill\, Ltd,C=DE"))
    assert topic in client.list_topics(timeout=SECONDS).topics


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"resource_pattern_type": 2},
        {"operation": 1},
        {"permission_type": 1},
        {"principal": "ann"},
        {"resource_name": ""},
        {"resource_type": 4, "resource_name": "cluster"},
        {"host": ""},
    ],
)
def test_an_invalid_acl_is_rejected_and_the_others_are_created(guarded, admin, topic, changes):
    fields = {
        "resource_type": 2,
        "resource_name": topic,
        "resource_pattern_type": 3,
        "principal": "User:ann",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    allow(admin, binding(ResourceType.BROKER, CLUSTER, AclOperation.ALL, principal="User:ANONYMOUS"))
    with Connection(guarded.at["PLAINTEXT"]) as connection:
        request = CreateAclsRequest(creations=[AclCreation(**{**fields, **changes}), AclCreation(**fields)])
        response = connection.call(request, 3)
        assert [row.error_code for row in response.results] == [Code.INVALID_REQUEST, Code.NONE]
        assert response.results[0].error_message
        described = connection.call(EVERYTHING.replace(resource_type_filter=2, resource_name_filter=topic), 3)
        assert len(described.resources[0].acls) == 1


def test_clients_get_their_authorized_operations(guarded, admin, topic):
    allow(
        admin,
        on_topic(topic, AclOperation.READ, principal="User:ANONYMOUS"),
        binding(ResourceType.BROKER, CLUSTER, AclOperation.CREATE, principal="User:ANONYMOUS"),
    )
    with Connection(guarded.at["PLAINTEXT"]) as connection:
        cluster = connection.call(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
        assert cluster.cluster_authorized_operations == 1 << 5
        response = connection.call(MetadataRequest(topics=None, include_topic_authorized_operations=True), 8)
        matching = {row.name: row.topic_authorized_operations for row in response.topics}
        assert matching[topic] == 1 << 3 | 1 << 8


def test_without_an_authorizer_acls_are_disabled(connection):
    response = connection.call(EVERYTHING, 3)
    assert response.error_code == Code.SECURITY_DISABLED
    rule = AclCreation(
        resource_type=2, resource_name="x", principal="User:ann", host="*", operation=3, permission_type=3
    )
    assert connection.call(CreateAclsRequest(creations=[rule]), 3).results[0].error_code == Code.SECURITY_DISABLED


def test_kafkas_tool_adds_lists_and_removes_acls(guarded, admin, java_client, tmp_path, topic):
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="admin" password="{USERS["admin"]}";\n'
    )

    def acls(*args):
        server = ("--bootstrap-server", guarded.at["SASL_PLAINTEXT"], "--command-config", config)
        return java_client.tool("AclCommand", *server, *args).out

    on_the_topic = ("--topic", topic)
    prefixed = ("--group", "group-", "--resource-pattern-type", "prefixed")
    assert produced(guarded, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    acls("--add", "--allow-principal", "User:ann", "--producer", *on_the_topic)
    assert produced(guarded, topic) is None
    listed = acls("--list", *on_the_topic)
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        assert f"(principal=User:ann, host=*, operation={operation}, permissionType=ALLOW)" in listed
    acls("--remove", "--force", "--allow-principal", "User:ann", "--producer", *on_the_topic)
    assert "User:ann" not in acls("--list", *on_the_topic)
    acls("--add", "--deny-principal", "User:ann", "--operation", "Read", *prefixed)
    assert "resourceType=GROUP, name=group-, patternType=PREFIXED" in acls("--list", "--principal", "User:ann")
