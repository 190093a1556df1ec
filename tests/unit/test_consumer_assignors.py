"""Assignors of consumer groups, and the bytes in which members tell each other of them."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumer.assignors import COOPERATIVE, RANGE, ROUNDROBIN, STICKY, Member, assign, assignor_names
from headrace.errors import ConfigError, MalformedError
from headrace.types import TopicPartition
from headrace.wire.consumer_protocol import (
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_generation,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky,
    encode_subscription,
    partitions_by_topic,
)
from tests.support.examples import examples


def member(name, topics, owned=(), generation=-1, strategy=STICKY, instance_id=None):
    data = encode_sticky(owned, generation) if strategy == STICKY else encode_generation(generation)
    subscription = ConsumerProtocolSubscription(
        topics=list(topics),
        user_data=data,
        owned_partitions=partitions_by_topic(owned),
        generation_id=generation,
    )
    return Member(name, instance_id, subscription)


def numbers(assigned):
    return {name: [tp.partition for tp in partitions] for name, partitions in assigned.items()}


def test_range_gives_consecutive_partitions_static_members_first():
    members = [member("a", ["t"]), member("b", ["t"]), member("c", ["t"], instance_id="z")]
    assert numbers(assign(RANGE, members, {"t": 7})) == {"c": [0, 1, 2], "a": [3, 4], "b": [5, 6]}


def test_round_robin_skips_members_without_the_topic():
    members = [member("a", ["t", "u"]), member("b", ["u"])]
    assigned = assign(ROUNDROBIN, members, {"t": 2, "u": 2})
    assert assigned == {"a": [("t", 0), ("t", 1), ("u", 1)], "b": [("u", 0)]}


def test_cooperative_withholds_partitions_until_their_owner_has_revoked_them():
    owned = [TopicPartition("t", i) for i in range(4)]
    members = [member("a", ["t"], owned, 3, COOPERATIVE), member("b", ["t"], (), -1, COOPERATIVE)]
    first = assign(COOPERATIVE, members, {"t": 4})
    assert [len(partitions) for partitions in first.values()] == [2, 0]
    members[0] = member("a", ["t"], first["a"], 4, COOPERATIVE)
    second = assign(COOPERATIVE, members, {"t": 4})
    assert second["a"] == first["a"]
    assert len(second["b"]) == 2


def test_of_two_claims_the_later_generation_counts():
    tp = TopicPartition("t", 0)
    old, new = member("a", ["t"], [tp], 1), member("b", ["t"], [tp], 2)
    assert assign(STICKY, [old, new], {"t": 1}) == {"a": [], "b": [tp]}


@settings(max_examples=examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([RANGE, ROUNDROBIN, STICKY, COOPERATIVE]))
def test_every_partition_has_one_subscribed_owner_and_loads_are_balanced(rng: random.Random, strategy):
    counts = {topic: rng.randint(1, 6) for topic in "tuv"[: rng.randint(1, 3)]}
    is_equal = rng.random() < 0.5
    names = [f"m{i}" for i in range(rng.randint(1, 5))]
    topics = {
        name: list(counts) if is_equal else rng.sample(list(counts), rng.randint(1, len(counts))) for name in names
    }
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for generation in range(4):
        members = [member(name, topics[name], owned[name], generation, strategy) for name in names]
        before, owned = owned, assign(strategy, members, counts)
    everything = Counter(tp for partitions in owned.values() for tp in partitions)
    subscribed = {topic for each in topics.values() for topic in each}
    assert everything == Counter(TopicPartition(t, i) for t in subscribed for i in range(counts[t]))
    assert all(tp.topic in topics[name] for name, partitions in owned.items() for tp in partitions)
    if strategy in (STICKY, COOPERATIVE):
        assert owned == before  # it has settled
    if is_equal and strategy != RANGE:
        loads = [len(partitions) for partitions in owned.values()]
        assert max(loads) - min(loads) <= 1


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 20))
def test_sticky_moves_no_more_than_it_must(before, after, count):
    owned = assign(STICKY, [member(f"m{i}", ["t"]) for i in range(before)], {"t": count})
    members = [member(f"m{i}", ["t"], owned.get(f"m{i}", ()), 1) for i in range(after)]
    moved = assign(STICKY, members, {"t": count})
    kept = sum(len(set(moved[name]) & set(owned.get(name, ()))) for name in moved)
    shares = sorted((count // after + (i < count % after) for i in range(after)), reverse=True)
    possible = sum(min(a, b) for a, b in zip(sorted(map(len, owned.values()), reverse=True), shares, strict=False))
    assert kept == possible


def test_java_names_are_accepted_and_others_refused():
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    assert assignor_names([java, "range", "range"]) == (COOPERATIVE, RANGE)
    with pytest.raises(ConfigError, match=r"expected range, roundrobin, .* got 'best'"):
        assignor_names(["best"])


# -- bytes -------------------------------------------------------------------------------------


@pytest.mark.both_kernels
def test_bytes_are_those_of_the_specification():
    owned = [TopicPartition("t", 1), TopicPartition("t", 2)]
    subscription = ConsumerProtocolSubscription(
        topics=["t"], user_data=b"u", owned_partitions=partitions_by_topic(owned), generation_id=5, rack_id="r"
    )
    encoded = encode_subscription(subscription)
    assert encoded.hex(" ") == (
        "00 03 00 00 00 01 00 01 74 00 00 00 01 75 "
        "00 00 00 01 00 01 74 00 00 00 02 00 00 00 01 00 00 00 02 00 00 00 05 00 01 72"
    )
    assert decode_subscription(encoded) == subscription
    assigned = encode_assignment(owned)
    assert assigned.hex(" ") == "00 03 00 00 00 01 00 01 74 00 00 00 02 00 00 00 01 00 00 00 02 ff ff ff ff"
    assert decode_assignment(assigned) == owned
    assert decode_assignment(b"") == []


@pytest.mark.both_kernels
def test_newer_and_shortened_versions_are_read_as_far_as_known():
    encoded = encode_subscription(ConsumerProtocolSubscription(topics=["t"], generation_id=5))
    assert decode_subscription(b"\x00\x09" + encoded[2:] + b"more").generation_id == 5
    shortened = b"\x00\x01" + encoded[2:13]  # without owned partitions
    assert list(decode_subscription(shortened).topics) == ["t"]
    for damaged in (b"", b"\x00", b"\xff\xff", encoded[:5]):
        with pytest.raises(MalformedError):
            decode_subscription(damaged)


@pytest.mark.both_kernels
def test_user_data_of_java_and_librdkafka_have_a_generation():
    owned = [TopicPartition("t", 0)]
    assert decode_sticky(encode_sticky(owned, 7)) == (owned, 7)
    assert decode_sticky(encode_sticky(owned, 7)[:-4]) == (owned, -1)  # version 0
    assert decode_sticky(b"junk") == ([], -1)
    assert decode_generation(encode_generation(7)) == 7
    assert decode_generation(encode_sticky(owned, 8)) == 8
    assert decode_generation(None) == -1
