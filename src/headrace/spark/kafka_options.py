"""Which `kafka.*` options the source and the sink use, know, or refuse.

    used         options of the producer (sink) or of the consumer (source)
    no effect    known to a client of Kafka, but nothing here uses it: one warning for a query
    unknown      refused, with the most similar name

An unknown name may belong to a plug-in: it is accepted if a plug-in reads it when it is configured. A plug-in of the
user may read it later: with one, only unknown names that are similar to a known one are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

from headrace.config import Config, Options
from headrace.errors import ConfigError
from headrace.producer.options import PRODUCER_OPTIONS

PREFIX = "kafka."
SIMILARITY_MIN = 0.75
OPTION_SETS_MAX = 64
"""Sets of options for which a process remembers what their plug-ins read."""
_PROVIDERS_PREFIX = "config.providers."
_NO_PROVIDERS = "values are used as they are"
_NO_GROUP = "the source joins no group: Spark assigns the partitions"
_FIXED = "the client sets it"
_METRICS = "Spark has the metrics of a query"
_SHARE_GROUPS = "the source does not read as a share group"

CONSUMER_WITHOUT_EFFECT = {
    "connections.max.idle.ms": _FIXED,
    "reconnect.backoff.ms": _FIXED,
    "reconnect.backoff.max.ms": _FIXED,
    "send.buffer.bytes": _FIXED,
    "socket.connection.setup.timeout.ms": _FIXED,
    "socket.connection.setup.timeout.max.ms": _FIXED,
    "metadata.recovery.strategy": _FIXED,
    "metadata.recovery.rebootstrap.trigger.ms": _FIXED,
    "allow.auto.create.topics": "reading never creates a topic",
    "auto.commit.interval.ms": _NO_GROUP,
    "check.crcs": "checksums are always verified",
    "client.rack": "the source reads from leaders only",
    "config.providers": _NO_PROVIDERS,
    "exclude.internal.topics": "internal topics are read if they are named; patterns do not match them",
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "internal.throw.on.fetch.stable.offset.unsupported": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "max.poll.records": "rows are read as Arrow batches",
    "partition.assignment.strategy": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "share.acknowledgement.mode": _SHARE_GROUPS,
    "share.acquire.mode": _SHARE_GROUPS,
    "enable.metrics.push": "the source pushes no metrics",
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
}
"""Options of Kafka's consumer that the source accepts, with the reason why they have no effect."""

CONSUMER_ONLY = frozenset(
    {
        *CONSUMER_WITHOUT_EFFECT,
        "auto.offset.reset",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "value.deserializer",
    }
) - frozenset(PRODUCER_OPTIONS)
_ADMIN_ONLY = frozenset({"bootstrap.controllers"})


def without_effect(unused: Collection[str], used: Options) -> dict[str, str]:
    """Return the names that Kafka's clients have, but not the one that is used here, with why they have no effect."""
    here = "the sink writes" if used is PRODUCER_OPTIONS else "the source reads"
    others = dict.fromkeys(_ADMIN_ONLY, f"it is an option of the admin client, and {here}")
    if used is PRODUCER_OPTIONS:
        others |= dict.fromkeys(CONSUMER_ONLY, f"it is an option of consumers, and {here}")
    else:
        others |= dict.fromkeys(PRODUCER_OPTIONS, f"it is an option of producers, and {here}")
    others |= {name: _NO_PROVIDERS for name in unused if name.startswith(_PROVIDERS_PREFIX)}
    return {name: others[name] for name in sorted(unused) if name in others}


def unknown_names(given: Iterable[str], used: Options) -> set[str]:
    """Return the names that no client of Kafka has. Unlike keywords of a `Producer`, they have dots."""
    names = {name for name in given if name not in used}
    return names - without_effect(names, used).keys() if names else names


def refuse_unknown(unknown: Iterable[str], used: Options, *, similar_only: bool = False) -> None:
    """Raise for the first of these names; with `similar_only`, for the first that is similar to a known one."""
    known = [*used, *(PRODUCER_OPTIONS.keys() | CONSUMER_ONLY | _ADMIN_ONLY) - used.keys()]
    for name in sorted(unknown):
        near = difflib.get_close_matches(name.replace("_", "."), known, n=1, cutoff=SIMILARITY_MIN)
        if near:
            raise ConfigError(f"there is no option {PREFIX + name!r}; did you mean {PREFIX + near[0]!r}?")
        if not similar_only:
            raise ConfigError(
                f"there is no option {PREFIX + name!r}: Kafka's clients have none of this name, and no plug-in of the "
                "query reads it; leave it out"
            )


def not_read(unknown: Iterable[str]) -> dict[str, str]:
    """Return unknown names that are accepted although no plug-in has read them, with why they have no effect."""
    return dict.fromkeys(unknown, "Kafka's clients have none of this name, and no plug-in read it when configured")


def no_effect_text(given: Config, used: Options, others: Mapping[str, str]) -> str | None:
    """Return one warning for all options that are set and have no effect; None without any."""
    reasons = {
        name: option.no_effect
        for name, option in used.items()
        if option.no_effect and given.given(name) and given[name] is not False  # False is off, as requested
    } | dict(others)
    if not reasons:
        return None
    listed = "; ".join(f"{PREFIX}{name}: {reason}" for name, reason in sorted(reasons.items()))
    return f"{len(reasons)} option{'s have' if len(reasons) > 1 else ' has'} no effect: {listed}"
