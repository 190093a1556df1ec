"""The admin client on real brokers; results are checked with librdkafka and Kafka's tools."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient as TheirAdmin
from confluent_kafka.admin import ConfigResource as TheirResource  # type: ignore[attr-defined]

from headrace.client.admin import (
    AdminClient,
    Append,
    CommittedOffset,
    ConfigResource,
    HangingTransaction,
    NewTopic,
    ResourceKind,
    Subtract,
    TopicPartition,
)
from headrace.client.admin.topics import TO_THE_END
from headrace.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP
from headrace.errors import BrokerError, ClosedError, TimedOutError
from headrace.wire.layout import Record
from tests.support.hanging import plant_hanging
from tests.support.peers import librdkafka
from tests.support.peers.real_kafka import free_ports
from tests.support.waiting import eventually

TIME = 1_700_000_000_000


def name(what):
    return f"{what}-{uuid.uuid4().hex[:8]}"


def make_records(count):
    return [Record(i, TIME + i, None, b"v", ()) for i in range(count)]


@pytest.fixture(scope="module", params=["kafka", "kafka39", "headrace_broker"])
def broker(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def admin(broker):
    with AdminClient(broker.bootstrap, timeout_ms=20_000) as admin:
        yield admin


@pytest.fixture(scope="module")
def theirs(broker):
    return TheirAdmin({"bootstrap.servers": broker.bootstrap, "log_level": 0})


# -- topics -------------------------------------------------------------------------------------


def test_topics_are_created_listed_extended_and_deleted(admin, theirs):
    topic = name("made")
    admin.create_topics([NewTopic(topic, 2, 1, {"retention.ms": "123456"}), NewTopic(topic + "-b")])
    # A broker gets a new topic a moment after the controller has created it.
    eventually("both topics", lambda: {topic, topic + "-b"} <= set(admin.list_topics()))
    assert "__consumer_offsets" not in admin.list_topics()
    described = eventually("both leaders", lambda: leaders(admin, topic, 2))
    their = theirs.list_topics(topic, timeout=10).topics[topic]
    assert [p.partition for p in described.partitions] == sorted(their.partitions) == [0, 1]
    assert described.partitions[0].replicas == tuple(their.partitions[0].replicas)
    assert described.topic_id.int
    admin.create_partitions({topic: 3})
    eventually("three partitions", lambda: leaders(admin, topic, 3))
    admin.delete_topics([topic, topic + "-b"])
    eventually("no topic", lambda: topic not in admin.list_topics())


def leaders(admin, topic, count):
    if topic not in admin.list_topics():
        return None
    described = admin.describe_topics([topic])[topic]
    return described if [p.leader for p in described.partitions] == [1] * count else None


def test_a_topic_can_have_explicit_assignments_and_be_validated_only(admin):
    topic = name("placed")
    admin.create_topics([NewTopic(topic, assignments={0: [1], 1: [1]})], validate_only=True)
    assert topic not in admin.list_topics()
    admin.create_topics([NewTopic(topic, assignments={0: [1], 1: [1]})])
    eventually("both leaders", lambda: leaders(admin, topic, 2))
    admin.delete_topics([topic])


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        (lambda a, t: a.create_topics([NewTopic(t)]), "TOPIC_ALREADY_EXISTS", "topic '{t}'"),
        (lambda a, t: a.create_topics([NewTopic("no/name"), NewTopic("a b")]), "INVALID_TOPIC_EXCEPTION", "also"),
        (lambda a, t: a.create_topics([NewTopic("x", 1, 9)]), "INVALID_REPLICATION_FACTOR", "topic 'x'"),
        (lambda a, t: a.create_topics([NewTopic("x", configs={"no.such": "1"})]), "INVALID_CONFIG", "no.such"),
        (lambda a, t: a.create_partitions({t: 1}), "INVALID_PARTITIONS", "topic '{t}'"),
        (lambda a, t: a.delete_topics(["nobody"]), "UNKNOWN_TOPIC_OR_PARTITION", "topic 'nobody'"),
        (lambda a, t: a.describe_topics(["nobody"]), "UNKNOWN_TOPIC_OR_PARTITION", "topic 'nobody'"),
        (lambda a, t: a.delete_records({TopicPartition(t, 0): 99}), "OFFSET_OUT_OF_RANGE", "{t}-0"),
        (lambda a, t: a.delete_groups(["nobody"]), "GROUP_ID_NOT_FOUND", "group 'nobody'"),
        (lambda a, t: a.describe_transactions(["nobody"]), "TRANSACTIONAL_ID_NOT_FOUND", "'nobody'"),
        (
            lambda a, t: a.alter_configs({ConfigResource(ResourceKind.TOPIC, t): {"retention.ms": "many"}}),
            "INVALID_CONFIG",
            "topic '{t}'",
        ),
    ],
)
def test_an_error_has_a_code_and_names_the_resource(admin, shared_topic, call, code, text):
    with pytest.raises(BrokerError) as caught:
        call(admin, shared_topic)
    assert caught.value.name == code
    assert text.format(t=shared_topic) in str(caught.value)


@pytest.fixture(scope="module")
def shared_topic(broker):
    return broker.create_topic(name("shared"))


def test_offsets_and_deleted_records(admin, broker):
    topic = broker.create_topic(name("records"))
    tp = TopicPartition(topic, 0)
    librdkafka.produce(broker.bootstrap, topic, make_records(50))

    def offset(of):
        return admin.list_offsets({tp: of})[tp].offset

    assert [offset(of) for of in (EARLIEST, LATEST, MAX_TIMESTAMP, TIME + 20)] == [0, 50, 49, 20]
    assert admin.delete_records({tp: 30}) == {tp: 30}
    assert [offset(EARLIEST), offset(TIME)] == [30, 30]
    assert admin.delete_records({tp: TO_THE_END}) == {tp: 50}


def test_the_cluster_is_described(admin, broker):
    cluster = admin.describe_cluster()
    (node,) = cluster.brokers
    assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", broker.port)
    assert cluster.controller_id == 1
    assert cluster.cluster_id


# -- configurations -----------------------------------------------------------------------------


def test_options_are_set_appended_to_and_reset(admin, theirs, shared_topic):
    resource = ConfigResource(ResourceKind.TOPIC, shared_topic)

    def value(option):
        return admin.describe_configs([resource])[resource][option].value

    def theirs_say(option):
        resource = TheirResource(TheirResource.Type.TOPIC, shared_topic)
        (future,) = theirs.describe_configs([resource]).values()
        return future.result(timeout=10)[option].value

    admin.alter_configs({resource: {"retention.ms": "1000", "cleanup.policy": "compact"}})
    eventually("the new value", lambda: value("retention.ms") == theirs_say("retention.ms") == "1000")
    admin.alter_configs({resource: {"cleanup.policy": Append("delete")}})
    eventually("the list", lambda: set(value("cleanup.policy").split(",")) == {"compact", "delete"})
    admin.alter_configs({resource: {"cleanup.policy": Subtract("compact"), "retention.ms": None}})
    eventually("the default", lambda: value("cleanup.policy") == "delete" and value("retention.ms") != "1000")
    admin.alter_configs({resource: {"retention.ms": "5"}}, validate_only=True)
    assert value("retention.ms") != "5"


def test_broker_options_are_read_from_that_broker(admin):
    resource = ConfigResource(ResourceKind.BROKER, "1")
    entry = admin.describe_configs([resource])[resource]["node.id"]
    assert (entry.value, entry.read_only) == ("1", True)
    assert admin.describe_configs([resource])[resource]["log.segment.bytes"].is_default


# -- groups -------------------------------------------------------------------------------------


def test_the_offsets_of_a_group_are_set_read_and_deleted(admin, theirs, broker):
    topic, group = broker.create_topic(name("g"), partitions=2), name("group")
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(group, {first: 5, second: CommittedOffset(7, "note")})
    assert admin.list_group_offsets(group, [first]) == {first: CommittedOffset(5)}
    assert admin.list_group_offsets(group) == {first: CommittedOffset(5), second: CommittedOffset(7, "note")}
    future = theirs.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    partitions = {(p.topic, p.partition): p.offset for p in future.result(timeout=10).topic_partitions}
    assert partitions == {(topic, 0): 5, (topic, 1): 7}

    assert group in [listing.group_id for listing in admin.list_groups()]
    assert group in [listing.group_id for listing in admin.list_groups(["Empty"])]
    assert group not in [listing.group_id for listing in admin.list_groups(["Stable"])]
    assert admin.describe_groups([group])[group].state == "Empty"
    admin.delete_group_offsets(group, [first])
    assert list(admin.list_group_offsets(group)) == [second]
    admin.delete_groups([group])
    assert admin.list_group_offsets(group) == {}


# -- transactions -------------------------------------------------------------------------------


def open_transaction(broker, topic):
    transactional_id = name("txn")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    librdkafka.append(producer, topic, make_records(3))
    return transactional_id, producer


def test_an_open_transaction_is_described_and_its_producer_fenced(admin, broker):
    topic = broker.create_topic(name("txn"))
    tp = TopicPartition(topic, 0)
    transactional_id, producer = open_transaction(broker, topic)
    listed = {listing.transactional_id: listing for listing in admin.list_transactions(["Ongoing"])}
    prefix = transactional_id[:-2]
    assert [listing.transactional_id for listing in admin.list_transactions(id_prefix=prefix)] == [transactional_id]
    assert admin.list_transactions(id_prefix=prefix.replace("-", ".")) == [], "a prefix is not a pattern"
    described = admin.describe_transactions([transactional_id])[transactional_id]
    (active,) = admin.describe_producers([tp])[tp]
    assert described.state == "Ongoing"
    assert described.partitions == {tp}
    assert described.producer_id == listed[transactional_id].producer_id == active.producer_id
    assert described.producer_epoch == active.producer_epoch
    assert active.transaction_start_offset == 0
    assert admin.list_offsets({tp: LATEST}, "read_committed")[tp].offset == 0
    assert admin.find_hanging_transactions([tp], older_than_ms=0) == []  # its coordinator looks after it

    producer_id, epoch = admin.fence_producers([transactional_id])[transactional_id]
    assert (producer_id, epoch) > (described.producer_id, described.producer_epoch)
    assert admin.describe_transactions([transactional_id])[transactional_id].state in ("Empty", "CompleteAbort")
    eventually("the marker", lambda: admin.list_offsets({tp: LATEST}, "read_committed")[tp].offset == 4)
    with pytest.raises(Exception, match="fenced"):
        producer.commit_transaction(30)


def test_a_hanging_transaction_is_found_and_aborted_by_the_admin(admin, broker):
    topic, transactional_id = broker.create_topic(name("hanging")), name("hanging")
    tp = TopicPartition(topic, 0)
    producer_id, _ = plant_hanging(broker.bootstrap, topic, transactional_id)
    (hanging,) = admin.find_hanging_transactions([tp], older_than_ms=0)
    assert isinstance(hanging, HangingTransaction)
    assert (hanging.partition, hanging.producer.producer_id) == (tp, producer_id)
    producer = hanging.producer
    admin.abort_transaction(tp, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    assert admin.find_hanging_transactions([tp], older_than_ms=0) == []
    eventually("the last stable offset", lambda: admin.list_offsets({tp: LATEST}, "read_committed")[tp].offset == 2)


# -- the client itself --------------------------------------------------------------------------


def test_without_a_broker_a_call_times_out_with_the_cause():
    (port,) = free_ports(1)
    complaint = r"cannot connect to 127.0.0.1:.*is a broker running there"
    with AdminClient(f"127.0.0.1:{port}", timeout_ms=300) as admin, pytest.raises(TimedOutError, match=complaint):
        admin.list_topics()
    with pytest.raises(ClosedError):
        admin.list_topics()
