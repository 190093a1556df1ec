"""Offsets and ranges of offsets: arithmetic only, without a broker.

begin, end → ranges → split → one task each
begin, latest, a limit → limited → end of a micro-batch
offsets ↔ JSON, as Spark keeps them in the checkpoint
lost offsets, recreated topics → error or warning (failOnDataLoss)
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.types import TopicPartition

Offsets = dict[TopicPartition, int]
TopicIds = Mapping[str, str]
"""Topic ids (KIP-516) by topic, as UUIDs in text form."""

INITIAL_KEY = "@initial"
BEGIN_KEY = "@begin"
TOPIC_IDS_KEY = "@topic-ids"
MISSING_KEY = "@missing"
"""Keys next to the offsets in a checkpoint; no topic can have such a name."""


class OffsetRange(NamedTuple):
    """Offsets of a partition from `start` up to, not including, `end`. Some may have no record."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None
    """Of the topic that the range was planned for; None if brokers are too old for topic ids."""

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.start} to {self.end}"


def split(ranges: Iterable[OffsetRange], parts_min: int | None, size_max: int | None) -> list[OffsetRange]:
    """Return ranges of at most `size_max` offsets, and at least `parts_min` ranges if there are enough offsets."""
    pieces = [piece for whole in ranges if whole.size > 0 for piece in _pieces(whole, _count_for(whole, size_max))]
    if parts_min is None or len(pieces) >= parts_min:
        return pieces
    # Ranges that are too short for two parts stay whole; the other parts go to the long ones, in proportion.
    total = sum(piece.size for piece in pieces)
    long = [piece for piece in pieces if _share(piece, total, parts_min) > 1]
    long_total, long_parts = sum(piece.size for piece in long), max(1, parts_min - (len(pieces) - len(long)))
    return [
        part
        for piece in pieces
        for part in _pieces(piece, _share(piece, long_total, long_parts) if piece in long else 1)
    ]


def _count_for(whole: OffsetRange, size_max: int | None) -> int:
    return 1 if size_max is None else math.ceil(whole.size / size_max)


def _share(piece: OffsetRange, total: int, parts: int) -> int:
    return min(piece.size, max(1, round(piece.size / total * parts)))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    """Return `count` ranges whose sizes differ by at most one."""
    cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in itertools.pairwise(cuts)]


def limited(begin: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], offsets_max: int) -> Offsets:
    """Return ends for about `offsets_max` offsets, in proportion to what each partition has, and at least one each."""
    sizes = {tp: max(0, end - begin.get(tp, end)) for tp, end in latest.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(latest)
    shares = {tp: offsets_max * size / total for tp, size in sizes.items()}
    # A partition whose end is before its beginning is unchanged: it is reported as data loss later.
    return {
        tp: begin[tp] + min(size, math.ceil(share) if (share := shares[tp]) < 1 else math.floor(share))
        if (size := sizes[tp])
        else latest[tp]
        for tp in latest
    }


def offset_count(begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, offset - begin.get(tp, offset)) for tp, offset in end.items())


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a stream, as in Spark's checkpoint: `{"topic": {"0": 5}}`.

    Spark stores the end of the first micro-batch but not its beginning, and calls `initialOffset` again after a crash,
    when `latest` has moved. So that end also has the beginning it was planned with (`begin`), which replaces the one
    that `initialOffset` returns (`initial`).

    Topic ids (`"@topic-ids": {"topic": "uuid"}`) tell a recreated topic from the old one. Checkpoints of older versions
    and of brokers before 2.8 have none.
    """

    offsets: Offsets
    initial: bool = False
    begin: Offsets | None = None
    topic_ids: TopicIds = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Topics that did not exist at `initialOffset`; a new query does not start without them."""

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = _nested(self.offsets)
        if self.initial:
            fields[INITIAL_KEY] = True
        if self.begin is not None:
            fields[BEGIN_KEY] = _nested(self.begin)
        topics = {tp.topic for tp in self.offsets}
        if ids := {topic: self.topic_ids[topic] for topic in sorted(topics & self.topic_ids.keys())}:
            fields[TOPIC_IDS_KEY] = ids
        if self.missing:
            fields[MISSING_KEY] = list(self.missing)
        return fields

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Position:
        topics = {topic: numbers for topic, numbers in fields.items() if not topic.startswith("@")}
        begin = fields.get(BEGIN_KEY)
        return cls(
            _flat(topics),
            bool(fields.get(INITIAL_KEY)),
            None if begin is None else _flat(begin),
            fields.get(TOPIC_IDS_KEY, {}),
            tuple(fields.get(MISSING_KEY, ())),
        )

    def until(self, end: Position) -> Position:
        """Return the beginning of a micro-batch from here to `end`."""
        return Position(end.begin, topic_ids=end.topic_ids) if self.initial and end.begin is not None else self

    def without_topics(self, topics: Collection[str]) -> Position:
        """Return this position without these topics."""
        return replace(self, offsets={tp: offset for tp, offset in self.offsets.items() if tp.topic not in topics})


class Recreated(NamedTuple):
    """A topic that was deleted and created again under the same name."""

    topic: str
    old_id: str
    new_id: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} was recreated: its id was {self.old_id} and is now {self.new_id}"


def recreated(known: TopicIds, current: TopicIds) -> list[Recreated]:
    """Return the topics whose id has changed; topics without one of the two ids are left out."""
    both = sorted(known.keys() & current.keys())
    return [Recreated(topic, known[topic], current[topic]) for topic in both if known[topic] != current[topic]]


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition, sorted: Spark compares the JSON texts."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(number)] = offset
    return nested


def _flat(topics: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in topics.items()
        for number, offset in numbers.items()
    }


log = logging.getLogger("headrace")


class DataLossError(HeadraceError):
    """Records were deleted before they were read, or a topic was recreated."""


def report_data_loss(what: str, *, fail: bool, instead: str = "continue with the remaining records") -> None:
    """Raise, or log a warning that the query does something else `instead`. `what` names topic and offsets."""
    if fail:
        raise DataLossError(f"{what}. Rows may be lost: to {instead}, set failOnDataLoss to false")
    log.warning("%s; failOnDataLoss is false, so the query will %s", what, instead)


def report_recreated(topics: Iterable[Recreated], *, fail: bool) -> None:
    """Raise, or log a warning that the new topic is read from its beginning."""
    for topic in topics:
        what = f"{topic}. The offsets of the checkpoint belong to the topic that was deleted"
        report_data_loss(what, fail=fail, instead="read the new topic from its earliest offset")
