"""The placement of replicas on brokers and racks."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.broker.placement import place_replicas, place_with_inactive
from headrace.errors import BrokerError, Code

FIVE = dict.fromkeys(range(5))
SIX_IN_RACKS = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b", 5: "c"}


def test_replicas_are_placed_as_by_kafka() -> None:
    # The example in the documentation of Kafka's own rules: ten partitions, three replicas, five brokers.
    placed = place_replicas(FIVE, 10, 3, start=0, shift=0)
    assert placed == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 0],
        [4, 0, 1],
        [0, 2, 3],
        [1, 3, 4],
        [2, 4, 0],
        [3, 0, 1],
        [4, 1, 2],
    ]


@pytest.mark.parametrize("replication_factor", [1, 2, 3, 5])
def test_leaders_and_replicas_are_balanced(replication_factor: int) -> None:
    placed = place_replicas(FIVE, 40, replication_factor)
    assert all(len(set(replicas)) == replication_factor for replicas in placed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {8}
    held = Counter(node for replicas in placed for node in replicas)
    assert max(held.values()) - min(held.values()) <= 8


def test_replicas_are_on_different_racks_if_possible() -> None:
    for replicas in place_replicas(SIX_IN_RACKS, 30, 3):
        assert {SIX_IN_RACKS[node] for node in replicas} == {"a", "b", "c"}
    for replicas in place_replicas(SIX_IN_RACKS, 30, 4):
        assert len(set(replicas)) == 4
        assert {SIX_IN_RACKS[node] for node in replicas} == {"a", "b", "c"}
    assert set(Counter(replicas[0] for replicas in place_replicas(SIX_IN_RACKS, 30, 3)).values()) == {5}


def test_racks_of_different_sizes_and_brokers_without_a_rack() -> None:
    brokers = {1: "a", 2: "a", 3: "a", 4: "b", 5: None}
    for replicas in place_replicas(brokers, 20, 3):
        assert len({brokers[node] for node in replicas}) == 3
    for replicas in place_replicas(brokers, 20, 5):
        assert set(replicas) == set(brokers)


def test_more_replicas_than_brokers_are_rejected() -> None:
    with pytest.raises(BrokerError, match=r"live brokers, 2 \(4, 7\)") as refused:
        place_replicas({7: None, 4: None}, 1, 3)
    assert refused.value.code == Code.INVALID_REPLICATION_FACTOR
    with pytest.raises(BrokerError):
        place_replicas({}, 1, 1)


def test_inactive_brokers_get_replicas_only_if_needed() -> None:
    live, away = dict.fromkeys((1, 2)), [3, 4]
    assert all(set(replicas) == {1, 2} for replicas in place_with_inactive(live, away, 4, 2))
    placed = place_with_inactive(live, away, 4, 3)
    assert all(set(replicas[:2]) == {1, 2} for replicas in placed)  # a leader lives
    assert [replicas[2] for replicas in placed] == [3, 4, 3, 4]
    assert all(set(replicas) == {1, 2, 3, 4} for replicas in place_with_inactive(live, away, 2, 4))
    with pytest.raises(BrokerError):
        place_with_inactive(live, away, 1, 5)
    with pytest.raises(BrokerError):
        place_with_inactive({}, away, 1, 1)
