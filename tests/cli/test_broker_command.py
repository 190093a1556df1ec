"""headrace broker: start, status, stop and faults."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

from headrace import Producer, Schema, SchemaRegistryClient
from headrace.errors import Code
from headrace.wire.api.groups import HeartbeatRequest, HeartbeatResponse
from tests.support.broker_commands import COMMAND_SECONDS_MAX, headrace, running
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

READY_SECONDS_MAX = 20
NOT_RUNNING = 3


@pytest.fixture
def started(tmp_path):
    with running("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", "--format", "json") as (process, line):
        yield process, json.loads(line), tmp_path / "data"


def test_a_broker_is_started_shown_and_stopped(started):
    process, ready, data_dir = started
    assert ready["pid"] == process.pid
    with Producer(bootstrap_servers=ready["bootstrap"]) as producer:
        assert producer.send("made-by-sending", b"x").result(20).offset == 0
    status = headrace("broker", "status", "--data-dir", data_dir, "--format", "json")
    facts = json.loads(status.stdout)
    assert (facts["bootstrap"], facts["pid"], facts["topics"]) == (ready["bootstrap"], process.pid, 1)
    assert ready["bootstrap"] in headrace("broker", "status", "--data-dir", data_dir).stdout
    stopped = headrace("broker", "stop", "--data-dir", data_dir)
    assert (stopped.returncode, stopped.stdout) == (0, f"the broker (pid {process.pid}) has stopped\n")
    assert process.wait(COMMAND_SECONDS_MAX) == 0
    for command in ("status", "stop"):
        gone = headrace("broker", command, "--data-dir", data_dir)
        assert gone.returncode == NOT_RUNNING
        assert f"no broker runs on {data_dir}" in gone.stderr


def test_the_ready_line_is_text_and_the_data_is_in_the_state_folder(tmp_path):
    with running("--listen", "127.0.0.1:0", state=tmp_path) as (process, line):
        assert line.startswith("headrace broker ready: bootstrap.servers=127.0.0.1:")
        assert (tmp_path / "headrace" / "broker" / "broker.json").exists()
        assert headrace("broker", "status", state=tmp_path).returncode == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(COMMAND_SECONDS_MAX) == 0


def test_a_schema_registry_is_started_with_the_broker(tmp_path):
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", "--schema-registry", "127.0.0.1:0")
    with running(*arguments, "--format", "json") as (process, line):
        url = json.loads(line)["schema_registry"]
        assert SchemaRegistryClient(url).register("orders-value", Schema('"string"')).id == 1
        status = headrace("broker", "status", "--data-dir", tmp_path / "data", "--format", "json")
        assert json.loads(status.stdout)["schema_registry"] == url
        process.terminate()
        assert process.wait(COMMAND_SECONDS_MAX) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_second_line_names_the_schema_registry_and_an_open_one_is_a_warning(tmp_path):
    arguments = ("--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", "--schema-registry", "0.0.0.0:0")
    with running(*arguments) as (process, line):
        assert "ready" in line
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("headrace schema registry ready: http://0.0.0.0:")
        process.terminate()
        process.wait(COMMAND_SECONDS_MAX)
        assert "the schema registry on 0.0.0.0:0 gives everyone" in process.stderr.read()


def test_sigterm_stops_the_broker_cleanly(started):
    process, _, data_dir = started
    process.terminate()
    assert process.wait(COMMAND_SECONDS_MAX) == 0
    assert "Traceback" not in process.stderr.read()
    assert not (data_dir / "broker.json").exists()


def test_a_killed_broker_is_not_reported_as_running(started):
    process, _, data_dir = started
    process.kill()
    process.wait(COMMAND_SECONDS_MAX)
    assert headrace("broker", "status", "--data-dir", data_dir).returncode == NOT_RUNNING
    with running("--listen", "127.0.0.1:0", "--data-dir", data_dir) as (_, line):
        assert "ready" in line


def test_command_line_options_take_precedence_over_the_file(tmp_path):
    (tmp_path / "server.properties").write_text(
        f"num.partitions=2\nlog.dirs={tmp_path}/data\nlisteners=PLAINTEXT://:1\n"
    )
    options = ("--config", tmp_path / "server.properties", "-X", "num.partitions=4", "--listen", "127.0.0.1:0")
    with running(*options, "--format", "json") as (_, line):
        ready = json.loads(line)
        assert ready["data_dir"] == f"{tmp_path}/data"
        with Producer(bootstrap_servers=ready["bootstrap"]) as producer:
            assert len(producer.partitions_for("t")) == 4


def test_an_open_listener_is_a_warning(tmp_path):
    with running("--listen", "0.0.0.0:0", "--data-dir", tmp_path) as (process, line):
        assert "ready" in line
        process.terminate()
        assert process.stderr is not None
        assert "gives everyone who can reach this machine full access" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--listen", "nonsense"), 2, "invalid --listen: expected HOST:PORT, got 'nonsense'"),
        (("-X", "nonsense"), 2, "invalid -X: expected KEY=VALUE, got 'nonsense'"),
        (("-X", "num.partitions=many"), 1, "num.partitions is 'many'; it may be"),
        (("--config", "/does/not/exist"), 2, "does not exist"),
    ],
)
def test_invalid_usage_is_one_paragraph(tmp_path, arguments, code, message):
    done = headrace("broker", "start", "--data-dir", tmp_path, *arguments)
    assert done.returncode == code
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported_with_its_process(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = ("broker", "start", "--data-dir", tmp_path, "--listen", f"127.0.0.1:{port}")
        done = headrace(*command)
        assert done.returncode == 1
        assert f"port {port} is used by pid {os.getpid()}" in done.stderr
        assert "Traceback" not in done.stderr
        assert "Traceback" in headrace(*command, "--debug").stderr


def test_faults_are_injected_listed_and_cleared(started):
    _, ready, data_dir = started
    at = ("--data-dir", data_dir)
    done = headrace("broker", "faults", "inject", "--api", "Heartbeat", "--error", "NOT_COORDINATOR", "--count", 1, *at)
    assert done.stdout == "1: Heartbeat error=NOT_COORDINATOR when=before count=1 probability=1.0 (0 hits)\n"
    with Connection(ready["bootstrap"]) as connection:
        response = connection.call(HeartbeatRequest(group_id="g", member_id="m"), 0)
    assert response == HeartbeatResponse(error_code=Code.NOT_COORDINATOR)
    (rule,) = json.loads(headrace("broker", "faults", "list", "--format", "json", *at).stdout)["faults"]
    assert (rule["api"], rule["hits"], rule["spent"]) == ("Heartbeat", 1, True)
    assert headrace("broker", "faults", "clear", 7, *at).returncode == 1
    assert headrace("broker", "faults", "clear", *at).stdout == "1 cleared\n"
    assert headrace("broker", "faults", "list", *at).stdout == "no faults\n"
    wrong = headrace("broker", "faults", "inject", "--api", "Nonsense", "--drop", *at)
    assert wrong.returncode == 1
    assert "unknown API 'Nonsense'" in wrong.stderr


def test_a_crash_is_injected(started):
    process, ready, data_dir = started
    headrace("broker", "faults", "inject", "--api", "Metadata", "--crash", "--data-dir", data_dir)
    with Producer(bootstrap_servers=ready["bootstrap"], max_block_ms=100) as producer:
        with pytest.raises(Exception, match=r"."):
            producer.partitions_for("t")
        eventually("the crash", lambda: process.poll() == 137, COMMAND_SECONDS_MAX)


def test_help_lists_the_exit_codes():
    for command in ((), ("broker", "start"), ("broker", "stop"), ("broker", "status"), ("broker", "faults")):
        done = headrace(*command, "--help")
        assert done.returncode == 0
        assert "Exit codes" in done.stdout
    assert headrace("--version").stdout.startswith("headrace, version ")
