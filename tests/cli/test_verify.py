"""headrace verify: exit codes, text and JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headrace.verify import AnomalyKind, HistoryWriter, Operation
from tests.support.cli_runner import facts, refused, run_cli
from tests.support.history_faults import torn
from tests.support.history_simulation import random_history


def written(folder: Path, operations: list[Operation]) -> Path:
    with HistoryWriter(folder / "history.jsonl") as history:
        history.add(*operations)
    return history.path


@pytest.fixture
def torn_history(tmp_path: Path) -> Path:
    """A history in which a transaction is torn."""
    for seed in range(100):
        operations = random_history(random.Random(seed), 60)
        if torn(random.Random(seed), operations):
            return written(tmp_path, operations)
    raise AssertionError("no history has a transaction that can be torn")


def test_a_correct_history_exits_with_0(tmp_path: Path) -> None:
    path = written(tmp_path, random_history(random.Random(1), 60))
    verdict = facts("verify", path)
    assert verdict["valid"] is True
    assert verdict["anomalies"] == {}
    assert "no anomalies" in run_cli("verify", path).stdout


def test_anomalies_exit_with_1_and_show_their_evidence(torn_history: Path) -> None:
    done = run_cli("verify", torn_history)
    assert done.exit_code == 1, done.output
    assert f"{AnomalyKind.TORN}: transaction" in done.stdout
    assert "send invoke" in done.stdout
    as_json = run_cli("verify", torn_history, "--json", "--examples", 1)
    assert as_json.exit_code == 1
    verdict = json.loads(as_json.stdout)
    assert verdict["valid"] is False
    assert verdict["anomalies"][AnomalyKind.TORN] >= 1
    assert len(verdict["examples"]) == 1
    assert all(each["line"] > 0 for each in verdict["examples"][0]["evidence"])


def test_an_incomplete_history_exits_with_2(tmp_path: Path) -> None:
    operations = [op for op in random_history(random.Random(1), 60) if not getattr(op, "final", False)]
    done = run_cli("verify", written(tmp_path, operations), "--json")
    assert done.exit_code == 2, done.output
    assert json.loads(done.stdout)["valid"] is None


def test_an_invalid_line_is_named_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"op":"send"}\n')
    assert "history.jsonl:1: 'send' without field 'type'" in refused(2, "verify", path)
    path.write_bytes(b"\xff\n")
    assert "utf-8" in refused(2, "verify", path)
