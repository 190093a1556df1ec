"""What the coordinator of groups takes from the broker's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import Config

_MS_IN_A_MINUTE = 60_000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and times."""

    session_timeout_min_ms: int
    session_timeout_max_ms: int
    initial_rebalance_delay_ms: int
    members_max: int
    offset_metadata_max: int
    offsets_retention_ms: int
    expiry_interval_ms: int

    @classmethod
    def of(cls, config: Config) -> GroupSettings:
        return cls(
            session_timeout_min_ms=config.of(int, "group.min.session.timeout.ms"),
            session_timeout_max_ms=config.of(int, "group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=config.of(int, "group.initial.rebalance.delay.ms"),
            members_max=config.of(int, "group.max.size"),
            offset_metadata_max=config.of(int, "offset.metadata.max.bytes"),
            offsets_retention_ms=config.of(int, "offsets.retention.minutes") * _MS_IN_A_MINUTE,
            expiry_interval_ms=config.of(int, "offsets.retention.check.interval.ms"),
        )
