"""The options of the source, without a broker: every error names the option, its value and what is allowed."""

from __future__ import annotations

import logging
import pickle
from typing import ClassVar

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types

from headrace.client.offsets import EARLIEST, LATEST
from headrace.errors import ConfigError
from headrace.spark import consumer_options
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.offset_specs import OffsetSpec, Subscription
from headrace.spark.source_options import Mode, check_columns, parse, schema, schema_of, warn_of_no_effect
from headrace.types import TopicPartition

LEAST = {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"}
ALL_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


def parsed(mode=Mode.STREAM, **options):
    return parse({**LEAST, **options}, mode)


def without(name):
    return {key: value for key, value in LEAST.items() if key != name}


def test_other_options_have_the_defaults_of_sparks_own_source():
    stream, batch = parse(LEAST, Mode.STREAM), parse(LEAST, Mode.BATCH)
    assert stream.subscription == Subscription(topics=("t",))
    assert stream.starting == OffsetSpec("startingOffsets", LATEST)
    assert batch.starting == OffsetSpec("startingOffsets", EARLIEST)
    assert batch.ending == OffsetSpec("endingOffsets", LATEST)
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert (stream.poll_timeout_ms, stream.fetch_retries, stream.fetch_retry_interval_ms) == (120_000, 3, 10)
    assert stream.without_match == "error"
    limits = (stream.min_partitions, stream.max_records_per_partition, stream.max_offsets_per_trigger)
    assert limits == (None, None, None)


def test_rows_of_open_and_aborted_transactions_are_left_out_by_default():
    assert consumer_options.resolve({"bootstrap.servers": "h:1"})["isolation.level"] == "read_committed"


def test_names_are_taken_in_any_case_as_spark_gives_them():
    options = {"KAFKA.bootstrap.servers": "h:1", "subscribePATTERN": "a.*", "failondataloss": "FALSE"}
    parsed = parse(options, Mode.STREAM)
    assert parsed.subscription.pattern == "a.*"
    assert not parsed.fail_on_data_loss
    assert parsed.kafka == {"bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("subscribe", "a", Subscription(topics=("a",))),
        ("subscribe", " b , a,b,", Subscription(topics=("b", "a"))),
        ("subscribePattern", "orders-[0-9]+", Subscription(pattern="orders-[0-9]+")),
        (
            "assign",
            '{"a":[0,2],"b":[1]}',
            Subscription(partitions=(TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))),
        ),
    ],
)
def test_there_are_three_ways_to_say_what_is_read(option, value, expected):
    assert parse({**without("subscribe"), option: value}, Mode.STREAM).subscription == expected


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("startingOffsets", "earliest", OffsetSpec("startingOffsets", EARLIEST)),
        ("startingOffsets", " Latest ", OffsetSpec("startingOffsets", LATEST)),
        (
            "startingOffsets",
            '{"t":{"0":5,"1":-1,"2":-2}}',
            OffsetSpec(
                "startingOffsets",
                by_partition={TopicPartition("t", 0): 5, TopicPartition("t", 1): -1, TopicPartition("t", 2): -2},
            ),
        ),
        ("startingTimestamp", "1700000000000", OffsetSpec("startingTimestamp", 1_700_000_000_000, is_time=True)),
        (
            "startingOffsetsByTimestamp",
            '{"t":{"0":1700000000000}}',
            OffsetSpec(
                "startingOffsetsByTimestamp", by_partition={TopicPartition("t", 0): 1_700_000_000_000}, is_time=True
            ),
        ),
    ],
)
def test_a_start_can_be_a_word_offsets_or_times(option, value, expected):
    assert parsed(**{option: value}).starting == expected


def test_of_several_starts_the_most_general_wins():
    all_three = {
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"t":{"0":7}}',
        "startingTimestamp": "9",
    }
    assert parsed(**all_three).starting.option == "startingTimestamp"
    del all_three["startingTimestamp"]
    assert parsed(**all_three).starting.option == "startingOffsetsByTimestamp"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (without("subscribe"), ["no topic to read from", "assign, subscribe, subscribePattern"]),
        ({**LEAST, "assign": '{"t":[0]}'}, ["assign and subscribe are given", "exactly one"]),
        (without("kafka.bootstrap.servers"), ["kafka.bootstrap.servers is not set", "host:port"]),
        ({**LEAST, "subscribe": " , "}, ["subscribe is", "commas"]),
        ({**LEAST, "subscribe": "a b"}, ["subscribe is 'a b'", "letters, digits"]),
        ({**without("subscribe"), "subscribePattern": "a("}, ["subscribePattern is 'a('", "regular expression"]),
        ({**without("subscribe"), "assign": "t"}, ["assign is 't'", '{"topic":[0,1]}']),
        ({**without("subscribe"), "assign": '{"t":0}'}, ["assign is", '{"topic":[0,1]}']),
        ({**without("subscribe"), "assign": '{"t":[-1]}'}, ["assign is", '{"topic":[0,1]}']),
        ({**without("subscribe"), "assign": "{}"}, ["assign is '{}'", '{"topic":[0,1]}']),
        ({**LEAST, "startingOffsets": "first"}, ["startingOffsets is 'first'", "earliest, latest, or JSON", "-2"]),
        ({**LEAST, "startingOffsets": '{"t":{"0":-3}}'}, ["startingOffsets is", "'0': -3", "-2: earliest"]),
        ({**LEAST, "startingOffsets": '{"t":{"zero":3}}'}, ["startingOffsets is", "'zero': 3"]),
        ({**LEAST, "startingOffsets": '{"t":{"0":true}}'}, ["startingOffsets is", "True"]),
        ({**LEAST, "startingOffsets": '{"t":5}'}, ["startingOffsets is", "offset for each partition"]),
        ({**LEAST, "startingOffsets": "{}"}, ["startingOffsets is '{}'"]),
        ({**LEAST, "startingTimestamp": "today"}, ["startingTimestamp is 'today'", "whole number"]),
        ({**LEAST, "startingTimestamp": "-5"}, ["startingTimestamp is '-5'", "0 or more"]),
        ({**LEAST, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, ["startingOffsetsByTimestamp is", "milliseconds"]),
        (
            {**LEAST, "startingOffsetsByTimestampStrategy": "earliest"},
            ["startingOffsetsByTimestampStrategy is 'earliest'", "error, latest"],
        ),
        ({**LEAST, "failOnDataLoss": "yes"}, ["failOnDataLoss is 'yes'", "true or false"]),
        ({**LEAST, "includeHeaders": "1"}, ["includeHeaders is '1'", "true or false"]),
        ({**LEAST, "minPartitions": "0"}, ["minPartitions is '0'", "1 or more"]),
        ({**LEAST, "maxRecordsPerPartition": "0"}, ["maxRecordsPerPartition is '0'", "1 or more"]),
        ({**LEAST, "maxOffsetsPerTrigger": "many"}, ["maxOffsetsPerTrigger is 'many'", "whole number"]),
        (
            {**LEAST, "maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "11"},
            ["minOffsetsPerTrigger is 11", "maxOffsetsPerTrigger, which is 10"],
        ),
        ({**LEAST, "maxTriggerDelay": "soon"}, ["maxTriggerDelay is 'soon'", "15m"]),
        ({**LEAST, "kafkaConsumer.pollTimeoutMs": "0"}, ["kafkaConsumer.pollTimeoutMs is '0'", "1 or more"]),
        ({**LEAST, "fetchOffset.numRetries": "-1"}, ["fetchOffset.numRetries is '-1'", "0 or more"]),
        ({**LEAST, "commit.offsets.group.id": ""}, ["commit.offsets.group.id is ''", "anything but empty"]),
        ({**LEAST, "kafka.isolation.level": "dirty"}, ["kafka.isolation.level is 'dirty'", "read_committed"]),
        ({**LEAST, "kafka.fetch.max.wait.ms": "x"}, ["kafka.fetch.max.wait.ms is 'x'", "whole number"]),
        ({**LEAST, "startingOffset": "earliest"}, ["'startingOffset'", "did you mean 'startingOffsets'"]),
        (
            {**LEAST, "kafka.max.partition.fetch.byte": "7"},
            ["no option 'kafka.max.partition.fetch.byte'", "did you mean 'kafka.max.partition.fetch.bytes'?"],
        ),
        ({**LEAST, "kafka.securty.protocol": "SSL"}, ["did you mean 'kafka.security.protocol'?"]),
        ({**LEAST, "kafka.colour": "red"}, ["no option 'kafka.colour'", "leave it out"]),
        ({**LEAST, "bootstrap.servers": "h:1"}, ["'bootstrap.servers'", "did you mean 'kafka.bootstrap.servers'"]),
    ],
)
def test_invalid_options_are_refused_by_name(options, words):
    with pytest.raises(ConfigError) as caught:
        parse(options, Mode.STREAM)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"],
)
def test_options_that_sparks_own_source_refuses_are_refused_with_a_remedy(name):
    with pytest.raises(ConfigError, match=rf"kafka\.{name} is 'x', which the source does not support: \w+"):
        parsed(**{f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    ("option", "value"),
    [("endingOffsets", "latest"), ("endingOffsetsByTimestamp", '{"t":{"0":1}}'), ("endingTimestamp", "5")],
)
def test_a_stream_has_no_end(option, value):
    with pytest.raises(ConfigError, match=f"{option} is .*a stream has no end"):
        parsed(**{option: value})
    assert parsed(Mode.BATCH, **{option: value}).ending.option == option


@pytest.mark.parametrize("value", ["latest", '{"t":{"0":5,"1":-1}}'])
def test_a_batch_does_not_begin_at_the_end(value):
    with pytest.raises(ConfigError, match=r"startingOffsets is .*reads nothing; it may be earliest"):
        parsed(Mode.BATCH, startingOffsets=value)


@pytest.mark.parametrize("value", ["earliest", '{"t":{"0":-2}}'])
def test_a_batch_does_not_end_at_the_beginning(value):
    with pytest.raises(ConfigError, match=r"endingOffsets is .*; it may be latest, or JSON .*-1: latest"):
        parsed(Mode.BATCH, endingOffsets=value)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("500", 500), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2min", 120_000), ("1h", 3_600_000)],
)
def test_times_are_written_as_spark_writes_them(text, expected_ms):
    assert parsed(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "headrace-spark-source"),
        ({"groupIdPrefix": "team"}, "team"),
        ({"groupIdPrefix": "team", "kafka.group.id": "g"}, "g"),
        ({"kafka.group.id": "g", "kafka.client.id": "c"}, "c"),
    ],
)
def test_the_client_id_is_the_most_specific_name_given(options, expected):
    assert parsed(**options).client_id == expected


def test_options_travel_but_are_not_printed():
    options = parsed(**{"kafka.sasl.password": "s3cret"})
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert "s3cret" not in repr(options)


def test_what_has_no_effect_is_warned_of_once(caplog):
    options = {
        **LEAST,
        "maxOffsetsPerTrigger": "5",
        "kafka.session.timeout.ms": "1",
        "kafka.linger.ms": "7",
        "somebody.elses": "x",
    }
    with caplog.at_level(logging.WARNING, "headrace"):
        warn_of_no_effect(options, Mode.BATCH)
    assert [record.getMessage() for record in caplog.records] == [
        "option maxOffsetsPerTrigger has no effect in a batch query",
        "2 options have no effect: kafka.linger.ms: it is an option of producers, and the source reads; "
        "kafka.session.timeout.ms: the source joins no group: Spark assigns the partitions",
    ]


class TokenProvider:
    """A plug-in that reads one option when it is configured. It counts how often that happens."""

    calls: ClassVar[list[str]] = []

    def configure(self, config):
        self.realm = config["token.realm"]
        self.calls.append("configure")

    def __call__(self):
        raise AssertionError("no connection is opened here")

    def close(self):
        self.calls.append("close")


def test_options_of_a_plugin_are_accepted_and_the_plugin_is_configured_once_and_closed(caplog):
    TokenProvider.calls.clear()
    options = {
        **LEAST,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.login.callback.handler.class": f"{__name__}.TokenProvider",
        "kafka.token.realm": "r",
        "kafka.colour": "red",
        "kafka.config.providers.file.class": "org.example.Provider",
    }
    for _ in range(3):
        parse(options, Mode.STREAM)
    with caplog.at_level(logging.WARNING, "headrace"):
        warn_of_no_effect(options, Mode.STREAM)
    assert TokenProvider.calls == ["configure", "close"]
    assert [record.getMessage() for record in caplog.records] == [
        "2 options have no effect: kafka.colour: Kafka's clients have none of this name, and no plug-in read it when "
        "configured; kafka.config.providers.file.class: values are used as they are"
    ]
    with pytest.raises(ConfigError, match=r"did you mean 'kafka\.check\.crcs'"):
        parse({**options, "kafka.check.crc": "x"}, Mode.STREAM)


def test_every_consumer_option_of_kafka_43_is_known():
    """Those of ConsumerConfig, but for what is refused."""
    names = """config.providers share.acknowledgement.mode share.acquire.mode
    allow.auto.create.topics auto.commit.interval.ms bootstrap.servers check.crcs client.dns.lookup client.id
    client.rack connections.max.idle.ms default.api.timeout.ms enable.metrics.push exclude.internal.topics
    fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms
    retry.backoff.ms sasl.mechanism security.protocol send.buffer.bytes session.timeout.ms
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.truststore.location"""
    assert set(names.split()) <= set(consumer_options.CONSUMER_OPTIONS)


# -- columns -----------------------------------------------------------------------------------


def test_the_columns_are_those_of_sparks_own_source():
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    expected = types.StructType(
        [
            types.StructField("key", types.BinaryType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("topic", types.StringType()),
            types.StructField("partition", types.IntegerType()),
            types.StructField("offset", types.LongType()),
            types.StructField("timestamp", types.TimestampType()),
            types.StructField("timestampType", types.IntegerType()),
            types.StructField("headers", types.ArrayType(header)),
        ]
    )
    assert schema_of(parse({**LEAST, "includeHeaders": "true"}, Mode.ANY)) == expected
    assert schema_of(parse(LEAST, Mode.ANY)) == types.StructType(expected.fields[:-1])


def test_an_invalid_option_fails_when_the_dataframe_is_created():
    with pytest.raises(ConfigError, match="minPartitions"):
        HeadraceDataSource({**LEAST, "minPartitions": "none"}).schema()


def test_a_schema_may_take_some_of_the_columns_in_any_order():
    assert check_columns(schema(ALL_COLUMNS), parse(LEAST, Mode.ANY)) == tuple(ALL_COLUMNS)
    assert check_columns(schema(["offset", "value"]), parse(LEAST, Mode.ANY)) == ("offset", "value")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([types.StructField("body", types.BinaryType())], "has a column 'body'; the source has key, value"),
        ([types.StructField("value", types.StringType())], "column value as string; the source gives binary"),
        ([types.StructField("key", types.BinaryType(), nullable=False)], "column key as not null"),
        ([], "has no columns"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        check_columns(types.StructType(fields), parse(LEAST, Mode.ANY))
