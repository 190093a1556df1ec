"""The assignors of consumer groups: every partition once, even, and with few moves."""

from __future__ import annotations

import random

import pytest

from headrace.broker.groups.assignors import (
    ASSIGNORS,
    AssignableMember,
    Assignment,
    assign_ranges,
    assign_uniformly,
)

ROUNDS = 5
A, B = b"A" * 16, b"B" * 16


def member(name: str, *topics: bytes, instance: str | None = None) -> AssignableMember:
    return AssignableMember(name, instance, frozenset(topics), {})


def pairs(assignment: Assignment) -> list[tuple[bytes, int]]:
    return [(topic, index) for parts in assignment.values() for topic, indexes in parts.items() for index in indexes]


def with_current(members: list[AssignableMember], assignment: Assignment) -> list[AssignableMember]:
    return [
        row._replace(current={topic: frozenset(indexes) for topic, indexes in assignment.get(row.id, {}).items()})
        for row in members
    ]


@pytest.mark.parametrize("is_equal", [True, False], ids=["equal subscriptions", "different subscriptions"])
@pytest.mark.parametrize("name", ASSIGNORS)
def test_every_partition_of_subscribed_topics_has_one_member(name, is_equal):
    for seed in range(200):
        chance = random.Random(seed)
        counts = {bytes([n]) * 16: chance.randint(0, 9) for n in range(chance.randint(0, 5))}

        def newcomer(number: int, chance=chance, counts=counts) -> AssignableMember:
            return member(f"m{number}", *(topic for topic in counts if is_equal or chance.random() < 0.6))

        members = [newcomer(number) for number in range(chance.randint(1, 6))]
        for number in range(ROUNDS):
            assignment = ASSIGNORS[name](members, counts)
            subscribed = {topic for row in members for topic in row.topic_ids}
            assert sorted(pairs(assignment)) == sorted((t, i) for t in subscribed for i in range(counts[t])), seed
            assert all(assignment[row.id].keys() <= row.topic_ids for row in members)
            members = with_current(members, assignment)
            assert ASSIGNORS[name](members, counts) == assignment, "an assignment is stable"
            if len(members) > 1 and chance.random() < 0.5:
                members.pop(chance.randrange(len(members)))
            else:
                members.append(newcomer(10 + number))


def test_uniform_is_even_and_moves_only_what_a_new_member_needs():
    counts = {A: 6, B: 4}
    members = [member(name, A, B) for name in "abc"]
    before = assign_uniformly(members, counts)
    assert sorted(len(pairs({name: parts})) for name, parts in before.items()) == [3, 3, 4]
    after = assign_uniformly([*with_current(members, before), member("d", A, B)], counts)
    assert sorted(len(pairs({name: parts})) for name, parts in after.items()) == [2, 2, 3, 3]
    moved = {pair for name in "abc" for pair in pairs({name: before[name]})} - {
        pair for name in "abc" for pair in pairs({name: after[name]})
    }
    assert len(moved) == len(pairs({"d": after["d"]}))


def test_uniform_evens_out_different_subscriptions():
    counts = {A: 6, B: 2}
    assignment = assign_uniformly([member("a", A), member("b", A, B)], counts)
    assert {name: len(pairs({name: parts})) for name, parts in assignment.items()} == {"a": 4, "b": 4}


def test_ranges_follow_instance_ids_and_keep_topics_of_the_same_size_together():
    members = [member("z", A, B), member("y", A, B, instance="i2"), member("x", A, B, instance="i1")]
    assignment = assign_ranges(members, {A: 4, B: 4})
    assert assignment == {"x": {A: {0, 1}, B: {0, 1}}, "y": {A: {2}, B: {2}}, "z": {A: {3}, B: {3}}}
