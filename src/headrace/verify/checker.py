"""The check of a history, and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.verify import read_rules, unit_rules, write_rules
from headrace.verify.anomalies import Anomaly, AnomalyKind, describe
from headrace.verify.facts import Facts, Outcome
from headrace.verify.operations import Operation, Phase

SHOWN_MAX = 20
_RULES = (
    write_rules.complete,
    write_rules.sent_values,
    write_rules.nothing_lost,
    write_rules.nothing_twice,
    write_rules.in_order,
    write_rules.same_rows,
    write_rules.accepted,
    unit_rules.atomic,
    unit_rules.committed_reads,
    unit_rules.fenced,
    read_rules.stable,
    read_rules.forwards,
    read_rules.not_truncated,
    read_rules.same_replicas,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check."""

    operations: int
    sizes: dict[str, int]
    anomalies: tuple[Anomaly, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the history was checked as a whole, and has no anomaly."""
        return not self.anomalies

    @property
    def is_known(self) -> bool:
        """Whether there is a result: an anomaly, or a complete history without one."""
        return self.is_valid or any(anomaly.kind is not AnomalyKind.INCOMPLETE for anomaly in self.anomalies)

    @property
    def kinds(self) -> Counter[AnomalyKind]:
        """The number of anomalies of each kind."""
        return Counter(anomaly.kind for anomaly in self.anomalies)

    def text(self, shown_max: int = SHOWN_MAX) -> str:
        """Return a summary, and the first anomalies with their evidence."""
        sizes = ", ".join(f"{count:,} {name}" for name, count in self.sizes.items())
        lines = [f"{self.operations:,} operations: {sizes}"]
        if self.is_valid:
            return "\n".join([*lines, "no anomalies"])
        lines.append(", ".join(f"{kind}: {count}" for kind, count in self.kinds.items()))
        lines += [str(anomaly) for anomaly in self.anomalies[:shown_max]]
        rest = len(self.anomalies) - shown_max
        return "\n".join([*lines, f"… and {rest} more"] if rest > 0 else lines)

    def __str__(self) -> str:
        return self.text()

    def to_json(self, shown_max: int = SHOWN_MAX) -> dict[str, Any]:
        """Return the verdict as JSON: all counts, and the first anomalies."""
        return {
            "valid": self.is_valid if self.is_known else None,
            "operations": self.operations,
            **self.sizes,
            "anomalies": {str(kind): count for kind, count in self.kinds.items()},
            "examples": [
                {
                    "kind": str(anomaly.kind),
                    "text": anomaly.text,
                    "evidence": [
                        {"line": each.line, "time": each.operation.time_s, "text": describe(each.operation)}
                        for each in anomaly.evidence
                    ],
                }
                for anomaly in self.anomalies[:shown_max]
            ],
        }


def check(operations: Iterable[Operation]) -> Verdict:
    """Check a history."""
    facts = Facts(operations)
    anomalies = tuple(anomaly for rule in _RULES for anomaly in rule(facts))
    return Verdict(len(facts.operations), _sizes(facts), anomalies)


def _sizes(facts: Facts) -> dict[str, int]:
    phases = Counter(write.phase for write in facts.writes.values())
    return {
        "sends": len(facts.writes),
        "acknowledged": phases[Phase.OK],
        "failed": phases[Phase.FAIL],
        "unknown": phases[Phase.INFO] + phases[Phase.INVOKE],
        "transactions": len(facts.transactions),
        "committed": sum(unit.outcome is Outcome.COMMITTED for unit in facts.transactions.values()),
        "batches": len(facts.batches),
        "records_read": sum(len(read.records) for _, _, read in facts.reads),
    }
