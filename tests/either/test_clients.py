"""Six clients do the same four things on either broker: what they send, read, transact and administer is the same."""

from __future__ import annotations

from headrace.client.admin import AdminClient, TopicPartition
from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique

TIME = 1_700_000_000_000
PARTITIONS = 4


def sample(count=20):
    """Records with and without key, value and headers."""
    plain = [Record(n, TIME + n, b"key-%d" % n, b"value-%d" % n, ()) for n in range(3, count)]
    return [
        Record(0, TIME, b"key", b"with headers", (("a", b"1"), ("b", "ä".encode()))),
        Record(1, TIME + 1, None, b"no key", ()),
        Record(2, TIME + 2, b"no value", None, ()),
        *plain,
    ]


def texts(count, start=0):
    return [Record(n, TIME + n, None, b"text %d" % n, ()) for n in range(start, start + count)]


def test_records_of_each_codec_are_read_by_the_same_and_another_client(either, client):
    for codec in client.codecs:
        topic = new_topic(either, f"sent-{codec}")
        sent = sample()
        assert client.produce(either.bootstrap, topic, sent, codec=codec) == list(range(len(sent)))
        assert librdkafka.consume(either.bootstrap, topic, len(sent)) == sent
        assert list(client.consume(either.bootstrap, topic, len(sent))) == sent


def test_a_read_committed_consumer_skips_aborted_records(either, client):
    topic = new_topic(either, "isolated")
    producer = librdkafka.transactional(either.bootstrap, unique("mixed"))
    for ending, start in (("commit", 0), ("abort", 3), ("commit", 6)):
        producer.begin_transaction()
        librdkafka.append(producer, topic, texts(3, start))
        getattr(producer, f"{ending}_transaction")(librdkafka.SECONDS_MAX)

    committed = client.consume(either.bootstrap, topic, 6, isolation="read_committed")
    assert [record.value for record in committed] == [record.value for record in texts(3) + texts(3, 6)]
    assert [record.offset for record in committed] == [0, 1, 2, 8, 9, 10]  # a marker has an offset
    everything = client.consume(either.bootstrap, topic, 9)
    assert [record.value for record in everything] == [record.value for record in texts(9)]


def test_partitions_are_rebalanced_when_a_member_joins_and_leaves(either, client):
    topic, group = new_topic(either, "shared", PARTITIONS), unique("group")
    for partition in range(PARTITIONS):
        librdkafka.produce(either.bootstrap, topic, texts(10, partition * 10), partition=partition)

    rebalanced = client.rebalance(either.bootstrap, topic, group, PARTITIONS, 10 * PARTITIONS)

    everyone = list(range(PARTITIONS))
    assert rebalanced.alone == rebalanced.again == everyone
    assert sorted(rebalanced.shared[0] + rebalanced.shared[1]) == everyone
    assert all(len(partitions) == PARTITIONS // 2 for partitions in rebalanced.shared)
    assert sorted(set(rebalanced.values)) == sorted(f"text {n}" for n in range(10 * PARTITIONS))
    with AdminClient(either.bootstrap) as admin:
        offsets = {tp.partition: committed.offset for tp, committed in admin.list_group_offsets(group).items()}
        assert offsets == dict.fromkeys(everyone, 10)
        assert admin.describe_groups([group])[group].state == "Empty"


def test_a_transaction_writes_records_and_offsets_or_neither(either, client):
    source, target, group = new_topic(either, "source"), new_topic(either, "target"), unique("transform")
    librdkafka.produce(either.bootstrap, source, texts(12))

    assert client.transform(either.bootstrap, source, target, group, unique("transform"), 12) is None

    upper = [b"TEXT %d" % n for n in range(12)]
    committed = librdkafka.consume_to_end(either.bootstrap, target, isolation="read_committed")
    assert [record.value for record in committed] == upper
    everything = librdkafka.consume_to_end(either.bootstrap, target, isolation="read_uncommitted")
    assert [record.value for record in everything] == upper + upper
    with AdminClient(either.bootstrap) as admin:
        assert admin.list_group_offsets(group)[TopicPartition(source, 0)].offset == 12


def test_admin_clients_manage_topics_records_and_groups(either, client):
    topic, filled, group = unique("made"), new_topic(either, "filled"), unique("old-group")
    librdkafka.produce(either.bootstrap, filled, texts(5))
    with AdminClient(either.bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): 4})

    facts = client.administer(either.bootstrap, topic, filled, group)

    expected = {
        "partitions": 2,
        "retention": "1000000",
        "altered": "2000000",
        "grown": 3,
        "listed": True,
        "gone": True,
        "offsets": [3, 5],
        "nodes": [[1, "127.0.0.1", int(either.bootstrap.rpartition(":")[2])]],
        "controller": 1,
        "group_listed": True,
        "group_state": "Empty",
        "committed": 4,
        "group_gone": True,
    }
    assert facts == {fact: expected[fact] for fact in client.facts}
