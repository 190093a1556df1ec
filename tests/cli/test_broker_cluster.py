"""headrace broker start --brokers and --join, as a user types them."""

from __future__ import annotations

import json
import os
import signal

import pytest

from broker_commands import COMMAND_SECONDS_MAX, headrace, running
from headrace import Producer
from headrace.broker import control
from headrace.errors import ConfigError, IllegalStateError
from headrace.wire.api.metadata import MetadataRequest, MetadataResponse
from peers.connection import Connection
from waiting import eventually


def brokers_by(bootstrap):
    with Connection(bootstrap) as connection:
        answer = connection.call(MetadataRequest(topics=[]), 9)
        assert isinstance(answer, MetadataResponse)
        return {node.node_id for node in answer.brokers}


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_cluster_is_started_shown_joined_and_stopped_from_the_command_line(tmp_path):
    data_dir = tmp_path / "data"
    options = ("--listen", "127.0.0.1:0", "--data-dir", data_dir, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)
        first, second = ready["bootstrap"].split(",")
        assert brokers_by(first) == brokers_by(second) == {1, 2}
        with Producer(bootstrap_servers=second) as producer:
            assert producer.send("made-by-sending", b"x").result(20).offset == 0

        joined = ("--join", first, "--node-id", 3, "--data-dir", tmp_path / "third", "--format", "json")
        with running(*joined) as (third, third_line):
            assert brokers_by(json.loads(third_line)["bootstrap"]) == {1, 2, 3}
            third.terminate()
            assert third.wait(COMMAND_SECONDS_MAX) == 0
            assert brokers_by(first) == {1, 2}

        facts = json.loads(headrace("broker", "status", "--data-dir", data_dir, "--format", "json").stdout)
        assert (facts["bootstrap"], facts["pid"], facts["topics"]) == (ready["bootstrap"], process.pid, 1)
        assert [(row["node_id"], row["alive"]) for row in facts["brokers"]] == [(1, True), (2, True)]
        assert headrace("broker", "stop", "--data-dir", data_dir / "broker-2").returncode == 0
        shown = headrace("broker", "status", "--data-dir", data_dir).stdout
        assert f"broker 1: {first}, pid" in shown
        assert f"broker 2: {second}, down" in shown
        stopped = headrace("broker", "stop", "--data-dir", data_dir)
        assert stopped.returncode == 0
        assert process.wait(COMMAND_SECONDS_MAX) == 0
        assert all(is_gone(row["pid"]) for row in facts["brokers"])
        assert not (data_dir / "broker.json").exists()


def test_a_broker_of_a_cluster_is_killed_and_started_again_by_the_control_socket(tmp_path):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path, "--format", "json")
    with running("--brokers", 2, *options) as (process, line):
        ready = json.loads(line)

        def alive():
            return {row["node_id"]: row["pid"] for row in control.call(ready["control"], "status")["brokers"]}

        before = alive()
        control.call(ready["control"], "brokers.kill", node_id=2)
        assert is_gone(before[2])
        assert alive() == {1: before[1], 2: None}
        with pytest.raises(IllegalStateError, match="broker 1 runs already"):
            control.call(ready["control"], "brokers.start", node_id=1)
        with pytest.raises(ConfigError, match="there is no broker 7 in this cluster; there are 1, 2"):
            control.call(ready["control"], "brokers.kill", node_id=7)
        control.call(ready["control"], "brokers.start", node_id=2)
        assert alive()[2] not in (None, before[2])
        assert brokers_by(ready["bootstrap"].split(",")[1]) == {1, 2}
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_no_broker_outlives_the_process_that_runs_the_cluster(tmp_path, number):
    options = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data")
    with running("--brokers", 2, *options) as (process, line):
        assert line.startswith("headrace cluster of 2 brokers ready: bootstrap.servers=127.0.0.1:")
        facts = json.loads(headrace("broker", "status", "--data-dir", tmp_path / "data", "--format", "json").stdout)
        process.send_signal(number)
        assert process.wait(COMMAND_SECONDS_MAX) == (0 if number == signal.SIGINT else -number)
        eventually("all have ended", lambda: all(is_gone(row["pid"]) for row in facts["brokers"]))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--brokers", 0), 2, "0 is not in the range"),
        (("--brokers", 2, "--join", "127.0.0.1:1"), 2, "--join and --node-id are for one broker"),
        (("--brokers", 2, "--listen", "0.0.0.0:0"), 2, "--brokers starts brokers on 127.0.0.1 only"),
        (("--brokers", 2, "-X", "num.partitions=many"), 1, "num.partitions is 'many'; it may be"),
        (("--join", "127.0.0.1:1"), 2, "--join needs --node-id"),
        (("--join", "nowhere", "--node-id", 2), 1, "headrace.controller is HOST:PORT"),
    ],
    ids=["none", "both", "open", "value", "number", "address"],
)
def test_a_wrong_command_line_is_answered_in_one_paragraph(tmp_path, arguments, code, said):
    done = headrace("broker", "start", "--data-dir", tmp_path, *arguments)
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
