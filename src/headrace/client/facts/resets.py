"""What resetting the offsets of a group comes to: the partitions, and the new offset of each.

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
    """Where to: one of these."""

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
        """The new offset of each partition, none before its start or beyond its end."""
        times = {} if self.time_ms is None else admin.list_offsets(dict.fromkeys(within, self.time_ms))
        found: dict[TopicPartition, int] = {}
        for tp, (start, end) in within.items():
            if self.time_ms is not None:
                wanted = times[tp].offset if times[tp].offset >= 0 else end
            elif self.shift is not None:
                if tp not in committed:
                    raise IllegalStateError(
                        f"nothing is committed for {tp} yet, so it cannot be shifted: set it to an offset, a time, "
                        "earliest or latest"
                    )
                wanted = committed[tp] + self.shift
            elif self.offset is not None:
                wanted = self.offset
            else:
                wanted = start if self.end == "earliest" else end
            found[tp] = min(max(wanted, start), end)
        return found


def plan(
    admin: AdminClient, name: str, facts: GroupFacts | None, target: Target, chosen: Sequence[TopicPartition] | None
) -> list[Change]:
    """What is to be set for the chosen partitions, or None for all that the group has committed.

    Raises if the group has members, or if there is nothing to set. Without `facts` the group is yet to be made.
    """
    if facts is not None and facts.state not in IDLE:
        raise IllegalStateError(
            f"group {name!r} has {facts.members_text}, which would go on from their own offsets and commit those: "
            "stop them first"
        )
    committed = {one.at: one.committed for one in (facts.partitions if facts else ()) if one.committed is not None}
    within = bounds(admin, sorted(committed) if chosen is None else chosen)
    if not within:
        raise NotFoundError(
            f"group {name!r} has committed nothing for a topic that is there: say for which topics to set offsets"
        )
    after = target.offsets(admin, within, committed)
    return [Change(tp, committed.get(tp), after[tp]) for tp in sorted(after)]
