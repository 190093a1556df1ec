"""Requests of Kafka's Java client only: positions, and its admin client."""

from __future__ import annotations

from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique

TIME = 1_700_000_000_000


def records(count):
    return [Record(n, TIME + n, None, b"v", ()) for n in range(count)]


def test_a_consumer_finds_positions_by_offset_time_and_ends(either, java_client):
    topic = new_topic(either, "positions", 3)
    librdkafka.produce(either.bootstrap, topic, records(50))
    assert java_client.look(either.bootstrap, topic, offset=17, time_ms=TIME + 30) == {
        "sought": 17,  # in the middle of a batch
        "at_time": [30, TIME + 30],
        "too_late": None,
        "beginning": 0,
        "end": 50,
        "position": 50,
        "lag": 0,
        "first": 0,
        "partitions": 3,
    }


def test_topics_have_ids_and_errors_have_names(either, java_client):
    assert java_client.admin("topics", either.bootstrap, topic=unique("topics")) == {
        "tried": 2,
        "tried_exists": False,
        "made": [2, 1, "compact"],
        "same_id": True,
        "described": [[0, 1, 1, 1], [1, 1, 1, 1]],
        "internal": False,
        "errors": [
            "TopicExistsException",
            "InvalidTopicException",
            "InvalidPartitionsException",
            "InvalidReplicationFactorException",
            "InvalidConfigurationException",
            "InvalidPartitionsException",
            "UnknownTopicOrPartitionException",
            "UnknownTopicIdException",
            "UnknownTopicOrPartitionException",
        ],
        "new_id": True,
    }


def test_all_options_are_described_and_single_ones_changed(either, java_client):
    assert java_client.admin("configs", either.bootstrap, topic=new_topic(either, "configs")) == {
        "missing": [],
        "default": ["DEFAULT_CONFIG", True],
        "set": "compact",
        "set_source": ["DYNAMIC_TOPIC_CONFIG", False],
        "appended": "compact,delete",
        "subtracted": "delete",
        "validated": False,
        "node_id": ["1", True],
        "types": ["LONG", "LIST"],
        "listed": True,
        "errors": [
            "InvalidConfigurationException",
            "InvalidConfigurationException",
            "InvalidConfigurationException",
            "UnknownTopicOrPartitionException",
            "InvalidRequestException",
            "UnknownTopicOrPartitionException",
        ],
    }


def test_offsets_are_listed_by_every_spec_and_records_deleted(either, java_client):
    topic = new_topic(either, "offsets")
    librdkafka.produce(either.bootstrap, topic, records(10))
    assert java_client.admin("offsets", either.bootstrap, topic=topic, time=TIME + 5) == {
        "offsets": [0, 10, 9, 5, -1, 0, -1],
        "low_watermark": 4,
        "earliest": 4,
        "errors": ["OffsetOutOfRangeException", "UnknownTopicOrPartitionException"],
        "emptied": 10,
    }


def test_a_group_is_described_with_its_members_and_its_offsets_changed(either, java_client):
    topic = new_topic(either, "grouped", 2)
    librdkafka.produce(either.bootstrap, topic, records(5))
    facts = java_client.admin("groups", either.bootstrap, topic=topic, group=unique("java-group"))
    assert facts == {
        "live": ["Stable", "range", 1, 1],
        "member": ["member", "one", 2, "/127.0.0.1"],
        "stable": True,
        "empty": False,
        "errors": [
            "GroupNotEmptyException",
            "GroupSubscribedToTopicException",
            "UnknownMemberIdException",
            "GroupIdNotFoundException",
            "GroupIdNotFoundException",
        ],
        "removed": ["Empty", 0],
        "offsets": [3, "note", 0],
        "left": [1],
        "gone": True,
    }


def test_open_transactions_are_listed_described_fenced_and_terminated(either, java_client):
    topic = new_topic(either, "transactions")
    assert java_client.admin("transactions", either.bootstrap, topic=topic, transactional_id=unique("java-txn")) == {
        "open": ["Ongoing", 50_000, True, True],
        "listed": [True, False, True, False],
        "producer": [True, 0, 0],
        "stable_offset": 0,
        "fenced": "ProducerFencedException",
        "ended": True,
        "terminated": "ProducerFencedException",
        "errors": ["TransactionalIdNotFoundException"],
    }


def test_quotas_are_set_described_and_removed(either, java_client):
    assert java_client.admin("quotas", either.bootstrap, name=unique("quota")) == {
        "strict": {"producer_byte_rate": 1_000_000.0, "consumer_byte_rate": 2_000_000.0},
        "of_user": {"request_percentage": 50.0},
        "left": {"consumer_byte_rate": 2_000_000.0},
        "errors": ["InvalidRequestException"],
    }


def test_users_get_and_lose_credentials(either, java_client):
    assert java_client.admin("users", either.bootstrap, name=unique("user")) == {
        "credentials": ["SCRAM-SHA-256:4096", "SCRAM-SHA-512:8192"],
        "errors": [
            "ResourceNotFoundException",
            "DuplicateResourceException",
            "UnacceptableCredentialException",
            "ResourceNotFoundException",
        ],
    }


def test_nodes_features_and_log_dirs_of_the_cluster_are_described(either, java_client):
    topic = new_topic(either, "cluster")
    librdkafka.produce(either.bootstrap, topic, records(1))
    assert java_client.admin("cluster", either.bootstrap, topic=topic) == {
        "nodes": [[1, "127.0.0.1", int(either.bootstrap.rpartition(":")[2])]],
        "controller": 1,
        "has_id": True,
        "transaction_version": 2,
        "folders": 1,
        "replica_bytes": True,
        "replica_folder": True,
        "reassignments": 0,
        "errors": ["ElectionNotNeededException", "UnknownTopicOrPartitionException"],
    }
