"""The cluster and client options of a command, and the broker that is used without -b."""

from __future__ import annotations

import json
import signal
import socket
import threading

import pytest

from headrace.cli.broker_control import is_alive
from headrace.cli.connection import ClusterConnection
from headrace.cli.errors import InvalidUsageError
from headrace.cli.settings import Setting, merge_settings
from tests.support.shell import begin, pipe, run
from tests.support.waiting import eventually

RUN_FILE = "headrace/broker/broker.json"


def test_precedence_is_flag_then_x_then_environment_then_file_then_default(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("linger.ms=1\nacks=1\nbatch.size=1\nbootstrap.servers=file:1\n")
    environment = {"HEADRACE_LINGER_MS": "2", "HEADRACE_ACKS": "0", "HEADRACE_BOOTSTRAP_SERVERS": "env:1"}
    settings = merge_settings(
        {"bootstrap.servers": "flag:1"}, ["linger.ms=3", "bootstrap.servers=x:1"], file, environment
    )
    assert settings == {
        "bootstrap.servers": Setting("flag:1", "flag"),
        "linger.ms": Setting("3", "-X"),
        "acks": Setting("0", "environment HEADRACE_ACKS"),
        "batch.size": Setting("1", f"file {file}"),
    }
    connection = ClusterConnection(settings)
    assert connection.bootstrap == "flag:1"
    assert connection.options()["acks"] == "0"
    assert [connection.source_of(name) for name in ("linger.ms", "retries")] == ["-X", "default"]


def test_a_file_named_by_the_environment_may_have_consumer_options(tmp_path):
    file = tmp_path / "shared.properties"
    file.write_text("auto.offset.reset=earliest\ngroup.id=g\nfetch.min.bytes=7\n")
    settings = merge_settings({}, [], None, {"HEADRACE_CONFIG": str(file), "HEADRACE_KERNEL": "python"})
    assert settings.keys() == {"group.id", "fetch.min.bytes"}
    other = tmp_path / "other.properties"
    other.write_text("acks=1\n")
    assert merge_settings({}, [], other, {"HEADRACE_CONFIG": str(file)}).keys() == {"acks"}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("ackss=1", "-X ackss: unknown option 'ackss'; did you mean 'acks'?"),
        ("acks=5", "-X acks: acks is '5'; it may be all, -1, 0, 1"),
        ("acks", "invalid -X: expected KEY=VALUE, got 'acks'"),
        ("auto.offset.reset=earliest", "--offsets sets the start"),
        ("bootstrap.servers=nonsense", "expected host:port, got 'nonsense'"),
    ],
)
def test_an_invalid_option_is_refused_with_its_source(assignment, message):
    with pytest.raises(InvalidUsageError) as refused:
        merge_settings({}, [assignment], None, {})
    assert message in refused.value.message
    assert refused.value.exit_code == 2


def test_an_invalid_option_of_environment_or_file_names_its_source(tmp_path, capsys):
    file = tmp_path / "f.properties"
    file.write_text("linger=1\n")
    with pytest.raises(InvalidUsageError, match=rf"file {file}: unknown option 'linger'"):
        merge_settings({}, [], file, {})
    with pytest.raises(InvalidUsageError, match="environment HEADRACE_ACKS: acks is 'x'"):
        merge_settings({}, [], None, {"HEADRACE_ACKS": "x"})
    with pytest.raises(InvalidUsageError, match="HEADRACE_CONFIG: cannot read"):
        merge_settings({}, [], None, {"HEADRACE_CONFIG": str(tmp_path / "none")})
    assert merge_settings({}, [], None, {"HEADRACE_LINGERS_MS": "1"}) == {}
    assert "HEADRACE_LINGERS_MS matches no option; did you mean 'linger.ms'?" in capsys.readouterr().err


def test_unreachable_addresses_are_reported_at_once():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = run("topic", "list", "-b", f"127.0.0.1:{port}")
    assert done.returncode == 3
    assert f"127.0.0.1:{port} refused the connection: nothing listens on that port" in done.stderr.decode()
    assert f"headrace doctor -b 127.0.0.1:{port}" in done.stderr.decode()
    done = run("topic", "list", "-b", "no-such-host.invalid:9092")
    assert done.returncode == 3
    assert "cannot resolve 'no-such-host.invalid'" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Traceback" in run("topic", "list", "-b", f"127.0.0.1:{port}", "--debug").stderr


def test_a_server_that_is_not_kafka_is_reported():
    def respond(server):
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(1000)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=respond, args=(server,), daemon=True)
        thread.start()
        done = run("topic", "list", "-b", f"127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert done.returncode == 1
    stderr = done.stderr.decode()
    assert "the peer uses HTTP" in stderr
    assert stderr.count("\n") == 1, "the log of the attempts is not shown"


def test_without_an_address_a_broker_is_started_and_its_data_kept(tmp_path):
    done = run("produce", "t", stdin=b"one\ntwo\n", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "started one for this command" in done.stderr.decode()
    assert not (tmp_path / RUN_FILE).exists(), "the broker has stopped cleanly"
    assert run("consume", "t", state=tmp_path).stdout == b"one\ntwo\n"


def test_both_ends_of_a_pipe_share_the_started_broker(tmp_path):
    run("produce", "a", stdin=b"".join(b"%d\n" % i for i in range(5000)), state=tmp_path)
    done = pipe("headrace consume a --format json | headrace produce b --format json", state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"started one for this command") == 1
    assert run("consume", "b", state=tmp_path).stdout.count(b"\n") == 5000
    assert not (tmp_path / RUN_FILE).exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_the_started_broker_stops_however_its_command_ends(tmp_path, number, code):
    run("produce", "t", stdin=b"x\n", state=tmp_path)
    with begin("consume", "t", "--follow", state=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        pid = json.loads((tmp_path / RUN_FILE).read_text())["pid"]
        process.send_signal(number)
        assert process.wait(20) == code
        assert b"Traceback" not in process.stderr.read()
    eventually("the end of the broker", lambda: not is_alive(pid))
    assert not (tmp_path / RUN_FILE).exists()
