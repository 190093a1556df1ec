"""The options of a share consumer: those of the consumer, without what the broker decides in share groups."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.config import Config, OneOf
from headrace.consumer.settings import resolve
from headrace.errors import ConfigError

ACKNOWLEDGEMENT_MODE = "share.acknowledgement.mode"
ACQUIRE_MODE = "share.acquire.mode"
_MODES = {
    ACKNOWLEDGEMENT_MODE: OneOf("implicit", "explicit", ignore_case=True),
    ACQUIRE_MODE: OneOf("batch_optimized", "record_limit", ignore_case=True),
}
_DEFAULTS = {ACKNOWLEDGEMENT_MODE: "implicit", ACQUIRE_MODE: "batch_optimized"}
_OF_THE_GROUP = {
    "auto.offset.reset": "share.auto.offset.reset",
    "isolation.level": "share.isolation.level",
    "session.timeout.ms": "share.session.timeout.ms",
    "heartbeat.interval.ms": "share.heartbeat.interval.ms",
}
"""Options of consumers, and the option of a share group instead."""
_NOT_SUPPORTED = (
    "enable.auto.commit",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "interceptor.classes",
    "metric.reporters",
    "partition.assignment.strategy",
    "view.token",
    "view.url",
)


def resolve_share(config: Mapping[str, object] | str | os.PathLike[str] | None = None, **arguments: object) -> Config:
    """Merge and check options."""
    resolved = resolve(config, is_share=True, **arguments)
    for name, other in _OF_THE_GROUP.items():
        if resolved.given(name):
            raise ConfigError(f"{name} is not an option of share consumers: set {other} on the group instead")
    for name in _NOT_SUPPORTED:
        if resolved.given(name):
            raise ConfigError(f"{name} is not an option of share consumers: leave it unset")
    if resolved.optional(str, "group.id") is None:
        raise ConfigError("group.id is not set: a share consumer needs it")
    changes: dict[str, object] = {}
    for name, check in _MODES.items():
        value = resolved[name] or _DEFAULTS[name]
        try:
            changes[name] = check(value)
        except ValueError as error:
            raise ConfigError(f"invalid {name} {value!r}: it may be {error}") from None
    return resolved.derived(changes)
