"""Options of topics and brokers: described, changed at once, persistent."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)

from headrace import BrokerError, Producer
from headrace.broker import EmbeddedBroker
from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.client.admin import AdminClient as OurAdmin
from headrace.client.admin import configs as ours
from headrace.errors import Code
from headrace.wire.api.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ListConfigResourcesRequest,
)
from headrace.wire.api.metadata import ApiVersionsRequest
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

SECONDS = 20
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
DYNAMIC_TOPIC, DYNAMIC_BROKER, STATIC_BROKER, DEFAULT = 1, 2, 4, 5


@pytest.fixture(scope="module")
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})


def described(connection, kind, name, *keys, version=4):
    rows = [DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)]
    request = DescribeConfigsRequest(resources=rows, include_synonyms=version >= 1, include_documentation=version >= 3)
    (result,) = connection.call(request, version).results
    return result


def values(connection, kind, name, *keys):
    result = described(connection, kind, name, *keys)
    assert result.error_code == 0, result.error_message
    return {entry.name: (entry.value, entry.config_source) for entry in result.configs}


def send(broker, topic, size):
    with Producer(bootstrap_servers=broker.bootstrap, retries=0, enable_idempotence=False) as producer:
        producer.send(topic, bytes(size)).result(SECONDS)


def change(admin, kind, name, *changes):
    entries = [ConfigEntry(option, value, incremental_operation=op) for option, op, value in changes]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


SET, DELETE, APPEND, SUBTRACT = (
    AlterConfigOpType.SET,
    AlterConfigOpType.DELETE,
    AlterConfigOpType.APPEND,
    AlterConfigOpType.SUBTRACT,
)


def test_every_broker_option_is_described_with_its_documentation(connection):
    result = described(connection, BROKER, "1")
    entries = {entry.name: entry for entry in result.configs}
    assert entries.keys() == BROKER_OPTIONS.keys()
    assert entries["num.partitions"].config_source == STATIC_BROKER
    assert entries["num.partitions"].documentation.startswith("The default number of partitions of a topic")
    assert entries["num.io.threads"].documentation.endswith("No effect here: one event loop handles all requests.")
    assert entries["ssl.key.password"].is_sensitive
    assert entries["listeners"].read_only
    assert not entries["message.max.bytes"].read_only
    assert [entry.name for entry in described(connection, BROKER, "1", "node.id").configs] == ["node.id"]


def test_describe_configs_v0_marks_defaults(connection, topic):
    entries = {entry.name: entry for entry in described(connection, TOPIC, topic, version=0).configs}
    assert entries["retention.ms"].is_default
    assert entries["retention.ms"].value == "604800000"


def test_options_changed_by_librdkafka_take_effect_at_once(broker, admin, connection, topic):
    kind = ConfigResource.Type.TOPIC
    send(broker, topic, 5_000)
    change(admin, kind, topic, ("max.message.bytes", SET, "1000"), ("cleanup.policy", APPEND, "compact"))
    with pytest.raises(BrokerError) as caught:
        send(broker, topic, 5_000)
    assert caught.value.code == Code.MESSAGE_TOO_LARGE
    entries = values(connection, TOPIC, topic, "max.message.bytes", "cleanup.policy")
    assert entries == {
        "max.message.bytes": ("1000", DYNAMIC_TOPIC),
        "cleanup.policy": ("delete,compact", DYNAMIC_TOPIC),
    }
    change(admin, kind, topic, ("max.message.bytes", DELETE, None), ("cleanup.policy", SUBTRACT, "compact"))
    send(broker, topic, 5_000)

    resource = ConfigResource(kind, topic)
    entry = admin.describe_configs([resource])[resource].result(SECONDS)["max.message.bytes"]
    assert (entry.value, entry.source) == ("1048588", ConfigSource.DEFAULT_CONFIG.value)


def test_the_headrace_client_describes_and_changes_options(broker, topic):
    resource = ours.ConfigResource(ours.ResourceKind.TOPIC, topic)
    with OurAdmin(broker.bootstrap, timeout_ms=10_000) as admin:
        admin.alter_configs({resource: {"retention.ms": "1000"}})
        entry = admin.describe_configs([resource])[resource]["retention.ms"]
        assert (entry.value, entry.source) == ("1000", ours.ConfigSource.TOPIC)
        with pytest.raises(BrokerError, match="it may be -1 or more"):
            admin.alter_configs({resource: {"retention.ms": "-7"}})


def test_a_broker_option_applies_to_topics_that_do_not_set_it():
    with EmbeddedBroker() as broker, Connection(broker.bootstrap) as connection:
        topic = broker.create_topic("inherits")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        change(admin, ConfigResource.Type.BROKER, "1", ("message.max.bytes", SET, "2000"))
        with pytest.raises(BrokerError) as caught:
            send(broker, topic, 5_000)
        assert caught.value.code == Code.MESSAGE_TOO_LARGE
        assert values(connection, TOPIC, topic, "max.message.bytes") == {"max.message.bytes": ("2000", DYNAMIC_BROKER)}
        broker.restart()
        with Connection(broker.bootstrap) as again:
            assert values(again, TOPIC, topic, "max.message.bytes") == {"max.message.bytes": ("2000", DYNAMIC_BROKER)}
            assert values(again, BROKER, "1", "message.max.bytes")["message.max.bytes"][0] == "2000"
        with pytest.raises(BrokerError):
            send(broker, topic, 5_000)


def test_changed_options_of_background_tasks_apply_after_a_restart():
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.bytes": "1048576"}
    with EmbeddedBroker(log_cleaner_backoff_ms=3_600_000) as broker:
        topic = broker.create_topic("latest", 1, compacted)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for _ in range(5):
                producer.send(topic, bytes(500_000), key=b"key").result(SECONDS)
        (log,) = broker.data_dir.glob(f"{topic}-0/00000000000000000000.log")
        size = log.stat().st_size
        change(admin, ConfigResource.Type.BROKER, "1", ("log.cleaner.backoff.ms", SET, "50"))
        broker.restart()
        eventually("a compacted log", lambda: log.stat().st_size < size)


@pytest.fixture
def limited():
    """A broker of its own, and an admin client that is connected before there are limits."""
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.list_topics(timeout=SECONDS)
        yield broker, admin


def is_served(broker):
    try:
        with Connection(broker.bootstrap) as connection:
            connection.call(ApiVersionsRequest(), 0)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max.connections", "0"),
        ("max.connections.per.ip", "0"),
        ("max.connections.per.ip.overrides", "127.0.0.1:0"),
    ],
)
def test_limits_on_connections_are_changed_while_the_broker_runs(limited, option, value):
    broker, admin = limited
    assert is_served(broker)
    change(admin, ConfigResource.Type.BROKER, "1", (option, SET, value))
    eventually("a closed connection", lambda: not is_served(broker))
    change(admin, ConfigResource.Type.BROKER, "1", (option, DELETE, None))
    eventually("a served connection", lambda: is_served(broker))


def test_an_invalid_limit_of_a_host_is_refused(admin):
    with pytest.raises(KafkaException, match="expected host:number") as caught:
        change(admin, ConfigResource.Type.BROKER, "1", ("max.connections.per.ip.overrides", SET, "nonsense"))
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_replacing_deletes_options_that_are_omitted(connection, topic):
    def replace(*configs, validate_only=False, times=1):
        row = AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[AlterableConfig(name=name, value=value) for name, value in configs],
        )
        response = connection.call(AlterConfigsRequest(resources=[row] * times, validate_only=validate_only), 1)
        return response.responses[0].error_code

    assert replace(("retention.ms", "5"), ("segment.ms", "6")) == Code.NONE
    assert replace(("retention.ms", "7"), validate_only=True) == Code.NONE
    assert values(connection, TOPIC, topic, "retention.ms")["retention.ms"] == ("5", DYNAMIC_TOPIC)
    assert replace(("retention.ms", "7")) == Code.NONE
    assert values(connection, TOPIC, topic, "segment.ms")["segment.ms"] == ("604800000", DEFAULT)
    assert replace(("retention.ms", None)) == Code.INVALID_REQUEST
    assert replace(("no.such", "7")) == Code.INVALID_CONFIG
    assert replace(("retention.ms", "7"), times=2) == Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no-such-topic", Code.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "no/topic", Code.INVALID_TOPIC_EXCEPTION),
        (BROKER, "9", Code.INVALID_REQUEST),
        (BROKER, "one", Code.INVALID_REQUEST),
        (BROKER_LOGGER, "1", Code.INVALID_REQUEST),
        (99, "x", Code.INVALID_REQUEST),
    ],
)
def test_unknown_resources_are_reported(connection, kind, name, code):
    result = described(connection, kind, name)
    assert result.error_code == code
    assert result.error_message
    assert not result.configs


def test_resources_with_options_are_listed(connection, topic):
    response = connection.call(ListConfigResourcesRequest(), 1)
    entries = {(row.resource_name, row.resource_type) for row in response.config_resources}
    assert {(topic, TOPIC), ("1", BROKER)} <= entries
    response = connection.call(ListConfigResourcesRequest(resource_types=[BROKER]), 1)
    assert [row.resource_name for row in response.config_resources] == ["1"]
    assert connection.call(ListConfigResourcesRequest(), 0).config_resources == ()
    assert connection.call(ListConfigResourcesRequest(resource_types=[99]), 1).error_code == Code.UNSUPPORTED_VERSION


def test_a_recreated_topic_has_the_defaults(broker, connection):
    name = broker.create_topic(unique("again"), 1, {"retention.ms": "5"})
    assert values(connection, TOPIC, name, "retention.ms")["retention.ms"] == ("5", DYNAMIC_TOPIC)
    broker.delete_topic(name)
    broker.create_topic(name)
    assert values(connection, TOPIC, name, "retention.ms")["retention.ms"] == ("604800000", DEFAULT)
