"""The progress of a source: offsets, lag and newest timestamps, carried by Spark's query progress.

    StreamReader.reportLatestOffset → with_figures → `latestOffset` of the source in Spark's progress → SourceProgress

Spark takes `description` and `metrics` of a source from its Java class, which for every Python source is the same. Of
what it shows, Python decides only the three offsets. `latestOffset` is for people and programs that watch a query:
nothing reads it back, so it carries the figures, under keys that no topic can have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace.spark.planning import Offsets, Position, offset_count
from headrace.types import TopicPartition

SOURCE_KEY = "@source"
LAG_KEY = "@lag"
NEWEST_KEY = "@newest"
NAME_CHARACTERS_MAX = 100


class TopicProgress(NamedTuple):
    """A topic of a source."""

    topic: str
    partitions: int
    lag: int | None
    newest_ms: int | None
    """The newest timestamp of a record, in milliseconds since 1970; None if unknown."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """A source at the end of a micro-batch."""

    name: str
    ends: Offsets | None = None
    """Where the micro-batch ended; None if the source has no offsets by topic and partition."""
    lags: Mapping[TopicPartition, int] | None = None
    """Offsets between the end of the micro-batch and the end of the partition when it was planned."""
    newest_ms: Mapping[str, int] = field(default_factory=dict)
    offset_count: int | None = None
    """Offsets in this micro-batch."""

    @classmethod
    def of_json(cls, source: Mapping[str, Any]) -> SourceProgress:
        """Read a source of Spark's query progress: one of headrace, of Spark's Kafka connector, or any other."""
        start, end = _position(source.get("startOffset")), _position(source.get("endOffset"))
        latest_json = _object(source.get("latestOffset"))
        latest = _position(latest_json)
        if end is None:
            return cls(_name(source, latest_json))
        begin = end.begin if start is None else start.until(end).offsets
        return cls(
            _name(source, latest_json),
            end.offsets,
            None if latest is None else lags(end.offsets, latest.offsets),
            {} if latest_json is None else dict(_newest(latest_json.get(NEWEST_KEY))),
            None if begin is None else offset_count(begin, end.offsets),
        )

    @property
    def lag(self) -> int | None:
        return None if self.lags is None else sum(self.lags.values())

    def topics(self) -> list[TopicProgress]:
        """The topic with the greatest lag first."""
        partitions = sorted({*(self.ends or ()), *(self.lags or ())})
        names = dict.fromkeys(tp.topic for tp in partitions)
        topics = [
            TopicProgress(
                name,
                sum(tp.topic == name for tp in partitions),
                None if self.lags is None else sum(lag for tp, lag in self.lags.items() if tp.topic == name),
                self.newest_ms.get(name),
            )
            for name in names
        ]
        return sorted(topics, key=lambda topic: -(topic.lag or 0))


def lags(ends: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return how many offsets each partition has after the end of a micro-batch."""
    return {tp: max(0, offset - ends.get(tp, offset)) for tp, offset in latest.items()}


def with_figures(latest: Position, name: str, ends: Mapping[TopicPartition, int], newest_ms: Mapping[str, int]) -> Any:
    """Return the latest offsets as JSON, with the name of the source, lag and newest timestamp by topic."""
    lag: dict[str, int] = {}
    for tp, count in sorted(lags(ends, latest.offsets).items()):
        lag[tp.topic] = lag.get(tp.topic, 0) + count
    newest = {topic: text for topic, ms in sorted(newest_ms.items()) if (text := _iso(ms)) is not None}
    return {**latest.to_json(), SOURCE_KEY: name, LAG_KEY: lag, **({NEWEST_KEY: newest} if newest else {})}


def _iso(ms: int) -> str | None:
    """Return a timestamp as text; None if it is not in the years 1 to 9999, such as one in microseconds."""
    try:
        time = datetime.fromtimestamp(ms / 1000, UTC)
    except (OSError, OverflowError, ValueError):
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _newest(texts: Any) -> Iterator[tuple[str, int]]:
    for topic, text in texts.items() if isinstance(texts, Mapping) else ():
        try:
            yield topic, round(datetime.fromisoformat(text).timestamp() * 1000)
        except (OSError, OverflowError, TypeError, ValueError):
            continue  # of another version of headrace


def _name(source: Mapping[str, Any], latest: Mapping[str, Any] | None) -> str:
    name = (latest or {}).get(SOURCE_KEY) or source.get("description") or "unknown source"
    return str(name)[:NAME_CHARACTERS_MAX]


def _object(offset: Any) -> Mapping[str, Any] | None:
    """Return an offset, which Spark passes as JSON or as its text, as an object; None if it is not one."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return None
    return offset if isinstance(offset, Mapping) else None


def _position(offset: Any) -> Position | None:
    """Parse an offset of the form `{"topic": {"0": 5}}`; None for other sources."""
    fields = _object(offset)
    if fields is None:
        return None
    try:
        position = Position.of_json(fields)
    except (AttributeError, TypeError, ValueError):
        return None
    return position if all(isinstance(number, int) for number in position.offsets.values()) else None
