"""The options of the sink, without a broker."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")

from headrace.errors import ConfigError
from headrace.producer.serializers import Serializer
from headrace.producer.settings import resolve
from headrace.spark.failpoints import FailpointError, Failpoints
from headrace.spark.python_process import is_noted, note
from headrace.spark.sink_options import SinkOptions
from headrace.spark.topic_creation import TopicCreation

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parse(is_stream: bool = False, **given: Any) -> SinkOptions:
    options = {name.replace("__", "."): value for name, value in given.items()}
    return SinkOptions.parse({**SERVERS, **options}, is_stream=is_stream)


def test_defaults_are_exactly_once_and_automatic():
    options = parse(topic="t")
    assert (options.delivery, options.commit_mode, options.on_bad_row) == ("exactly-once", "auto", "fail")
    assert options.producer_config("x")["transactional.id"] == "x"
    assert options.producer_config("x")["transaction.timeout.ms"] == "900000"


def test_names_are_taken_in_any_case_as_spark_does():
    options = SinkOptions.parse(
        {"KAFKA.bootstrap.SERVERS": "h:1", "Sink.ID": "s", "includeHeaders": "false"}, is_stream=True
    )
    assert (options.sink_id, options.include_headers, options.kafka["bootstrap.servers"]) == ("s", False, "h:1")


def test_producer_options_are_passed_on_without_the_plugins():
    options = parse(kafka__compression__type="zstd", kafka__value__serializer="json")
    assert options.producer_config()["compression.type"] == "zstd"
    assert "value.serializer" not in options.producer_config()


def test_at_least_once_knows_no_transactions():
    options = parse(delivery="at-least-once")
    assert "transactional.id" not in options.producer_config()


def test_options_travel_and_do_not_show_secrets():
    options = parse(kafka__sasl__password="secret")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kafka.bootstrap.servers": " "}, "bootstrap.servers is not set"),
        ({"kafka.bootstrap.servers": "host"}, "host"),
        ({"delivery": "sometimes"}, "delivery is 'sometimes'; it may be exactly-once, at-least-once"),
        ({"commit.mode": "serial"}, "it may be auto, inline, parallel"),
        ({"sink.id": "a~b"}, "sink.id is 'a~b'"),
        ({"sink.id": ""}, "sink.id is ''"),
        ({"sink.id": "x" * 201}, "1 to 200 letters"),
        ({"sinkid": "x"}, "did you mean 'sink.id'"),
        ({"kafka.transactional.id": "x"}, "set sink.id instead"),
        ({"kafka.acks": "1"}, "acks is 1"),
        ({"kafka.enable.idempotence": "false"}, "enable.idempotence is false"),
        ({"kafka.linger.ms": "soon"}, "linger.ms is 'soon'"),
        ({"on.bad.row": "dead-letter"}, "dead.letter.topic is not set"),
        ({"dead.letter.topic": "d"}, "set on.bad.row=dead-letter"),
        ({"delivery": "at-least-once", "sink.id": "x"}, "sink.id is set, but .* has no decisions"),
        ({"delivery": "at-least-once", "replay.check": "rows"}, "replay.check is set, but .* has no decisions"),
        ({"topic": ""}, "topic is empty"),
        ({"kafka.linger.m": "5"}, "there is no option 'kafka.linger.m'; did you mean 'kafka.linger.ms'?"),
        ({"kafka.compresion.type": "zstd"}, "no option 'kafka.compresion.type'; did you mean 'kafka.compression.type'"),
        ({"kafka.compression_type": "zstd"}, "did you mean 'kafka.compression.type'"),
        ({"kafka.isolation.levle": "x"}, "did you mean 'kafka.isolation.level'"),
        ({"kafka.colour": "red"}, "no option 'kafka.colour': Kafka's clients have none of this name, .*; leave it out"),
        ({"kafka.value.serializer": "json", "kafka.colour": "red"}, "no plug-in of the query reads it"),
        ({"topic.partition": "3"}, "did you mean 'topic.partitions'"),
        ({"topic.partitions": "3"}, "topic.partitions is set, but topic.create is false: set topic.create=true, or"),
        ({"topic.config.retention.ms": "3"}, "topic.config.retention.ms is set, but topic.create is false"),
        ({"topic.create": "true", "topic.partitions": "0"}, "topic.partitions is '0'; it may be 1 or more"),
        ({"topic.create": "yes"}, "topic.create is 'yes'; it may be true or false"),
        ({"commit.inline.bytes.max": "-1"}, "commit.inline.bytes.max is '-1'"),
    ],
)
def test_all_problems_are_reported_at_once(given, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace("?", r"\?")):
        SinkOptions.parse({**SERVERS, **given}, is_stream=False)


def test_write_id_is_for_batches_only():
    assert parse(write__id="job-1").write_id == "job-1"
    with pytest.raises(ConfigError, match=r"write\.id is for batch writes"):
        parse(is_stream=True, write__id="job-1")


def test_options_of_spark_itself_are_none_of_our_business():
    parse(checkpointlocation="/somewhere", path="x", queryname="q")


class ColourSerializer(Serializer):
    """A plug-in with an option of its own."""

    def configure(self, config, is_key):
        self.colour = config.get("colour")

    def serialize(self, topic, value, headers=None):
        return self.colour.encode()


def test_an_option_that_a_plugin_reads_is_accepted_and_passed_to_the_plugin_only():
    path = f"{__name__}.ColourSerializer"
    options = parse(kafka__value__serializer=path, kafka__colour="red")
    assert options.plugin_config()["colour"] == "red"
    assert "colour" not in options.producer_config()
    assert parse(kafka__value__serializer="str", kafka__value__serializer__encoding="latin-1")


class LateSerializer(Serializer):
    """A plug-in that reads its option when it is used. It counts how often it is configured and closed."""

    calls: ClassVar[list[str]] = []

    def configure(self, config, is_key):
        self.config = config
        self.calls.append("configure")

    def serialize(self, topic, value, headers=None):
        return self.config["colour"].encode()

    def close(self):
        self.calls.append("close")


def test_an_option_that_a_plugin_may_read_later_is_accepted_with_a_warning():
    path = f"{__name__}.LateSerializer"
    options = parse(kafka__value__serializer=path, kafka__colour="red")
    assert options.plugin_config()["colour"] == "red"
    assert options.no_effect_text() == (
        "1 option has no effect: kafka.colour: Kafka's clients have none of this name, and no plug-in read it when "
        "configured"
    )
    read = parse(kafka__value__serializer=f"{__name__}.ColourSerializer", kafka__colour="red")
    assert read.no_effect_text() is None
    with pytest.raises(ConfigError, match=r"did you mean 'kafka\.linger\.ms'"):
        parse(kafka__value__serializer=path, kafka__linger__m="5")


def test_plugins_are_configured_once_for_the_same_options_and_closed():
    LateSerializer.calls.clear()
    for _ in range(3):
        options = parse(kafka__value__serializer=f"{__name__}.LateSerializer", kafka__colour="blue")
        options.no_effect_text()
    assert LateSerializer.calls == ["configure", "close"]


def test_options_of_config_providers_have_no_effect():
    options = parse(kafka__config__providers="file", kafka__config__providers__file__class="org.example.Provider")
    text = options.no_effect_text() or ""
    assert text.startswith("2 options have no effect: kafka.config.providers: ")
    assert "kafka.config.providers.file.class: values are used as they are" in text


def test_options_without_effect_are_one_warning_and_reach_no_producer(caplog):
    given = {
        "kafka.group.id": "g",
        "kafka.ssl.provider": "x",
        "kafka.bootstrap.controllers": "c:1",
        "kafka.linger.ms": "7",
    }
    options = SinkOptions.parse({**SERVERS, **given}, is_stream=True)
    resolve(options.producer_config("x"))
    assert options.no_effect_text() == (
        "3 options have no effect: kafka.bootstrap.controllers: it is an option of the admin client, and the sink "
        "writes; kafka.group.id: it is an option of consumers, and the sink writes; kafka.ssl.provider: TLS is "
        "OpenSSL's"
    )
    assert "ssl.provider" not in options.producer_config()
    assert not caplog.records
    assert parse(kafka__linger__ms="7").no_effect_text() is None


def test_the_processes_of_an_application_share_what_is_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    assert [note(fact) for fact in ("a", "a", "b")] == [True, False, True]
    code = "from headrace.spark.python_process import is_noted, note; print(is_noted('a'), note('a'), note('c'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "False", "True"]
    assert is_noted("c")
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert [is_noted("a"), note("a"), note("a"), is_noted("a")] == [False, True, False, True]


def test_created_topics_have_the_settings_of_the_options():
    given = {"topic.create": "true", "topic.partitions": "6", "topic.replication.factor": "3"}
    options = SinkOptions.parse({**SERVERS, **given, "Topic.Config.retention.ms": "60000"}, is_stream=True)
    assert options.creation == TopicCreation(6, 3, {"retention.ms": "60000"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert parse(topic__create="true").creation == TopicCreation(-1, -1, {})
    assert parse().creation is None


def test_failpoints_need_an_environment_that_allows_them(monkeypatch, tmp_path):
    monkeypatch.delenv("HEADRACE_FAILPOINTS", raising=False)
    with pytest.raises(ConfigError, match="is for tests: leave it out, or set HEADRACE_FAILPOINTS=1"):
        Failpoints("decide.done=raise")
    monkeypatch.setenv("HEADRACE_FAILPOINTS", "1")
    monkeypatch.setenv("HEADRACE_FAILPOINTS_DIR", str(tmp_path))
    points = Failpoints("decide.done=raise, end.done=raise*")
    points.reach("begin.read")
    with pytest.raises(FailpointError, match=r"decide\.done"):
        points.reach("decide.done")
    points.reach("decide.done")  # once only
    for _ in range(2):
        with pytest.raises(FailpointError):
            points.reach("end.done")


def test_a_held_failpoint_waits_for_its_go_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADRACE_FAILPOINTS", "1")
    monkeypatch.delenv("HEADRACE_FAILPOINTS_DIR", raising=False)
    points = Failpoints(f"markers={tmp_path}, decide.done=hold, end.done=hold")
    (tmp_path / "decide.done.go").touch()
    points.reach("decide.done")
    assert (tmp_path / "decide.done").exists()
    (tmp_path / "end.done.go").write_text("raise")
    with pytest.raises(FailpointError, match=r"end\.done"):
        points.reach("end.done")
    points.reach("end.done")  # once only


@pytest.mark.parametrize("given", ["nowhere=kill", "decide.done", "decide.done=dance"])
def test_a_failpoint_that_does_not_exist_is_refused(given, monkeypatch):
    monkeypatch.setenv("HEADRACE_FAILPOINTS", "1")
    with pytest.raises(ConfigError, match="name=action"):
        Failpoints(given)
