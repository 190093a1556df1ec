"""What resetting the offsets of a group comes to: the partitions, and the new offset of each.

--to, --shift → Target;  group and --topic → partitions → Target.offsets → Changes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.cli.group import members_text, no_such_group
from headrace.cli.group_lag import look_up
from headrace.cli.output import CommandError, NotFoundError, WrongUsageError
from headrace.cli.partitions import bounds, named_partitions
from headrace.cli.times import parse_time_ms
from headrace.client.admin import AdminClient, TopicPartition

_IDLE = ("Empty", "Dead")


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

    @classmethod
    def parse(cls, to: str | None, shift: int | None) -> Self:
        if (to is None) == (shift is None):
            raise WrongUsageError("either --to or --shift is needed, to know where the offsets go")
        if to is None:
            return cls(shift=shift)
        if to in ("earliest", "latest"):
            return cls(end=to)
        if to.startswith("@"):
            return cls(time_ms=parse_time_ms(to[1:], "--to"))
        if not to.isdecimal():
            raise WrongUsageError(f"--to takes earliest, latest, an offset or @TIME, not {to!r}")
        return cls(offset=int(to))

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
                    raise CommandError(f"--shift: nothing is committed for {tp} yet; use --to for it")
                wanted = committed[tp] + self.shift
            elif self.offset is not None:
                wanted = self.offset
            else:
                wanted = start if self.end == "earliest" else end
            found[tp] = min(max(wanted, start), end)
        return found


def plan(admin: AdminClient, name: str, target: Target, topics: tuple[str, ...]) -> list[Change]:
    """What is to be set. Raises if the group has members, or if there is nothing to set."""
    facts = look_up(admin, name)
    if facts is None and not topics:
        raise no_such_group(name)
    if facts is not None and facts.state not in _IDLE:
        raise CommandError(
            f"group {name!r} has {members_text(facts)}, which would go on from their own offsets and commit those: "
            "stop them first"
        )
    committed = {one.at: one.committed for one in (facts.partitions if facts else ()) if one.committed is not None}
    wanted = named_partitions(admin, topics) if topics else sorted(committed)
    within = bounds(admin, wanted)
    if not within:
        raise NotFoundError(f"group {name!r} has committed nothing for a topic that is there; --topic names others")
    after = target.offsets(admin, within, committed)
    return [Change(tp, committed.get(tp), after[tp]) for tp in sorted(after)]
