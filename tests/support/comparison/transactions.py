"""Requests about transactions and producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.comparison.comparing import NOBODY, RequestCase, World

CASES = {
    "described producers": RequestCase(
        "DescribeProducers",
        lambda w: {
            "topics": [{"name": w.topic, "partition_indexes": [0, 1, 7]}, {"name": NOBODY, "partition_indexes": [0]}]
        },
    ),
    "described transactions": RequestCase(
        "DescribeTransactions", lambda w: {"transactional_ids": [w.transactional_id, NOBODY, ""]}
    ),
    "listed transactions": RequestCase(
        "ListTransactions",
        lambda w: {"state_filters": ["Ongoing", "NoSuchState"], "producer_id_filters": [w.transaction[0]]},
    ),
    "listed transactions by a bad pattern": RequestCase(
        "ListTransactions", lambda w: {"transactional_id_pattern": "("}, range(2, 9)
    ),
    "a producer id with a time-out of nothing": RequestCase(
        "InitProducerId", lambda w: {"transactional_id": w.transactional_id + "-0", "transaction_timeout_ms": 0}
    ),
    "a producer id with a time-out too long": RequestCase(
        "InitProducerId", lambda w: {"transactional_id": w.transactional_id + "-9", "transaction_timeout_ms": 2**31 - 1}
    ),
    "a producer id for an empty name": RequestCase(
        "InitProducerId", lambda w: {"transactional_id": "", "transaction_timeout_ms": 1000}
    ),
    "a producer id of somebody else": RequestCase(
        "InitProducerId",
        lambda w: {
            "transactional_id": w.transactional_id,
            "transaction_timeout_ms": 1000,
            "producer_id": 10**9,
            "producer_epoch": 0,
        },
        range(3, 9),
    ),
    "partitions for nobody's transaction": RequestCase("AddPartitionsToTxn", lambda w: add(w, NOBODY, 1, 0), range(4)),
    "partitions for another's transaction": RequestCase(
        "AddPartitionsToTxn", lambda w: add(w, w.transactional_id, 10**9, 0), range(4)
    ),
    "partitions for an older epoch": RequestCase(
        "AddPartitionsToTxn", lambda w: add(w, w.transactional_id, w.transaction[0], w.transaction[1] - 1), range(4)
    ),
    "a partition that is not there for a transaction": RequestCase(
        "AddPartitionsToTxn", lambda w: add(w, w.transactional_id, *w.transaction, partitions=[0, 9]), range(4)
    ),
    "offsets for nobody's transaction": RequestCase(
        "AddOffsetsToTxn",
        lambda w: {"transactional_id": NOBODY, "producer_id": 1, "producer_epoch": 0, "group_id": w.group},
    ),
    "the end of nobody's transaction": RequestCase(
        "EndTxn", lambda w: {"transactional_id": NOBODY, "producer_id": 1, "producer_epoch": 0, "committed": True}
    ),
    "the end of another's transaction": RequestCase(
        "EndTxn",
        lambda w: {
            "transactional_id": w.transactional_id,
            "producer_id": 10**9,
            "producer_epoch": 0,
            "committed": True,
        },
    ),
    "offsets in nobody's transaction": RequestCase(
        "TxnOffsetCommit",
        lambda w: {
            "transactional_id": NOBODY,
            "group_id": w.group,
            "producer_id": 1,
            "producer_epoch": 0,
            "topics": [
                {
                    "name": w.topic,
                    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}],
                }
            ],
        },
    ),
}


def add(
    world: World, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[int] = (0,)
) -> dict[str, Any]:
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": [{"name": world.topic, "partitions": list(partitions)}],
    }
