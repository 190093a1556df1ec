"""Decisions as bytes."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyspark")

from headrace.spark.decisions import PLAIN_BYTES_MAX, Decision, Span, TaskTransaction
from headrace.spark.sink_errors import SinkError


def transaction(number: int, partitions: int = 2) -> TaskTransaction:
    spans = tuple(Span("topic", partition, 10 * partition, 10 * partition + 5, 6) for partition in range(partitions))
    return TaskTransaction(f"sink~run~worker~{number}", 4000 + number, 3, True, spans)


def decision(count: int = 2, partitions: int = 2) -> Decision:
    made = tuple(transaction(number, partitions) for number in range(count))
    return Decision("sink", "query", "run", 7, made, 11, 1_700_000_000_000)


def test_a_decision_survives_the_log():
    made = decision().with_redone(transaction(1)).finished()
    assert Decision.decode(made.encode()) == made
    assert json.loads(made.encode())["state"] == "finished"
    assert json.loads(made.key) == ["sink", "query"]


def test_a_large_decision_is_compressed():
    made = decision(200, 100)
    data = made.encode()
    assert Decision.decode(data) == made
    assert len(data) < 400_000
    assert data[:1] != b"{"
    assert len(decision(1).encode()) < PLAIN_BYTES_MAX


def test_a_decision_holds_a_transaction_of_the_same_epoch_only():
    made = decision(1)
    (own,) = made.transactions
    assert made.holds(own)
    assert not made.holds(TaskTransaction(own.id, own.producer_id, own.epoch + 1, True, own.spans))


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b'{"v": 1}', b"[]", b"x\x9cnonsense"])
def test_what_is_no_decision_is_refused(data):
    with pytest.raises(SinkError, match="no decision"):
        Decision.decode(data)


def test_a_decision_of_a_newer_version_is_refused():
    newer = json.loads(decision().encode()) | {"v": 2}
    with pytest.raises(SinkError, match="version 2"):
        Decision.decode(json.dumps(newer).encode())
