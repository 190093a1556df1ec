"""Ranges, limits and offsets of the source: arithmetic."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.planning import (
    OffsetRange,
    Position,
    Recreated,
    limited,
    offset_count,
    recreated,
    split,
)
from headrace.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

ranges = st.lists(
    st.builds(
        lambda number, start, size: OffsetRange("t", number, start, start + size),
        st.integers(0, 50),
        st.integers(0, 10**12),
        st.integers(0, 10**7),
    ),
    max_size=12,
    unique_by=lambda planned: planned.partition,
)


@pytest.mark.parametrize(
    ("sizes", "parts_min", "size_max", "expected"),
    [
        ([100, 50], None, None, [(0, 100), (0, 50)]),
        ([100, 0, 50], None, None, [(0, 100), (0, 50)]),
        ([100, 50], 2, None, [(0, 100), (0, 50)]),
        ([100], 4, None, [(0, 25), (25, 50), (50, 75), (75, 100)]),
        ([100, 50], 3, None, [(0, 50), (50, 100), (0, 50)]),
        # What is too short for two parts stays whole.
        ([1, 1000], 4, None, [(0, 1), (0, 333), (333, 666), (666, 1000)]),
        ([3], 10, None, [(0, 1), (1, 2), (2, 3)]),
        ([100], None, 40, [(0, 33), (33, 66), (66, 100)]),
        ([100, 10], 2, 50, [(0, 50), (50, 100), (0, 10)]),
        ([100], 8, 50, [(n * 100 // 8, (n + 1) * 100 // 8) for n in range(8)]),
        ([], 4, 10, []),
    ],
)
def test_long_ranges_are_split(sizes, parts_min, size_max, expected):
    whole = [OffsetRange("t", number, 0, size) for number, size in enumerate(sizes)]
    assert [(part.start, part.end) for part in split(whole, parts_min, size_max)] == expected


@given(ranges, st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(10**5, 10**7)))
def test_parts_cover_the_ranges_once_and_in_order(whole, parts_min, size_max):
    parts = split(whole, parts_min, size_max)
    assert all(part.size > 0 for part in parts)
    for planned in whole:
        own = [part for part in parts if part.partition == planned.partition]
        if planned.size:
            assert (own[0].start, own[-1].end) == (planned.start, planned.end)
            assert all(left.end == right.start for left, right in itertools.pairwise(own))
    if size_max is not None:
        assert all(part.size <= size_max for part in parts)
    if parts_min is None and size_max is None:
        assert parts == [planned for planned in whole if planned.size]


def test_a_limit_is_shared_out_by_what_each_partition_has():
    begin, latest = {A0: 0, A1: 100, B0: 0}, {A0: 300, A1: 200, B0: 0}
    assert limited(begin, latest, 100) == {A0: 75, A1: 125, B0: 0}
    assert limited(begin, latest, 400) == latest
    assert limited(begin, latest, 10**6) == latest


def test_no_partition_that_has_something_starves():
    begin, latest = {A0: 0, A1: 0}, {A0: 10**9, A1: 1}
    assert limited(begin, latest, 10) == {A0: 9, A1: 1}


def test_an_end_before_its_beginning_is_unchanged_by_limits():
    assert limited({A0: 50, A1: 0}, {A0: 10, A1: 100}, 20) == {A0: 10, A1: 20}


offsets = st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 10**12), min_size=1)


@given(offsets, offsets, st.integers(1, 10**6))
def test_a_limited_batch_moves_on_and_never_beyond_the_latest(begin, latest, most):
    end = limited({**latest, **begin}, latest, most)
    assert end.keys() == latest.keys()
    ahead = [tp for tp in latest if tp in begin and begin[tp] < latest[tp]]
    assert all(begin[tp] < end[tp] <= latest[tp] for tp in ahead)
    assert offset_count(begin, end) <= most + len(ahead)


@pytest.mark.parametrize(
    "position",
    [
        Position({}),
        Position({A0: 5, A1: 7, B0: 0}),
        Position({A0: 5}, initial=True),
        Position({A0: 9, B0: 2}, begin={A0: 5}),
        Position({A0: 9, B0: 2}, topic_ids={"a": "1", "b": "2"}),
        Position({}, initial=True, missing=("a",)),
    ],
)
def test_a_position_survives_its_json(position):
    assert Position.of_json(json.loads(json.dumps(position.to_json()))) == position


def test_the_json_is_that_of_sparks_own_source_and_always_in_the_same_order():
    assert json.dumps(Position({B0: 1, A1: 2, A0: 3}).to_json()) == '{"a": {"0": 3, "1": 2}, "b": {"0": 1}}'


def test_a_repeated_first_batch_begins_where_its_end_says():
    planned, asked_again = Position({A0: 5}, initial=True), Position({A0: 8}, initial=True)
    end = Position({A0: 10}, begin=planned.offsets)
    assert asked_again.until(end).offsets == {A0: 5}
    # Later batches begin at the end of the previous batch, for any end.
    assert end.until(Position({A0: 20}, begin={A0: 15})).offsets == {A0: 10}


def test_a_topic_is_recreated_if_both_ids_are_known_and_differ():
    known, current = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "5", "d": "4"}
    assert recreated(known, current) == [Recreated("b", "2", "5")]
    assert Position({A0: 5, B0: 2}).without_topics({"b"}).offsets == {A0: 5}


def test_a_position_keeps_the_ids_of_its_own_topics_only():
    position = Position({A0: 5}, topic_ids={"a": "1", "b": "2"})
    assert position.to_json() == {"a": {"0": 5}, "@topic-ids": {"a": "1"}}
