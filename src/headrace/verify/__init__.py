"""The history checker: finds violations of what Kafka and headrace promise, in what clients did and saw.

    verdict = check(load_history(Path("history.jsonl")))
    print(verdict)

operations.py   the operations of a history
files.py        history files: JSON lines
facts.py        the operations by value, transaction, batch and partition
write_rules.py, unit_rules.py, read_rules.py    the rules
anomalies.py    the kinds of anomalies, and the evidence for each
checker.py      check, and its verdict

A pure function of the operations, in a time that grows with n log n.
"""

from __future__ import annotations

from headrace.verify.anomalies import Anomaly, AnomalyKind, Evidence
from headrace.verify.checker import Verdict, check
from headrace.verify.files import HistoryWriter, load_history, read_operations, to_json
from headrace.verify.operations import (
    AcknowledgeOp,
    Action,
    BatchOp,
    InvalidHistoryError,
    Operation,
    Phase,
    ReadOp,
    ReplicaOp,
    SeekOp,
    SendOp,
    StoredBatch,
    TransactionOp,
)

__all__ = [
    "AcknowledgeOp",
    "Action",
    "Anomaly",
    "AnomalyKind",
    "BatchOp",
    "Evidence",
    "HistoryWriter",
    "InvalidHistoryError",
    "Operation",
    "Phase",
    "ReadOp",
    "ReplicaOp",
    "SeekOp",
    "SendOp",
    "StoredBatch",
    "TransactionOp",
    "Verdict",
    "check",
    "load_history",
    "read_operations",
    "to_json",
]
