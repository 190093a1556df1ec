"""Planning a reset of a group's offsets: the partitions, and the new offset of each.

group, chosen partitions → Target.offsets → Changes → alter_group_offsets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.groups import IDLE, GroupFacts
from headrace.client.facts.partitions import bounds
from headrace.errors import IllegalStateError, NotFoundError


@dataclass(frozen=True, slots=True)
class Change:
    at: TopicPartition
    before: int | None
    after: int

    @property
    def moved(self) -> str:
        return "" if self.before is None else f"{self.after - self.before:+,}"

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """The new position: one of these."""

    end: str | None = None
    """earliest or latest"""
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None

    def offsets(
        self,
        admin: AdminClient,
        within: Mapping[TopicPartition, tuple[int, int]],
        committed: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the new offset of each partition, limited to its start and end."""
        times = {} if self.time_ms is None else admin.list_offsets(dict.fromkeys(within, self.time_ms))
        offsets: dict[TopicPartition, int] = {}
        for tp, (start, end) in within.items():
            if self.time_ms is not None:
                offset = times[tp].offset if times[tp].offset >= 0 else end
            elif self.shift is not None:
                if tp not in committed:
                    raise IllegalStateError(
                        f"cannot shift {tp}, which has no committed offset: set an offset, a time, earliest or latest"
                    )
                offset = committed[tp] + self.shift
            elif self.offset is not None:
                offset = self.offset
            else:
                offset = start if self.end == "earliest" else end
            offsets[tp] = min(max(offset, start), end)
        return offsets


def plan(
    admin: AdminClient, name: str, facts: GroupFacts | None, target: Target, chosen: Sequence[TopicPartition] | None
) -> list[Change]:
    """Return the changes for the chosen partitions, or with None for all with committed offsets.

    Raises if the group has members, or if there is nothing to change. `facts` is None for a new group.
    """
    if facts is not None and facts.state not in IDLE:
        raise IllegalStateError(
            f"group {name!r} has {facts.members_text}, which would overwrite the offsets: stop them first"
        )
    lags = facts.partitions if facts else ()
    committed = {lag.at: lag.committed for lag in lags if lag.committed is not None}
    within = bounds(admin, sorted(committed) if chosen is None else chosen)
    if not within:
        raise NotFoundError(
            f"group {name!r} has no committed offsets for existing topics: choose the topics to set offsets for"
        )
    after = target.offsets(admin, within, committed)
    return [Change(tp, committed.get(tp), after[tp]) for tp in sorted(after)]
