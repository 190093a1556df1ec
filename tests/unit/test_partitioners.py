"""Partitioners: by key, in turn, sticky and adaptive."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.client.plugins import PluginLoader
from headrace.errors import ConfigError
from headrace.producer import partitioners
from headrace.producer.partitioners import (
    AdaptiveSticky,
    DefaultPartitioner24,
    KeyHashRoundRobinPartitioner,
    Partitioner,
    PartitionWeights,
    RoundRobinPartitioner,
    UniformStickyPartitioner,
    partition_for_key,
)
from headrace.producer.queues import TopicQueues
from tests.support.fake_network import FakeClock

pytestmark = pytest.mark.both_kernels

KEYED = b"key"


@dataclass
class FakeCluster:
    count: int
    available: Sequence[int] | None = None

    def partitions_for(self, topic: str) -> Sequence[int]:
        return range(self.count)

    def available_partitions_for(self, topic: str) -> Sequence[int]:
        return range(self.count) if self.available is None else self.available


class FakeRandom:
    """Returns the given numbers."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.stops: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.stops.append(stop)
        return self.numbers.pop(0) % stop


def choose(partitioner: Partitioner, cluster: FakeCluster, key: bytes | None = None, topic: str = "t") -> int:
    return partitioner.partition(topic, key, key, b"v", b"v", cluster)


# Read off Utils.murmur2 in Kafka: the hash, and the partition of ten.
@pytest.mark.parametrize(
    ("key", "murmur2"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_goes_where_java_puts_it(key, murmur2):
    partition = (murmur2 & 0x7FFFFFFF) % 10
    assert partition_for_key(key, 10) == partition
    unavailable = FakeCluster(10, available=[])
    assert choose(DefaultPartitioner24(), unavailable, key) == partition
    assert choose(KeyHashRoundRobinPartitioner(), unavailable, key) == partition


def test_an_empty_key_is_a_key():
    assert {choose(DefaultPartitioner24(), FakeCluster(7), b"") for _ in range(20)} == {partition_for_key(b"", 7)}


# -- in turn -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEYED])
@pytest.mark.behaviour("P17")
def test_round_robin_ignores_keys_and_uses_available_partitions(key):
    partitioner, cluster = RoundRobinPartitioner(), FakeCluster(4, available=[0, 1, 3])
    assert [choose(partitioner, cluster, key) for _ in range(7)] == [0, 1, 3, 0, 1, 3, 0]


def test_round_robin_takes_all_partitions_when_none_is_available():
    partitioner, cluster = RoundRobinPartitioner(), FakeCluster(3, available=[])
    assert [choose(partitioner, cluster) for _ in range(4)] == [0, 1, 2, 0]


def test_round_robin_counts_each_topic_by_itself():
    partitioner, cluster = RoundRobinPartitioner(), FakeCluster(3)
    assert [choose(partitioner, cluster, topic=topic) for topic in "aabab"] == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("cls", [RoundRobinPartitioner, KeyHashRoundRobinPartitioner])
def test_the_second_call_for_a_new_batch_does_not_advance(cls):
    partitioner, cluster = cls(), FakeCluster(4)
    chosen = []
    for _ in range(8):
        first = choose(partitioner, cluster)
        partitioner.on_new_batch("t", cluster, first)
        chosen.append(choose(partitioner, cluster))
    assert chosen == [(chosen[0] + turn) % 4 for turn in range(8)]


@pytest.mark.behaviour("P17")
def test_turns_of_the_older_default_begin_at_a_random_number_of_each_topic():
    partitioner, cluster = KeyHashRoundRobinPartitioner(FakeRandom(4, 11)), FakeCluster(3)
    assert [choose(partitioner, cluster, topic=topic) for topic in "aabba"] == [1, 2, 2, 0, 0]
    begun = {choose(KeyHashRoundRobinPartitioner(), FakeCluster(1000)) for _ in range(20)}
    assert len(begun) > 1
    assert {choose(RoundRobinPartitioner(), FakeCluster(1000)) for _ in range(20)} == {0}  # as in Java


@pytest.mark.behaviour("P17")
def test_the_older_default_hashes_keys_and_takes_turns_without():
    partitioner, cluster = KeyHashRoundRobinPartitioner(FakeRandom(0)), FakeCluster(5, available=[0, 2, 4])
    by_key = partition_for_key(KEYED, 5)
    chosen = [choose(partitioner, cluster, key) for key in (None, KEYED, None, KEYED, None, None)]
    assert chosen == [0, by_key, 2, by_key, 4, 0]


def test_a_keyed_record_in_a_new_batch_does_not_move_the_next_keyless_one():
    partitioner, cluster = KeyHashRoundRobinPartitioner(FakeRandom(0)), FakeCluster(50)
    first = choose(partitioner, cluster, KEYED)
    partitioner.on_new_batch("t", cluster, first)
    assert choose(partitioner, cluster, KEYED) == first
    assert choose(partitioner, cluster) == 0


# -- sticky, KIP-480 ---------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [DefaultPartitioner24, UniformStickyPartitioner])
@pytest.mark.behaviour("P16")
def test_keyless_records_stay_until_a_new_batch_and_then_go_elsewhere(cls):
    partitioner, cluster = cls(random.Random(1)), FakeCluster(3)
    for _ in range(50):
        stays = {choose(partitioner, cluster) for _ in range(5)}
        assert len(stays) == 1
        partition = stays.pop()
        partitioner.on_new_batch("t", cluster, partition)
        assert choose(partitioner, cluster) != partition


def test_sticky_never_moves_to_an_unavailable_partition_while_others_are_there():
    partitioner, cluster = DefaultPartitioner24(random.Random(1)), FakeCluster(10, available=[2, 7])
    for _ in range(20):
        partition = choose(partitioner, cluster)
        assert partition in (2, 7)
        partitioner.on_new_batch("t", cluster, partition)
    only = FakeCluster(10, available=[7])
    for _ in range(3):
        partitioner.on_new_batch("t", only, choose(partitioner, only))
        assert choose(partitioner, only) == 7
    assert choose(DefaultPartitioner24(), FakeCluster(3, available=[])) in range(3)


def test_a_new_batch_on_another_partition_does_not_move_the_sticky_one():
    partitioner, cluster = DefaultPartitioner24(random.Random(1)), FakeCluster(10)
    partition = choose(partitioner, cluster)
    partitioner.on_new_batch("t", cluster, (partition + 1) % 10)
    assert choose(partitioner, cluster) == partition


def test_sticky_does_not_hold_on_to_a_partition_that_is_gone():
    partitioner = UniformStickyPartitioner(FakeRandom(9, 0))
    assert choose(partitioner, FakeCluster(10)) == 9
    assert choose(partitioner, FakeCluster(2)) == 0


def test_uniform_sticky_does_not_look_at_keys():
    partitioner, cluster = UniformStickyPartitioner(random.Random(1)), FakeCluster(100)
    assert len({choose(partitioner, cluster, str(key).encode()) for key in range(20)}) == 1


# -- adaptive, KIP-794 -------------------------------------------------------------------------


def test_without_queue_sizes_available_partitions_are_equally_likely():
    source = FakeRandom(0, 1, 2)
    weights = PartitionWeights.from_queues(None, [1, 3], range(4))
    assert [weights.choose(source) for _ in range(3)] == [1, 3, 1]
    assert source.stops == [2, 2, 2]
    assert PartitionWeights.from_queues({}, [], range(4)).choose(FakeRandom(3)) == 3


def test_shorter_queues_are_more_likely():
    source = FakeRandom(*range(8))
    weights = PartitionWeights.from_queues({0: 0, 1: 3, 2: 1}, range(3), range(3))
    assert [weights.choose(source) for _ in range(8)] == [0, 0, 0, 0, 1, 2, 2, 2]
    assert set(source.stops) == {8}


def test_equal_queues_are_equally_likely_and_omitted_partitions_never_chosen():
    source = random.Random(1)
    weights = PartitionWeights.from_queues({0: 5, 2: 5}, range(3), range(3))
    chosen = Counter(weights.choose(source) for _ in range(4000))
    assert chosen.keys() == {0, 2}
    assert abs(chosen[0] - 2000) < 200


def test_a_topic_with_one_partition_needs_no_weights():
    assert PartitionWeights.from_queues({0: 9}, [0], range(1)).choose(FakeRandom(0)) == 0


def test_queue_sizes_are_ignored_unless_adaptive():
    def make_appender(queues: TopicQueues, count: int) -> Any:
        return SimpleNamespace(sticky_partition=-1)

    topic, cluster, batch = TopicQueues("t", 2, make_appender), cast("Any", FakeCluster(2)), cast("Any", object())
    topic.queues[1].batches.extend([batch] * 99)
    for adaptive, expected in ((True, range(385, 401)), (False, range(150, 251))):
        sticky = AdaptiveSticky(FakeClock(), adaptive=adaptive, random=random.Random(1))
        chosen: Counter[int] = Counter()
        for _ in range(400):
            sticky.move_on(topic, cluster)
            chosen[topic.appender.sticky_partition] += 1
        assert chosen[0] in expected


# -- plug-ins ----------------------------------------------------------------------------------


def load(value: object) -> Partitioner:
    return PluginLoader({}).load("partitioner.class", value, partitioners.KIND)


@pytest.mark.parametrize("as_function", [True, False])
@pytest.mark.behaviour("P18")
def test_a_custom_partitioner_gets_raw_and_serialized_values_and_the_cluster(as_function):
    seen: list = []

    def by_value(*arguments):
        seen.append(arguments)
        return 1

    class Own:
        partition = staticmethod(by_value)

    cluster = FakeCluster(3)
    partitioner = load(by_value if as_function else Own)
    assert partitioner.partition("t", "k", b"k", 5, b"5", cluster) == 1
    assert seen == [("t", "k", b"k", 5, b"5", cluster)]
    partitioner.on_new_batch("t", cluster, 1)
    partitioner.close()


@pytest.mark.parametrize(
    ("value", "cls"),
    [
        (RoundRobinPartitioner, RoundRobinPartitioner),
        ("round-robin", RoundRobinPartitioner),
        ("key-hash-round-robin", KeyHashRoundRobinPartitioner),
        ("headrace.producer.partitioners.DefaultPartitioner24", DefaultPartitioner24),
        ("org.apache.kafka.clients.producer.RoundRobinPartitioner", RoundRobinPartitioner),
        ("org.apache.kafka.clients.producer.UniformStickyPartitioner", UniformStickyPartitioner),
        ("org.apache.kafka.clients.producer.internals.DefaultPartitioner", DefaultPartitioner24),
    ],
)
def test_partitioners_go_by_class_path_short_name_or_java_name(value, cls):
    assert type(load(value)) is cls


def test_an_invalid_partitioner_is_refused():
    with pytest.raises(ConfigError, match=r"partitioner\.class .* is not a valid partitioner: see Partitioner"):
        load(object())
