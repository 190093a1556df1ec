"""The options of the sink, without a broker."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

pytest.importorskip("pyspark")

from headrace.errors import ConfigError
from headrace.spark.failpoints import FailpointError, Failpoints
from headrace.spark.sink_options import SinkOptions

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
        ({"commit.inline.bytes.max": "-1"}, "commit.inline.bytes.max is '-1'"),
    ],
)
def test_all_problems_are_reported_at_once(given, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        SinkOptions.parse({**SERVERS, **given}, is_stream=False)


def test_write_id_is_for_batches_only():
    assert parse(write__id="job-1").write_id == "job-1"
    with pytest.raises(ConfigError, match=r"write\.id is for batch writes"):
        parse(is_stream=True, write__id="job-1")


def test_options_of_spark_itself_are_none_of_our_business():
    parse(checkpointlocation="/somewhere", path="x", queryname="q")


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
