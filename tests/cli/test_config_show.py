"""headrace config show: options, their values and their sources."""

from __future__ import annotations

import json

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.topic_options import TOPIC_OPTIONS
from headrace.producer.options import PRODUCER_OPTIONS
from headrace.spark.consumer_options import CONSUMER_OPTIONS
from headrace.spark.sink_options import SINK_OPTIONS
from headrace.spark.source_options import SOURCE_OPTIONS
from tests.support.cli_runner import facts, refused, run_cli

TABLES = {
    "producer": PRODUCER_OPTIONS,
    "consumer": CONSUMER_OPTIONS,
    "broker": BROKER_OPTIONS,
    "topic": TOPIC_OPTIONS,
    "spark-sink": SINK_OPTIONS,
    "spark-source": SOURCE_OPTIONS,
}


@pytest.fixture(autouse=True)
def no_broker(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def shown(*arguments):
    return {option["name"]: option for option in facts("config", "show", *arguments)["options"]}


@pytest.mark.parametrize("kind", TABLES)
def test_every_option_of_every_kind_is_shown(kind):
    options = shown(kind)
    assert list(options) == list(TABLES[kind])
    assert {option["source"] for option in options.values()} == {"default"}
    for option in options.values():
        assert option["doc"] or option["no_effect"], option
        assert option["allowed"]
        assert option["value"] == option["default"]
    text = run_cli("config", "show", kind).stdout
    assert all(name in text for name in TABLES[kind])


def test_the_source_with_the_highest_precedence_is_shown(tmp_path, monkeypatch):
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=1\nbatch.size=100\nacks=1\nmax.request.size=9000\n")
    monkeypatch.setenv("HEADRACE_LINGER_MS", "2")
    monkeypatch.setenv("HEADRACE_BATCH_SIZE", "200")
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "of-environment:1")
    options = shown("--config", file, "-X", "linger.ms=3", "-X", "bootstrap.servers=of-x:1", "-b", "of-flag:1")
    values = {name: (option["value"], option["source"]) for name, option in options.items()}
    assert values["bootstrap.servers"] == ("of-flag:1", "flag")
    assert values["linger.ms"] == ("3", "-X")
    assert values["batch.size"] == ("200", "environment HEADRACE_BATCH_SIZE")
    assert values["max.request.size"] == ("9000", f"file {file}")
    assert values["retries"][1] == "default"


def test_derived_options_are_shown_as_such():
    options = shown("--set", "-X", "acks=1")
    assert {name: (option["value"], option["source"]) for name, option in options.items()} == {
        "acks": ("1", "-X"),
        "enable.idempotence": ("false", "other options"),
    }
    assert run_cli("config", "show", "--set").stdout == "no options set: all have their defaults\n"


def test_secrets_are_never_shown(monkeypatch):
    monkeypatch.setenv("HEADRACE_SASL_PASSWORD", "hunter2")
    for arguments in ((), ("--docs",), ("--format", "json"), ("consumer",)):
        done = run_cli("config", "show", *arguments, "-X", "ssl.key.password=hunter2")
        assert done.exit_code == 0
        assert "hunter2" not in done.output
        assert "[hidden]" in done.output
    done = run_cli("config", "show", "broker", "--set", "-X", "listener.name.a.ssl.key.password=hunter2")
    assert "hunter2" not in done.output
    assert "listener.name.a.ssl.key.password" in done.output


def test_a_running_local_broker_is_the_default_address(tmp_path):
    folder = tmp_path / "headrace" / "broker"
    with EmbeddedBroker(data_dir=folder) as broker:
        option = shown("consumer")["bootstrap.servers"]
    assert (option["value"], option["source"]) == (broker.bootstrap, "broker on this machine")


def test_broker_options_from_a_server_properties_file(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=3\nlog.retention.hours=1\n")
    options = shown("broker", "--set", "--config", file, "-X", "num.partitions=4")
    assert {name: (option["value"], option["source"]) for name, option in options.items()} == {
        "num.partitions": ("4", "-X"),
        "log.retention.hours": ("1", f"file {file}"),
    }


def test_docs_fit_a_terminal():
    done = run_cli("config", "show", "spark-sink", "--docs").stdout
    assert "delivery=exactly-once  (default; default exactly-once)" in done
    assert max(map(len, done.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-X", "linger.msec=1"), "unknown option 'linger.msec'; did you mean 'linger.ms'?"),
        (("-X", "linger.ms=soon"), "linger.ms is 'soon'; it may be"),
        (("broker", "-X", "num.partition=1"), "did you mean 'num.partitions'?"),
        (("topic", "-X", "retention.ms=soon"), "retention.ms is 'soon'"),
        (("broker", "-b", "a:1"), "-b applies to producer and consumer only, not to broker"),
        (("nonsense",), "'nonsense' is not one of 'producer'"),
        (("--config", "/does/not/exist"), "does not exist"),
    ],
)
def test_invalid_usage(arguments, message):
    assert message in refused(2, "config", "show", *arguments)


def test_json_is_one_line():
    done = run_cli("config", "show", "--format", "json").stdout
    assert done.count("\n") == 1
    assert json.loads(done)["kind"] == "producer"
