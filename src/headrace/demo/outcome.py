"""The figures of a run, for the table, the report and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.spark.commit_times import CommitTimes

ROWS_DEFAULT = 1_000_000
ROWS_MIN, ROWS_MAX = 1_000, 50_000_000
WORKER, DRIVER, BROKER = "worker", "driver", "broker"


@dataclass(slots=True)
class Kill:
    """A process that was killed with SIGKILL, or the reason why it was not."""

    what: str
    pid: int | None = None
    at_s: float = 0.0
    open_records: int = 0
    """Records written but not yet visible at that moment."""
    back_s: float | None = None
    """Seconds until new rows became visible."""
    note: str = ""

    @property
    def is_done(self) -> bool:
        return self.pid is not None


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """The duration of a batch, by phase."""

    batch: int
    rows: int
    plan_ms: float
    write_ms: float
    commit_ms: float
    """The commit of the sink."""
    log_ms: float
    """Spark's offset and commit logs."""

    @property
    def total_ms(self) -> float:
        return self.plan_ms + self.write_ms + self.commit_ms + self.log_ms

    @classmethod
    def of(cls, event: dict[str, Any], commit: CommitTimes | None) -> BatchTimes:
        """Combine Spark's progress of a batch with the sink's commit times."""
        add_ms, log_ms = event["write_ms"], event["commit_ms"]
        commit_ms = 0.0 if commit is None else min(commit.total_ms, add_ms)
        plan_ms = max(0, event["duration_ms"] - add_ms - log_ms)
        return cls(event["batch"], event["rows"], plan_ms, add_ms - commit_ms, commit_ms, log_ms)


@dataclass(slots=True)
class DemoOutcome:
    """The result of a run. Times are seconds since the first driver was started."""

    rows_in: int
    cluster: str = ""
    audit: dict[str, Any] = field(default_factory=dict)
    query_at_s: float = 0.0
    """When the stream began, after Spark had started."""
    done_at_s: float = 0.0
    """When the last row became visible."""
    seconds: float = 0.0
    """The duration of the whole run."""
    samples: list[tuple[float, int]] = field(default_factory=list)
    batches: list[BatchTimes] = field(default_factory=list)
    commits: list[CommitTimes] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        return bool(self.audit.get("equal"))

    @property
    def rows_visible(self) -> int:
        return int(self.audit.get("topic_rows", 0))

    @property
    def duplicated(self) -> int:
        """Duplicated and unexpected rows."""
        return int(self.audit.get("duplicated", 0)) + int(self.audit.get("unexpected", 0))

    @property
    def stream_seconds(self) -> float:
        return max(0.0, self.done_at_s - self.query_at_s)

    @property
    def rows_per_second(self) -> float:
        return self.rows_in / self.stream_seconds if self.stream_seconds else 0.0

    @property
    def batch_rows_per_second(self) -> float:
        """The rate of the median batch, which no kill has interrupted."""
        rates = [batch.rows * 1000 / batch.total_ms for batch in self.batches if batch.total_ms]
        return percentile(rates, 50)

    @property
    def batch_count(self) -> int:
        """The number of batches, including those whose driver was killed before it reported them."""
        return len({batch.batch for batch in self.batches} | {commit.batch for commit in self.commits})

    def commit_ms(self, percent: float) -> float:
        return percentile([commit.total_ms for commit in self.commits], percent)

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "rows_in": self.rows_in,
            "rows_visible": self.rows_visible,
            "lost": self.audit.get("lost"),
            "duplicated": self.duplicated,
            "out_of_order": self.audit.get("out_of_order"),
            "cluster": self.cluster,
            "seconds": round(self.seconds, 3),
            "stream_seconds": round(self.stream_seconds, 3),
            "rows_per_second": round(self.rows_per_second, 1),
            "batch_rows_per_second": round(self.batch_rows_per_second, 1),
            "batches": self.batch_count,
            "commit_ms": {"p50": round(self.commit_ms(50), 2), "p95": round(self.commit_ms(95), 2)},
            "kills": [_rounded(asdict(kill)) for kill in self.kills],
            "versions": self.versions,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile, or 0 if there are no values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def _rounded(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
