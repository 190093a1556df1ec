"""Topic options: Kafka's names and defaults, the broker options behind them, invalid values."""

from __future__ import annotations

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.log import LogConfig
from headrace.broker.topic_options import BROKER_SYNONYMS, TOPIC_OPTIONS, broker_defaults
from headrace.config import LONG_MAX
from headrace.errors import ConfigError

KAFKA_4_3 = {
    "cleanup.policy": ("delete",),
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "delete.retention.ms": 86_400_000,
    "file.delete.delay.ms": 60_000,
    "flush.messages": LONG_MAX,
    "flush.ms": LONG_MAX,
    "follower.replication.throttled.replicas": (),
    "index.interval.bytes": 4096,
    "internal.segment.bytes": None,
    "leader.replication.throttled.replicas": (),
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": 1_048_588,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "min.insync.replicas": 1,
    "preallocate": False,
    "remote.log.copy.disable": False,
    "remote.log.delete.on.disable": False,
    "remote.storage.enable": False,
    "retention.bytes": -1,
    "retention.ms": 604_800_000,
    "segment.bytes": 1_073_741_824,
    "segment.index.bytes": 10_485_760,
    "segment.jitter.ms": 0,
    "segment.ms": 604_800_000,
    "unclean.leader.election.enable": False,
}


def test_every_option_exists_with_its_default():
    assert {name: option.default for name, option in TOPIC_OPTIONS.items()} == KAFKA_4_3
    assert all(option.doc for option in TOPIC_OPTIONS.values())


def test_every_synonym_is_an_option_of_the_broker():
    names = {name for synonyms in BROKER_SYNONYMS.values() for name, _ in synonyms}
    assert names <= set(BROKER_OPTIONS)
    assert set(BROKER_SYNONYMS) <= set(TOPIC_OPTIONS)


def test_defaults_of_the_broker_equal_those_of_the_topic():
    broker = {name: option.default for name, option in BROKER_OPTIONS.items()}
    assert LogConfig.resolve({}, broker) == LogConfig.resolve({})


def test_topic_options_override_broker_options_and_finer_units_coarser_ones():
    broker = {"log.retention.hours": "5", "log.retention.minutes": "3", "log.roll.hours": 1, "message.max.bytes": "9"}
    assert broker_defaults(broker) == {"retention.ms": 180_000, "segment.ms": 3_600_000, "max.message.bytes": "9"}
    config = LogConfig.resolve({"retention.ms": "7"}, broker)
    assert (config.retention_ms, config.segment_ms, config.max_message_bytes) == (7, 3_600_000, 9)
    assert LogConfig.resolve({}, {"log.retention.hours": "-1"}).retention_ms == -1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "shrink"),
        ("cleanup.policy", "compact,compact"),
        ("segment.bytes", "1000"),
        ("retention.ms", "-2"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("message.timestamp.type", "Whenever"),
        ("compression.type", "brotli"),
        ("min.insync.replicas", "0"),
        ("max.message.bytes", "many"),
        ("leader.replication.throttled.replicas", "1:x"),
        ("retention.mss", "1"),
    ],
)
def test_an_invalid_value_is_refused_with_the_option_name(name, value):
    with pytest.raises(ConfigError, match=name):
        LogConfig.resolve({name: value})


def test_topic_options_are_parsed_to_a_log_config():
    config = LogConfig.resolve({"cleanup.policy": "compact,delete", "compression.type": "gzip", "segment.ms": "500"})
    assert (config.compact, config.delete, config.codec, config.codec_level, config.roll_ms) == (
        True,
        True,
        1,
        None,
        500,
    )
    assert LogConfig.resolve({"compression.type": "uncompressed"}).codec == 0
    assert LogConfig.resolve({"compression.type": "producer"}).codec is None
    assert LogConfig.resolve({"cleanup.policy": ""}).delete is False
    lagging = LogConfig.resolve({"cleanup.policy": "compact", "max.compaction.lag.ms": "100"})
    assert lagging.roll_ms == 100
    throttled = LogConfig.resolve({"leader.replication.throttled.replicas": "0:1,3:2"})
    assert throttled == LogConfig.resolve({"follower.replication.throttled.replicas": "*"})
