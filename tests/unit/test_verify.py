"""The history checker: it finds every kind of anomaly, and none in a correct history."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.verify import (
    Action,
    Anomaly,
    AnomalyKind,
    BatchOp,
    HistoryWriter,
    InvalidHistoryError,
    Operation,
    Phase,
    ReadOp,
    SendOp,
    TransactionOp,
    Verdict,
    check,
    load_history,
    read_operations,
    to_json,
)
from headrace.verify.checker import SHOWN_MAX
from tests.support.examples import examples
from tests.support.history_faults import PLANTS, Plant
from tests.support.history_simulation import random_history

INVOKE, OK, FAIL, INFO = Phase.INVOKE, Phase.OK, Phase.FAIL, Phase.INFO
HISTORIES = 20  # for each kind of fault
STEPS, TRIES_MAX = 80, 200
EVIDENCE_MAX, RECORDS_MAX = 10, 3


def planted(plant: Plant) -> list[tuple[int, str, list[Operation]]]:
    """Return random histories with a fault: the seed, what the report has to say, the operations."""
    histories = []
    for seed in range(TRIES_MAX):
        history = random_history(random.Random(seed), STEPS, share=True)
        text = plant(random.Random(seed), history)
        if text is not None:
            histories.append((seed, text, history))
        if len(histories) == HISTORIES:
            return histories
    raise AssertionError(f"only {len(histories)} of {TRIES_MAX} histories can have this fault")


@pytest.mark.parametrize(("kind", "plant"), PLANTS, ids=[plant.__name__ for _, plant in PLANTS])
def test_every_planted_fault_is_reported_with_its_evidence(kind: AnomalyKind, plant: Plant) -> None:
    for seed, text, history in planted(plant):
        anomalies = [each for each in check(history).anomalies if each.kind is kind and text in each.text]
        assert anomalies, f"seed {seed}: {text}"
        if kind is not AnomalyKind.INCOMPLETE:
            prove(kind, anomalies[0])


def prove(kind: AnomalyKind, anomaly: Anomaly) -> None:
    """Check that the evidence is small, in order, and shows the same anomaly without the rest of the history."""
    lines = [each.line for each in anomaly.evidence]
    assert lines == sorted(set(lines)), anomaly
    assert len(lines) <= EVIDENCE_MAX, anomaly
    operations = [each.operation for each in anomaly.evidence]
    assert all(len(op.records) <= RECORDS_MAX for op in operations if isinstance(op, ReadOp)), anomaly
    assert kind in check(operations).kinds, anomaly


def test_every_kind_of_anomaly_is_planted() -> None:
    assert {kind for kind, _ in PLANTS} == set(AnomalyKind)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, (1 << 32) - 1), st.integers(1, 120), st.booleans())
def test_a_random_correct_history_has_no_anomalies(seed: int, steps: int, share: bool) -> None:
    verdict = check(random_history(random.Random(seed), steps, share=share))
    assert verdict.is_valid, verdict


def story(*operations: Operation) -> Verdict:
    """Check operations on partition 0 of topic t, which is read at the end: v0 and v1 are visible, v2 was aborted."""
    final = ReadOp("final", "t", 0, True, ((0, "v0"), (1, "v1")), 4, final=True)
    everything = final._replace(committed=False, records=(*final.records, (2, "v2")))
    return check([*operations, final, everything])


def sent(value: str, phase: Phase = OK, transaction: str | None = None) -> list[Operation]:
    invoke = SendOp(INVOKE, "w", value, "t", 0, transaction=transaction)
    return [invoke, SendOp(phase, "w", value, "t", 0)]


def ended(action: Action, phase: Phase, name: str = "x") -> list[Operation]:
    return [TransactionOp(action, each, "w", name, "id") for each in (INVOKE, phase)]


def test_writes_of_unknown_outcome_may_be_there_or_not() -> None:
    aborted = [*sent("v2", OK, "x"), *ended(Action.ABORT, INFO)]
    assert story(*sent("v0", INFO), *sent("v1", INFO), *aborted, *sent("v3", INFO)).is_valid
    assert story(*sent("v0", INFO), *sent("v1"), *aborted, *sent("v3")).kinds == {AnomalyKind.LOST: 1}


def test_a_transaction_whose_commit_was_never_requested_must_not_be_visible() -> None:
    aborted = [*sent("v2", OK, "y"), *ended(Action.ABORT, OK, "y")]
    values = [*sent("v0", OK, "x"), *sent("v1", OK, "x")]
    assert story(*values, *ended(Action.COMMIT, INFO), *aborted).is_valid
    assert AnomalyKind.ABORTED_READ in story(*values, *aborted).kinds
    assert AnomalyKind.ABORTED_READ in story(*values, *ended(Action.COMMIT, FAIL), *aborted).kinds


def test_an_abort_after_an_uncertain_commit_decides_the_transaction() -> None:
    values = [*sent("v0", OK, "x"), *sent("v1"), *ended(Action.COMMIT, INFO), *ended(Action.ABORT, OK)]
    assert AnomalyKind.ABORTED_READ in story(*values, *sent("v2", OK, "y")).kinds


def test_a_batch_that_every_driver_failed_to_decide_must_not_be_visible() -> None:
    def batch(*phases: Phase) -> Verdict:
        operations = [BatchOp(INVOKE, "driver", "q", 0, ("v0", "v1"))]
        return story(*(op._replace(phase=phase) for phase in phases for op in operations), *sent("v2", OK, "y"))

    assert batch(INVOKE, INFO).is_valid
    assert batch(INVOKE, FAIL, INVOKE, OK).is_valid
    assert AnomalyKind.ABORTED_READ in batch(INVOKE, FAIL).kinds


def test_a_lost_write_is_reported_with_its_send_its_result_and_the_final_read() -> None:
    verdict = story(*sent("v0"), *sent("v1"), *sent("v3"), *sent("v2", OK, "x"))
    (anomaly,) = verdict.anomalies
    assert str(anomaly).splitlines() == [
        "lost write: 'v3' was acknowledged, but is not visible to read_committed",
        "    line 5       w  send invoke  'v3' t-0",
        "    line 6       w  send ok  'v3' t-0",
        "    line 9       final  final read  t-0 committed: nothing, end 4 (of 2 records)",
    ]


def test_a_history_without_final_reads_has_no_result() -> None:
    verdict = check(sent("v0"))
    assert not verdict.is_known
    assert verdict.to_json()["valid"] is None
    assert check([]).is_known


@pytest.mark.parametrize(
    ("operations", "text"),
    [
        ([*sent("v0"), *sent("v0")], "operation 3: 'v0' was sent before"),
        (sent("v0")[1:], "operation 1: the result of 'v0', which was not invoked"),
        (ended(Action.COMMIT, OK)[1:], "the result of a commit of 'x', which was not invoked"),
        ([BatchOp(OK, "d", "q", 1)], "the result of batch 1 of 'q', which was not invoked"),
        ([ReadOp("r", "t", 0, True, (), final=True)] * 2, "operation 2: a second final read of t-0"),
    ],
)
def test_an_invalid_history_is_refused(operations: list[Operation], text: str) -> None:
    with pytest.raises(InvalidHistoryError, match=text):
        check(operations)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "h:2: not JSON"),
        ("[]", r"h:2: invalid operation: expected a JSON object, got \[\]"),
        ('{"op":"jump"}', "h:2: invalid op: expected one of send, init, commit, .*, got 'jump'"),
        ('{"op":"send","type":"ok","process":"w"}', "h:2: 'send' without field 'value'"),
        ('{"op":"send","type":"done","process":"w","value":"v","topic":"t"}', "h:2: invalid type: .* got 'done'"),
        ('{"op":"send","type":"ok","process":"w","value":7,"topic":"t"}', "h:2: invalid 'send'"),
        (
            '{"op":"poll","process":"r","topic":"t","partition":0,"isolation":"none","records":[]}',
            "h:2: invalid 'poll': expected isolation",
        ),
    ],
)
def test_a_line_that_is_no_operation_is_refused(line: str, text: str) -> None:
    with pytest.raises(InvalidHistoryError, match=text):
        list(read_operations([to_json(sent("v0")[0]), line], "h"))


def test_a_history_is_the_same_after_writing_and_loading(tmp_path: Path) -> None:
    operations = random_history(random.Random(1), 100, share=True)
    with HistoryWriter(tmp_path / "history.jsonl") as history:
        for operation in operations:
            history.add(operation)
    loaded = list(load_history(tmp_path / "history.jsonl"))
    assert [operation._replace(time_s=None) for operation in loaded] == operations
    times = [operation.time_s for operation in loaded]
    assert times == sorted(times, key=lambda time_s: time_s or 0)


def test_a_verdict_counts_all_anomalies_and_shows_some() -> None:
    verdict = story(*(op for n in range(SHOWN_MAX + 5) for op in sent(f"lost-{n}")))
    lines = str(verdict).splitlines()
    assert f"lost write: {SHOWN_MAX + 5}" in lines[1]
    assert lines[-1] == f"… and {len(verdict.anomalies) - SHOWN_MAX} more"
    assert len(verdict.to_json()["examples"]) == SHOWN_MAX


@pytest.mark.parametrize(
    "operations",
    [
        [BatchOp(Phase.INVOKE, "q", "q", 0, ("a",)), BatchOp(Phase.OK, "q", "q", 0)],
        [SendOp(Phase.INVOKE, "w", "a", "t"), SendOp(Phase.OK, "w", "a", "t")],
    ],
    ids=["batch", "send"],
)
def test_a_history_that_nobody_has_read_is_incomplete(operations):
    verdict = check(operations)
    assert set(verdict.kinds) == {AnomalyKind.INCOMPLETE}
    assert not verdict.is_known
