"""Groups as rows of tables: words, marks and figures."""

from __future__ import annotations

from typing import NamedTuple

from headrace.client.facts.groups import GroupFacts, Member, PartitionLag
from headrace.ui import formatting
from headrace.ui.addresses import group_address, topic_address
from headrace.ui.group_watch import STEADY_PER_SECOND, LagHistory
from headrace.ui.tables import Row

_STATES = {
    "Stable": ("●", "good"),
    "Empty": ("○", ""),
    "Dead": ("✕", ""),
    "PreparingRebalance": ("↻", "warn"),
    "CompletingRebalance": ("↻", "warn"),
    "Assigning": ("↻", "warn"),
    "Reconciling": ("↻", "warn"),
}


def state_cells(state: str) -> Row:
    """A state with its mark: ● has members, ○ has none, ↻ is about to share out partitions."""
    mark, tone = _STATES.get(state, ("?", ""))
    return {"state": state or formatting.UNKNOWN, "state_mark": mark, "state_tone": tone}


class Trend(NamedTuple):
    """Which way the lag goes, and how fast."""

    word: str
    mark: str = ""
    tone: str = ""
    speed: str = ""


def trend_of(history: LagHistory) -> Trend:
    per_s = history.records_per_s()
    if per_s is None:
        return Trend(formatting.UNKNOWN)
    if abs(per_s) < STEADY_PER_SECOND:
        return Trend("steady", "→")
    speed = f"by {formatting.rate(abs(per_s))}"
    return Trend("grows", "↗", "warn", speed) if per_s > 0 else Trend("shrinks", "↘", "good", speed)


def lag_text(facts: GroupFacts) -> str:
    is_known = any(one.committed is not None for one in facts.partitions)
    return formatting.records(facts.lag) if is_known else "nothing committed"


def late_text(lag_ms: int | None) -> str:
    """How late a reader is; one that has read everything is not."""
    return formatting.duration(None if lag_ms is None else lag_ms / 1000)


def group_row(name: str, state: str, kind: str, facts: GroupFacts | None, history: LagHistory) -> Row:
    """`facts` come a moment after the list."""
    members = None if facts is None or facts.members is None else len(facts.members)
    trend = trend_of(history)
    return {
        "group": name,
        "group_href": group_address(name),
        **state_cells(state if facts is None else facts.state),
        "type": kind or "classic",
        "members": formatting.count(members),
        "lag": formatting.UNKNOWN if facts is None else lag_text(facts),
        "late": late_text(None if facts is None else facts.lag_ms),
        "trend": f"{trend.word} {trend.speed}".rstrip(),
        "trend_mark": trend.mark,
        "trend_tone": trend.tone,
    }


def partition_row(one: PartitionLag) -> Row:
    return {
        "at": str(one.at),
        "topic": one.at.topic,
        "topic_href": topic_address(one.at.topic),
        "partition": str(one.at.partition),
        "committed": formatting.count(one.committed),
        "end": "gone, or no leader" if one.end is None else formatting.count(one.end),
        "lag": formatting.records(one.lag),
        "late": late_text(one.lag_ms),
        "client": formatting.UNKNOWN if one.member is None else one.member.client_id,
    }


def member_row(member: Member) -> Row:
    return {
        "member": member.member_id,
        "client": member.client_id,
        "host": member.host,
        "instance": member.instance_id or formatting.UNKNOWN,
        "count": formatting.count(len(member.partitions)),
        "partitions": shortened([str(tp) for tp in member.partitions]),
    }


def shortened(names: list[str], shown_max: int = 6) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - shown_max:,} more" if len(names) > shown_max else ""
    return ", ".join(names[:shown_max]) + more or formatting.UNKNOWN
