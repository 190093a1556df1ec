"""Encoding and decoding of decisions and holder records."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from headrace.spark import decisions
from headrace.spark.decisions import (
    HASH_MODULUS,
    PLAIN_BYTES_MAX,
    Decision,
    Fingerprint,
    Span,
    TaskTransaction,
    part_key,
    parts_of,
)
from headrace.spark.errors import SinkError
from headrace.spark.holders import HOLDERS_MAX, DriverProcess, Holder, Holders, holders_key, this_driver
from headrace.spark.origins import Coverage, SourcePartition


def transaction(number: int, partitions: int = 2) -> TaskTransaction:
    spans = tuple(Span("topic", partition, 10 * partition, 10 * partition + 5, 6) for partition in range(partitions))
    return TaskTransaction(f"sink~run~worker~{number}", 4000 + number, 3, True, spans)


def decision(count: int = 2, partitions: int = 2) -> Decision:
    made = tuple(transaction(number, partitions) for number in range(count))
    rows = 11 + sum(transaction.record_count for transaction in made)
    return Decision(
        *("sink", "query", "run", 7, made, 11, 1_700_000_000_000),
        fingerprint=Fingerprint(rows, 0x0123456789ABCDEF),
        driver=DriverProcess("host", 4711, 1_600_000_000_000),
    )


def test_a_decision_survives_the_log():
    made = decision().with_redone(transaction(1)).finished()
    assert Decision.decode(made.encode()) == made
    assert json.loads(made.encode())["state"] == "finished"
    assert json.loads(made.key) == ["sink", "query"]


def test_source_offsets_survive_the_log_and_cost_nothing_where_there_are_none():
    covered = Coverage(
        {SourcePartition.of("t", "0-1", 3): ((5, 9), (20, 20)), SourcePartition("by-name", 0): ((0, 0),)}
    )
    made = replace(decision(), offsets=covered.hull(), base=covered, batch_offsets=covered.hull())
    assert Decision.decode(made.encode()) == made
    assert json.loads(made.encode())["base"] == {"by-name": {"0": [[0, 0]]}, "id:0-1:t": {"3": [[5, 9], [20, 20]]}}
    assert json.loads(decision().encode()).keys().isdisjoint({"offsets", "base", "batch_offsets"})


def test_a_large_decision_is_compressed():
    made = decision(200, 100)
    data = made.encode()
    assert Decision.decode(data) == made
    assert len(data) < 400_000
    assert data[:1] != b"{"
    assert len(decision(1).encode()) < PLAIN_BYTES_MAX


def test_a_finished_decision_has_the_number_of_records_of_its_transactions_but_no_offsets():
    made = decision(200, 100)
    assert made.finished().rows == made.rows
    assert all(made.finished().holds(transaction) for transaction in made.transactions)
    assert {len(transaction.spans) for transaction in made.finished().transactions} == {1}


PART_BYTES_MAX = 2_000


@pytest.fixture
def small_records(monkeypatch):
    monkeypatch.setattr(decisions, "RECORD_BYTES_MAX", PART_BYTES_MAX)


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("count", [2, 3, 50])
def test_a_decision_that_is_too_large_for_a_record_is_written_in_parts(count):
    made = decision(count, 200)
    records = made.records()
    *parts, head = records
    assert head == made.key
    assert parts == [part_key(head, index) for index in range(len(parts))]
    assert 1 < len(parts) <= count
    assert len(parts) == count or max(map(len, records.values())) <= PART_BYTES_MAX
    assert Decision.decode(records[head], parts_of(head, records)) == made


@pytest.mark.usefixtures("small_records")
def test_a_decision_with_one_transaction_is_one_record_of_any_size():
    made = decision(1, 500)
    assert made.records() == {made.key: made.encode()}


@pytest.mark.usefixtures("small_records")
@pytest.mark.parametrize("change", ["missing", "of another decision"])
def test_a_decision_without_all_of_its_parts_is_refused(change):
    made = decision(50, 200)
    records = made.records()
    parts = parts_of(made.key, records)
    other = replace(made, at_ms=made.at_ms + 1)
    parts[-1:] = [] if change == "missing" else parts_of(made.key, other.records())[-1:]
    with pytest.raises(SinkError, match=rf"incomplete: part {len(records) - 1} of {len(records) - 1}"):
        Decision.decode(records[made.key], parts)


def test_a_decision_holds_a_transaction_of_the_same_epoch_only():
    made = decision(1)
    (own,) = made.transactions
    assert made.holds(own)
    assert not made.holds(TaskTransaction(own.id, own.producer_id, own.epoch + 1, True, own.spans))


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", b'{"v": 1}', b"[]", b"x\x9cnonsense"])
def test_an_invalid_decision_record_is_refused(data):
    with pytest.raises(SinkError, match="invalid decision record"):
        Decision.decode(data)


def test_a_decision_of_a_newer_version_is_refused():
    newer = json.loads(decision().encode()) | {"v": 4}
    with pytest.raises(SinkError, match="expected version 3 or lower, got 4"):
        Decision.decode(json.dumps(newer).encode())


def test_a_decision_of_version_1_has_no_fingerprint_but_a_row_count():
    older = json.loads(decision().encode()) | {"v": 1}
    for name in ("rows", "hash", "driver"):
        del older[name]
    decoded = Decision.decode(json.dumps(older).encode())
    assert (decoded.fingerprint, decoded.driver) == (None, None)
    assert decoded.rows == 11 + 2 * 12


def test_unknown_keys_are_ignored():
    newer = json.loads(decision().encode()) | {"something": [1]}
    assert Decision.decode(json.dumps(newer).encode()) == decision()


def test_fingerprints_add_up_in_any_order():
    parts = [Fingerprint(1, HASH_MODULUS - 1), Fingerprint(2, 5), Fingerprint()]
    assert sum(parts, Fingerprint()) == sum(reversed(parts), Fingerprint()) == Fingerprint(3, 4)


def holder(number: int) -> Holder:
    return Holder(f"run-{number}", DriverProcess("host", number, 1_700_000_000_000), 1_700_000_001_000)


def test_holders_survive_the_log():
    made = Holders().followed_by(holder(1)).followed_by(holder(2))
    assert Holders.decode(made.encode()) == made
    assert json.loads(holders_key("sink"))[0] == "sink"


def test_only_the_last_run_holds_the_sink_and_older_ones_are_fenced():
    holders = Holders().followed_by(holder(1)).followed_by(holder(2))
    assert holders.is_held_by("run-2")
    assert not holders.is_fenced("run-2")
    assert holders.is_fenced("run-1")
    assert not holders.is_fenced("run-3")
    assert not Holders().is_fenced("run-1")
    assert not Holders().is_held_by("run-1")


def test_the_history_of_holders_is_bounded():
    holders = Holders()
    for number in range(HOLDERS_MAX + 10):
        holders = holders.followed_by(holder(number))
    assert len(holders.history) == HOLDERS_MAX
    assert holders.is_held_by(f"run-{HOLDERS_MAX + 9}")
    assert not holders.is_fenced("run-9")
    assert holders.is_fenced("run-10")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"v": 1}', b'{"v": 1, "holders": [[1]]}', b'{"v": 1, "holders": 3}'])
def test_an_invalid_holder_record_is_refused(data):
    with pytest.raises(SinkError, match="invalid holder record"):
        Holders.decode(data)


def test_a_holder_record_of_a_newer_version_is_refused():
    with pytest.raises(SinkError, match="expected version 1, got 2"):
        Holders.decode(b'{"v": 2, "holders": []}')


def test_a_holder_is_named_with_host_process_and_start_time():
    assert str(holder(7)) == (
        "run run-7 (host host, process 7, started 2023-11-14 22:13:20 UTC), since 2023-11-14 22:13:21 UTC"
    )


def test_a_process_without_a_jvm_ancestor_is_its_own_driver():
    driver = this_driver()
    assert driver.pid == os.getpid()
    assert -2_000 < time.time() * 1000 - driver.started_ms < 24 * 3_600_000
