"""The options of a topic that its logs use, parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.topic_options import TOPIC_OPTIONS, broker_defaults
from headrace.config import LONG_MAX, Config
from headrace.errors import ConfigError
from headrace.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

_CODECS = {"uncompressed": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The options of a topic, by their names with `_` instead of `.`."""

    compact: bool
    delete: bool
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    log_append_time: bool
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    roll_ms: int  # segment.ms, in a compacted topic at most max.compaction.lag.ms: only closed segments are compacted
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    unclean_leader_election_enable: bool
    codec: int | None
    """The codec of the records; None: the producer's."""
    codec_level: int | None

    @property
    def is_flushed_early(self) -> bool:
        """Whether flush.messages or flush.ms is set."""
        return self.flush_messages != LONG_MAX or self.flush_ms != LONG_MAX

    @classmethod
    def resolve(cls, overrides: Mapping[str, str], broker: Mapping[str, object] = {}) -> LogConfig:
        """Return the options set on a topic, and the broker's defaults for the others. Raise ConfigError."""
        config = TOPIC_OPTIONS.resolve(("file", broker_defaults(broker)), ("argument", overrides))
        for name in sorted(config.unused):
            raise ConfigError(f"unknown topic option {name!r}{TOPIC_OPTIONS.suggestion(name)}")
        return cls.of(config)

    @classmethod
    def of(cls, config: Config) -> LogConfig:
        """Return the configuration of resolved TOPIC_OPTIONS."""
        policy = config.of(tuple, "cleanup.policy")
        segment_ms, max_compaction_lag_ms = config.of(int, "segment.ms"), config.of(int, "max.compaction.lag.ms")
        codec_name = config.of(str, "compression.type")
        level = config.of(int, f"compression.{codec_name}.level") if codec_name in ("gzip", "lz4", "zstd") else -1
        return cls(
            compact="compact" in policy,
            delete="delete" in policy,
            delete_retention_ms=config.of(int, "delete.retention.ms"),
            file_delete_delay_ms=config.of(int, "file.delete.delay.ms"),
            flush_messages=config.of(int, "flush.messages"),
            flush_ms=config.of(int, "flush.ms"),
            index_interval_bytes=config.of(int, "index.interval.bytes"),
            max_compaction_lag_ms=max_compaction_lag_ms,
            max_message_bytes=config.of(int, "max.message.bytes"),
            log_append_time=config.of(str, "message.timestamp.type") == "LogAppendTime",
            message_timestamp_after_max_ms=config.of(int, "message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms=config.of(int, "message.timestamp.before.max.ms"),
            min_cleanable_dirty_ratio=config.of(float, "min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=config.of(int, "min.compaction.lag.ms"),
            min_insync_replicas=config.of(int, "min.insync.replicas"),
            retention_bytes=config.of(int, "retention.bytes"),
            retention_ms=config.of(int, "retention.ms"),
            roll_ms=min(segment_ms, max_compaction_lag_ms) if "compact" in policy else segment_ms,
            segment_bytes=config.optional(int, "internal.segment.bytes") or config.of(int, "segment.bytes"),
            segment_index_bytes=config.of(int, "segment.index.bytes"),
            segment_jitter_ms=config.of(int, "segment.jitter.ms"),
            segment_ms=segment_ms,
            unclean_leader_election_enable=config.of(bool, "unclean.leader.election.enable"),
            codec=_CODECS.get(codec_name),
            codec_level=None if level == -1 else level,
        )
